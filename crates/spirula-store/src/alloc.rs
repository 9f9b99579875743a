//! The allocator: which 4 KiB blocks of the data file are in use.
//!
//! One bit per block, in groups of 128 MiB; a group that is all free or all used keeps no
//! bitmap in memory (at most 32 MiB per TiB, for space that is in use in part). A group
//! knows a bound of its longest free run, so that a search for contiguous space looks only
//! where it may be, however fragmented the rest. Small requests go round with a cursor of
//! their own and fill holes; large ones take the first fit of a group, or the longest
//! pieces there are. Group bitmaps that changed are written at checkpoints; what changed
//! since is redone from the journal. Knows nothing of who owns a block or when a freed one
//! may be reused.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes per block.
pub const BLOCK: u64 = 4096;
/// Blocks per group (a group's bitmap is 4 KiB).
pub(crate) const GROUP_BLOCKS: u64 = 32_768;
const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// Requests up to this many blocks use the small cursor.
const SMALL: u64 = 16;
/// Free runs looked at for a contiguous fit of a small request.
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

type Map = Box<[u64; GROUP_WORDS]>;

/// Some consecutive blocks.
struct Group {
    free: u32,
    /// No free run is longer.
    longest: u32,
    /// Large requests look from this block of the group on first: before it there is
    /// little.
    from: u32,
    /// Set: in use (or behind the end). `None`: all of [`GROUP_BLOCKS`] are in use
    /// if `free` is 0, else all are free.
    map: Option<Map>,
}

impl Group {
    fn new(size: u64) -> Self {
        let mut map = None;
        if size < GROUP_BLOCKS {
            // What lies behind the end is never free.
            let mut words: Map = Box::new([0; GROUP_WORDS]);
            for b in size..GROUP_BLOCKS {
                words[(b / 64) as usize] |= 1 << (b % 64);
            }
            map = Some(words);
        }
        Self { free: size as u32, longest: size as u32, from: 0, map }
    }

    fn word(&self, i: usize) -> u64 {
        match &self.map {
            Some(m) => m[i],
            None if self.free == 0 => u64::MAX,
            None => 0,
        }
    }

    /// First free block in `[from, until)`.
    fn next_free(&self, from: u64, until: u64) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let mut b = from;
        while b < until {
            let w = !self.word((b / 64) as usize) & (u64::MAX << (b % 64));
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
            let w = self.word((b / 64) as usize) & (u64::MAX << (b % 64));
            if w != 0 {
                return (b / 64 * 64 + u64::from(w.trailing_zeros())).min(until);
            }
            b = (b / 64 + 1) * 64;
        }
        until
    }

    /// First of the free blocks directly before `b`, or `b`.
    fn free_before(&self, b: u64) -> u64 {
        let mut b = b;
        while b > 0 {
            let bits = (b - 1) % 64 + 1;
            let w = self.word(((b - 1) / 64) as usize) << (64 - bits);
            if w != 0 {
                return b - u64::from(w.leading_zeros());
            }
            b -= bits;
        }
        0
    }

    /// First free run of at least `n` blocks in `[from, GROUP_BLOCKS)`, else the longest
    /// there.
    fn search(&self, from: u64, n: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        let mut at = from;
        while let Some(start) = self.next_free(at, GROUP_BLOCKS) {
            let end = self.next_used(start, GROUP_BLOCKS);
            if best.is_none_or(|(_, len)| end - start > len) {
                best = Some((start, end - start));
            }
            if end - start >= n {
                break;
            }
            at = end;
        }
        best
    }

    fn flip(&mut self, first: u64, len: u64, used: bool) {
        let state = self.word(0);
        let words = self.map.get_or_insert_with(|| Box::new([state; GROUP_WORDS]));
        let (mut b, end) = (first, first + len);
        while b < end {
            let n = (64 - b % 64).min(end - b);
            let mask = (u64::MAX >> (64 - n)) << (b % 64);
            let word = &mut words[(b / 64) as usize];
            *word = if used { *word | mask } else { *word & !mask };
            b += n;
        }
        if used {
            self.free -= len as u32;
            self.longest = self.longest.min(self.free);
        } else {
            self.free += len as u32;
            self.from = self.from.min(first as u32);
            let run = self.next_used(first + len, GROUP_BLOCKS) - self.free_before(first);
            self.longest = self.longest.max(run as u32);
        }
        if self.free == 0 || u64::from(self.free) == GROUP_BLOCKS {
            self.map = None;
        }
    }
}

