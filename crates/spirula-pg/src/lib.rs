//! Placement groups without I/O: op execution, log, replication, peering, recovery.
//!
//! One [`Pg`] is what one OSD knows and does about one placement group: events in
//! ([`PgEvent`]), effects out ([`PgEffect`]). It reads no clock, opens no socket and waits
//! for nothing; objects are read through [`exec::ObjectReader`].
//!
//! | file | subject |
//! |---|---|
//! | `api` | events, effects, what a PG sees of the map |
//! | `pg` | the state, dispatch, maps and intervals |
//! | `ops` | client requests: order per object, execution, replication, commit, reply |
//! | [`exec`] | what a RADOS op vector means |
//! | `member` | answering a primary: promises, replicated writes, activation, deletion |
//! | `peering` | **the safety rules and why they suffice**; proving which history to serve |
//! | `recovery` | making copies equal before a PG serves |
//! | `lease` | why a replaced primary serves no stale read |
//! | `log` | requests already applied; comparing copies |
//! | `split` | more PGs in a pool |
//! | `stat` | reports and `pg query` |
//!
//! What the shell owes a PG:
//! * effects are performed in order; a transaction is visible to the reader as soon as its
//!   [`PgEffect::Submit`] was performed, and an event that answers an effect comes after the
//!   effects of the event before it;
//! * transactions of an OSD become durable in the order they were submitted (at least those
//!   of one PG and of the PGs split from it);
//! * messages between two OSDs arrive in order, and never at another incarnation than the one
//!   the sender's map names; a loss shows as a restart in the map;
//! * a started OSD gives its PGs a map that shows this incarnation up before they act
//!   ([`MapView::osds`]), and every stored PG is split before it sees a map with more PGs;
//! * every OSD pings its peers and keeps [`Leases`].
//!
//! Not here yet: snapshots, erasure coding, object classes, scrub, merging PGs, and serving
//! while recovering: a PG recovers before it becomes active.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test"))]

mod api;
pub mod exec;
mod lease;
mod log;
mod member;
mod ops;
mod peering;
mod pg;
mod recovery;
mod split;
mod stat;

pub use api::{
    ClientOp, ConnId, CreateAnswer, MapView, Now, OpId, PeerMsg, PgConfig, PgEffect, PgEvent, PoolView, ReadKey, Token,
};
pub use lease::{DRIFT, Leases};
pub use log::{Difference, EntryKind, LogEntry, PgLog};
pub use pg::{Pg, info_key, parse_info_key};
pub use split::children_of;
