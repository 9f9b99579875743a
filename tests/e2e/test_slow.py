"""A client that does not take its answers: it costs nobody else anything, and the OSD says who it is."""
import os, signal, subprocess, time
from harness import Case, wait

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
# Reads the same objects and small ones, and writes, as anybody would.
import rados, sys
conf, objects, pool = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with rados.Rados(conffile=conf) as r, r.open_ioctx(pool) as io:
    for i in range(objects):
        assert len(io.read(f'o{i}', 4 << 20)) == 4 << 20
        assert io.read(f's{i}') == b'small'
        io.write_full(f'w{i}', b'w' * (1 << 20))
    print('done')
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


class Slow(Case):
    alone = 'others are to be served within a time'
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
            c.python(OTHER, self.objects, pool, timeout=30)
            # Whose requests are open, and which: by name and address, with the objects.
            ops = flying()
            assert ops and all('osd_op(client.' in op['description'] and '~4194304' in op['description'] for op in ops), ops[:3]
            # Its requests, and nobody else's.
            assert len({op['description'].split('osd_op(')[1].split(':')[0] for op in ops}) == 1, ops[:3]
            os.kill(p.pid, signal.SIGCONT)
            # And it gets all that it asked for.
            out, _ = p.communicate('\n', timeout=120)
            assert out == f'got 900 {900 << 22}\n', out
        finally:
            p.kill()

    def test_3_answers_of_every_kind_count_not_only_data(self):
        """Keys and values, attributes and listings are asked for by many at once, by one who then reads nothing."""
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
                most = 0
                for _ in range(30):
                    most = max(most, self.rss())
                    time.sleep(0.1)
                c.rados('-p', 'kv', 'put', 'other', self.sample(), timeout=30)
            finally:
                p.kill()
                p.communicate()
            assert most - before < 128 << 20, f'{kind}: {(most - before) >> 20} MiB'

    def rss(self):
        text = open(f'/proc/{self.c.pid()}/status').read()
        return next(int(l.split()[1]) for l in text.splitlines() if l.startswith('VmRSS')) << 10
