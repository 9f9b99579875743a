//! File-system maps: which file systems there are and which metadata servers serve them.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, Epoch, PoolId};
use std::collections::{BTreeMap, BTreeSet};

/// Global id of a metadata server instance.
pub type MdsGid = u64;

/// States of a metadata server.
pub mod mds_state {
    /// Down, stopped cleanly.
    pub const STOPPED: i32 = -1;
    /// Up, not yet told what to do.
    pub const BOOT: i32 = -4;
    /// Up, idle.
    pub const STANDBY: i32 = -5;
    /// Up, making a new rank.
    pub const CREATING: i32 = -6;
    /// Up, starting a stopped rank.
    pub const STARTING: i32 = -7;
    /// Up, following an active one.
    pub const STANDBY_REPLAY: i32 = -8;
    /// Up, replaying its journal.
    pub const REPLAY: i32 = 8;
    /// Up, resolving with others.
    pub const RESOLVE: i32 = 9;
    /// Up, clients reconnect.
    pub const RECONNECT: i32 = 10;
    /// Up, joining caches.
    pub const REJOIN: i32 = 11;
    /// Up, replaying client requests.
    pub const CLIENTREPLAY: i32 = 12;
    /// Up and serving.
    pub const ACTIVE: i32 = 13;
    /// Up, giving its rank up.
    pub const STOPPING: i32 = 14;
    /// Damaged.
    pub const DAMAGED: i32 = 15;

    /// `up:active`, …
    pub fn name(state: i32) -> &'static str {
        match state {
            0 => "down:dne",
            STOPPED => "down:stopped",
            DAMAGED => "down:damaged",
            BOOT => "up:boot",
            STANDBY => "up:standby",
            STANDBY_REPLAY => "up:standby-replay",
            -9 => "up:oneshot-replay",
            CREATING => "up:creating",
            STARTING => "up:starting",
            REPLAY => "up:replay",
            RESOLVE => "up:resolve",
            RECONNECT => "up:reconnect",
            REJOIN => "up:rejoin",
            CLIENTREPLAY => "up:clientreplay",
            ACTIVE => "up:active",
            STOPPING => "up:stopping",
            _ => "???",
        }
    }
}

/// A set of named feature numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet {
    /// Bits as on the wire (bit 0 is always set in memory by Ceph, not on the wire).
    pub mask: u64,
    /// Number to name.
    pub names: BTreeMap<u64, String>,
}

impl Encode for FeatureSet {
    fn encode(&self, o: &mut Encoder) {
        o.u64(self.mask);
        o.put(&self.names);
    }
}

impl Decode for FeatureSet {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { mask: d.u64()?, names: d.get()? })
    }
}

/// What a reader of on-disk state must understand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompatSet {
    /// May be ignored.
    pub compat: FeatureSet,
    /// Unknown ones forbid writing.
    pub ro_compat: FeatureSet,
    /// Unknown ones forbid everything.
    pub incompat: FeatureSet,
}

impl CompatSet {
    /// What Pacific's metadata servers share.
    pub fn mds_default() -> Self {
        let names = [
            (1, "base v0.20"),
            (2, "client writeable ranges"),
            (3, "default file layouts on dirs"),
            (4, "dir inode in separate object"),
            (5, "mds uses versioned encoding"),
            (6, "dirfrag is stored in omap"),
            (8, "no anchor table"),
            (9, "file layout v2"),
            (10, "snaprealm v2"),
        ];
        let mask = names.iter().fold(0, |m, (b, _)| m | 1u64 << b);
        let names = names.iter().map(|(b, n)| (*b, (*n).to_string())).collect();
        Self { incompat: FeatureSet { mask, names }, ..Self::default() }
    }
}

impl Encode for CompatSet {
    fn encode(&self, o: &mut Encoder) {
        o.put(&self.compat);
        o.put(&self.ro_compat);
        o.put(&self.incompat);
    }
}

impl Decode for CompatSet {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { compat: d.get()?, ro_compat: d.get()?, incompat: d.get()? })
    }
}

/// One metadata server (mds_info_t v10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsInfo {
    /// Global id.
    pub gid: MdsGid,
    /// Name.
    pub name: String,
    /// Rank, −1 none.
    pub rank: i32,
    /// Incarnation of the rank.
    pub inc: i32,
    /// [`mds_state`].
    pub state: i32,
    /// Number of the last beacon that changed the state.
    pub state_seq: u64,
    /// Where it listens.
    pub addrs: AddrVec,
    /// Silent since; zero if not.
    pub laggy_since: UTime,
    /// Ranks it exports to.
    pub export_targets: BTreeSet<i32>,
    /// Its features.
    pub features: u64,
    /// File system it prefers, −1 any.
    pub join_fscid: i32,
    /// Flag bits (1 frozen).
    pub flags: u64,
    /// What it understands.
    pub compat: CompatSet,
}

