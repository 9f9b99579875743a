//! Comparing the copies of one object: which are good, and what is wrong with the others.
//!
//! Error bits are those of librados (`rados_types.hpp`), because clients list them.

use crate::erasure::Shape;
use crate::exec::{INFO_ATTR, ObjectInfo, SNAPSET_ATTR, SnapSet, WATCHERS_ATTR, are_watchers};
use bytes::Bytes;
use spirula_encoding::from_slice;
use spirula_messages::cluster::scrub::ScrubObject;
use spirula_types::{EVersion, Peer};
use std::collections::BTreeMap;

/// What is wrong with one copy (librados' `err_t`).
pub(crate) mod shard {
    /// It is not there.
    pub const MISSING: u64 = 1 << 1;
    /// It cannot be read, or fails its checksum.
    pub const READ_ERROR: u64 = 1 << 3;
    /// Its size is not what the object's good metadata says.
    pub const SIZE_MISMATCH_INFO: u64 = 1 << 11;
    /// It has no object info.
    pub const INFO_MISSING: u64 = 1 << 14;
    /// Its object info cannot be decoded.
    pub const INFO_CORRUPTED: u64 = 1 << 15;
    /// It should have a snapset and has none.
    pub const SNAPSET_MISSING: u64 = 1 << 16;
    /// Its snapset cannot be decoded.
    pub const SNAPSET_CORRUPTED: u64 = 1 << 17;
    /// Its size is not what its own object info says.
    pub const OBJ_SIZE_INFO_MISMATCH: u64 = 1 << 18;
}

/// How copies differ (librados' `obj_err_t`).
pub(crate) mod differ {
    /// In their object infos.
    pub const INFO: u64 = 1 << 1;
    /// In their data.
    pub const DATA: u64 = 1 << 4;
    /// In their omaps.
    pub const OMAP: u64 = 1 << 5;
    /// In their sizes.
    pub const SIZE: u64 = 1 << 6;
    /// In the value of an attribute.
    pub const ATTR_VALUE: u64 = 1 << 7;
    /// In the names of their attributes.
    pub const ATTR_NAME: u64 = 1 << 8;
    /// In their snapsets.
    pub const SNAPSET: u64 = 1 << 9;
}

/// One copy and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Bits of [`shard`].
    pub errors: u64,
    /// As it was found; `None` if it is missing.
    pub copy: Option<ScrubObject>,
    /// It must be replaced.
    pub bad: bool,
    /// Only reading all of it shows that.
    pub deep: bool,
}

/// An object whose copies are not all good and equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Bits of [`differ`].
    pub errors: u64,
    /// The copy to trust; `None` if there is none.
    pub good: Option<Peer>,
    /// Its object info.
    pub info: ObjectInfo,
    /// Every member's copy.
    pub shards: BTreeMap<Peer, Shard>,
}

impl Finding {
    /// Bad copies: those that comparing metadata shows, those that only reading shows.
    pub fn count(&self) -> (u32, u32) {
        let bad =
            |deep: bool| self.shards.values().filter(|s| s.bad && s.deep == deep).count() as u32;
        (bad(false), bad(true))
    }
}

#[cfg(feature = "plant-bugs")]
impl Finding {
    /// A planted bug: one copy is good whatever is wrong with it, the others are bad.
    pub fn blaming_all_but(mut self, good: Peer) -> Self {
        self.good = Some(good);
        self.shards.iter_mut().for_each(|(o, s)| s.bad = *o != good);
        self
    }
}

fn attr<'a>(copy: &'a ScrubObject, name: &[u8]) -> Option<&'a Bytes> {
    copy.attrs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
}

/// What is wrong with a copy by itself, and its object info; `length`: how long a copy with this
/// object info is.
fn examine(copy: Option<&ScrubObject>, length: impl Fn(&ObjectInfo) -> u64) -> (u64, ObjectInfo) {
    let mut info = ObjectInfo::default();
    let Some(copy) = copy else { return (shard::MISSING, info) };
    let mut errors = if copy.read_error { shard::READ_ERROR } else { 0 };
    match attr(copy, INFO_ATTR).map(|a| from_slice::<ObjectInfo>(a)) {
        None => errors |= shard::INFO_MISSING,
        Some(Err(_)) => errors |= shard::INFO_CORRUPTED,
        Some(Ok(i)) => {
            info = i;
            if length(&i) != copy.size {
                errors |= shard::OBJ_SIZE_INFO_MISMATCH;
            }
            if i.has(ObjectInfo::SNAPSET) {
                errors |= match attr(copy, SNAPSET_ATTR).map(|a| from_slice::<SnapSet>(a)) {
                    None => shard::SNAPSET_MISSING,
                    Some(Err(_)) => shard::SNAPSET_CORRUPTED,
                    Some(Ok(_)) => 0,
                };
            }
            // In Ceph watchers are a part of the info.
            if i.has(ObjectInfo::WATCHED)
                && !attr(copy, WATCHERS_ATTR).is_some_and(|a| are_watchers(a))
            {
                errors |= shard::INFO_CORRUPTED;
            }
        }
    }
    (errors, info)
}

