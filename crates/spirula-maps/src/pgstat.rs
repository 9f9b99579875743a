//! What PGs and OSDs report of themselves. Our own wire forms: only our daemons read them.

use crate::json::object;
use crate::{ObjectStatSum, PathTimes, PgState, SnapIntervals, StoreStatfs};
use serde_json::{Value, json};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{EVersion, Epoch, OsdId, PgId, PoolId};
use std::collections::BTreeMap;

/// A PG's report by its primary, with all that `pg dump` prints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PgStat {
    /// State.
    pub state: PgState,
    /// Last update of the log.
    pub version: EVersion,
    /// Number of the report, rising within an epoch.
    pub reported_seq: u64,
    /// Epoch of the report.
    pub reported_epoch: Epoch,
    /// Last report.
    pub last_fresh: UTime,
    /// Last change of `state`.
    pub last_change: UTime,
    /// Last time it was seen active.
    pub last_active: UTime,
    /// Last time it was seen peered or active.
    pub last_peered: UTime,
    /// Last time it was seen clean.
    pub last_clean: UTime,
    /// Became active.
    pub last_became_active: UTime,
    /// Became peered.
    pub last_became_peered: UTime,
    /// Last time it was not stale.
    pub last_unstale: UTime,
    /// Last time it was not degraded.
    pub last_undegraded: UTime,
    /// Last time it was not undersized.
    pub last_fullsized: UTime,
    /// First epoch of this up and acting set.
    pub mapping_epoch: Epoch,
    /// Oldest log entry's predecessor.
    pub log_start: EVersion,
    /// Log entries.
    pub log_size: i64,
    /// Epoch it was made in.
    pub created: Epoch,
    /// Last epoch it was clean in.
    pub last_epoch_clean: Epoch,
    /// PG it was split from.
    pub parent: PgId,
    /// Bits of that split.
    pub parent_split_bits: u32,
    /// Version at the last scrub.
    pub last_scrub: EVersion,
    /// Time of the last scrub.
    pub last_scrub_stamp: UTime,
    /// Version at the last deep scrub.
    pub last_deep_scrub: EVersion,
    /// Time of the last deep scrub.
    pub last_deep_scrub_stamp: UTime,
    /// Time of the last scrub without errors.
    pub last_clean_scrub_stamp: UTime,
    /// Counters.
    pub stats: ObjectStatSum,
    /// Snapshots waiting to be trimmed.
    pub snaptrimq_len: u32,
    /// Up set.
    pub up: Vec<OsdId>,
    /// Acting set.
    pub acting: Vec<OsdId>,
    /// Primary of the up set, −1 none.
    pub up_primary: OsdId,
    /// Primary of the acting set, −1 none.
    pub acting_primary: OsdId,
    /// OSDs it waits for to peer.
    pub blocked_by: Vec<OsdId>,
    /// Snapshots trimmed and not yet known to the monitors.
    pub purged_snaps: SnapIntervals,
}

impl PgStat {
    /// Stamps a fresh report: `last_fresh` and every `last_*` that the state says is true now.
    pub fn touch(&mut self, now: UTime, state: PgState) {
        let was = self.state;
        if was != state {
            self.last_change = now;
            if state.has(PgState::ACTIVE) && !was.has(PgState::ACTIVE) {
                self.last_became_active = now;
            }
            let peered = PgState::ACTIVE | PgState::PEERED;
            if state.any(peered) && !was.any(peered) {
                self.last_became_peered = now;
            }
        }
        self.state = state;
        self.last_fresh = now;
        if state.has(PgState::CLEAN) {
            self.last_clean = now;
        }
        if state.has(PgState::ACTIVE) {
            self.last_active = now;
        }
        if state.any(PgState::ACTIVE | PgState::PEERED) {
            self.last_peered = now;
        }
        self.last_unstale = now;
        if !state.has(PgState::DEGRADED) {
            self.last_undegraded = now;
        }
        if !state.has(PgState::UNDERSIZED) {
            self.last_fullsized = now;
        }
    }

    /// The state lasts until `until`: every `last_*` that it makes true is at least that.
    pub fn lasted(&mut self, until: UTime) {
        let has = |bits| self.state.any(bits);
        let held = [
            (&mut self.last_clean, has(PgState::CLEAN)),
            (&mut self.last_active, has(PgState::ACTIVE)),
            (&mut self.last_peered, has(PgState::ACTIVE | PgState::PEERED)),
            (&mut self.last_unstale, !has(PgState::STALE)),
            (&mut self.last_undegraded, !has(PgState::DEGRADED)),
            (&mut self.last_fullsized, !has(PgState::UNDERSIZED)),
        ];
        for (stamp, held) in held {
            *stamp = if held { until.max(*stamp) } else { *stamp };
        }
    }

