"""SQLite databases straight on RADOS, by Debian 13's libsqlite3-mod-ceph, unchanged."""
import glob, json, os, random, signal, subprocess
from harness import Case, Result, Skip, wait
from reef import Reef

# Opens a database of the pool; argv: its name. A client that was killed has its lock for so long as CEPH_ARGS says.
OPEN = '''
import sqlite3, sys, time
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension('libcephsqlite.so')
db = sqlite3.connect(f'file:///db:space/{sys.argv[1]}?vfs=ceph', uri=True, timeout=60, isolation_level=None)
for pragma in ('page_size = 65536', 'cache_size = 64', 'journal_mode = PERSIST', 'synchronous = FULL'):
    db.execute('PRAGMA ' + pragma)
'''
# Ten rows at a time, without end; the number of each transaction is said when it is done. Some take away what others put there.
WRITE = OPEN + '''
db.execute('CREATE TABLE IF NOT EXISTS t (batch INTEGER, n INTEGER, word TEXT, PRIMARY KEY (batch, n)) WITHOUT ROWID')
db.execute('CREATE INDEX IF NOT EXISTS words ON t (word)')
batch = (db.execute('SELECT MAX(batch) FROM t').fetchone()[0] or 0) + 1
while True:
    db.execute('BEGIN IMMEDIATE')
    for n in range(10):
        db.execute('INSERT INTO t VALUES (?, ?, ?)', (batch, n, f'{batch * 7919 % 1000:03}' * (1 + batch % 900)))
    if batch % 4 == 0:
        db.execute('DELETE FROM t WHERE batch = ?', (batch - 2,))
    db.execute('COMMIT')
    print(batch, flush=True)
    batch += 1
'''
CHECK = OPEN + '''
import json
whole = [r[0] for r in db.execute('PRAGMA integrity_check')]
rows = dict(db.execute('SELECT batch, COUNT(*) FROM t GROUP BY batch'))
wrong = db.execute("SELECT COUNT(*) FROM t WHERE word != substr('000' || (batch * 7919 % 1000), -3, 3) || substr(word, 4)").fetchone()[0]
print(json.dumps([whole, rows, wrong]))
'''


class SqliteOnRados(Case):
    args = ['--osds', '3', '--osd-size', '2G']

    def setup(self, clients):
        if clients.root:
            raise Skip('the library is of the other Debian in any case')
        self.reef = Reef('sqlite3')
        if not glob.glob(f'{self.reef.root}/usr/lib/*/libcephsqlite.so'):
            raise Skip(f'libsqlite3-mod-ceph is not below {self.reef.root}')
        super().setup(clients)
        self.reef.enter(self.scratch)
        self.writers = []
        c = self.c
        c.ceph('osd', 'pool', 'create', 'db', '16')
        c.ceph('osd', 'pool', 'application', 'enable', 'db', 'cephsqlite')
        # As its documentation says.
        keyring = os.path.join(c.dir, 'ceph.client.sql.keyring')
        made = c.ceph('auth', 'get-or-create', 'client.sql', 'mon', 'profile simple-rados-client-with-blocklist', 'osd', 'allow rwx pool=db namespace=space').out
        with open(keyring, 'w') as f:
            f.write(made)
        self.keyring = keyring
        self.patience(4)

    def teardown(self):
        for p in getattr(self, 'writers', []):
            p.kill()
            p.wait()
        super().teardown()
        if hasattr(self, 'reef'):
            self.reef.leave()

    def patience(self, seconds):
        """For so long nobody breaks the lock of a client that does not renew it. One that cannot renew it in time ends."""
        renewal = f'--cephsqlite_lock_renewal_interval=500 --cephsqlite_lock_renewal_timeout={seconds * 1000}'
        self.env = {'CEPH_CONF': self.c.conf, 'CEPH_ARGS': f'--id sql --keyring {self.keyring} {renewal}'}

    def sqlite(self, code, name, start=False):
        argv = self.reef.clients.wrap(['/usr/bin/python3', '-c', code, name])
        env = {**os.environ, **self.env}
        if start:
            log = open(os.path.join(self.scratch, f'{name}.out'), 'a')
            p = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
            self.writers.append(p)
            return p
        r = Result(subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300))
        assert r.code == 0, r
        return r.out

    def said(self, name):
        with open(os.path.join(self.scratch, f'{name}.out')) as f:
            text = f.read()
        assert 'Traceback' not in text, text
        return [int(n) for n in text.split('\n')[:-1] if n.isdigit()]

    def goes_on(self, name, p, batches=8, seconds=240):
        before = len(self.said(name))
        wait(lambda: p.poll() is not None or len(self.said(name)) >= before + batches, f'{batches} transactions after {before}', seconds)
        assert p.poll() is None, open(os.path.join(self.scratch, f'{name}.out')).read()

    def check(self, name):
        """Whole by SQLite's own word; each transaction as a whole or not at all, and whatever was said to be done is."""
        whole, rows, wrong = json.loads(self.sqlite(CHECK, name))
        assert whole == ['ok'] and wrong == 0, (whole, wrong)
        rows, done = {int(b): n for b, n in rows.items()}, self.said(name)
        last = max([*rows, *done])
        # The last one may be there though nobody was told so.
        assert last <= max(done) + 1, (last, done)
        gone = {b - 2 for b in range(4, last + 1, 4)}
        assert rows == {b: 10 for b in range(1, last + 1) if b not in gone}, rows

    def test_1_a_client_is_killed_again_and_again(self):
        for _ in range(3):
            p = self.sqlite(WRITE, 'killed', start=True)
            self.goes_on('killed', p, random.randrange(3, 12))
            p.send_signal(signal.SIGKILL)
            p.wait()
            # Whoever comes next breaks the dead one's lock, if it was amid a transaction, and shuts it out.
            self.check('killed')
        print(f'figure: {len(self.c.json("osd", "blocklist", "ls"))} of 3 clients were killed amid a transaction, and are shut out')

    def test_2_an_osd_and_then_all_are_killed_meanwhile(self):
        # Its writes may wait for long where the machine is busy and an OSD goes. Seen: 0.3 s.
        self.patience(10)
        p = self.sqlite(WRITE, 'sturdy', start=True)
        self.goes_on('sturdy', p)
        self.c.spirula('osd', 'stop', '1', '--dir', self.c.dir)
        self.goes_on('sturdy', p)
        self.c.spirula('osd', 'start', '1', '--dir', self.c.dir)
        self.goes_on('sturdy', p)
        self.c.kill()
        # One that cannot renew its lock in time ends with an error, and has done nothing by halves.
        self.c.up()
        p.kill()
        p.wait()
        self.check('sturdy')
        self.c.wait_clean()
