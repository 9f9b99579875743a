"""Somebody is slow, and what it costs the others.

A client that does not take its answers: it costs nobody else anything, and the OSD says who it is. An OSD that stands still (SIGSTOP) with
all its connections open: clients go on without it, nobody reads what is old when it wakes up, and the longest wait is printed.

How long anybody waits is a figure. What decides is that others go on while the one stands still.

FROZEN_TIMES (default 1): how often each OSD is stopped; FROZEN_SECONDS (default 0): for how long at least; FROZEN_ONLY: letters of the hosts whose
OSDs are stopped (default: a, and all of them by night).
"""
import json, os, signal, subprocess, time
import harness, netns
from harness import Case, holds, repeated, wait
from test_processes import OsdHosts

SLOW = '''
# Asks for far more than fits anywhere, then says so; it is stopped before it takes much of it.
import rados, sys, time
conf, objects, pool = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with rados.Rados(conffile=conf, conf={'objecter_inflight_ops': '100000', 'objecter_inflight_op_bytes': '100G'}) as r:
    with r.open_ioctx(pool) as io:
        good = []
        asked = [io.aio_read(f'o{i % objects}', 4 << 20, 0, lambda _, data: good.append(len(data or b''))) for i in range(900)]
        print('asked', flush=True)
        sys.stdin.readline()
        for c in asked:
            c.wait_for_complete_and_cb()
        print('got', len(good), sum(good), flush=True)
'''

OTHER = '''
# Reads the same objects and small ones, and writes, as anybody would; prints each operation's slowest, in seconds.
import json, rados, sys, time
conf, objects, pool = sys.argv[1], int(sys.argv[2]), sys.argv[3]
slowest = {'large read': 0.0, 'small read': 0.0, 'write': 0.0}
def timed(what, ask):
    began = time.monotonic()
    got = ask()
    slowest[what] = max(slowest[what], time.monotonic() - began)
    return got
with rados.Rados(conffile=conf) as r, r.open_ioctx(pool) as io:
    for i in range(objects):
        assert len(timed('large read', lambda: io.read(f'o{i}', 4 << 20))) == 4 << 20
        assert timed('small read', lambda: io.read(f's{i}')) == b'small'
        timed('write', lambda: io.write_full(f'w{i}', b'w' * (1 << 20)))
print(json.dumps(slowest))
'''

HUNGRY = '''
# Asks for all keys with their values, or all attributes, many times at once.
import rados, sys, threading, time
r = rados.Rados(conffile=sys.argv[1], conf={'objecter_inflight_ops': '100000'})
r.connect()
io = r.open_ioctx('kv')
def keys():
    while True:
        with rados.ReadOpCtx() as op:
            io.get_omap_vals(op, '', '', 1024)
            io.operate_read_op(op, 'keys')
def attrs():
    while True:
        list(io.get_xattrs('attrs'))
for _ in range(150):
    threading.Thread(target=globals()[sys.argv[2]], daemon=True).start()
print('asked', flush=True)
time.sleep(600)
'''


# What the cluster may take more for answers that nobody reads, bytes; they are held to a share of its 256 MiB. Seen: 22 MiB; all that is
# asked for at a time is 225 MiB of keys, or 1.2 GiB of attributes.
MORE = 192 << 20


class Slow(Case):
    args = ['--osds', '3', '--osd-size', '2G', '--memory', '256M']
    objects = 30

    def test_1_a_reader_that_stops_costs_nobody_else_anything(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'p', '8', '8')
        c.ceph('osd', 'pool', 'set', 'p', 'size', '2')
        c.wait_clean()
        self.slow('p')

    def test_2_nor_does_one_of_an_erasure_coded_pool(self):
        c = self.c
        c.ceph('osd', 'pool', 'delete', 'p', 'p', '--yes-i-really-really-mean-it')
        c.ceph('osd', 'erasure-code-profile', 'set', 'e', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'e')
        c.wait_clean()
        self.slow('ec')

    def slow(self, pool):
        c = self.c
        c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx(sys.argv[3]) as io:
    for i in range(int(sys.argv[2])):
        io.write_full(f'o{i}', bytes([i]) * (4 << 20))
        io.write_full(f's{i}', b'small')
