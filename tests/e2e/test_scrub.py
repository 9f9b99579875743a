"""Rot: flipped bits in one OSD's store are noticed, repaired from another copy, and never reach a client."""
import glob, json, os
from harness import Case, holds, wait


class Rotten(Case):
    """Data, and bits of it that flip in one OSD's store."""
    errors_expected = True

    def pool(self, name):
        self.c.ceph('osd', 'pool', 'create', name, '1')
        self.c.ceph('osd', 'pool', 'application', 'enable', name, 'test')
        self.c.wait_clean()

    def put(self, pool, name, data):
        path = os.path.join(self.scratch, name)
        with open(path, 'wb') as f:
            f.write(data)
        self.c.rados('-p', pool, 'put', name, path)

    def get(self, pool, name):
        path = os.path.join(self.scratch, 'got')
        self.c.rados('-p', pool, 'get', name, path)
        with open(path, 'rb') as f:
            return f.read()

    def acting(self, pool, name):
        return self.json_map(pool, name)['acting']

    def json_map(self, pool, name):
        return self.c.json('osd', 'map', pool, name)

    def flip(self, osd, *patterns):
        """Flips one bit wherever these bytes are in an OSD's files; the cluster must be down."""
        flipped = 0
        for path in glob.glob(os.path.join(self.c.dir, '**', f'osd.{osd}', '**'), recursive=True):
            if not os.path.isfile(path):
                continue
            fd = os.open(path, os.O_RDWR)
            size, at, step = os.path.getsize(path), 0, 1 << 20
            while at < size:
                try:
                    at = os.lseek(fd, at, os.SEEK_DATA)
                except OSError:
                    break  # Nothing but holes.
                part = os.pread(fd, step + 4096, at)
                for pattern in patterns:
                    # All of them: what a journal holds may be here, too.
                    here = part.find(pattern)
                    while here >= 0:
                        os.pwrite(fd, bytes([pattern[7] ^ 4]), at + here + 7)
                        flipped += 1
                        here = part.find(pattern, here + 1)
                at += step
            os.close(fd)
        assert flipped, 'the payload is nowhere in the store'

    def rot(self, osd, *patterns):
        self.c.down()
        self.flip(osd, *patterns)
        self.c.up()
        self.c.wait_clean()

    def logged(self, text):
        return any(text in line for line in self.c.ceph('log', 'last', '1000').out.splitlines())


