#!/usr/bin/python3
"""Records what users with each kind of capabilities may do: every profile and form of grant, by pool, namespace, object and operation.
usage: capability_matrix.py CEPH.CONF > MATRIX.json

It knows nothing of what is right: what a real Ceph answers is (tests/data/capabilities/README.md says how that is recorded), and
`test_capability_matrix.py` asks a Spirula the same. It wants a cluster of its own, with cephx: it makes pools, a file system and users,
and leaves them. Nothing that a user is let do harms that cluster: what is deleted, marked out or removed is not there, or is refused
for another reason after the capabilities were looked at.

Each answer is one character (see `LETTERS`): whether it is refused for want of permission, and how. Whether what is allowed succeeds is
another test's matter.
"""
import base64, json, os, struct, sys, time
from concurrent.futures import ThreadPoolExecutor
import rados

# `.`: anything but a refusal. `P`: EPERM. `A`: EACCES. `t`: no answer. `n`: nothing is listed, where there is something. `h`: "not found", of a
# file system that is there.
LETTERS = {1: 'P', 13: 'A', 110: 't'}
# Seconds after which an answer counts as never coming: as `harness.PATIENCE`, of which this program knows nothing.
PATIENCE = 240

# ---- at OSDs ----

POOLS = ['mx_rbd', 'mx_fs', 'mx_none']
NAMESPACES = ['', 'a', 'ab']
# `NAME@KEY`: by a locator's key, which capabilities look at in the place of the name.
OBJECTS = ['rbd_directory', 'rbd_info', 'rbd_children', 'rbd_mirroring', 'rbd_header.1', 'rbd_data.1.0', 'plain', 'plain@rbd_info']
CALLS = {
    'rbd.get_id': ('rbd', 'get_id'),
    'rbd.dir_list': ('rbd', 'dir_list'),
    'rbd.metadata_list': ('rbd', 'metadata_list'),
    'rbd.metadata_set': ('rbd', 'metadata_set'),
    'rbd.get_children': ('rbd', 'get_children'),
    'rbd.mirror_mode_get': ('rbd', 'mirror_mode_get'),
    'rbd.child_attach': ('rbd', 'child_attach'),
    'rbd.child_detach': ('rbd', 'child_detach'),
    'rbd.dir_add_image': ('rbd', 'dir_add_image'),
    'lock.get_info': ('lock', 'get_info'),
    'lock.lock': ('lock', 'lock'),
    'hello.say_hello': ('hello', 'say_hello'),
    'cephfs.accumulate': ('cephfs', 'accumulate_inode_metadata'),
}
OSD_USERS = [
    '',
    'allow r', 'allow w', 'allow x', 'allow rw', 'allow rx', 'allow wx', 'allow rwx', 'allow *', 'allow all',
    'allow class-read', 'allow class-write', 'allow class-read class-write', 'allow r class-read', 'allow rw class-write',
    'allow r pool=mx_rbd', 'allow rwx pool mx_rbd', 'allow pool mx_rbd rwx', 'allow * pool=mx_rbd', 'allow rwx pool=mx_rbd namespace=a',
    'allow r namespace=a', 'allow r namespace=""', 'allow rwx namespace=a*', 'allow * namespace=a', 'allow namespace=a rw',
    'allow rwx object_prefix rbd_', 'allow * object_prefix rbd_', 'allow rw pool=mx_rbd namespace=a object_prefix rbd_data.',
    'allow r, allow w namespace=a', 'allow rw, allow x namespace=a', 'allow r, allow class-read namespace=a',
    'allow class-read object_prefix rbd_children, allow rwx pool=mx_rbd',
    'allow class rbd', 'allow class lock', 'allow class hello say_hello', 'allow class lock get_info, allow class rbd get_id',
    'allow class rbd metadata_list pool=mx_rbd', 'allow rw, allow class lock lock', 'allow r, allow class lock lock',
    'allow rwx tag rbd *=*', 'allow rw tag cephfs data=fs1', 'allow rw tag cephfs data=*', 'allow rw tag cephfs *=fs1',
    'allow rw tag cephfs data=fs2', 'allow rw tag cephfs metadata=fs1', 'allow * tag cephfs *=*', 'allow rw namespace=a tag cephfs data=fs1',
    'profile read-only', 'profile read-only pool=mx_rbd', 'profile read-write', 'profile read-write pool=mx_rbd namespace=a',
    'profile rbd', 'profile rbd pool=mx_rbd', 'profile rbd pool=mx_rbd namespace=a', 'profile rbd namespace=a', 'profile rbd namespace=""',
    'profile rbd-read-only', 'profile rbd-read-only pool=mx_rbd', 'profile rbd-read-only pool=mx_rbd namespace=a',
    'profile rbd-read-only namespace=a',
    'profile rbd pool=mx_rbd, profile rbd-read-only pool=mx_fs', 'profile rbd pool=mx_rbd namespace=a, allow r pool=mx_none',
    'profile rbd-mirror', 'profile rbd-mirror-peer', 'profile osd', 'profile mds', 'profile crash', 'profile nosuch',
    'allow rwx network 10.0.0.0/8', 'allow rwx network 127.0.0.0/8', 'profile rbd network 10.0.0.0/8', 'profile rbd network 127.0.0.1/32',
]

