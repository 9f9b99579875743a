//! What the recordings of `rbd` do not show: names that are made up here, large maps, spoilt maps.

use super::{Memory, input};
use bytes::Bytes;
use spirula_encoding::{Encoder, to_vec};
use spirula_types::errno;

fn run(o: &mut Memory, method: &str, body: impl FnOnce(&mut Encoder)) -> (i32, Bytes) {
    o.call("rbd", method, &input(0, body))
}

fn image() -> Memory {
    let mut o = Memory::new();
    let made = run(&mut o, "create", |e| {
        e.u64(1 << 30);
        e.u8(22);
        e.u64(0x3d);
        e.str("rbd_data.1");
    });
    assert_eq!(made.0, 0);
    o
}

fn snap(o: &mut Memory, id: u64, name: &str) -> i32 {
    run(o, "snapshot_add", |e| {
        e.str(name);
        e.u64(id);
    })
    .0
}

#[test]
fn a_snapshot_in_the_trash_gets_a_name_that_nothing_else_has() {
    let mut o = image();
    for id in [1, 2] {
        assert_eq!(snap(&mut o, id, &format!("s{id}")), 0);
        assert_eq!(run(&mut o, "snapshot_trash_add", |e| e.u64(id)).0, 0);
        assert_eq!(run(&mut o, "snapshot_trash_add", |e| e.u64(id)).0, -errno::EEXIST);
    }
    let names: Vec<Bytes> =
        [1, 2].map(|id| run(&mut o, "get_snapshot_name", |e| e.u64(id)).1.slice(4..)).into();
    assert_ne!(names[0], names[1]);
    let text = std::str::from_utf8(&names[0]).unwrap();
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    assert_eq!((parts, &text[14..15]), (vec![8, 4, 4, 4, 12], "4"));
    assert_eq!(run(&mut o, "op_features_get", |_| {}).1, to_vec(&8u64));
    assert_eq!(run(&mut o, "snapshot_remove", |e| e.u64(1)).0, 0);
    assert_eq!(run(&mut o, "op_features_get", |_| {}).1, to_vec(&8u64));
    assert_eq!(run(&mut o, "snapshot_remove", |e| e.u64(2)).0, 0);
    assert_eq!(run(&mut o, "op_features_get", |_| {}).1, to_vec(&0u64));
    assert_eq!(o.omap[&b"features"[..]], to_vec(&0x3du64), "no operation feature is left");
}

#[test]
fn a_peer_that_says_it_is_there_becomes_known_once() {
    let mut o = Memory::new();
    let ping = |o: &mut Memory, site: &str, mirror: &str| {
        run(o, "mirror_peer_ping", |e| {
            e.str(site);
            e.str(mirror);
            e.u8(1);
        })
        .0
    };
    assert_eq!(ping(&mut o, "b", "uuid-b"), -errno::EINVAL, "nothing is mirrored");
    assert_eq!(run(&mut o, "mirror_uuid_set", |e| e.str("uuid-a")).0, 0);
    assert_eq!(run(&mut o, "mirror_mode_set", |e| e.u32(1)).0, 0);
    assert_eq!(ping(&mut o, "", "uuid-b"), -errno::EINVAL);
    assert_eq!(ping(&mut o, "b", "uuid-b"), 0);
    assert_eq!(ping(&mut o, "b", "uuid-b"), 0);
    let peers = |o: &Memory| o.omap.keys().filter(|k| k.starts_with(b"mirror_peer_")).count();
    assert_eq!(peers(&o), 1);
    assert_eq!(ping(&mut o, "renamed", "uuid-b"), 0);
    assert_eq!(peers(&o), 1);
    assert_eq!(ping(&mut o, "c", "uuid-c"), 0);
    assert_eq!(peers(&o), 2);
    assert_eq!(run(&mut o, "mirror_mode_set", |e| e.u32(0)).0, -errno::EBUSY);
}

fn resize(o: &mut Memory, objects: u64, state: u8) -> i32 {
    run(o, "object_map_resize", |e| {
        e.u64(objects);
        e.u8(state);
    })
    .0
}

fn update(o: &mut Memory, from: u64, to: u64, new: u8, current: Option<u8>) -> i32 {
    run(o, "object_map_update", |e| {
        e.u64(from);
        e.u64(to);
        e.u8(new);
        e.bool(current.is_some());
        current.iter().for_each(|c| e.u8(*c));
    })
    .0
}

/// State of each object of a map.
fn states(o: &mut Memory) -> Vec<u8> {
    let (result, out) = run(o, "object_map_load", |_| {});
    assert_eq!(result, 0);
    let objects = u64::from_le_bytes(out[10..18].try_into().unwrap());
    (0..objects).map(|i| out[18 + i as usize / 4] >> (6 - i % 4 * 2) & 3).collect()
}

