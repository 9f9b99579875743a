//! What an incremental does to a full map.

use super::{Crush, Incremental, OsdAddrs, OsdInfo, OsdMap, OsdXInfo, WEIGHT_IN, flags, state};
use spirula_encoding::{DecodeError, from_slice};
use spirula_types::{Epoch, OsdId, Uuid};

/// Why an incremental could not be applied. The map is then unchanged or must be thrown
/// away: fetch the full map instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// It belongs to another cluster.
    #[error("incremental of cluster {theirs}, ours is {ours}")]
    OtherCluster {
        /// Ours.
        ours: Uuid,
        /// Theirs.
        theirs: Uuid,
    },
    /// It does not follow this epoch.
    #[error("incremental {inc} does not follow map {map}")]
    Gap {
        /// Epoch of the map.
        map: Epoch,
        /// Epoch of the incremental.
        inc: Epoch,
    },
    /// It speaks of an OSD the map has no room for.
    #[error("incremental names osd.{0}, beyond max_osd")]
    Osd(OsdId),
    /// A map inside it is malformed.
    #[error("map inside an incremental: {0}")]
    Decode(#[from] DecodeError),
    /// The result is not the map its maker had.
    #[error(
        "map {epoch} has checksum {found:#010x} after the incremental, its maker had \
            {expected:#010x}"
    )]
    Crc {
        /// Epoch of the result.
        epoch: Epoch,
        /// Computed.
        found: u32,
        /// Told by the incremental.
        expected: u32,
    },
}

/// Most OSDs a map may have room for; Ceph's own limit (mon_max_osd) is 10000.
pub const MAX_OSDS: i32 = 1 << 17;

fn room(max: usize, osds: impl Iterator<Item = OsdId>) -> Result<(), ApplyError> {
    for o in osds {
        if usize::try_from(o).map_or(true, |i| i >= max) {
            return Err(ApplyError::Osd(o));
        }
    }
    Ok(())
}

impl OsdMap {
    /// Applies an incremental and checks that the result has the checksum its maker had.
    /// Returns the result's wire form.
    ///
    /// # Errors
    /// [`ApplyError`]; this map is then of no further use.
    pub fn apply_checked(&mut self, inc: &Incremental) -> Result<bytes::Bytes, ApplyError> {
        self.apply(inc)?;
        let bytes = self.to_bytes();
        let found = super::full::crc_of(&bytes);
        if found != inc.full_crc {
            return Err(ApplyError::Crc { epoch: self.epoch, found, expected: inc.full_crc });
        }
        Ok(bytes)
    }

    /// Applies an incremental without looking at `full_crc`.
    ///
    /// # Errors
    /// [`ApplyError`] other than `Crc`. Cluster, epoch and OSD ids are checked before
    /// anything changes.
    pub fn apply(&mut self, inc: &Incremental) -> Result<(), ApplyError> {
        if inc.epoch == 1 {
            self.fsid = inc.fsid;
        } else if inc.fsid != self.fsid {
            return Err(ApplyError::OtherCluster { ours: self.fsid, theirs: inc.fsid });
        }
        if self.epoch.checked_add(1) != Some(inc.epoch) {
            return Err(ApplyError::Gap { map: self.epoch, inc: inc.epoch });
        }
        if !inc.fullmap.is_empty() {
            *self = from_slice(&inc.fullmap)?;
            return Ok(());
        }
        self.check_osds(inc)?;
        let crush =
            if inc.crush.is_empty() { None } else { Some(Crush::from_bytes(inc.crush.clone())?) };
        self.epoch = inc.epoch;
        self.modified = inc.modified;
        if inc.new_flags >= 0 {
            self.flags = inc.new_flags as u32;
        }
        if inc.new_max_osd >= 0 {
            self.set_max_osd(inc.new_max_osd);
        }
        self.apply_pools(inc);
        self.apply_osds(inc);
        self.apply_pgs(inc);
        self.apply_rest(inc);
        if let Some(c) = crush {
            self.crush = c;
            self.crush_version += 1;
        }
        Ok(())
    }

