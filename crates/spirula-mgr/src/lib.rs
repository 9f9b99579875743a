//! The manager: PG statistics, rates, and the commands that report them.
//!
//! [`Mgr`] is a state machine: events in ([`MgrEvent`]: messages of clients, OSDs and the
//! monitor, time), effects out ([`MgrEffect`]). It owns the PG map (what OSDs report of
//! their PGs, pools and space), the rates computed from it, and the manager's commands
//! (`pg dump`, `osd df`…). It keeps nothing on disk: a new manager asks OSDs for full
//! reports. It decides nothing about data; the monitor does, on the digest it is sent.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod commands;
mod event;
mod foreign;
pub mod health;
mod images;
mod mgr;
mod network;
mod passed;
pub mod pgmap;
mod removals;
mod services;

pub use event::{ConnId, MgrConfig, MgrEffect, MgrEvent, Now, ObjectRead, Peer};
pub use mgr::Mgr;
