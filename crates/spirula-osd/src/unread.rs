//! Clients that ask for more than they read.
//!
//! What is read for a client takes payload memory until the client has taken it, and that memory is everybody's. So a client's
//! connection may have open, as bytes that it asked to read and bytes of answers that it has not taken, a quarter of what is free
//! ([`PayloadPool`](spirula_buffer::PayloadPool)): however many do not read, a part stays for the others. Whoever owes nothing may always read.
//!
//! A request that would be too much is kept here, before its PG knows of it, so that nobody's request for the same object waits behind it,
//! and all that its connection brings after it waits behind, in order. The connection is held meanwhile: what is kept is what had been
//! read from it already, at most one receive buffer and what was in the mailbox.
//!
//! If the memory is used up all the same, by very many of them, those that have taken nothing for [`STUCK`] lose their connections,
//! and with it what was read for them. They ask again when they go on.

use crate::daemon::{Osd, Session, shown};
use crate::history::Open;
use spirula_messages::ceph::MOsdOp;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::{Body, Message};
use spirula_runtime::LinkId;
use spirula_types::{EntityType, PgId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Time without taking anything after which a client counts as stuck.
const STUCK: Duration = Duration::from_secs(5);
/// Bytes that a request counts for at most, since many clients ask for more than there is.
const MOST: u64 = 4 << 20;
/// The part of what is free that one connection may have.
const PART: usize = 4;

/// Requests that wait until their clients have read more, by connection, in order of arrival; with the bytes each asks for.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    kept: BTreeMap<LinkId, VecDeque<(u64, Message)>>,
}

impl Unread {
    fn keep(&mut self, link: LinkId, reads: u64, m: Message) {
        self.kept.entry(link).or_default().push_back((reads, m));
    }

    /// Keeps what its sender said after a request that is kept, and means to come after it; false if there is none.
    pub fn keep_behind(&mut self, link: LinkId, reads: impl FnOnce() -> u64, m: &Message) -> bool {
        let Some(queue) = self.kept.get_mut(&link) else { return false };
        queue.push_back((reads(), m.clone()));
        true
    }

    /// Does anything of this connection wait?
    pub fn holds(&self, link: LinkId) -> bool {
        self.kept.contains_key(&link)
    }

    /// Does anything?
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A connection is gone, and with it whoever wants answers.
    pub fn closed(&mut self, link: LinkId) {
        self.kept.remove(&link);
    }

    /// What waits, by connection.
    pub fn all(&self) -> impl Iterator<Item = (LinkId, &Message)> {
        self.kept.iter().flat_map(|(link, queue)| queue.iter().map(|(_, m)| (*link, m)))
    }

    /// Takes all that waits of a connection.
    fn take(&mut self, link: LinkId) -> VecDeque<(u64, Message)> {
        self.kept.remove(&link).unwrap_or_default()
    }

    /// Puts back what still has to wait, behind what began to wait meanwhile.
    fn put_back(&mut self, link: LinkId, rest: VecDeque<(u64, Message)>) {
        if !rest.is_empty() {
            self.kept.entry(link).or_default().extend(rest);
        }
    }
}

/// Bytes that these ops ask to read.
pub(crate) fn reads_of(ops: &[OsdOp]) -> u64 {
    let of = |o: &OsdOp| match o.op {
        op::READ | op::SPARSE_READ | op::SYNC_READ => match o.extent().length {
            0 => MOST,
            length => length,
        },
        _ => 0,
    };
    ops.iter().map(of).fold(0, u64::saturating_add).min(MOST)
}

/// A request in words: PG, object, the first of its ops and how many follow.
fn what_of(pg: PgId, object: &[u8], first: Option<&OsdOp>, count: usize) -> String {
    let first = first.map(ToString::to_string).unwrap_or_default();
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    format!("{pg} {} [{first}{more}]", object.escape_ascii())
}

/// May a client that owes `owed` bytes ask for so many more, while so many are free?
fn may_ask(owed: u64, reads: u64, free: usize) -> bool {
    reads == 0 || owed == 0 || owed + reads <= (free / PART) as u64
}

impl Osd {
    fn may_read(&self, s: &Session, reads: u64) -> bool {
        let pool = self.hub.pool();
        let free = pool.budget().saturating_sub(pool.outstanding());
        s.peer.kind != EntityType::Client || may_ask(s.asked + s.link.unsent() as u64, reads, free)
    }

    /// Keeps a request of a client that owes too much; false if it may go on.
    pub(crate) fn keep_unread(&mut self, link: LinkId, reads: u64, m: &Message) -> bool {
        let Some(s) = self.sessions.get(&link) else { return false };
        if self.may_read(s, reads) {
            return false;
        }
        s.link.hold();
        self.unread.keep(link, reads, m.clone());
        true
    }

