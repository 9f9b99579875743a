//! Random transactions against the model, with reopens, on simulated devices.

use super::model::{Model, random_txn};
use super::sim::Rng;
use super::{create, open, tiny};
use crate::{PoolOptions, StoreError};
use proptest::prelude::*;

/// How each of the two pools stores its data.
fn random_options(rng: &mut Rng) -> [(i64, PoolOptions); 2] {
    use crate::{Algorithm, Checksum, CompressionMode};
    let mut one = || PoolOptions {
        mode: [CompressionMode::None, CompressionMode::Passive, CompressionMode::Aggressive, CompressionMode::Force]
            [rng.below(4) as usize],
        algorithm: [Algorithm::Lz4, Algorithm::Zstd, Algorithm::Snappy][rng.below(3) as usize],
        checksum: [Checksum::Crc32c, Checksum::Xxhash64][rng.below(2) as usize],
        max_blob: [16 << 10, 40_000, 64 << 10, 1 << 20][rng.below(4) as usize],
        ..PoolOptions::default()
    };
    [(1, one()), (2, one())]
}

fn run(seed: u64, steps: u64, big: bool, cold: bool) {
    let mut opts = tiny();
    if big {
        opts.size = 32 << 20;
    }
    let world = create(&opts);
    world.set_cold(cold);
    let mut rng = Rng(seed);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    let mut options = random_options(&mut rng);
    for step in 1..=steps {
        for (pool, o) in &options {
            store.set_pool_options(*pool, *o);
        }
        if rng.below(50) == 0 {
            options = random_options(&mut rng);
        }
        let txn = random_txn(&mut rng, &model, step, big);
        match store.submit(txn.clone()) {
            Ok(_) => model.apply(&txn),
            // No effect, then.
            Err(StoreError::NoSpace { .. }) => {}
            Err(e) => panic!("seed {seed} step {step}: {e}"),
        }
        match rng.below(40) {
            0 => {
                store.close().unwrap();
                store = open(&world, &opts).unwrap();
            }
            // The process dies after everything was written, with no checkpoint.
            1 => {
                store.flush().unwrap();
                drop(store);
                store = open(&world, &opts).unwrap();
            }
            2..6 => model.check(&mut store, &format!("seed {seed} step {step}")),
            6..12 => model.check_parts(&store, &mut rng),
            _ => {}
        }
    }
    model.check(&mut store, &format!("seed {seed} at the end"));
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, &format!("seed {seed} after close"));
    assert!(world.errors().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn prop_small_transactions_match_the_model_across_reopens(seed: u64, steps in 1u64..200, cold: bool) {
        run(seed, steps, false, cold);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn prop_large_objects_match_the_model_across_reopens(seed: u64, steps in 1u64..120, cold: bool) {
        run(seed, steps, true, cold);
    }
}

#[test]
fn thousands_of_transactions_wrap_the_journal_many_times_and_match_the_model() {
    run(7, 3000, false, false);
}
