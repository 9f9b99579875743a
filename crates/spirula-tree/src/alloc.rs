//! Which pages of the device are the tree's, and which of them are in use.
//!
//! Pages come from the space in runs of any length, be it a single page between somebody
//! else's, and go back so: a tree needs no adjoining space to grow, and keeps none that it
//! does not use. They are kept in windows of a chunk's length; a window has a slot. A page
//! of a window is live (the newest state refers to it), held (an older state that someone
//! reads does), free (the tree's, and unused) or not the tree's at all. Only live pages are
//! written down: when a state is opened, no other one is being read, and the tree has no
//! free page. Written down as an array of slots in map pages of one page each, and an index
//! of these pages. All of it is copied on write, too.
//!
//! Windows begin at multiples of their length, unless an older program put them elsewhere;
//! then one ends where the next begins.

use crate::space::PAGE;
use std::collections::BTreeSet;

/// A slot without a window.
const HOLE: u64 = u64::MAX;
/// Pages that are free in windows with others are given up where they are more than one in
/// so many of those in use.
const SLACK: u64 = 8;
/// Size classes, by the power of two, that have their own place to go on looking.
const CLASSES: usize = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Alloc {
    /// Words of a window's bitmap.
    words: usize,
    /// First page of each slot's window.
    bases: Vec<u64>,
    /// The tree's pages: live, held and free ones.
    owned: Vec<u64>,
    live: Vec<u64>,
    held: Vec<u64>,
    free: Vec<u32>,
    /// Slots by first page.
    by_base: Vec<(u64, u32)>,
    /// Slots without a window.
    holes: BTreeSet<u32>,
    /// Map pages that are no longer as written.
    dirty: BTreeSet<usize>,
    order: Vec<u32>,
    /// For each size class: place in `order`, first page to look at.
    cursors: [(usize, usize); CLASSES],
}

impl Alloc {
    /// No chunks; later ones have `chunk` bytes.
    pub fn new(chunk: u32) -> Self {
        Self { words: chunk as usize / PAGE / 64, ..Self::default() }
    }

    pub fn chunk_pages(&self) -> usize {
        self.words * 64
    }

    /// Bytes of a slot in a map page.
    pub fn slot_bytes(&self) -> usize {
        8 + self.words * 8
    }

    /// Slots of a map page.
    pub fn slots_per_page(&self) -> usize {
        crate::node::ROOM / self.slot_bytes()
    }

    pub fn slots(&self) -> usize {
        self.bases.len()
    }

    /// All runs of the tree's pages, in order.
    pub fn extents(&self) -> Vec<(u64, usize)> {
        let mut all: Vec<(u64, usize)> = Vec::new();
        for (base, slot) in &self.by_base {
            for (bit, n) in self.runs(*slot as usize, |a, at| a.owned[at]) {
                let page = base + bit as u64;
                match all.last_mut() {
                    Some((first, len)) if *first + *len as u64 == page => *len += n,
                    _ => all.push((page, n)),
                }
            }
        }
        all
    }

    /// Windows with pages of the tree.
    pub fn windows(&self) -> usize {
        self.by_base.len()
    }

    pub fn free_pages(&self) -> u64 {
        self.free.iter().map(|f| u64::from(*f)).sum()
    }

    pub fn live_pages(&self) -> u64 {
        count(&self.live)
    }

    /// Pages that are live, held or free.
    pub fn owned_pages(&self) -> u64 {
        count(&self.owned)
    }

