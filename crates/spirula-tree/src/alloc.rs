//! Which pages of which chunks are in use.
//!
//! A page is live (the newest state refers to it), held (an older state that someone reads
//! does) or free. Only live pages are written down: when a state is opened, no other one
//! is being read. Written down as an array of slots, one for each chunk, in map pages of
//! one page each, and an index of these pages. All of it is copied on write, too.

use crate::space::PAGE;
use std::collections::BTreeSet;

/// A slot without a chunk.
const HOLE: u64 = u64::MAX;
/// Size classes, by the power of two, that have their own place to go on looking.
const CLASSES: usize = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Alloc {
    /// Words of a chunk's bitmap.
    words: usize,
    /// First page of each slot's chunk.
    bases: Vec<u64>,
    live: Vec<u64>,
    held: Vec<u64>,
    free: Vec<u32>,
    /// Slots by first page.
    by_base: Vec<(u64, u32)>,
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

    /// First pages of all chunks, in order.
    pub fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_base.iter().map(|(base, _)| *base)
    }

    pub fn chunk_count(&self) -> usize {
        self.by_base.len()
    }

    pub fn free_pages(&self) -> u64 {
        self.free.iter().map(|f| u64::from(*f)).sum()
    }

    pub fn live_pages(&self) -> u64 {
        self.live.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Adds a chunk. False if it overlaps another one.
    pub fn add(&mut self, base: u64) -> bool {
        let slot = self.bases.iter().position(|b| *b == HOLE).unwrap_or(self.bases.len());
        if slot == self.bases.len() {
            self.push_slot(HOLE);
        }
        if !self.name(base, slot) {
            return false;
        }
        self.order.push(slot as u32);
        true
    }

    fn push_slot(&mut self, base: u64) {
        self.bases.push(base);
        self.live.resize(self.bases.len() * self.words, 0);
        self.held.resize(self.bases.len() * self.words, 0);
        self.free.push(0);
    }

    fn name(&mut self, base: u64, slot: usize) -> bool {
        let pages = self.chunk_pages() as u64;
        let at = self.by_base.partition_point(|(b, _)| *b < base);
        let overlaps = |i: usize| self.by_base.get(i).is_some_and(|(b, _)| b.abs_diff(base) < pages);
        if base >= 1 << 48 || overlaps(at) || at.checked_sub(1).is_some_and(overlaps) {
            return false;
        }
        self.by_base.insert(at, (base, slot as u32));
        self.bases[slot] = base;
        self.free[slot] = pages as u32;
        self.touch(slot);
        true
    }

    /// Forgets a chunk in which nothing is live or held.
    fn remove(&mut self, slot: usize) -> u64 {
        let base = std::mem::replace(&mut self.bases[slot], HOLE);
        self.by_base.retain(|(b, _)| *b != base);
        self.free[slot] = 0;
        self.touch(slot);
        base
    }

    /// Forgets empty chunks, as long as more than `keep` free pages are left; their first
    /// pages.
    pub fn shrink(&mut self, keep: u64) -> Vec<u64> {
        let mut free = self.free_pages();
        let pages = self.chunk_pages() as u32;
        let mut gone = Vec::new();
        for slot in (0..self.bases.len()).rev() {
            if free < keep + u64::from(pages) {
                break;
            }
            if self.bases[slot] != HOLE && self.free[slot] == pages {
                gone.push(self.remove(slot));
                free -= u64::from(pages);
            }
        }
        gone
    }

    fn touch(&mut self, slot: usize) {
        self.dirty.insert(slot / self.slots_per_page());
    }

    /// Begins a commit: the emptiest chunks come first, so that writes are sequential.
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
        let used = |word: usize| self.live[at + word] | self.held[at + word];
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
        let at = self.by_base.partition_point(|(b, _)| *b <= page).checked_sub(1)?;
        let (base, slot) = self.by_base.get(at)?;
        let bit = (page - base) as usize;
        (bit + n <= self.chunk_pages()).then_some((slot.to_owned() as usize, bit))
    }

    /// Marks pages as live; false if they are not all free pages of one chunk.
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
            b.extend_from_slice(&self.bases[slot].to_le_bytes());
            for w in &self.live[slot * self.words..(slot + 1) * self.words] {
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
            let slot = self.bases.len();
            self.push_slot(HOLE);
            if base == HOLE {
                continue;
            }
            if !self.name(base, slot) {
                return false;
            }
            for w in 0..self.words {
                let live = crate::node::u64_at(s, 8 + 8 * w);
                self.live[slot * self.words + w] = live;
                self.free[slot] -= live.count_ones();
            }
        }
        true
    }

    /// The same chunks with nothing live.
    pub fn blank(&self) -> Self {
        let mut a = self.clone();
        a.live.fill(0);
        a.held.fill(0);
        for (slot, free) in a.free.iter_mut().enumerate() {
            *free = if self.bases[slot] == HOLE { 0 } else { (self.words * 64) as u32 };
        }
        a
    }

    /// Runs of pages that are live here and not in `other`, which has the same chunks.
    pub fn live_but_not_in(&self, other: &Self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (slot, base) in self.bases.iter().enumerate() {
            for w in 0..self.words {
                let at = slot * self.words + w;
                let extra = self.live[at] & !other.live.get(at).copied().unwrap_or_default();
                pages.extend((0..64).filter(|b| extra >> b & 1 == 1).map(|b| base + (w * 64 + b) as u64));
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 64 * PAGE as u32;

    #[test]
    fn runs_are_taken_once_held_after_retiring_and_free_after_reclaiming() {
        let mut a = Alloc::new(CHUNK);
        assert_eq!(a.take(1), None);
        assert!(a.add(100) && !a.add(163) && !a.add(37) && a.add(164));
        a.begin();
        assert_eq!((a.take(60), a.take(5), a.take(4), a.take(64)), (Some(100), Some(164), Some(169), None));
        assert!(!a.claim(168, 1) && !a.claim(227, 2) && a.claim(227, 1));
        assert!(a.retire(100, 60) && !a.retire(100, 1));
        a.begin();
        assert_eq!(a.take(60), None);
        assert_eq!(a.free_pages(), 58);
        a.reclaim(100, 60);
        a.begin();
        assert_eq!(a.take(60), Some(100));
    }

    #[test]
    fn empty_chunks_go_while_enough_is_free_and_their_slots_are_used_again() {
        let mut a = Alloc::new(CHUNK);
        (0..4).for_each(|i| assert!(a.add(i * 64)));
        a.begin();
        assert!(a.claim(64, 1));
        assert_eq!(a.shrink(100), [192, 128]);
        assert_eq!(a.chunks().collect::<Vec<_>>(), [0, 64]);
        assert!(a.add(1000));
        assert_eq!(a.slots(), 4);
        let mut b = Alloc::new(CHUNK);
        assert!(b.decode(&a.encode(0).1));
        assert_eq!((b.live_pages(), b.free_pages()), (a.live_pages(), a.free_pages()));
        assert_eq!(b.chunks().collect::<Vec<_>>(), [0, 64, 1000]);
        let mut twice = Alloc::new(CHUNK);
        assert!(twice.decode(&a.encode(0).1) && !twice.decode(&a.encode(0).1));
    }
}
