//! What a store takes, it can keep, whatever its journal: requests at the limits of
//! [`spirula_types::limits`] and one past them, changes far larger than the ring, ranges of
//! many keys as one entry.

use super::crash::durable_only;
use super::model::{Model, object, pattern};
use super::sim::World;
use super::{create_single, open, open_stepped, sound, tiny};
use crate::{Store, StoreError, StoreOptions, keys};
use bytes::Bytes;
use spirula_types::limits::{ATTRS_STORED_MAX, KEY_MAX, TRANSACTION_MAX, VALUE_MAX};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, PgId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

fn of(op: ObjectOp) -> Transaction {
    let mut t = Transaction::default();
    t.object(&object(2), op);
    t
}

fn set(value: Bytes) -> Transaction {
    of(ObjectOp::OmapSet(vec![("k".into(), value)]))
}

fn pairs(from: u64, n: u64) -> Vec<(Bytes, Bytes)> {
    (from..from + n).map(|k| (Bytes::from(format!("key-{k:08}")), pattern(k * 3 + 1, 20))).collect()
}

/// Bytes that went through the journal's ring.
fn journaled(store: &mut Store) -> u64 {
    store.flush().unwrap();
    store.shared.ring_head.load(Ordering::Acquire)
}

/// Takes the transaction, keeps it through a kill and a replay, checkpoints it, and has it
/// after a proper close.
fn kept(what: &str, opts: &StoreOptions, txn: &Transaction) {
    let (world, mut model) = (create_single(opts), Model::default());
    let mut store = open(&world, opts).unwrap();
    store.submit(txn).unwrap_or_else(|e| panic!("{what}: {e}"));
    model.apply(txn);
    store.flush().unwrap();
    model.check(&mut store, what);
    drop(store);
    let mut store = open(&world, opts).unwrap_or_else(|e| panic!("{what}: does not open: {e}"));
    model.check(&mut store, what);
    sound(&store, what);
    store
        .close()
        .unwrap_or_else(|e| panic!("{what}: acknowledged, and never to be checkpointed: {e}"));
    let mut store = open(&world, opts).unwrap();
    model.check(&mut store, what);
    sound(&store, what);
}

/// Refuses the transaction, and works on as if it had never been.
fn refused(what: &str, store: &mut Store, txn: &Transaction) {
    match store.submit(txn) {
        Err(StoreError::TooLarge { .. }) => {}
        other => panic!("{what}: {other:?}"),
    }
    store.submit(of(ObjectOp::Touch)).unwrap_or_else(|e| panic!("{what}: stopped: {e}"));
}

/// One of several keys that are as long as any may be.
fn long_key(n: u8) -> Bytes {
    Bytes::from([vec![b'k'; KEY_MAX - 1], vec![n]].concat())
}

fn small() -> StoreOptions {
    StoreOptions { size: 1 << 30, cache_bytes: 1 << 20, ..tiny() }
}

#[test]
fn each_limit_is_met_whatever_the_journal() {
    // The smallest journal, and one that could hold all of it.
    for journal_size in [256 << 10, 512 << 20] {
        let opts = StoreOptions { journal_size, ..small() };
        let long = |n: usize| Bytes::from(vec![7; n]);
        kept("omap value", &opts, &set(long(VALUE_MAX)));
        kept("omap header", &opts, &of(ObjectOp::OmapSetHeader(long(VALUE_MAX))));
        kept(
            "keys",
            &opts,
            &of(ObjectOp::OmapSet((0..9).map(|n| (long_key(n), pattern(n.into(), 20))).collect())),
        );
        let (pg, version) = (PgId::new(1, 1), EVersion::new(1, 1));
        let entry = MetaOp::LogAppend { pg, version, entry: long(VALUE_MAX) };
        kept("log entry", &opts, &Transaction { meta: vec![entry], ..Transaction::default() });
        let record = MetaOp::Set { key: long_key(1), value: "v".into() };
        kept("record key", &opts, &Transaction { meta: vec![record], ..Transaction::default() });
        kept(
            "record",
            &opts,
            &Transaction {
                meta: vec![MetaOp::Set { key: "k".into(), value: long(VALUE_MAX) }],
                ..Transaction::default()
            },
        );
        let many = (0..ATTRS_STORED_MAX >> 20)
            .map(|n| (Bytes::from(format!("a{n:03}")), long((1 << 20) - 100)));
        kept("attributes", &opts, &of(ObjectOp::SetAttrs(many.collect())));
    }
}

