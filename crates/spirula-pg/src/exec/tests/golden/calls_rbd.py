"""Inputs for rbd, for record_classes.py. Left out: what makes up a name of its own (snapshot_trash_add, a ping of a new peer)."""
import struct

def s(x): x = x.encode() if isinstance(x, str) else x; return struct.pack("<I", len(x)) + x
def v(body, n=1, compat=1): return struct.pack("<BBI", n, compat, len(body)) + body
def u8(x): return struct.pack("<B", x & 255)
def u32(x): return struct.pack("<I", x)
def u64(x): return struct.pack("<Q", x)
def i64(x): return struct.pack("<q", x)
def mapped(d): return u32(len(d)) + b"".join(k + w for k, w in sorted(d.items()))

HEAD = 2**64 - 2
def begin(random, number, now):
    global rnd
    rnd = random
def pick(*xs): return rnd.choice(xs)
def snap(): return pick(1, 2, 3, 4, 5, 5, 6)
def snap_or_head(): return pick(HEAD, HEAD, snap(), 99)
def word(): return pick("a", "b", "c", "ab")
def ident(): return pick("id1", "id2", "id3", "")
def parent(): return i64(pick(7, 7, 7, 8, -1)) + s(pick("", "", "ns")) + s(pick("p", "p", "")) + u64(pick(4, 4, 5, HEAD))
def namespace(): return v(pick(u32(0), u32(0), u32(0), u32(1) + i64(7) + s("g") + s("gs"), u32(2) + s("old") + u32(0), mirror_ns(), u32(9)))
def mirror_ns(): return u32(3) + u8(pick(0, 1, 2, 3)) + u8(0) + u32(2) + s("p1") + s("p2") + s("prim") + u64(3) + u64(1) + u32(1) + u64(1) + u64(2)
def child(): return v(i64(pick(7, 8)) + s(pick("c1", "c2")) + s(pick("", "ns")), 2)
def group(): return v(i64(pick(7, 8)) + s(pick("g1", "g2")))
def gimage(): return v(s(pick("im1", "im2", "im_3")) + i64(pick(7, 8, 7, -1)))
def gsnap(): return v(s(pick("s1", "s2", "s3", "")) + s(pick("n1", "n2", "n3", "")) + u8(pick(0, 1)) + u32(1) + v(i64(7) + s("im1") + u64(3)))
def migration():
    body = u8(pick(1, 2)) + i64(7) + s("") + s("name") + s("id") + u32(1) + u64(1) + u64(2) + u64(99) + u8(1) + u8(0) + u8(pick(0, 1)) + s("d") + u8(1)
    src = pick("", "{}"); return pick(v(body + s(src), 3, 3 if src else 1), v(body, 2))
def trashed(): return pick(v(u8(0) + s("n") + u64(5) + u64(6) + u8(pick(0, 1, 2)), 2), v(u8(1) + s("n") + u64(5) + u64(6)))
def crc32c(data, crc=0):
    for b in data:
        crc ^= b
        for _ in range(8): crc = (crc >> 1) ^ (0x82f63b78 & -(crc & 1))
    return crc
