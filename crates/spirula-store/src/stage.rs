//! Staging: works out everything a transaction changes before any of it is applied.
//!
//! Space is taken, partial blocks are read and merged, checksums computed and the journal
//! record written here; on any error [`Stage::abort`] gives the space back and nothing has
//! happened. [`Stage::commit`] cannot fail.

mod clone;
mod compact;
mod data;
mod layers;
mod omap;

use crate::alloc::{BLOCK, PhysRun};
use crate::commit::Record;
use crate::compress::PoolOptions;
use crate::error::{Result, StoreError};
use crate::gone::Gone;
use crate::journal::{self, RECORD_HEADER};
use crate::keys::{self, KEY_MAX};
use crate::layer::Layer;
use crate::omaps::{Copies, Pairs};
use crate::onode::{Onode, SEGMENT_BLOCKS};
use crate::overlay::Counters;
use crate::pack::Packed;
use crate::redo::RedoWriter;
use crate::refs::Refs;
use crate::segment::Segment;
use crate::store::{JOURNALED_PAYLOAD, Store};
use bytes::Bytes;
use spirula_types::HObject;
use spirula_types::limits::{self, ATTRS_STORED_MAX, Excess};
use spirula_types::transaction::{MetaOp, ObjectOp, ObjectUpdate, Transaction};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest object, bytes: segment numbers are 32 bits.
const OBJECT_MAX: u64 = SEGMENT_BLOCKS * BLOCK * u32::MAX as u64;

/// Places in a pool's changes of space, in the order of `PoolSpace`'s fields.
mod field {
    pub const STORED: usize = 0;
    pub const ALLOCATED: usize = 1;
    pub const COMPRESSED: usize = 2;
    pub const COMPRESSED_ALLOCATED: usize = 3;
    pub const COMPRESSED_ORIGINAL: usize = 4;
}

struct StagedHead {
    pool: i64,
    /// It was not there, and is made from another object: nobody asks for it soon.
    quiet: bool,
    /// `None`: removed, or never there.
    now: Option<Onode>,
    before: Option<Arc<Onode>>,
}

/// A transaction being worked out.
pub(crate) struct Stage<'s> {
    pub(crate) s: &'s mut Store,
    seq: u64,
    redo: RedoWriter,
    /// Boxed: a tree node has room for eleven.
    heads: BTreeMap<Bytes, Box<StagedHead>>,
    segments: BTreeMap<(u64, u32), Option<Arc<Segment>>>,
    layers: BTreeMap<u64, Option<Arc<Layer>>>,
    /// Keys of objects by their names.
    named: BTreeMap<u64, Option<Bytes>>,
    refs: BTreeMap<u64, Refs>,
    /// Pool of the object being changed, how its data is to be stored, and what that
    /// changed so far in the space of pools.
    pool: i64,
    options: PoolOptions,
    /// What was compressed for it beforehand.
    pub(crate) packed: Packed,
    space: Vec<(i64, [i64; 5])>,
    omap: Pairs,
    /// Omaps that become copies of others.
    copies: Copies,
    /// Bytes of space that the next checkpoint may need for them.
    copying: u64,
    /// Ranges of keys removed; what `omap` has in them was set afterwards.
    gone: Gone,
    omap_headers: BTreeMap<u64, Bytes>,
    /// Owners of omaps beyond the first.
    omap_owners: BTreeMap<u64, u64>,
    dead: Vec<u64>,
    taken: Vec<PhysRun>,
    /// Blocks taken for what goes beside the journal.
    pub(crate) beside: Vec<PhysRun>,
    freed: Vec<PhysRun>,
    pub(crate) pieces: Vec<(u64, Bytes)>,
    counters: Counters,
    reserve: u64,
    /// It makes objects or lets them grow, in data or metadata.
    adds: bool,
    /// It gives objects other names.
    moves: bool,
    /// Changes that are no object's.
    meta_entries: usize,
    /// Bytes of space that the next checkpoint may need for it, where that is much.
    books: u64,
    /// The finished journal record, and whether payload goes straight to its blocks.
    pub(crate) record: (Vec<u8>, bool),
}

