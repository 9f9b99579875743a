//! Checkpoints: bring the KV up to a transaction, so that the journal before it may be
//! overwritten.
//!
//! Copies of omaps that are still to be made ([`crate::omaps`]) are made first, in commits of their
//! own.
//!
//! Order on the devices: flush data; pages of the frozen overlay and the checkpoint record,
//! flush; superblock with the new root, durable; then the journal's tail moves. Each step may be
//! the last before a crash: the journal still has everything the KV lacks. On any error the store
//! is poisoned.

use crate::alloc::Dirty;
use crate::commit::Shared;
use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use crate::holes::Holes;
use crate::journal::Position;
use crate::keys;
use crate::kv::{Changes, MetaStore, Ranges};
use crate::omaps::{self, Level};
use crate::overlay::{Counters, LogDelta, Overlay};
use crate::superblock::Superblock;
use bytes::Bytes;
use spirula_encoding::{Decoder, Encoder};
use spirula_types::{EVersion, PgId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Bytes of pairs of removed omaps deleted per step, roughly: what comes next waits for one.
const PURGE_STEP: usize = if cfg!(test) { 1 << 20 } else { 8 << 20 };
/// Bytes of pairs copied from one omap to another in one commit, roughly.
const COPY_STEP: usize = if cfg!(test) { 200 } else { 8 << 20 };
/// Between two looks for space that may go back to the host, and between two pieces of it.
const IDLE: Duration = Duration::from_secs(1);
const PUNCH_EVERY: Duration = Duration::from_millis(5);
/// A chunk of a log has no more bytes of entries than this, but one entry at least.
const CHUNK_BYTES: usize = 4 << 20;

/// One checkpoint to make.
pub(crate) struct Job {
    pub frozen: Arc<Overlay>,
    /// Newest transaction in it.
    pub seq: u64,
    /// Changed allocation bitmaps.
    pub groups: Dirty,
    pub counters: Counters,
    /// End of the journal's frames with these transactions; set by the commit thread.
    pub end: Position,
    /// The last one before the store is closed.
    pub clean: bool,
}

/// What the KV says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointRecord {
    pub seq: u64,
    pub end: Position,
    pub counters: Counters,
}

impl CheckpointRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut o = Encoder::new();
        o.versioned(1, 1, |o| {
            o.u64(self.seq);
            o.u64(self.end.frame);
            o.u64(self.end.offset);
            o.u64(self.counters.next_id);
            o.u64(self.counters.objects);
            o.u64(self.counters.stored);
        });
        o.into_vec()
    }

    pub fn decode(b: &[u8]) -> Result<Self> {
        Decoder::new(b)
            .versioned("checkpoint record", 1, |d, _| {
                Ok(Self {
                    seq: d.u64()?,
                    end: Position { frame: d.u64()?, offset: d.u64()? },
                    counters: Counters { next_id: d.u64()?, objects: d.u64()?, stored: d.u64()? },
                })
            })
            .map_err(StoreError::corrupt)
    }
}

/// A PG's log in the KV.
#[derive(Default)]
pub(crate) struct StoredLog {
    /// First and last version of each chunk.
    chunks: VecDeque<(EVersion, EVersion)>,
    /// Entries up to this one are trimmed, also where their chunk is still there.
    trimmed: Option<EVersion>,
}

/// The checkpoint thread's state.
pub(crate) struct Checkpointer {
    pub shared: Arc<Shared>,
    pub meta: Arc<MetaStore>,
    /// An overlay of this size may come, bytes.
    pub overlay_bound: usize,
    pub block: Arc<dyn BlockDevice>,
    pub superblock_dev: Arc<dyn BlockDevice>,
    pub superblock: Superblock,
    /// Logs in the KV, of PGs met so far.
    pub logs: BTreeMap<PgId, StoredLog>,
    /// Omap ids to purge.
    pub dead: VecDeque<u64>,
    /// Those of the last overlay that copies were made of there: its owner may read by way of them
    /// until it lets go of that overlay, which it has when the next one comes. Not counted as dead
    /// before, or whoever waits for room would wait for them.
    pub dying: Vec<u64>,
    pub holes: Arc<Holes>,
}

