//! Sets of snapshot ids as intervals.

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::collections::BTreeMap;
use std::fmt;

/// A set of snapshot ids, kept as disjoint, non-adjacent intervals (Ceph's interval_set):
/// start → length. Lengths are never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapIntervals(BTreeMap<u64, u64>);

impl SnapIntervals {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of one id.
    pub fn one(id: u64) -> Self {
        let mut s = Self::new();
        s.insert(id, 1);
        s
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of ids.
    pub fn size(&self) -> u64 {
        self.0.values().fold(0, |a, b| a.saturating_add(*b))
    }

    /// Number of intervals.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Is `id` in the set?
    pub fn contains(&self, id: u64) -> bool {
        self.0.range(..=id).next_back().is_some_and(|(start, len)| id - start < *len)
    }

    /// Intervals as (start, length), ascending.
    pub fn intervals(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(s, l)| (*s, *l))
    }

    /// Adds `len` ids from `start`, joining what touches or overlaps.
    pub fn insert(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let mut first = start;
        let mut end = start.saturating_add(len);
        if let Some((s, l)) = self.0.range(..=start).next_back().map(|(s, l)| (*s, *l))
            && s.saturating_add(l) >= start
        {
            first = s;
            end = end.max(s.saturating_add(l));
            self.0.remove(&s);
        }
        while let Some((s, l)) = self.0.range(first..=end).next().map(|(s, l)| (*s, *l)) {
            end = end.max(s.saturating_add(l));
            self.0.remove(&s);
        }
        self.0.insert(first, end - first);
    }

    /// Removes `len` ids from `start`; those not there are no error.
    pub fn remove(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = start.saturating_add(len);
        if let Some((s, l)) = self.0.range(..start).next_back().map(|(s, l)| (*s, *l)) {
            let e = s.saturating_add(l);
            if e > start {
                self.0.insert(s, start - s);
                if e > end {
                    self.0.insert(end, e - end);
                }
            }
        }
        while let Some((s, l)) = self.0.range(start..end).next().map(|(s, l)| (*s, *l)) {
            self.0.remove(&s);
            let e = s.saturating_add(l);
            if e > end {
                self.0.insert(end, e - end);
            }
        }
    }

    /// Adds all of `other`.
    pub fn union(&mut self, other: &Self) {
        other.intervals().for_each(|(s, l)| self.insert(s, l));
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::new();
        for (start, len) in self.intervals() {
            let end = start.saturating_add(len);
            // The one that begins before this interval may reach into it.
            let first = other.0.range(..=start).next_back().map_or(start, |(s, _)| *s);
            for (s, l) in other.0.range(first..end) {
                let (from, to) = (start.max(*s), end.min(s.saturating_add(*l)));
                both.insert(from, to.saturating_sub(from));
            }
        }
        both
    }

    /// The first `max` ids.
    #[must_use]
    pub fn first(&self, max: u64) -> Self {
        let (mut out, mut left) = (Self::new(), max);
        for (start, len) in self.intervals() {
            let take = len.min(left);
            out.insert(start, take);
            left -= take;
        }
        out
    }

    /// Removes all of `other`.
    pub fn subtract(&mut self, other: &Self) {
        other.intervals().for_each(|(s, l)| self.remove(s, l));
    }
}

impl fmt::Display for SnapIntervals {
    /// `[1~2,5~1]`, numbers in hexadecimal, as Ceph prints snapshot sets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (s, l)) in self.intervals().enumerate() {
            write!(f, "{}{s:x}~{l:x}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

impl Encode for SnapIntervals {
    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
    }
}

impl Decode for SnapIntervals {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let n = d.count(16)?;
        let mut m = BTreeMap::new();
        // What no encoder writes is refused, so that what we hold re-encodes to the same bytes.
        let mut floor = 0u64;
        for i in 0..n {
            let (s, l) = (d.u64()?, d.u64()?);
            let bad = DecodeError::Value { what: "snap interval", value: s as i64 };
            if l == 0 || (i > 0 && s <= floor) {
                return Err(bad);
            }
            floor = s.checked_add(l).ok_or(bad)?;
            m.insert(s, l);
        }
        Ok(Self(m))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn prop_intervals_agree_with_a_plain_set(ops: Vec<(bool, u8, u8)>) {
            let (mut a, mut b) = (SnapIntervals::new(), BTreeSet::new());
            for (add, s, l) in ops {
                let (s, l) = (u64::from(s), u64::from(l % 16));
                if add { a.insert(s, l) } else { a.remove(s, l) }
                for i in s..s + l {
                    if add { b.insert(i); } else { b.remove(&i); }
                }
            }
            prop_assert_eq!(a.size(), b.len() as u64);
            for i in 0..300 {
                prop_assert_eq!(a.contains(i), b.contains(&i));
            }
            let odd: BTreeSet<u64> = b.iter().copied().filter(|i| i % 3 == 1).collect();
            let mut other = SnapIntervals::new();
            odd.iter().chain(&[500, 501]).for_each(|i| other.insert(*i, 1));
            let ids = |s: &SnapIntervals| s.intervals().flat_map(|(s, l)| s..s + l).collect::<BTreeSet<u64>>();
            prop_assert_eq!(ids(&a.intersection(&other)), odd.clone());
            prop_assert_eq!(ids(&other.intersection(&a)), odd);
            prop_assert_eq!(ids(&a.first(5)), b.iter().copied().take(5).collect::<BTreeSet<_>>());
            let v = spirula_encoding::to_vec(&a);
            prop_assert_eq!(spirula_encoding::from_slice::<SnapIntervals>(&v).unwrap(), a);
        }
    }
}
