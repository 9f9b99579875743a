"""What an administrator and his tools see, through Ceph's own clients; `docs/differences.md` lists what is not as with Ceph."""
import glob, json, os, re, socket, subprocess, time, xml.etree.ElementTree
import harness
from harness import Case, Cluster, Skip
try:
    import yaml
except ImportError:
    yaml = None


def keys(value):
    """Every key of a value, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def plain_name(name):
    """A key with what no name of XML may have replaced: Ceph's formatter makes elements of keys as they are, `<up:standby>` and
    `<ceph_version_16.2.15_(...)>` among them, and so do we."""
    return '_' + re.sub(r'[^\w.-]', '_', name)


def tags(text):
    """Every name in a text of XML, whose elements must end as they begin."""
    tree = xml.etree.ElementTree.fromstring(re.sub(r'<(/?)([^<>]+)>', lambda m: f'<{m[1]}{plain_name(m[2])}>', text))
    return {e.tag for e in tree.iter()}


FORMS = '''
# Asks for each report in each form, and prints what came.
import json, rados, sys
reports = """status|health|health detail=detail|df|df detail=detail|osd df|osd df output_method=tree|osd tree|osd dump|osd stat|osd perf
|osd pool ls detail=detail|osd pool stats|osd crush dump|osd crush tree|osd crush rule dump|osd crush class ls|osd metadata id=0
|osd blocked-by|osd find id=0|osd ls|osd getmaxosd|osd erasure-code-profile ls|osd utilization|osd versions|pg stat|pg dump
|pg dump dumpcontents=pgs_brief|pg ls|mon dump|mon stat|mon metadata|mon versions|quorum_status|mgr dump|mgr stat|mgr metadata
|mgr services|mgr module ls|fs ls|fs dump|mds stat|auth ls|config dump|config ls|config log|config show who=osd.0|versions|version
|features|node ls|time-sync-status|log last|crash ls|report|config-key ls"""
said = {}
with rados.Rados(conffile=sys.argv[1]) as r:
    for report in reports.replace(chr(10), '').split('|'):
        words = report.split()
        cmd = {'prefix': ' '.join(w for w in words if '=' not in w)}
        for key, value in (w.split('=') for w in words if '=' in w):
            cmd[key] = int(value) if value.isdigit() else [value] if key == 'dumpcontents' else value
        said[report] = {}
        for form in ('plain', 'json', 'json-pretty', 'xml', 'xml-pretty', 'yaml'):
            text = json.dumps({**cmd, 'format': form})
            got = r.mon_command(text, b'')
            if got[0] == -22:
                got = r.mgr_command(text, b'')
            # Text comes as the status, too, as with Ceph.
            said[report][form] = [got[0], got[2], got[1].decode() or (got[2] if form in ('plain', 'yaml') else '')]
print(json.dumps(said))
'''


class Admin(Case):
    # OSDs are marked down by order, and say that they live.
    errors_expected = True

    def test_osds_have_the_device_class_of_their_disk(self):
        classes = self.c.json('osd', 'crush', 'class', 'ls')
        told = {m['id']: m['default_device_class'] for m in self.c.json('osd', 'metadata')}
        assert set(classes) == set(told.values()) - {''}, (classes, told)
        for o, klass in told.items():
            if klass:
                assert self.c.ceph('osd', 'crush', 'get-device-class', str(o)).out.strip() == klass
                harness.wait(lambda: klass in self.c.json('df')['stats_by_class'], f'statistics of {klass}')

    def test_plain_json_and_xml(self):
        assert self.c.ceph('version').out.startswith('ceph version 16.2.15')
        assert self.c.json('version')['release'] == 'pacific'
        xml = self.c.ceph('-s', '-f', 'xml').out
        assert xml.startswith('<status>') and '<quorum_names><id>a</id></quorum_names>' in xml, xml
        assert self.c.ceph('pg', 'stat', '-f', 'xml-pretty').out.startswith('<pg_summary>\n')
        assert self.c.ceph('osd', 'getmaxosd', '-f', 'yaml').out == self.c.ceph('osd', 'getmaxosd').out

    def test_reports_have_the_same_keys_in_every_form(self):
        """Each report as text, JSON, XML and YAML: all parse, and XML has the keys that JSON has. YAML, where it is no text, too."""
        self.c.wait_clean()
        # Forms are asked for one after the other, and what is told may change meanwhile: who differs each time is wrong.
        for _ in range(4):
            wrong = self.unlike(json.loads(self.c.python(FORMS).out))
            if not wrong:
                break
        assert not wrong, '\n'.join(wrong)

    def unlike(self, said):
        """What is wrong with reports, or differs between their forms."""
        wrong = []
        for name, got in said.items():
            failed = {f: r[1:] for f, r in got.items() if r[0]}
            if failed:
                wrong.append(f'{name}: {failed}')
                continue
            out = {f: r[2] for f, r in got.items()}
            try:
                told, pretty = (json.loads(out[f]) for f in ('json', 'json-pretty'))
                names = [tags(out[f]) for f in ('xml', 'xml-pretty')]
            except (ValueError, xml.etree.ElementTree.ParseError) as e:
                wrong.append(f'{name}: {e}')
                continue
            if keys(told) != keys(pretty):
                wrong.append(f'{name}: JSON, and pretty: {keys(told) ^ keys(pretty)}')
            lost = set(map(plain_name, keys(told))) - set.intersection(*names)
            if lost:
                wrong.append(f'{name}: not in XML: {sorted(lost)[:8]}')
            if out['yaml'].split() != out['plain'].split() and yaml:
                try:
                    if keys(yaml.safe_load(out['yaml'])) != keys(told):
                        wrong.append(f'{name}: YAML is neither the text nor has the keys of JSON')
                except yaml.YAMLError:
                    # The same text, with other figures by now.
                    if len(out['yaml'].splitlines()) != len(out['plain'].splitlines()):
                        wrong.append(f'{name}: YAML is neither the text nor YAML')
            # Where there is no file system, `mds stat` has nothing to say, as with Ceph.
            if not out['plain'].strip() and told not in ([], {}, None) and name != 'mds stat':
                wrong.append(f'{name}: no text')
        assert len(said) > 45
        return wrong

    def test_options_of_ceph_are_known_and_slips_are_named(self):
        r = self.c.ceph('config', 'set', 'global', 'log_to_file', 'true')
        assert 'no effect' in r.err, r
        assert self.c.ceph('config', 'get', 'osd', 'log_to_file').out.strip() == 'true'
        self.c.ceph('config', 'rm', 'global', 'log_to_file')
        r = self.c.ceph('config', 'set', 'osd', 'bluestore_cache_siz', '1', check=False)
        assert r.code == 22 and "'bluestore_cache_size'" in r.err, r
        assert self.c.ceph('config', 'set', 'mon', 'mon_host', '1.2.3.4', check=False).code == 22
        assert '(ignored)' in self.c.ceph('config', 'help', 'mgr/balancer/active').out
        assert len(self.c.json('config', 'ls')) > 2200
        assert self.c.ceph('config', 'show', 'osd.0', 'osd_max_backfills').out.strip().isdigit()

    def test_daily_words_with_an_osd(self):
        tell = lambda *a, **kw: self.c.ceph('tell', 'osd.0', *a, **kw)
        self.c.rados('-p', 'data', 'put', 'x', self.sample())
        r = tell('injectargs', '--osd_max_backfills=3')
        assert r.out.strip() == '{}' and "osd_max_backfills = '3'" in r.err, r
        assert set(json.loads(tell('perf', 'dump', 'osd', 'op_w').out)) == {'osd'}
        assert set(json.loads(tell('perf', 'dump', 'osd', 'op_w').out)['osd']) == {'op_w'}
        assert tell('flush_pg_stats').out.strip().isdigit()
        json.loads(tell('compact').out)['elapsed_time']
        # Whether any is so slow depends on the machine: only those that are may be named.
        blocked = json.loads(tell('dump_blocked_ops').out)
        assert blocked['num_blocked_ops'] == len(blocked['ops']), blocked
        assert all(op['duration'] >= 10 for op in json.loads(tell('dump_historic_slow_ops').out)['Ops'])
        for cmd in ('dump_mempools', 'list_devices', 'dump_watchers', 'dump_blocklist', 'get_mapped_pools',
                    'dump_scrub_reservations', 'dump_historic_ops_by_duration', 'smart'):
            json.loads(tell(cmd).out)
        ops = [op for o in range(3)
               for op in json.loads(self.c.ceph('tell', f'osd.{o}', 'dump_historic_ops').out)['ops']]
        assert any(op['type_data']['client_info']['client'].startswith('client.') and op['initiated_at'] for op in ops), ops
        led = harness.wait(lambda: [pg for pg in json.loads(tell('dump_pgstate_history').out)['pgs'] if pg['currently'] == 'Primary/active+clean'],
                           'a PG that it leads')
        assert all(pg['history'][-1]['states'][0]['state'] == pg['currently'] for pg in led), led
        assert json.loads(tell('perf', 'reset', 'all').out)['success'] == 'perf reset all'
        assert 'mempool' in json.loads(tell('dump_mempools').out)
        paths = lambda: json.loads(tell('dump_osd_network', '0').out)['entries']
        harness.wait(lambda: len(paths()) > 0, 'a heartbeat')
        assert {'from osd', 'to osd', 'average', 'last'} <= set(paths()[0]), paths()
        told = {row['name']: row['source'] for row in self.c.json('config', 'show', 'osd.0')}
        assert told['admin_socket'] == 'file' and told['fsid'] == 'file', told
        everything = self.c.json('config', 'show-with-defaults', 'osd.0')
        assert len(everything) > 1000 and {'name': 'osd_op_queue', 'value': 'wpq', 'source': 'default'} in everything
        assert socket.gethostname().split('.')[0] in self.c.ceph('osd', 'status').out
        for words in (['heap', 'stats'], ['bluefs', 'stats'], ['debug', 'dump_missing', 'x']):
            assert tell(*words, check=False).code == 95, words
        sock = glob.glob(f'{self.c.dir}/run/ceph-osd.0.asok')[0]
        r = self.c.ceph('daemonperf', sock, '1', '1')
        assert 'osd' in r.out, r

    def test_an_osd_tells_of_its_inside_and_takes_orders(self):
        put = lambda *a: self.c.rados('-p', 'data', *a)
        put('create', 'om')
        put('setomapval', 'om', 'k1', 'v1')
        put('setomapval', 'om', 'k2', 'v2')
        at = self.c.json('osd', 'map', 'data', 'om')['acting_primary']
        tell = lambda *a, **kw: self.c.ceph('tell', f'osd.{at}', *a, **kw)
        assert tell('getomap', 'data', 'om').out.strip() == 'header= key=k1 val=v1 key=k2 val=v2'
        assert tell('getomap', 'data', 'none', check=False).code == 2
        assert tell('getomap', 'nopool', 'om', check=False).code == 2
        cached = lambda: json.loads(tell('cache', 'status').out)
        assert cached()['bluestore_onode'] > 0, cached()
        before = cached()['bluestore_onode']
        tell('cache', 'drop')
        assert cached()['bluestore_onode'] < before, (before, cached())
        assert put('getomapval', 'om', 'k1').code == 0 and tell('getomap', 'data', 'om').out.count('key=') == 2
        assert 0 <= json.loads(tell('bluestore', 'allocator', 'score', 'block').out)['fragmentation_rating'] <= 1
        assert set(json.loads(tell('dump_op_pq_state').out)['OSD:ShardedOpWQ:0']) == {'high_queues', 'queues'}
        tell('send_beacon')
        stood = json.loads(tell('dump_pg_recovery_stats').out)
        assert any(row['nested_states'] == ['Started', 'Primary', 'active+clean'] for row in stood), stood
        tell('reset_pg_recovery_stats')
        assert len(json.loads(tell('dump_pg_recovery_stats').out)) < len(stood)
        put('rm', 'om')

    def test_monitor_and_manager_take_ceph_s_orders(self):
        assert self.c.ceph('tell', 'mon.a', 'compact').out.startswith('compacted ')
        mgr = json.loads(self.c.ceph('tell', 'mgr.x', 'status').out)
        assert mgr['id'] == mgr['inst']['name']['num'] and mgr['addr_str'].startswith('127.0.0.1:') and not mgr['blocklisted'], mgr
        # Where the machine has much to do, some path may have been slow.
        slow = json.loads(self.c.ceph('tell', 'mgr.x', 'dump_osd_network').out)
        assert slow['threshold'] == 1000 and isinstance(slow['entries'], list), slow
        self.c.wait_clean()
        told = self.c.json('report')
        assert {row['osd'] for row in told['num_pg_by_osd']} == {0, 1, 2} and told['auth']['num_secrets'] > 0
        assert sum(row['num_primary_pg'] for row in told['num_pg_by_osd']) == told['num_pg'], told['num_pg_by_osd']
        assert sum(s['num_osds'] for s in told['osd_sum_by_class'].values()) == told['osd_sum']['num_osds'] == 3
        self.c.ceph('osd', 'set', 'notieragent')
        assert 'notieragent flag(s) set' in self.c.ceph('health', 'detail').out
        self.c.ceph('osd', 'unset', 'notieragent')
        for var in ('recovery_op_priority', 'scrub_priority'):
            self.c.ceph('osd', 'pool', 'set', 'data', var, '7')
            assert self.c.ceph('osd', 'pool', 'get', 'data', var).out.strip() == f'{var}: 7'
        # In a pool that is no cache, as Ceph answers.
        self.c.rados('-p', 'data', 'put', 'x', self.sample())
        for word in ('cache-flush', 'cache-evict'):
            r = self.c.rados('-p', 'data', word, 'x', check=False)
            assert r.code == 1 and '(22)' in r.err, r
        self.c.rados('-p', 'data', 'tier-promote', 'x')

    def test_the_log_tells_of_downs_and_health(self):
        # Without `noup` the OSD could boot again before the monitor looked at
        # health, and neither line about health would be written.
        self.c.ceph('osd', 'set', 'noup')
        self.c.ceph('osd', 'down', '0')
        self.log_has('Client client.admin marked osd.0 down', 'Health check failed: 1 osds down (OSD_DOWN)')
        self.c.ceph('osd', 'unset', 'noup')
        self.c.wait_clean()
        self.log_has('Health check cleared: OSDMAP_FLAGS', 'Health check cleared: OSD_DOWN')

    def test_the_monitors_states_are_compared(self):
        self.c.ceph('mon', 'scrub')
        self.log_has('scrub ok on a: ScrubResult(keys {')

    def test_the_log_is_dumped_and_reopened(self):
        path, old = os.path.join(self.c.dir, 'spirula.log'), os.path.join(self.c.dir, 'spirula.log.1')
        os.rename(path, old)
        assert self.c.json('tell', 'osd.0', 'log', 'reopen') == {}
        # Whatever happens meanwhile is in the new one.
        size = os.path.getsize(old)
        with open(old) as f:
            first = f.readline()
        assert os.stat(path).st_mode & 0o077 == 0 and first and first not in open(path).read()
        assert self.c.json('tell', 'mon.a', 'log', 'dump') == {}
        # Also what is not written when it happens.
        assert 'begin dump of recent events' in self.c.log() and 'role=Leader' in self.c.log(), self.c.log()
        assert 'role=Leader' not in open(old).read() and os.path.getsize(old) == size

    def test_a_pool_takes_zlib_and_short_checksums(self):
        self.c.ceph('osd', 'pool', 'create', 'z', '8', '8')
        for var, value in (('compression_mode', 'force'), ('compression_algorithm', 'zlib'), ('csum_type', 'crc32c_8')):
            self.c.ceph('osd', 'pool', 'set', 'z', var, value)
        text = os.path.join(self.scratch, 'z')
        with open(text, 'w') as f:
            f.write('words that are said again and again. ' * 20000)
        self.c.rados('-p', 'z', 'put', 'o', text)
        self.c.rados('-p', 'z', 'get', 'o', text + '.back')
        assert open(text).read() == open(text + '.back').read()
        under = lambda: next(p for p in self.c.json('df', 'detail')['pools'] if p['name'] == 'z')['stats']['compress_under_bytes']
        harness.wait(lambda: under() > 1000000, lambda: f'compressed bytes: {under()}')

    def test_who_watches_is_told_as_it_happens(self):
        watch = os.path.join(self.scratch, 'watched')
        with open(watch, 'w') as out:
            w = subprocess.Popen([*self.c.clients.wrap(['ceph', '-c', self.c.conf, '-w'])], stdout=out,
                                 stderr=subprocess.STDOUT)
        told = lambda *lines: all(line in open(watch).read() for line in lines)
        try:
            def listens():
                # It watches a moment after it has shown how things stand.
                self.c.ceph('log', 'somebody speaks')
                return told('services:', 'somebody speaks')
            harness.wait(listens, 'the status that ceph -w begins with, and the log')
            self.c.ceph('osd', 'set', 'noup')
            for word, what in (('out', 'out'), ('in', 'in'), ('down', 'down')):
                self.c.ceph('osd', word, '1')
                harness.wait(lambda: told(f'Client client.admin marked osd.1 {what}'),
                             lambda: f'{word} in ceph -w: {open(watch).read()}')
            harness.wait(lambda: told('Health check failed: 1 osds down (OSD_DOWN)'), 'the health check')
            self.c.ceph('osd', 'unset', 'noup')
            harness.wait(lambda: told('osd.1 ', ' boot', 'Health check cleared: OSD_DOWN'),
                         lambda: f'the boot: {open(watch).read()}')
        finally:
            w.kill()
            w.wait()
        self.c.wait_clean()

    def log_has(self, *lines):
        """Waits until the cluster log has each of `lines`."""
        text = lambda: self.c.ceph('log', 'last', '100').out
        harness.wait(lambda: all(line in (now := text()) for line in lines), lambda: f'{lines}: {text()}', pause=0.25)

    def test_an_erasure_coded_pool_of_one_host_gets_clean(self):
        self.c.ceph('osd', 'pool', 'create', 'ecdef', '4', '4', 'erasure')
        self.c.wait_clean()
        self.c.rados('-p', 'ecdef', 'put', 'x', self.sample())
        assert self.c.rados('-p', 'ecdef', 'get', 'x', '-').out == open(self.sample()).read()


class Sources(Case):
    """Whoever set an option is named: the monitors, the file, an order to the running daemon, the environment, or nobody."""
    args = ['--osds', '1']

    def row(self, name, who='osd.0'):
        """What `config show` says of an option: its value, who set it, and whom that overrides; None if nobody did."""
        rows = {r['name']: r for r in self.c.json('config', 'show', who)}
        r = rows.get(name)
        return r and (r['value'], r['source'], [(o['source'], o['value']) for o in r.get('overrides', [])])

    def becomes(self, name, want, who='osd.0'):
        """The manager hears of a change with the daemon's next report."""
        harness.wait(lambda: self.row(name, who) == want, lambda: f'{who}, {name}: {self.row(name, who)}, not {want}')

    def told(self, name, who='osd.0'):
        """The same by the daemon itself: by source."""
        diff = self.c.json('tell', who, 'config', 'diff')['diff'].get(name, {})
        return {source: value for source, value in diff.items() if source != 'default'}

    def test_1_the_monitors(self):
        # The manager tells of daemons that have reported to it.
        harness.wait(lambda: self.c.ceph('config', 'show', 'osd.0', check=False).code == 0, 'a report of osd.0')
        assert self.row('osd_max_backfills') is None
        self.c.ceph('config', 'set', 'osd', 'osd_max_backfills', '5')
        self.becomes('osd_max_backfills', ('5', 'mon', []))
        assert self.told('osd_max_backfills') == {'mon': '5', 'final': '5'}
        # Those of one daemon count more than those of its kind, and both are the monitors'.
        self.c.ceph('config', 'set', 'osd.0', 'osd_max_backfills', '6')
        self.becomes('osd_max_backfills', ('6', 'mon', []))
        table = self.c.ceph('config', 'show', 'osd.0').out.splitlines()
        assert table[0].split() == ['NAME', 'VALUE', 'SOURCE', 'OVERRIDES', 'IGNORES'], table
        assert ['osd_max_backfills', '6', 'mon'] in [l.split() for l in table], table

    def test_2_an_order_to_the_daemon_overrides_the_monitors(self):
        self.c.ceph('tell', 'osd.0', 'injectargs', '--osd_max_backfills=7 --osd_recovery_sleep=0.5')
        self.becomes('osd_max_backfills', ('7', 'override', [('mon', '6')]))
        self.becomes('osd_recovery_sleep', ('0.500000', 'override', []))
        assert self.told('osd_max_backfills') == {'mon': '6', 'override': '7', 'final': '7'}
        self.c.ceph('tell', 'osd.0', 'config', 'set', 'osd_max_backfills', '8')
        self.becomes('osd_max_backfills', ('8', 'override', [('mon', '6')]))
        table = self.c.ceph('config', 'show', 'osd.0').out.splitlines()
        assert ['osd_max_backfills', '8', 'override', 'mon[6]'] in [l.split() for l in table], table
        # What nobody set is a default.
        rows = self.c.json('config', 'show-with-defaults', 'osd.0')
        assert {'name': 'osd_op_queue', 'value': 'wpq', 'source': 'default'} in rows
        assert next(r['source'] for r in rows if r['name'] == 'osd_max_backfills') == 'override'

    def test_3_the_file_counts_more_than_the_monitors_and_orders_end_with_the_process(self):
        self.c.down()
        with open(self.c.conf, 'a') as f:
            f.write('osd_max_backfills = 9\nosd_recovery_max_active = 11\n[osd.1]\nosd_max_scrubs = 3\n'
                    '[mgr]\nmgr_stats_period = 4\n[mon]\nmon_max_pg_per_osd = 333\n')
        os.environ['SPIRULA_OSD_MIN_PG_LOG_ENTRIES'] = '300'
        try:
            self.c.up()
        finally:
            del os.environ['SPIRULA_OSD_MIN_PG_LOG_ENTRIES']
        self.becomes('osd_max_backfills', ('9', 'file', [('mon', '6')]))
        self.becomes('osd_recovery_max_active', ('11', 'file', []))
        assert self.told('osd_max_backfills') == {'mon': '6', 'file': '9', 'final': '9'}
        # An order ends with its process; what is another daemon's is not this one's.
        assert self.row('osd_recovery_sleep') is None and self.row('osd_max_scrubs') is None
        assert self.row('osd_min_pg_log_entries') == ('300', 'env', [])
        self.becomes('mgr_stats_period', ('4', 'file', []), 'mgr.x')
        assert self.row('mgr_stats_period') is None
        assert self.told('mon_max_pg_per_osd', 'mon.a') == {'file': '333', 'final': '333'}

    def test_4_what_is_taken_back_shows_what_was_below(self):
        self.c.ceph('tell', 'osd.0', 'injectargs', '--osd_max_backfills=7')
        self.becomes('osd_max_backfills', ('7', 'override', [('file', '9'), ('mon', '6')]))
        self.c.ceph('tell', 'osd.0', 'config', 'unset', 'osd_max_backfills')
        self.becomes('osd_max_backfills', ('9', 'file', [('mon', '6')]))
        self.c.ceph('config', 'rm', 'osd.0', 'osd_max_backfills')
        self.becomes('osd_max_backfills', ('9', 'file', [('mon', '5')]))
        self.c.ceph('config', 'rm', 'osd', 'osd_max_backfills')
        self.becomes('osd_max_backfills', ('9', 'file', []))


