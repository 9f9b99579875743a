"""A cluster of three hosts: every daemon a process of its own, every host a network namespace.

Made as docs/deploy.md says: `spirula create` on the first host, `spirula join` with a token on the others.
Clients are in a namespace of their own. What they do while monitors die, are cut off, stop and lose their
disks is written down, and in the end compared with what the cluster holds.
"""
import json, os, shutil, signal, subprocess, tempfile, threading, time
import forked, harness, netns
from harness import PATIENCE, Case, Result, Skip, repeated

# Commands and I/O through librados, for argv[2] seconds. Each acknowledgement is noted, with its time.
WORK = r'''
import json, sys, threading, time, rados
conf, seconds, tag = sys.argv[1], float(sys.argv[2]), sys.argv[3]
end, notes, lock = time.time() + seconds, {}, threading.Lock()
def connect():
    c = rados.Rados(conffile=conf, conf={'rados_mon_op_timeout': '0', 'rados_osd_op_timeout': '0'})
    c.connect(timeout=60)
    return c
def run(name, pause, step):
    c = connect()
    acked, gap, last, bad, i = [], 0.0, time.time(), [], 0
    while time.time() < end:
        got = step(c, i)
        now = time.time()
        gap, last = max(gap, now - last), now
        (bad if got is None or got[0] else acked).append(i if got is None else got[1] if not got[0] else got)
        i += 1
        began[name].release()
        time.sleep(pause)
    with lock:
        notes[name] = {'acked': acked, 'bad': bad, 'gap': gap, 'tried': i}
    c.shutdown()
def command(c, **cmd):
    cmd['format'] = 'json'
    return c.mon_command(json.dumps(cmd), b'')
def key(c, i):
    r, out, text = command(c, prefix='config-key set', key=f'{tag}/{i}', val=str(i))
    return (r, i if not r else text)
# A number that only grows: a command applied late, after a newer one, would be seen.
def last(c, i):
    r, out, text = command(c, prefix='config-key set', key=f'{tag}-last', val=str(i))
    return (r, i if not r else text)
# Every time it is carried out it makes another OSD.
def osd(c, i):
    r, out, text = command(c, prefix='osd create')
    return (r, json.loads(out)['osdid'] if not r else text)
def pool(c, i):
    r, out, text = command(c, prefix='osd pool create', pool=f'{tag}-{i}', pg_num=1, pgp_num=1)
    return (r, f'{tag}-{i}' if not r else text)
io = None
def data(c, i):
    global io
    io = io or c.open_ioctx('data')
    io.write_full(f'{tag}-{i}', (f'{tag} {i} ' * 500).encode())
    return (0, i)
before = {o['osd'] for o in json.loads(command(connect(), prefix='osd dump')[1])['osds']}
steps = [('key', 0.005, key), ('last', 0.02, last), ('osd', 0.3, osd), ('pool', 0.5, pool), ('data', 0.005, data)]
began = {s[0]: threading.Semaphore(0) for s in steps}
threads = [threading.Thread(target=run, args=s) for s in steps]
[t.start() for t in threads]
# When each has been answered.
[began[s[0]].acquire(timeout=60) for s in steps]
print('begun', flush=True)
[t.join() for t in threads]
# What the cluster holds now.
c = connect()
r, out, _ = command(c, prefix='config-key dump', key=tag)
keys = json.loads(out)
have = {k for k in keys if k.startswith(tag + '/')}
notes['key']['lost'] = [i for i in notes['key']['acked'] if f'{tag}/{i}' not in have]
notes['last']['is'] = int(keys[f'{tag}-last'])
r, out, _ = command(c, prefix='osd dump')
dump = json.loads(out)
notes['osds'] = [o['osd'] for o in dump['osds'] if o['osd'] not in before]
notes['pools'] = [p['pool_name'] for p in dump['pools'] if p['pool_name'].startswith(tag)]
io = c.open_ioctx('data')
lost = []
for i in notes['data']['acked']:
    try:
        if io.read(f'{tag}-{i}', 1 << 20) != (f'{tag} {i} ' * 500).encode():
            lost.append((i, 'other bytes'))
    except rados.ObjectNotFound:
        lost.append((i, 'gone'))
notes['data']['lost'] = lost
c.shutdown()
print(json.dumps(notes), flush=True)
'''

