//! Maps with bytes changed: decoders answer with an error or a map, never with a panic.

use super::random::osdmap;
use super::support::{files, read, vector};
use proptest::prelude::*;
use spirula_encoding::crc::crc32c;
use spirula_encoding::{Decode, Encode, from_slice, to_vec};
use spirula_maps::*;
use std::sync::OnceLock;

/// Golden files, and maps of our own.
fn samples() -> &'static [Vec<u8>] {
    static ALL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut v =
            vec![to_vec(&osdmap(1)), to_vec(&MonMap::default()), to_vec(&MgrMap::initial(1))];
        for dir in ["osdmap", "monmap", "maps"] {
            for p in files(&vector(dir), |f| f.ends_with(".bin")) {
                let b = read(p);
                // Fronts of messages start with an epoch.
                v.push(b.get(4..).unwrap_or_default().to_vec());
                v.push(b);
            }
        }
        v
    })
}

/// Makes the checksums right again, so that what is behind them is reached.
fn reseal(b: &mut [u8], inc: bool) {
    let n = b.len();
    if n < 8 {
        return;
    }
    let at = if inc { n - 8 } else { n - 4 };
    let crc = crc32c(crc32c(u32::MAX, &b[..at]), &b[at + 4..]);
    b[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn stable<T: Decode + Encode + PartialEq + std::fmt::Debug>(b: &[u8]) {
    if let Ok(v) = from_slice::<T>(b) {
        let again = to_vec(&v);
        // Not-a-number is not equal to itself; the bytes are.
        assert_eq!(to_vec(&from_slice::<T>(&again).unwrap()), again);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn prop_mutated_maps_never_panic(pick: prop::sample::Index, edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut in prop::option::of(any::<prop::sample::Index>())) {
        let mut b = samples()[pick.index(samples().len())].clone();
        for (at, v) in edits {
            let n = b.len();
            if n > 0 {
                b[at.index(n)] = v;
            }
        }
        if let Some(c) = cut {
            b.truncate(c.index(b.len() + 1));
        }
        stable::<MonMap>(&b);
        stable::<MgrMap>(&b);
        stable::<FsMap>(&b);
        stable::<FsMapUser>(&b);
        stable::<MdsMap>(&b);
        stable::<PgPool>(&b);
        stable::<PoolStat>(&b);
        stable::<PgDigest>(&b);
        stable::<OsdMap>(&b);
        reseal(&mut b, false);
        if let Ok(m) = from_slice::<OsdMap>(&b) {
            stable::<OsdMap>(&b);
            let _ = (m.dump(), m.dump_text());
            for pg in m.pgs().take(50) {
                let _ = m.pg_to_up_acting(pg);
            }
        }
        reseal(&mut b, true);
        if let Ok(i) = from_slice::<Incremental>(&b) {
            stable::<Incremental>(&b);
            let mut m = osdmap(2);
            m.fsid = i.fsid;
            m.epoch = i.epoch.wrapping_sub(1);
            let _ = m.apply(&i);
        }
    }
}
