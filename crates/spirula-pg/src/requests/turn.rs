//! Turns: a request arrives, waits in its object's queue, is executed when its turn has come, and
//! is answered, or is handed to `write`.

use super::execute::asker;
use super::request::{OWN_OPS, Own, Request};
use super::{Admitted, Context, refuse};
use crate::api::{ClientOp, OpId, Patience, PgEffect, Phase, ReadKey};
use crate::core::Cx;
use crate::erasure::sound;
use crate::erasure::stripe::Piece;
use crate::exec::{self, Effect, Fetched, OpContext, Origin, Outcome, Pause, Prefetch, Timeouts};
use crate::lead::Lead;
use crate::listing::WithMissing;
use crate::log::Dup;
use crate::pg::Pg;
use crate::snap::{self, SnapContext};
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::{MOsdOp, MOsdOpReply, OpResult, flag};
use spirula_types::{EVersion, HObject, ObjectLocator, ReqId, SpgId, errno};
use std::sync::Arc;

/// What our shards are for a write ([`Lead::has_sound_shards`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sound {
    Yes,
    /// The request waits until that is read.
    NotRead,
    /// One is not sound, and is replaced from now on.
    Replaced,
    /// One is not sound, and nobody can be asked for it: its version is known to nobody here.
    No,
}

impl Pg {
    pub(crate) fn on_client(&mut self, op: ClientOp, cx: &mut Cx<'_>) {
        self.requests.arrivals += 1;
        let q = Request::of_client(op, self.requests.arrivals);
        let standing = self.standing();
        match self.lead() {
            Some(mut lead) => lead.take_in(q, cx),
            None => {
                self.requests.admit(q, &self.core, &mut self.held, standing, cx);
            }
        }
    }

    /// Lets waiting requests try again: a new map, or the PG became active.
    pub(crate) fn run_waiting(&mut self, cx: &mut Cx<'_>) {
        let standing = self.standing();
        match self.lead() {
            Some(mut lead) => lead.run_waiting(cx),
            None => self.requests.wait_on(&self.core, &mut self.held, standing, cx),
        }
    }
}

