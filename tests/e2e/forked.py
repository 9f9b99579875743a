"""Debian's `ceph` without the start of its Python, which is half of what a command costs: a tenth of a second of processor, thousands of times.

A server has imported what `ceph` imports. For each command it forks, and the child runs the program's own text, from its first line to its
last, with the arguments, environment, input and outputs that it would have had. So it is the unmodified client in all but how it began.
"""
import json, os, select, shutil, signal, socket, struct, subprocess, sys, tempfile

PYTHON = '/usr/bin/python3'


class Server:
    """Runs `ceph` where `wrap` puts a command (a network namespace). It ends with whoever made it, or by `close`."""

    def __init__(self, wrap=lambda argv: argv):
        self.path = tempfile.mktemp(prefix='spirula-ceph-', suffix='.sock')
        self.p = subprocess.Popen(wrap([PYTHON, os.path.abspath(__file__), self.path]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.p.stdout.readline() != b'ready\n':
            raise OSError(f'{__file__} does not serve: exit {self.p.wait()}')

    def close(self):
        self.p.stdin.close()
        self.p.wait()
        self.p.stdout.close()

    def run(self, argv, timeout, stdin=None, text=True):
        """As `subprocess.run` with `capture_output`."""
        data = stdin.encode() if isinstance(stdin, str) else stdin or b''
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, \
                socket.socket(socket.AF_UNIX) as s:
            given.write(data)
            given.seek(0)
            s.connect(self.path)
            words = json.dumps({'argv': argv, 'env': dict(os.environ)}).encode()
            socket.send_fds(s, [struct.pack('<Q', len(words))], [f.fileno() for f in (given, out, err)])
            s.sendall(words)
            s.settimeout(timeout)
            pid = None
            try:
                pid, = struct.unpack('<q', took(s, 8))
                code, = struct.unpack('<q', took(s, 8))
            except socket.timeout:
                if pid:
                    os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(argv, timeout) from None
            out.seek(0)
            err.seek(0)
            said = out.read(), err.read()
            return subprocess.CompletedProcess(argv, code, *(b.decode() if text else b for b in said))


def took(s, n):
    """So many bytes of a connection."""
    got = b''
    while len(got) < n:
        part = s.recv(n - len(got))
        if not part:
            raise OSError('the other side went away')
        got += part
    return got


def serve(path):
    with open(shutil.which('ceph')) as f:
        program = compile(f.read(), f.name, 'exec')
    # All that it imports; imported once more it is only looked up.
    import argparse, ceph_argparse, ceph_daemon, errno, grp, platform, pwd, rados, shlex, stat, string, threading, time, typing  # noqa: F401
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    # Nobody waits for who handles a connection.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print('ready', flush=True)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            # Whoever made it is gone.
            os.unlink(path)
            return
        s, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            handle(s, program)
        s.close()


def handle(s, program):
    """Runs one command, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, fds, _, _ = socket.recv_fds(s, 8, 3)
    words = json.loads(took(s, struct.unpack('<Q', data)[0]))
    pid = os.fork()
    if pid == 0:
        s.close()
        for at, fd in enumerate(fds):
            os.dup2(fd, at)
        [os.close(fd) for fd in fds]
        become(program, words['argv'], words['env'])
    s.sendall(struct.pack('<q', pid))
    _, status = os.waitpid(pid, 0)
    s.sendall(struct.pack('<q', os.waitstatus_to_exitcode(status)))
    os._exit(0)


def become(program, argv, env):
    """Runs the program as if it had just been started, and ends as it does."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    code = 0
    try:
        exec(program, {'__name__': '__main__', '__file__': program.co_filename, '__builtins__': __builtins__})
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


if __name__ == '__main__':
    serve(sys.argv[1])
