//! The full OSD map and its wire form.

use super::blocklist::{RANGES, RANGES_SINCE, has_ranges, is_shut_out, put_entries};
use super::{Crush, OsdInfo, OsdXInfo, PgPool, Profile, SnapIntervals, WEIGHT_IN, flags, state};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, crc::crc32c};
use spirula_types::{AddrVec, EntityAddr, Epoch, OsdId, PgId, PoolId, Uuid};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Where an OSD listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsdAddrs {
    /// For clients.
    pub client: AddrVec,
    /// For other OSDs.
    pub cluster: AddrVec,
    /// Heartbeats on the cluster network.
    pub hb_back: AddrVec,
    /// Heartbeats on the public network.
    pub hb_front: AddrVec,
}

/// The full OSD map (client section v9, OSD section v9). Vectors over OSDs all have length
/// [`OsdMap::max_osd`].
#[derive(Clone, Debug, PartialEq)]
pub struct OsdMap {
    /// The cluster.
    pub fsid: Uuid,
    /// Version of this map.
    pub epoch: Epoch,
    /// When the cluster was made.
    pub created: UTime,
    /// When this version was made.
    pub modified: UTime,
    /// Pools.
    pub pools: BTreeMap<PoolId, PgPool>,
    /// Their names.
    pub pool_names: BTreeMap<PoolId, String>,
    /// Highest pool id ever given out.
    pub pool_max: i32,
    /// [`flags`] bits.
    pub flags: u32,
    /// [`state`] bits by OSD.
    pub osd_state: Vec<u32>,
    /// Share of data taken by OSD, 0x10000 = all it can, 0 = out.
    pub osd_weight: Vec<u32>,
    /// Addresses by OSD.
    pub osd_addrs: Vec<OsdAddrs>,
    /// Acting sets that override the computed ones.
    pub pg_temp: BTreeMap<PgId, Vec<OsdId>>,
    /// Primaries that override the computed ones.
    pub primary_temp: BTreeMap<PgId, OsdId>,
    /// Willingness to be primary, 0x10000 = full; empty = all full.
    pub primary_affinity: Vec<u32>,
    /// CRUSH.
    pub crush: Crush,
    /// Erasure-code profiles.
    pub ec_profiles: BTreeMap<String, Profile>,
    /// Raw sets that override CRUSH.
    pub pg_upmap: BTreeMap<PgId, Vec<OsdId>>,
    /// Single OSDs exchanged in raw sets: (from, to).
    pub pg_upmap_items: BTreeMap<PgId, Vec<(OsdId, OsdId)>>,
    /// Number of changes of CRUSH.
    pub crush_version: u32,
    /// Snapshots removed in this epoch.
    pub new_removed_snaps: BTreeMap<PoolId, SnapIntervals>,
    /// Snapshots fully trimmed in this epoch.
    pub new_purged_snaps: BTreeMap<PoolId, SnapIntervals>,
    /// When an OSD last went up or down.
    pub last_up_change: UTime,
    /// When an OSD last went in or out.
    pub last_in_change: UTime,
    /// Up and down epochs by OSD.
    pub osd_info: Vec<OsdInfo>,
    /// Client addresses, and ranges of them, that are shut out, and until when.
    pub blocklist: BTreeMap<EntityAddr, UTime>,
    /// Epoch of the cluster snapshot, 0 none.
    pub cluster_snapshot_epoch: Epoch,
    /// Its name.
    pub cluster_snapshot: String,
    /// Uuid by OSD.
    pub osd_uuid: Vec<Uuid>,
    /// More by OSD.
    pub osd_xinfo: Vec<OsdXInfo>,
    /// Warn above this use.
    pub nearfull_ratio: f32,
    /// Stop writes above this use.
    pub full_ratio: f32,
    /// No backfill into OSDs above this use.
    pub backfillfull_ratio: f32,
    /// Oldest client release allowed.
    pub require_min_compat_client: u8,
    /// Oldest OSD release allowed.
    pub require_osd_release: u8,
    /// Snapshots removed and not yet purged.
    pub removed_snaps_queue: BTreeMap<PoolId, SnapIntervals>,
    /// Flags by CRUSH bucket.
    pub crush_node_flags: BTreeMap<i32, u32>,
    /// Flags by device class.
    pub device_class_flags: BTreeMap<i32, u32>,
}

