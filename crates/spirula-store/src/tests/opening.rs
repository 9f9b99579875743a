//! Openings that go wrong: sectors that cannot be read, reads that give something else once,
//! devices put back to an earlier state.

use super::crash::durable_only;
use super::model::{Model, object, pattern, random_txn};
use super::sim::{Fault, Rng, World};
use super::{create, create_single, format, open, sound, tiny};
use crate::superblock::{COPY_STRIDE, HEADER};
use crate::{Store, StoreOptions};
use spirula_types::transaction::{ObjectOp, Transaction};

fn submit(store: &mut Store, n: u64, seed: u64) {
    let mut t = Transaction::default();
    t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(seed, 5000) });
    store.submit(t).unwrap();
    store.flush().unwrap();
}

/// Six transactions, each of them a frame of three blocks, and then no proper end.
fn used(opts: &StoreOptions, single: bool) -> World {
    let world = if single { create_single(opts) } else { create(opts) };
    let mut store = open(&world, opts).unwrap();
    for i in 0..6 {
        submit(&mut store, i, i);
    }
    drop(store);
    world
}

fn holds_six(store: &Store, what: &str) {
    for i in 0..6 {
        assert_eq!(
            store.read_blocking(&object(i), 0, 5000).unwrap().unwrap(),
            pattern(i, 5000),
            "{what}"
        );
    }
}

#[test]
pub(crate) fn main_device_of_before_the_last_opening_is_refused() {
    let opts = tiny();
    // The journal has a device of its own; the metadata has one, or is on the main device.
    for sizes in [
        vec![opts.size + (3 << 20), opts.journal_size],
        vec![opts.size, opts.journal_size, 3 << 20],
    ] {
        // Few transactions, or so many that the journal goes round.
        for count in [0, 3, 100] {
            let world = World::new(&sizes.iter().map(|n| HEADER + n).collect::<Vec<_>>());
            format(&world, &opts);
            let mut store = open(&world, &opts).unwrap();
            submit(&mut store, 1, 1);
            store.close().unwrap();
            let old = world.image().devices[0].clone();
            let mut store = open(&world, &opts).unwrap();
            (0..count).for_each(|n| submit(&mut store, n % 5, 100 + n));
            store.close().unwrap();
            let mut image = world.image();
            image.devices[0] = old;
            let world = World::from_image(image.clone());
            let e = open(&world, &opts).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(e.contains("main device is an old copy"), "{count} transactions later: '{e}'");
            assert!(world.image() == image, "something was written");
        }
    }
}

#[test]
fn an_opening_that_is_cut_short_anywhere_can_be_made_again() {
    let opts = tiny();
    for n in 0..60 {
        let world = used(&opts, n % 2 == 1);
        world.inject(Some(Fault::Dead(n / 2)));
        let first = open(&world, &opts);
        let struck = world.struck();
        drop(first);
        world.inject(None);
        let store = open(&world, &opts).unwrap_or_else(|e| panic!("after {n} writes: {e}"));
        holds_six(&store, "cut short");
        if !struck {
            assert!(n > 10, "only {n} writes");
            return;
        }
    }
    panic!("an opening of more than 30 writes");
}

#[test]
pub(crate) fn unreadable_copies_of_labels_cost_nothing_and_are_written_anew() {
    let opts = tiny();
    for (dev, at) in [(0, 0), (0, COPY_STRIDE), (1, 0), (1, COPY_STRIDE), (2, 0), (2, COPY_STRIDE)]
    {
        let world = used(&opts, false);
        world.fail_reads(Some((dev, at..at + 512)));
        let store =
            open(&world, &opts).unwrap_or_else(|e| panic!("device {dev}, copy at {at}: {e}"));
        assert!(store.notes.iter().any(|n| n.contains("label")), "{:?}", store.notes);
        assert!(!world.fails_reads(), "device {dev}, copy at {at}: not written anew");
        holds_six(&store, "a label");
    }
    // Of both copies nothing can be said: that is no foreign device, and nothing is written.
    let world = used(&opts, false);
    world.fail_reads(Some((0, 0..HEADER)));
    let e = open(&world, &opts).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(e.contains("read main"), "{e}");
}

/// A power cut while a sector is written leaves it unreadable on many disks.
#[test]
pub(crate) fn an_unreadable_frame_that_was_under_way_costs_nothing_else() {
    let opts = StoreOptions { journal_size: 1 << 20, cache_bytes: 1 << 20, ..tiny() };
    for (single, dev) in [(false, 1), (true, 0)] {
        // Its header, or only its end.
        for sector in [0, 512 * 9] {
            let world = used(&opts, single);
            let at = HEADER + 6 * 3 * 4096 + sector;
            world.fail_reads(Some((dev, at..at + 512)));
            let mut store = open(&world, &opts).unwrap();
            holds_six(&store, "the frame under way");
            submit(&mut store, 7, 7);
            submit(&mut store, 8, 8);
            drop(store);
            assert!(!world.fails_reads(), "not written anew");
            let store = open(&world, &opts).unwrap();
            holds_six(&store, "opened again");
            assert_eq!(
                store.read_blocking(&object(8), 0, 5000).unwrap().unwrap(),
                pattern(8, 5000)
            );
            sound(&store, "opened again");
        }
    }
}

