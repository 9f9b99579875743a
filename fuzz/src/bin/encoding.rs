//! Encoding primitives. Input: the bytes to decode.
#![no_main]

use bytes::Bytes;
use spirula_encoding::{Decoder, UTime};
use spirula_fuzz::round_trip;
use std::collections::{BTreeMap, BTreeSet};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    round_trip::<Vec<u64>>(data);
    round_trip::<Vec<String>>(data);
    round_trip::<Vec<Bytes>>(data);
    round_trip::<BTreeMap<String, Vec<u32>>>(data);
    round_trip::<BTreeMap<u8, BTreeMap<u16, bool>>>(data);
    round_trip::<BTreeSet<i64>>(data);
    round_trip::<Vec<(f64, UTime)>>(data);
    let _ = Decoder::new(data).versioned("fuzz", 3, |d, _| d.list(2, |d| d.get::<(u8, String)>()));
    if let Some(t) = round_trip::<UTime>(data) {
        t.to_iso();
    }
}));
