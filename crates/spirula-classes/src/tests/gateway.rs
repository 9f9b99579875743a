//! Classes of radosgw where recordings say too little: rings that go round, listings in parts,
//! errors that are told.

use super::{Memory, input};
use bytes::Bytes;
use spirula_encoding::{Decoder, Encoder};
use spirula_types::errno;

fn queue(o: &mut Memory, method: &str, body: impl FnOnce(&mut Encoder)) -> (i32, Bytes) {
    o.call("queue", method, &input(1, body))
}

/// Entries that a queue lists from a place, each with its place; whether there are more; where to
/// go on.
fn listed(o: &mut Memory, from: &str, max: u64) -> (Vec<(Bytes, String)>, bool, String) {
    let (result, out) = queue(o, "queue_list_entries", |e| {
        e.u64(max);
        e.str(from);
    });
    assert_eq!(result, 0);
    Decoder::new(&out)
        .versioned("", 1, |d, _| {
            let (more, next) = (d.bool()?, d.get()?);
            let entries = d.list(10, |d| d.versioned("", 1, |d, _| Ok((d.get()?, d.get()?))))?;
            Ok((entries, more, next))
        })
        .unwrap()
}

fn push(o: &mut Memory, data: &[u8]) -> i32 {
    queue(o, "queue_enqueue", |e| {
        e.u32(1);
        e.blob(data);
    })
    .0
}

fn remove(o: &mut Memory, end: &str) -> i32 {
    queue(o, "queue_remove_entries", |e| e.str(end)).0
}

/// For many rounds of a ring whose entries do not divide it, all that was put in comes out, in
/// order and whole.
#[test]
fn a_ring_gives_what_it_was_given_however_often_it_goes_round() {
    let mut o = Memory::new();
    let init = |o: &mut Memory| {
        queue(o, "queue_init", |e| {
            e.u64(100);
            e.u64(0);
            e.blob(b"");
        })
        .0
    };
    assert_eq!(push(&mut o, b"x"), -errno::EINVAL, "no queue yet");
    assert_eq!(init(&mut o), 0);
    assert_eq!(init(&mut o), -errno::EEXIST);
    let (mut given, mut taken) = (0_u8, 0_u8);
    for round in 0..60 {
        while push(&mut o, &vec![given; 7 + usize::from(given % 5)]) == 0 {
            given = given.wrapping_add(1);
        }
        let (entries, more, end) = listed(&mut o, "", 1000);
        assert!(!more && entries.len() >= 4, "round {round}");
        for (n, (data, _)) in entries.iter().enumerate() {
            let want = taken.wrapping_add(n as u8);
            assert_eq!(*data, vec![want; 7 + usize::from(want % 5)], "round {round}");
        }
        // What is listed in two parts is the same.
        let (first, more, next) = listed(&mut o, "", 2);
        assert!(more);
        assert_eq!([first, listed(&mut o, &next, 1000).0].concat(), entries);
        assert_eq!(remove(&mut o, "9999/1030"), -errno::EINVAL, "behind the end");
        let keep = round % 3;
        let end = if keep == 0 { end } else { entries[entries.len() - keep].1.clone() };
        assert_eq!(remove(&mut o, &end), 0, "round {round}");
        taken = taken.wrapping_add((entries.len() - keep) as u8);
        // The place of what is gone names nothing.
        let (result, _) = queue(&mut o, "queue_list_entries", |e| {
            e.u64(1);
            e.str(&entries[0].1);
        });
        assert_eq!(result, -errno::EINVAL, "round {round}");
    }
}

fn put_entry(o: &mut Memory, name: &str) {
    let tag = format!("tag of {name}");
    let prepare = input(5, |e| {
        e.u8(0);
        e.str(&tag);
        e.str("");
        e.bool(false);
        e.versioned(1, 1, |e| {
            e.str(name);
            e.str("");
        });
    });
    assert_eq!(o.call("rgw", "bucket_prepare_op", &prepare).0, 0);
}

/// Names and common prefixes of a listing, in parts of `max`.
fn names(o: &mut Memory, max: u32, prefix: &str, delimiter: &str) -> Vec<String> {
    let (mut all, mut start) = (Vec::new(), Bytes::new());
    for _ in 0..200 {
        let op = input(6, |e| {
            e.u32(max);
            e.str(prefix);
            e.versioned(1, 1, |e| {
                e.blob(&start);
                e.str("");
            });
            e.bool(false);
            e.str(delimiter);
        });
        let (result, out) = o.call("rgw", "bucket_list", &op);
        assert!(result == 0 || result == -errno::EFBIG, "{result}");
        let (keys, truncated, marker): (Vec<String>, bool, Bytes) = Decoder::new(&out)
            .versioned("", 4, |d, _| {
                let keys = d.versioned("", 2, |d, _| {
                    d.versioned("", 7, |_, _| Ok(()))?;
                    d.list(10, |d| {
                        let key = d.get()?;
                        d.versioned("", 8, |_, _| Ok(()))?;
                        Ok(key)
                    })
                })?;
                let truncated = d.bool()?;
                Ok((keys, truncated, d.versioned("", 1, |d, _| d.get())?))
            })
            .unwrap();
        all.extend(keys);
        if !truncated {
            return all;
        }
        start = marker;
    }
    panic!("no end after {all:?}");
}

#[test]
fn a_bucket_is_listed_in_parts_of_any_size() {
    let mut o = Memory::new();
    o.call("rgw", "bucket_init_index", b"");
    let mut wanted: Vec<String> = (0..9)
        .flat_map(|d| (0..12).map(move |n| format!("{}{d}/{n}", if d < 8 { "" } else { "\u{e9}" })))
        .collect();
    wanted.extend(["top".into(), "\u{fc}ber".into()]);
    wanted.iter().for_each(|name| put_entry(&mut o, name));
    // What is no object's name lies between them.
    o.omap.insert(Bytes::from_static(b"\x801000_a\0ix"), Bytes::from_static(b"?"));
    wanted.sort();
    for max in [1, 2, 7, 1000] {
        assert_eq!(names(&mut o, max, "", ""), wanted, "{max}");
        let mut folded: Vec<String> = (0..8).map(|d| format!("{d}/")).collect();
        folded.extend(["top".into(), "\u{e9}8/".into(), "\u{fc}ber".into()]);
        assert_eq!(names(&mut o, max, "", "/"), folded, "{max}");
        assert_eq!(names(&mut o, max, "3/", "/").len(), 12, "{max}");
    }
}

#[test]
fn a_guard_fails_as_it_is_told_while_an_index_is_moved() {
    let mut o = Memory::new();
    let guard = input(1, |e| e.i32(-2300));
    let state = |status| {
        input(1, |e| {
            e.versioned(1, 1, |e| {
                e.u8(status);
                e.str("new");
                e.i32(7);
            });
        })
    };
    assert_eq!(o.call("rgw", "guard_bucket_resharding", &guard).0, 0);
    assert_eq!(o.call("rgw", "set_bucket_resharding", &state(1)).0, 0);
    assert_eq!(o.call("rgw", "guard_bucket_resharding", &guard).0, -2300);
    assert_eq!(o.call("rgw", "clear_bucket_resharding", &input(1, |_| ())).0, 0);
    assert_eq!(o.call("rgw", "guard_bucket_resharding", &guard).0, 0);
}
