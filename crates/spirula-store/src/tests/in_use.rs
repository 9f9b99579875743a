//! Devices that lie while a store is in use: a write that is acknowledged and lost, or arrives
//! elsewhere, a bit that flips. What is read then, or after a crash or a close, is right or an
//! error; nothing that was acknowledged is gone without a word.

use super::model::{Model, Walk, object, pattern};
use super::sim::Fault;
use super::{create, create_single, open, tiny};
use crate::{Store, StoreError, StoreOptions};
use bytes::Bytes;
use spirula_types::transaction::{ObjectOp, Transaction};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Is that what a store says of damage?
fn told(e: &StoreError) -> bool {
    matches!(
        e,
        StoreError::Checksum { .. }
            | StoreError::Corrupt(_)
            | StoreError::Io { .. }
            | StoreError::Poisoned(_)
            | StoreError::Refused { .. }
    )
}

/// Reads everything. True if something was an error; panics where something is wrong without a
/// word.
fn look(store: &Store, model: &Model, what: &str) -> bool {
    let mut errors = 0;
    let mut check = |right: Result<bool, StoreError>, part: &str| match right {
        Ok(right) => assert!(right, "{what}: {part} is wrong, and nobody says so"),
        Err(e) => {
            assert!(told(&e), "{what}: {part}: {e}");
            errors += 1;
        }
    };
    for (name, o) in &model.objects {
        check(
            store.stat(name).map(|s| s.is_some_and(|s| s.size == o.data.len() as u64)),
            "an object",
        );
        check(
            store.read_blocking(name, 0, u64::MAX).map(|d| d.is_some_and(|d| d == o.data)),
            "data",
        );
        let attrs = store.attrs(name).map(|a| a.map(|a| a.into_iter().collect::<BTreeMap<_, _>>()));
        check(attrs.map(|a| a.as_ref() == Some(&o.attrs)), "attributes");
        let omap = store.omap_range(name, None, b"", usize::MAX, usize::MAX);
        let omap = omap.map(|p| p.map(|p| p.pairs.into_iter().collect::<BTreeMap<_, _>>()));
        check(omap.map(|p| p.as_ref() == Some(&o.omap)), "omap");
    }
    for (pg, log) in &model.logs {
        check(store.log_entries(*pg).map(|l| l == *log), "log");
    }
    errors > 0
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It never came.
    Missed,
    Told,
    Harmless,
}

