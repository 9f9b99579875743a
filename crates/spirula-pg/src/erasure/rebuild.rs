//! Making lacking shards of an object: read `k` others, compute, send; piece by piece. What a shard
//! shares with those of the head and clones beside it is taken of these, in whole stripes
//! (`recovery::share`), and neither read nor sent.

use super::Shape;
use super::read::For;
use super::stripe::{Stripes, rebuild};
use crate::api::{PeerMsg, PgEffect};
use crate::commits::{After, Step};
use crate::core::Cx;
use crate::exec::{INFO_ATTR, ObjectInfo, Prefetch, ReadError, SNAPSET_ATTR};
use crate::lead::Lead;
use crate::recovery::share::{Family, Way};
use bytes::Bytes;
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::{CopyCursor, PgTxn, TxnKind};
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{Dirty, EVersion, HObject, Peer, SNAP_HEAD};
use std::collections::BTreeSet;

/// One object's shards being made.
#[derive(Debug)]
pub(crate) struct Rebuild {
    pub targets: Vec<Peer>,
    pub need: EVersion,
    /// First stripe of the present piece, and after its last.
    stripes: Stripes,
    /// What is to be sent, ascending; all of it until the first piece is read.
    lacking: Vec<Stripes>,
    pub seq: u64,
    pub waiting: BTreeSet<Peer>,
    /// What those were sent.
    pub sent: Vec<(Peer, PgTxn)>,
}

impl Rebuild {
    /// Is all of it on its way?
    pub fn is_sent(&self) -> bool {
        !self.waiting.is_empty() && !self.more()
    }

    /// Is there anything to be sent behind the present piece?
    fn more(&self) -> bool {
        next_piece(&self.lacking, self.stripes.1, 1).is_some()
    }
}

/// The next stripes to be read, `most` at once, from `from` on: what lies between two that are
/// lacking comes along.
fn next_piece(lacking: &[Stripes], from: u64, most: u64) -> Option<Stripes> {
    let first = lacking.iter().map(|(a, b)| ((*a).max(from), *b)).find(|(a, b)| a < b)?.0;
    let last = lacking.last()?.1;
    Some((first, first.saturating_add(most).min(last)))
}

/// The stripes that do not come by this way, of so many.
fn lacking(way: &Way, shape: &Shape, stripes: u64) -> Vec<Stripes> {
    let w = shape.width();
    match &way.lacks {
        Dirty::Parts { data, .. } if !way.taken.is_empty() => {
            data.iter().map(|(a, b)| (a / w, b.div_ceil(w))).collect()
        }
        _ if stripes == 0 => Vec::new(),
        _ => vec![(0, stripes)],
    }
}

/// The part of a shard in taking a range of whole stripes.
fn of_shard(op: ObjectOp, shape: &Shape) -> ObjectOp {
    match op {
        ObjectOp::CloneRange { from, offset, length, .. } => {
            let (first, end) = (offset / shape.width(), shape.stripes(offset + length));
            let at = first * shape.unit;
            ObjectOp::CloneRange { from, offset: at, length: (end - first) * shape.unit, to: at }
        }
        op => op,
    }
}

