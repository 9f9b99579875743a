//! Copies that turn out to be bad: a checksum that fails, a device that does not read.
//!
//! A bad copy counts as missing, durably, from the moment it is found, and recovery replaces
//! it from another. Found by
//! * a request at the primary: the object is fetched first, then the request is executed;
//! * a write on a replica that would have to merge with bad data, or with a spoilt shard
//!   (`erasure::sound`): the log entry is stored, the object's change is left out, and the primary
//!   is told before the acknowledgement. The write stays what it is on all others, so nothing
//!   acknowledged depends on the bad copy;
//! * a source of recovery, and scrub.
//!
//! Bad data is never copied: a source verifies what it sends.

use crate::api::{LogLevel, PgEffect, Token};
use crate::commits::After;
use crate::copy::{Change, Pending};
use crate::core::{Cx, PgCore};
use crate::lead::Lead;
use crate::log::{EntryKind, LogEntry};
use crate::pg::Pg;
use crate::primary::Primary;
use crate::role::Role;
use crate::shard::{object_of_store, store_object, undo_object};
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::transaction::{MetaOp, Transaction};
use spirula_types::{EVersion, HObject, Peer};
use std::collections::BTreeMap;

/// Bad copies noted at a time; the rest are repaired without being named.
const NOTED_MAX: usize = 4096;

/// Copies found bad and not repaired yet, with the first bad byte if it is known.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    bad: BTreeMap<(HObject, Peer), Option<u64>>,
}

impl Repairs {
    pub fn note(&mut self, object: &HObject, osd: Peer, offset: Option<u64>) {
        if self.bad.len() < NOTED_MAX {
            let known = self.bad.entry((object.clone(), osd)).or_default();
            *known = known.or(offset);
        }
    }

    pub fn take(&mut self, object: &HObject, osd: Peer) -> Option<Option<u64>> {
        if self.bad.is_empty() { None } else { self.bad.remove(&(object.clone(), osd)) }
    }

    /// Was this copy found bad, and is not repaired yet?
    pub fn is_bad(&self, object: &HObject, osd: Peer) -> bool {
        !self.bad.is_empty() && self.bad.contains_key(&(object.clone(), osd))
    }

    pub fn clear(&mut self) {
        self.bad.clear();
    }
}

/// The object as the cluster log names it.
pub(crate) fn place(object: &HObject, offset: Option<u64>) -> String {
    match offset {
        Some(offset) => format!("bad block in {object} at {offset:#x}"),
        None => format!("bad copy of {object}"),
    }
}

impl Repairs {
    /// An object that is here cannot be read: it counts as missing, durably, until another
    /// copy's content replaces it.
    pub fn mark_unreadable(
        &mut self,
        core: &mut PgCore,
        object: HObject,
        version: EVersion,
        cx: &mut Cx<'_>,
    ) {
        self.note(&object, core.me, cx.reader.bad_offset(&object));
        let change = core.copy.lack(object, version);
        core.submit(change, After::Nothing, cx);
    }

    /// Member: the change of a write is left out because the copy here is bad. What the primary is
    /// to hear before the acknowledgement.
    pub fn lack_change(
        &mut self,
        core: &mut PgCore,
        primary: Peer,
        entry: &LogEntry,
        offset: Option<u64>,
    ) -> (After, Pending) {
        let pending = self.note_lacking(core, entry, offset);
        let body = CtlBody::Rotten { object: entry.object.clone(), version: entry.version, offset };
        (After::Send(primary, core.ctl(primary, body)), pending)
    }

    /// An entry comes into our log, and we never had what it did: the copy it would have changed is
    /// bad.
    pub fn note_lacking(
        &mut self,
        core: &mut PgCore,
        entry: &LogEntry,
        offset: Option<u64>,
    ) -> Pending {
        let LogEntry { object, version, .. } = entry;
        tracing::error!(pg = %core.id, %object, %version, "bad data under a write: this copy is \
            fetched anew");
        self.note(object, core.me, offset);
        core.copy.lack_change(entry)
    }

    /// Applies a piece of an object's copy, the last one or not. A missing object stays so until
    /// the last piece; what it had before is gone with the first.
    pub fn apply_piece(
        &mut self,
        core: &mut PgCore,
        leads: bool,
        txn: Transaction,
        last: bool,
        after: After,
        cx: &mut Cx<'_>,
    ) {
        for u in txn.objects.iter().filter(|_| last) {
            self.own_copy_replaced(core, leads, &u.object, cx);
        }
        let change = core.copy.hold(txn.objects, last);
        core.submit(change, after, cx);
    }

    /// Notes that a member's copy is bad; false if it is no member, or the object was removed
    /// since.
    pub fn peer_is_rotten(
        &mut self,
        core: &PgCore,
        active: &mut Primary,
        osd: Peer,
        (object, version, offset): (HObject, EVersion, Option<u64>),
    ) -> bool {
        let Some(p) = active.peers.get_mut(&osd) else { return false };
        // Later writes may have been sent before this came; the member did not take their changes,
        // either.
        let newest = core.log().last_change(&object).filter(|e| e.version > version);
        if newest.is_some_and(|e| e.kind == EntryKind::Delete) {
            // It was told to remove it meanwhile, and nobody has it any more.
            return false;
        }
        self.note(&object, osd, offset);
        let need = newest.map_or(version, |e| e.version);
        p.missing.set(object, need, EVersion::default());
        true
    }

