"""OSD stores: devices of their own for journal and metadata, and the offline tools."""
import glob, json, os, shutil
from harness import Case

PUT = '''
import rados, sys, random
c = rados.Rados(conffile=sys.argv[1]); c.connect(timeout=120); io = c.open_ioctx('rbd')
seed, n = int(sys.argv[2]), int(sys.argv[3])
for i in range(n):
    r = random.Random(seed * 1000 + i)
    io.write_full('o%d' % i, r.randbytes(r.choice([100, 5000, 70000])))
    io.set_xattr('o%d' % i, 'seed', b'%d' % seed)
    with rados.WriteOpCtx() as w:
        io.set_omap(w, ('k1', 'k2'), (b'v%d' % i, b'x' * 500)); io.operate_write_op(w, 'o%d' % i)
c.shutdown()
'''
GET = '''
import rados, sys, random
c = rados.Rados(conffile=sys.argv[1]); c.connect(timeout=120); io = c.open_ioctx('rbd')
seed, n = int(sys.argv[2]), int(sys.argv[3])
for i in range(n):
    r = random.Random(seed * 1000 + i)
    want = r.randbytes(r.choice([100, 5000, 70000]))
    assert io.read('o%d' % i, 200000) == want, i
    assert io.get_xattr('o%d' % i, 'seed') == b'%d' % seed
c.shutdown()
'''


