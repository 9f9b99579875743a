"""Stores that are none, not ours, damaged or incomplete, on real files: every way of opening one
refuses it with a sentence that says what is wrong and what to do, and changes no byte."""
import hashlib, json, os, shutil, struct, subprocess
from harness import Case

MAGIC = b'SPIRSTOR'
COPIES = (0, 64 << 10)


def crc32c(data):
    c = 0xffffffff
    for b in data:
        c ^= b
        for _ in range(8):
            c = (c >> 1) ^ 0x82f63b78 if c & 1 else c >> 1
    return c


def contents(*roots):
    """Every file, link and directory below the roots, with a hash of its bytes."""
    found = {}
    def one(path):
        if os.path.islink(path):
            found[path] = 'link to ' + os.readlink(path)
        elif os.path.isdir(path):
            found[path] = 'directory'
            for n in sorted(os.listdir(path)):
                one(os.path.join(path, n))
        elif os.path.isfile(path):
            h, size = hashlib.sha256(), os.path.getsize(path)
            with open(path, 'rb') as f:
                at = 0
                while block := f.read(1 << 20):
                    if block.count(0) != len(block):
                        h.update(b'%d' % at + block)
                    at += len(block)
            found[path] = (size, h.hexdigest())
        elif os.path.exists(path):
            found[path] = 'something else'
    for r in roots:
        one(r)
    return found


