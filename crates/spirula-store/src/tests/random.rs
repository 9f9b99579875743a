//! Random transactions against the model, with reopens, on simulated devices.

use super::model::{Model, random_txn};
use super::sim::Rng;
use super::{create, open, tiny};
use crate::StoreError;
use proptest::prelude::*;

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
    for step in 1..=steps {
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