''', self.objects, pool)
        path = os.path.join(c.scratch, 'slow.py')
        open(path, 'w').write(SLOW)
        p = subprocess.Popen(c.clients.python() + [path, c.conf, str(self.objects), pool],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert p.stdout.readline() == 'asked\n'
            flying = lambda: [op for i in range(3) for op in c.json('tell', f'osd.{i}', 'dump_ops_in_flight')['ops']]
            wait(flying, 'its requests at the OSDs')
            os.kill(p.pid, signal.SIGSTOP)
            # Until what it asked for has filled what it may fill: nothing of it moves any more.
            wait(lambda: (n := len(flying())) and n == len(flying()), 'its requests to stand still')
            # Others get all that they ask for while it stands.
            slowest = json.loads(c.python(OTHER, self.objects, pool).out)
            print(f'  {pool}: others beside it, at most: ' + ', '.join(f'{what} {s:.2f} s' for what, s in slowest.items()), flush=True)
            # Whose requests are open, and which: by name and address, with the objects.
            ops = flying()
            assert ops and all('osd_op(client.' in op['description'] and '~4194304' in op['description'] for op in ops), ops[:3]
            # Its requests, and nobody else's.
            assert len({op['description'].split('osd_op(')[1].split(':')[0] for op in ops}) == 1, ops[:3]
            os.kill(p.pid, signal.SIGCONT)
            # And it gets all that it asked for.
            out, _ = p.communicate('\n', timeout=harness.PATIENCE)
            assert out == f'got 900 {900 << 22}\n', out
        finally:
            p.kill()

    def test_3_answers_of_every_kind_count_not_only_data(self):
        """Keys and values and attributes are asked for by many at once, by one who then reads nothing."""
        c = self.c
        c.ceph('osd', 'pool', 'create', 'kv', '8', '8')
        c.wait_clean()
        c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('kv') as io:
    for n in range(8):
        with rados.WriteOpCtx() as op:
            keys = tuple(f'k{n}.{i:04}' for i in range(128))
            io.set_omap(op, keys, tuple(b'v' * (12 << 10) for _ in keys))
            io.operate_write_op(op, 'keys')
    for i in range(8):
        io.set_xattr('attrs', f'a{i}', b'x' * (1 << 20))
''')
        for kind in 'keys', 'attrs':
            before = self.rss()
            p = c.python(HUNGRY, kind, wait=False)
            try:
                assert p.stdout.readline() == 'asked\n'
                time.sleep(1)
                os.kill(p.pid, signal.SIGSTOP)
                most, end = 0, time.monotonic() + 3
                while time.monotonic() < end:
                    most = max(most, self.rss())
                    time.sleep(0.1)
                c.rados('-p', 'kv', 'put', 'other', self.sample())
            finally:
                p.kill()
                p.communicate()
            print(f'  {kind}: {(most - before) >> 20} MiB more', flush=True)
            assert most - before < MORE, f'{kind}: {(most - before) >> 20} MiB'

    def rss(self):
        text = open(f'/proc/{self.c.pid()}/status').read()
        return next(int(l.split()[1]) for l in text.splitlines() if l.startswith('VmRSS')) << 10


