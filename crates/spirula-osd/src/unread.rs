//! Clients that ask for more than they read.
//!
//! An answer takes memory until its client has taken it, whatever it is made of: data, keys and
//! values, attributes, listings, maps. All clients share that memory, and all of it counts against
//! the payloads' budget ([`PayloadPool`](spirula_buffer::PayloadPool)). So a client's connection
//! may have open, counted as bytes that it asked for and bytes of answers that it has not taken, a
//! quarter of what is free: however many clients do not read, a part stays for the others. A client
//! that owes nothing may always ask.
//!
//! A request that would be too much is kept here, before its PG knows of it, so that nobody else's
//! request for the same object waits behind it. Everything that its connection brings after it
//! waits behind it, in order. The connection is held meanwhile: what is kept is what had been read
//! from it already, at most one receive buffer and what was in the mailbox. Only what the
//! connection owes can be in a kept request's way, and whatever it owes ends: a request by its
//! answer, an answer when the client takes it or its connection closes. So each connection is
//! looked at again when that happens to something of its own ([`Unread::look_at`]), and at no other
//! time.
//!
//! A request that waits in its PG, for the PG or for an object, takes no memory yet and owes
//! nothing: it must not hold up the same client's requests for PGs that serve. It is counted apart
//! ([`Owed::waiting`]), because all such requests are answered at once when the wait ends. From an
//! eighth of what is free on, no more of them may wait there: the client is told to hold them
//! ([`Patience::Short`](spirula_pg::Patience)). Requests of clients that cannot be told, and reads
//! of erasure-coded objects, which wait for shards, are kept here from a quarter on.
//!
//! Watchers are told things that they did not ask for. One that has not taken as much as it might
//! have asked for, twice over, loses its connection ([`OsdCore::tell_client`]), and with it what it
//! was told; its watches go on without it until their time is over, and it is told again what is
//! under way when it comes back.
//!
//! If the memory is used up all the same, by very many such clients, those that have taken nothing
//! for [`STUCK`] lose their connections, and with them what was read for them. They ask again when
//! they go on.

use crate::history::Open;
use crate::osd::{OsdCore, Pending, Session, shown};
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{MOsdOp, MWatchNotify};
use spirula_messages::{Body, Message};
use spirula_pg::{OpId, Phase};
use spirula_runtime::LinkId;
use spirula_types::{EntityType, PgId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Time without taking anything after which a client counts as stuck.
const STUCK: Duration = Duration::from_secs(5);
/// Bytes that one op counts for at most, since many clients ask for more than there is; and what
/// one counts for whose answer may be long.
const MOST: u64 = 4 << 20;
/// Bytes that an answer counts for whatever is in it, and each of its ops.
const EACH: u64 = 256;
/// Bytes of a listed object: name, namespace and locator key, each as long as it may be.
const LISTED: u64 = 5 << 10;
/// Bytes that a connection may owe even where nothing is free: as many small requests as it may
/// have open.
const LEAST: u64 = 1 << 20;
/// The part of what is free that one connection may owe.
const PART: usize = 4;
/// The part of what is free from which on no more of a connection's requests are let wait.
const WAITING_PART: usize = 8;

/// What the open requests of a connection ask for, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// Of those for which is being read.
    pub reading: u64,
    /// Of those that wait in their PGs.
    pub waiting: u64,
}

impl Owed {
    /// May a connection that owes this, and has not taken `unsent` bytes of answers, ask for so
    /// much more, while `free` bytes are?
    pub fn may_ask(&self, unsent: usize, answer: u64, free: usize) -> bool {
        let most = LEAST.max((free / PART) as u64);
        let within = |owed: u64| owed == 0 || owed.saturating_add(answer) <= most;
        within(self.reading + unsent as u64) && within(self.waiting)
    }

    /// Does as much wait as may?
    pub fn waits_enough(&self, free: usize) -> bool {
        self.waiting > LEAST.max((free / WAITING_PART) as u64)
    }

