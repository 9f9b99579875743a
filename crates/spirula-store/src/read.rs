//! Reading: current metadata from cache, overlays and KV; data from the page cache at
//! once, or by a [`ReadPlan`] that another thread runs.
//!
//! Every block read from the device is checked against its crc32c before any byte of it
//! is returned.

use crate::alloc::{BLOCK, PhysRun};
use crate::checkpoint;
use crate::error::{Result, StoreError};
use crate::kept::LEAST_BLOCKS as LEAST_KEPT;
use crate::keys;
use crate::layer::Layer;
use crate::maps::{self, Maps, View};
use crate::omaps::{self, Level};
use crate::onode::{Onode, SEGMENT_BLOCKS};
use crate::overlay::{Merge, Overlay, Stream};
use crate::plan::{ReadPlan, Source};
use crate::refs::Refs;
use crate::segment::{Piece, Segment, mask};
use crate::store::Store;
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_encoding::Decoder;
use spirula_types::{EVersion, HObject, PgId};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes that a copy of an omap may need beside its pages and those of its changes.
const COPY_SLACK: u64 = 64 << 10;

/// Reads of at least this many bytes use the payload pool.
pub(crate) const POOLED_READ: usize = 64 << 10;
/// Reads of at most this many blocks take the short way.
const SMALL_READ: u64 = 8;

/// An object's size and space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Size, bytes.
    pub size: u64,
    /// Space allocated to its data, bytes.
    pub allocated: u64,
    /// True if it has (or had, uncleared) omap pairs or a header.
    pub has_omap: bool,
}

/// Outcome of [`Store::read`].
#[derive(Debug)]
pub enum Read {
    /// There is no such object.
    Missing,
    /// The data; short or empty where the object ends.
    Ready(Bytes),
    /// Would wait for the device: run the plan in a thread that may.
    NotReady(ReadPlan),
}

/// Part of the result of [`Store::omap_range`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmapPage {
    /// Pairs in key order.
    pub pairs: Vec<(Bytes, Bytes)>,
    /// More pairs would follow but for the limits.
    pub more: bool,
}

impl Maps for Store {
    fn record(&self, map: u64, seg: u32) -> Result<Option<Arc<Segment>>> {
        self.segment(map, seg)
    }

    fn layer(&self, name: u64) -> Result<Arc<Layer>> {
        self.stored_layer(name)?.ok_or_else(|| no_layer(name))
    }

    fn numbers(&self, map: u64, first: u32, last: u32, found: &mut BTreeSet<u32>) -> Result<()> {
        self.stored_segments(map, first, last, found)
    }
}

pub(crate) fn no_layer(name: u64) -> StoreError {
    StoreError::corrupt(format!("layer {name}, which something lies over, is missing"))
}

impl Store {
    // ----- lookups

    /// The head record under a KV key, as of now.
    pub(crate) fn head(&self, key: &[u8]) -> Result<Option<Arc<Onode>>> {
        if let Some(known) = self.heads.borrow_mut().get(key) {
            return Ok(known);
        }
        let found = self.find_head(key)?;
        let cost = key.len() + 96 + found.as_ref().map_or(0, |o| o.cost());
        self.heads.borrow_mut().insert(&Bytes::copy_from_slice(key), found.clone(), cost);
        Ok(found)
    }

    /// The same of an object that is to be made from another one: nobody asks for it soon, and it
    /// takes nobody's place in the cache.
    pub(crate) fn head_to_be(&self, key: &[u8]) -> Result<Option<Arc<Onode>>> {
        match self.heads.borrow_mut().get(key) {
            Some(known) => Ok(known),
            None => self.find_head(key),
        }
    }

    fn find_head(&self, key: &[u8]) -> Result<Option<Arc<Onode>>> {
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        Ok(match layers.into_iter().flatten().find_map(|o| o.heads.get(key)) {
            Some(o) => o.clone(),
            None => match self.meta.get(key)? {
                Some(v) => Some(Arc::new(
                    Onode::decode(&mut Decoder::new(&v)).map_err(StoreError::corrupt)?,
                )),
                None => None,
            },
        })
    }