/// In what a copy differs from the good one, bits of [`differ`].
fn difference(good: &ScrubObject, copy: &ScrubObject) -> u64 {
    let unequal = |a: Option<u32>, b: Option<u32>| matches!((a, b), (Some(a), Some(b)) if a != b);
    let mut d = 0;
    if copy.size != good.size {
        d |= differ::SIZE;
    }
    if unequal(copy.data_digest, good.data_digest) {
        d |= differ::DATA;
    }
    if unequal(copy.omap_digest, good.omap_digest) {
        d |= differ::OMAP;
    }
    for (name, value) in &good.attrs {
        d |= match attr(copy, name) {
            Some(v) if v == value => 0,
            Some(_) if name == INFO_ATTR => differ::INFO,
            Some(_) if name == SNAPSET_ATTR => differ::SNAPSET,
            Some(_) => differ::ATTR_VALUE,
            None if name == INFO_ATTR || name == SNAPSET_ATTR => 0,
            None => differ::ATTR_NAME,
        };
    }
    if copy.attrs.iter().any(|(name, _)| attr(good, name).is_none()) {
        d |= differ::ATTR_NAME;
    }
    d
}

/// Compares all copies of an object; `None` if they are good and equal.
///
/// The copy to trust is, among those that are sound by themselves, one of the newest version;
/// of these one that most others equal; of these the primary's, else the lowest OSD's.
pub(crate) fn compare(
    copies: &BTreeMap<Peer, Option<ScrubObject>>,
    primary: Peer,
) -> Option<Finding> {
    let examined: BTreeMap<Peer, (u64, ObjectInfo)> =
        copies.iter().map(|(o, c)| (*o, examine(c.as_ref(), |i| i.size))).collect();
    let sound: Vec<(Peer, &ScrubObject, EVersion)> = copies
        .iter()
        .filter_map(|(o, c)| {
            let (errors, info) = examined.get(o)?;
            c.as_ref().filter(|_| *errors == 0).map(|c| (*o, c, info.version))
        })
        .collect();
    let alike =
        |c: &ScrubObject| sound.iter().filter(|(_, other, _)| difference(c, other) == 0).count();
    let good = sound
        .iter()
        .max_by_key(|(o, c, version)| (*version, alike(c), *o == primary, std::cmp::Reverse(*o)));
    let mut found = Finding {
        good: good.map(|(o, ..)| *o),
        info: good.and_then(|(o, ..)| examined.get(o)).map(|(_, i)| *i).unwrap_or_default(),
        ..Finding::default()
    };
    for (osd, copy) in copies {
        let mut errors = examined.get(osd).map_or(0, |(e, _)| *e);
        let d = match (good, copy) {
            (Some((g, good, _)), Some(c)) if g != osd => difference(good, c),
            _ => 0,
        };
        if d & differ::SIZE != 0 {
            errors |= shard::SIZE_MISMATCH_INFO;
        }
        found.errors |= d;
        let deep = errors & !shard::READ_ERROR == 0 && d & !(differ::DATA | differ::OMAP) == 0;
        found
            .shards
            .insert(*osd, Shard { errors, copy: copy.clone(), bad: errors != 0 || d != 0, deep });
    }
    found.shards.values().any(|s| s.bad).then_some(found)
}