    fn of(&mut self, reading: bool) -> &mut u64 {
        if reading { &mut self.reading } else { &mut self.waiting }
    }
}

/// Requests that wait until their clients have read more, by connection, in order of arrival; with
/// the bytes each asks for.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    kept: BTreeMap<LinkId, VecDeque<(u64, Message)>>,
    /// Those of these connections that owe less than when they were looked at.
    changed: BTreeSet<LinkId>,
}

impl Unread {
    fn keep(&mut self, link: LinkId, answer: u64, m: Message) {
        self.kept.entry(link).or_default().push_back((answer, m));
    }

    /// Keeps what its sender said after a request that is kept, and means to come after it; false
    /// if there is none.
    pub fn keep_behind(&mut self, link: LinkId, answer: impl FnOnce() -> u64, m: &Message) -> bool {
        let Some(queue) = self.kept.get_mut(&link) else { return false };
        queue.push_back((answer(), m.clone()));
        true
    }

    /// Does anything of this connection wait?
    pub fn holds(&self, link: LinkId) -> bool {
        self.kept.contains_key(&link)
    }

    /// This connection owes less than before: what of it waits may go on.
    pub fn look_at(&mut self, link: LinkId) {
        if self.holds(link) {
            self.changed.insert(link);
        }
    }

    /// A connection is gone, and with it whoever wants answers.
    pub fn closed(&mut self, link: LinkId) {
        self.kept.remove(&link);
    }

    /// What waits, by connection.
    pub fn all(&self) -> impl Iterator<Item = (LinkId, &Message)> {
        self.kept.iter().flat_map(|(link, queue)| queue.iter().map(|(_, m)| (*link, m)))
    }

    /// What the next request of a connection asks for.
    fn next(&self, link: LinkId) -> Option<u64> {
        self.kept.get(&link)?.front().map(|(answer, _)| *answer)
    }

    /// Takes all that waits of a connection.
    fn take(&mut self, link: LinkId) -> VecDeque<(u64, Message)> {
        self.kept.remove(&link).unwrap_or_default()
    }

    /// Puts back what still has to wait, behind what began to wait meanwhile.
    fn put_back(&mut self, link: LinkId, mut rest: VecDeque<(u64, Message)>) {
        if !rest.is_empty() {
            let queue = self.kept.entry(link).or_default();
            // Mostly nothing began to wait, and nothing is moved.
            std::mem::swap(queue, &mut rest);
            for one in rest.into_iter().rev() {
                queue.push_front(one);
            }
        }
    }
}

/// Bytes, about, that the answer to these ops may take.
pub(crate) fn answer_of(ops: &[OsdOp]) -> u64 {
    ops.iter().map(answer_to).fold(EACH, u64::saturating_add)
}

/// Of what is as long as it was once written nobody knows the length before it is read.
fn answer_to(o: &OsdOp) -> u64 {
    let out = match o.op {
        op::READ | op::SPARSE_READ | op::SYNC_READ | op::MAPEXT | op::CHECKSUM | op::CMPEXT => {
            match o.extent().length {
                0 => MOST,
                length => length,
            }
        }
        op::PGLS | op::PGLS_FILTER | op::PGNLS | op::PGNLS_FILTER => {
            o.pgls_args().0.saturating_mul(LISTED)
        }
        op::STAT
        | op::ASSERT_VER
        | op::IS_DIRTY
        | op::CMPXATTR
        | op::OMAP_CMP
        | op::NOTIFY
        | op::NOTIFY_ACK => 0,
        read if read & op::MODE_READ != 0 => MOST,
        _ => 0,
    };
    EACH + out.min(MOST)
}

/// A request in words: PG, object, the first of its ops and how many follow.
fn what_of(pg: PgId, object: &[u8], first: Option<&OsdOp>, count: usize) -> String {
    let first = first.map(ToString::to_string).unwrap_or_default();
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    format!("{pg} {} [{first}{more}]", object.escape_ascii())
}

impl OsdCore {
    /// Bytes of the payloads' budget that are free.
    pub(crate) fn free_memory(&self) -> usize {
        let pool = self.outside.pool();
        pool.budget().saturating_sub(pool.outstanding())
    }

