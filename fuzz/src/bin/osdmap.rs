//! Full OSD maps: decoding, mapping, dumps. Input: the map's bytes; its checksum is put right.
#![no_main]

use bytes::Bytes;
use spirula_fuzz::round_trip_crc;
use spirula_maps::osdmap::{MapScratch, OsdMap, UpActing};
use spirula_types::{EntityAddr, ObjectLocator, PgId};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(1024, data, |data| {
    let Some(map) = round_trip_crc::<OsdMap>(data) else { return };
    let (mut scratch, mut out) = (MapScratch::default(), UpActing::default());
    // One mapping: an endless CRUSH rule may take a second.
    for (id, pool) in map.pools.iter().take(1) {
        map.pg_to_up_acting_into(&mut scratch, PgId::new(*id, pool.pg_num.wrapping_sub(1)), &mut out);
        let at = ObjectLocator { pool: *id, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        if let Some(pg) = map.object_to_pg(&at, b"name") {
            pool.placement_seed(pg);
        }
    }
    let _ = (map.dump(), map.dump_text(), map.pools_text(), map.min_compat_client(), map.osd_counts());
    let _ = map.is_blocklisted(&EntityAddr::default());
}));
