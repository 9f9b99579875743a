//! Unfound objects: listing them, and giving them up by an administrator's word.
//!
//! An unfound object does not hold up the recovery of others: a backfill goes on past it, but does
//! not count as done before it is found or given up. To give one up is a write like any other, with
//! its entry in the log: the object is removed, or what is here of it, an older version, becomes
//! its newest. What its snapshots had then agrees no more with its history, and is made to
//! (`snap::trim`).

use crate::api::{LogLevel, PgEffect, ReadKey};
use crate::core::{Cx, PgCore};
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectState, Prefetch, ReadError, Stamped, StatDelta};
use crate::lead::Lead;
use crate::log::{EntryKind, LogEntry};
use crate::pg::Pg;
use crate::primary::Primary;
use crate::recovery::ReadFor;
use crate::role::Strays;
use crate::write::{Answer, backend};
use serde_json::{Value, json};
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::{CtlBody, MissingItem, PastInterval, PgInfo};
use spirula_types::transaction::ObjectOp;
use spirula_types::{Dirty, EVersion, HObject, Peer, ReqId, errno};
use std::collections::{BTreeMap, BTreeSet};

/// An object's name as Ceph's OSDs dump it.
fn dumped(o: &HObject) -> Value {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    json!({"oid": text(&o.name), "key": text(&o.key), "snapid": o.snap as i64, "hash": o.hash, "max": 0,
        "pool": o.pool, "namespace": text(&o.namespace)})
}

/// What a copy has of an object beside what it lacks, in Ceph's words: ranges as `first~length`.
fn clean_regions(item: Option<&MissingItem>) -> String {
    let item = item.filter(|i| i.have != EVersion::default());
    let (mut clean, mut from) = (Vec::new(), 0);
    let dirty = item.map_or(&Dirty::All, |i| &i.dirty);
    let omap = if let Dirty::Parts { data, omap: differs } = dirty {
        for (first, end) in data {
            if *first > from {
                clean.push(format!("{from}~{}", first - from));
            }
            from = *end;
        }
        if from < u64::MAX {
            clean.push(format!("{from}~{}", u64::MAX - from));
        }
        !differs
    } else {
        false
    };
    let (omap, new) = (u8::from(omap), u8::from(item.is_none()));
    format!("clean_offsets: [{}], clean_omap: {omap}, new_object: {new}", clean.join(","))
}

/// Is this head, or one of its clones, among these? They ascend.
fn waits_for(head: &HObject, unfound: &[HObject]) -> bool {
    let family = head.family_start();
    unfound.get(unfound.partition_point(|u| *u < family)).is_some_and(|u| u.is_of_same_object(head))
}

/// Objects in one answer (Ceph's osd_command_max_records).
const LISTED_MAX: usize = 256;

/// May what is unfound be given up? See [`Pg::may_mark_lost`].
fn may_mark_lost(
    primary: Option<&Primary>,
    core: &PgCore,
    strays: &Strays,
    revert: bool,
) -> Result<usize, (i32, String)> {
    let erasure = core.view.as_ref().and_then(|v| v.pool.as_ref()).is_some_and(|p| p.rules.erasure);
    if revert && erasure {
        return Err((errno::EINVAL, "mode must be 'delete' for ec pool".to_owned()));
    }
    let Some(a) = primary.filter(|a| a.activated) else {
        return Err((errno::EROFS, "not primary".to_owned()));
    };
    let n = a.recovery.unfound.len();
    if n > 0 && !a.unheard(core, strays).is_empty() {
        let why = format!(
            "pg has {n} unfound objects but we haven't probed all sources, not marking lost"
        );
        return Err((errno::EINVAL, why));
    }
    if n > 0 && core.is_premerge() {
        return Err((errno::EAGAIN, "a merge of the pg is pending".to_owned()));
    }
    if n > 0 && !a.serving {
        return Err((errno::EAGAIN, "too few members to write; see min_size".to_owned()));
    }
    Ok(n)
}

