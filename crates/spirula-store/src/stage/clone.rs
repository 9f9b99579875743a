//! Clones: objects that share blocks until one of them changes.

use super::{Stage, StagedHead, end_of, field, pool_of, space_of, take_id};
use crate::alloc::{BLOCK, PhysRun};
use crate::error::{Result, StoreError};
use crate::keys;
use crate::onode::{INLINE_BLOCKS, Onode, SEGMENT_BLOCKS};
use crate::redo::{by_chunk, by_segment};
use crate::segment::{Blob, Piece, Released, Segment};
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_types::HObject;
use std::sync::Arc;

/// Most bytes of a range clone that may have to be copied.
const COPY_MAX: u64 = 64 << 20;

/// A [`Piece`] of its own.
#[derive(Clone)]
enum Shared {
    Plain { run: PhysRun, kind: Checksum, sums: Vec<u32> },
    Part { blob: Arc<Blob>, skip: u64, len: u64 },
}

impl From<Piece<'_>> for Shared {
    fn from(p: Piece<'_>) -> Self {
        match p {
            Piece::Plain { run, kind, sums } => Self::Plain { run, kind, sums: sums.to_vec() },
            Piece::Part { blob, skip, len } => Self::Part { blob: blob.clone(), skip, len },
        }
    }
}

