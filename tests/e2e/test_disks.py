"""Disks that go bad, files that go away, file systems that fill up under `spirula up`: one OSD's trouble, never the
cluster's; told, with what to do; and nothing that was acknowledged is lost."""
import json, os, random, shutil, struct, subprocess
from harness import PATIENCE, Case, Cluster, Skip, gone, wait
from test_bad_stores import COPIES, crc32c

MIB = 1 << 20


class Disk:
    """An ext4 of its own, in a file of `size` bytes, mounted at `at`."""

    def __init__(self, scratch, at, size):
        if os.geteuid() != 0:
            raise Skip('mounting needs root')
        self.at, self.file = at, os.path.join(scratch, 'disk.img')
        os.makedirs(at)
        with open(self.file, 'wb') as f:
            f.truncate(size)
        for argv in (['mkfs.ext4', '-q', '-F', '-m', '0', self.file], ['mount', '-o', 'loop,errors=remount-ro', self.file, at]):
            try:
                r = subprocess.run(argv, capture_output=True, text=True)
            except FileNotFoundError:
                raise Skip(f'{argv[0]} is not here')
            if r.returncode:
                raise Skip(f'{" ".join(argv)}: {r.stderr.strip()}')
        shutil.rmtree(os.path.join(at, 'lost+found'), ignore_errors=True)

    def abort(self):
        """As the kernel does after an error of the device: nothing is written any more."""
        r = subprocess.run(['mount', '-o', 'remount,abort', self.at], capture_output=True, text=True)
        if r.returncode:
            subprocess.run(['mount', '-o', 'remount,ro', self.at], check=True)

    def again(self):
        """Unmounted, checked, mounted."""
        self.leave()
        subprocess.run(['fsck.ext4', '-fy', self.file], capture_output=True)
        subprocess.run(['mount', '-o', 'loop', self.file, self.at], check=True)

    def free(self):
        s = os.statvfs(self.at)
        return s.f_bavail * s.f_frsize

    def leave(self):
        try:
            wait(lambda: subprocess.run(['umount', self.at], capture_output=True).returncode == 0, f'nobody to use {self.at}', 10)
        except AssertionError:
            subprocess.run(['umount', '-l', self.at], capture_output=True)


class Disks(Case):
    """What every test here needs."""
    errors_expected = True
    pool = 'data'

    def put(self, name, size=100_000, check=True, timeout=PATIENCE):
        path = os.path.join(self.scratch, f'in-{name}')
        with open(path, 'wb') as f:
            f.write((name.encode() * size)[:size])
        argv = self.clients.wrap(['timeout', str(timeout), 'rados', '-c', self.c.conf, '-p', self.pool, 'put', name, path])
        r = subprocess.run(argv, capture_output=True, text=True)
        assert not check or r.returncode == 0, f'put {name}: {r}'
        return r.returncode == 0

    def same(self, *names, size=100_000):
        for n in names:
            out = os.path.join(self.scratch, 'out')
            self.c.rados('-p', self.pool, 'get', n, out)
            assert open(out, 'rb').read() == (n.encode() * size)[:size], n

    def osd(self, n, name='block'):
        return os.path.join(self.c.dir, f'osd.{n}', name)

    def checks(self):
        return self.c.json('health', 'detail')['checks']


