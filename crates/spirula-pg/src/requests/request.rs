//! One request: who asks for what, what was read for it, and the phase in which it is.
//!
//! A request is in one [`Phase`] at a time. It waits in one place, its queue, and its phase says
//! what for; whoever finds out that it has to wait, or that it may go on, says so by
//! [`Request::enter`], which tells the shell, too. The phase is no ornament: a queue stands still
//! because its first request is in [`Phase::Read`], and others pass a request because it is in
//! [`Phase::Clone`].

use crate::api::{ClientOp, ConnId, MapView, OpId, Patience, PgEffect, Phase};
use crate::core::Cx;
use crate::erasure::read::Gathered;
use crate::exec::{self, Fetched, OpClass, WatchKey};
use crate::watch::Who;
use spirula_types::{EntityType, Epoch};

/// A request in the PG.
#[derive(Debug)]
pub(crate) struct Request {
    pub op: ClientOp,
    pub(super) class: OpClass,
    /// Order of arrival.
    pub(super) arrival: u64,
    phase: Phase,
    /// Epoch of the newest map that its client was sent because of it.
    pub(super) shared: Epoch,
    pub(super) fetched: Option<Box<Fetched>>,
    /// What was read from shards for it.
    pub(super) gathered: Gathered,
    /// A request of our own, which nobody wants an answer to.
    pub(super) own: Option<Own>,
}

/// What a request of our own does. It takes its turn like others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// It removes this watch.
    Unwatch(WatchKey),
    /// It trims the object, for the walk of this number.
    Trim(u64),
}

/// Requests of a PG's own have numbers from here on: no shell gives such.
pub(super) const OWN_OPS: OpId = 1 << 63;

impl Request {
    pub fn id(&self) -> OpId {
        self.op.id
    }

    pub fn conn(&self) -> ConnId {
        self.op.conn
    }

    /// A client's request.
    pub(super) fn of_client(op: ClientOp, arrival: u64) -> Self {
        let class = exec::classify(&op.msg.ops);
        let (phase, gathered) = (Phase::Arrived, Gathered::default());
        Self { op, class, arrival, phase, shared: 0, fetched: None, gathered, own: None }
    }

    /// What it does, if it is our own.
    pub fn own(&self) -> Option<Own> {
        self.own
    }

    /// Who asks.
    pub fn who(&self) -> Who {
        Who { conn: self.op.conn, name: self.op.reqid.name }
    }

    /// Its client's connection is gone.
    pub fn lose_connection(&mut self) {
        self.op.conn = 0;
    }

    pub fn patience(&self) -> Patience {
        self.op.patience
    }

    /// It comes into a phase. Its shell, which has the clock, is told; of our own requests nobody
    /// is.
    pub fn enter(&mut self, phase: Phase, cx: &mut Cx<'_>) {
        if self.phase != phase {
            self.phase = phase;
            if self.own.is_none() {
                cx.out.push(PgEffect::Phase(self.op.id, phase));
            }
        }
    }

    /// What it waited for may be there, and it is looked at in this event or the next: in which
    /// phase it is then, is found out.
    pub(super) fn look_again(&mut self) {
        self.phase = Phase::Arrived;
    }

    /// The role ends: it begins anew, with the next one.
    pub(super) fn begin_anew(&mut self, cx: &mut Cx<'_>) {
        (self.fetched, self.gathered) = (None, Gathered::default());
        self.enter(Phase::Peered, cx);
    }

    /// Is something read for it?
    pub(super) fn is_reading(&self) -> bool {
        self.phase == Phase::Read
    }

    /// Do others go before it?
    pub(super) fn stands_apart(&self) -> bool {
        self.phase == Phase::Clone
    }

    /// Is it of a client that this map shuts out? Our own requests are nobody's.
    pub(super) fn is_shut_out(&self, view: Option<&MapView>) -> bool {
        self.own.is_none() && view.is_some_and(|v| v.shuts_out_any(&self.op.addrs))
    }

    /// An OSD reads the source of a copy. Clients' requests have no order with it.
    pub(super) fn is_source_read(&self) -> bool {
        !self.class.write && self.op.reqid.name.kind == EntityType::Osd as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Now;
    use crate::exec::Timeouts;
    use crate::exec::tests::{MemStore, object};
    use crate::lease::Leases;
    use spirula_messages::ceph::osd::MOsdOp;
    use spirula_types::{ObjectLocator, PgId, ReqId, SpgId};
    use std::sync::Arc;

    #[test]
    fn a_phase_is_told_once_and_of_our_own_requests_none_is() {
        let object = object("o");
        let (key, namespace) = (object.key.clone(), object.namespace.clone());
        let locator = ObjectLocator { pool: object.pool, key, namespace, hash: -1 };
        let msg = MOsdOp::new(
            SpgId::whole(PgId::new(1, 0)),
            object.hash,
            locator,
            object.name,
            Vec::new(),
        );
        let (reqid, addrs, patience) = (ReqId::default(), Arc::default(), Patience::Endless);
        let timeouts = Timeouts::default();
        let op = ClientOp { id: 7, conn: 1, reqid, addrs, msg: Box::new(msg), patience, timeouts };
        let (store, leases, mut out) = (MemStore::default(), Leases::new(1000, 0), Vec::new());
        let now = Now { mono_ms: 0, wall: spirula_encoding::UTime::ZERO };
        let mut cx = Cx { now, reader: &store, leases: &leases, out: &mut out };
        let mut q = Request::of_client(op, 1);
        for phase in [Phase::Arrived, Phase::Peered, Phase::Peered, Phase::Read] {
            q.enter(phase, &mut cx);
        }
        assert!(q.is_reading());
        // What was read has come, and more is to be read.
        q.look_again();
        assert!(!q.is_reading());
        q.enter(Phase::Read, &mut cx);
        q.own = Some(Own::Trim(1));
        q.enter(Phase::Execute, &mut cx);
        assert_eq!(
            out,
            [Phase::Peered, Phase::Read, Phase::Read].map(|phase| PgEffect::Phase(7, phase))
        );
    }
}