# ---- at monitors ----


def c(prefix, **args):
    """A command. `{me}` stands for the user's own name."""
    return {'prefix': prefix, **args}


def bootstrap(entity, **caps):
    return c('auth get-or-create', entity=entity, caps=[word for pair in caps.items() for word in pair])


MON_COMMANDS = [
    # mon
    c('status'), c('health'), c('fsid'), c('mon dump'), c('mon stat'), c('quorum_status'), c('versions'), c('features'), c('df'), c('node ls'),
    c('mon metadata'), c('time-sync-status'), c('log last'), c('config dump'), c('config get', who='client.mx'), c('config ls'),
    c('log', logtext=['a line of the matrix']), c('health mute', code='MX_NOSUCH'), c('health unmute', code='MX_NOSUCH'),
    c('mon rm', name='mxnosuch'), c('mon getmap'), c('mon ok-to-stop', ids=['a']),
    # mgr
    c('mgr dump'), c('mgr stat'), c('mgr services'), c('mgr module ls'), c('mgr fail', who='mxnosuch'), c('mgr module disable', module='mxnosuch'),
    # osd
    c('osd dump'), c('osd ls'), c('osd stat'), c('osd tree'), c('osd lspools'), c('osd pool ls'), c('osd getmap'), c('osd getcrushmap'),
    c('osd pool get', pool='mx_rbd', var='size'), c('osd pool application get', pool='mx_rbd'), c('osd map', pool='mx_rbd', object='o'),
    c('osd metadata'), c('osd crush rule ls'), c('osd erasure-code-profile ls'), c('osd blocklist ls'), c('osd blacklist ls'),
    c('osd out', ids=['9999']), c('osd in', ids=['9999']), c('osd down', ids=['9999']), c('osd set', key='nosuch'),
    c('osd pool create', pool='mx_rbd', pg_num=1), c('osd pool set', pool='mx_none', var='mxnosuch', val='1'),
    c('osd pool application enable', pool='mx_rbd', app='rbd'), c('osd pool rmsnap', pool='mx_none', snap='nosuch'),
    c('osd pool rm', pool='mxnosuch', pool2='mxnosuch', yes_i_really_really_mean_it=True), c('osd crush rm', name='mxnosuch'),
    c('osd erasure-code-profile rm', name='mxnosuch'), c('osd new', uuid='mxnosuch'),
    c('osd purge-new', id=9999, yes_i_really_mean_it=True),
    c('osd blocklist', blocklistop='add', addr='10.255.255.1:0/77', expire=1.0), c('osd blocklist', blocklistop='add', addr='10.255.255.1', expire=1.0),
    c('osd blocklist', blocklistop='add', addr='10.255.255.1:0/0', expire=1.0),
    c('osd blocklist', blocklistop='rm', addr='10.255.255.2:0/77'),
    c('osd blacklist', blacklistop='add', addr='10.255.255.1:0/77', expire=1.0), c('osd blacklist', blacklistop='rm', addr='10.255.255.2:0/77'),
    c('osd blocklist clear'),
    # pg
    c('pg map', pgid='1.0'), c('pg repeer', pgid='999.0'),
    # auth
    c('auth ls'), c('auth export'), c('auth get', entity='client.mx'), c('auth get', entity='{me}'), c('auth get-key', entity='client.mx'),
    c('auth print-key', entity='client.mx'), c('auth get-or-create', entity='client.mx'), c('auth get-or-create-key', entity='client.mx'),
    c('auth rm', entity='client.mxnosuch'), c('auth caps', entity='client.mxnosuch', caps=['mon', 'allow r']), c('auth import'),
    c('auth add', entity='client.mx', caps=['mon', 'allow r']), c('fs authorize', filesystem='fs1', entity='client.mxfs', caps=['/', 'r']),
    bootstrap('mds.mx', mon='allow profile mds', osd='allow rwx', mds='allow'),
    bootstrap('mds.mx', mon='allow profile mds', osd='allow *', mds='allow'),
    bootstrap('mds.mxmore', mon='allow profile mds', osd='allow rwx', mds='allow', mgr='allow *'),
    bootstrap('mgr.mx', mon='allow profile mgr'), bootstrap('mgr.mxmore', mon='allow profile mgr', osd='allow *'),
    bootstrap('client.rgw.mx', mon='allow rw', osd='allow rwx'), bootstrap('client.mxrgw', mon='allow rw', osd='allow rwx'),
    bootstrap('client.mxrbd', mon='profile rbd', osd='profile rbd pool=mx_rbd'),
    bootstrap('client.mxrbdm', mon='profile rbd-mirror', osd='profile rbd pool=mx_rbd'),
    bootstrap('client.mxrbdx', mon='profile rbd', osd='profile rbd pool=mx_rbd, allow *'),
    bootstrap('client.mxrbdmore', mon='profile rbd', osd='profile rbd pool=mx_rbd', mgr='profile rbd'),
    # config, config-key
    c('config set', who='client.mx', name='debug_ms', value='0'), c('config rm', who='client.mx', name='debug_ms'), c('config log'),
    c('config reset', num=1 << 20), c('config generate-minimal-conf'), c('config assimilate-conf'),
    c('config-key ls'), c('config-key dump'), c('config-key get', key='mx/k'), c('config-key exists', key='mx/k'),
    c('config-key set', key='mx/k', val='v'), c('config-key put', key='mx/k', val='v'), c('config-key rm', key='mx/nosuch'), c('config-key del', key='mx/nosuch'),
    c('config-key get', key='rbd/mirror/site_name'), c('config-key get', key='rbd/mirror/peer/1/x'), c('config-key set', key='rbd/mirror/peer/9/x', val='v'),
    c('config-key set', key='rbd/mirror/site_name', val='v'), c('config-key get', key='cephfs/mirror/peer/1'),
    c('config-key get', key='daemon-private/{me}/k'), c('config-key set', key='daemon-private/{me}/k', val='v'),
    c('config-key get', key='daemon-private/osd.0/k'), c('config-key rm', key='daemon-private/{me}/nosuch'),
    # mds, fs
    c('mds stat'), c('mds metadata'), c('mds versions'), c('fs dump'), c('mds compat show'), c('mds fail', role_or_gid='mxnosuch'), c('mds rm', gid=99999999),
    c('mds repaired', role='fs1:77'),
    c('fs ls'), c('fs get', fs_name='fs1'), c('fs feature ls'), c('fs set', fs_name='fs1', var='max_mds', val='1'), c('fs set-default', fs_name='fs1'),
    c('fs rm', fs_name='mxnosuch', yes_i_really_mean_it=True), c('fs fail', fs_name='mxnosuch'),
    c('fs add_data_pool', fs_name='fs1', pool='mxnosuch'), c('fs flag set', flag_name='enable_multiple', val='true'),
    # Those of the manager, asked of a monitor.
    c('pg stat'), c('pg dump_pools_json'), c('osd df'), c('osd pool stats'), c('osd perf'), c('crash ls'), c('crash post'), c('crash rm', id='mxnosuch'),
    c('balancer status'), c('rbd task list'), c('device ls'), c('pg scrub', pgid='999.0'), c('osd test-reweight-by-utilization'),
    c('osd purge', id='9999', yes_i_really_mean_it=True), c('osd ok-to-stop', ids=['9999']), c('fs volume ls'),
]
PROFILES = ['mon', 'osd', 'mds', 'mgr', 'bootstrap-osd', 'bootstrap-mds', 'bootstrap-mgr', 'bootstrap-rgw', 'bootstrap-rbd',
            'bootstrap-rbd-mirror', 'fs-client', 'simple-rados-client', 'rbd', 'rbd-read-only', 'rbd-mirror', 'rbd-mirror-peer',
            'rbd-anything', 'crash', 'role-definer', 'cephfs-mirror', 'read-only', 'read-write', 'nosuch']
