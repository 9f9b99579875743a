//! Client requests: waiting, order per object, execution, replication, commit, reply.
//!
//! Phases of a request: wait for its map → wait until the PG is active → its object's queue →
//! (a read: no write of the object in flight, read lease held) → execute → (a write: one
//! transaction on every acting member) → all durable → reply.
//!
//! Order per object is strict. Writes of an object overlap: each is executed on what the
//! earlier ones made of the object, and replies leave in order. Reads wait until every
//! earlier write is durable everywhere, so nothing uncommitted is ever shown.
//!
//! The reader shows a transaction only after the shell performed the effect, so an object
//! changed in this event is not executed on again before [`PgEffect::Continue`].

use crate::api::{ClientOp, ConnId, OpId, PeerMsg, PgEffect, ReadKey};
use crate::backoff::Patience;
use crate::erasure::read::{EcReader, For, Gathered};
use crate::erasure::stripe::{self, Piece, Stripes, from_pieces};
use crate::erasure::{Shape, undo};
use crate::exec::{
    self, Effect, Fetched, ObjectReader, ObjectState, OpClass, OpContext, Outcome, Pause, Prefetch, Stamp, Want,
};
use crate::lease::Leases;
use crate::listing::WithMissing;
use crate::log::{Dup, EntryKind, LogEntry};
use crate::pg::{After, Cx, Pg, Role};
use bytes::Bytes;
use spirula_messages::ceph::osd::{MOsdOpReply, OpResult, flag};
use spirula_messages::cluster::pg::{MissingItem, PgTxn, RepAck, TxnKind};
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{Dirty, EVersion, EntityType, Epoch, HObject, Peer, errno, hash};
use std::collections::{HashMap, HashSet, VecDeque};

/// Log entries kept for the sake of missing objects, at most.
const LOG_BOUND: usize = 30_000;

/// A request in the PG.
#[derive(Debug)]
pub(crate) struct Queued {
    op: ClientOp,
    class: OpClass,
    /// Order of arrival.
    arrival: u64,
    /// Epoch of the newest map that its client was sent because of it.
    shared: Epoch,
    fetched: Option<Box<Fetched>>,
    /// What was read from shards for it.
    gathered: Gathered,
}

impl Queued {
    pub fn id(&self) -> OpId {
        self.op.id
    }

    pub fn conn(&self) -> ConnId {
        self.op.conn
    }

    pub fn patience(&self) -> Patience {
        self.op.patience
    }

    /// An OSD reads the source of a copy. Clients' requests have no order with it.
    fn is_source_read(&self) -> bool {
        !self.class.write && self.op.reqid.name.kind == EntityType::Osd as u8
    }
}

/// An object in use.
#[derive(Debug, Default)]
struct Context {
    /// Its state with every write executed so far; `None`: not loaded.
    state: Option<ObjectState>,
    /// Writes executed and not durable everywhere.
    inflight: u32,
    queue: VecDeque<Queued>,
    /// The first request waits for a read.
    parked: bool,
    /// A request of the queue that waits for the object it is to copy: meanwhile sources of other
    /// copies are read here, so that copies cannot wait for each other in a circle.
    copying: Option<OpId>,
    /// When it was last used, for eviction.
    used: u64,
}

impl Context {
    /// Puts the request that may be executed next in front; false if there is none.
    fn next_is_first(&mut self) -> bool {
        if self.copying.is_none() || self.queue.front().is_some_and(Queued::is_source_read) {
            return !self.queue.is_empty();
        }
        let Some(at) = self.queue.iter().position(Queued::is_source_read) else { return false };
        if let Some(q) = self.queue.remove(at) {
            self.queue.push_front(q);
        }
        true
    }
}

/// Requests and object contexts of a PG.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    arrivals: u64,
    /// For a newer map, or for the PG to become active; in order of arrival.
    waiting: VecDeque<Queued>,
    /// Only looked up, or drained and sorted by arrival.
    contexts: HashMap<HObject, Context>,
    uses: u64,
    /// Requests on the PG itself.
    pg_queue: VecDeque<Queued>,
    pg_parked: bool,
    /// Requests that wait for a read: whose turn it is then; `None` for the PG itself.
    parked: HashMap<OpId, Option<HObject>>,
    /// Objects to look at again, by a lease or by `Continue`.
    lease_waiting: Vec<HObject>,
    lease_pg: bool,
    pending: Vec<HObject>,
    /// Objects changed in this event.
    changed: HashSet<HObject>,
    again: bool,
}

impl Ops {
    /// A new event begins: what was submitted before is visible now.
    pub fn begin(&mut self) {
        self.changed.clear();
        self.again = false;
    }

    pub fn must_continue(&self) -> bool {
        self.again
    }

    pub fn waits_for_lease(&self) -> bool {
        self.lease_pg || !self.lease_waiting.is_empty()
    }

