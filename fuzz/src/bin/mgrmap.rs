//! The manager map. Input: its bytes.
#![no_main]

use spirula_fuzz::round_trip;
use spirula_maps::{MgrMap, MgrStandby, ModuleInfo, ModuleOption};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    if let Some(m) = round_trip::<MgrMap>(data) {
        m.dump();
    }
    round_trip::<ModuleInfo>(data);
    round_trip::<ModuleOption>(data);
    round_trip::<MgrStandby>(data);
}));
