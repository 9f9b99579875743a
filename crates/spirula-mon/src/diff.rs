//! The incremental between two OSD maps: what a batch of changes adds up to.
//!
//! Everything that changes the OSD map edits a working copy; here the edits become the
//! [`Incremental`] that clients and OSDs apply. Fields that applying derives by itself
//! (`up_from`, `down_at`, `last_change`, the removed-snapshot queue) are left to it.

use spirula_encoding::UTime;
use spirula_maps::osdmap::{OsdMap, state};
use spirula_maps::{EncodedOsdMap, Incremental};
use std::collections::BTreeMap;

/// Entries of `new` that are absent or different in `old`.
fn changed<K: Ord + Clone, V: PartialEq + Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> BTreeMap<K, V> {
    new.iter()
        .filter(|(k, v)| old.get(*k) != Some(*v))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Keys of `old` that `new` lacks.
fn gone<'a, K: Ord + Clone, V>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = K> + 'a {
    old.keys().filter(|k| !new.contains_key(*k)).cloned()
}

/// The incremental from `old` to `new` (a copy of `old` with edits), stamped `now`.
/// `None` if nothing differs.
pub fn diff(old: &OsdMap, new: &OsdMap, now: UTime) -> Option<Incremental> {
    let mut inc = Incremental {
        fsid: old.fsid,
        epoch: old.epoch + 1,
        modified: now,
        ..Incremental::default()
    };
    let untouched = inc.clone();
    diff_cluster(&mut inc, old, new);
    diff_pools(&mut inc, old, new);
    diff_osds(&mut inc, old, new, now);
    diff_pgs(&mut inc, old, new);
    (inc != untouched).then_some(inc)
}

/// Applies `inc` to `old`, sets its checksum of the result, and returns the result.
///
/// # Errors
/// Text of why it does not apply; a defect of [`diff`] if it ever does not.
pub fn advance(old: &OsdMap, inc: &mut Incremental) -> Result<EncodedOsdMap, String> {
    let mut map = old.clone();
    map.apply(inc).map_err(|e| e.to_string())?;
    let map = EncodedOsdMap::new(map);
    inc.full_crc = map.crc();
    Ok(map)
}

/// Does this add what only commands, of people and of the balancer, add to a map?
pub fn adds(inc: &Incremental, old: &OsdMap) -> bool {
    inc.crush.len() > old.crush.bytes().len()
        || inc.new_max_osd > old.max_osd()
        || inc.new_pools.keys().any(|id| !old.pools.contains_key(id))
        || !inc.new_pool_names.is_empty()
        || !inc.new_ec_profiles.is_empty()
        || inc.new_pg_upmap.iter().any(|(pg, to)| old.pg_upmap.get(pg).map_or(0, Vec::len) < to.len())
        // What happens to OSDs makes those that there are simpler.
        || inc.new_pg_upmap_items.iter().any(|(pg, to)| old.pg_upmap_items.get(pg).map_or(0, Vec::len) < to.len())
}

fn diff_cluster(inc: &mut Incremental, old: &OsdMap, new: &OsdMap) {
    if old.flags != new.flags {
        inc.new_flags = new.flags as i32;
    }
    if old.crush != new.crush {
        inc.crush = new.crush.bytes().clone();
    }
    if old.max_osd() != new.max_osd() {
        inc.new_max_osd = new.max_osd();
    }
    for (o, n, out) in [
        (old.nearfull_ratio, new.nearfull_ratio, &mut inc.new_nearfull_ratio),
        (old.full_ratio, new.full_ratio, &mut inc.new_full_ratio),
        (old.backfillfull_ratio, new.backfillfull_ratio, &mut inc.new_backfillfull_ratio),
    ] {
        if o != n {
            *out = n;
        }
    }
    if old.require_min_compat_client != new.require_min_compat_client {
        inc.new_require_min_compat_client = new.require_min_compat_client;
    }
    if old.require_osd_release != new.require_osd_release {
        inc.new_require_osd_release = new.require_osd_release;
    }
    inc.new_ec_profiles = changed(&old.ec_profiles, &new.ec_profiles);
    inc.old_ec_profiles = gone(&old.ec_profiles, &new.ec_profiles).collect();
    inc.new_blocklist = changed(&old.blocklist, &new.blocklist);
    inc.old_blocklist = gone(&old.blocklist, &new.blocklist).collect();
    for (o, n, out) in [
        (&old.crush_node_flags, &new.crush_node_flags, &mut inc.new_crush_node_flags),
        (&old.device_class_flags, &new.device_class_flags, &mut inc.new_device_class_flags),
    ] {
        *out = changed(o, n);
        out.extend(gone(o, n).map(|k| (k, 0)));
    }
}

fn diff_pools(inc: &mut Incremental, old: &OsdMap, new: &OsdMap) {
    if old.pool_max != new.pool_max {
        inc.new_pool_max = i64::from(new.pool_max);
    }
    inc.new_pools = changed(&old.pools, &new.pools);
    inc.new_pool_names = changed(&old.pool_names, &new.pool_names);
    inc.old_pools = gone(&old.pools, &new.pools).collect();
    // These two are lists of this epoch only: the working copy starts with them empty.
    inc.new_removed_snaps.clone_from(&new.new_removed_snaps);
    inc.new_purged_snaps.clone_from(&new.new_purged_snaps);
}

fn diff_osds(inc: &mut Incremental, old: &OsdMap, new: &OsdMap, now: UTime) {
    let (mut up_change, mut in_change) = (false, false);
    for osd in 0..new.max_osd() {
        let weight = new.weight(osd);
        let mut mid = old.state(osd);
        if old.weight(osd) != weight {
            inc.new_weight.insert(osd, weight);
            in_change |= (old.weight(osd) == 0) != (weight == 0);
            if weight != 0 {
                // What applying a weight does by itself.
                mid = (mid | state::EXISTS) & !(state::AUTOOUT | state::NEW);
            }
        }
        let addrs = new.addrs(osd).cloned().unwrap_or_default();
        let boots = new.is_up(osd) && (!old.is_up(osd) || old.addrs(osd) != Some(&addrs));
        let by_boot = if boots { state::UP | state::EXISTS | state::STOP } else { 0 };
        let flip = (mid ^ new.state(osd)) & !by_boot;
        if flip != 0 {
            inc.new_state.insert(osd, flip);
        }
        up_change |= boots || old.is_up(osd) != new.is_up(osd);
        let removed = old.exists(osd) && !new.exists(osd);
        if boots {
            inc.new_up_client.insert(osd, addrs.client);
            inc.new_up_cluster.insert(osd, addrs.cluster);
            inc.new_hb_back_up.insert(osd, addrs.hb_back);
            inc.new_hb_front_up.insert(osd, addrs.hb_front);
        }
        if removed {
            // Applying resets everything else about it.
            continue;
        }
        if old.affinity(osd) != new.affinity(osd) {
            inc.new_primary_affinity.insert(osd, new.affinity(osd));
        }
        let old_info = old.info(osd).copied().unwrap_or_default();
        let info = new.info(osd).copied().unwrap_or_default();
        if old_info.up_thru != info.up_thru {
            inc.new_up_thru.insert(osd, info.up_thru);
        }
        if (old_info.last_clean_begin, old_info.last_clean_end)
            != (info.last_clean_begin, info.last_clean_end)
        {
            inc.new_last_clean_interval.insert(osd, (info.last_clean_begin, info.last_clean_end));
        }
        if old_info.lost_at != info.lost_at {
            inc.new_lost.insert(osd, info.lost_at);
        }
        let xinfo = new.xinfo(osd).copied().unwrap_or_default();
        if old.xinfo(osd).copied().unwrap_or_default() != xinfo {
            inc.new_xinfo.insert(osd, xinfo);
        }
        let uuid = new.uuid(osd).unwrap_or_default();
        if old.uuid(osd).unwrap_or_default() != uuid {
            inc.new_uuid.insert(osd, uuid);
        }
    }
    if up_change {
        inc.new_last_up_change = now;
    }
    if in_change {
        inc.new_last_in_change = now;
    }
}

fn diff_pgs(inc: &mut Incremental, old: &OsdMap, new: &OsdMap) {
    inc.new_pg_temp = changed(&old.pg_temp, &new.pg_temp);
    inc.new_pg_temp.extend(gone(&old.pg_temp, &new.pg_temp).map(|pg| (pg, Vec::new())));
    inc.new_primary_temp = changed(&old.primary_temp, &new.primary_temp);
    inc.new_primary_temp.extend(gone(&old.primary_temp, &new.primary_temp).map(|pg| (pg, -1)));
    inc.new_pg_upmap = changed(&old.pg_upmap, &new.pg_upmap);
    inc.old_pg_upmap = gone(&old.pg_upmap, &new.pg_upmap).collect();
    inc.new_pg_upmap_items = changed(&old.pg_upmap_items, &new.pg_upmap_items);
    inc.old_pg_upmap_items = gone(&old.pg_upmap_items, &new.pg_upmap_items).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spirula_maps::osdmap::WEIGHT_IN;
    use spirula_maps::{Crush, PgPool};
    use spirula_types::{AddrVec, EntityAddr, PgId, Uuid};

    fn base() -> OsdMap {
        let mut m = OsdMap::fresh(Uuid([1; 16]), 5, UTime { sec: 9, nsec: 0 }, Crush::default());
        m.set_max_osd(4);
        m.pools.insert(1, PgPool::replicated(3, 8, 0, UTime::ZERO));
        m.pool_names.insert(1, "p".into());
        m.pool_max = 1;
        m
    }

    #[derive(Clone, Debug)]
    enum Edit {
        State(u8, u32),
        Weight(u8, u32),
        Boot(u8, u16),
        Down(u8),
        Affinity(u8, u32),
        Pool(i64, u32),
        DropPool(i64),
        Temp(u32, Vec<i32>),
        UpThru(u8, u32),
        Remove(u8),
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let osd = 0..4u8;
        prop_oneof![
            (osd.clone(), 0..64u32).prop_map(|(o, s)| Edit::State(o, (s << 2) | state::EXISTS)),
            (osd.clone(), prop_oneof![Just(0), Just(WEIGHT_IN), Just(0x8000)])
                .prop_map(|(o, w)| Edit::Weight(o, w)),
            (osd.clone(), 1..9u16).prop_map(|(o, p)| Edit::Boot(o, p)),
            osd.clone().prop_map(Edit::Down),
            (osd.clone(), 0..WEIGHT_IN).prop_map(|(o, a)| Edit::Affinity(o, a)),
            (1..4i64, 1..64u32).prop_map(|(p, n)| Edit::Pool(p, n)),
            (1..4i64).prop_map(Edit::DropPool),
            (0..4u32, proptest::collection::vec(0..4i32, 0..3)).prop_map(|(s, v)| Edit::Temp(s, v)),
            (osd.clone(), 0..9u32).prop_map(|(o, e)| Edit::UpThru(o, e)),
            osd.prop_map(Edit::Remove),
        ]
    }

    fn make(m: &mut OsdMap, e: &Edit) {
        match e {
            Edit::State(o, s) => {
                m.osd_state[*o as usize] = *s | (m.osd_state[*o as usize] & state::UP)
            }
            Edit::Weight(o, w) => {
                m.osd_weight[*o as usize] = *w;
                if *w != 0 {
                    m.osd_state[*o as usize] |= state::EXISTS;
                    m.osd_state[*o as usize] &= !(state::AUTOOUT | state::NEW);
                }
            }
            Edit::Boot(o, port) => {
                let i = *o as usize;
                m.osd_state[i] |= state::EXISTS | state::UP;
                m.osd_state[i] &= !state::STOP;
                let a = AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], *port).into(), 1));
                m.osd_addrs[i].client = a.clone();
                m.osd_addrs[i].cluster = a;
            }
            Edit::Down(o) => m.osd_state[*o as usize] &= !state::UP,
            Edit::Affinity(o, a) => {
                m.primary_affinity.resize(4, WEIGHT_IN);
                m.primary_affinity[*o as usize] = *a;
            }
            Edit::Pool(p, n) => {
                m.pools.insert(*p, PgPool::replicated(2, *n, 0, UTime::ZERO));
                m.pool_names.insert(*p, format!("n{n}"));
            }
            Edit::DropPool(p) => {
                m.pools.remove(p);
                m.pool_names.remove(p);
            }
            Edit::Temp(s, v) if v.is_empty() => {
                m.pg_temp.remove(&PgId::new(1, *s));
            }
            Edit::Temp(s, v) => {
                m.pg_temp.insert(PgId::new(1, *s), v.clone());
            }
            Edit::UpThru(o, e) => m.osd_info[*o as usize].up_thru = *e,
            Edit::Remove(o) => {
                let i = *o as usize;
                m.osd_state[i] = 0;
                m.osd_info[i] = Default::default();
                m.osd_xinfo[i] = Default::default();
                m.osd_addrs[i] = Default::default();
                m.osd_uuid[i] = Uuid::default();
                if !m.primary_affinity.is_empty() {
                    m.primary_affinity[i] = WEIGHT_IN;
                }
            }
        }
    }

    /// Makes the edits of one batch. An OSD that is removed is not touched again, and goes up
    /// or down once at most: the monitor sees to that, one incremental could not say it.
    fn make_all(m: &mut OsdMap, edits: &[Edit]) {
        let mut removed = std::collections::BTreeSet::new();
        let mut moved = std::collections::BTreeSet::new();
        for e in edits {
            let osd = match e {
                Edit::State(o, _) | Edit::Weight(o, _) | Edit::Boot(o, _) | Edit::Down(o) => {
                    Some(*o)
                }
                Edit::Affinity(o, _) | Edit::UpThru(o, _) | Edit::Remove(o) => Some(*o),
                _ => None,
            };
            // Only a boot, a weight or a new state can bring an OSD into being.
            let absent = osd.is_some_and(|o| !m.exists(i32::from(o)));
            let attribute = matches!(e, Edit::Affinity(..) | Edit::UpThru(..) | Edit::Remove(_));
            if osd.is_some_and(|o| removed.contains(&o)) || (absent && attribute) {
                continue;
            }
            if matches!(e, Edit::Boot(..) | Edit::Down(_)) && !moved.insert(osd) {
                continue;
            }
            if matches!(e, Edit::Remove(_)) {
                if moved.contains(&osd) {
                    continue;
                }
                removed.extend(osd);
            }
            make(m, e);
        }
    }

    /// Parts that applying derives, set to what it derives.
    fn settle(mut m: OsdMap, like: &OsdMap) -> OsdMap {
        m.epoch = like.epoch;
        m.modified = like.modified;
        m.last_up_change = like.last_up_change;
        m.last_in_change = like.last_in_change;
        for (id, p) in &mut m.pools {
            p.last_change = like.pools[id].last_change;
        }
        for i in 0..m.osd_info.len() {
            m.osd_info[i].up_from = like.osd_info[i].up_from;
            m.osd_info[i].down_at = like.osd_info[i].down_at;
            m.osd_xinfo[i].down_stamp = like.osd_xinfo[i].down_stamp;
        }
        if m.primary_affinity.iter().all(|a| *a == WEIGHT_IN) {
            m.primary_affinity.clone_from(&like.primary_affinity);
        }
        if like.primary_affinity.is_empty() && m.primary_affinity.iter().all(|a| *a == WEIGHT_IN) {
            m.primary_affinity.clear();
        }
        m
    }

    proptest! {
        #[test]
        fn prop_applying_the_difference_gives_the_edited_map(
            before in proptest::collection::vec(edit(), 0..12),
            edits in proptest::collection::vec(edit(), 0..8),
        ) {
            let mut old = base();
            make_all(&mut old, &before);
            let mut new = old.clone();
            make_all(&mut new, &edits);
            match diff(&old, &new, UTime { sec: 77, nsec: 0 }) {
                None => prop_assert_eq!(settle(new, &old), settle(old.clone(), &old)),
                Some(mut inc) => {
                    let got = advance(&old, &mut inc).unwrap().into_map();
                    prop_assert_eq!(settle(new, &got), settle(got.clone(), &got));
                    // And it survives the wire.
                    let bytes = spirula_encoding::to_vec(&inc);
                    let back: Incremental = spirula_encoding::from_slice(&bytes).unwrap();
                    let mut copy = old.clone();
                    prop_assert!(copy.apply_checked(&back).is_ok());
                }
            }
        }
    }
}
