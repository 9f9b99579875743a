"""librados' watches and notifications, by ctypes: Python's own binding lacks timeouts, answers and checks of them. Runs beside the
clients' librados; prints one JSON value for each thing that is done, so that a real Ceph's answers can be compared."""
import ctypes as C, json, os, sys, threading, time

L = C.CDLL('librados.so.2')
GOT = C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint64, C.c_uint64, C.c_void_p, C.c_size_t)
LOST = C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_int)


class Client:
    """A client of its own, with its own connections."""

    def __init__(self, conf, pool, name=b'client.admin', **more):
        self.r, self.io = C.c_void_p(), C.c_void_p()
        assert L.rados_create2(C.byref(self.r), b'ceph', name, C.c_uint64(0)) == 0
        assert L.rados_conf_read_file(self.r, conf.encode()) == 0
        for k, v in more.items():
            assert L.rados_conf_set(self.r, k.encode(), v.encode()) == 0
        r = L.rados_connect(self.r)
        assert r == 0, r
        assert L.rados_ioctx_create(self.r, pool.encode(), C.byref(self.io)) == 0
        self.gid = C.c_uint64(L.rados_get_instance_id(self.r)).value if L.rados_get_instance_id.restype else 0

    def write(self, o, data=b'x'):
        return L.rados_write_full(self.io, o.encode(), data, C.c_size_t(len(data)))

    def remove(self, o):
        return L.rados_remove(self.io, o.encode())

    def notify(self, o, payload=b'', timeout_ms=10000):
        """The result, what each watcher answered, and how many did not: (gid, cookie) left out."""
        buf, n = C.c_void_p(), C.c_size_t()
        r = L.rados_notify2(self.io, o.encode(), payload, len(payload), C.c_uint64(timeout_ms), C.byref(buf), C.byref(n))
        data = C.string_at(buf, n.value) if buf.value else b''
        return r, *parse(data)

    def close(self):
        L.rados_ioctx_destroy(self.io)
        L.rados_shutdown(self.r)


def parse(data):
    at = 0

    def take(size):
        nonlocal at
        at += size
        return data[at - size:at]
    if len(data) < 8:
        return [], []
    number = lambda size: int.from_bytes(take(size), 'little')
    replies = []
    for _ in range(number(4)):
        gid, cookie = number(8), number(8)
        replies.append((gid, cookie, take(number(4)).decode()))
    return replies, [(number(8), number(8)) for _ in range(number(4))]


class Watch:
    """Notes what it hears, and answers with what `answer` gives of it; None: not at all."""

    def __init__(self, client, o, timeout=0, answer=lambda data: b'ok'):
        self.client, self.o, self.heard, self.errors = client, o, [], []
        self.cookie, self.changed = C.c_uint64(), threading.Condition()

        def got(_, notify_id, handle, notifier, data, n):
            payload = C.string_at(data, n) if n else b''
            reply = answer(payload)
            with self.changed:
                self.heard.append(payload.decode())
                self.changed.notify_all()
            if reply is not None:
                L.rados_notify_ack(client.io, o.encode(), C.c_uint64(notify_id), C.c_uint64(handle), reply, len(reply))

        def lost(_, cookie, err):
            with self.changed:
                self.errors.append(err)
                self.changed.notify_all()
        self.got, self.lost = GOT(got), LOST(lost)
        self.result = L.rados_watch3(client.io, o.encode(), C.byref(self.cookie), self.got, self.lost, C.c_uint32(timeout), None)

    def check(self):
        """Milliseconds since it was known to be alive, or the error."""
        return L.rados_watch_check(self.client.io, self.cookie)

    def until(self, done, seconds=180):
        with self.changed:
            ok = self.changed.wait_for(lambda: done(self), seconds)
        assert ok, (self.heard, self.errors)

    def unwatch(self):
        return L.rados_unwatch2(self.client.io, self.cookie)


def say(what, value):
    print(json.dumps([what, value]), flush=True)


