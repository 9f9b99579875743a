//! A write: from what a request wants to what every member has.
//!
//! # The parts, and who owns what
//! | value | what it is | made by |
//! |---|---|---|
//! | [`WritePlan`] | what a request wants done to objects, all of it or nothing; no versions | `exec` (pure) |
//! | [`Stamped`] | a change with its version, and its typed log entry | [`WritePlan::stamp`] (pure) |
//! | `Parts` | what each member is given of the objects' changes | `backend` (pure) |
//! | [`WriteRecord`] | what the write is for all members alike: entries, head | [`Lead::commit`] |
//! | [`PgWrite`] | record and part, for one member: the message | [`Lead::commit`] |
//! | [`Transaction`] | what one store does: log, head, undo copies, trimming | [`append`](crate::copy::PgCopy::append), everywhere |
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the primary: a plan gets its place in the log, every member its part |
//! | `backend` | parts; what erasure-coded pools do differently is `erasure::write`, `erasure::undo` and `erasure::sound` |
//! | `member` | a member: is it the next entry, does the store have what it changes, what is kept from it |
//! | `inflight` | writes that are not durable everywhere; acknowledgements; answers |
//!
//! # A write
//! Execution gives a plan of changes, of one object or of several. Each change becomes one entry,
//! in order, and the last entry is the request's: its version is the write's, and its answer is
//! remembered with it. All entries of a write travel in one message, are stored by one transaction,
//! and are acknowledged together, so no log ends between them: a member takes a write that follows
//! its newest entry, or none of it (`repeat`).
//!
//! The message says in types what the write means: entries, head, and how much of each change the
//! member is given ([`Share`]). The updates of objects are passed on to the store unread. Primary
//! and member differ in what comes before: the primary decides (versions, counts, how far the log
//! is trimmed, how far all is rolled forward), a member looks whether its copy takes the change.
//! Then both do the same (`append`), so both have the same log and head, in memory and in the
//! store.
//!
//! # What is kept from a member
//! A member that lacks an object, or whose backfill has not come to it, gets the entry alone. The
//! primary knows which of the two it is, and so does the member, from how far it has been filled:
//! before that point what does not come is lacking, and noted so, durably, with the entry. One that
//! finds its own copy bad takes the entry, says so, and lacks the change.
//!
//! # Why nothing is acknowledged early
//! A request is answered when its last entry is durable here and every member in `replicas` has
//! acknowledged it ([`Lead::advance`]); a member acknowledges when the transaction with the entries
//! is durable, or was before. What a member does not get is missing there in the same transaction.
//!
//! # What is made from another object
//! A first write after a snapshot plans two changes, clone and head; a head may be rolled back to a
//! clone. A change that is made from another object is kept from a member together with that
//! object, and lacking there from then on. A backfill seldom stands between the two: a clone comes
//! before its head in the order of objects and after all older clones, so what has not come to the
//! one has not come to the other, and a head that was filled had its clones filled before. Only
//! where a member has an old clone of the same name it may have come to that one alone. The member
//! then sees that its head is not the one that the clone is made of
//! ([`can_make_from`](crate::erasure::sound::can_make_from)), and lacks the clone; and while that
//! old clone is removed there, writes of the object wait ([`Lead::must_recover_first`]), so that
//! the removal does not take the new one.

pub(crate) mod backend;
mod inflight;
mod member;

pub(crate) use inflight::{Answer, Inflight};
pub(crate) use member::Unfit;

use crate::api::{PeerMsg, PgEffect, Phase};
use crate::commits::After;
use crate::copy::Pending;
use crate::core::{Cx, PgCore};
use crate::erasure::stripe::Piece;
use crate::exec::{Effect, Outcome, Stamp, Stamped, StatDelta, WatchEffect, WritePlan};
use crate::lead::Lead;
use crate::log::EntryKind;
use crate::primary::{PeerState, Primary};
use crate::recovery::gets_object;
use crate::requests::Request;
use backend::Parts;
use bytes::Bytes;
use spirula_messages::cluster::pg::{MissingItem, PgCounts};
use spirula_messages::cluster::write::{Given, Logged, PgWrite, Share, WriteRecord};
use spirula_types::transaction::{ObjectUpdate, Transaction};
use spirula_types::{Dirty, EVersion, Epoch, HObject, Peer, ReqId, errno};
use std::sync::Arc;

