//! Copies that turn out to be bad: a checksum that fails, a device that does not read.
//!
//! A bad copy counts as missing, durably, from the moment it is found, and recovery replaces
//! it from another. Found by
//! * a request at the primary: the object is fetched first, then the request is executed;
//! * a write on a replica that would have to merge with bad data, or with a spoilt shard (`erasure::sound`): the log entry is stored, the
//!   object's change is left out, and the primary is told before the acknowledgement. The write
//!   stays what it is on all others, so nothing acknowledged depends on the bad copy;
//! * a source of recovery, and scrub.
//!
//! Bad data is never copied: a source verifies what it sends.

use crate::api::{PgEffect, Token};
use crate::log::{EntryKind, LogEntry};
use crate::pg::{After, Cx, Pg, Role};
use crate::repeat::Again;
use crate::shard::{object_of_store, store_object, undo_object};
use spirula_messages::cluster::pg::{CtlBody, MissingItem};
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

    fn take(&mut self, object: &HObject, osd: Peer) -> Option<Option<u64>> {
        if self.bad.is_empty() { None } else { self.bad.remove(&(object.clone(), osd)) }
    }

    pub fn clear(&mut self) {
        self.bad.clear();
    }
}

/// The object as the cluster log names it.
fn place(object: &HObject, offset: Option<u64>) -> String {
    match offset {
        Some(offset) => format!("bad block in {object} at {offset:#x}"),
        None => format!("bad copy of {object}"),
    }
}

impl Pg {
    /// An object that is here cannot be read: it counts as missing, durably, until another
    /// copy's content replaces it.
    pub(crate) fn mark_unreadable(&mut self, object: HObject, version: EVersion, cx: &mut Cx<'_>) {
        self.repairs.note(&object, self.me, cx.reader.bad_offset(&object));
        self.missing.set(object, version, EVersion::default());
        let mut txn = Transaction::default();
        self.missing_ops(&mut txn.meta);
        self.submit(txn, After::Nothing, cx);
    }