    pub(crate) fn onode(&self, object: &HObject) -> Result<Option<Arc<Onode>>> {
        self.head(&keys::object(object))
    }

    /// A segment of a block map, as of now.
    pub(crate) fn segment(&self, id: u64, seg: u32) -> Result<Option<Arc<Segment>>> {
        if let Some(known) = self.segments.borrow_mut().get(&(id, seg)) {
            return Ok(known);
        }
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        let found = match layers.into_iter().flatten().find_map(|o| o.segments.get(&(id, seg))) {
            Some(s) => s.clone(),
            None => match self.meta.get(&keys::segment(id, seg))? {
                Some(v) => Some(Arc::new(
                    Segment::decode(&mut Decoder::new(&v)).map_err(StoreError::corrupt)?,
                )),
                None => None,
            },
        };
        let cost = 96 + found.as_ref().map_or(0, |s| s.cost());
        self.segments.borrow_mut().insert(&(id, seg), found.clone(), cost);
        Ok(found)
    }

    /// Reference counts of a chunk of device blocks, as of now.
    pub(crate) fn refs(&self, chunk: u64) -> Result<Option<Arc<Refs>>> {
        if let Some(known) = self.refs.borrow_mut().get(&chunk) {
            return Ok(known);
        }
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        let found = match layers.into_iter().flatten().find_map(|o| o.refs.get(&chunk)) {
            Some(r) => r.clone(),
            None => match self.meta.get(&keys::refs(chunk))? {
                Some(v) => Some(Arc::new(
                    Refs::decode(&mut Decoder::new(&v)).map_err(StoreError::corrupt)?,
                )),
                None => None,
            },
        };
        let cost = 64 + found.as_ref().map_or(0, |r| r.cost());
        self.refs.borrow_mut().insert(&chunk, found.clone(), cost);
        Ok(found)
    }

    /// The layer of that name, as of now.
    pub(crate) fn stored_layer(&self, name: u64) -> Result<Option<Arc<Layer>>> {
        if let Some(known) = self.layers.borrow_mut().get(&name) {
            return Ok(known);
        }
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        let found = match layers.into_iter().flatten().find_map(|o| o.layers.get(&name)) {
            Some(l) => l.clone(),
            None => match self.meta.get(&keys::layer(name))? {
                Some(v) => Some(Arc::new(
                    Layer::decode(&mut Decoder::new(&v)).map_err(StoreError::corrupt)?,
                )),
                None => None,
            },
        };
        self.layers.borrow_mut().insert(
            &name,
            found.clone(),
            64 + found.as_ref().map_or(0, |l| l.cost()),
        );
        Ok(found)
    }

    /// Owners of an omap beyond the first, as of now.
    pub(crate) fn stored_omap_owners(&self, id: u64) -> Result<u64> {
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        if let Some(more) = layers.into_iter().flatten().find_map(|o| o.omap_owners.get(&id)) {
            return Ok(*more);
        }
        let Some(v) = self.meta.get(&keys::omap_owners(id))? else { return Ok(0) };
        let n = v
            .first_chunk::<8>()
            .ok_or_else(|| StoreError::corrupt("number of an omap's owners too short"))?;
        Ok(u64::from_le_bytes(*n))
    }

    /// The key of the object that a layer knows by that name, as of now.
    pub(crate) fn stored_named(&self, name: u64) -> Result<Option<Bytes>> {
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        match layers.into_iter().flatten().find_map(|o| o.named.get(&name)) {
            Some(key) => Ok(key.clone()),
            None => self.meta.get(&keys::named(name)),
        }
    }

