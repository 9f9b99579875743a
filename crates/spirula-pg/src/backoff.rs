//! Backoffs: a client holds requests that cannot be served for long, in place of the OSD.
//!
//! Requests for a PG that does not serve, or for an object that nobody has, would fill what a
//! connection may have open, and hold up all that follows on it. So they are dropped, and their
//! client is told to send none of that range any more ([`backoff_op::BLOCK`]), which it
//! acknowledges; when the range can be served it is told to send them again, in their order
//! ([`backoff_op::UNBLOCK`]). Facts: `docs/protocol/osd.md` §7, Ceph's
//! `doc/dev/rados-client-protocol.rst`.
//!
//! A PG decides ([`PgEffect::Backoff`], [`PgEffect::Unblock`]); what each connection was told its
//! shell keeps ([`Backoffs`]). As in Ceph, a PG that only peers keeps requests, while their
//! connection has room for them; one that is down, incomplete or has too few members keeps none,
//! nor does an unfound object. A backoff ends with the interval, too. Clients that do not know
//! backoffs, and other OSDs, wait as ever ([`Patience`]).
//!
//! A client asks for a clone by its head, so it can be told to hold only what is for the head. A
//! write that needs a clone (a rollback) keeps all others on the head waiting, and is treated as if
//! the head were missing. A read of a clone keeps nobody waiting and stands apart; it is kept,
//! whether the clone can be had or not, until its connection has much open: only then its client is
//! to hold all that it has for the head. (With Ceph such reads fill the connection, and nothing
//! more is read from it.)
//!
//! The order of a client's requests stays. When one of them is dropped, so are all later ones of
//! the range, until the client sends all of them again in order:
//!
//! * those already in the PG, because a connection that was told to stop is remembered here
//!   ([`Held::backs_off`]), and because an object's queue, which has all that are in the PG, loses
//!   all requests of such a connection, not only some;
//! * those that arrive, by [`Backoffs::covers`]. What arrives before the client's acknowledgement
//!   was sent before it heard of the block, so it will come again, and must not be served before
//!   what was dropped: a range that is unblocked unacknowledged stays covered until the
//!   acknowledgement comes.
//!
//! Requests that were in the PG before, and stay, are older than those dropped. The client sends
//! them again, too; a write is then known by the log, and of a read's two answers the client takes
//! that to its last attempt.

use crate::api::{ConnId, Patience, PgEffect};
use crate::core::{Cx, PgCore};
use crate::lead::Lead;
use crate::requests::Request;
use spirula_messages::ceph::osd::{MOsdBackoff, backoff_op};
use spirula_types::{Epoch, HObject, SpgId};
use std::collections::{BTreeMap, BTreeSet};

/// What the client knows of a backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It was told to stop.
    New,
    /// It has stopped.
    Acked,
    /// It was told to go on, and has not said that it had stopped.
    Deleting,
}

/// A range that a client was told not to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backoff {
    id: u64,
    begin: HObject,
    /// The first that is not held; `begin` for one object.
    end: HObject,
    state: State,
}

impl Backoff {
    fn covers(&self, object: &HObject) -> bool {
        *object == self.begin || (self.begin < *object && *object < self.end)
    }
}

/// What a connection was told.
#[derive(Debug, Default)]
pub struct Backoffs {
    /// By PG, in order of their numbers.
    of: BTreeMap<SpgId, Vec<Backoff>>,
    last: u64,
}

impl Backoffs {
    /// Is it told nothing?
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Must a request for this object be dropped? Its client will send it again.
    pub fn covers(&self, pg: SpgId, object: &HObject) -> bool {
        self.of.get(&pg).is_some_and(|all| all.iter().any(|b| b.covers(object)))
    }

    /// The client is to hold its requests from `begin` up to before `end` (the same for one
    /// object); `None` if it is told already. `epoch` is the newest map's.
    pub fn block(
        &mut self,
        pg: SpgId,
        begin: &HObject,
        end: &HObject,
        epoch: Epoch,
    ) -> Option<MOsdBackoff> {
        // One that it was told to end may be of a smaller range: the PG has grown by a merge.
        let holds = |b: &Backoff| b.covers(begin) && *end <= b.end;
        if self.of.get(&pg).is_some_and(|all| all.iter().any(holds)) {
            return None;
        }
        self.last += 1;
        let b =
            Backoff { id: self.last, begin: begin.clone(), end: end.clone(), state: State::New };
        let said = said(pg, epoch, backoff_op::BLOCK, &b);
        self.of.entry(pg).or_default().push(b);
        Some(said)
    }

