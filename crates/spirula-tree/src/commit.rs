//! Commits: a sorted batch is merged into the nodes it touches, in one pass from left to
//! right; each of these is written anew, children before parents.
//!
//! Order on the device: pages into free space; flush; the caller publishes the root. Only
//! then do readers see it, and only then do the pages that it replaced become free, once
//! nobody reads an older state. Whatever fails before the first failed write leaves tree
//! and chunks as they were.

use crate::alloc::Alloc;
use crate::error::{Damage, Result, TreeError};
use crate::node::{
    HEADER, INDEX, Identity, Item, MAP, Node, PageRef, REF_BYTES, ROOM, TRAILER, VALUE, Val, compare, overflow_runs,
    plain_units, units,
};
use crate::read::{Core, Tree};
use crate::root::{LEVELS_MAX, Root};
use crate::space::{KEY_MAX, PAGE, VALUE_MAX};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError, Weak};

/// Longer values are kept outside of leaves.
pub(crate) const INLINE_MAX: usize = 6 << 10;
/// Pages of an overflow run.
const RUN_PAGES: usize = 64;
/// No run is cut shorter than this for lack of adjoining pages.
const RUN_PAGES_MIN: usize = 16;
/// A node with less content than this is joined with its right neighbour.
const JOIN_BELOW: usize = ROOM / 4;
/// Bytes of new pages gathered before they are written.
const GATHER: usize = 1 << 20;

/// Runs of pages: the first, how many.
type Runs = Vec<(u64, usize)>;
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
    poisoned: bool,
}

impl Writer {
    pub fn new(map: Vec<PageRef>, alloc: Alloc) -> Self {
        Self { alloc, map, pending: VecDeque::new(), last_pages: 0, written: 0, poisoned: false }
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
struct Change<'a> {
    key: &'a [u8],
    val: Option<Val<'a>>,
}

/// An entry of a new inner node.
struct Child {
    key: Vec<u8>,
    page: PageRef,
}

/// Entries of a node that is too empty to be written.
#[derive(Default)]
struct Carry {
    /// The lower end of its range.
    low: Vec<u8>,
    entries: Vec<(Vec<u8>, Vec<u8>, bool)>,
    /// Pages of the nodes they come from.
    from: Vec<u64>,
}

impl Tree {
    /// Applies all of `changes`, or none; `None` deletes. Their order does not matter.
    ///
    /// When all is written and flushed, `publish` gets the new root and must make it
    /// durable, for example in a superblock; then readers see it. `publish` may read the
    /// tree (it sees the old state), but not ask for chunks, statistics or a check. Memory: the batch's
    /// index, 1 MiB of pages, and inner nodes.
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
            self.commit_sorted(sorted, Box::new(publish))
        } else {
            Err(TreeError::Duplicate)
        }
    }

    fn commit_sorted(&self, changes: Vec<Change<'_>>, publish: Publish<'_>) -> Result<()> {
        let mut w = self.writer();
        if w.poisoned {
            return Err(TreeError::Poisoned);
        }
        // Until the end: also when something panics.
        w.poisoned = true;
        w.reclaim();
        let old = self.core.current();
        let mut c = Commit::new(&self.core, &w, &old);
        match c.run(&changes, w.last_pages) {
            Ok(()) => {}
            Err(e) => {
                w.poisoned = c.failed;
                c.grown.iter().for_each(|chunk| self.core.space.release(*chunk));
                return Err(e);
            }
        }
        let Commit { root, alloc, map, retired, gone, pages, written, .. } = c;
        let at = root.top.at();
        publish(&root).map_err(|source| TreeError::Io { op: "publish", at, source })?;
        *self.core.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(root);
        w.pending.push_back((Arc::downgrade(&old), retired));
        (w.alloc, w.map, w.last_pages) = (alloc, map, pages);
        w.written += written;
        w.poisoned = false;
        drop(w);
        gone.into_iter().for_each(|page| self.core.space.release(page * PAGE as u64));
        Ok(())
    }
}

