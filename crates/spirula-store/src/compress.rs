//! Compression of data on its way to the device: the algorithms, and when to use them.
//!
//! Only whole blocks are compressed, in pieces of at most a pool's largest blob, and only
//! kept so where that saves enough ([`PoolOptions::required_ratio`]). With compression off
//! nothing here runs.

use crate::alloc::BLOCK;
use crate::onode::SEGMENT_BLOCKS;
use crate::sum::Checksum;
use bytes::Bytes;

/// How a stored blob is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// LZ4 block.
    Lz4,
    /// zstd frame, level 1.
    Zstd,
    /// Snappy, raw.
    Snappy,
    /// Deflate, raw, level 5 (as Ceph's).
    Zlib,
}

impl Algorithm {
    pub(crate) fn from_byte(b: u8) -> Option<Self> {
        match b {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            3 => Some(Self::Snappy),
            4 => Some(Self::Zlib),
            _ => None,
        }
    }

    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Snappy => 3,
            Self::Zlib => 4,
        }
    }

    /// `None` when the algorithm fails; the data is then stored as it is.
    pub(crate) fn compress(self, data: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Lz4 => Some(lz4_flex::block::compress(data)),
            Self::Zstd => zstd::bulk::compress(data, 1).ok(),
            Self::Snappy => snap::raw::Encoder::new().compress_vec(data).ok(),
            Self::Zlib => Some(miniz_oxide::deflate::compress_to_vec(data, 5)),
        }
    }

    /// `None` unless `stored` gives exactly `len` bytes.
    pub(crate) fn decompress(self, stored: &[u8], len: usize) -> Option<Vec<u8>> {
        let out = match self {
            Self::Lz4 => lz4_flex::block::decompress(stored, len).ok()?,
            Self::Zstd => zstd::bulk::decompress(stored, len).ok()?,
            Self::Snappy => {
                if snap::raw::decompress_len(stored).ok()? != len {
                    return None;
                }
                snap::raw::Decoder::new().decompress_vec(stored).ok()?
            }
            Self::Zlib => miniz_oxide::inflate::decompress_to_vec_with_limit(stored, len).ok()?,
        };
        (out.len() == len).then_some(out)
    }
}

/// When to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionMode {
    /// Never.
    #[default]
    None,
    /// What clients say is compressible.
    Passive,
    /// All but what clients say is not compressible.
    Aggressive,
    /// Everything.
    Force,
}

/// How the data of one pool is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolOptions {
    /// When to compress.
    pub mode: CompressionMode,
    /// With what.
    pub algorithm: Algorithm,
    /// A blob stays compressed if it takes at most this part of its original space.
    pub required_ratio: f64,
    /// Less than this many bytes in a row are not compressed.
    pub min_blob: u32,
    /// Most bytes compressed as one piece; at most 512 KiB.
    pub max_blob: u32,
    /// Checksum of newly mapped data.
    pub checksum: Checksum,
}

impl Default for PoolOptions {
    /// Ceph's defaults for solid-state devices.
    fn default() -> Self {
        Self {
            mode: CompressionMode::None,
            algorithm: Algorithm::Snappy,
            required_ratio: 0.875,
            min_blob: 8 << 10,
            max_blob: 64 << 10,
            checksum: Checksum::Crc32c,
        }
    }
}

/// Allocation hint of clients: the data compresses well. (Ceph's
/// `CEPH_OSD_ALLOC_HINT_FLAG_COMPRESSIBLE`.)
pub(crate) const HINT_COMPRESSIBLE: u32 = 256;
/// Allocation hint of clients: the data does not compress.
pub(crate) const HINT_INCOMPRESSIBLE: u32 = 512;

/// Data compressed, as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Compressed {
    /// Whole blocks, the last one filled up with zeros.
    pub data: Bytes,
    /// Bytes without these zeros.
    pub len: u32,
    /// Checksums of the blocks, of the pool's kind.
    pub sums: Vec<u32>,
}