#[test]
pub(super) fn one_past_each_limit_is_refused_and_stops_nothing() {
    let opts = small();
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    assert!(store.has_room_for(100 << 20, 1) && !store.has_room_for(1 << 30, 1));
    let long = |n: usize| Bytes::from(vec![7; n]);
    let meta = |op| Transaction { meta: vec![op], ..Transaction::default() };
    let (pg, version) = (PgId::new(1, 1), EVersion::new(1, 1));
    refused("omap value", &mut store, &set(long(VALUE_MAX + 1)));
    refused(
        "omap key",
        &mut store,
        &of(ObjectOp::OmapSet(vec![(long(KEY_MAX + 1), Bytes::new())])),
    );
    refused("omap header", &mut store, &of(ObjectOp::OmapSetHeader(long(VALUE_MAX + 1))));
    refused(
        "record",
        &mut store,
        &meta(MetaOp::Set { key: "k".into(), value: long(VALUE_MAX + 1) }),
    );
    refused(
        "record key",
        &mut store,
        &meta(MetaOp::Set { key: long(KEY_MAX + 1), value: Bytes::new() }),
    );
    refused(
        "attribute name",
        &mut store,
        &of(ObjectOp::SetAttrs(vec![(long(KEY_MAX + 1), Bytes::new())])),
    );
    // Values that each are within their limit, and too much together.
    let part = long(TRANSACTION_MAX / 4);
    let many = (0..4).map(|n| (Bytes::from(format!("k{n}")), part.clone())).collect();
    refused("transaction", &mut store, &of(ObjectOp::OmapSet(many)));
    refused(
        "log entry",
        &mut store,
        &meta(MetaOp::LogAppend { pg, version, entry: long(VALUE_MAX + 1) }),
    );
    // One by one as well as at once: what counts is what the object has in the end.
    let attr = |n: usize, len: usize| {
        of(ObjectOp::SetAttrs(vec![(Bytes::from(format!("a{n:03}")), long(len))]))
    };
    let half = ATTRS_STORED_MAX / 2;
    store.submit(attr(0, half - 100)).unwrap();
    refused("attributes", &mut store, &attr(1, half - 99));
    store.submit(attr(1, half - 100)).unwrap();
    refused("one attribute more", &mut store, &attr(2, 0));
    store.close().unwrap();
    assert_eq!(open(&world, &opts).unwrap().attrs(&object(2)).unwrap().unwrap().len(), 2);
}

#[test]
fn more_than_the_journal_holds_is_taken_again_and_again() {
    // 10 MB at a time, through a journal of 256 KiB, with the changes of others in between.
    let opts = StoreOptions { size: 256 << 20, cache_bytes: 1 << 20, ..tiny() };
    let (world, mut model) = (create_single(&opts), Model::default());
    let mut store = open(&world, &opts).unwrap();
    for n in 0..6 {
        for t in [
            of(ObjectOp::OmapSet(pairs(n * 50_000, 60_000))),
            of(ObjectOp::Write { offset: n * 3000, data: pattern(n, 30_000) }),
            of(ObjectOp::OmapRm(pairs(n * 50_000, 45_000).into_iter().map(|(k, _)| k).collect())),
        ] {
            store.submit(&t).unwrap();
            model.apply(&t);
        }
        if n == 3 {
            drop(store);
            store = open(&world, &opts).unwrap();
            // What was not durable yet is gone; it comes again.
            model = Model::default();
            store.submit(of(ObjectOp::Remove)).unwrap();
        }
    }
    model.check(&mut store, "at the end");
    sound(&store, "at the end");
    store.flush().unwrap();
    drop(store);
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "after a replay");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "after a close");
    assert!(store.beside.is_empty());
    sound(&store, "after a close");
}

