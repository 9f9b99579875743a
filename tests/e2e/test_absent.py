"""What is not there yet says so to Ceph's own tools, instead of saying yes and doing nothing."""
from harness import Case


class Absent(Case):
    args = ['--osds', '2']

    def test_snapshots_are_refused_everywhere(self):
        self.c.rados('-p', 'data', 'put', 'o', self.sample())
        r = self.c.ceph('osd', 'pool', 'mksnap', 'data', 's', check=False)
        assert r.code == 95 and 'no snapshots yet' in r.err, r
        for argv in (['mksnap', 's'], ['-s', 's', 'get', 'o', '-'], ['rollback', 'o', 's']):
            r = self.c.rados('-p', 'data', *argv, check=False)
            assert r.code != 0 and 'sample' not in r.out, (argv, r)
        # A client's own: made by the monitor, then named in requests all the same.
        out = self.c.python('''
import rados, sys
r = rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '20', 'rados_mon_op_timeout': '20'})
r.connect()
io = r.open_ioctx('data')
def tried(what, f):
    try:
        print(what, 'done', f())
    except (rados.Error, OSError) as e:
        print(what, e.errno)
tried('create', io.create_self_managed_snap)
io.set_self_managed_snap_write([2, 1])
tried('write', lambda: io.write_full('o', b'new'))
io.set_self_managed_snap_write([])
tried('rollback', lambda: io.rollback_self_managed_snap('o', 2))
r.shutdown()
''').out
        assert out.split('\n')[:3] == ['create 95', 'write 95', 'rollback 95'], out
        assert self.c.rados('-p', 'data', 'get', 'o', '-').out == open(self.sample()).read()

    def test_what_nothing_acts_on_is_refused(self):
        for argv in (['osd', 'set', 'nosnaptrim'], ['osd', 'set', 'notieragent'], ['osd', 'pool', 'set', 'data', 'pg_autoscale_mode', 'on'],
                     ['osd', 'pool', 'create', 'x', '8', '--bulk'], ['mon', 'set-rank', 'a', '1'], ['osd', 'tier', 'rm-overlay', 'data'],
                     ['tell', 'osd.0', 'log', 'reopen'], ['tell', 'mon.a', 'log', 'dump'], ['progress'], ['telemetry', 'on'],
                     ['osd', 'pool', 'set', 'noautoscale'], ['device', 'monitoring', 'on']):
            r = self.c.ceph(*argv, check=False)
            assert r.code == 95 and 'this version ' in r.err, (argv, r)
        # What only a cache tier's pool has is no pool's here; what the cluster is already like is granted.
        assert self.c.ceph('osd', 'pool', 'set', 'data', 'hit_set_type', 'bloom', check=False).code == 13
        assert self.c.ceph('orch', 'host', 'ls', check=False).code == 2
        self.c.ceph('mon', 'enable-msgr2')
        self.c.ceph('osd', 'crush', 'set-all-straw-buckets-to-straw2')
        assert self.c.ceph('device', 'ls').out.startswith('DEVICE') and isinstance(self.c.json('device', 'ls'), list)
        assert 'no effect' in self.c.ceph('config', 'set', 'osd', 'osd_memory_target', '6G').err
