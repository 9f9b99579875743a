//! Operations on objects, and the way of each to the OSD that serves it.
//!
//! An operation's [`Target`] is its PG, the primary, and all that makes an interval of that PG. It
//! is computed again for every map that the client is given, one after the other, for an OSD drops
//! what it was sent in an earlier interval even where it serves the PG again two maps later. So
//! whatever has another target in any map in between is sent again; and all of it, where maps in
//! between were not seen. An OSD recognises what it has done already by the client's name, its
//! incarnation and the operation's number, which stay the same; only the attempt's number changes,
//! and answers to earlier attempts are ignored.
//!
//! Operations that one OSD gets are sent in the order in which they were submitted, also again.
//!
//! What waits, and for what, is said by the fields of [`Pending`]: for a map that has its pool
//! (`probe`), for a primary, for room or the end of a pause (`held`), for a connection, for the
//! end of a backoff, or for its answer. Nothing waits for time: a connection that cannot be had is
//! asked for again at the next [`Objecter::tick`] after [`RETRY`].

use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{flag as pool_flag, flags as map_flags};
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::{OpResult, backoff_op, flag};
use spirula_messages::ceph::{MOsdBackoff, MOsdMap, MOsdOp, MOsdOpReply};
use spirula_messages::{Body, Message};
use spirula_types::{
    AddrVec, EVersion, Epoch, HObject, ObjectLocator, OsdId, PgId, SNAP_HEAD, SpgId, errno,
    features,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Before a connection to an OSD is asked for again.
pub const RETRY: Duration = Duration::from_millis(100);
/// Before a whole map is asked for after one that could not be read.
pub const MAP_RETRY: Duration = Duration::from_secs(1);

/// What the shell is to do.
#[derive(Debug)]
pub enum ObjecterOut {
    /// Open a connection to this OSD at this address; there is none to it.
    Connect(OsdId, AddrVec),
    /// Close the connection to this OSD, whose end need not be told any more.
    Close(OsdId),
    /// Send over the open connection to this OSD.
    Send(OsdId, Message),
    /// An operation is finished.
    Done(u64, Reply),
    /// OSD maps from this epoch on are missing; 0 for the newest one.
    WantMaps(Epoch),
    /// Ask the monitors for the newest epoch of the OSD map, and tell it by [`Objecter::newest`].
    AskNewest,
}

/// Operations on one object, or on a PG, to be done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Pool, namespace, key; with an explicit hash for operations on a PG.
    pub locator: ObjectLocator,
    /// The object's name; empty for operations on a PG.
    pub oid: Bytes,
    /// The vector.
    pub ops: Vec<OsdOp>,
    /// [`flag`]s besides those that say whether it reads or writes, and the attempt.
    pub flags: u32,
    /// What to read: [`SNAP_HEAD`] or a snapshot.
    pub snapid: u64,
    /// Newest snapshot of the write's context, and its snapshots, newest first.
    pub snap_seq: u64,
    /// See `snap_seq`.
    pub snaps: Vec<u64>,
    /// The client's clock; becomes the object's modification time.
    pub mtime: UTime,
}

impl Request {
    /// Operations on the head of an object.
    pub fn new(locator: ObjectLocator, oid: Bytes, ops: Vec<OsdOp>, mtime: UTime) -> Self {
        Self {
            locator,
            oid,
            ops,
            flags: 0,
            snapid: SNAP_HEAD,
            snap_seq: 0,
            snaps: Vec::new(),
            mtime,
        }
    }

    /// True if it may change the object.
    pub fn is_write(&self) -> bool {
        self.flags & flag::WRITE != 0 || self.ops.iter().any(OsdOp::is_write)
    }

    fn is_pg_op(&self) -> bool {
        self.ops.first().is_some_and(OsdOp::is_pg_op)
    }

    /// An OSD takes it although there is no room: it makes some, or fails.
    fn ignores_full(&self) -> bool {
        self.flags & (flag::FULL_TRY | flag::FULL_FORCE) != 0
    }
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// 0 or −errno.
    pub result: i32,
    /// The vector with results and outputs; empty where no OSD answered.
    pub ops: Vec<OpResult>,
    /// The version that a write made.
    pub version: EVersion,
    /// The object's version as clients count it.
    pub user_version: u64,
}

impl Reply {
    fn failed(errno: i32) -> Self {
        Self { result: -errno, ops: Vec::new(), version: EVersion::default(), user_version: 0 }
    }
}

