//! Opening a store and replaying its journal.
//!
//! Nothing is written before everything has been read and found sound.

use crate::alloc::{Allocator, BLOCK, PhysRun};
use crate::cache::Cache;
use crate::checkpoint::{CheckpointRecord, Checkpointer};
use crate::commit::{Committer, RingEnd, Shared, Writer};
use crate::device::Aligned;
use crate::error::{Result, StoreError};
use crate::holes::Holes;
use crate::journal::{FRAME_ALIGN, Position, Replayed, Ring, Tail};
use crate::kept::Kept;
use crate::keys;
use crate::kv::{self, MetaStore};
use crate::layout::Layout;
use crate::overlay::{Counters, Overlay};
use crate::paths::{Access, Claims, StorePaths};
use crate::pins::Pins;
use crate::redo::{self, Redo};
use crate::refs::Refs;
use crate::room::HostRoom;
use crate::segment::{Released, Segment};
use crate::steps::{Steps, Workers};
use crate::store::{PoolSpace, Store, StoreOptions};
use crate::superblock::{Identity, Superblock};
use spirula_encoding::Decoder;
use spirula_encoding::crc::crc32c;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

/// Content of a block, in the journal.
struct Image {
    /// Ring position.
    at: u64,
    crc: u32,
}

/// By number of the block.
type Images = BTreeMap<u64, Image>;

/// Images of a record that its changes have not named yet.
struct Cursor<'a> {
    /// Ring position of the next one.
    at: u64,
    rest: &'a [u8],
}

impl Cursor<'_> {
    fn next(&mut self) -> Option<Image> {
        let (data, rest) = self.rest.split_at_checked(BLOCK as usize)?;
        let image = Image { at: self.at, crc: crc32c(u32::MAX, data) };
        (self.at, self.rest) = (self.at + BLOCK, rest);
        Some(image)
    }
}

impl Store {
    /// Opens the store at `path`, an OSD's directory or a main device, and replays its
    /// journal. `expected`: refuse another's store. Sizes in `opts` are those of creation and
    /// ignored here.
    ///
    /// `on_commit` is called in the commit thread with the highest durable transaction, and with
    /// the same again when memory is short and payloads that were acknowledged are in their places,
    /// so that [`Store::congested`] lets go of them; `on_error` at most once, when the store stops
    /// for good.
    ///
    /// # Errors
    /// [`StoreError::Refused`], with nothing written; [`StoreError::Io`];
    /// [`StoreError::Corrupt`].
    pub fn open(
        path: &Path,
        expected: Option<Identity>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        Self::open_at(&StorePaths::find(path)?, expected, opts, on_commit, on_error)
    }

