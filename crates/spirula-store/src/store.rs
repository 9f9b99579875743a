//! [`Store`]: the engine's state, the way in for transactions, and its housekeeping.

use crate::alloc::{Allocator, BLOCK, PhysRun};
use crate::cache::Cache;
use crate::checkpoint::Job;
use crate::commit::{Item, Record, Shared};
use crate::compress::PoolOptions;
use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use crate::holes::{self, Holes};
use crate::io::Io;
use crate::journal;
use crate::kept::Kept;
use crate::kv::{self, MetaStore, SharedAllocator};
use crate::layer::Layer;
use crate::onode::Onode;
use crate::overlay::{Counters, Overlay};
use crate::pack::Packed;
use crate::paths::Claims;
use crate::pins::Pins;
use crate::refs::Refs;
use crate::room::HostRoom;
use crate::segment::Segment;
use crate::stage::Stage;
use crate::steps::Workers;
use crate::superblock::Identity;
use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::transaction::{MetaOp, Transaction};
use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// Transactions with more payload than this (bytes) write it straight to its blocks.
pub(crate) const JOURNALED_PAYLOAD: usize = 64 << 10;
/// Blocks kept back for transactions that only remove or cut.
const RESERVE_BLOCKS: u64 = 256;
/// Most bytes of redo and payload between owner and devices.
const QUEUE_BYTES: usize = 64 << 20;

/// Of so many blocks, those that only what removes may have.
pub(crate) fn reserve_of(blocks: u64) -> u64 {
    RESERVE_BLOCKS.min(blocks / 32)
}

/// Sizes and budgets.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of data space; used at creation. Rounded down to whole blocks.
    pub size: u64,
    /// Bytes of journal; used at creation. At least 256 KiB.
    pub journal_size: u64,
    /// Memory budget of caches, allocator and overlays, bytes; not kept on disk.
    pub cache_bytes: usize,
    /// Most bytes of data of large reads that are kept in memory, beside `cache_bytes`; 0: none.
    /// Their buffers are of `pool`, and do not count there as long as they are kept. Not kept on
    /// disk.
    pub kept_bytes: usize,
    /// Buffers for large reads and for journal frames.
    pub pool: PayloadPool,
    /// How files and devices are read and written.
    pub io: Io,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let (journal_size, cache_bytes, pool) = (64 << 20, 28 << 20, PayloadPool::new(16 << 20));
        Self { size: 10 << 30, journal_size, cache_bytes, kept_bytes: 0, pool, io: Io::Threads }
    }
}

/// Space, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Data space.
    pub total: u64,
    /// Of it, still to be had by writes.
    pub available: u64,
    /// Of it, allocated to objects (or freed too recently to be reused).
    pub used: u64,
    /// Of it, kept for metadata to come and for what removes: neither used nor to be had.
    pub kept: u64,
    /// Data in objects, without rounding.
    pub stored: u64,
    /// The same, where what clones share counts once; of compressed data it counts for each, as
    /// what it was.
    pub packed: u64,
    /// Number of objects.
    pub objects: u64,
    /// Omap, attributes, logs and maps in the metadata KV.
    pub metadata: u64,
    /// The journal.
    pub journal: u64,
    /// Of journal and metadata, what lies outside the data space.
    pub beside: u64,
    /// What the metadata may take, bytes: all of the device that it is on.
    pub metadata_total: u64,
}

/// Space used by one pool's objects, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// Data in objects, without rounding; what clones share counts for each.
    pub stored: u64,
    /// Device space; what clones share counts once.
    pub allocated: u64,
    /// Compressed data, without rounding.
    pub compressed: u64,
    /// Device space of compressed data.
    pub compressed_allocated: u64,
    /// What that would take uncompressed.
    pub compressed_original: u64,
}

impl PoolSpace {
    /// Data in objects, where what clones share counts once. Clones share whole blocks, and what is
    /// stored of small objects is less than the blocks that they take: the lesser of both.
    fn packed(&self) -> u64 {
        let plain = self.allocated.saturating_sub(self.compressed_allocated);
        self.stored.min(plain.saturating_add(self.compressed_original))
    }

    fn fields(&self) -> [u64; 5] {
        [
            self.stored,
            self.allocated,
            self.compressed,
            self.compressed_allocated,
            self.compressed_original,
        ]
    }

