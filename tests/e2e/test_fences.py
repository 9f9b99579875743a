"""Who is fenced writes no more: as ceph-csi fences a node, by a range of addresses."""
import os
from harness import Case, wait

# Writes until it may not; prints by what error, and writes no further.
WRITER = '''
import errno, os, rados, sys, time
n = 0
with rados.Rados(conffile=sys.argv[1]) as r, r.open_ioctx('p') as io:
    while True:
        try:
            io.write_full('o', b'x' * 100)
        except (rados.Error, OSError) as e:
            print(e.errno, flush=True)
            os._exit(0)
        n += 1
        open(sys.argv[2], 'w').write(str(n))
        time.sleep(0.01)
'''


class Fences(Case):
    args = ['--osds', '3', '--osd-size', '1G']

    def test_1_a_range_of_addresses_is_fenced(self):
        self.c.ceph('osd', 'pool', 'create', 'p', '8', '8')
        self.c.wait_clean()
        count = os.path.join(self.scratch, 'count')
        writer = self.c.python(WRITER, count, wait=False)
        done = lambda: int(open(count).read() or 0) if os.path.exists(count) else 0
        wait(done, 'the first write')
        # Another host's addresses: it goes on.
        r = self.c.ceph('osd', 'blocklist', 'range', 'add', '127.0.0.2/32', '600')
        assert r.err.startswith('blocklisting cidr:127.0.0.2:0/32 until '), r
        before = done()
        wait(lambda: done() > before + 20, 'more writes')
        self.c.ceph('osd', 'blocklist', 'range', 'add', '127.0.0.0/8', '600')
        out, err = writer.communicate(timeout=240)
        assert out.strip() == '108', (out, err)
        # Also who comes new, until it is let in.
        again = self.c.python(WRITER, count, wait=False)
        out, err = again.communicate(timeout=240)
        assert out.strip() == '108', (out, err)
        assert 'cidr:127.0.0.0:0/8' in self.c.ceph('osd', 'blocklist', 'ls').out
        assert 'cidr:127.0.0.0:0/8' in self.c.json('osd', 'dump')['range_blocklist']
        self.c.ceph('osd', 'blocklist', 'range', 'rm', '127.0.0.0/8')
        self.c.rados('-p', 'p', 'put', 'new', self.sample())
        self.c.ceph('osd', 'blocklist', 'clear')
        assert self.c.ceph('osd', 'blocklist', 'ls').out == ''
