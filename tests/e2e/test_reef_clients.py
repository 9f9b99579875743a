"""Reef's (18.2) `rados`, `rbd`, python3-rados and python3-rbd, of the Debian 13 that `cargo xtask test` makes: a short choice of what
Debian 12's do in the other classes. With `--reef`, or `run.py --clients`, all of those run with Reef's."""
import os
import test_rados, test_rbd, test_rbd_rest, test_rbd_snaps
from harness import Clients, Skip

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.environ.get('REEF') or os.path.join(HERE, '../../target/reef'))


def reefs(clients):
    """The clients of that Debian, if it is here."""
    if clients.root:
        raise Skip('these are the clients that all classes run with')
    if os.geteuid():
        raise Skip('another Debian by chroot needs root')
    for program in ('rados', 'rbd'):
        if not os.access(f'{ROOT}/usr/bin/{program}', os.X_OK):
            raise Skip(f'{program} 18.2 is not below {ROOT}')
    return Clients(ROOT)


class ReefRados(test_rados.Librados):
    def setup(self, clients):
        super().setup(reefs(clients))
        assert ' 18.2.' in self.c.rados('--version').out

    test_basic_api_behaves_as_against_ceph = test_rados.Librados.test_basic_api_behaves_as_against_ceph


class ReefRbd(test_rbd.Rbd):
    minutes = 0

    def setup(self, clients):
        super().setup(reefs(clients))

    test_01_pool_and_image = test_rbd.Rbd.test_01_pool_and_image
    test_02_api = test_rbd.Rbd.test_02_api
    test_03_import_export_copy_and_du = test_rbd.Rbd.test_03_import_export_copy_and_du
    test_04_metadata_locks_features_and_watchers = test_rbd.Rbd.test_04_metadata_locks_features_and_watchers
    test_05_trash_and_namespaces = test_rbd.Rbd.test_05_trash_and_namespaces
    test_06_groups = test_rbd.Rbd.test_06_groups
    test_08_lock_goes_from_one_client_to_the_other = test_rbd.Rbd.test_08_lock_goes_from_one_client_to_the_other


class ReefSnapshots(test_rbd_snaps.RbdSnapshots):
    minutes = 0

    def setup(self, clients):
        super().setup(reefs(clients))

    test_1_snapshots = test_rbd_snaps.RbdSnapshots.test_1_snapshots
    test_3_clones_of_the_second_kind = test_rbd_snaps.RbdSnapshots.test_3_clones_of_the_second_kind
    test_4_differences_travel = test_rbd_snaps.RbdSnapshots.test_4_differences_travel


class ReefRbdApi(test_rbd_rest.RbdApi):
    def setup(self, clients):
        super().setup(reefs(clients))

    test_each_function_of_python3_rbd = test_rbd_rest.RbdApi.test_each_function_of_python3_rbd
