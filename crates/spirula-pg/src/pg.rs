//! The PG itself: its state, and which part of it an event belongs to.

use crate::api::{
    ConnId, MapView, Now, PeerMsg, PgConfig, PgEffect, PgEvent, ReadKey, Token, TurnKind,
};
use crate::backoff::Held;
use crate::commits::{After, Step};
use crate::core::{Cx, PgCore, has_range};
use crate::exec::ObjectReader;
use crate::intervals::Interval;
use crate::lease::Leases;
use crate::mail::Mail;
use crate::repair::Repairs;
use crate::requests::{Requests, Standing};
use crate::role::{Role, Strays};
use crate::shard::ShardReader;
use crate::snap::trim;
use crate::stored::Stored;
use crate::write::Unfit;
use spirula_encoding::DecodeError;
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{OsdId, Peer, SpgId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// One placement group on one OSD. See the crate's header.
#[derive(Debug)]
pub struct Pg {
    /// Who it is, its history and its log, for all parts alike.
    pub(crate) core: PgCore,
    pub(crate) role: Role,
    pub(crate) mail: Mail,
    pub(crate) requests: Requests,
    /// Clients that hold requests themselves.
    pub(crate) held: Held,
    /// OSDs outside the acting set that said they hold a copy, with what, and which older intervals
    /// they know of: peering may begin anew in the same interval, and has to hear those then, too.
    pub(crate) strays: Strays,
    pub(crate) stat: crate::stat::StatState,
    pub(crate) repairs: Repairs,
    pub(crate) watches: crate::watch::Watches,
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
            role: Role::idle(),
            mail: Mail::default(),
            requests: Requests::default(),
            held: Held::default(),
            strays: BTreeMap::new(),
            stat: crate::stat::StatState::default(),
            repairs: Repairs::default(),
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
            Role::Primary(a) if a.recovery.wants_turn() => Some(TurnKind::Recovery),
            Role::Primary(a) if a.trim.wants_turn() => Some(TurnKind::Trim),
            Role::Primary(a) if a.scrub.wants_turn() => Some(TurnKind::Scrub),
            _ => None,
        }
    }

    /// The shell gives a turn.
    fn on_turn(&mut self, work: usize, piece: u64, cx: &mut Cx<'_>) {
        let kind = self.turn_kind();
        self.remove_more(cx);
        if let (Some(kind), Some(mut lead)) = (kind, self.lead()) {
            lead.on_turn(kind, (work, piece), cx);
        }
    }

    /// Does it matter to the PG that time passes?
    pub fn wants_tick(&self) -> bool {
        match &self.role {
            _ if self.core.must_mend() => true,
            Role::Peering(_) | Role::Idle(_) => true,
            Role::Primary(a) => {
                let held = self.held.has_objects();
                held || self.requests.waits_for_lease()
                    || a.wants_tick(&self.core)
                    || !self.watches.is_empty()
            }
            Role::Replica(r) => r.wants_tick(),
            Role::Removing(r) => r.wants_tick(),
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
            PgEvent::Ready(ReadKey::Recovery(n) | ReadKey::Shard(n)) => {
                self.on_recovery_ready(n, cx)
            }
            PgEvent::CreateAnswer(answer) => self.on_create_answer(answer, cx),
            PgEvent::CreatedAck { winner } => self.on_created_ack(winner, cx),
            PgEvent::Reserved(what) => self.on_reserved(what, cx),
            PgEvent::Refused(what) => self.on_refused(what, cx),
            PgEvent::Turn { work, piece } => self.on_turn(work, piece, cx),
            PgEvent::ScrubMapped { seq, map } => self.on_scrub_mapped(seq, map, cx),
            PgEvent::Continue => self.go_on(cx),
            PgEvent::Tick => self.on_tick(cx),
            event => match self.lead() {
                Some(mut lead) => lead.on_event(event, cx),
                None if matches!(event, PgEvent::Scrub { .. }) => {
                    cx.out.push(PgEffect::ScrubEnded { done: false, unread: false });
                }
                None => {}
            },
        }
        if self.core.mends(cx) {
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
        let pump_later = self.primary().is_some_and(|p| p.pump_later);
        if self.requests.must_continue() || pump_later || self.mail.has_ripe() {
            out.push(PgEffect::Continue);
        }
    }

    /// For stories: as a release finds that what cannot happen has happened.
    #[cfg(feature = "plant-bugs")]
    pub fn break_as_in_a_release(&mut self) {
        self.core.breaks(format_args!("a story says so"));
    }

    /// What cannot happen has happened: what is in memory is given up for what peering finds.
    fn mend(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Peering(_) | Role::Primary(_) => self.restart_peering(cx),
            // The primary hears that this member has no part any more, and peers anew.
            Role::Replica(_) => {
                self.leave_role(cx);
                self.call_primary(cx);
            }
            Role::Idle(_) | Role::Removing(_) => {}
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
        if let Some(mut lead) = self.lead() {
            // The map may shut out clients.
            lead.give_up_copies(cx);
            lead.watch_tick(cx);
        }
    }

    /// Goes on after [`PgEffect::Continue`].
    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if let Some((from, msg)) = self.mail.next_ripe() {
            self.on_peer(from, msg, cx);
        } else if let Some(mut lead) = self.lead()
            && std::mem::take(&mut lead.primary.pump_later)
        {
            lead.pump(cx);
        }
        if let Some(mut lead) = self.lead() {
            lead.run_pending(cx);
        }
    }

    fn start_interval(&mut self, cx: &mut Cx<'_>) {
        self.core.interval_stamp = cx.now.wall;
        let Some(view) = self.core.view.clone() else { return };
        self.leave_role(cx);
        self.strays.clear();
        self.mail.forget_parked();
        self.core.forget_names();
        if view.pool.is_none() {
            self.requests.refuse_all(&self.core, cx);
            self.remove_pool_gone(cx);
        } else if !view.live {
            // Only follows.
        } else if view.primary == self.core.me {
            self.start_peering(cx);
        } else {
            self.call_primary(cx);
            self.resume_removal(cx);
            self.check_removed(cx);
        }
        cx.out.push(PgEffect::StateChanged);
    }

    /// A newer map of the same interval.
    fn map_advanced(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Peering(_) => self.peering_map_advanced(cx),
            Role::Primary(_) => {
                if let Some(mut lead) = self.lead() {
                    lead.map_advanced(cx);
                }
            }
            _ => {}
        }
    }

    /// Stops whatever the role was doing; requests go back to waiting.
    pub(crate) fn leave_role(&mut self, cx: &mut Cx<'_>) {
        let mut role = std::mem::replace(&mut self.role, Role::idle());
        self.repairs.clear();
        let mut inflight = VecDeque::new();
        if let Role::Primary(p) = &mut role {
            if p.merge_told.is_some() {
                self.core.take_back_merge(cx);
            }
            p.scrub.abort(&mut self.requests, cx);
            p.recovery.end(cx);
            inflight = std::mem::take(&mut p.inflight);
        }
        self.watches.leave_role();
        if let Role::Replica(r) = &mut role {
            r.target.clear(cx);
        }
        if !planted!(self.core.cfg, UnblockForgotten) {
            self.held.unblock_all(cx);
        }
        self.requests.requeue(inflight, cx);
    }

    /// What a request meets that comes now.
    pub(crate) fn standing(&self) -> Standing {
        match &self.role {
            Role::Primary(p) => p.standing(),
            Role::Peering(p) => Standing::Waits { peered: false, long: p.stands_still() },
            Role::Idle(_) | Role::Replica(_) | Role::Removing(_) => {
                Standing::Waits { peered: false, long: false }
            }
        }
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
            PeerMsg::Write(w) => match &mut self.role {
                Role::Replica(r) if r.primary() == from => {
                    let (core, mail) = (&mut self.core, &mut self.mail);
                    if let Err(Unfit) = r.on_write(from, w, core, mail, &mut self.repairs, cx) {
                        // The primary hears that, and peers anew.
                        self.leave_role(cx);
                        self.call_primary(cx);
                    }
                }
                _ => tracing::debug!(pg = %self.core.id, %from, "write without activation ignored"),
            },
            PeerMsg::Txn(t) => self.on_txn(from, t, cx),
            PeerMsg::Ack(a) => {
                if let Some(mut lead) = self.lead() {
                    lead.on_ack(from, &a, cx);
                }
            }
            PeerMsg::Ctl(c) => self.on_ctl(from, *c, cx),
        }
    }

    fn on_recovery_ready(&mut self, n: u64, cx: &mut Cx<'_>) {
        if let Some((from, msg)) = self.mail.unpark(n) {
            let followers = self.mail.take_followers();
            self.on_peer(from, msg, cx);
            self.mail.let_follow(followers);
        } else if let Role::Removing(r) = &mut self.role {
            if r.is_read(n) {
                self.remove_more(cx);
            }
        } else if let Some(mut lead) = self.lead() {
            lead.on_recovery_read(n, cx);
        }
    }

    // ---- the rest ----

    fn on_committed(&mut self, token: Token, cx: &mut Cx<'_>) {
        while let Some(after) = self.core.commits.next_due(token) {
            self.perform_after(after, cx);
        }
        if let Some(mut lead) = self.lead() {
            lead.advance(cx);
        }
    }

    fn perform_after(&mut self, after: After, cx: &mut Cx<'_>) {
        match after {
            After::Write { since, version } => {
                if let Some(mut lead) = self.lead() {
                    lead.on_local_commit(since, version);
                }
            }
            After::Send(to, msg) => cx.out.push(PgEffect::Send(to, msg)),
            After::Pushed { since, to, seq } if since == self.core.interval().since => {
                if let Role::Replica(r) = &mut self.role {
                    r.pushed(seq);
                }
                self.core.send(to, CtlBody::PushAck { seq }, cx);
            }
            After::Pushed { .. } => {}
            After::Step { since, step } if since == self.core.interval().since => {
                match (step, self.lead()) {
                    (Step::Flushed, None) => self.peering_flushed(cx),
                    (step, Some(mut lead)) => lead.on_step(step, cx),
                    _ => {}
                }
            }
            After::Step { .. } | After::Nothing => {}
            After::Remove => cx.out.push(PgEffect::WantTurn),
            After::Gone => self.check_removed(cx),
        }
    }

    fn on_conn_closed(&mut self, conn: ConnId, cx: &mut Cx<'_>) {
        self.held.closed(conn);
        self.watches.closed(conn, cx.now.mono_ms);
        match self.lead() {
            Some(mut lead) => lead.on_conn_closed(conn, cx),
            None => {
                let gone = self.requests.drop_connection(conn);
                cx.out.extend(gone.into_iter().map(PgEffect::Drop));
            }
        }
    }

    fn on_tick(&mut self, cx: &mut Cx<'_>) {
        self.repeat_open(None, cx);
        match &mut self.role {
            Role::Peering(_) => self.peering_tick(cx),
            Role::Primary(_) => {
                if let Some(mut lead) = self.lead() {
                    lead.tick(cx);
                }
            }
            Role::Idle(i)
                if self.core.is_live()
                    && cx.now.mono_ms >= i.notified_ms + self.core.cfg.retry_ms =>
            {
                self.call_primary(cx);
                self.check_removed(cx);
            }
            Role::Removing(r) => r.tick(cx),
            _ => {}
        }
        if matches!(self.standing(), Standing::Waits { long: true, .. }) {
            self.run_waiting(cx);
        }
        if let Some(mut lead) = self.lead() {
            lead.backoff_tick(cx);
            lead.watch_tick(cx);
            lead.run_pending(cx);
        }
    }
}
