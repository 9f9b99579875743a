//! A client of a Ceph cluster, as state machines without I/O, clock or threads.
//!
//! * [`Monitors`] keeps one session with one of the monitors: it goes to the next one when a
//!   monitor is silent or gone, renews subscriptions, and repeats commands that have no answer.
//! * [`Objecter`] carries operations on objects to the OSDs that serve them: it finds the primary
//!   by the OSD map, sends again when a map or a connection changes, and holds back what an OSD
//!   (backoff) or the map (full, pause) asks it to.
//!
//! * [`Watches`] keeps watches on objects and carries notifications, over the [`Objecter`]'s
//!   connections: what is lost with an OSD's memory or a connection is asked for again, and what
//!   cannot be had again is told to the holder.
//!
//! They own no connection. Their outputs ask the shell to open, to close and to send; the shell
//! tells them what came of it. OSD, manager, administrator's commands and simulator use them, so
//! there is one way in which Spirula's processes behave as clients. Neither knows whether a
//! Spirula or a Ceph answers.
//!
//! Source of what clients do: `docs/protocol/mon.md` (sessions, subscriptions, commands) and
//! `docs/protocol/osd.md` (targets, resends, backoffs).

mod monitors;
mod mons;
mod objecter;
mod watches;

pub use monitors::{Answer, MonitorOut, Monitors};
pub use mons::Mons;
pub use objecter::{Objecter, ObjecterOut, Reply, Request, Target};
pub use watches::{PING as WATCH_PING, WatchOut, Watches};
