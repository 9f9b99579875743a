"""Requests as large as Ceph takes them, and one step beyond: no OSD stops, each answer is Ceph's."""
import json, os, shutil
import netns
from harness import Case, wait
from test_processes import OsdHosts

# Keys of the large omap.
KEYS = int(os.environ.get('SPIRULA_E2E_KEYS', 1000000))

CLIENT = '''
# librados by hand: python3-rados lacks ranges of keys, and hides error numbers.
import atexit, ctypes, os, sys, time
L = ctypes.CDLL('librados.so.2')
size, void = ctypes.c_size_t, ctypes.c_void_p
L.rados_create_write_op.restype = L.rados_create_read_op.restype = void
def ok(r, what):
    if r < 0: sys.exit(f'{what}: {os.strerror(-r)}')
cl, io = void(), void()
ok(L.rados_create(ctypes.byref(cl), b'admin'), 'create')
ok(L.rados_conf_read_file(cl, sys.argv[1].encode()), 'conf')
ok(L.rados_conf_set(cl, b'rados_osd_op_timeout', b'400'), 'timeout')
ok(L.rados_connect(cl), 'connect')
# A process that ends without it takes the options' table from below librados' threads: one that reconnects just then ends it by bad_get.
atexit.register(L.rados_shutdown, cl)
ok(L.rados_ioctx_create(cl, b'data', ctypes.byref(io)), 'pool')
def op(name, f):
    w = void(L.rados_create_write_op())
    f(w)
    r = L.rados_write_op_operate(w, io, name, None, 0)
    L.rados_release_write_op(w)
    return -r
def arrays(ks, vs):
    n = len(ks)
    return ((ctypes.c_char_p * n)(*ks), (ctypes.c_char_p * n)(*vs), (size * n)(*map(len, ks)), (size * n)(*map(len, vs)), size(n))
def omap_set(name, ks, vs): return op(name, lambda w: L.rados_write_op_omap_set2(w, *arrays(ks, vs)))
def omap_rm_range(name, a, b): return op(name, lambda w: L.rados_write_op_omap_rm_range2(w, a, size(len(a)), b, size(len(b))))
def omap_clear(name): return op(name, L.rados_write_op_omap_clear)
def setxattr(name, k, v): return op(name, lambda w: L.rados_write_op_setxattr(w, k, v, size(len(v))))
def write_full(name, v): return op(name, lambda w: L.rados_write_op_write_full(w, v, size(len(v))))
import rados
r = rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '400'}); r.connect(); pio = r.open_ioctx('data')
def values(name, ks):
    with rados.ReadOpCtx() as o:
        it, _ = pio.get_omap_vals_by_keys(o, tuple(ks)); pio.operate_read_op(o, name.decode())
        return dict(it)
def keys(name):
    n, last = 0, ''
    while True:
        with rados.ReadOpCtx() as o:
            it, _ = pio.get_omap_keys(o, last, 10000); pio.operate_read_op(o, name.decode())
            page = [k for k, _ in it]
        if not page: return n
        assert page == sorted(page) and page[0] > last
        n, last = n + len(page), page[-1]
def is_(got, want, what): assert got == want, f'{what}: {got}, not {want}'
'''

LARGE = CLIENT + '''
E2BIG, ENAMETOOLONG, EMSGSIZE = 7, 36, 90
value = os.urandom(17 << 20) + b'.' * (512 << 10)
is_(omap_set(b'large', [b'k'], [value]), 0, 'an omap value of 17.5 MiB')
assert values(b'large', ['k'])['k'] == value
value = os.urandom(1 << 20) * 85
is_(omap_set(b'larger', [b'k'], [value]), 0, 'an omap value of 85 MiB')
assert values(b'larger', ['k'])['k'] == value
is_(omap_set(b'larger', [b'k'], [b'x' * (91 << 20)]), EMSGSIZE, 'more than osd_max_write_size')
is_(write_full(b'larger', b'x' * (91 << 20)), EMSGSIZE, 'more than osd_max_write_size')
is_(write_full(b'larger', b'x' * (90 << 20)), 0, 'osd_max_write_size')
is_(omap_set(b'larger', [b'k' * 70000], [b'']), ENAMETOOLONG, 'a long key')
is_(omap_set(b'larger', [b'k' * 60000], [b'']), 0, 'a key that is not too long')
# Ceph knows no end; here it is 64 MiB for an object.
for n in range(20):
    is_(setxattr(b'attrs', b'x%d' % n, b'.' * (1 << 20)), 0, f'attribute {n} of 1 MiB')
for n in range(5):
    is_(setxattr(b'attrs', b'y%d' % n, b'.' * (8 << 20)), 0, f'attribute {n} of 8 MiB')
assert sum(len(v) for _, v in pio.get_xattrs('attrs')) == 60 << 20
is_(setxattr(b'attrs', b'more', b'.' * (5 << 20)), E2BIG, 'more attributes than 64 MiB')
is_(write_full(b'attrs', b'goes on'), 0, 'a write beside them')
for k in range(0, 3000, 100):
    def some(w):
        for n in range(k, k + 100): L.rados_write_op_setxattr(w, b'n%d' % n, b'v%d' % n, size(len(b'v%d' % n)))
    is_(op(b'many', some), 0, 'a hundred attributes more')
is_(len(list(pio.get_xattrs('many'))), 3000, 'attributes')
'''

