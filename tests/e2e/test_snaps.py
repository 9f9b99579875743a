"""Snapshots of pools and of clients, by Debian's `rados`, `ceph` and python3-rados; what they answer is what a real Ceph 16.2 answers."""
import json, os, time
from harness import Case, Load, wait

OWN = '''
import rados, sys
def refused(kind, f, *a):
    try:
        f(*a)
    except kind:
        return
    raise SystemExit(f'{f} {a} was not refused')
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx(sys.argv[2]) as io:
    coded = sys.argv[3] == 'coded'
    io.write_full('o', b'zero' * 1000)
    assert io.create_self_managed_snap() == 2, 'the first, as with Ceph'
    io.set_self_managed_snap_write([2])
    io.write('o', b'ONE', 4)
    assert io.create_self_managed_snap() == 3
    io.set_self_managed_snap_write([3, 2])
    io.remove_object('o')
    refused(rados.ObjectNotFound, io.read, 'o')
    at = lambda snap: (io.set_read(snap), io.read('o'))[1]
    assert at(3) == b'zeroONEo' + b'zero' * 998 and at(2) == b'zero' * 1000
    assert io.stat('o')[0] == 4000
    HEAD = 2 ** 64 - 2
    io.set_read(HEAD)
    refused(rados.ObjectNotFound, io.stat, 'o')
    io.rollback_self_managed_snap('o', 2)
    assert io.read('o') == b'zero' * 1000
    # What is not there at a snapshot.
    io.write_full('later', b'x')
    io.set_read(2)
    refused(rados.ObjectNotFound, io.read, 'later')
    io.set_read(HEAD)
    io.rollback_self_managed_snap('later', 3)
    refused(rados.ObjectNotFound, io.read, 'later')
    io.rollback_self_managed_snap('never', 3)
    # Attributes, keys and size go with it.
    io.set_xattr('o', 'a', b'1')
    if not coded:
        with rados.WriteOpCtx() as op:
            io.set_omap(op, ('k',), (b'v1',))
            io.operate_write_op(op, 'o')
    assert io.create_self_managed_snap() == 4
    io.set_self_managed_snap_write([4, 3, 2])
    io.set_xattr('o', 'a', b'2')
    io.trunc('o', 8192)
    if not coded:
        with rados.WriteOpCtx() as op:
            io.clear_omap(op)
            io.operate_write_op(op, 'o')
    io.set_read(4)
    assert io.get_xattr('o', 'a') == b'1' and io.stat('o')[0] == 4000
    if not coded:
        with rados.ReadOpCtx() as op:
            found, _ = io.get_omap_vals(op, '', '', 10)
            io.operate_read_op(op, 'o')
            assert list(found) == [('k', b'v1')]
    io.set_read(HEAD)
    assert io.get_xattr('o', 'a') == b'2' and io.stat('o')[0] == 8192
    # An older context than the object has seen takes nothing away.
    io.set_self_managed_snap_write([2])
    io.write('o', b'LATE', 0)
    assert at(4) == b'zero' * 1000
    io.set_read(HEAD)
    # Modes exclude each other; numbers are never used twice.
    refused(rados.InvalidArgumentError, io.create_snap, 'named')
    refused(rados.ObjectNotFound, io.remove_self_managed_snap, 99)
    io.remove_self_managed_snap(2)
    io.remove_self_managed_snap(2)
    assert io.create_self_managed_snap() > 4
    io.set_read(2)
    refused(rados.ObjectNotFound, io.read, 'o')
    for snap in (3, 4, 5, 6):
        try:
            io.remove_self_managed_snap(snap)
        except rados.ObjectNotFound:
            pass
'''

