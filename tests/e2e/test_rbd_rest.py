"""What Debian's `rbd` and python3-rbd can do with images, beside what test_rbd.py and test_rbd_snaps.py do."""
import json, os, shutil, signal, struct, subprocess
from harness import Skip, wait
from images import Images

MB = 1 << 20


class RbdTools(Images):
    minutes = 2

    def setup(self, clients):
        super().setup(clients)
        self.c.ceph('osd', 'pool', 'create', 'rbd', '8')
        self.rbd('pool', 'init', 'rbd')

    def json(self, *argv):
        return json.loads(self.rbd(*argv, '--format', 'json').out)

    def test_01_options_of_images_pools_and_all(self):
        self.rbd('create', 'o', '--size', '8M')
        source = lambda listed: next((e['source'] for e in listed if e['name'] == 'rbd_cache'), None)
        for level, at in (('global', 'global'), ('pool', 'rbd'), ('image', 'rbd/o')):
            config = lambda *argv, **kw: self.rbd('config', level, argv[0], at, *argv[1:], **kw)
            if level != 'image':
                assert config('get', 'rbd_cache', check=False).code == 2, level
            config('set', 'rbd_cache', 'false')
            assert config('get', 'rbd_cache').out.strip() == 'false', level
        # The nearest is what an image has.
        for level, at, then in (('image', 'rbd/o', 'pool'), ('pool', 'rbd', 'config')):
            assert source(self.json('config', 'image', 'ls', 'o')) == level
            assert source(self.json('config', level, 'ls', at)) == level
            self.rbd('config', level, 'rm', at, 'rbd_cache')
            assert source(self.json('config', 'image', 'ls', 'o')) == then
        assert next(e for e in self.json('config', 'global', 'ls', 'global') if e['name'] == 'rbd_cache')['value'] == 'false'
        self.rbd('config', 'global', 'rm', 'global', 'rbd_cache')
        assert self.rbd('config', 'global', 'get', 'global', 'rbd_cache', check=False).code == 2
        assert self.rbd('config', 'image', 'set', 'o', 'rbd_nonsense', '1', check=False).code != 0
        self.rbd('image-meta', 'set', 'o', 'k', 'v')
        assert self.json('image-meta', 'ls', 'o') == {'k': 'v'}
        self.rbd('rm', 'o', '--no-progress')

    def test_02_striping_object_sizes_and_standard_streams(self):
        data = os.urandom(3 * MB + 12345)
        self.c.ceph('osd', 'set-require-min-compat-client', 'mimic')
        self.c.run('rbd', 'import', '--object-size', '1M', '--stripe-unit', '64K', '--stripe-count', '4', '-', 'striped', stdin=data, binary=True)
        info = self.json('info', 'striped')
        assert (info['object_size'], info['stripe_unit'], info['stripe_count']) == (MB, 65536, 4) and 'striping' in info['features'], info
        assert self.c.run('rbd', 'export', 'striped', '-', binary=True).out == data
        # By the rule for stripes, object 1 has every fourth unit from the second on.
        path = os.path.join(self.scratch, 'object')
        self.c.rados('-p', 'rbd', 'get', f'{info["block_name_prefix"]}.{1:016x}', path)
        with open(path, 'rb') as f:
            assert f.read(3 * 65536) == b''.join(data[n * 65536:(n + 1) * 65536] for n in (1, 5, 9))
        self.rbd('snap', 'create', 'striped@s', '--no-progress')
        self.rbd('clone', '--stripe-unit', '4K', '--stripe-count', '2', '--object-size', '64K', 'striped@s', 'other')
        assert self.exported('other') == data
        self.rbd('flatten', 'other', '--no-progress')
        assert self.exported('other') == data
        for n in ('other', 'striped'):
            self.rbd('snap', 'purge', n, '--no-progress')
            self.rbd('rm', n, '--no-progress')
        assert not [o for o in self.c.rados('-p', 'rbd', 'ls').out.split() if o.startswith(info['block_name_prefix'])]

    def imported(self, made, path):
        """Journal of an image `k` that has what was exported to `path`. Once in some hundred times
        `rbd` 16.2 never ends: it takes its recorder apart while the answer to its last write is on
        its way, and the thread that has the answer waits for a lock that is gone. That it is not we
        who owe it something is seen at the OSDs: nothing is under way there."""
        for _ in range(3):
            journal = made('k')
            try:
                self.rbd('journal', 'import', '--dest-journal', journal, '--path', path, timeout=60)
                return journal
            except subprocess.TimeoutExpired:
                osds = json.loads(self.c.ceph('osd', 'ls', '--format', 'json').out)
                for o in osds:
                    owed = json.loads(self.c.ceph('tell', f'osd.{o}', 'dump_ops_in_flight').out)
                    assert owed['num_ops'] == 0, owed
                print('  rbd journal import waits for itself: once more', flush=True)
                self.rbd('rm', 'k', '--no-progress')
        raise AssertionError('no import of a journal came to its end')

    def test_03_journals(self):
        """As Ceph's own test of them: the commit position is set back, so that there is something to be played."""
        count = 10
        client = os.path.join(self.scratch, 'client')

        def made(name):
            self.rbd('create', name, '--size', '16M', '--image-feature', 'exclusive-lock,journaling', '--journal-splay-width', '2', '--journal-object-size', '1M')
            journal = self.json('info', name)['journal']
            self.c.rados('-p', 'rbd', 'getomapval', f'journal.{journal}', 'client_', client)
            return journal
        back = lambda journal: self.c.rados('-p', 'rbd', 'setomapval', f'journal.{journal}', 'client_', '--input-file', client)
        events = lambda name: self.rbd('journal', 'inspect', '--image', name, '--verbose').out.count('AioWrite')
        journal = made('j')
        told = self.json('journal', 'info', '--image', 'j')
        assert (told['order'], told['splay_width']) == (20, 2), told
        assert self.json('journal', 'info', '--journal', journal) == told
        self.rbd('bench', '--io-type', 'write', '--io-size', '4096', '--io-threads', '1', '--io-total', str(4096 * count), '--io-pattern', 'seq', 'j')
        # A flush stands before the writes and one after them.
        assert f'entry_tid={count + 1}]' in self.rbd('journal', 'status', '--image', 'j').out
        back(journal)
        assert 'positions=[]' in self.rbd('journal', 'status', '--image', 'j').out
        assert events('j') == count
        exported = os.path.join(self.scratch, 'journal')
        self.rbd('journal', 'export', '--image', 'j', '--path', exported)
        now = self.exported('j')
        other = self.imported(made, exported)
        self.rbd('snap', 'create', 'k@s', '--no-progress')
        assert self.exported('k') == now and any(now), 'what is played again makes the same image'
        back(other)
        assert events('k') == count
        self.rbd('journal', 'reset', '--image', 'j')
        assert events('j') == 0 and self.exported('j') == now
        assert self.rbd('journal', 'client', 'disconnect', '--image', 'j', '--client-id', 'nobody', check=False).code != 0
        self.rbd('snap', 'purge', 'k', '--no-progress')
        for n in 'jk':
            self.rbd('feature', 'disable', n, 'journaling')
            assert 'journaling' not in self.json('info', n)['features']
            assert self.refused('journal', 'info', '--image', n)
            self.rbd('feature', 'enable', n, 'journaling')
            self.rbd('rm', n, '--no-progress')
        assert not [o for o in self.c.rados('-p', 'rbd', 'ls').out.split() if o.startswith('journal')]

    def test_04_a_writer_with_a_journal_dies_and_all_it_was_told_is_there(self):
        self.rbd('create', 'dies', '--size', '16M', '--image-feature', 'exclusive-lock,journaling')
        p = self.c.python('''
import rados, rbd, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('rbd') as io, rbd.Image(io, 'dies') as i:
    for n in range(4096):
        i.write(b'%08d' % n * 512, n * 4096)
        i.flush()
        print(n, flush=True)
''', wait=False)
        while int(p.stdout.readline()) < 40:
            pass
        p.kill()
        last = max([40] + [int(l) for l in p.communicate()[0].splitlines() if l])
        # Who takes the lock plays what the dead one had only in its journal.
        self.c.python('''
import rados, rbd, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('rbd') as io, rbd.Image(io, 'dies') as i:
    i.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
    for n in range(int(sys.argv[2]) + 1):
        assert i.read(n * 4096, 4096) == b'%08d' % n * 512, n
''', last)
        self.rbd('rm', 'dies', '--no-progress')

    def test_05_encrypted_images(self):
        phrase = self.file('phrase', b'a secret')
        for kind in ('luks1', 'luks2'):
            self.rbd('create', kind, '--size', '40M')
            self.rbd('encryption', 'format', kind, kind, phrase)
            self.c.python('''
import rados, rbd, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('rbd') as io:
    form = getattr(rbd, 'RBD_ENCRYPTION_FORMAT_' + sys.argv[2].upper())
    with rbd.Image(io, sys.argv[2]) as i:
        whole = i.size()
        i.encryption_load(form, 'a secret')
        assert i.size() < whole
        i.write(b'plain text' * 1000, 5000)
        assert i.read(5000, 10000) == b'plain text' * 1000
    with rbd.Image(io, sys.argv[2]) as i:
        try:
            i.encryption_load(form, 'another')
            raise SystemExit('a wrong phrase was taken')
        except rbd.PermissionError:
            pass
        i.encryption_load(form, 'a secret')
        assert i.read(5000, 10000) == b'plain text' * 1000
''', kind)
            raw = self.exported(kind)
            assert raw.startswith(b'LUKS\xba\xbe') and b'plain text' not in raw
            self.rbd('rm', kind, '--no-progress')

    def test_06_object_maps_are_made_anew(self):
        data = os.urandom(9 * MB)
        self.rbd('import', self.file('m', data), 'm', '--no-progress')
        self.rbd('snap', 'create', 'm@s', '--no-progress')
        name = self.json('info', 'm')['id']
        self.c.rados('-p', 'rbd', 'rm', f'rbd_object_map.{name}')
        self.rbd('bench', '--io-type', 'write', '--io-size', '4K', '--io-total', '4K', 'm')
        assert 'object map invalid' in self.json('info', 'm')['flags'], self.json('info', 'm')
        self.rbd('object-map', 'rebuild', 'm', '--no-progress')
        assert self.json('info', 'm')['flags'] == []
        self.rbd('object-map', 'rebuild', 'm@s', '--no-progress')
        for spec in ('m', 'm@s'):
            self.rbd('object-map', 'check', spec, '--no-progress')
        assert self.exported('m@s') == data
        assert {u.get('snapshot'): u['used_size'] for u in self.json('du', 'm')['images']}['s'] == 9 * MB
        self.rbd('snap', 'purge', 'm', '--no-progress')
        self.rbd('rm', 'm', '--no-progress')

    def test_07_trash_and_what_a_pool_holds(self):
        self.rbd('create', 't', '--size', '8M')
        self.rbd('create', 'stays', '--size', '16M')
        self.rbd('snap', 'create', 'stays@s', '--no-progress')
        self.rbd('trash', 'mv', 't', '--expires-at', 'tomorrow')
        [entry] = self.json('trash', 'ls')
        stats = self.json('pool', 'stats', 'rbd')
        assert (stats['images']['count'], stats['images']['provisioned_bytes'], stats['images']['snap_count']) == (1, 16 * MB, 1), stats
        assert (stats['trash']['count'], stats['trash']['provisioned_bytes']) == (1, 8 * MB), stats
        assert self.rbd('trash', 'rm', entry['id'], '--no-progress', check=False).code != 0, 'not before tomorrow'
        self.rbd('trash', 'purge', '--no-progress')
        assert len(self.json('trash', 'ls')) == 1
        self.rbd('trash', 'rm', '--force', entry['id'], '--no-progress')
        assert self.json('trash', 'ls') == []
        assert self.refused('trash', 'rm', 'nothing', '--no-progress', code=2)
        self.rbd('snap', 'purge', 'stays', '--no-progress')
        self.rbd('rm', 'stays', '--no-progress')

    def test_08_a_migration_is_given_up(self):
        data = os.urandom(5 * MB)
        self.rbd('import', self.file('from', data), 'from', '--no-progress')
        self.rbd('snap', 'create', 'from@s', '--no-progress')
        self.rbd('migration', 'prepare', 'from', 'rbd/to')
        assert self.refused('info', 'from'), 'it is in the trash meanwhile'
        assert self.exported('to') == data and self.json('status', 'to')['migration']['state'] == 'prepared'
        self.rbd('migration', 'abort', 'to', '--no-progress')
        names = self.rbd('ls').out.split()
        assert 'from' in names and 'to' not in names and self.exported('from') == data and self.exported('from@s') == data
        self.rbd('snap', 'purge', 'from', '--no-progress')
        self.rbd('rm', 'from', '--no-progress')

    def test_09_who_watches_hears(self):
        self.rbd('create', 'w', '--size', '8M')
        path = os.path.join(self.scratch, 'heard')
        with open(path, 'w') as out:
            p = subprocess.Popen(self.clients.wrap(['rbd', '-c', self.c.conf, 'watch', 'w']), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)
        wait(lambda: len(self.json('status', 'w')['watchers']) == 1, 'the watch')
        self.rbd('snap', 'create', 'w@s', '--no-progress')
        heard = lambda: open(path).read()
        wait(lambda: 'received notification' in heard(), heard)
        p.stdin.close()
        p.send_signal(signal.SIGINT)
        p.wait(180)
        wait(lambda: self.json('status', 'w')['watchers'] == [], 'the watch to end')
        self.rbd('snap', 'purge', 'w', '--no-progress')
        self.rbd('rm', 'w', '--no-progress')

    def test_10_mirrored_images_change_their_side(self):
        self.rbd('mirror', 'pool', 'enable', '--site-name', 'here', 'rbd', 'image')
        told = self.json('mirror', 'pool', 'info', 'rbd')
        assert (told['mode'], told['site_name']) == ('image', 'here'), told
        token = self.rbd('mirror', 'pool', 'peer', 'bootstrap', 'create', 'rbd').out
        assert 'rbd-mirror-peer' in self.c.ceph('auth', 'ls').out and token.strip()
        peer = self.rbd('mirror', 'pool', 'peer', 'add', 'rbd', 'client.far@there').out.strip()
        self.rbd('mirror', 'pool', 'peer', 'set', 'rbd', peer, 'client', 'client.farther')
        [listed] = self.json('mirror', 'pool', 'info', 'rbd')['peers']
        assert (listed['uuid'], listed['site_name'], listed['client_name']) == (peer, 'there', 'client.farther'), listed
        for mode, feature in (('journal', 'exclusive-lock,journaling'), ('snapshot', 'exclusive-lock')):
            self.rbd('create', mode, '--size', '8M', '--image-feature', feature)
            self.rbd('mirror', 'image', 'enable', mode, mode)
            info = self.json('info', mode)['mirroring']
            assert (info['mode'], info['state'], info['primary']) == (mode, 'enabled', True), info
            self.rbd('mirror', 'image', 'demote', mode)
            assert self.json('info', mode)['mirroring']['primary'] is False
            assert self.rbd('bench', '--io-type', 'write', '--io-size', '4K', '--io-total', '4K', mode, check=False).code != 0
            self.rbd('mirror', 'image', 'promote', '--force', mode)
            assert self.json('info', mode)['mirroring']['primary'] is True
            self.rbd('bench', '--io-type', 'write', '--io-size', '4K', '--io-total', '4K', mode)
            assert self.refused('mirror', 'image', 'resync', mode, code=22), 'it is primary'
        for _ in range(4):
            assert 'Snapshot ID' in self.rbd('mirror', 'image', 'snapshot', 'snapshot').out
        shown = [s['namespace'] for s in self.json('snap', 'ls', '--all', 'snapshot')]
        assert all(s['type'] == 'mirror' for s in shown), shown
        assert shown[-1]['state'] == 'primary' and shown[-1]['mirror_peer_uuids'] == [peer] and shown[-1]['complete'], shown
        self.rbd('mirror', 'pool', 'demote', 'rbd')
        assert not any(self.json('info', n)['mirroring']['primary'] for n in ('journal', 'snapshot'))
        self.rbd('mirror', 'image', 'resync', 'journal')
        self.rbd('mirror', 'pool', 'promote', '--force', 'rbd')
        assert all(self.json('info', n)['mirroring']['primary'] for n in ('journal', 'snapshot'))
        for n in ('journal', 'snapshot'):
            self.rbd('mirror', 'image', 'disable', n)
            self.rbd('rm', n, '--no-progress')
        self.rbd('mirror', 'pool', 'peer', 'remove', 'rbd', peer)
        assert self.json('mirror', 'pool', 'info', 'rbd')['peers'] == []
        self.rbd('mirror', 'pool', 'disable', 'rbd')
        assert self.rbd('mirror', 'pool', 'info', 'rbd').out.strip() == 'Mode: disabled'

    def test_11_what_needs_a_manager_module_says_so(self):
        for words in (['trash', 'purge', 'schedule'], ['mirror', 'snapshot', 'schedule']):
            # There is none: to `ls` that is an error without words, as it is with Ceph's own module.
            assert self.refused(*words, 'ls', code=2) == ''
            self.rbd(*words, 'status')
            for what in ('add', 'rm'):
                r = self.rbd(*words, what, '--pool', 'rbd', '1h', check=False)
                assert r.code != 0, r

    def test_12_devices_and_caches_that_are_not_here(self):
        assert self.rbd('device', 'list').out.strip() == ''
        self.rbd('create', 'c', '--size', '8M')
        for what in ('flush', 'invalidate'):
            r = self.rbd('persistent-cache', what, 'c', check=False)
            assert 0 <= r.code < 128, r
        self.rbd('rm', 'c', '--no-progress')


