#!/usr/bin/env python3
"""Runs random op vectors on a real Ceph through librados and prints what came out.

usage: record.py CEPH_CONF [SEED=1] [VECTORS=600] > vectors-16.2.tsv
The cluster is a throw-away one (cargo xtask ceph up DIR); the pool made stays. Stops early when the
OSD does: some vectors make it store a wrong data digest, and it waits for a repair at the next read.

Lines, tab-separated: kind (W write vector, R read vector, S state), object, then
  W: result, user version, ops          R: result, user version, ops, outputs
  S: data, attributes, omap ("-" for an absent object)
ops are code:flags:union:input joined by ";", outputs rval:bytes joined by ";"; all bytes in hex.
Outputs are in wire form; of a stat only the size.
"""
import ctypes as c, random, struct, sys

lib = c.CDLL("librados.so.2")
conf, seed, count = sys.argv[1], int((sys.argv + ["1"])[2]) if len(sys.argv) > 2 else 1, 600
if len(sys.argv) > 3: count = int(sys.argv[3])
rnd = random.Random(seed)
P, S, U64, U32, U8, I = c.c_void_p, c.c_size_t, c.c_uint64, c.c_uint32, c.c_uint8, c.c_int
def ok(r):
    if r < 0: raise OSError(-r, "librados")
cluster, io = P(), P()
ok(lib.rados_create(c.byref(cluster), b"admin")); ok(lib.rados_conf_read_file(cluster, conf.encode()))
ok(lib.rados_conf_set(cluster, b"rados_osd_op_timeout", b"4")); ok(lib.rados_connect(cluster))
def mon(cmd):
    a = (c.c_char_p * 1)(cmd.encode()); z = P()
    ok(lib.rados_mon_command(cluster, a, S(1), b"", S(0), c.byref(z), c.byref(S()), c.byref(P()), c.byref(S())))
pool = b"exec%d" % seed
mon('{"prefix":"osd pool create","pool":"%s","pg_num":1,"pgp_num":1}' % pool.decode())
lib.rados_wait_for_latest_osdmap(cluster)
ok(lib.rados_ioctx_create(cluster, pool, c.byref(io)))
lib.rados_create_write_op.restype = lib.rados_create_read_op.restype = P
lib.rados_get_last_version.restype = U64

KEYS = [b"a", b"b", b"ba", b"bb", b"c"]
def key(): return rnd.choice(KEYS)
def val(n=24): return bytes(rnd.randrange(3) for _ in range(rnd.randrange(n)))
def off(): return rnd.randrange(48)
def blob(b): return struct.pack("<I", len(b)) + b
def ext(o, n): return struct.pack("<QQ", o, n)
def arr(items): return (c.c_char_p * len(items))(*items)
keep = []
def buf(b):
    x = c.create_string_buffer(b, len(b)); keep.append(x); return x

# Each maker adds one op to `op` and gives (code, op flags, union, input).
def w_create(op):
    e = rnd.random() < .3; lib.rados_write_op_create(P(op), I(1 if e else 0), None); return 0x220d, 1 if e else 0, b"", b""
def w_write(op):
    o, d = off(), val(); lib.rados_write_op_write(P(op), buf(d), S(len(d)), U64(o)); return 0x2201, 0, ext(o, len(d)), d
def w_full(op):
    d = val(); lib.rados_write_op_write_full(P(op), buf(d), S(len(d))); return 0x2202, 0, ext(0, len(d)), d
def w_append(op):
    d = val(); lib.rados_write_op_append(P(op), buf(d), S(len(d))); return 0x2206, 0, ext(0, len(d)), d
def w_same(op):
    o, d = off(), val(6); n = rnd.choice([0, len(d), 3 * len(d), 7])
    lib.rados_write_op_writesame(P(op), buf(d), S(len(d)), S(n), U64(o)); return 0x2226, 0, struct.pack("<QQQ", o, n, len(d)), d
def w_trunc(op):
    o = rnd.choice([off(), off(), 128 << 20]); lib.rados_write_op_truncate(P(op), U64(o)); return 0x2203, 0, ext(o, 0), b""
def w_zero(op):
    o, n = off(), 1 + off(); lib.rados_write_op_zero(P(op), U64(o), U64(n)); return 0x2204, 0, ext(o, n), b""
def w_remove(op): lib.rados_write_op_remove(P(op)); return 0x2205, 0, b"", b""
def w_setx(op):
    k, v = key(), val()
    if rnd.random() < .05: k = b"n" * rnd.choice([100, 101])
    lib.rados_write_op_setxattr(P(op), k, buf(v), S(len(v))); return 0x2301, 0, struct.pack("<II", len(k), len(v)), k + v
def w_rmx(op):
    k = key(); lib.rados_write_op_rmxattr(P(op), k); return 0x2304, 0, struct.pack("<I", len(k)), k
def w_oset(op):
    kv = {key(): val() for _ in range(rnd.randrange(4))}; ks = sorted(kv); vs = [kv[k] for k in ks]
    lib.rados_write_op_omap_set(P(op), arr(ks), (P * len(vs))(*[c.cast(buf(v), P) for v in vs]), (S * len(vs))(*map(len, vs)), S(len(vs)))
    d = struct.pack("<I", len(ks)) + b"".join(blob(k) + blob(kv[k]) for k in ks); return 0x2215, 0, ext(0, len(d)), d
