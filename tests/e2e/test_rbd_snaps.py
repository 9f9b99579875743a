"""Snapshots and clones of block images: Debian's `rbd` and python3-rbd."""
import json, os
from harness import Load, wait
from images import Images

MB = 1 << 20

# Writes an image, makes and removes snapshots of it, rolls back, and compares all of them, the head in the same handle and
# snapshots in handles of their own. The image may be a clone.
LOAD = '''
import rados, rbd, sys, os, random, collections
rng = random.Random(int.from_bytes(os.urandom(4), 'big'))
BLOCK, KEPT = 4096, 5
done = collections.Counter()
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx('rbd') as io, rbd.Image(io, sys.argv[2]) as i:
    blocks = i.size() // BLOCK
    now, snaps, made = {b: i.read(b * BLOCK, BLOCK) for b in range(0, blocks, 16)}, {}, 0
    places = list(now)
    def compare(image, b, was, what):
        got = image.read(b * BLOCK, BLOCK)
        assert got == was[b], f'block {b} {what} differs: {got[:16]} for {was[b][:16]}'
    # However few it is let do, something of each kind is among it.
    while not os.path.exists(sys.argv[3]) or min(done[k] for k in ('made', 'removed', 'writes')) == 0:
        did()
        what = rng.randrange(60)
        if what == 0 and len(snaps) < KEPT:
            made += 1
            i.create_snap(f's{made}')
            snaps[f's{made}'] = dict(now)
            done['made'] += 1
        elif what == 1 and len(snaps) > 1:
            s = rng.choice(list(snaps))
            del snaps[s]
            i.remove_snap(s)
            done['removed'] += 1
        elif what == 2 and snaps and rng.randrange(3) == 0:
            s = rng.choice(list(snaps))
            i.rollback_to_snap(s)
            now = dict(snaps[s])
            done['rolled back'] += 1
        elif what < 8 and snaps:
            s = rng.choice(list(snaps))
            with rbd.Image(io, sys.argv[2], snapshot=s, read_only=True) as old:
                for b in rng.sample(places, 8):
                    compare(old, b, snaps[s], f'at {s}')
        elif what < 14:
            compare(i, rng.choice(places), now, 'now')
        elif what < 18:
            b = rng.choice(places)
            i.discard(b * BLOCK, BLOCK)
            i.flush()
            got = i.read(b * BLOCK, BLOCK)
            assert got in (now[b], bytes(BLOCK))
            now[b] = got
        else:
            b = rng.choice(places)
            data = os.urandom(32) * (BLOCK // 32)
            assert i.write(data, b * BLOCK) == BLOCK
            now[b] = data
            done['writes'] += 1
    for b in places:
        compare(i, b, now, 'in the end')
    for s in snaps:
        with rbd.Image(io, sys.argv[2], snapshot=s, read_only=True) as old:
            for b in places:
                compare(old, b, snaps[s], f'at {s} in the end')
    for s in snaps:
        i.remove_snap(s)
    print(dict(done))
'''