    /// Did a request change an object in this event? Then reading shows what was before.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Number of requests held.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.pg_queue.len() + self.contexts.values().map(|c| c.queue.len()).sum::<usize>()
    }

    /// No requests?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.pg_queue.is_empty() && self.contexts.values().all(|c| c.queue.is_empty())
    }

    /// Takes over what waits elsewhere.
    pub fn inherit(&mut self, old: Ops) {
        self.arrivals = self.arrivals.max(old.arrivals);
        self.waiting.extend(old.waiting);
    }

    /// Forgets requests of a closed connection that were not executed.
    pub fn drop_connection(&mut self, conn: ConnId) -> Vec<OpId> {
        let mut gone = Vec::new();
        let mut keep = |q: &mut VecDeque<Queued>, parked: &mut bool| {
            let first = q.front().map(|f| f.op.id);
            q.retain(|o| {
                if o.op.conn == conn {
                    gone.push(o.op.id);
                }
                o.op.conn != conn
            });
            if q.front().map(|f| f.op.id) != first {
                *parked = false;
            }
        };
        keep(&mut self.waiting, &mut false);
        keep(&mut self.pg_queue, &mut self.pg_parked);
        for (object, c) in &mut self.contexts {
            let before = c.queue.len();
            keep(&mut c.queue, &mut c.parked);
            c.copying = c.copying.filter(|id| c.queue.iter().any(|q| q.op.id == *id));
            if c.queue.len() != before {
                self.pending.push(object.clone());
            }
        }
        gone.sort_unstable();
        self.pending.sort();
        gone
    }

    /// Keeps a request until the PG serves.
    pub fn wait(&mut self, q: Queued) {
        self.waiting.push_back(q);
    }

    /// Objects of this kind that requests wait for, which nothing is read for.
    pub fn waiting_on(&self, which: impl Fn(&HObject) -> bool) -> Vec<HObject> {
        let waits = self.contexts.iter().filter(|(o, c)| !c.queue.is_empty() && !c.parked && which(o));
        let mut found: Vec<HObject> = waits.map(|(o, _)| o.clone()).collect();
        found.sort();
        found
    }

    /// Takes the requests that need not wait out of an object's queue, with all others of their connections.
    pub fn take_from(&mut self, object: &HObject, go: impl Fn(&Queued) -> bool) -> Vec<OpId> {
        let Some(c) = self.contexts.get_mut(object) else { return Vec::new() };
        let conns: HashSet<ConnId> = c.queue.iter().filter(|q| go(q)).map(Queued::conn).collect();
        let (gone, kept) = std::mem::take(&mut c.queue).into_iter().partition(|q| conns.contains(&q.conn()));
        c.queue = kept;
        c.copying = c.copying.filter(|id| c.queue.iter().any(|q| q.op.id == *id));
        let gone: VecDeque<Queued> = gone;
        gone.into_iter().map(|q| q.op.id).collect()
    }

    /// Takes every request out, in order of arrival, and forgets all objects.
    fn drain(&mut self) -> Vec<Queued> {
        let mut all: Vec<Queued> = self.waiting.drain(..).chain(self.pg_queue.drain(..)).collect();
        all.extend(self.contexts.drain().flat_map(|(_, c)| c.queue));
        all.sort_by_key(|q| q.arrival);
        self.pg_parked = false;
        self.parked.clear();
        self.lease_waiting.clear();
        self.lease_pg = false;
        self.pending.clear();
        all
    }

    fn context(&mut self, object: &HObject) -> &mut Context {
        self.uses += 1;
        let used = self.uses;
        // Looked up first: the common case needs no copy of the key.
        if !self.contexts.contains_key(object) {
            self.contexts.insert(object.clone(), Context::default());
        }
        let c = self.contexts.entry(object.clone()).or_default();
        c.used = used;
        c
    }

    /// Forgets idle objects, the longest unused first, when there are too many.
    fn evict(&mut self, keep: usize) {
        if self.contexts.len() <= keep * 2 + 8 {
            return;
        }
        let mut idle: Vec<u64> =
            self.contexts.values().filter(|c| c.inflight == 0 && c.queue.is_empty()).map(|c| c.used).collect();
        if idle.len() <= keep {
            return;
        }
        idle.sort_unstable();
        let oldest = idle.get(idle.len() - keep).copied().unwrap_or(0);
        self.contexts.retain(|_, c| c.inflight > 0 || !c.queue.is_empty() || c.used >= oldest);
    }

    /// Does any request on these objects wait?
    pub fn waits(&self, on: impl Fn(&HObject) -> bool) -> bool {
        self.contexts.iter().any(|(o, c)| !c.queue.is_empty() && on(o))
    }

    /// Looks at the requests on these objects again, at [`PgEffect::Continue`].
    pub fn resume(&mut self, which: impl Fn(&HObject) -> bool) {
        let mut found: Vec<HObject> =
            self.contexts.iter().filter(|(o, c)| which(o) && !c.queue.is_empty()).map(|(o, _)| o.clone()).collect();
        found.sort();
        self.again |= !found.is_empty();
        self.pending.append(&mut found);
    }

    /// A write of our own changes an object in this event.
    pub fn changed_by_us(&mut self, object: &HObject) {
        let c = self.context(object);
        (c.inflight, c.state) = (c.inflight + 1, None);
        self.changed.insert(object.clone());
    }

    /// Stripes of an object in this version have been read for its first request; or (a planted bug) for one before it.
    pub fn gathered(&mut self, object: &HObject, op: OpId, any: bool, version: EVersion, piece: Piece) {
        let first = self.contexts.get_mut(object).and_then(|c| c.queue.front_mut());
        if let Some(q) = first.filter(|q| any || q.op.id == op) {
            q.gathered.add(version, piece);
        }
    }

    /// A request waits for nothing any more.
    pub fn unpark(&mut self, op: OpId) {
        self.parked.remove(&op);
    }

    /// Is a write of this object under way?
    pub fn has_inflight(&self, object: &HObject) -> bool {
        self.contexts.get(object).is_some_and(|c| c.inflight > 0)
    }

    /// Forgets what is known of an object (its stored state changes under us).
    pub fn forget_object(&mut self, object: &HObject) {
        if let Some(c) = self.contexts.get_mut(object) {
            c.state = None;
        }
    }

    /// Forgets what is known of objects (their stored state changes under us).
    pub fn forget_objects(&mut self) {
        self.contexts.retain(|_, c| !c.queue.is_empty());
        for c in self.contexts.values_mut() {
            c.state = None;
        }
    }
}