/// The bitmap.
pub(crate) struct Allocator {
    groups: Vec<Group>,
    blocks: u64,
    free: u64,
    dirty: BTreeSet<u32>,
    /// Where small requests look next.
    small: u64,
    /// The group where large requests look first.
    large: usize,
    /// First block of each chunk of metadata. Chunks are of equal length; the metadata
    /// itself says which they are, so that the bitmaps do not.
    chunks: BTreeSet<u64>,
    chunk_blocks: u64,
    /// How many more allocations succeed, and whether then one fails or all do.
    #[cfg(test)]
    pub failing: Option<(u64, bool)>,
    /// How many failed so.
    #[cfg(test)]
    pub failed: u64,
}

fn group_of(block: u64) -> usize {
    (block / GROUP_BLOCKS) as usize
}

impl Allocator {
    /// All of `blocks` blocks free.
    pub fn new(blocks: u64) -> Self {
        let groups = (0..blocks.div_ceil(GROUP_BLOCKS))
            .map(|g| Group::new((blocks - g * GROUP_BLOCKS).min(GROUP_BLOCKS)))
            .collect();
        Self {
            groups,
            blocks,
            free: blocks,
            dirty: BTreeSet::new(),
            small: blocks / 4 * 3,
            large: 0,
            chunks: BTreeSet::new(),
            chunk_blocks: 0,
            #[cfg(test)]
            failing: None,
            #[cfg(test)]
            failed: 0,
        }
    }

    /// Number of free blocks.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Memory it takes, bytes.
    pub fn memory(&self) -> usize {
        let maps = self.groups.iter().filter(|g| g.map.is_some()).count();
        self.groups.capacity() * size_of::<Group>() + maps * size_of::<[u64; GROUP_WORDS]>()
    }

    /// Takes over a group's stored bitmap; false if it is malformed or for no group.
    pub fn load_group(&mut self, group: u32, bitmap: &[u8]) -> bool {
        let first = u64::from(group) * GROUP_BLOCKS;
        let Some(old) = self.groups.get_mut(group as usize) else { return false };
        if bitmap.len() != GROUP_WORDS * 8 {
            return false;
        }
        let mut new = Group::new((self.blocks - first).min(GROUP_BLOCKS));
        let tail = new.map.take();
        let mut words: Map = Box::new([0; GROUP_WORDS]);
        let mut used = 0;
        for (i, b) in bitmap.chunks_exact(8).enumerate() {
            let mut w = [0; 8];
            w.copy_from_slice(b);
            let behind = tail.as_ref().map_or(0, |t| t[i]);
            words[i] = u64::from_le_bytes(w) | behind;
            used += (words[i] & !behind).count_ones();
        }
        new.free -= used;
        new.longest = new.free;
        if new.free > 0 && u64::from(new.free) < GROUP_BLOCKS {
            new.map = Some(words);
        }
        self.free = self.free - u64::from(old.free) + u64::from(new.free);
        *old = new;
        true
    }

