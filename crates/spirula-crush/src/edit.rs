//! Editing the hierarchy: adding, moving and removing items.
//!
//! Every public function either succeeds or leaves the map as it was. A change of weight
//! reaches all ancestors, shadow trees and weight sets before it returns.
//! Results equal those of Ceph 16.2.15's `crushtool` on the same map, except where that
//! damages the map (see [`settle_weight_sets`](CrushMap::settle_weight_sets)).

use crate::error::CrushError;
use crate::lookup::{Location, is_valid_name};
use crate::map::{Bucket, BucketData, ChooseArg, CrushMap, Tunables, step_op};
use std::collections::BTreeSet;

/// Bucket types of a new map, from 0.
const TYPES: [&str; 12] = [
    "osd",
    "host",
    "chassis",
    "rack",
    "row",
    "pdu",
    "pod",
    "room",
    "datacenter",
    "zone",
    "region",
    "root",
];

/// Largest weight a command may set, 16.16.
pub(crate) const WEIGHT_MAX: u32 = i32::MAX as u32;

impl CrushMap {
    /// The map of a new cluster: the usual types, root `default`, optimal tunables and the
    /// rule `replicated_rule` spreading over `failure_domain` (normally `host`).
    ///
    /// # Errors
    /// [`CrushError::NoSuchType`].
    pub fn new_default(failure_domain: &str) -> Result<Self, CrushError> {
        let mut map = Self { tunables: Tunables::optimal(), ..Self::default() };
        map.type_names = (0..).zip(TYPES.iter().map(|t| (*t).to_owned())).collect();
        map.add_bucket("default", "root")?;
        map.create_replicated("replicated_rule", "default", failure_domain, None)?;
        Ok(map)
    }

    /// Runs an edit on a copy and keeps it only if it succeeds.
    pub(crate) fn transact<T>(
        &mut self,
        edit: impl FnOnce(&mut Self) -> Result<T, CrushError>,
    ) -> Result<T, CrushError> {
        let mut next = self.clone();
        let result = edit(&mut next)?;
        next.compute_max_devices();
        *self = next;
        Ok(result)
    }

    // ---- buckets -------------------------------------------------------------------------

    /// Adds an empty bucket that is nowhere yet. Returns its id, the first free one.
    ///
    /// # Errors
    /// [`CrushError`]: bad or taken name, unknown type, no algorithm allowed.
    pub fn add_bucket(&mut self, name: &str, kind: &str) -> Result<i32, CrushError> {
        if !is_valid_name(name) {
            return Err(CrushError::BadName(name.to_owned()));
        }
        if self.item_id(name).is_some() {
            return Err(CrushError::Exists(name.to_owned()));
        }
        let no_type = || CrushError::NoSuchType(kind.to_owned());
        let kind = self
            .type_id(kind)
            .filter(|k| *k != 0)
            .and_then(|k| u16::try_from(k).ok())
            .ok_or_else(no_type)?;
        let algorithm = self.tunables.default_alg().ok_or(CrushError::NoAlgorithm)?;
        let id = self.free_bucket_id(&BTreeSet::new());
        self.put_bucket(Bucket::empty(id, algorithm, 0, kind))?;
        self.names.insert(id, name.to_owned());
        Ok(id)
    }

    /// The first bucket id neither in the map nor in `reserved`.
    pub(crate) fn free_bucket_id(&self, reserved: &BTreeSet<i32>) -> i32 {
        (0..)
            .map(|slot: i32| !slot)
            .find(|id| self.bucket(*id).is_none() && !reserved.contains(id))
            .unwrap_or(i32::MIN)
    }

    /// Stores a bucket under its id. The table grows by doubling, as Ceph's does.
    pub(crate) fn put_bucket(&mut self, bucket: Bucket) -> Result<(), CrushError> {
        let slot = Self::slot(bucket.id).ok_or(CrushError::NoSuchId(bucket.id))?;
        let mut size = self.buckets.len();
        while slot >= size {
            size = if size == 0 { 8 } else { size * 2 };
        }
        self.buckets.resize(size, None);
        if self.buckets[slot].is_some() {
            return Err(CrushError::Exists(format!("bucket {}", bucket.id)));
        }
        self.buckets[slot] = Some(bucket);
        Ok(())
    }

