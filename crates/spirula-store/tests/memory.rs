//! The memory budget, measured at the allocator: whatever the load, a store holds no more
//! than its options allow (payloads have a budget of their own).

#![allow(clippy::unwrap_used, reason = "tests may")]

use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_store::tools::{Bad, check, export, import};
use spirula_store::{Store, StoreOptions};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId, Uuid};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator; the counters touch no memory of it.
#[allow(unsafe_code, reason = "the allocator's interface is unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn name(n: u64) -> HObject {
    HObject::head(
        1,
        Bytes::new(),
        Bytes::new(),
        Bytes::from(format!("rbd_data.10226b8b4567.{n:016x}")),
    )
}

/// Memory for caches and what is on its way into the metadata, bytes.
const BUDGET: usize = 24 << 20;
/// Memory for payloads, bytes.
const POOL: usize = 8 << 20;

fn options() -> StoreOptions {
    StoreOptions {
        size: 4 << 30,
        journal_size: 32 << 20,
        cache_bytes: BUDGET,
        pool: PayloadPool::new(POOL),
        ..StoreOptions::default()
    }
}

/// A folder that goes with the test, failed or not: it holds a GiB.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn create(dir: &Path) -> Store {
    let opts = options();
    let _ = std::fs::remove_dir_all(dir);
    Store::create(dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).unwrap();
    open(dir)
}

fn open(dir: &Path) -> Store {
    Store::open(dir, None, &options(), Box::new(|_| ()), Box::new(|e| panic!("{e}"))).unwrap()
}

/// Runs a part of the load; what is held meanwhile stays within the budgets, plus 10 per cent.
fn within<T>(what: &str, base: usize, part: impl FnOnce() -> T) -> T {
    MOST.store(HELD.load(Ordering::Relaxed), Ordering::Relaxed);
    let out = part();
    let most = MOST.load(Ordering::Relaxed).saturating_sub(base);
    println!("{what}: most {} KiB of {} + {} KiB", most >> 10, BUDGET >> 10, POOL >> 10);
    let limit = (BUDGET + POOL) * 11 / 10;
    assert!(most <= limit, "{what}: {most} bytes held, {limit} allowed");
    out
}

/// Objects, omap pairs and logs in many transactions, of every kind of load by itself.
#[test]
fn a_store_keeps_to_its_memory_whatever_the_load() {
    let scratch =
        Scratch(std::env::temp_dir().join(format!("spirula-memory-{}", std::process::id())));
    let dir = scratch.0.clone();
    let data = Bytes::from(vec![5u8; 4 << 20]);
    let base = HELD.load(Ordering::Relaxed);
    let mut store = create(&dir);
    let mut x = 1u64;
    let mut random = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) % n
    };
    let mut v = 0u64;
    let mut finish = |store: &mut Store, mut t: Transaction| {
        v += 1;
        let pg = PgId::new(1, (v % 16) as u32);
        t.meta.push(MetaOp::LogAppend {
            pg,
            version: EVersion::new(1, v),
            entry: data.slice(..180),
        });
        store.submit(t).unwrap();
    };
    let attrs = || ObjectOp::SetAttrs(vec![(Bytes::from_static(b"_"), data.slice(..250))]);
    within("small writes, omap, attributes", base, || {
        for n in 0..8_000u64 {
            let mut t = Transaction::default();
            let o = name(random(8_000));
            match n % 3 {
                0 => t.object(&o, ObjectOp::Write { offset: 0, data: data.slice(..4096) }),
                1 => {
                    let (at, len) = (random(200) * 65_536, random(16) as usize * 4096);
                    t.object(
                        &name(random(40)),
                        ObjectOp::Write { offset: at, data: data.slice(..len) },
                    );
                }
                _ => {
                    let key = Bytes::from(format!("key{}", random(1_000_000)));
                    t.object(&o, ObjectOp::OmapSet(vec![(key, data.slice(..300))]));
                }
            }
            t.object(&o, attrs());
            finish(&mut store, t);
            if n % 4 == 0 {
                let _ = store.read(&name(random(8_000)), 0, 4096).unwrap();
            }
        }
    });
    within("new objects", base, || {
        for n in 0..12_000u64 {
            let mut t = Transaction::default();
            t.object(&name(100_000 + n), ObjectOp::Touch);
            t.object(&name(100_000 + n), attrs());
            finish(&mut store, t);
        }
    });
    within("writes of 4 MiB", base, || {
        for n in 0..60u64 {
            let mut t = Transaction::default();
            t.object(&name(200_000 + n % 12), ObjectOp::Write { offset: 0, data: data.clone() });
            finish(&mut store, t);
        }
    });
    within("skewed writes of 1 MiB into objects of a GiB", base, || {
        for _ in 0..80u64 {
            let mut t = Transaction::default();
            let offset = random(1 << 30) / 3 * 3;
            t.object(&name(300_000), ObjectOp::Write { offset, data: data.slice(..1 << 20) });
            finish(&mut store, t);
        }
    });
    within("omaps of 100,000 pairs", base, || {
        for n in 0..250u64 {
            let pair = |k: u64| (Bytes::from(format!("key-{:08}", n * 400 + k)), data.slice(..100));
            let mut t = Transaction::default();
            t.object(&name(400_000), ObjectOp::OmapSet((0..400).map(pair).collect()));
            finish(&mut store, t);
        }
    });
    within("reads of everything", base, || {
        for n in 0..8_000u64 {
            let _ = store.read(&name(n), 0, 4096).unwrap();
        }
        for n in 0..12 {
            assert_eq!(
                store.read_blocking(&name(200_000 + n), 0, 4 << 20).unwrap().unwrap().len(),
                4 << 20
            );
        }
        let page = store.omap_range(&name(400_000), None, b"", 1000, 1 << 20).unwrap().unwrap();
        assert_eq!(page.pairs.len(), 1000);
    });
    store.flush().unwrap();
    drop(store);
    let mut store = within("opening with a journal to replay", base, || open(&dir));
    within("check", base, || {
        assert_eq!(check(&store, true).unwrap().problems, Vec::<String>::new())
    });
    let file = dir.join("export");
    within("export", base, || {
        let mut out = BufWriter::new(File::create(&file).unwrap());
        export(&store, None, Bad::Refuse, &mut out).unwrap();
    });
    within("removal of all", base, || {
        let pair = |n: u64| name([n, 100_000 + n, 200_000 + n, 400_000][n as usize % 4]);
        for n in 0..4_000 {
            let mut t = Transaction::default();
            t.object(&pair(n), ObjectOp::Remove);
            finish(&mut store, t);
        }
    });
    store.close().unwrap();
    let copy_dir = dir.join("copy");
    let mut copy = create(&copy_dir);
    within("import", base, || {
        let stream = || Ok(BufReader::new(File::open(&file).unwrap()));
        assert!(import(&mut copy, stream).unwrap().objects > 15_000);
    });
    copy.close().unwrap();
}