class BadDisk(Disks):
    """One OSD's store is not what it was when the cluster starts."""
    args = ['--osds', '3', '--osd-size', '1G']

    def spoiled(self, spoil, *words):
        """Spoils osd.1's store while the cluster is down; it starts without it, and the one command heals it."""
        self.n = getattr(self, 'n', 0) + 1
        before, after = f'before-{self.n}', f'after-{self.n}'
        self.put(before)
        self.c.down()
        spoil()
        up = self.c.up()
        health = wait(lambda: self.checks().get('OSD_STORE_UNUSABLE'), 'OSD_STORE_UNUSABLE')
        assert health['severity'] == 'HEALTH_ERR' and health['summary']['count'] == 1, health
        detail = health['detail'][0]['message']
        command = f'spirula osd recreate 1 --dir {self.c.dir}'
        assert detail.startswith('osd.1: ') and command in detail, detail
        assert all(w in detail for w in words), (words, detail)
        assert command in up.out and command in self.c.spirula('status', '--dir', self.c.dir).out, up
        # Two good copies serve, reading and writing.
        self.same(before)
        self.put(after)
        self.c.spirula(*command.split()[1:])
        wait(lambda: 'OSD_STORE_UNUSABLE' not in self.checks(), 'no more trouble')
        self.c.wait_clean()
        self.same(before, after)
        # It is a copy of its own: the two others are not needed for it.
        pgs = self.c.json('pg', 'ls')['pg_stats']
        assert all(sorted(p['acting']) == [0, 1, 2] for p in pgs), pgs
        # And it is there after a restart.
        self.c.down()
        self.c.up()
        self.c.wait_clean()
        self.same(before, after)

    def test_1_missing(self):
        self.spoiled(lambda: os.remove(self.osd(1)), 'is missing')

    def test_2_zeroed(self):
        def zero():
            size = os.path.getsize(self.osd(1))
            with open(self.osd(1), 'r+b') as f:
                f.truncate(0)
                f.truncate(size)
        self.spoiled(zero, 'no spirula store')
        # What was there is kept.
        assert [n for n in os.listdir(self.c.dir) if n.startswith('old-') and n.endswith('-osd.1')]

    def test_3_cut(self):
        self.spoiled(lambda: os.truncate(self.osd(1), 300 * MIB), 'superblock says')

    def test_4_of_before(self):
        old = os.path.join(self.scratch, 'old-block')
        self.c.down()
        subprocess.run(['cp', '--sparse=always', self.osd(1), old], check=True)
        self.c.up()
        self.spoiled(lambda: shutil.move(old, self.osd(1)), 'old copy')

    def test_5_the_command_is_refused_where_nothing_is_wrong(self):
        r = self.c.spirula('osd', 'recreate', '1', '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'is running' in r.err, r
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        r = self.c.spirula('osd', 'recreate', '1', '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'was stopped' in r.err, r
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        self.c.wait_clean()

    def test_6_all_of_them(self):
        self.c.down()
        kept = [self.osd(n) + '.kept' for n in range(3)]
        for n in range(3):
            os.rename(self.osd(n), kept[n])
        r = self.c.up(check=False)
        assert r.code == 1 and 'osd.0 cannot start' in r.err and 'panicked' not in r.err, r
        for n in range(3):
            os.rename(kept[n], self.osd(n))
        self.c.up()
        self.c.wait_clean()

    def test_7_removed_while_it_runs(self):
        self.put('early')
        os.remove(self.osd(2))
        health = wait(lambda: self.checks().get('OSD_STORE_UNUSABLE'), 'OSD_STORE_UNUSABLE')
        assert 'was removed' in health['detail'][0]['message'], health
        wait(lambda: 'OSD_DOWN' in self.checks(), 'OSD_DOWN')
        self.put('late')
        self.c.spirula('osd', 'recreate', '2', '--dir', self.c.dir)
        self.c.wait_clean()
        self.same('early', 'late')

    def test_8_every_osd_gone(self):
        for n in range(3):
            os.remove(self.osd(n))
        three = lambda code: self.checks().get(code, {}).get('summary', {}).get('count') == 3
        wait(lambda: three('OSD_DOWN') and three('OSD_STORE_UNUSABLE'), lambda: f'three OSDs down and without a store: {self.checks()}')
        assert not self.put('never', check=False, timeout=3)
        # What is left of the stores is all there is: none may be made anew.
        wait(lambda: 'stale' in self.c.ceph('pg', 'stat').out, 'the PGs to be stale')
        r = self.c.spirula('osd', 'recreate', '1', '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'only copy' in r.err, r


class HostileImages(Disks):
    """Images of osd.1 with impossible values under right checksums, or with garbage anywhere: the cluster starts, with that
    OSD or without it, serves everything, and no thread of it panics."""
    args = ['--osds', '3', '--osd-size', '1G']
    # Fields of the superblock: size, openings, generation, journal's place and size, data's, checkpoint, frame, position.
    FIELDS = (88, 96, 104, 128, 136, 160, 168, 176, 184, 192)
    VALUES = (0, 1, (1 << 32) - 1, 1 << 52, (1 << 64) - 4096)

    def mutate(self, rng, f):
        size = os.path.getsize(self.osd(1))
        kind = rng.choice(['field', 'field', 'root', 'garbage', 'zeros'])
        if kind in ('field', 'root'):
            f.seek(0)
            b = bytearray(f.read(4096))
            if kind == 'field':
                struct.pack_into('<Q', b, rng.choice(self.FIELDS), rng.choice(self.VALUES))
            else:
                at = b.find(b'SPTR')
                assert at > 0, 'no root of the metadata'
                struct.pack_into('<Q', b, at + rng.choice([8, 28, 36, 44, 52, 60]), rng.choice(self.VALUES))
                struct.pack_into('<I', b, at - 4, crc32c(b[at:at + 124]))
            b[4092:] = struct.pack('<I', crc32c(b[:4092]))
            for at in COPIES:
                f.seek(at)
                f.write(b)
        else:
            for _ in range(20):
                # The beginning is where most is.
                at = rng.randrange(min(size, rng.choice([256 << 10, 64 * MIB, size])) - 5000)
                f.seek(at)
                f.write(rng.randbytes(rng.choice([1, 8, 4096])) if kind == 'garbage' else bytes(4096))

    def test_hostile_images_cost_one_osd_at_most(self):
        names = [f'o{n}' for n in range(12)]
        for n in names:
            self.put(n)
        self.c.down()
        good = os.path.join(self.scratch, 'good')
        opened = os.path.join(self.c.dir, 'opened-osd.1')
        subprocess.run(['cp', '-a', '--sparse=always', os.path.join(self.c.dir, 'osd.1'), good], check=True)
        rng, without = random.Random(5), 0
        for n in range(14):
            shutil.rmtree(os.path.join(self.c.dir, 'osd.1'))
            subprocess.run(['cp', '-a', '--sparse=always', good, os.path.join(self.c.dir, 'osd.1')], check=True)
            if os.path.exists(opened):
                os.remove(opened)
            with open(self.osd(1), 'r+b') as f:
                self.mutate(rng, f)
            self.c.up()
            self.same(*names)
            # An OSD that meets damage later than at its start counts as well.
            osds = json.loads(self.c.spirula('status', '--dir', self.c.dir, '--json').out)['osds']
            without += any(not o['running'] for o in osds)
            self.put(f'late-{n}')
            names.append(f'late-{n}')
            self.c.down()
            assert 'panicked' not in self.c.log(), (n, self.c.log()[-3000:])
        print(f'14 images: {without} times without the OSD', flush=True)
        assert without > 0, 'all of them were taken'


class Backup(Disks):
    """A copy of a running cluster is whole, and runs."""
    args = ['--osds', '3', '--osd-size', '1G']
    # One thread appends numbers to an object, each acknowledged; the other counts.
    APPEND = """
import rados, sys, time
c = rados.Rados(conffile=sys.argv[1]); c.connect()
io = c.open_ioctx('data')
import os
n = 0
while not os.path.exists(sys.argv[2]):
    io.append('numbers', b'%08d' % n)
    n += 1
    print(n, flush=True)
io.close(); c.shutdown()
"""

    def numbers(self):
        out = os.path.join(self.scratch, 'numbers')
        self.c.rados('-p', self.pool, 'get', 'numbers', out)
        data = open(out, 'rb').read()
        assert data == b''.join(b'%08d' % n for n in range(len(data) // 8)), data[-100:]
        return len(data) // 8

    def test_copy_of_a_running_cluster_is_whole_and_runs(self):
        self.put('some')
        stop = os.path.join(self.scratch, 'stop')
        p = self.c.python(self.APPEND, stop, wait=False)
        acked = [int(p.stdout.readline()) for _ in range(50)][-1]
        to = os.path.join(self.scratch, 'copy')
        r = self.c.spirula('backup', to, '--dir', self.c.dir, '--json')
        assert json.loads(r.out)['bytes'] > 3 << 30, r
        open(stop, 'w').close()
        out, err = p.communicate(timeout=240)
        assert p.returncode == 0, err
        last = int(out.split()[-1])
        assert last > acked, 'it went on'
        self.c.wait_clean()
        assert self.numbers() == last
        r = self.c.spirula('backup', to, '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'must not be there' in r.err, r
        self.c.down()
        for n in range(3):
            self.c.spirula('store', 'check', os.path.join(to, f'osd.{n}'))
        assert sum(f.stat().st_blocks * 512 for d in os.scandir(to) if d.is_dir() for f in os.scandir(d)) < 2 << 30
        original, self.c.dir, self.c.conf = self.c.dir, to, os.path.join(to, 'ceph.conf')
        self.c.up()
        self.c.wait_clean()
        self.same('some')
        assert acked <= self.numbers() <= last
        self.put('more')
        self.c.down()
        # And of one that is stopped.
        again = os.path.join(self.scratch, 'again')
        self.c.spirula('backup', again, '--dir', to)
        shutil.rmtree(to)
        self.c.dir, self.c.conf = again, os.path.join(again, 'ceph.conf')
        self.c.up()
        self.c.wait_clean()
        self.same('some', 'more')
        self.c.down()
        self.c.dir, self.c.conf = original, os.path.join(original, 'ceph.conf')
        self.c.up()
        self.c.wait_clean()


class GoneDir(Disks):
    """The whole directory is deleted under a running cluster."""
    args = ['--osds', '3', '--osd-size', '1G']

    def test_deleted_dir_ends_the_cluster(self):
        self.put('some')
        pid = self.c.pid()
        os.rename(self.c.dir, self.c.dir + '-gone')
        wait(lambda: gone(pid), f'the end of process {pid}')
        log = open(os.path.join(self.c.dir + '-gone', 'spirula.log')).read()
        assert 'was removed while the cluster ran' in log and 'panicked' not in log, log[-2000:]
        # It was only moved: everything acknowledged is there.
        os.rename(self.c.dir + '-gone', self.c.dir)
        self.c.up()
        self.c.wait_clean()
        self.same('some')

    def test_removed_file_by_file_it_ends_and_acknowledges_nothing_more(self):
        pid, conf = self.c.pid(), os.path.join(self.scratch, 'outside.conf')
        # A client keeps what it needs elsewhere, and the log is read through what was opened before.
        with open(conf, 'w') as f:
            f.write(open(self.c.conf).read().replace(self.c.dir, self.scratch))
        for name in os.listdir(self.c.dir):
            if name.endswith('keyring'):
                shutil.copy(os.path.join(self.c.dir, name), self.scratch)
        with open(os.path.join(self.c.dir, 'spirula.log')) as log:
            shutil.rmtree(self.c.dir, ignore_errors=True)
            wait(lambda: gone(pid), f'the end of process {pid}')
            said = log.read()
        assert 'was removed while the cluster ran' in said and 'panicked' not in said, said[-2000:]
        put = subprocess.run(['timeout', '5', 'rados', '-c', conf, '-p', 'data', 'put', 'after', '/etc/hostname'], capture_output=True)
        assert put.returncode != 0, 'nobody is there to acknowledge it'
        assert not os.path.exists(os.path.join(self.c.dir, 'osd.0')), os.listdir(self.c.dir)


class Mounted(Disks):
    """Something of the cluster is on a small file system of its own, `self.disk`; `found` says what."""
    size = 3 << 30
    args = ['--osds', '3', '--osd-size', '1G']
    start = False

    def setup(self, clients):
        super().setup(clients)
        self.disk = Disk(self.scratch, os.path.join(self.scratch, 'disk'), self.size)
        self.found()

    def moved(self, osd, to):
        """An OSD's files are elsewhere from now on; the cluster is down."""
        here = os.path.join(self.c.dir, f'osd.{osd}')
        subprocess.run(['cp', '-a', '--sparse=always', here, to], check=True)
        shutil.rmtree(here)
        os.symlink(os.path.join(to, f'osd.{osd}'), here)

    def teardown(self):
        if hasattr(self, 'disk'):
            self.c.down(check=False)
            self.disk.leave()
        super().teardown()


class OnDisk(Mounted):
    """The cluster's whole directory is on it."""

    def found(self):
        self.c = Cluster(self.scratch, self.clients, name='disk/c', args=['--osds', '2', '--osd-size', '1G', '--pool-size', '2'])
        self.c.up()


class ReadOnlyDisk(OnDisk):

    def test_aborted_file_system_stops_the_cluster_with_all_that_was_acknowledged(self):
        done = [f'o{n}' for n in range(10)]
        for n in done:
            self.put(n)
        pid = self.c.pid()
        self.disk.abort()
        put = self.put('never', check=False, timeout=5)
        wait(lambda: gone(pid), f'the end of process {pid}')
        r = self.c.spirula('status', '--dir', self.c.dir, check=False)
        assert r.code == 3 and 'not running' in r.err, r
        self.disk.again()
        assert 'panicked' not in self.c.log(), self.c.log()[-3000:]
        self.c.up()
        self.c.wait_clean()
        self.same(*done, *(['never'] if put else []))


class Destroyed(Case):
    args = ['--osds', '3', '--osd-size', '1G']

    def test_a_destroyed_osd_comes_back_as_a_new_one_alone(self):
        self.c.rados('-p', 'data', 'put', 'o', '/etc/hostname')
        self.c.spirula('osd', 'stop', '2', '--dir', self.c.dir)
        self.c.ceph('osd', 'destroy', '2', '--force', '--yes-i-really-mean-it')
        self.c.spirula('osd', 'start', '2', '--dir', self.c.dir)
        wait(lambda: 'osd.2 may not come up: it was destroyed' in self.c.ceph('log', 'last', '20').out, 'a word of what to do')
        assert self.c.json('osd', 'stat')['num_up_osds'] == 2
        self.c.spirula('osd', 'recreate', '2', '--dir', self.c.dir)
        wait(lambda: self.c.json('osd', 'stat')['num_up_osds'] == 3, 'three OSDs')
        self.c.wait_clean()

    def test_one_whose_number_was_given_away_or_that_failed_half_way_is_made_anew(self):
        # By hand, as the word in the log says, but for a store that nobody has.
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        self.c.ceph('osd', 'destroy', '1', '--force', '--yes-i-really-mean-it')
        self.c.ceph('osd', 'new', '6f3a0c5e-1111-4222-8333-94a5b6c7d8e9', '1')
        key = os.path.join(self.c.dir, 'ceph.osd.1.keyring')
        os.rename(key, key + '.away')
        os.mkdir(key)
        r = self.c.spirula('osd', 'recreate', '1', '--dir', self.c.dir, check=False)
        assert r.code and 'keyring' in r.err, r
        os.rmdir(key)
        self.c.spirula('osd', 'recreate', '1', '--dir', self.c.dir)
        wait(lambda: self.c.json('osd', 'stat')['num_up_osds'] == 3, 'three OSDs')
        self.c.wait_clean()


class LostLog(Mounted):
    """One OSD's store, and the cluster's log, are on a file system that becomes read-only; all else is well."""
    size = 2 << 30

    def found(self):
        self.c.up()
        self.c.down()
        self.moved(1, self.disk.at)
        log = os.path.join(self.c.dir, 'spirula.log')
        os.remove(log)
        os.symlink(os.path.join(self.disk.at, 'log'), log)
        self.c.up()
        self.c.wait_clean()

    def test_the_osd_stops_with_a_reason_and_nothing_else_does(self):
        done = [f'o{n}' for n in range(20)]
        for n in done:
            self.put(n)
        pid = self.c.pid()
        self.disk.abort()
        for n in range(20, 40):
            done.append(f'o{n}')
            self.put(done[-1])
        health = wait(lambda: self.checks().get('OSD_STORE_UNUSABLE'), 'OSD_STORE_UNUSABLE')
        assert 'osd.1: ' in health['detail'][0]['message'], health
        # Threads that would have panicked serve: every OSD that is left, the manager, the monitor, new clients.
        os.kill(pid, 0)
        self.same(*done)
        self.c.ceph('osd', 'pool', 'create', 'another')
        wait(lambda: self.c.json('osd', 'stat')['num_up_osds'] == 2, 'two OSDs')
        assert self.c.pid() == pid
        self.c.spirula('osd', 'recreate', '1', '--dir', self.c.dir)
        self.c.wait_clean()
        self.same(*done)


class FullDisk(OnDisk):

    def test_others_fill_it_and_make_room_again(self):
        self.put('first')
        ballast = os.path.join(self.disk.at, 'ballast')
        pid = self.c.pid()
        acked, n = ['first'], 0
        with open(ballast, 'wb', buffering=0) as f:
            def fill():
                # To the last block.
                for size in (MIB, 65536, 4096):
                    try:
                        while f.write(b'x' * size) == size:
                            pass
                    except OSError:
                        pass
            fill()
            # Nothing that is written is lost; reads go on; it is told.
            told = lambda: {'OSD_FULL', 'OSD_STORE_UNUSABLE'} & set(self.checks())

            def full():
                nonlocal n
                fill()
                n += 1
                # Some are taken and some are not; either is right.
                if self.put(f'w{n}', check=False, timeout=3):
                    acked.append(f'w{n}')
                return 'OSD_FULL' in told()
            wait(full, lambda: self.c.ceph('health', 'detail').out)
            self.same(*acked)
        assert self.c.pid() == pid and not os.path.exists(f'/proc/{pid}/nothing')
        os.kill(pid, 0)
        os.remove(ballast)
        wait(lambda: not told(), 'no full OSD')
        self.put('last')
        self.c.wait_clean()
        self.same(*acked, 'last')
        assert 'panicked' not in self.c.log()


class FullMon(OnDisk):
    """Only the monitor is on the small file system: nobody there gives any room back."""
    # Sets keys until one is not acknowledged, which a monitor that has room was never seen to need a second for.
    SET = '''
import json, rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_mon_op_timeout': '20'}) as r:
    for n in range(400):
        try:
            code = r.mon_command(json.dumps({'prefix': 'config-key set', 'key': f'key{n}'}), b'v' * 60_000)[0]
        except rados.Error:
            code = 'late'
        if code:
            print('refused', code, flush=True)
            break
        print(f'key{n}', flush=True)
'''

    def found(self):
        super().found()
        self.c.down()
        for n in range(2):
            self.moved(n, self.scratch)
        self.c.up()
        self.c.wait_clean()

    def test_monitor_goes_on_and_waits_and_goes_on(self):
        self.put('first')
        ballast, pid = os.path.join(self.disk.at, 'ballast'), self.c.pid()
        with open(ballast, 'wb', buffering=0) as f:
            for size in (MIB, 65536, 4096):
                try:
                    while f.write(b'x' * size) == size:
                        pass
                except OSError:
                    pass
            os.fsync(f.fileno())
            # There is room ahead for a while; then what is not written is not acknowledged.
            said = self.c.python(self.SET, check=False).out.splitlines()
            acked = [l for l in said if l.startswith('key')]
            refused = len(acked) < len(said)
            assert len(acked) > 20, (acked, self.c.log()[-2000:])
            # Data does not need the monitor.
            self.same('first')
            os.kill(pid, 0)
        os.remove(ballast)
        self.c.ceph('config-key', 'set', 'last', 'x')
        assert self.c.pid() == pid
        for k in (acked[0], acked[-1]):
            assert len(self.c.ceph('config-key', 'get', k).out.strip()) == 60_000, k
        print(f'{len(acked)} values taken on a full file system, then {"it waited" if refused else "no end"}', flush=True)
        self.c.down()
        self.c.up()
        self.c.wait_clean()
        assert len(self.c.ceph('config-key', 'get', acked[-1]).out.strip()) == 60_000
