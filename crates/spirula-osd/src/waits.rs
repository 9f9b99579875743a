//! PGs that wait for room.
//!
//! A PG decides on a transaction, tells the others of it, and counts on it from then on. Where the
//! store has no room for it (a disk smaller than the primary's, space that others took meanwhile)
//! it must not be left out: that would be one copy less of something the client is told is safe. So
//! the PG waits, as Ceph's requests wait in a full cluster: what it wishes for from that
//! transaction on, and what it would be told, are kept in order, and the transaction is tried again
//! until there is room. Nothing of it is acknowledged meanwhile. The OSD calls itself full as long:
//! neither it nor a primary that has it for a member takes what grows, and deletions in other PGs
//! make room ([`OsdCore::space`]). A transaction that the store refuses for another reason that
//! lies in the transaction (too large: that cannot happen, since all look at one table before)
//! waits as well: that PG stands still, and says so, not the OSD.
//!
//! **A PG waits only within its interval.** A map that begins another one, or a primary that peers
//! anew, must not wait for the disk of one member: the other members would wait, too, and a primary
//! that was replaced would not know. So the PG falls back to what the store holds before it is told
//! such a thing ([`PgEvent::Unstored`]; why that is safe: module `unstored` of `spirula-pg`). Its
//! wishes are performed but for the transactions; what was kept for it, it is told then. Maps that
//! are kept leave it the leader it is, so a read that is kept may be answered by a lease that
//! counts with them. While a PG waits the newest map is not stored: a start shows each PG again
//! what it may not have stored.
//!
//! Only where not even that a PG has fallen back can be stored, or its split or merge, the OSD ends
//! ([`NO_ROOM`]).
//!
//! **Nor does it wait for ever.** What was decided on before does not let a deletion by, which
//! might make the room: with all its PGs waiting an OSD would be stuck until somebody helped. So
//! after [`GIVE_UP`] a PG falls back within its interval. A member leaves its role, and its primary
//! peers anew; a primary peers anew itself. Then the log reaches this store without the data, which
//! takes no room, the object is missing here, and deletions go on. The OSD is as full as before:
//! nothing that grows is begun again.
//!
//! A try may cost a checkpoint. Therefore a round of them ends with the first that is refused, the
//! next round begins behind that one, and rounds become rarer, from [`TRY_MIN`] to [`TRY_MAX`],
//! while nothing changes.
//!
//! What is kept is bounded: clients' requests by their connections' bounds, and they go with their
//! connections; maps follow each other in one place; answers by what was asked for; messages of
//! other members and orders by a number, beyond which they are dropped. They may be: every exchange
//! between members is repeated until it is answered.

use crate::osd::{OsdCore, stored};
use bytes::Bytes;
use spirula_pg::{LogLevel, OpId, PgEffect, PgEvent, Stored, Token, info_key};
use spirula_runtime::LinkId;
use spirula_store::{Packed, StoreError};
use spirula_types::SpgId;
use spirula_types::transaction::Transaction;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Messages of other members, and orders, kept for a PG, at most.
const MESSAGES_MAX: usize = 64;
/// Between two rounds of tries, at first and at last.
const TRY_MIN: Duration = Duration::from_millis(100);
const TRY_MAX: Duration = Duration::from_millis(3200);
/// A PG waits so long for room within its interval. The monitors know by then that the OSD is full,
/// and so do those who write.
const GIVE_UP: Duration = Duration::from_secs(20);
/// Is in the words with which an OSD ends that cannot store what it must.
pub const NO_ROOM: &str = "its store has no room";

/// What a PG waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Room.
    Room,
    /// That the store takes what it refuses: nobody knows why it should.
    Taking,
    /// A helper thread that compresses the transaction's data (`packing`).
    Packing,
}

/// What waits with a PG.
pub(crate) struct Wait {
    what: What,
    /// The transaction that was refused or is being packed, and its token.
    pub held: (Token, Transaction),
    /// Since when it waits, or could not fall back.
    since: Duration,
    /// Its wishes after that.
    pub wishes: VecDeque<PgEffect>,
    /// What it is to be told then.
    events: VecDeque<PgEvent>,
    /// Messages of other members among these, and orders.
    messages: usize,
    /// It was to be told that time has passed.
    ticked: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Waits {
    pgs: BTreeMap<SpgId, Wait>,
    /// Who was refused last, and when the next one tries.
    last: Option<SpgId>,
    next: Duration,
    pause: Duration,
    /// PGs that have fallen back.
    fallen_back: u64,
    /// Nothing is packed beforehand.
    pub hurried: bool,
}

/// Is that an answer of a store that works, and has changed nothing?
pub(crate) fn is_refusal(e: &StoreError) -> bool {
    matches!(e, StoreError::NoSpace { .. } | StoreError::TooLarge { .. } | StoreError::NoSource(_))
}

impl Waits {
    /// Does any PG wait?
    pub fn any(&self) -> bool {
        !self.pgs.is_empty()
    }

