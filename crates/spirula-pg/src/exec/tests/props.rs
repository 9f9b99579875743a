//! Random vectors against an obvious model, and garbage.

use super::*;
use proptest::prelude::*;

/// The object as a user thinks of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    exists: bool,
    data: Vec<u8>,
    attrs: BTreeMap<Bytes, Bytes>,
    omap: BTreeMap<Bytes, Bytes>,
    header: Bytes,
    has_omap: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Bytes),
    WriteFull(Bytes),
    Append(Bytes),
    Truncate(u64),
    Zero(u64, u64),
    WriteSame(u64, u64, Bytes),
    Create(bool),
    Delete,
    SetAttr(Bytes, Bytes),
    RmAttr(Bytes),
    OmapSet(Vec<(Bytes, Bytes)>),
    OmapHeader(Bytes),
    OmapClear,
    OmapRm(Vec<Bytes>),
    OmapRmRange(Bytes, Bytes),
    Read(u64, u64),
    SparseRead(u64, u64),
    CmpExt(u64, Bytes),
    Stat,
    GetAttr(Bytes),
    GetAttrs,
    CmpAttr(Bytes, Bytes, u8),
    OmapGetHeader,
    OmapKeys(Bytes, u64),
    OmapVals(Bytes, u64, Bytes),
    OmapByKeys(Vec<Bytes>),
    OmapCmp(Bytes, Bytes),
}
use Step::*;

fn put_prefix(o: &mut spirula_encoding::Encoder, start: &Bytes, max: u64) {
    o.put(start);
    o.u64(max);
}

impl Step {
    fn op(&self) -> OsdOp {
        let raw = |code, f: &dyn Fn(&mut spirula_encoding::Encoder)| {
            let mut o = spirula_encoding::Encoder::new();
            f(&mut o);
            OsdOp { indata: o.into_bytes(), ..OsdOp::new(code) }
        };
        match self {
            Write(at, d) => OsdOp::write(*at, d.clone()),
            WriteFull(d) => OsdOp::write_full(d.clone()),
            Append(d) => OsdOp::append(d.clone()),
            Truncate(n) => OsdOp::truncate(*n),
            Zero(at, n) => OsdOp::zero(*at, *n),
            WriteSame(at, n, p) => OsdOp::writesame(*at, *n, p.clone()),
            Create(excl) => OsdOp::create(*excl),
            Delete => OsdOp::delete(),
            SetAttr(k, v) => xattr_op(op::SETXATTR, k, v),
            RmAttr(k) => xattr_op(op::RMXATTR, k, b""),
            OmapSet(kv) => encoded(op::OMAP_SET_VALS, kv),
            OmapHeader(h) => OsdOp { indata: h.clone(), ..OsdOp::new(op::OMAP_SET_HEADER) },
            OmapClear => OsdOp::new(op::OMAP_CLEAR),
            OmapRm(keys) => encoded(op::OMAP_RM_KEYS, keys),
            OmapRmRange(a, z) => encoded(op::OMAP_RM_KEY_RANGE, &(a.clone(), z.clone())),
            Read(at, n) => OsdOp::read(*at, *n),
            SparseRead(at, n) => OsdOp::sparse_read(*at, *n),
            CmpExt(at, d) => OsdOp::cmpext(*at, d.clone()),
            Stat => OsdOp::stat(),
            GetAttr(k) => xattr_op(op::GETXATTR, k, b""),
            GetAttrs => OsdOp::new(op::GETXATTRS),
            CmpAttr(k, v, cmp) => cmpxattr(k, v, *cmp, 1),
            OmapGetHeader => OsdOp::new(op::OMAP_GET_HEADER),
            OmapKeys(start, max) => raw(op::OMAP_GET_KEYS, &|o| put_prefix(o, start, *max)),
            OmapVals(start, max, prefix) => raw(op::OMAP_GET_VALS, &|o| {
                put_prefix(o, start, *max);
                o.put(prefix);
            }),
            OmapByKeys(keys) => encoded(op::OMAP_GET_VALS_BY_KEYS, keys),
            OmapCmp(k, v) => encoded(op::OMAP_CMP, &vec![(k.clone(), (v.clone(), 1i32))]),
        }
    }
}

type Answer = Result<(i32, Vec<u8>), i32>;

impl Model {
    fn create(&mut self) {
        self.exists = true;
    }

    fn exists(&self) -> Result<(), i32> {
        if self.exists { Ok(()) } else { Err(-errno::ENOENT) }
    }

    fn put(&mut self, at: u64, d: &[u8]) {
        self.create();
        let end = at as usize + d.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[at as usize..end].copy_from_slice(d);
    }

    fn part(&self, at: u64, n: u64) -> &[u8] {
        let end = at.saturating_add(n).min(self.data.len() as u64) as usize;
        self.data.get(at as usize..end).unwrap_or_default()
    }