#[test]
pub(super) fn changes_beside_the_journal_stay_until_a_checkpoint_has_them() {
    // A ring in which nothing of this makes a checkpoint due, and other data for nearly all the
    // blocks there are.
    let opts = StoreOptions { size: 16 << 20, cache_bytes: 64 << 20, ..tiny() };
    let (world, mut model) = (create_single(&opts), Model::default());
    let mut store = open(&world, &opts).unwrap();
    let checkpointed = |store: &Store| store.shared.checkpointed.load(Ordering::Acquire);
    let before = checkpointed(&store);
    let mut submit = |store: &mut Store, t: &Transaction| {
        store.submit(t).unwrap();
        model.apply(t);
        store.flush().unwrap();
    };
    submit(&mut store, &set(pattern(1, 100 << 10)));
    let beside = store.beside.iter().map(|(_, run)| run.len).sum::<u64>();
    assert!(beside > 0, "the changes went into the journal");
    for n in 0.. {
        if store.alloc().free() < (4 << 20) / 4096 {
            break;
        }
        let mut t = Transaction::default();
        t.object(&object(100 + n), ObjectOp::Write { offset: 0, data: pattern(n, 2 << 20) });
        submit(&mut store, &t);
    }
    assert_eq!(checkpointed(&store), before, "a checkpoint came: the story is another");
    drop(store);
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "after a replay");
    sound(&store, "after a replay");
}

#[test]
pub(super) fn a_range_of_keys_is_one_small_entry_and_gone_for_good() {
    let opts = StoreOptions { size: 128 << 20, cache_bytes: 4 << 20, ..tiny() };
    let (world, mut model) = (create_single(&opts), Model::default());
    let mut store = open(&world, &opts).unwrap();
    let mut submit = |store: &mut Store, t: Transaction| {
        store.submit(&t).unwrap();
        model.apply(&t);
        model.clone()
    };
    for n in 0..4 {
        submit(&mut store, of(ObjectOp::OmapSet(pairs(n * 20_000, 20_000))));
    }
    let before = journaled(&mut store);
    let range = |a: &'static str, b: &'static str| ObjectOp::OmapRmRange {
        first: a.into(),
        last: b.into(),
    };
    // Some again before, within, and after, in one transaction and in others.
    let mut t = of(ObjectOp::OmapSet(pairs(500, 3)));
    t.object(&object(2), range("key-00000100", "key-00070000"));
    t.object(&object(2), ObjectOp::OmapSet(pairs(1000, 2)));
    submit(&mut store, t);
    submit(&mut store, of(ObjectOp::OmapSet(pairs(30_000, 5))));
    submit(&mut store, of(range("key-00030002", "key-00030004")));
    let model = submit(&mut store, of(range("key-00079000", "key-0007999x")));
    let took = journaled(&mut store) - before;
    assert!(took <= 32 << 10, "{took} bytes of journal for ranges of 79,000 keys");
    model.check(&mut store, "at once");
    let page = store.omap_range(&object(2), Some(b"key-00000099"), b"", 3, 1000).unwrap().unwrap();
    assert_eq!(page.pairs[0].0, "key-00001000");
    for (key, there) in [("key-00000100", false), ("key-00001001", true), ("key-00030002", false)] {
        let found = store.omap_get(&object(2), &[key.into()]).unwrap().unwrap();
        assert_eq!(found.len(), usize::from(there), "{key}");
    }
    drop(store);
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "after a replay");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "after a checkpoint");
    sound(&store, "after a checkpoint");
}

