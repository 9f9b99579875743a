//! Weights: setting them, and carrying a change to everything that adds it up.
//!
//! A change in a bucket reaches all ancestors, shadow trees included, and the weight sets,
//! children before parents; a map with a loop is refused.

use crate::edit::WEIGHT_MAX;
use crate::error::CrushError;
use crate::lookup::Location;
use crate::map::{BucketData, CrushMap};
use std::collections::BTreeSet;

impl CrushMap {
    /// Sets an item's weight wherever it is (`ceph osd crush reweight`).
    ///
    /// # Errors
    /// [`CrushError`]: not in any bucket, weight out of range.
    pub fn set_item_weight(&mut self, id: i32, weight: u32) -> Result<(), CrushError> {
        if weight > WEIGHT_MAX {
            return Err(CrushError::Weight);
        }
        let places = self.holders(id);
        self.transact(|m| {
            if m.set_weight_in(id, weight, &places, true)? {
                Ok(())
            } else {
                Err(CrushError::NoSuchId(id))
            }
        })
    }

    /// Sets an item's weight at one place only (`ceph osd crush set` on an existing item,
    /// `weight` in 16.16).
    ///
    /// # Errors
    /// [`CrushError`]: not there, weight out of range.
    pub fn set_item_weight_at(
        &mut self,
        id: i32,
        weight: u32,
        location: &Location,
    ) -> Result<(), CrushError> {
        if weight > WEIGHT_MAX {
            return Err(CrushError::Weight);
        }
        let places: Vec<i32> = location.values().filter_map(|n| self.item_id(n)).collect();
        self.transact(|m| {
            if !m.set_weight_in(id, weight, &places, true)? {
                return Err(CrushError::NoSuchId(id));
            }
            m.rebuild_shadows()
        })
    }

    /// Gives every device below a bucket the same weight (`reweight-subtree`). Returns how
    /// many places changed.
    ///
    /// # Errors
    /// [`CrushError`]: not a bucket, weight out of range.
    pub fn set_subtree_weight(&mut self, id: i32, weight: u32) -> Result<usize, CrushError> {
        if weight > WEIGHT_MAX {
            return Err(CrushError::Weight);
        }
        if self.bucket(id).is_none() {
            return Err(CrushError::NoSuchId(id));
        }
        self.transact(|m| {
            let straw = m.tunables.straw_calc_version;
            let buckets: BTreeSet<i32> = m.subtree(id).into_iter().filter(|i| *i < 0).collect();
            let mut changed = 0;
            for id in &buckets {
                let Some(b) = m.bucket_mut(*id) else { continue };
                let devices: Vec<usize> = (0..b.items.len()).filter(|p| b.items[*p] >= 0).collect();
                for pos in &devices {
                    b.set_weight_at(*pos, weight, straw);
                }
                m.set_in_weight_sets(*id, &devices, weight);
                changed += devices.len();
            }
            m.propagate(buckets)?;
            m.rebuild_shadows()?;
            Ok(changed)
        })
    }

    /// Recomputes every bucket's weight from the devices up (`reweight-all`).
    ///
    /// # Errors
    /// [`CrushError::Loop`].
    pub fn reweight_all(&mut self) -> Result<(), CrushError> {
        self.transact(|m| {
            let straw = m.tunables.straw_calc_version;
            for slot in m.bottom_up()? {
                let Some(mut b) = m.buckets.get_mut(slot).and_then(Option::take) else { continue };
                let (mut sum, mut n) = (0u32, 0u32);
                for pos in 0..b.items.len() {
                    let Some(child) = m.bucket(b.items[pos]) else { continue };
                    (sum, n) = (sum.wrapping_add(child.weight), n + 1);
                    if !matches!(b.data, BucketData::Uniform { .. }) {
                        b.set_weight_at(pos, child.weight, straw);
                    }
                }
                if let BucketData::Uniform { item_weight } = &mut b.data {
                    // Mostly buckets inside: their average.
                    if n > b.items.len() as u32 - n {
                        *item_weight = sum / n;
                    }
                }
                b.resum();
                m.buckets[slot] = Some(b);
            }
            m.settle_weight_sets()?;
            m.rebuild_shadows()
        })
    }

    /// Sets the item's weight in those of the given buckets that hold it, and whatever
    /// follows from that. False if none does.
    pub(crate) fn set_weight_in(
        &mut self,
        id: i32,
        weight: u32,
        places: &[i32],
        weight_sets: bool,
    ) -> Result<bool, CrushError> {
        let straw = self.tunables.straw_calc_version;
        let mut dirty = BTreeSet::new();
        for place in places {
            let Some(b) = self.bucket_mut(*place) else { continue };
            let Some(pos) = b.position(id) else { continue };
            b.set_weight_at(pos, weight, straw);
            dirty.insert(*place);
            if weight_sets {
                self.set_in_weight_sets(*place, &[pos], weight);
            }
        }
        let found = !dirty.is_empty();
        if found {
            self.propagate(dirty)?;
        }
        Ok(found)
    }

