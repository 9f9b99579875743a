//! Creating a store, opening it, and replaying its journal.
//!
//! Nothing is written before everything has been read and found sound.

use crate::alloc::{Allocator, BLOCK, PhysRun};
use crate::cache::Cache;
use crate::checkpoint::{CheckpointRecord, Checkpointer};
use crate::commit::{Committer, Shared};
use crate::device::{BlockDevice, FileDevice};
use crate::error::{Result, StoreError};
use crate::journal::{Position, Ring};
use crate::keys;
use crate::kv::{FjallMeta, MetaStore};
use crate::overlay::{Counters, Overlay};
use crate::redo::{self, Redo};
use crate::refs::Refs;
use crate::room::HostRoom;
use crate::segment::{Released, Segment};
use crate::store::{PoolSpace, Store, StoreOptions};
use crate::superblock::{COPY, Identity, Superblock};
use spirula_encoding::Decoder;
use spirula_types::Uuid;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

/// Smallest journal, bytes.
const JOURNAL_MIN: u64 = 256 << 10;
/// Smallest data space, bytes.
const SIZE_MIN: u64 = 1 << 20;
/// Aligned writes of at least this many bytes to the data file bypass the page cache.
const DIRECT_MIN: usize = 64 << 10;
/// Marks a directory whose creation has not finished.
const CREATING: &str = "creating";

/// What a store is made of.
#[derive(Clone)]
pub(crate) struct Parts {
    pub superblock: Arc<dyn BlockDevice>,
    pub journal: Arc<dyn BlockDevice>,
    pub block: Arc<dyn BlockDevice>,
    pub meta: Arc<dyn MetaStore>,
}

fn refused<T>(file: impl Into<String>, why: impl Into<String>, advice: impl Into<String>) -> Result<T> {
    Err(StoreError::Refused { file: file.into(), why: why.into(), advice: advice.into() })
}

/// The superblock of a new store, not yet written.
pub(crate) fn new_superblock(identity: Identity, store_uuid: Uuid, opts: &StoreOptions) -> Superblock {
    Superblock {
        identity,
        store_uuid,
        block_size: opts.size / BLOCK * BLOCK,
        journal_size: opts.journal_size / BLOCK * BLOCK,
        generation: 0,
        checkpoint: 0,
        clean: true,
    }
}

fn random_uuid() -> Result<Uuid> {
    use std::io::Read;
    let mut b = [0; 16];
    let mut f = File::open("/dev/urandom").map_err(|e| StoreError::io("open", "/dev/urandom", e))?;
    f.read_exact(&mut b).map_err(|e| StoreError::io("read", "/dev/urandom", e))?;
    Ok(Uuid::from_random(b))
}

