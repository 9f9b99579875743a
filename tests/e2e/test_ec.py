"""Erasure-coded pools through unmodified clients: every data operation, lost OSDs, and back."""
import os
import time
from harness import Case

MODEL = '''
# Random operations on a few objects, each compared with the same change of a plain byte string.
import rados, sys, random
pool, seed, steps = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
model = {}
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '90'}) as r, r.open_ioctx(pool) as io:
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
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '90'}) as r, r.open_ioctx(pool) as io:
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
        assert r.code == 2 and 'nothing' in r.err, r

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
        time.sleep(1)
        assert self.get('ec42', 'keep') == data
        # One more than the code needs is left: it serves, and writes.
        self.c.python(MODEL, 'ec42', 4, 60)
        self.osd('start', 0)
        self.c.wait_clean(120)
        for n in (4, 5):
            self.osd('stop', n)
            self.osd('start', n)
        self.c.wait_clean(120)
        assert self.get('ec42', 'keep') == data
        self.c.python(MODEL, 'ec42', 5, 60)

    def test_6_writes_go_on_while_osds_stop_and_return(self):
        stop = f'{self.c.dir}-stop-ec'
        p = self.c.python(WRITER, 'ec42', stop, wait=False)
        try:
            time.sleep(1)
            for n in (1, 3):
                self.osd('stop', n)
                time.sleep(2)
                self.osd('start', n)
                self.c.wait_clean(120)
        finally:
            open(stop, 'w').close()
        out, err = p.communicate(timeout=180)
        assert p.returncode == 0, err
        assert int(out.split()[0]) > 30, out

    def test_7_out_and_in_move_shards(self):
        data = os.urandom(3 << 20)
        self.c.rados('-p', 'plain', 'put', 'moves', self.write('in', data))
        self.c.ceph('osd', 'out', '2')
        self.c.ceph('osd', 'pool', 'rm', 'ec42', 'ec42', '--yes-i-really-really-mean-it', check=False)
        deadline = time.time() + 120
        while True:
            pgs = [p for p in self.c.json('pg', 'dump', 'pgs')['pg_stats'] if len(p['up']) == 3]
            if pgs and all(2 not in p['up'] + p['acting'] and p['state'] == 'active+clean' for p in pgs):
                break
            assert time.time() < deadline, [(p['pgid'], p['state'], p['up'], p['acting']) for p in pgs]
            time.sleep(0.5)
        assert self.get('plain', 'moves') == data
        self.c.ceph('osd', 'in', '2')

    def test_8_bench(self):
        out = self.c.rados('bench', '-p', 'plain', '3', 'write', '-b', '65536', '--no-cleanup').out
        assert 'Total writes made' in out, out
        self.c.rados('bench', '-p', 'plain', '3', 'seq')

    def test_9_what_was_written_survives_a_crash_of_all(self):
        kept = {f'k{i}': os.urandom(40_000 * i + 1) for i in range(12)}
        self.c.ceph('osd', 'pool', 'set', 'plain', 'allow_ec_overwrites', 'true')
        for name, data in kept.items():
            self.c.rados('-p', 'plain', 'put', name, self.write('in', os.urandom(70_000)))
            self.c.rados('-p', 'plain', 'put', name, self.write('in', data))
        self.c.kill()
        self.c.up()
        self.c.wait_clean(120)
        for name, data in kept.items():
            assert self.get('plain', name) == data, name
        r = self.c.ceph('osd', 'pool', 'set', 'plain', 'min_size', '1', check=False)
        assert r.code != 0 and 'between 2 and size' in r.err, r
