"""What the measuring programs share."""
import json, rados, socket


def port():
    """A free TCP port."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return str(s.getsockname()[1])


class PgStates:
    """How many PGs are in which state, asked over one connection: while something is measured, a `ceph` for each question takes
    CPU from the clients (half a core at 20 questions a second) and from the daemons that it connects to."""

    def __init__(self, conf):
        self.admin = rados.Rados(conffile=conf, name='client.admin')
        self.admin.connect(timeout=60)

    def get(self):
        code, out, err = self.admin.mgr_command(json.dumps({'prefix': 'pg stat', 'format': 'json'}), b'', timeout=60)
        if code:
            raise SystemExit(f'pg stat: {err}')
        return {s['name']: s['num'] for s in json.loads(out)['pg_summary']['num_pg_by_state']}

    def close(self):
        self.admin.shutdown()