    fn page(&self, start: &Bytes, prefix: &Bytes, max: u64) -> (Vec<(Bytes, Bytes)>, bool) {
        let all: Vec<_> = self
            .omap
            .iter()
            .filter(|(k, _)| *k > start && k.starts_with(prefix))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let n = all.len().min(max as usize);
        (all[..n].to_vec(), n < all.len())
    }

    /// What a step does and answers: rval and output, or the error.
    fn step(&mut self, step: &Step) -> Answer {
        let mut out = Vec::new();
        let mut rval = 0;
        match step {
            Write(at, d) => self.put(*at, d),
            WriteFull(d) => {
                self.create();
                self.data = d.to_vec();
            }
            Append(d) => self.put(self.data.len() as u64, d),
            Truncate(n) if self.exists => self.data.resize(*n as usize, 0),
            Zero(at, n) if self.exists && *n > 0 && *at < self.data.len() as u64 => {
                if at + n >= self.data.len() as u64 {
                    self.data.truncate(*at as usize);
                } else {
                    self.data[*at as usize..(at + n) as usize].fill(0);
                }
            }
            Truncate(_) | Zero(..) => {}
            WriteSame(at, n, p) => {
                if *n == 0 {
                    return Ok((0, out));
                }
                if p.is_empty() || n % p.len() as u64 != 0 {
                    return Err(-errno::EINVAL);
                }
                self.put(*at, &p.repeat((n / p.len() as u64) as usize));
            }
            Create(excl) => {
                if *excl && self.exists {
                    return Err(-errno::EEXIST);
                }
                self.create();
            }
            Delete => {
                self.exists()?;
                *self = Self { has_omap: self.has_omap, ..Self::default() };
            }
            SetAttr(k, v) => {
                self.create();
                self.attrs.insert(k.clone(), v.clone());
            }
            RmAttr(k) => {
                self.exists()?;
                self.attrs.remove(k);
            }
            OmapSet(kv) => {
                self.create();
                self.has_omap = true;
                self.omap.extend(kv.iter().cloned());
            }
            OmapHeader(h) => {
                self.create();
                self.has_omap = true;
                self.header = h.clone();
            }
            OmapClear => {
                self.exists()?;
                self.omap.clear();
                self.header = Bytes::new();
                self.has_omap = false;
            }
            OmapRm(keys) => {
                self.exists()?;
                keys.iter().for_each(|k| {
                    self.omap.remove(k);
                });
            }
            OmapRmRange(a, z) => {
                self.exists()?;
                self.omap.retain(|k, _| k < a || k >= z);
            }
            Read(at, n) => out = self.part(*at, if *n == 0 { u64::MAX } else { *n }).to_vec(),
            // Compared by what it means, below.
            SparseRead(..) => {}
            CmpExt(at, d) => {
                let stored = self.part(*at, d.len() as u64);
                for (i, want) in d.iter().enumerate() {
                    if stored.get(i).copied().unwrap_or(0) != *want {
                        return Err(-4095 - i as i32);
                    }
                }
            }
            Stat => {
                self.exists()?;
                out = to_vec(&(self.data.len() as u64));
            }
            GetAttr(k) => {
                self.exists()?;
                out = self.attrs.get(k).ok_or(-errno::ENODATA)?.to_vec();
            }
            GetAttrs => {
                self.exists()?;
                out = to_vec(&self.attrs);
            }
            CmpAttr(k, v, cmp) => {
                self.exists()?;
                let stored = self.attrs.get(k).cloned().unwrap_or_default();
                let yes = match cmp {
                    1 => *v == stored,
                    2 => *v != stored,
                    3 => *v > stored,
                    4 => *v >= stored,
                    5 => *v < stored,
                    _ => *v <= stored,
                };
                if !yes {
                    return Err(-errno::ECANCELED);
                }
                rval = 1;
            }
            OmapGetHeader => out = self.header.to_vec(),
            OmapKeys(start, max) => {
                let (page, more) = self.page(start, &Bytes::new(), *max);
                out = to_vec(&(page.into_iter().map(|(k, _)| k).collect::<Vec<_>>(), more));
            }
            OmapVals(start, max, prefix) => out = to_vec(&self.page(start, prefix, *max)),
            OmapByKeys(keys) => {
                let found: BTreeMap<_, _> = keys
                    .iter()
                    .filter_map(|k| self.omap.get(k).map(|v| (k.clone(), v.clone())))
                    .collect();
                out = to_vec(&found);
            }
            OmapCmp(k, v) => {
                self.exists()?;
                if self.omap.get(k).cloned().unwrap_or_default() != *v {
                    return Err(-errno::ECANCELED);
                }
            }
        }
        Ok((rval, out))
    }

