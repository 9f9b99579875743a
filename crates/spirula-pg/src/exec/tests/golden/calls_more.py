"""Inputs for timeindex, journal and cephfs, for record_classes.py."""
import struct
from calls_rbd import s, v, u8, u32, u64, i64

def begin(random, number, now):
    global rnd
    rnd = random
def pick(*xs): return rnd.choice(xs)
def t(): return u32(pick(0, 5, 6, 7, 100)) + u32(pick(0, 1000, 500000000))
def name(): return pick("a", "b", "a b", "long" * 80)
def marker(): return s(pick("", "", "", "1_0000000005", "1_0000000006.000000_a", "1_", "2"))

def timeindex():
    m = pick("add", "add", "list", "list", "trim")
    data = {"add": lambda: v(u32(n := pick(0, 1, 2)) + b"".join(v(t() + s(name()) + s("value")) for _ in range(n))),
            "list": lambda: v(t() + marker() + t() + struct.pack("<i", pick(0, 1, 2, 1000, 5000, -1))), "trim": lambda: v(t() + t() + marker() + marker())}[m]()
    return "timeindex", m, m != "list", "time%d" % pick(0, 1), data

def client(): return s(pick("", "c1", "c2", "c3"))
def position(): return v(u32(n := pick(0, 1, 1, 2, 3)) + b"".join(v(u64(pick(0, 1)) + u64(pick(0, 1, 2, 3)) + u64(pick(1, 2))) for _ in range(n)))
JOURNAL = {"create": (1, 1, lambda: u8(24) + u8(2) + i64(-1)), "get_order": (0, 1, lambda: b""), "get_splay_width": (0, 1, lambda: b""), "get_pool_id": (0, 1, lambda: b""),
           "get_minimum_set": (0, 1, lambda: b""), "set_minimum_set": (1, 1, lambda: u64(pick(0, 1, 2))), "get_active_set": (0, 1, lambda: b""), "set_active_set": (1, 1, lambda: u64(pick(0, 1, 2, 3))),
           "get_client": (0, 1, client), "client_register": (1, 2, lambda: client() + s("data")), "client_update_data": (1, 1, lambda: client() + s("new")), "client_update_state": (1, 1, lambda: client() + u8(pick(0, 0, 1, 2))),
           "client_unregister": (1, 1, client), "client_commit": (1, 4, lambda: client() + position()), "client_list": (0, 2, lambda: s(pick("", "", "c1")) + u64(pick(1, 64))),
           "get_next_tag_tid": (0, 1, lambda: b""), "get_tag": (0, 1, lambda: u64(pick(0, 1, 2, 3))), "tag_create": (1, 5, lambda: u64(next_tag()) + u64(pick(2**64 - 1, 0, 0, 1)) + s("tag")),
           "tag_list": (0, 3, lambda: u64(pick(0, 0, 1, 2)) + u64(pick(1, 64)) + client() + pick(u8(0), u8(1) + u64(pick(0, 1)))), "guard_append": (1, 1, lambda: u64(pick(1, 20))), "append": (1, 2, lambda: u64(pick(10, 20)) + s("entry"))}
tags = {}
def next_tag():
    tags[obj] = tags.get(obj, -1) + 1
    return tags[obj] if rnd.random() < .8 else pick(0, 1, 2, 5)

def journal():
    global obj
    obj = "jou%d" % pick(0, 1)
    m = rnd.choices(list(JOURNAL), [w for _, w, _ in JOURNAL.values()])[0]
    writes, _, data = JOURNAL[m]
    return "journal", m, bool(writes), "joudata%d" % pick(0, 1) if "append" in m else obj, data()

def cephfs():
    data = v(s(pick("x", "x", "w")) + s("y") + s("z") + u64(pick(1, 2, 3)) + u64(pick(10, 20)) + i64(pick(-5, 5, 6)))
    return "cephfs", "accumulate_inode_metadata", True, "cep%d" % pick(0, 1), data

def call(): return pick(timeindex, journal, journal, cephfs)()
