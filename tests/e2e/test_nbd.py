"""Block images without Ceph's client: `spirula nbd serve`, driven by qemu-img, qemu-io and a small client of the protocol's, beside
Debian's `rbd` on the same images."""
import json, os, random, re, select, shutil, signal, socket, struct, subprocess, tempfile, threading, time
import harness
from harness import Skip, wait
from images import Images

MB = 1 << 20
READ, WRITE, FLUSH, TRIM, ZERO = 0, 1, 3, 4, 6
FUA = 1


class Client:
    """One connection, one request at a time."""

    def __init__(self, address, export):
        self.s = socket.create_connection(address, timeout=200)
        assert self.take(16) == b'NBDMAGICIHAVEOPT'
        self.take(2)
        self.s.sendall(struct.pack('>I', 3))
        name = export.encode()
        self.s.sendall(b'IHAVEOPT' + struct.pack('>III', 7, 6 + len(name), len(name)) + name + b'\0\0')
        while True:
            magic, _, kind, length = struct.unpack('>QIII', self.take(20))
            data = self.take(length)
            assert magic == 0x3e889045565a9 and kind in (1, 3), (hex(kind), data)
            if kind == 1:
                break
            self.size, self.flags = struct.unpack('>QH', data[2:12])

    def take(self, n):
        data = b''
        while len(data) < n:
            more = self.s.recv(n - len(data))
            if not more:
                raise EOFError('the server hung up')
            data += more
        return data

    def ask(self, kind, offset, length, data=b'', flags=0):
        self.s.sendall(struct.pack('>IHHQQI', 0x25609513, flags, kind, 7, offset, length) + data)
        magic, error, cookie = struct.unpack('>IIQ', self.take(16))
        assert magic == 0x67446698 and cookie == 7
        return error

    def read(self, offset, length):
        assert self.ask(READ, offset, length) == 0
        return self.take(length)

    def write(self, offset, data, flags=0):
        assert self.ask(WRITE, offset, len(data), data, flags) == 0

    def close(self):
        self.s.close()


class Server:
    """`spirula nbd serve`."""

    def __init__(self, case, *specs, options=()):
        self.log = os.path.join(case.scratch, f'nbd-{len(case.servers)}.log')
        # Any port: one that is chosen before may be somebody else's by then.
        argv = [harness.BINARY, 'nbd', 'serve', *specs, '--conf', case.c.conf, '--dir', case.c.dir, '--bind', '127.0.0.1:0', *options]
        self.p = subprocess.Popen(argv, stdout=open(self.log, 'w'), stderr=subprocess.STDOUT)
        case.servers.append(self)
        wait(lambda: self.p.poll() is not None or self.text().count('serving') == len(specs), lambda: f'the server: {self.text()}')
        assert self.p.poll() is None, self.text()
        self.port = int(re.search(r'nbd://127\.0\.0\.1:(\d+)/', self.text())[1])

    def text(self):
        return open(self.log).read()

    def client(self, export):
        return Client(('127.0.0.1', self.port), export)

    def url(self, export):
        return f'nbd://127.0.0.1:{self.port}/{export}'

    def stop(self, how=signal.SIGTERM):
        if self.p.poll() is None:
            self.p.send_signal(how)
            self.p.wait(180)


def scribble(nbd, model, rng, times, largest=3 * MB):
    """Random writes, trims and zeroes, on both; reads in between."""
    for _ in range(times):
        length = min(int(largest ** rng.random()) + 1, len(model))
        at = rng.randrange(len(model) - length + 1)
        kind = rng.choice([WRITE, WRITE, WRITE, ZERO, TRIM, READ])
        if kind == WRITE:
            data = rng.randbytes(length)
            nbd.write(at, data, rng.choice([0, FUA]))
            model[at:at + length] = data
        elif kind == READ:
            assert nbd.read(at, length) == model[at:at + length], (at, length)
        else:
            if rng.random() < 0.5:
                # Whole objects, too.
                at, length = at // (4 * MB) * 4 * MB, min(4 * MB, len(model) - at // (4 * MB) * 4 * MB)
            assert nbd.ask(kind, at, length) == 0
            model[at:at + length] = bytes(length)
    assert nbd.ask(FLUSH, 0, 0) == 0


