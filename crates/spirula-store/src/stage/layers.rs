//! Maps that become layers, and layers that become maps again (module [`crate::layer`]).

use super::{Stage, StagedHead, field, space_of, take_id};
use crate::error::{Result, StoreError};
use crate::keys;
use crate::layer::{Couple, Layer, depth_max, own_bit};
use crate::maps::{self, Maps, View, WHOLE, put_piece};
use crate::onode::{Onode, SEGMENT_BLOCKS};
use crate::read::no_layer;
use crate::segment::{Piece, Released, Segment, runs_of};
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_types::HObject;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Of a record that changes in more places than this, all is written to the journal.
const PATCHES: usize = 8;

impl Maps for Stage<'_> {
    fn record(&self, map: u64, seg: u32) -> Result<Option<Arc<Segment>>> {
        match self.segments.get(&(map, seg)) {
            Some(s) => Ok(s.clone()),
            None => self.s.segment(map, seg),
        }
    }

    fn layer(&self, name: u64) -> Result<Arc<Layer>> {
        self.find_layer(name)?.ok_or_else(|| no_layer(name))
    }

    fn numbers(&self, map: u64, first: u32, last: u32, found: &mut BTreeSet<u32>) -> Result<()> {
        let staged = self.segments.range((map, first)..=(map, last));
        found.extend(staged.filter(|(_, s)| s.is_some()).map(|((_, n), _)| *n));
        self.s.stored_segments(map, first, last, found)
    }
}

/// With no more records than this over it, a map is kept in a merge without a look at how many it
/// has.
const FEW: usize = 1;

/// An object gets a map over nothing once this part of it is hidden of its lowest layer.
const WHOLE_PART: u64 = if cfg!(test) { 2 } else { 4 };

/// Of objects of so many segments at most it is looked at when they are first cloned whether all
/// have one kind of checksum.
const SUMS_LOOKED_AT: u64 = if cfg!(test) { 3 } else { 64 };

/// What a merge keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Upper,
    Lower,
}

