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

/// Length that [`Joined`] works with, bytes.
pub const JOIN_BLOCK: usize = 4096;

/// For each byte position of a register and each value of that byte: the register after
/// [`JOIN_BLOCK`] zero bytes. crc is linear, so four look-ups shift a whole register.
static SHIFT: [[u32; 256]; 4] = shift_table();

const fn shift_table() -> [[u32; 256]; 4] {
    // Columns of the map "one zero bit", squared until it means JOIN_BLOCK bytes.
    let mut columns = [0u32; 32];
    let mut i = 0;
    while i < 32 {
        let bit = 1u32 << i;
        columns[i] = if bit & 1 == 1 { (bit >> 1) ^ 0x82f6_3b78 } else { bit >> 1 };
        i += 1;
    }
    let mut doublings = (JOIN_BLOCK * 8).trailing_zeros();
    while doublings > 0 {
        let mut squared = [0u32; 32];
        let mut i = 0;
        while i < 32 {
            squared[i] = apply(&columns, columns[i]);
            i += 1;
        }
        columns = squared;
        doublings -= 1;
    }
    let mut table = [[0u32; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut v = 0;
        while v < 256 {
            table[byte][v] = apply(&columns, (v as u32) << (8 * byte));
            v += 1;
        }
        byte += 1;
    }
    table
}

const fn apply(columns: &[u32; 32], value: u32) -> u32 {
    let mut out = 0;
    let mut i = 0;
    while i < 32 {
        if value >> i & 1 == 1 {
            out ^= columns[i];
        }
        i += 1;
    }
    out
}

fn shift(register: u32) -> u32 {
    let [a, b, c, d] = register.to_le_bytes();
    SHIFT[0][usize::from(a)]
        ^ SHIFT[1][usize::from(b)]
        ^ SHIFT[2][usize::from(c)]
        ^ SHIFT[3][usize::from(d)]
}

/// The crc of many blocks of [`JOIN_BLOCK`] bytes from the crcs of each, without touching
/// the bytes again. All with seed `0xffff_ffff`.
#[derive(Clone, Copy, Debug)]
pub struct Joined(u32);

impl Default for Joined {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Joined {
    /// Appends a block whose crc is `block`.
    pub fn push(&mut self, block: u32) {
        // crc(s, B) = crc(t, B) ^ shift(s ^ t): the registers differ by what the seeds do.
        self.0 = block ^ shift(self.0 ^ u32::MAX);
    }

    /// The crc of everything appended.
    pub fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_block_crcs_are_the_crc_of_the_whole() {
        let data: Vec<u8> = (0..5 * JOIN_BLOCK as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let mut j = Joined::default();
        assert_eq!(j.value(), crc32c(u32::MAX, b""));
        for (i, block) in data.chunks(JOIN_BLOCK).enumerate() {
            j.push(crc32c(u32::MAX, block));
            assert_eq!(
                j.value(),
                crc32c(u32::MAX, &data[..(i + 1) * JOIN_BLOCK]),
                "after block {i}"
            );
        }
    }

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
                assert_eq!(
                    crc32c(seed, &data[..len]),
                    slow(seed, &data[..len]),
                    "len {len} seed {seed:x}"
                );
            }
        }
    }

    #[test]
    fn empty_input_returns_the_seed() {
        assert_eq!(crc32c(0xffff_ffff, b""), 0xffff_ffff);
        assert_eq!(crc32c(0, b""), 0);
    }
}