/// Where an operation goes: while all of this is the same in each map, it stays there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The PG.
    pub pg: PgId,
    /// Its acting primary; negative if it has none.
    pub primary: OsdId,
    /// Where that one listens; blank if it has none.
    pub addrs: AddrVec,
    /// Who else makes an interval.
    up: Vec<OsdId>,
    acting: Vec<OsdId>,
    /// PGs, size and least size of the pool.
    pub shape: (u32, u8, u8),
    /// From which map on everything in the pool is sent again.
    resend: Epoch,
}

impl Target {
    /// Of a PG by this map; `None` without its pool.
    fn of(map: &OsdMap, pg: PgId) -> Option<Self> {
        let pool = map.pool(pg.pool)?;
        let place = map.pg_to_up_acting(pg);
        let primary = place.acting_primary;
        let addrs = map.addrs(primary).filter(|_| map.is_up(primary)).map(|a| a.client.clone());
        Some(Self {
            pg,
            primary: if addrs.is_some() { primary } else { -1 },
            addrs: addrs.unwrap_or_default(),
            up: place.up,
            acting: place.acting,
            shape: (pool.pg_num, pool.size, pool.min_size),
            resend: pool.last_force_op_resend,
        })
    }
}

/// Which map decides that there is no such pool: the newest that the monitors had when they were
/// asked after the operation began. The answer to an earlier question may be from before the pool
/// was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// To be asked for, when the question that is under way is answered.
    Wanted,
    /// Asked for.
    Asked,
    /// The one of this epoch.
    Map(Epoch),
}

#[derive(Debug)]
struct Pending {
    request: Request,
    hash: u32,
    target: Option<Arc<Target>>,
    /// Attempts made.
    attempts: i32,
    /// It was sent over the connection that is open to its primary.
    sent: bool,
    /// Its pool is missing, and which map decides.
    probe: Option<Probe>,
    /// It waits for room, or for the end of a pause.
    held: bool,
}

#[derive(Debug)]
struct Session {
    addrs: AddrVec,
    open: bool,
    backoffs: Vec<MOsdBackoff>,
}

/// A client's operations on objects.
#[derive(Debug, Default)]
pub struct Objecter {
    map: Option<OsdMap>,
    places: places::Places,
    pending: BTreeMap<u64, Pending>,
    sessions: BTreeMap<OsdId, Session>,
    /// When an OSD may be connected to again.
    again: BTreeMap<OsdId, Duration>,
    next_tid: u64,
    now: Duration,
    /// The monitors were asked for their newest epoch.
    asking: bool,
    /// When a whole map is asked for.
    map_again: Option<Duration>,
    /// Objects whose place somebody depends on beyond a single operation.
    anchors: BTreeMap<u64, anchors::Anchor>,
}

impl Objecter {
    /// One without a map and without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest map.
    pub fn map(&self) -> Option<&OsdMap> {
        self.map.as_ref()
    }

    /// Its epoch, 0 without one.
    pub fn epoch(&self) -> Epoch {
        self.map.as_ref().map_or(0, |m| m.epoch)
    }

    /// Number of operations that are not finished.
    pub fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// When [`Objecter::tick`] wants to be called.
    pub fn deadline(&self) -> Duration {
        let first = self.again.values().min().copied().unwrap_or(Duration::MAX);
        self.map_again.map_or(first, |at| at.min(first))
    }

    /// Takes an operation on, and gives its number. It ends by [`ObjecterOut::Done`], or by
    /// [`Objecter::cancel`].
    pub fn submit(&mut self, request: Request, out: &mut Vec<ObjecterOut>) -> u64 {
        self.next_tid += 1;
        let tid = self.next_tid;
        let hash = hash_of(&request.locator, &request.oid);
        let op = Pending {
            request,
            hash,
            target: None,
            attempts: 0,
            sent: false,
            probe: None,
            held: false,
        };
        self.pending.insert(tid, op);
        if self.map.is_none() {
            out.push(ObjecterOut::WantMaps(0));
            return tid;
        }
        self.aim(tid, out);
        self.go(tid, out);
        tid
    }

    /// Where an operation goes by the newest map, and how often it was sent.
    pub fn place(&self, tid: u64) -> Option<(&Target, i32)> {
        let p = self.pending.get(&tid)?;
        Some((p.target.as_deref()?, p.attempts))
    }

    /// Nobody waits for this operation any more. A write may be done all the same.
    pub fn cancel(&mut self, tid: u64) {
        self.pending.remove(&tid);
    }

