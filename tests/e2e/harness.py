"""What every end-to-end test uses: a cluster started as the README says, and Ceph's own clients.

Tests are methods `test_*` of subclasses of Case. Each class gets one fresh cluster (setup) in a scratch
folder, driven only through the `spirula` binary and unmodified clients. `Clients` runs them either from
this machine or from another Debian's folder (Reef), by chroot.
"""
import json, os, random, re, shutil, signal, socket, subprocess, tempfile, time
import forked
try:
    import pytest
    Skip = pytest.skip.Exception
except ImportError:
    # Programs of `bench/` use this file, and need no pytest.
    class Skip(Exception):
        """This test cannot run here; the text says why."""

BINARY = None
# Whether the tests run that take too long for every change (`run.py --nightly`).
NIGHTLY = False
# Tests that ask for HEALTH_OK do not mean the disk of the machine that runs them.
os.environ.setdefault('SPIRULA_MON_DATA_AVAIL_WARN', '1')
os.environ.setdefault('SPIRULA_MON_DATA_AVAIL_CRIT', '0')
# Seconds after which what should come counts as never coming. It costs nothing where things are well, and a machine with ten times as
# much to do as it can must not exceed it: the longest that a healthy cluster was seen to take for anything here is some 20 s.
PATIENCE = 240


def nightly(test):
    """Marks a test, or a class of them, that takes too long for every change: `cargo xtask nightly` runs it (`run.py --nightly`)."""
    test.nightly = True
    return test


def repeated(times):
    """How often something is tried that says the same each time: once for every change, by night as often as that."""
    return times if NIGHTLY else 1


def wait(until, what, seconds=PATIENCE, pause=0.1):
    """Asks again and again until the answer is true, and gives it back. `what` says in an error what did not come; it may be
    a function that is asked then. How long it takes is no verdict: whoever gives less `seconds` than the default says why."""
    deadline = time.time() + seconds
    while True:
        got = until()
        if got:
            return got
        assert time.time() < deadline, f'waited {seconds} s for {what() if callable(what) else what}'
        time.sleep(pause)


def holds(test, what, seconds):
    """Looks for so long that something stays as it is. Only what must not happen takes a fixed time."""
    end = time.time() + seconds
    while time.time() < end:
        assert test(), f'{what() if callable(what) else what}: no more, {seconds - end + time.time():.1f} s later'
        time.sleep(0.2)


def gone(pid):
    """Has the process ended? A zombie has, when all its threads have: until then they hold its files and locks."""
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rsplit(')', 1)[1].split()[0] in 'ZX' and len(os.listdir(f'/proc/{pid}/task')) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


class Clients:
    """Runs Ceph's programs: of this machine, or of a Debian below `root`."""

    def __init__(self, root=None):
        self.root = root
        self.mounts = []
        self.forked = None

    def enter(self, scratch):
        """Makes the scratch folder visible to the clients, at the same path."""
        if not self.root:
            return
        for source in ['/proc', '/dev', scratch]:
            at = self.root + source
            os.makedirs(at, exist_ok=True)
            r = subprocess.run(['mount', '--bind', source, at], capture_output=True, text=True)
            if r.returncode:
                self.leave()
                raise Skip(f'cannot mount {source} for the other Debian: {r.stderr.strip()}')
            self.mounts.append(at)

    def leave(self):
        for at in reversed(self.mounts):
            subprocess.run(['umount', '-l', at], capture_output=True)
        self.mounts = []

    def wrap(self, argv):
        return ['chroot', self.root] + argv if self.root else argv

    def run(self, argv, timeout, stdin=None, text=True):
        """Runs a program to its end, and gives back what it said."""
        if argv[0] == 'ceph' and not self.root:
            self.forked = self.forked or forked.Server()
            return self.forked.run(argv, timeout, stdin, text)
        return subprocess.run(self.wrap(argv), capture_output=True, text=text, timeout=timeout, input=stdin)

    def close(self):
        if self.forked:
            self.forked.close()

    def python(self):
        return self.wrap(['/usr/bin/python3'])


