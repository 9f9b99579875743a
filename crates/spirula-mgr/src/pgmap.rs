//! What OSDs reported of their PGs, pools and space, and the rates computed from it.

use crate::removals::Removals;
use spirula_encoding::UTime;
use spirula_maps::{
    ObjectStatSum, OsdMap, OsdStatReport, PgDigest, PgStat, PgState, PoolSum, StoreStatfs,
};
use spirula_types::{Epoch, OsdId, PgId, PoolId, hash};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How far back rates look.
const WINDOW: Duration = Duration::from_secs(6);
/// Least time between two samples of a window.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Most PGs kept of pools that our OSD map does not know yet.
const EARLY_MAX: usize = 1 << 16;

/// Monotonic totals of what rates are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    reads: u64,
    read_kib: u64,
    writes: u64,
    write_kib: u64,
    recovered_objects: u64,
    recovered_bytes: u64,
    recovered_keys: u64,
}

impl Totals {
    /// Adds what happened between two reports of one PG. A counter that went back (the PG
    /// started anew somewhere) adds nothing.
    fn add_step(&mut self, old: &ObjectStatSum, new: &ObjectStatSum) {
        let step = |old: i64, new: i64| u64::try_from(new.saturating_sub(old)).unwrap_or(0);
        for (total, old, new) in [
            (&mut self.reads, old.num_rd, new.num_rd),
            (&mut self.read_kib, old.num_rd_kb, new.num_rd_kb),
            (&mut self.writes, old.num_wr, new.num_wr),
            (&mut self.write_kib, old.num_wr_kb, new.num_wr_kb),
            (&mut self.recovered_objects, old.num_objects_recovered, new.num_objects_recovered),
            (&mut self.recovered_bytes, old.num_bytes_recovered, new.num_bytes_recovered),
            (&mut self.recovered_keys, old.num_keys_recovered, new.num_keys_recovered),
        ] {
            *total = total.saturating_add(step(old, new));
        }
    }
}

/// Totals of one pool at several times.
#[derive(Clone, Debug, Default)]
struct Window {
    total: Totals,
    samples: VecDeque<(Duration, Totals)>,
}

impl Window {
    fn sample(&mut self, now: Duration) {
        self.samples.push_back((now, self.total));
        // The oldest sample kept lies just outside the window.
        while self.samples.get(1).is_some_and(|(t, _)| *t + WINDOW <= now) {
            self.samples.pop_front();
        }
    }

    /// Oldest and newest sample, if they differ in time.
    fn span(&self) -> Option<(f64, Totals, Totals)> {
        let (t0, first) = self.samples.front()?;
        let (t1, last) = self.samples.back()?;
        let seconds = t1.saturating_sub(*t0).as_secs_f64();
        (seconds > 0.0).then_some((seconds, *first, *last))
    }

    fn rates_into(&self, sum: &mut PoolSum) {
        let Some((seconds, first, last)) = self.span() else { return };
        let rate = |a: u64, b: u64| (b.saturating_sub(a) as f64 / seconds) as u64;
        let rate_kib = |a: u64, b: u64| (b.saturating_sub(a) as f64 * 1024.0 / seconds) as u64;
        sum.read_bytes_sec = rate_kib(first.read_kib, last.read_kib);
        sum.write_bytes_sec = rate_kib(first.write_kib, last.write_kib);
        sum.read_ops_sec = rate(first.reads, last.reads);
        sum.write_ops_sec = rate(first.writes, last.writes);
        sum.recover_bytes_sec = rate(first.recovered_bytes, last.recovered_bytes);
        sum.recover_objects_sec = rate(first.recovered_objects, last.recovered_objects);
        sum.recover_keys_sec = rate(first.recovered_keys, last.recovered_keys);
    }
}

/// How many PGs an OSD has something to do with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdPgCount {
    /// It is in their acting set.
    pub acting: u32,
    /// It is in their up set but not (yet) in the acting set.
    pub up_not_acting: u32,
    /// It leads their up set.
    pub primary: u32,
}

