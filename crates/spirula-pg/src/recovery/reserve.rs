//! Reservations: an OSD takes part in few recoveries at a time, as primary and as target.
//!
//! [`Reservations`] is the primary's end, `target` the other one; both are tested without a PG.
//!
//! Our own OSD is asked first, then each target in order of its number: nobody holds a later
//! one while waiting for an earlier one, so no circle of waiting can close.

use crate::again::{Again, Repeat};
use crate::api::{PgEffect, Reservation};
use crate::core::{Cx, PgCore};
use crate::lead::Lead;
use crate::pg::Pg;
use crate::role::Role;
use spirula_maps::PgState;
use spirula_messages::cluster::pg::CtlBody;
use spirula_types::{HObject, Peer};
use std::collections::{BTreeMap, BTreeSet};

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

/// A primary's reservations for recovery.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    stage: Stage,
    /// Asked for, or held, at our own OSD.
    own: BTreeSet<Reservation>,
    /// A target has no room: for a backfill, or for recovery by the log.
    too_full: Option<bool>,
    /// What was reserved (or asked for) at members, and what was given back there and not
    /// confirmed, by their numbers.
    reserved: BTreeMap<Peer, u64>,
    releasing: BTreeMap<Peer, u64>,
    reserve_repeat: Repeat,
    release_repeat: Repeat,
}

/// What a member's answer leads to.
#[derive(Debug, PartialEq, Eq)]
enum Answered {
    /// Nothing: it is of a reservation that is over.
    Nothing,
    /// The next member is asked, or all have let us.
    Next,
    /// It has no room, or none any more.
    NoRoom,
}

impl Reservations {
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Has a target no room: for a backfill, or for recovery by the log?
    pub fn too_full(&self) -> Option<bool> {
        self.too_full
    }

    /// What had no room is not lacked any more.
    pub fn has_room(&mut self) {
        self.too_full = None;
    }

    /// Has a member not confirmed that it has something back?
    pub fn is_releasing(&self) -> bool {
        !self.releasing.is_empty()
    }

    /// Is a kind of recovery (`Some(backfill)`), or none, wanted that is not there? `held`: it may
    /// not begin now.
    fn differs(&self, backfill: Option<bool>, held: bool) -> bool {
        let is_held = matches!(self.stage, Stage::Held { .. });
        self.stage.backfill() != backfill || (backfill.is_some() && is_held != held)
    }

    /// Goes to a kind of recovery, or to none; what was reserved for another is given back.
    fn go_to(&mut self, backfill: Option<bool>, held: bool, core: &PgCore, cx: &mut Cx<'_>) {
        if self.stage != Stage::Idle {
            self.release(core, cx);
        }
        self.stage = match backfill {
            None => Stage::Idle,
            Some(backfill) if held => Stage::Held { backfill },
            Some(backfill) => {
                let r = Reservation::Local { backfill };
                self.own.insert(r);
                cx.out.push(PgEffect::Reserve(r));
                Stage::Local { backfill }
            }
        };
        cx.out.push(PgEffect::StateChanged);
    }

    /// Gives all reservations back.
    fn release(&mut self, core: &PgCore, cx: &mut Cx<'_>) {
        let reserved = std::mem::take(&mut self.reserved);
        self.releasing.extend(reserved.iter().map(|(p, seq)| (*p, *seq)));
        self.stage = Stage::Idle;
        self.end(cx);
        reserved.into_iter().for_each(|(to, seq)| core.send(to, CtlBody::Release { seq }, cx));
    }

    /// The role ends: what our own OSD lets us is given back. Members hear of it by the interval.
    pub fn end(&mut self, cx: &mut Cx<'_>) {
        for r in std::mem::take(&mut self.own) {
            cx.out.push(PgEffect::Unreserve(r));
        }
    }

    /// A try has failed: others may begin, until the next tick.
    fn hold_backfill(&mut self, core: &PgCore, cx: &mut Cx<'_>) {
        self.release(core, cx);
        self.stage = Stage::Held { backfill: true };
        cx.out.push(PgEffect::StateChanged);
    }

