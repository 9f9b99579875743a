//! Pieces of an object's copy, as they travel between OSDs.

use super::share::Way;
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, OmapRange, Prefetch, ReadError};
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::CopyCursor;
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{DIRTY_BLOCK, Dirty, HObject, errno};

/// A piece of an object's copy.
pub(crate) struct Chunk {
    /// Makes it at the target.
    pub txn: Transaction,
    /// Where to go on; `None` after the last piece.
    pub next: Option<CopyCursor>,
}

/// Omap goes with the last data up to this much beyond the size of a piece.
const LAST: u64 = 64 << 10;

/// The ranges to copy of an object of this size.
fn ranges(dirty: &Dirty, size: u64) -> Vec<(u64, u64)> {
    match dirty {
        Dirty::All => vec![(0, size)],
        Dirty::Parts { data, .. } => {
            data.iter().map(|(from, end)| (*from, size.min(*end))).collect()
        }
    }
}

/// What the first piece does before it brings anything.
fn begin(way: &Way, size: u64) -> Vec<ObjectOp> {
    match &way.lacks {
        _ if !way.taken.is_empty() => {
            [ObjectOp::Remove, ObjectOp::Touch].into_iter().chain(way.ops()).collect()
        }
        Dirty::All => vec![ObjectOp::Remove, ObjectOp::Touch],
        Dirty::Parts { data, omap } => {
            let mut ops = Vec::new();
            if data.last().is_some_and(|r| r.1 == u64::MAX) {
                // The last block comes whole: nothing of what was there is merged with it.
                ops.push(ObjectOp::Truncate { size: size / DIRTY_BLOCK * DIRTY_BLOCK });
            }
            if *omap {
                ops.push(ObjectOp::OmapClear);
            }
            ops.push(ObjectOp::ClearAttrs);
            ops
        }
    }
}

/// Reads a range: what is not mapped is made zeros where something else may be. Data that must be
/// loaded first is added to `wanted`.
fn copy_range(
    reader: &dyn ObjectReader,
    object: &HObject,
    (from, end): (u64, u64),
    over: bool,
    ops: &mut Vec<ObjectOp>,
    wanted: &mut Prefetch,
) -> Result<(), ReadError> {
    let hole = |from: u64, end: u64, ops: &mut Vec<ObjectOp>| {
        if over && from < end {
            ops.push(ObjectOp::Zero { offset: from, length: end - from });
        }
    };
    let mut at = from;
    for (offset, length) in reader.extents(object, from, end.saturating_sub(from))? {
        hole(at, offset, ops);
        at = offset.saturating_add(length);
        match reader.read(object, offset, length) {
            Ok(data) => ops.push(ObjectOp::Write { offset, data }),
            Err(ReadError::NotReady(what)) => wanted.0.extend(what.0),
            Err(e) => return Err(e),
        }
    }
    hole(at, end, ops);
    Ok(())
}

