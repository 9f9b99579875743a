#!/usr/bin/env python3
"""Calls methods of object classes on a real Ceph through librados and prints what came out.

usage: record_classes.py CEPH_CONF CLASSES [SEED=1] [CALLS=600] > classes-16.2-NAME.tsv
CLASSES are modules beside this one (calls_NAME.py) joined by commas: each gives tables of inputs for its methods. The cluster is a
throw-away one whose OSDs load all classes (cargo xtask ceph up DIR, osd_class_load_list = *); the pool made stays.

Lines are those of record.py (kinds W, R and S), after one of kind I: the caller's number and nonce. A method that is registered as
writing is called by a write vector, and now and then by a read vector, which changes the object all the same; one that is
registered as reading is called by a read vector, and now and then beside a write. Times near now, and 100,000 s after, are replaced
by fixed ones (0x5aa5c33c s, and 100,000 s and 5 ns after; or 200,000 or 300,000 s and no ns) in all bytes that come out, so that they
can be compared, and so are the magic numbers of fifo's parts. Of data and outputs of more than 300 bytes only the length and the crc32c
are shown, as ~LENGTH:CRC, and so of an omap whose text has more than 1000 characters. A line of kind S ends with the omap's header.

Of what is kept of radosgw's classes, answers and states are left out that Spirula has otherwise (docs/differences.md), or that hang on
how long the recording took (lost operations on a bucket's index), and what follows from them.
"""
import ctypes as c, importlib, os, random, re, struct, subprocess, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
lib = c.CDLL("librados.so.2")
conf, names = sys.argv[1], sys.argv[2].split(",")
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
count = int(sys.argv[4]) if len(sys.argv) > 4 else 600
rnd = random.Random(seed)
P, S, U64, U8, I = c.c_void_p, c.c_size_t, c.c_uint64, c.c_uint8, c.c_int
def ok(r):
    if r < 0: raise OSError(-r, "librados")
cluster, io = P(), P()
ok(lib.rados_create(c.byref(cluster), b"admin")); ok(lib.rados_conf_read_file(cluster, conf.encode()))
ok(lib.rados_conf_set(cluster, b"rados_osd_op_timeout", b"10")); ok(lib.rados_connect(cluster))
def mon(cmd):
    a = (c.c_char_p * 1)(cmd.encode()); z = P()
    ok(lib.rados_mon_command(cluster, a, S(1), b"", S(0), c.byref(z), c.byref(S()), c.byref(P()), c.byref(S())))
pool = b"classes%d" % seed
mon('{"prefix":"osd pool create","pool":"%s","pg_num":1,"pgp_num":1}' % pool.decode())
lib.rados_wait_for_latest_osdmap(cluster)
ok(lib.rados_ioctx_create(cluster, pool, c.byref(io)))
lib.rados_create_write_op.restype = lib.rados_create_read_op.restype = P
lib.rados_get_last_version.restype = lib.rados_get_instance_id.restype = U64
addrs = c.c_char_p(); ok(lib.rados_getaddrs(cluster, c.byref(addrs)))
me, nonce = lib.rados_get_instance_id(cluster), int(re.search(rb"/(\d+)", addrs.value).group(1))
print("I", me, nonce, sep="\t")

