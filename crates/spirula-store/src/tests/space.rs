//! No space: every n-th allocation fails, data fills a device in pieces to the last block,
//! metadata fills its own. A transaction has no effect then; reads and deletes go on.

use super::model::{Model, object, pattern, random_txn};
use super::sim::{Rng, World};
use super::{IDENTITY, create, create_single, open, sound, tiny};
use crate::alloc::PhysRun;
use crate::device::BlockDevice;
use crate::layout::Layout;
use crate::pack::Packed;
use crate::{BLOCK, Store, StoreError, StoreOptions};
use bytes::Bytes;
use spirula_types::HObject;
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, PgId};
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn remove(o: &HObject) -> Transaction {
    let mut t = Transaction::default();
    t.object(o, ObjectOp::Remove);
    t
}

/// Submits; true if it was done, false if there is no space for it and it had no effect.
fn fits(store: &mut Store, model: &mut Model, t: &Transaction, what: &str) -> bool {
    match store.submit(t) {
        Ok(_) => {
            model.apply(t);
            true
        }
        Err(StoreError::NoSpace { .. }) => false,
        Err(e) => panic!("{what}: {e}"),
    }
}

/// What is deleted goes, whatever there is no space for.
fn must(store: &mut Store, model: &mut Model, t: &Transaction, what: &str) {
    assert!(fits(store, model, t, what), "{what}: no space to delete");
}

fn reopened(store: Store, world: &World, opts: &StoreOptions, model: &Model, what: &str) -> Store {
    store.close().unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut store = open(world, opts).unwrap_or_else(|e| panic!("{what}: {e}"));
    model.check(&mut store, what);
    sound(&store, what);
    store
}

/// The n-th allocation of a workload fails, or all from then on. Returns whether it came.
fn survive(n: u64, for_good: bool, single: bool) -> bool {
    let what = format!("allocation {n} fails, for good: {for_good}, one device: {single}");
    let opts = StoreOptions { size: 1 << 20, ..tiny() };
    let world = if single { create_single(&opts) } else { create(&opts) };
    let (mut rng, mut model) = (Rng(n * 4 + u64::from(single)), Model::default());
    let mut store = open(&world, &opts).unwrap();
    store.alloc().failing = Some((n, for_good));
    let mut refused = 0;
    for step in 0..100 {
        let t = random_txn(&mut rng, &model, step + 1, false);
        if !fits(&mut store, &mut model, &t, &what) {
            refused += 1;
            model.check(&mut store, &what);
            if let Some(o) = model.objects.keys().next().cloned().filter(|_| refused % 4 == 0) {
                must(&mut store, &mut model, &remove(&o), &what);
            }
        }
    }
    model.check(&mut store, &what);
    let came = store.alloc().failed > 0;
    if for_good {
        for o in model.objects.keys().cloned().collect::<Vec<_>>() {
            must(&mut store, &mut model, &remove(&o), &what);
        }
        assert!(refused > 0 || !came, "{what}: nobody noticed");
        store.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
        store.alloc().failing = None;
    }
    let mut store = reopened(store, &world, &opts, &model, &what);
    let mut t = Transaction::default();
    t.object(&object(1), ObjectOp::Write { offset: 0, data: pattern(n, 9000) });
    must(&mut store, &mut model, &t, &what);
    reopened(store, &world, &opts, &model, &what);
    came
}

fn every_nth(for_good: bool) {
    let came = (0..60).filter(|n| survive(*n, for_good, n % 2 == 0)).count();
    assert!(came > 30, "of 60 failures {came} came");
}

#[test]
pub(crate) fn every_nth_allocation_may_fail_once() {
    every_nth(false);
}

#[test]
fn every_allocation_from_the_nth_on_may_fail() {
    every_nth(true);
}

/// An object of `len` bytes with what a PG adds to it.
fn whole(n: u64, len: usize, pairs: u64) -> Transaction {
    let mut t = Transaction::default();
    let o = object(n);
    t.object(&o, ObjectOp::Write { offset: 0, data: pattern(n * 3 + 1, len) });
    t.object(&o, ObjectOp::SetAttrs(vec![("_".into(), pattern(n, 250))]));
    let pair = |k: u64| (Bytes::from(format!("key-{k}")), pattern(n + k, 80));
    t.object(&o, ObjectOp::OmapSet((0..pairs).map(pair).collect()));
    t.meta.push(MetaOp::LogAppend {
        pg: PgId::new(1, 0),
        version: EVersion::new(1, n + 1),
        entry: pattern(n, 150),
    });
    t
}

