"""Erasure-coded pools through unmodified clients: every data operation, lost OSDs, rot, fewer and more PGs, copies, profiles."""
import json, os
from harness import Case, Load, wait
from test_scrub import READ, Rotten

MODEL = '''
# Random operations on a few objects, each compared with the same change of a plain byte string.
import rados, sys, random
pool, seed, steps = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
model = {}
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx(pool) as io:
    for name in [o.key for o in io.list_objects()]:
        if name.startswith('m'): io.remove_object(name)
    for step in range(steps):
        name = 'm%d' % rng.randrange(6)
        old = model.get(name)
        data = rng.randbytes(rng.choice([1, 100, 4096, 8192, 16384, 50000, 300000]))
        what = rng.choice(['full', 'append', 'write', 'write', 'write', 'trunc', 'rm', 'read', 'read'])
        if what == 'full': io.write_full(name, data); model[name] = data
        elif what == 'append': io.append(name, data); model[name] = (old or b'') + data
        elif what == 'write':
            at = rng.randrange(0, 200000)
            io.write(name, data, at)
            b = (old or b'').ljust(at, b'\\0')
            model[name] = b[:at] + data + b[at + len(data):]
        elif what == 'trunc' and old is not None:
            size = rng.randrange(0, 300000); io.trunc(name, size)
            model[name] = old[:size].ljust(size, b'\\0')
        elif what == 'rm' and old is not None: io.remove_object(name); del model[name]
        elif what == 'read' and old is not None:
            at = rng.randrange(len(old) + 1); n = rng.randrange(1, 100000)
            assert io.read(name, n, at) == old[at:at + n], (step, name, at, n)
    for name, data in model.items():
        assert io.stat(name)[0] == len(data), name
        got = io.read(name, len(data) + 1)
        assert got == data, (name, len(got), len(data), next(i for i, (a, b) in enumerate(zip(got, data)) if a != b))
    assert sorted(o.key for o in io.list_objects() if o.key.startswith('m')) == sorted(model)
'''

WRITER = '''
# Overwrites and appends until told to stop; verifies everything at the end.
import rados, sys, os, random
pool, stop_file = sys.argv[2], sys.argv[3]
rng, model, n = random.Random(7), {}, 0
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx(pool) as io:
    for name in [o.key for o in io.list_objects()]:
        if name.startswith('w'): io.remove_object(name)
    while not os.path.exists(stop_file):
        name = 'w%d' % rng.randrange(40)
        data = (b'%012d;' % n) * rng.randrange(1, 3000)
        old, at = model.get(name, b''), rng.randrange(0, 30000)
        kind = rng.randrange(4)
        if kind == 0: io.write_full(name, data); model[name] = data
        elif kind == 1: io.append(name, data); model[name] = old + data
        elif kind == 2:
            io.write(name, data, at); b = old.ljust(at, b'\\0')
            model[name] = b[:at] + data + b[at + len(data):]
        elif old:
            assert io.read(name, 20000, min(at, len(old))) == old[min(at, len(old)):][:20000], (n, name)
        n += 1
        did()
    for name, data in model.items():
        assert io.read(name, len(data) + 1) == data, name
    print(n)
'''


