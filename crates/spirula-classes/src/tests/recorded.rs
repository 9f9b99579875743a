//! Calls that real clients made of a real cluster (`tests/data/vectors/cls.jsonl`).

use super::Memory;
use crate::{CLASSES, Flags, Unknown, find};
use bytes::Bytes;
use spirula_encoding::{Decoder, UTime, to_vec};
use std::collections::BTreeMap;

struct Recorded {
    class: String,
    method: String,
    /// `R`, `W` and `P` as registered; empty where there is no such method.
    registered: String,
    input: Vec<u8>,
    output: Vec<u8>,
    result: i32,
}

fn field<'a>(line: &'a str, key: &str) -> &'a str {
    let from = line.find(&format!("\"{key}\": ")).expect(key) + key.len() + 4;
    let rest = &line[from..];
    match rest.strip_prefix('"') {
        Some(text) => &text[..text.find('"').unwrap()],
        None => &rest[..rest.find([',', '}']).unwrap()],
    }
}

fn hex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn recorded() -> Vec<Recorded> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/cls.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let call = |line: &str| Recorded {
        class: field(line, "class").to_owned(),
        method: field(line, "method").to_owned(),
        registered: field(line, "registered").to_owned(),
        input: hex(field(line, "in")),
        output: hex(field(line, "out")),
        result: field(line, "result").parse().unwrap(),
    };
    text.lines().map(call).collect()
}

#[test]
fn methods_are_registered_as_in_ceph() {
    let mut checked = 0;
    for r in recorded() {
        let flag = |c| r.registered.contains(c);
        match find(r.class.as_bytes(), r.method.as_bytes()) {
            Ok((_, method)) => {
                let flags = Flags { read: flag('R'), write: flag('W'), promote: flag('P') };
                assert_eq!(method.flags, flags, "{}.{}", r.class, r.method);
                checked += 1;
            }
            Err(Unknown::Method) => assert_eq!(r.registered, "", "{}.{}", r.class, r.method),
            Err(Unknown::Class) => assert!(CLASSES.iter().all(|c| c.name != r.class)),
        }
    }
    assert!(checked > 250, "only {checked}");
}

/// The string at the start of an input.
fn name(input: &[u8]) -> Bytes {
    Decoder::new(input).bytes().unwrap()
}