def basics(conf, pool):
    """What does not depend on time: return codes, answers, orders."""
    a, b, n = Client(conf, pool), Client(conf, pool), Client(conf, pool)
    say('watch of nothing', Watch(a, 'none').result)
    say('notify of nothing', n.notify('none')[0])
    a.write('o')
    say('notify without watchers', n.notify('o', b'hello'))
    w = [Watch(a, 'o', answer=lambda d: b'a:' + d), Watch(b, 'o', answer=lambda d: b'b:' + d), Watch(b, 'o', 20)]
    say('watch', [x.result for x in w])
    say('check', [0 <= x.check() < 30000 for x in w])
    r, replies, missed = n.notify('o', b'hello')
    say('notify', [r, sorted(x[2] for x in replies), missed, sorted(x[1] for x in replies) == sorted(x.cookie.value for x in w)])
    say('heard', [x.heard for x in w])
    r, replies, missed = b.notify('o', b'self')
    say('a watcher notifies', [r, sorted(x[2] for x in replies), missed])
    say('an empty one', [x[2] for x in n.notify('o')[1] if x[2] != 'ok'])
    big = b'z' * 100_000
    r, replies, missed = n.notify('o', big)
    say('a large one', [r, sorted(len(x[2]) for x in replies), missed])
    say('unwatch', w[2].unwatch())
    say('unwatched', [n.notify('o', b'3')[0], len(w[2].heard)])
    silent = Watch(a, 'o', answer=lambda d: None)
    # The others answer in this time on a busy machine, too.
    r, replies, missed = n.notify('o', b'4', 5000)
    say('one does not answer', [r, sorted(x[2] for x in replies), len(missed), missed and missed[0][1] == silent.cookie.value])
    say('unwatch of who is silent', silent.unwatch())
    a.write('o', b'changed')
    say('after a write', n.notify('o', b'5')[0])
    say('remove', a.remove('o'))
    [x.until(lambda x: x.errors) for x in w[:2]]
    say('removed', [x.errors for x in w[:2]])
    say('check of the removed', [x.check() for x in w[:2]])
    say('notify of the removed', n.notify('o')[0])
    say('unwatch of the removed', [x.unwatch() for x in w[:2]])
    a.write('o')
    again = Watch(a, 'o')
    say('watch again', [again.result, n.notify('o', b'6')[0], again.heard])
    one = Watch(a, 'o', answer=lambda d: b'')
    say('two of one client', [n.notify('o')[0], len(n.notify('o')[1])])
    say('unwatch both', [again.unwatch(), one.unwatch(), n.notify('o')[1]])
    [x.close() for x in (a, b, n)]


def stay(conf, pool, o, timeout, name='client.admin'):
    """Watches until its standard input ends, and says what it hears."""
    c = Client(conf, pool, name.encode())
    w = Watch(c, o, int(timeout), answer=lambda d: (say('heard', d.decode()), b'from %d' % os.getpid())[1])
    say('watch', w.result)

    def errors():
        seen = 0
        while True:
            with w.changed:
                w.changed.wait_for(lambda: len(w.errors) > seen)
                seen = len(w.errors)
            say('error', w.errors[-1])
    threading.Thread(target=errors, daemon=True).start()
    for line in sys.stdin:
        if line.strip() == 'check':
            say('check', w.check())
    say('unwatch', w.unwatch())
    os._exit(0)


def storm(conf, pool, o, count, size):
    """Many large notifications at once: the results, and how many answers and silent watchers each had."""
    clients, out = [Client(conf, pool) for _ in range(8)], []

    def work(c):
        for _ in range(int(count) // len(clients)):
            # Who reads answers in this time on a busy machine, too.
            r, replies, missed = c.notify(o, b's' * int(size), 5000)
            out.append((r, len(replies), len(missed)))
    threads = [threading.Thread(target=work, args=(c,)) for c in clients]
    [t.start() for t in threads]
    [t.join() for t in threads]
    say('storm', out)
    [c.close() for c in clients]


if __name__ == '__main__':
    {'basics': basics, 'stay': stay, 'storm': storm}[sys.argv[1]](*sys.argv[2:])
