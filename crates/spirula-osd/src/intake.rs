//! The intake of clients' requests: what becomes of each before a PG sees it.
//!
//! A client sends a request again only when a map or its connection gives it a reason. So every
//! request that comes in is handed to its PG, answered, kept, or dropped for a reason that makes
//! its client send it again: a map that it lacks and is sent here, a flag ("full") that will go,
//! the word that it may go on ([`crate::backoffs`]), the end of its connection.
//!
//! Requests of clients whose map is newer than ours are kept until that map comes ([`Early`]). A
//! client's map never gets older, so nothing that it sends later could be served sooner; therefore
//! its connection is not read on meanwhile. What is kept is then only what had been read already:
//! of all connections together what fits into the mailbox, and of each one a receive buffer more.

use crate::history::Trail;
use crate::osd::{OsdCore, Pending};
use crate::space::grows;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{MOsdOp, MOsdOpReply, osd::flag};
use spirula_messages::{Body, Message};
use spirula_pg::exec::Timeouts;
use spirula_pg::{ClientOp, PgEvent};
use spirula_runtime::LinkId;
use spirula_types::{EntityType, ReqId, errno};
use std::collections::{BTreeSet, VecDeque};

/// Requests kept of other OSDs, which share their connection with what must not wait. They read
/// sources of copies, few at a time, and ask again by themselves: of more, the oldest go.
const EARLY_OF_OSDS: usize = 1024;

/// Requests that carry a newer map than ours, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Early {
    kept: VecDeque<(LinkId, Message)>,
    of_osds: VecDeque<(LinkId, Message)>,
}

impl Early {
    /// Keeps one; true if its connection is to be held.
    fn keep(&mut self, link: LinkId, kind: EntityType, m: Message) -> bool {
        if kind == EntityType::Osd {
            self.of_osds.push_back((link, m));
            if self.of_osds.len() > EARLY_OF_OSDS {
                self.of_osds.pop_front();
            }
            return false;
        }
        self.kept.push_back((link, m));
        true
    }

    /// Keeps what its sender said after a request that is kept, and means to come after it; false
    /// if there is none.
    pub fn keep_behind(&mut self, link: LinkId, m: &Message) -> bool {
        let behind = self.kept.iter().any(|(l, _)| *l == link);
        if behind {
            self.kept.push_back((link, m.clone()));
        }
        behind
    }

    /// A connection is gone, and with it whoever wants answers.
    pub fn closed(&mut self, link: LinkId) {
        self.kept.retain(|(l, _)| *l != link);
        self.of_osds.retain(|(l, _)| *l != link);
    }

    /// What waits for a map, by connection.
    pub fn all(&self) -> impl Iterator<Item = (LinkId, &Message)> {
        self.kept.iter().chain(&self.of_osds).map(|(link, m)| (*link, m))
    }

    /// Is this connection held?
    pub fn holds(&self, link: LinkId) -> bool {
        self.kept.iter().any(|(l, _)| *l == link)
    }

    /// Those that are held.
    fn links(&self) -> BTreeSet<LinkId> {
        self.kept.iter().map(|(l, _)| *l).collect()
    }
}

impl OsdCore {
    /// A new map came: requests that waited for it go on, and so do connections that have none left
    /// that waits.
    pub(crate) fn early_go_on(&mut self) {
        let held = self.early.links();
        let Early { kept, of_osds } = std::mem::take(&mut self.early);
        for (link, m) in kept.into_iter().chain(of_osds) {
            self.message(link, m);
        }
        let still = self.early.links();
        for s in held
            .difference(&still)
            .filter(|l| !self.unread.holds(**l))
            .filter_map(|l| self.sessions.get(l))
        {
            s.link.go_on();
        }
    }

    /// For how long watches and notifications last that do not say it.
    fn timeouts(&self, ops: &[OsdOp]) -> Timeouts {
        let usual = Timeouts::default();
        if !ops.iter().any(|o| matches!(o.op, op::WATCH | op::NOTIFY)) {
            return usual;
        }
        let set = |name, usual: u32| {
            let set = self.cfg.settings.number(name).and_then(|n| u32::try_from(n).ok());
            set.unwrap_or(usual).max(1)
        };
        Timeouts {
            watch: set("osd_client_watch_timeout", usual.watch),
            notify: set("osd_default_notify_timeout", usual.notify),
        }
    }

