//! Merging two PGs when their pool gets fewer of them: the *source*, the one with the highest seed,
//! folds into its *target*, the PG it was or would have been split from. (`merge` is about logs.)
//!
//! | step | who |
//! |---|---|
//! | `pgp_num` is lowered: both are placed alike, the data moves | monitor, recovery |
//! | both primaries say that their PG is clean, say it again, or take it back | [`Lead::tell_merge`] |
//! | the merge is *pending* (`pg_num_pending` < `pg_num`): a new interval of both, without writes | monitor |
//! | both primaries say that it is ready, at which version, and who acts | [`Lead::tell_merge`] |
//! | `pg_num` falls by one; the map says which merge it was and at which versions | monitor |
//! | every OSD folds what it has of the two, before any PG sees that map | [`Pg::fold`] |
//! | the target peers, as in any new interval | `peering` |
//!
//! # Why no acknowledged write is lost, and none comes back that was not
//! *While a merge is pending nothing is written.* Every primary that has seen the pending map holds
//! writes back, in every interval; a PG is ready only in an interval that began with or after the
//! pending, when all acting members (no fewer than the pool's size, each of the up set) have
//! recorded its activation, lack nothing, and have every entry durably. From then on until the
//! merge is done or given up, no entry follows the version that it told: a report once true stays
//! true.
//!
//! *The monitor merges only what is together.* It takes two reports only if both were true with the
//! very map that it changes, and name the same acting set, which that map gives both PGs. So at the
//! moment of the merge every OSD of that set holds both, whole.
//!
//! *A copy is good or void.* An OSD folds a copy of the target and one of the source if both are
//! whole and end at exactly the versions in the map. A version names one entry of one history, so
//! such copies are equal to those of the reporting members, wherever they are and whenever their
//! OSD gets to that map. Any other (a source without target, one that is behind or ahead of the
//! history, one of an OSD that could not follow every map) is void from then on, durably: it counts
//! for nothing in peering and is deleted, or filled anew. Nothing is lost by that: the good copies
//! are as many as the pool has members, less those that failed since.
//!
//! *Nor is anything taken back in an erasure-coded PG.* Each shard's copies fold by themselves, by
//! the same rule. All members had all entries durably when the PG was ready, so the fold forgets
//! the undo copies; the acting members were `k + m`, so the loss of `m` after it is borne as ever.
//!
//! *After it the rules of peering hold.* All good copies have the same history: one activation
//! (`les` is the epoch before the merge), no log but one position (a new version, later than any of
//! either PG, so that a copy from before the merge shares nothing with it and is filled anew), the
//! requests of both for resends. Intervals of either PG since it was last known clean are kept,
//! together with the last ones, so that the leases of older primaries of *both* are waited for;
//! what both copies knew to be shared (`history_les`, `lec`) is the lesser of the two.
//!
//! *A crash between any two steps.* What a fold changes is one transaction, with the epoch of its
//! map ([`Pg::shaped`]): an OSD that starts again from an older map shows that PG no map before it.
//! The monitor's part is one change of the map each. If the monitor's leader goes, the reports are
//! repeated. A pending merge that is not ready in time is given up: the next map has another
//! interval, and writes go on; reports from before are of an older map than the one that a later
//! merge changes.

use crate::Now;
use crate::api::{MapView, Merged, PgEffect};
use crate::commits::After;
use crate::core::Cx;
use crate::exec::ObjectReader;
use crate::lead::Lead;
use crate::lease::Leases;
use crate::pg::Pg;
use spirula_messages::cluster::control::MergeWord;
use spirula_types::{EVersion, Epoch, Peer, PgId, PoolId, SpgId, hash};
use std::collections::BTreeMap;

/// The PG that `pg` becomes part of when its pool has only `pg_num`.
pub fn target_of(pg: PgId, pg_num: u32) -> PgId {
    PgId::new(pg.pool, hash::stable_mod(pg.seed, pg_num.max(1), hash::mask_for(pg_num.max(1))))
}

/// What must be folded before the map of `epoch` is shown, in which pools have as many PGs as
/// `pg_num` says (`None` for one that does not exist): each target with the sources that are stored
/// here.
pub fn folds<'a>(
    pgs: impl IntoIterator<Item = (&'a SpgId, &'a Pg)>,
    epoch: Epoch,
    pg_num: impl Fn(PoolId) -> Option<u32>,
) -> BTreeMap<SpgId, Vec<SpgId>> {
    let mut out: BTreeMap<SpgId, Vec<SpgId>> = BTreeMap::new();
    for (id, pg) in pgs {
        let Some(n) = pg_num(id.pg.pool).filter(|_| pg.exists() && pg.shaped() < epoch) else {
            continue;
        };
        if id.pg.seed >= n {
            out.entry(SpgId::new(target_of(id.pg, n), id.shard)).or_default().push(*id);
        } else if hash::range_bits(id.pg.seed, n) < hash::range_bits(id.pg.seed, pg.pg_num()) {
            out.entry(*id).or_default();
        }
    }
    out
}

