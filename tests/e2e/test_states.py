"""PG states, counts and health as a real Ceph 16.2 shows them when the same is done to it (compared beside one)."""
import json, subprocess, time
from harness import Case, wait

PUT = '''
# Writes objects FROM to TO of a pool, 8 KiB each.
import rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '60'}) as r, r.open_ioctx(sys.argv[2]) as io:
    for c in [io.aio_write_full(f'o{i}', b'%08d' % i * 1024) for i in range(int(sys.argv[3]), int(sys.argv[4]))]:
        c.wait_for_complete()
        assert c.get_return_value() == 0, c.get_return_value()
'''

PAUSED = '''
# A client that knows an older map, in which nothing was paused.
import rados, sys, subprocess, time
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('r3') as io:
    io.write_full('paused', b'before')
    print('ready', flush=True)
    sys.stdin.readline()
    c = io.aio_write_full('paused', b'after')
    print('sent', flush=True)
    sys.stdin.readline()
    print('done' if c.is_complete() else 'waits', flush=True)
    sys.stdin.readline()
    c.wait_for_complete()
    print(c.get_return_value(), io.read('paused').decode(), flush=True)
'''


class States(Case):
    args = ['--osds', '4', '--osd-size', '2G']

    def osd(self, what, n):
        self.c.spirula('osd', what, str(n), '--dir', self.c.dir)

    def put(self, pool, a, b):
        self.c.python(PUT, pool, a, b)

    def pgmap(self):
        m = self.c.json('-s')['pgmap']
        m['states'] = {s['state_name']: s['count'] for s in m.get('pgs_by_state', [])}
        return m

    def until(self, test, what, seconds=180):
        """Waits until the PG map passes a test; it."""
        return wait(lambda: test(m := self.pgmap()) and m, what, seconds)

    def brief(self, pool):
        number = next(p['pool_id'] for p in self.c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == pool)
        rows = self.c.json('pg', 'dump', 'pgs_brief')['pg_stats']
        return {r['pgid']: r for r in rows if r['pgid'].startswith(f'{number}.')}

    def objects(self, pool):
        return {p['pgid']: p['stat_sum'] for p in self.c.json('pg', 'ls-by-pool', pool)['pg_stats']}

    def health(self):
        return self.c.json('health', 'detail')['checks']

    def query(self, pgid):
        q = self.c.json('pg', pgid, 'query')
        return q, {s['name']: s for s in q['recovery_state']}

    def test_1_counts_of_clean_pools_follow_every_write(self):
        c = self.c
        c.ceph('osd', 'erasure-code-profile', 'set', 'e21', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'r3', '16', '16')
        c.ceph('osd', 'pool', 'create', 'r2', '8', '8')
        c.ceph('osd', 'pool', 'set', 'r2', 'size', '2')
        c.ceph('osd', 'pool', 'set', 'r2', 'min_size', '1')
        c.ceph('osd', 'pool', 'create', 'e21', '8', '8', 'erasure', 'e21')
        for p in ('r3', 'r2', 'e21'):
            c.ceph('osd', 'pool', 'application', 'enable', p, 'test')
        c.wait_clean()
        before = self.pgmap()['num_objects']
        for p, n in (('r3', 60), ('r2', 40), ('e21', 40)):
            self.put(p, 0, n)
        # No PG changes its state meanwhile: counters alone must be worth a report.
        m = self.until(lambda m: m['num_objects'] == before + 140, 'objects are counted')
        assert set(m['states']) == {'active+clean'} and m.get('degraded_objects', 0) == 0, m
        self.c.rados('-p', 'r3', 'rm', 'o59')
        self.until(lambda m: m['num_objects'] == before + 139, 'removals are counted')

    def test_2_one_osd_down_is_degraded_and_undersized_by_true_numbers(self):
        self.osd('stop', 3)
        self.until(lambda m: 'active+undersized+degraded' in m['states'] and 'peering' not in str(m['states']), 'degraded')

        def differs():
            """What is not as it should be: PGs report one after the other, and each view is asked for by itself."""
            missing = copies = 0
            # A copy is missing of each object whose PG had a place on that OSD.
            for pool, size in (('r3', 3), ('r2', 2), ('e21', 3)):
                stats = self.objects(pool)
                for pgid, row in self.brief(pool).items():
                    up = [o for o in row['acting'] if o != 2147483647]
                    want = (size - len(up)) * stats[pgid]['num_objects']
                    bits = set(row['state'].split('+'))
                    if stats[pgid]['num_objects_degraded'] != want or ('undersized' in bits) != (len(up) < size) or ('degraded' in bits) != (want > 0):
                        return pgid, row, stats[pgid]
                    missing, copies = missing + want, copies + size * stats[pgid]['num_objects']
            m, checks = self.pgmap(), self.health()
            if not missing or m.get('degraded_objects') != missing or m['degraded_total'] < copies:
                return m, missing, copies
            n = sum(v for k, v in m['states'].items() if 'degraded' in k)
            percent = f'{100 * missing / m["degraded_total"]:.3f}'
            text = f'Degraded data redundancy: {missing}/{m["degraded_total"]} objects degraded ({percent}%), {n} pgs degraded'
            said = checks.get('PG_DEGRADED', {'summary': {'message': ''}})['summary']['message']
            return None if said.startswith(text) else (text, checks)
        wait(lambda: not differs(), differs)
        checks = self.health()
        assert checks['OSD_DOWN']['summary'] == {'message': '1 osds down', 'count': 1}, checks
        # A place without an OSD is this number in texts, and NONE in `pg ls` alone.
        e = next(r for r in self.brief('e21').values() if 2147483647 in r['acting'])
        acting = ','.join(map(str, e['acting']))
        assert f'pg {e["pgid"]} is active+undersized+degraded, acting [{acting}]' in str(checks['PG_DEGRADED']) or 'stuck' in str(checks), checks
        assert 'NONE' in self.c.ceph('pg', 'ls-by-pool', 'e21').out
        assert '2147483647' in self.c.ceph('pg', 'dump', 'pgs_brief').out
        stuck = self.c.ceph('pg', 'dump_stuck', 'undersized', '0').out
        assert e['pgid'] in stuck and 'active+undersized' in stuck, stuck
        q, states = self.query(e['pgid'])
        assert list(states) == ['Started/Primary/Active', 'Started'], states
        assert 'backfill_targets' not in q and q['info']['pgid'].startswith(e['pgid'] + 's'), q
        for key in ('epoch_created', 'last_epoch_started', 'last_interval_clean', 'same_up_since', 'last_scrub_stamp'):
            assert key in q['info']['history'] and key in q['peer_info'][0]['history'], q
        places = q['info']['stats']['object_location_counts']
        assert sum(p['objects'] for p in places) == q['info']['stats']['stat_sum']['num_objects'], places

    def test_3_out_moves_and_the_flags_hold_it(self):
        c = self.c
        for flag in ('nobackfill', 'norecover'):
            c.ceph('osd', 'set', flag)
        c.ceph('osd', 'out', '3')
        m = self.until(lambda m: any('_wait' in s for s in m['states']), 'work waits')
        assert not any('recovering' in s or 'backfilling' in s for s in m['states']), m
        assert m['degraded_objects'] + m.get('misplaced_objects', 0) > 0, m
        assert self.health()['OSDMAP_FLAGS']['summary']['message'] == 'nobackfill,norecover flag(s) set'
        for flag in ('nobackfill', 'norecover'):
            c.ceph('osd', 'unset', flag)
        # Three OSDs are enough for all pools.
        self.until(lambda m: all(s in ('active+clean', 'active+clean+remapped') for s in m['states']) or
                   all('undersized' in s or 'clean' in s for s in m['states']), 'moved')
        self.osd('start', 3)
        c.ceph('osd', 'in', '3')
        c.wait_clean()

    def test_4_below_min_size_is_peered_and_writes_wait(self):
        self.osd('stop', 2)
        self.osd('stop', 3)
        m = self.until(lambda m: 'undersized+degraded+peered' in m['states'] and 'peering' not in m['states'], 'peered')
        bad = sum(v for k, v in m['states'].items() if 'active' not in k)
        assert abs(m['inactive_pgs_ratio'] - bad / m['num_pgs']) < 1e-6, m

        def differs():
            """PGs that have another state than their places give them: they report one after the other."""
            of = lambda r: 'undersized+degraded+peered' if len(r['acting']) == 1 else 'active+undersized+degraded'
            plain = [r for r in self.brief('r3').values() if r['state'] != of(r) and 'degraded' in r['state']]
            # An erasure-coded PG with one shard of two that are needed cannot say what was written.
            few = lambda r: sum(o != 2147483647 for o in r['acting']) < 2
            coded = [r for r in self.brief('e21').values() if few(r) and r['state'] not in ('down', 'incomplete') and not r['state'].startswith('stale')]
            return plain + coded
        wait(lambda: not differs(), differs)
        fallen = lambda: [p for p, r in self.brief('e21').items() if r['state'] == 'down']
        down = wait(fallen, 'PGs that are down')
        q, states = self.query(down[0])
        step = states['Started/Primary/Peering/Down']
        assert step['comment'] == 'not enough up instances of this PG to go active', step
        peering = states['Started/Primary/Peering']
        assert peering['blocked'] == 'peering is blocked due to down osds', peering
        assert set(peering['down_osds_we_would_probe']) <= {2, 3} and peering['peering_blocked_by'], peering
        by = peering['peering_blocked_by'][0]
        assert by['comment'] == 'starting or marking this osd lost may let us proceed' and by['current_lost_at'] == 0, by
        assert {'osd', 'shard'} == set(peering['past_intervals'][0]['all_participants'][0]), peering
        blocked = lambda: str(self.c.json('osd', 'blocked-by'))
        wait(lambda: '2' in (b := blocked()) or '3' in b, blocked)
        text = lambda: str(self.health().get('PG_AVAILABILITY', {}).get('summary'))
        told = lambda n, t: f'{n} pgs down' in t or n == 1 and '1 pg down' in t
        wait(lambda: told(len(fallen()), text()), lambda: (fallen(), text()))
        # How long a PG has been inactive is known though another primary reports it now.
        for line in self.c.ceph('health', 'detail').out.splitlines():
            assert 'since forever' not in line, line
        assert json.loads(self.c.ceph('osd', 'ok-to-stop', '0', check=False).out)['ok_to_stop'] is False
        self.osd('start', 2)
        self.osd('start', 3)
        self.c.wait_clean()

    def test_5_down_until_the_one_with_the_writes_returns(self):
        pgid = max(self.objects('r2').items(), key=lambda i: i[1]['num_objects'])[0]
        a, b = self.c.json('pg', 'map', pgid)['acting']
        self.osd('stop', a)
        self.until(lambda m: 'peering' not in str(m['states']), 'peered')
        self.put('r2', 0, 60)
        self.osd('stop', b)
        self.osd('start', a)
        self.until(lambda _: self.brief('r2')[pgid]['state'] == 'down', 'down')
        q, states = self.query(pgid)
        peering = states['Started/Primary/Peering']
        assert [x['osd'] for x in peering['peering_blocked_by']] == [b], peering
        assert any(str(b) == i['acting'] for i in peering['past_intervals'][0]['intervals']), peering
        assert q['info']['stats']['blocked_by'] == [b], q['info']['stats']
        assert self.c.json('pg', pgid, 'list_unfound')['state'] == 'Down'
        self.osd('start', b)
        self.c.wait_clean()
        for i in range(0, 60, 13):
            assert self.c.rados('-p', 'r2', 'get', f'o{i}', '-').out == '%08d' % i * 1024

    def test_6_stale_while_nobody_reports_and_back(self):
        for n in range(4):
            self.osd('stop', n)
        self.until(lambda m: m['states'] and all('stale' in s for s in m['states']), 'stale')
        assert self.c.json('osd', 'stat')['num_up_osds'] == 0
        for n in range(4):
            self.osd('start', n)
        self.c.wait_clean()

    def test_7_nodown_holds_a_clean_stop_and_pause_an_old_client(self):
        c = self.c
        c.ceph('osd', 'set', 'nodown')
        self.osd('stop', 3)
        assert self.c.json('osd', 'stat')['num_up_osds'] == 4
        c.ceph('osd', 'unset', 'nodown')
        self.until(lambda m: any('undersized' in s for s in m['states']), 'noticed')
        self.osd('start', 3)
        c.wait_clean()
        path = f'{self.scratch}/paused.py'
        open(path, 'w').write(PAUSED)
        p = subprocess.Popen(c.clients.python() + [path, c.conf], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        def go():
            p.stdin.write('\n')
            p.stdin.flush()
        assert p.stdout.readline() == 'ready\n'
        c.ceph('osd', 'set', 'pause')
        for o in range(4):
            # All OSDs have the map with the flag.
            want = c.json('osd', 'dump')['epoch']
            wait(lambda: c.json('tell', f'osd.{o}', 'status')['newest_map'] >= want, f'map {want} at osd.{o}')
        go()
        assert p.stdout.readline() == 'sent\n'
        time.sleep(1)
        go()
        assert p.stdout.readline() == 'waits\n'
        c.ceph('osd', 'unset', 'pause')
        go()
        assert p.stdout.readline() == '0 after\n'
        p.communicate(timeout=180)

    def test_8_limits_of_pg_counts_in_ceph_16s_words(self):
        c = self.c
        r = c.ceph('osd', 'pool', 'create', 'big', '1024', '1024', check=False)
        pools = c.json('osd', 'pool', 'ls', 'detail')
        have = sum(p['pg_num_target'] * p['size'] for p in pools)
        assert r.code == 34 and (f' pg_num 1024 size 3 would mean {have + 3072} total pgs, which exceeds max 1000 '
                                 '(mon_max_pg_per_osd 250 * num_in_osds 4)') in r.err, r
        r = c.ceph('osd', 'pool', 'set', 'r3', 'pg_num', '1024', check=False)
        number = next(p['pool_id'] for p in pools if p['pool_name'] == 'r3')
        assert r.code == 34 and f'pool id {number} pg_num 1024 size 3 would mean' in r.err, r
        for k, m, least in ((2, 1, 2), (2, 2, 3), (4, 2, 5), (4, 1, 4)):
            c.ceph('osd', 'erasure-code-profile', 'set', f'p{k}{m}', f'k={k}', f'm={m}', 'crush-failure-domain=osd')
            c.ceph('osd', 'pool', 'create', f'p{k}{m}', '1', '1', 'erasure', f'p{k}{m}')
            assert c.json('osd', 'pool', 'get', f'p{k}{m}', 'min_size')['min_size'] == least
            c.ceph('osd', 'pool', 'delete', f'p{k}{m}', f'p{k}{m}', '--yes-i-really-really-mean-it')
        c.wait_clean()
