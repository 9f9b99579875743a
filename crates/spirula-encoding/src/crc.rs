//! crc32c (Castagnoli) as Ceph uses it: an explicit seed, no final inversion.
//!
//! msgr2 preambles use seed 0; message segments and maps use seed `0xffff_ffff`.

use crc_fast::{CrcAlgorithm, Digest};

/// crc32c of `data` continued from `seed`, without the final inversion.
pub fn crc32c(seed: u32, data: &[u8]) -> u32 {
    // The library computes the RFC 3720 form: initial and final inversion. Feeding it
    // the inverted seed and undoing the final inversion gives the raw register.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(data);
    !(digest.finalize() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit-by-bit reference of the reflected polynomial 0x82f63b78.
    fn slow(mut crc: u32, data: &[u8]) -> u32 {
        for &b in data {
            crc ^= u32::from(b);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        crc
    }

    #[test]
    fn crc_of_check_string_is_the_published_value() {
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn crc_equals_the_bitwise_reference_for_many_lengths_and_seeds() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in [0, 1, 2, 3, 15, 16, 17, 28, 255, 256, 999, 1000] {
            for seed in [0, 1, 0xffff_ffff, 0x1234_5678] {
                assert_eq!(crc32c(seed, &data[..len]), slow(seed, &data[..len]), "len {len} seed {seed:x}");
            }
        }
    }

    #[test]
    fn empty_input_returns_the_seed() {
        assert_eq!(crc32c(0xffff_ffff, b""), 0xffff_ffff);
        assert_eq!(crc32c(0, b""), 0);
    }
}
