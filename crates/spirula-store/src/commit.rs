//! Commit: turns whatever transactions wait into durable journal frames.
//!
//! Order on the devices: large payloads to their new blocks and a flush (by writers, as
//! they come); frame, durable; acknowledge; small payloads to their new blocks (through the
//! page cache: the frame holds their images until the next checkpoint has flushed them). No
//! delays: a frame takes what came while the last one was written.
//!
//! Several committers do this in turn, so that frames overlap: one is made while others are
//! being written, and what a frame held goes to its blocks while the next is on its way.
//! Frames are made one at a time, in the order of the ring; they may become durable in any
//! order, but count, and are acknowledged, only when all before them are durable. On a
//! device that answers at once a frame waits for the one before, unless much has gathered:
//! larger frames cost less. On any error the store is poisoned: nothing further is written
//! or acknowledged.

use crate::checkpoint::Job;
use crate::device::{Aligned, BlockDevice};
use crate::error::{Result, StoreError};
use crate::journal::{self, FRAME_ALIGN, HEADER, Position, RECORD_HEADER, Seal, Tail};
use crate::overlay::Overlay;
use crate::store::JOURNALED_PAYLOAD;
use bytes::Bytes;
use spirula_buffer::{PayloadBuf, PayloadPool};
use spirula_types::Uuid;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A frame takes no further record once it has this many bytes.
const FRAME_FULL: usize = 1 << 20;
/// Frames stop taking records whose payloads go straight to the device at this many bytes.
const DIRECT_FULL: usize = 16 << 20;
/// On the first lap the ring is overwritten with zeros in steps of this many bytes, ahead
/// of the frames: a write to space that was only reserved costs a file-system commit each.
const ZERO_AHEAD: u64 = 4 << 20;
/// Most frames being written at a time.
const FLIGHTS: usize = 3;
/// Threads that commit: one puts payloads in place while the others have frames under way.
pub(crate) const COMMITTERS: usize = FLIGHTS + 1;
/// Where frames take at least this long (microseconds), the next one does not wait for them.
const SLOW: u64 = 400;
/// Nor does it with a body of this many bytes.
const LARGE_BODY: usize = 128 << 10;
/// After this long without work the last frame is marked as durable.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 2 } else { 100 });

/// A transaction on its way to the journal.
pub(crate) struct Record {
    pub seq: u64,
    pub redo: Vec<u8>,
    /// Data for freshly taken blocks: first block and whole blocks of content, in the
    /// order of the record's "taken" changes.
    pub pieces: Vec<(u64, Bytes)>,
    /// The pieces go straight to their blocks, before the frame. Else they are in the frame,
    /// and written to their blocks after it.
    pub direct: bool,
}

impl Record {
    pub fn data_len(&self) -> usize {
        self.pieces.iter().map(|(_, b)| b.len()).sum()
    }

    /// Bytes it adds to a frame's body.
    pub fn body_len(&self) -> usize {
        RECORD_HEADER + self.redo.len() + if self.direct { 0 } else { self.data_len() }
    }
}

pub(crate) enum Item {
    Record(Record),
    /// End the frame here and hand the job on once everything before it is in its place.
    Checkpoint(Box<Job>),
}

/// How far the data of a direct record is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Writing,
    /// Written, not flushed.
    Written,
    Durable,
}

/// Data that goes straight to its blocks.
struct Direct {
    seq: u64,
    progress: Progress,
    pieces: Vec<(u64, Bytes)>,
}

/// A frame on its way: what it holds once it is durable.
struct Flight {
    id: u64,
    /// Its number, or that of the next one if it is only a checkpoint.
    frame: u64,
    body: usize,
    landed: Option<Landed>,
}

/// What is to be done behind a durable frame.
struct Landed {
    records: Vec<Record>,
    job: Option<Box<Job>>,
    end: Position,
}

/// What a committer took on.
struct Batch {
    id: u64,
    records: Vec<Record>,
    job: Option<Box<Job>>,
    /// Frames before this number are durable.
    durable: u64,
}

