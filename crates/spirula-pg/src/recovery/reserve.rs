//! Reservations: an OSD takes part in few recoveries at a time, as primary and as target.
//!
//! Our own OSD is asked first, then each target in order of its number: nobody holds a later
//! one while waiting for an earlier one, so no circle of waiting can close.

use crate::api::{PgEffect, Reservation};
use crate::pg::{Cx, Pg, Role};
use crate::repeat::Again;
use spirula_maps::PgState;
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{HObject, Peer};
use std::collections::BTreeSet;

/// How far recovery is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing to do, or nothing possible.
    #[default]
    Idle,
    /// Flags forbid it; or a try has failed, then the next tick begins anew.
    Held { backfill: bool },
    /// Waits for our own OSD.
    Local { backfill: bool },
    /// Waits for the first of these.
    Remote { backfill: bool, left: Vec<Peer> },
    /// Runs.
    Running { backfill: bool },
}

impl Stage {
    fn backfill(&self) -> Option<bool> {
        match self {
            Self::Idle => None,
            Self::Held { backfill }
            | Self::Local { backfill }
            | Self::Remote { backfill, .. }
            | Self::Running { backfill } => Some(*backfill),
        }
    }

    pub fn state(&self) -> PgState {
        match self {
            Self::Idle => PgState::UNKNOWN,
            Self::Running { backfill: false } => PgState::RECOVERING,
            Self::Running { backfill: true } => PgState::BACKFILLING,
            other if other.backfill() == Some(true) => PgState::BACKFILL_WAIT,
            _ => PgState::RECOVERY_WAIT,
        }
    }
}

impl Pg {
    /// Goes to a kind of recovery (`Some(backfill)`), or to none.
    pub(super) fn want_stage(&mut self, backfill: Option<bool>, held: bool, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
        let same = a.recovery.stage.backfill() == backfill;
        let is_held = matches!(a.recovery.stage, Stage::Held { .. });
        if same && (backfill.is_none() || is_held == held) {
            if backfill == Some(false) && matches!(a.recovery.stage, Stage::Running { .. }) {
                self.list_todo();
                self.pump(cx);
            }
            return;
        }
        if a.recovery.stage != Stage::Idle {
            self.release(cx);
        }
        let Role::Active(a) = &mut self.role else { return };
        a.recovery.stage = match backfill {
            None => Stage::Idle,
            Some(backfill) if held => Stage::Held { backfill },
            Some(backfill) => {
                let r = Reservation::Local { backfill };
                self.reservations.insert(r);
                cx.out.push(PgEffect::Reserve(r));
                Stage::Local { backfill }
            }
        };
        cx.out.push(PgEffect::StateChanged);
    }

    /// Gives all reservations back.
    fn release(&mut self, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else {
            return invariant!(
                self.core,
                "a reservation is given back, and it is no active primary's"
            );
        };
        let reserved = std::mem::take(&mut a.recovery.reserved);
        a.recovery.releasing.extend(reserved.iter().map(|(p, seq)| (*p, *seq)));
        a.recovery.todo.clear();
        a.recovery.asked_turn = false;
        a.recovery.turns = 0;
        a.recovery.stage = Stage::Idle;
        for backfill in [false, true] {
            let r = Reservation::Local { backfill };
            if self.reservations.remove(&r) {
                cx.out.push(PgEffect::Unreserve(r));
            }
        }
        reserved.into_iter().for_each(|(to, seq)| self.core.send(to, CtlBody::Release { seq }, cx));
    }

    /// The backfill cannot go on now: others may, until the next tick.
    pub(super) fn backfill_later(&mut self, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else { return };
        if a.recovery.stage != (Stage::Running { backfill: true }) {
            return;
        }
        a.asked_ms = cx.now.mono_ms;
        self.release(cx);
        if let Role::Active(a) = &mut self.role {
            a.recovery.stage = Stage::Held { backfill: true };
        }
        cx.out.push(PgEffect::StateChanged);
    }

    /// Our own OSD lets us, as primary or as target.
    pub(crate) fn on_reserved(&mut self, what: Reservation, cx: &mut Cx<'_>) {
        let wanted = match what {
            Reservation::Remote { .. } => match &mut self.role {
                Role::Replica(r) => r.target.on_reserved(&self.core, what, cx),
                _ => false,
            },
            Reservation::Local { .. } => self.reservations.contains(&what),
        };
        if !wanted {
            cx.out.push(PgEffect::Unreserve(what));
            return;
        }
        match what {
            Reservation::Remote { .. } => {}
            Reservation::Local { backfill } => {
                let Role::Active(a) = &mut self.role else { return };
                if a.recovery.stage != (Stage::Local { backfill }) {
                    return;
                }
                let wanted = a.peers.iter().filter(|(_, p)| {
                    if backfill { !p.last_backfill.max } else { !p.missing.is_empty() }
                });
                // Once for each OSD, however many shards it is to take.
                let mut left: Vec<Peer> = wanted.map(|(o, _)| *o).collect();
                left.dedup_by_key(|p| p.osd);
                a.recovery.stage = Stage::Remote { backfill, left };
                self.reserve_next(cx);
            }
        }
    }

