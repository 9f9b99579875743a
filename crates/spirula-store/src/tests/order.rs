//! What must wait for what: one step of the order on the devices is held up, and the others
//! may not run ahead of it.

use super::model::{Model, object, pattern};
use super::sim::World;
use super::{create, open, sound, tiny};
use crate::StoreOptions;
use spirula_types::transaction::{ObjectOp, Transaction};

/// While a checkpoint cannot finish, the journal it will free is the only place that has
/// these transactions: work goes on until the ring is full, and not over its beginning.
#[test]
pub(crate) fn journal_is_not_overwritten_before_the_checkpoint_that_frees_it_is_durable() {
    // Room for overlays, none for long in the journal.
    let opts = StoreOptions { cache_bytes: 8 << 20, ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let mut model = Model::default();
    world.hold_device(Some(2));
    let mut n = 0;
    while !store.congested() {
        // Through the journal, to the same few blocks.
        let mut t = Transaction::default();
        t.object(&object(n % 3), ObjectOp::Write { offset: 0, data: pattern(n, 20_000) });
        store.submit(t.clone()).unwrap();
        store.flush().unwrap();
        model.apply(&t);
        n += 1;
        assert!(n < 100, "the journal has no end");
    }
    assert!(n > 5, "no checkpoint began");
    let crashed = World::from_image(world.image());
    world.hold_device(None);
    let mut store_after = open(&crashed, &opts).unwrap_or_else(|e| panic!("after {n} transactions: {e}"));
    model.check(&mut store_after, "crashed before the checkpoint was durable");
    sound(&store_after, "crashed before the checkpoint was durable");
    store.flush().unwrap();
    model.check(&mut store, "which goes on");
}
