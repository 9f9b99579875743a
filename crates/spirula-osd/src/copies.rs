//! Getting an object of another PG for `copy_from`: as a client of the OSD that leads that PG, be it this one.
//!
//! The source is read with ordinary requests, a piece at a time, so that whatever holds for
//! clients' reads holds here: they wait for peering and recovery, bad copies are healed,
//! erasure-coded objects are put together from shards. Each piece after the first demands the
//! version, the size and the time of the first, because a copy has its source's version, which may
//! be the number that the object had before. If the object has changed, the copy begins anew. A
//! request without an answer (its PG moved, or nobody leads it now) is sent again, until patience
//! ends. An object that waits for its source lets such reads of itself pass, so that objects may be
//! made copies of each other.

use crate::daemon::Osd;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, UTime};
use spirula_messages::Body;
use spirula_messages::ceph::osd::flag;
use spirula_messages::ceph::{MOsdOp, MOsdOpReply, OsdOp};
use spirula_pg::exec::{Fetched, ObjectInfo, Source, Timeouts, WholeObject};
use spirula_pg::{ClientOp, OpId, Patience, PgEvent};
use spirula_runtime::{LinkId, clock};
use spirula_types::{EntityAddr, EntityName, ObjectLocator, OsdId, ReqId, SpgId, errno};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes of data read at a time.
const PIECE: u64 = 4 << 20;
/// Omap keys read at a time.
const KEYS: u64 = 1024;
/// Copies under way; each holds an object in memory.
const AT_ONCE: usize = 4;
/// A request that was not answered is sent again.
const AGAIN: Duration = Duration::from_secs(2);
/// A source that cannot be read for so long fails the copy (ETIMEDOUT).
const PATIENCE: Duration = Duration::from_secs(60);

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
}

struct Job {
    /// Who wants it.
    pg: SpgId,
    op: OpId,
    source: Source,
    begun: Duration,
    sent: Duration,
    /// Whom it was asked of.
    to: OsdId,
    /// `None` before the first piece.
    got: Option<Got>,
}

/// Copies under way, by the number of their last request.
#[derive(Default)]
pub(crate) struct Copies {
    jobs: BTreeMap<u64, Job>,
    waiting: VecDeque<Job>,
    next: u64,
    /// Requests to PGs of this OSD.
    own: BTreeMap<OpId, u64>,
}

/// The next request for a source.
fn vector(got: Option<&Got>) -> Vec<OsdOp> {
    let Some(got) = got else {
        let omap = [OsdOp::omap_get_header(), OsdOp::omap_get_vals(b"", KEYS, b"")];
        return [OsdOp::stat(), OsdOp::getxattrs()].into_iter().chain(omap).chain([OsdOp::read(0, PIECE)]).collect();
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
        let attrs = names.into_iter().map(|(k, v)| ([b"_", &k[..]].concat().into(), v)).collect();
        let (omap, more_omap) = page(&out(3))?;
        let (version, omap_header, data) = (reply.user_version, out(2), out(4).to_vec());
        *got = Some(Got { version, size, mtime, data, attrs, omap_header, omap, more_omap });
        return Ok(true);
    };
    if stat(&out(1))? != (have.size, have.mtime) {
        return Ok(false);
    }
    let next = out(2);
    if (have.data.len() as u64) < have.size {
        have.data.extend_from_slice(&next);
    } else {
        let (entries, more) = page(&next)?;
        have.more_omap = more && !entries.is_empty();
        have.omap.extend(entries);
    }
    Ok(true)
}

impl Got {
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
        let flags = if self.omap.is_empty() && self.omap_header.is_empty() { 0 } else { ObjectInfo::OMAP };
        let (size, mtime, user_version) = (self.size, self.mtime, self.version);
        let info = ObjectInfo { size, mtime, user_version, flags, ..ObjectInfo::default() };
        let Self { attrs, omap_header, omap, .. } = self;
        let data = Bytes::from(self.data);
        Fetched::Object(Box::new(WholeObject { source, data, attrs, omap_header, omap, info }))
    }
}

impl Osd {
    /// A request of the PG `id` wants an object.
    pub(crate) fn fetch(&mut self, id: SpgId, op: OpId, source: Source) {
        let now = clock::monotonic();
        self.copies.waiting.push_back(Job { pg: id, op, source, begun: now, sent: now, to: -1, got: None });
        self.begin_copies();
    }