impl Checkpointer {
    /// Works until the sender is gone, or until a failure.
    pub fn run(mut self, jobs: Receiver<Job>) {
        let mut closed = false;
        loop {
            let punch = !closed && self.holes.any();
            let mut next = match jobs.recv_timeout(if punch { PUNCH_EVERY } else { IDLE }) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if punch && self.shared.check().is_ok() {
                        self.holes.step();
                    }
                    None
                }
            };
            // Removed omaps are purged step by step while no checkpoint waits.
            while next.is_some() || !self.dead.is_empty() && !closed {
                let done = match next.take() {
                    Some(job) => {
                        closed = job.clean;
                        self.step(job)
                    }
                    None => self.idle_step(),
                };
                if !done {
                    return;
                }
                next = jobs.try_recv().ok();
            }
        }
    }

    /// Purges some of what was removed; false after a failure.
    fn idle_step(&mut self) -> bool {
        let done = self.shared.check().and_then(|()| self.purge_some());
        self.shared.dead.store(self.dead.len(), Ordering::Release);
        self.shared.notify_owner();
        done.map_err(|e| self.shared.poison(e)).is_ok()
    }

    /// Makes one checkpoint; false after a failure.
    pub fn step(&mut self, job: Job) -> bool {
        if self.shared.check().is_err() {
            return false;
        }
        let clean = job.clean;
        let made = self.checkpoint(job).and_then(|()| if clean { Ok(()) } else { self.purge() });
        self.shared.notify_owner();
        made.map_err(|e| self.shared.poison(e)).is_ok()
    }

    fn checkpoint(&mut self, job: Job) -> Result<()> {
        self.dead.extend(std::mem::take(&mut self.dying));
        if !planted!(CheckpointBeforeData) {
            self.block.flush().map_err(|e| StoreError::io("flush", self.block.name(), e))?;
        }
        let o = &*job.frozen;
        for (new, from) in o.copies.iter() {
            self.copy_omap(o, new, from)?;
        }
        // At once: a list that grows makes the allocator clear fresh memory each time.
        let mut changes = Changes::with_capacity(
            o.heads.len()
                + o.segments.len()
                + o.refs.len()
                + o.layers.len()
                + o.named.len()
                + o.omap.len()
                + o.meta.len()
                + 2 * o.logs.len()
                + 64,
        );
        overlay_changes(o, &mut changes);
        for (pg, delta) in &job.frozen.logs {
            self.log_changes(*pg, delta, &mut changes)?;
        }
        for (g, map) in job.groups.bitmaps() {
            changes.push((keys::group(g), if map.is_empty() { None } else { Some(map) }));
        }
        if planted!(TailTooEarly) {
            self.shared.ring_tail.store(job.end.offset, Ordering::Release);
        }
        let record = CheckpointRecord { seq: job.seq, end: job.end, counters: job.counters };
        changes.push((keys::CHECKPOINT.to_vec(), Some(record.encode())));
        let ranges: Ranges =
            if planted!(RangeStays) { Ranges::new() } else { o.gone.stored().collect() };
        // The superblock with the new root is the commit.
        let (sb, dev) = (&mut self.superblock, &*self.superblock_dev);
        self.meta.commit(&changes, &ranges, |root| {
            sb.root = Bytes::copy_from_slice(root);
            sb.checkpoint = job.seq;
            sb.clean = job.clean;
            sb.journaled = job.end;
            sb.write(dev)
        })?;
        self.keep_spare();
        self.shared.superblock.store(self.superblock.label.generation, Ordering::Release);
        let (dying, dead): (Vec<u64>, Vec<u64>) =
            o.dead.iter().copied().partition(|id| o.copies.wants(*id));
        self.dying = dying;
        self.dead.extend(dead);
        self.shared.dead.store(self.dead.len(), Ordering::Release);
        self.shared.ring_tail.store(job.end.offset, Ordering::Release);
        self.shared.checkpointed.store(job.seq, Ordering::Release);
        self.shared.notify_owner();
        Ok(())
    }

    /// Copies the pairs of an omap, as they are with this overlay, to another one that nothing in
    /// the metadata refers to yet.
    fn copy_omap(&mut self, o: &Overlay, new: u64, from: u64) -> Result<()> {
        if planted!(CopyForgotten) {
            return Ok(());
        }
        // What a checkpoint left that a crash cut short.
        let all = keys::omap(new, &[]);
        let mut ranges: Ranges = vec![(all.clone(), keys::prefix_end(&all))];
        let mut first = Some(Vec::new());
        // What is done on the way is for the checkpoint before this one: of its state nothing
        // changes.
        while let Some(at) = first.take() {
            let (mut changes, mut left) = (Changes::new(), COPY_STEP);
            for pair in omaps::pairs(&self.meta, std::iter::once(Level::from(o)), from, &at, None) {
                let (key, value) = pair?;
                if left == 0 {
                    first = Some(key.to_vec());
                    break;
                }
                left = left.saturating_sub(key.len() + value.len() + 64);
                changes.push((keys::omap(new, &key), Some(value.to_vec())));
            }
            self.commit_aside(&changes, &std::mem::take(&mut ranges))?;
        }
        Ok(())
    }

    /// Changes in the metadata that no object shows.
    fn commit_aside(&mut self, changes: &Changes, ranges: &Ranges) -> Result<()> {
        let (sb, dev) = (&mut self.superblock, &*self.superblock_dev);
        self.meta.commit(changes, ranges, |root| {
            sb.root = Bytes::copy_from_slice(root);
            sb.write(dev)
        })?;
        self.keep_spare();
        self.shared.superblock.store(self.superblock.label.generation, Ordering::Release);
        Ok(())
    }

    fn keep_spare(&self) {
        if planted!(MetadataTakesAll) {
            return;
        }
        self.shared.meta_slack.store(self.meta.keep_spare(self.overlay_bound), Ordering::Release);
    }

    fn stored_log(&mut self, pg: PgId) -> Result<&mut StoredLog> {
        if !self.logs.contains_key(&pg) {
            let prefix = keys::log_prefix(pg);
            let mut log =
                StoredLog { trimmed: stored_trim(&self.meta, pg)?, ..StoredLog::default() };
            for pair in self.meta.range(&prefix, &keys::prefix_end(&prefix)) {
                log.chunks.push_back(keys::log_chunk_versions(&pair?.0)?);
            }
            self.logs.insert(pg, log);
        }
        Ok(self.logs.entry(pg).or_default())
    }

    fn log_changes(&mut self, pg: PgId, delta: &LogDelta, changes: &mut Changes) -> Result<()> {
        let meta = self.meta.clone();
        let StoredLog { chunks, trimmed } = self.stored_log(pg)?;
        // A key deleted and written again must appear once.
        let mut own: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        if delta.reset {
            for (first, last) in chunks.drain(..) {
                own.insert(keys::log_chunk(pg, first, last), None);
            }
            *trimmed = None;
            own.insert(keys::log_trim(pg), None);
        }
        if let Some(to) = delta.rewind {
            while let Some((first, last)) = chunks.pop_back_if(|(_, last)| *last > to) {
                let key = keys::log_chunk(pg, first, last);
                let value = meta
                    .get(&key)?
                    .ok_or_else(|| StoreError::corrupt(format!("log chunk of {pg} missing")))?;
                let mut kept = decode_chunk(&value)?;
                kept.retain(|(v, _)| *v <= to);
                own.insert(key, None);
                if let Some((last, _)) = kept.last() {
                    chunks.push_back((first, *last));
                    own.insert(keys::log_chunk(pg, first, *last), Some(encode_chunk(kept.iter())));
                }
            }
        }
        if let Some(to) = delta.trim {
            while let Some((first, last)) = chunks.pop_front_if(|(_, last)| *last <= to) {
                own.insert(keys::log_chunk(pg, first, last), None);
            }
            // An older trim may come after a newer one; it changes nothing.
            if *trimmed < Some(to) && chunks.front().is_some_and(|(first, _)| *first <= to) {
                *trimmed = Some(to);
                let mut o = Encoder::new();
                o.put(&to);
                own.insert(keys::log_trim(pg), Some(o.into_vec()));
            }
        }
        if let Some((first, _)) = delta.entries.front() {
            if *trimmed >= Some(*first) {
                // Rewound to before the trim, and grown again: nothing older is left, and
                // the trim must not hide what is new.
                for (first, last) in chunks.drain(..) {
                    own.insert(keys::log_chunk(pg, first, last), None);
                }
                *trimmed = None;
                own.insert(keys::log_trim(pg), None);
            }
            let entries: Vec<_> = delta.entries.iter().collect();
            let mut rest = entries.as_slice();
            while let (Some((first, _)), Some(n)) = (rest.first(), chunk_len(rest)) {
                let (part, more) = rest.split_at(n);
                rest = more;
                let last = part.last().map_or(*first, |(v, _)| *v);
                chunks.push_back((*first, last));
                own.insert(
                    keys::log_chunk(pg, *first, last),
                    Some(encode_chunk(part.iter().copied())),
                );
            }
        }
        changes.extend(own);
        Ok(())
    }

    /// Deletes some pairs of removed omaps; all of them while space is short.
    fn purge(&mut self) -> Result<()> {
        loop {
            self.purge_some()?;
            self.shared.dead.store(self.dead.len(), Ordering::Release);
            if self.dead.is_empty() || !self.shared.meta_short() {
                return Ok(());
            }
        }
    }

    /// Nothing refers to them, so this needs no journal. One that cannot be read stays, and is
    /// tried again after the next opening: it takes space, and stops nobody.
    fn purge_some(&mut self) -> Result<()> {
        let mut left = PURGE_STEP;
        let (mut changes, mut ranges) = (Changes::new(), Ranges::new());
        while let Some(&id) = self.dead.front() {
            let prefix = keys::omap(id, &[]);
            let mut end = keys::prefix_end(&prefix);
            let (mut done, mut damage) = (true, None);
            for pair in self.meta.range(&prefix, &end) {
                let (key, value) = match pair {
                    Ok(pair) => pair,
                    Err(e) => {
                        damage = Some(e);
                        break;
                    }
                };
                if left == 0 {
                    (end, done) = (key.to_vec(), false);
                    break;
                }
                left = left.saturating_sub(key.len() + value.len() + 64);
            }
            if let Some(e) = damage {
                tracing::error!(
                    "{e}: what omap {id}, which was removed, takes cannot be given back"
                );
                self.dead.pop_front();
                continue;
            }
            ranges.push((prefix, end));
            if !done && !planted!(PurgeForgetsRest) {
                break;
            }
            changes.push((keys::omap_header(id), None));
            changes.push((keys::dead(id), None));
            self.dead.pop_front();
        }
        if ranges.is_empty() {
            return Ok(());
        }
        self.commit_aside(&changes, &ranges)
    }
}