MANY = CLIENT + '''
n, since = int(sys.argv[2]), time.time()
def say(what):
    global since
    print(f'{what} {time.time() - since:.1f} s', flush=True); since = time.time()
for base in range(0, n, 20000):
    ks = [b'key-%024d' % i for i in range(base, min(base + 20000, n))]
    is_(omap_set(b'index', ks, [b''] * len(ks)), 0, 'keys')
say('set')
is_(keys(b'index'), n, 'keys'); say('list')
is_(omap_rm_range(b'index', b'key-', b'key-~'), 0, 'one range of all keys'); say('range')
is_(keys(b'index'), 0, 'keys left'); say('list none')
is_(omap_set(b'index', [b'key-%d' % i for i in range(1000)], [b'again'] * 1000), 0, 'keys within the range')
is_(keys(b'index'), 1000, 'keys set again')
is_(omap_clear(b'index'), 0, 'clear')
is_(keys(b'index'), 0, 'keys left')
is_(omap_set(b'index', [b'key-%024d' % i for i in range(0, n, 50000)], [b'last'] * len(range(0, n, 50000))), 0, 'a few')
'''

LEFT = CLIENT + '''
n = len(range(0, int(sys.argv[2]), 50000))
is_(keys(b'index'), n, 'keys after all')
'''


class Limits(Case):
    args = ['--osds', '3', '--osd-size', '6G', '--links', 'tcp']

    def ups(self):
        return [(o['osd'], o['up'], o['up_from']) for o in self.c.json('osd', 'dump')['osds']]

    def test_1_each_request_is_answered_as_ceph_does_and_stops_no_osd(self):
        before = self.ups()
        self.c.python(LARGE)
        assert self.ups() == before, (before, self.ups())
        self.c.wait_clean()
        # What was taken is there after kill -9, on all copies.
        self.c.kill()
        self.c.up()
        self.c.wait_clean()
        self.c.python(CLIENT + "assert len(values(b'larger', ['k'])['k']) == 85 << 20; is_(len(list(pio.get_xattrs('many'))), 3000, 'attributes')")

    def test_2_a_million_keys_are_written_listed_and_removed_while_an_osd_is_away(self):
        p = self.c.python(MANY, KEYS, wait=False)
        while p.poll() is None and 'index' not in self.c.rados('-p', 'data', 'ls').out:
            pass
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        out, err = p.communicate(timeout=1800)
        print('figure: ' + ', '.join(out.split('\n')), flush=True)
        assert p.returncode == 0, err
        assert [u for _, u, _ in self.ups()] == [1, 0, 1], self.ups()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        self.c.wait_clean()
        self.c.kill()
        self.c.up()
        self.c.wait_clean()
        self.c.python(LEFT, KEYS)


OVERWRITE = CLIENT + '''
import random, struct, threading
MIB, BLOCK = 1 << 20, 4096
stats = lambda: r.get_cluster_stats()
total = stats()['kb'] << 10
objects = total // 2 // (4 * MIB)
for n in range(objects):
    pio.write_full(f'half-{n}', bytes(4 * MIB))
rng, wanted, places, failed, lock = random.Random(7), int(total * float(sys.argv[2])) // BLOCK, threading.Semaphore(64), [], threading.Lock()
newest, due = {}, set()
body = os.urandom(BLOCK - 16)
def done(at):
    def f(c):
        e = c.get_return_value()
        if e: failed.append((at, e))
        with lock: due.discard(at)
        places.release()
    return f
begun = time.time()
for n in range(wanted):
    while True:
        at = rng.randrange(objects * 1024)
        # One at a time for each block, so that it is known what must be there.
        if at not in due: break
    assert places.acquire(timeout=600), f'a write takes ten minutes, after {n} of {wanted}'
    if failed:
        places.release()
        break
    with lock: due.add(at)
    newest[at] = n
    pio.aio_write(f'half-{at // 1024}', struct.pack('<QQ', at, n) + body, at % 1024 * BLOCK, done(at))
for _ in range(64): assert places.acquire(timeout=600), f'a write takes ten minutes, after {n} of {wanted}'
is_(failed[:3], [], f'overwrites refused of {n + 1}')
print(f'{wanted} overwrites of {total >> 20} MiB in {time.time() - begun:.0f} s', flush=True)
for n in range(objects):
    data = pio.read(f'half-{n}', 4 * MIB)
    for b in range(1024):
        at = n * 1024 + b
        want = struct.pack('<QQ', at, newest[at]) + body if at in newest else bytes(BLOCK)
        assert data[b * BLOCK:][:BLOCK] == want, f'block {b} of object {n}'
'''

FILL = CLIENT + '''
for n in range(int(sys.argv[2])): pio.write_full(f'again-{n}', os.urandom(4 << 20))
'''


