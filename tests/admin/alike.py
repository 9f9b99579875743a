"""What counts as alike in two answers to one command; README.md says why each rule is there.

A rule drops only what no tool and no administrator could rely on: values that differ between any two clusters of the same software."""
import json, re
from xml.etree import ElementTree

# Commands of other issues: named in docs/differences.md, and counted by themselves.
ELSEWHERE = [
    ('balancer', r'ceph balancer'),
    ('autoscaler', r'autoscale|target_size|pg_num_m(in|ax)|pg-num-min|bulk'),
    ('progress', r'ceph progress'),
    # In 16.2 the history of health checks is the Prometheus module's.
    ('Prometheus, dashboard', r'prometheus|dashboard|healthcheck history'),
    ('RBD', r'ceph rbd '),
    ('file systems', r'ceph (fs|mds|nfs) |mds\.|dump_cache'),
    ('snapshots', r'snap|rados .* rollback| -s sn2 |get hello -'),
    ('object classes, watch and notify', r'rados .* (lock|watch|notify|listwatchers) |--striper'),
]


# The real cluster was started without cephx, where any name comes in.
NOT_COMPARED = re.compile(r'--name client\.nobody|--id nobody')


def elsewhere(line):
    """The other issue that a command belongs to; None if it is this one's."""
    return next((name for name, pattern in ELSEWHERE if re.search(pattern, line)), None)


VERSION = re.compile(r'\((?:[0-9a-f]{40}|spirula [0-9.]+)\)')


def options(line, v):
    """In `config diff` the names of options, and of who set them, are data: what was set, not how it is told. So are the values
    that `count-metadata` counts."""
    if 'config diff' in line and isinstance(v, dict) and isinstance(v.get('diff'), dict):
        rename = lambda row: {k if k in ('default', 'final') else 'SOURCE': x for k, x in row.items()} if isinstance(row, dict) else row
        return {'diff': {'OPTION': [rename(row) for row in v['diff'].values()]}}
    if line.startswith('ceph config show') and isinstance(v, list):
        return [{k: x for k, x in row.items() if k not in ('overrides', 'ignores')} for row in v]
    if 'count-metadata' in line and isinstance(v, dict):
        return {'VALUE': list(v.values())}
    if line.startswith('ceph config get') and isinstance(v, dict):
        return {'OPTION': list(v.values())}
    return v


def key(k):
    """A key without the number or the version in it."""
    return re.sub(r'\d+', 'N', VERSION.sub('(BUILD)', str(k)))


def kind(v):
    return 'num' if isinstance(v, (int, float)) and not isinstance(v, bool) else type(v).__name__


def paths(v, at='', out=None):
    """{path: types}: where values stand in a document, and of what kind they are."""
    out = {} if out is None else out
    out.setdefault(at or '.', set()).add(kind(v))
    if isinstance(v, dict):
        for k, x in v.items():
            paths(x, f'{at}.{key(k)}', out)
    elif isinstance(v, list):
        for x in v:
            paths(x, at + '[]', out)
    return out


def empties(v, at='', out=None):
    """Paths of lists and maps that are empty wherever they occur."""
    out = {} if out is None else out
    if isinstance(v, (dict, list)):
        out[at] = out.get(at, True) and not v
        for k, x in v.items() if isinstance(v, dict) else ((None, x) for x in v):
            empties(x, at + '[]' if k is None else f'{at}.{key(k)}', out)
    return out