/// A commit under way.
struct Commit<'c> {
    core: &'c Core,
    root: Root,
    alloc: Alloc,
    map: Vec<PageRef>,
    /// Pages replaced.
    retired: Runs,
    /// Chunks got, addresses; to give back on failure.
    grown: Vec<u64>,
    /// Chunks no longer needed, first pages.
    gone: Vec<u64>,
    /// New pages, not written yet.
    queue: Vec<Arc<Node>>,
    queued: usize,
    /// Pages taken.
    pages: u64,
    written: u64,
    /// A write or flush failed.
    failed: bool,
}

impl<'c> Commit<'c> {
    fn new(core: &'c Core, w: &Writer, old: &Root) -> Self {
        let mut alloc = w.alloc.clone();
        alloc.begin();
        Self {
            core,
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
        // A chunk got for this very commit was never the tree's; it goes back the same way.
        self.write_map()?;
        self.write()?;
        self.core.space.flush().map_err(|source| {
            self.failed = true;
            TreeError::Io { op: "flush", at: 0, source }
        })
    }

    fn take(&mut self, n: usize) -> Result<u64> {
        loop {
            if let Some(page) = self.alloc.take(n) {
                self.pages += n as u64;
                return Ok(page);
            }
            if n > self.alloc.chunk_pages() {
                return Err(TreeError::NoSpace);
            }
            self.grow()?;
        }
    }

    fn grow(&mut self) -> Result<()> {
        let chunk = self.core.space.grow().ok_or(TreeError::NoSpace)?;
        self.grown.push(chunk);
        if !chunk.is_multiple_of(PAGE as u64) || !self.alloc.add(chunk / PAGE as u64) {
            return Err(TreeError::Options("a new chunk is not aligned, or is in use already"));
        }
        Ok(())
    }

    /// The page is no part of the new state.
    fn retire(&mut self, r: PageRef) -> Result<()> {
        let n = usize::from(r.units);
        if !self.alloc.retire(r.page, n) {
            let what = Damage::Malformed("a page in use that the map of chunks calls free");
            return Err(TreeError::Corrupt { at: r.at(), what });
        }
        self.retired.push((r.page, n));
        Ok(())
    }

    fn identity(&self, page: u64) -> Identity {
        Identity { uuid: self.root.uuid, page, generation: self.root.generation }
    }

    fn enqueue(&mut self, node: Arc<Node>) -> Result<()> {
        self.queued += node.bytes().len();
        self.queue.push(node);
        if self.queued >= GATHER { self.write() } else { Ok(()) }
    }

    /// Writes what is queued, adjoining pages at once.
    fn write(&mut self) -> Result<()> {
        self.queue.sort_by_key(|n| n.page());
        for run in self.queue.chunk_by(|a, b| a.page() + u64::from(a.page_ref().units) == b.page()) {
            let Some(first) = run.first() else { continue };
            let at = first.page_ref().at();
            let bufs: Vec<&[u8]> = run.iter().map(|n| n.bytes()).collect();
            self.core.space.write(at, &bufs).map_err(|source| {
                self.failed = true;
                TreeError::Io { op: "write", at, source }
            })?;
        }
        self.written += self.queued as u64;
        self.queued = 0;
        for node in self.queue.drain(..).filter(|n| n.level() > 0) {
            self.core.cache.put(&node);
        }
        Ok(())
    }

    /// Writes a value into overflow runs; what the leaf holds instead.
    fn overflow(&mut self, value: &[u8]) -> Result<Vec<u8>> {
        let mut list = (value.len() as u32).to_le_bytes().to_vec();
        let mut rest = value;
        while !rest.is_empty() {
            let mut n = plain_units(rest.len()).min(RUN_PAGES);
            let page = loop {
                if let Some(page) = self.alloc.take(n) {
                    self.pages += n as u64;
                    break page;
                }
                if n > RUN_PAGES_MIN {
                    n = (n / 2).max(RUN_PAGES_MIN);
                } else {
                    break self.take(n)?;
                }
            };
            let (part, more) = rest.split_at(rest.len().min(n * PAGE - HEADER - TRAILER));
            let node = Arc::new(Node::plain(VALUE, part, 0, self.identity(page)));
            list.extend_from_slice(&node.page_ref().encode());
            self.root.overflow_pages += n as u64;
            self.enqueue(node)?;
            rest = more;
        }
        Ok(list)
    }

    /// The value is no part of the new state.
    fn drop_value(&mut self, val: Val<'_>) -> Result<()> {
        if val.overflow {
            for r in overflow_runs(val.bytes).1 {
                self.root.overflow_pages = self.root.overflow_pages.saturating_sub(u64::from(r.units));
                self.retire(r)?;
            }
        }
        Ok(())
    }

    fn retire_node(&mut self, node: &Node) -> Result<()> {
        let r = node.page_ref();
        let pages = if node.level() == 0 { &mut self.root.leaf_pages } else { &mut self.root.inner_pages };
        *pages = pages.saturating_sub(u64::from(r.units));
        self.retire(r)
    }

    fn apply(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let (mut children, mut level) = match self.root.levels.checked_sub(1) {
            // As if the top were the only child of a node above it.
            Some(level) => match self.rebuild_list(level, &[(Vec::new(), self.root.top)], changes)? {
                Some(children) => (children, level),
                None => return Ok(()),
            },
            None => {
                let mut items = Vec::with_capacity(changes.len());
                for c in changes {
                    if let Some(val) = c.val {
                        items.push(Item { a: c.key, b: &[], val });
                    }
                }
                self.root.keys += items.len() as u64;
                let mut out = Vec::new();
                self.emit(0, &[], &items, true, &[], &mut out)?;
                (out, 0)
            }
        };
        while children.len() > 1 {
            level += 1;
            if level >= LEVELS_MAX {
                return Err(TreeError::Corrupt { at: self.root.top.at(), what: Damage::Malformed("too many levels") });
            }
            children = self.pack(level, &children)?;
        }
        let Some(top) = children.pop() else {
            (self.root.levels, self.root.top) = (0, PageRef::NONE);
            return Ok(());
        };
        (self.root.levels, self.root.top) = (level + 1, top.page);
        self.collapse()
    }

    /// Takes off levels that have only one node.
    fn collapse(&mut self) -> Result<()> {
        while let Some(level) = self.root.levels.checked_sub(1).filter(|l| *l > 0) {
            self.write()?;
            let top = self.core.node(self.root.top, level, false)?;
            if top.count() > 1 {
                break;
            }
            self.retire_node(&top)?;
            self.core.cache.replace(top.page(), None);
            (self.root.levels, self.root.top) = (level, top.child(0));
        }
        Ok(())
    }

    fn pack(&mut self, level: u8, children: &[Child]) -> Result<Vec<Child>> {
        let refs: Vec<[u8; REF_BYTES]> = children.iter().map(|c| c.page.encode()).collect();
        let mut out = Vec::new();
        self.emit(level, &[], &child_items(children, &refs), false, &[], &mut out)?;
        Ok(out)
    }

    /// What becomes of the children of `node`, whose range begins at `low`; `None`: nothing
    /// changes.
    fn rebuild(&mut self, node: &Node, low: &[u8], changes: &[Change<'_>]) -> Result<Option<Vec<Child>>> {
        let Some(level) = node.level().checked_sub(1) else { return Ok(None) };
        let list: Vec<_> =
            (0..node.count()).map(|i| (if i == 0 { low.to_vec() } else { node.key(i) }, node.child(i))).collect();
        self.rebuild_list(level, &list, changes)
    }

    fn rebuild_list(
        &mut self,
        level: u8,
        list: &[(Vec<u8>, PageRef)],
        mut changes: &[Change<'_>],
    ) -> Result<Option<Vec<Child>>> {
        let mut out: Vec<Child> = Vec::with_capacity(list.len() + 4);
        let mut carry: Option<Carry> = None;
        let mut any = false;
        for (i, (low, page)) in list.iter().enumerate() {
            let upper = list.get(i + 1).map(|(key, _)| key.as_slice());
            let n = upper.map_or(changes.len(), |u| changes.iter().take_while(|c| c.key < u).count());
            let (mine, rest) = changes.split_at(n);
            changes = rest;
            if mine.is_empty() && carry.is_none() {
                out.push(Child { key: low.clone(), page: *page });
                continue;
            }
            let node = self.core.node(*page, level, false)?;
            let last = upper.is_none();
            let changed = if level == 0 {
                self.rebuild_leaf(&node, low, mine, last, &mut carry, &mut out)?
            } else {
                self.rebuild_inner(&node, low, mine, last, &mut carry, &mut out)?
            };
            any |= changed;
            if !changed {
                out.push(Child { key: low.clone(), page: *page });
            }
        }
        // The range of what is gone belongs to its neighbour.
        if let (Some(first), Some((low, _))) = (out.first_mut(), list.first())
            && first.key != *low
        {
            first.key.clone_from(low);
        }
        Ok(any.then_some(out))
    }

    fn rebuild_leaf(
        &mut self,
        leaf: &Node,
        low: &[u8],
        changes: &[Change<'_>],
        last: bool,
        carry: &mut Option<Carry>,
        out: &mut Vec<Child>,
    ) -> Result<bool> {
        let before = carry.take();
        let mut items =
            Vec::with_capacity(leaf.count() + changes.len() + before.as_ref().map_or(0, |c| c.entries.len()));
        if let Some(c) = &before {
            items.extend(c.entries.iter().map(carried));
        }
        let own = items.len();
        let changed = self.merge(leaf, changes, &mut items)?;
        if !changed && before.is_none() {
            return Ok(false);
        }
        // A leaf that only grew at its end will go on so: it is split without room in it.
        let grows = leaf
            .count()
            .checked_sub(1)
            .is_some_and(|i| changes.first().is_some_and(|c| compare(c.key, leaf.prefix(), leaf.suffix(i)).is_gt()));
        self.retire_node(leaf)?;
        *carry = self.settle(0, low, &items, before.as_ref(), own, leaf.page(), grows, last, out)?;
        Ok(true)
    }

    fn rebuild_inner(
        &mut self,
        node: &Node,
        low: &[u8],
        changes: &[Change<'_>],
        last: bool,
        carry: &mut Option<Carry>,
        out: &mut Vec<Child>,
    ) -> Result<bool> {
        let before = carry.take();
        let children = match self.rebuild(node, low, changes)? {
            Some(children) => children,
            None if before.is_none() => return Ok(false),
            None => (0..node.count())
                .map(|i| Child { key: if i == 0 { low.to_vec() } else { node.key(i) }, page: node.child(i) })
                .collect(),
        };
        let refs: Vec<[u8; REF_BYTES]> = children.iter().map(|c| c.page.encode()).collect();
        let mut items = Vec::with_capacity(children.len() + before.as_ref().map_or(0, |c| c.entries.len()));
        if let Some(c) = &before {
            items.extend(c.entries.iter().map(carried));
        }
        let own = items.len();
        items.extend(child_items(&children, &refs));
        self.retire_node(node)?;
        *carry = self.settle(node.level(), low, &items, before.as_ref(), own, node.page(), false, last, out)?;
        Ok(true)
    }

    /// Writes the new content of a node, or carries it on to the next one. The first `own`
    /// items are those carried so far.
    #[allow(clippy::too_many_arguments, reason = "one step of one loop")]
    fn settle(
        &mut self,
        level: u8,
        low: &[u8],
        items: &[Item<'_>],
        before: Option<&Carry>,
        own: usize,
        page: u64,
        grows: bool,
        last: bool,
        out: &mut Vec<Child>,
    ) -> Result<Option<Carry>> {
        let low = before.map_or(low, |c| c.low.as_slice());
        let mut from = before.map(|c| c.from.clone()).unwrap_or_default();
        from.push(page);
        let size: usize = items.iter().map(|i| i.size(level == 0)).sum();
        if size < JOIN_BELOW && !last && !items.is_empty() {
            let entries = items.iter().map(|i| (i.key(), i.val.bytes.to_vec(), i.val.overflow)).collect();
            return Ok(Some(Carry { low: low.to_vec(), entries, from }));
        }
        self.emit(level, low, items, grows && own == 0, &from, out)?;
        Ok(None)
    }

    /// Merges the changes with the entries of a leaf; whether that makes a difference.
    fn merge<'n>(&mut self, leaf: &'n Node, changes: &[Change<'n>], items: &mut Vec<Item<'n>>) -> Result<bool> {
        let prefix = leaf.prefix();
        let mut changed = false;
        let mut changes = changes.iter().peekable();
        for i in 0..leaf.count() {
            let (suffix, val) = leaf.entry(i);
            let old = Item { a: prefix, b: suffix, val };
            let mut kept = true;
            while let Some(c) = changes.peek() {
                let order = compare(c.key, prefix, suffix);
                if order == Ordering::Greater {
                    break;
                }
                let c = changes.next();
                let new = c.and_then(|c| Some(Item { a: c.key, b: &[], val: c.val? }));
                if order == Ordering::Less {
                    if let Some(new) = new {
                        items.push(new);
                        self.root.keys += 1;
                        changed = true;
                    }
                    continue;
                }
                match new {
                    Some(new) if new.val == val => {}
                    Some(new) => {
                        self.drop_value(val)?;
                        items.push(new);
                        (changed, kept) = (true, false);
                    }
                    None => {
                        self.drop_value(val)?;
                        self.root.keys = self.root.keys.saturating_sub(1);
                        (changed, kept) = (true, false);
                    }
                }
                break;
            }
            if kept {
                items.push(old);
            }
        }
        for c in changes {
            if let Some(val) = c.val {
                items.push(Item { a: c.key, b: &[], val });
                self.root.keys += 1;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Makes nodes of sorted entries, which cover the range from `low` on. `tight`: as full
    /// as they can be; otherwise evenly. `from` are the pages they replace.
    fn emit(
        &mut self,
        level: u8,
        low: &[u8],
        items: &[Item<'_>],
        tight: bool,
        from: &[u64],
        out: &mut Vec<Child>,
    ) -> Result<()> {
        let leaf = level == 0;
        let mut rest = items;
        let mut from = from.iter();
        let mut before: Option<&Item<'_>> = None;
        for end in cuts(items, leaf, tight) {
            let (piece, more) = rest.split_at(end - (items.len() - rest.len()));
            rest = more;
            let (Some(first), Some(last)) = (piece.first(), piece.last()) else { continue };
            let key = match before {
                None => low.to_vec(),
                Some(_) if !leaf => first.key(),
                // The shortest that is above all before and not above all after.
                Some(b) => {
                    let mut key = first.key();
                    key.truncate(first.common(b) + 1);
                    key
                }
            };
            let n = units(piece, leaf);
            let page = self.take(n)?;
            let node = Arc::new(Node::build(level, piece, self.identity(page)));
            out.push(Child { key, page: node.page_ref() });
            if leaf {
                self.root.leaf_pages += n as u64;
            } else {
                self.root.inner_pages += n as u64;
            }
            if let Some(old) = from.next() {
                self.core.cache.replace(*old, leaf.then_some(&node));
            }
            self.enqueue(node)?;
            before = Some(last);
        }
        from.for_each(|old| self.core.cache.replace(*old, None));
        Ok(())
    }

    /// Writes the changed pages of the map of chunks, and their index. Taking pages for
    /// them changes the map, too; so first all pages are taken.
    fn write_map(&mut self) -> Result<()> {
        let mut fresh: Vec<Option<u64>> = Vec::new();
        let mut index = None;
        loop {
            let pages = self.alloc.slots().div_ceil(self.alloc.slots_per_page());
            fresh.resize(pages, None);
            let todo: Vec<usize> =
                self.alloc.dirty().iter().copied().filter(|i| fresh.get(*i).is_some_and(Option::is_none)).collect();
            for i in &todo {
                if let Some(old) = self.map.get(*i).copied() {
                    self.retire(old)?;
                }
                let page = self.take(1)?;
                if let Some(f) = fresh.get_mut(*i) {
                    *f = Some(page);
                }
            }
            let n = plain_units(pages * REF_BYTES);
            if n > usize::from(u8::MAX) {
                return Err(TreeError::NoSpace);
            }
            match index {
                Some((_, taken)) if taken == n => {}
                Some((page, taken)) => {
                    self.retire(PageRef { page, units: taken as u8, crc: 0 })?;
                    index = Some((self.take(n)?, n));
                    continue;
                }
                None if pages == 0 => return Ok(()),
                None => {
                    if !self.root.index.is_none() {
                        self.retire(self.root.index)?;
                    }
                    index = Some((self.take(n)?, n));
                    continue;
                }
            }
            if todo.is_empty() {
                break;
            }
        }
        self.map.resize(fresh.len(), PageRef::NONE);
        for (i, page) in fresh.into_iter().enumerate() {
            let Some(page) = page else { continue };
            let (count, content) = self.alloc.encode(i);
            let node = Arc::new(Node::plain(MAP, &content, count, self.identity(page)));
            if let Some(r) = self.map.get_mut(i) {
                *r = node.page_ref();
            }
            self.enqueue(node)?;
        }
        let content: Vec<u8> = self.map.iter().flat_map(|r| r.encode()).collect();
        if let Some((page, _)) = index {
            let node = Arc::new(Node::plain(INDEX, &content, self.map.len(), self.identity(page)));
            self.root.index = node.page_ref();
            self.enqueue(node)?;
        }
        self.root.slots = self.alloc.slots() as u32;
        self.alloc.cleaned();
        Ok(())
    }
}

fn carried((key, bytes, overflow): &(Vec<u8>, Vec<u8>, bool)) -> Item<'_> {
    Item { a: key, b: &[], val: Val { bytes, overflow: *overflow } }
}

fn child_items<'a>(children: &'a [Child], refs: &'a [[u8; REF_BYTES]]) -> Vec<Item<'a>> {
    let item =
        |(c, r): (&'a Child, &'a [u8; REF_BYTES])| Item { a: &c.key, b: &[], val: Val { bytes: r, overflow: false } };
    children.iter().zip(refs).map(item).collect()
}

/// Where to cut entries into nodes: the ends of the pieces.
fn cuts(items: &[Item<'_>], leaf: bool, tight: bool) -> Vec<usize> {
    let (Some(first), Some(last)) = (items.first(), items.last()) else { return Vec::new() };
    let prefix = first.common(last);
    let size = |i: &Item<'_>| i.size(leaf) - prefix;
    let total: usize = items.iter().map(size).sum();
    let room = ROOM.saturating_sub(prefix);
    if total <= room {
        return vec![items.len()];
    }
    // A long common prefix would leave no room at all.
    let room = room.max(ROOM / 2);
    let target = if tight { room } else { total.div_ceil(total.div_ceil(room)) };
    // An inner node with one child would bring the top no nearer.
    let least = if leaf { 1 } else { 2 };
    let mut ends = Vec::new();
    let (mut sum, mut n) = (0, 0);
    for (at, item) in items.iter().enumerate() {
        if n >= least && (sum + size(item) > room || sum >= target) {
            ends.push(at);
            (sum, n) = (0, 0);
        }
        sum += size(item);
        n += 1;
    }
    if n < least {
        // The last piece takes one more, or joins the one before.
        let end = ends.pop().unwrap_or_default();
        if end > ends.last().copied().unwrap_or_default() + least {
            ends.push(end - 1);
        }
    }
    ends.push(items.len());
    ends
}