/// Fills with objects of these sizes in turn until not even the smallest fits.
fn fill(store: &mut Store, model: &mut Model, next: &mut u64, sizes: &[usize], what: &str) -> u64 {
    let (mut had, mut refused) = (0, 0);
    while refused < sizes.len() {
        *next += 1;
        let t = whole(*next, sizes[*next as usize % sizes.len()], 4);
        if fits(store, model, &t, what) {
            (had, refused) = (had + 1, 0);
        } else {
            refused += 1;
        }
    }
    had
}

#[test]
fn full_and_fragmented_devices_are_filled_again_and_again_and_every_delete_succeeds() {
    for single in [true, false] {
        let opts = StoreOptions { size: 6 << 20, ..tiny() };
        let world = if single { create_single(&opts) } else { create(&opts) };
        let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
        let mut next = 0;
        for round in 0..5 {
            let what = format!("one device: {single}, round {round}");
            let sizes: &[usize] =
                [&[4096, 30_000][..], &[12_288, 4096, 70_000], &[4096]][round % 3];
            let had = fill(&mut store, &mut model, &mut next, sizes, &what);
            // On one device data leaves, once in pieces, no chunks for more metadata, and that
            // may be what ends a round early, at a point that depends on the checkpoints.
            assert!(had > 30 || (single && round > 0), "{what}: {had} objects");
            if round == 0 {
                model.check(&mut store, &what);
            }
            // Every second one goes, one a transaction.
            for (i, o) in model.objects.keys().cloned().collect::<Vec<_>>().iter().enumerate() {
                if i % 2 == 0 {
                    must(&mut store, &mut model, &remove(o), &what);
                }
            }
            store = reopened(store, &world, &opts, &model, &what);
        }
        let what = format!("one device: {single}, in the end");
        fill(&mut store, &mut model, &mut next, &[4096, 8192], &what);
        for o in model.objects.keys().cloned().collect::<Vec<_>>() {
            must(&mut store, &mut model, &remove(&o), &what);
        }
        store = reopened(store, &world, &opts, &model, &what);
        assert_eq!(store.statfs().used, 0, "{what}");
        assert!(fill(&mut store, &mut model, &mut next, &[70_000], &what) > 30, "{what}");
    }
}

#[test]
pub(crate) fn metadata_that_fills_its_device_is_refused_and_can_be_deleted() {
    for single in [true, false] {
        let opts = StoreOptions { size: 2 << 20, ..tiny() };
        let world = if single { create_single(&opts) } else { create(&opts) };
        let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
        let mut next = 0;
        for round in 0..3 {
            let what = format!("one device: {single}, round {round}");
            let mut had = 0;
            loop {
                next += 1;
                if !fits(
                    &mut store,
                    &mut model,
                    &whole(next, 0, [60, 60, 500][next as usize % 3]),
                    &what,
                ) {
                    break;
                }
                had += 1;
                assert!(had < 5000, "{what}: metadata has no end");
            }
            assert!(had > 20, "{what}: {had} objects");
            model.check(&mut store, &what);
            store = reopened(store, &world, &opts, &model, &what);
            // Half, or all.
            let names: Vec<_> = model.objects.keys().cloned().collect();
            for o in names.iter().step_by(2 - round % 2) {
                must(&mut store, &mut model, &remove(o), &what);
            }
            let mut t = Transaction::default();
            t.meta.push(MetaOp::LogTrim { pg: PgId::new(1, 0), to: EVersion::new(1, next) });
            must(&mut store, &mut model, &t, &what);
            store = reopened(store, &world, &opts, &model, &what);
        }
    }
}

/// Marks what is kept to undo deletions.
const UNDO: i64 = 1 << spirula_types::POOL_BITS;

