//! From an object to its OSDs (`docs/protocol/osd.md` §1).
//!
//! CRUSH gives the raw set; upmaps change it; OSDs that are down fall out of it (up set);
//! primary affinity picks who leads; pg_temp and primary_temp override (acting set).

use super::{OsdMap, PgPool, WEIGHT_IN, pool::flag};
use spirula_crush::hash::hash32_2;
use spirula_crush::{CrushMap, Scratch};
use spirula_types::{HObject, OSD_NONE, ObjectLocator, OsdId, PgId, PoolId, hash};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a PG should be (up) and where it is served (acting). Holes in erasure-coded sets
/// are [`OSD_NONE`]; a primary of −1 is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpActing {
    /// Up set.
    pub up: Vec<OsdId>,
    /// Its primary.
    pub up_primary: OsdId,
    /// Acting set.
    pub acting: Vec<OsdId>,
    /// Its primary.
    pub acting_primary: OsdId,
}

impl Default for UpActing {
    /// Nowhere.
    fn default() -> Self {
        Self { up: Vec::new(), up_primary: -1, acting: Vec::new(), acting_primary: -1 }
    }
}

impl UpActing {
    /// Is this OSD in the acting set?
    pub fn is_acting(&self, osd: OsdId) -> bool {
        self.acting.contains(&osd)
    }
    /// Is this OSD in the up set?
    pub fn is_up(&self, osd: OsdId) -> bool {
        self.up.contains(&osd)
    }
    /// Number of real OSDs in the acting set.
    pub fn acting_size(&self) -> usize {
        self.acting.iter().filter(|o| **o != OSD_NONE).count()
    }
    /// Position in the acting set (the shard, in erasure-coded pools).
    pub fn acting_index(&self, osd: OsdId) -> Option<usize> {
        self.acting.iter().position(|o| *o == osd)
    }
}

/// Memory that mapping many PGs reuses.
#[derive(Debug, Default)]
pub struct MapScratch {
    crush: Scratch,
    raw: Vec<i32>,
}

/// The mapping of every PG of one map: what is looked up per operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PgTable {
    pools: BTreeMap<PoolId, Vec<UpActing>>,
    /// What CRUSH gave, for the next map ([`OsdMap::map_all_after`]).
    raw: BTreeMap<PoolId, Arc<RawSets>>,
}

/// What CRUSH alone gives for the PGs of a pool, one set behind another.
#[derive(Debug, Default, PartialEq, Eq)]
struct RawSets {
    osds: Vec<OsdId>,
    /// Where each PG's set ends.
    ends: Vec<u32>,
}

impl RawSets {
    fn push(&mut self, set: &[OsdId]) {
        self.osds.extend_from_slice(set);
        self.ends.push(self.osds.len() as u32);
    }

    fn get(&self, seed: u32) -> &[OsdId] {
        let end = |i: usize| self.ends.get(i).map_or(0, |e| *e as usize);
        let from = (seed as usize).checked_sub(1).map_or(0, end);
        self.osds.get(from..end(seed as usize)).unwrap_or_default()
    }
}

impl PgTable {
    /// The mapping of a PG, if it exists.
    pub fn get(&self, pg: PgId) -> Option<&UpActing> {
        self.pools.get(&pg.pool)?.get(pg.seed as usize)
    }

    /// All PGs with their mappings, by pool and seed.
    pub fn iter(&self) -> impl Iterator<Item = (PgId, &UpActing)> {
        self.pools.iter().flat_map(|(pool, v)| {
            v.iter().enumerate().map(|(s, m)| (PgId::new(*pool, s as u32), m))
        })
    }

    /// Number of PGs.
    pub fn len(&self) -> usize {
        self.pools.values().map(Vec::len).sum()
    }