# Writes, reads and compares objects at the head and at snapshots that it makes, removes and rolls back to.
LOAD = '''
import rados, sys, os, random, collections
rng = random.Random(int.from_bytes(os.urandom(4), 'big'))
HEAD, SIZE, KEPT = 2 ** 64 - 2, 1 << 17, 6
done = collections.Counter()
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx(sys.argv[2]) as io:
    now, snaps = {}, {}
    names = [f'o{i}' for i in range(24)]
    def data(n):
        return os.urandom(64) * (n // 64) + bytes(n % 64)
    def read():
        return {n: look(n) for n in names}
    def look(n):
        try:
            return io.read(n, SIZE * 4), dict(io.get_xattrs(n))
        except rados.ObjectNotFound:
            return None
    def context():
        io.set_self_managed_snap_write(sorted(snaps, reverse=True))
    def change(n):
        old, attrs = now.get(n) or (b'', {})
        what = rng.choice('wwwwfatrx')
        at, d = rng.randrange(SIZE), data(rng.randrange(1, 20000))
        if what == 'w':
            io.write(n, d, at)
            old = (old + bytes(max(0, at - len(old))))[:at] + d + old[at + len(d):]
        elif what == 'f':
            io.write_full(n, d)
            old = d
        elif what == 'a' and len(old) < SIZE:
            io.append(n, d)
            old += d
        elif what == 't':
            if not old and now.get(n) is None:
                return
            io.trunc(n, at)
            old = (old + bytes(max(0, at - len(old))))[:at]
        elif what == 'r':
            if now.get(n) is None:
                return
            io.remove_object(n)
            now[n] = None
            return
        else:
            v = os.urandom(8)
            io.set_xattr(n, 'a', v)
            attrs = {**attrs, 'a': v}
        now[n] = (old, attrs)
    # However few it is let do, something of each kind is among it.
    while not os.path.exists(sys.argv[3]) or min(done[k] for k in ('made', 'removed', 'rolled back', 'changes')) == 0:
        did()
        what = rng.randrange(40)
        if what == 0 and len(snaps) < KEPT:
            s = io.create_self_managed_snap()
            assert s not in snaps
            snaps[s] = dict(now)
            context()
            done['made'] += 1
        elif what == 1 and len(snaps) > 1:
            s = rng.choice(list(snaps))
            del snaps[s]
            context()
            io.remove_self_managed_snap(s)
            done['removed'] += 1
        elif what == 2 and snaps:
            s, n = rng.choice(list(snaps)), rng.choice(names)
            io.rollback_self_managed_snap(n, s)
            now[n] = snaps[s].get(n)
            done['rolled back'] += 1
        elif what < 12 and snaps:
            s, n = rng.choice(list(snaps)), rng.choice(names)
            io.set_read(s)
            got = look(n)
            io.set_read(HEAD)
            assert got == snaps[s].get(n), f'{n} at {s} differs'
        elif what < 16:
            n = rng.choice(names)
            assert look(n) == now.get(n), f'{n} differs'
        else:
            change(rng.choice(names))
            done['changes'] += 1
    for s, was in snaps.items():
        io.set_read(s)
        for n in names:
            assert look(n) == was.get(n), f'{n} at {s} differs in the end'
    io.set_read(HEAD)
    for n in names:
        assert look(n) == now.get(n), f'{n} differs in the end'
    for s in snaps:
        io.remove_self_managed_snap(s)
    print(dict(done))
'''


