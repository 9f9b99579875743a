//! Merging PGs: the monitor's part. What must hold, and why, heads `spirula-pg`'s `fold`.
//!
//! A pool that wants fewer PGs than it has loses the one with the highest number, again and again,
//! by these changes of the map:
//!
//! | map | when |
//! |---|---|
//! | `pg_num_pending` = `pg_num` − 1 | both PGs are placed alike, and their primaries say that they are clean |
//! | `pg_num` = `pg_num_pending` | both primaries say, with the newest map, that they are ready, on the same OSDs |
//! | `pg_num_pending` = `pg_num` | they were not ready in [`PATIENCE`], or cannot become it: clients wait meanwhile |
//!
//! Field names, and what clients see, are Ceph's (there the manager steps). Only what the primaries
//! say is remembered here, and that not durably: they repeat it.
//!
//! A merge that is begun and given up holds up writes for nothing. So a primary's word counts only
//! while it is repeated, until it is taken back, and only if it is later than the last change of
//! this kind and than the last start of each OSD that it names; and each try that fails doubles the
//! pause before the next.

use crate::mon::Mon;
use crate::osd::seconds_between;
use crate::work::Work;
use spirula_encoding::UTime;
use spirula_maps::osdmap::PgMergeMeta;
use spirula_maps::{OsdMap, PgPool};
use spirula_messages::cluster::control::{MergeWord, PgMerges};
use spirula_types::{Epoch, OSD_NONE, OsdId, PgId, PoolId, hash};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Seconds that a merge may be pending.
const PATIENCE: f64 = 5.0;
/// Seconds until the next try after the first that was given up; twice as many after each further
/// one,
const PAUSE: f64 = 10.0;
/// up to this often.
const DOUBLINGS: u32 = 5;
/// Seconds that a word counts. Primaries repeat theirs every 3.
const FRESH: f64 = 15.0;

/// What a primary said.
#[derive(Debug)]
struct Said {
    by: OsdId,
    at: UTime,
    word: MergeWord,
}

/// Tries of a pool that were given up since the last merge that was done.
#[derive(Debug)]
struct GivenUp {
    last: UTime,
    times: u32,
}

impl GivenUp {
    /// Must the next try still wait?
    fn rests(&self, now: UTime) -> bool {
        let doublings = self.times.saturating_sub(1).min(DOUBLINGS);
        seconds_between(self.last, now) < PAUSE * f64::from(1u32 << doublings)
    }
}

/// What primaries said, since when merges are pending, and how often they were given up.
#[derive(Debug, Default)]
pub struct MergeTracker {
    words: BTreeMap<PgId, Said>,
    pending: BTreeMap<PoolId, UTime>,
    /// Words of older maps than this are of an interval of the PG that is over.
    since: BTreeMap<PgId, Epoch>,
    given_up: BTreeMap<PoolId, GivenUp>,
}

/// The PG that goes when the pool has only `n`, and the one it goes into.
fn pair(pool: PoolId, n: u32) -> (PgId, PgId) {
    (PgId::new(pool, n), PgId::new(pool, hash::stable_mod(n, n, hash::mask_for(n))))
}

/// The acting set of both PGs, if they are placed alike and as CRUSH wants them, on as many OSDs as
/// the pool asks for.
fn together(map: &OsdMap, (source, target): (PgId, PgId), size: u8) -> Option<Vec<OsdId>> {
    let (at, to) = (map.pg_to_up_acting(source), map.pg_to_up_acting(target));
    let whole = at.acting.iter().filter(|o| **o != OSD_NONE).count() >= usize::from(size);
    (at.acting == to.acting && at.up == at.acting && to.up == to.acting && whole)
        .then_some(at.acting)
}

impl MergeTracker {
    /// From this epoch on the two PGs have another interval: what was said of the one before is
    /// over.
    fn begin_anew(&mut self, (source, target): (PgId, PgId), epoch: Epoch) {
        for pg in [source, target] {
            self.words.remove(&pg);
            self.since.insert(pg, epoch);
        }
    }

    /// What both primaries said, if it is still so: `ready`, or only that the merge may begin.
    fn both(
        &self,
        (source, target): (PgId, PgId),
        ready: bool,
        size: u8,
        now: UTime,
        map: &OsdMap,
    ) -> Option<(&MergeWord, &MergeWord)> {
        let (s, t) = (self.words.get(&source)?, self.words.get(&target)?);
        let since =
            [source, target].iter().filter_map(|pg| self.since.get(pg)).max().copied().unwrap_or(0);
        let acting = together(map, (source, target), size)?;
        // Whoever started since then may lack something.
        let members = acting.iter().filter(|o| **o != OSD_NONE);
        let started = members
            .filter_map(|o| Some(map.osd_info.get(usize::try_from(*o).ok()?)?.up_from))
            .max();
        // Being ready counts only with the very map that is to be changed.
        let least = if ready { map.epoch } else { since.max(started.unwrap_or(0)) };
        let fits = |s: &Said| {
            let w = &s.word;
            w.ready == ready
                && w.epoch >= least
                && w.acting == acting
                && seconds_between(s.at, now) < FRESH
        };
        (fits(s) && fits(t)).then_some((&s.word, &t.word))
    }
}

