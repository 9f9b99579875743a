//! The alphabet of operations whose short workloads are all tried, and the stores they
//! begin with.

use super::model::{Model, object, pattern, random_txn};
use super::sim::{Image, Rng, World};
use super::{create, create_single, tiny};
use crate::{Algorithm, BLOCK, Checksum, CompressionMode, PoolOptions, Store, StoreOptions};
use bytes::Bytes;
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId};

/// A name and the transaction, given the state before and a version for its data.
pub(crate) type Operation = (&'static str, fn(&Model, u64) -> Transaction);

/// Plain object, of a pool with xxhash64.
fn a() -> HObject {
    object(1)
}

/// Object of a pool that compresses everything.
fn packed() -> HObject {
    object(2)
}

/// A clone.
fn c() -> HObject {
    object(3)
}

/// An object of the pool of `a` whose map is in segments.
fn wide() -> HObject {
    object(5)
}

/// A clone of it.
fn wide_clone() -> HObject {
    object(7)
}

/// An object of the same pool that is no other test's.
pub(crate) fn other(of: &HObject) -> HObject {
    HObject::head(of.pool, Bytes::new(), Bytes::new(), "another".into())
}

fn one(o: &HObject, op: ObjectOp) -> Transaction {
    let mut t = Transaction::default();
    t.object(o, op);
    t
}

fn meta(op: MetaOp) -> Transaction {
    Transaction { meta: vec![op], ..Transaction::default() }
}

fn write(o: &HObject, offset: u64, seed: u64, len: usize) -> Transaction {
    one(o, ObjectOp::Write { offset, data: pattern(seed * 3 + 1, len) })
}

/// Data that compresses.
fn soft(seed: u64, len: usize) -> Bytes {
    pattern(seed * 3, len)
}

fn size(m: &Model, o: &HObject) -> u64 {
    m.objects.get(o).map_or(0, |o| o.data.len() as u64)
}

fn pg() -> PgId {
    PgId::new(1, 1)
}

fn pair(key: &str, seed: u64) -> (Bytes, Bytes) {
    (Bytes::from(key.to_owned()), pattern(seed, 60))
}

fn clone_range(m: &Model, offset: u64, length: u64, to: u64) -> Transaction {
    if m.objects.contains_key(&a()) {
        one(&c(), ObjectOp::CloneRange { from: a(), offset, length, to })
    } else {
        one(&c(), ObjectOp::Touch)
    }
}

/// What an erasure-coded pool deletes, and keeps under another name.
fn moved(m: &Model, from: &HObject, to: &HObject, v: u64) -> Transaction {
    let mut t = Transaction::default();
    if m.objects.contains_key(from) {
        t.object(to, ObjectOp::CloneFrom(from.clone()));
        if v % 2 == 1 {
            t.object(to, ObjectOp::SetAttrs(vec![pair("moved", v)]));
        }
    }
    t.object(from, ObjectOp::Remove);
    t.meta.push(MetaOp::LogAppend {
        pg: pg(),
        version: EVersion::new(9, v),
        entry: pattern(v, 50),
    });
    t
}

pub(crate) const OPERATIONS: &[Operation] = &[
    ("write small", |_, v| write(&a(), 300, v, 100)),
    ("write large", |_, v| write(&a(), 0, v, 70_000)),
    ("overwrite part", |_, v| write(&a(), 5000, v, 3000)),
    ("append", |m, v| write(&a(), size(m, &a()), v, 5000)),
    ("write far", |_, v| write(&a(), 700_000, v, 200)),
    ("truncate in a block", |_, _| one(&a(), ObjectOp::Truncate { size: 4500 })),
    ("truncate to nothing", |_, _| one(&a(), ObjectOp::Truncate { size: 0 })),
    ("extend", |_, _| one(&a(), ObjectOp::Truncate { size: 90_000 })),
    ("zero a part", |_, _| one(&a(), ObjectOp::Zero { offset: 3000, length: 6000 })),
    ("punch", |_, _| one(&a(), ObjectOp::Zero { offset: BLOCK, length: 2 * BLOCK })),
    ("clone", |m, _| match m.objects.contains_key(&a()) {
        true => one(&c(), ObjectOp::CloneFrom(a())),
        false => one(&c(), ObjectOp::Touch),
    }),
    ("clone back", |m, _| match m.objects.contains_key(&c()) {
        true => one(&a(), ObjectOp::CloneFrom(c())),
        false => one(&a(), ObjectOp::Touch),
    }),
    ("clone blocks", |m, _| clone_range(m, BLOCK, 2 * BLOCK, 0)),
    ("clone a skewed range", |m, _| clone_range(m, 100, 9000, 5000)),
    ("remove", |_, _| one(&a(), ObjectOp::Remove)),
    ("remove the clone", |_, _| one(&c(), ObjectOp::Remove)),
    ("omap set", |_, v| one(&a(), ObjectOp::OmapSet(vec![pair("k1", v), pair("k7", v + 1)]))),
    ("omap rm", |_, _| one(&a(), ObjectOp::OmapRm(vec!["k1".into(), "k2".into()]))),
    ("omap rm range", |_, _| {
        one(&a(), ObjectOp::OmapRmRange { first: "k2".into(), last: "k8".into() })
    }),
    ("omap set much", |_, v| {
        // More than such a journal takes: it goes beside.
        let pairs =
            (0..4u64).map(|n| (Bytes::from(format!("k{}", 2 + 2 * n)), pattern(v * 4 + n, 10_000)));
        one(&a(), ObjectOp::OmapSet(pairs.collect()))
    }),
    ("omap set header", |_, v| one(&a(), ObjectOp::OmapSetHeader(pattern(v, 70)))),
    ("omap clear", |_, _| one(&a(), ObjectOp::OmapClear)),
    ("set attribute", |_, v| one(&a(), ObjectOp::SetAttrs(vec![pair("_", v)]))),
    ("remove attribute", |_, _| one(&a(), ObjectOp::RmAttr("snapset".into()))),
    ("clear attributes", |_, _| one(&a(), ObjectOp::ClearAttrs)),
    ("log remove", |_, _| meta(MetaOp::LogRemove { pg: pg() })),
    ("log append", |_, v| {
        meta(MetaOp::LogAppend { pg: pg(), version: EVersion::new(9, v), entry: pattern(v, 50) })
    }),
    ("log trim", |_, _| meta(MetaOp::LogTrim { pg: pg(), to: EVersion::new(1, 3) })),
    ("log rewind", |_, _| meta(MetaOp::LogRewind { pg: pg(), to: EVersion::new(1, 4) })),
    ("set meta", |_, v| meta(MetaOp::Set { key: "info".into(), value: pattern(v, 200) })),
    ("clone in layers", |m, _| match m.objects.contains_key(&wide()) {
        true => one(&object(9), ObjectOp::CloneFrom(wide())),
        false => one(&wide_clone(), ObjectOp::Touch),
    }),
    ("write over a layer", |_, v| {
        let mut t = write(&wide(), 8192, v, 4096);
        t.object(&wide(), ObjectOp::Zero { offset: 16 * BLOCK, length: BLOCK });
        t
    }),
    ("remove the clone below", |_, _| one(&wide_clone(), ObjectOp::Remove)),
    ("layers back", |m, _| match m.objects.contains_key(&wide_clone()) {
        true => one(&wide(), ObjectOp::CloneFrom(wide_clone())),
        false => one(&wide(), ObjectOp::Remove),
    }),
    ("move", |m, v| moved(m, &a(), &c(), v)),
    ("move of compressed data", |m, v| moved(m, &packed(), &object(4), v)),
    ("move over a layer", |m, v| moved(m, &wide(), &object(9), v)),
    ("move onto its clone", |m, v| moved(m, &wide(), &wide_clone(), v)),
    ("compressed write", |_, v| {
        one(&packed(), ObjectOp::Write { offset: 0, data: soft(v, 60_000) })
    }),
    ("overwrite part of it", |_, v| {
        one(&packed(), ObjectOp::Write { offset: 20_000, data: soft(v, 5000) })
    }),
    ("what a PG does", |_, v| {
        let mut t = write(&a(), 8192, v, 4096);
        t.object(&a(), ObjectOp::SetAttrs(vec![pair("_", v)]));
        t.meta.push(MetaOp::LogAppend {
            pg: pg(),
            version: EVersion::new(9, v),
            entry: pattern(v, 150),
        });
        t.meta.push(MetaOp::Set { key: "info".into(), value: pattern(v, 300) });
        t
    }),
];

/// Opens a store whose pool 1 compresses all it can, and whose pool 2 has long checksums.
pub(crate) fn open(world: &World, opts: &StoreOptions) -> Store {
    let mut store = super::open(world, opts).unwrap();
    let packed = PoolOptions {
        mode: CompressionMode::Force,
        algorithm: Algorithm::Lz4,
        max_blob: 32 << 10,
        ..PoolOptions::default()
    };
    store.set_pool_options(1, packed);
    store.set_pool_options(
        2,
        PoolOptions { checksum: Checksum::Xxhash64, ..PoolOptions::default() },
    );
    store
}

/// What happened in a store before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    None,
    /// All space was used and freed again, all of it since the last checkpoint.
    Full,
    /// The journal has been round.
    Random,
}

