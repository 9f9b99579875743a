//! Weight sets: alternative weights per pool, or one for all (key −1, "compat").

use crate::error::CrushError;
use crate::map::{Bucket, BucketData, ChooseArg, ChooseArgs, CrushMap};
use std::collections::BTreeMap;

/// Key of the set used by pools without their own.
pub const COMPAT: i64 = -1;

impl CrushMap {
    /// Creates a weight set with the current weights in each of `positions` positions (1 for
    /// the compat set and for `flat` ones, the pool's size for `positional`). False if it
    /// exists already.
    pub fn create_weight_set(&mut self, key: i64, positions: usize) -> bool {
        if self.choose_args.contains_key(&key) {
            return false;
        }
        let straw2 = |b: &Bucket| match &b.data {
            BucketData::Straw2 { weights } => Some((
                !b.id as u32,
                ChooseArg { weight_sets: vec![weights.clone(); positions.max(1)], ids: Vec::new() },
            )),
            _ => None,
        };
        let args: ChooseArgs = self.buckets.iter().flatten().filter_map(straw2).collect();
        self.choose_args.insert(key, args);
        true
    }

    /// Removes a weight set. False if there was none.
    pub fn remove_weight_set(&mut self, key: i64) -> bool {
        self.choose_args.remove(&key).is_some()
    }

    /// Number of positions of a weight set.
    pub fn weight_set_positions(&self, key: i64) -> Option<usize> {
        let args = self.choose_args.get(&key)?;
        Some(args.values().map(|a| a.weight_sets.len()).find(|n| *n > 0).unwrap_or(1))
    }

    /// Sets an item's weights (16.16, one per position) in a weight set, ancestors included
    /// (`ceph osd crush weight-set reweight`).
    ///
    /// # Errors
    /// [`CrushError`]: no such set, wrong number of weights, item in no bucket.
    pub fn reweight_in_weight_set(
        &mut self,
        key: i64,
        id: i32,
        weights: &[u32],
    ) -> Result<(), CrushError> {
        let want = self.weight_set_positions(key).ok_or(CrushError::NoWeightSet(key))?;
        if want != weights.len() {
            return Err(CrushError::Positions { want, got: weights.len() });
        }
        if !self.is_linked(id) {
            return Err(CrushError::NoSuchId(id));
        }
        self.transact(|m| {
            m.complete_weight_sets();
            let order = m.bottom_up()?;
            let Some(args) = m.choose_args.get_mut(&key) else { return Ok(()) };
            // Children first: a bucket's new sum is known when its parents' turn comes. The
            // item itself keeps what was asked for, even if it is a bucket.
            let mut sums: BTreeMap<i32, Vec<u32>> = BTreeMap::from([(id, weights.to_vec())]);
            for slot in order {
                let Some(Some(b)) = m.buckets.get(slot) else { continue };
                let Some(arg) =
                    args.get_mut(&(slot as u32)).filter(|a| a.weight_sets.len() == want)
                else {
                    continue;
                };
                let mut changed = false;
                for (pos, new) in
                    b.items.iter().enumerate().filter_map(|(pos, i)| Some((pos, sums.get(i)?)))
                {
                    for (set, weight) in arg.weight_sets.iter_mut().zip(new) {
                        if let Some(w) = set.get_mut(pos) {
                            *w = *weight;
                        }
                    }
                    changed = true;
                }
                if changed && b.id != id {
                    let sum = |set: &Vec<u32>| set.iter().fold(0u32, |sum, w| sum.wrapping_add(*w));
                    sums.insert(b.id, arg.weight_sets.iter().map(sum).collect());
                }
            }
            Ok(())
        })
    }
}
