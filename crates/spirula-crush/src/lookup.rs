//! Questions about a map: names, places, weights.
//!
//! Names containing `~` belong to shadow trees (one device class each) and are skipped where
//! a question is about real places. Walks are bounded by the number of buckets, so a map
//! with a loop gives an odd answer, never an endless one.

use crate::map::{Bucket, CrushMap, step_op};
use std::collections::{BTreeMap, BTreeSet};

/// A place: bucket type name → bucket name, such as `root=default host=a`.
pub type Location = BTreeMap<String, String>;

/// Longest of these names, bytes. Each is in every OSD map.
pub(crate) const NAME_MAX: usize = 250;

/// True for names users may give to items, types and classes.
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Parses `type=name` words. `None` if one is not of that form.
pub fn parse_location<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Location> {
    words
        .into_iter()
        .map(|w| {
            w.split_once('=')
                .filter(|(_, v)| !v.is_empty())
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
        })
        .collect()
}

/// Weight in 16.16 of a decimal weight as users give it; `None` if negative, not a number
/// or above 32767.99.
pub fn weight_from_f64(weight: f64) -> Option<u32> {
    let w = f64::from(weight as f32 * 65536.0);
    (w >= 0.0 && w <= f64::from(i32::MAX)).then_some(w as u32)
}

/// Decimal weight of a 16.16 weight.
pub fn weight_to_f64(weight: u32) -> f64 {
    f64::from(weight) / 65536.0
}