impl Stage<'_> {
    /// One more owner for some blocks.
    fn reference(&mut self, run: PhysRun) -> Result<()> {
        for (chunk, first, len) in by_chunk(run) {
            let mut refs = self.refs(chunk)?;
            let len = if planted!(CloneMissesOwner) { len - 1 } else { len };
            if len > 0 && !refs.add(first, len) {
                return Err(StoreError::TooLarge { what: "number of clones", size: 1 << 32, limit: u32::MAX.into() });
            }
            self.refs.insert(chunk, refs);
        }
        self.redo.referenced(run);
        Ok(())
    }

    /// The head of the object to clone from, now marked as sharing its blocks.
    fn source(&mut self, from: &HObject) -> Result<Onode> {
        let key = Bytes::from(keys::object(from));
        if !self.heads.contains_key(&key) {
            let before = self.s.head(&key)?;
            let now = before.as_deref().cloned();
            self.heads.insert(key.clone(), Box::new(StagedHead { pool: pool_of(from), now, before }));
        }
        let found = self.heads.get_mut(&key).and_then(|h| h.now.as_mut());
        let o = found.ok_or_else(|| StoreError::NoSource(from.clone().into()))?;
        o.shared |= o.blocks > 0;
        Ok(o.clone())
    }

    pub(super) fn clone_from(&mut self, object: &HObject, slot: &mut Option<Onode>, from: &HObject) -> Result<()> {
        if object == from {
            return if slot.is_some() { Ok(()) } else { Err(StoreError::NoSource(from.clone().into())) };
        }
        let source = self.source(from)?;
        if let Some(old) = slot.take() {
            self.remove(old)?;
        }
        let mut o = Onode { id: take_id(&mut self.counters), omap: 0, ..source.clone() };
        if source.blocks > 0 {
            if let Some(seg) = &source.inline {
                self.share(seg)?;
            } else {
                let last = (source.size.div_ceil(BLOCK).max(1) - 1) / SEGMENT_BLOCKS;
                for seg_no in self.existing_segments(source.id, 0, last as u32)? {
                    let seg = self.segment(source.id, seg_no)?;
                    if !seg.is_empty() {
                        self.share(&seg)?;
                        self.redo.segment(o.id, seg_no, &seg);
                        self.segments.insert((o.id, seg_no), Some(seg));
                    }
                }
            }
        }
        if source.omap != 0 {
            self.clone_omap(&mut o, source.omap)?;
        }
        *slot = Some(o);
        Ok(())
    }

    /// Takes note that one more map like `seg` is there.
    fn share(&mut self, seg: &Segment) -> Result<()> {
        for run in seg.device_runs() {
            self.reference(run)?;
        }
        let compressed = seg.usage().compressed;
        if compressed > 0 {
            space_of(&mut self.space, self.pool)[field::COMPRESSED_ORIGINAL] += (compressed * BLOCK) as i64;
        }
        Ok(())
    }

    fn clone_omap(&mut self, o: &mut Onode, from: u64) -> Result<()> {
        let id = self.omap_id(o);
        let pairs: Vec<(Bytes, Bytes)> =
            self.s.omap_keys(Some((&self.omap, &self.gone)), from, &[], None).collect::<Result<_>>()?;
        for (k, v) in &pairs {
            self.omap_set(id, k, v)?;
        }
        let header = match self.omap_headers.get(&from) {
            Some(h) => Some(h.clone()),
            None => self.s.stored_omap_header(from)?,
        };
        if let Some(h) = header {
            self.redo.omap_header(id, &h);
            self.omap_headers.insert(id, h);
        }
        Ok(())
    }

    /// Makes `[to, to + length)` read as `(offset, length)` of `from`.
    pub(super) fn clone_range(
        &mut self,
        object: &HObject,
        slot: &mut Option<Onode>,
        from: &HObject,
        (offset, length): (u64, u64),
        to: u64,
    ) -> Result<()> {
        let (from_end, end) = (end_of(offset, length)?, end_of(to, length)?);
        let missing = || StoreError::NoSource(from.clone().into());
        let source = if object == from {
            let o = slot.as_mut().ok_or_else(missing)?;
            o.shared |= o.blocks > 0;
            o.clone()
        } else {
            self.source(from)?
        };
        let mut own = match slot.take() {
            Some(o) => o,
            None => Onode::new(take_id(&mut self.counters)),
        };
        let o = &mut own;
        if length > 0 {
            // Whole blocks are shared, the rest is copied; all is read before anything changes.
            let first = to.next_multiple_of(BLOCK);
            let last = match end / BLOCK * BLOCK {
                // Behind both ends there are zeros only.
                _ if end >= o.size && from_end >= source.size => end.next_multiple_of(BLOCK),
                last => last,
            };
            let alike = offset % BLOCK == to % BLOCK && first < last;
            let parts = if alike { vec![(to, first), (last.min(end), end)] } else { vec![(to, end)] };
            let copied: u64 = parts.iter().map(|(a, b)| b - a).sum();
            if copied > COPY_MAX {
                return Err(StoreError::TooLarge { what: "range to copy", size: copied, limit: COPY_MAX });
            }
            let mut data = Vec::with_capacity(parts.len());
            for (a, b) in parts {
                data.push((a, b - a, self.read_range(from, &source, a - to + offset, b - a)?));
            }
            if alike {
                self.share_range(
                    object,
                    o,
                    &source,
                    (first - to + offset) / BLOCK,
                    first / BLOCK,
                    (last - first) / BLOCK,
                )?;
                o.size = o.size.max(last.min(end));
            }
            for (at, len, data) in data {
                match data {
                    Some(d) => self.write(object, o, at, &Bytes::from(d))?,
                    None => self.zero(object, o, at, len)?,
                }
            }
            o.size = o.size.max(end);
        }
        *slot = Some(own);
        Ok(())
    }

    /// A range's bytes; `None` if nothing of it is mapped.
    fn read_range(&self, object: &HObject, o: &Onode, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        let mut out: Option<Vec<u8>> = None;
        let end = (offset + len).min(o.size);
        let mut at = offset;
        while at < end {
            let block = at / BLOCK;
            let n = ((block + 1) * BLOCK).min(end) - at;
            if let Some(b) = self.old_block(object, o, block)? {
                let room = out.get_or_insert_with(|| vec![0; len as usize]);
                let room = room.get_mut((at - offset) as usize..(at - offset + n) as usize).unwrap_or_default();
                let skip = (at - block * BLOCK) as usize;
                room.copy_from_slice(b.get(skip..skip + n as usize).unwrap_or_default());
            }
            at += n;
        }
        Ok(out)
    }

    /// Maps `n` blocks from `to` on to what `source` has from block `first` on.
    fn share_range(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        source: &Onode,
        first: u64,
        to: u64,
        n: u64,
    ) -> Result<()> {
        let mut pieces: Vec<(u64, Shared)> = Vec::new();
        let mut collect = |base: u64, seg: &Segment, a: u64, b: u64| {
            pieces.extend(seg.mapped(a, b).map(|(l, p)| (base + l - first + to, Shared::from(p))));
        };
        if let Some(seg) = &source.inline {
            collect(0, seg, first, first + n);
        } else {
            let (from, last) = ((first / SEGMENT_BLOCKS) as u32, ((first + n - 1) / SEGMENT_BLOCKS) as u32);
            for seg_no in self.existing_segments(source.id, from, last)? {
                let base = u64::from(seg_no) * SEGMENT_BLOCKS;
                let seg = self.segment(source.id, seg_no)?;
                collect(base, &seg, first.max(base) - base, (first + n).min(base + SEGMENT_BLOCKS) - base);
            }
        }
        // Referred to first, lest what is replaced takes it along.
        for (_, p) in &pieces {
            self.reference_piece(p)?;
        }
        o.shared |= !pieces.is_empty();
        self.unmap(o, to, to + n)?;
        for (at, p) in pieces {
            self.map_shared(object, o, at, p)?;
        }
        Ok(())
    }

    fn reference_piece(&mut self, p: &Shared) -> Result<()> {
        match p {
            Shared::Plain { run, .. } => self.reference(*run),
            Shared::Part { blob, .. } => blob.runs.iter().try_for_each(|r| self.reference(*r)),
        }
    }

    /// Maps free space of the object to blocks referred to already.
    fn map_shared(&mut self, object: &HObject, o: &mut Onode, at: u64, piece: Shared) -> Result<()> {
        let n = match &piece {
            Shared::Plain { run, .. } => run.len,
            Shared::Part { len, .. } => *len,
        };
        if at + n > INLINE_BLOCKS {
            self.outgrow(o);
        }
        for (i, (seg_no, seg_at, len)) in by_segment(at, n).enumerate() {
            let done = u64::from(seg_no) * SEGMENT_BLOCKS + seg_at - at;
            match &piece {
                Shared::Part { blob, skip, .. } => {
                    if i > 0 {
                        self.reference_piece(&piece)?;
                    }
                    if !self.map_blob(o, at + done, len, blob, skip + done)? {
                        // The segment had it already, and refers to it once.
                        self.drop_blob(true, blob)?;
                    }
                }
                Shared::Plain { run, kind, sums } => {
                    let words = kind.words();
                    let part = PhysRun { start: run.start + done, len };
                    let own = sums.get(done as usize * words..(done + len) as usize * words).unwrap_or_default();
                    self.map_shared_plain(object, o, at + done, part, *kind, own)?;
                }
            }
        }
        Ok(())
    }

    /// As [`Stage::map_shared`], for plain blocks within one segment.
    fn map_shared_plain(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        at: u64,
        run: PhysRun,
        kind: Checksum,
        sums: &[u32],
    ) -> Result<()> {
        let (seg_no, seg_at) = ((at / SEGMENT_BLOCKS) as u32, at % SEGMENT_BLOCKS);
        let mut seg = match &mut o.inline {
            Some(seg) => std::mem::take(seg),
            None => self.segment(o.id, seg_no)?,
        };
        if seg.kind(kind) == kind {
            let before = seg.usage();
            seg.replace(seg_at, run.len, &[run], kind, sums, &mut Released::default());
            self.account(o, before, seg.usage());
            self.put_back(o, seg_no, seg);
            return Ok(());
        }
        // Another kind of checksum there: the blocks are copied after all.
        self.put_back(o, seg_no, seg);
        let data = self.s.read_piece(object, at * BLOCK, &Piece::Plain { run, kind, sums })?;
        self.store_plain(o, at, &[Bytes::from(data)])?;
        self.drop_run(true, run).map(|_| ())
    }

    fn put_back(&mut self, o: &mut Onode, seg_no: u32, seg: Segment) {
        match &mut o.inline {
            Some(inline) => *inline = seg,
            None => {
                self.redo.segment(o.id, seg_no, &seg);
                self.segments.insert((o.id, seg_no), (!seg.is_empty()).then_some(seg));
            }
        }
    }
}
