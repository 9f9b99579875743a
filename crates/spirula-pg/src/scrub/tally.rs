//! What a scrub counts of a PG, to be compared with what the PG counts of itself.
//!
//! Writes go on beside a scrub. What they change of objects that the scrub has behind it changes
//! both counts; what they change of others changes the PG's own, and the scrub finds it in its
//! maps: writes to a chunk's objects wait while its maps are made, and those under way before are
//! durable by then.

use super::compare::Finding;
use crate::exec::{INFO_ATTR, ObjectInfo, SNAPSET_ATTR, SnapSet, StatDelta};
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::PgCounts;
use spirula_messages::cluster::scrub::ScrubObject;
use spirula_types::{HObject, Peer, SNAP_HEAD};
use std::collections::BTreeMap;

/// Objects counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    objects: i64,
    bytes: i64,
    omap_objects: i64,
    omap_keys: i64,
    omap_bytes: i64,
    clones: i64,
    whiteouts: i64,
    /// Of some object no copy says what it is; or not all omaps were read.
    unsure: bool,
    omap_unsure: bool,
}

impl Tally {
    /// All copies of an object, and what is wrong with them.
    pub fn add(
        &mut self,
        copy_of: &HObject,
        copies: &BTreeMap<Peer, Option<ScrubObject>>,
        found: Option<&Finding>,
    ) {
        let good = match found {
            Some(f) => f.good.and_then(|g| copies.get(&g)),
            None => copies.values().next(),
        };
        let Some(copy) = good.and_then(Option::as_ref) else {
            self.unsure = true;
            return;
        };
        let attr = copy.attrs.iter().find(|(name, _)| name == INFO_ATTR);
        let Some(Ok(info)) = attr.map(|(_, v)| from_slice::<ObjectInfo>(v)) else {
            self.unsure = true;
            return;
        };
        self.objects += 1;
        if copy_of.snap == SNAP_HEAD {
            // What clones have for themselves alone the head's history says.
            let history = copy.attrs.iter().find(|(name, _)| name == SNAPSET_ATTR);
            let own = history
                .and_then(|(_, v)| from_slice::<SnapSet>(v).ok())
                .map_or(0, |set| set.own_bytes());
            self.bytes += info.size.cast_signed() + own;
        } else {
            self.clones += 1;
        }
        self.whiteouts += i64::from(info.has(ObjectInfo::WHITEOUT));
        self.omap_objects += i64::from(info.has(ObjectInfo::OMAP));
        self.omap_keys += copy.omap_keys.cast_signed();
        self.omap_bytes += copy.omap_bytes.cast_signed();
        self.omap_unsure |= copy.omap_digest.is_none();
    }

    /// A write changed an object that was counted.
    pub fn wrote(&mut self, d: &StatDelta) {
        self.objects += d.objects;
        self.bytes += d.bytes;
        self.omap_objects += d.omap_objects;
        self.clones += d.clones;
        self.whiteouts += d.whiteouts;
    }

    /// What is wrong with these counts, in words; `None` if nothing is, or it cannot be told.
    pub fn mismatch(&self, c: &PgCounts) -> Option<String> {
        let same = (self.objects, self.bytes, self.omap_objects)
            == (c.objects, c.bytes, c.omap_objects)
            && (self.clones, self.whiteouts) == (c.clones, c.whiteouts);
        (!same && !self.unsure).then(|| {
            format!(
                "stat mismatch, got {}/{} objects, {}/{} clones, {}/{} omap, {}/{} whiteouts, \
                    {}/{} bytes",
                self.objects,
                c.objects,
                self.clones,
                c.clones,
                self.omap_objects,
                c.omap_objects,
                self.whiteouts,
                c.whiteouts,
                self.bytes,
                c.bytes
            )
        })
    }

    /// Corrects these counts.
    pub fn correct(&self, c: &mut PgCounts) {
        if !self.unsure {
            (c.objects, c.bytes, c.omap_objects, c.estimated) =
                (self.objects, self.bytes, self.omap_objects, false);
            (c.clones, c.whiteouts) = (self.clones, self.whiteouts);
        }
    }