    /// True if there are no PGs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First real entry, −1 if there is none.
fn first(osds: &[OsdId]) -> OsdId {
    osds.iter().find(|o| **o != OSD_NONE).copied().unwrap_or(-1)
}

/// The rule a pool uses: the one whose (historic) ruleset, type and size limits fit, as
/// Pacific's clients look it up.
fn find_rule(crush: &CrushMap, pool: &PgPool) -> Option<u32> {
    let fits = |id: u32| {
        crush.rule(id).is_some_and(|r| {
            r.ruleset == pool.crush_rule
                && r.kind == pool.kind
                && (r.min_size..=r.max_size).contains(&pool.size)
        })
    };
    // Nearly always the rule's id is its ruleset.
    let guess = u32::from(pool.crush_rule);
    let lowest = || (0..crush.rules.len() as u32).find(|id| fits(*id));
    if fits(guess) && !(0..guess).any(fits) { Some(guess) } else { lowest() }
}

impl PgPool {
    /// CRUSH's input for a PG.
    pub fn placement_seed(&self, pg: PgId) -> u32 {
        let folded = hash::stable_mod(pg.seed, self.pgp_num, hash::mask_for(self.pgp_num));
        if self.has_flag(flag::HASHPSPOOL) {
            hash32_2(folded, pg.pool as u32)
        } else {
            folded.wrapping_add(pg.pool as u32)
        }
    }
}

impl OsdMap {
    /// The PG of an object: by the locator's explicit hash, else by namespace and key or
    /// name. `None` if there is no such pool.
    pub fn object_to_pg(&self, at: &ObjectLocator, name: &[u8]) -> Option<PgId> {
        let h = match u32::try_from(at.hash) {
            Ok(explicit) => explicit,
            Err(_) => hash::object_hash(&at.namespace, &at.key, name),
        };
        Some(PgId::new(at.pool, self.pool(at.pool)?.pg_of_hash(h)))
    }

    /// The PG of an object whose hash is known.
    pub fn hobject_to_pg(&self, o: &HObject) -> Option<PgId> {
        Some(PgId::new(o.pool, self.pool(o.pool)?.pg_of_hash(o.hash)))
    }

    /// What CRUSH gives for a PG.
    fn crush_into(&self, s: &mut MapScratch, pool: &PgPool, pg: PgId) {
        s.raw.clear();
        if let Some(rule) = find_rule(&self.crush, pool) {
            let args = self.crush.choose_args_for(pg.pool);
            let (seed, size) = (pool.placement_seed(pg), usize::from(pool.size));
            self.crush.do_rule_into(
                &mut s.crush,
                rule,
                seed,
                size,
                &self.osd_weight,
                args,
                &mut s.raw,
            );
        }
    }

    /// Does CRUSH give for all PGs of a pool what it gave with another map?
    fn crush_is_as_in(&self, before: &Self, id: PoolId) -> bool {
        let (Some(new), Some(old)) = (self.pool(id), before.pool(id)) else { return false };
        let inputs = |p: &PgPool| {
            (p.kind, p.size, p.crush_rule, p.pg_num, p.pgp_num, p.has_flag(flag::HASHPSPOOL))
        };
        inputs(new) == inputs(old)
            && self.osd_weight == before.osd_weight
            && self.crush == before.crush
    }

    /// Takes OSDs that do not exist out of a raw set.
    fn only_existing(&self, pool: &PgPool, raw: &mut Vec<OsdId>) {
        if pool.can_shift_osds() {
            raw.retain(|o| self.exists(*o));
        } else {
            raw.iter_mut().filter(|o| !self.exists(**o)).for_each(|o| *o = OSD_NONE);
        }
    }

    /// Would an upmap target be refused: a real OSD of weight 0?
    fn is_weightless(&self, osd: OsdId) -> bool {
        usize::try_from(osd).ok().and_then(|i| self.osd_weight.get(i)) == Some(&0)
    }

    fn apply_upmap(&self, pg: PgId, raw: &mut Vec<OsdId>) {
        if let Some(set) = self.pg_upmap.get(&pg) {
            if set.iter().any(|o| self.is_weightless(*o)) {
                return;
            }
            raw.clear();
            raw.extend_from_slice(set);
        }
        for (from, to) in self.pg_upmap_items.get(&pg).into_iter().flatten() {
            if raw.contains(to) || self.is_weightless(*to) {
                continue;
            }
            if let Some(slot) = raw.iter_mut().find(|o| *o == from) {
                *slot = *to;
            }
        }
    }

    /// Drops (or leaves holes for) OSDs that are down.
    fn only_up(&self, pool: &PgPool, from: &[OsdId], to: &mut Vec<OsdId>) {
        to.clear();
        if pool.can_shift_osds() {
            to.extend(from.iter().filter(|o| self.is_up(**o)));
        } else {
            to.extend(from.iter().map(|o| if self.is_up(*o) { *o } else { OSD_NONE }));
        }
    }