/// Changes of all but the logs.
fn overlay_changes(o: &Overlay, changes: &mut Changes) {
    let enc = |f: &dyn Fn(&mut Encoder)| {
        let mut e = Encoder::with_capacity(256);
        f(&mut e);
        e.into_vec()
    };
    for (key, onode) in &o.heads {
        changes.push((key.to_vec(), onode.as_ref().map(|n| enc(&|e| n.encode(e)))));
    }
    for ((id, seg), s) in &o.segments {
        changes.push((keys::segment(*id, *seg), s.as_ref().map(|s| enc(&|e| s.encode(e)))));
    }
    for (chunk, refs) in &o.refs {
        changes.push((keys::refs(*chunk), refs.as_ref().map(|r| enc(&|e| r.encode(e)))));
    }
    for (name, layer) in &o.layers {
        changes.push((keys::layer(*name), layer.as_ref().map(|l| enc(&|e| l.encode(e)))));
    }
    for (name, key) in &o.named {
        changes.push((keys::named(*name), key.as_ref().map(|k| k.to_vec())));
    }
    for (pool, space) in &o.pools {
        changes.push((keys::pool(*pool), (!space.is_zero()).then(|| enc(&|e| space.encode(e)))));
    }
    for ((id, key), value) in &o.omap {
        changes.push((keys::omap(*id, key), value.as_ref().map(|v| v.to_vec())));
    }
    for (id, more) in &o.omap_owners {
        changes.push((keys::omap_owners(*id), (*more > 0).then(|| more.to_le_bytes().to_vec())));
    }
    for (id, value) in &o.omap_headers {
        changes.push((keys::omap_header(*id), value.as_ref().map(|v| v.to_vec())));
    }
    for (key, value) in &o.meta {
        changes.push((keys::meta(key), value.as_ref().map(|v| v.to_vec())));
    }
    for id in &o.dead {
        changes.push((keys::dead(*id), Some(Vec::new())));
    }
}

