//! Commits: a sorted batch is merged into the nodes it touches, in one pass from left to
//! right; each of these is written anew, children before parents.
//!
//! Order on the device: pages into free space; flush; the caller publishes the root. Only
//! then do readers see it, and only then do the pages that it replaced become free, once
//! nobody reads an older state. Whatever fails before the first failed write leaves tree
//! and space as they were.

use crate::alloc::Alloc;
use crate::error::{Result, TreeError};
use crate::node::{Node, PageRef, Val};
use crate::read::{Core, Tree};
use crate::root::Root;
use crate::space::{KEY_MAX, PAGE, VALUE_MAX};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError, Weak};

/// Longer values are kept outside of leaves. So, with a key of usual length, a leaf needs
/// no more than one page, which is to be had wherever there is any space.
pub(crate) const INLINE_MAX: usize = 3584;

/// Runs of pages: the first, how many.
type Runs = Vec<(u64, usize)>;
/// Ranges of keys: the first, and the first that is not in it.
type Ranges = Vec<(Vec<u8>, Vec<u8>)>;
type Publish<'p> = Box<dyn FnOnce(&Root) -> io::Result<()> + 'p>;

/// What outlives a commit.
pub(crate) struct Writer {
    pub alloc: Alloc,
    /// Pages that hold the map of chunks.
    map: Vec<PageRef>,
    /// Pages that only older states refer to, oldest first: the newest of these states,
    /// and the pages.
    pending: VecDeque<(Weak<Root>, Runs)>,
    /// Pages used by the last commit: as many are kept free for the next ones.
    last_pages: u64,
    pub written: u64,
    /// See [`Stats::leaked_pages`](crate::Stats::leaked_pages).
    pub leaked: u64,
    poisoned: bool,
}

impl Writer {
    pub fn new(map: Vec<PageRef>, alloc: Alloc) -> Self {
        Self {
            alloc,
            map,
            pending: VecDeque::new(),
            last_pages: 0,
            written: 0,
            leaked: 0,
            poisoned: false,
        }
    }

    /// Frees the pages of states that nobody reads any more.
    fn reclaim(&mut self) {
        while self.pending.front().is_some_and(|(state, _)| state.strong_count() == 0) {
            // Reads of that state happened before its last handle went.
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            for (page, n) in self.pending.pop_front().map(|(_, pages)| pages).unwrap_or_default() {
                self.alloc.reclaim(page, n);
            }
        }
    }
}

/// One change: a new value, or none.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub key: &'a [u8],
    pub val: Option<Val<'a>>,
}

impl Tree {
    /// Applies all of `changes`, or none; `None` deletes. Their order does not matter.
    ///
    /// When all is written and flushed, `publish` gets the new root and must make it
    /// durable, for example in a superblock; then readers see it. `publish` may read the
    /// tree (it sees the old state), but not ask for extents, statistics or a check. Memory: the
    /// batch's index, 1 MiB of pages, and inner nodes.
    ///
    /// # Errors
    /// [`TreeError::NoSpace`], [`TreeError::TooLarge`], [`TreeError::Duplicate`] and errors
    /// of reads: nothing has changed, and another commit may be tried. Failed writes,
    /// flushes and publications: what is durable is unknown; this and every later commit
    /// fails ([`TreeError::Poisoned`]).
    pub fn commit<K, V, P>(&self, changes: &[(K, Option<V>)], publish: P) -> Result<()>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
        P: FnOnce(&Root) -> io::Result<()>,
    {
        self.commit_without(changes, &[] as &[([u8; 0], [u8; 0])], publish)
    }