impl<'s> Stage<'s> {
    pub fn new(s: &'s mut Store, txn: &Transaction) -> Self {
        let grows = |op: &ObjectOp| {
            matches!(
                op,
                ObjectOp::Write { .. } | ObjectOp::CloneFrom(_) | ObjectOp::CloneRange { .. }
            )
        };
        // Of an object that gets another name no more than attributes changes.
        let updates =
            || txn.objects.iter().enumerate().filter(|(n, _)| moved(&txn.objects, *n).is_none());
        let adds_data = updates().flat_map(|(_, u)| &u.ops).any(grows);
        let reserve = if adds_data { s.reserve() + s.booked_blocks() } else { 0 };
        let adds = updates().any(|(_, u)| adds(&u.ops));
        let (seq, counters) = (s.seq + 1, s.counters);
        Self {
            s,
            seq,
            redo: RedoWriter::new(),
            heads: BTreeMap::new(),
            segments: BTreeMap::new(),
            layers: BTreeMap::new(),
            named: BTreeMap::new(),
            refs: BTreeMap::new(),
            pool: 0,
            options: PoolOptions::default(),
            packed: Packed::default(),
            space: Vec::new(),
            omap: BTreeMap::new(),
            copies: Copies::default(),
            copying: 0,
            gone: Gone::default(),
            omap_headers: BTreeMap::new(),
            omap_owners: BTreeMap::new(),
            dead: Vec::new(),
            taken: Vec::new(),
            beside: Vec::new(),
            freed: Vec::new(),
            pieces: Vec::new(),
            counters,
            reserve,
            adds,
            moves: false,
            meta_entries: txn.meta.len(),
            books: 0,
            record: (Vec::new(), false),
        }
    }

    /// Works everything out.
    pub fn run(&mut self, txn: &Transaction) -> Result<()> {
        if !planted!(LimitsIgnored) {
            txn.check()?;
        }
        self.needs_metadata()?;
        for (n, update) in txn.objects.iter().enumerate() {
            match moved(&txn.objects, n) {
                // What follows it finds nothing to remove.
                Some(from) => {
                    self.move_from(&update.object, from)?;
                    self.update(&update.object, update.ops.get(1..).unwrap_or_default())?;
                }
                None => self.update(&update.object, &update.ops)?,
            }
        }
        for op in &txn.meta {
            self.meta(op)?;
        }
        self.finish()
    }

    /// Gives back what was taken.
    pub fn abort(self) {
        for (start, _) in &self.pieces {
            self.s.pending.remove(start);
        }
        for run in self.taken.iter().chain(&self.beside) {
            if planted!(AbortKeepsSpace) {
                continue;
            }
            assert!(self.s.alloc().mark_free(*run), "staged blocks {run:?} were not taken");
        }
    }