    fn check_osds(&self, inc: &Incremental) -> Result<(), ApplyError> {
        // The one number that makes us allocate without having been paid for in bytes.
        if inc.new_max_osd > MAX_OSDS {
            return Err(ApplyError::Osd(inc.new_max_osd));
        }
        let max = usize::try_from(inc.new_max_osd).unwrap_or(self.osd_state.len());
        room(max, inc.new_weight.keys().copied())?;
        room(max, inc.new_state.keys().copied())?;
        room(max, inc.new_primary_affinity.keys().copied())?;
        for m in
            [&inc.new_up_client, &inc.new_up_cluster, &inc.new_hb_back_up, &inc.new_hb_front_up]
        {
            room(max, m.keys().copied())?;
        }
        room(max, inc.new_up_thru.keys().copied())?;
        room(max, inc.new_last_clean_interval.keys().copied())?;
        room(max, inc.new_lost.keys().copied())?;
        room(max, inc.new_xinfo.keys().copied())?;
        room(max, inc.new_uuid.keys().copied())
    }

    fn apply_pools(&mut self, inc: &Incremental) {
        if inc.new_pool_max != -1 {
            self.pool_max = inc.new_pool_max as i32;
        }
        for (id, p) in &inc.new_pools {
            let mut p = p.clone();
            p.last_change = self.epoch;
            self.pools.insert(*id, p);
        }
        self.new_removed_snaps = inc.new_removed_snaps.clone();
        self.new_purged_snaps = inc.new_purged_snaps.clone();
        for (pool, s) in &inc.new_removed_snaps {
            self.removed_snaps_queue.entry(*pool).or_default().union(s);
        }
        for (pool, s) in &inc.new_purged_snaps {
            if let Some(q) = self.removed_snaps_queue.get_mut(pool) {
                q.subtract(s);
                if q.is_empty() {
                    self.removed_snaps_queue.remove(pool);
                }
            }
        }
        for (id, n) in &inc.new_pool_names {
            self.pool_names.insert(*id, n.clone());
        }
        for id in &inc.old_pools {
            self.pools.remove(id);
            self.pool_names.remove(id);
        }
    }

    fn set_affinity(&mut self, osd: usize, a: u32) {
        if self.primary_affinity.is_empty() {
            self.primary_affinity.resize(self.osd_state.len(), WEIGHT_IN);
        }
        if let Some(x) = self.primary_affinity.get_mut(osd) {
            *x = a;
        }
    }

    fn apply_osds(&mut self, inc: &Incremental) {
        if !inc.new_last_up_change.is_zero() {
            self.last_up_change = inc.new_last_up_change;
        }
        if !inc.new_last_in_change.is_zero() {
            self.last_in_change = inc.new_last_in_change;
        }
        // Ids were checked by `check_osds`, so every index below is in range.
        for (o, w) in &inc.new_weight {
            let i = *o as usize;
            self.osd_weight[i] = *w;
            if *w != 0 {
                // Whatever takes data exists.
                self.osd_state[i] |= state::EXISTS;
                self.osd_state[i] &= !(state::AUTOOUT | state::NEW);
                self.osd_xinfo[i].old_weight = 0;
            }
        }
        for (o, a) in &inc.new_primary_affinity {
            self.set_affinity(*o as usize, *a);
        }
        for (o, s) in &inc.new_state {
            let i = *o as usize;
            let s = if *s == 0 { state::UP } else { *s };
            if self.osd_state[i] & s & state::UP != 0 {
                self.osd_info[i].down_at = self.epoch;
                self.osd_xinfo[i].down_stamp = self.modified;
            }
            if self.osd_state[i] & s & state::EXISTS != 0 {
                self.osd_uuid[i] = Uuid::default();
                self.osd_info[i] = OsdInfo::default();
                self.osd_xinfo[i] = OsdXInfo::default();
                self.set_affinity(i, WEIGHT_IN);
                self.osd_addrs[i] = OsdAddrs::default();
                self.osd_state[i] = 0;
            } else {
                self.osd_state[i] ^= s;
            }
        }
        for (o, a) in &inc.new_up_client {
            let i = *o as usize;
            self.osd_state[i] |= state::EXISTS | state::UP;
            self.osd_state[i] &= !state::STOP;
            self.osd_addrs[i].client = a.clone();
            self.osd_addrs[i].hb_back = inc.new_hb_back_up.get(o).cloned().unwrap_or_default();
            self.osd_addrs[i].hb_front = inc.new_hb_front_up.get(o).cloned().unwrap_or_default();
            self.osd_info[i].up_from = self.epoch;
        }
        for (o, a) in &inc.new_up_cluster {
            self.osd_addrs[*o as usize].cluster = a.clone();
        }
        for (o, e) in &inc.new_up_thru {
            self.osd_info[*o as usize].up_thru = *e;
        }
        for (o, (b, e)) in &inc.new_last_clean_interval {
            let info = &mut self.osd_info[*o as usize];
            (info.last_clean_begin, info.last_clean_end) = (*b, *e);
        }
        for (o, e) in &inc.new_lost {
            self.osd_info[*o as usize].lost_at = *e;
        }
        for (o, x) in &inc.new_xinfo {
            self.osd_xinfo[*o as usize] = *x;
        }
        for (o, u) in &inc.new_uuid {
            self.osd_uuid[*o as usize] = *u;
        }
    }