MON_USERS = [
    'allow r', 'allow w', 'allow x', 'allow rw', 'allow rx', 'allow wx', 'allow rwx', 'allow *', 'allow all',
    *[f'profile {name}' for name in PROFILES],
    'allow profile rbd', 'allow r, profile rbd-mirror', 'profile osd, profile mds',
    *[f'allow service {service} {rights}' for service in ('mon', 'osd', 'mds', 'fs', 'auth', 'config', 'config-key', 'mgr', 'log', 'pg', 'py')
      for rights in ('r', 'rw', 'rwx')],
    'allow service auth x', 'allow service osd *',
    'allow command status', 'allow command "auth get"', 'allow command "auth get" with entity=client.mx', 'allow command "auth get" with entity prefix client.',
    'allow command "config-key get" with key prefix mx/', 'allow command "config-key get" with key regex "rbd/.*"',
    'allow r, allow command "osd blacklist"', 'allow r, allow command "osd blocklist"', 'allow r, allow command "osd out"',
    'allow r, allow command "osd blocklist" with blocklistop=add addr regex "^[^/]+/[0-9]+$"',
    'allow r, allow command "osd pool create" with pool=mx_rbd', 'allow r, allow command "osd pool create" with pool=other',
    'allow command "crash post"', 'allow command "osd purge"',
    'allow r fsname=fs1', 'allow rw fsname=fs1', 'allow rw fsname=fs2', 'allow r, allow rw fsname=fs1', 'allow rw fsname=all',
    'allow * fsname=fs1',
    'allow r network 127.0.0.0/8', 'allow r network 10.0.0.0/8, allow service osd r', 'allow * network 10.0.0.0/8, allow r',
    'profile rbd network 127.0.0.0/8', 'profile rbd network 10.0.0.0/8, allow r',
]