impl Lead<'_> {
    // ---- arrival ----

    fn admit(&mut self, q: Request, cx: &mut Cx<'_>) -> Option<HObject> {
        let standing = self.primary.standing();
        match self.requests.admit(q, self.core, self.held, standing, cx) {
            Admitted::No => None,
            Admitted::Object(object) => Some(object),
            Admitted::Pg => {
                self.run_pg_queue(cx);
                None
            }
        }
    }

    /// A request comes.
    fn take_in(&mut self, q: Request, cx: &mut Cx<'_>) {
        if let Some(object) = self.admit(q, cx) {
            self.run_object(&object, cx);
        }
    }

    /// Lets waiting requests try again: a new map, or the PG became active.
    pub(crate) fn run_waiting(&mut self, cx: &mut Cx<'_>) {
        if self.primary.serves() {
            self.held.unblock_pg(cx);
        }
        // All before any is executed: an object's queue is to hold all requests of a connection, or
        // none, when clients are told to hold them back.
        let mut objects = Vec::new();
        for q in std::mem::take(&mut self.requests.waiting) {
            objects.extend(self.admit(q, cx).filter(|o| !objects.contains(o)));
        }
        objects.iter().for_each(|o| self.run_object(o, cx));
    }

    /// An object is recovered, or will not be for now: requests on it try again. (Those that use a
    /// clone wait in the queue of its head, and those that only read it stand apart there.)
    pub(crate) fn run_recovered(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let head = object.to_head();
        self.requests.rejoin(&head);
        self.unblock_object(&head, cx);
        if self.requests.contexts.contains_key(&head) {
            self.run_object(&head, cx);
        }
    }

    /// Clients whom the map shuts out wait for no copy any more: what it holds is for others.
    pub(crate) fn give_up_copies(&mut self, cx: &mut Cx<'_>) {
        if planted!(self.core.cfg, FenceAtArrival) {
            return;
        }
        let view = self.core.view.as_deref();
        let fenced = |(object, c): (&HObject, &Context)| {
            let q = c.queue.iter().find(|q| Some(q.op.id) == c.copying)?;
            q.is_shut_out(view).then(|| (object.clone(), q.op.id))
        };
        let mut fenced: Vec<(HObject, OpId)> =
            self.requests.contexts.iter().filter_map(fenced).collect();
        fenced.sort();
        for (object, op) in fenced {
            self.requests.reads.remove(&op);
            let Some(c) = self.requests.contexts.get_mut(&object) else { continue };
            c.copying = None;
            let at = c.queue.iter().position(|q| q.op.id == op);
            if let Some(q) = at.and_then(|at| c.queue.remove(at)) {
                self.reply_error(&q, -errno::ESHUTDOWN, cx);
            }
            self.run_object(&object, cx);
        }
    }

    // ---- turns ----

    /// Objects put aside in earlier events.
    pub(crate) fn run_pending(&mut self, cx: &mut Cx<'_>) {
        let mut objects = std::mem::take(&mut self.requests.pending);
        objects.append(&mut self.requests.lease_waiting);
        for o in objects {
            self.run_object(&o, cx);
        }
        if std::mem::take(&mut self.requests.lease_pg) {
            self.run_pg_queue(cx);
        }
    }

    /// What a parked request waited for is there.
    pub(crate) fn on_op_ready(&mut self, op: OpId, fetched: Option<Fetched>, cx: &mut Cx<'_>) {
        let Some(whose) = self.requests.reads.remove(&op) else { return };
        let Some(object) = whose else {
            self.requests.pg_queue.front_mut().into_iter().for_each(Request::look_again);
            self.run_pg_queue(cx);
            return;
        };
        let context = self.requests.context(&object);
        if context.copying == Some(op) {
            context.copying = None;
            if let Some(q) = context.queue.iter_mut().find(|q| q.op.id == op) {
                q.fetched = fetched.map(Box::new);
                q.look_again();
            }
        } else if context.queue.front().is_some_and(|first| first.op.id == op) {
            context.look_again();
        } else {
            return;
        }
        self.run_object(&object, cx);
    }

    fn lease_held(&self, cx: &Cx<'_>) -> bool {
        self.primary.lease_holds(self.core, cx.leases, cx.now.mono_ms)
    }

    /// Executes requests on an object for as long as it can.
    pub(crate) fn run_object(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        loop {
            if self.requests.changed.contains(object) {
                self.requests.pending.push(object.clone());
                self.requests.again = true;
                return;
            }
            let Some(context) = self.requests.contexts.get_mut(object) else { return };
            if context.is_reading() || !context.next_is_first() {
                return;
            }
            let Some(first) = context.queue.front() else { return };
            if first.is_shut_out(self.core.view.as_deref())
                && !planted!(self.core.cfg, FenceAtArrival)
            {
                // Also of what was done before: that it was, its client hears no more.
                let Some(q) = context.queue.pop_front() else { return };
                self.reply_error(&q, -errno::ESHUTDOWN, cx);
                continue;
            }
            let (write, inflight) = (first.class.write, context.inflight);
            // A watch is connected by the newest request for it, for which it must be known.
            let known = !first.class.watch || context.state.is_some();
            if write && known && self.answered_before(object, cx) {
                continue;
            }
            if write && self.core.is_premerge() {
                self.requests.first_enters(object, Phase::Merge, cx);
                return; // The next interval comes back here.
            }
            if write
                && self.primary.scrub.blocks(object)
                && !planted!(self.core.cfg, ScrubBesideWrites)
            {
                self.requests.first_enters(object, Phase::Scrub, cx);
                return; // The end of the chunk comes back here.
            }
            if self.must_recover_first(object, write, cx) {
                let here = !write || self.core.missing().contains(object);
                self.requests.first_enters(
                    object,
                    if here { Phase::Missing } else { Phase::Degraded },
                    cx,
                );
                self.back_off_object(object, object, cx);
                return; // Recovery comes back here, and so does whoever was told to hold his requests.
            }
            if inflight > 0 && (!write || self.core.is_erasure()) {
                // A read shows nothing that is not durable everywhere, and shards must show one
                // version.
                self.requests.first_enters(object, Phase::Turn, cx);
                return; // The last commit comes back here.
            }
            if !write && !self.lease_held(cx) {
                self.requests.first_enters(object, Phase::Lease, cx);
                self.requests.lease_waiting.push(object.clone());
                return;
            }
            if !self.run_first(object, cx) {
                return;
            }
        }
    }

    /// If the first request of an object was applied before, answers it or joins the one in
    /// flight.
    pub(super) fn answered_before(&mut self, object: &HObject, cx: &mut Cx<'_>) -> bool {
        let Some(context) = self.requests.contexts.get_mut(object) else { return false };
        // What the PG asks of itself has no number of a client's.
        let first = context.queue.front().filter(|q| q.own.is_none());
        let Some(known) = first.and_then(|q| self.core.log().find(&q.op.reqid)) else {
            return false;
        };
        let Dup { version, user_version, result, returns, .. } = known;
        let watched = context.state.as_ref().map(|s| s.watchers.clone()).filter(|w| !w.is_empty());
        let Some(q) = context.queue.pop_front() else { return false };
        let active = &mut *self.primary;
        if let Ok(i) = active.inflight.binary_search_by(|f| f.version().cmp(&version))
            && let Some(f) = active.inflight.get_mut(i)
        {
            f.join(q, cx);
            return true;
        }
        let mut reply = MOsdOpReply::to(&q.op.msg, self.core.epoch(), result);
        reply.flags |= u64::from(flag::ONDISK);
        if !planted!(self.core.cfg, DupWithoutVersion) {
            reply.replay_version = version;
            reply.user_version = user_version;
        }
        if returns.len() == reply.ops.len() {
            for (op, r) in reply.ops.iter_mut().zip(returns) {
                (op.rval, op.op.indata) = (r.rval, r.data);
            }
        }
        cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
        if result >= 0
            && let Some(watched) = watched
        {
            self.connect_again(object, &q.op.msg.ops, &watched, q.who(), cx);
        }
        true
    }

    /// A request on an object uses a clone of it that is missing, for which recovery comes back
    /// here. May others go on?
    pub(super) fn wait_for_clone(
        &mut self,
        object: &HObject,
        op: OpId,
        clone: &HObject,
        cx: &mut Cx<'_>,
    ) -> bool {
        let queue = self.requests.contexts.get_mut(object).map(|c| &mut c.queue);
        let Some(q) = queue.and_then(|q| q.iter_mut().find(|q| q.op.id == op)) else { return true };
        if q.class.write {
            q.enter(Phase::Missing, cx);
            self.back_off_object(object, clone, cx);
            // It may be its client that holds it now.
            return !self
                .requests
                .contexts
                .get(object)
                .is_some_and(|c| c.queue.iter().any(|q| q.op.id == op));
        }
        // Nothing that comes behind it changes what it reads: it waits alone, as in Ceph.
        q.enter(Phase::Clone, cx);
        if q.patience() == Patience::Short {
            let conn = q.conn();
            self.back_off_reader(conn, object, clone, cx);
        }
        true
    }

    /// Are our shards of all that the first request of an object uses what a write is made for?
    pub(crate) fn has_sound_shards(
        &mut self,
        object: &HObject,
        op: OpId,
        used: &[(HObject, EVersion)],
        cx: &mut Cx<'_>,
    ) -> Sound {
        for (one, version) in used {
            match sound::has_sound_shard(self.core, one, *version, cx.reader) {
                Ok(true) => {}
                Err(exec::ReadError::NotReady(what)) => {
                    self.park_first(object, op, what, cx);
                    return Sound::NotRead;
                }
                bad => {
                    tracing::error!(pg = %self.core.id, object = %one, %version, ?bad, "a spoilt \
                        shard under a write");
                    return if self.heal(one, *version, cx) { Sound::Replaced } else { Sound::No };
                }
            }
        }
        Sound::Yes
    }

    /// The first request of an object waits for this. False: nothing more can be executed now.
    pub(crate) fn park_first(
        &mut self,
        object: &HObject,
        op: OpId,
        what: Prefetch,
        cx: &mut Cx<'_>,
    ) -> bool {
        self.requests.park_first(object, op, cx);
        cx.out.push(PgEffect::Prefetch(ReadKey::Op(op), what));
        false
    }

    /// An object that cannot be read here counts as missing, and its requests wait until another
    /// copy's content has replaced it: if nobody within reach has one, it is unfound until somebody
    /// returns who has. `version` is what is stored, zero if that is unknown, too. False if it is
    /// not in the log, either: then nobody can be asked for it.
    pub(crate) fn heal(&mut self, object: &HObject, version: EVersion, cx: &mut Cx<'_>) -> bool {
        let known = if version == EVersion::default() {
            self.core.log().last_made(object)
        } else {
            Some(version)
        };
        let Some(version) = known else { return false };
        if self.requests.contexts.get(object).is_some_and(|c| c.inflight > 0) {
            return true; // The last commit comes back to the request.
        }
        tracing::warn!(pg = %self.core.id, %object, %version, "unreadable here, to be fetched from \
            another copy");
        self.requests.forget_object(object);
        self.repairs.mark_unreadable(self.core, object.clone(), version, cx);
        self.reopen(cx);
        self.requests.first_enters(&object.to_head(), Phase::Missing, cx);
        self.must_recover_first(object, true, cx)
    }

    pub(super) fn conclude(
        &mut self,
        object: &HObject,
        q: Request,
        outcome: Outcome,
        pieces: &[Piece],
        cx: &mut Cx<'_>,
    ) {
        let (reads, kib) = (outcome.stats.reads, outcome.stats.read_kib);
        self.core.copy.count_read(reads, kib).with_next_write();
        match outcome.effect {
            Effect::None => {
                let mut reply = self.reply_to(&q, outcome.result, outcome.ops);
                reply.user_version = outcome.user_version;
                cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
                // Behind the answer, which names the notification.
                self.watch_effects(object, &outcome.watch, q.who(), outcome.user_version, cx);
                self.requests.evict(self.core.cfg.contexts);
            }
            Effect::LogOnly | Effect::Apply(_) => self.write(object, q, outcome, pieces, cx),
        }
    }

    /// The answer to a request, with what each op gave.
    pub(crate) fn reply_to(&self, q: &Request, result: i32, ops: Vec<OpResult>) -> MOsdOpReply {
        let mut reply = MOsdOpReply::with(&q.op.msg, self.core.epoch(), result, ops);
        reply.flags |= u64::from(flag::ONDISK);
        reply
    }

    pub(crate) fn reply_error(&mut self, q: &Request, result: i32, cx: &mut Cx<'_>) {
        if let Some(own) = q.own {
            return self.own_failed(&q.op.msg.hobject(), own, cx);
        }
        refuse(self.core, q, result, cx);
    }

    /// A request of our own on an object. `whose`: the client whom it concerns, if it is one's.
    pub(crate) fn enqueue_own(
        &mut self,
        object: &HObject,
        ops: Vec<OsdOp>,
        whose: ReqId,
        own: Own,
    ) {
        let q = self.own_request(object, ops, whose, own);
        self.requests.enqueue_own(object, q);
    }

    /// After something of an object was given up: its history and its clones are to agree before
    /// anything else is done with it.
    pub(crate) fn trim_before_others(&mut self, object: &HObject) {
        let q =
            self.own_request(object, Vec::new(), ReqId::default(), Own::Trim(snap::trim::NO_WALK));
        self.requests.enqueue_own_first(object, q);
    }

    fn own_request(
        &mut self,
        object: &HObject,
        ops: Vec<OsdOp>,
        whose: ReqId,
        own: Own,
    ) -> Request {
        self.requests.own += 1;
        let locator = ObjectLocator {
            pool: object.pool,
            key: object.key.clone(),
            namespace: object.namespace.clone(),
            hash: -1,
        };
        let spg = SpgId::new(self.core.id, self.core.me.shard);
        let op = ClientOp {
            id: OWN_OPS + self.requests.own,
            conn: 0,
            reqid: whose,
            addrs: Arc::default(),
            msg: Box::new(MOsdOp::new(spg, object.hash, locator, object.name.clone(), ops)),
            patience: Patience::Endless,
            timeouts: Timeouts::default(),
        };
        let mut q = Request::of_client(op, 0);
        q.own = Some(own);
        q.class.write = true;
        q
    }

    /// A request of our own on an object has ended without what it was for.
    pub(super) fn own_failed(&mut self, object: &HObject, own: Own, cx: &mut Cx<'_>) {
        match own {
            Own::Unwatch(key) => self.watch_not_removed(object, key, cx),
            Own::Trim(number) => self.trimmed(object, number, false, cx),
        }
    }

    /// A write of our own on an object is durable everywhere.
    pub(crate) fn own_written(&mut self, object: &HObject, own: Own, cx: &mut Cx<'_>) {
        match own {
            Own::Unwatch(key) => self.watch_not_removed(object, key, cx),
            // One write need not have been enough: it looks again. Where there is no head, the last
            // entry is a clone's.
            Own::Trim(snap::trim::NO_WALK) => self.trim_before_others(&object.to_head()),
            Own::Trim(_) => self.enqueue_own(&object.to_head(), Vec::new(), ReqId::default(), own),
        }
    }

    /// What the first request of an object needs of it cannot be made: it ends with EIO.
    pub(crate) fn op_failed(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.requests.reads.remove(&op);
        let object = &object.to_head();
        if let Some(c) = self.requests.contexts.get_mut(object) {
            c.look_again();
            if let Some(q) = c.queue.pop_front_if(|q| q.op.id == op) {
                self.reply_error(&q, -errno::EIO, cx);
            }
        }
        self.run_object(object, cx);
    }

    /// Too few shards of an object, head or clone, can be read: requests that use it wait until
    /// that changes.
    pub(crate) fn op_unreadable(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.requests.reads.remove(&op);
        let head = object.to_head();
        if let Some(c) = self.requests.contexts.get_mut(&head) {
            c.look_again();
            c.state = None;
        }
        self.primary.recovery.unfound.insert(object.clone());
        self.reopen(cx);
        if head == *object {
            self.back_off_object(object, object, cx);
        } else if self.wait_for_clone(&head, op, object, cx) {
            self.run_object(&head, cx);
        }
    }

    // ---- requests on the PG ----

    pub(crate) fn run_pg_queue(&mut self, cx: &mut Cx<'_>) {
        loop {
            let Some(q) = self.requests.pg_queue.front().filter(|q| !q.is_reading()) else {
                return;
            };
            if q.is_shut_out(self.core.view.as_deref()) && !planted!(self.core.cfg, FenceAtArrival)
            {
                let Some(q) = self.requests.pg_queue.pop_front() else { return };
                self.reply_error(&q, -errno::ESHUTDOWN, cx);
                continue;
            }
            if !self.lease_held(cx) {
                self.pg_first_enters(Phase::Lease, cx);
                self.requests.lease_pg = true;
                return;
            }
            let Some(pool) = self.core.view.as_ref().and_then(|v| v.pool.clone()) else { return };
            self.pg_first_enters(Phase::Execute, cx);
            let Some(q) = self.requests.pg_queue.front() else { return };
            let (object, no_context) = (q.op.msg.hobject(), SnapContext::default());
            let ctx = OpContext {
                object: &object,
                pg: self.core.id,
                pg_num: pool.pg_num,
                pool: pool.rules,
                limits: &self.core.cfg.limits,
                flags: q.op.msg.flags,
                snapid: q.op.msg.snapid,
                context: &no_context,
                removed: &pool.snaps.removed,
                last_user_version: self.core.info().map_or(0, |i| i.head.last_user_version),
                origin: Origin { reqid: q.op.reqid, addr: q.op.addr(), now: cx.now.wall },
                fetched: None,
                asker: asker(q, &object, self.watches, self.core.epoch()),
                #[cfg(feature = "plant-bugs")]
                bug: self.core.cfg.bug,
            };
            let listed = WithMissing { reader: cx.reader, missing: self.core.missing() };
            let (since, me) = (self.core.interval().since, self.core.me);
            let scrubbed = self.primary.scrub.inconsistencies(&q.op.msg.ops, since, me);
            let listed = match scrubbed {
                Some(outcome) => Ok(outcome),
                None => exec::execute_pg(&ctx, &listed, &q.op.msg.ops),
            };
            match listed {
                Ok(outcome) => {
                    let Some(q) = self.requests.pg_queue.pop_front() else { return };
                    let mut reply = self.reply_to(&q, outcome.result, outcome.ops);
                    reply.user_version = outcome.user_version;
                    cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
                }
                Err(Pause::Prefetch(what)) => {
                    let id = q.op.id;
                    self.park_pg_op(id, what, cx);
                }
                Err(Pause::Full | Pause::Fetch(_)) => {
                    // Listings neither write nor copy.
                    let Some(q) = self.requests.pg_queue.pop_front() else { return };
                    self.reply_error(&q, -errno::EINVAL, cx);
                }
            }
        }
    }

    fn pg_first_enters(&mut self, phase: Phase, cx: &mut Cx<'_>) {
        self.requests.pg_queue.front_mut().into_iter().for_each(|q| q.enter(phase, cx));
    }

    fn park_pg_op(&mut self, id: OpId, what: Prefetch, cx: &mut Cx<'_>) {
        self.pg_first_enters(Phase::Read, cx);
        self.requests.reads.insert(id, None);
        cx.out.push(PgEffect::Prefetch(ReadKey::Op(id), what));
    }
}