class Snapshots(Case):
    args = ['--osds', '3', '--osd-size', '2G']
    minutes = 3

    def put(self, pool, name, text):
        self.c.rados('-p', pool, 'put', name, '-', stdin=text)

    def get(self, pool, name, snap=None, code=0):
        r = self.c.rados('-p', pool, *(['-s', snap] if snap else []), 'get', name, '-', check=False)
        assert (r.code != 0) == (code != 0) and (not code or f'({code})' in r.err), r
        return r.out

    def row(self, pool):
        return next(p for p in self.c.json('osd', 'dump')['pools'] if p['pool_name'] == pool)

    def counts(self, pool):
        """Objects and clones, as `rados df` counts them."""
        p = next(p for p in json.loads(self.c.rados('df', '--format', 'json').out)['pools'] if p['name'] == pool)
        return int(p['num_objects']), int(p['num_object_clones'])

    def stored(self, pool):
        return next(p['stats'] for p in self.c.json('df', 'detail')['pools'] if p['name'] == pool)

    def clean_or_trimming(self):
        """PGs trim while they are clean, and a load that removes snapshots has them trim most of the time."""
        states = lambda: [s['name'] for s in self.c.json('pg', 'stat')['pg_summary']['num_pg_by_state']]
        wait(lambda: all(s.startswith('active+clean') for s in states()), lambda: f'clean PGs: {states()}')

    def queue_is_empty(self):
        left = lambda: self.c.json('osd', 'dump')['removed_snaps_queue']
        wait(lambda: not left(), lambda: f'an empty queue of removed snapshots: {left()}\n{self.c.ceph("pg", "dump", "pgs").out}')
        assert 'removed_snaps_queue' not in self.c.ceph('osd', 'pool', 'ls', 'detail').out

    def clones(self, pool, name):
        return [l.split('\t') for l in self.c.rados('-p', pool, 'listsnaps', name).out.splitlines()[2:] if l]

    def pools(self):
        """A replicated and an erasure-coded one."""
        c = self.c
        c.ceph('osd', 'erasure-code-profile', 'set', 'k2', 'k=2', 'm=1', 'crush-failure-domain=osd', check=False)
        made = len(c.json('osd', 'pool', 'ls'))
        for name, kind in ((f'rep{made}', []), (f'ec{made}', ['erasure', 'k2'])):
            c.ceph('osd', 'pool', 'create', name, '8', '8', *kind)
            c.ceph('osd', 'pool', 'application', 'enable', name, 'rados')
            if kind:
                c.ceph('osd', 'pool', 'set', name, 'allow_ec_overwrites', 'true')
        c.wait_clean()
        return f'rep{made}', f'ec{made}'

    def test_1_of_a_pool(self):
        c = self.c
        for pool in self.pools():
            r = lambda *argv, **kw: c.rados('-p', pool, *argv, **kw)
            coded = pool.startswith('ec')
            self.put(pool, 'a', 'one\n')
            r('setxattr', 'a', 'x', '1')
            if not coded:
                r('setomapval', 'a', 'k', 'v1')
            assert r('mksnap', 's1').out == f'created pool {pool} snap s1\n'
            again = r('mksnap', 's1', check=False)
            assert again.code == 1 and '(17)' in again.err, again
            listed = r('lssnap').out.splitlines()
            assert listed[0].split('\t')[:2] == ['1', 's1'] and listed[1] == '1 snaps', listed
            self.put(pool, 'a', 'two-two\n')
            r('setxattr', 'a', 'x', '2')
            self.put(pool, 'b', 'two-two\n')
            assert self.get(pool, 'a', 's1') == "selected snap 1 's1'\none\n"
            assert r('-s', 's1', 'getxattr', 'a', 'x').out.endswith('1') and 'size 4' in r('-s', 's1', 'stat', 'a').out
            if not coded:
                assert 'v1' in r('-s', 's1', 'listomapvals', 'a').out
            self.get(pool, 'b', 's1', code=2)
            self.get(pool, 'a', 'nosuch', code=2)
            assert 'Read-only' in r('-s', 's1', 'put', 'a', self.sample(), check=False).err
            assert self.clones(pool, 'a') == [['1', '1', '4', '[]'], ['head', '-', '8']], self.clones(pool, 'a')
            assert self.clones(pool, 'b') == [['head', '-', '8']]
            assert '(2)' in r('listsnaps', 'nothing', check=False).err
            r('mksnap', 's2')
            r('rm', 'a')
            self.get(pool, 'a', code=2)
            assert r('ls').out.split() == ['b'] or r('ls').out.split() == ['a', 'b'], 'Ceph lists what has snapshots'
            assert self.get(pool, 'a', 's2').endswith('two-two\n')
            assert self.clones(pool, 'a') == [['1', '1', '4', '[]'], ['2', '2', '8', '[]']], self.clones(pool, 'a')
            assert r('rollback', 'a', 's1').out == f'rolled back pool {pool} to snapshot s1\n'
            assert self.get(pool, 'a') == 'one\n' and r('getxattr', 'a', 'x').out == '1'
            r('rollback', 'b', 's1')
            self.get(pool, 'b', code=2)
            assert r('rollback', 'a', 'nosuch', check=False).code == 1
            r('rollback', 'nothing', 's1')
            row = self.row(pool)
            assert (row['snap_mode'], row['snap_seq']) == ('pool', 2) and 'pool_snaps' in row['flags_names'], row
            assert [s['name'] for s in row['pool_snaps']] == ['s1', 's2'], row
            detail = c.ceph('osd', 'pool', 'ls', 'detail').out
            assert "\tsnap 1 's1' 20" in detail, detail
            # a: head and two clones; b: a whiteout and one clone. A real Ceph counts clones as objects, too.
            wait(lambda: self.counts(pool) == (5, 3), lambda: f'counts: {self.counts(pool)}')
            assert r('rmsnap', 's1').out == f'removed pool {pool} snap s1\n'
            assert '(2)' in r('rmsnap', 's1', check=False).err
            self.get(pool, 'a', 's1', code=2)
            self.queue_is_empty()
            assert self.clones(pool, 'a') == [['2', '2', '8', '[]'], ['head', '-', '4']], self.clones(pool, 'a')
            for _ in range(2):
                assert c.ceph('osd', 'pool', 'mksnap', pool, 's3').code == 0
            assert 'removed pool' in c.ceph('osd', 'pool', 'rmsnap', pool, 's3').err
            assert 'does not exist' in c.ceph('osd', 'pool', 'rmsnap', pool, 's3').err
            r('rmsnap', 's2')
            self.queue_is_empty()
            assert self.clones(pool, 'a') == [['head', '-', '4']], self.clones(pool, 'a')
            wait(lambda: self.counts(pool) == (1, 0), lambda: f'counts: {self.counts(pool)}')
            assert '(2)' in r('listsnaps', 'b', check=False).err, 'a whiteout without snapshots is gone'
        assert c.ceph('osd', 'pool', 'mksnap', 'nosuch', 's', check=False).code == 2

    def test_2_of_clients(self):
        for pool in self.pools():
            self.c.python(OWN, pool, 'coded' if pool.startswith('ec') else '')
            assert 'selfmanaged_snaps' in self.row(pool)['flags_names']
            r = self.c.ceph('osd', 'pool', 'mksnap', pool, 'x', check=False)
            assert r.code == 22 and f'pool {pool} is in unmanaged snaps mode' in r.err, r
            self.queue_is_empty()
            wait(lambda: self.counts(pool)[1] == 0, lambda: f'no clones: {self.counts(pool)}')

    def test_3_pools_are_copied_without_them(self):
        c, (rep, ec) = self.c, self.pools()
        self.put(rep, 'a', 'one')
        c.rados('-p', rep, 'mksnap', 's')
        self.put(rep, 'a', 'two')
        out = c.rados('cppool', rep, ec).out
        assert f'{rep}:a => {ec}:a' in out, out
        assert self.get(ec, 'a') == 'two' and c.rados('-p', ec, 'lssnap').out == '0 snaps\n'
        # An object of a snapshot.
        self.put(rep, 'gone', 'x')
        c.rados('-p', rep, 'mksnap', 't')
        c.rados('-p', rep, 'rm', 'gone')
        # Nobody names what is deleted; and a pool of its clients' snapshots asks whether one is sure.
        made, _ = self.pools()
        c.python('import rados, sys\nwith rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx(sys.argv[2]) as io:\n    io.create_self_managed_snap()', made)
        assert c.rados('cppool', made, ec, check=False).code == 1
        assert 'selfmanaged snaps' in c.rados('cppool', made, ec, check=False).err

    def test_4_space_comes_back(self):
        c = self.c
        for pool in self.pools():
            for i in range(16):
                self.put(pool, f'o{i}', 'x' * (1 << 20))
            wait(lambda: self.stored(pool)['stored'] >= 16 << 20, 'what was stored to be counted')
            c.rados('-p', pool, 'mksnap', 's')
            for i in range(16):
                self.put(pool, f'o{i}', 'y' * (1 << 20))
            wait(lambda: self.counts(pool) == (32, 16), lambda: f'clones: {self.counts(pool)}')
            used = wait(lambda: (s := self.stored(pool))['stored'] >= 32 << 20 and s['bytes_used'], lambda: f'both: {self.stored(pool)}')
            c.rados('-p', pool, 'rmsnap', 's')
            self.queue_is_empty()
            wait(lambda: self.counts(pool) == (16, 0), lambda: f'no clones: {self.counts(pool)}')
            wait(lambda: self.stored(pool)['bytes_used'] < used * 0.6, lambda: f'space: {self.stored(pool)}, before {used}')

    def test_5_nosnaptrim_keeps_them(self):
        c, (pool, _) = self.c, self.pools()
        self.put(pool, 'a', 'one')
        c.rados('-p', pool, 'mksnap', 's')
        self.put(pool, 'a', 'two')
        c.ceph('osd', 'set', 'nosnaptrim')
        c.rados('-p', pool, 'rmsnap', 's')
        wait(lambda: 'snaptrim_wait' in c.ceph('pg', 'dump', 'pgs_brief').out or c.json('osd', 'dump')['removed_snaps_queue'], 'the queue')
        assert len(self.clones(pool, 'a')) == 2
        c.ceph('osd', 'unset', 'nosnaptrim')
        self.queue_is_empty()
        assert len(self.clones(pool, 'a')) == 1

    def test_5b_trimming_sleeps_as_long_as_it_is_told(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'slow', '1', '1', 'replicated')
        c.wait_clean()
        for i in range(6):
            self.put('slow', f'o{i}', 'one')
        c.rados('-p', 'slow', 'mksnap', 's')
        for i in range(6):
            self.put('slow', f'o{i}', 'two')
        wait(lambda: self.counts('slow') == (12, 6), lambda: f'clones: {self.counts("slow")}')
        c.ceph('config', 'set', 'osd', 'osd_snap_trim_sleep', '1')
        told = lambda: [float(c.json('tell', f'osd.{n}', 'config', 'get', 'osd_snap_trim_sleep')['osd_snap_trim_sleep']) for n in range(3)]
        wait(lambda: told() == [1] * 3, lambda: f'the OSDs know it: {told()}')
        try:
            begun = time.time()
            c.rados('-p', 'slow', 'rmsnap', 's')
            wait(lambda: self.counts('slow') == (6, 0), lambda: f'no clones: {self.counts("slow")}')
            # The first one goes at once, and five sleep: a machine that is busy makes that longer, never shorter.
            took = time.time() - begun
            print(f'figure: six clones, five sleeps of a second: {took:.1f} s')
            assert 4.5 <= took, took
        finally:
            c.ceph('config', 'rm', 'osd', 'osd_snap_trim_sleep')
        self.queue_is_empty()

    def test_6_osds_are_stopped_and_killed_under_a_load_that_compares(self):
        c, pools = self.c, self.pools()
        loads = [Load(c, LOAD, p) for p in pools]
        for osd in (0, 1, 2):
            for l in loads:
                l.goes_on(150)
            c.spirula('osd', 'stop', str(osd), '--dir', c.dir)
            for l in loads:
                l.goes_on(150)
            c.spirula('osd', 'start', str(osd), '--dir', c.dir)
            self.clean_or_trimming()
        c.kill()
        c.up()
        for l in loads:
            l.goes_on(150)
        for l in loads:
            print('figure:', l.end())
        self.queue_is_empty()
        for p in pools:
            wait(lambda: self.counts(p)[1] == 0, lambda: f'no clones: {self.counts(p)}')
        self.scrubbed(pools)

    def scrubbed(self, pools):
        c = self.c
        for p in pools:
            c.ceph('osd', 'pool', 'deep-scrub', p)
            ids = {f"{self.row(p)['pool']}.{i:x}" for i in range(8)}
            now = {r['pgid']: r['last_deep_scrub_stamp'] for r in c.json('pg', 'dump', 'pgs')['pg_stats'] if r['pgid'] in ids}
            c.ceph('osd', 'pool', 'deep-scrub', p)
            wait(lambda: all(r['last_deep_scrub_stamp'] > now[r['pgid']] for r in c.json('pg', 'dump', 'pgs')['pg_stats'] if r['pgid'] in ids), 'scrubs')
        health = c.json('health')['checks']
        assert 'OSD_SCRUB_ERRORS' not in health and 'PG_DAMAGED' not in health, health

    def test_7_caps(self):
        c, (pool, other) = self.c, self.pools()
        keyring = os.path.join(self.scratch, 'keyring')
        for name, osd in (('writer', f'allow rw pool={pool}'), ('reader', f'allow r pool={pool}'), ('elsewhere', f'profile rbd pool={other}')):
            with open(keyring, 'a') as f:
                f.write(c.ceph('auth', 'get-or-create', f'client.{name}', 'mon', 'allow r', 'osd', osd).out + '\n')
        make = '''
import rados, sys
with rados.Rados(conffile=sys.argv[1], name='client.' + sys.argv[2], conf={'keyring': sys.argv[3]}) as r, r.open_ioctx(sys.argv[4]) as io:
    try:
        io.remove_self_managed_snap(io.create_self_managed_snap())
        print('made')
    except (rados.PermissionError, rados.PermissionDeniedError):
        print('refused')
'''
        for name, said in (('writer', 'made'), ('reader', 'refused'), ('elsewhere', 'refused')):
            assert c.python(make, name, keyring, pool).out.split() == [said], name
            r = c.rados('--id', name, '--keyring', keyring, '-p', pool, 'mksnap', 'x', check=False)
            assert r.code == 1, r


