"""Fewer and more placement groups, under load, with OSDs away, with the cluster killed; old OSD maps."""
import json
from harness import Case, wait
from test_heal import Loaded

# How many PGs of a pool were wanted and how many there were, in each map from an epoch on.
HISTORY = '''
import json, rados, sys
with rados.Rados(conffile=sys.argv[1]) as r:
    def dump(**more):
        ret, out, err = r.mon_command(json.dumps({'prefix': 'osd dump', 'format': 'json', **more}), b'')
        assert ret == 0, err
        return json.loads(out)
    maps = [dump(epoch=e) for e in range(int(sys.argv[3]), dump()['epoch'] + 1)]
    print(json.dumps([(p['pg_num_target'], p['pg_num']) for m in maps for p in m['pools'] if p['pool_name'] == sys.argv[2]]))
'''


class Merges(Loaded):
    args = ['--osds', '4']

    def pool(self, name, pg_num):
        # How placement is paced is tested in test_alike.
        self.c.ceph('config', 'set', 'mgr', 'target_max_misplaced_ratio', '1')
        self.c.ceph('osd', 'pool', 'create', name, str(pg_num), str(pg_num))
        self.c.wait_clean()

    def row(self, pool):
        return next(p for p in self.c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == pool)

    def wait_pgs(self, pool, n, seconds=240):
        # More PGs are placed like those they come from until all are there.
        numbers = ('pg_num', 'pg_num_target', 'pg_placement_num')
        wait(lambda: all(self.row(pool)[k] == n for k in numbers), f'{n} PGs of {pool}', seconds)
        self.c.wait_clean()

    def set_pgs(self, pool, n):
        self.c.ceph('osd', 'pool', 'set', pool, 'pg_num', str(n))

    def test_1_fewer_and_more_under_load(self):
        self.pool('p', 64)
        def during():
            since = self.c.json('osd', 'dump')['epoch']
            self.set_pgs('p', 16)
            self.writer.goes_on()
            self.wait_pgs('p', 16)
            # As the maps tell it, whenever they are asked for: what is wanted stands there first, and the PGs follow.
            told = json.loads(self.c.python(HISTORY, 'p', since).out)
            first = next(now for want, now in told if want == 16)
            assert first > 16 and [now for _, now in told] == sorted((now for _, now in told), reverse=True), told
            self.set_pgs('p', 64)
            self.writer.goes_on()
            self.wait_pgs('p', 64)
            self.writer.goes_on()
        self.load('p', during)
        s = self.c.json('-s')
        assert s['pgmap']['num_pgs'] == sum(n['count'] for n in s['pgmap']['pgs_by_state']), s
        assert self.c.json('osd', 'dump')['pg_temp'] == []

    def test_2_osd_that_was_away_does_not_bring_anything_back(self):
        self.pool('q', 16)
        def during():
            self.c.spirula('osd', 'stop', '2', '--dir', self.c.dir)
            self.c.ceph('osd', 'out', '2')
            self.set_pgs('q', 4)
            self.wait_pgs('q', 4)
            self.writer.goes_on()
            self.c.spirula('osd', 'start', '2', '--dir', self.c.dir)
            self.c.ceph('osd', 'in', '2')
            self.c.wait_clean()
            self.writer.goes_on()
        self.load('q', during)

    def test_3_killed_in_the_middle(self):
        self.pool('r', 32)
        data = self.sample()
        for i in range(40):
            self.c.rados('-p', 'r', 'put', f'o{i}', data)
        self.set_pgs('r', 8)
        for _ in range(2):
            before = self.row('r')['pg_num']
            wait(lambda: self.row('r')['pg_num'] < max(before, 9), 'PGs that were merged')
            self.c.kill()
            self.c.up()
        self.wait_pgs('r', 8)
        assert len(self.c.rados('-p', 'r', 'ls').out.split()) == 40
        for i in range(40):
            assert self.c.rados('-p', 'r', 'get', f'o{i}', '-').out == open(data).read()

    def test_4_nonsense_is_refused_and_a_change_of_mind_is_not(self):
        self.pool('s', 16)
        self.set_pgs('s', 4)
        self.set_pgs('s', 32)
        self.wait_pgs('s', 32)
        r = self.c.ceph('osd', 'pool', 'set', 's', 'pg_num', '0', check=False)
        assert r.code != 0 and 'greater than 0' in r.err, r


CHURN = '''
# Many epochs: a pool's flag, on and off.
import json, rados, sys
with rados.Rados(conffile=sys.argv[1]) as r:
    for i in range(int(sys.argv[2])):
        cmd = {'prefix': 'osd set' if i % 2 == 0 else 'osd unset', 'key': 'noscrub'}
        ret, _, err = r.mon_command(json.dumps(cmd), b'')
        assert ret == 0, err
'''


class OldMaps(Case):
    """OSD maps that nobody needs go; who asks for them gets a full map and goes on."""
    args = ['--osds', '4']

    def test_1_maps_are_trimmed_and_an_osd_that_missed_them_returns(self):
        c = self.c
        c.ceph('config', 'set', 'mon', 'mon_min_osdmap_epochs', '100')
        c.wait_clean()
        c.rados('-p', 'data', 'put', 'before', self.sample())
        c.spirula('osd', 'stop', '3', '--dir', c.dir)
        c.ceph('osd', 'out', '3')
        c.wait_clean()
        was = c.json('osd', 'dump')['epoch']
        # A client that sits there until its map is gone.
        go = f'{c.dir}-go'
        idle = c.python('import os, rados, sys, time\n'
                        'with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx("data") as io:\n'
                        '    io.write_full("a", b"1"); print("ready", flush=True)\n'
                        '    while not os.path.exists(sys.argv[2]): time.sleep(0.1)\n'
                        '    io.write_full("b", b"2"); print(io.read("a"), io.read("b"))\n', go, wait=False)
        assert idle.stdout.readline() == 'ready\n', idle.stderr.read()
        c.python(CHURN, 600)
        now = c.json('osd', 'dump')['epoch']
        assert now >= was + 600, (was, now)
        def trimmed():
            # Maps are trimmed when a new one is made.
            c.python(CHURN, 2)
            return c.json('report')['osdmap_first_committed'] > was
        wait(trimmed, f'epoch {was} to be trimmed')
        assert c.ceph('osd', 'getmap', str(was), '-o', f'{c.dir}-old', check=False).code != 0
        open(go, 'w').close()
        c.rados('-p', 'data', 'put', 'after', self.sample())
        c.spirula('osd', 'start', '3', '--dir', c.dir)
        c.ceph('osd', 'in', '3')
        c.wait_clean()
        for name in ('before', 'after'):
            assert c.rados('-p', 'data', 'get', name, '-').out == open(self.sample()).read()
        out, err = idle.communicate(timeout=180)
        assert idle.returncode == 0 and "b'1' b'2'" in out, (out, err)
