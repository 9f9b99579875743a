//! The object-name hash and the folding of a hash into a PG number.
//!
//! Robert Jenkins' 1996 `lookup2` hash, as RADOS applies it to object names; checked on
//! 526 names seen on the wire (`tests/data/vectors/object_hash.tsv`).

#[inline]
fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    macro_rules! step {
        ($x:ident, $y:ident, $z:ident, $op:tt, $n:literal) => {
            *$x = $x.wrapping_sub(*$y).wrapping_sub(*$z) ^ (*$z $op $n);
        };
    }
    step!(a, b, c, >>, 13);
    step!(b, c, a, <<, 8);
    step!(c, a, b, >>, 13);
    step!(a, b, c, >>, 12);
    step!(b, c, a, <<, 16);
    step!(c, a, b, >>, 5);
    step!(a, b, c, >>, 3);
    step!(b, c, a, <<, 10);
    step!(c, a, b, >>, 15);
}

fn word(k: &[u8]) -> u32 {
    k.iter().take(4).rev().fold(0, |w, b| (w << 8) | u32::from(*b))
}

/// rjenkins hash of a byte string.
pub fn rjenkins(name: &[u8]) -> u32 {
    let (mut a, mut b, mut c) = (0x9e37_79b9u32, 0x9e37_79b9u32, 0u32);
    let mut chunks = name.chunks_exact(12);
    for k in &mut chunks {
        a = a.wrapping_add(word(&k[0..4]));
        b = b.wrapping_add(word(&k[4..8]));
        c = c.wrapping_add(word(&k[8..12]));
        mix(&mut a, &mut b, &mut c);
    }
    let k = chunks.remainder();
    c = c.wrapping_add(name.len() as u32);
    a = a.wrapping_add(word(&k[..k.len().min(4)]));
    b = b.wrapping_add(word(&k[k.len().min(4)..k.len().min(8)]));
    // The lowest byte of c holds the length, so the tail starts one byte higher.
    c = c.wrapping_add(word(&k[k.len().min(8)..]) << 8);
    mix(&mut a, &mut b, &mut c);
    c
}

/// Hash of an object: of its locator key if it has one, else its name, with the
/// namespace and byte 0x1f in front when the namespace is not empty.
pub fn object_hash(namespace: &[u8], key: &[u8], name: &[u8]) -> u32 {
    let s = if key.is_empty() { name } else { key };
    if namespace.is_empty() {
        return rjenkins(s);
    }
    let mut v = Vec::with_capacity(namespace.len() + 1 + s.len());
    v.extend_from_slice(namespace);
    v.push(0x1f);
    v.extend_from_slice(s);
    rjenkins(&v)
}

/// Folds `x` into `0..b` so that growing `b` moves only what must move. `mask` is the
/// smallest 2^n − 1 that is at least `b − 1` ([`mask_for`]).
pub fn stable_mod(x: u32, b: u32, mask: u32) -> u32 {
    if (x & mask) < b { x & mask } else { x & (mask >> 1) }
}

/// The mask for [`stable_mod`] over `b` buckets.
pub fn mask_for(b: u32) -> u32 {
    if b <= 1 { 0 } else { u32::MAX >> (b - 1).leading_zeros() }
}

/// How many low bits of the hash all objects of PG `seed` share in a pool of `pg_num` PGs: all that
/// the next power of two distinguishes, if its sibling in the upper half exists already, else one
/// less. It changes when the PG is split, or another is merged into it, and only then.
pub fn range_bits(seed: u32, pg_num: u32) -> u32 {
    let pg_num = pg_num.max(1);
    let low = pg_num.ilog2();
    if seed & ((1 << low) - 1) < pg_num - (1 << low) { low + 1 } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_string_hashes_to_the_known_value() {
        assert_eq!(rjenkins(b""), 0xbd49_d10d);
    }

    #[test]
    fn golden_object_hashes_match_the_wire() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/object_hash.tsv");
        let text = std::fs::read_to_string(path).expect(path);
        let mut checked = 0;
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let f: Vec<&str> = line.split('\t').collect();
            let &[ns, key, name, hash, ..] = f.as_slice() else { continue };
            let Ok(hash) = u32::from_str_radix(hash.trim_start_matches("0x"), 16) else { continue };
            assert_eq!(object_hash(ns.as_bytes(), key.as_bytes(), name.as_bytes()), hash, "{line}");
            checked += 1;
        }
        assert!(checked > 400, "only {checked} rows understood");
    }

    #[test]
    fn range_bits_change_for_exactly_those_that_are_split() {
        for n in 1..70 {
            for seed in 0..n {
                let split = stable_mod(n, n, mask_for(n)) == seed;
                assert_eq!(
                    range_bits(seed, n + 1) - range_bits(seed, n),
                    u32::from(split),
                    "{seed} {n}"
                );
            }
            assert_eq!(range_bits(n, n + 1), range_bits(stable_mod(n, n, mask_for(n)), n + 1));
        }
    }

    #[test]
    fn stable_mod_of_a_power_of_two_is_a_mask_and_growth_moves_only_to_new_buckets() {
        for x in 0..1000u32 {
            let x = x.wrapping_mul(2_654_435_761);
            assert_eq!(stable_mod(x, 8, mask_for(8)), x & 7);
            let (old, new) = (stable_mod(x, 11, mask_for(11)), stable_mod(x, 12, mask_for(12)));
            assert!(new == old || new == 11);
        }
    }
}
