"""The kernel's own client of block images: Debian's stock kernel, in a virtual machine, maps images and keeps file systems on them."""
import json, os, re
import guest
from guest import Guest
from harness import Skip, wait
from images import Images

MODULES = ['virtio_pci', 'virtio_net', 'crc32c_generic', 'gcm', 'ctr', 'ghash_generic', 'rbd', 'ext4']

# Writes files without end, each durable before its number is said; in its own directory, so that it may be killed at any time.
ENDLESS = '''
(n=0; while :; do n=$((n+1)); dd if=/dev/urandom of=/mnt/endless/$n bs=64k count=3 conv=fsync 2> /dev/null || exit 1
    echo "durable $n $(md5sum < /mnt/endless/$n)"; done) &
'''


class Krbd(Images):
    minutes = 1

    def setup(self, clients):
        if os.geteuid():
            raise Skip('an address that the guest reaches, too, needs root')
        guest.need()
        self.address = guest.address()
        self.args = [*self.args, '--bind', self.address]
        self.guests = []
        super().setup(clients)
        self.initramfs = os.path.join(self.scratch, 'initramfs')
        guest.initramfs(self.initramfs, MODULES)
        self.c.ceph('osd', 'pool', 'create', 'rbd', '16')
        self.rbd('pool', 'init', 'rbd')
        self.c.ceph('auth', 'get-or-create', 'client.guest', 'mon', 'profile rbd', 'osd', 'profile rbd')
        self.key = self.c.ceph('auth', 'get-key', 'client.guest').out.strip()
        # A client that was killed counts as alive for so long.
        self.c.ceph('config', 'set', 'osd', 'osd_client_watch_timeout', '5')

    def teardown(self):
        for g in getattr(self, 'guests', []):
            g.kill()
        super().teardown()
        if hasattr(self, 'address'):
            guest.forget_address(self.address)

    def boot(self):
        g = Guest(self.scratch, self.initramfs, f'guest{len(self.guests)}')
        self.guests.append(g)
        return g

    def map(self, g, spec, mode, options=''):
        """What `rbd map` writes there; the device."""
        image, _, snap = spec.partition('@')
        ids = set(g.run('ls /sys/bus/rbd/devices').split())
        g.run(f'echo "{self.address}:{self.c.port} name=guest,secret={self.key},ms_mode={mode}{options} rbd {image} {snap or "-"}" > /sys/bus/rbd/add_single_major')
        [new] = set(g.run('ls /sys/bus/rbd/devices').split()) - ids
        return f'/dev/rbd{new}'

    def unmap(self, g, device):
        g.run(f'echo {device[len("/dev/rbd"):]} > /sys/bus/rbd/remove_single_major')

    def test_1_a_file_system_outlives_its_guest(self):
        self.rbd('create', 'disk', '--size', '256M')
        g = self.boot()
        device = self.map(g, 'disk', 'crc')
        g.run(f'mkfs.ext4 -q {device} && mount -t ext4 {device} /mnt && mkdir /mnt/endless')
        g.run('dd if=/dev/urandom of=/mnt/first bs=1M count=12 2> /dev/null && sync')
        first = g.run('md5sum < /mnt/first')
        [lock] = json.loads(self.rbd('lock', 'ls', 'disk', '--format', 'json').out)
        assert lock['id'].startswith('auto '), lock
        g.run(ENDLESS)
        g.until('durable 5 ')
        # An OSD goes meanwhile.
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        so_far = len(re.findall('durable', g.out))
        wait(lambda: len(re.findall('durable', g.out)) > so_far + 2, lambda: f'more files: {g.said()}')
        g.kill()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        durable = re.findall(r'durable (\d+) (\w+)', g.out)
        g = self.boot()
        device = self.map(g, 'disk', 'secure')
        # The dead one's lock is broken, and it is fenced; its journal is replayed.
        g.run(f'mount -t ext4 {device} /mnt')
        assert g.run('md5sum < /mnt/first') == first
        sums = g.run('cd /mnt/endless; for n in $(ls); do echo $n $(md5sum < $n); done; cd /')
        there = dict(re.findall(r'(\d+) (\w{32})', sums))
        lost = [n for n, digest in durable if there.get(n) != digest]
        assert not lost, (lost, durable, there)
        assert self.c.json('osd', 'blocklist', 'ls'), 'the dead one may have sent more'
        g.run('umount /mnt')
        g.run(f'e2fsck -fn {device}')
        self.unmap(g, device)
        assert json.loads(self.rbd('lock', 'ls', 'disk', '--format', 'json').out) == []
        assert not json.loads(self.rbd('status', 'disk', '--format', 'json').out)['watchers']
        checked = self.rbd('object-map', 'check', 'disk', '--no-progress')
        assert 'error' not in checked.err.lower(), checked

    def test_2_images_change_while_they_are_mapped(self):
        g = self.guests[-1]
        self.rbd('create', 'live', '--size', '64M')
        device = self.map(g, 'live', 'prefer-crc')
        g.run(f'mkfs.ext4 -q {device} && mount -t ext4 {device} /mnt && dd if=/dev/urandom of=/mnt/kept bs=1M count=4 2> /dev/null && sync')
        kept = g.run('md5sum < /mnt/kept')
        # Debian's librbd wants the lock for that, and the kernel gives it.
        self.rbd('snap', 'create', 'live@early', '--no-progress')
        g.run('dd if=/dev/urandom of=/mnt/kept bs=1M count=4 conv=notrunc 2> /dev/null && sync')
        assert g.run('md5sum < /mnt/kept') != kept
        # It hears of another size.
        self.rbd('resize', 'live', '--size', '96M', '--no-progress')
        name = device[len('/dev/'):]
        wait(lambda: g.run(f'cat /sys/block/{name}/size') == str((96 << 20) // 512), 'the new size')
        # The snapshot beside it, and a clone of that, whose changes are its own.
        early = self.map(g, 'live@early', 'crc', ',ro')
        g.run(f'mkdir -p /early && mount -t ext4 -o ro,noload {early} /early')
        assert g.run('md5sum < /early/kept') == kept
        g.run('umount /early')
        self.unmap(g, early)
        self.c.ceph('osd', 'set-require-min-compat-client', 'mimic')
        self.rbd('clone', 'live@early', 'copy', '--rbd-default-clone-format', '2')
        copy = self.map(g, 'copy', 'crc')
        g.run(f'mount -t ext4 {copy} /early')
        assert g.run('md5sum < /early/kept') == kept
        g.run('echo changed > /early/new && umount /early && mount -t ext4 -o ro ' + copy + ' /early')
        assert g.run('cat /early/new') == 'changed' and g.run('md5sum < /early/kept') == kept
        g.run(f'umount /early /mnt && e2fsck -fn {copy} && e2fsck -fn {device}')
        self.unmap(g, copy)
        # What is discarded is given back; the snapshot keeps it.
        g.run(f'blkdiscard {device}')
        self.unmap(g, device)
        used = {i.get('snapshot', ''): i['used_size'] for i in json.loads(self.rbd('du', 'live', '--format', 'json').out)['images']}
        assert used[''] == 0 < used['early'], used

    def test_3_an_image_with_its_data_in_an_erasure_coded_pool(self):
        g = self.guests[-1]
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'two', 'k=2', 'm=1', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'two')
        self.c.ceph('osd', 'pool', 'set', 'ec', 'allow_ec_overwrites', 'true')
        self.c.ceph('osd', 'pool', 'application', 'enable', 'ec', 'rbd')
        self.rbd('create', 'coded', '--size', '64M', '--data-pool', 'ec')
        device = self.map(g, 'coded', 'secure')
        g.run(f'mkfs.ext4 -q {device} && mount -t ext4 {device} /mnt && dd if=/dev/urandom of=/mnt/file bs=1M count=4 2> /dev/null')
        digest = g.run('md5sum < /mnt/file')
        g.run(f'umount /mnt && e2fsck -fn {device} && mount -t ext4 {device} /mnt')
        assert g.run('md5sum < /mnt/file') == digest
        g.run('umount /mnt')
        self.unmap(g, device)

    def test_4_rbd_map_tells_the_kernel_which_protocol_to_speak(self):
        """As far as that goes where the kernel has no rbd, as in most places that run this."""
        self.rbd('create', 'host', '--size', '8M')
        r = self.rbd('map', 'host', '-o', 'noudev', check=False)
        if r.code == 0:
            self.rbd('unmap', 'host', '-o', 'noudev')
        assert r.code == 0 or 'sysfs write failed' in r.err, r
        assert 'ms_mode mismatch' in self.rbd('map', 'host', '-o', 'noudev', '--rbd-default-map-options', '', check=False).err
