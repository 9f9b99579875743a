//! Pages in memory, within a budget of bytes.
//!
//! Leaves by S3-FIFO: new ones queue in a small FIFO and leave it, unless they were asked
//! for again; then, or when they come back soon after, they queue in the main one. So a
//! scan passes through a tenth of the budget. Inner nodes go only when next to no leaves
//! are left. Sharded by address; the budget is that of all shards together.
//!
//! A leaf that goes leaves a sketch of its keys, within an eighth of the budget.

use crate::node::{Node, PageRef};
use crate::sketch::{self, Sketch};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 8;
/// Bytes taken by an entry beside the page: map, queue, node, allocation.
const OVERHEAD: usize = 192;
/// Bytes taken by a remembered address.
const GHOST_BYTES: usize = 24;

/// Bytes taken by a sketch beside its bits: map, queue, allocation.
const SKETCH_BYTES: usize = 96;

/// Of the budget, sketches take at most one part in so many.
const SKETCH_SHARE: usize = 8;

/// Page numbers are spread by a multiplication.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        let spread = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}

type PageMap<V> = HashMap<u64, V, BuildHasherDefault<PageHasher>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
    Inner,
}

struct Entry {
    node: Arc<Node>,
    queue: Queue,
    /// Which of the queued mentions of this address counts.
    ticket: u64,
    uses: u8,
}

#[derive(Default)]
struct Shard {
    map: PageMap<Entry>,
    small: VecDeque<(u64, u64)>,
    main: VecDeque<(u64, u64)>,
    inner: VecDeque<(u64, u64)>,
    ghosts: VecDeque<(u64, u64)>,
    ghost_of: PageMap<u64>,
    /// Of leaves that are not here: checksum and sketch; and in which order they came.
    sketches: PageMap<(u32, Sketch)>,
    sketched: VecDeque<(u64, u32)>,
    sketch_bytes: usize,
    small_bytes: usize,
    main_bytes: usize,
    inner_bytes: usize,
    tickets: u64,
}

/// The cache of a tree.
pub(crate) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    budget: AtomicUsize,
    used: AtomicUsize,
}

impl Cache {
    pub fn new(budget: usize) -> Self {
        Self {
            shards: Default::default(),
            budget: AtomicUsize::new(budget),
            used: AtomicUsize::new(0),
        }
    }

