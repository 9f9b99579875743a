//! A member takes a write of its primary.

use crate::api::PeerMsg;
use crate::commits::After;
use crate::copy::Pending;
use crate::core::{Cx, PgCore};
use crate::erasure::sound;
use crate::exec::ReadError;
use crate::log::EntryKind;
use crate::mail::Mail;
use crate::repair::Repairs;
use crate::replica::Replica;
use spirula_encoding::DecodeError;
use spirula_messages::cluster::pg::RepAck;
use spirula_messages::cluster::write::{Given, Logged, PgWrite, Share};
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{EVersion, HObject, Peer};
use std::sync::Arc;

/// The updates that come with a write.
fn updates_of(w: &PgWrite) -> Result<Vec<ObjectUpdate>, DecodeError> {
    let txn = Transaction::join(&w.header, &w.payload)?;
    let told: u64 = w.given.iter().map(|g| u64::from(g.updates)).sum();
    if !txn.meta.is_empty() || told != txn.objects.len() as u64 {
        return Err(DecodeError::Value {
            what: "updates of a write",
            value: txn.objects.len() as i64,
        });
    }
    Ok(txn.objects)
}

/// For each entry the object that its change is made from, if it is made from another: by a clone
/// that its updates begin with. (What an erasure-coded PG keeps to take an entry back has another
/// name.)
fn sources_of(w: &PgWrite, updates: &[ObjectUpdate]) -> Vec<Option<HObject>> {
    let mut updates = updates.iter();
    let source = |(e, given): (&Logged, &Given)| {
        let mut its = updates.by_ref().take(given.updates as usize).collect::<Vec<_>>().into_iter();
        its.find(|u| u.object == e.entry.object).and_then(|u| match u.ops.first() {
            Some(ObjectOp::CloneFrom(from)) => Some(from.clone()),
            _ => None,
        })
    };
    w.record.entries.iter().zip(&w.given).map(source).collect()
}

/// A write of its primary that a member cannot take: it has no part in the interval any more.
#[derive(Debug)]
pub(crate) struct Unfit;

impl Replica {
    /// Takes a write if it is the next.
    ///
    /// # Errors
    /// [`Unfit`] when it makes no sense here.
    pub fn on_write(
        &mut self,
        from: Peer,
        w: Arc<PgWrite>,
        core: &mut PgCore,
        mail: &mut Mail,
        repairs: &mut Repairs,
        cx: &mut Cx<'_>,
    ) -> Result<(), Unfit> {
        // Else of an activation of this interval that is over.
        if self.run() == w.run && self.is_next(from, w.version(), w.follows, core, cx) {
            return self.take_write(from, w, core, mail, repairs, cx);
        }
        Ok(())
    }

    /// Says again what is durable here, unless that will be said when it is.
    pub fn acknowledge_again(
        &self,
        from: Peer,
        version: EVersion,
        core: &mut PgCore,
        cx: &mut Cx<'_>,
    ) {
        let ack =
            RepAck { pg: core.id, ends: core.ends(from), epoch: core.interval().since, version };
        core.send_again(from, PeerMsg::Ack(ack), cx);
    }

    /// Takes the write that comes next in our log, as far as our copy allows.
    fn take_write(
        &mut self,
        from: Peer,
        w: Arc<PgWrite>,
        core: &mut PgCore,
        mail: &mut Mail,
        repairs: &mut Repairs,
        cx: &mut Cx<'_>,
    ) -> Result<(), Unfit> {
        let updates = match updates_of(&w) {
            Ok(updates) if core.info().is_some() => updates,
            bad => {
                // Not applied, so not acknowledged: this copy takes no further part, and the
                // primary hears that and peers anew.
                tracing::error!(pg = %core.id, %from, error = ?bad.err(), "apply replicated \
                    write");
                return Err(Unfit);
            }
        };
        // Before anything is changed: what must be read first comes back here.
        let mut spoilt: Vec<usize> = Vec::new();
        let sources = sources_of(&w, &updates);
        for (i, ((e, given), source)) in
            w.record.entries.iter().zip(&w.given).zip(&sources).enumerate()
        {
            let can = match source {
                Some(source) => {
                    // What it must be is known where the same write changes it, too: a clone is
                    // made of the head before.
                    let changed =
                        w.record.entries.iter().map(|e| &e.entry).find(|e| e.object == *source);
                    sound::can_make_from(core, source, changed.map(|e| e.prior), cx.reader)
                }
                None => sound::can_merge(core, &e.entry, given.share, cx.reader),
            };
            match can {
                Ok(true) => {}
                Ok(false) => spoilt.push(i),
                Err(ReadError::NotReady(what)) => {
                    mail.park(core, from, PeerMsg::Write(w.clone()), what, cx);
                    return Ok(());
                }
                Err(error) => {
                    tracing::error!(pg = %core.id, object = %e.entry.object, %error, "look at \
                        the shard under a write");
                    spoilt.push(i);
                }
            }
        }
        // What is made from a bad copy is bad, too; and where what it is made from is not there,
        // nothing is merged with it.
        for (i, source) in sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let Some(j) = w.record.entries.iter().position(|e| e.entry.object == *source) else {
                continue;
            };
            let merged = w.given.get(j).is_some_and(|g| g.share == Share::Merged)
                && !core.missing().contains(source);
            if spoilt.contains(&j) {
                spoilt.push(i);
            } else if spoilt.contains(&i) && merged {
                spoilt.push(j);
            }
        }
        let mut lacks = Pending::default();
        let mut updates = updates.into_iter();
        let mut kept = Vec::with_capacity(updates.len());
        for (i, (e, given)) in w.record.entries.iter().zip(&w.given).enumerate() {
            let (entry, object) = (&e.entry, &e.entry.object);
            let its = updates.by_ref().take(given.updates as usize);
            // A change that we do not get, and not because a backfill has not come so far.
            let reached = core.info().is_some_and(|i| *object <= i.last_backfill);
            let withheld =
                entry.kind == EntryKind::Modify && given.share == Share::Entry && reached;
            let mut takes = true;
            // The second line of defence against a primary that errs about what is missing here; a
            // bug planted there takes both away.
            if (core.missing().contains(object) && !planted!(core.cfg, MissingStaleOnResume))
                || withheld
            {
                // The primary does not wait until we have the object, or has not heard yet that
                // ours is bad.
                if entry.kind == EntryKind::Delete {
                    lacks = lacks.and(core.copy.wants_no_more(object));
                } else if entry.kind == EntryKind::Modify {
                    takes = false;
                    let (known, pending) = core.copy.is_kept_from(entry);
                    lacks = lacks.and(pending);
                    if !known {
                        tracing::error!(pg = %core.id, %from, %object, "a change is kept from \
                            us that we do not lack");
                    }
                }
            }
            if spoilt.contains(&i) {
                takes = false;
                let offset = cx.reader.bad_offset(object);
                let (tell, pending) = repairs.lack_change(core, from, entry, offset);
                self.note_rotten(object.clone(), entry.version, offset);
                lacks = lacks.and(pending);
                core.commits.before_next(tell);
            }
            kept.extend(its.filter(|_| takes));
        }
        let change = core.copy.append(&w.record, kept, lacks);
        let ack =
            RepAck { pg: core.id, ends: core.ends(from), epoch: w.epoch, version: w.version() };
        core.submit(change, After::Send(from, PeerMsg::Ack(ack)), cx);
        Ok(())
    }
}
