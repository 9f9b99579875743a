//! What an image does when a snapshot goes, when others want its lock, and when it is cut into
//! small units.

use super::world::World;
use super::{OBJECT, OBJECTS, spec};
use crate::{Image, Rados};
use bytes::Bytes;
use spirula_types::errno;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// What is missing of a snapshot that is gone, or about to go, is no hole.
#[test]
fn a_snapshot_that_is_removed_does_not_read_as_zeros() {
    for forget in [false, true] {
        let world = Rc::new(World::new(3, OBJECT, OBJECTS));
        let (sim, reader, seen) = (world.client(0), world.client(1), Rc::new(Cell::new(false)));
        let (at, done) = (world.clone(), seen.clone());
        world.start(
            0,
            Box::pin(async move {
                let image = Image::open(&sim, &spec(), true).await.unwrap();
                image.write(0, Bytes::from(vec![7; OBJECT as usize])).await.unwrap();
                at.snapshot(5, "s");
                let early = Image::open(&reader, &"p/i@s".parse().unwrap(), false).await.unwrap();
                assert_eq!(early.read(0, 4).await.unwrap(), [7; 4][..]);
                assert_eq!(
                    early.read(OBJECT, 2 * OBJECT).await.unwrap(),
                    vec![0; 2 * OBJECT as usize],
                    "holes"
                );
                at.remove_snapshot(5, forget);
                for object in [0, 1] {
                    assert_eq!(
                        early.read(object * OBJECT, 4).await,
                        Err(-errno::ENOENT),
                        "{forget}"
                    );
                }
                assert_eq!(early.read(0, OBJECT * OBJECTS).await, Err(-errno::ENOENT));
                early.close().await;
                image.close().await;
                done.set(true);
            }),
        );
        world.run(0);
        assert!(seen.get());
    }
}

/// Whoever asked a busy holder for the lock gets it, however late his attempt to take it arrives.
#[test]
fn a_busy_holder_gives_others_a_turn() {
    for seed in 0..20 {
        let world = World::new(seed, OBJECT, OBJECTS);
        world.delay_locks(1, Duration::from_millis(300));
        let (busy, asks, over) = (world.client(0), world.client(1), Rc::new(Cell::new(false)));
        let stop = over.clone();
        world.start(
            0,
            Box::pin(async move {
                let image = Image::open(&busy, &spec(), true).await.unwrap();
                while !stop.get() {
                    image.write(0, Bytes::from(vec![1; 512])).await.unwrap();
                    busy.sleep(Duration::from_millis(10)).await;
                }
                image.close().await;
            }),
        );
        let done = over.clone();
        world.start(
            1,
            Box::pin(async move {
                let image = Image::open(&asks, &spec(), true).await.unwrap();
                asks.sleep(Duration::from_millis(500)).await;
                image.write(512, Bytes::from(vec![2; 512])).await.unwrap();
                image.close().await;
                done.set(true);
            }),
        );
        world.run(0);
        assert!(over.get());
        assert_eq!(world.found_held(), 1, "seed {seed}: only before it asked");
    }
}

/// However small the units are: of one request each object is asked once, and all of it is where it
/// belongs.
#[test]
fn what_a_request_has_of_an_object_is_one_operation() {
    const LARGE: u64 = 64 << 10;
    let world = Rc::new(World::new(4, LARGE, OBJECTS));
    world.stripe(512, 3);
    let (sim, at, seen) = (world.client(0), world.clone(), Rc::new(Cell::new(false)));
    let done = seen.clone();
    world.start(
        0,
        Box::pin(async move {
            let image = Image::open(&sim, &spec(), true).await.unwrap();
            let mut model = vec![0u8; (LARGE * OBJECTS) as usize];
            for n in 0..60u64 {
                let (offset, most) = (sim.below(LARGE * OBJECTS), LARGE * OBJECTS);
                let length =
                    (1 + sim.below(if n % 2 == 0 { 3000 } else { 3 * LARGE })).min(most - offset);
                let range = offset as usize..(offset + length) as usize;
                let before = at.asked();
                match n % 3 {
                    0 | 1 => {
                        let data: Vec<u8> = (0..length).map(|i| (n + i / 100) as u8).collect();
                        model[range].copy_from_slice(&data);
                        image.write(offset, data.into()).await.unwrap();
                    }
                    _ => {
                        model[range].fill(0);
                        image.zero(offset, length).await.unwrap();
                    }
                }
                // Zeroing asks for a size before.
                assert!(at.asked() - before <= 2 * OBJECTS, "{n}: {}", at.asked() - before);
                let before = at.asked();
                assert!(image.read(0, most).await.unwrap() == model, "{n}: {offset} {length}");
                assert!(at.asked() - before <= OBJECTS);
            }
            // Unit by unit, as the definition has it.
            for n in 0..LARGE * OBJECTS / 512 {
                let (stripe, column) = (n / 3, n % 3);
                let (object, place) = (stripe / 128 * 3 + column, stripe % 128 * 512);
                let mut there = at.data(object, place, 512);
                there.resize(512, 0);
                assert!(there == model[n as usize * 512..][..512], "unit {n}");
            }
            image.close().await;
            done.set(true);
        }),
    );
    world.run(0);
    assert!(seen.get());
}
