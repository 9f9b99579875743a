//! Damaged maps: whatever decodes can be mapped, edited and dumped without panic or hang.

use crate::golden;
use proptest::prelude::*;
use spirula_crush::{CrushMap, Scratch};
use spirula_encoding::from_slice;

fn seeds() -> Vec<Vec<u8>> {
    let mut v: Vec<Vec<u8>> =
        golden::maps().into_iter().filter(|(_, b)| b.len() < 3000).map(|(_, b)| b).collect();
    v.extend((1..30).map(|s| spirula_encoding::to_vec(&crate::random::map(s))));
    v
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn prop_mutated_maps_neither_panic_nor_hang(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let seeds = seeds();
        let mut bytes = which.get(&seeds).clone();
        for (at, value, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = value,
                1 => bytes[at] = bytes[at].wrapping_add(1),
                2 => bytes[at] = 0xff,
                _ => bytes[at] = 0,
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(map) = from_slice::<CrushMap>(&bytes) {
            let weights = vec![0x10000; 64];
            let mut scratch = Scratch::with_draws(200_000);
            let mut out = Vec::new();
            for rule in 0..map.rules.len().min(8) as u32 {
                for x in 0..3 {
                    map.do_rule_into(&mut scratch, rule, x, 6, &weights, map.choose_args_for(0), &mut out);
                    prop_assert!(out.len() <= 6);
                }
            }
            if map.max_devices < 10_000 {
                let _ = map.dump();
            }
            let _ = map.check();
            let mut edited = map.clone();
            let place = edited.full_location(0);
            let _ = edited.set_item_weight(0, 0x20000);
            let _ = edited.create_or_move(1, 0x10000, "osd.1", &place);
            let _ = edited.set_device_class(2, "nvme");
            let _ = edited.remove_item("osd.3", None, false);
            let _ = edited.reweight_all();
            let _ = map.roots().iter().map(|r| map.osds_under(*r).len()).sum::<usize>();
        }
    }
}

#[test]
fn loop_of_buckets_ends_and_is_reported() {
    let mut map = CrushMap::new_default("host").unwrap();
    let place = spirula_crush::parse_location(["root=default", "host=a"]).unwrap();
    map.insert(0, 0x10000, "osd.0", &place).unwrap();
    let (root, host) = (map.item_id("default").unwrap(), map.item_id("a").unwrap());
    // Turn the device into a link back to the root.
    map.buckets[!host as usize].as_mut().unwrap().items[0] = root;
    assert!(map.do_rule(0, 1, 3, &[0x10000], None).is_empty());
    assert!(matches!(map.check(), Err(spirula_crush::CrushError::Loop(_))));
    assert!(map.set_item_weight(host, 1).is_err());
    assert!(!map.subtree(root).is_empty());
}
