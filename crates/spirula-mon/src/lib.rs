//! The monitor: maps, commands, subscriptions, health; a state machine and its store.
//!
//! [`Mon`] is pure: events in ([`MonEvent`]), effects out ([`MonEffect`]); no clock, no
//! socket, no file. Its durable half ([`state::State`]) turns into key changes ([`MonTxn`])
//! which the monitors agree on before any of them says something that depends on them
//! (`spirula-quorum`; one monitor agrees with itself). [`MonStore`] keeps one monitor's part of
//! that.
//!
//! * [`mkfs`] — a new cluster's first state
//! * `quorum` — what needs a leader, what a majority; other monitors, forwarding, membership
//! * [`Mon`] — sessions, batches, replies; `osd`, `mgr`, `pools` hold the rules by subject
//! * `mds` — metadata servers: ranks, failover, who is sent which map
//! * [`commands`] — the command table and its handlers
//! * `access` — who may ask for what: the one place that decides
//! * [`view`] and [`report`] — what the cluster looks like, and how that is told
//! * [`config`] — options set by commands
//! * [`join`] — how new hosts come in
//!
//! It never sees data, and it does not decide what a PG does: only which PGs exist, where
//! they belong, and who is up.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")
)]

mod absent;
mod access;
mod beacons;
pub mod clog;
pub mod commands;
pub mod config;
mod diff;
pub mod done;
mod event;
mod failure;
pub mod image;
pub mod join;
pub mod kept;
mod kv;
mod mds;
mod merges;
mod mgr;
mod mkfs;
mod mon;
mod osd;
mod pairs;
mod placement;
pub mod pools;
mod proxy;
mod quorum;
pub mod report;
mod scrub;
mod session;
pub mod snaps;
pub mod state;
mod store;
pub mod time;
mod transitions;
mod txn;
pub mod view;
pub mod work;

pub use access::{Access, too_large};
pub use event::{ConnId, MonEffect, MonEvent, Peer};
pub use mds::ranks::check as check_fsmap;
pub use mkfs::{InitialPool, MkfsError, MkfsParams, NewMon, NewOsd, mkfs};
pub use mon::bounds::{Bound, Sort};
pub use mon::{CommandCtx, Entropy, Mon, OpenError, Opening, SHARES_PROCESS};
pub use osd::crush_weight_of_size;
pub use quorum::GlobalIds;
#[cfg(feature = "plant-bugs")]
pub use quorum::Poison;
pub use spirula_settings::options;
pub use state::LoadError;
pub use store::{MonStore, StoreError, copy::STORE_FILES, copy::copy_stores};
pub use time::Now;
pub use txn::MonTxn;
pub use view::ClusterView;
