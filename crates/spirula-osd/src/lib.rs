//! The OSD daemon: PGs, a store and links put together.
//!
//! The OSD decides little by itself. [`Osd`] is the shell around the PG state machines of
//! `spirula-pg`: it routes messages to them, performs their effects on the store and the
//! links, follows the OSD map, answers `ceph tell`, and reports to the manager. It runs on one
//! event loop and owns everything without locks; the store's threads and the read helpers
//! answer through its mailbox.
//!
//! * [`daemon`]: events in, effects out: the loop's body
//! * [`intake`]: what becomes of a client's request before a PG sees it
//! * [`backoffs`]: which requests clients hold back themselves
//! * [`unread`]: clients that ask for more than they read
//! * [`copies`]: getting an object of another PG for `copy_from`
//! * [`maps`], [`follow`]: following the map: PG views, splits, what clients lack
//! * [`links`], [`peers`], [`heartbeat`], [`trips`]: links to monitor, manager and other OSDs; pings
//!   and how long they take, read leases, failure reports
//! * [`patience`]: how much silence of a peer is unusual
//! * [`life`]: marked down wrongly, stopped, failed
//! * [`sched`], [`pace`], [`scrub`]: reservations and turns: what background work may do beside
//!   clients; when scrubs are due
//! * [`reader`], [`reads`]: the store as the PGs see it; reads in helper threads
//! * [`space`], [`waits`]: how full the store is, and what a full one refuses; PGs that wait for room
//! * [`packing`]: data compressed by helper threads before it is submitted
//! * [`access`]: who may do what
//! * [`tell`], [`commands`], [`perf`], [`history`], [`report`], [`clog`]: commands, counters,
//!   requests as operators see them, statistics, cluster log

mod access;
mod backoffs;
mod classes;
mod clog;
mod commands;
mod copies;
mod daemon;
mod follow;
mod heartbeat;
mod history;
mod inside;
mod intake;
mod life;
mod links;
mod maps;
mod pace;
mod packing;
mod passed;
mod patience;
mod peers;
mod perf;
mod reader;
mod reads;
mod report;
mod sched;
mod scrub;
mod space;
mod tell;
mod trips;
mod unread;
mod waits;

pub use daemon::{Control, Osd, OsdConfig, OsdEvent};
pub use waits::NO_ROOM;
