//! What the manager tells the monitors about PGs, pools and OSDs: enough for `ceph -s`,
//! `df`, `osd df` and health, without the single PGs. Our own wire form.

use crate::{OsdStatReport, PgStat, PgState, PoolStat, SnapIntervals, StoreStatfs};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{Epoch, OSD_NONE, OsdId, PgId, PoolId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Sums over a pool, and its rates over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolSum {
    /// Counters, log sizes, slots, space.
    pub stat: PoolStat,
    /// PGs.
    pub num_pgs: u32,
    /// Clients' bytes read per second.
    pub read_bytes_sec: u64,
    /// Clients' bytes written per second.
    pub write_bytes_sec: u64,
    /// Clients' reads per second.
    pub read_ops_sec: u64,
    /// Clients' writes per second.
    pub write_ops_sec: u64,
    /// Bytes recovered per second.
    pub recover_bytes_sec: u64,
    /// Objects recovered per second.
    pub recover_objects_sec: u64,
    /// Omap keys recovered per second.
    pub recover_keys_sec: u64,
}

impl PoolSum {
    /// Adds one PG.
    pub fn add_pg(&mut self, pg: &PgStat) {
        self.num_pgs += 1;
        let s = &mut self.stat;
        s.stats.sum.add(&pg.stats);
        s.log_size = s.log_size.wrapping_add(pg.log_size);
        s.ondisk_log_size = s.ondisk_log_size.wrapping_add(pg.log_size);
        let slots = |v: &[OsdId]| v.iter().filter(|o| **o != OSD_NONE).count() as i32;
        s.up += slots(&pg.up);
        s.acting += slots(&pg.acting);
    }

    /// Adds everything of `o`. What a sender says is not trusted to add up: sums wrap.
    pub fn add(&mut self, o: &Self) {
        self.stat.stats.sum.add(&o.stat.stats.sum);
        self.stat.log_size = self.stat.log_size.wrapping_add(o.stat.log_size);
        self.stat.ondisk_log_size = self.stat.ondisk_log_size.wrapping_add(o.stat.ondisk_log_size);
        self.stat.up = self.stat.up.wrapping_add(o.stat.up);
        self.stat.acting = self.stat.acting.wrapping_add(o.stat.acting);
        self.stat.store_stats.add(&o.stat.store_stats);
        self.stat.num_store_stats = self.stat.num_store_stats.wrapping_add(o.stat.num_store_stats);
        self.num_pgs = self.num_pgs.wrapping_add(o.num_pgs);
        self.read_bytes_sec = self.read_bytes_sec.wrapping_add(o.read_bytes_sec);
        self.write_bytes_sec = self.write_bytes_sec.wrapping_add(o.write_bytes_sec);
        self.read_ops_sec = self.read_ops_sec.wrapping_add(o.read_ops_sec);
        self.write_ops_sec = self.write_ops_sec.wrapping_add(o.write_ops_sec);
        self.recover_bytes_sec = self.recover_bytes_sec.wrapping_add(o.recover_bytes_sec);
        self.recover_objects_sec = self.recover_objects_sec.wrapping_add(o.recover_objects_sec);
        self.recover_keys_sec = self.recover_keys_sec.wrapping_add(o.recover_keys_sec);
    }
}

impl Encode for PoolSum {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.stat);
            o.u32(self.num_pgs);
            for v in [
                self.read_bytes_sec,
                self.write_bytes_sec,
                self.read_ops_sec,
                self.write_ops_sec,
                self.recover_bytes_sec,
                self.recover_objects_sec,
                self.recover_keys_sec,
            ] {
                o.u64(v);
            }
        });
    }
}

impl Decode for PoolSum {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PoolSum", 1, |d, _| {
            Ok(Self {
                stat: d.get()?,
                num_pgs: d.u32()?,
                read_bytes_sec: d.u64()?,
                write_bytes_sec: d.u64()?,
                read_ops_sec: d.u64()?,
                write_ops_sec: d.u64()?,
                recover_bytes_sec: d.u64()?,
                recover_objects_sec: d.u64()?,
                recover_keys_sec: d.u64()?,
            })
        })
    }
}

/// Sums over OSDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdStatSum {
    /// OSDs that reported.
    pub num_osds: u32,
    /// Space, in bytes.
    pub statfs: StoreStatfs,
    /// Snapshots waiting to be trimmed.
    pub snap_trim_queue_len: u64,
}

/// The manager's digest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PgDigest {
    /// OSD map epoch the manager had.
    pub osdmap_epoch: Epoch,
    /// When it was made.
    pub stamp: UTime,
    /// PGs by exact state; unknown ones included.
    pub pg_states: BTreeMap<PgState, u32>,
    /// Pools.
    pub pools: BTreeMap<PoolId, PoolSum>,
    /// OSDs.
    pub osds: BTreeMap<OsdId, OsdStatReport>,
    /// OSD maps before this epoch are needed by no PG and no OSD; 0 while that is not known.
    pub oldest_needed: Epoch,
    /// Removed snapshots of which no PG of the pool has anything any more, by pool.
    pub purged_snaps: BTreeMap<PoolId, SnapIntervals>,
}