#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    /// Bytes of frames' bodies in `items`.
    body: usize,
    /// The data of direct records among `items`, in the same order.
    direct: VecDeque<Direct>,
    /// A writer is flushing.
    flushing: bool,
    /// Frames being made or written, oldest first.
    flights: VecDeque<Flight>,
    /// One is being made, or a mark written: the ring's end is in use.
    making: bool,
    /// Numbers of the next flight and of the next frame.
    next_flight: u64,
    next_frame: u64,
    /// A mark stands behind the last frame, or there is no need of one.
    marked: bool,
    /// Somebody waits for the time to write one.
    marker: bool,
    /// Somebody puts payloads in place, and will look for more to do.
    placing: bool,
    /// How long half of the frames take at most, microseconds, roughly.
    latency: u64,
    stop: bool,
    /// Committers that wait for `work`, and whether one of them was woken: that costs a
    /// system call, so ask first. The first committer by himself: as long as he can do the
    /// work, he does, and has what he needs in his processor's caches.
    sleeping: [usize; 2],
    woken: [bool; 2],
    /// The same for writers and `payloads`.
    writers_sleeping: usize,
    /// An overlay that is in the metadata now. To free millions of entries takes longer than
    /// the owner should: a writer does.
    spent: Option<Arc<Overlay>>,
    /// The owner waits for `progress`.
    pub owner_waits: bool,
}

impl Queue {
    /// Can the first item go into a frame?
    fn ready(&self) -> bool {
        match self.items.front() {
            Some(Item::Record(r)) if r.direct => {
                self.direct.front().is_some_and(|d| d.progress == Progress::Durable)
            }
            first => first.is_some(),
        }
    }

    /// A frame took so long (microseconds). A few that took very long, as when others have the
    /// processor, say nothing about the device: the median counts, not the mean.
    fn took(&mut self, us: u64) {
        let step = self.latency / 16 + 1;
        self.latency =
            if us > self.latency { self.latency + step } else { self.latency.saturating_sub(step) };
    }

    /// Do frames take long? In tests they do, so that they overlap.
    fn slow(&self) -> bool {
        cfg!(test) || self.latency >= SLOW
    }

    /// May another frame be made?
    fn may_start(&self) -> bool {
        if self.making || !self.ready() {
            return false;
        }
        let Some(last) = self.flights.back() else { return true };
        let enough = if self.slow() { last.body } else { LARGE_BODY };
        self.flights.len() < FLIGHTS && self.body >= enough
    }

    /// The data of these records is so far.
    fn advance(&mut self, seqs: &[u64], progress: Progress) {
        // Their frames wait for them, so they are still there.
        self.direct
            .iter_mut()
            .filter(|d| seqs.contains(&d.seq))
            .for_each(|d| d.progress = progress);
    }

    /// The next payload to be written to its blocks, with its transaction.
    fn take_payload(&mut self) -> Option<(u64, Vec<(u64, Bytes)>)> {
        let next = self.direct.iter_mut().find(|d| d.progress == Progress::Waiting)?;
        next.progress = Progress::Writing;
        Some((next.seq, std::mem::take(&mut next.pieces)))
    }

    /// The transactions whose payloads are written and not flushed, to be flushed by the
    /// caller. A flush covers only what was written when it began; what comes meanwhile is
    /// for the next one.
    fn take_unflushed(&mut self) -> Option<Vec<u64>> {
        if self.flushing {
            return None;
        }
        let written = self.direct.iter().filter(|d| d.progress == Progress::Written);
        let written: Vec<u64> = written.map(|d| d.seq).collect();
        self.flushing = !written.is_empty();
        self.flushing.then_some(written)
    }

    /// Which committer should be woken, if any. Not for little that one who is about to be
    /// done with putting payloads in place will take himself: waking costs more than waiting.
    fn wake(&mut self) -> Option<usize> {
        let soon =
            self.placing && self.flights.is_empty() && self.body < LARGE_BODY && !self.slow();
        if soon || self.woken[0] || !self.may_start() {
            return None;
        }
        let who = (0..2).find(|who| self.sleeping[*who] > 0 && !self.woken[*who])?;
        self.woken[who] = true;
        Some(who)
    }

