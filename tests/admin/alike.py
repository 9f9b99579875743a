"""What counts as alike in two answers to one command; README.md says why each rule is there.

A rule drops only what no tool and no administrator could rely on: values that differ between any two clusters of the same software."""
import json, re

# Commands of other issues: named in docs/differences.md, and counted by themselves.
ELSEWHERE = [
    ('balancer', r'ceph balancer'),
    ('autoscaler', r'autoscale|target_size|pg_num_m(in|ax)|pg-num-min|bulk'),
    ('progress', r'ceph progress'),
    ('Prometheus, dashboard', r'prometheus|dashboard'),
    ('RBD', r'ceph rbd '),
    ('file systems', r'ceph (fs|mds|nfs) |mds\.|dump_cache'),
    ('snapshots', r'snap|rados .* rollback'),
    ('object classes, watch and notify', r'rados .* (lock|watch|notify|listwatchers) |--striper'),
]


def elsewhere(line):
    """The other issue that a command belongs to; None if it is this one's."""
    return next((name for name, pattern in ELSEWHERE if re.search(pattern, line)), None)


VERSION = re.compile(r'\((?:[0-9a-f]{40}|spirula [0-9.]+)\)')


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


def document(text):
    """The JSON of an answer, or the list of several a line; None if it is text."""
    text = text.strip()
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
# Lines that are there or not with the moment: rates, progress, placement groups on their way, ages.
MOMENT = re.compile(r'^\s*(io:|client: .*(rd|wr)|recovery: |progress:|[\d.]+% pgs |Global Recovery|\[[=.>]+\]|\d+ +(active|peering|unknown|creating|stale|undersized)\S*$)')
MASKS = [
    (VERSION, '(BUILD)'),
    (re.compile(r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}'), 'UUID'),
    (re.compile(r'(?:\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+)[T ]\d\d:\d\d:\d\d[.\d]*(?: \d{4})?([+-]\d{4}|Z)?'), 'TIME'),
    (re.compile(r'AQ[A-Za-z0-9+/]{36,38}={0,2}'), 'KEY'),
    (re.compile(r'\b[0-9a-f]{12,40}\b'), 'HEX'),
    (re.compile(r'0x[0-9a-f]+'), '#'),
    (re.compile(r'(?<![A-Za-z])-?\d+(\.\d+)?(e-?\d+)?'), '#'),
    (re.compile(r'(# ?)(B|[kKMGT]iB|KB|MB|[KMGT])\b(/s)?'), '# SZ'),
    (re.compile(r'age (#[smhd]\w*|#SZ)'), 'age #'),
    (re.compile(r'(since|for|age) #\w+'), r'\1 #'),
]


def text(s):
    """An answer's text without what differs between any two clusters, and without a table's widths."""
    lines = []
    for line in s.strip().splitlines():
        if NOISE.search(line) or MOMENT.search(line):
            continue
        for pattern, mask in MASKS:
            line = pattern.sub(mask, line)
        line = re.sub(r'-{2,}', '', re.sub(r'[ \t]+', ' ', line)).strip()
        if line:
            lines.append(line)
    return lines


def first_word(s):
    """The first word of what an answer says on standard error, with the error's name."""
    for line in text(s):
        if m := re.match(r'(Error \w+|error[^(]*\(#\) [^:]+|[\w#]+)', line):
            return m[1].lower() if not m[1].startswith('Error') else m[1]
        return line.split()[0]
    return ''


def error_word(real, ours):
    """True if standard error says the same by its first word. The error's name is what tools look at (`Error EINVAL:`);
    behind success it is for people, and only that something is said is compared."""
    a, b = first_word(real['err']), first_word(ours['err'])
    if real['code'] == 0:
        return bool(a) == bool(b)
    return a == b


def differences(real, ours, strict=False):
    """What differs between two answers, in words; empty if nothing does."""
    notes = []
    if real['code'] != ours['code']:
        notes.append(f'RC real={real["code"]} ours={ours["code"]}')
    a, b = document(real['out']), document(ours['out'])
    if a is not None and b is not None:
        pa, pb = paths(a), paths(b)
        hollow = [p for p, e in list(empties(a).items()) + list(empties(b).items()) if e]
        known = lambda p: any(p.startswith(h + '[]') or p.startswith(h + '.') or p == h for h in hollow)
        missing = [p for p in sorted(set(pa) - set(pb)) if strict or not known(p)]
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
    elif text(real['out']) != text(ours['out']):
        notes.append('STDOUT')
    if (text(real['err']) != text(ours['err'])) if strict else not error_word(real, ours):
        notes.append('STDERR')
    if ours['took'] > real['took'] + 3:
        notes.append(f'SLOW {real["took"]} s, {ours["took"]} s')
    return notes