/// An unreadable frame that others stand behind was durable, for all that is known.
#[test]
fn an_unreadable_frame_amid_others_is_told_and_nothing_is_erased() {
    let opts = StoreOptions { journal_size: 1 << 20, cache_bytes: 1 << 20, ..tiny() };
    for frame in 0..6 {
        let world = used(&opts, false);
        let at = HEADER + frame * 3 * 4096;
        world.fail_reads(Some((1, at..at + 512)));
        let image = world.image();
        let e = open(&world, &opts).err().map(|e| e.to_string());
        // The last one may have been under way when all that is known was written.
        assert!(e.is_some() || frame == 5, "frame {frame}");
        if e.is_some() {
            assert!(world.image() == image, "something was written");
            world.fail_reads(None);
            holds_six(&open(&world, &opts).unwrap(), "readable again");
        }
    }
}

/// What was taken for torn once is never taken for whole later: in between the store was served
/// without it.
#[test]
pub(crate) fn a_torn_frame_at_the_journals_end_never_comes_back() {
    let opts = StoreOptions { journal_size: 1 << 20, cache_bytes: 1 << 20, ..tiny() };
    let world = used(&opts, false);
    let misread = || world.edit_ring(|d| d[(5 * 3 + 1) * 4096 + 100] ^= 1);
    misread();
    let served = open(&world, &opts).unwrap().last_seq();
    misread();
    assert_eq!(open(&world, &opts).unwrap().last_seq(), served, "it came back");
}

#[test]
pub(crate) fn unreadable_sectors_in_dead_parts_of_the_ring_cost_nothing_and_are_written_anew() {
    let opts = StoreOptions { journal_size: 1 << 20, cache_bytes: 1 << 20, ..tiny() };
    for (single, dev) in [(false, 1), (true, 0)] {
        let world = used(&opts, single);
        let at = HEADER + (1 << 20) - 4096;
        world.fail_reads(Some((dev, at..at + 512)));
        let store = open(&world, &opts).unwrap();
        holds_six(&store, "the ring");
        assert!(!world.fails_reads(), "not written anew");
        assert!(store.notes.iter().any(|n| n.contains("journal")), "{:?}", store.notes);
    }
}

/// Opens a crashed store with each read in turn going wrong once: it is refused (and whole at
/// the next attempt), or nothing is lost or harmed, then or later.
pub(crate) fn read_wrong_once(kind: fn(u64) -> Fault, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let opts =
            StoreOptions { size: 768 << 10, journal_size: 1 << 20, cache_bytes: 1 << 20, ..tiny() };
        let world = if seed % 2 == 0 { create(&opts) } else { create_single(&opts) };
        let mut rng = Rng(seed);
        let mut model = Model::default();
        let start = world.image();
        world.record();
        let mut store = open(&world, &opts).unwrap();
        for n in 0..25 {
            let t = random_txn(&mut rng, &model, n + 1, false);
            if store.submit(t.clone()).is_ok() {
                model.apply(&t);
            }
        }
        store.flush().unwrap();
        let acked = store.last_seq();
        drop(store);
        // Small data in its blocks is not sure before a checkpoint: a power cut takes it.
        let image = durable_only(start, &world.take_events());
        let mut struck = 0;
        for n in 0..400 {
            let world = World::from_image(image.clone());
            world.inject(Some(kind(n)));
            let first = open(&world, &opts);
            if !world.struck() {
                break;
            }
            struck += 1;
            world.inject(None);
            let what = format!("seed {seed}, read {n}");
            let mut store = match first {
                Ok(store) => store,
                Err(_) => {
                    open(&world, &opts).unwrap_or_else(|e| panic!("{what}: refused for good: {e}"))
                }
            };
            assert_eq!(store.last_seq(), acked, "{what}: acknowledged transactions are gone");
            model.check(&mut store, &what);
            if n % 8 == 0 {
                // Nor does it come out later.
                let t = random_txn(&mut Rng(n), &model, 100, false);
                let mut after = model.clone();
                if store.submit(t.clone()).is_ok() {
                    after.apply(&t);
                }
                store.flush().unwrap();
                drop(store);
                let mut store =
                    open(&world, &opts).unwrap_or_else(|e| panic!("{what}, later: {e}"));
                after.check(&mut store, &what);
                sound(&store, &what);
            }
        }
        assert!(struck > 3, "seed {seed}: {struck} reads in all");
    }
}

#[test]
fn a_read_that_gives_zeros_once_while_opening_becomes_nothing_lasting() {
    read_wrong_once(Fault::Zeros, 0..8);
}

#[test]
fn a_read_that_fails_once_while_opening_becomes_nothing_lasting() {
    read_wrong_once(Fault::Read, 0..8);
}
