//! Staging: works out everything a transaction changes before any of it is applied.
//!
//! Space is taken, partial blocks are read and merged, checksums computed and the journal
//! record written here; on any error [`Stage::abort`] gives the space back and nothing has
//! happened. [`Stage::commit`] cannot fail.

use crate::alloc::{BLOCK, PhysRun, push_run};
use crate::commit::Record;
use crate::error::{Result, StoreError};
use crate::journal::{self, RECORD_HEADER};
use crate::keys::{self, KEY_MAX};
use crate::onode::{INLINE_BLOCKS, Onode, SEGMENT_BLOCKS, Segment};
use crate::overlay::Counters;
use crate::redo::{RedoWriter, by_segment};
use crate::store::{JOURNALED_PAYLOAD, Pending, Store};
use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_types::HObject;
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Largest object, bytes: segment numbers are 32 bits.
const OBJECT_MAX: u64 = SEGMENT_BLOCKS * BLOCK * u32::MAX as u64;
/// Bytes cloned at a time.
const CLONE_STEP: u64 = 4 << 20;

struct StagedHead {
    /// `None`: removed, or never there.
    now: Option<Onode>,
    before: Option<Arc<Onode>>,
}

/// A transaction being worked out.
pub(crate) struct Stage<'s> {
    s: &'s mut Store,
    seq: u64,
    redo: RedoWriter,
    heads: BTreeMap<Bytes, StagedHead>,
    segments: BTreeMap<(u64, u32), Option<Segment>>,
    omap: BTreeMap<(u64, Bytes), Option<Bytes>>,
    omap_headers: BTreeMap<u64, Bytes>,
    dead: Vec<u64>,
    taken: Vec<PhysRun>,
    freed: Vec<PhysRun>,
    pieces: Vec<(u64, Bytes)>,
    counters: Counters,
    reserve: u64,
    /// The finished journal record, and whether payload goes straight to its blocks.
    record: (Vec<u8>, bool),
}

impl<'s> Stage<'s> {
    pub fn new(s: &'s mut Store, txn: &Transaction) -> Self {
        let grows = |op: &ObjectOp| matches!(op, ObjectOp::Write { .. } | ObjectOp::CloneFrom(_));
        let reserve = if txn.objects.iter().flat_map(|u| &u.ops).any(grows) { s.reserve() } else { 0 };
        let (seq, counters) = (s.seq + 1, s.counters);
        Self {
            s,
            seq,
            redo: RedoWriter::new(),
            heads: BTreeMap::new(),
            segments: BTreeMap::new(),
            omap: BTreeMap::new(),
            omap_headers: BTreeMap::new(),
            dead: Vec::new(),
            taken: Vec::new(),
            freed: Vec::new(),
            pieces: Vec::new(),
            counters,
            reserve,
            record: (Vec::new(), false),
        }
    }

    /// Works everything out.
    pub fn run(&mut self, txn: &Transaction) -> Result<()> {
        for update in &txn.objects {
            self.update(update)?;
        }
        for op in &txn.meta {
            self.meta(op)?;
        }
        self.finish()
    }

    /// Gives back what was taken.
    pub fn abort(self) {
        for (start, _) in &self.pieces {
            self.s.pending.remove(start);
        }
        for run in &self.taken {
            assert!(self.s.alloc.mark_free(*run), "staged blocks {run:?} were not taken");
        }
    }

    /// Applies what [`Stage::run`] worked out and queues it. Returns the transaction's number.
    pub fn commit(self, txn: &Transaction) -> u64 {
        let s = self.s;
        let (redo, direct) = self.record;
        let record = Record { seq: self.seq, redo, pieces: self.pieces, direct };
        for (key, head) in self.heads {
            let onode = head.now.map(Arc::new);
            let cost = key.len() + 96 + onode.as_ref().map_or(0, |o| o.cost());
            s.heads.borrow_mut().insert(&key, onode.clone(), cost);
            s.active.put_head(key, onode);
        }
        for ((id, seg), value) in self.segments {
            let value = value.map(Arc::new);
            let cost = 96 + value.as_ref().map_or(0, |v| v.cost());
            s.segments.borrow_mut().insert(&(id, seg), value.clone(), cost);
            s.active.put_segment(id, seg, value);
        }
        for ((id, key), value) in self.omap {
            s.active.put_omap(id, key, value);
        }
        for (id, value) in self.omap_headers {
            s.active.put_omap_header(id, Some(value));
        }
        for id in self.dead {
            s.active.kill_omap(id);
        }
        for op in &txn.meta {
            s.apply_meta(op);
        }
        for run in self.freed {
            s.alloc.touch(run);
            s.freed.push_back((self.seq, run));
        }
        for (start, _) in &record.pieces {
            s.pending_order.push_back((self.seq, *start));
        }
        s.counters = self.counters;
        s.seq = self.seq;
        s.enqueue(record);
        self.seq
    }

