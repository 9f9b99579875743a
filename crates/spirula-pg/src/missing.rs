//! The missing set of a copy: objects its log names in a version that is not stored.
//!
//! Exact and durable: every change goes into the transaction that makes it true, as one record
//! for each object beside the PG's own, so that nothing is forgotten at a restart and nothing
//! must be guessed from the log, which may be trimmed meanwhile.

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder, to_vec};
use spirula_messages::cluster::pg::MissingItem;
use spirula_types::transaction::MetaOp;
use spirula_types::{Dirty, EVersion, HObject, SpgId};
use std::collections::{BTreeMap, BTreeSet};

/// What a copy lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    items: BTreeMap<HObject, Slot>,
    /// Changed since [`Missing::take_changes`]: those that are gone, and those whose slot says so.
    changed: BTreeSet<HObject>,
}

/// An item, and whether it is named in [`Missing::changed`]: a log that is merged asks that for
/// each entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    item: MissingItem,
    changed: bool,
}

impl Slot {
    fn stored(item: MissingItem) -> Self {
        Self { item, changed: false }
    }
}

/// First part of the keys of a PG's missing records.
pub fn missing_prefix(id: SpgId) -> Vec<u8> {
    format!("pgm.{}.", crate::stored::record_name(id)).into_bytes()
}

fn key(pg: SpgId, object: &HObject) -> Bytes {
    let mut o = Encoder::with_capacity(96);
    o.raw(&missing_prefix(pg));
    o.put(object);
    o.into_bytes()
}

/// An item as it was stored: records of earlier versions do not say what differs.
fn stored_item(v: &[u8]) -> Result<MissingItem, DecodeError> {
    let mut d = Decoder::new(v);
    let (need, have) = (d.get()?, d.get()?);
    let dirty = if d.is_empty() { Dirty::All } else { d.get()? };
    // Of one whose change was kept back earlier versions said nothing.
    let withheld = !d.is_empty() && d.bool()?;
    d.finish()?;
    Ok(MissingItem { need, have, dirty, withheld })
}

impl Missing {
    /// A set as another OSD told it.
    pub fn from_items(items: impl IntoIterator<Item = (HObject, MissingItem)>) -> Self {
        let items = items.into_iter().map(|(o, i)| (o, Slot::stored(i))).collect();
        Self { items, changed: BTreeSet::new() }
    }

    /// The set as it was stored.
    ///
    /// # Errors
    /// [`DecodeError`] when a record is damaged.
    pub fn load(
        pg: SpgId,
        records: impl IntoIterator<Item = (Bytes, Bytes)>,
    ) -> Result<Self, DecodeError> {
        let skip = missing_prefix(pg).len();
        let mut items = BTreeMap::new();
        for (k, v) in records {
            let mut d = Decoder::new(k.get(skip..).unwrap_or_default());
            let object: HObject = d.get()?;
            d.finish()?;
            items.insert(object, Slot::stored(stored_item(&v)?));
        }
        Ok(Self { items, changed: BTreeSet::new() })
    }

    /// Nothing missing?
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Is this object missing, and how?
    pub fn get(&self, object: &HObject) -> Option<&MissingItem> {
        if self.items.is_empty() { None } else { self.items.get(object).map(|s| &s.item) }
    }

    /// Is this object missing?
    pub fn contains(&self, object: &HObject) -> bool {
        self.get(object).is_some()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&HObject, &MissingItem)> {
        self.items.iter().map(|(o, s)| (o, &s.item))
    }

    /// The first one from `from` on.
    pub fn first_from(&self, from: &HObject) -> Option<(&HObject, &MissingItem)> {
        self.from(from).next()
    }

    /// All from `from` on, in order.
    pub fn from(&self, from: &HObject) -> impl Iterator<Item = (&HObject, &MissingItem)> {
        self.items.range(from..).map(|(o, s)| (o, &s.item))
    }

    /// Adds or changes an object of which nothing is known but the versions.
    pub fn set(&mut self, object: HObject, need: EVersion, have: EVersion) {
        let withheld = self.get(&object).is_some_and(|i| i.withheld);
        self.put(object, MissingItem { need, have, dirty: Dirty::All, withheld });
    }