impl Default for OsdMap {
    fn default() -> Self {
        Self {
            fsid: Uuid::default(),
            epoch: 0,
            created: UTime::ZERO,
            modified: UTime::ZERO,
            pools: BTreeMap::new(),
            pool_names: BTreeMap::new(),
            pool_max: 0,
            flags: 0,
            osd_state: Vec::new(),
            osd_weight: Vec::new(),
            osd_addrs: Vec::new(),
            pg_temp: BTreeMap::new(),
            primary_temp: BTreeMap::new(),
            primary_affinity: Vec::new(),
            crush: Crush::default(),
            ec_profiles: BTreeMap::new(),
            pg_upmap: BTreeMap::new(),
            pg_upmap_items: BTreeMap::new(),
            crush_version: 1,
            new_removed_snaps: BTreeMap::new(),
            new_purged_snaps: BTreeMap::new(),
            last_up_change: UTime::ZERO,
            last_in_change: UTime::ZERO,
            osd_info: Vec::new(),
            blocklist: BTreeMap::new(),
            cluster_snapshot_epoch: 0,
            cluster_snapshot: String::new(),
            osd_uuid: Vec::new(),
            osd_xinfo: Vec::new(),
            nearfull_ratio: 0.0,
            full_ratio: 0.0,
            backfillfull_ratio: 0.0,
            require_min_compat_client: 0,
            require_osd_release: 0,
            removed_snaps_queue: BTreeMap::new(),
            crush_node_flags: BTreeMap::new(),
            device_class_flags: BTreeMap::new(),
        }
    }
}

/// Of the OSDs' section, what says how a stretched cluster does, from version 10 on, bytes. No
/// cluster here is one.
const STRETCH_BYTES: usize = 1 + 4 * 4;

impl OsdMap {
    /// An empty map of a fresh Pacific cluster at `epoch`: ratios 0.85/0.90/0.95, release
    /// Pacific required, Luminous clients.
    pub fn fresh(fsid: Uuid, epoch: Epoch, now: UTime, crush: Crush) -> Self {
        Self {
            fsid,
            epoch,
            created: now,
            modified: now,
            flags: flags::FRESH,
            crush,
            nearfull_ratio: 0.85,
            full_ratio: 0.95,
            backfillfull_ratio: 0.90,
            require_min_compat_client: 12,
            require_osd_release: crate::RELEASE_PACIFIC,
            ..Self::default()
        }
    }

    /// One more than the highest OSD id there is room for.
    pub fn max_osd(&self) -> i32 {
        self.osd_state.len() as i32
    }

    /// Makes room for ids below `n`, or drops those from `n` on.
    pub fn set_max_osd(&mut self, n: i32) {
        let n = usize::try_from(n).unwrap_or(0);
        self.osd_state.resize(n, 0);
        self.osd_weight.resize(n, 0);
        self.osd_addrs.resize(n, OsdAddrs::default());
        self.osd_info.resize(n, OsdInfo::default());
        self.osd_xinfo.resize(n, OsdXInfo::default());
        self.osd_uuid.resize(n, Uuid::default());
        if !self.primary_affinity.is_empty() {
            self.primary_affinity.resize(n, WEIGHT_IN);
        }
    }