    fn apply_pgs(&mut self, inc: &Incremental) {
        for (pg, v) in &inc.new_pg_temp {
            if v.is_empty() {
                self.pg_temp.remove(pg);
            } else {
                self.pg_temp.insert(*pg, v.clone());
            }
        }
        for (pg, o) in &inc.new_primary_temp {
            if *o == -1 {
                self.primary_temp.remove(pg);
            } else {
                self.primary_temp.insert(*pg, *o);
            }
        }
        self.pg_upmap.extend(inc.new_pg_upmap.iter().map(|(k, v)| (*k, v.clone())));
        self.pg_upmap_items.extend(inc.new_pg_upmap_items.iter().map(|(k, v)| (*k, v.clone())));
        for pg in &inc.old_pg_upmap {
            self.pg_upmap.remove(pg);
        }
        for pg in &inc.old_pg_upmap_items {
            self.pg_upmap_items.remove(pg);
        }
    }

    fn apply_rest(&mut self, inc: &Incremental) {
        for p in &inc.old_ec_profiles {
            self.ec_profiles.remove(p);
        }
        self.ec_profiles.extend(inc.new_ec_profiles.iter().map(|(k, v)| (k.clone(), v.clone())));
        // An address already shut out keeps its time, as std::map::insert leaves it.
        for (a, t) in &inc.new_blocklist {
            self.blocklist.entry(*a).or_insert(*t);
        }
        for a in &inc.old_blocklist {
            self.blocklist.remove(a);
        }
        for (from, to) in [
            (&inc.new_crush_node_flags, &mut self.crush_node_flags),
            (&inc.new_device_class_flags, &mut self.device_class_flags),
        ] {
            for (k, f) in from {
                if *f == 0 {
                    to.remove(k);
                } else {
                    to.insert(*k, *f);
                }
            }
        }
        self.cluster_snapshot_epoch = if inc.cluster_snapshot.is_empty() { 0 } else { inc.epoch };
        self.cluster_snapshot.clone_from(&inc.cluster_snapshot);
        for (new, old) in [
            (inc.new_nearfull_ratio, &mut self.nearfull_ratio),
            (inc.new_full_ratio, &mut self.full_ratio),
            (inc.new_backfillfull_ratio, &mut self.backfillfull_ratio),
        ] {
            if new >= 0.0 {
                *old = new;
            }
        }
        if inc.new_require_min_compat_client != 0xff {
            self.require_min_compat_client = inc.new_require_min_compat_client;
        }
        if inc.new_require_osd_release != 0xff {
            self.require_osd_release = inc.new_require_osd_release;
            self.flags = (self.flags & !flags::LEGACY_REQUIRE) | flags::RECOVERY_DELETES;
        }
    }
}
