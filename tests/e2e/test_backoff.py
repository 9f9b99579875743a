"""Backoff: a PG that does not serve holds up only its own requests, whatever else goes over the same connection."""
import json, os, re, subprocess
from harness import Case, wait

MORE = '''
# Appends to objects of one PG, more than a connection may have open, then writes to others over the same connection.
import json, rados, sys
conf, pool, pgid, log, many = *sys.argv[1:5], int(sys.argv[5])
more = {'debug_objecter': '20/20', 'log_file': log, 'log_to_stderr': 'false', 'objecter_inflight_ops': '100000',
            'rados_osd_op_timeout': '600'}
with rados.Rados(conffile=conf, conf=more) as r, r.open_ioctx(pool) as io:
    held, free = [], []
    for i in range(400):
        ask = {'prefix': 'osd map', 'pool': pool, 'object': f'o{i}', 'format': 'json'}
        at = json.loads(r.mon_command(json.dumps(ask), b'')[1])['pgid']
        to = held if at == pgid else free
        if len(to) < 4:
            to.append(f'o{i}')
        if len(held) == 4 == len(free):
            break
    for o in held + free:
        io.write_full(o, b'')
    print('ready', flush=True)
    sys.stdin.readline()
    waiting = [io.aio_append(held[i % 4], b'%06d' % i) for i in range(many)]
    for c in [io.aio_write_full(free[i % 4], b'%06d' % i) for i in range(500)]:
        c.wait_for_complete()
        assert c.get_return_value() == 0, c.get_return_value()
    print('served', sum(c.is_complete() for c in waiting), flush=True)
    sys.stdin.readline()
    for c in waiting:
        c.wait_for_complete()
        assert c.get_return_value() == 0, c.get_return_value()
    for n, o in enumerate(held):
        assert io.read(o, 1 << 20) == b''.join(b'%06d' % i for i in range(n, many, 4)), o
    print('all in order', flush=True)
'''


class Backoff(Case):
    args = ['--osds', '4', '--osd-size', '2G']

    def test_1_an_inactive_pg_holds_up_only_its_own_requests(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'b', '8', '8')
        c.ceph('osd', 'pool', 'set', 'b', 'size', '2')
        c.ceph('osd', 'pool', 'set', 'b', 'min_size', '2')
        number = next(p['pool_id'] for p in c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == 'b')
        held = f'{number}.5'
        for seed in range(8):
            pgid = f'{number}.{seed}'
            # All have one primary, so that all goes over one connection; one PG alone has osd.3.
            c.ceph('osd', 'pg-upmap', pgid, '0', '3' if pgid == held else str(1 + seed % 2))
        c.wait_clean()
        c.ceph('osd', 'set', 'noout')
        log = os.path.join(self.c.scratch, 'backoff.log')
        path = os.path.join(self.c.scratch, 'backoff.py')
        open(path, 'w').write(MORE)
        p = subprocess.Popen(c.clients.python() + [path, c.conf, 'b', held, log, '4000'],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def go():
            p.stdin.write('\n')
            p.stdin.flush()

        def hear(want):
            said = p.stdout.readline()
            assert said == want, (said, p.poll(), p.poll() is not None and p.stderr.read()[-2000:])
        hear('ready\n')
        c.spirula('osd', 'stop', '3', '--dir', c.dir)
        wait(lambda: 'active' not in c.json('pg', held, 'query')['state'], f'{held} to be inactive')
        go()
        hear('served 0\n')
        told = lambda: c.json('tell', 'osd.0', 'dump_backoffs')['sessions']
        wait(lambda: [(b['pgid'], b['state']) for s in told() for b in s['backoffs']] == [(held, 'acked')], lambda: f'one backoff: {told()}')
        c.spirula('osd', 'start', '3', '--dir', c.dir)
        go()
        hear('all in order\n')
        assert p.wait(timeout=240) == 0
        wait(lambda: told() == [], lambda: f'no backoff: {told()}')
        text = open(log).read()
        assert re.search(rf'handle_osd_backoff .*{re.escape(held)} .*block', text), 'the client was told'
        assert re.search(r'handle_osd_backoff .*unblock', text), 'and told to go on'