/// What an erasure-coded pool keeps of an object that it deletes, until that can be undone no more.
fn undo(o: &HObject) -> HObject {
    HObject { pool: o.pool | UNDO, snap: 7, ..o.clone() }
}

/// A deletion in an erasure-coded pool.
fn delete_kept(o: &HObject) -> Transaction {
    let mut t = Transaction::default();
    t.object(&undo(o), ObjectOp::CloneFrom(o.clone()));
    t.object(o, ObjectOp::Remove);
    t
}

/// A deletion of what a snapshot shows.
fn delete_shown(o: &HObject) -> Transaction {
    let mut t = Transaction::default();
    let clone = HObject { snap: 9, ..o.clone() };
    t.object(&clone, ObjectOp::CloneFrom(o.clone()));
    t.object(&clone, ObjectOp::RmAttr("_".into()));
    t.object(&clone, ObjectOp::SetAttrs(vec![("_".into(), pattern(1, 200))]));
    t.object(o, ObjectOp::Remove);
    t.object(o, ObjectOp::SetAttrs(vec![("snapset".into(), pattern(2, 40))]));
    t
}

/// Where there is no room for metadata, objects of an erasure-coded pool can be deleted and
/// deletions be undone all the same, and no checkpoint fails for them: even if nothing of what is
/// kept goes before all is deleted.
#[test]
pub(crate) fn erasure_coded_deletions_and_their_undoing_need_no_room_for_metadata() {
    for (single, all) in [(true, false), (false, false), (true, true), (false, true)] {
        let opts = StoreOptions { size: 3 << 20, ..tiny() };
        let world = if single { create_single(&opts) } else { create(&opts) };
        let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
        let (what, mut next) = (format!("one device: {single}, all at once: {all}"), 0);
        // Small objects, so that names are much of it.
        while fits(
            &mut store,
            &mut model,
            &whole(next, if next % 16 == 0 { 3000 } else { 0 }, next % 3),
            &what,
        ) {
            next += 1;
        }
        assert!(next > 100, "{what}: {next} objects");
        let names: Vec<_> = model.objects.keys().cloned().collect();
        let mut refused = 0;
        for (n, o) in names.iter().enumerate() {
            let mut add = Transaction::default();
            add.object(&object(next + 1), ObjectOp::OmapSet(vec![("k".into(), pattern(1, 100))]));
            refused += u64::from(!fits(&mut store, &mut model, &add, &what));
            let mut t = delete_kept(o);
            t.meta.push(MetaOp::LogAppend {
                pg: PgId::new(1, 0),
                version: EVersion::new(2, n as u64 + 1),
                entry: pattern(n as u64, 150),
            });
            t.meta
                .push(MetaOp::LogTrim { pg: PgId::new(1, 0), to: EVersion::new(1, n as u64 + 1) });
            must(&mut store, &mut model, &t, &what);
            if n % 10 == 0 {
                let mut back = Transaction::default();
                back.object(o, ObjectOp::CloneFrom(undo(o)));
                back.object(&undo(o), ObjectOp::Remove);
                must(&mut store, &mut model, &back, &what);
                must(&mut store, &mut model, &delete_shown(o), &what);
                must(&mut store, &mut model, &delete_kept(o), &what);
            }
            if !all {
                must(&mut store, &mut model, &remove(&undo(o)), &what);
            }
        }
        assert!(!all || refused > 10, "{what}: there was room at all times");
        store = reopened(store, &world, &opts, &model, &what);
        for o in names.iter().filter(|_| all) {
            must(&mut store, &mut model, &remove(&undo(o)), &what);
        }
        reopened(store, &world, &opts, &model, &what);
    }
}

fn pair(n: u64, len: usize) -> Transaction {
    let mut t = Transaction::default();
    t.object(
        &object(n),
        ObjectOp::OmapSet(vec![(Bytes::from(format!("key-{n}")), pattern(n, len))]),
    );
    t
}