# ---- at managers ----

MGR_COMMANDS = [
    c('rbd task list'), c('rbd task list', image_spec='mx_rbd/i'),
    *[c('rbd task add flatten', image_spec=spec) for spec in ('mx_rbd/i', 'mx_rbd/a/i', 'mx_rbd/b/i', 'mx_none/i', 'mx_none/a/i')],
    c('rbd task cancel', task_id='mxnosuch'),
    c('rbd perf image stats'), *[c('rbd perf image stats', pool_spec=spec) for spec in ('mx_rbd', 'mx_rbd/a', 'mx_none')],
    c('rbd perf image counters', pool_spec='mx_rbd'), c('rbd mirror snapshot schedule list'),
    *[c('rbd mirror snapshot schedule list', level_spec=spec) for spec in ('mx_rbd/', 'mx_rbd/a/', 'mx_none/')],
    *[c('rbd mirror snapshot schedule remove', level_spec=spec) for spec in ('mx_rbd/', 'mx_rbd/a/', 'mx_none/')],
    c('rbd mirror snapshot schedule status'), c('rbd trash purge schedule list'),
    *[c('rbd trash purge schedule remove', level_spec=spec) for spec in ('mx_rbd/', 'mx_rbd/a/', 'mx_none/')],
    c('balancer status'), c('balancer off'), c('progress'), c('pg stat'), c('pg dump'), c('pg ls'), c('pg dump_stuck'), c('pg debug', debugop='unfound_objects_exist'),
    c('osd df'), c('osd perf'), c('osd pool stats'), c('osd blocked-by'), c('osd ok-to-stop', ids=['9999']), c('osd safe-to-destroy', ids=['9999']),
    c('osd test-reweight-by-utilization'), c('osd destroy', id='9999', yes_i_really_mean_it=True), c('osd purge', id='9999', yes_i_really_mean_it=True),
    c('osd pool autoscale-status'), c('osd status'), c('osd scrub', who='9999'),
    c('pg scrub', pgid='999.0'), c('pg repair', pgid='999.0'), c('pg force-recovery', pgid=['999.0']),
    c('crash ls'), c('crash stat'), c('crash info', id='mxnosuch'), c('crash rm', id='mxnosuch'), c('crash post'), c('crash archive', id='mxnosuch'),
    c('device ls'), c('device info', devid='mxnosuch'), c('device light', enable='off', devid='mxnosuch'),
    c('fs status'), c('fs volume ls'), c('service dump'), c('service status'), c('config show', who='osd.0'),
]
MGR_USERS = [
    '',
    'allow r', 'allow w', 'allow x', 'allow rw', 'allow rx', 'allow rwx', 'allow *', 'allow all',
    *[f'profile {name}' for name in ('read-only', 'read-write', 'crash', 'osd', 'mds', 'rbd', 'rbd-read-only')], 'allow profile rbd',
    *[f'profile {name} {where}' for name in ('rbd', 'rbd-read-only') for where in
      ('pool=mx_rbd', 'pool=mx_rbd namespace=a', 'namespace=a', 'pool prefix mx_r', 'pool regex "mx_(rbd|fs)"')],
    'profile rbd pool=mx_rbd, profile rbd-read-only pool=mx_none', 'profile rbd pool=mx_rbd namespace=a, profile rbd pool=mx_none',
    *[f'allow service {service} {rights}' for service in ('mgr', 'osd', 'pg', 'mon', 'py') for rights in ('r', 'rw')], 'allow service py rwx',
    *[f'allow module {module} {rights}' for module in ('rbd_support', 'balancer', 'crash', 'status') for rights in ('r', 'rw')],
    'allow module rbd_support with pool=mx_rbd rw', 'allow module rbd_support with pool=mx_rbd namespace=a r',
    'allow command "pg dump"', 'allow command "rbd task add flatten"', 'allow command "rbd task add flatten" with image_spec=mx_rbd/i',
    'allow command "rbd task add flatten" with image_spec prefix mx_rbd/', 'allow command "pg force-recovery" with pgid=999.0', 'allow command "crash post"',
    'allow r network 10.0.0.0/8', 'allow r network 127.0.0.0/8', 'profile rbd network 10.0.0.0/8, allow module status r',
]