def free_port():
    """The first of ten ports that nobody has: a cluster's monitors take those that follow. Not among those that the kernel gives to
    whoever connects: such a one may be taken before the cluster starts. Workers that run beside each other take them from different
    rows: a cluster that is down for a moment finds its ports as it left them."""
    row = int(re.sub(r'\D', '', os.environ.get('PYTEST_XDIST_WORKER', '')) or 0) % 8
    try:
        with open('/proc/sys/net/ipv4/ip_local_port_range') as f:
            end = int(f.read().split()[0])
    except OSError:
        end = 32768
    for _ in range(1000):
        first = random.randrange(1104 + row, max(end, 12000) // 10 - 1, 8) * 10
        try:
            for port in range(first, first + 10):
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(('127.0.0.1', port))
            return first
        except OSError:
            pass
    raise OSError('no ten free ports in a row below the ephemeral ones')


class Result:
    def __init__(self, p):
        self.code, self.out, self.err = p.returncode, p.stdout, p.stderr

    def __repr__(self):
        return f'exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}'


class Cluster:
    """One Spirula in a folder of its own."""

    def __init__(self, scratch, clients, name='c', args=()):
        self.dir = os.path.join(scratch, name)
        self.scratch, self.clients, self.args = scratch, clients, list(args)
        self.port = free_port()
        self.conf = os.path.join(self.dir, 'ceph.conf')

    def spirula(self, *argv, timeout=PATIENCE, check=True):
        r = Result(subprocess.run([BINARY, *argv], capture_output=True, text=True, timeout=timeout))
        assert not check or r.code == 0, f'spirula {" ".join(argv)}: {r}'
        return r

    def up(self, *extra, check=True):
        first = [] if os.path.exists(os.path.join(self.dir, 'cluster.json')) else ['--port', str(self.port), *self.args]
        return self.spirula('up', '--dir', self.dir, '--detach', *first, *extra, check=check)

    def down(self, check=True):
        return self.spirula('down', '--dir', self.dir, check=check)

    def pid(self):
        with open(os.path.join(self.dir, 'lock')) as f:
            return int(f.read().strip())

    def kill(self):
        """kill -9 of the whole cluster, as a crash would."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)
        wait(lambda: gone(pid), 'the killed process to go away', pause=0.01)

    def log(self):
        path = os.path.join(self.dir, 'spirula.log')
        return open(path, errors='replace').read() if os.path.exists(path) else ''

    def run(self, *argv, timeout=PATIENCE, check=True, stdin=None, binary=False):
        r = Result(self.clients.run([argv[0], '-c', self.conf, *argv[1:]], timeout, stdin, not binary))
        assert not check or r.code == 0, f'{" ".join(argv)}: {r}'
        return r

    def ceph(self, *argv, **kw):
        return self.run('ceph', *argv, **kw)

    def json(self, *argv, **kw):
        return json.loads(self.ceph(*argv, '-f', 'json', **kw).out)

    def rados(self, *argv, **kw):
        return self.run('rados', *argv, **kw)

    def python(self, code, *args, timeout=900, check=True, wait=True):
        """Runs a Python program with the clients' own librados; argv[1] is the ceph.conf."""
        path = os.path.join(self.scratch, f'p{random.randrange(1 << 40)}.py')
        with open(path, 'w') as f:
            f.write(code)
        argv = self.clients.python() + [path, self.conf, *map(str, args)]
        if not wait:
            return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        r = Result(subprocess.run(argv, capture_output=True, text=True, timeout=timeout))
        assert not check or r.code == 0, f'python: {r}'
        return r

    def wait_healthy(self, seconds=PATIENCE):
        """HEALTH_OK. What monitors say of PGs and of slow paths is as old as the manager's last word."""
        wait(lambda: self.ceph('health').out.strip() == 'HEALTH_OK', lambda: f'HEALTH_OK: {self.ceph("health", "detail").out}', seconds)

    def wait_clean(self, seconds=PATIENCE):
        states = lambda: self.json('pg', 'stat')['pg_summary']['num_pg_by_state']
        clean = lambda: (by := states()) and all(s['name'] == 'active+clean' for s in by)
        wait(clean, lambda: f'clean PGs: {states()}\n{self.ceph("health", "detail").out}', seconds)


# A program for `Load` ends when the file argv[3] is there, and calls `did()` after each operation.
COUNTING = '''
import sys as _sys
_count, _file = 0, open(_sys.argv[3] + '.count', 'w')
def did():
    global _count
    _count += 1
    _file.seek(0); _file.write(str(_count)); _file.flush()
'''


class Load:
    """A client that works in the background until it is told to stop; then it checks what it did. argv of its program: ceph.conf,
    pool, the file that stops it."""
    made = 0

    def __init__(self, cluster, program, pool):
        Load.made += 1
        self.stop = os.path.join(cluster.scratch, f'stop-{Load.made}-{pool}')
        self.p = cluster.python(COUNTING + program, pool, self.stop, wait=False)

    def done(self):
        assert self.p.poll() is None, self.p.communicate()
        try:
            with open(self.stop + '.count') as f:
                return int(f.read() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self, operations=20, seconds=PATIENCE):
        """So many more operations are done, whatever has been done to the cluster."""
        before = self.done()
        wait(lambda: self.done() >= before + operations, f'{operations} more operations of a client after {before}', seconds, 0.05)

    def end(self, timeout=900):
        """What it says in the end."""
        open(self.stop, 'w').close()
        out, err = self.p.communicate(timeout=timeout)
        assert self.p.returncode == 0, err
        return out


# Bytes free that the largest cluster here asks for: 4 OSDs of 2 GiB and a tenth more. Its files are sparse; what one that
# runs beside it fills of its own is the rest.
ROOM, BESIDE = 9 << 30, 4 << 30
SCRATCH = os.environ.get('SPIRULA_E2E_DIR', '/var/tmp')


def lack_of_room(at_a_time):
    """Says what to do if so many clusters do not fit; else None."""
    free, room = shutil.disk_usage(SCRATCH).free, ROOM + (at_a_time - 1) * BESIDE
    if free >= room:
        return None
    left = [n for n in os.listdir(SCRATCH) if n.startswith('spirula-e2e-')]
    text = f'end-to-end tests need {room >> 30} GiB free in {SCRATCH}, which has {free / (1 << 30):.1f}; '
    text += 'free some, or name another folder on a real disk in SPIRULA_E2E_DIR'
    return text + (f'. Runs that were killed left {", ".join(sorted(left))} there' if left else '')


class Case:
    """A group of tests that share one cluster. `args` are given to `spirula up`."""
    args = []
    start = True
    # About how long it takes, if that is more than one or two: the longest begin first.
    minutes = 0
    # All of its tests are for the night (see `nightly`).
    nightly = False

    def setup(self, clients):
        self.clients = clients
        # Not below /tmp's sticky folder of somebody else; the disk must be a real one for durability tests.
        self.scratch = tempfile.mkdtemp(prefix='spirula-e2e-', dir=SCRATCH)
        os.chmod(self.scratch, 0o755)
        clients.enter(self.scratch)
        self.c = Cluster(self.scratch, clients, args=self.args)
        if self.start:
            self.c.up()

    def sample(self):
        """A small file that this machine and the clients' Debian see alike."""
        path = os.path.join(self.scratch, 'sample')
        if not os.path.exists(path):
            with open(path, 'w') as f:
                f.write('a sample of some text\n' * 20)
        return path

    def log_tail(self):
        """What a reader of a failure wants to see of the cluster."""
        return '\n'.join(self.c.log().splitlines()[-40:]) if hasattr(self, 'c') else ''

    def teardown(self):
        """Also after a setup that came half the way."""
        if hasattr(self, 'c') and os.path.exists(self.c.dir):
            self.c.down(check=False)
            log = self.c.log()
            bad = [l for l in log.splitlines() if ' ERROR ' in l or 'panicked' in l]
            self.bad_log = [] if getattr(self, 'errors_expected', False) else bad
        if hasattr(self, 'scratch'):
            self.clients.leave()
            shutil.rmtree(self.scratch, ignore_errors=True)
