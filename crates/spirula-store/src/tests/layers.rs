//! Clones of objects whose maps are in segments: what they cost, and that what they share is
//! theirs alone again when the others go.

use super::alphabet;
use super::model::{Model, pattern};
use super::sim::{Rng, World};
use super::{create, create_single, open, sound, tiny};
use crate::layer::{DEPTH_MAX, depth_max};
use crate::stage::Stage;
use crate::tools::check;
use crate::{BLOCK, Checksum, PoolOptions, Store, StoreError, StoreOptions};
use bytes::Bytes;
use proptest::prelude::*;
use spirula_types::HObject;
use spirula_types::transaction::{ObjectOp, Transaction};

pub(super) fn head(n: u64) -> HObject {
    HObject::head(
        1,
        Bytes::new(),
        Bytes::new(),
        Bytes::from(format!("rbd_data.1f2e3d4c5b6a.{n:016x}")),
    )
}

/// What a snapshot keeps of it.
pub(super) fn snap(n: u64, snap: u64) -> HObject {
    HObject { snap, ..head(n) }
}

pub(super) fn one(o: &HObject, op: ObjectOp) -> Transaction {
    let mut t = Transaction::default();
    t.object(o, op);
    t
}

pub(super) fn write(o: &HObject, block: u64, seed: u64, blocks: u64) -> Transaction {
    one(
        o,
        ObjectOp::Write {
            offset: block * BLOCK,
            data: pattern(seed * 3 + 1, (blocks * BLOCK) as usize),
        },
    )
}

fn do_both(store: &mut Store, model: &mut Model, t: Transaction) {
    store.submit(&t).unwrap();
    model.apply(&t);
}

/// Submits, and says how many bytes the journal's record has beside data.
pub(super) fn submit_counted(store: &mut Store, t: &Transaction) -> usize {
    let mut stage = Stage::new(store, t);
    stage.run(t).unwrap();
    let bytes = stage.record.0.len();
    stage.abort();
    store.submit(t).unwrap();
    bytes
}

/// Bytes of keys and values in the metadata as of the last checkpoint.
fn metadata(store: &Store) -> usize {
    store
        .meta
        .range(b"", &[u8::MAX])
        .map(|pair| pair.map(|(k, v)| k.len() + v.len()).unwrap())
        .sum()
}

