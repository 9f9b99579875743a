"""The `ceph` tool: what an administrator types, plain and JSON."""
import json, os, subprocess, threading
from harness import Case, wait


class Ceph(Case):
    minutes = 2

    def test_status_health_and_versions(self):
        self.c.wait_clean()
        out = self.c.ceph('-s').out
        for word in ('cluster:', 'health: HEALTH_', 'mon: 1 daemons', 'mgr:', 'osd: 3 osds: 3 up', '3 in', 'active+clean'):
            assert word in out, (word, out)
        v = self.c.json('-s')
        assert v['osdmap']['num_up_osds'] == 3 and v['pgmap']['num_pgs'] == 32, v
        self.c.wait_healthy()
        assert 'overall' in json.loads(self.c.ceph('versions').out)

    def test_every_report_answers_plain_and_json(self):
        for words in ['osd tree', 'osd df', 'osd df tree', 'osd dump', 'osd stat', 'osd ls', 'osd find 0', 'osd metadata 0', 'osd lspools',
                      'osd pool ls', 'osd pool ls detail', 'osd pool stats', 'osd pool get data all', 'osd map data obj', 'osd crush tree',
                      'osd crush dump', 'osd crush rule ls', 'osd crush rule dump', 'osd crush class ls', 'osd crush show-tunables',
                      'osd perf', 'osd blocklist ls', 'pg dump', 'pg stat', 'pg ls', 'pg map 1.0', 'pg dump pgs_brief', 'pg dump_stuck',
                      'mon dump', 'mon stat', 'quorum_status', 'mgr dump', 'mgr stat', 'df', 'df detail', 'health', 'health detail',
                      'config dump', 'log last', 'fs dump', 'fs ls', 'mds stat', 'fsid', 'features', 'versions', 'node ls', 'time-sync-status',
                      'osd pool autoscale-status', 'osd utilization', 'service dump', 'mgr services', 'mgr module ls', 'osd getmaxosd',
                      'osd erasure-code-profile ls', 'config log', 'config-key ls', 'osd pool application get data', 'balancer status']:
            plain = self.c.ceph(*words.split())
            text = self.c.ceph(*words.split(), '-f', 'json').out
            try:
                json.loads(text)
            except ValueError:
                # Ceph prints these as plain text whatever the format.
                assert words in ('osd utilization', 'osd ls'), (words, text)
            self.c.ceph(*words.split(), '-f', 'json-pretty')

    def test_pools_are_created_changed_renamed_and_deleted(self):
        assert "pool 'p1' created" in self.c.ceph('osd', 'pool', 'create', 'p1', '8').err
        self.c.ceph('osd', 'pool', 'application', 'enable', 'p1', 'rados')
        assert json.loads(self.c.ceph('osd', 'pool', 'application', 'get', 'p1', '-f', 'json').out) == {'rados': {}}
        self.c.ceph('osd', 'pool', 'set', 'p1', 'size', '2')
        assert self.c.json('osd', 'pool', 'get', 'p1', 'size')['size'] == 2
        self.c.rados('-p', 'p1', 'put', 'o', self.sample())
        self.c.ceph('osd', 'pool', 'rename', 'p1', 'p2')
        assert self.c.rados('-p', 'p2', 'get', 'o', '-').out == open(self.sample()).read()
        r = self.c.ceph('osd', 'pool', 'delete', 'p2', check=False)
        assert r.code == 1 and 'EPERM' in r.err and 'yes-i-really' in r.err, r
        self.c.ceph('osd', 'pool', 'delete', 'p2', 'p2', '--yes-i-really-really-mean-it')
        assert 'p2' not in self.c.ceph('osd', 'pool', 'ls').out.split()
        r = self.c.ceph('osd', 'pool', 'get', 'p2', 'size', check=False)
        assert r.code == 2 and "unrecognized pool 'p2'" in r.err, r
        self.c.wait_clean()

    def test_pg_num_grows_with_data_in_place(self):
        self.c.ceph('osd', 'pool', 'create', 'grow', '4')
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('grow') as io:
    for i in range(200): io.write_full(f'o{i}', b'%d' % i)
