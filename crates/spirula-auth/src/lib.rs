//! cephx and capabilities, as values and state machines.
//!
//! Who somebody is, what proves it, and what they may do:
//!
//! * [`key`] — secrets of both kinds (`aes`, `aes256k`), [`keyring`] — the files they are kept in;
//! * [`monitor`] — the monitor's side of the exchange: proof of the key in, tickets out;
//! * [`service`] — the side of osd, mgr, mds (and of monitors towards each other): authorizers;
//! * [`client`] — the other end of both;
//! * [`ticket`], [`rotating`] — the tickets themselves, sealed with authenticated encryption under
//!   service keys that rotate;
//! * [`caps`] — Ceph's capability grammar for mon, osd, mgr and mds, and the decisions;
//! * [`db`] — the table of users with the semantics of `ceph auth …`.
//!
//! Pure: no clock, no I/O, no randomness. Time is a [`UTime`](spirula_encoding::UTime) argument,
//! random bytes come from an [`Entropy`] argument. All payloads are plain bytes; the messenger
//! carries them and does not look. Refuses by default: each refusal is its own [`AuthError`]
//! variant, and what leaves the process about it is one errno, so that a stranger learns nothing.
//!
//! Sources: `docs/protocol/README.md` §3 and `tests/data/vectors/cephx` (Ceph 16.2.15); RFC 8009;
//! for `aes256k` the key type and usage numbers of Ceph 20.2.4 and Linux 7.0
//! (`net/ceph/auth_x_protocol.h`).

mod base64;
pub mod caps;
mod cbc;
pub mod client;
pub mod db;
mod entity;
mod entropy;
mod error;
mod foreign;
pub mod key;
pub mod keyring;
mod krb5;
pub mod monitor;
pub mod rotating;
pub mod service;
#[cfg(test)]
mod tests;
pub mod ticket;
mod wire;

pub use base64::{decode as base64_decode, encode as base64_encode};
pub use entity::{EntityId, Service, Services};
pub use entropy::Entropy;
pub use error::{AuthError, METHOD_CEPHX, METHOD_NONE, check_method};
pub use key::{CryptoKey, KeyType, KeyTypes};
pub use wire::{MAX_PAYLOAD, MAX_TICKET, SECURE_SECRET_LEN};
