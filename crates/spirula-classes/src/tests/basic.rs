//! The small classes, method by method.

use super::{Memory, input};
use crate::CLASSES;
use bytes::Bytes;
use spirula_encoding::{Encoder, UTime};
use spirula_types::{EntityAddr, EntityName, errno};

const EXCLUSIVE: u8 = 1;
const SHARED: u8 = 2;
const EPHEMERAL: u8 = 3;

fn lock(kind: u8, cookie: &str, tag: &str, seconds: u32, flags: u8) -> Vec<u8> {
    input(1, |e| {
        e.str("l");
        e.u8(kind);
        e.str(cookie);
        e.str(tag);
        e.str("what for");
        e.put(&UTime { sec: seconds, nsec: 0 });
        e.u8(flags);
    })
}

fn strings(all: &[&str]) -> Vec<u8> {
    input(1, |e| all.iter().for_each(|s| e.str(s)))
}

fn break_of(client: u64, cookie: &str) -> Vec<u8> {
    input(1, |e| {
        e.str("l");
        e.put(&EntityName::client(client));
        e.str(cookie);
    })
}

fn claim(kind: u8, cookie: &str, tag: &str, new: Option<&str>) -> Vec<u8> {
    input(1, |e| {
        e.str("l");
        e.u8(kind);
        e.str(cookie);
        e.str(tag);
        new.iter().for_each(|s| e.str(s));
    })
}

fn run(o: &mut Memory, method: &str, input: &[u8]) -> i32 {
    o.call("lock", method, input).0
}

/// How many hold the lock.
fn holders(o: &mut Memory) -> usize {
    let (result, out) = o.call("lock", "get_info", &strings(&["l"]));
    assert_eq!(result, 0);
    u32::from_le_bytes(out[6..10].try_into().unwrap()) as usize
}

#[test]
fn an_exclusive_lock_has_one_holder() {
    let mut o = Memory::new();
    assert_eq!(run(&mut o, "get_info", &strings(&["l"])), -errno::ENOENT);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 0, 0)), 0);
    assert!(o.exists);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 0, 0)), -errno::EEXIST);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "other", "", 0, 0)), -errno::EBUSY);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "tag", 0, 1)), -errno::EBUSY);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 0, 1)), 0);
    assert_eq!(run(o.as_client(2), "lock", &lock(SHARED, "c", "", 0, 0)), -errno::EBUSY);
    assert_eq!(run(o.as_client(2), "unlock", &strings(&["l", "c"])), -errno::ENOENT);
    assert_eq!(
        run(o.as_client(2), "assert_locked", &claim(EXCLUSIVE, "c", "", None)),
        -errno::EBUSY
    );
    assert_eq!(run(o.as_client(1), "assert_locked", &claim(EXCLUSIVE, "c", "", None)), 0);
    assert_eq!(run(o.as_client(1), "assert_locked", &claim(SHARED, "c", "", None)), -errno::EBUSY);
    assert_eq!(run(o.as_client(2), "break_lock", &break_of(1, "d")), -errno::ENOENT);
    assert_eq!(run(o.as_client(2), "break_lock", &break_of(1, "c")), 0);
    assert_eq!(holders(&mut o), 0);
    assert_eq!(run(o.as_client(2), "lock", &lock(EXCLUSIVE, "c", "", 0, 0)), 0);
}

#[test]
fn a_shared_lock_has_many_holders_with_one_tag() {
    let mut o = Memory::new();
    assert_eq!(run(&mut o, "lock", &lock(SHARED, "c", "tag", 0, 0)), 0);
    assert_eq!(run(o.as_client(2), "lock", &lock(SHARED, "c", "tag", 0, 0)), 0);
    assert_eq!(run(o.as_client(2), "lock", &lock(SHARED, "d", "tag", 0, 0)), 0);
    assert_eq!(run(o.as_client(3), "lock", &lock(SHARED, "c", "other", 0, 0)), -errno::EBUSY);
    assert_eq!(run(o.as_client(1), "lock", &lock(EXCLUSIVE, "c", "tag", 0, 1)), -errno::EBUSY);
    assert_eq!(holders(&mut o), 3);
    assert_eq!(
        run(o.as_client(2), "set_cookie", &claim(SHARED, "c", "tag", Some("d"))),
        -errno::EBUSY
    );
    assert_eq!(run(o.as_client(2), "set_cookie", &claim(SHARED, "c", "tag", Some("e"))), 0);
    assert_eq!(
        run(o.as_client(2), "set_cookie", &claim(SHARED, "c", "tag", Some("f"))),
        -errno::EBUSY
    );
    assert_eq!(run(o.as_client(2), "unlock", &strings(&["l", "e"])), 0);
    assert_eq!(holders(&mut o), 2);
}