    /// Is this asked for, or held, at our own OSD?
    fn is_wanted(&self, what: &Reservation) -> bool {
        self.own.contains(what)
    }

    /// Our own OSD lets us; these members are to be asked, in order of their numbers. False if it
    /// is not waited for.
    fn on_own(&mut self, backfill: bool, members: impl Iterator<Item = Peer>) -> bool {
        if self.stage != (Stage::Local { backfill }) {
            return false;
        }
        // Once for each OSD, however many shards it is to take.
        let mut left: Vec<Peer> = members.collect();
        left.dedup_by_key(|p| p.osd);
        self.stage = Stage::Remote { backfill, left };
        true
    }

    /// Our own OSD is too full, or has become so; false if nothing was asked of it.
    fn on_own_refused(&mut self, what: &Reservation, core: &PgCore, cx: &mut Cx<'_>) -> bool {
        let Reservation::Local { backfill } = *what else { return false };
        let was = self.own.remove(what);
        if was {
            self.give_way(backfill, core, cx);
        }
        was
    }

    /// There is no room: all is given back, for others.
    fn give_way(&mut self, backfill: bool, core: &PgCore, cx: &mut Cx<'_>) {
        self.too_full = Some(backfill);
        self.release(core, cx);
        cx.out.push(PgEffect::StateChanged);
    }

    /// A member lets us, or has no room (any more).
    fn on_answer(
        &mut self,
        from: Peer,
        seq: u64,
        granted: bool,
        core: &PgCore,
        cx: &mut Cx<'_>,
    ) -> Answered {
        if self.reserved.get(&from) != Some(&seq) {
            // Of a reservation that is over.
            if !granted {
                core.send(from, CtlBody::Release { seq }, cx);
            }
            return Answered::Nothing;
        }
        let backfill = match &mut self.stage {
            Stage::Remote { left, .. } if granted && left.first() == Some(&from) => {
                left.remove(0);
                return Answered::Next;
            }
            // One that let us may become too full later.
            Stage::Remote { backfill, .. } | Stage::Running { backfill } if !granted => *backfill,
            _ => return Answered::Nothing,
        };
        self.give_way(backfill, core, cx);
        Answered::NoRoom
    }

    /// Asks the next member; the kind of recovery that may begin, if all have let us.
    fn ask_next(&mut self, core: &mut PgCore, cx: &mut Cx<'_>) -> Option<bool> {
        let seq = core.seq();
        let Stage::Remote { backfill, ref left } = self.stage else { return None };
        if let Some(next) = left.first().copied() {
            self.reserved.insert(next, seq);
            // What was reserved there before is replaced.
            self.releasing.remove(&next);
            core.send(next, CtlBody::Reserve { seq, backfill }, cx);
            return None;
        }
        self.stage = Stage::Running { backfill };
        self.too_full = None;
        cx.out.push(PgEffect::StateChanged);
        Some(backfill)
    }

    /// A member has back what was reserved there.
    fn on_released(&mut self, from: Peer, seq: u64) {
        if self.releasing.get(&from) == Some(&seq) {
            self.releasing.remove(&from);
        }
    }

    /// Asks again who has not answered.
    pub fn repeat(&mut self, core: &PgCore, again: Again, cx: &mut Cx<'_>) {
        let mut late = Vec::new();
        if let Stage::Remote { backfill, left } = &self.stage
            && let Some((first, seq)) =
                left.first().and_then(|p| Some((*p, *self.reserved.get(p)?)))
        {
            let to = again.whom(&mut self.reserve_repeat, seq, [first]);
            late.extend(to.into_iter().map(|p| (p, CtlBody::Reserve { seq, backfill: *backfill })));
        }
        let to = again.whom(&mut self.release_repeat, 0, self.releasing.keys().copied());
        let release = |p: Peer| Some((p, CtlBody::Release { seq: *self.releasing.get(&p)? }));
        late.extend(to.into_iter().filter_map(release));
        late.into_iter().for_each(|(to, body)| core.send(to, body, cx));
    }
}

/// Which kinds of recovery go before others' until the PG is clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forced {
    recovery: bool,
    backfill: bool,
}

