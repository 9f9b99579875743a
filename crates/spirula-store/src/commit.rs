//! Commit: turns whatever transactions wait into one durable journal frame.
//!
//! Order on the devices: large payloads to their new blocks (by writers, as they come),
//! flush; frame, durable; acknowledge; small payloads to their new blocks (through the page cache: the frame
//! holds their images until the next checkpoint has flushed them). No delays: a frame
//! takes what came while the last one was written. On any error the store is poisoned:
//! nothing further is written or acknowledged.

use crate::checkpoint::Job;
use crate::device::{Aligned, BlockDevice};
use crate::error::{Result, StoreError};
use crate::journal::{self, FRAME_ALIGN, HEADER, RECORD_HEADER, Seal, Tail};
use crate::store::JOURNALED_PAYLOAD;
use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_types::Uuid;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A frame takes no further record once it has this many bytes.
const FRAME_FULL: usize = 1 << 20;
/// Frames stop taking records whose payloads go straight to the device at this many bytes.
const DIRECT_FULL: usize = 16 << 20;
/// On the first lap the ring is overwritten with zeros in steps of this many bytes, ahead
/// of the frames: a write to space that was only reserved costs a file-system commit each.
const ZERO_AHEAD: u64 = 4 << 20;
/// After this long without work the last frame is marked as durable.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 2 } else { 100 });

/// A transaction on its way to the journal.
pub(crate) struct Record {
    pub seq: u64,
    pub redo: Vec<u8>,
    /// Data for freshly taken blocks: first block and whole blocks of content, in the
    /// order of the record's "taken" changes.
    pub pieces: Vec<(u64, Bytes)>,
    /// Where the pieces go.
    pub payload: Payload,
}

/// What becomes of a record's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// It is in the frame, and written to its blocks after it.
    Journaled,
    /// Straight to its blocks: not begun, under way, done.
    Direct,
    Writing,
    Written,
}

impl Record {
    pub fn data_len(&self) -> usize {
        self.pieces.iter().map(|(_, b)| b.len()).sum()
    }

    /// Its data is not in the journal.
    pub fn direct(&self) -> bool {
        self.payload != Payload::Journaled
    }

    /// Bytes it adds to a frame's body.
    pub fn body_len(&self) -> usize {
        RECORD_HEADER + self.redo.len() + if self.direct() { 0 } else { self.data_len() }
    }
}

pub(crate) enum Item {
    Record(Record),
    /// End the frame here and hand the job on once everything before it is durable.
    Checkpoint(Box<Job>),
}

#[derive(Default)]
pub(crate) struct Queue {
    pub items: VecDeque<Item>,
    /// Bytes of redo and payload waiting or being written.
    pub bytes: usize,
    pub stop: bool,
    /// Records whose data waits for a writer.
    unwritten: usize,
    /// The commit thread waits for `work`: waking it costs a system call, so ask first.
    sleeping: bool,
    /// The owner waits for `progress`.
    pub owner_waits: bool,
}

impl Queue {
    /// Can the first item go into a frame?
    fn ready(&self) -> bool {
        match self.items.front() {
            Some(Item::Record(r)) => matches!(r.payload, Payload::Journaled | Payload::Written),
            other => other.is_some(),
        }
    }

    /// The next payload to be written to its blocks, with its transaction.
    fn take_payload(&mut self) -> Option<(u64, Vec<(u64, Bytes)>)> {
        if self.unwritten == 0 {
            return None;
        }
        let record = self.items.iter_mut().find_map(|i| match i {
            Item::Record(r) if r.payload == Payload::Direct => Some(r),
            _ => None,
        })?;
        record.payload = Payload::Writing;
        self.unwritten -= 1;
        Some((record.seq, record.pieces.clone()))
    }

    /// Moves what goes into the next frame to `records`, and gives the checkpoint behind it.
    fn take_frame(&mut self, records: &mut Vec<Record>) -> Option<Box<Job>> {
        let (mut body, mut direct) = (0, 0);
        while body < FRAME_FULL && direct < DIRECT_FULL && self.ready() {
            match self.items.pop_front()? {
                Item::Record(r) => {
                    body += r.body_len();
                    direct += if r.direct() { r.data_len() } else { 0 };
                    records.push(r);
                }
                Item::Checkpoint(j) => return Some(j),
            }
        }
        None
    }
}

