//! A tree and its states, and reading them.

use crate::alloc::Alloc;
use crate::cache::Cache;
use crate::commit::Writer;
use crate::error::{Damage, Result, TreeError};
use crate::node::{
    INDEX, INNER, LEAF, MAP, Node, PageRef, REF_BYTES, Uuid, VALUE, Val, overflow_runs,
};
use crate::root::{Root, check_chunk};
use crate::space::{PAGE, PageSpace, VALUE_MAX};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How to make or open a tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Name of the tree; only used when it is created.
    pub uuid: Uuid,
    /// Bytes of a chunk, a multiple of 256 KiB from [`CHUNK_MIN`](crate::CHUNK_MIN) to
    /// [`CHUNK_MAX`](crate::CHUNK_MAX); only used when it is created.
    pub chunk: u32,
    /// Budget of the page cache, bytes.
    pub cache: usize,
}

/// What a tree holds and takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits since the tree was created.
    pub generation: u64,
    /// Pairs.
    pub keys: u64,
    /// Levels of nodes.
    pub levels: u8,
    /// Pages of [`PAGE`] bytes of leaves.
    pub leaf_pages: u64,
    /// Pages of inner nodes.
    pub inner_pages: u64,
    /// Pages of values that are too long for a leaf.
    pub overflow_pages: u64,
    /// Pages in use, those of the map of chunks among them.
    pub live_pages: u64,
    /// Pages that the next commit can use without growing.
    pub free_pages: u64,
    /// Windows of a chunk's length that it has pages in.
    pub windows: u64,
    /// Bytes of all its pages.
    pub space_bytes: u64,
    /// Bytes in the page cache.
    pub cache_bytes: u64,
    /// Bytes written since the tree was opened.
    pub written_bytes: u64,
    /// Pages that nothing refers to and that stay in use, since the tree was opened: the list of
    /// them could not be read.
    pub leaked_pages: u64,
}

/// What all handles share.
pub(crate) struct Core {
    pub space: Arc<dyn PageSpace>,
    pub uuid: Uuid,
    pub cache: Cache,
    pub current: Mutex<Arc<Root>>,
}

impl Core {
    pub fn current(&self) -> Arc<Root> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a page of `kind` from the device.
    pub fn read(&self, r: PageRef, kinds: &[u8]) -> Result<Node> {
        let at = r.at();
        let mut buf = vec![0; usize::from(r.units) * PAGE];
        self.space.read(at, &mut buf).map_err(|source| TreeError::Io { op: "read", at, source })?;
        self.open(r, buf, kinds)
    }

    /// The pages in which the node `r` lies apart; none if it does not.
    pub fn pieces(&self, r: PageRef) -> Result<Vec<u64>> {
        if !r.apart {
            return Ok(Vec::new());
        }
        let at = r.at();
        let mut buf = vec![0; usize::from(r.units) * PAGE];
        self.space.read(at, &mut buf).map_err(|source| TreeError::Io { op: "read", at, source })?;
        let list = Node::open(buf, &self.uuid, r).and_then(|n| n.list());
        list.map(|(_, pieces)| pieces).map_err(|what| TreeError::Corrupt { at, what })
    }

    /// The node whose list page is `list`.
    fn assemble(&self, list: Node) -> Result<Node> {
        let at = list.page_ref().at();
        let fail = |what| TreeError::Corrupt { at, what };
        let (_, pieces) = list.list().map_err(fail)?;
        let mut buf = vec![0; pieces.len() * PAGE];
        let places = pieces.iter().map(|p| p * PAGE as u64);
        let mut reads: Vec<(u64, &mut [u8])> = places.zip(buf.chunks_mut(PAGE)).collect();
        self.space.read_many(&mut reads).map_err(|source| TreeError::Io {
            op: "read",
            at,
            source,
        })?;
        Node::assemble(buf, &self.uuid, list).map_err(fail)
    }

    fn open(&self, r: PageRef, buf: Vec<u8>, kinds: &[u8]) -> Result<Node> {
        let at = r.at();
        let node =
            Node::open(buf, &self.uuid, r).map_err(|what| TreeError::Corrupt { at, what })?;
        let node = if r.apart { self.assemble(node)? } else { node };
        if !kinds.contains(&node.kind()) {
            return Err(TreeError::Corrupt {
                at,
                what: Damage::Malformed("page of an unexpected kind"),
            });
        }
        Ok(node)
    }

