"""Inputs for rgw, for record_classes.py."""
import struct

def s(x): x = x.encode() if isinstance(x, str) else x; return struct.pack("<I", len(x)) + x
def v(body, n=1, c=None): return struct.pack("<BBI", n, c or min(n, 1), len(body)) + body
def strs(xs): return struct.pack("<I", len(xs)) + b"".join(map(s, xs))
def u8(n): return struct.pack("<B", n)
def u16(n): return struct.pack("<H", n)
def u32(n): return struct.pack("<I", n & 0xffffffff)
def u64(n): return struct.pack("<Q", n & 2**64 - 1)
def time(sec, nsec=0): return struct.pack("<II", sec, nsec)

def begin(random, number, now):
    global rnd, me
    rnd, me = random, number

def pick(*xs): return rnd.choice(xs)

NAMES = ("a", "a", "b", "a/x", "a/y", "c/z", "\u00e9t")
def name(): return pick(*NAMES)
def instance(): return pick("", "", "", "i1", "i1", "i2", "i3", "null")
def key(n=None, i=None): return v(s(name() if n is None else n) + s(instance() if i is None else i))
def packed(n):
    n &= 2**64 - 1
    if n < 0x80: return u8(n)
    return b"\x81" + u8(n) if n < 0x100 else b"\x82" + u16(n) if n < 0x10000 else b"\x84" + u32(n) if n <= 0x1000000 else b"\x88" + u64(n)
def ver(): return v(packed(pick(1, 7, 7, 7, -1)) + packed(pick(0, 1, 2, 3, 300, 70000, 2**33)))
def meta():
    size = pick(0, 1, 4096, 5000)
    return v(u8(pick(0, 1, 1, 1, 3)) + u64(size) + time(1600000000 + rnd.randrange(3), pick(0, 7)) + s("etag") + s("own") + s("Own") + s("text") +
             u64(pick(size, 9000)) + s("") + s("STANDARD") + u8(0), 7, 3)
def tag(): return pick("t1", "t1", "t2", "")
def zones(): return strs(pick([], ["z1"], ["z1:b", "z2"]))
def pending(): return v(u8(0) + time(pick(1500000000, 3000000000)) + u8(pick(0, 1)), 2, 2)
def entry(n=None, i=None):
    pend = [(t, pending()) for t in pick([], [], ["t1"], ["t1", "t1"], ["t1", "t2"])]
    return v(s(name() if n is None else n) + u64(5) + u8(pick(0, 1, 1)) + meta() + u32(len(pend)) + b"".join(s(t) + p for t, p in pend) + s("") + ver() +
             packed(pick(0, 5, 900)) + s(tag()) + s(pick("", "", "i1") if i is None else i) + u16(pick(0, 0, 1, 3, 5, 7, 8)) + u64(pick(0, 1, 2, 3)), 8, 3)

INDEX = ("hdix0", "hdix1", "hdix2")
FOLDED = b"\x80"
def index():
    m = pick(*["prepare"] * 8, *["complete"] * 10, *["list"] * 8, "check", "check", "rebuild", "init", "timeout", "stats", "suggest", "suggest", "suggest",
             "bi_get", "bi_get", "bi_put", "bi_put", "bi_list", "bi_list", "bi_list", "log_list", "log_trim", "resync", "stop", "set_resharding", "clear_resharding",
             "clear_resharding", "guard", "get_resharding")
    op = lambda: u8(pick(0, 0, 0, 1, 1, 2, 3))
    where = lambda: pick("", "", "a", "b", "a/", "a/x", "\u00e9t", b"\x801000_a\0ii1", b"\x801001_a", b"a\0v912\0ii1")
    full, data = {
        "prepare": ("bucket_prepare_op", lambda: v(op() + s(tag()) + s("") + u8(1) + key() + u16(0) + zones(), 7, 5)),
        "complete": ("bucket_complete_op", lambda: v(op() + u64(5) + meta() + s(tag()) + s("") + pick(u32(0), u32(0), u32(1) + key(), u32(2) + key() + key()) + ver() +
                                                     u8(pick(0, 1)) + key() + u16(pick(0, 2)) + zones(), 9, 7)),
        "list": ("bucket_list", lambda: v(u32(pick(0, 1, 2, 3, 1000)) + s(pick("", "", "", "a", "a/", "c")) + key(pick("", "", "", name(), "a/"), pick("", "", instance())) +
                                          u8(pick(0, 1)) + s(pick("", "", "/", "/", "/x")), 6, 4)),
        "check": ("bucket_check_index", lambda: b""), "rebuild": ("bucket_rebuild_index", lambda: b""), "init": ("bucket_init_index", lambda: b""),
        "timeout": ("bucket_set_tag_timeout", lambda: v(u64(pick(0, 1000000)))),
        "stats": ("bucket_update_stats", lambda: v(u8(pick(0, 1)) + u32(1) + u8(pick(0, 1)) + v(u64(7) + u64(4096) + u64(1) + u64(7), 3, 2))),
        "suggest": ("dir_suggest_changes", lambda: b"".join(u8(ord(pick(*"rux")) | pick(0, 0x80)) + entry() for _ in range(pick(1, 1, 2)))),
        "bi_get": ("bi_get", lambda: v(key() + u8(pick(1, 1, 2, 2, 3, 3, 0, 4)))),
        "bi_put": ("bi_put", lambda: v(v((lambda n: u8(1) + s(n) + s(entry(n, "")))(name())))),
        "bi_list": ("bi_list", lambda: v(u32(pick(1, 2, 3, 5, 1000, 2000)) + s(pick("", "", "", "a", "b", "a/x")) + s(where()))),
        "log_list": ("bi_log_list", lambda: v(s(pick("", "00000000005")) + u32(pick(1, 3, 1000)))),
        "log_trim": ("bi_log_trim", lambda: v(s(pick("", "", "00000000005")) + s(pick("", "00000000003", "00000000009")))),
        "resync": ("bi_log_resync", lambda: b""), "stop": ("bi_log_stop", lambda: b""),
        "set_resharding": ("set_bucket_resharding", lambda: v(v(u8(pick(0, 1, 2)) + s("new") + struct.pack("<i", 7)))),
        "clear_resharding": ("clear_bucket_resharding", lambda: v(b"")), "guard": ("guard_bucket_resharding", lambda: v(struct.pack("<i", pick(-2300, -5)))),
        "get_resharding": ("get_bucket_resharding", lambda: v(b"")),
    }[m]
    reads = m in ("list", "check", "bi_get", "bi_list", "log_list", "guard", "get_resharding")
    return "rgw", full, not reads, pick(*INDEX), data()

