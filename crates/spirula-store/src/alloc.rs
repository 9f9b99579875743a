//! The allocator: which 4 KiB blocks of the data file are in use.
//!
//! One bit per block, in groups of 128 MiB whose free counts let a search skip what is
//! full. Next-fit with two cursors, one for small requests and one for large, so that
//! small blocks fill holes and large extents stay contiguous. Group bitmaps that changed
//! are written at checkpoints; what changed since is redone from the journal.
//! Knows nothing of who owns a block or when a freed one may be reused.

use std::collections::BTreeSet;

/// Bytes per block.
pub const BLOCK: u64 = 4096;
/// Blocks per group (a group's bitmap is 4 KiB).
pub(crate) const GROUP_BLOCKS: u64 = 32_768;
const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// Requests up to this many blocks use the small cursor.
const SMALL: u64 = 16;
/// Free runs looked at for a contiguous fit before pieces are taken.
const TRIES: usize = 64;

/// A run of blocks of the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PhysRun {
    /// First block.
    pub start: u64,
    /// Number of blocks, not 0.
    pub len: u64,
}

/// Adds a run to a list, joining it with the last one where they touch.
pub(crate) fn push_run(runs: &mut Vec<PhysRun>, run: PhysRun) {
    match runs.last_mut() {
        Some(last) if last.start + last.len == run.start => last.len += run.len,
        _ => runs.push(run),
    }
}

/// The bitmap.
pub(crate) struct Allocator {
    words: Vec<u64>,
    blocks: u64,
    free: u64,
    group_free: Vec<u32>,
    dirty: BTreeSet<u32>,
    small: u64,
    large: u64,
}

impl Allocator {
    /// All of `blocks` blocks free.
    pub fn new(blocks: u64) -> Self {
        let groups = blocks.div_ceil(GROUP_BLOCKS);
        let mut words = vec![0u64; groups as usize * GROUP_WORDS];
        // What lies behind the end is never free.
        for b in blocks..groups * GROUP_BLOCKS {
            words[(b / 64) as usize] |= 1 << (b % 64);
        }
        let group_free = (0..groups).map(|g| (blocks - g * GROUP_BLOCKS).min(GROUP_BLOCKS) as u32).collect();
        Self { words, blocks, free: blocks, group_free, dirty: BTreeSet::new(), small: blocks / 4 * 3, large: 0 }
    }

    /// Number of free blocks.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes over a group's stored bitmap; false if it is malformed or for no group.
    pub fn load_group(&mut self, group: u32, bitmap: &[u8]) -> bool {
        let base = group as usize * GROUP_WORDS;
        if bitmap.len() != GROUP_WORDS * 8 || base + GROUP_WORDS > self.words.len() {
            return false;
        }
        let first = u64::from(group) * GROUP_BLOCKS;
        let size = (self.blocks - first).min(GROUP_BLOCKS) as u32;
        let mut used = 0;
        for (i, b) in bitmap.chunks_exact(8).enumerate() {
            let mut w = [0; 8];
            w.copy_from_slice(b);
            let tail = self.words[base + i];
            self.words[base + i] = u64::from_le_bytes(w) | tail;
            used += (self.words[base + i] & !tail).count_ones();
        }
        self.free -= u64::from(used);
        self.group_free[group as usize] = size.saturating_sub(used);
        true
    }