    /// Applies what [`Stage::run`] worked out and queues it. Returns the transaction's number.
    pub fn commit(self, txn: &Transaction) -> u64 {
        let s = self.s;
        let (redo, direct) = self.record;
        let record = Record { seq: self.seq, redo, pieces: self.pieces, direct };
        for (key, head) in self.heads {
            let onode = head.now.map(Arc::new);
            let cost = key.len() + 96 + onode.as_ref().map_or(0, |o| o.cost());
            if head.quiet {
                s.heads.get_mut().refresh(&key, &onode, cost);
            } else {
                s.heads.get_mut().insert(&key, onode.clone(), cost);
            }
            if planted!(CachedRecordFreed)
                && !head.quiet
                && s.heads.borrow_mut().get(&key).is_none()
            {
                continue;
            }
            s.active.put_head(key, onode);
        }
        for ((id, seg), value) in self.segments {
            let cost = 96 + value.as_ref().map_or(0, |v| v.cost());
            s.segments.get_mut().refresh(&(id, seg), &value, cost);
            s.active.put_segment(id, seg, value);
        }
        for (name, layer) in self.layers {
            s.put_layer(name, layer);
        }
        for (name, key) in self.named {
            s.active.put_named(name, key);
        }
        for (chunk, refs) in self.refs {
            s.put_refs(chunk, refs);
        }
        for (pool, by) in &self.space {
            let space = s.pools.get(pool).copied().unwrap_or_default().changed(by);
            s.pools.insert(*pool, space);
            s.active.put_pool(*pool, space);
        }
        for (new, from) in self.copies.iter() {
            s.active.copy_omap(new, from);
        }
        // Whatever is in a range now was set afterwards.
        for (id, first, last) in self.gone.iter() {
            s.active.remove_omap_range(id, first, last);
        }
        for ((id, key), value) in self.omap {
            s.active.put_omap(id, key, value);
        }
        for (id, value) in self.omap_headers {
            s.active.put_omap_header(id, Some(value));
        }
        for (id, more) in self.omap_owners {
            s.active.put_omap_owners(id, more);
        }
        for id in self.dead {
            s.active.kill_omap(id);
        }
        for op in &txn.meta {
            s.apply_meta(op);
        }
        for run in self.freed {
            s.alloc().touch(run);
            s.freed.push_back((self.seq, run));
        }
        s.beside.extend(self.beside.iter().map(|run| (self.seq, *run)));
        if self.books > 0 {
            s.booked.push_back((self.seq, self.books));
        }
        for (start, _) in &record.pieces {
            s.pending_order.push_back((self.seq, *start));
        }
        s.counters = self.counters;
        s.seq = self.seq;
        s.enqueue(record);
        self.seq
    }