# Reads one key again and again, through one monitor, each time with a new connection; notes begin, end, value.
READ = r'''
import json, sys, time, rados
conf, mon, key, stop = sys.argv[1:5]
import os
while not os.path.exists(stop):
    t = time.time()
    try:
        c = rados.Rados(conffile=conf, conf={'mon_host': mon, 'client_mount_timeout': '3', 'rados_mon_op_timeout': '3'})
        c.connect(timeout=3)
        r, out, text = c.mon_command(json.dumps({'prefix': 'config-key get', 'key': key}), b'')
        value = out.decode() if not r else None
        c.shutdown()
    except Exception as e:
        value = None
    print(json.dumps([t, time.time(), value]), flush=True)
    time.sleep(0.02)
'''


# A client of one monitor: sets a key again and again, and says so after each time.
CLIENT = r'''
import json, sys, time, rados
conf, mon = sys.argv[1:3]
c = rados.Rados(conffile=conf, conf={'mon_host': mon, 'rados_mon_op_timeout': '0'})
c.connect(timeout=60)
while True:
    r = c.mon_command(json.dumps({'prefix': 'config-key set', 'key': f'client-{mon}', 'val': 'x'}), b'')
    assert r[0] == 0, r
    print(time.time(), flush=True)
    time.sleep(0.05)
'''