/// A store to begin with.
pub(crate) struct Base {
    pub name: &'static str,
    pub opts: StoreOptions,
    pub image: Image,
    pub model: Model,
    /// Its newest transaction.
    pub seq: u64,
}

impl Base {
    /// Bases, and for each whether there is a flush between operations and how it ends.
    pub const VARIANTS: u64 = 24;

    pub fn all() -> Vec<Self> {
        vec![
            Self::make("three devices, closed", false, true, Past::None),
            Self::make("one device, closed", true, true, Past::None),
            Self::make("three devices, not closed", false, false, Past::None),
            Self::make("one device, not closed", true, false, Past::None),
            Self::make(
                "three devices, all space used and freed since the checkpoint",
                false,
                false,
                Past::Full,
            ),
            Self::make("one device, worn", true, false, Past::Random),
        ]
    }

    fn make(name: &'static str, single: bool, closed: bool, past: Past) -> Self {
        let mut opts = StoreOptions { size: 768 << 10, cache_bytes: 256 << 10, ..tiny() };
        if past == Past::Full {
            // No checkpoint comes of itself.
            opts = StoreOptions {
                size: 512 << 10,
                journal_size: 2 << 20,
                cache_bytes: 4 << 20,
                ..opts
            };
        }
        let world = if single { create_single(&opts) } else { create(&opts) };
        let mut model = Model::default();
        let mut store = open(&world, &opts);
        match past {
            Past::None => {}
            Past::Full => {
                // Through the journal, in small pieces.
                let filler = |n| object(101 + 2 * n);
                let full = (0..100)
                    .find(|n| store.submit(write(&filler(*n), 0, *n, 5 * 4096)).is_err())
                    .unwrap();
                assert!(full > 20, "{full}");
                (0..full).for_each(|n| {
                    store.submit(one(&filler(n), ObjectOp::Remove)).unwrap();
                });
            }
            Past::Random => {
                let mut rng = Rng(77);
                let mut state = Model::default();
                for n in 0..90 {
                    let t = random_txn(&mut rng, &state, n + 1, false);
                    if t.payload_len() < 30_000 && store.submit(t.clone()).is_ok() {
                        state.apply(&t);
                    }
                }
                // All goes again.
                for o in state.objects.keys() {
                    store.submit(one(o, ObjectOp::Remove)).unwrap();
                }
                for p in 0..2 {
                    store.submit(meta(MetaOp::LogRemove { pg: PgId::new(1, p) })).unwrap();
                }
                for key in state.meta.keys() {
                    store.submit(meta(MetaOp::Remove { key: key.clone() })).unwrap();
                }
            }
        }
        let mut submit = |store: &mut Store, t: Transaction| {
            store.submit(t.clone()).unwrap();
            model.apply(&t);
        };
        submit(&mut store, write(&a(), 0, 1, 20_000));
        submit(
            &mut store,
            one(&a(), ObjectOp::OmapSet(vec![pair("k1", 1), pair("k2", 2), pair("k3", 3)])),
        );
        submit(&mut store, one(&a(), ObjectOp::SetAttrs(vec![pair("_", 5), pair("snapset", 6)])));
        submit(&mut store, one(&packed(), ObjectOp::Write { offset: 0, data: soft(4, 50_000) }));
        submit(&mut store, one(&c(), ObjectOp::CloneFrom(a())));
        submit(&mut store, write(&c(), 4096, 3, 4096));
        submit(&mut store, write(&wide(), 0, 8, 18 * 4096));
        submit(&mut store, one(&wide_clone(), ObjectOp::CloneFrom(wide())));
        submit(&mut store, write(&wide(), 4096, 9, 4096));
        for n in 1..=6 {
            let entry =
                MetaOp::LogAppend { pg: pg(), version: EVersion::new(1, n), entry: pattern(n, 50) };
            submit(&mut store, meta(entry));
        }
        submit(&mut store, meta(MetaOp::Set { key: "info".into(), value: pattern(1, 200) }));
        store.flush().unwrap();
        let seq = store.last_seq();
        if closed {
            store.close().unwrap();
        } else {
            drop(store);
        }
        Self { name, opts, image: world.image(), model, seq }
    }
}
