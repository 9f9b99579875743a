//! Data of large reads that is kept in memory, where the memory budget has room for it.
//!
//! Large data goes past the system's page cache (`docs/decisions/009-page-cache.md`), so without
//! this every large read would come from the device. What is kept here are the buffers that such
//! reads filled: a read of the same blocks gets a slice of them, without a copy. Nothing is kept of
//! what is written: most of it is not read soon, and each copy of it would take memory.
//!
//! # Why nothing here is ever older than the device
//! Data is kept by the device blocks that it was read from and verified against. A block of the
//! data space never changes while anything refers to it, and before it may be taken again it is
//! released ([`Kept::release`], called where blocks become free). Who puts data in
//! ([`crate::Store::keep`]) looks up where it lies at that time, and vouches that it has not
//! changed since it was read. Scrubs read past this as past every cache.
//!
//! A buffer counts as a whole until less than half of it is of use: then all of it goes. What goes
//! first when the budget is used up is what came first and was not read again since the last look
//! at it (a clock). What is kept does not count as payloads in flight; where little of a large
//! buffer is read, the reader gets a copy ([`Found::own`]), so that it does not hold all of it.

use crate::alloc::{BLOCK, PhysRun};
use crate::read::POOLED_READ;
use bytes::Bytes;
use spirula_buffer::PayloadPool;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Shorter runs of blocks are not kept: they come from the page cache.
pub(crate) const LEAST_BLOCKS: u64 = if cfg!(test) { 2 } else { 16 };

/// Device blocks of which the data is in a buffer.
#[derive(Clone, Copy)]
struct Piece {
    blocks: u64,
    buffer: u64,
    /// First byte in the buffer.
    at: usize,
}

struct Buffer {
    data: Bytes,
    /// First device blocks of its pieces. A piece that was cut has its remains in `pieces` and
    /// here.
    starts: Vec<u64>,
    /// Blocks that may still be read from it.
    live: u64,
    used: bool,
}

/// Data that was found.
pub(crate) struct Found {
    pub data: Bytes,
    /// Bytes of the buffer that it is of.
    whole: usize,
}

impl Found {
    /// The data for somebody who may hold it for long: of a much larger buffer a copy.
    pub fn own(self, pool: &PayloadPool) -> Bytes {
        match self.data.len() {
            n if n * 4 >= self.whole => self.data,
            n if n < POOLED_READ => Bytes::copy_from_slice(&self.data),
            _ => pool.copy(&self.data),
        }
    }
}

/// See the module.
pub(crate) struct Kept {
    /// By first device block; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
    buffers: HashMap<u64, Buffer>,
    /// Numbers of buffers in the order in which they are looked at; some may be gone.
    clock: VecDeque<u64>,
    next: u64,
    /// Bytes of memory of all buffers.
    bytes: usize,
    limit: usize,
    pool: PayloadPool,
}

impl Kept {
    /// Keeps at most so many bytes, in buffers of this pool.
    pub fn new(limit: usize, pool: PayloadPool) -> Self {
        let (pieces, buffers, clock) = (BTreeMap::new(), HashMap::new(), VecDeque::new());
        Self { pieces, buffers, clock, next: 0, bytes: 0, limit, pool }
    }

    /// Could data of this size be kept at all?
    pub fn takes(&self, bytes: usize) -> bool {
        bytes <= self.limit / 2
    }