class Hosts(Case):
    """Three hosts, each a monitor and an OSD; managers on two. `six`: IPv6; `networks`: 2 for one of the OSDs' own."""
    six, networks = False, 1
    # Runs `ceph` on the client's host.
    forked = None
    mons = ['a', 'b', 'c']
    # Hosts without a monitor.
    others_there = ['client', 'dns']

    def setup(self, clients):
        netns.need()
        self.clients = clients
        self.scratch = tempfile.mkdtemp(prefix='spirula-e2e-', dir=os.environ.get('SPIRULA_E2E_DIR', '/var/tmp'))
        os.chmod(self.scratch, 0o755)
        clients.enter(self.scratch)
        self.net = netns.Net(self.scratch, self.mons + self.others_there, self.six, self.networks)
        self.client = self.net['client']
        self.conf = os.path.join(self.scratch, 'client.conf')
        self.found()

    def mon_addr(self, name):
        a = self.net[name].addr()
        return f'v2:[{a}]:3300' if self.six else f'v2:{a}:3300'

    def found(self):
        first, *others = [self.net[n] for n in self.mons]
        networks = ['--public-network', self.net.network()]
        if self.networks == 2:
            networks += ['--cluster-network', self.net.network(1)]
        first.spirula('create', '--dir', first.dir, '--addr', first.addr(), *networks, '--start')
        first.spirula('join', self.token(), '--dir', first.dir, '--osd-size', '1G')
        for h in others:
            mgr = ['--mgr', 'y'] if h is others[0] else []
            h.spirula('join', self.token('--mon'), '--dir', h.dir, '--mon', h.name, *mgr, '--osd-size', '1G')
        self.client_files()
        self.wait_quorum(self.mons)
        self.wait_osds(len(self.mons))
        self.ceph('osd', 'pool', 'create', 'data', '16')
        self.ceph('osd', 'pool', 'application', 'enable', 'data', 'rados')
        self.wait_clean()

    def client_files(self):
        """A client host gets what an administrator gives it: a configuration and a key."""
        first = self.net[self.mons[0]]
        shutil.copy(os.path.join(first.dir, 'ceph.client.admin.keyring'), os.path.join(self.scratch, 'client.keyring'))
        with open(os.path.join(first.dir, 'ceph.conf')) as f:
            auth = [l for l in f if l.startswith('auth_')]
        with open(self.conf, 'w') as f:
            f.write('[global]\nmon_host = ' + ','.join(map(self.mon_addr, self.mons)) + '\n' + ''.join(auth) +
                    f'keyring = {self.scratch}/client.keyring\nlog_file =\nadmin_socket =\n' +
                    ('ms_bind_ipv6 = true\nms_bind_ipv4 = false\n' if self.six else ''))

    def log_tail(self):
        return ''.join(h.logs() for h in self.net.hosts.values())[-6000:] if hasattr(self, 'net') else ''

    def teardown(self):
        if not hasattr(self, 'net'):
            return super().teardown()
        logs = ''.join(h.logs() for h in self.net.hosts.values())
        keep = os.environ.get('SPIRULA_E2E_LOGS')
        if keep:
            with open(keep, 'w') as f:
                f.write(logs)
        self.bad_log = [l for l in logs.splitlines() if 'panicked' in l]
        if self.forked:
            self.forked.close()
        self.net.close()
        self.clients.leave()
        shutil.rmtree(self.scratch, ignore_errors=True)

    # ---- asking ----

    def token(self, *more):
        first = self.net[self.mons[0]]
        return first.spirula('token', 'create', '--dir', first.dir, *more).out.strip()

    def ceph(self, *argv, host=None, timeout=PATIENCE, check=True, **kw):
        """Ends with 124 when its time is over."""
        argv = ['ceph', '-c', self.conf, *argv]
        if host or kw or self.clients.root:
            argv = self.clients.wrap(['timeout', str(timeout), *argv])
            return (host or self.client).run(*argv, timeout=timeout + 10, check=check, **kw)
        self.forked = self.forked or forked.Server(self.client.wrap)
        try:
            r = Result(self.forked.run(argv, timeout))
        except subprocess.TimeoutExpired as e:
            r = Result(subprocess.CompletedProcess(argv, 124, '', str(e)))
        assert not check or r.code == 0, f'{" ".join(argv)}: {r}'
        return r

    def rados(self, *argv, **kw):
        return self.client.run(*self.clients.wrap(['timeout', str(PATIENCE), 'rados', '-c', self.conf, *argv]), timeout=PATIENCE + 10, **kw)

    def json(self, *argv, **kw):
        return json.loads(self.ceph(*argv, '-f', 'json', **kw).out)

    def python(self, code, *args, host=None):
        """Runs a program of the clients' Python in the background."""
        fd, path = tempfile.mkstemp(suffix='.py', dir=self.scratch)
        os.write(fd, code.encode())
        os.close(fd)
        os.chmod(path, 0o644)
        argv = (host or self.client).wrap(self.clients.python() + [path, self.conf, *map(str, args)])
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def leader(self):
        return self.json('quorum_status')['quorum_leader_name']

    def wait_quorum(self, names, seconds=PATIENCE):
        def there():
            try:
                return sorted(self.json('quorum_status', timeout=20)['quorum_names']) == sorted(names)
            except (AssertionError, ValueError, subprocess.TimeoutExpired):
                return False
        netns.wait(there, f'a quorum of {names}', seconds)

    def wait_osds(self, n):
        netns.wait(lambda: self.json('osd', 'stat')['num_up_osds'] == n, f'{n} OSDs')

    def wait_clean(self):
        def clean():
            by = self.json('pg', 'stat')['pg_summary']['num_pg_by_state']
            return by and all(s['name'] == 'active+clean' for s in by)
        netns.wait(clean, 'clean PGs')

    def wait_health(self, code, there=True):
        netns.wait(lambda: (code in self.json('health')['checks']) == there, f'{code} {"in" if there else "not in"} health')

    # ---- the ledger ----

    def work(self, seconds, tag):
        p = self.python(WORK, seconds, tag)
        assert p.stdout.readline() == 'begun\n', p.stderr.read()
        return p

    def settle(self, p, what):
        """Compares what was acknowledged with what is there."""
        out, err = p.communicate(timeout=900)
        assert p.returncode == 0, (out[-2000:], err[-4000:])
        n = json.loads(out.splitlines()[-1])
        for name in ['key', 'last', 'osd', 'pool', 'data']:
            assert not n[name]['bad'], f'{name}: answered with an error: {n[name]["bad"][:3]}'
            assert n[name]['acked'], f'{name}: nothing was acknowledged'
        assert not n['key']['lost'], f'acknowledged and lost: {n["key"]["lost"][:10]}'
        assert n['last']['is'] == n['last']['acked'][-1], 'an old command was applied over a newer one'
        assert not n['data']['lost'], f'acknowledged data lost: {n["data"]["lost"][:10]}'
        made, acked = sorted(n['osds']), sorted(n['osd']['acked'])
        assert len(acked) == len(set(acked)), f'an OSD number was given twice: {acked}'
        assert made == acked, f'made {made}, acknowledged {acked}: a command was lost or applied twice'
        assert sorted(n['pools']) == sorted(n['pool']['acked']), (n['pools'], n['pool']['acked'])
        gaps = ', '.join(f'{k} {n[k]["gap"]:.2f} s of {len(n[k]["acked"])}' for k in ['key', 'osd', 'pool', 'data'])
        print(f'  {what}: longest wait for an acknowledgement: {gaps}', flush=True)
        # For the next test.
        for i in made:
            self.ceph('osd', 'purge-actual', str(i), '--yes-i-really-mean-it')

    def others(self, name):
        return [n for n in self.mons if n != name]

    def never_stale(self, host, cut, heal, seconds=6, until=lambda: None):
        """While `host` is cut off, for so long at least and until something has come about, a value changes. Whoever asks its monitor
        afterwards must not get the old one."""
        name, key = host.name, f'stale-{time.time()}'
        self.ceph('config-key', 'set', key, 'old')
        stop = os.path.join(self.scratch, key)
        reader = self.python(READ, self.mon_addr(name), key, stop, host=host)
        netns.wait(lambda: json.loads(reader.stdout.readline())[2] == 'old', f'the value that mon.{name} has')
        cut()
        try:
            self.ceph('config-key', 'set', key, 'new')
            changed = time.time()
            time.sleep(seconds)
            self.wait_health('MON_DOWN')
            until()
        finally:
            heal()
        self.wait_quorum(self.mons)
        healed = time.time()
        seen = []
        for line in reader.stdout:
            seen.append(json.loads(line))
            if seen[-1][2] == 'new' and seen[-1][0] > healed or time.time() > healed + PATIENCE:
                break
        open(stop, 'w').close()
        reader.communicate(timeout=60)
        stale = [s for s in seen if s[0] >= changed and s[2] == 'old']
        assert not stale, f'mon.{name} answered with the old value after it was changed: {stale[:3]}'
        assert seen[-1][2] == 'new', seen[-3:]
        asked = [s for s in seen if s[0] >= changed]
        print(f'  {len(asked)} reads through mon.{name} after the change, {sum(s[2] == "new" for s in asked)} answered', flush=True)
        self.wait_health('MON_DOWN', False)


