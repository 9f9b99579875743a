//! Rot, failing devices, full devices, foreign and damaged stores.

use super::model::{Model, Walk, object, pattern, random_txn};
use super::sim::{Disk, Fault, Rng, World};
use super::{IDENTITY, create, create_single, open, open_as, tiny};
use crate::superblock::{COPY_STRIDE, HEADER};
use crate::{BLOCK, Identity, Read, StoreError, StoreOptions};
use bytes::Bytes;
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
            let bit = (HEADER + block * BLOCK) * 8 + bit;
            world.rot(0, bit);
            match store.read(&o, 0, 20_000) {
                Err(StoreError::Checksum { object: bad, offset }) => {
                    assert_eq!((*bad, offset), (o.clone(), i as u64 * BLOCK));
                }
                other => panic!("{other:?}"),
            }
            // Neither is it used to fill a block up.
            let part = store.submit(write(&o, i as u64 * BLOCK + 5, 2, 10));
            assert!(matches!(part, Err(StoreError::Checksum { .. })), "{part:?}");
            world.rot(0, bit);
        }
    }
    assert_eq!(store.read_blocking(&o, 0, 20_000).unwrap().unwrap(), pattern(1, 20_000));
}

#[test]
pub(crate) fn read_plan_stays_valid_while_its_blocks_are_freed_and_wanted_by_others() {
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
    assert!(!store.held_back().is_empty());
    drop(plan);
    store.submit(write(&object(3), 0, 1, 300_000)).unwrap();
    store.flush().unwrap();
    store.poll();
    assert_eq!(store.statfs().used, 2 * 300_000u64.next_multiple_of(BLOCK));
}

/// What large reads brought is kept by the blocks that it lay in: who gets them next is never given
/// it, and a scrub sees the device.
#[test]
pub(crate) fn what_is_kept_of_large_reads_goes_with_its_blocks() {
    // So little space that each object gets the blocks of one before it.
    let opts = StoreOptions { size: 512 << 10, ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    const LEN: usize = 100_000;
    for round in 0..12 {
        let o = object(round);
        store.submit(write(&o, 0, round, LEN)).unwrap();
        store.flush().unwrap();
        let data = store.read_blocking(&o, 0, LEN as u64).unwrap().unwrap();
        assert_eq!(data, pattern(round, LEN), "round {round}");
        store.keep(&o, 0, &data);
        assert!(store.cached().kept_bytes > 0, "round {round}: nothing is kept");
        // The second time from memory, also in part, and with a part that changed meanwhile.
        assert_eq!(
            store.read_blocking(&o, 8192, 50_000).unwrap().unwrap(),
            data.slice(8192..58_192)
        );
        store.submit(write(&o, 20_000, round + 100, 3000)).unwrap();
        let mut wanted = data.to_vec();
        wanted[20_000..23_000].copy_from_slice(&pattern(round + 100, 3000));
        assert_eq!(store.read_blocking(&o, 0, LEN as u64).unwrap().unwrap(), wanted);
        store.submit(remove(&o)).unwrap();
        store.flush().unwrap();
        while !store.held_back().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            store.poll();
        }
    }
    assert_eq!(store.cached().kept_bytes, 0, "everything was removed");
}

#[test]
pub(crate) fn freed_space_is_not_taken_again_before_the_freeing_is_durable() {
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
pub(crate) fn full_store_refuses_writes_but_reads_cuts_and_deletes() {
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
        world.inject(Some(Fault::Dead(n)));
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
        world.inject(None);
        let mut store = open(&world, &opts).unwrap();
        let seq = store.last_seq();
        assert!(seq >= acked.unwrap_or(0) && (seq as usize) < models.len());
        models[seq as usize].check(&mut store, &format!("after failure {n}"));
    }
}

