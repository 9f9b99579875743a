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

    fn counts(&self) -> [u32; CHUNK as usize] {
        let mut all = [0; CHUNK as usize];
        for (first, len, n) in &self.runs {
            let (first, len) = (usize::from(*first), usize::from(*len));
            all.get_mut(first..first + len).unwrap_or_default().fill(*n);
        }
        all
    }

    fn set(&mut self, all: &[u32; CHUNK as usize]) {
        self.runs.clear();
        for (i, n) in all.iter().enumerate().filter(|(_, n)| **n > 0) {
            match self.runs.last_mut() {
                Some((first, len, m)) if m == n && usize::from(*first) + usize::from(*len) == i => *len += 1,
                _ => self.runs.push((i as u8, 1, *n)),
            }
        }
    }

    /// One more owner for blocks `[first, first + len)` of the chunk. False (and no change)
    /// if that cannot be counted.
    #[must_use]
    pub fn add(&mut self, first: u64, len: u64) -> bool {
        let mut all = self.counts();
        for n in all.get_mut(first as usize..(first + len) as usize).unwrap_or_default() {
            match n.checked_add(1) {
                Some(more) => *n = more,
                None => return false,
            }
        }
        self.set(&all);
        true
    }

    /// One owner fewer for `[first, first + len)`: calls `each` with (first, blocks, true)
    /// where another owner is left and with (first, blocks, false) where that was the last.
    pub fn remove(&mut self, first: u64, len: u64, mut each: impl FnMut(u64, u64, bool)) {
        let mut all = self.counts();
        let (mut at, end) = (first as usize, (first + len).min(CHUNK) as usize);
        while at < end {
            let shared = all[at] > 0;
            let stop = (at..end).find(|i| (all[*i] > 0) != shared).unwrap_or(end);
            each(at as u64, (stop - at) as u64, shared);
            if shared {
                all[at..stop].iter_mut().for_each(|n| *n -= 1);
            }
            at = stop;
        }
        self.set(&all);
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
                    return Err(DecodeError::Value { what: "reference count run", value: first.into() });
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
        fn prop_counts_are_those_of_an_array(ops in proptest::collection::vec((any::<bool>(), 0u64..128, 1u64..129), 1..40)) {
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
                prop_assert_eq!(refs.counts(), model);
                prop_assert_eq!(refs.is_empty(), model.iter().all(|n| *n == 0));
                let mut e = Encoder::new();
                refs.encode(&mut e);
                prop_assert_eq!(&Refs::decode(&mut Decoder::new(&e.into_vec())).unwrap(), &refs);
            }
        }
    }
}
