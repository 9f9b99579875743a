#!/usr/bin/python3
"""An administrator's day: the commands of `commands.txt` on one cluster, recorded; two records compared.

  run.py record --who real|ours --cluster DIR --out FILE [--only SECTION,...]
  run.py compare REAL OURS [--out FILE] [--strict]

A commands file has one shell command a line. `## name` begins a section, `!T cmd` gives it T seconds, `~cmd` prepares and is not
counted, `@real cmd` and `@ours cmd` run on one kind only. A command sees CEPH_CONF, D (the cluster's folder), T (a scratch folder, where
it also runs), OSD0, OSD1, MONA and MGRX (admin sockets). What counts as alike is in README.md, and in `alike.py` to the letter.
"""
import argparse, gzip, importlib.machinery, importlib.util, json, os, re, shlex, signal, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import alike


def commands(path, only):
    """(section, line) of each command."""
    section = '-'
    for line in open(path):
        line = line.rstrip('\n')
        if line.startswith('##'):
            section = line[2:].strip()
        elif line.strip() and not line.startswith('#') and (not only or section in only):
            yield section, line


class Runner:
    """Runs commands as an administrator would type them. Plain `ceph …` runs in a child of this process, which has Ceph's tool
    loaded already: the answer is the same, and the half second of Python's start is spared."""

    def __init__(self, cluster, who):
        self.cluster = os.path.abspath(cluster)
        self.scratch = tempfile.mkdtemp(prefix='spirula-admin-')
        first = lambda *paths: next((p for p in paths if os.path.exists(p)), paths[0])
        self.env = dict(os.environ, CEPH_CONF=f'{self.cluster}/ceph.conf', D=self.cluster, T=self.scratch, WHO=who,
                        LC_ALL='C.UTF-8', CEPH_ARGS='')
        for var, name in (('OSD0', 'osd.0'), ('OSD1', 'osd.1'), ('MONA', 'mon.a'), ('MGRX', 'mgr.x')):
            self.env[var] = first(f'{self.cluster}/run/{name}.asok', f'{self.cluster}/run/ceph-{name}.asok')
        tool = '/usr/bin/ceph'
        self.tool = None
        if os.path.exists(tool):
            spec = importlib.util.spec_from_loader('ceph_tool', importlib.machinery.SourceFileLoader('ceph_tool', tool))
            self.tool = importlib.util.module_from_spec(spec)
            sys.dont_write_bytecode = True
            spec.loader.exec_module(self.tool)

    def words(self, line):
        """The words of a plain `ceph …` line; None if it needs a shell."""
        if self.tool is None or not line.startswith('ceph ') or re.search(r'[|;&<>()`*?\[\]{}~\\]|\$\(', line):
            return None
        return [re.sub(r'\$\{?(\w+)\}?', lambda m: self.env.get(m[1], ''), w) for w in shlex.split(line)]

    def run(self, line, seconds):
        """(exit code or 'HANG', stdout, stderr, seconds)."""
        started, shell = time.time(), None
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        words = self.words(line)
        if words is None:
            # Kept until it is waited for: what nobody holds, Python itself waits for.
            shell = subprocess.Popen(['bash', '-c', line], env=self.env, cwd=self.scratch, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=err, start_new_session=True)
            child = shell.pid
        else:
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                self.inside(words, out, err)
        code = None
        while code is None:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                if shell:
                    shell.returncode = code
            elif time.time() > started + seconds:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                code = 'HANG'
                if shell:
                    shell.returncode = -9
            else:
                time.sleep(0.01)
        text = []
        for f in (out, err):
            f.seek(0)
            text.append(f.read().decode(errors='replace').replace(self.cluster, 'DIR').replace(self.scratch, 'TMP'))
        return code, text[0], text[1], time.time() - started

    def inside(self, words, out, err):
        """In the child: becomes Ceph's tool."""
        code = 1
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.chdir(self.scratch)
            os.environ.clear()
            os.environ.update(self.env)
            sys.argv = ['/usr/bin/ceph'] + words[1:]
            code = self.tool.main() or 0
            if code == 0 and self.tool.cluster_handle:
                self.tool.run_in_thread(self.tool.cluster_handle.shutdown)
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1 if e.code else 0
            if isinstance(e.code, str):
                print(e.code, file=sys.stderr)
        except BaseException:
            import traceback
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 255)


def record(a):
    runner = Runner(a.cluster, a.who)
    out = gzip.open(a.out, 'at' if a.append else 'wt')
    for section, line in commands(a.commands, a.only.split(',') if a.only else None):
        prepares, seconds = line.startswith('~'), 15
        line = line[1:] if prepares else line
        if m := re.match(r'!(\d+) (.*)', line):
            seconds, line = int(m[1]), m[2]
        if m := re.match(r'@(real|ours) (.*)', line):
            prepares, line = True, m[2]
            if m[1] != a.who:
                continue
        code, stdout, stderr, took = runner.run(line, 60 if prepares else seconds)
        if prepares:
            if code != 0:
                print(f'preparation failed ({code}): {line}\n{stderr}', file=sys.stderr)
            continue
        row = {'section': section, 'line': line, 'code': code, 'out': stdout, 'err': stderr, 'took': round(took, 2)}
        out.write(json.dumps(row) + '\n')
    out.close()


def rows(path):
    with gzip.open(path, 'rt') as f:
        return [json.loads(line) for line in f]


def compare(a):
    """Pairs the n-th time of a command in one record with the n-th in the other, and says how they differ."""
    theirs = {}
    for row in rows(a.real):
        theirs.setdefault((row['section'], row['line']), []).append(row)
    out = open(a.out, 'w') if a.out else sys.stdout
    counts, seen = {}, 0
    for ours in rows(a.ours):
        left = theirs.get((ours['section'], ours['line']))
        if not left:
            continue
        real = left.pop(0)
        seen += 1
        other = alike.elsewhere(ours['line'])
        notes = alike.differences(real, ours, strict=a.strict)
        kind = 'same' if not notes else 'elsewhere' if other else 'rc' if notes[0].startswith('RC') else 'differs'
        counts[kind] = counts.get(kind, 0) + 1
        if not notes:
            continue
        out.write(f'=== {seen} [{ours["section"]}] {ours["line"]}\n  {kind}: {" || ".join(notes)[:6000]}\n')
        for who, row in (('real', real), ('ours', ours)):
            out.write(f'  -- {who} rc={row["code"]} {row["took"]} s\n{row["out"][:a.shown]}\n')
            if row['err']:
                out.write(f'  -- {who} stderr: {row["err"][:800]}\n')
    print(f'{seen} compared: {counts}')


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(required=True)
    r = sub.add_parser('record')
    r.add_argument('--who', choices=['real', 'ours'], required=True)
    r.add_argument('--cluster', required=True)
    r.add_argument('--out', required=True)
    r.add_argument('--append', action='store_true')
    r.add_argument('--only', default='')
    r.add_argument('--commands', default=f'{HERE}/commands.txt')
    r.set_defaults(run=record)
    c = sub.add_parser('compare')
    c.add_argument('real')
    c.add_argument('ours')
    c.add_argument('--out')
    c.add_argument('--strict', action='store_true')
    c.add_argument('--shown', type=int, default=2500)
    c.set_defaults(run=compare)
    a = p.parse_args()
    a.run(a)


if __name__ == '__main__':
    main()