    fn shard(&self, page: u64) -> MutexGuard<'_, Shard> {
        let mut h = PageHasher::default();
        h.write_u64(page);
        self.lock((h.finish() >> 40) as usize)
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A shard is consistent wherever a panic can happen.
        self.shards[shard % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Changes the budget, at once.
    pub fn set_budget(&self, bytes: usize) {
        self.budget.store(bytes, Ordering::Relaxed);
        self.evict(0);
    }

    /// Lets go of every page, and keeps the budget.
    pub fn clear(&self) {
        let budget = self.budget.swap(0, Ordering::Relaxed);
        self.evict(0);
        self.budget.store(budget, Ordering::Relaxed);
    }

    /// The page that `r` names, in exactly that version.
    pub fn get(&self, r: PageRef) -> Option<Arc<Node>> {
        let mut s = self.shard(r.page);
        let e = s.map.get_mut(&r.page).filter(|e| e.node.crc() == r.crc)?;
        e.uses = (e.uses + 1).min(3);
        Some(e.node.clone())
    }

    /// Is the page here that `r` names? Does not count as a use.
    pub fn has(&self, r: PageRef) -> bool {
        self.shard(r.page).map.get(&r.page).is_some_and(|e| e.node.crc() == r.crc)
    }

    /// Is it known that the leaf `r`, which is not here, has no such key?
    pub fn lacks(&self, r: PageRef, key: &[u8]) -> bool {
        let s = self.shard(r.page);
        let known = s.sketches.get(&r.page).filter(|(crc, _)| *crc == r.crc);
        known.is_some_and(|(_, sketch)| !sketch.may_have(sketch::hash(key, b"")))
    }

    /// Takes a page in.
    pub fn put(&self, node: &Arc<Node>) {
        let page = node.page();
        if size(node) > self.budget.load(Ordering::Relaxed) {
            return;
        }
        // Counted first, so that the sum never drops below zero when others evict it at once.
        self.used.fetch_add(size(node), Ordering::Relaxed);
        let mut s = self.shard(page);
        let freed = s.remove(page) + s.forget(page);
        let queue = match (node.level(), s.ghost_of.remove(&page).is_some()) {
            (1.., _) => Queue::Inner,
            (0, true) => Queue::Main,
            (0, false) => Queue::Small,
        };
        s.push(page, Entry { node: node.clone(), queue, ticket: 0, uses: 0 });
        drop(s);
        self.used.fetch_sub(freed, Ordering::Relaxed);
        self.evict(page as usize);
    }

    /// Puts `new` in the place of the page `old`, if that is here; or lets it go.
    pub fn replace(&self, old: u64, new: Option<&Arc<Node>>) {
        let mut s = self.shard(old);
        let Some(e) = s.map.get(&old) else {
            let freed = s.forget(old);
            drop(s);
            if let Some(new) = new.filter(|n| freed > 0 && n.level() == 0) {
                let most = self.budget.load(Ordering::Relaxed) / SHARDS / SKETCH_SHARE;
                self.used.fetch_add(sketch_size(new), Ordering::Relaxed);
                let freed = self.shard(new.page()).sketch(new, most);
                self.used.fetch_sub(freed, Ordering::Relaxed);
            }
            self.used.fetch_sub(freed, Ordering::Relaxed);
            return;
        };
        let (queue, uses) = (e.queue, e.uses);
        let freed = s.remove(old);
        drop(s);
        self.used.fetch_sub(freed, Ordering::Relaxed);
        let Some(new) = new else { return };
        let queue = if new.level() > 0 { Queue::Inner } else { queue };
        let page = new.page();
        self.used.fetch_add(size(new), Ordering::Relaxed);
        let mut s = self.shard(page);
        let freed = s.remove(page) + s.forget(page);
        s.push(page, Entry { node: new.clone(), queue, ticket: 0, uses });
        drop(s);
        self.used.fetch_sub(freed, Ordering::Relaxed);
        self.evict(page as usize);
    }

    fn evict(&self, first: usize) {
        let mut idle = 0;
        let mut at = first;
        while idle < SHARDS {
            let budget = self.budget.load(Ordering::Relaxed);
            if self.used.load(Ordering::Relaxed) <= budget {
                return;
            }
            let freed = self.lock(at).evict_one(budget / SHARDS);
            self.used.fetch_sub(freed, Ordering::Relaxed);
            idle = if freed == 0 { idle + 1 } else { 0 };
            at = at.wrapping_add(1);
        }
    }
}

fn size(node: &Node) -> usize {
    node.bytes().len() + OVERHEAD
}

/// Bytes that the sketch of a leaf takes.
fn sketch_size(leaf: &Node) -> usize {
    Sketch::bytes_for(leaf) + SKETCH_BYTES
}

impl Shard {
    /// Keeps a sketch of a leaf, and no more than `most` bytes of them. Bytes freed.
    fn sketch(&mut self, leaf: &Node, most: usize) -> usize {
        let mut freed = self.forget(leaf.page());
        self.sketch_bytes += sketch_size(leaf);
        self.sketches.insert(leaf.page(), (leaf.crc(), Sketch::of(leaf)));
        self.sketched.push_back((leaf.page(), leaf.crc()));
        while self.sketch_bytes > most
            && let Some((page, crc)) = self.sketched.pop_front()
        {
            if self.sketches.get(&page).is_some_and(|(c, _)| *c == crc) {
                freed += self.forget(page);
            }
        }
        if self.sketched.len() > 2 * self.sketches.len() + 64 {
            let sketches = &self.sketches;
            self.sketched.retain(|(page, crc)| sketches.get(page).is_some_and(|(c, _)| c == crc));
        }
        freed
    }