class OsdHosts(Hosts):
    """A monitor's host, three hosts with `per_host` OSDs each in two networks, a client. `host_of` says where each OSD is."""
    mons = ['m']
    hosts = ['a', 'b', 'c']
    others_there = [*hosts, 'client']
    per_host, size, networks = 1, '1G', 2

    def found(self):
        m = self.net['m']
        m.spirula('create', '--dir', m.dir, '--addr', m.addr(), '--public-network', self.net.network(),
                  '--cluster-network', self.net.network(1), '--start')
        self.host_of = {}
        for n in self.hosts:
            self.join(n, self.per_host)
        self.client_files()
        self.wait_osds(self.per_host * len(self.hosts))

    def join(self, host, count):
        """Gives a host so many new OSDs."""
        h = self.net[host]
        h.spirula('join', self.token(), '--dir', h.dir, '--osds', str(count), '--osd-size', self.size)
        for d in h.daemons():
            self.host_of[int(d.split('.')[1])] = h


class Processes(Hosts):
    minutes = 3

    def test_leader_is_killed_during_pool_creation_and_io(self):
        p = self.work(12 if harness.NIGHTLY else 8, 'kill')
        for _ in range(repeated(2)):
            leader = self.leader()
            self.net[leader].kill(f'mon.{leader}')
            self.wait_quorum(self.others(leader))
            self.wait_health('MON_DOWN')
            self.net[leader].start(f'mon.{leader}')
            self.wait_quorum(self.mons)
        self.settle(p, f'{repeated(2)} of the leaders killed')
        self.wait_health('MON_DOWN', False)

    def test_minority_cut_off_both_ways_is_silent(self):
        leader = self.leader()
        host = self.net[leader]
        # The OSDs that are created meanwhile never run: nobody would be marked down among so many.
        self.ceph('config', 'set', 'global', 'mon_osd_min_up_ratio', '0.0001')
        p = self.work(20 if harness.NIGHTLY else 12, 'cut')
        failed = lambda: any('osd.' in l for l in self.ceph('log', 'last', '200').out.splitlines() if ' failed (' in l)
        self.never_stale(host, lambda: host.link(False), lambda: host.link(True),
                         until=lambda: netns.wait(failed, 'its OSD to be missed'))
        self.settle(p, f'host {leader} with the leader cut off both ways')
        self.ceph('config', 'rm', 'global', 'mon_osd_min_up_ratio')
        self.wait_osds(3)

    def test_clients_of_a_host_that_is_gone_without_a_word_go_on(self):
        # With the patience that clients come with they notice it after half a minute.
        for name in [self.leader(), self.others(self.leader())[0]][:repeated(2)]:
            host = self.net[name]
            client = self.python(CLIENT, self.mon_addr(name))
            assert client.stdout.readline(), client.stderr.read()
            answered = []
            threading.Thread(target=lambda: answered.extend(float(l) for l in client.stdout), daemon=True).start()
            netns.wait(lambda: len(answered) >= 10, f'answers of mon.{name}')
            host.link(False)
            cut = time.time()
            # What was under way at that moment may be answered yet.
            later = lambda: [t for t in list(answered) if t > cut + 0.5]
            try:
                # Seen: 0.9 s; by itself a client notices it after 30.
                netns.wait(later, f'a client of mon.{name}, which is cut off', 25)
            finally:
                host.link(True)
                client.kill()
            print(f'  the client of mon.{name} went on {later()[0] - cut:.1f} s after its host was gone', flush=True)
            self.wait_quorum(self.mons)
            self.wait_osds(3)

    def test_leader_that_others_do_not_hear_is_replaced(self):
        leader = self.leader()
        host = self.net[leader]
        others = [self.net[n] for n in self.others(leader)]
        p = self.work(14 if harness.NIGHTLY else 9, 'mute')

        def cut(on=True):
            for o in others:
                host.deafen(o, on)
        self.never_stale(host, cut, lambda: cut(False))
        self.settle(p, f'nothing from host {leader} arrives at the other monitors')
        self.wait_osds(3)

    def test_leader_that_hears_nobody_is_replaced(self):
        leader = self.leader()
        host = self.net[leader]
        others = [self.net[n] for n in self.others(leader)]
        p = self.work(14 if harness.NIGHTLY else 9, 'deaf')

        def cut(on=True):
            for o in others:
                o.deafen(host, on)
        self.never_stale(host, cut, lambda: cut(False))
        self.settle(p, f'nothing from the other monitors arrives at host {leader}')
        self.wait_osds(3)

    def test_leader_stops_for_a_while(self):
        """30 s by night."""
        leader, seconds = self.leader(), 30 if harness.NIGHTLY else 8
        host = self.net[leader]
        p = self.work(seconds + 6, 'stop')
        self.never_stale(host, lambda: host.signal(f'mon.{leader}', signal.SIGSTOP),
                         lambda: host.signal(f'mon.{leader}', signal.SIGCONT), seconds=seconds)
        self.settle(p, f'mon.{leader} stopped for {seconds} s')

    def test_everything_is_killed_at_once_and_comes_back(self):
        p = self.work(3, 'all')
        self.settle(p, 'before all is killed')
        self.rados('-p', 'data', 'put', 'kept', self.sample())
        pools = self.ceph('osd', 'pool', 'ls').out
        for n in self.mons:
            self.net[n].kill_all()
        for n in self.mons:
            self.net[n].start()
        self.wait_quorum(self.mons)
        self.wait_osds(3)
        self.wait_clean()
        assert self.ceph('osd', 'pool', 'ls').out == pools
        assert self.rados('-p', 'data', 'get', 'kept', '-').out == open(self.sample()).read()

    def test_monitor_that_lost_its_disk_joins_again(self):
        lost = self.others(self.leader())[0]
        host = self.net[lost]
        self.ceph('config-key', 'set', 'before', 'x' * 1000)
        r = host.spirula('mon', 'rejoin', '--id', lost, '--dir', host.dir, check=False)
        assert r.code == 3 and 'runs already' in r.err, r
        host.kill(f'mon.{lost}')
        shutil.rmtree(os.path.join(host.dir, f'mon.{lost}'))
        os.mkdir(os.path.join(host.dir, f'mon.{lost}'))
        r = host.start(f'mon.{lost}', check=False)
        assert r.code == 1 and f'mon.{lost}' in r.err, r
        self.wait_health('MON_DOWN')
        p = self.work(8, 'disk')
        host.spirula('mon', 'rejoin', '--id', lost, '--dir', host.dir)
        host.start(f'mon.{lost}')
        self.wait_quorum(self.mons)
        self.settle(p, f'mon.{lost} joined again')
        # It counts again: with it and one other there is a majority.
        dead = self.leader()
        self.net[dead].kill(f'mon.{dead}')
        self.wait_quorum(self.others(dead))
        assert self.ceph('-m', self.mon_addr(lost), 'config-key', 'get', 'before').out == 'x' * 1000
        self.net[dead].start(f'mon.{dead}')
        self.wait_quorum(self.mons)

    def test_rejoin_keeps_the_store_while_no_majority_answers(self):
        for n in self.mons[:2]:
            self.net[n].kill(f'mon.{n}')
        host = self.net['c']
        host.kill('mon.c')
        r = host.spirula('mon', 'rejoin', '--id', 'c', '--dir', host.dir, check=False)
        assert r.code == 1 and 'no monitor answers' in r.err, r
        for n in self.mons:
            self.net[n].start()
        self.wait_quorum(self.mons)