    /// As [`Store::open`], with the devices given by path.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_at(
        paths: &StorePaths,
        expected: Option<Identity>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        Self::open_paths(paths, Access::Write, expected, opts, on_commit, on_error)
    }

    /// Opens a store to look at it: no byte of its devices is changed, whatever is done. It
    /// must not be open elsewhere.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_shielded(
        paths: &StorePaths,
        expected: Option<Identity>,
        opts: &StoreOptions,
    ) -> Result<Self> {
        Self::open_paths(
            paths,
            Access::Shielded,
            expected,
            opts,
            Box::new(|_| ()),
            Box::new(|_| ()),
        )
    }

    fn open_paths(
        paths: &StorePaths,
        access: Access,
        expected: Option<Identity>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        let (devices, claims) = paths.open(expected, access, opts.io)?;
        let layout = Layout::read(&devices, expected)?;
        Self::open_layout(layout, claims, opts, on_commit, on_error)
    }

    /// Opens a store over given devices.
    pub(crate) fn open_layout(
        layout: Layout,
        claims: Claims,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        Self::arm(layout, claims, opts, on_commit, on_error)?.run()
    }

    /// As [`Store::open_layout`]; the work is to be done in steps.
    pub(crate) fn arm(
        mut layout: Layout,
        claims: Claims,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        let sb = &layout.superblock;
        let shared_alloc = Arc::new(Mutex::new(Allocator::new(sb.data_size / BLOCK)));
        let (meta_dev, meta_alloc, reserve) = match &layout.meta {
            Some(dev) => {
                let size = dev.size().map_err(|e| StoreError::io("size", dev.name(), e))?;
                (dev.clone(), Arc::new(Mutex::new(Allocator::new(size / BLOCK))), 0)
            }
            None => (
                layout.block.clone(),
                shared_alloc.clone(),
                crate::store::reserve_of(sb.data_size / BLOCK),
            ),
        };
        let uuid = sb.label.store_uuid.0;
        let meta = Arc::new(MetaStore::open(
            meta_dev,
            meta_alloc,
            reserve,
            &sb.root,
            uuid,
            opts.cache_bytes / 4,
        )?);
        let base = load_checkpoint(&meta, sb)?;
        let mut alloc = kv::lock(&shared_alloc);
        for pair in meta.range(b"A", b"B") {
            let (key, map) = pair?;
            let group = key.last_chunk::<4>().map(|g| u32::from_be_bytes(*g));
            if !group.is_some_and(|g| alloc.load_group(g, &map)) {
                return Err(StoreError::corrupt(
                    "allocation bitmap for no group, or of a wrong length",
                ));
            }
        }
        let dead = meta
            .range(b"D", b"E")
            .map(|pair| {
                let id = pair?.0.last_chunk::<8>().map(|b| u64::from_be_bytes(*b));
                id.ok_or_else(|| StoreError::corrupt("omap id too short"))
            })
            .collect::<Result<VecDeque<u64>>>()?;
        drop(alloc);
        let pools = load_pools(&meta)?;
        let (seq, tail) = (base.seq, base.end.offset);
        let mut store = Self {
            shared: Arc::new(Shared::new(seq, tail, tail, seq, on_error)),
            meta: meta.clone(),
            block: layout.block.clone(),
            pool: opts.pool.clone(),
            identity: sb.label.identity,
            ring_size: sb.journal_size,
            active: Overlay { first_new: Some(base.counters.next_id), ..Overlay::default() },
            frozen: None,
            heads: Cache::new(0).into(),
            segments: Cache::new(0).into(),
            refs: Cache::new(0).into(),
            layers: Cache::new(0).into(),
            kept: Kept::new(opts.kept_bytes, opts.pool.clone()).into(),
            pools,
            pool_options: BTreeMap::new(),
            holes: Arc::new(Holes::new(shared_alloc.clone(), layout.block.clone())),
            alloc: shared_alloc,
            counters: base.counters,
            seq,
            frozen_seq: seq,
            pending: BTreeMap::new(),
            pending_order: VecDeque::new(),
            freed: VecDeque::new(),
            beside: VecDeque::new(),
            booked: VecDeque::new(),
            journaling: VecDeque::new(),
            journaling_bytes: 0,
            pins: Pins::default().into(),
            memory_limit: opts.cache_bytes,
            room: HostRoom::timeless(),
            workers: Workers::default(),
            notes: layout.notes.clone(),
            _claims: claims,
        };
        let ring = Ring {
            dev: &*layout.journal,
            size: sb.journal_size,
            device: sb.journal_device,
            superblock: sb.label.generation,
            journaled: sb.journaled,
        };
        store.divide_memory();
        let (replayed, images) = store.replay(&ring, base.end, !sb.clean)?;
        layout.notes.extend(replayed.notes);
        store.notes.clone_from(&layout.notes);
        let head = replayed.tail;
        // Metadata may be where data was that the journal has freed.
        meta.claim_space()?;
        let slack = meta.keep_spare(store.overlay_bound());
        store.shared.meta_slack.store(slack, Ordering::Release);
        // What was booked before for what has been replayed.
        let beyond = store.active.cost.saturating_sub(store.overlay_bound()) as u64;
        if beyond > 0 {
            let needed = store.meta.need(beyond, store.active.entries(), store.overlay_bound());
            store.booked.push_back((store.seq, needed));
        }
        for (_, from) in store.active.copies.iter().collect::<Vec<_>>() {
            let needed = store.room_for_copy(from)?;
            store.booked.push_back((store.seq, needed));
        }
        // Everything is sound: from here on the store may be written.
        store.restore_images(&ring, &images)?;
        for at in if planted!(LaterFramesKept) { Vec::new() } else { replayed.stale } {
            let zeros = Aligned::new(FRAME_ALIGN as usize);
            layout
                .journal
                .write_at(&[zeros.as_ref()], at)
                .map_err(|e| StoreError::io("write", layout.journal.name(), e))?;
        }
        // The last frame may have been whole in a cache only; from now on it counts.
        layout.journal.flush().map_err(|e| StoreError::io("flush", layout.journal.name(), e))?;
        layout.mount(head.at)?;
        store.give_work(layout, meta, head, tail, dead, opts, on_commit);
        Ok(store)
    }

    /// Applies what the journal holds after the checkpoint. Returns where the next frame
    /// goes, and which blocks' contents are (only surely) in the journal.
    fn replay(
        &mut self,
        ring: &Ring<'_>,
        from: Position,
        deep: bool,
    ) -> Result<(Replayed, Images)> {
        // A block may have had several owners since the checkpoint: the last one counts, and
        // each freeing forgets the one before.
        let mut images = Images::new();
        let replayed = ring.replay(from, deep, |record| {
            if record.seq != self.seq + 1 {
                return Err(StoreError::corrupt(format!(
                    "journal record {} follows record {}",
                    record.seq, self.seq
                )));
            }
            self.seq = record.seq;
            let changes = self.changes(record.seq, record.redo)?;
            let mut d = Decoder::new(&changes);
            let mut cursor = Cursor { at: record.images_at, rest: record.images };
            while !d.is_empty() {
                let change = redo::decode(&mut d).map_err(|e| {
                    StoreError::corrupt(format!("journal record {}: {e}", record.seq))
                })?;
                self.redo(change, &mut images, &mut cursor)?;
            }
            if !cursor.rest.is_empty() {
                return Err(StoreError::corrupt(format!(
                    "journal record {}: data of a wrong length",
                    record.seq
                )));
            }
            Ok(())
        })?;
        Ok((replayed, images))
    }

    fn redo(&mut self, change: Redo, images: &mut Images, cursor: &mut Cursor<'_>) -> Result<()> {
        match change {
            Redo::Head { key, onode } => {
                let onode = onode.map(Arc::new);
                let cost = key.len() + 96 + onode.as_ref().map_or(0, |o| o.cost());
                self.heads.borrow_mut().insert(&key, onode.clone(), cost);
                self.active.put_head(key, onode);
            }
            Redo::Patch { over, id, seg, first, len, runs, kind, sums } => {
                let new = if over { Segment::over } else { Segment::default };
                let mut s = self.segment(id, seg)?.map_or_else(new, |s| (*s).clone());
                if !runs.is_empty() && s.kind(kind) != kind {
                    return Err(StoreError::corrupt(
                        "journal maps blocks with another kind of checksum",
                    ));
                }
                s.replace(first, len, &runs, kind, &sums, &mut Released::default());
                self.put_segment(id, seg, Some(Arc::new(s)));
            }
            Redo::Segment { id, seg, value } => self.put_segment(id, seg, Some(Arc::new(value))),
            Redo::SegmentGone { id, seg } => self.put_segment(id, seg, None),
            Redo::Omap { id, key, value } => self.active.put_omap(id, key, value),
            Redo::OmapHeader { .. } if planted!(HeaderForgotten) => {}
            Redo::OmapHeader { id, value } => self.active.put_omap_header(id, Some(value)),
            // Numbers are given in order: so chains of copies have an end.
            Redo::OmapCopied { id, from } if id <= from => {
                return Err(StoreError::corrupt(format!(
                    "journal makes omap {id} a copy of omap {from}"
                )));
            }
            Redo::OmapCopied { id, from } => self.active.copy_omap(id, from),
            Redo::OmapDead { id } => self.active.kill_omap(id),
            Redo::OmapRangeGone { id, first, last } => {
                self.active.remove_omap_range(id, &first, &last)
            }
            Redo::Meta { key, value } => self.active.put_meta(key, value),
            Redo::LogAppend { pg, version, entry } => self.active.log_append(pg, version, entry),
            Redo::LogTrim { pg, to } => self.active.log_trim(pg, to),
            Redo::LogRewind { pg, to } => self.active.log_rewind(pg, to),
            Redo::LogRemove { .. } if planted!(LogComesBack) => {}
            Redo::LogRemove { pg } => self.active.log_remove(pg),
            Redo::Taken { run, image } => {
                if !self.alloc().mark_used(run) {
                    return Err(StoreError::corrupt(format!(
                        "journal takes blocks {run:?} that are in use"
                    )));
                }
                if image {
                    for b in run.start..run.start + run.len {
                        let image = cursor
                            .next()
                            .ok_or_else(|| StoreError::corrupt("journal lacks data of a block"))?;
                        images.insert(b, image);
                    }
                }
            }
            Redo::Freed { run } => {
                if !self.alloc().mark_free(run) {
                    return Err(StoreError::corrupt(format!(
                        "journal frees blocks {run:?} that are free"
                    )));
                }
                for b in run.start..run.start + run.len {
                    if !planted!(StaleImageReplayed) {
                        images.remove(&b);
                    }
                }
            }
            Redo::Counters(c) => self.counters = c,
            Redo::Referenced { run } => self.redo_refs(run, true)?,
            Redo::Unreferenced { run } => self.redo_refs(run, false)?,
            Redo::Layer { name, value } => self.put_layer(name, value.map(Arc::new)),
            Redo::OmapOwners { id, more } => self.active.put_omap_owners(id, more),
            Redo::Named { name, key } => self.active.put_named(name, key),
            Redo::Pool { pool, space } => {
                self.pools.insert(pool, space);
                self.active.put_pool(pool, space);
            }
        }
        Ok(())
    }

    fn redo_refs(&mut self, run: PhysRun, more: bool) -> Result<()> {
        for (chunk, first, len) in redo::by_chunk(run) {
            let mut refs = self.refs(chunk)?.map_or_else(Refs::default, |r| (*r).clone());
            let mut sound = true;
            if more {
                sound = refs.add(first, len);
            } else {
                refs.remove(first, len, |_, _, shared| sound &= shared);
            }
            if !sound {
                return Err(StoreError::corrupt(format!(
                    "journal changes owners of blocks {run:?} that it cannot"
                )));
            }
            self.put_refs(chunk, refs);
        }
        Ok(())
    }

    fn put_segment(&mut self, id: u64, seg: u32, value: Option<Arc<Segment>>) {
        let cost = 96 + value.as_ref().map_or(0, |v| v.cost());
        self.segments.borrow_mut().insert(&(id, seg), value.clone(), cost);
        self.active.put_segment(id, seg, value);
    }

    /// Writes blocks back whose contents may not have reached the data file. What is there
    /// already may be good: what the journal gives now must be what it gave before.
    fn restore_images(&self, ring: &Ring<'_>, images: &Images) -> Result<()> {
        let mut buf = vec![0u8; BLOCK as usize];
        for (block, image) in images {
            let mut whole = false;
            for anew in [false, true] {
                whole = ring.read(&mut buf, image.at, anew).is_ok()
                    && (crc32c(u32::MAX, &buf) == image.crc || planted!(ImageUnverified));
                if whole {
                    break;
                }
            }
            if !whole {
                let why = "data in the journal reads otherwise than a moment before";
                return Err(StoreError::io("read", ring.dev.name(), why));
            }
            let run = PhysRun { start: *block, len: 1 };
            self.block
                .write_at(&[&buf], run.start * BLOCK)
                .map_err(|e| StoreError::io("write", self.block.name(), e))?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "called once, with what open has gathered")]
    fn give_work(
        &mut self,
        layout: Layout,
        meta: Arc<MetaStore>,
        head: Tail,
        tail: u64,
        dead: VecDeque<u64>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
    ) {
        let sb = layout.superblock;
        self.shared.dead.store(dead.len(), Ordering::Release);
        self.shared.durable.store(self.seq, Ordering::Release);
        self.shared.written.store(self.seq, Ordering::Release);
        self.shared.ring_head.store(head.at.offset, Ordering::Release);
        self.shared.superblock.store(sb.label.generation, Ordering::Release);
        debug_assert_eq!(self.shared.ring_tail.load(Ordering::Acquire), tail);
        let (send, receive) = sync_channel(1);
        let committer = Committer::new(
            self.shared.clone(),
            layout.journal,
            layout.block.clone(),
            sb.journal_size,
            sb.journal_device,
            RingEnd { tail: head, zeroed: head.at.offset.min(sb.journal_size) },
            opts.pool.clone(),
            on_commit,
            send,
        );
        let checkpointer = Checkpointer {
            shared: self.shared.clone(),
            meta,
            overlay_bound: self.overlay_bound(),
            dying: Vec::new(),
            holes: self.holes.clone(),
            block: layout.block,
            superblock_dev: layout.main,
            superblock: sb,
            logs: BTreeMap::new(),
            dead,
        };
        self.workers = Workers::Stepped(Box::new(Steps {
            writer: Writer { shared: self.shared.clone(), block: self.block.clone() },
            committer,
            checkpointer,
            jobs: receive,
        }));
    }
}

