"""Placement groups that heal: OSDs stop, return, go out and in while clients write."""
import json
from harness import Case, Load, wait

WRITER = '''
# Writes self-identifying objects until told to stop; verifies all of them at the end.
import rados, sys, time, os
pool, stop_file = sys.argv[2:4]
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx(pool) as io:
    n, longest, last, run = 0, 0, {}, str(time.time_ns())
    while not os.path.exists(stop_file):
        name, begun = f'{run}-{n % 200}', time.time()
        if n % 7 == 6 and name in last:
            io.remove_object(name); last.pop(name)
        else:
            data = (b'%s %012d;' % (name.encode(), n)) * 200
            io.write_full(name, data); last[name] = data
        longest = max(longest, time.time() - begun)
        n += 1
        did()
    for name in (f'{run}-{i}' for i in range(200)):
        try: got = io.read(name, 1 << 20)
        except rados.ObjectNotFound: got = None
        assert got == last.get(name), (name, got and got[:40], last.get(name, b'')[:40])
    listed = sorted(o.key for o in io.list_objects() if o.key.startswith(run))
    assert listed == sorted(last), (len(listed), len(last))
    print(n, longest)
'''


CHANGER = '''
# Objects of 1 MiB with omap (begin); then all kinds of changes to parts of them (change); what they then hold (hold).
import os, random, rados, sys, zlib
pool, what = sys.argv[2:4]
r = random.Random(5)
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as c, c.open_ioctx(pool) as io:
    def omap(name, keys):
        with rados.WriteOpCtx() as op:
            io.set_omap(op, tuple(keys), tuple(os.urandom(9) for _ in keys))
            io.operate_write_op(op, name)
    for i in range(48):
        name = f'part{i}'
        if what == 'begin':
            io.write_full(name, os.urandom(1 << 20))
            omap(name, ['a', 'b', 'c'])
        elif what == 'change':
            for _ in range(3):
                io.write(name, os.urandom(r.randrange(1, 20000)), r.randrange(1 << 20))
            if i % 6 == 1:
                with rados.WriteOpCtx() as op:
                    op.zero(r.randrange(900000), 30000)
                    io.operate_write_op(op, name)
            if i % 6 == 2: io.trunc(name, r.randrange(1 << 20))
            if i % 6 == 3: io.append(name, os.urandom(5000))
            if i % 6 == 4: io.trunc(name, 500000); io.write(name, b'behind', 700001)
            if i % 4 == 0: omap(name, ['b', 'd'])
            if i % 12 == 5: io.set_xattr(name, 'x', b'y')
            if i in (7, 19): io.remove_object(name)
            if i == 19: io.write_full(name, b'anew')
        else:
            try: print(name, zlib.crc32(io.read(name, 2 << 20)))
            except rados.ObjectNotFound: print(name, 'gone')
'''


RECOVERED = '''
# Bytes that recovery copied, by PG, as their primaries count them now: what the manager has heard of is seconds old.
import json, rados, sys
got = {}
with rados.Rados(conffile=sys.argv[1]) as r:
    for pgid in sys.argv[2:]:
        code, out, err = r.pg_command(pgid, json.dumps({'prefix': 'query', 'pgid': pgid, 'format': 'json'}), b'')
        assert code == 0, err
        got[pgid] = json.loads(out)['info']['stats']['stat_sum']['num_bytes_recovered']
print(json.dumps(got))
'''


class Loaded(Case):
    def load(self, pool, during):
        """Runs `during` beside a verifying writer, `self.writer`; how many writes there were."""
        self.writer = Load(self.c, WRITER, pool)
        try:
            self.writer.goes_on()
            during()
            self.writer.goes_on()
        finally:
            out = self.writer.end()
        print(f'figure: {pool}: {out.strip()} (writes, longest in s)', flush=True)
        return int(out.split()[0])


