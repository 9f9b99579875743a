"""What a user would see differ from a real Ceph 16.2, each thing compared beside one; and where ours goes on and Ceph's hangs."""
import json, os, subprocess
from harness import Case, holds, wait

PUT = '''
# Writes objects FROM to TO of a pool, SIZE bytes each.
import rados, sys
pool, a, b, size = sys.argv[2], *map(int, sys.argv[3:])
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx(pool) as io:
    for c in [io.aio_write_full(f'o{i}', (b'%08d' % i * (size // 8 + 1))[:size]) for i in range(a, b)]:
        c.wait_for_complete()
        assert c.get_return_value() == 0, c.get_return_value()
'''


class Likeness(Case):
    """Helpers of the classes below."""

    def osd(self, what, n):
        self.c.spirula('osd', what, str(n), '--dir', self.c.dir)

    def pool(self, name, size, min_size, pgs=1):
        """A pool; the name of its first PG."""
        c = self.c
        c.ceph('osd', 'pool', 'create', name, str(pgs), str(pgs))
        c.ceph('osd', 'pool', 'set', name, 'size', str(size))
        c.ceph('osd', 'pool', 'set', name, 'min_size', str(min_size))
        c.wait_clean()
        return f"{self.row(name)['pool_id']}.0"

    def row(self, name):
        return next(p for p in self.c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == name)

    def put(self, pool, a, b, size=64):
        self.c.python(PUT, pool, a, b, size)

    def pg(self, pgid):
        return next(r for r in self.c.json('pg', 'dump', 'pgs_brief')['pg_stats'] if r['pgid'] == pgid)

    def state(self, pgid):
        return self.pg(pgid)['state']

    def steps(self, pgid):
        return {s['name']: s for s in self.c.json('pg', pgid, 'query')['recovery_state']}


