"""Disks that are really full: clients that fill the OSDs' stores with data until nothing more is taken."""
import json, os, subprocess, time
import netns

# Fills pools with objects of 1 MiB that say what they are: the first half as fast as it can, then slowly, so that the map can follow. Threads
# ask to be told (FULL_TRY); at ENOSPC they end. Then some is forced (FULL_FORCE) until that is refused, too: the stores are at
# their last reserve. Commands on stdin: "check" compares everything that was acknowledged, "free" deletes it all.
FILL = r'''
import errno, json, sys, threading, time, rados
conf, tag, pools = sys.argv[1], sys.argv[2], sys.argv[3].split(',')
TRY, FORCE, SIZE = 64, 128, 1 << 20
c = rados.Rados(conffile=conf, conf={'rados_osd_op_timeout': '0', 'rados_mon_op_timeout': '0'})
c.connect(timeout=60)
ios = {p: c.open_ioctx(p) for p in pools}
data = lambda n: (b'%-31s\n' % n.encode()) * (SIZE // 32)
acked, refused, levels, pause, errors = [], [], set(), [0.0], []
free = c.get_cluster_stats()['kb_avail'] * 1024
ORDER = ['nearfull', 'backfillfull', 'full']
def write(pool, n, flags):
    with rados.WriteOpCtx() as op:
        op.write_full(data(n))
        ios[pool].operate_write_op(op, n, 0, flags)
    acked.append((pool, n))
def fill(t, flags, most):
    try:
        for i in range(most):
            time.sleep(pause[0])
            n = f'{tag}-{flags}-{t}-{i}'
            try:
                write(pools[(t + i) % len(pools)], n, flags)
            except rados.Error as e:
                if getattr(e, 'errno', None) not in (errno.ENOSPC, -errno.ENOSPC): raise
                refused.append(n)
                return
    except Exception as e:
        errors.append(f'fill: {type(e).__name__}: {e}')
def run(flags, most):
    threads = [threading.Thread(target=fill, args=(t, flags, most)) for t in range(6)]
    [t.start() for t in threads]
    while any(t.is_alive() for t in threads):
        dump = json.loads(c.mon_command(json.dumps({'prefix': 'osd dump', 'format': 'json'}), b'')[1])
        levels.update(s for o in dump['osds'] for s in o['state'] if s in ORDER)
        # An object takes three times its size, or one and a half.
        if levels or len(acked) * SIZE * 2.25 > free * 0.55: pause[0] = 0.5
        time.sleep(0.1)
begun = time.time()
run(TRY, 1 << 20)
told, n = len(refused), len(acked)
pause[0] = 0.0
run(TRY | FORCE, 400)
print(json.dumps({'bytes': n * SIZE, 'forced': (len(acked) - n) * SIZE, 'told': told, 'refused_force': len(refused) - told,
                  'levels': [l for l in ORDER if l in levels], 'seconds': time.time() - begun, 'errors': errors}), flush=True)
def each(work):
    todo, lock, bad = list(acked), threading.Lock(), []
    def go():
        while True:
            with lock:
                if not todo: return
                pool, n = todo.pop()
            try: work(pool, n)
            except Exception as e: bad.append(f'{n} in {pool}: {type(e).__name__}: {e}')
    threads = [threading.Thread(target=go) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return bad
def check(pool, n):
    got = ios[pool].read(n, SIZE + 1)
    assert got == data(n), f'{len(got)} bytes, {got[:64]}'
def free(pool, n):
    with rados.WriteOpCtx() as op:
        op.remove()
        ios[pool].operate_write_op(op, n, 0, FORCE)
for line in sys.stdin:
    bad = each({'check': check, 'free': free}[line.strip()])
    print(json.dumps({'objects': len(acked), 'errors': bad[:5]}), flush=True)
'''


