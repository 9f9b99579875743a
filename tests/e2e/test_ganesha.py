"""NFS on Spirula: Debian's nfs-ganesha with its library for CephFS, unchanged; the kernel's own NFS client, in a virtual machine, is its client.

Not libnfs of Debian 12, which cannot write by NFS 4: it never asks a server how much it takes, and cannot encode 4 KiB and more. On a real
Ceph it fails alike."""
import os, re, shutil, signal, subprocess
import guest
from guest import Guest
from harness import Case, Skip, free_port, wait

# No D-Bus, no rpcbind: it serves NFS 4 only. What it must know of its clients after a restart is in RADOS, too.
CONF = '''
NFS_CORE_PARAM {{ NFS_Port = {port}; Bind_addr = {address}; Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
NFSv4 {{ Graceless = true; Minor_Versions = 1, 2; RecoveryBackend = rados_kv; Lease_Lifetime = 10; }}
RADOS_KV {{ ceph_conf = "{conf}"; userid = "admin"; pool = "nfs"; namespace = "grace"; nodeid = "a"; }}
CEPH {{ Ceph_Conf = "{conf}"; }}
EXPORT {{
    Export_ID = 1; Path = "/"; Pseudo = "/files"; Protocols = 4; Transports = TCP; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
    FSAL {{ Name = CEPH; User_Id = "admin"; Filesystem = "cephfs"; }}
}}
'''
MODULES = ['virtio_pci', 'virtio_net', 'nfsv4']
# Looks into the same tree as CephFS: sizes and sums of files below a folder.
LOOK = '''
import cephfs, hashlib, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1], auth_id='admin')
fs.mount()
top = sys.argv[2]
names = []
with fs.opendir(top) as d:
    while e := fs.readdir(d):
        names.append(e.d_name.decode())
for n in sorted(names):
    s = fs.stat(top + '/' + n)
    if n[0] != '.' and s.st_mode & 0o170000 == 0o100000:
        f, sum, at = fs.open(top + '/' + n, os.O_RDONLY), hashlib.md5(), 0
        while piece := fs.read(f, at, 1 << 20):
            sum.update(piece)
            at += len(piece)
        fs.close(f)
        print(sum.hexdigest(), n, at, oct(s.st_mode), s.st_uid, s.st_gid)
fs.shutdown()
'''


