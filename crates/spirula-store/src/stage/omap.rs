//! Omaps that clones share until one of them changes its own.
//!
//! A clone of a small omap is a copy. A larger one is shared by reference: the clone names the
//! same omap, whose further owners are counted. The first change by one of several owners
//! gives it a copy of its own; until then, and where only data changes, there is none. Who
//! finds nobody else left forgets that it shared.

use super::{Stage, take_id};
use crate::error::Result;
use crate::onode::Onode;
use bytes::Bytes;

/// An omap of at most so many pairs, of so many bytes, is copied at once.
const COPIED: (usize, usize) = if cfg!(test) { (2, 64) } else { (16, 1024) };

impl Stage<'_> {
    /// Gives a clone its source's omap.
    pub(super) fn clone_omap(&mut self, o: &mut Onode, source: &mut Onode) -> Result<()> {
        let (mut pairs, mut bytes) = (0, self.omap_header(source.omap)?.map_or(0, |h| h.len()));
        for pair in self.s.omap_keys(Some((&self.omap, &self.gone)), source.omap, &[], None).take(COPIED.0 + 1) {
            let (k, v) = pair?;
            (pairs, bytes) = (pairs + 1, bytes + k.len() + v.len());
        }
        if pairs <= COPIED.0 && bytes <= COPIED.1 {
            return self.copy_omap(o, source.omap);
        }
        if !planted!(OmapMissesOwner) {
            let more = self.omap_owners(source.omap)? + 1;
            self.omap_owners.insert(source.omap, more);
        }
        (o.omap, o.omap_shared, source.omap_shared) = (source.omap, true, true);
        Ok(())
    }

    /// Makes an object's omap, if it has one, its own.
    pub(super) fn own_omap(&mut self, o: &mut Onode) -> Result<()> {
        if !std::mem::take(&mut o.omap_shared) {
            return Ok(());
        }
        let from = o.omap;
        if self.leave_omap(from)? {
            // Whatever the transaction takes away from its omap, it makes a copy of it first: that asks for room, and may
            // not have what is kept for deletions.
            self.adds = true;
            self.needs_metadata()?;
            o.omap = 0;
            self.copy_omap(o, from)?;
        }
        Ok(())
    }

    /// One owner fewer of an omap; false if there is no other.
    pub(super) fn leave_omap(&mut self, id: u64) -> Result<bool> {
        let more = self.omap_owners(id)?;
        if more > 0 {
            self.omap_owners.insert(id, more - 1);
        }
        Ok(more > 0)
    }

    fn omap_owners(&self, id: u64) -> Result<u64> {
        match self.omap_owners.get(&id) {
            Some(more) => Ok(*more),
            None => self.s.stored_omap_owners(id),
        }
    }

    fn omap_header(&self, id: u64) -> Result<Option<Bytes>> {
        match self.omap_headers.get(&id) {
            Some(h) => Ok(Some(h.clone())),
            None => self.s.stored_omap_header(id),
        }
    }

    fn copy_omap(&mut self, o: &mut Onode, from: u64) -> Result<()> {
        o.omap = take_id(&mut self.counters);
        let pairs: Vec<(Bytes, Bytes)> =
            self.s.omap_keys(Some((&self.omap, &self.gone)), from, &[], None).collect::<Result<_>>()?;
        for (k, v) in &pairs {
            self.omap_set(o.omap, k, v)?;
        }
        if let Some(h) = self.omap_header(from)? {
            self.redo.omap_header(o.omap, &h);
            self.omap_headers.insert(o.omap, h);
        }
        Ok(())
    }
}
