//! Client requests: in which phase each is, order per object, execution, reply.
//!
//! A request is in one phase at a time ([`Phase`]), and its shell is told of each (`ceph daemon
//! osd.N dump_ops_in_flight` shows them, with when they began):
//!
//! | it waits for | phases | is in | what comes back to it |
//! |---|---|---|---|
//! | a map | `Map` | `waiting` | `Lead::run_waiting`, with every map |
//! | the PG | `Peered`, `Active`, `Paused` | `waiting` | the same, and the activation |
//! | its object's turn | `Turn`, `Scrub`, `Merge`, `Lease` | its object's queue | the last commit (`Lead::advance`), the scrub's chunk, the next interval, the lease |
//! | recovery | `Missing`, `Degraded`, `Clone` | its object's queue | `Lead::run_recovered` |
//! | a read | `Read`, `Copy` | its object's queue, and `reads` | `Lead::on_op_ready` |
//! | – | `Execute` | its object's queue | |
//! | all members | `Commit` | `write`: writes not durable everywhere | `Lead::advance` answers it |
//!
//! When the role ends all of them begin anew, in order of arrival.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the queues |
//! | `request` | one request, its phases |
//! | `turn` | arrival, turns, execution |
//!
//! A client may be shut out while its request waits. So a turn begins with a look at the newest map
//! that the PG has: a request that carries that map, or a newer one, is executed only after the
//! last one of a client that it shuts out.
//!
//! Order per object is strict. Writes of an object overlap: each is executed on what the
//! earlier ones made of the object, and replies leave in order. Reads wait until every
//! earlier write is durable everywhere, so nothing uncommitted is ever shown.
//!
//! The reader shows a transaction only after the shell performed the effect, so an object
//! changed in this event is not executed on again before [`PgEffect::Continue`].

mod execute;
mod request;
mod turn;

pub(crate) use request::{Own, Request};
pub(crate) use turn::Sound;

use crate::api::{ConnId, OpId, PgEffect, Phase};
use crate::backoff::Held;
use crate::core::{Cx, PgCore};
use crate::erasure::stripe::Piece;
use crate::exec::ObjectState;
use crate::write::Inflight;
use spirula_messages::ceph::osd::{MOsdOpReply, flag};
use spirula_types::{EVersion, Epoch, HObject, SNAP_HEAD, errno, hash};
use std::collections::{HashMap, HashSet, VecDeque};

/// An object in use.
#[derive(Debug, Default)]
struct Context {
    /// Its state with every write executed so far; `None`: not loaded.
    state: Option<ObjectState>,
    /// Writes executed and not durable everywhere.
    inflight: u32,
    queue: VecDeque<Request>,
    /// A request of the queue that waits for the object it is to copy: meanwhile sources of other
    /// copies are read here, so that copies cannot wait for each other in a circle.
    copying: Option<OpId>,
    /// When it was last used, for eviction.
    used: u64,
}

impl Context {
    /// Is something read for the first request? Then all wait.
    fn is_reading(&self) -> bool {
        self.queue.front().is_some_and(Request::is_reading)
    }

    /// What is read for the first request is there, or nobody waits for it any more.
    fn look_again(&mut self) {
        self.queue.front_mut().into_iter().for_each(Request::look_again);
    }

    /// Puts the request that may be executed next in front; false if there is none.
    fn next_is_first(&mut self) -> bool {
        let may = |q: &Request| !q.stands_apart() && (self.copying.is_none() || q.is_source_read());
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

/// Requests and object contexts of a PG.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    arrivals: u64,
    /// For a newer map, or for the PG to become active; in order of arrival.
    waiting: VecDeque<Request>,
    /// Only looked up, or drained and sorted by arrival.
    contexts: HashMap<HObject, Context>,
    uses: u64,
    /// Requests of our own so far.
    own: u64,
    /// Requests on the PG itself.
    pg_queue: VecDeque<Request>,
    /// For which requests something is read, and on which object they are; `None` for the PG
    /// itself.
    reads: HashMap<OpId, Option<HObject>>,
    /// Objects to look at again, by a lease or by `Continue`.
    lease_waiting: Vec<HObject>,
    lease_pg: bool,
    pending: Vec<HObject>,
    /// Objects changed in this event.
    changed: HashSet<HObject>,
    again: bool,
}

impl Requests {
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
        self.waiting.len()
            + self.pg_queue.len()
            + self.contexts.values().map(|c| c.queue.len()).sum::<usize>()
    }

