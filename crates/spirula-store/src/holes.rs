//! Freed space goes back to the host.
//!
//! A sparse data file keeps the space of whatever was written to it once: 9 GB of files for half
//! a gigabyte of data. Long runs of blocks that were freed are therefore punched out of it, by the
//! checkpoint thread when it has nothing else to do, some megabytes at a time. Short ones
//! stay: the next small writes fill them; but where the host has next to no room they go, too.
//!
//! Safe at any moment: a run comes here when it may be taken again, so its freeing is durable and
//! nobody reads it; and while it is punched it is taken, as if for metadata, so that nobody
//! writes to it and no bitmap calls it used. Of a run that was taken in part meanwhile nothing is
//! punched. What waits here when the store stops stays with the file until it is freed again.

use crate::alloc::{BLOCK, PhysRun};
use crate::device::BlockDevice;
use crate::kv::{SharedAllocator, lock};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shorter runs (blocks) stay.
const WORTH: u64 = 16;
/// Runs that wait, at most; the oldest are forgotten.
const QUEUED: usize = 4096;
/// Blocks punched at a time.
const STEP: u64 = 1024;
/// A run is taken to be punched only where so many times as much is free: nobody is to miss it.
const SPARE: u64 = 8;

/// See the module.
pub(crate) struct Holes {
    alloc: SharedAllocator,
    dev: Arc<dyn BlockDevice>,
    queue: Mutex<VecDeque<PhysRun>>,
}

impl Holes {
    pub fn new(alloc: SharedAllocator, dev: Arc<dyn BlockDevice>) -> Self {
        Self { alloc, dev, queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<PhysRun>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run is free, durably. `all`: short ones go as well.
    pub fn freed(&self, run: PhysRun, all: bool) {
        if run.len < WORTH && !all {
            return;
        }
        let mut queue = self.queue();
        if queue.len() >= QUEUED {
            queue.pop_front();
        }
        queue.push_back(run);
    }

    /// Does anything wait?
    pub fn any(&self) -> bool {
        !self.queue().is_empty()
    }

    /// Punches the next few megabytes.
    pub fn step(&self) {
        let run = {
            let mut queue = self.queue();
            let Some(run) = queue.pop_front() else { return };
            let len = run.len.min(STEP);
            if len < run.len {
                queue.push_front(PhysRun { start: run.start + len, len: run.len - len });
            }
            PhysRun { start: run.start, len }
        };
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
}
