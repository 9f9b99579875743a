//! Merging a sorted batch into the nodes that it touches, from left to right.

use crate::commit::{Change, Commit};
use crate::error::{Damage, Result, TreeError};
use crate::node::{Item, Node, PageRef, REF_BYTES, ROOM, Val, compare, units};
use crate::root::LEVELS_MAX;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

/// A node with less content than this is joined with its right neighbour.
const JOIN_BELOW: usize = ROOM / 4;
/// Leaves read ahead at once.
const AHEAD: usize = 64;

/// A child as its parent has it: its key, `a` followed by `b`.
#[derive(Clone, Copy)]
struct Span<'n> {
    a: &'n [u8],
    b: &'n [u8],
    page: PageRef,
}

/// An entry of a new inner node: its key is `a` followed by `b`.
pub(crate) struct Child<'n> {
    a: &'n [u8],
    b: Cow<'n, [u8]>,
    page: PageRef,
    /// It is new and has only one entry.
    single: bool,
}

impl<'n> Span<'n> {
    fn key(&self) -> Vec<u8> {
        [self.a, self.b].concat()
    }

    /// The child as it is.
    fn kept(self) -> Child<'n> {
        Child { a: self.a, b: Cow::Borrowed(self.b), page: self.page, single: false }
    }
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