/// What the owner, the commit thread, the writers and the checkpoint thread share.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// The same for the writers.
    payloads: Condvar,
    progress: Condvar,
    /// Newest durable transaction.
    pub durable: AtomicU64,
    /// Newest transaction whose data stands in the data file.
    pub written: AtomicU64,
    /// Position behind the last durable frame.
    pub ring_head: AtomicU64,
    /// Position before which the ring may be overwritten.
    pub ring_tail: AtomicU64,
    /// Newest transaction in a finished checkpoint.
    pub checkpointed: AtomicU64,
    /// Newest generation of the superblock known to be durable.
    pub superblock: AtomicU64,
    /// Bytes that metadata may grow by beyond what commits to come may need; less than 0:
    /// nothing may be added.
    pub meta_slack: AtomicI64,
    /// Removed omaps whose pairs are not purged yet.
    pub dead: AtomicUsize,
    failed: AtomicBool,
    failure: Mutex<Option<StoreError>>,
    on_error: Mutex<Box<dyn Fn(StoreError) + Send>>,
}

impl Shared {
    pub fn new(seq: u64, head: u64, tail: u64, checkpointed: u64, on_error: Box<dyn Fn(StoreError) + Send>) -> Self {
        Self {
            queue: Mutex::default(),
            work: Condvar::new(),
            payloads: Condvar::new(),
            progress: Condvar::new(),
            durable: AtomicU64::new(seq),
            written: AtomicU64::new(seq),
            ring_head: AtomicU64::new(head),
            ring_tail: AtomicU64::new(tail),
            checkpointed: AtomicU64::new(checkpointed),
            superblock: AtomicU64::new(0),
            meta_slack: AtomicI64::new(0),
            dead: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            on_error: Mutex::new(on_error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, item: Item) {
        let mut q = self.lock();
        let mut direct = false;
        if let Item::Record(r) = &item {
            q.bytes += r.redo.len() + r.data_len();
            direct = r.direct();
            q.unwritten += usize::from(direct);
        }
        q.items.push_back(item);
        let wake = q.ready() && std::mem::take(&mut q.sleeping);
        drop(q);
        if direct {
            self.payloads.notify_one();
        }
        if wake {
            self.work.notify_one();
        }
    }

    /// Is there no space for more metadata?
    pub fn meta_short(&self) -> bool {
        self.meta_slack.load(Ordering::Acquire) < 0
    }

    /// Bytes queued or being written.
    pub fn queued_bytes(&self) -> usize {
        self.lock().bytes
    }

    pub fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
        self.payloads.notify_all();
    }

    /// Waits until `done` or the store has failed. Only the owner calls it.
    pub fn wait(&self, done: impl Fn(&Self, &Queue) -> bool) {
        let mut q = self.lock();
        while !done(self, &q) && !self.failed.load(Ordering::Acquire) {
            q.owner_waits = true;
            // The timeout only guards against a thread that died without a word.
            q = self.progress.wait_timeout(q, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner).0;
        }
        q.owner_waits = false;
    }

    /// Is `done` so, or has the store failed?
    pub fn met(&self, done: &impl Fn(&Self, &Queue) -> bool) -> bool {
        done(self, &self.lock()) || self.failed.load(Ordering::Acquire)
    }

    /// Something the owner may wait for has happened.
    pub fn notify_owner(&self) {
        if self.lock().owner_waits {
            self.progress.notify_all();
        }
    }

    /// Stops the store for good. The first failure is the one reported.
    pub fn poison(&self, e: StoreError) {
        let first = {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            let first = failure.is_none();
            if first {
                *failure = Some(e.clone());
                self.failed.store(true, Ordering::Release);
            }
            // Not held any longer: who has the queue may look at it.
            first
        };
        if first {
            tracing::error!(error = %e, "store stops");
            (self.on_error.lock().unwrap_or_else(PoisonError::into_inner))(e);
        }
        let _guard = self.lock();
        self.work.notify_all();
        self.payloads.notify_all();
        self.progress.notify_all();
    }

    /// # Errors
    /// [`StoreError::Poisoned`] after a failure.
    pub fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Err(StoreError::Poisoned(failure.as_ref().map_or_else(String::new, ToString::to_string)))
    }
}

/// The commit thread's state.
pub(crate) struct Committer {
    pub shared: Arc<Shared>,
    pub journal: Arc<dyn BlockDevice>,
    pub block: Arc<dyn BlockDevice>,
    pub ring_size: u64,
    /// The journal's device, as frames name it.
    pub device: Uuid,
    pub tail: Tail,
    /// A mark stands behind the last frame, or there is no need of one.
    pub marked: bool,
    /// Ring bytes, of the first lap, that hold written zeros or frames.
    pub zeroed: u64,
    pub pool: PayloadPool,
    pub on_commit: Box<dyn Fn(u64) + Send>,
    /// To the checkpoint thread; holds one job, and the owner has at most one under way.
    pub checkpoints: SyncSender<Job>,
}

