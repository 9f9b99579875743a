//! Placement groups without I/O: op execution, log, replication, peering.
//!
//! One [`Pg`] is what one OSD knows and does about one placement group: events in
//! ([`PgEvent`]), effects out ([`PgEffect`]). It reads no clock, opens no socket and waits
//! for nothing; objects are read through [`exec::ObjectReader`].

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
