//! Reads that need the disk: in helper threads, within the memory for payloads.
//!
//! # Why nothing that was read is ever older than the store
//! What a helper thread has read belongs to the request that asked ([`ReadKey`]) and to nobody
//! else. The PG sees it only while it is told that the read is done ([`PgEvent::Ready`]), then it
//! is gone, used or not; only if the PG then asks for more of the same object is it kept until that
//! has come, too. A request that ends takes with it what is in hand for it. So nothing lies about
//! that another reader could take.
//!
//! The request itself may have been overtaken: by a write, a recovery, a new interval. So each
//! object that is being read, or of which something is in hand, counts the transactions submitted
//! that name it ([`Fetches::changed`]), and a piece carries the count at which its read was
//! planned. A piece whose count is behind, be it data or an error, is dropped unseen, and the PG,
//! which finds nothing, asks again. A plan itself reads what the object was when the plan was made,
//! whatever is written meanwhile ([`spirula_store::ReadPlan`]), and a PG's event is not
//! interrupted: no transaction comes between the look at the count and the use.

use crate::osd::{OsdCore, OsdEvent, Piece};
use crate::reader::{StoreReader, read_error};
use spirula_pg::exec::{Prefetch, Want};
use spirula_pg::{OpId, PgEffect, PgEvent, ReadKey};
use spirula_types::{HObject, SpgId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes that may be read ahead however small the budget.
const LEAST_READING: u64 = 8 << 20;

/// An object that is being read, or of which something is in hand.
#[derive(Debug, Default)]
struct Watched {
    /// Transactions submitted since it is watched.
    changes: u64,
    /// Pieces of it.
    pieces: usize,
}

/// What helper threads read, and for whom.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    watched: HashMap<HObject, Watched>,
    /// What has come for requests that asked for more.
    in_hand: BTreeMap<(SpgId, ReadKey), Vec<Piece>>,
    /// Only a planted bug puts anything here: pieces for whoever comes.
    left: Vec<Piece>,
}

impl Fetches {
    /// A read of this object is planned now. What it brings is of this count.
    fn begin(&mut self, object: &HObject) -> u64 {
        let w = self.watched.entry(object.clone()).or_default();
        w.pieces += 1;
        w.changes
    }

    /// Pieces are of no more use.
    fn end(&mut self, pieces: Vec<Piece>) {
        for p in pieces {
            if let Some(w) = self.watched.get_mut(&p.object) {
                w.pieces -= 1;
                if w.pieces == 0 {
                    self.watched.remove(&p.object);
                }
            }
        }
    }

    /// A transaction that changes an object is submitted.
    pub fn changed(&mut self, object: &HObject) {
        if let Some(w) = self.watched.get_mut(object) {
            w.changes += 1;
        }
        self.left.retain(|p| p.object != *object);
    }

    /// What was read for a request has come: all there is for it now.
    fn came(&mut self, id: SpgId, key: ReadKey, pieces: Vec<Piece>) {
        self.in_hand.entry((id, key)).or_default().extend(pieces);
    }

    /// Takes what there is for a request, as far as its object is still as it was read.
    fn take(&mut self, id: SpgId, key: ReadKey) -> Vec<Piece> {
        let all = self.in_hand.remove(&(id, key)).unwrap_or_default();
        let current = |p: &Piece| self.watched.get(&p.object).is_some_and(|w| w.changes == p.of);
        let (current, old) = all.into_iter().partition(current);
        self.end(old);
        current
    }

    /// The PG has seen these. What is of an object of which it wishes to read more is kept for
    /// that.
    fn seen(&mut self, id: SpgId, mut pieces: Vec<Piece>, wishes: &[PgEffect]) {
        for wish in wishes {
            let PgEffect::Prefetch(key, what) = wish else { continue };
            let wanted = |p: &Piece| {
                what.0.iter().any(|w| matches!(w, Want::Data { object, .. } if *object == p.object))
            };
            let (kept, rest): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(wanted);
            pieces = rest;
            if !kept.is_empty() {
                self.came(id, *key, kept);
            }
        }
        self.end(pieces);
    }

    /// A request is gone.
    pub fn forget(&mut self, id: SpgId, key: ReadKey) {
        if let Some(pieces) = self.in_hand.remove(&(id, key)) {
            self.end(pieces);
        }
    }
}

/// A read ahead: for whom, and of what.
type Ahead = (SpgId, ReadKey, Prefetch);

/// Reads ahead: what is read, what has come, and what waits for memory.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    fetches: Fetches,
    /// Bytes that helper threads are reading.
    reading: u64,
    /// Reads that wait for payload memory.
    held: VecDeque<Ahead>,
    /// The same of shards for other members.
    held_shards: VecDeque<Ahead>,
}

impl Reads {
    /// A transaction that changes an object is submitted.
    pub fn changed(&mut self, object: &HObject) {
        self.fetches.changed(object);
    }

    /// Keeps a read until there is memory for it.
    pub fn hold(&mut self, id: SpgId, key: ReadKey, what: Prefetch) {
        let held = if let ReadKey::Op(_) = key { &mut self.held } else { &mut self.held_shards };
        held.push_back((id, key, what));
    }