def answer(f):
    """What came of it, as a letter. OSDs never say EACCES, nor monitors and managers EPERM for want of capabilities; but what is said is recorded."""
    try:
        code = f()
    except rados.Error as e:
        code = e.errno
    return LETTERS.get(abs(code or 0), '.')


def commanded(send, command, me, **to):
    text = json.dumps(command).replace('{me}', me)
    code, _, said = send(text, b'', **to)
    # A file system that the user is not to know of.
    if code == -2 and command['prefix'].startswith('fs ') and 'not found' in said:
        return 'h'
    return LETTERS.get(-code, '.')


def new_key():
    """A new user's key: a type, when it was made, its length, and 16 random bytes."""
    return base64.b64encode(struct.pack('<HIIH', 1, int(time.time()), 0, 16) + os.urandom(16)).decode()


def object_operations(io, name):
    """Each operation on an object, and how it is done. What `gone` names is not there, and is by capabilities as the other."""
    gone = name + '.gone'

    def read_op(fill):
        def run():
            with rados.ReadOpCtx() as op:
                # What it gives is written to when the operation ends.
                kept = fill(op)
                io.operate_read_op(op, name)
                del kept
        return run

    def write_op(*fill, at=name):
        def run():
            with rados.WriteOpCtx() as op:
                for f in fill:
                    f(op)
                io.operate_write_op(op, at)
        return run
    yield 'read', lambda: io.read(name, 1) and 0
    yield 'stat', lambda: io.stat(name) and 0
    yield 'getxattrs', lambda: next(iter(io.get_xattrs(name)), None) and 0
    yield 'omap get', read_op(lambda op: io.get_omap_vals(op, '', '', 1))
    yield 'write', lambda: io.write(name, b'')
    yield 'append', lambda: io.append(name, b'')
    yield 'setxattr', lambda: io.set_xattr(name, 'mx', b'x') and 0
    yield 'omap set', write_op(lambda op: io.set_omap(op, ('mx',), (b'x',)))
    yield 'create', write_op(lambda op: op.new(rados.LIBRADOS_CREATE_EXCLUSIVE))
    yield 'remove', lambda: io.remove_object(gone)
    yield 'write + lock', write_op(lambda op: op.write(b'', 0), lambda op: op.execute('lock', 'lock', b''))
    yield 'watch', lambda: io.watch(gone, lambda *_: None).close()
    yield 'notify', lambda: io.notify(gone, 'x', 1000) and 0
    for label, (cls, method) in CALLS.items():
        yield label, lambda cls=cls, method=method: io.execute(name, cls, method, b'') and 0


