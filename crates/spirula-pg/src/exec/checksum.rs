//! The checksum op, and the xxHash functions it offers beside crc32c.
//!
//! Source of the hashes: the xxHash specification (Y. Collet, version 0.1.1).

use super::vector::{Ran, Stop, Vector};
use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_encoding::{Decoder, Encoder};
use spirula_messages::ceph::op::OsdOp;
use spirula_types::errno;

const XXHASH32: u8 = 0;
const XXHASH64: u8 = 1;
const CRC32C: u8 = 2;

impl Vector<'_> {
    /// Checksums of a range, whole or in chunks: u32 count and that many sums. Each starts
    /// from the seed in the input.
    pub(super) fn checksum(&mut self, op: &OsdOp, out: &mut OsdOp) -> Ran {
        const EINVAL: Stop = Stop::Errno(errno::EINVAL);
        let args = op.checksum_args();
        let chunk = u64::from(args.chunk);
        if chunk > 0 && (args.length == 0 || !args.length.is_multiple_of(chunk)) {
            return Err(EINVAL);
        }
        let size = self.object.info.size;
        let length = if args.offset == 0 && args.length == 0 {
            size
        } else if args.offset >= size {
            return Ok(0);
        } else {
            args.length.min(size - args.offset)
        };
        if chunk > 0 && !length.is_multiple_of(chunk) {
            return Err(EINVAL);
        }
        let mut seed = Decoder::new(&op.indata);
        let seed = match args.kind {
            XXHASH32 | CRC32C => u64::from(seed.u32()?),
            XXHASH64 => seed.u64()?,
            _ => return Err(EINVAL),
        };
        self.reserve(length)?;
        let data =
            if length == 0 { Bytes::new() } else { self.object.read(args.offset, length)? };
        self.object.stats.count_read(length);
        let chunk = if chunk == 0 { length } else { chunk };
        let mut o = Encoder::new();
        o.list(data.chunks((chunk as usize).max(1)), |o, bytes| match args.kind {
            XXHASH32 => o.u32(xxhash32(seed as u32, bytes)),
            XXHASH64 => o.u64(xxhash64(seed, bytes)),
            _ => o.u32(crc32c(seed as u32, bytes)),
        });
        out.indata = o.into_bytes();
        Ok(0)
    }
}

fn word32(b: &[u8]) -> u32 {
    b.iter().take(4).rev().fold(0, |w, b| (w << 8) | u32::from(*b))
}

fn word64(b: &[u8]) -> u64 {
    b.iter().take(8).rev().fold(0, |w, b| (w << 8) | u64::from(*b))
}

