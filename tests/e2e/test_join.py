"""New hosts: `spirula token create` and `spirula join`, and monitors found by DNS."""
import json, os, subprocess, time
import netns
from harness import Case, Skip
from test_processes import Hosts

# Answers SRV questions for the monitors, and A questions for their names.
DNS = r'''
import json, socket, struct, sys
mons = json.loads(sys.argv[2])  # name -> address
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[3], 53))
print('begun', flush=True)
def name(n):
    return b''.join(bytes([len(l)]) + l.encode() for l in n.split('.')) + b'\0'
while True:
    q, who = s.recvfrom(4096)
    at, labels = 12, []
    while q[at]:
        labels.append(q[at + 1:at + 1 + q[at]].decode())
        at += 1 + q[at]
    kind = struct.unpack('>H', q[at + 1:at + 3])[0]
    asked, question = '.'.join(labels).lower(), q[12:at + 5]
    out = []
    if kind == 33 and asked == '_ceph-mon._tcp.spirula.test':
        for i, m in enumerate(sorted(mons)):
            data = struct.pack('>HHH', 10, 60 - i, 3300) + name(m + '.spirula.test')
            out.append(b'\xc0\x0c' + struct.pack('>HHIH', 33, 1, 60, len(data)) + data)
    host = asked.split('.')[0]
    if kind == 1 and asked.endswith('.spirula.test') and host in mons:
        out.append(b'\xc0\x0c' + struct.pack('>HHIH', 1, 1, 60, 4) + socket.inet_aton(mons[host]))
    code = 0 if out or host in mons else 3
    s.sendto(q[:2] + struct.pack('>HHHHH', 0x8180 | code, 1, len(out), 0, 0) + question + b''.join(out), who)
'''