/// The PG map. PGs exist here as the OSD map says; what OSDs report only fills them in.
#[derive(Clone, Debug, Default)]
pub struct PgMap {
    version: u64,
    stamp: UTime,
    pgs: BTreeMap<PgId, PgStat>,
    osds: BTreeMap<OsdId, OsdStatReport>,
    /// Reports about pools of a newer OSD map than ours: OSDs do not repeat what we
    /// acknowledged, so they wait here for the map.
    early: BTreeMap<PgId, PgStat>,
    io: BTreeMap<PoolId, Window>,
    last_sample: Option<Duration>,
    states_changed: bool,
    /// PGs of each pool in the last OSD map.
    pg_nums: BTreeMap<PoolId, u32>,
    /// PGs that took others in: reports from before that epoch say nothing of the snapshots that
    /// those have.
    merged: BTreeMap<PgId, Epoch>,
    removals: Removals,
}

impl PgMap {
    /// Counts changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Time of the last change.
    pub fn stamp(&self) -> UTime {
        self.stamp
    }

    /// Every PG of the OSD map, in order.
    pub fn pgs(&self) -> &BTreeMap<PgId, PgStat> {
        &self.pgs
    }

    /// What OSDs said about themselves; OSDs that are out count as empty.
    pub fn osds(&self, map: &OsdMap) -> BTreeMap<OsdId, OsdStatReport> {
        self.osds
            .iter()
            .map(|(id, r)| {
                let mut r = r.clone();
                if map.is_out(*id) {
                    r.statfs = StoreStatfs::default();
                    r.pool_statfs.clear();
                }
                (*id, r)
            })
            .collect()
    }

    /// One OSD's own report.
    pub fn osd(&self, osd: OsdId) -> Option<&OsdStatReport> {
        self.osds.get(&osd)
    }

    /// True once after PG states changed.
    pub fn take_states_changed(&mut self) -> bool {
        std::mem::take(&mut self.states_changed)
    }

    /// True if [`Self::take_states_changed`] would say so.
    pub fn states_changed(&self) -> bool {
        self.states_changed
    }

    fn touch(&mut self, now: UTime) {
        self.version += 1;
        self.stamp = now;
    }

    /// Follows the OSD map as to removed snapshots. To be told of each epoch, as far as that can
    /// be.
    pub fn follow_removals(&mut self, map: &OsdMap) {
        self.removals.follow(map);
    }