    /// Forgets a bucket, its name, class and weight sets, but not the links to it.
    pub(crate) fn drop_bucket(&mut self, id: i32) {
        let Some(slot) = Self::slot(id) else { return };
        if let Some(b) = self.buckets.get_mut(slot) {
            *b = None;
        }
        self.names.remove(&id);
        self.class_buckets.remove(&id);
        self.device_classes.remove(&id);
        for args in self.choose_args.values_mut() {
            args.remove(&(slot as u32));
        }
    }

    pub(crate) fn bucket_mut(&mut self, id: i32) -> Option<&mut Bucket> {
        self.buckets.get_mut(Self::slot(id)?)?.as_mut()
    }

    /// Makes straw2 buckets of all straw buckets, with the weights that they have. Gives how many
    /// there were.
    pub fn straw_to_straw2(&mut self) -> usize {
        let mut changed = 0;
        for bucket in self.buckets.iter_mut().flatten() {
            if let BucketData::Straw { weights, .. } = &mut bucket.data {
                bucket.data = BucketData::Straw2 { weights: std::mem::take(weights) };
                changed += 1;
            }
        }
        changed
    }

    /// Gives a bucket or device another name.
    ///
    /// # Errors
    /// [`CrushError`]: no such item, name taken or bad, or (`rename-bucket`) not a bucket.
    pub fn rename_bucket(&mut self, from: &str, to: &str) -> Result<(), CrushError> {
        let id = self.item_id(from).ok_or_else(|| CrushError::NoSuchItem(from.to_owned()))?;
        if self.item_id(to).is_some() {
            return Err(CrushError::Exists(to.to_owned()));
        }
        if !is_valid_name(to) {
            return Err(CrushError::BadName(to.to_owned()));
        }
        if id >= 0 {
            return Err(CrushError::NotABucket(from.to_owned()));
        }
        self.transact(|m| {
            m.names.insert(id, to.to_owned());
            // Shadow buckets carry the name of the real one.
            m.rebuild_shadows()
        })
    }

    // ---- placing items -------------------------------------------------------------------

    /// Inserts an item under the lowest level of `location`, creating missing buckets on the
    /// way up to the first existing one (`ceph osd crush add`). The name is given to the item if it
    /// has none.
    ///
    /// # Errors
    /// [`CrushError`]: bad names, name taken by another item, weight out of range, location
    /// empty or of wrong types, item already below it, or a loop.
    pub fn insert(
        &mut self,
        id: i32,
        weight: u32,
        name: &str,
        location: &Location,
    ) -> Result<(), CrushError> {
        self.transact(|m| m.insert_now(id, weight, name, location))
    }