    /// Takes over since when things are not true any more from the report before, which another
    /// primary may have made.
    pub fn inherit(&mut self, old: &Self) {
        for (stamp, old) in [
            (&mut self.last_clean, old.last_clean),
            (&mut self.last_active, old.last_active),
            (&mut self.last_peered, old.last_peered),
            (&mut self.last_unstale, old.last_unstale),
            (&mut self.last_undegraded, old.last_undegraded),
            (&mut self.last_fullsized, old.last_fullsized),
            (&mut self.last_became_active, old.last_became_active),
            (&mut self.last_became_peered, old.last_became_peered),
        ] {
            *stamp = old.max(*stamp);
        }
    }

    /// As `pg ls -f json` prints an entry, key by key.
    pub fn dump(&self, pg: PgId) -> Value {
        let purged: Vec<Value> =
            self.purged_snaps.intervals().map(|(s, l)| json!({"start": s, "length": l})).collect();
        object! {
            "pgid" => pg.to_string(),
            "version" => self.version.to_string(),
            "reported_seq" => self.reported_seq,
            "reported_epoch" => self.reported_epoch,
            "state" => self.state.to_string(),
            "last_fresh" => self.last_fresh.to_iso(),
            "last_change" => self.last_change.to_iso(),
            "last_active" => self.last_active.to_iso(),
            "last_peered" => self.last_peered.to_iso(),
            "last_clean" => self.last_clean.to_iso(),
            "last_became_active" => self.last_became_active.to_iso(),
            "last_became_peered" => self.last_became_peered.to_iso(),
            "last_unstale" => self.last_unstale.to_iso(),
            "last_undegraded" => self.last_undegraded.to_iso(),
            "last_fullsized" => self.last_fullsized.to_iso(),
            "mapping_epoch" => self.mapping_epoch,
            "log_start" => self.log_start.to_string(),
            "ondisk_log_start" => self.log_start.to_string(),
            "created" => self.created,
            "last_epoch_clean" => self.last_epoch_clean,
            "parent" => self.parent.to_string(),
            "parent_split_bits" => self.parent_split_bits,
            "last_scrub" => self.last_scrub.to_string(),
            "last_scrub_stamp" => self.last_scrub_stamp.to_iso(),
            "last_deep_scrub" => self.last_deep_scrub.to_string(),
            "last_deep_scrub_stamp" => self.last_deep_scrub_stamp.to_iso(),
            "last_clean_scrub_stamp" => self.last_clean_scrub_stamp.to_iso(),
            "log_size" => self.log_size,
            "ondisk_log_size" => self.log_size,
            "stats_invalid" => false,
            "dirty_stats_invalid" => false,
            "omap_stats_invalid" => false,
            "hitset_stats_invalid" => false,
            "hitset_bytes_stats_invalid" => false,
            "pin_stats_invalid" => false,
            "manifest_stats_invalid" => false,
            "snaptrimq_len" => self.snaptrimq_len,
            "stat_sum" => self.stats.dump(),
            "up" => self.up.clone(),
            "acting" => self.acting.clone(),
            "avail_no_missing" => Vec::<Value>::new(),
            "object_location_counts" => Vec::<Value>::new(),
            "blocked_by" => self.blocked_by.clone(),
            "up_primary" => self.up_primary,
            "acting_primary" => self.acting_primary,
            "purged_snaps" => purged,
        }
    }
}

impl Encode for PgStat {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.state);
            o.put(&self.version);
            o.u64(self.reported_seq);
            o.u32(self.reported_epoch);
            for t in [
                self.last_fresh,
                self.last_change,
                self.last_active,
                self.last_peered,
                self.last_clean,
                self.last_became_active,
                self.last_became_peered,
                self.last_unstale,
                self.last_undegraded,
                self.last_fullsized,
            ] {
                o.put(&t);
            }
            o.u32(self.mapping_epoch);
            o.put(&self.log_start);
            o.i64(self.log_size);
            o.u32(self.created);
            o.u32(self.last_epoch_clean);
            o.put(&self.parent);
            o.u32(self.parent_split_bits);
            o.put(&self.last_scrub);
            o.put(&self.last_scrub_stamp);
            o.put(&self.last_deep_scrub);
            o.put(&self.last_deep_scrub_stamp);
            o.put(&self.last_clean_scrub_stamp);
            o.put(&self.stats);
            o.u32(self.snaptrimq_len);
            o.put(&self.up);
            o.put(&self.acting);
            o.i32(self.up_primary);
            o.i32(self.acting_primary);
            o.put(&self.blocked_by);
            o.put(&self.purged_snaps);
        });
    }
}

