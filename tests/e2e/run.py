#!/usr/bin/python3
"""End-to-end tests: unmodified Ceph clients against a Spirula started as the README says.
usage: run.py [--binary PATH] [--only WORD] [--classes A,B] [--quick] [--nightly] [--clients DEBIAN_ROOT] [PYTEST OPTIONS]
--only: tests whose Class.test contains the word; --classes: those classes; --quick: a dozen classes that touch everything once;
--nightly: also the tests that take too long for every change. Three classes at a time, or as many as the disk has room for; with
--only or with -n 0, one after the other. Options of pytest: -k EXPRESSION, --durations N, --junit-xml FILE, -x, -s,
--collect-only, ..."""
import os, subprocess, sys
import harness

HERE = os.path.dirname(os.path.abspath(__file__))
# Debian's, not another that stands before it in PATH: it has Ceph's and pytest's packages.
PYTHON = '/usr/bin/python3'


def has(module):
    return subprocess.run([PYTHON, '-c', f'import {module}'], capture_output=True).returncode == 0


if __name__ == '__main__':
    args = sys.argv[1:]
    if '--help' in args or '-h' in args:
        sys.exit(__doc__)
    if not has('pytest'):
        sys.exit('FAILED before the first test: pytest is not installed (Debian: apt-get install python3-pytest python3-pytest-xdist)')
    # Later options win over these.
    only = any(a.startswith('--only') for a in args)
    # They wait more than they compute: three leave two cores less idle than two.
    many = 0 if only else next((n for n in (3, 2) if not harness.lack_of_room(n)), 0)
    beside = ['-n', str(many), '--dist', 'loadscope'] if has('xdist') else []
    os.environ['PYTHONDONTWRITEBYTECODE'] = '1'
    os.execv(PYTHON, [PYTHON, '-m', 'pytest', HERE, '-v', '-rfEs', '--durations=15', '--tb=short', '-c', f'{HERE}/pytest.ini', f'--rootdir={HERE}', *beside, *args])