    fn may_ask(&self, s: &Session, answer: u64) -> bool {
        s.peer.kind != EntityType::Client
            || s.owed.may_ask(s.link.unsent(), answer, self.free_memory())
    }

    /// Keeps a request of a client that owes too much; false if it may go on.
    pub(crate) fn keep_unread(&mut self, link: LinkId, answer: u64, m: &Message) -> bool {
        let Some(s) = self.sessions.get(&link) else { return false };
        if self.may_ask(s, answer) {
            return false;
        }
        s.link.hold();
        self.unread.keep(link, answer, m.clone());
        self.tell_when_taken(link);
        true
    }

    /// A connection of which something waits is to be looked at when its client takes some of its
    /// answers.
    fn tell_when_taken(&mut self, link: LinkId) {
        let Some(s) = self.sessions.get(&link) else { return };
        s.link.tell_when_taken();
        // It may have taken them just before.
        if self.unread.next(link).is_some_and(|answer| self.may_ask(s, answer)) {
            self.unread.look_at(link);
        }
    }

    /// Requests go on whose clients have read meanwhile.
    pub(crate) fn release_unread(&mut self) {
        for link in std::mem::take(&mut self.unread.changed) {
            let mut queue = self.unread.take(link);
            while let Some((answer, _)) = queue.front()
                && !self.unread.holds(link)
                && self.sessions.get(&link).is_some_and(|s| self.may_ask(s, *answer))
                && let Some((_, m)) = queue.pop_front()
            {
                self.message(link, m);
                self.perform();
            }
            let Some(s) = self.sessions.get(&link) else { continue };
            self.unread.put_back(link, queue);
            if self.unread.holds(link) {
                self.tell_when_taken(link);
            } else if !self.early.holds(link) {
                s.link.go_on();
            }
        }
    }

    /// Bytes that a peer may leave unread of what it did not ask for as an operation, or is told
    /// unasked.
    pub(crate) fn most_untold(&self) -> usize {
        2 * (LEAST as usize).max(self.free_memory() / PART)
    }

    /// Tells a client what happened to an object that it watches, or how its notification ended.
    pub(crate) fn tell_client(&mut self, link: LinkId, m: MWatchNotify) {
        let Some(s) = self.sessions.get(&link) else { return };
        let most = self.most_untold() as u64;
        let unsent = s.link.unsent() as u64;
        // Whoever owes nothing is told, however long it is.
        if unsent > 0 && unsent + (m.payload.len() + m.data.len()) as u64 > most {
            tracing::warn!(
                "osd.{}: {} does not read what it watches ({} bytes); its connection is closed",
                self.cfg.id,
                s.peer.name(),
                s.link.unsent()
            );
            s.link.close();
            return;
        }
        let mut m = m.into_message(0);
        let pool = self.outside.pool();
        (m.front, m.data) = (pool.count(m.front), pool.count(m.data));
        s.link.send(m);
    }

    /// Closes the connections of clients that have taken nothing for long, where memory is used up.
    pub(crate) fn close_stuck(&self, now: Duration) {
        if !self.outside.pool().over_budget() {
            return;
        }
        for s in self.sessions.values() {
            if s.peer.kind == EntityType::Client && s.link.stuck_for(now) >= STUCK {
                tracing::warn!(
                    "osd.{}: {} does not read what it asked for ({} bytes), and memory is used up; \
                        its connection is closed",
                    self.cfg.id,
                    s.peer.name(),
                    s.link.unsent()
                );
                s.link.close();
            }
        }
    }

    /// A request has ended.
    pub(crate) fn owed_no_more(&mut self, p: &Pending) {
        if let Some(s) = self.sessions.get_mut(&p.link) {
            let owed = s.owed.of(p.reading);
            *owed = owed.saturating_sub(p.answer);
            self.unread.look_at(p.link);
        }
    }