    /// The client has stopped.
    pub fn acked(&mut self, m: &MOsdBackoff) {
        let Some(all) = self.of.get_mut(&m.spg) else { return };
        let is = |b: &Backoff| b.id == m.id && m.op == backoff_op::ACK_BLOCK;
        all.retain(|b| !is(b) || b.state != State::Deleting);
        all.iter_mut().filter(|b| is(b)).for_each(|b| b.state = State::Acked);
        if all.is_empty() {
            self.of.remove(&m.spg);
        }
    }

    /// The client may go on, with all of a PG or with one object; what it is to be told.
    pub fn unblock(
        &mut self,
        pg: SpgId,
        object: Option<&HObject>,
        epoch: Epoch,
    ) -> Vec<MOsdBackoff> {
        let Some(all) = self.of.get_mut(&pg) else { return Vec::new() };
        let mut out = Vec::new();
        all.retain_mut(|b| {
            let meant = object.is_none_or(|o| b.begin == *o && b.end == *o);
            if !meant || b.state == State::Deleting {
                return true;
            }
            out.push(said(pg, epoch, backoff_op::UNBLOCK, b));
            let heard = b.state == State::Acked;
            b.state = State::Deleting;
            !heard
        });
        if all.is_empty() {
            self.of.remove(&pg);
        }
        out
    }

    /// Each with its PG, number, range, and state in a word, for showing.
    pub fn iter(&self) -> impl Iterator<Item = (SpgId, u64, &HObject, &HObject, &'static str)> {
        let state = |b: &Backoff| match b.state {
            State::New => "new",
            State::Acked => "acked",
            State::Deleting => "deleting",
        };
        self.of.iter().flat_map(move |(pg, all)| {
            all.iter().map(move |b| (*pg, b.id, &b.begin, &b.end, state(b)))
        })
    }
}

fn said(spg: SpgId, epoch: Epoch, op: u8, b: &Backoff) -> MOsdBackoff {
    MOsdBackoff { spg, epoch, op, id: b.id, begin: b.begin.clone(), end: b.end.clone() }
}

/// What a PG's clients hold for it.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Connections that were told to stop because the PG does not serve.
    conns: BTreeSet<ConnId>,
    /// Objects of which somebody was told to ask nothing, with what has to be recovered first: the
    /// object, or clones of it.
    objects: BTreeMap<HObject, BTreeSet<HObject>>,
}

impl Held {
    /// Must the PG look whether these can be had?
    pub fn has_objects(&self) -> bool {
        !self.objects.is_empty()
    }

    /// Was this connection told to stop?
    pub fn knows(&self, conn: ConnId) -> bool {
        self.conns.contains(&conn)
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
    }
}

impl Held {
    /// Is a request that the PG cannot serve to be dropped? `long`: it will not serve before
    /// something changes that may take long.
    fn backs_off(&self, q: &Request, long: bool) -> bool {
        match q.patience() {
            Patience::Endless => false,
            Patience::Short => true,
            // Not to be served before what was dropped.
            Patience::Long => long || self.conns.contains(&q.conn()),
        }
    }

    /// A request that the PG cannot serve is to be kept until it does, and is given back; or its
    /// client is to do that.
    pub fn keep_or_back_off(
        &mut self,
        q: Request,
        long: bool,
        core: &PgCore,
        cx: &mut Cx<'_>,
    ) -> Option<Request> {
        if !self.backs_off(&q, long) {
            return Some(q);
        }
        let (begin, end) = core.span();
        self.conns.insert(q.conn());
        cx.out.push(PgEffect::Backoff { op: q.id(), begin, end });
        None
    }

    /// The PG serves.
    pub fn unblock_pg(&mut self, cx: &mut Cx<'_>) {
        if !self.conns.is_empty() {
            self.unblock_all(cx);
        }
    }

