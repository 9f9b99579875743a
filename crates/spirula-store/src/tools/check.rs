//! Checking a whole store: every structure, every block's checksum, every owner.
//!
//! Memory: one bit per block of the device, and some bytes for each object that is larger
//! than 64 KiB, has an omap, or shares blocks.

use super::for_each_object;
use crate::alloc::BLOCK;
use crate::error::{Result, StoreError};
use crate::keys;
use crate::layer::own_bit;
use crate::maps::{self, View, WHOLE};
use crate::onode::{Onode, SEGMENT_BLOCKS};
use crate::refs::CHUNK;
use crate::segment::{Piece, Segment, Usage};
use crate::stage::pool_of;
use crate::store::Store;
use spirula_types::{HObject, PgId};
use std::collections::{BTreeMap, BTreeSet};

/// Problems named at most; all are counted.
const NAMED: usize = 1000;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Objects looked at.
    pub objects: u64,
    /// Bytes of data whose checksums were verified.
    pub data: u64,
    /// Pages of metadata looked at.
    pub metadata_pages: u64,
    /// PG logs looked at.
    pub logs: u64,
    /// Number of problems.
    pub count: u64,
    /// The first of them, in words; empty: all is well.
    pub problems: Vec<String>,
    /// Damage that the store gets over by itself, in words.
    pub notes: Vec<String>,
}

impl Check {
    fn problem(&mut self, what: String) {
        self.count += 1;
        if self.problems.len() < NAMED {
            self.problems.push(what);
        }
    }
}

/// Who owns what.
struct Owners {
    /// One bit per block.
    owned: Vec<u64>,
    /// Further owners of shared blocks.
    more: BTreeMap<u64, u32>,
    /// Further owners of blocks of an object not marked as sharing.
    unmarked: BTreeSet<u64>,
}

impl Owners {
    fn has(&self, block: u64) -> bool {
        self.owned.get((block / 64) as usize).is_some_and(|w| w >> (block % 64) & 1 == 1)
    }

    /// False if that is behind the end.
    fn add(&mut self, block: u64, shared: bool) -> bool {
        let first = !self.has(block);
        let Some(word) = self.owned.get_mut((block / 64) as usize) else { return false };
        if first {
            *word |= 1 << (block % 64);
        } else {
            *self.more.entry(block).or_default() += 1;
        }
        if !shared && !first {
            self.unmarked.insert(block);
        }
        true
    }
}

/// What lies over a layer, as a layer counts it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Children {
    count: u64,
    names: u64,
}

impl Children {
    fn join(&mut self, name: u64) {
        self.count += 1;
        self.names ^= name;
    }
}

struct Checker<'s> {
    store: &'s Store,
    found: Check,
    owners: Owners,
    /// Maps in segments.
    ids: BTreeSet<u64>,
    /// Layers below objects, and their pools.
    layers: BTreeMap<u64, i64>,
    /// What lies directly over each of them.
    children: BTreeMap<u64, Children>,
    /// Names of objects over layers, as far as these have records of their own.
    names: BTreeSet<u64>,
    /// How many objects have an omap, and do they all know that others may.
    omaps: BTreeMap<u64, (u64, bool)>,
    stored: u64,
    /// Stored and allocated bytes by pool.
    pools: BTreeMap<i64, (u64, u64)>,
    with_data: bool,
}

/// Checks everything. `with_data`: the data's checksums too, which takes reading it all.
///
/// # Errors
/// [`StoreError::Io`] and others that keep the check from going on; what is merely wrong is
/// among the problems.
pub fn check(store: &Store, with_data: bool) -> Result<Check> {
    let blocks = store.alloc().blocks();
    let mut c = Checker {
        store,
        found: Check { notes: store.notes.clone(), ..Check::default() },
        owners: Owners {
            owned: vec![0; blocks.div_ceil(64) as usize],
            more: BTreeMap::new(),
            unmarked: BTreeSet::new(),
        },
        ids: BTreeSet::new(),
        layers: BTreeMap::new(),
        children: BTreeMap::new(),
        names: BTreeSet::new(),
        omaps: BTreeMap::new(),
        stored: 0,
        pools: BTreeMap::new(),
        with_data,
    };
    c.tree();
    if c.found.count > 0 {
        // What is built on a damaged tree would only repeat it.
        return Ok(c.found);
    }
    for_each_object(store, |o| c.object(o))?;
    c.layers()?;
    c.segments()?;
    c.omap_ids()?;
    c.omap_owners()?;
    c.references()?;
    c.allocation(blocks);
    c.counters();
    c.logs()?;
    Ok(c.found)
}

