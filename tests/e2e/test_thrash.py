"""Thrash: 6 OSDs on 3 hosts (network namespaces, two networks), a verifying load, and everything that can go wrong.

OSDs and hosts are killed, stopped with SIGSTOP, cut off (both ways, one way, one network, from one other host only), stopped cleanly, taken out and
in, marked down; disks are swapped for empty ones (keeping their number, and by purge and a new one), bits are flipped in
store files, the disks are filled up with data (full_disks.py), and the cluster by lower ratios. One at a time and two at a time
(two victims of one fault, or two faults). In the end: no acknowledged write lost, no wrong byte, every PG active+clean,
deep scrub finds nothing.

The monitor and the manager are on a host of their own, which stays (their deaths: test_processes). What happens follows from
a seed (THRASH_SEED, else drawn; printed), for THRASH_MINUTES (default 1); `cargo xtask soak thrash` runs it
longer and keeps the report (THRASH_REPORT). THRASH_EVENTS=fill,kill: only these.
"""
import collections, json, os, random, re, shutil, signal, subprocess, tempfile, time
import netns
from full_disks import FullDisks
from test_processes import OsdHosts

# Writers, each with objects of its own, so that it knows what each must hold; every answer is checked. Readers look at
# others' objects: what they see must not be older than what was acknowledged before they asked. Data says what it is: every
# 32 bytes name writer, object, place and version. Requests have no time limit: an answer comes, or the run fails.
LOAD = r'''
import collections, json, os, random, struct, sys, threading, time, rados
conf, name, seed, pools, stop, verify = sys.argv[1:7]
REC, MAGIC = struct.Struct('<8sHHIQQ'), b'THRASH!\n'
end_, notes, lock = [False], [], threading.Lock()
ops, writes, slow, errors = [0], [0], [], []
def data(w, o, at, length, v):
    return b''.join(REC.pack(MAGIC, w, o, (at + i) // 32, v, v * 0x9E3779B97F4A7C15 & (1 << 64) - 1) for i in range(0, length, 32))
def connect():
    c = rados.Rados(conffile=conf, conf={'rados_osd_op_timeout': '0', 'rados_mon_op_timeout': '0'})
    c.connect(timeout=120)
    return c
def show(b, at):
    return [REC.unpack_from(b, i) for i in range(max(0, at - at % 32 - 32), min(len(b) - 31, at + 64), 32)]
registers = {}   # object -> newest acknowledged version
class Writer(threading.Thread):
    def __init__(self, w, pool, ec):
        super().__init__(daemon=True)
        self.w, self.pool, self.ec = w, pool, ec
        self.rng = random.Random(f'{seed}/{name}/{w}')
        self.model, self.meta, self.v = {}, {}, 0
        self.io = connect().open_ioctx(pool)
    def obj(self, o):
        return f'{name}-{self.w}-{o}'
    def step(self):
        r, o = self.rng, self.rng.randrange(24)
        self.v += 1
        n, have = self.obj(o), self.model.get(o)
        kind = r.choices(['full', 'part', 'append', 'read', 'remove', 'meta', 'register'], [6, 6, 3, 8, 1, 2, 4])[0]
        size = r.choice([32, 4096, 4096, 8192, 20000 // 32 * 32, 65536, 131072])
        if kind == 'part' and self.ec == 'append' or kind == 'meta' and self.ec:
            kind = 'full'
        if kind == 'append' and (not have or len(have) > 300000 or self.ec == 'append'):
            kind = 'full'
        writes[0] += kind != 'read'
        if kind == 'full':
            b = data(self.w, o, 0, size, self.v)
            self.io.write_full(n, b)
            self.model[o] = bytearray(b)
        elif kind == 'part':
            if have is None: have = bytearray()
            at = r.randrange(0, max(len(have), 64), 32)
            b = data(self.w, o, at, min(size, 65536), self.v)
            self.io.write(n, b, at)
            if len(have) < at: have.extend(bytes(at - len(have)))
            have[at:at + len(b)] = b
            self.model[o] = have
        elif kind == 'append':
            b = data(self.w, o, len(have), min(size, 20000 // 32 * 32), self.v)
            self.io.append(n, b)
            have.extend(b)
        elif kind == 'remove':
            try:
                self.io.remove_object(n)
                assert have is not None, f'{n} was removed twice'
            except rados.ObjectNotFound:
                assert have is None, f'{n} is gone'
            self.model.pop(o, None); self.meta.pop(o, None)
        elif kind == 'meta':
            if have is None:
                writes[0] -= 1
                return
            k, v = f'k{r.randrange(20)}', f'{self.v}'
            with rados.WriteOpCtx() as op:
                self.io.set_omap(op, (k,), (v.encode(),))
                op.set_xattr('version', v.encode())
                self.io.operate_write_op(op, n)
            m = self.meta.setdefault(o, {}); m[k] = v; m['version'] = v
        elif kind == 'register':
            n = f'reg-{name}-{self.w}-{o % 4}'
            self.io.write_full(n, data(self.w, o % 4, 0, 4096, self.v))
            registers[self.pool, n] = self.v
        else:
            self.check(o)
    def check(self, o):
        n, have = self.obj(o), self.model.get(o)
        try:
            got = self.io.read(n, 1 << 20)
        except rados.ObjectNotFound:
            assert have is None, f'{n} is gone, {len(have)} bytes were acknowledged'
            return
        assert have is not None, f'{n} is there, and was removed'
        assert len(got) == len(have), f'{n} has {len(got)} bytes, acknowledged were {len(have)}'
        if got != have:
            at = next(i for i in range(len(got)) if got[i] != have[i])
            raise AssertionError(f'{n} differs at {at} of {len(have)}: {show(got, at)}, acknowledged {show(have, at)}')
        meta = self.meta.get(o)
        if meta:
            v = self.io.get_xattr(n, 'version').decode()
            with rados.ReadOpCtx() as op:
                it, _ = self.io.get_omap_vals(op, '', '', 100)
                self.io.operate_read_op(op, n)
                omap = {k: v.decode() for k, v in it}
            assert {**omap, 'version': v} == meta, f'{n}: omap {omap}, xattr {v}, acknowledged {meta}'
    def run(self):
        try:
            while not os.path.exists(stop):
                begun = time.time()
                self.step()
                took = time.time() - begun
                ops[0] += 1
                if took > 0.5: slow.append((begun, took, self.pool))
        except Exception as e:
            errors.append(f'{type(e).__name__}: {e}')
class Reader(threading.Thread):
    def __init__(self, n):
        super().__init__(daemon=True)
        self.rng, self.c, self.ios = random.Random(f'{seed}/{name}/r{n}'), connect(), {}
    def run(self):
        try:
            while not os.path.exists(stop):
                known = list(registers.items())
                if not known:
                    time.sleep(0.1); continue
                (pool, n), _ = self.rng.choice(known)
                if pool not in self.ios: self.ios[pool] = self.c.open_ioctx(pool)
                least = registers[pool, n]
                got = self.ios[pool].read(n, 8192)
                seen = {REC.unpack_from(got, i)[4] for i in range(0, len(got), 32)}
                assert len(got) == 4096 and len(seen) == 1, f'{n} is torn: versions {seen}, {len(got)} bytes'
                assert min(seen) >= least, f'{n}: version {seen} was read after {least} was acknowledged'
                ops[0] += 1
                time.sleep(0.002)
        except Exception as e:
            errors.append(f'{type(e).__name__}: {e}')
writers = [Writer(w, *p.split(':')) for w, p in enumerate(pools.split(',') * 2)]
threads = writers + [Reader(0)]
print('begun', flush=True)
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps({'ops': ops[0], 'writes': writes[0], 'slow': slow, 'errors': errors}), flush=True)
while not os.path.exists(verify): time.sleep(0.2)
for w in writers:
    try:
        w.io = connect().open_ioctx(w.pool)
        for o in range(24): w.check(o)
    except Exception as e:
        errors.append(f'at the end: {type(e).__name__}: {e}')
print(json.dumps({'errors': errors, 'checked': sum(len(w.model) for w in writers), 'bytes': sum(len(b) for w in writers for b in w.model.values())}), flush=True)
os._exit(0)
'''

