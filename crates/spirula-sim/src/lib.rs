//! The simulator: whole clusters in one thread and virtual time, from one seed.
//!
//! A [`World`] holds [`Actor`]s: the monitors' state machines, the OSD daemons themselves with
//! their stores, clients of both. Between them are simulated links (delay, loss of connections,
//! one-way cuts, partitions; every message crosses as bytes), below them simulated disks (a
//! crash loses what was not synced, and may leave part of it), around them faults: crashes,
//! pauses, clocks that are wrong and run wrong, lost and failing disks, orders that move data, in
//! some seeds rarer trouble ([`Extra`]).
//! Everything is drawn from the seed, so a seed gives the same run each time; its
//! [`Report::hash`] says so.
//!
//! [`run`] drives a cluster through a storm and then through peace, and checks what must hold
//! (module [`verify`]). [`Bug`]s are planted to see that the checks see.
//!
//! To put another daemon in, implement [`Actor`] for it; the world does not look inside.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")
)]

mod client;
mod commander;
mod content;
mod copies;
mod device;
mod disk;
mod extras;
mod faults;
mod fuzzer;
#[cfg(test)]
mod hand;
mod hardware;
mod logs;
mod manager;
mod monitor;
mod osd;
#[cfg(test)]
mod overtaken;
#[cfg(test)]
mod packed;
mod past;
mod rng;
mod scenario;
#[cfg(test)]
mod shortage;
#[cfg(test)]
mod silence;
mod stream;
mod tell;
mod troubles;
mod verify;
mod watching;
mod wire;
mod world;
mod wrong;

pub use extras::{Extra, Extras};
pub use rng::Rng;
pub use scenario::{Bug, Failure, Options, Report, run};
pub use world::{Actor, ActorId, End, Input, Local, Output, World};
pub use wrong::Sign;
