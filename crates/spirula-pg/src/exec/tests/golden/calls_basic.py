"""Inputs for hello, lock, numops, refcount and version, for record_classes.py."""
import struct

def s(x): x = x.encode() if isinstance(x, str) else x; return struct.pack("<I", len(x)) + x
def v(body, n=1): return struct.pack("<BBI", n, 1, len(body)) + body
def strs(xs): return struct.pack("<I", len(xs)) + b"".join(map(s, xs))

def begin(random, number, now):
    global rnd, me
    rnd, me = random, number

def pick(*xs): return rnd.choice(xs)

def lock():
    l, kind, cookie, tag = pick("l", "m"), pick(1, 1, 2, 2, 2, 3, 0, 4), pick("c", "d", ""), pick("", "", "", "t")
    who = struct.pack("<Bq", 8, pick(me, me, 77))
    duration, flags = pick((0, 0), (0, 0), (100000, 5)), pick(0, 0, 0, 1, 2, 3)
    m = pick("lock", "lock", "lock", "unlock", "break_lock", "get_info", "list_locks", "assert_locked", "set_cookie")
    held = s(l) + bytes([kind]) + s(cookie) + s(tag)
    data = {"lock": lambda: v(held + s("why") + struct.pack("<II", *duration) + bytes([flags])),
            "unlock": lambda: v(s(l) + s(cookie)), "break_lock": lambda: v(s(l) + who + s(cookie)),
            "get_info": lambda: v(s(l)), "list_locks": lambda: b"", "assert_locked": lambda: v(held),
            "set_cookie": lambda: v(held + s(pick("c", "d", "e")))}[m]()
    return "lock", m, m not in ("get_info", "list_locks", "assert_locked"), "lock%d" % pick(0, 1), data

def version():
    ver = lambda: v(struct.pack("<Q", pick(0, 1, 2, 3)) + s(pick("t", "u", "")))
    conds = lambda: b"".join([struct.pack("<I", n := pick(0, 1, 1, 2))] + [v(ver() + struct.pack("<I", rnd.randrange(9))) for _ in range(n)])
    m = pick("set", "inc", "inc_conds", "read", "check_conds")
    o = "ver%d" % pick(0, 1)
    # A tag that the OSD makes up would differ: the first call on an object sets one.
    if m in ("inc", "inc_conds") and o not in seen: m = "set"
    if m == "set": seen.add(o)
    return "version", m, m not in ("read", "check_conds"), o, v(ver()) if m == "set" else b"" if m == "read" else v(ver() + conds())
seen = set()

def refcount():
    m, name, implicit = pick("get", "get", "put", "put", "set", "read"), pick("a", "b", "c", ""), pick(0, 1)
    data = {"set": lambda: v(strs([pick("a", "b") for _ in range(rnd.randrange(3))])), "read": lambda: v(bytes([implicit]))}
    return "refcount", m, m != "read", "ref%d" % pick(0, 1, 2), data.get(m, lambda: v(s(name) + bytes([implicit])))()

def numops():
    m, n = pick("add", "mul"), pick("1", "-2.5", "1e9", "0.1", "x", "", " 7", "7 ", "0x10", "1e400", "-0", "3", "1e-7", "nan")
    return "numops", m, True, "num%d" % pick(0, 1), s(pick("k", "l", "m")) + s(n)

def hello():
    m = pick("say_hello", "record_hello", "write_return_data", "writes_dont_return_data", "write_too_much_return_data", "replay",
             "turn_it_to_11", "bad_reader", "bad_writer", "nosuch")
    return "hello", m, m not in ("say_hello", "replay", "bad_writer", "nosuch"), "hel%d" % pick(0, 1, 2), pick(b"", b"", b"me", b"x" * 101)

def call(): return pick(lock, lock, version, refcount, numops, hello)()
