//! Exceptions to placement that no longer make sense: what Ceph's monitor drops from every new map
//! (`OSDMap::clean_temps`, `OSDMap::check_pg_upmaps`).
//!
//! Dropping one never changes what is served: an entry goes when its PG is gone, when nobody in it
//! can serve, or when the map without it says the same. An upmap goes, too, when it would put data
//! where its rule forbids it; that moves data, and is meant to.

use super::OsdMap;
use spirula_crush::step_op;
use spirula_types::hash::range_bits;
use spirula_types::{OSD_NONE, OsdId, PgId};
use std::collections::{BTreeMap, BTreeSet};

impl OsdMap {
    /// Drops temporary acting sets and primaries that mean nothing any more.
    pub fn clean_temps(&mut self) {
        let temps: Vec<PgId> =
            self.pg_temp.keys().copied().filter(|pg| self.temp_is_stale(*pg)).collect();
        for pg in temps {
            self.pg_temp.remove(&pg);
        }
        let primaries: Vec<PgId> = self
            .primary_temp
            .keys()
            .copied()
            .filter(|pg| self.primary_temp_is_stale(*pg))
            .collect();
        for pg in primaries {
            self.primary_temp.remove(&pg);
        }
    }

    fn is_pg(&self, pg: PgId) -> bool {
        self.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num)
    }

    fn temp_is_stale(&self, pg: PgId) -> bool {
        let Some(temp) = self.pg_temp.get(&pg).filter(|_| self.is_pg(pg)) else { return true };
        if !temp.iter().any(|o| self.is_up(*o)) {
            return true;
        }
        let at = self.pg_to_up_acting(pg);
        // All of it as it would be without; one that is partly down may matter when the rest
        // returns.
        *temp == at.up
            && at.acting == at.up
            && (at.acting_primary == at.up_primary || self.primary_temp.contains_key(&pg))
    }

    fn primary_temp_is_stale(&self, pg: PgId) -> bool {
        let Some(primary) = self.primary_temp.get(&pg).copied().filter(|_| self.is_pg(pg)) else {
            return true;
        };
        if !self.is_up(primary) {
            return true;
        }
        let at = self.pg_to_up_acting(pg);
        let without = match self.pg_temp.contains_key(&pg) {
            true => at.acting.iter().find(|o| **o != OSD_NONE).copied().unwrap_or(-1),
            false => at.up_primary,
        };
        primary == without
    }

    /// Drops upmaps of PGs that are gone or about to be merged, that break their rule, name OSDs
    /// that are out, or change nothing.
    pub fn clean_upmaps(&mut self) {
        if self.pg_upmap.is_empty() && self.pg_upmap_items.is_empty() {
            return;
        }
        let all: BTreeSet<PgId> =
            self.pg_upmap.keys().chain(self.pg_upmap_items.keys()).copied().collect();
        let mut weights: BTreeMap<u8, BTreeMap<OsdId, f64>> = BTreeMap::new();
        let mut below: BTreeMap<i32, BTreeSet<OsdId>> = BTreeMap::new();
        let taken = self.pools.values().filter_map(|p| self.crush.rule(u32::from(p.crush_rule)));
        for step in taken.flat_map(|r| &r.steps).filter(|s| s.op == step_op::TAKE && s.arg1 < 0) {
            below
                .entry(step.arg1)
                .or_insert_with(|| self.crush.osds_under(step.arg1).into_iter().collect());
        }
        for pg in all {
            let Some(rule) = self.pool(pg.pool).map(|p| p.crush_rule) else {
                self.drop_upmap(pg);
                continue;
            };
            let weights =
                weights.entry(rule).or_insert_with(|| self.crush.rule_weights(u32::from(rule)));
            if self.upmap_is_invalid(pg, weights, &below) {
                self.drop_upmap(pg);
            } else {
                self.simplify_upmap(pg);
            }
        }
    }

    fn drop_upmap(&mut self, pg: PgId) {
        self.pg_upmap.remove(&pg);
        self.pg_upmap_items.remove(&pg);
    }

    /// `weights`: of its rule's OSDs; `below`: the OSDs below each bucket that a rule takes.
    fn upmap_is_invalid(
        &self,
        pg: PgId,
        weights: &BTreeMap<OsdId, f64>,
        below: &BTreeMap<i32, BTreeSet<OsdId>>,
    ) -> bool {
        let Some(pool) = self.pool(pg.pool) else { return true };
        // A PG that is to be merged must lie where its target lies, and the other way round.
        let least = pool.pg_num_target.min(pool.pg_num_pending).min(pool.pg_num).max(1);
        if pg.seed >= least || range_bits(pg.seed, least) != range_bits(pg.seed, pool.pg_num) {
            return true;
        }
        let set = self.pg_to_upmapped(pg);
        let real = || set.iter().copied().filter(|o| *o != OSD_NONE);
        let usable = |o: OsdId| weights.get(&o).is_some_and(|w| *w > 0.0) && self.weight(o) > 0;
        !real().all(usable)
            || !self.fits_rule(pool, &real().collect::<Vec<_>>())
            || !self.lies_where_taken(pool, &set, below)
    }

    /// Is each OSD, by its position, below what the rule takes for that position? What is taken is
    /// a bucket, or its shadow with the OSDs of one class. Each `emit` counts on by as many as the
    /// steps since its `take` choose, as `CrushWrapper::verify_upmap` of Ceph 16.2 does; a hole
    /// lies everywhere.
    fn lies_where_taken(
        &self,
        pool: &super::PgPool,
        set: &[OsdId],
        below: &BTreeMap<i32, BTreeSet<OsdId>>,
    ) -> bool {
        let Some(rule) = self.crush.rule(u32::from(pool.crush_rule)) else { return false };
        let (mut taken, mut rest) = (0, set);
        // By type; of two steps for one type the first counts.
        let mut chosen: BTreeMap<i32, i64> = BTreeMap::new();
        for s in &rule.steps {
            match s.op {
                step_op::TAKE => taken = s.arg1,
                step_op::CHOOSELEAF_FIRSTN
                | step_op::CHOOSELEAF_INDEP
                | step_op::CHOOSE_FIRSTN
                | step_op::CHOOSE_INDEP => {
                    let wanted =
                        i64::from(s.arg1) + if s.arg1 > 0 { 0 } else { i64::from(pool.size) };
                    chosen.entry(s.arg2).or_insert(wanted);
                }
                step_op::EMIT => {
                    if taken < 0 {
                        let many = chosen.values().fold(1i64, |n, c| n.saturating_mul(*c)).max(0);
                        let (here, after) = rest
                            .split_at(rest.len().min(usize::try_from(many).unwrap_or(usize::MAX)));
                        rest = after;
                        let within =
                            |o: OsdId| below.get(&taken).is_some_and(|osds| osds.contains(&o));
                        if !here.iter().all(|o| *o == OSD_NONE || within(*o)) {
                            return false;
                        }
                    }
                    taken = 0;
                    chosen.clear();
                }
                _ => {}
            }
        }
        true
    }

    /// Are the OSDs in as many failure domains as the rule asks for?
    fn fits_rule(&self, pool: &super::PgPool, osds: &[OsdId]) -> bool {
        let Some(rule) = self.crush.rule(u32::from(pool.crush_rule)) else { return false };
        rule.steps.iter().all(|s| {
            let leaf = matches!(s.op, step_op::CHOOSELEAF_FIRSTN | step_op::CHOOSELEAF_INDEP);
            let group = matches!(s.op, step_op::CHOOSE_FIRSTN | step_op::CHOOSE_INDEP);
            if !(leaf || group) || s.arg2 == 0 {
                return true;
            }
            let domains: Vec<i32> =
                osds.iter().filter_map(|o| self.crush.ancestor_of_type(*o, s.arg2)).collect();
            let distinct = domains.iter().collect::<BTreeSet<_>>().len();
            if leaf {
                return distinct == domains.len();
            }
            let wanted =
                if s.arg1 > 0 { s.arg1 } else { s.arg1.saturating_add(i32::from(pool.size)) };
            distinct as i64 <= i64::from(wanted)
        })
    }

    fn simplify_upmap(&mut self, pg: PgId) {
        let (raw, _) = self.pg_to_raw(pg);
        if let Some(set) = self.pg_upmap.get(&pg) {
            if *set == raw {
                self.pg_upmap.remove(&pg);
            }
            return;
        }
        let Some(items) = self.pg_upmap_items.get(&pg) else { return };
        let kept: Vec<(OsdId, OsdId)> = items
            .iter()
            .copied()
            .filter(|(from, to)| raw.contains(from) && self.weight(*to) > 0)
            .collect();
        if kept.is_empty() {
            self.pg_upmap_items.remove(&pg);
        } else if kept.len() != items.len() {
            self.pg_upmap_items.insert(pg, kept);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::osdmap::{Crush, Incremental, OsdAddrs, PgPool, WEIGHT_IN, state};
    use spirula_crush::CrushMap;
    use spirula_encoding::UTime;
    use spirula_types::Uuid;

    /// Six OSDs on three hosts, a pool of two copies on different hosts.
    fn map() -> OsdMap {
        let mut c = CrushMap::new_default("host").unwrap();
        for o in 0..6 {
            let at = [("root", "default".to_owned()), ("host", format!("h{}", o / 2))];
            let at = at.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            c.insert(o, WEIGHT_IN, &format!("osd.{o}"), &at).unwrap();
        }
        let mut map = OsdMap::fresh(Uuid::default(), 0, UTime::ZERO, Crush::new(c));
        let mut inc = Incremental::next(&map, UTime::ZERO);
        for o in 0..6 {
            inc.create_osd(&map, o, Uuid([1; 16]));
            inc.set_weight(&map, o, WEIGHT_IN);
            inc.mark_up(o, &OsdAddrs::default());
        }
        inc.add_pool(&map, "p", PgPool::replicated(2, 8, 0, UTime::ZERO));
        map.apply(&inc).unwrap();
        map
    }

    /// An OSD on a host that the PG does not use, and one on a host that it uses.
    fn others(map: &OsdMap, pg: PgId) -> (OsdId, OsdId) {
        let up = map.pg_to_up_acting(pg).up;
        let far = (0..6).find(|o| up.iter().all(|u| u / 2 != o / 2)).unwrap();
        let near = (0..6).find(|o| !up.contains(o) && o / 2 == up[1] / 2).unwrap();
        (far, near)
    }

    #[test]
    fn temps_go_when_their_pg_is_gone_when_all_are_down_and_when_they_say_what_crush_says() {
        let mut m = map();
        let pg = |s| PgId::new(1, s);
        let up = m.pg_to_up_acting(pg(0)).up;
        m.pg_temp.insert(pg(0), up.clone());
        m.pg_temp.insert(pg(1), vec![others(&m, pg(1)).0]);
        m.pg_temp.insert(pg(2), vec![9, 10]);
        m.pg_temp.insert(pg(8), vec![0]);
        m.pg_temp.insert(PgId::new(5, 0), vec![0]);
        m.primary_temp.insert(pg(3), m.pg_to_up_acting(pg(3)).up_primary);
        m.primary_temp.insert(pg(4), m.pg_to_up_acting(pg(4)).up[1]);
        m.primary_temp.insert(pg(5), 9);
        let before: Vec<_> = (0..8).map(|s| m.pg_to_up_acting(pg(s))).collect();
        m.clean_temps();
        assert_eq!(m.pg_temp.keys().copied().collect::<Vec<_>>(), [pg(1)]);
        assert_eq!(m.primary_temp.keys().copied().collect::<Vec<_>>(), [pg(4)]);
        for (s, was) in before.iter().enumerate().filter(|(s, _)| *s != 2 && *s != 5) {
            assert_eq!(m.pg_to_up_acting(pg(s as u32)), *was, "{s}");
        }
    }

    #[test]
    fn a_temp_in_another_order_stays() {
        let mut m = map();
        let pg = PgId::new(1, 0);
        let mut set = m.pg_to_up_acting(pg).up;
        set.reverse();
        m.pg_temp.insert(pg, set);
        m.clean_temps();
        assert_eq!(m.pg_temp.len(), 1);
    }

    #[test]
    fn upmaps_go_when_invalid_or_without_effect_and_stay_otherwise() {
        let mut m = map();
        let pg = |s| PgId::new(1, s);
        let up = |m: &OsdMap, s| m.pg_to_up_acting(pg(s)).up;
        let good = (up(&m, 0)[0], others(&m, pg(0)).0);
        m.pg_upmap_items.insert(pg(0), vec![good]);
        // Both copies on one host.
        let (_, near) = others(&m, pg(1));
        m.pg_upmap_items.insert(pg(1), vec![(up(&m, 1)[0], near)]);
        // From an OSD that is not there; half of it makes sense.
        m.pg_upmap_items.insert(pg(2), vec![(others(&m, pg(2)).0, others(&m, pg(2)).1)]);
        let half = (up(&m, 3)[0], others(&m, pg(3)).0);
        m.pg_upmap_items.insert(pg(3), vec![half, (99, 98)]);
        m.pg_upmap.insert(pg(4), up(&m, 4));
        m.pg_upmap.insert(pg(9), vec![0, 2]);
        m.clean_upmaps();
        assert_eq!(m.pg_upmap_items, BTreeMap::from([(pg(0), vec![good]), (pg(3), vec![half])]));
        assert!(m.pg_upmap.is_empty());
        // Out, and gone.
        m.osd_weight[good.1 as usize] = 0;
        m.clean_upmaps();
        assert!(!m.pg_upmap_items.contains_key(&pg(0)));
    }

    /// The first copy is from one root (or class), the others from another: an exception must not
    /// lead out of them.
    #[test]
    fn upmaps_out_of_what_their_rule_takes_go_at_once_and_later() {
        let plain = map();
        let step = |op, arg1, arg2| spirula_crush::Step { op, arg1, arg2 };
        let mut c = CrushMap::clone(&plain.crush);
        let place = |root: &str, host: &str| {
            [("root", root), ("host", host)]
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect()
        };
        for o in 6..8 {
            c.insert(o, WEIGHT_IN, &format!("osd.{o}"), &place("near", &format!("n{o}"))).unwrap();
        }
        let (near, far) = (c.item_id("near").unwrap(), c.item_id("default").unwrap());
        let rule = c.rules[0].as_mut().unwrap();
        rule.steps = vec![
            step(step_op::TAKE, near, 0),
            step(step_op::CHOOSELEAF_FIRSTN, 1, 1),
            step(step_op::EMIT, 0, 0),
            step(step_op::TAKE, far, 0),
            step(step_op::CHOOSELEAF_FIRSTN, -1, 1),
            step(step_op::EMIT, 0, 0),
        ];
        let mut m = OsdMap { crush: Crush::new(c), ..plain };
        let mut inc = Incremental::next(&m, UTime::ZERO);
        for o in 6..8 {
            inc.create_osd(&m, o, Uuid([1; 16]));
            inc.set_weight(&m, o, WEIGHT_IN);
            inc.mark_up(o, &OsdAddrs::default());
        }
        m.apply(&inc).unwrap();
        let pg = |s| PgId::new(1, s);
        let up = |m: &OsdMap, s| m.pg_to_up_acting(pg(s)).up;
        let elsewhere = |m: &OsdMap, s| (0..6).find(|o| o / 2 != up(m, s)[1] / 2).unwrap();
        assert!((0..8).all(|s| up(&m, s)[0] >= 6 && up(&m, s)[1] < 6));
        let first = |m: &OsdMap, s| (up(m, s)[0], 13 - up(m, s)[0]);
        let second = |m: &OsdMap, s| (up(m, s)[1], elsewhere(m, s));
        let good = BTreeMap::from([(pg(0), vec![first(&m, 0)]), (pg(1), vec![second(&m, 1)])]);
        m.pg_upmap_items = good.clone();
        m.pg_upmap_items.insert(pg(2), vec![(up(&m, 2)[0], elsewhere(&m, 2))]);
        m.pg_upmap_items.insert(pg(3), vec![(up(&m, 3)[1], first(&m, 3).1)]);
        m.pg_upmap.insert(pg(4), vec![up(&m, 4)[1], up(&m, 4)[0]]);
        m.pg_upmap.insert(pg(5), vec![first(&m, 5).1, up(&m, 5)[1]]);
        m.clean_upmaps();
        assert_eq!(m.pg_upmap_items, good);
        assert_eq!(m.pg_upmap.keys().copied().collect::<Vec<_>>(), [pg(5)]);
        // The host that the second copy was led to moves to the other root.
        let to = good[&pg(1)][0].1;
        let mut c = CrushMap::clone(&m.crush);
        let near = [("root".to_owned(), "near".to_owned())].into_iter().collect();
        c.move_item(&format!("h{}", to / 2), &near).unwrap();
        m.crush = Crush::new(c);
        m.clean_upmaps();
        assert!(!m.pg_upmap_items.contains_key(&pg(1)));
    }

    #[test]
    fn upmaps_of_pgs_that_are_to_be_merged_go() {
        let mut m = map();
        let pg = |s| PgId::new(1, s);
        for s in [0, 3, 7] {
            let item = (m.pg_to_up_acting(pg(s)).up[0], others(&m, pg(s)).0);
            m.pg_upmap_items.insert(pg(s), vec![item]);
        }
        m.pools.get_mut(&1).unwrap().pg_num_target = 7;
        m.clean_upmaps();
        assert_eq!(m.pg_upmap_items.keys().copied().collect::<Vec<_>>(), [pg(0)]);
        m.osd_state[0] &= !state::UP;
        m.clean_upmaps();
    }
}