def bitmap():
    n = pick(0, 1, 5, 9, 16); bits = bytes(rnd.randrange(256) for _ in range((n + 3) // 4)); head = v(u64(n))
    foot = pick(b"", u32(crc32c(head)) + u32(1 if bits else 0) + (u32(crc32c(bits)) if bits else b""), u32(5) + u32(1) + u32(6))
    return s(head) + bits + s(foot)
def peer(): return v(s(pick("u1", "u2", "u3", "me", "")) + s(pick("site1", "site2", "site3", "")) + s(pick("client.x", "client.x", "")) + i64(-1) + u8(pick(0, 1, 2, 2, 3)) + s(pick("", "mu1", "mu2")) + u64(0), 2)
def image_map(): return v(s(word()) + u64(7) + s("data"))
def page(): return s(pick("", "", "a", "b", "id1", "zz")) + u64(pick(0, 1, 2, 1024, 1024))
def flags(): return u64(rnd.randrange(4)) + u64(rnd.randrange(4))
def bits(): return pick(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 0x3d)

HEADER = {  # method: (writes, weight, input)
    "create": (1, 2, lambda: u64(pick(0, 1000, 99)) + u8(pick(22, 12)) + u64(pick(0x3d, 0x3d, 0x3d, 3, 0x23, 1, 2, 0xbd, 0x13d, 0x103d, 0xffd)) + s(pick("pre", "pre", "pre", "")) + pick(b"", b"", i64(-1), i64(5))),
    "get_features": (0, 2, lambda: u64(HEAD) + pick(b"", u8(0), u8(1))), "set_features": (1, 3, lambda: u64(pick(bits(), 0, bits() | bits())) + u64(bits() | bits())),
    "get_all_features": (0, 1, lambda: b""), "get_size": (0, 2, lambda: u64(snap_or_head())), "set_size": (1, 2, lambda: u64(pick(1000, 500, 0, 2000))),
    "get_object_prefix": (0, 1, lambda: b""), "get_data_pool": (0, 1, lambda: b""), "get_stripe_unit_count": (0, 1, lambda: b""),
    "set_stripe_unit_count": (1, 1, lambda: u64(pick(4096, 65536, 0, 3, 1 << 30)) + u64(pick(1, 4, 0))), "get_create_timestamp": (0, 1, lambda: b""),
    "get_access_timestamp": (0, 1, lambda: b""), "get_modify_timestamp": (0, 1, lambda: b""), "set_access_timestamp": (1, 1, lambda: b""),
    "set_modify_timestamp": (1, 1, lambda: b""), "get_flags": (0, 1, lambda: u64(snap_or_head())), "set_flags": (1, 2, lambda: flags() + pick(b"", u64(snap_or_head()))),
    "op_features_get": (0, 1, lambda: b""), "op_features_set": (1, 2, lambda: u64(rnd.randrange(32)) + u64(rnd.randrange(20))),
    "metadata_list": (0, 2, page), "metadata_set": (1, 2, lambda: mapped({s(word()): s("v" * rnd.randrange(4)) for _ in range(rnd.randrange(3))})),
    "metadata_remove": (1, 1, lambda: s(word())), "metadata_get": (0, 1, lambda: s(word())), "get_snapcontext": (0, 2, lambda: b""),
    "get_snapshot_name": (0, 1, lambda: u64(snap_or_head())), "get_snapshot_timestamp": (0, 1, lambda: u64(snap_or_head())), "snapshot_get": (0, 3, lambda: u64(snap_or_head())),
    "snapshot_add": (1, 7, lambda: s(pick("sa", "sb", "sc", "sd")) + u64(pick(snap(), snap(), 2**64 - 2)) + pick(b"", namespace(), namespace())),
    "snapshot_remove": (1, 3, lambda: u64(snap())), "snapshot_rename": (1, 2, lambda: u64(snap()) + s(pick("sa", "sb", "se"))),
    "snapshot_get_limit": (0, 1, lambda: b""), "snapshot_set_limit": (1, 1, lambda: u64(pick(2, 3, 5, 2**64 - 1, 2**64 - 1))),
    "get_protection_status": (0, 1, lambda: u64(snap_or_head())), "set_protection_status": (1, 2, lambda: u64(snap_or_head()) + u8(pick(0, 0, 1, 2, 3))),
    "get_parent": (0, 2, lambda: u64(snap_or_head())), "set_parent": (1, 1, lambda: i64(7) + s("p") + u64(4) + u64(pick(0, 600, 5000))), "remove_parent": (1, 1, lambda: b""),
    "parent_get": (0, 2, lambda: b""), "parent_overlap_get": (0, 2, lambda: u64(snap_or_head())), "parent_attach": (1, 3, lambda: v(parent()) + u64(pick(0, 600, 5000)) + pick(b"", b"", u8(0), u8(1))),
    "parent_detach": (1, 1, lambda: b""), "child_attach": (1, 3, lambda: u64(snap()) + child()), "child_detach": (1, 3, lambda: u64(snap()) + child()), "children_list": (0, 2, lambda: u64(snap())),
    "migration_set": (1, 1, migration), "migration_set_state": (1, 1, lambda: u8(pick(1, 2)) + s("x")), "migration_get": (0, 1, lambda: b""), "migration_remove": (1, 1, lambda: b""),
    "image_group_add": (1, 1, group), "image_group_remove": (1, 1, group), "image_group_get": (0, 1, lambda: b""),
    "mirror_image_snapshot_unlink_peer": (1, 1, lambda: u64(snap()) + s(pick("p1", "p2", "p3"))), "mirror_image_snapshot_set_copy_progress": (1, 1, lambda: u64(snap()) + u8(1) + u64(77)),
}
DIRECTORY = {
    "dir_get_id": (0, 1, lambda: s(word())), "dir_get_name": (0, 1, lambda: s(ident())), "dir_list": (0, 2, page), "dir_add_image": (1, 4, lambda: s(pick(word(), word(), "")) + s(pick(ident(), ident(), "no-id"))),
    "dir_remove_image": (1, 2, lambda: s(word()) + s(ident())), "dir_rename_image": (1, 2, lambda: s(word()) + s(pick(word(), word(), "")) + s(ident())),
    "dir_state_assert": (0, 1, lambda: u8(pick(0, 1))), "dir_state_set": (1, 1, lambda: u8(pick(0, 1, 2))),
    "group_dir_list": (0, 1, page), "group_dir_add": (1, 1, lambda: s(word()) + s(ident())), "group_dir_remove": (1, 1, lambda: s(word()) + s(ident())),
    "group_dir_rename": (1, 1, lambda: s(word()) + s(word()) + s(ident())), "namespace_add": (1, 1, lambda: s(word())), "namespace_remove": (1, 1, lambda: s(word())), "namespace_list": (0, 1, page),
}
ID = {"get_id": (0, 1, lambda: b""), "set_id": (1, 1, lambda: s(pick(ident(), "no-id")))}
TRASH = {"trash_add": (1, 2, lambda: s(ident()) + trashed()), "trash_remove": (1, 1, lambda: s(ident())), "trash_list": (0, 2, page), "trash_get": (0, 1, lambda: s(ident())),
         "trash_state_set": (1, 2, lambda: s(ident()) + u8(pick(0, 1, 2)) + u8(pick(0, 1, 2)))}
CHILDREN = {"add_child": (1, 2, lambda: u64(7) + s(pick("p", "q")) + u64(pick(4, 5)) + s(ident())), "remove_child": (1, 2, lambda: u64(7) + s(pick("p", "q")) + u64(pick(4, 5)) + s(ident())),
            "get_children": (0, 2, lambda: u64(7) + s(pick("p", "q")) + u64(pick(4, 5)))}
MAP = {"object_map_load": (0, 2, lambda: b""), "object_map_save": (1, 1, bitmap), "object_map_resize": (1, 3, lambda: u64(pick(0, 3, 4, 5, 16, 17, 16400, 256000001)) + u8(pick(0, 0, 0, 1, 3))),
       "object_map_update": (1, 6, lambda: u64(a := pick(0, 1, 3, 15, 16383, 16384)) + u64(a + pick(0, 1, 2, 5, 100, 17000)) + u8(pick(0, 0, 1, 2, 3)) + pick(u8(0), u8(1) + u8(pick(0, 1, 3)))),
       "object_map_snap_add": (1, 1, lambda: b""), "object_map_snap_remove": (1, 1, bitmap)}
DATA = {"copyup": (1, 2, lambda: pick(b"", b"data", b"\0" * 100 + b"x")), "sparse_copyup": (1, 2, lambda: pick(u32(0) + s(""), u32(2) + u64(0) + u64(3) + u64(10) + u64(2) + s("abcde"), u32(1) + u64(5) + u64(9) + s("short"))),
        "assert_snapc_seq": (1, 1, lambda: u64(pick(0, 1)) + u8(pick(0, 1, 2))), "sparsify": (1, 2, lambda: u64(pick(1, 3, 10, 64, 4096)) + u8(pick(0, 1)))}
GROUP = {"group_image_set": (1, 3, lambda: v(gimage() + u8(pick(0, 1)))), "group_image_remove": (1, 1, gimage), "group_image_list": (0, 2, lambda: gimage() + u64(pick(1, 1024))),
         "group_snap_set": (1, 3, gsnap), "group_snap_remove": (1, 1, lambda: s(pick("s1", "s2", "s3"))), "group_snap_get_by_id": (0, 1, lambda: s(pick("s1", "s2", "s3"))), "group_snap_list": (0, 2, lambda: pick(v(s("") + s("") + u8(0) + u32(0)), gsnap()) + u64(pick(1, 1024)))}
MIRROR = {"mirror_uuid_get": (0, 1, lambda: b""), "mirror_uuid_set": (1, 1, lambda: s(pick("me", "other", ""))), "mirror_mode_get": (0, 1, lambda: b""), "mirror_mode_set": (1, 1, lambda: u32(pick(0, 1, 2, 1, 2, 3))),
          "mirror_peer_list": (0, 2, lambda: b""), "mirror_peer_add": (1, 3, peer), "mirror_peer_remove": (1, 1, lambda: s(pick("u1", "u2", "u3"))), "mirror_peer_set_client": (1, 1, lambda: s(pick("u1", "u2")) + s("client.y")),
          "mirror_peer_set_cluster": (1, 1, lambda: s(pick("u1", "u2")) + s(pick("site1", "site2", "site9"))), "mirror_peer_set_direction": (1, 1, lambda: s(pick("u1", "u2")) + u8(pick(0, 2))),
          "mirror_image_list": (0, 2, page), "mirror_image_get_image_id": (0, 1, lambda: s(pick("g1", "g2", "g3"))), "mirror_image_get": (0, 1, lambda: s(ident())),
          "mirror_image_set": (1, 3, lambda: s(ident()) + pick(v(s(pick("g1", "g2", "g3")) + u8(pick(0, 1, 1)) + u8(pick(0, 1)), 2), v(s("g1") + u8(1)))), "mirror_image_remove": (1, 2, lambda: s(ident())),
          "mirror_instances_list": (0, 1, lambda: b""), "mirror_instances_add": (1, 1, lambda: s(word())), "mirror_instances_remove": (1, 1, lambda: s(word())),
          "mirror_image_map_list": (0, 1, page), "mirror_image_map_update": (1, 1, lambda: s(pick("g1", "g2")) + image_map()), "mirror_image_map_remove": (1, 1, lambda: s(pick("g1", "g2")))}
KINDS = [("head", HEADER, 9), ("dir", DIRECTORY, 3), ("id", ID, 1), ("trash", TRASH, 1), ("children", CHILDREN, 1), ("map", MAP, 3), ("data", DATA, 2), ("group", GROUP, 2), ("mirror", MIRROR, 3)]

def call():
    name, table, _ = rnd.choices(KINDS, [w for _, _, w in KINDS])[0]
    method = rnd.choices(list(table), [w for _, w, _ in table.values()])[0]
    writes, _, data = table[method]
    return "rbd", method, bool(writes), name + str(rnd.randrange(3)), data()