/// An object all of whose blocks were written one by one, each to another place.
pub(super) fn rewritten(store: &mut Store, o: &HObject, blocks: u64) {
    let mut rng = Rng(blocks);
    let mut order: Vec<u64> = (0..blocks).collect();
    (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
    for block in order {
        store.submit(write(o, block, block, 1)).unwrap();
    }
}

#[test]
fn a_clone_and_the_first_write_after_it_cost_some_hundred_bytes_however_large_the_object() {
    let opts =
        StoreOptions { size: 24 << 20, journal_size: 1 << 20, cache_bytes: 4 << 20, ..tiny() };
    let mut costs = Vec::new();
    for blocks in [256, 1024, 4096] {
        let world = create(&opts);
        let mut store = open(&world, &opts).unwrap();
        rewritten(&mut store, &head(1), blocks);
        store
            .submit(one(&head(1), ObjectOp::SetAttrs(vec![("_".into(), pattern(1, 200))])))
            .unwrap();
        let fragments = store.fragments(&head(1)).unwrap().unwrap();
        assert!(fragments > blocks / 2, "{fragments} fragments of {blocks} blocks");
        store.close().unwrap();
        let mut store = open(&world, &opts).unwrap();
        let (before, rounds) = (metadata(&store), depth_max(&head(1)) as usize);
        let plain = submit_counted(&mut store, &write(&head(1), 7, 1, 1));
        let mut journal = 0;
        for n in 0..rounds as u64 {
            // As a PG does it.
            let mut t = one(&snap(1, n + 1), ObjectOp::CloneFrom(head(1)));
            t.objects.extend(write(&head(1), 97 * n % blocks, n, 1).objects);
            journal += submit_counted(&mut store, &t);
        }
        store.close().unwrap();
        let store = open(&world, &opts).unwrap();
        sound(&store, "cloned");
        costs.push((plain, journal / rounds, (metadata(&store) - before) / rounds));
    }
    println!(
        "bytes of a plain write's changes, of a clone's and a write's, and of metadata: {costs:?}"
    );
    for (_, journal, tree) in &costs {
        assert!(journal + tree <= 2048, "{costs:?}");
    }
    let spread = |of: fn(&(usize, usize, usize)) -> usize| {
        costs.iter().map(of).max().unwrap() - costs.iter().map(of).min().unwrap()
    };
    assert!(
        spread(|c| c.1) <= 32 && spread(|c| c.2) <= 32,
        "depends on the object's size: {costs:?}"
    );
}

/// Submits, and says how many bytes of data are written for it.
fn data_written(store: &mut Store, t: &Transaction) -> usize {
    let mut stage = Stage::new(store, t);
    stage.run(t).unwrap();
    let bytes = stage.pieces.iter().map(|(_, data)| data.len()).sum();
    stage.abort();
    store.submit(t).unwrap();
    bytes
}

/// What was there before a snapshot is never written again, is freed with its last owner, and not
/// before.
#[test]
fn a_write_after_a_snapshot_copies_nothing_and_the_last_owner_frees() {
    const BLOCKS: u64 = 1024;
    for (how, packs) in [(0, false), (1, false), (0, true)] {
        let opts =
            StoreOptions { size: 16 << 20, journal_size: 1 << 20, cache_bytes: 4 << 20, ..tiny() };
        let world = create(&opts);
        let mut store =
            if packs { alphabet::open(&world, &opts) } else { open(&world, &opts).unwrap() };
        match how {
            // In one piece; packed, it is compressed.
            0 => drop(
                store
                    .submit(one(&head(1), ObjectOp::Write { offset: 0, data: pattern(3, 4 << 20) }))
                    .unwrap(),
            ),
            _ => rewritten(&mut store, &head(1), BLOCKS),
        }
        let used = |store: &mut Store| {
            let seq = store.last_seq();
            store.wait(|s| s.written.load(std::sync::atomic::Ordering::Acquire) >= seq);
            store.poll();
            store.statfs().used / BLOCK
        };
        let before = used(&mut store);
        let mut t = one(&snap(1, 1), ObjectOp::CloneFrom(head(1)));
        t.objects.extend(write(&head(1), 500, 1, 1).objects);
        assert_eq!(data_written(&mut store, &t), BLOCK as usize, "{how}");
        assert_eq!(used(&mut store), before + 1);
        // A part of a block is merged with the rest of it, no more.
        let part =
            one(&head(1), ObjectOp::Write { offset: 700 * BLOCK + 100, data: pattern(1, 300) });
        assert_eq!(data_written(&mut store, &part), BLOCK as usize);
        // Its own block now.
        assert_eq!(data_written(&mut store, &write(&head(1), 500, 2, 1)), BLOCK as usize);
        assert_eq!(used(&mut store), before + 2);
        for block in [3, 4, 100, 900] {
            assert_eq!(data_written(&mut store, &write(&head(1), block, block, 1)), BLOCK as usize);
        }
        assert_eq!(used(&mut store), before + 6);
        // Of a second snapshot the same, with what the first one shares.
        let mut t = one(&snap(1, 2), ObjectOp::CloneFrom(head(1)));
        t.objects.extend(write(&head(1), 500, 3, 1).objects);
        assert_eq!(data_written(&mut store, &t), BLOCK as usize);
        assert_eq!(used(&mut store), before + 7);
        sound(&store, "two snapshots");
        store.submit(one(&head(1), ObjectOp::Remove)).unwrap();
        // Only what the head alone had.
        assert_eq!(used(&mut store), before + 6);
        store.submit(one(&snap(1, 1), ObjectOp::Remove)).unwrap();
        // All but what the second one has.
        assert_eq!(used(&mut store), if packs { before + 6 } else { before });
        sound(&store, "one snapshot");
        store.submit(one(&snap(1, 2), ObjectOp::Remove)).unwrap();
        assert_eq!(used(&mut store), 0);
    }
}

/// No layer, no name, and an object that does not share.
fn alone(store: &Store, o: &HObject) {
    let onode = store.onode(o).unwrap().unwrap();
    assert_eq!((onode.base, onode.name, onode.shared), (0, 0, false), "{o} still shares");
    for tag in [b'Y', b'N', b'R'] {
        assert_eq!(store.meta.range(&[tag], &[tag + 1]).count(), 0, "{}", char::from(tag));
    }
}

#[test]
fn ten_thousand_clones_of_one_object_share_it_and_go_again() {
    const CLONES: u64 = 10_000;
    let opts = StoreOptions { journal_size: 4 << 20, cache_bytes: 8 << 20, ..tiny() };
    let world = create_single(&StoreOptions { size: 16 << 20, ..opts.clone() });
    let mut store = open(&world, &opts).unwrap();
    rewritten(&mut store, &head(1), 200);
    let used = |store: &mut Store| {
        store.flush().unwrap();
        store.poll();
        store.statfs().used
    };
    let before = used(&mut store);
    let mut most = 0;
    for n in 1..=CLONES {
        most =
            most.max(submit_counted(&mut store, &one(&snap(1, n), ObjectOp::CloneFrom(head(1)))));
    }
    assert!(most < 1000, "{most} bytes for one of them");
    assert_eq!(used(&mut store), before, "a clone takes no space for data");
    assert_eq!(store.statfs().stored, (CLONES + 1) * 200 * BLOCK, "each counts its bytes");
    sound(&store, "cloned");
    let data = store.read_blocking(&head(1), 0, u64::MAX).unwrap();
    store.submit(write(&head(1), 3, 77, 1)).unwrap();
    for n in [1, 5000, CLONES] {
        assert!(store.read_blocking(&snap(1, n), 0, u64::MAX).unwrap() == data, "clone {n}");
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    // In no order.
    for n in 0..CLONES {
        store.submit(one(&snap(1, 1 + n * 7919 % CLONES), ObjectOp::Remove)).unwrap();
    }
    sound(&store, "clones removed");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    alone(&store, &head(1));
    assert_eq!(used(&mut store), before);
}

#[test]
fn sharing_ends_with_the_last_clone_in_whatever_order_they_go() {
    let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    for (n, order) in orders.into_iter().enumerate() {
        let opts = tiny();
        let world = create(&opts);
        let mut store = alphabet::open(&world, &opts);
        let mut model = Model::default();
        // Some of it compressed, some in another place than the rest.
        do_both(&mut store, &mut model, write(&head(1), 0, 1, 300));
        do_both(
            &mut store,
            &mut model,
            one(
                &head(1),
                ObjectOp::Write { offset: 20 * BLOCK, data: pattern(3, 40 * BLOCK as usize) },
            ),
        );
        for s in 1..=3 {
            do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
            do_both(&mut store, &mut model, write(&head(1), 9 + s, s, 1));
            do_both(&mut store, &mut model, write(&head(1), 90 + 50 * s, s, 60));
            do_both(
                &mut store,
                &mut model,
                one(&head(1), ObjectOp::Zero { offset: 22 * BLOCK, length: s * BLOCK }),
            );
            model.check(&mut store, &format!("order {n}, clone {s}"));
        }
        for s in order {
            do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::Remove));
            model.check(&mut store, &format!("order {n}, without clone {s}"));
            sound(&store, "a clone removed");
        }
        store.close().unwrap();
        let mut store = open(&world, &opts).unwrap();
        alone(&store, &head(1));
        model.check(&mut store, "reopened");
    }
}

