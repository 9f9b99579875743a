//! A group of blocks: its bitmap, and searches in it.
//!
//! No search looks at more than the 512 words of one bitmap once: it takes a few
//! microseconds at most, whatever is free there.

use std::sync::Arc;

/// Blocks per group (a group's bitmap is 4 KiB).
pub(crate) const GROUP_BLOCKS: u64 = 32_768;
pub(crate) const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;

/// Shared with what a checkpoint is to write of it, and copied when it changes before that is done.
pub(crate) type Map = Arc<[u64; GROUP_WORDS]>;

/// Some consecutive blocks.
pub(crate) struct Group {
    /// Number of free blocks.
    pub free: u32,
    /// The power of two at or below the length of the longest free run; of no meaning
    /// where nothing is free.
    class: u8,
    /// Set: in use (or behind the end). `None`: all of [`GROUP_BLOCKS`] are in use
    /// if `free` is 0, else all are free.
    pub map: Option<Map>,
    /// Set: in use by metadata. `None`: none are.
    pub meta: Option<Map>,
}

/// A group's data as it was at a moment.
pub(crate) struct Image {
    full: bool,
    map: Option<Map>,
    meta: Option<Map>,
}

impl Image {
    /// The bits of data in a word of the bitmap.
    pub fn data(&self, i: usize) -> u64 {
        let word = self.map.as_ref().map_or(if self.full { u64::MAX } else { 0 }, |m| m[i]);
        word & !self.meta.as_ref().map_or(0, |m| m[i])
    }
}

/// Bits where `n` ones begin (1 to 64), of those that lie within `bits` altogether.
fn begins(bits: u128, n: u64) -> u128 {
    let (mut found, mut have) = (bits, 1);
    while have < n {
        let step = have.min(n - have);
        found &= found >> step;
        have += step;
    }
    found
}

impl Group {
    /// The first `size` blocks are free; there are no others.
    pub fn new(size: u64) -> Self {
        let mut map = None;
        if size < GROUP_BLOCKS {
            // What lies behind the end is never free.
            let mut words = [0; GROUP_WORDS];
            for b in size..GROUP_BLOCKS {
                words[(b / 64) as usize] |= 1 << (b % 64);
            }
            map = Some(Arc::new(words));
        }
        Self { free: size as u32, class: size.max(1).ilog2() as u8, map, meta: None }
    }

    /// As [`Group::new`], with those blocks in use that `bitmap` says.
    pub fn load(size: u64, bitmap: &[u8]) -> Self {
        let mut new = Self::new(size);
        let tail = new.map.take();
        let mut words = [0; GROUP_WORDS];
        let mut used = 0;
        for (i, b) in bitmap.chunks_exact(8).enumerate() {
            let mut w = [0; 8];
            w.copy_from_slice(b);
            let behind = tail.as_ref().map_or(0, |t| t[i]);
            words[i] = u64::from_le_bytes(w) | behind;
            used += (words[i] & !behind).count_ones();
        }
        new.free -= used;
        if new.free > 0 && u64::from(new.free) < GROUP_BLOCKS {
            new.map = Some(Arc::new(words));
        }
        new.class = new.longest();
        new
    }

    /// Another group of the same state, which shares the bitmap.
    #[cfg(test)]
    pub fn alike(&self) -> Self {
        Self { free: self.free, class: self.class, map: self.map.clone(), meta: self.meta.clone() }
    }

    /// The power of two at or below the length of the longest free run; `None`: nothing is
    /// free.
    pub fn class(&self) -> Option<u8> {
        (self.free > 0).then_some(self.class)
    }

    /// What there is of data now.
    pub fn image(&self) -> Image {
        Image { full: self.free == 0, map: self.map.clone(), meta: self.meta.clone() }
    }

    pub fn word(&self, i: usize) -> u64 {
        #[cfg(test)]
        super::look(1);
        match &self.map {
            Some(m) => m[i],
            None if self.free == 0 => u64::MAX,
            None => 0,
        }
    }

