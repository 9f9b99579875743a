"""Acknowledged is durable: real files, kill -9 under load, restart, everything reads back."""
import json, os, time
from harness import Case, wait

# How often the cluster is killed under load (`cargo xtask soak kill9`: 200).
KILLS = int(os.environ.get('SPIRULA_KILLS', '12'))

STORE_DOCS = '''
# Stores every file below /usr/share/doc in two pools; every third with an xattr, every fifth with omap.
import hashlib, json, os, rados, sys
with rados.Rados(conffile=sys.argv[1]) as r:
    ios = [r.open_ioctx('docs1'), r.open_ioctx('docs2')]
    table, waiting = {}, []
    paths = [os.path.join(d, f) for d, _, fs in os.walk('/usr/share/doc') for f in fs]
    for n, p in enumerate(sorted(p for p in paths if os.path.isfile(p) and not os.path.islink(p))[:6000]):
        data = open(p, 'rb').read()
        io = ios[n % 2]
        waiting.append(io.aio_write_full(p, data))
        x = n % 3 == 0
        if x:
            io.set_xattr(p, 'sum', hashlib.sha256(data).hexdigest().encode())
        if n % 5 == 0:
            with rados.WriteOpCtx() as op:
                io.set_omap(op, ('path', 'n'), (p.encode(), b'%d' % n)); io.operate_write_op(op, p)
        table[p] = [n % 2, hashlib.sha256(data).hexdigest(), len(data), x, n % 5 == 0, n]
        while len(waiting) > 64:
            c = waiting.pop(0)
            if c: c.wait_for_complete(); assert c.get_return_value() == 0
    for c in waiting:
        if c: c.wait_for_complete(); assert c.get_return_value() == 0
    json.dump(table, open(sys.argv[2], 'w'))
'''

CHECK_DOCS = '''
import hashlib, json, rados, sys
table = json.load(open(sys.argv[2]))
with rados.Rados(conffile=sys.argv[1]) as r:
    ios = [r.open_ioctx('docs1'), r.open_ioctx('docs2')]
    for i, io in enumerate(ios):
        listed = [o.key for o in io.list_objects()]
        assert sorted(listed) == sorted(p for p in table if table[p][0] == i), 'the listing differs'
    for p, (i, digest, size, x, m, n) in table.items():
        io = ios[i]
        assert io.stat(p)[0] == size, p
        assert hashlib.sha256(io.read(p, size + 1)).hexdigest() == digest, p
        if x: assert io.get_xattr(p, 'sum') == digest.encode(), p
        if m:
            with rados.ReadOpCtx() as op:
                it, _ = io.get_omap_vals(op, '', '', 10); io.operate_read_op(op, p)
                assert dict(it) == {'path': p.encode(), 'n': b'%d' % n}, p
print(len(table))
'''

LOAD = '''
# Writes until a file is there, through all deaths of the cluster; notes each acknowledged write (object, counter) at once.
import os, rados, struct, sys, threading
from itertools import repeat
r = rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '60', 'rados_mon_op_timeout': '60', 'client_mount_timeout': '240'}); r.connect()
io = r.open_ioctx('data')
lock, stop = threading.Lock(), sys.argv[3]
out = open(sys.argv[2], 'a')
def one(k):
    n = 0
    while not os.path.exists(stop):
        n += 1
        i = n % 40
        name, size = f'load-{k}-{i}', (4096 if n % 7 else 300000)
        # Each 16 bytes say which object, where in it, and which version.
        data = b''.join(map(struct.Struct('<HHIQ').pack, repeat(k), repeat(i), range(0, size // 16 * 16, 16), repeat(n, size // 16)))
        # What was not acknowledged may be there or not.
        try: io.write_full(name, data)
        except rados.Error: continue
        with lock: out.write(f'{name} {k} {n} {size}\\n'); out.flush()
        try: io.append(f'log-{k}', struct.pack('<Q', n))
        except rados.Error: continue
        with lock: out.write(f'log-{k} {k} {n} 0\\n'); out.flush()
ts = [threading.Thread(target=one, args=(k,), daemon=True) for k in range(8)]
for t in ts: t.start()
for t in ts: t.join()
'''