/// Large records between two checkpoints: what one of them was promised neither another nor data
/// gets, and the checkpoint stores them all.
#[test]
pub(crate) fn room_for_large_records_is_promised_once() {
    // Nothing makes a checkpoint due.
    let opts =
        StoreOptions { size: 48 << 20, journal_size: 4 << 20, cache_bytes: 256 << 20, ..tiny() };
    let world = create_single(&opts);
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    let what = "large records";
    // As many as there seems to be room for at once, while each asks alone.
    let mut taken = 0;
    while store.try_submit(&pair(taken, 1_500_000), &Packed::default()).is_ok() {
        model.apply(&pair(taken, 1_500_000));
        taken += 1;
    }
    assert!(taken > 1, "{taken} taken");
    for (n, len) in [(100, 1 << 20), (200, 4096)] {
        for i in 0.. {
            let mut t = Transaction::default();
            t.object(
                &object(n + i / 100),
                ObjectOp::Write { offset: i % 100 * len as u64, data: pattern(i, len) },
            );
            match store.try_submit(&t, &Packed::default()) {
                Ok(_) => model.apply(&t),
                Err(StoreError::NoSpace { .. }) => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    let mut store = reopened(store, &world, &opts, &model, what);
    model.check(&mut store, what);
}

/// What the last transaction frees is told as free when it is, though no other transaction comes:
/// its blocks may be written after it was acknowledged, and whoever looks at the space then sees it
/// all the same.
#[test]
fn what_the_last_transaction_frees_is_told_as_free() {
    let opts = StoreOptions { size: 32 << 20, ..tiny() };
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    for n in 0..50 {
        let mut t = Transaction::default();
        t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(n, 1 << 20) });
        store.submit(&t).unwrap();
        store.submit(remove(&object(n))).unwrap();
        store.flush().unwrap();
        let begun = std::time::Instant::now();
        while store.statfs().used > 0 {
            assert!(begun.elapsed() < Duration::from_secs(120), "round {n}: {:?}", store.statfs());
            std::thread::yield_now();
        }
    }
}

/// Blocks with changes beside the journal are free after the next checkpoint: who needs them waits
/// for it.
#[test]
pub(crate) fn what_is_beside_the_journal_is_waited_for() {
    // Nothing makes a checkpoint due.
    let opts =
        StoreOptions { size: 32 << 20, journal_size: 1 << 20, cache_bytes: 256 << 20, ..tiny() };
    let world = create_single(&opts);
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    for n in 0..6 {
        // The same key again and again: in the end there is one.
        let mut t = Transaction::default();
        t.object(&object(1), ObjectOp::OmapSet(vec![("k".into(), pattern(n, 200_000))]));
        must(&mut store, &mut model, &t, "beside");
    }
    assert!(!store.beside.is_empty());
    let mut n = 0;
    loop {
        n += 1;
        let mut t = Transaction::default();
        t.object(&object(100 + n), ObjectOp::Write { offset: 0, data: pattern(n, 1 << 20) });
        if !fits(&mut store, &mut model, &t, "beside") {
            break;
        }
    }
    assert!(
        store.beside.is_empty() && store.booked.is_empty(),
        "no space, and some is held for what is over"
    );
    reopened(store, &world, &opts, &model, "beside");
}

/// Fills a device at random with data, omaps, attributes and long keys until nothing fits, whatever
/// its size; then all that removes or cuts is done, in any order.
pub(crate) fn recovers_by_deletion(seed: u64) {
    let what = format!("seed {seed}");
    println!("{what}");
    let mut rng = Rng(seed * 7 + 1);
    let (size, cache) =
        [(6 << 20, 48 << 10), (20 << 20, 256 << 10), (40 << 20, 4 << 20)][rng.below(3) as usize];
    let opts = StoreOptions { size, cache_bytes: cache, ..tiny() };
    let world = if rng.below(4) > 0 { create_single(&opts) } else { create(&opts) };
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    for round in 0..2 {
        let (mut refused, mut next) = (0, 0);
        // By turns large and small: what is left in the end is next to nothing.
        while refused < 60 {
            next += 1;
            let n = rng.below(60);
            let small = refused > 20;
            let len =
                |rng: &mut Rng, most: u64| 1 + rng.below(if small { 4096 } else { most }) as usize;
            let mut t = Transaction::default();
            let op = match rng.below(10) {
                0..5 => {
                    let len = len(&mut rng, 200_000);
                    ObjectOp::Write { offset: rng.below(1 << 20), data: pattern(next, len) }
                }
                5..7 => {
                    let pairs = 1 + rng.below(if small { 2 } else { 300 });
                    ObjectOp::OmapSet(
                        (0..pairs)
                            .map(|k| (Bytes::from(format!("key-{next}-{k}")), pattern(k, 100)))
                            .collect(),
                    )
                }
                7 => {
                    let (k, v) = (len(&mut rng, 50_000), len(&mut rng, 100_000));
                    ObjectOp::OmapSet(vec![(
                        Bytes::from([vec![b'l'; k], next.to_be_bytes().to_vec()].concat()),
                        pattern(next, v),
                    )])
                }
                8 => {
                    let v = len(&mut rng, 60_000);
                    ObjectOp::SetAttrs(vec![(
                        Bytes::from(format!("a{}", next % 5)),
                        pattern(next, v),
                    )])
                }
                _ => ObjectOp::Zero { offset: rng.below(1 << 20), length: 1 + rng.below(100_000) },
            };
            t.object(&object(n), op);
            let grows = !matches!(t.objects[0].ops[0], ObjectOp::Zero { .. });
            if fits(&mut store, &mut model, &t, &what) {
                refused = if grows { 0 } else { refused };
            } else {
                assert!(grows, "{what}: no space to make a hole");
                refused += 1;
            }
        }
        if rng.below(2) == 0 {
            store = reopened(store, &world, &opts, &model, &what);
        }
        let mut names: Vec<_> = model.objects.keys().cloned().collect();
        while !names.is_empty() {
            let o = names[rng.below(names.len() as u64) as usize].clone();
            let mut t = Transaction::default();
            let op = match rng.below(8) {
                0 => ObjectOp::Truncate { size: rng.below(1 << 20) },
                1 => ObjectOp::Zero { offset: rng.below(1 << 20), length: 1 + rng.below(100_000) },
                2 => ObjectOp::OmapRmRange { first: "key-1".into(), last: "key-7".into() },
                3 => ObjectOp::RmAttr("a1".into()),
                4 => ObjectOp::OmapClear,
                5 if rng.below(2) == 0 && o.pool < UNDO => {
                    t = delete_kept(&o);
                    // Attributes that are large for such a device may need room of their own.
                    if fits(&mut store, &mut model, &t, &what) {
                        names.retain(|n| *n != o && *n != undo(&o));
                        names.push(undo(&o));
                    }
                    continue;
                }
                _ => {
                    names.retain(|n| *n != o);
                    ObjectOp::Remove
                }
            };
            t.object(&o, op);
            must(&mut store, &mut model, &t, &what);
            // Some go only in the second round.
            if round == 0 && names.len() < 10 {
                break;
            }
        }
        store = reopened(store, &world, &opts, &model, &what);
    }
    model.check(&mut store, &what);
}

#[test]
fn a_full_store_recovers_by_deletion_whatever_filled_it() {
    (0..10).for_each(recovers_by_deletion);
}

/// Freed space waits to be given back to the host; what was taken again of it by then is left
/// alone.
#[test]
pub(crate) fn space_that_was_taken_again_is_not_given_back() {
    let opts = StoreOptions { size: 8 << 20, ..tiny() };
    let world = create(&opts);
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    for (n, len) in [(1, 1 << 20), (2, 1 << 20), (3, 3 << 20)] {
        let mut t = Transaction::default();
        t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(n, len) });
        must(&mut store, &mut model, &t, "holes");
    }
    store.flush().unwrap();
    // What waits, though it was taken again: a large one, and a part of another.
    let blocks = store.alloc().blocks();
    let used: Vec<_> = (0..blocks).filter(|b| store.alloc().holds_data(*b)).collect();
    let runs = used
        .chunk_by(|a, b| a + 1 == *b)
        .map(|r| crate::alloc::PhysRun { start: r[0], len: r.len() as u64 });
    runs.for_each(|run| store.holes.freed(run, true));
    while store.holes.any() {
        store.holes.step();
    }
    let store = reopened(store, &world, &opts, &model, "holes");
    let mut store = reopened(store, &world, &opts, &model, "holes");
    model.check(&mut store, "holes");
}

