//! Device classes and their shadow trees.
//!
//! For each class every real bucket has a shadow `name~class` that holds only devices of
//! the class, so that a rule can take `root~ssd`. Shadows are rebuilt after each change;
//! a shadow keeps its id, because the id enters the hash and a new one would move data.

use crate::error::CrushError;
use crate::lookup::is_valid_name;
use crate::map::{Bucket, ChooseArg, CrushMap, step_op};
use std::collections::{BTreeMap, BTreeSet};

type ClassBuckets = BTreeMap<i32, BTreeMap<i32, i32>>;

/// What stays the same while shadow trees are built.
struct Rebuild {
    old: ClassBuckets,
    /// Ids that shadows had before; not for others.
    reserved: BTreeSet<i32>,
    made: BTreeMap<(i32, i32), i32>,
}

impl CrushMap {
    /// Class names in use or created, by id.
    pub fn classes(&self) -> Vec<&str> {
        self.class_names.values().map(String::as_str).collect()
    }

    /// Id of a class, creating it if needed (`ceph osd crush class create`).
    ///
    /// # Errors
    /// [`CrushError::BadName`].
    pub fn create_class(&mut self, name: &str) -> Result<i32, CrushError> {
        if !is_valid_name(name) {
            return Err(CrushError::BadName(name.to_owned()));
        }
        if let Some(id) = self.class_id(name) {
            return Ok(id);
        }
        let next = self.class_names.keys().next_back().map_or(Some(0), |id| id.checked_add(1));
        let id = next.or_else(|| (0..i32::MAX).find(|i| !self.class_names.contains_key(i)));
        let id = id.ok_or_else(|| CrushError::Inconsistent("no free class id".to_owned()))?;
        self.class_names.insert(id, name.to_owned());
        Ok(id)
    }

    /// Binds a device to a class, be it in the tree or not yet: it has the class when it comes
    /// there. False if it was already.
    ///
    /// # Errors
    /// [`CrushError::ClassBound`] to another class, [`CrushError::NoSuchId`] for a bucket,
    /// [`CrushError::BadName`].
    pub fn set_device_class(&mut self, osd: i32, class: &str) -> Result<bool, CrushError> {
        if osd < 0 {
            return Err(CrushError::NoSuchId(osd));
        }
        match self.class_of(osd) {
            Some(c) if c == class => return Ok(false),
            Some(c) => return Err(CrushError::ClassBound { osd, class: c.to_owned() }),
            None => {}
        }
        self.transact(|m| {
            let id = m.create_class(class)?;
            m.device_classes.insert(osd, id);
            m.rebuild_shadows()?;
            Ok(true)
        })
    }

    /// Takes the class from a device, be it in the tree or not. False if it had none.
    ///
    /// # Errors
    /// [`CrushError::NoSuchId`] for a bucket.
    pub fn remove_device_class(&mut self, osd: i32) -> Result<bool, CrushError> {
        if osd < 0 {
            return Err(CrushError::NoSuchId(osd));
        }
        self.transact(|m| {
            let had = m.device_classes.remove(&osd).is_some();
            if had {
                m.rebuild_shadows()?;
            }
            Ok(had)
        })
    }

    /// Renames a class and its shadow buckets.
    ///
    /// # Errors
    /// [`CrushError`]: no such class, name taken or bad.
    pub fn rename_class(&mut self, from: &str, to: &str) -> Result<(), CrushError> {
        let id = self.class_id(from).ok_or_else(|| CrushError::NoSuchClass(from.to_owned()))?;
        if self.class_id(to).is_some() {
            return Err(CrushError::Exists(to.to_owned()));
        }
        if !is_valid_name(to) {
            return Err(CrushError::BadName(to.to_owned()));
        }
        self.class_names.insert(id, to.to_owned());
        let shadows: Vec<i32> = self
            .device_classes
            .iter()
            .filter(|(i, c)| **i < 0 && **c == id)
            .map(|(i, _)| *i)
            .collect();
        for shadow in shadows {
            if let Some(name) = self.names.get_mut(&shadow) {
                let base = name.split_once('~').map_or(name.as_str(), |(b, _)| b);
                *name = format!("{base}~{to}");
            }
        }
        Ok(())
    }

    /// True if a rule takes a shadow bucket of the class.
    pub fn is_class_in_use(&self, class: &str) -> bool {
        let Some(id) = self.class_id(class) else { return false };
        let shadows: BTreeSet<i32> =
            self.class_buckets.values().filter_map(|m| m.get(&id).copied()).collect();
        let mut steps = self.rules.iter().flatten().flat_map(|r| &r.steps);
        steps.any(|s| s.op == step_op::TAKE && shadows.contains(&s.arg1))
    }

    /// Takes the class from all its devices and forgets it (`ceph osd crush class rm`).
    ///
    /// # Errors
    /// [`CrushError::NoSuchClass`], [`CrushError::ClassInUse`].
    pub fn remove_class(&mut self, class: &str) -> Result<(), CrushError> {
        let id = self.class_id(class).ok_or_else(|| CrushError::NoSuchClass(class.to_owned()))?;
        if self.is_class_in_use(class) {
            return Err(CrushError::ClassInUse(class.to_owned()));
        }
        self.transact(|m| {
            m.device_classes.retain(|item, c| *item < 0 || *c != id);
            m.rebuild_shadows()?;
            m.class_names.remove(&id);
            Ok(())
        })
    }

