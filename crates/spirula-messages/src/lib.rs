//! Bodies of every message we speak: Ceph's client messages ([`ceph`]) and our own between
//! daemons ([`cluster`]).
//!
//! Pure. A [`Message`] is what travels: a header and up to three byte segments. Typed bodies
//! turn into one and are read from one; the messenger frames it and knows no body.

mod message;

pub mod ceph;
pub mod cluster;

pub use message::{Body, Message, MessageError};
