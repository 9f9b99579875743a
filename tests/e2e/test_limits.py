"""Requests as large as Ceph takes them, and one step beyond: no OSD stops, each answer is Ceph's."""
import os
from harness import Case

# Keys of the large omap.
KEYS = int(os.environ.get('SPIRULA_E2E_KEYS', 1000000))

CLIENT = '''
# librados by hand: python3-rados lacks ranges of keys, and hides error numbers.
import ctypes, os, sys, time
L = ctypes.CDLL('librados.so.2')
size, void = ctypes.c_size_t, ctypes.c_void_p
L.rados_create_write_op.restype = L.rados_create_read_op.restype = void
def ok(r, what):
    if r < 0: sys.exit(f'{what}: {os.strerror(-r)}')
cl, io = void(), void()
ok(L.rados_create(ctypes.byref(cl), b'admin'), 'create')
ok(L.rados_conf_read_file(cl, sys.argv[1].encode()), 'conf')
ok(L.rados_conf_set(cl, b'rados_osd_op_timeout', b'100'), 'timeout')
ok(L.rados_connect(cl), 'connect')
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
r = rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '100'}); r.connect(); pio = r.open_ioctx('data')
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
        self.c.python(LARGE, timeout=600)
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
        out, err = p.communicate(timeout=600)
        print('  ' + ', '.join(out.split('\n')), flush=True)
        assert p.returncode == 0, err
        assert [u for _, u, _ in self.ups()] == [1, 0, 1], self.ups()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        self.c.wait_clean()
        self.c.kill()
        self.c.up()
        self.c.wait_clean()
        self.c.python(LEFT, KEYS)