    /// Takes what goes into the next frame.
    fn take(&mut self) -> Batch {
        let (mut body, mut direct) = (0, 0);
        let (mut records, mut job) = (Vec::new(), None);
        while body < FRAME_FULL && direct < DIRECT_FULL && self.ready() {
            match self.items.pop_front() {
                Some(Item::Record(r)) => {
                    body += r.body_len();
                    if r.direct {
                        direct += r.data_len();
                        self.direct.pop_front();
                    }
                    records.push(r);
                }
                Some(Item::Checkpoint(j)) => {
                    job = Some(j);
                    break;
                }
                None => break,
            }
        }
        self.body -= body;
        self.making = true;
        let (id, frame) = (self.next_flight, self.next_frame);
        let durable = self.flights.front().map_or(frame, |f| f.frame);
        self.next_flight += 1;
        self.next_frame += u64::from(!records.is_empty());
        self.flights.push_back(Flight { id, frame, body, landed: None });
        Batch { id, records, job, durable }
    }
}

/// What the owner, the committers, the writers and the checkpoint thread share.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    /// Of the first committer, and of the others.
    work: [Condvar; 2],
    /// The same for the writers.
    payloads: Condvar,
    progress: Condvar,
    /// Bytes of redo and payload waiting or being written.
    queued: AtomicUsize,
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

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(
        seq: u64,
        head: u64,
        tail: u64,
        checkpointed: u64,
        on_error: Box<dyn Fn(StoreError) + Send>,
    ) -> Self {
        Self {
            // The superblock written at an opening says where the journal ends.
            queue: Mutex::new(Queue { marked: true, ..Queue::default() }),
            work: Default::default(),
            payloads: Condvar::new(),
            progress: Condvar::new(),
            queued: AtomicUsize::new(0),
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
        hold(&self.queue)
    }

    pub fn push(&self, item: Item) {
        let mut direct = None;
        let mut body = 0;
        if let Item::Record(r) = &item {
            self.queued.fetch_add(r.redo.len() + r.data_len(), Ordering::Relaxed);
            body = r.body_len();
            direct = r.direct.then(|| Direct {
                seq: r.seq,
                progress: Progress::Waiting,
                pieces: r.pieces.clone(),
            });
        }
        let mut q = self.lock();
        q.body += body;
        q.items.push_back(item);
        let write = direct.is_some() && q.writers_sleeping > 0;
        q.direct.extend(direct);
        let wake = q.wake();
        drop(q);
        if write {
            self.payloads.notify_one();
        }
        if let Some(who) = wake {
            self.work[who].notify_one();
        }
    }

    /// Lets a writer free an overlay: at once, or when it is done with what it writes. If not even
    /// the one before is freed yet, the caller does it.
    pub fn discard(&self, overlay: Arc<Overlay>) {
        let mut q = self.lock();
        let wake = q.writers_sleeping > 0;
        let left = if q.spent.is_none() { q.spent.replace(overlay) } else { Some(overlay) };
        drop(q);
        if wake {
            self.payloads.notify_one();
        }
        drop(left);
    }

    /// Is there no space for more metadata?
    pub fn meta_short(&self) -> bool {
        self.meta_slack.load(Ordering::Acquire) < 0
    }

    /// Bytes queued or being written.
    pub fn queued_bytes(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.lock().stop = true;
        self.work.iter().for_each(Condvar::notify_all);
        self.payloads.notify_all();
    }

    /// Is there nothing to do, and the last frame marked as durable?
    #[cfg(test)]
    pub fn rests(&self) -> bool {
        let q = self.lock();
        q.items.is_empty() && q.flights.is_empty() && q.marked && !q.making
    }

    /// Waits until `done` or the store has failed. Only the owner calls it.
    pub fn wait(&self, done: impl Fn(&Self) -> bool) {
        let mut q = self.lock();
        while !self.met(&done) {
            q.owner_waits = true;
            // The timeout only guards against a thread that died without a word.
            q = self
                .progress
                .wait_timeout(q, Duration::from_secs(1))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        q.owner_waits = false;
    }

    /// Is `done` so, or has the store failed?
    pub fn met(&self, done: &impl Fn(&Self) -> bool) -> bool {
        done(self) || self.failed.load(Ordering::Acquire)
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
            let mut failure = hold(&self.failure);
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
            (hold(&self.on_error))(e);
        }
        let _guard = self.lock();
        self.work.iter().for_each(Condvar::notify_all);
        self.payloads.notify_all();
        self.progress.notify_all();
    }

    /// # Errors
    /// [`StoreError::Poisoned`] after a failure.
    pub fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(StoreError::Poisoned(
            hold(&self.failure).as_ref().map_or_else(String::new, ToString::to_string),
        ))
    }
}

