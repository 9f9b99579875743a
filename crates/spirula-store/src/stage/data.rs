//! Data of objects: blocks taken, filled, mapped, unmapped and let go of.

use super::{Stage, end_of, field, space_of};
use crate::alloc::{BLOCK, PhysRun, push_run};
use crate::compress::Compressed;
use crate::error::{Result, StoreError};
use crate::layer::own_bit;
use crate::maps::{self, Maps, View, WHOLE};
use crate::onode::{INLINE_BLOCKS, Onode, SEGMENT_BLOCKS};
use crate::pack::blobs;
use crate::redo::{by_chunk, by_segment};
use crate::refs::{CHUNK, Refs};
use crate::segment::{Blob, Piece, Released, Segment, Usage, mask};
use crate::store::Pending;
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_types::HObject;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// What of a segment may change.
pub(super) enum Counted {
    /// All that an object sees of it.
    Whole(Usage),
    /// So many blocks, none of them compressed.
    Part(u64),
}

impl Stage<'_> {
    /// Takes `n` blocks, in logical order.
    fn take(&mut self, n: u64) -> Result<Vec<PhysRun>> {
        let mut runs = Vec::new();
        let available = self.s.alloc().free().saturating_sub(self.reserve);
        let no_space = |available| StoreError::NoSpace { needed: n * BLOCK, available };
        if n > available {
            return Err(no_space(available * BLOCK));
        }
        self.s.room.take(&*self.s.block, n * BLOCK).map_err(no_space)?;
        if !self.s.alloc().allocate(n, &mut runs) {
            return Err(no_space(available * BLOCK));
        }
        if planted!(FragmentedIsFull) && runs.len() > 1 {
            runs.iter().for_each(|r| assert!(self.s.alloc().mark_free(*r)));
            return Err(no_space(available * BLOCK));
        }
        for r in &runs {
            push_run(&mut self.taken, *r);
        }
        space_of(&mut self.space, self.pool)[field::ALLOCATED] += (n * BLOCK) as i64;
        Ok(runs)
    }

    /// Stores `pieces` (whole blocks) as the object's blocks from `first` on, compressed
    /// where the pool wants that and it pays.
    pub(super) fn store(&mut self, o: &mut Onode, first: u64, pieces: Vec<Bytes>) -> Result<()> {
        if !self.options.wants(o.hints) {
            return self.store_plain(o, first, &pieces);
        }
        let end = first + pieces.iter().map(|p| p.len() as u64 / BLOCK).sum::<u64>();
        let mut rest = pieces.into_iter();
        let mut piece = Bytes::new();
        let (mut plain, mut plain_first) = (Vec::new(), first);
        for (at, n) in blobs(first, end, self.options.blob_blocks()) {
            let chunk = gather(&mut piece, &mut rest, (n * BLOCK) as usize);
            let packed = self.packed.find(&chunk, &self.options);
            if let Some(stored) = packed.unwrap_or_else(|| self.options.try_compress(&chunk)) {
                self.store_plain(o, plain_first, &std::mem::take(&mut plain))?;
                self.store_blob(o, at, n, stored)?;
                plain_first = at + n;
            } else {
                plain.push(chunk);
            }
        }
        self.store_plain(o, plain_first, &plain)
    }

    /// Puts data of whole blocks into taken ones.
    fn place(&mut self, runs: &[PhysRun], pieces: &[Bytes]) {
        let mut rest = pieces.iter().cloned();
        let mut piece = Bytes::new();
        for run in runs {
            let (mut at, end) = (run.start, run.start + run.len);
            while at < end {
                if piece.is_empty() {
                    piece = rest.next().unwrap_or_default();
                    assert!(!piece.is_empty(), "fewer data blocks than taken");
                }
                let take = piece.len().min(((end - at) * BLOCK) as usize);
                let data = piece.split_to(take);
                self.s.pending.insert(at, Pending { seq: self.seq, data: data.clone() });
                self.pieces.push((at, data));
                at += take as u64 / BLOCK;
            }
        }
    }

    pub(super) fn store_plain(
        &mut self,
        o: &mut Onode,
        first: u64,
        pieces: &[Bytes],
    ) -> Result<()> {
        let n = pieces.iter().map(|p| p.len() as u64 / BLOCK).sum::<u64>();
        if n == 0 {
            return Ok(());
        }
        let runs = self.take(n)?;
        self.place(&runs, pieces);
        let mut blocks = pieces.iter().flat_map(|p| p.chunks(BLOCK as usize));
        self.map(o, first, n, &runs, &mut blocks)
    }

    /// Stores compressed data as the content of `n` blocks, which lie in one segment.
    fn store_blob(&mut self, o: &mut Onode, first: u64, n: u64, stored: Compressed) -> Result<()> {
        let Compressed { data, len, sums } = stored;
        let runs = self.take(data.len() as u64 / BLOCK)?;
        self.place(&runs, std::slice::from_ref(&data));
        let kind = self.options.checksum;
        let blob = Blob {
            algorithm: self.options.algorithm,
            content: n as u8,
            stored: len,
            kind,
            runs,
            sums,
        };
        let space = space_of(&mut self.space, self.pool);
        space[field::COMPRESSED] += i64::from(len);
        space[field::COMPRESSED_ALLOCATED] += data.len() as i64;
        self.map_blob(o, first, n, &Arc::new(blob), 0).map(|_| ())
    }

    /// Maps a part of one segment to the content of a blob. True if the segment did not
    /// refer to that blob yet.
    pub(super) fn map_blob(
        &mut self,
        o: &mut Onode,
        first: u64,
        n: u64,
        blob: &Arc<Blob>,
        skip: u64,
    ) -> Result<bool> {
        let mut released = Released::default();
        if first + n > INLINE_BLOCKS {
            self.outgrow(o);
        }
        let new = if let Some(seg) = &mut o.inline {
            let before = seg.usage();
            let new = seg.put_blob(first, n, blob, skip, &mut released);
            let after = seg.usage();
            self.account(o, before, after);
            new
        } else {
            let (seg_no, at) = ((first / SEGMENT_BLOCKS) as u32, first % SEGMENT_BLOCKS);
            let mut seg = self.segment(o, seg_no)?;
            let before = Counted::Whole(self.usage(o, seg_no, &seg)?);
            let new = seg.put_blob(at, n, blob, skip, &mut released);
            self.redo.segment(o.id, seg_no, &seg);
            self.put(o, seg_no, seg, before, n)?;
            new
        };
        self.release(o.shared, released)?;
        Ok(new)
    }

    /// Moves the map out of the head, into segments.
    pub(super) fn outgrow(&mut self, o: &mut Onode) {
        if let Some(seg) = o.inline.take()
            && !seg.is_empty()
        {
            self.redo.segment(o.id, 0, &seg);
            self.segments.insert((o.id, 0), Some(Arc::new(seg)));
        }
    }

    /// What an object sees of a segment, where `own` is its own record of it.
    fn usage(&self, o: &Onode, seg_no: u32, own: &Segment) -> Result<Usage> {
        Ok(if o.base == 0 { own.usage() } else { View::of(self, o, seg_no, WHOLE)?.usage() })
    }

    /// What a change of `len` blocks from `at` on may change of that.
    pub(super) fn counted(
        &self,
        o: &Onode,
        seg_no: u32,
        at: u64,
        len: u64,
        own: &Segment,
    ) -> Result<Counted> {
        if o.base != 0 {
            // Of an object without holes all blocks are mapped: no need to look for them through
            // the layers.
            let end = u64::from(seg_no) * SEGMENT_BLOCKS + at + len;
            if o.compressed == Some(0) && o.blocks == o.size.div_ceil(BLOCK) && end <= o.blocks {
                return Ok(Counted::Part(len));
            }
            if let Some(n) = View::of(self, o, seg_no, mask(at, len))?.plain() {
                return Ok(Counted::Part(n));
            }
        }
        Ok(Counted::Whole(self.usage(o, seg_no, own)?))
    }

    /// Puts an object's own record of a segment back, of which `now` blocks were mapped anew
    /// since it was `before`.
    pub(super) fn put(
        &mut self,
        o: &mut Onode,
        seg_no: u32,
        seg: Segment,
        before: Counted,
        now: u64,
    ) -> Result<()> {
        let own = Arc::new(seg);
        self.segments.insert((o.id, seg_no), (!own.is_empty()).then(|| own.clone()));
        o.own |= if o.base == 0 { 0 } else { own_bit(seg_no) };
        let plain = |n| Usage { blocks: n, allocated: n, compressed: 0 };
        let (before, after) = match before {
            Counted::Whole(before) => (before, self.usage(o, seg_no, &own)?),
            Counted::Part(n) => (plain(n), plain(now)),
        };
        self.account(o, before, after);
        Ok(())
    }

    /// The checksum to use for data to be mapped in a segment, where `wanted` would be liked.
    pub(super) fn kind(
        &self,
        o: &mut Onode,
        seg_no: u32,
        own: &Segment,
        wanted: Checksum,
    ) -> Result<Checksum> {
        let known = match own.sums_kind() {
            None if o.base != 0 && o.sums == Some(wanted) => Some(wanted),
            None if o.base != 0 => {
                // It may have another one here than elsewhere from now on.
                if !planted!(KindOutlived) {
                    o.sums = None;
                }
                maps::kind(self, o, seg_no)?
            }
            own => own,
        };
        Ok(known.unwrap_or(wanted))
    }

    pub(super) fn account(&mut self, o: &mut Onode, before: Usage, after: Usage) {
        o.account(before, after);
        if before.compressed != after.compressed {
            let space = space_of(&mut self.space, self.pool);
            space[field::COMPRESSED_ORIGINAL] +=
                (after.compressed as i64 - before.compressed as i64) * BLOCK as i64;
        }
    }

    /// Maps `[first, first + n)` to `runs`, whose content is `blocks`.
    fn map(
        &mut self,
        o: &mut Onode,
        first: u64,
        n: u64,
        runs: &[PhysRun],
        blocks: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<()> {
        let wanted = self.options.checksum;
        let mut sums_of = |kind: Checksum, n: u64| {
            let mut sums = Vec::with_capacity(n as usize * kind.words());
            blocks.take(n as usize).for_each(|b| kind.push(b, &mut sums));
            sums
        };
        let mut released = Released::default();
        if first + n > INLINE_BLOCKS {
            self.outgrow(o);
        }
        if let Some(seg) = &mut o.inline {
            let (before, kind) = (seg.usage(), seg.kind(wanted));
            seg.replace(first, n, runs, kind, &sums_of(kind, n), &mut released);
            let after = seg.usage();
            self.account(o, before, after);
            self.release(o.shared, released)?;
            return self.forget_sharing(o);
        }
        let mut runs = runs.iter().copied();
        let mut run = PhysRun { start: 0, len: 0 };
        for (seg_no, at, len) in by_segment(first, n) {
            let mut part = Vec::new();
            let mut left = len;
            while left > 0 {
                if run.len == 0 {
                    match runs.next() {
                        Some(r) => run = r,
                        None => break,
                    }
                }
                let k = run.len.min(left);
                part.push(PhysRun { start: run.start, len: k });
                run = PhysRun { start: run.start + k, len: run.len - k };
                left -= k;
            }
            let mut seg = self.segment(o, seg_no)?;
            let (before, kind) =
                (self.counted(o, seg_no, at, len, &seg)?, self.kind(o, seg_no, &seg, wanted)?);
            let sums = sums_of(kind, len);
            if planted!(HiddenBlocksFreed) && o.base != 0 {
                let view = View::of(self, o, seg_no, mask(at, len))?;
                let own = usize::from(self.record(o.id, seg_no)?.is_some());
                view.pieces(own).for_each(|(_, piece)| match piece {
                    Piece::Plain { run, .. } => released.runs.push(run),
                    Piece::Part { .. } => {}
                });
            }
            self.redo.patch(o.base != 0, o.id, seg_no, at, len, &part, kind, &sums);
            seg.replace(at, len, &part, kind, &sums, &mut released);
            self.put(o, seg_no, seg, before, len)?;
        }
        self.release(o.shared, released)
    }

    /// Unmaps the blocks `[first, end)`, letting go of what was there.
    pub(super) fn unmap(&mut self, o: &mut Onode, first: u64, end: u64) -> Result<()> {
        if first >= end {
            return Ok(());
        }
        let mut released = Released::default();
        if let Some(seg) = &mut o.inline {
            if first < INLINE_BLOCKS {
                let before = seg.usage();
                let len = end.min(INLINE_BLOCKS) - first;
                seg.replace(first, len, &[], Checksum::default(), &[], &mut released);
                let after = seg.usage();
                self.account(o, before, after);
            }
            self.release(o.shared, released)?;
            return self.forget_sharing(o);
        }
        if o.base != 0 && first == 0 && end >= o.size.div_ceil(BLOCK) {
            return self.drop_map(o);
        }
        let last = (end - 1) / SEGMENT_BLOCKS;
        for seg_no in maps::numbers(self, o, (first / SEGMENT_BLOCKS) as u32, last as u32)? {
            let base = u64::from(seg_no) * SEGMENT_BLOCKS;
            let at = first.max(base) - base;
            let len = end.min(base + SEGMENT_BLOCKS) - base - at;
            let mut seg = self.segment(o, seg_no)?;
            if View::of(self, o, seg_no, mask(at, len))?.is_empty() {
                continue;
            }
            let (before, kind) =
                (self.counted(o, seg_no, at, len, &seg)?, seg.kind(Checksum::default()));
            seg.replace(at, len, &[], kind, &[], &mut released);
            if seg.is_empty() {
                self.redo.segment_gone(o.id, seg_no);
            } else {
                self.redo.patch(o.base != 0, o.id, seg_no, at, len, &[], kind, &[]);
            }
            self.put(o, seg_no, seg, before, 0)?;
        }
        self.release(o.shared, released)
    }

    /// Clears the mark of a small object that shares no block any more.
    fn forget_sharing(&self, o: &mut Onode) -> Result<()> {
        let Some(seg) = o.inline.as_ref().filter(|_| o.shared) else { return Ok(()) };
        for (chunk, first, len) in seg.device_runs().flat_map(by_chunk) {
            if self.is_referenced(chunk, first, len)? {
                return Ok(());
            }
        }
        o.shared = false;
        Ok(())
    }

    /// Lets go of what a map refers to no more. `shared`: other owners may be left.
    pub(super) fn release(&mut self, shared: bool, released: Released) -> Result<()> {
        for run in released.runs {
            self.drop_run(shared, run)?;
        }
        for blob in released.blobs {
            self.drop_blob(shared, &blob)?;
        }
        Ok(())
    }

    /// Lets go of a blob, whose blocks all have the same owners.
    pub(super) fn drop_blob(&mut self, shared: bool, blob: &Blob) -> Result<()> {
        let mut gone = false;
        for run in &blob.runs {
            gone |= self.drop_run(shared, *run)?;
        }
        if gone {
            let space = space_of(&mut self.space, self.pool);
            space[field::COMPRESSED] -= i64::from(blob.stored);
            space[field::COMPRESSED_ALLOCATED] -= (blob.blocks() * BLOCK) as i64;
        }
        Ok(())
    }

    /// Lets go of blocks: frees those without another owner. True if there were any.
    pub(super) fn drop_run(&mut self, shared: bool, run: PhysRun) -> Result<bool> {
        if !shared {
            self.free(run);
            return Ok(true);
        }
        let mut any = false;
        for (chunk, first, len) in by_chunk(run) {
            if !self.has_refs(chunk)? {
                any = true;
                self.free(PhysRun { start: chunk * CHUNK + first, len });
                continue;
            }
            let mut parts = Vec::new();
            self.refs_mut(chunk)?.remove(first, len, |at, n, shared| {
                parts.push((PhysRun { start: chunk * CHUNK + at, len: n }, shared))
            });
            for (run, shared) in parts {
                if shared {
                    self.redo.unreferenced(run);
                } else {
                    any = true;
                    self.free(run);
                }
            }
        }
        Ok(any)
    }

    fn free(&mut self, run: PhysRun) {
        push_run(&mut self.freed, run);
        space_of(&mut self.space, self.pool)[field::ALLOCATED] -= (run.len * BLOCK) as i64;
    }

    /// Has a block of a chunk more than one owner, as it is in this transaction?
    fn has_refs(&self, chunk: u64) -> Result<bool> {
        match self.refs.get(&chunk) {
            Some(r) => Ok(!r.is_empty()),
            None => Ok(self.s.refs(chunk)?.is_some_and(|r| !r.is_empty())),
        }
    }

    /// Has one of the blocks `[first, first + len)` of a chunk more than one owner, as it is in
    /// this transaction?
    pub(super) fn is_referenced(&self, chunk: u64, first: u64, len: u64) -> Result<bool> {
        match self.refs.get(&chunk) {
            Some(r) => Ok(r.has(first, len)),
            None => Ok(self.s.refs(chunk)?.is_some_and(|r| r.has(first, len))),
        }
    }

    /// Reference counts of a chunk as they are in this transaction, to be changed.
    pub(super) fn refs_mut(&mut self, chunk: u64) -> Result<&mut Refs> {
        match self.refs.entry(chunk) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let stored = self.s.refs(chunk)?;
                Ok(place.insert(stored.map_or_else(Refs::default, |r| (*r).clone())))
            }
        }
    }

    /// An object's own record of a segment as it is in this transaction, to be changed and
    /// put back.
    pub(super) fn segment(&self, o: &Onode, seg: u32) -> Result<Segment> {
        if o.base == 0 {
            return Ok(self.record(o.id, seg)?.map_or_else(Segment::default, |s| (*s).clone()));
        }
        // Since it was cloned nothing was written there: no need to look for a record in the tree.
        let own = if o.own & own_bit(seg) != 0 { self.record(o.id, seg)? } else { None };
        Ok(own.map_or_else(Segment::over, |s| (*s).clone()))
    }

    /// A block's content, `None` if it is not mapped.
    pub(super) fn old_block(
        &self,
        object: &HObject,
        o: &Onode,
        block: u64,
    ) -> Result<Option<Vec<u8>>> {
        let read = |piece: Option<Piece<'_>>| {
            piece.map(|p| self.s.read_piece(object, block * BLOCK, &p)).transpose()
        };
        if let Some(seg) = &o.inline {
            return if block < INLINE_BLOCKS {
                read(seg.mapped(block, block + 1).next().map(|(_, p)| p))
            } else {
                Ok(None)
            };
        }
        let (seg_no, at) = ((block / SEGMENT_BLOCKS) as u32, block % SEGMENT_BLOCKS);
        let view = View::of(self, o, seg_no, mask(at, 1))?;
        read(view.pieces(0).next().map(|(_, p)| p))
    }

    /// A block's new content: `part` at `from`, the rest as it was.
    fn merged(
        &mut self,
        object: &HObject,
        o: &Onode,
        block: u64,
        from: usize,
        part: &[u8],
    ) -> Result<Bytes> {
        // Behind the object's end there are only zeros; no need to read them.
        let old_len = o.size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        let old = if from.min(old_len) > 0 || from + part.len() < old_len {
            self.old_block(object, o, block)?
        } else {
            None
        };
        let mut buf = old.unwrap_or_else(|| vec![0; BLOCK as usize]);
        if let Some(room) = buf.get_mut(from..from + part.len()) {
            room.copy_from_slice(part);
        }
        Ok(Bytes::from(buf))
    }

    pub(super) fn write(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        offset: u64,
        data: &Bytes,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = end_of(offset, data.len() as u64)?;
        let first = offset / BLOCK;
        let mut pieces = Vec::with_capacity(3);
        let mut rest = data.clone();
        let skew = (offset % BLOCK) as usize;
        if skew != 0 || (rest.len() as u64) < BLOCK {
            let part = rest.split_to(rest.len().min(BLOCK as usize - skew));
            pieces.push(self.merged(object, o, first, skew, &part)?);
        }
        let whole = rest.len() / BLOCK as usize * BLOCK as usize;
        if whole > 0 {
            pieces.push(rest.split_to(whole));
        }
        if !rest.is_empty() {
            pieces.push(self.merged(object, o, end / BLOCK, 0, &rest)?);
        }
        self.store(o, first, pieces)?;
        o.size = o.size.max(end);
        self.compact(object, o, first, end.div_ceil(BLOCK))?;
        Ok(())
    }

    /// Makes a part of one block zeros.
    fn zero_part(&mut self, object: &HObject, o: &mut Onode, from: u64, end: u64) -> Result<()> {
        let block = from / BLOCK;
        if from < end
            && let Some(mut buf) = self.old_block(object, o, block)?
        {
            let base = block * BLOCK;
            buf.get_mut((from - base) as usize..(end - base) as usize).unwrap_or_default().fill(0);
            if planted!(TruncateInPlace)
                && let Some(run) = o.inline.as_ref().and_then(|s| s.device_runs().last())
            {
                // As if the tail had room for itself.
                let _ = self.s.block.write_at(&[&buf], (run.start + run.len - 1) * BLOCK);
            }
            self.store_plain(o, block, &[Bytes::from(buf)])?;
        }
        Ok(())
    }

    pub(super) fn zero(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        let end = end_of(offset, length)?;
        // Up to the object's end the last block may go as a whole.
        let cut = if end >= o.size { end.next_multiple_of(BLOCK) } else { end };
        let (first, last) = (offset.div_ceil(BLOCK), cut / BLOCK);
        if first > last {
            self.zero_part(object, o, offset, end)?;
        } else {
            self.zero_part(object, o, offset, first * BLOCK)?;
            self.zero_part(object, o, last * BLOCK, cut)?;
            // Nothing is mapped behind the object's end.
            self.unmap(o, first, last.min(o.size.div_ceil(BLOCK)))?;
        }
        o.size = o.size.max(end);
        Ok(())
    }

    pub(super) fn truncate(&mut self, object: &HObject, o: &mut Onode, size: u64) -> Result<()> {
        end_of(size, 0)?;
        if size < o.size {
            self.zero_part(object, o, size, size.next_multiple_of(BLOCK))?;
            self.unmap(o, size.div_ceil(BLOCK), o.size.div_ceil(BLOCK))?;
        }
        o.size = size;
        Ok(())
    }

    pub(super) fn remove(&mut self, mut o: Onode) -> Result<()> {
        let reserve = self.s.reserve();
        if planted!(DeletionNeedsSpace) && self.s.alloc().free() <= reserve {
            return Err(StoreError::NoSpace { needed: BLOCK, available: 0 });
        }
        let end = o.size.div_ceil(BLOCK);
        if o.base != 0 {
            self.drop_map(&mut o)?;
        } else {
            self.unmap(&mut o, 0, end)?;
        }
        self.omap_clear(&mut o)
    }
}

/// The next `n` bytes of some pieces, without a copy where one piece has them.
fn gather(piece: &mut Bytes, rest: &mut impl Iterator<Item = Bytes>, n: usize) -> Bytes {
    while piece.is_empty() {
        match rest.next() {
            Some(next) => *piece = next,
            None => return Bytes::new(),
        }
    }
    if piece.len() >= n {
        return piece.split_to(n);
    }
    let mut all = Vec::with_capacity(n);
    while all.len() < n {
        if piece.is_empty() {
            match rest.next() {
                Some(next) => *piece = next,
                None => break,
            }
        }
        let part = piece.split_to(piece.len().min(n - all.len()));
        all.extend_from_slice(&part);
    }
    Bytes::from(all)
}
