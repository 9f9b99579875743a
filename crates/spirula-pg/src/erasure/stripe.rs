//! Objects as stripes: which parts of a change must be read first, and what each shard writes.
//!
//! An object's bytes are cut into stripes of `k × unit`; data shard `i` holds unit `i` of every
//! stripe, parity shard `k + j` the parity of it. All shards of an object are equally long,
//! whole units; what lies behind the object's end in its last stripe is zero, and so is the
//! parity of holes, so a hole needs nothing.

use bytes::Bytes;
use spirula_erasure::{Code, ErasureError};
use spirula_types::transaction::ObjectOp;

/// How a pool cuts its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Data shards.
    pub k: usize,
    /// Parity shards.
    pub m: usize,
    /// Bytes of one shard in one stripe.
    pub unit: u64,
}

impl Shape {
    /// Object bytes in a stripe.
    pub fn width(&self) -> u64 {
        (self.k as u64 * self.unit).max(1)
    }

    /// Stripes of an object of this size.
    pub fn stripes(&self, size: u64) -> u64 {
        size.div_ceil(self.width())
    }

    /// Bytes of each shard of an object of this size.
    pub fn shard_len(&self, size: u64) -> u64 {
        self.stripes(size) * self.unit
    }

    fn code(&self) -> Result<Code, ErasureError> {
        Code::new(self.k, self.m)
    }
}

/// A range of stripes, the end excluded.
pub type Stripes = (u64, u64);

/// What a change of an object's data amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Stripes to be written, ascending, apart from each other.
    pub runs: Vec<Stripes>,
    /// Stripes whose present content is needed for that.
    pub needs: Vec<Stripes>,
    /// The object's size after it.
    pub size: u64,
    /// Data changes at all.
    pub data: bool,
}

/// Joins ranges that touch.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(a, b)| a < b);
    ranges.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (a, b) in ranges {
        match out.last_mut() {
            Some(last) if a <= last.1 => last.1 = last.1.max(b),
            _ => out.push((a, b)),
        }
    }
    out
}

/// Looks at the changes `ops` of an object of `size` bytes (0 if it does not exist).
pub fn plan(shape: &Shape, ops: &[ObjectOp], size: u64) -> Plan {
    let w = shape.width();
    let (mut base, mut now, mut data) = (size, size, false);
    // Bytes whose old content does not matter.
    let mut covered: Vec<(u64, u64)> = Vec::new();
    let mut runs: Vec<Stripes> = Vec::new();
    let of = |at: u64| (at / w, at / w + 1);
    for op in ops {
        match op {
            ObjectOp::Remove => {
                (base, now, data) = (0, 0, true);
                covered.clear();
                runs.clear();
            }
            ObjectOp::Write { offset, data: bytes } => {
                let end = offset + bytes.len() as u64;
                if *offset < end {
                    runs.push((offset / w, end.div_ceil(w)));
                    covered.push((*offset, end));
                }
                (now, data) = (now.max(end), true);
            }
            ObjectOp::Zero { offset, length } => {
                let end = offset + length;
                runs.extend([*offset, end].into_iter().filter(|at| at % w != 0).map(of));
                covered.push((*offset, end));
                (now, data) = (now.max(end), true);
            }
            ObjectOp::Truncate { size } => {
                if *size < now && size % w != 0 {
                    runs.push(of(*size));
                }
                covered.push((*size, u64::MAX));
                (now, data) = (*size, true);
            }
            _ => {}
        }
    }
    let (last, old) = (shape.stripes(now), shape.stripes(base));
    let runs: Vec<Stripes> =
        joined(runs).into_iter().map(|(a, b)| (a, b.min(last))).filter(|(a, b)| a < b).collect();
    let covered = joined(covered);
    let known = |t: u64| {
        let (a, b) = (t * w, ((t + 1) * w).min(base));
        covered.iter().any(|(x, y)| *x <= a && b <= *y)
    };
    let needs = runs
        .iter()
        .flat_map(|(a, b)| *a..(*b).min(old))
        .filter(|t| !known(*t))
        .map(|t| (t, t + 1))
        .collect();
    Plan { runs, needs: joined(needs), size: now, data }
}

