//! What goes into the monitor and what comes out.

use spirula_messages::Message;
use spirula_quorum::{MemberId, Persist};
use spirula_types::{AddrVec, EntityName, EntityType};

/// A connection, numbered by the shell below 2^63; never reused within a run.
pub type ConnId = u64;

/// Who is at the other end of a connection, as authentication and the handshake found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Kind of entity.
    pub kind: EntityType,
    /// Its name without the kind (`admin` in `client.admin`, `3` in `osd.3`).
    pub id: String,
    /// Global id given in authentication; the number in `client.4221`.
    pub global_id: u64,
    /// Where it came from, with its nonce.
    pub addrs: AddrVec,
    /// Feature bits it offers.
    pub features: u64,
}

impl Peer {
    /// `client.admin`, the name options and keys go by.
    pub fn auth_name(&self) -> String {
        format!("{}.{}", self.kind.as_str(), self.id)
    }

    /// The numeric name: OSD number for OSDs, global id for everyone else.
    pub fn entity(&self) -> EntityName {
        match self.kind {
            EntityType::Osd => EntityName::new(self.kind, self.id.parse().unwrap_or(-1)),
            kind => EntityName::new(kind, self.global_id as i64),
        }
    }
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum MonEvent {
    /// A peer finished its handshake.
    SessionOpened {
        /// Number of the connection.
        conn: ConnId,
        /// Who it is.
        peer: Peer,
    },
    /// A peer sent a message.
    Message {
        /// Which connection it came over.
        conn: ConnId,
        /// The message.
        message: Message,
    },
    /// The connection is gone; nothing can be sent on it any more.
    SessionClosed {
        /// Number of the connection.
        conn: ConnId,
    },
    /// Everything up to the [`MonEffect::Persist`] of this number is durable.
    Persisted(u64),
    /// A tenth of a second has passed.
    Tick,
    /// What this monitor said is on its way, and there is more to say ([`crate::Mon::has_more`]).
    More,
}

/// Something to be done by the shell, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum MonEffect {
    /// Send a message; if the connection is gone, forget it.
    Send(ConnId, Message),
    /// Close the connection.
    Close(ConnId),
    /// Make this durable, in order, then feed [`MonEvent::Persisted`] back.
    Persist(Persist),
    /// From the next write on, the store belongs to this member.
    Member(MemberId),
    /// Send a message to the monitor of that name, over a link that it is the shell's business
    /// to keep. It may be lost.
    SendPeer(String, AddrVec, Message),
    /// This monitor cannot go on, for the reason given: it was removed, or its state is unusable.
    Stop(String),
}
