//! What a copy that is made anew shares with the head and the clones beside it.
//!
//! The history of an object ([`SnapSet`]) says which bytes a clone has in common with the next
//! newer one, or with the head. A copy takes these from what its OSD has already, by reference, and
//! only the rest travels. Otherwise each recovered clone would be a whole object, and a pool with
//! snapshots would grow many times by losing a disk.
//!
//! # Why two relatives are enough
//! A byte is alike in a run of neighbours. If any member of the run is at the target, then the
//! nearest that is there on one side of the new copy is of the run, too. So each run is stored
//! once, in whatever order its members come.
//!
//! # Why nothing wrong is taken
//! The history is read together with the relatives' versions, and a target takes the copy only if
//! it has them whole in just these versions ([`spirula_messages::cluster::pg::PgTxn::beside`]); it
//! refuses it otherwise, and is sent another. Further pieces bring what the first has not taken, as
//! it was decided then. What replaces a bad copy shares nothing: the bad block might be the shared
//! one.

use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, ReadError, SNAPSET_ATTR, SnapSet};
use crate::snap::set::{Ranges, intersection, subtract};
use spirula_encoding::from_slice;
use spirula_types::transaction::ObjectOp;
use spirula_types::{Dirty, EVersion, HObject, SNAP_HEAD};

/// So many clones are looked at in each direction for one that is at the target. What lies further
/// away shares little.
const LOOKS: usize = 256;
/// So many names of clones are listed to find the newest that is here; once for each head that is
/// lacked altogether.
const CLONES_LISTED: usize = 4096;

/// Ranges that are taken of one relative, the largest: each is an operation that travels with a
/// name.
const TAKEN: usize = 1024;

/// A head or clone, in the version in which it is at the target.
pub(crate) type Relative = (HObject, EVersion);

/// How a copy of an object is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// Ranges (offset, length) that are taken of relatives.
    pub taken: Vec<(Relative, Ranges)>,
    /// What travels.
    pub lacks: Dirty,
}

impl Way {
    /// Nothing is taken of others.
    pub fn plain(lacks: Dirty) -> Self {
        Self { taken: Vec::new(), lacks }
    }

    /// Whose ranges are taken.
    pub fn beside(&self) -> Vec<Relative> {
        self.taken.iter().map(|(r, _)| r.clone()).collect()
    }

    /// What takes the ranges; nothing may be there before.
    pub fn ops(&self) -> impl Iterator<Item = ObjectOp> {
        self.taken.iter().flat_map(|((from, _), ranges)| {
            ranges.iter().map(|(at, n)| ObjectOp::CloneRange {
                from: from.clone(),
                offset: *at,
                length: *n,
                to: *at,
            })
        })
    }
}

/// What is known of the family of a head: its history and its size.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    set: SnapSet,
    head_size: u64,
}

impl Family {
    /// Of these values of a head's attributes; `None` without a history.
    pub fn of(info: &ObjectInfo, snapset: Option<&[u8]>) -> Option<Self> {
        let set =
            snapset.filter(|_| info.has(ObjectInfo::SNAPSET)).and_then(|a| from_slice(a).ok())?;
        Some(Self { set, head_size: info.size })
    }

    /// Of the head that is stored here.
    pub fn read(reader: &dyn ObjectReader, head: &HObject) -> Result<Option<Self>, ReadError> {
        let Some(info) =
            reader.attr(head, INFO_ATTR)?.and_then(|a| from_slice::<ObjectInfo>(&a).ok())
        else {
            return Ok(None);
        };
        if !info.has(ObjectInfo::SNAPSET) {
            return Ok(None);
        }
        Ok(Self::of(&info, reader.attr(head, SNAPSET_ATTR)?.as_deref()))
    }

    /// The size of the head or of a clone; `None` if there is no such clone.
    fn size(&self, object: &HObject) -> Option<u64> {
        if object.snap == SNAP_HEAD {
            return Some(self.head_size);
        }
        self.set.clones.iter().find(|c| c.id == object.snap).map(|c| c.size)
    }

    /// The nearest relatives of `object` on both sides that the target `has`, with their versions.
    pub fn relatives(
        &self,
        object: &HObject,
        mut has: impl FnMut(&HObject) -> Result<Option<EVersion>, ReadError>,
    ) -> Result<Vec<Relative>, ReadError> {
        let mut near = Vec::new();
        if self.size(object).is_none() {
            return Ok(near);
        }
        let ids = || self.set.clones.iter().map(|c| c.id);
        let older: Vec<u64> = ids().rev().filter(|id| *id < object.snap).take(LOOKS).collect();
        let newer = ids().filter(|id| *id > object.snap).take(LOOKS);
        let newer = newer.chain((object.snap != SNAP_HEAD).then_some(SNAP_HEAD)).collect();
        for side in [older, newer] {
            for snap in side {
                let relative = HObject { snap, ..object.clone() };
                if let Some(version) = has(&relative)? {
                    near.push((relative, version));
                    break;
                }
            }
        }
        Ok(near)
    }