class Removed(Hosts):
    """Monitors that run are taken out one after the other: the one that leads, then the other one of the two that are left."""
    minutes = 2

    def ended(self, pid):
        try:
            with open(f'/proc/{pid}/stat') as f:
                return f.read().rsplit(')', 1)[1].split()[0] == 'Z'
        except FileNotFoundError:
            return True

    def test_the_last_monitor_goes_on_alone(self):
        left = list(self.mons)
        for leads in (True, False):
            leader = self.leader()
            out = leader if leads else next(n for n in left if n != leader)
            host, pid = self.net[out], self.net[out].pid(f'mon.{out}')
            # It is asked again (EBUSY) until each monitor has told what it is.
            def removed():
                r = self.ceph('mon', 'rm', out, check=False)
                assert r.code in (0, 16), r
                return r.code == 0
            netns.wait(removed, f'mon.{out} to be taken out')
            left.remove(out)
            began = time.time()
            self.wait_quorum(left)
            self.ceph('config-key', 'set', f'without-{out}', 'x')
            print(f'  without mon.{out} {time.time() - began:.1f} s after its removal', flush=True)
            netns.wait(lambda: self.ended(pid), f'the end of mon.{out}')
            assert f'mon.{out} was removed from the cluster' in host.logs(), host.logs()[-2000:]
            assert [m['name'] for m in self.json('mon', 'dump')['mons']] == left
        self.wait_health('MON_DOWN', False)
        self.wait_osds(3)
        self.wait_clean()
        self.rados('-p', 'data', 'put', 'alone', self.sample())