class Ganesha(Case):
    args = ['--osds', '3', '--osd-size', '2G', '--with', 'mds']
    minutes = 1

    def setup(self, clients):
        if os.geteuid():
            raise Skip('an address that the guest reaches, too, needs root')
        path = os.environ['PATH'] + ':/usr/sbin'
        for program, package in (('ceph-mds', 'ceph-mds'), ('ganesha.nfsd', 'nfs-ganesha-ceph')):
            if not shutil.which(program, path=path):
                raise Skip(f'{program} is not installed (Debian: apt-get install {package})')
        if subprocess.run(['/usr/bin/python3', '-c', 'import cephfs'], capture_output=True).returncode:
            raise Skip('python3-cephfs is not installed')
        if clients.root:
            raise Skip("the server is this machine's")
        guest.need('fs/nfs/nfsv4')
        self.address = guest.address()
        self.guest = self.server = None
        super().setup(clients)
        # At an address where no free port is looked for, the cluster listens, too.
        self.port = next(p for p in iter(free_port, 0) if p != self.c.port)
        self.c.ceph('config', 'set', 'mds', 'mds_reconnect_timeout', '5')
        self.c.ceph('osd', 'pool', 'create', 'nfs', '8')
        self.c.ceph('osd', 'pool', 'application', 'enable', 'nfs', 'nfs')
        self.conf = os.path.join(self.scratch, 'ganesha.conf')
        with open(self.conf, 'w') as f:
            f.write(CONF.format(port=self.port, address=self.address, conf=self.c.conf))
        self.begin()
        initramfs = os.path.join(self.scratch, 'initramfs')
        guest.initramfs(initramfs, MODULES, ['flock'])
        self.guest = Guest(self.scratch, initramfs, 'guest', '256M')
        self.guest.run(f'mount -t nfs4 {self.address}:/files /mnt -o vers=4.1,proto=tcp,port={self.port},addr={self.address},clientaddr=10.0.2.15,hard')

    def teardown(self):
        if getattr(self, 'guest', None):
            self.guest.kill()
        if getattr(self, 'server', None):
            self.end(signal.SIGKILL)
        super().teardown()
        if hasattr(self, 'address'):
            guest.forget_address(self.address)

    def log_tail(self):
        return super().log_tail() + '\n' + self.said()

    def begin(self):
        self.log = os.path.join(self.scratch, 'ganesha.log')
        argv = ['ganesha.nfsd', '-F', '-f', self.conf, '-L', self.log, '-p', os.path.join(self.scratch, 'ganesha.pid'), '-N', 'NIV_EVENT']
        before = self.said().count('NFS SERVER INITIALIZED')
        self.server = subprocess.Popen(argv, env={**os.environ, 'PATH': os.environ['PATH'] + ':/usr/sbin'}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait(lambda: self.server.poll() is not None or self.said().count('NFS SERVER INITIALIZED') > before, lambda: f'NFS: {self.said()}', pause=0.2)
        assert self.server.poll() is None, self.said()

    def end(self, how):
        self.server.send_signal(how)
        self.server.wait(240)
        self.server = None

    def said(self):
        log = getattr(self, 'log', '')
        return open(log, errors='replace').read() if os.path.exists(log) else ''

    def by_cephfs(self, top):
        """The files of a folder as libcephfs sees them: {name: sum}."""
        lines = [line.split() for line in self.c.python(LOOK, top).out.splitlines()]
        return {line[1]: line[0] for line in lines}, lines

    def by_nfs(self, top):
        return {n: s for s, n in re.findall(r'^(\w{32})  (\S+)$', self.guest.run(f'cd /mnt{top} && md5sum $(ls -p | grep -v /); cd /'), re.M)}

    def test_1_a_tree_by_nfs_is_the_same_by_cephfs(self):
        g = self.guest
        assert ' nfs4 ' in g.run('mount | grep /mnt')
        g.run('mkdir -p /mnt/t/sub && cp /bin/busybox /mnt/t/ && cp -r /etc /modules /mnt/t && ln -s busybox /mnt/t/s && ln /mnt/t/busybox /mnt/t/hard')
        g.run('dd if=/dev/urandom of=/mnt/t/big bs=64k count=120 conv=fsync 2> /dev/null && chmod 640 /mnt/t/big && chown 1234:4321 /mnt/t/big')
        g.run('/mnt/t/busybox echo runs && mv /mnt/t/sub /mnt/t/other && rmdir /mnt/t/other && cmp /bin/busybox /mnt/t/hard')
        ours, lines = self.by_cephfs('/t')
        assert ours == self.by_nfs('/t') and set(ours) == {'busybox', 'hard', 'big', 's'}, (ours, self.said()[-2000:])
        [big] = [l for l in lines if l[1] == 'big']
        assert big[2:] == [str(120 << 16), '0o100640', '1234', '4321'], big
        assert self.by_cephfs('/t/modules')[0] == self.by_nfs('/t/modules')
        g.run('truncate -s 5000 /mnt/t/big && truncate -s 12000 /mnt/t/big && rm /mnt/t/hard && flock /mnt/t/lock true')
        assert g.run('stat -c %s /mnt/t/big; tail -c 7000 /mnt/t/big | tr -d "\\0" | wc -c') == '12000\n0'
        # What another client of CephFS makes is there by NFS.
        self.c.python('''
import cephfs, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1], auth_id='admin')
fs.mount()
f = fs.open('/t/theirs', os.O_CREAT | os.O_WRONLY, 0o644)
fs.write(f, b'by CephFS', 0)
fs.close(f)
fs.shutdown()
''')
        wait(lambda: g.run('cat /mnt/t/theirs', check=False) == 'by CephFS', 'the file that libcephfs made', pause=0.5)

    def test_2_gateway_server_and_osd_are_killed_meanwhile(self):
        g = self.guest
        g.run('mkdir /mnt/endless')
        # Each is durable before its number is said.
        g.run('(n=0; while [ ! -e /stop ]; do n=$((n+1)); dd if=/dev/urandom of=/mnt/endless/$n bs=16k count=3 conv=fsync 2> /dev/null || exit 1; '
              'echo "durable $n $(md5sum < /mnt/endless/$n)"; done; echo stopped) &')
        more = lambda n=4: wait(lambda before=g.out.count('durable'): g.out.count('durable') >= before + n, lambda: f'more files: {g.said()}')
        more()
        self.end(signal.SIGKILL)
        self.begin()
        more()
        with open(os.path.join(self.c.dir, f'run/mds.{self.rank()}.guest')) as f:
            os.kill(int(f.read()), signal.SIGKILL)
        more()
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        more()
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        more()
        g.run('touch /stop')
        g.until('stopped')
        durable = dict(re.findall(r'durable (\d+) (\w{32})', g.out))
        there = self.by_cephfs('/endless')[0]
        assert durable and durable == {n: there.get(n) for n in durable}, (durable, there)
        g.run('rm -r /mnt/endless /mnt/t && ls /mnt')
        self.end(signal.SIGTERM)

    def rank(self):
        m = self.c.json('fs', 'get', 'cephfs')['mdsmap']
        return next(i['name'] for i in m['info'].values() if i['state'] == 'up:active')