    /// Runs of set bits of a slot's bitmap, of which `word` gives the words by their place.
    fn runs(&self, slot: usize, word: impl Fn(&Self, usize) -> u64) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for w in 0..self.words {
            let mut left = word(self, slot * self.words + w);
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                let n = (left >> bit).trailing_ones() as usize;
                match runs.last_mut() {
                    Some((first, len)) if *first + *len == w * 64 + bit => *len += n,
                    _ => runs.push((w * 64 + bit, n)),
                }
                left &= !(u64::MAX >> (64 - n) << bit);
            }
        }
        runs
    }

    /// Adds pages. False if some of them are the tree's already; then this is of no more use.
    #[must_use]
    pub fn give(&mut self, page: u64, n: usize) -> bool {
        let (mut at, end) = (page, page.saturating_add(n as u64));
        while at < end {
            let Some((slot, bit, room)) = self.window(at) else { return false };
            let k = room.min((end - at) as usize);
            for b in bit..bit + k {
                let (word, mask) = (slot * self.words + b / 64, 1 << (b % 64));
                if self.owned[word] & mask != 0 {
                    return false;
                }
                self.owned[word] |= mask;
            }
            self.free[slot] += k as u32;
            // Whoever looks for pages may be past its first place there.
            self.order.push(slot as u32);
            at += k as u64;
        }
        true
    }

    /// The window of a page, which is made if there is none: its slot, the page's place in
    /// it, and how many pages of it there are from there on.
    fn window(&mut self, page: u64) -> Option<(usize, usize, usize)> {
        if let Some(found) = self.place(page) {
            return Some(found);
        }
        let pages = self.chunk_pages() as u64;
        let at = self.by_base.partition_point(|(b, _)| *b <= page);
        let before =
            at.checked_sub(1).and_then(|i| self.by_base.get(i)).map_or(0, |(b, _)| b + pages);
        let base = (page / pages * pages).max(before);
        let slot = match self.holes.pop_first() {
            Some(slot) => slot as usize,
            None => self.push_slot(),
        };
        self.name(base, slot).then(|| self.place(page)).flatten()
    }

    /// As [`Self::window`], of those that there are.
    fn place(&self, page: u64) -> Option<(usize, usize, usize)> {
        let at = self.by_base.partition_point(|(b, _)| *b <= page);
        let (base, slot) = self.by_base.get(at.checked_sub(1)?)?;
        let end = base + self.chunk_pages() as u64;
        let end = self.by_base.get(at).map_or(end, |(next, _)| end.min(*next));
        (page < end).then(|| (*slot as usize, (page - base) as usize, (end - page) as usize))
    }

    fn push_slot(&mut self) -> usize {
        let slot = self.bases.len();
        self.bases.push(HOLE);
        self.owned.resize(self.bases.len() * self.words, 0);
        self.live.resize(self.bases.len() * self.words, 0);
        self.held.resize(self.bases.len() * self.words, 0);
        self.free.push(0);
        self.touch(slot);
        slot
    }

    fn name(&mut self, base: u64, slot: usize) -> bool {
        let at = self.by_base.partition_point(|(b, _)| *b < base);
        if base >= 1 << 48 || self.by_base.get(at).is_some_and(|(b, _)| *b == base) {
            return false;
        }
        self.by_base.insert(at, (base, slot as u32));
        self.bases[slot] = base;
        true
    }

    /// Gives up free pages of a slot; these.
    fn give_up(&mut self, slot: usize) -> Vec<(u64, usize)> {
        let base = self.bases[slot];
        let free = self.runs(slot, |a, at| a.owned[at] & !(a.live[at] | a.held[at]));
        for at in slot * self.words..(slot + 1) * self.words {
            self.owned[at] &= self.live[at] | self.held[at];
        }
        self.free[slot] = 0;
        if self.owned[slot * self.words..(slot + 1) * self.words].iter().all(|w| *w == 0) {
            self.by_base.retain(|(b, _)| *b != base);
            self.bases[slot] = HOLE;
            self.holes.insert(slot as u32);
        }
        free.into_iter().map(|(bit, n)| (base + bit as u64, n)).collect()
    }

    /// Gives up free pages, as long as more than `keep` are left: those of windows in which
    /// nothing else is, and where still more are free than a part of what is in use, those
    /// of the windows with the least in use.
    pub fn shrink(&mut self, keep: u64) -> Vec<(u64, usize)> {
        let mut free = self.free_pages();
        let mut gone = Vec::new();
        let used = |a: &Self, slot: usize| {
            let words = slot * a.words..(slot + 1) * a.words;
            count(&a.live[words.clone()]) + count(&a.held[words])
        };
        for slot in (0..self.bases.len()).rev() {
            let mine = u64::from(self.free[slot]);
            if mine > 0 && free >= keep + mine && used(self, slot) == 0 {
                gone.extend(self.give_up(slot));
                free -= mine;
            }
        }
        let most = keep + self.live_pages() / SLACK + self.chunk_pages() as u64;
        if free > most {
            let mut slots: Vec<(u64, usize)> = (0..self.bases.len())
                .filter(|s| self.free[*s] > 0)
                .map(|s| (used(self, s), s))
                .collect();
            slots.sort_unstable();
            for (_, slot) in slots {
                let mine = u64::from(self.free[slot]);
                if free >= most + mine {
                    gone.extend(self.give_up(slot));
                    free -= mine;
                }
            }
        }
        gone
    }

    fn touch(&mut self, slot: usize) {
        self.dirty.insert(slot / self.slots_per_page());
    }

    /// Begins a commit: the emptiest windows come first, so that writes are sequential.
    pub fn begin(&mut self) {
        self.order = (0..self.bases.len() as u32).filter(|s| self.free[*s as usize] > 0).collect();
        self.order.sort_by_key(|s| std::cmp::Reverse(self.free[*s as usize]));
        self.cursors = [(0, 0); CLASSES];
    }

    /// Takes `n` adjoining pages.
    pub fn take(&mut self, n: usize) -> Option<u64> {
        let class = (usize::BITS - 1).saturating_sub(n.max(1).leading_zeros()) as usize;
        let class = class.min(CLASSES - 1);
        let (mut place, mut from) = self.cursors[class];
        while let Some(&slot) = self.order.get(place) {
            let slot = slot as usize;
            if self.free[slot] as usize >= n
                && let Some(bit) = self.find(slot, from, n)
            {
                self.cursors[class] = (place, bit + n);
                self.mark(slot, bit, n);
                return Some(self.bases[slot] + bit as u64);
            }
            (place, from) = (place + 1, 0);
        }
        self.cursors[class] = (place, from);
        None
    }

    fn find(&self, slot: usize, from: usize, n: usize) -> Option<usize> {
        let at = slot * self.words;
        let used =
            |word: usize| self.live[at + word] | self.held[at + word] | !self.owned[at + word];
        let (mut bit, mut run) = (from, 0);
        while bit < self.chunk_pages() {
            let rest = used(bit / 64) >> (bit % 64);
            let left = 64 - bit % 64;
            if rest & 1 == 1 {
                run = 0;
                bit += (rest.trailing_ones() as usize).min(left);
                continue;
            }
            let free = (rest.trailing_zeros() as usize).min(left);
            if run + free >= n {
                return Some(bit - run);
            }
            run += free;
            bit += free;
        }
        None
    }

    fn mark(&mut self, slot: usize, bit: usize, n: usize) {
        for b in bit..bit + n {
            self.live[slot * self.words + b / 64] |= 1 << (b % 64);
        }
        self.free[slot] -= n as u32;
        self.touch(slot);
    }

    fn locate(&self, page: u64, n: usize) -> Option<(usize, usize)> {
        let (slot, bit, room) = self.place(page)?;
        (n <= room).then_some((slot, bit))
    }

    /// Marks pages as live; false if they are not all free pages of one window.
    pub fn claim(&mut self, page: u64, n: usize) -> bool {
        let Some((slot, bit)) = self.locate(page, n) else { return false };
        let at = slot * self.words;
        if (bit..bit + n).any(|b| self.live[at + b / 64] >> (b % 64) & 1 == 1) {
            return false;
        }
        self.mark(slot, bit, n);
        true
    }

    /// Live pages become held ones; false if they are not live.
    pub fn retire(&mut self, page: u64, n: usize) -> bool {
        let Some((slot, bit)) = self.locate(page, n) else { return false };
        let at = slot * self.words;
        for b in bit..bit + n {
            let mask = 1 << (b % 64);
            if self.live[at + b / 64] & mask == 0 {
                return false;
            }
            self.live[at + b / 64] &= !mask;
            self.held[at + b / 64] |= mask;
        }
        self.touch(slot);
        true
    }

    /// Held pages become free ones.
    pub fn reclaim(&mut self, page: u64, n: usize) {
        let Some((slot, bit)) = self.locate(page, n) else { return };
        for b in bit..bit + n {
            self.held[slot * self.words + b / 64] &= !(1 << (b % 64));
        }
        self.free[slot] += n as u32;
    }

    /// Map pages that must be written.
    pub fn dirty(&self) -> &BTreeSet<usize> {
        &self.dirty
    }

    /// All map pages are as written.
    pub fn cleaned(&mut self) {
        self.dirty.clear();
    }

    /// Content of map page `i`.
    pub fn encode(&self, i: usize) -> (usize, Vec<u8>) {
        let per = self.slots_per_page();
        let slots = i * per..((i + 1) * per).min(self.bases.len());
        let mut b = Vec::with_capacity(slots.len() * self.slot_bytes());
        for slot in slots.clone() {
            let live = &self.live[slot * self.words..(slot + 1) * self.words];
            let base = if live.iter().all(|w| *w == 0) { HOLE } else { self.bases[slot] };
            b.extend_from_slice(&base.to_le_bytes());
            for w in live {
                b.extend_from_slice(&w.to_le_bytes());
            }
        }
        (slots.len(), b)
    }

    /// Adds the slots of the next map page; false if they make no sense.
    pub fn decode(&mut self, content: &[u8]) -> bool {
        if !content.len().is_multiple_of(self.slot_bytes()) {
            return false;
        }
        for s in content.chunks_exact(self.slot_bytes()) {
            let base = crate::node::u64_at(s, 0);
            let slot = self.push_slot();
            let live: Vec<u64> =
                (0..self.words).map(|w| crate::node::u64_at(s, 8 + 8 * w)).collect();
            // Older programs wrote down empty chunks, too.
            if base == HOLE || live.iter().all(|w| *w == 0) {
                self.holes.insert(slot as u32);
                continue;
            }
            if !self.name(base, slot) {
                return false;
            }
            self.live[slot * self.words..(slot + 1) * self.words].copy_from_slice(&live);
            self.owned[slot * self.words..(slot + 1) * self.words].copy_from_slice(&live);
        }
        true
    }

    /// Has each page at most one window? Of what was written down.
    pub fn is_sound(&self) -> bool {
        self.by_base.windows(2).all(|pair| {
            let [(base, slot), (next, _)] = pair else { return true };
            let last = self.runs(*slot as usize, |a, at| a.live[at]).pop();
            last.is_none_or(|(bit, n)| base + (bit + n) as u64 <= *next)
        })
    }

    /// The same windows, all pages of which are free.
    pub fn blank(&self) -> Self {
        let mut a = self.clone();
        a.owned.fill(u64::MAX);
        a.live.fill(0);
        a.held.fill(0);
        for (slot, free) in a.free.iter_mut().enumerate() {
            *free = if self.bases[slot] == HOLE { 0 } else { (self.words * 64) as u32 };
        }
        a
    }

    /// Pages that are live here and not in `other`, which has the same windows.
    pub fn live_but_not_in(&self, other: &Self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (slot, base) in self.bases.iter().enumerate() {
            for w in 0..self.words {
                let at = slot * self.words + w;
                let extra = self.live[at] & !other.live.get(at).copied().unwrap_or_default();
                pages.extend(
                    (0..64).filter(|b| extra >> b & 1 == 1).map(|b| base + (w * 64 + b) as u64),
                );
            }
        }
        pages
    }
}

