"""Watches and notifications with librados and `rados`: who is told what, who answered, and who ends when.

What `watching.py basics` prints was compared with a real Ceph 16.2 (by hand, with `cargo xtask ceph up`)."""
import json, os, queue, shutil, signal, subprocess, threading, time
import test_processes
from harness import Case, wait

# As a real Ceph answers.
BASICS = '''
["watch of nothing", -2]
["notify of nothing", -2]
["notify without watchers", [0, [], []]]
["watch", [0, 0, 0]]
["check", [true, true, true]]
["notify", [0, ["a:hello", "b:hello", "ok"], [], true]]
["heard", [["hello"], ["hello"], ["hello"]]]
["a watcher notifies", [0, ["a:self", "b:self", "ok"], []]]
["an empty one", ["a:", "b:"]]
["a large one", [0, [2, 100002, 100002], []]]
["unwatch", 0]
["unwatched", [0, 4]]
["one does not answer", [-110, ["a:4", "b:4"], 1, true]]
["unwatch of who is silent", 0]
["after a write", 0]
["remove", 0]
["removed", [[-107], [-107]]]
["check of the removed", [-107, -107]]
["notify of the removed", -2]
["unwatch of the removed", [-2, -2]]
["watch again", [0, 0, ["6"]]]
["two of one client", [0, 2]]
["unwatch both", [0, 0, []]]
'''


class Watcher:
    """A process of its own that watches an object until it is told to stop, or killed."""

    def __init__(self, case, pool, o, timeout):
        argv = case.wrap(case.clients.python() + [case.program, 'stay', case.conf, pool, o, str(timeout)])
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said, self.all = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()
        assert self.hear('watch') == 0

    def read(self):
        for line in self.p.stdout:
            self.all.append(json.loads(line))
            self.said.put(self.all[-1])

    def hear(self, what, seconds=180):
        """The next thing of this kind that it says."""
        end = time.monotonic() + seconds
        while True:
            got = self.said.get(timeout=max(0.1, end - time.monotonic()))
            if got[0] == what:
                return got[1]
            assert got[0] != 'error', got

    def check(self):
        self.p.stdin.write('check\n')
        self.p.stdin.flush()
        return self.hear('check')

    def kill(self):
        self.p.send_signal(signal.SIGKILL)
        self.p.wait()

    def end(self):
        self.p.stdin.close()
        self.p.wait(timeout=180)


