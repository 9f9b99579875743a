//! The part of a PG that answers a primary: promises, infos, replicated writes, recovery
//! pushes, seals, activation, deletion.
//!
//! Every answer that claims something about the store is sent when that is durable. `Info` is
//! the exception: it tells what is applied, which becomes durable before anything the primary
//! builds on it, because a PG's transactions become durable in order.

use crate::api::PgEffect;
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, ReadError};
use crate::log::LogEntry;
use crate::pg::{After, Cx, Pg, Role, Step};
use crate::recovery::{Chunk, chunk};
use bytes::Bytes;
use spirula_encoding::{DecodeError, from_slice};
use spirula_messages::cluster::pg::{CtlBody, PgCtl, PgInfo, PgTxn, RepAck, Seal, TxnKind};
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{EVersion, Epoch, HObject, OsdId};

impl Pg {
    pub(crate) fn on_ctl(&mut self, from: OsdId, ctl: PgCtl, cx: &mut Cx<'_>) {
        let epoch = ctl.epoch;
        match ctl.body {
            CtlBody::Query => self.on_query(from, epoch, cx),
            CtlBody::Notify { info } => self.on_notify(from, info, cx),
            CtlBody::Nack { map } => self.on_nack(epoch, map, cx),
            CtlBody::Delete => self.on_delete(from, epoch, cx),
            // Answers, to us as the primary of this epoch.
            CtlBody::Info { info, lease_left_ms } => self.on_info(from, epoch, info, lease_left_ms, cx),
            CtlBody::Log { tail, entries } => self.on_log(from, epoch, tail, entries, cx),
            CtlBody::Scanned { objects, next, .. } => self.on_scanned(from, epoch, objects, next, cx),
            CtlBody::PushAck { seq } => self.on_push_ack(from, epoch, seq, cx),
            CtlBody::Finished => self.on_finished(from, epoch, cx),
            CtlBody::Sealed => self.on_sealed(from, epoch, cx),
            CtlBody::Activated => self.on_activated(from, epoch, cx),
            // Orders, to us as a member that promised itself to this primary.
            _ if !self.serves(from, epoch) => self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx),
            CtlBody::GetLog => {
                let entries = self.log.iter().map(LogEntry::to_bytes).collect();
                self.send(from, epoch, CtlBody::Log { tail: self.log.tail(), entries }, cx);
            }
            CtlBody::Scan { from: start, max } => self.on_scan(from, epoch, start, max, cx),
            CtlBody::Pull { .. } => self.on_pull(from, ctl, cx),
            CtlBody::Finish { info, keep, entries } => {
                if let Err(e) =
                    self.finish_copy(info, keep, entries, After::Send(from, self.ctl(epoch, CtlBody::Finished)), cx)
                {
                    tracing::error!(pg = %self.id, from, error = %e, "take over log");
                }
            }
            CtlBody::Seal { home } => {
                if let Some(info) = &mut self.info {
                    info.seal = Some(Seal { epoch, home });
                    let txn = Transaction { objects: Vec::new(), meta: vec![self.info_op()] };
                    self.submit(txn, After::Send(from, self.ctl(epoch, CtlBody::Sealed)), cx);
                }
            }
            CtlBody::Activate { ref info, fresh } => {
                let info = info.clone();
                self.on_activate(from, ctl, info, fresh, cx);
            }
        }
    }

    /// Have we promised ourselves to this primary in this epoch, and nothing newer since?
    fn serves(&self, primary: OsdId, epoch: Epoch) -> bool {
        self.promised == epoch
            && self.promised_to == primary
            && epoch >= self.interval
            && matches!(self.role, Role::Idle | Role::Replica { .. })
    }

    fn on_query(&mut self, from: OsdId, epoch: Epoch, cx: &mut Cx<'_>) {
        let again = self.promised == epoch && self.promised_to == from;
        let free = epoch > self.promised || (epoch == self.promised && self.promised_to < 0);
        if epoch < self.interval || !(free || again) {
            self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx);
            return;
        }
        if matches!(self.role, Role::Peering(_) | Role::Active(_)) {
            // Our map says that we are primary; it is newer, or the other skipped nothing we
            // saw. Peer again in an epoch that outbids the other.
            if self.epoch() > epoch {
                self.restart_peering(cx);
                self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx);
            }
            return;
        }
        if !again {
            self.leave_role(cx);
        }
        self.promised = epoch;
        self.promised_to = from;
        let info = self.info.clone();
        let lease = info.as_ref().map_or(0, |i| cx.leases.granted_left(i.primary, cx.now.mono_ms));
        self.send(from, epoch, CtlBody::Info { info, lease_left_ms: lease as u32 }, cx);
        self.check_removed(cx);
    }

    // ---- replicated writes ----

    pub(crate) fn on_txn(&mut self, from: OsdId, t: PgTxn, cx: &mut Cx<'_>) {
        let epoch = t.epoch;
        match t.kind {
            TxnKind::Write => {
                if !matches!(self.role, Role::Replica { primary, les } if primary == from && les == epoch) {
                    self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx);
                } else if let Err(e) = self.apply_write(from, t, cx) {
                    // Not applied, so not acknowledged: the primary will not answer the client.
                    tracing::error!(pg = %self.id, from, error = %e, "apply replicated write");
                    self.leave_role(cx);
                    self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx);
                }
            }
            TxnKind::Push => {
                if !self.serves(from, epoch) {
                    self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx);
                    return;
                }
                match Transaction::join(&t.header, &t.payload) {
                    Ok(txn) => {
                        let ack = self.ctl(epoch, CtlBody::PushAck { seq: t.seq });
                        self.apply_push(txn, After::Send(from, ack), cx);
                    }
                    Err(e) => tracing::error!(pg = %self.id, from, error = %e, "read push"),
                }
            }
            TxnKind::Pulled => self.on_pulled(from, t, cx),
        }
    }

    fn apply_write(&mut self, from: OsdId, t: PgTxn, cx: &mut Cx<'_>) -> Result<(), DecodeError> {
        let txn = Transaction::join(&t.header, &t.payload)?;
        let mut info: Option<PgInfo> = None;
        let mut entry: Option<LogEntry> = None;
        let mut trim: Option<EVersion> = None;
        for m in &txn.meta {
            match m {
                MetaOp::Set { value, .. } => info = Some(from_slice(value)?),
                MetaOp::LogAppend { entry: e, .. } => entry = Some(from_slice(e)?),
                MetaOp::LogTrim { to, .. } => trim = Some(*to),
                _ => {}
            }
        }
        let bad = |what| DecodeError::Value { what, value: t.version.version as i64 };
        let (Some(info), Some(entry)) = (info, entry) else { return Err(bad("write without log entry")) };
        let mine = self.info.as_ref().map(|i| i.last_update).unwrap_or_default();
        if entry.version != t.version || info.last_update != t.version || t.version <= mine || info.pg != self.id {
            return Err(bad("write out of order"));
        }
        // Our log may reach further back than the primary's.
        self.log.push(entry);
        if let Some(to) = trim {
            self.log.trim(to);
        }
        self.info = Some(info);
        let ack = RepAck { pg: self.id, epoch: t.epoch, version: t.version };
        self.submit(txn, After::Send(from, crate::api::PeerMsg::Ack(ack)), cx);
        Ok(())
    }

    // ---- recovery ----

    /// Applies a piece of an object's copy. The first one marks this copy incomplete.
    pub(crate) fn apply_push(&mut self, mut txn: Transaction, after: After, cx: &mut Cx<'_>) {
        let pg_num = self.view.as_ref().and_then(|v| v.pool.as_ref()).map_or(0, |p| p.pg_num);
        let (pg, created) = (self.id, self.epoch());
        let info = self.info.get_or_insert_with(|| PgInfo {
            pg,
            pg_num,
            created,
            origin: pg,
            primary: -1,
            complete: true,
            ..PgInfo::default()
        });
        txn.meta.clear();
        if info.complete {
            info.complete = false;
            txn.meta.push(self.info_op());
        }
        self.submit(txn, after, cx);
    }

    /// The objects are those of `info` now; takes its log.
    pub(crate) fn finish_copy(
        &mut self,
        info: PgInfo,
        keep: Option<EVersion>,
        entries: Vec<Bytes>,
        after: After,
        cx: &mut Cx<'_>,
    ) -> Result<(), DecodeError> {
        let parsed: Vec<LogEntry> = entries.iter().map(|b| from_slice(b)).collect::<Result<_, _>>()?;
        let pg = self.id;
        let mut txn = Transaction::default();
        match keep {
            Some(to) => {
                self.log.rewind(to);
                txn.meta.push(MetaOp::LogRewind { pg, to });
            }
            None => {
                self.log = crate::log::PgLog::new(info.log_tail, []);
                txn.meta.push(MetaOp::LogRemove { pg });
            }
        }
        for (e, bytes) in parsed.into_iter().zip(entries) {
            txn.meta.push(MetaOp::LogAppend { pg, version: e.version, entry: bytes });
            self.log.push(e);
        }
        self.info = Some(PgInfo { log_tail: self.log.tail(), seal: None, complete: true, pg, ..info });
        txn.meta.push(self.info_op());
        self.ops.forget_objects();
        self.submit(txn, after, cx);
        Ok(())
    }

    fn on_scan(&mut self, from: OsdId, epoch: Epoch, start: HObject, max: u32, cx: &mut Cx<'_>) {
        match self.list_versions(&start, max as usize, cx.reader) {
            Ok((objects, next)) => self.send(from, epoch, CtlBody::Scanned { from: start, objects, next }, cx),
            Err(ReadError::NotReady(what)) => {
                let ctl = PgCtl { pg: self.id, epoch, body: CtlBody::Scan { from: start, max } };
                self.park(from, ctl, what, cx);
            }
            Err(e) => tracing::error!(pg = %self.id, error = %e, "list objects for recovery"),
        }
    }

    /// Objects from `start` on with their versions, and where to go on.
    pub(crate) fn list_versions(
        &self,
        start: &HObject,
        max: usize,
        reader: &dyn ObjectReader,
    ) -> Result<(Vec<(HObject, EVersion)>, HObject), ReadError> {
        let (first, end) = self.range();
        let start = start.max(&first);
        let mut found = reader.list(start, &end, max.max(1) + 1)?;
        let next = if found.len() > max.max(1) { found.pop().unwrap_or_else(HObject::max) } else { HObject::max() };
        let mut objects = Vec::with_capacity(found.len());
        for o in found {
            let version = match reader.attr(&o, INFO_ATTR)? {
                // An object whose record is missing or damaged equals no other.
                Some(attr) => from_slice::<ObjectInfo>(&attr).map(|i| i.version).unwrap_or_default(),
                None => EVersion::default(),
            };
            objects.push((o, version));
        }
        Ok((objects, next))
    }

    fn on_pull(&mut self, from: OsdId, ctl: PgCtl, cx: &mut Cx<'_>) {
        let CtlBody::Pull { seq, object, cursor } = &ctl.body else { return };
        match chunk(cx.reader, object, cursor, self.cfg.push_bytes) {
            Ok(Chunk { txn, next }) => {
                let (header, payload) = txn.split();
                let t = PgTxn {
                    pg: self.id,
                    epoch: ctl.epoch,
                    kind: TxnKind::Pulled,
                    seq: *seq,
                    version: EVersion::default(),
                    next,
                    header: header.into(),
                    payload,
                };
                cx.out.push(PgEffect::Send(from, crate::api::PeerMsg::Txn(t)));
            }
            Err(ReadError::NotReady(what)) => self.park(from, ctl, what, cx),
            Err(e) => tracing::error!(pg = %self.id, %object, error = %e, "read object for recovery"),
        }
    }

    // ---- activation, deletion ----

    fn on_activate(&mut self, from: OsdId, ctl: PgCtl, info: PgInfo, fresh: bool, cx: &mut Cx<'_>) {
        let epoch = ctl.epoch;
        let fits = match &self.info {
            None => fresh,
            // Never served, so there is nothing in it to lose.
            Some(i) if fresh => !i.confirmed,
            Some(i) => i.complete && i.last_update == info.last_update,
        };
        if !fits {
            tracing::warn!(pg = %self.id, from, fresh, mine = ?self.info, "refuse activation");
            self.send(from, epoch, CtlBody::Nack { map: self.epoch() }, cx);
            return;
        }
        match self.activation_txn(info, fresh, cx.reader) {
            Ok(txn) => {
                self.role = Role::Replica { primary: from, les: epoch };
                self.submit(txn, After::Send(from, self.ctl(epoch, CtlBody::Activated)), cx);
            }
            Err(ReadError::NotReady(what)) => self.park(from, ctl, what, cx),
            Err(e) => tracing::error!(pg = %self.id, error = %e, "list objects for activation"),
        }
    }

    /// Takes over the info of an activation and gives the transaction that records it.
    pub(crate) fn activation_txn(
        &mut self,
        info: PgInfo,
        fresh: bool,
        reader: &dyn ObjectReader,
    ) -> Result<Transaction, ReadError> {
        let mut txn = Transaction::default();
        if fresh {
            // What an interrupted deletion left must not come back as part of a new PG.
            let (first, end) = self.range();
            let left = reader.list(&first, &end, usize::MAX)?;
            txn.objects.extend(left.into_iter().map(|object| ObjectUpdate { object, ops: vec![ObjectOp::Remove] }));
            self.log = crate::log::PgLog::new(info.log_tail, []);
            txn.meta.push(MetaOp::LogRemove { pg: self.id });
        }
        self.info = Some(PgInfo { log_tail: self.log.tail(), ..info });
        txn.meta.push(self.info_op());
        Ok(txn)
    }

    fn on_delete(&mut self, from: OsdId, epoch: Epoch, cx: &mut Cx<'_>) {
        let Some(view) = &self.view else { return };
        // A newer primary that we promised ourselves to will say so itself, if it still wants to.
        let promised = epoch < self.promised && self.promised_to >= 0;
        let stale = promised || self.info.as_ref().is_none_or(|i| i.les >= epoch);
        if stale || view.acting.contains(&self.osd) || !matches!(self.role, Role::Idle | Role::Replica { .. }) {
            return;
        }
        tracing::info!(pg = %self.id, from, epoch, "delete stray copy");
        self.start_removal(cx);
    }

    /// The pool is deleted.
    pub(crate) fn remove_pool_gone(&mut self, cx: &mut Cx<'_>) {
        if self.info.is_none() {
            self.check_removed(cx);
        } else {
            self.start_removal(cx);
        }
    }

    fn start_removal(&mut self, cx: &mut Cx<'_>) {
        self.leave_role(cx);
        self.role = Role::Removing;
        self.log = crate::log::PgLog::default();
        if let Some(info) = &mut self.info {
            // From here on this copy counts for nothing, even after a restart.
            *info = PgInfo {
                pg: info.pg,
                pg_num: info.pg_num,
                created: info.created,
                origin: info.origin,
                primary: -1,
                ..PgInfo::default()
            };
        }
        let txn = Transaction { objects: Vec::new(), meta: vec![self.info_op(), MetaOp::LogRemove { pg: self.id }] };
        self.submit(txn, After::Remove, cx);
    }

    /// Deletes the next objects, and the last trace after the last object.
    pub(crate) fn remove_more(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.role, Role::Removing) {
            return;
        }
        let (first, end) = self.range();
        match cx.reader.list(&first, &end, self.cfg.remove_batch.max(1)) {
            Ok(objects) if objects.is_empty() => {
                self.info = None;
                self.role = Role::Idle;
                let txn = Transaction { objects: Vec::new(), meta: vec![self.info_op()] };
                self.submit(txn, After::Gone, cx);
            }
            Ok(objects) => {
                let objects = objects.into_iter().map(|object| ObjectUpdate { object, ops: vec![ObjectOp::Remove] });
                let txn = Transaction { objects: objects.collect(), meta: Vec::new() };
                self.submit(txn, After::Remove, cx);
            }
            Err(ReadError::NotReady(what)) => {
                let n = self.seq();
                self.pump_read = Some(n);
                cx.out.push(PgEffect::Prefetch(crate::ReadKey::Recovery(n), what));
            }
            Err(e) => tracing::error!(pg = %self.id, error = %e, "list objects for deletion"),
        }
    }

    /// A notice that peering's own transactions are durable.
    pub(crate) fn on_step(&mut self, epoch: Epoch, step: Step, cx: &mut Cx<'_>) {
        match step {
            Step::Pulled(seq) => self.on_pull_durable(epoch, seq, cx),
            Step::Finished => self.on_finished(self.osd, epoch, cx),
            Step::Sealed => self.on_sealed(self.osd, epoch, cx),
            Step::Activated => self.on_activated(self.osd, epoch, cx),
        }
    }
}