    fn insert_now(
        &mut self,
        id: i32,
        weight: u32,
        name: &str,
        location: &Location,
    ) -> Result<(), CrushError> {
        for word in
            std::iter::once(name).chain(location.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]))
        {
            if !is_valid_name(word) {
                return Err(CrushError::BadName(word.to_owned()));
            }
        }
        if weight > WEIGHT_MAX {
            return Err(CrushError::Weight);
        }
        match self.item_id(name) {
            Some(other) if other != id => return Err(CrushError::Exists(name.to_owned())),
            Some(_) => {}
            None => {
                self.names.insert(id, name.to_owned());
            }
        }
        let levels: Vec<(i32, String)> = self
            .type_names
            .iter()
            .filter(|(k, _)| **k != 0)
            .filter_map(|(k, t)| Some((*k, location.get(t)?.clone())))
            .collect();
        let mut child = id;
        for (kind, name) in levels {
            let Some(parent) = self.item_id(&name) else {
                child = self.new_parent(&name, kind, child)?;
                continue;
            };
            let bucket = self.bucket(parent).ok_or_else(|| CrushError::NotABucket(name.clone()))?;
            if i32::from(bucket.kind) != kind {
                let is = self.type_name(i32::from(bucket.kind)).unwrap_or("?");
                return Err(CrushError::BadLocation(format!("'{name}' is of type {is}")));
            }
            if self.subtree_contains(parent, child) {
                return Err(CrushError::BadLocation(format!(
                    "item {child} is already below '{name}'"
                )));
            }
            if self.subtree_contains(child, parent) {
                return Err(CrushError::Loop(parent));
            }
            self.link(parent, child, 0)?;
            break;
        }
        self.max_devices = self.max_devices.max(id.saturating_add(1));
        let places: Vec<i32> = location.values().filter_map(|n| self.item_id(n)).collect();
        if !self.set_weight_in(id, weight, &places, id >= 0)? {
            return Err(CrushError::BadLocation("names no bucket type of this map".to_owned()));
        }
        self.rebuild_shadows()
    }

    /// Creates a bucket holding just `child`, weight 0.
    fn new_parent(&mut self, name: &str, kind: i32, child: i32) -> Result<i32, CrushError> {
        let kind = u16::try_from(kind).map_err(|_| CrushError::NoSuchType(kind.to_string()))?;
        let algorithm = self.tunables.default_alg().ok_or(CrushError::NoAlgorithm)?;
        let id = self.free_bucket_id(&BTreeSet::new());
        let mut bucket = Bucket::empty(id, algorithm, 0, kind);
        bucket.add_item(child, 0, self.tunables.straw_calc_version)?;
        self.put_bucket(bucket)?;
        self.names.insert(id, name.to_owned());
        for args in self.choose_args.values_mut() {
            let positions =
                args.values().map(|a| a.weight_sets.len()).find(|n| *n > 0).unwrap_or(1);
            args.insert(
                !id as u32,
                ChooseArg { weight_sets: vec![vec![0]; positions], ids: Vec::new() },
            );
        }
        Ok(id)
    }

    /// Appends a child to a bucket and to its weight sets.
    fn link(&mut self, parent: i32, child: i32, weight: u32) -> Result<(), CrushError> {
        let straw = self.tunables.straw_calc_version;
        self.bucket_mut(parent)
            .ok_or(CrushError::NoSuchId(parent))?
            .add_item(child, weight, straw)?;
        for args in self.choose_args.values_mut() {
            let Some(arg) = args.get_mut(&(!parent as u32)) else { continue };
            arg.weight_sets.iter_mut().for_each(|s| s.push(weight));
            if !arg.ids.is_empty() {
                arg.ids.push(child);
            }
        }
        Ok(())
    }

    /// Removes a child from a bucket and from its weight sets, ancestors' weights included.
    fn unlink_from(&mut self, parent: i32, child: i32) -> Result<(), CrushError> {
        let straw = self.tunables.straw_calc_version;
        // A malformed bucket may hold the child more than once.
        while self.set_weight_in(child, 0, &[parent], true)? {
            let Some(bucket) = self.bucket_mut(parent) else { break };
            let Some(pos) = bucket.position(child) else { break };
            bucket.remove_at(pos, straw);
            if matches!(bucket.data, BucketData::Tree { .. }) {
                // The place stays, with weight 0, unless it was the last.
                break;
            }
            for args in self.choose_args.values_mut() {
                let Some(arg) = args.get_mut(&(!parent as u32)) else { continue };
                for set in arg.weight_sets.iter_mut().filter(|set| pos < set.len()) {
                    set.remove(pos);
                }
                if pos < arg.ids.len() {
                    arg.ids.remove(pos);
                }
            }
        }
        Ok(())
    }

    /// Buckets, real and shadow, that hold the item, newest id last.
    pub(crate) fn holders(&self, id: i32) -> Vec<i32> {
        self.buckets.iter().flatten().filter(|b| b.items.contains(&id)).map(|b| b.id).collect()
    }

    /// Adds a device at a location, or moves it there, keeping its weight if it has one
    /// (what an OSD asks for when it starts). True if anything changed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn create_or_move(
        &mut self,
        id: i32,
        weight: u32,
        name: &str,
        location: &Location,
    ) -> Result<bool, CrushError> {
        if !is_valid_name(name) {
            return Err(CrushError::BadName(name.to_owned()));
        }
        if self.weight_at(id, location).is_some() {
            return Ok(false);
        }
        self.transact(|m| {
            let mut weight = weight;
            if m.is_linked(id) {
                weight = as_f32(m.item_weight(id).unwrap_or(weight))?;
                m.unlink_everywhere(id)?;
                m.forget_if_unused(id, true)?;
            }
            m.insert_now(id, weight, name, location)?;
            Ok(true)
        })
    }

    /// Adds an item, or moves it and sets its weight and name (`ceph osd crush set`). True
    /// if anything changed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update_item(
        &mut self,
        id: i32,
        weight: u32,
        name: &str,
        location: &Location,
    ) -> Result<bool, CrushError> {
        if !is_valid_name(name) {
            return Err(CrushError::BadName(name.to_owned()));
        }
        if weight > WEIGHT_MAX {
            return Err(CrushError::Weight);
        }
        let old = self.weight_at(id, location);
        self.transact(|m| {
            let Some(old) = old else {
                if m.names.contains_key(&id) {
                    m.unlink_everywhere(id)?;
                    m.forget_if_unused(id, true)?;
                }
                m.insert_now(id, weight, name, location)?;
                return Ok(true);
            };
            let mut changed = false;
            if old != weight {
                let places: Vec<i32> = location.values().filter_map(|n| m.item_id(n)).collect();
                m.set_weight_in(id, weight, &places, true)?;
                m.rebuild_shadows()?;
                changed = true;
            }
            if m.item_name(id) != Some(name) {
                m.names.insert(id, name.to_owned());
                changed = true;
            }
            Ok(changed)
        })
    }

    /// Moves a device or bucket (`ceph osd crush move`). False if it is there already.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), or [`CrushError::NoSuchItem`].
    pub fn move_item(&mut self, name: &str, location: &Location) -> Result<bool, CrushError> {
        let id = self.item_id(name).ok_or_else(|| CrushError::NoSuchItem(name.to_owned()))?;
        if self.weight_at(id, location).is_some() {
            return Ok(false);
        }
        if id >= 0 {
            return self.create_or_move(id, 0, name, location);
        }
        self.transact(|m| {
            let weight = as_f32(m.bucket(id).ok_or(CrushError::NoSuchId(id))?.weight)?;
            if let Some(parent) = m.parent_of(id).map(|b| b.id) {
                m.unlink_from(parent, id)?;
            }
            m.insert_now(id, weight, name, location)?;
            Ok(true)
        })
    }

    /// Puts a bucket in a second place (`ceph osd crush link`).
    ///
    /// # Errors
    /// As [`insert`](Self::insert), or the item is not a bucket.
    pub fn link_bucket(&mut self, name: &str, location: &Location) -> Result<(), CrushError> {
        let id = self.item_id(name).ok_or_else(|| CrushError::NoSuchItem(name.to_owned()))?;
        let weight = self.bucket(id).ok_or_else(|| CrushError::NotABucket(name.to_owned()))?.weight;
        let weight = as_f32(weight)?;
        self.transact(|m| m.insert_now(id, weight, name, location))
    }

    /// Exchanges the contents and names of two buckets, neither inside the other.
    ///
    /// # Errors
    /// [`CrushError`]: no such item, not a bucket, or one contains the other.
    pub fn swap_buckets(&mut self, a: &str, b: &str) -> Result<(), CrushError> {
        let find = |name: &str| -> Result<i32, CrushError> {
            let id = self.item_id(name).ok_or_else(|| CrushError::NoSuchItem(name.to_owned()))?;
            self.bucket(id).map(|b| b.id).ok_or_else(|| CrushError::NotABucket(name.to_owned()))
        };
        let (a, b) = (find(a)?, find(b)?);
        if self.subtree_contains(a, b) || self.subtree_contains(b, a) {
            return Err(CrushError::Loop(a));
        }
        self.transact(|m| {
            let contents = |m: &Self, id| -> Vec<(i32, u32)> {
                let Some(x) = m.bucket(id) else { return Vec::new() };
                x.items.iter().enumerate().map(|(pos, item)| (*item, x.item_weight(pos))).collect()
            };
            let (mut in_a, in_b) = (contents(m, a), contents(m, b));
            // Ceph passes one side through a sorted map.
            in_a.sort_by_key(|(item, _)| *item);
            let straw = m.tunables.straw_calc_version;
            for (id, items) in [(a, in_b), (b, in_a)] {
                let Some(x) = m.bucket_mut(id) else { continue };
                *x = Bucket::empty(id, x.alg(), x.hash, x.kind);
                if let (BucketData::Uniform { item_weight }, Some((_, w))) =
                    (&mut x.data, items.first())
                {
                    *item_weight = *w;
                }
                for (item, weight) in &items {
                    x.add_item(*item, *weight, straw)?;
                }
                for args in m.choose_args.values_mut() {
                    let Some(arg) = args.get_mut(&(!id as u32)) else { continue };
                    arg.ids.clear();
                    arg.weight_sets
                        .iter_mut()
                        .for_each(|s| *s = items.iter().map(|(_, w)| *w).collect());
                }
            }
            let (name_a, name_b) = (m.names.remove(&a), m.names.remove(&b));
            m.names.extend(name_b.map(|n| (a, n)));
            m.names.extend(name_a.map(|n| (b, n)));
            m.propagate(BTreeSet::from([a, b]))?;
            m.rebuild_shadows()
        })
    }

    // ---- removing ------------------------------------------------------------------------

    /// True if a rule or the class table needs the bucket to exist.
    pub fn is_bucket_in_use(&self, id: i32) -> bool {
        if self.class_buckets.values().flat_map(|m| m.values()).any(|s| *s == id) {
            return true;
        }
        let takes =
            self.rules.iter().flatten().flat_map(|r| &r.steps).filter(|s| s.op == step_op::TAKE);
        takes.map(|s| s.arg1).any(|taken| {
            taken == id
                || self
                    .class_buckets
                    .get(&id)
                    .is_some_and(|shadows| shadows.values().any(|s| *s == taken))
        })
    }

    fn unlink_everywhere(&mut self, id: i32) -> Result<bool, CrushError> {
        let holders = self.holders(id);
        for parent in &holders {
            self.unlink_from(*parent, id)?;
        }
        Ok(!holders.is_empty())
    }

    /// After the last link is gone: forgets a device's name, and unless only unlinking, a
    /// bucket altogether and a device's class.
    fn forget_if_unused(&mut self, id: i32, unlink_only: bool) -> Result<bool, CrushError> {
        if self.is_linked(id) || (id < 0 && self.is_bucket_in_use(id)) {
            return Ok(false);
        }
        if id < 0 && !unlink_only {
            self.drop_bucket(id);
        }
        if id >= 0 {
            self.names.remove(&id);
            if !unlink_only {
                self.device_classes.remove(&id);
            }
        }
        self.rebuild_shadows()?;
        Ok(true)
    }

    /// Removes an item wherever it is, or only below `ancestor` (`ceph osd crush rm`,
    /// `unlink`). With `unlink_only` a bucket stays in the map as a root.
    ///
    /// # Errors
    /// [`CrushError`]: no such item, bucket not empty or in use.
    pub fn remove_item(
        &mut self,
        name: &str,
        ancestor: Option<&str>,
        unlink_only: bool,
    ) -> Result<(), CrushError> {
        let find = |n: &str| self.item_id(n).ok_or_else(|| CrushError::NoSuchItem(n.to_owned()));
        let id = find(name)?;
        let ancestor = ancestor.map(find).transpose()?;
        if id < 0 && !unlink_only {
            let b = self.bucket(id).ok_or(CrushError::NoSuchId(id))?;
            if !b.items.is_empty() {
                return Err(CrushError::NotEmpty(id));
            }
            if self.is_bucket_in_use(id) {
                return Err(CrushError::InUse(id));
            }
        }
        self.transact(|m| {
            let removed = match ancestor {
                None => m.unlink_everywhere(id)?,
                Some(top) => {
                    let inside: BTreeSet<i32> = m.subtree(top).into_iter().collect();
                    let holders: Vec<i32> =
                        m.holders(id).into_iter().filter(|h| inside.contains(h)).collect();
                    for parent in &holders {
                        m.unlink_from(*parent, id)?;
                    }
                    if holders.is_empty() {
                        return Err(CrushError::NoSuchId(id));
                    }
                    true
                }
            };
            if m.forget_if_unused(id, unlink_only)? {
                return Ok(());
            }
            if !removed {
                return Err(CrushError::NoSuchId(id));
            }
            m.rebuild_shadows()
        })
    }
}

/// A weight after a trip through Ceph's 32-bit float, which items make when they move.
fn as_f32(weight: u32) -> Result<u32, CrushError> {
    let w = f64::from(weight as f32);
    if w > f64::from(WEIGHT_MAX) { Err(CrushError::Weight) } else { Ok(w as u32) }
}