    fn finish(&mut self) -> Result<()> {
        for (key, head) in &self.heads {
            if head.now.is_none() && head.before.is_none() {
                continue;
            }
            self.redo.head(key, head.now.as_ref());
            let size = |o: &Onode| o.stored();
            self.counters.stored += head.now.as_ref().map_or(0, size);
            self.counters.stored -= head.before.as_ref().map_or(0, |b| size(b)).min(self.counters.stored);
            self.counters.objects += u64::from(head.now.is_some());
            self.counters.objects -= u64::from(head.before.is_some()).min(self.counters.objects);
        }
        self.heads.retain(|_, h| h.now.is_some() || h.before.is_some());
        let data: usize = self.pieces.iter().map(|(_, d)| d.len()).sum();
        let limit = self.s.record_max();
        let direct = data > JOURNALED_PAYLOAD.min(limit as usize / 2);
        for run in &self.taken {
            self.redo.taken(*run, !direct);
        }
        for run in &self.freed {
            self.redo.freed(*run);
        }
        self.redo.counters(&self.counters);
        let redo = std::mem::take(&mut self.redo).into_vec();
        let size = journal::frame_size(RECORD_HEADER + redo.len() + if direct { 0 } else { data });
        if size > limit {
            return Err(StoreError::TooLarge { what: "transaction", size, limit });
        }
        self.record = (redo, direct);
        Ok(())
    }

    fn meta(&mut self, op: &MetaOp) -> Result<()> {
        let r = &mut self.redo;
        match op {
            MetaOp::Set { key, value } => {
                check_key("meta key", key)?;
                r.meta(key, Some(value));
            }
            MetaOp::Remove { key } => r.meta(key, None),
            MetaOp::LogAppend { pg, version, entry } => r.log_append(*pg, *version, entry),
            MetaOp::LogTrim { pg, to } => r.log_trim(*pg, *to),
            MetaOp::LogRewind { pg, to } => r.log_rewind(*pg, *to),
            MetaOp::LogRemove { pg } => r.log_remove(*pg),
        }
        Ok(())
    }

    fn update(&mut self, update: &ObjectUpdate) -> Result<()> {
        let object = &update.object;
        let key = Bytes::from(keys::object(object));
        check_key("object name", &key)?;
        let mut head = match self.heads.remove(&key) {
            Some(h) => h,
            None => {
                let before = self.s.head(&key)?;
                StagedHead { now: before.as_deref().cloned(), before }
            }
        };
        for op in &update.ops {
            self.op(object, &mut head.now, op)?;
        }
        self.heads.insert(key, head);
        Ok(())
    }

    fn op(&mut self, object: &HObject, slot: &mut Option<Onode>, op: &ObjectOp) -> Result<()> {
        // Operations that have no effect on what is not there.
        let existing = match (op, slot.as_mut()) {
            (ObjectOp::Remove, _) => {
                if let Some(o) = slot.take() {
                    self.remove(o)?;
                }
                return Ok(());
            }
            (ObjectOp::CloneFrom(from), _) => return self.clone_from(object, slot, from),
            (
                ObjectOp::RmAttr(_)
                | ObjectOp::ClearAttrs
                | ObjectOp::OmapRm(_)
                | ObjectOp::OmapRmRange { .. }
                | ObjectOp::OmapClear,
                None,
            ) => return Ok(()),
            (_, existing) => existing,
        };
        let o = match existing {
            Some(o) => o,
            None => slot.insert(Onode::new(take_id(&mut self.counters))),
        };
        match op {
            ObjectOp::Touch | ObjectOp::Remove | ObjectOp::CloneFrom(_) => {}
            ObjectOp::Write { offset, data } => self.write(object, o, *offset, data)?,
            ObjectOp::Zero { offset, length } => self.zero(object, o, *offset, *length)?,
            ObjectOp::Truncate { size } => self.truncate(object, o, *size)?,
            ObjectOp::SetAttrs(attrs) => attrs.iter().for_each(|(k, v)| o.set_attr(k, v)),
            ObjectOp::RmAttr(name) => o.attrs.retain(|(k, _)| k != name),
            ObjectOp::ClearAttrs => o.attrs.clear(),
            ObjectOp::OmapSet(pairs) => {
                let id = self.omap_id(o);
                for (k, v) in pairs {
                    self.omap_set(id, k, v)?;
                }
            }
            ObjectOp::OmapRm(keys) => keys.iter().for_each(|k| self.omap_rm(o.omap, k)),
            ObjectOp::OmapRmRange { first, last } => {
                let gone: Vec<Bytes> = self
                    .s
                    .omap_keys(Some(&self.omap), o.omap, first, Some(last))
                    .map(|pair| pair.map(|(k, _)| k))
                    .collect::<Result<_>>()?;
                gone.iter().for_each(|k| self.omap_rm(o.omap, k));
            }
            ObjectOp::OmapClear => self.omap_clear(o),
            ObjectOp::OmapSetHeader(header) => {
                let id = self.omap_id(o);
                self.redo.omap_header(id, header);
                self.omap_headers.insert(id, Bytes::copy_from_slice(header));
            }
        }
        Ok(())
    }

