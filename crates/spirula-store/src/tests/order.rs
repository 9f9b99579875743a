//! What must wait for what: one step of the order on the devices is held up, and the others
//! may not run ahead of it.

use super::model::{Model, object, pattern};
use super::sim::{Event, World};
use super::{create, open, sound, tiny};
use crate::StoreOptions;
use crate::journal::FRAME_ALIGN;
use spirula_buffer::PayloadPool;
use spirula_types::transaction::{ObjectOp, Transaction};
use std::time::Duration;

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
    // Once more when the checkpoint stands where it is held: nothing of it has set anything free.
    for held in [false, true] {
        while held && !world.waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
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
    }
    assert!(n > 5, "no checkpoint began");
    let crashed = World::from_image(world.image());
    world.hold_device(None);
    let mut store_after =
        open(&crashed, &opts).unwrap_or_else(|e| panic!("after {n} transactions: {e}"));
    model.check(&mut store_after, "crashed before the checkpoint was durable");
    sound(&store_after, "crashed before the checkpoint was durable");
    store.flush().unwrap();
    model.check(&mut store, "which goes on");
}

/// A frame that is durable before the one ahead of it holds nothing yet: after a crash now,
/// neither is there.
#[test]
pub(crate) fn frames_are_acknowledged_only_when_those_before_them_are_durable() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let write = |n: u64| {
        let mut t = Transaction::default();
        t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(n, 4096) });
        t
    };
    let until = |done: &dyn Fn() -> bool, what: &str| {
        let waited = (0..100_000).find(|_| {
            done() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        });
        assert!(waited.is_some(), "waited in vain for {what}");
    };
    // The first lap's zeros are written, and the mark behind the frame: it is shorter than any
    // frame here, and the next durable write is then a frame's.
    world.record();
    store.submit(write(0)).unwrap();
    store.flush().unwrap();
    let marked = |e: &[Event]| {
        let last = e.iter().rposition(|e| matches!(e, Event::Write { dev: 1, durable: true, .. }));
        let mark = |n: &usize| matches!(&e[*n], Event::Write { data, .. } if data.len() as u64 == FRAME_ALIGN);
        last.filter(mark)
            .is_some_and(|n| e.iter().any(|e| matches!(e, Event::Done(of) if *of == n)))
    };
    until(&|| marked(&world.events()), "the mark");
    drop(world.take_events());
    world.hold_next(Some(1));
    let first = store.submit(write(1)).unwrap();
    until(&|| world.holds_next(), "the first frame");
    world.record();
    store.submit(write(2)).unwrap();
    until(&|| world.events().iter().any(|e| matches!(e, Event::Done(_))), "the second frame");
    // Long enough for whoever wrote the second one to say so.
    std::thread::sleep(Duration::from_millis(300));
    let acked: Vec<u64> = world
        .events()
        .iter()
        .filter_map(|e| if let Event::Ack(n) = e { Some(*n) } else { None })
        .collect();
    world.hold_next(None);
    assert!(acked.is_empty(), "{acked:?} acknowledged while the frame of {first} is not durable");
    store.flush().unwrap();
    let acked = world.take_events().into_iter().filter(|e| matches!(e, Event::Ack(_))).count();
    assert!(acked > 0, "nothing acknowledged in the end");
}

/// What a frame held stays in memory until it is in its place, after it was acknowledged. Whoever
/// would bring the next transaction may wait for that memory: so the owner is told again when it
/// can be had.
#[test]
pub(crate) fn the_owner_is_told_when_payloads_need_their_memory_no_more() {
    let pool = PayloadPool::new(16 << 10);
    let opts = StoreOptions { pool: pool.clone(), ..tiny() };
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let acks = || world.events().iter().filter(|e| matches!(e, Event::Ack(_))).count();
    let until = |done: &mut dyn FnMut() -> bool, what: &str| {
        let waited = (0..100_000).find(|_| {
            done() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        });
        assert!(waited.is_some(), "waited in vain for {what}");
    };
    until(&mut || pool.outstanding() == 0, "what the opening took");
    world.record();
    world.hold_device(Some(0));
    let mut t = Transaction::default();
    t.object(&object(1), ObjectOp::Write { offset: 0, data: pool.copy(&pattern(1, 12 << 10)) });
    store.submit(t).unwrap();
    until(&mut || acks() == 1, "the acknowledgement");
    store.congested();
    let kept = pool.outstanding();
    world.hold_device(None);
    assert!(kept > 0, "nothing was to be put in place");
    until(&mut || acks() == 2, "word that the payload is in place");
    store.congested();
    until(&mut || pool.outstanding() == 0, "the memory");
}
