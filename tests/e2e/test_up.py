"""`spirula up`, `down`, `status`: what a new user types first."""
import json, os, signal, socket, subprocess, time
import harness
from harness import Case, Cluster


class Up(Case):
    start = False

    def test_new_cluster_is_ready_and_takes_the_next_put(self):
        r = self.c.up()
        assert 'ready in' in r.out and 'export CEPH_CONF=' in r.out, r
        self.c.rados('-p', 'data', 'put', 'hello', self.sample())
        assert self.c.rados('-p', 'data', 'get', 'hello', '-').out == open(self.sample()).read()
        self.c.wait_healthy()

    def test_second_up_says_that_it_is_running(self):
        r = self.c.up(check=False)
        assert r.code == 3 and 'running already' in r.err and str(self.c.pid()) in r.err, r

    def test_status_shows_the_cluster_in_words_and_json(self):
        self.c.wait_healthy()
        r = self.c.spirula('status', '--dir', self.c.dir)
        assert 'running' in r.out and 'osd.0: running' in r.out and 'HEALTH_OK' in r.out, r
        v = json.loads(self.c.spirula('status', '--dir', self.c.dir, '--json').out)
        assert v['pid'] == self.c.pid() and len(v['osds']) == 3, v

    def test_down_stops_it_and_up_brings_the_data_back(self):
        self.c.rados('-p', 'data', 'put', 'kept', self.sample())
        fsid = self.c.ceph('fsid').out
        self.c.down()
        r = self.c.down(check=False)
        assert r.code == 3 and 'not running' in r.err, r
        r = self.c.spirula('status', '--dir', self.c.dir, check=False)
        assert r.code == 3 and 'not running' in r.err, r
        self.c.up()
        assert self.c.ceph('fsid').out == fsid
        assert self.c.rados('-p', 'data', 'get', 'kept', '-').out == open(self.sample()).read()

    def test_fixed_options_cannot_change_later(self):
        self.c.down()
        r = self.c.up('--osds', '5', check=False)
        assert r.code == 1 and '--osds 5' in r.err and 'made with 3' in r.err, r
        self.c.up('--osds', '3')

    def test_ctrl_c_is_a_clean_stop(self):
        d = Cluster(self.scratch, self.clients, 'fg')
        p = subprocess.Popen([harness.BINARY, 'up', '--dir', d.dir, '--port', str(d.port), '--osds', '1'],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = ''
        while 'ready in' not in line:
            line = p.stdout.readline()
            assert line, p.stderr.read()
        d.rados('-p', 'data', 'put', 'x', self.sample())
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=120)
        assert p.returncode == 0 and 'stopped' in out and err == '', (p.returncode, out, err)
        d.up()
        assert d.rados('-p', 'data', 'get', 'x', '-').out == open(self.sample()).read()
        d.down()

    def test_a_log_that_is_a_file_is_plain_text(self):
        d = Cluster(self.scratch, self.clients, 'plain')
        r = subprocess.run([harness.BINARY, 'up', '--dir', d.dir, '--port', str(d.port), '--osds', '1', '--osd-size', '1G', '--detach'],
                           env={**os.environ, 'SPIRULA_LOG': 'debug'}, capture_output=True, text=True, timeout=120)
        assert r.returncode == 0 and '1 OSD up' in r.stdout, r
        log = open(os.path.join(d.dir, 'spirula.log')).read()
        d.down()
        assert 'DEBUG' in log and '\x1b' not in log, log[-2000:]

    def test_help_version_and_completions(self):
        for args in (['--help'], ['up', '--help'], ['down', '--help'], ['status', '--help'], ['osd', '--help']):
            assert 'Usage' in self.c.spirula(*args).out
        assert self.c.spirula('--version').out.startswith('spirula ')
        for shell in ('bash', 'zsh', 'fish'):
            assert 'spirula' in self.c.spirula('completions', shell).out
        assert self.c.spirula('up', '--osd', check=False).code == 2