    /// Refuses what adds something where metadata has little room left.
    fn needs_metadata(&self) -> Result<()> {
        match self.adds && self.s.shared.meta_short() {
            true => Err(StoreError::NoSpace { needed: BLOCK, available: 0 }),
            false => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<()> {
        for (key, head) in &self.heads {
            if head.now.is_none() && head.before.is_none() {
                continue;
            }
            if !(planted!(MovedTwice) && self.moves && head.now.is_none()) {
                self.redo.head(key, head.now.as_ref());
            }
            let now = head.now.as_ref().map_or(0, Onode::stored);
            let before = head.before.as_ref().map_or(0, |b| b.stored());
            self.counters.stored = (self.counters.stored + now).saturating_sub(before);
            if now != before {
                space_of(&mut self.space, head.pool)[field::STORED] += now as i64 - before as i64;
            }
            self.counters.objects += u64::from(head.now.is_some());
            self.counters.objects -= u64::from(head.before.is_some()).min(self.counters.objects);
        }
        self.heads.retain(|_, h| h.now.is_some() || h.before.is_some());
        for (name, layer) in &self.layers {
            self.redo.layer(*name, layer.as_deref());
        }
        for (name, key) in &self.named {
            self.redo.named(*name, key.as_deref());
        }
        for (id, more) in &self.omap_owners {
            self.redo.omap_owners(*id, *more);
        }
        let data: usize = self.pieces.iter().map(|(_, d)| d.len()).sum();
        let limit = self.s.record_max();
        self.space.retain(|(_, by)| by.iter().any(|n| *n != 0));
        // At most; what is said of blocks and pools below included.
        let most = self.redo.len()
            + 18 * (self.taken.len() + self.freed.len())
            + 64 * (self.space.len() + 1);
        let large = most > self.s.journaled_changes();
        let direct = large || data > JOURNALED_PAYLOAD.min(limit as usize / 2);
        for run in &self.taken {
            self.redo.taken(*run, !direct);
        }
        for run in &self.freed {
            self.redo.freed(*run);
        }
        for (pool, by) in &self.space {
            self.redo.pool(*pool, &self.s.pools.get(pool).copied().unwrap_or_default().changed(by));
        }
        self.redo.counters(&self.counters);
        let redo = std::mem::take(&mut self.redo).into_vec();
        let changes = redo.len();
        let redo = if large { self.put_beside(redo, self.adds)? } else { redo };
        let size = journal::frame_size(RECORD_HEADER + redo.len() + if direct { 0 } else { data });
        if size > limit {
            return Err(StoreError::TooLarge { what: "transaction", size, limit });
        }
        if changes > self.s.large_redo() || self.copying > 0 {
            // What only removes is taken while it is likely to fit.
            let maps = [
                self.heads.len(),
                self.segments.len(),
                self.refs.len(),
                self.omap.len(),
                self.meta_entries,
            ];
            let entries = maps.iter().sum::<usize>() as u64;
            let large = changes > self.s.large_redo();
            let own = if large {
                self.s.meta.need(changes as u64, entries, self.s.overlay_bound())
            } else {
                0
            };
            let needed = own + self.copying;
            let available = self.s.metadata_room();
            // A name takes no room to speak of, unless it has attributes without end.
            if (self.adds || self.moves) && needed > available {
                return Err(StoreError::NoSpace { needed, available });
            }
            self.books = if planted!(RoomNotBooked) { 0 } else { needed.min(available) };
        }
        self.record = (redo, direct);
        Ok(())
    }

    fn meta(&mut self, op: &MetaOp) -> Result<()> {
        let r = &mut self.redo;
        match op {
            MetaOp::Set { key, value } => {
                check_key("meta key", key)?;
                r.meta(key, Some(value));
            }
            MetaOp::Remove { key } => r.meta(key, None),
            MetaOp::LogAppend { pg, version, entry } => r.log_append(*pg, *version, entry),
            MetaOp::LogTrim { pg, to } => r.log_trim(*pg, *to),
            MetaOp::LogRewind { pg, to } => r.log_rewind(*pg, *to),
            MetaOp::LogRemove { pg } => r.log_remove(*pg),
        }
        Ok(())
    }

    fn update(&mut self, object: &HObject, ops: &[ObjectOp]) -> Result<()> {
        let key = Bytes::from(keys::object(object));
        check_key("object name", &key)?;
        self.pool = pool_of(object);
        self.options = self.s.pool_options.get(&self.pool).copied().unwrap_or_default();
        let mut head = match self.heads.remove(&key) {
            Some(h) => h,
            None => {
                let made = matches!(ops.first(), Some(ObjectOp::CloneFrom(_)));
                let before = if made { self.s.head_to_be(&key)? } else { self.s.head(&key)? };
                let quiet = made && before.is_none();
                Box::new(StagedHead {
                    pool: self.pool,
                    quiet,
                    now: before.as_deref().cloned(),
                    before,
                })
            }
        };
        for op in ops {
            self.op(object, &mut head.now, op)?;
        }
        if let Some(o) =
            head.now.as_ref().filter(|_| ops.iter().any(|op| matches!(op, ObjectOp::SetAttrs(_))))
        {
            let size = o.attrs.iter().map(|(k, v)| limits::pair_size(k, v)).sum();
            limits::check("attributes", size, ATTRS_STORED_MAX)?;
        }
        self.heads.insert(key, head);
        Ok(())
    }

    fn op(&mut self, object: &HObject, slot: &mut Option<Onode>, op: &ObjectOp) -> Result<()> {
        // Operations that have no effect on what is not there.
        let existing = match (op, slot.as_mut()) {
            (ObjectOp::Remove, _) => {
                if let Some(o) = slot.take() {
                    self.remove(o)?;
                }
                return Ok(());
            }
            (ObjectOp::CloneFrom(from), _) => return self.clone_from(object, slot, from),
            (ObjectOp::CloneRange { from, offset, length, to }, _) => {
                return self.clone_range(object, slot, from, (*offset, *length), *to);
            }
            (
                ObjectOp::RmAttr(_)
                | ObjectOp::ClearAttrs
                | ObjectOp::OmapRm(_)
                | ObjectOp::OmapRmRange { .. }
                | ObjectOp::OmapClear,
                None,
            ) => return Ok(()),
            (_, existing) => existing,
        };
        let o = match existing {
            Some(o) => o,
            None => slot.insert(Onode::new(take_id(&mut self.counters))),
        };
        if matches!(
            op,
            ObjectOp::OmapSet(_)
                | ObjectOp::OmapRm(_)
                | ObjectOp::OmapRmRange { .. }
                | ObjectOp::OmapSetHeader(_)
        ) {
            self.own_omap(o)?;
        }
        match op {
            ObjectOp::Touch
            | ObjectOp::Remove
            | ObjectOp::CloneFrom(_)
            | ObjectOp::CloneRange { .. } => {}
            ObjectOp::AllocHint(flags) => o.hints = *flags,
            ObjectOp::Write { offset, data } => self.write(object, o, *offset, data)?,
            ObjectOp::Zero { offset, length } => self.zero(object, o, *offset, *length)?,
            ObjectOp::Truncate { size } => self.truncate(object, o, *size)?,
            ObjectOp::SetAttrs(attrs) => attrs.iter().for_each(|(k, v)| o.set_attr(k, v)),
            ObjectOp::RmAttr(_) | ObjectOp::ClearAttrs if planted!(AttributeStays) => {}
            ObjectOp::RmAttr(name) => o.attrs.retain(|(k, _)| k != name),
            ObjectOp::ClearAttrs => o.attrs.clear(),
            ObjectOp::OmapSet(pairs) => {
                let id = self.omap_id(o);
                for (k, v) in pairs {
                    self.omap_set(id, k, v)?;
                }
            }
            ObjectOp::OmapRm(keys) => keys.iter().for_each(|k| self.omap_rm(o.omap, k)),
            ObjectOp::OmapRmRange { first, last } => self.omap_rm_range(o.omap, first, last),
            ObjectOp::OmapClear => self.omap_clear(o)?,
            ObjectOp::OmapSetHeader(header) => {
                let id = self.omap_id(o);
                self.redo.omap_header(id, header);
                self.omap_headers.insert(id, Bytes::copy_from_slice(header));
            }
        }
        Ok(())
    }

    // ----- omap

    fn omap_id(&mut self, o: &mut Onode) -> u64 {
        if o.omap == 0 {
            o.omap = take_id(&mut self.counters);
        }
        o.omap
    }

    fn omap_set(&mut self, id: u64, key: &Bytes, value: &Bytes) -> Result<()> {
        check_key("omap key", key)?;
        self.redo.omap(id, key, Some(value));
        // Copies, lest a short value pins the message it came in.
        self.omap.insert((id, Bytes::copy_from_slice(key)), Some(Bytes::copy_from_slice(value)));
        Ok(())
    }

    fn omap_rm(&mut self, id: u64, key: &Bytes) {
        if id != 0 && key.len() <= KEY_MAX {
            self.redo.omap(id, key, None);
            self.omap.insert((id, Bytes::copy_from_slice(key)), None);
        }
    }

    /// One entry, however many keys there are.
    fn omap_rm_range(&mut self, id: u64, first: &Bytes, last: &Bytes) {
        if id == 0 || first >= last {
            return;
        }
        self.redo.omap_range_gone(id, first, last);
        let set: Vec<_> = self
            .omap
            .range((id, first.clone())..(id, last.clone()))
            .map(|(k, _)| k.clone())
            .collect();
        set.iter().for_each(|k| drop(self.omap.remove(k)));
        self.gone.add(id, &Bytes::copy_from_slice(first), &Bytes::copy_from_slice(last));
    }

    fn omap_clear(&mut self, o: &mut Onode) -> Result<()> {
        if o.omap != 0 {
            let id = std::mem::take(&mut o.omap);
            if std::mem::take(&mut o.omap_shared) && self.leave_omap(id)? {
                return Ok(());
            }
            self.kill_omap(id);
        }
        Ok(())
    }

    /// Nobody has this omap any more.
    fn kill_omap(&mut self, id: u64) {
        self.redo.omap_dead(id);
        self.dead.push(id);
        // Of one that is still to be copied all stays until then.
        if !self.copies.wants(id) && !self.s.omap_awaits_copy(id) {
            self.copies.forget(id);
            self.omap.retain(|(i, _), _| *i != id);
            self.gone.forget(id);
            self.omap_headers.remove(&id);
        }
    }
}

/// What a transaction changed in the space of one pool so far.
fn space_of(space: &mut Vec<(i64, [i64; 5])>, pool: i64) -> &mut [i64; 5] {
    let at = space.iter().position(|(p, _)| *p == pool).unwrap_or_else(|| {
        space.push((pool, [0; 5]));
        space.len() - 1
    });
    &mut space[at].1
}

/// Where update `n` clones an object that the next one removes, and changes nothing of the clone
/// but attributes: that object. So an erasure-coded pool keeps what it deletes for as long as that
/// may have to be undone, and any pool what a snapshot shows. The object goes on under the other
/// name, and nothing of it is copied: a store without room for metadata takes that as it takes any
/// deletion.
fn moved(updates: &[ObjectUpdate], n: usize) -> Option<&HObject> {
    let (update, next) = (updates.get(n)?, updates.get(n + 1)?);
    let Some((ObjectOp::CloneFrom(from), rest)) = update.ops.split_first() else { return None };
    let attr = |op: &ObjectOp| {
        matches!(op, ObjectOp::SetAttrs(_) | ObjectOp::RmAttr(_) | ObjectOp::ClearAttrs)
    };
    let goes = matches!(next.ops.first(), Some(ObjectOp::Remove))
        && next.object == *from
        && !planted!(DeletionCopies);
    (goes
        && update.object != *from
        && pool_of(from) == pool_of(&update.object)
        && rest.iter().all(attr))
    .then_some(from)
}

/// Does this let an object's metadata grow? What also takes something away (a delete, a cut)
/// may set attributes, too: they are there already.
fn adds(ops: &[ObjectOp]) -> bool {
    let grows = |op: &ObjectOp| {
        matches!(
            op,
            ObjectOp::Write { .. }
                | ObjectOp::CloneFrom(_)
                | ObjectOp::CloneRange { .. }
                | ObjectOp::OmapSet(_)
                | ObjectOp::OmapSetHeader(_)
        )
    };
    let takes = |op: &ObjectOp| {
        matches!(
            op,
            ObjectOp::Remove
                | ObjectOp::Truncate { .. }
                | ObjectOp::Zero { .. }
                | ObjectOp::RmAttr(_)
                | ObjectOp::ClearAttrs
                | ObjectOp::OmapRm(_)
                | ObjectOp::OmapRmRange { .. }
                | ObjectOp::OmapClear
        )
    };
    ops.iter().any(grows) || !ops.iter().any(takes) && !ops.is_empty()
}

impl From<Excess> for StoreError {
    fn from(e: Excess) -> Self {
        Self::TooLarge { what: e.what, size: e.size, limit: e.limit }
    }
}

fn take_id(counters: &mut Counters) -> u64 {
    let id = counters.next_id;
    counters.next_id += 1;
    id
}

/// The pool an object's space counts for: a temporary object's is the one it will move to, and
/// shards with what is kept to undo changes share theirs, as they share blocks.
pub(crate) fn pool_of(object: &HObject) -> i64 {
    spirula_types::pool_of_store(if object.pool < -1 { -2 - object.pool } else { object.pool })
}

fn check_key(what: &'static str, key: &[u8]) -> Result<()> {
    if key.len() > KEY_MAX {
        return Err(StoreError::TooLarge { what, size: key.len() as u64, limit: KEY_MAX as u64 });
    }
    Ok(())
}

fn end_of(offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        Some(end) if end <= OBJECT_MAX => Ok(end),
        end => Err(StoreError::TooLarge {
            what: "object",
            size: end.unwrap_or(u64::MAX),
            limit: OBJECT_MAX,
        }),
    }
}