    /// Requests go on whose clients have read meanwhile.
    pub(crate) fn release_unread(&mut self) {
        let links: Vec<LinkId> = self.unread.kept.keys().copied().collect();
        for link in links {
            let mut queue = self.unread.take(link);
            while let Some((reads, _)) = queue.front()
                && !self.unread.holds(link)
                && self.sessions.get(&link).is_some_and(|s| self.may_read(s, *reads))
                && let Some((_, m)) = queue.pop_front()
            {
                self.message(link, m);
                self.perform();
            }
            let Some(s) = self.sessions.get(&link) else { continue };
            self.unread.put_back(link, queue);
            if !self.unread.holds(link) && !self.early.holds(link) {
                s.link.go_on();
            }
        }
    }

    /// Closes the connections of clients that have taken nothing for long, where memory is used up.
    pub(crate) fn close_stuck(&self, now: Duration) {
        if !self.hub.pool().over_budget() {
            return;
        }
        for s in self.sessions.values() {
            if s.peer.kind == EntityType::Client && s.link.stuck_for(now) >= STUCK {
                tracing::warn!(
                    "osd.{}: {} does not read what it asked for ({} bytes), and memory is used up; its connection is closed",
                    self.cfg.id,
                    s.peer.name(),
                    s.link.unsent()
                );
                s.link.close();
            }
        }
    }

    /// A request that asked for so many bytes has ended.
    pub(crate) fn asked_no_more(&mut self, link: LinkId, reads: u64) {
        if let Some(s) = self.sessions.get_mut(&link) {
            s.asked = s.asked.saturating_sub(reads);
        }
    }

    /// The requests that are open; those, too, that wait until their client has read more, whose ages nobody notes.
    pub(crate) fn open_ops(&self, now: Duration) -> Vec<Open> {
        let one = |link: LinkId, tid: u64, what: String, age: Duration, stands: &'static str| {
            let peer = &self.sessions.get(&link)?.peer;
            let op = shown(peer, tid, format!("osd_op({}:{tid} {what})", peer.name()));
            Some(Open { op, age, stands })
        };
        let taken = self.ops.values().filter_map(|p| {
            let (object, first, count) = &p.what;
            let what = what_of(p.pg, object, first.as_ref(), *count);
            one(p.link, p.tid, what, now.saturating_sub(p.begun), "started")
        });
        let kept = self.unread.all().filter_map(|(link, m)| {
            let msg = MOsdOp::from_message(m).ok()?;
            let what = what_of(msg.spg.pg, &msg.oid, msg.ops.first(), msg.ops.len());
            one(link, m.tid, what, Duration::ZERO, "waiting until its client has read more")
        });
        taken.chain(kept).collect()
    }

    /// Bytes that a message of a client asks to read.
    pub(crate) fn reads_asked(m: &Message) -> u64 {
        MOsdOp::from_message(m).map_or(0, |m| reads_of(&m.ops))
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
        assert!(u.is_empty() && !u.holds(1), "what is taken is not in its own way");
        assert_eq!(queue.pop_front().map(|(reads, m)| (reads, m.tid)), Some((100, 1)));
        u.put_back(1, queue);
        let order: Vec<u64> = u.all().map(|(_, m)| m.tid).collect();
        assert_eq!(order, [2, 3]);
        let queue = u.take(1);
        u.put_back(1, queue.into_iter().skip(2).collect());
        assert!(u.is_empty() && !u.holds(1), "nothing left, nothing held");
        u.keep(7, 1, of(1));
        u.closed(7);
        assert!(u.is_empty());
    }

    /// Any number of clients that never read, each with as many connections as it likes, leave memory to others.
    #[test]
    fn many_that_never_read_leave_a_part_to_others() {
        const BUDGET: usize = 64 << 20;
        for (clients, size) in [(1u32, 4u64 << 20), (4, 4 << 20), (12, 1 << 20), (40, 64 << 10)] {
            let mut owed = vec![0u64; clients as usize];
            for _ in 0..1000 {
                for i in 0..owed.len() {
                    let free = BUDGET - owed.iter().sum::<u64>() as usize;
                    if may_ask(owed[i], size, free) {
                        owed[i] += size;
                    }
                }
            }
            let free = BUDGET as u64 - owed.iter().sum::<u64>();
            assert!(free > BUDGET as u64 / (u64::from(clients) + 8), "{clients}: {free}");
            assert!(owed.iter().all(|o| *o > 0), "nobody gets nothing");
        }
        assert!(may_ask(0, 4 << 20, 0), "one that owes nothing reads even then");
    }

    #[test]
    fn ops_count_for_what_they_read() {
        assert_eq!(reads_of(&[OsdOp::read(0, 4096), OsdOp::read(9, 100)]), 4196);
        assert_eq!(reads_of(&[OsdOp::read(0, 0)]), MOST, "all there is");
        assert_eq!(reads_of(&[OsdOp::read(0, u64::MAX), OsdOp::read(0, u64::MAX)]), MOST);
        assert_eq!(reads_of(&[OsdOp::write_full(bytes::Bytes::from_static(b"x"))]), 0);
    }
}