/// Log entries kept for the sake of missing objects, at most.
const LOG_BOUND: usize = 30_000;

/// Adds what a change adds.
fn count(c: &mut PgCounts, d: &StatDelta) {
    c.objects += d.objects;
    c.bytes += d.bytes;
    c.omap_objects += d.omap_objects;
    c.clones += d.clones;
    c.whiteouts += d.whiteouts;
    c.reads += d.reads as i64;
    c.read_kb += d.read_kib as i64;
    c.writes += d.writes as i64;
    c.written_kb += d.write_kib as i64;
}

/// The part of a member that does not get the changes of some objects.
fn withheld(
    record: &WriteRecord,
    given: &[Given],
    mut updates: &[ObjectUpdate],
    gets: impl Fn(&HObject) -> bool,
) -> (Vec<Given>, Vec<ObjectUpdate>) {
    let mut kept = Vec::new();
    let given = record.entries.iter().zip(given).map(|(e, given)| {
        let (its, rest) = updates.split_at((given.updates as usize).min(updates.len()));
        updates = rest;
        if gets(&e.entry.object) {
            kept.extend_from_slice(its);
            *given
        } else {
            Given { share: Share::Entry, updates: 0 }
        }
    });
    (given.collect(), kept)
}

/// An object is made from another: a member that lacks that one, and is otherwise given all, lacks
/// both from now on.
fn lack_with(active: &mut Primary, source: HObject, object: &HObject, version: EVersion) {
    let lacks = |p: &PeerState| p.missing.contains(&source) && !p.missing.contains(object);
    let whom: Vec<Peer> =
        active.peers.iter().filter(|(_, p)| lacks(p)).map(|(peer, _)| *peer).collect();
    for peer in whom {
        if gets_object(active, peer, object)
            && let Some(p) = active.peers.get_mut(&peer)
        {
            p.missing.set(object.clone(), version, EVersion::default());
        }
    }
}

/// Entries after this one name objects that are still missing here: a holder that returns
/// must find them in the log, or its copy would be filled anew instead of asked. Within
/// bounds.
fn missing_floor(core: &PgCore) -> EVersion {
    let first = core.missing().iter().map(|(_, m)| m.need).min();
    match first {
        Some(need) if core.log().len() < LOG_BOUND && core.log().bytes() <= core.cfg.log_bytes => {
            crate::log::before(core.log(), need)
        }
        _ => EVersion::new(Epoch::MAX, u64::MAX),
    }
}