/// A write that is not durable everywhere.
#[derive(Debug)]
pub(crate) struct Inflight {
    version: EVersion,
    object: HObject,
    result: i32,
    user_version: u64,
    results: Vec<OpResult>,
    /// The request and its resends.
    ops: Vec<Queued>,
    /// What each other member was sent.
    sent: Vec<(Peer, PgTxn)>,
}

impl Inflight {
    /// A write of our own, which nobody waits for.
    pub fn internal(version: EVersion, object: HObject) -> Self {
        Self { version, object, result: 0, user_version: 0, results: Vec::new(), ops: Vec::new(), sent: Vec::new() }
    }

    pub fn version(&self) -> EVersion {
        self.version
    }

    /// What a member was sent of it.
    pub fn sent_to(&self, member: Peer) -> Option<&PgTxn> {
        self.sent.iter().find(|(m, _)| *m == member).map(|(_, t)| t)
    }

    pub fn object(&self) -> &HObject {
        &self.object
    }
}

/// One shard's part of a write: what keeps the object as it was, then its change.
fn shard_updates(object: &HObject, version: EVersion, prior: EVersion, ops: Vec<ObjectOp>) -> Vec<ObjectUpdate> {
    let keep = (prior != EVersion::default()).then(|| undo::keep(object, version));
    keep.into_iter().chain([ObjectUpdate { object: object.clone(), ops }]).collect()
}

/// Stripes that an execution still wants, and in which version: what it reads, or what a change
/// changes in part.
fn lacking(
    shape: &Shape,
    outcome: &Result<Outcome, Pause>,
    state: &ObjectState,
    pieces: &[Piece],
) -> Option<(Stripes, EVersion)> {
    let w = shape.width();
    let stripes = match outcome {
        Err(Pause::Prefetch(what)) => what.0.iter().find_map(|want| match want {
            Want::Data { offset, length, .. } => Some((offset / w, (offset + length).div_ceil(w))),
            _ => None,
        }),
        Ok(Outcome { effect: Effect::Apply(m), .. }) => {
            let size = if state.exists { state.info.size } else { 0 };
            let needs = stripe::plan(shape, &m.ops, size).needs;
            needs.into_iter().find(|(a, b)| from_pieces(pieces, a * w, (b - a) * w).is_none())
        }
        _ => None,
    };
    Some((stripes?, state.info.version))
}

impl Pg {
    // ---- arrival ----

    pub(crate) fn on_client(&mut self, op: ClientOp, cx: &mut Cx<'_>) {
        self.ops.arrivals += 1;
        let class = exec::classify(&op.msg.ops);
        let q =
            Queued { op, class, arrival: self.ops.arrivals, shared: 0, fetched: None, gathered: Gathered::default() };
        if let Some(object) = self.admit(q, cx) {
            self.run_object(&object, cx);
        }
    }

    /// Lets waiting requests try again: a new map, or the PG became active.
    pub(crate) fn run_waiting(&mut self, cx: &mut Cx<'_>) {
        if self.serves() {
            self.unblock_pg(cx);
        }
        // All before any is executed: an object's queue is to hold all requests of a connection, or none, when clients
        // are told to hold them back.
        let mut objects = Vec::new();
        for q in std::mem::take(&mut self.ops.waiting) {
            objects.extend(self.admit(q, cx).filter(|o| !objects.contains(o)));
        }
        objects.iter().for_each(|o| self.run_object(o, cx));
    }

    /// Checks a request against the map and puts it where it belongs; the object whose turn
    /// may have come.
    fn admit(&mut self, mut q: Queued, cx: &mut Cx<'_>) -> Option<HObject> {
        let epoch = q.op.msg.epoch;
        let Some(view) = self.view.clone().filter(|v| v.epoch >= epoch) else {
            cx.out.push(PgEffect::NeedMap(epoch));
            self.ops.waiting.push_back(q);
            return None;
        };
        if q.shared == 0 {
            Self::share_map(&mut q, view.epoch, cx);
        }
        let Some(pool) = &view.pool else {
            self.reply_error(&q, -errno::ENOENT, cx);
            return None;
        };
        if view.primary != self.me {
            let replica = flag::BALANCE_READS | flag::LOCALIZE_READS;
            if q.op.msg.flags & replica != 0 && !q.class.write && self.is_acting() {
                self.reply_error(&q, -errno::EAGAIN, cx);
            } else {
                self.turn_away(q, view.epoch, cx);
            }
            return None;
        }
        let seed = hash::stable_mod(q.op.msg.hash, pool.pg_num, hash::mask_for(pool.pg_num));
        let misplaced = if q.class.pg { q.op.msg.spg.pg != self.id } else { seed != self.id.seed };
        if epoch < self.primary_since || epoch < pool.force_resend || misplaced {
            self.turn_away(q, view.epoch, cx);
            return None;
        }
        // A client that has seen the flags sends nothing; one with an older map is to wait, too.
        let paused = if q.class.write { view.permits.pause_writes } else { view.permits.pause_reads };
        if !self.serves() {
            self.wait_or_back_off(q, cx);
            return None;
        }
        if paused {
            self.ops.waiting.push_back(q);
            return None;
        }
        if q.class.pg {
            self.ops.pg_queue.push_back(q);
            self.run_pg_queue(cx);
            return None;
        }
        let object = q.op.msg.hobject();
        self.ops.context(&object).queue.push_back(q);
        Some(object)
    }