''')
        self.c.ceph('osd', 'pool', 'set', 'grow', 'pg_num', '16')
        self.c.wait_clean()
        self.c.python('''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('grow') as io:
    assert sorted(o.key for o in io.list_objects()) == sorted(f'o{i}' for i in range(200))
    for i in range(200): assert io.read(f'o{i}') == b'%d' % i, i
''')
        assert self.c.json('osd', 'pool', 'get', 'grow', 'pg_num')['pg_num'] == 16
        self.c.ceph('osd', 'pool', 'delete', 'grow', 'grow', '--yes-i-really-really-mean-it')

    def test_crush_map_is_edited_and_taken_by_crushtool(self):
        self.c.ceph('osd', 'crush', 'add-bucket', 'rackX', 'rack')
        self.c.ceph('osd', 'crush', 'move', 'rackX', 'root=default')
        assert 'rackX' in self.c.ceph('osd', 'tree').out
        self.c.ceph('osd', 'crush', 'rule', 'create-replicated', 'byhost', 'default', 'host')
        assert 'byhost' in self.c.ceph('osd', 'crush', 'rule', 'ls').out
        self.c.ceph('osd', 'crush', 'reweight', 'osd.1', '0.015')
        path = os.path.join(self.scratch, 'crush')
        self.c.ceph('osd', 'getcrushmap', '-o', path)
        if not self.clients.root:
            text = subprocess.run(['crushtool', '-d', path], capture_output=True, text=True, check=True).stdout
            assert 'rackX' in text and 'byhost' in text and 'weight 0.015' in text, text
        self.c.ceph('osd', 'setcrushmap', '-i', path)
        self.c.ceph('osd', 'crush', 'rm', 'rackX')
        self.c.ceph('osd', 'crush', 'rule', 'rm', 'byhost')
        self.c.wait_clean()
        bad = os.path.join(self.scratch, 'bad')
        open(bad, 'wb').write(b'no crush map at all')
        r = self.c.ceph('osd', 'setcrushmap', '-i', bad, check=False)
        assert r.code == 22 and 'EINVAL' in r.err, r

    def test_maps_are_read_by_cephs_own_tools(self):
        if self.clients.root:
            from harness import Skip
            raise Skip('the map tools are those of this machine')
        om, mm = os.path.join(self.scratch, 'om'), os.path.join(self.scratch, 'mm')
        self.c.ceph('osd', 'getmap', '-o', om)
        self.c.ceph('mon', 'getmap', '-o', mm)
        assert 'max_osd 3' in subprocess.run(['osdmaptool', '--print', om], capture_output=True, text=True, check=True).stdout
        assert self.c.ceph('fsid').out.strip() in subprocess.run(['monmaptool', '--print', mm], capture_output=True, text=True, check=True).stdout
        # Ceph's tool, our monitor and our OSDs agree on where an object is.
        where = self.c.json('osd', 'map', 'data', 'hello')
        out = subprocess.run(['osdmaptool', om, '--test-map-object', 'hello', '--pool', str(where['pool_id'])], capture_output=True, text=True).stdout
        assert str(where['acting']).replace(' ', '') in out.replace(' ', ''), (where, out)

    def test_config_database(self):
        self.c.ceph('config', 'set', 'osd', 'osd_max_backfills', '2')
        assert self.c.ceph('config', 'get', 'osd.0', 'osd_max_backfills').out.strip() == '2'
        assert 'osd_max_backfills' in self.c.ceph('config', 'dump').out
        self.c.ceph('config', 'rm', 'osd', 'osd_max_backfills')
        assert 'osd_max_backfills' not in self.c.ceph('config', 'dump').out
        r = self.c.ceph('config', 'set', 'osd', 'osd_max_backfils', '2', check=False)
        assert r.code == 22 and 'osd_max_backfils' in r.err, r

    def test_tell_osd(self):
        assert 'version' in json.loads(self.c.ceph('tell', 'osd.0', 'version').out)
        v = json.loads(self.c.ceph('tell', 'osd.1', 'bench', '1048576', '65536').out)
        assert v['bytes_written'] == 1048576 and v['iops'] > 0, v
        assert json.loads(self.c.ceph('tell', 'osd.0', 'perf', 'dump').out)['osd']
        assert json.loads(self.c.ceph('tell', 'osd.0', 'config', 'show').out)
        assert len(self.c.ceph('tell', 'osd.*', 'version').out.strip().splitlines()) >= 3
        r = self.c.ceph('tell', 'osd.0', 'no', 'such', 'thing', check=False)
        assert r.code == 22 and 'EINVAL' in r.err, r
        assert json.loads(self.c.ceph('tell', 'mon.a', 'mon_status').out)

    def test_pg_query_and_map(self):
        # It may be scrubbed just now.
        v = wait(lambda: (q := json.loads(self.c.ceph('pg', '1.0', 'query').out))['state'] == 'active+clean' and q, 'a clean PG')
        assert len(v['acting']) == 3, v
        assert '1.0' in self.c.ceph('pg', 'map', '1.0').out

    def test_unknown_commands_and_arguments_are_refused(self):
        for words in (['nosuchcommand'], ['osd', 'pool', 'create'], ['osd', 'pool', 'set', 'data', 'no_such_option', '1'],
                      ['osd', 'reweight', '0', '7'], ['osd', 'pool', 'set', 'data', 'size', '0'], ['osd', 'pool', 'set', 'data', 'pg_num', 'many']):
            r = self.c.ceph(*words, check=False)
            assert r.code == 22, (words, r)
        # Past the tool's own check: a command that this monitor does not know.
        out = self.c.python('''
