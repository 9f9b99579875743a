"""Inputs for user, log, cmpomap, cas and otp, for record_classes.py."""
import struct
from calls_rgw import s, v, strs, u8, u32, u64, time

def begin(random, number, now):
    global rnd
    rnd = random

def pick(*xs): return rnd.choice(xs)

def bucket(n): return pick(v(s(n) + s("") + s("mark") + s(pick("id1", "id2")) + s("") + s(""), 7, 3), v(s(n) + s("mark") + s("id1") + s(pick("place", "place", "")), 9, 8))
def user():
    m = pick("set_buckets_info", "set_buckets_info", "set_buckets_info", "complete_stats_sync", "remove_bucket", "list_buckets", "list_buckets", "get_header", "reset_user_stats", "reset_user_stats2")
    when = lambda: time(1600000000 + rnd.randrange(5), pick(0, 9))
    n = lambda: pick("x", "y", "z", "x", "y", "")
    entry = lambda: v(s("") + u64(pick(0, 100, 5000)) + u32(1600000000) + u64(pick(0, 1, 2)) + bucket(n()) + u64(8192) + u8(pick(0, 1)) + when(), 9, 5)
    data = {"set_buckets_info": lambda: v(u32(k := pick(1, 1, 2)) + b"".join(entry() for _ in range(k)) + u8(pick(0, 1)) + when()), "complete_stats_sync": lambda: v(when()),
            "remove_bucket": lambda: v(bucket(n())), "list_buckets": lambda: v(s(pick("", "", "x")) + struct.pack("<i", pick(0, 1, 2, 1000, -1)) + s(pick("", "", "y", "z")), 2, 1),
            "get_header": lambda: v(b""), "reset_user_stats": lambda: v(when()), "reset_user_stats2": lambda: v(when() + s("") + v(u64(0) * 3))}[m]()
    return "user", m, m not in ("list_buckets", "get_header"), "hdus%d" % pick(0, 1), data

def log():
    m = pick("add", "add", "add", "list", "list", "trim", "info")
    t = lambda: time(1000 + rnd.randrange(4), pick(0, 5000, 999999999))
    entry = lambda: v(s("sec") + s("name") + t() + s("data") + s(pick("", "", "1_0000001001.000000_x", "own")), 2, 1)
    mark = lambda: s(pick("", "", "", "1_0000001001.000000_x", "1_0000001002"))
    data = {"add": lambda: v(u32(k := pick(1, 1, 2)) + b"".join(entry() for _ in range(k)) + u8(pick(0, 1)), 2, 1),
            "list": lambda: v(pick(time(0), t()) + mark() + pick(time(0), t(), time(2000)) + struct.pack("<i", pick(0, 1, 3, 1000, -1))),
            "trim": lambda: v(pick(time(0), t()) + pick(t(), time(2000)) + mark() + mark(), 2, 1), "info": lambda: v(b"")}[m]()
    return "log", m, m in ("add", "trim"), "hdlo%d" % pick(0, 1), data

def cmpomap():
    m, value = pick("cmp_vals", "cmp_set_vals", "cmp_set_vals", "cmp_rm_keys"), lambda: pick(b"", u64(1), u64(2), u64(300), b"\1\2", b"zz")
    keys = sorted(set(pick("k", "l", "m") for _ in range(pick(1, 1, 2))))
    data = u8(pick(1, 2, 2, 2, 3)) + u8(pick(1, 2, 3, 4, 5, 6, 7)) + u32(len(keys)) + b"".join(s(k) + s(value()) for k in keys)
    if m != "cmp_rm_keys": data += pick(b"\0", b"\1" + s(value()), b"\1" + s(value()))
    return "cmpomap", m, m != "cmp_vals", "cmp%d" % pick(0, 1), v(data)

def source(): return v(s("") + s(pick("x", "y", "z")) + u64(2**64 - 2) + u32(pick(1, 2, 0x80000000)) + u8(0) + s("") + struct.pack("<q", pick(3, 4)), 4, 3)
def cas():
    m = pick("chunk_create_or_get_ref", "chunk_get_ref", "chunk_put_ref", "chunk_put_ref", "references_chunk")
    data = {"chunk_create_or_get_ref": lambda: v(source() + u64(pick(0, 1)) + s(pick("data", "data", "other"))), "references_chunk": lambda: s("chunk")}.get(m, lambda: v(source()))()
    return "cas", m, m != "references_chunk", "cas%d" % pick(0, 1), data

def otp():
    m = pick("otp_set", "otp_set", "otp_get", "otp_get", "otp_check", "otp_check", "otp_get_result", "otp_get_result", "otp_remove", "get_current_time")
    i = lambda: pick("d1", "d2")
    device = lambda: v(u8(2) + s(i()) + s(pick("0123456789abcdef", "0123", "MZXW6YTB", "mzxw6ytb", "MZXW 6YTB", "MZXW6", "xyz1", "")) + u8(pick(0, 1, 2, 2)) + s("") + struct.pack("<iII", pick(0, 5), 3000, 2))
    check = lambda: v(s(i()) + s(pick("0000000", "", "12345", "1234567890")) + s(pick("tok1", "tok2")))
    data = {"otp_set": lambda: v(u32(k := pick(1, 1, 2)) + b"".join(device() for _ in range(k))), "otp_get": lambda: v(u8(pick(0, 1)) + strs(pick([], ["d1"], ["d2", "q"]))),
            "otp_check": check, "otp_get_result": check, "otp_remove": lambda: v(strs(pick(["d1"], ["q"], []))), "get_current_time": lambda: v(b"")}[m]()
    return "otp", m, m not in ("otp_get", "otp_get_result", "get_current_time"), "otp%d" % pick(0, 1), data

def call(): return pick(user, user, log, log, cmpomap, cas, otp)()