    /// Does any read wait for memory?
    pub fn any_held(&self) -> bool {
        !(self.held.is_empty() && self.held_shards.is_empty())
    }

    /// Takes the next read that need not wait any more; those of shards first.
    fn release(&mut self, must_wait: impl Fn(ReadKey) -> bool) -> Option<Ahead> {
        let ready = |held: &VecDeque<Ahead>| held.front().is_some_and(|h| !must_wait(h.1));
        if ready(&self.held_shards) {
            self.held_shards.pop_front()
        } else if ready(&self.held) {
            self.held.pop_front()
        } else {
            None
        }
    }
}

impl OsdCore {
    /// Reads ahead in a helper thread.
    pub(crate) fn prefetch(&mut self, id: SpgId, key: ReadKey, what: &Prefetch) {
        let Some(store) = &self.store else { return };
        let plans =
            StoreReader { store, fetched: &[], bad: &self.bad, waits: self.waits.any_for_room() }
                .plans(what);
        if plans.is_empty() {
            self.answer_pg(id, PgEvent::Ready(key));
            return;
        }
        self.perf.parked_reads += 1;
        self.reads.reading += plans.iter().map(|(_, _, length, _)| length).sum::<u64>();
        let begin = |(object, offset, length, plan)| {
            (self.reads.fetches.begin(&object), object, offset, length, plan)
        };
        let plans: Vec<_> = plans.into_iter().map(begin).collect();
        self.outside.work(Box::new(move || {
            let read =
                |(of, object, offset, length, plan): (_, _, _, _, spirula_store::ReadPlan)| {
                    let data = plan.run_with_crc().map_err(|e| read_error(&e));
                    Piece { object, offset, length, data, of }
                };
            OsdEvent::Fetched(id, key, plans.into_iter().map(read).collect())
        }));
    }

    /// A helper thread has read what was wanted.
    pub(crate) fn fetch_done(&mut self, id: SpgId, key: ReadKey, pieces: Vec<Piece>) {
        self.reads.reading -= pieces.iter().map(|p| p.length).sum::<u64>();
        if let ReadKey::Op(op) = key {
            self.reads_for(op, false);
        }
        if self.pg_cfg.keeps_fetched() {
            self.reads.fetches.left.extend(pieces);
        } else {
            self.reads.fetches.came(id, key, pieces);
        }
        self.feed_pg(id, PgEvent::Ready(key));
    }

    /// What a PG may see of what was read, while it takes this event.
    pub(crate) fn fetched_for(&mut self, id: SpgId, event: &PgEvent) -> Vec<Piece> {
        if self.pg_cfg.keeps_fetched() {
            return std::mem::take(&mut self.reads.fetches.left);
        }
        let PgEvent::Ready(key) = event else { return Vec::new() };
        let pieces = self.reads.fetches.take(id, *key);
        for p in &pieces {
            match &p.data {
                Err(e) => self.bad.borrow_mut().note(&p.object, e),
                Ok((data, _)) => {
                    // No transaction has named the object since the read was planned: `take` has
                    // looked.
                    if let (Some(store), ReadKey::Op(_)) = (&self.store, key) {
                        store.keep(&p.object, p.offset, data);
                    }
                }
            }
        }
        pieces
    }

    /// The PG has seen what was read, and wishes this.
    pub(crate) fn fetched_seen(&mut self, id: SpgId, pieces: Vec<Piece>, wishes: &[PgEffect]) {
        if self.pg_cfg.keeps_fetched() {
            self.reads.fetches.left = pieces;
            return;
        }
        self.reads.fetches.seen(id, pieces, wishes);
    }

    /// A request needs no answer any more: what was read for it, or is still to be read, is of no
    /// use.
    pub(crate) fn reads_gone(&mut self, id: SpgId, op: OpId) {
        let key = ReadKey::Op(op);
        self.reads.fetches.forget(id, key);
        self.reads.held.retain(|(pg, k, _)| (*pg, *k) != (id, key));
    }

    /// Would another read ahead take memory that is not there?
    pub(crate) fn read_must_wait(&self, key: ReadKey) -> bool {
        let pool = self.outside.pool();
        must_wait(key, self.reads.reading, pool.budget() as u64, pool.over_budget())
    }

    /// Starts reads that were held back, as far as the budget goes.
    pub(crate) fn release_reads(&mut self) {
        loop {
            let next = {
                let pool = self.outside.pool();
                let (reading, budget, over) =
                    (self.reads.reading, pool.budget() as u64, pool.over_budget());
                self.reads.release(|key| must_wait(key, reading, budget, over))
            };
            let Some((id, key, what)) = next else { return };
            self.prefetch(id, key, &what);
            self.perform();
        }
    }
}