/// Stores what must have been there for a reading call to come out as it did; false for calls that
/// this does not know.
fn prepare(r: &Recorded, o: &mut Memory) -> bool {
    let out = || Bytes::copy_from_slice(&r.output);
    let prefixed = |prefix: &str, rest: &[u8]| Bytes::from([prefix.as_bytes(), rest].concat());
    let mut set = |key: Bytes, value: Bytes| drop(o.omap.insert(key, value));
    match (&r.class[..], &r.method[..]) {
        ("lock", "get_info") => {
            o.attrs.insert(prefixed("lock.", &name(&r.input[6..])), out());
        }
        ("lock", "list_locks") => {
            let names: Vec<Bytes> =
                Decoder::new(&r.output).versioned("", 1, |d, _| d.get()).unwrap();
            o.attrs.extend(names.iter().map(|n| (prefixed("lock.", n), Bytes::new())));
        }
        ("version", "read") => {
            drop(o.attrs.insert("ceph.objclass.version".into(), out().slice(6..)))
        }
        ("rbd", "get_object_prefix") => set("object_prefix".into(), out()),
        ("rbd", "get_data_pool") => set("data_pool_id".into(), out()),
        ("rbd", "get_create_timestamp") => set("create_timestamp".into(), out()),
        ("rbd", "get_access_timestamp") => set("access_timestamp".into(), out()),
        ("rbd", "get_modify_timestamp") => set("modify_timestamp".into(), out()),
        ("rbd", "get_flags") => set("flags".into(), out()),
        ("rbd", "op_features_get") => set("op_features".into(), out()),
        ("rbd", "snapshot_get_limit") => set("snap_limit".into(), out()),
        ("rbd", "dir_get_id") => set(prefixed("name_", &name(&r.input)), out()),
        ("rbd", "dir_get_name") => set(prefixed("id_", &name(&r.input)), out()),
        ("rbd", "trash_get") => set(prefixed("id_", &name(&r.input)), out()),
        ("rbd", "metadata_get") => {
            set(prefixed("metadata_", &name(&r.input)), Bytes::copy_from_slice(&r.output[4..]));
        }
        ("rbd", "image_group_get") => set("rbd_group_ref".into(), out()),
        ("rbd", "get_children") => set(Bytes::copy_from_slice(&r.input), out()),
        ("rbd", "migration_get") => {
            set("features".into(), to_vec(&0x23du64).into());
            set("migration".into(), out());
        }
        ("rbd", "get_size") => {
            set("order".into(), out().slice(..1));
            set("size".into(), out().slice(1..));
        }
        ("rbd", "get_features") => set("features".into(), out().slice(..8)),
        ("rbd", "dir_list" | "group_dir_list") => {
            let all: BTreeMap<Bytes, Bytes> = Decoder::new(&r.output).get().unwrap();
            all.into_iter().for_each(|(k, v)| set(prefixed("name_", &k), to_vec(&v).into()));
        }
        ("rbd", "metadata_list") => {
            let all: BTreeMap<Bytes, Bytes> = Decoder::new(&r.output).get().unwrap();
            all.into_iter().for_each(|(k, v)| set(prefixed("metadata_", &k), v));
        }
        ("rbd", "namespace_list") => {
            let all: Vec<Bytes> = Decoder::new(&r.output).get().unwrap();
            all.iter().for_each(|k| set(prefixed("name_", k), Bytes::new()));
        }
        ("rbd", "get_id") => o.data = r.output.clone(),
        ("rbd", "object_map_load") => assert_eq!(o.call("rbd", "object_map_save", &r.output).0, 0),
        ("rbd", "get_all_features") | ("hello", "say_hello") => {}
        _ => return false,
    }
    o.exists = true;
    true
}

#[test]
fn what_was_read_is_read_from_the_same_state() {
    let mut checked = 0;
    for r in recorded().into_iter().filter(|r| r.result == 0) {
        // No lock of the recording has ended yet.
        let mut o = Memory { now: UTime { sec: 1, nsec: 0 }, ..Memory::new() };
        if find(r.class.as_bytes(), r.method.as_bytes()).is_ok() && prepare(&r, &mut o) {
            let got = o.call(&r.class, &r.method, &r.input);
            assert_eq!(got, (0, Bytes::copy_from_slice(&r.output)), "{}.{}", r.class, r.method);
            checked += 1;
        }
    }
    assert!(checked > 45, "only {checked}");
}

/// What was accepted is well-formed: on an object with nothing in it a call may lack what it builds
/// on, but its input is read.
#[test]
fn what_was_accepted_can_be_read() {
    // What cannot be read, or is not there, is EINVAL to them, too.
    let want_a_map = ["object_map_update", "bucket_complete_op"];
    let mut checked = 0;
    for r in recorded().into_iter().filter(|r| r.result == 0 && r.registered.contains('W')) {
        let queue = r.class == "rgw_gc" && r.method != "rgw_gc_queue_init";
        if find(r.class.as_bytes(), r.method.as_bytes()).is_err()
            || queue
            || want_a_map.contains(&&r.method[..])
        {
            continue;
        }
        let mut o = Memory { exists: true, ..Memory::new() };
        let features = if r.method == "migration_set_state" { 0x23du64 } else { 0x3d };
        o.omap.insert("features".into(), to_vec(&features).into());
        let (result, _) = o.call(&r.class, &r.method, &r.input);
        assert_ne!(result, -22, "{}.{} of {:02x?}", r.class, r.method, r.input);
        checked += 1;
    }
    assert!(checked > 95, "only {checked}");
}