API = '''
import datetime, os, rados, rbd, sys, threading, time
MB, R = 1 << 20, rbd.RBD()
def fails(kind, f, *a, **kw):
    try: f(*a, **kw)
    except kind: return
    raise AssertionError(f'{f} {a} was not refused with {kind}')
r = rados.Rados(conffile=sys.argv[1]); r.connect()
io = r.open_ioctx('rbd')
def image(name, size=8 * MB, **kw):
    R.create(io, name, size, **kw)
    return rbd.Image(io, name)
def done(c):
    c.wait_for_complete_and_cb()
    return c.get_return_value()

def pool():
    assert len(R.version()) == 3
    before = R.pool_stats_get(io)['image_count']
    with image('counted') as i:
        assert {'name': 'counted', 'id': i.id()} in list(R.list2(io))
        i.create_snap('s')
        stats = R.pool_stats_get(io)
        assert stats['image_count'] == before + 1 and stats['image_snap_count'] >= 1, stats
        i.remove_snap('s')
    R.remove(io, 'counted')
    R.pool_metadata_set(io, 'k', 'v')
    assert R.pool_metadata_get(io, 'k') == 'v' and ('k', 'v') in list(R.pool_metadata_list(io))
    R.pool_metadata_remove(io, 'k')
    fails(KeyError, R.pool_metadata_get, io, 'k')
    R.config_set(io, 'rbd_cache', 'false')
    assert R.config_get(io, 'rbd_cache') == 'false' and any(c['name'] == 'rbd_cache' and c['source'] == rbd.RBD_CONFIG_SOURCE_POOL for c in R.config_list(io))
    R.config_remove(io, 'rbd_cache')
    R.namespace_create(io, 'ns'); assert R.namespace_exists(io, 'ns') and 'ns' in R.namespace_list(io)
    R.namespace_remove(io, 'ns'); assert not R.namespace_exists(io, 'ns')
    assert R.features_from_string('layering,journaling') == rbd.RBD_FEATURE_LAYERING | rbd.RBD_FEATURE_JOURNALING
    assert R.features_to_string(rbd.RBD_FEATURE_LAYERING) == 'layering'

def about():
    with image('about', 8 * MB, order=20, stripe_unit=65536, stripe_count=2, features=rbd.RBD_FEATURE_LAYERING | rbd.RBD_FEATURE_EXCLUSIVE_LOCK | rbd.RBD_FEATURE_STRIPINGV2) as i:
        i.require_not_closed()
        st = i.stat()
        assert (st['size'], st['obj_size'], st['num_objs'], st['order']) == (8 * MB, MB, 8, 20), st
        assert i.get_name() == 'about' and i.block_name_prefix() == 'rbd_data.' + i.id() == st['block_name_prefix'] and i.data_pool_id() == io.get_pool_id()
        assert (i.stripe_unit(), i.stripe_count()) == (65536, 2) and i.features() & rbd.RBD_FEATURE_STRIPINGV2 and i.op_features() == 0 and i.flags() == 0
        i.update_features(rbd.RBD_FEATURE_OBJECT_MAP | rbd.RBD_FEATURE_FAST_DIFF, True)
        assert i.features() & rbd.RBD_FEATURE_FAST_DIFF
        fails(rbd.InvalidArgument, i.update_features, rbd.RBD_FEATURE_LAYERING, False)
        now = datetime.datetime.utcnow()
        for t in (i.create_timestamp(), i.access_timestamp(), i.modify_timestamp()): assert abs((t - now).total_seconds()) < 86400, t
        fails(rbd.ImageNotFound, i.parent_info); fails(rbd.ImageNotFound, i.get_parent_image_spec)
        i.rebuild_object_map(); i.invalidate_cache()
        i.config_set('rbd_cache', 'false'); assert i.config_get('rbd_cache') == 'false'
        assert any(c['name'] == 'rbd_cache' and c['source'] == rbd.RBD_CONFIG_SOURCE_IMAGE for c in i.config_list())
        i.config_remove('rbd_cache')
        i.metadata_set('a', 'b'); assert list(i.metadata_list()) == [('a', 'b')]; i.metadata_remove('a'); assert list(i.metadata_list()) == []
    R.remove(io, 'about')

def snaps():
    with image('snaps') as i:
        i.write(b'one', 0); i.create_snap('a'); i.write(b'two', 0); i.create_snap('b')
        a, b = i.list_snaps()
        assert (a['name'], b['name'], a['size'], a['namespace']) == ('a', 'b', 8 * MB, rbd.RBD_SNAP_NAMESPACE_TYPE_USER), (a, b)
        assert i.snap_get_name(a['id']) == 'a' and i.snap_get_id('b') == b['id'] and i.snap_exists('a') and not i.snap_exists('c')
        assert abs((i.get_snap_timestamp(a['id']) - datetime.datetime.utcnow()).total_seconds()) < 86400
        assert i.snap_get_namespace_type(a['id']) == rbd.RBD_SNAP_NAMESPACE_TYPE_USER
        i.set_snap('a'); assert i.read(0, 3) == b'one'; fails(rbd.ReadOnlyImage, i.write, b'x', 0)
        i.set_snap_by_id(b['id']); assert i.read(0, 3) == b'two'; i.set_snap(None)
        i.rename_snap('a', 'c'); assert i.snap_exists('c')
        i.protect_snap('c'); assert i.is_protected_snap('c'); fails(rbd.ImageBusy, i.remove_snap, 'c'); i.unprotect_snap('c')
        i.set_snap_limit(2); assert i.get_snap_limit() == 2; fails(rbd.DiskQuotaExceeded, i.create_snap, 'd'); i.remove_snap_limit()
        i.remove_snap_by_id(a['id']); i.protect_snap('b'); i.remove_snap2('b', rbd.RBD_SNAP_REMOVE_FORCE)
        assert list(i.list_snaps()) == []
    R.remove(io, 'snaps')

def clones():
    with image('parent') as p:
        p.write(b'parent' * 1000, 4 * MB - 3000); p.create_snap('s'); p.protect_snap('s')
        R.clone(io, 'parent', 's', io, 'child', features=rbd.RBD_FEATURE_LAYERING)
        with rbd.Image(io, 'child') as c:
            assert c.overlap() == 8 * MB and c.parent_info() == ('rbd', 'parent', 's') and c.parent_id() == p.id() and c.get_parent_image_spec()['snap_name'] == 's'
            p.set_snap('s')
            assert list(p.list_children()) == [('rbd', 'child')] and [x['image'] for x in p.list_children2()] == ['child'] and [x['image'] for x in p.list_descendants()] == ['child']
            p.set_snap(None)
            c.write(b'CHILD', 4 * MB - 3000)
            assert c.read(4 * MB - 3000, 12) == b'CHILDtparent' and p.read(4 * MB - 3000, 12) == b'parentparent'
            c.deep_copy(io, 'deep')
            c.flatten(); assert c.read(4 * MB - 3000, 12) == b'CHILDtparent'; fails(rbd.ImageNotFound, c.parent_info)
            c.write(bytes(8 * MB), 0); c.sparsify(4096)
        with rbd.Image(io, 'deep') as d:
            assert d.read(4 * MB - 3000, 12) == b'CHILDtparent' and d.parent_info() == ('rbd', 'parent', 's'); d.flatten()
        p.unprotect_snap('s'); p.remove_snap('s')
        p.copy(io, 'copied')
    with rbd.Image(io, 'copied', read_only=True) as c: assert c.read(4 * MB - 3000, 6) == b'parent'
    for n in ('child', 'deep', 'copied', 'parent'): R.remove(io, n)

def asynchronous():
    with image('aio') as i:
        got = []
        assert done(i.aio_write(b'x' * 8192, 0, lambda c: None)) == 0 and done(i.aio_flush(lambda c: None)) == 0
        assert done(i.aio_read(0, 4, lambda c, d: got.append(d))) == 4 and got == [b'xxxx']
        assert done(i.aio_discard(0, 4096, lambda c: None)) == 0
        assert done(i.aio_write_zeroes(4096, 2048, lambda c: None)) == 0
        assert i.read(4096, 4096) == bytes(2048) + b'x' * 2048
        i.write_zeroes(0, MB, rbd.RBD_WRITE_ZEROES_FLAG_THICK_PROVISION)
    opened = []
    c = R.aio_open_image(lambda c, i: opened.append(i), io, 'aio')
    done(c); assert opened[0].read(0, 1) == bytes(1); done(opened[0].aio_close(lambda c: None))
    R.remove(io, 'aio')

def locks():
    with image('locks') as i:
        i.lock_exclusive('mine')
        [(client, cookie, addr)] = i.list_lockers()['lockers']
        assert cookie == 'mine' and i.list_lockers()['exclusive']
        fails(rbd.ImageExists, i.lock_exclusive, 'mine'); fails(rbd.ImageBusy, i.lock_exclusive, 'other')
        i.unlock('mine'); i.lock_shared('a', 'tag')
        other = rados.Rados(conffile=sys.argv[1], conf={'rbd_blocklist_on_break_lock': 'false'}); other.connect()
        with other.open_ioctx('rbd') as io2, rbd.Image(io2, 'locks') as j:
            j.lock_shared('b', 'tag'); assert len(j.list_lockers()['lockers']) == 2
            j.unlock('b'); j.break_lock(client, 'a'); assert not j.list_lockers()
            i.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
            assert i.is_exclusive_lock_owner()
            [owner] = j.lock_get_owners()
            assert owner['mode'] == rbd.RBD_LOCK_MODE_EXCLUSIVE
            fails(rbd.ReadOnlyImage, j.lock_acquire, rbd.RBD_LOCK_MODE_EXCLUSIVE)
            i.lock_release(); assert list(j.lock_get_owners()) == []
            i.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE); [owner] = j.lock_get_owners()
            j.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, owner['owner'])
            assert list(j.lock_get_owners()) == []
        other.shutdown()

def trash():
    i = image('trashed'); name = i.id(); i.close()
    R.trash_move(io, 'trashed', 3600)
    assert [t['id'] for t in R.trash_list(io)] == [name] and R.trash_get(io, name)['name'] == 'trashed'
    fails(rbd.PermissionError, R.trash_remove, io, name)
    R.trash_restore(io, name, 'again'); assert 'again' in R.list(io)
    R.trash_move(io, 'again', 0); R.trash_remove(io, name, True)
    image('purged').close(); R.trash_move(io, 'purged', 0)
    R.trash_purge(io, datetime.datetime.utcnow() + datetime.timedelta(days=1)); assert list(R.trash_list(io)) == []

def groups():
    i = image('member'); i.write(b'one', 0)
    R.group_create(io, 'g'); R.group_rename(io, 'g', 'h'); assert 'h' in R.group_list(io)
    g = rbd.Group(io, 'h'); g.add_image(io, 'member')
    assert [m['name'] for m in g.list_images()] == ['member'] and i.group()['name'] == 'h'
    i.flush(); g.create_snap('s'); i.write(b'two', 0); i.flush()
    [s] = i.list_snaps()
    assert s['namespace'] == rbd.RBD_SNAP_NAMESPACE_TYPE_GROUP and i.snap_get_group_namespace(s['id'])['name'] == 'h'
    g.rename_snap('s', 't'); assert [s['name'] for s in g.list_snaps()] == ['t']
    i.close()
    g.rollback_to_snap('t')
    with rbd.Image(io, 'member') as i: assert i.read(0, 3) == b'one'
    g.remove_snap('t'); g.remove_image(io, 'member'); R.group_remove(io, 'h'); R.remove(io, 'member')

def migration():
    for last in ('abort', 'commit'):
        with image('old') as i: i.write(b'moved', 0)
        R.migration_prepare(io, 'old', io, 'new')
        with rbd.Image(io, 'new') as i: assert i.read(0, 5) == b'moved' and i.migration_source_spec()
        assert R.migration_status(io, 'new')['state'] == rbd.RBD_IMAGE_MIGRATION_STATE_PREPARED
        if last == 'commit':
            R.migration_execute(io, 'new'); assert R.migration_status(io, 'new')['state'] == rbd.RBD_IMAGE_MIGRATION_STATE_EXECUTED
        getattr(R, 'migration_' + last)(io, 'new')
        name = 'old' if last == 'abort' else 'new'
        with rbd.Image(io, name) as i: assert i.read(0, 5) == b'moved'
        R.remove(io, name)

def mirroring():
    R.mirror_site_name_set(r, 'here'); assert R.mirror_site_name_get(r) == 'here'
    R.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_IMAGE); assert R.mirror_mode_get(io) == rbd.RBD_MIRROR_MODE_IMAGE and R.mirror_uuid_get(io)
    assert R.mirror_peer_bootstrap_create(io)
    peer = R.mirror_peer_add(io, 'there', 'client.far')
    R.mirror_peer_set_client(io, peer, 'client.farther'); R.mirror_peer_set_name(io, peer, 'elsewhere')
    R.mirror_peer_set_attributes(io, peer, {rbd.RBD_MIRROR_PEER_ATTRIBUTE_NAME_MON_HOST: 'host'})
    assert R.mirror_peer_get_attributes(io, peer) == {rbd.RBD_MIRROR_PEER_ATTRIBUTE_NAME_MON_HOST: 'host'}
    [p] = R.mirror_peer_list(io); assert (p['uuid'], p['site_name'], p['client_name']) == (peer, 'elsewhere', 'client.farther'), p
    with image('mirrored') as i:
        i.mirror_image_enable(rbd.RBD_MIRROR_IMAGE_MODE_SNAPSHOT)
        info = i.mirror_image_get_info(); assert info['primary'] and info['state'] == rbd.RBD_MIRROR_IMAGE_ENABLED, info
        assert i.mirror_image_get_mode() == rbd.RBD_MIRROR_IMAGE_MODE_SNAPSHOT
        s = i.mirror_image_create_snapshot()
        assert i.snap_get_namespace_type(s) == rbd.RBD_SNAP_NAMESPACE_TYPE_MIRROR and i.snap_get_mirror_namespace(s)['state'] == rbd.RBD_SNAP_MIRROR_STATE_PRIMARY
        got = []
        done(i.aio_mirror_image_get_info(lambda c, info: got.append(info))); assert got[0]['primary']
        done(i.aio_mirror_image_get_mode(lambda c, mode: got.append(mode))); assert got[1] == rbd.RBD_MIRROR_IMAGE_MODE_SNAPSHOT
        done(i.aio_mirror_image_create_snapshot(0, lambda c, snap: got.append(snap))); assert got[2] > s
        assert i.mirror_image_get_status()['name'] == 'mirrored'
        assert [m['name'] for m in R.mirror_image_status_list(io)] == ['mirrored'] and R.mirror_image_status_summary(io) == [(rbd.MIRROR_IMAGE_STATUS_STATE_UNKNOWN, 1)]
        assert len(list(R.mirror_image_info_list(io))) == 1 and list(R.mirror_image_instance_id_list(io)) == []
        i.mirror_image_demote(); assert not i.mirror_image_get_info()['primary']
        i.mirror_image_promote(True); i.mirror_image_disable(False)
    R.remove(io, 'mirrored'); R.mirror_peer_remove(io, peer); R.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_DISABLED)

globals()[sys.argv[2]]()
'''