    /// Begins what waits, as far as there is room.
    fn begin_copies(&mut self) {
        while self.copies.jobs.len() < AT_ONCE {
            let Some(job) = self.copies.waiting.pop_front() else { return };
            self.ask_source(job);
        }
    }

    /// Sends a copy's next request to whoever leads the source's PG.
    fn ask_source(&mut self, mut job: Job) {
        let object = &job.source.object;
        let map = self.maps.map().cloned();
        let Some((map, pool)) = map.as_ref().and_then(|m| Some((m, m.pool(object.pool)?))) else {
            return self.fetched(&job, Fetched::Failed(errno::ENOENT));
        };
        let pg = object.pg(pool.pg_num);
        let placed = map.pg_to_up_acting(pg);
        let place = placed.acting.iter().position(|o| *o == placed.acting_primary);
        let shard = place.filter(|_| pool.is_erasure()).map_or(-1, |i| i as i8);
        let (key, namespace) = (object.key.clone(), object.namespace.clone());
        let locator = ObjectLocator { pool: object.pool, key, namespace, hash: -1 };
        let spg = SpgId::new(pg, shard);
        let mut msg = MOsdOp::new(spg, object.hash, locator, object.name.clone(), vector(job.got.as_ref()));
        (msg.epoch, msg.snapid, msg.flags) = (map.epoch, object.snap, flag::READ);
        self.copies.next += 1;
        let tid = self.copies.next;
        (job.sent, job.to) = (clock::monotonic(), placed.acting_primary);
        let to = job.to;
        self.copies.jobs.insert(tid, job);
        if to == self.cfg.id {
            let op = self.next_op;
            self.next_op += 1;
            self.copies.own.insert(op, tid);
            let reqid = ReqId { name: EntityName::osd(to), tid, inc: 0 };
            // No connection has this number.
            let (conn, addr, patience) = (0, EntityAddr::NONE, Patience::Endless);
            let timeouts = Timeouts::default();
            let op = ClientOp { id: op, conn, reqid, addr, msg: Box::new(msg), patience, timeouts };
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
        let Some(tid) = self.copies.own.remove(&op) else { return false };
        if let Some(reply) = reply {
            self.source_answered(tid, reply);
            self.begin_copies();
        }
        true
    }

    fn source_answered(&mut self, tid: u64, reply: &MOsdOpReply) {
        let Some(mut job) = self.copies.jobs.remove(&tid) else { return };
        match reply.result {
            r if r == -errno::EAGAIN || job.got.is_some() && (r == -errno::ERANGE || r == -errno::EOVERFLOW) => {
                // It has changed, or whoever answered does not lead it.
                job.got = None;
                self.copies.jobs.insert(tid, job);
            }
            r if r < 0 => self.fetched(&job, Fetched::Failed(-r)),
            _ => match take(&mut job.got, reply) {
                Ok(false) => {
                    job.got = None;
                    self.ask_source(job);
                }
                Ok(true) => match job.got.take_if(|g| g.is_whole()) {
                    Some(got) => {
                        let whole = got.into_object(job.source.clone());
                        self.fetched(&job, whole);
                    }
                    None => self.ask_source(job),
                },
                Err(e) => {
                    tracing::error!("osd.{}: copy of {}: {e}", self.cfg.id, job.source.object);
                    self.fetched(&job, Fetched::Failed(errno::EIO));
                }
            },
        }
    }

    /// A copy has ended.
    fn fetched(&mut self, job: &Job, what: Fetched) {
        self.answer_pg(job.pg, PgEvent::Fetched(job.op, what));
    }

    /// Time passed: what was not answered is asked again, or given up.
    pub(crate) fn keep_copies(&mut self, now: Duration) {
        let (patience, again) = (|j: &Job| now >= j.begun + PATIENCE, |j: &Job| now >= j.sent + AGAIN);
        let due = self.copies.jobs.iter().filter(|(_, j)| patience(j) || again(j)).map(|(t, _)| *t);
        for tid in due.collect::<Vec<u64>>() {
            let Some(job) = self.copies.jobs.remove(&tid) else { continue };
            self.copies.own.retain(|_, t| *t != tid);
            if patience(&job) {
                self.fetched(&job, Fetched::Failed(errno::ETIMEDOUT));
            } else {
                self.ask_source(job);
            }
        }
        self.begin_copies();
        self.perform();
    }
}
