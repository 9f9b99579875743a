"""Two clusters and Debian's `rbd-mirror` between them: images whose journal is followed, images whose snapshots are, and a change of sides."""
import json, os, shutil, signal, subprocess
from harness import Cluster, Skip, wait
from images import Images

MB = 1 << 20


class Mirror(Images):
    """The cluster `c` is mirrored to the cluster `far`, and back."""
    args = ['--osds', '2', '--osd-size', '2G']
    minutes = 1

    def setup(self, clients):
        self.daemons = []
        if not clients.root and not shutil.which('rbd-mirror') or clients.root and not os.access(f'{clients.root}/usr/bin/rbd-mirror', os.X_OK):
            raise Skip('rbd-mirror is not installed')
        super().setup(clients)
        self.far = Cluster(self.scratch, clients, 'far', args=self.args)
        self.far.up()

    def teardown(self):
        for d in self.daemons:
            d.kill()
            d.wait(120)
        if hasattr(self, 'far'):
            self.far.down(check=False)
        super().teardown()

    def mirror(self, cluster, name):
        """The daemon that brings what the other side has to this cluster."""
        log = os.path.join(self.scratch, f'mirror-{name}.log')
        # A user as the documentation makes it.
        user = f'rbd-mirror.{name}'
        keyring = self.file(f'{user}.keyring', cluster.ceph('auth', 'get-or-create', f'client.{user}', 'mon', 'profile rbd-mirror', 'osd', 'profile rbd').out.encode())
        argv = ['rbd-mirror', '-f', '-c', cluster.conf, '--id', user, '--keyring', keyring, '--log-file', log, '--admin-socket', os.path.join(self.scratch, f'{name}.asok'),
                '--pid-file', os.path.join(self.scratch, f'{name}.pid'), '--rbd-mirror-image-state-check-interval', '2', '--rbd-mirror-pool-replayers-refresh-interval', '2',
                '--rbd-mirror-sync-point-update-age', '1']
        # For each of its pools it reads the file of the cluster that is named `ceph`, not the one of its own command line.
        env = {**os.environ, 'CEPH_CONF': cluster.conf}
        self.daemons.append(subprocess.Popen(self.clients.wrap(argv), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env))

    def state(self, cluster, image):
        r = cluster.run('rbd', 'mirror', 'image', 'status', image, '--format', 'json', check=False)
        return json.loads(r.out) if r.code == 0 else {'state': r.err}

    def is_at(self, cluster, image, data):
        """Does this side have an image with these bytes?"""
        path = os.path.join(self.scratch, 'seen')
        if os.path.exists(path):
            os.remove(path)
        r = cluster.run('rbd', 'export', image, path, '--no-progress', check=False)
        return r.code == 0 and open(path, 'rb').read() == data

    def arrives(self, cluster, image, data):
        wait(lambda: self.is_at(cluster, image, data), lambda: f'{image}: {self.state(cluster, image)}', pause=0.5)

    def write(self, cluster, image, data):
        cluster.python('''
import rados, rbd, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('rbd') as io, rbd.Image(io, sys.argv[2]) as i:
    i.write(open(sys.argv[3], 'rb').read(), 0)
    i.flush()
''', image, self.file('data', data))

    def status(self, cluster):
        """What `rbd mirror pool status --verbose` says."""
        return json.loads(cluster.run('rbd', 'mirror', 'pool', 'status', 'rbd', '--verbose', '--format', 'json').out)

    def is_fine(self, cluster):
        told = self.status(cluster)
        summary = told['summary']
        return all(summary[k] == 'OK' for k in ('health', 'daemon_health', 'image_health')) and summary['states'] == {'replaying': 2} and told

    def test_1_images_are_followed_by_journal_and_by_snapshots(self):
        here, far = self.c, self.far
        for cluster, site in ((here, 'here'), (far, 'far')):
            cluster.ceph('osd', 'pool', 'create', 'rbd', '8')
            cluster.run('rbd', 'pool', 'init', 'rbd')
            cluster.run('rbd', 'mirror', 'pool', 'enable', '--site-name', site, 'rbd', 'image')
        token = self.file('token', here.run('rbd', 'mirror', 'pool', 'peer', 'bootstrap', 'create', 'rbd').out.strip().encode())
        far.run('rbd', 'mirror', 'pool', 'peer', 'bootstrap', 'import', '--direction', 'rx-tx', 'rbd', token)
        peers = json.loads(far.run('rbd', 'mirror', 'pool', 'info', 'rbd', '--all', '--format', 'json').out)['peers']
        assert [p['site_name'] for p in peers] == ['here'] and peers[0]['client_name'] == 'client.rbd-mirror-peer', peers
        self.mirror(far, 'far')
        self.mirror(here, 'here')
        first, then = os.urandom(6 * MB) + bytes(2 * MB), os.urandom(5 * MB) + bytes(3 * MB)
        here.run('rbd', 'import', self.file('first', first), 'journaled', '--image-feature', 'exclusive-lock,journaling', '--no-progress')
        here.run('rbd', 'mirror', 'image', 'enable', 'journaled', 'journal')
        here.run('rbd', 'import', self.file('first', first), 'snapped', '--no-progress')
        here.run('rbd', 'mirror', 'image', 'enable', 'snapped', 'snapshot')
        for image in ('journaled', 'snapped'):
            self.arrives(far, image, first)
            wait(lambda: self.state(far, image)['state'] == 'up+replaying', lambda: self.state(far, image))

        # What is written later follows, by itself or by the next snapshot.
        for image in ('journaled', 'snapped'):
            self.write(here, image, then)
        self.arrives(far, 'journaled', then)
        assert self.is_at(far, 'snapped', first)
        here.run('rbd', 'mirror', 'image', 'snapshot', 'snapped')
        self.arrives(far, 'snapped', then)

    def test_2_both_sides_tell_that_all_is_well(self):
        for cluster, name in ((self.c, 'here'), (self.far, 'far')):
            told = wait(lambda: self.is_fine(cluster), lambda: self.status(cluster), pause=0.5)
            [daemon] = told['daemons']
            assert daemon['leader'] is True and daemon['health'] == 'OK' and daemon['client_id'] == name, daemon
            assert [i['name'] for i in told['images']] == ['journaled', 'snapped'], told['images']
            # The daemon is one of the cluster's services, to whomever it is asked.
            shown = lambda: cluster.ceph('-s').out
            wait(lambda: '    rbd-mirror: 1 daemon active (1 hosts)\n' in (text := shown()) and '    mon:        1 daemons' in text, shown)
            by_manager, by_monitor = cluster.json('service', 'dump'), cluster.json('-s')['servicemap']
            for dump in (by_manager, by_monitor):
                daemons = dump['services']['rbd-mirror']['daemons']
                assert daemons[daemon['service_id']]['metadata']['id'] == name, dump
            [said] = cluster.json('service', 'status')['rbd-mirror'].values()
            assert '"leader":true' in said['status']['json'], said
            assert sum(cluster.json('versions')['rbd-mirror'].values()) == 1

    def test_3_an_osd_restarts_meanwhile(self):
        data = os.urandom(8 * MB)
        self.far.spirula('osd', 'stop', '1', '--dir', self.far.dir)
        self.write(self.c, 'journaled', data)
        self.far.spirula('osd', 'start', '1', '--dir', self.far.dir)
        self.arrives(self.far, 'journaled', data)

    def test_4_sides_change(self):
        here, far = self.c, self.far
        for image in ('journaled', 'snapped'):
            here.run('rbd', 'mirror', 'image', 'demote', image)
            promoted = lambda: far.run('rbd', 'mirror', 'image', 'promote', image, check=False).code == 0
            wait(promoted, lambda: f'{image} to be promoted: {self.state(far, image)}', pause=0.5)
            assert json.loads(far.run('rbd', 'info', image, '--format', 'json').out)['mirroring']['primary'] is True
            data = os.urandom(8 * MB)
            self.write(far, image, data)
            if image == 'snapped':
                far.run('rbd', 'mirror', 'image', 'snapshot', image)
            self.arrives(here, image, data)
            refused = here.run('rbd', 'bench', '--io-type', 'write', '--io-total', '4096', image, check=False)
            assert refused.code != 0, 'who is not the primary was written to'

    def test_5_a_copy_is_made_anew(self):
        """By `resync`, of a side that was made the primary while the other was it, too."""
        here, far = self.c, self.far
        for image in ('journaled', 'snapped'):
            old = json.loads(here.run('rbd', 'info', image, '--format', 'json').out)['id']
            here.run('rbd', 'mirror', 'image', 'promote', '--force', image)
            self.write(here, image, os.urandom(8 * MB))
            data = os.urandom(8 * MB)
            self.write(far, image, data)
            if image == 'snapped':
                far.run('rbd', 'mirror', 'image', 'snapshot', image)
            here.run('rbd', 'mirror', 'image', 'demote', image)
            wait(lambda: 'split-brain' in json.dumps(self.state(here, image)), lambda: f'{image} to be told apart: {self.state(here, image)}', pause=0.5)
            here.run('rbd', 'mirror', 'image', 'resync', image)
            self.arrives(here, image, data)
            assert json.loads(here.run('rbd', 'info', image, '--format', 'json').out)['id'] != old

    def test_6_a_daemon_that_ends_is_no_service_any_more(self):
        daemon = self.daemons[0]
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(120)
        wait(lambda: 'rbd-mirror' not in self.far.ceph('-s').out, lambda: self.far.ceph('-s').out)
        assert self.far.json('service', 'dump')['services'] == {}
        assert self.status(self.far)['daemons'] == []