fn refusal(world: &World, opts: &StoreOptions, expected: Identity) -> String {
    let before = world.image();
    let e = open_as(world, opts, expected).err().expect("refused");
    assert!(matches!(e, StoreError::Refused { .. }), "{e}");
    let after = world.image();
    assert!(before.devices == after.devices, "something was written");
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
        d[COPY_STRIDE as usize + 100] ^= 1;
    });
    says(&damaged, IDENTITY, "no valid superblock");

    let empty = World::from_image(world.image());
    empty.edit(0, |d| d[..HEADER as usize].fill(0));
    says(&empty, IDENTITY, "no spirula store");

    for (version, word) in [(9, "use the newer program"), (1, "development version")] {
        let other = World::from_image(world.image());
        other.edit(0, |d| {
            for at in [0, COPY_STRIDE as usize] {
                let copy = &mut d[at..at + 4096];
                copy[8] = version;
                let crc = spirula_encoding::crc::crc32c(u32::MAX, &copy[..4092]);
                copy[4092..].copy_from_slice(&crc.to_le_bytes());
            }
        });
        says(&other, IDENTITY, &format!("format {version}"));
        says(&other, IDENTITY, word);
    }

    let short = World::from_image(world.image());
    short.edit(0, |d| d.truncate(1 << 20));
    says(&short, IDENTITY, "superblock says");

    let short = World::from_image(world.image());
    short.edit(1, |d| d.truncate(200 << 10));
    says(&short, IDENTITY, "label says");
}

#[test]
fn missing_swapped_and_stale_devices_are_refused_by_name() {
    let opts = tiny();
    let world = used(&opts);
    let image = world.image();
    let with = |journal: Option<Disk>| {
        let mut image = image.clone();
        image.devices.truncate(1);
        image.devices.extend(journal);
        World::from_image(image)
    };
    let s = refusal(&with(None), &opts, IDENTITY);
    assert!(s.contains("journal device of osd.3") && s.contains("missing"), "{s}");

    // A main device in the journal's place.
    let s = refusal(&with(Some(image.devices[0].clone())), &opts, IDENTITY);
    assert!(
        s.contains("is the main device of osd.3") && s.contains("not the journal device"),
        "{s}"
    );
    // And the other way around.
    let mut swapped = image.clone();
    swapped.devices.swap(0, 1);
    let s = refusal(&World::from_image(swapped), &opts, IDENTITY);
    assert!(s.contains("is the journal device of osd.3"), "{s}");

    // The journal of another store.
    let mut other = image.devices[1].bytes();
    for at in [0, COPY_STRIDE as usize] {
        let copy = &mut other[at..at + 4096];
        copy[64] ^= 1;
        let crc = spirula_encoding::crc::crc32c(u32::MAX, &copy[..4092]);
        copy[4092..].copy_from_slice(&crc.to_le_bytes());
    }
    let s = refusal(&with(Some(Disk::of(&other))), &opts, IDENTITY);
    assert!(s.contains("04040404-0404-0404-0504-040404040404"), "{s}");

    // Copies from before the last openings.
    for stale in 0..2 {
        let later = World::from_image(image.clone());
        for _ in 0..2 {
            open(&later, &opts).unwrap().close().unwrap();
        }
        let mut mixed = later.image();
        mixed.devices[stale] = image.devices[stale].clone();
        let s = refusal(&World::from_image(mixed), &opts, IDENTITY);
        assert!(
            s.contains(["main device is an old copy", "old copy of the journal device"][stale]),
            "{s}"
        );
    }
}

#[test]
fn one_damaged_superblock_copy_does_no_harm() {
    let opts = tiny();
    for copy in 0..2 {
        let world = create(&opts);
        let mut store = open(&world, &opts).unwrap();
        store.submit(write(&object(1), 0, 1, 100)).unwrap();
        store.close().unwrap();
        world.edit(0, |d| d[copy * COPY_STRIDE as usize + 77] ^= 0x40);
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
        lost.edit_ring(|d| d[frame * 3 * 4096..(frame * 3 + 3) * 4096].fill(0));
        let s = refusal(&lost, &opts, IDENTITY);
        assert!(s.contains(&format!("frame {frame} is missing")), "{s}");
    }
    // Any damaged bit in it likewise.
    let mut rng = Rng(1);
    for _ in 0..200 {
        let rotten = World::from_image(world.image());
        let frame = rng.below(5) as usize;
        rotten.edit_ring(|d| {
            let len =
                u32::from_le_bytes(d[frame * 3 * 4096 + 68..][..4].try_into().unwrap()) as u64 + 96;
            assert!((8192..12288).contains(&len), "{len}");
            let bit = rng.below(len * 8) as usize;
            d[frame * 3 * 4096 + bit / 8] ^= 1 << (bit % 8);
        });
        refusal(&rotten, &opts, IDENTITY);
    }
}