/// Space used by pools, as of the checkpoint.
fn load_pools(meta: &MetaStore) -> Result<BTreeMap<i64, PoolSpace>> {
    let each = meta.range(b"U", b"V").map(|pair| {
        let (key, value) = pair?;
        let id = key.last_chunk::<8>().ok_or_else(|| StoreError::corrupt("pool key too short"))?;
        let space = PoolSpace::decode(&mut Decoder::new(&value)).map_err(StoreError::corrupt)?;
        Ok(((u64::from_be_bytes(*id) ^ (1 << 63)) as i64, space))
    });
    each.collect()
}

/// The metadata's checkpoint, which is the one the superblock names.
fn load_checkpoint(meta: &MetaStore, sb: &Superblock) -> Result<CheckpointRecord> {
    let record = match meta.get(keys::CHECKPOINT)? {
        Some(v) => CheckpointRecord::decode(&v)?,
        None => CheckpointRecord {
            seq: 0,
            end: Position::default(),
            counters: Counters { next_id: 1, objects: 0, stored: 0 },
        },
    };
    if record.seq != sb.checkpoint {
        return Err(StoreError::corrupt(format!(
            "the metadata holds checkpoint {}, the superblock names {}",
            record.seq, sb.checkpoint
        )));
    }
    Ok(record)
}