def w_orm(op):
    ks = sorted({key() for _ in range(rnd.randrange(3))}); lib.rados_write_op_omap_rm_keys(P(op), arr(ks), S(len(ks)))
    d = struct.pack("<I", len(ks)) + b"".join(map(blob, ks)); return 0x2218, 0, ext(0, len(d)), d
def w_orange(op):
    a, z = sorted([key(), key()]); lib.rados_write_op_omap_rm_range2(P(op), a, S(len(a)), z, S(len(z)))
    d = blob(a) + blob(z); return 0x222c, 0, ext(0, len(d)), d
def w_oclear(op): lib.rados_write_op_omap_clear(P(op)); return 0x2217, 0, b"", b""
def w_hint(op): lib.rados_write_op_set_alloc_hint(P(op), U64(9), U64(5)); return 0x2223, 2, ext(9, 5), b""
def g_exists(kind):
    def f(op, *_): getattr(lib, "rados_%s_op_assert_exists" % kind)(P(op)); return 0x1202, 0, b"", b""
    return f
def g_ver(kind):
    def f(op, *_):
        v = rnd.choice([0, 1, 10**6, last]); getattr(lib, "rados_%s_op_assert_version" % kind)(P(op), U64(v)); return 0x1208, 0, ext(0, v), b""
    return f
def g_cmpx(kind):
    def f(op, *_):
        k, v, o = key(), val(4), 1 + rnd.randrange(6)
        getattr(lib, "rados_%s_op_cmpxattr" % kind)(P(op), k, U8(o), buf(v), S(len(v)))
        return 0x1303, 0, struct.pack("<IIBB", len(k), len(v), o, 1), k + v
    return f
def g_ocmp(kind):
    def f(op, *_):
        k, v, o = key(), val(4), rnd.choice([1, 3, 5, 2])
        getattr(lib, "rados_%s_op_omap_cmp" % kind)(P(op), k, U8(o), buf(v), S(len(v)), None)
        d = struct.pack("<I", 1) + blob(k) + blob(v) + struct.pack("<i", o); return 0x1219, 0, ext(0, len(d)), d
    return f
def g_cmpext(kind):
    def f(op, *_):
        o, d = off(), val(4); getattr(lib, "rados_%s_op_cmpext" % kind)(P(op), buf(d), S(len(d)), U64(o), c.byref(keepint()))
        return 0x1220, 0, ext(o, len(d)), d
    return f
def keepint():
    x = I(0); keep.append(x); return x

# Reads also give a function that returns the output once the vector ran.
def r_read(op, outs):
    o, n = off(), rnd.choice([4000, 1 + off()]); b, got, rv = c.create_string_buffer(4096), S(), keepint(); keep.append(b)
    lib.rados_read_op_read(P(op), U64(o), S(n), b, c.byref(got), c.byref(rv)); keep.append(got)
    outs.append(lambda: (rv.value, b.raw[:got.value])); return 0x1201, 0, ext(o, n), b""
def r_stat(op, outs):
    n, t, rv = U64(), c.c_long(), keepint(); keep.extend([n, t])
    lib.rados_read_op_stat(P(op), c.byref(n), c.byref(t), c.byref(rv))
    outs.append(lambda: (rv.value, struct.pack("<Q", n.value))); return 0x1202, 0, b"", b""
def r_sum(op, outs):
    kind = rnd.randrange(3); o, n, ch = rnd.choice([(0, 0, 0), (off(), off(), 0), (0, 12, 4), (4, 8, 4), (0, 9, 4), (0, 40, 20)])
    init = bytes([rnd.randrange(256)] * (8 if kind == 1 else 4)); b, rv = c.create_string_buffer(b"\xaa" * 256, 256), keepint(); keep.append(b)
    lib.rados_read_op_checksum(P(op), I(kind), buf(init), S(len(init)), U64(o), S(n), S(ch), b, S(256), c.byref(rv))
    def out():
        if b.raw == b"\xaa" * 256: return rv.value, b""
        m = struct.unpack_from("<I", b.raw)[0]; return rv.value, b.raw[:4 + m * (8 if kind == 1 else 4)]
    outs.append(out); return 0x121f, 0, struct.pack("<QQIB", o, n, ch, kind), init
def omap_items(it):
    k, v, n, items = c.c_char_p(), P(), S(), []
    while True:
        lib.rados_omap_get_next(it, c.byref(k), c.byref(v), c.byref(n))
        if k.value is None: break
        items.append((k.value, c.string_at(v, n.value) if v.value else b""))
    lib.rados_omap_get_end(it); return items
def r_keys(op, outs):
    a, m = rnd.choice([b""] + KEYS), rnd.randrange(5); it, more, rv = P(), U8(), keepint(); keep.extend([it, more])
    lib.rados_read_op_omap_get_keys2(P(op), a, U64(m), c.byref(it), c.byref(more), c.byref(rv))
    def out():
        ks = omap_items(it) if it.value else []; return rv.value, struct.pack("<I", len(ks)) + b"".join(blob(k) for k, _ in ks) + bytes([more.value])
    outs.append(out); d = blob(a) + struct.pack("<Q", m); return 0x1211, 0, ext(0, len(d)), d