    /// For a request is read from the disk now, or (not `reading`) no more: it waits in its PG.
    pub(crate) fn reads_for(&mut self, op: OpId, reading: bool) {
        let Some(p) = self.requests.get_mut(op).filter(|p| p.reading != reading) else { return };
        p.reading = reading;
        if let Some(s) = self.sessions.get_mut(&p.link) {
            let before = s.owed.of(!reading);
            *before = before.saturating_sub(p.answer);
            *s.owed.of(reading) += p.answer;
            self.unread.look_at(p.link);
        }
    }

    /// The requests that are open; those, too, that wait for a map, or until their client has read
    /// more.
    pub(crate) fn open_ops(&self, now: Duration) -> Vec<Open> {
        let one = |link: LinkId, tid: u64, what: String| {
            let peer = &self.sessions.get(&link)?.peer;
            Some(shown(peer, tid, format!("osd_op({}:{tid} {what})", peer.name())))
        };
        let taken = self.requests.all().filter_map(|(id, p)| {
            let (object, first, count) = &p.what;
            let op = one(p.link, p.tid, what_of(p.pg, object, first.as_ref(), *count))?;
            let commits = p.trail.phase() == Phase::Commit;
            let pg = self.led(p.pg).filter(|_| commits).and_then(|pg| self.pgs.get(&pg));
            let awaited = pg.map(|pg| pg.not_durable_at(id)).unwrap_or_default();
            Some(Open::in_pg(op, p.begun, &p.trail, &awaited))
        });
        let unread = self.unread.all().map(|kept| (kept, "waiting until its client has read more"));
        let early = self.early.all().map(|kept| (kept, "wait for new map"));
        let kept = unread.chain(early).filter_map(|((link, m), what_for)| {
            let msg = MOsdOp::from_message(m).ok()?;
            let op =
                one(link, m.tid, what_of(msg.spg.pg, &msg.oid, msg.ops.first(), msg.ops.len()))?;
            Some(Open::kept(op, now, what_for))
        });
        taken.chain(kept).collect()
    }

    /// Bytes that the answer to a client's message may take.
    pub(crate) fn answer_asked(m: &Message) -> u64 {
        MOsdOp::from_message(m).map_or(0, |m| answer_of(&m.ops))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tid: u64) -> Message {
        Message { tid, ..Message::default() }
    }

    #[test]
    fn what_a_connection_brings_behind_a_kept_request_stays_behind_it() {
        let mut u = Unread::default();
        assert!(!u.keep_behind(1, || 0, &of(0)), "nothing waits");
        u.keep(1, 100, of(1));
        assert!(u.keep_behind(1, || 0, &of(2)) && u.keep_behind(1, || 5, &of(3)));
        assert!(!u.keep_behind(2, || 0, &of(0)), "other connections go on");
        let mut queue = u.take(1);
        assert!(u.kept.is_empty() && !u.holds(1), "what is taken is not in its own way");
        assert_eq!(queue.pop_front().map(|(reads, m)| (reads, m.tid)), Some((100, 1)));
        u.put_back(1, queue);
        let order: Vec<u64> = u.all().map(|(_, m)| m.tid).collect();
        assert_eq!(order, [2, 3]);
        let queue = u.take(1);
        u.keep(1, 1, of(9));
        u.put_back(1, queue);
        let order: Vec<u64> = u.all().map(|(_, m)| m.tid).collect();
        assert_eq!(order, [9, 2, 3], "one that was let go on and has to wait again stays first");
        let queue = u.take(1);
        u.put_back(1, queue.into_iter().skip(3).collect());
        assert!(u.kept.is_empty() && !u.holds(1), "nothing left, nothing held");
        u.keep(7, 1, of(1));
        u.closed(7);
        assert!(u.kept.is_empty());
    }

    #[test]
    fn only_connections_that_owe_less_than_before_are_looked_at() {
        let mut u = Unread::default();
        (0..1000).for_each(|link| u.keep(link, 1, of(link)));
        assert!(u.changed.is_empty());
        u.look_at(7);
        u.look_at(2000);
        assert_eq!(u.changed, BTreeSet::from([7]), "those of which nothing waits need no look");
    }

