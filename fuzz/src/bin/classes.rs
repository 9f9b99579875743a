//! Methods of object classes. Input: `[how u8][method u16]`, then for each of some values that are
//! stored `[where u8][length u8][value]`, an end (255), and the input of the call. Flag 1: the
//! object does not exist. Where: below 128 a key of the omap, from there on an attribute, of a list
//! of names under which classes keep their state; 253 the omap's header; 254 the data.
#![no_main]

#[path = "../../../crates/spirula-classes/src/tests/memory.rs"]
mod memory;

use bytes::Bytes;
use memory::Memory;
use spirula_classes::CLASSES;
use spirula_encoding::{Decoder, UTime};

const NAMES: &[&[u8]] = &[
    b"features",
    b"size",
    b"order",
    b"snap_seq",
    b"parent",
    b"op_features",
    b"flags",
    b"snapshot_0000000000000001",
    b"snap_limit",
    b"snapshot_0000000000000000",
    b"snap_children_0000000000000001",
    b"migration",
    b"metadata_a",
    b"name_a",
    b"id_a",
    b"rbd_group_ref",
    b"image_0000000000000007_a",
    b"image_a",
    b"mirror_mode",
    b"mirror_uuid",
    b"mirror_peer_a",
    b"global_a",
    b"instance_a",
    b"image_map_a",
    b"splay_width",
    b"next_tag_tid",
    b"next_tag_class",
    b"client_a",
    b"tag_0000000000000000",
    b"1_0000000005.000000_a",
    b"lock.",
    b"lock.a",
    b"refcount",
    b"ceph.objclass.version",
    b"a",
    b"",
    b"a\0v912\0ia",
    b"\x801000_a\0ia",
    b"\x801000_a\0i",
    b"\x801001_a",
    b"\x800_00000000001.1.1",
    b"a:a",
    b"0_a",
    b"header",
    b"otp/a",
    b"chunk_refs",
    b"cls_queue_urgent_data",
];
/// Bytes that an object may have.
const LARGEST: u64 = 1 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut d = Decoder::new(data);
    let (Ok(how), Ok(number)) = (d.u8(), d.u16()) else { return };
    let mut object =
        Memory { exists: how & 1 == 0, now: UTime { sec: 9, nsec: 9 }, largest: LARGEST, ..Memory::default() };
    while let Ok(place) = d.u8() {
        let name = |i: u8| Bytes::from_static(NAMES[usize::from(i) % NAMES.len()]);
        let Some(value) = (place != 255).then(|| d.u8().and_then(|n| d.take(usize::from(n))).ok()).flatten() else {
            break;
        };
        let value = Bytes::copy_from_slice(value);
        match place {
            _ if !object.exists => {}
            253 => object.header = value,
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
