"""libcephfs, the client in a library (python3-cephfs), which NFS servers and Samba use."""
import shutil, subprocess
from harness import Case, Skip

# argv: ceph.conf, a name for its directory. Says `good`.
PROGRAM = '''
import cephfs, errno, os, stat, sys
conf, name = sys.argv[1:3]
def mounted():
    fs = cephfs.LibCephFS(conffile=conf, auth_id='admin')
    fs.mount()
    return fs
def refused(code, call, *argv):
    try:
        call(*argv)
    except cephfs.Error as e:
        assert getattr(e, 'errno', code) in (code, None) or e.args[0] == code, (e, code)
    else:
        raise AssertionError(f'{call} {argv} went well')
one, two = mounted(), mounted()
top = f'/lib/{name}'
one.mkdirs(top, 0o755)
one.chdir(top)
two.chdir(top)
# Files: written at two places, read by the other, cut, appended to.
data = os.urandom(6_000_000)
f = one.open('f', os.O_CREAT | os.O_RDWR, 0o640)
assert one.write(f, data[:3_000_000], 0) == 3_000_000 and one.write(f, data[3_000_000:], 3_000_000) == 3_000_000
one.fsync(f, 0)
g = two.open('f', os.O_RDONLY)
assert two.read(g, 0, 6_000_000) == data
one.ftruncate(f, 1_000_000)
assert two.fstat(g).st_size == 1_000_000 and two.read(g, 999_990, 100) == data[999_990:1_000_000]
one.close(f)
two.close(g)
s = two.stat('f')
assert stat.S_IMODE(s.st_mode) == 0o640 and s.st_size == 1_000_000
refused(errno.EEXIST, one.open, 'f', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
refused(errno.ENOENT, one.stat, 'none')
# Names and links.
for i in range(50):
    one.close(one.open(f'd{i:02}', os.O_CREAT | os.O_WRONLY, 0o600))
one.rename('d00', 'moved')
one.symlink('moved', 'link')
assert two.readlink('link', 100) == b'moved'
one.link('f', 'hard')
assert two.stat('hard').st_nlink == 2
d = two.opendir('.')
names = set()
while (e := two.readdir(d)):
    names.add(e.d_name.decode())
two.closedir(d)
assert names >= {'moved', 'link', 'hard', 'f', 'd49', '.', '..'} and 'd00' not in names, names
one.unlink('hard')
refused(errno.ENOTEMPTY, one.rmdir, top)
# Attributes of users, layouts, quotas.
one.setxattr('f', 'user.k', b'v', 0)
assert two.getxattr('f', 'user.k') == b'v'
assert b'cephfs_data' in two.getxattr('f', 'ceph.file.layout')
one.mkdir('q', 0o755)
one.setxattr('q', 'ceph.quota.max_bytes', b'10000000', 0)
assert two.getxattr('q', 'ceph.quota.max_bytes') == b'10000000'
# Snapshots, by the calls for them and by name.
one.mksnap(top, 'early', 0o755, {'why': 'test'})
one.unlink('f')
h = two.open(f'{top}/.snap/early/f', os.O_RDONLY)
assert two.read(h, 0, 2_000_000) == data[:1_000_000]
two.close(h)
assert two.snap_info(f'{top}/.snap/early')['metadata'] == {'why': 'test'}
one.rmsnap(top, 'early')
# How much there is.
v = two.statfs('/')
assert v['f_bsize'] and v['f_blocks'] >= v['f_bavail'] > 0
for fs in (one, two):
    fs.unmount()
    fs.shutdown()
print('good')
'''


class LibCephFs(Case):
    args = ['--osds', '3', '--osd-size', '2G', '--with', 'mds']

    def setup(self, clients):
        if not shutil.which('ceph-mds'):
            raise Skip('ceph-mds is not installed (Debian: apt-get install ceph-mds)')
        if subprocess.run([*clients.python(), '-c', 'import cephfs'], capture_output=True).returncode:
            raise Skip('python3-cephfs is not installed')
        super().setup(clients)

    def test_1_two_clients_in_one_program(self):
        assert self.c.python(PROGRAM, 'here').out == 'good\n'

    def test_2_after_a_crash_of_everything(self):
        self.c.kill()
        self.c.up('--with', 'mds')
        assert self.c.python(PROGRAM, 'again').out == 'good\n'
