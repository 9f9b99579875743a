//! Omaps as they are read, and copies of them that are still to be made.
//!
//! Of the owners of a shared omap the one who changes it gets a copy. A small one is made at
//! once, by the transaction. A larger one, which may have hundreds of megabytes, is made *by
//! reference*: the transaction says that the omap N is a copy of the omap M, and what changes
//! in N; the overlay has it so, and who reads N reads what the overlay has of N over what
//! there is of M. The checkpoint that stores this overlay copies the pairs from M to N first,
//! some megabytes a commit ([`crate::checkpoint`]), and then applies what changed in N. Until
//! it has done so nobody changes M, its last owner neither (he gets a copy, too), and M is not
//! deleted.
//!
//! No copy is made of a copy in the same overlay: it is made of the same source, and gets a copy of
//! what has changed since. So a read goes down two copies, one of the overlay being filled and
//! one of the frozen one. (A replay puts both into one overlay.)
//!
//! A crash within a checkpoint leaves pairs of N that nothing refers to; a replay finds the copy
//! still to be made, and whoever makes it begins with the removal of what is there of N.

use crate::error::Result;
use crate::gone::{self, Gone};
use crate::keys;
use crate::kv::MetaStore;
use crate::overlay::{Merge, Overlay, Stream};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Pairs by omap and key; `None`: removed.
pub(crate) type Pairs = BTreeMap<(u64, Bytes), Option<Bytes>>;

/// Copies to be made, and of what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    from: BTreeMap<u64, u64>,
    /// How many of them each source has.
    sources: BTreeMap<u64, usize>,
}

impl Copies {
    /// The omap `new` is to be a copy of `from`.
    pub fn add(&mut self, new: u64, from: u64) {
        self.forget(new);
        self.from.insert(new, from);
        *self.sources.entry(from).or_default() += 1;
    }

    /// There is no need of this copy any more; false if there was none.
    pub fn forget(&mut self, new: u64) -> bool {
        let Some(from) = self.from.remove(&new) else { return false };
        if let Some(n) = self.sources.get_mut(&from) {
            *n -= 1;
            if *n == 0 {
                self.sources.remove(&from);
            }
        }
        true
    }

    /// What an omap is to be a copy of.
    pub fn source(&self, new: u64) -> Option<u64> {
        self.from.get(&new).copied()
    }

    /// Is a copy of this omap to be made?
    pub fn wants(&self, id: u64) -> bool {
        self.sources.contains_key(&id)
    }

    /// All of them: the new omap and its source.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.from.iter().map(|(new, from)| (*new, *from))
    }
}

/// Changes of omaps that lie over older ones.
#[derive(Clone, Copy)]
pub(crate) struct Level<'a> {
    pub pairs: &'a Pairs,
    pub gone: &'a Gone,
    pub copies: &'a Copies,
}

impl Level<'_> {
    /// Bytes of pairs that it has of an omap, roughly.
    pub fn bytes_of(&self, id: u64) -> u64 {
        let all = self.pairs.range((id, Bytes::new())..(id + 1, Bytes::new()));
        all.map(|((_, k), v)| (64 + k.len() + v.as_ref().map_or(0, Bytes::len)) as u64).sum()
    }
}

impl<'a> From<&'a Overlay> for Level<'a> {
    fn from(o: &'a Overlay) -> Self {
        Self { pairs: &o.omap, gone: &o.gone, copies: &o.copies }
    }
}

/// The changes that make an omap, from the newest on, each with the number that it has there;
/// and its number in the metadata.
pub(crate) fn below<'a>(
    levels: impl Iterator<Item = Level<'a>>,
    id: u64,
) -> (Vec<(u64, Level<'a>)>, u64) {
    let (mut all, mut id) = (Vec::with_capacity(4), id);
    for level in levels {
        all.push((id, level));
        while let Some(from) = level.copies.source(id) {
            id = from;
            all.push((id, level));
        }
    }
    (all, id)
}

/// The value of a key of an omap.
pub(crate) fn get<'a>(
    meta: &MetaStore,
    levels: impl Iterator<Item = Level<'a>>,
    id: u64,
    key: &Bytes,
) -> Result<Option<Bytes>> {
    let (levels, stored) = below(levels, id);
    for (id, level) in levels {
        if let Some(value) = level.pairs.get(&(id, key.clone())) {
            return Ok(value.clone());
        }
        if level.gone.covers(id, key) {
            return Ok(None);
        }
    }
    meta.get(&keys::omap(stored, key))
}

/// Pairs of an omap with `first <= key < last`, in order.
pub(crate) fn pairs<'a>(
    meta: &'a MetaStore,
    levels: impl Iterator<Item = Level<'a>>,
    id: u64,
    first: &[u8],
    last: Option<&Bytes>,
) -> Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a> {
    if id == 0 || last.is_some_and(|l| first >= l.as_ref()) {
        return Box::new(std::iter::empty());
    }
    let (levels, stored) = below(levels, id);
    let first = Bytes::copy_from_slice(first);
    let mut streams: Vec<Stream<'a, Bytes, Bytes>> = Vec::with_capacity(levels.len() + 1);
    // Ranges that newer changes have removed.
    let mut gone: Vec<(u64, &Gone)> = Vec::with_capacity(levels.len());
    for (id, level) in levels {
        let newer = gone.clone();
        let until = last.map_or((id + 1, Bytes::new()), |l| (id, l.clone()));
        let range = level.pairs.range((id, first.clone())..until);
        let left = range.filter(move |((_, k), _)| !newer.iter().any(|(id, g)| g.covers(*id, k)));
        streams.push(Box::new(left.map(|((_, k), v)| Ok((k.clone(), v.clone())))));
        gone.push((id, level.gone));
    }
    let parts = gone::left(gone, first, last.cloned());
    let stored = parts.flat_map(move |(from, until)| {
        let until = match until {
            Some(u) => keys::omap(stored, &u),
            None => keys::prefix_end(&keys::omap(stored, &[])),
        };
        meta.range(&keys::omap(stored, &from), &until)
    });
    // 9 bytes name the omap.
    streams
        .push(Box::new(stored.map(|pair| pair.map(|(k, v)| (k.slice(9.min(k.len())..), Some(v))))));
    Box::new(Merge::new(streams))
}