impl Committer {
    /// Works until told to stop and everything queued is done, or until a failure.
    pub fn run(mut self) {
        let mut records: Vec<Record> = Vec::new();
        loop {
            let job;
            {
                let mut q = self.shared.lock();
                while !(q.ready() || q.items.is_empty() && q.stop) {
                    if self.shared.check().is_err() {
                        return;
                    }
                    q.sleeping = true;
                    if self.marked || !q.items.is_empty() {
                        q = self.shared.work.wait(q).unwrap_or_else(PoisonError::into_inner);
                        continue;
                    }
                    let (again, waited) =
                        self.shared.work.wait_timeout(q, IDLE).unwrap_or_else(PoisonError::into_inner);
                    q = again;
                    if waited.timed_out() && q.items.is_empty() && !q.stop {
                        drop(q);
                        if let Err(e) = self.shared.check().and_then(|()| self.write_mark()) {
                            self.fail(e);
                            return;
                        }
                        q = self.shared.lock();
                    }
                }
                if q.items.is_empty() {
                    return;
                }
                job = q.take_frame(&mut records);
            }
            if !self.commit_frame(&mut records, job) {
                return;
            }
        }
    }

    /// Does what waits in the queue, or else notes that nothing does; false if there was
    /// nothing to do. For a store without threads.
    pub fn step(&mut self) -> bool {
        let mut records = Vec::new();
        let (job, empty) = {
            let mut q = self.shared.lock();
            (q.take_frame(&mut records), q.items.is_empty())
        };
        if job.is_some() || !records.is_empty() {
            return self.commit_frame(&mut records, job);
        }
        if self.marked || !empty {
            return false;
        }
        if let Err(e) = self.shared.check().and_then(|()| self.write_mark()) {
            self.fail(e);
        }
        true
    }

    /// Makes one frame durable and hands on the checkpoint behind it; false after a failure.
    fn commit_frame(&mut self, records: &mut Vec<Record>, job: Option<Box<Job>>) -> bool {
        if let Err(e) = self.shared.check().and_then(|()| self.commit(records)) {
            self.fail(e);
            return false;
        }
        let bytes: usize = records.iter().map(|r| r.redo.len() + r.data_len()).sum();
        records.clear();
        if let Some(mut job) = job {
            job.end = self.tail.at;
            // A send fails only when the checkpoint thread has failed and said so.
            let _ = self.checkpoints.send(*job);
        }
        self.shared.lock().bytes -= bytes;
        self.shared.notify_owner();
        true
    }

    fn fail(&self, e: StoreError) {
        if !matches!(e, StoreError::Poisoned(_)) {
            self.shared.poison(e);
        }
    }

    /// Lets the next mount know that the last frame had been durable, should it be damaged.
    fn write_mark(&mut self) -> Result<()> {
        self.marked = true;
        let used = self.tail.at.offset - self.shared.ring_tail.load(Ordering::Acquire);
        let at = self.tail.at.offset % self.ring_size;
        // A full ring has no room for it: there the oldest frame begins.
        if used + FRAME_ALIGN > self.ring_size {
            return Ok(());
        }
        let mut block = Aligned::new(FRAME_ALIGN as usize);
        let mark = journal::mark(self.tail, self.device, self.shared.superblock.load(Ordering::Acquire));
        block.as_mut()[..mark.len()].copy_from_slice(&mark);
        self.journal.write_durable(block.as_ref(), at).map_err(|e| StoreError::io("write", self.journal.name(), e))
    }

