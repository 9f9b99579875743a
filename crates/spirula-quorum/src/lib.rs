//! Agreement of the monitors: Raft by the `raft` crate, made deterministic and fed by events.
//!
//! [`Node`] is one member. In: time as ticks ([`Node::tick`]), frames of other members
//! ([`Node::receive`]), proposals, and "what you asked to store is stored"
//! ([`Node::persisted`]). Out: [`Effect`]s in order. It reads no clock, opens nothing, and
//! draws its election timeouts from the seed it was given.
//!
//! What it adds to the library:
//! * frames and records in our own encoding; no protobuf is read from wire or disk;
//! * every frame is checked against what the library would panic on, so that a confused or
//!   forgetful peer is refused by name ([`Refusal`]) instead of stopping this one;
//! * snapshots travel in chunks, each acknowledged;
//! * messages that promise something wait for the write they promise;
//! * reads by ReadIndex: a majority is asked *after* the read was, so a member that was paused
//!   or cut off never answers from the past, whatever its clock says.
//!
//! Membership changes one member at a time; a new one learns before it votes. A member that
//! lost its disk comes back under a new id: an id is a promise not to forget.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")
)]

mod frame;
mod log;
mod node;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;

pub use frame::FRAME_MAX;
pub use node::{Config, Effect, Node, NotLeader, OpenError, Persist, Refusal};
pub use snapshot::SNAPSHOT_MAX;
pub use types::{
    ConfigChange, Entry, EntryKind, HardState, MemberId, Members, Role, Snapshot, Status,
};