    /// Picks the primary by affinity. Returns it; moves it to the front where order is free.
    fn apply_affinity(&self, seed: u32, pool: &PgPool, up: &mut [OsdId], primary: OsdId) -> OsdId {
        if self.primary_affinity.is_empty()
            || !up.iter().any(|o| *o != OSD_NONE && self.affinity(*o) != WEIGHT_IN)
        {
            return primary;
        }
        let mut chosen = None;
        for (i, o) in up.iter().enumerate().filter(|(_, o)| **o != OSD_NONE) {
            let a = self.affinity(*o);
            let refused = a < WEIGHT_IN && hash32_2(seed, *o as u32) >> 16 >= a;
            if !refused {
                chosen = Some(i);
                break;
            }
            // If all refuse, the first leads after all.
            chosen = chosen.or(Some(i));
        }
        let Some(at) = chosen else { return primary };
        let primary = up.get(at).copied().unwrap_or(primary);
        if pool.can_shift_osds()
            && let Some(head) = up.get_mut(..=at)
        {
            head.rotate_right(1);
        }
        primary
    }

    /// What CRUSH alone gives for a PG, and its first OSD (−1 for none). Empty if there is
    /// no such pool.
    pub fn pg_to_raw(&self, pg: PgId) -> (Vec<OsdId>, OsdId) {
        let Some(pool) = self.pool(pg.pool) else { return (Vec::new(), -1) };
        let mut s = MapScratch::default();
        self.crush_into(&mut s, pool, pg);
        self.only_existing(pool, &mut s.raw);
        let p = first(&s.raw);
        (s.raw, p)
    }

    /// What CRUSH and the upmaps give for a PG, whoever is up.
    pub fn pg_to_upmapped(&self, pg: PgId) -> Vec<OsdId> {
        let (mut raw, _) = self.pg_to_raw(pg);
        self.apply_upmap(pg, &mut raw);
        raw
    }

    /// The up and acting sets of a PG; nowhere if there is no such PG.
    pub fn pg_to_up_acting(&self, pg: PgId) -> UpActing {
        let mut out = UpActing::default();
        self.pg_to_up_acting_into(&mut MapScratch::default(), pg, &mut out);
        out
    }

    /// As [`Self::pg_to_up_acting`], in reused memory.
    pub fn pg_to_up_acting_into(&self, s: &mut MapScratch, pg: PgId, out: &mut UpActing) {
        out.up.clear();
        out.acting.clear();
        out.up_primary = -1;
        out.acting_primary = -1;
        let Some(pool) = self.pool(pg.pool) else { return };
        if pg.seed >= pool.pg_num {
            return;
        }
        self.crush_into(s, pool, pg);
        self.raw_to_up_acting(pool, pg, &mut s.raw, out);
    }

    /// What follows from what CRUSH gave. `out` is empty.
    fn raw_to_up_acting(&self, pool: &PgPool, pg: PgId, raw: &mut Vec<OsdId>, out: &mut UpActing) {
        self.only_existing(pool, raw);
        self.apply_upmap(pg, raw);
        self.only_up(pool, raw, &mut out.up);
        let head = first(&out.up);
        out.up_primary = self.apply_affinity(pool.placement_seed(pg), pool, &mut out.up, head);
        if let Some(temp) = self.pg_temp.get(&pg) {
            self.only_up(pool, temp, &mut out.acting);
        }
        let temp_primary = self.primary_temp.get(&pg).copied();
        out.acting_primary = if out.acting.is_empty() {
            out.acting.extend_from_slice(&out.up);
            temp_primary.filter(|p| *p != -1).unwrap_or(out.up_primary)
        } else {
            temp_primary.unwrap_or_else(|| first(&out.acting))
        };
    }

    /// The mapping of every PG.
    pub fn map_all(&self) -> PgTable {
        self.map_all_with(|_| None)
    }

    /// As [`Self::map_all`], given the mapping of another map: CRUSH is asked only for pools for
    /// which its answer can be another one. Most maps tell of OSDs that came or went and of
    /// temporary acting sets, and an OSD takes each epoch.
    pub fn map_all_after(&self, before: &Self, table: &PgTable) -> PgTable {
        self.map_all_with(|id| {
            table.raw.get(&id).filter(|_| self.crush_is_as_in(before, id)).cloned()
        })
    }

    fn map_all_with(&self, known: impl Fn(PoolId) -> Option<Arc<RawSets>>) -> PgTable {
        let mut s = MapScratch::default();
        let mut table = PgTable::default();
        for (id, pool) in &self.pools {
            let raw = known(*id).unwrap_or_else(|| {
                let mut sets = RawSets::default();
                for seed in 0..pool.pg_num {
                    self.crush_into(&mut s, pool, PgId::new(*id, seed));
                    sets.push(&s.raw);
                }
                Arc::new(sets)
            });
            let map_one = |seed| {
                let mut m = UpActing::default();
                s.raw.clear();
                s.raw.extend_from_slice(raw.get(seed));
                self.raw_to_up_acting(pool, PgId::new(*id, seed), &mut s.raw, &mut m);
                m
            };
            table.pools.insert(*id, (0..pool.pg_num).map(map_one).collect());
            table.raw.insert(*id, raw);
        }
        table
    }

