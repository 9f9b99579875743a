//! The allocator: which 4 KiB blocks of the data file are in use.
//!
//! One bit per block, in groups of 128 MiB; a group that is all free or all used keeps no
//! bitmap in memory (at most 32 MiB per TiB, for space that is in use in part, and as much
//! again for what metadata is strewn over). An index of the groups by the length of their
//! longest free run, which is always exact, leads each search to a group that has what is
//! wanted: no request walks the device, however large and fragmented it is.
//!
//! A large request takes the shortest of these runs that is long enough, by the power of two;
//! small ones fill groups that are in use in part before they break one that is all free.
//! So long runs stay for those that need them. Where no run is long enough the longest ones
//! are taken. Data is never refused
//! because its space is in pieces, nor is metadata, which comes and goes by single blocks
//! ([`Allocator::take_pieces`]) where no window of it is whole.
//!
//! Group bitmaps that changed are written at checkpoints; what changed since is redone from
//! the journal. The blocks of metadata are named by itself, not by these bitmaps. Knows
//! nothing of who owns a block or when a freed one may be reused.

mod group;
mod index;

pub(crate) use group::GROUP_BLOCKS;
use group::{GROUP_WORDS, Group, Image};
use index::Index;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes per block.
pub const BLOCK: u64 = 4096;
/// Requests up to this many blocks use the small cursor.
const SMALL: u64 = 16;
/// Groups looked at that may have what is wanted before one is taken that surely has.
const TRIES: usize = 4;
/// Classes in the order in which requests try them: large ones take the shortest run that
/// is long enough.
const LARGE_ORDER: [usize; Index::CLASSES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Small ones begin with runs that serve many of them one behind the other (the device's
/// writes are joined then), go on with shorter ones, and break a group that is all free only
/// when nothing else is left.
const SMALL_ORDER: [usize; Index::CLASSES] = [6, 7, 8, 9, 10, 11, 12, 13, 14, 5, 4, 3, 2, 1, 0, 15];
/// The same where it matters more: for what metadata needs to adjoin.
const META_TRIES: usize = 64;

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

/// Groups as they were at a moment, for a checkpoint to write. Nothing is copied or worked out for
/// it while the owner waits.
#[derive(Default)]
pub(crate) struct Dirty {
    groups: Vec<(u32, Image)>,
    /// Not in use any more.
    pending: Vec<PhysRun>,
    /// Of the device.
    blocks: u64,
}

impl Dirty {
    /// The bitmaps by group, as they are stored. An empty one means all free.
    pub fn bitmaps(&self) -> Vec<(u32, Vec<u8>)> {
        let mut out: Vec<(u32, Vec<u8>)> =
            self.groups.iter().map(|(g, image)| (*g, self.bitmap(*g, image))).collect();
        for run in &self.pending {
            for b in run.start..run.start + run.len {
                // A run that awaits its release made its group dirty when it was freed.
                if let Ok(i) = out.binary_search_by_key(&((b / GROUP_BLOCKS) as u32), |(g, _)| *g) {
                    let bit = b % GROUP_BLOCKS;
                    out[i].1[(bit / 8) as usize] &= !(1 << (bit % 8));
                }
            }
        }
        for (_, map) in &mut out {
            if map.iter().all(|b| *b == 0) {
                map.clear();
            }
        }
        out
    }

    fn bitmap(&self, g: u32, image: &Image) -> Vec<u8> {
        let mut map = Vec::with_capacity(GROUP_WORDS * 8);
        for i in 0..GROUP_WORDS {
            // Bits behind the end are stored as free: the device may grow.
            let first = u64::from(g) * GROUP_BLOCKS + i as u64 * 64;
            let data = image.data(i);
            let word = match self.blocks.saturating_sub(first) {
                0 => 0,
                n if n < 64 => data & ((1 << n) - 1),
                _ => data,
            };
            map.extend_from_slice(&word.to_le_bytes());
        }
        map
    }
}

/// Where to look first.
#[derive(Clone, Copy)]
enum Cursor {
    /// Small requests, by block.
    Small,
    /// Large ones and metadata, by group.
    Large,
    Meta,
}

/// The bitmap.
pub(crate) struct Allocator {
    groups: Vec<Group>,
    index: Index,
    blocks: u64,
    free: u64,
    dirty: BTreeSet<u32>,
    /// Where small requests look next.
    small: u64,
    /// The groups where large requests and metadata look first.
    large: usize,
    meta: usize,
    /// Blocks that metadata has.
    in_meta: u64,
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
        let groups: Vec<Group> = (0..blocks.div_ceil(GROUP_BLOCKS))
            .map(|g| Group::new((blocks - g * GROUP_BLOCKS).min(GROUP_BLOCKS)))
            .collect();
        let mut index = Index::new(groups.len());
        groups.iter().enumerate().for_each(|(g, group)| index.put(g, None, group.class()));
        Self {
            meta: groups.len() / 8 * 7,
            groups,
            index,
            blocks,
            free: blocks,
            dirty: BTreeSet::new(),
            small: blocks / 4 * 3,
            large: 0,
            in_meta: 0,
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
        let maps: usize = self
            .groups
            .iter()
            .map(|g| usize::from(g.map.is_some()) + usize::from(g.meta.is_some()))
            .sum();
        self.groups.capacity() * size_of::<Group>()
            + self.index.memory()
            + maps * size_of::<[u64; GROUP_WORDS]>()
    }

    /// Takes over a group's stored bitmap; false if it is malformed or for no group.
    pub fn load_group(&mut self, group: u32, bitmap: &[u8]) -> bool {
        let (g, first) = (group as usize, u64::from(group) * GROUP_BLOCKS);
        let Some(old) = self.groups.get_mut(g) else { return false };
        if bitmap.len() != GROUP_WORDS * 8 {
            return false;
        }
        let new = Group::load((self.blocks - first).min(GROUP_BLOCKS), bitmap);
        self.free = self.free - u64::from(old.free) + u64::from(new.free);
        self.index.put(g, old.class(), new.class());
        *old = new;
        true
    }

    /// The groups that changed since the last call, as they are once `pending` (freed, not yet
    /// released) is released too.
    pub fn take_dirty(&mut self, pending: Vec<PhysRun>) -> Dirty {
        let dirty = std::mem::take(&mut self.dirty);
        let image = |g: u32| Some((g, self.groups.get(g as usize)?.image()));
        Dirty {
            groups: dirty.into_iter().filter_map(image).collect(),
            pending,
            blocks: self.blocks,
        }
    }

    // ----- metadata

    /// Takes a window of `blocks` blocks (64 times a power of two, up to 1024) for metadata,
    /// at a multiple of its length. `None`: none is all free.
    pub fn take_window(&mut self, blocks: u64) -> Option<PhysRun> {
        self.take_shaped(blocks, |g| g.window(blocks))
    }

    /// Takes `n` blocks (up to 64) for metadata that adjoin between two multiples of 64.
    pub fn take_adjoining(&mut self, n: u64) -> Option<PhysRun> {
        self.take_shaped(n, |g| g.within_word(n))
    }

    fn take_shaped(
        &mut self,
        blocks: u64,
        find: impl Fn(&Group) -> Option<u64>,
    ) -> Option<PhysRun> {
        if self.fails() {
            return None;
        }
        let mut found = None;
        for class in blocks.ilog2() as usize..Index::CLASSES {
            let groups = self.index.from(class, self.meta).take(META_TRIES);
            found = groups.filter_map(|g| find(&self.groups[g]).map(|at| (g, at))).next();
            if found.is_some() {
                break;
            }
        }
        let (g, at) = found?;
        let run = PhysRun { start: g as u64 * GROUP_BLOCKS + at, len: blocks };
        self.meta = g;
        self.give_meta(run);
        Some(run)
    }

    /// Takes up to `n` blocks for metadata, wherever they are, in the longest runs there are.
    pub fn take_pieces(&mut self, n: u64) -> Vec<PhysRun> {
        let mut runs = Vec::new();
        if self.fails() {
            return runs;
        }
        let mut left = n.min(self.free);
        while left > 0 && self.gather(&mut left, Cursor::Meta, false, &mut runs) {}
        for run in &runs {
            for (g, at, len) in by_group(*run) {
                self.groups[g].set_meta(at, len, true);
            }
            self.in_meta += run.len;
        }
        runs
    }

    fn give_meta(&mut self, run: PhysRun) {
        self.flip(run, true);
        for (g, at, n) in by_group(run) {
            self.groups[g].set_meta(at, n, true);
        }
        self.in_meta += run.len;
    }

    /// Takes blocks that metadata names; false (and no change) if part of them is in use or
    /// outside.
    pub fn adopt(&mut self, run: PhysRun) -> bool {
        let free = self.all_free(run);
        if free {
            self.give_meta(run);
        }
        free
    }

    /// Frees blocks of metadata.
    pub fn release(&mut self, run: PhysRun) {
        for (g, at, n) in by_group(run) {
            self.groups[g].set_meta(at, n, false);
        }
        self.in_meta -= run.len;
        self.flip(run, false);
    }

    /// Is this block in use by data?
    pub fn holds_data(&self, block: u64) -> bool {
        let (word, bit) = ((block % GROUP_BLOCKS / 64) as usize, block % 64);
        self.groups.get(group_of(block)).is_some_and(|g| {
            let data = g.word(word) & !g.meta.as_ref().map_or(0, |m| m[word]);
            data >> bit & 1 == 1
        })
    }

    /// Blocks that metadata has.
    pub fn in_meta(&self) -> u64 {
        self.in_meta
    }

    /// Numbers and blocks of free runs, by the power of two below their length.
    pub fn free_runs(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut all: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut at = 0;
        while let Some(run) = self.next_run(at) {
            let e = all.entry(run.len.ilog2().into()).or_default();
            *e = (e.0 + 1, e.1 + run.len);
            at = run.start + run.len;
        }
        all.into_iter().map(|(k, v)| (1 << k, v)).collect()
    }

    // ----- data

    /// Marks the groups of a run as changed.
    pub fn touch(&mut self, run: PhysRun) {
        for g in run.start / GROUP_BLOCKS..=(run.start + run.len - 1) / GROUP_BLOCKS {
            self.dirty.insert(g as u32);
        }
    }

    fn holds(&self, run: PhysRun) -> bool {
        run.len > 0 && run.start.checked_add(run.len).is_some_and(|end| end <= self.blocks)
    }

    fn all_free(&self, run: PhysRun) -> bool {
        self.holds(run)
            && !by_group(run).any(|(g, at, n)| self.groups[g].next_used(at, at + n) != at + n)
    }

    /// Marks a run used; false (and no change) if part of it is in use or outside.
    pub fn mark_used(&mut self, run: PhysRun) -> bool {
        let free = self.all_free(run);
        if free {
            self.touch(run);
            self.flip(run, true);
        }
        free
    }

    /// Marks a run free; false (and no change) if part of it is free already or outside.
    pub fn mark_free(&mut self, run: PhysRun) -> bool {
        if !self.holds(run)
            || by_group(run).any(|(g, at, n)| self.groups[g].next_free(at, at + n).is_some())
        {
            return false;
        }
        self.touch(run);
        self.flip(run, false);
        true
    }

    fn flip(&mut self, run: PhysRun, used: bool) {
        for (g, at, n) in by_group(run) {
            let group = &mut self.groups[g];
            let before = group.class();
            group.flip(at, n, used);
            self.index.put(g, before, group.class());
            if used {
                self.free -= n;
            } else {
                self.free += n;
            }
        }
    }

    /// The first free run in `[from, until)`, cut to its group and there.
    pub fn free_run(&self, from: u64, until: u64) -> Option<PhysRun> {
        let groups = group_of(from)..=group_of(until.saturating_sub(1));
        let parts =
            groups.map(|g| g as u64 * GROUP_BLOCKS).zip(self.groups.iter().skip(group_of(from)));
        parts.into_iter().find_map(|(base, group)| {
            let (first, end) =
                (from.max(base) - base, until.min(base + GROUP_BLOCKS).saturating_sub(base));
            let start = group.next_free(first, end)?;
            Some(PhysRun { start: base + start, len: group.next_used(start, end) - start })
        })
    }

    /// Next free run at or after `from`, cut to its group.
    fn next_run(&self, from: u64) -> Option<PhysRun> {
        let mut at = from % GROUP_BLOCKS;
        for (g, group) in self.groups.iter().enumerate().skip(group_of(from)) {
            if let Some(start) = group.next_free(at, GROUP_BLOCKS) {
                let end = group.next_used(start, GROUP_BLOCKS);
                return Some(PhysRun { start: g as u64 * GROUP_BLOCKS + start, len: end - start });
            }
            at = 0;
        }
        None
    }

    /// For tests: shall this allocation fail?
    #[cfg(test)]
    fn fails(&mut self) -> bool {
        match &mut self.failing {
            Some((0, for_good)) => {
                self.failed += 1;
                self.failing = for_good.then_some((0, true));
                true
            }
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    #[cfg(not(test))]
    fn fails(&self) -> bool {
        false
    }

    /// Takes `n` blocks, in as few runs as can be found quickly, and appends them to `out`.
    /// False, with nothing taken, if there are fewer than `n` free.
    pub fn allocate(&mut self, n: u64, out: &mut Vec<PhysRun>) -> bool {
        if self.fails() || n > self.free {
            return false;
        }
        let cursor = if n <= SMALL { Cursor::Small } else { Cursor::Large };
        let mut left = n;
        while left > 0 {
            let wanted = left.min(GROUP_BLOCKS);
            if let Some(run) = self.fit(wanted, cursor) {
                self.touch(run);
                self.flip(run, true);
                push_run(out, run);
                left -= wanted;
            } else if !self.gather(&mut left, cursor, true, out) {
                break;
            }
        }
        assert_eq!(left, 0, "the allocator's counts are wrong");
        true
    }

    fn cursor(&self, cursor: Cursor) -> usize {
        match cursor {
            Cursor::Small => group_of(self.small),
            Cursor::Large => self.large,
            Cursor::Meta => self.meta,
        }
    }

    /// The next request of the same kind begins behind this run.
    fn went(&mut self, cursor: Cursor, run: PhysRun) {
        match cursor {
            Cursor::Small => {
                self.small =
                    if run.start + run.len >= self.blocks { 0 } else { run.start + run.len }
            }
            Cursor::Large => self.large = group_of(run.start),
            Cursor::Meta => self.meta = group_of(run.start),
        }
    }

    /// `n` free blocks that adjoin (up to a group's), in a group with no longer runs than
    /// need be.
    fn fit(&mut self, n: u64, cursor: Cursor) -> Option<PhysRun> {
        let at = self.cursor(cursor);
        let surely = n.next_power_of_two().ilog2() as usize;
        let (order, tries) = match cursor {
            Cursor::Small => (&SMALL_ORDER, 1),
            _ => (&LARGE_ORDER, TRIES),
        };
        let classes = order.iter().filter(|class| **class >= n.ilog2() as usize);
        let found = classes.flat_map(|class| {
            self.index.from(*class, at).take(if *class < surely { tries } else { 1 })
        });
        let fit = |g: usize| {
            let group = &self.groups[g];
            // Small requests go on where the last one was served.
            let from = match cursor {
                Cursor::Small if g == at => self.small % GROUP_BLOCKS,
                _ => 0,
            };
            let found =
                group.first_fit(from, n).or_else(|| group.first_fit(0, n).filter(|_| from > 0));
            found.map(|start| PhysRun { start: g as u64 * GROUP_BLOCKS + start, len: n })
        };
        let run = found.filter_map(fit).next()?;
        self.went(cursor, run);
        Some(run)
    }

    /// Takes up to `left` blocks in the longest runs there are, all from one group; false
    /// if nothing is free.
    fn gather(
        &mut self,
        left: &mut u64,
        cursor: Cursor,
        data: bool,
        out: &mut Vec<PhysRun>,
    ) -> bool {
        let from = self.cursor(cursor);
        let longest = (0..Index::CLASSES).rev().find_map(|class| {
            let g = self.index.from(class, from).next()?;
            Some((g, 1 << class))
        });
        let Some((g, long)) = longest else { return false };
        let first = g as u64 * GROUP_BLOCKS;
        let group = &mut self.groups[g];
        let (before, free) = (group.class(), group.free);
        let mut at = 0;
        while *left > 0
            && at < GROUP_BLOCKS
            && let Some(start) = group.first_fit(at, long.min(*left))
        {
            at = group.next_used(start, (start + *left).min(GROUP_BLOCKS));
            group.set(start, at - start, true);
            *left -= at - start;
            push_run(out, PhysRun { start: first + start, len: at - start });
        }
        group.refresh();
        self.free -= u64::from(free - group.free);
        self.index.put(g, before, group.class());
        if data {
            self.dirty.insert(g as u32);
        }
        self.went(cursor, PhysRun { start: first, len: at.max(1) });
        true
    }
}

#[cfg(test)]
thread_local! {
    /// Words of bitmaps and of the index that this thread has looked at.
    static LOOKED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts words that are looked at.
#[cfg(test)]
fn look(words: u64) {
    LOOKED.with(|n| n.set(n.get() + words));
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
                let runs = a.free_runs();
                prop_assert_eq!(runs.values().map(|(_, blocks)| blocks).sum::<u64>(), a.free());
                for (g, group) in a.groups.iter().enumerate() {
                    let longest = |n: &u64| group.first_fit(0, *n).is_some();
                    let class = (0..16).rev().find(|class| longest(&(1 << class)));
                    prop_assert_eq!(group.class(), class);
                    let indexed: Vec<u8> =
                        (0..16).filter(|c| a.index.from(usize::from(*c), 0).any(|i| i == g)).collect();
                    prop_assert_eq!(indexed, class.into_iter().collect::<Vec<u8>>());
                }
                prop_assert_eq!(a.free() + held.iter().map(|h| h.len).sum::<u64>(), blocks);
            }
            // Stored and loaded, it is the same.
            let mut b = Allocator::new(blocks);
            for g in 0..blocks.div_ceil(GROUP_BLOCKS) {
                a.touch(PhysRun { start: g * GROUP_BLOCKS, len: 1 });
            }
            for (g, map) in a.take_dirty(Vec::new()).bitmaps() {
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

    /// Every second block free, as loaded at an opening.
    fn fragmented(groups: u64) -> Allocator {
        let mut a = Allocator::new(groups * GROUP_BLOCKS);
        let map = vec![0x55u8; 4096];
        (0..groups).for_each(|g| assert!(a.load_group(g as u32, &map)));
        a
    }

    #[test]
    fn requests_look_at_few_groups_however_many_are_fragmented() {
        let mut a = fragmented(300);
        // One run of 16 in the last group, one of 700 before it.
        for (start, len) in [(299 * GROUP_BLOCKS, 16), (298 * GROUP_BLOCKS + 1000, 700)] {
            for b in start..start + len {
                let _ = a.mark_free(PhysRun { start: b, len: 1 });
            }
        }
        let take = |a: &mut Allocator, n| {
            let mut out = Vec::new();
            assert!(a.allocate(n, &mut out));
            out
        };
        let looks = |a: &Allocator| a.index.looks();
        let before = looks(&a);
        assert_eq!(take(&mut a, 600), [PhysRun { start: 298 * GROUP_BLOCKS + 999, len: 600 }]);
        assert_eq!(take(&mut a, 17), [PhysRun { start: 298 * GROUP_BLOCKS + 1599, len: 17 }]);
        assert_eq!(take(&mut a, 16), [PhysRun { start: 298 * GROUP_BLOCKS + 1616, len: 16 }]);
        // 68 of what is left there, 16 in the other group, single ones.
        assert_eq!(take(&mut a, 1024).len(), 1 + 1 + 1024 - 68 - 16);
        (0..100).for_each(|_| assert_eq!(take(&mut a, 1024).len(), 1024));
        (0..100).for_each(|_| assert_eq!(take(&mut a, 1).len(), 1));
        assert!(a.take_window(256).is_none() && a.take_adjoining(2).is_none());
        assert_eq!(a.take_pieces(64).len(), 64);
        let looks = looks(&a) - before;
        // 4 MiB in pieces come from one group; each request meets one or two.
        assert!(looks < 3 * 210, "{looks} groups looked at");
    }

    /// What requests cost on 16 TiB, counted: words of bitmaps and of the index, of which a
    /// processor looks at some hundred thousand in a millisecond. Small and large ones, of data and
    /// of metadata, and what is freed between them; the first after an opening, too; whatever lies
    /// in the groups.
    #[test]
    fn requests_on_16_tib_look_at_few_words_whatever_is_free() {
        const MOST: u64 = 100_000;
        let groups = 16 * (1u64 << 40) / BLOCK / GROUP_BLOCKS;
        let word = |w: u64| w.to_le_bytes().repeat(GROUP_WORDS);
        // One free run in a bitmap that is else in use.
        let mut last = word(u64::MAX);
        last[4000..4090].fill(0);
        for (name, maps) in [
            ("every second block free", vec![word(0x5555_5555_5555_5555)]),
            ("one block of 64 used", vec![word(1)]),
            ("one block of 64 free", vec![word(!1)]),
            ("runs of 63 that no 64 fits in", vec![word(1 << 63)]),
            (
                "pairs of which most have no window",
                vec![word(0x3333_3333_3333_3333), word(0x1111_1111_1111_1111)],
            ),
            ("all used but one run at a group's end", vec![last]),
            (
                "all used but every hundredth group",
                std::iter::repeat_n(word(u64::MAX), 99).chain([word(2)]).collect(),
            ),
        ] {
            let kinds: Vec<Group> = maps.iter().map(|m| Group::load(GROUP_BLOCKS, m)).collect();
            let mut a = Allocator::new(groups * GROUP_BLOCKS);
            for g in 0..groups as usize {
                let new = kinds[g % kinds.len()].alike();
                a.index.put(g, a.groups[g].class(), new.class());
                a.free = a.free - u64::from(a.groups[g].free) + u64::from(new.free);
                a.groups[g] = new;
            }
            let (mut x, mut held, mut most) = (5u64, Vec::new(), [(0, 0); 4]);
            for n in 0..6_000u64 {
                x = x
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let blocks = [1024, 1, 1, 4, 16, 17, 256][(x >> 33) as usize % 7];
                let before = LOOKED.get();
                let kind = (x >> 50) as usize % 8;
                match kind {
                    0 => {
                        a.take_adjoining(blocks.min(64)).into_iter().for_each(|run| a.release(run))
                    }
                    1 => a.take_window(256).into_iter().for_each(|run| a.release(run)),
                    2 => a.take_pieces(blocks.min(64)).into_iter().for_each(|run| a.release(run)),
                    3 if !held.is_empty() => {
                        let run = held.swap_remove((x >> 40) as usize % held.len());
                        assert!(a.mark_free(run));
                    }
                    _ => assert!(a.allocate(blocks, &mut held)),
                }
                let kind = kind.min(3);
                most[kind] = most[kind].max((LOOKED.get() - before, n));
            }
            assert!(
                most.iter().all(|(words, _)| *words < MOST),
                "{name}: {most:?} words, by request"
            );
        }
    }

    #[test]
    fn small_requests_fill_groups_in_use_first_and_leave_whole_ones() {
        let mut a = Allocator::new(8 * GROUP_BLOCKS);
        let mut live: Vec<u64> = Vec::new();
        while live.len() < 4 * GROUP_BLOCKS as usize {
            let mut out = Vec::new();
            assert!(a.allocate(1024, &mut out));
            live.extend(out.iter().flat_map(|r| r.start..r.start + r.len));
        }
        let (mut x, mut freed) = (7u64, std::collections::VecDeque::new());
        for _ in 0..100_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut out = Vec::new();
            assert!(a.allocate(1, &mut out));
            let i = (x >> 33) as usize % live.len();
            freed.push_back(std::mem::replace(&mut live[i], out[0].start));
            if freed.len() > 500 {
                assert!(a.mark_free(PhysRun { start: freed.pop_front().unwrap(), len: 1 }));
            }
        }
        let whole = (0..).take_while(|_| a.take_window(256).is_some()).count();
        // All but the one group that the first of them had to break.
        assert!(whole >= 384, "{whole} windows are left");
    }

    #[test]
    fn metadata_takes_windows_then_pieces_and_its_blocks_are_stored_as_free() {
        let mut a = Allocator::new(2 * GROUP_BLOCKS);
        let window = a.take_window(64).unwrap();
        assert!(window.start.is_multiple_of(64) && a.take_dirty(Vec::new()).bitmaps().is_empty());
        let mut out = Vec::new();
        assert!(a.allocate(2 * GROUP_BLOCKS - 64, &mut out));
        for b in (0..200).map(|i| i * 3 + 1000) {
            assert!(a.mark_free(PhysRun { start: b, len: 1 }));
        }
        assert!(a.mark_free(PhysRun { start: 30_000, len: 5 }));
        assert_eq!(a.take_window(64), None);
        assert_eq!(a.take_adjoining(6), None);
        let five = a.take_adjoining(5).unwrap();
        assert_eq!(five, PhysRun { start: 30_000, len: 5 });
        let pieces = a.take_pieces(150);
        assert!(pieces.len() == 150 && a.take_pieces(150).len() == 50 && a.free() == 0);
        assert_eq!(a.in_meta(), 64 + 5 + 200);
        assert!(!a.holds_data(30_000) && a.holds_data(30_005) && !a.holds_data(window.start));
        let mut b = Allocator::new(2 * GROUP_BLOCKS);
        for (g, map) in a.take_dirty(Vec::new()).bitmaps() {
            assert!(map.is_empty() || b.load_group(g, &map));
        }
        assert_eq!(b.free(), a.in_meta());
        assert!(b.adopt(five) && !b.adopt(five) && b.adopt(window));
        b.release(five);
        assert_eq!((b.in_meta(), b.free()), (64, 205));
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
            assert!(out.len() <= 2, "{out:?}");
        }
    }

    #[test]
    fn runs_pending_release_are_stored_as_free() {
        let mut a = Allocator::new(GROUP_BLOCKS);
        let mut out = Vec::new();
        assert!(a.allocate(10, &mut out));
        a.touch(out[0]);
        assert_eq!(a.take_dirty(out.clone()).bitmaps(), vec![(0, Vec::new())]);
    }
}