impl Store {
    /// Makes a new store in `dir`, which must be missing or empty (or the rest of a creation
    /// that was interrupted).
    ///
    /// # Errors
    /// [`StoreError::Refused`] if something is there or the sizes make no sense,
    /// [`StoreError::Io`].
    pub fn create(dir: &Path, fsid: Uuid, osd_uuid: Uuid, osd_id: i32, opts: &StoreOptions) -> Result<()> {
        let at = dir.display().to_string();
        if opts.size < SIZE_MIN || opts.journal_size < JOURNAL_MIN {
            return refused(
                at,
                format!("a store of {} bytes with a journal of {} is too small", opts.size, opts.journal_size),
                format!("give it at least {SIZE_MIN} and {JOURNAL_MIN} bytes"),
            );
        }
        let io = |action: &'static str, p: &Path| {
            let p = p.display().to_string();
            move |e: std::io::Error| StoreError::io(action, p, e)
        };
        fs::create_dir_all(dir).map_err(io("create", dir))?;
        let marker = dir.join(CREATING);
        if marker.exists() && !dir.join("superblock").exists() {
            for name in ["journal", "block"] {
                match fs::remove_file(dir.join(name)) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                        return Err(StoreError::io("remove", dir.join(name).display().to_string(), e));
                    }
                    _ => {}
                }
            }
            if dir.join("kv").exists() {
                fs::remove_dir_all(dir.join("kv")).map_err(io("remove", &dir.join("kv")))?;
            }
        } else if fs::read_dir(dir).map_err(io("list", dir))?.next().is_some() {
            return refused(
                at,
                "is not empty",
                "choose another directory, or empty this one if nothing in it is needed",
            );
        }
        File::create(&marker).map_err(io("create", &marker))?;
        let make = |name: &str, size: u64, reserve: bool| -> Result<File> {
            let p = dir.join(name);
            let f = File::create_new(&p).map_err(io("create", &p))?;
            f.set_len(size).map_err(io("size", &p))?;
            if reserve {
                // Some file systems cannot; the journal then takes its space as it goes.
                let _ = rustix::fs::fallocate(&f, rustix::fs::FallocateFlags::empty(), 0, size);
            }
            f.sync_all().map_err(io("flush", &p))?;
            Ok(f)
        };
        let identity = Identity { fsid, osd_uuid, osd_id };
        let mut sb = new_superblock(identity, random_uuid()?, opts);
        make("journal", sb.journal_size, true)?;
        make("block", sb.block_size, false)?;
        drop(FjallMeta::open(&dir.join("kv"), kv_memory(opts))?);
        make("superblock.new", 2 * COPY as u64, false)?;
        let new = dir.join("superblock.new");
        let dev = FileDevice::open(&new, usize::MAX).map_err(io("open", &new))?;
        sb.write(&dev)?;
        fs::rename(&new, dir.join("superblock")).map_err(io("rename", &new))?;
        let sync = || -> std::io::Result<()> {
            fs::remove_file(&marker)?;
            File::open(dir)?.sync_all()
        };
        sync().map_err(io("flush", dir))
    }

    /// Opens the store in `dir` and replays its journal. `expected`: refuse another's store.
    /// Sizes in `opts` are those of creation and ignored here.
    ///
    /// `on_commit` is called in the commit thread with the highest durable transaction,
    /// `on_error` at most once, when the store stops for good.
    ///
    /// # Errors
    /// [`StoreError::Refused`], with nothing written; [`StoreError::Io`];
    /// [`StoreError::Corrupt`].
    pub fn open(
        dir: &Path,
        expected: Option<Identity>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        let path = |name: &str| dir.join(name);
        let at = |name: &str| path(name).display().to_string();
        for name in ["superblock", "journal", "block", "kv"] {
            if !path(name).exists() {
                let advice = if path(CREATING).exists() {
                    "its creation was interrupted: create it again"
                } else {
                    "check the path; if this was a store, recreate the OSD and let the cluster recover it"
                };
                return refused(at(name), "is missing", advice);
            }
        }
        let lock = File::open(path("superblock")).map_err(|e| StoreError::io("open", at("superblock"), e))?;
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            return refused(dir.display().to_string(), "is in use by another process", "stop that one first");
        }
        let device = |name: &str, direct_min: usize| -> Result<Arc<dyn BlockDevice>> {
            let dev = FileDevice::open(&path(name), direct_min).map_err(|e| StoreError::io("open", at(name), e))?;
            Ok(Arc::new(dev))
        };
        let superblock = device("superblock", usize::MAX)?;
        // Refuse what is not ours before the KV, which writes when it is opened.
        let sb = Superblock::read(&*superblock)?;
        check_identity(&sb, superblock.name(), expected)?;
        let (journal, block) = (device("journal", 0)?, device("block", DIRECT_MIN)?);
        check_sizes(&sb, &*journal, &*block)?;
        let meta = Arc::new(FjallMeta::open(&path("kv"), kv_memory(opts))?);
        let parts = Parts { superblock, journal, block, meta };
        Self::open_parts(parts, expected, Some(lock), opts, on_commit, on_error)
    }

    /// Opens a store over given devices.
    pub(crate) fn open_parts(
        parts: Parts,
        expected: Option<Identity>,
        lock: Option<File>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Result<Self> {
        let mut sb = Superblock::read(&*parts.superblock)?;
        check_identity(&sb, parts.superblock.name(), expected)?;
        check_sizes(&sb, &*parts.journal, &*parts.block)?;
        let base = load_checkpoint(&*parts.meta, &sb)?;
        let mut alloc = Allocator::new(sb.block_size / BLOCK);
        for pair in parts.meta.range(b"A", b"B") {
            let (key, map) = pair?;
            let group = key.last_chunk::<4>().map(|g| u32::from_be_bytes(*g));
            if !group.is_some_and(|g| alloc.load_group(g, &map)) {
                return Err(StoreError::corrupt("allocation bitmap for no group, or of a wrong length"));
            }
        }
        let dead = parts
            .meta
            .range(b"D", b"E")
            .map(|pair| {
                let id = pair?.0.last_chunk::<8>().map(|b| u64::from_be_bytes(*b));
                id.ok_or_else(|| StoreError::corrupt("omap id too short"))
            })
            .collect::<Result<VecDeque<u64>>>()?;
        let pools = load_pools(&*parts.meta)?;
        let (seq, tail) = (base.seq, base.end.offset);
        let mut store = Self {
            shared: Arc::new(Shared::new(seq, tail, tail, seq, on_error)),
            meta: parts.meta.clone(),
            block: parts.block.clone(),
            pool: opts.pool.clone(),
            identity: sb.identity,
            ring_size: sb.journal_size,
            active: Overlay::default(),
            frozen: None,
            heads: Cache::new(0).into(),
            segments: Cache::new(0).into(),
            refs: Cache::new(0).into(),
            pools,
            pool_options: BTreeMap::new(),
            alloc,
            counters: base.counters,
            seq,
            frozen_seq: seq,
            pending: BTreeMap::new(),
            pending_order: VecDeque::new(),
            freed: VecDeque::new(),
            journaling: VecDeque::new(),
            journaling_bytes: 0,
            pins: VecDeque::new().into(),
            memory_limit: opts.cache_bytes,
            room: HostRoom::default(),
            threads: Vec::new(),
            _lock: lock,
        };
        store.divide_memory();
        let ring = Ring { dev: &*parts.journal, size: sb.journal_size, store: sb.store_uuid };
        let (head, images) = store.replay(&ring, base.end, !sb.clean)?;
        // Everything is sound: from here on the store may be written.
        store.restore_images(&ring, &images)?;
        sb.clean = false;
        sb.write(&*parts.superblock)?;
        store.start(parts, sb, head, tail, dead, opts, on_commit)?;
        Ok(store)
    }

    /// Applies what the journal holds after the checkpoint. Returns where the next frame
    /// goes and which blocks' contents are (only surely) in the journal, at which ring
    /// position.
    fn replay(&mut self, ring: &Ring<'_>, from: Position, deep: bool) -> Result<(Position, BTreeMap<u64, u64>)> {
        // A block may have had several owners since the checkpoint: the last one counts, and
        // each freeing forgets the one before.
        let mut images: BTreeMap<u64, u64> = BTreeMap::new();
        let head = ring.replay(from, deep, |record| {
            if record.seq != self.seq + 1 {
                return Err(StoreError::corrupt(format!("journal record {} follows record {}", record.seq, self.seq)));
            }
            self.seq = record.seq;
            let mut d = Decoder::new(record.redo);
            let mut image_at = record.images_at;
            while !d.is_empty() {
                let change = redo::decode(&mut d)
                    .map_err(|e| StoreError::corrupt(format!("journal record {}: {e}", record.seq)))?;
                self.redo(change, &mut images, &mut image_at)?;
            }
            if image_at != record.images_at + record.images.len() as u64 {
                return Err(StoreError::corrupt(format!("journal record {}: data of a wrong length", record.seq)));
            }
            Ok(())
        })?;
        Ok((head, images))
    }

    fn redo(&mut self, change: Redo, images: &mut BTreeMap<u64, u64>, image_at: &mut u64) -> Result<()> {
        match change {
            Redo::Head { key, onode } => {
                let onode = onode.map(Arc::new);
                let cost = key.len() + 96 + onode.as_ref().map_or(0, |o| o.cost());
                self.heads.borrow_mut().insert(&key, onode.clone(), cost);
                self.active.put_head(key, onode);
            }
            Redo::Patch { id, seg, first, len, runs, kind, sums } => {
                let mut s = self.segment(id, seg)?.map_or_else(Segment::default, |s| (*s).clone());
                if !runs.is_empty() && s.kind(kind) != kind {
                    return Err(StoreError::corrupt("journal maps blocks with another kind of checksum"));
                }
                s.replace(first, len, &runs, kind, &sums, &mut Released::default());
                self.put_segment(id, seg, Some(Arc::new(s)));
            }
            Redo::Segment { id, seg, value } => self.put_segment(id, seg, Some(Arc::new(value))),
            Redo::SegmentGone { id, seg } => self.put_segment(id, seg, None),
            Redo::Omap { id, key, value } => self.active.put_omap(id, key, value),
            Redo::OmapHeader { id, value } => self.active.put_omap_header(id, Some(value)),
            Redo::OmapDead { id } => self.active.kill_omap(id),
            Redo::Meta { key, value } => self.active.put_meta(key, value),
            Redo::LogAppend { pg, version, entry } => self.active.log_append(pg, version, entry),
            Redo::LogTrim { pg, to } => self.active.log_trim(pg, to),
            Redo::LogRewind { pg, to } => self.active.log_rewind(pg, to),
            Redo::LogRemove { pg } => self.active.log_remove(pg),
            Redo::Taken { run, image } => {
                if !self.alloc.mark_used(run) {
                    return Err(StoreError::corrupt(format!("journal takes blocks {run:?} that are in use")));
                }
                if image {
                    for b in run.start..run.start + run.len {
                        images.insert(b, *image_at);
                        *image_at += BLOCK;
                    }
                }
            }
            Redo::Freed { run } => {
                if !self.alloc.mark_free(run) {
                    return Err(StoreError::corrupt(format!("journal frees blocks {run:?} that are free")));
                }
                for b in run.start..run.start + run.len {
                    images.remove(&b);
                }
            }
            Redo::Counters(c) => self.counters = c,
            Redo::Referenced { run } => self.redo_refs(run, true)?,
            Redo::Unreferenced { run } => self.redo_refs(run, false)?,
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
                return Err(StoreError::corrupt(format!("journal changes owners of blocks {run:?} that it cannot")));
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

    /// Writes blocks back whose contents may not have reached the data file.
    fn restore_images(&self, ring: &Ring<'_>, images: &BTreeMap<u64, u64>) -> Result<()> {
        let mut buf = vec![0u8; BLOCK as usize];
        for (block, at) in images {
            ring.read(&mut buf, *at)?;
            let run = PhysRun { start: *block, len: 1 };
            self.block
                .write_at(&[&buf], run.start * BLOCK)
                .map_err(|e| StoreError::io("write", self.block.name(), e))?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "called once, with what open has gathered")]
    fn start(
        &mut self,
        parts: Parts,
        sb: Superblock,
        head: Position,
        tail: u64,
        dead: VecDeque<u64>,
        opts: &StoreOptions,
        on_commit: Box<dyn Fn(u64) + Send>,
    ) -> Result<()> {
        use std::sync::atomic::Ordering;
        self.shared.durable.store(self.seq, Ordering::Release);
        self.shared.written.store(self.seq, Ordering::Release);
        self.shared.ring_head.store(head.offset, Ordering::Release);
        debug_assert_eq!(self.shared.ring_tail.load(Ordering::Acquire), tail);
        let (send, receive) = sync_channel(1);
        let committer = Committer {
            shared: self.shared.clone(),
            journal: parts.journal,
            block: parts.block.clone(),
            ring_size: sb.journal_size,
            store: sb.store_uuid,
            at: head,
            zeroed: head.offset.min(sb.journal_size),
            pool: opts.pool.clone(),
            on_commit,
            checkpoints: send,
        };
        let checkpointer = Checkpointer {
            shared: self.shared.clone(),
            meta: parts.meta,
            block: parts.block,
            superblock_dev: parts.superblock,
            superblock: sb,
            logs: BTreeMap::new(),
            dead,
        };
        let id = self.identity.osd_id;
        self.threads.push(self.spawn(format!("commit.{id}"), move || committer.run())?);
        self.threads.push(self.spawn(format!("checkpoint.{id}"), move || checkpointer.run(receive))?);
        Ok(())
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        /// Lets a panic in a thread stop the store instead of leaving its owner to wait.
        struct Guard(Arc<Shared>, String);
        impl Drop for Guard {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.poison(StoreError::Poisoned(format!("thread {} panicked", self.1)));
                }
            }
        }
        let guard = Guard(self.shared.clone(), name.clone());
        let run = move || {
            let _guard = guard;
            work();
        };
        std::thread::Builder::new().name(name).spawn(run).map_err(|e| StoreError::io("start", "thread", e))
    }
}

