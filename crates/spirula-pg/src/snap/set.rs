//! The history of one object.

use super::SnapContext;
use crate::exec::{ObjectClone, SnapSet};
use spirula_types::SNAP_HEAD;
use spirula_types::transaction::ObjectOp;

/// Ranges that are kept of an overlap. Beyond that the smallest is given up: saying that less is
/// shared than is, is safe.
const RANGES: usize = 1024;
/// Ranges that are kept of all overlaps of an object together: where older ones have so many
/// already, the newest has few.
const RANGES_OF_ALL: usize = 32 * RANGES;
/// Ranges that each overlap may have all the same.
const RANGES_OF_EACH: usize = 16;

/// Ranges of bytes, (offset, length), ascending, apart from each other, none empty.
pub(crate) type Ranges = Vec<(u64, u64)>;

/// What a snapshot shows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The head: it was not changed since.
    Head,
    /// This clone.
    Clone(u64),
    /// Nothing: the object did not exist.
    Nothing,
}

/// How many bytes that is.
pub(crate) fn bytes(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|(_, n)| n).fold(0, |a, n| a.saturating_add(*n))
}

/// What of `ranges` lies in `[from, end)`.
fn within(ranges: &[(u64, u64)], from: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    ranges.iter().filter_map(move |(at, n)| {
        let (a, b) = ((*at).max(from), at.saturating_add(*n).min(end));
        (a < b).then(|| (a, b - a))
    })
}

/// Takes `[from, end)` out.
pub(crate) fn subtract(ranges: &mut Ranges, from: u64, end: u64) {
    if from < end && within(ranges, from, end).next().is_some() {
        *ranges = within(ranges, 0, from).chain(within(ranges, end, u64::MAX)).collect();
    }
}

/// What both have.
pub(crate) fn intersection(a: &[(u64, u64)], b: &[(u64, u64)]) -> Ranges {
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    let mut both = Ranges::new();
    while let (Some((from, n)), Some((other, m))) = (left.peek(), right.peek()) {
        let (end, other_end) = (from.saturating_add(*n), other.saturating_add(*m));
        let (first, last) = ((*from).max(*other), end.min(other_end));
        if first < last {
            both.push((first, last - first));
        }
        // What ends first meets nothing more.
        if end < other_end {
            left.next()
        } else {
            right.next()
        };
    }
    both
}

/// Keeps so many ranges, the largest.
fn bound(ranges: &mut Ranges, most: usize) {
    while ranges.len() > most {
        let smallest = ranges.iter().enumerate().min_by_key(|(_, (_, n))| *n).map(|(i, _)| i);
        if let Some(i) = smallest {
            ranges.remove(i);
        }
    }
}

impl SnapSet {
    /// Is there anything in it?
    pub fn is_empty(&self) -> bool {
        self.seq == 0 && self.clones.is_empty()
    }

    /// What a snapshot shows. (Whether the head exists is not known here.)
    pub fn at(&self, snap: u64) -> At {
        if snap > self.seq {
            return At::Head;
        }
        match self.clones.iter().find(|c| c.id >= snap) {
            Some(c) if c.snaps.last().is_some_and(|oldest| *oldest <= snap) => At::Clone(c.id),
            _ => At::Nothing,
        }
    }

    /// Adds the clone that a write under `context` makes of the head, an object of `size` bytes.
    /// Its id; `None` if the context names nothing newer.
    pub fn add_clone(&mut self, context: &SnapContext, size: u64) -> Option<u64> {
        let snaps: Vec<u64> = context.snaps.iter().copied().take_while(|s| *s > self.seq).collect();
        if snaps.is_empty() {
            return None;
        }
        let overlap = if size > 0 { vec![(0, size)] } else { Vec::new() };
        let id = context.seq;
        self.clones.push(ObjectClone { id, snaps, overlap, size });
        Some(id)
    }

    /// A write under `context` has changed the head.
    pub fn note_context(&mut self, context: &SnapContext) {
        self.seq = self.seq.max(context.seq);
    }

    /// Bytes that clones have for themselves alone: what they take beside the head.
    pub fn own_bytes(&self) -> i64 {
        self.clones.iter().map(|c| c.size.saturating_sub(bytes(&c.overlap)).cast_signed()).sum()
    }