class IPv6Networks(Hosts):
    six, networks = True, 2

    def test_osds_use_both_networks_and_clients_reach_them(self):
        for o in self.json('osd', 'dump')['osds']:
            assert o['public_addr'].startswith('[fd00:1::') and o['cluster_addr'].startswith('[fd00:2::'), o
        self.rados('-p', 'data', 'put', 'six', self.sample())
        assert self.rados('-p', 'data', 'get', 'six', '-').out == open(self.sample()).read()

    def test_leader_is_killed_during_pool_creation_and_io(self):
        p = self.work(6, 'six')
        leader = self.leader()
        self.net[leader].kill(f'mon.{leader}')
        self.wait_quorum(self.others(leader))
        self.net[leader].start(f'mon.{leader}')
        self.wait_quorum(self.mons)
        self.settle(p, 'IPv6, a leader killed')

    def test_cluster_network_is_used_for_copies(self):
        # Without it no OSD reaches another: no write can be acknowledged.
        for n in self.mons:
            self.net[n].link(False, network=1)
        try:
            p = self.client.run(*self.clients.wrap(['timeout', '4', 'rados', '-c', self.conf, '-p', 'data', 'put', 'no',
                                                    self.sample()]), check=False)
            assert p.code == 124, p
        finally:
            for n in self.mons:
                self.net[n].link(True, network=1)
        self.rados('-p', 'data', 'put', 'yes', self.sample())
        self.wait_osds(3)
