"""Files on Spirula: Debian's ceph-mds serves them, ceph-fuse mounts them, neither of them changed."""
import errno, fcntl, itertools, json, os, random, shutil, signal, stat, subprocess, threading, time
import harness
from harness import Case, gone, wait

HERE = os.path.dirname(os.path.abspath(__file__))


def digest(top):
    """What is in a tree: kind, size or target, and mode of everything."""
    out = {}
    for folder, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            what = os.readlink(path) if stat.S_ISLNK(s.st_mode) else s.st_size if stat.S_ISREG(s.st_mode) else 0
            out[os.path.relpath(path, top)] = (stat.S_IFMT(s.st_mode), what, 0 if stat.S_ISLNK(s.st_mode) else s.st_mode & 0o777)
    return out


class Writer(threading.Thread):
    """Makes files one after the other, each written through to the servers before the next; knows what it made."""

    def __init__(self, top):
        super().__init__(daemon=True)
        self.top, self.made, self.failed, self.end = top, {}, None, False
        os.makedirs(top, exist_ok=True)

    def run(self):
        try:
            i = 0
            while not self.end:
                data = random.randbytes(random.choice([1, 4000, 70_000]))
                name = f'd{i % 7}/f{i}'
                path = os.path.join(self.top, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path + '.new', 'wb') as f:
                    f.write(data)
                    f.flush()
                    os.fsync(f.fileno())
                os.rename(path + '.new', path)
                self.made[name] = data
                i += 1
        except OSError as e:
            self.failed = e

    def goes_on(self):
        before = len(self.made)
        wait(lambda: self.failed or len(self.made) > before + 3, 'further files')
        assert self.failed is None, self.failed

    def ends(self):
        self.end = True
        self.join(240)
        assert self.failed is None and not self.is_alive(), self.failed

    def check(self, top=None):
        for name, data in self.made.items():
            with open(os.path.join(top or self.top, name), 'rb') as f:
                assert f.read() == data, name


