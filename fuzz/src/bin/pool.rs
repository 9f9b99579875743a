//! Parts of the OSD map. Input: the bytes of one of them.
#![no_main]

use spirula_fuzz::round_trip;
use spirula_maps::osdmap::{OsdInfo, OsdXInfo, PgMergeMeta, PgPool, PoolOpts, PoolSnap, SnapIntervals};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    if let Some(p) = round_trip::<PgPool>(data) {
        let _ = p.text();
    }
    round_trip::<PoolOpts>(data);
    round_trip::<PoolSnap>(data);
    round_trip::<PgMergeMeta>(data);
    round_trip::<OsdInfo>(data);
    round_trip::<OsdXInfo>(data);
    if let Some(mut s) = round_trip::<SnapIntervals>(data) {
        let all = s.clone();
        if let Some((first, len)) = all.intervals().next() {
            s.remove(first, len);
            s.insert(first, len);
            assert_eq!(s, all);
        }
        s.union(&all);
        s.subtract(&all);
        assert!(s.is_empty());
    }
}));
