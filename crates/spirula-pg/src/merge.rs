//! Merging an authoritative log into a copy's: what becomes missing, what must go.
//!
//! The same computation serves three: a primary that takes over another's log, a member that
//! gets its primary's, and a primary that works out what such a member will lack.
//!
//! Entries of the copy after the common position are divergent: they never took effect. What
//! they did to an object is undone by recovery: the object becomes missing in the version the
//! authoritative history gives it, or goes if that history does not have it. A divergent
//! delete must not stay deleted, and an object that the authoritative history deleted must not
//! come back because a divergent entry wrote it.
//!
//! What differs between the version wanted and the one that is stored is summed up from the entries
//! between them; it may come to more than differs, and to all of it where no chain of entries leads
//! from one to the other.
//!
//! In an erasure-coded PG a copy takes divergent entries back by itself: the object then has its
//! version before, and misses nothing.

use crate::log::{EntryKind, LogEntry, PgLog};
use crate::missing::Missing;
use spirula_messages::cluster::pg::MissingItem;
use spirula_types::{Dirty, EVersion, HObject};
use std::collections::{BTreeMap, BTreeSet};

/// Undoes the entries of `log` after `common`, then applies `delta`, the authoritative entries
/// after it (oldest first). Objects after `last_backfill` are not the log's business. Returns
/// the objects that the copy must delete, if it has them; with `undo`, the entries that it must
/// take back before that are added there, the newest first.
pub fn merge(
    log: &mut PgLog,
    missing: &mut Missing,
    last_backfill: &HObject,
    common: EVersion,
    delta: Vec<LogEntry>,
    undo: Option<&mut Vec<LogEntry>>,
) -> BTreeSet<HObject> {
    let removed = lacking(log.rewind(common), missing, last_backfill, delta.iter(), undo);
    log.extend(delta.into_iter());
    removed
}