    /// Sets the given positions of a bucket to a weight in every weight set it has.
    fn set_in_weight_sets(&mut self, bucket: i32, positions: &[usize], weight: u32) {
        for args in self.choose_args.values_mut() {
            let Some(arg) = args.get_mut(&(!bucket as u32)) else { continue };
            for set in &mut arg.weight_sets {
                for pos in positions {
                    if let Some(w) = set.get_mut(*pos) {
                        *w = weight;
                    }
                }
            }
        }
    }

    /// Bucket slots, children before parents.
    pub(crate) fn bottom_up(&self) -> Result<Vec<usize>, CrushError> {
        let mut order = Vec::with_capacity(self.buckets.len());
        // 0 new, 1 on the path, 2 done.
        let mut state = vec![0u8; self.buckets.len()];
        for start in 0..self.buckets.len() {
            let mut stack = vec![(start, 0usize)];
            while let Some((slot, next)) = stack.pop() {
                let Some(Some(b)) = self.buckets.get(slot) else { continue };
                if next == 0 {
                    if state[slot] == 2 {
                        continue;
                    }
                    state[slot] = 1;
                }
                let child = b.items.iter().enumerate().skip(next).find_map(|(i, item)| {
                    let c = Self::slot(*item)
                        .filter(|c| matches!(self.buckets.get(*c), Some(Some(_))))?;
                    (state[c] != 2).then_some((i, c))
                });
                match child {
                    Some((_, c)) if state[c] == 1 => return Err(CrushError::Loop(b.id)),
                    Some((i, c)) => {
                        stack.push((slot, i + 1));
                        stack.push((c, 0));
                    }
                    None => {
                        state[slot] = 2;
                        order.push(slot);
                    }
                }
            }
        }
        Ok(order)
    }

    /// Carries changed sums up to all ancestors, then settles the weight sets.
    pub(crate) fn propagate(&mut self, mut dirty: BTreeSet<i32>) -> Result<(), CrushError> {
        let straw = self.tunables.straw_calc_version;
        for slot in self.bottom_up()? {
            let Some(b) = self.buckets.get(slot).and_then(Option::as_ref) else { continue };
            let changes: Vec<(usize, u32)> = b
                .items
                .iter()
                .enumerate()
                .filter(|(_, item)| dirty.contains(item))
                .filter_map(|(pos, item)| Some((pos, self.bucket(*item)?.weight)))
                .collect();
            if changes.is_empty() {
                continue;
            }
            let id = b.id;
            if let Some(b) = self.bucket_mut(id) {
                for (pos, weight) in changes {
                    b.set_weight_at(pos, weight, straw);
                }
            }
            dirty.insert(id);
        }
        self.complete_weight_sets();
        self.settle_weight_sets()
    }

    /// Gives every straw2 bucket a weight set where others have one: its own weights to
    /// begin with.
    pub(crate) fn complete_weight_sets(&mut self) {
        for args in self.choose_args.values_mut() {
            let Some(positions) = args.values().map(|a| a.weight_sets.len()).find(|n| *n > 0)
            else {
                continue;
            };
            for b in self.buckets.iter().flatten() {
                let BucketData::Straw2 { weights } = &b.data else { continue };
                let arg = args.entry(!b.id as u32).or_default();
                if arg.weight_sets.is_empty() {
                    arg.weight_sets = vec![weights.clone(); positions];
                }
            }
        }
    }

    /// Makes weight sets add up: a bucket's weight in its parent's set is the sum of its own.
    ///
    /// Ceph 16 loses all but the last position of the sums in shadow trees when it rebuilds
    /// them; this keeps every position.
    pub(crate) fn settle_weight_sets(&mut self) -> Result<(), CrushError> {
        if self.choose_args.values().all(|a| a.values().all(|x| x.weight_sets.is_empty())) {
            return Ok(());
        }
        let order = self.bottom_up()?;
        for args in self.choose_args.values_mut() {
            for slot in &order {
                let Some(Some(b)) = self.buckets.get(*slot) else { continue };
                for (pos, item) in b.items.iter().enumerate() {
                    let Some(child) = Self::slot(*item).and_then(|s| args.get(&(s as u32))) else {
                        continue;
                    };
                    let sum = |s: &Vec<u32>| s.iter().fold(0u32, |sum, w| sum.wrapping_add(*w));
                    let sums: Vec<u32> = child.weight_sets.iter().map(sum).collect();
                    let Some(mine) = args.get_mut(&(*slot as u32)) else { continue };
                    if mine.weight_sets.len() != sums.len() {
                        continue;
                    }
                    for (set, sum) in mine.weight_sets.iter_mut().zip(sums) {
                        if let Some(w) = set.get_mut(pos) {
                            *w = sum;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
