//! The monitor map. Input: its bytes.
#![no_main]

use spirula_fuzz::round_trip;
use spirula_maps::{MonInfo, MonMap};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    if let Some(m) = round_trip::<MonMap>(data) {
        let _ = (m.dump(), m.dump_text());
    }
    round_trip::<MonInfo>(data);
}));