def operation_names():
    return [label for label, _ in object_operations(None, '')]


def listed(io):
    """Are there objects? Why there are none, python-rados hides."""
    try:
        return '.' if next(iter(io.list_objects()), None) else 'n'
    except rados.Error:
        return 'n'


class Recorder:
    def __init__(self, conf):
        self.conf = conf
        self.admin = self.client('client.admin')
        self.admin.connect()

    def client(self, name, key=None):
        conf = {'rados_osd_op_timeout': str(PATIENCE), 'rados_mon_op_timeout': str(PATIENCE), 'client_mount_timeout': str(PATIENCE)}
        if key:
            conf.update(key=key, keyring='/dev/null')
        return rados.Rados(conffile=self.conf, name=name, conf=conf)

    def run(self, prefix, data=b'', /, **args):
        code, out, said = self.admin.mon_command(json.dumps(c(prefix, **args)), data)
        assert code == 0, (prefix, args, code, said)
        return out

    def prepare(self):
        for pool in POOLS + ['mx_meta']:
            self.run('osd pool create', pool=pool, pg_num=1, pgp_num=1)
        self.run('osd pool application enable', pool='mx_rbd', app='rbd')
        # Which tags both pools for it.
        self.run('fs new', fs_name='fs1', metadata='mx_meta', data='mx_fs')
        for key, value in (('mx/k', 'v'), ('rbd/mirror/site_name', 'here'), ('rbd/mirror/peer/1/x', 'v'), ('cephfs/mirror/peer/1', 'v')):
            self.run('config-key set', key=key, val=value)
        self.run('auth get-or-create', entity='client.mx', caps=['mon', 'allow r'])
        for pool in POOLS:
            with self.admin.open_ioctx(pool) as io:
                # From now on the pool has snapshots of clients' own, and no others; a file system's has none.
                if pool != 'mx_fs':
                    io.remove_self_managed_snap(io.create_self_managed_snap())
                for namespace in NAMESPACES:
                    io.set_namespace(namespace)
                    for o in OBJECTS:
                        name, _, locator = o.partition('@')
                        io.set_locator_key(locator)
                        io.write_full(name, b'')
                    io.set_locator_key('')
        self.users = [(f'client.mx{service}{n}', service, caps) for service, all_caps in (('osd', OSD_USERS), ('mon', MON_USERS), ('mgr', MGR_USERS))
                      for n, caps in enumerate(all_caps)]
        self.keys = {name: new_key() for name, _, _ in self.users}
        ring = ''
        for name, service, caps in self.users:
            ring += f'[{name}]\n\tkey = {self.keys[name]}\n'
            for at, text in {'mon': 'allow r', service: caps}.items():
                if text:
                    quoted = text.replace('"', '\\"')
                    ring += f'\tcaps {at} = "{quoted}"\n'
        self.run('auth import', ring.encode())

    def at_osds(self, name):
        """Letters, and for which pools, and namespaces of pools, they are: whether these list something, and a word for each object. Of a
        pool: whether all of its namespaces list something, snapshots of the user's own, snapshots of the pool."""
        with self.client(name, self.keys[name]) as r:
            def place(pool, namespace):
                with r.open_ioctx(pool) as io:
                    io.set_namespace(namespace)
                    words = [listed(io)]
                    for o in OBJECTS:
                        word, _, locator = o.partition('@')
                        io.set_locator_key(locator)
                        words.append(''.join(answer(f) for _, f in object_operations(io, word)))
                    # Where all objects are alike, one stands for them.
                    return ' '.join(words if len(set(words[1:])) > 1 else words[:2])

            def whole(pool):
                with r.open_ioctx(pool) as io:
                    def snap():
                        io.remove_self_managed_snap(io.create_self_managed_snap())
                    io.set_namespace(rados.LIBRADOS_ALL_NSPACES)
                    return listed(io) + answer(snap) + answer(lambda: io.create_snap('mx'))
            with ThreadPoolExecutor(8) as threads:
                places = {f'{pool}/{namespace}': threads.submit(place, pool, namespace) for pool in POOLS for namespace in NAMESPACES}
                wholes = {pool: threads.submit(whole, pool) for pool in POOLS}
                told = threads.submit(commanded, lambda text, data: r.osd_command(0, text, data), c('version'), name)
                out = {}
                for at, f in {**wholes, **places}.items():
                    out.setdefault(f.result(), []).append(at)
                # Places that are alike stand together.
                return {**{letters: ' '.join(places) for letters, places in out.items()}, 'tell': told.result()}

    def at_monitors(self, name):
        with self.client(name, self.keys[name]) as r:
            out = [commanded(r.mon_command, command, name) for command in MON_COMMANDS]
            return ''.join(out) + ' ' + commanded(r.mon_command, c('version'), name, target=self.mon)

    def at_managers(self, name):
        with self.client(name, self.keys[name]) as r:
            out = [commanded(r.mgr_command, command, name) for command in MGR_COMMANDS]
            return ''.join(out) + ' ' + commanded(r.mgr_command, c('version'), name, target=self.mgr)

    def record(self):
        """The matrix: what was asked, and for each kind of capabilities the answers."""
        self.mon = json.loads(self.run('mon dump', format='json'))['mons'][0]['name']
        self.mgr = json.loads(self.run('mgr dump', format='json'))['active_name']
        self.prepare()
        ask = {'osd': self.at_osds, 'mon': self.at_monitors, 'mgr': self.at_managers}
        out = {'version': json.loads(self.run('mon versions', format='json')), **asked()}
        with ThreadPoolExecutor(4) as threads:
            answers = [(service, caps, threads.submit(self.timed, ask[service], name)) for name, service, caps in self.users]
            for service, caps, f in answers:
                out.setdefault(service, {})[caps] = f.result()
        self.admin.shutdown()
        return out

    def timed(self, f, name):
        try:
            return f(name)
        except rados.Error as e:
            raise RuntimeError(f'{name}: {e}') from e


