//! What an administrator asks of the store's memory and space: what caches hold, to let go of it,
//! and in how many pieces the free space lies.
//!
//! Safe at any time between two transactions: a cache holds nothing but what can be read again from
//! overlays, the metadata tree or the device, and a run with as little memory as one likes would
//! have let go of it by itself.

use crate::alloc::GROUP_BLOCKS;
use crate::error::{Result, StoreError};
use crate::store::Store;

/// What the store's caches hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Objects' records, absent ones too.
    pub heads: usize,
    /// Parts of objects' block maps, counts of shared blocks, layers of maps.
    pub parts: usize,
    /// Bytes of pages of the metadata tree.
    pub tree_bytes: usize,
    /// Bytes of data of large reads.
    pub kept_bytes: usize,
}

/// In how many pieces the free space lies; from 0 (one) to 1 (single blocks).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fragmentation {
    /// By the number of pieces: of all borders that there could be within the free space, the share
    /// that there is.
    pub pieces: f64,
    /// By their lengths: a run of twice the length counts for a tenth more by block. So it is next
    /// to 0 as long as most of the space lies in long runs, however many short ones there are
    /// beside them.
    pub score: f64,
}

impl Fragmentation {
    /// Of so many runs with so many free blocks together, for lengths that are much the same.
    pub(crate) fn of(classes: impl Iterator<Item = (u64, u64)>) -> Self {
        // No request is given more in one run than a group holds: a longer one is worth no more.
        let worth =
            |blocks: f64| blocks * 1.1f64.powf(blocks.clamp(1.0, GROUP_BLOCKS as f64).log2());
        let (mut n, mut all, mut sum) = (0, 0, 0.0);
        for (runs, blocks) in classes.filter(|(runs, _)| *runs > 0) {
            n += runs;
            all += blocks;
            sum += runs as f64 * worth(blocks as f64 / runs as f64);
        }
        if n < 2 || all < 2 {
            return Self::default();
        }
        Self {
            pieces: (n - 1) as f64 / (all - 1) as f64,
            score: (1.0 - sum / worth(all as f64)).clamp(0.0, 1.0),
        }
    }
}

impl Store {
    /// What caches hold.
    pub fn cached(&self) -> Cached {
        Cached {
            heads: self.heads.borrow().len(),
            parts: self.segments.borrow().len()
                + self.refs.borrow().len()
                + self.layers.borrow().len(),
            tree_bytes: self.meta.tree().cached_bytes(),
            kept_bytes: self.kept.borrow().bytes(),
        }
    }

    /// Lets go of all that caches hold, the system's before the device too: what is read next comes
    /// from the device.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the system refuses.
    pub fn drop_caches(&mut self) -> Result<()> {
        self.heads.get_mut().clear();
        self.segments.get_mut().clear();
        self.refs.get_mut().clear();
        self.layers.get_mut().clear();
        self.kept.get_mut().clear();
        self.meta.tree().drop_cache();
        self.block
            .drop_cache()
            .map_err(|e| StoreError::io("drop the cache of", self.block.name(), e))
    }

    /// In how many pieces the free space lies.
    pub fn fragmentation(&self) -> Fragmentation {
        Fragmentation::of(self.alloc().free_runs().into_values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_in_one_piece_is_not_fragmented_and_in_single_blocks_it_is() {
        let of = |classes: &[(u64, u64)]| Fragmentation::of(classes.iter().copied());
        assert_eq!(of(&[]), Fragmentation::default());
        assert_eq!(of(&[(1, 1 << 20)]), Fragmentation::default());
        let groups = of(&[(100, 100 * GROUP_BLOCKS)]);
        assert!(
            groups.score < 1e-9 && groups.pieces < 1e-4,
            "whole groups are as good as one run: {groups:?}"
        );
        let (long, strewn) = (of(&[(3, 3), (2, 2 << 20)]), of(&[(4096, 4096)]));
        assert!(long.pieces < 0.01 && long.score < 0.15, "{long:?}");
        assert!(strewn.pieces > 0.99 && strewn.score > 0.6, "{strewn:?}");
    }
}
