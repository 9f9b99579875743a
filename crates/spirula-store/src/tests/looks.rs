//! What a write over layers and a removal of a clone look at: no more than what they change.
//! Counted by what caches hold that were empty before, so that no clock is asked.

use super::layers::{head, one, rewritten, snap, write};
use super::sim::World;
use super::{create, open, sound, tiny};
use crate::layer::{DEPTH_MAX, depth_max};
use crate::{Store, StoreOptions};
use spirula_types::transaction::ObjectOp;

const BLOCKS: u64 = 1024;

fn options() -> StoreOptions {
    StoreOptions { size: 16 << 20, journal_size: 1 << 20, cache_bytes: 8 << 20, ..tiny() }
}

/// The number of an object that may lie over as many layers as any.
fn deep() -> u64 {
    (1..).find(|n| depth_max(&head(*n)) == DEPTH_MAX).unwrap()
}

/// A store whose object `n` has a block of its first segment in each of its layers, closed; the
/// caches of the one that opens it are empty.
fn layered(n: u64) -> (World, StoreOptions) {
    let opts = options();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    rewritten(&mut store, &head(n), BLOCKS);
    for s in 1..=u64::from(DEPTH_MAX) {
        store.submit(one(&snap(n, s), ObjectOp::CloneFrom(head(n)))).unwrap();
        if s < u64::from(DEPTH_MAX) {
            store.submit(write(&head(n), s, s, 1)).unwrap();
        }
    }
    store.close().unwrap();
    (world, opts)
}

fn layers_looked_at(store: &Store) -> usize {
    store.layers.borrow().len()
}

#[test]
fn a_write_looks_through_no_layers_of_an_object_without_holes() {
    let n = deep();
    let (world, opts) = layered(n);
    let mut store = open(&world, &opts).unwrap();
    let before = store.onode(&head(n)).unwrap().unwrap();
    assert_eq!((before.blocks, layers_looked_at(&store)), (BLOCKS, 0));
    // Which is in the lowest layer. The nearest one says of which kind checksums are there.
    store.submit(write(&head(n), 100, 7, 1)).unwrap();
    assert_eq!(layers_looked_at(&store), 1, "of {DEPTH_MAX} below");
    let after = store.onode(&head(n)).unwrap().unwrap();
    assert_eq!((after.blocks, after.allocated), (before.blocks, before.allocated));
    sound(&store, "written");
    // With a hole it has to look for what is there: under the hole, or nothing.
    store.submit(one(&head(n), ObjectOp::Zero { offset: 200 * 4096, length: 4096 })).unwrap();
    store.submit(write(&head(n), 300, 7, 1)).unwrap();
    assert_eq!(layers_looked_at(&store), DEPTH_MAX as usize);
    store.submit(write(&head(n), 200, 7, 1)).unwrap();
    assert_eq!(store.onode(&head(n)).unwrap().unwrap().blocks, BLOCKS);
    sound(&store, "written");
}

#[test]
fn a_clone_and_a_write_are_four_records_and_look_at_no_layer() {
    let n = deep();
    let opts = options();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    rewritten(&mut store, &head(n), 3 * 128);
    let both = |s: u64| {
        let mut t = one(&snap(n, s), ObjectOp::CloneFrom(head(n)));
        t.objects.extend(write(&head(n), 5 * s, s, 1).objects);
        t
    };
    for s in 1..u64::from(DEPTH_MAX) - 1 {
        store.submit(both(s)).unwrap();
    }
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    store.submit(both(10)).unwrap();
    let o = &store.active;
    let records = [o.heads.len(), o.layers.len(), o.segments.len(), o.named.len(), o.refs.len()];
    assert_eq!((records, layers_looked_at(&store)), ([2, 1, 1, 0, 0], 0));
    // What is too long is looked at and made shorter, and then it is the same again.
    (11..20).for_each(|s| assert!(store.submit(both(s)).is_ok()));
    assert!(store.onode(&head(n)).unwrap().unwrap().sums.is_some(), "known once, and no more");
    sound(&store, "cloned");
}

#[test]
fn a_clone_that_goes_leaves_alone_what_nobody_hid() {
    let opts = options();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    rewritten(&mut store, &head(1), BLOCKS);
    store.submit(one(&snap(1, 1), ObjectOp::CloneFrom(head(1)))).unwrap();
    store.submit(write(&head(1), 500, 7, 1)).unwrap();
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    // Layer and head become one; of eight segments one differs.
    store.submit(one(&snap(1, 1), ObjectOp::Remove)).unwrap();
    let looked = store.segments.borrow().len();
    assert!(looked <= 2, "at {looked} records");
    assert_eq!(store.onode(&head(1)).unwrap().unwrap().base, 0);
    sound(&store, "one again");
}

#[test]
fn what_a_whole_map_owns_is_noted_in_as_few_pieces_as_it_lies_in() {
    let n = deep();
    let opts = options();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    // Blocks in the reverse of their order lie side by side on the device all the same.
    (0..BLOCKS)
        .rev()
        .for_each(|block| assert!(store.submit(write(&head(n), block, block, 1)).is_ok()));
    let mut most = 0;
    for s in 1..=2 * u64::from(DEPTH_MAX) {
        let bytes = super::layers::submit_counted(
            &mut store,
            &one(&snap(n, s), ObjectOp::CloneFrom(head(n))),
        );
        most = most.max(bytes);
        // So much that not only what lies over the lowest layer is made one map.
        (0..80)
            .rev()
            .for_each(|block| assert!(store.submit(write(&head(n), 80 * s + block, s, 1)).is_ok()));
    }
    // The map itself: eight bytes and a checksum for each block. Beside it, 17 bytes for each
    // piece.
    assert!(most > 12 * 1024, "no map was made whole: {most} bytes at most");
    assert!(most < 12 * 1024 + 3000, "{most} bytes for a whole map");
    sound(&store, "cloned");
}