/// A pool may be given another kind of checksum between clones: what shows through the layers of
/// one part of an object keeps one kind, and parts may differ.
#[test]
pub(super) fn parts_of_a_cloned_object_may_have_checksums_of_different_kinds() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let sums = |store: &Store| store.onode(&head(1)).unwrap().unwrap().sums;
    do_both(&mut store, &mut model, write(&head(1), 0, 1, 200));
    do_both(&mut store, &mut model, one(&snap(1, 1), ObjectOp::CloneFrom(head(1))));
    assert_eq!(sums(&store), Some(Checksum::Crc32c));
    for s in 2..20 {
        let checksum = [Checksum::Xxhash64, Checksum::Crc32c][s as usize % 2];
        store.set_pool_options(1, PoolOptions { checksum, ..PoolOptions::default() });
        // Over what is there, and where nothing is yet.
        for (block, blocks) in [(100, 1), (256 + 2 * s, 2), (260 + 2 * s, 1)] {
            do_both(&mut store, &mut model, write(&head(1), block, s, blocks));
            model.check(&mut store, &format!("clone {s}, block {block}"));
        }
        assert_eq!(sums(&store), None, "clone {s}");
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
    }
    for s in 1..20 {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::Remove));
        model.check(&mut store, &format!("without clone {s}"));
    }
    sound(&store, "clones removed");
}

#[test]
fn the_head_may_go_before_its_clones_and_come_back_from_one() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    do_both(&mut store, &mut model, write(&head(1), 0, 1, 200));
    for s in 1..=6 {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
        do_both(&mut store, &mut model, write(&head(1), 30 * s, s, 2));
    }
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::Remove));
    model.check(&mut store, "no head");
    // Rolled back: as a whole, then a part of it.
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::CloneFrom(snap(1, 2))));
    let range = ObjectOp::CloneRange {
        from: snap(1, 5),
        offset: 100 * BLOCK,
        length: 60 * BLOCK,
        to: 100 * BLOCK,
    };
    do_both(&mut store, &mut model, one(&head(1), range));
    model.check(&mut store, "rolled back");
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::Truncate { size: 5000 }));
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::Truncate { size: 700_000 }));
    model.check(&mut store, "cut and grown");
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::Truncate { size: 0 }));
    model.check(&mut store, "cut to nothing");
    assert_eq!(store.onode(&head(1)).unwrap().unwrap().base, 0);
    sound(&store, "worked");
}