    /// Bitmaps of the groups that changed since the last call, as they are once `pending`
    /// (freed, not yet released) is released too. An empty bitmap means all free.
    pub fn take_dirty<'a>(&mut self, pending: impl Iterator<Item = &'a PhysRun>) -> Vec<(u32, Vec<u8>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut out: Vec<(u32, Vec<u8>)> = dirty
            .iter()
            .map(|&g| {
                let base = g as usize * GROUP_WORDS;
                (g, self.words[base..base + GROUP_WORDS].iter().flat_map(|w| w.to_le_bytes()).collect())
            })
            .collect();
        for run in pending {
            for b in run.start..run.start + run.len {
                // A run that awaits its release made its group dirty when it was freed.
                if let Ok(i) = out.binary_search_by_key(&((b / GROUP_BLOCKS) as u32), |(g, _)| *g) {
                    let bit = b % GROUP_BLOCKS;
                    out[i].1[(bit / 8) as usize] &= !(1 << (bit % 8));
                }
            }
        }
        for (g, map) in &mut out {
            let first = u64::from(*g) * GROUP_BLOCKS;
            let tail_is_free = first + GROUP_BLOCKS > self.blocks;
            if !tail_is_free && map.iter().all(|b| *b == 0) {
                map.clear();
            }
        }
        out
    }

    /// Marks the groups of a run as changed.
    pub fn touch(&mut self, run: PhysRun) {
        for g in run.start / GROUP_BLOCKS..=(run.start + run.len - 1) / GROUP_BLOCKS {
            self.dirty.insert(g as u32);
        }
    }

    fn holds(&self, run: PhysRun) -> bool {
        run.len > 0 && run.start.checked_add(run.len).is_some_and(|end| end <= self.blocks)
    }

    /// Marks a run used; false (and no change) if part of it is in use or outside.
    pub fn mark_used(&mut self, run: PhysRun) -> bool {
        if !self.holds(run) || self.next_used(run.start, run.start + run.len) != run.start + run.len {
            return false;
        }
        self.flip(run, true);
        true
    }

    /// Marks a run free; false (and no change) if part of it is free already or outside.
    pub fn mark_free(&mut self, run: PhysRun) -> bool {
        if !self.holds(run) || self.next_free(run.start, run.start + run.len).is_some() {
            return false;
        }
        self.flip(run, false);
        true
    }

    fn flip(&mut self, run: PhysRun, used: bool) {
        self.touch(run);
        let (mut b, end) = (run.start, run.start + run.len);
        while b < end {
            let n = (64 - b % 64).min(end - b);
            let mask = (u64::MAX >> (64 - n)) << (b % 64);
            let group = &mut self.group_free[(b / GROUP_BLOCKS) as usize];
            let word = &mut self.words[(b / 64) as usize];
            if used {
                *word |= mask;
                *group -= n as u32;
                self.free -= n;
            } else {
                *word &= !mask;
                *group += n as u32;
                self.free += n;
            }
            b += n;
        }
    }

    /// First free block in `[from, until)`.
    fn next_free(&self, from: u64, until: u64) -> Option<u64> {
        let mut b = from;
        while b < until {
            if b.is_multiple_of(GROUP_BLOCKS) && self.group_free[(b / GROUP_BLOCKS) as usize] == 0 {
                b += GROUP_BLOCKS;
                continue;
            }
            let w = !self.words[(b / 64) as usize] & (u64::MAX << (b % 64));
            if w != 0 {
                let found = b / 64 * 64 + u64::from(w.trailing_zeros());
                return (found < until).then_some(found);
            }
            b = (b / 64 + 1) * 64;
        }
        None
    }

    /// First used block in `[from, until)`, or `until`.
    fn next_used(&self, from: u64, until: u64) -> u64 {
        let mut b = from;
        while b < until {
            let w = self.words[(b / 64) as usize] & (u64::MAX << (b % 64));
            if w != 0 {
                return (b / 64 * 64 + u64::from(w.trailing_zeros())).min(until);
            }
            b = (b / 64 + 1) * 64;
        }
        until
    }

    /// Next free run at or after `from`, cut to `max` blocks.
    fn next_run(&self, from: u64, max: u64) -> Option<PhysRun> {
        let start = self.next_free(from, self.blocks)?;
        let end = self.next_used(start, start.saturating_add(max).min(self.blocks));
        Some(PhysRun { start, len: end - start })
    }

    /// Takes `n` blocks, in as few runs as can be found quickly, and appends them to `out`.
    /// False, with nothing taken, if there are fewer than `n` free.
    pub fn allocate(&mut self, n: u64, out: &mut Vec<PhysRun>) -> bool {
        if n > self.free {
            return false;
        }
        let cursor = if n <= SMALL { self.small } else { self.large };
        let mut left = n;
        let mut last_end = cursor;
        if let Some(fit) = self.find_fit(n, cursor) {
            self.flip(fit, true);
            last_end = fit.start + fit.len;
            push_run(out, fit);
            left = 0;
        }
        let mut from = last_end;
        while left > 0 {
            match self.next_run(from, left) {
                Some(run) => {
                    self.flip(run, true);
                    push_run(out, run);
                    left -= run.len;
                    from = run.start + run.len;
                    last_end = from;
                }
                // Behind the end: go on from the beginning. `n <= free` makes this end.
                None => from = 0,
            }
        }
        let next = if last_end >= self.blocks { 0 } else { last_end };
        if n <= SMALL {
            self.small = next;
        } else {
            self.large = next;
        }
        true
    }

    fn find_fit(&self, n: u64, cursor: u64) -> Option<PhysRun> {
        let (mut from, mut wrapped) = (cursor, false);
        for _ in 0..TRIES {
            match self.next_run(from, n) {
                Some(run) if run.len == n => return Some(run),
                Some(run) => from = run.start + run.len,
                None if wrapped => return None,
                None => {
                    wrapped = true;
                    from = 0;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_allocator_never_overlaps_and_counts_right(
            blocks in 1u64..70_000,
            ops in proptest::collection::vec((any::<bool>(), 1u64..5_000, any::<u16>()), 1..60),
        ) {
            let mut a = Allocator::new(blocks);
            let mut held: Vec<PhysRun> = Vec::new();
            for (take, n, pick) in ops {
                if take {
                    let mut out = Vec::new();
                    let free = a.free();
                    prop_assert_eq!(a.allocate(n, &mut out), n <= free);
                    prop_assert_eq!(out.iter().map(|r| r.len).sum::<u64>(), if n <= free { n } else { 0 });
                    for r in out {
                        prop_assert!(r.start + r.len <= blocks);
                        prop_assert!(held.iter().all(|h| h.start + h.len <= r.start || r.start + r.len <= h.start));
                        held.push(r);
                    }
                } else if !held.is_empty() {
                    let r = held.swap_remove(usize::from(pick) % held.len());
                    prop_assert!(a.mark_free(r));
                    prop_assert!(!a.mark_free(r));
                }
                prop_assert_eq!(a.free() + held.iter().map(|h| h.len).sum::<u64>(), blocks);
            }
            // Stored and loaded, it is the same.
            let mut b = Allocator::new(blocks);
            for g in 0..blocks.div_ceil(GROUP_BLOCKS) {
                a.touch(PhysRun { start: g * GROUP_BLOCKS, len: 1 });
            }
            for (g, map) in a.take_dirty([].iter()) {
                prop_assert!(map.is_empty() || b.load_group(g, &map));
            }
            prop_assert_eq!(a.free(), b.free());
            prop_assert_eq!(&a.group_free, &b.group_free);
            prop_assert_eq!(&a.words, &b.words);
        }
    }

    #[test]
    fn large_requests_are_contiguous_while_space_is() {
        let mut a = Allocator::new(100_000);
        for _ in 0..50 {
            let mut out = Vec::new();
            assert!(a.allocate(1, &mut out) && a.allocate(1024, &mut out));
            assert_eq!(out.len(), 2);
        }
    }

    #[test]
    fn runs_pending_release_are_stored_as_free() {
        let mut a = Allocator::new(GROUP_BLOCKS);
        let mut out = Vec::new();
        assert!(a.allocate(10, &mut out));
        a.touch(out[0]);
        assert_eq!(a.take_dirty(out.iter()), vec![(0, Vec::new())]);
    }
}
