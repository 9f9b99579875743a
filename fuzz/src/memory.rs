//! A global allocator that counts, and the bound it checks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn taken(n: usize) {
    PEAK.fetch_max(LIVE.fetch_add(n, Relaxed) + n, Relaxed);
}

// SAFETY: every call goes unchanged to the system's allocator; only numbers are kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: our caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, n: usize) -> *mut u8 {
        taken(n);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, n) }
    }
}

/// What every run may take, whatever its input: initial buffers, tables, messages of panics.
const BASE: usize = 1 << 20;

/// Runs `target` on `data` and asserts that at no time it held more than 1 MiB and `factor`
/// bytes for each byte of input.
pub fn bounded(factor: usize, data: &[u8], target: impl FnOnce(&[u8])) {
    bounded_by(BASE, factor, data, target);
}

/// As [`bounded`], with `base` bytes instead of 1 MiB.
pub fn bounded_by(base: usize, factor: usize, data: &[u8], target: impl FnOnce(&[u8])) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    target(data);
    let held = PEAK.load(Relaxed).saturating_sub(before);
    let allowed = base + factor * data.len();
    assert!(held <= allowed, "{held} bytes of memory for {} of input, {allowed} are allowed", data.len());
}