    /// The head changes by these ops.
    pub fn head_changes(&mut self, ops: &[ObjectOp]) {
        let rolled = match ops.first() {
            Some(ObjectOp::CloneFrom(clone)) => Some(self.shared(clone.snap, SNAP_HEAD)),
            _ => None,
        };
        let Some((newest, older)) = self.clones.split_last_mut() else { return };
        let others: usize = older.iter().map(|c| c.overlap.len()).sum();
        let shared = &mut newest.overlap;
        if let Some(same) = rolled {
            *shared = intersection(shared, &same);
        }
        for op in ops {
            match op {
                ObjectOp::Write { offset, data } => {
                    subtract(shared, *offset, offset.saturating_add(data.len() as u64))
                }
                ObjectOp::Zero { offset, length } => {
                    subtract(shared, *offset, offset.saturating_add(*length))
                }
                // What is cut off is not shared again when the head grows: it never had more than
                // the clone.
                ObjectOp::Truncate { size } => subtract(shared, *size, u64::MAX),
                ObjectOp::Remove => shared.clear(),
                _ => {}
            }
        }
        bound(shared, RANGES_OF_ALL.saturating_sub(others).clamp(RANGES_OF_EACH, RANGES));
    }

    /// What a clone shares with a newer one (or with the head), by all between them.
    pub(crate) fn shared(&self, id: u64, newer: u64) -> Ranges {
        let mut later =
            self.clones.iter().filter(|c| (id..newer).contains(&c.id)).map(|c| &c.overlap);
        let first = later.next().cloned().unwrap_or_default();
        later.fold(first, |all, next| intersection(&all, next))
    }

    /// Snapshots are gone: a clone keeps of those that it serves what `keeps` gives back; `None`
    /// for a clone that is not looked at. One that serves none any more is taken out, and what it
    /// shared by way of its neighbour the next older one shares from now on.
    pub fn trim(&mut self, keeps: impl Fn(&ObjectClone) -> Option<Vec<u64>>) {
        // One pass, since there may be tens of thousands of clones.
        let mut left: Vec<ObjectClone> = Vec::with_capacity(self.clones.len());
        for mut clone in std::mem::take(&mut self.clones) {
            let kept = keeps(&clone);
            if kept.as_ref().is_some_and(Vec::is_empty) {
                if let Some(older) = left.last_mut() {
                    older.overlap = intersection(&older.overlap, &clone.overlap);
                }
                continue;
            }
            clone.snaps = kept.unwrap_or(clone.snaps);
            left.push(clone);
        }
        self.clones = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn context(seq: u64, snaps: &[u64]) -> SnapContext {
        SnapContext { seq, snaps: snaps.to_vec() }
    }

    fn write(offset: u64, n: usize) -> ObjectOp {
        ObjectOp::Write { offset, data: Bytes::from(vec![1; n]) }
    }

    /// An object of 100 bytes, changed under contexts 2 ([2, 1]) and 5 ([5, 4, 2, 1]).
    fn set() -> SnapSet {
        let mut s = SnapSet::default();
        assert_eq!(s.add_clone(&context(2, &[2, 1]), 100), Some(2));
        s.note_context(&context(2, &[2, 1]));
        s.head_changes(&[write(10, 10)]);
        assert_eq!(s.add_clone(&context(5, &[5, 4, 2, 1]), 100), Some(5));
        s.note_context(&context(5, &[5, 4, 2, 1]));
        s.head_changes(&[write(15, 10)]);
        s
    }

    #[test]
    fn each_clone_serves_what_came_since_the_one_before() {
        let s = set();
        assert_eq!(
            s.clones.iter().map(|c| (c.id, c.snaps.clone())).collect::<Vec<_>>(),
            [(2, vec![2, 1]), (5, vec![5, 4])]
        );
        let at: Vec<At> = (1..=6).map(|snap| s.at(snap)).collect();
        assert_eq!(
            at,
            [At::Clone(2), At::Clone(2), At::Nothing, At::Clone(5), At::Clone(5), At::Head]
        );
    }

    #[test]
    fn a_context_that_goes_back_makes_no_clone_and_takes_nothing_back() {
        let mut s = set();
        assert_eq!(s.add_clone(&context(4, &[4, 2]), 100), None);
        s.note_context(&context(4, &[4, 2]));
        assert_eq!(s, SnapSet { seq: 5, ..set() });
        // Without snapshots, too, a context is remembered: an object that did not exist before has
        // no clone.
        let mut new = SnapSet::default();
        assert_eq!(new.add_clone(&context(7, &[]), 0), None);
        new.note_context(&context(7, &[]));
        assert_eq!((new.at(7), new.at(8)), (At::Nothing, At::Head));
    }

    #[test]
    fn what_is_shared_shrinks_by_all_that_changes_the_head() {
        let s = set();
        assert_eq!(
            s.clones[0].overlap,
            [(0, 10), (20, 80)],
            "with the clone 5, which does not change any more"
        );
        assert_eq!(s.clones[1].overlap, [(0, 15), (25, 75)]);
        assert_eq!(s.own_bytes(), 20);
        let after = |ops: &[ObjectOp]| {
            let mut s = s.clone();
            s.head_changes(ops);
            (s.clones[0].overlap == set().clones[0].overlap)
                .then(|| s.clones[1].overlap.clone())
                .unwrap()
        };
        assert_eq!(after(&[ObjectOp::Zero { offset: 0, length: 5 }]), [(5, 10), (25, 75)]);
        assert_eq!(
            after(&[ObjectOp::Truncate { size: 40 }, ObjectOp::Truncate { size: 90 }]),
            [(0, 15), (25, 15)]
        );
        assert_eq!(after(&[ObjectOp::Truncate { size: 400 }]), [(0, 15), (25, 75)]);
        assert_eq!(after(&[ObjectOp::Remove, write(0, 100)]), []);
        assert_eq!(after(&[ObjectOp::SetAttrs(Vec::new())]), [(0, 15), (25, 75)]);
    }

    #[test]
    fn a_head_that_is_rolled_back_shares_what_all_between_shared() {
        let mut s = set();
        let clone = spirula_types::HObject { snap: 2, ..crate::exec::tests::object("o") };
        s.head_changes(&[ObjectOp::CloneFrom(clone), write(50, 1)]);
        assert_eq!(s.clones[1].overlap, [(0, 10), (25, 25), (51, 49)]);
    }

    #[test]
    fn a_trimmed_clone_leaves_what_its_neighbours_share() {
        let mut s = set();
        let without = |id: u64, gone: &'static [u64]| {
            move |c: &ObjectClone| {
                (c.id == id).then(|| {
                    c.snaps.iter().copied().filter(|s| !gone.contains(s)).collect::<Vec<u64>>()
                })
            }
        };
        s.trim(without(5, &[4]));
        assert_eq!(s.clones.len(), 2, "5 is still there");
        assert_eq!((s.at(4), s.at(5)), (At::Nothing, At::Clone(5)));
        s.trim(without(5, &[5]));
        assert_eq!(s.clones.len(), 1);
        assert_eq!(s.clones[0].overlap, [(0, 10), (25, 75)]);
        assert_eq!(s.own_bytes(), 15);
        s.trim(without(3, &[3]));
        assert_eq!(s.clones.len(), 1, "there is no clone of this id");
        s.trim(|_| Some(Vec::new()));
        assert!(s.clones.is_empty());
    }