    // ----- omap

    fn omap_id(&mut self, o: &mut Onode) -> u64 {
        if o.omap == 0 {
            o.omap = take_id(&mut self.counters);
        }
        o.omap
    }

    fn omap_set(&mut self, id: u64, key: &Bytes, value: &Bytes) -> Result<()> {
        check_key("omap key", key)?;
        self.redo.omap(id, key, Some(value));
        // Copies, lest a short value pins the message it came in.
        self.omap.insert((id, Bytes::copy_from_slice(key)), Some(Bytes::copy_from_slice(value)));
        Ok(())
    }

    fn omap_rm(&mut self, id: u64, key: &Bytes) {
        if id != 0 && key.len() <= KEY_MAX {
            self.redo.omap(id, key, None);
            self.omap.insert((id, Bytes::copy_from_slice(key)), None);
        }
    }

    fn omap_clear(&mut self, o: &mut Onode) {
        if o.omap != 0 {
            let id = std::mem::take(&mut o.omap);
            self.redo.omap_dead(id);
            self.omap.retain(|(i, _), _| *i != id);
            self.omap_headers.remove(&id);
            self.dead.push(id);
        }
    }

    // ----- data

    /// Takes `n` blocks, in logical order.
    fn take(&mut self, n: u64) -> Result<Vec<PhysRun>> {
        let mut runs = Vec::new();
        let available = self.s.alloc.free().saturating_sub(self.reserve);
        if n > available || !self.s.alloc.allocate(n, &mut runs) {
            return Err(StoreError::NoSpace { needed: n * BLOCK, available: available * BLOCK });
        }
        for r in &runs {
            push_run(&mut self.taken, *r);
        }
        Ok(runs)
    }

    /// Stores `pieces` (whole blocks) as the object's blocks from `first` on.
    fn store(&mut self, o: &mut Onode, first: u64, pieces: &[Bytes]) -> Result<()> {
        let n: usize = pieces.iter().map(|p| p.len() / BLOCK as usize).sum();
        let runs = self.take(n as u64)?;
        let blocks = pieces.iter().flat_map(|p| p.chunks(BLOCK as usize));
        let crcs: Vec<u32> = blocks.map(|b| crc32c(u32::MAX, b)).collect();
        let mut rest = pieces.iter().cloned();
        let mut piece = Bytes::new();
        for run in &runs {
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
        self.map(o, first, n as u64, &runs, &crcs)
    }

    /// Maps `[first, first + n)` to `runs`.
    fn map(&mut self, o: &mut Onode, first: u64, n: u64, runs: &[PhysRun], crcs: &[u32]) -> Result<()> {
        if let Some(seg) = &mut o.inline {
            if first + n <= INLINE_BLOCKS {
                seg.replace(first, n, runs, crcs, &mut self.freed);
                o.blocks = seg.blocks();
                return Ok(());
            }
            // Grown: the map moves out of the head.
            let seg = o.inline.take().unwrap_or_default();
            for (at, run, crcs) in seg.mapped(0, SEGMENT_BLOCKS) {
                self.redo.patch(o.id, 0, at, run.len, &[run], crcs);
            }
            if !seg.is_empty() {
                self.segments.insert((o.id, 0), Some(seg));
            }
        }
        let mut runs = runs.iter().copied();
        let mut run = PhysRun { start: 0, len: 0 };
        let mut crcs = crcs;
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
            let (own, rest) = crcs.split_at((len as usize).min(crcs.len()));
            crcs = rest;
            let mut seg = self.segment(o.id, seg_no)?;
            self.redo.patch(o.id, seg_no, at, len, &part, own);
            o.blocks -= seg.blocks();
            seg.replace(at, len, &part, own, &mut self.freed);
            o.blocks += seg.blocks();
            self.segments.insert((o.id, seg_no), Some(seg));
        }
        Ok(())
    }

