//! The PG itself: its state, and which part of it an event belongs to.

use crate::active::Active;
use crate::api::{
    ConnId, LogLevel, MapView, Now, PeerMsg, PgConfig, PgEffect, PgEvent, Reservation, Token,
    TurnKind,
};
use crate::backoff::Held;
use crate::copy::Change;
use crate::core::PgCore;
use crate::exec::{ObjectReader, Prefetch};
use crate::intervals::Interval;
use crate::lease::Leases;
use crate::mail::Mail;
use crate::peering::Peering;
use crate::repair::{self, Repairs};
use crate::replica::Replica;
use crate::requests::Requests;
use crate::shard::{ShardReader, object_of_store, store_object, undo_object};
use crate::snap::trim;
use crate::stored::Stored;
use spirula_encoding::DecodeError;
use spirula_messages::cluster::pg::{CtlBody, PastInterval, PgCtl, PgInfo};
use spirula_types::transaction::{MetaOp, Transaction};
use spirula_types::{EVersion, Epoch, HObject, OsdId, Peer, PgId, SpgId, hash};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A time that was forgotten with a restart.
pub(crate) const UNKNOWN_MS: u64 = u64::MAX;

/// What this OSD does for the PG.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing, or waiting for its primary.
    Idle,
    /// Takes writes from the primary of the present interval.
    Replica(Box<Replica>),
    /// Primary, not active yet.
    Peering(Box<Peering>),
    /// Primary: activating, then serving, or only recovering where too few members are up.
    Active(Box<Active>),
    /// Deletes its copy.
    Removing(Removing),
}

/// The deletion of a copy.
#[derive(Debug, Default)]
pub(crate) struct Removing {
    /// One that could not go on does so then, monotonic milliseconds; 0: none waits.
    pub again_ms: u64,
    /// It waits for this read.
    pub read: Option<u64>,
}

/// What to do when a transaction is durable.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a box per replicated write would cost more than it saves"
)]
pub(crate) enum After {
    /// A write of the interval is durable here.
    Write { since: Epoch, version: EVersion },
    /// Send this.
    Send(Peer, PeerMsg),
    /// A piece that the primary pushed is durable here.
    Pushed { since: Epoch, to: Peer, seq: u64 },
    /// A step of the primary's own is durable here.
    Step { since: Epoch, step: Step },
    /// Nothing more.
    Nothing,
    /// Go on deleting.
    Remove,
    /// The last trace is gone.
    Gone,
}

/// Own steps that wait for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All that was submitted before peering began.
    Flushed,
    /// A piece of an object pulled from another copy.
    Pulled(u64),
    /// The activation.
    Activated,
    /// A piece of our shard that was rebuilt.
    Rebuilt(u64),
}

/// What every handler needs.
pub(crate) struct Cx<'a> {
    pub now: Now,
    pub reader: &'a dyn ObjectReader,
    pub leases: &'a Leases,
    pub out: &'a mut Vec<PgEffect>,
}

/// One placement group on one OSD. See the crate's header.
#[derive(Debug)]
pub struct Pg {
    /// Who it is, its history and its log, for all parts alike.
    pub(crate) core: PgCore,
    pub(crate) role: Role,
    pub(crate) mail: Mail,
    /// Recovery goes on at the next event: what was submitted in this one it must be able to read.
    pub(crate) pump_later: bool,
    pub(crate) requests: Requests,
    /// Clients that hold requests themselves.
    pub(crate) held: Held,
    /// OSDs outside the acting set that said they hold a copy, with what, and which older intervals
    /// they know of: peering may begin anew in the same interval, and has to hear those then, too.
    pub(crate) strays: BTreeMap<Peer, (PgInfo, Vec<PastInterval>)>,
    notified_ms: u64,
    pub(crate) stat: crate::stat::StatState,
    pub(crate) repairs: Repairs,
    pub(crate) scrub: crate::scrub::Scrub,
    pub(crate) watches: crate::watch::Watches,
}

/// Are the hashes of a PG the same in a pool of `a` and of `b` PGs?
pub(crate) fn has_range(pg: PgId, a: u32, b: u32) -> bool {
    hash::range_bits(pg.seed, a) == hash::range_bits(pg.seed, b)
}

impl Pg {
    /// A PG of which nothing is stored here.
    pub fn new(id: SpgId, osd: OsdId, cfg: Arc<PgConfig>) -> Self {
        Self::of(PgCore::new(id, osd, cfg))
    }