    pub(crate) fn client_op(&mut self, id: LinkId, m: Message) {
        if self.life.is_stopping() {
            // The client sends it again, to whoever is next.
            return;
        }
        let Some(session) = self.sessions.get(&id) else { return };
        let msg = match MOsdOp::from_message(&m) {
            Ok(op) => op,
            Err(e) => {
                tracing::warn!(
                    "osd.{}: {}: {e}; closing the connection",
                    self.cfg.id,
                    session.peer.name()
                );
                session.link.close();
                return;
            }
        };
        if msg.epoch > self.maps.epoch() {
            if !self.pg_cfg.early_dropped() && self.early.keep(id, session.peer.kind, m) {
                session.link.hold();
            }
            return;
        }
        // Before anything is answered: a refusal is an answer, too, and so is a map.
        let answer = crate::unread::answer_of(&msg.ops);
        if self.keep_unread(id, answer, &m) {
            return;
        }
        let Some(session) = self.sessions.get(&id) else { return };
        // Its PG looks again when its turn comes: it may wait there.
        let blocked = self
            .maps
            .map()
            .is_some_and(|map| session.addrs.0.iter().any(|a| map.is_blocklisted(a)));
        if blocked {
            let reply = MOsdOpReply::to(&msg, self.maps.epoch(), -errno::ESHUTDOWN);
            session.link.send(reply.into_message(m.tid));
            return;
        }
        let forced = msg.has_flag(flag::FULL_FORCE);
        let no_room = |me: &Self| me.is_failsafe_full() || me.has_full_member(msg.spg.pg);
        let tries = msg.has_flag(flag::FULL_TRY);
        let full = |me: &Self| !forced && me.is_full() && grows(&msg.ops, tries);
        if grows(&msg.ops, false) && (full(self) || no_room(self)) {
            // As Ceph: a client that wants to know is told; the others get no answer and send
            // again when the map no longer says "full". Nobody can force his way to a store without
            // any room, be it ours or another member's; he is told, too (not so in Ceph), for the
            // flag makes him send nothing again.
            self.reporter.full(true);
            if msg.has_flag(flag::FULL_TRY) || forced {
                let reply = MOsdOpReply::to(&msg, self.maps.epoch(), -errno::ENOSPC);
                session.link.send(reply.into_message(m.tid));
            } else if !self.is_full_in_map() {
                self.reporter.dropped_full();
            }
            return;
        }
        // Clients name the primary's shard.
        let pg = msg.spg;
        if !self.pgs.contains_key(&pg) {
            // Not ours (any more): the client finds the right one with the newest map. If it has
            // that, it is wrong.
            let answer = match self.maps.since(msg.epoch) {
                Some(map) => map.into_message(0),
                None => MOsdOpReply::to(&msg, self.maps.epoch(), -errno::ENXIO).into_message(m.tid),
            };
            session.link.send(answer);
            return;
        }
        if !session.rights.may_operate(
            &session.peer,
            self.maps.map().map(|m| &**m),
            &msg,
            &self.classes,
        ) {
            let reply = MOsdOpReply::to(&msg, self.maps.epoch(), -errno::EPERM);
            session.link.send(reply.into_message(m.tid));
            return;
        }
        if !session.backoffs.is_empty() && session.backoffs.covers(pg, &msg.hobject()) {
            // Its client was told to hold it, and is told when to send it again.
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        // Until something is read for it; the PG may answer at once.
        session.owed.waiting += answer;
        let Some(session) = self.sessions.get(&id) else { return };
        let patience = self.patience(session);
        session.link.request_taken();
        let write = spirula_pg::exec::is_write(&msg.ops);
        let reqid = ReqId { name: session.peer.name(), tid: m.tid, inc: msg.client_inc as i32 };
        let (addrs, timeouts) = (session.addrs.clone(), self.timeouts(&msg.ops));
        let first = msg.ops.first().map(|op| OsdOp { indata: bytes::Bytes::new(), ..op.clone() });
        let pending = Pending {
            pg: pg.pg,
            link: id,
            tid: m.tid,
            begun: self.now.mono,
            trail: Trail::default(),
            write,
            bytes: m.data.len() as u64,
            answer,
            reading: false,
            what: (msg.oid.clone(), first, msg.ops.len()),
            image: self.images.of(self.now.mono, pg.pg.pool, &msg.locator.namespace, &msg.oid),
        };
        let op = self.requests.begin(pending);
        let op =
            ClientOp { id: op, conn: id, reqid, addrs, msg: Box::new(msg), patience, timeouts };
        self.feed_pg(pg, PgEvent::Client(op));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tid: u64) -> Message {
        Message { tid, ..Message::default() }
    }

    #[test]
    fn early_requests_of_clients_are_all_kept_in_order_and_hold_their_connection() {
        let mut e = Early::default();
        for tid in 0..10_000 {
            assert!(e.keep(1 + tid % 2, EntityType::Client, of(tid)), "nothing is read on");
        }
        assert_eq!(e.links(), BTreeSet::from([1, 2]));
        assert!(e.kept.iter().map(|(_, m)| m.tid).eq(0..10_000));
        assert!(
            e.keep_behind(1, &of(10_000)) && !e.keep_behind(3, &of(0)),
            "the order of a connection stays"
        );
        assert_eq!(e.kept.pop_back().map(|(l, m)| (l, m.tid)), Some((1, 10_000)));
        e.closed(2);
        assert_eq!(
            (e.kept.len(), e.links()),
            (5000, BTreeSet::from([1])),
            "nobody waits for the others"
        );
    }

    #[test]
    fn early_requests_of_osds_hold_nothing_and_are_bounded() {
        let mut e = Early::default();
        for tid in 0..2000 {
            assert!(!e.keep(3, EntityType::Osd, of(tid)));
        }
        assert_eq!(e.of_osds.len(), EARLY_OF_OSDS);
        assert_eq!(e.of_osds.back().map(|(_, m)| m.tid), Some(1999));
        assert!(e.links().is_empty());
    }
}