impl Forced {
    fn kind(&mut self, backfill: bool) -> &mut bool {
        if backfill { &mut self.backfill } else { &mut self.recovery }
    }

    /// Does this kind?
    fn of(self, backfill: bool) -> bool {
        if backfill { self.backfill } else { self.recovery }
    }

    /// The bits that say so.
    pub fn state(self) -> PgState {
        let bit = |on, bit| if on { bit } else { PgState::UNKNOWN };
        bit(self.recovery, PgState::FORCED_RECOVERY) | bit(self.backfill, PgState::FORCED_BACKFILL)
    }
}

impl Lead<'_> {
    /// Goes to a kind of recovery (`Some(backfill)`), or to none.
    pub(super) fn want_stage(&mut self, backfill: Option<bool>, held: bool, cx: &mut Cx<'_>) {
        let r = &mut self.primary.recovery;
        if r.reservations.differs(backfill, held) {
            if *r.reservations.stage() != Stage::Idle {
                r.forget_work();
            }
            r.reservations.go_to(backfill, held, self.core, cx);
        } else if *r.reservations.stage() == (Stage::Running { backfill: false }) {
            self.list_todo();
            self.pump(cx);
        }
    }

    /// The backfill cannot go on now: others may, until the next tick.
    pub(super) fn backfill_later(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if *a.recovery.reservations.stage() == (Stage::Running { backfill: true }) {
            a.asked_ms = cx.now.mono_ms;
            a.recovery.forget_work();
            a.recovery.reservations.hold_backfill(self.core, cx);
        }
    }

    /// Our own OSD lets us; false if that is wanted no more.
    fn on_own_reserved(&mut self, backfill: bool, cx: &mut Cx<'_>) -> bool {
        let a = &mut *self.primary;
        if !a.recovery.reservations.is_wanted(&Reservation::Local { backfill }) {
            return false;
        }
        let wanted = a
            .peers
            .iter()
            .filter(|(_, p)| if backfill { !p.last_backfill.max } else { !p.missing.is_empty() });
        if a.recovery.reservations.on_own(backfill, wanted.map(|(o, _)| *o)) {
            self.reserve_next(cx);
        }
        true
    }

    /// Our own OSD is too full to get what we lack ourselves, or has become so.
    fn on_own_refused(&mut self, what: Reservation, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if a.recovery.reservations.on_own_refused(&what, self.core, cx) {
            a.asked_ms = cx.now.mono_ms;
            a.recovery.forget_work();
        }
    }

    /// The administrator wants it before others', or no longer.
    pub(crate) fn on_force(&mut self, backfill: bool, on: bool, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let on = on && !a.clean;
        if std::mem::replace(a.recovery.forced.kind(backfill), on) != on {
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
        let a = &mut *self.primary;
        match a.recovery.reservations.on_answer(from, seq, granted, self.core, cx) {
            Answered::Nothing => {}
            Answered::Next => self.reserve_next(cx),
            Answered::NoRoom => {
                a.asked_ms = cx.now.mono_ms;
                a.recovery.forget_work();
            }
        }
    }

    fn reserve_next(&mut self, cx: &mut Cx<'_>) {
        let reservations = &mut self.primary.recovery.reservations;
        let Some(backfill) = reservations.ask_next(self.core, cx) else { return };
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
        self.primary.recovery.reservations.on_released(from, seq);
    }

    /// What the logs say is missing, ours first.
    fn list_todo(&mut self) {
        let a = &mut *self.primary;
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

impl Pg {
    /// Our own OSD lets us, as primary or as target.
    pub(crate) fn on_reserved(&mut self, what: Reservation, cx: &mut Cx<'_>) {
        let wanted = match (&mut self.role, what) {
            (Role::Replica(r), Reservation::Remote { .. }) => {
                r.target.on_reserved(&self.core, what, cx)
            }
            (_, Reservation::Local { backfill }) => {
                self.lead().is_some_and(|mut lead| lead.on_own_reserved(backfill, cx))
            }
            _ => false,
        };
        if !wanted {
            cx.out.push(PgEffect::Unreserve(what));
        }
    }

    /// Our own OSD is too full to be a target, or to get what we lack ourselves, or has become so.
    pub(crate) fn on_refused(&mut self, what: Reservation, cx: &mut Cx<'_>) {
        if let Role::Replica(r) = &mut self.role {
            r.target.on_refused(&self.core, what, cx);
        } else if let Some(mut lead) = self.lead() {
            lead.on_own_refused(what, cx);
        }
    }

    /// Is it to go before others'?
    pub fn is_forced(&self, backfill: bool) -> bool {
        self.primary().is_some_and(|p| p.recovery.forced.of(backfill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Now, PeerMsg, PgConfig};
    use crate::exec::tests::MemStore;
    use crate::lease::Leases;
    use crate::recovery::Target;
    use spirula_types::{PgId, SpgId};
    use std::sync::Arc;

    fn core() -> PgCore {
        let id = SpgId::new(PgId::new(1, 0), -1);
        PgCore::new(id, 0, Arc::new(PgConfig::default()))
    }

    /// What is said in words: to whom, or to our own OSD.
    fn said(out: Vec<PgEffect>) -> Vec<String> {
        let word = |e| match e {
            PgEffect::Send(to, PeerMsg::Ctl(c)) => Some(format!("{to} {:?}", c.body)),
            PgEffect::Reserve(r) => Some(format!("reserve {r:?}")),
            PgEffect::Unreserve(r) => Some(format!("unreserve {r:?}")),
            _ => None,
        };
        out.into_iter().filter_map(word).collect()
    }

    /// Does `f`, and tells what it said.
    fn says<T>(f: impl FnOnce(&mut Cx<'_>) -> T) -> (T, Vec<String>) {
        let (store, leases, mut out) = (MemStore::default(), Leases::new(1, 0), Vec::new());
        let cx = &mut Cx { now: Now::default(), reader: &store, leases: &leases, out: &mut out };
        let result = f(cx);
        (result, said(out))
    }

    const LOCAL: Reservation = Reservation::Local { backfill: true };

    /// A primary that has its own OSD's word, and asks these.
    fn asking(core: &mut PgCore, members: &[Peer]) -> Reservations {
        let mut r = Reservations::default();
        let ((), said) = says(|cx| r.go_to(Some(true), false, core, cx));
        assert_eq!(said, [format!("reserve {LOCAL:?}")]);
        assert!(r.is_wanted(&LOCAL) && !r.is_wanted(&Reservation::Local { backfill: false }));
        assert!(!r.on_own(false, members.iter().copied()), "of another kind");
        assert!(r.on_own(true, members.iter().copied()));
        assert!(!r.on_own(true, members.iter().copied()), "once");
        r
    }

    #[test]
    fn members_are_asked_one_after_the_other_and_each_osd_once() {
        let mut core = core();
        let shards = [Peer::new(1, 0), Peer::new(1, 2), Peer::new(2, 1)];
        let mut r = asking(&mut core, &shards);
        let (begins, told) = says(|cx| r.ask_next(&mut core, cx));
        assert_eq!((begins, told.len()), (None, 1));
        let seq = r.reserved[&shards[0]];
        let (answer, _) = says(|cx| r.on_answer(shards[2], seq, true, &core, cx));
        assert_eq!(answer, Answered::Nothing, "it was not asked");
        let (answer, _) = says(|cx| r.on_answer(shards[0], seq, true, &core, cx));
        assert_eq!(answer, Answered::Next);
        assert_eq!(says(|cx| r.ask_next(&mut core, cx)).0, None);
        let seq = r.reserved[&shards[2]];
        assert_eq!(says(|cx| r.on_answer(shards[2], seq, true, &core, cx)).0, Answered::Next);
        assert_eq!(says(|cx| r.ask_next(&mut core, cx)).0, Some(true), "all have let us");
        assert_eq!(*r.stage(), Stage::Running { backfill: true });
        assert!(
            !r.differs(Some(true), false) && r.differs(Some(true), true) && r.differs(None, false)
        );
    }

    #[test]
    fn who_has_no_room_makes_way_for_others_and_all_is_given_back_until_it_is_confirmed() {
        let mut core = core();
        let (a, b) = (Peer::whole(1), Peer::whole(2));
        let mut r = asking(&mut core, &[a, b]);
        says(|cx| r.ask_next(&mut core, cx));
        let first = r.reserved[&a];
        says(|cx| r.on_answer(a, first, true, &core, cx));
        says(|cx| r.ask_next(&mut core, cx));
        let second = r.reserved[&b];
        let (answer, said) = says(|cx| r.on_answer(b, second, false, &core, cx));
        assert_eq!((answer, r.too_full()), (Answered::NoRoom, Some(true)));
        let release = |p: Peer, seq| format!("{p} {:?}", CtlBody::Release { seq });
        assert_eq!(said, [format!("unreserve {LOCAL:?}"), release(a, first), release(b, second)]);
        assert!(r.is_releasing() && *r.stage() == Stage::Idle);
        // One that says so later, of what is over, is given it back, too.
        let (_, said) = says(|cx| r.on_answer(a, first, false, &core, cx));
        assert_eq!(said, [release(a, first)]);
        let at = |now_ms| Again::new(None, now_ms, 10);
        assert!(says(|cx| r.repeat(&core, at(0), cx)).1.is_empty());
        assert_eq!(says(|cx| r.repeat(&core, at(10), cx)).1.len(), 2, "until it is confirmed");
        r.on_released(a, first + 7);
        r.on_released(a, first);
        assert_eq!(says(|cx| r.repeat(&core, at(100), cx)).1, [release(b, second)]);
        r.on_released(b, second);
        assert!(!r.is_releasing() && says(|cx| r.repeat(&core, at(1000), cx)).1.is_empty());
        r.has_room();
        assert_eq!(r.too_full(), None);
    }

    #[test]
    fn a_target_has_one_reservation_and_says_until_it_is_heard_that_there_is_no_room() {
        let core = core();
        let (mut t, primary) = (Target::default(), Peer::whole(5));
        let remote = |backfill| Reservation::Remote { primary, backfill };
        let (_, said) = says(|cx| t.on_reserve(&core, primary, 3, false, cx));
        assert_eq!(said, [format!("reserve {:?}", remote(false))]);
        assert!(says(|cx| t.on_reserve(&core, primary, 3, false, cx)).1.is_empty(), "it waits");
        assert!(!says(|cx| t.on_reserved(&core, remote(true), cx)).0, "another");
        let (wanted, said) = says(|cx| t.on_reserved(&core, remote(false), cx));
        let reserved = |seq| format!("{primary} {:?}", CtlBody::Reserved { seq });
        assert_eq!((wanted, said), (true, vec![reserved(3)]));
        assert_eq!(says(|cx| t.on_reserve(&core, primary, 3, false, cx)).1, [reserved(3)], "again");
        // A later question replaces it, an older one is nothing any more.
        let (_, said) = says(|cx| t.on_reserve(&core, primary, 4, true, cx));
        let [gone, asked] = [remote(false), remote(true)];
        assert_eq!(said, [format!("unreserve {gone:?}"), format!("reserve {asked:?}")]);
        assert!(says(|cx| t.on_reserve(&core, primary, 3, false, cx)).1.is_empty());
        says(|cx| t.on_reserved(&core, remote(true), cx));
        // It has become too full: said until the primary gives it back.
        let full = format!("{primary} {:?}", CtlBody::TooFull { seq: 4 });
        assert_eq!(says(|cx| t.on_refused(&core, remote(true), cx)).1, std::slice::from_ref(&full));
        assert!(t.wants_tick());
        let at = |now_ms| Again::new(None, now_ms, 10);
        assert!(says(|cx| t.repeat_refused(&core, at(0), cx)).1.is_empty());
        assert_eq!(says(|cx| t.repeat_refused(&core, at(10), cx)).1, [full]);
        says(|cx| t.on_release(3, cx));
        assert!(t.wants_tick(), "of an older one");
        says(|cx| t.on_release(4, cx));
        assert!(!t.wants_tick());
    }
}