    /// A request is not for this PG here and now. By the newest map its client sends it again where it belongs; it may ask
    /// for none while it waits. A client that has that map would wait for ever, and is told.
    fn turn_away(&self, mut q: Queued, newest: Epoch, cx: &mut Cx<'_>) {
        if q.op.msg.epoch < newest {
            Self::share_map(&mut q, newest, cx);
            cx.out.push(PgEffect::Drop(q.op.id));
        } else {
            self.reply_error(&q, -errno::ENXIO, cx);
        }
    }

    /// Is the PG active, and no older primary reading any more?
    /// Not before those who waited for that have gone on: a new request must not overtake them.
    fn serves(&self) -> bool {
        self.active().is_some_and(|a| a.activated && a.serving && a.wait_until == 0)
    }

    /// An object is recovered, or will not be for now: requests on it try again.
    pub(crate) fn run_recovered(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        self.unblock_object(object, cx);
        if self.ops.contexts.contains_key(object) {
            self.run_object(object, cx);
        }
    }

    /// Puts the requests of a role that ends back to waiting. Those whose primary changes
    /// are dropped when they are admitted again.
    pub(crate) fn requeue(&mut self, role: Role) {
        let mut all = self.ops.drain();
        if let Role::Active(active) = role {
            all.extend(active.inflight.into_iter().flat_map(|i| i.ops));
            all.sort_by_key(|q| q.arrival);
        }
        for q in &mut all {
            (q.fetched, q.gathered) = (None, Gathered::default());
        }
        self.ops.waiting.extend(all);
    }

    /// Sends a request's client the maps up to `newest`, unless it was done.
    fn share_map(q: &mut Queued, newest: Epoch, cx: &mut Cx<'_>) {
        if q.op.msg.epoch < newest && q.shared < newest {
            q.shared = newest;
            cx.out.push(PgEffect::ShareMap(q.op.conn, q.op.msg.epoch));
        }
    }

    /// Forgets every request because of the map of `newest`; their clients see that and send them again.
    pub(crate) fn drop_all_ops(&mut self, newest: Epoch, cx: &mut Cx<'_>) {
        for mut q in std::mem::take(&mut self.ops.waiting) {
            Self::share_map(&mut q, newest, cx);
            cx.out.push(PgEffect::Drop(q.op.id));
        }
    }

    /// The pool is gone: everything that waits ends with ENOENT.
    pub(crate) fn refuse_all_ops(&mut self, cx: &mut Cx<'_>) {
        for q in std::mem::take(&mut self.ops.waiting) {
            self.reply_error(&q, -errno::ENOENT, cx);
        }
    }

    // ---- turns ----

    /// Objects put aside in earlier events.
    pub(crate) fn run_pending(&mut self, cx: &mut Cx<'_>) {
        let mut objects = std::mem::take(&mut self.ops.pending);
        objects.append(&mut self.ops.lease_waiting);
        for o in objects {
            self.run_object(&o, cx);
        }
        if std::mem::take(&mut self.ops.lease_pg) {
            self.run_pg_queue(cx);
        }
    }

    /// What a parked request waited for is there.
    pub(crate) fn on_op_ready(&mut self, op: OpId, fetched: Option<Fetched>, cx: &mut Cx<'_>) {
        let Some(whose) = self.ops.parked.remove(&op) else { return };
        let Some(object) = whose else {
            self.ops.pg_parked = false;
            self.run_pg_queue(cx);
            return;
        };
        let context = self.ops.context(&object);
        if context.copying == Some(op) {
            context.copying = None;
            if let Some(q) = context.queue.iter_mut().find(|q| q.op.id == op) {
                q.fetched = fetched.map(Box::new);
            }
        } else if context.queue.front().is_some_and(|first| first.op.id == op) {
            context.parked = false;
        } else {
            return;
        }
        self.run_object(&object, cx);
    }

    fn lease_held(&self, cx: &Cx<'_>) -> bool {
        self.lease_holds(cx.leases, cx.now.mono_ms)
    }

    /// Do all whose leave it needs let it read at this time?
    pub(crate) fn lease_holds(&self, leases: &Leases, now_ms: u64) -> bool {
        match &self.role {
            Role::Active(_) if planted!(self.cfg, ReadsWithoutLease) => true,
            Role::Active(a) => a
                .replicas
                .iter()
                .filter(|(o, _)| !a.recovery.backfilling || a.peers.get(o).is_none_or(|p| p.acting))
                .all(|(o, _)| o.osd == self.me.osd || leases.held_until(o.osd) > now_ms),
            _ => false,
        }
    }

    /// Executes requests on an object for as long as it can.
    fn run_object(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        while matches!(self.role, Role::Active(_)) {
            if self.ops.changed.contains(object) {
                self.ops.pending.push(object.clone());
                self.ops.again = true;
                return;
            }
            let Some(context) = self.ops.contexts.get_mut(object) else { return };
            if context.parked || !context.next_is_first() {
                return;
            }
            let Some(first) = context.queue.front() else { return };
            let (write, inflight) = (first.class.write, context.inflight);
            if write && self.answered_before(object, cx) {
                continue;
            }
            if write && self.is_premerge() {
                return; // The next interval comes back here.
            }
            if write && self.scrub.blocks(object) && !planted!(self.cfg, ScrubBesideWrites) {
                return; // The end of the chunk comes back here.
            }
            if self.must_recover_first(object, write, cx) {
                self.back_off_object(object, cx);
                return; // Recovery comes back here, and so does whoever was told to hold his requests.
            }
            if inflight > 0 && self.is_erasure() {
                return; // Shards must show one version. The last commit comes back here.
            }
            if write {
                // Goes on below.
            } else if inflight > 0 {
                return; // The last commit comes back here.
            } else if !self.lease_held(cx) {
                self.ops.lease_waiting.push(object.clone());
                return;
            }
            if !self.execute_first(object, cx) {
                return;
            }
        }
    }