class Heals(Loaded):
    args = ['--osds', '5']

    def osd(self, what, n):
        self.c.spirula('osd', what, str(n), '--dir', self.c.dir)

    def states(self):
        return {s['state_name']: s['count'] for s in self.c.json('-s')['pgmap']['pgs_by_state']}

    def wait_undersized(self):
        wait(lambda: any('undersized' in s for s in self.states()), 'a PG that misses a copy')

    def test_1_size_3_serves_while_one_osd_is_down_and_heals(self):
        def during():
            self.osd('stop', 1)
            self.wait_undersized()
            self.writer.goes_on()
            self.osd('start', 1)
            self.c.wait_clean()
        self.load('data', during)

    def test_2_size_2_with_min_size_1_serves_with_one_copy(self):
        self.c.ceph('osd', 'pool', 'create', 'pair', '16')
        self.c.ceph('osd', 'pool', 'set', 'pair', 'size', '2')
        self.c.ceph('osd', 'pool', 'set', 'pair', 'min_size', '1')
        self.c.wait_clean()
        def during():
            for n in (0, 3):
                self.osd('stop', n)
                self.wait_undersized()
                self.writer.goes_on()
                self.osd('start', n)
                self.c.wait_clean()
        self.load('pair', during)

    def test_3_out_fills_others_and_in_brings_it_back(self):
        def during():
            self.c.ceph('osd', 'out', '2')
            self.c.wait_clean()
            pgs = self.c.json('pg', 'dump', 'pgs')['pg_stats']
            assert all(2 not in pg['up'] + pg['acting'] for pg in pgs), pgs
            self.c.ceph('osd', 'in', '2')
            self.c.wait_clean()
        self.load('data', during)

    def test_4_two_steps_of_failure_lose_nothing(self):
        def during():
            self.osd('stop', 0)
            self.writer.goes_on()
            self.osd('stop', 4)
            wait(lambda: self.c.json('osd', 'stat')['num_up_osds'] == 3, 'two OSDs down')
            self.osd('start', 0)
            self.writer.goes_on()
            self.osd('start', 4)
            self.c.wait_clean()
        self.load('data', during)

    def test_6_what_differs_is_copied_and_all_copies_are_the_same(self):
        self.c.ceph('osd', 'pool', 'create', 'parts', '16')
        self.c.wait_clean()
        self.c.python(CHANGER, 'parts', 'begin')
        self.osd('stop', 1)
        self.wait_undersized()
        self.c.python(CHANGER, 'parts', 'change')
        want = self.c.python(CHANGER, 'parts', 'hold').out
        pool = self.c.json('osd', 'pool', 'stats', 'parts')[0]['pool_id']
        ours = [f'{pool}.{n:x}' for n in range(16)]
        recovered = lambda: json.loads(self.c.python(RECOVERED, *ours).out)
        before = recovered()
        self.osd('start', 1)
        self.c.wait_clean()
        # A PG with a new primary counts from nothing.
        copied = sum(n - (before[pg] if n >= before[pg] else 0) for pg, n in recovered().items())
        assert self.c.python(CHANGER, 'parts', 'hold').out == want
        assert 0 < copied < 12 << 20, f'{copied} bytes were copied, of 29 MiB of changed objects'
        since = {p['pgid']: p['last_deep_scrub_stamp'] for p in self.c.json('pg', 'dump', 'pgs')['pg_stats']}
        self.c.ceph('osd', 'pool', 'deep-scrub', 'parts')
        rows = lambda: {p['pgid']: p for p in self.c.json('pg', 'dump', 'pgs')['pg_stats']}
        now = wait(lambda: all((now := rows())[pg]['last_deep_scrub_stamp'] > since[pg] for pg in ours) and now, 'a deep scrub of all')
        assert not any('inconsistent' in now[pg]['state'] for pg in ours), now
        assert self.c.rados('list-inconsistent-pg', 'parts').out.strip() == '[]'

    def test_5_query_shows_what_ceph_shows(self):
        # It may be scrubbed just now.
        q = wait(lambda: (q := self.c.json('pg', '1.0', 'query'))['state'] == 'active+clean' and q, 'a clean PG')
        for key in ('state', 'epoch', 'up', 'acting', 'info', 'peer_info', 'recovery_state'):
            assert key in q, q.keys()
        for key in ('last_update', 'log_tail', 'last_backfill', 'history', 'stats'):
            assert key in q['info'], q['info'].keys()
