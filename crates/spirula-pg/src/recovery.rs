//! Recovery: making one copy equal to another, object by object, before a PG becomes active.
//!
//! A [`Job`] copies a set of objects from the primary to a member (push) or from a holder to
//! the primary (pull). The set comes from comparing logs, or, when logs do not meet or a copy
//! is incomplete, from comparing listings piece by piece (backfill). An object the source
//! lacks is deleted. Objects travel in chunks; the target is marked incomplete with the first
//! chunk and takes the source's log and info with the last, so that a copy is either what
//! its log says or known not to be.

use crate::api::{PeerMsg, PgEffect, ReadKey};
use crate::exec::{INFO_ATTR, ObjectInfo, ObjectReader, OmapRange, ReadError};
use crate::log::{Difference, LogEntry, PgLog};
use crate::peering::{Peering, Phase};
use crate::pg::{After, Cx, Pg, Step};
use bytes::Bytes;
use spirula_encoding::from_slice;
use spirula_messages::cluster::pg::{CopyCursor, CtlBody, PgInfo, PgTxn, TxnKind};
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{EVersion, Epoch, HObject, OsdId, errno};
use std::collections::{BTreeMap, VecDeque};

/// A piece of an object's copy.
pub(crate) struct Chunk {
    /// Makes it at the target.
    pub txn: Transaction,
    /// Where to go on; `None` after the last piece.
    pub next: Option<CopyCursor>,
}

/// Builds the piece of `object` at `cursor`, of about `max` bytes.
pub(crate) fn chunk(
    reader: &dyn ObjectReader,
    object: &HObject,
    cursor: &CopyCursor,
    max: u64,
) -> Result<Chunk, ReadError> {
    let max = max.max(1);
    let mut ops = Vec::new();
    let one = |ops| Transaction { objects: vec![ObjectUpdate { object: object.clone(), ops }], meta: Vec::new() };
    let Some(attr) = reader.attr(object, INFO_ATTR)? else {
        return Ok(Chunk { txn: one(vec![ObjectOp::Remove]), next: None });
    };
    let info: ObjectInfo = from_slice(&attr).map_err(|_| ReadError::Io(errno::EIO))?;
    if *cursor == CopyCursor::default() {
        ops.extend([ObjectOp::Remove, ObjectOp::Touch]);
    }
    let mut at = cursor.clone();
    let mut left = max;
    if !at.data_done {
        let end = info.size.min(at.offset + max);
        for (offset, length) in reader.extents(object, at.offset, end.saturating_sub(at.offset))? {
            ops.push(ObjectOp::Write { offset, data: reader.read(object, offset, length)? });
            left = left.saturating_sub(length);
        }
        at.offset = end;
        at.data_done = end >= info.size;
    }
    if !at.data_done || left == 0 {
        return Ok(Chunk { txn: one(ops), next: Some(at) });
    }
    if at.omap_from.is_empty() {
        let header = reader.omap_header(object)?;
        if !header.is_empty() {
            ops.push(ObjectOp::OmapSetHeader(header));
        }
    }
    let range = OmapRange { from: &at.omap_from, until: None, max_entries: 4096, max_bytes: left as usize };
    let page = reader.omap_range(object, range)?;
    let last = page.entries.last().map(|(k, _)| k.clone());
    if !page.entries.is_empty() {
        ops.push(ObjectOp::OmapSet(page.entries));
    }
    if let Some(last) = last.filter(|_| page.more) {
        let mut from = last.to_vec();
        from.push(0);
        at.omap_from = from.into();
        return Ok(Chunk { txn: one(ops), next: Some(at) });
    }
    ops.push(ObjectOp::Truncate { size: info.size });
    ops.push(ObjectOp::SetAttrs(reader.attrs(object)?));
    Ok(Chunk { txn: one(ops), next: None })
}