fn kv_memory(opts: &StoreOptions) -> u64 {
    // A cache and up to three write buffers of this size.
    (opts.cache_bytes as u64 / 16).max(1 << 20)
}

fn check_identity(sb: &Superblock, file: &str, expected: Option<Identity>) -> Result<()> {
    let Some(e) = expected else { return Ok(()) };
    let i = sb.identity;
    let advice = "check which directory belongs to which OSD";
    if i.fsid != e.fsid {
        return refused(file, format!("belongs to cluster {}, not {}", i.fsid, e.fsid), advice);
    }
    if i.osd_id != e.osd_id {
        return refused(file, format!("belongs to osd.{}, not osd.{}", i.osd_id, e.osd_id), advice);
    }
    if i.osd_uuid != e.osd_uuid {
        return refused(
            file,
            format!("belongs to an osd.{} of uuid {}, not {}", i.osd_id, i.osd_uuid, e.osd_uuid),
            advice,
        );
    }
    Ok(())
}

fn check_sizes(sb: &Superblock, journal: &dyn BlockDevice, block: &dyn BlockDevice) -> Result<()> {
    for (dev, needed) in [(journal, sb.journal_size), (block, sb.block_size)] {
        let size = dev.size().map_err(|e| StoreError::io("size", dev.name(), e))?;
        if size < needed {
            return refused(
                dev.name(),
                format!("has {size} bytes, the superblock says {needed}"),
                "something cut it; replace the OSD and let the cluster recover it",
            );
        }
    }
    if sb.journal_size < JOURNAL_MIN || !sb.journal_size.is_multiple_of(BLOCK) {
        return Err(StoreError::corrupt("superblock gives the journal an impossible size"));
    }
    Ok(())
}

