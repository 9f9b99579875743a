"""An OSD that stops, and comes back."""
import json, os
from harness import Case, holds, wait


class OsdStops(Case):
    def test_stopped_osd_degrades_its_pgs_and_nothing_is_lost_or_stale(self):
        self.c.ceph('osd', 'pool', 'set', 'data', 'min_size', '2')
        for i in range(50):
            self.c.rados('-p', 'data', 'put', f'before{i}', '/etc/hostname') if i < 5 else None
        self.c.spirula('osd', 'stop', '2', '--dir', self.c.dir)
        v = self.c.json('-s')
        assert v['osdmap']['num_up_osds'] == 2, v
        assert 'OSD_DOWN' in v['health']['checks'], v['health']
        wait(lambda: 'PG_DEGRADED' in self.c.json('health')['checks'], 'PG_DEGRADED')
        # Two of three copies are a majority: the pool goes on.
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '120'}) as r, r.open_ioctx('data') as io:
    for i in range(300): io.write_full(f'during{i}', b'%d' % i)
    for i in range(5): io.write_full(f'before{i}', b'new')
''')
        self.c.spirula('osd', 'start', '2', '--dir', self.c.dir)
        self.c.wait_clean()
        self.c.wait_healthy()
        # Whatever copy is read now, it is the new one: stop the others in turn.
        for down in (0, 1):
            self.c.spirula('osd', 'stop', str(down), '--dir', self.c.dir)
            self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '120'}) as r, r.open_ioctx('data') as io:
    for i in range(300): assert io.read(f'during{i}') == b'%d' % i, i
    for i in range(5): assert io.read(f'before{i}') == b'new', i
''')
            self.c.spirula('osd', 'start', str(down), '--dir', self.c.dir)
            self.c.wait_clean()

    def test_clients_are_sent_no_map_that_they_did_not_ask_for(self):
        """Programs of Ceph's print, of each message that nobody there takes, a line on standard error."""
        def quiet(when):
            for words in (['ceph', 'osd', 'stat'], ['ceph', '-s', '-f', 'json'], ['rados', 'lspools'], ['rados', '-p', 'data', 'ls']):
                r = self.c.run(*words)
                assert 'unhandled' not in r.err, (when, words, r.err)
        self.c.spirula('osd', 'stop', '2', '--dir', self.c.dir)
        quiet('an OSD was stopped')
        self.c.spirula('osd', 'start', '2', '--dir', self.c.dir)
        quiet('it was started')
        self.c.ceph('osd', 'out', '2')
        quiet('one was taken out')
        self.c.ceph('osd', 'in', '2')
        self.c.wait_clean()

    def test_write_blocks_below_the_majority_and_resumes(self):
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        self.c.spirula('osd', 'stop', '2', '--dir', self.c.dir)
        p = self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('data') as io:
    io.write_full('blocked', b'value'); print('written', flush=True)
''', wait=False)
        holds(lambda: p.poll() is None, 'a write of a minority waits', 2)
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        out, err = p.communicate(timeout=180)
        assert out.strip() == 'written', err
        self.c.spirula('osd', 'start', '2', '--dir', self.c.dir)
        self.c.wait_clean()
        assert self.c.rados('-p', 'data', 'get', 'blocked', '-').out == 'value'

    def test_out_and_in_keep_the_data(self):
        self.c.rados('-p', 'data', 'put', 'moved', self.sample())
        self.c.ceph('osd', 'out', '2')
        assert self.c.json('osd', 'stat')['num_in_osds'] == 2
        assert self.c.rados('-p', 'data', 'get', 'moved', '-').out == open(self.sample()).read()
        self.c.ceph('osd', 'in', '2')
        self.c.wait_clean()
        assert self.c.rados('-p', 'data', 'get', 'moved', '-').out == open(self.sample()).read()


class FullCluster(Case):
    args = ['--osd-size', '1G']

    def test_full_cluster_refuses_writes_serves_reads_and_recovers_by_deleting(self):
        out = self.c.python('''
import json, rados, sys
def full():
    return 'OSD_FULL' in json.loads(r.mon_command(json.dumps({'prefix': 'health', 'format': 'json'}), b'')[1])['checks']
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '4'}) as r, r.open_ioctx('data') as io:
    n = 0
    while n < 1000:
        try:
            io.write_full(f'fill{n}', bytes([n % 251]) * (4 << 20)); n += 1
        except rados.Error:
            # A write that is slow, and was given up, is no sign that all is full: it is tried again.
            if full(): break
    print(n)
''').out
        n = int(out)
        # What fits, and what is full by its ratio, is the same at any speed.
        assert 100 < n < 256, f'{n} objects of 4 MiB fitted into 1 GiB'
        v = self.c.json('-s')
        assert v['osdmap']['num_up_osds'] == 3, v
        checks = lambda: self.c.json('health')['checks']
        wait(lambda: {'OSD_FULL', 'POOL_FULL'} <= set(checks()), lambda: f'OSD_FULL and POOL_FULL: {checks()}')
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '120'}) as r, r.open_ioctx('data') as io:
    for n in range(int(sys.argv[2])): assert io.read(f'fill{n}', 4 << 20) == bytes([n % 251]) * (4 << 20), n
''', n)
        for i in range(0, 100, 4):
            self.c.rados('-p', 'data', 'rm', '--force-full', *(f'fill{j}' for j in range(i, i + 4)))
        # Held until the map says that there is room again.
        self.c.rados('-p', 'data', 'put', 'again', self.sample())
        assert self.c.rados('-p', 'data', 'get', 'again', '-').out == open(self.sample()).read()
        self.c.wait_healthy()