    /// Sets what only reading everything shows; nobody counts it otherwise. True if that changes
    /// something.
    pub fn correct_omaps(&self, c: &mut PgCounts) -> bool {
        let before = (c.omap_keys, c.omap_bytes);
        if !self.unsure && !self.omap_unsure {
            (c.omap_keys, c.omap_bytes) = (self.omap_keys, self.omap_bytes);
        }
        before != (c.omap_keys, c.omap_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::ObjectClone;
    use bytes::Bytes;
    use spirula_types::EVersion;

    fn copy(size: u64, omap: Option<u64>) -> ScrubObject {
        let mut info = ObjectInfo { version: EVersion::new(1, 3), size, ..ObjectInfo::default() };
        info.set(ObjectInfo::OMAP, omap.is_some());
        let keys = omap.unwrap_or(0);
        let attrs = vec![(Bytes::from_static(INFO_ATTR), info.to_attr())];
        ScrubObject {
            size,
            attrs,
            omap_digest: Some(1),
            omap_keys: keys,
            omap_bytes: keys * 10,
            ..ScrubObject::default()
        }
    }

    fn head() -> HObject {
        crate::exec::tests::object("o")
    }

    fn three(copy: &ScrubObject) -> BTreeMap<Peer, Option<ScrubObject>> {
        (0..3).map(|o| (Peer::whole(o), Some(copy.clone()))).collect()
    }

    /// A clone has bytes only where it shares none, and these its head tells.
    #[test]
    fn clones_and_whiteouts_are_objects_and_count_what_is_theirs_alone() {
        let mut t = Tally::default();
        t.add(&HObject { snap: 2, ..head() }, &three(&copy(100, None)), None);
        let mut whiteout = copy(0, None);
        let info = ObjectInfo {
            version: EVersion::new(1, 3),
            flags: ObjectInfo::WHITEOUT,
            ..ObjectInfo::default()
        };
        let clone = ObjectClone { id: 2, snaps: vec![2], overlap: vec![(10, 30)], size: 100 };
        let set = SnapSet { seq: 2, clones: vec![clone] };
        whiteout.attrs = vec![
            (Bytes::from_static(INFO_ATTR), info.to_attr()),
            (Bytes::from_static(SNAPSET_ATTR), spirula_encoding::to_vec(&set).into()),
        ];
        t.add(&head(), &three(&whiteout), None);
        let c = PgCounts { objects: 2, clones: 1, whiteouts: 1, bytes: 70, ..PgCounts::default() };
        assert_eq!(t.mismatch(&c), None);
    }

    #[test]
    fn counts_are_those_of_the_objects_and_of_the_writes_after() {
        let mut t = Tally::default();
        t.add(&head(), &three(&copy(100, None)), None);
        t.add(&head(), &three(&copy(20, Some(7))), None);
        let mut c =
            PgCounts { objects: 2, bytes: 120, omap_objects: 1, reads: 5, ..PgCounts::default() };
        assert_eq!(t.mismatch(&c), None);
        assert!(t.correct_omaps(&mut c) && (c.omap_keys, c.omap_bytes) == (7, 70));
        let d = StatDelta { objects: 1, bytes: 30, ..StatDelta::default() };
        t.wrote(&d);
        assert_eq!(
            t.mismatch(&c).unwrap(),
            "stat mismatch, got 3/2 objects, 0/0 clones, 1/1 omap, 0/0 whiteouts, 150/120 bytes"
        );
        c.estimated = true;
        t.correct(&mut c);
        assert_eq!(
            (t.mismatch(&c), c.objects, c.bytes, c.estimated, c.reads),
            (None, 3, 150, false, 5)
        );
    }

    #[test]
    fn what_no_copy_tells_leaves_the_counts_as_they_are() {
        let mut t = Tally::default();
        t.add(&head(), &three(&copy(100, None)), None);
        // All three are bad.
        t.add(&head(), &three(&copy(20, None)), Some(&Finding::default()));
        let mut c = PgCounts { objects: 9, ..PgCounts::default() };
        t.correct(&mut c);
        assert_eq!((t.mismatch(&c), c.objects), (None, 9));
    }

    #[test]
    fn of_unequal_copies_the_good_one_counts() {
        let mut copies = three(&copy(100, None));
        copies.insert(Peer::whole(0), None);
        let found = Finding { good: Some(Peer::whole(2)), ..Finding::default() };
        let mut t = Tally::default();
        t.add(&head(), &copies, Some(&found));
        assert_eq!(t.mismatch(&PgCounts { objects: 1, bytes: 100, ..PgCounts::default() }), None);
    }
}
