//! Pacing of placement: `pgp_num` goes to `pgp_num_target` in steps, so that few objects are
//! misplaced at a time.
//!
//! As in Ceph (there the manager steps): no step while PGs are inactive or unknown or objects are
//! degraded, nor while more than `target_max_misplaced_ratio` of all copies are misplaced; a step
//! is of as many PGs as hold what is left of that share, and of one at least. How many objects a PG
//! holds is taken from the pool's numbers, so a pool that holds little goes in one step. Statistics
//! come a while after the change that made them: the next step waits for such as know the map of
//! the last one, and [`PAUSE`].

use crate::mon::Mon;
use crate::osd::seconds_between;
use crate::work::Work;
use spirula_encoding::UTime;
use spirula_maps::{PgDigest, PgPool, PgState};
use spirula_types::{Epoch, PoolId};

/// Seconds from one step to the next (Ceph's `mgr_tick_period`).
const PAUSE: f64 = 2.0;

/// The last step; lost at restart.
#[derive(Debug, Default)]
pub struct PlacementTracker {
    epoch: Epoch,
    at: UTime,
}

/// What `pgp_num` is to be in the end, as far as that is possible now.
fn goal(pool: &PgPool) -> u32 {
    pool.pgp_num_target.min(pool.pg_num_pending).max(1)
}

/// Share of all copies that may still be misplaced; `None` if nothing may be moved now.
fn room(digest: &PgDigest, most: f64) -> Option<f64> {
    let sum = digest.pool_sum().stat.stats.sum;
    let active = digest.num_pgs_with(PgState::ACTIVE);
    if active < digest.num_pgs() || sum.num_objects_degraded > 0 {
        return None;
    }
    let misplaced = sum.num_objects_misplaced.max(0) as f64 / sum.num_object_copies.max(1) as f64;
    (misplaced <= most).then_some(most - misplaced)
}

/// The next `pgp_num` of a pool.
fn next(pool: &PgPool, id: PoolId, digest: &PgDigest, room: f64) -> u32 {
    let all = digest.pool_sum().stat.stats.sum.num_object_copies;
    let here = digest.pools.get(&id).map_or(0, |p| p.stat.stats.sum.num_object_copies);
    let goal = goal(pool);
    if here <= 0 {
        return goal;
    }
    let step = (room * all.max(0) as f64 / here as f64 * f64::from(pool.pg_num)).max(1.0) as u32;
    goal.clamp(pool.pgp_num.saturating_sub(step), pool.pgp_num.saturating_add(step))
}

impl Mon {
    /// Makes the next step of one pool, if it is time for one.
    pub(crate) fn step_placement(&mut self, work: &mut Work) {
        let late = work
            .osd()
            .pools
            .iter()
            .find(|(_, p)| goal(p) != p.pgp_num)
            .map(|(id, p)| (*id, p.clone()));
        let Some((id, mut pool)) = late else { return };
        let knowledge = &self.mgr.knowledge;
        let t = &self.placement;
        if knowledge.stamp.is_zero()
            || knowledge.digest.osdmap_epoch < t.epoch.max(pool.last_change)
            || seconds_between(t.at, self.steady) < PAUSE
        {
            return;
        }
        let most = work.state.option_of_mgr("target_max_misplaced_ratio");
        let Some(room) = room(&knowledge.digest, most) else { return };
        pool.pgp_num = next(&pool, id, &knowledge.digest, room);
        self.placement = PlacementTracker { epoch: work.next_epoch(), at: self.steady };
        work.osd_mut().pools.insert(id, pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::PoolSum;

    fn digest(pools: &[(PoolId, i64)], misplaced: i64, degraded: i64) -> PgDigest {
        let mut d = PgDigest::default();
        for (id, copies) in pools {
            let mut sum = PoolSum::default();
            sum.stat.stats.sum.num_object_copies = *copies;
            d.pools.insert(*id, sum);
        }
        if let Some(first) = d.pools.values_mut().next() {
            first.stat.stats.sum.num_objects_misplaced = misplaced;
            first.stat.stats.sum.num_objects_degraded = degraded;
        }
        d.pg_states.insert(PgState::ACTIVE | PgState::CLEAN, 8);
        d
    }

    fn pool(pg_num: u32, pgp_num: u32, target: u32) -> PgPool {
        PgPool {
            pg_num,
            pg_num_pending: pg_num,
            pgp_num,
            pgp_num_target: target,
            ..PgPool::default()
        }
    }

    #[test]
    fn a_step_moves_what_the_ratio_leaves_room_for_and_one_pg_at_least() {
        let d = digest(&[(1, 1000)], 0, 0);
        let free = room(&d, 0.05).unwrap();
        assert_eq!(next(&pool(64, 64, 16), 1, &d, free), 61);
        assert_eq!(next(&pool(64, 16, 64), 1, &d, free), 19);
        assert_eq!(next(&pool(8, 8, 4), 1, &d, free), 7);
        assert_eq!(next(&pool(64, 17, 16), 1, &d, free), 16, "not past the goal");
        // Of a pool that holds a tenth of everything ten times as many PGs move alike.
        let d = digest(&[(1, 1000), (2, 9000)], 0, 0);
        assert_eq!(next(&pool(64, 64, 16), 1, &d, free), 32);
        // Nothing moves with a pool that holds nothing.
        assert_eq!(next(&pool(64, 64, 16), 3, &d, free), 16);
    }

    #[test]
    fn no_step_while_too_much_is_misplaced_or_anything_is_degraded_or_inactive() {
        assert_eq!(room(&digest(&[(1, 1000)], 51, 0), 0.05), None);
        assert!(room(&digest(&[(1, 1000)], 50, 0), 0.05).is_some_and(|r| r < 1e-9));
        assert_eq!(room(&digest(&[(1, 1000)], 0, 1), 0.05), None);
        let mut d = digest(&[(1, 1000)], 0, 0);
        d.pg_states.insert(PgState::PEERING, 1);
        assert_eq!(room(&d, 0.05), None);
    }

    #[test]
    fn placement_is_never_by_more_pgs_than_there_will_be() {
        let mut p = pool(16, 16, 64);
        assert_eq!(goal(&p), 16);
        p.pg_num_pending = 15;
        assert_eq!(goal(&p), 15);
    }
}
