//! Space of compressed data that is overwritten in part, of sparse objects, and of what is
//! being read.

use super::model::{Model, object, pattern};
use super::{create, open, sound, tiny};
use crate::{Algorithm, CompressionMode, PoolOptions, Read, StoreOptions};
use bytes::Bytes;
use spirula_types::transaction::{ObjectOp, Transaction};

fn of(n: u64, op: ObjectOp) -> Transaction {
    let mut t = Transaction::default();
    t.object(&object(n), op);
    t
}

/// Blocks of noise with a few zeros at the end: they compress, but not by much.
fn stiff(seed: u64, len: usize) -> Bytes {
    let block =
        |i: usize| [pattern(3 * (seed + i as u64) + 1, 3300), Bytes::from(vec![0; 796])].concat();
    (0..len / 4096).flat_map(block).collect::<Vec<u8>>().into()
}

#[test]
pub(super) fn data_overwritten_in_part_takes_one_and_a_half_times_its_size_at_most() {
    const PIECE: usize = 64 << 10;
    // In segments; and small, in the object's record, with a clone that shares what there is.
    for (pieces, cloned) in [(8, false), (1, false), (1, true)] {
        let opts = StoreOptions { size: 8 << 20, cache_bytes: 1 << 20, ..tiny() };
        let world = create(&opts);
        let (mut store, mut model) = (open(&world, &opts).unwrap(), Model::default());
        let options = PoolOptions {
            mode: CompressionMode::Force,
            algorithm: Algorithm::Lz4,
            ..PoolOptions::default()
        };
        store.set_pool_options(object(1).pool, options);
        let mut worst = 0.0f64;
        // Each piece is written again from its second block on, then from its third...
        for from in 0..14 {
            for piece in 0..pieces {
                let data = stiff((from * 8 + piece) as u64, PIECE - from * 4096);
                let t =
                    of(1, ObjectOp::Write { offset: (piece * PIECE + from * 4096) as u64, data });
                store.submit(&t).unwrap();
                model.apply(&t);
                let stat = store.stat(&object(1)).unwrap().unwrap();
                worst = worst.max(stat.allocated as f64 / stat.size as f64);
            }
            if cloned && from == 3 {
                let t = of(3, ObjectOp::CloneFrom(object(1)));
                store.submit(&t).unwrap();
                model.apply(&t);
            }
        }
        let most = if cloned { 2.5 } else { 1.5 };
        assert!(
            worst <= most,
            "{pieces} pieces, cloned {cloned}: data takes {worst:.2} times its size"
        );
        model.check(&mut store, "overwritten");
        store.close().unwrap();
        let mut store = open(&world, &opts).unwrap();
        model.check(&mut store, "opened again");
        sound(&store, "opened again");
    }
}

#[test]
fn a_huge_object_with_little_in_it_costs_what_is_in_it() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let size = 1 << 50;
    store.submit(of(1, ObjectOp::Write { offset: 1 << 20, data: pattern(1, 4096) })).unwrap();
    store.submit(of(1, ObjectOp::Write { offset: 1 << 49, data: pattern(4, 4096) })).unwrap();
    store.submit(of(1, ObjectOp::Truncate { size })).unwrap();
    // 2^31 segments: whoever went through them all would not come back.
    let extents = [(1 << 20, 4096), (1 << 49, 4096)];
    assert_eq!(store.extents(&object(1), 0, u64::MAX).unwrap().unwrap(), extents);
    assert!(matches!(store.fragments(&object(1)).unwrap(), Some(1 | 2)));
    store
        .submit(of(3, ObjectOp::CloneRange { from: object(1), offset: 0, length: size, to: 0 }))
        .unwrap();
    assert_eq!(store.extents(&object(3), 0, u64::MAX).unwrap().unwrap(), extents);
    let mut export = Vec::new();
    crate::tools::export(&store, None, crate::tools::Bad::Refuse, &mut export).unwrap();
    assert!(export.len() < 100_000);
    assert_eq!(crate::tools::stats(&store).unwrap().with_data, 2);
    // Nor does one who is told so take it for so many bytes.
    let target = create(&opts);
    let mut copy = open(&target, &opts).unwrap();
    crate::tools::import(&mut copy, || Ok(export.as_slice())).unwrap();
    for n in [1, 3] {
        assert_eq!(copy.stat(&object(n)).unwrap().unwrap().size, size, "object {n}");
        assert_eq!(copy.extents(&object(n), 0, u64::MAX).unwrap().unwrap(), extents, "object {n}");
    }
    sound(&copy, "imported");
    store.submit(of(3, ObjectOp::Zero { offset: 4096, length: size })).unwrap();
    let left = store.extents(&object(3), 0, u64::MAX).unwrap().unwrap();
    assert!(left.is_empty(), "{left:?}");
    sound(&store, "sparse");
}

