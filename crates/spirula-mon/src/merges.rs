//! Merging PGs: the monitor's part. What must hold, and why, heads `spirula-pg`'s `fold`.
//!
//! A pool with fewer PGs wanted than it has loses the one with the highest number, time and again:
//!
//! | map | when |
//! |---|---|
//! | `pg_num_pending` = `pg_num` − 1 | both PGs are placed alike, and their primaries say that they are clean |
//! | `pg_num` = `pg_num_pending` | both primaries say, with the newest map, that they are ready, on the same OSDs |
//! | `pg_num_pending` = `pg_num` | they were not ready in [`PATIENCE`]: clients wait meanwhile |
//!
//! Field names, and what clients see, are Ceph's (there the manager steps). Only what the primaries say
//! is remembered here, and that not durably: they repeat it.

use crate::mon::Mon;
use crate::osd::seconds_between;
use crate::work::Work;
use spirula_encoding::UTime;
use spirula_maps::PgPool;
use spirula_maps::osdmap::PgMergeMeta;
use spirula_messages::cluster::control::{MergeWord, PgMerges};
use spirula_types::{PgId, PoolId, hash};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Seconds that a merge may be pending.
const PATIENCE: f64 = 5.0;
/// Seconds until the next try after one that was given up.
const PAUSE: f64 = 10.0;

/// What primaries said, and since when merges are pending.
#[derive(Debug, Default)]
pub struct MergeTracker {
    words: BTreeMap<PgId, MergeWord>,
    pending: BTreeMap<PoolId, UTime>,
    paused: BTreeMap<PoolId, UTime>,
}

/// The PG that goes when the pool has only `n`, and the one it goes into.
fn pair(pool: PoolId, n: u32) -> (PgId, PgId) {
    (PgId::new(pool, n), PgId::new(pool, hash::stable_mod(n, n, hash::mask_for(n))))
}

impl MergeTracker {
    /// What both primaries said, if it is still so: `ready`, or only that the merge may begin.
    fn both(&self, (source, target): (PgId, PgId), ready: bool, work: &Work) -> Option<(&MergeWord, &MergeWord)> {
        let (s, t) = (self.words.get(&source)?, self.words.get(&target)?);
        // Being ready counts only with the very map that is to be changed.
        let fits = |w: &MergeWord| w.ready == ready && (!ready || w.epoch == work.state.osdmap.epoch);
        let map = &work.state.osdmap;
        let (at, to) = (map.pg_to_up_acting(source), map.pg_to_up_acting(target));
        let together = s.acting == t.acting && s.acting == at.acting && s.acting == to.acting;
        (fits(s) && fits(t) && together && at.up == at.acting && to.up == to.acting).then_some((s, t))
    }
}

impl Mon {
    pub(crate) fn pg_merges(&mut self, m: PgMerges, work: &mut Work) {
        for (pg, word) in m.pgs {
            let map = &work.state.osdmap;
            let exists = map.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num);
            if exists && map.pg_to_up_acting(pg).acting_primary == m.osd {
                self.merges.words.insert(pg, word);
            }
        }
        self.step_merges(work);
    }

    /// Begins, finishes or gives up merges. One step a pool at most.
    pub(crate) fn step_merges(&mut self, work: &mut Work) {
        let shrinking = |p: &PgPool| p.pg_num_target < p.pg_num || p.pg_num_pending < p.pg_num;
        let pools: Vec<PoolId> = work.osd().pools.iter().filter(|(_, p)| shrinking(p)).map(|(id, _)| *id).collect();
        let t = &mut self.merges;
        if pools.is_empty() {
            *t = MergeTracker::default();
            return;
        }
        t.words.retain(|pg, _| pools.contains(&pg.pool));
        t.pending.retain(|id, _| pools.contains(id));
        for id in pools {
            // A pool that this batch changes has to wait for the next.
            let same = work.osd().pool(id) == work.state.osdmap.pool(id);
            if let Some(pool) = work.osd().pool(id).cloned().filter(|_| same) {
                self.step_merge(id, pool, work);
            }
        }
    }

    fn step_merge(&mut self, id: PoolId, mut pool: PgPool, work: &mut Work) {
        let (now, t) = (self.now, &mut self.merges);
        if pool.pg_num_pending < pool.pg_num {
            let since = *t.pending.entry(id).or_insert(now);
            let n = pool.pg_num - 1;
            let (source, target) = pair(id, n);
            if let Some((s, to)) = t.both((source, target), true, work) {
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
                pool.last_force_op_resend_prenautilus = work.next_epoch();
                pool.last_force_op_resend_preluminous = work.next_epoch();
                if work.state.created.contains_key(&source) {
                    Arc::make_mut(&mut work.state.created).remove(&source);
                }
                t.words.remove(&source);
                t.words.remove(&target);
                t.pending.remove(&id);
                // The next one at once, if nothing stands against it.
                if pool.pg_num_target < n && t.both(pair(id, n - 1), false, work).is_some() {
                    pool.pg_num_pending = n - 1;
                    t.pending.insert(id, now);
                }
            } else if pool.pg_num_target >= pool.pg_num || seconds_between(since, now) >= PATIENCE {
                tracing::info!(pool = id, %source, %target, "merge given up: not ready in time");
                pool.pg_num_pending = pool.pg_num;
                t.pending.remove(&id);
                t.paused.insert(id, now);
            } else {
                return;
            }
        } else {
            let paused = t.paused.get(&id).is_some_and(|at| seconds_between(*at, now) < PAUSE);
            let n = pool.pg_num.saturating_sub(1);
            if paused || n == 0 || pool.pgp_num > n || t.both(pair(id, n), false, work).is_none() {
                return;
            }
            pool.pg_num_pending = n;
            t.pending.insert(id, now);
        }
        work.osd_mut().pools.insert(id, pool);
    }
}
