//! Getting an object of another PG for `copy_from`: as a client of the OSD that leads that PG, be
//! it this one.
//!
//! The source is read with ordinary requests, a piece at a time, so that whatever holds for
//! clients' reads holds here: they wait for peering and recovery, bad copies are healed,
//! erasure-coded objects are put together from shards. Each piece after the first demands the
//! version, the size and the time of the first, because a copy has its source's version, which may
//! be the number that the object had before. If the object has changed, the copy begins anew. A
//! request without an answer (its PG moved, or nobody leads it now) is sent again, until patience
//! ends. It keeps its number then, so that an answer counts however late it comes, and is sent ever
//! more rarely, because whoever is slow need not be asked the same many times. An object that waits
//! for its source lets such reads of itself pass, so that objects may be made copies of each other.
//!
//! Few copies are under way at a time, the others wait for them. Patience with a source begins when
//! it is asked first, and anew with each piece that is more than there ever was: what changes all
//! the time is given up, what is large or waits for its turn is not.
//!
//! What is got lies in memory until it is whole. One object may have as much as any change may
//! ([`Bounds::one`]): a source that goes on beyond that fails the copy as soon as it is seen. All
//! together have a bound, too ([`Bounds::all`]), and there a copy pauses between two pieces, and
//! one that has got only its first begins again later. The oldest of those that hold something
//! never pauses, so it ends, and makes room; if its source falls silent while others are paused, it
//! gives back what it has.

use crate::maps::Maps;
use crate::osd::OsdCore;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, UTime};
use spirula_messages::Body;
use spirula_messages::ceph::osd::flag;
use spirula_messages::ceph::{MOsdOp, MOsdOpReply, OsdOp};
use spirula_pg::exec::{Fetched, Limits, ObjectInfo, Source, Timeouts, WholeObject};
use spirula_pg::{ClientOp, OpId, Patience, PgEvent};
use spirula_runtime::LinkId;
use spirula_types::limits::pair_size;
use spirula_types::{EntityName, Epoch, HObject, ObjectLocator, OsdId, ReqId, SpgId, errno};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of data read at a time.
const PIECE: u64 = 4 << 20;
/// Omap keys read at a time.
const KEYS: u64 = 1024;
/// Copies under way; each holds an object in memory.
const AT_ONCE: usize = 4;
/// So many at a time with those whose sources are silent.
const WITH_SILENT: usize = 64;
/// A request that was not answered is sent again; for a second time after twice as long, and so on.
const AGAIN: Duration = Duration::from_secs(2);
/// A source of which nothing more can be read for so long fails the copy (ETIMEDOUT).
const PATIENCE: Duration = Duration::from_secs(60);
/// One that has got nothing more for so long holds nothing that others wait for.
const SILENT: Duration = Duration::from_secs(10);

/// Bounds of what copies hold in memory, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Largest object; beyond it EFBIG.
    object: u64,
    /// Most of one object with its attributes and its omap; beyond it E2BIG.
    one: usize,
    /// From here on none is gone on with but the first.
    all: usize,
    /// What another piece is expected to bring.
    piece: usize,
}

impl Bounds {
    /// Those of an OSD whose requests have these limits, and which has so many bytes for payloads.
    pub(crate) fn new(limits: &Limits, payloads: usize) -> Self {
        Self {
            object: limits.max_object_size,
            one: limits.max_change,
            all: payloads / 4,
            piece: PIECE as usize,
        }
    }
}

/// What is known of a source so far.
#[derive(Default)]
struct Got {
    version: u64,
    size: u64,
    mtime: UTime,
    data: Vec<u8>,
    attrs: Vec<(Bytes, Bytes)>,
    omap_header: Bytes,
    omap: Vec<(Bytes, Bytes)>,
    more_omap: bool,
    /// Bytes that it takes in memory.
    held: usize,
}

struct Job {
    /// It was begun as the so manieth.
    order: u64,
    /// Who wants it.
    pg: SpgId,
    op: OpId,
    source: Source,
    /// When it was begun, or there was more of its source than ever before.
    heard: Duration,
    /// When its request went out last, and for how long an answer is waited for until it goes out
    /// again.
    sent: Duration,
    again: Duration,
    /// Whom it was asked of.
    to: OsdId,
    /// `None` before the first piece.
    got: Option<Got>,
    /// Pieces got of the source as it is now, and the most of them that there ever were.
    pieces: usize,
    most: usize,
}

impl Job {
    /// Another piece is there.
    fn got_more(&mut self, now: Duration) {
        self.again = AGAIN;
        self.pieces += 1;
        if self.pieces > self.most {
            (self.most, self.heard) = (self.pieces, now);
        }
    }

