//! What the OSD tells the manager, and when.
//!
//! State changes go out at once (at most every [`SOON`]), counters every [`PERIOD`], those of a
//! pool with a quota every [`QUOTA_PERIOD`] while it is written to, since what is written before
//! the cluster knows goes beyond it. A report carries only the PGs that changed since the last
//! acknowledged one, or all.

use crate::maps::Maps;
use crate::osd::OsdCore;
use crate::perf::{Average, Perf};
use bytes::Bytes;
use spirula_encoding::{UTime, to_vec};
use spirula_maps::{OsdStatReport, PathTimes, PgState, StoreStatfs};
use spirula_messages::Body;
use spirula_messages::cluster::control::{OsdReport, OsdReportAck, Since};
use spirula_messages::cluster::images::ImageLoads;
use spirula_pg::Pg;
use spirula_store::{PoolSpace, Statfs};
use spirula_types::{Epoch, OsdId, PgId, SpgId, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(10);
const PERIOD: Duration = Duration::from_secs(1);
const QUOTA_PERIOD: Duration = Duration::from_millis(100);
/// A request that is older is slow.
const SLOW: Duration = Duration::from_secs(30);
/// A PG is reported again after so many epochs though nothing changed: the monitors keep the maps
/// from the last epoch on in which every PG is known to have been clean.
const REFRESH: Epoch = 100;
/// A PG that says that it has purged snapshots says so again with a newer map after so long: what
/// it said may have come to a manager that does not know since when they are removed, and it counts
/// only from then on.
const PURGED_AGAIN: Duration = Duration::from_secs(10);

/// Everything a report is made of.
pub struct Facts<'a> {
    pub id: OsdId,
    pub uuid: Uuid,
    pub maps: &'a Maps,
    pub pgs: &'a mut BTreeMap<SpgId, Pg>,
    pub statfs: Statfs,
    /// Space used by each pool.
    pub pools: Vec<(i64, PoolSpace)>,
    pub perf: &'a Perf,
    pub hb_peers: Vec<OsdId>,
    pub slow_ops: u32,
    pub slow_oldest: Duration,
    pub small_paths: BTreeMap<OsdId, u8>,
    /// Paths over which heartbeats take long.
    pub slow_paths: Vec<PathTimes>,
    pub hostname: String,
    pub config: BTreeMap<String, Vec<(String, String)>>,
    /// What was asked of block images.
    pub images: ImageLoads,
}

/// When to report and what has changed.
#[derive(Debug, Default)]
pub struct Reporter {
    seq: u64,
    full: bool,
    /// A state changed: report soon.
    urgent: bool,
    was_full: bool,
    /// A pool with a quota was written to.
    towards_quota: bool,
    /// A request got no answer because the store is full, and no map has said so yet: reported as
    /// full until one does, for the client sends it again only after a map that said so.
    owes_full: bool,
    last: Duration,
    purged_again: Duration,
    changed: BTreeSet<PgId>,
    /// As of the last change.
    states: BTreeMap<SpgId, PgState>,
    /// Sent and not acknowledged, by report.
    unacked: BTreeMap<u64, BTreeSet<PgId>>,
    commit: Average,
}

impl Reporter {
    /// The manager knows nothing: tell it everything.
    pub fn want_full(&mut self) {
        self.full = true;
        self.urgent = true;
        self.unacked.clear();
    }

    /// A PG's state may have changed. Only a new one is urgent; counters are looked at when a
    /// report is made.
    pub fn pg_changed(&mut self, id: SpgId, state: PgState) {
        self.changed.insert(id.pg);
        if self.states.insert(id, state) != Some(state) {
            self.urgent = true;
        }
    }

    /// The store is full (or not): the cluster must know at once.
    pub fn full(&mut self, full: bool) {
        if std::mem::replace(&mut self.was_full, full) != full {
            self.urgent = true;
        }
    }

    /// A pool with a quota was written to.
    pub fn towards_quota(&mut self) {
        self.towards_quota = true;
    }

    /// A request was dropped because the store is full.
    pub fn dropped_full(&mut self) {
        self.owes_full = true;
    }

    /// A map says that the store is full.
    pub fn map_says_full(&mut self) {
        self.owes_full = false;
    }

    /// The set of PGs changed.
    pub fn changed(&mut self) {
        self.states.clear();
        self.full = true;
        self.urgent = true;
    }

    /// Makes a report due at once; its number.
    pub fn order(&mut self) -> u64 {
        self.urgent = true;
        self.last = Duration::ZERO;
        self.seq + 1
    }

    /// The manager has a report.
    pub fn acked(&mut self, a: &OsdReportAck) {
        self.unacked = self.unacked.split_off(&(a.seq + 1));
        if a.want_full {
            self.want_full();
        }
    }

    /// When the next report is due.
    pub fn next(&self) -> Option<Duration> {
        let wait = match (self.urgent, self.towards_quota) {
            (true, _) => SOON,
            (_, true) => QUOTA_PERIOD,
            _ => PERIOD,
        };
        Some(self.last + wait)
    }

    /// Is one due?
    pub fn due(&self, now: Duration) -> bool {
        self.next().is_some_and(|at| now >= at)
    }

