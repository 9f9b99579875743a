"""Clones share with their heads what did not change, also at an OSD that recovery or a backfill has filled."""
from harness import Case, wait

# So many objects of so many bytes; 4 KiB of each, and once in a while more, change under each snapshot. The first of them are made
# under older snapshots that are told; prints the snapshots, newest first.
OBJECTS, SIZE = 40, 512 << 10
FILL = f'''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx(sys.argv[2]) as io:
    ids = [int(i) for i in sys.argv[4:]]
    for k in range(len(ids), len(ids) + int(sys.argv[3])):
        if k == 0:
            for i in range({OBJECTS}): io.write_full(f'b{{i}}', bytes(range(256)) * ({SIZE} // 256))
        ids.insert(0, io.create_self_managed_snap())
        io.set_self_managed_snap_write(ids)
        for i in range({OBJECTS}):
            io.write(f'b{{i}}', b'%04d' % k * 1024, 16384 * (k % 32))
            # Not at blocks' borders, some beyond the end, some shorter.
            if i % 8 == 1: io.write(f'b{{i}}', b'odd', 1000 * k)
            if i % 8 == 2: io.append(f'b{{i}}', b'more' * 700)
            if i % 8 == 3: io.trunc(f'b{{i}}', {SIZE} - 5000 * k)
            if i == 4 and k % 4 == 3: io.remove_object(f'b{{i}}')
            if i == 5 and k % 4 == 3: io.rollback_self_managed_snap(f'b{{i}}', ids[2])
            if i == 6: io.set_xattr(f'b{{i}}', 'k', b'%d' % k)
    print(*ids)
'''
# Digests of all that all snapshots show.
SHOWN = f'''
import hashlib, rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx(sys.argv[2]) as io:
    for snap in [int(i) for i in sys.argv[3:]] + [2 ** 64 - 2]:
        io.set_read(snap)
        for i in range({OBJECTS}):
            try: data = io.read(f'b{{i}}', {2 * SIZE})
            except rados.ObjectNotFound: data = b'nothing'
            try: data += io.get_xattr(f'b{{i}}', 'k')
            except rados.Error: pass
            print(snap, i, len(data), hashlib.sha1(data).hexdigest())
'''
POOLS = ('whole', 'coded')


class SnapshotSpace(Case):
    args = ['--osds', '4', '--osd-size', '2G']
    minutes = 1

    def ready(self):
        self.c.ceph('config', 'set', 'mgr', 'target_max_misplaced_ratio', '1')
        self.c.ceph('osd', 'pool', 'create', 'whole', '8', '8')
        self.c.ceph('osd', 'pool', 'set', 'whole', 'size', '2')
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'e', 'k=2', 'm=1', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', 'coded', '4', '4', 'erasure', 'e')
        self.c.ceph('osd', 'pool', 'set', 'coded', 'allow_ec_overwrites', 'true')
        self.c.wait_clean()
        self.ids = {p: self.c.python(FILL, p, '10').out.split() for p in POOLS}
        self.note()

    def data(self):
        """MiB of data at all OSDs together."""
        return sum(n['kb_used_data'] for n in self.c.json('osd', 'df')['nodes']) / 1024

    def note(self):
        """What is there now, when it has been told."""
        self.c.wait_clean()
        self.shown = {p: self.c.python(SHOWN, p, *self.ids[p]).out for p in POOLS}
        before = [0]
        def settled():
            before.append(self.data())
            return len(before) > 8 and before[-1] > 10 and max(before[-6:]) == min(before[-6:])
        wait(settled, lambda: f'figures that stay: {before[-9:]}', pause=1)
        self.before = before[-1]

    def same(self, what, grown=0):
        """Nothing differs in content, nor in space by more than a twentieth and what was written since."""
        self.c.wait_clean()
        most = self.before * 1.05 + grown
        seen = []
        wait(lambda: seen.append(self.data()) or seen[-1] <= most,
             lambda: f'at most {most:.1f} MiB after {what}, {self.before:.1f} before: {seen[-5:]}', pause=1)
        print(f'figure: MiB of data {self.before:.1f}, after {what} {seen[-1]:.1f}')
        for pool in POOLS:
            assert self.c.python(SHOWN, pool, *self.ids[pool]).out == self.shown[pool], f'{pool} differs after {what}'

    def test_1_an_osd_that_is_marked_out_and_in(self):
        self.ready()
        self.c.ceph('osd', 'out', '1')
        self.same('out')
        self.c.ceph('osd', 'in', '1')
        self.same('in')

    def test_2_restarts_with_snapshots_in_between(self):
        for osd in ('2', '0'):
            self.c.spirula('osd', 'stop', osd, '--dir', self.c.dir)
            for pool in POOLS:
                self.ids[pool] = self.c.python(FILL, pool, '1', *self.ids[pool]).out.split()
            self.c.spirula('osd', 'start', osd, '--dir', self.c.dir)
            self.c.wait_clean()
        # Each restart has written 4 KiB of each object, and odd pieces of some: 40 × (2 × 4 + 3 × 4) KiB, two times, twice as much at most.
        self.shown = {p: self.c.python(SHOWN, p, *self.ids[p]).out for p in POOLS}
        self.same('two restarts', grown=4)
        self.note()

    def test_3_an_osd_that_is_made_anew(self):
        self.c.spirula('osd', 'stop', '3', '--dir', self.c.dir)
        self.c.ceph('osd', 'destroy', '3', '--force', '--yes-i-really-mean-it')
        self.c.spirula('osd', 'recreate', '3', '--dir', self.c.dir)
        self.same('an OSD made anew')

    def test_4_more_pgs_and_fewer(self):
        for n in ('16', '8'):
            self.c.ceph('osd', 'pool', 'set', 'whole', 'pg_num', n)
            row = lambda: next(p for p in self.c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == 'whole')
            numbers = ('pg_num', 'pg_num_target', 'pg_placement_num')
            wait(lambda: all(row()[k] == int(n) for k in numbers), lambda: f'{n} PGs: {row()}')
            self.same(f'{n} PGs')
        self.c.ceph('osd', 'deep-scrub', 'all')
        wait(lambda: 'scrub' not in str(self.c.json('pg', 'stat')), 'the end of scrubs')
        assert 'inconsistent' not in str(self.c.json('pg', 'stat'))