# Writers with an object each, and readers that look at them: what is read is never older than what was acknowledged before. Commands come by
# stdin: `say` prints the longest waits of writers and of readers since the last `say`, the requests so far, and what was wrong; `look` prints
# the same and begins no new stretch; `end` ends.
WRITE_READ = r'''
import json, os, random, struct, sys, threading, time, rados
conf, pool = sys.argv[1:3]
N = 12
connections = [rados.Rados(conffile=conf, conf={'rados_osd_op_timeout': '0', 'rados_mon_op_timeout': '0'}) for _ in range(4)]
[c.connect(timeout=60) for c in connections]
acked, errors, ended = [0] * 2 * N, [], []
class Worker(threading.Thread):
    def __init__(self, n, step):
        super().__init__(daemon=True)
        self.n, self.step, self.io = n, step, connections[n % 4].open_ioctx(pool)
        self.longest, self.done, self.since, self.rng = 0.0, 0, time.time(), random.Random(n)
    def run(self):
        while not ended:
            try: self.step(self)
            except Exception as e:
                errors.append(f'{type(e).__name__}: {e}')
                return
            now = time.time()
            self.longest, self.since, self.done = max(self.longest, now - self.since), now, self.done + 1
            time.sleep(0.01)
            self.since = time.time()
    def worst(self, keep):
        worst = max(self.longest, time.time() - self.since)
        if not keep: self.longest = 0.0
        return worst
def write(w):
    for o in (w.n, w.n + N):
        w.io.write_full(f'v{o}', struct.pack('<Q', w.done + 1) * 512)
        acked[o] = w.done + 1
def read(w):
    o = w.rng.randrange(2 * N)
    least = acked[o]
    if least:
        got = struct.unpack('<512Q', w.io.read(f'v{o}', 4096))
        assert len(set(got)) == 1 and got[0] >= least, f'v{o}: {set(got)} was read, and {least} was acknowledged before'
writers, readers = [Worker(n, write) for n in range(N)], [Worker(n, read) for n in range(N)]
[w.start() for w in writers + readers]
print('begun', flush=True)
for line in sys.stdin:
    if line.strip() not in ('say', 'look'): break
    keep = line.strip() == 'look'
    print(json.dumps({'write': max(w.worst(keep) for w in writers), 'read': max(w.worst(keep) for w in readers),
                      'done': [w.done for w in writers + readers], 'errors': errors}), flush=True)
ended.append(1)
[w.join() for w in writers + readers]
'''