/// How many of these entries make a chunk; `None`: there is none.
fn chunk_len(entries: &[&(EVersion, Bytes)]) -> Option<usize> {
    let mut sum = 0;
    let fits = entries.iter().take_while(|(_, e)| {
        sum += e.len();
        sum <= CHUNK_BYTES
    });
    (!entries.is_empty()).then(|| fits.count().max(1))
}

fn encode_chunk<'a>(entries: impl Iterator<Item = &'a (EVersion, Bytes)>) -> Vec<u8> {
    let mut o = Encoder::new();
    o.list(entries, |o, (v, e)| {
        o.put(v);
        o.put(e);
    });
    o.into_vec()
}

/// The newest trimmed version of a PG's log in the KV, if entries of it are still there.
pub(crate) fn stored_trim(meta: &MetaStore, pg: PgId) -> Result<Option<EVersion>> {
    let trimmed = meta.get(&keys::log_trim(pg))?;
    trimmed.map(|v| Decoder::new(&v).get().map_err(StoreError::corrupt)).transpose()
}

/// Entries of a log chunk.
pub(crate) fn decode_chunk(value: &[u8]) -> Result<Vec<(EVersion, Bytes)>> {
    let mut d = Decoder::new(value);
    d.list(16, |d| Ok((d.get()?, d.get()?))).map_err(StoreError::corrupt)
}
