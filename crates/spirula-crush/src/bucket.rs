//! Items and weights of one bucket, for each algorithm.
//!
//! Invariant: the vectors of [`BucketData`] and the items stay equally long, and `weight`
//! is the sum of item weights modulo 2^32 (as Ceph keeps it). Straw lengths are computed by
//! version 0 or 1 of the formula, as the map's tunable says.

use crate::error::CrushError;
use crate::map::{Bucket, BucketData, alg};

/// Most items a tree bucket can hold: its node count is one byte on the wire.
const TREE_ITEMS_MAX: usize = 64;

impl Bucket {
    /// A bucket without items. Unknown algorithms give straw2.
    pub(crate) fn empty(id: i32, algorithm: u8, hash: u8, kind: u16) -> Self {
        let data = match algorithm {
            alg::UNIFORM => BucketData::Uniform { item_weight: 0 },
            alg::LIST => BucketData::List { weights: Vec::new(), sums: Vec::new() },
            alg::TREE => BucketData::Tree { nodes: Vec::new() },
            alg::STRAW => BucketData::Straw { weights: Vec::new(), straws: Vec::new() },
            _ => BucketData::Straw2 { weights: Vec::new() },
        };
        Self { id, kind, hash, weight: 0, items: Vec::new(), data }
    }

    /// Position of the first occurrence of `item`.
    pub fn position(&self, item: i32) -> Option<usize> {
        self.items.iter().position(|i| *i == item)
    }

    /// Appends an item.
    pub(crate) fn add_item(
        &mut self,
        item: i32,
        weight: u32,
        straw_calc: u8,
    ) -> Result<(), CrushError> {
        let total = self.weight.checked_add(weight).ok_or(CrushError::Weight)?;
        match &mut self.data {
            BucketData::Uniform { .. } => {}
            BucketData::List { weights, sums } => {
                sums.push(
                    sums.last()
                        .copied()
                        .unwrap_or(0)
                        .checked_add(weight)
                        .ok_or(CrushError::Weight)?,
                );
                weights.push(weight);
            }
            BucketData::Tree { nodes } => {
                if self.items.len() >= TREE_ITEMS_MAX {
                    return Err(CrushError::Full(self.id));
                }
                let mut leaves = tree_leaves(nodes, self.items.len());
                leaves.push(weight);
                *nodes = tree_nodes(&leaves);
            }
            BucketData::Straw { weights, straws } => {
                weights.push(weight);
                *straws = straw_lengths(weights, straw_calc);
            }
            BucketData::Straw2 { weights } => weights.push(weight),
        }
        self.items.push(item);
        self.weight = total;
        Ok(())
    }

    /// Removes the item at `pos`. A tree bucket keeps the item with weight 0 unless it is
    /// at the end, because its other items must not change position.
    pub(crate) fn remove_at(&mut self, pos: usize, straw_calc: u8) {
        if pos >= self.items.len() {
            return;
        }
        // Ceph clamps instead of wrapping here, unlike everywhere else.
        self.weight = self.weight.saturating_sub(self.item_weight(pos));
        match &mut self.data {
            BucketData::Uniform { .. } => {}
            BucketData::List { weights, sums } => {
                let gone = weights.remove(pos);
                sums.remove(pos);
                for s in sums.iter_mut().skip(pos) {
                    *s = s.wrapping_sub(gone);
                }
            }
            BucketData::Tree { nodes } => {
                let mut leaves = tree_leaves(nodes, self.items.len());
                if let Some(leaf) = leaves.get_mut(pos) {
                    *leaf = 0;
                }
                while leaves.last() == Some(&0) {
                    leaves.pop();
                }
                *nodes = tree_nodes(&leaves);
                self.items.truncate(leaves.len());
                return;
            }
            BucketData::Straw { weights, straws } => {
                weights.remove(pos);
                *straws = straw_lengths(weights, straw_calc);
            }
            BucketData::Straw2 { weights } => {
                weights.remove(pos);
            }
        }
        self.items.remove(pos);
    }

    /// Gives the item at `pos` (in a uniform bucket, every item) a new weight.
    pub(crate) fn set_weight_at(&mut self, pos: usize, weight: u32, straw_calc: u8) {
        let size = self.items.len();
        if pos >= size {
            return;
        }
        let change = weight.wrapping_sub(self.item_weight(pos));
        match &mut self.data {
            BucketData::Uniform { item_weight } => {
                *item_weight = weight;
                self.weight = weight.wrapping_mul(size as u32);
                return;
            }
            BucketData::List { weights, sums } => {
                weights[pos] = weight;
                for s in sums.iter_mut().skip(pos) {
                    *s = s.wrapping_add(change);
                }
            }
            BucketData::Tree { nodes } => {
                let mut leaves = tree_leaves(nodes, size);
                leaves[pos] = weight;
                *nodes = tree_nodes(&leaves);
            }
            BucketData::Straw { weights, straws } => {
                weights[pos] = weight;
                *straws = straw_lengths(weights, straw_calc);
            }
            BucketData::Straw2 { weights } => weights[pos] = weight,
        }
        self.weight = self.weight.wrapping_add(change);
    }

    /// Recomputes the sum from the items' weights, for all algorithms but uniform.
    pub(crate) fn resum(&mut self) {
        self.weight =
            (0..self.items.len()).fold(0u32, |sum, pos| sum.wrapping_add(self.item_weight(pos)));
    }

