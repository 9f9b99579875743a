//! Does an object's history agree with the clones that are there? What does not is listed with
//! librados' own names (`inc_err` of `inconsistent_snapset_t` in `rados_types.hpp`). Repair has
//! nothing to mend it with.

use super::compare::Finding;
use super::list::put_object_id;
use crate::exec::{INFO_ATTR, ObjectClone, ObjectInfo, SNAPSET_ATTR, SnapSet};
use bytes::Bytes;
use spirula_encoding::{Encoder, from_slice};
use spirula_messages::cluster::scrub::ScrubObject;
use spirula_types::{HObject, Peer, SNAP_HEAD};
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong.
pub(crate) mod wrong {
    /// The head says that it has a history, and has none.
    pub const SNAPSET_MISSING: u64 = 1;
    /// The history cannot be decoded.
    pub const SNAPSET_CORRUPTED: u64 = 1 << 1;
    /// A clone that the history names is not there.
    pub const CLONE_MISSING: u64 = 1 << 2;
    /// A clone without a head that names it.
    pub const HEADLESS_CLONE: u64 = 1 << 5;
    /// A clone's size, or what it shares, is not what the history says.
    pub const SIZE_MISMATCH: u64 = 1 << 6;
    /// No info.
    pub const INFO_MISSING: u64 = 1 << 7;
    /// An info that cannot be decoded.
    pub const INFO_CORRUPTED: u64 = 1 << 8;
    /// Clones are there that the history does not name.
    pub const EXTRA_CLONES: u64 = 1 << 9;
}

/// What is wrong with a head's history, or with a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapFinding {
    /// Bits of [`wrong`].
    pub errors: u64,
    /// Clones that are not named.
    pub extra: Vec<u64>,
    /// Clones that are named and not there.
    pub missing: Vec<u64>,
    /// The history.
    pub set: Option<SnapSet>,
}

impl SnapFinding {
    /// In words, for the cluster's log.
    pub fn words(&self) -> String {
        let names = [
            (wrong::SNAPSET_MISSING, "no 'snapset' attr"),
            (wrong::SNAPSET_CORRUPTED, "can't decode 'snapset' attr"),
            (wrong::HEADLESS_CLONE, "is an unexpected clone"),
            (wrong::SIZE_MISMATCH, "size differs from its head's snapset"),
            (wrong::INFO_MISSING, "no '_' attr"),
            (wrong::INFO_CORRUPTED, "can't decode '_' attr"),
        ];
        let mut all: Vec<String> = names
            .iter()
            .filter(|(bit, _)| self.errors & bit != 0)
            .map(|(_, text)| (*text).to_owned())
            .collect();
        all.extend(self.missing.iter().map(|id| format!("expected clone {id:x} is missing")));
        all.extend(self.extra.iter().map(|id| format!("clone {id:x} is not in its snapset")));
        all.join(", ")
    }

    /// Errors to be counted.
    pub fn count(&self) -> u32 {
        let single = self.errors & !(wrong::CLONE_MISSING | wrong::EXTRA_CLONES);
        single.count_ones() + (self.missing.len() + self.extra.len()) as u32
    }

    /// Ceph's `inconsistent_snapset_t`.
    pub fn listed(&self, object: &HObject) -> Bytes {
        let mut e = Encoder::new();
        e.versioned(2, 1, |e| {
            e.u64(self.errors);
            put_object_id(e, object);
            e.put(&self.extra);
            e.put(&self.missing);
            e.put(&self.set.as_ref().map(ceph_set).unwrap_or_default());
        });
        e.into_bytes()
    }
}

/// Ceph's `SnapSet`.
fn ceph_set(set: &SnapSet) -> Bytes {
    let mut e = Encoder::new();
    e.versioned(3, 2, |e| {
        e.u64(set.seq);
        e.bool(true);
        e.put(&Vec::<u64>::new());
        e.list(&set.clones, |e, c| e.u64(c.id));
        e.list(&set.clones, |e, c| {
            e.u64(c.id);
            e.put(&c.overlap);
        });
        e.list(&set.clones, |e, c| {
            e.u64(c.id);
            e.u64(c.size);
        });
        e.list(&set.clones, |e, c| {
            e.u64(c.id);
            e.put(&c.snaps);
        });
    });
    e.into_bytes()
}

