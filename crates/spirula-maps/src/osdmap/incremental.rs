//! The step from one OSD map to the next.

use super::blocklist::{RANGES_SINCE, has_ranges, is_range, put_entries};
use super::{OsdMap, OsdXInfo, PgPool, Profile, SnapIntervals, state};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, crc::crc32c};
use spirula_types::{AddrVec, EntityAddr, Epoch, OsdId, PgId, PoolId, Uuid};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// What changes from epoch − 1 to `epoch` (client section v8, OSD section v9).
#[derive(Clone, Debug, PartialEq)]
pub struct Incremental {
    /// The cluster.
    pub fsid: Uuid,
    /// Epoch this leads to.
    pub epoch: Epoch,
    /// When it was made.
    pub modified: UTime,
    /// New highest pool id, −1 unchanged.
    pub new_pool_max: i64,
    /// New flags, −1 unchanged.
    pub new_flags: i32,
    /// A whole encoded map in place of everything else, normally empty.
    pub fullmap: Bytes,
    /// New CRUSH map, empty if unchanged.
    pub crush: Bytes,
    /// New room for OSDs, −1 unchanged.
    pub new_max_osd: i32,
    /// Pools new or changed.
    pub new_pools: BTreeMap<PoolId, PgPool>,
    /// Names new or changed.
    pub new_pool_names: BTreeMap<PoolId, String>,
    /// Pools deleted.
    pub old_pools: BTreeSet<PoolId>,
    /// OSDs that came up: client addresses.
    pub new_up_client: BTreeMap<OsdId, AddrVec>,
    /// State bits to flip; 0 means UP.
    pub new_state: BTreeMap<OsdId, u32>,
    /// Weights.
    pub new_weight: BTreeMap<OsdId, u32>,
    /// Acting sets; empty deletes.
    pub new_pg_temp: BTreeMap<PgId, Vec<OsdId>>,
    /// Primaries; −1 deletes.
    pub new_primary_temp: BTreeMap<PgId, OsdId>,
    /// Primary affinities.
    pub new_primary_affinity: BTreeMap<OsdId, u32>,
    /// Erasure-code profiles set.
    pub new_ec_profiles: BTreeMap<String, Profile>,
    /// Erasure-code profiles deleted.
    pub old_ec_profiles: Vec<String>,
    /// Raw sets.
    pub new_pg_upmap: BTreeMap<PgId, Vec<OsdId>>,
    /// Raw sets deleted.
    pub old_pg_upmap: BTreeSet<PgId>,
    /// Exchanges.
    pub new_pg_upmap_items: BTreeMap<PgId, Vec<(OsdId, OsdId)>>,
    /// Exchanges deleted.
    pub old_pg_upmap_items: BTreeSet<PgId>,
    /// Snapshots removed.
    pub new_removed_snaps: BTreeMap<PoolId, SnapIntervals>,
    /// Snapshots fully trimmed.
    pub new_purged_snaps: BTreeMap<PoolId, SnapIntervals>,
    /// When an OSD went up or down; zero unchanged.
    pub new_last_up_change: UTime,
    /// When an OSD went in or out; zero unchanged.
    pub new_last_in_change: UTime,
    /// OSDs that came up: heartbeat addresses, cluster network.
    pub new_hb_back_up: BTreeMap<OsdId, AddrVec>,
    /// OSDs known alive in an epoch.
    pub new_up_thru: BTreeMap<OsdId, Epoch>,
    /// Clean intervals of OSDs.
    pub new_last_clean_interval: BTreeMap<OsdId, (Epoch, Epoch)>,
    /// OSDs declared lost.
    pub new_lost: BTreeMap<OsdId, Epoch>,
    /// Addresses, and ranges of them, shut out, and until when.
    pub new_blocklist: BTreeMap<EntityAddr, UTime>,
    /// Addresses let in again.
    pub old_blocklist: Vec<EntityAddr>,
    /// OSDs that came up: cluster addresses.
    pub new_up_cluster: BTreeMap<OsdId, AddrVec>,
    /// Cluster snapshot.
    pub cluster_snapshot: String,
    /// Uuids.
    pub new_uuid: BTreeMap<OsdId, Uuid>,
    /// More about OSDs.
    pub new_xinfo: BTreeMap<OsdId, OsdXInfo>,
    /// OSDs that came up: heartbeat addresses, public network.
    pub new_hb_front_up: BTreeMap<OsdId, AddrVec>,
    /// Features the full map was encoded with.
    pub encode_features: u64,
    /// Below 0: unchanged.
    pub new_nearfull_ratio: f32,
    /// Below 0: unchanged.
    pub new_full_ratio: f32,
    /// Below 0: unchanged.
    pub new_backfillfull_ratio: f32,
    /// 0xff: unchanged.
    pub new_require_min_compat_client: u8,
    /// 0xff: unchanged.
    pub new_require_osd_release: u8,
    /// Flags by bucket; 0 deletes.
    pub new_crush_node_flags: BTreeMap<i32, u32>,
    /// Flags by device class; 0 deletes.
    pub new_device_class_flags: BTreeMap<i32, u32>,
    /// Checksum of the full map of `epoch`.
    pub full_crc: u32,
}