    /// Rebuilds all shadow trees from the real ones. Classes that neither a device nor a
    /// rule uses disappear. Normally changes nothing: every edit does it already.
    ///
    /// # Errors
    /// [`CrushError`] if the map is inconsistent; it may then be half rebuilt.
    pub(crate) fn rebuild_shadows(&mut self) -> Result<(), CrushError> {
        if self.class_names.is_empty() && self.class_buckets.is_empty() {
            return Ok(());
        }
        let live: BTreeSet<i32> =
            self.device_classes.iter().filter(|(id, _)| **id >= 0).map(|(_, c)| *c).collect();
        let dead: Vec<i32> = self
            .class_names
            .iter()
            .filter(|(id, name)| !live.contains(id) && !self.is_class_in_use(name))
            .map(|(id, _)| *id)
            .collect();
        for id in dead {
            self.class_names.remove(&id);
        }
        let old = std::mem::take(&mut self.class_buckets);
        for root in self.all_roots().into_iter().filter(|r| self.is_shadow(*r)).collect::<Vec<_>>()
        {
            for id in self.subtree(root).into_iter().filter(|i| *i < 0) {
                self.drop_bucket(id);
            }
        }
        // Loops would make the copying endless.
        self.bottom_up()?;
        let reserved = old.values().flat_map(|m| m.values().copied()).collect();
        let mut work = Rebuild { old, reserved, made: BTreeMap::new() };
        let classes: Vec<(i32, String)> =
            self.class_names.iter().map(|(id, n)| (*id, n.clone())).collect();
        for root in self.roots() {
            for (class, name) in &classes {
                self.clone_for_class(&mut work, root, *class, name)?;
            }
        }
        self.settle_weight_sets()
    }

    /// Copies the tree under `original` with only the devices of `class`. Returns the copy's id.
    fn clone_for_class(
        &mut self,
        work: &mut Rebuild,
        original: i32,
        class: i32,
        class_name: &str,
    ) -> Result<i32, CrushError> {
        if let Some(id) = work.made.get(&(original, class)) {
            return Ok(*id);
        }
        let base = self.names.get(&original).ok_or(CrushError::NoSuchId(original))?;
        let name = format!("{base}~{class_name}");
        let from = self.bucket(original).ok_or(CrushError::NoSuchId(original))?.clone();
        let straw = self.tunables.straw_calc_version;
        let mut copy = Bucket::empty(0, from.alg(), from.hash, from.kind);
        let mut kept = Vec::new();
        for (pos, item) in from.items.iter().enumerate() {
            let (item, weight) = if *item >= 0 {
                if self.device_classes.get(item) != Some(&class) {
                    continue;
                }
                (*item, from.item_weight(pos))
            } else {
                let child = self.clone_for_class(work, *item, class, class_name)?;
                (child, self.bucket(child).map_or(0, |b| b.weight))
            };
            copy.add_item(item, weight, straw)?;
            kept.push((pos, if item < 0 { Some(weight) } else { None }));
        }
        let id = match work.old.get(&original).and_then(|m| m.get(&class)) {
            Some(id) => *id,
            None => self.free_bucket_id(&work.reserved),
        };
        copy.id = id;
        self.put_bucket(copy)?;
        self.device_classes.insert(id, class);
        self.names.insert(id, name);
        self.class_buckets.entry(original).or_default().insert(class, id);
        work.made.insert((original, class), id);
        for args in self.choose_args.values_mut() {
            let Some(from) = args.get(&(!original as u32)) else { continue };
            // A shadow child counts with what it holds; settling corrects this if it has a set.
            let weight = |set: &Vec<u32>, pos: usize| set.get(pos).copied().unwrap_or(0);
            let pick = |set: &Vec<u32>| {
                kept.iter().map(|(pos, w)| w.unwrap_or_else(|| weight(set, *pos))).collect()
            };
            let weight_sets: Vec<Vec<u32>> = from.weight_sets.iter().map(pick).collect();
            args.insert(!id as u32, ChooseArg { weight_sets, ids: Vec::new() });
        }
        Ok(id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail that way")]
mod tests {
    use super::*;

    /// Tools set the class of an OSD before it is placed, so that no data come to it by the wrong
    /// one.
    #[test]
    fn a_device_that_is_not_in_the_tree_keeps_its_class_until_it_comes_there() {
        let mut m = CrushMap::new_default("host").unwrap();
        let at = |host: &str| {
            [("root", "default"), ("host", host)].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        };
        m.insert(1, 0x10000, "osd.1", &at("h1")).unwrap();
        m.set_device_class(1, "ssd").unwrap();
        assert_eq!(m.set_device_class(0, "ssd"), Ok(true));
        assert_eq!(m.set_device_class(0, "ssd"), Ok(false));
        assert_eq!(
            m.set_device_class(0, "hdd"),
            Err(CrushError::ClassBound { osd: 0, class: "ssd".into() })
        );
        assert_eq!((m.class_of(0), m.classes()), (Some("ssd"), vec!["ssd"]));
        m.check().unwrap();
        assert_eq!(m.remove_device_class(0), Ok(true));
        assert_eq!((m.remove_device_class(0), m.class_of(0)), (Ok(false), None));
        m.set_device_class(0, "ssd").unwrap();
        let bytes = spirula_encoding::to_vec(&m);
        assert_eq!(spirula_encoding::from_slice::<CrushMap>(&bytes).unwrap(), m);
        m.insert(0, 0x10000, "osd.0", &at("h0")).unwrap();
        let shadow = m.item_id("default~ssd").unwrap();
        assert_eq!((m.class_of(0), m.osds_under(shadow)), (Some("ssd"), vec![0, 1]));
        assert!(m.set_device_class(-1, "ssd").is_err() && m.remove_device_class(-1).is_err());
    }
}