    /// Time has come to `now`: connections that were lost are asked for again.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<ObjecterOut>) {
        self.now = now;
        if self.map_again.is_some_and(|at| at <= now) {
            self.map_again = None;
            out.push(ObjecterOut::WantMaps(0));
        }
        let due: Vec<OsdId> =
            self.again.iter().filter(|(_, at)| **at <= now).map(|(osd, _)| *osd).collect();
        for osd in due {
            self.again.remove(&osd);
            if self.waiting(osd).next().is_some() {
                self.connect(osd, out);
            }
        }
    }

    /// Operations that go to an OSD, in their order.
    fn waiting(&self, osd: OsdId) -> impl Iterator<Item = u64> + '_ {
        let to = move |p: &Pending| p.target.as_ref().is_some_and(|t| t.primary == osd);
        self.pending.iter().filter(move |(_, p)| to(p)).map(|(tid, _)| *tid)
    }

    /// Must it wait for room, or for the end of a pause?
    fn is_held(map: &OsdMap, r: &Request) -> bool {
        let pool_full = map.pool(r.locator.pool).is_some_and(|p| p.has_flag(pool_flag::FULL));
        let full = pool_full || map.has_flag(map_flags::FULL);
        match r.is_write() {
            true => map.has_flag(map_flags::PAUSEWR) || full && !r.ignores_full(),
            false => map.has_flag(map_flags::PAUSERD),
        }
    }

    /// Computes an operation's target by the newest map; what has another one now is to be sent.
    fn aim(&mut self, tid: u64, out: &mut Vec<ObjecterOut>) {
        let (Some(map), Some(p)) = (&self.map, self.pending.get_mut(&tid)) else { return };
        let target = self.places.of(map, p.request.locator.pool, p.hash);
        let held = Self::is_held(map, &p.request);
        // An OSD drops a write for which there was no room.
        if target != p.target || held != p.held {
            (p.target, p.held, p.sent) = (target, held, false);
        }
        if p.target.is_some() {
            p.probe = None;
            return;
        }
        let epoch = map.epoch;
        match p.probe {
            None => {
                p.probe = Some(if self.asking { Probe::Wanted } else { Probe::Asked });
                if !self.asking {
                    self.asking = true;
                    out.push(ObjecterOut::AskNewest);
                }
            }
            Some(Probe::Map(decides)) if epoch >= decides => {
                self.pending.remove(&tid);
                out.push(ObjecterOut::Done(tid, Reply::failed(errno::ENOENT)));
            }
            Some(_) => {}
        }
    }

    /// The monitors' newest OSD map has this epoch: whoever has no pool in it never gets one.
    pub fn newest(&mut self, epoch: Epoch, out: &mut Vec<ObjecterOut>) {
        self.asking = false;
        for p in self.pending.values_mut() {
            p.probe = match p.probe {
                Some(Probe::Asked) => Some(Probe::Map(epoch)),
                Some(Probe::Wanted) => {
                    self.asking = true;
                    Some(Probe::Asked)
                }
                other => other,
            };
        }
        if self.asking {
            out.push(ObjecterOut::AskNewest);
        }
        if self.epoch() < epoch {
            out.push(ObjecterOut::WantMaps(self.epoch() + 1));
        }
        self.aim_all(out);
    }

    fn aim_all(&mut self, out: &mut Vec<ObjecterOut>) {
        self.aim_anchors();
        for tid in self.pending.keys().copied().collect::<Vec<_>>() {
            self.aim(tid, out);
        }
    }

    /// Sends what can be sent of this operation now.
    fn go(&mut self, tid: u64, out: &mut Vec<ObjecterOut>) {
        let Some(p) = self.pending.get(&tid).filter(|p| !p.sent && !p.held) else { return };
        let Some(t) = p.target.as_ref().filter(|t| t.primary >= 0) else { return };
        let osd = t.primary;
        match self.sessions.get(&osd) {
            Some(s) if s.addrs == t.addrs && s.open => self.send(tid, osd, out),
            // It is sent when it opens.
            Some(s) if s.addrs == t.addrs => {}
            Some(_) => {
                self.end_session(osd);
                out.push(ObjecterOut::Close(osd));
                self.connect(osd, out);
            }
            None if !self.again.contains_key(&osd) => self.connect(osd, out),
            None => {}
        }
    }

    /// Opens a connection where the map says that the OSD listens.
    fn connect(&mut self, osd: OsdId, out: &mut Vec<ObjecterOut>) {
        let Some(map) = self.map.as_ref().filter(|m| m.is_up(osd)) else { return };
        let Some(addrs) = map.addrs(osd).map(|a| a.client.clone()) else { return };
        self.sessions
            .insert(osd, Session { addrs: addrs.clone(), open: false, backoffs: Vec::new() });
        out.push(ObjecterOut::Connect(osd, addrs));
    }

    /// Whatever was sent to this OSD is to be sent again.
    fn end_session(&mut self, osd: OsdId) -> bool {
        for tid in self.waiting(osd).collect::<Vec<_>>() {
            if let Some(p) = self.pending.get_mut(&tid) {
                p.sent = false;
            }
        }
        self.shake_anchors(osd);
        self.sessions.remove(&osd).is_some()
    }

    fn message(map: &OsdMap, p: &Pending, t: &Target) -> MOsdOp {
        let r = &p.request;
        // In an erasure-coded pool the primary is named with its position.
        let coded = map.pool(t.pg.pool).is_some_and(|p| p.is_erasure());
        let place = if coded { t.acting.iter().position(|o| *o == t.primary) } else { None };
        let shard = place.map_or(-1, |i| i as i8);
        let mut m = MOsdOp::new(
            SpgId { pg: t.pg, shard },
            p.hash,
            r.locator.clone(),
            r.oid.clone(),
            r.ops.clone(),
        );
        let hint = if r.is_write() { flag::WRITE | flag::ONDISK } else { flag::READ };
        let again = if p.attempts > 0 { flag::RETRY } else { 0 };
        let pg_op = if r.is_pg_op() { flag::PGOP } else { 0 };
        m.flags = r.flags | hint | flag::ACK | flag::KNOWN_REDIR | again | pg_op;
        (m.epoch, m.retry_attempt, m.mtime) = (map.epoch, p.attempts, r.mtime);
        (m.snapid, m.snap_seq, m.snaps) = (r.snapid, r.snap_seq, r.snaps.clone());
        m.features = features::PACIFIC;
        m
    }

    fn send(&mut self, tid: u64, osd: OsdId, out: &mut Vec<ObjecterOut>) {
        let (Some(map), Some(s)) = (&self.map, self.sessions.get(&osd)) else { return };
        let Some(p) = self.pending.get_mut(&tid) else { return };
        let Some(t) = &p.target else { return };
        let m = Self::message(map, p, t);
        if s.backoffs.iter().any(|b| covers(b, m.spg.pg, &m.hobject())) {
            return;
        }
        p.sent = true;
        p.attempts += 1;
        out.push(ObjecterOut::Send(osd, m.into_message(tid)));
    }

    /// The connection to this OSD is open: all that waits for it is sent, in its order.
    pub fn opened(&mut self, osd: OsdId, out: &mut Vec<ObjecterOut>) {
        let Some(s) = self.sessions.get_mut(&osd) else { return };
        s.open = true;
        for tid in self.waiting(osd).collect::<Vec<_>>() {
            self.go(tid, out);
        }
    }

    /// The connection to this OSD ended, or could not be had.
    pub fn closed(&mut self, now: Duration, osd: OsdId) {
        self.now = now;
        if self.end_session(osd) {
            self.again.insert(osd, now + RETRY);
        }
    }

    /// OSD maps, of a monitor or an OSD.
    ///
    /// # Errors
    /// Says what is wrong with a map; the client has none until a whole one comes, for which it
    /// asks.
    pub fn maps(
        &mut self,
        now: Duration,
        m: &MOsdMap,
        out: &mut Vec<ObjecterOut>,
    ) -> Result<(), String> {
        self.now = now;
        let before = self.epoch();
        let result = self.take_maps(m, out);
        if self.epoch() > before {
            self.after_maps(out);
        }
        if result.is_err() {
            // What was applied in part is not to be trusted. A whole map is asked for, but not at
            // once: the next one may be as bad.
            self.map = None;
            self.map_again = Some(self.now + MAP_RETRY);
        } else if m.newest > self.epoch() {
            out.push(ObjecterOut::WantMaps(self.epoch() + 1));
        }
        result
    }

    fn take_maps(&mut self, m: &MOsdMap, out: &mut Vec<ObjecterOut>) -> Result<(), String> {
        for (epoch, bytes) in &m.incrementals {
            if let Some(map) = self.map.as_mut().filter(|m| m.epoch + 1 == *epoch) {
                let inc = spirula_encoding::from_slice(bytes)
                    .map_err(|e| format!("incremental map {epoch}: {e}"))?;
                map.apply(&inc).map_err(|e| format!("incremental map {epoch}: {e}"))?;
                self.aim_all(out);
            }
        }
        for (epoch, bytes) in &m.fulls {
            if self.epoch() < *epoch {
                self.map = Some(
                    spirula_encoding::from_slice(bytes).map_err(|e| format!("map {epoch}: {e}"))?,
                );
                // The maps in between were not seen.
                self.loosen_anchors();
                self.pending.values_mut().for_each(|p| p.sent = false);
                self.aim_all(out);
            }
        }
        Ok(())
    }

    /// After a newer map: connections to those that are gone end, and what has moved is sent.
    fn after_maps(&mut self, out: &mut Vec<ObjecterOut>) {
        let Some(map) = &self.map else { return };
        let moved = |osd: OsdId, s: &Session| {
            !map.is_up(osd) || map.addrs(osd).is_none_or(|a| a.client != s.addrs)
        };
        let gone: Vec<OsdId> =
            self.sessions.iter().filter(|(osd, s)| moved(**osd, s)).map(|(osd, _)| *osd).collect();
        for osd in gone {
            self.end_session(osd);
            out.push(ObjecterOut::Close(osd));
        }
        // An OSD that is up again is there at once.
        self.again.clear();
        for tid in self.pending.keys().copied().collect::<Vec<_>>() {
            self.go(tid, out);
        }
    }

    /// An OSD answers. What is no answer to the latest attempt of an operation is ignored.
    pub fn reply(&mut self, osd: OsdId, tid: u64, reply: MOsdOpReply, out: &mut Vec<ObjecterOut>) {
        let Some(p) = self.pending.get_mut(&tid) else { return };
        let asked = p.target.as_ref().is_some_and(|t| t.primary == osd);
        if p.attempts == 0
            || !asked
            || reply.retry_attempt >= 0 && reply.retry_attempt != p.attempts - 1
        {
            return;
        }
        let near = flag::BALANCE_READS | flag::LOCALIZE_READS;
        if reply.result == -errno::EAGAIN && p.request.flags & near != 0 {
            // A replica that cannot serve it; the primary can.
            p.request.flags &= !near;
            p.sent = false;
            return self.go(tid, out);
        }
        self.pending.remove(&tid);
        let (version, user_version) = (reply.replay_version, reply.user_version);
        out.push(ObjecterOut::Done(
            tid,
            Reply { result: reply.result, ops: reply.ops, version, user_version },
        ));
    }

    /// An OSD says what to hold back, or to send again.
    pub fn backoff(&mut self, osd: OsdId, m: MOsdBackoff, out: &mut Vec<ObjecterOut>) {
        let Some(s) = self.sessions.get_mut(&osd).filter(|s| s.open) else { return };
        let known = |b: &MOsdBackoff| b.id == m.id && b.spg == m.spg;
        match m.op {
            backoff_op::BLOCK => {
                if !s.backoffs.iter().any(known) {
                    s.backoffs.push(m.clone());
                }
                // Those under way were dropped, and are sent when it ends.
                let held = |p: &Pending| {
                    p.target
                        .as_ref()
                        .is_some_and(|t| t.primary == osd && covers(&m, t.pg, &hobject(p)))
                };
                self.pending.values_mut().filter(|p| held(p)).for_each(|p| p.sent = false);
                let ack = MOsdBackoff { op: backoff_op::ACK_BLOCK, ..m };
                out.push(ObjecterOut::Send(osd, ack.into_message(0)));
            }
            backoff_op::UNBLOCK => {
                s.backoffs.retain(|b| !known(b));
                for tid in self.waiting(osd).collect::<Vec<_>>() {
                    self.go(tid, out);
                }
            }
            _ => {}
        }
    }
}

/// All 32 bits of an object's hash.
fn hash_of(at: &ObjectLocator, oid: &Bytes) -> u32 {
    match u32::try_from(at.hash) {
        Ok(explicit) => explicit,
        Err(_) => spirula_types::hash::object_hash(&at.namespace, &at.key, oid),
    }
}

fn hobject(p: &Pending) -> HObject {
    let r = &p.request;
    let key = if r.locator.key == r.oid { Bytes::new() } else { r.locator.key.clone() };
    let (pool, nspace) = (r.locator.pool, r.locator.namespace.clone());
    HObject { hash: p.hash, ..HObject::head(pool, nspace, key, r.oid.clone()) }
}

/// Does this backoff hold back this object?
fn covers(b: &MOsdBackoff, pg: PgId, o: &HObject) -> bool {
    b.spg.pg == pg && (*o == b.begin || b.begin < *o && *o < b.end)
}

mod anchors;
mod places;
#[cfg(test)]
mod tests;
