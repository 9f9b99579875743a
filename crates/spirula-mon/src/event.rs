//! What goes into the monitor and what comes out.

use crate::txn::MonTxn;
use spirula_messages::Message;
use spirula_types::{AddrVec, EntityName, EntityType};

/// A connection, numbered by the shell; never reused within a run.
pub type ConnId = u64;
/// A commit, numbered by the monitor from 1.
pub type CommitId = u64;

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
    /// The commit is durable.
    Committed(CommitId),
    /// Time has passed; expected at least once a second.
    Tick,
}

/// Something to be done by the shell, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum MonEffect {
    /// Send a message; if the connection is gone, forget it.
    Send(ConnId, Message),
    /// Close the connection.
    Close(ConnId),
    /// Make this durable, then feed [`MonEvent::Committed`] back. There is at most one
    /// commit under way.
    Commit(CommitId, MonTxn),
}