/// The end of the ring. Used by whoever has set [`Queue::making`].
pub(crate) struct RingEnd {
    pub tail: Tail,
    /// Ring bytes, of the first lap, that hold written zeros or frames.
    pub zeroed: u64,
}

/// What the committers share.
pub(crate) struct Committer {
    pub shared: Arc<Shared>,
    pub journal: Arc<dyn BlockDevice>,
    pub block: Arc<dyn BlockDevice>,
    pub ring_size: u64,
    /// The journal's device, as frames name it.
    pub device: Uuid,
    pub end: Mutex<RingEnd>,
    pub pool: PayloadPool,
    /// Held while transactions are acknowledged: they are in order.
    pub on_commit: Mutex<Box<dyn Fn(u64) + Send>>,
    /// Durable frames whose payloads are to be put in place, oldest first.
    landed: Mutex<VecDeque<Landed>>,
    /// Held by who puts them there.
    placing: Mutex<()>,
    /// To the checkpoint thread; holds one job, and the owner has at most one under way.
    pub checkpoints: SyncSender<Job>,
}

impl Committer {
    #[allow(clippy::too_many_arguments, reason = "called once, with what open has gathered")]
    pub fn new(
        shared: Arc<Shared>,
        journal: Arc<dyn BlockDevice>,
        block: Arc<dyn BlockDevice>,
        ring_size: u64,
        device: Uuid,
        end: RingEnd,
        pool: PayloadPool,
        on_commit: Box<dyn Fn(u64) + Send>,
        checkpoints: SyncSender<Job>,
    ) -> Self {
        shared.lock().next_frame = end.tail.at.frame;
        let (end, on_commit) = (Mutex::new(end), Mutex::new(on_commit));
        let (landed, placing) = (Mutex::default(), Mutex::default());
        Self {
            shared,
            journal,
            block,
            ring_size,
            device,
            end,
            pool,
            on_commit,
            landed,
            placing,
            checkpoints,
        }
    }

    /// Works until told to stop and everything queued is done, or until a failure. For one
    /// of [`COMMITTERS`] threads, of which one is the first.
    pub fn run(&self, first: bool) {
        while let Some(batch) = self.next(usize::from(!first)) {
            if !self.done(|| self.commit(batch)) {
                return;
            }
        }
    }

    /// Does what waits in the queue, or else notes that nothing does; false if there was
    /// nothing to do. For a store without threads.
    pub fn step(&self) -> bool {
        let batch = {
            let mut q = self.shared.lock();
            if q.may_start() {
                Some(q.take())
            } else if q.marked || !q.items.is_empty() {
                return false;
            } else {
                q.marked = true;
                None
            }
        };
        self.done(|| batch.map_or_else(|| self.write_mark(), |batch| self.commit(batch)))
    }

    /// Does something, unless the store has failed; false if it has then.
    fn done(&self, work: impl FnOnce() -> Result<()>) -> bool {
        let done = self.shared.check().and_then(|()| work());
        match done {
            Ok(()) => return true,
            Err(StoreError::Poisoned(_)) => {}
            Err(e) => self.shared.poison(e),
        }
        false
    }

    /// Waits for the next frame's content.
    fn next(&self, who: usize) -> Option<Batch> {
        let work = &self.shared.work[who];
        let mut q = self.shared.lock();
        q.placing = false;
        loop {
            if self.shared.check().is_err() {
                return None;
            }
            if q.may_start() {
                return Some(q.take());
            }
            if q.stop && q.items.is_empty() {
                // The others may have gone back to sleep when there was something left.
                self.shared.work.iter().for_each(Condvar::notify_all);
                return None;
            }
            let idle = q.items.is_empty() && q.flights.is_empty() && !q.marked && !q.marker;
            q.sleeping[who] += 1;
            if !idle {
                q = work.wait(q).unwrap_or_else(PoisonError::into_inner);
                (q.sleeping[who], q.woken[who]) = (q.sleeping[who] - 1, false);
                continue;
            }
            q.marker = true;
            let (again, waited) =
                work.wait_timeout(q, IDLE).unwrap_or_else(PoisonError::into_inner);
            q = again;
            (q.sleeping[who], q.woken[who], q.marker) = (q.sleeping[who] - 1, false, false);
            if waited.timed_out()
                && q.items.is_empty()
                && q.flights.is_empty()
                && !q.making
                && !q.stop
            {
                (q.making, q.marked) = (true, true);
                drop(q);
                if !self.done(|| self.write_mark()) {
                    return None;
                }
                q = self.shared.lock();
                q.making = false;
            }
        }
    }

