//! What a scrub counts of a PG, to be compared with what the PG counts of itself.
//!
//! Writes go on beside a scrub. What they change of objects that the scrub has behind it changes both counts; what they
//! change of others changes the PG's own, and the scrub finds it in its maps: writes to a chunk's objects wait
//! while its maps are made, and those under way before are durable by then.

use super::compare::Finding;
use crate::exec::{INFO_ATTR, ObjectInfo, StatDelta};
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::PgCounts;
use spirula_messages::cluster::scrub::ScrubObject;
use spirula_types::Peer;
use std::collections::BTreeMap;

/// Objects counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    objects: i64,
    bytes: i64,
    omap_objects: i64,
    omap_keys: i64,
    omap_bytes: i64,
    /// Of some object no copy says what it is; or not all omaps were read.
    unsure: bool,
    omap_unsure: bool,
}

impl Tally {
    /// All copies of an object, and what is wrong with them.
    pub fn add(&mut self, copies: &BTreeMap<Peer, Option<ScrubObject>>, found: Option<&Finding>) {
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
        self.bytes += info.size.cast_signed();
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
    }

    /// What is wrong with these counts, in words; `None` if nothing is, or it cannot be told.
    pub fn mismatch(&self, c: &PgCounts) -> Option<String> {
        let same = (self.objects, self.bytes, self.omap_objects) == (c.objects, c.bytes, c.omap_objects);
        (!same && !self.unsure).then(|| {
            format!(
                "stat mismatch, got {}/{} objects, {}/{} omap, {}/{} bytes",
                self.objects, c.objects, self.omap_objects, c.omap_objects, self.bytes, c.bytes
            )
        })
    }

    /// Corrects these counts.
    pub fn correct(&self, c: &mut PgCounts) {
        if !self.unsure {
            (c.objects, c.bytes, c.omap_objects, c.estimated) = (self.objects, self.bytes, self.omap_objects, false);
        }
    }

    /// Sets what only reading everything shows; nobody counts it otherwise. True if that changes something.
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

    fn three(copy: &ScrubObject) -> BTreeMap<Peer, Option<ScrubObject>> {
        (0..3).map(|o| (Peer::whole(o), Some(copy.clone()))).collect()
    }

    #[test]
    fn counts_are_those_of_the_objects_and_of_the_writes_after() {
        let mut t = Tally::default();
        t.add(&three(&copy(100, None)), None);
        t.add(&three(&copy(20, Some(7))), None);
        let mut c = PgCounts { objects: 2, bytes: 120, omap_objects: 1, reads: 5, ..PgCounts::default() };
        assert_eq!(t.mismatch(&c), None);
        assert!(t.correct_omaps(&mut c) && (c.omap_keys, c.omap_bytes) == (7, 70));
        let d = StatDelta { objects: 1, bytes: 30, ..StatDelta::default() };
        t.wrote(&d);
        assert_eq!(t.mismatch(&c).unwrap(), "stat mismatch, got 3/2 objects, 1/1 omap, 150/120 bytes");
        c.estimated = true;
        t.correct(&mut c);
        assert_eq!((t.mismatch(&c), c.objects, c.bytes, c.estimated, c.reads), (None, 3, 150, false, 5));
    }

    #[test]
    fn what_no_copy_tells_leaves_the_counts_as_they_are() {
        let mut t = Tally::default();
        t.add(&three(&copy(100, None)), None);
        // All three are bad.
        t.add(&three(&copy(20, None)), Some(&Finding::default()));
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
        t.add(&copies, Some(&found));
        assert_eq!(t.mismatch(&PgCounts { objects: 1, bytes: 100, ..PgCounts::default() }), None);
    }
}
