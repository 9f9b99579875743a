//! What an OSD is to a placement group. Each role owns what it knows, and that goes with it.

use crate::peering::Peering;
use crate::primary::Primary;
use crate::removing::Removing;
use crate::replica::Replica;
use spirula_messages::cluster::pg::{PastInterval, PgInfo};
use spirula_types::Peer;
use std::collections::BTreeMap;

/// Copies outside the acting set, as they told of themselves.
pub(crate) type Strays = BTreeMap<Peer, (PgInfo, Vec<PastInterval>)>;

/// What this OSD does for the PG.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing, or waiting for its primary.
    Idle(Idle),
    /// Takes writes from the primary of the present interval.
    Replica(Replica),
    /// Primary, not active yet.
    Peering(Box<Peering>),
    /// Primary: activating, then serving, or only recovering where too few members are up.
    Primary(Box<Primary>),
    /// Deletes its copy.
    Removing(Removing),
}

impl Role {
    /// One that does nothing yet.
    pub(crate) fn idle() -> Self {
        Self::Idle(Idle::default())
    }
}

/// A holder without a part in the interval, or whoever has nothing.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// When the primary was called last.
    pub notified_ms: u64,
}
