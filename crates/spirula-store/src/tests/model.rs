//! The reference: what a store must look like, done the obvious way in memory.

use super::sim::Rng;
use crate::alloc::BLOCK;
use crate::keys;
use crate::layer::own_bit;
use crate::maps::{self, View, WHOLE};
use crate::refs::CHUNK;
use crate::segment::Segment;
use crate::{PoolSpace, Read, Store, StoreError};
use bytes::Bytes;
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object {
    pub data: Vec<u8>,
    pub attrs: BTreeMap<Bytes, Bytes>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub header: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub objects: BTreeMap<HObject, Object>,
    pub meta: BTreeMap<Bytes, Bytes>,
    pub logs: BTreeMap<PgId, Vec<(EVersion, Bytes)>>,
}

impl Model {
    pub fn apply(&mut self, txn: &Transaction) {
        for u in &txn.objects {
            for op in &u.ops {
                self.op(&u.object, op);
            }
        }
        for m in &txn.meta {
            match m {
                MetaOp::Set { key, value } => {
                    self.meta.insert(key.clone(), value.clone());
                }
                MetaOp::Remove { key } => {
                    self.meta.remove(key);
                }
                MetaOp::LogAppend { pg, version, entry } => {
                    self.logs.entry(*pg).or_default().push((*version, entry.clone()));
                }
                MetaOp::LogTrim { pg, to } => {
                    self.logs.entry(*pg).or_default().retain(|(v, _)| v > to)
                }
                MetaOp::LogRewind { pg, to } => {
                    self.logs.entry(*pg).or_default().retain(|(v, _)| v <= to)
                }
                MetaOp::LogRemove { pg } => {
                    self.logs.remove(pg);
                }
            }
        }
    }