    /// Bytes of the buffers kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit, self.pool.clone());
    }

    /// The data of a run of blocks, if all of it is in one buffer.
    pub fn get(&mut self, run: PhysRun) -> Option<Found> {
        let (start, piece) = self.pieces.range(..=run.start).next_back()?;
        let skip = run.start - start;
        if skip + run.len > piece.blocks {
            return None;
        }
        let buffer = self.buffers.get_mut(&piece.buffer)?;
        buffer.used = true;
        let from = piece.at + (skip * BLOCK) as usize;
        let data = buffer.data.slice(from..from + (run.len * BLOCK) as usize);
        Some(Found { data, whole: buffer.data.len() })
    }

    /// Keeps `data`, of which runs of blocks (with their first byte in it) were read from the
    /// device. Blocks that are kept already, and short runs, are left out.
    pub fn put(&mut self, data: &Bytes, runs: &[(usize, PhysRun)]) {
        if !self.takes(data.len()) {
            return;
        }
        let id = self.next;
        self.next += 1;
        let (mut starts, mut live) = (Vec::new(), 0u64);
        for (at, run) in runs {
            // One by one: a range may have the same blocks twice.
            if run.len >= LEAST_BLOCKS && !self.overlaps(*run) {
                self.pieces.insert(run.start, Piece { blocks: run.len, buffer: id, at: *at });
                starts.push(run.start);
                live += run.len;
            }
        }
        if !worth(live, data.len()) {
            self.pieces.retain(|_, piece| piece.buffer != id);
            return;
        }
        let memory = PayloadPool::room_for(data.len());
        self.bytes += memory;
        self.pool.put_aside(memory);
        self.buffers.insert(id, Buffer { data: data.clone(), starts, live, used: false });
        self.clock.push_back(id);
        if self.clock.len() > 2 * self.buffers.len() + 64 {
            let buffers = &self.buffers;
            self.clock.retain(|id| buffers.contains_key(id));
        }
        while self.bytes > self.limit && self.tick() {}
    }

    /// Looks at the oldest buffer: gives it another turn if it was used, or lets go of it. False:
    /// there is none.
    fn tick(&mut self) -> bool {
        let Some(id) = self.clock.pop_front() else { return false };
        match self.buffers.get_mut(&id) {
            Some(b) if b.used => {
                b.used = false;
                self.clock.push_back(id);
            }
            Some(_) => self.forget(id),
            None => {}
        }
        true
    }

    fn forget(&mut self, id: u64) {
        let Some(b) = self.buffers.remove(&id) else { return };
        let memory = PayloadPool::room_for(b.data.len());
        self.bytes -= memory;
        // Before the data goes: what is aside is never more than what is out.
        self.pool.take_back(memory);
        for start in b.starts {
            // A start may be another buffer's by now.
            if self.pieces.get(&start).is_some_and(|p| p.buffer == id) {
                self.pieces.remove(&start);
            }
        }
    }

    fn overlaps(&self, run: PhysRun) -> bool {
        let before = self.pieces.range(..run.start + run.len).next_back();
        before.is_some_and(|(start, p)| start + p.blocks > run.start)
    }

    /// These blocks may be taken for other data from now on.
    pub fn release(&mut self, run: PhysRun) {
        let end = run.start + run.len;
        while let Some((&start, &piece)) = self.pieces.range(..end).next_back()
            && start + piece.blocks > run.start
        {
            self.pieces.remove(&start);
            let stop = start + piece.blocks;
            let Some(b) = self.buffers.get_mut(&piece.buffer) else { continue };
            b.live -= stop.min(end) - start.max(run.start);
            let remains = [(start, run.start), (end, stop)];
            for (from, to) in remains.into_iter().filter(|(from, to)| from < to) {
                let at = piece.at + ((from - start) * BLOCK) as usize;
                self.pieces.insert(from, Piece { blocks: to - from, at, ..piece });
                if from != start {
                    b.starts.push(from);
                }
            }
            if !worth(b.live, b.data.len()) {
                self.forget(piece.buffer);
            }
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.pool.take_back(self.bytes);
    }
}