#[test]
fn a_large_map_is_changed_in_the_blocks_that_are_meant_and_stays_readable() {
    let mut o = Memory::new();
    assert_eq!(update(&mut o, 0, 1, 1, None), -errno::ENOENT);
    let objects = 3 * 16_384 + 7;
    assert_eq!(resize(&mut o, objects, 0), 0);
    let mut model = vec![0u8; objects as usize];
    for (from, to, new, current) in [
        (0, 1, 1, None),
        (16_383, 16_385, 1, None),
        (16_000, 40_000, 3, Some(0)),
        (objects - 1, objects, 2, None),
        (0, objects, 0, Some(1)),
        (5, 6, 1, Some(1)),
    ] {
        assert_eq!(update(&mut o, from, to, new, current), 0);
        for s in &mut model[from as usize..to as usize] {
            if current.is_none_or(|c| c == *s || c == 1 && *s == 3) {
                *s = new;
            }
        }
        assert_eq!(states(&mut o), model, "{from}..{to}");
    }
    assert_eq!(update(&mut o, 3, 3, 1, None), -errno::ERANGE);
    assert_eq!(update(&mut o, 3, objects + 1, 1, None), -errno::ERANGE);
    assert_eq!(resize(&mut o, 10, 1), -errno::ESTALE, "objects that go must be gone");
    assert_eq!(resize(&mut o, 256_000_001, 0), -errno::EINVAL);
}

#[test]
fn a_spoilt_map_is_not_read() {
    let mut o = Memory::new();
    resize(&mut o, 20_000, 1);
    for at in [0, 5, 12, 18, 18 + 4096, 18 + 5000, 18 + 5004, 18 + 5012, 18 + 5016] {
        let mut bad = o.clone();
        bad.data[at] ^= 4;
        assert_eq!(run(&mut bad, "object_map_load", |_| {}).0, -errno::EINVAL, "byte {at}");
    }
    let mut bad = o.clone();
    bad.data[18 + 4096] ^= 4;
    assert_eq!(update(&mut bad, 0, 1, 2, None), 0, "the first block is sound");
    assert_eq!(update(&mut bad, 19_999, 20_000, 2, None), -errno::EINVAL);
    let mut short = o.clone();
    short.data.truncate(5000);
    assert_eq!(update(&mut short, 0, 1, 2, None), -errno::EINVAL);
    // A count of objects that nobody has the memory for.
    let mut huge = Memory { exists: true, ..Memory::new() };
    huge.data = input(0, |e| e.blob(&input(1, |e| e.u64(u64::MAX))));
    assert_eq!(run(&mut huge, "object_map_load", |_| {}).0, -errno::EINVAL);
    assert_eq!(update(&mut huge, 0, u64::MAX, 1, None), -errno::EINVAL);
}

#[test]
fn zeros_give_their_space_back_in_pieces() {
    let mut data = vec![0u8; 100];
    data[35] = 1;
    data[70] = 1;
    let make = || Memory { exists: true, data: data.clone(), ..Memory::new() };
    let sparsify = |o: &mut Memory, size: u64, remove: bool| {
        run(o, "sparsify", |e| {
            e.u64(size);
            e.bool(remove);
        })
        .0
    };
    let mut o = make();
    assert_eq!(sparsify(&mut o, 10, true), 0);
    assert_eq!(o.data, data[..80], "up to the end of the last piece that holds something");
    assert_eq!(sparsify(&mut o, 0, true), -errno::EINVAL);
    assert_eq!(sparsify(&mut o, u64::MAX, true), 0);
    let mut o = Memory { exists: true, data: vec![0; 50], ..Memory::new() };
    assert_eq!(sparsify(&mut o, 10, false), 0);
    assert_eq!((o.exists, o.data.len()), (true, 0));
    assert_eq!(sparsify(&mut o, 10, true), 0);
    assert!(!o.exists);
    assert_eq!(sparsify(&mut o, 10, true), -errno::ENOENT);
}

#[test]
fn lists_are_given_in_parts_and_end() {
    let mut o = Memory::new();
    for i in 0..20 {
        let added = run(&mut o, "dir_add_image", |e| {
            e.str(&format!("n{i:02}"));
            e.str(&format!("id{i}"));
        });
        assert_eq!(added.0, 0);
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let (_, out) = run(&mut o, "dir_list", |e| {
            e.str(&after);
            e.u64(7);
        });
        let mut d = spirula_encoding::Decoder::new(&out);
        let part: Vec<(String, String)> = d.get().unwrap();
        let Some((last, _)) = part.last() else { break };
        after.clone_from(last);
        seen.extend(part.into_iter().map(|(n, _)| n));
    }
    assert_eq!(seen, (0..20).map(|i| format!("n{i:02}")).collect::<Vec<_>>());
}