    /// If the first request of an object was applied before, answers it or joins the one in
    /// flight.
    fn answered_before(&mut self, object: &HObject, cx: &mut Cx<'_>) -> bool {
        let Some(context) = self.ops.contexts.get_mut(object) else { return false };
        let Some(known) = context.queue.front().and_then(|q| self.log.find(&q.op.reqid)) else { return false };
        let Dup { version, user_version, result, returns, .. } = known;
        let Some(q) = context.queue.pop_front() else { return false };
        if let Role::Active(active) = &mut self.role
            && let Ok(i) = active.inflight.binary_search_by(|f| f.version.cmp(&version))
            && let Some(f) = active.inflight.get_mut(i)
        {
            f.ops.push(q);
            return true;
        }
        let mut reply = MOsdOpReply::to(&q.op.msg, self.epoch(), result);
        reply.flags |= u64::from(flag::ONDISK);
        if !planted!(self.cfg, DupWithoutVersion) {
            reply.replay_version = version;
            reply.user_version = user_version;
        }
        if returns.len() == reply.ops.len() {
            for (op, r) in reply.ops.iter_mut().zip(returns) {
                (op.rval, op.op.indata) = (r.rval, r.data);
            }
        }
        cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
        true
    }

    /// Executes the first request of an object. False if it must wait.
    fn execute_first(&mut self, object: &HObject, cx: &mut Cx<'_>) -> bool {
        let Some(view) = self.view.clone() else { return false };
        let Some(pool) = &view.pool else { return false };
        let Some(context) = self.ops.contexts.get_mut(object) else { return false };
        let Some(q) = context.queue.front() else { return false };
        if context.state.is_none() {
            match exec::load_object(cx.reader, object) {
                Ok(state) => context.state = Some(state),
                Err(exec::ReadError::NotReady(what)) => {
                    context.parked = true;
                    self.ops.parked.insert(q.op.id, Some(object.clone()));
                    cx.out.push(PgEffect::Prefetch(ReadKey::Op(q.op.id), what));
                    return false;
                }
                Err(e) => {
                    tracing::error!(pg = %self.id, %object, error = %e, "load object");
                    if self.heal(object, EVersion::default(), cx) {
                        return false;
                    }
                    let Some(context) = self.ops.contexts.get_mut(object) else { return false };
                    if let Some(q) = context.queue.pop_front() {
                        self.reply_error(&q, -errno::EIO, cx);
                    }
                    return true;
                }
            }
        }
        let Some(state) = &context.state else { return false };
        if q.class.write && state.exists {
            let (id, version) = (q.op.id, state.info.version);
            match self.has_sound_shard(object, version, cx.reader) {
                Ok(true) => {}
                Err(exec::ReadError::NotReady(what)) => {
                    self.ops.context(object).parked = true;
                    self.ops.parked.insert(id, Some(object.clone()));
                    cx.out.push(PgEffect::Prefetch(ReadKey::Op(id), what));
                    return false;
                }
                bad => {
                    tracing::error!(pg = %self.id, %object, %version, ?bad, "a spoilt shard under a write");
                    self.heal(object, version, cx);
                    return false; // Recovery comes back here.
                }
            }
        }
        let Some(context) = self.ops.contexts.get_mut(object) else { return false };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else { return false };
        let ctx = OpContext {
            object,
            pg: self.id,
            pg_num: pool.pg_num,
            pool: pool.rules,
            limits: &self.cfg.limits,
            flags: q.op.msg.flags,
            snapid: q.op.msg.snapid,
            last_user_version: self.info.as_ref().map_or(0, |i| i.head.last_user_version),
            fetched: q.fetched.as_deref(),
        };
        let pieces = q.gathered.of(state.info.version);
        #[cfg(feature = "plant-bugs")]
        let pieces = if planted!(self.cfg, PiecesKept) { q.gathered.of_any() } else { pieces };
        let erasure = EcReader { inner: cx.reader, pieces };
        let reader: &dyn ObjectReader = if pool.shape.is_some() { &erasure } else { cx.reader };
        let outcome = exec::execute(&ctx, state, reader, &q.op.msg.ops);
        let id = q.op.id;
        if let Some(shape) = pool.shape
            && let Some((stripes, version)) = lacking(&shape, &outcome, state, pieces)
            && (outcome.is_err() || !planted!(self.cfg, StripeNotRead))
        {
            context.parked = true;
            self.ops.parked.insert(id, Some(object.clone()));
            if !self.gather(object, version, stripes, For::Op(id), cx) {
                self.op_unreadable(object, id, cx);
            }
            return false;
        }
        match outcome {
            Err(Pause::Prefetch(what)) => {
                context.parked = true;
                self.ops.parked.insert(id, Some(object.clone()));
                cx.out.push(PgEffect::Prefetch(ReadKey::Op(id), what));
                false
            }
            Err(Pause::Fetch(source)) => {
                context.copying = Some(id);
                self.ops.parked.insert(id, Some(object.clone()));
                cx.out.push(PgEffect::Fetch(id, source));
                true
            }
            Err(Pause::Full) => {
                // No answer: the client sends it again when the pool has room.
                context.queue.pop_front();
                cx.out.push(PgEffect::Drop(id));
                true
            }
            Ok(outcome) => {
                let version = state.info.version;
                if outcome.result == -errno::EIO && self.heal(object, version, cx) {
                    return false;
                }
                let Some(context) = self.ops.contexts.get_mut(object) else { return false };
                if let Some(mut q) = context.queue.pop_front() {
                    let gathered = std::mem::take(&mut q.gathered);
                    self.conclude(object, q, outcome, gathered.of(version), cx);
                }
                true
            }
        }
    }