impl Mon {
    pub(crate) fn pg_merges(&mut self, m: PgMerges, work: &mut Work) {
        for (pg, word) in m.pgs {
            let map = &work.state.osdmap;
            let words = &mut self.merges.words;
            if !word.clean {
                // Also from one that is not its primary any more.
                if words.get(&pg).is_some_and(|s| s.by == m.osd) {
                    words.remove(&pg);
                }
                continue;
            }
            let exists = map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num);
            if exists && map.pg_to_up_acting(pg).acting_primary == m.osd {
                words.insert(pg, Said { by: m.osd, at: self.steady, word });
            }
        }
        self.step_merges(work);
    }

    /// Begins, finishes or gives up merges. One step a pool at most.
    pub(crate) fn step_merges(&mut self, work: &mut Work) {
        let shrinking = |p: &PgPool| p.pg_num_target < p.pg_num || p.pg_num_pending < p.pg_num;
        let pools: Vec<PoolId> =
            work.osd().pools.iter().filter(|(_, p)| shrinking(p)).map(|(id, _)| *id).collect();
        let t = &mut self.merges;
        if pools.is_empty() {
            *t = MergeTracker::default();
            return;
        }
        t.words.retain(|pg, _| pools.contains(&pg.pool));
        t.pending.retain(|id, _| pools.contains(id));
        t.since.retain(|pg, _| pools.contains(&pg.pool));
        t.given_up.retain(|id, _| pools.contains(id));
        for id in pools {
            // A pool that this batch changes has to wait for the next.
            let same = work.osd().pool(id) == work.state.osdmap.pool(id);
            if let Some(pool) = work.osd().pool(id).cloned().filter(|_| same) {
                self.step_merge(id, pool, work);
            }
        }
    }

    fn step_merge(&mut self, id: PoolId, mut pool: PgPool, work: &mut Work) {
        let (now, t, map, size) = (self.steady, &mut self.merges, &work.state.osdmap, pool.size);
        let (before, next) = (pool.pg_num, work.next_epoch());
        if pool.pg_num_pending < pool.pg_num {
            let since = *t.pending.entry(id).or_insert(now);
            let n = pool.pg_num - 1;
            let (source, target) = pair(id, n);
            if let Some((s, to)) = t.both((source, target), true, size, now, map) {
                pool.last_pg_merge_meta = PgMergeMeta {
                    source_pgid: source,
                    ready_epoch: s.epoch,
                    last_epoch_started: s.les.max(to.les),
                    last_epoch_clean: s.lec.min(to.lec),
                    source_version: s.version,
                    target_version: to.version,
                };
                pool.pg_num = n;
                pool.pg_num_pending = n;
                pool.pgp_num = pool.pgp_num.min(n);
                // Clients from before Nautilus know nothing of merges.
                pool.last_force_op_resend_prenautilus = next;
                pool.last_force_op_resend_preluminous = next;
                if work.state.created.contains_key(&source) {
                    Arc::make_mut(&mut work.state.created).remove(&source);
                }
                t.pending.remove(&id);
                t.given_up.remove(&id);
                // The next one at once, if nothing stands against it.
                if pool.pg_num_target < n
                    && t.both(pair(id, n - 1), false, size, now, map).is_some()
                {
                    pool.pg_num_pending = n - 1;
                    t.pending.insert(id, now);
                }
            } else if pool.pg_num_target >= pool.pg_num
                || seconds_between(since, now) >= PATIENCE
                || together(map, (source, target), size).is_none()
            {
                tracing::info!(pool = id, %source, %target, "merge given up: not ready in time");
                pool.pg_num_pending = pool.pg_num;
                t.pending.remove(&id);
                let times = t.given_up.get(&id).map_or(1, |g| g.times.saturating_add(1));
                t.given_up.insert(id, GivenUp { last: now, times });
            } else {
                return;
            }
        } else {
            let rests = t.given_up.get(&id).is_some_and(|g| g.rests(now));
            let n = pool.pg_num.saturating_sub(1);
            if rests
                || n == 0
                || pool.pgp_num > n
                || t.both(pair(id, n), false, size, now, map).is_none()
            {
                return;
            }
            pool.pg_num_pending = n;
            t.pending.insert(id, now);
        }
        t.begin_anew(pair(id, before.saturating_sub(1)), next);
        if pool.pg_num_pending < pool.pg_num {
            t.begin_anew(pair(id, pool.pg_num_pending), next);
        }
        work.osd_mut().pools.insert(id, pool);
    }
}