    /// Does any wait for nothing but room?
    pub fn any_for_room(&self) -> bool {
        self.pgs.values().any(|w| w.what == What::Room)
    }

    /// Does this one wait for the store to take what it has refused?
    fn refused(&self, id: SpgId) -> bool {
        self.pgs.get(&id).is_some_and(|w| w.what != What::Packing)
    }

    /// The token of a PG's transaction that is being packed.
    pub fn packs(&self, id: SpgId) -> Option<Token> {
        self.pgs.get(&id).filter(|w| w.what == What::Packing).map(|w| w.held.0)
    }

    /// A PG does not wait any more.
    pub fn take(&mut self, id: SpgId) -> Option<Wait> {
        self.pgs.remove(&id)
    }

    /// PGs whose transactions are being packed.
    pub fn packing(&self) -> Vec<SpgId> {
        self.pgs.iter().filter(|(_, w)| w.what == What::Packing).map(|(id, _)| *id).collect()
    }

    /// Keeps a wish of a PG that waits; `None`: it was kept.
    pub fn wish(&mut self, id: SpgId, effect: PgEffect) -> Option<PgEffect> {
        match self.pgs.get_mut(&id) {
            Some(w) => {
                w.wishes.push_back(effect);
                None
            }
            None => Some(effect),
        }
    }

    pub fn begin(&mut self, id: SpgId, held: (Token, Transaction), what: What, now: Duration) {
        let (wishes, events) = (VecDeque::new(), VecDeque::new());
        self.put(
            id,
            Wait { what, held, since: now, wishes, events, messages: 0, ticked: false },
            now,
        );
    }

    fn put(&mut self, id: SpgId, wait: Wait, now: Duration) {
        if wait.what != What::Packing && !self.pgs.values().any(|w| w.what != What::Packing) {
            (self.next, self.pause) = (now + TRY_MIN, TRY_MIN);
        }
        self.pgs.insert(id, wait);
    }

    /// Whose turn it is to try again at this time, if anybody's.
    fn turn(&self, now: Duration) -> Option<SpgId> {
        if now < self.next {
            return None;
        }
        let tries = |id: &SpgId| self.refused(*id);
        let mut after =
            self.last.into_iter().flat_map(|last| self.pgs.range(last..).map(|(id, _)| *id));
        after
            .find(|id| Some(*id) != self.last && tries(id))
            .or_else(|| self.pgs.keys().copied().find(tries))
    }

    /// Who has waited for room for too long, if anybody.
    fn overdue(&self, now: Duration) -> Option<SpgId> {
        let late = |w: &Wait| w.what == What::Room && now.saturating_sub(w.since) >= GIVE_UP;
        self.pgs.iter().find(|(_, w)| late(w)).map(|(id, _)| *id)
    }

    /// The one that tried was refused again, or (`went`) it goes on.
    fn tried(&mut self, id: SpgId, went: bool, now: Duration) {
        if went {
            self.pause = TRY_MIN;
        } else {
            self.last = Some(id);
            self.next = now + self.pause;
            self.pause = (2 * self.pause).min(TRY_MAX);
        }
    }
}

/// May it be lost if too much is kept?
fn is_message(event: &PgEvent) -> bool {
    matches!(
        event,
        PgEvent::Peer(..)
            | PgEvent::Force { .. }
            | PgEvent::MarkLost { .. }
            | PgEvent::CreateAnswer(_)
    )
}

impl Wait {
    /// What the PG is to be told when it goes on.
    pub fn told(self) -> impl DoubleEndedIterator<Item = PgEvent> {
        self.events.into_iter().chain(self.ticked.then_some(PgEvent::Tick))
    }

    /// Must the PG go on before it is told this, since there is no room to keep it?
    fn is_crowded(&self, event: &PgEvent) -> bool {
        is_message(event) && self.messages >= MESSAGES_MAX
    }

