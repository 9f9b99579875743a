"""Requests that wait, as operators see them: in which phase each is, since when, and in which it was before.

Keys and words are those of a real Ceph 16.2 that was put through the same (by hand, with `cargo xtask ceph up`)."""
import json, signal
import netns
from test_processes import OsdHosts

# Writes an object, then reads another client's; each says when it has its answer.
WRITE = '''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('phases') as io:
    io.write_full('o', sys.argv[2].encode())
    print('written', flush=True)
'''
READ = '''
import rados, sys
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('phases') as io:
    print(io.read('o').decode(), flush=True)
'''


class Phases(OsdHosts):
    """Three hosts with an OSD each; one is stopped by SIGSTOP, and nobody may say that it is down."""

    def events(self, op):
        return [e['event'] for e in op['type_data']['events']]

    def ask(self, what):
        return json.loads(self.ceph('tell', f'osd.{self.primary}', what).out)

    def flying(self, which):
        """Requests of clients under way that read, or write."""
        return [op for op in self.ask('dump_ops_in_flight')['ops'] if which in op['description']]

    def await_point(self, which, point):
        found = lambda: [op for op in self.flying(which) if op['type_data']['flag_point'] == point]
        return netns.wait(found, f'a {which} that is "{point}"')[0]

    def test_a_held_request_shows_what_it_waits_for_and_since_when(self):
        self.ceph('osd', 'pool', 'create', 'phases', '1', '1')
        self.ceph('osd', 'set', 'nodown')
        self.wait_clean()
        assert self.python(WRITE, 'first').communicate(timeout=180)[0] == 'written\n'
        self.primary, still, other = self.json('osd', 'map', 'phases', 'o')['acting']
        done = [op for op in self.ask('dump_historic_ops')['ops'] if 'write' in op['description']][-1]
        assert self.events(done)[-4:] == ['started', 'waiting for subops', 'commit_sent', 'done'], done
        assert done['type_data']['flag_point'] == 'commit sent; apply or cleanup', done

        self.host_of[still].signal(f'osd.{still}', signal.SIGSTOP)
        try:
            # It commits: one member has not said that it is durable there, and that one is named.
            write = self.python(WRITE, 'second')
            # The other member answers soon, or a little later.
            waits = lambda: self.events(self.await_point('write', 'waiting for sub ops'))[-1]
            netns.wait(lambda: waits() == f'waiting for subops from {still}', waits)
            op = self.await_point('write', 'waiting for sub ops')
            assert self.events(op)[0] == 'initiated' and 'started' in self.events(op), op
            # Another has its turn behind it.
            read = self.python(READ)
            op = self.await_point('read', 'waiting for rw locks')
            assert op['type_data']['client_info']['client'].startswith('client.'), op
            # A new interval: its primary peers, for which it must hear the one that stands still.
            self.ceph('osd', 'pool', 'set', 'phases', 'min_size', '1')
            for which in ('write', 'read'):
                op = self.await_point(which, 'waiting for peered')
                netns.wait(lambda: any(op['age'] > 1 for op in self.flying(which)), 'a second')
                op = self.await_point(which, 'waiting for peered')
                # What it went through before is told, too; what it is in lasts so long as the whole has, as Ceph tells it.
                rows = op['type_data']['events']
                assert rows[-1]['event'] == 'waiting for peered' and rows[-1]['duration'] == op['duration'], op
                assert sorted(e['time'] for e in rows) == [e['time'] for e in rows], op
            before = {'write': 'started', 'read': 'waiting for rw locks'}
            for which, event in before.items():
                assert any(event in self.events(op) for op in self.flying(which)), self.flying(which)
            assert write.poll() is None and read.poll() is None
        finally:
            self.host_of[still].signal(f'osd.{still}', signal.SIGCONT)
        assert write.communicate(timeout=180)[0] == 'written\n'
        assert read.communicate(timeout=180)[0] == 'second\n'
        netns.wait(lambda: self.ask('dump_ops_in_flight')['num_ops'] == 0, lambda: self.ask('dump_ops_in_flight'))
        slow = [op for op in self.ask('dump_historic_ops_by_duration')['ops'] if 'waiting for peered' in self.events(op)]
        assert slow, self.ask('dump_historic_ops')
        for op in slow:
            rows = op['type_data']['events']
            assert rows[-1]['event'] == 'done' and rows[-1]['duration'] == op['duration'], op
            # Each lasts until the next: all of them together are the whole.
            assert abs(sum(e['duration'] for e in rows[:-1]) - op['duration']) < 0.001, op
        assert any(self.events(op)[-1] == 'done' and 'started' in self.events(op) for op in slow), slow
        self.ceph('osd', 'unset', 'nodown')
        # The same by its socket, of another OSD: nothing is under way there.
        assert json.loads(self.ceph('tell', f'osd.{other}', 'dump_ops_in_flight').out) == {'ops': [], 'num_ops': 0}