class Erasure(Case):
    args = ['--osds', '6']

    def pool(self, name, k, m, overwrites=True):
        profile = f'p{k}{m}'
        self.c.ceph('osd', 'erasure-code-profile', 'set', profile, f'k={k}', f'm={m}', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', name, '8', '8', 'erasure', profile)
        if overwrites:
            self.c.ceph('osd', 'pool', 'set', name, 'allow_ec_overwrites', 'true')
        self.c.wait_clean()

    def osd(self, what, n):
        self.c.spirula('osd', what, str(n), '--dir', self.c.dir)

    def write(self, name, data):
        path = os.path.join(self.scratch, name)
        with open(path, 'wb') as f:
            f.write(data)
        return path

    def get(self, pool, name):
        out = os.path.join(self.scratch, 'out')
        self.c.rados('-p', pool, 'get', name, out)
        with open(out, 'rb') as f:
            return f.read()

    def test_1_pools_are_made_as_their_profile_says(self):
        self.pool('ec42', 4, 2)
        self.pool('plain', 2, 1, overwrites=False)
        p = {p['pool_name']: p for p in self.c.json('osd', 'dump')['pools']}
        assert (p['ec42']['size'], p['ec42']['min_size'], p['ec42']['stripe_width']) == (6, 5, 16384), p['ec42']
        assert (p['plain']['size'], p['plain']['min_size'], p['plain']['type']) == (3, 2, 3), p['plain']
        r = self.c.ceph('osd', 'erasure-code-profile', 'set', 'bad', 'plugin=lrc', check=False)
        assert r.code != 0 and 'Reed-Solomon' in r.err, r
        r = self.c.ceph('osd', 'pool', 'create', 'none', '8', '8', 'erasure', 'nothing', check=False)
        assert r.code == 22 and 'nothing' in r.err, r  # EINVAL, as Ceph's monitor says

    def test_2_put_get_append_stat_rm_ls(self):
        for size in (0, 1, 4096, 16384, 10_000, 4 << 20, 9_000_001):
            data = os.urandom(size)
            self.c.rados('-p', 'ec42', 'put', f'o{size}', self.write('in', data))
            assert self.get('ec42', f'o{size}') == data, size
            assert f'size {size}' in self.c.rados('-p', 'ec42', 'stat', f'o{size}').out
        self.c.rados('-p', 'ec42', 'rm', 'o1')
        assert 'o1' not in self.c.rados('-p', 'ec42', 'ls').out.split()
        self.c.rados('-p', 'ec42', 'setxattr', 'o0', 'color', 'red')
        assert self.c.rados('-p', 'ec42', 'getxattr', 'o0', 'color').out.strip() == 'red'
        r = self.c.rados('-p', 'ec42', 'setomapval', 'o0', 'k', 'v', check=False)
        assert r.code != 0 and 'not supported' in r.err, r

    def test_3_without_overwrites_only_appends_at_stripes(self):
        self.c.rados('-p', 'plain', 'put', 'a', self.write('in', b'x' * 8192))
        self.c.rados('-p', 'plain', 'append', 'a', self.write('in', b'y' * 8192))
        assert self.get('plain', 'a') == b'x' * 8192 + b'y' * 8192
        r = self.c.rados('-p', 'plain', 'truncate', 'a', '5', check=False)
        assert r.code != 0 and 'not supported' in r.err, r

    def test_4_every_data_operation_does_what_it_does_to_plain_bytes(self):
        for seed in (1, 2):
            self.c.python(MODEL, 'ec42', seed, 150)

    def test_5_lost_osds_up_to_m_and_back(self):
        self.c.python(MODEL, 'ec42', 3, 100)
        data = os.urandom(5 << 20)
        self.c.rados('-p', 'ec42', 'put', 'keep', self.write('in', data))
        self.osd('stop', 0)
        assert self.get('ec42', 'keep') == data
        # One more than the code needs is left: it serves, and writes.
        self.c.python(MODEL, 'ec42', 4, 60)
        self.osd('start', 0)
        self.c.wait_clean()
        for n in (4, 5):
            self.osd('stop', n)
            self.osd('start', n)
        self.c.wait_clean()
        assert self.get('ec42', 'keep') == data
        self.c.python(MODEL, 'ec42', 5, 60)

    def test_6_writes_go_on_while_osds_stop_and_return(self):
        load = Load(self.c, WRITER, 'ec42')
        try:
            load.goes_on()
            for n in (1, 3):
                self.osd('stop', n)
                load.goes_on()
                self.osd('start', n)
                self.c.wait_clean()
            load.goes_on()
        finally:
            load.end()

    def test_7_out_and_in_move_shards(self):
        data = os.urandom(3 << 20)
        self.c.rados('-p', 'plain', 'put', 'moves', self.write('in', data))
        self.c.ceph('osd', 'out', '2')
        self.c.ceph('osd', 'pool', 'rm', 'ec42', 'ec42', '--yes-i-really-really-mean-it', check=False)
        def moved():
            pgs = [p for p in self.c.json('pg', 'dump', 'pgs')['pg_stats'] if len(p['up']) == 3]
            return pgs and all(2 not in p['up'] + p['acting'] and p['state'] == 'active+clean' for p in pgs)
        wait(moved, 'no shard on osd.2')
        assert self.get('plain', 'moves') == data
        self.c.ceph('osd', 'in', '2')

    def test_8_bench(self):
        out = self.c.rados('bench', '-p', 'plain', '1', 'write', '-b', '65536', '--no-cleanup').out
        assert 'Total writes made' in out, out
        self.c.rados('bench', '-p', 'plain', '1', 'seq')

    def test_9_what_was_written_survives_a_crash_of_all(self):
        kept = {f'k{i}': os.urandom(40_000 * i + 1) for i in range(12)}
        self.c.ceph('osd', 'pool', 'set', 'plain', 'allow_ec_overwrites', 'true')
        for name, data in kept.items():
            self.c.rados('-p', 'plain', 'put', name, self.write('in', os.urandom(70_000)))
            self.c.rados('-p', 'plain', 'put', name, self.write('in', data))
        self.c.kill()
        self.c.up()
        self.c.wait_clean()
        for name, data in kept.items():
            assert self.get('plain', name) == data, name
        r = self.c.ceph('osd', 'pool', 'set', 'plain', 'min_size', '1', check=False)
        assert r.code != 0 and 'between 2 and size' in r.err, r


class ErasurePools(Erasure):
    """What pools and administrators do to erasure-coded objects: other numbers of PGs, copies, profiles, images."""
    args = ['--osds', '4']

    def pg_num(self, pool):
        return next(p for p in self.c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == pool)

    def wait_pgs(self, pool, n):
        wait(lambda: (p := self.pg_num(pool))['pg_num'] == n and p['pg_num_target'] == n, f'{n} PGs of {pool}')
        self.c.wait_clean()

    def under_load(self, pool, during):
        load = Load(self.c, WRITER, pool)
        try:
            load.goes_on()
            during()
            load.goes_on()
        finally:
            load.end()

    def pgs(self, pool, n):
        # How placement is paced is tested in test_alike.
        self.c.ceph('config', 'set', 'mgr', 'target_max_misplaced_ratio', '1')
        self.c.ceph('osd', 'pool', 'set', pool, 'pg_num', str(n))
        self.wait_pgs(pool, n)

    def test_1_fewer_and_more_pgs_under_load(self):
        self.pool('merge', 2, 1)
        self.c.rados('-p', 'merge', 'put', 'kept', self.sample())

        def during():
            self.pgs('merge', 3)
            self.pgs('merge', 16)
            self.pgs('merge', 5)
        self.under_load('merge', during)
        assert self.get('merge', 'kept') == open(self.sample(), 'rb').read()

    def test_2_fewer_pgs_while_an_osd_is_away_and_through_a_crash(self):
        self.pool('away', 2, 1)
        kept = {f'k{i}': os.urandom(9000 * i + 1) for i in range(20)}
        for name, data in kept.items():
            self.c.rados('-p', 'away', 'put', name, self.write('in', data))

        def away():
            self.osd('stop', 2)
            self.c.ceph('osd', 'out', '2')
            self.pgs('away', 3)
            self.osd('start', 2)
            self.c.ceph('osd', 'in', '2')
            self.c.wait_clean()
        self.under_load('away', away)
        self.pgs('away', 12)
        self.c.ceph('osd', 'pool', 'set', 'away', 'pg_num', '2')
        for _ in range(2):
            before = self.pg_num('away')['pg_num']
            wait(lambda: self.pg_num('away')['pg_num'] < max(before, 3), 'PGs that were merged')
            self.c.kill()
            self.c.up()
        self.wait_pgs('away', 2)
        for name, data in kept.items():
            assert self.get('away', name) == data, name
        # Whole as well: each shard counts.
        for n in range(4):
            self.osd('stop', n)
            for name, data in kept.items():
                assert self.get('away', name) == data, (name, n)
            self.osd('start', n)
            self.c.wait_clean()

    def test_3_without_the_flag_overwrites_are_refused_and_the_flag_stays(self):
        self.pool('plain', 2, 1, overwrites=False)
        out = self.c.python('''
import errno, rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx(sys.argv[2]) as io:
    unit = 8192
    io.write_full('o', b'a' * unit)
    io.append('o', b'b' * unit)
    def refused(what, f):
        try:
            f()
        except rados.Error as e:
            assert abs(e.errno) == errno.EOPNOTSUPP, (what, e)
            return
        raise AssertionError(f'{what} was done')
    def vector(f):
        with rados.WriteOpCtx() as op:
            f(op)
            io.operate_write_op(op, 'o')
    refused('overwrite', lambda: io.write('o', b'x' * 10, 5))
    refused('overwrite of a stripe', lambda: io.write('o', b'x' * unit, 0))
    refused('truncate', lambda: io.trunc('o', 5))
    # Pacific's binding takes offset and length for each other.
    refused('zero', lambda: vector(lambda op: op.zero(0, 100)))
    refused('zero', lambda: vector(lambda op: op.zero(100, 0)))
    refused('omap', lambda: vector(lambda op: io.set_omap(op, ('k',), (b'v',))))
    refused('omap header', lambda: vector(lambda op: io.set_omap_header(op, b'h') if hasattr(io, 'set_omap_header') else io.clear_omap(op)))
    # Whole objects, appends, attributes are what such a pool is for.
    io.set_xattr('o', 'name', b'value')
    assert io.get_xattr('o', 'name') == b'value'
    assert io.read('o', 3 * unit) == b'a' * unit + b'b' * unit
    io.append('o', b'c' * 100)
    assert io.read('o', 3 * unit) == b'a' * unit + b'b' * unit + b'c' * 100
    io.write_full('o', b'new')
    assert io.read('o', 3 * unit) == b'new'
''', 'plain')
        r = self.c.ceph('osd', 'pool', 'set', 'plain', 'allow_ec_overwrites', 'false', check=False)
        assert r.code == 22 and 'ec overwrites cannot be disabled once enabled' in r.err, r
        self.c.ceph('osd', 'pool', 'set', 'plain', 'allow_ec_overwrites', 'true')
        r = self.c.ceph('osd', 'pool', 'set', 'plain', 'allow_ec_overwrites', 'false', check=False)
        assert r.code == 22 and 'ec overwrites cannot be disabled once enabled' in r.err, r
        assert self.c.json('osd', 'pool', 'get', 'plain', 'allow_ec_overwrites')['allow_ec_overwrites'] is True
        r = self.c.ceph('osd', 'pool', 'set', 'data', 'allow_ec_overwrites', 'true', check=False)
        assert r.code == 22 and 'only be enabled for an erasure coded pool' in r.err, r

    def test_4_profiles_that_make_no_sense_are_refused_in_cephs_words(self):
        for name in ('used', 'too'):
            self.pool(name, 3, 1)

        def bad(code, text, *words):
            r = self.c.ceph('osd', 'erasure-code-profile', 'set', 'bad', *words, check=False)
            assert (r.code, text in r.err) == (code, True), (words, r)
        bad(22, 'k=1 must be >= 2', 'k=1', 'm=1')
        bad(22, 'k=-2 must be >= 2', 'k=-2', 'm=1')
        bad(22, 'm=0 must be >= 1', 'k=2', 'm=0')
        bad(22, "could not convert k=x to int because Expected option value to be integer, got 'x'", 'k=x', 'm=1')
        bad(5, 'Reed-Solomon', 'k=2', 'm=1', 'plugin=nosuch')
        bad(2, 'technique=nosuch is not a valid coding technique.  Choose one of the following: reed_sol_van, reed_sol_r6_op, cauchy_orig, '
               'cauchy_good, liberation, blaum_roth, liber8tion', 'k=2', 'm=1', 'technique=nosuch')
        bad(2, 'Choose one of the following: reed_sol_van,cauchy', 'k=2', 'm=1', 'plugin=isa', 'technique=nosuch')
        bad(22, 'ReedSolomonRAID6: m=1 must be 2 for RAID6: revert to 2', 'k=2', 'm=1', 'technique=reed_sol_r6_op')
        bad(22, 'ReedSolomonVandermonde: w=9 must be one of {8, 16, 32} : revert to 8', 'k=2', 'm=1', 'w=9')
        bad(22, 'stripe_unit', 'k=2', 'm=1', 'stripe_unit=1000')
        bad(22, 'erasure-code-profile {crush-failure-domain=nosuch,k=2,m=1,plugin=jerasure,technique=reed_sol_van} contains an invalid '
                'failure-domain "nosuch"', 'k=2', 'm=1', 'crush-failure-domain=nosuch')
        bad(22, "property 'ruleset-failure-domain' is no longer supported; try 'crush-failure-domain' instead", 'ruleset-failure-domain=osd')
        assert 'bad' not in self.c.ceph('osd', 'erasure-code-profile', 'ls').out.split()
        r = self.c.ceph('osd', 'erasure-code-profile', 'set', 'p31', 'k=2', 'm=1', check=False)
        shown = 'crush-root=default,jerasure-per-chunk-alignment=false,k={},m=1,plugin=jerasure,technique=reed_sol_van,w=8}}'
        assert r.code == 1 and 'will not override erasure code profile p31 because the existing profile {crush-device-class=' in r.err, r
        assert shown.format(3) in r.err and 'is different from the proposed profile' in r.err and shown.format(2) in r.err, r
        # Pools are cut by it: another cut is refused even by force, another rule for pools to come is not.
        r = self.c.ceph('osd', 'erasure-code-profile', 'set', 'p31', 'k=2', 'm=1', '--force', check=False)
        assert r.code == 16 and "used too pool(s) are using the erasure code profile 'p31'" in r.err, r
        r = self.c.ceph('osd', 'erasure-code-profile', 'rm', 'p31', check=False)
        assert r.code == 16 and "used too pool(s) are using the erasure code profile 'p31'" in r.err, r
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'free', 'k=2', 'm=1')
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'free', 'k=3', 'm=2', '--force')
        self.c.ceph('osd', 'erasure-code-profile', 'rm', 'free')
        for words, code, text in [(['crush-root=nosuch'], 2, 'root item nosuch does not exist'),
                                  (['crush-device-class=nosuch'], 22, 'device class nosuch does not exist')]:
            self.c.ceph('osd', 'erasure-code-profile', 'set', 'nowhere', 'k=2', 'm=1', *words, '--force')
            r = self.c.ceph('osd', 'crush', 'rule', 'create-erasure', 'nowhere', 'nowhere', check=False)
            assert r.code == code and text in r.err, r

    def test_5_objects_are_copied_out_of_it_and_into_it(self):
        self.pool('out', 2, 1)
        self.c.ceph('osd', 'pool', 'create', 'rep', '8', '8')
        kept = {f'c{i}': os.urandom(50_000 * i + 1) for i in range(12)}
        # More than is read at a time.
        kept['big'] = os.urandom(9_000_001)
        for name, data in kept.items():
            self.c.rados('-p', 'out', 'put', name, self.write('in', data))
        self.c.rados('-p', 'out', 'setxattr', 'c3', 'color', 'red')
        self.c.rados('cppool', 'out', 'rep')
        self.osd('stop', 1)
        self.c.rados('-p', 'out', 'cp', 'c5', 'c5-again')
        self.osd('start', 1)
        self.c.wait_clean()
        for name, data in kept.items():
            assert self.get('rep', name) == data, name
        assert self.get('out', 'c5-again') == kept['c5']
        assert self.c.rados('-p', 'rep', 'getxattr', 'c3', 'color').out.strip() == 'red'
        # An object with omap cannot go there.
        self.c.rados('-p', 'rep', 'setomapval', 'c1', 'k', 'v')
        r = self.c.rados('-p', 'rep', 'cp', 'c1', 'c1-again', '--target-pool', 'out', check=False)
        assert r.code != 0 and 'not supported' in r.err, r
        self.c.rados('-p', 'rep', 'cp', 'c7', 'c7-again', '--target-pool', 'out')
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx('rep') as io:
    want = {f'key{i:05}': b'value %d' % i for i in range(3000)}
    with rados.WriteOpCtx() as op:
        io.set_omap(op, tuple(want), tuple(want.values()))
        io.operate_write_op(op, 'c2')