/// Object bytes read for a plan: where they begin, and what is there.
pub type Piece = (u64, Bytes);

/// Bytes of `[offset, offset + length)` from pieces that cover them; `None` if none does.
pub fn from_pieces(pieces: &[Piece], offset: u64, length: u64) -> Option<Bytes> {
    let end = offset.checked_add(length)?;
    let (at, data) =
        pieces.iter().find(|(at, data)| *at <= offset && end <= at + data.len() as u64)?;
    Some(data.slice((offset - at) as usize..(end - at) as usize))
}

/// The content of stripes `[a, b)` after `ops`, up to where only zeros follow.
fn content(shape: &Shape, ops: &[ObjectOp], plan: &Plan, old: &[Piece], (a, b): Stripes) -> Bytes {
    let w = shape.width();
    let (from, end) = (a * w, b * w);
    let changes = || {
        ops.iter().filter(|op| {
            matches!(op, ObjectOp::Write { .. } | ObjectOp::Zero { .. } | ObjectOp::Truncate { .. })
        })
    };
    let needs: Vec<Stripes> =
        plan.needs.iter().copied().filter(|(x, y)| *x < b && a < *y).collect();
    let touching = || {
        changes().filter(|op| match op {
            ObjectOp::Write { offset, data } => *offset < end && from < offset + data.len() as u64,
            ObjectOp::Zero { offset, length } => *offset < end && from < offset + length,
            ObjectOp::Truncate { size } => *size < end,
            _ => false,
        })
    };
    // Nearly always one write makes it all; behind it are zeros, or they would be needed.
    let mut by = touching();
    if needs.is_empty()
        && let (Some(ObjectOp::Write { offset, data }), None) = (by.next(), by.next())
        && *offset <= from
    {
        let to = (end - offset).min(data.len() as u64);
        return data.slice((from - offset) as usize..to as usize);
    }
    let mut out = vec![0; (end - from) as usize];
    let part = |x: u64, y: u64| {
        (x.clamp(from, end) - from) as usize
            ..(y.clamp(from, end).max(x.clamp(from, end)) - from) as usize
    };
    for (x, y) in needs {
        for t in x..y {
            if let Some(bytes) = from_pieces(old, t * w, w) {
                let to = part(t * w, (t + 1) * w);
                let n = to.len();
                if let (Some(to), Some(bytes)) = (out.get_mut(to), bytes.get(..n)) {
                    to.copy_from_slice(bytes);
                }
            }
        }
    }
    for op in changes() {
        match op {
            ObjectOp::Write { offset, data } => {
                let to = part(*offset, offset + data.len() as u64);
                let skip = (from + to.start as u64).saturating_sub(*offset) as usize;
                let n = to.len();
                if let (Some(to), Some(bytes)) = (out.get_mut(to), data.get(skip..skip + n)) {
                    to.copy_from_slice(bytes);
                }
            }
            ObjectOp::Zero { offset, length } => {
                if let Some(to) = out.get_mut(part(*offset, offset + length)) {
                    to.fill(0);
                }
            }
            ObjectOp::Truncate { size } => {
                if let Some(to) = out.get_mut(part(*size, u64::MAX)) {
                    to.fill(0);
                }
            }
            _ => {}
        }
    }
    out.into()
}

/// Cuts object bytes into the shards of `n` stripes, parity included.
fn shards(shape: &Shape, code: &Code, bytes: &[u8], n: u64) -> Result<Vec<Bytes>, ErasureError> {
    let (unit, len) = (shape.unit as usize, (n * shape.unit) as usize);
    let mut data: Vec<Vec<u8>> = (0..shape.k).map(|_| Vec::with_capacity(len)).collect();
    for (i, chunk) in bytes.chunks(unit.max(1)).enumerate() {
        if let Some(shard) = data.get_mut(i % shape.k.max(1)) {
            shard.extend_from_slice(chunk);
        }
    }
    data.iter_mut().for_each(|d| d.resize(len, 0));
    let mut parity = vec![vec![0; len]; shape.m];
    {
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&data, &mut parity)?;
    }
    Ok(data.into_iter().chain(parity).map(Bytes::from).collect())
}

