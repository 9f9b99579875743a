//! How much a call may hold in memory, and what is said of more.

use super::types::{Entry, Header, Key, Meta, PENDING_MAX, Pending};
use crate::tests::{Memory, input};
use bytes::Bytes;
use spirula_encoding::{Decoder, Encoder, UTime, to_vec};
use spirula_types::errno;

fn entry(name: &str, etag: usize) -> Entry {
    let meta = Meta { etag: vec![b'e'; etag].into(), ..Meta::default() };
    Entry {
        key: Key::named(Bytes::copy_from_slice(name.as_bytes())),
        exists: true,
        meta,
        ..Entry::default()
    }
}

fn index(entries: &[Entry]) -> Memory {
    let mut o = Memory { page: 1000, ..Memory::new() };
    assert_eq!(o.call("rgw", "bucket_init_index", b"").0, 0);
    o.omap.extend(entries.iter().map(|e| (e.key.name.clone(), to_vec(e).into())));
    o
}

/// One listing after a name: names, whether there are more, and after which to go on.
fn listed(o: &mut Memory, after: &Key, delimiter: &str) -> (Vec<Bytes>, bool, Key) {
    let op = input(6, |e| {
        e.u32(1000);
        e.str("");
        e.put(after);
        e.bool(false);
        e.str(delimiter);
    });
    let (result, out) = o.call("rgw", "bucket_list", &op);
    assert_eq!(result, 0);
    let d = &mut Decoder::new(&out);
    d.versioned("", 4, |d, _| {
        let names = d.versioned("", 2, |d, _| {
            d.get::<Header>()?;
            let entries = d.list(20, |d| Ok((d.get::<Bytes>()?, d.get::<Entry>()?)))?;
            Ok(entries.into_iter().map(|(k, _)| k).collect())
        })?;
        Ok((names, d.get()?, d.get()?))
    })
    .unwrap()
}

/// A listing of large entries ends early and says where to go on; in parts all is listed.
#[test]
fn a_listing_of_large_entries_comes_in_parts() {
    let entries: Vec<Entry> = (0..40).map(|i| entry(&format!("{i:02}"), 1 << 20)).collect();
    let mut o = index(&entries);
    let (mut after, mut all, mut parts) = (Key::default(), Vec::new(), 0);
    loop {
        let (names, more, next) = listed(&mut o, &after, "");
        assert!((1..=17).contains(&names.len()), "{}", names.len());
        (parts, after) = (parts + 1, next);
        all.extend(names);
        if !more {
            break;
        }
    }
    let want: Vec<Bytes> = entries.iter().map(|e| e.key.name.clone()).collect();
    assert_eq!((all, parts), (want, 3));
}

/// Suggestions are read up to a bound, beyond which the whole call is refused.
#[test]
fn suggestions_are_bounded() {
    let mut o = index(&[entry("a", 10)]);
    let suggestions = |n: usize| {
        let mut e = Encoder::new();
        for _ in 0..n {
            e.u8(b'u');
            e.put(&entry("a", 1000));
        }
        e.into_vec()
    };
    assert_eq!(o.call("rgw", "dir_suggest_changes", &suggestions(3000)).0, 0);
    let before = o.clone();
    assert_eq!(o.call("rgw", "dir_suggest_changes", &suggestions(4200)).0, -errno::E2BIG);
    assert!(!o.unlike(&before));
}

/// Operations that are pending on one object have a bound; what goes beyond it in a stored entry is
/// not read.
#[test]
fn pending_operations_are_bounded() {
    let pending = |n: usize| {
        let begun = UTime { sec: 1, nsec: 0 };
        let one = (Bytes::from_static(b"t"), Pending { state: 0, begun, op: 0 });
        Entry { pending: vec![one; n], ..entry("a", 0) }
    };
    let prepare = input(7, |e| {
        e.u8(0);
        e.str("tag");
        e.str("");
        e.bool(false);
        e.put(&Key::named("a".into()));
    });
    let mut o = index(&[pending(PENDING_MAX - 1)]);
    assert_eq!(o.call("rgw", "bucket_prepare_op", &prepare).0, 0);
    assert_eq!(o.call("rgw", "bucket_prepare_op", &prepare).0, -errno::E2BIG);
    let mut o = index(&[pending(PENDING_MAX + 1)]);
    assert_eq!(o.call("rgw", "bucket_prepare_op", &prepare).0, -errno::EIO);
}

/// What 18.2's gateways say of their walk over buckets with a lifecycle comes back whole, in a form
/// that 16.2's can read, too.
#[test]
fn the_progress_of_either_release_is_kept() {
    let form = |version: u8, compat: u8| {
        let mut o = Encoder::new();
        o.versioned(version, compat, |o| {
            o.u64(1_700_000_000);
            o.str(":bucket:marker");
            if version > 1 {
                o.u64(1_700_000_123);
            }
        });
        o.into_vec()
    };
    for (put, got) in [((1, 1), (1, 1)), ((2, 2), (2, 1))] {
        let mut o = Memory::new();
        let (result, _) = o.call("rgw", "lc_put_head", &input(1, |e| e.raw(&form(put.0, put.1))));
        assert_eq!(result, 0);
        assert_eq!(
            o.call("rgw", "lc_get_head", b""),
            (0, input(1, |e| e.raw(&form(got.0, got.1))).into())
        );
    }
    let beyond = input(1, |e| e.raw(&form(3, 3)));
    assert_eq!(Memory::new().call("rgw", "lc_put_head", &beyond).0, -errno::EINVAL);
}
