//! Random transactions against the model, with reopens, full devices and failing reads, on
//! simulated devices.

use super::model::{Model, random_txn};
use super::sim::{Fault, Rng, World};
use super::{create, create_single, open, sound, tiny};
use crate::{PoolOptions, Store, StoreError, StoreOptions};
use proptest::prelude::*;

/// How each of the two pools stores its data.
fn random_options(rng: &mut Rng) -> [(i64, PoolOptions); 2] {
    use crate::{Algorithm, Checksum, CompressionMode};
    let mut one = || PoolOptions {
        mode: [
            CompressionMode::None,
            CompressionMode::Passive,
            CompressionMode::Aggressive,
            CompressionMode::Force,
        ][rng.below(4) as usize],
        algorithm: [Algorithm::Lz4, Algorithm::Zstd, Algorithm::Snappy][rng.below(3) as usize],
        checksum: [Checksum::Crc32c, Checksum::Xxhash64][rng.below(2) as usize],
        max_blob: [16 << 10, 40_000, 64 << 10, 1 << 20][rng.below(4) as usize],
        ..PoolOptions::default()
    };
    [(1, one()), (2, one())]
}

/// The store that is tried.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Bytes of data space.
    pub size: u64,
    pub journal: u64,
    pub cache: usize,
    /// Everything on one device.
    pub single: bool,
    /// Large objects, too.
    pub big: bool,
    /// No read is served at once.
    pub cold: bool,
}

struct Run {
    world: World,
    opts: StoreOptions,
    store: Option<Store>,
    model: Model,
    options: [(i64, PoolOptions); 2],
    big: bool,
}

impl Run {
    fn store(&mut self) -> &mut Store {
        self.store.as_mut().unwrap()
    }

    fn reopen(&mut self) {
        let mut store = open(&self.world, &self.opts).unwrap();
        self.options.iter().for_each(|(pool, o)| store.set_pool_options(*pool, *o));
        self.store = Some(store);
    }

    /// One step, all of which follows from `seed`, the model, and how many came before.
    fn step(&mut self, n: u64, seed: u64) {
        let what = format!("step {n} ({seed:#x})");
        let mut rng = Rng(seed);
        let faulty = rng.below(12) == 0;
        let txn = random_txn(&mut rng, &self.model, n, self.big);
        let before = (self.store().last_seq(), self.model.clone());
        if faulty {
            // All that came before is acknowledged.
            self.store().flush().unwrap();
            self.world.inject(Some(Fault::Read(rng.below(4))));
        }
        let done = self.store().submit(txn.clone());
        self.world.disarm();
        match done {
            Ok(_) => self.model.apply(&txn),
            // No effect, then.
            Err(StoreError::NoSpace { .. }) => {}
            Err(StoreError::Io { action: "read", .. } | StoreError::Unreadable { .. })
                if faulty => {}
            // The checkpoint's read failed: it stopped, and what it had is in the journal.
            Err(StoreError::Poisoned(_)) if faulty => {}
            Err(e) => panic!("{what}: {e}"),
        }
        match rng.below(40) {
            0 if !faulty => {
                self.store.take().unwrap().close().unwrap();
                self.reopen();
            }
            // The process dies after everything was written, with no checkpoint.
            1 if !faulty => {
                self.store().flush().unwrap();
                self.store = None;
                self.reopen();
            }
            2 | 3 => {
                self.options = random_options(&mut rng);
                let options = self.options;
                options.iter().for_each(|(pool, o)| self.store().set_pool_options(*pool, *o));
            }
            4..8 => {
                let (store, model) = (self.store.as_mut().unwrap(), &self.model);
                model.check(store, &what);
            }
            8..14 => self.model.check_parts(self.store.as_ref().unwrap(), &mut rng),
            _ => {}
        }
        // A checkpoint's read may have failed, which stops the store, sooner or later.
        if self.world.struck() {
            self.world.inject(None);
            self.store = None;
            self.reopen();
            if self.store().last_seq() == before.0 {
                self.model = before.1;
            }
            let (store, model) = (self.store.as_mut().unwrap(), &self.model);
            model.check(store, &what);
        }
    }
}

/// Runs the steps that follow from `steps` and compares with the model.
pub(crate) fn run(setting: &Setting, steps: &[u64]) {
    let opts = StoreOptions {
        size: setting.size,
        journal_size: setting.journal,
        cache_bytes: setting.cache,
        ..tiny()
    };
    let world = if setting.single { create_single(&opts) } else { create(&opts) };
    world.set_cold(setting.cold);
    let options = random_options(&mut Rng(steps.len() as u64));
    let mut run =
        Run { world, opts, store: None, model: Model::default(), options, big: setting.big };
    run.reopen();
    for (n, seed) in steps.iter().enumerate() {
        run.step(n as u64 + 1, *seed);
    }
    let Run { world, opts, store, model, .. } = run;
    let mut store = store.unwrap();
    model.check(&mut store, "at the end");
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    model.check(&mut store, "after close");
    sound(&store, "after close");
}

/// Step seeds from one.
pub(crate) fn steps(seed: u64, count: u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.next()).collect()
}

fn setting(big: bool) -> impl Strategy<Value = Setting> {
    let sizes = if big { vec![32 << 20, 3 << 20] } else { vec![8 << 20, 1 << 20, 256 << 10] };
    let caches = prop_oneof![Just(0), Just(16 << 10), Just(48 << 10), Just(1 << 20)];
    let journals = prop_oneof![Just(256 << 10), Just(1 << 20)];
    (proptest::sample::select(sizes), journals, caches, any::<bool>(), any::<bool>()).prop_map(
        move |(size, journal, cache, single, cold)| Setting {
            size,
            journal,
            cache,
            single,
            big,
            cold,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Shrinks to few steps: each is one number, and all of it follows from that.
    #[test]
    fn prop_small_transactions_match_the_model_across_reopens_full_devices_and_failed_reads(
        setting in setting(false),
        steps in proptest::collection::vec(any::<u64>().no_shrink(), 1..200),
    ) {
        run(&setting, &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn prop_large_objects_match_the_model_across_reopens_full_devices_and_failed_reads(
        setting in setting(true),
        steps in proptest::collection::vec(any::<u64>().no_shrink(), 1..120),
    ) {
        run(&setting, &steps);
    }
}

#[test]
fn thousands_of_transactions_wrap_the_journal_many_times_and_match_the_model() {
    let setting = Setting {
        size: 8 << 20,
        journal: 256 << 10,
        cache: 48 << 10,
        single: false,
        big: false,
        cold: false,
    };
    run(&setting, &steps(7, 3000));
}
