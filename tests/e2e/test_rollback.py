"""Older copies of monitors' stores are put back, of the only one or of three, and a quota is kept closely."""
import os, shutil, subprocess
import harness
from harness import Case, holds, wait


class RolledBack(Case):
    args = ['--osds', '3', '--osd-size', '1G', '--memory', '256M']
    # It says so, as an error.
    errors_expected = True

    def test_1_an_older_copy_is_named_and_the_newest_one_is_the_way_out(self):
        c = self.c
        mon, old, newest = (os.path.join(c.dir, 'mon.a'), os.path.join(c.scratch, 'old'), os.path.join(c.scratch, 'newest'))
        c.ceph('osd', 'pool', 'create', 'first', '8')
        c.down()
        shutil.copytree(mon, old)
        c.up()
        for name in ['second', 'third']:
            c.ceph('osd', 'pool', 'create', name, '8')
        c.wait_clean()
        c.rados('-p', 'second', 'put', 'o', self.sample())
        c.down()
        shutil.copytree(mon, newest)

        def put_back(copy):
            shutil.rmtree(mon)
            shutil.copytree(copy, mon)
        put_back(old)
        before = len(c.log())
        # It waits for PGs that cannot be served.
        up = subprocess.Popen([harness.BINARY, 'up', '--dir', c.dir, '--detach', '--memory', '256M'],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            detail = lambda: c.ceph('health', 'detail', check=False).out
            health = wait(lambda: 'MON_ROLLED_BACK' in (h := detail()) and h, 'MON_ROLLED_BACK', 90)
            assert 'has OSD map' in health and 'newest copy' in health, health
            assert 'older copy' in c.log()
            # No flood.
            holds(lambda: len(c.log()) - before < 1 << 20, 'less than 1 MiB of log', 5)
        finally:
            up.kill()
            up.wait()
        c.down()
        put_back(newest)
        c.up()
        c.wait_clean()
        assert 'MON_ROLLED_BACK' not in c.ceph('health', 'detail').out
        assert c.rados('-p', 'second', 'get', 'o', '-').out == open(self.sample()).read()


class RolledBackQuorum(Case):
    """The same of three monitors."""
    args = ['--mons', '3', '--osds', '3', '--osd-size', '1G', '--memory', '512M']
    errors_expected = True

    def test_1_older_copies_are_named_by_every_monitor_and_the_newest_ones_are_the_way_out(self):
        c = self.c
        mons = [os.path.join(c.dir, f'mon.{m}') for m in 'abc']
        copy_of = lambda mon, which: os.path.join(c.scratch, which + os.path.basename(mon))
        c.ceph('osd', 'pool', 'create', 'first', '8')
        c.down()
        [shutil.copytree(m, copy_of(m, 'old')) for m in mons]
        c.up()
        for name in ['second', 'third']:
            c.ceph('osd', 'pool', 'create', name, '8')
        c.wait_clean()
        c.rados('-p', 'second', 'put', 'o', self.sample())
        addrs = [m['public_addrs']['addrvec'][0]['addr'] for m in c.json('mon', 'dump')['mons']]
        c.down()
        [shutil.copytree(m, copy_of(m, 'newest')) for m in mons]

        def put_back(mon, which):
            shutil.rmtree(mon)
            shutil.copytree(copy_of(mon, which), mon)
        [put_back(m, 'old') for m in mons]
        before = len(c.log())
        up = subprocess.Popen([harness.BINARY, 'up', '--dir', c.dir, '--detach', '--memory', '512M'],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            def named(at):
                health = c.ceph('-m', 'v2:' + at, 'health', 'detail', check=False).out
                return 'MON_ROLLED_BACK' in health and 'has OSD map' in health
            wait(lambda: all(map(named, addrs)), 'MON_ROLLED_BACK from each monitor', 90)
            holds(lambda: len(c.log()) - before < 1 << 20, 'less than 1 MiB of log', 5)
        finally:
            up.kill()
            up.wait()
        c.down()
        # Of each: one that has gone on from an older copy would tell the others another story of what came after.
        [put_back(m, 'newest') for m in mons]
        c.up()
        c.wait_clean()
        assert 'MON_ROLLED_BACK' not in c.ceph('health', 'detail').out
        assert c.rados('-p', 'second', 'get', 'o', '-').out == open(self.sample()).read()


class Quota(Case):
    args = ['--osds', '3', '--osd-size', '2G', '--memory', '256M']

    def test_1_a_quota_is_kept_closely(self):
        """Writers at 40 MiB/s at most: what came in after the quota was reached is bounded by what half a second brings, and a machine on
        which all takes four times as long keeps the bound as well. By all that a disk takes, far less than Ceph lets through:
        `bench/measure-quota` has 76 MiB of ours and 804 of Ceph's by writes of 4 MiB."""
        c = self.c
        c.ceph('osd', 'pool', 'create', 'q', '8')
        c.ceph('osd', 'pool', 'set', 'q', 'size', '2')
        c.wait_clean()
        c.ceph('osd', 'pool', 'set-quota', 'q', 'max_bytes', str(20 << 20))
        out = c.python('''
import rados, sys, time
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '10'}) as r, r.open_ioctx('q') as io:
    done, waiting, began = 0, [], time.time()
    def wrote(c):
        global done
        if c.get_return_value() == 0:
            done += 1
    for i in range(600):
        time.sleep(max(0, began + i / 40 - time.time()))
        waiting.append(io.aio_write_full(f'o{i}', b'x' * (1 << 20), wrote))
        while len(waiting) - done > 16 and time.time() < began + 20:
            time.sleep(0.001)
        if time.time() >= began + 20:
            break
    print(done, flush=True)
    import os
    os._exit(0)
''').out
        wrote = int(out)
        print(f'  a quota of 20 MiB let {wrote} MiB through', flush=True)
        assert 19 <= wrote < 100, wrote
        assert 'POOL_FULL' in c.ceph('health', 'detail').out
