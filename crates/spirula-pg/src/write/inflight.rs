//! Writes that are not durable everywhere: who has made what durable, and the answers when all
//! have.

use crate::api::{ConnId, OpId, PgEffect, Phase};
use crate::core::Cx;
use crate::exec::WatchEffect;
use crate::lead::Lead;
use crate::requests::Request;
use spirula_messages::ceph::osd::{MOsdOpReply, OpResult};
use spirula_messages::cluster::pg::RepAck;
use spirula_messages::cluster::write::{PgWrite, WriteRecord};
use spirula_types::{EVersion, Epoch, HObject, Peer};
use std::sync::Arc;

/// What is answered when a write is durable everywhere, and to whom.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The result.
    pub result: i32,
    /// That of each op.
    pub results: Vec<OpResult>,
    /// What becomes of watches then.
    pub watch: Vec<WatchEffect>,
    /// The request and its resends; nobody for a write of our own.
    pub ops: Vec<Request>,
}

/// A write that is not durable everywhere.
#[derive(Debug)]
pub(crate) struct Inflight {
    record: Arc<WriteRecord>,
    answer: Answer,
    /// What each other member was sent.
    pub sent: Vec<(Peer, Arc<PgWrite>)>,
}

impl Inflight {
    pub fn new(record: Arc<WriteRecord>, answer: Answer) -> Self {
        Self { record, answer, sent: Vec::new() }
    }

    /// Its newest entry.
    pub fn version(&self) -> EVersion {
        self.record.head.last_update
    }

    /// What a member was sent of it.
    pub fn sent_to(&self, member: Peer) -> Option<&Arc<PgWrite>> {
        self.sent.iter().find(|(m, _)| *m == member).map(|(_, w)| w)
    }

    /// Does this request wait for it?
    pub fn has(&self, op: OpId) -> bool {
        self.answer.ops.iter().any(|q| q.op.id == op)
    }

    /// Does this connection wait for it?
    pub fn is_of(&self, conn: ConnId) -> bool {
        self.answer.ops.iter().any(|q| q.op.conn == conn)
    }

    /// The objects of its entries.
    pub fn objects(&self) -> impl Iterator<Item = &HObject> {
        self.record.entries.iter().map(|e| &e.entry.object)
    }

    /// The requests that wait for it.
    pub fn into_requests(self) -> Vec<Request> {
        self.answer.ops
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: ConnId) {
        self.answer.ops.iter_mut().filter(|q| q.conn() == conn).for_each(Request::lose_connection);
    }

    /// A request that was sent again waits for it, too.
    pub fn join(&mut self, mut q: Request, cx: &mut Cx<'_>) {
        q.enter(Phase::Commit, cx);
        self.answer.ops.push(q);
    }
}

impl Lead<'_> {
    pub(crate) fn on_local_commit(&mut self, since: Epoch, version: EVersion) {
        if self.core.interval().since == since {
            self.primary.local = version;
        }
    }

    pub(crate) fn on_ack(&mut self, from: Peer, ack: &RepAck, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if let Some((_, v)) = a.replicas.iter_mut().find(|(o, _)| *o == from) {
            *v = ack.version.max(*v);
        }
        self.advance(cx);
    }

    /// Answers writes that are durable everywhere.
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        a.committed = a.replicas.iter().map(|(_, v)| *v).fold(a.local, EVersion::min);
        let committed = a.committed;
        let (mut ready, mut resumed) = (Vec::new(), false);
        while let Some(f) = self.primary.inflight.pop_front_if(|f| f.version() <= committed) {
            for object in f.objects() {
                let Some(waits) = self.requests.durable(object) else { continue };
                resumed |= self.primary.recovery.release_held(object);
                if waits {
                    ready.push(object.to_head());
                }
            }
            let user_version = f.record.entries.last().map_or(0, |e| e.entry.user_version);
            let object = f.record.entries.last().map(|e| e.entry.object.clone());
            let (version, Answer { result, mut results, watch, ops }) = (f.version(), f.answer);
            for (i, q) in ops.iter().enumerate().filter(|(_, q)| q.own().is_none()) {
                // Nearly always there is one request, which gets them all.
                let last = i + 1 == ops.len();
                let mut reply = if q.op.msg.ops.len() != results.len() {
                    self.reply_to(q, result, MOsdOpReply::none(&q.op.msg))
                } else {
                    let results = if last { std::mem::take(&mut results) } else { results.clone() };
                    self.reply_to(q, result, results)
                };
                reply.replay_version = version;
                reply.user_version = user_version;
                cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
            }
            // The newest request is that of the newest connection.
            if let (Some(object), Some(q)) = (object, ops.last()) {
                self.watch_effects(&object, &watch, q.who(), user_version, cx);
                if let Some(own) = q.own() {
                    self.own_written(&object, own, cx);
                }
            }
        }
        for object in ready {
            self.run_object(&object, cx);
        }
        if resumed {
            self.pump(cx);
        }
        self.scrub_drained(cx);
    }
}
