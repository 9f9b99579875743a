"""Two OSDs that do not hear each other while everybody else hears both: clients go on, and health says who it is.

Three hosts (network namespaces, two networks) with one OSD each, so that every PG has all three; the monitor and the manager are on a
fourth, clients on a fifth. 16 writers on a replicated and an erasure-coded pool check every answer. Only the links between two
hosts are cut: both ways, one way, and each of these in the cluster network alone. Without an end that the cluster makes, writers stand
still for as long as the cut lasts; so what is asserted is that they go on while it lasts; the longest stalls are figures. In the end
each OSD is killed in turn, and everything is read back.

PAIR_SECONDS (default 5, by night 20): how long each cut lasts after clients went on.
"""
import json, os, time
import harness
from harness import holds, nightly, wait
from test_processes import OsdHosts

# Writers with objects of their own. Commands come by stdin: `say` prints what each has done, its longest wait for an answer since the last
# `say`, and how long the present one lasts; `check` reads all objects back; `end` ends.
LOAD = r'''
import json, random, struct, sys, threading, time, rados
conf, pools = sys.argv[1], sys.argv[2].split(',')
HEAD = struct.Struct('<HHQ')
def data(w, o, v, size):
    return (HEAD.pack(w, o, v) * (size // HEAD.size + 1))[:size]
connections = [rados.Rados(conffile=conf, conf={'rados_osd_op_timeout': '0', 'rados_mon_op_timeout': '0'}) for _ in range(4)]
[c.connect(timeout=60) for c in connections]
class Writer(threading.Thread):
    def __init__(self, w):
        super().__init__(daemon=True)
        self.io, self.w, self.rng = connections[w % 4].open_ioctx(pools[w % len(pools)]), w, random.Random(w)
        self.acked, self.done, self.longest, self.since, self.error, self.paused = {}, 0, 0.0, time.time(), None, threading.Event()
        self.rest = threading.Event()
    def name(self, o):
        return f'w{self.w}-{o}'
    def run(self):
        v = 0
        try:
            while not ended:
                if self.paused.is_set():
                    self.rest.set(); time.sleep(0.02); self.since = time.time(); continue
                self.rest.clear()
                v += 1
                o, size = self.rng.randrange(12), self.rng.choice([100, 4096, 20000, 65536])
                if o in self.acked and self.rng.random() < 0.3: self.look(o)
                else:
                    b = data(self.w, o, v, size)
                    self.io.write_full(self.name(o), b)
                    self.acked[o] = b
                self.took()
                time.sleep(0.005)
        except Exception as e:
            self.error = f'{type(e).__name__}: {e}'
        self.rest.set()
    def took(self):
        now = time.time()
        self.longest, self.since, self.done = max(self.longest, now - self.since), now, self.done + 1
    def look(self, o):
        got = self.io.read(self.name(o), 1 << 20)
        assert got == self.acked[o], f'{self.name(o)}: {len(got)} bytes {HEAD.unpack_from(got)}, acknowledged {HEAD.unpack_from(self.acked[o])}'
ended = False
writers = [Writer(w) for w in range(16)]
[w.start() for w in writers]
print('begun', flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == 'say':
        now = time.time()
        print(json.dumps([{'done': w.done, 'longest': max(w.longest, now - w.since), 'waits': now - w.since, 'error': w.error} for w in writers]), flush=True)
        for w in writers: w.longest = 0.0
    elif word == 'check':
        [w.paused.set() for w in writers]
        [w.rest.wait() for w in writers]
        bad, n = [], 0
        for w in writers:
            for o in w.acked:
                n += 1
                try: w.look(o)
                except Exception as e: bad.append(f'{type(e).__name__}: {e}')
        print(json.dumps([n, bad]), flush=True)
        [w.paused.clear() for w in writers]
    else:
        ended = True
        [w.join() for w in writers]
        break
print('ended', flush=True)
'''


