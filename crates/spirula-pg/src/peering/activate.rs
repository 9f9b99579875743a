//! Activation: every member gets the log, durably; then the PG serves.

use super::{Member, Next, Peering, Phase};
use crate::api::PgEffect;
use crate::commits::{After, Step};
use crate::copy::Activated;
use crate::core::Cx;
use crate::lead::Lead;
use crate::log::LogEntry;
use crate::member::leftovers;
use crate::pg::Pg;
use crate::primary::{PeerState, Primary};
use crate::role::Role;
use spirula_messages::cluster::pg::{CtlBody, LogUpdate, PgInfo};
use spirula_messages::cluster::scrub::ScrubHistory;
use spirula_types::{Epoch, HObject, Peer};

impl Pg {
    /// The monitor says that the PG never served: begin it empty.
    pub(super) fn begin_fresh(&mut self, p: &mut Peering, since: Epoch, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let Some(pool) = &view.pool else { return };
        if view.acting.len() < pool.min_size {
            p.phase = Phase::TooFew;
            return;
        }
        p.fresh = true;
        let own = PgInfo {
            pg: self.core.id,
            origin: self.core.id,
            pg_num: pool.pg_num,
            created: since,
            creation: self.core.interval().since,
            last_backfill: HObject::max(),
            // Nothing is due for a PG that begins empty.
            scrub: ScrubHistory {
                last_stamp: cx.now.wall,
                last_deep_stamp: cx.now.wall,
                last_clean_stamp: cx.now.wall,
                ..ScrubHistory::default()
            },
            ..PgInfo::default()
        };
        self.core.copy.begin_empty(own).saved_whole();
        for osd in view.acting.iter().filter(|o| **o != self.core.me) {
            p.members.insert(*osd, Member::reset(None));
        }
        self.wait_up_thru(p, cx);
    }

    /// Records the activation here and asks the members to.
    pub(super) fn activate(&mut self, mut p: Box<Peering>, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let (Some(pool), since) = (view.pool.clone(), self.core.interval().since) else { return };
        let listed = p.fresh.then(|| leftovers(self.core.id, pool.pg_num, cx.reader));
        let leftovers = match listed.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(all) => all,
            Err(e) => {
                // What a deletion has left would be of the new PG. A later tick tries again.
                tracing::error!(pg = %self.core.id, error = %e, "list objects for creation");
                (p.next, p.phase) = (Next::Stay, Phase::UpThru);
                self.role = Role::Peering(p);
                return;
            }
        };
        let p = *p;
        let writeable = view.acting.len() >= pool.min_size;
        let readers = self.found_readers(&p, &view, cx);
        let wait_until = readers.iter().map(|(_, _, until)| *until).max().unwrap_or(0);
        let told = p.members.values().filter_map(|m| m.info.as_ref()).map(|i| i.scrub);
        let activated = Activated {
            les: writeable.then_some(since),
            pg_num: pool.pg_num,
            lec: p.lec,
            history_les: p.history_les,
            scrub: told.max_by_key(|s| (s.last_stamp, s.repaired)),
            readers,
            fresh: p.fresh,
        };
        let Some(change) = self.core.copy.activate(activated, leftovers) else {
            // Peering ends with a copy of our own, always.
            return invariant!(self.core, "activation without a copy");
        };
        self.core.submit(change, After::Step { since, step: Step::Activated }, cx);
        let Some(own) = self.core.info().cloned() else {
            return invariant!(self.core, "activation loses its copy");
        };
        let last_update = own.last_update();
        let run = self.core.seq();
        let mut active =
            Primary::new(self.core.me, run, last_update, cx.now.wall, wait_until, p.fresh);
        active.recovery.nothing =
            p.infos.iter().filter(|(_, i)| i.is_none()).map(|(o, _)| *o).collect();
        for (osd, member) in p.members {
            let (peer, body) = self.activate_member(
                own.clone(),
                member,
                (run, p.fresh),
                view.acting.contains(&osd),
                cx,
            );
            self.core.send(osd, body.clone(), cx);
            active.activations.insert(osd, body);
            active.add(osd, peer, last_update);
        }
        self.role = Role::Primary(Box::new(active));
        self.requests.forget_objects();
    }

    /// What becomes of a member, and what it is to be told; `own` is our info.
    fn activate_member(
        &self,
        own: PgInfo,
        member: Member,
        (run, fresh): (u64, bool),
        acting: bool,
        cx: &Cx<'_>,
    ) -> (PeerState, CtlBody) {
        let bytes = |e: &LogEntry| e.to_bytes();
        let whole = |i: &Option<PgInfo>| i.as_ref().is_none_or(PgInfo::is_whole);
        let (log, last_backfill) = match member.common {
            Some(after) => {
                let entries = self.core.log().after(after).map(bytes).collect();
                let last = member
                    .info
                    .as_ref()
                    .filter(|_| !whole(&member.info))
                    .map(|i| i.last_backfill.clone());
                (LogUpdate::After { after, entries }, last.unwrap_or_else(HObject::max))
            }
            None => {
                let dups =
                    self.core.log().dups().cloned().map(|d| bytes(&d.to_entry(self.core.id.pool)));
                let entries = dups.chain(self.core.log().iter().map(bytes)).collect();
                let last = if fresh { HObject::max() } else { HObject::min() };
                (LogUpdate::Reset { tail: self.core.log().tail(), entries }, last)
            }
        };
        let readers = self.core.told_readers(cx);
        let told = PgInfo { last_backfill: last_backfill.clone(), missing: 0, readers, ..own };
        let past = self.core.past().to_vec();
        let state =
            PeerState { acting, missing: member.missing, last_backfill, ..PeerState::default() };
        (state, CtlBody::Activate { run, info: told, past, log, fresh })
    }

    /// The monitor took the PG out of its creating set.
    pub(crate) fn on_created_ack(&mut self, winner: Option<Epoch>, cx: &mut Cx<'_>) {
        if self.lead().is_some_and(|mut lead| !lead.on_created_ack(winner, cx)) {
            // Ours is void. Its members will call.
            let change = self.core.copy.drop_creation();
            self.core.submit(change, After::Nothing, cx);
            self.leave_role(cx);
            self.start_peering(cx);
            cx.out.push(PgEffect::StateChanged);
        }
    }
}