MANY = '''
import os, random, rados, sys
MB = 1 << 20
draw = random.Random(3)
with rados.Rados(conffile=sys.argv[1]) as cluster:
    for pool in sys.argv[2:]:
        with cluster.open_ioctx(pool) as io:
            names = [f'o{i}' for i in range(16)]
            for n in names:
                io.write_full(n, os.urandom(MB))
            snaps = []
            for _ in range(8):
                snaps.insert(0, io.create_self_managed_snap())
                io.set_self_managed_snap_write(snaps)
                for n in names:
                    io.write(n, os.urandom(4096), draw.randrange(256) * 4096)
'''

LOOK = '''
import hashlib, rados, sys
with rados.Rados(conffile=sys.argv[1]) as cluster:
    for pool in sys.argv[2:]:
        with cluster.open_ioctx(pool) as io:
            for i in range(16):
                for snap in [*range(2, 10), 2 ** 64 - 2]:
                    io.set_read(snap)
                    print(pool, i, snap, hashlib.sha256(io.read(f'o{i}', 1 << 20)).hexdigest())
'''


class Filled(Case):
    """An OSD that was away while clones were made, and one that takes another's place, hold heads and clones as they were."""
    args = ['--osds', '4', '--osd-size', '2G']

    def test_heads_and_clones_are_the_same_after_recovery_and_backfill(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'rep', '8', '8', 'replicated')
        c.ceph('osd', 'erasure-code-profile', 'set', 'two', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'two')
        c.ceph('osd', 'pool', 'set', 'ec', 'allow_ec_overwrites', 'true')
        c.wait_clean()
        # While one is away, so that it recovers by its log: the clones of pool rep and ec are made meanwhile.
        c.ceph('osd', 'set', 'noout')
        c.spirula('osd', 'stop', '0', '--dir', c.dir)
        c.python(MANY, 'rep', 'ec')
        seen = c.python(LOOK, 'rep', 'ec').out
        c.spirula('osd', 'start', '0', '--dir', c.dir)
        c.wait_clean()
        assert c.python(LOOK, 'rep', 'ec').out == seen
        c.ceph('osd', 'out', '1')
        c.wait_clean()
        assert c.python(LOOK, 'rep', 'ec').out == seen