    /// How `object` is made where these relatives are. Ranges are of whole `unit` bytes, or go to
    /// the end of both.
    pub fn way(&self, object: &HObject, relatives: &[Relative], unit: u64) -> Way {
        let Some(size) = self.size(object) else { return Way::plain(Dirty::All) };
        let mut left: Ranges = if size > 0 { vec![(0, size)] } else { Vec::new() };
        let mut taken = Vec::new();
        for (relative, version) in relatives {
            let (older, newer) = (relative.snap.min(object.snap), relative.snap.max(object.snap));
            let alike = intersection(&self.set.shared(older, newer), &left);
            let to_end = self.size(relative) == Some(size);
            let whole = |(at, n): &(u64, u64)| {
                let end = at.saturating_add(*n);
                let from = at.checked_next_multiple_of(unit)?;
                let end = if to_end && end >= size { size } else { end / unit * unit };
                (from < end).then(|| (from, end - from))
            };
            let mut ranges: Ranges = alike.iter().filter_map(whole).collect();
            if ranges.len() > TAKEN {
                ranges.sort_unstable_by_key(|(_, n)| std::cmp::Reverse(*n));
                ranges.truncate(TAKEN);
                ranges.sort_unstable();
            }
            ranges.iter().for_each(|(at, n)| subtract(&mut left, *at, at + n));
            if !ranges.is_empty() {
                taken.push(((relative.clone(), *version), ranges));
            }
        }
        if taken.is_empty() {
            return Way::plain(Dirty::All);
        }
        let data = left.into_iter().map(|(at, n)| (at, at + n)).collect();
        Way { taken, lacks: Dirty::Parts { data, omap: true } }
    }
}

/// The newest clone of a head that is here, by the names of clones alone.
pub(crate) fn newest_clone(
    reader: &dyn ObjectReader,
    head: &HObject,
    has: impl Fn(&HObject) -> Result<Option<EVersion>, ReadError>,
) -> Result<Vec<Relative>, ReadError> {
    let clones = reader.list(&head.family_start(), head, CLONES_LISTED)?;
    let newest = clones.into_iter().rev().find_map(|o| has(&o).map(|v| Some((o, v?))).transpose());
    Ok(newest.transpose()?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::ObjectClone;
    use crate::exec::tests::object;

    const V: EVersion = EVersion { epoch: 1, version: 1 };

    fn clone(id: u64, size: u64, overlap: &[(u64, u64)]) -> ObjectClone {
        ObjectClone { id, snaps: vec![id], overlap: overlap.to_vec(), size }
    }

    /// Clones 1, 2 and 3 of 40,000 bytes and a head of as many.
    fn family() -> Family {
        let clones = vec![
            clone(1, 40_000, &[(0, 8192), (12_288, 27_712)]),
            clone(2, 40_000, &[(0, 20_000)]),
            clone(3, 40_000, &[(10, 39_990)]),
        ];
        Family { set: SnapSet { seq: 3, clones }, head_size: 40_000 }
    }

    fn at(snap: u64) -> HObject {
        HObject { snap, ..object("o") }
    }

    fn near(f: &Family, of: u64, there: &[u64]) -> Vec<u64> {
        let has = |o: &HObject| Ok(there.contains(&o.snap).then_some(V));
        f.relatives(&at(of), has).unwrap().into_iter().map(|(o, _)| o.snap).collect()
    }

    #[test]
    fn the_nearest_on_each_side_that_is_there_is_a_relative() {
        let f = family();
        assert_eq!(near(&f, 2, &[1, 3, SNAP_HEAD]), [1, 3]);
        assert_eq!(near(&f, 2, &[SNAP_HEAD]), [SNAP_HEAD]);
        assert_eq!(near(&f, SNAP_HEAD, &[1, 2, SNAP_HEAD]), [2], "itself it is none");
        assert_eq!(near(&f, 1, &[]), [0; 0]);
        assert_eq!(
            near(&f, 7, &[1, 2, 3, SNAP_HEAD]),
            [0; 0],
            "of a clone that is none nothing is known"
        );
    }

    #[test]
    fn a_way_takes_whole_blocks_and_the_end_that_both_have() {
        let f = family();
        let way = f.way(&at(2), &[(at(1), V)], 4096);
        assert_eq!(way.taken, [((at(1), V), vec![(0, 8192), (12_288, 27_712)])]);
        assert_eq!(way.lacks, Dirty::Parts { data: vec![(8192, 12_288)], omap: true });
        // What the older one has is not taken twice; in between there are parts of blocks.
        let way = f.way(&at(3), &[(at(2), V), (at(SNAP_HEAD), V)], 4096);
        assert_eq!(way.taken[0], ((at(2), V), vec![(0, 16_384)]));
        assert_eq!(way.taken[1], ((at(SNAP_HEAD), V), vec![(16_384, 23_616)]));
        assert_eq!(way.lacks, Dirty::Parts { data: vec![], omap: true });
        // Of different size: the last block travels.
        let shorter = Family { head_size: 39_000, ..family() };
        let way = shorter.way(&at(3), &[(at(SNAP_HEAD), V)], 4096);
        assert_eq!(way.taken[0].1, [(4096, 32_768)]);
        assert_eq!(way.lacks, Dirty::Parts { data: vec![(0, 4096), (36_864, 40_000)], omap: true });
        // By stripes of an erasure-coded pool.
        let way = f.way(&at(2), &[(at(1), V)], 16_384);
        assert_eq!(way.taken[0].1, [(16_384, 23_616)]);
        assert_eq!(f.way(&at(2), &[], 4096), Way::plain(Dirty::All));
    }
}