impl CrushMap {
    /// Id of a device or bucket by name.
    pub fn item_id(&self, name: &str) -> Option<i32> {
        self.names.iter().rev().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    /// Name of a device or bucket.
    pub fn item_name(&self, id: i32) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Bucket by name.
    pub fn bucket_by_name(&self, name: &str) -> Option<&Bucket> {
        self.bucket(self.item_id(name)?)
    }

    /// Number of a bucket type.
    pub fn type_id(&self, name: &str) -> Option<i32> {
        self.type_names.iter().rev().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    /// Name of a bucket type.
    pub fn type_name(&self, kind: i32) -> Option<&str> {
        self.type_names.get(&kind).map(String::as_str)
    }

    /// Type of an item: 0 for devices, `None` for buckets that do not exist.
    pub fn item_type(&self, id: i32) -> Option<i32> {
        if id >= 0 { Some(0) } else { self.bucket(id).map(|b| i32::from(b.kind)) }
    }

    /// Rule id by name.
    pub fn rule_of_name(&self, name: &str) -> Option<u32> {
        self.rule_names
            .iter()
            .rev()
            .find(|(_, n)| *n == name)
            .and_then(|(id, _)| u32::try_from(*id).ok())
    }

    /// Name of a rule.
    pub fn rule_name(&self, id: u32) -> Option<&str> {
        self.rule_names.get(&i32::try_from(id).ok()?).map(String::as_str)
    }

    /// Class id by name.
    pub fn class_id(&self, name: &str) -> Option<i32> {
        self.class_names.iter().rev().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    /// Class name of a device (or of a shadow bucket).
    pub fn class_of(&self, id: i32) -> Option<&str> {
        self.class_names.get(self.device_classes.get(&id)?).map(String::as_str)
    }

    /// Devices of a class, ascending.
    pub fn devices_of_class(&self, name: &str) -> Vec<i32> {
        let Some(class) = self.class_id(name) else { return Vec::new() };
        self.device_classes
            .iter()
            .filter(|(id, c)| **id >= 0 && **c == class)
            .map(|(id, _)| *id)
            .collect()
    }

    /// True for buckets of shadow trees.
    pub fn is_shadow(&self, id: i32) -> bool {
        self.item_name(id).is_some_and(|n| !is_valid_name(n))
    }

    /// The shadow bucket of a bucket for a class.
    pub fn shadow_of(&self, bucket: i32, class: &str) -> Option<i32> {
        self.class_buckets.get(&bucket)?.get(&self.class_id(class)?).copied()
    }

    /// True if some bucket holds the item.
    pub fn is_linked(&self, id: i32) -> bool {
        self.buckets.iter().flatten().any(|b| b.items.contains(&id))
    }

    /// Ids of all buckets without parent, ascending (newest first).
    pub fn all_roots(&self) -> Vec<i32> {
        let children: BTreeSet<i32> =
            self.buckets.iter().flatten().flat_map(|b| b.items.iter().copied()).collect();
        let mut roots: Vec<i32> = self
            .buckets
            .iter()
            .flatten()
            .map(|b| b.id)
            .filter(|id| !children.contains(id))
            .collect();
        roots.sort_unstable();
        roots
    }

    /// Ids of real (not shadow) buckets without parent, ascending.
    pub fn roots(&self) -> Vec<i32> {
        let mut roots = self.all_roots();
        roots.retain(|id| !self.is_shadow(*id));
        roots
    }

    /// The real bucket holding the item; the one with the greatest id if there are several.
    pub fn parent_of(&self, id: i32) -> Option<&Bucket> {
        self.buckets.iter().flatten().find(|b| b.items.contains(&id) && !self.is_shadow(b.id))
    }

    /// Nearest real ancestor of a type.
    pub fn ancestor_of_type(&self, id: i32, kind: i32) -> Option<i32> {
        let mut at = id;
        for _ in 0..self.buckets.len() {
            let b = self.parent_of(at)?;
            if i32::from(b.kind) == kind {
                return Some(b.id);
            }
            at = b.id;
        }
        None
    }

    /// Where an item is: (type, name) from its parent up to the root.
    pub fn full_location_ordered(&self, id: i32) -> Vec<(String, String)> {
        let mut path = Vec::new();
        let mut at = id;
        while let Some(b) = self.parent_of(at) {
            let kind = self.type_name(i32::from(b.kind)).unwrap_or_default();
            path.push((kind.to_owned(), self.item_name(b.id).unwrap_or_default().to_owned()));
            if path.len() > self.buckets.len() {
                break;
            }
            at = b.id;
        }
        path
    }

    /// Where an item is, as a [`Location`].
    pub fn full_location(&self, id: i32) -> Location {
        self.full_location_ordered(id).into_iter().collect()
    }

    /// Items directly in a bucket; nothing for devices.
    pub fn children(&self, id: i32) -> &[i32] {
        self.bucket(id).map_or(&[], |b| &b.items)
    }

    /// The item itself and everything below it, each once, in depth-first order.
    pub fn subtree(&self, id: i32) -> Vec<i32> {
        let mut seen = BTreeSet::new();
        let mut order = Vec::new();
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if seen.insert(id) {
                order.push(id);
                stack.extend(self.children(id).iter().rev());
            }
        }
        order
    }

    /// True if `item` is `root` or below it.
    pub fn subtree_contains(&self, root: i32, item: i32) -> bool {
        root == item || self.subtree(root).contains(&item)
    }

    /// Devices below an item (or the item itself), ascending.
    pub fn osds_under(&self, id: i32) -> Vec<i32> {
        let mut v: Vec<i32> = self.subtree(id).into_iter().filter(|i| *i >= 0).collect();
        v.sort_unstable();
        v
    }

    /// Buckets of a type at or below an item (devices for type 0), in depth-first order.
    pub fn children_of_type(&self, id: i32, kind: i32) -> Vec<i32> {
        self.subtree(id).into_iter().filter(|i| self.item_type(*i) == Some(kind)).collect()
    }

    /// Weight of an item, 16.16: a bucket's sum, or a device's weight in the first bucket
    /// that holds it.
    pub fn item_weight(&self, id: i32) -> Option<u32> {
        if id < 0 {
            return self.bucket(id).map(|b| b.weight);
        }
        self.buckets.iter().flatten().find_map(|b| Some(b.item_weight(b.position(id)?)))
    }

    /// If the item is in the bucket that the location's lowest level names: its weight there.
    pub fn weight_at(&self, id: i32, location: &Location) -> Option<u32> {
        let name = self
            .type_names
            .iter()
            .filter(|(k, _)| **k != 0)
            .find_map(|(_, kind)| location.get(kind))?;
        let b = self.bucket_by_name(name)?;
        Some(b.item_weight(b.position(id)?))
    }

    /// Ids that rules start from.
    pub fn takes(&self, rule: u32) -> BTreeSet<i32> {
        let steps = self.rule(rule).map(|r| r.steps.as_slice()).unwrap_or_default();
        steps.iter().filter(|s| s.op == step_op::TAKE).map(|s| s.arg1).collect()
    }

    /// Devices a rule can choose, with their share of its weight (the shares of each `take`
    /// sum to 1).
    pub fn rule_weights(&self, rule: u32) -> BTreeMap<i32, f64> {
        let mut total = BTreeMap::new();
        for root in self.takes(rule) {
            let mut mine = BTreeMap::new();
            if root >= 0 {
                mine.insert(root, 1.0);
            }
            for b in self.subtree(root).into_iter().filter_map(|id| self.bucket(id)) {
                for (pos, item) in b.items.iter().enumerate().filter(|(_, i)| **i >= 0) {
                    mine.insert(*item, f64::from(b.item_weight(pos)));
                }
            }
            let sum: f64 = mine.values().sum();
            if sum > 0.0 {
                for (id, w) in mine {
                    *total.entry(id).or_insert(0.0) += w / sum;
                }
            }
        }
        total
    }
}