    /// State bits, 0 for an id out of range.
    pub fn state(&self, osd: OsdId) -> u32 {
        usize::try_from(osd).ok().and_then(|i| self.osd_state.get(i)).copied().unwrap_or(0)
    }
    /// The `NO…` bits that hold for this OSD: its own, those of its device class, and those of
    /// every CRUSH node above it (`osd set-group`).
    pub fn held(&self, osd: OsdId) -> u32 {
        let own = self.state(osd) & (state::NOUP | state::NODOWN | state::NOIN | state::NOOUT);
        if self.crush_node_flags.is_empty() && self.device_class_flags.is_empty() {
            return own;
        }
        let class = self.crush.class_of(osd).and_then(|name| self.crush.class_id(name));
        let mut bits =
            own | class.and_then(|c| self.device_class_flags.get(&c)).copied().unwrap_or(0);
        let mut at = osd;
        // No tree is deeper than it has buckets; a damaged one may be a ring.
        for _ in 0..self.crush.buckets.len() {
            let Some(parent) = self.crush.parent_of(at) else { break };
            at = parent.id;
            bits |= self.crush_node_flags.get(&at).copied().unwrap_or(0);
        }
        bits
    }
    /// Does this OSD exist?
    pub fn exists(&self, osd: OsdId) -> bool {
        self.state(osd) & state::EXISTS != 0
    }
    /// Does it exist and is it up?
    pub fn is_up(&self, osd: OsdId) -> bool {
        const BOTH: u32 = state::EXISTS | state::UP;
        self.state(osd) & BOTH == BOTH
    }
    /// Does it not exist or is it down?
    pub fn is_down(&self, osd: OsdId) -> bool {
        !self.is_up(osd)
    }
    /// Weight, 0 for an id out of range.
    pub fn weight(&self, osd: OsdId) -> u32 {
        usize::try_from(osd).ok().and_then(|i| self.osd_weight.get(i)).copied().unwrap_or(0)
    }
    /// Does it exist with a weight above 0?
    pub fn is_in(&self, osd: OsdId) -> bool {
        self.exists(osd) && self.weight(osd) != 0
    }
    /// Does it not exist or have weight 0?
    pub fn is_out(&self, osd: OsdId) -> bool {
        !self.is_in(osd)
    }
    /// Primary affinity, 0x10000 = full.
    pub fn affinity(&self, osd: OsdId) -> u32 {
        usize::try_from(osd)
            .ok()
            .and_then(|i| self.primary_affinity.get(i))
            .copied()
            .unwrap_or(WEIGHT_IN)
    }
    /// Addresses, if in range.
    pub fn addrs(&self, osd: OsdId) -> Option<&OsdAddrs> {
        self.osd_addrs.get(usize::try_from(osd).ok()?)
    }
    /// Up and down epochs, if in range.
    pub fn info(&self, osd: OsdId) -> Option<&OsdInfo> {
        self.osd_info.get(usize::try_from(osd).ok()?)
    }
    /// More, if in range.
    pub fn xinfo(&self, osd: OsdId) -> Option<&OsdXInfo> {
        self.osd_xinfo.get(usize::try_from(osd).ok()?)
    }
    /// Uuid, if in range.
    pub fn uuid(&self, osd: OsdId) -> Option<Uuid> {
        self.osd_uuid.get(usize::try_from(osd).ok()?).copied()
    }
    /// Ids of the OSDs that exist.
    pub fn osds(&self) -> impl Iterator<Item = OsdId> + '_ {
        (0..self.max_osd()).filter(|o| self.exists(*o))
    }
    /// Numbers of OSDs: existing, up, in.
    pub fn osd_counts(&self) -> (u32, u32, u32) {
        self.osds().fold((0, 0, 0), |(n, u, i), o| {
            (n + 1, u + u32::from(self.is_up(o)), i + u32::from(self.is_in(o)))
        })
    }
    /// A pool.
    pub fn pool(&self, id: PoolId) -> Option<&PgPool> {
        self.pools.get(&id)
    }
    /// A pool's name, `?` if it has none.
    pub fn pool_name(&self, id: PoolId) -> &str {
        self.pool_names.get(&id).map_or("?", String::as_str)
    }
    /// A pool's id by name.
    pub fn pool_by_name(&self, name: &str) -> Option<PoolId> {
        self.pool_names.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }
    /// Is this cluster flag set?
    pub fn has_flag(&self, f: u32) -> bool {
        self.flags & f != 0
    }
    /// Is the client at this address (with its nonce) shut out at the time of this map?
    /// An entry with nonce 0 shuts out every client of its IP address, a range those of all its
    /// addresses.
    pub fn is_blocklisted(&self, addr: &EntityAddr) -> bool {
        let list = &self.blocklist;
        let ranges = list.range(RANGES..).map(|(entry, _)| entry);
        !list.is_empty() && is_shut_out(addr, |key| list.contains_key(key), ranges)
    }

    /// The wire form with its checksum.
    pub fn to_bytes(&self) -> Bytes {
        let mut out =
            Encoder::with_capacity(4096 + self.osd_state.len() * 512 + self.crush.bytes().len());
        self.encode(&mut out);
        out.into_bytes()
    }

    fn encode_client(&self, o: &mut Encoder) {
        o.put(&self.fsid);
        o.u32(self.epoch);
        o.put(&self.created);
        o.put(&self.modified);
        o.put(&self.pools);
        o.put(&self.pool_names);
        o.i32(self.pool_max);
        o.u32(self.flags);
        o.i32(self.max_osd());
        o.put(&self.osd_state);
        o.put(&self.osd_weight);
        o.list(&self.osd_addrs, |o, a| o.put(&a.client));
        o.put(&self.pg_temp);
        o.put(&self.primary_temp);
        o.put(&self.primary_affinity);
        o.put(&self.crush);
        o.put(&self.ec_profiles);
        o.put(&self.pg_upmap);
        o.put(&self.pg_upmap_items);
        o.u32(self.crush_version);
        o.put(&self.new_removed_snaps);
        o.put(&self.new_purged_snaps);
        o.put(&self.last_up_change);
        o.put(&self.last_in_change);
    }

    fn encode_osd(&self, o: &mut Encoder) {
        o.list(&self.osd_addrs, |o, a| o.put(&a.hb_back));
        o.put(&self.osd_info);
        put_entries(o, &self.blocklist, false);
        o.list(&self.osd_addrs, |o, a| o.put(&a.cluster));
        o.u32(self.cluster_snapshot_epoch);
        o.put(&self.cluster_snapshot);
        o.put(&self.osd_uuid);
        o.put(&self.osd_xinfo);
        o.list(&self.osd_addrs, |o, a| o.put(&a.hb_front));
        o.f32(self.nearfull_ratio);
        o.f32(self.full_ratio);
        o.f32(self.backfillfull_ratio);
        o.u8(self.require_min_compat_client);
        o.u8(self.require_osd_release);
        o.put(&self.removed_snaps_queue);
        o.put(&self.crush_node_flags);
        o.put(&self.device_class_flags);
        if has_ranges(self.blocklist.keys()) {
            o.zeros(STRETCH_BYTES);
            put_entries(o, &self.blocklist, true);
        }
    }

    fn decode_client(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut m = Self {
            fsid: d.get()?,
            epoch: d.u32()?,
            created: d.get()?,
            modified: d.get()?,
            pools: d.get()?,
            pool_names: d.get()?,
            pool_max: d.i32()?,
            flags: d.u32()?,
            ..Self::default()
        };
        let max = d.i32()?;
        // Each OSD takes at least its state and weight in what follows.
        if max < 0 || (max as usize).saturating_mul(8) > d.remaining() {
            return Err(DecodeError::Value { what: "max_osd", value: i64::from(max) });
        }
        let n = max as usize;
        m.osd_state = per_osd(d, n)?;
        m.osd_weight = per_osd(d, n)?;
        let client: Vec<AddrVec> = per_osd(d, n)?;
        m.osd_addrs =
            client.into_iter().map(|client| OsdAddrs { client, ..OsdAddrs::default() }).collect();
        m.pg_temp = d.get()?;
        m.primary_temp = d.get()?;
        m.primary_affinity = d.get()?;
        m.crush = d.get()?;
        m.ec_profiles = d.get()?;
        m.pg_upmap = d.get()?;
        m.pg_upmap_items = d.get()?;
        m.crush_version = d.u32()?;
        m.new_removed_snaps = d.get()?;
        m.new_purged_snaps = d.get()?;
        m.last_up_change = d.get()?;
        m.last_in_change = d.get()?;
        Ok(m)
    }

    fn decode_osd(&mut self, d: &mut Decoder<'_>, version: u8) -> Result<(), DecodeError> {
        let n = self.osd_state.len();
        let hb_back: Vec<AddrVec> = per_osd(d, n)?;
        self.osd_info = per_osd(d, n)?;
        self.blocklist = d.get()?;
        let cluster: Vec<AddrVec> = per_osd(d, n)?;
        self.cluster_snapshot_epoch = d.u32()?;
        self.cluster_snapshot = d.get()?;
        self.osd_uuid = per_osd(d, n)?;
        self.osd_xinfo = per_osd(d, n)?;
        let hb_front: Vec<AddrVec> = per_osd(d, n)?;
        for (i, ((b, c), f)) in hb_back.into_iter().zip(cluster).zip(hb_front).enumerate() {
            if let Some(a) = self.osd_addrs.get_mut(i) {
                (a.hb_back, a.cluster, a.hb_front) = (b, c, f);
            }
        }
        self.nearfull_ratio = d.f32()?;
        self.full_ratio = d.f32()?;
        self.backfillfull_ratio = d.f32()?;
        self.require_min_compat_client = d.u8()?;
        self.require_osd_release = d.u8()?;
        self.removed_snaps_queue = d.get()?;
        self.crush_node_flags = d.get()?;
        self.device_class_flags = d.get()?;
        if version >= RANGES_SINCE {
            d.skip(STRETCH_BYTES)?;
            self.blocklist.extend(d.get::<BTreeMap<EntityAddr, UTime>>()?);
        }
        Ok(())
    }
}