class Alike(Likeness):
    args = ['--osds', '4', '--osd-size', '2G']

    def test_1_erasure_coded_pools_min_size(self):
        for k, m, least in ((8, 3, 9), (4, 1, 4), (2, 1, 2), (2, 2, 3)):
            name = f'e{k}{m}'
            self.c.ceph('osd', 'erasure-code-profile', 'set', name, f'k={k}', f'm={m}', 'crush-failure-domain=osd')
            self.c.ceph('osd', 'pool', 'create', name, '1', '1', 'erasure', name)
            p = self.row(name)
            assert (p['size'], p['min_size']) == (k + m, least), p
            self.c.ceph('osd', 'pool', 'rm', name, name, '--yes-i-really-really-mean-it')

    def test_2_objects_copied_onto_each_other(self):
        """A real Ceph hangs here until a client gives up."""
        c = self.c
        c.ceph('osd', 'erasure-code-profile', 'set', 'two', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'ec', '8', '8', 'erasure', 'two')
        c.ceph('osd', 'pool', 'set', 'ec', 'allow_ec_overwrites', 'true')
        c.ceph('osd', 'pool', 'create', 'rep', '8', '8')
        c.wait_clean()
        names = ['x', 'y', 'z']
        for pool in ('rep', 'ec'):
            data = {n: n.encode() * 5_000_000 for n in names}
            for n in names:
                path = os.path.join(self.scratch, n)
                with open(path, 'wb') as f:
                    f.write(data[n])
                c.rados('-p', pool, 'put', n, path)
            for _ in range(4):
                pairs = [(names[i], names[(i + 1) % 3]) for i in range(3)] + [('y', 'x')]
                argv = [c.clients.wrap(['timeout', '240', 'rados', '-c', c.conf, '-p', pool, 'cp', *p]) for p in pairs]
                running = [subprocess.Popen(a, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for a in argv]
                ended = [(p.communicate(), p.returncode) for p in running]
                assert all(code == 0 for _, code in ended), (pool, ended)
            out = os.path.join(self.scratch, 'out')
            for n in names:
                c.rados('-p', pool, 'get', n, out)
                with open(out, 'rb') as f:
                    assert f.read() in data.values(), f'{pool}/{n} is a mixture'

    def test_3_unfound_objects_are_listed_with_all_that_ceph_says(self):
        c = self.c
        pgid = self.pool('u', 2, 1)
        a, b = self.pg(pgid)['acting']
        self.put('u', 0, 20, 8192)
        c.wait_clean()
        for flag in ('noout', 'norecover', 'nobackfill'):
            c.ceph('osd', 'set', flag)
        self.osd('stop', b)
        self.put('u', 0, 1, 8192)
        c.rados('-p', 'u', 'setomapval', 'o1', 'k', 'v')
        self.put('u', 20, 21, 8192)
        self.osd('start', b)
        wait(lambda: len(self.pg(pgid)['acting']) == 2 and 'active' in self.state(pgid), 'both serve')
        self.osd('stop', a)
        for flag in ('norecover', 'nobackfill'):
            c.ceph('osd', 'unset', flag)
        wait(lambda: 'unfound' in self.state(pgid), 'unfound')
        def all_unfound():
            l = c.json('pg', pgid, 'list_unfound')
            return l['num_unfound'] == 3 and l['state'] == 'NotRecovering' and l
        listed = wait(all_unfound, lambda: f"all unfound: {c.json('pg', pgid, 'list_unfound')}")
        assert list(listed) == ['num_missing', 'num_unfound', 'objects', 'state', 'available_might_have_unfound',
                                'might_have_unfound', 'more'], listed
        assert listed['num_missing'] == 3, listed
        assert listed['might_have_unfound'] == [{'osd': str(a), 'status': 'osd is down'}], listed
        rows = {o['oid']['oid']: o for o in listed['objects']}
        assert list(rows['o0']) == ['oid', 'need', 'have', 'flags', 'clean_regions', 'locations'], rows
        regions = {n: o['clean_regions'] for n, o in rows.items()}
        assert regions == {
            'o0': 'clean_offsets: [8192~18446744073709543423], clean_omap: 1, new_object: 0',
            'o1': 'clean_offsets: [0~18446744073709551615], clean_omap: 0, new_object: 0',
            'o20': 'clean_offsets: [], clean_omap: 0, new_object: 1'}, regions
        first = listed['objects'][0]['oid']
        rest = json.loads(c.ceph('pg', pgid, 'list_unfound', json.dumps(first)).out)
        assert rest['offset'] == first and rest['objects'] == listed['objects'][1:], rest
        self.osd('start', a)
        c.ceph('osd', 'unset', 'noout')
        c.wait_clean()

    def test_4_what_was_lost_is_waited_for_no_more_and_the_rest_is_incomplete(self):
        """Copies that a backfill had begun to fill are no data, and an OSD declared lost blocks nothing any more."""
        c = self.c
        pgid = self.pool('inc', 2, 1)
        for i in range(2):
            self.put('inc', 0, 2000)
        a, b = old = self.pg(pgid)['acting']
        new = [o for o in range(4) if o not in old]
        for flag in ('noout', 'nobackfill'):
            c.ceph('osd', 'set', flag)
        c.ceph('osd', 'pg-upmap-items', pgid, *(str(o) for pair in zip(old, new) for o in pair))
        wait(lambda: 'backfill' in self.state(pgid), 'backfill')
        self.osd('stop', a)
        self.osd('stop', b)
        wait(lambda: self.state(pgid) == 'down', 'down')
        by = self.steps(pgid)['Started/Primary/Peering']['peering_blocked_by']
        assert by and {x['osd'] for x in by} <= set(old) and by[0]['current_lost_at'] == 0, by
        for o in old:
            c.ceph('osd', 'lost', str(o), '--yes-i-really-mean-it')
        wait(lambda: self.state(pgid) == 'incomplete', 'incomplete')
        steps = self.steps(pgid)
        assert steps['Started/Primary/Peering/Incomplete']['comment'] == 'not enough complete instances of this PG'
        peering = steps['Started/Primary/Peering']
        assert peering['peering_blocked_by'] == [] and 'blocked' not in peering, peering
        assert peering['peering_blocked_by_detail'] == [{'detail': 'peering_blocked_by_history_les_bound'}], peering
        assert set(peering['down_osds_we_would_probe']) <= set(old), peering
        assert c.json('pg', pgid, 'list_unfound')['state'] == 'Incomplete'
        def told():
            text = c.ceph('health', 'detail').out
            return f'pg {pgid} is incomplete, acting' in text and 'incomplete' in text.splitlines()[0]
        wait(told, lambda: f"incomplete in health: {c.ceph('health', 'detail').out}")
        # They were not lost after all.
        for flag in ('noout', 'nobackfill'):
            c.ceph('osd', 'unset', flag)
        self.osd('start', a)
        self.osd('start', b)
        c.wait_clean()
        assert len(c.rados('-p', 'inc', 'ls').out.split()) == 2000

    def test_5_a_backfill_ends_where_the_target_becomes_too_full(self):
        c = self.c
        pgid = self.pool('bf', 2, 1)
        self.put('bf', 0, 3300)
        self.put('bf', 0, 100, 300_000)
        c.ceph('config', 'set', 'osd', 'osd_recovery_sleep', '0.1')
        old = self.pg(pgid)['acting']
        target = next(o for o in range(4) if o not in old)
        # Whoever has not heard of it yet would be ready before the ratios are set.
        sleeps = lambda o: float(c.json('tell', f'osd.{o}', 'config', 'get', 'osd_recovery_sleep')['osd_recovery_sleep'])
        wait(lambda: all(sleeps(o) == 0.1 for o in range(4)), 'the pauses of recovery at each OSD')
        copied = lambda: self.c.json('pg', pgid, 'query')['info']['stats']['stat_sum']['num_objects_recovered']
        before = copied()
        c.ceph('osd', 'pg-upmap-items', pgid, str(old[1]), str(target))
        wait(lambda: copied() >= before + 3, 'it copies')
        c.ceph('osd', 'set-nearfull-ratio', '0.002')
        c.ceph('osd', 'set-backfillfull-ratio', '0.003')
        wait(lambda: self.state(pgid) == 'active+remapped+backfill_toofull', 'too full')
        wait(lambda: 'PG_BACKFILL_FULL' in c.json('health')['checks'], 'health')
        # Nothing of it goes on, but what was under way, and it says so the whole time.
        c.ceph('config', 'rm', 'osd', 'osd_recovery_sleep')
        wait(lambda: all(sleeps(o) == 0 for o in range(4)), 'no pauses of recovery')
        held = copied()
        holds(lambda: copied() == held and 'backfill_toofull' in self.state(pgid), 'backfill_toofull', 3)
        c.ceph('osd', 'set-backfillfull-ratio', '0.9')
        c.ceph('osd', 'set-nearfull-ratio', '0.85')
        c.wait_clean()
        assert target in self.pg(pgid)['acting'] and copied() > held

    def test_6_norebalance_holds_what_is_only_misplaced(self):
        """Recovery by the log, and backfill of what is degraded, go on (as in Ceph's `start_recovery_ops`)."""
        c = self.c
        pgid = self.pool('nr', 2, 1)
        # More than the log keeps, so that another OSD is backfilled.
        for _ in range(2):
            self.put('nr', 0, 2000)
        c.ceph('osd', 'set', 'norebalance')
        a, b = self.pg(pgid)['acting']
        self.osd('stop', b)
        self.put('nr', 0, 50)
        self.osd('start', b)
        c.wait_clean()
        other = next(o for o in range(4) if o not in (a, b))
        c.ceph('osd', 'pg-upmap-items', pgid, str(b), str(other))
        wait(lambda: 'remapped' in self.state(pgid) and 'backfill' in self.state(pgid), 'misplaced')
        def misplaced():
            p = self.pg(pgid)
            return 'remapped' in p['state'] and 'degraded' not in p['state'] and other not in p['acting']
        wait(misplaced, lambda: f'misplaced and no more: {self.pg(pgid)}')
        holds(misplaced, 'misplaced', 3)
        # Its old place goes: now a copy is missing.
        self.osd('stop', b)
        wait(lambda: (p := self.pg(pgid))['state'] == 'active+clean' and other in p['acting'], 'filled')
        self.osd('start', b)
        c.ceph('osd', 'unset', 'norebalance')
        c.wait_clean()


# Each number of PGs for placement that a pool had, by the maps of all epochs from one to another: whoever looks now and then may miss some.
STEPS = '''
import json, rados, sys
steps = []
with rados.Rados(conffile=sys.argv[1]) as r:
    for epoch in range(int(sys.argv[3]), int(sys.argv[4]) + 1):
        code, out, err = r.mon_command(json.dumps({'prefix': 'osd dump', 'epoch': epoch, 'format': 'json'}), b'')
        assert code == 0, err
        now = next(p['pg_placement_num'] for p in json.loads(out)['pools'] if p['pool_name'] == sys.argv[2])
        if steps[-1:] != [now]:
            steps.append(now)
print(json.dumps(steps))
'''


class Paced(Likeness):
    """Placement follows `pgp_num` in steps; of what this cluster holds, all is in one pool."""
    args = ['--osds', '4', '--osd-size', '2G']

    def test_1_placement_follows_in_steps(self):
        c = self.c
        self.pool('paced', 2, 1, 32)
        self.put('paced', 0, 400)
        look = lambda: self.row('paced')
        def line():
            return next(l for l in c.ceph('osd', 'pool', 'ls', 'detail').out.splitlines() if "'paced'" in l)
        wait(lambda: c.json('-s')['pgmap']['num_objects'] >= 400, 'statistics')
        # What one step moved stands in the way of the next.
        for flag in ('nobackfill', 'norecover'):
            c.ceph('osd', 'set', flag)
        epoch = lambda: c.json('osd', 'dump')['epoch']
        began = epoch()
        said = c.ceph('osd', 'pool', 'set', 'paced', 'pgp_num', '24')
        assert said.err.endswith('pgp_num to 24\n'), said
        p = look()
        assert (p['pg_placement_num_target'], p['pg_num'], p['pg_num_target']) == (24, 32, 32) and p['pg_placement_num'] > 24, p
        assert ' pg_num 32 pgp_num ' in line() and ' pgp_num_target 24 ' in line(), line()
        assert c.json('osd', 'pool', 'get', 'paced', 'pgp_num')['pgp_num'] > 24
        for flag in ('nobackfill', 'norecover'):
            c.ceph('osd', 'unset', flag)
        wait(lambda: look()['pg_placement_num'] == 24, 'all steps')
        steps = json.loads(c.python(STEPS, 'paced', began, epoch()).out)
        assert (steps[0], steps[-1]) == (32, 24), steps
        assert steps == sorted(steps, reverse=True) and all(a - b <= 2 for a, b in zip(steps, steps[1:])), steps
        assert len(steps) >= 4 and 'target' not in line(), (steps, line())
        c.wait_clean()
        # PGs that are split stay where they are; placement follows.
        c.ceph('osd', 'pool', 'set', 'paced', 'pgp_num_actual', '32')
        c.ceph('osd', 'pool', 'set', 'paced', 'pgp_num', '32')
        c.wait_clean()
        for flag in ('nobackfill', 'norecover'):
            c.ceph('osd', 'set', flag)
        c.ceph('osd', 'pool', 'set', 'paced', 'pg_num', '64')
        p = self.row('paced')
        assert (p['pg_num'], p['pg_num_target'], p['pg_placement_num_target']) == (64, 64, 64), p
        assert p['pg_placement_num'] < 50, p
        for flag in ('nobackfill', 'norecover'):
            c.ceph('osd', 'unset', flag)
        c.ceph('config', 'set', 'mgr', 'target_max_misplaced_ratio', '1')
        wait(lambda: look()['pg_placement_num'] == 64, 'the rest')
        c.wait_clean()
        assert len(c.rados('-p', 'paced', 'ls').out.split()) == 400


FORCE = '''
# Writes objects by force until that is refused by all PGs; then, whether all that was acknowledged is there.
import errno, rados, sys, threading, time
conf, tag = sys.argv[1], sys.argv[2]
TRY, FORCE, SIZE = 64, 128, 1 << 20
data = lambda n: (b'%-31s\\n' % n.encode()) * (SIZE // 32)
with rados.Rados(conffile=conf, conf={'rados_osd_op_timeout': '0'}) as c, c.open_ioctx('all') as io:
    acked, bad, errors = [], [], []
    def fill(t):
        refused = 0
        for i in range(4000):
            name = f'{tag}-{t}-{i}'
            try:
                with rados.WriteOpCtx() as op:
                    op.write_full(data(name))
                    io.operate_write_op(op, name, 0, TRY | FORCE)
                acked.append(name)
            except rados.Error as e:
                if getattr(e, 'errno', None) not in (errno.ENOSPC, -errno.ENOSPC):
                    errors.append(repr(e))
                    return
                refused += 1
                time.sleep(0.1)
                if refused > 40:
                    return
        errors.append('never full')
    threads = [threading.Thread(target=fill, args=(t,)) for t in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for n in acked:
        if io.read(n, SIZE) != data(n):
            bad.append(n)
    print(len(acked), bad, errors)
    assert acked and not bad and not errors
    for n in acked:
        with rados.WriteOpCtx() as op:
            op.remove()
            io.operate_write_op(op, n, 0, TRY | FORCE)
'''


class SmallMember(Likeness):
    """One OSD's disk is smaller than the others', so it is full while theirs are not."""
    args = ['--osds', '3', '--osd-size', '1G']

    def test_1_writes_by_force_end_where_one_member_has_no_room(self):
        c = self.c
        for o in (1, 2):
            self.osd('stop', o)
            c.spirula('osd', 'grow', os.path.join(c.dir, f'osd.{o}'), '--size', '2G')
            self.osd('start', o)
        c.wait_clean()
        c.ceph('osd', 'pool', 'create', 'all', '16', '16')
        c.wait_clean()
        r = c.python(FORCE, 'f')
        assert c.json('osd', 'stat')['num_up_osds'] == 3, r.out
        assert 'No space' not in c.log() and 'stopping' not in c.log(), c.log()[-2000:]
        c.wait_clean()
        c.rados('-p', 'all', 'put', 'again', '/etc/hostname')
