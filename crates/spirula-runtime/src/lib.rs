//! Sockets, clocks and links: where the state machines meet the outside.
//!
//! A daemon is a state machine behind a mailbox ([`run`], [`Daemon`]). It talks over
//! [`Link`]s. A link to a daemon in the same process passes messages through memory; a link
//! to anywhere else is a TCP connection driven by the messenger's state machine. The daemon
//! cannot tell the difference, and the same bytes (a [`Message`]'s segments) travel on both.
//!
//! * [`Hub`] — the process: listeners, in-process addresses, the payload pool
//! * [`Link`] — one peer; [`NetEvent`] — what a peer did
//! * [`auth`] — who may come in, and with what to go out
//! * [`cephx`] — the same by keys and tickets
//! * [`MonLink`] — a daemon's session with the monitors
//! * [`Network`] — what a simulator puts in place of sockets and helper threads
//! * [`Daemon`], [`run`] — a daemon's loop; [`Reactors`] — the threads the loops run on
//! * [`clock`], [`entropy`] — the one place that reads the clock, and draws random numbers
//!
//! Limits: see [`limits`].
//!
//! [`Message`]: spirula_messages::Message

#![allow(clippy::disallowed_methods, reason = "it owns the clock and threads")]

mod answers;
pub mod auth;
pub mod cephx;
pub mod clock;
mod daemon;
pub mod door;
pub mod entropy;
mod hub;
pub mod limits;
mod link;
mod mon_link;
mod network;
mod reactor;
mod tcp;

pub use answers::{Answers, Room};
pub use daemon::{Daemon, Mailbox, mailbox, run};
pub use hub::{Hub, LinkMode, Listener, NetError, Service};
pub use link::{Ended, Link, LinkId, NetEvent, NetSink, Peer};
pub use mon_link::{MonLink, MonNews, MonWay, ToMonitor};
pub use network::Network;
pub use reactor::Reactors;
pub use spirula_client::{Answer, Mons};