    fn from_fields(
        [stored, allocated, compressed, compressed_allocated, compressed_original]: [u64; 5],
    ) -> Self {
        Self { stored, allocated, compressed, compressed_allocated, compressed_original }
    }

    pub(crate) fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// After a change of each field by so much.
    pub(crate) fn changed(&self, by: &[i64; 5]) -> Self {
        let mut all = self.fields();
        all.iter_mut().zip(by).for_each(|(n, d)| *n = n.saturating_add_signed(*d));
        Self::from_fields(all)
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        self.fields().iter().for_each(|n| out.u64(*n));
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self::from_fields([d.u64()?, d.u64()?, d.u64()?, d.u64()?, d.u64()?]))
    }
}

/// Bytes that were missing, where that is what it failed for.
fn missing(tried: &Result<u64>) -> Option<u64> {
    match tried {
        Err(StoreError::NoSpace { needed, available }) => Some(needed.saturating_sub(*available)),
        _ => None,
    }
}

/// An overlay on its way into the KV.
pub(crate) struct Frozen {
    pub seq: u64,
    pub overlay: Arc<Overlay>,
}

/// Segments met lately, absent ones too, by onode id and number.
pub(crate) type SegmentCache = Cache<(u64, u32), Option<Arc<Segment>>>;

/// Data not yet in the data file.
pub(crate) struct Pending {
    pub seq: u64,
    pub data: Bytes,
}

/// The object store. See the crate's documentation.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) block: Arc<dyn BlockDevice>,
    pub(crate) pool: PayloadPool,
    pub(crate) identity: Identity,
    pub(crate) ring_size: u64,
    pub(crate) active: Overlay,
    pub(crate) frozen: Option<Frozen>,
    /// Current head of objects met lately, absent ones too. By KV key.
    pub(crate) heads: RefCell<Cache<Bytes, Option<Arc<Onode>>>>,
    pub(crate) segments: RefCell<SegmentCache>,
    /// Reference counts met lately, absent ones too, by chunk.
    pub(crate) refs: RefCell<Cache<u64, Option<Arc<Refs>>>>,
    /// Layers of maps met lately, by name.
    pub(crate) layers: RefCell<Cache<u64, Option<Arc<Layer>>>>,
    /// Data of large reads.
    pub(crate) kept: RefCell<Kept>,
    pub(crate) pools: BTreeMap<i64, PoolSpace>,
    pub(crate) pool_options: BTreeMap<i64, PoolOptions>,
    pub(crate) alloc: SharedAllocator,
    pub(crate) counters: Counters,
    /// Newest transaction applied.
    pub(crate) seq: u64,
    /// Newest transaction handed to a checkpoint.
    pub(crate) frozen_seq: u64,
    /// By first block.
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// First blocks of pending data by transaction.
    pub(crate) pending_order: VecDeque<(u64, u64)>,
    /// Freed runs that may not be taken again yet, by transaction.
    pub(crate) freed: VecDeque<(u64, PhysRun)>,
    /// Blocks with changes beside the journal, by transaction: free once a checkpoint that
    /// has it is durable.
    pub(crate) beside: VecDeque<(u64, PhysRun)>,
    /// Bytes of space that checkpoints to come may need for large records, by transaction:
    /// neither data nor other records get them.
    pub(crate) booked: VecDeque<(u64, u64)>,
    /// Journal bytes reserved by transactions not known to be durable.
    pub(crate) journaling: VecDeque<(u64, u64)>,
    pub(crate) journaling_bytes: u64,
    /// Reads under way in other threads.
    pub(crate) pins: RefCell<Pins>,
    /// Memory budget.
    pub(crate) memory_limit: usize,
    pub(crate) room: HostRoom,
    pub(crate) holes: Arc<Holes>,
    pub(crate) workers: Workers,
    /// Harmless damage found at the opening, in words.
    pub(crate) notes: Vec<String>,
    /// Holds the locks on the devices.
    pub(crate) _claims: Claims,
}