    /// Adds or changes an object.
    pub fn put(&mut self, object: HObject, item: MissingItem) {
        self.changed.insert(object.clone());
        self.items.insert(object, Slot { item, changed: true });
    }

    /// An object was written whose change the copy did not get; `before` says what it lacked of it
    /// until then, if that is not known here. True if it is.
    pub fn written(
        &mut self,
        object: &HObject,
        version: EVersion,
        dirty: &Dirty,
        before: impl FnOnce() -> MissingItem,
    ) -> bool {
        let Some(slot) = self.items.get_mut(object) else {
            let mut item = before();
            item.need = version;
            item.dirty.merge(dirty);
            self.put(object.clone(), item);
            return false;
        };
        slot.item.need = version;
        slot.item.dirty.merge(dirty);
        if !std::mem::replace(&mut slot.changed, true) {
            self.changed.insert(object.clone());
        }
        true
    }

    /// The newest change of an object that is missing did not come with its entry.
    pub fn withhold(&mut self, object: &HObject) {
        if let Some(slot) = self.items.get_mut(object) {
            slot.item.withheld = true;
            if !std::mem::replace(&mut slot.changed, true) {
                self.changed.insert(object.clone());
            }
        }
    }

    /// The object is there, or not wanted any more.
    pub fn remove(&mut self, object: &HObject) -> Option<MissingItem> {
        let slot = self.items.remove(object)?;
        if !slot.changed {
            self.changed.insert(object.clone());
        }
        Some(slot.item)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.changed.extend(std::mem::take(&mut self.items).into_keys());
    }

    /// Forgets objects after this position.
    pub fn cut(&mut self, after: &HObject) {
        let gone: Vec<HObject> = self.items.keys().filter(|o| *o > after).cloned().collect();
        for o in gone {
            self.remove(&o);
        }
    }

    /// Moves out the objects that `wanted` names.
    pub fn split_off(&mut self, wanted: impl Fn(&HObject) -> bool) -> Self {
        let objects: Vec<HObject> = self.items.keys().filter(|o| wanted(o)).cloned().collect();
        let mut other = Self::default();
        for o in objects {
            if let Some(i) = self.remove(&o) {
                other.put(o, i);
            }
        }
        other
    }

    /// The changes of the store's records that follow from the changes since the last call.
    pub fn take_changes(&mut self, pg: SpgId, out: &mut Vec<MetaOp>) {
        for o in std::mem::take(&mut self.changed) {
            let key = key(pg, &o);
            out.push(match self.items.get_mut(&o) {
                Some(slot) => {
                    slot.changed = false;
                    MetaOp::Set { key, value: to_vec(&slot.item).into() }
                }
                None => MetaOp::Remove { key },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_stored_and_loaded_exactly() {
        let pg = SpgId::new(spirula_types::PgId::new(3, 0x11), 2);
        let o = |n: &'static str| HObject::head(3, Bytes::new(), Bytes::new(), n.into());
        let mut m = Missing::default();
        let dirty = Dirty::Parts { data: vec![(0, 4096)], omap: true };
        m.put(
            o("a"),
            MissingItem {
                need: EVersion::new(2, 3),
                have: EVersion::new(1, 1),
                dirty,
                withheld: true,
            },
        );
        m.set(o("b"), EVersion::new(2, 4), EVersion::default());
        m.remove(&o("b"));
        let mut stored: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        let mut ops = Vec::new();
        m.take_changes(pg, &mut ops);
        for op in ops {
            match op {
                MetaOp::Set { key, value } => drop(stored.insert(key, value)),
                MetaOp::Remove { key } => drop(stored.remove(&key)),
                _ => unreachable!(),
            }
        }
        assert!(stored.keys().all(|k| k.starts_with(&missing_prefix(pg))));
        assert_eq!(Missing::load(pg, stored).unwrap(), m);
        let mut again = Vec::new();
        m.take_changes(pg, &mut again);
        assert!(again.is_empty());
    }
}