class Scrub(Rotten):
    args = ['--osds', '3', '--osd-size', '2G']

    def test_1_a_read_of_rotten_data_gives_the_right_bytes_and_repairs(self):
        self.pool('read')
        data = os.urandom(300000)
        self.put('read', 'obj', data)
        primary = self.acting('read', 'obj')[0]
        self.rot(primary, data[8192:8256])
        assert self.get('read', 'obj') == data
        wait(lambda: self.logged('repaired from osd.'), 'the repair is in the cluster log')
        self.c.wait_clean()
        assert self.get('read', 'obj') == data
        # It is on the disk again, too.
        self.c.down()
        self.c.up()
        self.c.wait_clean()
        assert self.get('read', 'obj') == data

    def test_2_a_write_into_rotten_data_of_a_replica_stops_nobody(self):
        self.pool('merge')
        data = bytearray(os.urandom(300000))
        self.put('merge', 'obj', bytes(data))
        replica = self.acting('merge', 'obj')[1]
        self.rot(replica, bytes(data[8192:8256]))
        part = os.path.join(self.scratch, 'part')
        with open(part, 'wb') as f:
            f.write(b'new bytes')
        self.c.rados('-p', 'merge', 'put', 'obj', part, '--offset', '8300')
        data[8300:8309] = b'new bytes'
        assert self.get('merge', 'obj') == bytes(data)
        wait(lambda: self.logged(f'osd.{replica} pg'), 'the repair is in the cluster log')
        self.c.wait_clean()
        assert len(self.c.json('osd', 'stat')) and self.c.json('osd', 'stat')['num_up_osds'] == 3
        # The replica's copy is good: it serves alone.
        others = [o for o in self.acting('merge', 'obj') if o != replica]
        self.c.down()
        for o in others:
            self.flip(o, bytes(data[8200:8264]))
        self.c.up()
        self.c.wait_clean()
        assert self.get('merge', 'obj') == bytes(data)
        self.c.wait_clean()

    def test_3_deep_scrub_finds_rot_and_repair_heals(self):
        self.pool('deep')
        data, omap = os.urandom(300000), 'value'
        self.put('deep', 'obj', data)
        self.put('deep', 'other', data[::-1])
        self.c.rados('-p', 'deep', 'setomapval', 'obj', 'key', omap)
        self.c.rados('-p', 'deep', 'setxattr', 'obj', 'user', 'value')
        where = self.json_map('deep', 'obj')
        pgid, replica = where['pgid'], where['acting'][1]
        said = self.c.ceph('pg', 'deep-scrub', pgid)
        assert f'instructing pg {pgid} on osd.{where["acting"][0]} to deep-scrub' in said.err, said
        wait(lambda: self.logged(f'{pgid} deep-scrub ok'), 'a clean deep scrub')
        assert json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == []
        assert json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents'] == []
        self.rot(replica, data[8192:8256])

        self.c.ceph('pg', 'deep-scrub', pgid)
        wait(lambda: json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == [pgid], 'the deep scrub finds it')
        found = json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents']
        assert [f['object']['name'] for f in found] == ['obj'], found
        assert found[0]['union_shard_errors'] == ['read_error'], found
        assert found[0]['selected_object_info']['size'] == 300000, found
        bad = [s['osd'] for s in found[0]['shards'] if s['errors']]
        assert bad == [replica] and len(found[0]['shards']) == 3, found
        health = lambda: self.c.ceph('health', 'detail').out
        lines = ('HEALTH_ERR', 'OSD_SCRUB_ERRORS: 1 scrub errors', 'Possible data damage: 1 pg inconsistent',
                 f'pg {pgid} is active+clean+inconsistent')
        wait(lambda: all(line in (now := health()) for line in lines), lambda: f'{lines}: {health()}')
        # A shallow scrub does not read, and does not take back what a deep one found.
        self.c.ceph('pg', 'scrub', pgid)
        wait(lambda: self.logged(f'{pgid} scrub ok'), 'a shallow scrub')
        assert json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == [pgid]

        self.c.ceph('pg', 'repair', pgid)
        wait(lambda: self.c.ceph('health').out.startswith('HEALTH_OK'), 'health')
        wait(lambda: self.logged(f'{pgid} repair 1 errors, 1 fixed'), lambda: self.c.ceph('log', 'last', '30').out)
        assert json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents'] == []
        self.c.ceph('osd', 'pool', 'deep-scrub', 'deep')
        self.c.wait_clean()
        assert self.get('deep', 'obj') == data
        assert self.get('deep', 'other') == data[::-1]

    def test_4_an_object_without_a_good_copy_can_be_listed_and_given_up(self):
        self.c.ceph('osd', 'pool', 'create', 'lost', '1')
        self.c.ceph('osd', 'pool', 'application', 'enable', 'lost', 'test')
        self.c.ceph('osd', 'pool', 'set', 'lost', 'size', '2')
        self.c.wait_clean()
        data = os.urandom(300000)
        self.put('lost', 'gone', data)
        self.put('lost', 'kept', data[::-1])
        where = self.json_map('lost', 'gone')
        pgid = where['pgid']
        self.c.down()
        for osd in where['acting']:
            self.flip(osd, data[8192:8256])
        self.c.up()
        self.c.wait_clean()
        # A read waits, as in Ceph: a copy may come back.
        p = self.c.python(READ, 'lost', 'gone', wait=False)
        wait(lambda: self.unfound(pgid)['num_unfound'] == 1, 'it is unfound')
        listed = self.unfound(pgid)
        assert listed['objects'][0]['oid']['oid'] == 'gone' and not listed['more'], listed
        wait(lambda: 'OBJECT_UNFOUND' in self.c.ceph('health', 'detail').out, 'health')
        assert 'unfound' in self.c.ceph('pg', 'ls').out
        # Neither other objects nor listings wait for it.
        assert self.get('lost', 'kept') == data[::-1]
        assert sorted(self.c.rados('-p', 'lost', 'ls').out.split()) == ['gone', 'kept']
        said = self.c.ceph('pg', pgid, 'mark_unfound_lost', 'delete')
        assert 'pg has 1 objects unfound and apparently lost' in said.err, said
        out, err = p.communicate(timeout=180)
        assert 'ObjectNotFound' in out, (out, err)
        self.c.wait_clean()
        assert self.c.rados('-p', 'lost', 'ls').out.split() == ['kept']
        said = self.c.ceph('pg', pgid, 'mark_unfound_lost', 'revert')
        assert 'pg has no unfound objects' in said.err, said

    def test_4_b_omaps_that_are_large_are_reported(self):
        self.pool('omaps')
        self.c.ceph('config', 'set', 'osd', 'osd_deep_scrub_large_omap_object_key_threshold', '10')
        self.c.ceph('config', 'set', 'osd', 'osd_deep_scrub_large_omap_object_value_sum_threshold', '5000')
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('omaps') as io:
    for name, n, size in (('many', 50, 1), ('big', 3, 4000), ('small', 3, 1)):
        with rados.WriteOpCtx() as op:
            io.set_omap(op, tuple('k%d' % i for i in range(n)), (b'v' * size,) * n); io.operate_write_op(op, name)