fn count(words: &[u64]) -> u64 {
    words.iter().map(|w| u64::from(w.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 64 * PAGE as u32;

    #[test]
    fn runs_are_taken_once_held_after_retiring_and_free_after_reclaiming() {
        let mut a = Alloc::new(CHUNK);
        assert_eq!(a.take(1), None);
        assert!(
            a.give(128, 64)
                && !a.clone().give(128, 1)
                && !a.clone().give(191, 2)
                && a.give(192, 64)
        );
        a.begin();
        assert_eq!(
            (a.take(60), a.take(5), a.take(4), a.take(64)),
            (Some(128), Some(192), Some(197), None)
        );
        assert!(!a.claim(196, 1) && !a.claim(255, 2) && a.claim(255, 1));
        assert!(a.retire(128, 60) && !a.retire(128, 1));
        a.begin();
        assert_eq!(a.take(60), None);
        assert_eq!(a.free_pages(), 58);
        a.reclaim(128, 60);
        a.begin();
        assert_eq!(a.take(60), Some(128));
    }

    #[test]
    fn single_pages_between_those_of_others_are_used_and_never_others() {
        let mut a = Alloc::new(CHUNK);
        a.begin();
        (0..100).for_each(|i| assert!(a.give(i * 2, 1)));
        let mut taken: Vec<u64> = std::iter::from_fn(|| a.take(1)).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..100).map(|i| i * 2).collect::<Vec<_>>());
        // More of windows that were looked through already.
        assert!(a.give(1, 1));
        assert_eq!((a.take(2), a.take(1), a.take(1)), (None, Some(1), None));
        assert_eq!(a.extents().len(), 99);
    }

    #[test]
    fn empty_windows_go_while_enough_is_free_and_their_slots_are_used_again() {
        let mut a = Alloc::new(CHUNK);
        (0..4).for_each(|i| assert!(a.give(i * 64, 64)));
        a.begin();
        assert!(a.claim(64, 1));
        assert_eq!(a.shrink(100), [(192, 64), (128, 64)]);
        assert_eq!(a.extents(), [(0, 128)]);
        assert!(a.give(1000, 20) && a.claim(1000, 2));
        assert_eq!(a.slots(), 4);
        let mut b = Alloc::new(CHUNK);
        assert!(b.decode(&a.encode(0).1) && b.is_sound());
        assert_eq!((b.live_pages(), b.free_pages()), (a.live_pages(), 0));
        assert_eq!(b.extents(), [(64, 1), (1000, 2)]);
        let mut twice = Alloc::new(CHUNK);
        assert!(twice.decode(&a.encode(0).1) && !twice.decode(&a.encode(0).1));
    }

    #[test]
    fn free_pages_among_live_ones_go_where_there_are_many() {
        let mut a = Alloc::new(CHUNK);
        assert!(a.give(0, 64 * 64));
        a.begin();
        (0..64).for_each(|w| assert!(a.claim(w * 64 + 7, 1 + w as usize % 9)));
        let gone = a.shrink(10);
        assert!(a.free_pages() <= 10 + a.live_pages() / SLACK + 128, "{} left", a.free_pages());
        assert_eq!(gone.iter().map(|(_, n)| *n as u64).sum::<u64>() + a.owned_pages(), 64 * 64);
        // Those of the windows with the least in use.
        assert!(gone.contains(&(0, 7)) && gone.contains(&(8, 56)) && !gone.contains(&(62 * 64, 7)));
        let (page, n) = gone[0];
        assert!(a.give(page, n) && !a.give(7, 1));
    }

    #[test]
    fn windows_of_older_programs_anywhere_end_where_the_next_begins() {
        let mut old = Alloc::new(CHUNK);
        let slot = old.push_slot();
        assert!(old.name(37, slot));
        (old.owned[slot], old.free[slot]) = (u64::MAX, 64);
        assert!(old.claim(37, 1) && old.claim(100, 1));
        let mut a = Alloc::new(CHUNK);
        assert!(a.decode(&old.encode(0).1) && a.is_sound());
        // Before, within and behind it; then it goes, and its pages come back.
        assert!(a.give(0, 37) && a.give(38, 10) && a.give(101, 100) && !a.clone().give(100, 1));
        assert_eq!(a.extents(), [(0, 48), (100, 101)]);
        assert!(a.claim(101, 3) && a.retire(37, 1) && a.retire(100, 1));
        a.reclaim(37, 1);
        a.reclaim(100, 1);
        a.shrink(0);
        assert!(a.give(60, 41));
        let mut b = Alloc::new(CHUNK);
        assert!(b.decode(&a.encode(0).1) && b.is_sound());
        assert_eq!(b.extents(), [(101, 3)]);
        // Nothing is in two windows.
        let slot = old.push_slot();
        assert!(old.name(99, slot));
        old.live[slot] = 1;
        let mut bad = Alloc::new(CHUNK);
        assert!(bad.decode(&old.encode(0).1) && !bad.is_sound());
    }
}