    /// Unmaps the blocks `[first, end)`, freeing them.
    fn unmap(&mut self, o: &mut Onode, first: u64, end: u64) -> Result<()> {
        if first >= end {
            return Ok(());
        }
        if let Some(seg) = &mut o.inline {
            if first < INLINE_BLOCKS {
                seg.replace(first, end.min(INLINE_BLOCKS) - first, &[], &[], &mut self.freed);
                o.blocks = seg.blocks();
            }
            return Ok(());
        }
        let last = (end - 1) / SEGMENT_BLOCKS;
        for seg_no in self.existing_segments(o.id, (first / SEGMENT_BLOCKS) as u32, last as u32)? {
            let base = u64::from(seg_no) * SEGMENT_BLOCKS;
            let at = first.max(base) - base;
            let len = end.min(base + SEGMENT_BLOCKS) - base - at;
            let mut seg = self.segment(o.id, seg_no)?;
            if seg.mapped(at, at + len).next().is_none() {
                continue;
            }
            o.blocks -= seg.blocks();
            seg.replace(at, len, &[], &[], &mut self.freed);
            o.blocks += seg.blocks();
            if seg.is_empty() {
                self.redo.segment_gone(o.id, seg_no);
                self.segments.insert((o.id, seg_no), None);
            } else {
                self.redo.patch(o.id, seg_no, at, len, &[], &[]);
                self.segments.insert((o.id, seg_no), Some(seg));
            }
        }
        Ok(())
    }

    /// A segment as it is in this transaction, to be changed and put back.
    fn segment(&self, id: u64, seg: u32) -> Result<Segment> {
        match self.segments.get(&(id, seg)) {
            Some(s) => Ok(s.clone().unwrap_or_default()),
            None => Ok(self.s.segment(id, seg)?.map_or_else(Segment::default, |s| (*s).clone())),
        }
    }

    /// Numbers in `[first, last]` of segments that may exist.
    fn existing_segments(&self, id: u64, first: u32, last: u32) -> Result<Vec<u32>> {
        if last - first < 16 {
            return Ok((first..=last).collect());
        }
        let mut found = BTreeSet::new();
        let staged = self.segments.range((id, first)..=(id, last));
        found.extend(staged.filter(|(_, s)| s.is_some()).map(|((_, n), _)| *n));
        self.s.stored_segments(id, first, last, &mut found)?;
        Ok(found.into_iter().collect())
    }

    /// A block's content, `None` if it is not mapped.
    fn old_block(&mut self, object: &HObject, o: &Onode, block: u64) -> Result<Option<Vec<u8>>> {
        let found = |seg: &Segment, at: u64| seg.mapped(at, at + 1).next().map(|(_, run, crcs)| (run, crcs[0]));
        let (seg_no, at) = ((block / SEGMENT_BLOCKS) as u32, block % SEGMENT_BLOCKS);
        let place = match (&o.inline, self.segments.get(&(o.id, seg_no))) {
            (Some(seg), _) => (block < INLINE_BLOCKS).then(|| found(seg, block)).flatten(),
            (None, Some(staged)) => staged.as_ref().and_then(|s| found(s, at)),
            (None, None) => self.s.segment(o.id, seg_no)?.and_then(|s| found(&s, at)),
        };
        let Some((run, crc)) = place else { return Ok(None) };
        let mut buf = vec![0; BLOCK as usize];
        self.s.read_stored(run, &mut buf)?;
        if crc32c(u32::MAX, &buf) != crc {
            return Err(StoreError::Checksum { object: object.clone().into(), offset: block * BLOCK });
        }
        Ok(Some(buf))
    }