    /// An object that cannot be read here counts as missing, and its requests wait until another copy's content has
    /// replaced it: if nobody within reach has one, it is unfound until somebody returns who has. `version` is what is
    /// stored, zero if that is unknown, too. False if it is not in the log, either: then nobody can be asked for it.
    fn heal(&mut self, object: &HObject, version: EVersion, cx: &mut Cx<'_>) -> bool {
        let known = if version == EVersion::default() { self.log.last_made(object) } else { Some(version) };
        let Some(version) = known.filter(|_| self.active().is_some()) else { return false };
        if self.ops.contexts.get(object).is_some_and(|c| c.inflight > 0) {
            return true; // The last commit comes back to the request.
        }
        tracing::warn!(pg = %self.id, %object, %version, "unreadable here, to be fetched from another copy");
        self.ops.forget_object(object);
        self.mark_unreadable(object.clone(), version, cx);
        self.reopen(cx);
        self.must_recover_first(object, true, cx)
    }

    fn conclude(&mut self, object: &HObject, q: Queued, outcome: Outcome, pieces: &[Piece], cx: &mut Cx<'_>) {
        if let Some(info) = &mut self.info {
            let c = &mut info.head.counts;
            c.reads += outcome.stats.reads as i64;
            c.read_kb += outcome.stats.read_kib as i64;
        }
        match outcome.effect {
            Effect::None => {
                let mut reply = self.reply_to(&q, outcome.result);
                reply.ops = outcome.ops;
                reply.user_version = outcome.user_version;
                cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
                self.ops.evict(self.cfg.contexts);
            }
            Effect::LogOnly | Effect::Apply(_) => self.write(object, q, outcome, pieces, cx),
        }
    }

    fn reply_to(&self, q: &Queued, result: i32) -> MOsdOpReply {
        let mut reply = MOsdOpReply::to(&q.op.msg, self.epoch(), result);
        reply.flags |= u64::from(flag::ONDISK);
        reply
    }

    fn reply_error(&self, q: &Queued, result: i32, cx: &mut Cx<'_>) {
        cx.out.push(PgEffect::Reply(q.op.id, Box::new(MOsdOpReply::to(&q.op.msg, self.epoch(), result))));
    }

    // ---- writes ----