    /// A copy here has been replaced.
    fn own_copy_replaced(&mut self, core: &PgCore, leads: bool, object: &HObject, cx: &mut Cx<'_>) {
        let bad = self.take(object, core.me);
        let Some(offset) = bad else { return };
        cx.out.push(PgEffect::Repaired);
        // The primary needs to know from whom it came, see `copy_repaired`.
        if leads {
            self.note(object, core.me, offset);
        }
    }

    /// Primary: an object whose copy here is bad has no other that is known.
    pub fn report_lost(&mut self, core: &PgCore, object: &HObject, cx: &mut Cx<'_>) {
        let Some(offset) = self.take(object, core.me) else { return };
        let text = format!(
            "osd.{} pg {}: {}, no good copy found",
            core.me,
            core.id,
            place(object, offset)
        );
        cx.out.push(PgEffect::Log { level: LogLevel::Error, text });
        self.note(object, core.me, offset);
    }
}

impl Pg {
    /// The store refused a transaction ([`PgEffect::Submit`]), and changed nothing, because the
    /// data of the object it calls `stored` with which a write must be merged is bad. What to
    /// submit in its stead under the same token; `None` if no other copy can have the change, so
    /// that the OSD must stop.
    pub fn without_rotten(
        &mut self,
        token: Token,
        mut txn: Transaction,
        stored: &HObject,
        offset: Option<u64>,
        out: &mut Vec<PgEffect>,
    ) -> Option<Transaction> {
        let object = &object_of_store(stored.clone());
        // A write, whose entries are in the log by now.
        let logged = txn.meta.iter().find_map(|m| match m {
            MetaOp::LogAppend { version, .. } => {
                self.core.log().at(*version).filter(|e| e.object == *object)
            }
            _ => None,
        });
        let entry = logged?.clone();
        let lacks = match &mut self.role {
            Role::Replica(r) => {
                let (tell, lacks) =
                    self.repairs.lack_change(&mut self.core, r.primary(), &entry, offset);
                r.note_rotten(entry.object.clone(), entry.version, offset);
                self.core.commits.before(token, tell);
                lacks
            }
            Role::Primary(a) => {
                let has = a
                    .peers
                    .values()
                    .any(|p| *object <= p.last_backfill && !p.missing.contains(object));
                if !has && self.core.me.shard < 0 {
                    return None;
                }
                a.clean = false;
                a.recovery.demand(object);
                self.requests.forget_object(object);
                a.pump_later = true;
                out.extend([PgEffect::StateChanged, PgEffect::Continue]);
                self.repairs.note_lacking(&mut self.core, &entry, offset)
            }
            _ => return None,
        };
        // Nor can it be taken back.
        let undo = store_object(&undo_object(object, entry.version), self.core.me.shard);
        txn.objects.retain(|u| u.object != *stored && u.object != undo);
        let change = self.core.copy.settle(lacks);
        self.core.amend(&mut txn, change);
        Some(txn)
    }

    /// Tells the primary that the copy here is bad. Where we are a member, it is said until it was
    /// heard.
    pub(crate) fn tell_rotten(
        &mut self,
        to: Peer,
        object: &HObject,
        version: EVersion,
        offset: Option<u64>,
        cx: &mut Cx<'_>,
    ) {
        if let Role::Replica(r) = &mut self.role {
            r.note_rotten(object.clone(), version, offset);
        }
        self.core.send(to, CtlBody::Rotten { object: object.clone(), version, offset }, cx);
    }
}

impl Lead<'_> {
    /// Notes that a member's copy is bad; false if it is no member, or the object was removed
    /// since.
    pub(crate) fn peer_is_rotten(
        &mut self,
        osd: Peer,
        object: HObject,
        version: EVersion,
        offset: Option<u64>,
    ) -> bool {
        self.repairs.peer_is_rotten(self.core, self.primary, osd, (object, version, offset))
    }

    /// A member's copy is bad, it says.
    pub(crate) fn on_rotten(
        &mut self,
        from: Peer,
        object: HObject,
        version: EVersion,
        offset: Option<u64>,
        cx: &mut Cx<'_>,
    ) {
        if self.primary.peers.contains_key(&from) {
            self.core.send(from, CtlBody::RottenAck { object: object.clone(), version }, cx);
        }
        if self.peer_is_rotten(from, object, version, offset) {
            self.reopen(cx);
            self.begin_recovery(cx);
        }
    }

    /// Primary: a member's copy is whole again.
    pub(crate) fn copy_repaired(
        &mut self,
        object: &HObject,
        osd: Peer,
        from: Peer,
        cx: &mut Cx<'_>,
    ) {
        let Some(offset) = self.repairs.take(object, osd) else { return };
        let text = format!(
            "osd.{osd} pg {}: {}, repaired from osd.{from}",
            self.core.id,
            place(object, offset)
        );
        cx.out.push(PgEffect::Log { level: LogLevel::Error, text });
        let deep = self.scrub_repaired(object, osd);
        let change = self.core.copy.repaired(deep);
        self.save_scrub(change, cx);
    }

    /// Stores the scrub history, and counts that a scrub may have corrected, here and at the
    /// members.
    pub(crate) fn save_scrub(&mut self, change: Change, cx: &mut Cx<'_>) {
        self.core.submit(change, After::Nothing, cx);
        self.tell_history(cx);
        cx.out.push(PgEffect::StateChanged);
    }
}