    /// Keeps what the PG is to be told, unless that may be lost. `knows`: the PG has something of
    /// the connection that has ended.
    fn keep(&mut self, event: PgEvent, knows: bool) {
        let message = is_message(&event);
        match &event {
            // It is told when it goes on.
            PgEvent::Tick => {
                self.ticked = true;
                return;
            }
            // Requests of clients go first ([`Wait::closed`]); what this OSD asks of its own PGs
            // for a copy ends by this alone.
            PgEvent::ConnClosed(conn) if !knows && !self.has_request_of(*conn) => return,
            _ if message && self.messages >= MESSAGES_MAX => return,
            PgEvent::Renewed(osd)
                if self
                    .events
                    .iter()
                    .any(|e| matches!(e, PgEvent::Renewed(other) if other == osd)) =>
            {
                return;
            }
            // What a later map of the interval says is so from the place of the earlier one on.
            PgEvent::Map(_) => {
                if let Some(earlier) = self.events.iter_mut().find(|e| matches!(e, PgEvent::Map(_)))
                {
                    *earlier = event;
                    return;
                }
            }
            _ => {}
        }
        self.messages += usize::from(message);
        self.events.push_back(event);
    }

    /// Is a request of this connection kept?
    fn has_request_of(&self, link: LinkId) -> bool {
        self.events.iter().any(|e| matches!(e, PgEvent::Client(op) if op.conn == link))
    }

    /// Forgets the requests of a connection that has ended; which.
    fn closed(&mut self, link: LinkId) -> Vec<OpId> {
        let mut gone = Vec::new();
        self.events.retain(|e| match e {
            PgEvent::Client(op) if op.conn == link => {
                gone.push(op.id);
                false
            }
            _ => true,
        });
        gone
    }
}

impl OsdCore {
    /// Does a PG wait for room?
    pub fn waits_for_room(&self) -> bool {
        self.waits.any_for_room()
    }

    /// How often a PG has fallen back to what the store holds.
    pub fn fallen_back(&self) -> u64 {
        self.waits.fallen_back
    }

    /// The store refuses what the PG submits: the PG waits.
    pub(crate) fn wait_for_room(
        &mut self,
        id: SpgId,
        token: Token,
        txn: Transaction,
        e: &StoreError,
    ) {
        if self.pg_cfg.leaves_out_refused() {
            self.answer_pg(id, PgEvent::Committed(token));
            return;
        }
        let what = self.say_refused(id, e);
        self.waits.begin(id, (token, txn), what, self.now.mono);
    }

    /// The same of what was being packed.
    pub(crate) fn refused_while_packing(&mut self, id: SpgId, mut wait: Wait, e: &StoreError) {
        wait.what = self.say_refused(id, e);
        wait.since = self.now.mono;
        self.waits.put(id, wait, self.now.mono);
    }

    fn say_refused(&mut self, id: SpgId, e: &StoreError) -> What {
        let (what, why) = match e {
            StoreError::NoSpace { .. } => (What::Room, "waits for room"),
            _ => (What::Taking, "stands still, its store refuses a change"),
        };
        self.say(LogLevel::Error, format!("pg {id} {why}: {e}"));
        self.reporter.changed();
        what
    }

    /// Keeps what a PG that waits is to be told, or lets it go on or fall back first; `None`: it is
    /// kept, or may be lost.
    pub(crate) fn keep_for_later(&mut self, id: SpgId, event: PgEvent) -> Option<PgEvent> {
        let Some(wait) = self.waits.pgs.get(&id) else { return Some(event) };
        let Some(pg) = self.pgs.get(&id) else { return Some(event) };
        let must_hear = pg.must_hear(&event);
        if wait.what == What::Packing && (must_hear || wait.is_crowded(&event)) {
            let kept = self.end_packing(id, &Packed::default());
            self.agenda.tell_first(id, kept.into_iter().chain([event]));
        } else if must_hear {
            let kept = self.fall_back(id);
            if self.waits.refused(id) {
                self.fail(&format!(
                    "pg {id} was replaced while it waited for room, and {NO_ROOM} \
                    to write that down"
                ));
            }
            self.agenda.tell_first(id, kept.into_iter().chain([event]));
        } else {
            let knows = matches!(&event, PgEvent::ConnClosed(conn) if pg.knows(*conn) || pg.minds_connection(*conn));
            self.waits.pgs.get_mut(&id)?.keep(event, knows);
        }
        None
    }

    /// What the store holds of a PG, where it can fall back to that.
    fn held_of(&self, id: SpgId) -> Result<Option<Stored>, StoreError> {
        let (Some(store), Some(pg)) = (&self.store, self.pgs.get(&id)) else { return Ok(None) };
        let held = stored(store, id, store.meta(&info_key(id))?.unwrap_or_else(Bytes::new))?;
        Ok(Some(held).filter(|held| pg.can_fall_back(held)))
    }

