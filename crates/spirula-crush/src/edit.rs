//! Editing the hierarchy: adding, moving, weighing and removing items.
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
const TYPES: [&str; 12] =
    ["osd", "host", "chassis", "rack", "row", "pdu", "pod", "room", "datacenter", "zone", "region", "root"];

/// Largest weight a command may set, 16.16.
const WEIGHT_MAX: u32 = i32::MAX as u32;

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
        let kind = self.type_id(kind).filter(|k| *k != 0).and_then(|k| u16::try_from(k).ok()).ok_or_else(no_type)?;
        let algorithm = self.tunables.default_alg().ok_or(CrushError::NoAlgorithm)?;
        let id = self.free_bucket_id(&BTreeSet::new());
        self.put_bucket(Bucket::empty(id, algorithm, 0, kind))?;
        self.names.insert(id, name.to_owned());
        Ok(id)
    }

    /// The first bucket id neither in the map nor in `reserved`.
    pub(crate) fn free_bucket_id(&self, reserved: &BTreeSet<i32>) -> i32 {
        (0..).map(|slot: i32| !slot).find(|id| self.bucket(*id).is_none() && !reserved.contains(id)).unwrap_or(i32::MIN)
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
    /// way up to the first existing one (`ceph osd crush add`). The name is given to the item if it has none.
    ///
    /// # Errors
    /// [`CrushError`]: bad names, name taken by another item, weight out of range, location
    /// empty or of wrong types, item already below it, or a loop.
    pub fn insert(&mut self, id: i32, weight: u32, name: &str, location: &Location) -> Result<(), CrushError> {
        self.transact(|m| m.insert_now(id, weight, name, location))
    }

    fn insert_now(&mut self, id: i32, weight: u32, name: &str, location: &Location) -> Result<(), CrushError> {
        for word in std::iter::once(name).chain(location.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()])) {
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
                return Err(CrushError::BadLocation(format!("item {child} is already below '{name}'")));
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
            let positions = args.values().map(|a| a.weight_sets.len()).find(|n| *n > 0).unwrap_or(1);
            args.insert(!id as u32, ChooseArg { weight_sets: vec![vec![0]; positions], ids: Vec::new() });
        }
        Ok(id)
    }

    /// Appends a child to a bucket and to its weight sets.
    fn link(&mut self, parent: i32, child: i32, weight: u32) -> Result<(), CrushError> {
        let straw = self.tunables.straw_calc_version;
        self.bucket_mut(parent).ok_or(CrushError::NoSuchId(parent))?.add_item(child, weight, straw)?;
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
    fn holders(&self, id: i32) -> Vec<i32> {
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
    pub fn update_item(&mut self, id: i32, weight: u32, name: &str, location: &Location) -> Result<bool, CrushError> {
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
                if let (BucketData::Uniform { item_weight }, Some((_, w))) = (&mut x.data, items.first()) {
                    *item_weight = *w;
                }
                for (item, weight) in &items {
                    x.add_item(*item, *weight, straw)?;
                }
                for args in m.choose_args.values_mut() {
                    let Some(arg) = args.get_mut(&(!id as u32)) else { continue };
                    arg.ids.clear();
                    arg.weight_sets.iter_mut().for_each(|s| *s = items.iter().map(|(_, w)| *w).collect());
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
        let takes = self.rules.iter().flatten().flat_map(|r| &r.steps).filter(|s| s.op == step_op::TAKE);
        takes.map(|s| s.arg1).any(|taken| {
            taken == id || self.class_buckets.get(&id).is_some_and(|shadows| shadows.values().any(|s| *s == taken))
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
    pub fn remove_item(&mut self, name: &str, ancestor: Option<&str>, unlink_only: bool) -> Result<(), CrushError> {
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
                    let holders: Vec<i32> = m.holders(id).into_iter().filter(|h| inside.contains(h)).collect();
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

    // ---- weights -------------------------------------------------------------------------

    /// Sets an item's weight wherever it is (`ceph osd crush reweight`).
    ///
    /// # Errors
    /// [`CrushError`]: not in any bucket, weight out of range.
    pub fn set_item_weight(&mut self, id: i32, weight: u32) -> Result<(), CrushError> {
        if weight > WEIGHT_MAX {
            return Err(CrushError::Weight);
        }
        let places = self.holders(id);
        self.transact(
            |m| {
                if m.set_weight_in(id, weight, &places, true)? { Ok(()) } else { Err(CrushError::NoSuchId(id)) }
            },
        )
    }

    /// Sets an item's weight at one place only (`ceph osd crush set` on an existing item,
    /// `weight` in 16.16).
    ///
    /// # Errors
    /// [`CrushError`]: not there, weight out of range.
    pub fn set_item_weight_at(&mut self, id: i32, weight: u32, location: &Location) -> Result<(), CrushError> {
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
                    let c = Self::slot(*item).filter(|c| matches!(self.buckets.get(*c), Some(Some(_))))?;
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
            let Some(positions) = args.values().map(|a| a.weight_sets.len()).find(|n| *n > 0) else { continue };
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
                    let Some(child) = Self::slot(*item).and_then(|s| args.get(&(s as u32))) else { continue };
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

    // ---- checking ------------------------------------------------------------------------

    /// Checks what the decoder does not: no loops, no links to missing buckets, arrays as
    /// long as their buckets, types and rules that make sense. For maps an operator sends.
    ///
    /// # Errors
    /// [`CrushError::Loop`], [`CrushError::Inconsistent`].
    pub fn check(&self) -> Result<(), CrushError> {
        self.bottom_up()?;
        let bad = |what: String| Err(CrushError::Inconsistent(what));
        for b in self.buckets.iter().flatten() {
            if !b.is_well_formed() {
                return bad(format!("bucket {} has arrays of wrong length", b.id));
            }
            if b.kind == 0 || !self.type_names.contains_key(&i32::from(b.kind)) {
                return bad(format!("bucket {} has unknown type {}", b.id, b.kind));
            }
            if !self.names.contains_key(&b.id) {
                return bad(format!("bucket {} has no name", b.id));
            }
            if let Some(item) = b.items.iter().find(|i| **i < 0 && self.bucket(**i).is_none()) {
                return bad(format!("bucket {} holds {item}, which does not exist", b.id));
            }
        }
        for args in self.choose_args.values() {
            for (slot, arg) in args {
                let size = self.buckets.get(*slot as usize).and_then(Option::as_ref).map(|b| b.items.len());
                if arg.weight_sets.iter().any(|s| Some(s.len()) != size) {
                    return bad(format!("weight set of bucket {} has wrong length", !(*slot as i32)));
                }
            }
        }
        for (id, rule) in self.rules.iter().enumerate() {
            let Some(rule) = rule else { continue };
            if usize::from(rule.ruleset) != id {
                return bad(format!("rule {id} has ruleset {}", rule.ruleset));
            }
            let missing = |s: &&crate::map::Step| s.op == step_op::TAKE && s.arg1 < 0 && self.bucket(s.arg1).is_none();
            if let Some(s) = rule.steps.iter().find(missing) {
                return bad(format!("rule {id} takes {}, which does not exist", s.arg1));
            }
        }
        Ok(())
    }
}

/// A weight after a trip through Ceph's 32-bit float, which items make when they move.
fn as_f32(weight: u32) -> Result<u32, CrushError> {
    let w = f64::from(weight as f32);
    if w > f64::from(WEIGHT_MAX) { Err(CrushError::Weight) } else { Ok(w as u32) }
}
