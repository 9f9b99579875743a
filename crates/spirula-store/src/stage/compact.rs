//! Compressed data that was overwritten in part.
//!
//! A blob stays as long as any of its content is mapped: overwritten piece by piece, an
//! object could refer to many blobs of which next to nothing is left, and take several times
//! its size. So when a write leaves a segment with more than one and a half times the blocks
//! that it maps, what is left of each blob that takes more than that is stored anew. Then
//! nothing in the segment takes more than its content, so this pays once for many writes.

use super::Stage;
use crate::alloc::BLOCK;
use crate::error::{Result, StoreError};
use crate::onode::{Onode, SEGMENT_BLOCKS};
use crate::redo::by_chunk;
use crate::segment::{Blob, Piece, Segment};
use bytes::Bytes;
use spirula_types::HObject;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is left of a blob: how many blocks, and where: first logical block within the
/// segment, first block of the content, number.
struct Left {
    blob: Arc<Blob>,
    blocks: u64,
    parts: Vec<(u64, u64, u64)>,
}

/// Blobs of which less is left than they take, if the segment takes too much.
fn wasteful(seg: &Segment) -> Vec<Left> {
    let usage = seg.usage();
    if usage.compressed == 0 || 2 * usage.allocated <= 3 * usage.blocks || planted!(BlobsPileUp) {
        return Vec::new();
    }
    let mut blobs: BTreeMap<u64, Left> = BTreeMap::new();
    for (at, piece) in seg.mapped(0, SEGMENT_BLOCKS) {
        if let Piece::Part { blob, skip, len } = piece
            && let Some(first) = blob.runs.first()
        {
            let new = || Left { blob: blob.clone(), blocks: 0, parts: Vec::new() };
            let left = blobs.entry(first.start).or_insert_with(new);
            left.blocks += len;
            left.parts.push((at, skip, len));
        }
    }
    blobs.into_values().filter(|l| l.blocks < l.blob.blocks()).collect()
}

impl Stage<'_> {
    /// Stores anew what is left of blobs in the segments of blocks `[first, end)` that take
    /// too much. What cannot be read, has no room, or has other owners stays as it is.
    pub(super) fn compact(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        first: u64,
        end: u64,
    ) -> Result<()> {
        for seg_no in first / SEGMENT_BLOCKS..end.div_ceil(SEGMENT_BLOCKS) {
            let wasteful = match &o.inline {
                Some(seg) => wasteful(seg),
                // Written to, so it is among those of this transaction.
                None => {
                    let staged = self.segments.get(&(o.id, seg_no as u32)).and_then(Option::as_ref);
                    staged.map_or_else(Vec::new, |seg| wasteful(seg))
                }
            };
            let base = if o.inline.is_some() { 0 } else { seg_no * SEGMENT_BLOCKS };
            for left in wasteful {
                match self.store_anew(object, o, base, &left) {
                    Err(
                        StoreError::NoSpace { .. }
                        | StoreError::Checksum { .. }
                        | StoreError::Unreadable { .. }
                        | StoreError::Io { .. },
                    ) => {}
                    done => done?,
                }
            }
        }
        Ok(())
    }

    fn store_anew(
        &mut self,
        object: &HObject,
        o: &mut Onode,
        base: u64,
        left: &Left,
    ) -> Result<()> {
        if o.shared && self.has_other_owners(&left.blob)? {
            return Ok(());
        }
        // All is read before anything changes.
        let mut read = Vec::with_capacity(left.parts.len());
        for (at, skip, len) in &left.parts {
            let piece = Piece::Part { blob: &left.blob, skip: *skip, len: *len };
            read.push((
                base + at,
                Bytes::from(self.s.read_piece(object, (base + at) * BLOCK, &piece)?),
            ));
        }
        for (at, data) in read {
            self.store(o, at, vec![data])?;
        }
        Ok(())
    }

    fn has_other_owners(&self, blob: &Blob) -> Result<bool> {
        for run in &blob.runs {
            for (chunk, first, len) in by_chunk(*run) {
                if self.is_referenced(chunk, first, len)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
