//! What an image does when operations are stuck, when its cluster is full, and when its watch or
//! its number is another one.

use super::world::{Fate, Sim, World};
use super::{OBJECT, OBJECTS, spec};
use crate::object_map::{ObjectMap, State};
use crate::{Image, Rados};
use bytes::Bytes;
use spirula_client::Request;
use spirula_messages::ceph::op;
use spirula_messages::ceph::osd::flag;
use spirula_types::errno;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn calls(r: &Request, method: &str) -> bool {
    r.ops.iter().any(|o| o.op == op::CALL && o.call_args().is_ok_and(|c| c.method == method))
}

/// What writes needs room on a full cluster, unless it says that it wants to know.
fn when_full(r: &Request) -> Fate {
    let grows = r.ops.iter().any(|o| o.op == op::WRITE || o.op == op::CREATE);
    match (r.is_write(), r.flags & flag::FULL_TRY != 0) {
        (true, false) => Fate::Waits,
        (true, true) if grows => Fate::Answered(-errno::ENOSPC),
        _ => Fate::Arrives,
    }
}

/// Runs a story, which must come to its end.
fn tell(world: &Rc<World>, story: impl AsyncFnOnce() + 'static) {
    let over = Rc::new(Cell::new(false));
    let done = over.clone();
    world.start(
        0,
        Box::pin(async move {
            story().await;
            done.set(true);
        }),
    );
    world.run(0);
    assert!(over.get(), "it waits for ever");
}

async fn open(sim: &Rc<Sim>) -> Rc<Image<Sim>> {
    Image::open(sim, &spec(), true).await.unwrap()
}

/// A write that is stuck when its connection dies is sent again over another one, and others follow
/// it: they are not overwritten by it.
#[test]
fn a_write_that_was_stuck_does_not_replace_a_later_one() {
    let stuck = Rc::new(Cell::new(0));
    for seed in 0..20 {
        let world = Rc::new(World::new(seed, OBJECT, OBJECTS));
        let (sim, at, held) = (world.client(0), world.clone(), stuck.clone());
        tell(&world, async move || {
            let image = open(&sim).await;
            // Whoever has to take the lock keeps all others waiting.
            image.write(OBJECT, Bytes::from_static(b"first")).await.unwrap();
            let mut updates = 0;
            at.rule(move |r| {
                if !calls(r, "object_map_update") {
                    return Fate::Arrives;
                }
                updates += 1;
                held.set(held.get() + u32::from(updates == 2));
                if updates == 2 { Fate::Waits } else { Fate::Arrives }
            });
            for (offset, byte) in [(512, 0), (0, 1)] {
                let image = image.clone();
                let one =
                    async move { image.write(offset, Bytes::from(vec![byte; 512])).await.unwrap() };
                sim.spawn(Box::pin(one));
            }
            sim.sleep(Duration::ZERO).await;
            let (again, later) = (image.clone(), Rc::new(Cell::new(false)));
            let written = later.clone();
            sim.spawn(Box::pin(async move {
                for byte in [1, 2] {
                    again.write(0, Bytes::from(vec![byte; 512])).await.unwrap();
                }
                written.set(true);
            }));
            // What is elsewhere in the object need not wait.
            image.write(1024, Bytes::from(vec![3; 512])).await.unwrap();
            sim.sleep(Duration::from_secs(1)).await;
            at.release();
            image.flush().await;
            while !later.get() {
                sim.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(image.read(0, 512).await.unwrap(), vec![2; 512], "seed {seed}");
            image.close().await;
        });
    }
    assert!(stuck.get() >= 10, "of 20 writes {} were stuck", stuck.get());
}

/// Where there is no room the lock is given, taken and renamed all the same, and what is discarded
/// makes room.
#[test]
fn a_full_cluster_keeps_no_lock_from_anybody() {
    for (seed, lost) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = Rc::new(World::new(seed, OBJECT, OBJECTS));
        let (sim, other, at) = (world.client(0), world.client(1), world.clone());
        tell(&world, async move || {
            let (holder, asks) = (open(&sim).await, open(&other).await);
            holder.write(0, Bytes::from(vec![1; OBJECT as usize])).await.unwrap();
            at.rule(when_full);
            if lost {
                at.lose_watch(0);
                // Until that watch is over.
                sim.sleep(Duration::from_secs(40)).await;
            }
            asks.zero(0, OBJECT).await.unwrap();
            assert!(!at.exists(0));
        });
        assert_eq!(world.fenced(), 0, "seed {seed}: nobody who lives is fenced");
    }
}

/// Whoever is refused even so waits for room, as before.
#[test]
fn what_is_refused_on_a_full_cluster_waits_for_room() {
    let world = Rc::new(World::new(1, OBJECT, OBJECTS));
    let (sim, at) = (world.client(0), world.clone());
    tell(&world, async move || {
        let image = open(&sim).await;
        at.rule(|r| match r.flags & flag::FULL_TRY != 0 {
            true => Fate::Answered(-errno::EDQUOT),
            false => Fate::Arrives,
        });
        image.write(0, Bytes::from(vec![1; OBJECT as usize])).await.unwrap();
        image.zero(0, OBJECT).await.unwrap();
        assert!(!at.exists(0) && at.flags() == 0);
    });
}

