//! Reference counts of shared blocks.
//!
//! A block has one owner unless a record here says how many more it has. Records are kept
//! in chunks of 128 device blocks. Only objects marked as sharing look here when they let
//! go of blocks, so that what was never cloned costs nothing.

use spirula_encoding::{DecodeError, Decoder, Encoder};

/// Device blocks per chunk.
pub(crate) const CHUNK: u64 = 128;

/// Owners beyond the first, for the blocks of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refs {
    /// First block in the chunk, number of blocks, further owners (not 0); in order.
    runs: Vec<(u8, u8, u32)>,
}

impl Refs {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Memory it takes, bytes, roughly.
    pub fn cost(&self) -> usize {
        32 + self.runs.len() * 8
    }

    /// Index of the first run from block `at` on, having cut the one in two that covers it.
    fn cut(&mut self, at: u8) -> usize {
        let i = self.runs.partition_point(|(first, len, _)| first + len <= at);
        match self.runs.get_mut(i) {
            Some((first, len, n)) if *first < at => {
                let rest = (at, *first + *len - at, *n);
                *len = at - *first;
                self.runs.insert(i + 1, rest);
                i + 1
            }
            _ => i,
        }
    }

    /// Puts `new` in place of the runs `[from, to)`, and makes one of neighbours that are alike.
    fn put(&mut self, from: usize, to: usize, new: Vec<(u8, u8, u32)>) {
        let last = from + new.len();
        self.runs.splice(from..to, new);
        for i in (from.max(1)..=last).rev() {
            if let (Some((f, l, n)), Some((next, more, m))) =
                (self.runs.get(i - 1).copied(), self.runs.get(i).copied())
                && (f + l, n) == (next, m)
            {
                self.runs[i - 1] = (f, l + more, n);
                self.runs.remove(i);
            }
        }
    }

    /// One more owner for blocks `[first, first + len)` of the chunk. False (and no change)
    /// if that cannot be counted.
    #[must_use]
    pub fn add(&mut self, first: u64, len: u64) -> bool {
        let (mut at, end) = (first as u8, (first + len).min(CHUNK) as u8);
        if self
            .shared()
            .any(|(f, l, n)| n == u32::MAX && f < u64::from(end) && u64::from(at) < f + l)
        {
            return false;
        }
        let (from, to) = (self.cut(at), self.cut(end));
        let mut new = Vec::with_capacity(2 * (to - from) + 1);
        for (f, l, n) in self.runs.get(from..to).unwrap_or_default() {
            if at < *f {
                new.push((at, f - at, 1));
            }
            new.push((*f, *l, n + 1));
            at = f + l;
        }
        if at < end {
            new.push((at, end - at, 1));
        }
        self.put(from, to, new);
        true
    }

    /// One owner fewer for `[first, first + len)`: calls `each` with (first, blocks, true)
    /// where another owner is left and with (first, blocks, false) where that was the last.
    pub fn remove(&mut self, first: u64, len: u64, mut each: impl FnMut(u64, u64, bool)) {
        let (mut at, end) = (first as u8, (first + len).min(CHUNK) as u8);
        let (from, to) = (self.cut(at), self.cut(end));
        let mut new = Vec::with_capacity(to - from);
        // Blocks with another owner, up to where the last run ended.
        let mut shared = at;
        for (f, l, n) in self.runs.get(from..to).unwrap_or_default() {
            if at < *f {
                if shared < at {
                    each(shared.into(), (at - shared).into(), true);
                }
                each(at.into(), (f - at).into(), false);
                shared = *f;
            }
            if *n > 1 {
                new.push((*f, *l, n - 1));
            }
            at = f + l;
        }
        if shared < at {
            each(shared.into(), (at - shared).into(), true);
        }
        if at < end {
            each(at.into(), (end - at).into(), false);
        }
        self.put(from, to, new);
    }

    /// Has one of `[first, first + len)` more than one owner?
    pub fn has(&self, first: u64, len: u64) -> bool {
        self.shared().any(|(at, n, _)| at < first + len && first < at + n)
    }

    /// Blocks with more than one owner: (first, blocks, further owners).
    pub fn shared(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        self.runs.iter().map(|(f, l, n)| (u64::from(*f), u64::from(*l), *n))
    }

    pub fn encode(&self, out: &mut Encoder) {
        out.u8(self.runs.len() as u8);
        for (first, len, n) in &self.runs {
            out.u8(*first);
            out.u8(*len);
            out.u32(*n);
        }
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let n = d.u8()?;
        let mut at = 0;
        let runs = (0..n)
            .map(|_| {
                let (first, len, n) = (d.u8()?, d.u8()?, d.u32()?);
                let end = u64::from(first) + u64::from(len);
                if len == 0 || n == 0 || u64::from(first) < at || end > CHUNK {
                    return Err(DecodeError::Value {
                        what: "reference count run",
                        value: first.into(),
                    });
                }
                at = end;
                Ok((first, len, n))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_counts_are_those_of_an_array(ops in proptest::collection::vec((any::<bool>(), 0u64..128, 1u64..129), 1..80)) {
            let mut refs = Refs::default();
            let mut model = [0u32; 128];
            for (add, first, len) in ops {
                let len = len.min(128 - first);
                if add {
                    prop_assert!(refs.add(first, len));
                    model[first as usize..(first + len) as usize].iter_mut().for_each(|n| *n += 1);
                } else {
                    let mut seen = first;
                    refs.remove(first, len, |at, n, shared| {
                        assert_eq!(at, seen);
                        seen += n;
                        for m in &mut model[at as usize..(at + n) as usize] {
                            assert_eq!(*m > 0, shared);
                            *m = m.saturating_sub(1);
                        }
                    });
                    prop_assert_eq!(seen, first + len);
                }
                let mut counts = [0u32; 128];
                for (first, len, n) in refs.shared() {
                    counts[first as usize..(first + len) as usize].fill(n);
                }
                prop_assert_eq!(counts, model);
                // Neighbours that are alike are one.
                prop_assert!(refs.runs.windows(2).all(|w| (w[0].0 + w[0].1, w[0].2) != (w[1].0, w[1].2)));
                prop_assert_eq!(refs.is_empty(), model.iter().all(|n| *n == 0));
                let mut e = Encoder::new();
                refs.encode(&mut e);
                prop_assert_eq!(&Refs::decode(&mut Decoder::new(&e.into_vec())).unwrap(), &refs);
            }
        }
    }
}
