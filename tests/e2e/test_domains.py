"""Failure domains: racks, rooms, datacenters and device classes made with `ceph osd crush`, and what PGs make of them."""
from harness import Case, holds, wait

TYPES = ['host', 'chassis', 'rack', 'row', 'room', 'datacenter']


class Domains(Case):
    minutes = 2
    args = ['--osds', '8', '--osd-size', '1G']

    def tree(self):
        """OSD → type → name of the bucket it is in."""
        nodes = {n['id']: n for n in self.c.json('osd', 'tree')['nodes']}
        up = {child: n for n in nodes.values() for child in n.get('children', [])}
        places = {}
        for osd in (i for i in nodes if i >= 0):
            at, here = osd, places.setdefault(osd, {})
            while at in up:
                here[up[at]['type']] = up[at]['name']
                at = up[at]['id']
        return places

    def pool_id(self, pool):
        return next(p['pool'] for p in self.c.json('osd', 'dump')['pools'] if p['pool_name'] == pool)

    def pgs(self, pool):
        n = self.pool_id(pool)
        return [p for p in self.c.json('pg', 'dump', 'pgs')['pg_stats'] if p['pgid'].startswith(f'{n}.')]

    def apart(self, pool, kind, size):
        """Every PG of the pool has `size` copies, no two in one bucket of this type; or soon: reports of PGs are older than the map."""
        places, wrong = self.tree(), []

        def all_are():
            pgs, wrong[:] = self.pgs(pool), []
            for p in pgs:
                for which in ('up', 'acting'):
                    where = [places[o][kind] for o in p[which]]
                    if len(where) != size or len(set(where)) != size:
                        wrong.append((pool, kind, p['pgid'], which, p[which], where))
            return pgs and not wrong and all(p['state'] == 'active+clean' for p in pgs)
        wait(all_are, lambda: f'copies apart: {wrong}')

    def test_1_racks_are_made_and_a_rule_keeps_copies_apart(self):
        # Two datacenters > rooms > rows > racks > chassis > hosts, an OSD each: OSD n is in everything number n, save that
        # racks and all above hold two.
        for o in range(8):
            path = {'host': f'host{o}', 'chassis': f'chassis{o}', 'rack': f'rack{o // 2}', 'row': f'row{o // 2}',
                    'room': f'room{o // 2}', 'datacenter': f'dc{o // 2}'}
            if o % 2 == 0:
                self.c.ceph('osd', 'crush', 'add-bucket', path['rack'], 'rack')
                for below, kind in zip(['rack', 'row', 'room'], ['row', 'room', 'datacenter']):
                    self.c.ceph('osd', 'crush', 'add-bucket', path[kind], kind)
                    self.c.ceph('osd', 'crush', 'move', path[below], f'{kind}={path[kind]}')
                self.c.ceph('osd', 'crush', 'move', path['datacenter'], 'root=default')
            self.c.ceph('osd', 'crush', 'add-bucket', path['host'], 'host')
            self.c.ceph('osd', 'crush', 'add-bucket', path['chassis'], 'chassis', f'rack={path["rack"]}')
            self.c.ceph('osd', 'crush', 'move', path['host'], f'chassis={path["chassis"]}')
            self.c.ceph('osd', 'crush', 'set', f'osd.{o}', '1.0', f'host={path["host"]}')
        places = self.tree()
        assert places[5] == {'host': 'host5', 'chassis': 'chassis5', 'rack': 'rack2', 'row': 'row2', 'room': 'room2',
                             'datacenter': 'dc2', 'root': 'default'}, places[5]
        for kind in TYPES:
            self.c.ceph('osd', 'crush', 'rule', 'create-replicated', f'by-{kind}', 'default', kind)
            self.c.ceph('osd', 'pool', 'create', f'by-{kind}', '16', '16', 'replicated', f'by-{kind}')
            self.c.ceph('osd', 'pool', 'application', 'enable', f'by-{kind}', 'test')
        self.c.wait_clean()
        for kind in TYPES:
            self.apart(f'by-{kind}', kind, 3)
        for i in range(40):
            self.c.rados('-p', 'by-rack', 'put', f'o{i}', self.sample())

    def test_2_a_host_is_moved_to_another_rack(self):
        self.c.ceph('osd', 'crush', 'move', 'chassis7', 'rack=rack0')
        self.c.wait_clean()
        assert self.tree()[7]['rack'] == 'rack0'
        self.apart('by-rack', 'rack', 3)
        self.c.ceph('osd', 'crush', 'move', 'chassis7', 'rack=rack3')
        self.c.wait_clean()
        self.apart('by-rack', 'rack', 3)

    def test_3_rules_over_device_classes(self):
        for o in range(8):
            self.c.ceph('osd', 'crush', 'rm-device-class', f'osd.{o}')
            self.c.ceph('osd', 'crush', 'set-device-class', 'ssd' if o % 2 else 'hdd', f'osd.{o}')
        self.c.ceph('osd', 'crush', 'rule', 'create-replicated', 'fast', 'default', 'rack', 'ssd')
        self.c.ceph('osd', 'pool', 'create', 'fast', '16', '16', 'replicated', 'fast')
        self.c.wait_clean()
        self.apart('fast', 'rack', 3)
        wait(lambda: all(o % 2 for p in self.pgs('fast') for o in p['acting']), lambda: f"fast on SSDs: {self.pgs('fast')}")
        # An existing pool follows its new rule.
        self.c.ceph('osd', 'pool', 'set', 'by-host', 'crush_rule', 'fast')
        wait(lambda: all(o % 2 for p in self.pgs('by-host') for o in p['acting']), 'by-host on SSDs')
        self.c.wait_clean()

    def test_4_a_rack_goes_and_its_copies_are_made_in_others(self):
        self.c.ceph('config', 'set', 'mon', 'mon_osd_down_out_interval', '2')
        for o in (2, 3):
            self.c.spirula('osd', 'stop', str(o), '--dir', self.c.dir)
        down = [2, 3]
        wait(lambda: self.c.json('osd', 'stat')['num_up_osds'] == 6, 'two OSDs down')
        for i in range(40):
            self.c.rados('-p', 'by-rack', 'get', f'o{i}', '-')
        # A whole rack that is down is not marked out by itself (mon_osd_down_out_subtree_limit): somebody has pulled a plug.
        holds(lambda: self.c.json('osd', 'stat')['num_in_osds'] == 8, 'nobody is out', 4)
        self.c.ceph('config', 'set', 'mon', 'mon_osd_down_out_subtree_limit', 'root')
        wait(lambda: self.c.json('osd', 'stat')['num_in_osds'] == 6, 'two OSDs out')
        pools = ['by-host', 'by-chassis', 'by-rack', 'fast']
        wait(lambda: all(p['state'] == 'active+clean' for n in pools for p in self.pgs(n)), 'clean without the rack')
        self.apart('by-rack', 'rack', 3)
        wait(lambda: not any(o in down for n in pools for p in self.pgs(n) for o in p['acting']), 'no PG there')
        for o in down:
            self.c.spirula('osd', 'start', str(o), '--dir', self.c.dir)
        wait(lambda: self.c.json('osd', 'stat')['num_in_osds'] == 8, 'in again')
        self.c.wait_clean()
        for kind in TYPES[1:]:
            self.apart(f'by-{kind}', kind, 3)

    def test_5_flags_hold_osds_where_they_are(self):
        stat = lambda: self.c.json('osd', 'stat')
        self.c.ceph('osd', 'set', 'nodown')
        self.c.ceph('osd', 'set', 'noout')
        self.c.spirula('osd', 'stop', '6', '--dir', self.c.dir)
        holds(lambda: stat()['num_up_osds'] == 8, 'nodown, also for one that says good-bye, as in Ceph', 2)
        self.c.ceph('osd', 'unset', 'nodown')
        wait(lambda: stat()['num_up_osds'] == 7, 'its peers miss it')
        holds(lambda: stat()['num_in_osds'] == 8, 'noout', 4)
        self.c.ceph('osd', 'set', 'noup')
        self.c.spirula('osd', 'start', '6', '--dir', self.c.dir)
        holds(lambda: stat()['num_up_osds'] == 7, 'noup', 2)
        self.c.ceph('osd', 'out', '6')
        self.c.ceph('osd', 'set', 'noin')
        self.c.ceph('osd', 'unset', 'noup')
        wait(lambda: stat()['num_up_osds'] == 8, 'up again')
        assert stat()['num_in_osds'] == 7, 'noin'
        self.c.ceph('osd', 'unset', 'noin')
        self.c.ceph('osd', 'unset', 'noout')
        self.c.ceph('osd', 'in', '6')
        self.c.wait_clean()
