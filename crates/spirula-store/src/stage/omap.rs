//! Omaps that clones share until one of them changes its own.
//!
//! A clone of a small omap is a copy. A larger one is shared by reference: the clone names the
//! same omap, whose further owners are counted. The first change by one of several owners
//! gives it a copy of its own; until then, and where only data changes, there is none. Who
//! finds nobody else left forgets that it shared. A large copy is left to the next checkpoint
//! ([`crate::omaps`]).

use super::{Stage, take_id};
use crate::error::Result;
use crate::omaps::{Level, Pairs};
use crate::onode::Onode;
use bytes::Bytes;

/// An omap of at most so many pairs, of so many bytes, is copied at once.
const COPIED: (usize, usize) = if cfg!(test) { (2, 64) } else { (16, 1024) };

/// A shared one of at most so much is copied by the transaction that changes it.
const COPIED_NOW: (usize, usize) = if cfg!(test) { (3, 100) } else { (256, 64 << 10) };

impl Stage<'_> {
    fn omap_pairs(&self, id: u64) -> impl Iterator<Item = Result<(Bytes, Bytes)>> + '_ {
        let staged = Level { pairs: &self.omap, gone: &self.gone, copies: &self.copies };
        self.s.omap_keys(Some(staged), id, &[], None)
    }

    /// Has an omap no more than so many pairs, of so many bytes, with its header?
    fn is_small(&self, id: u64, (most_pairs, most_bytes): (usize, usize)) -> Result<bool> {
        let (mut pairs, mut bytes) = (0, self.omap_header(id)?.map_or(0, |h| h.len()));
        for pair in self.omap_pairs(id) {
            let (k, v) = pair?;
            (pairs, bytes) = (pairs + 1, bytes + k.len() + v.len());
            if pairs > most_pairs || bytes > most_bytes {
                return Ok(false);
            }
        }
        Ok(bytes <= most_bytes)
    }

    /// Gives a clone its source's omap.
    pub(super) fn clone_omap(&mut self, o: &mut Onode, source: &mut Onode) -> Result<()> {
        if self.is_small(source.omap, COPIED)? {
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
        // Nor does the last owner change what is still to be copied.
        let others = self.leave_omap(from)?;
        let awaited =
            (self.copies.wants(from) || self.s.omap_awaits_copy(from)) && !planted!(SourceChanges);
        if others || awaited {
            // Whatever the transaction takes away from its omap, it makes a copy of it first: that
            // asks for room, and may not have what is kept for deletions.
            self.adds = true;
            self.needs_metadata()?;
            o.omap = 0;
            if self.is_small(from, COPIED_NOW)? {
                self.copy_omap(o, from)?;
            } else {
                self.copy_omap_later(o, from)?;
            }
            if !others {
                self.kill_omap(from);
            }
        }
        Ok(())
    }

    /// Makes the object's omap a copy of another one, to be made by the next checkpoint.
    fn copy_omap_later(&mut self, o: &mut Onode, from: u64) -> Result<()> {
        o.omap = take_id(&mut self.counters);
        let new = o.omap;
        let staged = self.copies.source(from);
        let source = staged.or_else(|| self.s.active.copies.source(from)).unwrap_or(from);
        self.redo.omap_copied(new, source);
        self.copies.add(new, source);
        self.copying += self.s.room_for_copy(source)?;
        if source != from {
            // No copy of a copy that is not made yet, but what has changed in that one since.
            let active = &self.s.active;
            let within = |map: &Pairs| {
                let all = map.range((from, Bytes::new())..(from + 1, Bytes::new()));
                all.map(|((_, k), v)| (k.clone(), v.clone())).collect::<Vec<_>>()
            };
            let ranges = active.gone.of(from).chain(self.gone.of(from));
            let ranges: Vec<(Bytes, Bytes)> = ranges.map(|(a, b)| (a.clone(), b.clone())).collect();
            let mut older = within(&active.omap);
            older.retain(|(k, _)| !self.gone.covers(from, k));
            let newer = within(&self.omap);
            for (first, last) in ranges {
                self.omap_rm_range(new, &first, &last);
            }
            for (k, v) in older.into_iter().chain(newer) {
                match v {
                    Some(v) => self.omap_set(new, &k, &v)?,
                    None => self.omap_rm(new, &k),
                }
            }
        }
        self.copy_omap_header(new, from)
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
        let pairs: Vec<(Bytes, Bytes)> = self.omap_pairs(from).collect::<Result<_>>()?;
        for (k, v) in &pairs {
            self.omap_set(o.omap, k, v)?;
        }
        self.copy_omap_header(o.omap, from)
    }

    fn copy_omap_header(&mut self, new: u64, from: u64) -> Result<()> {
        if let Some(h) = self.omap_header(from)? {
            self.redo.omap_header(new, &h);
            self.omap_headers.insert(new, h);
        }
        Ok(())
    }
}