    /// Bitmaps of the groups that changed since the last call, as they are once `pending`
    /// (freed, not yet released) is released too. An empty bitmap means all free.
    pub fn take_dirty<'a>(&mut self, pending: impl Iterator<Item = &'a PhysRun>) -> Vec<(u32, Vec<u8>)> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut out: Vec<(u32, Vec<u8>)> = dirty
            .iter()
            .filter_map(|&g| {
                let group = self.groups.get(g as usize)?;
                let word = |i: usize| {
                    // Bits behind the end are stored as free: the device may grow.
                    let first = u64::from(g) * GROUP_BLOCKS + i as u64 * 64;
                    match self.blocks.saturating_sub(first) {
                        0 => 0,
                        n if n < 64 => group.word(i) & ((1 << n) - 1),
                        _ => group.word(i),
                    }
                };
                Some((g, (0..GROUP_WORDS).flat_map(|i| word(i).to_le_bytes()).collect()))
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
            let before = (first + 1).saturating_sub(self.chunk_blocks);
            for chunk in self.chunks.range(before..first + GROUP_BLOCKS) {
                for b in (*chunk).max(first)..(chunk + self.chunk_blocks).min(first + GROUP_BLOCKS) {
                    let bit = b - first;
                    map[(bit / 8) as usize] &= !(1 << (bit % 8));
                }
            }
            if map.iter().all(|b| *b == 0) {
                map.clear();
            }
        }
        out
    }

    /// Takes a chunk of `blocks` contiguous blocks for metadata. Always the same number.
    pub fn take_chunk(&mut self, blocks: u64) -> Option<u64> {
        let mut runs = Vec::new();
        let large = self.large;
        if !self.allocate(blocks, &mut runs) {
            return None;
        }
        let [run] = runs.as_slice() else {
            runs.iter().for_each(|r| self.flip(*r, false));
            self.large = large;
            return None;
        };
        self.chunk_blocks = blocks;
        self.chunks.insert(run.start);
        Some(run.start)
    }

    /// Takes the chunk that is at `start`; false (and no change) if part of it is in use or
    /// outside.
    pub fn adopt_chunk(&mut self, start: u64, blocks: u64) -> bool {
        let free = self.mark_used(PhysRun { start, len: blocks });
        if free {
            self.chunk_blocks = blocks;
            self.chunks.insert(start);
        }
        free
    }

    /// Gives a chunk back.
    pub fn drop_chunk(&mut self, start: u64) {
        if self.chunks.remove(&start) {
            self.flip(PhysRun { start, len: self.chunk_blocks }, false);
        }
    }

    /// Is this block in use by data?
    pub fn holds_data(&self, block: u64) -> bool {
        let group = self.groups.get(group_of(block));
        let used = group.is_some_and(|g| g.word((block % GROUP_BLOCKS / 64) as usize) >> (block % 64) & 1 == 1);
        let chunk = self.chunks.range(..=block).next_back();
        used && chunk.is_none_or(|c| block >= c + self.chunk_blocks)
    }

    /// Numbers and blocks of free runs, by the power of two below their length.
    pub fn free_runs(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut all: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut at = 0;
        while let Some(run) = self.next_run(at, u64::MAX) {
            let e = all.entry(run.len.ilog2().into()).or_default();
            *e = (e.0 + 1, e.1 + run.len);
            at = run.start + run.len;
        }
        all.into_iter().map(|(k, v)| (1 << k, v)).collect()
    }

    /// Blocks in chunks of metadata.
    pub fn in_chunks(&self) -> u64 {
        self.chunks.len() as u64 * self.chunk_blocks
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
        if !self.holds(run) || by_group(run).any(|(g, at, n)| self.groups[g].next_used(at, at + n) != at + n) {
            return false;
        }
        self.flip(run, true);
        true
    }

    /// Marks a run free; false (and no change) if part of it is free already or outside.
    pub fn mark_free(&mut self, run: PhysRun) -> bool {
        if !self.holds(run) || by_group(run).any(|(g, at, n)| self.groups[g].next_free(at, at + n).is_some()) {
            return false;
        }
        self.flip(run, false);
        true
    }

    fn flip(&mut self, run: PhysRun, used: bool) {
        self.touch(run);
        for (g, at, n) in by_group(run) {
            self.groups[g].flip(at, n, used);
            if used {
                self.free -= n;
            } else {
                self.free += n;
            }
        }
    }

    /// Next free run at or after `from`, cut to `max` blocks and its group.
    fn next_run(&self, from: u64, max: u64) -> Option<PhysRun> {
        let mut at = from % GROUP_BLOCKS;
        for (g, group) in self.groups.iter().enumerate().skip(group_of(from)) {
            if let Some(start) = group.next_free(at, GROUP_BLOCKS) {
                let end = group.next_used(start, start.saturating_add(max).min(GROUP_BLOCKS));
                return Some(PhysRun { start: g as u64 * GROUP_BLOCKS + start, len: end - start });
            }
            at = 0;
        }
        None
    }

    /// Takes `n` blocks, in as few runs as can be found quickly, and appends them to `out`.
    /// False, with nothing taken, if there are fewer than `n` free.
    pub fn allocate(&mut self, n: u64, out: &mut Vec<PhysRun>) -> bool {
        #[cfg(test)]
        match &mut self.failing {
            Some((0, for_good)) => {
                self.failed += 1;
                self.failing = for_good.then_some((0, true));
                return false;
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        if n > self.free {
            return false;
        }
        let mut left = n;
        if n <= SMALL
            && let Some(fit) = self.small_fit(n)
        {
            self.flip(fit, true);
            let end = fit.start + fit.len;
            self.small = if end >= self.blocks { 0 } else { end };
            push_run(out, fit);
            return true;
        }
        while left > 0 {
            // `left` blocks are free, so there is a run.
            let Some(run) = self.large_fit(left) else { break };
            let run = PhysRun { len: run.len.min(left), ..run };
            self.flip(run, true);
            push_run(out, run);
            left -= run.len;
        }
        assert_eq!(left, 0, "the allocator's counts are wrong");
        true
    }

    fn small_fit(&self, n: u64) -> Option<PhysRun> {
        let (mut from, mut wrapped) = (self.small, false);
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

    /// A run of at least `n` free blocks, else the longest there is.
    fn large_fit(&mut self, n: u64) -> Option<PhysRun> {
        let n = n.min(GROUP_BLOCKS);
        let count = self.groups.len();
        for g in (self.large..count).chain(0..self.large) {
            let group = &mut self.groups[g];
            if u64::from(group.longest) < n {
                continue;
            }
            let mut found = group.search(group.from.into(), n).filter(|(_, len)| *len >= n);
            if found.is_none() {
                found = group.search(0, n);
                if found.is_none_or(|(_, len)| len < n) {
                    group.longest = found.map_or(0, |(_, len)| len as u32);
                    continue;
                }
            }
            if let Some((start, len)) = found {
                group.from = (start + n) as u32;
                self.large = g;
                return Some(PhysRun { start: g as u64 * GROUP_BLOCKS + start, len });
            }
        }
        // Every bound is below `n` now. Take the longest, whose bound may still be too high.
        loop {
            let (g, group) = self.groups.iter_mut().enumerate().max_by_key(|(_, g)| g.longest)?;
            let bound = u64::from(group.longest);
            if bound == 0 {
                return None;
            }
            let (start, len) = group.search(0, bound)?;
            group.longest = len as u32;
            if len == bound {
                return Some(PhysRun { start: g as u64 * GROUP_BLOCKS + start, len });
            }
        }
    }
}

/// Splits a run into parts within groups: group, first block in it, number of blocks.
fn by_group(run: PhysRun) -> impl Iterator<Item = (usize, u64, u64)> {
    let (mut at, end) = (run.start, run.start + run.len);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let n = (end - at).min(GROUP_BLOCKS - at % GROUP_BLOCKS);
        let part = (group_of(at), at % GROUP_BLOCKS, n);
        at += n;
        Some(part)
    })
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
                for g in &a.groups {
                    let longest = g.search(0, u64::MAX).map_or(0, |(_, len)| len);
                    prop_assert!(longest <= u64::from(g.longest), "{longest} {}", g.longest);
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
            for (x, y) in a.groups.iter().zip(&b.groups) {
                prop_assert_eq!(x.free, y.free);
                prop_assert_eq!(&x.map, &y.map);
            }
        }
    }

    #[test]
    fn years_of_churn_at_85_per_cent_leave_large_extents_in_few_pieces_and_the_search_short() {
        // Objects of 1 to 1024 blocks come and go, in no order.
        let blocks = 8 * GROUP_BLOCKS;
        let mut a = Allocator::new(blocks);
        let mut held: Vec<Vec<PhysRun>> = Vec::new();
        let mut x = 7u64;
        let mut random = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) % n
        };
        let (mut large, mut pieces) = (0, 0);
        for step in 0..30_000 {
            while a.free() < blocks * 15 / 100 {
                let i = random(held.len() as u64) as usize;
                held.swap_remove(i).into_iter().for_each(|r| assert!(a.mark_free(r)));
            }
            let n = if random(3) == 0 { 1 + random(16) } else { 64 << random(5) };
            let mut out = Vec::new();
            assert!(a.allocate(n, &mut out));
            if n == 1024 && step > 15_000 {
                large += 1;
                pieces += out.len();
            }
            held.push(out);
        }
        assert!(large > 500 && pieces < 4 * large, "{pieces} pieces for {large} extents");
    }

    #[test]
    fn groups_all_free_or_all_used_keep_no_bitmap() {
        let mut a = Allocator::new(100 * GROUP_BLOCKS);
        let empty = a.memory();
        let mut out = Vec::new();
        assert!(a.allocate(50 * GROUP_BLOCKS, &mut out));
        assert_eq!(a.memory(), empty);
        assert!(a.allocate(100, &mut out));
        assert_eq!(a.memory(), empty + 4096);
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
