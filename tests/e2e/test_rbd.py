"""Block images: Debian's `rbd`, python3-rbd, fio and qemu-img, with the features that images have by default."""
import json, os, shutil, subprocess, time
from harness import Load, Skip, wait
from images import Images

MB = 1 << 20

API = '''
import rados, rbd, sys, os, time
MB = 1 << 20
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx('rbd') as io:
    r = rbd.RBD()
    r.create(io, 'api', 64 * MB)
    with rbd.Image(io, 'api') as i:
        assert i.size() == 64 * MB and not i.old_format()
        assert i.write(b'abc' * 1000, 4 * MB - 1500) == 3000
        assert i.read(4 * MB - 1500, 3000) == b'abc' * 1000, 'across two objects'
        assert i.read(32 * MB, 10) == bytes(10), 'never written'
        i.write(b'x' * MB, 8 * MB)
        i.discard(8 * MB, 4 * MB)
        assert i.read(8 * MB, MB) == bytes(MB)
        i.write_zeroes(4 * MB - 1500, 1500)
        assert i.read(4 * MB - 1500, 3000) == bytes(1500) + b'abc' * 500
        i.flush()
        i.resize(20 * MB)
        assert i.size() == 20 * MB
        try:
            i.write(b'x', 20 * MB)
            raise SystemExit('a write beyond the end was taken')
        except rbd.InvalidArgument:
            pass
        i.resize(64 * MB)
        assert i.read(20 * MB, 4096) == bytes(4096)
        done = []
        for n in range(64):
            i.aio_write(bytes([n]) * 4096, n * 65536, lambda c: done.append(c.get_return_value()))
        i.flush()
        while len(done) < 64:
            time.sleep(0.01)
        assert done == [0] * 64, done
        assert all(i.read(n * 65536, 4096) == bytes([n]) * 4096 for n in range(64))
        allocated = []
        i.diff_iterate(0, 64 * MB, None, lambda off, length, exists: allocated.append((off, length, exists)))
        assert allocated and sum(l for _, l, e in allocated if e) < 20 * MB, allocated
        assert len(list(i.watchers_list())) == 1 and i.is_exclusive_lock_owner()
        i.metadata_set('conf_rbd_cache', 'false')
        assert i.metadata_get('conf_rbd_cache') == 'false' and i.modify_timestamp()
    r.rename(io, 'api', 'api2')
    assert 'api2' in r.list(io)
    r.remove(io, 'api2')
    assert 'api2' not in r.list(io)
    try:
        rbd.Image(io, 'api2')
        raise SystemExit('a removed image was opened')
    except rbd.ImageNotFound:
        pass
'''

# Two clients want one image's exclusive lock in turn; the other asks its owner for it by a notification.
SHARED = '''
import rados, rbd, sys, time
who, rounds = int(sys.argv[2]), int(sys.argv[3])
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx('rbd') as io, rbd.Image(io, 'shared') as i:
    for n in range(rounds):
        i.write(bytes([who]) * 512, (2 * n + who) * 512)
        time.sleep(0.05)
    print('done', flush=True)
'''

HOLDS = '''
import rados, rbd, sys
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx('rbd') as io, rbd.Image(io, 'shared') as i:
    i.write(b'mine', 0)
    print('owner', i.is_exclusive_lock_owner(), flush=True)
    sys.stdin.readline()
'''

# Writes blocks that say which and when, reads each back at once, and all of them in the end.
WRITES = '''
import rados, rbd, sys, os, random, struct
rng, last = random.Random(7), {}
with rados.Rados(conffile=sys.argv[1]) as cluster, cluster.open_ioctx(sys.argv[2]) as io, rbd.Image(io, 'load') as i:
    blocks = i.size() // 4096
    n = 0
    while not os.path.exists(sys.argv[3]):
        n += 1
        at = rng.randrange(blocks)
        data = struct.pack('<QQ', at, n) * 256
        assert i.write(data, at * 4096) == 4096
        last[at] = data
        old = rng.choice(list(last))
        assert i.read(old * 4096, 4096) == last[old], f'block {old} differs'
        did()
    assert all(i.read(at * 4096, 4096) == data for at, data in last.items())
    print(n, 'writes')
'''


