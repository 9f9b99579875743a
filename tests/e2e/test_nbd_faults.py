"""Block images without Ceph's client when something they need goes: a snapshot that is removed, an image that the cluster does not
answer for."""
import json, random, socket, struct
from harness import wait
from test_nbd import MB, READ, WRITE, Served, Server


class Faults(Served):
    def test_01_a_snapshot_that_is_removed_reads_as_nothing_else(self):
        data = random.Random(1).randbytes(8 * MB)
        self.rbd('import', self.file('s', data), 's', '--no-progress')
        self.rbd('resize', 's', '--size', '16M', '--no-progress')
        self.rbd('snap', 'create', 's@early', '--no-progress')
        # The snapshot's objects are clones from here on, which the OSDs remove with it.
        self.rbd('bench', '--io-type', 'write', '--io-size', '4M', '--io-total', '16M', '--io-threads', '1', 's')
        server = Server(self, 'rbd/s@early')
        nbd = server.client('rbd/s@early')
        assert nbd.read(0, 16 * MB) == data + bytes(8 * MB), 'also what was never written'
        self.rbd('snap', 'rm', 's@early', '--no-progress')
        def refused():
            error = nbd.ask(READ, 0, 8 * MB)
            assert error or nbd.take(8 * MB) == data, 'something else was read'
            return error
        wait(refused, 'the objects of the snapshot to go')
        assert nbd.ask(READ, 12 * MB, MB) == 5, 'nor is a hole known to be one'
        assert 'has been removed' in server.text(), server.text()
        nbd.close()
        server.stop()

    def test_02_an_image_that_is_stuck_stops_no_other(self):
        self.c.ceph('osd', 'pool', 'create', 'stuck', '8')
        self.c.ceph('osd', 'pool', 'set', 'stuck', 'min_size', '3')
        self.rbd('pool', 'init', 'stuck')
        self.rbd('create', 'stuck/x', '--size', '64M')
        self.rbd('create', 'y', '--size', '64M')
        server = Server(self, 'stuck/x', 'rbd/y')
        many = [server.client('stuck/x') for _ in range(6)]
        many[0].write(0, b'before')
        # Its header has changed: whoever begins something asks for it first.
        self.rbd('snap', 'create', 'stuck/x@s', '--no-progress')
        self.c.spirula('osd', 'stop', '2', '--dir', self.c.dir)
        wait(lambda: any('undersized' in p['state'] and 'active' not in p['state'] for p in self.pgs('stuck')), lambda: f'PGs without an OSD: {self.pgs("stuck")}')
        # They ask for more than all have together, and go.
        for nbd in many[1:]:
            for _ in range(20):
                nbd.s.sendall(struct.pack('>IHHQQI', 0x25609513, 0, READ, 7, 0, 16 * MB))
        for nbd in many[2:]:
            nbd.close()
        # So many want it that one more would be too many.
        choosing = []
        for _ in range(80):
            s = socket.create_connection(('127.0.0.1', server.port), timeout=200)
            choosing.append(s)
            s.sendall(struct.pack('>I', 3) + b'IHAVEOPT' + struct.pack('>III', 7, 13, 7) + b'stuck/x\0\0')
        other = server.client('rbd/y')
        other.write(5, b'goes on')
        assert other.read(5, 7) == b'goes on'
        again = server.client('rbd/y')
        assert again.read(5, 7) == b'goes on'
        for s in choosing:
            s.close()
        self.c.spirula('osd', 'start', '2', '--dir', self.c.dir)
        self.c.wait_clean()
        # What was asked for is answered, and new clients are let in.
        head = many[1].take(16)
        assert struct.unpack('>IIQ', head) == (0x67446698, 0, 7) and many[1].take(16 * MB)[:6] == b'before'
        assert many[0].read(0, 6) == b'before'
        def let_in():
            try:
                return server.client('stuck/x').read(0, 6) == b'before'
            except (EOFError, OSError):
                return False
        wait(let_in, 'a new client of it')
        server.stop()

    def test_03_who_is_fenced_at_one_image_has_the_others(self):
        self.rbd('create', 'lost', '--size', '16M')
        self.rbd('create', 'kept', '--size', '16M')
        server = Server(self, 'rbd/lost', 'rbd/kept')
        lost, kept = server.client('rbd/lost'), server.client('rbd/kept')
        lost.write(0, b'before')
        kept.write(0, b'before')
        holder, = json.loads(self.rbd('lock', 'ls', 'lost', '--format', 'json').out)
        # It fences the holder first.
        self.rbd('lock', 'rm', 'lost', holder['id'], holder['locker'])
        wait(lambda: lost.ask(WRITE, 0, 6, b'during') == 5, 'it to be fenced')
        kept.write(0, b'beyond')
        assert kept.read(0, 6) == b'beyond'
        lost.close()
        kept.close()
        server.stop()

    def pgs(self, pool):
        return self.c.json('pg', 'ls-by-pool', pool)['pg_stats']
