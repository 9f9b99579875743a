"""Hosts for the tests: network namespaces on bridges, with iproute2 alone.

A Net has one or two networks (public, cluster), each a bridge; a host is a namespace with one interface in
each (eth0, eth1), its own host name (UTS namespace) and files below a folder of its own. Links are cut both
ways by taking the interface down, and one way by sending what goes to a host to a hardware address that
nobody has: packets vanish silently, as with a broken switch.
"""
import os, shutil, signal, subprocess
import harness
from harness import Result, Skip, gone, wait


def ip(*argv, check=True):
    r = subprocess.run(['ip', *argv], capture_output=True, text=True)
    assert not check or r.returncode == 0, f'ip {" ".join(argv)}: {r.stderr}'
    return r


def need():
    if os.geteuid() != 0:
        raise Skip('network namespaces need root')
    if not shutil.which('ip') or not shutil.which('unshare'):
        raise Skip('ip (iproute2) or unshare is not installed')
    probe = f'spt{os.getpid()}'
    made = subprocess.run(['ip', 'netns', 'add', probe], capture_output=True, text=True)
    if made.returncode:
        raise Skip(f'network namespaces cannot be made here: {made.stderr.strip()}')
    link = subprocess.run(['ip', '-n', probe, 'link', 'add', 'b0', 'type', 'bridge'], capture_output=True, text=True)
    ip('netns', 'del', probe)
    if link.returncode:
        raise Skip(f'bridges cannot be made here: {link.stderr.strip()}')


class Host:
    def __init__(self, net, name, number):
        self.net, self.name, self.number = net, name, number
        self.ns = f'{net.tag}-{name}'
        self.dir = os.path.join(net.folder, name)

    def addr(self, network=0):
        return self.net.addr(self.number, network)

    def wrap(self, argv):
        """In the host's network and under its name."""
        shell = f'hostname {self.name}; exec "$@"'
        return ['ip', 'netns', 'exec', self.ns, 'unshare', '--uts', 'sh', '-c', shell, 'sh', *argv]

    def run(self, *argv, timeout=harness.PATIENCE, check=True, stdin=None, env=None):
        p = subprocess.run(self.wrap(list(argv)), capture_output=True, text=True, timeout=timeout, input=stdin,
                           env={**os.environ, **(env or {})})
        r = Result(p)
        assert not check or r.code == 0, f'{self.name}: {" ".join(argv)}: {r}'
        return r

    def spirula(self, *argv, **kw):
        return self.run(harness.BINARY, *argv, **kw)

    # ---- its daemons ----

    def start(self, *names, **kw):
        return self.spirula('host', 'start', '--dir', self.dir, *names, **kw)

    def stop(self, *names, **kw):
        return self.spirula('host', 'stop', '--dir', self.dir, *names, **kw)

    def pid(self, daemon):
        with open(os.path.join(self.dir, 'run', f'{daemon}.pid')) as f:
            return int(f.read())

    def signal(self, daemon, which):
        os.kill(self.pid(daemon), which)

    def kill(self, daemon):
        pid = self.pid(daemon)
        os.kill(pid, signal.SIGKILL)
        wait(lambda: gone(pid), f'{daemon} to be gone')

    def daemons(self):
        d = os.path.join(self.dir, 'run')
        return [n[:-4] for n in sorted(os.listdir(d)) if n.endswith('.pid') and n != 'join.pid'] if os.path.isdir(d) else []

    def kill_all(self):
        for name in self.daemons():
            try:
                self.kill(name)
            except (ProcessLookupError, ValueError, AssertionError):
                pass

    def logs(self):
        out = ''
        if os.path.isdir(self.dir):
            for name in sorted(os.listdir(self.dir)):
                if name.endswith('.log'):
                    with open(os.path.join(self.dir, name), errors='replace') as f:
                        out += ''.join(f'{self.name}/{name}: {l}' for l in f)
        return out

    # ---- its links ----

    def link(self, up, network=0):
        """At the switch: the host's own addresses stay, as when a cable is pulled."""
        ip('-n', self.net.tag, 'link', 'set', f'p{self.number}n{network}', 'up' if up else 'down')

    def deafen(self, other, on=True, network=0):
        """What this host sends to `other` is lost (on), or arrives again."""
        action = ['replace', other.addr(network), 'lladdr', '02:00:00:00:00:fe', 'dev', f'eth{network}', 'nud', 'permanent'] \
            if on else ['del', other.addr(network), 'dev', f'eth{network}']
        # Two faults at a time may mean the same link: the first that ends mends it.
        ip('-n', self.ns, 'neigh', *action, check=on)

    def usurp(self, other, on=True, network=0):
        """This host takes the address of `other` for its own: its connections there are refused, and nothing that comes from there
        is believed."""
        bits = '128' if self.net.six else '32'
        # Nobody else is to believe it.
        self.run('sh', '-c', 'echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore')
        ip('-n', self.ns, 'addr', 'add' if on else 'del', f'{other.addr(network)}/{bits}', 'dev', 'lo')


class Net:
    """Hosts by name, on one public and, if wanted, one cluster network."""
    count = 0

    def __init__(self, folder, names, six=False, networks=1):
        Net.count += 1
        self.tag = f'sp{os.getpid() % 100000}{Net.count}'
        self.folder, self.six, self.networks = folder, six, networks
        self.hosts = {}
        # The bridges are in a namespace, too: nothing of ours is on the machine itself.
        ip('netns', 'add', self.tag)
        for n in range(networks):
            ip('-n', self.tag, 'link', 'add', f'br{n}', 'type', 'bridge')
            ip('-n', self.tag, 'link', 'set', f'br{n}', 'up')
        for number, name in enumerate(names, 1):
            h = Host(self, name, number)
            self.hosts[name] = h
            ip('netns', 'add', h.ns)
            ip('-n', h.ns, 'link', 'set', 'lo', 'up')
            for n in range(networks):
                port = f'p{number}n{n}'
                ip('-n', h.ns, 'link', 'add', f'eth{n}', 'type', 'veth', 'peer', 'name', port, 'netns', self.tag)
                ip('-n', self.tag, 'link', 'set', port, 'master', f'br{n}', 'up')
                ip('-n', h.ns, 'link', 'set', f'eth{n}', 'up')
                self.give_address(h, n)

    def give_address(self, h, network):
        bits = '64' if self.six else '24'
        extra = ['nodad'] if self.six else []
        ip('-n', h.ns, 'addr', 'add', f'{h.addr(network)}/{bits}', 'dev', f'eth{network}', *extra, check=False)

    def addr(self, number, network=0):
        return f'fd00:{network + 1}::{number:x}' if self.six else f'10.{144 + network}.0.{number}'

    def network(self, network=0):
        return f'fd00:{network + 1}::/64' if self.six else f'10.{144 + network}.0.0/24'

    def __getitem__(self, name):
        return self.hosts[name]

    def close(self):
        for h in self.hosts.values():
            h.kill_all()
            ip('netns', 'del', h.ns, check=False)
        ip('netns', 'del', self.tag, check=False)
