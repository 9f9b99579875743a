//! Clones: objects that share blocks until one of them changes.

use super::{Stage, check_key, end_of, field, pool_of, space_of, take_id};
use crate::alloc::{BLOCK, PhysRun};
use crate::error::{Result, StoreError};
use crate::keys;
use crate::maps::{self, View};
use crate::onode::{INLINE_BLOCKS, Onode, SEGMENT_BLOCKS};
use crate::redo::{by_chunk, by_segment};
use crate::segment::{Blob, Piece, Released, Segment, mask};
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
    pub(super) fn reference(&mut self, run: PhysRun) -> Result<()> {
        for (chunk, first, len) in by_chunk(run) {
            let len = if planted!(CloneMissesOwner) { len - 1 } else { len };
            if len > 0 && !self.refs_mut(chunk)?.add(first, len) {
                return Err(StoreError::TooLarge {
                    what: "number of clones",
                    size: 1 << 32,
                    limit: u32::MAX.into(),
                });
            }
        }
        self.redo.referenced(run);
        Ok(())
    }

    /// The same for all blocks of a map: those that lie side by side together, since a map that was
    /// rewritten again and again is in as many pieces as it has blocks.
    pub(super) fn reference_all(&mut self, mut runs: Vec<PhysRun>) -> Result<()> {
        runs.sort_unstable_by_key(|r| r.start);
        let mut runs = runs.into_iter().peekable();
        while let Some(mut run) = runs.next() {
            while let Some(next) = runs.next_if(|next| next.start == run.start + run.len) {
                run.len += next.len;
            }
            self.reference(run)?;
        }
        Ok(())
    }

    /// The head of the object to share single blocks of, now marked as sharing them.
    fn source(&mut self, from: &HObject) -> Result<Onode> {
        let head = self.staged_head(&keys::object(from).into())?;
        let o = head.now.as_mut().ok_or_else(|| StoreError::NoSource(from.clone().into()))?;
        o.shared |= o.blocks > 0;
        let o = o.clone();
        self.share_layers(&o, 0)?;
        Ok(o)
    }

    pub(super) fn clone_from(
        &mut self,
        object: &HObject,
        slot: &mut Option<Onode>,
        from: &HObject,
    ) -> Result<()> {
        let missing = || StoreError::NoSource(from.clone().into());
        if object == from {
            return if slot.is_some() { Ok(()) } else { Err(missing()) };
        }
        let key = Bytes::from(keys::object(from));
        if self.staged_head(&key)?.now.is_none() {
            return Err(missing());
        }
        // First: the source may be all that is left over their layer then.
        if let Some(old) = slot.take() {
            self.remove(old)?;
        }
        let mut source = self.staged_head(&key)?.now.clone().ok_or_else(missing)?;
        let mut o = if source.blocks == 0 {
            let id = take_id(&mut self.counters);
            let clone = Onode { id, compressed: None, ..source.clone() };
            let mut clone = Onode { inline: Some(Segment::default()), shared: false, ..clone };
            clone.unlayer();
            clone
        } else if let Some(seg) = &source.inline {
            source.shared = true;
            self.share(seg)?;
            Onode { id: take_id(&mut self.counters), ..source.clone() }
        } else {
            self.clone_map(object, from, &mut source)?
        };
        (o.omap, o.omap_shared) = (0, false);
        if source.omap != 0 {
            self.clone_omap(&mut o, &mut source)?;
        }
        self.staged_head(&key)?.now = Some(source);
        *slot = Some(o);
        Ok(())
    }

    /// Gives an object another name, that of one which goes if it is there. Both are of one pool.
    pub(super) fn move_from(&mut self, object: &HObject, from: &HObject) -> Result<()> {
        let missing = || StoreError::NoSource(from.clone().into());
        let (key, source) = (Bytes::from(keys::object(object)), Bytes::from(keys::object(from)));
        check_key("object name", &key)?;
        (self.pool, self.moves) = (pool_of(object), true);
        if self.staged_head(&source)?.now.is_none() {
            return Err(missing());
        }
        // First: the source may be all that is left over their layer then.
        if let Some(old) = self.staged_head(&key)?.now.take() {
            self.remove(old)?;
        }
        let mut o = self.staged_head(&source)?.now.take().ok_or_else(missing)?;
        if o.base != 0 && !planted!(MoveUnnamed) {
            self.tell(&mut o, key.clone());
        }
        self.staged_head(&key)?.now = Some(o);
        Ok(())
    }

    /// Takes note that one more map like `seg` is there.
    fn share(&mut self, seg: &Segment) -> Result<()> {
        self.reference_all(seg.device_runs().collect())?;
        let compressed = seg.usage().compressed;
        if compressed > 0 {
            space_of(&mut self.space, self.pool)[field::COMPRESSED_ORIGINAL] +=
                (compressed * BLOCK) as i64;
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
            let o = o.clone();
            self.share_layers(&o, 0)?;
            o
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
            let parts =
                if alike { vec![(to, first), (last.min(end), end)] } else { vec![(to, end)] };
            let copied: u64 = parts.iter().map(|(a, b)| b - a).sum();
            if copied > COPY_MAX {
                return Err(StoreError::TooLarge {
                    what: "range to copy",
                    size: copied,
                    limit: COPY_MAX,
                });
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
    fn read_range(
        &self,
        object: &HObject,
        o: &Onode,
        offset: u64,
        len: u64,
    ) -> Result<Option<Vec<u8>>> {
        let mut out: Option<Vec<u8>> = None;
        let end = (offset + len).min(o.size);
        let mut at = offset;
        while at < end {
            let block = at / BLOCK;
            let n = ((block + 1) * BLOCK).min(end) - at;
            if let Some(b) = self.old_block(object, o, block)? {
                let room = out.get_or_insert_with(|| vec![0; len as usize]);
                let room = room
                    .get_mut((at - offset) as usize..(at - offset + n) as usize)
                    .unwrap_or_default();
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
        if let Some(seg) = &source.inline {
            pieces.extend(
                seg.mapped(first, first + n).map(|(l, p)| (l - first + to, Shared::from(p))),
            );
        } else {
            let (from, last) =
                ((first / SEGMENT_BLOCKS) as u32, ((first + n - 1) / SEGMENT_BLOCKS) as u32);
            for seg_no in maps::numbers(self, source, from, last)? {
                let base = u64::from(seg_no) * SEGMENT_BLOCKS;
                let (a, b) =
                    (first.max(base) - base, (first + n).min(base + SEGMENT_BLOCKS) - base);
                let view = View::of(self, source, seg_no, mask(a, b - a))?;
                view.each(|l, p| pieces.push((base + l - first + to, Shared::from(p))));
            }
        }
        // Referred to first, lest what is replaced takes it along.
        for (_, p) in &pieces {
            self.reference_piece(p)?;
        }
        let any = !pieces.is_empty();
        self.unmap(o, to, to + n)?;
        o.shared |= any;
        for (at, p) in pieces {
            self.map_shared(object, o, at, p)?;
        }
        // A piece that had to be copied may have cleared it.
        o.shared |= any;
        Ok(())
    }

    fn reference_piece(&mut self, p: &Shared) -> Result<()> {
        match p {
            Shared::Plain { run, .. } => self.reference(*run),
            Shared::Part { blob, .. } => blob.runs.iter().try_for_each(|r| self.reference(*r)),
        }
    }

    /// Maps free space of the object to blocks referred to already.
    fn map_shared(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        at: u64,
        piece: Shared,
    ) -> Result<()> {
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
                    let own = sums
                        .get(done as usize * words..(done + len) as usize * words)
                        .unwrap_or_default();
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
        if let Some(seg) = &mut o.inline
            && seg.kind(kind) == kind
        {
            let before = seg.usage();
            seg.replace(seg_at, run.len, &[run], kind, sums, &mut Released::default());
            let after = seg.usage();
            self.account(o, before, after);
            return Ok(());
        }
        if o.inline.is_none() {
            let mut seg = self.segment(o, seg_no)?;
            if self.kind(o, seg_no, &seg, kind)? == kind {
                let before = self.counted(o, seg_no, seg_at, run.len, &seg)?;
                seg.replace(seg_at, run.len, &[run], kind, sums, &mut Released::default());
                self.redo.segment(o.id, seg_no, &seg);
                return self.put(o, seg_no, seg, before, run.len);
            }
        }
        // Another kind of checksum there: the blocks are copied after all.
        let data = self.s.read_piece(object, at * BLOCK, &Piece::Plain { run, kind, sums })?;
        self.store_plain(o, at, &[Bytes::from(data)])?;
        self.drop_run(true, run).map(|_| ())
    }
}