/// The monitors gave a client another number: the lock under its old one is its own.
#[test]
fn a_client_with_another_number_fences_nobody() {
    for (seed, lost) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = Rc::new(World::new(seed, OBJECT, OBJECTS));
        let (sim, at) = (world.client(0), world.clone());
        tell(&world, async move || {
            let image = open(&sim).await;
            image.write(0, Bytes::from(vec![1; 512])).await.unwrap();
            at.rename(0);
            if lost {
                at.lose_watch(0);
                sim.sleep(Duration::from_secs(1)).await;
            }
            image.write(OBJECT, Bytes::from(vec![2; 512])).await.unwrap();
            at.lose_watch(0);
            sim.sleep(Duration::from_secs(60)).await;
            image.write(2 * OBJECT, Bytes::from(vec![3; 512])).await.unwrap();
            image.close().await;
        });
        assert_eq!((world.fenced(), world.flags()), (0, 0), "seed {seed}");
    }
}

/// As above, of a Ceph, whose classes do not see what earlier ones of the same request changed.
#[test]
fn a_client_with_another_number_fences_nobody_on_a_ceph() {
    for (seed, lost) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = Rc::new(World::new(seed, OBJECT, OBJECTS));
        let (sim, at) = (world.client(0), world.clone());
        tell(&world, async move || {
            let image = open(&sim).await;
            image.write(0, Bytes::from(vec![1; 512])).await.unwrap();
            at.rule(|r| match calls(r, "break_lock") && calls(r, "lock") {
                true => Fate::Answered(-errno::EBUSY),
                false => Fate::Arrives,
            });
            at.rename(0);
            if lost {
                at.lose_watch(0);
                sim.sleep(Duration::from_secs(1)).await;
            }
            image.write(OBJECT, Bytes::from(vec![2; 512])).await.unwrap();
            at.lose_watch(0);
            sim.sleep(Duration::from_secs(60)).await;
            image.write(2 * OBJECT, Bytes::from(vec![3; 512])).await.unwrap();
            image.close().await;
        });
        assert_eq!((world.fenced(), world.flags()), (0, 0), "seed {seed}");
    }
}

/// What is under way when the image turns out to be lost is not done without a note in the object
/// map.
#[test]
fn nothing_is_written_without_the_map_that_was_lost() {
    const MANY: u64 = 40;
    for seed in 0..10 {
        let world = Rc::new(World::new(seed, OBJECT, MANY));
        let (sim, at) = (world.client(0), world.clone());
        tell(&world, async move || {
            let image = open(&sim).await;
            at.rule(|r| if calls(r, "object_map_update") { Fate::Waits } else { Fate::Arrives });
            let (writes, result) = (image.clone(), Rc::new(Cell::new(None)));
            let ended = result.clone();
            sim.spawn(Box::pin(async move {
                let data = Bytes::from(vec![1; (MANY * OBJECT) as usize]);
                ended.set(Some(writes.write(0, data).await));
            }));
            sim.sleep(Duration::from_secs(1)).await;
            at.refuse_watches(-errno::ESHUTDOWN);
            at.lose_watch(0);
            sim.sleep(Duration::from_secs(1)).await;
            at.rule(|_| Fate::Arrives);
            at.release();
            image.flush().await;
            sim.sleep(Duration::from_secs(1)).await;
            assert_eq!(result.get(), Some(Err(-errno::ESHUTDOWN)));
        });
        let map = ObjectMap::read(&world.object_map()).unwrap();
        for object in 0..MANY {
            assert!(
                !world.exists(object) || map.get(object) == State::Exists,
                "seed {seed}: object {object}"
            );
        }
    }
}

/// The client ends operations itself where the map has no such pool: that is no hole, also not to a
/// clone.
#[test]
fn a_pool_that_is_gone_does_not_read_as_zeros() {
    let world = Rc::new(World::new(1, OBJECT, OBJECTS));
    world.clone_of_empty(OBJECT, OBJECTS);
    let (sim, at) = (world.client(0), world.clone());
    tell(&world, async move || {
        let image = open(&sim).await;
        assert_eq!(image.read(0, 512).await.unwrap(), vec![0; 512]);
        at.rule(|r| {
            if r.oid.starts_with(b"rbd_data.cd") {
                Fate::Answered(-errno::ENOENT)
            } else {
                Fate::Arrives
            }
        });
        assert_eq!(image.read(0, 512).await, Err(-errno::EIO));
        assert_eq!(image.write(0, Bytes::from(vec![1; 512])).await, Err(-errno::EIO));
        assert!(!at.exists(0));
    });
}