    /// The nodes `refs` of one level, in order; those not in memory are read together, and
    /// leaves of these are not kept there.
    pub fn nodes(&self, refs: &[PageRef], level: u8) -> Result<VecDeque<Arc<Node>>> {
        let mut nodes: VecDeque<Option<Arc<Node>>> =
            refs.iter().map(|r| self.cache.get(*r)).collect();
        let missing: Vec<usize> =
            (0..refs.len()).filter(|i| nodes.get(*i).is_some_and(Option::is_none)).collect();
        if missing.len() > 1 {
            let mut bufs: Vec<(u64, Vec<u8>)> = missing
                .iter()
                .filter_map(|i| refs.get(*i))
                .map(|r| (r.at(), vec![0; usize::from(r.units) * PAGE]))
                .collect();
            let mut reads: Vec<(u64, &mut [u8])> =
                bufs.iter_mut().map(|(at, b)| (*at, b.as_mut_slice())).collect();
            // After an error each is read alone below, to tell which one fails.
            if self.space.read_many(&mut reads).is_ok() {
                for (i, (_, buf)) in missing.into_iter().zip(bufs) {
                    if let (Some(r), Some(n)) = (refs.get(i), nodes.get_mut(i)) {
                        *n = Some(Arc::new(self.open(*r, buf, kinds(level))?));
                    }
                }
            }
        }
        let node = |(n, r): (Option<Arc<Node>>, &PageRef)| match n {
            Some(n) if n.level() == level => Ok(n),
            Some(_) => Err(wrong_level(*r)),
            None => self.node(*r, level, false),
        };
        nodes.into_iter().zip(refs).map(node).collect()
    }

    /// The node `r`, which is `level` above the leaves. Leaves read from the device are
    /// kept if `keep`.
    pub fn node(&self, r: PageRef, level: u8, keep: bool) -> Result<Arc<Node>> {
        if let Some(n) = self.cache.get(r) {
            if n.level() == level {
                return Ok(n);
            }
            return Err(wrong_level(r));
        }
        let n = Arc::new(self.read(r, kinds(level))?);
        if n.level() != level {
            return Err(wrong_level(r));
        }
        if keep || level > 0 {
            self.cache.put(&n);
        }
        Ok(n)
    }

    /// A value as such; `leaf` is where it was found.
    pub fn value(&self, leaf: &Node, val: Val<'_>) -> Result<Bytes> {
        if !val.overflow {
            return Ok(Bytes::copy_from_slice(val.bytes));
        }
        let bad =
            |what| TreeError::Corrupt { at: leaf.page_ref().at(), what: Damage::Malformed(what) };
        let (len, runs) = overflow_runs(val.bytes);
        if len > VALUE_MAX {
            return Err(bad("overflowing value too long"));
        }
        let mut value = Vec::with_capacity(len);
        for r in runs {
            value.extend_from_slice(self.read(r, &[VALUE])?.content());
            if value.len() > len {
                return Err(bad("overflow runs of a wrong length"));
            }
        }
        if value.len() != len {
            return Err(bad("overflow runs of a wrong length"));
        }
        Ok(Bytes::from(value))
    }

    /// The index and map pages of a state, and the chunks they tell of.
    pub fn load_map(&self, root: &Root) -> Result<(Vec<PageRef>, Alloc)> {
        let mut alloc = Alloc::new(root.chunk);
        let mut pages = Vec::new();
        if root.index.is_none() {
            return Ok((pages, alloc));
        }
        let index = self.read(root.index, &[INDEX])?;
        pages.extend(index.content().as_chunks::<REF_BYTES>().0.iter().map(|r| PageRef::decode(r)));
        for r in &pages {
            if !alloc.decode(self.read(*r, &[MAP])?.content()) {
                return Err(TreeError::Corrupt {
                    at: r.at(),
                    what: Damage::Malformed("map of chunks"),
                });
            }
        }
        if !alloc.is_sound()
            || alloc.slots() != root.slots as usize
            || pages.len() != alloc.slots().div_ceil(alloc.slots_per_page())
        {
            let what = Damage::Malformed("map of chunks of a wrong length");
            return Err(TreeError::Corrupt { at: root.index.at(), what });
        }
        alloc.cleaned();
        Ok((pages, alloc))
    }
}

