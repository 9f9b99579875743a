//! Freed space goes back to the host.
//!
//! A sparse data file keeps the space of whatever was written to it once: 9 GB of files for half
//! a gigabyte of data. Long runs of blocks that were freed are therefore punched out of it, by the
//! checkpoint thread when it has nothing else to do, some megabytes at a time. Short ones
//! stay: the next small writes fill them; but where the host has next to no room they go, too.
//! Where many short ones were freed, a sweep looks whether they have become long ones together.
//!
//! Few runs wait here. What overflows, what was freed before the host ran short, and what waited
//! when the store stopped is found by a *sweep*, from one end of the device to the other, over
//! what is free and yet has space of the host ([`BlockDevice::next_data`]).
//!
//! Safe at any moment: a run comes here when it may be taken again, so its freeing is durable and
//! nobody reads it; and while it is punched it is taken, as if for metadata, so that nobody
//! writes to it and no bitmap calls it used. Of a run that was taken in part meanwhile nothing is
//! punched. Who finds no space waits for the piece that is under way ([`Holes::rest`]).

use crate::alloc::{BLOCK, PhysRun};
use crate::device::BlockDevice;
use crate::kv::{SharedAllocator, lock};
use crate::room;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shorter runs (blocks) stay.
const WORTH: u64 = 16;
/// A sweep is due when so many blocks were freed in shorter ones, and a 128th of what is used:
/// together they may be long runs.
const CRUMBS: u64 = 128;
/// Runs that wait, at most; what comes beyond is left to a sweep.
const QUEUED: usize = 4096;
/// Blocks punched at a time.
pub(crate) const STEP: u64 = 1024;
/// Blocks that a sweep looks at, at a time: the owner waits for it.
const LOOK: u64 = 1 << 20;
/// Short runs passed over at a time.
const PASSED: u64 = 256;
/// A run is taken to be punched only where so many times as much is free: nobody is to miss it.
const SPARE: u64 = 8;

/// How far a sweep is.
#[derive(Clone, Copy)]
struct Sweep {
    /// The block to go on at.
    at: u64,
    /// Short runs go as well.
    all: bool,
}

#[derive(Default)]
struct Queue {
    runs: VecDeque<PhysRun>,
    sweep: Option<Sweep>,
    /// A sweep is to begin when the one under way has ended.
    again: bool,
    /// The host was short of room when a run came last.
    short: bool,
    /// Blocks that were freed in short runs since a sweep became due.
    crumbs: u64,
}

/// See the module.
pub(crate) struct Holes {
    alloc: SharedAllocator,
    dev: Arc<dyn BlockDevice>,
    queue: Mutex<Queue>,
    /// Held while a piece is punched.
    piece: Mutex<()>,
}

impl Holes {
    /// A sweep is due at once: who opens a store does not know what the last one left.
    pub fn new(alloc: SharedAllocator, dev: Arc<dyn BlockDevice>) -> Self {
        let queue = Mutex::new(Queue { again: true, ..Queue::default() });
        Self { alloc, dev, queue, piece: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run is free, durably. `short`: the host has next to no room.
    pub fn freed(&self, run: PhysRun, short: bool) {
        let mut queue = self.queue();
        if run.len < WORTH && !short {
            queue.crumbs += run.len;
            if queue.crumbs >= CRUMBS && queue.crumbs >= self.used() / 128 {
                queue.crumbs = 0;
                queue.again = true;
            }
            return;
        }
        queue.again |= short && !queue.short;
        queue.short = short;
        if queue.runs.len() >= QUEUED {
            queue.runs.pop_front();
            queue.again = true;
        }
        queue.runs.push_back(run);
    }

    fn used(&self) -> u64 {
        let alloc = lock(&self.alloc);
        alloc.blocks() - alloc.free()
    }

    /// Does anything wait?
    pub fn any(&self) -> bool {
        let queue = self.queue();
        !queue.runs.is_empty() || queue.sweep.is_some() || queue.again
    }

    /// Lets nothing be punched as long as it is held; what was under way is free again.
    pub fn rest(&self) -> MutexGuard<'_, ()> {
        self.piece.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Punches the next few megabytes, or looks for some.
    pub fn step(&self) {
        let run = {
            let mut queue = self.queue();
            let Some(run) = queue.runs.pop_front() else {
                drop(queue);
                return self.sweep();
            };
            let len = run.len.min(STEP);
            if len < run.len {
                queue.runs.push_front(PhysRun { start: run.start + len, len: run.len - len });
            }
            PhysRun { start: run.start, len }
        };
        self.punch(run);
    }

    fn punch(&self, run: PhysRun) {
        let _piece = self.rest();
        let owned = {
            let mut alloc = lock(&self.alloc);
            alloc.free() >= SPARE * run.len && alloc.adopt(run)
        };
        if !owned && !planted!(HolesUnowned) {
            return;
        }
        // Where it cannot be, the space just stays with the file.
        let _ = self.dev.discard(run.start * BLOCK, run.len * BLOCK);
        if owned {
            lock(&self.alloc).release(run);
        }
    }

    /// A step of a sweep.
    fn sweep(&self) {
        let sweep = {
            let mut queue = self.queue();
            if queue.sweep.is_none() && std::mem::take(&mut queue.again) {
                // A device that has all its space shall keep it.
                let room = self.dev.host_room().ok().flatten();
                queue.sweep = room.map(|room| Sweep { at: 0, all: room::is_short(room) });
            }
            queue.sweep
        };
        let Some(Sweep { at, all }) = sweep else { return };
        let blocks = lock(&self.alloc).blocks();
        // Who cannot tell may have data anywhere.
        let data = if at < blocks {
            self.dev.next_data(at * BLOCK).unwrap_or(Some(at * BLOCK))
        } else {
            None
        };
        let next = data
            .map(|byte| at.max(byte / BLOCK))
            .filter(|at| *at < blocks)
            .map(|from| self.sweep_from(from, blocks, all));
        self.queue().sweep = next.map(|at| Sweep { at, all });
    }

    /// Punches a piece of the next run that is worth it; where to go on.
    fn sweep_from(&self, from: u64, blocks: u64, all: bool) -> u64 {
        let mut at = from;
        for _ in 0..PASSED {
            let until = (at + LOOK).min(blocks);
            let Some(run) = lock(&self.alloc).free_run(at, until) else { return until };
            if run.len >= WORTH || all {
                let run = PhysRun { len: run.len.min(STEP), ..run };
                self.punch(run);
                return run.start + run.len;
            }
            at = run.start + run.len;
        }
        at
    }
}
