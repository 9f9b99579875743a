//! Client requests: waiting, order per object, execution, reply.
//!
//! Phases of a request: wait for its map → wait until the PG is active → its object's queue →
//! (a read: no write of the object in flight, read lease held) → execute → (a write: `write`
//! takes it from here to every member) → all durable → reply.
//!
//! A client may be shut out while its request waits. So a turn begins with a look at the newest map that the PG has: a request that
//! carries that map, or a newer one, is executed only after the last one of a client that it shuts out.
//!
//! Order per object is strict. Writes of an object overlap: each is executed on what the
//! earlier ones made of the object, and replies leave in order. Reads wait until every
//! earlier write is durable everywhere, so nothing uncommitted is ever shown.
//!
//! The reader shows a transaction only after the shell performed the effect, so an object
//! changed in this event is not executed on again before [`PgEffect::Continue`].

use crate::api::{ClientOp, ConnId, MapView, OpId, PgEffect, ReadKey};
use crate::backoff::Patience;
use crate::erasure::read::{EcReader, For, Gathered};
use crate::erasure::stripe::Piece;
use crate::exec::{
    self, Asker, Effect, Fetched, ObjectReader, ObjectState, OpClass, OpContext, Origin, Outcome, Pause, Prefetch,
    Timeouts, WatchKey,
};
use crate::lease::Leases;
use crate::listing::WithMissing;
use crate::log::Dup;
use crate::pg::{Cx, Pg, Role};
use crate::snap::{self, SnapContext};
use crate::watch::{Watches, Who};
use crate::write::Inflight;
use crate::write::backend::Backend;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::osd::{MOsdOp, MOsdOpReply, OpResult, flag};
use spirula_types::{EVersion, EntityType, Epoch, HObject, ObjectLocator, ReqId, SpgId, errno, hash};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// A request in the PG.
#[derive(Debug)]
pub(crate) struct Queued {
    pub op: ClientOp,
    class: OpClass,
    /// Order of arrival.
    arrival: u64,
    /// Epoch of the newest map that its client was sent because of it.
    shared: Epoch,
    fetched: Option<Box<Fetched>>,
    /// What was read from shards for it.
    gathered: Gathered,
    /// A request of our own, which nobody wants an answer to.
    own: Option<Own>,
    /// It reads a clone that is missing, and others go before it until that may have changed.
    apart: bool,
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
const OWN_OPS: OpId = 1 << 63;

impl Queued {
    pub fn id(&self) -> OpId {
        self.op.id
    }

    pub fn conn(&self) -> ConnId {
        self.op.conn
    }