impl Store {
    /// Applies `txn` in memory, where reads see it at once, and queues it for the journal.
    /// It is durable when `on_commit` has been called with the returned number or a higher
    /// one. Waits while journal or overlay are full (see [`Store::congested`]), and where what
    /// is missing may be found so for what was freed and a checkpoint.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], [`StoreError::TooLarge`], [`StoreError::NoSource`],
    /// [`StoreError::Checksum`] (of a block to be changed in part), [`StoreError::Io`]: the
    /// transaction has no effect. [`StoreError::Poisoned`] after a failed write or flush.
    pub fn submit(&mut self, txn: impl Borrow<Transaction>) -> Result<u64> {
        self.submit_packed(txn.borrow(), &Packed::default())
    }

    /// The same with what was compressed for the transaction beforehand ([`Store::packing`]).
    ///
    /// # Errors
    /// As [`Store::submit`].
    pub fn submit_packed(&mut self, txn: &Transaction, packed: &Packed) -> Result<u64> {
        self.admit()?;
        let mut tried = self.try_submit(txn, packed);
        // A little may just go back to the host, some milliseconds long.
        if missing(&tried).is_some_and(|bytes| bytes <= holes::STEP * BLOCK) {
            let holes = self.holes.clone();
            let _rest = holes.rest();
            tried = self.try_submit(txn, packed);
        }
        // Space that awaits its release may be enough.
        let freed = self.freed.iter().map(|(_, run)| run.len * BLOCK).sum();
        if freed > 0 && missing(&tried).is_some_and(|bytes| bytes <= freed) {
            let seq = self.seq;
            self.wait(|s| s.written.load(Ordering::Acquire) >= seq);
            self.admit()?;
            tried = self.try_submit(txn, packed);
        }
        // So may be what is beside the journal or booked until a checkpoint, what was deleted since
        // the last one, or waits to be purged.
        if missing(&tried).is_some_and(|bytes| self.may_gain(bytes)) {
            self.gain()?;
            self.admit()?;
            tried = self.try_submit(txn, packed);
        }
        tried
    }

    /// Might a checkpoint find so many bytes of space?
    fn may_gain(&self, bytes: u64) -> bool {
        let waits = self.seq > self.frozen_seq || self.shared.dead.load(Ordering::Acquire) > 0;
        let beside = self.beside.iter().map(|(_, run)| run.len * BLOCK);
        let held: u64 = beside.chain(self.booked.iter().map(|(_, n)| *n)).sum();
        held > 0 && bytes <= held && !planted!(BesideNotAwaited)
            || self.shared.meta_short() && waits
    }

    /// Makes a checkpoint and lets removed omaps be purged, until there is space for
    /// metadata or all is done.
    fn gain(&mut self) -> Result<()> {
        let before = self.frozen_seq;
        self.wait(|s| s.checkpointed.load(Ordering::Acquire) >= before);
        self.shared.check()?;
        self.poll();
        self.freeze(false);
        let seq = self.seq;
        self.wait(|s| {
            s.checkpointed.load(Ordering::Acquire) >= seq
                && (!s.meta_short() || s.dead.load(Ordering::Acquire) == 0)
        });
        Ok(())
    }

    pub(crate) fn try_submit(&mut self, txn: &Transaction, packed: &Packed) -> Result<u64> {
        let mut stage = Stage::new(self, txn);
        stage.packed = packed.clone();
        match stage.run(txn) {
            Ok(()) => Ok(stage.commit(txn)),
            Err(e) => {
                stage.abort();
                Err(e)
            }
        }
    }

    /// Largest journal record, bytes of its frame. What is larger goes beside the journal.
    pub(crate) fn record_max(&self) -> u64 {
        self.ring_size / 4
    }

    /// True when [`Store::submit`] would wait. Poll it before taking in more work.
    pub fn congested(&mut self) -> bool {
        self.poll();
        self.freeze_if_due();
        !self.has_room() || self.shared.queued_bytes() > QUEUE_BYTES
    }

    fn ring_used(&self) -> u64 {
        let tail = self.shared.ring_tail.load(Ordering::Acquire);
        self.shared.ring_head.load(Ordering::Acquire) + self.journaling_bytes - tail
    }

    fn has_room(&self) -> bool {
        let overlay_full = self.frozen.is_some() && self.active.cost > 2 * self.overlay_limit();
        self.ring_used() + self.record_max() <= self.ring_size && !overlay_full
    }

