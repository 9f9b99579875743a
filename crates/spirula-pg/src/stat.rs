//! What a PG reports of itself to the manager: its state, since when, its sets, and its counts of
//! objects, bytes and errors.

use crate::api::MapView;
use crate::core::PgCore;
use crate::pg::Pg;
use crate::primary::Primary;
use crate::role::Role;
use spirula_encoding::UTime;
use spirula_maps::{ObjectStatSum, PgStat, PgState, SnapIntervals};
use spirula_messages::cluster::pg::PgInfo;
use spirula_types::Peer;

/// What reports remember from one to the next.
#[derive(Debug, Default)]
pub(crate) struct StatState {
    pub last: PgStat,
    /// Objects recovered by this primary.
    pub recovered_objects: i64,
    /// Bytes sent for that.
    pub recovered_bytes: i64,
}

/// Copies that are not where or what they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacks {
    /// Copies that do not exist.
    pub degraded: i64,
    /// Copies that exist, on other OSDs than those wanted.
    pub misplaced: i64,
    /// Objects the primary lacks.
    pub missing_here: i64,
    /// Objects nobody has.
    pub unfound: i64,
}

impl Primary {
    /// Every acting member is whole and there are as many as wanted, only CRUSH names others (or
    /// too few) that nothing can be moved to now: Ceph calls that clean, too. That no other copy is
    /// needed any more does not follow from it.
    pub fn rests(&self, core: &PgCore) -> bool {
        let Some(view) = &core.view else { return false };
        self.activated
            && self.serving
            && view.acting.len() >= view.pool_size()
            && self.recovery.rests()
            && core.missing().is_empty()
            && self.peers.values().all(|p| p.acting && p.last_backfill.max && p.missing.is_empty())
    }

    /// What is not where or what it should be.
    pub fn lacks(&self, core: &PgCore) -> Lacks {
        let (Some(view), Some(info)) = (&core.view, core.info()) else { return Lacks::default() };
        let objects = info.head.counts.objects.max(0);
        let size = view.pool_size().max(view.up.len());
        let has = |osd: Peer| -> i64 {
            if osd == core.me {
                return objects - core.missing().len() as i64;
            }
            match self.peers.get(&osd) {
                Some(p) if p.last_backfill.max => objects - p.missing.len() as i64,
                Some(p) => (p.copied as i64).min(objects) - p.missing.len() as i64,
                None => 0,
            }
        };
        // What the wanted places lack, and what others hold instead.
        let lacking = objects * (size - view.up.len()) as i64
            + view.up.iter().map(|o| (objects - has(*o)).max(0)).sum::<i64>();
        let spare: i64 =
            view.acting.iter().filter(|o| !view.up.contains(o)).map(|o| has(*o).max(0)).sum();
        let misplaced = lacking.min(spare);
        Lacks {
            degraded: lacking - misplaced,
            misplaced,
            missing_here: core.missing().len() as i64,
            unfound: self.recovery.unfound.len() as i64,
        }
    }
}

impl Pg {
    /// State bits, and the OSDs that are in the way of more.
    pub fn state(&self) -> (PgState, Vec<Peer>) {
        let (mut state, by) = match &self.role {
            Role::Primary(a) => (a.state(), Vec::new()),
            Role::Peering(p) => p.state(),
            _ => return (PgState::UNKNOWN, Vec::new()),
        };
        let Some(view) = &self.core.view else { return (state, by) };
        if let Some(p) = self.primary() {
            if self.core.interval().premerge && state.has(PgState::ACTIVE) {
                // As Ceph says it: it takes no writes.
                state.clear(PgState::ACTIVE);
                state |= PgState::PEERED | PgState::PREMERGE;
            }
            if view.acting.len() < view.pool_size() {
                state |= PgState::UNDERSIZED;
            }
            if p.lacks(&self.core).degraded > 0 {
                state |= PgState::DEGRADED;
            }
            if p.rests(&self.core) {
                state |= PgState::CLEAN;
            }
            if self.waits_for_lease() {
                state |= PgState::LAGGY;
            }
        }
        if let Some(p) = self.primary() {
            state |= p.scrub.state() | p.recovery.forced.state();
            if self.core.info().is_some_and(|i| i.scrub.shallow_errors + i.scrub.deep_errors > 0) {
                state |= PgState::INCONSISTENT;
            }
        }
        if view.up != view.acting {
            state |= PgState::REMAPPED;
        }
        (state, by)
    }

    /// Epoch of the map with which it was reported last; 0 for never.
    pub fn reported_epoch(&self) -> spirula_types::Epoch {
        self.stat.last.reported_epoch
    }

