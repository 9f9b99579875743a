//! Ranges of keys removed from omaps since a checkpoint.
//!
//! Removing a range is one entry in the journal and one here, however many keys are in it:
//! what older layers (an older overlay, the KV) hold in the range counts no more. What is
//! set anew in it is in the overlay beside it, and comes before it.

use crate::keys;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Memory of a range beside its keys, bytes.
const ENTRY: usize = 80;

/// Ranges of keys, by omap; those of one omap are apart from each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone {
    /// First key of a range, and the first that is not in it.
    ranges: BTreeMap<(u64, Bytes), Bytes>,
    /// Memory taken, bytes, roughly.
    pub cost: usize,
}

impl Gone {
    /// Adds the keys from `first` up to but not including `last`.
    pub fn add(&mut self, id: u64, first: &Bytes, last: &Bytes) {
        if first >= last {
            return;
        }
        let (mut first, mut last) = (first.clone(), last.clone());
        // What overlaps or adjoins becomes part of it, beginning with the one furthest on.
        while let Some((from, until)) = self.before(id, &last) {
            if until < first {
                break;
            }
            self.cost = self.cost.saturating_sub(ENTRY + from.len() + until.len());
            self.ranges.remove(&(id, from.clone()));
            first = first.min(from);
            last = last.max(until);
        }
        self.cost += ENTRY + first.len() + last.len();
        self.ranges.insert((id, first), last);
    }

    /// The last range of an omap that begins at `key` or before it.
    fn before(&self, id: u64, key: &Bytes) -> Option<(Bytes, Bytes)> {
        let mut found = self.ranges.range((id, Bytes::new())..=(id, key.clone()));
        found.next_back().map(|((_, from), until)| (from.clone(), until.clone()))
    }

    /// The end of the range that `key` is in, if it is in one.
    fn end_at(&self, id: u64, key: &Bytes) -> Option<Bytes> {
        if self.ranges.is_empty() {
            return None;
        }
        self.before(id, key).map(|(_, until)| until).filter(|until| key < until)
    }

    /// Is the key in one of the ranges?
    pub fn covers(&self, id: u64, key: &Bytes) -> bool {
        self.end_at(id, key).is_some()
    }

    /// The first key of the next range behind `key`.
    fn next(&self, id: u64, key: &Bytes) -> Option<Bytes> {
        let behind = (Bound::Excluded((id, key.clone())), Bound::Excluded((id + 1, Bytes::new())));
        self.ranges.range(behind).next().map(|((_, from), _)| from.clone())
    }

    /// The ranges of one omap.
    pub fn of(&self, id: u64) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        let all = (id, Bytes::new())..(id + 1, Bytes::new());
        self.ranges.range(all).map(|((_, from), until)| (from, until))
    }

    /// Forgets an omap.
    pub fn forget(&mut self, id: u64) {
        let all = (id, Bytes::new())..(id + 1, Bytes::new());
        let froms: Vec<_> = self.ranges.range(all).map(|(k, _)| k.clone()).collect();
        for from in froms {
            let until = self.ranges.remove(&from).unwrap_or_default();
            self.cost = self.cost.saturating_sub(ENTRY + from.1.len() + until.len());
        }
    }

    /// All ranges, as keys of the KV.
    pub fn stored(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        self.ranges
            .iter()
            .map(|((id, from), until)| (keys::omap(*id, from), keys::omap(*id, until)))
    }

    /// All ranges with their omaps.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Bytes, &Bytes)> {
        self.ranges.iter().map(|((id, from), until)| (*id, from, until))
    }
}

/// The parts of an omap from `first` on, up to `last` if there is one, that none of
/// `layers`, each with the omap's number in it, has removed: from, and until if there is an end.
/// One after the other, as they are asked for.
pub(crate) fn left<'a>(
    layers: Vec<(u64, &'a Gone)>,
    first: Bytes,
    last: Option<Bytes>,
) -> impl Iterator<Item = (Bytes, Option<Bytes>)> + 'a {
    let mut at = Some(first);
    std::iter::from_fn(move || {
        let mut from = at.take()?;
        while let Some(end) = layers.iter().find_map(|(id, g)| g.end_at(*id, &from)) {
            from = end;
        }
        if last.as_ref().is_some_and(|l| from >= *l) {
            return None;
        }
        let next = layers.iter().filter_map(|(id, g)| g.next(*id, &from)).min();
        let next = next.filter(|n| last.as_ref().is_none_or(|l| n < l));
        at.clone_from(&next);
        Some((from, next.or_else(|| last.clone())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::sim::Rng;

    fn key(n: u64) -> Bytes {
        Bytes::from(format!("{n:02}"))
    }

    #[test]
    fn random_ranges_cover_what_a_list_of_all_keys_says() {
        for seed in 0..200 {
            let mut rng = Rng(seed);
            let mut layers = [Gone::default(), Gone::default()];
            let mut gone = [[false; 2]; 40];
            for _ in 0..rng.below(12) {
                let (a, b, n) = (rng.below(40), rng.below(41), rng.below(2) as usize);
                layers[n].add(7, &key(a), &key(b));
                layers[n].add(6, &key(0), &key(b));
                layers[n].add(8, &key(a), &key(b));
                gone.iter_mut().enumerate().for_each(|(k, g)| g[n] |= (a..b).contains(&(k as u64)));
            }
            for (k, g) in gone.iter().enumerate() {
                let covered = [0, 1].map(|n| layers[n].covers(7, &key(k as u64)));
                assert_eq!(covered, *g, "seed {seed}, key {k}");
            }
            let (first, last) = (rng.below(40), rng.below(40));
            for last in [Some(last), None] {
                let parts: Vec<_> =
                    left(layers.iter().map(|g| (7, g)).collect(), key(first), last.map(key))
                        .collect();
                let within = |k: u64| {
                    parts
                        .iter()
                        .any(|(a, b)| *a <= key(k) && b.as_ref().is_none_or(|b| key(k) < *b))
                };
                for k in 0..40 {
                    let wanted =
                        k >= first && last.is_none_or(|l| k < l) && gone[k as usize] == [false; 2];
                    assert_eq!(
                        within(k),
                        wanted,
                        "seed {seed}, key {k}, {first} to {last:?}: {parts:?}"
                    );
                }
            }
            for g in &mut layers {
                let touching = |g: &Gone| {
                    let all: Vec<_> = g.iter().filter(|(id, ..)| *id == 7).collect();
                    all.windows(2).any(|w| w[0].2 >= w[1].1)
                };
                assert!(!touching(g), "seed {seed}: {g:?}");
                [6, 7, 8].into_iter().for_each(|id| g.forget(id));
                assert_eq!((g.cost, g.iter().count()), (0, 0));
            }
        }
    }
}