    /// Lets the next mount know that the last frame had been durable, should it be damaged.
    fn write_mark(&self) -> Result<()> {
        let tail = hold(&self.end).tail;
        let used = tail.at.offset - self.shared.ring_tail.load(Ordering::Acquire);
        let at = tail.at.offset % self.ring_size;
        // A full ring has no room for it: there the oldest frame begins.
        if used + FRAME_ALIGN > self.ring_size {
            return Ok(());
        }
        let mut block = Aligned::new(FRAME_ALIGN as usize);
        let mark = journal::mark(tail, self.device, self.shared.superblock.load(Ordering::Acquire));
        block.as_mut()[..mark.len()].copy_from_slice(&mark);
        self.journal
            .write_durable(block.as_ref(), at)
            .map_err(|e| StoreError::io("write", self.journal.name(), e))
    }

    /// Makes, writes and finishes a frame.
    fn commit(&self, batch: Batch) -> Result<()> {
        let Batch { id, records, job, durable } = batch;
        let begun = Instant::now();
        if planted!(AcknowledgedEarly)
            && let Some(last) = records.last()
        {
            (hold(&self.on_commit))(last.seq);
        }
        let (frame, at, end) = {
            let mut end = hold(&self.end);
            let (frame, at) = match self.make_frame(&mut end, &records, durable)? {
                Some((frame, at)) => (Some(frame), at),
                None => (None, 0),
            };
            (frame, at, end.tail.at)
        };
        let wake = {
            let mut q = self.shared.lock();
            q.making = false;
            q.marked &= frame.is_none();
            q.wake()
        };
        if let Some(who) = wake {
            self.shared.work[who].notify_one();
        }
        if let Some(mut frame) = frame {
            let size = frame.len();
            let whole = frame.whole().get_mut(..size).unwrap_or_default();
            let (a, b) = whole.split_at((self.ring_size - at).min(size as u64) as usize);
            let fail = |e| StoreError::io("write", self.journal.name(), e);
            self.journal.write_durable(a, at).map_err(fail)?;
            if !b.is_empty() {
                self.journal.write_durable(b, 0).map_err(fail)?;
            }
        }
        self.land(id, Landed { records, job, end }, begun)
    }

    /// The next frame with its place on the device. `None` if there is nothing to journal.
    fn make_frame(
        &self,
        end: &mut RingEnd,
        records: &[Record],
        durable: u64,
    ) -> Result<Option<(PayloadBuf, u64)>> {
        let Some(first) = records.first() else { return Ok(None) };
        let body: usize = records.iter().map(Record::body_len).sum();
        let size = journal::frame_size(body);
        let next = end.tail.at.offset + size;
        // The owner admits no more than the ring holds.
        assert!(
            next - self.shared.ring_tail.load(Ordering::Acquire) <= self.ring_size,
            "journal overrun"
        );
        self.zero_ahead(end, next)?;
        let mut buf = self.pool.take(size as usize);
        buf.set_len(HEADER);
        for r in records {
            let images = if r.direct { 0 } else { r.data_len() };
            let mut header = [0; RECORD_HEADER];
            header[..8].copy_from_slice(&r.seq.to_le_bytes());
            header[8..12].copy_from_slice(&(r.redo.len() as u32).to_le_bytes());
            header[12..].copy_from_slice(&(images as u32).to_le_bytes());
            buf.extend(&header);
            buf.extend(&r.redo);
            if !r.direct {
                for (_, data) in &r.pieces {
                    buf.extend(data);
                }
            }
        }
        let used = buf.len();
        buf.set_len(size as usize);
        let frame = buf.whole().get_mut(..size as usize).unwrap_or_default();
        frame[used..].fill(0);
        let superblock = self.shared.superblock.load(Ordering::Acquire);
        let (first_seq, count) = (first.seq, records.len() as u32);
        let seal = Seal { device: self.device, durable, superblock, first_seq, count, body };
        let at = end.tail.at.offset % self.ring_size;
        end.tail = journal::seal(frame, end.tail, &seal);
        Ok(Some((buf, at)))
    }