''')
        pgid = self.json_map('omaps', 'many')['pgid']
        reported = lambda: self.c.json('health', 'detail')['checks'].get('LARGE_OMAP_OBJECTS')
        self.c.ceph('pg', 'deep-scrub', pgid)
        found = wait(reported, 'LARGE_OMAP_OBJECTS')
        assert found['severity'] == 'HEALTH_WARN' and found['summary']['message'] == '2 large omap objects', found
        assert found['detail'][0]['message'] == "2 large objects found in pool 'omaps'", found
        lines = lambda: [l for l in self.c.ceph('log', 'last', '300', 'warn', 'cluster').out.splitlines() if 'Large omap object found. Object:' in l]
        said = wait(lambda: len(lines()) == 2 and lines(), 'both in the cluster log')
        assert any(':::many:head' in l and 'Key count: 50 ' in l for l in said) and any(':::big:head' in l and 'Size (bytes): 12000' in l for l in said), said
        for name in ('many', 'big'):
            self.c.rados('-p', 'omaps', 'rm', name)
        self.c.ceph('pg', 'deep-scrub', pgid)
        wait(lambda: not reported(), 'an end of LARGE_OMAP_OBJECTS')

    def unfound(self, pgid):
        return json.loads(self.c.ceph('pg', pgid, 'list_unfound').out)

    def test_5_scrubs_come_by_themselves_and_the_flags_hold_them(self):
        self.pool('often')
        self.put('often', 'obj', b'data')
        pgid = self.json_map('often', 'obj')['pgid']
        stamp = lambda key: self.c.json('pg', pgid, 'query')['info']['stats'][key]
        first = stamp('last_scrub_stamp')
        self.c.ceph('osd', 'pool', 'set', 'often', 'scrub_min_interval', '1')
        wait(lambda: stamp('last_scrub_stamp') > first, 'a scrub')
        self.c.ceph('osd', 'set', 'noscrub')
        self.c.ceph('osd', 'set', 'nodeep-scrub')
        for o in range(3):
            # Nobody begins one any more.
            want = self.c.json('osd', 'dump')['epoch']
            wait(lambda: self.c.json('tell', f'osd.{o}', 'status')['newest_map'] >= want, f'map {want} at osd.{o}')
        wait(lambda: 'scrubbing' not in self.c.json('pg', pgid, 'query')['state'], 'the end of a scrub')
        held = stamp('last_scrub_stamp')
        holds(lambda: stamp('last_scrub_stamp') == held, 'no scrub', 4)
        self.c.ceph('osd', 'unset', 'noscrub')
        wait(lambda: stamp('last_scrub_stamp') > held, 'another scrub')
        self.c.ceph('osd', 'unset', 'nodeep-scrub')
        deep = stamp('last_deep_scrub_stamp')
        self.c.ceph('osd', 'pool', 'set', 'often', 'deep_scrub_interval', '1')
        wait(lambda: stamp('last_deep_scrub_stamp') > deep, 'a deep scrub')
        for key in ('scrub_min_interval', 'deep_scrub_interval'):
            self.c.ceph('osd', 'pool', 'set', 'often', key, '0')
        rows = [r for o in range(3) for r in json.loads(self.c.ceph('tell', f'osd.{o}', 'dump_scrubs').out)]
        assert pgid in [r['pgid'] for r in rows], rows
        shown = json.loads(self.c.ceph('tell', 'osd.0', 'dump_scheduler').out)
        assert shown['max_backfills'] == 4 and 'limit_bytes_per_second' in shown, shown
        self.c.ceph('config', 'set', 'osd', 'osd_max_backfills', '2')
        reservations = lambda: json.loads(self.c.ceph('tell', 'osd.0', 'dump_recovery_reservations').out)
        wait(lambda: reservations()['local_reservations']['max_allowed'] == 2, 'the option')
        said = self.c.ceph('pg', 'force-recovery', pgid)
        assert f"pg {pgid} doesn't require recovery" in said.err, said


READ = '''
import rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '0'}) as r, r.open_ioctx(sys.argv[2]) as io:
    try: print(len(io.read(sys.argv[3], 1 << 20)))
    except Exception as e: print(type(e).__name__)
'''
