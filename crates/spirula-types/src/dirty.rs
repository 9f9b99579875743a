//! What of an object differs between two versions of it: what recovery must copy to a copy that has
//! the older one.
//!
//! Noted in each log entry, summed up in the missing set (Ceph's "clean regions", the other way
//! round). It may name more than differs, never less. Attributes are not noted: they are few, and
//! always copied.

use crate::transaction::ObjectOp;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};

/// Ranges are of whole blocks, as stores have them: bytes. What is copied is then never merged with
/// what was there.
pub const BLOCK: u64 = 4096;
/// Ranges kept; beyond that, those closest to each other become one.
const RANGES: usize = 128;

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dirty {
    /// All of it: it was made anew, or nothing is known.
    #[default]
    All,
    /// Parts of it.
    Parts {
        /// Ranges of data, first byte and first byte behind, in order, apart from each other.
        /// `u64::MAX` is the end of any object.
        data: Vec<(u64, u64)>,
        /// Omap, with its header.
        omap: bool,
    },
}

impl Dirty {
    /// Nothing but attributes.
    pub const fn nothing() -> Self {
        Self::Parts { data: Vec::new(), omap: false }
    }

    /// What these changes of an object make differ.
    pub fn of(ops: &[ObjectOp]) -> Self {
        let mut all = Self::nothing();
        for op in ops {
            match op {
                ObjectOp::Remove | ObjectOp::CloneFrom(_) => return Self::All,
                ObjectOp::Write { offset, data } => {
                    all.add(*offset, offset.saturating_add(data.len() as u64))
                }
                ObjectOp::Zero { offset, length } => {
                    all.add(*offset, offset.saturating_add(*length))
                }
                ObjectOp::CloneRange { to, length, .. } => all.add(*to, to.saturating_add(*length)),
                // What is cut off may be written again later, in part.
                ObjectOp::Truncate { size } => all.add(*size, u64::MAX),
                ObjectOp::OmapSet(_)
                | ObjectOp::OmapRm(_)
                | ObjectOp::OmapRmRange { .. }
                | ObjectOp::OmapClear
                | ObjectOp::OmapSetHeader(_) => all.add_omap(),
                ObjectOp::Touch
                | ObjectOp::SetAttrs(_)
                | ObjectOp::RmAttr(_)
                | ObjectOp::ClearAttrs
                | ObjectOp::AllocHint(_) => {}
            }
        }
        all
    }

    fn add_omap(&mut self) {
        if let Self::Parts { omap, .. } = self {
            *omap = true;
        }
    }

    /// Adds the blocks of a range.
    fn add(&mut self, from: u64, end: u64) {
        let Self::Parts { data, .. } = self else { return };
        if from >= end {
            return;
        }
        let mut from = from / BLOCK * BLOCK;
        let mut end = end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        // Those that it touches.
        let first = data.partition_point(|r| r.1 < from);
        let last = data.partition_point(|r| r.0 <= end);
        for r in data.get(first..last).unwrap_or_default() {
            (from, end) = (from.min(r.0), end.max(r.1));
        }
        data.splice(first..last.max(first), [(from, end)]);
        if data.len() > RANGES {
            let gap = |w: &[(u64, u64)]| match w {
                [a, b] => b.0.saturating_sub(a.1),
                _ => u64::MAX,
            };
            let closest = data.windows(2).enumerate().min_by_key(|(_, w)| gap(w)).map(|(i, _)| i);
            if let Some(i) = closest
                && let Some(end) = data.get(i + 1).map(|r| r.1)
            {
                data.remove(i + 1);
                if let Some(r) = data.get_mut(i) {
                    r.1 = end;
                }
            }
        }
    }

    /// Adds what another change made differ.
    pub fn merge(&mut self, other: &Self) {
        match other {
            Self::All => *self = Self::All,
            Self::Parts { data, omap } => {
                for (from, end) in data {
                    self.add(*from, *end);
                }
                if *omap {
                    self.add_omap();
                }
            }
        }
    }
}

impl Encode for Dirty {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::All => out.u8(0),
            Self::Parts { data, omap } => {
                out.u8(if *omap { 2 } else { 1 });
                out.list(data, |o, (from, end)| {
                    o.u64(*from);
                    o.u64(*end);
                });
            }
        }
    }
}

impl Decode for Dirty {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let kind = d.u8()?;
        if kind == 0 {
            return Ok(Self::All);
        }
        if kind > 2 {
            return Err(DecodeError::Value {
                what: "kind of what differs",
                value: i64::from(kind),
            });
        }
        let mut all = Self::nothing();
        // Brought into order: it may come from anywhere.
        for (from, end) in d.list(16, |d| Ok((d.u64()?, d.u64()?)))? {
            all.add(from, end);
        }
        if kind == 2 {
            all.add_omap();
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use spirula_encoding::{from_slice, to_vec};

    fn parts(data: &[(u64, u64)], omap: bool) -> Dirty {
        Dirty::Parts { data: data.to_vec(), omap }
    }

    fn write(offset: u64, length: usize) -> ObjectOp {
        ObjectOp::Write { offset, data: vec![7; length].into() }
    }

    #[test]
    fn changes_are_noted_in_whole_blocks_and_joined() {
        let ops =
            [write(5000, 10), write(8192, 4096), write(100_000, 1), ObjectOp::SetAttrs(Vec::new())];
        assert_eq!(Dirty::of(&ops), parts(&[(4096, 12_288), (98_304, 102_400)], false));
        assert_eq!(Dirty::of(&[write(1, 0)]), Dirty::nothing());
        let cut = [write(0, 1), ObjectOp::Truncate { size: 5000 }];
        assert_eq!(Dirty::of(&cut), parts(&[(0, u64::MAX)], false));
        assert_eq!(Dirty::of(&[ObjectOp::OmapRm(vec![Bytes::new()])]), parts(&[], true));
        assert_eq!(Dirty::of(&[write(0, 1), ObjectOp::Remove, write(0, 1)]), Dirty::All);
    }

    #[test]
    fn many_ranges_become_few_and_cover_all_that_was_added() {
        for seed in 1..40u64 {
            let mut x = seed;
            let mut next = |below: u64| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 33) % below
            };
            let (mut all, mut added) = (Dirty::nothing(), Vec::new());
            for _ in 0..next(600) {
                let from = next(4 << 20);
                let end = from + 1 + next(9000);
                let mut one = Dirty::nothing();
                one.add(from, end);
                all.merge(&one);
                added.push((from, end));
            }
            let Dirty::Parts { data, .. } = &all else { panic!() };
            assert!(data.len() <= RANGES, "seed {seed}");
            assert!(data.windows(2).all(|w| w[0].1 < w[1].0), "seed {seed}: {data:?}");
            for (from, end) in added {
                assert!(
                    data.iter().any(|r| r.0 <= from && end <= r.1),
                    "seed {seed}: {from}..{end} in {data:?}"
                );
            }
            assert_eq!(from_slice::<Dirty>(&to_vec(&all)).unwrap(), all);
        }
        assert_eq!(from_slice::<Dirty>(&to_vec(&Dirty::All)).unwrap(), Dirty::All);
        let mut all = Dirty::All;
        all.merge(&Dirty::nothing());
        assert_eq!(all, Dirty::All);
    }
}