#[test]
fn a_lock_ends_with_its_time_and_is_renewed_by_its_holder_alone() {
    let mut o = Memory::new();
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 10, 2)), -errno::ENOENT, "must renew");
    assert_eq!(
        run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 10, 3)),
        -errno::EINVAL,
        "may and must"
    );
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 10, 0)), 0);
    o.now.sec += 10;
    assert_eq!(holders(&mut o), 1);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 10, 2)), 0);
    o.now.sec += 10;
    assert_eq!(holders(&mut o), 1);
    o.now.nsec += 1;
    assert_eq!(holders(&mut o), 0);
    assert_eq!(run(o.as_client(2), "lock", &lock(SHARED, "c", "new", u32::MAX, 0)), 0);
    assert_eq!(holders(&mut o), 1, "what is later than a stamp can say is never");
}

#[test]
fn an_ephemeral_lock_takes_its_object_along() {
    let mut o = Memory::new();
    assert_eq!(run(&mut o, "lock", &lock(EPHEMERAL, "c", "", 0, 0)), 0);
    assert_eq!(run(&mut o, "unlock", &strings(&["l", "c"])), 0);
    assert!(!o.exists);
}

#[test]
fn wrong_locks_are_refused_and_locks_are_listed() {
    let mut o = Memory::new();
    for kind in [0, 4] {
        assert_eq!(run(&mut o, "lock", &lock(kind, "c", "", 0, 0)), -errno::EINVAL);
        assert_eq!(run(&mut o, "assert_locked", &claim(kind, "c", "", None)), -errno::EINVAL);
        assert_eq!(run(&mut o, "set_cookie", &claim(kind, "c", "", Some("d"))), -errno::EINVAL);
    }
    assert_eq!(run(&mut o, "lock", b""), -errno::EINVAL);
    assert_eq!(run(&mut o, "list_locks", b""), -errno::ENOENT);
    assert_eq!(run(&mut o, "lock", &lock(EXCLUSIVE, "c", "", 0, 0)), 0);
    o.attrs.insert("other".into(), Bytes::new());
    o.attrs.insert("lock.m".into(), Bytes::from_static(b"spoilt"));
    let (_, out) = o.call("lock", "list_locks", b"");
    assert_eq!(out, input(1, |e| e.put(&vec!["l".to_owned(), "m".to_owned()])));
    assert_eq!(run(&mut o, "get_info", &strings(&["m"])), -errno::EIO);
}

#[test]
fn what_a_holder_is_known_by_is_what_every_release_reads() {
    let mut o = Memory::new();
    run(&mut o, "lock", &lock(EXCLUSIVE, "c", "t", 0, 0));
    let (_, out) = o.call("lock", "get_info", &strings(&["l"]));
    let mut e = Encoder::new();
    e.versioned(1, 1, |e| {
        e.u32(1);
        e.versioned(1, 1, |e| {
            e.put(&EntityName::client(1));
            e.str("c");
        });
        e.versioned(1, 1, |e| {
            e.put(&UTime::ZERO);
            e.put(&EntityAddr { kind: EntityAddr::KIND_LEGACY, ..o.caller.addr });
            e.str("what for");
        });
        e.u8(EXCLUSIVE);
        e.str("t");
    });
    assert_eq!(out, e.into_bytes());
    assert_eq!(o.attrs[&b"lock.l"[..]], out);
}

fn version(number: u64, tag: &str) -> impl Fn(&mut Encoder) {
    let tag = tag.to_owned();
    move |e| {
        e.versioned(1, 1, |e| {
            e.u64(number);
            e.str(&tag);
        });
    }
}

fn conditions(all: &[(u64, &str, u32)]) -> Vec<u8> {
    input(1, |e| {
        version(0, "")(e);
        e.list(all, |e, (number, tag, how)| {
            e.versioned(1, 1, |e| {
                version(*number, tag)(e);
                e.u32(*how);
            });
        });
    })
}