class Frozen(OsdHosts):
    """An OSD on each of three hosts, each with a copy of everything; each is stopped by SIGSTOP in turn."""
    minutes = 1

    def found(self):
        super().found()
        self.ceph('osd', 'pool', 'create', 'data', '16', '16')
        # So that what is printed is of one stop, whatever was before.
        self.ceph('config', 'set', 'mon', 'mon_osd_adjust_heartbeat_grace', 'false')
        self.ceph('config', 'set', 'osd', 'osd_max_markdown_count', '10000')

    def say(self, load, keep=False):
        """What has been done so far, and the longest waits since the last word that did not `keep` them."""
        assert load.poll() is None, load.stderr.read()[-3000:]
        load.stdin.write('look\n' if keep else 'say\n')
        load.stdin.flush()
        said = json.loads(load.stdout.readline())
        assert not said['errors'], said['errors'][:3]
        return said

    def up(self):
        return sorted(o['osd'] for o in self.json('osd', 'dump')['osds'] if o['up'])

    def go_on(self, load, what, osd=None):
        """Each worker does something from now on. The longest waits are kept for whoever tells them."""
        before, last = self.say(load, keep=True)['done'], []
        def done():
            last[:] = self.say(load, keep=True)['done']
            return all(now > then for now, then in zip(last, before))
        still = lambda: [n for n, (now, then) in enumerate(zip(last, before)) if now <= then]
        wait(done, lambda: f'{what}: workers {still()} stand still\n{self.where(osd)}')

    def test_clients_go_on_without_an_osd_that_stands_still(self):
        times, seconds = int(os.environ.get('FROZEN_TIMES', '1')), float(os.environ.get('FROZEN_SECONDS', '0'))
        only = os.environ.get('FROZEN_ONLY', 'abc' if harness.NIGHTLY else 'a')
        load = self.python(WRITE_READ, 'data')
        assert load.stdout.readline() == 'begun\n', load.stderr.read()
        try:
            for osd, host in sorted(self.host_of.items()) * times:
                if host.name not in only:
                    continue
                # Whoever is new is given the whole grace.
                time.sleep(6)
                usual, begun = self.say(load), time.time()
                host.signal(f'osd.{osd}', signal.SIGSTOP)
                try:
                    wait(lambda: osd not in self.up(), f'osd.{osd} to be marked down')
                    down = time.time() - begun
                    self.go_on(load, f'without osd.{osd}', osd)
                    time.sleep(max(0, seconds - time.time() + begun))
                    stopped = self.say(load)
                finally:
                    host.signal(f'osd.{osd}', signal.SIGCONT)
                self.wait_osds(3)
                self.wait_clean()
                self.go_on(load, f'osd.{osd} is back')
                after = self.say(load)
                marked = [l for l in self.ceph('log', 'last', '60').out.splitlines() if f'osd.{osd} failed (' in l][-1:]
                print(f'  osd.{osd} stopped for {time.time() - begun:.0f} s: longest write {stopped["write"]:.2f} s, read {stopped["read"]:.2f} s '
                      f'(before: {usual["write"]:.2f} s, {usual["read"]:.2f} s; from waking up until clean: {after["write"]:.2f} s, '
                      f'{after["read"]:.2f} s); seen down after {down:.1f} s; {" ".join(l.split("failed ")[1] for l in marked)}', flush=True)
        finally:
            load.kill()
            load.communicate()

    def test_one_that_is_marked_down_and_lives_costs_little(self):
        load = self.python(WRITE_READ, 'data')
        assert load.stdout.readline() == 'begun\n', load.stderr.read()
        try:
            for osd in sorted(self.host_of)[:repeated(3)] * int(os.environ.get('FROZEN_TIMES', '1')):
                time.sleep(2)
                usual, before = self.say(load), self.since(osd)
                self.ceph('osd', 'down', str(osd))
                wait(lambda: self.since(osd) > before and osd in self.up(), f'osd.{osd} to be up again')
                self.wait_clean()
                self.go_on(load, f'osd.{osd} was marked down')
                after = self.say(load)
                print(f'  osd.{osd} marked down, and lives: longest write {after["write"]:.2f} s, read {after["read"]:.2f} s (before: '
                      f'{usual["write"]:.2f} s, {usual["read"]:.2f} s)', flush=True)
        finally:
            load.kill()
            load.communicate()

    def test_hosts_that_were_cut_off_accuse_nobody_when_they_are_back(self):
        """Two of three hosts miss everybody. When they reach the monitor again, the third is none of those that are silent."""
        cut, (third,) = [self.net[n] for n in 'ab'], [o for o, h in self.host_of.items() if h.name == 'c']
        for _ in range(repeated(3)):
            before = self.since(third)
            try:
                [h.link(False, n) for h in cut for n in (0, 1)]
                # For longer than it takes to miss somebody.
                time.sleep(8)
            finally:
                [h.link(True, n) for h in cut for n in (0, 1)]
            self.wait_osds(3)
            self.wait_clean()
            holds(lambda: self.since(third) == before, lambda: f'osd.{third} left alone:\n{self.ceph("log", "last", "40").out}', 5)

    def where(self, gone):
        """Where the cluster stands, for a reader of a failure."""
        ops = ''.join(self.ceph('tell', f'osd.{o}', 'dump_ops_in_flight', check=False).out + self.ceph('tell', f'osd.{o}', 'dump_backoffs', check=False).out for o in self.host_of if o != gone)
        return self.ceph('-s').out + self.ceph('pg', 'dump', 'pgs_brief', check=False).out + ops

    def since(self, osd):
        return next(o['up_from'] for o in self.json('osd', 'dump')['osds'] if o['osd'] == osd)
