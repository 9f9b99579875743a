//! The peers of a monitor or manager, and what they were told and have not taken.
//!
//! An answer takes memory until its peer has taken it. All that peers of one daemon have not taken
//! is meant to stay within a share of the process's budget ([`Answers::share`]), whatever is asked
//! and however many ask:
//!
//! * A client that has [`ASKED`] bytes or a quarter of what is free unread, [`OPEN`] commands or
//!   [`OPEN_OPS`] operations on pools unanswered, or something to say for which its daemon has no
//!   room, is asked nothing more: what it says waits here, in order, and its connection is held.
//!   What waits is what had been read from it, at most one receive buffer and what was in the
//!   mailbox. A client that owes nothing may always ask, so one that reads is never closed for what
//!   it asks, however long the answers are. The connection answers meanwhile for what it does not
//!   read, so that a client does not take its daemon for dead.
//! * Whose turn it is among those who wait goes round, one message each. Who waits for room in one
//!   of the daemon's bounds ([`Room`]) is not overtaken by who comes later and wants the same: each
//!   has a ticket from when it was looked at first.
//! * A client that takes nothing for [`STUCK`] loses its connection when there is more to say and
//!   as much waits as may, and in any case while the share is used up.
//! * Where twice the share is held, those lose theirs at once who have most unread, and with it
//!   what waits for them.
//!
//! What is left over is an answer for each client that just asked, and [`ASKED`] for each, for as
//! long as it is not stuck.
//!
//! Daemons of the cluster are believed to read; one that has not taken [`Answers::of_daemon`] bytes
//! opens another connection.

use crate::hub::Hub;
use crate::link::{Link, LinkId, Peer};
use crate::{clock, limits};
use spirula_messages::Message;
use spirula_messages::ceph::kind;
use spirula_types::EntityType;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Bytes of answers that a client has not taken, above which none of its requests is begun.
const ASKED: usize = 1 << 20;
/// The part of what is free that counts in place of that, where that is less.
const PART: usize = 4;
/// Commands of one client that are not answered, above which no other is begun: each answer is made
/// whole before it is sent.
const OPEN: usize = 16;
/// Operations on pools of one client that are not answered, above which no other is begun. Their
/// answers are small, and a monitor does many of them together; it remembers so many answers of one
/// client for when that asks again (`spirula_mon`, `done`).
const OPEN_OPS: usize = 256;
/// Those who wait for room at their daemon that are looked at in one go.
const ROOM_LOOKS: usize = 64;
/// Time without taking anything after which a client counts as stuck.
const STUCK: Duration = Duration::from_secs(5);
/// The least and the most of a share, bytes.
const SHARES: (usize, usize) = (8 << 20, limits::ANSWERS_UNREAD);

/// Whether a daemon has room for what a client says. A bound is known here by its number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It takes any number of these.
    Always,
    /// It has, in this of its bounds.
    In(u8),
    /// It has none in this one.
    Full(u8),
}

/// Something that was said and waits, and what its daemon says that it is.
type Kept<S> = (Message, S);

struct One<S> {
    link: Link,
    client: bool,
    /// Commands that are not answered, by their transactions.
    open: BTreeSet<u64>,
    /// The same of operations on pools.
    open_ops: BTreeSet<u64>,
    /// What it said and that waits.
    kept: VecDeque<Kept<S>>,
    /// Since when its daemon has had no room for what it says next.
    ticket: Option<Ticket>,
}

/// The number of a look for room that was in vain, in the order of these. The next word of the same
/// peer has another.
type Ticket = u64;

impl<S> One<S> {
    fn may_ask(&self, m: &Message, free: usize) -> bool {
        let unsent = self.link.unsent();
        let few = match m.kind {
            _ if is_command(m) => self.open.len() < OPEN,
            kind::POOL_OP => self.open_ops.len() < OPEN_OPS,
            _ => true,
        };
        few && (unsent == 0 || unsent <= ASKED.min(free / PART))
    }

    /// May what waits longest be asked?
    fn may_ask_next(&self, free: usize) -> bool {
        self.kept.front().is_none_or(|(m, _)| self.may_ask(m, free))
    }

    /// It is asked this.
    fn ask(&mut self, m: &Message) {
        if is_command(m) {
            self.open.insert(m.tid);
        } else if m.kind == kind::POOL_OP {
            self.open_ops.insert(m.tid);
        }
    }

    /// It is answered this; true if it was asked.
    fn answer(&mut self, m: &Message) -> bool {
        is_answer(m) && self.open.remove(&m.tid)
            || m.kind == kind::POOL_OP_REPLY && self.open_ops.remove(&m.tid)
    }
}

