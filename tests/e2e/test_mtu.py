"""A network that carries small frames only: OSDs open connections through it, and nothing large arrives. Health names the path.

Three hosts with frames of 9000 bytes in the cluster network, and a switch whose port to one of them takes 1500: what that host and the
others send each other in larger frames is lost without a word, as with a switch that was forgotten when frames were made larger.
"""
import json
import netns
from test_processes import OsdHosts


class SmallFrames(OsdHosts):
    def found(self):
        for h in self.net.hosts.values():
            # Segments as large as frames, one by one: a batch of them would pass the switch, which is none.
            netns.ip('-n', h.ns, 'link', 'set', 'eth1', 'gso_max_segs', '1')
        super().found()

    def frames(self, size):
        """What hosts may send; larger ones pass the switch, but for the port to host b."""
        for h in self.net.hosts.values():
            netns.ip('-n', h.ns, 'link', 'set', 'eth1', 'mtu', str(size))
            if h.name != 'b':
                netns.ip('-n', self.net.tag, 'link', 'set', f'p{h.number}n1', 'mtu', str(size))

    def checks(self):
        return json.loads(self.ceph('health', 'detail', '--format', 'json').out)['checks']

    def test_frames_that_are_lost_for_their_size_are_named(self):
        assert 'OSD_PATH_MTU' not in self.checks()
        self.frames(9000)
        # Connections that are open have agreed on smaller segments.
        b = self.net['b']
        name = next(f'osd.{o}' for o, h in self.host_of.items() if h is b)
        b.kill(name)
        b.start(name)
        netns.wait(lambda: 'OSD_PATH_MTU' in self.checks(), 'OSD_PATH_MTU')
        lines = [d['message'] for d in self.checks()['OSD_PATH_MTU']['detail']]
        assert all(name in l and 'in the cluster network' in l for l in lines), lines
        self.frames(1500)
        netns.wait(lambda: 'OSD_PATH_MTU' not in self.checks(), 'no OSD_PATH_MTU')
        self.wait_osds(3)