def elements(text):
    """An answer in XML as a document: an element is a map of those in it, or its text; those of one name are laid over each
    other, since one of a list of one cannot be told from no list. None if it is no XML."""
    def over(a, b):
        return {k: over(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in {**a, **b}} if dict is type(a) is type(b) else b
    def value(e):
        out = {}
        for child in e:
            out[child.tag] = over(out[child.tag], value(child)) if child.tag in out else value(child)
        return out or e.text or ''
    try:
        # Ceph's names hold colons (`up:standby`) that name no spaces.
        root = ElementTree.fromstring(re.sub(r'<(/?[\w.-]+):', r'<\1_', text))
    except ElementTree.ParseError:
        return None
    return {root.tag: value(root)}


def document(text):
    """The JSON or XML of an answer, or the list of several a line; None if it is text."""
    text = text.strip()
    if text.startswith('<'):
        return elements(text)
    if not text or text[0] not in '{[':
        return None
    try:
        return json.loads(text)
    except ValueError:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            return None


NOISE = re.compile(r'AdminSocketConfigObs|Falling back to public|WARNING: all dangerous|\*\*\* DEVELOPER')
# Lines that are there or not with the moment: rates, progress, PGs on their way, ages, lines of the log, addresses that are fenced.
MOMENT = re.compile(
    r'^\s*(io:|client: .*(rd|wr)|recovery: |progress:|Global Recovery|\[[=.>]+\]|blocklist |Healthcheck|pg \S+ is (stuck|active|undersized)'
    r'|(data:|pgs:)?\s*[\d.]+% pgs |(pgs:)?\s*[\d/]+ objects (degraded|misplaced)|(pgs: )?\s*\d+ +(active|peering|unknown|creating|stale|undersized)\S*$'
    r'|host \S+ \(root=\S+\) \(0 osds\) is down|sec Cur ops|\d+( +\d+){3}( +[\d.]+){2} +(-|[\d.]+) +[\d.]+$|PG_STAT +STATE +UP +UP_PRIMARY|\[WRN\] (PG_|POOL_PG_NUM)|\S+ \S+ \(\S+\) \d+ : \S+ \[\w+\]|\S+ \S+ \[(DBG|INF|WRN|ERR|SEC)\])')
# What commands of other issues, which succeed with Ceph, leave behind for those that follow: pools made with the autoscaler's
# words and what health says of them, options of modules, a device's light, the flag of cache tiers' agents.
LEFT = re.compile(
    r"\b(a8|b1|b2)\b(?!-)|mgr/[a-z_]+/|pg_autoscale_mode|nonsense ident light|devices have ident light|^(recovery_op_priority|scrub_priority|fingerprint_algorithm): |pg_num \d+ > pgp_num|DEVICE_IDENT_ON|POOL_HAS_TARGET|has target_size_bytes|have pg_num > pgp_num"
    r"|have both target_size|^pg_num_m(in|ax):|^pg_autoscale_bias:|^target_size_|^\s*Reduced data|^\s*Degraded data")
LEFT_PARTS = [r'\d+ devices? ha(s|ve) ident light turned on', r'[^;]*target_size_bytes and target_size_ratio set', r'Reduced data availability: [^;]*',
              r'Degraded data redundancy: [^;]*', r'\d+ pools? ha(s|ve) pg_num > pgp_num']
LEFT_KEYS = re.compile(
    r'\.(recovery_op_priority|scrub_priority|fingerprint_algorithm)$|DEVICE_IDENT_ON|POOL_HAS_TARGET|checks\.(PG_|POOL_PG_NUM|SMALLER_PGP_NUM)|pg_autoscale|pg_num_m(in|ax)|target_size_|config/mgr/|config-history/|\.mgr/'
    r'|\.(bad_already_inactive|bad_become_inactive|ok_become_|ok_or_)|pgmap\.(unknown|inactive|degraded|misplaced|recovering|read_|write_)')
MASKS = [
    (VERSION, '(BUILD)'),
    (re.compile(r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}'), 'UUID'),
    (re.compile(r'(?:\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+)[T ]\d\d:\d\d:\d\d[.\d]*(?: \d{4})?([+-]\d{4}|Z)?'), 'TIME'),
    # Keys, of 16 bytes and of 32.
    (re.compile(r'A[Qg][A-Za-z0-9+/]{36,66}={0,2}'), 'KEY'),
    # What a monitor keeps its store in.
    (re.compile(r'(?<=^compacted )\w+(?= in )'), 'STORE'),
    (re.compile(r'\b[0-9a-f]{12,40}\b'), 'HEX'),
    (re.compile(r'0x[0-9a-f]+'), '#'),
    (re.compile(r'\bclient\.(\d+|\?)'), 'client.#'),
    (re.compile(r'\be\d+(?=[\s:;]|$)'), 'e#'),
    # Names of PGs, sets of OSDs and their first, states: where things lie and how they fare at that moment.
    (re.compile(r'(?<![\d.])\d+\.[0-9a-f]+(?=[\s)])'), '#'),
    (re.compile(r'\[(?:\d+|NONE)(?:,(?:\d+|NONE))*\]( ?p-?\d+)?'), 'OSDS'),
    (re.compile(r', p\d+\)'), ')'),
    (re.compile(r'(?<![,\w])(?:\d+ )?(?:active|peering|creating|stale|unknown|undersized)[+a-z_]*(?:, \d+ [a-z_+]+)*(?=[\s;]|$)'), 'STATE'),
    (re.compile(r' (pg_num_target|pgp_num_target) \d+|autoscale_mode \w+ |,creating\b|,pool_snaps\b|; \d+ remapped pgs'), ' '),
    (re.compile(r',notieragent\b'), ''),
    (re.compile(r'(?<=\s)\d+(\.\d+)?[smhdwkM](?=\s)'), '#'),
    (re.compile(r'(?<![A-Za-z])-?\d+(\.\d+)?(e-?\d+)?'), '#'),
    (re.compile(r'(# ?)(B|[kKMGT]iB|KB|MB|[KMGT])\b(/s)?'), '# SZ'),
    (re.compile(r'(since|for|age) #\w*'), r'\1 #'),
    (re.compile(r'\bhosts? \(# osds\) down'), 'host (# osds) down'),
]


def text(s):
    """An answer's text without what differs between any two clusters, and without a table's widths."""
    lines = []
    for line in s.strip().splitlines():
        for part in LEFT_PARTS:
            line = re.sub(f'(?<=HEALTH_WARN ){part}(; )?|; *{part}', '', line)
        line = re.sub(r'HEALTH_WARN\s*$', 'HEALTH_OK', line)
        if NOISE.search(line) or MOMENT.search(line) or LEFT.search(line):
            continue
        for pattern, mask in MASKS:
            line = pattern.sub(mask, line)
        line = re.sub(r'-{2,}', '', re.sub(r'[ \t]+', ' ', line)).strip()
        # Rows of one form count once: how many there are is the cluster's matter, not the command's.
        if line and line not in lines[-1:]:
            lines.append(line)
    return lines


def told(row):
    """What a command printed, as it is compared: for some commands a part of it, as README.md says."""
    line, out = row['line'], row['out']
    if re.search(r'head -c \d+$', line):
        # JSON that is cut: the order of names in it is nobody's business.
        return [out.strip()[:2]]
    lines = text(out)
    if 'dump_stuck' in line:
        # Whether a PG is stuck at that moment.
        return [x for x in lines if 'STATE' not in x]
    if re.search(r'osd pool get \S+ all$', line):
        # The names; what `osd pool set` refused is counted there.
        return sorted(x.split(':')[0] for x in lines)
    if line.startswith('ceph daemon') and out.startswith('ERROR: '):
        return lines[:1]
    if line.startswith('ceph config help'):
        # Descriptions are sentences of each project's own.
        return [re.sub(r' - .*', '', x) for x in lines if re.match(r'\S+ - |\(|Default|Can update|Services|See|Valid', x)]
    if line.startswith(('ceph config dump', 'ceph config get', 'ceph config show', 'ceph config log')):
        # What is set differs with the files that the clusters were started from: the heading, or the form of a change.
        return [re.sub(r'[-+] .*', 'CHANGE', x) for x in lines[:1]]
    if line.startswith('ceph auth') and 'KEY' in ' '.join(lines):
        # Users are data; the real cluster has cephx off and none of OSDs.
        return sorted({re.sub(r'^\[?[a-z]+\.[\w.#-]*\]?$', 'USER', re.sub(r'(cap\w*:? ).*', r'\1', x)) for x in lines})
    return lines


def first_word(s):
    """The first word of what an answer says on standard error, with the error's name."""
    lines = text(s)
    if error := next((m[0] for m in (re.match(r'Error \w+', line) for line in lines) if m), None):
        return error
    for line in lines:
        if m := re.match(r'(Error \w+|error[^(]*\(#\) [^:]+|[\w#]+)', line):
            return m[1].lower() if not m[1].startswith('Error') else m[1]
        return line.split()[0]
    return ''


def error_word(real, ours):
    """True if standard error says the same by its first word. The error's name is what tools look at (`Error EINVAL:`);
    behind success it is for people, who must not be told less."""
    a, b = first_word(real['err']), first_word(ours['err'])
    if real['code'] == 0:
        return bool(b) or not a
    return a == b


def differences(real, ours, strict=False):
    """What differs between two answers, in words; empty if nothing does."""
    notes = []
    if NOT_COMPARED.search(real['line']) and not strict:
        return notes
    if real['code'] != ours['code']:
        notes.append(f'RC real={real["code"]} ours={ours["code"]}')
    a, b = (options(row['line'], document(row['out'])) for row in (real, ours))
    if not strict and re.search(r'(^| )(help|get_command_descriptions|--help \| tail -\d+)$', real['line']) and real['code'] == ours['code'] == 0:
        # Lists of commands are of one form; what is on them is asked for one by one.
        same = (a is None) == (b is None) and bool(real['out'].strip()) == bool(ours['out'].strip())
        return [] if same else ['HELP']
    if not strict and re.search(r'\| head -\d+$', real['line']) and '{' == real['out'].strip()[:1] == ours['out'].strip()[:1]:
        return notes
    if a is not None and b is not None:
        pa, pb = paths(a), paths(b)
        hollow = [p for p, e in list(empties(a).items()) + list(empties(b).items()) if e]
        known = lambda p: any(p.startswith(h + '[]') or p.startswith(h + '.') or p == h for h in hollow)
        missing = [p for p in sorted(set(pa) - set(pb)) if strict or not (known(p) or LEFT_KEYS.search(p))]
        extra = sorted(set(pb) - set(pa)) if strict else []
        kinds = [f'{p}: {"/".join(sorted(pa[p]))} vs {"/".join(sorted(pb[p]))}' for p in sorted(set(pa) & set(pb)) if not pb[p] & pa[p]]
        if missing:
            notes.append('KEYS missing: ' + ' '.join(missing))
        if extra:
            notes.append('KEYS extra: ' + ' '.join(extra))
        if kinds:
            notes.append('TYPES ' + '; '.join(kinds))
    elif (a is None) != (b is None):
        notes.append('JSON/TEXT real=%s ours=%s' % tuple('text' if x is None else 'json' for x in (a, b)))
    elif (text(real['out']) != text(ours['out'])) if strict else (told(real) != told(ours)):
        notes.append('STDOUT')
    if (text(real['err']) != text(ours['err'])) if strict else not error_word(real, ours):
        notes.append('STDERR')
    if ours['took'] > real['took'] + 3:
        notes.append(f'SLOW {real["took"]} s, {ours["took"]} s')
    return notes