impl Commit<'_> {
    pub fn apply(&mut self, changes: &[Change<'_>]) -> Result<()> {
        let (mut children, mut level) = match self.root.levels.checked_sub(1) {
            // As if the top were the only child of a node above it.
            Some(level) => {
                let top = [Span { a: &[], b: &[], page: self.root.top }];
                match self.rebuild_list(level, &top, None, changes)? {
                    Some(children) => (children, level),
                    None => return Ok(()),
                }
            }
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
                return Err(TreeError::Corrupt {
                    at: self.root.top.at(),
                    what: Damage::Malformed("too many levels"),
                });
            }
            children = self.pack(level, &children)?;
        }
        let Some(top) = children.pop() else {
            (self.root.levels, self.root.top) = (0, PageRef::NONE);
            return Ok(());
        };
        (self.root.levels, self.root.top) = (level + 1, top.page);
        if top.single && level > 0 { self.collapse() } else { Ok(()) }
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

    fn pack(&mut self, level: u8, children: &[Child<'_>]) -> Result<Vec<Child<'static>>> {
        let refs: Vec<[u8; REF_BYTES]> = children.iter().map(|c| c.page.encode()).collect();
        let mut out = Vec::new();
        self.emit(level, &[], &child_items(children, &refs), false, &[], &mut out)?;
        Ok(out)
    }

    /// Is some of what `span` covers, up to `next`, deleted with a range of keys?
    fn touched(&self, span: &Span<'_>, next: Option<&Span<'_>>) -> bool {
        let first =
            self.ranges.partition_point(|(_, until)| compare(until, span.a, span.b).is_le());
        let range = self.ranges.get(first);
        range.is_some_and(|(from, _)| next.is_none_or(|n| compare(from, n.a, n.b).is_lt()))
    }

    /// Is the key, `a` followed by `b`, deleted with a range of keys?
    fn in_range(&self, a: &[u8], b: &[u8]) -> bool {
        let first = self.ranges.partition_point(|(_, until)| compare(until, a, b).is_le());
        self.ranges.get(first).is_some_and(|(from, _)| compare(from, a, b).is_le())
    }

    /// What becomes of children whose parent's range ends with the last one; `None`: nothing
    /// changes. `end`: what follows their parent, if anything does.
    fn rebuild_list<'n>(
        &mut self,
        level: u8,
        list: &[Span<'n>],
        end: Option<&Span<'_>>,
        mut changes: &[Change<'_>],
    ) -> Result<Option<Vec<Child<'n>>>> {
        let mut out: Vec<Child<'n>> = Vec::with_capacity(list.len() + 4);
        let mut carry: Option<Carry> = None;
        let mut ahead = VecDeque::new();
        let mut any = false;
        for (i, span) in list.iter().enumerate() {
            let (mine, rest) = changes.split_at(below(changes, list.get(i + 1)));
            let next = list.get(i + 1).or(end);
            let meant = !mine.is_empty() || self.touched(span, next);
            if !meant && carry.is_none() {
                out.push(span.kept());
                continue;
            }
            let node = if !meant {
                match self.core.node(span.page, level, false) {
                    Ok(node) => node,
                    // Nothing of it changes: its damage is for who needs it, and its neighbour
                    // stays too small.
                    Err(TreeError::Corrupt { .. } | TreeError::Io { op: "read", .. }) => {
                        self.settle_alone(level, &mut carry, &mut out)?;
                        out.push(span.kept());
                        continue;
                    }
                    Err(e) => return Err(e),
                }
            } else {
                if ahead.is_empty() {
                    ahead =
                        self.load_ahead(level, list.get(i..).unwrap_or_default(), end, changes)?;
                }
                match ahead.pop_front() {
                    Some(node) => node,
                    None => self.core.node(span.page, level, false)?,
                }
            };
            changes = rest;
            let last = i + 1 == list.len();
            let low = span.key();
            let changed = if level == 0 {
                self.rebuild_leaf(&node, &low, mine, last, &mut carry, &mut out)?
            } else {
                self.rebuild_inner(&node, &low, next, mine, last, &mut carry, &mut out)?
            };
            any |= changed;
            if !changed {
                out.push(span.kept());
            }
        }
        // The range of what is gone belongs to its neighbour.
        if let (Some(first), Some(span)) = (out.first_mut(), list.first()) {
            (first.a, first.b) = (span.a, Cow::Borrowed(span.b));
        }
        Ok(any.then_some(out))
    }

    /// The next leaves that have changes, read together.
    fn load_ahead(
        &self,
        level: u8,
        list: &[Span<'_>],
        end: Option<&Span<'_>>,
        mut changes: &[Change<'_>],
    ) -> Result<VecDeque<Arc<Node>>> {
        let mut wanted = Vec::new();
        for (i, span) in list.iter().enumerate() {
            let n = below(changes, list.get(i + 1));
            if n > 0 || self.touched(span, list.get(i + 1).or(end)) {
                wanted.push(span.page);
            }
            changes = changes.get(n..).unwrap_or_default();
            // Inner nodes are few, and each needs many leaves.
            let more = !changes.is_empty() || !self.ranges.is_empty();
            if wanted.len() == if level == 0 { AHEAD } else { 1 } || !more {
                break;
            }
        }
        self.core.nodes(&wanted, level)
    }

    fn rebuild_leaf(
        &mut self,
        leaf: &Node,
        low: &[u8],
        changes: &[Change<'_>],
        last: bool,
        carry: &mut Option<Carry>,
        out: &mut Vec<Child<'_>>,
    ) -> Result<bool> {
        let before = carry.take();
        let mut items = Vec::with_capacity(
            leaf.count() + changes.len() + before.as_ref().map_or(0, |c| c.entries.len()),
        );
        if let Some(c) = &before {
            items.extend(c.entries.iter().map(carried));
        }
        let own = items.len();
        let changed = self.merge(leaf, changes, &mut items)?;
        if !changed && before.is_none() {
            return Ok(false);
        }
        // A leaf that only grew at its end will go on so: it is split without room in it.
        let grows = leaf.count().checked_sub(1).is_some_and(|i| {
            changes.first().is_some_and(|c| compare(c.key, leaf.prefix(), leaf.suffix(i)).is_gt())
        });
        self.retire_node(leaf)?;
        *carry =
            self.settle(0, low, &items, before.as_ref(), own, leaf.page(), grows, last, out)?;
        Ok(true)
    }

    #[allow(clippy::too_many_arguments, reason = "one step of one loop")]
    fn rebuild_inner(
        &mut self,
        node: &Node,
        low: &[u8],
        end: Option<&Span<'_>>,
        changes: &[Change<'_>],
        last: bool,
        carry: &mut Option<Carry>,
        out: &mut Vec<Child<'_>>,
    ) -> Result<bool> {
        let Some(below) = node.level().checked_sub(1) else { return Ok(false) };
        let before = carry.take();
        // The first child's range begins where the node's own does.
        let span = |i| match i {
            0 => Span { a: low, b: &[], page: node.child(i) },
            _ => Span { a: node.prefix(), b: node.suffix(i), page: node.child(i) },
        };
        let list: Vec<_> = (0..node.count()).map(span).collect();
        let children = match self.rebuild_list(below, &list, end, changes)? {
            Some(children) => children,
            None if before.is_none() => return Ok(false),
            None => list.iter().map(|s| s.kept()).collect(),
        };
        let refs: Vec<[u8; REF_BYTES]> = children.iter().map(|c| c.page.encode()).collect();
        let mut items =
            Vec::with_capacity(children.len() + before.as_ref().map_or(0, |c| c.entries.len()));
        if let Some(c) = &before {
            items.extend(c.entries.iter().map(carried));
        }
        let own = items.len();
        items.extend(child_items(&children, &refs));
        self.retire_node(node)?;
        *carry = self.settle(
            node.level(),
            low,
            &items,
            before.as_ref(),
            own,
            node.page(),
            false,
            last,
            out,
        )?;
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
        out: &mut Vec<Child<'_>>,
    ) -> Result<Option<Carry>> {
        let low = before.map_or(low, |c| c.low.as_slice());
        let mut from = before.map(|c| c.from.clone()).unwrap_or_default();
        from.push(page);
        let size: usize = items.iter().map(|i| i.size(level == 0)).sum();
        if size < JOIN_BELOW && !last && !items.is_empty() {
            let entries =
                items.iter().map(|i| (i.key(), i.val.bytes.to_vec(), i.val.overflow)).collect();
            return Ok(Some(Carry { low: low.to_vec(), entries, from }));
        }
        self.emit(level, low, items, grows && own == 0, &from, out)?;
        Ok(None)
    }

    /// Writes what was carried as a node of its own, however small.
    fn settle_alone(
        &mut self,
        level: u8,
        carry: &mut Option<Carry>,
        out: &mut Vec<Child<'_>>,
    ) -> Result<()> {
        let Some(c) = carry.take() else { return Ok(()) };
        let items: Vec<_> = c.entries.iter().map(carried).collect();
        self.emit(level, &c.low, &items, false, &c.from, out)
    }

    /// Merges the changes with the entries of a leaf; whether that makes a difference.
    fn merge<'n>(
        &mut self,
        leaf: &'n Node,
        changes: &[Change<'n>],
        items: &mut Vec<Item<'n>>,
    ) -> Result<bool> {
        let prefix = leaf.prefix();
        let mut changed = false;
        let mut changes = changes.iter().peekable();
        for i in 0..leaf.count() {
            let (suffix, val) = leaf.entry(i);
            let old = Item { a: prefix, b: suffix, val };
            // What a change sets anew stays, also where it is the same.
            let (mut kept, mut meant) = (true, false);
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
                meant = true;
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
            if !meant && self.in_range(prefix, suffix) {
                self.drop_value(val)?;
                self.root.keys = self.root.keys.saturating_sub(1);
                (changed, kept) = (true, false);
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
        out: &mut Vec<Child<'_>>,
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
            let node = self.make(n, |id| Node::build(level, piece, id))?;
            out.push(Child {
                a: &[],
                b: Cow::Owned(key),
                page: node.page_ref(),
                single: piece.len() == 1,
            });
            let pages = if leaf { &mut self.root.leaf_pages } else { &mut self.root.inner_pages };
            *pages += node.pages() as u64;
            if let Some(old) = from.next() {
                self.core.cache.replace(*old, leaf.then_some(&node));
            }
            before = Some(last);
        }
        from.for_each(|old| self.core.cache.replace(*old, None));
        Ok(())
    }
}

fn carried((key, bytes, overflow): &(Vec<u8>, Vec<u8>, bool)) -> Item<'_> {
    Item { a: key, b: &[], val: Val { bytes, overflow: *overflow } }
}

fn child_items<'a>(children: &'a [Child<'_>], refs: &'a [[u8; REF_BYTES]]) -> Vec<Item<'a>> {
    let item = |(c, r): (&'a Child<'_>, &'a [u8; REF_BYTES])| Item {
        a: c.a,
        b: &c.b,
        val: Val { bytes: r, overflow: false },
    };
    children.iter().zip(refs).map(item).collect()
}

/// How many of the changes come before the key of `next`; all, if there is none.
fn below(changes: &[Change<'_>], next: Option<&Span<'_>>) -> usize {
    next.map_or(changes.len(), |n| {
        changes.iter().take_while(|c| compare(c.key, n.a, n.b).is_lt()).count()
    })
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
