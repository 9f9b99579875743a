"""Ceph 18.2's daemons, of Debian 13, as guests of `spirula up`: ceph-mds, radosgw; and ceph-fuse and libcephfs of both Debians on the former."""
import json, os, shutil, signal, subprocess, time
from harness import Skip, wait
from reef import Reef
from test_cephfs import CephFs, Writer, digest
from test_libcephfs import PROGRAM
from test_s3 import S3, Gateway

HERE = os.path.dirname(os.path.abspath(__file__))


class WithReef:
    """A class of tests whose cluster has these programs of the other Debian."""
    programs = ()

    def setup(self, clients):
        if clients.root:
            raise Skip('both Debians are used already')
        self.reef = Reef(*self.programs)
        # Its scratch folder is there when the cluster is not yet started.
        enter = clients.enter
        try:
            clients.enter = lambda scratch: (enter(scratch), self.reef.enter(scratch))
            super().setup(clients)
        finally:
            clients.enter = enter

    def teardown(self):
        super().teardown()
        if hasattr(self, 'reef'):
            self.reef.leave()


class ReefFiles(WithReef, CephFs):
    minutes = 1
    programs = ('ceph-mds', 'ceph-fuse')

    def point(self, name):
        return self.reef.inside(super().point(name))

    def test_1_two_servers_of_18_2(self):
        c = self.c
        c.ceph('config', 'set', 'mds', 'mds_reconnect_timeout', '5')
        self.active()
        assert all('version 18.2.' in v for v in c.json('mds', 'versions')) and sum(c.json('mds', 'versions').values()) == 2
        c.wait_healthy()
        at = os.path.join(self.mnt, 'tree')
        tree = os.path.join(HERE, '../../crates/spirula-crush')
        shutil.copytree(tree, at, symlinks=True)
        assert digest(at) == digest(tree)
        assert subprocess.run(['rsync', '-acni', '--delete', tree + '/', at + '/'], capture_output=True, text=True).stdout == ''
        os.mkdir(f'{at}/.snap/one')
        shutil.rmtree(f'{at}/src')
        assert digest(f'{at}/.snap/one') == digest(tree)
        os.rmdir(f'{at}/.snap/one')
        [session] = json.loads(c.ceph('tell', 'mds.0', 'session', 'ls').out)
        assert 'version 18.2.' in str(session['client_metadata']), session

    def test_2_libcephfs_of_both_debians(self):
        assert self.reef.python(PROGRAM, self.c.conf, 'reef') == 'good\n'
        if subprocess.run(['/usr/bin/python3', '-c', 'import cephfs'], capture_output=True).returncode == 0:
            assert self.c.python(PROGRAM, 'pacific').out == 'good\n'
        assert sorted(os.listdir(f'{self.mnt}/lib')) == ['pacific', 'reef'] or os.listdir(f'{self.mnt}/lib') == ['reef']

    def test_3_the_active_server_is_killed(self):
        self.active()
        w = Writer(os.path.join(self.mnt, 'written'))
        w.start()
        w.goes_on()
        name = self.ranks()[0]
        began = time.time()
        os.kill(self.server(name), signal.SIGKILL)
        wait(lambda: self.ranks().get(0) not in (None, name), 'another server')
        took = time.time() - began
        print(f'figure: another server of 18.2 is active {took:.1f} s after the first was killed (grace 15 s)')
        w.goes_on()
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        w.goes_on()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        self.active()
        w.end = True
        w.join(180)
        assert not w.is_alive()
        assert w.failed is None, w.failed
        w.check()

    def test_4_two_ranks(self):
        c = self.c
        c.ceph('fs', 'set', 'cephfs', 'max_mds', '2')
        self.active(2, 0)
        os.setxattr(self.mnt + '/written', 'ceph.dir.pin', b'1')
        for i in range(20):
            open(f'{self.mnt}/written/pinned{i}', 'w').write(str(i))
        c.ceph('fs', 'set', 'cephfs', 'max_mds', '1')
        self.active(1, 1)
        assert [open(f'{self.mnt}/written/pinned{i}').read() for i in range(20)] == [str(i) for i in range(20)]


class ReefS3(WithReef, Gateway):
    minutes = 1
    programs = ('radosgw', 'radosgw-admin')

    def test_0_it_is_18_2(self):
        assert ' 18.2.' in self.c.run('radosgw-admin', '--version').out

    test_1_objects = S3.test_objects_are_put_read_in_parts_copied_and_listed
    test_2_versions = S3.test_versions
    test_3_users = S3.test_who_may_do_what
    test_4_reshard = S3.test_an_index_is_moved_to_more_shards
    test_5_lifecycle = S3.test_a_lifecycle_removes_what_is_old