class Rbd(Images):
    minutes = 2

    def test_01_pool_and_image(self):
        self.c.ceph('osd', 'pool', 'create', 'rbd', '16')
        self.rbd('pool', 'init', 'rbd')
        assert 'rbd' in self.c.json('osd', 'pool', 'application', 'get', 'rbd')
        self.rbd('create', 'a', '--size', '1G')
        assert self.rbd('ls').out.split() == ['a']
        info = json.loads(self.rbd('info', 'a', '--format', 'json').out)
        assert info['size'] == 1 << 30 and info['objects'] == 256 and info['format'] == 2, info
        assert set(info['features']) == {'layering', 'exclusive-lock', 'object-map', 'fast-diff', 'deep-flatten'}, info
        assert self.refused('create', 'a', '--size', '1G', code=17)
        assert self.refused('info', 'nothing', code=2)
        self.rbd('resize', 'a', '--size', '2G')
        assert self.refused('resize', 'a', '--size', '1G')
        self.rbd('resize', 'a', '--size', '512M', '--allow-shrink', '--no-progress')
        assert json.loads(self.rbd('info', 'a', '--format', 'json').out)['size'] == 512 * MB
        self.rbd('mv', 'a', 'b')
        assert self.rbd('ls').out.split() == ['b']

    def test_02_api(self):
        self.c.python(API)

    def test_03_import_export_copy_and_du(self):
        data = bytearray(24 * MB)
        data[3 * MB:5 * MB], data[20 * MB:] = os.urandom(2 * MB), os.urandom(4 * MB)
        path, back = self.file('image', data), os.path.join(self.scratch, 'back')
        self.rbd('import', path, 'i', '--no-progress')
        self.rbd('export', 'i', back, '--no-progress')
        assert open(back, 'rb').read() == data
        os.remove(back)
        self.rbd('cp', 'i', 'j', '--no-progress')
        self.rbd('export', 'j', back, '--no-progress')
        assert open(back, 'rb').read() == data
        os.remove(back)
        [image] = json.loads(self.rbd('du', 'j', '--format', 'json').out)['images']
        assert image['provisioned_size'] == 24 * MB and image['used_size'] <= 16 * MB, image
        self.rbd('object-map', 'check', 'j', '--no-progress')
        self.rbd('rm', 'j', '--no-progress')
        assert 'rbd_data' in self.c.rados('-p', 'rbd', 'ls').out

    def test_04_metadata_locks_features_and_watchers(self):
        self.rbd('image-meta', 'set', 'i', 'owner', 'me')
        assert self.rbd('image-meta', 'get', 'i', 'owner').out.strip() == 'me'
        self.rbd('image-meta', 'rm', 'i', 'owner')
        assert self.refused('image-meta', 'get', 'i', 'owner')
        self.rbd('config', 'image', 'set', 'i', 'rbd_cache', 'false')
        self.rbd('lock', 'add', 'i', 'mine')
        [lock] = json.loads(self.rbd('lock', 'ls', 'i', '--format', 'json').out)
        assert lock['id'] == 'mine', lock
        assert self.refused('lock', 'add', 'i', 'other', code=16)
        self.rbd('lock', 'rm', 'i', 'mine', lock['locker'])
        for what in ('disable', 'enable'):
            self.rbd('feature', what, 'i', *(['object-map', 'fast-diff'] if what == 'enable' else ['fast-diff', 'object-map']))
        assert 'object-map' in self.rbd('info', 'i').out
        assert json.loads(self.rbd('status', 'i', '--format', 'json').out)['watchers'] == []
        assert self.refused('feature', 'disable', 'i', 'nonsense')

    def test_05_trash_and_namespaces(self):
        self.rbd('trash', 'mv', 'i')
        assert 'i' not in self.rbd('ls').out.split()
        [entry] = json.loads(self.rbd('trash', 'ls', '--format', 'json').out)
        assert entry['name'] == 'i', entry
        self.rbd('trash', 'restore', entry['id'])
        assert 'i' in self.rbd('ls').out.split()
        self.rbd('create', 'gone', '--size', '8M')
        self.rbd('trash', 'mv', 'gone')
        self.rbd('trash', 'purge', '--no-progress')
        assert json.loads(self.rbd('trash', 'ls', '--format', 'json').out) == []
        self.rbd('namespace', 'create', 'rbd/tenant')
        assert 'tenant' in self.rbd('namespace', 'ls').out
        self.rbd('create', 'rbd/tenant/x', '--size', '8M')
        assert self.rbd('ls', 'rbd/tenant').out.split() == ['x'] and 'x' not in self.rbd('ls').out.split()
        assert self.refused('namespace', 'rm', 'rbd/tenant')
        self.rbd('rm', 'rbd/tenant/x', '--no-progress')
        self.rbd('namespace', 'rm', 'rbd/tenant')

    def test_06_groups(self):
        self.rbd('group', 'create', 'g')
        self.rbd('group', 'image', 'add', 'g', 'i')
        assert self.rbd('group', 'image', 'ls', 'g').out.split() == ['rbd/i']
        assert self.refused('rm', 'i', '--no-progress')
        self.rbd('group', 'image', 'rm', 'g', 'i')
        self.rbd('group', 'rename', 'g', 'h')
        assert self.rbd('group', 'ls').out.split() == ['h']
        self.rbd('group', 'rm', 'h')

    def test_07_bench_and_fio(self):
        self.rbd('create', 'bench', '--size', '256M')
        for kind, pattern in (('write', 'rand'), ('readwrite', 'seq'), ('read', 'rand')):
            out = self.rbd('bench', '--io-type', kind, '--io-size', '4K', '--io-threads', '8', '--io-total', '4M', '--io-pattern', pattern, 'bench').out
            assert 'elapsed' in out, out
        if not shutil.which('fio'):
            raise Skip('fio is not installed')
        r = subprocess.run(['fio', '--name=v', '--ioengine=rbd', '--pool=rbd', '--rbdname=bench', '--clientname=admin', '--rw=randwrite', '--bs=4k',
                            '--iodepth=16', '--size=16M', '--verify=crc32c', '--do_verify=1', '--verify_fatal=1', '--verify_state_save=0'], capture_output=True, text=True,
                           timeout=300, env=dict(os.environ, CEPH_CONF=self.c.conf))
        assert r.returncode == 0 and 'err= 0' in r.stdout, r

    def test_08_lock_goes_from_one_client_to_the_other(self):
        self.rbd('create', 'shared', '--size', '16M')
        both = [self.c.python(SHARED, who, 20, wait=False) for who in (0, 1)]
        for p in both:
            out, err = p.communicate(timeout=300)
            assert p.returncode == 0 and 'done' in out, err
        back = os.path.join(self.scratch, 'shared')
        self.rbd('export', 'shared', back, '--no-progress')
        with open(back, 'rb') as f:
            assert f.read(40 * 512) == b''.join(bytes([n % 2]) * 512 for n in range(40))

    def test_09_owner_that_died_is_fenced_and_its_lock_broken(self):
        owner = self.c.python(HOLDS, wait=False)
        assert owner.stdout.readline().split() == ['owner', 'True']
        owner.kill()
        owner.communicate()
        started = time.monotonic()
        other = self.c.python(HOLDS, wait=False)
        assert other.stdout.readline().split() == ['owner', 'True']
        print(f'figure: a dead owner\'s lock was broken after {time.monotonic() - started:.1f} s')
        other.communicate('\n', timeout=180)
        assert other.returncode == 0
        assert self.c.json('osd', 'blocklist', 'ls'), 'the dead one is fenced'

    def test_10_osds_are_killed_under_load(self):
        self.rbd('create', 'load', '--size', '64M')
        load = Load(self.c, WRITES, 'rbd')
        load.goes_on()
        for osd in (0, 1, 2):
            self.c.spirula('osd', 'stop', str(osd), '--dir', self.c.dir)
            load.goes_on()
            self.c.spirula('osd', 'start', str(osd), '--dir', self.c.dir)
            self.c.wait_clean()
            load.goes_on()
        assert 'writes' in load.end()

    def test_11_everything_is_killed_and_images_are_whole(self):
        before = os.path.join(self.scratch, 'before')
        self.rbd('export', 'load', before, '--no-progress')
        self.c.kill()
        self.c.up()
        after = os.path.join(self.scratch, 'after')
        self.rbd('export', 'load', after, '--no-progress')
        with open(before, 'rb') as a, open(after, 'rb') as b:
            assert a.read() == b.read()
        self.rbd('object-map', 'check', 'load', '--no-progress')

    def test_12_data_in_an_erasure_coded_pool(self):
        self.c.ceph('osd', 'erasure-code-profile', 'set', 'k2', 'k=2', 'm=1', 'crush-failure-domain=osd')
        self.c.ceph('osd', 'pool', 'create', 'coded', '8', '8', 'erasure', 'k2')
        self.c.ceph('osd', 'pool', 'set', 'coded', 'allow_ec_overwrites', 'true')
        self.rbd('pool', 'init', 'coded')
        data = os.urandom(5 * MB + 512)
        self.rbd('import', '--data-pool', 'coded', self.file('ec', data), 'rbd/ec', '--no-progress')
        assert json.loads(self.rbd('info', 'ec', '--format', 'json').out)['data_pool'] == 'coded'
        back = os.path.join(self.scratch, 'ec-back')
        self.rbd('export', 'ec', back, '--no-progress')
        assert open(back, 'rb').read() == data
        self.rbd('bench', '--io-type', 'write', '--io-size', '4K', '--io-threads', '4', '--io-total', '1M', '--io-pattern', 'rand', 'ec')
        self.rbd('rm', 'ec', '--no-progress')

    def test_13_profile_rbd_is_enough_and_read_only_is_less(self):
        keyring = os.path.join(self.scratch, 'keyring')
        for name, osd in (('user', 'profile rbd pool=rbd'), ('reader', 'profile rbd-read-only pool=rbd')):
            key = self.c.ceph('auth', 'get-or-create', f'client.{name}', 'mon', 'profile rbd', 'osd', osd).out
            with open(keyring, 'a') as f:
                f.write(key + '\n')
        as_user = lambda name, *argv, **kw: self.rbd('--id', name, '--keyring', keyring, *argv, **kw)
        as_user('user', 'create', 'mine', '--size', '8M')
        as_user('user', 'bench', '--io-type', 'write', '--io-total', '256K', 'mine')
        assert 'mine' in as_user('reader', 'ls').out and as_user('reader', 'info', 'mine')
        assert as_user('reader', 'export', 'mine', os.path.join(self.scratch, 'mine'), '--no-progress')
        assert as_user('reader', 'create', 'no', '--size', '8M', check=False).code != 0
        assert as_user('reader', 'rm', 'mine', '--no-progress', check=False).code != 0
        assert as_user('user', 'create', 'data/no', '--size', '8M', check=False).code != 0
        as_user('user', 'rm', 'mine', '--no-progress')

    def test_14_qemu(self):
        if not shutil.which('qemu-img'):
            raise Skip('qemu-utils is not installed')
        qemu = lambda *argv: subprocess.run(['qemu-img', *argv], capture_output=True, text=True, timeout=300)
        at = f'rbd:rbd/qemu:conf={self.c.conf}'
        r = qemu('info', f'rbd:rbd/i:conf={self.c.conf}')
        if 'Unknown protocol' in r.stderr:
            raise Skip('qemu-block-extra is not installed')
        assert r.returncode == 0 and '24 MiB' in r.stdout, r
        data = os.urandom(3 * MB) + bytes(5 * MB) + os.urandom(MB)
        path = self.file('raw', data)
        r = qemu('convert', '-f', 'raw', '-O', 'raw', path, at)
        assert r.returncode == 0, r
        r = qemu('compare', '-f', 'raw', '-F', 'raw', path, at)
        assert r.returncode == 0 and 'identical' in r.stdout, r
        r = qemu('bench', '-c', '500', '-d', '8', '-s', '4096', '-w', '-f', 'raw', at)
        assert r.returncode == 0, r

    def test_15_tasks_are_left_to_clients_in_words_that_drivers_know(self):
        # What ceph-csi looks for before it removes or flattens an image itself: since 3.4 in the manager's answer, before in what
        # Ceph's tool prints.
        for words in (['remove', 'rbd/i'], ['trash', 'remove', 'rbd/1234'], ['flatten', 'rbd/i']):
            r = self.c.ceph('rbd', 'task', 'add', *words, check=False)
            assert r.code == 22 and 'No handler found' in r.err, r
            assert 'Error EINVAL: invalid command' in r.err and 'no valid command found' in r.err, r
        assert self.c.json('rbd', 'task', 'list') == [] and self.c.json('rbd', 'mirror', 'snapshot', 'schedule', 'list') == {}
        assert self.c.ceph('rbd', 'task', 'cancel', '1', check=False).code == 2
        assert self.c.ceph('rbd', 'trash', 'purge', 'schedule', 'list', 'nopool', check=False).code == 2

    def test_15_mirroring_of_one_cluster_tells_how_it_stands(self):
        self.rbd('mirror', 'pool', 'enable', 'rbd', 'image')
        assert self.rbd('mirror', 'pool', 'status', 'rbd').out.splitlines()[:2] == ['health: UNKNOWN', 'daemon health: UNKNOWN']
        self.rbd('create', 'mirrored', '--size', '8M', '--image-feature', 'exclusive-lock,journaling')
        self.rbd('mirror', 'image', 'enable', 'mirrored', 'journal')
        told = json.loads(self.rbd('mirror', 'pool', 'status', 'rbd', '--verbose', '--format', 'json').out)
        assert told['summary']['states'] == {'unknown': 1} and told['images'][0]['name'] == 'mirrored', told
        told = self.rbd('mirror', 'image', 'status', 'mirrored').out
        assert 'down+unknown' in told and 'status not found' in told, told
        # A daemon says how it stands, and is believed while it watches.
        out = self.c.python('''
import rados, struct, sys
r = rados.Rados(conffile=sys.argv[1]); r.connect()
io = r.open_ioctx('rbd')
s = lambda x: struct.pack('<I', len(x)) + x
v = lambda body: struct.pack('<BBI', 1, 1, len(body)) + body
call = lambda method, data=b'': io.execute('rbd_mirroring', 'rbd', method, data)[1]
listed = call('mirror_image_list', s(b'') + struct.pack('<Q', 9))
size = struct.unpack_from('<I', listed, 4)[0]
glob = listed[12 + size:12 + size + struct.unpack_from('<I', listed, 8 + size)[0]]
watch = io.watch('rbd_mirroring', lambda *a: None)
call('mirror_image_status_set', s(glob) + v(bytes([4]) + s(b'all is well') + bytes(8) + bytes([0])))
print(call('mirror_image_status_get_summary').hex(), len(call('mirror_image_instance_get', s(glob))) > 20)
watch.close()
print(call('mirror_image_status_get_summary').hex())
try: call('mirror_image_instance_get', s(glob))
except rados.Error as e: print(e.errno)
call('mirror_image_status_remove_down')
try: call('mirror_image_status_get', s(glob))
except rados.ObjectNotFound: print('forgotten')
r.shutdown()
''').out.split()
        assert out == ['010000000401000000', 'True', '010000000001000000', '116', 'forgotten'], out
        self.rbd('mirror', 'image', 'disable', 'mirrored')
        self.rbd('mirror', 'pool', 'disable', 'rbd')
        self.rbd('rm', 'mirrored', '--no-progress')

    def test_16_bad_input(self):
        self.rbd('create', 'broken', '--size', '8M')
        name = json.loads(self.rbd('info', 'broken', '--format', 'json').out)['id']
        self.c.rados('-p', 'rbd', 'rm', f'rbd_header.{name}')
        assert self.refused('info', 'broken', code=2)
        self.rbd('create', 'odd', '--size', '8M')
        name = json.loads(self.rbd('info', 'odd', '--format', 'json').out)['id']
        self.c.rados('-p', 'rbd', 'setomapval', f'rbd_header.{name}', 'size', 'x')
        assert self.refused('info', 'odd')
        assert self.refused('create', 'wrong', '--size', '8M', '--image-feature', 'nonsense')
        assert self.refused('rm', 'nothing', '--no-progress', code=2)