class Join(Hosts):
    mons = ['a', 'b', 'c']

    def test_a_token_brings_one_host_in_once(self):
        new = self.net['client']
        token = self.token()
        location = ['--crush-location', 'root=default rack=r1', '--device-class', 'nvme', '--host', 'newhost']
        r = new.spirula('join', token, '--dir', new.dir, '--osds', '2', '--osd-size', '1G', *location)
        assert 'joined cluster' in r.out and 'osd.3, osd.4' in r.out, r
        self.wait_osds(5)
        tree = {n['name']: n for n in self.json('osd', 'tree')['nodes']}
        assert tree['newhost']['id'] in tree['r1']['children'], tree
        assert sorted(tree['newhost']['children']) == [3, 4] and tree['osd.3']['device_class'] == 'nvme', tree
        # No file was copied: the directory has nothing that the token and the monitors did not give.
        for name in ['ceph.conf', 'ceph.osd.3.keyring', 'ceph.osd.4.keyring']:
            assert os.path.exists(os.path.join(new.dir, name)), os.listdir(new.dir)
        assert not os.path.exists(os.path.join(new.dir, 'ceph.client.admin.keyring'))
        assert os.stat(os.path.join(new.dir, 'ceph.osd.3.keyring')).st_mode & 0o777 == 0o600
        r = self.net['dns'].spirula('join', token, '--dir', self.net['dns'].dir, check=False)
        assert r.code == 1 and 'was used by newhost' in r.err, r
        shown = json.loads(self.net['a'].spirula('token', 'ls', '--dir', self.net['a'].dir).out)
        assert any(t['used'] and t['used']['host'] == 'newhost' for t in shown), shown
        # What is for the clusters of `spirula up` says what this directory is.
        for words in (['status'], ['down'], ['osd', 'stop', '3'], ['up']):
            r = new.spirula(*words, '--dir', new.dir, check=False)
            assert r.code == 1 and f'spirula host ls|start|stop --dir {new.dir}' in r.err, (words, r)
        # Data goes there.
        self.ceph('osd', 'crush', 'rule', 'create-replicated', 'new', 'r1', 'osd')
        self.ceph('osd', 'pool', 'create', 'there', '4', '4', 'replicated', 'new', '--size', '2')
        self.rados('-p', 'there', 'put', 'x', self.sample())
        assert {3, 4} == set(self.json('osd', 'map', 'there', 'x')['acting'])
        new.stop()
        new.start()
        self.wait_osds(5)

    def test_an_interrupted_join_goes_on_with_the_same_osds(self):
        new = self.net['dns']
        token = self.token()
        # A store that cannot be made: its place is taken.
        before = self.json('osd', 'ls')
        n = max(before) + 1
        os.makedirs(os.path.join(new.dir, f'osd.{n}'), exist_ok=True)
        with open(os.path.join(new.dir, f'osd.{n}', 'mine'), 'w') as f:
            f.write('not a store')
        r = new.spirula('join', token, '--dir', new.dir, '--osd-size', '1G', check=False)
        assert r.code == 1 and f'osd.{n}' in r.err, r
        os.remove(os.path.join(new.dir, f'osd.{n}', 'mine'))
        new.spirula('join', token, '--dir', new.dir, '--osd-size', '1G', '--no-start')
        assert self.json('osd', 'ls') == before + [n]
        assert not os.path.exists(os.path.join(new.dir, 'join.json'))

    def test_tokens_that_are_none_are_refused_with_the_reason(self):
        a, new = self.net['a'], self.net['dns']
        d = os.path.join(self.scratch, 'refused')

        def refused(token, why, *more):
            r = new.spirula('join', token, '--dir', d, *more, check=False)
            assert r.code == 1 and why in r.err, (why, r)
        refused('hello', 'no join token')
        token = self.token()
        refused(token[:-8], 'damaged')
        refused(token[:40] + ('A' if token[40] != 'A' else 'B') + token[41:], 'damaged')
        refused(token, 'not for a monitor', '--mon')
        listed = json.loads(a.spirula('token', 'ls', '--dir', a.dir).out)
        newest = max(listed, key=lambda t: t['made'])['id']
        a.spirula('token', 'rm', newest, '--dir', a.dir)
        refused(token, 'do not let us in')
        r = a.spirula('token', 'create', '--dir', a.dir, '--life', '5s', check=False)
        assert r.code == 2 and '--life' in r.err, r
        # A token's user may redeem it and nothing else.
        user = json.loads(self.ceph('auth', 'ls', '-f', 'json').out)['auth_dump']
        caps = [u['caps'] for u in user if u['entity'].startswith('client.join-')]
        assert all(c == {'mon': 'allow command "join-token redeem"'} for c in caps), caps

    def test_a_block_device_that_holds_something_is_not_taken(self):
        image = os.path.join(self.scratch, 'disk')
        with open(image, 'wb') as f:
            f.truncate(2 << 30)
        r = subprocess.run(['losetup', '-f', '--show', image], capture_output=True, text=True)
        if r.returncode:
            raise Skip(f'no loop device can be made here: {r.stderr.strip()}')
        device = r.stdout.strip()
        try:
            a = self.net['a']
            with open(device, 'r+b') as f:
                f.write(b'somebody' * 512)
            subprocess.run(['mkfs.ext4', '-q', '-F', device], check=True)
            r = a.spirula('join', self.token(), '--dir', a.dir, '--device', device, check=False)
            assert r.code == 1 and device in r.err, r
            subprocess.run(['wipefs', '-aq', device], check=True)
            with open(device, 'r+b') as f:
                f.write(bytes(4 << 20))
            r = a.spirula('join', self.token(), '--dir', a.dir, '--device', device)
            osd = r.out.split('host a: ')[1].split()[0].strip()
            assert os.readlink(os.path.join(a.dir, osd, 'block')) == device
            a.stop(osd)
        finally:
            subprocess.run(['losetup', '-d', device], capture_output=True)

    def test_monitors_are_found_by_dns(self):
        dns, a = self.net['dns'], self.net['a']
        mons = {n: self.net[n].addr() for n in self.mons}
        p = self.python(DNS, json.dumps(mons), dns.addr(), host=dns)
        etc = f'/etc/netns/{self.client.ns}'
        os.makedirs(etc, exist_ok=True)
        try:
            assert p.stdout.readline() == 'begun\n', p.stderr.read()
            with open(f'{etc}/resolv.conf', 'w') as f:
                f.write(f'nameserver {dns.addr()}\nsearch spirula.test\n')
            conf = os.path.join(self.scratch, 'dns.conf')
            with open(self.conf) as f, open(conf, 'w') as g:
                g.write(''.join(l for l in f if not l.startswith('mon_host')))
            argv = ['token', 'ls', '--dir', os.path.join(self.scratch, 'none'), '-c', conf]
            assert json.loads(self.client.spirula(*argv).out) is not None
            # Ceph's own client finds the same ones.
            r = self.client.run(*self.clients.wrap(['timeout', '200', 'ceph', '-c', conf, 'fsid']))
            assert r.out.strip() == self.ceph('fsid').out.strip()
            with open(conf, 'a') as g:
                g.write('mon_dns_srv_name = nobody\n')
            r = self.client.spirula(*argv, check=False)
            assert r.code == 1 and '_nobody._tcp' in r.err, r
        finally:
            p.kill()
            os.remove(f'{etc}/resolv.conf')
            os.rmdir(etc)

    def test_monitors_listen_where_they_are_told_and_one_that_lives_keeps_its_name(self):
        new = self.net['dns']
        at = f'{new.addr()}:3311'
        new.spirula('join', self.token('--mon'), '--dir', new.dir, '--osds', '0', '--mon', 'd', '--mon-addr', at)
        self.wait_quorum([*self.mons, 'd'])
        mons = {m['name']: m['public_addrs']['addrvec'][0]['addr'] for m in self.json('mon', 'dump')['mons']}
        assert mons['d'] == at, mons
        # Another one of that name is refused while it is heard.
        r = self.net['client'].spirula('join', self.token('--mon'), '--dir', os.path.join(self.scratch, 'second'), '--osds', '0', '--mon', 'd',
                                       check=False)
        assert r.code == 1 and 'd' in r.err and 'panicked' not in r.err, r
        assert {m['name']: m['public_addrs']['addrvec'][0]['addr'] for m in self.json('mon', 'dump')['mons']} == mons
        self.wait_quorum([*self.mons, 'd'])