/// The peers of one daemon. `S` is what that knows of a message when it has looked at it once
/// ([`Answers::take`]).
pub struct Answers<S = ()> {
    share: usize,
    /// Bytes that they have not taken, as of the last look, and all that was said since.
    held: usize,
    all: BTreeMap<LinkId, One<S>>,
    /// Those who may be asked what waits.
    changed: BTreeSet<LinkId>,
    /// Who of them was asked last.
    last: LinkId,
    /// Those for whose next word their daemon had no room, by the bound, in their order.
    crowded: BTreeMap<u8, BTreeMap<Ticket, LinkId>>,
    tickets: Ticket,
}

fn size(m: &Message) -> usize {
    m.front.len() + m.middle.len() + m.data.len()
}

fn is_command(m: &Message) -> bool {
    matches!(m.kind, kind::MON_COMMAND | kind::COMMAND | kind::MGR_COMMAND)
}

fn is_answer(m: &Message) -> bool {
    matches!(m.kind, kind::MON_COMMAND_ACK | kind::COMMAND_REPLY | kind::MGR_COMMAND_REPLY)
}

impl<S: Copy> Answers<S> {
    /// Nobody's, with a share of `hub`'s memory: an eighth of what payloads may take.
    pub fn new(hub: &Hub) -> Self {
        let share = (hub.pool().budget() / 8).clamp(SHARES.0, SHARES.1);
        let (all, changed, crowded) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { share, held: 0, all, changed, last: 0, crowded, tickets: 0 }
    }

    /// What peers together may leave unread, bytes.
    pub fn share(&self) -> usize {
        self.share
    }

    /// What a daemon of the cluster may leave unread, bytes.
    pub fn of_daemon(&self) -> usize {
        (2 * self.share).min(limits::ANSWERS_UNREAD)
    }

    fn free(&self) -> usize {
        self.share.saturating_sub(self.held)
    }

    /// A peer is there.
    pub fn insert(&mut self, link: Link, peer: &Peer) {
        let client = peer.kind == EntityType::Client;
        let (open, open_ops) = (BTreeSet::new(), BTreeSet::new());
        self.all.insert(
            link.id(),
            One { link, client, open, open_ops, kept: VecDeque::new(), ticket: None },
        );
    }

    /// A connection has ended; false if it was of no peer, or was closed here.
    pub fn remove(&mut self, id: LinkId) -> bool {
        self.changed.remove(&id);
        self.all.remove(&id).is_some()
    }

    /// Closes a peer's connection and forgets it.
    pub fn close(&mut self, id: LinkId) {
        self.changed.remove(&id);
        if let Some(one) = self.all.remove(&id) {
            one.link.close();
        }
    }

    /// A peer said something: it is given back if it is its turn and the daemon has `room` for it,
    /// and else waits ([`Answers::due`]). `sort` is what the daemon looks at for that, found once
    /// for each message.
    pub fn take(
        &mut self,
        id: LinkId,
        m: Message,
        sort: impl FnOnce(&Message) -> S,
        room: impl FnOnce(S, &Message) -> Room,
    ) -> Option<Message> {
        let free = self.free();
        let Some(one) = self.all.get_mut(&id).filter(|one| one.client) else { return Some(m) };
        let first = one.kept.is_empty();
        let fits = first && one.may_ask(&m, free);
        let sort = sort(&m);
        let full = match fits.then(|| room(sort, &m)) {
            Some(Room::Full(bound)) => Some(bound),
            // Others came before it.
            Some(Room::In(bound)) if self.crowded.contains_key(&bound) => Some(bound),
            Some(Room::In(_) | Room::Always) => {
                one.ask(&m);
                return Some(m);
            }
            None => None,
        };
        one.link.hold();
        one.kept.push_back((m, sort));
        match full {
            Some(bound) => self.is_crowded(id, bound),
            None if first => self.await_taken(id),
            None => {}
        }
        None
    }

    /// Whoever waits is looked at when it takes something.
    fn await_taken(&mut self, id: LinkId) {
        let free = self.free();
        let Some(one) = self.all.get(&id) else { return };
        one.link.tell_when_taken();
        // It may have taken all just before.
        if one.may_ask_next(free) {
            self.changed.insert(id);
        }
    }

    /// The daemon has no room in that bound for what a peer says next, or others came before it.
    fn is_crowded(&mut self, id: LinkId, bound: u8) {
        if let Some(one) = self.all.get_mut(&id) {
            let ticket = *one.ticket.get_or_insert_with(|| {
                self.tickets += 1;
                self.tickets
            });
            self.crowded.entry(bound).or_default().insert(ticket, id);
        }
    }

    /// A peer has taken some of what waited for it.
    pub fn taken(&mut self, id: LinkId) {
        if self.all.get(&id).is_some_and(|one| !one.kept.is_empty()) {
            self.changed.insert(id);
        }
    }