/// Space used by pools, as of the checkpoint.
fn load_pools(meta: &dyn MetaStore) -> Result<BTreeMap<i64, PoolSpace>> {
    let each = meta.range(b"U", b"V").map(|pair| {
        let (key, value) = pair?;
        let id = key.last_chunk::<8>().ok_or_else(|| StoreError::corrupt("pool key too short"))?;
        let space = PoolSpace::decode(&mut Decoder::new(&value)).map_err(StoreError::corrupt)?;
        Ok(((u64::from_be_bytes(*id) ^ (1 << 63)) as i64, space))
    });
    each.collect()
}

/// The KV's checkpoint, which must not be older than the superblock says.
fn load_checkpoint(meta: &dyn MetaStore, sb: &Superblock) -> Result<CheckpointRecord> {
    let record = match meta.get(keys::CHECKPOINT)? {
        Some(v) => CheckpointRecord::decode(&v)?,
        None => CheckpointRecord {
            seq: 0,
            end: Position::default(),
            counters: Counters { next_id: 1, objects: 0, stored: 0 },
        },
    };
    if record.seq < sb.checkpoint {
        return refused(
            "kv",
            format!("holds checkpoint {}, the superblock knows of {}: metadata was lost", record.seq, sb.checkpoint),
            "do not trust this device; replace the OSD and let the cluster recover it",
        );
    }
    Ok(record)
}