/// xxHash, 32 bits.
fn xxhash32(seed: u32, data: &[u8]) -> u32 {
    const P1: u32 = 0x9e37_79b1;
    const P2: u32 = 0x85eb_ca77;
    const P3: u32 = 0xc2b2_ae3d;
    const P4: u32 = 0x27d4_eb2f;
    const P5: u32 = 0x1656_67b1;
    let stripes = data.chunks_exact(16);
    let tail = stripes.remainder();
    let mut h = if data.len() >= 16 {
        let mut lane = [
            seed.wrapping_add(P1).wrapping_add(P2),
            seed.wrapping_add(P2),
            seed,
            seed.wrapping_sub(P1),
        ];
        for stripe in stripes {
            for (l, w) in lane.iter_mut().zip(stripe.chunks_exact(4)) {
                *l = l.wrapping_add(word32(w).wrapping_mul(P2)).rotate_left(13).wrapping_mul(P1);
            }
        }
        lane.iter().zip([1, 7, 12, 18]).fold(0u32, |h, (l, r)| h.wrapping_add(l.rotate_left(r)))
    } else {
        seed.wrapping_add(P5)
    };
    h = h.wrapping_add(data.len() as u32);
    let words = tail.chunks_exact(4);
    let bytes = words.remainder();
    for w in words {
        h = h.wrapping_add(word32(w).wrapping_mul(P3)).rotate_left(17).wrapping_mul(P4);
    }
    for b in bytes {
        h = h.wrapping_add(u32::from(*b).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
    }
    h = (h ^ (h >> 15)).wrapping_mul(P2);
    h = (h ^ (h >> 13)).wrapping_mul(P3);
    h ^ (h >> 16)
}

/// xxHash, 64 bits.
fn xxhash64(seed: u64, data: &[u8]) -> u64 {
    const P1: u64 = 0x9e37_79b1_85eb_ca87;
    const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
    const P3: u64 = 0x1656_67b1_9e37_79f9;
    const P4: u64 = 0x85eb_ca77_c2b2_ae63;
    const P5: u64 = 0x27d4_eb2f_1656_67c5;
    let round =
        |acc: u64, w: u64| acc.wrapping_add(w.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1);
    let stripes = data.chunks_exact(32);
    let tail = stripes.remainder();
    let mut h = if data.len() >= 32 {
        let mut lane = [
            seed.wrapping_add(P1).wrapping_add(P2),
            seed.wrapping_add(P2),
            seed,
            seed.wrapping_sub(P1),
        ];
        for stripe in stripes {
            for (l, w) in lane.iter_mut().zip(stripe.chunks_exact(8)) {
                *l = round(*l, word64(w));
            }
        }
        let h = lane
            .iter()
            .zip([1, 7, 12, 18])
            .fold(0u64, |h, (l, r)| h.wrapping_add(l.rotate_left(r)));
        lane.iter().fold(h, |h, l| (h ^ round(0, *l)).wrapping_mul(P1).wrapping_add(P4))
    } else {
        seed.wrapping_add(P5)
    };
    h = h.wrapping_add(data.len() as u64);
    let words = tail.chunks_exact(8);
    let rest = words.remainder();
    for w in words {
        h = (h ^ round(0, word64(w))).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
    }
    let halves = rest.chunks_exact(4);
    let bytes = halves.remainder();
    for w in halves {
        h = (h ^ u64::from(word32(w)).wrapping_mul(P1))
            .rotate_left(23)
            .wrapping_mul(P2)
            .wrapping_add(P3);
    }
    for b in bytes {
        h = (h ^ u64::from(*b).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
    }
    h = (h ^ (h >> 33)).wrapping_mul(P2);
    h = (h ^ (h >> 29)).wrapping_mul(P3);
    h ^ (h >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's own test: bytes of a linear generator.
    fn sanity_buffer() -> Vec<u8> {
        let mut g = 0x9e37_79b1u32;
        let mut next = || {
            let b = (g >> 24) as u8;
            g = g.wrapping_mul(g);
            b
        };
        (0..101).map(|_| next()).collect()
    }

    #[test]
    fn hashes_are_the_published_ones() {
        const PRIME: u32 = 0x9e37_79b1;
        let b = sanity_buffer();
        for (len, seed, h) in [
            (0, 0, 0x02cc_5d05),
            (0, PRIME, 0x36b7_8ae7),
            (1, 0, 0xb85c_bee5),
            (1, PRIME, 0xd584_5d64),
            (14, 0, 0xe5aa_0ab4),
            (14, PRIME, 0x4481_951d),
            (101, 0, 0x1f1a_a412),
            (101, PRIME, 0x498e_c8e2),
        ] {
            assert_eq!(xxhash32(seed, &b[..len]), h, "32 bits, {len} bytes, seed {seed:x}");
        }
        for (len, seed, h) in [
            (0, 0, 0xef46_db37_51d8_e999),
            (0, PRIME, 0xac75_fda2_929b_17ef),
            (1, 0, 0x4fce_394c_c889_52d8),
            (1, PRIME, 0x7398_40cb_819f_a723),
            (14, 0, 0xcffa_8db8_81bc_3a3d),
            (14, PRIME, 0x5b96_1158_5efc_c9cb),
            (101, 0, 0x0eab_5433_84f8_78ad),
            (101, PRIME, 0xcaa6_5939_306f_1e21),
        ] {
            assert_eq!(
                xxhash64(u64::from(seed), &b[..len]),
                h,
                "64 bits, {len} bytes, seed {seed:x}"
            );
        }
        assert_eq!(xxhash32(0, b"abc"), 0x32d1_53ff);
        assert_eq!(xxhash64(0, b"abc"), 0x44bc_2cf5_ad77_0999);
    }
}
