//! Sketches of leaves: some bits for each key of a leaf that is not in memory any more, enough
//! to say that most other keys are not in it. So who asks for what is not there, as everybody
//! does who makes something new, need not read a leaf to be told so.
//!
//! A sketch errs to one side only: that a key may be there. It speaks of one version of one
//! page, which its keeper (module [`crate::cache`]) compares by the checksum that the page's
//! parent knows.

use crate::node::Node;
use spirula_encoding::crc::crc32c;

/// Bits for each key.
const BITS: usize = 12;
/// Bits that a key sets: with 12 bits each, one in 250 other keys finds all of its own set.
const PROBES: u32 = 4;

/// See the module: a Bloom filter.
#[derive(Debug)]
pub(crate) struct Sketch(Box<[u8]>);

/// A key as sketches know it, given in two parts.
pub(crate) fn hash(prefix: &[u8], suffix: &[u8]) -> u64 {
    let crc = crc32c(crc32c(u32::MAX, prefix), suffix);
    u64::from(crc).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Of so many bits those of a key.
fn probes(hash: u64, bits: usize) -> impl Iterator<Item = usize> {
    let (first, step) = (hash as u32, (hash >> 32) as u32 | 1);
    (0..PROBES).map(move |i| {
        let at = u64::from(first.wrapping_add(i.wrapping_mul(step)));
        ((at * bits as u64) >> 32) as usize
    })
}

impl Sketch {
    /// Bytes that one of this leaf takes.
    pub fn bytes_for(leaf: &Node) -> usize {
        (leaf.count() * BITS).div_ceil(8).max(1)
    }

    /// Of the keys of a leaf.
    pub fn of(leaf: &Node) -> Self {
        let mut bytes = vec![0u8; Self::bytes_for(leaf)].into_boxed_slice();
        let bits = bytes.len() * 8;
        for i in 0..leaf.count() {
            for at in probes(hash(leaf.prefix(), leaf.suffix(i)), bits) {
                bytes[at / 8] |= 1 << (at % 8);
            }
        }
        Self(bytes)
    }

    /// May a key with this hash be there? If not, it surely is not.
    pub fn may_have(&self, hash: u64) -> bool {
        probes(hash, self.0.len() * 8).all(|at| self.0[at / 8] & (1 << (at % 8)) != 0)
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Identity, Item, Val};

    #[test]
    fn a_sketch_knows_all_its_keys_and_next_to_no_others() {
        for n in [1usize, 2, 7, 30, 100] {
            let keys: Vec<Vec<u8>> =
                (0..n).map(|i| format!("a common part {i:05} and more").into_bytes()).collect();
            let val = Val { bytes: b"v", overflow: false };
            let items: Vec<Item<'_>> = keys.iter().map(|k| Item { a: k, b: &[], val }).collect();
            let leaf = Node::build(0, &items, Identity { uuid: [1; 16], page: 9, generation: 1 });
            let sketch = Sketch::of(&leaf);
            assert!(keys.iter().all(|k| sketch.may_have(hash(k, b""))), "{n}");
            let (a, b) = keys[0].split_at(5);
            assert_eq!(hash(a, b), hash(&keys[0], b""));
            let others = (0..10_000)
                .filter(|i| sketch.may_have(hash(format!("another {i}").as_bytes(), b"")))
                .count();
            assert!(others < 300, "{others} of 10,000 others with {n} keys");
        }
    }
}