    fn commit(&mut self, records: &[Record]) -> Result<()> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
        if records.iter().any(Record::direct) && !planted!(FrameBeforeData) {
            self.block.flush().map_err(|e| StoreError::io("flush", self.block.name(), e))?;
        }
        if planted!(AcknowledgedEarly) {
            (self.on_commit)(last.seq);
        }
        self.write_frame(records, first.seq)?;
        self.shared.ring_head.store(self.tail.at.offset, Ordering::Release);
        self.shared.durable.store(last.seq, Ordering::Release);
        (self.on_commit)(last.seq);
        write_pieces(&*self.block, records.iter().filter(|r| !r.direct()).flat_map(|r| &r.pieces))?;
        self.shared.written.store(last.seq, Ordering::Release);
        Ok(())
    }

    fn write_frame(&mut self, records: &[Record], first_seq: u64) -> Result<()> {
        let body: usize = records.iter().map(Record::body_len).sum();
        let size = journal::frame_size(body);
        let end = self.tail.at.offset + size;
        // The owner admits no more than the ring holds.
        assert!(end - self.shared.ring_tail.load(Ordering::Acquire) <= self.ring_size, "journal overrun");
        self.zero_ahead(end)?;
        let mut buf = self.pool.take(size as usize);
        buf.set_len(HEADER);
        for r in records {
            buf.extend(&r.seq.to_le_bytes());
            buf.extend(&(r.redo.len() as u32).to_le_bytes());
            let images = if r.direct() { 0 } else { r.data_len() };
            buf.extend(&(images as u32).to_le_bytes());
            buf.extend(&r.redo);
            if !r.direct() {
                for (_, data) in &r.pieces {
                    buf.extend(data);
                }
            }
        }
        let used = buf.len();
        let frame = buf.whole().get_mut(..size as usize).unwrap_or_default();
        frame[used..].fill(0);
        let superblock = self.shared.superblock.load(Ordering::Acquire);
        let seal = Seal { device: self.device, superblock, first_seq, count: records.len() as u32, body };
        let next = journal::seal(frame, self.tail, &seal);
        let at = self.tail.at.offset % self.ring_size;
        let (a, b) = frame.split_at((self.ring_size - at).min(size) as usize);
        let fail = |e| StoreError::io("write", self.journal.name(), e);
        self.journal.write_durable(a, at).map_err(fail)?;
        if !b.is_empty() {
            self.journal.write_durable(b, 0).map_err(fail)?;
        }
        self.tail = next;
        self.marked = false;
        Ok(())
    }

    fn zero_ahead(&mut self, end: u64) -> Result<()> {
        while self.zeroed < end.min(self.ring_size) {
            // Only on the first lap, and only ahead of every frame: nothing live is there.
            let from = self.zeroed.max(self.tail.at.offset);
            let n = ZERO_AHEAD.min(self.ring_size - from);
            let mut zeros = self.pool.take(n as usize);
            let zeros = zeros.whole().get_mut(..n as usize).unwrap_or_default();
            zeros.fill(0);
            self.journal.write_durable(zeros, from).map_err(|e| StoreError::io("write", self.journal.name(), e))?;
            self.zeroed = from + n;
        }
        Ok(())
    }
}

/// A thread that writes large payloads to their blocks as they come, ahead of the frames
/// that refer to them.
#[derive(Clone)]
pub(crate) struct Writer {
    pub shared: Arc<Shared>,
    pub block: Arc<dyn BlockDevice>,
}

impl Writer {
    /// Works until told to stop and nothing is left to write, or until a failure.
    pub fn run(self) {
        let mut q = self.shared.lock();
        while self.shared.check().is_ok() {
            let Some((seq, pieces)) = q.take_payload() else {
                if q.stop {
                    return;
                }
                q = self.shared.payloads.wait(q).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(q);
            if !self.write(seq, &pieces) {
                return;
            }
            drop(pieces);
            q = self.shared.lock();
        }
    }

    /// Writes one payload that waits; false if none does. For a store without threads.
    pub fn step(&self) -> bool {
        let next = if self.shared.check().is_ok() { self.shared.lock().take_payload() } else { None };
        next.is_some_and(|(seq, pieces)| self.write(seq, &pieces))
    }

    /// Writes a transaction's payload; false after a failure.
    fn write(&self, seq: u64, pieces: &[(u64, Bytes)]) -> bool {
        if let Err(e) = write_pieces(&*self.block, pieces.iter()) {
            self.shared.poison(e);
            return false;
        }
        let mut q = self.shared.lock();
        // Its frame waits for it, so it is still there.
        let done = q.items.iter_mut().find_map(|i| match i {
            Item::Record(r) if r.seq == seq => Some(r),
            _ => None,
        });
        if let Some(record) = done {
            record.payload = Payload::Written;
        }
        if q.ready() && std::mem::take(&mut q.sleeping) {
            self.shared.work.notify_one();
        }
        true
    }
}

/// Writes pieces to their blocks, small adjacent ones together (large ones go without a
/// copy when alone).
fn write_pieces<'a>(block: &dyn BlockDevice, pieces: impl Iterator<Item = &'a (u64, Bytes)>) -> Result<()> {
    let mut pieces: Vec<&(u64, Bytes)> = pieces.collect();
    // Blocks freed and taken again within a frame do not occur: a block is taken again
    // only after its freeing is durable. So the order of writes does not matter.
    pieces.sort_unstable_by_key(|(start, _)| *start);
    let mut bufs: Vec<&[u8]> = Vec::with_capacity(pieces.len());
    let mut rest = pieces.as_slice();
    while let Some((start, _)) = rest.first() {
        bufs.clear();
        let mut end = *start;
        while let Some((next, data)) = rest.first()
            && *next == end
            && (bufs.is_empty() || data.len() < JOURNALED_PAYLOAD)
        {
            bufs.push(data);
            end += data.len() as u64 / crate::BLOCK;
            rest = &rest[1..];
        }
        let at = *start * crate::BLOCK;
        block.write_at(&bufs, at).map_err(|e| StoreError::io("write", block.name(), e))?;
    }
    Ok(())
}