impl Default for MdsInfo {
    fn default() -> Self {
        Self {
            gid: 0,
            name: String::new(),
            rank: -1,
            inc: 0,
            state: mds_state::STANDBY,
            state_seq: 0,
            addrs: AddrVec::default(),
            laggy_since: UTime::ZERO,
            export_targets: BTreeSet::new(),
            features: 0,
            join_fscid: -1,
            flags: 0,
            compat: CompatSet::default(),
        }
    }
}

impl Encode for MdsInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(10, 4, |o| {
            o.u64(self.gid);
            o.put(&self.name);
            o.i32(self.rank);
            o.i32(self.inc);
            o.i32(self.state);
            o.u64(self.state_seq);
            o.put(&self.addrs);
            o.put(&self.laggy_since);
            // "Standby for" rank and name, gone.
            o.i32(-1);
            o.str("");
            o.put(&self.export_targets);
            o.u64(self.features);
            o.i32(self.join_fscid);
            o.u8(0);
            o.u64(self.flags);
            o.put(&self.compat);
        });
    }
}

impl Decode for MdsInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("mds_info_t", 10, |d, v| {
            let mut m = Self {
                gid: d.u64()?,
                name: d.get()?,
                rank: d.i32()?,
                inc: d.i32()?,
                state: d.i32()?,
                state_seq: d.u64()?,
                addrs: d.get()?,
                laggy_since: d.get()?,
                ..Self::default()
            };
            d.i32()?;
            d.blob()?;
            if v >= 2 {
                m.export_targets = d.get()?;
            }
            if v >= 5 {
                m.features = d.u64()?;
            }
            if v >= 6 {
                m.join_fscid = d.i32()?;
            }
            if v >= 7 {
                d.u8()?;
            }
            if v >= 9 {
                m.flags = d.u64()?;
            }
            if v >= 10 {
                m.compat = d.get()?;
            }
            Ok(m)
        })
    }
}

/// One file system's map (MDSMap v5, extension 16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsMap {
    /// Version of this map.
    pub epoch: Epoch,
    /// Flag bits: 1 not joinable, 2 snapshots allowed, 16 multi-MDS snapshots allowed.
    pub flags: u32,
    /// Epoch of the last failure.
    pub last_failure: Epoch,
    /// Rank of the root.
    pub root: i32,
    /// Seconds until a silent client is stale.
    pub session_timeout: u32,
    /// Seconds until it is evicted.
    pub session_autoclose: u32,
    /// Largest file.
    pub max_file_size: u64,
    /// Ranks wanted.
    pub max_mds: i32,
    /// Servers holding ranks, and standby-replay ones.
    pub mds_info: BTreeMap<MdsGid, MdsInfo>,
    /// Data pools.
    pub data_pools: Vec<PoolId>,
    /// −1.
    pub cas_pool: PoolId,
    /// What readers of the metadata must understand.
    pub compat: CompatSet,
    /// Metadata pool.
    pub metadata_pool: PoolId,
    /// When the file system was made.
    pub created: UTime,
    /// When this version was made.
    pub modified: UTime,
    /// Rank of the table server.
    pub tableserver: i32,
    /// Ranks in use.
    pub in_ranks: BTreeSet<i32>,
    /// Rank to incarnation.
    pub inc: BTreeMap<i32, i32>,
    /// Rank to server.
    pub up: BTreeMap<i32, MdsGid>,
    /// Ranks without a server.
    pub failed: BTreeSet<i32>,
    /// Ranks given up.
    pub stopped: BTreeSet<i32>,
    /// OSD map epoch of the last failure's blocklisting.
    pub last_failure_osd_epoch: Epoch,
    /// Features ever allowed.
    pub ever_allowed_features: u8,
    /// Features allowed on purpose.
    pub explicitly_allowed_features: u8,
    /// Small files inside inodes.
    pub inline_data_enabled: bool,
    /// Is there a file system at all?
    pub enabled: bool,
    /// Its name.
    pub fs_name: String,
    /// Damaged ranks.
    pub damaged: BTreeSet<i32>,
    /// Name of the balancer object.
    pub balancer: String,
    /// Standbys wanted, −1 automatic.
    pub standby_count_wanted: i32,
    /// `max_mds` before the file system was marked down.
    pub old_max_mds: i32,
    /// Oldest client release, 0 any.
    pub min_compat_client: u8,
    /// Features clients must have: 64-bit words as on the wire.
    pub required_client_features: Bytes,
}

