//! The object store of one OSD: journal, checksums, extents, omap; durable.
//!
//! Owns one to three devices (files or block devices; module [`layout`]); format in
//! `docs/formats/store.md`. A [`Store`] is a synchronous engine owned by one thread. It
//! applies [transactions](spirula_types::transaction::Transaction) in memory at once and
//! makes them durable in order through a commit thread; a checkpoint thread moves what the
//! journal holds into the metadata KV.
//!
//! * submit: [`stage`] builds the change, [`Store::submit`] applies and queues it
//! * [`commit`] — queue → journal frame; [`checkpoint`] — overlay → KV
//! * [`read`], [`plan`], [`pins`] — objects, attributes, omap, listings; data is checked against
//!   its sums
//! * [`prepare`], [`signature`] — creation; [`paths`], [`layout`], [`superblock`] — which
//!   devices, whose, and where on them what is; [`open`] — replay
//! * [`device`], [`io`] — system calls or io_uring
//! * [`steps`] — threads, or an owner that lets the work happen
//! * [`onode`], [`segment`], [`refs`], [`compress`], [`sum`] — what an object is made of;
//!   [`pack`] — compression ahead of a submission
//! * [`layer`], [`maps`] — what clones share, and how it is read
//! * [`beside`] — changes too large for the journal; [`omaps`] — omaps, and copies of them
//! * [`alloc`], [`overlay`], [`gone`], [`redo`], [`journal`], [`keys`] — the other parts
//!
//! Invariants:
//! * data blocks are never overwritten while anything refers to them; a freed block is
//!   taken again only when its freeing is durable;
//! * the KV never holds what the journal has not made durable; the journal's tail never
//!   passes what the KV holds;
//! * bytes that fail their checksum are never returned;
//! * after a failed write or flush nothing more is written or acknowledged.
//!
//! Refuses: foreign, newer or damaged stores ([`StoreError::Refused`], nothing written);
//! being opened twice.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it owns devices and their threads; its caches are looked up, never gone through"
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

#[macro_use]
mod planted;

mod alloc;
mod beside;
mod cache;
mod caches;
mod checkpoint;
mod commit;
mod compress;
pub mod device;
mod error;
mod gone;
mod holes;
mod io;
mod journal;
mod kept;
mod keys;
mod kv;
mod layer;
mod layout;
mod maps;
mod omaps;
mod onode;
mod open;
mod overlay;
mod pack;
mod paths;
mod pins;
mod plan;
mod prepare;
mod read;
mod redo;
mod refs;
mod room;
mod segment;
mod signature;
mod stage;
mod steps;
mod store;
mod sum;
mod superblock;
#[cfg(test)]
mod tests;
pub mod tools;
mod view;

pub use alloc::BLOCK;
pub use caches::{Cached, Fragmentation};
pub use compress::{Algorithm, CompressionMode, PoolOptions};
pub use error::{Result, StoreError};
pub use io::{Io, IoChoice};
pub use pack::{Packed, Packing};
pub use paths::{Known, StorePaths};
pub use plan::ReadPlan;
pub use prepare::{Prepare, Prepared, extend};
pub use read::{ObjectStat, OmapPage, Read};
pub use steps::Devices;
pub use store::{PoolSpace, Statfs, Store, StoreOptions};
pub use sum::Checksum;
pub use superblock::{Identity, Role};
