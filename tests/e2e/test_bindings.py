"""Programs in C++ and in Go, built with Debian's headers and with go-ceph; python3-rados and C's functions are in the other classes."""
import os, shutil, signal, subprocess
from harness import PATIENCE, Case, Skip

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bindings')
# One of Ceph 16's time: a newer one asks for functions that Debian 12's librados lacks.
GO_CEPH = 'v0.20.0'
# The last whose own tests are for Pacific.
GO_SUITE = 'v0.22.0'


class Bindings(Case):
    args = ['--osds', '2', '--osd-size', '2G']

    def built(self, argv, **kw):
        r = subprocess.run(argv, capture_output=True, text=True, timeout=1200, **kw)
        assert r.returncode == 0, (argv, r.stdout, r.stderr)

    def fine(self, program):
        r = subprocess.run([program, self.c.conf, 'data'], capture_output=True, text=True, timeout=240)
        assert r.returncode == 0 and r.stdout.strip() == 'fine', (r.returncode, r.stdout, r.stderr)

    def lacks(self, *programs):
        if self.clients.root:
            raise Skip('programs are built for this Debian')
        for program in programs:
            if not shutil.which(program):
                raise Skip(f'{program} is not installed')
        for header, package in (('rados/librados.hpp', 'libradospp-dev'), ('rados/librados.h', 'librados-dev'), ('rbd/librbd.hpp', 'librbd-dev')):
            if not os.path.exists(f'/usr/include/{header}'):
                raise Skip(f'{package} is not installed')

    def test_cpp(self):
        self.lacks('g++')
        program = os.path.join(self.scratch, 'use-cpp')
        self.built(['g++', '-std=c++17', '-Wall', '-Werror', '-o', program, f'{HERE}/use.cc', '-lrados', '-lrbd'])
        self.fine(program)

    def test_go(self):
        self.lacks('go', 'gcc')
        folder = os.path.join(self.scratch, 'go')
        os.makedirs(folder)
        shutil.copy(f'{HERE}/use.go', os.path.join(folder, 'main.go'))
        with open(os.path.join(folder, 'go.mod'), 'w') as f:
            f.write(f'module use\n\ngo 1.18\n\nrequire github.com/ceph/go-ceph {GO_CEPH}\n')
        env = dict(os.environ, GOFLAGS='-mod=mod', CGO_CFLAGS='-O0')
        r = subprocess.run(['go', 'mod', 'download', 'github.com/ceph/go-ceph'], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
        if r.returncode:
            raise Skip(f'go-ceph cannot be had: {r.stderr.strip()[:200]}')
        self.built(['go', 'build', '-o', 'use-go', '.'], cwd=folder, env=env)
        self.fine(os.path.join(folder, 'use-go'))

    def test_go_suite(self):
        """go-ceph's own tests of librados, all that there are for Pacific: they make pools, snapshots and crash reports, and ask monitors and the manager."""
        self.lacks('go', 'gcc')
        folder = os.path.join(self.scratch, 'go-suite')
        os.makedirs(folder)
        with open(os.path.join(folder, 'go.mod'), 'w') as f:
            f.write(f'module use\n\ngo 1.19\n\nrequire github.com/ceph/go-ceph {GO_SUITE}\n')
        env = dict(os.environ, GOFLAGS='-mod=mod', CGO_CFLAGS='-O0', CEPH_CONF=self.c.conf)
        package = 'github.com/ceph/go-ceph/rados'
        r = subprocess.run(['go', 'get', '-t', f'{package}@{GO_SUITE}'], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
        if r.returncode:
            raise Skip(f'go-ceph cannot be had: {r.stderr.strip()[:200]}')
        self.built(['go', 'test', '-c', '-tags', 'pacific', '-o', 'suite', package], cwd=folder, env=env)
        # Ten of its pools have the usual number of PGs, more than two OSDs may have.
        self.c.ceph('config', 'set', 'mon', 'mon_max_pg_per_osd', '1000')
        # librados 16.2 now and then ends with a segmentation fault when it pings a monitor, whichever cluster that is of (go-ceph's issue 921,
        # Ceph's pull request 71797; `test_rados_rest` counted it beside a real Ceph): what comes of that says nothing.
        for _ in range(10):
            r = subprocess.run(['./suite', '-test.v'], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
            last = (r.stdout.strip().splitlines() or [''])[-1]
            if not (r.returncode == -signal.SIGSEGV and last.endswith('/TestPingMonitor')):
                break
        failed = [line.strip() for line in r.stdout.splitlines() if line.strip().startswith('--- FAIL')]
        assert r.returncode == 0, (r.returncode, failed, r.stdout[-3000:], r.stderr[-1000:])