/// One copy being made equal to another.
#[derive(Debug)]
pub(crate) struct Job {
    /// The other side.
    pub peer: OsdId,
    /// From us to it, or from it to us.
    push: bool,
    queue: VecDeque<HObject>,
    /// Objects whose next piece is due.
    resume: VecDeque<(HObject, CopyCursor)>,
    /// Listings to compare; `None` when there is nothing more to find.
    scan: Option<Scan>,
    pub backfill: bool,
    /// Common part of the logs.
    keep: Option<EVersion>,
    flights: BTreeMap<u64, Flight>,
    finishing: bool,
    pub done: bool,
}

#[derive(Debug)]
struct Flight {
    object: HObject,
    next: Option<CopyCursor>,
    bytes: u64,
}

/// Comparison of two listings. Everything before a side's `next` is known.
#[derive(Debug)]
struct Scan {
    mine: VecDeque<(HObject, EVersion)>,
    mine_next: HObject,
    theirs: VecDeque<(HObject, EVersion)>,
    theirs_next: HObject,
    asked: bool,
}

impl Scan {
    fn new() -> Self {
        Self {
            mine: VecDeque::new(),
            mine_next: HObject::min(),
            theirs: VecDeque::new(),
            theirs_next: HObject::min(),
            asked: false,
        }
    }

    /// Moves differing objects before the first unknown position to `queue`.
    fn merge(&mut self, queue: &mut VecDeque<HObject>) {
        let bound = (&self.mine_next).min(&self.theirs_next).clone();
        loop {
            let mine = self.mine.front().filter(|(o, _)| bound.max || *o < bound);
            let theirs = self.theirs.front().filter(|(o, _)| bound.max || *o < bound);
            let (take_mine, take_theirs) = match (mine, theirs) {
                (None, None) => return,
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(a), Some(b)) => (a.0 <= b.0, b.0 <= a.0),
            };
            let a = if take_mine { self.mine.pop_front() } else { None };
            let b = if take_theirs { self.theirs.pop_front() } else { None };
            let same = matches!((&a, &b), (Some((_, v)), Some((_, w))) if v == w && *v != EVersion::default());
            if !same && let Some((o, _)) = a.or(b) {
                queue.push_back(o);
            }
        }
    }
}

impl Job {
    /// A job for a copy that differs so from the authoritative one.
    pub fn new(peer: OsdId, push: bool, difference: Difference) -> Self {
        let (queue, scan, keep) = match difference {
            Difference::Objects { objects, keep } => (objects.into_iter().collect(), None, Some(keep)),
            Difference::Unknown => (VecDeque::new(), Some(Scan::new()), None),
        };
        Self {
            peer,
            push,
            queue,
            resume: VecDeque::new(),
            backfill: scan.is_some(),
            scan,
            keep,
            flights: BTreeMap::new(),
            finishing: false,
            done: false,
        }
    }

    fn landed(&mut self, seq: u64) {
        if let Some(f) = self.flights.remove(&seq)
            && let Some(next) = f.next
        {
            self.resume.push_back((f.object, next));
        }
    }
}

impl Pg {
    /// Goes on with whatever recovery can do now.
    pub(crate) fn pump(&mut self, cx: &mut Cx<'_>) {
        self.peering(None, cx, |pg, p, cx| {
            if pg.pump_read.is_some() {
                return;
            }
            match &mut p.phase {
                Phase::Pull(_) | Phase::Push(_) => pg.pump_jobs(p, cx),
                Phase::Activate { .. } => pg.activate_self(p, cx),
                _ => {}
            }
        });
    }

    pub(crate) fn pump_jobs(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        let mut phase = std::mem::replace(&mut p.phase, Phase::Info);
        let jobs = match &mut phase {
            Phase::Pull(job) => std::slice::from_mut(&mut **job),
            Phase::Push(jobs) => jobs.as_mut_slice(),
            _ => &mut [],
        };
        for job in jobs.iter_mut() {
            match self.pump_job(job, p, cx) {
                Ok(()) => {}
                Err(ReadError::NotReady(what)) => {
                    let n = self.seq();
                    self.pump_read = Some(n);
                    cx.out.push(PgEffect::Prefetch(ReadKey::Recovery(n), what));
                    break;
                }
                // Stays in recovery, visible as such; a restart of peering tries again.
                Err(e) => tracing::error!(pg = %self.id, error = %e, "read for recovery"),
            }
        }
        let done = jobs.iter().all(|j| j.done);
        p.phase = phase;
        if done {
            self.jobs_done(p, cx);
        }
    }