''')
        for target in ('c2-a', 'c2-b', 'c2-c'):
            self.c.rados('-p', 'rep', 'cp', 'c2', target)
            assert self.c.rados('-p', 'rep', 'listomapkeys', target).out.split() == [f'key{i:05}' for i in range(3000)]
            assert self.get('rep', target) == kept['c2']
        assert self.get('out', 'c7-again') == kept['c7']


class ErasureScrub(Rotten):
    """Shards that rot are found, named as Ceph names them, and made anew from the others."""
    args = ['--osds', '4', '--osd-size', '2G']

    def ec(self, name):
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'p21', 'k=2', 'm=1', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', name, '1', '1', 'erasure', 'p21')
        self.c.ceph('osd', 'pool', 'set', name, 'allow_ec_overwrites', 'true')
        self.c.ceph('osd', 'pool', 'application', 'enable', name, 'test')
        self.c.wait_clean()

    def inconsistent(self, pgid):
        return json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents']

    def test_1_a_read_of_a_rotten_shard_gives_the_right_bytes_and_repairs(self):
        self.ec('read')
        data = os.urandom(300_000)
        self.put('read', 'obj', data)
        acting = self.acting('read', 'obj')
        # The third unit is the first shard's.
        self.rot(acting[0], data[8192:8256])
        assert self.get('read', 'obj') == data
        wait(lambda: self.logged('repaired from osd.'), 'the repair is in the cluster log')
        self.c.wait_clean()
        # A change of a stripe of which another shard is rotten.
        self.rot(acting[1], data[12288:12352])
        part = os.path.join(self.scratch, 'part')
        with open(part, 'wb') as f:
            f.write(b'new bytes')
        self.c.rados('-p', 'read', 'put', 'obj', part, '--offset', '8300')
        data = data[:8300] + b'new bytes' + data[8309:]
        assert self.get('read', 'obj') == data
        self.c.wait_clean()
        self.c.down()
        self.c.up()
        self.c.wait_clean()
        assert self.get('read', 'obj') == data

    def test_2_scrubs_find_it_and_repair_heals_it(self):
        self.ec('deep')
        data = os.urandom(300_000)
        self.put('deep', 'obj', data)
        self.put('deep', 'other', data[::-1])
        where = self.json_map('deep', 'obj')
        pgid, acting = where['pgid'], where['acting']
        self.c.ceph('pg', 'deep-scrub', pgid)
        wait(lambda: self.logged(f'{pgid} deep-scrub ok'), 'a clean deep scrub')
        assert self.inconsistent(pgid) == []
        self.rot(acting[1], data[4096:4160])
        self.c.ceph('pg', 'scrub', pgid)
        wait(lambda: self.logged(f'{pgid} scrub ok'), 'a shallow scrub, which does not read')
        self.c.ceph('pg', 'deep-scrub', pgid)
        wait(lambda: json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == [pgid], 'the deep scrub finds it')
        [found] = self.inconsistent(pgid)
        assert found['object']['name'] == 'obj' and found['errors'] == [], found
        assert found['union_shard_errors'] == ['read_error'] and found['selected_object_info']['size'] == 300_000, found
        shards = {(s['osd'], s['shard']): s['errors'] for s in found['shards']}
        assert shards == {(o, i): ['read_error'] if i == 1 else [] for i, o in enumerate(acting)}, found
        assert [s['primary'] for s in found['shards']].count(True) == 1, found
        wait(lambda: f'pg {pgid} is active+clean+inconsistent' in self.c.ceph('health', 'detail').out, 'health')
        self.c.ceph('pg', 'repair', pgid)
        wait(lambda: self.c.ceph('health').out.startswith('HEALTH_OK'), 'health')
        wait(lambda: self.logged(f'{pgid} repair 1 errors, 1 fixed'), lambda: self.c.ceph('log', 'last', '30').out)
        assert self.inconsistent(pgid) == []
        assert self.get('deep', 'obj') == data and self.get('deep', 'other') == data[::-1]

    def test_3_an_object_without_enough_shards_can_be_listed_and_given_up(self):
        self.ec('lost')
        data = os.urandom(300_000)
        self.put('lost', 'gone', data)
        self.put('lost', 'kept', data[::-1])
        where = self.json_map('lost', 'gone')
        pgid, acting = where['pgid'], where['acting']
        self.c.down()
        self.flip(acting[1], data[4096:4160])
        self.flip(acting[0], data[8192:8256])
        self.c.up()
        self.c.wait_clean()
        p = self.c.python(READ, 'lost', 'gone', wait=False)
        unfound = lambda: json.loads(self.c.ceph('pg', pgid, 'list_unfound').out)
        wait(lambda: unfound()['num_unfound'] == 1, 'it is unfound')
        assert unfound()['objects'][0]['oid']['oid'] == 'gone', unfound()
        assert self.get('lost', 'kept') == data[::-1]
        r = self.c.ceph('pg', pgid, 'mark_unfound_lost', 'revert', check=False)
        assert r.code == 22 and "mode must be 'delete' for ec pool" in r.err, r
        said = self.c.ceph('pg', pgid, 'mark_unfound_lost', 'delete')
        assert 'pg has 1 objects unfound and apparently lost' in said.err, said
        out, err = p.communicate(timeout=240)
        assert 'ObjectNotFound' in out, (out, err)
        self.c.wait_clean()
        assert self.c.rados('-p', 'lost', 'ls').out.split() == ['kept']
        self.put('lost', 'gone', data)
        assert self.get('lost', 'gone') == data
        self.c.ceph('pg', 'deep-scrub', pgid)
        wait(lambda: self.logged(f'{pgid} deep-scrub ok'), 'a clean deep scrub')
