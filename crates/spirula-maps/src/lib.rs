//! Cluster maps: monitor, OSD (full and incremental), manager, file system; PG mapping; statistics.
//!
//! Pure values. Every map has one wire form, bit-exact to Ceph 16.2 (facts:
//! `docs/protocol/mon.md` §2); newer releases' unknown tails are skipped. This crate owns
//! what the maps mean: placement ([`osdmap::OsdMap::pg_to_up_acting`]), how an incremental
//! changes a full map, and how maps are shown to people. It refuses to know where maps come
//! from: no clock, no I/O, no consensus.
//!
//! * [`MonMap`] — the monitors
//! * [`osdmap`] — [`OsdMap`], [`Incremental`], [`PgPool`], placement
//! * [`MgrMap`], [`FsMap`], [`MdsMap`], [`FsMapUser`] — manager and file systems
//! * [`stat`] — Ceph's object, pool and store statistics
//! * [`ServiceMap`] — gateways, mirror daemons and their like
//! * [`PgState`], [`PgStat`], [`OsdStatReport`], [`PgDigest`] — our own reports

mod digest;
mod fsdump;
mod fsmap;
mod fsranks;
pub mod json;
mod mgrmap;
mod mondump;
mod monmap;
pub mod osdmap;
mod pgstat;
mod pgstate;
mod pings;
mod services;
mod show;
pub mod stat;

pub use digest::{OsdStatSum, PgDigest, PoolSum};
pub use fsdump::CLIENT_FEATURES;
pub use fsmap::{
    CompatSet, FeatureSet, Filesystem, FsInfo, FsMap, FsMapUser, MdsInfo, MdsMap, mds_state,
};
pub use fsranks::{MDS_FROZEN, mds_flag};
pub use mgrmap::{MgrMap, MgrStandby, ModuleInfo, ModuleOption};
pub use mondump::{mon_feature_bit, mon_feature_names};
pub use monmap::{MonInfo, MonMap};
pub use osdmap::{
    Crush, EncodedOsdMap, Incremental, MapScratch, OsdAddrs, OsdInfo, OsdMap, OsdXInfo, PgPool,
    PgTable, PoolOptValue, PoolSnap, SnapIntervals, UpActing,
};
pub use pgstat::{OsdStatReport, PgStat};
pub use pgstate::PgState;
pub use pings::PathTimes;
pub use services::{Facts, ServiceEntry, ServiceMap};
pub use stat::{ObjectStatCollection, ObjectStatSum, PoolStat, StoreStatfs};

/// Number of the Pacific release, as maps carry it.
pub const RELEASE_PACIFIC: u8 = 16;

/// The name of a release number as Ceph prints it, `unknown` for those we do not know.
pub fn release_name(release: u8) -> &'static str {
    match release {
        1 => "argonaut",
        2 => "bobtail",
        3 => "cuttlefish",
        4 => "dumpling",
        5 => "emperor",
        6 => "firefly",
        7 => "giant",
        8 => "hammer",
        9 => "infernalis",
        10 => "jewel",
        11 => "kraken",
        12 => "luminous",
        13 => "mimic",
        14 => "nautilus",
        15 => "octopus",
        16 => "pacific",
        17 => "quincy",
        18 => "reef",
        19 => "squid",
        20 => "tentacle",
        _ => "unknown",
    }
}

/// The number of a release name, if known.
pub fn release_number(name: &str) -> Option<u8> {
    (1..=20).find(|n| release_name(*n) == name)
}
