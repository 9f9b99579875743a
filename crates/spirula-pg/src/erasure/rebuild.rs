//! Making lacking shards of an object: read `k` others, compute, send; piece by piece.

use super::read::For;
use super::stripe::rebuild;
use crate::api::{PeerMsg, PgEffect};
use crate::exec::{INFO_ATTR, ObjectInfo};
use crate::pg::{After, Cx, Pg, Role, Step};
use bytes::Bytes;
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::{CopyCursor, PgTxn, TxnKind};
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{EVersion, HObject, Peer};
use std::collections::BTreeSet;

/// One object's shards being made.
#[derive(Debug)]
pub(crate) struct Rebuild {
    pub targets: Vec<Peer>,
    need: EVersion,
    /// First stripe of the present piece, and after its last.
    stripes: (u64, u64),
    more: bool,
    pub seq: u64,
    pub waiting: BTreeSet<Peer>,
    /// What those were sent.
    pub sent: Vec<(Peer, PgTxn)>,
}

impl Pg {
    /// Begins to make the shards of `targets`.
    pub(crate) fn rebuild_object(&mut self, object: &HObject, targets: Vec<Peer>, need: EVersion) {
        let Role::Active(a) = &mut self.role else { return };
        let r =
            Rebuild { targets, need, stripes: (0, 0), more: true, seq: 0, waiting: BTreeSet::new(), sent: Vec::new() };
        a.recovery.begin_rebuild(object, r);
    }

    /// Reads the next piece. Not while a write of the object is under way: what is rebuilt must
    /// never be taken back.
    pub(crate) fn rebuild_piece(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let Some(shape) = self.core.shape() else { return };
        let n = (self.core.cfg.push_bytes / shape.width()).max(1);
        let busy = self.requests.has_inflight(object);
        let Role::Active(a) = &mut self.role else { return };
        if busy {
            a.recovery.hold(object);
            return;
        }
        let Some(r) = a.recovery.rebuild(object) else { return };
        r.stripes = (r.stripes.1, r.stripes.1 + n);
        let (need, stripes) = (r.need, r.stripes);
        if !self.gather(object, need, stripes, For::Rebuild, cx) {
            self.rebuild_failed(object, cx);
        }
    }

    /// `k` shards of the piece are here.
    pub(crate) fn on_rebuild_read(
        &mut self,
        object: &HObject,
        have: Vec<(usize, Bytes)>,
        attrs: Vec<(Bytes, Bytes)>,
        cx: &mut Cx<'_>,
    ) {
        let Some(shape) = self.core.shape() else { return };
        let info = attrs.iter().find(|(k, _)| k == INFO_ATTR).and_then(|(_, v)| from_slice::<ObjectInfo>(v).ok());
        let seq = self.core.seq();
        let (id, me, since) = (self.core.id, self.core.me, self.core.interval.since);
        let follows = self.core.info.as_ref().map(|i| i.last_update()).unwrap_or_default();
        let Role::Active(a) = &mut self.role else { return };
        let Some(r) = a.recovery.rebuild(object) else { return };
        let Some(info) = info.filter(|i| i.version == r.need) else {
            tracing::error!(pg = %id, %object, "shards without the object's record");
            return self.rebuild_failed(object, cx);
        };
        let total = shape.stripes(info.size);
        let first = r.stripes.0 == 0;
        r.more = r.stripes.1 < total;
        (r.seq, r.waiting) = (seq, r.targets.iter().copied().collect());
        let (targets, at, more) = (r.targets.clone(), r.stripes.0 * shape.unit, r.more);
        let want: Vec<usize> = targets.iter().map(|t| t.shard.max(0) as usize).collect();
        let made = match rebuild(&shape, &have, &want) {
            Ok(made) => made,
            Err(e) => {
                tracing::error!(pg = %id, %object, error = %e, "rebuild shards");
                return self.rebuild_failed(object, cx);
            }
        };
        a.recovery.fly(seq, object);
        let mut bytes = 0;
        let mut own = None;
        let mut sent = Vec::new();
        for (to, data) in targets.into_iter().zip(made) {
            let mut ops = Vec::new();
            if first {
                ops.extend([ObjectOp::Remove, ObjectOp::Touch]);
            }
            bytes += data.len() as u64;
            if !data.is_empty() {
                ops.push(ObjectOp::Write { offset: at, data });
            }
            if !more {
                ops.push(ObjectOp::Truncate { size: shape.shard_len(info.size) });
                ops.push(ObjectOp::SetAttrs(attrs.clone()));
            }
            let update = ObjectUpdate { object: object.clone(), ops };
            let txn = Transaction { objects: vec![update], meta: Vec::new() };
            if to == me {
                own = Some(txn);
                continue;
            }
            let (header, payload) = txn.split();
            let t = PgTxn {
                pg: id,
                ends: self.core.ends(to),
                epoch: since,
                kind: TxnKind::Push,
                seq,
                version: EVersion::default(),
                follows,
                next: more.then(CopyCursor::default),
                header: header.into(),
                payload,
            };
            sent.push((to, t.clone()));
            cx.out.push(PgEffect::Send(to, PeerMsg::Txn(t)));
        }
        if let Role::Active(a) = &mut self.role
            && let Some(r) = a.recovery.rebuild(object)
        {
            r.sent = sent;
        }
        self.stat.recovered_bytes += bytes as i64;
        cx.out.push(PgEffect::Recovered { objects: 0, bytes });
        if let Some(txn) = own {
            self.requests.forget_object(object);
            self.apply_piece(txn, !more, After::Step { since, step: Step::Rebuilt(seq) }, cx);
        }
    }

    /// A target has a piece durably; true if the object is being rebuilt.
    pub(crate) fn on_rebuilt(&mut self, from: Peer, seq: u64, object: &HObject, cx: &mut Cx<'_>) -> bool {
        let me = self.core.me;
        let Role::Active(a) = &mut self.role else { return false };
        let Some(r) = a.recovery.rebuild(object) else { return false };
        if r.seq != seq || !r.waiting.remove(&from) || !r.waiting.is_empty() {
            return true;
        }
        let (more, targets) = (r.more, r.targets.clone());
        a.recovery.landed(seq);
        if more {
            a.recovery.resume(object);
        } else {
            for t in &targets {
                if let Some(p) = a.peers.get_mut(t) {
                    p.missing.remove(object);
                }
                a.recovery.filled(*t, object);
            }
            for t in targets {
                self.copy_repaired(object, t, me, cx);
            }
            self.object_done(object, cx);
        }
        self.pump(cx);
        true
    }

    /// Fewer than `k` shards are to be had.
    pub(crate) fn rebuild_failed(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        tracing::warn!(pg = %self.core.id, %object, "object is unfound: too few shards");
        let Role::Active(a) = &mut self.role else { return };
        a.recovery.give_up(object);
        self.repairs.report_lost(&self.core, object, cx);
        cx.out.push(PgEffect::StateChanged);
        self.settled(cx);
    }
}