CHECK_LOAD = '''
# Every acknowledged write is there or overwritten by a later one of the same writer; nothing is torn. Once, or
# again and again until a file is there.
import os, rados, struct, sys
conf = {'rados_osd_op_timeout': '400', 'rados_mon_op_timeout': '400', 'client_mount_timeout': '400'}
def check(io):
    last, appended = {}, {}
    for line in open(sys.argv[2]):
        f = line.split()
        if len(f) != 4 or not line.endswith('\\n'): continue
        name, k, n, size = f[0], int(f[1]), int(f[2]), int(f[3])
        if size: last[name] = (k, n, size)
        else: appended.setdefault(name, []).append(n)
    for name, (k, n, size) in last.items():
        data = io.read(name, 400000)
        assert len(data) in (4096, 300000 // 16 * 16), (name, len(data))
        found = list(struct.iter_unpack('<HHIQ', data))
        gn = found[0][3]
        want = (k, int(name.split('-')[2]))
        for at, (gk, gi, offset, version) in enumerate(found):
            assert (gk, gi) == want and offset == at * 16, f'{name}: at {at * 16} stands {offset} of load-{gk}-{gi}'
            assert version == gn, f'{name} is torn: version {gn} at 0, {version} at {at * 16}'
        assert gn >= n, f'{name}: acknowledged {n}, found {gn}'
    for name, acked in appended.items():
        size = io.stat(name)[0]
        data = b''
        while len(data) < size: data += io.read(name, size - len(data), len(data))
        found = [v for v, in struct.iter_unpack('<Q', data)]
        assert len(found) == len(set(found)), f'{name}: an append was applied twice'
        assert found == sorted(found), f'{name}: appends out of order'
        assert set(acked) <= set(found), f'{name}: acknowledged appends are missing: {sorted(set(acked) - set(found))[:5]}'
    return len(last), sum(map(len, appended.values()))
with rados.Rados(conffile=sys.argv[1], conf=conf) as r, r.open_ioctx('data') as io:
    rounds = 0
    while True:
        objects, appends = check(io)
        rounds += 1
        if len(sys.argv) < 4 or os.path.exists(sys.argv[3]): break
print(objects, appends, rounds)
'''


class Durability(Case):
    args = ['--osd-size', '1G']

    def test_1_documents_survive_kill_9(self):
        for p in ('docs1', 'docs2'):
            self.c.ceph('osd', 'pool', 'create', p, '16')
            self.c.ceph('osd', 'pool', 'application', 'enable', p, 'docs')
        table = os.path.join(self.scratch, 'docs.json')
        self.c.python(STORE_DOCS, table)
        self.c.kill()
        self.c.up()
        n = int(self.c.python(CHECK_DOCS, table).out)
        assert n > 500, f'only {n} files below /usr/share/doc'
        # list, stat and df agree
        self.c.wait_clean()
        df = lambda: json.loads(self.c.rados('df', '--format', 'json').out)['pools']
        counted = lambda: sum(int(p['num_objects']) for p in df() if p['name'].startswith('docs'))
        wait(lambda: counted() == n, f'{n} objects in rados df')
        self.table = table

    def test_2_nothing_acknowledged_is_lost_by_kill_9_under_load(self):
        acks, stop = os.path.join(self.scratch, 'acks'), os.path.join(self.scratch, 'stop')
        open(acks, 'w').close()
        load = self.c.python(LOAD, acks, stop, wait=False)
        verifier = self.c.python(CHECK_LOAD, acks, stop, wait=False)
        begun = said = time.time()
        try:
            for turn in range(KILLS):
                # Not before the clients write again; then for a second or so.
                size = os.path.getsize(acks)

                def written():
                    assert load.poll() is None and verifier.poll() is None, (load.poll(), verifier.communicate())
                    return os.path.getsize(acks) > size
                wait(written, f'writes after kill {turn}', pause=0.02)
                time.sleep(0.2 + 0.25 * (turn * 5 % 7))
                self.c.kill()
                self.c.up()
                if time.time() > said + 10:
                    said = time.time()
                    print(f'{turn + 1} kills in {said - begun:.0f} s', flush=True)
        finally:
            open(stop, 'w').close()
            load.wait(timeout=300)
            out, err = verifier.communicate(timeout=900)
        assert verifier.returncode == 0, err
        rounds = out.split()[2]
        objects, appends, _ = self.c.python(CHECK_LOAD, acks).out.split()
        # At least one write was acknowledged before each kill; how many more is a matter of speed.
        with open(acks) as f:
            assert len(f.readlines()) >= KILLS and int(appends) > 0, appends
        print(f'{KILLS} kills, {objects} objects and {appends} appends acknowledged, {rounds} rounds of a verifier meanwhile')

    def test_3_documents_are_still_there_after_it_all(self):
        self.c.kill()
        self.c.up()
        self.c.python(CHECK_DOCS, getattr(self, 'table'))
        self.c.wait_healthy()
