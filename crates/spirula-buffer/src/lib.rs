//! Payload buffers: page-aligned, reused, and counted against one budget.
//!
//! A 4 MiB payload that is allocated afresh costs a thousand page faults; one taken from
//! the pool costs none, and its alignment lets it go to the disk by O_DIRECT without a
//! copy. Every buffer handed out counts against the pool's budget until the last
//! [`Bytes`] that refers to it is dropped, so the budget bounds the payloads in flight in
//! the whole process: whoever reads from a socket asks [`PayloadPool::over_budget`] first.
//!
//! Thread-safe; a pool is shared by cloning. No I/O.

use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of every buffer, bytes: a page, enough for O_DIRECT on every device.
pub const ALIGN: usize = 4096;
/// Smallest capacity handed out, bytes.
const SMALLEST: usize = 16 << 10;
/// Capacities between two powers of two. A payload of 4 MiB that begins in the middle of a page
/// takes 5 MiB, not 8.
const STEPS: usize = 4;
/// Capacities up to 16 MiB are kept for reuse: so many.
const CLASSES: usize = 10 * STEPS + 1;

/// The smallest of the capacities that holds so many bytes, and its place among them. Larger ones
/// than are kept are rare, and not rounded up so far.
fn class_of(capacity: usize) -> (usize, usize) {
    let capacity = capacity.max(SMALLEST);
    let doublings = (capacity / SMALLEST).ilog2() as usize;
    let step = (SMALLEST << doublings) / STEPS;
    let steps = capacity.div_ceil(step);
    let class = doublings * STEPS + steps - STEPS;
    (class, if class < CLASSES { steps * step } else { capacity.next_multiple_of(ALIGN) })
}

