//! What reports see: everything the monitor knows, read-only, at one moment.

use crate::clog::ClusterLog;
use crate::config::ConfigDb;
use crate::kv::Kv;
use crate::state::{HealthMute, Metadata};
use spirula_auth::db::AuthDb;
use spirula_encoding::UTime;
use spirula_maps::{FsMap, MgrMap, MonMap, OsdMap, PgDigest, ServiceMap};
use spirula_messages::ceph::MdsHealth;
use spirula_messages::cluster::control::HealthInput;
use spirula_messages::cluster::quorum::PairTrouble;
use spirula_types::{Epoch, OsdId, Uuid};
use std::collections::BTreeMap;

/// The monitors' agreement, as `quorum_status` and `status` show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuorumInfo {
    /// Election epoch; even while electing.
    pub election_epoch: u32,
    /// Ranks in the quorum.
    pub quorum: Vec<u32>,
    /// Their names.
    pub names: Vec<String>,
    /// Name of the leader.
    pub leader: String,
    /// When this quorum formed.
    pub since: UTime,
    /// By monitor: nanoseconds its clock is ahead of the leader's, and half the time a message
    /// and its answer took.
    pub skews: BTreeMap<String, (i64, i64)>,
    /// By monitor: how much of the disk that holds its store is free, in per cent.
    pub room: BTreeMap<String, u32>,
    /// By monitor, as far as they are known: the facts that `mon metadata` shows.
    pub facts: BTreeMap<String, Metadata>,
    /// Ticks of 100 ms since a change was proposed that is still not agreed on, if they are many.
    pub stalled: Option<u64>,
    /// Bytes of the agreed state, and of its largest parts, if no monitor could take it over from
    /// another.
    pub unsendable: Option<(u64, Vec<(String, u64)>)>,
    /// Monitors that take no part though they are heard, since their stores contradict what the
    /// others have agreed on, and in what.
    pub contradicting: BTreeMap<String, String>,
    /// Daemons that have OSD maps which the monitors do not have, with the newest epoch of each:
    /// the monitors have forgotten what they had agreed on.
    pub forgotten: BTreeMap<String, Epoch>,
    /// The same as daemons told other monitors, by monitor; what the leader says includes all
    /// others' words.
    pub forgotten_elsewhere: BTreeMap<String, BTreeMap<String, Epoch>>,
}

/// What the active manager sent last. `None` fields until it has.
#[derive(Clone, Debug, Default)]
pub struct MgrKnowledge {
    /// Statistics of PGs, pools and OSDs.
    pub digest: PgDigest,
    /// When they were made; zero if there never were any.
    pub stamp: UTime,
    /// Health checks the manager found.
    pub health: Vec<HealthInput>,
    /// Gateways, mirror daemons and their like.
    pub services: ServiceMap,
    /// Progress events: id → (message, fraction × 10⁶).
    pub progress: BTreeMap<String, (String, u32)>,
}

/// A reading of the whole cluster.
#[derive(Clone, Copy)]
pub struct ClusterView<'a> {
    /// The present.
    pub now: UTime,
    /// Cluster id.
    pub fsid: Uuid,
    /// The monitors.
    pub monmap: &'a MonMap,
    /// Their agreement.
    pub quorum: &'a QuorumInfo,
    /// OSDs, pools, placement.
    pub osdmap: &'a OsdMap,
    /// Oldest epoch of it that is kept.
    pub oldest_osdmap: Epoch,
    /// Epoch up to which nobody needs any: the same, or less, where some that are needed were let
    /// go of.
    pub settled_osdmap: Epoch,
    /// Managers.
    pub mgrmap: &'a MgrMap,
    /// File systems.
    pub fsmap: &'a FsMap,
    /// What the manager reported.
    pub mgr: &'a MgrKnowledge,
    /// Muted health checks, by code.
    pub mutes: &'a BTreeMap<String, HealthMute>,
    /// What OSDs said about themselves.
    pub osd_metadata: &'a BTreeMap<OsdId, Metadata>,
    /// What managers said about themselves.
    pub mgr_metadata: &'a BTreeMap<String, Metadata>,
    /// What metadata servers find wrong, by global id.
    pub mds_health: &'a BTreeMap<u64, MdsHealth>,
    /// Options set in the cluster.
    pub config: &'a ConfigDb,
    /// Options set when the cluster was made; weaker than [`config`](Self::config).
    pub defaults: &'a BTreeMap<String, String>,
    /// config-keys; crash reports are among them.
    pub kv: &'a Kv,
    /// Nobody comes in without a key.
    pub auth_safe: bool,
    /// Users.
    pub auth: &'a AuthDb,
    /// The cluster log.
    pub log: &'a ClusterLog,
    /// Number of PGs that may still be created empty.
    pub creating_pgs: usize,
    /// OSDs that do not hear each other, as the leader sees it.
    pub pairs: &'a [PairTrouble],
    /// What this monitor, as the leader, does from time to time and cannot do now, with why.
    pub undone: &'a BTreeMap<&'static str, String>,
    /// Per cent of a monitor's disk: free room up to the first is too little, up to the second
    /// worth a warning.
    pub room_bounds: (u32, u32),
}