/// What each shard does for the changes `ops`. `old` holds what [`plan`] needs.
///
/// # Errors
/// [`ErasureError`] if there is no such code.
pub fn split(
    shape: &Shape,
    ops: &[ObjectOp],
    plan: &Plan,
    old: &[Piece],
) -> Result<Vec<Vec<ObjectOp>>, ErasureError> {
    let (w, unit) = (shape.width(), shape.unit);
    // The same for all: everything but the content of stripes.
    let mut same: Vec<ObjectOp> = Vec::with_capacity(ops.len());
    for op in ops {
        match op {
            ObjectOp::Write { .. } => {}
            ObjectOp::Zero { offset, length } => {
                let (a, b) = (offset.div_ceil(w), (offset + length) / w);
                if a < b {
                    same.push(ObjectOp::Zero { offset: a * unit, length: (b - a) * unit });
                }
            }
            ObjectOp::Truncate { size } => {
                same.push(ObjectOp::Truncate { size: shape.shard_len(*size) })
            }
            other => same.push(other.clone()),
        }
    }
    let code = shape.code()?;
    let mut out = vec![same; shape.k + shape.m];
    for run in &plan.runs {
        let bytes = content(shape, ops, plan, old, *run);
        for (shard, data) in out.iter_mut().zip(shards(shape, &code, &bytes, run.1 - run.0)?) {
            shard.push(ObjectOp::Write { offset: run.0 * unit, data });
        }
    }
    if plan.data && !matches!(ops, [ObjectOp::Remove]) {
        let size = shape.shard_len(plan.size);
        out.iter_mut().for_each(|shard| shard.push(ObjectOp::Truncate { size }));
    }
    Ok(out)
}

/// Makes the shards `want` of a range from any `k` others, all of one length.
///
/// # Errors
/// [`ErasureError`] unless exactly `k` are given.
pub fn rebuild(
    shape: &Shape,
    have: &[(usize, Bytes)],
    want: &[usize],
) -> Result<Vec<Bytes>, ErasureError> {
    let code = shape.code()?;
    let numbers: Vec<usize> = have.iter().map(|(n, _)| *n).collect();
    let len = have.first().map_or(0, |(_, b)| b.len());
    let plan = code.recovery(&numbers, want)?;
    let mut out = vec![vec![0; len]; want.len()];
    {
        let have: Vec<&[u8]> = have.iter().map(|(_, b)| b.as_ref()).collect();
        let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
        plan.apply(&have, &mut out)?;
    }
    Ok(out.into_iter().map(Bytes::from).collect())
}

