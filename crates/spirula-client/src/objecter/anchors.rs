//! Anchors: objects whose place somebody depends on for longer than one operation lasts.
//!
//! An OSD knows who watches an object by the connection over which that was said, and it forgets
//! that when an interval of the PG ends or the connection does. So whoever wants notifications has
//! to say it again then, by a new operation; an operation that was answered is not sent again by
//! itself. The aim of an anchor is computed for each map in turn as that of an operation is, for an
//! interval may come and go between two maps that arrive together.

use super::{Objecter, Target, hash_of};
use bytes::Bytes;
use spirula_types::{ObjectLocator, OsdId};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Anchor {
    pool: i64,
    hash: u32,
    target: Option<Arc<Target>>,
    /// It has moved, and nobody has taken note.
    moved: bool,
}

impl Objecter {
    /// Watches over the place of an object under a number of the caller's choice.
    pub fn anchor(&mut self, id: u64, locator: &ObjectLocator, oid: &Bytes) {
        let (pool, hash) = (locator.pool, hash_of(locator, oid));
        let target = self.map.as_ref().and_then(|map| self.places.of(map, pool, hash));
        self.anchors.insert(id, Anchor { pool, hash, target, moved: false });
    }

    /// Nobody depends on this place any more.
    pub fn weigh(&mut self, id: u64) {
        self.anchors.remove(&id);
    }

    /// The numbers of anchors whose objects are served elsewhere, in another interval or over
    /// another connection than when this was asked before.
    pub fn moved(&mut self) -> Vec<u64> {
        let moved = self
            .anchors
            .iter_mut()
            .filter_map(|(id, a)| std::mem::take(&mut a.moved).then_some(*id));
        moved.collect()
    }

    /// A newer map.
    pub(super) fn aim_anchors(&mut self) {
        let Some(map) = &self.map else { return };
        for a in self.anchors.values_mut() {
            let target = self.places.of(map, a.pool, a.hash);
            if target != a.target {
                (a.target, a.moved) = (target, true);
            }
        }
    }

    /// Maps were not seen: any of them may have ended an interval.
    pub(super) fn loosen_anchors(&mut self) {
        self.anchors.values_mut().for_each(|a| a.moved = true);
    }

    /// The connection to this OSD is over.
    pub(super) fn shake_anchors(&mut self, osd: OsdId) {
        let there = |a: &&mut Anchor| a.target.as_ref().is_some_and(|t| t.primary == osd);
        self.anchors.values_mut().filter(there).for_each(|a| a.moved = true);
    }
}