    /// A block's new content: `part` at `from`, the rest as it was.
    fn merged(&mut self, object: &HObject, o: &Onode, block: u64, from: usize, part: &[u8]) -> Result<Bytes> {
        // Behind the object's end there are only zeros; no need to read them.
        let old_len = o.size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        let old =
            if from.min(old_len) > 0 || from + part.len() < old_len { self.old_block(object, o, block)? } else { None };
        let mut buf = old.unwrap_or_else(|| vec![0; BLOCK as usize]);
        if let Some(room) = buf.get_mut(from..from + part.len()) {
            room.copy_from_slice(part);
        }
        Ok(Bytes::from(buf))
    }

    fn write(&mut self, object: &HObject, o: &mut Onode, offset: u64, data: &Bytes) -> Result<()> {
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
        self.store(o, first, &pieces)?;
        o.size = o.size.max(end);
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
            self.store(o, block, &[Bytes::from(buf)])?;
        }
        Ok(())
    }

    fn zero(&mut self, object: &HObject, o: &mut Onode, offset: u64, length: u64) -> Result<()> {
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

    fn truncate(&mut self, object: &HObject, o: &mut Onode, size: u64) -> Result<()> {
        end_of(size, 0)?;
        if size < o.size {
            self.zero_part(object, o, size, size.next_multiple_of(BLOCK))?;
            self.unmap(o, size.div_ceil(BLOCK), o.size.div_ceil(BLOCK))?;
        }
        o.size = size;
        Ok(())
    }

    fn remove(&mut self, mut o: Onode) -> Result<()> {
        let end = o.size.div_ceil(BLOCK);
        self.unmap(&mut o, 0, end)?;
        self.omap_clear(&mut o);
        Ok(())
    }

    fn clone_from(&mut self, object: &HObject, slot: &mut Option<Onode>, from: &HObject) -> Result<()> {
        if object == from {
            return if slot.is_some() { Ok(()) } else { Err(StoreError::NoSource(from.clone().into())) };
        }
        let key = keys::object(from);
        let source = match self.heads.get(key.as_slice()) {
            Some(h) => h.now.clone(),
            None => self.s.head(&key)?.map(|o| (*o).clone()),
        };
        let source = source.ok_or_else(|| StoreError::NoSource(from.clone().into()))?;
        if let Some(old) = slot.take() {
            self.remove(old)?;
        }
        let mut o = Onode::new(take_id(&mut self.counters));
        o.attrs.clone_from(&source.attrs);
        let mut at = 0;
        while at < source.size {
            let end = (at + CLONE_STEP).min(source.size);
            // Runs of mapped blocks, so that holes stay holes.
            let mut run: Vec<Bytes> = Vec::new();
            for block in at / BLOCK..end.div_ceil(BLOCK) {
                match self.old_block(from, &source, block)? {
                    Some(b) => run.push(Bytes::from(b)),
                    None => {
                        self.flush_clone(&mut o, block, &mut run)?;
                    }
                }
            }
            self.flush_clone(&mut o, end.div_ceil(BLOCK), &mut run)?;
            at = end;
        }
        o.size = source.size;
        if source.omap != 0 {
            let id = self.omap_id(&mut o);
            let pairs: Vec<(Bytes, Bytes)> =
                self.s.omap_keys(Some(&self.omap), source.omap, &[], None).collect::<Result<_>>()?;
            for (k, v) in &pairs {
                self.omap_set(id, k, v)?;
            }
            let header = match self.omap_headers.get(&source.omap) {
                Some(h) => Some(h.clone()),
                None => self.s.stored_omap_header(source.omap)?,
            };
            if let Some(h) = header {
                self.redo.omap_header(id, &h);
                self.omap_headers.insert(id, h);
            }
        }
        *slot = Some(o);
        Ok(())
    }

    /// Stores the blocks collected, the last of which is `end - 1`.
    fn flush_clone(&mut self, o: &mut Onode, end: u64, run: &mut Vec<Bytes>) -> Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        let first = end - run.len() as u64;
        self.store(o, first, &std::mem::take(run))
    }
}

fn take_id(counters: &mut Counters) -> u64 {
    let id = counters.next_id;
    counters.next_id += 1;
    id
}

fn check_key(what: &'static str, key: &[u8]) -> Result<()> {
    if key.len() > KEY_MAX {
        return Err(StoreError::TooLarge { what, size: key.len() as u64, limit: KEY_MAX as u64 });
    }
    Ok(())
}

fn end_of(offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        Some(end) if end <= OBJECT_MAX => Ok(end),
        end => Err(StoreError::TooLarge { what: "object", size: end.unwrap_or(u64::MAX), limit: OBJECT_MAX }),
    }
}