impl PoolOptions {
    /// Is data of an object with these allocation hints to be compressed?
    pub(crate) fn wants(&self, hints: u32) -> bool {
        match self.mode {
            CompressionMode::None => false,
            CompressionMode::Passive => hints & HINT_COMPRESSIBLE != 0,
            CompressionMode::Aggressive => hints & HINT_INCOMPRESSIBLE == 0,
            CompressionMode::Force => true,
        }
    }

    /// Does it hang on an object's hints at most whether its data is to be compressed?
    pub(crate) fn may_want(&self) -> bool {
        self.mode != CompressionMode::None
    }

    /// Most blocks compressed as one piece.
    pub(crate) fn blob_blocks(&self) -> u64 {
        (u64::from(self.max_blob) / BLOCK).clamp(2, SEGMENT_BLOCKS)
    }

    /// Compresses whole blocks, if that saves at least a block and as much as required.
    pub(crate) fn try_compress(&self, data: &[u8]) -> Option<Compressed> {
        if data.len() < (self.min_blob as usize).max(2 * BLOCK as usize) {
            return None;
        }
        let mut stored = self.algorithm.compress(data)?;
        let (len, room) = (stored.len() as u32, stored.len().next_multiple_of(BLOCK as usize));
        let most = (data.len() as f64 * self.required_ratio) as usize;
        if room > most.min(data.len() - BLOCK as usize) {
            return None;
        }
        stored.resize(room, 0);
        stored.shrink_to_fit();
        let mut sums = Vec::with_capacity(room / BLOCK as usize * self.checksum.words());
        stored.chunks(BLOCK as usize).for_each(|block| self.checksum.push(block, &mut sums));
        Some(Compressed { data: stored.into(), len, sums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_gives_back_what_it_took_and_refuses_other_lengths_and_garbage() {
        let data: Vec<u8> = (0..65536u32).map(|i| (i / 100) as u8).collect();
        for a in [Algorithm::Lz4, Algorithm::Zstd, Algorithm::Snappy, Algorithm::Zlib] {
            let stored = a.compress(&data).unwrap();
            assert!(stored.len() < data.len() / 4, "{a:?}");
            assert_eq!(a.decompress(&stored, data.len()).as_deref(), Some(data.as_slice()));
            assert_eq!(a.decompress(&stored, data.len() - 4096), None);
            assert_eq!(a.decompress(&stored, data.len() + 4096), None);
            assert_eq!(a.decompress(&data[..100], 4096), None);
            assert_eq!(Algorithm::from_byte(a.byte()), Some(a));
        }
    }

    fn mix(n: u64) -> u64 {
        let z = (n ^ 0x1234_5678).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    #[test]
    fn modes_follow_the_hints_and_the_ratio_decides() {
        use CompressionMode::*;
        let with = |mode| PoolOptions { mode, ..PoolOptions::default() };
        let wants = |m, h| with(m).wants(h);
        assert!(!wants(None, HINT_COMPRESSIBLE) && wants(Force, HINT_INCOMPRESSIBLE));
        assert!(wants(Passive, HINT_COMPRESSIBLE) && !wants(Passive, 0));
        assert!(wants(Aggressive, 0) && !wants(Aggressive, HINT_INCOMPRESSIBLE));
        let noise: Vec<u8> = (0..1024u64).flat_map(|i| mix(i).to_le_bytes()).collect();
        let mixed = [&noise[..], &[0; 8192]].concat();
        assert!(
            with(Force)
                .try_compress(&mixed)
                .is_some_and(|s| s.data.len() == 12288 && s.len <= 12288)
        );
        assert!(PoolOptions { required_ratio: 0.4, ..with(Force) }.try_compress(&mixed).is_none());
        assert!(with(Force).try_compress(&noise).is_none(), "what does not compress");
        assert!(with(Force).try_compress(&[0; 4096]).is_none(), "less than the smallest blob");
    }
}