class AdminUp(Case):
    start = False

    def test_a_taken_port_leaves_a_directory_that_takes_another(self):
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            s.listen()
            d = Cluster(self.scratch, self.clients, 'taken', args=['--osds', '1'])
            free, d.port = d.port, s.getsockname()[1]
            r = d.up(check=False)
            assert r.code == 1 and str(d.port) in r.err and not os.path.exists(f'{d.dir}/cluster.json'), r
        d.port = free
        d.up()
        d.down()

    def test_a_reader_that_leaves_is_no_error(self):
        for shell in ('bash', 'zsh'):
            r = subprocess.run(f'{harness.BINARY} completions {shell} | head -1', shell=True, capture_output=True, text=True)
            assert r.stderr == '' and r.stdout, r
        d = Cluster(self.scratch, self.clients, 'head', args=['--osds', '1'])
        r = subprocess.run(f'{harness.BINARY} up --dir {d.dir} --osds 1 --port {d.port} --detach | head -1',
                           shell=True, capture_output=True, text=True)
        assert 'panicked' not in r.stderr, r
        harness.wait(lambda: d.spirula('down', '--dir', d.dir, check=False).code == 0, d.log)

    def test_another_clusters_conf_is_refused_by_name(self):
        d = Cluster(self.scratch, self.clients, 'other', args=['--osds', '1'])
        d.up()
        d.down()
        text = open(d.conf).read()
        other = '11111111-2222-3333-4444-555555555555'
        fsid = next(l.split('=')[1].strip() for l in text.splitlines() if l.startswith('fsid'))
        with open(d.conf, 'w') as f:
            f.write(text.replace(fsid, other))
        r = d.up(check=False)
        assert r.code == 1 and other in r.err and fsid in r.err, r
        assert other in open(d.conf).read()

    def test_few_descriptors_are_raised_or_refused_in_words(self):
        d = Cluster(self.scratch, self.clients, 'few')
        up = f'{harness.BINARY} up --dir {d.dir} --osds 1 --port {d.port} --detach'
        r = subprocess.run(['bash', '-c', f'ulimit -Sn 64 && {up}'], capture_output=True, text=True)
        assert r.returncode == 0, r
        d.down()
        r = subprocess.run(['bash', '-c', f'ulimit -n 64 && {up}'], capture_output=True, text=True)
        assert r.returncode == 1 and 'ulimit -n' in r.stderr, r

    def test_more_connections_than_descriptors_are_refused_in_words(self):
        """With hardly more files than a start needs, more connections than that: those beyond are refused, a line says so, not one for
        each, and who is there already goes on."""
        d = Cluster(self.scratch, self.clients, 'full')
        up = f'{harness.BINARY} up --dir {d.dir} --osds 1 --port {d.port} --detach'
        r = subprocess.run(['bash', '-c', f'ulimit -n 180 && {up}'], capture_output=True, text=True)
        assert r.returncode == 0, r
        pid = d.pid()
        assert ['180', '180'] == next(l.split()[3:5] for l in open(f'/proc/{pid}/limits') if l.startswith('Max open files'))
        there = subprocess.Popen(self.clients.python() + ['-c', """
import rados, sys, time
with rados.Rados(conffile=sys.argv[1], conf={'rados_osd_op_timeout': '240'}) as r, r.open_ioctx('data') as io:
    n = 0
    for word in iter(sys.stdin.readline, ''):
        for _ in range(20):
            io.write_full('there', b'%d' % n)
            assert io.read('there') == b'%d' % n
            n += 1
        print(n, flush=True)
""", d.conf], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def works(n):
            there.stdin.write('on\n')
            there.stdin.flush()
            assert there.stdout.readline() == f'{n}\n', there.communicate()

        mine = []
        try:
            works(20)
            lines, begun = d.log().count('\n'), time.monotonic()
            for _ in range(900):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex(('127.0.0.1', d.port))
                mine.append(s)
            said = lambda: d.log().splitlines()[lines:]
            harness.wait(lambda: any("'ulimit -n'" in l for l in said()), lambda: f"'ulimit -n' in {said()}")
            # Who is there already is answered behind all of them, of which there is no more to say then.
            works(40)
            harness.wait(lambda: len(said()) == (time.sleep(1) or len(said())), 'an end of what is said', pause=0)
            assert len(os.listdir(f'/proc/{pid}/fd')) < 180
            # A place in the code writes 100 lines in 10 s, and then one that says how many were left out; few others have any.
            most = 150 * (2 + (time.monotonic() - begun) // 10)
            print(f'figure: {len(said())} lines of log of 900 connections')
            assert len(said()) < most, f'{len(said())} lines of 900 connections, of {most}: {said()[-5:]}'
        finally:
            for s in mine:
                s.close()
            there.kill()
            there.communicate()
        harness.wait(lambda: d.ceph('health', check=False).code == 0, 'a client that is let in')
        d.rados('-p', 'data', 'put', 'x', self.sample())
        assert d.pid() == pid and not harness.gone(pid)
        assert not [l for l in d.log().splitlines() if 'panicked' in l]
        d.down()


WRITERS = '''
# 32 writers of objects of all sizes, for 12 s.
import rados, sys, threading, time
def write(n):
    with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('data') as io:
        end, i = time.monotonic() + 12, 0
        while time.monotonic() < end:
            size = (4 << 20, 64 << 10, 4096, 1 << 20)[(n + i) % 4]
            waiting = [io.aio_write_full(f'm{n}.{i % 3}.{k}', b'x' * size) for k in range(4)]
            [w.wait_for_complete() for w in waiting]
            assert all(w.get_return_value() == 0 for w in waiting)
            i += 1
ts = [threading.Thread(target=write, args=(n,)) for n in range(32)]
[t.start() for t in ts]
[t.join() for t in ts]
'''


def group_of_200_mib():
    """A control group that may have so much memory: its folder, and the file in which the kernel counts whom it killed there."""
    mine = [l.strip().split(':', 2) for l in open('/proc/self/cgroup')]
    roots = []
    for _, kinds, path in mine:
        if 'memory' in kinds.split(','):
            roots += [('/sys/fs/cgroup/memory' + path, 'memory.limit_in_bytes', 'memory.oom_control')]
        elif not kinds:
            # Below a group that has processes version 2 lets nobody have a limit: from the root on.
            roots += [('/sys/fs/cgroup', 'memory.max', 'memory.events')]
    for root, limit, killed in roots:
        at = os.path.join(root, f'spirula-e2e-{os.getpid()}')
        try:
            os.mkdir(at)
        except OSError:
            continue
        try:
            with open(os.path.join(at, limit), 'w') as f:
                f.write(str(200 << 20))
            return at, os.path.join(at, killed)
        except OSError:
            os.rmdir(at)
    raise Skip('no control group of memory can be made here (neither of version 1 nor of 2)')


class Grouped(Case):
    """A control group of 200 MiB, as a container has, and nobody says `--memory`."""
    start = False

    def test_what_the_group_allows_is_found_and_kept(self):
        at, killed = group_of_200_mib()
        d = Cluster(self.scratch, self.clients, 'group')
        try:
            up = f'echo $$ > {at}/cgroup.procs && exec {harness.BINARY} up --dir {d.dir} --osds 3 --osd-size 2G --port {d.port} --detach'
            r = subprocess.run(['bash', '-c', up], capture_output=True, text=True)
            assert r.returncode == 0, r
            pid = d.pid()
            assert str(pid) in open(f'{at}/cgroup.procs').read().split(), 'the cluster is in the group'
            d.wait_clean()
            p, most, end = d.python(WRITERS, wait=False), 0, time.monotonic() + 900
            resident = lambda: next(int(l.split()[1]) << 10 for l in open(f'/proc/{pid}/status') if l.startswith('VmRSS'))
            try:
                while p.poll() is None:
                    assert not harness.gone(pid), f'killed: {open(killed).read()}'
                    assert time.monotonic() < end, 'the writers stand still'
                    most = max(most, resident())
                    time.sleep(0.02)
            finally:
                p.kill()
                err = p.communicate()[1]
            assert p.returncode == 0, err[-2000:]
            print(f'figure: {most >> 20} MiB of the 180 that a group of 200 MiB gives', flush=True)
            # What is kept is judged by the kernel: it ends whoever takes more than the group has. What was found is told.
            limit = json.loads(d.spirula('status', '--dir', d.dir, '--json').out)['memory_limit']
            assert limit <= 180 << 20, f'{limit >> 20} MiB'
            count = next((l.split()[1] for l in open(killed) if l.split()[0] == 'oom_kill'), '0')
            assert count == '0' and d.pid() == pid and not harness.gone(pid), open(killed).read()
        finally:
            d.down(check=False)
            harness.wait(lambda: not open(f'{at}/cgroup.procs').read(), 'an empty group')
            os.rmdir(at)


class Space(Case):
    """`osd df`, `ceph df`, `perf dump` and the host's disk tell the same of how full OSDs are, within 2 per cent."""

    def told(self):
        """Bytes used, by OSD: by `osd df`, by `perf dump`, on the host; and by `ceph df` of all."""
        nodes = {n['id']: n for n in self.c.json('osd', 'df')['nodes']}
        perf = {o: json.loads(self.c.ceph('tell', f'osd.{o}', 'perf', 'dump').out) for o in nodes}
        stores = {o: [os.path.join(path, name) for path, _, names in os.walk(f'{self.c.dir}/osd.{o}') for name in names]
                  for o in nodes}
        rows = {o: {'osd df': nodes[o]['kb_used'] << 10,
                    'its columns': (nodes[o]['kb_used_data'] + nodes[o]['kb_used_omap'] + nodes[o]['kb_used_meta']) << 10,
                    'perf dump': perf[o]['osd']['stat_bytes_used'],
                    'its parts': sum(perf[o][logger][name] for logger, name in (
                        ('bluestore', 'bluestore_allocated'), ('bluefs', 'db_used_bytes'), ('bluefs', 'wal_used_bytes'))),
                    'disk': sum(os.stat(f).st_blocks * 512 for f in stores[o])} for o in nodes}
        rows['all'] = {'osd df': sum(n['kb_used'] << 10 for n in nodes.values()),
                       'ceph df': self.c.json('df')['stats']['total_used_raw_bytes'],
                       'disk': sum(row['disk'] for row in rows.values())}
        return rows

    def agrees(self, when, least=0):
        """Waits until all agree, and at least so many bytes are used on each OSD."""
        def near():
            rows = self.told()
            near.rows = rows
            apart = [o for o, row in rows.items() if max(row.values()) > 1.02 * min(row.values())]
            return not apart and min(row['osd df'] for row in rows.values()) >= least
        near.rows = None
        harness.wait(near, lambda: f'{when}: {near.rows}', pause=1)

    def test_1_empty_filled_and_emptied(self):
        self.agrees('empty')
        # Each ends when its objects are written, long before its time is over.
        self.c.rados('bench', '-p', 'data', '600', 'write', '-b', '4M', '-t', '4', '--max-objects', '40', '--no-cleanup',
                     '--run-name', 'big', timeout=900)
        self.agrees('large objects', 160 << 20)
        self.c.rados('-p', 'data', 'cleanup', '--run-name', 'big')
        self.agrees('emptied')
        self.c.rados('bench', '-p', 'data', '600', 'write', '-b', '4096', '-t', '16', '--max-objects', '3000', '--no-cleanup',
                     '--run-name', 'small', timeout=900)
        self.agrees('small objects', 75 << 20)

    def test_2_what_a_restart_finds(self):
        self.c.rados('bench', '-p', 'data', '600', 'write', '-b', '1M', '-t', '4', '--max-objects', '60', '--no-cleanup', timeout=900)
        self.c.down()
        self.c.up()
        self.c.wait_clean()
        self.agrees('started again', 60 << 20)

    def test_3_an_osds_metadata_tell_of_its_store(self):
        m = self.c.json('osd', 'metadata', '0')
        assert m['bluestore_bdev_path'] == f'{self.c.dir}/osd.0/block' and m['bluestore_bdev_access_mode'] == 'file', m
        assert (m['bluefs'], m['bluefs_single_shared_device'], m['bluefs_dedicated_wal']) == ('0', '1', '0'), m
        assert int(m['bluestore_bdev_size']) <= os.stat(m['bluestore_bdev_path']).st_size, m
        assert m['created_at'].startswith('20') and 'spirula' in m['ceph_version_when_created'], m
        again = self.c.json('osd', 'metadata', '0')['created_at']
        self.c.down()
        self.c.up()
        harness.wait(lambda: self.c.json('osd', 'metadata', '0').get('created_at') == again, 'the same time of creation')