/// Blocks of the data space that are free, and hold something.
fn kept_though_free(store: &Store) -> usize {
    let free = |b: &u64| !store.alloc().holds_data(*b);
    let (mut block, blocks) = ([0; BLOCK as usize], store.alloc().blocks());
    (0..blocks)
        .filter(free)
        .filter(|b| {
            store.block.read_at(&mut block, b * BLOCK).unwrap();
            block.iter().any(|b| *b != 0)
        })
        .count()
}

/// A store on a host with next to no room, an object of which has just been deleted.
fn deleted_on_a_full_host(opts: &StoreOptions) -> (World, Store, Model) {
    let world = create(opts);
    world.set_room(Some(512 << 20));
    let (mut store, mut model) = (open(&world, opts).unwrap(), Model::default());
    for n in 1..=40 {
        let mut t = Transaction::default();
        t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(n * 3 + 1, 64 << 10) });
        must(&mut store, &mut model, &t, "written");
    }
    store.flush().unwrap();
    // By twos: long runs, and what lies between.
    for n in (1..=40).filter(|n| n % 4 < 2) {
        must(&mut store, &mut model, &remove(&object(n)), "removed");
    }
    store.flush().unwrap();
    let seq = store.seq;
    store.wait(|s| s.written.load(std::sync::atomic::Ordering::Acquire) >= seq);
    (world, store, model)
}

