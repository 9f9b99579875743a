//! Images in a cluster in memory: several clients in virtual time, whose operations arrive in any
//! order that a seed draws, and who die at any moment.

mod corners;
mod faults;
#[path = "../../../spirula-classes/src/tests/memory.rs"]
#[allow(dead_code, reason = "shared with the classes' own tests")]
mod memory;
mod world;

use crate::object_map::{ObjectMap, State};
use crate::{Image, Spec};
use bytes::Bytes;
use spirula_types::errno;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use world::{Sim, World};

/// Bytes of an object, and of a block that is written at once.
const OBJECT: u64 = 4096;
const BLOCK: u64 = 512;
const OBJECTS: u64 = 6;

fn spec() -> Spec {
    "p/i".parse().unwrap()
}

/// What was done to one block: what it says, when that began, and when it ended, if it did.
#[derive(Clone, Copy, Debug)]
struct Change {
    token: u64,
    begun: u64,
    ended: Option<u64>,
}

/// What all clients did and saw.
#[derive(Default)]
struct Story {
    clock: Cell<u64>,
    token: Cell<u64>,
    changes: RefCell<BTreeMap<u64, Vec<Change>>>,
    written: Cell<u64>,
}

impl Story {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn begin(&self, blocks: std::ops::Range<u64>, token: u64) {
        let begun = self.tick();
        let mut all = self.changes.borrow_mut();
        blocks.for_each(|b| all.entry(b).or_default().push(Change { token, begun, ended: None }));
    }

    fn end(&self, blocks: std::ops::Range<u64>, token: u64) {
        let now = self.tick();
        let mut all = self.changes.borrow_mut();
        for b in blocks {
            let of = all.entry(b).or_default();
            if let Some(c) = of.iter_mut().rev().find(|c| c.token == token && c.ended.is_none()) {
                c.ended = Some(now);
            }
        }
    }

    /// A block said this in a read that began then: some change said so that began before, and that
    /// no other one had replaced.
    fn check(&self, block: u64, token: u64, read_begun: u64) {
        let all = self.changes.borrow();
        let of = all.get(&block).map_or(&[][..], |c| c);
        let replaced = |ended: u64| {
            of.iter().any(|n| n.begun > ended && n.ended.is_some_and(|e| e < read_begun))
        };
        let first = token == 0 && !replaced(0);
        let said = of.iter().any(|c| c.token == token && c.ended.is_none_or(|e| !replaced(e)));
        assert!(first || said, "block {block} says {token} at {read_begun}: {of:?}");
    }
}

fn tokens(data: &[u8]) -> impl Iterator<Item = u64> + '_ {
    data.chunks(BLOCK as usize).map(|b| {
        let token = b.first_chunk().map_or(0, |t| u64::from_le_bytes(*t));
        assert!(b.chunks(8).all(|c| c == token.to_le_bytes()), "a block is of one piece");
        token
    })
}

/// A client that works on the image until it has done so many things. Its failures are those of a
/// client that is fenced.
async fn work(sim: Rc<Sim>, story: Rc<Story>, times: u64) {
    let Ok(image) = Image::open(&sim, &spec(), true).await else { return };
    for _ in 0..times {
        let blocks = OBJECTS * OBJECT / BLOCK;
        let first = sim.below(blocks);
        let count = if sim.below(3) == 0 { OBJECT / BLOCK } else { 1 + sim.below(3) };
        // Whole objects now and then.
        let first = if count == OBJECT / BLOCK { first / count * count } else { first };
        let range = first..(first + count).min(blocks);
        let (offset, length) = (range.start * BLOCK, (range.end - range.start) * BLOCK);
        let result = match sim.below(5) {
            0 | 1 => {
                let token = story.token.get() + 1;
                story.token.set(token);
                let data: Vec<u8> =
                    token.to_le_bytes().iter().copied().cycle().take(length as usize).collect();
                story.begin(range.clone(), token);
                let r = image.write(offset, data.into()).await;
                if r.is_ok() {
                    story.end(range, token);
                    story.written.set(story.written.get() + 1);
                }
                r
            }
            2 => {
                story.begin(range.clone(), 0);
                let r = image.zero(offset, length).await;
                if r.is_ok() {
                    story.end(range, 0);
                }
                r
            }
            _ => {
                let begun = story.tick();
                match image.read(offset, length).await {
                    Ok(data) => {
                        tokens(&data)
                            .zip(range)
                            .for_each(|(token, block)| story.check(block, token, begun));
                        Ok(())
                    }
                    Err(r) => Err(r),
                }
            }
        };
        match result {
            Ok(()) => {}
            Err(r) => {
                assert_eq!(r, -errno::ESHUTDOWN, "only a client that is fenced fails");
                return;
            }
        }
    }
    image.close().await;
}

/// The map says of no object that it is missing which is there.
fn check_map(world: &World, exact: bool, seed: u64) {
    if world.flags() & 1 != 0 {
        return;
    }
    let map = ObjectMap::read(&world.object_map()).unwrap();
    for object in 0..OBJECTS {
        let (there, state) = (world.exists(object), map.get(object));
        assert!(
            !there || matches!(state, State::Exists | State::Clean),
            "seed {seed}: object {object} is there: {state:?}"
        );
        assert!(
            !exact || there || state == State::Missing,
            "seed {seed}: object {object} is not there: {state:?}"
        );
    }
}