    fn pump_job(&mut self, job: &mut Job, p: &Peering, cx: &mut Cx<'_>) -> Result<(), ReadError> {
        while !job.finishing && job.flights.len() < self.cfg.push_window.max(1) {
            let under_way: u64 = job.flights.values().map(|f| f.bytes).sum();
            if under_way >= self.cfg.push_bytes {
                return Ok(());
            }
            let next = match (job.resume.pop_front(), job.queue.pop_front()) {
                (Some(r), q) => {
                    q.into_iter().for_each(|q| job.queue.push_front(q));
                    Some(r)
                }
                (None, q) => q.map(|o| (o, CopyCursor::default())),
            };
            let Some((object, cursor)) = next else {
                if job.scan.is_some() {
                    if !self.scan_on(job, p.epoch, cx)? {
                        return Ok(());
                    }
                    continue;
                }
                if job.flights.is_empty() {
                    self.finish_job(job, p, cx);
                }
                return Ok(());
            };
            let seq = self.seq();
            if job.push {
                match chunk(cx.reader, &object, &cursor, self.cfg.push_bytes) {
                    Ok(Chunk { txn, next }) => {
                        let (header, payload) = txn.split();
                        let bytes = (header.len() + payload.len()) as u64;
                        let t = PgTxn {
                            pg: self.id,
                            epoch: p.epoch,
                            kind: TxnKind::Push,
                            seq,
                            version: EVersion::default(),
                            next: None,
                            header: header.into(),
                            payload,
                        };
                        cx.out.push(PgEffect::Send(job.peer, PeerMsg::Txn(t)));
                        job.flights.insert(seq, Flight { object, next, bytes });
                    }
                    Err(e) => {
                        job.resume.push_front((object, cursor));
                        return Err(e);
                    }
                }
            } else {
                // Its size is not known yet; assume that there are few bytes in most.
                self.send(job.peer, p.epoch, CtlBody::Pull { seq, object: object.clone(), cursor }, cx);
                let bytes = self.cfg.push_bytes / self.cfg.push_window.max(1) as u64;
                job.flights.insert(seq, Flight { object, next: None, bytes });
            }
        }
        Ok(())
    }

    /// Compares the next piece of the listings. False if an answer must be awaited.
    fn scan_on(&mut self, job: &mut Job, epoch: Epoch, cx: &mut Cx<'_>) -> Result<bool, ReadError> {
        let Some(scan) = &mut job.scan else { return Ok(true) };
        if scan.mine.is_empty() && !scan.mine_next.max {
            let (found, next) = self.list_versions(&scan.mine_next, self.cfg.scan_objects, cx.reader)?;
            scan.mine.extend(found);
            scan.mine_next = next;
        }
        if scan.theirs.is_empty() && !scan.theirs_next.max {
            if !std::mem::replace(&mut scan.asked, true) {
                let body = CtlBody::Scan { from: scan.theirs_next.clone(), max: self.cfg.scan_objects as u32 };
                self.send(job.peer, epoch, body, cx);
            }
            return Ok(false);
        }
        scan.merge(&mut job.queue);
        if scan.mine.is_empty() && scan.theirs.is_empty() && scan.mine_next.max && scan.theirs_next.max {
            job.scan = None;
        }
        Ok(true)
    }

