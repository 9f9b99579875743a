#!/usr/bin/python3
"""End-to-end tests: unmodified Ceph clients against a Spirula started as the README says.
usage: run.py --binary PATH [--clients DEBIAN_ROOT] [--label NAME] [--only WORD]"""
import argparse, importlib, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness

# In this order; each is the file test_NAME.py.
FILES = '''up rados ceph durability bad_input osd heal processes join auth scrub store bad_stores domains thrash merge ec states moves
           alike partition absent mtu backoff slow flood rollback disks limits admin'''.split()

if __name__ == '__main__':
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument('--binary', required=True)
    a.add_argument('--clients')
    a.add_argument('--label', default='')
    a.add_argument('--only', default='')
    a = a.parse_args()
    harness.BINARY = os.path.abspath(a.binary)
    harness.LABEL = a.label + ':' if a.label else ''
    lack = harness.lack_of_room()
    if lack:
        sys.exit(f'FAILED before the first test: {lack}')
    clients = harness.Clients(os.path.abspath(a.clients) if a.clients else None)
    cases = [c for name in FILES
             for c in vars(importlib.import_module(f'test_{name}')).values() if isinstance(c, type) and issubclass(c, harness.Case) and c is not harness.Case]
    sys.exit(0 if harness.run_all(cases, clients, a.only) else 1)