    /// Did the last report name snapshots of which nothing is left?
    pub fn has_reported_purges(&self) -> bool {
        !self.stat.last.purged_snaps.is_empty()
    }

    /// Did something happen since the last report that its counters tell of?
    pub fn has_news(&self) -> bool {
        let Some(info) = self.core.info() else { return false };
        let (c, s) = (&info.head.counts, &self.stat.last);
        s.version != info.last_update()
            || (s.stats.num_rd, s.stats.num_wr) != (c.reads, c.writes)
            || s.stats.num_objects_recovered != self.stat.recovered_objects
            || (s.last_scrub_stamp, s.last_deep_scrub_stamp)
                != (info.scrub.last_stamp, info.scrub.last_deep_stamp)
    }

    /// The report of a primary, stamped `now`. Each call counts as a report.
    pub fn stat(&mut self, now: UTime) -> PgStat {
        let (state, blocked_by) = self.state();
        let mut s = std::mem::take(&mut self.stat.last);
        s.touch(now, state);
        s.blocked_by = blocked_by.iter().map(|p| p.osd).collect();
        s.reported_seq += 1;
        if let Some(view) = &self.core.view {
            s.reported_epoch = view.epoch;
            s.up = view.places(&view.up);
            s.acting = view.places(&view.acting);
            s.up_primary = view.up_primary.osd;
            s.acting_primary = view.primary.osd;
        }
        s.mapping_epoch = self.core.interval().since;
        s.log_start = self.core.log().tail();
        s.log_size = self.core.log().len() as i64;
        if let Some(info) = self.core.info() {
            s.version = info.last_update();
            s.created = info.created;
            s.parent = if info.origin == info.pg { Default::default() } else { info.origin };
            let clean = matches!(&self.role, Role::Primary(a) if a.clean);
            s.last_epoch_clean = if clean { self.core.epoch() } else { info.lec };
            let h = &info.scrub;
            (s.last_scrub, s.last_scrub_stamp) = (h.last, h.last_stamp);
            (s.last_deep_scrub, s.last_deep_scrub_stamp) = (h.last_deep, h.last_deep_stamp);
            s.last_clean_scrub_stamp = h.last_clean_stamp;
            s.stats = self.counted(info);
        }
        (s.purged_snaps, s.snaptrimq_len) = self.trims();
        self.stat.last = s.clone();
        s
    }

    /// Removed snapshots of which nothing is left, and how many others there are.
    fn trims(&self) -> (SnapIntervals, u32) {
        let (Some(a), Some(pool)) =
            (self.primary(), self.core.view.as_ref().and_then(|v| v.pool.as_ref()))
        else {
            return (SnapIntervals::default(), 0);
        };
        let purged = a.trim.purged().clone();
        let left = pool.snaps.removed.size().saturating_sub(purged.size());
        (purged, left.try_into().unwrap_or(u32::MAX))
    }

    fn counted(&self, info: &PgInfo) -> ObjectStatSum {
        let c = &info.head.counts;
        let size = self.core.view.as_deref().map_or(0, MapView::pool_size) as i64;
        let lacks = self.primary().map(|p| p.lacks(&self.core)).unwrap_or_default();
        ObjectStatSum {
            num_bytes: c.bytes,
            num_objects: c.objects,
            num_object_copies: c.objects * size,
            num_objects_missing_on_primary: lacks.missing_here,
            num_objects_missing: lacks.missing_here,
            num_objects_degraded: lacks.degraded,
            num_objects_misplaced: lacks.misplaced,
            num_objects_unfound: lacks.unfound,
            num_objects_recovered: self.stat.recovered_objects,
            num_bytes_recovered: self.stat.recovered_bytes,
            num_scrub_errors: i64::from(info.scrub.shallow_errors)
                + i64::from(info.scrub.deep_errors),
            num_shallow_scrub_errors: i64::from(info.scrub.shallow_errors),
            num_deep_scrub_errors: i64::from(info.scrub.deep_errors),
            num_objects_repaired: info.scrub.repaired as i64,
            num_rd: c.reads,
            num_rd_kb: c.read_kb,
            num_wr: c.writes,
            num_wr_kb: c.written_kb,
            num_objects_dirty: c.objects,
            num_objects_omap: c.omap_objects,
            num_object_clones: c.clones,
            num_whiteouts: c.whiteouts,
            num_omap_bytes: c.omap_bytes,
            num_omap_keys: c.omap_keys,
            num_large_omap_objects: i64::from(info.scrub.large_omaps),
            ..ObjectStatSum::default()
        }
    }
}
