//! Where random bytes come from: the caller.

/// A source of random bytes that an adversary cannot guess. Any `FnMut(&mut [u8])` is one.
pub trait Entropy {
    /// Fills `out` with random bytes.
    fn fill(&mut self, out: &mut [u8]);
}

impl<F: FnMut(&mut [u8]) + ?Sized> Entropy for F {
    fn fill(&mut self, out: &mut [u8]) {
        self(out);
    }
}

/// A random array.
pub(crate) fn array<const N: usize>(entropy: &mut dyn Entropy) -> [u8; N] {
    let mut out = [0; N];
    entropy.fill(&mut out);
    out
}

/// A random number.
pub(crate) fn number(entropy: &mut dyn Entropy) -> u64 {
    u64::from_le_bytes(array(entropy))
}

/// A repeatable source for tests: SplitMix64.
#[cfg(test)]
pub(crate) fn seeded(mut seed: u64) -> impl FnMut(&mut [u8]) {
    move |out: &mut [u8]| {
        for byte in out {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *byte = (z ^ (z >> 31)) as u8;
        }
    }
}