impl Default for Incremental {
    fn default() -> Self {
        Self {
            fsid: Uuid::default(),
            epoch: 0,
            modified: UTime::ZERO,
            new_pool_max: -1,
            new_flags: -1,
            fullmap: Bytes::new(),
            crush: Bytes::new(),
            new_max_osd: -1,
            new_pools: BTreeMap::new(),
            new_pool_names: BTreeMap::new(),
            old_pools: BTreeSet::new(),
            new_up_client: BTreeMap::new(),
            new_state: BTreeMap::new(),
            new_weight: BTreeMap::new(),
            new_pg_temp: BTreeMap::new(),
            new_primary_temp: BTreeMap::new(),
            new_primary_affinity: BTreeMap::new(),
            new_ec_profiles: BTreeMap::new(),
            old_ec_profiles: Vec::new(),
            new_pg_upmap: BTreeMap::new(),
            old_pg_upmap: BTreeSet::new(),
            new_pg_upmap_items: BTreeMap::new(),
            old_pg_upmap_items: BTreeSet::new(),
            new_removed_snaps: BTreeMap::new(),
            new_purged_snaps: BTreeMap::new(),
            new_last_up_change: UTime::ZERO,
            new_last_in_change: UTime::ZERO,
            new_hb_back_up: BTreeMap::new(),
            new_up_thru: BTreeMap::new(),
            new_last_clean_interval: BTreeMap::new(),
            new_lost: BTreeMap::new(),
            new_blocklist: BTreeMap::new(),
            old_blocklist: Vec::new(),
            new_up_cluster: BTreeMap::new(),
            cluster_snapshot: String::new(),
            new_uuid: BTreeMap::new(),
            new_xinfo: BTreeMap::new(),
            new_hb_front_up: BTreeMap::new(),
            encode_features: spirula_types::features::PACIFIC,
            new_nearfull_ratio: -1.0,
            new_full_ratio: -1.0,
            new_backfillfull_ratio: -1.0,
            new_require_min_compat_client: 0xff,
            new_require_osd_release: 0xff,
            new_crush_node_flags: BTreeMap::new(),
            new_device_class_flags: BTreeMap::new(),
            full_crc: 0,
        }
    }
}

impl Incremental {
    /// An empty step from `map` to its next epoch.
    pub fn next(map: &OsdMap, now: UTime) -> Self {
        Self { fsid: map.fsid, epoch: map.epoch + 1, modified: now, ..Self::default() }
    }

    /// True if nothing but epoch and time would change.
    pub fn is_noop(&self) -> bool {
        let bare = Self {
            fsid: self.fsid,
            epoch: self.epoch,
            modified: self.modified,
            encode_features: self.encode_features,
            full_crc: self.full_crc,
            ..Self::default()
        };
        *self == bare
    }