impl Pg {
    /// Gives up what this PG does here, before it is folded into another because of the map of
    /// `epoch`. What it waited for to become durable is of no interest any more.
    pub fn retire(
        &mut self,
        epoch: Epoch,
        now: Now,
        reader: &dyn ObjectReader,
        leases: &Leases,
        out: &mut Vec<PgEffect>,
    ) {
        let cx = &mut Cx { now, reader, leases, out };
        self.leave_role(cx);
        // Their clients see that the PG is gone and send them to the target.
        self.requests.drop_all(epoch, cx);
    }

    /// Folds `sources`, retired, into this PG, for a pool of `pg_num` PGs, because of the map of
    /// `epoch`, which neither has seen. `merged` is what that map says of the merge; `None` if it
    /// was not the very next one, or says nothing of these two. Must come before the map, for every
    /// target of which or of whose source something is stored. The effects hold one transaction.
    #[allow(
        clippy::too_many_arguments,
        reason = "the shell's part of every event, and the map's words"
    )]
    pub fn fold(
        &mut self,
        mut sources: Vec<Pg>,
        merged: Option<&Merged>,
        (epoch, pg_num): (Epoch, u32),
        now: Now,
        reader: &dyn ObjectReader,
        leases: &Leases,
        out: &mut Vec<PgEffect>,
    ) {
        let cx = &mut Cx { now, reader, leases, out };
        self.leave_role(cx);
        let good = match (sources.as_slice(), merged) {
            ([s], Some(m)) if planted!(self.core.cfg, FoldUnchecked) => {
                self.core.has_copy() && s.core.has_copy() && m.source == s.core.id
            }
            ([s], Some(m)) => {
                m.source == s.core.id
                    && self.core.is_whole_at(m.target_version)
                    && s.core.is_whole_at(m.source_version)
            }
            _ => false,
        };
        let newest = merged.map_or(0, |m| m.source_version.version.max(m.target_version.version));
        if !good {
            tracing::info!(pg = %self.core.id, epoch, "the copy does not belong to what was \
                merged; it is void");
        }
        let theirs =
            sources.iter_mut().map(|s| (&mut s.core.copy, s.core.view.as_deref())).collect();
        let at = good.then(|| EVersion::new(epoch, newest + 1));
        let change = self.core.copy.fold(theirs, at, (epoch, pg_num));
        self.core.submit(change, After::Nothing, cx);
    }
}

impl Lead<'_> {
    /// Tells the monitor that the PG can be merged, or is ready to be, if that is so and was not
    /// told with this map (`again`: even then); takes back what it told if that is no longer so.
    pub(crate) fn tell_merge(&mut self, again: bool, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let wanted = view.pool.as_ref().is_some_and(|p| p.shrinks(self.core.id.seed));
        let Some(info) = self.core.info() else { return };
        let a = &*self.primary;
        let pending = self.core.interval().premerge;
        let idle =
            a.inflight() == 0 && a.wait_until <= cx.now.mono_ms && self.core.missing().is_empty();
        let able = wanted && a.clean && a.activated && a.serving && (!pending || idle);
        let word = able.then(|| MergeWord {
            epoch: view.epoch,
            clean: true,
            ready: pending,
            version: info.last_update(),
            les: info.les,
            lec: info.lec,
            acting: Peer::places(&view.acting, view.pool_size()),
        });
        // While it is only able, one word will do for all maps.
        let key = word
            .as_ref()
            .map(|w| (w.ready, if w.ready { w.epoch } else { self.core.interval().since }));
        let a = &mut *self.primary;
        let told = std::mem::replace(&mut a.merge_told, key);
        match word {
            Some(word) if told != key || again => cx.out.push(PgEffect::Mergeable(word)),
            None if told.is_some() => self.core.take_back_merge(cx),
            _ => {}
        }
    }
}

impl MapView {
    /// How many members the pool wants.
    pub(crate) fn pool_size(&self) -> usize {
        self.pool.as_ref().map_or(0, |p| p.size)
    }

    /// Is a merge of PG `seed` pending?
    pub(crate) fn is_premerge(&self, seed: u32) -> bool {
        self.pool.as_ref().is_some_and(|p| p.is_premerge(seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_merge_is_the_parent_of_the_split_that_undoes_it() {
        for n in 1..100 {
            let source = PgId::new(3, n);
            let target = target_of(source, n);
            assert_eq!(crate::children_of(target, n, n + 1), [source]);
        }
    }
}