class Served(Images):
    """A pool of images, and servers of them that go with the class."""
    servers = ()

    def setup(self, clients):
        self.servers = []
        super().setup(clients)
        self.c.ceph('osd', 'pool', 'create', 'rbd', '16')
        self.rbd('pool', 'init', 'rbd')

    def teardown(self):
        for s in self.servers:
            s.stop(signal.SIGKILL)
        super().teardown()


class Nbd(Served):
    minutes = 2

    def setup(self, clients):
        if not shutil.which('qemu-io'):
            raise Skip('qemu-utils is not installed')
        super().setup(clients)

    def whole(self, spec):
        """Debian's rbd finds nothing wrong with the object map."""
        checked = self.rbd('object-map', 'check', spec, '--no-progress')
        assert 'error' not in checked.err.lower() and 'inconsisten' not in (checked.out + checked.err).lower(), checked
        info = json.loads(self.rbd('info', spec, '--format', 'json').out)
        assert not info.get('flags'), info

    def test_01_qemu_img_and_qemu_io(self):
        self.rbd('create', 'a', '--size', '64M')
        server = Server(self, 'rbd/a')
        data = bytearray(64 * MB)
        data[5 * MB:9 * MB], data[50 * MB:51 * MB] = os.urandom(4 * MB), os.urandom(MB)
        path = self.file('image', data)
        url = server.url('rbd/a')
        assert json.loads(self.tool('qemu-img', 'info', '--output=json', url))['virtual-size'] == 64 * MB
        self.tool('qemu-img', 'convert', '-n', '-f', 'raw', '-O', 'raw', path, url)
        self.tool('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', path, url)
        assert self.exported('a') == data
        self.whole('a')
        [du] = json.loads(self.rbd('du', 'a', '--format', 'json').out)['images']
        assert du['used_size'] <= 16 * MB, du
        out = self.tool('qemu-io', '-f', 'raw', url, '-c', 'write -P 7 1M 64k', '-c', 'read -P 7 1M 64k', '-c', 'write -z 5M 1M',
                        '-c', 'read -P 0 5M 1M', '-c', 'discard 8M 1M', '-c', 'flush')
        assert 'error' not in out.lower() and 'failed' not in out.lower(), out
        assert 'Run completed' in self.tool('qemu-img', 'bench', '-c', '500', '-d', '16', '-s', '4096', '-w', '-f', 'raw', url)
        [lock] = json.loads(self.rbd('lock', 'ls', 'a', '--format', 'json').out)
        assert lock['id'].startswith('auto '), lock
        server.stop()
        assert json.loads(self.rbd('lock', 'ls', 'a', '--format', 'json').out) == []
        assert not json.loads(self.rbd('status', 'a', '--format', 'json').out)['watchers']
        self.whole('a')

    def test_02_whatever_is_written_is_there_and_nothing_else(self):
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'two', 'k=2', 'm=1', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'two')
        self.c.ceph('osd', 'pool', 'set', 'ec', 'allow_ec_overwrites', 'true')
        self.c.ceph('osd', 'pool', 'application', 'enable', 'ec', 'rbd')
        self.rbd('namespace', 'create', 'rbd/ns')
        size = 21 * MB + 4096
        self.rbd('create', 'plain', '--size', f'{size}B')
        self.rbd('create', 'striped', '--size', f'{size}B', '--stripe-unit', '65536', '--stripe-count', '3', '--object-size', '1M')
        self.rbd('create', 'rbd/ns/coded', '--size', f'{size}B', '--data-pool', 'ec')
        self.rbd('create', 'bare', '--size', f'{size}B', '--image-feature', 'layering')
        names = ['rbd/plain', 'rbd/striped', 'rbd/ns/coded', 'rbd/bare']
        server = Server(self, *names)
        for n, name in enumerate(names):
            nbd, model = server.client(name), bytearray(size)
            assert nbd.size == size
            scribble(nbd, model, random.Random(n), 60)
            assert nbd.read(0, size) == model, name
            assert self.exported(name) == model, name
            if name != 'rbd/bare':
                self.whole(name)
            nbd.close()
        server.stop()

    def test_03_the_lock_passes_to_and_fro(self):
        self.rbd('create', 'shared', '--size', '32M')
        server = Server(self, 'rbd/shared')
        nbd = server.client('rbd/shared')
        said = os.path.join(self.scratch, 'shared')
        other = self.c.python(OTHER, 'shared', said, wait=False)
        # Both write until each has had its turns while the other wanted the lock, too.
        rounds, since, end = 0, None, time.monotonic() + 200
        while other.poll() is None:
            assert time.monotonic() < end, f'{rounds} rounds, {since} of them before the other one began'
            nbd.write((2 * (rounds % 20) + 1) * 4096, bytes([rounds % 251]) * 4096)
            rounds += 1
            if since is None and os.path.exists(f'{said}.begun'):
                since = rounds
            if since is not None and rounds >= since + 20:
                open(f'{said}.enough', 'w').close()
        out, err = other.communicate()
        assert other.returncode == 0 and 'done' in out, err
        both = self.exported('shared')
        assert [both[2 * n * 4096] for n in range(20)] == [200] * 20
        assert all(both[(2 * (n % 20) + 1) * 4096] == n % 251 for n in range(rounds - 20, rounds) if n >= 0)
        self.whole('shared')
        nbd.close()
        server.stop()

    def test_04_snapshots_while_it_is_served(self):
        self.rbd('create', 's', '--size', '16M')
        server = Server(self, 'rbd/s')
        nbd, model, rng = server.client('rbd/s'), bytearray(16 * MB), random.Random(4)
        kept = {}
        for name in ('one', 'two', 'three'):
            scribble(nbd, model, rng, 15)
            self.rbd('snap', 'create', f's@{name}', '--no-progress')
            kept[name] = bytes(model)
        scribble(nbd, model, rng, 15)
        assert self.exported('s') == model
        at = Server(self, *[f'rbd/s@{name}' for name in kept])
        for name, data in kept.items():
            assert self.exported(f's@{name}') == data, name
            reader = at.client(f'rbd/s@{name}')
            assert reader.flags & 2 and reader.read(0, 16 * MB) == data, name
            assert reader.ask(WRITE, 0, 1, b'x') == 1
            reader.close()
        at.stop()
        for spec in ('s', 's@one', 's@two', 's@three'):
            self.whole(spec)
        # What fast-diff says changed covers what did.
        diff = json.loads(self.rbd('diff', 's', '--from-snap', 'three', '--whole-object', '--format', 'json').out)
        covered = bytearray(4)
        for d in diff:
            for o in range(d['offset'] // (4 * MB), -(-(d['offset'] + d['length']) // (4 * MB))):
                covered[o] = 1
        for o in range(4):
            same = model[o * 4 * MB:(o + 1) * 4 * MB] == kept['three'][o * 4 * MB:(o + 1) * 4 * MB]
            assert same or covered[o], (o, diff)
        self.rbd('snap', 'rm', 's@two', '--no-progress')
        scribble(nbd, model, rng, 10)
        assert self.exported('s') == model and self.exported('s@one') == kept['one']
        self.rbd('resize', 's', '--size', '24M', '--no-progress')
        again = server.client('rbd/s')
        assert again.size == 24 * MB and again.read(16 * MB, MB) == bytes(MB)
        again.write(23 * MB, b'end')
        self.whole('s')
        again.close()
        nbd.close()
        server.stop()

    def test_05_clones(self):
        data = bytearray(random.Random(5).randbytes(13 * MB))
        data[4 * MB:8 * MB] = bytes(4 * MB)
        self.rbd('import', self.file('parent', data), 'parent', '--no-progress')
        self.rbd('snap', 'create', 'parent@base', '--no-progress')
        self.c.ceph('osd', 'set-require-min-compat-client', 'mimic')
        self.rbd('clone', 'parent@base', 'child', '--rbd-default-clone-format', '2')
        self.rbd('resize', 'child', '--size', '18M', '--no-progress')
        model, rng = bytearray(data) + bytes(5 * MB), random.Random(6)
        server = Server(self, 'rbd/child')
        nbd = server.client('rbd/child')
        assert nbd.read(0, 18 * MB) == model
        scribble(nbd, model, rng, 4, 100_000)
        self.rbd('snap', 'create', 'child@early', '--no-progress')
        early = bytes(model)
        scribble(nbd, model, rng, 25)
        assert nbd.read(0, 18 * MB) == model
        assert self.exported('child') == model and self.exported('child@early') == early
        self.whole('child')
        self.whole('child@early')
        self.rbd('clone', 'child@early', 'grandchild', '--rbd-default-clone-format', '2')
        below = Server(self, 'rbd/grandchild')
        grand, own = below.client('rbd/grandchild'), bytearray(early)
        scribble(grand, own, rng, 15)
        assert self.exported('grandchild') == own
        self.whole('grandchild')
        # It is cut from its parent while it is served.
        self.rbd('flatten', 'child', '--no-progress')
        scribble(nbd, model, rng, 10)
        assert self.exported('child') == model and self.exported('child@early') == early
        self.whole('child')
        nbd.close()
        grand.close()
        server.stop()
        below.stop()

    def test_05b_a_snapshot_of_a_clone_keeps_what_is_its_parents(self):
        """Whole objects are given back after the snapshot; then the image is cut from its parent."""
        data = random.Random(50).randbytes(12 * MB)
        self.rbd('import', self.file('origin', data), 'origin', '--no-progress')
        self.rbd('snap', 'create', 'origin@base', '--no-progress')
        self.rbd('clone', 'origin@base', 'copy', '--rbd-default-clone-format', '2')
        self.rbd('snap', 'create', 'copy@early', '--no-progress')
        server = Server(self, 'rbd/copy')
        nbd = server.client('rbd/copy')
        assert nbd.ask(TRIM, 0, 4 * MB) == 0 and nbd.ask(ZERO, 8 * MB, 4 * MB) == 0
        nbd.close()
        server.stop()
        self.rbd('flatten', 'copy', '--no-progress')
        assert self.exported('copy@early') == data
        assert self.exported('copy') == bytes(4 * MB) + data[4 * MB:8 * MB] + bytes(4 * MB)
        self.whole('copy')

    def test_05c_who_takes_no_answers_holds_no_memory(self):
        self.rbd('create', 'wide', '--size', '64M')
        server = Server(self, 'rbd/wide')
        def resident():
            return int(open(f'/proc/{server.p.pid}/statm').read().split()[1]) * 4096
        before = resident()
        deaf = [server.client('rbd/wide') for _ in range(3)]
        for nbd in deaf:
            for _ in range(120):
                nbd.s.sendall(struct.pack('>IHHQQI', 0x25609513, 0, READ, 7, 0, 16 * MB))
        good, most = server.client('rbd/wide'), 0
        for _ in range(40):
            assert good.read(0, MB) == bytes(MB)
            most = max(most, resident())
        print(f'figure: {(most - before) // MB} MiB more for answers that nobody takes')
        # 5.8 GB were asked for. The server allows itself 256 MiB of requests, whatever its speed. Seen: 164 MiB.
        assert most < before + 700 * MB, (before, most)
        server.stop()

    def test_05d_who_sends_half_a_write_holds_no_memory(self):
        server = Server(self, 'rbd/wide')
        def resident():
            return int(open(f'/proc/{server.p.pid}/statm').read().split()[1]) * 4096
        before, half = resident(), []
        for _ in range(20):
            nbd = server.client('rbd/wide')
            nbd.s.sendall(struct.pack('>IHHQQI', 0x25609513, 0, WRITE, 7, 0, 32 * MB))
            nbd.s.setblocking(False)
            half.append(nbd)
        # All of them at once, until the server takes no more of any.
        left = {nbd.s: 30 * MB for nbd in half}
        while left and (ready := select.select([], list(left), [], 1)[1]):
            for s in ready:
                try:
                    left[s] -= s.send(bytes(min(left[s], MB)))
                except OSError:
                    # Who is behind for long is not waited for.
                    del left[s]
                    continue
                if not left[s]:
                    del left[s]
        good = server.client('rbd/wide')
        for n in range(20):
            good.write(n * 4096, b'x' * 4096)
            assert good.read(n * 4096, 4096) == b'x' * 4096
        most = resident()
        print(f'figure: {(most - before) // MB} MiB more for halves of writes; {sum(left.values()) // MB} MiB of 600 were not taken')
        # 600 MB came, or wait to be taken. The server allows itself 64 MiB of such writes, whatever its speed. Seen: 60 MiB.
        assert most < before + 200 * MB, (before, most)
        for nbd in half:
            nbd.close()
        good.write(0, bytes(16 * MB))
        good.close()
        server.stop()

    def test_06_an_osd_is_killed_under_load(self):
        self.rbd('create', 'load', '--size', '32M')
        server = Server(self, 'rbd/load')
        done, failed, stop = [0], [], threading.Event()

        def load():
            try:
                nbd, model, rng = server.client('rbd/load'), bytearray(32 * MB), random.Random(8)
                while not stop.is_set():
                    scribble(nbd, model, rng, 5, 100_000)
                    done[0] += 5
                assert nbd.read(0, 32 * MB) == model
                nbd.close()
                self.loaded = bytes(model)
            except BaseException as e:
                failed.append(e)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for osd in (1, 2):
                before = done[0]
                wait(lambda: failed or done[0] >= before + 20, 'operations')
                self.c.spirula('osd', 'stop', str(osd), '--dir', self.c.dir)
                before = done[0]
                wait(lambda: failed or done[0] >= before + 20, 'operations without an OSD')
                self.c.spirula('osd', 'start', str(osd), '--dir', self.c.dir)
                self.c.wait_clean()
        finally:
            stop.set()
            thread.join()
        assert not failed, failed
        assert self.exported('load') == self.loaded
        self.whole('load')
        # All of the cluster dies and comes back: the server goes on.
        nbd = server.client('rbd/load')
        self.c.kill()
        self.c.up()
        nbd.write(0, b'still here')
        assert self.exported('load')[:10] == b'still here'
        nbd.close()
        server.stop()

    def test_07_a_server_that_is_killed_and_started_again_has_the_image(self):
        self.rbd('create', 'k', '--size', '32M')
        server = Server(self, 'rbd/k')
        nbd, model = server.client('rbd/k'), bytearray(32 * MB)
        scribble(nbd, model, random.Random(9), 20)
        server.stop(signal.SIGKILL)
        again = Server(self, 'rbd/k')
        nbd = again.client('rbd/k')
        assert nbd.read(0, 32 * MB) == model, 'what was acknowledged'
        # The dead one's watch has to end; then it is fenced, and its lock broken.
        nbd.write(7, b'mine')
        model[7:11] = b'mine'
        assert 'is fenced' in again.text(), again.text()
        assert self.c.json('osd', 'blocklist', 'ls'), 'the dead one may have sent more'
        assert self.exported('k') == model
        self.whole('k')
        nbd.close()
        again.stop()

    def test_08_what_cannot_be_is_refused(self):
        def refused(*argv):
            r = self.c.spirula('nbd', 'serve', *argv, '--conf', self.c.conf, '--dir', self.c.dir, '--bind', '127.0.0.1:0', check=False)
            assert r.code == 1, r
            return r.err
        assert 'no such image' in refused('rbd/nothing')
        assert 'no such pool' in refused('nothing/a')
        assert 'no such snapshot' in refused('rbd/a@nothing')
        self.rbd('create', 'j', '--size', '8M', '--image-feature', 'exclusive-lock,journaling')
        assert 'journaling' in refused('rbd/j')
        self.rbd('create', 'old', '--size', '8M', '--image-format', '1', check=False)
        assert self.c.spirula('nbd', 'serve', 'justaname', check=False).code == 2
        server = Server(self, 'rbd/j', options=['--read-only'])
        assert server.client('rbd/j').flags & 2
        # Nonsense closes that connection and no other.
        good = server.client('rbd/j')
        rng = random.Random(1)
        for n in range(30):
            with socket.create_connection(('127.0.0.1', server.port), timeout=100) as s:
                s.recv(18)
                s.sendall(struct.pack('>I', 3) + (b'IHAVEOPT' if n % 2 else b'') + rng.randbytes(64))
        assert good.read(0, 4096) == bytes(4096)
        server.stop()
        # Locked by hand: nobody writes.
        self.rbd('create', 'h', '--size', '8M')
        self.rbd('lock', 'add', 'h', 'mine')
        server = Server(self, 'rbd/h')
        nbd = server.client('rbd/h')
        assert nbd.ask(WRITE, 0, 1, b'x') == 5
        assert nbd.read(0, 1) == b'\0'
        server.stop()

    def test_09_a_user_with_the_profile_rbd_and_a_socket(self):
        keyring = os.path.join(self.scratch, 'keyring')
        self.c.ceph('auth', 'get-or-create', 'client.vm', 'mon', 'profile rbd', 'osd', 'profile rbd pool=rbd', '-o', keyring)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 's')
            server = Server(self, 'rbd/a', options=['--id', 'vm', '--keyring', keyring])
            self.tool('qemu-io', '-f', 'raw', server.url('rbd/a'), '-c', 'write -P 9 0 4k', '-c', 'read -P 9 0 4k')
            server.stop()
            log = open(os.path.join(self.scratch, 'socket.log'), 'w')
            p = subprocess.Popen([harness.BINARY, 'nbd', 'serve', 'rbd/a', '--conf', self.c.conf, '--dir', self.c.dir, '--socket', path], stdout=log)
            try:
                wait(lambda: os.path.exists(path) and 'serving' in open(log.name).read(), 'the socket')
                self.tool('qemu-io', '-f', 'raw', f'nbd+unix:///rbd/a?socket={path}', '-c', 'read -P 9 0 4k')
            finally:
                p.terminate()
                p.wait(180)
            assert not os.path.exists(path)

    def test_10_a_block_device_through_fuse_and_loop(self):
        if os.geteuid() or not os.path.exists('/dev/fuse') or not os.path.exists('/dev/loop-control'):
            raise Skip('needs root, /dev/fuse and loop devices')
        self.rbd('create', 'm', '--size', '128M')
        at = ['--conf', self.c.conf, '--dir', self.c.dir]
        assert 'no such image' in self.c.spirula('image', 'map', 'rbd/nothing', *at, check=False).err
        device = self.c.spirula('image', 'map', 'rbd/m', *at).out.strip()
        folder = os.path.join(self.scratch, 'mnt')
        os.mkdir(folder)
        data = os.urandom(20 * MB)
        try:
            assert f'rbd/m\t{device}' in self.c.spirula('image', 'ls').out
            subprocess.run(['mkfs.ext4', '-q', device], check=True, timeout=200)
            subprocess.run(['mount', device, folder], check=True)
            try:
                with open(os.path.join(folder, 'file'), 'wb') as f:
                    f.write(data)
                    f.flush()
                    os.fsync(f.fileno())
                # A device that is in use stays.
                assert 'in use' in self.c.spirula('image', 'unmap', device, check=False).err
                # An OSD goes meanwhile.
                self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
                with open(os.path.join(folder, 'other'), 'wb') as f:
                    f.write(data[:MB])
            finally:
                subprocess.run(['umount', folder], check=True)
                self.c.spirula('osd', 'start', '1', '--dir', self.c.dir, check=False)
        finally:
            self.c.spirula('image', 'unmap', 'rbd/m')
        # Its device may be another class's by now.
        assert 'rbd/m\t' not in self.c.spirula('mapped').out
        assert self.c.spirula('image', 'unmap', 'rbd/m', check=False).code == 3
        assert json.loads(self.rbd('lock', 'ls', 'm', '--format', 'json').out) == []
        self.whole('m')
        device = self.c.spirula('image', 'map', 'rbd/m', '--read-only', *at).out.strip()
        try:
            subprocess.run(['fsck.ext4', '-fn', device], check=True, timeout=200, capture_output=True)
            subprocess.run(['mount', '-o', 'ro', device, folder], check=True)
            try:
                assert open(os.path.join(folder, 'file'), 'rb').read() == data
                assert open(os.path.join(folder, 'other'), 'rb').read() == data[:MB]
            finally:
                subprocess.run(['umount', folder], check=True)
        finally:
            self.c.spirula('image', 'unmap', device)


# librbd wants the lock again and again, while the server does.
OTHER = '''
import os, rados, rbd, sys, time
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx('rbd') as io, rbd.Image(io, sys.argv[2]) as i:
    n = 0
    while n < 20 or not os.path.exists(sys.argv[3] + '.enough'):
        i.write(bytes([200]) * 4096, 2 * (n % 20) * 4096)
        open(sys.argv[3] + '.begun', 'w').close()
        n += 1
        time.sleep(0.05)
    print('done', flush=True)
'''