/// Owned memory aligned to [`ALIGN`].
struct Aligned {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Aligned` owns its memory exclusively, like `Box<[u8]>`; no interior sharing.
#[allow(unsafe_code, reason = "owned allocation, see SAFETY")]
unsafe impl Send for Aligned {}
// SAFETY: a shared reference only gives shared access to the bytes.
#[allow(unsafe_code, reason = "owned allocation, see SAFETY")]
unsafe impl Sync for Aligned {}

impl Aligned {
    #[allow(unsafe_code, reason = "aligned allocation is not offered by Vec")]
    fn new(capacity: usize) -> Self {
        let Ok(layout) = Layout::from_size_align(capacity.max(ALIGN), ALIGN) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { ptr, layout }
    }

    fn capacity(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Aligned {
    #[allow(unsafe_code, reason = "frees what `new` allocated")]
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

struct Shelf {
    free: [Vec<Aligned>; CLASSES],
    free_bytes: usize,
}

impl Default for Shelf {
    fn default() -> Self {
        Self { free: [const { Vec::new() }; CLASSES], free_bytes: 0 }
    }
}

impl Shelf {
    fn take(&mut self, class: usize) -> Option<Aligned> {
        let found = self.free.get_mut(class)?.pop()?;
        self.free_bytes -= found.capacity();
        Some(found)
    }

    /// Takes out what must go for at most `most` bytes to stay, the largest first.
    fn shrink(&mut self, most: usize) -> Vec<Aligned> {
        let mut gone = Vec::new();
        for class in (0..CLASSES).rev() {
            while self.free_bytes > most
                && let Some(one) = self.take(class)
            {
                gone.push(one);
            }
        }
        gone
    }
}

struct Inner {
    shelf: Mutex<Shelf>,
    /// Bytes of capacity in the hands of callers.
    out: AtomicUsize,
    /// Of these, what a cache keeps, which has a budget of its own.
    aside: AtomicUsize,
    budget: usize,
    /// Most bytes kept on the shelf.
    keep: usize,
}

impl Inner {
    fn outstanding(&self) -> usize {
        self.out.load(Ordering::Relaxed).saturating_sub(self.aside.load(Ordering::Relaxed))
    }
}

/// A shared pool of page-aligned buffers.
#[derive(Clone)]
pub struct PayloadPool(Arc<Inner>);

impl std::fmt::Debug for PayloadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadPool")
            .field("out", &self.outstanding())
            .field("budget", &self.0.budget)
            .finish()
    }
}

impl PayloadPool {
    /// A pool whose users stop taking in payloads above `budget` bytes outstanding, and
    /// which keeps at most half of that for reuse, within the budget.
    pub fn new(budget: usize) -> Self {
        Self(Arc::new(Inner {
            shelf: Mutex::default(),
            out: AtomicUsize::new(0),
            aside: AtomicUsize::new(0),
            budget,
            keep: budget / 2,
        }))
    }

    /// Bytes in the hands of callers, but for those of caches ([`PayloadPool::put_aside`]).
    pub fn outstanding(&self) -> usize {
        self.0.outstanding()
    }

    /// Bytes of memory that a buffer for so many takes.
    pub fn room_for(len: usize) -> usize {
        class_of(len).1
    }

    /// Of what is in the hands of callers a cache keeps so many bytes more, within a budget of its
    /// own: they do not count here.
    pub fn put_aside(&self, bytes: usize) {
        self.0.aside.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A cache lets go of so many bytes, or is about to: they count here as long as anybody has
    /// them.
    pub fn take_back(&self, bytes: usize) {
        self.0.aside.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The budget, bytes.
    pub fn budget(&self) -> usize {
        self.0.budget
    }

    /// True when no further payload should be taken in until some are dropped.
    pub fn over_budget(&self) -> bool {
        self.outstanding() > self.0.budget
    }

    /// An empty buffer with room for at least `capacity` bytes. Never waits: the budget is
    /// for the caller to respect.
    pub fn take(&self, capacity: usize) -> PayloadBuf {
        let (class, size) = class_of(capacity);
        let (reused, gone) = {
            let mut shelf = self.0.shelf.lock().unwrap_or_else(PoisonError::into_inner);
            match shelf.take(class) {
                Some(found) => (Some(found), Vec::new()),
                // Memory of other capacities makes room: what is kept and what is out are within
                // the budget together.
                None => {
                    (None, shelf.shrink(self.0.budget.saturating_sub(self.outstanding() + size)))
                }
            }
        };
        drop(gone);
        let memory = reused.unwrap_or_else(|| Aligned::new(size));
        self.0.out.fetch_add(memory.capacity(), Ordering::Relaxed);
        PayloadBuf { memory: Some(memory), len: 0, pool: self.0.clone() }
    }

    /// Counts memory that is not of the pool as if it were, until the last reference to what this
    /// gives is dropped.
    pub fn count(&self, data: Bytes) -> Bytes {
        if data.is_empty() {
            return data;
        }
        self.0.out.fetch_add(data.len(), Ordering::Relaxed);
        Bytes::from_owner(Counted { data, pool: self.0.clone() })
    }

    /// An aligned copy of `data`.
    pub fn copy(&self, data: &[u8]) -> Bytes {
        let mut b = self.take(data.len());
        b.extend(data);
        b.freeze()
    }
}

/// Somebody else's memory.
struct Counted {
    data: Bytes,
    pool: Arc<Inner>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pool.out.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

/// A buffer being filled; [`PayloadBuf::freeze`] makes it a shared [`Bytes`].
pub struct PayloadBuf {
    /// Always there until dropped.
    memory: Option<Aligned>,
    len: usize,
    pool: Arc<Inner>,
}

impl PayloadBuf {
    /// Room in bytes.
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, Aligned::capacity)
    }

    /// Bytes filled.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing filled yet?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes; what does not fit is left out and the number taken returned.
    pub fn extend(&mut self, data: &[u8]) -> usize {
        let n = data.len().min(self.capacity() - self.len);
        self.spare(n, |room| {
            room[..n].copy_from_slice(&data[..n]);
            n
        });
        n
    }

    /// Lets `fill` write into the next at most `max` bytes of room; it returns how many it
    /// wrote. The room is initialised memory (zeros or an earlier payload's bytes).
    pub fn spare(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let end = (self.len + max).min(self.capacity());
        let start = self.len;
        let room = &mut self.whole()[start..end];
        let n = fill(room).min(room.len());
        self.len += n;
        n
    }

    /// Sets how many bytes are filled (at most the capacity).
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// The whole capacity, filled or not.
    #[allow(unsafe_code, reason = "a slice over memory this buffer owns")]
    pub fn whole(&mut self) -> &mut [u8] {
        match &mut self.memory {
            // SAFETY: `ptr` is valid for `size` bytes, owned and borrowed mutably here. The
            // memory was zeroed when it was allocated, so every byte is initialised.
            Some(m) => unsafe { std::slice::from_raw_parts_mut(m.ptr.as_ptr(), m.layout.size()) },
            None => &mut [],
        }
    }

    /// Shares the filled bytes. The memory goes back to the pool with the last reference.
    pub fn freeze(self) -> Bytes {
        if self.len == 0 { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl AsRef<[u8]> for PayloadBuf {
    #[allow(unsafe_code, reason = "a slice over memory this buffer owns")]
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: as in `whole`; shared borrow.
            Some(m) => unsafe { std::slice::from_raw_parts(m.ptr.as_ptr(), self.len) },
            None => &[],
        }
    }
}

impl Drop for PayloadBuf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let size = memory.capacity();
        self.pool.out.fetch_sub(size, Ordering::Relaxed);
        let out = self.pool.outstanding();
        let mut shelf = self.pool.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let (class, _) = class_of(size);
        if class < CLASSES
            && shelf.free_bytes + size <= self.pool.keep
            && out + shelf.free_bytes + size <= self.pool.budget
        {
            shelf.free_bytes += size;
            shelf.free[class].push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_counted_and_reused() {
        let pool = PayloadPool::new(64 << 20);
        let mut b = pool.take(4 << 20);
        assert_eq!(b.whole().as_ptr() as usize % ALIGN, 0);
        assert_eq!(b.extend(b"hello"), 5);
        let bytes = b.freeze();
        let slice = bytes.slice(1..4);
        drop(bytes);
        assert_eq!(pool.outstanding(), 4 << 20);
        assert_eq!(&slice[..], b"ell");
        let at = slice.as_ptr() as usize - 1;
        drop(slice);
        assert_eq!(pool.outstanding(), 0);
        assert_eq!(
            pool.take((4 << 20) - 9).whole().as_ptr() as usize,
            at,
            "the same memory comes back"
        );
    }

    #[test]
    fn buffer_takes_no_more_than_its_room_and_reports_the_budget() {
        let pool = PayloadPool::new(20 << 10);
        let mut b = pool.take(1);
        assert_eq!(b.extend(&vec![1; 100_000]), 16 << 10);
        assert!(!pool.over_budget());
        let c = pool.take(1);
        assert!(pool.over_budget());
        drop((b, c));
        assert!(!pool.over_budget());
    }

    #[test]
    fn what_a_cache_keeps_does_not_count_until_it_lets_go_of_it() {
        let pool = PayloadPool::new(64 << 10);
        let kept = pool.copy(&[1; 40 << 10]);
        assert_eq!(pool.outstanding(), PayloadPool::room_for(kept.len()));
        pool.put_aside(PayloadPool::room_for(kept.len()));
        let reader = kept.slice(3..5);
        assert!(pool.outstanding() == 0 && !pool.over_budget());
        pool.take_back(PayloadPool::room_for(kept.len()));
        drop(kept);
        assert!(pool.outstanding() >= 40 << 10, "a reader has it still");
        drop(reader);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn memory_of_others_counts_until_nobody_has_it() {
        let pool = PayloadPool::new(1000);
        let counted = pool.count(Bytes::from(vec![7; 1001]));
        assert!(pool.over_budget());
        let part = counted.slice(3..9);
        drop(counted);
        assert_eq!((pool.outstanding(), &part[..]), (1001, &[7; 6][..]), "a part keeps it all");
        drop(part);
        assert_eq!(pool.outstanding(), 0);
        drop(pool.count(Bytes::new()));
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn capacities_are_little_more_than_what_was_asked_for() {
        for n in (1..32 << 20)
            .step_by(997)
            .chain((14..25).flat_map(|n| [(1 << n) - 1, 1 << n, (1 << n) + 1]))
        {
            let (class, size) = class_of(n);
            assert!(
                size >= n && size % ALIGN == 0 && (size <= SMALLEST || size <= n + n / STEPS + 1),
                "{n}: {size}"
            );
            assert_eq!(class_of(size), (class, size), "{n}");
            assert_eq!(class < CLASSES, size <= 16 << 20, "{n}");
            if class < CLASSES {
                assert!(size == SMALLEST || class_of(size - 1).0 == class, "{n}: {size}");
                assert_eq!(class_of(size + 1).0, class + 1, "{n}: {size}");
            }
        }
        // As a payload of 4 MiB comes in, that begins in a page of other things.
        assert_eq!(class_of((4 << 20) + 4096).1, 5 << 20);
    }

    /// What is kept for reuse is of capacities that were asked for before; others may be asked for
    /// now.
    #[test]
    fn what_is_kept_and_what_is_out_are_within_the_budget_together() {
        let pool = PayloadPool::new(16 << 20);
        let kept = || pool.0.shelf.lock().unwrap().free_bytes;
        drop([pool.take(4 << 20), pool.take(3 << 20), pool.take(64 << 10)]);
        assert_eq!(kept(), (7 << 20) + (64 << 10));
        let a = pool.take(8 << 20);
        assert_eq!(kept(), (7 << 20) + (64 << 10), "there is room for both");
        let b = pool.take(2 << 20);
        assert_eq!(kept(), (3 << 20) + (64 << 10), "the largest went");
        let c = pool.take(3 << 20);
        assert_eq!(kept(), 64 << 10);
        let d = pool.take(7 << 20);
        assert_eq!((kept(), pool.outstanding()), (0, 20 << 20));
        drop((a, b, c, d));
        assert_eq!(pool.outstanding(), 0);
        assert!(kept() <= 8 << 20);
    }

    #[test]
    fn sizes_beyond_the_largest_class_are_served_and_not_kept() {
        let pool = PayloadPool::new(1 << 30);
        let b = pool.take((16 << 20) * 3);
        assert_eq!(b.capacity(), (16 << 20) * 3);
        drop(b);
        assert_eq!(pool.outstanding(), 0);
    }
}