fn lie(fault: Option<Fault>, seed: u64) -> Verdict {
    let opts =
        StoreOptions { size: 1 << 20, cache_bytes: [0, 48 << 10][seed as usize % 2], ..tiny() };
    let world = if seed % 4 < 2 { create(&opts) } else { create_single(&opts) };
    let what = format!("{fault:?}, seed {seed}");
    let mut walk = Walk::new(seed);
    let mut store = open(&world, &opts).unwrap();
    let mut is_told = false;
    for step in 0..70 {
        if step == 20 {
            store.flush().unwrap();
            world.inject(fault);
            if fault.is_none() {
                // Anywhere but on both copies of a label at once.
                let dev = walk.rng.below(world.count() as u64) as usize;
                let bits = world.image().devices[dev].len() as u64 * 8;
                world.rot(dev, walk.rng.below(bits));
            }
        }
        // A part of a block that cannot be read is not written.
        if let Err(e) = walk.step(&mut store, step) {
            assert!(told(&e), "{what}: {e}");
            is_told = true;
            if matches!(e, StoreError::Poisoned(_)) {
                break;
            }
        }
        if step % 10 == 9 {
            is_told |= store.flush().is_err();
            is_told |= look(&store, walk.now(), &what);
        }
    }
    let struck = fault.is_none() || world.struck();
    world.disarm();
    // What was acknowledged; the rest may be there or not.
    let models = walk.models;
    let acked = if store.flush().is_ok() { models.len() - 1 } else { 0 };
    // An idle moment, however late it comes: the last frame is marked as durable.
    for _ in 0..60_000 {
        if store.shared.check().is_err() || store.shared.rests() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    if seed.is_multiple_of(3) {
        is_told |= store.close().is_err();
    } else {
        drop(store);
    }
    match open(&world, &opts) {
        Err(e) => {
            assert!(told(&e), "{what}: {e}");
            is_told = true;
        }
        Ok(store) => {
            let seq = store.last_seq() as usize;
            assert!(
                is_told || seq >= acked,
                "{what}: {} acknowledged transactions are gone, without a word",
                acked - seq
            );
            is_told |= seq < acked || look(&store, &models[seq.min(models.len() - 1)], &what);
            is_told |= crate::tools::check(&store, true)
                .map_or(true, |c| !c.problems.is_empty() || !c.notes.is_empty());
        }
    }
    match (struck, is_told) {
        (false, _) => Verdict::Missed,
        (true, true) => Verdict::Told,
        (true, false) => Verdict::Harmless,
    }
}

/// Lets every n-th write lie; some must be told.
pub(crate) fn every_nth_lies(kind: fn(u64) -> Fault, count: u64) {
    let verdicts: Vec<Verdict> = (0..count).map(|n| lie(Some(kind(n)), n * 7 + 1)).collect();
    let of = |v| verdicts.iter().filter(|w| **w == v).count() as u64;
    println!("{count}: {} told, {} harmless", of(Verdict::Told), of(Verdict::Harmless));
    assert!(of(Verdict::Told) > count / 20, "of {count} {} were told", of(Verdict::Told));
    assert!(of(Verdict::Missed) < count / 2, "{} never came", of(Verdict::Missed));
}

#[test]
fn every_nth_write_may_be_lost_in_use() {
    every_nth_lies(Fault::Lost, 80);
}

#[test]
fn every_nth_write_may_be_misdirected_in_use() {
    every_nth_lies(Fault::Misdirected, 80);
}

#[test]
fn bits_may_flip_in_use() {
    let mut verdicts = Vec::new();
    // Most of a device holds nothing: of 120 one or two are told, now and then none.
    for n in 0..600 {
        if n >= 120 && verdicts.contains(&Verdict::Told) {
            break;
        }
        verdicts.push(lie(None, 500 + n));
    }
    assert!(
        verdicts.contains(&Verdict::Told) && verdicts.contains(&Verdict::Harmless),
        "{verdicts:?}"
    );
}

/// A sector that rots under a removed omap costs its space, not the store.
#[test]
fn a_rotten_leaf_of_a_removed_omap_stops_nothing() {
    let opts = StoreOptions { cache_bytes: 1 << 20, ..tiny() };
    let world = create(&opts);
    let one = |n, op| {
        let mut t = Transaction::default();
        t.object(&object(n), op);
        t
    };
    let key = |n: u64| Bytes::from(format!("key-{n:04}"));
    let mut store = open(&world, &opts).unwrap();
    for o in [1, 2] {
        let pairs = (0..400).map(|n| (key(n), pattern(1000 * o + n, 100))).collect();
        store.submit(one(o, ObjectOp::OmapSet(pairs))).unwrap();
    }
    store.close().unwrap();
    // The value of a pair in the middle, wherever it is.
    let value = pattern(1200, 100);
    world.edit(2, |device| {
        let at = device
            .windows(value.len())
            .position(|w| w == &value[..])
            .expect("a leaf with that pair");
        device[at + 50] ^= 4;
    });
    let mut store = open(&world, &opts).unwrap();
    assert!(
        store.omap_get(&object(1), &[key(200)]).is_err(),
        "the damage is not where it should be"
    );
    store.submit(one(1, ObjectOp::Remove)).unwrap();
    for round in 0..3 {
        store.submit(one(2, ObjectOp::Remove)).unwrap();
        store.submit(one(3, ObjectOp::OmapSet(vec![(key(round), pattern(round, 100))]))).unwrap();
        // A checkpoint, and what is purged after it.
        store.close().unwrap_or_else(|e| panic!("round {round}: {e}"));
        store = open(&world, &opts).unwrap();
        store.wait(|s| s.dead.load(Ordering::Acquire) == 0);
        store.shared.check().unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(store.omap_get(&object(3), &[key(round)]).unwrap().unwrap().len(), 1);
    }
    let omaps = store.meta.range(b"D", b"E").count();
    assert_eq!(omaps, 1, "one is known to take space, the other one is gone");
}

/// A leaf that becomes too small is joined with the next one; where that one is rotten it stays
/// small.
#[test]
fn a_rotten_leaf_stops_no_removal_of_what_lies_before_it() {
    let opts = StoreOptions { cache_bytes: 1 << 20, ..tiny() };
    let world = create(&opts);
    let key = |n: u64| Bytes::from(format!("key-{n:04}"));
    let of = |op| {
        let mut t = Transaction::default();
        t.object(&object(1), op);
        t
    };
    let mut store = open(&world, &opts).unwrap();
    store
        .submit(of(ObjectOp::OmapSet((0..400).map(|n| (key(n), pattern(1000 + n, 100))).collect())))
        .unwrap();
    store.close().unwrap();
    let value = pattern(1200, 100);
    world.edit(2, |device| {
        let at = device
            .windows(value.len())
            .position(|w| w == &value[..])
            .expect("a leaf with that pair");
        device[at + 50] ^= 4;
    });
    let mut store = open(&world, &opts).unwrap();
    let bad = |store: &Store, n: u64| store.omap_get(&object(1), &[key(n)]).is_err();
    let first = (0..400).find(|n| bad(&store, *n)).unwrap();
    assert!(first > 50 && bad(&store, 200), "the damage is not where it should be: {first}");
    // But for a few at the end of the leaf before.
    store.submit(of(ObjectOp::OmapRm((1..first - 2).map(key).collect()))).unwrap();
    store.close().unwrap_or_else(|e| panic!("stopped by a leaf that it does not need: {e}"));
    let mut store = open(&world, &opts).unwrap();
    for n in [0, first - 2, first - 1] {
        assert_eq!(
            store.omap_get(&object(1), &[key(n)]).unwrap().unwrap()[0].1,
            pattern(1000 + n, 100),
            "{n}"
        );
    }
    assert!(store.omap_get(&object(1), &[key(1)]).unwrap().unwrap().is_empty() && bad(&store, 200));
    // The next one writes the same leaf again.
    store.submit(of(ObjectOp::OmapSet(vec![(key(0), pattern(1, 10))]))).unwrap();
    store.close().unwrap();
    open(&world, &opts).unwrap();
}