    /// Computes the checksum of the full map this leads to and puts it in. Returns that map.
    ///
    /// # Errors
    /// [`super::ApplyError`] if this step does not follow `base`.
    pub fn seal(&mut self, base: &OsdMap) -> Result<super::EncodedOsdMap, super::ApplyError> {
        let mut next = base.clone();
        next.apply(self)?;
        let next = super::EncodedOsdMap::new(next);
        self.full_crc = next.crc();
        Ok(next)
    }

    /// A new pool with the next id (counting pools already added to this step). Returns the id.
    pub fn add_pool(&mut self, map: &OsdMap, name: &str, mut pool: PgPool) -> PoolId {
        let top = if self.new_pool_max >= 0 { self.new_pool_max } else { i64::from(map.pool_max) };
        let id = top.max(0) + 1;
        self.new_pool_max = id;
        pool.last_change = self.epoch;
        self.new_pools.insert(id, pool);
        self.new_pool_names.insert(id, name.to_string());
        id
    }

    /// The pool as it will be, ready to be changed: this step's version, else the map's.
    pub fn pool_mut(&mut self, map: &OsdMap, id: PoolId) -> Option<&mut PgPool> {
        let p = match self.new_pools.entry(id) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(map.pools.get(&id)?.clone()),
        };
        p.last_change = self.epoch;
        Some(p)
    }

    /// Deletes a pool with everything the map holds about its PGs.
    pub fn remove_pool(&mut self, map: &OsdMap, id: PoolId) {
        self.old_pools.insert(id);
        self.new_pools.remove(&id);
        self.new_pool_names.remove(&id);
        self.new_pg_temp.retain(|pg, _| pg.pool != id);
        self.new_primary_temp.retain(|pg, _| pg.pool != id);
        self.new_pg_upmap.retain(|pg, _| pg.pool != id);
        self.new_pg_upmap_items.retain(|pg, _| pg.pool != id);
        let of = |pg: &&PgId| pg.pool == id;
        self.new_pg_temp.extend(map.pg_temp.keys().filter(of).map(|pg| (*pg, Vec::new())));
        self.new_primary_temp.extend(map.primary_temp.keys().filter(of).map(|pg| (*pg, -1)));
        self.old_pg_upmap.extend(map.pg_upmap.keys().filter(of));
        self.old_pg_upmap_items.extend(map.pg_upmap_items.keys().filter(of));
    }

    /// Creates an OSD id (exists, new, down, out) with its uuid, making room if needed.
    pub fn create_osd(&mut self, map: &OsdMap, osd: OsdId, uuid: Uuid) {
        let room = if self.new_max_osd >= 0 { self.new_max_osd } else { map.max_osd() };
        if osd >= room {
            self.new_max_osd = osd + 1;
        }
        if !map.exists(osd) {
            self.new_state.insert(osd, state::EXISTS | state::NEW);
        }
        self.new_uuid.insert(osd, uuid);
    }

    /// Removes an OSD id for good (it must be down).
    pub fn destroy_osd(&mut self, map: &OsdMap, osd: OsdId) {
        self.new_state.insert(osd, map.state(osd));
        self.new_weight.remove(&osd);
    }

    /// Marks an OSD up at its addresses. Its clean interval and `up_thru` are the caller's
    /// to set, from what the OSD says when it boots.
    pub fn mark_up(&mut self, osd: OsdId, addrs: &super::OsdAddrs) {
        self.new_up_client.insert(osd, addrs.client.clone());
        self.new_up_cluster.insert(osd, addrs.cluster.clone());
        self.new_hb_back_up.insert(osd, addrs.hb_back.clone());
        self.new_hb_front_up.insert(osd, addrs.hb_front.clone());
        self.new_last_up_change = self.modified;
    }

    /// Marks an OSD down, if it is up.
    pub fn mark_down(&mut self, map: &OsdMap, osd: OsdId) {
        if map.is_up(osd) {
            *self.new_state.entry(osd).or_insert(0) |= state::UP;
            self.new_last_up_change = self.modified;
        }
    }

    /// Sets an OSD's weight (0 = out, 0x10000 = in).
    pub fn set_weight(&mut self, map: &OsdMap, osd: OsdId, weight: u32) {
        if map.weight(osd) != weight || self.new_weight.contains_key(&osd) {
            if (map.weight(osd) == 0) != (weight == 0) {
                self.new_last_in_change = self.modified;
            }
            self.new_weight.insert(osd, weight);
            // A weight makes the OSD exist before states are flipped; flipping EXISTS
            // again would destroy it.
            if weight != 0
                && !map.exists(osd)
                && let Some(s) = self.new_state.get_mut(&osd)
            {
                *s &= !state::EXISTS;
            }
        }
    }

    /// Sets and clears cluster flags, on top of what this step already changes.
    pub fn change_flags(&mut self, map: &OsdMap, set: u32, clear: u32) {
        let now = if self.new_flags >= 0 { self.new_flags as u32 } else { map.flags };
        self.new_flags = ((now | set) & !clear) as i32;
    }

    fn encode_client(&self, o: &mut Encoder) {
        o.put(&self.fsid);
        o.u32(self.epoch);
        o.put(&self.modified);
        o.i64(self.new_pool_max);
        o.i32(self.new_flags);
        o.put(&self.fullmap);
        o.put(&self.crush);
        o.i32(self.new_max_osd);
        o.put(&self.new_pools);
        o.put(&self.new_pool_names);
        o.put(&self.old_pools);
        o.put(&self.new_up_client);
        o.put(&self.new_state);
        o.put(&self.new_weight);
        o.put(&self.new_pg_temp);
        o.put(&self.new_primary_temp);
        o.put(&self.new_primary_affinity);
        o.put(&self.new_ec_profiles);
        o.put(&self.old_ec_profiles);
        o.put(&self.new_pg_upmap);
        o.put(&self.old_pg_upmap);
        o.put(&self.new_pg_upmap_items);
        o.put(&self.old_pg_upmap_items);
        o.put(&self.new_removed_snaps);
        o.put(&self.new_purged_snaps);
        o.put(&self.new_last_up_change);
        o.put(&self.new_last_in_change);
    }

    fn encode_osd(&self, o: &mut Encoder) {
        o.put(&self.new_hb_back_up);
        o.put(&self.new_up_thru);
        o.put(&self.new_last_clean_interval);
        o.put(&self.new_lost);
        put_entries(o, &self.new_blocklist, false);
        o.list(self.old_blocklist.iter().filter(|a| !is_range(a)), |o, a| o.put(a));
        o.put(&self.new_up_cluster);
        o.put(&self.cluster_snapshot);
        o.put(&self.new_uuid);
        o.put(&self.new_xinfo);
        o.put(&self.new_hb_front_up);
        o.u64(self.encode_features);
        o.f32(self.new_nearfull_ratio);
        o.f32(self.new_full_ratio);
        o.f32(self.new_backfillfull_ratio);
        o.u8(self.new_require_min_compat_client);
        o.u8(self.new_require_osd_release);
        o.put(&self.new_crush_node_flags);
        o.put(&self.new_device_class_flags);
        if self.changes_ranges() {
            o.zeros(STRETCH_BYTES);
            put_entries(o, &self.new_blocklist, true);
            o.list(self.old_blocklist.iter().filter(|a| is_range(a)), |o, a| o.put(a));
        }
    }

    fn changes_ranges(&self) -> bool {
        has_ranges(self.new_blocklist.keys().chain(&self.old_blocklist))
    }

    fn decode_client(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            fsid: d.get()?,
            epoch: d.u32()?,
            modified: d.get()?,
            new_pool_max: d.i64()?,
            new_flags: d.i32()?,
            fullmap: d.get()?,
            crush: d.get()?,
            new_max_osd: d.i32()?,
            new_pools: d.get()?,
            new_pool_names: d.get()?,
            old_pools: d.get()?,
            new_up_client: d.get()?,
            new_state: d.get()?,
            new_weight: d.get()?,
            new_pg_temp: d.get()?,
            new_primary_temp: d.get()?,
            new_primary_affinity: d.get()?,
            new_ec_profiles: d.get()?,
            old_ec_profiles: d.get()?,
            new_pg_upmap: d.get()?,
            old_pg_upmap: d.get()?,
            new_pg_upmap_items: d.get()?,
            old_pg_upmap_items: d.get()?,
            new_removed_snaps: d.get()?,
            new_purged_snaps: d.get()?,
            new_last_up_change: d.get()?,
            new_last_in_change: d.get()?,
            ..Self::default()
        })
    }

    fn decode_osd(&mut self, d: &mut Decoder<'_>, version: u8) -> Result<(), DecodeError> {
        self.new_hb_back_up = d.get()?;
        self.new_up_thru = d.get()?;
        self.new_last_clean_interval = d.get()?;
        self.new_lost = d.get()?;
        self.new_blocklist = d.get()?;
        self.old_blocklist = d.get()?;
        self.new_up_cluster = d.get()?;
        self.cluster_snapshot = d.get()?;
        self.new_uuid = d.get()?;
        self.new_xinfo = d.get()?;
        self.new_hb_front_up = d.get()?;
        self.encode_features = d.u64()?;
        self.new_nearfull_ratio = d.f32()?;
        self.new_full_ratio = d.f32()?;
        self.new_backfillfull_ratio = d.f32()?;
        self.new_require_min_compat_client = d.u8()?;
        self.new_require_osd_release = d.u8()?;
        self.new_crush_node_flags = d.get()?;
        self.new_device_class_flags = d.get()?;
        if version >= RANGES_SINCE {
            d.skip(STRETCH_BYTES)?;
            self.new_blocklist.extend(d.get::<BTreeMap<EntityAddr, UTime>>()?);
            self.old_blocklist.extend(d.get::<Vec<EntityAddr>>()?);
        }
        Ok(())
    }
}

