"""Data that moves while clients write: pool size, upmap, weights, hosts, device classes, the number of PGs."""
from harness import Case, wait
from test_heal import Loaded


class Moves(Loaded):
    args = ['--osds', '4', '--osd-size', '2G']

    def acting(self, pool):
        number = next(p['pool_id'] for p in self.c.json('osd', 'pool', 'ls', 'detail') if p['pool_name'] == pool)
        rows = self.c.json('pg', 'dump', 'pgs_brief')['pg_stats']
        return {r['pgid']: r['acting'] for r in rows if r['pgid'].startswith(f'{number}.')}

    def settle(self, test, what, seconds=240):
        """Waits until all is clean, the acting sets pass a test, and none is temporary. Reports and map are of two moments: PGs that
        were just split are clean before the map moves them."""
        states = lambda: {s['name'] for s in self.c.json('pg', 'stat')['pg_summary']['num_pg_by_state']}
        temporary = lambda: self.c.json('osd', 'dump')['pg_temp']
        wait(lambda: states() <= {'active+clean'} and test(self.acting('p')) and not temporary(),
             lambda: f'{what}: {states()} {self.acting("p")} {temporary()}', seconds)

    def test_1_pool_size_2_3_2(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'p', '8', '8')
        c.ceph('osd', 'pool', 'set', 'p', 'size', '2')
        c.wait_clean()
        def during():
            for size in (3, 2):
                c.ceph('osd', 'pool', 'set', 'p', 'size', str(size))
                c.ceph('osd', 'pool', 'set', 'p', 'min_size', '1' if size == 2 else '2')
                self.settle(lambda a: all(len(s) == size for s in a.values()), f'size {size}')
        self.load('p', during)
        c.ceph('osd', 'pool', 'set', 'p', 'size', '3')
        self.settle(lambda a: all(len(s) == 3 for s in a.values()), 'size 3')

    def test_2_upmap_moves_single_copies(self):
        c = self.c
        def during():
            moved = {}
            for pg, acting in list(self.acting('p').items())[:4]:
                other = next(o for o in range(4) if o not in acting)
                c.ceph('osd', 'pg-upmap-items', pg, str(acting[1]), str(other))
                moved[pg] = (acting[1], other)
            self.settle(lambda a: all(to in a[pg] and at not in a[pg] for pg, (at, to) in moved.items()), 'upmapped')
            for pg in moved:
                c.ceph('osd', 'rm-pg-upmap-items', pg)
            self.settle(lambda a: all(at in a[pg] for pg, (at, _) in moved.items()), 'as CRUSH says')
        self.load('p', during)

    def test_3_weights_in_and_out(self):
        c = self.c
        weight = next(n['crush_weight'] for n in c.json('osd', 'tree')['nodes'] if n['id'] == 1)
        def during():
            c.ceph('osd', 'crush', 'reweight', 'osd.1', '0')
            self.settle(lambda a: all(1 not in s for s in a.values()), 'weight 0')
            c.ceph('osd', 'crush', 'reweight', 'osd.1', f'{weight:.5f}')
            c.ceph('osd', 'reweight', '2', '0.3')
            self.settle(lambda a: any(1 in s for s in a.values()), 'weight again')
            c.ceph('osd', 'reweight', '2', '1')
            c.ceph('osd', 'out', '0')
            self.settle(lambda a: all(0 not in s for s in a.values()), 'out')
            c.ceph('osd', 'in', '0')
            self.settle(lambda a: any(0 in s for s in a.values()), 'in')
        self.load('p', during)

    def test_4_an_osd_moves_to_another_host(self):
        c = self.c
        c.ceph('osd', 'crush', 'add-bucket', 'other', 'host', 'root=default')
        c.ceph('osd', 'crush', 'rule', 'create-replicated', 'by-host', 'default', 'host')
        weight = next(n['crush_weight'] for n in c.json('osd', 'tree')['nodes'] if n['id'] == 3)
        def during():
            c.ceph('osd', 'crush', 'set', 'osd.3', f'{weight:.5f}', 'root=default', 'host=other')
            self.settle(lambda a: True, 'moved')
            c.ceph('osd', 'pool', 'set', 'p', 'size', '2')
            c.ceph('osd', 'pool', 'set', 'p', 'crush_rule', 'by-host')
            self.settle(lambda a: all(len(s) == 2 and 3 in s for s in a.values()), 'one copy on each host')
            c.ceph('osd', 'pool', 'set', 'p', 'crush_rule', 'replicated_rule')
            c.ceph('osd', 'pool', 'set', 'p', 'size', '3')
            self.settle(lambda a: all(len(s) == 3 for s in a.values()), 'back')
        self.load('p', during)

    def test_5_a_rule_of_a_device_class(self):
        c = self.c
        for o in (0, 1, 2):
            c.ceph('osd', 'crush', 'rm-device-class', f'osd.{o}')
            c.ceph('osd', 'crush', 'set-device-class', 'fast', f'osd.{o}')
        c.ceph('osd', 'crush', 'rule', 'create-replicated', 'on-fast', 'default', 'osd', 'fast')
        def during():
            c.ceph('osd', 'pool', 'set', 'p', 'crush_rule', 'on-fast')
            self.settle(lambda a: all(set(s) == {0, 1, 2} for s in a.values()), 'on the fast ones')
            c.ceph('osd', 'pool', 'set', 'p', 'crush_rule', 'replicated_rule')
            self.settle(lambda a: any(3 in s for s in a.values()), 'everywhere')
        self.load('p', during)

    def test_6_more_pgs_than_ever_before(self):
        c = self.c
        def during():
            c.ceph('osd', 'pool', 'set', 'p', 'pg_num', '64')
            self.settle(lambda a: len(a) == 64, '64 PGs')
        self.load('p', during)
        listed = len(c.rados('-p', 'p', 'ls').out.split())
        # The OSDs' reports come a while after the last change.
        shown = lambda: sum(p['stat_sum']['num_objects'] for p in c.json('pg', 'ls-by-pool', 'p')['pg_stats'])
        wait(lambda: shown() == listed, lambda: f'{listed} objects in reports that show {shown()}')