    /// Makes the report.
    pub fn make(&mut self, now: Duration, wall: UTime, f: Facts<'_>) -> OsdReport {
        self.seq += 1;
        self.last = now;
        self.urgent = false;
        self.towards_quota = false;
        // What an older report carried and nobody confirmed goes again, once it is old.
        while self.unacked.len() > 8 {
            if let Some((_, lost)) = self.unacked.pop_first() {
                self.changed.extend(lost);
            }
        }
        let full = std::mem::take(&mut self.full);
        let changed = std::mem::take(&mut self.changed);
        let old = |p: &Pg| p.reported_epoch().saturating_add(REFRESH) <= f.maps.epoch();
        let again = now >= self.purged_again;
        if again {
            self.purged_again = now + PURGED_AGAIN;
        }
        let purged =
            |p: &Pg| again && p.has_reported_purges() && p.reported_epoch() < f.maps.epoch();
        let news = |id: &SpgId, p: &Pg| {
            full || changed.contains(&id.pg) || p.has_news() || old(p) || purged(p)
        };
        let chosen = f.pgs.iter_mut().filter(|(id, p)| p.is_primary() && news(id, p));
        let pgs: BTreeMap<PgId, Bytes> =
            chosen.map(|(id, p)| (id.pg, to_vec(&p.stat(wall)).into())).collect();
        self.unacked.insert(self.seq, pgs.keys().copied().collect());
        let s = &f.statfs;
        let pool_space = |s: &PoolSpace| StoreStatfs {
            allocated: s.allocated as i64,
            data_stored: s.stored as i64,
            data_compressed: s.compressed as i64,
            data_compressed_allocated: s.compressed_allocated as i64,
            data_compressed_original: s.compressed_original as i64,
            ..StoreStatfs::default()
        };
        let pool_statfs: BTreeMap<i64, StoreStatfs> =
            f.pools.iter().map(|(p, s)| (*p, pool_space(s))).collect();
        let mut compressed = StoreStatfs::default();
        pool_statfs.values().for_each(|s| compressed.add(s));
        let stat = OsdStatReport {
            up_from: f.maps.map().and_then(|m| m.info(f.id)).map_or(0, |i| i.up_from),
            seq: self.seq,
            statfs: StoreStatfs {
                total: s.total as i64,
                available: if self.owes_full { 0 } else { s.available as i64 },
                allocated: s.used as i64,
                data_stored: s.stored as i64,
                internal_metadata: (s.metadata + s.journal) as i64,
                data_compressed: compressed.data_compressed,
                data_compressed_allocated: compressed.data_compressed_allocated,
                data_compressed_original: compressed.data_compressed_original,
                ..StoreStatfs::default()
            },
            pool_statfs,
            num_pgs: f.pgs.len() as u32,
            num_primaries: f.pgs.values().filter(|p| p.is_primary()).count() as u32,
            hb_peers: f.hb_peers.clone(),
            commit_latency_ns: f.perf.commit_latency.mean_since(&self.commit),
            num_shards_repaired: f.perf.repaired,
            slow_paths: f.slow_paths,
            // Applied is committed here: the two never differ.
            apply_latency_ns: f.perf.commit_latency.mean_since(&self.commit),
            ..OsdStatReport::default()
        };
        self.commit = f.perf.commit_latency;
        OsdReport {
            osd: f.id,
            uuid: f.uuid,
            seq: self.seq,
            epoch: f.maps.epoch(),
            stamp: wall,
            stat: to_vec(&stat).into(),
            pgs,
            full,
            slow_ops: f.slow_ops,
            slow_oldest_ms: f.slow_oldest.as_millis() as u64,
            small_paths: f.small_paths,
            perf: f.perf.counters(),
            hostname: f.hostname,
            config: f.config,
            images: Since(f.images),
        }
    }
}

impl OsdCore {
    /// Reports to the manager, if it is time.
    pub(crate) fn report(&mut self, now: Duration) {
        let (Some(link), Some(statfs)) = (self.mgr.open(), self.space()) else { return };
        if !self.reporter.due(now) {
            return;
        }
        let link = link.clone();
        let slow: Vec<Duration> = self.requests.older(now, SLOW).collect();
        let small_paths = self.peers.small_paths(now, self.grace());
        let slow_paths = self.slow_paths(now);
        let facts = Facts {
            id: self.cfg.id,
            uuid: self.cfg.uuid,
            maps: &self.maps,
            pgs: &mut self.pgs,
            statfs,
            pools: self.store.as_ref().map(|s| s.pool_space().collect()).unwrap_or_default(),
            perf: &self.perf,
            hb_peers: self.peers.osds(),
            slow_ops: slow.len() as u32,
            slow_oldest: slow.into_iter().max().unwrap_or_default(),
            small_paths,
            slow_paths,
            hostname: self.cfg.host.clone(),
            config: self.cfg.settings.told(),
            images: self.images.take(now),
        };
        link.send(self.reporter.make(now, self.now.wall, facts).into_message(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_to_a_pool_with_a_quota_are_reported_soon() {
        let mut r = Reporter { last: Duration::from_secs(9), ..Reporter::default() };
        assert_eq!(r.next(), Some(Duration::from_secs(10)));
        r.towards_quota();
        assert_eq!(r.next(), Some(Duration::from_millis(9100)));
        r.full(true);
        assert_eq!(r.next(), Some(Duration::from_millis(9010)), "what is urgent comes first");
    }
}
