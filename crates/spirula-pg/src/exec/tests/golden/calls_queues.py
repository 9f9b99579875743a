"""Inputs for fifo, queue, 2pc_queue and rgw_gc, for record_classes.py."""
import struct
from calls_rgw import s, v, strs, u8, u32, u64, time, chain
import calls_rgw

def begin(random, number, now):
    global rnd
    rnd = random; calls_rgw.begin(random, number, now)

def pick(*xs): return rnd.choice(xs)

ends = {}
def queue():
    # Of places that are none in the queue Ceph makes what it likes: only the front is named, and what is behind it by whole entries.
    m = pick("queue_init", "queue_get_capacity", "queue_enqueue", "queue_enqueue", "queue_enqueue", "queue_list_entries", "queue_list_entries", "queue_remove_entries")
    o = "que%d" % pick(0, 1, 2)
    front, held, there = ends.get(o, (0, 0, False))
    if m == "queue_init": there = True
    n = pick(1, 1, 1, 2) if held < 9 else 1
    if m == "queue_enqueue" and there and held + n <= 10: held += n
    gone = rnd.randrange(held + 1)
    place = lambda k: s("%d/%d" % (k * 13 // 130, 1032 + k * 13 % 130))
    data = {"queue_init": lambda: v(u64(130) + u64(8) + s(pick("", "own"))), "queue_get_capacity": lambda: b"", "queue_enqueue": lambda: v(strs([b"abc"] * n)),
            "queue_list_entries": lambda: v(u64(pick(1, 2, 3, 100)) + s("")), "queue_remove_entries": lambda: v(place(front + gone))}[m]()
    if m == "queue_remove_entries" and there: front, held = front + gone, held - gone
    ends[o] = front, held, there
    return "queue", m, m not in ("queue_get_capacity", "queue_list_entries"), o, data

open_ids = {}
def reserving():
    m = pick("init", "get_capacity", "reserve", "reserve", "commit", "commit", "abort", "list_reservations", "list_entries", "remove_entries", "expire_reservations")
    o = "two%d" % pick(0, 1)
    # Ceph writes several reservations in the order of a hash table.
    if m == "reserve" and open_ids.get(o, (0, 0))[1]: m = "abort"
    last, isopen = open_ids.get(o, (0, False))
    if m == "reserve": last, isopen = last + 1, True
    elif m in ("commit", "abort"): isopen = False
    ident = last
    open_ids[o] = (last, isopen)
    data = {"init": lambda: v(u64(400) + u64(5) + s("")), "get_capacity": lambda: b"", "reserve": lambda: v(u64(20) + u32(1)),
            "commit": lambda: v(u32(ident) + strs([b"x" * pick(5, 10, 20)])), "abort": lambda: v(u32(ident)), "list_reservations": lambda: b"",
            "list_entries": lambda: v(u64(pick(1, 100)) + s("")), "remove_entries": lambda: v(s("0/%d" % (24576 + pick(0, 15, 30, 60)))),
            "expire_reservations": lambda: v(time(pick(1500000000, 1500000000)))}[m]()
    return "2pc_queue", "2pc_queue_" + m, m not in ("get_capacity", "list_reservations", "list_entries"), o, data

def waste():
    m = pick("init", "enqueue", "enqueue", "enqueue", "list_entries", "list_entries", "remove_entries", "update_entry")
    info = lambda t: v(s(t) + chain() + time(0))
    data = {"init": lambda: v(u64(pick(600, 4000)) + u64(pick(1, 50))), "enqueue": lambda: v(u32(pick(0, 200000)) + info(pick("t1", "t2", "t3"))),
            "list_entries": lambda: v(s("") + u32(pick(0, 1, 2, 100)) + u8(pick(0, 0, 1)), 2, 1), "remove_entries": lambda: v(u64(pick(0, 1, 2))),
            "update_entry": lambda: v(u32(300000) + info("t1"))}[m]()
    return "rgw_gc", "rgw_gc_queue_" + m, m != "list_entries", "gcq%d" % pick(0, 1), data

def some(x): return pick(b"\0", b"\1" + x)
def version(n=None): return v(s(pick("inst", "inst", "inst", "other")) + u64(pick(1, 1, 2, 3, 4) if n is None else n))
def fifo():
    m = pick("create_meta", "get_meta", "get_meta", "update_meta", "update_meta", "update_meta", "init_part", "push_part", "push_part", "push_part", "trim_part", "part_list", "part_list", "get_part_info")
    o = ("meta%d" if "meta" in m else "part%d") % pick(0, 1)
    step = lambda: v(struct.pack("<iq", pick(1, 2, 3), pick(0, 1)) + s(pick("g", "h")))
    steps = lambda: u32(n := pick(0, 0, 1, 2)) + b"".join(step() for _ in range(n))
    bounds = lambda: v(u64(1000) + u64(pick(200, 200, 200, 100)) + u64(742))
    at = lambda: u64(pick(0, 0, 512, 512 + 61, 512 + 122, 5000))
    t = lambda: pick("tag", "tag", "tag", "tag", "gat")
    data = {"create_meta": lambda: v(s(pick("id", "id", "id", "")) + b"\1" + version(1) + s("") + s("") + b"\1" + s(pick("pre", "pre", "fix")) + u64(pick(1000, 0)) + u64(200) + u8(pick(0, 0, 1))),
            "get_meta": lambda: v(some(version())), "init_part": lambda: v(s(pick("tag", "tag", "tag", "")) + bounds()),
            "update_meta": lambda: v(version() + b"".join(some(struct.pack("<q", pick(0, 1, 2))) for _ in range(4)) + steps() + steps()),
            "push_part": lambda: v(s(t()) + strs(e := pick([b"abc"], [b"abc"], [b"abc", b"def"], [b"x" * 150], [])) + u64(sum(map(len, e)) + pick(0, 0, 0, 0, 0, 1))),
            "trim_part": lambda: v(some(s(t())) + at() + u8(pick(0, 1))), "part_list": lambda: v(some(s(t())) + at() + struct.pack("<i", pick(1, 2, 100, 1000))),
            "get_part_info": lambda: v(b"")}[m]()
    return "fifo", m, m not in ("get_meta", "part_list", "get_part_info"), o, data

def call(): return pick(queue, reserving, waste, fifo, fifo)()