    /// A PG that waits gives up what the store refuses, and falls back to what that holds. What it
    /// is to be told now.
    fn fall_back(&mut self, id: SpgId) -> Vec<PgEvent> {
        match self.held_of(id) {
            Ok(Some(held)) => return self.fall_back_to(id, held),
            Ok(None) => {
                self.fail(&format!("pg {id} was to be split or merged, and {NO_ROOM} for that"))
            }
            Err(e) => self.fail(&format!("pg {id}: {e}")),
        }
        self.waits.pgs.remove(&id).map_or_else(Vec::new, |w| w.told().collect())
    }

    fn fall_back_to(&mut self, id: SpgId, held: Stored) -> Vec<PgEvent> {
        let Some(mut wait) = self.waits.pgs.remove(&id) else { return Vec::new() };
        tracing::warn!("osd.{}: pg {id} gives up what its store has no room for", self.cfg.id);
        self.waits.fallen_back += 1;
        for wish in std::mem::take(&mut wait.wishes)
            .into_iter()
            .filter(|w| !matches!(w, PgEffect::Submit(..)))
        {
            self.effect(id, wish);
        }
        self.tell_now(id, PgEvent::Unstored(wait.held.0, Box::new(held)));
        while let Some(wish) = self.agenda.next_wish_of(id) {
            self.effect(id, wish);
        }
        self.reporter.changed();
        wait.told().collect()
    }

    /// A PG that is to be split or merged waits no longer; false if the OSD ended.
    pub(crate) fn end_wait(&mut self, id: SpgId) -> bool {
        if self.waits.refused(id) {
            let kept = self.fall_back(id);
            self.agenda.tell(id, kept);
            self.perform();
        }
        self.was_taken(&[id])
    }

    /// The store has taken what these PGs submitted; else the OSD ends.
    pub(crate) fn was_taken(&mut self, ids: &[SpgId]) -> bool {
        if let Some(id) = ids.iter().find(|id| self.waits.refused(**id)) {
            self.fail(&format!("pg {id} is split or merged, and {NO_ROOM} for that"));
        }
        self.store.is_some()
    }

    /// A connection has ended: its requests that are kept need no answer.
    pub(crate) fn waiting_closed(&mut self, link: LinkId) {
        let gone = |(id, w): (&SpgId, &mut Wait)| (*id, w.closed(link));
        for (id, ops) in self.waits.pgs.iter_mut().map(gone).collect::<Vec<_>>() {
            ops.into_iter().for_each(|op| self.drop_op(id, op));
        }
    }

    /// Lets PGs that wait try again, one after the other until one is refused; and one give up that
    /// has waited for too long.
    pub(crate) fn try_again(&mut self, now: Duration) {
        // Who goes on may wait again at once, and is not tried twice.
        for _ in 0..self.waits.pgs.len() {
            let Some(id) = self.waits.turn(now) else { break };
            let went = self.try_one(id);
            self.waits.tried(id, went, now);
            if !went {
                break;
            }
        }
        if let Some(id) = self.waits.overdue(now)
            && !self.try_one(id)
        {
            self.give_up(id, now);
        }
    }

    /// Tries again what the store refused; false if it refuses it still.
    fn try_one(&mut self, id: SpgId) -> bool {
        let Some(mut wait) = self.waits.pgs.remove(&id) else { return true };
        let (token, txn) = (wait.held.0, std::mem::take(&mut wait.held.1));
        if let Some((txn, _)) = self.submit_if_room(id, token, txn, &Packed::default()) {
            wait.held = (token, txn);
            self.waits.pgs.insert(id, wait);
            return false;
        }
        tracing::info!("osd.{}: pg {id} has room again", self.cfg.id);
        self.agenda.wish(id, std::mem::take(&mut wait.wishes));
        self.perform();
        // Not before: it counts on seeing what it submitted. It may wait again by now. Time that it
        // waited for may be over.
        wait.told().for_each(|event| self.answer_pg(id, event));
        self.perform();
        self.reporter.changed();
        true
    }

