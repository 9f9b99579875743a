//! Statistics: PGs, OSDs, pools, the manager's digest. Input: the bytes of one of them.
#![no_main]

use spirula_fuzz::round_trip;
use spirula_maps::{ObjectStatSum, OsdStatReport, PgDigest, PgStat, PgState, PoolStat, PoolSum, StoreStatfs};
use spirula_messages::ceph::{ObjectStats, PoolStats, StoreStats};
use spirula_types::PgId;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    if let Some(s) = round_trip::<PgStat>(data) {
        s.dump(PgId::new(1, 2));
    }
    if let Some(s) = round_trip::<OsdStatReport>(data) {
        let _ = (s.dump(Some(1)), s.use_ratio());
    }
    if let Some(d) = round_trip::<PgDigest>(data) {
        let _ = (d.num_pgs(), d.pool_sum(), d.osd_sum(|_| true));
    }
    round_trip::<PoolSum>(data);
    round_trip::<PoolStat>(data);
    round_trip::<ObjectStatSum>(data);
    round_trip::<StoreStatfs>(data);
    if let Some(s) = round_trip::<PgState>(data) {
        s.to_string();
    }
    round_trip::<ObjectStats>(data);
    round_trip::<PoolStats>(data);
    round_trip::<StoreStats>(data);
}));
