//! Splitting a PG when its pool gets more of them.
//!
//! Every OSD that holds the PG splits it before it uses the first map with more PGs, whatever state
//! the copy is in. Objects stay where they are: they are sorted by hash, and a child's range is
//! part of its parent's. Children inherit the history and the past intervals of their parent, so
//! the rules of peering hold for them as if they had always been there.

use crate::Now;
use crate::api::PgEffect;
use crate::commits::After;
use crate::copy::PgCopy;
use crate::core::{Cx, PgCore};
use crate::exec::{
    INFO_ATTR, ObjectInfo, ObjectReader, ReadError, SNAPSET_ATTR, SnapSet, pg_end, pg_start,
};
use crate::lease::Leases;
use crate::pg::Pg;
use crate::shard::ShardReader;
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::PgCounts;
use spirula_types::{EVersion, Epoch, PgId, SNAP_HEAD, SpgId, hash};

/// Objects up to which a split counts each child's exactly; beyond it they are taken to be equal.
const COUNT_MAX: i64 = 20_000;

/// The PGs that come out of `parent` when its pool grows from `from` to `to` PGs.
pub fn children_of(parent: PgId, from: u32, to: u32) -> Vec<PgId> {
    let mask = hash::mask_for(from);
    (from..to)
        .filter(|seed| hash::stable_mod(*seed, from, mask) == parent.seed)
        .map(|seed| PgId::new(parent.pool, seed))
        .collect()
}

impl Pg {
    /// Splits the copy stored here for the pool of `pg_num` PGs in the map of `epoch` and returns
    /// the children, to be given that map like any PG. Must come before the first map with so many
    /// PGs, for every copy that is stored ([`Pg::pg_num`]). The effects hold one transaction, which
    /// must be durable before anything the children submit.
    pub fn split(
        &mut self,
        now: Now,
        (epoch, pg_num): (Epoch, u32),
        reader: &dyn ObjectReader,
        leases: &Leases,
        out: &mut Vec<PgEffect>,
    ) -> Vec<Pg> {
        let Some(info) = self.core.info().cloned().filter(|i| i.pg_num < pg_num) else {
            return Vec::new();
        };
        let ids = children_of(self.core.id, info.pg_num, pg_num);
        if ids.is_empty() {
            return Vec::new();
        }
        let shard = ShardReader { inner: reader, shard: self.core.me.shard };
        let reader = if self.core.me.shard >= 0 { &shard } else { reader };
        let cx = &mut Cx { now, reader, leases, out };
        // The role ends with the old shape; the map that follows begins another interval.
        self.leave_role(cx);
        let ids: Vec<PgId> = std::iter::once(self.core.id).chain(ids).collect();
        let mut counts = share(&info.head.counts, &ids, pg_num, reader);
        // What is not here was not counted.
        counts.iter_mut().for_each(|c| c.estimated |= !self.core.missing().is_empty());
        let parts: Vec<(PgId, PgCounts)> = ids.iter().copied().zip(counts).collect();
        let (change, children) = self.core.copy.split(&parts, (epoch, pg_num));
        let child = |(id, copy): (&PgId, PgCopy)| {
            let (id, osd) = (SpgId::new(*id, self.core.me.shard), self.core.me.osd);
            let mut core = PgCore::with(id, osd, self.core.cfg.clone(), copy);
            core.view.clone_from(&self.core.view);
            Pg::of(core)
        };
        let children = ids.iter().skip(1).zip(children).map(child).collect();
        self.core.submit(change, After::Nothing, cx);
        children
    }
}

/// Divides the counts of a PG among what it splits into.
fn share(counts: &PgCounts, ids: &[PgId], pg_num: u32, reader: &dyn ObjectReader) -> Vec<PgCounts> {
    if counts.objects <= COUNT_MAX
        && let Ok(exact) =
            ids.iter().map(|id| count(*id, pg_num, reader)).collect::<Result<Vec<_>, _>>()
    {
        return exact
            .into_iter()
            .enumerate()
            .map(|(i, c)| match i {
                0 => PgCounts {
                    reads: counts.reads,
                    read_kb: counts.read_kb,
                    writes: counts.writes,
                    written_kb: counts.written_kb,
                    ..c
                },
                _ => c,
            })
            .collect();
    }
    let n = ids.len() as i64;
    let part = |total: i64, i: usize| if i == 0 { total - total / n * (n - 1) } else { total / n };
    (0..ids.len())
        .map(|i| PgCounts {
            objects: part(counts.objects, i),
            bytes: part(counts.bytes, i),
            omap_objects: part(counts.omap_objects, i),
            omap_keys: part(counts.omap_keys, i),
            omap_bytes: part(counts.omap_bytes, i),
            reads: part(counts.reads, i),
            read_kb: part(counts.read_kb, i),
            writes: part(counts.writes, i),
            written_kb: part(counts.written_kb, i),
            estimated: true,
            clones: part(counts.clones, i),
            whiteouts: part(counts.whiteouts, i),
        })
        .collect()
}

fn count(id: PgId, pg_num: u32, reader: &dyn ObjectReader) -> Result<PgCounts, ReadError> {
    let mut c = PgCounts::default();
    for o in reader.list(&pg_start(id), &pg_end(id, pg_num), usize::MAX)? {
        let Some(attr) = reader.attr(&o, INFO_ATTR)? else { continue };
        let Ok(info) = from_slice::<ObjectInfo>(&attr) else { continue };
        if info.version != EVersion::default() {
            c.objects += 1;
            c.whiteouts += i64::from(info.has(ObjectInfo::WHITEOUT));
            if o.snap != SNAP_HEAD {
                c.clones += 1;
            } else {
                // What clones have for themselves alone the head's history says.
                let history = if info.has(ObjectInfo::SNAPSET) {
                    reader.attr(&o, SNAPSET_ATTR)?
                } else {
                    None
                };
                let own = history
                    .and_then(|v| from_slice::<SnapSet>(&v).ok())
                    .map_or(0, |set| set.own_bytes());
                c.bytes += info.size as i64 + own;
            }
            c.omap_objects += i64::from(info.has(ObjectInfo::OMAP));
        }
    }
    Ok(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_take_exactly_the_hashes_that_leave_the_parent() {
        for (from, to) in [(1, 2), (3, 8), (8, 16), (5, 6), (12, 100)] {
            for h in 0..3000u32 {
                let h = h.wrapping_mul(2_654_435_761);
                let old = PgId::new(1, hash::stable_mod(h, from, hash::mask_for(from)));
                let new = PgId::new(1, hash::stable_mod(h, to, hash::mask_for(to)));
                assert!(
                    new == old || children_of(old, from, to).contains(&new),
                    "{from} {to} {h:x}"
                );
            }
        }
    }
}