    /// Our own OSD is too full to be a target, or to get what we lack ourselves, or has become so.
    pub(crate) fn on_refused(&mut self, what: Reservation, cx: &mut Cx<'_>) {
        if let Reservation::Remote { .. } = what {
            if let Role::Replica(r) = &mut self.role {
                r.target.on_refused(&self.core, what, cx);
            }
        } else if let Reservation::Local { backfill } = what
            && self.reservations.remove(&what)
        {
            let Role::Active(a) = &mut self.role else {
                return invariant!(
                    self.core,
                    "a reservation of recovery is refused to no active primary"
                );
            };
            a.recovery.too_full = Some(backfill);
            a.asked_ms = cx.now.mono_ms;
            self.release(cx);
            cx.out.push(PgEffect::StateChanged);
        }
    }

    /// Is it to go before others'?
    pub fn is_forced(&self, backfill: bool) -> bool {
        self.forced[usize::from(backfill)]
    }

    /// The administrator wants it before others', or no longer.
    pub(crate) fn on_force(&mut self, backfill: bool, on: bool, cx: &mut Cx<'_>) {
        let on = on && self.active().is_some_and(|a| !a.clean);
        if std::mem::replace(&mut self.forced[usize::from(backfill)], on) != on {
            cx.out.push(PgEffect::StateChanged);
        }
    }

    /// A target lets us, or has no room (any more).
    pub(crate) fn on_remote_reserved(
        &mut self,
        from: Peer,
        seq: u64,
        granted: bool,
        cx: &mut Cx<'_>,
    ) {
        let Role::Active(a) = &mut self.role else { return };
        if a.recovery.reserved.get(&from) != Some(&seq) {
            // Of a reservation that is over.
            if !granted {
                self.core.send(from, CtlBody::Release { seq }, cx);
            }
            return;
        }
        let backfill = match &mut a.recovery.stage {
            Stage::Remote { left, .. } if granted && left.first() == Some(&from) => {
                left.remove(0);
                return self.reserve_next(cx);
            }
            // One that let us may become too full later.
            Stage::Remote { backfill, .. } | Stage::Running { backfill } if !granted => *backfill,
            _ => return,
        };
        a.recovery.too_full = Some(backfill);
        a.asked_ms = cx.now.mono_ms;
        self.release(cx);
        cx.out.push(PgEffect::StateChanged);
    }

    fn reserve_next(&mut self, cx: &mut Cx<'_>) {
        let seq = self.core.seq();
        let Role::Active(a) = &mut self.role else { return };
        let Stage::Remote { backfill, ref left } = a.recovery.stage else { return };
        if let Some(next) = left.first().copied() {
            a.recovery.reserved.insert(next, seq);
            // What was reserved there before is replaced.
            a.recovery.releasing.remove(&next);
            self.core.send(next, CtlBody::Reserve { seq, backfill }, cx);
            return;
        }
        a.recovery.stage = Stage::Running { backfill };
        a.recovery.too_full = None;
        cx.out.push(PgEffect::StateChanged);
        if backfill {
            self.begin_backfills();
            self.backfill_progress(cx);
        } else {
            self.list_todo();
        }
        self.pump(cx);
    }

    /// A member has released what was reserved there.
    pub(crate) fn on_released(&mut self, from: Peer, seq: u64) {
        if let Role::Active(a) = &mut self.role
            && a.recovery.releasing.get(&from) == Some(&seq)
        {
            a.recovery.releasing.remove(&from);
        }
    }

    /// Asks again who has not answered.
    pub(super) fn repeat_reservations(&mut self, again: Again, cx: &mut Cx<'_>) {
        let Role::Active(a) = &mut self.role else {
            return invariant!(
                self.core,
                "reservations are asked for again, and it is no active primary"
            );
        };
        let r = &mut a.recovery;
        let mut late = Vec::new();
        if let Stage::Remote { backfill, left } = &r.stage
            && let Some((first, seq)) = left.first().and_then(|p| Some((*p, *r.reserved.get(p)?)))
        {
            let to = again.whom(&mut r.reserve_repeat, seq, [first]);
            late.extend(to.into_iter().map(|p| (p, CtlBody::Reserve { seq, backfill: *backfill })));
        }
        let to = again.whom(&mut r.release_repeat, 0, r.releasing.keys().copied());
        let release = |p: Peer| Some((p, CtlBody::Release { seq: *r.releasing.get(&p)? }));
        late.extend(to.into_iter().filter_map(release));
        late.into_iter().for_each(|(to, body)| self.core.send(to, body, cx));
    }

    /// What the logs say is missing, ours first.
    fn list_todo(&mut self) {
        let Role::Active(a) = &mut self.role else {
            return invariant!(self.core, "recovery begins without an active primary");
        };
        let r = &mut a.recovery;
        let fresh = |o: &&HObject| !r.ops.contains_key(*o) && !r.unfound.contains(*o);
        let here: Vec<HObject> =
            self.core.missing().iter().map(|(o, _)| o).filter(fresh).cloned().collect();
        let there: BTreeSet<HObject> = a
            .peers
            .values()
            .flat_map(|p| p.missing.iter().map(|(o, _)| o))
            .filter(fresh)
            .cloned()
            .collect();
        r.todo = here
            .into_iter()
            .chain(there.into_iter().filter(|o| !self.core.missing().contains(o)))
            .collect();
    }
}
