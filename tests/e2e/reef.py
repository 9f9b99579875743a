"""Ceph 18.2 beside the 16.2 of this machine: programs of a Debian 13 that `cargo xtask test` unpacks, run by chroot as if they were this
machine's. Wrappers by their names stand first in PATH, so that whoever starts them by name (`spirula up --with …`, too) gets those."""
import os, shutil, subprocess
from harness import Clients, Skip

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.environ.get('REEF') or os.path.join(HERE, '../../target/reef')


class Reef:
    """Some of its programs, from `enter` to `leave`."""

    def __init__(self, *programs):
        if os.geteuid():
            raise Skip('another Debian by chroot needs root')
        self.root = os.path.realpath(ROOT)
        self.programs = {p: shutil.which(p, path=f'{self.root}/usr/bin:{self.root}/usr/sbin') for p in programs}
        for program, at in self.programs.items():
            if not at:
                raise Skip(f'{program} 18.2 is not below {ROOT}')
        self.clients, self.path = Clients(self.root), None

    def enter(self, scratch):
        self.clients.enter(scratch)
        folder = os.path.join(scratch, 'reef-bin')
        os.makedirs(folder)
        for program, at in self.programs.items():
            with open(os.path.join(folder, program), 'w') as f:
                # `exec` twice: the process stays the same, and its arguments are those that it was given. By its path, since this
                # folder stands first in PATH in there, too.
                f.write(f'#!/bin/sh\nexec chroot {self.root} {at[len(self.root):]} "$@"\n')
            os.chmod(f.name, 0o755)
        self.path = os.environ['PATH']
        os.environ['PATH'] = f'{folder}:{self.path}'

    def leave(self):
        if self.path:
            os.environ['PATH'], self.path = self.path, None
        self.clients.leave()

    def inside(self, path):
        """A path in there, as it is seen from here: what is mounted in there is nowhere else."""
        return self.root + path

    def python(self, code, *args, timeout=120):
        argv = self.clients.wrap(['/usr/bin/python3', '-c', code, *args])
        r = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
        assert r.returncode == 0, (r.stdout, r.stderr)
        return r.stdout
