//! Pieces of an object's copy, as they travel between OSDs.

use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, OmapRange, ReadError};
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::CopyCursor;
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{HObject, errno};

/// A piece of an object's copy.
pub(crate) struct Chunk {
    /// Makes it at the target.
    pub txn: Transaction,
    /// Where to go on; `None` after the last piece.
    pub next: Option<CopyCursor>,
}

/// Builds the piece of `object` at `cursor`, of about `max` bytes.
pub(crate) fn chunk(
    reader: &dyn ObjectReader,
    object: &HObject,
    cursor: &CopyCursor,
    max: u64,
) -> Result<Chunk, ReadError> {
    let max = max.max(1);
    let mut ops = Vec::new();
    let one = |ops| Transaction { objects: vec![ObjectUpdate { object: object.clone(), ops }], meta: Vec::new() };
    let Some(attr) = reader.attr(object, INFO_ATTR)? else {
        return Ok(Chunk { txn: one(vec![ObjectOp::Remove]), next: None });
    };
    let info: ObjectInfo = from_slice(&attr).map_err(|_| ReadError::Io(errno::EIO))?;
    if *cursor == CopyCursor::default() {
        ops.extend([ObjectOp::Remove, ObjectOp::Touch]);
    }
    let mut at = cursor.clone();
    let mut left = max;
    if !at.data_done {
        let end = info.size.min(at.offset + max);
        for (offset, length) in reader.extents(object, at.offset, end.saturating_sub(at.offset))? {
            ops.push(ObjectOp::Write { offset, data: reader.read(object, offset, length)? });
            left = left.saturating_sub(length);
        }
        at.offset = end;
        at.data_done = end >= info.size;
    }
    if !at.data_done || left == 0 {
        return Ok(Chunk { txn: one(ops), next: Some(at) });
    }
    if at.omap_from.is_empty() {
        let header = reader.omap_header(object)?;
        if !header.is_empty() {
            ops.push(ObjectOp::OmapSetHeader(header));
        }
    }
    let range = OmapRange { from: &at.omap_from, until: None, max_entries: 4096, max_bytes: left as usize };
    let page = reader.omap_range(object, range)?;
    let last = page.entries.last().map(|(k, _)| k.clone());
    if !page.entries.is_empty() {
        ops.push(ObjectOp::OmapSet(page.entries));
    }
    if let Some(last) = last.filter(|_| page.more) {
        let mut from = last.to_vec();
        from.push(0);
        at.omap_from = from.into();
        return Ok(Chunk { txn: one(ops), next: Some(at) });
    }
    ops.push(ObjectOp::Truncate { size: info.size });
    ops.push(ObjectOp::SetAttrs(reader.attrs(object)?));
    Ok(Chunk { txn: one(ops), next: None })
}
