//! Requests of our own making, each over a connection of its own number.

use crate::client::object;
use crate::world::World;
use bytes::Bytes;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::{MOsdOp, MOsdOpReply};
use spirula_pg::exec::Timeouts;
use spirula_pg::{ClientOp, Patience, PgEvent};
use spirula_types::{
    AddrVec, EntityAddr, EntityName, Epoch, ObjectLocator, OsdId, Peer, ReqId, SpgId,
};
use std::sync::Arc;

/// Whoever asks by hand, and of whom.
pub struct Hand {
    pub w: World,
    pub at: OsdId,
    pub id: SpgId,
    pub patience: Patience,
    /// Which object.
    pub object: usize,
    /// The map that it has, if not the newest.
    pub epoch: Option<Epoch>,
    /// The snapshots of the context, newest first.
    pub snaps: Vec<u64>,
    next: u64,
}

impl Hand {
    /// Asks this member of the PG.
    pub fn new(w: World, member: Peer) -> Self {
        let id = SpgId::new(crate::scenarios::PG, member.shard);
        // Another may have asked before.
        let next = w.told.range(900_000..).next_back().map_or(0, |(op, _)| op - 900_000);
        Self {
            w,
            at: member.osd,
            id,
            patience: Patience::Endless,
            object: 0,
            epoch: None,
            snaps: Vec::new(),
            next,
        }
    }

    /// The client that asks over this connection.
    pub fn name(conn: u64) -> EntityName {
        EntityName::client(7000 + conn)
    }

    /// Where it is: it has two addresses, of which this is the second one, as a map names it that
    /// shuts it out.
    pub fn fence(conn: u64) -> EntityAddr {
        EntityAddr { kind: EntityAddr::KIND_ANY, ..Self::addrs(conn).0[1] }
    }

    fn addrs(conn: u64) -> AddrVec {
        let at = |port, kind| EntityAddr {
            kind,
            nonce: conn as u32,
            addr: Some(([10, 0, 3, 1], port).into()),
        };
        AddrVec(vec![at(1, EntityAddr::KIND_MSGR2), at(2, EntityAddr::KIND_LEGACY)])
    }

    pub fn send(&mut self, conn: u64, what: OsdOp) -> u64 {
        self.request(conn, None, 0, vec![what])
    }

    /// Sends a request, or one that was sent before again; its number.
    pub fn request(&mut self, conn: u64, before: Option<u64>, flags: u32, what: Vec<OsdOp>) -> u64 {
        self.next += 1;
        let (op, o) = (900_000 + self.next, object(self.object));
        let locator =
            ObjectLocator { pool: 1, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        let mut msg = Box::new(MOsdOp::new(self.id, o.hash, locator, o.name, what));
        (msg.epoch, msg.flags) = (self.epoch.unwrap_or(self.w.map().epoch), flags);
        (msg.snap_seq, msg.snaps) = (self.snaps.first().copied().unwrap_or(0), self.snaps.clone());
        let reqid = ReqId { name: Self::name(conn), tid: before.unwrap_or(op), inc: 0 };
        let (addrs, patience, timeouts) =
            (Arc::new(Self::addrs(conn)), self.patience, Timeouts::default());
        let request = ClientOp { id: op, conn, reqid, addrs, msg, patience, timeouts };
        self.w.event(self.at, self.id, PgEvent::Client(request));
        op
    }

    /// Lets some time pass, in which the answer may come.
    pub fn waited(mut self, op: u64) -> World {
        for _ in 0..2000 {
            if self.w.told.contains_key(&op) {
                break;
            }
            self.w.step();
        }
        self.w
    }

    /// The answer.
    pub fn answer(&mut self, op: u64) -> Result<MOsdOpReply, String> {
        for _ in 0..20_000 {
            if let Some(r) = self.w.told.get(&op) {
                return Ok(r.clone());
            }
            self.w.step();
        }
        let state = self.w.nodes[self.at as usize].pgs[&self.id].state().0;
        Err(format!("request {} is not answered, the pg is {state}", op - 900_000))
    }

    /// The answer's data.
    pub fn wait(&mut self, op: u64) -> Result<Bytes, String> {
        Ok(self.answer(op)?.ops.first().map(|o| o.op.indata.clone()).unwrap_or_default())
    }
}
