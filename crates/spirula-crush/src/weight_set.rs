//! Weight sets: alternative weights per pool, or one for all (key −1, "compat").

use crate::error::CrushError;
use crate::map::{BucketData, ChooseArg, ChooseArgs, CrushMap};

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
        let straw2 = |b: &crate::map::Bucket| match &b.data {
            BucketData::Straw2 { weights } => {
                Some((!b.id as u32, ChooseArg { weight_sets: vec![weights.clone(); positions.max(1)], ids: Vec::new() }))
            }
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
    pub fn reweight_in_weight_set(&mut self, key: i64, id: i32, weights: &[u32]) -> Result<(), CrushError> {
        let want = self.weight_set_positions(key).ok_or(CrushError::NoWeightSet(key))?;
        if want != weights.len() {
            return Err(CrushError::Positions { want, got: weights.len() });
        }
        if !self.is_linked(id) {
            return Err(CrushError::NoSuchId(id));
        }
        self.transact(|m| {
            // First give every bucket its set, then change the item in each that holds it.
            m.settle_weight_sets()?;
            let Some(args) = m.choose_args.get_mut(&key) else { return Ok(()) };
            for b in m.buckets.iter().flatten() {
                let Some(arg) = args.get_mut(&(!b.id as u32)) else { continue };
                if arg.weight_sets.len() != want {
                    continue;
                }
                for pos in (0..b.items.len()).filter(|p| b.items[*p] == id) {
                    for (set, weight) in arg.weight_sets.iter_mut().zip(weights) {
                        if let Some(w) = set.get_mut(pos) {
                            *w = *weight;
                        }
                    }
                }
            }
            if id >= 0 { m.settle_weight_sets() } else { m.settle_weight_sets_above(key, id) }
        })
    }

    /// As settling, but a bucket's own weight stays what it was set to in its parents.
    fn settle_weight_sets_above(&mut self, key: i64, bucket: i32) -> Result<(), CrushError> {
        let keep = self.choose_args.get(&key).cloned().unwrap_or_default();
        self.settle_weight_sets()?;
        let holders: Vec<usize> =
            (0..self.buckets.len()).filter(|s| self.buckets[*s].as_ref().is_some_and(|b| b.items.contains(&bucket))).collect();
        let Some(args) = self.choose_args.get_mut(&key) else { return Ok(()) };
        for slot in holders {
            if let Some(old) = keep.get(&(slot as u32)) {
                args.insert(slot as u32, old.clone());
            }
        }
        Ok(())
    }
}
