#!/usr/bin/python3
"""End-to-end tests: unmodified Ceph clients against a Spirula started as the README says.
usage: run.py --binary PATH [--clients DEBIAN_ROOT] [--label NAME] [--only WORD]"""
import argparse, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import test_up, test_rados, test_ceph, test_durability, test_bad_input, test_osd, test_heal, test_processes, test_join, test_auth, test_scrub, test_store, test_bad_stores, test_domains, test_thrash, test_merge, test_ec, test_states, test_moves, test_alike, test_partition, test_absent

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
    cases = [c for m in (test_up, test_rados, test_ceph, test_durability, test_bad_input, test_osd, test_heal, test_processes, test_join, test_auth, test_scrub, test_store, test_bad_stores, test_domains, test_thrash, test_merge, test_ec, test_states, test_moves, test_alike, test_partition, test_absent)
             for c in vars(m).values() if isinstance(c, type) and issubclass(c, harness.Case) and c is not harness.Case]
    sys.exit(0 if harness.run_all(cases, clients, a.only) else 1)