fn kinds(level: u8) -> &'static [u8] {
    if level == 0 { &[LEAF] } else { &[INNER] }
}

fn wrong_level(r: PageRef) -> TreeError {
    TreeError::Corrupt { at: r.at(), what: Damage::Malformed("node of an unexpected level") }
}

/// A tree: any number of readers, one commit at a time.
pub struct Tree {
    pub(crate) core: Arc<Core>,
    pub(crate) writer: Mutex<Writer>,
}

impl Tree {
    /// A new, empty tree. Nothing is written before the first commit.
    ///
    /// # Errors
    /// [`TreeError::Options`].
    pub fn create(space: Arc<dyn PageSpace>, options: &Options) -> Result<Self> {
        check_chunk(options.chunk)?;
        let root = Root::empty(options.uuid, options.chunk);
        let alloc = Alloc::new(options.chunk);
        Ok(Self::with(space, root, options, Vec::new(), alloc))
    }

    /// The tree of which `root` was published last. Reads the map of chunks only: 41 bytes
    /// for each MiB, with chunks of 1 MiB.
    ///
    /// # Errors
    /// [`TreeError::Io`] and [`TreeError::Corrupt`].
    pub fn open(space: Arc<dyn PageSpace>, root: Root, options: &Options) -> Result<Self> {
        let core = Core {
            space: space.clone(),
            uuid: root.uuid,
            cache: Cache::new(0),
            current: Mutex::new(Arc::new(root.clone())),
        };
        let (pages, alloc) = core.load_map(&root)?;
        Ok(Self::with(space, root, options, pages, alloc))
    }

    fn with(
        space: Arc<dyn PageSpace>,
        root: Root,
        options: &Options,
        pages: Vec<PageRef>,
        alloc: Alloc,
    ) -> Self {
        let core = Core {
            space,
            uuid: root.uuid,
            cache: Cache::new(options.cache),
            current: Mutex::new(Arc::new(root)),
        };
        Self { core: Arc::new(core), writer: Mutex::new(Writer::new(pages, alloc)) }
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        // A commit that panicked has poisoned the writer itself.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present state, for as long as the snapshot lives. Its pages are not used again
    /// until then.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { core: self.core.clone(), root: self.core.current() }
    }

    /// The root that was published last.
    pub fn root(&self) -> Root {
        Root::clone(&self.core.current())
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`TreeError::Io`] and [`TreeError::Corrupt`], if a page on the way to it is bad.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.snapshot().get(key)
    }

    /// As [`Snapshot::pages_at_most`], of the present state.
    ///
    /// # Errors
    /// [`TreeError::Io`] and [`TreeError::Corrupt`].
    pub fn pages_at_most(&self, from: &[u8], until: &[u8]) -> Result<u64> {
        self.snapshot().pages_at_most(from, until)
    }

    /// All pairs with `from <= key < until` of the present state, in order; without
    /// `until`, all from `from` on.
    pub fn range(&self, from: &[u8], until: Option<&[u8]>) -> Range {
        self.snapshot().range(from, until)
    }

    /// Sets the budget of the page cache, bytes; obeyed at once.
    pub fn set_cache_budget(&self, bytes: usize) {
        self.core.cache.set_budget(bytes);
    }

    /// Lets go of all pages in the cache: what is asked for next is read from the device.
    pub fn drop_cache(&self) {
        self.core.cache.clear();
    }

    /// Bytes of pages in the cache.
    pub fn cached_bytes(&self) -> usize {
        self.core.cache.used()
    }

    /// Addresses and lengths in bytes of all space that belongs to the tree, sorted. After
    /// an opening that is what the root refers to, and no more.
    pub fn extents(&self) -> Vec<(u64, u64)> {
        let page = PAGE as u64;
        self.writer()
            .alloc
            .extents()
            .into_iter()
            .map(|(first, n)| (first * page, n as u64 * page))
            .collect()
    }

    /// What the tree holds and takes.
    pub fn stats(&self) -> Stats {
        let w = self.writer();
        let root = self.core.current();
        Stats {
            generation: root.generation,
            keys: root.keys,
            levels: root.levels,
            leaf_pages: root.leaf_pages,
            inner_pages: root.inner_pages,
            overflow_pages: root.overflow_pages,
            live_pages: w.alloc.live_pages(),
            free_pages: w.alloc.free_pages(),
            windows: w.alloc.windows() as u64,
            space_bytes: w.alloc.owned_pages() * PAGE as u64,
            cache_bytes: self.core.cache.used() as u64,
            written_bytes: w.written,
            leaked_pages: w.leaked,
        }
    }
}

