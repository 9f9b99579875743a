"""cephx with Ceph's own clients: who gets in, what users may do, admin sockets."""
import json, os, stat, subprocess
import harness
from harness import Case, Cluster, wait


class Users(Case):
    args = ['--osds', '2']

    def user(self, name, *caps):
        path = os.path.join(self.scratch, f'{name}.keyring')
        out = self.c.ceph('auth', 'get-or-create', f'client.{name}', *caps).out
        with open(path, 'w') as f:
            f.write(out)
        return ['-n', f'client.{name}', '-k', path]

    def test_keyrings_are_for_their_owner_alone(self):
        files = [f for f in os.listdir(self.c.dir) if f.endswith('.keyring')]
        assert 'ceph.client.admin.keyring' in files and 'ceph.osd.1.keyring' in files, files
        for f in files:
            assert stat.S_IMODE(os.stat(os.path.join(self.c.dir, f)).st_mode) == 0o600, f
        self.c.wait_healthy()

    def test_other_users_of_the_machine_read_nothing(self):
        # What an earlier version left wide is closed at the next start.
        for at, _, files in os.walk(self.c.dir):
            if os.path.basename(at).split('.')[0] in ('mon', 'osd', 'mgr'):
                os.chmod(at, 0o755)
                for f in files:
                    os.chmod(os.path.join(at, f), 0o644)
        os.chmod(self.c.dir, 0o755)
        assert 'other users may read' in self.c.spirula('status', '--dir', self.c.dir).out
        self.c.down()
        self.c.up()
        assert 'other users may read' not in self.c.spirula('status', '--dir', self.c.dir).out
        self.c.ceph('config-key', 'set', 'secret', 'x')
        look = '''
import os, sys
seen = []
for at, dirs, files in os.walk(sys.argv[1]):
    for name in files:
        path = os.path.join(at, name)
        if os.access(path, os.R_OK) and name not in ('ceph.conf', 'mons'):
            seen.append(path)
print(sorted(seen))
'''
        r = subprocess.run(['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '/usr/bin/python3', '-c', look, self.c.dir],
                           capture_output=True, text=True, cwd='/')
        readable = eval(r.stdout)
        private = [p for p in readable if not p.endswith(('.log', '/lock', '/cluster.json', '/README', '.pid'))]
        assert r.returncode == 0 and not private, (r, private)

    def test_nobody_gets_in_without_the_right_key(self):
        admin = os.path.join(self.c.dir, 'ceph.client.admin.keyring')
        text = open(admin).read()
        wrong = os.path.join(self.scratch, 'wrong.keyring')
        key = subprocess.run(['ceph-authtool', '--gen-print-key'], capture_output=True, text=True)
        if key.returncode:
            key = text.split('key = ')[1].split()[0]
            key = key[:20] + ('A' if key[20] != 'A' else 'B') + key[21:]
        else:
            key = key.stdout.strip()
        with open(wrong, 'w') as f:
            f.write(f'[client.admin]\n\tkey = {key}\n')
        r = self.c.ceph('--connect-timeout', '5', '-k', wrong, 'health', check=False)
        assert r.code != 0 and 'HEALTH' not in r.out, r
        r = self.c.ceph('--connect-timeout', '5', '--auth-client-required', 'none', 'health', check=False)
        assert r.code != 0 and 'HEALTH' not in r.out, r
        with open(wrong, 'w') as f:
            f.write(f'[client.nobody]\n\tkey = {key}\n')
        r = self.c.ceph('--connect-timeout', '5', '-n', 'client.nobody', '-k', wrong, 'health', check=False)
        assert r.code != 0 and 'HEALTH' not in r.out, r

    def test_capabilities_bound_what_a_user_does(self):
        self.c.ceph('osd', 'pool', 'create', 'other', '8')
        self.c.rados('-p', 'data', 'put', 'seen', self.sample())
        ro = self.user('ro', 'mon', 'allow r', 'osd', 'allow r pool=data')
        assert self.c.rados(*ro, '-p', 'data', 'get', 'seen', '-').out == open(self.sample()).read()
        for argv in (['-p', 'data', 'put', 'x', self.sample()], ['-p', 'data', 'rm', 'seen'], ['-p', 'other', 'stat', 'seen'],
                     ['-p', 'data', 'setxattr', 'seen', 'a', 'b'], ['-p', 'other', 'put', 'x', self.sample()]):
            r = self.c.rados(*ro, *argv, check=False)
            assert r.code != 0 and 'Operation not permitted' in r.err, (argv, r)
        for argv in (['osd', 'pool', 'create', 'z'], ['auth', 'ls'], ['config', 'set', 'osd', 'osd_max_backfills', '2'],
                     ['auth', 'get-or-create', 'client.evil', 'mon', 'allow *'], ['tell', 'osd.0', 'version'],
                     ['tell', 'mon.a', 'version'], ['config-key', 'ls']):
            r = self.c.ceph(*ro, *argv, check=False)
            assert r.code == 13, (argv, r)
        assert 'osdmap' in self.c.ceph(*ro, '-s', '-f', 'json').out
        none = self.user('none', 'mon', 'allow r')
        r = self.c.rados(*none, '-p', 'data', 'get', 'seen', '-', check=False)
        assert r.code != 0 and 'not permitted' in r.err, r

    def test_users_of_block_images_reach_the_manager_by_their_profile(self):
        user = self.user('blocks', 'mon', 'profile rbd', 'osd', 'profile rbd', 'mgr', 'profile rbd pool=data')
        assert self.c.ceph(*user, 'rbd', 'task', 'list').out.strip() == '[]'
        # Who may ask for a task is told that there are none, which makes ceph-csi do the work itself; others may not ask.
        for pool, code in (('data', 22), ('elsewhere', 13)):
            r = self.c.ceph(*user, 'rbd', 'task', 'add', 'flatten', f'{pool}/image', check=False)
            assert r.code == code, (pool, r)
        for argv in (['osd', 'df'], ['balancer', 'status'], ['rbd', 'perf', 'image', 'stats']):
            r = self.c.ceph(*user, *argv, check=False)
            assert r.code == 13 and 'access denied' in r.err, (argv, r)
        reader = self.user('reader', 'mon', 'profile rbd-read-only', 'osd', 'profile rbd-read-only', 'mgr', 'profile rbd-read-only')
        assert self.c.ceph(*reader, 'rbd', 'mirror', 'snapshot', 'schedule', 'list').out.strip() == '{}'
        assert self.c.ceph(*reader, 'rbd', 'task', 'add', 'flatten', 'data/image', check=False).code == 13

    def test_namespaces_and_prefixes(self):
        ns = self.user('ns', 'mon', 'allow r', 'osd', 'allow rw pool=data namespace=mine, allow r pool=data object_prefix pub')
        self.c.rados(*ns, '-p', 'data', '-N', 'mine', 'put', 'a', self.sample())
        r = self.c.rados(*ns, '-p', 'data', '-N', 'yours', 'put', 'a', self.sample(), check=False)
        assert r.code != 0 and 'not permitted' in r.err, r
        self.c.rados('-p', 'data', 'put', 'public', self.sample())
        self.c.rados('-p', 'data', 'put', 'secret', self.sample())
        self.c.rados(*ns, '-p', 'data', 'stat', 'public')
        r = self.c.rados(*ns, '-p', 'data', 'stat', 'secret', check=False)
        assert r.code != 0 and 'not permitted' in r.err, r

    def test_rotated_key_is_the_only_one_that_works(self):
        old = self.user('turn', 'mon', 'allow r')
        self.c.ceph(*old, 'health')
        # Pacific's tool learns the command from the monitor.
        out = self.c.ceph('auth', 'rotate', 'client.turn').out
        new = os.path.join(self.scratch, 'turned.keyring')
        open(new, 'w').write(out)
        self.c.ceph('-n', 'client.turn', '-k', new, 'health')
        r = self.c.ceph('--connect-timeout', '5', *old, 'health', check=False)
        assert r.code != 0, r

    def test_changed_caps_count_from_the_next_connection(self):
        u = self.user('more', 'mon', 'allow r', 'osd', 'allow r pool=data')
        assert self.c.rados(*u, '-p', 'data', 'put', 'more', self.sample(), check=False).code != 0
        self.c.ceph('auth', 'caps', 'client.more', 'mon', 'allow r', 'osd', 'allow rw pool=data')
        self.c.rados(*u, '-p', 'data', 'put', 'more', self.sample())
        self.c.ceph('auth', 'rm', 'client.more')
        r = self.c.ceph('--connect-timeout', '5', *u, 'health', check=False)
        assert r.code != 0, r

    def test_new_service_keys_are_taken_by_running_daemons(self):
        self.c.ceph('auth', 'wipe-rotating-service-keys')
        self.c.rados('-p', 'data', 'put', 'wiped', self.sample())
        self.c.ceph('pg', 'stat')

    def test_librados_in_crc_and_secure_mode(self):
        for mode in ('crc', 'secure'):
            r = self.c.python('''
import rados, sys
c = rados.Rados(conffile=sys.argv[1], name='client.admin', conf={'ms_client_mode': sys.argv[2], 'ms_mon_client_mode': sys.argv[2]})
c.connect(timeout=200)
io = c.open_ioctx('data')
io.write_full('lib-' + sys.argv[2], b'x' * 300000)
assert io.read('lib-' + sys.argv[2], 300000) == b'x' * 300000
print(c.get_fsid()); c.shutdown()
''', mode)
            assert r.out.strip() == self.c.ceph('fsid').out.strip(), r


class NoAuth(Case):
    args = ['--osds', '1', '--no-auth']

    def test_cluster_without_authentication_says_so(self):
        checks = self.c.json('health')['checks']
        assert 'AUTH_NOT_REQUIRED' in checks, checks
        self.c.rados('-p', 'data', 'put', 'x', self.sample())


class AdminSockets(Case):
    args = ['--osds', '1']

    def daemon(self, *argv, check=True):
        return self.c.ceph('daemon', *argv, check=check)

    def test_ceph_daemon_speaks_with_every_daemon(self):
        if self.clients.root:
            raise harness.Skip('sockets of this machine are not in the other Debian')
        self.c.rados('-p', 'data', 'put', 'x', self.sample())
        assert json.loads(self.daemon('osd.0', 'perf', 'dump').out)['osd']['op_w'] >= 1
        assert json.loads(self.daemon('osd.0', 'status').out)['whoami'] == 0
        assert json.loads(self.daemon('mon.a', 'mon_status').out)['state'] == 'leader'
        run = os.path.join(self.c.dir, 'run')
        for name in ('mon.a', 'mgr.x', 'osd.0'):
            path = os.path.join(run, f'ceph-{name}.asok')
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            for cmd in ('help', 'version', 'git_version', 'config show', 'config diff', 'perf dump', 'perf schema',
                        'log flush', 'sessions'):
                json.loads(self.daemon(path, *cmd.split()).out)
            self.daemon(path, 'config', 'set', 'osd_max_backfills', '7')
            assert json.loads(self.daemon(path, 'config', 'get', 'osd_max_backfills').out) == {'osd_max_backfills': '7'}
        for cmd in ('dump_ops_in_flight', 'dump_historic_ops'):
            json.loads(self.daemon('osd.0', *cmd.split()).out)
        bad = self.daemon('osd.0', 'config', 'get', 'osd_max_backfils')
        assert 'ERROR' in bad.out and 'osd_max_backfills' in bad.out, bad
        assert json.loads(self.c.ceph('tell', 'osd.0', 'config', 'get', 'osd_max_backfills').out)['osd_max_backfills'] == '7'


class ThreeMonitors(Case):
    args = ['--osds', '2', '--mons', '3']

    def test_three_monitors_are_in_quorum_and_serve(self):
        # Two are a majority, which serves: the third may come a moment later.
        quorum = lambda: self.c.json('quorum_status')['quorum_names'] == ['a', 'b', 'c']
        wait(quorum, 'a quorum of three')
        self.c.ceph('osd', 'pool', 'create', 'p3', '8')
        self.c.rados('-p', 'p3', 'put', 'x', self.sample())
        assert len(json.loads(self.c.spirula('status', '--dir', self.c.dir, '--json').out)['mons']) == 3
        # They share a process: one that is removed would end with all the others.
        # That b shares one is known when b has told what it is: until then the answer is to ask again (EBUSY).
        def answer():
            r = self.c.ceph('mon', 'rm', 'b', check=False)
            assert r.code != 16 or 'has not said yet what it is' in r.err, r
            return r.code != 16 and r
        r = wait(answer, 'mon.b to have said what it is')
        assert r.code == 95 and 'spirula up' in r.err, r
        assert [m['name'] for m in self.c.json('mon', 'dump')['mons']] == ['a', 'b', 'c']
        wait(quorum, 'a quorum of three, still')
        self.c.down()
        self.c.up()
        assert self.c.rados('-p', 'p3', 'get', 'x', '-').out == open(self.sample()).read()
