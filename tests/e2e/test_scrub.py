"""Rot: flipped bits in one OSD's store are noticed, repaired from another copy, and never reach a client."""
import glob, json, os, time
from harness import Case


class Scrub(Case):
    args = ['--osds', '3', '--osd-size', '2G']

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
            with open(path, 'r+b') as f:
                size, at, step = os.path.getsize(path), 0, 1 << 20
                while at < size:
                    try:
                        at = os.lseek(f.fileno(), at, os.SEEK_DATA)
                    except OSError:
                        break  # Nothing but holes.
                    f.seek(at)
                    part = f.read(step + 4096)
                    for pattern in patterns:
                        here = part.find(pattern)
                        if here >= 0:
                            f.seek(at + here + 7)
                            f.write(bytes([pattern[7] ^ 4]))
                            flipped += 1
                    at += step
        assert flipped, 'the payload is nowhere in the store'

    def rot(self, osd, *patterns):
        self.c.down()
        self.flip(osd, *patterns)
        self.c.up()
        self.c.wait_clean()

    def until(self, what, check, seconds=60):
        deadline = time.time() + seconds
        while not check():
            assert time.time() < deadline, f'{what}: not within {seconds} s'
            time.sleep(0.3)

    def logged(self, text):
        return any(text in line for line in self.c.ceph('log', 'last', '1000').out.splitlines())

    def test_1_a_read_of_rotten_data_gives_the_right_bytes_and_repairs(self):
        self.pool('read')
        data = os.urandom(300000)
        self.put('read', 'obj', data)
        primary = self.acting('read', 'obj')[0]
        self.rot(primary, data[8192:8256])
        assert self.get('read', 'obj') == data
        self.until('the repair is in the cluster log', lambda: self.logged('obj'))
        assert self.logged('repaired from osd.'), self.c.ceph('log', 'last', '50').out
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
        self.until('the repair is in the cluster log', lambda: self.logged(f'osd.{replica} pg'))
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
        self.until('a clean deep scrub', lambda: self.logged(f'{pgid} deep-scrub ok'))
        assert json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == []
        assert json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents'] == []
        self.rot(replica, data[8192:8256])

        self.c.ceph('pg', 'deep-scrub', pgid)
        self.until('the deep scrub finds it', lambda: json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == [pgid])
        found = json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents']
        assert [f['object']['name'] for f in found] == ['obj'], found
        assert found[0]['union_shard_errors'] == ['read_error'], found
        assert found[0]['selected_object_info']['size'] == 300000, found
        bad = [s['osd'] for s in found[0]['shards'] if s['errors']]
        assert bad == [replica] and len(found[0]['shards']) == 3, found
        health = self.c.ceph('health', 'detail').out
        for line in ('HEALTH_ERR', 'OSD_SCRUB_ERRORS: 1 scrub errors', 'Possible data damage: 1 pg inconsistent',
                     f'pg {pgid} is active+clean+inconsistent'):
            assert line in health, (line, health)
        # A shallow scrub does not read, and does not take back what a deep one found.
        self.c.ceph('pg', 'scrub', pgid)
        self.until('a shallow scrub', lambda: self.logged(f'{pgid} scrub ok'))
        assert json.loads(self.c.rados('list-inconsistent-pg', 'deep').out) == [pgid]

        self.c.ceph('pg', 'repair', pgid)
        self.until('health', lambda: self.c.ceph('health').out.startswith('HEALTH_OK'))
        assert self.logged(f'{pgid} repair 1 errors, 1 fixed'), self.c.ceph('log', 'last', '30').out
        assert json.loads(self.c.rados('list-inconsistent-obj', pgid).out)['inconsistents'] == []
        self.c.ceph('osd', 'pool', 'deep-scrub', 'deep')
        self.c.wait_clean()
        assert self.get('deep', 'obj') == data
        assert self.get('deep', 'other') == data[::-1]
