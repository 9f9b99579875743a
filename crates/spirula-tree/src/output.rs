//! Where a commit's pages go: taking and giving up space, queueing and writing, and the map
//! of pages.

use crate::commit::Commit;
use crate::error::{Damage, Result, TreeError};
use crate::node::{
    HEADER, INDEX, Identity, MAP, Node, PageRef, REF_BYTES, TRAILER, VALUE, Val, overflow_runs, plain_units,
};
use crate::space::PAGE;
use std::sync::Arc;

/// Pages of an overflow run.
const RUN_PAGES: usize = 64;
/// A run is cut shorter than this only where the space has no such run either.
const RUN_PAGES_MIN: usize = 16;
/// Bytes of new pages gathered before they are written.
const GATHER: usize = 1 << 20;

impl Commit<'_> {
    pub fn take(&mut self, n: usize) -> Result<u64> {
        loop {
            if let Some(page) = self.alloc.take(n) {
                self.pages += n as u64;
                return Ok(page);
            }
            if n > self.alloc.chunk_pages() {
                return Err(TreeError::NoSpace);
            }
            self.grow(n)?;
        }
    }

    fn grow(&mut self, adjoining: usize) -> Result<()> {
        let more = self.core.space.grow(adjoining);
        if more.is_empty() {
            return Err(TreeError::NoSpace);
        }
        self.grown.extend(&more);
        let page = PAGE as u64;
        for (at, bytes) in more {
            let aligned = at.is_multiple_of(page) && bytes.is_multiple_of(page) && bytes > 0;
            if !aligned || !self.alloc.give(at / page, (bytes / page) as usize) {
                return Err(TreeError::Options("new space is not aligned, or is in use already"));
            }
        }
        Ok(())
    }

    /// The page is no part of the new state.
    pub fn retire(&mut self, r: PageRef) -> Result<()> {
        let n = usize::from(r.units);
        if !self.alloc.retire(r.page, n) {
            let what = Damage::Malformed("a page in use that the map of chunks calls free");
            return Err(TreeError::Corrupt { at: r.at(), what });
        }
        self.retired.push((r.page, n));
        Ok(())
    }

    pub fn identity(&self, page: u64) -> Identity {
        Identity { uuid: self.root.uuid, page, generation: self.root.generation }
    }

    pub fn enqueue(&mut self, node: Arc<Node>) -> Result<()> {
        self.queued += node.bytes().len();
        self.queue.push(node);
        if self.queued >= GATHER { self.write() } else { Ok(()) }
    }

    /// Writes what is queued, adjoining pages at once.
    pub fn write(&mut self) -> Result<()> {
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
    pub fn overflow(&mut self, value: &[u8]) -> Result<Vec<u8>> {
        let mut list = (value.len() as u32).to_le_bytes().to_vec();
        let mut rest = value;
        while !rest.is_empty() {
            let mut n = plain_units(rest.len()).min(RUN_PAGES);
            let mut grown = false;
            let page = loop {
                if let Some(page) = self.alloc.take(n) {
                    self.pages += n as u64;
                    break page;
                }
                if n > RUN_PAGES_MIN {
                    n = (n / 2).max(RUN_PAGES_MIN);
                } else if n > 1 && grown {
                    // Space is in pieces; so will the value be. What adjoins is left for nodes.
                    n /= 2;
                } else {
                    self.grow(1)?;
                    grown = true;
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
    pub fn drop_value(&mut self, val: Val<'_>) -> Result<()> {
        if val.overflow {
            for r in overflow_runs(val.bytes).1 {
                self.root.overflow_pages = self.root.overflow_pages.saturating_sub(u64::from(r.units));
                self.retire(r)?;
            }
        }
        Ok(())
    }

    pub fn retire_node(&mut self, node: &Node) -> Result<()> {
        let r = node.page_ref();
        let pages = if node.level() == 0 { &mut self.root.leaf_pages } else { &mut self.root.inner_pages };
        *pages = pages.saturating_sub(u64::from(r.units));
        self.retire(r)
    }

    /// Writes the changed pages of the map of chunks, and their index. Taking pages for
    /// them changes the map, too; so first all pages are taken.
    pub fn write_map(&mut self) -> Result<()> {
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