def r_vals(op, outs):
    a, m, p = rnd.choice([b""] + KEYS), rnd.randrange(5), rnd.choice([b"", b"b"]); it, more, rv = P(), U8(), keepint(); keep.extend([it, more])
    lib.rados_read_op_omap_get_vals2(P(op), a, p, U64(m), c.byref(it), c.byref(more), c.byref(rv))
    def out():
        kv = omap_items(it) if it.value else []; return rv.value, struct.pack("<I", len(kv)) + b"".join(blob(k) + blob(v) for k, v in kv) + bytes([more.value])
    outs.append(out); d = blob(a) + struct.pack("<Q", m) + blob(p); return 0x1212, 0, ext(0, len(d)), d
def plain(f):
    def g(op, outs): outs.append(lambda: None); return f(op)
    return g

WRITES = [w_create, w_write, w_write, w_write, w_full, w_append, w_same, w_trunc, w_zero, w_zero, w_remove, w_setx, w_setx, w_rmx, w_oset, w_oset, w_orm, w_orange, w_oclear, w_hint]
GUARDS = [g_exists, g_ver, g_cmpx, g_ocmp, g_cmpext]
READS = [r_read, r_read, r_read, r_stat, r_sum, r_sum, r_keys, r_vals]

def text(ops): return ";".join("%x:%x:%s:%s" % (a, f, u.ljust(28, b"\0").hex(), d.hex()) for a, f, u, d in ops)
def failok(kind, op, made):
    code, flags, u, d = made
    if code == 0x2223: return made          # librados sets it by itself
    if rnd.random() < .4:
        flags |= 2; getattr(lib, "rados_%s_op_set_flags" % kind)(P(op), I(flags))
    return code, flags, u, d

last = 0
def state(oid):
    op = lib.rados_create_read_op(); b, got, it, xit, more = c.create_string_buffer(1 << 16), S(), P(), P(), U8()
    lib.rados_read_op_read(P(op), U64(0), S(4096), b, c.byref(got), c.byref(I()))
    lib.rados_read_op_getxattrs(P(op), c.byref(xit), c.byref(I()))
    lib.rados_read_op_omap_get_vals2(P(op), b"", b"", U64(1000), c.byref(it), c.byref(more), c.byref(I()))
    r = lib.rados_read_op_operate(P(op), io, oid, I(0)); lib.rados_release_read_op(P(op))
    if r == -110: sys.exit()
    if r < 0: return "-\t-\t-"
    attrs, k, v, n = {}, c.c_char_p(), P(), S()
    while True:
        lib.rados_getxattrs_next(xit, c.byref(k), c.byref(v), c.byref(n))
        if k.value is None: break
        attrs[k.value] = c.string_at(v, n.value) if v.value else b""
    lib.rados_getxattrs_end(xit)
    show = lambda kv: ",".join("%s=%s" % (k.hex(), v.hex()) for k, v in sorted(kv))
    return "%s\t%s\t%s" % (b.raw[:got.value].hex(), show(attrs.items()), show(omap_items(it)))

for _ in range(count):
    oid = b"o%d" % rnd.randrange(4); keep.clear(); ops = []
    if rnd.random() < .6:
        op = lib.rados_create_write_op()
        for _ in range(rnd.choice([0, 0, 0, 1])): ops.append(rnd.choice(GUARDS)("write")(op))
        for _ in range(1 + rnd.randrange(5)):
            # Left out because Ceph errs: BlueStore does not remove by range what the same
            # transaction has just set, and a vector that deletes twice deletes nothing.
            done = {o[0] for o in ops}
            ok_now = [w for w in WRITES if not (0x2215 in done and w in (w_orange, w_oclear)) and not (0x2205 in done and w is w_remove)]
            ops.append(failok("write", op, rnd.choice(ok_now)(op)))
        r = lib.rados_write_op_operate(P(op), io, oid, None, I(0)); lib.rados_release_write_op(P(op))
        version = lib.rados_get_last_version(io)
        if r == -110: break
        if r >= 0: last = version
        print("W", oid.decode(), r, version, text(ops), sep="\t"); print("S", oid.decode(), state(oid), sep="\t")
    else:
        op = lib.rados_create_read_op(); outs = []
        for _ in range(1 + rnd.randrange(4)):
            make = rnd.choice(READS + [plain(g("read")) for g in GUARDS]); ops.append(failok("read", op, make(op, outs)))
        r = lib.rados_read_op_operate(P(op), io, oid, I(0)); version = lib.rados_get_last_version(io)
        if r == -110: break
        got = []
        for o in outs:
            x = o(); got.append("?" if x is None or r < 0 else "%d:%s" % (x[0], x[1].hex()))
        lib.rados_release_read_op(P(op)); print("R", oid.decode(), r, version, text(ops), ";".join(got), sep="\t")
lib.rados_ioctx_destroy(io)
