"""A database on an ext4 on a mapped image, while an OSD is killed: whatever it said is done is there, and its tables are whole."""
import os, shutil, signal, subprocess
from harness import Skip, wait
from images import Images

USERS, QUERIES = (4, 20), 1024
TABLE = 'CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, word CHAR(32), data VARCHAR(2000), KEY (word)) ENGINE=InnoDB'
LOAD = "INSERT INTO t (word, data) VALUES (MD5(RAND()), REPEAT(MD5(RAND()), 40)); SELECT COUNT(*) FROM t WHERE word LIKE 'a%'"


class MariaDb(Images):
    minutes = 2
    patience = 400

    def setup(self, clients):
        for program in ('mariadbd', 'mariadb-slap', 'mariadb-install-db'):
            if not shutil.which(program):
                raise Skip('mariadb-server is not installed')
        if os.geteuid() or not os.path.exists('/dev/fuse') or not os.path.exists('/dev/loop-control'):
            raise Skip('needs root, /dev/fuse and loop devices')
        self.db = self.device = None
        super().setup(clients)
        self.c.ceph('osd', 'pool', 'create', 'rbd', '16')
        self.rbd('pool', 'init', 'rbd')
        self.at = os.path.join(self.scratch, 'mnt')
        os.mkdir(self.at)

    def teardown(self):
        if self.db and self.db.poll() is None:
            self.db.kill()
            self.db.wait()
        if self.device:
            subprocess.run(['umount', self.at], capture_output=True)
            self.c.spirula('unmap', self.device, check=False)
        super().teardown()

    def begin(self):
        """Maps the image."""
        self.device = self.c.spirula('map', 'rbd/db', '--conf', self.c.conf, '--dir', self.c.dir).out.strip()
        return self.device

    def start(self):
        self.tool('mount', self.device, self.at)
        self.socket = os.path.join(self.scratch, 's')
        self.data = os.path.join(self.at, 'data')
        if not os.path.exists(self.data):
            self.tool('mariadb-install-db', '--no-defaults', '--user=root', f'--datadir={self.data}', '--skip-test-db', '--auth-root-authentication-method=normal',
                      '--innodb-log-file-size=16M')
        self.log = open(os.path.join(self.scratch, 'db.log'), 'a')
        argv = ['mariadbd', '--no-defaults', '--user=root', f'--datadir={self.data}', f'--socket={self.socket}', '--skip-networking', '--innodb-log-file-size=16M',
                '--innodb-buffer-pool-size=32M', '--innodb-flush-log-at-trx-commit=1', f'--pid-file={self.socket}.pid']
        self.db = subprocess.Popen(argv, stdout=self.log, stderr=subprocess.STDOUT)
        up = lambda: self.db.poll() is None and subprocess.run(['mariadb', '--no-defaults', '-S', self.socket, '-e', 'SELECT 1'], capture_output=True).returncode == 0
        wait(up, lambda: f'the database: {open(self.log.name).read()[-2000:]}')

    def stop(self, how):
        """The database, and all that is below it."""
        self.db.send_signal(how)
        self.db.wait(240)
        self.tool('umount', self.at)
        self.c.spirula('unmap', self.device)
        self.device = None

    def sql(self, text):
        return self.tool('mariadb', '--no-defaults', '-S', self.socket, '-N', '-B', '-e', text).split()

    def test_01_users_go_on_while_an_osd_is_killed(self):
        self.rbd('create', 'db', '--size', '1G')
        self.tool('mkfs.ext4', '-q', self.begin())
        self.start()
        for users, osd in zip(USERS, (1, 2)):
            slap = subprocess.Popen(['mariadb-slap', '--no-defaults', '-S', self.socket, f'--concurrency={users}', f'--number-of-queries={2 * QUERIES}', f'--create-schema=of{users}',
                                     '--no-drop', f'--create={TABLE}', f'--query={LOAD}', '--delimiter=;'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                wait(lambda: slap.poll() is not None or self.count(users) >= 100, 'rows')
                self.c.spirula('osd', 'stop', str(osd), '--dir', self.c.dir)
                stopped = self.count(users)
                out, err = slap.communicate(timeout=400)
            finally:
                slap.kill()
            assert slap.returncode == 0 and not err.strip(), (out, err)
            print(f'figure: {users} users, {QUERIES} rows, an OSD stopped by row {stopped}: {[l.strip() for l in out.splitlines() if "Average" in l]}', flush=True)
            self.c.spirula('osd', 'start', str(osd), '--dir', self.c.dir)
            self.c.wait_clean()
        self.whole()

    def count(self, users):
        r = subprocess.run(['mariadb', '--no-defaults', '-S', self.socket, '-N', '-B', '-e', f'SELECT COUNT(*) FROM of{users}.t'], capture_output=True, text=True)
        return int(r.stdout) if r.returncode == 0 else 0

    def whole(self):
        """Every user's rows are there, and in both indices."""
        for users in USERS:
            assert self.count(users) == users * (QUERIES // users), users
            assert self.sql(f'CHECK TABLE of{users}.t EXTENDED')[-1] == 'OK'

    def test_02_a_database_that_is_killed_finds_all_of_it(self):
        self.stop(signal.SIGKILL)
        self.tool('fsck.ext4', '-fn', self.begin())
        self.start()
        self.whole()
        self.stop(signal.SIGTERM)
        assert self.rbd('lock', 'ls', 'db', '--format', 'json').out.strip() == '[]'