    /// Lets the sketch of a page go. Bytes freed.
    fn forget(&mut self, page: u64) -> usize {
        let freed = self.sketches.remove(&page).map_or(0, |(_, s)| s.len() + SKETCH_BYTES);
        self.sketch_bytes -= freed;
        freed
    }

    fn bytes(&mut self, queue: Queue) -> &mut usize {
        match queue {
            Queue::Small => &mut self.small_bytes,
            Queue::Main => &mut self.main_bytes,
            Queue::Inner => &mut self.inner_bytes,
        }
    }

    fn push(&mut self, page: u64, mut e: Entry) {
        self.tickets += 1;
        e.ticket = self.tickets;
        *self.bytes(e.queue) += size(&e.node);
        let live = self.map.len();
        let queue = match e.queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
            Queue::Inner => &mut self.inner,
        };
        queue.push_back((page, e.ticket));
        if queue.len() > 2 * live + 64 {
            let map = &self.map;
            queue.retain(|(p, t)| *t == e.ticket || map.get(p).is_some_and(|e| e.ticket == *t));
        }
        self.map.insert(page, e);
    }

    /// Bytes freed.
    fn remove(&mut self, page: u64) -> usize {
        let Some(e) = self.map.remove(&page) else { return 0 };
        *self.bytes(e.queue) -= size(&e.node);
        size(&e.node)
    }

    fn pop(&mut self, queue: Queue) -> Option<(u64, Entry)> {
        loop {
            let (page, ticket) = match queue {
                Queue::Small => self.small.pop_front(),
                Queue::Main => self.main.pop_front(),
                Queue::Inner => self.inner.pop_front(),
            }?;
            if self.map.get(&page).is_some_and(|e| e.ticket == ticket)
                && let Some(e) = self.map.remove(&page)
            {
                *self.bytes(queue) -= size(&e.node);
                return Some((page, e));
            }
        }
    }

    /// Lets one page go; bytes freed, 0 if there is none.
    fn evict_one(&mut self, budget: usize) -> usize {
        loop {
            let leaves = self.small_bytes + self.main_bytes;
            let queue = if self.inner_bytes > 0 && leaves * 20 <= self.inner_bytes {
                Queue::Inner
            } else if self.small_bytes > 0
                && (self.small_bytes * 10 >= leaves || self.main_bytes == 0)
            {
                Queue::Small
            } else {
                Queue::Main
            };
            let Some((page, mut e)) = self.pop(queue) else {
                self.sketches.clear();
                self.sketched.clear();
                return std::mem::take(&mut self.sketch_bytes);
            };
            match queue {
                Queue::Small if e.uses > 0 => {
                    e.uses = 0;
                    e.queue = Queue::Main;
                    self.push(page, e);
                }
                Queue::Main | Queue::Inner if e.uses > 0 => {
                    e.uses -= 1;
                    self.push(page, e);
                }
                _ => {
                    if queue == Queue::Small {
                        self.remember(page, budget);
                    }
                    let leaf = e.node.level() == 0;
                    if !leaf || sketch_size(&e.node) > budget / SKETCH_SHARE {
                        return size(&e.node);
                    }
                    let freed = size(&e.node) + self.sketch(&e.node, budget / SKETCH_SHARE);
                    return freed - sketch_size(&e.node);
                }
            }
        }
    }