    /// First free block in `[from, until)`.
    pub fn next_free(&self, from: u64, until: u64) -> Option<u64> {
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
    pub fn next_used(&self, from: u64, until: u64) -> u64 {
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

    /// First of `n` free blocks that adjoin, from `from` on.
    pub fn first_fit(&self, from: u64, n: u64) -> Option<u64> {
        if n == 1 {
            return self.next_free(from, GROUP_BLOCKS);
        }
        let first = (from / 64) as usize;
        let free = |i: usize| {
            let w = if i < GROUP_WORDS { !self.word(i) } else { 0 };
            if i == first { w & (u64::MAX << (from % 64)) } else { w }
        };
        if n <= 64 {
            let mut low = free(first.min(GROUP_WORDS));
            for i in first..GROUP_WORDS {
                let high = free(i + 1);
                let found = begins(u128::from(high) << 64 | u128::from(low), n) as u64;
                if low != 0 && found != 0 {
                    return Some(i as u64 * 64 + u64::from(found.trailing_zeros()));
                }
                low = high;
            }
            return None;
        }
        // A run that is so long reaches over the end of a word.
        let mut run = 0;
        for i in first..GROUP_WORDS {
            let w = free(i);
            if w == u64::MAX {
                run += 64;
            } else {
                let start = i as u64 * 64 - run;
                if run + u64::from(w.trailing_ones()) >= n {
                    return Some(start);
                }
                run = w.leading_ones().into();
            }
            if run >= n {
                return Some((i as u64 + 1) * 64 - run);
            }
        }
        None
    }

    /// First of `blocks` free blocks (64 times a power of two) at a multiple of `blocks`.
    pub fn window(&self, blocks: u64) -> Option<u64> {
        let words = (blocks / 64) as usize;
        let whole = |i: &usize| (*i..i + words).all(|i| self.word(i) == 0);
        (0..GROUP_WORDS).step_by(words.max(1)).find(whole).map(|i| i as u64 * 64)
    }

    /// First of `n` free blocks (up to 64) that adjoin between two multiples of 64.
    pub fn within_word(&self, n: u64) -> Option<u64> {
        (0..GROUP_WORDS).find_map(|i| {
            let found = begins(u128::from(!self.word(i)), n) as u64;
            (found != 0).then(|| i as u64 * 64 + u64::from(found.trailing_zeros()))
        })
    }

    fn longest(&self) -> u8 {
        let (mut class, mut run) = (0u8, 0u64);
        for i in 0..GROUP_WORDS {
            let w = !self.word(i);
            if w == u64::MAX {
                run += 64;
                continue;
            }
            run += u64::from(w.trailing_ones());
            class = class.max(run.max(1).ilog2() as u8);
            while class < 6 && begins(w.into(), 2 << class) != 0 {
                class += 1;
            }
            run = w.leading_ones().into();
        }
        class.max(run.max(1).ilog2() as u8)
    }

    /// Works out the class anew, after [`Group::set`].
    pub fn refresh(&mut self) {
        self.class = self.longest();
    }

    /// Marks blocks, without a look at the class.
    pub fn set(&mut self, first: u64, len: u64, used: bool) {
        let state = self.word(0);
        let words = self.map.get_or_insert_with(|| Arc::new([state; GROUP_WORDS]));
        mark(Arc::make_mut(words), first, len, used);
        if used {
            self.free -= len as u32;
        } else {
            self.free += len as u32;
        }
        if self.free == 0 || u64::from(self.free) == GROUP_BLOCKS {
            self.map = None;
        }
    }

    /// Marks blocks, which were all the opposite.
    pub fn flip(&mut self, first: u64, len: u64, used: bool) {
        let end = first + len;
        if used {
            let enough = 1 << self.class;
            let left = first - self.free_before(first);
            let right = self.next_used(end, (end + enough).min(GROUP_BLOCKS)) - end;
            self.set(first, len, true);
            if left + len + right >= enough && left.max(right) < enough {
                self.refresh();
            }
        } else {
            self.set(first, len, false);
            let run = self.next_used(end, GROUP_BLOCKS) - self.free_before(first);
            let class = run.ilog2() as u8;
            // Where nothing was free the class says nothing.
            let alone = u64::from(self.free) == len;
            self.class = if alone { class } else { self.class.max(class) };
        }
    }

    /// Marks blocks as metadata's, or no more so.
    pub fn set_meta(&mut self, first: u64, len: u64, mine: bool) {
        let words = self.meta.get_or_insert_with(|| Arc::new([0; GROUP_WORDS]));
        mark(Arc::make_mut(words), first, len, mine);
        if !mine && words.iter().all(|w| *w == 0) {
            self.meta = None;
        }
    }
}

fn mark(words: &mut [u64; GROUP_WORDS], first: u64, len: u64, set: bool) {
    let (mut b, end) = (first, first + len);
    while b < end {
        let n = (64 - b % 64).min(end - b);
        let mask = (u64::MAX >> (64 - n)) << (b % 64);
        let word = &mut words[(b / 64) as usize];
        *word = if set { *word | mask } else { *word & !mask };
        b += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain array.
        #[test]
        fn prop_searches_find_what_an_array_has(
            size in 1u64..=GROUP_BLOCKS,
            runs in proptest::collection::vec((0u64..GROUP_BLOCKS, 1u64..3000), 0..40),
            single in proptest::collection::vec(0u64..GROUP_BLOCKS, 0..200),
            n in prop_oneof![1u64..70, 1u64..4000],
            from in 0u64..GROUP_BLOCKS,
        ) {
            let mut model = vec![true; GROUP_BLOCKS as usize];
            model[..size as usize].fill(false);
            let mut bitmap = vec![0u8; 4096];
            for b in runs.iter().flat_map(|(at, n)| *at..(at + n).min(size)).chain(single).filter(|b| *b < size) {
                model[b as usize] = true;
                bitmap[(b / 8) as usize] |= 1 << (b % 8);
            }
            let g = Group::load(size, &bitmap);
            let free: Vec<(u64, u64)> = {
                let mut all = Vec::new();
                let mut at = 0;
                for run in model.chunk_by(|a, b| a == b) {
                    if !run[0] {
                        all.push((at, run.len() as u64));
                    }
                    at += run.len() as u64;
                }
                all
            };
            prop_assert_eq!(u64::from(g.free), free.iter().map(|(_, n)| n).sum::<u64>());
            let longest = free.iter().map(|(_, n)| *n).max();
            prop_assert_eq!(g.class(), longest.map(|n| n.ilog2() as u8));
            let fit = free.iter().find_map(|(at, len)| {
                let start = (*at).max(from);
                (start + n <= at + len).then_some(start)
            });
            prop_assert_eq!(g.first_fit(from, n), fit);
            for blocks in [64u64, 256, 1024] {
                let window = (0..GROUP_BLOCKS / blocks).map(|w| w * blocks);
                let whole = |at: &u64| free.iter().any(|(f, len)| f <= at && at + blocks <= f + len);
                prop_assert_eq!(g.window(blocks), window.clone().find(whole));
            }
            let n = n.min(64);
            let within = (0..GROUP_BLOCKS).find(|at| {
                at / 64 == (at + n - 1) / 64 && model[*at as usize..(at + n) as usize].iter().all(|u| !u)
            });
            prop_assert_eq!(g.within_word(n), within);
        }
    }
}
