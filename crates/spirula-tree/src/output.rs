//! Where a commit's pages go: taking and giving up space, queueing and writing, and the map
//! of pages.

use crate::commit::Commit;
use crate::error::{Damage, Result, TreeError};
use crate::node::{
    APART_MAX, HEADER, INDEX, Identity, MAP, Node, PageRef, REF_BYTES, TRAILER, VALUE, Val,
    WHOLE_MAX, overflow_runs, plain_units,
};
use crate::space::PAGE;
use std::sync::Arc;

/// Pages of an overflow run.
const RUN_PAGES: usize = 64;
/// Shorter ones are not worth their place in the list: a longer one lies apart instead.
const RUN_PAGES_MIN: usize = 16;
/// Pages of an overflow run that lies apart.
const APART_PAGES: usize = 256;
/// Bytes of a value whose runs may all be single pages: the list of them stays short.
const SHORT: usize = 64 * (PAGE - HEADER - TRAILER);
/// Bytes of new pages gathered before they are written.
const GATHER: usize = 1 << 20;

/// Pages for one node.
struct Place {
    /// The first, or the list page.
    page: u64,
    /// How many adjoin.
    units: usize,
    /// Where the node is to lie apart.
    pieces: Vec<u64>,
}

impl Commit<'_> {
    /// Takes one page.
    fn take(&mut self) -> Result<u64> {
        loop {
            if let Some(page) = self.alloc.take(1) {
                self.pages += 1;
                return Ok(page);
            }
            if !self.grow(1)? {
                return Err(TreeError::NoSpace);
            }
        }
    }

    /// Takes pages for a node of `n`: adjoining ones if there are such, else any.
    fn find(&mut self, n: usize) -> Result<Place> {
        while n <= self.alloc.chunk_pages().min(WHOLE_MAX) {
            if let Some(page) = self.alloc.take(n) {
                self.pages += n as u64;
                return Ok(Place { page, units: n, pieces: Vec::new() });
            }
            if !self.grow(n)? {
                break;
            }
        }
        if n == 1 { Err(TreeError::NoSpace) } else { self.find_apart(n) }
    }

    fn find_apart(&mut self, n: usize) -> Result<Place> {
        if n > APART_MAX {
            return Err(TreeError::NoSpace);
        }
        let page = self.take()?;
        let pieces = (0..n).map(|_| self.take()).collect::<Result<_>>()?;
        Ok(Place { page, units: 1, pieces })
    }

    /// Makes a node of `n` pages and queues it.
    pub fn make(&mut self, n: usize, build: impl FnOnce(Identity) -> Node) -> Result<Arc<Node>> {
        let place = self.find(n)?;
        self.make_at(place, build)
    }

    fn make_at(&mut self, place: Place, build: impl FnOnce(Identity) -> Node) -> Result<Arc<Node>> {
        let id = self.identity(place.page);
        let mut node = build(id);
        if !place.pieces.is_empty() {
            node.lay_apart(place.pieces, id);
            self.root.apart = true;
        }
        let node = Arc::new(node);
        self.enqueue(node.clone())?;
        Ok(node)
    }

    /// Asks for more space; false: there is none.
    fn grow(&mut self, adjoining: usize) -> Result<bool> {
        let more = self.core.space.grow(adjoining);
        if more.is_empty() {
            return Ok(false);
        }
        self.grown.extend(&more);
        let page = PAGE as u64;
        for (at, bytes) in more {
            let aligned = at.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0;
            if !aligned || !self.alloc.give(at / page, (bytes / page) as usize) {
                return Err(TreeError::Options("new space is not aligned, or is in use already"));
            }
        }
        Ok(true)
    }

    /// What `r` names is no part of the new state; `pieces` are the pages in which it lies
    /// apart.
    fn retire(&mut self, r: PageRef, pieces: &[u64]) -> Result<()> {
        for (page, n) in pieces.iter().map(|p| (*p, 1)).chain([(r.page, usize::from(r.units))]) {
            if !self.alloc.retire(page, n) {
                let what = Damage::Malformed("a page in use that the map of chunks calls free");
                return Err(TreeError::Corrupt { at: page * PAGE as u64, what });
            }
            self.retired.push((page, n));
        }
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
    pub fn write(&mut self) -> Result<()> {
        let mut parts: Vec<(u64, &[u8])> = self.queue.iter().flat_map(|n| n.parts()).collect();
        parts.sort_by_key(|(page, _)| *page);
        for run in parts.chunk_by(|(a, bytes), (b, _)| a + (bytes.len() / PAGE) as u64 == *b) {
            let Some((first, _)) = run.first() else { continue };
            let at = first * PAGE as u64;
            let bufs: Vec<&[u8]> = run.iter().map(|(_, bytes)| *bytes).collect();
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
    pub fn overflow(&mut self, value: &[u8]) -> Result<Vec<u8>> {
        let mut list = (value.len() as u32).to_le_bytes().to_vec();
        let mut rest = value;
        while !rest.is_empty() {
            let all = plain_units(rest.len());
            let mut n = all.min(RUN_PAGES);
            let mut grown = false;
            let place = loop {
                if let Some(page) = self.alloc.take(n) {
                    self.pages += n as u64;
                    break Place { page, units: n, pieces: Vec::new() };
                }
                if n > RUN_PAGES_MIN {
                    n = (n / 2).max(RUN_PAGES_MIN);
                } else if !grown {
                    // Without more, what there is may still be enough in smaller pieces.
                    let more = self.grow(1)?;
                    if !more && n == 1 {
                        return Err(TreeError::NoSpace);
                    }
                    grown = n > 1;
                } else if value.len() > SHORT && n > 1 {
                    // Space is in pieces; so will the value be. What adjoins is left for nodes.
                    n = all.min(APART_PAGES);
                    break self.find_apart(n)?;
                } else if n > 1 {
                    n /= 2;
                } else {
                    grown = false;
                }
            };
            let (part, more) = rest.split_at(rest.len().min(n * PAGE - HEADER - TRAILER));
            let node = self.make_at(place, |id| Node::plain(VALUE, part, 0, id))?;
            list.extend_from_slice(&node.page_ref().encode());
            self.root.overflow_pages += node.pages() as u64;
            rest = more;
        }
        Ok(list)
    }

    /// The value is no part of the new state.
    pub fn drop_value(&mut self, val: Val<'_>) -> Result<()> {
        if val.overflow {
            let (mut rest, runs) = overflow_runs(val.bytes);
            for r in runs {
                let units =
                    if r.apart { plain_units(rest).min(APART_PAGES) } else { usize::from(r.units) };
                rest = rest.saturating_sub((units * PAGE).saturating_sub(HEADER + TRAILER));
                let pieces = self.pieces_or_leak(r, units);
                let pages = usize::from(r.units) + if r.apart { units } else { 0 };
                self.root.overflow_pages = self.root.overflow_pages.saturating_sub(pages as u64);
                self.retire(r, &pieces)?;
            }
        }
        Ok(())
    }

    /// The `units` pieces of what goes, where it lies apart. A list of them that cannot be read,
    /// twice, must not stop all that is still sound: they stay in use, and a check names them.
    fn pieces_or_leak(&mut self, r: PageRef, units: usize) -> Vec<u64> {
        self.core.pieces(r).or_else(|_| self.core.pieces(r)).unwrap_or_else(|_| {
            self.leaked += units as u64;
            Vec::new()
        })
    }

    pub fn retire_node(&mut self, node: &Node) -> Result<()> {
        let pages =
            if node.level() == 0 { &mut self.root.leaf_pages } else { &mut self.root.inner_pages };
        *pages = pages.saturating_sub(node.pages() as u64);
        self.retire(node.page_ref(), node.pieces())
    }

    /// Writes the changed pages of the map of chunks, and their index. Taking pages for
    /// them changes the map, too; so first all pages are taken.
    pub fn write_map(&mut self) -> Result<()> {
        let mut fresh: Vec<Option<u64>> = Vec::new();
        let mut index: Option<(Place, usize)> = None;
        loop {
            let pages = self.alloc.slots().div_ceil(self.alloc.slots_per_page());
            fresh.resize(pages, None);
            let todo: Vec<usize> = self
                .alloc
                .dirty()
                .iter()
                .copied()
                .filter(|i| fresh.get(*i).is_some_and(Option::is_none))
                .collect();
            for i in &todo {
                if let Some(old) = self.map.get(*i).copied() {
                    self.retire(old, &[])?;
                }
                let page = self.take()?;
                if let Some(f) = fresh.get_mut(*i) {
                    *f = Some(page);
                }
            }
            let n = plain_units(pages * REF_BYTES);
            match index.take() {
                Some((place, taken)) if taken == n => index = Some((place, taken)),
                Some((place, _)) => {
                    self.retire(
                        PageRef { page: place.page, units: place.units as u8, ..PageRef::NONE },
                        &place.pieces,
                    )?;
                    index = Some((self.find(n)?, n));
                    continue;
                }
                None if pages == 0 => return Ok(()),
                None => {
                    let old = self.root.index;
                    if !old.is_none() {
                        let pieces =
                            self.pieces_or_leak(old, plain_units(self.map.len() * REF_BYTES));
                        self.retire(old, &pieces)?;
                    }
                    index = Some((self.find(n)?, n));
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
        if let Some((place, _)) = index {
            let count = self.map.len();
            let node = self.make_at(place, |id| Node::plain(INDEX, &content, count, id))?;
            self.root.index = node.page_ref();
        }
        self.root.slots = self.alloc.slots() as u32;
        self.alloc.cleaned();
        Ok(())
    }
}