    /// Gives a write its place in the log and sends it to every acting member.
    fn write(&mut self, object: &HObject, q: Queued, outcome: Outcome, pieces: &[Piece], cx: &mut Cx<'_>) {
        let shape = self.shape();
        let mut shards: Vec<Vec<ObjectOp>> = Vec::new();
        let missing_floor = self.missing_floor();
        let version = self.next_version();
        let (Role::Active(active), Some(info)) = (&mut self.role, &mut self.info) else {
            // Only an active primary executes requests. The client sends this one again in the next interval.
            return invariant!(self, "a write of {object} without a role that writes");
        };
        let follows = info.last_update();
        let mut txn = Transaction::default();
        let mut entry = LogEntry {
            version,
            prior: EVersion::default(),
            user_version: outcome.user_version,
            reqid: q.op.reqid,
            result: outcome.result,
            kind: EntryKind::Nothing,
            object: object.clone(),
            mtime: q.op.msg.mtime,
            home: 0,
            dirty: Dirty::All,
            returns: outcome.returns(q.op.msg.flags, &self.cfg.limits),
        };
        let context = self.ops.context(object);
        context.inflight += 1;
        if let Effect::Apply(mutation) = outcome.effect {
            let done = mutation.finish(&Stamp {
                version,
                last_user_version: info.head.last_user_version,
                reqid: q.op.reqid,
                mtime: q.op.msg.mtime,
                now: cx.now.wall,
            });
            entry.prior = done.prior_version;
            entry.user_version = done.user_version;
            entry.kind = if done.delete { EntryKind::Delete } else { EntryKind::Modify };
            // Shards are rebuilt whole, and a new object is copied whole.
            if shape.is_none() && entry.kind == EntryKind::Modify && entry.prior != EVersion::default() {
                entry.dirty = Dirty::of(&done.ops);
                if planted!(self.cfg, DirtyForgotten) {
                    entry.dirty = Dirty::nothing();
                }
            }
            info.head.last_user_version = info.head.last_user_version.max(done.user_version);
            let (c, d) = (&mut info.head.counts, done.stats);
            c.objects += d.objects;
            c.bytes += d.bytes;
            c.omap_objects += d.omap_objects;
            self.scrub.wrote(object, &d);
            c.reads += d.reads as i64;
            c.read_kb += d.read_kib as i64;
            c.writes += d.writes as i64;
            c.written_kb += d.write_kib as i64;
            let size = context.state.as_ref().filter(|s| s.exists).map_or(0, |s| s.info.size);
            context.state = Some(done.state);
            match shape {
                None => txn.objects.push(ObjectUpdate { object: object.clone(), ops: done.ops }),
                Some(shape) => {
                    let plan = stripe::plan(&shape, &done.ops, size);
                    match stripe::split(&shape, &done.ops, &plan, pieces) {
                        Ok(split) => shards = split,
                        Err(e) => {
                            tracing::error!(pg = %self.id, error = %e, "cut into shards");
                            context.inflight -= 1;
                            context.state = None;
                            return self.reply_error(&q, -errno::EIO, cx);
                        }
                    }
                }
            }
            self.ops.changed.insert(object.clone());
        }
        info.head.last_update = version;
        // A PG that is not whole keeps more, so that members that come back need no backfill.
        let keep = if active.clean { self.cfg.log_keep } else { self.cfg.log_max.max(self.cfg.log_keep) };
        let floor = active.committed.min(missing_floor);
        let trim = self.log.trim_point(keep, self.cfg.log_slack, self.cfg.log_bytes, floor);
        if let Some(to) = trim {
            info.head.log_tail = to;
        }
        active.inflight.push_back(Inflight {
            version,
            object: object.clone(),
            result: outcome.result,
            user_version: entry.user_version,
            results: outcome.ops,
            ops: vec![q],
            sent: Vec::new(),
        });
        let (since, removed) = (self.interval.since, entry.kind == EntryKind::Delete);
        for p in active.peers.values_mut().filter(|p| p.missing.contains(object)) {
            match entry.kind {
                EntryKind::Delete => drop(p.missing.remove(object)),
                EntryKind::Modify if planted!(self.cfg, WithheldForgotten) => {}
                EntryKind::Modify => drop(p.missing.written(object, version, &entry.dirty, MissingItem::default)),
                EntryKind::Nothing => {}
            }
        }
        let entry_bytes = entry.to_bytes();
        let (prior, changes) = (entry.prior, entry.kind != EntryKind::Nothing);
        let rolled = if planted!(self.cfg, RolledEarly) { version } else { active.committed };
        self.log.push(entry);
        if changes && shape.is_some() {
            let own = shards.get(self.me.shard.max(0) as usize).cloned().unwrap_or_default();
            txn.objects = shard_updates(object, version, prior, own);
        }
        self.roll_forward(rolled, &mut txn);
        txn.meta.push(self.head_op());
        txn.meta.push(MetaOp::LogAppend { pg: self.id, version, entry: entry_bytes });
        if let Some(to) = trim {
            let tracked = if planted!(self.cfg, DupsForgotten) { 0 } else { self.cfg.dups_tracked };
            if let Some(to) = self.log.trim(to, tracked) {
                txn.meta.push(MetaOp::LogTrim { pg: self.id, to });
            }
        }
        if changes {
            self.note_written(object, (!removed).then_some(version));
        }
        match shape {
            None => self.replicate(&txn, object, (follows, version), cx),
            Some(_) => self.distribute(&txn.meta, object, (follows, version), prior, shards, cx),
        }
        self.submit(txn, After::Write { since, version }, cx);
        self.ops.evict(self.cfg.contexts);
    }

    /// Entries after this one name objects that are still missing here: a holder that returns
    /// must find them in the log, or its copy would be filled anew instead of asked. Within
    /// bounds.
    fn missing_floor(&self) -> EVersion {
        let first = self.missing.iter().map(|(_, m)| m.need).min();
        match first {
            Some(need) if self.log.len() < LOG_BOUND && self.log.bytes() <= self.cfg.log_bytes => {
                crate::log::before(&self.log, need)
            }
            _ => EVersion::new(Epoch::MAX, u64::MAX),
        }
    }

    /// Sends a write to the other members. Those that lack the object, or whose backfill has not reached it, get
    /// only the log entry.
    pub(crate) fn replicate(
        &mut self,
        txn: &Transaction,
        object: &HObject,
        (follows, version): (EVersion, EVersion),
        cx: &mut Cx<'_>,
    ) {
        let Role::Active(active) = &self.role else { return };
        if active.replicas.is_empty() {
            return;
        }
        let (header, payload) = txn.split();
        let header = Bytes::from(header);
        let mut sent = Vec::with_capacity(active.replicas.len());
        for (osd, _) in &active.replicas {
            let lacks = active.peers.get(osd).is_some_and(|p| p.missing.contains(object));
            let (header, payload) = if Self::gets_object(active, *osd, object) && !lacks {
                (header.clone(), payload.clone())
            } else {
                let (h, p) = Transaction { objects: Vec::new(), meta: txn.meta.clone() }.split();
                (h.into(), p)
            };
            let t = PgTxn {
                pg: self.id,
                ends: self.ends(*osd),
                epoch: self.interval.since,
                kind: TxnKind::Write,
                seq: active.run,
                version,
                follows,
                next: None,
                header,
                payload,
            };
            sent.push((*osd, t));
        }
        self.send_write(sent, cx);
    }

    /// Sends the newest write to the other members, and keeps what they were sent until all have it.
    fn send_write(&mut self, sent: Vec<(Peer, PgTxn)>, cx: &mut Cx<'_>) {
        cx.out.extend(sent.iter().map(|(to, t)| PgEffect::Send(*to, PeerMsg::Txn(t.clone()))));
        if let Role::Active(a) = &mut self.role
            && let Some(newest) = a.inflight.back_mut()
        {
            newest.sent = sent;
        }
    }