class Watch(Case):
    args = ['--osds', '3', '--osd-size', '2G']
    minutes = 3

    def setup(self, clients):
        super().setup(clients)
        # Where the clients' Debian sees it, too.
        self.program = os.path.join(self.scratch, 'watching.py')
        shutil.copy(os.path.join(os.path.dirname(__file__), 'watching.py'), self.program)

    def wrap(self, argv):
        return argv

    @property
    def conf(self):
        return self.c.conf

    def listed(self, pool, o):
        """Addresses of who watches."""
        out = self.c.rados('-p', pool, 'listwatchers', o).out
        return [l.split()[0].removeprefix('watcher=') for l in out.splitlines()]

    def primary(self, pool, o):
        return self.c.json('osd', 'map', pool, o)['acting_primary']

    def notify(self, pool, o, text):
        """What the watchers answer, as `rados notify` shows it; it fails if one does not."""
        r = self.c.rados('-p', pool, 'notify', o, text)
        assert 'timeout' not in r.out, r
        return r.out.count('reply client.')

    def test_1_all_that_librados_can_do_is_answered_as_ceph_does(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'w', '8', '8')
        c.ceph('osd', 'erasure-code-profile', 'set', 'e', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'e')
        c.wait_clean()
        for pool in ['w', 'ec']:
            argv = c.clients.python() + [self.program, 'basics', c.conf, pool]
            p = subprocess.run(argv, capture_output=True, text=True, timeout=300)
            assert p.stdout.split('\n') == BASICS.lstrip().split('\n'), (pool, p.stdout, p.stderr)

    def test_2_watchers_are_shown(self):
        c = self.c
        c.rados('-p', 'w', 'put', 'shown', self.sample())
        assert self.listed('w', 'shown') == []
        a, b = Watcher(self, 'w', 'shown', 70), Watcher(self, 'w', 'shown', 0)
        addrs = self.listed('w', 'shown')
        assert len(addrs) == 2 and all(x.startswith('127.0.0.1:0/') for x in addrs), addrs
        rows = c.json('tell', f'osd.{self.primary("w", "shown")}', 'dump_watchers')
        rows = [r for r in rows if r['object'] == 'shown']
        assert sorted(r['timeout'] for r in rows) == [30, 70], rows
        shown = lambda r: f"{r['entity_addr_t']['addr']}/{r['entity_addr_t']['nonce']}"
        assert sorted(map(shown, rows)) == sorted(addrs), (rows, addrs)
        keys = ['namespace', 'object', 'entity_name', 'cookie', 'timeout', 'entity_addr_t']
        assert all(list(r) == keys and r['entity_name']['type'] == 'client' for r in rows), rows
        assert all(r['entity_addr_t']['type'] == 'any' for r in rows), rows
        assert self.notify('w', 'shown', 'hello') == 2
        a.end()
        assert len(self.listed('w', 'shown')) == 1
        b.end()
        assert self.listed('w', 'shown') == []
        assert c.rados('-p', 'w', 'listwatchers', 'none', check=False).code == 1

    def test_3_a_killed_watcher_is_gone_after_its_timeout(self):
        c = self.c
        c.rados('-p', 'w', 'put', 'killed', self.sample())
        stays, dies = Watcher(self, 'w', 'killed', 0), Watcher(self, 'w', 'killed', 8)
        assert self.notify('w', 'killed', '1') == 2
        begun = time.monotonic()
        dies.kill()
        there = len(self.listed('w', 'killed'))
        # Its time is counted from its last word, which may be some seconds old: clients speak every five.
        assert there == 2 or time.monotonic() - begun >= 3, 'not before its time is over'
        # Meanwhile a notification waits for it, and ends when its watch does.
        assert self.notify('w', 'killed', '2') == 1
        assert len(self.listed('w', 'killed')) == 1
        assert stays.check() >= 0
        # The default of those who name no time follows the option at once.
        c.ceph('config', 'set', 'osd', 'osd_client_watch_timeout', '3')
        shown = lambda: c.json('tell', f'osd.{self.primary("w", "killed")}', 'config', 'get', 'osd_client_watch_timeout')
        wait(lambda: shown()['osd_client_watch_timeout'] == '3', 'the option')
        short = Watcher(self, 'w', 'killed', 0)
        short.kill()
        wait(lambda: len(self.listed('w', 'killed')) == 1, 'the watch to end')
        c.ceph('config', 'rm', 'osd', 'osd_client_watch_timeout')
        stays.end()

    def test_4_a_watch_survives_its_primary_and_the_whole_cluster(self):
        c = self.c
        c.rados('-p', 'w', 'put', 'moves', self.sample())
        watchers = [Watcher(self, 'w', 'moves', 120) for _ in range(2)]
        for round in range(2):
            first = self.primary('w', 'moves')
            c.spirula('osd', 'stop', str(first), '--dir', c.dir)
            wait(lambda: self.primary('w', 'moves') != first, 'another primary')
            assert self.notify('w', 'moves', f'moved {round}') == 2
            c.spirula('osd', 'start', str(first), '--dir', c.dir)
            c.wait_clean()
            assert self.notify('w', 'moves', f'back {round}') == 2
        c.kill()
        c.up()
        assert self.notify('w', 'moves', 'after the crash') == 2
        assert [w.check() >= 0 for w in watchers] == [True, True]
        # Splits and merges move objects; their watchers go with them.
        for pgs in ['16', '4']:
            c.ceph('osd', 'pool', 'set', 'w', 'pg_num', pgs)
            c.ceph('osd', 'pool', 'set', 'w', 'pgp_num', pgs)
            now = lambda: next(p for p in c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == 'w')['pg_num']
            wait(lambda: now() == int(pgs), f'{pgs} PGs')
            assert self.notify('w', 'moves', f'{pgs} PGs') == 2
        # What each was told may have come twice, where its notifier had to begin anew; never not at all.
        told = [f'{what} {n}' for n in range(2) for what in ('moved', 'back')] + ['after the crash', '16 PGs', '4 PGs']
        for w in watchers:
            w.end()
            # `rados notify` puts a length before its text.
            heard = [x[1] for x in w.all if x[0] == 'heard']
            missed = [t for t in told if not any(h.endswith(t) for h in heard)]
            assert not missed, (missed, heard)
        assert self.listed('w', 'moves') == []

    def test_5_a_blocklisted_watcher_is_removed_at_once(self):
        c = self.c
        c.rados('-p', 'w', 'put', 'blocked', self.sample())
        w, other = Watcher(self, 'w', 'blocked', 600), Watcher(self, 'w', 'blocked', 600)
        addrs = self.listed('w', 'blocked')
        c.ceph('osd', 'blocklist', 'add', addrs[0])
        wait(lambda: self.listed('w', 'blocked') == addrs[1:], 'the watch of the blocklisted client to end')
        assert self.notify('w', 'blocked', 'x') == 1
        c.ceph('osd', 'blocklist', 'rm', addrs[0])
        [x.kill() for x in (w, other)]

    def test_6_many_notifications_at_once_all_reach_everybody(self):
        c = self.c
        c.rados('-p', 'w', 'put', 'many', self.sample())
        out = c.python('''
import json, rados, sys, threading
conf, pool, osds = sys.argv[1:4]
heard = [[], []]
clients = [rados.Rados(conffile=conf) for _ in range(6)]
[r.connect() for r in clients]
ios = [r.open_ioctx(pool) for r in clients]
def callback(n):
    def got(notify_id, notifier_id, watch_id, data):
        heard[n].append(data.decode())
    return got
watches = [ios[n].watch('many', callback(n), lambda *a: None) for n in range(2)]
bad = []
def work(n):
    io = ios[n]
    for i in range(60):
        if not io.notify('many', f'{n} {i}', 100000):
            bad.append((n, i))
        if n == 5:
            io.write_full('many', b'%d' % i)
threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 6)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps([bad, [sorted(h) for h in heard]]))
[w.close() for w in watches]
[io.close() for io in ios]
[r.shutdown() for r in clients]
''', 'w', 3).out
        bad, heard = json.loads(out)
        assert bad == []
        told = sorted(f'{n} {i}' for n in range(2, 6) for i in range(60))
        assert heard == [told, told], [len(h) for h in heard]

    def test_7_a_watcher_that_reads_nothing_holds_up_nobody(self):
        c = self.c
        c.rados('-p', 'w', 'put', 'stuck', self.sample())
        stuck, reads = Watcher(self, 'w', 'stuck', 300), Watcher(self, 'w', 'stuck', 300)
        stuck.p.send_signal(signal.SIGSTOP)
        # More than what TCP keeps for who reads nothing.
        argv = c.clients.python() + [self.program, 'storm', c.conf, 'w', 'stuck', '24', str(1000 << 10)]
        p = subprocess.run(argv, capture_output=True, text=True, timeout=200)
        results = json.loads(p.stdout)[1]
        assert len(results) == 24, p
        # The one that reads has answered each, and the notifiers hear who has not.
        assert all(r == [-110, 1, 1] for r in results), results
        stuck.p.send_signal(signal.SIGCONT)
        wait(lambda: self.notify('w', 'stuck', 'x') == 2, 'the stopped one to answer again')
        assert stuck.check() >= 0
        [w.end() for w in (stuck, reads)]