    /// Follows the OSD map: PGs of deleted pools go, PGs of new pools appear as unknown,
    /// PGs whose primary is down become stale.
    pub fn follow(&mut self, map: &OsdMap, now: UTime) {
        let lives = |pg: &PgId| map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num);
        let before = self.pgs.len();
        self.note_merges(map);
        self.follow_removals(map);
        self.pgs.retain(|pg, _| lives(pg));
        let mut changed = self.pgs.len() != before;
        self.io.retain(|pool, _| map.pools.contains_key(pool));
        self.osds.retain(|osd, _| map.exists(*osd));
        for (id, pool) in &map.pools {
            for seed in 0..pool.pg_num {
                let pg = PgId::new(*id, seed);
                self.pgs.entry(pg).or_insert_with(|| {
                    changed = true;
                    unknown(map.modified)
                });
            }
        }
        let waiting = std::mem::take(&mut self.early);
        for (pg, stat) in waiting {
            if lives(&pg) {
                self.put(pg, stat);
            } else if stat.reported_epoch > map.epoch {
                self.early.insert(pg, stat);
            }
        }
        for stat in self.pgs.values_mut() {
            let orphan = stat.acting_primary >= 0 && map.is_down(stat.acting_primary);
            if orphan && !stat.state.has(PgState::STALE) {
                // Until now it was as it said, for all we know.
                stat.lasted(now);
                stat.state.set(PgState::STALE);
                changed = true;
            }
        }
        self.states_changed |= changed;
        self.touch(now);
    }

    /// Notes which PGs have taken others in since the last map; of a pool that was not seen before,
    /// all that may have.
    fn note_merges(&mut self, map: &OsdMap) {
        for (id, pool) in &map.pools {
            let n = pool.pg_num;
            // The pool says when it was: maps may have been passed over since, and PGs report only
            // what changes.
            let epoch = pool.last_force_op_resend_preluminous.min(map.epoch);
            let seeds: Vec<u32> = match self.pg_nums.insert(*id, n) {
                Some(before) => {
                    (n..before).map(|s| hash::stable_mod(s, n, hash::mask_for(n))).collect()
                }
                None => (0..n).collect(),
            };
            for seed in seeds.into_iter().filter(|_| epoch > 0) {
                let since = self.merged.entry(PgId::new(*id, seed)).or_default();
                *since = epoch.max(*since);
            }
        }
        self.pg_nums.retain(|id, _| map.pools.contains_key(id));
        self.merged.retain(|pg, _| map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num));
    }

    /// Takes an OSD's report of itself and of PGs it leads.
    pub fn report(
        &mut self,
        map: &OsdMap,
        now: UTime,
        osd: OsdId,
        stat: OsdStatReport,
        pgs: impl IntoIterator<Item = (PgId, PgStat)>,
    ) {
        self.osds.insert(osd, stat);
        for (pg, stat) in pgs {
            if map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num) {
                self.put(pg, stat);
            } else if stat.reported_epoch > map.epoch && self.early.len() < EARLY_MAX {
                self.early.insert(pg, stat);
            }
        }
        self.touch(now);
    }

    fn put(&mut self, pg: PgId, mut stat: PgStat) {
        let Some(old) = self.pgs.get_mut(&pg) else {
            self.states_changed = true;
            self.pgs.insert(pg, stat);
            return;
        };
        // Epoch, then number of the report within it.
        let order = |s: &PgStat| (s.reported_epoch, s.reported_seq);
        if order(&stat) < order(old) {
            return;
        }
        // The first report of a PG is history, not traffic.
        if old.reported_epoch > 0 {
            self.io.entry(pg.pool).or_default().total.add_step(&old.stats, &stat.stats);
        }
        self.states_changed |= old.state != stat.state;
        if !old.state.has(PgState::STALE) && old.reported_epoch > 0 {
            old.lasted(stat.last_fresh);
        }
        stat.inherit(old);
        *old = stat;
    }

    /// Notes the totals of this moment, if the last time was a second ago or more.
    pub fn sample(&mut self, now: Duration) {
        if self.last_sample.is_some_and(|t| t + SAMPLE_EVERY > now) {
            return;
        }
        self.last_sample = Some(now);
        let pools: BTreeSet<PoolId> = self.pgs.keys().map(|pg| pg.pool).collect();
        for pool in pools {
            self.io.entry(pool).or_default().sample(now);
        }
    }

    /// What the monitors get: sums by pool with rates, states, OSDs.
    pub fn digest(&self, map: &OsdMap) -> PgDigest {
        let pgs = self.pgs.iter().map(|(id, s)| (*id, s));
        let mut digest = PgDigest::from_reports(map.epoch, self.stamp, pgs, self.osds(map));
        for (pool, sum) in &mut digest.pools {
            if let Some(w) = self.io.get(pool) {
                w.rates_into(sum);
            }
        }
        let older = |(pg, epoch): &(&PgId, &Epoch)| {
            self.pgs.get(pg).is_none_or(|s| s.reported_epoch < **epoch)
        };
        for (pg, _) in self.merged.iter().filter(older) {
            digest.purged_snaps.remove(&pg.pool);
        }
        for (pool, purged) in &mut digest.purged_snaps {
            let of = self.pgs.range(PgId::new(*pool, 0)..=PgId::new(*pool, u32::MAX));
            let oldest = of.map(|(_, s)| s.reported_epoch).min().unwrap_or(0);
            self.removals.only_before(*pool, oldest, purged);
        }
        digest.purged_snaps.retain(|_, s| !s.is_empty());
        digest
    }

    /// What all PGs did within the window, and the window's length in seconds: `pg dump delta`.
    pub fn delta(&self) -> (ObjectStatSum, f64) {
        let mut sum = ObjectStatSum::default();
        let mut longest = 0.0f64;
        for w in self.io.values() {
            let Some((seconds, first, last)) = w.span() else { continue };
            longest = longest.max(seconds);
            let step = |a: u64, b: u64| i64::try_from(b.saturating_sub(a)).unwrap_or(i64::MAX);
            sum.add(&ObjectStatSum {
                num_rd: step(first.reads, last.reads),
                num_rd_kb: step(first.read_kib, last.read_kib),
                num_wr: step(first.writes, last.writes),
                num_wr_kb: step(first.write_kib, last.write_kib),
                num_objects_recovered: step(first.recovered_objects, last.recovered_objects),
                num_bytes_recovered: step(first.recovered_bytes, last.recovered_bytes),
                num_keys_recovered: step(first.recovered_keys, last.recovered_keys),
                ..ObjectStatSum::default()
            });
        }
        (sum, longest)
    }

    /// PGs by OSD.
    pub fn counts_by_osd(&self) -> BTreeMap<OsdId, OsdPgCount> {
        let mut out: BTreeMap<OsdId, OsdPgCount> = BTreeMap::new();
        for s in self.pgs.values() {
            for o in s.acting.iter().filter(|o| is_osd(**o)) {
                out.entry(*o).or_default().acting += 1;
            }
            for o in s.up.iter().filter(|o| is_osd(**o) && !s.acting.contains(o)) {
                out.entry(*o).or_default().up_not_acting += 1;
            }
            if s.up_primary >= 0 {
                out.entry(s.up_primary).or_default().primary += 1;
            }
        }
        out
    }

    /// For every OSD, how many PGs wait for it to peer.
    pub fn blocked_by(&self) -> BTreeMap<OsdId, u32> {
        let mut out = BTreeMap::new();
        for o in self.pgs.values().flat_map(|s| &s.blocked_by) {
            *out.entry(*o).or_insert(0) += 1;
        }
        out
    }

    /// True while any PG is unknown: nothing can be concluded then.
    pub fn unknown_pgs(&self) -> usize {
        self.pgs.values().filter(|s| s.state == PgState::UNKNOWN).count()
    }
}