#[test]
fn a_version_is_set_counted_and_compared() {
    let mut o = Memory::new();
    let read = |o: &mut Memory| o.call("version", "read", b"").1;
    assert_eq!(read(&mut o), input(1, |e| version(0, "")(e)));
    assert_eq!(o.call("version", "inc", &conditions(&[])).0, 0);
    let made = read(&mut o);
    assert_eq!((made[12], made.len()), (2, 48), "one more than the first, with a tag");
    assert_eq!(o.call("version", "set", &input(1, |e| version(5, "t")(e))).0, 0);
    for (condition, holds) in [
        ((6, "x", 0), true),
        ((5, "t", 1), true),
        ((5, "x", 1), false),
        ((4, "", 2), true),
        ((5, "", 2), false),
        ((5, "", 3), true),
        ((6, "", 3), false),
        ((6, "", 4), true),
        ((5, "", 4), false),
        ((5, "", 5), true),
        ((4, "", 5), false),
        ((0, "t", 6), true),
        ((0, "x", 6), false),
        ((0, "x", 7), true),
        ((0, "t", 7), false),
    ] {
        let want = if holds { 0 } else { -errno::ECANCELED };
        assert_eq!(
            o.call("version", "check_conds", &conditions(&[condition])).0,
            want,
            "{condition:?}"
        );
        let mut copy = o.clone();
        assert_eq!(
            copy.call("version", "inc_conds", &conditions(&[condition])).0,
            want,
            "{condition:?}"
        );
        let counted = input(1, |e| version(if holds { 6 } else { 5 }, "t")(e));
        assert_eq!(read(&mut copy), counted);
    }
}

fn reference(name: &str, implicit: bool) -> Vec<u8> {
    input(1, |e| {
        e.str(name);
        e.bool(implicit);
    })
}

#[test]
fn the_last_reference_takes_the_object_along() {
    let mut o = Memory::new();
    let run = |o: &mut Memory, method: &str, name: &str, implicit: bool| {
        o.call("refcount", method, &reference(name, implicit)).0
    };
    assert_eq!(run(&mut o, "get", "a", true), -errno::ENOENT);
    o.exists = true;
    assert_eq!(run(&mut o, "put", "a", false), -errno::EINVAL, "nobody ever referred to it");
    let never = o.clone();
    assert_eq!(run(&mut o, "put", "a", true), 0, "the implicit reference");
    assert!(!o.exists);
    o = never;
    assert_eq!(run(&mut o, "get", "a", true), 0);
    let (_, out) = o.call("refcount", "read", &input(1, |e| e.bool(true)));
    assert_eq!(out, input(1, |e| e.put(&vec![String::new(), "a".to_owned()])));
    assert_eq!(run(&mut o, "put", "b", false), 0, "unknown");
    assert_eq!(run(&mut o, "put", "b", true), 0, "drops the implicit one");
    assert_eq!(run(&mut o, "put", "b", true), 0, "counts once");
    assert!(o.exists);
    assert_eq!(run(&mut o, "put", "a", true), 0);
    assert!(!o.exists);
    o.exists = true;
    assert_eq!(o.call("refcount", "set", &input(1, |e| e.put(&vec!["x".to_owned()]))).0, 0);
    assert_eq!(
        o.call("refcount", "read", &input(1, |e| e.bool(true))).1,
        input(1, |e| e.put(&vec!["x".to_owned()]))
    );
    assert_eq!(o.call("refcount", "set", &input(1, |e| e.put(&Vec::<String>::new()))).0, 0);
    assert!(!o.exists);
}

#[test]
fn numbers_in_the_omap_are_added_and_multiplied() {
    let mut o = Memory::new();
    let mut run = |method: &str, value: &str| {
        let args = input(0, |e| {
            e.str("k");
            e.str(value);
        });
        let (result, _) = o.call("numops", method, &args);
        (result, o.omap.get(&b"k"[..]).cloned().unwrap_or_default())
    };
    assert_eq!(run("add", "2.5"), (0, "2.5".into()));
    assert_eq!(run("mul", "-3"), (0, "-7.5".into()));
    assert_eq!(run("add", "x"), (-errno::EINVAL, "-7.5".into()));
    o.omap.insert("k".into(), "spoilt".into());
    let args = input(0, |e| {
        e.str("k");
        e.str("1");
    });
    assert_eq!(o.call("numops", "add", &args).0, -errno::EBADMSG);
}

#[test]
fn the_example_greets() {
    let mut o = Memory::new();
    assert_eq!(o.call("hello", "say_hello", b""), (0, "Hello, world!".into()));
    assert_eq!(o.call("hello", "say_hello", &[b'x'; 101]).0, -errno::EINVAL);
    assert_eq!(o.call("hello", "record_hello", b"me").0, 0);
    assert_eq!(o.call("hello", "record_hello", b"me").0, -errno::EEXIST);
    assert_eq!(o.call("hello", "replay", b""), (0, "Hello, me!".into()));
    assert_eq!(o.call("hello", "turn_it_to_11", b"").0, 0);
    assert_eq!(o.call("hello", "replay", b""), (0, "HELLO, ME!".into()));
    assert_eq!(o.attrs[&b"said_by"[..]], "client.1 v2:127.0.0.1:0/77");
}

#[test]
fn no_class_and_no_method_stands_twice() {
    let names: Vec<_> =
        CLASSES.iter().flat_map(|c| c.methods.iter().map(|m| (c.name, m.name))).collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    assert!(CLASSES.is_sorted_by_key(|c| c.name));
}