#[test]
pub(crate) fn frames_that_arrived_before_a_lost_one_are_erased_and_never_follow_another() {
    let opts = tiny();
    let world = used(&opts);
    let place = |frame: usize| frame * 3 * 4096;
    // Frame 5 was under way with frame 4, and says so; 4 never arrived, no mark was written.
    world.edit_ring(|d| {
        d[place(4)..place(5)].fill(0);
        d[place(6)..].fill(0);
        let header = &mut d[place(5)..place(5) + 96];
        header[40..48].copy_from_slice(&4u64.to_le_bytes());
        let crc = spirula_encoding::crc::crc32c(u32::MAX, &header[..92]);
        header[92..].copy_from_slice(&crc.to_le_bytes());
    });
    let mut store = open(&world, &opts).unwrap();
    assert_eq!(store.last_seq(), 4);
    // Before anything else is written: a mark might hide it.
    let behind = world.image().devices[1].bytes()[HEADER as usize + place(5)..][..4].to_vec();
    assert!(
        behind != b"SPJF",
        "what takes the place of the lost frame will seem to be followed by another"
    );
    store.submit(write(&object(8), 0, 8, 5000)).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = open(&world, &opts).unwrap();
    assert_eq!(store.last_seq(), 5);
    assert_eq!(store.read_blocking(&object(8), 0, 5000).unwrap().unwrap(), pattern(8, 5000));
    assert!(store.read_blocking(&object(4), 0, 10).unwrap().is_none());
}