/// The good copy of an object.
pub(crate) fn good<'a>(
    copies: &'a BTreeMap<Peer, Option<ScrubObject>>,
    found: Option<&Finding>,
) -> Option<&'a ScrubObject> {
    match found {
        Some(f) => copies.get(&f.good?)?.as_ref(),
        None => copies.values().next()?.as_ref(),
    }
}

fn attr<'a>(copy: &'a ScrubObject, name: &[u8]) -> Option<&'a Bytes> {
    copy.attrs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
}

/// Leaves of a clone's copy what [`judge`] looks at: there may be tens of thousands to be kept.
pub(crate) fn keep_info(copy: &mut ScrubObject) {
    copy.attrs.retain(|(name, _)| name == INFO_ATTR);
    copy.attrs.iter_mut().for_each(|(_, value)| *value = Bytes::copy_from_slice(value));
}

/// The info of a copy, or what is wrong with it.
fn info(copy: &ScrubObject) -> Result<ObjectInfo, u64> {
    let value = attr(copy, INFO_ATTR).ok_or(wrong::INFO_MISSING)?;
    from_slice(value).map_err(|_| wrong::INFO_CORRUPTED)
}

/// Judges whole objects, clones before their heads, each by its good copy.
pub(crate) fn judge(objects: &[(HObject, Option<ScrubObject>)]) -> Vec<(HObject, SnapFinding)> {
    let mut all = Vec::new();
    for family in objects.chunk_by(|(a, _), (b, _)| a.is_of_same_object(b)) {
        judge_one(family, &mut all);
    }
    all
}