impl Default for MdsMap {
    /// A map with no file system in it, with Ceph's defaults.
    fn default() -> Self {
        Self {
            epoch: 0,
            flags: 0x12,
            last_failure: 0,
            root: 0,
            session_timeout: 60,
            session_autoclose: 300,
            max_file_size: 1 << 40,
            max_mds: 1,
            mds_info: BTreeMap::new(),
            data_pools: Vec::new(),
            cas_pool: -1,
            compat: CompatSet::default(),
            metadata_pool: -1,
            created: UTime::ZERO,
            modified: UTime::ZERO,
            tableserver: 0,
            in_ranks: BTreeSet::new(),
            inc: BTreeMap::new(),
            up: BTreeMap::new(),
            failed: BTreeSet::new(),
            stopped: BTreeSet::new(),
            last_failure_osd_epoch: 0,
            ever_allowed_features: 0,
            explicitly_allowed_features: 0,
            inline_data_enabled: false,
            enabled: false,
            fs_name: String::new(),
            damaged: BTreeSet::new(),
            balancer: String::new(),
            standby_count_wanted: -1,
            old_max_mds: 0,
            min_compat_client: 0,
            required_client_features: Bytes::new(),
        }
    }
}

impl Encode for MdsMap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(5, 4, |o| {
            o.u32(self.epoch);
            o.u32(self.flags);
            o.u32(self.last_failure);
            o.i32(self.root);
            o.u32(self.session_timeout);
            o.u32(self.session_autoclose);
            o.u64(self.max_file_size);
            o.i32(self.max_mds);
            o.put(&self.mds_info);
            o.put(&self.data_pools);
            o.i64(self.cas_pool);
            o.u16(16);
            o.put(&self.compat);
            o.i64(self.metadata_pool);
            o.put(&self.created);
            o.put(&self.modified);
            o.i32(self.tableserver);
            o.put(&self.in_ranks);
            o.put(&self.inc);
            o.put(&self.up);
            o.put(&self.failed);
            o.put(&self.stopped);
            o.u32(self.last_failure_osd_epoch);
            o.u8(self.ever_allowed_features);
            o.u8(self.explicitly_allowed_features);
            o.bool(self.inline_data_enabled);
            o.bool(self.enabled);
            o.put(&self.fs_name);
            o.put(&self.damaged);
            o.put(&self.balancer);
            o.i32(self.standby_count_wanted);
            o.i32(self.old_max_mds);
            o.u8(self.min_compat_client);
            o.put(&self.required_client_features);
        });
    }
}

impl Decode for MdsMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MDSMap", 5, |d, _| {
            let mut m = Self {
                epoch: d.u32()?,
                flags: d.u32()?,
                last_failure: d.u32()?,
                root: d.i32()?,
                session_timeout: d.u32()?,
                session_autoclose: d.u32()?,
                max_file_size: d.u64()?,
                max_mds: d.i32()?,
                mds_info: d.get()?,
                data_pools: d.get()?,
                cas_pool: d.i64()?,
                ..Self::default()
            };
            let ev = d.u16()?;
            if ev < 9 {
                return Err(DecodeError::TooOld {
                    what: "MDSMap extension",
                    version: ev as u8,
                    oldest: 9,
                });
            }
            m.compat = d.get()?;
            m.metadata_pool = d.i64()?;
            m.created = d.get()?;
            m.modified = d.get()?;
            m.tableserver = d.i32()?;
            m.in_ranks = d.get()?;
            m.inc = d.get()?;
            m.up = d.get()?;
            m.failed = d.get()?;
            m.stopped = d.get()?;
            m.last_failure_osd_epoch = d.u32()?;
            m.ever_allowed_features = d.u8()?;
            m.explicitly_allowed_features = d.u8()?;
            m.inline_data_enabled = d.bool()?;
            m.enabled = d.bool()?;
            m.fs_name = d.get()?;
            m.damaged = d.get()?;
            if ev >= 10 {
                m.balancer = d.get()?;
            }
            if ev >= 11 {
                m.standby_count_wanted = d.i32()?;
            }
            if ev >= 12 {
                m.old_max_mds = d.i32()?;
            }
            if ev >= 14 {
                m.min_compat_client = d.u8()?;
            }
            if ev >= 16 {
                m.required_client_features = d.get()?;
            }
            Ok(m)
        })
    }
}

/// A file system: its id and map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Id.
    pub fscid: i32,
    /// Map.
    pub mds_map: MdsMap,
    /// Mirroring, as it stands on the wire (version, compat, length, body).
    pub mirror_info: Bytes,
}

impl Filesystem {
    /// A file system that is not mirrored.
    pub fn new(fscid: i32, mds_map: MdsMap) -> Self {
        Self { fscid, mds_map, mirror_info: Bytes::from_static(&[1, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0]) }
    }
}

impl Encode for Filesystem {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.i32(self.fscid);
            o.sized(|o| o.put(&self.mds_map));
            o.raw(&self.mirror_info);
        });
    }
}