    /// Sends each other member of an erasure-coded PG its shard of a write.
    fn distribute(
        &mut self,
        meta: &[MetaOp],
        object: &HObject,
        (follows, version): (EVersion, EVersion),
        prior: EVersion,
        shards: Vec<Vec<ObjectOp>>,
        cx: &mut Cx<'_>,
    ) {
        let Role::Active(active) = &self.role else { return };
        let mut sent = Vec::with_capacity(active.replicas.len());
        for (to, _) in &active.replicas {
            let ops = shards.get(to.shard.max(0) as usize).filter(|_| Self::gets_object(active, *to, object));
            let objects = ops.map_or_else(Vec::new, |ops| shard_updates(object, version, prior, ops.clone()));
            let (header, payload) = Transaction { objects, meta: meta.to_vec() }.split();
            let t = PgTxn {
                pg: self.id,
                ends: self.ends(*to),
                epoch: self.interval.since,
                kind: TxnKind::Write,
                seq: active.run,
                version,
                follows,
                next: None,
                header: header.into(),
                payload,
            };
            sent.push((*to, t));
        }
        self.send_write(sent, cx);
    }

    /// What the first request of an object needs of it cannot be made: it ends with EIO.
    pub(crate) fn op_failed(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.ops.parked.remove(&op);
        if let Some(c) = self.ops.contexts.get_mut(object) {
            c.parked = false;
            if let Some(q) = c.queue.pop_front_if(|q| q.op.id == op) {
                self.reply_error(&q, -errno::EIO, cx);
            }
        }
        self.run_object(object, cx);
    }

    /// Too few shards of an object can be read: its requests wait until that changes.
    pub(crate) fn op_unreadable(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.ops.parked.remove(&op);
        if let Some(c) = self.ops.contexts.get_mut(object) {
            c.parked = false;
            c.state = None;
        }
        if let Role::Active(a) = &mut self.role {
            a.recovery.unfound.insert(object.clone());
        }
        self.reopen(cx);
        self.back_off_object(object, cx);
    }

    pub(crate) fn on_local_commit(&mut self, since: Epoch, version: EVersion) {
        if let Role::Active(a) = &mut self.role
            && self.interval.since == since
        {
            a.local = version;
        }
    }

    pub(crate) fn on_ack(&mut self, from: Peer, ack: &RepAck, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
        if let Some((_, v)) = a.replicas.iter_mut().find(|(o, _)| *o == from) {
            *v = ack.version.max(*v);
        }
        self.advance(cx);
    }

    /// Answers writes that are durable everywhere.
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
        a.committed = a.replicas.iter().map(|(_, v)| *v).fold(a.local, EVersion::min);
        let committed = a.committed;
        let (mut ready, mut resumed) = (Vec::new(), false);
        while let Role::Active(a) = &mut self.role
            && let Some(f) = a.inflight.pop_front_if(|f| f.version <= committed)
        {
            if let Some(c) = self.ops.contexts.get_mut(&f.object) {
                c.inflight = c.inflight.saturating_sub(1);
                if c.inflight == 0 {
                    if a.recovery.release_held(&f.object) {
                        resumed = true;
                    }
                    if !c.queue.is_empty() {
                        ready.push(f.object.clone());
                    }
                }
            }
            for q in &f.ops {
                let mut reply = self.reply_to(q, f.result);
                reply.replay_version = f.version;
                reply.user_version = f.user_version;
                if q.op.msg.ops.len() == f.results.len() {
                    reply.ops.clone_from(&f.results);
                }
                cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
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

    // ---- requests on the PG ----

    fn run_pg_queue(&mut self, cx: &mut Cx<'_>) {
        while matches!(self.role, Role::Active(_)) && !self.ops.pg_parked {
            let Some(q) = self.ops.pg_queue.front() else { return };
            if !self.lease_held(cx) {
                self.ops.lease_pg = true;
                return;
            }
            let Some(pool) = self.view.as_ref().and_then(|v| v.pool.clone()) else { return };
            let object = q.op.msg.hobject();
            let ctx = OpContext {
                object: &object,
                pg: self.id,
                pg_num: pool.pg_num,
                pool: pool.rules,
                limits: &self.cfg.limits,
                flags: q.op.msg.flags,
                snapid: q.op.msg.snapid,
                last_user_version: self.info.as_ref().map_or(0, |i| i.head.last_user_version),
                fetched: None,
            };
            let listed = WithMissing { reader: cx.reader, missing: &self.missing };
            let listed = match self.scrub_ls(&q.op.msg.ops) {
                Some(outcome) => Ok(outcome),
                None => exec::execute_pg(&ctx, &listed, &q.op.msg.ops),
            };
            match listed {
                Ok(outcome) => {
                    let Some(q) = self.ops.pg_queue.pop_front() else { return };
                    let mut reply = self.reply_to(&q, outcome.result);
                    reply.ops = outcome.ops;
                    reply.user_version = outcome.user_version;
                    cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
                }
                Err(Pause::Prefetch(what)) => {
                    let id = q.op.id;
                    self.park_pg_op(id, what, cx);
                }
                Err(Pause::Full | Pause::Fetch(_)) => {
                    // Listings neither write nor copy.
                    let Some(q) = self.ops.pg_queue.pop_front() else { return };
                    self.reply_error(&q, -errno::EINVAL, cx);
                }
            }
        }
    }

    fn park_pg_op(&mut self, id: OpId, what: Prefetch, cx: &mut Cx<'_>) {
        self.ops.pg_parked = true;
        self.ops.parked.insert(id, None);
        cx.out.push(PgEffect::Prefetch(ReadKey::Op(id), what));
    }
}