class CephFs(Case):
    args = ['--osds', '3', '--osd-size', '2G', '--with', 'mds']
    minutes = 4

    def setup(self, clients):
        for program, package in (('ceph-mds', 'ceph-mds'), ('ceph-fuse', 'ceph-fuse'), ('setfattr', 'attr'), ('rsync', 'rsync')):
            if not shutil.which(program):
                raise harness.Skip(f'{program} is not installed (Debian: apt-get install {package})')
        if os.geteuid() != 0 or not os.path.exists('/dev/fuse'):
            raise harness.Skip('to mount by FUSE needs root and /dev/fuse')
        if clients.root:
            raise harness.Skip("ceph-fuse of another Debian is not tried")
        self.mounts = {}
        super().setup(clients)
        self.active()
        self.mnt = self.mount('m1')

    def teardown(self):
        for name in list(getattr(self, 'mounts', {})):
            self.unmount(name)
        super().teardown()

    # ---- helpers ----

    def point(self, name):
        """Where a mount is to be seen."""
        return os.path.join(self.scratch, name)

    def mount(self, name, user='client.admin', *more):
        at = os.path.join(self.scratch, name)
        os.makedirs(at, exist_ok=True)
        with open(os.path.join(self.scratch, f'{name}.log'), 'w') as log:
            p = subprocess.Popen(['ceph-fuse', '-f', '-c', self.c.conf, '-n', user, at, *more],
                                 stdout=log, stderr=log)
        at = self.point(name)
        self.mounts[name] = (p, at)
        wait(lambda: os.path.ismount(at) or p.poll() is not None, 'the mount')
        assert p.poll() is None, open(os.path.join(self.scratch, f'{name}.log')).read()
        return at

    def unmount(self, name):
        p, at = self.mounts.pop(name)
        subprocess.run(['umount', '-l', at], capture_output=True)
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait(20)

    def ranks(self):
        """Rank to the name of its server, of those that are active."""
        m = self.c.json('fs', 'get', 'cephfs')['mdsmap']
        return {i['rank']: i['name'] for i in m['info'].values() if i['state'] == 'up:active'}

    def active(self, n=1, standbys=1):
        wait(lambda: len(self.ranks()) == n and len(self.c.json('fs', 'dump')['standbys']) == standbys,
             lambda: self.c.ceph('fs', 'dump').out + self.c.ceph('health', 'detail').out)

    def server(self, name):
        """The process of a server, if there is one."""
        found = []
        for pid in os.listdir('/proc'):
            try:
                with open(f'/proc/{pid}/cmdline', 'rb') as f:
                    argv = f.read().split(b'\0')
            except (OSError, ValueError):
                continue
            if argv[0].endswith(b'ceph-mds') and self.c.conf.encode() in argv and argv[argv.index(b'-i') + 1] == name.encode():
                found.append(int(pid))
        assert len(found) <= 1, f'mds.{name} runs more than once: {found}'
        return found[0] if found else None

    def sh(self, *argv, code=0, cwd=None):
        r = harness.Result(subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=cwd))
        assert code is None or r.code == code, f'{argv}: {r}'
        return r

    # ---- tests, in this order ----

    def test_1_two_servers_one_stands_by(self):
        c = self.c
        self.active()
        # Whoever goes without a word is waited for that long by a server that takes over.
        c.ceph('config', 'set', 'mds', 'mds_reconnect_timeout', '5')
        own = lambda: float(json.loads(c.ceph('tell', 'mds.0', 'config', 'get', 'mds_reconnect_timeout').out)['mds_reconnect_timeout'])
        wait(lambda: own() == 5, lambda: f'the option at the server: {own()}', pause=0.5)
        c.wait_healthy()
        assert '    mds: 1/1 daemons up, 1 standby\n' in c.ceph('-s').out
        name = self.ranks()[0]
        other = {'a': 'b', 'b': 'a'}[name]
        assert c.ceph('mds', 'stat').out.strip() == f'cephfs:1 {{0={name}=up:active}} 1 up:standby'
        assert c.ceph('fs', 'ls').out == 'name: cephfs, metadata pool: cephfs_metadata, data pools: [cephfs_data ]\n'
        facts = c.json('mds', 'metadata')
        assert [f['name'] for f in facts] == ['a', 'b'] and all('ceph_version' in f and 'addr' in f for f in facts), facts
        assert sum(c.json('mds', 'versions').values()) == 2 and sum(c.json('versions')['mds'].values()) == 2
        # Servers report to the manager every five seconds.
        wait(lambda: c.json('fs', 'status')['mdsmap'][0]['caps'], lambda: c.ceph('fs', 'status').out, pause=0.5)
        status = c.ceph('fs', 'status').out
        assert 'cephfs - 1 clients' in status and 'active' in status and f'     {other}' in status, status
        got = c.json('fs', 'status')
        assert [s['state'] for s in got['mdsmap']] == ['active', 'standby'] and got['mdsmap'][0]['caps'] >= 1, got
        apps = {p['pool_name']: p['application_metadata'] for p in c.json('osd', 'pool', 'ls', 'detail')}
        assert apps['cephfs_metadata'] == {'cephfs': {'metadata': 'cephfs'}}, apps
        sessions = json.loads(c.ceph('tell', 'mds.0', 'session', 'ls').out)
        assert len(sessions) == 1 and sessions[0]['client_metadata']['entity_id'] == 'admin', sessions

    def test_1_what_a_server_works_at_is_in_the_status(self):
        c, name = self.c, self.ranks()[0]
        block = f' \n  task status:\n    scrub status:\n        mds.{name}: paused\n \n  data:\n'
        assert 'task status' not in c.ceph('-s').out
        c.ceph('tell', 'mds.0', 'scrub', 'pause')
        wait(lambda: block in c.ceph('-s').out, 'the paused scrub in the status')
        assert c.json('service', 'dump')['services']['mds']['daemons'][name]['task_status'] == {'scrub status': 'paused'}
        assert 'mds' not in c.json('service', 'status')
        c.ceph('tell', 'mds.0', 'scrub', 'resume')
        wait(lambda: 'task status' not in c.ceph('-s').out, 'the status without it')

    def test_2_a_source_tree(self):
        """Copied in, compared by checksums, copied back, built in, cloned."""
        tree = os.path.join(HERE, '../../crates/spirula-crush')
        at, back = os.path.join(self.mnt, 'tree'), os.path.join(self.scratch, 'back')
        tar = os.path.join(self.scratch, 'tree.tar')
        self.sh('tar', 'cf', tar, '-C', tree, '.')
        os.makedirs(at)
        self.sh('tar', 'xf', tar, '-C', at)
        assert digest(at) == digest(tree)
        assert self.sh('rsync', '-acni', '--delete', tree + '/', at + '/').out == ''
        self.sh('rsync', '-a', at + '/', back + '/')
        assert self.sh('rsync', '-acni', '--delete', tree + '/', back + '/').out == ''
        if shutil.which('git'):
            origin, clone = os.path.join(self.mnt, 'origin'), os.path.join(self.mnt, 'clone')
            self.sh('git', 'init', '-q', origin)
            self.sh('rsync', '-a', at + '/', origin + '/work/')
            config = ['-c', 'user.name=x', '-c', 'user.email=x@y', '-c', 'safe.directory=*']
            self.sh('git', *config, 'add', '-A', cwd=origin)
            self.sh('git', *config, 'commit', '-qm', 'all', cwd=origin)
            self.sh('git', *config, 'clone', '-q', '--no-hardlinks', origin, clone)
            assert digest(clone + '/work') == digest(at)
            self.sh('git', *config, 'fsck', '--strict', cwd=clone)
        if shutil.which('cc') and shutil.which('make'):
            build = os.path.join(self.mnt, 'build')
            os.makedirs(build)
            for i in range(12):
                with open(f'{build}/u{i}.c', 'w') as f:
                    f.write(f'int u{i}(int x) {{ return x * {i + 3}; }}\n')
            with open(f'{build}/main.c', 'w') as f:
                f.write(''.join(f'int u{i}(int);' for i in range(12)) + 'int main(void) { return ' + '+'.join(f'u{i}(1)' for i in range(12)) + ' != 102; }\n')
            with open(f'{build}/Makefile', 'w') as f:
                f.write('O=main.o ' + ' '.join(f'u{i}.o' for i in range(12)) + '\nprog: $(O)\n\tcc -o $@ $(O)\n')
            self.sh('make', '-s', '-j4', cwd=build)
            self.sh(f'{build}/prog')

    def test_3_posix(self):
        """What programs rely on, each by itself."""
        top = os.path.join(self.mnt, 'posix')
        os.makedirs(top)
        p = lambda *n: os.path.join(top, *n)

        def refused(code, act, *args):
            try:
                act(*args)
            except OSError as e:
                assert e.errno == code, e
            else:
                raise AssertionError(f'{act} {args} went well')

        # Names.
        os.mkdir(p('d'))
        refused(errno.EEXIST, os.mkdir, p('d'))
        refused(errno.ENOENT, os.rmdir, p('none'))
        open(p('d', 'f'), 'w').close()
        refused(errno.ENOTEMPTY, os.rmdir, p('d'))
        refused(errno.ENOTDIR, os.rmdir, p('d', 'f'))
        refused(errno.EISDIR, os.unlink, p('d'))
        refused(errno.ENOTDIR, os.mkdir, p('d', 'f', 'x'))
        refused(errno.ENAMETOOLONG, os.mkdir, p('n' * 256))
        os.mkdir(p('ü' * 127))
        # Hard links, and a file that lives while it is open.
        os.link(p('d', 'f'), p('l'))
        assert os.stat(p('l')).st_nlink == 2 and os.stat(p('l')).st_ino == os.stat(p('d', 'f')).st_ino
        refused(errno.EPERM, os.link, p('d'), p('dl'))
        with open(p('open'), 'w+') as f:
            f.write('still here')
            os.unlink(p('open'))
            f.seek(0)
            assert f.read() == 'still here' and os.fstat(f.fileno()).st_nlink == 0
        # Renames: over a file, over an empty directory, never over a full one, nor into itself.
        open(p('a'), 'w').write('a')
        open(p('b'), 'w').write('b')
        os.rename(p('a'), p('b'))
        assert open(p('b')).read() == 'a' and not os.path.exists(p('a'))
        os.mkdir(p('e'))
        os.rename(p('e'), p('e2'))
        refused(errno.ENOTEMPTY, os.rename, p('e2'), p('d'))
        refused(errno.EINVAL, os.rename, p('d'), p('d', 'in'))
        refused(errno.ENOTDIR, os.rename, p('e2'), p('b'))
        refused(errno.EISDIR, os.rename, p('b'), p('e2'))
        # Symbolic links.
        os.symlink('b', p('s'))
        assert os.readlink(p('s')) == 'b' and open(p('s')).read() == 'a'
        os.symlink('s1', p('s1'))
        refused(errno.ELOOP, open, p('s1'))
        # Sizes: holes, truncation, appending from two handles.
        with open(p('h'), 'wb') as f:
            f.seek(9_000_000)
            f.write(b'end')
        assert os.stat(p('h')).st_size == 9_000_003
        with open(p('h'), 'rb') as f:
            assert f.read(5) == b'\0' * 5
            f.seek(4 << 20)
            assert f.read(1) == b'\0'
        os.truncate(p('h'), 4_000_000)
        os.truncate(p('h'), 9_000_003)
        assert open(p('h'), 'rb').read()[-3:] == b'\0\0\0'
        one, two = open(p('ap'), 'ab', buffering=0), open(p('ap'), 'ab', buffering=0)
        for i in range(20):
            (one if i % 2 else two).write(b'%02d' % i)
        assert open(p('ap'), 'rb').read() == b''.join(b'%02d' % i for i in range(20))
        refused(errno.EEXIST, os.open, p('ap'), os.O_CREAT | os.O_EXCL)
        # Modes, times, owners, as another user sees them.
        os.chmod(p('b'), 0o640)
        os.utime(p('b'), ns=(1_000_000_001, 2_000_000_003))
        os.chown(p('b'), 12345, 54321)
        s = os.stat(p('b'))
        assert (s.st_mode & 0o7777, s.st_mtime_ns, s.st_uid, s.st_gid) == (0o640, 2_000_000_003, 12345, 54321)
        os.mkfifo(p('fifo'))
        assert stat.S_ISFIFO(os.stat(p('fifo')).st_mode)
        os.setxattr(p('b'), 'user.note', b'\0\1binary')
        assert os.getxattr(p('b'), 'user.note') == b'\0\1binary' and 'user.note' in os.listxattr(p('b'))
        os.removexattr(p('b'), 'user.note')
        refused(errno.ENODATA, os.getxattr, p('b'), 'user.note')
        # A large directory.
        os.mkdir(p('many'))
        for i in range(400):
            open(p('many', f'{i:04}'), 'w').close()
        assert sorted(os.listdir(p('many'))) == [f'{i:04}' for i in range(400)]
        shutil.rmtree(p('many'))
        # mmap.
        self.sh('python3', '-c', f'''
import mmap
with open({p("map")!r}, "w+b") as f:
    f.truncate(1 << 20)
    with mmap.mmap(f.fileno(), 0) as m:
        m[5000:5005] = b"hello"
        m.flush()
assert open({p("map")!r}, "rb").read()[5000:5005] == b"hello"
''')

    def test_4_two_mounts(self):
        """One sees what the other did, locks hold between them."""
        two = self.mount('m2')
        a, b = os.path.join(self.mnt, 'both'), os.path.join(two, 'both')
        os.mkdir(a)
        for i in range(30):
            with open(f'{a}/f', 'w') as f:
                f.write(str(i))
            assert open(f'{b}/f').read() == str(i)
            os.rename(f'{b}/f', f'{b}/g')
            assert not os.path.exists(f'{a}/f') and open(f'{a}/g').read() == str(i)
            os.rename(f'{a}/g', f'{a}/f')
        f, g = open(f'{a}/f', 'r+'), open(f'{b}/f', 'r+')
        for lock in (fcntl.flock, fcntl.lockf):
            lock(f, fcntl.LOCK_EX)
            try:
                lock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise AssertionError('both have the lock')
            except OSError as e:
                assert e.errno in (errno.EAGAIN, errno.EACCES), e
            lock(f, fcntl.LOCK_UN)
            lock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock(g, fcntl.LOCK_UN)
        # A counter that both count up under a lock misses nothing. The kernel's page cache has to stay out of it: ceph-fuse tells it
        # of a change only after the fact.
        a, b = (os.path.join(self.mount(m, 'client.admin', '--fuse_disable_pagecache=true'), 'both') for m in ('n1', 'n2'))
        open(f'{a}/n', 'w').write('0')

        def count(path):
            for _ in range(25):
                with open(path, 'r+') as n:
                    fcntl.flock(n, fcntl.LOCK_EX)
                    v = int(n.read())
                    n.seek(0)
                    n.write(str(v + 1))
                    n.flush()
                    fcntl.flock(n, fcntl.LOCK_UN)
        threads = [threading.Thread(target=count, args=(f'{m}/n',)) for m in (a, b)]
        [t.start() for t in threads]
        [t.join(600) for t in threads]
        assert open(f'{a}/n').read() == '50'
        f.close(), g.close()
        self.unmount('n1'), self.unmount('n2')

    def test_5_layouts_and_quotas(self):
        c = self.c
        c.ceph('osd', 'erasure-code-profile', 'set', 'p21', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'p21')
        assert 'no overwrite support' in c.ceph('fs', 'add_data_pool', 'cephfs', 'ec', check=False).err
        c.ceph('osd', 'pool', 'set', 'ec', 'allow_ec_overwrites', 'true')
        assert 'added data pool' in c.ceph('fs', 'add_data_pool', 'cephfs', 'ec').err
        d = os.path.join(self.mnt, 'coded')
        os.mkdir(d)
        wait(lambda: subprocess.run(['setfattr', '-n', 'ceph.dir.layout.pool', '-v', 'ec', d], capture_output=True).returncode == 0,
             'the new pool at the client', pause=0.5)
        data = random.randbytes(9_000_001)
        with open(f'{d}/f', 'wb') as f:
            f.write(data)
        with open(f'{d}/f', 'r+b') as f:
            f.seek(5_000_000)
            f.write(b'over')
            os.fsync(f.fileno())
        data = data[:5_000_000] + b'over' + data[5_000_004:]
        two = self.mounts['m2'][1]
        assert open(f'{two}/coded/f', 'rb').read() == data
        assert 'pool=ec' in self.sh('getfattr', '--only-values', '-n', 'ceph.file.layout', f'{d}/f').out
        ino = '%x' % os.stat(f'{d}/f').st_ino
        assert f'{ino}.00000002' in c.rados('-p', 'ec', 'ls').out.split()
        # Smaller objects for another file.
        open(f'{d}/small', 'w').close()
        self.sh('setfattr', '-n', 'ceph.file.layout', '-v', 'stripe_unit=65536 stripe_count=3 object_size=131072', f'{d}/small')
        with open(f'{d}/small', 'wb') as f:
            f.write(data[:1_000_000])
        assert open(f'{two}/coded/small', 'rb').read() == data[:1_000_000]
        # Quotas.
        q = os.path.join(self.mnt, 'quota')
        os.mkdir(q)
        self.sh('setfattr', '-n', 'ceph.quota.max_files', '-v', '5', q)
        self.sh('setfattr', '-n', 'ceph.quota.max_bytes', '-v', '4000000', q)
        assert self.sh('getfattr', '--only-values', '-n', 'ceph.quota.max_files', q).out == '5'
        made = itertools.count()

        def one_more():
            try:
                open(f'{q}/{next(made)}', 'w').close()
            except OSError as e:
                return e.errno
            return None
        # How many there are is counted a moment later, and how long that takes is not said.
        assert wait(one_more, 'the quota of files') == errno.EDQUOT

        def fill():
            try:
                with open(f'{q}/0', 'ab') as f:
                    f.write(bytes(1_000_000))
                    os.fsync(f.fileno())
            except OSError as e:
                return e.errno
            return None
        assert wait(fill, 'the quota of bytes', pause=0.2) == errno.EDQUOT

    def test_6_snapshots(self):
        d = os.path.join(self.mnt, 'snapped')
        os.mkdir(d)
        rounds = {}
        for i in range(3):
            for j in range(5):
                with open(f'{d}/f{j}', 'wb') as f:
                    f.write(random.randbytes(300_000))
            os.mkdir(f'{d}/.snap/s{i}')
            rounds[i] = {j: open(f'{d}/f{j}', 'rb').read() for j in range(5)}
        os.unlink(f'{d}/f0')
        with open(f'{d}/f1', 'wb') as f:
            f.write(b'new')
        two = self.mounts['m2'][1] + '/snapped'
        for i, files in rounds.items():
            for j, data in files.items():
                assert open(f'{d}/.snap/s{i}/f{j}', 'rb').read() == data, (i, j)
                assert open(f'{two}/.snap/s{i}/f{j}', 'rb').read() == data, (i, j)
        try:
            open(f'{d}/.snap/s0/f1', 'w')
            raise AssertionError('a snapshot is written')
        except OSError as e:
            assert e.errno == errno.EROFS, e
        os.rmdir(f'{d}/.snap/s1')
        assert sorted(os.listdir(f'{d}/.snap')) == ['s0', 's2']
        queue = lambda: [q for q in self.c.json('osd', 'dump').get('removed_snaps_queue', []) if q.get('snaps')]
        wait(lambda: not queue(), lambda: f'removed snapshots are forgotten: {queue()}')
        for i in (0, 2):
            for j, data in rounds[i].items():
                assert open(f'{two}/.snap/s{i}/f{j}', 'rb').read() == data, (i, j)

    def test_7_the_active_server_is_killed(self):
        self.active()
        w = Writer(os.path.join(self.mnt, 'written'))
        w.start()
        w.goes_on()
        name = self.ranks()[0]
        began = time.time()
        os.kill(self.server(name), signal.SIGKILL)
        wait(lambda: self.ranks().get(0) not in (None, name), 'another server')
        print(f'another server is active {time.time() - began:.1f} s after the first was killed (grace 15 s)')
        w.goes_on()
        # An OSD meanwhile, and the guest comes back by itself.
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        w.goes_on()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        self.active()
        assert f'mds.{name} ended' in self.c.log(), 'it is said'
        w.ends()
        w.check()
        w.check(self.mounts['m2'][1] + '/written')
        type(self).writer = w

    def test_8_a_server_that_stands_still_is_replaced_and_fenced(self):
        """After the grace, and when it goes on it can write nothing more: it begins anew."""
        c = self.c
        w = Writer(os.path.join(self.mnt, 'still'))
        w.start()
        w.goes_on()
        name = self.ranks()[0]
        pid = self.server(name)
        was = c.json('fs', 'get', 'cephfs')['mdsmap']['last_failure_osd_epoch']
        began = time.time()
        os.kill(pid, signal.SIGSTOP)
        try:
            wait(lambda: self.ranks().get(0) not in (None, name), 'another server')
            print(f'another server is active {time.time() - began:.1f} s after the first stood still (grace 15 s)')
            w.goes_on()
            epoch = c.json('fs', 'get', 'cephfs')['mdsmap']['last_failure_osd_epoch']
            assert was < epoch <= c.json('osd', 'dump')['epoch'], (was, epoch)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.active()
        w.goes_on()
        w.ends()
        w.check()
        type(self).still = w

    def test_8_ranks_and_followers(self):
        c = self.c
        c.ceph('fs', 'set', 'cephfs', 'max_mds', '2')
        self.active(2, 0)
        self.sh('setfattr', '-n', 'ceph.dir.pin', '-v', '1', self.mnt + '/written')
        for i in range(20):
            open(f'{self.mnt}/written/pinned{i}', 'w').write(str(i))
        assert [open(f'{self.mounts["m2"][1]}/written/pinned{i}').read() for i in range(20)] == [str(i) for i in range(20)]
        wait(lambda: 'MDS_INSUFFICIENT_STANDBY' in c.ceph('health', 'detail').out, 'too few that stand by')
        c.ceph('fs', 'set', 'cephfs', 'max_mds', '1')
        self.active(1, 1)
        c.ceph('fs', 'set', 'cephfs', 'allow_standby_replay', 'true')
        wait(lambda: 'hot standby' in c.ceph('-s').out, lambda: c.ceph('-s').out)
        name = self.ranks()[0]
        c.ceph('mds', 'fail', name)
        wait(lambda: self.ranks().get(0) not in (None, name), lambda: c.ceph('fs', 'dump').out)
        self.writer.check()
        c.ceph('fs', 'set', 'cephfs', 'allow_standby_replay', 'false')
        self.active()

    def test_9_a_client_is_evicted(self):
        c = self.c
        made = c.ceph('fs', 'authorize', 'cephfs', 'client.u', '/', 'r', '/both', 'rw').out
        keyring = os.path.join(self.c.dir, 'ceph.client.u.keyring')
        with open(keyring, 'w') as f:
            f.write(made)
        at = self.mount('m3', 'client.u')
        open(f'{at}/both/mine', 'w').write('x')
        try:
            open(f'{at}/elsewhere', 'w')
            raise AssertionError('written where it may only read')
        except OSError as e:
            assert e.errno == errno.EACCES, e
        sessions = json.loads(c.ceph('tell', 'mds.0', 'session', 'ls').out)
        mine = [s for s in sessions if s['client_metadata'].get('entity_id') == 'u']
        assert len(mine) == 1, sessions
        held = open(f'{at}/both/mine', 'a')
        c.ceph('tell', 'mds.0', 'session', 'evict', f'id={mine[0]["id"]}')
        assert c.json('osd', 'blocklist', 'ls')
        # Each OSD must have heard of it: until then it takes what the evicted one sends.
        epoch = c.json('osd', 'dump')['epoch']
        wait(lambda: all(c.json('tell', f'osd.{o}', 'status')['newest_map'] >= epoch for o in range(3)), 'the blocklist at each OSD')
        held.write('lost')
        try:
            held.flush()
            os.fsync(held.fileno())
            raise AssertionError('an evicted client writes')
        except OSError:
            pass
        try:
            held.close()
        except OSError:
            pass
        self.unmount('m3')
        assert open(f'{self.mnt}/both/mine').read() == 'x'
        # Who is let into one filesystem knows of no other.
        for pool in ('other_meta', 'other_data'):
            c.ceph('osd', 'pool', 'create', pool, '8')
        c.ceph('fs', 'new', 'other', 'other_meta', 'other_data')
        as_u = lambda *words: self.sh('ceph', '-c', c.conf, '-n', 'client.u', '--keyring', keyring, *words, code=None)
        assert 'name: other' in c.ceph('fs', 'ls').out
        seen = as_u('fs', 'ls').out
        assert 'name: cephfs' in seen and 'other' not in seen, seen
        assert "'other'" not in as_u('fs', 'dump').out and 'other' not in as_u('mds', 'stat').out
        assert as_u('fs', 'get', 'other').code == errno.ENOENT
        refused = as_u('fs', 'set', 'other', 'max_mds', '2')
        assert refused.code != 0, refused
        at = os.path.join(self.scratch, 'other')
        os.makedirs(at)
        mounts = ['ceph-fuse', '-f', '-c', c.conf, '-n', 'client.u', '--client_fs=other', '--client_mount_timeout=5', at]
        assert self.sh(*mounts, code=None).code != 0 and not os.path.ismount(at)
        c.ceph('fs', 'fail', 'other')
        c.ceph('fs', 'rm', 'other', '--yes-i-really-mean-it')
        self.active()

    def test_a_everything_is_killed(self):
        for name in list(self.mounts):
            self.unmount(name)
        servers = [self.server(n) for n in 'ab']
        assert all(servers)
        self.c.kill()
        # Also those that lost their rank meanwhile and began anew.
        wait(lambda: all(gone(s) for s in servers), 'the servers to go with their cluster')
        self.c.up('--with', 'mds')
        assert all(gone(s) for s in servers) and all(self.server(n) for n in 'ab')
        self.active()
        self.mnt = self.mount('m1')
        self.writer.check(self.mnt + '/written')
        self.still.check(self.mnt + '/still')
        assert digest(f'{self.mnt}/tree') == digest(os.path.join(HERE, '../../crates/spirula-crush'))
        self.active()

    def test_b_down_stops_the_servers_and_up_goes_on_without_them(self):
        for name in list(self.mounts):
            self.unmount(name)
        servers = [self.server(n) for n in 'ab']
        assert all(servers)
        self.c.down()
        assert all(gone(s) for s in servers)
        said = self.c.up().out
        assert self.server('a') is None
        assert 'Not started this time' in said and f"'spirula up --dir {self.c.dir} --with mds'" in said, said
        wait(lambda: 'MDS_ALL_DOWN' in self.c.ceph('health', 'detail').out or 'laggy' in self.c.ceph('mds', 'stat').out,
             lambda: self.c.ceph('health', 'detail').out)
        self.c.ceph('fs', 'fail', 'cephfs')
        self.c.ceph('fs', 'rm', 'cephfs', '--yes-i-really-mean-it')
        assert self.c.ceph('fs', 'ls').out == 'No filesystems enabled\n'