class SmallClusters(Case):
    start = False

    def test_one_and_two_osds_are_healthy_out_of_the_box(self):
        for n in (1, 2):
            d = Cluster(self.scratch, self.clients, f'n{n}', args=['--osds', str(n)])
            v = json.loads(d.up('--json').out)
            assert v['ready'] and v['osds'] == n and v['pool_size'] == n, v
            d.rados('-p', 'data', 'put', 'hello', self.sample())
            d.wait_clean()
            # One copy is a true warning; anything else is not.
            checks = lambda: set(d.json('health')['checks'])
            harness.wait(lambda: checks() <= ({'POOL_NO_REDUNDANCY'} if n == 1 else set()), lambda: f'health: {checks()}')
            d.down()


class Refusals(Case):
    start = False

    def test_folder_of_something_else_is_refused_and_untouched(self):
        os.makedirs(self.c.dir)
        open(os.path.join(self.c.dir, 'thesis.tex'), 'w').write('x')
        r = self.c.up(check=False)
        assert r.code == 1 and 'thesis.tex' in r.err and 'not a Spirula cluster' in r.err, r
        assert os.listdir(self.c.dir) == ['thesis.tex']
        os.remove(os.path.join(self.c.dir, 'thesis.tex'))

    def test_port_in_use_is_named(self):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(('127.0.0.1', self.c.port))
            s.listen()
            r = self.c.up(check=False)
            assert r.code == 1 and str(self.c.port) in r.err and 'in use' in r.err, r
        self.c.up()
        self.c.down()

    def test_an_address_of_another_machine_is_not_taken_for_a_port_in_use(self):
        d = Cluster(self.scratch, self.clients, 'elsewhere')
        r = d.spirula('up', '--dir', d.dir, '--port', str(d.port), '--bind', '192.0.2.1', check=False)
        assert r.code == 1 and '192.0.2.1' in r.err and '--bind' in r.err and '--port' not in r.err, r
        assert 'a new cluster' not in r.out, r
        # Maps that name all addresses send clients of other machines to themselves.
        for everywhere in ('0.0.0.0', '::'):
            r = d.spirula('up', '--dir', d.dir, '--port', str(d.port), '--bind', everywhere, check=False)
            assert r.code == 1 and f'--bind {everywhere}: clients connect to the address' in r.err, r

    def test_too_large_and_too_small_sizes_are_refused(self):
        d = Cluster(self.scratch, self.clients, 'sizes')
        r = d.spirula('up', '--dir', d.dir, '--osd-size', '900T', check=False)
        assert r.code == 1 and 'do not fit' in r.err and '--osd-size' in r.err, r
        r = d.spirula('up', '--dir', d.dir, '--osd-size', '900T', '--osds', '1', check=False)
        assert r.code == 1 and '1 OSD of 900 TiB does not fit' in r.err, r
        r = d.spirula('up', '--dir', d.dir, '--osd-size', '1M', check=False)
        assert r.code == 1 and 'too small' in r.err, r
        r = d.spirula('up', '--dir', d.dir, '--osds', '2', '--pool-size', '3', check=False)
        assert r.code == 1 and '--pool-size 3' in r.err, r
        r = d.spirula('up', '--dir', d.dir, '--memory', '1M', check=False)
        assert r.code == 1 and '--memory' in r.err, r

    def test_folder_that_cannot_be_made_is_named(self):
        r = self.c.spirula('up', '--dir', '/proc/nowhere/x', check=False)
        assert r.code == 1 and '/proc/nowhere' in r.err, r
        r = self.c.spirula('up', '--dir', '/etc/passwd', check=False)
        assert r.code == 1 and '/etc/passwd' in r.err, r

    def test_status_of_no_cluster_says_how_to_make_one(self):
        r = self.c.spirula('status', '--dir', os.path.join(self.scratch, 'nothing'), check=False)
        assert r.code == 3 and 'spirula up' in r.err, r
