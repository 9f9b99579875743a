//! The memory budget, measured at the allocator: whatever the load, a store holds no more
//! than its options allow (payloads have a budget of their own).

#![allow(clippy::unwrap_used, reason = "tests may")]

use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_store::{Store, StoreOptions};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{EVersion, HObject, PgId, Uuid};
use std::alloc::{GlobalAlloc, Layout, System};
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
    HObject::head(1, Bytes::new(), Bytes::new(), Bytes::from(format!("rbd_data.10226b8b4567.{n:016x}")))
}

#[test]
fn a_store_keeps_to_its_memory_whatever_the_load() {
    const BUDGET: usize = 24 << 20;
    let dir = std::env::temp_dir().join(format!("spirula-memory-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let opts = StoreOptions {
        size: 4 << 30,
        journal_size: 32 << 20,
        cache_bytes: BUDGET,
        pool: PayloadPool::new(8 << 20),
        ..StoreOptions::default()
    };
    let data = Bytes::from(vec![5u8; 64 << 10]);
    let base = HELD.load(Ordering::Relaxed);
    Store::create(&dir, Uuid([1; 16]), Uuid([2; 16]), 0, &opts).unwrap();
    let mut store = Store::open(&dir, None, &opts, Box::new(|_| ()), Box::new(|e| panic!("{e}"))).unwrap();
    MOST.store(0, Ordering::Relaxed);
    let mut x = 1u64;
    let mut random = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) % n
    };
    // Many objects with attributes, omap and logs; then large maps; then reads of all.
    for v in 1..=12_000u64 {
        let mut t = Transaction::default();
        let o = name(random(8_000));
        match v % 3 {
            0 => t.object(&o, ObjectOp::Write { offset: 0, data: data.slice(..4096) }),
            1 => {
                let at = random(200) * 65_536;
                t.object(
                    &name(random(40)),
                    ObjectOp::Write { offset: at, data: data.slice(..random(16) as usize * 4096) },
                );
            }
            _ => {
                let key = Bytes::from(format!("key{}", random(1_000_000)));
                t.object(&o, ObjectOp::OmapSet(vec![(key, data.slice(..300))]));
            }
        }
        t.object(&o, ObjectOp::SetAttrs(vec![(Bytes::from_static(b"_"), data.slice(..250))]));
        let pg = PgId::new(1, (v % 16) as u32);
        t.meta.push(MetaOp::LogAppend { pg, version: EVersion::new(1, v), entry: data.slice(..180) });
        store.submit(t).unwrap();
        if v % 4 == 0 {
            let _ = store.read(&name(random(8_000)), 0, 4096).unwrap();
        }
    }
    let most = MOST.load(Ordering::Relaxed).saturating_sub(base);
    println!("most {} KiB of {} KiB; the store says {} KiB", most >> 10, BUDGET >> 10, store.memory() >> 10);
    // Buffers of the payload pool (journal frames) are counted here, too.
    assert!(most <= BUDGET * 11 / 10 + (4 << 20), "{most} bytes held, budget {BUDGET}");
    store.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
