"""The lab: `spirula bench` measures, leaves nothing behind (also when it is killed), and says clearly what is wrong; `spirula drill`
breaks things and puts them back; `spirula report` makes a page that needs nothing but itself."""
import csv, json, os, pty, re, shutil, signal, struct, subprocess, time, zlib
import xml.etree.ElementTree as ET
import harness, netns
from harness import Case, wait
from test_processes import Hosts, OsdHosts


class Objects(Case):
    args = ['--osds', '3', '--osd-size', '2G']

    def bench(self, *words, check=True, timeout=900):
        return self.c.spirula('bench', *words, timeout=timeout, check=check)

    def result(self, name):
        with open(os.path.join(self.scratch, name, 'result.json')) as f:
            return json.load(f)

    def objects(self, pool):
        return self.c.rados('-p', pool, 'ls').out.split()

    def test_1_loads_are_measured_and_their_objects_go(self):
        self.c.ceph('osd', 'pool', 'create', 'mine', '8')
        out = os.path.join(self.scratch, 'first')
        said = self.bench('objects', 'write', 'seq', 'rand', 'mixed', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-O', '16K', '-s', '1',
                          '--warm-up', '1', '--repeats', '2', '--objects', '64', '--generators', '2', '--out', out).out
        v = self.result('first')
        assert [r['mode'] for r in v['runs']] == ['write', 'seq', 'rand', 'mixed'] * 2 and [r['repeat'] for r in v['runs']] == [0] * 4 + [1] * 4
        for r in v['runs']:
            f = r['found']
            assert f['ops'] > 0 and f['errors'] == 0 and f['bytes'] == f['ops'] * 4096, r
            assert sum(s['ops'] for s in f['series']) == f['ops'] == sum(n for _, n in f['histogram_ms']), f
            assert 0 < f['latency_ms']['p50'] <= f['latency_ms']['p99'] <= f['latency_ms']['max'] * 1.01
            assert r['bottleneck']['what'] and r['bottleneck']['evidence']
            assert any(d['name'].endswith(self.c.dir) for d in r['used']['daemons']), r['used']
            # Cluster and client talk over the loopback.
            assert any(n['name'] == 'lo' and n['in_bytes_per_s'] > 0 for n in r['used']['nets']), r['used']['nets']
            assert r['used']['series'] and all({'busy', 'iowait', 'disk_bytes_per_s', 'net_bytes_per_s'} <= set(x) for x in r['used']['series']), r['used']
        # Reading 64 small objects in turn takes milliseconds, and a busy machine may leave a daemon less than a clock's tick of a second.
        assert any(d['cpu_us_per_op'] > 0 for r in v['runs'] for d in r['used']['daemons'] if d['name'].endswith(self.c.dir)), v['runs']
        # There are 32 at least, as many as are in flight: that all of them read comes about once in ninety thousand runs.
        assert all(0 < r['found']['reads'] < r['found']['ops'] for r in v['runs'] if r['mode'] == 'mixed')
        assert all(r['found']['reads'] == (0 if r['mode'] == 'write' else r['found']['ops']) for r in v['runs'] if r['mode'] != 'mixed')
        assert 'mixed 70/30 4 KiB in 16 KiB, 2 × 16 in flight' in said and v['command'].endswith(out), said
        with open(os.path.join(out, 'summary.csv')) as f:
            rows = list(csv.DictReader(f))
        assert len(rows) == 8 and all(float(row['daemons_cpu_us_per_op']) >= 0 and float(row['iowait']) >= 0 and row['bottleneck'] for row in rows), rows
        assert any(float(row['daemons_cpu_us_per_op']) > 0 for row in rows), rows
        # Looking at the machine takes some of it, and says how much.
        share = [r['used']['watching_cpu_s'] / r['used']['seconds'] for r in v['runs']]
        print(f'figure: looking at the machine takes {100 * max(share):.1f} % of a core at most (2 are little)')
        assert min(share) > 0, share
        assert self.objects('mine') == []
        # Nothing is written over.
        assert 'holds a result already' in self.bench('objects', '--dir', self.c.dir, '--out', out, check=False).err

    def test_2_a_pool_of_its_own_and_a_rate(self):
        self.bench('objects', 'write', '--dir', self.c.dir, '-b', '4K', '-s', '2', '--rate', '50', '--out', os.path.join(self.scratch, 'rate'))
        v = self.result('rate')
        self.paced(v['runs'][0]['found'])
        assert v['pool']['name'] == 'spirula-bench' and v['pool']['size'] == 3 and v['pool']['osds'] == 3, v['pool']
        left = [p for p in self.c.json('osd', 'pool', 'ls') if p.startswith('spirula-bench')]
        assert not left or self.objects('spirula-bench') == []

    def paced(self, found):
        """50 a second for 2 s: so many were due whatever the machine has to do, and each was done or counts as missed."""
        print(f'figure: {found["ops"]} done and {found["missed"]} missed of 100')
        assert found['ops'] > 0 and 99 <= found['ops'] + found['missed'] <= 101, found

    def test_3_who_is_killed_leaves_nothing_for_long(self):
        def killed():
            p = subprocess.Popen([harness.BINARY, 'bench', 'objects', 'write', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '900',
                                  '--out', os.path.join(self.scratch, f'killed-{time.time()}')], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            wait(lambda: len(self.objects('mine')) > 50, 'objects of a run')
            return p
        p = killed()
        assert '1 are under way' in self.bench('clean', '--dir', self.c.dir, '-p', 'mine').out, 'what lives is left alone'
        p.kill()
        p.wait()
        assert len(self.objects('mine')) > 50
        self.bench('objects', 'write', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '1', '--out', os.path.join(self.scratch, 'next'))
        assert self.objects('mine') == []
        p = killed()
        p.kill()
        p.wait()
        assert 'what 1 runs' in self.bench('clean', '--dir', self.c.dir, '-p', 'mine').out
        assert self.objects('mine') == []
        # Who is asked to end cleans up by itself.
        p = killed()
        p.send_signal(signal.SIGTERM)
        assert p.wait(240) == 1
        assert self.objects('mine') == []

    def test_4_bad_input_is_told(self):
        def refused(*words):
            r = self.bench(*words, check=False)
            assert r.code in (1, 2), r
            return r.err
        assert "no pool 'nowhere'; the cluster has" in refused('objects', '--dir', self.c.dir, '-p', 'nowhere')
        assert 'no monitor answers; asked were v2:127.0.0.1:1' in refused('objects', '--conf', self.conf_of('127.0.0.1:1'))
        assert 'No such file' in refused('objects', '--conf', os.path.join(self.scratch, 'none'))
        assert 'is no multiple' in refused('objects', '--dir', self.c.dir, '-b', '4K', '-O', '5K')
        assert "'9G' is no size" in refused('objects', '--dir', self.c.dir, '-b', '9G')
        self.c.ceph('osd', 'pool', 'set-quota', 'mine', 'max_objects', '20')
        # The quota is looked at when the manager has counted.
        err = refused('objects', 'write', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '600')
        assert 'no space left' in err or 'is full' in err, err
        self.c.ceph('osd', 'pool', 'set-quota', 'mine', 'max_objects', '0')
        wait(lambda: self.objects('mine') == [], 'an empty pool')

    def test_5_generators_that_are_processes(self):
        """A load is spread over processes, as it is over hosts by ssh; what they find is added up, and what they wrote goes."""
        def run(name, *words, check=True):
            return self.bench('objects', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '2', '--out', os.path.join(self.scratch, name), *words, check=check)
        said = run('spread', 'write', 'rand', '--objects', '64', '--on', 'localhost,other', '--via', f'env HOST={{}} {harness.BINARY}').out
        v = self.result('spread')
        for r in v['runs']:
            f = r['found']
            assert r['generators'] == 2 and f['ops'] > 0 and f['errors'] == 0 and f['bytes'] == f['ops'] * 4096, r
            assert sum(s['ops'] for s in f['series']) == f['ops'] == sum(n for _, n in f['histogram_ms']), f
            assert r['used']['client_cpu_s'] > 0
        assert 'rand 4 KiB, 2 × 16 in flight' in said and self.objects('mine') == [], said
        run('paced', 'write', '--on', 'localhost', '--generators', '2', '--rate', '50')
        self.paced(self.result('paced')['runs'][0]['found'])
        for words, why in ((['--on', 'far', '--via', 'false {}'], 'the generator on far ended'), (['--on=-oProxyCommand=x'], 'is no host'),
                           (['--on', 'far', '--via', 'echo {}'], 'it said: far bench generator'), (['--on', 'far', '--via', '/nonexistent {}'], 'start a generator by')):
            r = run(f'refused-{time.time()}', 'write', *words, check=False)
            assert r.code in (1, 2) and why in r.err, (words, r)
        # Whoever measures is killed: its generators end with it, and the next run clears away what they wrote.
        p = subprocess.Popen([harness.BINARY, 'bench', 'objects', 'write', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '900', '--on', 'localhost',
                              '--generators', '2', '--out', os.path.join(self.scratch, 'killed')], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait(lambda: len(self.objects('mine')) > 50, 'objects of generators')
        p.kill()
        p.wait()
        def generators():
            out = subprocess.run(['pgrep', '-f', f'bench generator --conf {os.path.realpath(self.c.dir)}'], capture_output=True, text=True).stdout
            return out.split()
        wait(lambda: not generators(), 'the end of its generators')
        assert 'what 1 runs' in self.bench('clean', '--dir', self.c.dir, '-p', 'mine').out
        assert self.objects('mine') == []

    def test_6_how_many_in_flight_are_enough(self):
        out = os.path.join(self.scratch, 'knee')
        r = self.bench('objects', 'rand', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '1', '--objects', '32', '--find-knee', '--out', out)
        v = self.result('knee')
        tried = {run['threads']: run['found']['iops'] for run in v['runs']}
        assert list(tried) == [1 << n for n in range(len(tried))] and len(tried) >= 3, tried
        best = max(tried.values())
        # Whatever was measured, this is the rule by which it is chosen. Rates are rounded in a result.
        rounded = 0.2
        assert abs(v['knee']['iops'] - best) < rounded and tried[v['knee']['in_flight']] >= 0.95 * best - rounded, v['knee']
        assert all(tried[t] < 0.95 * best + rounded for t in tried if t < v['knee']['in_flight']), (tried, v['knee'])
        # It ended because two in a row gave no more, or nothing more can be in flight.
        rates = list(tried.values())
        assert len(rates) == 11 or all(rates[n] < 1.05 * max(rates[:n]) + rounded for n in (-2, -1)), tried
        assert f'{v["knee"]["in_flight"]} in flight are enough' in r.err, r
        # Plain lines in a pipe: nothing for a terminal.
        assert not re.search('[\r\x1b\u2588]', r.out + r.err) and ' %  ' in r.err, r
        assert self.bench('objects', '--find-knee', '--rate', '5', '--dir', self.c.dir, check=False).code == 2

    def test_7_presets_of_the_field(self):
        for preset, names in (('thesis', [f'{m} 4 KiB, {t} in flight' for t in (16, 32, 64) for m in ('write', 'rand')]),
                              ('cern', ['write 4 KiB, 100 in flight', 'seq 4 KiB, 100 in flight']),
                              ('centerdevice', ['write 4 KiB, 16 in flight', 'seq 4 KiB, 16 in flight', 'write 4 KiB, 4 × 16 in flight', 'seq 4 KiB, 4 × 16 in flight'])):
            self.bench('objects', '--preset', preset, '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '1', '--objects', '32',
                       '--out', os.path.join(self.scratch, preset))
            v = self.result(preset)
            assert [r['name'] for r in v['runs']] == names and all(r['found']['ops'] > 0 for r in v['runs']), (preset, v['runs'])
        assert self.objects('mine') == []

    def test_8_a_rate_that_is_more_than_it_gives(self):
        # Latency counts from when an operation was due: what waits for its turn is slow, however fast its answer is.
        for name, rate in (('slow', []), ('flood', ['--rate', '1000000'])):
            self.bench('objects', 'write', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-t', '1', '-s', '2', *rate, '--out', os.path.join(self.scratch, name))
        asked, due = (self.result(n)['runs'][0]['found'] for n in ('slow', 'flood'))
        assert due['missed'] > due['ops'] and asked['missed'] == 0, (asked['missed'], due['missed'])
        # With one in flight all latencies together are no longer than the run, and half of them are the median at least. At the other
        # rate all that is ever sent was due in the first moments, and the last is sent when the time, 2 s, has passed twice.
        print(f'figure: median latency {asked["latency_ms"]["p50"]} ms; at a rate that cannot be, {due["latency_ms"]["p50"]} ms')
        assert asked['latency_ms']['p50'] * asked['ops'] / 2 <= 1.1 * 1000 * asked['took_s'], asked
        assert due['latency_ms']['max'] > 2000, (asked['latency_ms'], due['latency_ms'])
        assert self.objects('mine') == []

    def test_9_what_a_person_and_what_a_program_sees(self):
        words = [harness.BINARY, 'bench', 'objects', 'write', '--dir', self.c.dir, '-p', 'mine', '-b', '4K', '-s', '2', '--out']
        # A program: the result, and nothing else.
        r = subprocess.run([*words, os.path.join(self.scratch, 'program'), '--json'], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240)
        assert r.returncode == 0 and r.stderr == '' and json.loads(r.stdout) == self.result('program'), r
        # A person at a terminal: one line that changes, with a bar and rates, and is gone in the end.
        ours, theirs = pty.openpty()
        p = subprocess.Popen([*words, os.path.join(self.scratch, 'person')], stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, text=True)
        os.close(theirs)
        shown = b''
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                part = b''
            if not part:
                break
            shown += part
        out = p.communicate(timeout=240)[0]
        os.close(ours)
        lines = [l for l in shown.decode().split('\r\x1b[K') if l.startswith('[')]
        assert p.returncode == 0 and len(lines) > 1 and all(re.match(r'\[█*·*\] \d+ of 2 s: \d+ op/s, .+B/s', l) for l in lines), shown
        assert '█' in lines[-1] and lines[-1].count('█') > lines[0].count('█') and 'write 4 KiB, 16 in flight' in out and '\x1b' not in out, (shown, out)

    def conf_of(self, addr):
        path = os.path.join(self.scratch, 'away.conf')
        with open(path, 'w') as f:
            f.write(f'[global]\nmon_host = v2:{addr}\nauth_client_required = none\n')
        return path


def page(path):
    """A report: well-formed, and without a link to anything."""
    with open(path, encoding='utf-8') as f:
        text = f.read()
    root = ET.fromstring(text.split('\n', 1)[1])
    for e in root.iter():
        assert not {'src', 'href', 'srcset', 'data', 'action'} & set(e.attrib), (e.tag, e.attrib)
        assert e.tag.rsplit('}', 1)[1] not in ('script', 'link', 'iframe', 'object', 'embed', 'img'), e.tag
    # Each colour that is used is said, once for light and once for dark.
    light, dark = re.findall(r':root\{(.*?)\}', text, re.S)[:2]
    said = [set(re.findall(r'(--[a-z0-9]+):', part)) for part in (light, dark)]
    assert said[0] == said[1] and light != dark and set(re.findall(r'var\((--[a-z0-9]+)\)', text)) - {'--c'} <= said[0], said
    # A browser draws what it can of a chart and says nothing: so each number is one, and within its drawing.
    for svg in (e for e in root.iter() if e.tag.endswith('}svg')):
        left, top, width, height = map(float, svg.get('viewBox').split())
        for e in svg.iter():
            numbers = {k: [float(n) for n in re.findall(r'[^\s,MLZz]+', v)] for k, v in e.attrib.items() if k in ('x', 'y', 'x1', 'x2', 'y1', 'y2', 'cx', 'cy', 'points', 'd')}
            for k, all_of in numbers.items():
                for i, n in enumerate(all_of):
                    most = width if k[0] == 'x' or k == 'cx' or k in ('points', 'd') and i % 2 == 0 else height
                    assert -1 <= n <= most + 1, (k, n, ET.tostring(e)[:300])
    assert 'url(' not in text and '@import' not in text and not re.search(r'(?<!w3\.org)[a-z]+://(?!www\.w3\.org)', text)
    return text, root


def browser():
    """Chromium without a window, however Debian calls it; `CHROMIUM` names one that is elsewhere."""
    named = [os.environ.get('CHROMIUM'), 'chromium-headless-shell', 'chromium']
    return next(filter(None, (n and shutil.which(n) for n in named)), None)


def first_pixel(png):
    """Red, green and blue of the upper left corner: of the first pixel no filter of PNG takes anything off."""
    with open(png, 'rb') as f:
        data = f.read()
    assert data[:8] == b'\x89PNG\r\n\x1a\n' and data[24] == 8, data[:32]
    at, packed = 8, b''
    while at < len(data):
        length, kind = struct.unpack('>I4s', data[at:at + 8])
        packed += data[at + 8:at + 8 + length] if kind == b'IDAT' else b''
        at += 12 + length
    return tuple(zlib.decompressobj().decompress(packed, 64)[1:4])


def shown(path, scratch):
    """A browser shows a report in light and in dark, and has nothing to complain of; the pictures, by scheme."""
    program, pictures = browser(), {}
    if not program:
        raise harness.Skip('chromium-headless-shell is not installed')
    for scheme, number in (('light', 1), ('dark', 0)):
        pictures[scheme] = os.path.join(scratch, f'{os.path.basename(path)}.{scheme}.png')
        r = subprocess.run([program, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--window-size=1300,2000', '--enable-logging=stderr',
                            f'--user-data-dir={scratch}/chromium', f'--blink-settings=preferredColorScheme={number}', f'--screenshot={pictures[scheme]}',
                            f'file://{os.path.abspath(path)}'], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        assert r.returncode == 0 and os.path.getsize(pictures[scheme]) > 10_000, r
        # What a page says, and what is wrong with it, comes as a message of the console; what Chromium misses on this machine does not.
        assert 'CONSOLE' not in r.stderr and 'ERR_' not in r.stderr, r.stderr
    return pictures


class LabAll(Case):
    """Everything once, a second of each."""
    args = ['--osds', '3', '--osd-size', '2G']

    def test_1_all_of_it_and_its_page(self):
        out = os.path.join(self.scratch, 'all')
        said = self.c.spirula('bench', 'all', '--quick', '--dir', self.c.dir, '--out', out, timeout=1800).out
        wanted = ['disk', 'net', 'objects-4K', 'objects-4M']
        wanted += ['block'] if shutil.which('fio') else []
        wanted += ['mysql'] if os.path.exists('/usr/sbin/mariadbd') else []
        results = {}
        for name in wanted:
            with open(os.path.join(out, name, 'result.json')) as f:
                results[name] = json.load(f)
            # A path is told by what it loses and carries, all else by its operations.
            runs = [r['found'] for r in results[name]['runs'] if not r['name'].startswith('path to ')]
            assert runs and all(found['iops'] > 0 for found in runs), (name, results[name]['runs'])
        assert 'a journal:' in said, said
        write = results['objects-4K']['runs'][0]
        # Where the kernel says which disk is below.
        if results['objects-4K']['pool']['disks']:
            assert write['expected']['iops'] > 0 and '÷ 3' in write['expected']['how'], write
        text, root = page(os.path.join(out, 'report.html'))
        assert text.count('<svg') >= 10 and 'prefers-color-scheme:dark' in text and '@media print' in text
        left = [n for n in os.listdir(self.c.dir) if 'bench' in n]
        assert not left, left

    def test_2_two_results_side_by_side(self):
        dirs = []
        for label in ['first', 'second']:
            dirs.append(os.path.join(self.scratch, label))
            self.c.spirula('bench', 'objects', 'write', '--dir', self.c.dir, '-b', '4K', '-s', '1', '--repeats', '2', '--label', label, '--out', dirs[-1])
        at = os.path.join(self.scratch, 'both.html')
        self.c.spirula('report', *dirs, '--out', at)
        text, _ = page(at)
        assert re.search(r'\d\.\d\d×', text) and 'write 4 KiB, 16 in flight' in text
        with open(os.path.join(dirs[0], 'result.json')) as f:
            v = json.load(f)
        v['version'] = 99
        with open(os.path.join(dirs[0], 'result.json'), 'w') as f:
            json.dump(v, f)
        r = self.c.spirula('report', *dirs, '--out', at, check=False)
        assert r.code == 1 and 'a result of version 99' in r.err, r
        r = self.c.spirula('bench', 'compare', '--dir', self.c.dir, '--with', self.c.conf, '-b', '4K', '-s', '1', '--out', os.path.join(self.scratch, 'same'), check=False)
        assert r.code == 1 and 'both are the same cluster' in r.err, r
        assert 'spirula-bench' not in self.c.json('osd', 'pool', 'ls'), 'the pool that was made for it is gone'

    def test_5_two_clusters_in_turn(self):
        other = harness.Cluster(self.scratch, self.clients, 'other', self.args)
        other.up()
        try:
            out = os.path.join(self.scratch, 'compared')
            said = self.c.spirula('bench', 'compare', '--dir', self.c.dir, '--with', other.conf, '--label-a', 'mine', '--label-b', 'theirs', 'write', 'rand',
                                  '-b', '4K', '-s', '1', '--objects', '32', '--out', out).out
            pools = [p for c in (self.c, other) for p in c.json('osd', 'pool', 'ls') if p.startswith('spirula-bench')]
        finally:
            other.down()
        order = re.findall(r'^(mine|theirs) +(write|rand) 4 KiB', said, re.M)
        assert order == [(who, what) for what in ('write', 'rand') for who in ('mine', 'theirs')] * 2, said
        with open(os.path.join(out, 'result.json')) as f:
            ratios = json.load(f)['ratios']
        # Two repeats of each: whether they differ by more than noise is known.
        assert len(ratios) == 2 and all(re.fullmatch(r'\d+\.\d\d×( \(within noise\))?', r[k]) for r in ratios for k in ('iops', 'p99')), ratios
        assert not pools, pools
        at = os.path.join(self.scratch, 'compared.html')
        # Any number of them stands side by side.
        self.c.spirula('report', out, os.path.join(self.scratch, 'all', 'objects-4K'), '--out', at)
        text, _ = page(at)
        assert all(f'>{who}<' in text for who in ('mine', 'theirs', 'objects')) and 'was made by' in text and '--label-b theirs' in text

    def test_6_a_mariadb_of_a_run_that_was_killed(self):
        if not os.path.exists('/usr/sbin/mariadbd'):
            raise harness.Skip('mariadb-server is not installed')
        at = os.path.join(self.scratch, 'sql')
        os.mkdir(at)
        words = [harness.BINARY, 'bench', 'mysql', at, '--users-from', '4', '--users-to', '4', '--out']
        p = subprocess.Popen([*words, os.path.join(self.scratch, 'sql-killed'), '--samples', '100'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pid = os.path.join(at, 'spirula-bench-mysql', 'pid')
        wait(lambda: os.path.exists(pid) and open(pid).read().strip(), 'a MariaDB')
        with open(pid) as f:
            server = int(f.read())
        p.kill()
        p.wait()
        assert os.path.exists(f'/proc/{server}'), 'nobody ended it'
        r = self.c.spirula(*words[1:], os.path.join(self.scratch, 'sql-next'), '--samples', '1', '--iterations', '1', timeout=900)
        assert 'mysql,  4 users' in r.out and os.listdir(at) == [], (r, os.listdir(at))
        # Whoever has taken over the killed run's children notices in his own time that this one ended.
        try:
            with open(f'/proc/{server}/stat') as f:
                state = f.read().rpartition(')')[2].split()[0]
        except FileNotFoundError:
            state = 'Z'
        assert state in 'ZX', state

    def test_7_a_mariadb_on_an_image(self):
        """The image is mapped and mounted for the time, keeps what is on it, and what a killed run left is undone by the next."""
        if not os.path.exists('/usr/sbin/mariadbd') or not shutil.which('rbd'):
            raise harness.Skip('mariadb-server or rbd is not installed')
        if os.geteuid() or not os.path.exists('/dev/fuse') or not os.path.exists('/dev/loop-control'):
            raise harness.Skip('needs root, /dev/fuse and loop devices')
        self.c.ceph('osd', 'pool', 'create', 'db', '8')
        self.c.run('rbd', 'pool', 'init', 'db')
        self.c.run('rbd', 'create', 'db/one', '--size', '1G')
        mounts = lambda: [l for l in open('/proc/self/mounts') if '/run/spirula/bench/' in l and 'db@one' in l]
        words = [harness.BINARY, 'bench', 'mysql', '--image', 'db/one', '--dir', self.c.dir, '--users-from', '4', '--users-to', '4', '--out']
        p = subprocess.Popen([*words, os.path.join(self.scratch, 'image-killed'), '--samples', '100'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait(lambda: mounts() and os.path.exists(os.path.join(mounts()[0].split()[1], 'spirula-bench-mysql', 'pid')), 'a MariaDB on an image')
        p.kill()
        p.wait()
        assert mounts(), 'nobody undid it'
        r = self.c.spirula(*words[1:], os.path.join(self.scratch, 'image-next'), '--samples', '1', '--iterations', '1', timeout=900)
        assert 'mysql,  4 users' in r.out and not mounts() and 'db/one' not in self.c.spirula('image', 'ls').out, r
        with open(os.path.join(self.scratch, 'image-next', 'result.json')) as f:
            v = json.load(f)
        assert v['cluster']['fsid'] and v['runs'][0]['used']['daemons'], v
        r = self.c.spirula('bench', 'mysql', '--image', 'db/none', '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'no image' in r.err and not mounts(), r
        fsid = self.c.ceph('fsid').out.strip()
        assert not os.path.exists(f'/run/spirula/bench/{fsid}-db@none'), 'nothing of it stays'
        # Whoever has it, mapped or opened by librbd, watches it; who asks to measure in it is told, and it stays as it is.
        device = self.c.spirula('image', 'map', 'db/one', '--dir', self.c.dir, '--conf', os.path.join(self.c.dir, 'ceph.conf')).out.strip()
        r = self.c.spirula('bench', 'mysql', '--image', 'db/one', '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'in use by client.' in r.err and not mounts() and device in self.c.spirula('image', 'ls').out, r
        self.c.spirula('image', 'unmap', device)
        assert self.c.spirula('bench', 'mysql', '--image', 'none', '--dir', self.c.dir, check=False).code == 2

    def test_4_a_network_between_hosts(self):
        """Each host serves, and each measures all others; by ssh they would be elsewhere."""
        out = os.path.join(self.scratch, 'hosts')
        words = ['bench', 'net', '--on', 'localhost,b=127.0.0.1,c=127.0.0.1', '--via', f'env HOST={{}} {harness.BINARY}', '-s', '1', '--out', out]
        self.c.spirula(*words, timeout=900)
        with open(os.path.join(out, 'result.json')) as f:
            names = [r['name'] for r in json.load(f)['runs']]
        for a in ('localhost', 'b', 'c'):
            for b in {'localhost', 'b', 'c'} - {a}:
                assert {f'{a}: latency with {b}', f'{a}: 1 stream to {b}', f'{a}: 4 streams from {b}'} <= set(names), names
            assert f'{a}: one to 2 hosts at once' in names and f'{a}: 2 hosts to one at once' in names, names
        r = self.c.spirula('bench', 'net', '--on', 'localhost,far', '--via', 'false', '--out', os.path.join(self.scratch, 'far'), check=False)
        assert r.code == 1 and 'far does not serve' in r.err, r
        wait(lambda: not subprocess.run(['pgrep', '-f', 'bench net --listen 0.0.0.0:0 --until-eof'], capture_output=True, text=True).stdout, 'the end of who served')

    def test_3_a_browser_shows_and_prints_it(self):
        pictures = shown(os.path.join(self.scratch, 'all', 'report.html'), self.scratch)
        assert min(first_pixel(pictures['light'])) > 200 and max(first_pixel(pictures['dark'])) < 80, {k: first_pixel(v) for k, v in pictures.items()}
        paper = os.path.join(self.scratch, 'all.pdf')
        r = subprocess.run([browser(), '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={self.scratch}/chromium', '--blink-settings=preferredColorScheme=0',
                            f'--print-to-pdf={paper}', f'file://{self.scratch}/all/report.html'], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        with open(paper, 'rb') as f:
            pdf = f.read()
        # A few charts on each sheet, and not one for each of them.
        assert r.returncode == 0 and pdf.startswith(b'%PDF') and 1 < len(re.findall(rb'/Type\s*/Page\b', pdf)) < 40, (r, len(pdf))
        # The browser would say what is wrong: of a page with an error, it does.
        bad = os.path.join(self.scratch, 'bad.html')
        with open(bad, 'w') as f:
            f.write('<!DOCTYPE html><html><body><p>x</p><script>nothing.is = there</script>' + '<p>long</p>' * 500 + '</body></html>')
        try:
            shown(bad, self.scratch)
        except AssertionError as e:
            assert 'nothing is not defined' in str(e), e
        else:
            raise AssertionError('an error of a script was not noticed')


class Drills(Case):
    """What breaks is put back, and nothing acknowledged is lost."""
    args = ['--osds', '4', '--osd-size', '2G', '--pool-size', '3']
    # Rot is told of.
    errors_expected = True

    def drill(self, scene, *words, hold=2):
        out = os.path.join(self.scratch, scene)
        self.c.spirula('drill', scene, '--dir', self.c.dir, '--yes', '--before', '2', '--hold', str(hold), '--after', '2', '--out', out, *words, timeout=1800)
        with open(os.path.join(out, 'result.json')) as f:
            v = json.load(f)
        assert {k: v['verdict'][k] for k in ('lost', 'wrong', 'errors')} == {'lost': 0, 'wrong': 0, 'errors': 0}, v['verdict']
        assert v['verdict']['read_in_the_end'] == 128 and v['verdict']['writes'] > 0 and v['verdict']['reads'] > 0, v['verdict']
        assert [p['name'] for p in v['phases']] == ['before', 'during', 'after'] and all(p['ops'] > 0 for p in v['phases']), v['phases']
        assert v['timeline'] and v['timeline'][-1]['up'] == 4, v['timeline'][-1]
        self.c.wait_clean()
        return v

    def test_1_it_asks_first(self):
        r = self.c.spirula('drill', 'osd-kill', '--dir', self.c.dir, check=False)
        assert r.code == 1 and 'give --yes' in r.err, r
        r = self.c.spirula('drill', 'slow-disk', '--dir', self.c.dir, '--yes', check=False)
        assert r.code == 1 and 'share one process' in r.err, r

    def test_2_an_osd_dies(self):
        # Long enough to be in the PGs' reports, which are seconds old.
        v = self.drill('osd-kill', '--osd', '2', hold=6)
        assert v['verdict']['detect_s'] is not None and v['verdict']['clean_s'] is not None, v['verdict']
        assert min(s['up'] for s in v['timeline']) == 3 and any('peering' in k or 'undersized' in k for s in v['timeline'] for k in s['states'])

    def test_3_bits_flip(self):
        v = self.drill('bit-flip')
        found, fixed = re.search(r'found (\d+) errors and fixed (\d+)', json.dumps(v['events'])).groups()
        assert int(found) > 0 and found == fixed, v['events']

    @harness.nightly
    def test_5_the_other_scenes(self):
        said = lambda v: json.dumps(v['events'])
        v = self.drill('disk-full')
        # A write waits from when the cluster is full until it is no more: for the 2 s that it is held so, at least.
        assert v['phases'][1]['max'] > 1500 and 'tells that it is full' in said(v), v['phases']
        v = self.drill('disk-out', '--osd', '1')
        assert 'osd.1 is taken out' in said(v) and 'its data is elsewhere' in said(v) and v['verdict']['clean_s'] is not None, v['events']
        assert min(s['up'] for s in v['timeline']) == 4 and self.c.json('osd', 'dump')['osds'][1]['weight'] == 1
        v = self.drill('rolling-restart')
        assert all(f'osd.{n} is down' in said(v) for n in range(4)), v['events']
        before = self.c.pid()
        v = self.drill('restart-all')
        assert 'all 1 processes are killed' in said(v) and self.c.pid() != before, v['events']
        assert not [n for n in os.listdir(self.c.dir) if n.endswith('.owed')]

    @harness.nightly
    def test_6_thrash(self):
        v = self.drill('thrash', '--minutes', '1', '--seed', '7')
        print(f'figure: {len(v["events"])} events, {v["verdict"]["writes"]} writes in a minute')
        # One fault and its end.
        assert len(v['events']) >= 2, v['events']

    def test_4_all_is_on_one_page(self):
        at = os.path.join(self.scratch, 'drills.html')
        self.c.spirula('report', os.path.join(self.scratch, 'osd-kill'), os.path.join(self.scratch, 'bit-flip'), '--out', at)
        text, _ = page(at)
        assert text.count('states of PGs') >= 2 and '0 acknowledged writes lost' in text
        left = [p for p in self.c.json('osd', 'pool', 'ls') if p.startswith('spirula-drill')]
        assert not left or self.c.rados('-p', 'spirula-drill', 'ls').out == ''


class DrillsEnd(Case):
    """Whatever ends a drill, what it did is put back: by itself where it can, else by the next drill or by `bench clean`."""
    args = ['--osds', '4', '--osd-size', '2G', '--pool-size', '3']
    # Bits are flipped.
    errors_expected = True

    def begin(self, scene, until, *words):
        """A drill that has done its harm, which would last for ten minutes."""
        name = f'{scene}-{time.time()}'
        log = os.path.join(self.scratch, f'{name}.log')
        with open(log, 'w') as f:
            # Where these tests run under nohup, a drill would stay when it is hung up on, too.
            p = subprocess.Popen([harness.BINARY, 'drill', scene, '--dir', self.c.dir, '--yes', '--before', '1', '--hold', '600',
                                  '--out', os.path.join(self.scratch, name), *words], stdout=f, stderr=f,
                                 preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        def said():
            with open(log) as f:
                text = f.read()
            assert p.poll() is None, text
            return until in text
        wait(said, until)
        return p

    def owed(self):
        return [n for n in os.listdir(self.c.dir) if n.endswith('.owed')]

    def end(self, p, by):
        p.send_signal(by)
        return p.wait(240)

    def osd(self, n):
        return next(o for o in self.c.json('osd', 'dump')['osds'] if o['osd'] == n)

    def left(self):
        return [p for p in self.c.json('osd', 'pool', 'ls') if p.startswith('spirula-drill')]

    def test_1_who_is_asked_to_end_puts_back(self):
        for by in [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]:
            p = self.begin('osd-kill', 'noticed after', '--osd', '2')
            assert self.osd(2)['up'] == 0
            assert self.end(p, by) == 1, by
            wait(lambda: self.osd(2)['up'] == 1, f'osd.2 up after {by}')
            assert not self.owed() and not self.left(), (by, self.left())
            self.c.wait_clean()

    def test_2_an_osd_gets_its_weight_back(self):
        self.c.ceph('osd', 'reweight', '1', '0.75')
        self.c.wait_clean()
        p = self.begin('disk-out', 'is taken out', '--osd', '1')
        # It goes no further.
        p.send_signal(signal.SIGSTOP)
        wait(lambda: self.osd(1)['weight'] == 0, 'osd.1 out')
        # While it lives it is left alone, and no other begins.
        r = self.c.spirula('drill', 'osd-kill', '--dir', self.c.dir, '--yes', check=False)
        assert r.code == 1 and 'another drill is under way' in r.err, r
        assert 'a drill is under way' in self.c.spirula('bench', 'clean', '--dir', self.c.dir).out
        self.end(p, signal.SIGKILL)
        assert self.owed() and self.osd(1)['weight'] == 0
        said = self.c.spirula('bench', 'clean', '--dir', self.c.dir).out
        assert 'osd.1 is in again, its weight is 0.75' in said and 'the pool spirula-drill is removed' in said, said
        assert 0.74 < self.osd(1)['weight'] < 0.76 and not self.owed() and not self.left()
        # One that somebody empties is left to that.
        self.c.ceph('osd', 'reweight', '1', '1')
        self.c.ceph('osd', 'out', '3')
        self.c.wait_clean()
        r = self.c.spirula('drill', 'disk-out', '--dir', self.c.dir, '--yes', '--osd', '3', '--out', os.path.join(self.scratch, 'draining'), check=False)
        assert r.code == 1 and 'osd.3 is not up and in' in r.err and self.osd(3)['weight'] == 0, r
        assert not self.owed() and not self.left()
        self.c.ceph('osd', 'in', '3')
        self.c.wait_clean()

    def test_3_bits_and_ratios(self):
        ratios = lambda: {k: v for k, v in self.c.json('osd', 'dump').items() if k.endswith('_ratio')}
        before = ratios()
        p = self.begin('disk-full', 'noticed after')
        self.end(p, signal.SIGKILL)
        assert ratios() != before and self.owed()
        p = self.begin('bit-flip', 'bits are flipped', '--osd', '0')
        assert ratios() == before, 'the next drill puts back first'
        self.end(p, signal.SIGKILL)
        said = self.c.spirula('bench', 'clean', '--dir', self.c.dir).out
        assert 'the pool spirula-drill is removed' in said, said
        wait(lambda: self.osd(0)['up'] == 1, 'osd.0 up')
        assert not self.owed() and not self.left()
        self.c.wait_clean()

    def test_4_a_run_that_is_killed_leaves_no_pool(self):
        pools = lambda: [p for p in self.c.json('osd', 'pool', 'ls') if p.startswith('spirula-bench')]
        p = subprocess.Popen([harness.BINARY, 'bench', 'objects', 'write', '--dir', self.c.dir, '-b', '4K', '-s', '900',
                              '--out', os.path.join(self.scratch, 'killed')], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait(lambda: pools() and len(self.c.rados('-p', 'spirula-bench', 'ls').out.split()) > 50, 'objects of a run')
        self.end(p, signal.SIGKILL)
        # A note of another machine that is called like this one: nobody here can say whether its run lives.
        note = json.dumps({'prefix': 'spirula-bench.far.', 'pid': 1, 'start': 1, 'where': 'elsewhere', 'generators': 1, 'in_flight': 1})
        with open(os.path.join(self.scratch, 'note'), 'w') as f:
            f.write(note)
        host = os.uname().nodename.split('.')[0]
        self.c.rados('-p', 'spirula-bench', 'put', f'spirula-bench.run.{host}.7', os.path.join(self.scratch, 'note'))
        self.c.rados('-p', 'spirula-bench', '--namespace', 'far', 'put', 'spirula-bench.far.0.0000000000', os.path.join(self.scratch, 'note'))
        said = self.c.spirula('bench', 'clean', '--dir', self.c.dir).out
        assert 'cleared what 1 runs' in said and '1 are under way' in said, said
        assert self.c.rados('-p', 'spirula-bench', 'ls').out.split() == [f'spirula-bench.run.{host}.7']
        self.c.spirula('bench', 'clean', '--dir', self.c.dir, '--host', host)
        assert pools(), 'somebody has an object in it, in whatever namespace'
        self.c.rados('-p', 'spirula-bench', '--namespace', 'far', 'rm', 'spirula-bench.far.0.0000000000')
        self.c.spirula('bench', 'clean', '--dir', self.c.dir)
        assert not pools()


class Paths(Hosts):
    """What a network loses, and how large the frames are that it carries: two hosts, without a cluster."""
    mons, others_there = ['a', 'b'], ['client']

    def found(self):
        pass

    def path(self, name):
        """What host a finds of its path to b."""
        a, b = self.net['a'], self.net['b']
        out = os.path.join(self.scratch, name)
        served = subprocess.Popen(b.wrap([harness.BINARY, 'bench', 'net', '--listen', '0.0.0.0:5300', '--until-eof']), stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            assert 'listening on port 5300' in served.stdout.readline()
            said = a.spirula('bench', 'net', '--to', f'{b.addr()}:5300', '-s', '1', '--out', out, check=False)
        finally:
            served.communicate('', timeout=240)
        with open(os.path.join(out, 'result.json')) as f:
            runs = json.load(f)['runs']
        return said, next(r['found'] for r in runs if r['mode'] == 'path')

    def frames(self, size):
        """What a sends, and what the switch takes from it; its port to b takes 1500 bytes."""
        netns.ip('-n', self.net['a'].ns, 'link', 'set', 'eth0', 'mtu', str(size))
        netns.ip('-n', self.net.tag, 'link', 'set', 'p1n0', 'mtu', str(size))

    def test_1_frames_of_all_hosts_are_alike(self):
        said, path = self.path('whole')
        assert (path['mtu'], path['carries']) == (1500, 1500) and path['sent'] > path['lost'], path
        assert 'no jumbo frames (MTU 1500)' in said.out and said.code == 0, said

    def test_2_large_frames_are_lost_on_the_way(self):
        netns.ip('-n', self.net['a'].ns, 'link', 'set', 'eth0', 'gso_max_segs', '1')
        self.frames(9000)
        said, path = self.path('hole')
        assert (path['mtu'], path['carries']) == (9000, 1500) and path['sent'] > path['lost'], path
        assert 'set the MTU of 9000 everywhere on the way' in said.out, said
        self.c_report('hole', 'whole')

    def c_report(self, *names):
        at = os.path.join(self.scratch, 'paths.html')
        self.net['a'].spirula('report', *(os.path.join(self.scratch, n) for n in names), '--out', at)
        text, _ = page(at)
        assert 'frames of 9000 bytes' not in text and 'frames of 1500 bytes' in text and 'set the MTU of 9000' in text


class DrillHosts(OsdHosts):
    """Hosts fail and are cut off: three network namespaces with an OSD each; the drill runs on a fourth, with the monitor."""

    def drill(self, scene, *words, at='m', check=True):
        out = os.path.join(self.scratch, f'{scene}-{time.time()}')
        m = self.net['m']
        r = self.net[at].spirula('drill', scene, '--dir', m.dir, '--yes', '--before', '2', '--hold', '2', '--after', '2', '--out', out, *words,
                                 timeout=1800, check=check)
        if not check:
            return r
        with open(os.path.join(out, 'result.json')) as f:
            v = json.load(f)
        assert {k: v['verdict'][k] for k in ('lost', 'wrong', 'errors')} == {'lost': 0, 'wrong': 0, 'errors': 0}, v['verdict']
        assert v['verdict']['read_in_the_end'] == 128 and v['timeline'][-1]['up'] == 3, v['timeline'][-1]
        return v

    def of(self, host):
        return next(o for o, h in self.host_of.items() if h.name == host)

    def rules(self):
        """Of the routing of all hosts, what cuts them off."""
        shown = [netns.ip('-n', self.net[n].ns, *six, 'rule', 'show').stdout for n in self.hosts for six in ([], ['-6'])]
        return [l for out in shown for l in out.splitlines() if 'blackhole' in l]

    def test_1_a_host_fails(self):
        v = self.drill('host-kill', '--osd', str(self.of('b')))
        assert 'the host b fails: 1 OSDs' in json.dumps(v['events']) and min(s['up'] for s in v['timeline']) == 2, v['events']

    def test_2_a_host_is_cut_off(self):
        v = self.drill('partition', '--osd', str(self.of('c')))
        assert 'cut off from everybody' in json.dumps(v['events']) and min(s['up'] for s in v['timeline']) == 2, v['events']
        assert not self.rules(), self.rules()

    def test_3_where_the_load_would_be_cut_off_only_the_cluster_network_is(self):
        log = os.path.join(self.scratch, 'cut.log')
        with open(log, 'w') as f:
            p = subprocess.Popen(self.net['a'].wrap([harness.BINARY, 'drill', 'partition', '--dir', self.net['m'].dir, '--yes', '--before', '1', '--hold', '600',
                                                     '--osd', str(self.of('a')), '--out', os.path.join(self.scratch, 'cut')]), stdout=f, stderr=f)
        def said():
            with open(log) as f:
                text = f.read()
            assert p.poll() is None, text
            return 'what is sent there is lost' in text and self.rules()
        wait(said, 'the cut')
        assert len(self.rules()) == 2 and all('10.145.' in r for r in self.rules()), self.rules()
        # Killed, it cannot put back; the next one does.
        drills = subprocess.run(['pgrep', '-f', f'^{harness.BINARY} drill partition --dir {self.net["m"].dir}'], capture_output=True, text=True).stdout.split()
        for pid in drills:
            os.kill(int(pid), signal.SIGKILL)
        p.wait(240)
        assert self.rules()
        said = self.net['m'].spirula('bench', 'clean', '--dir', self.net['m'].dir).out
        assert 'the network is whole again' in said, said
        assert not self.rules(), self.rules()
        self.wait_osds(3)
        self.wait_clean()


class DrillMonitors(Hosts):
    """Scenes that need daemons which are processes of their own: three hosts with a monitor and an OSD each."""
    others_there = ['client']

    def drill(self, scene, *words):
        out = os.path.join(self.scratch, f'{scene}-{time.time()}')
        a = self.net['a']
        a.spirula('drill', scene, '--dir', a.dir, '--yes', '--before', '2', '--hold', '3', '--after', '2', '--out', out, *words, timeout=1800)
        with open(os.path.join(out, 'result.json')) as f:
            v = json.load(f)
        assert {k: v['verdict'][k] for k in ('lost', 'wrong', 'errors')} == {'lost': 0, 'wrong': 0, 'errors': 0}, v['verdict']
        assert v['verdict']['read_in_the_end'] == 128 and v['timeline'][-1]['up'] == 3, v['timeline'][-1]
        self.wait_quorum(self.mons)
        return v, json.dumps(v['events'])

    def test_1_the_leader_of_the_monitors_is_killed(self):
        leader = self.leader()
        v, said = self.drill('mon-leader-kill')
        assert f'mon.{leader}, the leader, is killed' in said and v['verdict']['detect_s'] is not None, v['events']
        assert min(s['up'] for s in v['timeline']) == 3

    def test_2_an_osd_is_slow(self):
        v, said = self.drill('slow-disk', '--osd', '1')
        assert 'osd.1 stands still four fifths of the time' in said and 'it goes on' in said, v['events']
        # Each stop lasts 0.4 s.
        before, during, _ = v['phases']
        print(f'figure: p99 {before["p99"]} ms, and {during["p99"]} ms beside the slow one')
        assert during['max'] > 300, v['phases']


class Block(Case):
    """`bench block` through fio's rbd engine: pool and image are made for it, and go."""
    args = ['--osds', '3', '--osd-size', '2G']

    def setup(self, clients):
        missing = [p for p in ('fio', 'rbd') if not shutil.which(p)]
        if missing:
            raise harness.Skip(f'{", ".join(missing)} is not installed')
        super().setup(clients)

    def pools(self):
        return [p for p in self.c.json('osd', 'pool', 'ls') if p.startswith('spirula-bench')]

    def bench(self, name, *words):
        out = os.path.join(self.scratch, name)
        self.c.spirula('bench', 'block', '--dir', self.c.dir, '--image-size', '64M', '-s', '2', '--repeats', '1', '--out', out, *words, timeout=900)
        with open(os.path.join(out, 'result.json')) as f:
            return json.load(f)['runs']

    def test_1_presets_and_all_that_a_result_holds(self):
        disk = os.path.join(self.scratch, 'disk')
        self.c.spirula('bench', 'disk', self.c.dir, '-s', '1', '--file-size', '64M', '--out', disk)
        for name, words, sides in (('randwrite', ['--baseline', disk], ['writes']), ('railway', ['railway'], ['writes', 'reads'])):
            runs = self.bench(name, *words)
            # One client with so many in flight, and its CPU is known for the load's.
            assert {(r['threads'], r['used']['client_cpu_us_per_op'] > 0) for r in runs} == {(30 if words == ['railway'] else 32, True)}, runs
            assert [r['mode'] for r in runs] == sides, runs
            for r in runs:
                f = r['found']
                assert f['ops'] > 0 and f['latency_ms']['p99'] > 0 and sum(n for _, n in f['histogram_ms']) == f['ops'], f
                assert f['series'] and r['used']['daemons'][0]['cpu_us_per_op'] > 0 and r['bottleneck']['evidence'], r
            assert self.pools() == [], 'what librbd keeps of its images went, too'
            if name == 'randwrite' and runs[0]['expected']:
                assert '÷ 3' in runs[0]['expected']['how'], runs[0]['expected']
        with open(os.path.join(disk, 'result.json')) as f:
            runs = json.load(f)['runs']
        assert all(r['found']['histogram_ms'] for r in runs) and any('claims' in r.get('verdict', '') or 'says nothing' in r.get('verdict', '') for r in runs), runs

    def test_2_who_is_killed_leaves_nothing_for_long(self):
        p = subprocess.Popen([harness.BINARY, 'bench', 'block', '--dir', self.c.dir, '--image-size', '64M', '-s', '4', '--out', os.path.join(self.scratch, 'killed')],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        there = lambda: self.pools() and 'spirula-bench.' in self.c.run('rbd', '-p', 'spirula-bench', 'ls', check=False).out
        wait(there, 'an image')
        p.kill()
        p.wait()
        def cleaned():
            # Its fio may have the image open still, for as long as it was told to run.
            self.c.spirula('bench', 'clean', '--dir', self.c.dir)
            return not self.pools()
        wait(cleaned, 'an end of image and pool')

    def test_3_images_of_others_stay(self):
        self.c.ceph('osd', 'pool', 'create', 'spirula-bench', '8')
        self.c.ceph('osd', 'pool', 'application', 'enable', 'spirula-bench', 'bench')
        self.c.run('rbd', 'create', '-p', 'spirula-bench', '--size', '16M', 'somebodys')
        self.bench('beside')
        self.c.spirula('bench', 'clean', '--dir', self.c.dir)
        assert self.c.run('rbd', '-p', 'spirula-bench', 'ls').out.split() == ['somebodys']

    def test_4_a_run_that_lives_is_left_alone(self):
        """By whoever cleans up on this host, and by another run beside it: between two of its loads nobody has its image open."""
        p = subprocess.Popen([harness.BINARY, 'bench', 'block', '--dir', self.c.dir, '--image-size', '64M', '-s', '1', '--repeats', '4', '--out',
                              os.path.join(self.scratch, 'alive')], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait(lambda: 'spirula-bench.' in self.c.run('rbd', '-p', 'spirula-bench', 'ls', check=False).out, 'an image')
        self.bench('second')
        while p.poll() is None:
            self.c.spirula('bench', 'clean', '--dir', self.c.dir)
        out = p.communicate()[0]
        assert p.returncode == 0, out
        assert self.c.run('rbd', '-p', 'spirula-bench', 'ls').out.split() == ['somebodys']


class S3(Case):
    """`bench s3` against Ceph's gateway, which 'spirula up' runs."""
    args = ['--osds', '3', '--osd-size', '3G', '--with', 'rgw']

    def setup(self, clients):
        if not shutil.which('radosgw'):
            raise harness.Skip('radosgw is not installed')
        super().setup(clients)

    def bench(self, *words, check=True):
        return self.c.spirula('bench', 's3', *words, timeout=900, check=check)

    def keys(self):
        with open(os.path.join(self.c.dir, 'rgw.json')) as f:
            return json.load(f)

    def test_1_objects_are_put_read_listed_and_deleted(self):
        out = os.path.join(self.scratch, 's3')
        said = self.bench('--dir', self.c.dir, '-b', '16K', '-s', '2', '-t', '4', '--out', out).out
        with open(os.path.join(out, 'result.json')) as f:
            v = json.load(f)
        assert [r['mode'] for r in v['runs']] == ['put', 'get', 'list', 'delete'], v['runs']
        found = {r['mode']: r['found'] for r in v['runs']}
        assert all(f['ops'] > 0 and f['errors'] == 0 and f['latency_ms']['p99'] > 0 for f in found.values()), found
        assert found['put']['bytes'] == found['put']['ops'] * 16384 and found['delete']['ops'] == found['put']['ops'], found
        assert 's3 put 16 KiB, 4 in flight' in said, said
        page_at = os.path.join(self.scratch, 's3.html')
        self.c.spirula('report', out, '--out', page_at)
        text, _ = page(page_at)
        assert 's3 list 1000' in text and self.keys()['secret_key'] not in text
        assert self.buckets() == []

    def buckets(self):
        r = subprocess.run(['radosgw-admin', '-c', self.c.conf, 'bucket', 'list'], capture_output=True, text=True)
        return json.loads(r.stdout)

    def test_2_who_is_killed_leaves_nothing_for_long(self):
        p = subprocess.Popen([harness.BINARY, 'bench', 's3', 'put', '--dir', self.c.dir, '-b', '4K', '-s', '900', '--out', os.path.join(self.scratch, 'killed')],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        names = lambda: [n for n in self.c.rados('-p', 'default.rgw.buckets.data', 'ls', check=False).out.split() if 'spirula-bench.' in n]
        wait(lambda: len(names()) > 20, 'objects of a run')
        p.kill()
        p.wait()
        said = self.bench('put', 'get', '--dir', self.c.dir, '-b', '4K', '-s', '1', '--out', os.path.join(self.scratch, 'next'))
        assert 'objects that runs which were killed had left' in said.err, said
        assert self.buckets() == []

    def test_3_bad_input_is_told(self):
        def refused(*words):
            r = self.bench(*words, check=False)
            assert r.code in (1, 2), r
            return r.err
        assert 'no endpoint is named' in refused('--dir', self.scratch)
        assert 'no keys are named' in refused('--dir', self.scratch, '--endpoint', 'http://127.0.0.1:1')
        assert 'others than http' in refused('--dir', self.c.dir, '--endpoint', 'https://127.0.0.1:1')
        assert 'connect to 127.0.0.1:1' in refused('--dir', self.c.dir, '--endpoint', 'http://127.0.0.1:1')
        assert "there is no bucket 'nowhere'" in refused('--dir', self.c.dir, '--bucket', 'nowhere')
        assert 'there was nothing to do' in refused('get', '--dir', self.c.dir, '-s', '1', '--out', os.path.join(self.scratch, 'nothing'))
        wrong = os.path.join(self.scratch, 'wrong.json')
        with open(wrong, 'w') as f:
            json.dump({**self.keys(), 'secret_key': 'x'}, f)
        assert '403 SignatureDoesNotMatch' in refused('--dir', self.c.dir, '--keys', wrong)
        assert self.buckets() == []


@harness.nightly
class OnCeph(Case):
    """The lab on a real Ceph, which must not notice the difference. `bench/ceph-up` starts it: three OSDs, without authentication."""
    start = False

    def setup(self, clients):
        missing = [p for p in ('ceph-mon', 'ceph-osd', 'ceph-mgr', 'jq') if not shutil.which(p)]
        if missing:
            raise harness.Skip(f'{", ".join(missing)} is not installed')
        super().setup(clients)
        self.ceph = os.path.join(self.scratch, 'ceph')
        self.conf = os.path.join(self.ceph, 'ceph.conf')
        self.up = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../bench')
        env = dict(os.environ, CEPH_PORT=str(harness.free_port()))
        r = subprocess.run([os.path.join(self.up, 'ceph-up'), self.ceph, '3', '2G', 'mon_data_avail_crit = 0'], env=env, capture_output=True, text=True, timeout=900)
        assert r.returncode == 0, r

    def teardown(self):
        if hasattr(self, 'up'):
            subprocess.run([os.path.join(self.up, 'ceph-down'), self.ceph])
            wait(lambda: not subprocess.run(['pgrep', '-f', f'^ceph-(osd|mon|mgr) -c {self.conf}'], capture_output=True, text=True).stdout, 'the end of Ceph')
        super().teardown()

    def lab(self, *words):
        r = subprocess.run([harness.BINARY, *words, '--conf', self.conf], capture_output=True, text=True, timeout=1800, stdin=subprocess.DEVNULL)
        assert r.returncode == 0, r
        return r.stdout

    def test_1_each_run_is_a_client_of_its_own(self):
        # An OSD that took one for the other would answer its requests as if they had been sent again.
        for n in range(3):
            out = os.path.join(self.scratch, f'objects-{n}')
            self.lab('bench', 'objects', 'write', 'rand', '-b', '4K', '-s', '1', '--objects', '32', '--generators', '2', '--out', out)
            with open(os.path.join(out, 'result.json')) as f:
                v = json.load(f)
            assert all(r['found']['ops'] > 0 and r['found']['errors'] == 0 for r in v['runs']), v['runs']
            assert any('ceph version 1' in w for w in v['cluster']['versions']), v['cluster']

    def test_2_an_osd_is_killed(self):
        out = os.path.join(self.scratch, 'kill')
        self.lab('drill', 'osd-kill', '--yes', '--before', '3', '--hold', '2', '--after', '2', '--osd', '1', '--out', out)
        with open(os.path.join(out, 'result.json')) as f:
            v = json.load(f)
        assert {k: v['verdict'][k] for k in ('lost', 'wrong', 'errors')} == {'lost': 0, 'wrong': 0, 'errors': 0}, v['verdict']
        assert v['verdict']['read_in_the_end'] == 128 and min(s['up'] for s in v['timeline']) == 2, v['verdict']