VERSIONED = ("hdve0", "hdve1")
def versions():
    m = pick("prepare", "prepare", "complete", "complete", "link", "link", "link", "link", "unlink", "unlink", "unlink", "read", "read", "trim", "list", "bi_list", "bi_get")
    n, t, e = pick("a", "a", "a", "ab", "b"), pick("T", "T", "T", "T", "U"), pick(0, 0, 0, 0, 0, 2, 3, 5)
    i = pick("", "i1", "i2", "i3")
    full, data = {
        "prepare": ("bucket_prepare_op", lambda: v(u8(0) + s("t1") + s("") + u8(1) + key(n, i) + u16(0) + zones(), 7, 5)),
        "complete": ("bucket_complete_op", lambda: v(u8(pick(0, 0, 0, 1)) + u64(5) + meta() + s(pick("t1", "")) + s("") + u32(0) + ver() + u8(0) + key(n, i) + u16(0) + zones(), 9, 7)),
        "link": ("bucket_link_olh", lambda: v(key(n, i) + s(t) + u8(pick(0, 0, 0, 1)) + s("op") + meta() + u64(e) + u8(0) + u16(pick(0, 2)) + u64(0) +
                                              time(pick(0, 0, 0, 1600000001)) + u8(pick(0, 1)) + zones(), 5, 1)),
        "unlink": ("bucket_unlink_instance", lambda: v(key(n, pick(i, i, "null")) + s("op") + u64(e) + u8(0) + u16(0) + s(t) + zones(), 3, 1)),
        "read": ("bucket_read_olh_log", lambda: v(key(n, pick("", "", "", "i1")) + u64(pick(0, 0, 2, 3)) + s(t))),
        "trim": ("bucket_trim_olh_log", lambda: v(key(n, "") + u64(pick(0, 2, 3, 9)) + s(t))),
        "clear": ("bucket_clear_olh", lambda: v(key(n, "") + s(t))),
        "list": ("bucket_list", lambda: v(u32(pick(1, 2, 3, 1000)) + s("") + key(pick("", "", n), pick("", i, "null")) + u8(pick(0, 1, 1)) + s(""), 6, 4)),
        "bi_list": ("bi_list", lambda: v(u32(pick(1, 2, 3, 1000)) + s(pick("", "", n)) + s(pick("", b"\x801000_a\0ii1", b"\x801000_a\0i", b"\x801001_a")))),
        "bi_get": ("bi_get", lambda: v(key(n, i) + u8(pick(1, 2, 3)))),
    }[m]
    return "rgw", full, m not in ("read", "list", "bi_list", "bi_get"), pick(*VERSIONED), data()

def objects():
    m = pick("obj_remove", "obj_store_pg_ver", "obj_store_pg_ver", "obj_check_attrs_prefix", "obj_check_mtime")
    data = {"obj_remove": lambda: v(strs(pick([], ["user.a"], ["user.", "x"], ["y"]))), "obj_store_pg_ver": lambda: v(s(pick("user.a", "user.b", "x"))),
            "obj_check_attrs_prefix": lambda: v(s(pick("user.", "user.a", "y", "")) + u8(pick(0, 1))),
            "obj_check_mtime": lambda: v(time(pick(0, 1600000000, 3000000000)) + u8(pick(1, 2, 3, 4, 5)) + u8(pick(0, 1)), 2, 1)}[m]()
    return "rgw", m, m in ("obj_remove", "obj_store_pg_ver"), "obj%d" % pick(0, 1), data