def line(command):
    """A command as one types it."""
    words = [command['prefix']]
    for k, v in command.items():
        if k != 'prefix':
            words.append(f'{k}={",".join(v) if isinstance(v, list) else v}')
    return ' '.join(words)


def asked():
    return {'objects': OBJECTS, 'operations': operation_names(), 'mon commands': [line(m) for m in MON_COMMANDS], 'mgr commands': [line(m) for m in MGR_COMMANDS]}


def answers(matrix):
    """Each answer by service, capabilities and question."""
    for service in ('mon', 'mgr'):
        questions = matrix[f'{service} commands'] + [f'tell {service} version']
        for caps, letters in matrix[service].items():
            for question, letter in zip(questions, letters.replace(' ', '')):
                yield (service, caps, question), letter
    for caps, rows in matrix['osd'].items():
        for letters, places in rows.items():
            if letters == 'tell':
                yield ('osd', caps, 'tell osd.0 version'), places
                continue
            for at in places.split():
                if '/' not in at:
                    yield from ((('osd', caps, f'{what} of {at}'), x) for what, x in zip(('list all', 'own snapshot', 'pool snapshot'), letters))
                    continue
                first, *words = letters.split()
                yield ('osd', caps, f'list of {at}'), first
                for name, word in zip(matrix['objects'], words if len(words) > 1 else words * len(matrix['objects'])):
                    yield from ((('osd', caps, f'{op} of {at}/{name}'), x) for op, x in zip(matrix['operations'], word))


def text(matrix):
    """JSON that people can compare by lines: one for each user, or one for each user and place."""
    def one(value):
        if isinstance(value, dict):
            rows = [f'{json.dumps(k)}: {one(v)}' for k, v in value.items()]
            return '{\n' + ',\n'.join(rows) + '\n}'
        if isinstance(value, list):
            return '[\n' + ',\n'.join(json.dumps(v) for v in value) + '\n]'
        return json.dumps(value)
    return one(matrix) + '\n'


if __name__ == '__main__':
    sys.stdout.write(text(Recorder(sys.argv[1]).record()))
