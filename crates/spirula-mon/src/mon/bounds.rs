//! What bounds the requests that wait at a monitor, and whose room is whose.
//!
//! Clients of this monitor have the half of each bound, and wait at their connections for room in
//! it. What other monitors forward for theirs has a quarter beside that, and daemons the last one:
//! neither waits, and clients here cannot use it up.

use super::{Mon, Request, bytes_of, only_reads};
use crate::commands::Command;
use crate::event::{ConnId, MonEffect};
use crate::quorum::Ask;
use spirula_messages::Message;
use spirula_messages::ceph::kind;
use spirula_types::EntityType;

/// Requests waiting for the commit before theirs, the half of them clients'
/// ([`Mon::has_room_for`]).
pub(crate) const QUEUE_MAX: usize = 8192;
/// Bytes of one request of a client, and of a command of anybody, with its input. More than any
/// CRUSH map or keyring needs, and what is forwarded with it fits a frame of another monitor.
pub(crate) const REQUEST_MAX: usize = 4 << 20;
/// Bytes of its words alone.
pub(crate) const COMMAND_MAX: usize = 1 << 20;
/// Bytes of a command that only reads: none of these has an input of note, and whoever may read may
/// ask them at any rate.
pub(crate) const READ_MAX: usize = 64 << 10;
/// Bytes of requests that wait together, for a leader, a confirmation or a commit. Above it no
/// further one of more than [`READ_MAX`] is taken: a client's waits at its connection
/// ([`Mon::has_room_for`]), a daemon's is closed.
pub(crate) const WAITING_MAX: usize = 64 << 20;
/// Bytes of an operation on a pool: it has a name, and numbers.
pub(crate) const POOL_OP_MAX: usize = 4 << 10;

/// What a client's message is, as far as what it would wait for goes ([`Mon::room_for`]). To know
/// it a command is parsed, which may be a large one: whoever looks at a message again remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// It does not wait, or is no client's.
    Free,
    /// Any monitor answers it when a majority has given its word.
    Asked,
    /// The leader answers it then.
    Read,
    /// It changes something.
    Change,
    /// It changes something when it is its turn to.
    Turn,
}

/// What bounds the requests that wait: each of these has room of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// For a majority's word.
    Reads,
    /// For a leader, or its answer.
    Forwards,
    /// For the commit before theirs.
    Changes,
    /// For their turn to make an epoch.
    Turns,
    /// For any of that, with more than [`READ_MAX`] bytes: small ones go on where bytes are used
    /// up.
    Large,
}

impl Mon {
    /// Bytes of requests that wait for anything. Looked at only where a large one comes in.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.queue.iter().map(Request::bytes).sum::<usize>()
            + self.q.waiting_bytes()
            + self.snaps.bytes()
    }

    /// Is there room for what a client says, beside what waits already? Whoever feeds messages asks
    /// first, and leaves a client's for which there is none unread until there is: nothing of it is
    /// lost, and no connection closed. Only the bound that it would come under counts
    /// ([`Self::room_for`]).
    pub fn has_room_for(&self, conn: ConnId, m: &Message) -> bool {
        self.room_for(self.sort_of(conn, m), m).is_none_or(|(_, room)| room)
    }

    /// What a message is ([`Sort`]).
    pub fn sort_of(&self, conn: ConnId, m: &Message) -> Sort {
        if self.sessions.get(&conn).is_none_or(|s| s.peer.kind != EntityType::Client) {
            return Sort::Free;
        }
        match m.kind {
            kind::MON_GET_MAP | kind::AUTH | kind::PING => return Sort::Free,
            kind::MON_SUBSCRIBE | kind::MON_GET_VERSION | kind::STATFS | kind::GET_POOL_STATS => {
                return Sort::Asked;
            }
            _ => {}
        }
        let command = Command::in_message(m);
        let command = command.as_ref();
        match () {
            () if m.kind == kind::COMMAND && command.is_some_and(Command::is_own) => Sort::Free,
            () if only_reads(m, command) => Sort::Read,
            () if crate::snaps::is_of_turns(m, command) => Sort::Turn,
            () => Sort::Change,
        }
    }

    /// Among what a client's message of this sort would wait now, and whether there is room; `None`
    /// for what does not wait. Those who wait for one of these are no reason for others to.
    pub fn room_for(&self, sort: Sort, m: &Message) -> Option<(Bound, bool)> {
        let bound = match sort {
            Sort::Free => return None,
            Sort::Asked => Bound::Reads,
            Sort::Read | Sort::Change | Sort::Turn if !self.q.leads() => Bound::Forwards,
            Sort::Read => Bound::Reads,
            Sort::Change => Bound::Changes,
            Sort::Turn => Bound::Turns,
        };
        let queue = self.queue.len() < QUEUE_MAX / 2;
        let room = match bound {
            Bound::Reads => self.q.has_room_to_read(),
            Bound::Forwards => self.q.has_room_to_forward(),
            Bound::Turns => queue && self.snaps.has_room(),
            Bound::Changes | Bound::Large => queue,
        };
        let bytes = bytes_of(m);
        Some(match bytes > READ_MAX {
            true => (Bound::Large, room && self.waiting_bytes() + bytes <= WAITING_MAX),
            false => (bound, room),
        })
    }

    /// How many requests may wait together for this one to be one of them, of `most`. Clients of
    /// this monitor have the half and wait for room in it ([`Self::has_room_for`]). What another
    /// monitor forwards for a client comes here unasked: it has a quarter that they cannot use up,
    /// and the last one is for daemons.
    pub(crate) fn share(&self, ask: &Ask, most: usize) -> usize {
        let daemon =
            self.sessions.get(&ask.conn).is_some_and(|s| s.peer.kind != EntityType::Client);
        if ask.via.is_none() || daemon { most } else { most / 4 * 3 }
    }

    /// There is no room for a request of one who does not wait ([`Self::has_room_for`]): he has to
    /// ask again, over another connection. Another monitor does so anyway.
    pub(crate) fn no_room(&self, ask: &Ask, out: &mut Vec<MonEffect>) {
        if ask.via.is_none() {
            out.push(MonEffect::Close(ask.conn));
        }
    }
}
