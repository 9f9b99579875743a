"""A small virtual machine for the tests: Debian's stock kernel and busybox in qemu, without KVM, which hangs on some hosts of CI.

The kernel is that of a package linux-image which is unpacked somewhere (`KERNELS`), not that of the machine that runs the tests. All of the
guest is in its memory; commands go to its shell over a second serial line, what its kernel says to a file. It reaches every
address of this machine but the loopback's, through qemu's user network.
"""
import glob, os, re, shutil, signal, subprocess, threading, time
from harness import PATIENCE, Skip, wait
from netns import ip

HERE = os.path.dirname(os.path.abspath(__file__))
# Folders that are as a package linux-image is when it is unpacked: where `cargo xtask test` puts one, and where an installed one is.
KERNELS = [os.environ.get('GUEST_KERNEL') or os.path.join(HERE, '../../target/guest-kernel'), '']
# What is in it: more than busybox has for a block device with a file system.
PROGRAMS = ['busybox', 'mkfs.ext4', 'e2fsck']

INIT = '''#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
for m in $(cat /modules/order); do insmod /modules/$m || echo "no module $m" > /dev/ttyS0; done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
route add default gw 10.0.2.2
exec setsid sh -c '
    exec < /dev/ttyS1
    stty -echo
    # Its errors are no terminal: it does not think that somebody types.
    (echo guest-is-up; exec sh 2>&1) | cat > /dev/ttyS1'
'''


def kernel(module='net/ceph/libceph'):
    """Image and folder of modules of a kernel that has that one."""
    for root in KERNELS:
        for image in sorted(glob.glob(f'{root}/boot/vmlinuz-*'), reverse=True):
            modules = f'{root}/lib/modules/{image.split("vmlinuz-", 1)[1]}'
            if glob.glob(f'{modules}/kernel/{module}.ko'):
                return image, modules
    raise Skip(f'no kernel with {module}.ko of a package linux-image-amd64 is unpacked below {KERNELS[0]}')


def need(module='net/ceph/libceph'):
    for program, package in [('qemu-system-x86_64', 'qemu-system-x86'), ('busybox', 'busybox-static')]:
        if not shutil.which(program):
            raise Skip(f'{package} is not installed')
    kernel(module)


def address():
    """Makes an address on this machine's loopback that a guest reaches, too, and does not take for its own."""
    here = f'198.18.{os.getpid() >> 8 & 255}.{os.getpid() & 255}'
    ip('addr', 'add', f'{here}/32', 'dev', 'lo')
    return here


def forget_address(here):
    ip('addr', 'del', f'{here}/32', 'dev', 'lo', check=False)


def in_order(folder, wanted):
    """Files of modules, each behind those that it depends on. What is built into the kernel is none."""
    there = {os.path.basename(f)[:-3].replace('-', '_'): f for f in glob.glob(f'{folder}/kernel/**/*.ko', recursive=True)}
    found = []

    def add(name):
        path = there.get(name)
        if not path or path in found:
            return
        with open(path, 'rb') as f:
            depends = re.search(rb'\0depends=([^\0]*)\0', f.read())
        for other in filter(None, depends[1].decode().split(',')):
            add(other.replace('-', '_'))
        found.append(path)
    for name in wanted:
        add(name)
    return found


def cpio(path, files):
    """Writes an archive as kernels unpack at their start: {name: content, or None for a folder}."""
    with open(path, 'wb') as out:
        def put(name, mode, data, number):
            head = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
            entry = b'070701' + b''.join(b'%08x' % n for n in head) + name.encode() + b'\0'
            out.write(entry + bytes(-len(entry) % 4) + data + bytes(-len(data) % 4))
        for number, (name, data) in enumerate(files.items(), 1):
            put(name, 0o40755 if data is None else 0o100755, data or b'', number)
        put('TRAILER!!!', 0, b'', 0)


def initramfs(path, modules, more=()):
    files = {name: None for name in ('bin', 'dev', 'proc', 'sys', 'mnt', 'etc', 'modules', 'lib', 'lib64')}
    read = lambda p: open(p, 'rb').read()
    files['init'] = INIT.encode()
    found = in_order(kernel()[1], modules)
    for f in found:
        files['modules/' + os.path.basename(f)] = read(f)
    files['modules/order'] = '\n'.join(os.path.basename(f) for f in found).encode()
    # Libraries that they are linked with go to the folders where the loader looks.
    for program in [*PROGRAMS, *more]:
        at = shutil.which(program, path='/usr/sbin:/sbin:/usr/bin:/bin')
        if not at:
            raise Skip(f'{program} is not installed')
        files[f'bin/{program}'] = read(at)
        linked = subprocess.run(['ldd', at], capture_output=True, text=True).stdout
        for library in re.findall(r'(/\S+) \(0x', linked):
            folder = 'lib64' if 'ld-linux' in library else 'lib'
            files[f'{folder}/{os.path.basename(library)}'] = read(library)
    files['etc/mke2fs.conf'] = read('/etc/mke2fs.conf')
    cpio(path, files)


class Guest:
    """One that runs, until it is killed."""

    def __init__(self, scratch, initramfs, name, memory='384M'):
        self.console = os.path.join(scratch, f'{name}.console')
        argv = ['qemu-system-x86_64', '-accel', 'tcg', '-cpu', 'max', '-m', memory, '-nodefaults', '-display', 'none', '-no-reboot',
                '-kernel', kernel()[0], '-initrd', initramfs, '-append', 'console=ttyS0 panic=-1 quiet loglevel=6 mitigations=off random.trust_cpu=on',
                '-netdev', 'user,id=net', '-device', 'virtio-net-pci,netdev=net,romfile=', '-serial', f'file:{self.console}', '-serial', 'stdio']
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.out, self.asked, self.changed = '', 0, threading.Condition()
        threading.Thread(target=self.listen, daemon=True).start()
        # What comes before somebody listens is lost.
        self.until('guest-is-up')

    def listen(self):
        while data := self.p.stdout.read1(65536):
            with self.changed:
                self.out += data.decode(errors='replace')
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def said(self):
        return f'{self.out[-4000:]}\n--- its kernel:\n{open(self.console, errors="replace").read()[-6000:]}'

    def until(self, what, seconds=PATIENCE):
        """Waits until a pattern is in what it says; the match."""
        end = time.time() + seconds
        with self.changed:
            while not (found := re.search(what, self.out, re.S)):
                left = end - time.time()
                assert left > 0 and self.p.poll() is None, f'the guest does not say {what!r} within {seconds} s: {self.said()}'
                self.changed.wait(min(left, 1))
        return found

    def send(self, command):
        """A command is written to its shell; the number that its end has."""
        self.asked += 1
        self.p.stdin.write(f'{command}\necho "ended-$?-{self.asked}"\n'.encode())
        self.p.stdin.flush()
        return self.asked

    def run(self, command, seconds=PATIENCE, check=True):
        """What a command says, when it has ended."""
        before = len(self.out)
        number = self.send(command)
        code = int(self.until(rf'ended-(\d+)-{number}\b', seconds)[1])
        said = re.sub(r'ended-\d+-\d+\r?\n?', '', self.out[before:]).replace('\r', '').strip()
        assert not check or code == 0, f'{command} in the guest: exit {code}: {said}\n{self.said()}'
        return said

    def kill(self):
        """As when its power is cut."""
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGKILL)
        self.p.wait(60)
