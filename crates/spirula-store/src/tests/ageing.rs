//! Devices that age: metadata and data share one, data is written over at random for ten
//! times its size, free space is in pieces. Nothing is refused while there is room, what
//! statfs offers can be had, and a full store recovers by deletion.

use super::model::{object, pattern};
use super::sim::Rng;
use super::{create_single, open, open_stepped, sound, tiny};
use crate::{Store, StoreError, StoreOptions};
use bytes::Bytes;
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, PgId};
use std::sync::atomic::Ordering;

const BLOCK: u64 = 4096;

/// A store on one device of 1 GiB, divided by so much, but for the journal.
fn part(of: usize) -> StoreOptions {
    StoreOptions {
        size: (1 << 30) / of as u64,
        journal_size: 4 << 20,
        cache_bytes: (28 << 20) / of,
        ..tiny()
    }
}

fn write(n: u64, block: u64, data: &Bytes) -> Transaction {
    let mut t = Transaction::default();
    t.object(&object(n), ObjectOp::Write { offset: block * BLOCK, data: data.clone() });
    t
}

/// Bytes of journal and of metadata (superblocks are part of it) written since the store
/// was opened.
fn written(store: &Store) -> [u64; 2] {
    let tree = store.meta.tree().stats();
    [
        store.shared.ring_head.load(Ordering::Acquire),
        tree.written_bytes + tree.generation * 2 * BLOCK,
    ]
}

/// Writes blocks to new objects until there is no more space; how many.
fn fill(store: &mut Store, first: u64, data: &Bytes) -> u64 {
    for n in 0.. {
        match store.submit(write(first + n / 1024, n % 1024, data)) {
            Ok(_) => {}
            Err(StoreError::NoSpace { .. }) => return n,
            Err(e) => panic!("{e}"),
        }
    }
    0
}

/// Who does the work while a device is written over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The store's threads: how many transactions share a frame hangs on the machine's load.
    Threads,
    /// Its owner, after each so many transactions: how much is written hangs on nothing else.
    Steps(u64),
}

/// Fills so much of the device with objects of 4 MiB, then writes over 4 KiB of them at
/// random, so many times its size, each with a log entry and every tenth with a pair of an
/// index. For each byte at most `most` are written to the device.
fn overwritten(opts: &StoreOptions, by: By, percent: u64, times: u64, most: f64) {
    let world = create_single(opts);
    let mut store =
        if by == By::Threads { open(&world, opts) } else { open_stepped(&world, opts) }.unwrap();
    let total = store.statfs().total;
    let wanted = total * percent / 100 / BLOCK;
    let (large, small) = (pattern(1, 4 << 20), pattern(2, 4096));
    let mut t = Transaction::default();
    for n in 0..wanted.div_ceil(1024) {
        let blocks = (wanted - n * 1024).min(1024);
        t.objects.clear();
        t.object(
            &object(n),
            ObjectOp::Write { offset: 0, data: large.slice(..(blocks * BLOCK) as usize) },
        );
        store.submit(&t).unwrap();
    }
    store.flush().unwrap();
    let (begun, count) = (written(&store), total * times / BLOCK);
    let mut rng = Rng(3);
    for n in 0..count {
        let block = rng.below(wanted);
        let mut t = write(block / 1024, block % 1024, &small);
        let entry = MetaOp::LogAppend {
            pg: PgId::new(1, 0),
            version: EVersion::new(1, n + 1),
            entry: pattern(n, 150),
        };
        t.meta.push(entry);
        if n % 100 == 0 {
            t.meta.push(MetaOp::LogTrim {
                pg: PgId::new(1, 0),
                to: EVersion::new(1, n.saturating_sub(3000)),
            });
        }
        if n % 10 == 0 {
            let key = Bytes::from(format!("{:09}", n % 5000));
            t.object(&object(100_000), ObjectOp::OmapSet(vec![(key, pattern(n, 200))]));
        }
        if let Err(e) = store.submit(t) {
            let (s, runs) = (store.statfs(), store.alloc().free_runs());
            panic!("{percent} % full, overwrite {n} of {count}: {e}; {s:?}, free runs {runs:?}");
        }
        if let By::Steps(together) = by
            && (n + 1) % together == 0
        {
            while store.step() {}
        }
    }
    store.flush().unwrap();
    let now = written(&store);
    let [journal, metadata] = [0, 1].map(|i| (now[i] - begun[i]) as f64 / (count * BLOCK) as f64);
    // And the blocks themselves.
    let amplified = journal + metadata + 1.0;
    let s = store.statfs();
    println!(
        "{percent} % full, {count} overwrites: {amplified:.2} bytes written for each (journal \
            {journal:.2}, metadata {metadata:.2}, {} commits), metadata {} of {} KiB, {} KiB \
            available",
        store.meta.tree().stats().generation,
        s.metadata >> 10,
        s.total >> 10,
        s.available >> 10
    );
    assert!(amplified <= most, "{amplified} bytes written for each byte of an overwrite");
    sound(&store, "overwritten");
    // What is offered can be had.
    let had = fill(&mut store, 1000, &small) * BLOCK;
    assert!(
        had.abs_diff(s.available) < total / 50,
        "{} KiB offered, {} KiB had",
        s.available >> 10,
        had >> 10
    );
    for n in (0..wanted.div_ceil(1024)).chain(1000..1000 + had.div_ceil(4 << 20)) {
        t.objects.clear();
        t.object(&object(n), ObjectOp::Remove);
        store.submit(&t).unwrap_or_else(|e| panic!("a full store: {e}"));
    }
    store.close().unwrap();
    let mut store = open(&world, opts).unwrap();
    assert!(store.statfs().available > total * 95 / 100, "{:?}", store.statfs());
    assert!(fill(&mut store, 1, &small) * BLOCK > total * 93 / 100);
    sound(&store, "filled again");
}