class WatchHosts(test_processes.Hosts):
    """The same where every daemon is a process of its own."""
    minutes = 2

    def wrap(self, argv):
        return self.client.wrap(argv)

    def test_1_a_watch_goes_on_when_its_primary_is_killed(self):
        self.program = os.path.join(self.scratch, 'watching.py')
        shutil.copy(os.path.join(os.path.dirname(__file__), 'watching.py'), self.program)
        self.rados('-p', 'data', 'put', 'o', self.sample())
        watchers = [Watcher(self, 'data', 'o', 60) for _ in range(2)]
        # One that is killed with the primary: the next one ends its watch.
        dies = Watcher(self, 'data', 'o', 8)
        answers = lambda text: self.rados('-p', 'data', 'notify', 'o', text).out.count('reply client.')
        assert answers('before') == 3
        first = self.json('osd', 'map', 'data', 'o')['acting_primary']
        dies.kill()
        self.net[self.mons[first]].kill(f'osd.{first}')
        # Waits for the next primary, and there for the watch of the dead client to end, which has its time there again. `rados` waits for
        # ten seconds, so that on a busy machine it may be told who has not answered, which is that one.
        r = self.rados('-p', 'data', 'notify', 'o', 'after the kill', check=False)
        assert r.out.count('reply client.') == 2 and r.out.count('timeout client.') == (r.code != 0), r
        assert self.json('osd', 'map', 'data', 'o')['acting_primary'] != first
        listed = lambda: self.rados('-p', 'data', 'listwatchers', 'o').out
        wait(lambda: listed().count('watcher=') == 2, lambda: f'the end of the watch of who is dead: {listed()}')
        self.net[self.mons[first]].start(f'osd.{first}')
        self.wait_osds(3)
        self.wait_clean()
        assert answers('back again') == 2
        for w in watchers:
            assert w.check() >= 0
            w.end()
            heard = [x[1] for x in w.all if x[0] == 'heard']
            missed = [t for t in ('before', 'after the kill', 'back again') if not any(h.endswith(t) for h in heard)]
            assert not missed, (missed, heard)
