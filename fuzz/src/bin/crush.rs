//! CRUSH maps: decoding, mapping, dump. Input: the bytes of the map.
#![no_main]

use spirula_crush::{CrushMap, Scratch};
use spirula_fuzz::round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(512, data, |data| {
    let Some(map) = round_trip::<CrushMap>(data) else { return };
    let _ = map.check();
    // It lists every device up to the largest number.
    if map.max_devices < 1000 {
        map.dump();
    }
    let weights = vec![0x10000; usize::try_from(map.max_devices).unwrap_or(0).min(64)];
    // Fewer draws than in production, so that endless maps do not slow the fuzzer down.
    let mut scratch = Scratch::with_draws(50_000);
    let mut out = Vec::new();
    let args = map.choose_args.values().next();
    for rule in 0..map.rules.len().min(4) as u32 {
        for (x, max) in [(1, 3), (0xffff_ffff, 1), (77, 6)] {
            out.clear();
            map.do_rule_into(&mut scratch, rule, x, max, &weights, args, &mut out);
            assert!(out.len() <= max, "{} devices where {max} were asked for", out.len());
        }
    }
}));
