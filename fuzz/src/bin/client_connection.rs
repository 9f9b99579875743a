//! The connecting side of a connection. Input: see `spirula_fuzz::wire`.
#![no_main]

use spirula_fuzz::wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    wire::run(wire::Side::Connecting, data);
}));
