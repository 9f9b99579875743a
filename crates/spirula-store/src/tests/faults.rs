//! Rot, failing devices, full devices, foreign and damaged stores.

use super::model::{Model, object, pattern, random_txn};
use super::sim::{Rng, World};
use super::{IDENTITY, create, open, tiny};
use crate::{BLOCK, Identity, Read, Store, StoreError, StoreOptions};
use spirula_types::transaction::{ObjectOp, Transaction};
use spirula_types::{HObject, Uuid};

fn write(o: &HObject, offset: u64, seed: u64, len: usize) -> Transaction {
    let mut t = Transaction::default();
    t.object(o, ObjectOp::Write { offset, data: pattern(seed, len) });
    t
}

fn remove(o: &HObject) -> Transaction {
    let mut t = Transaction::default();
    t.object(o, ObjectOp::Remove);
    t
}

#[test]
fn every_flipped_bit_in_live_data_is_detected_and_no_bytes_returned() {
    let opts = tiny();
    let world = create(&opts);
    let o = object(1);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&o, 0, 1, 20_000)).unwrap();
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    let mut at = Vec::new();
    let head = store.onode(&o).unwrap().unwrap();
    let seg = head.inline.as_ref().unwrap();
    at.extend(seg.device_runs().flat_map(|run| run.start..run.start + run.len));
    assert_eq!(at.len(), 5);
    let mut rng = Rng(5);
    for (i, block) in at.iter().enumerate() {
        for _ in 0..40 {
            let bit = rng.below(BLOCK * 8);
            let byte = (block * BLOCK + bit / 8) as usize;
            world.edit(2, |d| d[byte] ^= 1 << (bit % 8));
            match store.read(&o, 0, 20_000) {
                Err(StoreError::Checksum { object: bad, offset }) => {
                    assert_eq!((*bad, offset), (o.clone(), i as u64 * BLOCK));
                }
                other => panic!("{other:?}"),
            }
            // Neither is it used to fill a block up.
            let part = store.submit(write(&o, i as u64 * BLOCK + 5, 2, 10));
            assert!(matches!(part, Err(StoreError::Checksum { .. })), "{part:?}");
            world.edit(2, |d| d[byte] ^= 1 << (bit % 8));
        }
    }
    assert_eq!(store.read_blocking(&o, 0, 20_000).unwrap().unwrap(), pattern(1, 20_000));
}

#[test]
fn read_plan_stays_valid_while_its_blocks_are_freed_and_wanted_by_others() {
    let opts = StoreOptions { size: 4 << 20, ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let o = object(1);
    store.submit(write(&o, 0, 1, 400_000)).unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    world.set_cold(true);
    let Read::NotReady(plan) = store.read(&o, 0, 400_000).unwrap() else { panic!("not cold") };
    store.submit(remove(&o)).unwrap();
    for i in 0..8 {
        store.submit(write(&object(2), 0, i, 300_000)).unwrap();
        store.flush().unwrap();
    }
    assert_eq!(plan.run().unwrap(), pattern(1, 400_000));
    assert!(!store.freed.is_empty());
    drop(plan);
    store.submit(write(&object(3), 0, 1, 300_000)).unwrap();
    store.flush().unwrap();
    store.poll();
    assert_eq!(store.statfs().used, 2 * 300_000u64.next_multiple_of(BLOCK));
}

#[test]
fn freed_space_is_not_taken_again_before_the_freeing_is_durable() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&object(1), 0, 1, 400_000)).unwrap();
    store.flush().unwrap();
    let used = store.statfs().used;
    world.hold(true);
    store.submit(remove(&object(1))).unwrap();
    let mut least = used;
    for _ in 0..50 {
        store.congested();
        least = least.min(store.statfs().used);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    world.hold(false);
    assert_eq!(least, used);
    store.flush().unwrap();
    // Data of the same frame may still be on its way to its blocks.
    while !store.freed.is_empty() {
        store.poll();
    }
    assert_eq!(store.statfs().used, 0);
}