    /// A PG that does nothing yet with this.
    pub(crate) fn of(core: PgCore) -> Self {
        Self {
            core,
            role: Role::Idle,
            mail: Mail::default(),
            pump_later: false,
            requests: Requests::default(),
            held: Held::default(),
            strays: BTreeMap::new(),
            notified_ms: 0,
            stat: crate::stat::StatState::default(),
            repairs: Repairs::default(),
            scrub: crate::scrub::Scrub::default(),
            watches: crate::watch::Watches::default(),
        }
    }

    /// A PG as it was stored. The first map it is given must be the newest one the OSD had
    /// processed when it stopped (or one after a gap).
    ///
    /// # Errors
    /// [`DecodeError`] when a record or the log is damaged.
    pub fn load(
        id: SpgId,
        osd: OsdId,
        cfg: Arc<PgConfig>,
        stored: &Stored,
    ) -> Result<Self, DecodeError> {
        Ok(Self::of(PgCore::load(id, osd, cfg, stored)?))
    }

    /// Its id.
    pub fn id(&self) -> SpgId {
        self.core.spg()
    }

    /// Does the newest map make this OSD its primary?
    pub fn is_primary(&self) -> bool {
        self.core.view.as_ref().is_some_and(|v| v.primary == self.core.me)
    }

    /// Is it stored here, in whatever state?
    pub fn exists(&self) -> bool {
        self.core.info().is_some()
    }

    /// Does the PG, as its primary tells it, hold no data? Then a backfill takes no room here: it
    /// only removes.
    pub fn holds_nothing(&self) -> bool {
        self.core.info().is_some_and(|i| i.head.counts.objects == 0 && i.head.counts.bytes == 0)
    }

    /// Bytes of data that this copy holds once it is whole, at most: what it has beyond them is
    /// old, and goes when it is filled. The shards of an erasure-coded PG end with a whole stripe
    /// each.
    pub fn bytes_due(&self) -> u64 {
        let Some(info) = self.core.info() else { return 0 };
        let of = |n: i64| u64::try_from(n).unwrap_or(0);
        let (bytes, objects) = (of(info.head.counts.bytes), of(info.head.counts.objects));
        match self.core.shape() {
            Some(s) => {
                bytes.div_ceil(s.k.max(1) as u64).saturating_add(objects.saturating_mul(s.unit))
            }
            None => bytes,
        }
    }

    /// Does what is reserved put objects on our own disk?
    pub fn takes_space(&self, what: &Reservation) -> bool {
        match what {
            Reservation::Remote { .. } => !self.holds_nothing(),
            // What others lack takes nothing here.
            Reservation::Local { .. } => !self.core.missing().is_empty(),
        }
    }

    /// PG number of the pool this copy was last split or folded for; 0 when nothing is stored. A
    /// map that splits it further may only be given after [`Pg::split`].
    pub fn pg_num(&self) -> u32 {
        self.core.info().map_or(0, |i| i.pg_num)
    }

    /// Epoch of the map for which it was split or folded last. Maps before it are not for this
    /// copy: the OSD goes on from an older one after a crash.
    pub fn shaped(&self) -> Epoch {
        self.core.shaped()
    }

    /// Takes over what waits in `old`, a PG of the same name of which nothing is stored: it came
    /// too early for the split that makes this one.
    pub fn inherit(&mut self, old: Pg) {
        self.mail.inherit(old.mail);
        self.requests.inherit(old.requests);
    }

    /// Do reads wait for a lease? The shell then ticks the PG when a lease was renewed.
    pub fn waits_for_lease(&self) -> bool {
        self.requests.waits_for_lease()
    }

    /// For what it wants a turn; `None` if for nothing (any more).
    pub fn turn_kind(&self) -> Option<TurnKind> {
        match &self.role {
            Role::Removing(_) => Some(TurnKind::Removal),
            Role::Active(a) if a.recovery.wants_turn() => Some(TurnKind::Recovery),
            Role::Active(a) if a.trim.wants_turn() => Some(TurnKind::Trim),
            Role::Active(_) if self.scrub.wants_turn() => Some(TurnKind::Scrub),
            _ => None,
        }
    }