    fn remember(&mut self, page: u64, budget: usize) {
        self.tickets += 1;
        self.ghost_of.insert(page, self.tickets);
        self.ghosts.push_back((page, self.tickets));
        // As many as there are pages in the budget, or what 1 per cent of it holds.
        while self.ghosts.len() * GHOST_BYTES > budget / 100 {
            let Some((old, ticket)) = self.ghosts.pop_front() else { break };
            if self.ghost_of.get(&old) == Some(&ticket) {
                self.ghost_of.remove(&old);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Identity, Item, Val};

    fn node(page: u64, level: u8) -> Arc<Node> {
        let val = Val { bytes: &[0; 11], overflow: false };
        let item = Item { a: b"k", b: &[], val };
        Arc::new(Node::build(level, &[item], Identity { uuid: [1; 16], page, generation: 1 }))
    }

    #[test]
    fn the_budget_is_kept_and_changes_at_once() {
        let c = Cache::new(40 * (4096 + OVERHEAD));
        for p in 0..1000 {
            c.put(&node(p, u8::from(p % 7 == 0)));
            assert!(c.used() <= 40 * (4096 + OVERHEAD));
        }
        assert!(c.used() > 38 * (4096 + OVERHEAD));
        c.set_budget(3 * (4096 + OVERHEAD));
        assert!(c.used() <= 3 * (4096 + OVERHEAD) && c.used() > 0);
        c.set_budget(0);
        assert_eq!(c.used(), 0);
        c.put(&node(1, 0));
        assert_eq!(c.used(), 0);
    }

    #[test]
    fn what_is_used_often_and_inner_nodes_survive_a_long_scan() {
        let c = Cache::new(800 * (4096 + OVERHEAD));
        let hot: Vec<_> = (0..300).map(|p| node(p, 0)).collect();
        let inner: Vec<_> = (1000..1100).map(|p| node(p, 1)).collect();
        for _ in 0..3 {
            hot.iter().chain(&inner).for_each(|n| {
                if c.get(n.page_ref()).is_none() {
                    c.put(n);
                }
            });
        }
        (10_000..20_000).for_each(|p| c.put(&node(p, 0)));
        assert_eq!(inner.iter().filter(|n| c.get(n.page_ref()).is_some()).count(), 100);
        let kept = hot.iter().filter(|n| c.get(n.page_ref()).is_some()).count();
        assert!(kept >= 290, "{kept} of 300 are left");
    }

    #[test]
    fn a_leaf_that_went_is_known_to_lack_keys_in_just_that_version() {
        let c = Cache::new(400 * (4096 + OVERHEAD));
        (0..1000).for_each(|p| c.put(&node(p, 0)));
        let gone: Vec<_> = (0..1000).map(|p| node(p, 0)).filter(|n| !c.has(n.page_ref())).collect();
        assert!(gone.len() >= 600 && c.used() <= 400 * (4096 + OVERHEAD));
        let known: Vec<_> = gone.iter().filter(|n| c.lacks(n.page_ref(), b"another")).collect();
        assert!(known.len() >= 500, "{} of {} left a sketch", known.len(), gone.len());
        assert!(gone.iter().all(|n| !c.lacks(n.page_ref(), b"k")));
        let first = known[0].page_ref();
        assert!(!c.lacks(PageRef { crc: !first.crc, ..first }, b"another"));
        // What takes its place is known, too; what is here is asked itself.
        c.replace(first.page, Some(&node(5000, 0)));
        assert!(!c.lacks(first, b"another") && c.lacks(node(5000, 0).page_ref(), b"another"));
        assert!(!c.lacks(node(5000, 0).page_ref(), b"k"));
        c.put(&node(5000, 0));
        assert!(!c.lacks(node(5000, 0).page_ref(), b"another"));
        c.clear();
        assert_eq!(c.used(), 0);
        assert!(!c.lacks(known[1].page_ref(), b"another"));
    }

    #[test]
    fn another_version_of_a_page_is_not_given_out() {
        let c = Cache::new(1 << 20);
        let n = node(5, 0);
        c.put(&n);
        assert!(c.get(n.page_ref()).is_some());
        assert!(c.get(PageRef { crc: !n.crc(), ..n.page_ref() }).is_none());
        c.replace(5, Some(&node(6, 0)));
        assert!(c.get(n.page_ref()).is_none() && c.get(node(6, 0).page_ref()).is_some());
        c.replace(6, None);
        assert_eq!(c.used(), 0);
    }
}