class RbdSnapshots(Images):
    minutes = 3

    def setup(self, clients):
        super().setup(clients)
        self.pools()

    def pools(self):
        c = self.c
        c.ceph('osd', 'pool', 'create', 'rbd', '16')
        c.ceph('osd', 'erasure-code-profile', 'set', 'k2', 'k=2', 'm=1', 'crush-failure-domain=osd')
        c.ceph('osd', 'pool', 'create', 'coded', '8', '8', 'erasure', 'k2')
        c.ceph('osd', 'pool', 'set', 'coded', 'allow_ec_overwrites', 'true')
        self.rbd('pool', 'init', 'rbd')
        self.rbd('pool', 'init', 'coded')

    def json(self, *argv):
        return json.loads(self.rbd(*argv, '--format', 'json').out)

    def data(self, image):
        """What an image, or one at a snapshot, holds."""
        path = os.path.join(self.scratch, 'export')
        if os.path.exists(path):
            os.remove(path)
        self.rbd('export', image, path)
        with open(path, 'rb') as f:
            return f.read()

    def write(self, image, at, data):
        """Writes into an image."""
        self.c.python('import rados, rbd, sys\n'
                      'with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx("rbd") as io, rbd.Image(io, sys.argv[2]) as i:\n'
                      '    with open(sys.argv[4], "rb") as f:\n        i.write(f.read(), int(sys.argv[3]))\n',
                      image, at, self.file('piece', data))

    def image(self, name, size=9 * MB, *argv):
        data = os.urandom(size)
        self.rbd('import', self.file('image', data), name, *argv)
        return data

    def edited(self, image, data, at, size=10000):
        """Writes something at this place; returns what the image holds then."""
        piece = os.urandom(size)
        self.write(image, at, piece)
        return data[:at] + piece + data[at + size:]

    def names(self, image):
        return [s['name'] for s in self.json('snap', 'ls', image)]

    def clean_or_trimming(self):
        """PGs trim while they are clean, and a load that removes snapshots has them trim most of the time."""
        states = lambda: [s['name'] for s in self.c.json('pg', 'stat')['pg_summary']['num_pg_by_state']]
        wait(lambda: all(s.startswith('active+clean') for s in states()), lambda: f'clean PGs: {states()}')

    def queue_is_empty(self):
        left = lambda: self.c.json('osd', 'dump')['removed_snaps_queue']
        wait(lambda: not left(), lambda: f'an empty queue of removed snapshots: {left()}')

    def counts(self, pool):
        p = next(p for p in json.loads(self.c.rados('df', '--format', 'json').out)['pools'] if p['name'] == pool)
        return int(p['num_objects']), int(p['num_object_clones'])

    def both(self):
        return (('rep', ()), ('ec', ('--data-pool', 'coded')))

    def test_1_snapshots(self):
        for name, where in self.both():
            one = self.image(name, 9 * MB, *where)
            self.rbd('snap', 'create', f'{name}@s1')
            two = self.edited(name, one, 5 * MB)
            self.rbd('snap', 'create', f'{name}@s2')
            three = self.edited(name, two, 4 * MB - 5000)
            assert self.refused('snap', 'create', f'{name}@s1', code=17)
            assert [(s['name'], s['size'], s['protected']) for s in self.json('snap', 'ls', name)] == \
                [('s1', 9 * MB, 'false'), ('s2', 9 * MB, 'false')]
            assert self.data(name) == three and self.data(f'{name}@s1') == one and self.data(f'{name}@s2') == two
            # Each entry counts what it has of its own.
            used = {u.get('snapshot'): u['used_size'] for u in self.json('du', name)['images']}
            assert used == {'s1': 9 * MB, 's2': 4 * MB, None: 8 * MB}, used
            # To the object with the object map, to the byte without.
            diff = [(d['offset'], d['length'], d['exists']) for d in self.json('diff', f'{name}@s2', '--from-snap', 's1')]
            assert sum(l for _, l, _ in diff) < 20000 and all(5 * MB - 8192 <= o < 5 * MB + 20000 for o, _, _ in diff), diff
            whole = [(d['offset'], d['length']) for d in self.json('diff', f'{name}@s2', '--from-snap', 's1', '--whole-object')]
            assert whole == [(4 * MB, 4 * MB)], whole
            self.rbd('object-map', 'check', f'{name}@s1')
            self.rbd('snap', 'rollback', f'{name}@s1')
            assert self.data(name) == one and self.data(f'{name}@s2') == two
            self.rbd('resize', name, '--size', '5M', '--allow-shrink')
            assert self.data(name) == one[:5 * MB] and self.data(f'{name}@s2') == two
            self.rbd('snap', 'rollback', f'{name}@s2')
            assert self.data(name) == two
            self.rbd('snap', 'rename', f'{name}@s2', f'{name}@t')
            self.rbd('snap', 'limit', 'set', name, '--limit', '2')
            assert self.refused('snap', 'create', f'{name}@s3', code=122)
            self.rbd('snap', 'limit', 'clear', name)
            assert 'snapshots' in self.refused('rm', name, code=39)
            self.rbd('snap', 'rm', f'{name}@s1')
            assert self.names(name) == ['t'] and self.data(f'{name}@t') == two
            assert self.refused('snap', 'rm', f'{name}@s1', code=2)
            self.rbd('snap', 'purge', name)
            assert self.names(name) == [] and self.data(name) == two
            self.rbd('rm', name)
        self.queue_is_empty()
        for pool in ('rbd', 'coded'):
            wait(lambda: self.counts(pool)[1] == 0, lambda: f'no clones in {pool}: {self.counts(pool)}')

    def test_2_protected_ones_and_clones_of_the_first_kind(self):
        one = self.image('p1')
        self.rbd('snap', 'create', 'p1@s')
        self.rbd('snap', 'create', 'p1@other')
        self.edited('p1', one, 0)
        assert self.refused('clone', '--rbd-default-clone-format', '1', 'p1@s', 'c1', code=22)
        self.rbd('snap', 'protect', 'p1@s')
        assert self.refused('snap', 'protect', 'p1@s', code=16)
        assert self.refused('snap', 'rm', 'p1@s', code=16)
        self.rbd('snap', 'purge', 'p1', check=False)
        assert self.names('p1') == ['s']
        for name, where in self.both():
            child = f'c-{name}'
            self.rbd('clone', '--rbd-default-clone-format', '1', *where, 'p1@s', child)
            assert self.json('info', child)['parent']['snapshot'] == 's'
            assert self.data(child) == one
            assert f'rbd/{child}' in self.rbd('children', 'p1@s').out.split()
            changed = self.edited(child, one, 4 * MB - 5000)
            assert self.data(child) == changed and self.data('p1@s') == one
            # A clone of a clone, and a snapshot of it.
            self.rbd('snap', 'create', f'{child}@s')
            more = self.edited(child, changed, 8 * MB)
            self.rbd('snap', 'protect', f'{child}@s')
            self.rbd('clone', '--rbd-default-clone-format', '1', f'{child}@s', f'{child}-2')
            assert self.data(f'{child}-2') == changed and self.data(child) == more
            assert self.refused('snap', 'unprotect', 'p1@s', code=16)
            self.rbd('flatten', f'{child}-2')
            assert self.data(f'{child}-2') == changed and 'parent' not in self.json('info', f'{child}-2')
            self.rbd('snap', 'unprotect', f'{child}@s')
            self.rbd('snap', 'rm', f'{child}@s')
            self.rbd('flatten', child)
            assert self.data(child) == more and self.rbd('children', 'p1@s').out.split() == []
            self.rbd('rm', f'{child}-2')
            self.rbd('rm', child)
        self.rbd('snap', 'unprotect', 'p1@s')
        self.rbd('snap', 'purge', 'p1')
        self.rbd('rm', 'p1')

    def test_3_clones_of_the_second_kind(self):
        self.c.ceph('osd', 'set-require-min-compat-client', 'mimic')
        one = self.image('p2', 9 * MB)
        self.rbd('snap', 'create', 'p2@s')
        two = self.edited('p2', one, 0)
        self.rbd('clone', 'p2@s', 'd1')
        self.rbd('clone', '--data-pool', 'coded', 'p2@s', 'd2')
        assert sorted(self.rbd('children', 'p2@s').out.split()) == ['rbd/d1', 'rbd/d2']
        # Without protection; a removed one goes to the trash until its last clone is flattened.
        self.rbd('snap', 'rm', 'p2@s')
        assert self.names('p2') == [] and [s['namespace']['type'] for s in self.json('snap', 'ls', '--all', 'p2')] == ['trash']
        assert self.data('d1') == one and self.data('d2') == one and self.data('p2') == two
        changed = self.edited('d2', one, 6 * MB)
        self.rbd('flatten', 'd1')
        assert len(self.json('snap', 'ls', '--all', 'p2')) == 1
        self.rbd('flatten', 'd2')
        assert self.json('snap', 'ls', '--all', 'p2') == []
        assert self.data('d1') == one and self.data('d2') == changed
        self.rbd('sparsify', 'd2')
        for name in ('d1', 'd2', 'p2'):
            self.rbd('rm', name)
        self.queue_is_empty()

    def test_4_differences_travel(self):
        one = self.image('x', 9 * MB)
        self.rbd('snap', 'create', 'x@1')
        two = self.edited('x', one, 3 * MB)
        self.rbd('snap', 'create', 'x@2')
        three = self.edited('x', two, 7 * MB, 2 * MB)
        at = lambda n: os.path.join(self.scratch, n)
        self.rbd('export-diff', 'x@1', at('0-1'))
        self.rbd('export-diff', '--from-snap', '1', 'x@2', at('1-2'))
        self.rbd('export-diff', '--from-snap', '2', 'x', at('2-'))
        assert os.path.getsize(at('1-2')) < 20000 and os.path.getsize(at('2-')) < 3 * MB
        self.rbd('create', 'y', '--size', '9M')
        self.rbd('import-diff', at('0-1'), 'y')
        assert self.data('y') == one and self.names('y') == ['1']
        self.rbd('import-diff', at('1-2'), 'y')
        self.rbd('import-diff', at('2-'), 'y')
        assert self.data('y') == three and self.data('y@1') == one and self.data('y@2') == two
        assert self.refused('import-diff', at('1-2'), 'y'), 'its end is there'
        self.rbd('merge-diff', at('0-1'), at('1-2'), at('0-2'))
        self.rbd('create', '--data-pool', 'coded', 'z', '--size', '9M')
        self.rbd('import-diff', at('0-2'), 'z')
        assert self.data('z') == two and self.names('z') == ['2']
        # Whole images with their snapshots.
        self.rbd('export', '--export-format', '2', 'y', at('whole'))
        self.rbd('import', '--export-format', '2', at('whole'), 'w')
        assert self.names('w') == ['1', '2'] and self.data('w@1') == one and self.data('w') == three
        self.rbd('deep', 'cp', 'y', 'v')
        assert self.names('v') == ['1', '2'] and self.data('v@2') == two and self.data('v') == three
        for name in 'xyzwv':
            self.rbd('snap', 'purge', name)
            self.rbd('rm', name)

    def test_5_groups_trash_and_migration(self):
        one, two = self.image('g1', 4 * MB), self.image('g2', 4 * MB)
        self.rbd('group', 'create', 'g')
        for n in ('g1', 'g2'):
            self.rbd('group', 'image', 'add', 'g', n)
        self.rbd('group', 'snap', 'create', 'g@s')
        self.edited('g1', one, 0), self.edited('g2', two, 0)
        assert [s['snapshot'] for s in self.json('group', 'snap', 'ls', 'g')] == ['s']
        assert self.names('g1') == [] and len(self.json('snap', 'ls', '--all', 'g1')) == 1
        self.rbd('group', 'snap', 'rollback', 'g@s')
        assert self.data('g1') == one and self.data('g2') == two
        self.rbd('group', 'snap', 'rename', 'g@s', 't')
        self.rbd('group', 'snap', 'rm', 'g@t')
        assert self.json('snap', 'ls', '--all', 'g1') == []
        self.rbd('group', 'rm', 'g')
        # An image with snapshots stays in the trash.
        self.rbd('snap', 'create', 'g1@s')
        self.rbd('trash', 'mv', 'g1')
        assert self.rbd('trash', 'purge', check=False).code != 0
        [entry] = self.json('trash', 'ls')
        self.rbd('trash', 'restore', entry['id'])
        # To another pool, with its snapshots.
        now = self.edited('g1', one, MB)
        self.rbd('migration', 'prepare', '--data-pool', 'coded', 'g1', 'rbd/m')
        assert self.data('m') == now and self.data('m@s') == one
        self.rbd('migration', 'execute', 'm')
        self.rbd('migration', 'commit', 'm')
        assert self.data('m') == now and self.data('m@s') == one and 'g1' not in self.rbd('ls').out.split()
        self.rbd('snap', 'purge', 'm')
        for n in ('m', 'g2'):
            self.rbd('rm', n)

    def test_6_profiles(self):
        keyring = os.path.join(self.scratch, 'keyring')
        for name, osd in (('user', 'profile rbd pool=rbd'), ('reader', 'profile rbd-read-only pool=rbd')):
            with open(keyring, 'a') as f:
                f.write(self.c.ceph('auth', 'get-or-create', f'client.{name}', 'mon', 'profile rbd', 'osd', osd).out + '\n')
        as_user = lambda name, *argv, **kw: self.rbd('--id', name, '--keyring', keyring, *argv, **kw)
        one = self.image('mine', MB)
        as_user('user', 'snap', 'create', 'mine@s')
        self.edited('mine', one, 0)
        assert as_user('reader', 'snap', 'create', 'mine@no', check=False).code != 0
        assert as_user('reader', 'snap', 'rm', 'mine@s', check=False).code != 0
        path = os.path.join(self.scratch, 'reader')
        as_user('reader', 'export', 'mine@s', path)
        assert open(path, 'rb').read() == one
        as_user('user', 'clone', 'mine@s', 'child')
        as_user('user', 'flatten', 'child')
        as_user('user', 'snap', 'rollback', 'mine@s')
        as_user('user', 'snap', 'purge', 'mine')
        for n in ('mine', 'child'):
            as_user('user', 'rm', n)

    def test_7_osds_are_stopped_and_killed_under_a_load_that_compares(self):
        c = self.c
        self.image('parent', 8 * MB)
        self.rbd('snap', 'create', 'parent@s')
        self.rbd('clone', 'parent@s', 'l1')
        self.rbd('create', '--data-pool', 'coded', 'l2', '--size', '8M')
        loads = [Load(c, LOAD, n) for n in ('l1', 'l2')]
        for osd in (0, 1, 2):
            for l in loads:
                l.goes_on(60)
            c.spirula('osd', 'stop', str(osd), '--dir', c.dir)
            for l in loads:
                l.goes_on(60)
            if osd == 1:
                self.rbd('flatten', 'l1')
            c.spirula('osd', 'start', str(osd), '--dir', c.dir)
            self.clean_or_trimming()
        c.kill()
        c.up()
        for l in loads:
            l.goes_on(60)
        for l in loads:
            print('figure:', l.end())
        for n in ('l1', 'l2'):
            self.rbd('object-map', 'check', n)
            self.rbd('rm', n)
        self.rbd('snap', 'purge', 'parent')
        self.rbd('rm', 'parent')
        self.queue_is_empty()
        for pool in ('rbd', 'coded'):
            wait(lambda: self.counts(pool)[1] == 0, lambda: f'no clones in {pool}: {self.counts(pool)}')
        wait(lambda: self.counts('coded')[0] <= 2, lambda: f'objects in coded: {self.counts("coded")}')