impl Pg {
    /// Objects that nobody we know of has, for `pg N list_unfound`, in Ceph's shape, from `after`
    /// on.
    pub fn list_unfound(&self, after: Option<&HObject>) -> Value {
        let Some(a) = self.primary() else {
            return json!({"num_missing": 0, "num_unfound": 0, "objects": [], "state": self.step_name(),
                "available_might_have_unfound": false, "more": false});
        };
        let mut needs: BTreeSet<&HObject> = self.core.missing().iter().map(|(o, _)| o).collect();
        needs.extend(a.peers.values().flat_map(|p| p.missing.iter().map(|(o, _)| o)));
        let mut all = a.recovery.unfound.iter().filter(|o| after.is_none_or(|a| *o > a));
        let row = |o: &HObject| {
            let need = a.lost_version(&self.core, o).unwrap_or_default();
            let have = self.core.missing().get(o).map(|i| i.have).unwrap_or_default();
            json!({
                "oid": dumped(o),
                "need": need.to_string(),
                "have": have.to_string(),
                "flags": "none",
                "clean_regions": clean_regions(self.core.missing().get(o)),
                "locations": [],
            })
        };
        let objects: Vec<Value> = all.by_ref().take(LISTED_MAX).map(row).collect();
        let mut said = serde_json::Map::new();
        if let Some(after) = after {
            said.insert("offset".into(), dumped(after));
        }
        said.insert("num_missing".into(), needs.len().into());
        said.insert("num_unfound".into(), a.recovery.unfound.len().into());
        said.insert("objects".into(), objects.into());
        said.insert("state".into(), self.step_name().into());
        said.insert("available_might_have_unfound".into(), true.into());
        said.insert(
            "might_have_unfound".into(),
            a.might_have_unfound(&self.core, &self.strays).into(),
        );
        said.insert("more".into(), all.next().is_some().into());
        said.into()
    }

    /// May what is unfound be given up? How many objects that are; 0: there are none.
    ///
    /// # Errors
    /// Errno (positive) and the reason, in Ceph's words.
    pub fn may_mark_lost(&self, revert: bool) -> Result<usize, (i32, String)> {
        may_mark_lost(self.primary(), &self.core, &self.strays, revert)
    }
}

impl Primary {
    /// Those that may have what is missing, and what came of asking them; nobody where nothing is
    /// missing.
    pub(crate) fn might_have_unfound(&self, core: &PgCore, strays: &Strays) -> Vec<Value> {
        if core.missing().is_empty() && self.peers.values().all(|p| p.missing.is_empty()) {
            return Vec::new();
        }
        let heard = self.peers.iter().filter(|(_, p)| p.acting).map(|(o, _)| *o);
        let heard =
            heard.chain(self.recovery.sources.keys().copied()).map(|o| (o, "already probed"));
        let all: BTreeMap<Peer, &'static str> =
            self.unheard(core, strays).into_iter().chain(heard).collect();
        all.into_iter().map(|(o, status)| json!({"osd": o.to_string(), "status": status})).collect()
    }