    /// The store refused a transaction ([`PgEffect::Submit`]), and changed nothing, because the
    /// data of the object it calls `stored` with which a write must be merged is bad. What to submit in its stead under
    /// the same token; `None` if no other copy can have the change, so that the OSD must stop.
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
            MetaOp::LogAppend { version, .. } => self.log.at(*version).filter(|e| e.object == *object),
            _ => None,
        });
        let entry = logged?.clone();
        match &mut self.role {
            Role::Replica { primary, .. } => {
                let to = *primary;
                let tell = self.lack_change(to, &entry, offset);
                self.before(token, tell);
            }
            Role::Active(a) => {
                let has = a.peers.values().any(|p| *object <= p.last_backfill && !p.missing.contains(object));
                if !has && self.me.shard < 0 {
                    return None;
                }
                a.clean = false;
                a.recovery.demand(object);
                self.ops.forget_object(object);
                self.pump_later = true;
                out.extend([PgEffect::StateChanged, PgEffect::Continue]);
                self.note_lacking(&entry, offset);
            }
            _ => return None,
        }
        // Nor can it be taken back.
        let undo = store_object(&undo_object(object, entry.version), self.me.shard);
        txn.objects.retain(|u| u.object != *stored && u.object != undo);
        self.missing_ops(&mut txn.meta);
        Some(txn)
    }

    /// Member: the change of a write is left out because the copy here is bad. What the primary is to hear before the
    /// acknowledgement.
    pub(crate) fn lack_change(&mut self, primary: Peer, entry: &LogEntry, offset: Option<u64>) -> After {
        self.note_lacking(entry, offset);
        self.rotten.insert(entry.object.clone(), (entry.version, offset));
        let body = CtlBody::Rotten { object: entry.object.clone(), version: entry.version, offset };
        After::Send(primary, self.ctl(primary, body))
    }

    /// An entry comes into our log, and we never had what it did: the copy it would have changed is bad.
    fn note_lacking(&mut self, entry: &LogEntry, offset: Option<u64>) {
        let LogEntry { object, version, .. } = entry;
        tracing::error!(pg = %self.id, %object, %version, "bad data under a write: this copy is fetched anew");
        self.repairs.note(object, self.me, offset);
        let item = MissingItem { need: *version, withheld: true, ..MissingItem::default() };
        self.missing.put(object.clone(), item);
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
        if self.active().is_some_and(|a| a.peers.contains_key(&from)) {
            self.send(from, CtlBody::RottenAck { object: object.clone(), version }, cx);
        }
        if self.peer_is_rotten(from, object, version, offset) {
            self.reopen(cx);
            self.begin_recovery(cx);
        }
    }

    /// Tells the primary that the copy here is bad. A member says it until it was heard.
    pub(crate) fn tell_rotten(
        &mut self,
        to: Peer,
        object: &HObject,
        version: EVersion,
        offset: Option<u64>,
        cx: &mut Cx<'_>,
    ) {
        if matches!(self.role, Role::Replica { .. }) {
            self.rotten.insert(object.clone(), (version, offset));
        }
        self.send(to, CtlBody::Rotten { object: object.clone(), version, offset }, cx);
    }

    /// Tells again what was not heard.
    pub(crate) fn repeat_rotten(&mut self, again: Again, cx: &mut Cx<'_>) {
        let Role::Replica { primary, .. } = self.role else { return };
        let open = (!self.rotten.is_empty()).then_some(primary);
        let to = again.whom(&mut self.rotten_repeat, 0, open);
        let told = |(object, (version, offset)): (&HObject, &(EVersion, Option<u64>))| CtlBody::Rotten {
            object: object.clone(),
            version: *version,
            offset: *offset,
        };
        let all: Vec<CtlBody> = if to.is_empty() { Vec::new() } else { self.rotten.iter().map(told).collect() };
        all.into_iter().for_each(|body| self.send(primary, body, cx));
    }

    /// Notes that a member's copy is bad; false if it is no member, or the object was removed since.
    pub(crate) fn peer_is_rotten(
        &mut self,
        osd: Peer,
        object: HObject,
        version: EVersion,
        offset: Option<u64>,
    ) -> bool {
        let Role::Active(a) = &mut self.role else { return false };
        let Some(p) = a.peers.get_mut(&osd) else { return false };
        // Later writes may have been sent before this came; the member did not take their changes, either.
        let newest = self.log.last_change(&object).filter(|e| e.version > version);
        if newest.is_some_and(|e| e.kind == EntryKind::Delete) {
            // It was told to remove it meanwhile, and nobody has it any more.
            return false;
        }
        self.repairs.note(&object, osd, offset);
        let need = newest.map_or(version, |e| e.version);
        p.missing.set(object, need, EVersion::default());
        true
    }

    /// The primary found our copy bad.
    pub(crate) fn on_told_rotten(&mut self, object: HObject, version: EVersion, cx: &mut Cx<'_>) {
        if matches!(self.role, Role::Replica { .. }) {
            self.mark_unreadable(object, version, cx);
        }
    }

    /// A copy here has been replaced.
    pub(crate) fn own_copy_replaced(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let bad = self.repairs.take(object, self.me);
        let Some(offset) = bad else { return };
        cx.out.push(PgEffect::Repaired);
        // The primary needs to know from whom it came, see `copy_repaired`.
        if matches!(self.role, Role::Active(_)) {
            self.repairs.note(object, self.me, offset);
        }
    }

    /// Primary: a member's copy is whole again.
    pub(crate) fn copy_repaired(&mut self, object: &HObject, osd: Peer, from: Peer, cx: &mut Cx<'_>) {
        let Some(offset) = self.repairs.take(object, osd) else { return };
        let text = format!("osd.{osd} pg {}: {}, repaired from osd.{from}", self.id, place(object, offset));
        cx.out.push(PgEffect::Log { error: true, text });
        if let Some(info) = &mut self.info {
            info.scrub.repaired += 1;
        }
        self.scrub_repaired(object, osd);
        self.save_scrub(cx);
    }

    /// Primary: an object whose copy here is bad has no other that is known.
    pub(crate) fn report_lost(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let Some(offset) = self.repairs.take(object, self.me) else { return };
        let text = format!("osd.{} pg {}: {}, no good copy found", self.me, self.id, place(object, offset));
        cx.out.push(PgEffect::Log { error: true, text });
        self.repairs.note(object, self.me, offset);
    }

    /// Stores the scrub history, and counts that a scrub may have corrected, here and at the members.
    pub(crate) fn save_scrub(&mut self, cx: &mut Cx<'_>) {
        self.save(After::Nothing, cx);
        self.tell_history(cx);
        cx.out.push(PgEffect::StateChanged);
    }
}
