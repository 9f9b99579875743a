//! Methods of object classes. Input: `[how u8][method u16]`, then for each of some values that are stored `[where u8][length
//! u8][value]`, an end (255), and the input of the call. Flag 1: the object does not exist. Where: below 128 a key of the omap,
//! from there on an attribute, of a list of names under which classes keep their state; 254 the data.
#![no_main]

#[path = "../../../crates/spirula-classes/src/tests/memory.rs"]
mod memory;

use bytes::Bytes;
use memory::Memory;
use spirula_classes::CLASSES;
use spirula_encoding::{Decoder, UTime};

const NAMES: &[&str] = &[
    "features",
    "size",
    "order",
    "snap_seq",
    "parent",
    "op_features",
    "flags",
    "snapshot_0000000000000001",
    "snap_limit",
    "snapshot_0000000000000000",
    "snap_children_0000000000000001",
    "migration",
    "metadata_a",
    "name_a",
    "id_a",
    "rbd_group_ref",
    "image_0000000000000007_a",
    "image_a",
    "mirror_mode",
    "mirror_uuid",
    "mirror_peer_a",
    "global_a",
    "instance_a",
    "image_map_a",
    "splay_width",
    "next_tag_tid",
    "next_tag_class",
    "client_a",
    "tag_0000000000000000",
    "1_0000000005.000000_a",
    "lock.",
    "lock.a",
    "refcount",
    "ceph.objclass.version",
    "a",
    "",
];
/// Bytes that an object may have.
const LARGEST: u64 = 1 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut d = Decoder::new(data);
    let (Ok(how), Ok(number)) = (d.u8(), d.u16()) else { return };
    let mut object = Memory { exists: how & 1 == 0, now: UTime { sec: 9, nsec: 9 }, largest: LARGEST, ..Memory::default() };
    while let Ok(place) = d.u8() {
        let name = |i: u8| Bytes::from_static(NAMES[usize::from(i) % NAMES.len()].as_bytes());
        let Some(value) = (place != 255).then(|| d.u8().and_then(|n| d.take(usize::from(n))).ok()).flatten() else {
            break;
        };
        let value = Bytes::copy_from_slice(value);
        match place {
            _ if !object.exists => {}
            254 => object.data = value.to_vec(),
            0..128 => drop(object.omap.insert(name(place), value)),
            _ => drop(object.attrs.insert(name(place - 128), value)),
        }
    }
    let methods: Vec<_> = CLASSES.iter().flat_map(|c| c.methods).collect();
    let method = methods[usize::from(number) % methods.len()];
    let input = Bytes::copy_from_slice(d.rest());
    // A map of many objects is larger than what asks for it: an image of a terabyte.
    let resizes = method.name == "object_map_resize";
    if !resizes || input.first_chunk().is_some_and(|n| u64::from_le_bytes(*n) < 1 << 20) {
        drop(method.run(&mut object, input));
    }
});