/// Builds the piece of `object` at `cursor`, of about `max` bytes, for a copy that is made by this
/// `way`.
pub(crate) fn chunk(
    reader: &dyn ObjectReader,
    object: &HObject,
    cursor: &CopyCursor,
    way: &Way,
    max: u64,
) -> Result<Chunk, ReadError> {
    let dirty = &way.lacks;
    let max = max.max(1);
    let one = |ops| Transaction {
        objects: vec![ObjectUpdate { object: object.clone(), ops }],
        meta: Vec::new(),
    };
    let Some(attr) = reader.attr(object, INFO_ATTR)? else {
        return Ok(Chunk { txn: one(vec![ObjectOp::Remove]), next: None });
    };
    let info: ObjectInfo = from_slice(&attr).map_err(|_| ReadError::Io(errno::EIO))?;
    let mut ops = if *cursor == CopyCursor::default() { begin(way, info.size) } else { Vec::new() };
    let (over, with_omap) = match dirty {
        Dirty::All => (false, true),
        // Where ranges were taken of others, there is nothing between them yet.
        Dirty::Parts { omap, .. } => (way.taken.is_empty(), *omap),
    };
    let mut at = cursor.clone();
    let mut left = max;
    if !at.data_done {
        let mut wanted = Prefetch::default();
        for (from, end) in ranges(dirty, info.size) {
            let from = from.max(at.offset);
            if left == 0 || from >= end {
                continue;
            }
            let whole = from.saturating_add(left).checked_next_multiple_of(DIRTY_BLOCK);
            let stop = end.min(whole.unwrap_or(u64::MAX));
            copy_range(reader, object, (from, stop), over, &mut ops, &mut wanted)?;
            left = left.saturating_sub(stop - from);
            at.offset = stop;
        }
        if !wanted.0.is_empty() {
            return Err(ReadError::NotReady(wanted));
        }
        at.data_done = ranges(dirty, info.size).iter().all(|r| r.1 <= at.offset.max(r.0));
    }
    if !at.data_done {
        return Ok(Chunk { txn: one(ops), next: Some(at) });
    }
    if with_omap {
        if at.omap_from.is_empty() {
            let header = reader.omap_header(object)?;
            if !header.is_empty() {
                ops.push(ObjectOp::OmapSetHeader(header));
            }
        }
        let max_bytes = left.max(LAST) as usize;
        let page = reader.omap_range(
            object,
            OmapRange { from: &at.omap_from, until: None, max_entries: 4096, max_bytes },
        )?;
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
    }
    ops.push(ObjectOp::Truncate { size: info.size });
    ops.push(ObjectOp::SetAttrs(reader.attrs(object)?));
    Ok(Chunk { txn: one(ops), next: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::tests::MemStore;
    use bytes::Bytes;
    use spirula_types::EVersion;

    struct Rng(u64);

    impl Rng {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }
    }

    /// A change such as clients make, of an object of about 60 KiB.
    fn change(r: &mut Rng, n: u64) -> Vec<ObjectOp> {
        let key = |r: &mut Rng| Bytes::from(format!("k{}", r.below(9)));
        let op = match r.below(12) {
            0..5 => {
                let length = if r.below(2) == 0 { 10 } else { 9000 };
                let data = vec![n as u8 | 1; r.below(length) as usize + 1];
                ObjectOp::Write { offset: r.below(60_000), data: data.into() }
            }
            5 => ObjectOp::Zero { offset: r.below(60_000), length: r.below(9000) },
            6 => ObjectOp::Truncate { size: r.below(70_000) },
            7 => ObjectOp::OmapSet(vec![(key(r), n.to_string().into())]),
            8 => ObjectOp::OmapRm(vec![key(r)]),
            9 => ObjectOp::OmapSetHeader(n.to_string().into()),
            10 if r.below(8) == 0 => ObjectOp::OmapClear,
            10 => ObjectOp::RmAttr(key(r)),
            _ => ObjectOp::SetAttrs(vec![(key(r), n.to_string().into())]),
        };
        vec![op]
    }

    fn stamp(store: &mut MemStore, o: &HObject, n: u64) {
        let size = store.objects.get(o).map_or(0, |s| s.data.len() as u64);
        let info = ObjectInfo { version: EVersion::new(1, n), size, ..ObjectInfo::default() };
        store.apply(o, &[ObjectOp::SetAttrs(vec![(INFO_ATTR.into(), info.to_attr())])]);
    }

    /// Copies an object piece by piece; how many bytes of data went.
    fn copy(from: &MemStore, to: &mut MemStore, o: &HObject, dirty: &Dirty, max: u64) -> u64 {
        let (mut cursor, mut sent) = (CopyCursor::default(), 0);
        for _ in 0..1000 {
            let Chunk { txn, next } =
                chunk(from, o, &cursor, &Way::plain(dirty.clone()), max).unwrap();
            for op in txn.objects.iter().flat_map(|u| &u.ops) {
                if let ObjectOp::Write { data, .. } = op {
                    sent += data.len() as u64;
                }
            }
            txn.objects.iter().for_each(|u| to.apply(&u.object, &u.ops));
            match next {
                Some(next) => cursor = next,
                None => return sent,
            }
        }
        panic!("no end");
    }

    #[test]
    fn a_copy_gets_what_differs_and_is_then_the_same() {
        let o = HObject::head(1, Bytes::new(), Bytes::new(), "o".into());
        let (mut partial, mut whole) = (0, 0);
        for seed in 0..400 {
            let mut r = Rng(seed);
            let mut new = MemStore::default();
            let mut n = 0;
            let mut go_on = |store: &mut MemStore, dirty: &mut Dirty, r: &mut Rng, times: u64| {
                for _ in 0..times {
                    n += 1;
                    let ops = change(r, n);
                    store.apply(&o, &ops);
                    dirty.merge(&Dirty::of(&ops));
                    stamp(store, &o, n);
                }
            };
            let mut dirty = Dirty::nothing();
            let before = 1 + r.below(30);
            go_on(&mut new, &mut dirty, &mut r, before);
            let mut old = MemStore { objects: new.objects.clone(), ..MemStore::default() };
            dirty = Dirty::nothing();
            let since = r.below(12);
            go_on(&mut new, &mut dirty, &mut r, since);
            let max = [1, 5000, 16 << 10, 1 << 20][r.below(4) as usize];
            partial += copy(&new, &mut old, &o, &dirty, max);
            assert_eq!(old.objects, new.objects, "seed {seed}: {dirty:?}");
            let mut other = MemStore::default();
            whole += copy(&new, &mut other, &o, &Dirty::All, max);
            assert_eq!(other.objects, new.objects, "seed {seed}, all of it");
        }
        assert!(partial < whole, "{partial} of {whole} bytes");
    }

    #[test]
    fn an_overwrite_of_a_block_costs_a_block() {
        let o = HObject::head(1, Bytes::new(), Bytes::new(), "o".into());
        let mut new = MemStore::default();
        new.apply(&o, &[ObjectOp::Write { offset: 0, data: vec![1; 1 << 20].into() }]);
        stamp(&mut new, &o, 1);
        let mut old = MemStore { objects: new.objects.clone(), ..MemStore::default() };
        let change = [ObjectOp::Write { offset: 40_960, data: vec![2; 4096].into() }];
        new.apply(&o, &change);
        stamp(&mut new, &o, 2);
        assert_eq!(copy(&new, &mut old, &o, &Dirty::of(&change), 1 << 20), 4096);
        assert_eq!(old.objects, new.objects);
    }
}