#[test]
fn full_store_refuses_writes_but_reads_cuts_and_deletes() {
    let opts = StoreOptions { size: 2 << 20, ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let mut n = 0;
    let refused = loop {
        let t = write(&object(n), 0, n, 30_000);
        match store.submit(t.clone()) {
            Ok(_) => model.apply(&t),
            Err(e) => break e,
        }
        n += 1;
    };
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    assert!(n > 50, "only {n} objects");
    model.check(&mut store, "full");
    for i in 0..n {
        let mut t = Transaction::default();
        // Cutting inside a block rewrites that block.
        t.object(&object(i), ObjectOp::Truncate { size: 29_000 });
        store.submit(t.clone()).unwrap();
        model.apply(&t);
    }
    model.check(&mut store, "cut");
    for i in 0..n / 2 {
        store.submit(remove(&object(i))).unwrap();
        model.apply(&remove(&object(i)));
    }
    // What the deletes give back can be used at once.
    for i in 0..n / 2 - 2 {
        let t = write(&object(1000 + i), 0, i, 30_000);
        store.submit(t.clone()).unwrap();
        model.apply(&t);
    }
    model.check(&mut store, "refilled");
    store.close().unwrap();
    model.check(&mut open(&world, &opts).unwrap(), "reopened");
}

#[test]
fn failure_of_any_write_or_flush_stops_the_store_and_loses_nothing_acknowledged() {
    let opts = StoreOptions { size: 4 << 20, ..tiny() };
    for n in 0..160 {
        let world = create(&opts);
        let mut rng = Rng(n);
        let mut models = vec![Model::default()];
        let mut store = open(&world, &opts).unwrap();
        world.record();
        world.fail_after(Some(n));
        let mut failed = false;
        for step in 0..400 {
            let mut model = models.last().unwrap().clone();
            let txn = random_txn(&mut rng, &model, step + 1, false);
            match store.submit(txn.clone()) {
                Ok(_) => {
                    model.apply(&txn);
                    models.push(model);
                }
                Err(StoreError::NoSpace { .. }) => {}
                Err(StoreError::Poisoned(_)) => {
                    failed = true;
                    break;
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert!(failed || store.flush().is_err(), "failure {n} went unnoticed");
        assert!(matches!(store.submit(Transaction::default()), Err(StoreError::Poisoned(_))));
        drop(store);
        assert_eq!(world.errors().len(), 1);
        let acked = world.take_events().iter().rev().find_map(|e| match e {
            super::sim::Event::Ack(seq) => Some(*seq),
            _ => None,
        });
        world.fail_after(None);
        let mut store = open(&world, &opts).unwrap();
        let seq = store.last_seq();
        assert!(seq >= acked.unwrap_or(0) && (seq as usize) < models.len());
        models[seq as usize].check(&mut store, &format!("after failure {n}"));
    }
}

fn refusal(world: &World, opts: &StoreOptions, expected: Identity) -> String {
    let before = world.image();
    let r = Store::open_parts(world.parts(), Some(expected), None, opts, Box::new(|_| ()), Box::new(|_| ()));
    let e = r.err().expect("refused");
    assert!(matches!(e, StoreError::Refused { .. }), "{e}");
    let after = world.image();
    assert!(before.devices == after.devices && before.kv == after.kv, "something was written");
    e.to_string()
}

/// A store that was not closed, with transactions in its journal.
fn used(opts: &StoreOptions) -> World {
    let world = create(opts);
    let mut store = open(&world, opts).unwrap();
    for i in 0..6 {
        store.submit(write(&object(i), 0, i, 5000)).unwrap();
        store.flush().unwrap();
    }
    drop(store);
    world
}

#[test]
fn foreign_newer_and_damaged_stores_are_refused_with_a_reason_and_untouched() {
    let opts = tiny();
    let world = used(&opts);
    let says = |world: &World, id: Identity, word: &str| {
        let s = refusal(world, &opts, id);
        assert!(s.contains(word), "{s}");
    };
    says(&world, Identity { fsid: Uuid([9; 16]), ..IDENTITY }, "cluster");
    says(&world, Identity { osd_id: 4, ..IDENTITY }, "osd.4");
    says(&world, Identity { osd_uuid: Uuid([9; 16]), ..IDENTITY }, "uuid");

    let damaged = World::from_image(world.image());
    damaged.edit(0, |d| {
        d[100] ^= 1;
        d[4196] ^= 1;
    });
    says(&damaged, IDENTITY, "no valid superblock");

    let newer = World::from_image(world.image());
    newer.edit(0, |d| {
        for copy in d.chunks_mut(4096) {
            copy[8] = 9;
            let crc = spirula_encoding::crc::crc32c(u32::MAX, &copy[..4092]);
            copy[4092..].copy_from_slice(&crc.to_le_bytes());
        }
    });
    says(&newer, IDENTITY, "format 9");

    let short = World::from_image(world.image());
    short.edit(2, |d| d.truncate(1 << 20));
    says(&short, IDENTITY, "superblock says");
}

#[test]
fn one_damaged_superblock_copy_does_no_harm() {
    let opts = tiny();
    for copy in 0..2 {
        let world = create(&opts);
        let mut store = open(&world, &opts).unwrap();
        store.submit(write(&object(1), 0, 1, 100)).unwrap();
        store.close().unwrap();
        world.edit(0, |d| d[copy * 4096 + 77] ^= 0x40);
        // The older copy knows an older checkpoint, which is no contradiction.
        let store = open(&world, &opts).unwrap();
        assert_eq!(store.read_blocking(&object(1), 0, 100).unwrap().unwrap(), pattern(1, 100));
    }
}

#[test]
fn journal_with_a_lost_frame_in_the_middle_is_refused() {
    let opts = tiny();
    let world = used(&opts);
    // 5000 bytes are two blocks; with its record each frame takes three.
    for frame in 0..5usize {
        let lost = World::from_image(world.image());
        lost.edit(1, |d| d[frame * 3 * 4096..(frame * 3 + 3) * 4096].fill(0));
        let s = refusal(&lost, &opts, IDENTITY);
        assert!(s.contains(&format!("frame {frame} is missing")), "{s}");
    }
    // Any damaged bit in it likewise.
    let mut rng = Rng(1);
    for _ in 0..200 {
        let rotten = World::from_image(world.image());
        let frame = rng.below(5) as usize;
        rotten.edit(1, |d| {
            let len = u32::from_le_bytes(d[frame * 3 * 4096 + 52..][..4].try_into().unwrap()) as u64 + 64;
            let bit = rng.below(len * 8) as usize;
            d[frame * 3 * 4096 + bit / 8] ^= 1 << (bit % 8);
        });
        refusal(&rotten, &opts, IDENTITY);
    }
}

#[test]
fn kv_that_lost_its_checkpoint_is_refused() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&object(1), 0, 1, 100)).unwrap();
    store.close().unwrap();
    world.edit_kv(std::collections::BTreeMap::clear);
    assert!(refusal(&world, &opts, IDENTITY).contains("metadata was lost"));
}

#[test]
fn transaction_that_cannot_be_has_no_effect() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let t = write(&object(1), 0, 1, 9000);
    model.apply(&t);
    store.submit(t).unwrap();
    let mut t = write(&object(1), 100, 2, 9000);
    t.object(&object(2), ObjectOp::CloneFrom(object(77)));
    assert!(matches!(store.submit(t), Err(StoreError::NoSource(_))));
    let mut t = write(&object(1), 100, 2, 9000);
    t.object(&object(2), ObjectOp::SetAttrs(vec![("big".into(), pattern(1, 200_000))]));
    assert!(matches!(store.submit(t), Err(StoreError::TooLarge { .. })));
    let mut t = write(&object(1), 100, 2, 9000);
    t.object(&object(2), ObjectOp::Truncate { size: u64::MAX });
    assert!(matches!(store.submit(t), Err(StoreError::TooLarge { .. })));
    model.check(&mut store, "after refusals");
    store.close().unwrap();
    model.check(&mut open(&world, &opts).unwrap(), "reopened");
}

#[test]
fn host_without_room_means_no_space_and_deleting_gives_it_back() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&object(1), 0, 1, 400_000)).unwrap();
    store.flush().unwrap();
    world.set_room(Some(64 << 20));
    // Looks again when what it counted on is used up or a second old.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(store.statfs().available, 0);
    // Within what an earlier look allowed, some may still be had.
    let refused = (0..2000).find_map(|i| store.submit(write(&object(2), i * 4096, 2, 4096)).err());
    assert!(matches!(refused, None | Some(StoreError::NoSpace { .. })), "{refused:?}");
    let mut t = Transaction::default();
    t.object(&object(1), ObjectOp::Remove);
    store.submit(t).unwrap();
    store.flush().unwrap();
    // Freed blocks are released when the transaction's data is written.
    while store.statfs().available == 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        store.congested();
    }
    assert!(world.room() > Some(64 << 20));
    assert!(world.errors().is_empty());
}