impl Checker<'_> {
    fn tree(&mut self) {
        let c = self.store.meta.tree().check();
        self.found.metadata_pages = c.pages;
        for p in c.problems {
            self.found.problem(format!("metadata at {}: {}", p.at, p.what));
        }
    }

    fn object(&mut self, name: &HObject) -> Result<()> {
        self.found.objects += 1;
        let Some(o) = self.store.onode(name)? else {
            self.found.problem(format!("{name} is listed but cannot be found"));
            return Ok(());
        };
        if o.omap != 0 {
            let owners = self.omaps.entry(o.omap).or_insert((0, true));
            owners.0 += 1;
            owners.1 &= o.omap_shared;
        }
        if !o.attrs.is_sorted_by(|a, b| a.0 < b.0) {
            self.found.problem(format!("attributes of {name} are out of order"));
        }
        let (mut mapped, mut allocated, mut compressed) = (0, 0, 0);
        let mut add = |usage: Usage| {
            (mapped, allocated) = (mapped + usage.blocks, allocated + usage.allocated);
            compressed += usage.compressed;
        };
        self.chain(name, &o)?;
        match &o.inline {
            Some(seg) => {
                add(seg.usage());
                let who = name.to_string();
                self.owned(&who, pool_of(name), o.shared, seg);
                seg.mapped(0, SEGMENT_BLOCKS)
                    .for_each(|(at, piece)| self.content(name, o.size, at, &piece));
            }
            None => {
                self.map(&name.to_string(), pool_of(name), o.id, o.base, o.own, o.shared)?;
                for n in maps::numbers(self.store, &o, 0, u32::MAX)? {
                    let view = View::of(self.store, &o, n, WHOLE)?;
                    add(view.usage());
                    if o.sums.is_some_and(|kind| view.has_other_sums(kind)) {
                        self.found.problem(format!(
                            "{name} has checksums of another kind than its record says"
                        ));
                    }
                    let base = u64::from(n) * SEGMENT_BLOCKS;
                    view.each(|at, piece| self.content(name, o.size, base + at, &piece));
                }
            }
        }
        if o.compressed.is_some_and(|n| n != compressed) {
            self.found.problem(format!(
                "{name} has {compressed} compressed blocks, its record says otherwise"
            ));
        }
        if mapped != o.blocks || allocated != o.allocated {
            self.found.problem(format!(
                "{name} has {mapped} blocks mapped and {allocated} allocated, its record says {} \
                    and {}",
                o.blocks, o.allocated
            ));
        }
        let stored = o.stored();
        self.stored += stored;
        self.pools.entry(pool_of(name)).or_default().0 += stored;
        Ok(())
    }

    /// Notes which layers are below an object.
    fn chain(&mut self, name: &HObject, o: &Onode) -> Result<()> {
        if o.base == 0 {
            return Ok(());
        }
        let known = match o.told {
            true => self.store.stored_named(o.name)?,
            false => self.store.stored_layer(o.base)?.and_then(|l| l.key_of(o.name)),
        };
        if o.inline.is_some() || known.as_deref() != Some(&keys::object(name)) {
            self.found.problem(format!("{name} is not what its layer knows it by"));
        }
        if o.told {
            self.names.insert(o.name);
        }
        if o.depth != 0
            && maps::chain(self.store, o.base).try_fold(0, |n, l| l.map(|_| n + 1))? > o.depth
        {
            self.found.problem(format!("{name} lies over more than {} layers", o.depth));
        }
        self.children.entry(o.base).or_default().join(o.name);
        let (mut at, pool) = (o.base, pool_of(name));
        while at != 0 && self.layers.insert(at, pool).is_none() {
            let Some(l) = self.store.stored_layer(at)? else {
                self.found.problem(format!("layer {at}, below {name}, is missing"));
                break;
            };
            if l.base != 0 {
                self.children.entry(l.base).or_default().join(at);
            }
            at = l.base;
        }
        Ok(())
    }

    /// The records of one map and what they own.
    fn map(
        &mut self,
        who: &str,
        pool: i64,
        map: u64,
        base: u64,
        own: u64,
        shared: bool,
    ) -> Result<()> {
        if !self.ids.insert(map) {
            self.found.problem(format!("{who} has the map {map} of another one"));
        }
        let mut numbers = BTreeSet::new();
        self.store.stored_segments(map, 0, u32::MAX, &mut numbers)?;
        for n in numbers {
            let Some(seg) = self.store.segment(map, n)? else { continue };
            if seg.lies_over() != (base != 0) || base != 0 && own & own_bit(n) == 0 {
                self.found.problem(format!("segment {n} of {who} does not lie where it should"));
            }
            self.owned(who, pool, shared, &seg);
        }
        Ok(())
    }

    /// Layers are below something, and know below what.
    fn layers(&mut self) -> Result<()> {
        let layers = [Some(&self.store.active), self.store.frozen.as_ref().map(|f| &*f.overlay)];
        let mut names: BTreeSet<u64> =
            layers.into_iter().flatten().flat_map(|o| o.layers.keys().copied()).collect();
        let mut named: BTreeSet<u64> =
            layers.into_iter().flatten().flat_map(|o| o.named.keys().copied()).collect();
        for (tag, all) in [(b'Y', &mut names), (b'N', &mut named)] {
            for pair in self.store.meta.range(&[tag], &[tag + 1]) {
                all.extend(id_of(&pair?.0));
            }
        }
        for name in names {
            let Some(l) = self.store.stored_layer(name)? else { continue };
            let Some(pool) = self.layers.get(&name).copied() else {
                self.found.problem(format!("layer {name} is below no object"));
                continue;
            };
            self.map(&format!("layer {name}"), pool, l.map, l.base, l.own, l.shared)?;
            let is = self.children.get(&name).copied().unwrap_or_default();
            if is != (Children { count: l.children, names: l.names }) || is.count < 2 {
                self.found.problem(format!(
                    "layer {name} is below {}, it counts {}",
                    is.count, l.children
                ));
            }
        }
        for name in named {
            if self.store.stored_named(name)?.is_some() && !self.names.contains(&name) {
                self.found.problem(format!("nothing has the name {name}"));
            }
        }
        Ok(())
    }

    /// Notes who owns what a record maps.
    fn owned(&mut self, who: &str, pool: i64, shared: bool, seg: &Segment) {
        let blocks = self.store.alloc().blocks();
        for run in seg.device_runs() {
            if run.start.checked_add(run.len).is_none_or(|end| end > blocks) {
                self.found.problem(format!(
                    "{who} refers to blocks {}+{} behind the end",
                    run.start, run.len
                ));
                return;
            }
            for b in run.start..run.start + run.len {
                let first = !self.owners.has(b);
                self.owners.add(b, shared);
                if first {
                    self.pools.entry(pool).or_default().1 += BLOCK;
                }
            }
        }
    }

    /// Data of an object from one of its blocks on.
    fn content(&mut self, name: &HObject, size: u64, block: u64, piece: &Piece<'_>) {
        let offset = block * BLOCK;
        let end = offset + piece.len() * BLOCK;
        if end > size.next_multiple_of(BLOCK) {
            self.found.problem(format!("{name} has blocks up to {end}, but its size is {size}"));
        }
        if !self.with_data {
            return;
        }
        match self.store.read_piece(name, offset, piece) {
            Ok(data) => {
                self.found.data += data.len() as u64;
                let kept = size.saturating_sub(offset).min(data.len() as u64) as usize;
                if data.get(kept..).is_some_and(|rest| rest.iter().any(|b| *b != 0)) {
                    self.found.problem(format!("{name} has bytes behind its end"));
                }
            }
            Err(StoreError::Checksum { offset, .. }) => {
                self.found
                    .problem(format!("{name} does not match its checksum at offset {offset}"));
            }
            Err(e) => self.found.problem(format!("{name} cannot be read at offset {offset}: {e}")),
        }
    }

    /// Segments belong to objects or layers.
    fn segments(&mut self) -> Result<()> {
        let (mut from, until) = (vec![b'S'], vec![b'S' + 1]);
        while let Some(pair) = self.store.meta.range(&from, &until).next() {
            let (key, _) = pair?;
            let Some(id) = id_of(&key) else {
                return Err(StoreError::corrupt("segment key too short"));
            };
            // Removed since the checkpoint, perhaps.
            let mut numbers = BTreeSet::new();
            if !self.ids.contains(&id) {
                self.store.stored_segments(id, 0, u32::MAX, &mut numbers)?;
            }
            for n in numbers {
                if self.store.segment(id, n)?.is_some() {
                    self.found.problem(format!(
                        "segment {n} of onode {id} belongs to no object or layer"
                    ));
                }
            }
            from = keys::prefix_end(&keys::segment_prefix(id));
        }
        Ok(())
    }

    /// Omap pairs and headers belong to objects, or await deletion.
    fn omap_ids(&mut self) -> Result<()> {
        let layers = [Some(&self.store.active), self.store.frozen.as_ref().map(|f| &*f.overlay)];
        let mut dead: BTreeSet<u64> =
            layers.into_iter().flatten().flat_map(|o| o.dead.iter().copied()).collect();
        for pair in self.store.meta.range(b"D", b"E") {
            dead.extend(id_of(&pair?.0));
        }
        for tag in [b'P', b'H'] {
            let (mut from, until) = (vec![tag], vec![tag + 1]);
            while let Some(pair) = self.store.meta.range(&from, &until).next() {
                let (key, _) = pair?;
                let Some(id) = id_of(&key) else {
                    return Err(StoreError::corrupt("omap key too short"));
                };
                if !self.omaps.contains_key(&id) && !dead.contains(&id) {
                    self.found.problem(format!("omap {id} belongs to no object"));
                }
                let mut prefix = keys::omap(id, &[]);
                prefix[0] = tag;
                from = keys::prefix_end(&prefix);
            }
        }
        Ok(())
    }

    /// Omaps have as many owners as are counted.
    fn omap_owners(&mut self) -> Result<()> {
        let layers = [Some(&self.store.active), self.store.frozen.as_ref().map(|f| &*f.overlay)];
        let mut ids: BTreeSet<u64> =
            layers.into_iter().flatten().flat_map(|o| o.omap_owners.keys().copied()).collect();
        for pair in self.store.meta.range(b"G", b"H") {
            ids.extend(id_of(&pair?.0));
        }
        ids.extend(self.omaps.iter().filter(|(_, (n, _))| *n > 1).map(|(id, _)| *id));
        for id in ids {
            let (is, marked) = self.omaps.get(&id).copied().unwrap_or((0, true));
            let says = self.store.stored_omap_owners(id)?;
            if is.saturating_sub(1) != says {
                self.found.problem(format!(
                    "omap {id} is of {is} objects, {says} more than one are counted"
                ));
            }
            if is > 1 && !marked {
                self.found.problem(format!(
                    "omap {id} is of several objects, one of which does not know"
                ));
            }
        }
        Ok(())
    }

    fn references(&mut self) -> Result<()> {
        let mut chunks: BTreeSet<u64> = BTreeSet::new();
        for pair in self.store.meta.range(b"R", b"S") {
            chunks.extend(id_of(&pair?.0));
        }
        let layers = [Some(&self.store.active), self.store.frozen.as_ref().map(|f| &*f.overlay)];
        chunks.extend(layers.into_iter().flatten().flat_map(|o| o.refs.keys().copied()));
        let mut counted: BTreeMap<u64, u32> = BTreeMap::new();
        for chunk in chunks {
            if let Some(refs) = self.store.refs(chunk)? {
                for (first, len, n) in refs.shared() {
                    counted.extend((first..first + len).map(|b| (chunk * CHUNK + b, n)));
                }
            }
        }
        let all: BTreeSet<u64> = counted.keys().chain(self.owners.more.keys()).copied().collect();
        for b in all {
            let (is, says) = (
                self.owners.more.get(&b).copied().unwrap_or_default(),
                counted.get(&b).copied().unwrap_or_default(),
            );
            if is != says {
                self.found
                    .problem(format!("block {b} has {is} further owners, its count says {says}"));
            }
        }
        for b in std::mem::take(&mut self.owners.unmarked) {
            self.found.problem(format!("block {b} has several owners, one of which does not know"));
        }
        Ok(())
    }

    fn allocation(&mut self, blocks: u64) {
        let freed: BTreeSet<u64> =
            self.store.held_back().into_iter().flat_map(|r| r.start..r.start + r.len).collect();
        let store = self.store;
        let alloc = store.alloc();
        for b in 0..blocks {
            match (self.owners.has(b), alloc.holds_data(b)) {
                (true, false) => {
                    self.found.problem(format!("block {b} holds data but is not allocated"))
                }
                (false, true) if !freed.contains(&b) => {
                    self.found
                        .problem(format!("block {b} is allocated but holds nothing (leaked)"));
                }
                _ => {}
            }
        }
    }

    fn counters(&mut self) {
        let c = self.store.counters;
        if c.objects != self.found.objects || c.stored != self.stored {
            let what = format!(
                "counters say {} objects of {} bytes, there are {} of {}",
                c.objects, c.stored, self.found.objects, self.stored
            );
            self.found.problem(what);
        }
        let told: BTreeMap<i64, (u64, u64)> =
            self.store.pool_space().map(|(p, s)| (p, (s.stored, s.allocated))).collect();
        self.pools.retain(|_, s| *s != (0, 0));
        let pools: BTreeSet<i64> = told.keys().chain(self.pools.keys()).copied().collect();
        for pool in pools {
            let says = told.get(&pool).copied().unwrap_or_default();
            let is = self.pools.get(&pool).copied().unwrap_or_default();
            if says != is {
                self.found.problem(format!(
                    "counters say that pool {pool} has {} bytes in {} of space, it has {} in {}",
                    says.0, says.1, is.0, is.1
                ));
            }
        }
    }

    fn logs(&mut self) -> Result<()> {
        for pg in self.store.logged_pgs()? {
            self.found.logs += 1;
            let entries = self.store.log_entries(pg)?;
            if !entries.is_sorted_by(|a, b| a.0 < b.0) {
                self.found.problem(format!("the log of PG {pg} is out of order"));
            }
        }
        Ok(())
    }
}

/// The number behind the first byte of a key.
fn id_of(key: &[u8]) -> Option<u64> {
    key.get(1..9)?.first_chunk::<8>().map(|b| u64::from_be_bytes(*b))
}

impl Store {
    /// PGs with a log.
    ///
    /// # Errors
    /// Those of reading metadata.
    pub fn logged_pgs(&self) -> Result<Vec<PgId>> {
        let mut pgs: BTreeSet<PgId> = BTreeSet::new();
        let (mut from, until) = (vec![b'L'], vec![b'L' + 1]);
        while let Some(pair) = self.meta.range(&from, &until).next() {
            let pg = keys::log_pg(&pair?.0)?;
            pgs.insert(pg);
            from = keys::prefix_end(&keys::log_prefix(pg));
        }
        let layers = [Some(&self.active), self.frozen.as_ref().map(|f| &*f.overlay)];
        pgs.extend(layers.into_iter().flatten().flat_map(|o| o.logs.keys().copied()));
        let mut all = Vec::new();
        for pg in pgs {
            if !self.log_entries(pg)?.is_empty() {
                all.push(pg);
            }
        }
        Ok(all)
    }
}
