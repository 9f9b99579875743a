//! Maps of file systems. Input: the bytes of one of them.
#![no_main]

use spirula_fuzz::round_trip;
use spirula_maps::{CompatSet, Filesystem, FsMap, FsMapUser, MdsInfo, MdsMap};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    round_trip::<FsMap>(data);
    round_trip::<FsMapUser>(data);
    round_trip::<MdsMap>(data);
    round_trip::<MdsInfo>(data);
    round_trip::<Filesystem>(data);
    round_trip::<CompatSet>(data);
}));