    /// Who may have what is unfound and has not said so, with the reason.
    pub(crate) fn unheard(&self, core: &PgCore, strays: &Strays) -> Vec<(Peer, &'static str)> {
        let Some(view) = &core.view else { return Vec::new() };
        let of_past = core
            .past()
            .iter()
            .filter(|i| i.rw)
            .flat_map(|i| i.acting.iter().map(|p| (*p, i.first)));
        let called = strays.keys().map(|p| (*p, 0));
        let mut all: Vec<(Peer, &'static str)> = Vec::new();
        for (peer, first) in of_past.chain(called) {
            if peer == core.me
                || self.peers.contains_key(&peer)
                || self.recovery.sources.contains_key(&peer)
            {
                continue;
            }
            let status = match view.osds.get(&peer.osd) {
                // Gone for good, by an administrator's word.
                None => continue,
                Some(o) if o.lost_at > first && !o.up => continue,
                Some(o) if !o.up => "osd is down",
                Some(_) if strays.contains_key(&peer) => "querying",
                Some(_)
                    if self.recovery.nothing.contains(&peer)
                        || planted!(core.cfg, UnheardIgnored) =>
                {
                    continue;
                }
                // Whoever holds something calls; but this one may have an older map, or not be
                // heard.
                Some(_) => "not queried",
            };
            if !all.iter().any(|(p, _)| *p == peer) {
                all.push((peer, status));
            }
        }
        all
    }

    /// The version in which an object is unfound. In an erasure-coded PG our own shard may be
    /// there.
    fn lost_version(&self, core: &PgCore, object: &HObject) -> Option<EVersion> {
        let own = core.missing().get(object).map(|i| i.need);
        let theirs =
            || self.peers.values().filter_map(|p| p.missing.get(object)).map(|i| i.need).max();
        own.or_else(theirs)
    }
}

impl Lead<'_> {
    /// Asks those of whom nothing is known what they hold, while something is unfound.
    pub(crate) fn ask_unheard(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now.mono_ms;
        let a = &*self.primary;
        if a.recovery.unfound.is_empty() {
            return;
        }
        if a.recovery.unheard_ms > 0 && now < a.recovery.unheard_ms + self.core.cfg.retry_ms {
            return;
        }
        let unheard = a.unheard(self.core, self.strays);
        let up = |p: &Peer| {
            self.core.view.as_ref().is_some_and(|v| v.is_up(p.osd)) && !self.strays.contains_key(p)
        };
        let whom: Vec<Peer> = unheard.into_iter().map(|(p, _)| p).filter(up).collect();
        whom.into_iter()
            .for_each(|to| self.core.send(to, CtlBody::Query { holders: Vec::new() }, cx));
        self.primary.recovery.unheard_ms = now.max(1);
    }

    /// One of them has said it.
    pub(crate) fn on_unheard(
        &mut self,
        from: Peer,
        info: Option<PgInfo>,
        past: Vec<PastInterval>,
        cx: &mut Cx<'_>,
    ) {
        let a = &mut *self.primary;
        if a.peers.contains_key(&from) {
            return;
        }
        match info {
            None => {
                a.recovery.nothing.insert(from);
            }
            Some(info) => {
                self.strays.insert(from, (info, past));
                self.notified(from, cx);
            }
        }
    }

    /// Gives up what is unfound, after [`Pg::may_mark_lost`] allowed it.
    pub(crate) fn on_mark_lost(&mut self, revert: bool, cx: &mut Cx<'_>) {
        let may = may_mark_lost(Some(self.primary), self.core, self.strays, revert);
        if may.unwrap_or(0) == 0 {
            return;
        }
        let a = &*self.primary;
        let unfound: Vec<HObject> = a.recovery.unfound.iter().cloned().collect();
        if revert && self.must_read_older(&unfound, cx) {
            return; // It comes back here.
        }
        // What a repair has counted of an object in pieces would not be what is left of it.
        self.abort_scrub(cx);
        let text = format!(
            "{} has {} objects unfound and apparently lost, marking",
            self.core.id,
            unfound.len()
        );
        cx.out.push(PgEffect::Log { level: LogLevel::Error, text });
        for o in &unfound {
            self.give_up(o, revert, cx);
        }
        for o in &unfound {
            self.trim_before_others(&o.to_head());
        }
        // Whoever waited for them goes on. Requests that use a clone wait in the queue of its head.
        self.requests.resume(|head| waits_for(head, &unfound));
        self.primary.pump_later = true;
        self.begin_recovery(cx);
        cx.out.push(PgEffect::StateChanged);
    }

