//! Incremental OSD maps: decoding, and applying them to a small map. Input: the
//! incremental's bytes; checksums, cluster and epoch are put right.
#![no_main]

use spirula_encoding::UTime;
use spirula_fuzz::{check, round_trip_crc};
use spirula_maps::osdmap::{Crush, Incremental, OsdMap, PgPool};
use spirula_types::{PgId, Uuid};
use std::cell::OnceCell;

/// Eight OSDs, two pools.
fn base() -> OsdMap {
    let now = UTime { sec: 1_700_000_000, nsec: 0 };
    let mut map = OsdMap::fresh(Uuid([7; 16]), 1, now, Crush::default());
    map.set_max_osd(8);
    for name in ["a", "b"] {
        let mut inc = Incremental::next(&map, now);
        inc.add_pool(&map, name, PgPool::replicated(3, 8, 0, now));
        map.apply(&inc).expect("adding a pool is possible");
    }
    map
}

thread_local!(static BASE: OnceCell<OsdMap> = const { OnceCell::new() });

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let base = BASE.with(|b| b.get_or_init(base).clone());
    // One incremental may grow the map to its largest: some 200 bytes for each of 2^17 OSDs.
    let growth = 128 << 20;
    spirula_fuzz::memory::bounded_by(growth, 512, data, |data| {
        let Some(mut inc) = round_trip_crc::<Incremental>(data) else { return };
        inc.is_noop();
        let mut map = base;
        (inc.fsid, inc.epoch) = (map.fsid, map.epoch + 1);
        if map.apply(&inc).is_ok() {
            check(&map);
            map.pg_to_up_acting(PgId::new(1, 3));
        }
    });
});
