//! The root record: all that is needed to open a tree.

use crate::error::{Result, TreeError};
use crate::node::{PageRef, REF_BYTES, Uuid, u32_at, u64_at};
use crate::space::{CHUNK_MAX, CHUNK_MIN, PAGE};
use spirula_encoding::crc::crc32c;

/// Bytes of an encoded root.
pub const ROOT_BYTES: usize = 128;
const MAGIC: &[u8; 4] = b"SPTR";
const VERSION: u8 = 1;
/// Of a state that has, or had, a node that lies apart.
const VERSION_APART: u8 = 2;
/// Levels of nodes; two children each are more than any device holds.
pub(crate) const LEVELS_MAX: u8 = 40;

/// Names one state of a tree. Made by a commit, stored by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The tree's name.
    pub uuid: Uuid,
    /// Commits so far.
    pub generation: u64,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Levels of nodes; 0: empty.
    pub(crate) levels: u8,
    /// The topmost node.
    pub(crate) top: PageRef,
    /// The index of the map of chunks.
    pub(crate) index: PageRef,
    /// Slots in that map.
    pub(crate) slots: u32,
    /// Pairs.
    pub keys: u64,
    /// Pages of [`PAGE`] bytes in leaves, inner nodes and overflow runs.
    pub(crate) leaf_pages: u64,
    pub(crate) inner_pages: u64,
    pub(crate) overflow_pages: u64,
    /// Some node lies apart, or did once: older programs must not read it.
    pub(crate) apart: bool,
}

impl Root {
    /// The root of an empty tree that never had a commit.
    pub(crate) fn empty(uuid: Uuid, chunk: u32) -> Self {
        Self {
            uuid,
            generation: 0,
            chunk,
            levels: 0,
            top: PageRef::NONE,
            index: PageRef::NONE,
            slots: 0,
            keys: 0,
            leaf_pages: 0,
            inner_pages: 0,
            overflow_pages: 0,
            apart: false,
        }
    }

    /// The bytes to store.
    pub fn encode(&self) -> [u8; ROOT_BYTES] {
        let mut b = Vec::with_capacity(ROOT_BYTES);
        b.extend_from_slice(&[0; 4]);
        b.extend_from_slice(MAGIC);
        b.extend_from_slice(&[if self.apart { VERSION_APART } else { VERSION }, self.levels, 0, 0]);
        b.extend_from_slice(&self.chunk.to_le_bytes());
        b.extend_from_slice(&self.uuid);
        b.extend_from_slice(&self.generation.to_le_bytes());
        for n in [self.keys, self.leaf_pages, self.inner_pages, self.overflow_pages] {
            b.extend_from_slice(&n.to_le_bytes());
        }
        b.extend_from_slice(&self.slots.to_le_bytes());
        b.extend_from_slice(&self.top.encode());
        b.extend_from_slice(&self.index.encode());
        b.resize(ROOT_BYTES, 0);
        let mut out = [0; ROOT_BYTES];
        out.copy_from_slice(&b);
        let crc = crc32c(u32::MAX, &out[4..]).to_le_bytes();
        out[..4].copy_from_slice(&crc);
        out
    }

    /// Reads what [`Root::encode`] made.
    ///
    /// # Errors
    /// [`TreeError::Root`].
    pub fn decode(b: &[u8]) -> Result<Self> {
        let fail = |what| Err(TreeError::Root(what));
        if b.len() != ROOT_BYTES {
            return fail("wrong length");
        }
        let (crc, rest) = b.split_at(4);
        if rest.get(..4) != Some(MAGIC) {
            return fail("not the root of a tree");
        }
        if crc != crc32c(u32::MAX, rest).to_le_bytes() {
            return fail("the checksum does not fit");
        }
        let version = b.get(8).copied().unwrap_or_default();
        if ![VERSION, VERSION_APART].contains(&version) {
            return fail("of a newer version; use a newer program");
        }
        let levels = b.get(9).copied().unwrap_or_default();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(b.get(16..32).unwrap_or(&[0; 16]));
        let page_ref = |at: usize| PageRef::decode(b.get(at..at + REF_BYTES).unwrap_or_default());
        let root = Self {
            uuid,
            generation: u64_at(b, 32),
            chunk: u32_at(b, 12),
            levels,
            top: page_ref(76),
            index: page_ref(76 + REF_BYTES),
            slots: u32_at(b, 72),
            keys: u64_at(b, 40),
            leaf_pages: u64_at(b, 48),
            inner_pages: u64_at(b, 56),
            overflow_pages: u64_at(b, 64),
            apart: version == VERSION_APART,
        };
        check_chunk(root.chunk)?;
        if levels > LEVELS_MAX
            || (levels == 0) != root.top.is_none()
            || (root.slots == 0) != root.index.is_none()
        {
            return fail("inconsistent");
        }
        Ok(root)
    }
}

/// Refuses a chunk size that does not work.
pub(crate) fn check_chunk(chunk: u32) -> Result<()> {
    let bytes = chunk as usize;
    // Bitmaps are kept in words of 64 pages.
    if !(CHUNK_MIN..=CHUNK_MAX).contains(&bytes) || !bytes.is_multiple_of(64 * PAGE) {
        return Err(TreeError::Options("chunks are 256 KiB to 4 MiB, in steps of 256 KiB"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_survives_encoding_and_any_flipped_bit_is_refused() {
        let root = Root {
            levels: 3,
            top: PageRef { page: 0x1234_5678_9abc, units: 3, apart: false, crc: 7 },
            index: PageRef { page: 9, units: 1, apart: true, crc: 8 },
            slots: 5,
            keys: 6,
            leaf_pages: 7,
            inner_pages: 8,
            overflow_pages: 9,
            generation: 10,
            apart: true,
            ..Root::empty([3; 16], 1 << 20)
        };
        let b = root.encode();
        assert_eq!(Root::decode(&b).unwrap(), root);
        for bit in 0..ROOT_BYTES * 8 {
            let mut bad = b;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Root::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(Root::decode(&b[1..]).is_err());
    }
}