/// What [`merge`] finds out, without the log: `divergent` is what was taken back of it, oldest
/// first.
pub(crate) fn lacking<'a>(
    divergent: Vec<LogEntry>,
    missing: &mut Missing,
    last_backfill: &HObject,
    delta: impl Iterator<Item = &'a LogEntry> + Clone,
    undo: Option<&mut Vec<LogEntry>>,
) -> BTreeSet<HObject> {
    let mut removed = BTreeSet::new();
    // Objects whose stored content no history describes.
    let mut spoiled: BTreeSet<HObject> = BTreeSet::new();
    let mut priors: BTreeMap<HObject, EVersion> = BTreeMap::new();
    let divergent = divergent
        .into_iter()
        .filter(|e| e.kind != EntryKind::Nothing && e.object <= *last_backfill);
    if let Some(undone) = undo {
        for e in divergent.rev() {
            match missing.get(&e.object).map(|i| i.have) {
                // Stored as the entry left it.
                None => undone.push(e),
                Some(_) if e.prior == EVersion::default() => {
                    missing.remove(&e.object);
                    removed.insert(e.object);
                }
                // Never got the divergent version: it still has the one before.
                Some(have) if have == e.prior => drop(missing.remove(&e.object)),
                Some(have) => missing.set(e.object, e.prior, have),
            }
        }
    } else {
        for e in divergent {
            priors.entry(e.object).or_insert(e.prior);
        }
    }
    // Seldom is anything divergent, and there may be thousands of entries.
    let changes = delta.clone().filter(|e| e.kind != EntryKind::Nothing && !priors.is_empty());
    let newer: BTreeSet<&HObject> = changes.map(|e| &e.object).collect();
    for (object, prior) in priors {
        let item = missing.get(&object).cloned();
        let have = item.as_ref().map(|i| i.have);
        let intact = have == Some(prior);
        if prior == EVersion::default() {
            missing.remove(&object);
            removed.insert(object);
        } else if intact {
            // Never got the divergent version: it still has the one before.
            missing.remove(&object);
        } else if newer.contains(&object) {
            missing.remove(&object);
            match item {
                None => drop(spoiled.insert(object)),
                // What differs from a version between is no more than what differed from the
                // divergent one.
                Some(i) => missing.put(object, MissingItem { need: prior, ..i }),
            }
        } else {
            let item = item.unwrap_or_default();
            missing.put(object, MissingItem { need: prior, ..item });
        }
    }
    for e in delta {
        if e.object > *last_backfill {
            continue;
        }
        match e.kind {
            EntryKind::Nothing => {}
            EntryKind::Delete => {
                missing.remove(&e.object);
                spoiled.remove(&e.object);
                removed.insert(e.object.clone());
            }
            EntryKind::Modify => {
                missing.written(&e.object, e.version, &e.dirty, || {
                    if spoiled.remove(&e.object) || removed.contains(&e.object) {
                        MissingItem::default()
                    } else {
                        MissingItem {
                            have: e.prior,
                            dirty: Dirty::nothing(),
                            ..MissingItem::default()
                        }
                    }
                });
            }
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use spirula_encoding::UTime;
    use spirula_types::{EntityName, ReqId};

    fn o(name: &'static str) -> HObject {
        HObject::head(1, Bytes::new(), Bytes::new(), name.into())
    }

    fn v(epoch: u32, version: u64) -> EVersion {
        EVersion::new(epoch, version)
    }

    fn e(version: EVersion, prior: EVersion, object: &'static str, kind: EntryKind) -> LogEntry {
        LogEntry {
            version,
            prior,
            user_version: version.version,
            reqid: ReqId {
                name: EntityName::client(1),
                tid: version.version,
                inc: version.epoch as i32,
            },
            result: 0,
            kind,
            object: o(object),
            mtime: UTime::ZERO,
            home: 0,
            dirty: Dirty::Parts {
                data: vec![(version.version * 8192, version.version * 8192 + 4096)],
                omap: false,
            },
            returns: Vec::new(),
        }
    }

    use EntryKind::{Delete, Modify};

    struct Case {
        log: PgLog,
        missing: Missing,
    }

    fn copy(entries: Vec<LogEntry>) -> Case {
        Case { log: PgLog::new(EVersion::default(), entries), missing: Missing::default() }
    }

    fn names(set: &BTreeSet<HObject>) -> Vec<String> {
        set.iter().map(|o| String::from_utf8_lossy(&o.name).into_owned()).collect()
    }

    fn lacks(m: &Missing, name: &'static str) -> Option<(EVersion, EVersion)> {
        m.get(&o(name)).map(|i| (i.need, i.have))
    }

    #[test]
    fn a_copy_that_is_behind_misses_what_changed_and_deletes_what_went() {
        let mut c = copy(vec![e(v(1, 1), v(0, 0), "a", Modify), e(v(1, 2), v(0, 0), "b", Modify)]);
        let delta = [
            e(v(2, 3), v(1, 1), "a", Modify),
            e(v(2, 4), v(1, 2), "b", Delete),
            e(v(2, 5), v(0, 0), "c", Modify),
            e(v(2, 6), v(2, 3), "a", Modify),
        ];
        let removed =
            merge(&mut c.log, &mut c.missing, &HObject::max(), v(1, 2), delta.to_vec(), None);
        assert_eq!(names(&removed), ["b"]);
        assert_eq!(lacks(&c.missing, "a"), Some((v(2, 6), v(1, 1))));
        assert_eq!(lacks(&c.missing, "c"), Some((v(2, 5), v(0, 0))));
        assert_eq!(c.log.head(), v(2, 6));
    }

    #[test]
    fn divergent_creation_goes_and_divergent_change_is_fetched_anew() {
        let mut c = copy(vec![
            e(v(1, 1), v(0, 0), "old", Modify),
            e(v(2, 2), v(0, 0), "new", Modify),
            e(v(2, 3), v(1, 1), "old", Modify),
            e(v(2, 4), v(2, 2), "new", Modify),
        ]);
        let removed = merge(&mut c.log, &mut c.missing, &HObject::max(), v(1, 1), Vec::new(), None);
        assert_eq!(names(&removed), ["new"]);
        assert_eq!(lacks(&c.missing, "old"), Some((v(1, 1), v(0, 0))));
        assert_eq!(c.missing.len(), 1);
    }

    #[test]
    fn divergent_delete_is_undone() {
        let mut c = copy(vec![e(v(1, 1), v(0, 0), "a", Modify), e(v(2, 2), v(1, 1), "a", Delete)]);
        let removed = merge(&mut c.log, &mut c.missing, &HObject::max(), v(1, 1), Vec::new(), None);
        assert!(removed.is_empty());
        assert_eq!(lacks(&c.missing, "a"), Some((v(1, 1), v(0, 0))));
    }

    #[test]
    fn object_deleted_by_history_does_not_come_back_through_a_divergent_write() {
        let mut c = copy(vec![e(v(1, 1), v(0, 0), "a", Modify), e(v(2, 2), v(1, 1), "a", Modify)]);
        let delta = [e(v(3, 2), v(1, 1), "a", Delete)];
        let removed =
            merge(&mut c.log, &mut c.missing, &HObject::max(), v(1, 1), delta.to_vec(), None);
        assert_eq!(names(&removed), ["a"]);
        assert!(c.missing.is_empty());
    }

    #[test]
    fn divergent_content_is_not_taken_for_the_version_before() {
        let mut c = copy(vec![e(v(1, 1), v(0, 0), "a", Modify), e(v(2, 2), v(1, 1), "a", Modify)]);
        let delta = [e(v(3, 2), v(1, 1), "a", Modify)];
        merge(&mut c.log, &mut c.missing, &HObject::max(), v(1, 1), delta.to_vec(), None);
        assert_eq!(lacks(&c.missing, "a"), Some((v(3, 2), v(0, 0))));
    }

    #[test]
    fn object_missing_in_a_divergent_version_is_present_if_the_one_before_is_stored() {
        let mut c = copy(vec![e(v(1, 1), v(0, 0), "a", Modify), e(v(2, 2), v(1, 1), "a", Modify)]);
        c.missing.set(o("a"), v(2, 2), v(1, 1));
        let removed = merge(&mut c.log, &mut c.missing, &HObject::max(), v(1, 1), Vec::new(), None);
        assert!(removed.is_empty() && c.missing.is_empty());
    }

    #[test]
    fn objects_not_yet_backfilled_are_left_to_the_backfill() {
        let mut c = copy(vec![]);
        let delta = [e(v(1, 1), v(0, 0), "a", Modify), e(v(1, 2), v(0, 0), "b", Modify)];
        let (first, last) = if o("a") < o("b") { ("a", "b") } else { ("b", "a") };
        merge(&mut c.log, &mut c.missing, &o(first), v(0, 0), delta.to_vec(), None);
        assert!(lacks(&c.missing, first).is_some() && lacks(&c.missing, last).is_none());
    }

    #[test]
    fn what_can_be_taken_back_is_not_missing() {
        let mut c = copy(vec![
            e(v(1, 1), v(0, 0), "a", Modify),
            e(v(2, 2), v(1, 1), "a", Modify),
            e(v(2, 3), v(0, 0), "new", Modify),
            e(v(2, 4), v(2, 2), "a", Delete),
        ]);
        let mut undone = Vec::new();
        let delta = [e(v(3, 2), v(1, 1), "a", Modify)];
        let removed = merge(
            &mut c.log,
            &mut c.missing,
            &HObject::max(),
            v(1, 1),
            delta.to_vec(),
            Some(&mut undone),
        );
        assert!(removed.is_empty());
        assert_eq!(
            undone.iter().map(|e| e.version).collect::<Vec<_>>(),
            [v(2, 4), v(2, 3), v(2, 2)]
        );
        assert_eq!(lacks(&c.missing, "a"), Some((v(3, 2), v(1, 1))));
        assert_eq!(c.missing.len(), 1);
    }
}