fn campaign(seeds: std::ops::Range<u64>, deaths: bool) -> (u64, u64) {
    let (mut written, mut fenced) = (0, 0);
    for seed in seeds {
        let world = World::new(seed, OBJECT, OBJECTS);
        let story = Rc::new(Story::default());
        for id in 0..3 {
            let (sim, story) = (world.client(id), story.clone());
            world.start(id, Box::pin(work(sim, story, 12)));
        }
        world.run(if deaths { 2 } else { 0 });
        // Somebody who comes later finds what was answered.
        let (sim, late) = (world.client(9), story.clone());
        world.start(9, Box::pin(work(sim, late, 4)));
        world.run(0);
        check_map(&world, !deaths, seed);
        written += story.written.get();
        fenced += world.fenced();
    }
    (written, fenced)
}

#[test]
fn clients_pass_the_lock_on_and_see_what_was_written() {
    let (written, fenced) = campaign(0..60, false);
    assert!(written > 300, "{written}");
    assert_eq!(fenced, 0, "nobody who lives is fenced");
}

#[test]
fn who_dies_is_fenced_and_what_was_answered_is_there() {
    let (written, fenced) = campaign(1000..1080, true);
    assert!(written > 200 && fenced > 10, "{written} {fenced}");
}

#[test]
fn a_flush_waits_for_what_was_begun() {
    let world = World::new(1, OBJECT, OBJECTS);
    let sim = world.client(0);
    let done = Rc::new(Cell::new(false));
    let seen = done.clone();
    world.start(
        0,
        Box::pin(async move {
            let image = Image::open(&sim, &spec(), true).await.unwrap();
            let (writes, done) = (image.clone(), done.clone());
            crate::Rados::spawn(
                &*sim,
                Box::pin({
                    let done = done.clone();
                    async move {
                        writes.write(0, Bytes::from(vec![1; 4096])).await.unwrap();
                        done.set(true);
                    }
                }),
            );
            crate::Rados::sleep(&*sim, Duration::ZERO).await;
            image.flush().await;
            // The writer's own task may be a turn behind.
            crate::Rados::sleep(&*sim, Duration::ZERO).await;
            assert!(done.get());
        }),
    );
    world.run(0);
    assert!(seen.get());
}

/// Every small write to a clone wants an object of the parent's in memory. However many there are,
/// only some have it at a time.
#[test]
fn many_copy_ups_wait_for_memory() {
    const LARGE: u64 = 4 << 20;
    const WRITES: u64 = 40;
    let world = World::new(1, LARGE, WRITES);
    world.clone_of_empty(LARGE, WRITES);
    let sim = world.client(0);
    let done = Rc::new(Cell::new(0));
    let counted = done.clone();
    world.start(
        0,
        Box::pin(async move {
            let image = Image::open(&sim, &spec(), true).await.unwrap();
            for n in 0..WRITES {
                let (image, done) = (image.clone(), counted.clone());
                let one = async move {
                    image.write(n * LARGE, Bytes::from_static(b"changed")).await.unwrap();
                    done.set(done.get() + 1);
                };
                crate::Rados::spawn(&*sim, Box::pin(one));
            }
        }),
    );
    world.run(0);
    assert_eq!(done.get(), WRITES);
    assert!((0..WRITES).all(|n| world.exists(n)));
    let most = world.most_of_parent();
    assert!(
        (2..=crate::io::COPYING / (2 * LARGE as usize)).contains(&most),
        "{most} objects at a time"
    );
}

/// Bytes that this thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is handed on to the system's allocator; the counter touches no memory of it,
// and needs none.
#[allow(unsafe_code, reason = "the allocator's interface is unsafe")]
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        HELD.set(HELD.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: std::alloc::Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps to the contract of `dealloc`.
        unsafe { std::alloc::System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The pieces of an object of the smallest units are many: whoever waits for memory has not got
/// them.
#[test]
fn who_waits_for_memory_holds_none_whatever_the_units_are() {
    const LARGE: u64 = 1 << 20;
    const WRITES: u64 = 40;
    let world = World::striped(1, LARGE, WRITES, Some((512, 2)));
    world.clone_of_empty(LARGE, WRITES);
    let sim = world.client(0);
    let opened = Rc::new(RefCell::new(None));
    let done = Rc::new(Cell::new(0));
    let (keeps, counted) = (opened.clone(), done.clone());
    world.start(
        0,
        Box::pin(async move {
            let image = Image::open(&sim, &spec(), true).await.unwrap();
            // Whatever the first change loads is there.
            image.write(0, Bytes::from_static(b"first")).await.unwrap();
            image.copying.acquire_many((crate::io::COPYING >> 10) as u32).await.unwrap().forget();
            *keeps.borrow_mut() = Some((image.clone(), HELD.get()));
            for n in 1..WRITES {
                let (image, done) = (image.clone(), counted.clone());
                // The second unit of a set's stripe is the second object's.
                let at = n / 2 * 2 * LARGE + n % 2 * 512;
                let one = async move {
                    image.write(at, Bytes::from_static(b"changed")).await.unwrap();
                    done.set(done.get() + 1);
                };
                crate::Rados::spawn(&*sim, Box::pin(one));
            }
        }),
    );
    world.run(0);
    let (image, before) = opened.borrow_mut().take().unwrap();
    let each = HELD.get().wrapping_sub(before) / (WRITES as usize - 1);
    assert_eq!(done.get(), 0, "they wait");
    assert!(each < 16 << 10, "each holds {each} bytes");
    image.copying.add_permits(crate::io::COPYING >> 10);
    world.run(0);
    assert_eq!(done.get(), WRITES - 1);
    assert!((0..WRITES).all(|n| world.exists(n)));
}