impl Lead<'_> {
    /// Carries out what a request wants. `pieces`: what was read of the object for it.
    pub(crate) fn write(
        &mut self,
        object: &HObject,
        mut q: Request,
        outcome: Outcome,
        pieces: &[Piece],
        cx: &mut Cx<'_>,
    ) {
        let returns = outcome.returns(q.op.msg.flags, &self.core.cfg.limits);
        let Outcome { result, ops: results, user_version, effect, mut watch, .. } = outcome;
        if q.own().is_some() {
            // Its client does not know yet.
            watch.iter_mut().for_each(WatchEffect::tells);
        }
        let plan = match effect {
            Effect::Apply(plan) => *plan,
            Effect::LogOnly | Effect::None => WritePlan::default(),
        };
        let stamp = Stamp {
            version: self.core.next_version(plan.entries()),
            last_user_version: self.core.info().map_or(0, |i| i.head.last_user_version),
            // Nobody sends a request of our own again.
            reqid: if q.own().is_some() { ReqId::default() } else { q.op.reqid },
            mtime: q.op.msg.mtime,
            now: cx.now.wall,
            result,
            returns,
        };
        let mut writes = plan.stamp(stamp, object, user_version);
        if planted!(self.core.cfg, DirtyForgotten) {
            writes
                .iter_mut()
                .filter(|w| w.entry.dirty != Dirty::All)
                .for_each(|w| w.entry.dirty = Dirty::nothing());
        }
        match self.core.backend().cut(&mut writes, pieces) {
            Ok(parts) => {
                q.enter(Phase::Commit, cx);
                self.commit(writes, parts, Answer { result, results, watch, ops: vec![q] }, cx);
            }
            Err(e) => {
                tracing::error!(pg = %self.core.id, error = %e, "cut into shards");
                self.reply_error(&q, -errno::EIO, cx);
            }
        }
    }

    /// Puts a write into the log, sends every other member its part, and answers when all have it.
    pub(crate) fn commit(
        &mut self,
        writes: Vec<Stamped>,
        mut parts: Parts,
        answer: Answer,
        cx: &mut Cx<'_>,
    ) {
        let missing_floor = missing_floor(self.core);
        let active = &mut *self.primary;
        let Some(info) = self.core.info() else {
            // The client sends this one again in the next interval.
            return invariant!(self.core, "a write without a copy");
        };
        let follows = info.last_update();
        let mut head = info.head;
        let mut entries = Vec::with_capacity(writes.len());
        for Stamped { entry, state, stats, source, .. } in writes {
            let (object, version) = (&entry.object, entry.version);
            if let Some(source) = source.filter(|_| !planted!(self.core.cfg, MadeWithoutSource)) {
                lack_with(active, source, object, version);
            }
            let changed = (entry.kind != EntryKind::Nothing).then_some(state);
            if changed.is_some() {
                head.last_user_version = head.last_user_version.max(entry.user_version);
                count(&mut head.counts, &stats);
                if planted!(self.core.cfg, TrimmedCounts) && stats.clones < 0 {
                    head.counts.clones -= stats.clones;
                }
                active.scrub.wrote(object, &stats);
                if stats.clones > 0 {
                    active.scrub.cloned(object);
                }
                if stats.clones < 0 && !planted!(self.core.cfg, ScrubKeepsTrimmed) {
                    active.scrub.trimmed(object);
                }
                active
                    .recovery
                    .note_written(object, (entry.kind == EntryKind::Modify).then_some(version));
            }
            self.requests.wrote(object, changed);
            for p in active.peers.values_mut().filter(|p| p.missing.contains(object)) {
                match entry.kind {
                    EntryKind::Delete => drop(p.missing.remove(object)),
                    EntryKind::Modify if planted!(self.core.cfg, WithheldForgotten) => {}
                    EntryKind::Modify => {
                        p.missing.written(object, version, &entry.dirty, MissingItem::default);
                    }
                    EntryKind::Nothing => {}
                }
            }
            head.last_update = version;
            entries.push(Logged::new(entry));
        }
        // A PG that is not whole keeps more, so that members that come back need no backfill.
        let keep = if active.clean {
            self.core.cfg.log_keep
        } else {
            self.core.cfg.log_max.max(self.core.cfg.log_keep)
        };
        let floor = active.committed.min(missing_floor);
        if let Some(to) = self.core.log().trim_point(
            keep,
            self.core.cfg.log_slack,
            self.core.cfg.log_bytes,
            floor,
        ) {
            head.log_tail = to;
        }
        if self.core.me.shard >= 0 {
            let rolled = if planted!(self.core.cfg, RolledEarly) {
                head.last_update
            } else {
                active.committed
            };
            head.rolled = head.rolled.max(rolled);
        }
        let record = Arc::new(WriteRecord::new(head, entries));
        active.inflight.push_back(Inflight::new(record.clone(), answer));
        self.send_parts(&record, &parts, follows, cx);
        let since = self.core.interval().since;
        let ours = parts.take(self.core.me.shard);
        let change = self.core.copy.append(&record, ours, Pending::default());
        self.core.submit(change, After::Write { since, version: head.last_update }, cx);
        self.requests.evict(self.core.cfg.contexts);
    }

    /// Sends the newest write to the other members, and keeps what they were sent until all have
    /// it.
    fn send_parts(
        &mut self,
        record: &Arc<WriteRecord>,
        parts: &Parts,
        follows: EVersion,
        cx: &mut Cx<'_>,
    ) {
        let active = &*self.primary;
        let split = |updates: &[ObjectUpdate]| {
            let (header, payload) = Transaction::split_updates(updates);
            (Bytes::from(header), payload)
        };
        let mut same: Option<(Bytes, Bytes)> = None;
        let mut sent = Vec::with_capacity(active.replicas.len());
        for (to, _) in &active.replicas {
            let lacks = |o: &HObject| active.peers.get(to).is_some_and(|p| p.missing.contains(o));
            let gets = |o: &HObject| gets_object(active, *to, o) && !lacks(o);
            let updates = parts.of(to.shard);
            let (given, (header, payload)) =
                if !record.entries.iter().all(|e| gets(&e.entry.object)) {
                    let (given, updates) = withheld(record, &parts.given, updates, gets);
                    (given, split(&updates))
                } else if parts.are_same() {
                    (parts.given.clone(), same.get_or_insert_with(|| split(updates)).clone())
                } else {
                    (parts.given.clone(), split(updates))
                };
            let w = PgWrite {
                pg: self.core.id,
                ends: self.core.ends(*to),
                epoch: self.core.interval().since,
                run: active.run,
                follows,
                record: record.clone(),
                given,
                header,
                payload,
            };
            sent.push((*to, Arc::new(w)));
        }
        cx.out.extend(sent.iter().map(|(to, w)| PgEffect::Send(*to, PeerMsg::Write(w.clone()))));
        let a = &mut *self.primary;
        if let Some(newest) = a.inflight.back_mut() {
            newest.sent = sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::tests::object;
    use crate::exec::{Change, ObjectState};
    use crate::write::backend::whole;
    use spirula_messages::cluster::pg::PgHead;
    use spirula_types::transaction::ObjectOp;

    /// A write of a clone and its head, and of an object that goes.
    fn three() -> (WriteRecord, Parts) {
        let change = |name: &str, delete: bool, version| {
            let mut state = ObjectState { exists: !delete, ..ObjectState::default() };
            state.info.version = EVersion::new(1, version);
            let ops = vec![if delete { ObjectOp::Remove } else { ObjectOp::Truncate { size: 7 } }];
            let (user_modify, user_version, stats) = (true, None, StatDelta::default());
            let (size_before, source, frozen, object) = (0, None, false, object(name));
            Change {
                object,
                ops,
                state,
                size_before,
                source,
                frozen,
                delete,
                user_modify,
                user_version,
                stats,
            }
        };
        let mut new = change("new", false, 0);
        new.state.info.version = EVersion::default();
        let plan =
            WritePlan { changes: vec![new, change("gone", true, 3), change("head", false, 4)] };
        let stamp = Stamp {
            version: EVersion::new(2, 9),
            last_user_version: 7,
            reqid: ReqId::default(),
            mtime: spirula_encoding::UTime::ZERO,
            now: spirula_encoding::UTime::ZERO,
            result: 0,
            returns: Vec::new(),
        };
        let mut writes = plan.stamp(stamp, &object("head"), 0);
        let parts = whole(&mut writes);
        let entries = writes.into_iter().map(|w| Logged::new(w.entry)).collect();
        (WriteRecord::new(PgHead::default(), entries), parts)
    }

    #[test]
    fn the_part_of_a_member_names_how_much_of_each_change_it_is() {
        let (_, parts) = three();
        let shares: Vec<_> = parts.given.iter().map(|g| (g.share, g.updates)).collect();
        assert_eq!(shares, [(Share::Whole, 1), (Share::Whole, 1), (Share::Merged, 1)]);
        assert_eq!(parts.of(-1).len(), 3);
    }

    #[test]
    fn what_a_member_lacks_is_kept_from_it_and_nothing_else() {
        let (record, parts) = three();
        for kept_back in ["new", "gone", "head"] {
            let gets = |o: &HObject| *o != object(kept_back);
            let (given, updates) = withheld(&record, &parts.given, parts.of(-1), gets);
            for (e, g) in record.entries.iter().zip(&given) {
                let held = e.entry.object == object(kept_back);
                assert_eq!(held, *g == Given { share: Share::Entry, updates: 0 }, "{kept_back}");
            }
            let got: Vec<_> = updates.iter().map(|u| u.object.clone()).collect();
            let expected: Vec<_> =
                parts.of(-1).iter().map(|u| u.object.clone()).filter(gets).collect();
            assert_eq!(got, expected);
        }
    }
}