/// In one transaction a clone gets another name, and its old one is made anew from the head, whose
/// chain becomes shorter by that: so the moved clone is the last one over its layer, which was made
/// for it under its old name.
#[test]
pub(super) fn a_clone_that_has_just_been_moved_is_the_last_one_over_its_layer() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    do_both(&mut store, &mut model, write(&head(1), 0, 1, 200));
    for s in 1..=4 * u64::from(DEPTH_MAX) {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
        do_both(&mut store, &mut model, write(&head(1), 3 * s, s, 2));
        let mut t = one(&snap(1, 1000 + s), ObjectOp::CloneFrom(snap(1, s)));
        t.object(&snap(1, s), ObjectOp::Remove);
        t.object(&snap(1, s), ObjectOp::CloneFrom(head(1)));
        do_both(&mut store, &mut model, t);
        sound(&store, "moved");
        do_both(&mut store, &mut model, write(&head(1), 3 * s, s, 2));
        model.check(&mut store, &format!("clone {s}"));
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "reopened");
    sound(&store, "reopened");
}

/// Clones of clones, in every way; [`super::random`] has them among much else.
pub(super) fn family_txn(rng: &mut Rng, model: &Model) -> Transaction {
    let o = snap(1, rng.below(7));
    let from = snap(1, rng.below(7));
    let there = model.objects.contains_key(&from);
    let block = [rng.below(420), rng.below(140), 120 + rng.below(16)][rng.below(3) as usize];
    let some = [1, 1 + rng.below(5), rng.below(150)][rng.below(3) as usize];
    let key = |n: u64| Bytes::from(format!("key{n}"));
    let op = match rng.below(24) {
        20 => ObjectOp::OmapSet(
            (0..rng.below(5)).map(|n| (key(n), pattern(rng.next(), 20))).collect(),
        ),
        21 => ObjectOp::OmapRm(vec![key(rng.below(5))]),
        22 => ObjectOp::OmapRmRange { first: key(rng.below(3)), last: key(4) },
        23 => [ObjectOp::OmapClear, ObjectOp::OmapSetHeader(pattern(rng.next(), 30))]
            [rng.below(2) as usize]
            .clone(),
        0..=4 if there => ObjectOp::CloneFrom(from),
        5 if there => {
            let (offset, to) = (rng.below(300) * BLOCK, rng.below(300) * BLOCK);
            ObjectOp::CloneRange { from, offset, length: some * BLOCK, to }
        }
        6 => ObjectOp::Zero { offset: block * BLOCK, length: some * BLOCK },
        7 => ObjectOp::Truncate { size: block * BLOCK * rng.below(2) },
        8 => ObjectOp::Truncate { size: block * BLOCK + rng.below(BLOCK) },
        9 | 10 => ObjectOp::Remove,
        11 => ObjectOp::Write {
            offset: block * BLOCK + rng.below(BLOCK),
            data: pattern(rng.next(), 5000),
        },
        12 => ObjectOp::Write { offset: 0, data: pattern(rng.next(), 130 * BLOCK as usize) },
        _ => ObjectOp::Write {
            offset: block * BLOCK,
            data: pattern(rng.next(), (some * BLOCK) as usize),
        },
    };
    let goes = match &op {
        ObjectOp::CloneFrom(from) if *from != o && rng.below(4) == 0 => Some(from.clone()),
        _ => None,
    };
    let mut t = one(&o, op);
    if let Some(from) = goes {
        t.object(&from, ObjectOp::Remove);
    }
    t
}

fn family(seed: u64, steps: u64, packs: bool, single: bool) {
    let opts = StoreOptions { cache_bytes: [48 << 10, 1 << 20][seed as usize % 2], ..tiny() };
    let world = if single { create_single(&opts) } else { create(&opts) };
    let reopen = |world: &World| {
        if packs { alphabet::open(world, &opts) } else { open(world, &opts).unwrap() }
    };
    let (mut store, mut rng, mut model) = (reopen(&world), Rng(seed), Model::default());
    for step in 0..steps {
        let what = format!("seed {seed:#x}, step {step}");
        let mut t = family_txn(&mut rng, &model);
        if rng.below(4) == 0 {
            // Several of them at once.
            let mut then = model.clone();
            then.apply(&t);
            t.objects.extend(family_txn(&mut rng, &then).objects);
        }
        match store.submit(&t) {
            Ok(_) => model.apply(&t),
            Err(StoreError::NoSpace { .. }) => {}
            Err(e) => panic!("{what}: {e}"),
        }
        match rng.below(25) {
            0 => {
                store.flush().unwrap();
                drop(store);
                store = reopen(&world);
            }
            1 => {
                store.close().unwrap();
                store = reopen(&world);
            }
            2..=9 => {}
            _ => continue,
        }
        model.check(&mut store, &what);
        sound(&store, &what);
    }
    // All but one go: it is alone.
    let names: Vec<HObject> = model.objects.keys().cloned().collect();
    for o in names.iter().skip(1) {
        do_both(&mut store, &mut model, one(o, ObjectOp::Remove));
    }
    model.check(&mut store, "alone");
    assert_eq!(check(&store, true).unwrap().problems, Vec::<String>::new(), "seed {seed:#x}");
    if let Some(o) = names.first() {
        assert_eq!(store.onode(o).unwrap().unwrap().base, 0);
    }
}