class BadStores(Case):
    """One store of 64 MiB with journal and metadata on other devices; each row spoils a copy of it."""
    args = ['--osds', '1', '--osd-size', '1G']
    errors_expected = True

    def osd(self, name=''):
        return os.path.join(self.c.dir, 'osd.0', name).rstrip('/')

    def ssd(self, name):
        return os.path.join(self.scratch, 'ssd', name)

    def manifest(self):
        return json.load(open(os.path.join(self.c.dir, 'cluster.json')))

    def prepare(self, path, *more, fsid=None, uuid=None, osd=0):
        m = self.manifest()
        return self.c.spirula('osd', 'prepare', path, '--osd-id', str(osd), '--osd-uuid', uuid or m['osds'][0],
                              '--fsid', fsid or m['fsid'], '--size', '64M', '--journal-size', '4M', *more, check=False)

    def saved(self):
        return os.path.join(self.scratch, 'saved')

    def restore(self):
        for name, to in (('osd.0', self.osd()), ('ssd', self.ssd(''))):
            if os.path.isdir(to):
                shutil.rmtree(to)
            elif os.path.lexists(to):
                os.remove(to)
            subprocess.run(['cp', '-a', '--sparse=always', os.path.join(self.saved(), name), to.rstrip('/')], check=True)

    def save(self):
        shutil.rmtree(self.saved(), ignore_errors=True)
        os.mkdir(self.saved())
        for at in (self.osd(), self.ssd('').rstrip('/')):
            subprocess.run(['cp', '-a', '--sparse=always', at, self.saved()], check=True)

    def ways(self, start_only=False, up_only=False):
        """Every command that opens the store of osd.0."""
        if up_only:
            yield ['up', '--dir', self.c.dir, '--detach']
            return
        if not start_only:
            yield ['store', 'check', self.osd()]
            yield ['store', 'check', self.osd(), '--quick']
            yield ['store', 'stats', self.osd(), '--json']
            yield ['store', 'dump', self.osd(), 'objects']
            yield ['store', 'dump', self.osd(), 'log']
            yield ['store', 'export', self.osd(), os.path.join(self.scratch, 'never.export')]
            yield ['store', 'import', self.osd(), self.export]
            yield ['osd', 'grow', self.osd()]
        yield ['osd', '--dir', self.c.dir, '--id', '0']
        yield ['up', '--dir', self.c.dir, '--detach']

    def refused(self, what, words, argv, watch):
        before = contents(*watch)
        r = self.c.spirula(*argv, check=False)
        assert r.code != 0, f'{what}: {argv} succeeds: {r}'
        text = r.err.strip()
        missing = [w for w in words if w not in text]
        assert not missing, f'{what}: {argv} does not say {missing}: {r}'
        assert 'panicked' not in text and len(text) > 30, f'{what}: {r}'
        after = contents(*watch)
        changed = [p for p in before.keys() | after.keys() if before.get(p) != after.get(p)]
        assert not changed, f'{what}: {argv} changed {changed}'
        assert not os.path.exists(os.path.join(self.scratch, 'never.export')), what

    def row(self, what, spoil, *words, **which):
        self.restore()
        spoil()
        n = 0
        for argv in self.ways(**which):
            self.refused(what, words, argv, [self.osd(), self.ssd('').rstrip('/'), self.export])
            n += 1
        self.rows = getattr(self, 'rows', 0) + n

    def edit_labels(self, path, change):
        """Changes both copies of a label, checksums made right."""
        with open(path, 'r+b') as f:
            for at in COPIES:
                f.seek(at)
                copy = bytearray(f.read(4096))
                assert copy.startswith(MAGIC), path
                change(copy)
                copy[4092:] = struct.pack('<I', crc32c(copy[:4092]))
                f.seek(at)
                f.write(copy)

    def test_1_make_a_store_to_spoil(self):
        pool = self.c.json('osd', 'pool', 'ls')[0]
        for i in range(20):
            self.c.rados('-p', pool, 'put', f'o{i}', '/etc/passwd')
        self.c.down()
        self.export = os.path.join(self.scratch, 'all.export')
        self.c.spirula('store', 'export', self.osd(), self.export)
        shutil.rmtree(self.osd())
        os.mkdir(self.ssd(''))
        r = self.prepare(self.osd(), '--journal-device', self.ssd('j'), '--meta-device', self.ssd('m'), '--meta-size', '16M')
        assert r.code == 0, r
        self.early = os.path.join(self.scratch, 'early-j')
        self.c.spirula('store', 'import', self.osd(), self.export)
        shutil.copy(self.ssd('j'), self.early)
        self.c.up()
        self.c.wait_clean()
        self.c.rados('-p', pool, 'put', 'late', '/etc/passwd')
        self.c.down()
        self.save()
        # As it is, it is sound.
        assert 'sound' in self.c.spirula('store', 'check', self.osd()).out

    def test_2_no_store(self):
        def nothing():
            shutil.rmtree(self.osd())

        def directory():
            nothing()
            os.mkdir(self.osd())

        def as_block(kind):
            def spoil():
                os.remove(self.osd('block'))
                kind(self.osd('block'))
            return spoil

        def garbage(path):
            with open(path, 'wb') as f:
                f.write(os.urandom(300 << 10))
        self.row('no store', nothing, 'osd.0', 'missing')
        self.row('an empty directory', directory, 'osd.0', 'is missing')
        self.row('an empty file', as_block(lambda p: open(p, 'w').close()), 'block', 'no spirula store', 'check the path')
        self.row('random bytes', as_block(garbage), 'block', 'no spirula store')
        self.row('a directory for a device', as_block(os.mkdir), 'block')
        self.row('a pipe for a device', as_block(os.mkfifo), 'block')
        self.row('a link to nothing', as_block(lambda p: os.symlink('/nowhere/at/all', p)), '/nowhere/at/all', 'missing')

    def test_3_stores_of_others(self):
        other, wrong = '01234567-89ab-cdef-0123-456789abcdef', '11111111-2222-3333-4444-555555555555'

        def prepared(**kw):
            def spoil():
                shutil.rmtree(self.osd())
                r = self.prepare(self.osd(), **kw)
                assert r.code == 0, r
            return spoil
        self.row('a store of another cluster', prepared(fsid=other), 'cluster', other, start_only=True)
        self.row('a store of another OSD', prepared(osd=7), 'osd.7', 'osd.0', start_only=True)
        self.row('a store of an earlier OSD of that number', prepared(uuid=wrong), 'uuid', up_only=True)

        def foreign(name):
            def spoil():
                at = os.path.join(self.scratch, 'foreign')
                shutil.rmtree(at, ignore_errors=True)
                r = self.prepare(os.path.join(at, 'osd'), '--journal-device', at + '/j', '--meta-device', at + '/m', '--meta-size', '16M')
                assert r.code == 0, r
                shutil.copy(f'{at}/{name}', self.ssd(name))
            return spoil
        self.row('the journal of another store', foreign('j'), 'store')
        self.row('the metadata of another store', foreign('m'), 'store')

    def test_4_newer_formats(self):
        def version(copy):
            copy[8:10] = struct.pack('<H', 3)

        def feature(copy):
            copy[12:20] = struct.pack('<Q', 1 << 40)
        for name, change in (('format 3', version), ('features 0x10000000000', feature)):
            self.row(f'{name}, main device', lambda: self.edit_labels(self.osd('block'), change), name, 'newer program')
            self.row(f'{name}, journal', lambda: self.edit_labels(self.ssd('j'), change), name, 'newer program')

    def test_5_devices_that_are_missing_short_or_changed(self):
        size = os.path.getsize(self.osd('block'))

        def swap():
            os.rename(self.ssd('j'), self.ssd('x'))
            os.rename(self.ssd('m'), self.ssd('j'))
            os.rename(self.ssd('x'), self.ssd('m'))

        def overwrite(path, at, data):
            with open(path, 'r+b') as f:
                f.seek(at)
                f.write(data)

        def both_copies(path):
            for at in COPIES:
                overwrite(path, at + 100, os.urandom(300))
        self.row('no journal device', lambda: os.remove(self.ssd('j')), 'journal device of osd.0', 'missing', 'connect it')
        self.row('no journal link', lambda: os.remove(self.osd('journal')), 'journal device of osd.0', 'missing', 'connect it')
        self.row('no metadata device', lambda: os.remove(self.ssd('m')), 'metadata device of osd.0', 'missing', 'connect it')
        self.row('swapped devices', swap, 'is the metadata device of osd.0', 'not the journal device')
        self.row('main device as journal', lambda: shutil.copy(self.osd('block'), self.ssd('j')), 'main device of osd.0', 'not the journal device')
        self.row('an empty journal device', lambda: os.truncate(self.ssd('j'), 0), 'no spirula store')
        self.row('an old copy of the journal', lambda: shutil.copy(self.early, self.ssd('j')), 'old copy')
        self.row('main device cut by a block', lambda: os.truncate(self.osd('block'), size - 4096), 'superblock says')
        self.row('main device cut to a MiB', lambda: os.truncate(self.osd('block'), 1 << 20), 'superblock says')
        self.row('main device cut within its label', lambda: os.truncate(self.osd('block'), 1000), 'no spirula store')
        self.row('journal cut', lambda: os.truncate(self.ssd('j'), 1 << 20), 'label says')
        self.row('metadata cut', lambda: os.truncate(self.ssd('m'), 1 << 20), 'label says')
        for path in (self.osd('block'), self.ssd('j'), self.ssd('m')):
            self.row(f'both labels of {path} damaged', lambda: both_copies(path), 'both copies are damaged', 'replace the OSD')
        self.row('metadata damaged', lambda: overwrite(self.ssd('m'), 128 << 10, os.urandom(16 << 20)), 'corrupt metadata', 'replace the OSD')
        print(f'{self.rows} refusals, no byte changed')

    def test_6_one_damaged_label_is_told_and_healed(self):
        for path in (self.osd('block'), self.ssd('j'), self.ssd('m')):
            for at in COPIES:
                self.restore()
                with open(path, 'r+b') as f:
                    f.seek(at + 50)
                    f.write(b'damage')
                before = contents(self.osd(), self.ssd(''))
                v = json.loads(self.c.spirula('store', 'check', self.osd(), '--json').out)
                assert v['problem_count'] == 0 and 'one of two copies' in v['notes'][0], v
                assert contents(self.osd(), self.ssd('')) == before, 'a check writes nothing'
                self.c.spirula('osd', 'grow', self.osd())
                v = json.loads(self.c.spirula('store', 'check', self.osd(), '--json').out)
                assert v['notes'] == [], v

    def test_7_bad_exports(self):
        whole = open(self.export, 'rb').read()
        bad = os.path.join(self.scratch, 'bad.export')
        self.restore()
        shutil.rmtree(self.osd())
        shutil.rmtree(self.ssd(''))
        os.mkdir(self.ssd(''))
        r = self.prepare(self.osd())
        assert r.code == 0, r
        # The first opening notes itself; from then on nothing changes.
        self.c.spirula('osd', 'grow', self.osd())

        def flipped(at):
            return whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:]
        cases = [('empty', b''), ('a text', b'This is no export.\n' * 50), ('a beginning', whole[:7]), ('half', whole[:len(whole) // 2]),
                 ('all but a byte', whole[:-1]), ('more than all', whole + b'x'), ('twice', whole + whole)]
        cases += [(f'flipped at {at}', flipped(at)) for at in (0, 9, 20, 60, len(whole) // 3, len(whole) // 2, len(whole) - 2)]
        main = self.osd('block')
        for what, data in cases:
            with open(bad, 'wb') as f:
                f.write(data)
            self.refused(f'export: {what}', ['bad.export'], ['store', 'import', self.osd(), bad], [main])
        self.refused('no export', ['/nowhere'], ['store', 'import', self.osd(), '/nowhere'], [main])
        self.c.spirula('store', 'import', self.osd(), self.export)
        assert 'sound' in self.c.spirula('store', 'check', self.osd()).out

    def test_8_what_prepare_refuses(self):
        at = os.path.join(self.scratch, 'new')
        self.restore()
        watch = [self.osd(), self.ssd('')]

        def refuses(what, path, *more, words, fsid=self.manifest()['fsid']):
            self.refused(f'prepare: {what}', words, ['osd', 'prepare', path, '--osd-id', '9', '--fsid', fsid, *more], watch)
        refuses('a store', self.osd(), '--size', '64M', words=['not empty'])
        refuses('a device of a store', self.osd('block'), words=['main device of osd.0', '--force'])
        refuses('a journal in use', at, '--size', '64M', '--journal-device', self.ssd('j'), words=['journal device of osd.0', '--force'])
        refuses('metadata of another', at, '--size', '64M', '--meta-device', self.ssd('m'), words=['metadata device of osd.0', '--force'])
        refuses('too small a journal', at, '--size', '64M', '--journal-size', '4K', words=['journal', 'too small'])
        refuses('too small', at, '--size', '4K', words=['small'])
        refuses('too little metadata', at, '--size', '64M', '--meta-device', self.ssd('n'), '--meta-size', '1M', words=['metadata', 'too small'])
        refuses('one device twice', at, '--size', '64M', '--journal-device', self.ssd('n'), '--meta-device', self.ssd('n'), words=[self.ssd('n')])
        refuses('an id', at, '--size', '64M', fsid='nonsense', words=['nonsense', 'uuid'])
        assert not os.path.exists(at), f'left behind: {os.listdir(at)}'