    fn op(&mut self, object: &HObject, op: &ObjectOp) {
        if let ObjectOp::CloneFrom(from) = op {
            let copy = self.objects[from].clone();
            self.objects.insert(object.clone(), copy);
            return;
        }
        if let ObjectOp::CloneRange { from, offset, length, to } = op {
            let source = self.objects[from].data.clone();
            let o = self.objects.entry(object.clone()).or_default();
            if *length > 0 {
                let end = (to + length) as usize;
                o.data.resize(o.data.len().max(end), 0);
                let room = &mut o.data[*to as usize..end];
                room.fill(0);
                let part = source.get(*offset as usize..).unwrap_or_default();
                let n = part.len().min(room.len());
                room[..n].copy_from_slice(&part[..n]);
            }
            return;
        }
        if matches!(op, ObjectOp::Remove) {
            self.objects.remove(object);
            return;
        }
        let creates = matches!(
            op,
            ObjectOp::Touch
                | ObjectOp::Write { .. }
                | ObjectOp::Zero { .. }
                | ObjectOp::Truncate { .. }
                | ObjectOp::SetAttrs(_)
                | ObjectOp::OmapSet(_)
                | ObjectOp::OmapSetHeader(_)
                | ObjectOp::AllocHint(_)
        );
        if creates {
            self.objects.entry(object.clone()).or_default();
        }
        let Some(o) = self.objects.get_mut(object) else { return };
        match op {
            ObjectOp::Write { offset, data } if !data.is_empty() => {
                let end = *offset as usize + data.len();
                o.data.resize(o.data.len().max(end), 0);
                o.data[*offset as usize..end].copy_from_slice(data);
            }
            ObjectOp::Zero { offset, length } if *length > 0 => {
                let end = (offset + length) as usize;
                o.data.resize(o.data.len().max(end), 0);
                o.data[*offset as usize..end].fill(0);
            }
            ObjectOp::Truncate { size } => o.data.resize(*size as usize, 0),
            ObjectOp::SetAttrs(kv) => o.attrs.extend(kv.iter().cloned()),
            ObjectOp::RmAttr(k) => {
                o.attrs.remove(k);
            }
            ObjectOp::ClearAttrs => o.attrs.clear(),
            ObjectOp::OmapSet(kv) => o.omap.extend(kv.iter().cloned()),
            ObjectOp::OmapRm(keys) => keys.iter().for_each(|k| {
                o.omap.remove(k);
            }),
            ObjectOp::OmapRmRange { first, last } => o.omap.retain(|k, _| k < first || k >= last),
            ObjectOp::OmapClear => {
                o.omap.clear();
                o.header = Bytes::new();
            }
            ObjectOp::OmapSetHeader(h) => o.header = h.clone(),
            _ => {}
        }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Compares everything; panics with `what` and the difference.
    pub fn check(&self, store: &mut Store, what: &str) {
        let listed = store.list(&HObject::min(), &HObject::max(), usize::MAX).unwrap();
        assert_eq!(listed, self.objects.keys().cloned().collect::<Vec<_>>(), "{what}: objects");
        for (name, o) in &self.objects {
            let stat = store.stat(name).unwrap().unwrap();
            assert_eq!(stat.size, o.data.len() as u64, "{what}: size of {name}");
            let data = store.read_blocking(name, 0, u64::MAX).unwrap().unwrap();
            if data != o.data {
                let at = data.iter().zip(&o.data).position(|(a, b)| a != b);
                panic!("{what}: data of {name} differs at {at:?} of {}", o.data.len());
            }
            let attrs: Vec<_> = o.attrs.clone().into_iter().collect();
            assert_eq!(store.attrs(name).unwrap().unwrap(), attrs, "{what}: attributes of {name}");
            assert_eq!(
                store.omap_header(name).unwrap().unwrap(),
                o.header,
                "{what}: omap header of {name}"
            );
            let pairs: Vec<_> = o.omap.clone().into_iter().collect();
            let page = store.omap_range(name, None, b"", usize::MAX, usize::MAX).unwrap().unwrap();
            assert_eq!(page.pairs, pairs, "{what}: omap of {name}");
            assert!(!page.more);
            // What is not allocated is zeros.
            let mut hole = 0;
            for (start, len) in store.extents(name, 0, u64::MAX).unwrap().unwrap() {
                assert!(
                    o.data[hole as usize..start as usize].iter().all(|b| *b == 0),
                    "{what}: hole of {name}"
                );
                hole = start + len;
            }
            assert!(o.data[hole as usize..].iter().all(|b| *b == 0), "{what}: end of {name}");
        }
        let meta: Vec<_> = self.meta.clone().into_iter().collect();
        assert_eq!(store.meta_range(b"").unwrap(), meta, "{what}: meta");
        for (pg, log) in &self.logs {
            assert_eq!(&store.log_entries(*pg).unwrap(), log, "{what}: log of {pg}");
        }
        self.check_space(store, what);
    }

    /// Every block used has an owner, its reference count is right, and nothing else is used.
    fn check_space(&self, store: &mut Store, what: &str) {
        let mut owners: BTreeMap<u64, (u32, bool)> = BTreeMap::new();
        let mut spaces: BTreeMap<i64, PoolSpace> = BTreeMap::new();
        let mut omaps: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        let (mut layers, mut children): (BTreeSet<u64>, BTreeMap<u64, u64>) = Default::default();
        for name in self.objects.keys() {
            let o = store.onode(name).unwrap().unwrap();
            let owners_of_omap = omaps.entry(o.omap).or_insert((0, true));
            owners_of_omap.0 += 1;
            owners_of_omap.1 &= o.omap_shared;
            let space = spaces.entry(crate::stage::pool_of(name)).or_default();
            space.stored += o.stored();
            let (mut mapped, mut allocated, mut compressed) = (0u64, 0u64, 0u64);
            // What the object sees.
            match &o.inline {
                Some(seg) => {
                    let usage = seg.usage();
                    (mapped, allocated, compressed) =
                        (usage.blocks, usage.allocated, usage.compressed);
                }
                None => {
                    for n in maps::numbers(store, &o, 0, u32::MAX).unwrap() {
                        let view = View::of(store, &o, n, WHOLE).unwrap();
                        assert!(
                            !o.sums.is_some_and(|kind| view.has_other_sums(kind)),
                            "{what}: checksums of {name}"
                        );
                        let usage = view.usage();
                        mapped += usage.blocks;
                        allocated += usage.allocated;
                        compressed += usage.compressed;
                    }
                }
            }
            // Records own blocks: those of its own map, and once those of each layer.
            let mut own = |seg: &Segment, marked: bool| {
                for blob in seg.blobs() {
                    if blob.runs.iter().all(|r| !owners.contains_key(&r.start)) {
                        space.compressed += u64::from(blob.stored);
                        space.compressed_allocated += blob.blocks() * BLOCK;
                    }
                }
                for b in seg.device_runs().flat_map(|r| r.start..r.start + r.len) {
                    let (n, shared) = owners.entry(b).or_insert((0, true));
                    if *n == 0 {
                        space.allocated += BLOCK;
                    }
                    *n += 1;
                    *shared &= marked;
                }
            };
            if let Some(seg) = &o.inline {
                own(seg, o.shared);
                assert_eq!(o.base, 0, "{what}: {name} is small and over a layer");
            }
            let mut maps = vec![(o.id, o.base, o.own, o.shared)];
            if o.base != 0 {
                *children.entry(o.base).or_default() += 1;
                let (key, record) = (keys::object(name), store.stored_named(o.name).unwrap());
                assert_eq!(
                    record.is_some(),
                    o.told,
                    "{what}: object {} and its name's record",
                    o.name
                );
                let known =
                    record.or_else(|| store.stored_layer(o.base).unwrap().unwrap().key_of(o.name));
                assert_eq!(known.unwrap(), key, "{what}: object {}", o.name);
                let below = maps::chain(store, o.base).count() as u32;
                assert!(
                    o.depth == 0 || below <= o.depth,
                    "{what}: {below} layers below {name}, not {}",
                    o.depth
                );
            } else {
                assert_eq!(
                    (o.told, o.depth, o.sums),
                    (false, 0, None),
                    "{what}: {name} lies over nothing"
                );
            }
            let mut base = o.base;
            while base != 0 {
                let l = store.stored_layer(base).unwrap().unwrap();
                if !layers.insert(base) {
                    break;
                }
                if l.base != 0 {
                    *children.entry(l.base).or_default() += 1;
                }
                maps.push((l.map, l.base, l.own, l.shared));
                base = l.base;
            }
            for (map, base, own_mask, shared) in maps {
                let mut found = Default::default();
                store.stored_segments(map, 0, u32::MAX, &mut found).unwrap();
                for n in found {
                    let Some(seg) = store.segment(map, n).unwrap() else { continue };
                    assert!(o.inline.is_none(), "{what}: {name} has two maps");
                    assert_eq!(seg.lies_over(), base != 0, "{what}: segment {n} of {name}");
                    assert!(
                        base == 0 || own_mask & own_bit(n) != 0,
                        "{what}: segment {n} of {name} is not told of"
                    );
                    own(&seg, shared);
                }
            }
            space.compressed_original += compressed * BLOCK;
            assert!(
                o.compressed.is_none_or(|n| n == compressed),
                "{what}: compressed blocks of {name}"
            );
            assert_eq!(mapped, o.blocks, "{what}: block count of {name}");
            assert_eq!(allocated, o.allocated, "{what}: device blocks of {name}");
        }
        for (id, (n, marked)) in omaps.iter().filter(|(id, _)| **id != 0) {
            assert_eq!(
                store.stored_omap_owners(*id).unwrap(),
                n - 1,
                "{what}: owners of omap {id}"
            );
            assert!(
                *n == 1 || *marked,
                "{what}: an owner of omap {id} does not know that it shares it"
            );
        }
        for name in &layers {
            let l = store.stored_layer(*name).unwrap().unwrap();
            assert!(
                l.children == children[name] && l.children >= 2,
                "{what}: children of layer {name}: {l:?}"
            );
        }
        let mut counted: BTreeMap<u64, u32> = BTreeMap::new();
        let blocks = store.alloc().blocks();
        for chunk in 0..blocks.div_ceil(CHUNK) {
            for (first, len, n) in
                store.refs(chunk).unwrap().iter().flat_map(|r| r.shared().collect::<Vec<_>>())
            {
                counted.extend((first..first + len).map(|b| (chunk * CHUNK + b, n)));
            }
        }
        let expected: BTreeMap<u64, u32> =
            owners.iter().filter(|(_, (n, _))| *n > 1).map(|(b, (n, _))| (*b, n - 1)).collect();
        assert_eq!(counted, expected, "{what}: reference counts");
        assert!(
            owners.values().all(|(n, shared)| *n == 1 || *shared),
            "{what}: a sharing object is not marked"
        );
        spaces.retain(|_, s| *s != PoolSpace::default());
        assert_eq!(
            store.pool_space().collect::<BTreeMap<_, _>>(),
            spaces,
            "{what}: space of pools"
        );
        let pending: u64 = store.held_back().iter().map(|r| r.len).sum();
        let used = {
            let alloc = store.alloc();
            alloc.blocks() - alloc.free() - alloc.in_meta()
        };
        assert_eq!(used, owners.len() as u64 + pending, "{what}: used blocks");
        assert_eq!(store.statfs().objects, self.objects.len() as u64, "{what}: object count");
    }

    /// Some reads of parts, checked.
    pub fn check_parts(&self, store: &Store, rng: &mut Rng) {
        for (name, o) in &self.objects {
            let offset = rng.below(o.data.len() as u64 + 5000);
            let len = rng.below(20_000);
            let (a, b) =
                ((offset as usize).min(o.data.len()), ((offset + len) as usize).min(o.data.len()));
            let how = if rng.below(3) == 0 { Store::read_uncached } else { Store::read };
            let got = match how(store, name, offset, len).unwrap() {
                Read::Ready(d) => d,
                Read::NotReady(plan) => {
                    let data = std::thread::spawn(move || plan.run().unwrap()).join().unwrap();
                    store.keep(name, offset, &data);
                    data
                }
                Read::Missing => panic!("{name} missing"),
            };
            assert!(got == o.data[a..b], "part {a}..{b} of {name}");
        }
    }
}

pub(crate) fn object(n: u64) -> HObject {
    HObject::head(
        (n % 2) as i64 + 1,
        Bytes::new(),
        Bytes::new(),
        Bytes::from(format!("object-{n}")),
    )
}

/// `len` bytes that tell where they belong.
pub(crate) fn pattern(seed: u64, len: usize) -> Bytes {
    let mut rng = Rng(seed);
    if seed.is_multiple_of(3) {
        // Something that compresses.
        return (0..len).map(|i| (seed as usize + i / 1000) as u8).collect::<Vec<_>>().into();
    }
    let mut v = Vec::with_capacity(len + 8);
    while v.len() < len {
        v.extend_from_slice(&rng.next().to_le_bytes());
    }
    v.truncate(len);
    v.into()
}

/// A random transaction that the model can apply. `big`: with large objects among them.
pub(crate) fn random_txn(rng: &mut Rng, model: &Model, version: u64, big: bool) -> Transaction {
    let mut t = Transaction::default();
    let key = |n: u64| Bytes::from(format!("key{n:02}"));
    let mut state = model.clone();
    for _ in 0..rng.below(4) {
        let n = rng.below(6);
        let o = object(n);
        // Of the same pool: clones never leave it.
        let from = object((n + 2 * rng.below(3)) % 6);
        let place = match rng.below(if big { 8 } else { 5 }) {
            0 => rng.below(200_000),
            1 | 2 => rng.below(10) * BLOCK,
            5 => rng.below(1_500_000),
            _ => rng.below(20_000),
        };
        let len = match rng.below(if big { 9 } else { 6 }) {
            0 => 0,
            1 => BLOCK,
            2 | 3 => rng.below(9000),
            6 => rng.below(300_000),
            7 => 128 * BLOCK,
            _ => rng.below(200),
        };
        let op = match rng.below(26) {
            0..=7 => ObjectOp::Write { offset: place, data: pattern(rng.next(), len as usize) },
            8 => ObjectOp::Zero { offset: place, length: len },
            9 => ObjectOp::Truncate { size: place },
            10 => ObjectOp::Remove,
            11 => ObjectOp::Touch,
            12 => ObjectOp::SetAttrs(vec![(
                key(rng.below(4)),
                pattern(rng.next(), rng.below(300) as usize),
            )]),
            13 => ObjectOp::RmAttr(key(rng.below(4))),
            14 => ObjectOp::ClearAttrs,
            15 | 16 => {
                let n = rng.below(5);
                ObjectOp::OmapSet(
                    (0..n).map(|_| (key(rng.below(30)), pattern(rng.next(), 20))).collect(),
                )
            }
            17 => ObjectOp::OmapRm(vec![key(rng.below(30)), key(rng.below(30))]),
            18 => {
                let (a, b) = (rng.below(30), rng.below(30));
                ObjectOp::OmapRmRange { first: key(a.min(b)), last: key(a.max(b)) }
            }
            19 => ObjectOp::OmapClear,
            20 => ObjectOp::OmapSetHeader(pattern(rng.next(), rng.below(50) as usize)),
            21 => ObjectOp::AllocHint([0, 256, 512][rng.below(3) as usize]),
            22 | 23 => {
                let skew = if rng.below(3) == 0 { rng.below(BLOCK) } else { 0 };
                let skew_here = if rng.below(4) == 0 { rng.below(BLOCK) } else { skew };
                let blocks = |rng: &mut Rng| rng.below(if big { 200 } else { 12 }) * BLOCK;
                let (offset, to) = (blocks(rng) + skew, blocks(rng) + skew_here);
                let length = blocks(rng) + rng.below(2) * rng.below(BLOCK);
                if state.objects.contains_key(&from) {
                    ObjectOp::CloneRange { from, offset, length, to }
                } else {
                    ObjectOp::Touch
                }
            }
            _ => {
                if state.objects.contains_key(&from) {
                    ObjectOp::CloneFrom(from)
                } else {
                    ObjectOp::Touch
                }
            }
        };
        state.op(&o, &op);
        let goes = match &op {
            ObjectOp::CloneFrom(from) if *from != o && rng.below(3) == 0 => Some(from.clone()),
            _ => None,
        };
        t.object(&o, op);
        if let Some(from) = goes {
            state.op(&from, &ObjectOp::Remove);
            t.object(&from, ObjectOp::Remove);
        }
    }
    let pg = PgId::new(1, rng.below(2) as u32);
    let v = |n: u64| EVersion::new(1 + (n / 50) as u32, n);
    match rng.below(12) {
        0..=5 => {
            t.meta.push(MetaOp::LogAppend { pg, version: v(version), entry: pattern(version, 40) })
        }
        6 => t.meta.push(MetaOp::LogTrim { pg, to: v(version.saturating_sub(rng.below(20))) }),
        7 => {
            // Then grown again from there, perhaps from before the last trim.
            let to = version.saturating_sub(rng.below(40));
            t.meta.push(MetaOp::LogRewind { pg, to: v(to) });
            if rng.below(2) == 0 && to < version {
                t.meta.push(MetaOp::LogAppend {
                    pg,
                    version: v(to + 1),
                    entry: pattern(version, 30),
                });
            }
        }
        8 if rng.below(4) == 0 => t.meta.push(MetaOp::LogRemove { pg }),
        _ => {}
    }
    match rng.below(4) {
        0 | 1 => {
            t.meta.push(MetaOp::Set { key: key(rng.below(5)), value: pattern(rng.next(), 100) })
        }
        2 => t.meta.push(MetaOp::Remove { key: key(rng.below(5)) }),
        _ => {}
    }
    t
}

/// Random transactions one after the other, and what the store holds after each that it took.
pub(crate) struct Walk {
    pub rng: Rng,
    /// By the transactions' numbers; the first is empty.
    pub models: Vec<Model>,
}

impl Walk {
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng(seed), models: vec![Model::default()] }
    }

    /// What the store holds now.
    pub fn now(&self) -> &Model {
        self.models.last().unwrap()
    }

    /// Submits the next one. One for which there is no space has no effect, and is no error.
    pub fn step(&mut self, store: &mut Store, step: u64) -> Result<(), StoreError> {
        let mut model = self.now().clone();
        let txn = random_txn(&mut self.rng, &model, step + 1, false);
        match store.submit(txn.clone()) {
            Ok(_) => {
                model.apply(&txn);
                self.models.push(model);
                Ok(())
            }
            Err(StoreError::NoSpace { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