    /// Must older versions that are here be read first? What is only not in memory would be deleted
    /// else.
    fn must_read_older(&mut self, unfound: &[HObject], cx: &mut Cx<'_>) -> bool {
        let here = |o: &&HObject| {
            self.core.missing().get(o).is_some_and(|m| m.have != EVersion::default())
        };
        let mut wanted = Vec::new();
        for o in unfound.iter().filter(here) {
            if let Err(ReadError::NotReady(what)) = cx.reader.attr(o, INFO_ATTR) {
                wanted.extend(what.0);
            }
        }
        if wanted.is_empty() {
            return false;
        }
        let n = self.core.seq();
        self.primary.recovery.waits_for(n, ReadFor::Revert);
        cx.out.push(PgEffect::Prefetch(ReadKey::Recovery(n), Prefetch(wanted)));
        true
    }

    /// The object info of an older version that is here.
    fn older(&self, object: &HObject, cx: &Cx<'_>) -> Option<ObjectInfo> {
        let have = self.core.missing().get(object)?.have;
        let info: ObjectInfo = from_slice(&cx.reader.attr(object, INFO_ATTR).ok()??).ok()?;
        (have != EVersion::default() && info.version == have).then_some(info)
    }

    fn give_up(&mut self, object: &HObject, revert: bool, cx: &mut Cx<'_>) {
        let older = if revert { self.older(object, cx) } else { None };
        let Some(lost) = self.primary.lost_version(self.core, object) else { return };
        let version = self.core.next_version(1);
        let Some(info) = self.core.info() else { return };
        let a = &mut *self.primary;
        a.recovery.unfound.remove(object);
        // An older history may name what was purged; clones may be there that none names any more.
        a.trim.forget(object.to_head());
        let last_user_version = info.head.last_user_version;
        self.core.copy.give_up(object, older.is_none()).with_next_write();
        let mut entry = LogEntry {
            version,
            prior: lost,
            user_version: last_user_version,
            reqid: ReqId::default(),
            result: 0,
            kind: EntryKind::Delete,
            object: object.clone(),
            mtime: cx.now.wall,
            home: 0,
            dirty: Dirty::All,
            returns: Vec::new(),
        };
        let mut state = ObjectState::default();
        let ops = match older {
            Some(mut i) => {
                (i.prior_version, i.version) = (i.version, version);
                (entry.kind, entry.user_version) = (EntryKind::Modify, i.user_version);
                (state.exists, state.info) = (true, i);
                vec![ObjectOp::SetAttrs(vec![(INFO_ATTR.into(), i.to_attr())])]
            }
            None => vec![ObjectOp::Remove],
        };
        let removed = entry.kind == EntryKind::Delete;
        let mut writes = vec![Stamped {
            entry,
            ops,
            state,
            size_before: 0,
            source: None,
            stats: StatDelta::default(),
        }];
        // The same for all, also in an erasure-coded pool: nobody has anything to go back to. To
        // those who lack the object an older version is brought.
        let parts = backend::whole(&mut writes);
        self.commit(writes, parts, Answer::default(), cx);
        // Its history and its watchers are those of the older version, which is read again.
        self.requests.forget_object(object);
        let a = &mut *self.primary;
        // Backfills that stood before it: gone there, too; an older version is pushed.
        let targets: Vec<Peer> = a
            .recovery
            .backfills
            .iter()
            .filter(|(_, b)| b.is_under_way(object))
            .map(|(o, _)| *o)
            .collect();
        if removed {
            for t in targets {
                if let Some(b) = a.recovery.backfills.get_mut(&t) {
                    b.landed(object);
                }
            }
        } else if !targets.is_empty() {
            self.push_object(object, targets, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::tests::object;

    #[test]
    fn requests_on_a_clone_wait_with_its_head() {
        let clone = |name: &str, snap: u64| HObject { snap, ..object(name) };
        let mut unfound =
            vec![clone("a", 3), clone("a", 5), object("b"), clone("c", 1), object("c")];
        unfound.sort();
        let waits: Vec<bool> =
            ["a", "b", "c", "d"].iter().map(|n| waits_for(&object(n), &unfound)).collect();
        assert_eq!(waits, [true, true, true, false]);
        assert!(!waits_for(&object("a"), &[]));
    }
}