class FullDisks:
    """For a `Thrash`: the fault, and what must be so while it lasts."""
    grown = 0

    def fill(self):
        """Every disk is filled with data until clients are told that there is no space."""
        self.wait_clean()
        pools = ','.join(n for n, _ in self.made)
        p = self.python(FILL, f'fill-{len(self.events)}', pools)
        self.fillers.append(p)
        begun = time.time()
        got = json.loads(self.line(p, 1200))
        self.errors += got['errors']
        assert got['told'] and got['refused_force'], got
        netns.wait(lambda: {'OSD_FULL', 'POOL_FULL'} <= set(self.json('health')['checks']), 'OSD_FULL and POOL_FULL')
        # The lower levels may be passed between two reports of an OSD, if the monitors hear late of them.
        assert 'full' in got['levels'], got
        used = sorted(o['utilization'] for o in self.json('osd', 'df')['nodes'])
        # Who does not ask to be told waits; whoever reads is served.
        some = self.sample()
        put = self.client.run(*self.clients.wrap(['timeout', '3', 'rados', '-c', self.conf, '-p', self.made[0][0], 'put', 'waits', some]), check=False)
        assert put.code == 124, put
        self.tell(p, 'check')
        extra = self.rng.choice([self.beside_out, self.beside_kill, lambda: 'nothing'])()
        self.full_times.append((begun, None))
        text = (f'disks full ({", ".join(got["levels"])}): {got["bytes"] >> 20} MiB were taken in {got["seconds"]:.0f} s until ENOSPC, {got["forced"] >> 20} MiB more by force; '
                f'use {used[0]:.1f} to {used[-1]:.1f} %; beside it {extra}')

        def undo():
            how = 'by deleting'
            if self.grown < 1 and self.rng.random() < 0.5:
                how, self.grown = 'by larger devices', self.grown + 1
                self.grow()
                self.tell(p, 'check')
                self.wait_room()
            self.tell(p, 'free')
            self.wait_room()
            p.stdin.close()
            p.wait(timeout=240)
            self.fillers.remove(p)
            self.full_times[-1] = (begun, time.time())
            self.note(f'room again {how}')
        return text, undo

    def tell(self, p, word):
        p.stdin.write(word + '\n')
        p.stdin.flush()
        got = json.loads(self.line(p, 1200))
        self.errors += got['errors']

    def wait_room(self):
        netns.wait(lambda: not {'OSD_FULL', 'POOL_FULL'} & set(self.json('health')['checks']), 'no full OSD')

    def grow(self):
        """All get larger devices, one after the other."""
        self.size = f'{int(self.size[:-1]) + 128}M'
        for o in self.osds():
            h, name = self.host_of[o], f'osd.{o}'
            h.stop(name)
            h.spirula('osd', 'grow', os.path.join(h.dir, name), '--size', self.size)
            h.start(name)
            self.wait_placed()

    def wait_placed(self):
        """Clean, but for what has no room in its place: what an OSD gave away while it was out may not fit there any more."""
        def placed():
            s = self.json('-s')
            up = s['osdmap']['num_up_osds'] == s['osdmap']['num_in_osds'] == len(self.host_of)
            names = [p['state_name'] for p in s['pgmap'].get('pgs_by_state', [])]
            return up and names and all(n.startswith('active+clean') or 'backfill_toofull' in n for n in names)
        netns.wait(placed, 'clean, or waiting for room')

    def beside_out(self):
        """What an OSD holds that goes out has no place: backfills wait, and say why."""
        o = self.rng.choice(self.osds())
        self.ceph('osd', 'out', str(o))
        try:
            def waits():
                by = self.json('-s')['pgmap'].get('pgs_by_state', [])
                return any('backfill_toofull' in s['state_name'] for s in by) and 'PG_BACKFILL_FULL' in self.json('health')['checks']
            netns.wait(waits, 'backfill_toofull')
        finally:
            self.ceph('osd', 'in', str(o))
        self.wait_placed()
        return f'osd.{o} out: backfill_toofull'

    def beside_kill(self):
        o = self.rng.choice(self.osds())
        self.host_of[o].kill(f'osd.{o}')
        netns.wait(lambda: not self.up(o), f'osd.{o} down')
        self.host_of[o].start(f'osd.{o}')
        self.wait_clean()
        return f'osd.{o} killed and started'