    fn zero_ahead(&self, end: &mut RingEnd, next: u64) -> Result<()> {
        while end.zeroed < next.min(self.ring_size) {
            // Only on the first lap, and only ahead of every frame: nothing live is there.
            let from = end.zeroed.max(end.tail.at.offset);
            let n = ZERO_AHEAD.min(self.ring_size - from);
            let mut zeros = self.pool.take(n as usize);
            let zeros = zeros.whole().get_mut(..n as usize).unwrap_or_default();
            zeros.fill(0);
            self.journal
                .write_durable(zeros, from)
                .map_err(|e| StoreError::io("write", self.journal.name(), e))?;
            end.zeroed = from + n;
        }
        Ok(())
    }

    /// The frame of a flight is durable. Acknowledges it and those after it that have waited
    /// for it; does nothing yet if one before it is still under way.
    fn land(&self, id: u64, landed: Landed, begun: Instant) -> Result<()> {
        let acknowledge = hold(&self.on_commit);
        self.shared.check()?;
        if planted!(FrameOvertakes)
            && let Some(last) = landed.records.last()
        {
            acknowledge(last.seq);
        }
        let mut done: Vec<Landed> = Vec::new();
        let wake = {
            let mut q = self.shared.lock();
            q.took(begun.elapsed().as_micros() as u64);
            if let Some(flight) = q.flights.iter_mut().find(|f| f.id == id) {
                flight.landed = Some(landed);
            }
            while let Some(f) = q.flights.pop_front_if(|f| f.landed.is_some()) {
                done.extend(f.landed);
            }
            q.placing |= !done.is_empty();
            q.wake()
        };
        if let Some(who) = wake {
            self.shared.work[who].notify_one();
        }
        let Some(last) = done.last() else { return Ok(()) };
        self.shared.ring_head.store(last.end.offset, Ordering::Release);
        if let Some(last) = done.iter().rev().find_map(|l| l.records.last()) {
            self.shared.durable.store(last.seq, Ordering::Release);
            acknowledge(last.seq);
        }
        hold(&self.landed).extend(done);
        drop(acknowledge);
        self.shared.notify_owner();
        self.place()
    }

    /// Do payloads take so much of their memory that whoever brings new ones may have to wait for
    /// it?
    fn is_memory_short(&self) -> bool {
        self.pool.outstanding() > self.pool.budget() / 4
    }

    /// Puts payloads in place, unless somebody does: he will find what has come.
    fn place(&self) -> Result<()> {
        loop {
            let placing = match self.placing.try_lock() {
                Ok(placing) => placing,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
                Err(TryLockError::WouldBlock) => return Ok(()),
            };
            loop {
                let Some(Landed { records, job, end }) = hold(&self.landed).pop_front() else {
                    break;
                };
                self.shared.check()?;
                write_pieces(
                    &*self.block,
                    records.iter().filter(|r| !r.direct).flat_map(|r| &r.pieces),
                )?;
                if let Some(last) = records.last() {
                    self.shared.written.store(last.seq, Ordering::Release);
                }
                let bytes: usize = records.iter().map(|r| r.redo.len() + r.data_len()).sum();
                self.shared.queued.fetch_sub(bytes, Ordering::Relaxed);
                let placed = !records.is_empty();
                drop(records);
                if let Some(mut job) = job {
                    job.end = end;
                    // A send fails only when the checkpoint thread has failed and said so.
                    let _ = self.checkpoints.send(*job);
                }
                self.shared.notify_owner();
                if placed && self.is_memory_short() {
                    // The owner still holds these payloads, and may hear of nothing else: whoever
                    // would bring it more work may be waiting for this very memory.
                    let tell = hold(&self.on_commit);
                    tell(self.shared.durable.load(Ordering::Acquire));
                }
            }
            drop(placing);
            if hold(&self.landed).is_empty() {
                return Ok(());
            }
        }
    }
}