#[test]
fn freed_space_that_was_forgotten_goes_back_to_the_host_all_the_same() {
    let opts = StoreOptions { size: 16 << 20, ..tiny() };
    let (world, mut store, model) = deleted_on_a_full_host(&opts);
    store.poll();
    // More than may wait comes after it, all of it in use again.
    let blocks = store.alloc().blocks();
    let used = (0..blocks).find(|b| store.alloc().holds_data(*b)).unwrap();
    (0..5000).for_each(|_| store.holes.freed(PhysRun { start: used, len: 1 }, true));
    while store.holes.any() {
        store.holes.step();
    }
    assert_eq!(kept_though_free(&store), 0, "blocks are kept from the host");
    let mut store = reopened(store, &world, &opts, &model, "holes");
    model.check(&mut store, "holes");
}

#[test]
fn what_waits_to_go_back_to_the_host_is_found_after_an_opening() {
    let opts = StoreOptions { size: 16 << 20, ..tiny() };
    let (world, store, model) = deleted_on_a_full_host(&opts);
    // It has waited for nothing yet.
    drop(store);
    let mut store = open(&world, &opts).unwrap();
    while store.holes.any() {
        store.holes.step();
    }
    assert_eq!(kept_though_free(&store), 0, "blocks are kept from the host");
    model.check(&mut store, "holes");
    sound(&store, "holes");
    // Nor does a device that has all its space lose any.
    store.close().unwrap();
    world.set_room(None);
    let store = open(&world, &opts).unwrap();
    store.holes.step();
    assert!(!store.holes.any());
}

/// Small objects that lay side by side leave a long run, though each leaves a short one.
#[test]
fn what_is_freed_in_small_pieces_goes_back_together() {
    let opts = StoreOptions { size: 64 << 20, ..tiny() };
    let world = create(&opts);
    world.set_room(Some(1 << 40));
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    for n in 1..=600 {
        let mut t = Transaction::default();
        t.object(
            &object(n),
            ObjectOp::Write { offset: 0, data: pattern(n * 3 + 1, BLOCK as usize) },
        );
        must(&mut store, &mut model, &t, "written");
    }
    store.flush().unwrap();
    for n in 1..=600 {
        must(&mut store, &mut model, &remove(&object(n)), "removed");
    }
    store.flush().unwrap();
    let seq = store.seq;
    store.wait(|s| s.written.load(std::sync::atomic::Ordering::Acquire) >= seq);
    store.poll();
    while store.holes.any() {
        store.holes.step();
    }
    assert!(
        kept_though_free(&store) < 300,
        "{} blocks are kept from the host",
        kept_though_free(&store)
    );
}