class StoreTools(Case):
    args = ['--osds', '1', '--osd-size', '1G']

    def store(self, *argv, code=0):
        r = self.c.spirula('store', *argv, check=False)
        assert r.code == code, r
        return r

    def osd(self, name=''):
        return os.path.join(self.c.dir, 'osd.0', name)

    def pool(self):
        return self.c.json('osd', 'pool', 'ls')[0]

    def put(self, seed, n=60):
        self.c.python(PUT.replace("'rbd'", repr(self.pool())), seed, n)

    def get(self, seed, n=60):
        self.c.python(GET.replace("'rbd'", repr(self.pool())), seed, n)

    def prepare_anew(self, *more, check=True):
        """Wipes the OSD and makes its store again, as prepare does it."""
        m = json.load(open(os.path.join(self.c.dir, 'cluster.json')))
        return self.c.spirula('osd', 'prepare', self.osd(), '--osd-id', '0', '--osd-uuid', m['osds'][0],
                              '--fsid', m['fsid'], '--json', *more, check=check)

    def test_1_export_to_a_store_with_journal_and_metadata_on_other_devices(self):
        self.put(1)
        r = self.store('check', self.osd(), code=1)
        assert 'in use' in r.err, r
        self.c.down()
        assert 'sound' in self.store('check', self.osd()).out
        export = os.path.join(self.scratch, 'all.export')
        out = json.loads(self.store('export', self.osd(), export, '--json').out)
        assert out['objects'] >= 60, out
        shutil.rmtree(self.osd())
        ssd = os.path.join(self.scratch, 'ssd')
        os.mkdir(ssd)
        made = json.loads(self.prepare_anew('--size', '1G', '--journal-device', ssd + '/j', '--meta-device', ssd + '/m',
                                            '--meta-size', '64M').out)
        assert made['journal'].endswith('/journal') and os.path.islink(self.osd('journal')), made
        self.store('import', self.osd(), export)
        r = self.store('import', self.osd(), export, code=1)
        assert 'already' in r.err, r
        assert 'sound' in self.store('check', self.osd()).out
        self.c.up()
        self.c.wait_clean()
        self.get(1)

    def test_2_kill_and_check_on_separate_devices(self):
        for seed in (2, 3):
            self.put(seed, 40)
            self.c.kill()
            v = json.loads(self.store('check', self.osd(), '--json').out)
            assert v['problem_count'] == 0 and v['objects'] >= 60, v
            self.c.up()
            self.c.wait_clean()
            self.get(seed, 40)
        self.c.down()
        assert 'sound' in self.store('check', self.osd()).out

    def test_3_stats_and_dump_show_what_is_there(self):
        v = json.loads(self.store('stats', self.osd(), '--json').out)
        assert v['objects'] >= 60 and v['metadata']['keys'] > 60 and v['free_runs'], v
        assert 'pieces per object' in self.store('stats', self.osd()).out
        names = [json.loads(l)['name'] for l in self.store('dump', self.osd(), 'objects', '--json').out.splitlines()]
        assert 'o0' in names and 'o59' in names, names
        onode = json.loads(self.store('dump', self.osd(), 'onodes', 'o59', '--json').out)
        assert onode['omap_pairs'] == 2 and onode['pieces'], onode
        assert 'modify o' in self.store('dump', self.osd(), 'log').out
        assert '; PG ' in self.store('dump', self.osd(), 'meta', 'pg.').out
        roles = [json.loads(l)['role'] for l in self.store('dump', self.osd(), 'devices', '--json').out.splitlines()]
        assert roles == ['main device', 'journal device', 'metadata device'], roles

    def test_4_one_pg_is_exported(self):
        pg = next(l.split()[0] for l in self.store('dump', self.osd(), 'log').out.splitlines())
        out = json.loads(self.store('export', self.osd(), os.path.join(self.scratch, 'pg.export'), '--pg', pg, '--json').out)
        assert 0 < out['objects'] < 61, out
        r = self.store('export', self.osd(), '/nowhere', '--pg', '77.0', code=1)
        assert 'not in this store' in r.err, r

    def test_5_a_flipped_byte_is_found(self):
        onode = json.loads(self.store('dump', self.osd(), 'onodes', 'o59', '--json').out)
        at = (128 << 10) + onode['pieces'][0]['block'] * 4096 + 17
        with open(self.osd('block'), 'r+b') as f:
            f.seek(at)
            b = f.read(1)
            f.seek(at)
            f.write(bytes([b[0] ^ 4]))
        r = self.store('check', self.osd(), code=1)
        assert 'o59' in r.out and 'checksum' in r.out, r
        r = self.store('export', self.osd(), os.path.join(self.scratch, 'bad.export'), code=1)
        assert '--skip-bad' in r.err and not os.path.exists(os.path.join(self.scratch, 'bad.export')), r
        r = self.store('export', self.osd(), os.path.join(self.scratch, 'bad.export'), '--skip-bad')
        assert 'left out' in r.err and 'o59' in r.err, r
        with open(self.osd('block'), 'r+b') as f:
            f.seek(at)
            f.write(b)
        self.store('check', self.osd())

    def test_6_bad_devices_are_told_by_name_and_untouched(self):
        journal, meta = os.readlink(self.osd('journal')), os.readlink(self.osd('meta'))

        def refused(*words):
            def times():
                return {f: os.stat(f).st_mtime_ns for f in glob.glob(self.osd('*')) + [journal, meta] if os.path.exists(f)}
            before = times()
            for r in (self.store('check', self.osd(), code=1), self.c.up('--json', check=False)):
                assert r.code != 0 and all(w in r.err for w in words), (words, r)
            assert before == times()
        os.rename(journal, journal + '.away')
        refused('journal', 'missing', 'connect it')
        os.rename(meta, journal)
        os.rename(journal + '.away', meta)
        refused('is the metadata device of osd.0', 'not the journal device')
        os.rename(meta, journal + '.away')
        os.rename(journal, meta)
        os.rename(journal + '.away', journal)
        os.truncate(self.osd('block'), (1 << 30) + (128 << 10) - 4096)
        refused('bytes, the superblock says')
        os.truncate(self.osd('block'), (1 << 30) + (128 << 10))
        r = self.store('check', '/etc/hostname', code=1)
        assert 'no spirula store' in r.err, r
        r = self.store('check', self.scratch + '/nothing', code=1)
        assert 'is missing' in r.err, r
        assert 'sound' in self.store('check', os.path.join(self.c.dir, 'mon.a')).out
        self.store('check', self.osd())

    def test_7_prepare_refuses_what_holds_something(self):
        m = json.load(open(os.path.join(self.c.dir, 'cluster.json')))
        disk = os.path.join(self.scratch, 'disk')
        with open(disk, 'wb') as f:
            f.truncate(64 << 20)
            f.seek(1080)
            f.write(b'\x53\xef')
        ids = ['--osd-id', '7', '--fsid', m['fsid']]
        r = self.c.spirula('osd', 'prepare', disk, *ids, check=False)
        assert r.code == 1 and 'ext2/3/4' in r.err and f'--force {disk}' in r.err, r
        self.c.spirula('osd', 'prepare', disk, *ids, '--force', disk)
        assert 'sound' in self.store('check', disk).out
        r = self.c.spirula('osd', 'prepare', self.osd(), *ids, check=False)
        assert r.code == 1 and 'not empty' in r.err, r

    def test_8_grown_file_is_used(self):
        r = self.c.spirula('osd', 'grow', self.osd(), '--size', '2G', '--json')
        assert json.loads(r.out)['data_bytes'] == 2 << 30, r
        r = self.c.spirula('osd', 'grow', self.osd(), '--size', '1G', check=False)
        assert r.code == 1 and 'smaller' in r.err, r
        self.store('check', self.osd())