#[test]
fn a_large_omap_is_shared_until_one_of_its_owners_changes_it() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let pairs = |n: u64| {
        (0..n).map(|i| (Bytes::from(format!("key{i:04}")), pattern(i, 50))).collect::<Vec<_>>()
    };
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::OmapSet(pairs(500))));
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::OmapSetHeader("header".into())));
    for s in 1..=4 {
        let t = one(&snap(1, s), ObjectOp::CloneFrom(head(1)));
        let bytes = submit_counted(&mut store, &t);
        assert!(bytes < 600, "a clone of 500 pairs writes {bytes} bytes");
        model.apply(&t);
    }
    let state = |store: &Store, o: &HObject| {
        let onode = store.onode(o).unwrap().unwrap();
        (onode.omap_shared, store.stored_omap_owners(onode.omap).unwrap())
    };
    assert_eq!(state(&store, &head(1)), (true, 4));
    // Data alone changes nothing of it.
    do_both(&mut store, &mut model, write(&head(1), 0, 1, 1));
    assert_eq!(state(&store, &head(1)), (true, 4));
    do_both(&mut store, &mut model, one(&head(1), ObjectOp::OmapRm(vec!["key0007".into()])));
    do_both(&mut store, &mut model, one(&snap(1, 1), ObjectOp::OmapSetHeader("another".into())));
    assert_eq!([state(&store, &head(1)), state(&store, &snap(1, 1))], [(false, 0); 2]);
    do_both(&mut store, &mut model, one(&snap(1, 2), ObjectOp::OmapClear));
    assert_eq!(state(&store, &snap(1, 3)), (true, 1));
    model.check(&mut store, "changed");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "reopened");
    sound(&store, "reopened");
    do_both(&mut store, &mut model, one(&snap(1, 4), ObjectOp::Remove));
    let first = store.onode(&snap(1, 3)).unwrap().unwrap().omap;
    do_both(&mut store, &mut model, one(&snap(1, 3), ObjectOp::OmapSet(pairs(3))));
    assert_eq!(state(&store, &snap(1, 3)), (false, 0));
    assert_eq!(store.onode(&snap(1, 3)).unwrap().unwrap().omap, first, "the last owner keeps it");
    model.check(&mut store, "the last owner wrote");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "closed");
    assert_eq!(store.meta.range(b"G", b"H").count(), 0);
}

/// A copy of it is left to the checkpoint, and looks as if it were there: after further clones and
/// changes, without the one it was made of, and after every kind of opening.
#[test]
fn a_large_omap_that_is_shared_is_copied_beside_the_owner() {
    let opts =
        StoreOptions { size: 160 << 20, cache_bytes: 64 << 20, journal_size: 4 << 20, ..tiny() };
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let key = |n: u64| Bytes::from(format!("key{n:05}"));
    let pairs =
        |n: std::ops::Range<u64>| ObjectOp::OmapSet(n.map(|i| (key(i), pattern(i, 400))).collect());
    let range = |a, b| ObjectOp::OmapRmRange { first: key(a), last: key(b) };
    do_both(&mut store, &mut model, one(&head(1), pairs(0..4000)));
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    // Some of it is in the overlay yet.
    do_both(&mut store, &mut model, one(&head(1), pairs(4000..4100)));
    do_both(&mut store, &mut model, one(&head(1), range(100, 200)));
    for (round, reopen) in [0, 1, 2].into_iter().enumerate() {
        let s = 10 * round as u64;
        let mut told = |store: &mut Store, t: Transaction| {
            let bytes = submit_counted(store, &t);
            assert!(bytes < 8000, "round {round}: {bytes} bytes for a change of one pair of 4000");
            model.apply(&t);
            model.check(store, &format!("round {round}"));
        };
        let clone = |n| one(&snap(1, s + n), ObjectOp::CloneFrom(head(1)));
        told(&mut store, clone(1));
        told(
            &mut store,
            one(
                &head(1),
                ObjectOp::OmapSet(vec![(key(7), "new".into()), ("z".into(), "last".into())]),
            ),
        );
        told(&mut store, one(&head(1), range(300, 350)));
        told(&mut store, one(&snap(1, s + 1), ObjectOp::OmapRm(vec![key(8), key(9)])));
        // Of what is to be a copy itself.
        told(&mut store, clone(2));
        told(&mut store, one(&head(1), ObjectOp::OmapRm(vec![key(3999), key(7)])));
        told(&mut store, one(&head(1), ObjectOp::OmapSetHeader("header".into())));
        told(&mut store, one(&snap(1, s + 1), ObjectOp::Remove));
        told(&mut store, clone(3));
        let mut t = one(&head(1), ObjectOp::OmapSet(vec![(key(320), "again".into())]));
        t.object(&snap(1, s + 3), pairs(320..321));
        t.object(&snap(1, s + 3), range(0, 50));
        told(&mut store, t);
        told(&mut store, one(&snap(1, s + 2), ObjectOp::OmapClear));
        sound(&store, "changed");
        match reopen {
            0 => store.close().unwrap(),
            1 => {
                store.flush().unwrap();
                drop(store);
            }
            _ => {
                store.flush().unwrap();
                drop(store);
                // As it is replayed it is stored.
                open(&world, &opts).unwrap().close().unwrap();
            }
        }
        store = open(&world, &opts).unwrap();
        model.check(&mut store, &format!("round {round}, opened"));
        sound(&store, "opened");
    }
    for o in model.objects.keys().cloned().collect::<Vec<_>>() {
        do_both(&mut store, &mut model, one(&o, ObjectOp::Remove));
    }
    store.close().unwrap();
    let store = open(&world, &opts).unwrap();
    sound(&store, "removed");
}