/// One state of a tree.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) core: Arc<Core>,
    pub(crate) root: Arc<Root>,
}

impl Snapshot {
    /// The root of this state.
    pub fn root(&self) -> &Root {
        &self.root
    }

    fn top(&self) -> Result<Option<Arc<Node>>> {
        let Some(level) = self.root.levels.checked_sub(1) else { return Ok(None) };
        self.core.node(self.root.top, level, true).map(Some)
    }

    fn child(&self, node: &Node, i: usize) -> Result<Arc<Node>> {
        self.core.node(node.child(i), node.level().saturating_sub(1), true)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`TreeError::Io`] and [`TreeError::Corrupt`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(mut node) = self.top()? else { return Ok(None) };
        while node.level() > 0 {
            let i = node.child_for(key);
            if node.level() == 1 && self.core.cache.lacks(node.child(i), key) {
                return Ok(None);
            }
            node = self.child(&node, i)?;
        }
        match node.search(key) {
            Ok(i) => self.core.value(&node, node.entry(i).1).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The last pair whose key is below `key`; without `key`, the last of all.
    ///
    /// # Errors
    /// [`TreeError::Io`] and [`TreeError::Corrupt`].
    pub fn last_before(&self, key: Option<&[u8]>) -> Result<Option<(Bytes, Bytes)>> {
        let mut path: Vec<(Arc<Node>, usize)> = Vec::new();
        let mut next = self.top()?;
        // Below the path to `key` only the first way down is bounded by it.
        let mut bound = key;
        while let Some(node) = next.take() {
            if node.level() == 0 {
                let end = bound.map_or(node.count(), |k| node.search(k).unwrap_or_else(|i| i));
                if let Some(i) = end.checked_sub(1) {
                    let value = self.core.value(&node, node.entry(i).1)?;
                    return Ok(Some((Bytes::from(node.key(i)), value)));
                }
                while let Some((node, i)) = path.pop() {
                    if let Some(i) = i.checked_sub(1) {
                        next = Some(self.child(&node, i)?);
                        path.push((node, i));
                        bound = None;
                        break;
                    }
                }
            } else {
                let i = bound.map_or(node.count() - 1, |k| node.child_for(k));
                next = Some(self.child(&node, i)?);
                path.push((node, i));
            }
        }
        Ok(None)
    }

    /// Pages that keys with `from <= key < until` and their values take, at most: those of all
    /// leaves that may have some, none of which is read, and of all long values.
    ///
    /// # Errors
    /// [`TreeError::Io`] and [`TreeError::Corrupt`].
    pub fn pages_at_most(&self, from: &[u8], until: &[u8]) -> Result<u64> {
        let (mut pages, mut next) = (self.root.overflow_pages, Vec::new());
        next.extend(self.top()?.filter(|_| from < until));
        if next.first().is_some_and(|top| top.level() == 0) {
            return Ok(pages + self.root.leaf_pages);
        }
        while let Some(node) = next.pop() {
            for i in node.child_for(from)..node.count() {
                if i > 0 && node.key(i).as_slice() >= until {
                    break;
                }
                if node.level() > 1 {
                    next.push(self.child(&node, i)?);
                } else {
                    pages += u64::from(node.child(i).units);
                }
            }
        }
        Ok(pages)
    }

    /// All pairs with `from <= key < until`, in order; without `until`, all from `from` on.
    pub fn range(&self, from: &[u8], until: Option<&[u8]>) -> Range {
        Range {
            snapshot: self.clone(),
            from: Some(from.to_vec()),
            until: until.map(<[u8]>::to_vec),
            path: Vec::new(),
            told: 0,
            ahead: AHEAD,
            done: until.is_some_and(|u| u <= from),
        }
    }
}

/// Leaves that a range which goes on is told of ahead of time: so many at first, then twice as many
/// each time, up to the most.
const AHEAD: usize = 8;
const AHEAD_MOST: usize = 64;

/// Pairs in order. Holds one node for each level. Ends after an error.
///
/// Who reads on from one leaf to the next is likely to go on: the space is told which leaves come,
/// so that a device which is far away is waited for once, and not once for each of them.
pub struct Range {
    snapshot: Snapshot,
    /// Where to begin, until the first pair is asked for.
    from: Option<Vec<u8>>,
    until: Option<Vec<u8>>,
    /// Nodes from the top to a leaf, each with the next entry to go to.
    path: Vec<(Arc<Node>, usize)>,
    /// Of the node above the leaves: the first entry that the space has not been told of, and
    /// how many it is told of next.
    told: usize,
    ahead: usize,
    done: bool,
}

impl Range {
    /// Tells the space of the leaves that come from entry `i` of `node` on.
    fn tell(&mut self, node: &Node, i: usize) {
        if i + self.ahead / 4 < self.told {
            return;
        }
        let first = i.max(self.told);
        let end = node.count().min(first + self.ahead);
        self.ahead = (2 * self.ahead).min(AHEAD_MOST);
        let mut pages: Vec<(u64, usize)> = Vec::with_capacity(end.saturating_sub(first));
        for i in first..end {
            // The first key of a leaf is not below its parent's: what is from there on is not
            // wanted.
            if i > 0 && self.until.as_ref().is_some_and(|u| node.key(i) >= *u) {
                break;
            }
            let leaf = node.child(i);
            if !self.snapshot.core.cache.has(leaf) {
                pages.push((leaf.at(), usize::from(leaf.units) * PAGE));
            }
        }
        self.told = end;
        if !pages.is_empty() {
            self.snapshot.core.space.soon(&pages);
        }
    }

    fn descend(&mut self, mut node: Arc<Node>, from: Option<&[u8]>) -> Result<()> {
        while node.level() > 0 {
            let i = from.map_or(0, |k| node.child_for(k));
            if node.level() == 1 {
                // At the leaf where it begins it may be at its end already.
                self.told = if from.is_some() { i + 1 } else { i };
                if from.is_none() {
                    self.tell(&node, i);
                }
            }
            let child = self.snapshot.child(&node, i)?;
            self.path.push((node, i + 1));
            node = child;
        }
        let i = from.map_or(0, |k| node.search(k).unwrap_or_else(|i| i));
        self.path.push((node, i));
        Ok(())
    }

    fn step(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        if let Some(from) = self.from.take() {
            let Some(top) = self.snapshot.top()? else { return Ok(None) };
            self.descend(top, Some(&from))?;
        }
        while let Some((node, i)) = self.path.last_mut() {
            if *i >= node.count() {
                self.path.pop();
            } else if node.level() > 0 {
                let (node, at) = (node.clone(), *i);
                *i += 1;
                if node.level() == 1 {
                    self.tell(&node, at);
                }
                let child = self.snapshot.child(&node, at)?;
                self.descend(child, None)?;
            } else {
                let (suffix, val) = node.entry(*i);
                let prefix = node.prefix();
                if self
                    .until
                    .as_ref()
                    .is_some_and(|u| crate::node::compare(u, prefix, suffix).is_le())
                {
                    return Ok(None);
                }
                let mut key = Vec::with_capacity(prefix.len() + suffix.len());
                key.extend_from_slice(prefix);
                key.extend_from_slice(suffix);
                let value = self.snapshot.core.value(node, val)?;
                *i += 1;
                return Ok(Some((Bytes::from(key), value)));
            }
        }
        Ok(None)
    }
}

impl Iterator for Range {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let pair = self.step().transpose();
        if !matches!(pair, Some(Ok(_))) {
            self.done = true;
            self.path = Vec::new();
        }
        pair
    }
}
