//! The OSD daemon: PGs, a store and links put together.
//!
//! The OSD decides little by itself. [`OsdCore`] is what stands around the PG state machines of
//! `spirula-pg`: it routes messages to them, performs their effects on the store and the
//! links, follows the OSD map, answers `ceph tell`, and reports to the manager. It owns everything
//! without locks. It is told what happens, and when ([`OsdCore::handle`]), and asks what it needs
//! of [`Outside`]: no clock is read here, no socket opened, no thread started.
//!
//! * [`osd`]: events in, effects out
//! * [`outside`]: what the core needs of its surroundings
//! * [`agenda`], [`timers`]: what is to be done now, and what is due when
//! * [`outbox`], [`words`]: what is gathered for other OSDs and for the monitor until the end of a
//!   batch
//! * [`intake`], [`requests`]: what becomes of a client's request before a PG sees it; those under
//!   way
//! * [`backoffs`]: which requests clients hold back themselves
//! * [`unread`]: clients that ask for more than they read
//! * [`copies`]: getting an object of another PG for `copy_from`
//! * [`maps`], [`follow`]: following the map: PG views, splits, what clients lack
//! * [`links`], [`peers`], [`heartbeat`], [`trips`]: links to monitor, manager and other OSDs;
//!   pings and how long they take, read leases, failure reports
//! * [`patience`]: how much silence of a peer is unusual
//! * [`life`]: marked down wrongly, stopped, failed
//! * [`sched`], [`pace`], [`scrub`]: reservations and turns: what background work may do beside
//!   clients; when scrubs are due
//! * [`reader`], [`reads`]: the store as the PGs see it; reads in helper threads
//! * [`submit`]: transactions on their way to the disk
//! * [`space`], [`waits`]: how full the store is, and what a full one refuses; PGs that wait for
//!   room
//! * [`packing`]: data compressed by helper threads before it is submitted
//! * [`access`]: who may do what
//! * [`tell`], [`commands`], [`perf`], [`history`], [`report`], [`clog`], [`images`]: commands,
//!   counters, requests as operators see them, statistics, cluster log, what block images are asked
//!   for

mod access;
mod agenda;
mod backoffs;
mod classes;
mod clog;
mod commands;
mod copies;
mod follow;
mod heartbeat;
mod history;
mod images;
mod inside;
mod intake;
mod life;
mod links;
mod maps;
mod osd;
mod outbox;
mod outside;
mod pace;
mod packing;
mod passed;
mod patience;
mod peers;
mod perf;
mod reader;
mod reads;
mod report;
mod requests;
mod sched;
mod scrub;
mod space;
mod submit;
mod tell;
mod timers;
mod trips;
mod unread;
mod waits;
mod words;

pub use access::grants;
pub use osd::{Now, OsdConfig, OsdCore, OsdEvent};
pub use outside::{Outside, Watch};
pub use waits::NO_ROOM;