/// Compares the shards of an object of an erasure-coded pool; `None` if all are sound and alike.
///
/// The bytes of shards differ by nature. What they have in common is judged: each is there, its
/// bytes hold their checksums, it is as long as a shard of an object of its object info's size is,
/// and all have the newest version and the same attributes. Which attributes are right most shards
/// of the newest version say, of as many the primary, else the lowest. A bad shard is rebuilt from
/// `k` others: with fewer sound ones that are alike there is nothing to trust, and what is left is
/// not touched.
pub(crate) fn compare_shards(
    copies: &BTreeMap<Peer, Option<ScrubObject>>,
    shape: &Shape,
    primary: Peer,
) -> Option<Finding> {
    let length = |i: &ObjectInfo| shape.shard_len(i.size);
    let examined: BTreeMap<Peer, (u64, ObjectInfo)> =
        copies.iter().map(|(o, c)| (*o, examine(c.as_ref(), length))).collect();
    let sound =
        |o: &Peer| examined.get(o).filter(|(errors, _)| *errors == 0).map(|(_, i)| i.version);
    let newest = copies.keys().filter_map(sound).max();
    let whole: Vec<(Peer, &ScrubObject)> = copies
        .iter()
        .filter_map(|(o, c)| {
            Some((*o, c.as_ref().filter(|_| newest.is_some() && sound(o) == newest)?))
        })
        .collect();
    // What is the same for all shards; none has an omap.
    let apart = |a: &ScrubObject, b: &ScrubObject| {
        difference(a, b) & !(differ::SIZE | differ::DATA | differ::OMAP)
    };
    let alike = |c: &ScrubObject| whole.iter().filter(|(_, other)| apart(c, other) == 0).count();
    let model = whole.iter().max_by_key(|(o, c)| (alike(c), *o == primary, std::cmp::Reverse(*o)));
    let enough = model.is_some_and(|(_, c)| alike(c) >= shape.k);
    let mut found = Finding {
        good: model.map(|(o, _)| *o).filter(|_| enough),
        info: model.and_then(|(o, _)| examined.get(o)).map(|(_, i)| *i).unwrap_or_default(),
        ..Finding::default()
    };
    for (o, (errors, info)) in &examined {
        let copy = copies.get(o).cloned().flatten();
        let d = match (model, &copy) {
            _ if *errors != 0 => 0,
            (Some(_), _) if Some(info.version) != newest => differ::INFO,
            (Some((_, model)), Some(c)) => apart(model, c),
            _ => 0,
        };
        found.errors |= d;
        let deep = errors & !shard::READ_ERROR == 0 && d == 0;
        found.shards.insert(*o, Shard { errors: *errors, copy, bad: d != 0 || *errors != 0, deep });
    }
    found.shards.values().any(|s| s.bad).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(version: u64, size: u64, data: u32) -> ScrubObject {
        let info = ObjectInfo { version: EVersion::new(1, version), size, ..ObjectInfo::default() };
        ScrubObject {
            size,
            attrs: vec![
                (Bytes::from_static(INFO_ATTR), info.to_attr()),
                ("_user".into(), "v".into()),
            ],
            omap_digest: Some(1),
            data_digest: Some(data),
            ..ScrubObject::default()
        }
    }

    fn run(copies: [Option<ScrubObject>; 3]) -> Option<Finding> {
        compare(&(0..).map(Peer::whole).zip(copies).collect(), Peer::whole(0))
    }

    #[test]
    fn equal_copies_are_no_finding_whatever_was_not_read() {
        let c = copy(3, 10, 7);
        assert_eq!(run([Some(c.clone()), Some(c.clone()), Some(c.clone())]), None);
        let shallow = ScrubObject { data_digest: None, omap_digest: None, ..c.clone() };
        assert_eq!(run([Some(c.clone()), Some(shallow), Some(c)]), None);
    }

    #[test]
    fn a_copy_that_fails_its_checksum_is_bad_even_at_the_primary() {
        let c = copy(3, 10, 7);
        let rotten = ScrubObject { read_error: true, data_digest: None, ..c.clone() };
        let f = run([Some(rotten), Some(c.clone()), Some(c)]).unwrap();
        assert_eq!((f.good.map(|p| p.osd), f.errors, f.count()), (Some(1), 0, (0, 1)));
        assert_eq!(f.shards[&Peer::whole(0)].errors, shard::READ_ERROR);
        assert!(
            f.shards[&Peer::whole(0)].bad
                && !f.shards[&Peer::whole(1)].bad
                && !f.shards[&Peer::whole(2)].bad
        );
    }

    #[test]
    fn most_copies_win_over_the_primary_and_the_newest_over_most() {
        let f = run([Some(copy(3, 10, 8)), Some(copy(3, 10, 7)), Some(copy(3, 10, 7))]).unwrap();
        assert_eq!((f.good.map(|p| p.osd), f.errors, f.count()), (Some(1), differ::DATA, (0, 1)));
        let f = run([Some(copy(4, 10, 8)), Some(copy(3, 10, 7)), Some(copy(3, 10, 7))]).unwrap();
        assert_eq!(
            (f.good.map(|p| p.osd), f.errors & differ::INFO, f.count()),
            (Some(0), differ::INFO, (2, 0))
        );
    }

    #[test]
    fn missing_truncated_and_undecodable_copies_are_named() {
        let c = copy(3, 10, 7);
        let mut short = c.clone();
        short.size = 4;
        let f = run([None, Some(short), Some(c.clone())]).unwrap();
        assert_eq!(f.good, Some(Peer::whole(2)));
        assert_eq!(f.shards[&Peer::whole(0)].errors, shard::MISSING);
        assert_eq!(
            f.shards[&Peer::whole(1)].errors,
            shard::OBJ_SIZE_INFO_MISMATCH | shard::SIZE_MISMATCH_INFO
        );
        assert_eq!((f.errors, f.count()), (differ::SIZE, (2, 0)));
        let mut garbled = c.clone();
        garbled.attrs[0].1 = "?".into();
        let mut bare = c.clone();
        bare.attrs.clear();
        let f = run([Some(c), Some(garbled), Some(bare)]).unwrap();
        assert_eq!(
            (f.shards[&Peer::whole(1)].errors, f.shards[&Peer::whole(2)].errors),
            (shard::INFO_CORRUPTED, shard::INFO_MISSING)
        );
        assert_eq!(f.errors, differ::INFO | differ::ATTR_NAME);
    }

    #[test]
    fn attributes_and_omaps_are_compared() {
        let c = copy(3, 10, 7);
        let mut other = c.clone();
        other.attrs[1].1 = "w".into();
        let omap = ScrubObject { omap_digest: Some(2), ..c.clone() };
        let f = run([Some(c), Some(other), Some(omap)]).unwrap();
        assert_eq!((f.errors, f.count()), (differ::ATTR_VALUE | differ::OMAP, (1, 1)));
    }

    #[test]
    fn without_a_sound_copy_nothing_is_trusted() {
        let rotten = ScrubObject { read_error: true, ..copy(3, 10, 7) };
        let f = run([Some(rotten), None, None]).unwrap();
        assert_eq!((f.good, f.count()), (None, (2, 1)));
    }

    /// Shards of an object of 10 bytes are 8 bytes long.
    const SHAPE: Shape = Shape { k: 2, m: 1, unit: 4 };

    fn piece(version: u64, data: u32) -> ScrubObject {
        ScrubObject { size: 8, ..copy(version, 10, data) }
    }

    fn shards(all: [Option<ScrubObject>; 3]) -> Option<Finding> {
        let all = (0i8..).zip(all).map(|(i, c)| (Peer::new(i32::from(i), i), c)).collect();
        compare_shards(&all, &SHAPE, Peer::new(0, 0))
    }

    #[test]
    fn shards_of_other_bytes_are_alike_and_a_bad_one_is_named() {
        let with = |third| shards([Some(piece(3, 7)), Some(piece(3, 8)), third]);
        assert_eq!(with(Some(piece(3, 9))), None);
        let rotten = ScrubObject { read_error: true, data_digest: None, ..piece(3, 9) };
        let short = ScrubObject { size: 4, ..piece(3, 9) };
        let long = ScrubObject { size: 10, ..piece(3, 9) };
        let mut other = piece(3, 9);
        other.attrs[1].1 = "w".into();
        let mut none = piece(3, 9);
        none.attrs.pop();
        let mut more = piece(3, 9);
        more.attrs.push(("_x".into(), "".into()));
        for (third, errors, differs, count) in [
            (None, shard::MISSING, 0, (1, 0)),
            (Some(rotten), shard::READ_ERROR, 0, (0, 1)),
            (Some(piece(2, 9)), 0, differ::INFO, (1, 0)),
            // The object info says what it always did; the shard's bytes are gone.
            (Some(short), shard::OBJ_SIZE_INFO_MISMATCH, 0, (1, 0)),
            (Some(long), shard::OBJ_SIZE_INFO_MISMATCH, 0, (1, 0)),
            (Some(other), 0, differ::ATTR_VALUE, (1, 0)),
            (Some(none), 0, differ::ATTR_NAME, (1, 0)),
            (Some(more), 0, differ::ATTR_NAME, (1, 0)),
        ] {
            let f = with(third).unwrap();
            let bad = &f.shards[&Peer::new(2, 2)];
            assert_eq!((bad.bad, bad.errors, f.errors, f.count()), (true, errors, differs, count));
            assert_eq!((f.good, f.info.version), (Some(Peer::new(0, 0)), EVersion::new(1, 3)));
        }
    }

    #[test]
    fn most_shards_say_which_attributes_are_right_and_fewer_than_k_sound_ones_are_not_trusted() {
        let mut other = piece(3, 9);
        other.attrs[1].1 = "w".into();
        // The primary is outvoted.
        let f = shards([Some(other.clone()), Some(piece(3, 8)), Some(piece(3, 9))]).unwrap();
        assert_eq!((f.good, f.count()), (Some(Peer::new(1, 1)), (1, 0)));
        assert!(f.shards[&Peer::new(0, 0)].bad);
        let short = ScrubObject { size: 0, ..piece(3, 9) };
        for (second, third, bad) in [
            (Some(short.clone()), None, 2),
            (Some(short.clone()), Some(short), 2),
            // One has a write that the others lack: neither the new nor the old can be made of it
            // alone.
            (Some(piece(2, 8)), Some(piece(2, 9)), 2),
            (Some(other), None, 2),
        ] {
            let f = shards([Some(piece(3, 7)), second, third]).unwrap();
            assert_eq!((f.good, f.count().0), (None, bad));
        }
    }
}