    /// Number of objects in use, or remembered.
    #[cfg(test)]
    pub fn objects(&self) -> usize {
        self.contexts.len()
    }

    /// No requests?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self.pg_queue.is_empty()
            && self.contexts.values().all(|c| c.queue.is_empty())
    }

    /// Takes over what waits elsewhere.
    pub fn inherit(&mut self, old: Requests) {
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
        let mut keep = |q: &mut VecDeque<Request>| {
            q.retain(|o| {
                // Our own are of no connection.
                let goes = o.op.conn == conn && o.own.is_none();
                if goes {
                    gone.push(o.op.id);
                }
                !goes
            });
        };
        keep(&mut self.waiting);
        keep(&mut self.pg_queue);
        for (object, c) in &mut self.contexts {
            let before = c.queue.len();
            keep(&mut c.queue);
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
    pub fn enqueue_own(&mut self, object: &HObject, mut q: Request) {
        self.arrivals += 1;
        q.arrival = self.arrivals;
        self.context(object).queue.push_back(q);
        self.pending.push(object.clone());
        self.again = true;
    }

    /// The same, before all others on the object but the one for which something is read.
    pub fn enqueue_own_first(&mut self, object: &HObject, q: Request) {
        self.enqueue_own(object, q);
        let c = self.context(object);
        let behind = usize::from(c.is_reading());
        if let Some(q) = c.queue.pop_back() {
            c.queue.insert(behind, q);
        }
    }

    /// Is a write of an object, or of one of its clones, under way?
    pub fn writes_of_family(&self, head: &HObject) -> bool {
        self.contexts.iter().any(|(o, c)| c.inflight > 0 && o.is_of_same_object(head))
    }

    /// The first request on an object, if the object's state is known, with that and with how many
    /// writes of it are under way.
    pub fn first_of(&self, object: &HObject) -> Option<(OpId, ObjectState, u32)> {
        let c = self.contexts.get(object)?;
        Some((c.queue.front()?.id(), c.state.clone()?, c.inflight))
    }

    /// Takes out the first request on an object.
    pub fn take_first(&mut self, object: &HObject) -> Option<Request> {
        self.contexts.get_mut(object)?.queue.pop_front()
    }

    /// Objects of this kind that requests wait for, which nothing is read for.
    pub fn waiting_on(&self, which: impl Fn(&HObject) -> bool) -> Vec<HObject> {
        let waits = self
            .contexts
            .iter()
            .filter(|(o, c)| !c.queue.is_empty() && !c.is_reading() && which(o));
        let mut found: Vec<HObject> = waits.map(|(o, _)| o.clone()).collect();
        found.sort();
        found
    }

    /// Takes the requests that need not wait out of an object's queue, with all others of their
    /// connections. (Who has none, an OSD that copies or a client that is gone, goes by himself.)
    pub fn take_from(&mut self, object: &HObject, go: impl Fn(&Request) -> bool) -> Vec<OpId> {
        let Some(c) = self.contexts.get_mut(object) else { return Vec::new() };
        let whose = |q: &Request| (q.conn(), q.op.reqid.name);
        let whom: HashSet<_> = c.queue.iter().filter(|q| go(q)).map(whose).collect();
        let goes = |q: &Request| q.own.is_none() && whom.contains(&whose(q));
        let (gone, kept) = std::mem::take(&mut c.queue).into_iter().partition(goes);
        c.queue = kept;
        c.copying = c.copying.filter(|id| c.queue.iter().any(|q| q.op.id == *id));
        let gone: VecDeque<Request> = gone;
        gone.into_iter().map(|q| q.op.id).collect()
    }

    /// Takes every request out, in order of arrival, and forgets all objects.
    fn drain(&mut self) -> Vec<Request> {
        let mut all: Vec<Request> = self.waiting.drain(..).chain(self.pg_queue.drain(..)).collect();
        all.extend(self.contexts.drain().flat_map(|(_, c)| c.queue));
        all.sort_by_key(|q| q.arrival);
        self.reads.clear();
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
        let mut idle: Vec<u64> = self
            .contexts
            .values()
            .filter(|c| c.inflight == 0 && c.queue.is_empty())
            .map(|c| c.used)
            .collect();
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
            c.queue.iter_mut().filter(|q| q.stands_apart()).for_each(Request::look_again);
        }
    }

    /// Looks at the requests on these objects again, at [`PgEffect::Continue`].
    pub fn resume(&mut self, which: impl Fn(&HObject) -> bool) {
        let mut found: Vec<HObject> = self
            .contexts
            .iter()
            .filter(|(o, c)| which(o) && !c.queue.is_empty())
            .map(|(o, _)| o.clone())
            .collect();
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

    /// A write of an object is durable everywhere. If none is under way any more: does a request
    /// wait? Those that use a clone wait with its head.
    pub fn durable(&mut self, object: &HObject) -> Option<bool> {
        let c = self.contexts.get_mut(object)?;
        c.inflight = c.inflight.saturating_sub(1);
        if c.inflight > 0 {
            return None;
        }
        let waits = |c: &Context| !c.queue.is_empty();
        Some(
            waits(c)
                || object.snap != SNAP_HEAD
                    && self.contexts.get(&object.to_head()).is_some_and(waits),
        )
    }

    /// Stripes of an object (or of its clone) in this version have been read for its first request;
    /// or (a planted bug) for one before it.
    pub fn gathered(
        &mut self,
        object: &HObject,
        op: OpId,
        any: bool,
        version: EVersion,
        piece: Piece,
    ) {
        let head = object.to_head();
        let first = self.contexts.get_mut(&head).and_then(|c| c.queue.front_mut());
        if let Some(q) = first.filter(|q| any || q.op.id == op) {
            q.gathered.add(version, piece);
        }
    }

    /// Nobody wants what is read for this request any more.
    pub fn unpark(&mut self, op: OpId) {
        self.reads.remove(&op);
    }

    /// The first request on an object comes into a phase. Its read goes on until it has come.
    pub fn first_enters(&mut self, object: &HObject, phase: Phase, cx: &mut Cx<'_>) {
        let first = self.contexts.get_mut(object).and_then(|c| c.queue.front_mut());
        first.into_iter().filter(|q| !q.is_reading()).for_each(|q| q.enter(phase, cx));
    }

    /// Something is read for the first request on an object, which is this.
    fn park_first(&mut self, object: &HObject, op: OpId, cx: &mut Cx<'_>) {
        self.first_enters(object, Phase::Read, cx);
        self.reads.insert(op, Some(object.clone()));
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

/// What a request meets that comes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The PG serves.
    Serves,
    /// It does not. `peered`: not for want of peering; `long`: not before something changes that
    /// may take long.
    Waits { peered: bool, long: bool },
}

/// Where a request stands that was looked at.
#[derive(Debug, PartialEq, Eq)]
enum Admitted {
    /// It was answered, or waits.
    No,
    /// In the queue of this object, whose turn may have come.
    Object(HObject),
    /// In the queue of the PG itself.
    Pg,
}

/// Sends a request's client the maps up to `newest`, unless it was done.
fn share_map(q: &mut Request, newest: Epoch, cx: &mut Cx<'_>) {
    if q.op.msg.epoch < newest && q.shared < newest {
        q.shared = newest;
        cx.out.push(PgEffect::ShareMap(q.op.conn, q.op.msg.epoch));
    }
}

/// A request is not for this PG here and now. By the newest map its client sends it again where
/// it belongs; it may ask for none while it waits. A client that has that map would wait for
/// ever, and is told.
fn turn_away(core: &PgCore, mut q: Request, newest: Epoch, cx: &mut Cx<'_>) {
    if q.op.msg.epoch < newest {
        share_map(&mut q, newest, cx);
        cx.out.push(PgEffect::Drop(q.op.id));
    } else {
        refuse(core, &q, -errno::ENXIO, cx);
    }
}

/// Answers a client's request with an error.
fn refuse(core: &PgCore, q: &Request, result: i32, cx: &mut Cx<'_>) {
    let reply = MOsdOpReply::to(&q.op.msg, core.epoch(), result);
    cx.out.push(PgEffect::Reply(q.op.id, Box::new(reply)));
}

impl Requests {
    /// Checks a request against the map and puts it where it belongs.
    fn admit(
        &mut self,
        mut q: Request,
        core: &PgCore,
        held: &mut Held,
        standing: Standing,
        cx: &mut Cx<'_>,
    ) -> Admitted {
        let epoch = q.op.msg.epoch;
        let Some(view) = core.view.clone().filter(|v| v.epoch >= epoch) else {
            cx.out.push(PgEffect::NeedMap(epoch));
            q.enter(Phase::Map, cx);
            self.waiting.push_back(q);
            return Admitted::No;
        };
        if q.shared == 0 {
            share_map(&mut q, view.epoch, cx);
        }
        let Some(pool) = &view.pool else {
            refuse(core, &q, -errno::ENOENT, cx);
            return Admitted::No;
        };
        if view.primary != core.me {
            let replica = flag::BALANCE_READS | flag::LOCALIZE_READS;
            if q.op.msg.flags & replica != 0 && !q.class.write && core.is_acting() {
                refuse(core, &q, -errno::EAGAIN, cx);
            } else {
                turn_away(core, q, view.epoch, cx);
            }
            return Admitted::No;
        }
        let seed = hash::stable_mod(q.op.msg.hash, pool.pg_num, hash::mask_for(pool.pg_num));
        let misplaced = if q.class.pg { q.op.msg.spg.pg != core.id } else { seed != core.id.seed };
        if epoch < core.primary_since || epoch < pool.force_resend || misplaced {
            turn_away(core, q, view.epoch, cx);
            return Admitted::No;
        }
        if let Standing::Waits { peered, long } = standing {
            if let Some(mut q) = held.keep_or_back_off(q, long, core, cx) {
                q.enter(if peered { Phase::Active } else { Phase::Peered }, cx);
                self.waiting.push_back(q);
            }
            return Admitted::No;
        }
        // A client that has seen the flags sends nothing; one with an older map is to wait, too.
        let paused =
            if q.class.write { view.permits.pause_writes } else { view.permits.pause_reads };
        if paused {
            q.enter(Phase::Paused, cx);
            self.waiting.push_back(q);
            return Admitted::No;
        }
        if q.class.pg {
            if !self.pg_queue.is_empty() {
                q.enter(Phase::Turn, cx);
            }
            self.pg_queue.push_back(q);
            return Admitted::Pg;
        }
        let object = q.op.msg.hobject();
        let queue = &mut self.context(&object).queue;
        if !queue.is_empty() {
            q.enter(Phase::Turn, cx);
        }
        queue.push_back(q);
        Admitted::Object(object)
    }

    /// Lets waiting requests try again where none can be served.
    fn wait_on(&mut self, core: &PgCore, held: &mut Held, standing: Standing, cx: &mut Cx<'_>) {
        for q in std::mem::take(&mut self.waiting) {
            self.admit(q, core, held, standing, cx);
        }
    }

    /// Puts the requests of a role that ends back to waiting, with those of its writes that are not
    /// durable everywhere. Those whose primary changes are dropped when they are admitted again.
    pub fn requeue(&mut self, inflight: VecDeque<Inflight>, cx: &mut Cx<'_>) {
        let mut all = self.drain();
        if !inflight.is_empty() {
            all.extend(inflight.into_iter().flat_map(Inflight::into_requests));
            all.sort_by_key(|q| q.arrival);
        }
        // What was to be removed is looked for again.
        all.retain(|q| q.own.is_none());
        all.iter_mut().for_each(|q| q.begin_anew(cx));
        self.waiting.extend(all);
    }

    /// Forgets every request because of the map of `newest`; their clients see that and send them
    /// again.
    pub fn drop_all(&mut self, newest: Epoch, cx: &mut Cx<'_>) {
        for mut q in std::mem::take(&mut self.waiting) {
            share_map(&mut q, newest, cx);
            cx.out.push(PgEffect::Drop(q.op.id));
        }
    }

    /// The pool is gone: everything that waits ends with ENOENT.
    pub fn refuse_all(&mut self, core: &PgCore, cx: &mut Cx<'_>) {
        for q in std::mem::take(&mut self.waiting) {
            refuse(core, &q, -errno::ENOENT, cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Patience;
    use crate::api::{ClientOp, Now, PgEffect};
    use crate::exec::Timeouts;
    use crate::exec::tests::{MemStore, object};
    use crate::lease::Leases;
    use spirula_messages::ceph::osd::MOsdOp;
    use spirula_types::{EntityType, ObjectLocator, PgId, ReqId, SpgId};
    use std::sync::Arc;

    fn request(object: &HObject, id: OpId) -> Request {
        let (key, namespace) = (object.key.clone(), object.namespace.clone());
        let locator = ObjectLocator { pool: object.pool, key, namespace, hash: -1 };
        let msg = MOsdOp::new(
            SpgId::whole(PgId::new(1, 0)),
            object.hash,
            locator,
            object.name.clone(),
            Vec::new(),
        );
        let (reqid, addrs, patience) = (ReqId::default(), Arc::default(), Patience::Endless);
        let op = ClientOp {
            id,
            conn: 1,
            reqid,
            addrs,
            msg: Box::new(msg),
            patience,
            timeouts: Timeouts::default(),
        };
        Request::of_client(op, id)
    }

    /// A clone may be written alone: where it is given up, and where there is no head.
    #[test]
    fn a_clones_last_commit_comes_back_to_who_waits_with_its_head() {
        let head = object("o");
        let (clone, mut all) = (HObject { snap: 4, ..head.clone() }, Requests::default());
        for _ in 0..2 {
            all.wrote(&clone, None);
        }
        all.context(&head).queue.push_back(request(&head, 1));
        assert_eq!((all.durable(&clone), all.durable(&clone)), (None, Some(true)));
        all.take_first(&head);
        all.wrote(&clone, None);
        assert_eq!(all.durable(&clone), Some(false), "nobody waits");
    }

    /// An OSD's read of what it copies has no connection, nor has a write whose client is gone.
    #[test]
    fn who_has_no_connection_is_not_taken_with_others() {
        let (head, mut all) = (object("o"), Requests::default());
        for (id, kind) in [(1, EntityType::Client), (2, EntityType::Osd), (3, EntityType::Client)] {
            let mut q = request(&head, id);
            q.op.reqid.name.kind = kind as u8;
            q.lose_connection();
            all.context(&head).queue.push_back(q);
        }
        assert_eq!(all.take_from(&head, |q| q.id() == 3), [1, 3]);
        assert_eq!(all.take_first(&head).map(|q| q.id()), Some(2));
    }

    #[test]
    fn a_request_of_our_own_goes_before_all_but_the_one_that_is_read_for() {
        let head = object("o");
        let (store, leases, mut out) =
            (MemStore::default(), Leases::new(1000, 0), Vec::<PgEffect>::new());
        let now = Now { mono_ms: 0, wall: spirula_encoding::UTime::ZERO };
        let mut cx = Cx { now, reader: &store, leases: &leases, out: &mut out };
        for (reads, order) in [(false, [9, 1, 2]), (true, [1, 9, 2])] {
            let mut all = Requests::default();
            (1..3).for_each(|id| all.context(&head).queue.push_back(request(&head, id)));
            if reads {
                all.park_first(&head, 1, &mut cx);
            }
            all.enqueue_own_first(&head, request(&head, 9));
            assert!(all.contexts[&head].queue.iter().map(Request::id).eq(order), "{reads}");
        }
    }
}
