//! The OSD map: pools, OSDs, CRUSH, and every exception to what CRUSH computes.
//!
//! [`OsdMap`] is the full map, [`Incremental`] the step from one epoch to the next
//! ([`OsdMap::apply`]). Both carry checksums: decoding verifies them, encoding computes them.
//!
//! * `full.rs` the full map, `incremental.rs` the step, `apply.rs` what the step does
//! * [`pool`], [`opts`], `info.rs`, `snaps.rs`, `crush.rs` what they are made of
//! * `mapping.rs` from object to OSDs; `clean.rs` exceptions that mean nothing any more; `dump.rs`
//!   the map for people

mod apply;
mod blocklist;
mod clean;
mod crush;
mod dump;
mod full;
mod incremental;
mod info;
mod mapping;
pub mod opts;
pub mod pool;
mod snaps;

pub use apply::{ApplyError, MAX_OSDS};
pub use blocklist::{CIDR, RANGES, is_shut_out};
pub use crush::Crush;
pub use dump::{flag_by_name, flag_names, state_names};
pub use full::{EncodedOsdMap, OsdAddrs, OsdMap};
pub use incremental::Incremental;
pub use info::{OsdInfo, OsdXInfo};
pub use mapping::{MapScratch, PgTable, UpActing};
pub use opts::{PoolOptType, PoolOptValue, PoolOpts};
pub use pool::{PgMergeMeta, PgPool, PoolSnap, flag};
pub use snaps::SnapIntervals;

use std::collections::BTreeMap;

/// Weight of an OSD that takes its full share; also full primary affinity.
pub const WEIGHT_IN: u32 = 0x10000;

/// State bits of an OSD.
pub mod state {
    /// It exists.
    pub const EXISTS: u32 = 1;
    /// It is up.
    pub const UP: u32 = 2;
    /// It was marked out by itself after being down.
    pub const AUTOOUT: u32 = 4;
    /// It has never been in.
    pub const NEW: u32 = 8;
    /// Full.
    pub const FULL: u32 = 16;
    /// Nearly full.
    pub const NEARFULL: u32 = 32;
    /// Too full to backfill.
    pub const BACKFILLFULL: u32 = 64;
    /// Destroyed; its id is kept.
    pub const DESTROYED: u32 = 128;
    /// May not come up.
    pub const NOUP: u32 = 256;
    /// May not be marked down.
    pub const NODOWN: u32 = 512;
    /// May not be marked in.
    pub const NOIN: u32 = 1024;
    /// May not be marked out.
    pub const NOOUT: u32 = 2048;
    /// Being stopped.
    pub const STOP: u32 = 4096;

    /// Bits and names, in the order Ceph prints them.
    pub const NAMES: &[(u32, &str)] = &[
        (EXISTS, "exists"),
        (UP, "up"),
        (AUTOOUT, "autoout"),
        (NEW, "new"),
        (FULL, "full"),
        (NEARFULL, "nearfull"),
        (BACKFILLFULL, "backfillfull"),
        (DESTROYED, "destroyed"),
        (NOUP, "noup"),
        (NODOWN, "nodown"),
        (NOIN, "noin"),
        (NOOUT, "noout"),
        (STOP, "stop"),
    ];
}

/// Cluster-wide flag bits.
pub mod flags {
    /// Some OSD nearly full (old clients).
    pub const NEARFULL: u32 = 1;
    /// Some OSD full (old clients).
    pub const FULL: u32 = 1 << 1;
    /// Clients hold reads.
    pub const PAUSERD: u32 = 1 << 2;
    /// Clients hold writes.
    pub const PAUSEWR: u32 = 1 << 3;
    /// Recovery is paused.
    pub const PAUSEREC: u32 = 1 << 4;
    /// No OSD may come up.
    pub const NOUP: u32 = 1 << 5;
    /// No OSD is marked down.
    pub const NODOWN: u32 = 1 << 6;
    /// No OSD is marked out by itself.
    pub const NOOUT: u32 = 1 << 7;
    /// No OSD is marked in by itself.
    pub const NOIN: u32 = 1 << 8;
    /// No backfill.
    pub const NOBACKFILL: u32 = 1 << 9;
    /// No recovery.
    pub const NORECOVER: u32 = 1 << 10;
    /// No scrub.
    pub const NOSCRUB: u32 = 1 << 11;
    /// No deep scrub.
    pub const NODEEP_SCRUB: u32 = 1 << 12;
    /// No tier agent.
    pub const NOTIERAGENT: u32 = 1 << 13;
    /// No rebalancing.
    pub const NOREBALANCE: u32 = 1 << 14;
    /// Objects sort bitwise; always.
    pub const SORTBITWISE: u32 = 1 << 15;
    /// Old release requirement.
    pub const REQUIRE_JEWEL: u32 = 1 << 16;
    /// Old release requirement.
    pub const REQUIRE_KRAKEN: u32 = 1 << 17;
    /// Old release requirement.
    pub const REQUIRE_LUMINOUS: u32 = 1 << 18;
    /// Deletes are recovered as such; always.
    pub const RECOVERY_DELETES: u32 = 1 << 19;
    /// Old snap directories are gone; always.
    pub const PURGED_SNAPDIRS: u32 = 1 << 20;
    /// No snap trim.
    pub const NOSNAPTRIM: u32 = 1 << 21;
    /// Logs have a hard limit; always.
    pub const PGLOG_HARDLIMIT: u32 = 1 << 22;
    /// No autoscaling of `pg_num`.
    pub const NOAUTOSCALE: u32 = 1 << 23;

    /// Flags of a fresh Pacific cluster.
    pub const FRESH: u32 = SORTBITWISE | RECOVERY_DELETES | PURGED_SNAPDIRS | PGLOG_HARDLIMIT;
    pub(crate) const LEGACY_REQUIRE: u32 = REQUIRE_JEWEL | REQUIRE_KRAKEN | REQUIRE_LUMINOUS;

    /// Bits and names, in the order Ceph prints them.
    pub const NAMES: &[(u32, &str)] = &[
        (NEARFULL, "nearfull"),
        (FULL, "full"),
        (PAUSERD, "pauserd"),
        (PAUSEWR, "pausewr"),
        (PAUSEREC, "pauserec"),
        (NOUP, "noup"),
        (NODOWN, "nodown"),
        (NOOUT, "noout"),
        (NOIN, "noin"),
        (NOBACKFILL, "nobackfill"),
        (NOREBALANCE, "norebalance"),
        (NORECOVER, "norecover"),
        (NOSCRUB, "noscrub"),
        (NODEEP_SCRUB, "nodeep-scrub"),
        (NOTIERAGENT, "notieragent"),
        (NOSNAPTRIM, "nosnaptrim"),
        (SORTBITWISE, "sortbitwise"),
        (REQUIRE_JEWEL, "require_jewel_osds"),
        (REQUIRE_KRAKEN, "require_kraken_osds"),
        (REQUIRE_LUMINOUS, "require_luminous_osds"),
        (RECOVERY_DELETES, "recovery_deletes"),
        (PURGED_SNAPDIRS, "purged_snapdirs"),
        (PGLOG_HARDLIMIT, "pglog_hardlimit"),
        (NOAUTOSCALE, "noautoscale"),
    ];
}

/// Key and value pairs of a profile.
pub type Profile = BTreeMap<String, String>;