    /// What a trim costs grows with the number of clones, not with its square.
    #[test]
    fn a_trim_looks_at_each_clone_once() {
        let clone =
            |id| ObjectClone { id, snaps: vec![id], overlap: vec![(0, 100 - id % 50)], size: 100 };
        let mut s = SnapSet { seq: 16_000, clones: (1..=16_000).map(clone).collect() };
        let looks = std::cell::Cell::new(0);
        s.trim(|c| {
            looks.set(looks.get() + 1);
            (c.id % 2 == 0).then(Vec::new)
        });
        assert_eq!((looks.get(), s.clones.len()), (16_000, 8_000));
        assert!(
            s.clones
                .iter()
                .all(|c| c.id % 2 == 1 && c.overlap[0].1 < 100 - c.id % 50 || c.id % 50 == 49)
        );
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut s = SnapSet::default();
        s.add_clone(&context(1, &[1]), 10_000);
        let ops: Vec<ObjectOp> = (0..3000).map(|i| write(3 * i, 1)).collect();
        s.head_changes(&ops);
        assert_eq!(s.clones[0].overlap.len(), RANGES);
        assert!(s.clones[0].overlap.contains(&(8998, 1002)), "the large ones stay");
        // However many clones there are.
        for id in 2..=40 {
            s.add_clone(&context(id, &[id]), 10_000);
            s.note_context(&context(id, &[id]));
            s.head_changes(&ops[..1100]);
        }
        let all: usize = s.clones.iter().map(|c| c.overlap.len()).sum();
        assert!(all <= RANGES_OF_ALL + 40 * RANGES_OF_EACH, "{all}");
        assert_eq!(s.clones[39].overlap.len(), RANGES_OF_EACH);
    }

    #[test]
    fn an_intersection_is_what_both_have() {
        let ranges = |of: &[bool]| -> Ranges {
            let mut all = Ranges::new();
            for at in (0..of.len()).filter(|i| of[*i]) {
                match all.last_mut() {
                    Some((a, n)) if *a + *n == at as u64 => *n += 1,
                    _ => all.push((at as u64, 1)),
                }
            }
            all
        };
        let bits = |n: u32| -> Vec<bool> { (0..8).map(|i| n >> i & 1 == 1).collect() };
        for (a, b) in (0..256).flat_map(|a| (0..256).map(move |b| (a, b))) {
            assert_eq!(
                intersection(&ranges(&bits(a)), &ranges(&bits(b))),
                ranges(&bits(a & b)),
                "{a:b} {b:b}"
            );
        }
        assert_eq!(intersection(&[(0, u64::MAX)], &[(5, u64::MAX)]), [(5, u64::MAX - 5)]);
    }
}