    /// Waits until another transaction may come.
    fn admit(&mut self) -> Result<()> {
        loop {
            self.shared.check()?;
            // Before looking: what happens while we look must not be waited for.
            let durable = self.shared.durable.load(Ordering::Acquire);
            let checkpointed = self.shared.checkpointed.load(Ordering::Acquire);
            self.poll();
            self.freeze_if_due();
            let queue_full = self.shared.queued_bytes() > QUEUE_BYTES;
            if self.has_room() && !queue_full {
                return Ok(());
            }
            self.wait(|s| {
                s.durable.load(Ordering::Acquire) > durable
                    || s.checkpointed.load(Ordering::Acquire) > checkpointed
                    || (queue_full && s.queued_bytes() <= QUEUE_BYTES)
            });
        }
    }

    /// Takes note of what the other threads have done.
    pub(crate) fn poll(&mut self) {
        let durable = self.shared.durable.load(Ordering::Acquire);
        while let Some((_, bytes)) = self.journaling.pop_front_if(|(seq, _)| *seq <= durable) {
            self.journaling_bytes -= bytes;
        }
        let written = self.shared.written.load(Ordering::Acquire);
        while let Some((seq, start)) = self.pending_order.pop_front_if(|(seq, _)| *seq <= written) {
            if self.pending.get(&start).is_some_and(|p| p.seq == seq) {
                self.pending.remove(&start);
            }
        }
        let again = self.pins.get_mut().ended();
        again.into_iter().for_each(|(seq, run)| self.release(seq, run));
        let may = |seq: u64| seq <= written || planted!(FreedReusedEarly);
        while let Some((seq, run)) = self.freed.pop_front_if(|(seq, _)| may(*seq)) {
            self.release(seq, run);
        }
        let checkpointed = self.shared.checkpointed.load(Ordering::Acquire);
        let done = if planted!(BesideReusedEarly) { written } else { checkpointed };
        while let Some((_, run)) = self.beside.pop_front_if(|(seq, _)| *seq <= done) {
            assert!(
                self.alloc().mark_free(run),
                "blocks {run:?} beside the journal were free already"
            );
            self.holes.freed(run, self.room.short());
        }
        while self.booked.pop_front_if(|(seq, _)| *seq <= checkpointed).is_some() {}
        if let Some(done) = self.frozen.take_if(|f| f.seq <= checkpointed) {
            self.shared.discard(done.overlay);
        }
    }

    /// Lets blocks be taken again that transaction `seq` has durably freed, or keeps them for a
    /// read.
    fn release(&mut self, seq: u64, run: PhysRun) {
        if !planted!(ReadUnprotected) && self.pins.get_mut().keep(seq, run) {
            return;
        }
        if !planted!(KeptTooLong) {
            self.kept.get_mut().release(run);
        }
        assert!(self.alloc().mark_free(run), "freed blocks {run:?} were free already");
        self.holes.freed(run, self.room.short());
    }

    /// Blocks that hold nothing but are not free yet: freed, and not durably so or still being
    /// read, or beside the journal.
    pub(crate) fn held_back(&self) -> Vec<PhysRun> {
        let pins = self.pins.borrow();
        self.freed.iter().chain(&self.beside).chain(pins.kept()).map(|(_, run)| *run).collect()
    }

    fn freeze_if_due(&mut self) {
        let due =
            self.active.cost >= self.overlay_limit() || self.ring_used() >= self.ring_size / 3;
        if due && self.frozen.is_none() && self.seq > self.frozen_seq {
            self.freeze(false);
        }
    }