class RbdApi(Images):

    def test_each_function_of_python3_rbd(self):
        self.c.ceph('osd', 'pool', 'create', 'rbd', '8')
        self.c.python('import rados, rbd, sys\nwith rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx("rbd") as io:\n    rbd.RBD().pool_init(io, False)')
        bad = []
        for what in ('pool', 'about', 'snaps', 'clones', 'asynchronous', 'locks', 'trash', 'groups', 'migration', 'mirroring'):
            r = self.c.python(API, what, check=False)
            if r.code:
                bad.append(f'{what}: {r.err[-1500:]}')
        assert not bad, '\n'.join(bad)


class RbdVerify(Images):
    """fio's own verifying, and file systems, on images to which all is done at once."""

    def setup(self, clients):
        super().setup(clients)
        self.c.ceph('osd', 'pool', 'create', 'rbd', '8')
        self.rbd('pool', 'init', 'rbd')

    def at(self, image, what):
        return os.path.join(self.scratch, f'fio-{image}.{what}')

    def text(self, image, what):
        path = self.at(image, what)
        return open(path).read() if os.path.exists(path) else ''

    def fio(self, image):
        """Writes and verifies, in rounds of 1 MiB, until it is told to stop."""
        argv = ['fio', '--name=v', '--ioengine=rbd', '--pool=rbd', f'--rbdname={image}', '--clientname=admin', '--rw=randwrite', '--bs=4k', '--iodepth=8', '--size=1M',
                '--rate_iops=150', '--verify=crc32c', '--verify_fatal=1', '--verify_backlog=128', '--verify_state_save=0']
        rounds = 'at=$1; shift; while [ ! -e "$at.stop" ]; do "$@" >> "$at.out" 2>> "$at.err" || exit; echo >> "$at.rounds"; done'
        argv = ['sh', '-c', rounds, 'sh', self.at(image, '')[:-1], *argv]
        return subprocess.Popen(argv, env=dict(os.environ, CEPH_CONF=self.c.conf), start_new_session=True)

    def another_round(self, loads):
        """Of each, one that began after what was done before."""
        want = {n: len(self.text(n, 'rounds')) + 2 for n in loads}
        for n, p in loads.items():
            wait(lambda: p.poll() is not None or len(self.text(n, 'rounds')) >= want[n], f'a round on {n}')
            assert p.poll() is None, (n, self.text(n, 'out')[-3000:], self.text(n, 'err')[-3000:])

    def fine(self, loads):
        for n in loads:
            open(self.at(n, 'stop'), 'w').close()
        for n, p in loads.items():
            p.wait(240)
            out, err = self.text(n, 'out'), self.text(n, 'err')
            assert p.returncode == 0 and out.count('err= 0') == len(self.text(n, 'rounds')) and 'verify' not in err, (n, out[-3000:], err[-3000:])
            print(f'figure: {len(self.text(n, "rounds"))} rounds on {n}')

    def test_1_osds_restart_and_snapshots_clones_and_flatten_go_on(self):
        if self.clients.root or not shutil.which('fio'):
            raise Skip('fio is not installed beside these clients')
        c = self.c
        c.ceph('osd', 'set-require-min-compat-client', 'mimic')
        self.rbd('import', self.file('parent', os.urandom(40 * MB)), 'parent', '--no-progress')
        self.rbd('snap', 'create', 'parent@s', '--no-progress')
        self.rbd('clone', 'parent@s', 'child')
        loads = {n: self.fio(n) for n in ('parent', 'child')}
        try:
            for osd in (0, 1, 2):
                c.spirula('osd', 'stop', str(osd), '--dir', c.dir)
                for n in ('parent', 'child'):
                    self.rbd('snap', 'create', f'{n}@n{osd}', '--no-progress', timeout=200)
                self.rbd('clone', f'child@n{osd}', f'grandchild{osd}')
                c.spirula('osd', 'start', str(osd), '--dir', c.dir)
                if osd == 1:
                    self.rbd('flatten', 'child', '--no-progress', timeout=200)
                    self.rbd('flatten', 'grandchild0', '--no-progress', timeout=200)
                self.another_round(loads)
            self.fine(loads)
        finally:
            for p in loads.values():
                if p.poll() is None:
                    # Its fio, too.
                    os.killpg(p.pid, signal.SIGKILL)
                    p.wait()
        for n in ('parent', 'child'):
            self.rbd('object-map', 'check', n, '--no-progress')

    def test_2_qemu_checks_its_own_images_inside(self):
        if self.clients.root or not shutil.which('qemu-img'):
            raise Skip('qemu-utils is not installed beside these clients')
        data = self.file('raw', os.urandom(3 * MB) + bytes(5 * MB) + os.urandom(MB))
        at = f'rbd:rbd/q:conf={self.c.conf}'
        self.tool('qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', data, at)
        assert 'No errors' in self.tool('qemu-img', 'check', '-f', 'qcow2', at)
        assert 'identical' in self.tool('qemu-img', 'compare', '-f', 'raw', '-F', 'qcow2', data, at)

    def test_3_headers_with_bits_that_nobody_knows(self):
        """Bits that Ceph's class does not know are not among those that it calls incompatible: such an image is opened there, too."""
        self.rbd('create', 'bits', '--size', '8M', '--image-feature', 'layering')
        header = f'rbd_header.{json.loads(self.rbd("info", "bits", "--format", "json").out)["id"]}'
        saved = os.path.join(self.scratch, 'saved')
        self.c.rados('-p', 'rbd', 'getomapval', header, 'features', saved)
        put = lambda path: self.c.rados('-p', 'rbd', 'setomapval', header, 'features', '--input-file', path)
        put(self.file('value', struct.pack('<Q', 1 << 40 | 1)))
        assert json.loads(self.rbd('info', 'bits', '--format', 'json').out)['features'] == ['layering']
        self.rbd('snap', 'create', 'bits@s', '--no-progress')
        put(self.file('value', b'abc'))
        for words in (['info', 'bits'], ['snap', 'create', 'bits@t', '--no-progress']):
            assert 'Input/output error' in self.refused(*words, code=5)
        put(saved)
        assert [s['name'] for s in json.loads(self.rbd('snap', 'ls', 'bits', '--format', 'json').out)] == ['s']
        self.rbd('snap', 'purge', 'bits', '--no-progress')
        self.rbd('rm', 'bits', '--no-progress')
