#!/usr/bin/python3
"""End-to-end tests: unmodified Ceph clients against a Spirula started as the README says.
usage: run.py [--binary PATH] [--only WORD] [--clients DEBIAN_ROOT] [PYTEST OPTIONS]
Two classes at a time; with --only, with -n 0, or where the disk has no room for two, one after the other. Options of
pytest: -k EXPRESSION, --durations N, --junit-xml FILE, -x, -s, --collect-only, ..."""
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
    one = any(a.startswith('--only') for a in args) or harness.lack_of_room(2)
    two = ['-n', '0' if one else '2', '--dist', 'loadscope'] if has('xdist') else []
    os.environ['PYTHONDONTWRITEBYTECODE'] = '1'
    os.execv(PYTHON, [PYTHON, '-m', 'pytest', HERE, '-v', '-rfEs', '--durations=15', '--tb=short', '-c', f'{HERE}/pytest.ini', f'--rootdir={HERE}', *two, *args])