impl Stage<'_> {
    fn find_layer(&self, name: u64) -> Result<Option<Arc<Layer>>> {
        match self.layers.get(&name) {
            Some(l) => Ok(l.clone()),
            None => self.s.stored_layer(name),
        }
    }

    fn change_layer(&mut self, name: u64, change: impl FnOnce(&mut Layer)) -> Result<Arc<Layer>> {
        if let Some(Some(l)) = self.layers.get_mut(&name) {
            change(Arc::make_mut(l));
            return Ok(l.clone());
        }
        let mut l = (*self.layer(name)?).clone();
        change(&mut l);
        let l = Arc::new(l);
        self.layers.insert(name, Some(l.clone()));
        Ok(l)
    }

    /// Takes note of an object that lies over a layer which was not made for it.
    fn join(&mut self, o: &mut Onode, object: &HObject) -> Result<()> {
        if !planted!(LayerMissesChild) {
            self.change_layer(o.base, |l| l.join(o.name))?;
        }
        self.tell(o, keys::object(object).into());
        Ok(())
    }

    /// From now on a record says whose an object's name is.
    pub(super) fn tell(&mut self, o: &mut Onode, key: Bytes) {
        self.named.insert(o.name, Some(key));
        o.told = true;
    }

    /// An object's name goes, or passes to a layer.
    fn untell(&mut self, o: &mut Onode) {
        if std::mem::take(&mut o.told) {
            self.named.insert(o.name, None);
        }
    }

    /// A new object that sees what `source` does, whose map is in segments. Of `source` that
    /// map becomes a layer, unless it is empty.
    pub(super) fn clone_map(
        &mut self,
        object: &HObject,
        from: &HObject,
        source: &mut Onode,
    ) -> Result<Onode> {
        self.count_compressed(source)?;
        self.learn_sums(source)?;
        let made = source.base == 0 || source.own != 0;
        if made {
            self.freeze(from, source)?;
        }
        let id = take_id(&mut self.counters);
        let mut o = Onode { id, name: id, own: 0, shared: false, told: false, ..source.clone() };
        if made {
            let couple =
                Couple::of((source.name, &keys::object(from)), (o.name, &keys::object(object)));
            self.change_layer(source.base, |l| {
                l.couple = Some(couple);
                if !planted!(LayerMissesChild) {
                    l.join(o.name);
                }
            })?;
        } else {
            self.join(&mut o, object)?;
        }
        space_of(&mut self.space, self.pool)[field::COMPRESSED_ORIGINAL] +=
            (o.compressed.unwrap_or(0) * crate::BLOCK) as i64;
        Ok(o)
    }

    /// Makes the object's map a layer, and lets the object lie over it.
    fn freeze(&mut self, object: &HObject, o: &mut Onode) -> Result<()> {
        let depth = self.depth(object, o)?;
        // Its layer takes the name by which the one below knows it.
        let name = if o.base == 0 { take_id(&mut self.counters) } else { o.name };
        let (map, base, own, shared) = (o.id, o.base, o.own, o.shared);
        self.untell(o);
        o.id = take_id(&mut self.counters);
        (o.base, o.name, o.own, o.shared, o.depth) = (name, o.id, 0, false, depth);
        let layer =
            Layer { map, base, children: 1, names: o.name, depth, own, shared, couple: None };
        self.layers.insert(name, Some(Arc::new(layer)));
        Ok(())
    }

    /// How deep the chain from an object's own map down is. Makes it shorter if that is
    /// too deep for the map to become a layer.
    fn depth(&mut self, object: &HObject, o: &mut Onode) -> Result<u32> {
        if o.base == 0 {
            return Ok(1);
        }
        let most = depth_max(object);
        let below = if o.depth == 0 { self.layer(o.base)?.depth } else { o.depth };
        let at_most = below.saturating_add(1);
        if at_most <= most {
            return Ok(at_most);
        }
        // Some of the chain may have gone since.
        let depth = maps::chain(self, o.base).try_fold(1, |n, l| l.map(|_| n + 1))?;
        if depth <= most {
            return Ok(depth);
        }
        self.shorten(object, o)
    }

    /// Lets an object lie over fewer layers, and says how deep the chain from its own map down is
    /// then.
    ///
    /// What lies over the lowest layer becomes one map, so that but few blocks get another owner. A
    /// layer over the lowest one stays below as well if it hides as much as all above it together:
    /// so a block gets another owner as often as such maps can double. The object gets a map over
    /// nothing once all of them hide a [`WHOLE_PART`]th of it together: what all children of a
    /// layer hide is not let go of before they are one.
    fn shorten(&mut self, object: &HObject, o: &mut Onode) -> Result<u32> {
        let below = maps::chain(self, o.base).collect::<Result<Vec<_>>>()?;
        let lying_over =
            below.iter().map(|(_, l)| (l.map, l.base, l.own)).filter(|(_, base, _)| *base != 0);
        // How many blocks each hides, from the top; and all of them together.
        let (mut sizes, mut hidden) = (Vec::with_capacity(below.len()), BTreeMap::new());
        for (map, _, own) in std::iter::once((o.id, o.base, o.own)).chain(lying_over) {
            let mut found = BTreeSet::new();
            if own != 0 {
                self.numbers(map, 0, u32::MAX, &mut found)?;
            }
            let mut size = 0;
            for seg_no in found {
                let hides = self.record(map, seg_no)?.map_or(0, |record| record.hides());
                size += u64::from(hides.count_ones());
                *hidden.entry(seg_no).or_insert(0) |= hides;
            }
            sizes.push(size);
        }
        let all: u64 = hidden.values().map(|h: &u128| u64::from(h.count_ones())).sum();
        // The lowest one stays in any case.
        let (mut stay, mut above) = (1, sizes.iter().sum::<u64>());
        for size in sizes.iter().rev() {
            above -= size;
            if *size < above || stay >= depth_max(object) as usize / 2 {
                break;
            }
            stay += 1;
        }
        let until = below.len().checked_sub(stay).filter(|n| *n > 0).and_then(|n| below.get(n));
        match until {
            Some((until, _)) if all < o.blocks / WHOLE_PART => {
                self.fold(object, o, *until, hidden.into_keys().collect())?;
                o.depth = stay as u32;
                Ok(o.depth + 1)
            }
            _ => {
                let numbers = self.all_numbers(o)?;
                self.fold(object, o, 0, numbers)?;
                Ok(1)
            }
        }
    }

    /// Makes one map of an object's own and of those below it that lie over the layer `until`, and
    /// lets the object lie over that (0: over nothing). What it gets of the layers between has one
    /// owner more.
    fn fold(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        until: u64,
        numbers: Vec<u32>,
    ) -> Result<()> {
        self.share_layers(o, until)?;
        let (mut owned, mut bits) = (Vec::new(), 0);
        for seg_no in numbers {
            let own = self.record(o.id, seg_no)?;
            let view = View::above(self, o, until, seg_no, WHOLE)?;
            // What its own record maps has that owner already.
            let mut blobs: BTreeSet<_> = own
                .iter()
                .flat_map(|s| s.blobs())
                .filter_map(|b| b.runs.first())
                .map(|r| r.start)
                .collect();
            for (_, piece) in view.pieces(usize::from(own.is_some())) {
                match piece {
                    _ if planted!(WholeMapMissesOwner) => {}
                    Piece::Plain { run, .. } => owned.push(run),
                    Piece::Part { blob, .. } => {
                        if blob.runs.first().is_some_and(|r| blobs.insert(r.start)) {
                            owned.extend(&blob.runs);
                        }
                    }
                }
            }
            let flat = view.flat(until != 0);
            if own.is_some() || !flat.is_empty() {
                bits |= own_bit(seg_no);
                self.put_record(o.id, seg_no, flat);
            }
        }
        self.reference_all(owned)?;
        o.shared = true;
        let sums = o.sums;
        self.leave(o)?;
        // It is about to lie over a layer again, in any case.
        o.sums = sums;
        if until != 0 {
            (o.base, o.name, o.own) = (until, take_id(&mut self.counters), bits);
            self.join(o, object)?;
        }
        Ok(())
    }

    /// Numbers of all segments that an object sees.
    fn all_numbers(&self, o: &Onode) -> Result<Vec<u32>> {
        maps::numbers(self, o, 0, u32::MAX)
    }

    /// Takes note that blocks of the layers below an object may have other owners: of those
    /// that lie over the layer `until` (0: all of them).
    pub(super) fn share_layers(&mut self, o: &Onode, until: u64) -> Result<()> {
        let below = maps::chain(self, o.base).collect::<Result<Vec<_>>>()?;
        let shared = below.iter().take_while(|(name, _)| *name != until);
        for (name, _) in shared.filter(|(_, l)| !l.shared && !planted!(FoldedLayerUnmarked)) {
            self.change_layer(*name, |l| l.shared = true)?;
        }
        Ok(())
    }

    /// Counts an object's compressed blocks, if nobody has.
    fn count_compressed(&self, o: &mut Onode) -> Result<()> {
        if o.compressed.is_some() {
            return Ok(());
        }
        let mut n = 0;
        let stored = self.s.pools.get(&self.pool).map_or(0, |p| p.compressed_original);
        let staged = self.space.iter().any(|(_, by)| by[field::COMPRESSED_ORIGINAL] != 0);
        if stored > 0 || staged {
            for seg_no in self.all_numbers(o)? {
                n += View::of(self, o, seg_no, WHOLE)?.usage().compressed;
            }
        }
        o.compressed = Some(n);
        Ok(())
    }

    /// Finds out whether all that an object maps plainly has one kind of checksum, where that is
    /// not known and not much to look at. Once it is cloned, writes need not look for it through
    /// the layers.
    fn learn_sums(&self, o: &mut Onode) -> Result<()> {
        // Over a layer, this was looked at when the object was first cloned, unless an older
        // program did that.
        let segments = o.size.div_ceil(SEGMENT_BLOCKS * crate::BLOCK);
        if o.sums.is_some() || o.base != 0 && o.depth != 0 || segments > SUMS_LOOKED_AT {
            return Ok(());
        }
        let mut all = None;
        for seg_no in maps::numbers(self, o, 0, segments as u32)? {
            if let Some(kind) = maps::kind(self, o, seg_no)?
                && *all.get_or_insert(kind) != kind
            {
                return Ok(());
            }
        }
        o.sums = all;
        Ok(())
    }

    /// Lets go of the whole map of an object over a layer; it is empty then, over nothing.
    pub(super) fn drop_map(&mut self, o: &mut Onode) -> Result<()> {
        let mut found = BTreeSet::new();
        if o.own != 0 {
            self.numbers(o.id, 0, u32::MAX, &mut found)?;
        }
        for seg_no in found {
            if let Some(seg) = self.record(o.id, seg_no)? {
                self.release(o.shared, seg.all())?;
                self.remove_record(o.id, seg_no);
            }
        }
        let compressed = o.compressed.unwrap_or(0) * crate::BLOCK;
        space_of(&mut self.space, self.pool)[field::COMPRESSED_ORIGINAL] -= compressed as i64;
        (o.blocks, o.allocated, o.compressed, o.shared) = (0, 0, None, false);
        o.inline = Some(Segment::default());
        self.leave(o)
    }

    /// An object goes from its layer. If but one child is left there, they become one.
    fn leave(&mut self, o: &mut Onode) -> Result<()> {
        let (base, name) = (o.base, o.name);
        self.untell(o);
        o.unlayer();
        let left = self.change_layer(base, |l| l.leave(name))?;
        match left.only() {
            Some(child) => self.merge(base, child),
            None => Ok(()),
        }
    }

    /// Makes a layer and its only child one map.
    fn merge(&mut self, name: u64, child: u64) -> Result<()> {
        let lower = self.layer(name)?;
        let root = lower.base == 0;
        if let Some(upper) = self.find_layer(child)? {
            let mut upper = (*upper).clone();
            let keep = self.merge_maps(&lower, upper.map, upper.own)?;
            if keep == Keep::Lower {
                upper.map = lower.map;
            }
            (upper.base, upper.shared) = (lower.base, upper.shared | lower.shared);
            upper.own = if root { 0 } else { upper.own | lower.own };
            self.layers.insert(child, Some(Arc::new(upper)));
        } else {
            let bad = || {
                StoreError::corrupt(format!("layer {name} has a child {child} that there is not"))
            };
            let key = self.key_of_child(&lower, child)?.ok_or_else(bad)?;
            let Some(mut o) = self.staged_head(&key)?.now.clone() else { return Err(bad()) };
            let keep = self.merge_maps(&lower, o.id, o.own)?;
            if keep == Keep::Lower {
                o.id = lower.map;
            }
            (o.base, o.shared) = (lower.base, o.shared | lower.shared);
            o.own = if root { 0 } else { o.own | lower.own };
            if root {
                self.untell(&mut o);
                o.unlayer();
            } else if !o.told && !planted!(MergedUntold) {
                // The layer below was not made for it.
                self.tell(&mut o, key.clone());
            }
            self.staged_head(&key)?.now = Some(o);
        }
        self.layers.insert(name, None);
        if !root {
            self.change_layer(lower.base, |l| l.names ^= name ^ child)?;
        }
        Ok(())
    }

    /// The key of the object that `layer` knows by the name `child`.
    fn key_of_child(&self, layer: &Layer, child: u64) -> Result<Option<Bytes>> {
        // First, what this transaction says: an object that it has moved may still have its old key
        // in the store, where the head that is just being changed is looked for.
        if let Some(Some(key)) = self.named.get(&child).filter(|_| !planted!(CoupleAskedFirst)) {
            return Ok(Some(key.clone()));
        }
        if let Some(key) = layer.key_of(child) {
            let has = |o: &Onode| o.name == child || planted!(CoupleBelieved);
            let known = match self.heads.get(&key) {
                Some(h) => h.now.as_ref().is_some_and(has),
                None => self.s.head(&key)?.is_some_and(|o| has(&o)),
            };
            if known {
                return Ok(Some(key));
            }
        }
        match self.named.get(&child) {
            Some(key) => Ok(key.clone()),
            None => self.s.stored_named(child),
        }
    }

    /// An object's head as it is in this transaction, to be changed in place.
    pub(super) fn staged_head(&mut self, key: &Bytes) -> Result<&mut StagedHead> {
        if !self.heads.contains_key(key) {
            let before = self.s.head(key)?;
            let now = before.as_deref().cloned();
            let pool = super::pool_of(&keys::parse_object(key)?);
            self.heads
                .insert(key.clone(), Box::new(StagedHead { pool, quiet: false, now, before }));
        }
        self.heads
            .get_mut(key)
            .map(|h| &mut **h)
            .ok_or_else(|| StoreError::corrupt("a staged head is gone"))
    }

    /// Puts the records of a map and of the layer below it together, under the number of the
    /// one that has more of them.
    fn merge_maps(&mut self, lower: &Layer, upper: u64, own: u64) -> Result<Keep> {
        let (mut above, mut below) = (BTreeSet::new(), BTreeSet::new());
        if own != 0 {
            self.numbers(upper, 0, u32::MAX, &mut above)?;
        }
        let keep = if above.len() <= FEW {
            Keep::Lower
        } else {
            self.numbers(lower.map, 0, u32::MAX, &mut below)?;
            if above.len() > below.len() { Keep::Upper } else { Keep::Lower }
        };
        // What is not moved stays as it is.
        let moved = if keep == Keep::Upper { &above | &below } else { above };
        for seg_no in moved {
            let (over, under) = (self.record(upper, seg_no)?, self.record(lower.map, seg_no)?);
            if let Some(over) = &over {
                self.merge_records(lower, upper, seg_no, over, under.as_deref(), keep)?;
            } else if let Some(under) = under.filter(|_| keep == Keep::Upper) {
                self.remove_record(lower.map, seg_no);
                self.put_record(upper, seg_no, (*under).clone());
            }
        }
        Ok(keep)
    }

    fn merge_records(
        &mut self,
        lower: &Layer,
        upper: u64,
        seg_no: u32,
        over: &Segment,
        under: Option<&Segment>,
        keep: Keep,
    ) -> Result<()> {
        let root = lower.base == 0;
        let mut seg = match under {
            Some(u) => u.clone(),
            None if root => Segment::default(),
            None => Segment::over(),
        };
        let hidden: Vec<_> = runs_of(over.hides()).collect();
        let pieces: Vec<_> = over.mapped(0, SEGMENT_BLOCKS).collect();
        let plain = pieces.iter().all(|(_, p)| matches!(p, Piece::Plain { .. }));
        let patched = keep == Keep::Lower && plain && hidden.len() + pieces.len() <= PATCHES;
        let mut released = Released::default();
        for (first, len) in hidden {
            let kind = seg.kind(Checksum::default());
            seg.replace(first, len, &[], kind, &[], &mut released);
            if patched {
                self.redo.patch(!root, lower.map, seg_no, first, len, &[], kind, &[]);
            }
        }
        // What both refer to is referred to once now.
        let both: Vec<_> = over.blobs().filter(|b| seg.has_blob(b)).cloned().collect();
        for (at, piece) in &pieces {
            put_piece(&mut seg, *at, piece);
            if let (true, Piece::Plain { run, kind, sums }) = (patched, piece) {
                self.redo.patch(!root, lower.map, seg_no, *at, run.len, &[*run], *kind, sums);
            }
        }
        if !planted!(HiddenBlocksKept) {
            self.release(lower.shared, released)?;
        }
        for blob in both {
            self.drop_blob(true, &blob)?;
        }
        let (kept, gone) = match keep {
            Keep::Upper => (upper, lower.map),
            Keep::Lower => (lower.map, upper),
        };
        self.remove_record(gone, seg_no);
        if patched && !seg.is_empty() {
            self.segments.insert((kept, seg_no), Some(Arc::new(seg)));
        } else {
            self.put_record(kept, seg_no, seg);
        }
        Ok(())
    }

    fn put_record(&mut self, map: u64, seg_no: u32, seg: Segment) {
        if seg.is_empty() {
            self.remove_record(map, seg_no);
        } else {
            self.redo.segment(map, seg_no, &seg);
            self.segments.insert((map, seg_no), Some(Arc::new(seg)));
        }
    }

    fn remove_record(&mut self, map: u64, seg_no: u32) {
        self.redo.segment_gone(map, seg_no);
        self.segments.insert((map, seg_no), None);
    }
}