def usage():
    m = pick("user_usage_log_add", "user_usage_log_add", "user_usage_log_read", "user_usage_log_read", "user_usage_log_trim", "usage_log_clear") if rnd.random() < .9 else "user_usage_log_add"
    if m == "usage_log_clear" and rnd.random() < .7: m = "user_usage_log_add"
    data = lambda: u64(10) + u64(20) + u64(2) + u64(pick(1, 2))
    record = lambda: v(s(pick("u", "t$u", "v")) + s(pick("k", "l", "")) + u64(pick(3600, 7200, 10800)) + data() + u32(1) + s(pick("get", "put")) + v(data()) + s(pick("", "", "p")), 3, 1)
    span = lambda: u64(pick(0, 3600, 7200)) + u64(pick(2**64 - 1, 7200, 10800, 0))
    user, bucket = (lambda: s(pick("", "", "u", "t$u", "p"))), (lambda: s(pick("", "", "k")))
    inp = {# Of two records with one key in a call Ceph keeps the later.
        "user_usage_log_add": lambda: v(v(u32(1) + record()) + s("u"), 2, 1),
           "user_usage_log_read": lambda: v(span() + user() + s("") + u32(pick(0, 1, 2, 1000)) + bucket(), 2, 1),
           "user_usage_log_trim": lambda: v(span() + user() + bucket(), 3, 2), "usage_log_clear": lambda: b""}[m]()
    return "rgw", m, m != "user_usage_log_read", "use%d" % pick(0, 1), inp

def chain(): return v(u32(n := pick(0, 1, 2)) + b"".join(v(s("pool") + s("o") + s("") + key("o", ""), 2, 1) for _ in range(n)))
def gc():
    m = pick("gc_set_entry", "gc_set_entry", "gc_defer_entry", "gc_list", "gc_list", "gc_remove")
    # Entries that are due at one time would have one key here, and two on a real cluster.
    t, later = pick(("a", 200000), ("b", 300000))
    data = {"gc_set_entry": lambda: v(u32(later) + v(s(t) + chain() + time(0))), "gc_defer_entry": lambda: v(u32(later) + s(t)),
            "gc_list": lambda: v(s(pick("", "", "1_", "1_00001720812860")) + u32(pick(0, 1, 2, 100)) + u8(pick(0, 0, 1)), 2, 1), "gc_remove": lambda: v(strs(pick(["a"], ["b", "x"], [])))}[m]()
    return "rgw", m, m != "gc_list", "gc%d" % pick(0, 1), data

def cycle():
    m = pick("lc_get_entry", "lc_set_entry", "lc_set_entry", "lc_rm_entry", "lc_get_next_entry", "lc_put_head", "lc_get_head", "lc_list_entries")
    e = lambda: v(s(pick("x", "y", "z")) + u64(pick(0, 5)) + u32(pick(0, 1, 2)))
    old = lambda: s(pick("x", "y")) + u32(1)
    entry = lambda: pick(v(e(), 2, 2), v(e(), 2, 2), v(old(), 1, 1))
    data = {"lc_get_entry": lambda: v(s(pick("x", "y", "q"))), "lc_set_entry": entry, "lc_rm_entry": entry, "lc_get_next_entry": lambda: v(s(pick("", "x", "z"))),
            "lc_put_head": lambda: v(v(u64(77) + s(pick("", "x")))), "lc_get_head": lambda: b"", "lc_list_entries": lambda: v(s(pick("", "x")) + u32(pick(1, 2, 100)), pick(1, 2, 3, 3), 1)}[m]()
    return "rgw", m, m in ("lc_set_entry", "lc_rm_entry", "lc_put_head"), "hdlc%d" % pick(0, 1), data

def reshard():
    m = pick("reshard_add", "reshard_add", "reshard_list", "reshard_list", "reshard_get", "reshard_remove")
    t, b = pick("", "ten"), pick("x", "y")
    job = lambda: v(v(time(1600000000) + s(t) + s(b) + s("id1") + s("") + u32(1) + u32(pick(7, 11))))
    data = {"reshard_list": lambda: v(u32(pick(0, 1, 2, 5000)) + s(pick("", ":x"))), "reshard_remove": lambda: v(s(t) + s(b) + s(pick("", "id1", "id2")))}.get(m, job)()
    return "rgw", m, m in ("reshard_add", "reshard_remove"), "rsh%d" % pick(0, 1), data

def call(): return pick(index, index, index, versions, versions, versions, objects, usage, gc, cycle, reshard)()
