"""Images by iSCSI: Debian's `tgt` with its rbd back end, and libiscsi's tools and qemu as initiators, beside Debian's `rbd`."""
import json, os, random, shutil, signal, subprocess
from harness import Skip, free_port, wait
from images import Images

MB = 1 << 20
NAME = 'iqn.2026-01.spirula:images'


class Target:
    """A tgtd of our own, with images of the pool rbd as its logical units 1, 2, …"""

    def __init__(self, case, *images):
        self.port = free_port()
        # Only a number in the name of a socket. It is not told to the machine's own tgtd, which has 0.
        self.control = str(self.port)
        self.log = os.path.join(case.scratch, f'tgtd-{self.port}.log')
        self.p = subprocess.Popen(['tgtd', '-f', '-C', self.control, '--iscsi', f'portal=127.0.0.1:{self.port}'],
                                  stdout=open(self.log, 'w'), stderr=subprocess.STDOUT)
        case.targets.append(self)
        wait(lambda: self.p.poll() is not None or self.admin('sys', 'show', check=False) == 0, lambda: f'tgtd: {self.text()}')
        assert self.p.poll() is None, self.text()
        self.admin('target', 'new', '--tid', '1', '-T', NAME)
        for lun, image in enumerate(images, 1):
            self.admin('logicalunit', 'new', '--tid', '1', '--lun', str(lun), '--bstype', 'rbd', '--backing-store', f'rbd/{image}',
                       '--bsopts', f'conf={case.c.conf};id=admin')
        self.admin('target', 'bind', '--tid', '1', '-I', '127.0.0.1')

    def admin(self, mode, op, *argv, check=True):
        r = subprocess.run(['tgtadm', '-C', self.control, '--lld', 'iscsi', '--mode', mode, '--op', op, *argv],
                           capture_output=True, text=True, timeout=240)
        assert not check or r.returncode == 0, (mode, op, argv, r.stderr, self.text())
        return r.returncode

    def text(self):
        return open(self.log, errors='replace').read()

    def url(self, lun):
        return f'iscsi://127.0.0.1:{self.port}/{NAME}/{lun}'

    def stop(self):
        """It does not end when it is told to."""
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGKILL)
        self.p.wait(60)
        for left in (f'/var/run/tgtd/socket.{self.control}', f'/var/run/tgtd/socket.{self.control}.lock'):
            if os.path.exists(left):
                os.remove(left)


class Iscsi(Images):
    def setup(self, clients):
        if os.geteuid():
            raise Skip('tgtd needs root')
        for program, package in [('tgtd', 'tgt'), ('iscsi-ls', 'libiscsi-bin'), ('qemu-io', 'qemu-utils')]:
            if not shutil.which(program):
                raise Skip(f'{package} is not installed')
        if not os.path.exists('/usr/lib/tgt/backing-store/bs_rbd.so'):
            raise Skip('tgt-rbd is not installed')
        self.targets = []
        super().setup(clients)
        self.c.ceph('osd', 'pool', 'create', 'rbd', '16')
        self.rbd('pool', 'init', 'rbd')
        # A server that was killed counts as alive for so long.
        self.c.ceph('config', 'set', 'osd', 'osd_client_watch_timeout', '5')

    def teardown(self):
        for t in getattr(self, 'targets', []):
            t.stop()
        super().teardown()

    def test_1_initiators_find_images_and_write_them_while_an_osd_goes(self):
        self.rbd('create', 'disk', '--size', '64M')
        self.rbd('create', 'other', '--size', '32M')
        t = Target(self, 'disk', 'other')
        listed = self.tool('iscsi-ls', '-s', f'iscsi://127.0.0.1:{t.port}')
        assert f'Target:{NAME} Portal:127.0.0.1:{t.port},1' in listed and listed.count('DIRECT_ACCESS') == 2, listed
        assert 'Product:VIRTUAL-DISK' in self.tool('iscsi-inq', t.url(1))
        assert f'Total size:{64 * MB}' in self.tool('iscsi-readcapacity16', t.url(1))
        assert f'Total size:{32 * MB}' in self.tool('iscsi-readcapacity16', t.url(2))
        data = bytearray(64 * MB)
        data[5 * MB:9 * MB], data[50 * MB:51 * MB] = os.urandom(4 * MB), os.urandom(MB)
        path = self.file('image', data)
        # Zeros are written like anything else: tgt makes of a "write same" writes of 512 bytes, one after the other.
        self.tool('qemu-img', 'convert', '-n', '-S', '0', '-f', 'raw', '-O', 'raw', path, t.url(1))
        self.tool('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', path, t.url(1))
        assert self.exported('disk') == data
        # Random writes of which each is read back, and an OSD that goes and comes meanwhile.
        rng, steps = random.Random(1), []
        for n in range(400):
            at, length, byte = rng.randrange(2 * MB) // 512 * 512, (1 + rng.randrange(16)) * 512, 1 + rng.randrange(255)
            steps += ['-c', f'write -P {byte} {at} {length}', '-c', f'read -P {byte} {at} {length}']
            data[at:at + length] = bytes([byte]) * length
        log = open(os.path.join(self.scratch, 'qemu-io.log'), 'w')
        load = subprocess.Popen(['qemu-io', '-f', 'raw', t.url(1), *steps, '-c', 'flush'], stdout=log, stderr=log)
        said = lambda: open(log.name).read()
        wait(lambda: said().count('wrote') > 50 or load.poll() is not None, 'writes')
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        assert load.wait(240) == 0 and said().count('wrote') == 400 and 'ailed' not in said(), said()[-2000:]
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        assert self.exported('disk') == data
        assert 'Run completed' in self.tool('qemu-img', 'bench', '-c', '200', '-d', '16', '-s', '4096', '-w', '-f', 'raw', t.url(2))
        self.c.wait_clean()
        # Another process serves it after this one was killed, with all that was answered.
        t.stop()
        again = Target(self, 'disk')
        change = os.urandom(MB)
        data[20 * MB:21 * MB] = change
        self.tool('qemu-io', '-f', 'raw', again.url(1), '-c', f'write -s {self.file("change", change)} 20M 1M', '-c', 'flush')
        assert self.c.json('osd', 'blocklist', 'ls'), 'the dead one may have sent more'
        self.tool('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', self.file('image', data), again.url(1))
        assert self.exported('disk') == data
        again.admin('logicalunit', 'delete', '--tid', '1', '--lun', '1')
        wait(lambda: not json.loads(self.rbd('status', 'disk', '--format', 'json').out)['watchers'], 'nobody who watches')
        checked = self.rbd('object-map', 'check', 'disk', '--no-progress')
        assert 'error' not in checked.err.lower(), checked
