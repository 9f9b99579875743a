"""`rbd perf image iostat` and `iotop`: Debian's tool shows what each image does, and nothing is counted when nobody looks."""
import json, os, pty, select, signal, subprocess, time
from harness import wait
from images import Images

IMAGES = ('rbd/replicated', 'rbd/coded', 'other/ns/hidden')


class RbdPerf(Images):
    minutes = 3

    def setup(self, clients):
        super().setup(clients)
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'two', 'k=2', 'm=1', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', 'coded', '8', '8', 'erasure', 'two')
        self.c.ceph('osd', 'pool', 'set', 'coded', 'allow_ec_overwrites', 'true')
        self.c.ceph('osd', 'pool', 'application', 'enable', 'coded', 'rbd')
        for pool in ('rbd', 'other'):
            self.c.ceph('osd', 'pool', 'create', pool, '8')
            self.rbd('pool', 'init', pool)
        self.rbd('namespace', 'create', 'other/ns')
        self.rbd('create', 'rbd/replicated', '--size', '64M')
        self.rbd('create', 'rbd/coded', '--size', '64M', '--data-pool', 'coded')
        self.rbd('create', 'other/ns/hidden', '--size', '64M')

    def load(self, image, kind, size):
        """`rbd bench` of one thread, until it is killed."""
        argv = ['rbd', '-c', self.c.conf, 'bench', '--io-type', kind, '--io-size', str(size), '--io-threads', '1', '--io-total', '64G',
                '--io-pattern', 'rand', image, '--rbd-cache=false']
        return subprocess.Popen(self.c.clients.wrap(argv), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stats(self, *argv):
        said = json.loads(self.rbd('perf', 'image', 'iostat', '--format', 'json', *argv).out)
        return {'/'.join(filter(None, (i['pool'], i['pool_namespace'], i['image']))): i for i in said}

    def counted(self):
        """Requests that were counted by their images, and all that were answered."""
        each = [self.c.json('tell', f'osd.{n}', 'perf', 'dump')['osd'] for n in range(3)]
        return sum(o['op_image'] for o in each), sum(o['op'] for o in each)

    def test_what_each_image_does(self):
        # The image in the coded pool has something to be read.
        self.rbd('bench', '--io-type', 'write', '--io-size', '4M', '--io-threads', '1', '--io-total', '64M', 'rbd/coded')
        self.loads = [self.load('rbd/replicated', 'write', 8192), self.load('rbd/coded', 'read', 16384), self.load('other/ns/hidden', 'write', 4096)]
        try:
            self.looks()
        finally:
            self.end_loads()

    def end_loads(self):
        for p in self.loads:
            p.terminate()
            p.wait(240)
        self.loads = []

    def looks(self):
        assert self.counted()[0] == 0, 'nobody has asked'
        begun = time.monotonic()
        # It says that it waits, and asks again, until there is something.
        self.stats()
        print(f'figure: the first answer came after {time.monotonic() - begun:.1f} s')
        # All three have done something in the seconds that are shown.
        busy = lambda: set(shown := self.stats()) >= set(IMAGES) and all(shown[i]['write_ops'] + shown[i]['read_ops'] > 0 for i in IMAGES) and shown
        shown = wait(busy, lambda: f'three images: {self.stats()}')
        # An OSD tells of 0.9 s at least: a rate is no more than all that was counted by then in so long. How near it is to what is counted a
        # little later hangs on how even the load is; unit tests have rates for figures that they give.
        for image, counted in self.totals().items():
            one = shown[image]
            print(f'figure: {image}: {one["write_ops"]:.0f} writes and {one["read_ops"]:.0f} reads each second')
            assert all(one[name] * 0.9 <= counted[n] for n, name in enumerate(('write_ops', 'read_ops', 'write_bytes', 'read_bytes'))), (image, one, counted)
        self.exactly()
        writes = lambda i: (i['write_ops'] > 0, i['read_ops'] > 0)
        sizes = lambda i: (round(i['write_bytes'] / max(i['write_ops'], 1e-9)), round(i['read_bytes'] / max(i['read_ops'], 1e-9)))
        for image, does, size in (('rbd/replicated', (True, False), (8192, 0)), ('rbd/coded', (False, True), (0, 16384)),
                                  ('other/ns/hidden', (True, False), (4096, 0))):
            one = shown[image]
            assert writes(one) == does and sizes(one) == size, (image, one)
            took = one['write_latency'] if does[0] else one['read_latency']
            # Nanoseconds. One thread waits for each: together they take a second of each second, and what is done at once may have been
            # waited for since long before. This is ten times as much; microseconds or milliseconds would be wrong by a thousand.
            rate = one['write_ops'] if does[0] else one['read_ops']
            assert 10_000 < took <= 1e10 / rate, (image, one)
        # A pool is its usual namespace alone, as in Ceph.
        for spec, those in (('rbd', {'rbd/replicated', 'rbd/coded'}), ('other/ns', {'other/ns/hidden'})):
            wait(lambda: set(self.stats(spec)) == those, lambda: f'{those}: {self.stats(spec)}')
        ask = lambda *argv: json.loads(self.c.ceph('rbd', 'perf', 'image', *argv).out)
        assert ask('stats', 'other')['stats'] == [] and ask('stats', 'coded')['stats'] == []
        assert 'read_bytes' in ask('counters', 'rbd')['counter_descriptors']

        def rows(by):
            """The names in the order in which they are told, which is that of their figures."""
            told = ask('stats', '', by)
            column = told['stat_descriptors'].index(by)
            figures = [f[column] for row in told['stats'] for f in row.values()]
            assert figures == sorted(figures, reverse=True), told
            return [spec.split('/')[1] for row in told['stats'] for spec in row]
        wait(lambda: len(rows('read_bytes')) == 3 and rows('read_bytes')[0] == 'coded' and rows('write_bytes')[2:] == ['coded'],
             lambda: f'who reads most, who writes least: {rows("read_bytes")}, {rows("write_bytes")}')
        # The tables: of one pool without its name, of all with it.
        def tables():
            lines = self.rbd('perf', 'image', 'iostat', '--iterations', '2').out.split('\n\n')
            assert len([t for t in lines if t.startswith('NAME')]) == 2, lines
            return all(f'{i} ' in lines[0] for i in IMAGES)
        wait(tables, 'a table of all three')
        def table():
            one = self.rbd('perf', 'image', 'iostat', 'other/ns', '--iterations', '1').out.split('\n')
            assert one[0].split() == ['NAME', 'WR', 'RD', 'WR_BYTES', 'RD_BYTES', 'WR_LAT', 'RD_LAT'], one
            return one[1].split()[:1] == ['hidden']
        wait(table, 'a table of a namespace')
        # In Ceph's words.
        err = self.refused('perf', 'image', 'iostat', 'nowhere', '--iterations', '1', code=2)
        assert "rbd: mgr command failed: (2) No such file or directory: [errno 2] RADOS object not found (Pool 'nowhere' not found)" in err, err
        r = self.c.ceph('rbd', 'perf', 'image', 'stats', 'a/b/c', check=False)
        assert r.code == 22 and 'Error EINVAL: Invalid pool spec: a/b/c' in r.err, r
        self.users()
        self.top()
        # A new name is shown soon, the old one no more; an image in the trash is not shown.
        self.rbd('rename', 'rbd/replicated', 'rbd/renamed')
        wait(lambda: set(self.stats('rbd')) == {'rbd/renamed', 'rbd/coded'}, 'the new name', pause=1)
        assert all(p.poll() is None for p in self.loads), 'they are still at it'
        self.end_loads()
        # Nobody looks any more: after a minute nothing is counted, though something is done each time.
        def uncounted():
            by_image, answered = self.counted()
            self.rbd('bench', '--io-type', 'write', '--io-size', '4096', '--io-threads', '1', '--io-total', str(48 * 4096), '--rbd-cache=false', 'rbd/exact')
            return self.counted()[0] == by_image > 0 and self.counted()[1] >= answered + 48
        wait(uncounted, 'the end of counting', 240, pause=2)

    def exactly(self):
        """What is counted is what was done, to the byte."""
        self.rbd('create', 'rbd/exact', '--size', '8M')
        self.rbd('bench', '--io-type', 'write', '--io-size', '4096', '--io-threads', '1', '--io-total', str(48 * 4096), '--io-pattern', 'seq', '--rbd-cache=false', 'rbd/exact')
        told = lambda: self.totals().get('rbd/exact', [0])
        # OSDs tell what they counted each second; the name is read after that.
        wait(lambda: told()[0] >= 48, lambda: f'what was counted: {told()}')
        assert told()[:4] == [48, 0, 48 * 4096, 0], told()

    def totals(self):
        said = json.loads(self.c.ceph('rbd', 'perf', 'image', 'counters').out)
        assert said['counter_descriptors'] == ['write_ops', 'read_ops', 'write_bytes', 'read_bytes', 'write_latency', 'read_latency'], said
        full = lambda spec: f'{said["pool_descriptors"][spec.split("/")[0]]}/{spec.split("/")[1]}'
        return {full(spec): figures for row in said['counters'] for spec, figures in row.items()}

    def users(self):
        """Who may see one pool's images does not see others'."""
        keyring = os.path.join(self.scratch, 'u.keyring')
        with open(keyring, 'w') as f:
            f.write(self.c.ceph('auth', 'get-or-create', 'client.u', 'mon', 'profile rbd', 'osd', 'profile rbd', 'mgr', 'profile rbd pool=rbd').out)
        ask = lambda *spec: self.c.ceph('-n', 'client.u', '-k', keyring, 'rbd', 'perf', 'image', 'stats', *spec, check=False)
        wait(lambda: len(json.loads(ask('rbd').out)['stats']) == 2, lambda: f'two images: {ask("rbd")}')
        assert (ask('other/ns').code, ask().code) == (13, 13)

    def top(self):
        """`iotop` in a terminal, until it shows the images and its user types `q`."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM='vt100', LINES='24', COLUMNS='150')
            argv = self.c.clients.wrap(['rbd', '-c', self.c.conf, 'perf', 'image', 'iotop'])
            os.execvp(argv[0], argv)
        seen, ends = b'', time.monotonic() + 180
        try:
            while not all(word in seen for word in (b'WRITES OPS', b'rbd/replicated', b'rbd/coded', b'other/ns/hidden')):
                assert time.monotonic() < ends, seen
                if select.select([terminal], [], [], 1)[0]:
                    seen += os.read(terminal, 65536)
            os.write(terminal, b'q')
            done = lambda: os.waitpid(pid, os.WNOHANG)[0] == pid
            while not done():
                assert time.monotonic() < ends, seen
                if select.select([terminal], [], [], 0.1)[0]:
                    try:
                        os.read(terminal, 65536)
                    except OSError:
                        pass
            pid = 0
        finally:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.close(terminal)