begun = time.time()
NOW, LATER = 0x5aa5c33c, {0: 0, 100000: 5, 200000: 0, 300000: 0}
def mix(z):
    z = ((z ^ z >> 30) + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9 & 2**64 - 1
    z = (z ^ z >> 27) * 0x94d049bb133111eb & 2**64 - 1
    return z ^ z >> 31
def drawn():
    """The first number that our OSD draws for a request of this client."""
    h = 0
    for part in (me, 0, 0, NOW * 10**9, 1): h = mix(h ^ part)
    return struct.pack("<Q", h)
magics = {}
def decimal(m):
    for later in LATER:
        if begun - 5 <= int(m[1]) - later <= time.time() + 5: return b"%011d.%09d" % (NOW + later, LATER[later])
    return m[0]
def still(b):
    """Replaces times and magic numbers of this run."""
    b = re.sub(rb"(\d{11})\.(\d{9})", decimal, b)
    for magic, ours in magics.items(): b = b.replace(magic, ours)
    out, i = bytearray(b), 0
    while i + 8 <= len(out):
        sec, nsec = struct.unpack_from("<II", out, i)
        for later in LATER:
            if begun - 5 <= sec - later <= time.time() + 5 and nsec < 10**9:
                struct.pack_into("<II", out, i, NOW + later, LATER[later]); i += 8; break
        else: i += 1
    return bytes(out)

def crc32c(data, crc=0):
    for b in data:
        crc ^= b
        for _ in range(8): crc = (crc >> 1) ^ (0x82f63b78 & -(crc & 1))
    return crc
def shown(b):
    """Bytes in hex; of many, their number and checksum."""
    b = still(b)
    return b.hex() if len(b) <= 300 else "~%d:%08x" % (len(b), crc32c(b))

def state(oid):
    op = lib.rados_create_read_op(); b, got, xit, it, more = c.create_string_buffer(1 << 20), S(), P(), P(), U8()
    lib.rados_read_op_read(P(op), U64(0), S(1 << 20), b, c.byref(got), c.byref(I()))
    lib.rados_read_op_getxattrs(P(op), c.byref(xit), c.byref(I()))
    lib.rados_read_op_omap_get_vals2(P(op), b"", b"", U64(1000), c.byref(it), c.byref(more), c.byref(I()))
    r = lib.rados_read_op_operate(P(op), io, oid, I(0)); lib.rados_release_read_op(P(op))
    if r < 0: return "-\t-\t-\t-"
    if oid.startswith(b"part") and got.value > 20:
        at = 10 + int.from_bytes(b.raw[6:10], "little") + 30; magics[b.raw[at:at + 8]] = drawn()
    attrs, omap, k, v, n, kn = {}, {}, c.c_char_p(), P(), S(), S()
    while True:
        lib.rados_getxattrs_next(xit, c.byref(k), c.byref(v), c.byref(n))
        if k.value is None: break
        attrs[k.value] = c.string_at(v, n.value) if v.value else b""
    lib.rados_getxattrs_end(xit)
    kp = P()
    while True:
        lib.rados_omap_get_next2(it, c.byref(kp), c.byref(v), c.byref(kn), c.byref(n))
        if not kp.value: break
        omap[c.string_at(kp, kn.value)] = c.string_at(v, n.value) if v.value else b""
    lib.rados_omap_get_end(it)
    text = lambda kv: ",".join("%s=%s" % (still(k).hex(), still(v).hex()) for k, v in sorted(kv.items()))
    show = lambda kv: t if len(t := text(kv)) <= 1000 else "~%d:%08x" % (len(t), crc32c(t.encode()))
    return "%s\t%s\t%s\t%s" % (shown(b.raw[:got.value]), show(attrs), show(omap), header(oid))

def header(oid):
    """The omap's header of an object that may have one, by the rados command: librados in C has no question for it."""
    if not oid.startswith(b"hd"): return ""
    r = subprocess.run(["rados", "-c", conf, "-p", pool.decode(), "getomapheader", oid.decode(), "/tmp/header%d" % os.getpid()], capture_output=True)
    if r.returncode: return ""
    with open("/tmp/header%d" % os.getpid(), "rb") as f: return still(f.read()).hex()

def text(ops): return ";".join("%04x:%x:%s:%s" % (o, f, u.ljust(28, b"\0").hex(), i.hex()) for o, f, u, i in ops)
def call_text(cls, m, d): return (0x1401, 0, struct.pack("<BBBI", len(cls), len(m), 0, len(d)), cls + m + d)

def run(cls, method, writes, oid, data):
    cls, method = cls.encode(), method.encode()
    r = rnd.random(); ops = [call_text(cls, method, data)]
    reading = not writes if r > .08 else writes
    if not reading:
        op = lib.rados_create_write_op(); lib.rados_write_op_exec(P(op), cls, method, data, S(len(data)), None)
        if not writes:
            ops.insert(0, (0x220d, 0, b"", b"")); lib.rados_release_write_op(P(op)); op = lib.rados_create_write_op()
            lib.rados_write_op_create(P(op), I(0), None); lib.rados_write_op_exec(P(op), cls, method, data, S(len(data)), None)
        r = lib.rados_write_op_operate(P(op), io, oid, None, I(0)); lib.rados_release_write_op(P(op))
        print("W", oid.decode(), r, lib.rados_get_last_version(io), text(ops), sep="\t")
    else:
        op = lib.rados_create_read_op(); n, rv, out = S(), I(-12345), c.create_string_buffer(1 << 16)
        lib.rados_read_op_exec_user_buf(P(op), cls, method, data, S(len(data)), out, S(len(out)), c.byref(n), c.byref(rv))
        r = lib.rados_read_op_operate(P(op), io, oid, I(0)); lib.rados_release_read_op(P(op))
        print("R", oid.decode(), r, lib.rados_get_last_version(io), text(ops), "%d:%s" % (rv.value, shown(out.raw[:n.value])), sep="\t")
    if r == -110: sys.exit("timed out")
    if writes or not reading: print("S", oid.decode(), state(oid), sep="\t")
    return r

mods = [importlib.import_module("calls_" + n) for n in names]
for m in mods: m.begin(rnd, me, int(begun))
for _ in range(count):
    m = rnd.choice(mods)
    cls, method, writes, oid, data = m.call()
    # (The tables of queues know what is in them.)
    if rnd.random() < .02 and "queue" not in cls: data = data[:rnd.randrange(len(data) + 1)]
    run(cls, method, writes, oid.encode(), data)
lib.rados_ioctx_destroy(io)
