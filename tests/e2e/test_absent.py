"""What is not there yet says so to Ceph's own tools, instead of saying yes and doing nothing."""
from harness import Case


class Absent(Case):
    args = ['--osds', '2']

    def test_what_nothing_acts_on_is_refused(self):
        for argv in (['osd', 'pool', 'set', 'data', 'pg_autoscale_mode', 'on'],
                     ['osd', 'pool', 'create', 'x', '8', '--bulk'], ['mon', 'set-rank', 'a', '1'], ['osd', 'tier', 'rm-overlay', 'data'],
                     ['progress'], ['telemetry', 'on'],
                     ['osd', 'pool', 'set', 'noautoscale'], ['device', 'monitoring', 'on']):
            r = self.c.ceph(*argv, check=False)
            assert r.code == 95 and 'this version ' in r.err, (argv, r)
        # What only a cache tier's pool has is no pool's here; what the cluster is already like is granted.
        assert self.c.ceph('osd', 'pool', 'set', 'data', 'hit_set_type', 'bloom', check=False).code == 13
        assert self.c.ceph('orch', 'host', 'ls', check=False).code == 2
        self.c.ceph('mon', 'enable-msgr2')
        for daemon in ('osd.0', 'mon.a'):
            self.c.ceph('tell', daemon, 'log', 'reopen')
            self.c.ceph('tell', daemon, 'log', 'dump')
        self.c.ceph('osd', 'crush', 'set-all-straw-buckets-to-straw2')
        assert self.c.ceph('device', 'ls').out.startswith('DEVICE') and isinstance(self.c.json('device', 'ls'), list)
        assert 'no effect' in self.c.ceph('config', 'set', 'osd', 'osd_memory_target', '6G').err