def pair_seconds():
    return float(os.environ.get('PAIR_SECONDS', '20' if harness.NIGHTLY else '5'))


class Partition(OsdHosts):
    minutes = 3

    def found(self):
        super().found()
        self.ceph('osd', 'pool', 'create', 'rep', '16', '16')
        self.ceph('osd', 'erasure-code-profile', 'set', 'two-one', 'k=2', 'm=1', 'crush-failure-domain=host')
        self.ceph('osd', 'pool', 'create', 'ec', '16', '16', 'erasure', 'two-one')
        self.ceph('osd', 'pool', 'set', 'ec', 'min_size', '2')
        for name in ['rep', 'ec']:
            self.ceph('osd', 'pool', 'application', 'enable', name, 'partition')
        self.wait_clean()
        self.load = self.python(LOAD, 'rep,ec')
        assert self.load.stdout.readline() == 'begun\n', self.load.stderr.read()

    def teardown(self):
        if hasattr(self, 'load'):
            self.load.kill()
        super().teardown()

    # ---- the load ----

    def tell(self, word):
        assert self.load.poll() is None, self.load.stderr.read()[-3000:]
        self.load.stdin.write(word + '\n')
        self.load.stdin.flush()
        return json.loads(self.load.stdout.readline())

    def say(self):
        said = self.tell('say')
        errors = [w['error'] for w in said if w['error']]
        assert not errors, errors
        self.stall = max([self.stall, *(w['longest'] for w in said)])
        return said

    def all_go_on(self, what):
        """Every writer gets answers from now on, each twice at least."""
        begun, before = time.time(), [w['done'] for w in self.say()]
        still = lambda: [n for n, (w, b) in enumerate(zip(self.say(), before)) if w['done'] < b + 2]
        wait(lambda: not still(), lambda: f'{what}: writers {still()} to go on\n' + self.ceph('-s', check=False).out +
             self.ceph('health', 'detail', check=False).out + self.ceph('osd', 'tree', check=False).out)
        return time.time() - begun

    # ---- what is cut ----

    def osds(self):
        return {o['osd']: o for o in self.json('osd', 'dump')['osds']}

    def up(self):
        return sorted(o for o, x in self.osds().items() if x['up'])

    def pair(self, what, cut, hosts=('a', 'b')):
        """Cuts the links between two hosts; gives back who was out."""
        two = sorted(o for o, h in self.host_of.items() if h.name in hosts)
        self.stall = 0.0
        self.all_go_on('before the cut')
        begun, self.stall = time.time(), 0.0
        cut(True)
        try:
            wait(lambda: len(self.up()) == 2, f'one of osd.{two} to be marked down')
            gone = [o for o in two if o not in self.up()]
            assert len(gone) == 1, f'of {two} {gone} is down; up are {self.up()}'
            marked = time.time() - begun
            self.all_go_on(what)
            self.wait_health('OSD_PAIR_UNREACHABLE')
            detail = self.json('health', 'detail')['checks']['OSD_PAIR_UNREACHABLE']['detail'][0]['message']
            assert all(f'osd.{o}' in detail for o in two) and f'osd.{gone[0]} is kept out' in detail, detail
            # It stays as it is, and nobody else is touched.
            before = self.osds()
            time.sleep(pair_seconds())
            after = self.osds()
            assert self.up() == sorted(o for o in self.host_of if o != gone[0]), self.up()
            assert all(before[o]['up_from'] == after[o]['up_from'] for o in before), 'somebody went down and came back'
            self.all_go_on(what)
        finally:
            cut(False)
        stall, healed, self.stall = self.stall, time.time(), 0.0
        self.wait_osds(3)
        came = time.time() - healed
        self.wait_health('OSD_PAIR_UNREACHABLE', False)
        self.all_go_on('after the healing')
        self.wait_clean()
        self.say()
        print(f'  {what}: osd.{gone[0]} marked down after {marked:.1f} s, longest stall of any writer {stall:.1f} s; healed: back after '
              f'{came:.1f} s, longest stall {self.stall:.1f} s', flush=True)
        log = self.ceph('log', 'last', '100').out
        assert f'osd.{gone[0]} marked down: it and osd.{[o for o in two if o != gone[0]][0]} have not heard each other' in log, log
        return gone[0]

    def both(self, on, networks=(0, 1)):
        a, b = self.net['a'], self.net['b']
        for n in networks:
            a.deafen(b, on, n), b.deafen(a, on, n)

    def test_a_pair_cut_both_ways(self):
        self.pair('a pair cut both ways', self.both)

    def test_b_pair_cut_one_way(self):
        a, b = self.net['a'], self.net['b']
        self.pair('nothing from b arrives at a', lambda on: [b.deafen(a, on, n) for n in (0, 1)])

    @nightly
    def test_c0_pair_cut_for_long_while_nobody_may_be_marked_down(self):
        """Everything that waited between the two arrives when they are whole again."""
        self.stall = 0.0
        self.ceph('osd', 'set', 'nodown')
        self.all_go_on('before the cut')
        self.both(True)
        try:
            time.sleep(float(os.environ.get('NODOWN_SECONDS', '75')))
            assert len(self.up()) == 3, self.up()
            assert any(w['waits'] > 30 for w in self.say()), 'nothing waited'
        finally:
            self.both(False)
        took = self.all_go_on('after the healing')
        print(f'  a pair cut with nodown: all writers went on {took:.1f} s after the healing', flush=True)
        self.ceph('osd', 'unset', 'nodown')
        self.wait_clean()
        n, bad = self.tell('check')
        assert n and not bad, bad[:5]

    def test_c_cluster_network_of_a_pair_dead_and_the_public_one_alive(self):
        self.pair('a pair cut in the cluster network', lambda on: self.both(on, (1,)))

    def test_c1_cluster_network_of_a_pair_dead_one_way(self):
        a, b = self.net['a'], self.net['b']
        self.pair('nothing from b arrives at a in the cluster network', lambda on: b.deafen(a, on, 1))

    def test_d_refused_under_nodown_until_the_connection_is_whole_again(self):
        a, b = self.net['a'], self.net['b']
        self.stall = 0.0
        self.all_go_on('before')
        before = self.osds()
        self.ceph('osd', 'set', 'nodown')
        for n in (0, 1):
            a.usurp(b, True, n)
        try:
            # Who is there stays there, whoever says what.
            same = lambda: (now := self.osds()) and all(before[o]['up_from'] == now[o]['up_from'] and now[o]['up'] for o in before)
            holds(same, lambda: f'all OSDs as they were: {self.osds()}', pair_seconds())
            wait(lambda: max(w['waits'] for w in self.say()) > 2, 'a writer that waits')
        finally:
            for n in (0, 1):
                a.usurp(b, False, n)
            self.stall = 0.0
        self.all_go_on('refused under nodown, and healed')
        self.wait_health('OSD_PAIR_UNREACHABLE', False)
        after = self.osds()
        assert all(before[o]['up_from'] == after[o]['up_from'] for o in before), 'somebody went down and came back'
        self.ceph('osd', 'unset', 'nodown')
        self.wait_clean()
        print(f'  refused under nodown; healed: longest stall from then on {self.stall:.1f} s', flush=True)

    def test_e_each_osd_is_killed_in_turn_and_all_is_read_back(self):
        self.stall = 0.0
        for osd, host in sorted(self.host_of.items()):
            host.kill(f'osd.{osd}')
            wait(lambda: osd not in self.up(), f'osd.{osd} to be down')
            n, bad = self.tell('check')
            assert n and not bad, f'without osd.{osd}: {bad[:5]}'
            self.all_go_on(f'without osd.{osd}')
            host.start(f'osd.{osd}')
            self.wait_osds(3)
            self.wait_clean()
        print(f'  {n} objects read back without each OSD', flush=True)
