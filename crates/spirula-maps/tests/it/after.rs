//! The mapping of all PGs after a change, made out of the one before it, is that of the map alone.

use super::random::{Rng, osdmap};
use spirula_crush::CrushMap;
use spirula_maps::osdmap::{WEIGHT_IN, pool, state};
use spirula_maps::{Crush, OsdMap};
use spirula_types::PgId;

/// Changes one thing that a mapping depends on.
fn change(map: &mut OsdMap, r: &mut Rng) {
    let osd = r.below(map.osd_state.len() as u64) as usize;
    let pools: Vec<i64> = map.pools.keys().copied().collect();
    let id = pools[r.below(pools.len() as u64) as usize];
    let pg = PgId::new(id, r.below(u64::from(map.pools[&id].pg_num)) as u32);
    let of_pool = |map: &mut OsdMap, f: &dyn Fn(&mut pool::PgPool)| {
        map.pools.get_mut(&id).into_iter().for_each(f)
    };
    match r.below(14) {
        0 | 1 => map.osd_state[osd] ^= state::UP,
        2 => map.osd_state[osd] ^= state::EXISTS,
        3 => map.osd_weight[osd] = r.below(u64::from(WEIGHT_IN) + 1) as u32,
        4 => {
            map.primary_affinity =
                (0..map.osd_state.len()).map(|_| r.below(u64::from(WEIGHT_IN)) as u32).collect()
        }
        5 => _ = map.pg_temp.insert(pg, vec![osd as i32]),
        6 => map.pg_temp.clear(),
        7 => _ = map.pg_upmap_items.insert(pg, vec![(0, osd as i32)]),
        8 => {
            let mut c = CrushMap::clone(&map.crush);
            c.set_item_weight(osd as i32, r.below(0x30000) as u32).ok();
            map.crush = Crush::new(c);
        }
        9 => of_pool(map, &|p| p.size = p.size % 5 + 1),
        10 => of_pool(map, &|p| p.pg_num += 3),
        11 => of_pool(map, &|p| p.pgp_num = p.pgp_num / 2 + 1),
        12 => of_pool(map, &|p| p.flags ^= pool::flag::HASHPSPOOL),
        _ => of_pool(map, &|p| p.crush_rule ^= 1),
    }
}

#[test]
fn a_mapping_made_from_the_one_before_is_that_of_the_map_alone() {
    let mut kept = 0;
    for seed in 0..15 {
        let (mut map, mut r) = (osdmap(seed), Rng::new(seed + 1000));
        let mut table = map.map_all();
        for step in 0..25 {
            let before = map.clone();
            change(&mut map, &mut r);
            let after = map.map_all_after(&before, &table);
            assert_eq!(after, map.map_all(), "seed {seed} step {step}");
            kept += usize::from(after == table);
            table = after;
        }
    }
    assert!(kept < 15 * 25 / 2, "{kept} changes changed nothing");
}