    /// A client's request.
    fn of_client(op: ClientOp, arrival: u64) -> Self {
        let class = exec::classify(&op.msg.ops);
        Self { op, class, arrival, shared: 0, fetched: None, gathered: Gathered::default(), own: None, apart: false }
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

    /// Is it of a client that this map shuts out? Our own requests are nobody's.
    fn is_shut_out(&self, view: Option<&MapView>) -> bool {
        self.own.is_none() && view.is_some_and(|v| v.shuts_out_any(&self.op.addrs))
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
        let may = |q: &Queued| !q.apart && (self.copying.is_none() || q.is_source_read());
        let Some(at) = self.queue.iter().position(may) else { return false };
        if at == 0 {
            return true;
        }
        if let Some(q) = self.queue.remove(at) {
            self.queue.push_front(q);
        }
        true
    }
}

/// What our shards are for a write ([`Pg::has_sound_shards`]).
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

/// Who asks, and what its watches of the object are like.
fn asker<'a>(q: &Queued, object: &HObject, watches: &'a Watches, epoch: Epoch) -> Asker<'a> {
    let op = &q.op;
    // Few requests need to know.
    let notifies = op.msg.ops.iter().any(|o| matches!(o.op, op::NOTIFY | op::NOTIFY_ACK));
    let (may_notify, room) = if notifies { watches.may_notify(op.conn) } else { (0, 0) };
    Asker {
        name: op.reqid.name,
        addr: op.addr(),
        conn: op.conn,
        timeouts: op.timeouts,
        watched: if q.class.watch { watches.of(object) } else { None },
        next_notify: watches.next_notify(epoch),
        may_notify,
        room,
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
    /// Requests of our own so far.
    own: u64,
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

    /// Number of objects in use, or remembered.
    #[cfg(test)]
    pub fn objects(&self) -> usize {
        self.contexts.len()
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

    /// Are there requests of this connection that were not executed?
    pub fn knows(&self, conn: ConnId) -> bool {
        let queued = self.contexts.values().flat_map(|c| &c.queue);
        self.waiting.iter().chain(&self.pg_queue).chain(queued).any(|q| q.op.conn == conn)
    }

    /// Forgets requests of a closed connection that were not executed.
    pub fn drop_connection(&mut self, conn: ConnId) -> Vec<OpId> {
        let mut gone = Vec::new();
        let mut keep = |q: &mut VecDeque<Queued>, parked: &mut bool| {
            let first = q.front().map(|f| f.op.id);
            q.retain(|o| {
                // Our own are of no connection.
                let goes = o.op.conn == conn && o.own.is_none();
                if goes {
                    gone.push(o.op.id);
                }
                !goes
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

    /// A request of our own takes its turn, at [`PgEffect::Continue`].
    pub fn enqueue_own(&mut self, object: &HObject, mut q: Queued) {
        self.arrivals += 1;
        q.arrival = self.arrivals;
        self.context(object).queue.push_back(q);
        self.pending.push(object.clone());
        self.again = true;
    }

    /// The same, before all others on the object, unless one of them is at work.
    pub fn enqueue_own_first(&mut self, object: &HObject, q: Queued) {
        self.enqueue_own(object, q);
        let c = self.context(object);
        if !c.parked
            && let Some(q) = c.queue.pop_back()
        {
            c.queue.push_front(q);
        }
    }

    /// Is a write of an object, or of one of its clones, under way?
    pub fn writes_of_family(&self, head: &HObject) -> bool {
        self.contexts.iter().any(|(o, c)| c.inflight > 0 && o.is_of_same_object(head))
    }

    /// The first request on an object, if the object's state is known, with that and with how many writes of it are under way.
    pub fn first_of(&self, object: &HObject) -> Option<(OpId, ObjectState, u32)> {
        let c = self.contexts.get(object)?;
        Some((c.queue.front()?.id(), c.state.clone()?, c.inflight))
    }

    /// Takes out the first request on an object.
    pub fn take_first(&mut self, object: &HObject) -> Option<Queued> {
        self.contexts.get_mut(object)?.queue.pop_front()
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
        let goes = |q: &Queued| q.own.is_none() && conns.contains(&q.conn());
        let (gone, kept) = std::mem::take(&mut c.queue).into_iter().partition(goes);
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
        let c = self.contexts.entry(object.clone()).or_default();
        c.used = used;
        c
    }

    /// Forgets idle objects, the longest unused first, when there are too many.
    pub fn evict(&mut self, keep: usize) {
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

    /// What was missing of this object may be there: no request stands apart any more.
    fn rejoin(&mut self, head: &HObject) {
        if let Some(c) = self.contexts.get_mut(head) {
            c.queue.iter_mut().for_each(|q| q.apart = false);
        }
    }

    /// Looks at the requests on these objects again, at [`PgEffect::Continue`].
    pub fn resume(&mut self, which: impl Fn(&HObject) -> bool) {
        let mut found: Vec<HObject> =
            self.contexts.iter().filter(|(o, c)| which(o) && !c.queue.is_empty()).map(|(o, _)| o.clone()).collect();
        found.sort();
        found.iter().for_each(|o| self.rejoin(o));
        self.again |= !found.is_empty();
        self.pending.append(&mut found);
    }

    /// A write of an object begins; what the object is after it, if it is changed, in this event.
    pub fn wrote(&mut self, object: &HObject, changed: Option<ObjectState>) {
        let c = self.context(object);
        c.inflight += 1;
        if changed.is_some() {
            c.state = changed;
            self.changed.insert(object.clone());
        }
    }

    /// A write of an object is durable everywhere. If none is under way any more: does a request wait?
    pub fn durable(&mut self, object: &HObject) -> Option<bool> {
        let c = self.contexts.get_mut(object)?;
        c.inflight = c.inflight.saturating_sub(1);
        (c.inflight == 0).then_some(!c.queue.is_empty())
    }

    /// Stripes of an object (or of its clone) in this version have been read for its first request; or (a planted bug) for one before it.
    pub fn gathered(&mut self, object: &HObject, op: OpId, any: bool, version: EVersion, piece: Piece) {
        let head = object.to_head();
        let first = self.contexts.get_mut(&head).and_then(|c| c.queue.front_mut());
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

impl Pg {
    // ---- arrival ----

    pub(crate) fn on_client(&mut self, op: ClientOp, cx: &mut Cx<'_>) {
        self.ops.arrivals += 1;
        let q = Queued::of_client(op, self.ops.arrivals);
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
    fn turn_away(&mut self, mut q: Queued, newest: Epoch, cx: &mut Cx<'_>) {
        if q.op.msg.epoch < newest {
            Self::share_map(&mut q, newest, cx);
            cx.out.push(PgEffect::Drop(q.op.id));
        } else {
            self.reply_error(&q, -errno::ENXIO, cx);
        }
    }

    /// Is the PG active, and no older primary reading any more?
    /// Not before those who waited for that have gone on: a new request must not overtake them.
    pub(crate) fn serves(&self) -> bool {
        self.active().is_some_and(|a| a.activated && a.serving && a.wait_until == 0)
    }

    /// An object is recovered, or will not be for now: requests on it try again. (Those that use a clone wait in the queue
    /// of its head, and those that only read it stand apart there.)
    pub(crate) fn run_recovered(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let head = object.to_head();
        self.ops.rejoin(&head);
        self.unblock_object(&head, cx);
        if self.ops.contexts.contains_key(&head) {
            self.run_object(&head, cx);
        }
    }

    /// Puts the requests of a role that ends back to waiting. Those whose primary changes
    /// are dropped when they are admitted again.
    pub(crate) fn requeue(&mut self, role: Role) {
        let mut all = self.ops.drain();
        if let Role::Active(active) = role {
            all.extend(active.inflight.into_iter().flat_map(Inflight::into_requests));
            all.sort_by_key(|q| q.arrival);
        }
        // What was to be removed is looked for again.
        all.retain(|q| q.own.is_none());
        for q in &mut all {
            (q.fetched, q.gathered, q.apart) = (None, Gathered::default(), false);
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

    /// Clients whom the map shuts out wait for no copy any more: what it holds is for others.
    pub(crate) fn give_up_copies(&mut self, cx: &mut Cx<'_>) {
        if planted!(self.cfg, FenceAtArrival) {
            return;
        }
        let view = self.view.as_deref();
        let fenced = |(object, c): (&HObject, &Context)| {
            let q = c.queue.iter().find(|q| Some(q.op.id) == c.copying)?;
            q.is_shut_out(view).then(|| (object.clone(), q.op.id))
        };
        let mut fenced: Vec<(HObject, OpId)> = self.ops.contexts.iter().filter_map(fenced).collect();
        fenced.sort();
        for (object, op) in fenced {
            self.ops.parked.remove(&op);
            let Some(c) = self.ops.contexts.get_mut(&object) else { continue };
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
    pub(crate) fn run_object(&mut self, object: &HObject, cx: &mut Cx<'_>) {
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
            if first.is_shut_out(self.view.as_deref()) && !planted!(self.cfg, FenceAtArrival) {
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
            if write && self.is_premerge() {
                return; // The next interval comes back here.
            }
            if write && self.scrub.blocks(object) && !planted!(self.cfg, ScrubBesideWrites) {
                return; // The end of the chunk comes back here.
            }
            if self.must_recover_first(object, write, cx) {
                self.back_off_object(object, object, cx);
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
        // What the PG asks of itself has no number of a client's.
        let first = context.queue.front().filter(|q| q.own.is_none());
        let Some(known) = first.and_then(|q| self.log.find(&q.op.reqid)) else { return false };
        let Dup { version, user_version, result, returns, .. } = known;
        let watched = context.state.as_ref().map(|s| s.watchers.clone()).filter(|w| !w.is_empty());
        let Some(q) = context.queue.pop_front() else { return false };
        if let Role::Active(active) = &mut self.role
            && let Ok(i) = active.inflight.binary_search_by(|f| f.version().cmp(&version))
            && let Some(f) = active.inflight.get_mut(i)
        {
            f.join(q);
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
        if result >= 0
            && let Some(watched) = watched
        {
            self.connect_again(object, &q.op.msg.ops, &watched, q.who(), cx);
        }
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
                Ok(state) => {
                    let watchers = state.watchers.clone();
                    let again = q.class.write && q.class.watch;
                    context.state = Some(state);
                    self.know_watches(object, &watchers, cx);
                    if again && self.answered_before(object, cx) {
                        return true;
                    }
                }
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
        let Some(context) = self.ops.contexts.get(object) else { return false };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else { return false };
        if let Some(Own::Unwatch(key)) = q.own {
            let stored = state.watchers.iter().any(|w| w.key() == key);
            if !stored || !self.is_watch_due(object, key, cx) {
                self.ops.context(object).queue.pop_front();
                self.watch_stays(object, key, stored, cx);
                return true;
            }
        } else if !state.watchers.is_empty() && self.watches.of(object).is_none() {
            // Made by a write of our own, not loaded.
            let watchers = state.watchers.clone();
            self.know_watches(object, &watchers, cx);
        }
        let Some(context) = self.ops.contexts.get(object) else { return false };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else { return false };
        if let Some(Own::Trim(number)) = q.own {
            return self.trim_first(object, number, cx);
        }
        let (id, write) = (q.op.id, q.class.write);
        let clones = snap::clones_used(object, state, q.op.msg.snapid, &q.op.msg.ops, &pool.snaps.removed);
        // What the request uses, each in the version that it has here: the head, and clones that are to be read.
        let mut used = vec![(object.clone(), state.info.version)];
        let stored = state.exists;
        for clone in clones {
            if self.must_recover_first(&clone, write, cx) && !planted!(self.cfg, CloneNotRecovered) {
                return self.wait_for_clone(object, id, &clone, cx);
            }
            match exec::load_object(cx.reader, &clone) {
                Ok(state) => used.push((clone, state.info.version)),
                Err(exec::ReadError::NotReady(what)) => return self.park_first(object, id, what, cx),
                Err(error) => {
                    tracing::error!(pg = %self.id, %clone, %error, "load a clone");
                    used.push((clone, EVersion::default()));
                }
            }
        }
        if write && stored {
            match self.has_sound_shards(object, id, &used, cx) {
                Sound::Yes => {}
                Sound::NotRead | Sound::Replaced => return false, // What is read comes back here, or recovery.
                Sound::No => {
                    let Some(context) = self.ops.contexts.get_mut(object) else { return false };
                    if let Some(q) = context.queue.pop_front() {
                        self.reply_error(&q, -errno::EIO, cx);
                    }
                    return true;
                }
            }
        }
        let Some(context) = self.ops.contexts.get_mut(object) else { return false };
        let (Some(state), Some(q)) = (&context.state, context.queue.front()) else { return false };
        // Bytes are read of one object: of the clone, if the request uses one.
        let Some((read, version)) = used.pop() else { return false };
        let told = SnapContext { seq: q.op.msg.snap_seq, snaps: q.op.msg.snaps.clone() };
        let context_of = match q.own {
            // A watch that ends by itself changes nothing that a snapshot shows, and makes no clone, as in Ceph.
            Some(_) => SnapContext::default(),
            None => pool.snaps.context_of(told, q.op.msg.flags & flag::ENFORCE_SNAPC != 0).without(&self.purged),
        };
        let ctx = OpContext {
            object,
            pg: self.id,
            pg_num: pool.pg_num,
            pool: pool.rules,
            limits: &self.cfg.limits,
            flags: q.op.msg.flags,
            snapid: q.op.msg.snapid,
            context: &context_of,
            removed: &pool.snaps.removed,
            last_user_version: self.info.as_ref().map_or(0, |i| i.head.last_user_version),
            origin: Origin { reqid: q.op.reqid, addr: q.op.addr(), now: cx.now.wall },
            fetched: q.fetched.as_deref(),
            asker: asker(q, object, &self.watches, view.epoch),
            #[cfg(feature = "plant-bugs")]
            bug: self.cfg.bug,
        };
        let pieces = q.gathered.of(version);
        #[cfg(feature = "plant-bugs")]
        let pieces = if planted!(self.cfg, PiecesKept) { q.gathered.of_any() } else { pieces };
        let erasure = EcReader { inner: cx.reader, pieces };
        let backend = pool.shape.map_or(Backend::Replicated, Backend::Erasure);
        let reader: &dyn ObjectReader = if pool.shape.is_some() { &erasure } else { cx.reader };
        let outcome = exec::execute(&ctx, state, reader, &q.op.msg.ops);
        if let Some(stripes) = backend.lacks(&outcome, pieces)
            && (outcome.is_err() || !planted!(self.cfg, StripeNotRead))
        {
            context.parked = true;
            self.ops.parked.insert(id, Some(object.clone()));
            if !self.gather(&read, version, stripes, For::Op(id), cx) {
                self.op_unreadable(&read, id, cx);
            }
            return false; // What follows it has run, if it reads what cannot be had.
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
                let own = context.queue.pop_front().and_then(|q| q.own);
                own.into_iter().for_each(|own| self.own_failed(object, own, cx));
                cx.out.push(PgEffect::Drop(id));
                true
            }
            Ok(outcome) => {
                if outcome.unreadable && outcome.result == -errno::EIO && self.heal(&read, version, cx) {
                    // The last commit comes back here, or recovery.
                    let is_clone = read != *object && self.missing.contains(&read);
                    return is_clone && self.wait_for_clone(object, id, &read, cx);
                }
                let Some(context) = self.ops.contexts.get_mut(object) else { return false };
                if let Some(mut q) = context.queue.pop_front() {
                    let gathered = std::mem::take(&mut q.gathered);
                    self.watches_planned(object, &outcome.watch, cx);
                    self.conclude(object, q, outcome, gathered.of(version), cx);
                }
                true
            }
        }
    }

    /// A request on an object uses a clone of it that is missing, for which recovery comes back here. May others go on?
    fn wait_for_clone(&mut self, object: &HObject, op: OpId, clone: &HObject, cx: &mut Cx<'_>) -> bool {
        let queue = self.ops.contexts.get_mut(object).map(|c| &mut c.queue);
        let Some(q) = queue.and_then(|q| q.iter_mut().find(|q| q.op.id == op)) else { return true };
        if q.class.write {
            self.back_off_object(object, clone, cx);
            // It may be its client that holds it now.
            return !self.ops.contexts.get(object).is_some_and(|c| c.queue.iter().any(|q| q.op.id == op));
        }
        // Nothing that comes behind it changes what it reads: it waits alone, as in Ceph.
        q.apart = true;
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
            match self.has_sound_shard(one, *version, cx.reader) {
                Ok(true) => {}
                Err(exec::ReadError::NotReady(what)) => {
                    self.park_first(object, op, what, cx);
                    return Sound::NotRead;
                }
                bad => {
                    tracing::error!(pg = %self.id, object = %one, %version, ?bad, "a spoilt shard under a write");
                    return if self.heal(one, *version, cx) { Sound::Replaced } else { Sound::No };
                }
            }
        }
        Sound::Yes
    }

    /// The first request of an object waits for this. False: nothing more can be executed now.
    pub(crate) fn park_first(&mut self, object: &HObject, op: OpId, what: Prefetch, cx: &mut Cx<'_>) -> bool {
        self.ops.context(object).parked = true;
        self.ops.parked.insert(op, Some(object.clone()));
        cx.out.push(PgEffect::Prefetch(ReadKey::Op(op), what));
        false
    }

    /// An object that cannot be read here counts as missing, and its requests wait until another copy's content has
    /// replaced it: if nobody within reach has one, it is unfound until somebody returns who has. `version` is what is
    /// stored, zero if that is unknown, too. False if it is not in the log, either: then nobody can be asked for it.
    pub(crate) fn heal(&mut self, object: &HObject, version: EVersion, cx: &mut Cx<'_>) -> bool {
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
                let mut reply = self.reply_to(&q, outcome.result, outcome.ops);
                reply.user_version = outcome.user_version;
                cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
                // Behind the answer, which names the notification.
                self.watch_effects(object, &outcome.watch, q.who(), outcome.user_version, cx);
                self.ops.evict(self.cfg.contexts);
            }
            Effect::LogOnly | Effect::Apply(_) => self.write(object, q, outcome, pieces, cx),
        }
    }

    /// The answer to a request, with what each op gave.
    pub(crate) fn reply_to(&self, q: &Queued, result: i32, ops: Vec<OpResult>) -> MOsdOpReply {
        let mut reply = MOsdOpReply::with(&q.op.msg, self.epoch(), result, ops);
        reply.flags |= u64::from(flag::ONDISK);
        reply
    }

    pub(crate) fn reply_error(&mut self, q: &Queued, result: i32, cx: &mut Cx<'_>) {
        if let Some(own) = q.own {
            return self.own_failed(&q.op.msg.hobject(), own, cx);
        }
        cx.out.push(PgEffect::Reply(q.op.id, Box::new(MOsdOpReply::to(&q.op.msg, self.epoch(), result))));
    }

    /// A request of our own on an object. `whose`: the client whom it concerns, if it is one's.
    pub(crate) fn enqueue_own(&mut self, object: &HObject, ops: Vec<OsdOp>, whose: ReqId, own: Own) {
        let q = self.own_request(object, ops, whose, own);
        self.ops.enqueue_own(object, q);
    }

    /// After something of an object was given up: its history and its clones are to agree before anything else is done with it.
    pub(crate) fn trim_before_others(&mut self, object: &HObject) {
        let q = self.own_request(object, Vec::new(), ReqId::default(), Own::Trim(snap::trim::NO_WALK));
        self.ops.enqueue_own_first(object, q);
    }

    fn own_request(&mut self, object: &HObject, ops: Vec<OsdOp>, whose: ReqId, own: Own) -> Queued {
        self.ops.own += 1;
        let locator =
            ObjectLocator { pool: object.pool, key: object.key.clone(), namespace: object.namespace.clone(), hash: -1 };
        let spg = SpgId::new(self.id, self.me.shard);
        let op = ClientOp {
            id: OWN_OPS + self.ops.own,
            conn: 0,
            reqid: whose,
            addrs: Arc::default(),
            msg: Box::new(MOsdOp::new(spg, object.hash, locator, object.name.clone(), ops)),
            patience: Patience::Endless,
            timeouts: Timeouts::default(),
        };
        let mut q = Queued { own: Some(own), ..Queued::of_client(op, 0) };
        q.class.write = true;
        q
    }

    /// A request of our own on an object has ended without what it was for.
    fn own_failed(&mut self, object: &HObject, own: Own, cx: &mut Cx<'_>) {
        match own {
            Own::Unwatch(key) => self.watch_not_removed(object, key, cx),
            Own::Trim(number) => self.trimmed(object, number, false, cx),
        }
    }

    /// A write of our own on an object is durable everywhere.
    pub(crate) fn own_written(&mut self, object: &HObject, own: Own, cx: &mut Cx<'_>) {
        match own {
            Own::Unwatch(key) => self.watch_not_removed(object, key, cx),
            // One write need not have been enough: it looks again. Where there is no head, the last entry is a clone's.
            Own::Trim(snap::trim::NO_WALK) => self.trim_before_others(&object.to_head()),
            Own::Trim(_) => self.enqueue_own(&object.to_head(), Vec::new(), ReqId::default(), own),
        }
    }

    /// What the first request of an object needs of it cannot be made: it ends with EIO.
    pub(crate) fn op_failed(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.ops.parked.remove(&op);
        let object = &object.to_head();
        if let Some(c) = self.ops.contexts.get_mut(object) {
            c.parked = false;
            if let Some(q) = c.queue.pop_front_if(|q| q.op.id == op) {
                self.reply_error(&q, -errno::EIO, cx);
            }
        }
        self.run_object(object, cx);
    }

    /// Too few shards of an object, head or clone, can be read: requests that use it wait until that changes.
    pub(crate) fn op_unreadable(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.ops.parked.remove(&op);
        let head = object.to_head();
        if let Some(c) = self.ops.contexts.get_mut(&head) {
            c.parked = false;
            c.state = None;
        }
        if let Role::Active(a) = &mut self.role {
            a.recovery.unfound.insert(object.clone());
        }
        self.reopen(cx);
        if head == *object {
            self.back_off_object(object, object, cx);
        } else if self.wait_for_clone(&head, op, object, cx) {
            self.run_object(&head, cx);
        }
    }

    // ---- requests on the PG ----

    fn run_pg_queue(&mut self, cx: &mut Cx<'_>) {
        while matches!(self.role, Role::Active(_)) && !self.ops.pg_parked {
            let Some(q) = self.ops.pg_queue.front() else { return };
            if q.is_shut_out(self.view.as_deref()) && !planted!(self.cfg, FenceAtArrival) {
                let Some(q) = self.ops.pg_queue.pop_front() else { return };
                self.reply_error(&q, -errno::ESHUTDOWN, cx);
                continue;
            }
            if !self.lease_held(cx) {
                self.ops.lease_pg = true;
                return;
            }
            let Some(pool) = self.view.as_ref().and_then(|v| v.pool.clone()) else { return };
            let (object, no_context) = (q.op.msg.hobject(), SnapContext::default());
            let ctx = OpContext {
                object: &object,
                pg: self.id,
                pg_num: pool.pg_num,
                pool: pool.rules,
                limits: &self.cfg.limits,
                flags: q.op.msg.flags,
                snapid: q.op.msg.snapid,
                context: &no_context,
                removed: &pool.snaps.removed,
                last_user_version: self.info.as_ref().map_or(0, |i| i.head.last_user_version),
                origin: Origin { reqid: q.op.reqid, addr: q.op.addr(), now: cx.now.wall },
                fetched: None,
                asker: asker(q, &object, &self.watches, self.epoch()),
                #[cfg(feature = "plant-bugs")]
                bug: self.cfg.bug,
            };
            let listed = WithMissing { reader: cx.reader, missing: &self.missing };
            let listed = match self.scrub_ls(&q.op.msg.ops) {
                Some(outcome) => Ok(outcome),
                None => exec::execute_pg(&ctx, &listed, &q.op.msg.ops),
            };
            match listed {
                Ok(outcome) => {
                    let Some(q) = self.ops.pg_queue.pop_front() else { return };
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