    /// Adds the numbers in `[first, last]` of segments that exist outside a transaction
    /// being staged (or have existed lately).
    pub(crate) fn stored_segments(
        &self,
        id: u64,
        first: u32,
        last: u32,
        found: &mut BTreeSet<u32>,
    ) -> Result<()> {
        for o in
            [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)].into_iter().flatten()
        {
            found.extend(o.segments.range((id, first)..=(id, last)).map(|((_, n), _)| *n));
        }
        // A map that is newer than what the metadata has is not in it.
        if self.frozen.as_ref().map_or(&self.active, |f| &*f.overlay).is_new(id) {
            return Ok(());
        }
        let end = match last.checked_add(1) {
            Some(next) => keys::segment(id, next),
            None => keys::prefix_end(&keys::segment(id, last)),
        };
        for pair in self.meta.range(&keys::segment(id, first), &end) {
            let (key, _) = pair?;
            let n = key
                .last_chunk::<4>()
                .ok_or_else(|| StoreError::corrupt("segment key too short"))?;
            found.insert(u32::from_be_bytes(*n));
        }
        Ok(())
    }

    /// The content of a piece of an object's map, checked. Waits.
    pub(crate) fn read_piece(
        &self,
        object: &HObject,
        offset: u64,
        piece: &Piece<'_>,
    ) -> Result<Vec<u8>> {
        // Whoever looked whether it can be read may have been answered from memory: here it is,
        // checked once more, since it gets into what is written.
        if let Piece::Plain { run, kind, sums } = piece
            && let Some(found) = self.kept.borrow_mut().get(*run)
        {
            let mut blocks = found.data.chunks(BLOCK as usize).zip(sums.chunks(kind.words()));
            if blocks.all(|(block, sum)| kind.holds(block, sum)) {
                return Ok(found.data.to_vec());
            }
        }
        let len = (piece.len() * BLOCK) as usize;
        let mut plan = self.empty_plan(object, offset, len);
        let mut at = 0;
        self.add_sources(piece, true, |source| {
            let start = at;
            at += source.len();
            plan.parts.push((start, source));
        });
        let mut buf = vec![0; len];
        for (start, source) in &plan.parts {
            let room = buf.get_mut(*start..start + source.len()).unwrap_or_default();
            plan.fill_from(source, room, offset + *start as u64, true, &mut None)?;
        }
        Ok(buf)
    }

    /// Calls `each` with the sources of a piece, in order; without `caches` data that is on the
    /// device comes from there.
    fn add_sources(&self, piece: &Piece<'_>, caches: bool, mut each: impl FnMut(Source)) {
        match piece {
            Piece::Plain { run, .. }
                if caches
                    && run.len >= LEAST_KEPT
                    && let Some(data) = self.kept(*run) =>
            {
                each(Source::Memory(data));
            }
            Piece::Plain { run, kind, sums } => {
                self.sources(*run, *kind, sums).into_iter().for_each(each)
            }
            Piece::Part { blob, skip, len } => {
                let words = blob.kind.words();
                let (mut stored, mut at) = (Vec::with_capacity(blob.runs.len()), 0usize);
                for run in &blob.runs {
                    let n = run.len as usize * words;
                    stored.extend(self.sources(
                        *run,
                        blob.kind,
                        blob.sums.get(at..at + n).unwrap_or_default(),
                    ));
                    at += n;
                }
                let (skip, len) = ((skip * BLOCK) as usize, (len * BLOCK) as usize);
                each(Source::Blob { blob: (*blob).clone(), stored, skip, len });
            }
        }
    }

    /// Where the content of a run of blocks is, in order.
    fn sources(&self, run: PhysRun, kind: Checksum, sums: &[u32]) -> Vec<Source> {
        let words = kind.words();
        let device = |a: u64, b: u64| {
            let skip = (a - run.start) as usize;
            let own = sums.get(skip * words..(skip + (b - a) as usize) * words).unwrap_or_default();
            Source::Device(PhysRun { start: a, len: b - a }, kind, own.to_vec())
        };
        let (mut at, end) = (run.start, run.start + run.len);
        let mut out = Vec::with_capacity(1);
        if !self.pending.is_empty() {
            // A piece that begins before the run may reach into it.
            let before = self.pending.range(..at).next_back().map(|(s, _)| *s).unwrap_or(at);
            for (start, p) in self.pending.range(before..end) {
                let stop = start + p.data.len() as u64 / BLOCK;
                let (a, b) = ((*start).max(at), stop.min(end));
                if a >= b {
                    continue;
                }
                if at < a {
                    out.push(device(at, a));
                }
                let range = ((a - start) * BLOCK) as usize..((b - start) * BLOCK) as usize;
                out.push(Source::Memory(p.data.slice(range)));
                at = b;
            }
        }
        if at < end {
            out.push(device(at, end));
        }
        out
    }

    // ----- data

    /// Size and space of an object.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Corrupt`], as for every read of metadata.
    pub fn stat(&self, object: &HObject) -> Result<Option<ObjectStat>> {
        Ok(self.onode(object)?.map(|o| ObjectStat {
            size: o.size,
            allocated: o.allocated * BLOCK,
            has_omap: o.omap != 0,
        }))
    }

    /// Calls `each` with the mapped parts of blocks `[first, end)`: logical block and where.
    pub(crate) fn for_mapped(
        &self,
        o: &Onode,
        first: u64,
        end: u64,
        mut each: impl FnMut(u64, Piece<'_>),
    ) -> Result<()> {
        if let Some(seg) = &o.inline {
            seg.mapped(first, end).for_each(|(l, piece)| each(l, piece));
            return Ok(());
        }
        if first >= end {
            return Ok(());
        }
        for seg_no in maps::numbers(
            self,
            o,
            (first / SEGMENT_BLOCKS) as u32,
            ((end - 1) / SEGMENT_BLOCKS) as u32,
        )? {
            let base = u64::from(seg_no) * SEGMENT_BLOCKS;
            let (from, until) = (first.max(base) - base, end.min(base + SEGMENT_BLOCKS) - base);
            if o.base != 0 {
                View::of(self, o, seg_no, mask(from, until - from))?
                    .each(|l, piece| each(base + l, piece));
            } else if let Some(seg) = self.segment(o.id, seg_no)? {
                seg.mapped(from, until).for_each(|(l, piece)| each(base + l, piece));
            }
        }
        Ok(())
    }

    /// Number of pieces an object's data is in on the device. `None` if there is no such object.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn fragments(&self, object: &HObject) -> Result<Option<u64>> {
        let Some(o) = self.onode(object)? else { return Ok(None) };
        let (mut pieces, mut end) = (0, u64::MAX);
        let mut add = |run: &PhysRun| {
            pieces += u64::from(run.start != end);
            end = run.start + run.len;
        };
        self.for_mapped(&o, 0, o.size.div_ceil(BLOCK), |_, piece| match piece {
            Piece::Plain { run, .. } => add(&run),
            Piece::Part { blob, .. } => blob.runs.iter().for_each(&mut add),
        })?;
        Ok(Some(pieces))
    }

    fn empty_plan(&self, object: &HObject, base: u64, len: usize) -> ReadPlan {
        ReadPlan {
            dev: self.block.clone(),
            pool: self.pool.clone(),
            object: object.clone(),
            base,
            len,
            wanted: 0..len,
            parts: Vec::with_capacity(1),
            uncached: false,
            pin: None,
        }
    }

    fn plan(
        &self,
        object: &HObject,
        o: &Onode,
        offset: u64,
        end: u64,
        caches: bool,
    ) -> Result<ReadPlan> {
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let base = first * BLOCK;
        let mut plan = self.empty_plan(object, base, ((last - first) * BLOCK) as usize);
        plan.wanted = (offset - base) as usize..(end - base) as usize;
        let parts = &mut plan.parts;
        self.for_mapped(o, first, last, |l, piece| {
            let mut at = ((l - first) * BLOCK) as usize;
            self.add_sources(&piece, caches, |source| {
                let len = source.len();
                // Segments end where the device need not: one read for all that is adjacent.
                match (parts.last_mut(), &source) {
                    (
                        Some((start, Source::Device(last, kind, sums))),
                        Source::Device(next, same, more),
                    ) if last.start + last.len == next.start
                        && *start + (last.len * BLOCK) as usize == at
                        && kind == same =>
                    {
                        last.len += next.len;
                        sums.extend_from_slice(more);
                    }
                    _ => parts.push((at, source)),
                }
                at += len;
            });
        })?;
        Ok(plan)
    }

    /// Reads up to `len` bytes at `offset`, without waiting for the device.
    ///
    /// # Errors
    /// [`StoreError::Checksum`], and those of reading metadata.
    pub fn read(&self, object: &HObject, offset: u64, len: u64) -> Result<Read> {
        let Some(o) = self.onode(object)? else { return Ok(Read::Missing) };
        let end = offset.saturating_add(len).min(o.size);
        if offset >= end {
            return Ok(Read::Ready(Bytes::new()));
        }
        if end.div_ceil(BLOCK) - offset / BLOCK <= SMALL_READ
            && let Some(data) = self.read_small(object, &o, offset, end)?
        {
            return Ok(Read::Ready(data));
        }
        let plan = self.plan(object, &o, offset, end, true)?;
        // Long runs were written past the page cache and are not looked for there. To put much data
        // together takes time that the caller may not have.
        let pieces = plan.parts.len();
        let long = |(_, s): &(usize, Source)| match s {
            Source::Device(..) => s.len() >= POOLED_READ,
            _ => pieces > 1 && s.len() >= 4 * POOLED_READ,
        };
        if !plan.parts.iter().any(long)
            && let Some(data) = plan.fill(false, &mut None)?
        {
            return Ok(Read::Ready(data));
        }
        Ok(Read::NotReady(self.pinned(plan)))
    }

    /// As [`Store::read`], but never [`Read::Ready`] with data: the plan reads from the
    /// device itself, past every cache. For scrubs.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn read_uncached(&self, object: &HObject, offset: u64, len: u64) -> Result<Read> {
        let Some(o) = self.onode(object)? else { return Ok(Read::Missing) };
        let end = offset.saturating_add(len).min(o.size);
        if offset >= end {
            return Ok(Read::Ready(Bytes::new()));
        }
        let mut plan = self.plan(object, &o, offset, end, false)?;
        plan.uncached = true;
        Ok(Read::NotReady(self.pinned(plan)))
    }

    /// The usual small read: whole blocks in one piece, in the page cache. `None` if it is
    /// another.
    fn read_small(
        &self,
        object: &HObject,
        o: &Onode,
        offset: u64,
        end: u64,
    ) -> Result<Option<Bytes>> {
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let mut found: Option<Result<Bytes>> = None;
        self.for_mapped(o, first, last, |_, piece| {
            let Piece::Plain { run, kind, sums } = piece else { return };
            if run.len == last - first && !self.is_pending(run) {
                found = match self.kept(run) {
                    Some(data) => Some(Ok(data)),
                    None => self
                        .read_cached(object, first * BLOCK, run, kind, sums)
                        .transpose()
                        .map(|r| r.map(Bytes::from)),
                };
            }
        })?;
        let Some(data) = found.transpose()? else { return Ok(None) };
        let skip = (offset - first * BLOCK) as usize;
        Ok(Some(data.slice(skip..skip + (end - offset) as usize)))
    }

    /// The data of a run of blocks, if it is kept in memory.
    fn kept(&self, run: PhysRun) -> Option<Bytes> {
        let found = self.kept.borrow_mut().get(run)?;
        Some(found.own(&self.pool))
    }

    /// Keeps data in memory that a [`ReadPlan`] brought, if there is room for it and it came past
    /// the page cache. The caller vouches that no transaction that names the object was submitted
    /// since the plan was made, and that `data` is all that the plan returned, from `offset` of the
    /// object on.
    pub fn keep(&self, object: &HObject, offset: u64, data: &Bytes) {
        let mut kept = self.kept.borrow_mut();
        if data.len() < POOLED_READ.min((LEAST_KEPT * BLOCK) as usize)
            || !offset.is_multiple_of(BLOCK)
            || !kept.takes(data.len())
        {
            return;
        }
        // Only what fills its last block: of another the rest is not in the data.
        let (first, end) = (offset / BLOCK, (offset + data.len() as u64) / BLOCK);
        let mut runs = Vec::new();
        // Metadata that cannot be read is the next reader's trouble: the data was read with what
        // was in memory.
        let Ok(Some(o)) = self.onode(object) else { return };
        let mapped = self.for_mapped(&o, first, end, |l, piece| {
            if let Piece::Plain { run, .. } = piece {
                runs.push((((l - first) * BLOCK) as usize, run));
            }
        });
        if mapped.is_ok() {
            kept.put(data, &runs);
        }
    }

    /// Is some of a run on its way to the data file?
    fn is_pending(&self, run: PhysRun) -> bool {
        let before = self.pending.range(..run.start + run.len).next_back();
        before.is_some_and(|(start, p)| start + p.data.len() as u64 / BLOCK > run.start)
    }

    /// Blocks of the data file, checked, if they are in the page cache.
    fn read_cached(
        &self,
        object: &HObject,
        offset: u64,
        run: PhysRun,
        kind: Checksum,
        sums: &[u32],
    ) -> Result<Option<Vec<u8>>> {
        let mut buf = vec![0; (run.len * BLOCK) as usize];
        let fail = |e| StoreError::unreadable(object, self.block.name(), e);
        if !self.block.try_read_at(&mut buf, run.start * BLOCK).map_err(fail)? {
            return Ok(None);
        }
        for (i, (block, sum)) in
            buf.chunks(BLOCK as usize).zip(sums.chunks(kind.words())).enumerate()
        {
            if !kind.holds(block, sum) {
                let offset = offset + i as u64 * BLOCK;
                return Err(StoreError::Checksum { object: object.clone().into(), offset });
            }
        }
        Ok(Some(buf))
    }

    fn pinned(&self, mut plan: ReadPlan) -> ReadPlan {
        let mut runs = Vec::new();
        plan.parts.iter().for_each(|(_, source)| source.runs(&mut runs));
        plan.pin = Some(self.pins.borrow_mut().add(self.seq + 1, runs));
        plan
    }

    /// As [`Store::read`], but waits; `None` if there is no such object.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub fn read_blocking(&self, object: &HObject, offset: u64, len: u64) -> Result<Option<Bytes>> {
        match self.read(object, offset, len)? {
            Read::Missing => Ok(None),
            Read::Ready(data) => Ok(Some(data)),
            Read::NotReady(plan) => plan.run().map(Some),
        }
    }

    /// The parts of a range that are allocated, as (offset, length), in whole blocks but
    /// cut to the range and the object's size. `None` if there is no such object.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn extents(
        &self,
        object: &HObject,
        offset: u64,
        len: u64,
    ) -> Result<Option<Vec<(u64, u64)>>> {
        let Some(o) = self.onode(object)? else { return Ok(None) };
        let end = offset.saturating_add(len).min(o.size);
        let mut out: Vec<(u64, u64)> = Vec::new();
        if offset < end {
            self.for_mapped(&o, offset / BLOCK, end.div_ceil(BLOCK), |l, piece| {
                let (a, b) = ((l * BLOCK).max(offset), ((l + piece.len()) * BLOCK).min(end));
                match out.last_mut() {
                    Some((start, len)) if *start + *len == a => *len += b - a,
                    _ => out.push((a, b - a)),
                }
            })?;
        }
        Ok(Some(out))
    }

    // ----- attributes and omap

    /// All attributes, sorted by name. `None` if there is no such object.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn attrs(&self, object: &HObject) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        Ok(self.onode(object)?.map(|o| o.attrs.clone()))
    }

    /// Bytes that a change of the object may write anew beside data: its attributes, and where
    /// there is not plenty of room, an omap that it shares.
    pub fn beside_data(&self, object: &HObject) -> u64 {
        let Some(o) = self.onode(object).ok().flatten() else { return 0 };
        let attrs: u64 = o.attrs.iter().map(|(k, v)| (8 + k.len() + v.len()) as u64).sum();
        let plenty = !o.omap_shared || self.metadata_room() > 4 * self.meta.live_bytes();
        attrs + if plenty { 0 } else { self.room_for_copy(o.omap).map_or(0, |n| n / 4) }
    }

    /// One attribute; `None` if it or the object is missing.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn attr(&self, object: &HObject, name: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.onode(object)?.and_then(|o| {
            let at = o.attrs.binary_search_by(|(k, _)| k.as_ref().cmp(name)).ok()?;
            o.attrs.get(at).map(|(_, v)| v.clone())
        }))
    }

    pub(crate) fn stored_omap_header(&self, id: u64) -> Result<Option<Bytes>> {
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        match layers.into_iter().flatten().find_map(|o| o.omap_headers.get(&id)) {
            Some(h) => Ok(h.clone()),
            None => self.meta.get(&keys::omap_header(id)),
        }
    }

    /// The omap header, empty if it was never set; `None` if there is no such object.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn omap_header(&self, object: &HObject) -> Result<Option<Bytes>> {
        match self.onode(object)? {
            None => Ok(None),
            Some(o) if o.omap == 0 => Ok(Some(Bytes::new())),
            Some(o) => Ok(Some(self.stored_omap_header(o.omap)?.unwrap_or_default())),
        }
    }

    /// Values of those of `keys` that exist, in the order asked; `None` if there is no
    /// such object.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn omap_get(
        &self,
        object: &HObject,
        keys: &[Bytes],
    ) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        let Some(o) = self.onode(object)? else { return Ok(None) };
        let mut out = Vec::new();
        if o.omap == 0 {
            return Ok(Some(out));
        }
        for key in keys {
            let value = omaps::get(&self.meta, self.omap_levels(), o.omap, key)?;
            out.extend(value.map(|v| (key.clone(), v)));
        }
        Ok(Some(out))
    }

    /// Pairs of an omap with `first <= key < last`, `staged` ones (of a transaction being
    /// worked out) over the rest.
    pub(crate) fn omap_keys<'a>(
        &'a self,
        staged: Option<Level<'a>>,
        id: u64,
        first: &[u8],
        last: Option<&Bytes>,
    ) -> Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a> {
        omaps::pairs(&self.meta, staged.into_iter().chain(self.omap_levels()), id, first, last)
    }

    /// What has changed in omaps since the last checkpoint, the newest first.
    fn omap_levels(&self) -> impl Iterator<Item = Level<'_>> {
        let overlays = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        overlays.into_iter().flatten().map(Level::from)
    }

    /// Is a copy of this omap still to be made?
    pub(crate) fn omap_awaits_copy(&self, id: u64) -> bool {
        self.omap_levels().any(|level| level.copies.wants(id))
    }

    /// Bytes of space that the next checkpoint may need for a copy of an omap. Reads no leaves.
    pub(crate) fn room_for_copy(&self, from: u64) -> Result<u64> {
        let (levels, stored) = omaps::below(self.omap_levels(), from);
        let unstored: u64 = levels.into_iter().map(|(id, level)| level.bytes_of(id)).sum();
        Ok(2 * (self.meta.taken_by(&keys::omap(stored, &[]))? + unstored) + COPY_SLACK)
    }

    /// Omap pairs after `after` whose keys begin with `prefix`, in order, at most
    /// `max_entries` of together at most `max_bytes` (but one at least, if there is one).
    /// `None` if there is no such object.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn omap_range(
        &self,
        object: &HObject,
        after: Option<&[u8]>,
        prefix: &[u8],
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Option<OmapPage>> {
        let Some(o) = self.onode(object)? else { return Ok(None) };
        let mut page = OmapPage::default();
        // The first key behind `after` is `after` and a zero byte.
        let mut first = after.map_or_else(Vec::new, |a| [a, &[0]].concat());
        if first.as_slice() < prefix {
            first = prefix.to_vec();
        }
        let mut bytes = 0;
        for pair in self.omap_keys(None, o.omap, &first, None) {
            let (key, value) = pair?;
            if !key.starts_with(prefix) {
                break;
            }
            bytes += key.len() + value.len();
            if page.pairs.len() >= max_entries || (bytes > max_bytes && !page.pairs.is_empty()) {
                page.more = true;
                break;
            }
            page.pairs.push((key, value));
        }
        Ok(Some(page))
    }

    // ----- listings

    /// Up to `max` objects with `from <= object < until`, in object order.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>> {
        let (from, until) = (keys::object(from), keys::object(until));
        if from >= until {
            return Ok(Vec::new());
        }
        let mut streams: Vec<Stream<'_, Bytes, ()>> = Vec::with_capacity(3);
        for o in
            [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)].into_iter().flatten()
        {
            let range = o.heads.range::<[u8], _>((
                Bound::Included(from.as_slice()),
                Bound::Excluded(until.as_slice()),
            ));
            streams.push(Box::new(range.map(|(k, v)| Ok((k.clone(), v.as_ref().map(|_| ()))))));
        }
        streams.push(Box::new(
            self.meta.range(&from, &until).map(|pair| pair.map(|(k, _)| (k, Some(())))),
        ));
        Merge::new(streams).take(max).map(|k| keys::parse_object(&k?.0)).collect()
    }

    /// A meta record.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn meta(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        match layers.into_iter().flatten().find_map(|o| o.meta.get(key)) {
            Some(v) => Ok(v.clone()),
            None => self.meta.get(&keys::meta(key)),
        }
    }

    /// All meta records whose keys begin with `prefix`, in order.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn meta_range(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
        let mut streams: Vec<Stream<'_, Bytes, Bytes>> = Vec::with_capacity(3);
        for o in
            [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)].into_iter().flatten()
        {
            let range = o.meta.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
            let own = range.take_while(move |(k, _)| k.starts_with(prefix));
            streams.push(Box::new(own.map(|(k, v)| Ok((k.clone(), v.clone())))));
        }
        let key = keys::meta(prefix);
        let stored = self.meta.range(&key, &keys::prefix_end(&key));
        streams.push(Box::new(
            stored.map(|pair| pair.map(|(k, v)| (k.slice(1.min(k.len())..), Some(v)))),
        ));
        Merge::new(streams).collect()
    }

    /// All entries of a PG's log, oldest first.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn log_entries(&self, pg: PgId) -> Result<Vec<(EVersion, Bytes)>> {
        let mut all = Vec::new();
        let trimmed = checkpoint::stored_trim(&self.meta, pg)?;
        let prefix = keys::log_prefix(pg);
        for pair in self.meta.range(&prefix, &keys::prefix_end(&prefix)) {
            all.extend(checkpoint::decode_chunk(&pair?.1)?);
        }
        all.retain(|(v, _)| trimmed.is_none_or(|t| *v > t));
        let layers: [Option<&Overlay>; 2] =
            [self.frozen.as_ref().map(|f| &*f.overlay), Some(&self.active)];
        for delta in layers.into_iter().flatten().filter_map(|o| o.logs.get(&pg)) {
            delta.apply(&mut all);
        }
        Ok(all)
    }
}