/// A device that takes no writes. Declared behind the store, so that who fails meanwhile lets it go
/// before the store's threads are waited for.
struct Held<'w>(&'w World);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.hold_device(None);
    }
}

/// Copies that one checkpoint is about to make, and copies of these: as they are, after a crash,
/// and after both were made.
#[test]
pub(crate) fn a_copy_of_an_omap_that_a_checkpoint_is_just_copying_is_right() {
    let opts = StoreOptions { cache_bytes: 256 << 10, journal_size: 1 << 20, ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let key = |n: u64| Bytes::from(format!("key{n:03}"));
    let pairs = ObjectOp::OmapSet((0..60).map(|i| (key(i), pattern(i, 60))).collect());
    do_both(&mut store, &mut model, one(&head(1), pairs));
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    world.hold_device(Some(2));
    let held = Held(&world);
    for (s, k) in [(1, 5), (2, 6), (3, 7)] {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
        let mut t = one(&head(1), ObjectOp::OmapRm(vec![key(k)]));
        t.object(&head(1), ObjectOp::OmapRmRange { first: key(10 * k), last: key(10 * k + 2) });
        t.object(
            &head(1),
            ObjectOp::OmapSet(vec![(key(8), pattern(s, 20)), (key(10 * k), "again".into())]),
        );
        do_both(&mut store, &mut model, t);
        for n in 0.. {
            if s > 1 || store.frozen.is_some() {
                break;
            }
            assert!(n < 1000, "no checkpoint begins");
            let o = HObject::head(1, Bytes::new(), Bytes::new(), "other".into());
            do_both(
                &mut store,
                &mut model,
                one(&o, ObjectOp::OmapSet(vec![(key(n), pattern(n, 200))])),
            );
            store.flush().unwrap();
        }
        model.check(&mut store, &format!("clone {s}"));
    }
    assert!(
        store.frozen.as_ref().is_some_and(|f| f.overlay.copies.iter().count() == 1),
        "it is not being copied"
    );
    // The last owners of what is copied change theirs: what is copied stays as it was.
    for s in [1, 2, 3] {
        do_both(
            &mut store,
            &mut model,
            one(
                &snap(1, s),
                ObjectOp::OmapSet(vec![(key(9), pattern(s, 30)), (key(70), "new".into())]),
            ),
        );
        model.check(&mut store, &format!("source {s} changed"));
    }
    // The owners of what is copied go, of the copy that is copied again as well.
    for s in [1, 2] {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::Remove));
    }
    model.check(&mut store, "without the sources");
    store.flush().unwrap();
    let crashed = World::from_image(world.image());
    drop(held);
    for what in ["replayed", "stored"] {
        let mut store = open(&crashed, &opts).unwrap();
        do_both(&mut store, &mut model.clone(), one(&snap(1, 9), ObjectOp::CloneFrom(head(1))));
        do_both(&mut store, &mut model.clone(), one(&snap(1, 9), ObjectOp::Remove));
        model.check(&mut store, what);
        sound(&store, what);
        store.close().unwrap();
    }
    model.check(&mut store, "held no more");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "copied");
    sound(&store, "copied");
}

/// More clones than a chain may have layers, and the oldest go first.
fn chain(packs: bool) {
    let opts = tiny();
    let world = create(&opts);
    let mut store =
        if packs { alphabet::open(&world, &opts) } else { open(&world, &opts).unwrap() };
    let mut model = Model::default();
    // Of what compresses, some.
    let write = |block: u64, seed: u64, blocks: u64| {
        one(
            &head(1),
            ObjectOp::Write {
                offset: block * BLOCK,
                data: pattern(seed, (blocks * BLOCK) as usize),
            },
        )
    };
    do_both(&mut store, &mut model, write(0, 1, 140));
    let clones = 3 * u64::from(DEPTH_MAX) + 2;
    for s in 1..=clones {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
        do_both(&mut store, &mut model, write(11 * s, s, 1 + s % 20));
    }
    model.check(&mut store, "cloned");
    let depth = |store: &Store, o: &HObject| {
        let (mut n, mut base) = (0, store.onode(o).unwrap().unwrap().base);
        while base != 0 {
            (n, base) = (n + 1, store.stored_layer(base).unwrap().unwrap().base);
        }
        n
    };
    assert!((1..=clones).all(|s| depth(&store, &snap(1, s)) <= DEPTH_MAX));
    for s in 1..=clones {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::Remove));
        model.check(&mut store, &format!("without clones up to {s}"));
        sound(&store, "a clone removed");
    }
    assert_eq!(depth(&store, &head(1)), 0);
}