    /// The daemon may have room again: some of those who waited for that are asked by
    /// [`Answers::due`], the first first.
    pub fn look_for_room(&mut self) {
        for waiting in self.crowded.values_mut() {
            for (_, id) in (0..ROOM_LOOKS).map_while(|_| waiting.pop_first()) {
                if self.all.contains_key(&id) {
                    self.changed.insert(id);
                }
            }
        }
        self.crowded.retain(|_, waiting| !waiting.is_empty());
    }

    /// Something that had to wait and whose turn it is now, and for which the daemon has `room`.
    /// The owner asks until there is nothing more, whenever it has handled what came.
    pub fn due(&mut self, room: impl Fn(S, &Message) -> Room) -> Option<(LinkId, Message)> {
        loop {
            let after = self.changed.range(self.last.saturating_add(1)..).next();
            let id = *after.or_else(|| self.changed.first())?;
            let free = self.free();
            let Some(one) = self.all.get_mut(&id) else {
                self.changed.remove(&id);
                continue;
            };
            if !one.may_ask_next(free) {
                self.changed.remove(&id);
                self.await_taken(id);
                continue;
            }
            let before = |bound: u8| self.crowded.get(&bound).and_then(|all| all.keys().next());
            let full = match one.kept.front().map(|(m, sort)| room(*sort, m)) {
                Some(Room::Full(bound)) => Some(bound),
                Some(Room::In(bound))
                    if before(bound).is_some_and(|b| one.ticket.is_none_or(|t| *b < t)) =>
                {
                    Some(bound)
                }
                Some(Room::In(_) | Room::Always) | None => None,
            };
            if let Some(bound) = full {
                self.changed.remove(&id);
                self.is_crowded(id, bound);
                continue;
            }
            self.last = id;
            one.ticket = None;
            let m = one.kept.pop_front();
            if one.kept.is_empty() {
                self.changed.remove(&id);
                one.link.go_on();
            }
            let Some((m, _)) = m else { continue };
            one.ask(&m);
            return Some((id, m));
        }
    }

    /// Has a peer taken all that was said to it?
    pub fn has_taken_all(&self, id: LinkId) -> bool {
        self.all.get(&id).is_none_or(|one| one.link.unsent() == 0)
    }

    /// Says something to a peer, or closes its connection: it does not read. False then.
    pub fn send(&mut self, id: LinkId, m: Message) -> bool {
        let (free, of_daemon) = (self.free(), self.of_daemon());
        let Some(one) = self.all.get_mut(&id) else { return true };
        if one.link.is_closed() {
            return true;
        }
        if one.answer(&m) && !one.kept.is_empty() {
            self.changed.insert(id);
        }
        let unsent = one.link.unsent();
        let goes_too_far = match one.client {
            true => {
                unsent > ASKED.max(free / PART) && one.link.stuck_for(clock::monotonic()) >= STUCK
            }
            false => unsent > of_daemon,
        };
        if goes_too_far {
            tracing::warn!(
                id,
                unsent,
                "a peer does not read what it asked for; its connection is closed"
            );
            one.link.abandon();
            return false;
        }
        self.held = self.held.saturating_add(size(&m));
        one.link.send(m);
        if self.held > 2 * self.share {
            self.shed();
        }
        self.all.get(&id).is_none_or(|one| !one.link.is_closed())
    }

    fn count(&mut self) {
        // What was closed here is on its way out, and nobody else's fault.
        self.held = self
            .all
            .values()
            .filter(|one| !one.link.is_closed())
            .map(|one| one.link.unsent())
            .sum();
    }

    /// Those with most unread lose it, until what is left is less than twice the share, or little
    /// for each.
    fn shed(&mut self) {
        self.count();
        while self.held > 2 * self.share {
            let open = self.all.values().filter(|one| one.client && !one.link.is_closed());
            let Some(most) = open.max_by_key(|one| one.link.unsent()) else { return };
            let unsent = most.link.unsent();
            if unsent <= ASKED {
                return;
            }
            tracing::warn!(
                id = most.link.id(),
                unsent,
                held = self.held,
                "a client does not read what it asked for, and memory is used up; its connection \
                    is closed"
            );
            most.link.abandon();
            self.held -= unsent.min(self.held);
        }
    }

    /// Looks at all of them, every now and then: what is held, and who is stuck while the share is
    /// used up.
    pub fn look(&mut self) {
        self.count();
        if self.held <= self.share {
            return;
        }
        let now = clock::monotonic();
        for one in self.all.values().filter(|one| one.client && !one.link.is_closed()) {
            if one.link.stuck_for(now) >= STUCK {
                tracing::warn!(
                    id = one.link.id(),
                    unsent = one.link.unsent(),
                    held = self.held,
                    "a client does not read what it asked for, and memory is used up; its \
                        connection is closed"
                );
                one.link.abandon();
            }
        }
    }
}