fn judge_one(family: &[(HObject, Option<ScrubObject>)], all: &mut Vec<(HObject, SnapFinding)>) {
    let (clones, head) = match family.split_last() {
        Some(((head, copy), clones)) if head.snap == SNAP_HEAD => (clones, Some((head, copy))),
        _ => (family, None),
    };
    let mut of_head = SnapFinding::default();
    let set: Option<SnapSet> = match head {
        None => Some(SnapSet::default()),
        // Of what has no good copy something else is said.
        Some((_, None)) => None,
        Some((_, Some(copy))) => {
            match (info(copy), attr(copy, SNAPSET_ATTR).map(|v| from_slice::<SnapSet>(v))) {
                (_, Some(Ok(set))) => Some(set),
                (_, Some(Err(_))) => {
                    of_head.errors |= wrong::SNAPSET_CORRUPTED;
                    None
                }
                (Ok(info), None) if info.has(ObjectInfo::SNAPSET) => {
                    of_head.errors |= wrong::SNAPSET_MISSING;
                    None
                }
                (Ok(_), None) => Some(SnapSet::default()),
                (Err(_), None) => None,
            }
        }
    };
    let named: BTreeMap<u64, &ObjectClone> =
        set.iter().flat_map(|s| &s.clones).map(|c| (c.id, c)).collect();
    for (clone, copy) in clones {
        let mut f = SnapFinding::default();
        let told = named.get(&clone.snap);
        if set.is_some() && told.is_none() {
            f.errors |= wrong::HEADLESS_CLONE;
            if head.is_some() {
                of_head.extra.push(clone.snap);
            }
        }
        match copy.as_ref().map(info) {
            None => {}
            Some(Err(error)) => f.errors |= error,
            Some(Ok(info)) => {
                let shares =
                    |(at, n): &(u64, u64)| at.checked_add(*n).is_some_and(|end| end <= info.size);
                if told.is_some_and(|c| c.size != info.size || !c.overlap.iter().all(shares)) {
                    f.errors |= wrong::SIZE_MISMATCH;
                }
            }
        }
        if f.errors != 0 {
            all.push((clone.clone(), f));
        }
    }
    let Some((head, _)) = head else { return };
    if let Some(set) = &set {
        let there: BTreeSet<u64> = clones.iter().map(|(c, _)| c.snap).collect();
        of_head.missing =
            set.clones.iter().map(|c| c.id).filter(|id| !there.contains(id)).collect();
    }
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    of_head.errors |= bit(!of_head.missing.is_empty(), wrong::CLONE_MISSING);
    of_head.errors |= bit(!of_head.extra.is_empty(), wrong::EXTRA_CLONES);
    if of_head.errors != 0 {
        of_head.set = set;
        all.push((head.clone(), of_head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::ObjectClone;
    use crate::exec::tests::object;
    use spirula_encoding::to_vec;

    fn copy(size: u64, set: Option<&SnapSet>) -> ScrubObject {
        let mut info = ObjectInfo { size, ..ObjectInfo::default() };
        info.set(ObjectInfo::SNAPSET, set.is_some());
        let mut attrs = vec![(Bytes::from_static(INFO_ATTR), info.to_attr())];
        attrs.extend(set.map(|s| (Bytes::from_static(SNAPSET_ATTR), to_vec(s).into())));
        ScrubObject { size, attrs, ..ScrubObject::default() }
    }

    /// An object with clones 2 and 5 of 100 bytes.
    fn family() -> Vec<(HObject, Option<ScrubObject>)> {
        let clone = |id| ObjectClone { id, snaps: vec![id], overlap: vec![(0, 100)], size: 100 };
        let set = SnapSet { seq: 5, clones: vec![clone(2), clone(5)] };
        let of = |snap| HObject { snap, ..object("o") };
        vec![
            (of(2), Some(copy(100, None))),
            (of(5), Some(copy(100, None))),
            (of(SNAP_HEAD), Some(copy(7, Some(&set)))),
        ]
    }

    fn found(objects: &[(HObject, Option<ScrubObject>)]) -> Vec<(u64, u64, Vec<u64>, Vec<u64>)> {
        judge(objects).into_iter().map(|(o, f)| (o.snap, f.errors, f.missing, f.extra)).collect()
    }

    #[test]
    fn a_history_that_names_what_is_there_is_sound() {
        let mut two = family();
        two.push((object("alone"), Some(copy(3, None))));
        assert_eq!(found(&two), []);
    }

    #[test]
    fn clones_that_lack_or_are_too_many_are_told_with_their_head() {
        let mut f = family();
        f.remove(0);
        assert_eq!(found(&f), [(SNAP_HEAD, wrong::CLONE_MISSING, vec![2], vec![])]);
        assert_eq!(judge(&f)[0].1.words(), "expected clone 2 is missing");
        let mut f = family();
        f.insert(1, (HObject { snap: 3, ..object("o") }, Some(copy(100, None))));
        let extra = (SNAP_HEAD, wrong::EXTRA_CLONES, vec![], vec![3]);
        assert_eq!(found(&f), [(3, wrong::HEADLESS_CLONE, vec![], vec![]), extra]);
        let mut f = family();
        f.pop();
        let headless = |id| (id, wrong::HEADLESS_CLONE, vec![], vec![]);
        assert_eq!(found(&f), [headless(2), headless(5)]);
    }

    #[test]
    fn sizes_infos_and_histories_that_do_not_fit_are_told() {
        let mut f = family();
        f[1].1 = Some(copy(50, None));
        assert_eq!(found(&f), [(5, wrong::SIZE_MISMATCH, vec![], vec![])]);
        f[1].1.as_mut().unwrap().attrs.clear();
        assert_eq!(found(&f), [(5, wrong::INFO_MISSING, vec![], vec![])]);
        let mut f = family();
        f[2].1.as_mut().unwrap().attrs.pop();
        assert_eq!(found(&f), [(SNAP_HEAD, wrong::SNAPSET_MISSING, vec![], vec![])]);
        f[2].1.as_mut().unwrap().attrs.push((Bytes::from_static(SNAPSET_ATTR), "?".into()));
        assert_eq!(found(&f), [(SNAP_HEAD, wrong::SNAPSET_CORRUPTED, vec![], vec![])]);
        // What has no good copy is told elsewhere, and its clones may be its.
        f[2].1 = None;
        assert_eq!(found(&f), []);
    }
}