/// The pairs of a removed omap go in steps, so that a checkpoint never waits for all of them.
/// Whatever was done of that before a crash, the next opening finds the rest.
#[test]
pub(super) fn a_removed_omap_goes_in_steps_and_nothing_of_it_stays() {
    let opts = StoreOptions { size: 24 << 20, cache_bytes: 1 << 20, ..tiny() };
    let (world, mut model) = (create_single(&opts), Model::default());
    let mut store = open(&world, &opts).unwrap();
    for t in [of(ObjectOp::OmapSet(pairs(0, 300))), set("stays".into())] {
        store.submit(&t).unwrap();
        model.apply(&t);
    }
    let mut t = Transaction::default();
    let large = (0..300).map(|k| (Bytes::from(format!("key-{k:08}")), pattern(k * 3 + 1, 12_000)));
    t.object(&object(4), ObjectOp::OmapSet(large.collect()));
    store.submit(&t).unwrap();
    let all = keys::omap(store.onode(&object(4)).unwrap().unwrap().omap, &[]);
    let left = |store: &Store| store.meta.range(&all, &keys::prefix_end(&all)).count();
    // Stored, and then removed in a checkpoint after which nothing is done.
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    assert_eq!(left(&store), 300);
    let mut t = Transaction::default();
    t.object(&object(4), ObjectOp::Remove);
    store.submit(&t).unwrap();
    store.close().unwrap();
    let start = world.image();
    world.record();
    let mut store = open(&world, &opts).unwrap();
    store.wait(|s| {
        s.checkpointed.load(Ordering::Acquire) > 0 && s.dead.load(Ordering::Acquire) == 0
    });
    assert_eq!(left(&store), 0);
    model.check(&mut store, "purged");
    sound(&store, "purged");
    drop(store);
    let events = world.take_events();
    let mut steps = BTreeSet::new();
    for at in 0..=events.len() {
        let world = World::from_image(durable_only(start.clone(), &events[..at]));
        let mut store =
            open_stepped(&world, &opts).unwrap_or_else(|e| panic!("crash at event {at}: {e}"));
        steps.insert(left(&store));
        model.check(&mut store, &format!("crash at event {at}"));
        sound(&store, &format!("crash at event {at}"));
    }
    assert!(steps.len() > 3, "left in between: {steps:?}");
}

#[test]
fn a_log_that_grew_long_between_two_checkpoints_is_stored_in_pieces() {
    let opts =
        StoreOptions { size: 1 << 30, journal_size: 512 << 20, cache_bytes: 4 << 30, ..tiny() };
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    let pg = PgId::new(1, 1);
    let entry = |n: u64| MetaOp::LogAppend {
        pg,
        version: EVersion::new(1, n),
        entry: vec![n as u8; 1 << 20].into(),
    };
    for n in 1..=140 {
        store.submit(Transaction { meta: vec![entry(n)], ..Transaction::default() }).unwrap();
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    for op in [
        MetaOp::LogTrim { pg, to: EVersion::new(1, 18) },
        MetaOp::LogRewind { pg, to: EVersion::new(1, 133) },
    ] {
        store.submit(Transaction { meta: vec![op], ..Transaction::default() }).unwrap();
    }
    store.close().unwrap();
    let log = open(&world, &opts).unwrap().log_entries(pg).unwrap();
    let versions: Vec<u64> = log.iter().map(|(v, _)| v.version).collect();
    assert_eq!(versions, (19..=133).collect::<Vec<_>>());
}

#[test]
fn changes_beside_the_journal_that_are_not_what_was_written_are_refused() {
    let opts = StoreOptions { size: 64 << 20, ..tiny() };
    let world: World = super::create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(of(ObjectOp::OmapSet(pairs(0, 2000)))).unwrap();
    store.flush().unwrap();
    let block = store.beside.front().unwrap().1.start;
    drop(store);
    world.edit_data(|d| d[(block * crate::BLOCK) as usize + 77] ^= 1);
    let refused = open(&world, &opts).map(drop).unwrap_err();
    assert!(refused.to_string().contains("beside the journal"), "{refused}");
}