    /// True if the vectors fit the items; what a decoded map need not satisfy for trees.
    pub(crate) fn is_well_formed(&self) -> bool {
        let n = self.items.len();
        match &self.data {
            BucketData::Uniform { .. } => true,
            BucketData::List { weights, sums } => weights.len() == n && sums.len() == n,
            BucketData::Tree { nodes } => {
                nodes.len() == if n == 0 { 0 } else { 2 * n.next_power_of_two() }
            }
            BucketData::Straw { weights, straws } => weights.len() == n && straws.len() == n,
            BucketData::Straw2 { weights } => weights.len() == n,
        }
    }
}

/// Weights of the `n` leaves of a node array.
fn tree_leaves(nodes: &[u32], n: usize) -> Vec<u32> {
    (0..n).map(|i| nodes.get(2 * i + 1).copied().unwrap_or(0)).collect()
}

/// The node array over leaf weights: leaf `i` is node `2i + 1`, and an inner node with `h`
/// trailing zero bits is the sum of the nodes 2^(h−1) below and above it.
fn tree_nodes(leaves: &[u32]) -> Vec<u32> {
    if leaves.is_empty() {
        return Vec::new();
    }
    let mut nodes = vec![0u32; 2 * leaves.len().next_power_of_two()];
    for (i, w) in leaves.iter().enumerate() {
        nodes[2 * i + 1] = *w;
    }
    let mut half = 1;
    while 2 * half < nodes.len() {
        let mut n = 2 * half;
        while n < nodes.len() {
            nodes[n] = nodes[n - half].wrapping_add(nodes[n + half]);
            n += 4 * half;
        }
        half *= 2;
    }
    nodes
}

/// Straw lengths (16.16) for item weights. Light items first, each next straw is stretched
/// so that the chance to draw the longest approaches the weight. Version 0 is known to be
/// wrong for repeated and zero weights; both are what Ceph computes, rounding included.
fn straw_lengths(weights: &[u32], version: u8) -> Vec<u32> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| weights[*i]);
    let mut straws = vec![0; weights.len()];
    let mut left = weights.len() as i32;
    let (mut straw, mut below, mut last) = (1.0f64, 0.0f64, 0.0f64);
    for (k, i) in order.iter().enumerate() {
        let w = weights[*i];
        if w == 0 {
            if version > 0 {
                left -= 1;
            }
            continue;
        }
        straws[*i] = to_fixed(straw);
        let Some(next) = order.get(k + 1).map(|n| weights[*n]) else { break };
        if version == 0 {
            if next == w {
                continue;
            }
            below += (f64::from(w) - last) * f64::from(left);
            left -= order[k + 1..].iter().take_while(|n| weights[**n] == next).count() as i32;
        } else {
            below += (f64::from(w) - last) * f64::from(left);
            left -= 1;
        }
        // The product is taken in 32 bits, as everybody's maps have it.
        let above = f64::from((left as u32).wrapping_mul(next.wrapping_sub(w)));
        let share = below / (below + above);
        straw *= (1.0 / share).powf(1.0 / f64::from(left));
        last = f64::from(w);
    }
    straws
}

/// 16.16 of a straw, cut to 32 bits; what is out of range for an integer becomes 0.
fn to_fixed(straw: f64) -> u32 {
    let v = straw * 65536.0;
    if v.is_finite() && v.abs() < 9.2e18 { v as i64 as u32 } else { 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail that way")]
mod tests {
    use super::*;

    fn sum(b: &Bucket) -> u32 {
        (0..b.items.len()).map(|p| b.item_weight(p)).sum()
    }

    #[test]
    fn weights_stay_summed_and_shapes_consistent_in_every_algorithm() {
        for algorithm in [alg::UNIFORM, alg::LIST, alg::TREE, alg::STRAW, alg::STRAW2] {
            let mut b = Bucket::empty(-1, algorithm, 0, 1);
            for i in 0..13 {
                b.add_item(i, if algorithm == alg::UNIFORM { 0 } else { 100 * i as u32 }, 1)
                    .unwrap();
                assert!(b.is_well_formed());
            }
            b.set_weight_at(3, 7777, 1);
            assert_eq!(b.weight, sum(&b), "algorithm {algorithm}");
            for pos in [12, 0, 4] {
                b.remove_at(pos, 1);
                assert!(b.is_well_formed());
                assert_eq!(b.weight, sum(&b), "algorithm {algorithm}");
            }
        }
    }

    #[test]
    fn straw_buckets_become_straw2_with_their_weights() {
        let mut b = Bucket::empty(-1, alg::STRAW, 0, 1);
        (0..3).for_each(|i| b.add_item(i, 100 * i as u32, 1).unwrap());
        let list = Bucket::empty(-3, alg::LIST, 0, 1);
        let mut map = crate::CrushMap {
            buckets: vec![Some(b), None, Some(list.clone())],
            ..Default::default()
        };
        assert_eq!(map.straw_to_straw2(), 1);
        assert_eq!(map.straw_to_straw2(), 0);
        assert_eq!(
            map.buckets[0].as_ref().unwrap().data,
            BucketData::Straw2 { weights: vec![0, 100, 200] }
        );
        assert_eq!(map.buckets[2], Some(list));
    }

    #[test]
    fn tree_root_node_is_the_sum_of_all_leaves() {
        for n in 1..=TREE_ITEMS_MAX {
            let leaves: Vec<u32> = (1..=n as u32).collect();
            let nodes = tree_nodes(&leaves);
            assert_eq!(nodes[nodes.len() / 2], leaves.iter().sum::<u32>());
        }
    }
}