    /// The shell gives a turn.
    fn on_turn(&mut self, work: usize, piece: u64, cx: &mut Cx<'_>) {
        match self.turn_kind() {
            Some(TurnKind::Removal) => self.remove_more(cx),
            Some(TurnKind::Recovery) => {
                self.recover_more(work, piece, cx);
                // What wants one, too, was counted in: nobody else asks for it again.
                if self.scrub.wants_turn() || self.active().is_some_and(|a| a.trim.wants_turn()) {
                    cx.out.push(PgEffect::WantTurn);
                }
            }
            Some(TurnKind::Trim) => {
                self.trim_more(work, cx);
                if self.scrub.wants_turn() {
                    cx.out.push(PgEffect::WantTurn);
                }
            }
            Some(TurnKind::Scrub) => self.begin_chunk(cx),
            None => {}
        }
    }

    /// Does it matter to the PG that time passes?
    pub fn wants_tick(&self) -> bool {
        match &self.role {
            _ if self.core.broken => true,
            Role::Peering(_) | Role::Idle => true,
            Role::Active(a) => {
                let held = self.held.has_objects();
                held || self.requests.waits_for_lease()
                    || a.wants_tick()
                    || self.must_roll_forward()
                    || !self.watches.is_empty()
            }
            Role::Replica(r) => r.wants_tick(),
            Role::Removing(r) => r.again_ms > 0,
        }
    }

    /// Takes an event, appends what must be done.
    pub fn handle(
        &mut self,
        now: Now,
        event: PgEvent,
        reader: &dyn ObjectReader,
        leases: &Leases,
        out: &mut Vec<PgEffect>,
    ) {
        let first = out.len();
        let shard = ShardReader { inner: reader, shard: self.core.me.shard };
        let reader = if self.core.me.shard >= 0 { &shard } else { reader };
        let cx = &mut Cx { now, reader, leases, out };
        self.requests.begin();
        match event {
            PgEvent::Map(view) => self.on_map(view, cx),
            PgEvent::Client(op) => self.on_client(op, cx),
            PgEvent::ConnClosed(conn) => self.on_conn_closed(conn, cx),
            PgEvent::Peer(from, msg) => self.on_peer(from, msg, cx),
            PgEvent::Renewed(osd) => self.on_renewed(osd, cx),
            PgEvent::Committed(token) => self.on_committed(token, cx),
            PgEvent::Unstored(token, stored) => self.on_unstored(token, &stored, cx),
            PgEvent::Ready(crate::ReadKey::Op(op)) => self.on_op_ready(op, None, cx),
            PgEvent::Ready(crate::ReadKey::Recovery(n) | crate::ReadKey::Shard(n)) => {
                self.on_recovery_ready(n, cx)
            }
            PgEvent::Fetched(op, fetched) => self.on_op_ready(op, Some(fetched), cx),
            PgEvent::CreateAnswer(answer) => self.on_create_answer(answer, cx),
            PgEvent::CreatedAck { winner } => self.on_created_ack(winner, cx),
            PgEvent::Reserved(what) => self.on_reserved(what, cx),
            PgEvent::Refused(what) => self.on_refused(what, cx),
            PgEvent::Force { backfill, on } => self.on_force(backfill, on, cx),
            PgEvent::Turn { work, piece } => self.on_turn(work, piece, cx),
            PgEvent::MarkLost { revert } => self.on_mark_lost(revert, cx),
            PgEvent::Scrub { deep, repair, large } => self.on_scrub(deep, repair, large, cx),
            PgEvent::ScrubMapped { seq, map } => self.on_scrub_mapped(seq, map, cx),
            PgEvent::Continue => self.go_on(cx),
            PgEvent::Tick => self.on_tick(cx),
        }
        if self.core.broken {
            self.mend(cx);
        }
        self.core.call_as_called(out.get_mut(first..).unwrap_or_default());
        // Questions that the shell may answer on the spot come last, so that the answer's
        // transactions follow those of this event.
        let question = |e: &PgEffect| {
            matches!(
                e,
                PgEffect::Prefetch(..)
                    | PgEffect::Fetch(..)
                    | PgEffect::Reserve(_)
                    | PgEffect::WantTurn
            )
        };
        if out.get(first..).is_some_and(|new| new.iter().any(question)) {
            let (last, now): (Vec<_>, Vec<_>) = out.drain(first..).partition(question);
            out.extend(now);
            out.extend(last);
        }
        if self.requests.must_continue() || self.pump_later || self.mail.has_ripe() {
            out.push(PgEffect::Continue);
        }
    }