    /// The blocks of the data space.
    pub(crate) fn alloc(&self) -> MutexGuard<'_, Allocator> {
        kv::lock(&self.alloc)
    }

    /// Divides the memory budget. Of 16 parts, 6 are for overlays (one being filled, one on
    /// its way into the KV, and its encoded form, each up to twice [`Store::overlay_limit`])
    /// and 4 for the KV; caches get the rest but for what the allocator takes.
    pub(crate) fn divide_memory(&mut self) {
        let part = self.memory_limit / 16;
        let caches = (6 * part).saturating_sub(self.alloc().memory()).max(part);
        self.heads.get_mut().set_limit(caches / 2);
        self.segments.get_mut().set_limit(caches / 16 * 7);
        self.refs.get_mut().set_limit(caches / 32);
        self.layers.get_mut().set_limit(caches / 32);
    }

    /// An overlay of this size is checkpointed. Less where metadata has little space, of
    /// which several times as much is kept for commits.
    pub(crate) fn overlay_limit(&self) -> usize {
        (self.memory_limit / 16).min((self.meta.size() / 64) as usize)
    }

    /// No overlay becomes larger than this, but for a large record.
    pub(crate) fn overlay_bound(&self) -> usize {
        2 * self.overlay_limit() + self.large_redo()
    }

    /// A record with more than this beside data, bytes, is looked at on its own when it adds
    /// metadata.
    pub(crate) fn large_redo(&self) -> usize {
        (self.record_max().min(1 << 20) as usize).min((self.meta.size() / 64) as usize)
    }

    /// Starts a checkpoint of everything applied so far.
    fn freeze(&mut self, clean: bool) {
        self.divide_memory();
        let next = Overlay { first_new: Some(self.counters.next_id), ..Overlay::default() };
        let overlay = Arc::new(std::mem::replace(&mut self.active, next));
        let held_back = self.held_back();
        if clean && planted!(StaleAllocationMap) {
            self.alloc().take_dirty(Vec::new());
        }
        let job = Job {
            frozen: overlay.clone(),
            seq: self.seq,
            groups: self.alloc().take_dirty(held_back),
            counters: self.counters,
            end: journal::Position::default(),
            clean,
        };
        self.frozen_seq = self.seq;
        self.frozen = Some(Frozen { seq: self.seq, overlay });
        self.shared.push(Item::Checkpoint(Box::new(job)));
    }

    /// Would changes of so many bytes beside data, of so many pairs or keys, be taken now? They are
    /// in memory and beside the journal first, and in the metadata after the next checkpoint.
    pub fn has_room_for(&self, bytes: u64, entries: u64) -> bool {
        let kept = self.reserve() + self.booked_blocks();
        let free = self.alloc().free().saturating_sub(kept) * BLOCK;
        let needed = self.meta.need(bytes, entries, self.overlay_bound());
        // On one device they are beside the journal meanwhile.
        let both = if self.meta.shares(&self.alloc) { needed + bytes } else { needed };
        !self.shared.meta_short() && bytes * 2 <= free && both <= self.metadata_room()
    }

    /// Bytes that are there for a large record in the next checkpoints.
    pub(crate) fn metadata_room(&self) -> u64 {
        let booked: u64 = self.booked.iter().map(|(_, n)| n).sum();
        let slack = self.shared.meta_slack.load(Ordering::Acquire).max(0) as u64;
        (self.meta.room() + slack).saturating_sub(booked)
    }

    /// Blocks of the data space that are booked for large records.
    pub(crate) fn booked_blocks(&self) -> u64 {
        if self.booked.is_empty() || !self.meta.shares(&self.alloc) {
            return 0;
        }
        let booked: u64 = self.booked.iter().map(|(_, n)| n).sum();
        let slack = self.shared.meta_slack.load(Ordering::Acquire).max(0) as u64;
        booked.saturating_sub(slack).div_ceil(BLOCK)
    }

    /// Queues a staged transaction. Part of [`Stage::commit`].
    pub(crate) fn enqueue(&mut self, record: Record) {
        let bytes = journal::frame_size(record.body_len());
        self.journaling.push_back((record.seq, bytes));
        self.journaling_bytes += bytes;
        self.shared.push(Item::Record(record));
    }

    pub(crate) fn apply_meta(&mut self, op: &MetaOp) {
        // Copies, lest a short value pins the message it came in.
        let copy = |b: &Bytes| Bytes::copy_from_slice(b);
        let o = &mut self.active;
        match op {
            MetaOp::Set { key, value } => o.put_meta(copy(key), Some(copy(value))),
            MetaOp::Remove { key } => o.put_meta(copy(key), None),
            MetaOp::LogAppend { pg, version, entry } => o.log_append(*pg, *version, copy(entry)),
            MetaOp::LogTrim { pg, to } => o.log_trim(*pg, *to),
            MetaOp::LogRewind { pg, to } => o.log_rewind(*pg, *to),
            MetaOp::LogRemove { pg } => o.log_remove(*pg),
        }
    }

    /// Blocks that `allocate` must leave alone for a transaction that brings data.
    pub(crate) fn reserve(&self) -> u64 {
        reserve_of(self.alloc().blocks())
    }

    /// Waits until everything submitted is durable.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`].
    pub fn flush(&mut self) -> Result<()> {
        let seq = self.seq;
        self.wait(|s| s.durable.load(Ordering::Acquire) >= seq);
        self.shared.check()?;
        self.poll();
        Ok(())
    }

    /// Brings everything into the KV and stops: the next open has nothing to replay.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`]; what was acknowledged is in the journal all the same.
    pub fn close(mut self) -> Result<()> {
        self.flush()?;
        let before = self.frozen_seq;
        self.wait(|s| s.checkpointed.load(Ordering::Acquire) >= before);
        self.shared.check()?;
        self.poll();
        self.freeze(true);
        while self.step() {}
        self.stop();
        self.shared.check()
    }

    fn stop(&mut self) {
        self.shared.stop();
        self.workers.join();
    }

    /// Number of the newest transaction applied; after an open, of the newest recovered.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    /// Whose store this is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Space and how it is used.
    pub fn statfs(&self) -> Statfs {
        let (blocks, free, metadata) = {
            let alloc = self.alloc();
            (alloc.blocks(), alloc.free(), alloc.in_meta())
        };
        let free = free + self.awaits_note();
        let room = self.room.available(&*self.block).unwrap_or(u64::MAX);
        // Data without metadata is none.
        let room = if self.shared.meta_short() { 0 } else { room };
        let (total, used) = (blocks * BLOCK, (blocks - free - metadata) * BLOCK);
        let offered = free.saturating_sub(self.reserve()) * BLOCK;
        let on_disk = self.meta.disk_space();
        let (inside, beside) =
            if self.meta.shares(&self.alloc) { (on_disk, 0) } else { (0, on_disk) };
        Statfs {
            total,
            available: offered.min(room),
            used,
            // The metadata may have grown between the two looks.
            kept: total.saturating_sub(offered + used + inside),
            stored: self.counters.stored,
            packed: self.pools.values().map(PoolSpace::packed).sum(),
            objects: self.counters.objects,
            metadata: on_disk,
            journal: self.ring_size,
            beside: self.ring_size + beside,
            metadata_total: self.meta.size(),
        }
    }

    /// Blocks that are durably free, and that nobody has taken note of: the transaction that freed
    /// them was the last one, and its blocks were written after it was acknowledged. The next one
    /// finds them before it looks for space.
    fn awaits_note(&self) -> u64 {
        let written = self.shared.written.load(Ordering::Acquire);
        self.freed.iter().take_while(|(seq, _)| *seq <= written).map(|(_, run)| run.len).sum()
    }

    /// Says how data of a pool is to be stored from now on. Not kept on disk.
    pub fn set_pool_options(&mut self, pool: i64, options: PoolOptions) {
        self.pool_options.insert(pool, options);
    }

    /// Space used by each pool with data here, by pool.
    pub fn pool_space(&self) -> impl Iterator<Item = (i64, PoolSpace)> {
        self.pools.iter().filter(|(_, s)| !s.is_zero()).map(|(p, s)| (*p, *s))
    }

    pub(crate) fn put_refs(&mut self, chunk: u64, refs: Refs) {
        let refs = (!refs.is_empty()).then(|| Arc::new(refs));
        let cost = 64 + refs.as_ref().map_or(0, |r| r.cost());
        self.refs.borrow_mut().insert(&chunk, refs.clone(), cost);
        self.active.put_refs(chunk, refs);
    }

    pub(crate) fn put_layer(&mut self, name: u64, layer: Option<Arc<Layer>>) {
        self.layers.borrow_mut().refresh(
            &name,
            &layer,
            64 + layer.as_ref().map_or(0, |l| l.cost()),
        );
        self.active.put_layer(name, layer);
    }

    /// Memory held by caches, the allocator, overlays and data on its way, bytes, roughly.
    pub fn memory(&self) -> usize {
        self.alloc().memory()
            + self.heads.borrow().cost()
            + self.segments.borrow().cost()
            + self.refs.borrow().cost()
            + self.layers.borrow().cost()
            + self.active.cost
            + self.frozen.as_ref().map_or(0, |f| f.overlay.cost)
            + self.shared.queued_bytes()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}