import rados, sys, json
with rados.Rados(conffile=sys.argv[1]) as r:
    print(json.dumps([r.mon_command(c, b'')[0::2] for c in ('{"prefix": "make coffee"}', '{"no": 1}', 'garbage', '[]', '{"prefix": 7}')]))
''').out
        answers = json.loads(out)
        assert all(a[0] == -22 and a[1] for a in answers), answers
        assert 'make coffee' in answers[0][1], answers

    def test_watch_shows_the_cluster_log(self):
        p = subprocess.Popen(self.clients.wrap(['ceph', '-c', self.c.conf, '-w']), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        heard = []
        threading.Thread(target=lambda: heard.extend(p.stdout), daemon=True).start()
        says = lambda text: any(text in line for line in list(heard))

        def told():
            # It watches a moment after it has shown how things stand.
            self.c.ceph('log', 'hello from the test')
            return says('hello from the test')
        try:
            wait(lambda: says('health:'), 'the state that a watcher is shown first')
            wait(told, 'the watcher to be told what was logged')
        finally:
            p.terminate()
            p.wait()
        assert 'hello from the test' in self.c.ceph('log', 'last', '100').out

    def test_quota_is_kept(self):
        self.c.ceph('osd', 'pool', 'create', 'q', '4')
        self.c.ceph('osd', 'pool', 'set-quota', 'q', 'max_objects', '5')
        assert 'max objects: 5' in self.c.ceph('osd', 'pool', 'get-quota', 'q').out
        self.c.ceph('osd', 'pool', 'delete', 'q', 'q', '--yes-i-really-really-mean-it')


BOTH = '''
import json, os, rados, sys
from concurrent.futures import ThreadPoolExecutor
def by(user, key):
    r = rados.Rados(conffile=sys.argv[1], name='client.' + user, conf={'key': key} if key else None); r.connect(); return r
admin = by('admin', None)
def ask(r, way, **cmd):
    code, out, err = getattr(r, way)(json.dumps(dict(cmd, format='json')), cmd.pop('input', b''))
    return -code, out, err
