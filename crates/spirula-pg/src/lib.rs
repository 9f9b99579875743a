//! Placement groups without I/O: op execution, log, replication, peering, recovery.
//!
//! One [`Pg`] is what one OSD knows and does about one placement group: events in
//! ([`PgEvent`]), effects out ([`PgEffect`]). It reads no clock, opens no socket and waits
//! for nothing; objects are read through [`exec::ObjectReader`].
//!
//! | file | subject |
//! |---|---|
//! | `api` | events, effects, what a PG sees of the map |
//! | `core` | what all parts work on: identity, interval, the copy, and what of it is durable |
//! | `copy` | **what is stored of a PG beside its objects, and all that changes it** |
//! | `commits` | what was submitted, and what is to follow when it is durable |
//! | `stored` | what is stored of that, and under which keys |
//! | `role` | what an OSD is to a PG |
//! | `pg` | the parts, dispatch, maps and intervals |
//! | `intervals` | closed intervals, and who must be heard because of them |
//! | `peering` | **why no acknowledged write is lost**; proving which history to serve |
//! | `primary` | a primary after peering |
//! | `lead` | what its verbs work on |
//! | `requests` | client requests: **the phases of each**, order per object, execution, reply |
//! | `write` | **a write**: from what a request wants to what every member has; commit |
//! | `watch` | who can be told of what happens to an object, and **why no watch misses a notification** |
//! | `backoff` | what clients hold back themselves, and **why their requests keep their order** |
//! | [`exec`] | what a RADOS op vector means |
//! | `snap` | **snapshots**: what a write under one does, what it shows, how it goes |
//! | [`erasure`] | **erasure-coded pools**: stripes, reads, undo, rebuilding |
//! | `recovery` | making copies whole while the PG serves |
//! | `scrub` | comparing the copies, listing and repairing what differs |
//! | `repair` | copies that turn out to be bad |
//! | `mail` | messages of peers that wait for a map or a read |
//! | `member` | what any holder answers a primary: infos, logs, objects; activation |
//! | `replica` | a member after its activation |
//! | `removing` | a copy that is deleted |
//! | `again` | when an open exchange is repeated |
//! | `repeat` | **why nothing that is lost between two OSDs is waited for** |
//! | `lease` | why a replaced primary serves no stale read |
//! | `log`, `missing`, `merge` | what was done lately; what is lacking; making one history of two |
//! | [`shard`] | shards of one PG beside each other in a store |
//! | `unstored` | what the store refuses for good; **why a PG may fall back** |
//! | `split`, `fold` | more PGs in a pool; **fewer of them, and why that is safe** |
//! | `stat`, `query` | reports and `pg query` |
//!
//! What the shell owes a PG:
//! * effects are performed in order; a transaction is visible to the reader as soon as its
//!   [`PgEffect::Submit`] was performed, and an event that answers an effect comes after the
//!   effects of the event before it;
//! * transactions of an OSD become durable in the order they were submitted (at least those
//!   of one PG and of the PGs split from it);
//! * messages between two OSDs arrive in order, none twice, and never at another incarnation than
//!   the one the sender's map names. Any may be lost; where a session was lost with both ends
//!   alive, the PGs at both are told ([`PgEvent::Renewed`]), and what is open is repeated
//!   (`repeat`);
//! * every PG is given every map, in order, from the newest one processed before a restart on
//!   ([`MapView::gap`] where that is impossible), and is told from when on the maps show this
//!   incarnation up ([`MapView::live`]); every stored PG is split before it sees a map with
//!   more PGs, and folded ([`Pg::fold`]) before any sees one with fewer; an OSD that restarts is
//!   down for at least one epoch;
//! * every OSD pings its peers and keeps [`Leases`].

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test"))]

/// Is this bug planted by the simulator? Never, outside of it.
#[cfg(feature = "plant-bugs")]
macro_rules! planted {
    ($cfg:expr, $bug:ident) => {
        $cfg.bug == Some(crate::api::Bug::$bug)
    };
}
#[cfg(not(feature = "plant-bugs"))]
macro_rules! planted {
    ($cfg:expr, $bug:ident) => {
        false
    };
}

/// What cannot happen has happened: `invariant!(pg, "what: {}", …)`, then a return that changes
/// nothing more. Tests and simulators panic. A release says so in its log, not too often, and the
/// PG begins its peering anew when the event is over, which finds out what everybody has.
macro_rules! invariant {
    ($pg:expr, $($what:tt)+) => {
        $pg.is_broken(format_args!($($what)+))
    };
}

mod again;
mod api;
mod backoff;
mod commits;
mod copy;
mod core;
pub mod erasure;
pub mod exec;
mod fold;
mod intervals;
mod lead;
mod lease;
mod listing;
mod log;
mod look;
mod mail;
mod member;
mod merge;
mod missing;
mod peering;
mod pg;
mod primary;
mod query;
mod recovery;
mod removing;
mod repair;
mod repeat;
mod replica;
mod requests;
mod role;
mod scrub;
pub mod shard;
mod snap;
mod split;
mod stat;
mod stored;
mod unstored;
mod watch;
mod write;

#[cfg(feature = "plant-bugs")]
pub use api::Bug;
pub use api::{
    ClientOp, ConnId, CreateAnswer, LargeOmap, LogLevel, MapView, Merged, Now, OpId, OsdView,
    Patience, PeerMsg, Permits, PgConfig, PgEffect, PgEvent, Phase, PoolView, ReadKey, Reservation,
    Token, TurnKind,
};
pub use backoff::Backoffs;
pub use fold::{folds, target_of};
pub use intervals::Interval;
pub use lease::{DRIFT, Leases, PAUSE_MS};
pub use log::{Dup, EntryKind, LogEntry, OpReturn, PgLog};
pub use look::Look;
pub use merge::merge;
pub use missing::{Missing, missing_prefix};
pub use pg::Pg;
pub use snap::{PoolSnaps, SnapContext};
pub use split::children_of;
pub use stored::{Stored, head_key, info_key, parse_info_key};
pub use watch::{ShownWatch, Watched};