    fn finish_job(&mut self, job: &mut Job, p: &Peering, cx: &mut Cx<'_>) {
        let Some(plan) = &p.plan else { return };
        job.finishing = true;
        let log = p.auth_log.as_ref().unwrap_or(&self.log);
        let entries: Vec<Bytes> = match job.keep {
            Some(keep) => log.after(keep).map(LogEntry::to_bytes).collect(),
            None => log.iter().map(LogEntry::to_bytes).collect(),
        };
        let info = PgInfo { log_tail: log.tail(), seal: None, ..plan.auth_info.clone() };
        if job.push {
            self.send(job.peer, p.epoch, CtlBody::Finish { info, keep: job.keep, entries }, cx);
        } else {
            let after = After::Step { epoch: p.epoch, step: Step::Finished };
            if let Err(e) = self.finish_copy(info, job.keep, entries, after, cx) {
                tracing::error!(pg = %self.id, error = %e, "take over log");
            }
        }
    }

    // ---- answers ----

    pub(crate) fn on_scanned(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        objects: Vec<(HObject, EVersion)>,
        next: HObject,
        cx: &mut Cx<'_>,
    ) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            if let Some(scan) = job_of(&mut p.phase, from).and_then(|j| j.scan.as_mut())
                && std::mem::take(&mut scan.asked)
            {
                scan.theirs.extend(objects);
                scan.theirs_next = next;
                pg.pump_jobs_unless_reading(p, cx);
            }
        });
    }

    pub(crate) fn on_push_ack(&mut self, from: OsdId, epoch: Epoch, seq: u64, cx: &mut Cx<'_>) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            if let Some(job) = job_of(&mut p.phase, from) {
                job.landed(seq);
                pg.pump_jobs_unless_reading(p, cx);
            }
        });
    }

    pub(crate) fn on_pulled(&mut self, from: OsdId, t: PgTxn, cx: &mut Cx<'_>) {
        let epoch = t.epoch;
        self.peering(Some(epoch), cx, |pg, p, cx| {
            let Some(flight) = job_of(&mut p.phase, from).and_then(|j| j.flights.get_mut(&t.seq)) else { return };
            match Transaction::join(&t.header, &t.payload) {
                Ok(txn) => {
                    flight.next = t.next;
                    pg.apply_push(txn, After::Step { epoch, step: Step::Pulled(t.seq) }, cx);
                }
                Err(e) => tracing::error!(pg = %pg.id, from, error = %e, "read pulled object"),
            }
        });
    }

    pub(crate) fn on_pull_durable(&mut self, epoch: Epoch, seq: u64, cx: &mut Cx<'_>) {
        self.peering(Some(epoch), cx, |pg, p, cx| {
            if let Phase::Pull(job) = &mut p.phase {
                job.landed(seq);
                pg.pump_jobs_unless_reading(p, cx);
            }
        });
    }

    pub(crate) fn on_finished(&mut self, from: OsdId, epoch: Epoch, cx: &mut Cx<'_>) {
        let own = from == self.osd;
        self.peering(Some(epoch), cx, |pg, p, cx| {
            let job = match &mut p.phase {
                Phase::Pull(job) if own => Some(&mut **job),
                phase => job_of(phase, from),
            };
            if let Some(job) = job.filter(|j| j.finishing) {
                job.done = true;
                pg.pump_jobs_unless_reading(p, cx);
            }
        });
    }

    fn pump_jobs_unless_reading(&mut self, p: &mut Peering, cx: &mut Cx<'_>) {
        if self.pump_read.is_none() {
            self.pump_jobs(p, cx);
        }
    }
}

fn job_of(phase: &mut Phase, peer: OsdId) -> Option<&mut Job> {
    match phase {
        Phase::Pull(job) if job.peer == peer => Some(job),
        Phase::Push(jobs) => jobs.iter_mut().find(|j| j.peer == peer),
        _ => None,
    }
}

/// How a member's copy differs from the authoritative one.
pub(crate) fn difference_of(
    auth_log: &PgLog,
    auth_head: EVersion,
    info: Option<&PgInfo>,
    log: Option<&PgLog>,
) -> Difference {
    match (info, log) {
        (Some(info), Some(log)) if info.complete && info.les > 0 => {
            auth_log.difference(auth_head, log, info.last_update)
        }
        _ => Difference::Unknown,
    }
}