/// A quarter of the budget is for what helper threads are reading (`reading` bytes), the rest is
/// what is in hand already (`over`: more than that). Recovery never waits, since writes that hold
/// payloads may be waiting for it. Shards for another member's request wait for what is being read
/// only, which ends whatever others do: the other member may hold payloads until it gets them, as
/// we may hold ours until we get its.
fn must_wait(key: ReadKey, reading: u64, budget: u64, over: bool) -> bool {
    let much = reading >= (budget / 4).max(LEAST_READING);
    match key {
        ReadKey::Op(_) => over || much,
        ReadKey::Shard(_) => much,
        ReadKey::Recovery(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use spirula_pg::exec::ReadError;
    use spirula_types::PgId;

    const ID: SpgId = SpgId { pg: PgId { pool: 1, seed: 0 }, shard: -1 };

    fn object(name: &'static str) -> HObject {
        HObject::head(1, Bytes::new(), Bytes::new(), name.into())
    }

    /// Plans a read of an object now, and says what it brings.
    fn read(f: &mut Fetches, name: &'static str, offset: u64) -> Piece {
        let (object, data) = (object(name), Ok((Bytes::from_static(b"data"), None)));
        Piece { of: f.begin(&object), object, offset, length: 4, data }
    }

    fn asks(key: ReadKey, name: &'static str) -> PgEffect {
        PgEffect::Prefetch(
            key,
            Prefetch(vec![Want::Data { object: object(name), offset: 9, length: 4 }]),
        )
    }

    fn nothing_left(f: &Fetches) -> bool {
        f.watched.is_empty() && f.in_hand.is_empty()
    }

    #[test]
    fn what_was_read_is_for_who_asked_and_only_then() {
        let mut f = Fetches::default();
        let piece = read(&mut f, "a", 0);
        f.came(ID, ReadKey::Op(1), vec![piece]);
        assert!(
            f.take(ID, ReadKey::Op(2)).is_empty() && f.take(ID, ReadKey::Recovery(1)).is_empty()
        );
        let seen = f.take(ID, ReadKey::Op(1));
        assert_eq!(seen.len(), 1);
        f.seen(ID, seen, &[asks(ReadKey::Op(1), "b"), PgEffect::Continue]);
        assert!(f.take(ID, ReadKey::Op(1)).is_empty() && nothing_left(&f));
    }

    #[test]
    fn what_was_overtaken_is_not_seen_be_it_data_or_an_error() {
        let mut f = Fetches::default();
        let old = read(&mut f, "a", 0);
        let bad = Piece { data: Err(ReadError::Checksum { offset: 0 }), ..read(&mut f, "a", 4) };
        let other = read(&mut f, "b", 0);
        f.changed(&object("a"));
        let new = read(&mut f, "a", 8);
        f.came(ID, ReadKey::Op(1), vec![old, bad, other, new]);
        let seen = f.take(ID, ReadKey::Op(1));
        assert_eq!(
            seen.iter().map(|p| (p.object == object("a"), p.offset)).collect::<Vec<_>>(),
            [(false, 0), (true, 8)]
        );
        f.seen(ID, seen, &[]);
        assert!(nothing_left(&f));
    }

    #[test]
    fn what_is_kept_until_the_rest_has_come_may_be_overtaken_too() {
        let mut f = Fetches::default();
        for (change, found) in [(None, 2), (Some("b"), 2), (Some("a"), 0)] {
            let first = read(&mut f, "a", 0);
            f.came(ID, ReadKey::Recovery(1), vec![first]);
            let seen = f.take(ID, ReadKey::Recovery(1));
            f.seen(ID, seen, &[asks(ReadKey::Recovery(2), "a")]);
            let second = read(&mut f, "a", 9);
            change.into_iter().for_each(|o| f.changed(&object(o)));
            f.came(ID, ReadKey::Recovery(2), vec![second]);
            let seen = f.take(ID, ReadKey::Recovery(2));
            assert_eq!(seen.len(), found, "{change:?}");
            f.seen(ID, seen, &[]);
            assert!(nothing_left(&f));
        }
    }

    #[test]
    fn a_request_that_goes_takes_with_it_what_was_read() {
        let mut f = Fetches::default();
        let (a, b) = (read(&mut f, "a", 0), read(&mut f, "a", 4));
        f.came(ID, ReadKey::Op(1), vec![a]);
        f.came(ID, ReadKey::Op(2), vec![b]);
        f.forget(ID, ReadKey::Op(1));
        assert!(f.take(ID, ReadKey::Op(1)).is_empty() && !nothing_left(&f));
        f.forget(ID, ReadKey::Op(2));
        assert!(nothing_left(&f));
    }

    #[test]
    fn shards_for_others_are_read_within_the_budget_and_wait_for_nobody_else() {
        let (op, shard, recovery) = (ReadKey::Op(1), ReadKey::Shard(1), ReadKey::Recovery(1));
        let budget = 64 << 20;
        for (reading, over, waits) in [
            (0, false, [false; 3]),
            (16 << 20, false, [true, true, false]),
            (0, true, [true, false, false]),
            (8 << 20, false, [false; 3]),
        ] {
            assert_eq!(
                [op, shard, recovery].map(|k| must_wait(k, reading, budget, over)),
                waits,
                "{reading} {over}"
            );
        }
        assert!(
            !must_wait(op, LEAST_READING - 1, 0, false)
                && must_wait(shard, LEAST_READING, 0, false)
        );
    }
}
