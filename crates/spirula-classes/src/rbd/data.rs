//! Data objects of an image.

use super::Call;
use crate::{Stop, fail};
use bytes::Bytes;
use spirula_types::errno;
use std::collections::BTreeMap;

/// Pieces that one call leaves, at most: librbd's largest objects have a tenth of it.
const RUNS_MAX: usize = 1 << 16;

/// Is there such an object?
fn exists(call: &mut Call<'_>) -> Result<bool, Stop> {
    match call.object.stat() {
        Ok(_) => Ok(true),
        Err(Stop::Errno(_)) => Ok(false),
        Err(Stop::Later) => Err(Stop::Later),
    }
}

/// Takes over what the parent has, unless the clone has its own by now.
pub(super) fn copyup(call: &mut Call<'_>) -> Result<i32, Stop> {
    if !exists(call)? {
        let data = call.input.clone();
        call.object.write(0, data)?;
    }
    Ok(0)
}

/// The same with holes: offsets and lengths, and the bytes of all of them.
pub(super) fn sparse_copyup(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (extents, mut data): (BTreeMap<u64, u64>, Bytes) =
        call.args(|d| Ok((d.get()?, d.get()?)))?;
    if exists(call)? {
        return Ok(0);
    }
    if extents.is_empty() {
        call.object.create(true)?;
    }
    for (offset, length) in extents {
        if length > data.len() as u64 {
            return fail(errno::EINVAL);
        }
        call.object.write(offset, data.split_to(length as usize))?;
    }
    Ok(0)
}

/// Fails unless the newest snapshot that the object was written under is older than a given one
/// (0), or is not (1).
pub(super) fn assert_snapc_seq(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (seq, how) = call.args(|d| Ok((d.u64()?, d.u8()?)))?;
    let newer = match call.object.snap_seq() {
        Err(Stop::Errno(errno::ENOENT)) => true,
        other => seq > other?,
    };
    match how {
        0 | 1 if newer == (how == 0) => Ok(0),
        0 | 1 => fail(errno::ERANGE),
        _ => fail(errno::EOPNOTSUPP),
    }
}

/// Gives back the space of zeros: runs of whole pieces of `size` bytes become holes, and an object
/// of nothing else goes, if so asked.
pub(super) fn sparsify(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (size, remove) = call.args(|d| Ok((d.u64()?, d.bool()?)))?;
    let length = call.object.stat()?.size;
    let data = call.object.read(0, length)?;
    let zero = |bytes: &[u8]| bytes.iter().all(|b| *b == 0);
    if zero(&data) {
        if remove {
            call.object.remove()?;
        } else if !data.is_empty() {
            call.object.truncate(0)?;
        }
        return Ok(0);
    }
    if size == 0 {
        return fail(errno::EINVAL);
    }
    let piece = usize::try_from(size).unwrap_or(usize::MAX).min(data.len());
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..data.len()).step_by(piece) {
        let end = at.saturating_add(piece).min(data.len());
        if zero(data.get(at..end).unwrap_or_default()) {
            continue;
        }
        if runs.len() >= RUNS_MAX {
            return fail(errno::E2BIG);
        }
        match runs.last_mut() {
            Some(last) if last.1 == at => last.1 = end,
            _ => runs.push((at, end)),
        }
    }
    if runs != [(0, data.len())] {
        call.object.truncate(0)?;
        for (from, to) in runs {
            call.object.write(from as u64, data.slice(from..to))?;
        }
    }
    Ok(0)
}
