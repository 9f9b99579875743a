//! Room of the host under a sparse data file: space that the file system must still find
//! when a block is written for the first time. A write that finds none would stop the
//! store for good; so blocks are not given out when the host runs short, and freed ones go
//! back to it.

use crate::device::BlockDevice;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Left alone, for metadata and for what others take between two looks, bytes.
const MARGIN: u64 = 64 << 20;
/// Below this much room (bytes) freed blocks are given back to the host.
const SHORT: u64 = 1 << 30;
/// How long a look is good for.
const PERIOD: Duration = Duration::from_secs(1);

/// Is so much room of the host (bytes) next to none?
pub(crate) fn is_short(room: u64) -> bool {
    room < MARGIN + SHORT
}

/// See the module.
#[derive(Default)]
pub(crate) struct HostRoom {
    looked: Cell<Option<Instant>>,
    /// Bytes there are; `None`: the device has all its space.
    room: Cell<Option<u64>>,
    /// Bytes that may be taken before looking again.
    left: Cell<u64>,
    /// Every look is new: a store that does its work in steps knows no time.
    timeless: bool,
}

impl HostRoom {
    /// Of a store that does its work in steps.
    pub fn timeless() -> Self {
        Self { timeless: true, ..Self::default() }
    }

    fn look(&self, dev: &dyn BlockDevice) {
        // A file system that cannot tell is taken to have room.
        let room = dev.host_room().ok().flatten().map(|r| r.saturating_sub(MARGIN));
        self.looked.set(Some(Instant::now()));
        self.room.set(room);
        // Other stores may be on the same file system.
        self.left.set(room.map_or(SHORT, |r| r / 16));
    }

    /// Bytes that can still be had, as of not long ago. `None`: as many as are free.
    pub fn available(&self, dev: &dyn BlockDevice) -> Option<u64> {
        if self.timeless || self.looked.get().is_none_or(|t| t.elapsed() >= PERIOD) {
            self.look(dev);
        }
        self.room.get()
    }

    /// May `bytes` be taken? If not: how many may.
    pub fn take(&self, dev: &dyn BlockDevice, bytes: u64) -> Result<(), u64> {
        if self.timeless || bytes > self.left.get() {
            self.look(dev);
            match self.room.get() {
                Some(room) if bytes > room => return Err(room),
                _ => {}
            }
        }
        self.left.set(self.left.get().saturating_sub(bytes));
        Ok(())
    }

    /// Should freed blocks go back to the host?
    pub fn short(&self) -> bool {
        self.room.get().is_some_and(|r| r < SHORT)
    }
}