impl PgDigest {
    /// Sums up reports. Space per pool is taken from the OSDs; rates are left at 0 for the
    /// caller, who knows the last seconds.
    pub fn from_reports<'a>(
        osdmap_epoch: Epoch,
        stamp: UTime,
        pgs: impl IntoIterator<Item = (PgId, &'a PgStat)>,
        osds: BTreeMap<OsdId, OsdStatReport>,
    ) -> Self {
        let mut me = Self { osdmap_epoch, stamp, osds, ..Self::default() };
        // A PG that has never been clean needs all maps there are.
        let mut oldest = osdmap_epoch;
        for (id, pg) in pgs {
            oldest = oldest.min(pg.last_epoch_clean);
            *me.pg_states.entry(pg.state).or_insert(0) += 1;
            me.pools.entry(id.pool).or_default().add_pg(pg);
            // One that nobody has reported has purged nothing.
            match me.purged_snaps.entry(id.pool) {
                Entry::Vacant(v) => drop(v.insert(pg.purged_snaps.clone())),
                Entry::Occupied(mut o) => drop(o.insert(o.get().intersection(&pg.purged_snaps))),
            }
        }
        me.purged_snaps.retain(|_, s| !s.is_empty());
        for (pool, s) in me.osds.values().flat_map(|o| &o.pool_statfs) {
            // Space of a deleted pool still on disk belongs to no pool.
            if let Some(p) = me.pools.get_mut(pool) {
                p.stat.store_stats.add(s);
                p.stat.num_store_stats += 1;
            }
        }
        me.oldest_needed = oldest;
        me
    }

    /// Number of PGs.
    pub fn num_pgs(&self) -> u32 {
        self.pg_states.values().fold(0, |sum, n| sum.wrapping_add(*n))
    }

    /// PGs whose state has all bits of `s`.
    pub fn num_pgs_with(&self, s: PgState) -> u32 {
        self.pg_states.iter().filter(|(k, _)| k.has(s)).fold(0, |sum, (_, n)| sum.wrapping_add(*n))
    }

    /// Sum over all pools.
    pub fn pool_sum(&self) -> PoolSum {
        let mut sum = PoolSum::default();
        self.pools.values().for_each(|p| sum.add(p));
        sum
    }

    /// Sum over the OSDs that `keep` accepts.
    pub fn osd_sum(&self, keep: impl Fn(OsdId) -> bool) -> OsdStatSum {
        let mut sum = OsdStatSum::default();
        for (_, r) in self.osds.iter().filter(|(o, _)| keep(**o)) {
            sum.num_osds += 1;
            sum.statfs.add(&r.statfs);
            sum.snap_trim_queue_len += u64::from(r.snap_trim_queue_len);
        }
        sum
    }
}

impl Encode for PgDigest {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(3, 1, |o| {
            o.u32(self.osdmap_epoch);
            o.put(&self.stamp);
            o.put(&self.pg_states);
            o.put(&self.pools);
            o.put(&self.osds);
            o.u32(self.oldest_needed);
            o.put(&self.purged_snaps);
        });
    }
}

impl Decode for PgDigest {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgDigest", 3, |d, v| {
            Ok(Self {
                osdmap_epoch: d.u32()?,
                stamp: d.get()?,
                pg_states: d.get()?,
                pools: d.get()?,
                osds: d.get()?,
                oldest_needed: if v >= 2 { d.u32()? } else { 0 },
                purged_snaps: if v >= 3 { d.get()? } else { BTreeMap::new() },
            })
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ObjectStatSum;
    use spirula_encoding::{from_slice, to_vec};

    #[test]
    fn digest_sums_pgs_by_pool_and_state_and_round_trips() {
        let one = PgStat {
            state: PgState::ACTIVE | PgState::CLEAN,
            stats: ObjectStatSum { num_objects: 2, num_bytes: 10, ..ObjectStatSum::default() },
            up: vec![0, OSD_NONE],
            ..PgStat::default()
        };
        let pgs: Vec<(PgId, &PgStat)> =
            vec![(PgId::new(1, 0), &one), (PgId::new(1, 1), &one), (PgId::new(2, 0), &one)];
        let mut osd = OsdStatReport::default();
        osd.statfs.total = 100;
        osd.pool_statfs.insert(1, StoreStatfs { allocated: 7, ..StoreStatfs::default() });
        let osds = BTreeMap::from([(0, osd.clone()), (1, osd)]);
        let d = PgDigest::from_reports(5, UTime::ZERO, pgs, osds);
        assert_eq!((d.num_pgs(), d.oldest_needed), (3, 0), "never clean: nothing may be forgotten");
        assert_eq!(d.num_pgs_with(PgState::CLEAN), 3);
        let p = &d.pools[&1];
        assert_eq!((p.num_pgs, p.stat.stats.sum.num_objects, p.stat.up), (2, 4, 2));
        assert_eq!((p.stat.store_stats.allocated, p.stat.num_store_stats), (14, 2));
        assert_eq!(d.pool_sum().stat.stats.sum.num_bytes, 30);
        assert!(d.purged_snaps.is_empty());
        assert_eq!(d.osd_sum(|o| o == 1).statfs.total, 100);
        assert_eq!(from_slice::<PgDigest>(&to_vec(&d)).unwrap(), d);
    }

    #[test]
    fn a_snapshot_is_purged_when_every_pg_of_the_pool_says_so() {
        let with = |snaps: &[u64]| {
            let mut s = PgStat::default();
            snaps.iter().for_each(|id| s.purged_snaps.insert(*id, 1));
            s
        };
        let (a, b, none) = (with(&[2, 3, 7]), with(&[3, 4, 7]), with(&[]));
        let pgs = [
            (PgId::new(1, 0), &a),
            (PgId::new(1, 1), &b),
            (PgId::new(2, 0), &a),
            (PgId::new(2, 1), &none),
        ];
        let d = PgDigest::from_reports(5, UTime::ZERO, pgs, BTreeMap::new());
        assert_eq!(d.purged_snaps, BTreeMap::from([(1, with(&[3, 7]).purged_snaps)]));
        assert_eq!(from_slice::<PgDigest>(&to_vec(&d)).unwrap(), d);
    }
}