impl Decode for Filesystem {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("Filesystem", 2, |d, v| {
            let mut f = Self::new(d.i32()?, d.sized(MdsMap::decode)?);
            if v >= 2 {
                let head: [u8; 2] = d.array()?;
                let body = d.blob()?;
                let mut raw = Encoder::with_capacity(body.len() + 6);
                raw.raw(&head);
                raw.blob(body);
                f.mirror_info = raw.into_bytes();
            }
            Ok(f)
        })
    }
}

/// All file systems (FSMap v7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsMap {
    /// Version of this map.
    pub epoch: Epoch,
    /// Id of the next file system.
    pub next_filesystem_id: u64,
    /// File system old clients mount, −1 none.
    pub legacy_client_fscid: i32,
    /// What a new file system requires.
    pub default_compat: CompatSet,
    /// More than one allowed.
    pub enable_multiple: bool,
    /// File systems.
    pub filesystems: Vec<Filesystem>,
    /// Every server to its file system, −1 for standbys.
    pub mds_roles: BTreeMap<MdsGid, i32>,
    /// Standbys.
    pub standby_daemons: BTreeMap<MdsGid, MdsInfo>,
    /// Epochs in which they changed.
    pub standby_epochs: BTreeMap<MdsGid, Epoch>,
    /// More than one was ever allowed.
    pub ever_enabled_multiple: bool,
}

impl Default for FsMap {
    /// No file systems.
    fn default() -> Self {
        Self {
            epoch: 0,
            next_filesystem_id: 1,
            legacy_client_fscid: -1,
            default_compat: CompatSet::mds_default(),
            enable_multiple: true,
            filesystems: Vec::new(),
            mds_roles: BTreeMap::new(),
            standby_daemons: BTreeMap::new(),
            standby_epochs: BTreeMap::new(),
            ever_enabled_multiple: true,
        }
    }
}

impl FsMap {
    /// The first map of a cluster: no file systems.
    pub fn initial(epoch: Epoch) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// A file system by name.
    pub fn by_name(&self, name: &str) -> Option<&Filesystem> {
        self.filesystems.iter().find(|f| f.mds_map.fs_name == name)
    }

    /// What clients see of this map.
    pub fn user(&self) -> FsMapUser {
        let fs = self
            .filesystems
            .iter()
            .map(|f| FsInfo { cid: f.fscid, name: f.mds_map.fs_name.clone() });
        FsMapUser {
            epoch: self.epoch,
            legacy_client_fscid: self.legacy_client_fscid,
            filesystems: fs.collect(),
        }
    }
}

impl Encode for FsMap {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(7, 6, |o| {
            o.u32(self.epoch);
            o.u64(self.next_filesystem_id);
            o.i32(self.legacy_client_fscid);
            o.put(&self.default_compat);
            o.bool(self.enable_multiple);
            o.put(&self.filesystems);
            o.put(&self.mds_roles);
            o.put(&self.standby_daemons);
            o.put(&self.standby_epochs);
            o.bool(self.ever_enabled_multiple);
        });
    }
}

impl Decode for FsMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("FSMap", 8, |d, v| {
            if v < 7 {
                return Err(DecodeError::TooOld { what: "FSMap", version: v, oldest: 7 });
            }
            Ok(Self {
                epoch: d.u32()?,
                next_filesystem_id: d.u64()?,
                legacy_client_fscid: d.i32()?,
                default_compat: d.get()?,
                enable_multiple: d.bool()?,
                filesystems: d.get()?,
                mds_roles: d.get()?,
                standby_daemons: d.get()?,
                standby_epochs: d.get()?,
                ever_enabled_multiple: d.bool()?,
            })
        })
    }
}

/// A file system as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsInfo {
    /// Id.
    pub cid: i32,
    /// Name.
    pub name: String,
}

impl Encode for FsInfo {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.i32(self.cid);
            o.put(&self.name);
        });
    }
}

impl Decode for FsInfo {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("fs_info_t", 1, |d, _| Ok(Self { cid: d.i32()?, name: d.get()? }))
    }
}

/// The list of file systems for clients (FSMapUser).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsMapUser {
    /// Epoch of the [`FsMap`].
    pub epoch: Epoch,
    /// File system old clients mount, −1 none.
    pub legacy_client_fscid: i32,
    /// File systems.
    pub filesystems: Vec<FsInfo>,
}

impl Encode for FsMapUser {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u32(self.epoch);
            o.i32(self.legacy_client_fscid);
            o.put(&self.filesystems);
        });
    }
}

impl Decode for FsMapUser {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("FSMapUser", 1, |d, _| {
            Ok(Self { epoch: d.u32()?, legacy_client_fscid: d.i32()?, filesystems: d.get()? })
        })
    }
}