    /// A PG has waited for too long: it falls back within its interval.
    fn give_up(&mut self, id: SpgId, now: Duration) {
        match self.held_of(id) {
            Ok(Some(held)) => {
                let kept = self.fall_back_to(id, held);
                self.agenda.tell(id, kept);
                self.perform();
            }
            // A split or a merge: only its own end can help.
            Ok(None) => self.waits.pgs.get_mut(&id).into_iter().for_each(|w| w.since = now),
            Err(e) => self.fail(&format!("pg {id}: {e}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_messages::ceph::MOsdOp;
    use spirula_messages::ceph::op::OsdOp;
    use spirula_pg::exec::Timeouts;
    use spirula_pg::{ClientOp, CreateAnswer, MapView, Patience};
    use spirula_types::{ObjectLocator, PgId, ReqId};
    use std::sync::Arc;

    fn pg(seed: u32) -> SpgId {
        SpgId::new(PgId::new(1, seed), -1)
    }

    fn waiting(n: u32) -> Waits {
        let mut w = Waits::default();
        (0..n).for_each(|seed| {
            w.begin(pg(seed), (7, Transaction::default()), What::Room, Duration::ZERO)
        });
        w
    }

    #[test]
    fn tries_become_rarer_and_all_have_their_turn() {
        let (mut w, mut now, mut tries) = (waiting(3), Duration::ZERO, Vec::new());
        while now < Duration::from_secs(60) {
            now += Duration::from_millis(100);
            // A round ends with the first that is refused.
            while let Some(id) = w.turn(now) {
                tries.push(id.pg.seed);
                w.tried(id, false, now);
            }
        }
        assert!((20..30).contains(&tries.len()), "{} tries in a minute", tries.len());
        assert!(tries.iter().enumerate().all(|(i, seed)| *seed == i as u32 % 3), "{tries:?}");
        // One that goes on lets the next try at once, and soon again.
        now += TRY_MAX;
        let id = w.turn(now).unwrap();
        w.pgs.remove(&id);
        w.tried(id, true, now);
        let id = w.turn(now).unwrap();
        w.tried(id, false, now);
        assert!(w.turn(now).is_none() && w.turn(now + TRY_MIN).is_some());
    }

    #[test]
    fn who_waits_for_a_helper_thread_takes_no_turn_and_who_waits_for_long_gives_up() {
        let mut w = waiting(2);
        w.begin(pg(1000), (9, Transaction::default()), What::Packing, Duration::ZERO);
        assert_eq!(
            (w.packing(), w.packs(pg(1000)), w.packs(pg(0))),
            (vec![pg(1000)], Some(9), None)
        );
        let mut now = Duration::ZERO;
        for n in 0..10 {
            now += TRY_MAX;
            assert_eq!(w.turn(now), Some(pg(n % 2)));
            w.tried(pg(n % 2), false, now);
        }
        assert_eq!(w.overdue(GIVE_UP - TRY_MIN), None);
        assert_eq!(w.overdue(GIVE_UP), Some(pg(0)));
        w.take(pg(0));
        w.take(pg(1));
        assert!(w.overdue(GIVE_UP).is_none() && w.any() && !w.any_for_room());
    }

    #[test]
    fn what_is_kept_has_a_bound_whatever_comes() {
        let mut w = waiting(1);
        let w = w.pgs.get_mut(&pg(0)).unwrap();
        for n in 0..10_000u32 {
            w.keep(PgEvent::Map(Arc::new(MapView { epoch: n, ..MapView::default() })), false);
            w.keep(PgEvent::Renewed((n % 5) as i32), false);
            w.keep(PgEvent::ConnClosed(u64::from(n)), false);
            w.keep(PgEvent::Force { backfill: false, on: true }, false);
            w.keep(PgEvent::CreateAnswer(CreateAnswer::Exists { winner: None }), false);
            w.keep(PgEvent::Tick, false);
        }
        assert_eq!(w.events.len(), 1 + 5 + MESSAGES_MAX);
        assert!(
            matches!(&w.events[0], PgEvent::Map(v) if v.epoch == 9999),
            "the newest map, in the first one's place"
        );
    }

    #[test]
    fn requests_of_a_connection_go_with_it_and_its_end_is_kept_for_who_knows_it() {
        let mut w = waiting(1);
        let w = w.pgs.get_mut(&pg(0)).unwrap();
        let locator =
            ObjectLocator { pool: 1, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        for id in 0..10 {
            let msg =
                Box::new(MOsdOp::new(pg(0), 0, locator.clone(), "o".into(), vec![OsdOp::stat()]));
            let (addrs, timeouts) = (Arc::default(), Timeouts::default());
            let (conn, reqid, patience) = (id % 2, ReqId::default(), Patience::Long);
            let op = ClientOp { id, conn, reqid, addrs, msg, patience, timeouts };
            w.keep(PgEvent::Client(op), false);
        }
        w.keep(PgEvent::ConnClosed(8), true);
        assert_eq!(w.closed(1), [1, 3, 5, 7, 9]);
        assert_eq!((w.closed(1).len(), w.events.len()), (0, 6));
        // The end of what nobody took away: the PG has not been told of the request, and is to be
        // told of both.
        w.keep(PgEvent::ConnClosed(0), false);
        w.keep(PgEvent::ConnClosed(1), false);
        assert!(matches!(w.events.back(), Some(PgEvent::ConnClosed(0))) && w.events.len() == 7);
    }
}