# Scrubs PGs: argv[2] says how, argv[3] names them.
SCRUB = r'''
import json, sys, rados
with rados.Rados(conffile=sys.argv[1], conf={'rados_mon_op_timeout': '30'}) as c:
    for pg in sys.argv[3].split(','):
        r = c.mgr_command(json.dumps({'prefix': f'pg {sys.argv[2]}', 'pgid': pg}), b'')
        assert r[0] == 0, r
'''

MAGIC = b'THRASH!\n'


class Thrash(FullDisks, OsdHosts):
    """A monitor's host, three hosts with two OSDs each, a client."""
    minutes = 4
    # Small, so that they can be filled.
    per_host, size = 2, '512M'

    def found(self):
        super().found()
        self.fsid = self.json('fsid')['fsid']

    # ---- what is asked of the cluster ----

    def osds(self):
        return sorted(self.host_of)

    def up(self, osd):
        return next(o['up'] for o in self.json('osd', 'dump')['osds'] if o['osd'] == osd)

    def clean(self):
        s = self.json('-s', timeout=120)
        by = s['pgmap'].get('pgs_by_state', [])
        up = s['osdmap']['num_up_osds'] == s['osdmap']['num_in_osds'] == len(self.host_of)
        return up and by and all(p['state_name'].startswith('active+clean') for p in by)

    def wait_clean(self, seconds=240):
        begun = time.time()
        while not self.clean():
            if time.time() > begun + seconds:
                detail = self.ceph('health', 'detail', check=False).out + self.ceph('-s', check=False).out
                stuck = self.ceph('pg', 'dump_stuck', 'unclean', check=False).out
                raise AssertionError(f'not clean after {seconds} s:\n{detail}{stuck}{self.ceph("osd", "tree", check=False).out}')
            time.sleep(0.2)
        return time.time() - begun

    def note(self, text):
        self.events.append((time.time() - self.begun, text))
        print(f'  {time.time() - self.begun:6.1f} s  {text}', flush=True)

    # ---- what is done to it; each gives back how it is undone ----

    def victims(self):
        """One OSD, two, or all of a host, as far as no other fault has them."""
        how = self.rng.choice(['one', 'one', 'two', 'host'])
        if how == 'host':
            self.scope = 'a whole host'
            h = self.net[self.rng.choice(self.hosts)]
            some = [o for o in self.osds() if self.host_of[o] is h and o not in self.busy]
            self.busy |= set(some)
            return f'host {h.name}', some
        self.scope = f'{how} at a time'
        some = self.rng.sample([o for o in self.osds() if o not in self.busy], 1 if how == 'one' else 2)
        self.busy |= set(some)
        return ' and '.join(f'osd.{o}' for o in some), some

    def start(self, osds):
        for o in osds:
            self.host_of[o].start(f'osd.{o}')

    def kill(self):
        what, some = self.victims()
        for o in some:
            self.host_of[o].kill(f'osd.{o}')
        return f'kill -9 {what}', lambda: self.start(some)

    def stop(self):
        what, some = self.victims()
        for o in some:
            self.host_of[o].stop(f'osd.{o}')
        return f'clean stop of {what}', lambda: self.start(some)

    def freeze(self):
        what, some = self.victims()
        for o in some:
            self.host_of[o].signal(f'osd.{o}', signal.SIGSTOP)
        return f'SIGSTOP {what}', lambda: [self.host_of[o].signal(f'osd.{o}', signal.SIGCONT) for o in some]

    def cut(self):
        self.scope = 'a whole host'
        h = self.net[self.rng.choice(self.hosts)]
        networks = self.rng.choice([[0], [1], [0, 1]])
        for n in networks:
            h.link(False, n)
        name = {0: 'public', 1: 'cluster'}
        return (f'host {h.name} cut off ({" and ".join(name[n] for n in networks)} network)',
                lambda: [h.link(True, n) for n in networks])

    def cut_two(self):
        self.scope = 'two hosts'
        some = [self.net[n] for n in self.rng.sample(self.hosts, 2)]
        for h in some:
            h.link(False, 0), h.link(False, 1)
        return (f'hosts {" and ".join(h.name for h in some)} cut off',
                lambda: [(h.link(True, 0), h.link(True, 1)) for h in some])

    def deafen(self):
        """What one host sends to the others is lost; what they send arrives."""
        h = self.net[self.rng.choice(self.hosts)]
        n, self.scope = self.rng.randrange(2), 'a whole host'
        others = [self.net[x] for x in self.hosts if x != h.name]
        some = others if self.rng.random() < 0.7 else others[:1]
        for x in some:
            h.deafen(x, True, n)
        return (f'nothing that host {h.name} sends to {" and ".join(x.name for x in some)} arrives (network {n})',
                lambda: [h.deafen(x, False, n) for x in some])

    def pair(self):
        """Two hosts do not hear each other; the third, the monitor and the clients hear both."""
        a, b = [self.net[x] for x in self.rng.sample(self.hosts, 2)]
        networks, both, self.scope = self.rng.choice([[0, 1], [0, 1], [1]]), self.rng.random() < 0.5, 'two hosts'
        ways = [(a, b), (b, a)] if both else [(a, b)]
        for x, y in ways:
            [x.deafen(y, True, n) for n in networks]
        what = f'hosts {a.name} and {b.name} do not hear each other' if both else f'host {b.name} does not hear host {a.name}'
        return (f'{what} (networks {networks})', lambda: [x.deafen(y, False, n) for x, y in ways for n in networks])

    def reset(self):
        """Each TCP connection of a host is reset, some times in a row: what was under way is sent again, once."""
        h, self.scope, times = self.net[self.rng.choice(self.hosts)], 'a whole host', self.rng.randrange(1, 6)
        for _ in range(times):
            h.run('ss', '-K', '-t', 'state', 'established')
            time.sleep(self.rng.choice([0, 0.05, 0.3]))
        return f'all connections of host {h.name} reset {times} times', lambda: None

    def refuse(self):
        """One host refuses the other's address, as a new process would: sessions with both ends alive are lost, under `nodown`
        without a down mark."""
        a, b = [self.net[x] for x in self.rng.sample(self.hosts, 2)]
        networks, nodown, self.scope = self.rng.choice([[0, 1], [1]]), self.rng.random() < 0.5, 'two hosts'
        if nodown:
            self.ceph('osd', 'set', 'nodown')
        for n in networks:
            a.usurp(b, True, n)

        def undo():
            for n in networks:
                a.usurp(b, False, n)
            if nodown:
                self.ceph('osd', 'unset', 'nodown')
        return f'host {a.name} refuses {b.name} (networks {networks}{", nodown" if nodown else ""})', undo

    def out(self):
        o = self.rng.choice(self.osds())
        self.ceph('osd', 'out', str(o))
        return f'osd.{o} out', lambda: self.ceph('osd', 'in', str(o))

    def down(self):
        o = self.rng.choice(self.osds())
        self.ceph('osd', 'down', str(o))
        return f'osd.{o} marked down', lambda: None

    def ratio(self):
        """Full is what holds this much already: clients' writes wait until there is room again."""
        self.ceph('osd', 'set-nearfull-ratio', '0.00001')
        self.ceph('osd', 'set-backfillfull-ratio', '0.00002')
        self.ceph('osd', 'set-full-ratio', '0.00003')

        def undo():
            self.ceph('osd', 'set-full-ratio', '0.95')
            self.ceph('osd', 'set-backfillfull-ratio', '0.90')
            self.ceph('osd', 'set-nearfull-ratio', '0.85')
        return 'the cluster is full by its ratio', undo

    def flip(self):
        """Bits flip in the stores of one host, always the same one: each object has a copy there, and two elsewhere."""
        o = self.rng.choice([o for o in self.osds() if self.host_of[o] is self.net[self.rotten]])
        h = self.host_of[o]
        h.kill(f'osd.{o}')
        flipped, path = 0, os.path.join(h.dir, f'osd.{o}', 'block')
        with open(path, 'r+b') as f:
            places, at, end = [], 0, os.path.getsize(path)
            while at < end:
                try:
                    at = os.lseek(f.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break
                f.seek(at)
                part = f.read(1 << 20)
                places += [at + m.start() for m in re.finditer(re.escape(MAGIC), part)]
                at += 1 << 20
            for place in self.rng.sample(places, min(4, len(places))):
                f.seek(place + 2)
                f.write(b'O')
                flipped += 1
        self.rot += flipped
        return f'{flipped} bytes rot in osd.{o}', lambda: self.start([o])

    def sound(self):
        """A disk goes for good only when no other copy is bad: rot that nobody has met yet is repaired."""
        self.wait_clean()
        if self.rot > self.rot_mended:
            self.scrub('repair')
            self.rot_mended = self.rot

    def swap(self):
        """An empty disk in the place of a full one, with the same number."""
        self.sound()
        o = self.rng.choice(self.osds())
        h, name = self.host_of[o], f'osd.{o}'
        safe = self.ceph('osd', 'ok-to-stop', str(o), check=False)
        h.stop(name)
        netns.wait(lambda: not self.up(o), f'{name} down')
        self.ceph('osd', 'destroy', str(o), '--force', '--yes-i-really-mean-it')
        d = os.path.join(h.dir, name)
        shutil.rmtree(d)
        made = json.loads(h.spirula('osd', 'prepare', d, '--osd-id', str(o), '--fsid', self.fsid, '--size', self.size, '--json').out)
        self.ceph('osd', 'new', made['osd_uuid'], str(o))
        key = self.ceph('auth', 'get-or-create', name, 'mon', 'allow profile osd', 'mgr', 'allow profile osd', 'osd', 'allow *').out
        with open(os.path.join(h.dir, f'ceph.{name}.keyring'), 'w') as f:
            f.write(key)
        h.start(name)
        assert safe.code == 0, safe
        return f'an empty disk for osd.{o}', self.wait_clean

    def replace(self):
        """An OSD is purged, and its host gets a new one."""
        self.sound()
        o = self.rng.choice(self.osds())
        h, name = self.host_of.pop(o), f'osd.{o}'
        h.stop(name)
        self.ceph('osd', 'purge', str(o), '--force', '--yes-i-really-mean-it')
        shutil.rmtree(os.path.join(h.dir, name))
        self.join(h.name, 1)
        return f'osd.{o} purged; {h.name} has {", ".join(f"osd.{x}" for x in self.osds() if self.host_of[x] is h)}', self.wait_clean

    # ---- the run ----

    def pools(self):
        made = [('rep', '')]
        self.ceph('osd', 'pool', 'create', 'rep', '16', '16')
        self.ceph('osd', 'erasure-code-profile', 'set', 'thrash', 'k=2', 'm=1', 'crush-failure-domain=host', check=False)
        ec = self.ceph('osd', 'pool', 'create', 'ec', '16', '16', 'erasure', 'thrash', check=False)
        if ec.code == 0:
            over = self.ceph('osd', 'pool', 'set', 'ec', 'allow_ec_overwrites', 'true', check=False)
            self.ceph('osd', 'pool', 'set', 'ec', 'min_size', '2')
            made.append(('ec', 'overwrites' if over.code == 0 else 'append'))
        else:
            print(f'  no erasure-coded pool: {ec.err.strip().splitlines()[-1:]}', flush=True)
        for name, _ in made:
            self.ceph('osd', 'pool', 'application', 'enable', name, 'thrash')
        return made

    def faults(self):
        """Each with how often it comes in a turn through all; and those that another may come beside."""
        often = [(self.kill, 3), (self.stop, 2), (self.freeze, 3), (self.cut, 3), (self.cut_two, 1), (self.deafen, 2), (self.pair, 2), (self.reset, 1),
                 (self.refuse, 1), (self.out, 2), (self.down, 1), (self.ratio, 1), (self.fill, 1), (self.flip, 2), (self.swap, 1), (self.replace, 1)]
        only = os.environ.get('THRASH_EVENTS', '').split(',')
        return [f for f, n in often for _ in range(n) if only == [''] or f.__name__ in only]

    BESIDE = ['kill', 'stop', 'freeze', 'cut', 'deafen', 'pair', 'reset', 'out', 'down']
    NAMES = {'kill': 'kill -9', 'stop': 'clean stop', 'freeze': 'SIGSTOP', 'cut': 'cut off, both ways', 'cut_two': 'cut off, both ways',
             'deafen': 'cut off, one way', 'pair': 'the link of two hosts dead',
             'reset': 'connections reset', 'refuse': 'connections refused', 'out': 'out and in', 'down': 'marked down', 'ratio': 'full by the ratio', 'fill': 'disks full of data',
             'flip': 'bytes rot in a store', 'swap': 'empty disk, same number', 'replace': 'purged, a new OSD'}

    def fault(self, f):
        self.scope = 'one at a time'
        what, undo = f()
        self.note(what)
        self.counts[self.NAMES[f.__name__], self.scope] += 1
        return what, undo

    def test_nothing_is_lost(self):
        seed = os.environ.get('THRASH_SEED') or str(random.randrange(1 << 31))
        minutes = float(os.environ.get('THRASH_MINUTES', '1'))
        print(f'  seed {seed} (THRASH_SEED), {minutes:g} minutes', flush=True)
        self.rng, self.begun, self.events = random.Random(seed), time.time(), []
        self.counts, self.errors, self.fillers, self.full_times = collections.Counter(), [], [], []
        self.rot = self.rot_mended = 0
        self.rotten = self.rng.choice(self.hosts)
        for who, name, value in [('osd', 'osd_max_markdown_count', '10000'), ('mon', 'mon_osd_adjust_heartbeat_grace', 'false'),
                                 ('mon', 'mon_osd_down_out_interval', '12'), ('osd', 'osd_scrub_auto_repair', 'true')]:
            self.ceph('config', 'set', who, name, value, check=name != 'osd_scrub_auto_repair')
        pools = self.made = self.pools()
        self.wait_clean()
        stop, verify = os.path.join(self.scratch, 'stop'), os.path.join(self.scratch, 'verify')
        arg = ','.join(f'{n}:{e}' for n, e in pools) if len(pools) > 1 else 'rep:,rep:'
        loads = [self.python(LOAD, f'c{i}', seed, arg, stop, verify) for i in range(2)]
        for p in loads:
            assert p.stdout.readline() == 'begun\n', p.stderr.read()
        time.sleep(3)
        times, end = [], time.time() + minutes * 60
        try:
            turn = []
            while time.time() < end:
                # In turns through all of them, so that a short run has every kind.
                if not turn:
                    turn = self.faults()
                    self.rng.shuffle(turn)
                f = turn.pop()
                self.busy = set()
                what, undo = self.fault(f)
                time.sleep(self.rng.choice([0.5, 2, 4, 7, 7, 15 if minutes > 5 else 5]))
                beside = [g for g in turn if g.__name__ in self.BESIDE]
                if f.__name__ in self.BESIDE and beside and self.rng.random() < 0.3:
                    g = self.rng.choice(beside)
                    turn.remove(g)
                    also, undo_also = self.fault(g)
                    self.counts['another fault beside one', 'two at a time'] += 1
                    time.sleep(self.rng.choice([0.5, 3, 6]))
                    # In either order.
                    if self.rng.random() < 0.5:
                        undo, undo_also = undo_also, undo
                    undo()
                    undo = undo_also
                    time.sleep(self.rng.choice([0, 1, 3]))
                undo()
                if self.rng.random() < 0.4 or 'rot in' in what:
                    took = self.wait_clean(480)
                    times.append(took)
                    self.note(f'clean after {took:.1f} s')
                else:
                    time.sleep(self.rng.choice([0, 0.5, 2]))
                assert all(p.poll() is None for p in loads), [p.stderr.read()[-3000:] for p in loads if p.poll() is not None]
            at_end = self.wait_clean(480)
            self.note(f'all undone: clean after {at_end:.1f} s')
        finally:
            open(stop, 'w').close()
            [p.kill() for p in self.fillers]
        results = [json.loads(self.line(p, 400)) for p in loads]
        errors = self.errors + [e for r in results for e in r['errors']]
        self.wait_clean()
        open(verify, 'w').close()
        checked = [json.loads(self.line(p, 400)) for p in loads]
        errors += [e for r in checked for e in r['errors'] if e not in errors]
        self.note(f'{sum(r["ops"] for r in results)} operations; {sum(r["checked"] for r in checked)} objects, '
                  f'{sum(r["bytes"] for r in checked) >> 20} MiB compared at the end')
        # Rot that nobody has read since is repaired first; then nothing may be found.
        rotten, found = self.scrub('repair'), self.scrub('deep-scrub')
        slow = sorted((s for r in results for s in r['slow']), key=lambda s: -s[1])
        self.report(seed, minutes, results, times, at_end, slow, errors, rotten, found)
        assert not errors, f'seed {seed}: ' + '\n'.join(errors)
        assert not found, f'seed {seed}: ' + '\n'.join(found)

    def line(self, p, seconds):
        """The next line of a load; one that does not come says where the cluster stands."""
        import select
        if not select.select([p.stdout], [], [], seconds)[0]:
            raise AssertionError(f'the load does not end within {seconds} s:\n' + self.ceph('-s', check=False).out +
                                 self.ceph('health', 'detail', check=False).out)
        line = p.stdout.readline()
        assert line, p.stderr.read()[-4000:]
        return line

    def scrub(self, turn):
        """Scrubs all PGs (deep-scrub or repair), and says which are inconsistent after it."""
        pools = [n for n, _ in self.made]
        ids = self.ids(pools)
        stamps = lambda: {s['pgid']: s for s in self.json('pg', 'dump', 'pgs')['pg_stats'] if int(s['pgid'].split('.')[0]) in ids}
        before, begun = stamps(), time.time()
        self.python(SCRUB, turn, ','.join(before)).communicate(timeout=300)

        def done():
            now = stamps()
            return all(s['last_deep_scrub_stamp'] != before[pg]['last_deep_scrub_stamp'] and 'scrub' not in s['state'] for pg, s in now.items())
        netns.wait(done, f'{turn} of {len(before)} PGs', 480)
        self.wait_clean()
        found = []
        for name in pools:
            for pg in json.loads(self.rados('list-inconsistent-pg', name).out):
                found.append(f'{turn}: {pg}: ' + self.rados('list-inconsistent-obj', pg, '--format=json').out[:2000])
        self.note(f'{turn} of {len(before)} PGs: {len(found)} inconsistent, {time.time() - begun:.0f} s')
        return found

    def ids(self, pools):
        return [p['pool_id'] if 'pool_id' in p else p['pool'] for p in self.json('osd', 'dump')['pools'] if p['pool_name'] in pools]

    def report(self, seed, minutes, results, times, at_end, slow, errors, rotten, found):
        begun = self.begun
        # By design nobody may write while the disks are full.
        full = lambda s: any(a < s[0] + s[1] and (b is None or s[0] < b) for a, b in self.full_times)
        stalls = [s for s in slow if not full(s)]
        total = lambda key: sum(r[key] for r in results)
        lines = [f'# Thrash, seed {seed}, {minutes:g} minutes', '',
                 f'* {sum(self.counts.values())} faults; {total("ops")} operations by 2 clients of 5 threads, of which {total("writes")} are writes '
                 f'that were acknowledged; {len(slow)} took over 0.5 s',
                 '* longest stalls: ' + ', '.join(f'{s[1]:.1f} s ({s[2]}, at {s[0] - begun:.0f} s)' for s in stalls[:6]) +
                 (f'; by full disks: {max((s[1] for s in slow if full(s)), default=0):.1f} s' if self.full_times else ''),
                 f'* time to clean after {len(times)} faults: ' + (f'median {sorted(times)[len(times) // 2]:.1f} s, longest {max(times):.1f} s; ' if times else '')
                 + f'at the end {at_end:.1f} s',
                 f'* acknowledged writes lost or wrong bytes read: {len(errors)}' + ''.join('\n  * ' + e for e in errors),
                 f'* scrub: {len(rotten)} PGs inconsistent after a repair of all, {len(found)} after the deep scrub that followed',
                 '', '| fault | how many at a time | times |', '|---|---|---|']
        lines += [f'| {what} | {scope} | {n} |' for (what, scope), n in sorted(self.counts.items())]
        lines += ['', '## Events', ''] + [f'* {t:7.1f} s {text}' for t, text in self.events]
        for line in lines[2:7]:
            print('  ' + line, flush=True)
        path = os.environ.get('THRASH_REPORT')
        if path:
            with open(path, 'w') as f:
                f.write('\n'.join(lines) + '\n')