    /// Ids of all PGs, by pool and seed.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> + '_ {
        self.pools.iter().flat_map(|(id, p)| (0..p.pg_num).map(|s| PgId::new(*id, s)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::osdmap::{Crush, Incremental, OsdAddrs, state};
    use spirula_encoding::UTime;
    use spirula_types::Uuid;
    use std::collections::BTreeMap;

    /// Four OSDs up and in, a replicated pool 1 of size 3 and an erasure pool 2 of 2+1.
    fn map() -> OsdMap {
        let mut c = CrushMap::new_default("osd").unwrap();
        for o in 0..4 {
            let at = BTreeMap::from([("root".to_string(), "default".to_string())]);
            c.insert(o, WEIGHT_IN, &format!("osd.{o}"), &at).unwrap();
        }
        let ec = c.create_erasure("ec", "default", "osd", None, 3).unwrap();
        let mut map = OsdMap::fresh(Uuid::default(), 0, UTime::ZERO, Crush::new(c));
        let mut inc = Incremental::next(&map, UTime { sec: 9, nsec: 0 });
        for o in 0..4 {
            inc.create_osd(&map, o, Uuid([1; 16]));
            inc.set_weight(&map, o, WEIGHT_IN);
            inc.mark_up(o, &OsdAddrs::default());
        }
        assert_eq!(inc.add_pool(&map, "rep", PgPool::replicated(3, 8, 0, UTime::ZERO)), 1);
        let pool = PgPool::erasure(2, 1, 4096, "p", 8, ec as u8, UTime::ZERO);
        assert_eq!(inc.add_pool(&map, "ec", pool), 2);
        map.apply(&inc).unwrap();
        assert_eq!(map.osd_counts(), (4, 4, 4));
        map
    }

    #[test]
    fn every_pg_has_its_full_set_and_a_primary_while_all_osds_are_up() {
        let map = map();
        let table = map.map_all();
        assert_eq!(table.len(), 16);
        for (pg, m) in table.iter() {
            assert_eq!(
                (m.up.len(), m.acting.clone(), m.up_primary),
                (3, m.up.clone(), m.up[0]),
                "{pg}"
            );
        }
    }

    #[test]
    fn a_down_osd_leaves_a_hole_in_erasure_sets_and_none_in_replicated_ones() {
        let mut map = map();
        map.osd_state[2] &= !state::UP;
        for (pg, m) in map.map_all().iter().filter(|(pg, _)| map.pg_to_raw(*pg).0.contains(&2)) {
            assert!(!m.is_up(2));
            assert_eq!(m.up.contains(&OSD_NONE), pg.pool == 2, "{pg}");
            assert_eq!(m.acting_size(), 2);
            assert_eq!(m.up_primary, first(&m.up));
        }
    }

    #[test]
    fn temps_override_until_their_osds_are_gone() {
        let mut map = map();
        let pg = PgId::new(1, 3);
        map.pg_temp.insert(pg, vec![3, 1]);
        map.primary_temp.insert(pg, 1);
        let m = map.pg_to_up_acting(pg);
        assert_eq!((m.acting, m.acting_primary), (vec![3, 1], 1));
        map.primary_temp.clear();
        map.osd_state[3] &= !state::UP;
        map.osd_state[1] &= !state::UP;
        let m = map.pg_to_up_acting(pg);
        assert_eq!(m.acting, m.up);
    }

    #[test]
    fn deleting_a_pool_takes_its_exceptions_along() {
        let mut map = map();
        map.pg_temp.insert(PgId::new(1, 0), vec![1]);
        map.pg_upmap_items.insert(PgId::new(1, 1), vec![(0, 1)]);
        map.pg_upmap.insert(PgId::new(2, 1), vec![0, 1, 2]);
        let mut inc = Incremental::next(&map, UTime::ZERO);
        inc.remove_pool(&map, 1);
        map.apply(&inc).unwrap();
        assert!(map.pool(1).is_none() && map.pg_temp.is_empty() && map.pg_upmap_items.is_empty());
        assert_eq!(map.pg_upmap.len(), 1);
        assert_eq!(map.pg_to_up_acting(PgId::new(1, 0)), UpActing::default());
    }
}