    /// What is there is of no use: the source has changed.
    fn begin_anew(&mut self) {
        (self.got, self.pieces, self.again) = (None, 0, AGAIN);
    }
}

/// What comes of an answer.
enum Next {
    /// The next piece is to be asked for.
    Ask(Job),
    /// The copy has ended.
    End(Job, Fetched),
}

/// What is to be done about a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Again,
    GivenUp,
}

/// Copies under way, by the number of their last request, and those that wait for their turn. Of
/// the latter there are no more than requests of clients are open.
pub(crate) struct Copies {
    bounds: Bounds,
    jobs: BTreeMap<u64, Job>,
    /// Those that have got something and wait for memory, in the order in which they were begun.
    paused: BTreeMap<u64, Job>,
    waiting: VecDeque<Job>,
    begun: u64,
    next: u64,
    /// There was no room for what one had got: none begins before another has ended.
    crowded: bool,
    /// Requests to PGs of this OSD that these have not ended: which copy's each is (0 where it has
    /// ended), and where it is.
    own: BTreeMap<OpId, (u64, SpgId)>,
}

impl Copies {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let (jobs, paused, waiting, own) = Default::default();
        Self { bounds, jobs, paused, waiting, begun: 0, next: 0, crowded: false, own }
    }

    /// Bytes that are held, with those of the next pieces that are on their way.
    fn held(&self) -> usize {
        let got = |j: &Job| j.got.as_ref().map_or(0, |g| g.held);
        let next = |j: &Job| if j.got.is_some() { got(j) + self.bounds.piece } else { 0 };
        self.jobs.values().map(next).sum::<usize>() + self.paused.values().map(got).sum::<usize>()
    }

    /// May this one take another piece? It is none of those under way, nor of those that are
    /// paused.
    fn may_go_on(&self, job: &Job) -> bool {
        let mut others = self.jobs.values().chain(self.paused.values()).filter(|j| j.got.is_some());
        let held = job.got.as_ref().map_or(0, |g| g.held);
        // Whoever has only begun would be another that holds as much as one may.
        let goes_before = |j: &Job| job.pieces > 1 && j.order > job.order;
        self.held() + held + self.bounds.piece <= self.bounds.all || others.all(goes_before)
    }

    /// One goes on later, with what it has; if that is one piece, without.
    fn pause(&mut self, mut job: Job, now: Duration) {
        if job.pieces > 1 {
            job.sent = now;
            self.paused.insert(job.order, job);
        } else {
            self.crowded = true;
            job.begin_anew();
            self.waiting.push_front(job);
        }
    }

    /// While others are paused, those whose sources are silent give back what they hold, and ask
    /// for it again.
    fn make_room(&mut self, now: Duration) {
        let silent = |j: &Job| j.got.is_some() && now >= j.heard + SILENT;
        let all = self
            .jobs
            .iter()
            .filter(|(_, j)| !self.paused.is_empty() && silent(j))
            .map(|(tid, _)| *tid);
        for tid in all.collect::<Vec<u64>>() {
            if let Some(mut job) = self.jobs.remove(&tid) {
                // What may still come by its number is of no use.
                let tid = self.number();
                job.begin_anew();
                self.jobs.insert(tid, job);
            }
        }
    }

    /// A request wants an object. If it wanted it before, that was in an interval that has ended.
    fn want(&mut self, pg: SpgId, op: OpId, source: Source) {
        self.forget(op);
        let (heard, sent, again) = (Duration::ZERO, Duration::ZERO, AGAIN);
        let (order, to, got, pieces, most) = (0, -1, None, 0, 0);
        self.waiting.push_back(Job {
            order,
            pg,
            op,
            source,
            heard,
            sent,
            again,
            to,
            got,
            pieces,
            most,
        });
    }

    /// The next one that there is room for. Its time begins now.
    fn begin(&mut self, now: Duration) -> Option<Job> {
        if let Some((order, job)) = self.paused.pop_first() {
            if self.may_go_on(&job) {
                // That it waited is not its source's fault.
                let heard = job.heard + now.saturating_sub(job.sent);
                return Some(Job { heard, ..job });
            }
            self.paused.insert(order, job);
            return None;
        }
        let held = self.held();
        if held >= self.bounds.all || held > 0 && self.crowded {
            return None;
        }
        // One that has got nothing, and whose source is silent, holds no memory: others need not
        // wait for it.
        let busy = self
            .jobs
            .values()
            .filter(|j| j.got.is_some() || now.saturating_sub(j.heard) < AGAIN)
            .count();
        if busy >= AT_ONCE || self.jobs.len() >= WITH_SILENT {
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.begun += 1;
        Some(Job { heard: now, order: self.begun, ..job })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A job's next request goes to this OSD, or (`tid`) its last one again; the request's number.
    fn asked(&mut self, mut job: Job, tid: Option<u64>, to: OsdId, now: Duration) -> u64 {
        if tid.is_some() {
            job.again = if to == job.to { job.again * 2 } else { AGAIN };
        }
        let tid = tid.unwrap_or_else(|| self.number());
        (job.sent, job.to) = (now, to);
        self.jobs.insert(tid, job);
        tid
    }

    /// Takes the answer to the request of this number; nothing if it is to be asked again a while
    /// later, or if the answer is to none that is open.
    fn answered(&mut self, tid: u64, reply: &MOsdOpReply, now: Duration) -> Option<Next> {
        let mut job = self.jobs.remove(&tid)?;
        self.crowded = false;
        let changed =
            job.got.is_some() && [-errno::ERANGE, -errno::EOVERFLOW].contains(&reply.result);
        match reply.result {
            r if r == -errno::EAGAIN || changed => {
                // It has changed, or whoever answered does not lead it. What else may come by this
                // number is an answer to another question then.
                let tid = if job.got.is_some() { self.number() } else { tid };
                job.begin_anew();
                self.jobs.insert(tid, job);
                None
            }
            r if r < 0 => Some(Next::End(job, Fetched::Failed(-r))),
            _ => match take(&mut job.got, reply) {
                Ok(false) => {
                    job.begin_anew();
                    Some(Next::Ask(job))
                }
                Ok(true)
                    if let Some(e) = job.got.as_ref().and_then(|g| g.too_large(&self.bounds)) =>
                {
                    Some(Next::End(job, Fetched::Failed(e)))
                }
                Ok(true) => match job.got.take_if(|g| g.is_whole()) {
                    Some(got) => {
                        let whole = got.into_object(job.source.clone());
                        Some(Next::End(job, whole))
                    }
                    None => {
                        job.got_more(now);
                        if self.may_go_on(&job) {
                            return Some(Next::Ask(job));
                        }
                        self.pause(job, now);
                        None
                    }
                },
                Err(e) => {
                    tracing::error!("copy of {}: {e}", job.source.object);
                    Some(Next::End(job, Fetched::Failed(errno::EIO)))
                }
            },
        }
    }

    /// Requests without an answer about which something is to be done. `leads` says who leads an
    /// object's PG by the newest map: whoever leads it since the request went out has not got it.
    fn due(&self, now: Duration, leads: impl Fn(&HObject) -> Option<OsdId>) -> Vec<(u64, Due)> {
        let what = |j: &Job| {
            let moved = || leads(&j.source.object) != Some(j.to);
            if now >= j.heard + PATIENCE {
                Some(Due::GivenUp)
            } else {
                (now >= j.sent + j.again || moved()).then_some(Due::Again)
            }
        };
        self.jobs.iter().filter_map(|(tid, j)| Some((*tid, what(j)?))).collect()
    }

    /// What this OSD was asked may be lost, or its answer: it is asked again when time is looked at
    /// next.
    pub(crate) fn may_be_lost(&mut self, osd: OsdId) {
        self.jobs.values_mut().filter(|j| j.to == osd).for_each(|j| j.sent = Duration::ZERO);
    }

    /// Nobody waits for what this request wanted; true if that makes room.
    fn forget(&mut self, op: OpId) -> bool {
        let Self { jobs, paused, waiting, .. } = self;
        if jobs.is_empty() && paused.is_empty() && waiting.is_empty() {
            return false;
        }
        self.crowded = false;
        let before = jobs.len() + paused.len();
        waiting.retain(|j| j.op != op);
        jobs.retain(|_, j| j.op != op);
        paused.retain(|_, j| j.op != op);
        jobs.len() + paused.len() < before
    }

    /// Requests to PGs of this OSD whose copies have ended, each once: they are to end, too,
    /// whatever they wait for.
    fn ended(&mut self) -> Vec<(OpId, SpgId)> {
        let Self { jobs, own, .. } = self;
        let gone = own.iter_mut().filter(|(_, (tid, _))| *tid > 0 && !jobs.contains_key(tid));
        gone.map(|(op, (tid, pg))| {
            *tid = 0;
            (*op, *pg)
        })
        .collect()
    }
}

/// The connection of a request to a PG of this OSD, so that it ends as one of a client that went
/// away does. No real one has this number.
fn conn_of(op: OpId) -> u64 {
    u64::MAX - op
}

/// Who leads an object's PG by the newest map, -1 for nobody, and which shard of it; `None` if
/// there is no such pool.
fn place(maps: &Maps, object: &HObject) -> Option<(Epoch, SpgId, OsdId)> {
    let map = maps.map()?;
    let pool = map.pool(object.pool)?;
    let pg = object.pg(pool.pg_num);
    let placed = map.pg_to_up_acting(pg);
    let at = placed.acting.iter().position(|o| *o == placed.acting_primary);
    let shard = at.filter(|_| pool.is_erasure()).map_or(-1, |i| i as i8);
    Some((map.epoch, SpgId::new(pg, shard), placed.acting_primary))
}

/// The next request for a source.
fn vector(got: Option<&Got>) -> Vec<OsdOp> {
    let Some(got) = got else {
        let omap = [OsdOp::omap_get_header(), OsdOp::omap_get_vals(b"", KEYS, b"")];
        return [OsdOp::stat(), OsdOp::getxattrs()]
            .into_iter()
            .chain(omap)
            .chain([OsdOp::read(0, PIECE)])
            .collect();
    };
    let next = if (got.data.len() as u64) < got.size {
        OsdOp::read(got.data.len() as u64, PIECE)
    } else {
        OsdOp::omap_get_vals(got.omap.last().map_or(&b""[..], |(k, _)| k), KEYS, b"")
    };
    vec![OsdOp::assert_ver(got.version), OsdOp::stat(), next]
}

/// What has come of omap, and whether there is more.
fn page(output: &Bytes) -> Result<(Vec<(Bytes, Bytes)>, bool), DecodeError> {
    let mut d = Decoder::new(output);
    Ok((d.get()?, d.bool()?))
}

/// Size and modification time.
fn stat(output: &Bytes) -> Result<(u64, UTime), DecodeError> {
    let mut d = Decoder::new(output);
    Ok((d.u64()?, d.get()?))
}

/// Takes an answer to [`vector`] in; false if the object has changed since the first.
fn take(got: &mut Option<Got>, reply: &MOsdOpReply) -> Result<bool, DecodeError> {
    let out = |i: usize| reply.ops.get(i).map(|o| o.op.indata.clone()).unwrap_or_default();
    let Some(have) = got else {
        let (size, mtime) = stat(&out(0))?;
        let names: Vec<(Bytes, Bytes)> = Decoder::new(&out(1)).get()?;
        // As they are stored: users' names have a mark in front.
        let attrs: Vec<_> =
            names.into_iter().map(|(k, v)| ([b"_", &k[..]].concat().into(), v)).collect();
        let (omap, more_omap) = page(&out(3))?;
        let (version, omap_header, data) = (reply.user_version, out(2), out(4).to_vec());
        let held = data.len() + omap_header.len() + bytes(&attrs) + bytes(&omap);
        *got = Some(Got { version, size, mtime, data, attrs, omap_header, omap, more_omap, held });
        return Ok(true);
    };
    if stat(&out(1))? != (have.size, have.mtime) {
        return Ok(false);
    }
    let next = out(2);
    if (have.data.len() as u64) < have.size {
        let left = have.size.saturating_sub(have.data.len() as u64);
        have.data.reserve_exact(usize::try_from(left).unwrap_or(0));
        have.data.extend_from_slice(&next);
        have.held += next.len();
    } else {
        let (entries, more) = page(&next)?;
        have.more_omap = more && !entries.is_empty();
        have.held += bytes(&entries);
        have.omap.extend(entries);
    }
    Ok(true)
}

/// What pairs count for, as in any change.
fn bytes(pairs: &[(Bytes, Bytes)]) -> usize {
    pairs.iter().map(|(k, v)| pair_size(k, v)).sum()
}

impl Got {
    /// Is there more than an object may have? With which errno its copy fails then.
    fn too_large(&self, bounds: &Bounds) -> Option<i32> {
        if self.size > bounds.object {
            return Some(errno::EFBIG);
        }
        let more = usize::try_from(self.size).unwrap_or(usize::MAX).saturating_sub(self.data.len());
        (self.held.saturating_add(more) > bounds.one).then_some(errno::E2BIG)
    }

    fn is_whole(&self) -> bool {
        self.data.len() as u64 >= self.size && !self.more_omap
    }

    fn into_object(self, source: Source) -> Fetched {
        match source.version {
            0 => {}
            v if v < self.version => return Fetched::Failed(errno::ERANGE),
            v if v > self.version => return Fetched::Failed(errno::EOVERFLOW),
            _ => {}
        }
        let flags =
            if self.omap.is_empty() && self.omap_header.is_empty() { 0 } else { ObjectInfo::OMAP };
        let (size, mtime, user_version) = (self.size, self.mtime, self.version);
        let info = ObjectInfo { size, mtime, user_version, flags, ..ObjectInfo::default() };
        let Self { attrs, omap_header, omap, .. } = self;
        let data = Bytes::from(self.data);
        Fetched::Object(Box::new(WholeObject { source, data, attrs, omap_header, omap, info }))
    }
}

impl OsdCore {
    /// A request of the PG `id` wants an object.
    pub(crate) fn fetch(&mut self, id: SpgId, op: OpId, source: Source) {
        self.copies.want(id, op, source);
        self.end_own();
        self.begin_copies();
    }

    /// A request was dropped, or answered: it wants nothing any more.
    pub(crate) fn want_no_copy(&mut self, op: OpId) {
        let room = self.copies.forget(op);
        self.end_own();
        if room {
            self.begin_copies();
        }
    }

    /// What PGs here were asked for copies that have ended they need not answer.
    fn end_own(&mut self) {
        for (op, pg) in self.copies.ended() {
            self.answer_pg(pg, PgEvent::ConnClosed(conn_of(op)));
        }
    }

    /// Begins what waits, as far as there is room.
    fn begin_copies(&mut self) {
        while let Some(job) = self.copies.begin(self.now.mono) {
            self.ask_source(job, None);
        }
    }

    /// Sends a copy's next request, or (`tid`) the last one again, to whoever leads the source's
    /// PG.
    fn ask_source(&mut self, job: Job, tid: Option<u64>) {
        let object = &job.source.object;
        let Some((epoch, spg, to)) = place(&self.maps, object) else {
            return self.fetched(&job, Fetched::Failed(errno::ENOENT));
        };
        let (key, namespace) = (object.key.clone(), object.namespace.clone());
        let locator = ObjectLocator { pool: object.pool, key, namespace, hash: -1 };
        let mut msg =
            MOsdOp::new(spg, object.hash, locator, object.name.clone(), vector(job.got.as_ref()));
        (msg.epoch, msg.snapid, msg.flags) = (epoch, object.snap, flag::READ);
        let tid = self.copies.asked(job, tid, to, self.now.mono);
        if to == self.cfg.id {
            // A PG loses no request: it answers, or says that it has dropped it.
            if self.copies.own.values().any(|(t, _)| *t == tid) || !self.pgs.contains_key(&spg) {
                return;
            }
            let op = self.requests.number();
            self.copies.own.insert(op, (tid, spg));
            let reqid = ReqId { name: EntityName::osd(to), tid, inc: 0 };
            // It waits in the PG whatever happens: no client can hold it instead.
            let (conn, addrs, patience) = (conn_of(op), Arc::default(), Patience::Endless);
            let timeouts = Timeouts::default();
            let op =
                ClientOp { id: op, conn, reqid, addrs, msg: Box::new(msg), patience, timeouts };
            self.answer_pg(spg, PgEvent::Client(op));
        } else if to >= 0 {
            self.peers.send(to, msg.into_message(tid));
        }
    }

    /// An OSD answers over a link that we opened to it.
    pub(crate) fn source_reply(&mut self, link: LinkId, tid: u64, reply: &MOsdOpReply) {
        let from = self.peers.by_link(link);
        if self.copies.jobs.get(&tid).is_some_and(|j| Some(j.to) == from) {
            self.source_answered(tid, reply);
            self.begin_copies();
            self.perform();
        }
    }

    /// A PG here answers; false if the request was not ours.
    pub(crate) fn own_source_reply(&mut self, op: OpId, reply: Option<&MOsdOpReply>) -> bool {
        let Some((tid, _)) = self.copies.own.remove(&op) else { return false };
        if let Some(reply) = reply {
            self.source_answered(tid, reply);
            self.begin_copies();
        }
        true
    }

    fn source_answered(&mut self, tid: u64, reply: &MOsdOpReply) {
        match self.copies.answered(tid, reply, self.now.mono) {
            Some(Next::Ask(job)) => self.ask_source(job, None),
            Some(Next::End(job, what)) => self.fetched(&job, what),
            None => {}
        }
    }

    /// A copy has ended.
    fn fetched(&mut self, job: &Job, what: Fetched) {
        self.answer_pg(job.pg, PgEvent::Fetched(job.op, what));
    }

    /// Time passed: what was not answered is asked again, or given up.
    pub(crate) fn keep_copies(&mut self, now: Duration) {
        self.copies.make_room(now);
        let leads = |object: &HObject| place(&self.maps, object).map(|(.., osd)| osd);
        for (tid, due) in self.copies.due(now, leads) {
            let Some(job) = self.copies.jobs.remove(&tid) else { continue };
            match due {
                Due::Again => self.ask_source(job, Some(tid)),
                Due::GivenUp => self.fetched(&job, Fetched::Failed(errno::ETIMEDOUT)),
            }
        }
        self.end_own();
        self.begin_copies();
        self.perform();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::Encoder;
    use spirula_messages::ceph::osd::OpResult;
    use spirula_types::PgId;

    /// Bytes that a source gives at a time.
    const CHUNK: u64 = 10;
    const TICK: Duration = Duration::from_millis(100);

    fn source(op: OpId) -> Source {
        Source {
            object: HObject::head(1, "".into(), "".into(), format!("o{op}").into()),
            version: 0,
        }
    }

    /// What a source of so many bytes, changed last then, answers to a job's next request.
    fn answer(got: Option<&Got>, size: u64, changed: u32) -> MOsdOpReply {
        let mut stat = Encoder::new();
        stat.u64(size);
        stat.put(&UTime { sec: changed, nsec: 0 });
        let (stat, none) = (stat.into_bytes(), Bytes::from_static(&[0; 4]));
        let have = got.map_or(0, |g| g.data.len() as u64);
        let data = Bytes::from(vec![7; CHUNK.min(size - have) as usize]);
        let outputs = match got {
            None => vec![stat, none, Bytes::new(), Bytes::from_static(&[0; 5]), data],
            Some(_) => vec![Bytes::new(), stat, data],
        };
        let result = |(o, out): (OsdOp, Bytes)| OpResult {
            op: OsdOp { indata: out, ..o },
            rval: 0,
            output_crc: None,
        };
        let ops = vector(got).into_iter().zip(outputs).map(result).collect();
        let (spg, locator) = (
            SpgId::new(PgId::new(1, 0), -1),
            ObjectLocator { pool: 1, hash: -1, ..Default::default() },
        );
        MOsdOpReply {
            user_version: 1,
            ..MOsdOpReply::with(&MOsdOp::new(spg, 0, locator, "o".into(), vec![]), 1, 0, ops)
        }
    }

    /// Copies of sources that answer late.
    struct Play {
        copies: Copies,
        now: Duration,
        latency: Duration,
        size: u64,
        /// The source is another whenever it is looked at.
        changes: bool,
        /// On their way, with the time at which they come.
        answers: Vec<(Duration, u64, MOsdOpReply)>,
        /// Requests that went out.
        asked: usize,
        ended: Vec<(OpId, Fetched)>,
    }

    impl Play {
        fn new(jobs: u64, size: u64, latency: Duration) -> Self {
            let mut copies = Copies::new(Bounds {
                piece: CHUNK as usize,
                ..Bounds::new(&Limits::default(), 1 << 30)
            });
            let pg = SpgId::new(PgId::new(1, 0), -1);
            (0..jobs).for_each(|op| copies.want(pg, op, source(op)));
            let (now, changes, answers, asked, ended) =
                (Duration::from_secs(1000), false, Vec::new(), 0, Vec::new());
            Self { copies, now, latency, size, changes, answers, asked, ended }
        }

        fn ask(&mut self, job: Job, tid: Option<u64>) {
            self.asked += 1;
            let changed = if self.changes { self.asked as u32 } else { 1 };
            let answer = answer(job.got.as_ref(), self.size, changed);
            let tid = self.copies.asked(job, tid, 3, self.now);
            self.answers.push((self.now + self.latency, tid, answer));
        }

        fn step(&mut self) {
            self.now += TICK;
            while let Some(at) = self.answers.iter().position(|(at, ..)| *at <= self.now) {
                let (_, tid, reply) = self.answers.remove(at);
                match self.copies.answered(tid, &reply, self.now) {
                    Some(Next::Ask(job)) => self.ask(job, None),
                    Some(Next::End(job, what)) => self.ended.push((job.op, what)),
                    None => {}
                }
            }
            self.copies.make_room(self.now);
            for (tid, due) in self.copies.due(self.now, |_| Some(3)) {
                let job = self.copies.jobs.remove(&tid).unwrap();
                match due {
                    Due::Again => self.ask(job, Some(tid)),
                    Due::GivenUp => self.ended.push((job.op, Fetched::Failed(errno::ETIMEDOUT))),
                }
            }
            while let Some(job) = self.copies.begin(self.now) {
                self.ask(job, None);
            }
            assert!(self.copies.jobs.len() + self.copies.paused.len() <= AT_ONCE);
        }

        /// Until so many have ended; how long that took.
        fn until(&mut self, ended: usize) -> Duration {
            let begun = self.now;
            while self.ended.len() < ended {
                assert!(
                    self.now < begun + Duration::from_secs(3600),
                    "{} of {ended} have ended",
                    self.ended.len()
                );
                self.step();
            }
            self.now - begun
        }

        fn copied(&self) -> usize {
            let whole =
                |f: &Fetched| matches!(f, Fetched::Object(o) if o.data.len() as u64 == self.size);
            self.ended.iter().filter(|(_, f)| whole(f)).count()
        }
    }

    #[test]
    fn copies_that_wait_for_others_are_not_given_up() {
        let mut p = Play::new(200, CHUNK, Duration::from_millis(1900));
        assert!(p.until(200) > PATIENCE, "all together take longer than any may");
        assert_eq!((p.copied(), p.asked), (200, 200));
    }

    #[test]
    fn an_answer_that_comes_late_counts() {
        let mut p = Play::new(1, 5 * CHUNK, Duration::from_secs(3));
        p.until(1);
        assert_eq!(p.copied(), 1, "{:?}", p.ended);
        assert!(p.asked <= 2 * 5, "{} requests for 5 pieces", p.asked);
    }

    #[test]
    fn a_source_of_many_slow_pieces_is_copied_and_one_that_is_silent_is_given_up() {
        let mut p = Play::new(1, 40 * CHUNK, Duration::from_secs(3));
        assert!(p.until(1) > PATIENCE);
        assert_eq!(p.copied(), 1, "{:?}", p.ended);
        let mut p = Play::new(1, CHUNK, Duration::from_secs(1_000_000));
        let took = p.until(1);
        assert!(PATIENCE <= took && took <= PATIENCE + 2 * TICK, "{took:?}");
        assert_eq!(p.ended, [(0, Fetched::Failed(errno::ETIMEDOUT))]);
        assert!(p.asked <= 6, "asked {} times", p.asked);
    }

    #[test]
    fn a_source_that_changes_all_the_time_is_given_up() {
        let mut p = Play::new(1, 5 * CHUNK, TICK);
        p.changes = true;
        assert!(p.until(1) < PATIENCE + Duration::from_secs(10));
        assert_eq!(p.ended, [(0, Fetched::Failed(errno::ETIMEDOUT))]);
    }

    #[test]
    fn what_nobody_waits_for_makes_room() {
        let mut p = Play::new(6, CHUNK, Duration::from_secs(1));
        p.step();
        assert_eq!((p.copies.jobs.len(), p.copies.waiting.len()), (AT_ONCE, 2));
        assert!(!p.copies.forget(4), "it has not begun");
        assert!(p.copies.forget(0) && !p.copies.forget(0));
        p.until(4);
        assert_eq!(p.copied(), 4);
        let mut ended: Vec<OpId> = p.ended.iter().map(|(op, _)| *op).collect();
        ended.sort_unstable();
        assert_eq!(ended, [1, 2, 3, 5]);
        assert!(p.copies.jobs.is_empty() && p.copies.waiting.is_empty());
    }

    /// A PG here may have it wait for long, for an object that nobody has: it would stay there for
    /// each copy that was wanted.
    #[test]
    fn what_is_asked_of_a_pg_here_ends_with_its_copy() {
        let mut p = Play::new(2, CHUNK, Duration::from_secs(1_000_000));
        p.step();
        let (pg, tids) =
            (SpgId::new(PgId::new(1, 0), -1), p.copies.jobs.keys().copied().collect::<Vec<_>>());
        p.copies.own = [(70, (tids[0], pg)), (71, (tids[1], pg))].into();
        assert_eq!(p.copies.ended(), []);
        assert!(p.copies.forget(p.copies.jobs[&tids[0]].op));
        assert_eq!(p.copies.ended(), [(70, pg)]);
        assert_eq!(
            (p.copies.ended(), p.copies.own.len()),
            (vec![], 2),
            "its PG is told once, and says when it is gone"
        );
        p.until(1);
        assert_eq!(p.copies.ended(), [(71, pg)], "given up");
    }

    #[test]
    fn whoever_leads_since_the_request_went_out_is_asked_at_once() {
        let mut p = Play::new(1, CHUNK, Duration::from_secs(1));
        p.step();
        assert!(p.copies.due(p.now, |_| Some(3)).is_empty());
        assert_eq!(p.copies.due(p.now, |_| Some(4)), [(1, Due::Again)]);
        p.copies.may_be_lost(4);
        assert!(p.copies.due(p.now, |_| Some(3)).is_empty());
        p.copies.may_be_lost(3);
        assert_eq!(p.copies.due(p.now, |_| Some(3)), [(1, Due::Again)]);
    }

    /// A source whose omap goes on and on.
    #[test]
    fn a_source_is_given_up_that_has_more_than_a_change_may_have() {
        let bounds = Bounds::new(&Limits::default(), 1 << 30);
        let mut copies = Copies::new(bounds);
        copies.want(SpgId::new(PgId::new(1, 0), -1), 1, source(1));
        let now = Duration::from_secs(1000);
        let mut job = copies.begin(now).unwrap();
        let value = Bytes::from(vec![7; 1 << 20]);
        for i in 0..1024_u32 {
            let mut omap = Encoder::new();
            omap.put(&vec![(Bytes::from(format!("{i:08}")), value.clone())]);
            omap.bool(true);
            let mut reply = answer(job.got.as_ref(), 0, 1);
            let at = if job.got.is_some() { 2 } else { 3 };
            reply.ops[at].op.indata = omap.into_bytes();
            let tid = copies.asked(job, None, 3, now);
            job = match copies.answered(tid, &reply, now).unwrap() {
                Next::Ask(job) => job,
                Next::End(_, what) => {
                    assert_eq!(what, Fetched::Failed(errno::E2BIG), "piece {i}");
                    assert!(i as usize <= bounds.one >> 20, "it is seen after piece {i} only");
                    return;
                }
            };
        }
        panic!("the copy goes on");
    }

    /// The size of an object is in the first answer: nothing more is asked for.
    #[test]
    fn a_source_is_given_up_at_once_whose_bytes_are_too_many() {
        let mut p = Play::new(1, (128 << 20) + 1, TICK);
        p.until(1);
        assert_eq!((&p.ended[0].1, p.asked), (&Fetched::Failed(errno::EFBIG), 1));
    }

    #[test]
    fn copies_pause_where_all_of_them_hold_too_much_and_all_end() {
        let (pieces, room) = (20, 50 * CHUNK as usize);
        let mut p = Play::new(12, pieces * CHUNK, TICK);
        p.copies.bounds.all = room;
        let (mut most, mut paused) = (0, 0);
        while p.ended.len() < 12 {
            p.step();
            most = most.max(p.copies.held());
            paused = paused.max(p.copies.paused.len());
            assert!(p.now < Duration::from_secs(2000), "{:?}", p.ended.len());
        }
        assert_eq!(p.copied(), 12);
        // The first goes on in any case.
        let bound = room + (pieces as usize + 1) * CHUNK as usize;
        assert!(paused > 0 && most <= bound, "{paused} paused, {most} bytes of {bound}");
        // What is paused makes room when nobody wants it any more.
        let mut p = Play::new(4, pieces * CHUNK, TICK);
        p.copies.bounds.all = 65;
        for _ in 0..100 {
            if p.copies.paused.is_empty() {
                p.step();
            }
        }
        let op = p.copies.paused.values().next().unwrap().op;
        assert!(p.copies.forget(op) && !p.copies.forget(op));
        p.until(3);
        assert_eq!(p.copied(), 3);
    }

    /// A source that is silent for long lets dozens of copies of it begin, which all get their
    /// first piece at once.
    #[test]
    fn copies_whose_sources_were_silent_hold_no_more_than_others() {
        let mut p = Play::new(64, 8 * CHUNK, Duration::from_secs(50));
        p.copies.bounds.all = 100;
        while p.copies.jobs.len() < 40 {
            p.now += AGAIN;
            while let Some(job) = p.copies.begin(p.now) {
                p.ask(job, None);
            }
        }
        p.answers.iter_mut().for_each(|(at, ..)| *at = p.now);
        p.latency = TICK;
        while p.ended.len() < 64 {
            p.now += TICK;
            let due: Vec<_> = p.answers.extract_if(.., |(at, ..)| *at <= p.now).collect();
            for (_, tid, reply) in due {
                match p.copies.answered(tid, &reply, p.now) {
                    Some(Next::Ask(job)) => p.ask(job, None),
                    Some(Next::End(job, what)) => p.ended.push((job.op, what)),
                    None => {}
                }
                // One goes on in any case, and each of the others was let in while there was room.
                assert!(p.copies.held() <= 100 + 8 * CHUNK as usize, "{}", p.copies.held());
            }
            while let Some(job) = p.copies.begin(p.now) {
                p.ask(job, None);
            }
            assert!(p.now < Duration::from_secs(3000), "{} have ended", p.ended.len());
        }
        assert_eq!(p.copied(), 64);
    }

    /// Others do not wait for what a silent source has given, one such copy after the other.
    #[test]
    fn a_silent_source_gives_back_what_its_copies_hold() {
        let mut p = Play::new(4, 20 * CHUNK, TICK);
        p.copies.bounds.all = 65;
        for _ in 0..100 {
            if p.copies.paused.is_empty() {
                p.step();
            }
        }
        // From here on the first two say nothing more.
        let silent = |op: OpId| op < 2;
        let begun = p.now;
        while p.ended.iter().filter(|(op, _)| !silent(*op)).count() < 2 {
            let of = |p: &Play, tid: &u64| p.copies.jobs.get(tid).is_some_and(|j| silent(j.op));
            let kept: Vec<_> = std::mem::take(&mut p.answers)
                .into_iter()
                .filter(|(_, tid, _)| !of(&p, tid))
                .collect();
            p.answers = kept;
            p.step();
            assert!(p.now < begun + 2 * PATIENCE, "{:?}", p.ended);
        }
        assert!(p.now < begun + 4 * SILENT, "{:?}", p.now.checked_sub(begun));
    }
}