/// Is a buffer of so many bytes worth its memory for so many blocks?
fn worth(live: u64, bytes: usize) -> bool {
    live > 0 && live * BLOCK * 2 >= bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn run(start: u64, len: u64) -> PhysRun {
        PhysRun { start, len }
    }

    fn kept(blocks: u64) -> Kept {
        Kept::new((blocks * BLOCK) as usize, PayloadPool::new(1 << 20))
    }

    fn get(k: &mut Kept, run: PhysRun) -> Option<Bytes> {
        k.get(run).map(|found| found.data)
    }

    fn data(blocks: u64, byte: u8) -> Bytes {
        vec![byte; (blocks * BLOCK) as usize].into()
    }

    #[test]
    fn what_is_kept_is_found_in_parts_and_gone_when_released() {
        let mut k = kept(64);
        k.put(&data(10, 1), &[(0, run(100, 6)), (6 * BLOCK as usize, run(200, 4))]);
        assert_eq!(get(&mut k, run(101, 3)), Some(data(3, 1)));
        assert_eq!(get(&mut k, run(200, 4)), Some(data(4, 1)));
        assert_eq!(
            (get(&mut k, run(105, 2)), get(&mut k, run(99, 2)), get(&mut k, run(203, 2))),
            (None, None, None)
        );
        k.release(run(102, 1));
        assert_eq!((get(&mut k, run(102, 1)), get(&mut k, run(101, 3))), (None, None));
        assert_eq!(
            (get(&mut k, run(100, 2)), get(&mut k, run(103, 3))),
            (Some(data(2, 1)), Some(data(3, 1)))
        );
        // Less than half is left: nothing is.
        k.release(run(100, 100));
        assert_eq!((get(&mut k, run(200, 1)), k.bytes()), (None, 0));
        assert!(k.pieces.is_empty() && k.buffers.is_empty());
    }

    #[test]
    fn what_was_read_again_stays_longest() {
        let mut k = kept(40);
        for n in 0..4 {
            k.put(&data(10, n), &[(0, run(u64::from(n) * 10, 10))]);
        }
        assert!(get(&mut k, run(0, 10)).is_some());
        k.put(&data(10, 9), &[(0, run(90, 10))]);
        assert!(
            get(&mut k, run(0, 10)).is_some()
                && get(&mut k, run(10, 10)).is_none()
                && get(&mut k, run(90, 10)).is_some()
        );
        assert!(k.bytes() <= 40 * BLOCK as usize);
        k.put(&data(21, 0), &[(0, run(300, 21))]);
        assert!(get(&mut k, run(300, 1)).is_none(), "more than half of the limit is not kept");
    }

    proptest! {
        /// Against a map of single blocks: what is found is what was put there last and not
        /// released since.
        #[test]
        fn it_never_gives_what_was_released(steps in proptest::collection::vec((0u8..3, 0u64..60, 1u64..12), 1..200)) {
            let mut k = kept(60);
            let mut truth: BTreeMap<u64, u8> = BTreeMap::new();
            for (n, (what, start, len)) in steps.into_iter().enumerate() {
                let run = run(start, len);
                match what {
                    0 => {
                        k.release(run);
                        truth.retain(|b, _| *b < start || *b >= start + len);
                    }
                    1 if !(start..start + len).any(|b| truth.contains_key(&b)) => {
                        k.put(&data(len, n as u8), &[(0, run)]);
                        truth.extend((start..start + len).map(|b| (b, n as u8)));
                    }
                    _ => {
                        if let Some(found) = get(&mut k, run) {
                            let wanted: Vec<u8> = (start..start + len).flat_map(|b| vec![truth[&b]; BLOCK as usize]).collect();
                            prop_assert!(found == wanted);
                        }
                    }
                }
                prop_assert!(k.bytes() <= 60 * BLOCK as usize);
                prop_assert_eq!(k.bytes(), k.buffers.values().map(|b| PayloadPool::room_for(b.data.len())).sum::<usize>());
                prop_assert!(k.clock.len() <= 2 * k.buffers.len() + 65);
                let live: u64 = k.pieces.values().map(|p| p.blocks).sum();
                prop_assert_eq!(live, k.buffers.values().map(|b| b.live).sum::<u64>());
            }
        }
    }
}