class Overwritten(Case):
    """A store that is half full is written over at random, ten times its size, in pieces of 4 KiB. The store is small: ten times 1 GiB
    is for `cargo xtask soak store`."""
    args = ['--osds', '1', '--osd-size', '1G', '--pool-size', '1']
    size = os.environ.get('SPIRULA_E2E_OVERWRITTEN', '128M')
    minutes = 2

    def osd(self):
        return os.path.join(self.c.dir, 'osd.0')

    def df(self):
        return self.c.json('osd', 'df')['nodes'][0]

    def found(self):
        """The same OSD on a smaller device than `up` makes."""
        self.c.wait_clean()
        self.c.down()
        m, export = json.load(open(os.path.join(self.c.dir, 'cluster.json'))), os.path.join(self.scratch, 'all.export')
        self.c.spirula('store', 'export', self.osd(), export)
        shutil.rmtree(self.osd())
        self.c.spirula('osd', 'prepare', self.osd(), '--osd-id', '0', '--osd-uuid', m['osds'][0], '--fsid', m['fsid'],
                       '--size', self.size, '--journal-size', '4M')
        self.c.spirula('store', 'import', self.osd(), export)
        self.c.up()
        self.c.wait_clean()

    def test_1_no_overwrite_is_refused_and_deleting_gives_all_of_it_back(self):
        self.found()
        before = self.df()
        print('  ' + self.c.python(OVERWRITE, os.environ.get('SPIRULA_E2E_TIMES', 4), timeout=1800).out.strip(), flush=True)
        assert not {'OSD_FULL', 'OSD_NEARFULL', 'OSD_STORE_UNUSABLE'} & set(self.c.json('health')['checks'])
        self.c.kill()
        assert 'sound' in self.c.spirula('store', 'check', self.osd()).out
        self.c.up()
        self.c.wait_clean()
        for name in self.c.rados('-p', 'data', 'ls').out.split():
            self.c.rados('-p', 'data', 'rm', name)
        # What stays are the logs of the PGs: 600 entries, and the names of 3,000 requests so that none is done twice. The store keeps
        # as much again for its next checkpoint.
        def logs(df): return df['kb_used_meta'] - before['kb_used_meta']
        def back(df): return df['kb_used_data'] == 0 and df['kb_avail'] + 2 * logs(df) >= before['kb_avail'] * 0.98
        wait(lambda: back(self.df()), lambda: f"the space of what was deleted: {self.df()}, before: {before}, left: {self.c.rados('-p', 'data', 'ls').out.split()}")
        df = self.df()
        assert logs(df) << 10 < df['pgs'] * 3600 * 100, (df, before)
        # What is said to be there takes data.
        self.c.python(FILL, df['kb_avail'] * 9 // 10 // 4096)


KILLED = CLIENT + '''
n = int(sys.argv[2])
def ask(what):
    print(what, flush=True)
    sys.stdin.readline()
for base in range(0, n, 20000):
    if base == n // 40000 * 20000: ask('half')
    ks = [b'key-%024d' % i for i in range(base, min(base + 20000, n))]
    is_(omap_set(b'index', ks, [b'v'] * len(ks)), 0, 'keys')
ask('set')
is_(keys(b'index'), n, 'keys')
ask('listed')
is_(omap_clear(b'index'), 0, 'clear')
is_(keys(b'index'), 0, 'keys left')
is_(omap_set(b'index', [b'last'], [b'v']), 0, 'one more')
print('done', flush=True)
'''

ONE = CLIENT + '''
is_(values(b'index', ['last']), {'last': b'v'}, 'the last one')
is_(keys(b'index'), 1, 'keys after all')
'''


class KilledLimits(OsdHosts):
    """The primary of an omap of a quarter as many keys is killed, as `kill -9` does, while it is written, listed and cleared."""
    size, minutes = '4G', 3

    def acting(self):
        return self.json('osd', 'map', 'data', 'index')['acting']

    def test_1_a_million_keys_while_their_primary_is_killed(self):
        self.ceph('osd', 'pool', 'create', 'data', '8', '8')
        self.wait_clean()
        p = self.python(KILLED, KEYS // 4)
        for step in ('half', 'set', 'listed'):
            said = p.stdout.readline().strip()
            assert said == step, (said, p.stderr.read()[-3000:])
            osd = self.json('osd', 'map', 'data', 'index')['acting_primary']
            p.stdin.write('go\n')
            p.stdin.flush()
            self.host_of[osd].kill(f'osd.{osd}')
            netns.wait(lambda: osd not in self.acting(), f'osd.{osd} to be out of the acting set')
            self.host_of[osd].start(f'osd.{osd}')
            self.wait_osds(3)
        out, err = p.communicate(timeout=1800)
        assert p.returncode == 0 and out.strip() == 'done', (out, err[-3000:])
        self.wait_clean()
        for osd in self.acting()[:2]:
            # Each copy by itself.
            self.host_of[osd].kill(f'osd.{osd}')
            netns.wait(lambda: osd not in self.acting(), f'osd.{osd} to be out of the acting set')
            p = self.python(ONE)
            _, err = p.communicate(timeout=900)
            assert p.returncode == 0, err
            self.host_of[osd].start(f'osd.{osd}')
            self.wait_osds(3)
            self.wait_clean()