/// Where a chain has become too long its lowest layer stays, and what is above it is made one map:
/// that costs as much for a large object as for a small one.
#[test]
fn a_chain_is_made_shorter_above_its_lowest_layer() {
    let opts =
        StoreOptions { size: 24 << 20, journal_size: 1 << 20, cache_bytes: 4 << 20, ..tiny() };
    let rounds = 20 * u64::from(DEPTH_MAX);
    let mut costs = Vec::new();
    for blocks in [1024, 4096] {
        let world = create(&opts);
        let mut store = open(&world, &opts).unwrap();
        rewritten(&mut store, &head(1), blocks);
        let root = |store: &Store| {
            let mut at = store.onode(&head(1)).unwrap().unwrap().base;
            let mut depth = 0;
            while let Some(l) = store.stored_layer(at).unwrap().filter(|l| l.base != 0) {
                (at, depth) = (l.base, depth + 1);
            }
            (at, depth)
        };
        let (mut journal, mut most, mut lowest) = (0, 0, None);
        for s in 1..=rounds {
            let mut t = one(&snap(1, s), ObjectOp::CloneFrom(head(1)));
            t.objects.extend(write(&head(1), 11 * s, s, 1).objects);
            let bytes = submit_counted(&mut store, &t);
            (journal, most) = (journal + bytes, most.max(bytes));
            let (at, depth) = root(&store);
            assert!(depth < DEPTH_MAX, "{depth} layers");
            assert_eq!(*lowest.get_or_insert(at), at, "clone {s} of {blocks} blocks: a whole map");
        }
        sound(&store, "cloned");
        // What all children of the lowest layer hide is kept until they are one: then nothing of it
        // is left.
        for s in 1..rounds {
            store.submit(one(&snap(1, s), ObjectOp::Remove)).unwrap();
        }
        sound(&store, "clones removed");
        store.submit(one(&snap(1, rounds), ObjectOp::Remove)).unwrap();
        store.close().unwrap();
        let store = open(&world, &opts).unwrap();
        assert_eq!(store.onode(&head(1)).unwrap().unwrap().base, 0);
        for tag in [b'Y', b'N', b'R'] {
            assert_eq!(store.meta.range(&[tag], &[tag + 1]).count(), 0, "{}", char::from(tag));
        }
        assert_eq!(store.statfs().used, blocks * BLOCK);
        costs.push((journal as u64 / rounds, most));
    }
    println!("bytes of changes for a clone and a write, and at most: {costs:?}");
    assert!(costs.iter().all(|(mean, most)| *mean < 2048 && *most < 16 << 10), "{costs:?}");
    assert!(costs[0].0.abs_diff(costs[1].0) < 100, "depends on the object's size: {costs:?}");
}

/// Objects that are cloned and written to together do not all get a whole map at the same time.
#[test]
fn whole_maps_are_spread_over_the_clones() {
    let opts =
        StoreOptions { size: 32 << 20, journal_size: 4 << 20, cache_bytes: 8 << 20, ..tiny() };
    let (objects, rounds) = (40, 8 * u64::from(DEPTH_MAX));
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    (0..objects).for_each(|n| assert!(store.submit(write(&head(n), 0, n, 40)).is_ok()));
    let mut whole = Vec::new();
    for s in 1..=rounds {
        let mut now = 0;
        for n in 0..objects {
            store.submit(one(&snap(n, s), ObjectOp::CloneFrom(head(n)))).unwrap();
            store.submit(write(&head(n), s, s, 1)).unwrap();
            let base = store.onode(&head(n)).unwrap().unwrap().base;
            now += u64::from(s > 1 && store.stored_layer(base).unwrap().unwrap().base == 0);
        }
        whole.push(now);
    }
    sound(&store, "cloned");
    let all: u64 = whole.iter().sum();
    assert!(all >= objects && whole.iter().all(|n| *n <= objects * 3 / 4), "{whole:?}");
}