#[test]
fn one_stuck_read_keeps_its_own_blocks_and_no_others() {
    let opts = StoreOptions { size: 4 << 20, ..tiny() };
    let world = create(&opts);
    world.set_cold(true);
    let mut store = open(&world, &opts).unwrap();
    let old = pattern(1, 200_000);
    store.submit(of(1, ObjectOp::Write { offset: 0, data: old.clone() })).unwrap();
    store.flush().unwrap();
    let Read::NotReady(plan) = store.read_uncached(&object(1), 0, u64::MAX).unwrap() else {
        panic!("cold")
    };
    // Far more than the device, while the read is stuck; its own data is overwritten, too.
    for n in 0..60 {
        for o in [1, 2, 4] {
            store
                .submit(of(o, ObjectOp::Write { offset: 0, data: pattern(n * 3 + 1, 400_000) }))
                .unwrap();
        }
    }
    assert_eq!(plan.run().unwrap(), old);
    drop(plan);
    store.flush().unwrap();
    sound(&store, "read");
}

/// What was compressed beforehand is what is stored, and nothing else hangs on it.
#[test]
fn data_may_be_compressed_before_it_is_submitted() {
    let options = PoolOptions {
        mode: CompressionMode::Passive,
        algorithm: Algorithm::Lz4,
        ..PoolOptions::default()
    };
    let opts =
        StoreOptions { size: 8 << 20, cache_bytes: 4 << 20, journal_size: 1 << 20, ..tiny() };
    let (world, other) = (create(&opts), create(&opts));
    let (mut store, mut plain) = (open(&world, &opts).unwrap(), open(&other, &opts).unwrap());
    for s in [&mut store, &mut plain] {
        // The pool of all these objects.
        (1..=3).for_each(|pool| s.set_pool_options(pool, options));
    }
    let mut model = Model::default();
    let mut found = 0;
    // Whole blocks; neither end at a block's; a hint given before, and none; noise; less than is
    // worth it.
    let cases: [(u64, u64, usize, usize, bool); 6] = [
        (1, 0, 0, 500_000, true),
        (1, 1, 70_000, 300_000, true),
        (2, 2, 4097, 200_000, false),
        (3, 0, 8192, 131_072, true),
        (4, 0, 0, 20_000, true),
        (1, 3, 4096, 262_144, true),
    ];
    for (n, seed, offset, len, hinted) in cases {
        let mut t = Transaction::default();
        if hinted {
            t.object(&object(n), ObjectOp::AllocHint(crate::compress::HINT_COMPRESSIBLE));
        }
        let noise = seed == 3;
        let data = if noise { pattern(1, len) } else { pattern(3 * seed, len) };
        t.object(&object(n), ObjectOp::Write { offset: offset as u64, data });
        let packing = store.packing(&t);
        assert_eq!(packing.is_some(), hinted && len > 100_000, "object {n}");
        let packed = packing.map(|p| p.run()).unwrap_or_default();
        let own = packed.places();
        store.submit_packed(&t, &packed).unwrap();
        let stored = store.pending.values().filter(|p| own.contains(&p.data.as_ptr())).count();
        assert!(
            stored > 0 || noise || !hinted || len < 100_000,
            "object {n}: nothing of what was compressed is stored"
        );
        found += stored;
        plain.submit(&t).unwrap();
        model.apply(&t);
        model.check(&mut store, "packed");
        let space = |s: &crate::Store| s.pool_space().collect::<Vec<_>>();
        assert_eq!(space(&store), space(&plain));
    }
    assert!(found > 10, "{found}");
    // With other options since, nothing of it is taken.
    let mut t = Transaction::default();
    t.object(&object(1), ObjectOp::Write { offset: 0, data: pattern(3, 262_144) });
    let packed = store.packing(&t).unwrap().run();
    for s in [&mut store, &mut plain] {
        (1..=3).for_each(|pool| {
            s.set_pool_options(pool, PoolOptions { algorithm: Algorithm::Zstd, ..options })
        });
    }
    let own = packed.places();
    store.submit_packed(&t, &packed).unwrap();
    assert!(store.pending.values().all(|p| !own.contains(&p.data.as_ptr())));
    model.apply(&t);
    model.check(&mut store, "other options");
    sound(&store, "packed");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "reopened");
}