/// Puts object bytes together from any `k` shards of a range.
///
/// # Errors
/// [`ErasureError`] unless exactly `k` are given.
pub fn join(shape: &Shape, have: &[(usize, Bytes)]) -> Result<Bytes, ErasureError> {
    let given = |i: usize| have.iter().find(|(n, _)| *n == i).map(|(_, b)| b.clone());
    let lost: Vec<usize> = (0..shape.k).filter(|i| given(*i).is_none()).collect();
    let mut made =
        if lost.is_empty() { Vec::new() } else { rebuild(shape, have, &lost)? }.into_iter();
    let data: Vec<Bytes> = (0..shape.k).filter_map(|i| given(i).or_else(|| made.next())).collect();
    let (unit, len) = (shape.unit.max(1) as usize, data.first().map_or(0, Bytes::len));
    let mut out = Vec::with_capacity(len * shape.k);
    for at in (0..len).step_by(unit) {
        for d in &data {
            out.extend_from_slice(d.get(at..(at + unit).min(len)).unwrap_or_default());
        }
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { k: 3, m: 2, unit: 4 };

    /// A plain object, changed by the same ops.
    fn plain(data: &mut Vec<u8>, op: &ObjectOp) {
        match op {
            ObjectOp::Remove => data.clear(),
            ObjectOp::Write { offset, data: d } => {
                let end = *offset as usize + d.len();
                data.resize(data.len().max(end), 0);
                data[*offset as usize..end].copy_from_slice(d);
            }
            ObjectOp::Zero { offset, length } => {
                let end = (offset + length) as usize;
                data.resize(data.len().max(end), 0);
                data[*offset as usize..end].fill(0);
            }
            ObjectOp::Truncate { size } => data.resize(*size as usize, 0),
            _ => {}
        }
    }

    fn op() -> impl Strategy<Value = ObjectOp> {
        prop_oneof![
            4 => (0..60u64, proptest::collection::vec(1u8.., 1..40)).prop_map(|(offset, d)| ObjectOp::Write { offset, data: d.into() }),
            1 => (0..60u64, 1..40u64).prop_map(|(offset, length)| ObjectOp::Zero { offset, length }),
            1 => (0..80u64).prop_map(|size| ObjectOp::Truncate { size }),
            1 => Just(ObjectOp::Remove),
        ]
    }

    proptest! {
        #[test]
        fn prop_shards_hold_what_a_plain_object_would(changes in proptest::collection::vec(proptest::collection::vec(op(), 1..4), 1..8)) {
            let mut object: Vec<u8> = Vec::new();
            let mut shards: Vec<Vec<u8>> = vec![Vec::new(); 5];
            for mut ops in changes {
                // A removal begins its vector, as execution makes them.
                if let Some(at) = ops.iter().rposition(|o| *o == ObjectOp::Remove) {
                    ops.drain(..at);
                }
                let plan = plan(&SHAPE, &ops, object.len() as u64);
                let w = SHAPE.width();
                let old: Vec<Piece> = plan.needs.iter().map(|(a, b)| {
                    let have: Vec<(usize, Bytes)> = [1, 3, 4].iter().map(|s| {
                        let range = (a * SHAPE.unit) as usize..(b * SHAPE.unit) as usize;
                        (*s, Bytes::copy_from_slice(&shards[*s][range]))
                    }).collect();
                    (a * w, join(&SHAPE, &have).unwrap())
                }).collect();
                let split = split(&SHAPE, &ops, &plan, &old).unwrap();
                for (s, ops) in shards.iter_mut().zip(&split) {
                    ops.iter().for_each(|op| plain(s, op));
                }
                ops.iter().for_each(|op| plain(&mut object, op));
                prop_assert_eq!(plan.size, object.len() as u64);
                for s in &shards {
                    prop_assert_eq!(s.len() as u64, SHAPE.shard_len(plan.size));
                }
            }
            // Every pattern of losses within m.
            for lost in (0u32..32).filter(|l| l.count_ones() <= 2) {
                let have: Vec<(usize, Bytes)> = (0..5).filter(|s| lost & (1 << s) == 0).take(3)
                    .map(|s| (s, Bytes::copy_from_slice(&shards[s]))).collect();
                let mut joined = join(&SHAPE, &have).unwrap().to_vec();
                prop_assert!(joined[object.len()..].iter().all(|b| *b == 0), "the rest of the last \
                    stripe is zero");
                joined.truncate(object.len());
                prop_assert_eq!(&joined, &object);
                for (s, whole) in shards.iter().enumerate() {
                    prop_assert_eq!(&rebuild(&SHAPE, &have, &[s]).unwrap()[0][..], &whole[..]);
                }
            }
        }
    }

    #[test]
    fn whole_stripes_are_written_without_reading() {
        let write =
            |offset: u64, n: usize| vec![ObjectOp::Write { offset, data: vec![1; n].into() }];
        assert_eq!(plan(&SHAPE, &write(0, 24), 100).needs, []);
        assert_eq!(plan(&SHAPE, &write(0, 30), 30).needs, [], "to the end of the object");
        assert_eq!(plan(&SHAPE, &write(12, 13), 100).needs, [(2, 3)]);
        assert_eq!(plan(&SHAPE, &write(30, 1), 26).needs, [(2, 3)], "an append in the last stripe");
        assert_eq!(plan(&SHAPE, &write(48, 1), 26).needs, []);
    }
}