/// True for a number that names an OSD (not "nobody").
pub(crate) fn is_osd(o: OsdId) -> bool {
    o >= 0 && o != spirula_types::OSD_NONE
}

/// A PG nobody reported yet: all was well until the map made it.
fn unknown(since: UTime) -> PgStat {
    PgStat {
        last_fresh: since,
        last_change: since,
        last_active: since,
        last_peered: since,
        last_clean: since,
        last_unstale: since,
        last_undegraded: since,
        last_fullsized: since,
        last_scrub_stamp: since,
        last_deep_scrub_stamp: since,
        last_clean_scrub_stamp: since,
        up_primary: -1,
        acting_primary: -1,
        ..PgStat::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::PgPool;
    use spirula_types::Uuid;

    fn t(sec: u32) -> UTime {
        UTime { sec: 1_795_200_000 + sec, nsec: 0 }
    }

    fn map(epoch: u32, pools: &[(PoolId, u32)]) -> OsdMap {
        let mut m = OsdMap::fresh(Uuid([1; 16]), epoch, t(0), spirula_maps::Crush::default());
        m.set_max_osd(3);
        for i in 0..3 {
            m.osd_state[i] = 3;
            m.osd_weight[i] = 0x10000;
        }
        for (id, n) in pools {
            m.pools.insert(*id, PgPool::replicated(3, *n, 0, t(0)));
        }
        m
    }

    fn stat(seq: u64, primary: OsdId, writes: i64) -> PgStat {
        let mut s = PgStat {
            reported_epoch: 5,
            reported_seq: seq,
            acting: vec![primary, 2],
            up: vec![primary, 2],
            acting_primary: primary,
            up_primary: primary,
            ..PgStat::default()
        };
        s.touch(t(1), PgState::ACTIVE | PgState::CLEAN);
        s.stats.num_wr = writes;
        s.stats.num_wr_kb = writes * 4;
        s.stats.num_objects = writes;
        s
    }

    fn report(p: &mut PgMap, m: &OsdMap, osd: OsdId, pg: PgId, s: PgStat) {
        p.report(m, t(2), osd, OsdStatReport::default(), [(pg, s)]);
    }

    #[test]
    fn what_a_pg_said_of_its_snapshots_before_it_took_another_in_does_not_count() {
        let with = |seq, epoch, snap| {
            let mut s = PgStat { reported_epoch: epoch, ..stat(seq, 0, 0) };
            s.purged_snaps.insert(snap, 1);
            s
        };
        let purged =
            |p: &PgMap, m: &OsdMap| p.digest(m).purged_snaps.get(&1).is_some_and(|s| s.contains(3));
        let (mut p, before) = (PgMap::default(), map(5, &[(1, 4)]));
        p.follow(&before, t(0));
        for seed in 0..3 {
            report(&mut p, &before, 0, PgId::new(1, seed), with(1, 5, 3));
        }
        report(&mut p, &before, 0, PgId::new(1, 3), with(1, 5, 4));
        assert!(!purged(&p, &before), "the last one has it still");
        // It is taken in by 1.1, whose old report is of itself alone; another manager may hear that
        // now.
        let mut after = map(6, &[(1, 3)]);
        after.pools.get_mut(&1).unwrap().last_force_op_resend_preluminous = 6;
        let mut other = PgMap::default();
        other.follow(&after, t(1));
        p.follow(&after, t(1));
        for seed in 0..3 {
            report(&mut other, &after, 0, PgId::new(1, seed), with(1, 5, 3));
        }
        assert!(!purged(&p, &after) && !purged(&other, &after));
        report(&mut p, &after, 0, PgId::new(1, 1), with(2, 6, 3));
        assert!(purged(&p, &after), "1.0 and 1.2 took nothing in");
        for seed in 0..3 {
            report(&mut other, &after, 0, PgId::new(1, seed), with(2, 6, 3));
        }
        assert!(purged(&other, &after));
    }

    /// A snapshot that was purged is removed once more, before the PGs have said anything new.
    #[test]
    fn what_a_pg_said_of_a_snapshot_before_it_was_removed_does_not_count() {
        let of = |snap: u64| BTreeMap::from([(1, spirula_maps::SnapIntervals::one(snap))]);
        let mut p = PgMap::default();
        let says = |p: &mut PgMap, m: &OsdMap, seq| {
            for seed in 0..2 {
                let mut s = PgStat { reported_epoch: m.epoch, ..stat(seq, 0, 0) };
                s.purged_snaps.insert(3, 1);
                report(p, m, 0, PgId::new(1, seed), s);
            }
        };
        p.follow(&map(4, &[(1, 2)]), t(0));
        let mut first = map(5, &[(1, 2)]);
        (first.removed_snaps_queue, first.new_removed_snaps) = (of(3), of(3));
        p.follow(&first, t(1));
        says(&mut p, &first, 1);
        assert_eq!(p.digest(&first).purged_snaps, of(3));
        let mut gone = map(6, &[(1, 2)]);
        gone.new_purged_snaps = of(3);
        p.follow(&gone, t(2));
        let mut again = map(7, &[(1, 2)]);
        (again.removed_snaps_queue, again.new_removed_snaps) = (of(3), of(3));
        p.follow(&again, t(3));
        assert!(p.digest(&again).purged_snaps.is_empty(), "that was the first time");
        says(&mut p, &again, 2);
        assert_eq!(p.digest(&again).purged_snaps, of(3));
    }

    /// A manager comes to know of a merge with a later map; who has reported in the merge's epoch
    /// says nothing again.
    #[test]
    fn a_report_of_the_epoch_of_the_merge_counts() {
        let with = |epoch| {
            let mut s = PgStat { reported_epoch: epoch, ..stat(1, 0, 0) };
            s.purged_snaps.insert(3, 1);
            s
        };
        let mut p = PgMap::default();
        let before = map(5, &[(1, 2)]);
        p.follow(&before, t(0));
        let mut after = map(9, &[(1, 1)]);
        after.pools.get_mut(&1).unwrap().last_force_op_resend_preluminous = 7;
        report(&mut p, &before, 0, PgId::new(1, 0), with(6));
        p.follow(&after, t(1));
        assert!(p.digest(&after).purged_snaps.is_empty());
        report(&mut p, &after, 0, PgId::new(1, 0), with(7));
        assert!(p.digest(&after).purged_snaps.contains_key(&1));
    }

    #[test]
    fn pgs_follow_the_osd_map_and_start_unknown() {
        let mut p = PgMap::default();
        p.follow(&map(5, &[(1, 4), (2, 2)]), t(0));
        assert_eq!((p.pgs().len(), p.unknown_pgs()), (6, 6));
        assert!(p.take_states_changed());
        assert!(!p.take_states_changed());
        let m = map(6, &[(2, 4)]);
        p.follow(&m, t(1));
        assert_eq!(
            p.pgs().keys().map(ToString::to_string).collect::<Vec<_>>(),
            ["2.0", "2.1", "2.2", "2.3"]
        );
        report(&mut p, &m, 0, PgId::new(2, 0), stat(1, 0, 0));
        assert_eq!(p.unknown_pgs(), 3);
        assert!(p.take_states_changed());
        report(&mut p, &m, 0, PgId::new(2, 0), stat(2, 0, 1));
        assert!(!p.take_states_changed(), "the same state again");
        assert_eq!(p.digest(&m).pools[&2].stat.stats.sum.num_objects, 1);
    }

    #[test]
    fn a_pg_whose_primary_is_down_is_stale_until_another_reports_it() {
        let mut p = PgMap::default();
        let mut m = map(5, &[(1, 1)]);
        p.follow(&m, t(0));
        let pg = PgId::new(1, 0);
        report(&mut p, &m, 0, pg, stat(1, 0, 0));
        m.osd_state[0] = 1;
        m.epoch = 6;
        p.follow(&m, t(10));
        assert_eq!(p.pgs()[&pg].state.to_string(), "stale+active+clean");
        assert_eq!(p.pgs()[&pg].last_unstale, t(10));
        p.follow(&m, t(20));
        assert_eq!(p.pgs()[&pg].last_unstale, t(10), "stale since then");
        let mut s = stat(1, 1, 0);
        s.reported_epoch = 6;
        report(&mut p, &m, 1, pg, s);
        assert_eq!(p.pgs()[&pg].state.to_string(), "active+clean");
    }

    #[test]
    fn an_older_report_does_not_undo_a_newer_one() {
        let mut p = PgMap::default();
        let m = map(5, &[(1, 1)]);
        p.follow(&m, t(0));
        let pg = PgId::new(1, 0);
        report(&mut p, &m, 0, pg, stat(7, 0, 70));
        report(&mut p, &m, 1, pg, stat(6, 1, 60));
        assert_eq!(p.pgs()[&pg].acting_primary, 0);
        let mut newer = stat(1, 1, 80);
        newer.reported_epoch = 6;
        report(&mut p, &m, 1, pg, newer);
        assert_eq!(p.pgs()[&pg].acting_primary, 1);
    }

    #[test]
    fn reports_of_a_pool_we_do_not_know_yet_wait_for_the_map() {
        let mut p = PgMap::default();
        let m = map(4, &[(1, 1)]);
        p.follow(&m, t(0));
        let pg = PgId::new(9, 0);
        report(&mut p, &m, 0, pg, stat(1, 0, 5));
        assert!(!p.pgs().contains_key(&pg));
        let m = map(5, &[(1, 1), (9, 1)]);
        p.follow(&m, t(1));
        assert_eq!(p.pgs()[&pg].state.to_string(), "active+clean");
        // One that no later map will know is dropped.
        report(&mut p, &m, 0, PgId::new(77, 0), stat(1, 0, 5));
        assert!(p.early.is_empty());
    }

    #[test]
    fn rates_come_from_what_happened_in_the_window_and_fade_after_it() {
        let mut p = PgMap::default();
        let m = map(5, &[(1, 1)]);
        p.follow(&m, t(0));
        let pg = PgId::new(1, 0);
        // What was there before is history.
        report(&mut p, &m, 0, pg, stat(1, 0, 1_000_000));
        p.sample(Duration::from_secs(10));
        assert_eq!(p.digest(&m).pools[&1].write_ops_sec, 0);
        for i in 1..=4 {
            report(&mut p, &m, 0, pg, stat(1 + i, 0, 1_000_000 + 100 * i as i64));
            p.sample(Duration::from_secs(10 + i));
        }
        let sum = p.digest(&m).pools[&1];
        assert_eq!((sum.write_ops_sec, sum.write_bytes_sec, sum.read_ops_sec), (100, 409_600, 0));
        let (delta, seconds) = p.delta();
        assert_eq!((delta.num_wr, seconds), (400, 4.0));
        // A counter that goes back is no traffic.
        report(&mut p, &m, 0, pg, stat(9, 0, 3));
        for s in 15..25 {
            p.sample(Duration::from_secs(s));
        }
        assert_eq!(p.digest(&m).pools[&1].write_ops_sec, 0);
        assert!(p.io[&1].samples.len() <= 8);
    }

    #[test]
    fn an_osd_that_is_out_counts_as_empty() {
        let mut p = PgMap::default();
        let mut m = map(5, &[(1, 1)]);
        p.follow(&m, t(0));
        let mut r = OsdStatReport { num_pgs: 3, ..OsdStatReport::default() };
        r.statfs.total = 100;
        p.report(&m, t(1), 1, r, []);
        assert_eq!(p.osds(&m)[&1].statfs.total, 100);
        m.osd_weight[1] = 0;
        assert_eq!(p.osds(&m)[&1].statfs.total, 0);
        m.osd_state[1] = 0;
        p.follow(&m, t(2));
        assert!(p.osds(&m).is_empty());
    }

    #[test]
    fn pgs_are_counted_by_osd() {
        let mut p = PgMap::default();
        let m = map(5, &[(1, 2)]);
        p.follow(&m, t(0));
        let mut s = stat(1, 0, 0);
        s.up = vec![1, 2];
        s.up_primary = 1;
        s.blocked_by = vec![2];
        report(&mut p, &m, 0, PgId::new(1, 0), s);
        report(&mut p, &m, 0, PgId::new(1, 1), stat(1, 0, 0));
        let c = p.counts_by_osd();
        assert_eq!(c[&0], OsdPgCount { acting: 2, up_not_acting: 0, primary: 1 });
        assert_eq!(c[&1], OsdPgCount { acting: 0, up_not_acting: 1, primary: 1 });
        assert_eq!(c[&2], OsdPgCount { acting: 2, up_not_acting: 0, primary: 0 });
        assert_eq!(p.blocked_by(), BTreeMap::from([(2, 1)]));
    }
}