#[test]
fn rot_in_the_last_frame_is_told_from_a_torn_one_once_it_was_marked() {
    let opts = tiny();
    for single in [false, true] {
        let world = if single { create_single(&opts) } else { create(&opts) };
        let mut store = open(&world, &opts).unwrap();
        for i in 0..6 {
            store.submit(write(&object(i), 0, i, 5000)).unwrap();
            store.flush().unwrap();
        }
        let ring = if single { 0 } else { 1 };
        let last = HEADER as usize + 5 * 3 * 4096;
        // An idle moment later the frame is known to have been durable.
        let marked =
            |w: &World| w.image().devices[ring].bytes()[last + 3 * 4096..].starts_with(b"SPJM");
        for _ in 0..60_000 {
            if marked(&world) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(marked(&world), "never marked");
        drop(store);
        let rotten = World::from_image(world.image());
        rotten.edit(ring, |d| d[last + 5000] ^= 4);
        let s = refusal(&rotten, &opts, IDENTITY);
        assert!(s.contains("the mark of frame 6 is there"), "{s}");
        // Without its mark it may be one that was being written: what came before is there.
        let torn = World::from_image(world.image());
        torn.edit(ring, |d| {
            d[last + 5000] ^= 4;
            d[last + 3 * 4096..last + 4 * 4096].fill(0);
        });
        assert_eq!(open(&torn, &opts).unwrap().last_seq(), 5);
        // The mark is no frame: work goes on in its place.
        let mut store = open(&world, &opts).unwrap();
        assert_eq!(store.last_seq(), 6);
        store.submit(write(&object(9), 0, 9, 100)).unwrap();
        store.flush().unwrap();
        drop(store);
        assert_eq!(open(&world, &opts).unwrap().last_seq(), 7);
    }
}

#[test]
pub(crate) fn devices_that_lost_acknowledged_writes_are_found_out() {
    // No checkpoint comes between.
    let opts = StoreOptions { journal_size: 1 << 20, cache_bytes: 1 << 20, ..tiny() };
    let world = used(&opts);
    // Opening writes a superblock that knows of six frames.
    let mut store = open(&world, &opts).unwrap();
    for i in 0..3 {
        store.submit(write(&object(i), 0, i, 100)).unwrap();
        store.flush().unwrap();
    }
    drop(store);
    // All that the journal got since the superblock is gone, and more.
    let lost = World::from_image(world.image());
    lost.edit_ring(|d| d[4 * 3 * 4096..].fill(0));
    let s = refusal(&lost, &opts, IDENTITY);
    assert!(s.contains("the superblock knows that 6 were durable"), "{s}");
    // The main device lost a superblock that another one's label knows of; where it has all by
    // itself, that its journal knows of.
    for (world, says) in [
        (world, "the main device is an old copy, or lost writes"),
        (create_single(&opts), "after superblock"),
    ] {
        drop(open(&world, &opts).unwrap());
        let before = world.image();
        let mut store = open(&world, &opts).unwrap();
        store.submit(write(&object(7), 0, 7, 100)).unwrap();
        store.flush().unwrap();
        drop(store);
        let mut lost = world.image();
        lost.devices[0].write(&before.devices[0].bytes()[..HEADER as usize], 0).unwrap();
        let s = refusal(&World::from_image(lost), &opts, IDENTITY);
        assert!(s.contains(says), "{s}");
    }
}

#[test]
fn unreadable_data_is_reported_for_the_object_and_nothing_else_stops() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    for i in 0..3 {
        store.submit(write(&object(i), 0, i, 5000)).unwrap();
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    let head = store.onode(&object(1)).unwrap().unwrap();
    let at = HEADER + head.inline.as_ref().unwrap().device_runs().next().unwrap().start * BLOCK;
    world.fail_reads(Some((0, at..at + 10)));
    let e = store.read_blocking(&object(1), 0, 5000).unwrap_err();
    assert!(matches!(&e, StoreError::Unreadable { .. }), "{e}");
    // A partial overwrite needs the old bytes: refused, without effect.
    assert!(matches!(
        store.submit(write(&object(1), 10, 5, 10)),
        Err(StoreError::Unreadable { .. })
    ));
    assert_eq!(store.read_blocking(&object(2), 0, 5000).unwrap().unwrap(), pattern(2, 5000));
    // A full overwrite repairs it.
    store.submit(write(&object(1), 0, 9, 8192)).unwrap();
    store.flush().unwrap();
    assert_eq!(store.read_blocking(&object(1), 0, 8192).unwrap().unwrap(), pattern(9, 8192));
}

#[test]
fn store_uses_what_its_device_has_grown_by() {
    let opts = StoreOptions { size: 2 << 20, ..tiny() };
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut n = 0;
    while store.submit(write(&object(n), 0, n, 30_000)).is_ok() {
        n += 1;
    }
    let total = store.statfs().total;
    store.close().unwrap();
    world.edit(0, |d| d.resize(d.len() + (3 << 20) + 1000, 0));
    let mut store = open(&world, &opts).unwrap();
    assert_eq!(store.statfs().total, total + (3 << 20));
    let mut more = 0;
    while store.submit(write(&object(1000 + more), 0, more, 30_000)).is_ok() {
        more += 1;
    }
    assert!(more >= 90, "{more} more after {n}");
    store.close().unwrap();
    let store = open(&world, &opts).unwrap();
    assert_eq!(store.statfs().total, total + (3 << 20));
    for i in 0..more {
        assert_eq!(
            store.read_blocking(&object(1000 + i), 0, 30_000).unwrap().unwrap(),
            pattern(i, 30_000)
        );
    }
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
    t.object(
        &object(2),
        ObjectOp::SetAttrs(vec![(
            "big".into(),
            vec![1; spirula_types::limits::VALUE_MAX + 1].into(),
        )]),
    );
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

#[test]
fn every_flipped_bit_in_compressed_or_xxhashed_data_is_detected_also_past_the_caches_and_by_clones()
{
    use crate::{Algorithm, Checksum, CompressionMode, PoolOptions};
    let opts = tiny();
    for (mode, checksum) in
        [(CompressionMode::Force, Checksum::Crc32c), (CompressionMode::None, Checksum::Xxhash64)]
    {
        let world = create(&opts);
        let mut store = open(&world, &opts).unwrap();
        let o = object(1);
        store.set_pool_options(
            o.pool,
            PoolOptions { mode, algorithm: Algorithm::Zstd, checksum, ..PoolOptions::default() },
        );
        // Half of each block is noise, so that a blob takes several blocks.
        let data: Vec<u8> = (0..8)
            .flat_map(|i| [pattern(3 * i + 1, 2048), Bytes::from(vec![0; 2048])].concat())
            .collect();
        let mut t = Transaction::default();
        t.object(&o, ObjectOp::Write { offset: 0, data: data.clone().into() });
        store.submit(t).unwrap();
        let clone = object(3);
        let mut t = Transaction::default();
        t.object(&clone, ObjectOp::CloneFrom(o.clone()));
        store.submit(t).unwrap();
        store.flush().unwrap();
        store.close().unwrap();
        let store = open(&world, &opts).unwrap();
        let head = store.onode(&clone).unwrap().unwrap();
        let blocks: Vec<u64> = head
            .inline
            .as_ref()
            .unwrap()
            .device_runs()
            .flat_map(|r| r.start..r.start + r.len)
            .collect();
        assert_eq!(blocks.len() < 8, mode == CompressionMode::Force);
        let mut rng = Rng(9);
        for block in blocks {
            for _ in 0..20 {
                let (byte, bit) = ((block * BLOCK + rng.below(BLOCK)) as usize, rng.below(8));
                world.edit_data(|d| d[byte] ^= 1 << bit);
                for name in [&o, &clone] {
                    assert!(matches!(
                        store.read_blocking(name, 0, 32768),
                        Err(StoreError::Checksum { .. })
                    ));
                    let Ok(Read::NotReady(plan)) = store.read_uncached(name, 0, 32768) else {
                        panic!("not a plan")
                    };
                    assert!(
                        matches!(plan.run(), Err(StoreError::Checksum { object, .. }) if *object == *name)
                    );
                }
                world.edit_data(|d| d[byte] ^= 1 << bit);
            }
        }
        assert_eq!(store.read_blocking(&clone, 0, 32768).unwrap().unwrap(), data);
    }
}

/// Transactions until the fault has come and something has failed of it; every outcome is
/// right: no effect, or the store stops. Then what was acknowledged is there.
fn survive(fault: Fault, seed: u64) -> bool {
    let opts = StoreOptions { size: 1 << 20, ..tiny() };
    let world = if seed.is_multiple_of(2) { create(&opts) } else { create_single(&opts) };
    let what = format!("{fault:?}, seed {seed}");
    let mut walk = Walk::new(seed);
    let mut store = open(&world, &opts).unwrap();
    world.set_cold(seed % 4 < 2);
    world.record();
    world.inject(Some(fault));
    let stops = !matches!(fault, Fault::Read(_) | Fault::Zeros(_));
    for step in 0..150 {
        match walk.step(&mut store, step) {
            Ok(()) => {}
            Err(
                StoreError::Io { action: "read", .. }
                | StoreError::Unreadable { .. }
                | StoreError::Checksum { .. }
                | StoreError::Corrupt(_),
            ) if !stops && world.struck() => {}
            Err(StoreError::Poisoned(_)) if world.struck() => break,
            Err(e) => panic!("{what}: {e}"),
        }
        if walk.rng.below(8) == 0 && store.flush().is_err() {
            break;
        }
    }
    let models = walk.models;
    let mut died = store.flush().is_err();
    let struck = world.struck();
    // A checkpoint or a mark that failed is noticed by another thread, soon.
    let begun = std::time::Instant::now();
    while stops && struck && !died && begun.elapsed().as_secs() < 120 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        died = store.flush().is_err();
    }
    assert!(!stops || died == struck, "{what}: went unnoticed");
    if died {
        assert!(
            matches!(store.submit(Transaction::default()), Err(StoreError::Poisoned(_))),
            "{what}"
        );
    }
    // Its threads have ended then, the one that reports among them.
    drop(store);
    if died {
        assert_eq!(world.errors().len(), 1, "{what}");
    }
    world.inject(None);
    let acked = world.take_events().iter().rev().find_map(|e| match e {
        super::sim::Event::Ack(seq) => Some(*seq),
        _ => None,
    });
    let mut store = open(&world, &opts).unwrap_or_else(|e| panic!("{what}: {e}"));
    let seq = store.last_seq();
    assert!(
        seq >= acked.unwrap_or(0) && (seq as usize) < models.len(),
        "{what}: {seq} of {acked:?}"
    );
    models[seq as usize].check(&mut store, &what);
    super::sound(&store, &what);
    struck
}

/// Every n-th operation of a kind fails, for every n up to `count`.
pub(crate) fn every_nth(kind: fn(u64) -> Fault, count: u64) {
    let struck = (0..count).filter(|n| survive(kind(*n), n * 13 + 1)).count() as u64;
    assert!(struck > count / 3, "of {count} faults {struck} came");
}

#[test]
fn every_nth_read_may_fail() {
    every_nth(Fault::Read, 60);
}

#[test]
fn every_nth_read_may_give_zeros_and_they_are_not_believed() {
    every_nth(Fault::Zeros, 60);
}

#[test]
fn every_nth_write_may_fail() {
    every_nth(Fault::Write, 80);
}

#[test]
fn every_nth_write_may_arrive_in_part() {
    every_nth(Fault::Short, 80);
}

#[test]
fn every_nth_flush_may_fail_once() {
    every_nth(Fault::Flush, 80);
}

#[test]
pub(crate) fn data_that_reads_as_zeros_is_never_believed() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&object(1), 0, 1, 20_000)).unwrap();
    store.close().unwrap();
    let mut struck = 0;
    for n in 0..8 {
        let store = open(&world, &opts).unwrap();
        world.set_cold(true);
        world.inject(Some(Fault::Zeros(n)));
        match store.read_blocking(&object(1), 0, 20_000) {
            Ok(data) => assert_eq!(data.unwrap(), pattern(1, 20_000), "read {n}"),
            Err(e) => assert!(
                matches!(e, StoreError::Checksum { .. } | StoreError::Corrupt(_)),
                "read {n}: {e}"
            ),
        }
        struck += u64::from(world.struck());
        world.inject(None);
    }
    assert!(struck > 0, "no read was zeroed");
}

