//! The lab: `spirula bench` measures a cluster, `spirula drill` breaks it under a verifying load,
//! `spirula report` shows it.
//!
//! It is a client like any other ([`session`], on `spirula-client`), so that it works on a Spirula
//! and on a Ceph alike. Besides that it looks at this machine ([`used`]) and starts the field's
//! tools where they are installed (fio, mariadb).
//!
//! * [`load`] — what is asked next, and how long it took: a state machine; [`record`] — what it
//!   found
//! * [`generator`] — loads that come from several processes and hosts
//! * [`objects`], [`disk`], [`net`], [`block`], [`mysql`], [`s3`], [`all`], [`compare`] — the
//!   measurements; [`expect`] — what the hardware could have given
//! * [`drill`] — what breaks, and what came of it
//! * [`mounted`] — an image as a directory
//! * [`litter`] — a run that was killed leaves nothing behind
//! * [`signal`] — only who is meant is killed
//! * [`results`] — the files that a run leaves; [`report`] — one page of any number of them
//!
//! It owns its event loops and threads, the clock, and the processes that it starts.

#![allow(clippy::disallowed_methods, reason = "it measures: it owns clocks and threads")]

pub mod all;
pub mod args;
pub mod block;
pub mod compare;
pub mod disk;
pub mod drill;
pub mod expect;
pub mod generator;
pub mod litter;
pub mod load;
pub mod mounted;
pub mod mysql;
pub mod net;
pub mod objects;
pub mod path;
pub mod progress;
pub mod record;
pub mod report;
pub mod results;
pub mod s3;
pub mod session;
pub mod shown;
pub mod signal;
pub mod used;

/// What nearly every module uses.
mod prelude {
    pub use crate::record::round;
    pub use anyhow::{Context, Result};
    pub use bytes::Bytes;
    pub use serde_json::{Value, json};
    pub use std::path::{Path, PathBuf};
    pub use std::time::Duration;
}

pub(crate) use anyhow::bail;

/// A lock whose holder may have panicked: what it protects is whole at every moment.
fn locked<T>(m: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
