"""The kernel's own client of file systems: Debian's stock kernel, in virtual machines, mounts what Debian's ceph-mds serves on Spirula."""
import json, os, re, shutil, signal
import guest
from guest import Guest
from harness import Case, Skip, wait

MODULES = ['virtio_pci', 'virtio_net', 'crc32c_generic', 'gcm', 'ctr', 'ghash_generic', 'ceph']

# Makes files without end, each durable before its number is said; by another name first, as careful programs do.
ENDLESS = '''
(n=0; while :; do n=$((n+1)); dd if=/dev/urandom of=/mnt/endless/new bs=16k count=3 conv=fsync 2> /dev/null || exit 1
    sum=$(md5sum < /mnt/endless/new); mv /mnt/endless/new /mnt/endless/$n || exit 1; sync; echo "durable $n $sum"; done) &
'''


class KernelCephFs(Case):
    args = ['--osds', '3', '--osd-size', '2G', '--with', 'mds']
    minutes = 1

    def setup(self, clients):
        if os.geteuid():
            raise Skip('an address that the guest reaches, too, needs root')
        if not shutil.which('ceph-mds'):
            raise Skip('ceph-mds is not installed (Debian: apt-get install ceph-mds)')
        if clients.root:
            raise Skip('the client is a kernel, and the same with whatever clients')
        guest.need('fs/ceph/ceph')
        self.address = guest.address()
        self.args = [*self.args, '--bind', self.address]
        self.guests = []
        super().setup(clients)
        # Whoever goes without a word is waited for that long by a server that takes over.
        self.c.ceph('config', 'set', 'mds', 'mds_reconnect_timeout', '5')
        made = self.c.ceph('fs', 'authorize', 'cephfs', 'client.guest', '/', 'rwps').out
        self.key = re.search(r'key = (\S+)', made)[1]
        self.initramfs = os.path.join(self.scratch, 'initramfs')
        guest.initramfs(self.initramfs, MODULES, ['flock'])

    def teardown(self):
        for g in getattr(self, 'guests', []):
            g.kill()
        super().teardown()
        if hasattr(self, 'address'):
            guest.forget_address(self.address)

    def boot(self, mode):
        """A guest that has mounted the file system, speaking msgr2 in that mode."""
        g = Guest(self.scratch, self.initramfs, f'guest{len(self.guests)}', '256M')
        self.guests.append(g)
        # What `mount.ceph` hands to the kernel.
        g.run(f'mount -t ceph {self.address}:{self.c.port}:/ /mnt -o name=guest,secret={self.key},ms_mode={mode}')
        return g

    def ranks(self):
        m = self.c.json('fs', 'get', 'cephfs')['mdsmap']
        return {i['rank']: i['name'] for i in m['info'].values() if i['state'] == 'up:active'}

    def sessions(self):
        return [s for s in json.loads(self.c.ceph('tell', 'mds.0', 'session', 'ls').out) if s['client_metadata'].get('kernel_version')]

    def test_1_two_kernels_share_a_tree(self):
        a, b = (self.boot(mode) for mode in ('prefer-crc', 'secure'))
        type(self).a, type(self).b = a, b
        sessions = self.sessions()
        assert len(sessions) == 2 and all(s['client_metadata']['entity_id'] == 'guest' for s in sessions), sessions
        assert 'type ceph' in a.run('mount') and 'ms_mode=secure' in b.run('mount')
        # A tree from one is the same at the other: by name, by content, by owner and mode.
        a.run('mkdir -p /mnt/t/x/y && cp -r /etc /modules /mnt/t && ln -s x/y /mnt/t/s && ln /mnt/t/etc/mke2fs.conf /mnt/t/hard && '
              'chmod 4750 /mnt/t/hard && chown 1234:4321 /mnt/t/hard && cp /bin/busybox /mnt/t/x/y/')
        look = 'cd /mnt/t && find . | sort | while read f; do stat -c "%n %f %u %g %h %s" $f; done | md5sum; find . -type f | sort | xargs md5sum; cd /'
        assert a.run(look) == b.run(look)
        assert '/mnt/t/x/y/busybox' in b.run('/mnt/t/x/y/busybox find /mnt/t -name busybox')
        # By `read`: busybox's `cat` has the kernel splice, and that of 6.1 puts bytes into a pipe twice if it finds only then, having
        # read, that another client made the file longer than it knew.
        read = lambda f: f'dd if=/mnt/t/{f} bs=64k 2> /dev/null'
        for i in range(8):
            a.run(f'echo {i} > /mnt/t/f')
            assert b.run(read('f')) == str(i)
            b.run('mv /mnt/t/f /mnt/t/g')
            assert a.run(f'{read("g")}; ls /mnt/t/f 2> /dev/null', check=False) == str(i)
            a.run('mv /mnt/t/g /mnt/t/f')
        # A lock holds between them.
        a.run('flock /mnt/t/lock sh -c "echo held > /held; exec sleep 600" & while ! grep -q held /held 2> /dev/null; do sleep 0.1; done')
        b.run('! flock -n /mnt/t/lock true')
        a.run('kill $(pidof sleep)')
        b.run('flock /mnt/t/lock true')
        # Appending from both in turn, by a lock, loses nothing of either. Without one it may, on a real Ceph, too: a kernel asks for a file's
        # end before it appends, and two may be told the same.
        append = 'for i in $(seq 20); do flock /mnt/t/lock sh -c "echo {}$i >> /mnt/t/log"; done'
        numbers = [g.send(append.format(n)) for n, g in (('a', a), ('b', b))]
        for n, g in zip(numbers, (a, b)):
            g.until(rf'ended-0-{n}\b')
        assert sorted(a.run(read('log')).split()) == sorted(f'{n}{i}' for n in 'ab' for i in range(1, 21))
        # Holes, truncation, a file that is open and gone.
        a.run('dd if=/dev/urandom of=/mnt/t/big bs=1M count=9 2> /dev/null && truncate -s 5000000 /mnt/t/big && truncate -s 12000000 /mnt/t/big')
        assert b.run('stat -c %s /mnt/t/big; tail -c 7000000 /mnt/t/big | tr -d "\\0" | wc -c') == '12000000\n0'
        assert a.run('exec 5<>/mnt/t/open; echo still >&5; rm /mnt/t/open; ls /mnt/t/open 2> /dev/null; exec 5<&-; echo $?') == '0'
        # A snapshot.
        assert b.run('mkdir /mnt/t/.snap/s && rm -r /mnt/t/etc /mnt/t/big && ls /mnt/t/.snap') == 's'
        assert a.run('md5sum < /mnt/t/.snap/s/etc/mke2fs.conf') == a.run('md5sum < /etc/mke2fs.conf')
        assert a.run('stat -c %s /mnt/t/.snap/s/big') == '12000000'
        a.run('! touch /mnt/t/.snap/s/new && rmdir /mnt/t/.snap/s')

    def test_2_a_server_and_an_osd_go_and_a_guest_is_cut_off(self):
        a, b = self.a, self.b
        a.run('mkdir /mnt/endless')
        a.run(ENDLESS)
        so_far = lambda: len(re.findall('durable', a.out))
        more = lambda n=4: wait(lambda before=so_far(): so_far() >= before + n, lambda: f'more files: {a.said()}')
        more()
        name = self.ranks()[0]
        with open(os.path.join(self.c.dir, f'run/mds.{name}.guest')) as f:
            os.kill(int(f.read()), signal.SIGKILL)
        wait(lambda: self.ranks().get(0) not in (None, name), 'another server')
        more()
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        more()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        # Its power is cut. Whatever it said is durable is there for the other.
        a.kill()
        durable = re.findall(r'durable (\d+) (\w+)', a.out)
        # What it holds is taken from it when it has been silent for a minute; here at once.
        old = min(self.sessions(), key=lambda s: s['id'])
        self.c.ceph('tell', 'mds.0', 'session', 'evict', f'id={old["id"]}')
        sums = b.run('cd /mnt/endless; for n in $(ls | grep -v new); do echo $n $(md5sum < $n); done; cd /')
        there = dict(re.findall(r'(\d+) (\w{32})', sums))
        lost = [n for n, digest in durable if there.get(n) != digest]
        assert durable and not lost, (lost, durable, there)
        b.run('rm -r /mnt/endless && umount /mnt')
        wait(lambda: not self.sessions(), lambda: f'no sessions: {self.sessions()}')