    /// The interval ends, or the PG serves: clients may try again.
    pub fn unblock_all(&mut self, cx: &mut Cx<'_>) {
        let held = std::mem::take(self);
        if !held.conns.is_empty() || !held.objects.is_empty() {
            cx.out.push(PgEffect::Unblock(None));
        }
    }
}

impl Lead<'_> {
    /// All requests on this object wait until `awaited`, which is it or a clone of it, is
    /// recovered: who knows backoffs holds them itself.
    pub(crate) fn back_off_object(&mut self, object: &HObject, awaited: &HObject, cx: &mut Cx<'_>) {
        let unfound = self.primary.recovery.unfound.contains(awaited);
        let wait = |p| p == Patience::Endless || p == Patience::Long && !unfound;
        self.hold_back(object, awaited, |q| !wait(q.patience()), cx);
    }

    /// The client of this connection holds what it has for an object, until a clone of it is
    /// recovered that it wants to read.
    pub(crate) fn back_off_reader(
        &mut self,
        conn: ConnId,
        object: &HObject,
        clone: &HObject,
        cx: &mut Cx<'_>,
    ) {
        self.hold_back(object, clone, |q| q.conn() == conn, cx);
    }

    fn hold_back(
        &mut self,
        object: &HObject,
        awaited: &HObject,
        go: impl Fn(&Request) -> bool,
        cx: &mut Cx<'_>,
    ) {
        let gone = self.requests.take_from(object, go);
        if gone.is_empty() {
            return;
        }
        self.held.objects.entry(object.clone()).or_default().insert(awaited.clone());
        for op in gone {
            self.op_gone(op);
            cx.out.push(PgEffect::Backoff { op, begin: object.clone(), end: object.clone() });
        }
    }

    /// An object may be recovered, or given up, or one of its clones is: then clients that hold
    /// requests for it send them again, and those that have to wait for another clone hold them
    /// once more. They hold pings, too.
    pub(crate) fn unblock_object(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let Some(awaited) = self.held.objects.get(object) else { return };
        // While a clone is awaited the object itself serves: a watch whose client is gone may end.
        self.watches.renew(Some(object), !awaited.contains(object), cx.now.mono_ms);
        let a = &*self.primary;
        let Some(awaited) = self.held.objects.get(object) else { return };
        let is_there = |o: &HObject| !a.recovery.works_on(o) && !self.core.missing().contains(o);
        if awaited.iter().any(is_there) {
            self.held.objects.remove(object);
            cx.out.push(PgEffect::Unblock(Some(object.clone())));
        }
    }

    /// Time passed: clients may have to be told something else.
    pub(crate) fn backoff_tick(&mut self, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        if !a.recovery.unfound.is_empty() {
            // Requests wait in the queue of the head, also for a clone.
            let unfound = |o: &HObject| {
                a.recovery.unfound.range(o.family_start()..=o.clone()).next().is_some()
            };
            let waiting = self.requests.waiting_on(unfound);
            waiting.iter().for_each(|o| self.run_object(o, cx));
        }
        let held: Vec<HObject> = self.held.objects.keys().cloned().collect();
        held.iter().for_each(|o| self.unblock_object(o, cx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{pg_end, pg_start};
    use spirula_types::PgId;

    fn pg() -> SpgId {
        SpgId::new(PgId::new(5, 0), -1)
    }

    fn object(hash: u32) -> HObject {
        HObject { hash, ..HObject::head(5, "".into(), "".into(), "o".into()) }
    }

    fn ack(m: &MOsdBackoff) -> MOsdBackoff {
        MOsdBackoff { op: backoff_op::ACK_BLOCK, ..m.clone() }
    }

    /// The range of PG 5.0 of 16 as a Ceph 16.2 says it (`tests/data/vectors`, message 61).
    fn range() -> (HObject, HObject) {
        let (begin, end) = (pg_start(pg().pg), pg_end(pg().pg, 16));
        assert_eq!((begin.hash, begin.snap, begin.pool), (0, 0, 5));
        assert_eq!((end.hash, end.snap, end.pool), (8, spirula_types::SNAP_HEAD, 5));
        (begin, end)
    }

    #[test]
    fn a_pg_is_blocked_once_and_goes_on_once() {
        let (mut b, (begin, end)) = (Backoffs::default(), range());
        let said = b.block(pg(), &begin, &end, 7).unwrap();
        assert_eq!((said.op, said.id, said.epoch), (backoff_op::BLOCK, 1, 7));
        assert_eq!(b.block(pg(), &begin, &end, 8), None, "it is told already");
        assert!(b.covers(pg(), &object(0x10)) && b.covers(pg(), &object(0)), "objects of the PG");
        assert!(!b.covers(pg(), &object(8)), "hashes are in reversed order of their bits");
        assert!(!b.covers(SpgId::new(PgId::new(5, 1), -1), &object(0x10)), "another PG");
        b.acked(&ack(&said));
        let free = b.unblock(pg(), None, 9);
        assert_eq!(free, [MOsdBackoff { op: backoff_op::UNBLOCK, epoch: 9, ..said }]);
        assert!(!b.covers(pg(), &object(0x10)));
        assert!(b.unblock(pg(), None, 9).is_empty() && b.of.is_empty());
        assert_eq!(b.block(pg(), &begin, &end, 9).unwrap().id, 2, "numbers are not used again");
    }

    #[test]
    fn what_was_on_its_way_before_the_acknowledgement_is_dropped_after_the_unblock() {
        let (mut b, (begin, end)) = (Backoffs::default(), range());
        let said = b.block(pg(), &begin, &end, 7).unwrap();
        assert_eq!(b.unblock(pg(), None, 8).len(), 1);
        assert!(b.covers(pg(), &object(0x10)), "sent before the client knew; it must not overtake");
        assert_eq!(
            b.block(pg(), &begin, &end, 8),
            None,
            "nor is it told anew before it has heard of the end"
        );
        assert!(b.unblock(pg(), None, 8).is_empty(), "told once");
        b.acked(&MOsdBackoff { id: 77, ..ack(&said) });
        b.acked(&said);
        assert!(b.covers(pg(), &object(0x10)), "no acknowledgement of this one");
        b.acked(&ack(&said));
        assert!(!b.covers(pg(), &object(0x10)) && b.of.is_empty());
    }

    #[test]
    fn a_pg_that_grew_is_blocked_anew_while_the_old_range_still_drops() {
        let (mut b, (begin, end)) = (Backoffs::default(), range());
        let small = b.block(pg(), &begin, &end, 7).unwrap();
        b.unblock(pg(), None, 8);
        let grown = pg_end(pg().pg, 8);
        let said = b.block(pg(), &begin, &grown, 8).expect("the client holds only the old range");
        assert!(b.covers(pg(), &object(8)) && b.covers(pg(), &object(0x10)));
        b.acked(&ack(&small));
        b.acked(&ack(&said));
        assert_eq!(
            b.unblock(pg(), None, 9),
            [MOsdBackoff { op: backoff_op::UNBLOCK, epoch: 9, ..said }]
        );
        assert!(b.of.is_empty());
    }

    #[test]
    fn objects_are_held_and_go_on_each_by_itself() {
        let (mut b, (a, o)) = (Backoffs::default(), (object(0x10), object(0x20)));
        let first = b.block(pg(), &a, &a, 7).unwrap();
        let second = b.block(pg(), &o, &o, 7).unwrap();
        assert_eq!((&first.begin, &first.end, second.id), (&a, &a, 2));
        assert!(b.covers(pg(), &a) && b.covers(pg(), &o) && !b.covers(pg(), &object(0x30)));
        b.acked(&ack(&first));
        b.acked(&ack(&second));
        assert_eq!(
            b.iter().map(|(_, id, .., state)| (id, state)).collect::<Vec<_>>(),
            [(1, "acked"), (2, "acked")]
        );
        assert_eq!(b.unblock(pg(), Some(&a), 8).iter().map(|m| m.id).collect::<Vec<_>>(), [1]);
        assert!(!b.covers(pg(), &a) && b.covers(pg(), &o));
        assert_eq!(
            b.unblock(pg(), None, 8).iter().map(|m| m.id).collect::<Vec<_>>(),
            [2],
            "the interval's end"
        );
    }
}
