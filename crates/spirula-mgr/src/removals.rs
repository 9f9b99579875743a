//! Since when each removed snapshot is removed: what PGs said before says nothing of it.
//!
//! A PG reports what it has purged, and reports again only what changes. When a snapshot has left
//! the map's queue and is removed once more (which has the PGs look once more), the reports that
//! are here still name it, for its first removal. So of a PG only that counts which it said with a
//! map in which the present removal is. That is enough: a PG sees every epoch of the map, and
//! forgets what it has purged with the one in which that leaves the queue; so what it names with a
//! map from the removal on, it has looked for since. And it is not too much: who has looked has a
//! map from the removal on. Where the manager has not seen every epoch, all there is counts as
//! removed in the one that it sees; who has said it before says it again within seconds
//! (`spirula_osd`).

use spirula_maps::{OsdMap, SnapIntervals};
use spirula_types::{Epoch, PoolId};
use std::collections::BTreeMap;

/// Epochs of removals that are told apart in a pool at most. The oldest ones count as one then, of
/// the newer epoch.
const EPOCHS_MAX: usize = 1024;

/// The removed snapshots of each pool, by the epoch in which they were removed: no more of them
/// than the map's queue has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removals {
    seen: Epoch,
    pools: BTreeMap<PoolId, BTreeMap<Epoch, SnapIntervals>>,
}

impl Removals {
    /// Follows the OSD map. To be told of each epoch, as far as that can be.
    pub fn follow(&mut self, map: &OsdMap) {
        if map.epoch <= self.seen {
            return;
        }
        let next = map.epoch == self.seen + 1 && self.seen > 0;
        self.seen = map.epoch;
        if next && map.new_removed_snaps.is_empty() && map.new_purged_snaps.is_empty() {
            self.pools.retain(|id, _| map.pools.contains_key(id));
            return;
        }
        self.pools.retain(|id, _| map.removed_snaps_queue.contains_key(id));
        for (id, queue) in &map.removed_snaps_queue {
            let of = self.pools.entry(*id).or_default();
            let new = match map.new_removed_snaps.get(id) {
                _ if !next => queue.clone(),
                Some(new) => new.intersection(queue),
                None => SnapIntervals::new(),
            };
            of.retain(|_, s| {
                *s = s.intersection(queue);
                s.subtract(&new);
                !s.is_empty()
            });
            if !new.is_empty() {
                of.insert(map.epoch, new);
            }
            while of.len() > EPOCHS_MAX
                && let Some((_, oldest)) = of.pop_first()
                && let Some(mut second) = of.first_entry()
            {
                second.get_mut().union(&oldest);
            }
        }
    }

    /// What was removed later than `epoch` is taken out of a pool's snapshots.
    pub fn only_before(&self, pool: PoolId, epoch: Epoch, snaps: &mut SnapIntervals) {
        let later =
            self.pools.get(&pool).into_iter().flat_map(|of| of.range(epoch.saturating_add(1)..));
        later.for_each(|(_, s)| snaps.subtract(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The map of this epoch: `queue` is removed, `new` since the map before.
    fn map(epoch: Epoch, queue: &[u64], new: &[u64]) -> OsdMap {
        let of = |snaps: &[u64]| {
            let mut s = SnapIntervals::new();
            snaps.iter().for_each(|id| s.insert(*id, 1));
            s
        };
        let time = spirula_encoding::UTime::ZERO;
        let mut m = OsdMap::fresh(
            spirula_types::Uuid([1; 16]),
            epoch,
            time,
            spirula_maps::Crush::default(),
        );
        m.pools.insert(1, spirula_maps::PgPool::replicated(3, 1, 0, time));
        m.removed_snaps_queue.insert(1, of(queue));
        m.new_removed_snaps.insert(1, of(new));
        m
    }

    /// Of the snapshots 0 to 9, those that a report of this epoch may count for.
    fn before(r: &Removals, epoch: Epoch) -> Vec<u64> {
        let mut all = SnapIntervals::new();
        all.insert(0, 10);
        r.only_before(1, epoch, &mut all);
        (0..10).filter(|s| all.contains(*s)).collect()
    }

    #[test]
    fn a_report_counts_for_what_was_removed_before_it() {
        let mut r = Removals::default();
        r.follow(&map(4, &[], &[]));
        r.follow(&map(5, &[3, 4], &[3, 4]));
        assert_eq!(before(&r, 4), [0, 1, 2, 5, 6, 7, 8, 9]);
        assert_eq!(before(&r, 5), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        // 3 is gone, and removed once more.
        r.follow(&map(6, &[4], &[]));
        r.follow(&map(7, &[3, 4], &[3]));
        assert_eq!(before(&r, 6), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
        assert_eq!(before(&r, 7).len(), 10);
        // What was passed over may have been that, of each.
        r.follow(&map(9, &[3, 4], &[]));
        assert_eq!(before(&r, 8), [0, 1, 2, 5, 6, 7, 8, 9]);
        assert_eq!(before(&r, 9).len(), 10);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut r = Removals::default();
        r.follow(&map(1, &[], &[]));
        let mut queue = Vec::new();
        for epoch in 2..EPOCHS_MAX as Epoch + 100 {
            queue.push(u64::from(epoch));
            r.follow(&map(epoch, &queue, &[u64::from(epoch)]));
        }
        let of = &r.pools[&1];
        assert_eq!(
            (of.len(), of.values().map(SnapIntervals::size).sum::<u64>()),
            (EPOCHS_MAX, queue.len() as u64)
        );
        assert!(!before(&r, 1).contains(&2) && before(&r, EPOCHS_MAX as Epoch).contains(&2));
    }
}