impl Decode for PgStat {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PgStat", 1, |d, _| {
            Ok(Self {
                state: d.get()?,
                version: d.get()?,
                reported_seq: d.u64()?,
                reported_epoch: d.u32()?,
                last_fresh: d.get()?,
                last_change: d.get()?,
                last_active: d.get()?,
                last_peered: d.get()?,
                last_clean: d.get()?,
                last_became_active: d.get()?,
                last_became_peered: d.get()?,
                last_unstale: d.get()?,
                last_undegraded: d.get()?,
                last_fullsized: d.get()?,
                mapping_epoch: d.u32()?,
                log_start: d.get()?,
                log_size: d.i64()?,
                created: d.u32()?,
                last_epoch_clean: d.u32()?,
                parent: d.get()?,
                parent_split_bits: d.u32()?,
                last_scrub: d.get()?,
                last_scrub_stamp: d.get()?,
                last_deep_scrub: d.get()?,
                last_deep_scrub_stamp: d.get()?,
                last_clean_scrub_stamp: d.get()?,
                stats: d.get()?,
                snaptrimq_len: d.u32()?,
                up: d.get()?,
                acting: d.get()?,
                up_primary: d.i32()?,
                acting_primary: d.i32()?,
                blocked_by: d.get()?,
                purged_snaps: d.get()?,
            })
        })
    }
}

/// An OSD's report of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdStatReport {
    /// Epoch it came up in.
    pub up_from: Epoch,
    /// Number of the report.
    pub seq: u64,
    /// Space of its store, in bytes.
    pub statfs: StoreStatfs,
    /// Space by pool, in bytes.
    pub pool_statfs: BTreeMap<PoolId, StoreStatfs>,
    /// PGs it holds.
    pub num_pgs: u32,
    /// Of these, as primary.
    pub num_primaries: u32,
    /// OSDs it exchanges heartbeats with.
    pub hb_peers: Vec<OsdId>,
    /// Mean time to commit a write, in nanoseconds.
    pub commit_latency_ns: u64,
    /// Mean time to apply a write, in nanoseconds.
    pub apply_latency_ns: u64,
    /// Snapshots waiting to be trimmed.
    pub snap_trim_queue_len: u32,
    /// PGs trimming snapshots.
    pub num_snap_trimming: u32,
    /// Objects repaired on reading.
    pub num_shards_repaired: u64,
    /// Paths over which its heartbeats take long, the slowest first.
    pub slow_paths: Vec<PathTimes>,
}

impl OsdStatReport {
    /// Commit latency in whole milliseconds.
    pub fn commit_ms(&self) -> u64 {
        self.commit_latency_ns / 1_000_000
    }
    /// Apply latency in whole milliseconds.
    pub fn apply_ms(&self) -> u64 {
        self.apply_latency_ns / 1_000_000
    }
    /// Share of raw space in use, 0 to 1.
    pub fn use_ratio(&self) -> f64 {
        if self.statfs.total <= 0 {
            0.0
        } else {
            self.statfs.used_raw() as f64 / self.statfs.total as f64
        }
    }