impl Lead<'_> {
    /// Begins to make the shards of `targets`.
    pub(crate) fn rebuild_object(&mut self, object: &HObject, targets: Vec<Peer>, need: EVersion) {
        let a = &mut *self.primary;
        let r = Rebuild {
            targets,
            need,
            stripes: (0, 0),
            lacking: vec![(0, u64::MAX)],
            seq: 0,
            waiting: BTreeSet::new(),
            sent: Vec::new(),
        };
        a.recovery.begin_rebuild(object, r);
    }

    /// Reads the next piece. Not while a write of the object is under way: what is rebuilt must
    /// never be taken back.
    pub(crate) fn rebuild_piece(
        &mut self,
        object: &HObject,
        cx: &mut Cx<'_>,
    ) -> Result<(), Prefetch> {
        let Some(shape) = self.core.shape() else { return Ok(()) };
        // Read by now, what is looked at again when the shards have come is at hand then.
        if let Some(r) = self.primary.recovery.rebuild(object)
            && r.stripes == (0, 0)
        {
            let targets = r.targets.clone();
            self.shared_way(object, &targets, None, cx)?;
        }
        let n = (self.core.cfg.push_bytes / shape.width()).max(1);
        let busy = self.requests.has_inflight(object);
        let a = &mut *self.primary;
        if busy {
            a.recovery.hold(object);
            return Ok(());
        }
        let Some(r) = a.recovery.rebuild(object) else { return Ok(()) };
        r.stripes = next_piece(&r.lacking, r.stripes.1, n).unwrap_or((r.stripes.1, r.stripes.1));
        let (need, stripes) = (r.need, r.stripes);
        if !self.gather(object, need, stripes, For::Rebuild, cx) {
            self.rebuild_failed(object, cx);
        }
        Ok(())
    }

    /// What the shards share with those beside them cannot be known before this is read: then all
    /// begins anew.
    fn rebuild_when_read(&mut self, object: &HObject, what: Prefetch, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if let Some((targets, need)) = a.recovery.refuse_rebuild(object) {
            self.rebuild_object(object, targets, need);
        }
        if !self.primary.recovery.is_reading() {
            self.read_for_pump(what, cx);
        }
    }

    /// What the shards of these targets share with those beside them. `record`: the values of the
    /// head's attributes, if it is what is made and they are known.
    fn shared_way(
        &self,
        object: &HObject,
        targets: &[Peer],
        record: Option<Family>,
        cx: &Cx<'_>,
    ) -> Result<Way, Prefetch> {
        // Stores share whole blocks.
        let Some(shape) =
            self.core.shape().filter(|s| s.unit.is_multiple_of(self.core.cfg.share_block))
        else {
            return Ok(Way::default());
        };
        let way = || -> Result<Way, ReadError> {
            let family = match record {
                Some(family) => Some(family),
                None => self.core.family_of(object, cx)?,
            };
            let Some(family) = family else { return Ok(Way::default()) };
            let relatives = self.relatives_at(&family, object, targets, cx)?;
            Ok(family.way(object, &relatives, shape.width()))
        };
        match way() {
            Ok(way) => Ok(way),
            Err(ReadError::NotReady(what)) => Err(what),
            Err(_) => Ok(Way::default()),
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
        let info = attrs
            .iter()
            .find(|(k, _)| k == INFO_ATTR)
            .and_then(|(_, v)| from_slice::<ObjectInfo>(v).ok());
        let first = self.primary.recovery.rebuild(object).filter(|r| r.stripes.0 == 0);
        let targets = first.map(|r| r.targets.clone());
        let mut way = None;
        if let Some(targets) = targets {
            let snapset = attrs.iter().find(|(k, _)| k == SNAPSET_ATTR).map(|(_, v)| &v[..]);
            let record = info
                .as_ref()
                .filter(|_| object.snap == SNAP_HEAD)
                .and_then(|i| Family::of(i, snapset));
            way = Some(match self.shared_way(object, &targets, record, cx) {
                Ok(way) => way,
                Err(what) => return self.rebuild_when_read(object, what, cx),
            });
        }
        let seq = self.core.seq();
        let (id, me, since) = (self.core.id, self.core.me, self.core.interval().since);
        let follows = self.core.info().map(|i| i.last_update()).unwrap_or_default();
        let a = &mut *self.primary;
        let Some(r) = a.recovery.rebuild(object) else { return };
        let Some(info) = info.filter(|i| i.version == r.need) else {
            tracing::error!(pg = %id, %object, "shards without the object's record");
            return self.rebuild_failed(object, cx);
        };
        let first = way.is_some();
        let way = way.unwrap_or_default();
        if first {
            r.lacking = lacking(&way, &shape, shape.stripes(info.size));
        }
        let (piece, lacking) = (r.stripes, r.lacking.clone());
        let more = r.more();
        (r.seq, r.waiting) = (seq, r.targets.iter().copied().collect());
        let targets = r.targets.clone();
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
                ops.extend(way.ops().map(|op| of_shard(op, &shape)));
            }
            for (from, end) in
                lacking.iter().map(|(from, end)| ((*from).max(piece.0), (*end).min(piece.1)))
            {
                let at = |stripe: u64| {
                    (stripe.saturating_sub(piece.0) * shape.unit).min(data.len() as u64) as usize
                };
                if from < end && at(from) < at(end) {
                    let data = data.slice(at(from)..at(end));
                    bytes += data.len() as u64;
                    ops.push(ObjectOp::Write { offset: from * shape.unit, data });
                }
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
                beside: way.beside(),
                lacks: Dirty::All,
                header: header.into(),
                payload,
            };
            sent.push((to, t.clone()));
            cx.out.push(PgEffect::Send(to, PeerMsg::Txn(t)));
        }
        let a = &mut *self.primary;
        if let Some(r) = a.recovery.rebuild(object) {
            r.sent = sent;
            if !more {
                a.recovery.release_relatives(object);
            }
        }
        self.stat.recovered_bytes += bytes as i64;
        cx.out.push(PgEffect::Recovered { objects: 0, bytes });
        if let Some(txn) = own {
            self.requests.forget_object(object);
            let after = After::Step { since, step: Step::Rebuilt(seq) };
            self.repairs.apply_piece(self.core, true, txn, !more, after, cx);
        }
    }

    /// A target has a piece durably; true if the object is being rebuilt.
    pub(crate) fn on_rebuilt(
        &mut self,
        from: Peer,
        seq: u64,
        object: &HObject,
        cx: &mut Cx<'_>,
    ) -> bool {
        let me = self.core.me;
        let a = &mut *self.primary;
        let Some(r) = a.recovery.rebuild(object) else { return false };
        if r.seq != seq || !r.waiting.remove(&from) || !r.waiting.is_empty() {
            return true;
        }
        let (more, targets) = (r.more(), r.targets.clone());
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
        let a = &mut *self.primary;
        a.recovery.give_up(object);
        self.repairs.report_lost(self.core, object, cx);
        cx.out.push(PgEffect::StateChanged);
        self.settled(cx);
    }
}