/// Changes too large for the journal lie in space of their own until a checkpoint.
#[test]
fn what_was_beside_the_journal_goes_back_to_the_host() {
    let opts = StoreOptions { size: 64 << 20, journal_size: 1 << 20, ..tiny() };
    let world = create(&opts);
    world.set_room(Some(1 << 40));
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    let settle = |store: &Store| {
        while store.holes.any() {
            store.holes.step();
        }
    };
    settle(&store);
    let mut t = Transaction::default();
    t.object(&object(1), ObjectOp::OmapSet(vec![("k".into(), pattern(4, 200_000))]));
    must(&mut store, &mut model, &t, "beside");
    assert!(!store.beside.is_empty());
    for n in 0..20_000 {
        let mut t = Transaction::default();
        t.meta.push(MetaOp::Set { key: "k".into(), value: pattern(n, 100) });
        must(&mut store, &mut model, &t, "until a checkpoint has it");
        store.flush().unwrap();
        if store.beside.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(store.beside.is_empty());
    settle(&store);
    assert_eq!(kept_though_free(&store), 0, "blocks are kept from the host");
    reopened(store, &world, &opts, &model, "beside");
}

/// A device that takes its time to give space back: says that it does, and goes on when told.
struct Slow(Arc<dyn BlockDevice>, Mutex<(Sender<()>, Receiver<()>)>);

impl BlockDevice for Slow {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.0.try_read_at(buf, offset)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.write_at(bufs, offset)
    }

    fn write_many(&self, bufs: &[&[u8]], runs: &[(u64, Range<usize>)]) -> io::Result<()> {
        self.0.write_many(bufs, runs)
    }

    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_durable(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let gate = self.1.lock().unwrap();
        let _ = gate.0.send(());
        let _ = gate.1.recv_timeout(Duration::from_secs(5));
        self.0.discard(offset, len)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// While space goes back to the host it is nobody's: who needs it waits for it.
#[test]
fn what_is_just_given_back_is_missed_by_nobody() {
    let opts = StoreOptions { size: 16 << 20, cache_bytes: 64 << 20, ..tiny() };
    let world = create(&opts);
    let ((began, begun), (go, gone)) = (channel(), channel());
    let mut devices = world.devices();
    devices.main = Arc::new(Slow(devices.main, Mutex::new((began, gone))));
    let layout = Layout::read(&devices, Some(IDENTITY)).unwrap();
    let none = || Box::new(|e: StoreError| panic!("{e}"));
    let mut store =
        Store::open_layout(layout, Vec::new(), &opts, Box::new(|_| {}), none()).unwrap();
    let all = store.alloc().free();
    store.holes.freed(PhysRun { start: 0, len: 400 }, true);
    let holes = store.holes.clone();
    let punch = std::thread::spawn(move || {
        while holes.any() {
            holes.step()
        }
    });
    begun.recv().unwrap();
    // The owner asks first; then the device is done.
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..100 {
            let _ = go.send(());
        }
    });
    let mut t = Transaction::default();
    let bytes = (all - store.reserve()) * BLOCK;
    t.object(&object(1), ObjectOp::Write { offset: 0, data: vec![1; bytes as usize].into() });
    store.submit(&t).unwrap();
    later.join().unwrap();
    punch.join().unwrap();
    store.close().unwrap();
}

/// A checkpoint is waited for only where it may find what is missing.
#[test]
fn what_no_checkpoint_can_make_room_for_is_refused_at_once() {
    // Nothing makes a checkpoint due.
    let opts =
        StoreOptions { size: 32 << 20, journal_size: 1 << 20, cache_bytes: 256 << 20, ..tiny() };
    let world = create_single(&opts);
    let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
    let mut t = Transaction::default();
    t.object(&object(1), ObjectOp::OmapSet(vec![("k".into(), pattern(1, 200_000))]));
    must(&mut store, &mut model, &t, "beside");
    store.flush().unwrap();
    assert!(!store.beside.is_empty());
    let before = store.frozen_seq;
    let mut t = Transaction::default();
    t.object(&object(2), ObjectOp::Write { offset: 0, data: pattern(1, 40 << 20) });
    assert!(!fits(&mut store, &mut model, &t, "more than there is"));
    assert_eq!(store.frozen_seq, before, "a checkpoint was made for nothing");
    reopened(store, &world, &opts, &model, "beside");
}
