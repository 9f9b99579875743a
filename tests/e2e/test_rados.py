"""The rados tool and librados' basic API, every operation of the first milestone."""
import os
from harness import Case


class Rados(Case):
    def write(self, name, data):
        path = os.path.join(self.scratch, name)
        with open(path, 'wb') as f:
            f.write(data)
        return path

    def get(self, name, *opts):
        out = os.path.join(self.scratch, 'out')
        self.c.rados('-p', 'data', *opts, 'get', name, out)
        with open(out, 'rb') as f:
            return f.read()

    def test_put_get_of_small_large_and_empty_objects(self):
        for size in (0, 1, 4096, 10_000, 4 << 20, 9_000_001):
            data = os.urandom(size)
            self.c.rados('-p', 'data', 'put', f'o{size}', self.write('in', data))
            assert self.get(f'o{size}') == data, size
            assert f'size {size}' in self.c.rados('-p', 'data', 'stat', f'o{size}').out

    def test_append_truncate_and_rm(self):
        self.c.rados('-p', 'data', 'put', 'a', self.write('in', b'hello '))
        self.c.rados('-p', 'data', 'append', 'a', self.write('in2', b'world'))
        assert self.get('a') == b'hello world'
        self.c.rados('-p', 'data', 'truncate', 'a', '5')
        assert self.get('a') == b'hello'
        self.c.rados('-p', 'data', 'truncate', 'a', '8')
        assert self.get('a') == b'hello\0\0\0'
        self.c.rados('-p', 'data', 'rm', 'a')
        r = self.c.rados('-p', 'data', 'stat', 'a', check=False)
        assert r.code == 1 and 'No such file' in r.err, r
        r = self.c.rados('-p', 'data', 'rm', 'a', check=False)
        assert r.code == 1 and 'No such file' in r.err, r

    def test_create_is_exclusive(self):
        self.c.rados('-p', 'data', 'create', 'once')
        r = self.c.rados('-p', 'data', 'create', 'once', check=False)
        assert r.code != 0 and 'exists' in r.err, r

    def test_xattrs(self):
        self.c.rados('-p', 'data', 'setxattr', 'x', 'color', 'red')
        self.c.rados('-p', 'data', 'setxattr', 'x', 'size', 'xl')
        assert self.c.rados('-p', 'data', 'getxattr', 'x', 'color').out.strip() == 'red'
        assert self.c.rados('-p', 'data', 'listxattr', 'x').out.split() == ['color', 'size']
        self.c.rados('-p', 'data', 'rmxattr', 'x', 'color')
        assert self.c.rados('-p', 'data', 'listxattr', 'x').out.split() == ['size']
        r = self.c.rados('-p', 'data', 'getxattr', 'x', 'color', check=False)
        assert r.code != 0 and 'No data' in r.err, r

    def test_omap(self):
        for k, v in (('k1', 'v1'), ('k2', 'v2'), ('k3', 'v3')):
            self.c.rados('-p', 'data', 'setomapval', 'm', k, v)
        self.c.rados('-p', 'data', 'setomapheader', 'm', 'head')
        assert self.c.rados('-p', 'data', 'listomapkeys', 'm').out.split() == ['k1', 'k2', 'k3']
        assert 'v2' in self.c.rados('-p', 'data', 'getomapval', 'm', 'k2').out
        assert 'head' in self.c.rados('-p', 'data', 'getomapheader', 'm').out
        self.c.rados('-p', 'data', 'rmomapkey', 'm', 'k2')
        assert self.c.rados('-p', 'data', 'listomapkeys', 'm').out.split() == ['k1', 'k3']
        self.c.rados('-p', 'data', 'clearomap', 'm')
        assert self.c.rados('-p', 'data', 'listomapkeys', 'm').out == ''

    def test_namespaces_and_locators_keep_objects_apart(self):
        f = self.write('in-one', b'one')
        self.c.rados('-p', 'data', '-N', 'ns1', 'put', 'same', f)
        self.c.rados('-p', 'data', '-N', 'ns2', 'put', 'same', self.write('in', b'two'))
        assert self.get('same', '-N', 'ns1') == b'one' and self.get('same', '-N', 'ns2') == b'two'
        assert self.c.rados('-p', 'data', '-N', 'ns1', 'ls').out.split() == ['same']
        everything = self.c.rados('-p', 'data', '--all', 'ls').out
        assert 'ns1\tsame' in everything and 'ns2\tsame' in everything, everything
        self.c.rados('-p', 'data', '--object-locator', 'key1', 'put', 'located', f)
        r = self.c.rados('-p', 'data', 'stat', 'located', check=False)
        assert self.get('located', '--object-locator', 'key1') == b'one'

    def test_ls_pages_through_many_objects_once_each(self):
        n = 3000
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('data') as io:
    io.set_namespace('many')
    done = []
    for i in range(int(sys.argv[2])):
        done.append(io.aio_write_full(f'obj-{i}', b'x'))
        if len(done) >= 64: done.pop(0).wait_for_complete()
    for c in done: c.wait_for_complete()
