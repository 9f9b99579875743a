"""Inputs for what rbd's mirror daemons say of images, for record_classes.py: on objects with images and peers that are mirrored."""
import struct
from calls_rbd import s, v, u8, u32, u64, i64

def begin(random, number, now):
    global rnd
    rnd = random
def pick(*xs): return rnd.choice(xs)
def ident(): return pick("id1", "id2", "id3", "id4")
def glob(): return pick("g1", "g2", "g3", "g4")
def page(): return s(pick("", "", "id1", "id2")) + u64(pick(1, 2, 1024))
def peer():
    body = s(pick("u1", "u2")) + s(pick("site1", "site2")) + s("client.x") + i64(-1)
    return v(body + u8(pick(0, 0, 2)) + s(pick("m1", "m2", "")) + struct.pack("<II", 0x5aa5c33c, 0), 2)
def image():
    """An image whose global id belongs to it, mostly one that is mirrored."""
    n = pick(1, 2, 3, 4)
    return s("id%d" % n) + v(s("g%d" % n) + u8(pick(0, 1, 1, 1)) + u8(pick(0, 1)), 2)
def status():
    body = u8(pick(0, 1, 2, 3, 4, 5, 6, 9)) + s(pick("", "replaying", "x" * 40)) + struct.pack("<II", 5, 6) + u8(pick(0, 1))
    return pick(v(body, 1), v(body, 1), v(s(pick("", "m1", "m2")) + body, 2))
TABLE = {"mirror_uuid_set": (1, 2, lambda: s("me")), "mirror_mode_set": (1, 2, lambda: u32(1)), "mirror_peer_add": (1, 2, peer),
         "mirror_peer_remove": (1, 1, lambda: s(pick("u1", "u2"))), "mirror_peer_set_direction": (1, 1, lambda: s(pick("u1", "u2")) + u8(pick(0, 1, 2))),
         "mirror_image_set": (1, 5, image), "mirror_image_remove": (1, 1, lambda: s(ident())),
         "mirror_image_status_set": (1, 8, lambda: s(glob()) + status()), "mirror_image_status_remove": (1, 1, lambda: s(glob())),
         "mirror_image_status_get": (0, 4, lambda: s(glob())), "mirror_image_status_list": (0, 4, page),
         "mirror_image_status_get_summary": (0, 4, lambda: b""), "mirror_image_status_remove_down": (1, 1, lambda: b""),
         "mirror_image_instance_get": (0, 2, lambda: s(glob())), "mirror_image_instance_list": (0, 2, page)}

def call():
    method = rnd.choices(list(TABLE), [w for _, w, _ in TABLE.values()])[0]
    writes, _, data = TABLE[method]
    return "rbd", method, bool(writes), "mirror" + str(rnd.randrange(3)), data()
