//! Checksums of stored blocks.

use spirula_encoding::crc::crc32c;
use xxhash_rust::xxh64::xxh64;

/// What protects each stored block of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// crc32c, seed −1, 4 bytes.
    #[default]
    Crc32c,
    /// xxHash64, seed 0, 8 bytes.
    Xxhash64,
    /// The low 16 bits of [`Checksum::Crc32c`].
    Crc32c16,
    /// The low 8 bits of it: one rotten block in 256 is taken for a good one.
    Crc32c8,
}

impl Checksum {
    pub(crate) fn from_byte(b: u8) -> Option<Self> {
        match b {
            0 => Some(Self::Crc32c),
            1 => Some(Self::Xxhash64),
            2 => Some(Self::Crc32c16),
            3 => Some(Self::Crc32c8),
            _ => None,
        }
    }

    pub(crate) fn byte(self) -> u8 {
        self as u8
    }

    /// Words of 32 bits that a sum takes.
    pub(crate) fn words(self) -> usize {
        match self {
            Self::Crc32c | Self::Crc32c16 | Self::Crc32c8 => 1,
            Self::Xxhash64 => 2,
        }
    }

    /// What of a crc32c is kept.
    fn of_crc(self, crc: u32) -> u32 {
        match self {
            Self::Crc32c16 => crc & 0xffff,
            Self::Crc32c8 => crc & 0xff,
            Self::Crc32c | Self::Xxhash64 => crc,
        }
    }

    /// Appends the sum of `block`.
    pub(crate) fn push(self, block: &[u8], out: &mut Vec<u32>) {
        match self {
            Self::Crc32c | Self::Crc32c16 | Self::Crc32c8 => {
                out.push(self.of_crc(crc32c(u32::MAX, block)))
            }
            Self::Xxhash64 => {
                let sum = xxh64(block, 0);
                out.extend([sum as u32, (sum >> 32) as u32]);
            }
        }
    }

    /// Is `sum` (its words) that of `block`?
    pub(crate) fn holds(self, block: &[u8], sum: &[u32]) -> bool {
        match (self, sum) {
            (Self::Crc32c | Self::Crc32c16 | Self::Crc32c8, [s]) => {
                self.of_crc(crc32c(u32::MAX, block)) == *s
            }
            (Self::Xxhash64, [low, high]) => {
                xxh64(block, 0) == u64::from(*low) | u64::from(*high) << 32
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_holds_for_its_block_and_for_no_other() {
        for kind in [Checksum::Crc32c, Checksum::Xxhash64, Checksum::Crc32c16, Checksum::Crc32c8] {
            let mut sum = Vec::new();
            kind.push(b"one block", &mut sum);
            assert_eq!(sum.len(), kind.words());
            assert!(kind.holds(b"one block", &sum) && !kind.holds(b"one blocK", &sum));
            assert!(!kind.holds(b"one block", &[]));
            assert_eq!(Checksum::from_byte(kind.byte()), Some(kind));
        }
        let mut sums = Vec::new();
        [Checksum::Crc32c, Checksum::Crc32c16, Checksum::Crc32c8]
            .iter()
            .for_each(|k| k.push(b"one block", &mut sums));
        assert_eq!((sums[1], sums[2]), (sums[0] & 0xffff, sums[0] & 0xff));
        // The reference value of xxHash64 of nothing.
        let mut sum = Vec::new();
        Checksum::Xxhash64.push(b"", &mut sum);
        assert_eq!(sum, [0x51d8_e999, 0xef46_db37]);
    }
}