/// A chain that leads back into itself is an error, and the end of nothing else.
#[test]
fn a_chain_without_an_end_is_told() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&head(1), 0, 1, 200)).unwrap();
    store.submit(one(&snap(1, 1), ObjectOp::CloneFrom(head(1)))).unwrap();
    let base = store.onode(&head(1)).unwrap().unwrap().base;
    let mut layer = (*store.stored_layer(base).unwrap().unwrap()).clone();
    (layer.base, layer.depth, layer.own) = (base, 1 << 20, 0);
    store.put_layer(base, Some(std::sync::Arc::new(layer)));
    let corrupt =
        |r: Result<(), StoreError>| assert!(matches!(r, Err(StoreError::Corrupt(_))), "{r:?}");
    corrupt(store.read_blocking(&head(1), 0, u64::MAX).map(drop));
    corrupt(store.fragments(&head(1)).map(drop));
    // Which asks what the rest of the block is.
    corrupt(
        store
            .submit(one(&head(1), ObjectOp::Write { offset: 3 * BLOCK + 9, data: pattern(7, 100) }))
            .map(drop),
    );
    // And how long the chain is, when it may be too long.
    corrupt((2..=2 + u64::from(DEPTH_MAX)).try_for_each(|s| {
        store.submit(one(&snap(1, s), ObjectOp::CloneFrom(snap(1, 1))))?;
        store.submit(write(&snap(1, 1), 3, 7, 1)).map(drop)
    }));
    let range = ObjectOp::CloneRange { from: head(1), offset: 0, length: 40 * BLOCK, to: 0 };
    corrupt(store.submit(one(&head(7), range)).map(drop));
    store.submit(write(&head(2), 0, 2, 200)).unwrap();
    store.read_blocking(&head(2), 0, u64::MAX).unwrap();
}

#[test]
fn chains_are_bounded_and_come_apart_from_below() {
    chain(false);
    chain(true);
}

/// Little of a large object changes between its clones, so that its lowest layer stays when the
/// chain is made shorter. What was cut out or off in a layer does not come back.
fn shortened(packs: bool) {
    let opts = tiny();
    let world = create(&opts);
    let mut store =
        if packs { alphabet::open(&world, &opts) } else { open(&world, &opts).unwrap() };
    let mut model = Model::default();
    do_both(&mut store, &mut model, write(&head(1), 0, 1, 300));
    let clones = 5 * u64::from(DEPTH_MAX);
    for s in 1..=clones {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::CloneFrom(head(1))));
        let data = pattern(if packs { 3 } else { s }, (2 * BLOCK) as usize);
        do_both(
            &mut store,
            &mut model,
            one(&head(1), ObjectOp::Write { offset: (2 * s + 140) * BLOCK, data }),
        );
        do_both(
            &mut store,
            &mut model,
            one(&head(1), ObjectOp::Zero { offset: 5 * s * BLOCK, length: BLOCK }),
        );
        for size in [295, 300].into_iter().filter(|_| s % 5 == 0) {
            do_both(
                &mut store,
                &mut model,
                one(&head(1), ObjectOp::Truncate { size: size * BLOCK }),
            );
        }
        model.check(&mut store, &format!("clone {s}"));
        sound(&store, "cloned");
    }
    // Every other one first.
    for s in (1..=clones).step_by(2).chain((1..clones).rev().filter(|s| s % 2 == 0)) {
        do_both(&mut store, &mut model, one(&snap(1, s), ObjectOp::Remove));
        model.check(&mut store, &format!("without clone {s}"));
        sound(&store, "a clone removed");
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "reopened");
    sound(&store, "reopened");
}

#[test]
fn what_is_cut_out_of_a_layer_stays_so_in_a_shorter_chain() {
    shortened(false);
    shortened(true);
}

/// For [`super::planted`], too.
pub(crate) fn families() {
    chain(false);
    shortened(false);
    for seed in 0..6 {
        family(seed, 60, seed % 3 == 1, seed % 3 == 2);
    }
}

#[test]
fn families_of_clones_match_the_model() {
    families();
}

#[test]
fn a_small_object_forgets_that_it_shared_when_it_does_no_more() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    do_both(&mut store, &mut model, write(&head(1), 0, 1, 10));
    do_both(&mut store, &mut model, one(&snap(1, 1), ObjectOp::CloneFrom(head(1))));
    let shared = |store: &Store, o: &HObject| store.onode(o).unwrap().unwrap().shared;
    do_both(&mut store, &mut model, write(&head(1), 3, 2, 1));
    assert!(shared(&store, &head(1)) && shared(&store, &snap(1, 1)));
    do_both(&mut store, &mut model, one(&snap(1, 1), ObjectOp::Remove));
    do_both(&mut store, &mut model, write(&head(1), 4, 3, 1));
    assert!(!shared(&store, &head(1)), "its only clone is gone");
    do_both(&mut store, &mut model, one(&snap(1, 2), ObjectOp::CloneFrom(head(1))));
    do_both(&mut store, &mut model, write(&head(1), 0, 4, 10));
    assert!(!shared(&store, &head(1)), "nothing it has is another's");
    model.check(&mut store, "written over");
    sound(&store, "written over");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn prop_families_of_clones_match_the_model(seed: u64, packs: bool, single: bool) {
        family(seed, 80, packs, single);
    }
}