/// A thread that writes large payloads to their blocks as they come, ahead of the frames
/// that refer to them, and makes them durable: while one flushes what several have written,
/// the others go on.
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
            let going_on = if let Some(written) = q.take_unflushed() {
                drop(q);
                self.flush(&written)
            } else if let Some(spent) = q.spent.take() {
                // Before more is written, or it would never come to that where writes never end.
                drop(q);
                drop(spent);
                true
            } else if let Some((seq, pieces)) = q.take_payload() {
                drop(q);
                self.write(seq, pieces)
            } else if q.stop {
                // What others are writing, they or who is flushing will flush.
                return;
            } else {
                q.writers_sleeping += 1;
                q = self.shared.payloads.wait(q).unwrap_or_else(PoisonError::into_inner);
                q.writers_sleeping -= 1;
                continue;
            };
            if !going_on {
                return;
            }
            q = self.shared.lock();
        }
    }

    /// Writes one payload that waits and makes it durable; false if none does. For a store
    /// without threads.
    pub fn step(&self) -> bool {
        drop(self.shared.lock().spent.take());
        let next =
            if self.shared.check().is_ok() { self.shared.lock().take_payload() } else { None };
        let Some((seq, pieces)) = next else { return false };
        self.write(seq, pieces) && {
            let written = self.shared.lock().take_unflushed();
            written.is_some_and(|written| self.flush(&written))
        }
    }

    /// Writes a transaction's payload; false after a failure.
    fn write(&self, seq: u64, pieces: Vec<(u64, Bytes)>) -> bool {
        if let Err(e) = write_pieces(&*self.block, pieces.iter()) {
            self.shared.poison(e);
            return false;
        }
        drop(pieces);
        self.shared.lock().advance(&[seq], Progress::Written);
        true
    }

    /// Makes the payloads of these transactions durable; false after a failure.
    fn flush(&self, written: &[u64]) -> bool {
        let done = if planted!(FrameBeforeData) { Ok(()) } else { self.block.flush() };
        if let Err(e) = done {
            self.shared.poison(StoreError::io("flush", self.block.name(), e));
            return false;
        }
        let mut q = self.shared.lock();
        q.flushing = false;
        q.advance(written, Progress::Durable);
        if let Some(who) = q.wake() {
            self.shared.work[who].notify_one();
        }
        true
    }
}

/// Writes pieces to their blocks, small adjacent ones together (large ones go without a
/// copy when alone).
fn write_pieces<'a>(
    block: &dyn BlockDevice,
    pieces: impl Iterator<Item = &'a (u64, Bytes)>,
) -> Result<()> {
    let mut pieces: Vec<&(u64, Bytes)> = pieces.collect();
    // Blocks freed and taken again within a frame do not occur: a block is taken again
    // only after its freeing is durable. So the order of writes does not matter.
    pieces.sort_unstable_by_key(|(start, _)| *start);
    let mut bufs: Vec<&[u8]> = Vec::with_capacity(pieces.len());
    let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
    let mut rest = pieces.as_slice();
    while let Some((start, _)) = rest.first() {
        let first = bufs.len();
        let mut end = *start;
        while let Some((next, data)) = rest.first()
            && *next == end
            && (bufs.len() == first || data.len() < JOURNALED_PAYLOAD)
        {
            bufs.push(data);
            end += data.len() as u64 / crate::BLOCK;
            rest = &rest[1..];
        }
        runs.push((*start * crate::BLOCK, first..bufs.len()));
    }
    if runs.is_empty() {
        return Ok(());
    }
    block.write_many(&bufs, &runs).map_err(|e| StoreError::io("write", block.name(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody has the time at once: the owner goes on all the same, and does not free millions of
    /// entries.
    #[test]
    fn an_overlay_waits_for_a_writer_and_not_the_owner_for_it() {
        let shared = Shared::new(0, 0, 0, 0, Box::new(|_| ()));
        let (first, second) = (Arc::new(Overlay::default()), Arc::new(Overlay::default()));
        let kept = [Arc::downgrade(&first), Arc::downgrade(&second)];
        shared.discard(first);
        assert!(kept[0].upgrade().is_some(), "freed by the owner");
        // But there is never more than one.
        shared.discard(second);
        assert!(kept[0].upgrade().is_some() && kept[1].upgrade().is_none());
        drop(shared.lock().spent.take());
        assert!(kept[0].upgrade().is_none());
    }
}