    /// For stories: as a release finds that what cannot happen has happened.
    #[cfg(feature = "plant-bugs")]
    pub fn break_as_in_a_release(&mut self) {
        self.core.breaks(format_args!("a story says so"));
    }

    /// What cannot happen has happened: what is in memory is given up for what peering finds, not
    /// too often.
    fn mend(&mut self, cx: &mut Cx<'_>) {
        if self.core.broken_ms > 0 && cx.now.mono_ms < self.core.broken_ms + self.core.cfg.retry_ms
        {
            return;
        }
        (self.core.broken, self.core.broken_ms) = (false, cx.now.mono_ms.max(1));
        match &self.role {
            Role::Peering(_) | Role::Active(_) => self.restart_peering(cx),
            // The primary hears that this member has no part any more, and peers anew.
            Role::Replica(_) => {
                self.leave_role(cx);
                self.notify(cx);
            }
            Role::Idle | Role::Removing(_) => {}
        }
    }

    /// Does `after` when all that was submitted before is durable; at once if it is.
    pub(crate) fn when_durable(&mut self, after: After, cx: &mut Cx<'_>) {
        if let Some(now) = self.core.commits.after_all(after) {
            self.perform_after(now, cx);
        }
    }

    // ---- maps ----

    fn on_map(&mut self, view: Arc<MapView>, cx: &mut Cx<'_>) {
        if view.epoch <= self.core.epoch() || view.epoch < self.core.shaped() {
            return;
        }
        if let Some(pool) = &view.pool
            && self.core.info().is_some_and(|i| !has_range(self.core.id, i.pg_num, pool.pg_num))
        {
            // Serving it would mix its objects with others'.
            tracing::error!(pg = %self.core.id, "map {} splits or merges the pg, which was not \
                done first", view.epoch);
            return;
        }
        let old = self.core.view.replace(view.clone());
        if let (Some(before), Some(after)) =
            (old.as_ref().and_then(|o| o.pool.as_ref()), &view.pool)
        {
            trim::note_purged(&mut self.core, &before.snaps.removed, &after.snaps.removed);
        }
        let was_primary = self.core.interval().primary == self.core.me && old.is_some();
        let mut new = false;
        if self.core.interval().since == 0 {
            let since = if view.since > 0 { view.since } else { view.epoch };
            self.core.begin_interval(Interval::of(self.core.id.seed, &view, since));
            new = true;
        } else if view.gap || !self.core.interval().continues(self.core.id.seed, &view) {
            let next = Interval::of(self.core.id.seed, &view, view.epoch);
            self.core.next_interval(next, &view, old.as_deref(), cx);
            new = true;
        }
        if view.primary == self.core.me && !was_primary {
            self.core.primary_since = self.core.interval().since;
        }
        let same_shape = old.as_ref().is_some_and(|o| {
            o.pool.as_ref().map(|p| p.pg_num) == view.pool.as_ref().map(|p| p.pg_num)
        });
        if new && (view.primary != self.core.me || !was_primary || view.gap || !same_shape) {
            // Clients see that, and connect again.
            self.watches.clear();
        }
        if new || (view.live && old.is_none_or(|o| !o.live)) {
            self.start_interval(cx);
        } else if view.live {
            self.map_advanced(cx);
        }
        if view.live {
            self.mail.ripen(view.epoch);
        }
        self.run_waiting(cx);
        // The map may shut out clients.
        self.give_up_copies(cx);
        self.watch_tick(cx);
    }