''', n)
        names = self.c.rados('-p', 'data', '-N', 'many', 'ls').out.split()
        assert len(names) == n and len(set(names)) == n, (len(names), len(set(names)))

    def test_cp_df_lspools_and_pool_listing(self):
        self.c.rados('-p', 'data', 'put', 'orig', self.write('in', b'copy me'))
        assert 'data' in self.c.rados('lspools').out.split()
        df = self.c.rados('df').out
        assert 'data' in df and 'total_objects' in df, df

    def test_bench_write_seq_and_rand(self):
        self.c.rados('-p', 'data', 'bench', '2', 'write', '-b', '4096', '-t', '16', '--no-cleanup')
        assert 'Total reads made' in self.c.rados('-p', 'data', 'bench', '2', 'seq', '-t', '16').out
        assert 'Total reads made' in self.c.rados('-p', 'data', 'bench', '1', 'rand', '-t', '16').out
        self.c.rados('-p', 'data', 'cleanup')
        self.c.rados('-p', 'data', 'bench', '2', 'write', '-t', '4')


LIBRADOS = '''
import rados, sys, struct, errno
r = rados.Rados(conffile=sys.argv[1]); r.connect()
io = r.open_ioctx('data')

def fails(code, f, *a, **kw):
    try: f(*a, **kw)
    except rados.Error as e:
        assert abs(e.errno) == code, (f, e.errno, code); return
    raise AssertionError(f'{f} did not fail with {code}')

# offsets, holes, partial reads
io.write('w', b'abc', 10)
assert io.read('w') == bytes(10) + b'abc' and io.read('w', 2, 11) == b'bc' and io.read('w', 10, 13) == b''
io.write('w', b'XY', 0); assert io.read('w', 4) == b'XY' + bytes(2)
io.write_full('w', b'short'); assert io.read('w') == b'short' and io.stat('w')[0] == 5
io.append('w', b'er'); assert io.read('w') == b'shorter'
io.trunc('w', 3); assert io.read('w') == b'sho'
fails(errno.ENOENT, io.read, 'missing'); fails(errno.ENOENT, io.stat, 'missing'); fails(errno.ENOENT, io.remove_object, 'missing')

# zero, write_same through a write op; vectors are all or nothing
with rados.WriteOpCtx() as op:
    op.new(rados.LIBRADOS_CREATE_EXCLUSIVE); op.write_full(b'0123456789'); op.set_xattr('a', b'1')
    io.operate_write_op(op, 'vec')
with rados.WriteOpCtx() as op:
    op.write_full(b'changed'); op.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
    fails(errno.EEXIST, io.operate_write_op, op, 'vec')
assert io.read('vec') == b'0123456789' and io.get_xattr('vec', 'a') == b'1'
with rados.WriteOpCtx() as op:
    op.append(b'ab'); op.truncate(11); io.operate_write_op(op, 'vec')
assert io.read('vec') == b'0123456789a'
with rados.WriteOpCtx() as op:
    op.remove(); io.operate_write_op(op, 'vec')
fails(errno.ENOENT, io.read, 'vec')

# xattrs
io.set_xattr('x', 'k', b'v'); io.set_xattr('x', 'bin', bytes(range(256)))
assert dict(io.get_xattrs('x')) == {'k': b'v', 'bin': bytes(range(256))}
io.rm_xattr('x', 'k'); fails(errno.ENODATA, io.get_xattr, 'x', 'k')

# omap: set, page, ranges, header, remove
with rados.WriteOpCtx() as op:
    io.set_omap(op, tuple(f'k{i:04}' for i in range(2000)), tuple(b'v%d' % i for i in range(2000)))
    io.operate_write_op(op, 'm')