    fn of(store: &MemStore, o: &HObject) -> Self {
        let Some(s) = store.objects.get(o) else { return Self::default() };
        let has_omap = load_object(store, o).unwrap().info.has(ObjectInfo::OMAP);
        Self {
            exists: true,
            data: s.data.clone(),
            attrs: s
                .attrs
                .iter()
                .filter_map(|(k, v)| user_name(k).map(|k| (k, v.clone())))
                .collect(),
            omap: s.omap.clone(),
            header: s.header.clone(),
            has_omap,
        }
    }
}

fn key() -> impl Strategy<Value = Bytes> {
    proptest::sample::select(vec!["a", "b", "ba", "bb", "c", "\u{7f}", "b\u{0}"]).prop_map(b)
}

fn value() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(0..3u8, 0..24).prop_map(Bytes::from)
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..48u64;
    prop_oneof![
        4 => (at(), value()).prop_map(|(a, d)| Write(a, d)),
        1 => value().prop_map(WriteFull),
        1 => value().prop_map(Append),
        2 => at().prop_map(Truncate),
        2 => (at(), at()).prop_map(|(a, n)| Zero(a, n)),
        1 => (at(), at(), value()).prop_map(|(a, n, p)| WriteSame(a, n, p)),
        1 => any::<bool>().prop_map(Create),
        1 => Just(Delete),
        2 => (key(), value()).prop_map(|(k, v)| SetAttr(k, v)),
        1 => key().prop_map(RmAttr),
        3 => proptest::collection::vec((key(), value()), 0..4).prop_map(OmapSet),
        1 => value().prop_map(OmapHeader),
        1 => Just(OmapClear),
        1 => proptest::collection::vec(key(), 0..3).prop_map(OmapRm),
        1 => (key(), key()).prop_map(|(a, z)| OmapRmRange(a, z)),
        3 => (at(), at()).prop_map(|(a, n)| Read(a, n)),
        2 => (at(), at()).prop_map(|(a, n)| SparseRead(a, n)),
        1 => (at(), value()).prop_map(|(a, d)| CmpExt(a, d)),
        1 => Just(Stat),
        1 => key().prop_map(GetAttr),
        1 => Just(GetAttrs),
        1 => (key(), value(), 1..7u8).prop_map(|(k, v, c)| CmpAttr(k, v, c)),
        1 => Just(OmapGetHeader),
        2 => (key(), 0..5u64).prop_map(|(k, n)| OmapKeys(k, n)),
        2 => (key(), 0..5u64, prop_oneof![Just(b("")), Just(b("b"))]).prop_map(|(k, n, p)| OmapVals(k, n, p)),
        1 => proptest::collection::vec(key(), 0..3).prop_map(OmapByKeys),
        1 => (key(), value()).prop_map(|(k, v)| OmapCmp(k, v)),
    ]
}