    #[test]
    fn what_waits_in_a_pg_holds_up_nothing_for_others_and_has_a_bound() {
        const FREE: usize = 256 << 20;
        let read = MOST + EACH;
        let mut owed = Owed::default();
        while !owed.waits_enough(FREE) {
            assert!(owed.may_ask(0, read, FREE), "{owed:?}");
            owed.waiting += read;
        }
        // The next is sent back to its client, if that can be told; and whatever waits, other PGs'
        // requests go on.
        assert!((8..10).contains(&(owed.waiting / MOST)), "{owed:?}");
        while owed.may_ask(0, read, FREE) {
            owed.reading += read;
        }
        assert!((15..17).contains(&(owed.reading / MOST)), "{owed:?}");
        assert!(
            !Owed { reading: 0, waiting: 64 << 20 }.may_ask(0, read, FREE),
            "of one that cannot be told"
        );
    }

    /// Any number of clients that never read, each with as many connections as it likes, leave
    /// memory to others.
    #[test]
    fn many_that_never_read_leave_a_part_to_others() {
        const BUDGET: usize = 64 << 20;
        for (clients, size) in [(1u32, 4u64 << 20), (4, 4 << 20), (12, 1 << 20), (40, 64 << 10)] {
            let mut owed = vec![0u64; clients as usize];
            for _ in 0..1000 {
                for i in 0..owed.len() {
                    let free = BUDGET - owed.iter().sum::<u64>() as usize;
                    let so_far = Owed { reading: owed[i], waiting: 0 };
                    if so_far.may_ask(0, size, free) {
                        owed[i] += size;
                    }
                }
            }
            let free = BUDGET as u64 - owed.iter().sum::<u64>();
            assert!(free > BUDGET as u64 / (u64::from(clients) + 8), "{clients}: {free}");
            assert!(owed.iter().all(|o| *o > 0), "nobody gets nothing");
        }
        assert!(Owed::default().may_ask(0, 4 << 20, 0), "one that owes nothing reads even then");
    }

    #[test]
    fn ops_count_for_what_their_answers_may_take() {
        let ops = |ops: &[OsdOp]| answer_of(ops) - EACH * (1 + ops.len() as u64);
        assert_eq!(ops(&[OsdOp::read(0, 4096), OsdOp::read(9, 100)]), 4196);
        assert_eq!(ops(&[OsdOp::read(0, 0)]), MOST, "all there is");
        assert_eq!(ops(&[OsdOp::read(0, u64::MAX)]), MOST);
        assert_eq!(ops(&[OsdOp::write_full(bytes::Bytes::from_static(b"x")), OsdOp::stat()]), 0);
        let start = spirula_types::HObject::min();
        for long in [
            OsdOp::omap_get_vals(b"", 1024, b""),
            OsdOp::omap_get_keys(b"", 1024),
            OsdOp::omap_get_header(),
            OsdOp::omap_get_vals_by_keys(&["k".into()]),
            OsdOp::getxattr(b"a"),
            OsdOp::getxattrs(),
            OsdOp::pgnls(u64::MAX, 0, &start),
            OsdOp::new(op::COPY_GET),
            OsdOp::new(op::LIST_WATCHERS),
            OsdOp::call("a", "b", b""),
        ] {
            assert_eq!(ops(&[long.clone(), long.clone()]), 2 * MOST, "{long:?}");
        }
        assert_eq!(ops(&[OsdOp::pgnls(10, 0, &start)]), 10 * LISTED);
        assert_eq!(
            ops(&[OsdOp::new(op::NOTIFY)]),
            0,
            "its number; what watchers answered comes by itself"
        );
        let many = spirula_runtime::limits::REQUESTS_PER_LINK as u64;
        assert!(
            many * answer_of(&[OsdOp::stat()]) <= LEAST,
            "whoever writes waits for no memory of readers"
        );
        assert!(answer_of(&[]) > 0, "nobody who does not read is answered without end");
    }
}