impl Lead<'_> {
    /// A member, or we, have recorded the activation.
    pub(crate) fn on_activated(&mut self, from: Peer, run: u64, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if run != a.run || !a.activating.remove(&from) {
            return;
        }
        a.activations.remove(&from);
        if !a.activating.is_empty() {
            return;
        }
        if a.fresh {
            a.asked_ms = cx.now.mono_ms;
            let epoch = self.core.info().map_or(0, |i| i.creation);
            cx.out.push(PgEffect::Created { pg: self.core.id, epoch });
        } else {
            self.all_activated(cx);
        }
    }

    /// The monitor took the PG out of its creating set. False if it accepted another creation.
    pub(crate) fn on_created_ack(&mut self, winner: Option<Epoch>, cx: &mut Cx<'_>) -> bool {
        let a = &mut *self.primary;
        if !a.fresh || !a.activating.is_empty() {
            return true;
        }
        let creation = self.core.info().map_or(0, |i| i.creation);
        let accepted = winner.is_none_or(|w| w == creation);
        if accepted {
            a.fresh = false;
            self.core.copy.confirm().saved_whole();
            self.all_activated(cx);
        }
        accepted
    }

    /// All members have the log: serve, and begin to recover.
    fn all_activated(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let since = self.core.interval().since;
        let a = &mut *self.primary;
        if self.core.info().is_none() {
            return;
        }
        a.activated = true;
        a.serving = view.pool.as_ref().is_some_and(|p| view.acting.len() >= p.min_size);
        tracing::debug!(pg = %self.core.id, epoch = view.epoch, "activated");
        if planted!(self.core.cfg, LeaseNotAwaited) {
            a.wait_until = 0;
        }
        let awaited = a.wait_until > cx.now.mono_ms;
        if awaited {
            cx.out.push(PgEffect::WakeAt(a.wait_until));
        } else {
            a.wait_until = 0;
        }
        let change = self.core.copy.all_activated(a.serving.then_some(since), awaited);
        self.tell_history(cx);
        self.core.submit(change, After::Nothing, cx);
        self.begin_recovery(cx);
        cx.out.push(PgEffect::StateChanged);
        self.begin_to_serve(cx);
    }

    /// If the PG serves from now on, requests that waited for it go on.
    pub(crate) fn begin_to_serve(&mut self, cx: &mut Cx<'_>) {
        if self.primary.serves() {
            self.watches.renew(None, false, cx.now.mono_ms);
        }
        self.run_waiting(cx);
    }

    /// A newer map of the interval: of those that may read as primaries of older ones, some may be
    /// dead by now.
    pub(crate) fn forget_dead_readers(&mut self, cx: &mut Cx<'_>) {
        if self.primary.wait_until == 0 {
            return;
        }
        let known =
            self.core.readers().iter().map(|(osd, last, until)| (*osd, (*last, *until))).collect();
        let Some(view) = self.core.view.clone() else {
            return invariant!(self.core, "a primary is active without a map");
        };
        let left = self.core.old_readers(known, &view, cx);
        if left.len() == self.core.readers().len() {
            return;
        }
        let until = left.iter().map(|(_, _, until)| *until).max();
        self.core.copy.read_by(left).saved_whole();
        let a = &mut *self.primary;
        a.wait_until = until.unwrap_or(cx.now.mono_ms);
        let until = a.wait_until;
        if a.activated {
            cx.out.push(PgEffect::WakeAt(until));
            self.end_lease_wait(cx);
        }
    }

    /// Requests go on if no older primary can be reading any more.
    pub(crate) fn end_lease_wait(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if a.wait_until == 0 || cx.now.mono_ms < a.wait_until {
            return;
        }
        a.wait_until = 0;
        let change = self.core.copy.read_by_nobody();
        self.core.submit(change, After::Nothing, cx);
        self.tell_history(cx);
        cx.out.push(PgEffect::StateChanged);
        self.begin_to_serve(cx);
        self.tell_merge(false, cx);
    }
}