/// Bytes that a sparse read's answer stands for, in a range of `n` bytes from `at`.
fn expand(answer: &[u8], at: u64, n: usize) -> Vec<u8> {
    let mut d = spirula_encoding::Decoder::new(answer);
    let map: Vec<(u64, u64)> = d.get().unwrap();
    let mut blob = d.blob().unwrap();
    let mut all = vec![0; n];
    let mut end = 0;
    for (from, len) in map {
        assert!(len > 0 && from >= end, "extents ascend");
        end = from + len;
        let (now, rest) = blob.split_at(len as usize);
        all[(from - at) as usize..(end - at) as usize].copy_from_slice(now);
        blob = rest;
    }
    assert!(blob.is_empty());
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn prop_vectors_do_what_the_model_does_and_failing_ones_nothing(
        requests in proptest::collection::vec(proptest::collection::vec((step(), prop::bool::weighted(0.9)), 1..12), 1..8)
    ) {
        let mut bench = Bench::new();
        bench.flags = flag::RETURNVEC;
        (bench.limits.max_write_op_reply, bench.limits.max_returns) = (usize::MAX, usize::MAX);
        let o = object("it");
        let mut model = Model::default();
        for request in requests {
            let ops: Vec<OsdOp> = request
                .iter()
                .map(|(s, failok)| s.op().with_flags(if *failok { op::FLAG_FAILOK } else { 0 }))
                .collect();
            let got = bench.run(&o, &ops);
            if !is_write(&ops) && !model.exists {
                prop_assert_eq!(got.result, -errno::ENOENT);
                prop_assert!(matches!(got.effect, Effect::None));
                continue;
            }
            let mut after = model.clone();
            let mut result = 0;
            for ((s, failok), r) in request.iter().zip(&got.ops) {
                if result < 0 {
                    prop_assert_eq!((r.rval, r.op.indata.len()), (0, 0));
                    continue;
                }
                // These succeed with the result of the op before.
                        let kept = match s {
                            Stat | OmapGetHeader | OmapKeys(..) | OmapVals(..) | OmapByKeys(_) | OmapCmp(..) => true,
                            Zero(at, n) => *n > 0 && after.exists && *at >= after.data.len() as u64 && at + n >= after.data.len() as u64,
                            _ => false,
                        };
                match after.step(s) {
                    Err(e) => {
                        prop_assert_eq!(r.rval, e, "{:?}", s);
                        result = if *failok { 0 } else { e };
                    }
                    Ok((rval, out)) => {
                        let rval = if kept { result } else { rval };
                        result = rval;
                        prop_assert_eq!(r.rval, rval, "{:?}", s);
                        let answer = match s {
                            Stat => &r.op.indata[..8],
                            SparseRead(at, n) => {
                                let want = after.part(*at, *n);
                                prop_assert_eq!(expand(&r.op.indata, *at, want.len()), want);
                                &[]
                            }
                            _ => &r.op.indata[..],
                        };
                        prop_assert_eq!(answer, &out[..], "{:?}", s);
                    }
                }
            }
            prop_assert_eq!(got.result, result);
            if result >= 0 {
                model = if after.exists { after } else { Model::default() };
            } else {
                prop_assert!(!matches!(got.effect, Effect::Apply(_)));
            }
            prop_assert_eq!(Model::of(&bench.store, &o), model.clone());
        }
    }

    #[test]
    fn prop_garbage_is_answered_without_panic(
        ops in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<u32>(), any::<[u8; 28]>(), proptest::collection::vec(any::<u8>(), 0..64), any::<u16>()),
            1..6,
        ),
        small in any::<bool>(),
        snapid in prop_oneof![9 => Just(SNAP_HEAD), 1 => any::<u64>()],
    ) {
        let codes = [
            op::READ, op::STAT, op::MAPEXT, op::SPARSE_READ, op::CHECKSUM, op::CMPEXT, op::ASSERT_VER, op::LIST_SNAPS,
            op::WRITE, op::WRITEFULL, op::APPEND, op::WRITESAME, op::ZERO, op::TRUNCATE, op::TRIMTRUNC, op::CREATE,
            op::DELETE, op::SET_ALLOC_HINT, op::GETXATTR, op::GETXATTRS, op::CMPXATTR, op::SETXATTR, op::RMXATTR,
            op::OMAP_GET_KEYS, op::OMAP_GET_VALS, op::OMAP_GET_VALS_BY_KEYS, op::OMAP_CMP, op::OMAP_SET_VALS,
            op::OMAP_RM_KEYS, op::OMAP_RM_KEY_RANGE, op::COPY_FROM, op::COPY_FROM2, op::CALL, op::WATCH, 0, 0xffff,
        ];
        let ops: Vec<OsdOp> = ops
            .into_iter()
            .map(|(i, flags, mut union, indata, code)| {
                if small {
                    // Numbers that are near to meaning something.
                    for w in union.chunks_mut(8) {
                        w[1..].fill(0);
                    }
                }
                let known = i.get(&codes);
                let code = if *known == 0 { code } else { *known };
                OsdOp { op: code, flags, union, indata: indata.into() }
            })
            .collect();
        let mut bench = Bench::new();
        bench.limits.max_object_size = 1 << 16;
        let o = object("it");
        bench.run(&o, &[OsdOp::write(0, Bytes::from(vec![3; 100])), xattr_op(op::SETXATTR, b"a", b"1")]);
        bench.snapid = snapid;
        if let Ok(outcome) = bench.dry(&o, &ops) {
            prop_assert_eq!(outcome.ops.len(), ops.len());
            bench.run(&o, &ops);
        }
        let _ = execute_pg(&bench.context(&o), &bench.store, &ops);
    }

    #[test]
    fn prop_listing_garbage_cursors_never_panics(bytes: Vec<u8>, max: u64, pgnls: bool, seed in 0..12u32) {
        let bench = Bench::new();
        let o = object("x");
        let mut list = OsdOp { indata: bytes.into(), ..OsdOp::new(if pgnls { op::PGNLS } else { op::PGLS }) };
        list.union[..8].copy_from_slice(&max.to_le_bytes());
        let ctx = OpContext { pg: PgId::new(1, seed), pg_num: 12, ..bench.context(&o) };
        let _ = execute_pg(&ctx, &bench.store, &[list]);
    }

    #[test]
    fn prop_pg_ranges_partition_the_pool(pg_num in 1..70u32, hash: u32) {
        let o = HObject { hash, pool: 1, ..object("x") };
        let home = o.pg(pg_num);
        for seed in 0..pg_num {
            let pg = PgId::new(1, seed);
            let inside = o >= pg_start(pg) && o < pg_end(pg, pg_num);
            prop_assert_eq!(inside, pg == home, "{} in {}", hash, seed);
        }
    }
}