    /// As `pg dump osds -f json` prints an entry, key by key, with `osd` in front if given.
    pub fn dump(&self, osd: Option<OsdId>) -> Value {
        let mut m = serde_json::Map::new();
        if let Some(o) = osd {
            m.insert("osd".into(), o.into());
        }
        let kb = |b: i64| b >> 10;
        let s = &self.statfs;
        let rest = json!({
            "up_from": self.up_from,
            "seq": self.seq,
            "num_pgs": self.num_pgs,
            "num_osds": 1,
            "num_per_pool_osds": 1,
            "num_per_pool_omap_osds": 1,
            "kb": kb(s.total),
            "kb_used": kb(s.used_raw()),
            "kb_used_data": kb(s.allocated),
            "kb_used_omap": kb(s.omap_allocated),
            "kb_used_meta": kb(s.internal_metadata),
            "kb_avail": kb(s.available),
            "statfs": s.dump(),
            "hb_peers": self.hb_peers,
            "snap_trim_queue_len": self.snap_trim_queue_len,
            "num_snap_trimming": self.num_snap_trimming,
            "num_shards_repaired": self.num_shards_repaired,
            "op_queue_age_hist": {"histogram": [], "upper_bound": 1},
            "perf_stat": {
                "commit_latency_ms": self.commit_ms(),
                "apply_latency_ms": self.apply_ms(),
                "commit_latency_ns": self.commit_latency_ns,
                "apply_latency_ns": self.apply_latency_ns,
            },
            "alerts": [],
            "network_ping_times": crate::pings::by_osd(&self.slow_paths),
        });
        if let Value::Object(r) = rest {
            m.extend(r);
        }
        Value::Object(m)
    }
}

impl Encode for OsdStatReport {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 1, |o| {
            o.u32(self.up_from);
            o.u64(self.seq);
            o.put(&self.statfs);
            o.put(&self.pool_statfs);
            o.u32(self.num_pgs);
            o.u32(self.num_primaries);
            o.put(&self.hb_peers);
            o.u64(self.commit_latency_ns);
            o.u64(self.apply_latency_ns);
            o.u32(self.snap_trim_queue_len);
            o.u32(self.num_snap_trimming);
            o.u64(self.num_shards_repaired);
            o.put(&self.slow_paths);
        });
    }
}

impl Decode for OsdStatReport {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("OsdStatReport", 2, |d, v| {
            Ok(Self {
                up_from: d.u32()?,
                seq: d.u64()?,
                statfs: d.get()?,
                pool_statfs: d.get()?,
                num_pgs: d.u32()?,
                num_primaries: d.u32()?,
                hb_peers: d.get()?,
                commit_latency_ns: d.u64()?,
                apply_latency_ns: d.u64()?,
                snap_trim_queue_len: d.u32()?,
                num_snap_trimming: d.u32()?,
                num_shards_repaired: d.u64()?,
                slow_paths: if v >= 2 { d.get()? } else { Vec::new() },
            })
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use spirula_encoding::{from_slice, to_vec};

    #[test]
    fn reports_round_trip() {
        let mut s =
            PgStat { up: vec![1, 2], acting: vec![2], acting_primary: 2, ..PgStat::default() };
        s.touch(UTime { sec: 1_700_000_000, nsec: 5 }, PgState::ACTIVE | PgState::CLEAN);
        s.purged_snaps.insert(3, 2);
        assert_eq!(from_slice::<PgStat>(&to_vec(&s)).unwrap(), s);
        let mut o = OsdStatReport { num_pgs: 7, hb_peers: vec![1, 2], ..OsdStatReport::default() };
        o.pool_statfs.insert(1, StoreStatfs { allocated: 9, ..StoreStatfs::default() });
        assert_eq!(from_slice::<OsdStatReport>(&to_vec(&o)).unwrap(), o);
    }

    #[test]
    fn a_state_lasts_until_the_next_and_another_primary_goes_on_from_it() {
        let (a, b, c) =
            (UTime { sec: 1, nsec: 0 }, UTime { sec: 2, nsec: 0 }, UTime { sec: 3, nsec: 0 });
        let mut old = PgStat::default();
        old.touch(a, PgState::ACTIVE | PgState::CLEAN);
        let mut new = PgStat::default();
        new.touch(b, PgState::PEERED | PgState::UNDERSIZED | PgState::DEGRADED);
        old.lasted(b);
        new.inherit(&old);
        assert_eq!(
            (new.last_active, new.last_clean, new.last_fullsized, new.last_undegraded),
            (b, b, b, b)
        );
        new.lasted(c);
        assert_eq!((new.last_active, new.last_peered, new.last_unstale), (b, c, c));
    }

    #[test]
    fn touching_stamps_what_is_true_now_and_keeps_when_it_began() {
        let (a, b) = (UTime { sec: 1, nsec: 0 }, UTime { sec: 2, nsec: 0 });
        let mut s = PgStat::default();
        s.touch(a, PgState::ACTIVE);
        s.touch(b, PgState::ACTIVE);
        assert_eq!((s.last_change, s.last_became_active, s.last_active), (a, a, b));
        assert_eq!(s.last_clean, UTime::ZERO);
    }
}
