//! Checking a whole tree, from the device.

use crate::alloc::Alloc;
use crate::error::{Damage, Result, TreeError};
use crate::node::{INNER, LEAF, Node, PageRef, VALUE, overflow_runs};
use crate::read::{Core, Tree};
use crate::root::Root;
use crate::space::{PAGE, VALUE_MAX};

/// Problems reported at most.
const PROBLEMS_MAX: usize = 1000;

/// Something wrong with a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Address of the page, bytes.
    pub at: u64,
    /// What is wrong.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// What is wrong, up to a thousand problems; empty: all is well.
    pub problems: Vec<Problem>,
    /// Pages of 4 KiB that were looked at.
    pub pages: u64,
    /// Pairs seen.
    pub keys: u64,
}

struct Checker<'a> {
    core: &'a Core,
    seen: Alloc,
    found: Check,
    leaf_pages: u64,
    inner_pages: u64,
    overflow_pages: u64,
}

impl Tree {
    /// Reads every page of the present state from the device and checks it: checksums and
    /// identities, structure, order and ranges of keys, counts, and that every page is
    /// either owned once or free. Waits for a commit under way; later ones wait.
    pub fn check(&self) -> Check {
        let writer = self.writer();
        let root = self.core.current();
        let mut c = Checker {
            core: &self.core,
            seen: Alloc::new(root.chunk),
            found: Check::default(),
            leaf_pages: 0,
            inner_pages: 0,
            overflow_pages: 0,
        };
        if let Err(e) = c.tree(&root) {
            c.error(&e, root.index);
        }
        drop(writer);
        c.found
    }
}

impl Checker<'_> {
    fn problem(&mut self, at: u64, what: impl Into<String>) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.push(Problem { at, what: what.into() });
        }
    }

    fn error(&mut self, e: &TreeError, r: PageRef) {
        match e {
            TreeError::Corrupt { at, what } => self.problem(*at, what.to_string()),
            e => self.problem(r.at(), e.to_string()),
        }
    }

    fn tree(&mut self, root: &Root) -> Result<()> {
        let (pages, alloc) = self.core.load_map(root)?;
        self.seen = alloc.blank();
        for r in pages.iter().chain([&root.index]).filter(|r| !r.is_none()) {
            self.own(*r);
        }
        for page in self.core.pieces(root.index)? {
            self.own(PageRef { page, units: 1, ..PageRef::NONE });
        }
        if let Some(level) = root.levels.checked_sub(1) {
            self.node(root.top, level, &[], None);
        }
        if !self.found.problems.is_empty() {
            // What could not be read cannot be counted.
            return Ok(());
        }
        for page in alloc.live_but_not_in(&self.seen) {
            self.problem(page * PAGE as u64, "in use, but nothing refers to it");
        }
        for page in self.seen.live_but_not_in(&alloc) {
            self.problem(page * PAGE as u64, "referred to, but free");
        }
        let counts = [
            ("keys", self.found.keys, root.keys),
            ("leaf pages", self.leaf_pages, root.leaf_pages),
            ("inner pages", self.inner_pages, root.inner_pages),
            ("overflow pages", self.overflow_pages, root.overflow_pages),
        ];
        for (what, seen, said) in counts {
            if seen != said {
                self.problem(root.top.at(), format!("{seen} {what}, but the root says {said}"));
            }
        }
        Ok(())
    }

    /// Notes a page as referred to; false if it was before.
    fn own(&mut self, r: PageRef) -> bool {
        self.found.pages += u64::from(r.units);
        let new = self.seen.claim(r.page, usize::from(r.units));
        if !new {
            self.problem(r.at(), "referred to twice, or in no part of the tree's");
        }
        new
    }

    fn read(&mut self, r: PageRef, kind: u8) -> Option<Node> {
        if !self.own(r) {
            return None;
        }
        let node = self.core.read(r, &[kind]).map_err(|e| self.error(&e, r)).ok()?;
        for page in node.pieces() {
            self.own(PageRef { page: *page, units: 1, ..PageRef::NONE });
        }
        Some(node)
    }

    /// A node whose keys are from `low` to below `high`.
    fn node(&mut self, r: PageRef, level: u8, low: &[u8], high: Option<&[u8]>) {
        let Some(node) = self.read(r, if level == 0 { LEAF } else { INNER }) else { return };
        if node.level() != level {
            self.problem(r.at(), "node of an unexpected level");
            return;
        }
        let keys = [0, node.count().saturating_sub(1)].map(|i| node.key(i));
        let [first, last] = &keys;
        if first.as_slice() < low || high.is_some_and(|h| last.as_slice() >= h) {
            self.problem(r.at(), "keys outside of the node's range");
        }
        if level > 0 {
            self.inner_pages += node.pages() as u64;
            // The first child's range begins where the node's does, whatever its key says:
            // its left neighbour may have gone since.
            let mut from = low.to_vec();
            for i in 0..node.count() {
                let next = (i + 1 < node.count()).then(|| node.key(i + 1));
                self.node(node.child(i), level - 1, &from, next.as_deref().or(high));
                from = next.unwrap_or_default();
            }
            return;
        }
        self.leaf_pages += node.pages() as u64;
        self.found.keys += node.count() as u64;
        for i in 0..node.count() {
            let val = node.entry(i).1;
            if !val.overflow {
                continue;
            }
            let (len, runs) = overflow_runs(val.bytes);
            let (mut sum, mut sound) = (0, true);
            for run in runs {
                match self.read(run, VALUE) {
                    Some(n) => {
                        self.overflow_pages += n.pages() as u64;
                        sum += n.content().len();
                    }
                    None => sound = false,
                }
            }
            if sound && (sum != len || len > VALUE_MAX) {
                let what = Damage::Malformed("overflow runs of a wrong length");
                self.problem(r.at(), what.to_string());
            }
        }
    }
}