def key(name, **caps):
    flat = [w for pair in caps.items() for w in pair]
    code, out, err = ask(admin, 'mon_command', prefix='auth get-or-create', entity='client.' + name, caps=flat)
    assert code == 0, err
    return json.loads(out)[0]['key']
ways = 'mon_command', 'mgr_command'
# The manager's commands, and those that monitors serve here in its place, by either daemon.
for cmd in (dict(prefix='pg stat'), dict(prefix='pg dump', dumpcontents=['osds']), dict(prefix='osd df'), dict(prefix='service dump'),
            dict(prefix='osd pool autoscale-status'), dict(prefix='fs volume ls'), dict(prefix='crash ls'), dict(prefix='device ls'),
            dict(prefix='osd test-reweight-by-pg'), dict(prefix='osd scrub', who='0')):
    answers = [ask(admin, way, **cmd) for way in ways]
    assert [a[0] for a in answers] == [0, 0], (cmd, answers)
for cmd, code in (dict(prefix='telemetry on'), 95), (dict(prefix='no such command'), 22), (dict(prefix='osd purge', id='77'), 1):
    answers = [ask(admin, way, **cmd) for way in ways]
    assert [a[0] for a in answers] == [code, code], (cmd, answers)
# Many at a time are all answered.
with ThreadPoolExecutor(16) as pool:
    answers = list(pool.map(lambda n: ask(admin, ways[n % 2], prefix='pg dump' if n % 4 < 2 else 'crash ls')[0], range(64)))
assert answers == [0] * 64, answers
# Each daemon goes by the capabilities for itself: what the one has leads no further at the other.
reader = by('reader', key('reader', mon='allow r'))
manila = by('manila', key('manila', mon='allow r', mgr='allow rw'))
for r, way, cmd, code in (
        (reader, 'mon_command', dict(prefix='pg stat'), 0), (reader, 'mon_command', dict(prefix='osd scrub', who='0'), 13),
        (reader, 'mgr_command', dict(prefix='pg stat'), 13), (reader, 'mgr_command', dict(prefix='fs volume ls'), 13),
        (reader, 'mon_command', dict(prefix='fs volume create', name='no'), 13), (reader, 'mgr_command', dict(prefix='fs volume create', name='no'), 13),
        (reader, 'mon_command', dict(prefix='fs volume ls'), 0), (manila, 'mon_command', dict(prefix='osd out', ids=['0']), 13),
        (manila, 'mgr_command', dict(prefix='osd out', ids=['0']), 22), (manila, 'mgr_command', dict(prefix='fs volume create', name='v'), 0)):
    answer = ask(r, way, **cmd)
    assert answer[0] == code, (way, cmd, answer)
assert [f['name'] for f in json.loads(ask(manila, 'mgr_command', prefix='fs volume ls')[1])] == ['v']
print('done', flush=True); os._exit(0)
'''


class EitherDaemon(Case):
    """What comes to the other daemon than the one that serves it, as programs send it that use librados."""
    args = ['--mons', '3']

    def test_commands_are_served_whichever_daemon_is_asked(self):
        self.c.wait_healthy()
        assert self.c.python(BOTH).out.endswith('done\n')
        # In the audit log stands who asked.
        assert "entity='client.manila'" in self.c.ceph('log', 'last', '50', 'info', 'audit').out
        # The `ceph` tool sends it to the monitor, where it goes by the capabilities for the manager.
        self.c.ceph('auth', 'get-or-create', 'client.crash', 'mon', 'profile crash', 'mgr', 'profile crash', '-o', f'{self.scratch}/crash.keyring')
        report = json.dumps({'crash_id': 'c1', 'timestamp': '2026-11-27T15:24:12.130085Z', 'entity_name': 'client.u'})
        own = ['-n', 'client.crash', '-k', f'{self.scratch}/crash.keyring']
        self.c.ceph(*own, 'crash', 'post', '-i', '-', stdin=report)
        assert self.c.ceph(*own, 'crash', 'rm', 'c1', check=False).code == 13
        assert [c['crash_id'] for c in self.c.json('crash', 'ls')] == ['c1']