#[test]
pub(crate) fn scrub_reads_the_device_and_not_the_cache() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    store.submit(write(&object(1), 0, 1, 20_000)).unwrap();
    store.close().unwrap();
    let store = open(&world, &opts).unwrap();
    let head = store.onode(&object(1)).unwrap().unwrap();
    let at = HEADER + head.inline.as_ref().unwrap().device_runs().next().unwrap().start * BLOCK;
    world.cache();
    world.rot(0, (at + 9000) * 8 + 3);
    // Who reads sees the cache; who scrubs does not.
    assert_eq!(store.read_blocking(&object(1), 0, 20_000).unwrap().unwrap(), pattern(1, 20_000));
    let Read::NotReady(plan) = store.read_uncached(&object(1), 0, 20_000).unwrap() else {
        panic!("from a cache")
    };
    let bad = plan.run().unwrap_err();
    assert!(matches!(bad, StoreError::Checksum { offset: 8192, .. }), "{bad}");
}

#[test]
pub(crate) fn fragmented_space_is_used_to_the_last_block() {
    let opts = StoreOptions { size: 2 << 20, ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut n = 0;
    while store.submit(write(&object(n), 0, n, 4096)).is_ok() {
        n += 1;
    }
    // Every second block is free, and no two together.
    for i in (0..n).step_by(2) {
        store.submit(remove(&object(i))).unwrap();
    }
    store.flush().unwrap();
    // What deletions free is free when what they are recorded with has been put in place, a little
    // after it is durable.
    for waited in 0.. {
        store.poll();
        if store.held_back().is_empty() {
            break;
        }
        assert!(waited < 100_000, "not given back: {:?}", store.held_back());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let free = store.statfs().available;
    assert!(free > 900 << 10, "{free}");
    let mut model = Model::default();
    let mut have = 0;
    for i in 0..(free / 40_960) {
        let t = write(&object(10_000 + i), 0, i, 40_960);
        store.submit(t.clone()).unwrap_or_else(|e| panic!("after {have} of {free} bytes: {e}"));
        model.apply(&t);
        have += 40_960;
    }
    for (o, there) in &model.objects {
        assert_eq!(store.read_blocking(o, 0, u64::MAX).unwrap().unwrap(), there.data);
    }
}