    /// As [`commit`](Self::commit), and before `changes` takes effect every key in one of
    /// `ranges` (the first key, and the first that is kept) is deleted. Leaves of deleted
    /// keys are read, a few at a time, and not written: the memory does not depend on how
    /// many keys there are but for 16 bytes a page.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub fn commit_without<K, V, R, P>(
        &self,
        changes: &[(K, Option<V>)],
        ranges: &[(R, R)],
        publish: P,
    ) -> Result<()>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
        R: AsRef<[u8]>,
        P: FnOnce(&Root) -> io::Result<()>,
    {
        let mut sorted = Vec::with_capacity(changes.len());
        for (key, value) in changes {
            let val = value.as_ref().map(|v| Val { bytes: v.as_ref(), overflow: false });
            let key = key.as_ref();
            let too_large = |what, bytes, max| Err(TreeError::TooLarge { what, bytes, max });
            if key.len() > KEY_MAX {
                return too_large("key", key.len(), KEY_MAX);
            }
            if let Some(v) = val.filter(|v| v.bytes.len() > VALUE_MAX) {
                return too_large("value", v.bytes.len(), VALUE_MAX);
            }
            sorted.push(Change { key, val });
        }
        sorted.sort_by(|a, b| a.key.cmp(b.key));
        if sorted.is_sorted_by(|a, b| a.key < b.key) {
            self.commit_sorted(sorted, disjoint(ranges), Box::new(publish))
        } else {
            Err(TreeError::Duplicate)
        }
    }

    fn commit_sorted(
        &self,
        changes: Vec<Change<'_>>,
        ranges: Ranges,
        publish: Publish<'_>,
    ) -> Result<()> {
        let mut w = self.writer();
        if w.poisoned {
            return Err(TreeError::Poisoned);
        }
        // Until the end: also when something panics.
        w.poisoned = true;
        w.reclaim();
        let old = self.core.current();
        let mut c = Commit::new(&self.core, &w, &old, ranges);
        match c.run(&changes, w.last_pages) {
            Ok(()) => {}
            Err(e) => {
                w.poisoned = c.failed;
                c.grown.iter().for_each(|(at, bytes)| self.core.space.release(*at, *bytes));
                return Err(e);
            }
        }
        let Commit { root, alloc, map, retired, gone, pages, written, leaked, .. } = c;
        let at = root.top.at();
        publish(&root).map_err(|source| TreeError::Io { op: "publish", at, source })?;
        *self.core.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(root);
        w.pending.push_back((Arc::downgrade(&old), retired));
        (w.alloc, w.map, w.last_pages) = (alloc, map, pages);
        w.written += written;
        w.leaked += leaked;
        w.poisoned = false;
        drop(w);
        for (page, n) in gone {
            self.core.space.release(page * PAGE as u64, (n * PAGE) as u64);
        }
        Ok(())
    }
}

/// Ranges of keys, in order and apart from each other.
fn disjoint<R: AsRef<[u8]>>(ranges: &[(R, R)]) -> Ranges {
    let mut all: Ranges =
        ranges.iter().map(|(a, b)| (a.as_ref().to_vec(), b.as_ref().to_vec())).collect();
    all.retain(|(from, until)| from < until);
    all.sort();
    all.dedup_by(|next, last| {
        let joins = next.0 <= last.1;
        if joins && next.1 > last.1 {
            last.1 = std::mem::take(&mut next.1);
        }
        joins
    });
    all
}

/// A commit under way.
pub(crate) struct Commit<'c> {
    pub core: &'c Core,
    /// Keys of the old state that are not in the new one but by a change of their own.
    pub ranges: Ranges,
    pub root: Root,
    pub alloc: Alloc,
    pub map: Vec<PageRef>,
    /// Pages replaced.
    pub retired: Runs,
    /// Space got, addresses and bytes; to give back on failure.
    pub grown: Vec<(u64, u64)>,
    /// Pages no longer needed.
    pub gone: Runs,
    /// New pages, not written yet.
    pub queue: Vec<Arc<Node>>,
    pub queued: usize,
    /// Pages taken.
    pub pages: u64,
    pub written: u64,
    /// Pages in pieces that nothing names any more.
    pub leaked: u64,
    /// A write or flush failed.
    pub failed: bool,
}

impl<'c> Commit<'c> {
    fn new(core: &'c Core, w: &Writer, old: &Root, ranges: Ranges) -> Self {
        let mut alloc = w.alloc.clone();
        alloc.begin();
        Self {
            core,
            ranges,
            root: Root { generation: old.generation + 1, ..old.clone() },
            alloc,
            map: w.map.clone(),
            retired: Vec::new(),
            grown: Vec::new(),
            gone: Vec::new(),
            queue: Vec::new(),
            queued: 0,
            pages: 0,
            written: 0,
            leaked: 0,
            failed: false,
        }
    }

    fn run(&mut self, changes: &[Change<'_>], last_pages: u64) -> Result<()> {
        let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
        for (i, c) in changes.iter().enumerate() {
            if let Some(v) = c.val.filter(|v| v.bytes.len() > INLINE_MAX) {
                runs.push((i, self.overflow(v.bytes)?));
            }
        }
        if runs.is_empty() {
            self.apply(changes)?;
        } else {
            let mut stored = changes.to_vec();
            for (i, bytes) in &runs {
                if let Some(c) = stored.get_mut(*i) {
                    c.val = Some(Val { bytes, overflow: true });
                }
            }
            self.apply(&stored)?;
        }
        let keep = (2 * self.pages.max(last_pages)).max(2 * self.alloc.chunk_pages() as u64);
        self.gone = self.alloc.shrink(keep);
        // What was got for this very commit was never the tree's; it goes back the same way.
        self.write_map()?;
        self.write()?;
        self.core.space.flush().map_err(|source| {
            self.failed = true;
            TreeError::Io { op: "flush", at: 0, source }
        })
    }
}