    /// Goes on after [`PgEffect::Continue`].
    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if let Some((from, msg)) = self.mail.next_ripe() {
            self.on_peer(from, msg, cx);
        } else if std::mem::take(&mut self.pump_later) {
            self.pump(cx);
        }
        self.run_pending(cx);
    }

    fn start_interval(&mut self, cx: &mut Cx<'_>) {
        self.core.interval_stamp = cx.now.wall;
        let Some(view) = self.core.view.clone() else { return };
        self.leave_role(cx);
        self.strays.clear();
        self.mail.forget_parked();
        self.core.forget_names();
        if view.pool.is_none() {
            self.refuse_all_ops(cx);
            self.remove_pool_gone(cx);
        } else if !view.live {
            // Only follows.
        } else if view.primary == self.core.me {
            self.start_peering(cx);
        } else {
            self.notify(cx);
            self.resume_removal(cx);
            self.check_removed(cx);
        }
        cx.out.push(PgEffect::StateChanged);
    }

    /// A newer map of the same interval.
    fn map_advanced(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Peering(_) => self.peering_map_advanced(cx),
            Role::Active(_) => self.active_map_advanced(cx),
            _ => {}
        }
    }

    /// Stops whatever the role was doing; requests go back to waiting.
    pub(crate) fn leave_role(&mut self, cx: &mut Cx<'_>) {
        let mut role = std::mem::replace(&mut self.role, Role::Idle);
        if matches!(&role, Role::Active(a) if a.merge_told.is_some()) {
            self.core.take_back_merge(cx);
        }
        self.repairs.clear();
        self.abort_scrub(cx);
        self.watches.leave_role();
        self.scrub.found = None;
        match &mut role {
            Role::Active(a) => a.recovery.end(cx),
            Role::Replica(r) => r.target.clear(cx),
            Role::Idle | Role::Peering(_) | Role::Removing(_) => {}
        }
        if !planted!(self.core.cfg, UnblockForgotten) {
            self.unblock_all(cx);
        }
        self.requeue(role, cx);
    }

    // ---- peers ----

    fn on_peer(&mut self, from: Peer, msg: PeerMsg, cx: &mut Cx<'_>) {
        let since = msg.since();
        // A map that does not show us up says nothing of this incarnation of ours: the one before
        // may have promised what we have forgotten.
        if since > self.core.epoch() || !self.core.is_live() {
            self.mail.keep_early(from, msg);
            cx.out.push(PgEffect::NeedMap(since.max(self.core.epoch() + 1)));
            return;
        }
        if self.core.view.as_ref().is_none_or(|v| v.pool.is_none()) {
            return;
        }
        if since < self.core.interval().since {
            if let PeerMsg::Ctl(c) = &msg
                && let CtlBody::Query { holders } = &c.body
            {
                self.on_early_query(from, since, holders, cx);
            }
            return;
        }
        if since > self.core.interval().since {
            self.core.is_called(from, since);
        }
        match msg {
            PeerMsg::Write(w) => self.on_write(from, w, cx),
            PeerMsg::Txn(t) => self.on_txn(from, t, cx),
            PeerMsg::Ack(a) => self.on_ack(from, &a, cx),
            PeerMsg::Ctl(c) => self.on_ctl(from, *c, cx),
        }
    }

    /// A question by an earlier name than ours, of an interval that is over, or of ours by a name
    /// that we do not know (see `intervals`).
    fn on_early_query(&mut self, from: Peer, since: Epoch, holders: &[OsdId], cx: &mut Cx<'_>) {
        if self.core.info().is_none() && !self.core.is_member() {
            // Who has nothing, and no part in it, says so whichever it is.
            let left = holders
                .iter()
                .map(|h| cx.leases.granted_left(*h, cx.now.mono_ms))
                .max()
                .unwrap_or(0);
            let body = CtlBody::Info { info: None, past: Vec::new(), lease_left_ms: left as u32 };
            let answer = Box::new(PgCtl {
                pg: self.core.id,
                ends: self.core.ends(from),
                epoch: since,
                body,
            });
            cx.out.push(PgEffect::Send(from, PeerMsg::Ctl(answer)));
            self.check_removed(cx);
        } else if self.core.is_guessed()
            && self.core.view.as_ref().is_some_and(|v| v.primary == from)
        {
            // It may ask, when it hears this by our name, for other primaries: whoever reads by our
            // leave.
            let left = cx.leases.granted_longest(cx.now.mono_ms);
            self.tell_info(from, left, cx);
        }
    }

    fn on_recovery_ready(&mut self, n: u64, cx: &mut Cx<'_>) {
        if let Some((from, msg)) = self.mail.unpark(n) {
            let followers = self.mail.take_followers();
            self.on_peer(from, msg, cx);
            self.mail.let_follow(followers);
        } else if let Role::Removing(r) = &mut self.role {
            if r.read.take_if(|read| *read == n).is_some() {
                self.remove_more(cx);
            }
        } else if let Role::Active(a) = &mut self.role {
            match a.recovery.has_read(n) {
                Some(true) => self.on_mark_lost(true, cx),
                Some(false) => self.pump(cx),
                None => {}
            }
        }
    }

    /// Own recovery waits until this is read.
    pub(crate) fn read_for_pump(&mut self, what: Prefetch, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
        let n = self.core.seq();
        a.recovery.waits_for(n, false);
        cx.out.push(PgEffect::Prefetch(crate::ReadKey::Recovery(n), what));
    }

    /// Tells the primary that a copy is here.
    pub(crate) fn notify(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = &self.core.view else { return };
        let primary = view.primary;
        self.notified_ms = cx.now.mono_ms;
        if !primary.is_some() || primary == self.core.me {
            return;
        }
        if let Some(info) = self.core.told_info(cx) {
            // Like an answer, it tells only what is durable.
            let msg =
                self.core.ctl(primary, CtlBody::Notify { info, past: self.core.past().to_vec() });
            self.when_durable(After::Send(primary, msg), cx);
        }
    }

    // ---- bad copies ----

    /// The store refused a transaction ([`PgEffect::Submit`]), and changed nothing, because the
    /// data of the object it calls `stored` with which a write must be merged is bad. What to
    /// submit in its stead under the same token; `None` if no other copy can have the change, so
    /// that the OSD must stop.
    pub fn without_rotten(
        &mut self,
        token: Token,
        mut txn: Transaction,
        stored: &HObject,
        offset: Option<u64>,
        out: &mut Vec<PgEffect>,
    ) -> Option<Transaction> {
        let object = &object_of_store(stored.clone());
        // A write, whose entries are in the log by now.
        let logged = txn.meta.iter().find_map(|m| match m {
            MetaOp::LogAppend { version, .. } => {
                self.core.log().at(*version).filter(|e| e.object == *object)
            }
            _ => None,
        });
        let entry = logged?.clone();
        let lacks = match &mut self.role {
            Role::Replica(r) => {
                let (core, repairs) = (&mut self.core, &mut self.repairs);
                let (tell, lacks) = r.lack_change(core, repairs, &entry, offset);
                self.core.commits.before(token, tell);
                lacks
            }
            Role::Active(a) => {
                let has = a
                    .peers
                    .values()
                    .any(|p| *object <= p.last_backfill && !p.missing.contains(object));
                if !has && self.core.me.shard < 0 {
                    return None;
                }
                a.clean = false;
                a.recovery.demand(object);
                self.requests.forget_object(object);
                self.pump_later = true;
                out.extend([PgEffect::StateChanged, PgEffect::Continue]);
                self.repairs.note_lacking(&mut self.core, &entry, offset)
            }
            _ => return None,
        };
        // Nor can it be taken back.
        let undo = store_object(&undo_object(object, entry.version), self.core.me.shard);
        txn.objects.retain(|u| u.object != *stored && u.object != undo);
        let change = self.core.copy.settle(lacks);
        self.core.amend(&mut txn, change);
        Some(txn)
    }

    /// Notes that a member's copy is bad; false if it is no member, or the object was removed
    /// since.
    pub(crate) fn peer_is_rotten(
        &mut self,
        osd: Peer,
        object: HObject,
        version: EVersion,
        offset: Option<u64>,
    ) -> bool {
        let Role::Active(a) = &mut self.role else { return false };
        self.repairs.peer_is_rotten(&self.core, a, osd, (object, version, offset))
    }

    /// An object that is here cannot be read, and counts as missing.
    pub(crate) fn mark_unreadable(&mut self, object: HObject, version: EVersion, cx: &mut Cx<'_>) {
        self.repairs.mark_unreadable(&mut self.core, object, version, cx);
    }

    /// Tells the primary that the copy here is bad.
    pub(crate) fn tell_rotten(
        &mut self,
        to: Peer,
        object: &HObject,
        version: EVersion,
        offset: Option<u64>,
        cx: &mut Cx<'_>,
    ) {
        match &mut self.role {
            Role::Replica(r) if r.primary() == to => {
                r.tell_rotten(&self.core, object, version, offset, cx);
            }
            // Said once: a copy outside the members is asked again.
            _ => {
                let object = object.clone();
                self.core.send(to, CtlBody::Rotten { object, version, offset }, cx);
            }
        }
    }

    /// A member's copy is bad, it says.
    pub(crate) fn on_rotten(
        &mut self,
        from: Peer,
        object: HObject,
        version: EVersion,
        offset: Option<u64>,
        cx: &mut Cx<'_>,
    ) {
        if self.active().is_some_and(|a| a.peers.contains_key(&from)) {
            self.core.send(from, CtlBody::RottenAck { object: object.clone(), version }, cx);
        }
        if self.peer_is_rotten(from, object, version, offset) {
            self.reopen(cx);
            self.begin_recovery(cx);
        }
    }

    /// Primary: a member's copy is whole again.
    pub(crate) fn copy_repaired(
        &mut self,
        object: &HObject,
        osd: Peer,
        from: Peer,
        cx: &mut Cx<'_>,
    ) {
        let Some(offset) = self.repairs.take(object, osd) else { return };
        let text = format!(
            "osd.{osd} pg {}: {}, repaired from osd.{from}",
            self.core.id,
            repair::place(object, offset)
        );
        cx.out.push(PgEffect::Log { level: LogLevel::Error, text });
        let deep = self.scrub_repaired(object, osd);
        let change = self.core.copy.repaired(deep);
        self.save_scrub(change, cx);
    }

    /// Stores the scrub history, and counts that a scrub may have corrected, here and at the
    /// members.
    pub(crate) fn save_scrub(&mut self, change: Change, cx: &mut Cx<'_>) {
        self.core.submit(change, After::Nothing, cx);
        self.tell_history(cx);
        cx.out.push(PgEffect::StateChanged);
    }

    // ---- the rest ----

    fn on_committed(&mut self, token: Token, cx: &mut Cx<'_>) {
        while let Some(after) = self.core.commits.next_due(token) {
            self.perform_after(after, cx);
        }
        self.advance(cx);
    }

    fn perform_after(&mut self, after: After, cx: &mut Cx<'_>) {
        match after {
            After::Write { since, version } => self.on_local_commit(since, version),
            After::Send(to, msg) => cx.out.push(PgEffect::Send(to, msg)),
            After::Pushed { since, to, seq } if since == self.core.interval().since => {
                if let Role::Replica(r) = &mut self.role {
                    r.pushes.durable(seq);
                }
                self.core.send(to, CtlBody::PushAck { seq }, cx);
            }
            After::Pushed { .. } => {}
            After::Step { since, step } if since == self.core.interval().since => {
                self.on_step(step, cx)
            }
            After::Step { .. } | After::Nothing => {}
            After::Remove => cx.out.push(PgEffect::WantTurn),
            After::Gone => self.check_removed(cx),
        }
    }

    fn on_conn_closed(&mut self, conn: ConnId, cx: &mut Cx<'_>) {
        self.held.closed(conn);
        self.watches.closed(conn, cx.now.mono_ms);
        if let Role::Active(a) = &mut self.role {
            a.inflight.iter_mut().for_each(|f| f.closed(conn));
        }
        for op in self.requests.drop_connection(conn) {
            self.op_gone(op);
            cx.out.push(PgEffect::Drop(op));
        }
        self.run_pending(cx);
        // One that was read for may have been the first of those on the PG itself.
        self.run_pg_queue(cx);
    }

    fn on_tick(&mut self, cx: &mut Cx<'_>) {
        self.repeat_open(None, cx);
        match &self.role {
            Role::Peering(_) => self.peering_tick(cx),
            Role::Active(_) => {
                self.scrub_tick(cx);
                self.active_tick(cx);
            }
            Role::Idle
                if self.core.is_live()
                    && cx.now.mono_ms >= self.notified_ms + self.core.cfg.retry_ms =>
            {
                self.notify(cx);
                self.check_removed(cx);
            }
            _ => {}
        }
        if let Role::Removing(r) = &mut self.role
            && (1..=cx.now.mono_ms).contains(&r.again_ms)
        {
            r.again_ms = 0;
            cx.out.push(PgEffect::WantTurn);
        }
        self.backoff_tick(cx);
        self.watch_tick(cx);
        self.run_pending(cx);
    }

    /// Says that nothing is left here: no copy, no duty, nobody waiting for a newer map.
    pub(crate) fn check_removed(&mut self, cx: &mut Cx<'_>) {
        if self.is_gone() {
            cx.out.push(PgEffect::Removed);
        }
    }

    /// True if nothing is left here: no copy, no duty, no message that waits for a newer map. What
    /// was so when [`PgEffect::Removed`] was said need not be so any more.
    pub fn is_gone(&self) -> bool {
        let idle =
            matches!(self.role, Role::Idle) && self.core.info().is_none() && !self.core.is_member();
        // Nor an answer that waits for something to be durable.
        idle && self.core.commits.is_durable() && self.mail.is_empty() && self.requests.is_empty()
    }
}
