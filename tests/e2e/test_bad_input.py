"""Garbage on the wire, damaged files: clear errors, the daemon lives, other clients do not notice."""
import json, os, random, socket, struct
from harness import Case, Cluster, Load

STEADY = '''
import os, rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx(sys.argv[2]) as io:
    n = 0
    while not os.path.exists(sys.argv[3]):
        io.write_full('steady', b'%d' % n); assert io.read('steady') == b'%d' % n; n += 1
        did()
'''


def banner(features=1, required=0):
    return b'ceph v2\n' + struct.pack('<HQQ', 16, features, required)


class Wire(Case):
    errors_expected = False

    def ports(self):
        dump = self.c.json('osd', 'dump')
        osd = [int(o['public_addrs']['addrvec'][0]['addr'].rsplit(':', 1)[1]) for o in dump['osds']]
        return [self.c.port] + osd

    def send(self, port, data, wait=2):
        with socket.create_connection(('127.0.0.1', port), timeout=60) as s:
            s.settimeout(wait)
            got = b''
            try:
                for at in range(0, len(data), 65536):
                    s.sendall(data[at:at + 65536])
                s.shutdown(socket.SHUT_WR)
                while True:
                    b = s.recv(65536)
                    if not b:
                        break
                    got += b
            except OSError:
                pass
            return got

    def test_garbage_on_every_port_does_not_disturb_a_client(self):
        rng = random.Random(7)
        ports = self.ports()
        load = Load(self.c, STEADY, 'data')
        load.goes_on(1)
        for _ in range(5):
            for port in ports:
                self.send(port, rng.randbytes(rng.randrange(1, 4000)))
                self.send(port, banner() + rng.randbytes(rng.randrange(1, 4000)))
                self.send(port, banner() + struct.pack('<BB', 17, 4) + b'\xff' * 30)
                self.send(port, banner()[:rng.randrange(1, 26)])
                self.send(port, b'GET / HTTP/1.1\r\nHost: x\r\n\r\n')
                self.send(port, b'ceph v027' + bytes(280))
            # It is answered after each round as before the first.
            load.goes_on(5)
        load.end()
        self.c.wait_healthy()

    def test_many_half_open_connections_leave_room_for_clients(self):
        socks = [socket.create_connection(('127.0.0.1', self.c.port)) for _ in range(200)]
        for s in socks[::2]:
            s.sendall(banner())
        self.c.ceph('-s')
        for s in socks:
            s.close()

    def test_frame_that_declares_a_huge_length_takes_no_memory(self):
        # A valid preamble (crc32c, seed 0) announcing 4 GiB segments.
        import binascii
        table = []
        for i in range(256):
            c = i
            for _ in range(8):
                c = (c >> 1) ^ 0x82f63b78 if c & 1 else c >> 1
            table.append(c)

        def crc(data, c=0):
            for b in data:
                c = table[(c ^ b) & 255] ^ (c >> 8)
            return c
        pre = struct.pack('<BB', 1, 4) + struct.pack('<IH', 0xffffffff, 8) * 4 + b'\0\0'

        def memory():
            with open(f'/proc/{self.c.pid()}/status') as f:
                rows = dict(l.split(':', 1) for l in f)
            return [int(rows[k].split()[0]) << 10 for k in ('VmHWM', 'VmPeak')]
        before = memory()
        for port in self.ports():
            for _ in range(5):
                self.send(port, banner() + pre + struct.pack('<I', crc(pre)) + bytes(100000))
        used, asked = (a - b for a, b in zip(memory(), before))
        print(f'figure: 20 frames of 16 GiB: {used >> 20} MiB more were used at most, {asked >> 20} MiB more asked for')
        # Each of its four segments would be 4 GiB, whether anything is written there or not. Seen: less than 64 MiB.
        assert used < 640 << 20 and asked < 2 << 30, (used, asked)


class DamagedFiles(Case):
    start = False
    errors_expected = True

    def damage(self, name, path, change):
        d = Cluster(self.scratch, self.clients, name, args=['--osds', '1'])
        d.up()
        d.rados('-p', 'data', 'put', 'x', '/etc/hostname')
        d.down()
        full = os.path.join(d.dir, path)
        with open(full, 'r+b') as f:
            change(f)
        head = lambda: open(full, 'rb').read(1 << 20)
        before = head()
        r = d.up(check=False)
        assert r.code == 1 and os.path.basename(os.path.dirname(full)) in r.err, r
        assert head() == before, 'the damaged file was written to'
        return r

    def test_damaged_store_superblock_is_refused_by_name(self):
        # Both copies: a device begins with 128 KiB of labels.
        r = self.damage('s', 'osd.0/block', lambda f: f.write(os.urandom(128 << 10)))
        assert 'superblock' in r.err or 'label' in r.err or 'no store' in r.err, r

    def test_damaged_cluster_file_is_refused_by_name(self):
        d = Cluster(self.scratch, self.clients, 'm', args=['--osds', '1'])
        d.up()
        d.down()
        open(os.path.join(d.dir, 'cluster.json'), 'w').write('{ this is not json')
        r = d.up(check=False)
        assert r.code == 1 and 'cluster.json' in r.err, r

    def test_typo_in_the_clients_conf_is_the_clients_error(self):
        d = Cluster(self.scratch, self.clients, 't', args=['--osds', '1'])
        d.up()
        text = open(d.conf).read()
        open(d.conf, 'w').write(text.replace('auth_client_required = cephx', 'auth_client_required = cpehx'))
        r = d.ceph('-s', check=False)
        assert r.code != 0, r
        d.down()
        # Yours to edit; once gone it is written anew.
        os.remove(d.conf)
        d.up()
        d.ceph('-s')
        d.down()