/// A list with exactly one element per OSD.
fn per_osd<T: Decode>(d: &mut Decoder<'_>, n: usize) -> Result<Vec<T>, DecodeError> {
    let v: Vec<T> = d.get()?;
    if v.len() == n {
        Ok(v)
    } else {
        Err(DecodeError::Value { what: "list over OSDs", value: v.len() as i64 })
    }
}

impl Encode for OsdMap {
    fn encode(&self, out: &mut Encoder) {
        let start = out.len();
        out.versioned(8, 7, |o| {
            o.versioned(9, 1, |o| self.encode_client(o));
            let version = if has_ranges(self.blocklist.keys()) { RANGES_SINCE } else { 9 };
            o.versioned(version, 1, |o| self.encode_osd(o));
            o.u32(0);
        });
        // The checksum covers the length too, so it comes last.
        let at = out.len() - 4;
        let crc = crc32c(u32::MAX, out.as_slice().get(start..at).unwrap_or_default());
        out.patch_u32(at, crc);
    }
}

impl Decode for OsdMap {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let all = d.rest();
        let start = d.position();
        let (map, crc_at, expected) = d.versioned("OSDMap", 8, |d, v| {
            if v < 8 {
                return Err(DecodeError::TooOld { what: "OSDMap", version: v, oldest: 8 });
            }
            let mut m = d.versioned("OSDMap client section", 10, |d, v| {
                if v < 9 {
                    return Err(DecodeError::TooOld {
                        what: "OSDMap client section",
                        version: v,
                        oldest: 9,
                    });
                }
                Self::decode_client(d)
            })?;
            d.versioned("OSDMap osd section", 12, |d, v| {
                if v < 9 {
                    return Err(DecodeError::TooOld {
                        what: "OSDMap osd section",
                        version: v,
                        oldest: 9,
                    });
                }
                m.decode_osd(d, v)
            })?;
            // `position` counts from the body, which starts after version, compat and length.
            let at = d.position() + 6;
            Ok((m, at, d.u32()?))
        })?;
        debug_assert!(d.position() > start);
        let found = crc32c(u32::MAX, all.get(..crc_at).unwrap_or_default());
        if found != expected {
            return Err(DecodeError::Checksum { what: "OSDMap", found, expected });
        }
        Ok(map)
    }
}

/// A full map that no longer changes, together with its wire form: what is sent to many is
/// encoded once.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedOsdMap {
    map: OsdMap,
    bytes: Bytes,
}

impl EncodedOsdMap {
    /// Encodes a map.
    pub fn new(map: OsdMap) -> Self {
        let bytes = map.to_bytes();
        Self { map, bytes }
    }

    /// Decodes a map, keeping its bytes.
    ///
    /// # Errors
    /// [`DecodeError`], also for bytes after the end or a wrong checksum.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        Ok(Self { map: spirula_encoding::from_slice(&bytes)?, bytes })
    }

    /// The wire form.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The checksum at the end of the wire form.
    pub fn crc(&self) -> u32 {
        crc_of(&self.bytes)
    }

    /// The map alone.
    pub fn into_map(self) -> OsdMap {
        self.map
    }
}

impl Deref for EncodedOsdMap {
    type Target = OsdMap;
    fn deref(&self) -> &OsdMap {
        &self.map
    }
}

/// The last four bytes: where an encoded full map keeps its checksum.
pub(crate) fn crc_of(bytes: &[u8]) -> u32 {
    bytes.last_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b))
}