/// Of the OSDs' section, what changes how a stretched cluster does, from version 10 on, bytes. No
/// cluster here is one.
const STRETCH_BYTES: usize = 1 + 4 * 4 + 1;

impl Encode for Incremental {
    fn encode(&self, out: &mut Encoder) {
        let start = out.len();
        out.versioned(8, 7, |o| {
            o.versioned(8, 1, |o| self.encode_client(o));
            let version = if self.changes_ranges() { RANGES_SINCE } else { 9 };
            o.versioned(version, 1, |o| self.encode_osd(o));
            o.u32(0);
            o.u32(self.full_crc);
        });
        let at = out.len() - 8;
        let all = out.as_slice();
        // The four bytes of the checksum itself are left out, what follows them is not.
        let head = crc32c(u32::MAX, all.get(start..at).unwrap_or_default());
        let crc = crc32c(head, all.get(at + 4..).unwrap_or_default());
        out.patch_u32(at, crc);
    }
}

impl Decode for Incremental {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let all = d.rest();
        let start = d.position();
        let (inc, crc_at, expected) = d.versioned("OSDMap::Incremental", 8, |d, v| {
            if v < 8 {
                return Err(DecodeError::TooOld {
                    what: "OSDMap::Incremental",
                    version: v,
                    oldest: 8,
                });
            }
            let mut m = d.versioned("Incremental client section", 9, |d, v| {
                if v < 8 {
                    return Err(DecodeError::TooOld {
                        what: "Incremental client section",
                        version: v,
                        oldest: 8,
                    });
                }
                Self::decode_client(d)
            })?;
            d.versioned("Incremental osd section", 12, |d, v| {
                if v < 9 {
                    return Err(DecodeError::TooOld {
                        what: "Incremental osd section",
                        version: v,
                        oldest: 9,
                    });
                }
                m.decode_osd(d, v)
            })?;
            let at = d.position() + 6;
            let crc = d.u32()?;
            m.full_crc = d.u32()?;
            Ok((m, at, crc))
        })?;
        let end = d.position() - start;
        let head = crc32c(u32::MAX, all.get(..crc_at).unwrap_or_default());
        let found = crc32c(head, all.get(crc_at + 4..end).unwrap_or_default());
        if found != expected {
            return Err(DecodeError::Checksum { what: "OSDMap::Incremental", found, expected });
        }
        Ok(inc)
    }
}