#[test]
fn random_overwrites_of_a_half_full_device_are_never_refused() {
    // 2.9 alone, 3.03 beside others. This is to notice a multiple of it.
    overwritten(&part(4), By::Threads, 55, 3, 4.0);
}

#[test]
fn random_overwrites_of_a_device_that_is_95_per_cent_full_are_never_refused() {
    // What is kept for the largest record does not shrink with the device: less memory.
    overwritten(&StoreOptions { cache_bytes: 3 << 20, ..part(4) }, By::Threads, 95, 2, 4.0);
}

/// As many as a PG's clients have under way share a frame; then the load of the machine plays no
/// part.
#[test]
fn sixteen_overwrites_at_a_time_write_at_most_three_bytes_for_each_of_theirs() {
    overwritten(&part(4), By::Steps(16), 55, 10, 3.0);
}

#[test]
#[ignore = "takes minutes: cargo xtask soak store"]
fn soak_of_random_overwrites() {
    let opts = StoreOptions { journal_size: 64 << 20, ..part(1) };
    overwritten(&opts, By::Steps(16), 55, 10, 3.0);
    overwritten(&opts, By::Steps(16), 95, 10, 3.0);
}

/// Free space is single blocks between used ones: metadata grows in it, and so does data.
#[test]
fn space_in_pieces_serves_metadata_and_data_to_the_last_block() {
    let opts = StoreOptions { size: 61 << 20, cache_bytes: 1 << 20, ..tiny() };
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    let total = store.statfs().total;
    let data = pattern(1, 4096);
    // Two objects at a time, written in turn: neighbours on the device belong to two objects.
    let blocks =
        (0..).find(|n| match store.submit(write(n % 2 + n / 256 * 2, n % 256 / 2, &data)) {
            Ok(_) => false,
            Err(StoreError::NoSpace { .. }) => true,
            Err(e) => panic!("{e}"),
        });
    let blocks = blocks.unwrap();
    assert!(blocks * BLOCK > total * 92 / 100, "{blocks} blocks of {}", total / BLOCK);
    for i in 0..blocks.div_ceil(256) {
        let mut t = Transaction::default();
        t.object(&object(2 * i), ObjectOp::Remove);
        store.submit(t).unwrap();
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    let free = store.statfs().available;
    assert!(free > total * 45 / 100, "{free} of {total} bytes available");
    let longest = store.alloc().free_runs().into_keys().next_back();
    println!("{} KiB available, longest run {longest:?} blocks or more", free >> 10);
    // Metadata alone takes a quarter of it.
    for n in 0..free / 4 / 1100 {
        let mut t = Transaction::default();
        let pair = (Bytes::from(format!("{n:08}")), pattern(2, 1024));
        t.object(&object(1), ObjectOp::OmapSet(vec![pair]));
        store.submit(t).unwrap_or_else(|e| panic!("pair {n}: {e}; {:?}", store.statfs()));
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    sound(&store, "metadata in pieces");
    let offered = store.statfs().available;
    let had = fill(&mut store, 10_000, &data) * BLOCK;
    assert!(
        had.abs_diff(offered) < total / 50,
        "{} KiB offered, {} KiB had",
        offered >> 10,
        had >> 10
    );
    // All of it goes again.
    for n in (0..blocks.div_ceil(256) * 2).chain(10_000..10_000 + had.div_ceil(4 << 20)) {
        let mut t = Transaction::default();
        t.object(&object(n), ObjectOp::Remove);
        store.submit(t).unwrap_or_else(|e| panic!("a full store: {e}"));
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    // Pairs of removed omaps go in steps, and closing waits for none but the first.
    store.wait(|s| {
        s.checkpointed.load(Ordering::Acquire) > 0 && s.dead.load(Ordering::Acquire) == 0
    });
    sound(&store, "emptied");
    let s = store.statfs();
    assert!(s.used == 0 && s.available > total * 95 / 100, "{s:?}");
}

/// No two free blocks adjoin: keys and values of every length that are taken are stored by
/// the next checkpoint, and found after it.
#[test]
fn what_is_long_needs_no_space_that_adjoins() {
    let opts = StoreOptions { size: 45 << 20, cache_bytes: 16 << 20, ..tiny() };
    let world = create_single(&opts);
    let mut store = open(&world, &opts).unwrap();
    let data = pattern(1, 4096);
    // Two objects at a time, written in turn; then every second one goes.
    let blocks =
        (0..).find(|n| match store.submit(write(n % 2 + n / 256 * 2, n % 256 / 2, &data)) {
            Ok(_) => false,
            Err(StoreError::NoSpace { .. }) => true,
            Err(e) => panic!("{e}"),
        });
    for i in 0..blocks.unwrap().div_ceil(256) {
        let mut t = Transaction::default();
        t.object(&object(2 * i), ObjectOp::Remove);
        store.submit(t).unwrap();
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    // The few runs there are go to small objects.
    let mut n = 2000;
    while store.alloc().free_runs().into_keys().next_back().is_some_and(|longest| longest > 1) {
        n += 1;
        let longest = store.alloc().free_runs().into_keys().next_back().unwrap_or(1);
        store.submit(write(n, 0, &pattern(2, (longest * BLOCK) as usize))).unwrap();
    }
    let key = |n: u8, len: usize| Bytes::from([vec![b'k'; len - 1], vec![n]].concat());
    let pairs: Vec<(Bytes, Bytes)> =
        (0..20).map(|n| (key(n, 60_000), pattern(u64::from(n), 3000))).collect();
    let mut t = Transaction::default();
    t.object(&object(5000), ObjectOp::OmapSet(pairs.clone()));
    t.object(&object(5001), ObjectOp::OmapSet(vec![("large".into(), pattern(7, 2 << 20))]));
    store.submit(t).unwrap();
    store.close().unwrap_or_else(|e| panic!("acknowledged, and never to be stored: {e}"));
    let store = open(&world, &opts).unwrap();
    for (k, v) in &pairs {
        assert_eq!(
            store.omap_get(&object(5000), std::slice::from_ref(k)).unwrap().unwrap(),
            [(k.clone(), v.clone())]
        );
    }
    let large = store.omap_get(&object(5001), &["large".into()]).unwrap().unwrap();
    assert_eq!(large, [("large".into(), pattern(7, 2 << 20))]);
    sound(&store, "long keys in pieces");
}

/// This thread's time on a processor: what others have of it does not count.
fn cpu() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What requests cost on a device of 16 TiB of which every second block is free, or all but
/// one of 64: of the processor, under 1 ms for all but one of 1,000, and 10 ms for the slowest.
#[test]
#[ignore = "takes 1 GiB of memory: cargo xtask soak store"]
fn soak_of_requests_on_16_tib_in_pieces() {
    use crate::alloc::{Allocator, GROUP_BLOCKS};
    for (name, byte) in [("every second block free", 0x55u8), ("one block of 64 used", 0)] {
        let groups = 16u64 << (40 - 12 - 15);
        let mut map = vec![byte; 4096];
        if byte == 0 {
            map.iter_mut().step_by(8).for_each(|b| *b = 1);
        }
        let mut a = Allocator::new(groups * GROUP_BLOCKS);
        let begun = std::time::Instant::now();
        (0..groups).for_each(|g| assert!(a.load_group(g as u32, &map)));
        let loaded = begun.elapsed();
        let mut rng = Rng(1);
        let mut took: Vec<(std::time::Duration, u64)> = Vec::new();
        let mut held = Vec::new();
        for _ in 0..20_000 {
            let n = [1, 1, 4, 16, 256, 1024][rng.below(6) as usize];
            let mut out = Vec::new();
            let begun = cpu();
            assert!(a.allocate(n, &mut out));
            took.push((cpu() - begun, n));
            held.extend(out);
            if rng.below(2) == 0 {
                let run = held.swap_remove(rng.below(held.len() as u64) as usize);
                assert!(a.mark_free(run));
            }
        }
        let first = took[0];
        // What the owner does for a checkpoint of all of it, and the first change of each group
        // after that.
        (0..groups)
            .for_each(|g| a.touch(crate::alloc::PhysRun { start: g * GROUP_BLOCKS, len: 1 }));
        let begun = cpu();
        let dirty = a.take_dirty(Vec::new());
        let handed = cpu();
        let bytes: usize = dirty.bitmaps().iter().map(|(_, map)| map.len()).sum();
        let (handed, made) = (handed - begun, cpu() - handed);
        println!(
            "{name}: {groups} groups handed to a checkpoint in {handed:?}; it makes {bytes} bytes \
                of them in {made:?}"
        );
        drop(dirty);
        took.sort_unstable();
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
        println!(
            "{name}: loaded in {loaded:?}; first request {first:?}, half {:?}, 99 % {:?}, 99.9 % \
                {:?}, slowest {:?}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
        let [most, slowest] = [at(0.999).0, at(1.0).0].map(|t| t.as_secs_f64() * 1e3);
        assert!(
            most < 1.0 && slowest < 10.0,
            "{name}: 99.9 % in {most:.2} ms, slowest {slowest:.2} ms"
        );
    }
}
