"""Object classes as clients call them: advisory locks, the example class, who may call what."""
import os, time
from harness import Case, wait


class Classes(Case):
    args = ['--osds', '2']

    def user(self, name, *caps):
        path = os.path.join(self.scratch, f'{name}.keyring')
        out = self.c.ceph('auth', 'get-or-create', f'client.{name}', 'mon', 'allow r', 'osd', *caps).out
        with open(path, 'w') as f:
            f.write(out)
        return ['-n', f'client.{name}', '-k', path]

    def lock(self, *argv, **kw):
        return self.c.rados('-p', 'data', 'lock', *argv, **kw)

    def test_locks_are_taken_shown_and_broken(self):
        self.c.rados('-p', 'data', 'create', 'o')
        self.lock('get', 'o', 'l', '--lock-cookie', 'c', '--lock-description', 'mine')
        listed = self.lock('list', 'o', '--format', 'json').out
        assert '"l"' in listed, listed
        info = self.lock('info', 'o', 'l', '--format', 'json').out
        assert '"exclusive"' in info and '"mine"' in info and '"cookie":"c"' in info.replace(' ', ''), info
        r = self.lock('get', 'o', 'l', '--lock-cookie', 'd', check=False)
        assert r.code != 0 and 'busy' in r.err.lower(), r
        locker = info.split('"name":"client.')[1].split('"')[0]
        # Another process is another client: it cannot drop the lock, but break it.
        r = self.c.python('''
import rados, sys
c = rados.Rados(conffile=sys.argv[1]); c.connect(); io = c.open_ioctx('data')
try:
    io.unlock('o', 'l', 'c'); print('dropped')
except rados.ObjectNotFound: print('not mine')
io.close(); c.shutdown()
''')
        assert r.out.split() == ['not', 'mine'], r
        self.lock('break', 'o', 'l', f'client.{locker}', '--lock-cookie', 'c')
        assert 'client.' not in self.lock('info', 'o', 'l', '--format', 'json').out
        self.lock('get', 'o', 'l', '--lock-cookie', 'd', '--lock-type', 'shared', '--lock-tag', 't')
        self.lock('get', 'o', 'l', '--lock-cookie', 'd', '--lock-type', 'shared', '--lock-tag', 't')
        assert self.lock('info', 'o', 'l', '--format', 'json').out.count('client.') == 2
        assert 'lock.l' in self.c.rados('-p', 'data', 'listxattr', 'o').out

    def test_locks_end_with_their_time(self):
        begun = time.time()
        self.lock('get', 'timed', 'l', '--lock-duration', '2')
        info = self.lock('info', 'timed', 'l', '--format', 'json').out
        # Who was held up for longer than it lasts cannot say.
        assert 'client.' in info or time.time() > begun + 2, info
        wait(lambda: 'client.' not in self.lock('info', 'timed', 'l', '--format', 'json').out, 'the end of a lock')
        self.lock('get', 'timed', 'l')

    def test_python_locks_and_calls(self):
        r = self.c.python('''
import rados, sys
c = rados.Rados(conffile=sys.argv[1]); c.connect(); io = c.open_ioctx('data')
io.lock_exclusive('p', 'l', 'c', 'why', 60)
try: io.lock_exclusive('p', 'l', 'c'); print('twice')
except rados.ObjectExists: print('held')
try: io.lock_shared('p', 'l', 'd', ''); print('shared')
except rados.ObjectBusy: print('busy')
io.lock_exclusive('p', 'l', 'c', 'longer', 60, 1)
io.unlock('p', 'l', 'c')
io.lock_shared('p', 'l', 'a', 'tag'); io.lock_shared('p', 'l', 'b', 'tag')
io.unlock('p', 'l', 'a'); io.unlock('p', 'l', 'b')
print(io.execute('p', 'hello', 'say_hello', b'you')[1].decode())
print(io.execute('p', 'hello', 'say_hello', b'')[1].decode())
io.execute('new', 'hello', 'record_hello', b'me')
print(io.read('new').decode(), io.get_xattr('new', 'said_by').decode().split('.')[0])
print(io.execute('new', 'hello', 'replay', b'')[1].decode())
io.execute('new', 'hello', 'turn_it_to_11', b'')
print(io.read('new').decode())
for cls, method in (('nosuch', 'm'), ('log', 'nosuch'), ('hello', 'nosuch'), ('hello', 'record_hello'), ('hello', 'bad_writer')):
    try: io.execute('new', cls, method, b''); print('done')
    except rados.Error as e: print(cls, method, e.errno)
with rados.WriteOpCtx() as op:
    op.new(0); op.execute('hello', 'write_return_data', b'too much')
    try: io.operate_write_op(op, 'never')
    except rados.Error as e: print('failed', e.errno)
try: io.stat('never')
except rados.ObjectNotFound: print('and nothing was written')
io.close(); c.shutdown()
''')
        assert r.out.splitlines() == [
            'held', 'busy', 'Hello, you!', 'Hello, world!', 'Hello, me! client', 'Hello, me!', 'HELLO, ME!',
            'nosuch m 1', 'log nosuch 95', 'hello nosuch 95', 'hello record_hello 17', 'hello bad_writer 5', 'failed 22', 'and nothing was written',
        ], r

    def test_who_may_call_what(self):
        self.c.rados('-p', 'data', 'create', 'r')
        get, info = ['lock', 'get', 'r', 'l'], ['lock', 'info', 'r', 'l']
        for name, caps, gets, sees in (('rw', 'allow rw pool=data', False, False), ('x', 'allow rwx pool=data', True, True),
                                       ('read', 'allow r class-read pool=data', False, True),
                                       ('one', 'allow class lock get_info, allow r', False, True),
                                       ('rbd', 'profile rbd pool=data', True, True), ('rbdro', 'profile rbd-read-only pool=data', False, True),
                                       ('else', 'allow rwx pool=other', False, False)):
            who = self.user(name, caps)
            cookie = ['--lock-cookie', name, '--lock-type', 'shared']
            for argv, may in ((get + cookie, gets), (info, sees)):
                r = self.c.run('rados', *who, '-p', 'data', *argv, check=False)
                assert (r.code == 0) == may, (name, argv, r)
                assert may or 'not permitted' in r.err, (name, argv, r)

    def test_locks_survive_a_restart(self):
        self.lock('get', 'kept', 'l', '--lock-cookie', 'c')
        self.c.down()
        self.c.up()
        assert '"cookie":"c"' in self.lock('info', 'kept', 'l', '--format', 'json').out.replace(' ', '')