got, after = [], ''
while True:
    with rados.ReadOpCtx() as op:
        it, ret = io.get_omap_vals(op, after, '', 300); io.operate_read_op(op, 'm')
        page = list(it)
    if not page: break
    got += page; after = page[-1][0]
assert got == [(f'k{i:04}', b'v%d' % i) for i in range(2000)], len(got)
with rados.ReadOpCtx() as op:
    it, ret = io.get_omap_vals(op, '', 'k00', 1000); io.operate_read_op(op, 'm'); assert len(list(it)) == 100
with rados.ReadOpCtx() as op:
    it, ret = io.get_omap_vals_by_keys(op, ('k0001', 'nope', 'k1999')); io.operate_read_op(op, 'm')
    assert list(it) == [('k0001', b'v1'), ('k1999', b'v1999')]
with rados.WriteOpCtx() as op:
    io.remove_omap_keys(op, ('k0001',)); io.operate_write_op(op, 'm')
with rados.WriteOpCtx() as op:
    io.remove_omap_range2(op, 'k0100', 'k1900'); io.operate_write_op(op, 'm')
with rados.ReadOpCtx() as op:
    it, ret = io.get_omap_keys(op, '', 5000); io.operate_read_op(op, 'm')
    keys = [k for k, _ in it]; assert len(keys) == 199 and 'k0001' not in keys and 'k0100' not in keys and 'k1900' in keys
with rados.WriteOpCtx() as op:
    io.clear_omap(op); io.operate_write_op(op, 'm')
with rados.ReadOpCtx() as op:
    it, ret = io.get_omap_keys(op, '', 10); io.operate_read_op(op, 'm'); assert list(it) == []

# guards: omap_cmp, cmpext, assert_version
with rados.WriteOpCtx() as op:
    io.set_omap(op, ('g',), (b'1',)); op.write_full(b'guarded'); io.operate_write_op(op, 'guard')
with rados.WriteOpCtx() as op:
    op.omap_cmp('g', '2', rados.LIBRADOS_CMPXATTR_OP_EQ); op.write_full(b'no'); fails(errno.ECANCELED, io.operate_write_op, op, 'guard')
with rados.WriteOpCtx() as op:
    op.omap_cmp('g', '1', rados.LIBRADOS_CMPXATTR_OP_EQ); op.write_full(b'yes'); io.operate_write_op(op, 'guard')
assert io.read('guard') == b'yes'
with rados.ReadOpCtx() as op:
    op.cmpext(b'yes', 0); io.operate_read_op(op, 'guard')

# asynchronous writes are ordered
cs = [io.aio_append('order', b'%04d' % i) for i in range(500)]
for c in cs: c.wait_for_complete(); assert c.get_return_value() == 0
assert io.read('order', 4000) == b''.join(b'%04d' % i for i in range(500))

# limits
fails(errno.EFBIG, io.write, 'huge', b'x', 200 << 30)
fails(errno.ENAMETOOLONG, io.write_full, 'n' * 5000, b'x')
fails(errno.ENOENT, r.open_ioctx, 'nopool')

# pools through librados
r.create_pool('viaapi'); assert 'viaapi' in r.list_pools(); assert r.pool_exists('viaapi')
io2 = r.open_ioctx('viaapi'); io2.write_full('o', b'1'); assert [o.key for o in io2.list_objects()] == ['o']; io2.close()
r.delete_pool('viaapi'); assert 'viaapi' not in r.list_pools()
stats = r.get_cluster_stats(); assert stats['kb'] > 0, stats
assert r.get_fsid()
io.close(); r.shutdown()
print('fine')
'''


class Librados(Case):
    def test_basic_api_behaves_as_against_ceph(self):
        assert self.c.python(LIBRADOS).out.strip() == 'fine'

    def test_fio_rados_engine_writes_and_reads(self):
        import shutil
        from harness import Skip
        if self.clients.root or not shutil.which('fio'):
            raise Skip('fio is not installed beside these clients')
        import subprocess
        for rw in ('write', 'randread'):
            p = subprocess.run(['fio', '--name=t', '--ioengine=rados', '--pool=data', '--clientname=admin', f'--conf={self.c.conf}', f'--rw={rw}', '--bs=4k',
                                '--size=1M', '--iodepth=8', '--touch_objects=0', '--output-format=json'], capture_output=True, text=True, timeout=300)
            assert p.returncode == 0, p.stdout + p.stderr
