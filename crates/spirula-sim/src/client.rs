//! A client of the OSDs: finds its way by the map as Ceph's clients do, sends again when the
//! map or a connection changes, never otherwise.

use crate::content::{self, CLONED, COPIED, Change, Guard, Kind, Seen, locator, name};
use crate::extras;
use crate::monitor::addr_of;
use crate::rng::Rng;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use crate::wrong::{Sign, Wrong};
use spirula_history::versions::{Op, What};
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{flag as pool_flag, flags as map_flags};
use spirula_messages::ceph::osd::{backoff_op, flag};
use spirula_messages::ceph::{MMonSubscribe, MOsdBackoff, MOsdMap, MOsdOp, MOsdOpReply, Subscription};
use spirula_messages::{Body, Message};
use spirula_mon::Peer;
use spirula_types::{AddrVec, EVersion, EntityAddr, EntityType, HObject, OsdId, PgId, SpgId, errno, features};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Ticks without word from its monitor after which it tries another, while it has no map.
const PATIENCE: u64 = 100;
/// Objects of each pool that are made copies of each other.
const COPIES: u64 = 4;
/// One in so many operations is on an object that is only made copies of another.
const CLONES: u64 = 12;
/// Ticks between two attempts to reach an OSD.
const RETRY: u64 = 5;

/// How much a client does, and of what.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Objects of each pool.
    pub objects: u32,
    /// Operations under way at most.
    pub under_way: usize,
    /// It begins one in so many ticks.
    pub idle: u64,
    /// Of 100 operations so many change something.
    pub changes: u64,
    /// Largest write in cells; of so many writes one is that large.
    pub cells: u32,
    pub large: u64,
    /// Of 100 operations so many are on objects that are made copies of each other.
    pub copies: u64,
}

/// Where an operation goes: what must be the same for it to stay there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    pg: PgId,
    primary: OsdId,
    addr: EntityAddr,
    acting: Vec<OsdId>,
    shape: (u32, u8, u8),
    /// From which map on everything is sent again.
    resend: u32,
}

struct Pending {
    pool: i64,
    object: u32,
    change: Option<Change>,
    /// Of a read: so many cells from this one on, or all.
    part: Option<(u32, u32)>,
    omap: bool,
    begun: u64,
    attempt: i32,
    target: Option<Target>,
    /// A map between the one it was sent by and the newest has another target.
    moved: bool,
    /// Waits for the cluster to have room.
    held: bool,
}

/// Finished operations on one object.
pub type History = Vec<Op<Change, Seen, EVersion>>;

struct Way {
    addr: EntityAddr,
    conn: u64,
    open: bool,
    /// What it was told to hold back.
    held: Vec<MOsdBackoff>,
}

/// Is this object in a backoff's range?
fn within(b: &MOsdBackoff, o: &HObject) -> bool {
    *o == b.begin || (b.begin < *o && *o < b.end)
}

/// The client.
pub struct Client {
    mons: Vec<ActorId>,
    osds: Arc<Mutex<BTreeMap<OsdId, ActorId>>>,
    rng: Rng,
    pace: Pace,
    id: ActorId,
    global_id: u64,
    mon: Option<u64>,
    mon_open: bool,
    /// The newest map.
    pub map: Option<OsdMap>,
    ways: BTreeMap<OsdId, Way>,
    /// When an OSD may be tried again, in ticks.
    again: BTreeMap<OsdId, u64>,
    next_conn: u64,
    ticks: u64,
    heard: u64,
    tid: u64,
    pending: BTreeMap<u64, Pending>,
    /// By pool and object.
    pub history: BTreeMap<(i64, u32), History>,
    /// Who wrote an object last, and its user version, as it knows.
    known: BTreeMap<(i64, u32), (u64, u64)>,
    /// Guards that held, and that did not.
    pub guarded: [u64; 2],
    /// So many times it is to lose connections to OSDs; reads it has given up then.
    pub breaks: u32,
    pub given_up: u64,
    /// Pools that it was told are not there.
    pub without: BTreeSet<i64>,
    /// Epoch → hash of the encoded incremental, as received; taken by the checks.
    pub epochs: BTreeMap<u32, u64>,
    /// Writes acknowledged: their PG, of how many in its pool, and their version; taken by the checks.
    pub acked: Vec<(PgId, u32, EVersion)>,
    /// What it found wrong.
    pub wrong: Option<Wrong>,
    /// Begins no new ones.
    pub quiet: bool,
    /// Objects to read at the end, and before that to delete.
    pub audit: Vec<(i64, u32)>,
    pub purge: Vec<(i64, u32)>,
    /// It has seen a pool without room.
    pub was_full: bool,
    /// It knows backoffs.
    pub backs_off: bool,
    /// Backoffs that it was told.
    pub backoffs: u64,
    /// Changes of objects that are copied onto each other.
    pub copied: u64,
    /// Longest time from begin to answer, true microseconds.
    pub longest: u64,
}

impl Client {
    /// A client that knows these monitors.
    pub fn new(mons: Vec<ActorId>, osds: Arc<Mutex<BTreeMap<OsdId, ActorId>>>, pace: Pace, rng: Rng) -> Self {
        Self {
            mons,
            osds,
            rng,
            pace,
            id: 0,
            global_id: 0,
            mon: None,
            mon_open: false,
            map: None,
            ways: BTreeMap::new(),
            again: BTreeMap::new(),
            next_conn: 0,
            ticks: 0,
            heard: 0,
            tid: 0,
            pending: BTreeMap::new(),
            history: BTreeMap::new(),
            known: BTreeMap::new(),
            guarded: [0; 2],
            breaks: 0,
            given_up: 0,
            without: BTreeSet::new(),
            epochs: BTreeMap::new(),
            acked: Vec::new(),
            wrong: None,
            quiet: false,
            audit: Vec::new(),
            purge: Vec::new(),
            was_full: false,
            backs_off: false,
            backoffs: 0,
            copied: 0,
            longest: 0,
        }
    }

    /// True if it waits for nothing.
    pub fn done(&self) -> bool {
        self.pending.is_empty() && self.audit.is_empty() && self.purge.is_empty()
    }

    /// Operations it waits for, for a failure's message.
    pub fn waits(&self) -> String {
        let one =
            |(tid, p): (&u64, &Pending)| format!("tid {tid} object {} attempt {} {:?}", p.object, p.attempt, p.target);
        self.pending.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    fn connect(&mut self, to: ActorId, addr: EntityAddr, out: &mut Vec<Output>) -> u64 {
        self.next_conn += 1;
        let conn = World::conn_numbers(self.id) + self.next_conn;
        let mine = EntityAddr::v2(([10, 0, 2, self.id as u8], 0).into(), self.id as u32);
        let peer = Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id: self.global_id,
            addrs: AddrVec::one(mine),
            features: match self.backs_off {
                true => features::PACIFIC,
                false => features::PACIFIC & !features::RADOS_BACKOFF,
            },
        };
        out.push(Output::Connect { conn, to, addr, peer });
        conn
    }

    fn target(&self, pool: i64, object: u32) -> Option<Target> {
        let map = self.map.as_ref()?;
        let p = map.pool(pool)?;
        let pg = map.object_to_pg(&locator(pool), &name(object))?;
        let place = map.pg_to_up_acting(pg);
        let primary = place.acting_primary;
        let addr = map.addrs(primary).filter(|_| map.is_up(primary))?.client.msgr2();
        Some(Target {
            pg,
            primary,
            addr,
            acting: place.acting,
            shape: (p.pg_num, p.size, p.min_size),
            resend: p.last_force_op_resend,
        })
    }

    fn is_full(&self, pool: i64) -> bool {
        let Some(map) = &self.map else { return false };
        map.flags & map_flags::FULL != 0 || map.pool(pool).is_some_and(|p| p.has_flag(pool_flag::FULL))
    }

    /// Sends an operation to where it belongs, if there is a way.
    fn send(&mut self, tid: u64, out: &mut Vec<Output>) {
        let is_full = self.pending.get(&tid).is_some_and(|p| self.is_full(p.pool));
        self.was_full |= is_full;
        let grows = |p: &Pending| p.change.as_ref().is_some_and(|c| c.kind.grows());
        let full = is_full && self.pending.get(&tid).is_some_and(grows);
        let Some(p) = self.pending.get_mut(&tid) else { return };
        p.held = full;
        let Some(t) = p.target.clone().filter(|_| !full) else { return };
        let Some(conn) = self.way(&t, out) else { return };
        let (Some(p), Some(map)) = (self.pending.get(&tid), &self.map) else { return };
        let (ops, hint) = match &p.change {
            // What gives room is done in a full pool, too.
            Some(c) if is_full => (c.ops(p.pool, p.object), flag::WRITE | flag::ONDISK | flag::FULL_FORCE),
            Some(c) => (c.ops(p.pool, p.object), flag::WRITE | flag::ONDISK),
            None => (content::read_ops(p.part, p.omap), flag::READ),
        };
        let name = name(p.object);
        let hash = spirula_types::hash::object_hash(b"", b"", &name);
        let shard = match map.pool(p.pool) {
            Some(pool) if pool.is_erasure() => t.acting.iter().position(|o| *o == t.primary).map_or(-1, |i| i as i8),
            _ => -1,
        };
        let mut m = MOsdOp::new(SpgId { pg: t.pg, shard }, hash, locator(p.pool), name, ops);
        (m.epoch, m.retry_attempt) = (map.epoch, p.attempt);
        let told = |w: &Way| w.held.iter().any(|b| b.spg == m.spg && within(b, &m.hobject()));
        if self.ways.get(&t.primary).is_some_and(told) {
            return;
        }
        m.flags = flag::ACK | hint | if p.attempt > 0 { flag::RETRY } else { 0 };
        out.push(Output::Send(conn, m.into_message(tid)));
    }

    /// The open way to an OSD; asks for one if there is none.
    fn way(&mut self, t: &Target, out: &mut Vec<Output>) -> Option<u64> {
        if let Some(w) = self.ways.get(&t.primary) {
            if w.addr == t.addr {
                return w.open.then_some(w.conn);
            }
            out.push(Output::Close(w.conn));
            self.ways.remove(&t.primary);
        }
        if self.again.get(&t.primary).is_some_and(|at| *at > self.ticks) {
            return None;
        }
        let to = self.osds.lock().unwrap_or_else(PoisonError::into_inner).get(&t.primary).copied()?;
        self.again.insert(t.primary, self.ticks + RETRY);
        let conn = self.connect(to, t.addr, out);
        self.ways.insert(t.primary, Way { addr: t.addr, conn, open: false, held: Vec::new() });
        None
    }

    /// Sends again what has another target now, or none knows of.
    fn retarget(&mut self, out: &mut Vec<Output>) {
        for tid in self.pending.keys().copied().collect::<Vec<_>>() {
            let Some((pool, object)) = self.pending.get(&tid).map(|p| (p.pool, p.object)) else { continue };
            let target = self.target(pool, object);
            let room = !self.is_full(pool);
            let Some(p) = self.pending.get_mut(&tid) else { continue };
            if p.target != target || p.held && room || p.moved {
                (p.target, p.moved) = (target, false);
                p.attempt += 1;
                self.send(tid, out);
            }
        }
    }

    /// Marks what this map sends elsewhere. As Ceph's clients, it looks at every map it is given: an
    /// OSD that was primary, and is again, has dropped what was sent before.
    fn mark_moved(&mut self) {
        for tid in self.pending.keys().copied().collect::<Vec<_>>() {
            let Some((pool, object)) = self.pending.get(&tid).map(|p| (p.pool, p.object)) else { continue };
            let (target, full) = (self.target(pool, object), self.is_full(pool));
            let Some(p) = self.pending.get_mut(&tid) else { continue };
            // A change that is under way is dropped where there is no room for it.
            p.held |= full && p.change.is_some();
            if p.target != target {
                (p.target, p.moved) = (target, true);
            }
        }
    }

    fn on_maps(&mut self, m: &Message, out: &mut Vec<Output>) -> Result<(), String> {
        let maps = MOsdMap::from_message(m).map_err(|e| e.to_string())?;
        let before = self.map.as_ref().map_or(0, |m| m.epoch);
        for (epoch, bytes) in &maps.incrementals {
            let hash = u64::from(spirula_encoding::crc::crc32c(1, bytes));
            if *self.epochs.entry(*epoch).or_insert(hash) != hash {
                return Err(format!("epoch {epoch} has two contents"));
            }
            if let Some(map) = self.map.as_mut().filter(|m| m.epoch + 1 == *epoch) {
                let inc = spirula_encoding::from_slice(bytes).map_err(|e| format!("incremental {epoch}: {e}"))?;
                map.apply(&inc).map_err(|e| format!("incremental {epoch}: {e}"))?;
                self.mark_moved();
            }
        }
        for (epoch, bytes) in &maps.fulls {
            if self.map.as_ref().is_none_or(|m| m.epoch < *epoch) {
                self.map = Some(spirula_encoding::from_slice(bytes).map_err(|e| format!("full map {epoch}: {e}"))?);
                // Maps in between were not seen.
                self.pending.values_mut().for_each(|p| p.moved = true);
            }
        }
        let now = self.map.as_ref().map_or(0, |m| m.epoch);
        // As Ceph's clients, it has its answer when a pool is gone.
        if let Some(map) = &self.map {
            self.pending.retain(|_, p| map.pools.contains_key(&p.pool));
            self.audit.retain(|(pool, _)| map.pools.contains_key(pool));
            self.purge.retain(|(pool, _)| map.pools.contains_key(pool));
        }
        if now > before {
            self.retarget(out);
        } else if maps.newest > now {
            self.subscribe(out);
        }
        Ok(())
    }

    fn subscribe(&self, out: &mut Vec<Output>) {
        if let Some(conn) = self.mon.filter(|_| self.mon_open) {
            let start = self.map.as_ref().map_or(0, |m| u64::from(m.epoch) + 1);
            let what = vec![Subscription { what: "osdmap".into(), start, once: false }];
            out.push(Output::Send(conn, MMonSubscribe { what, hostname: String::new() }.into_message(0)));
        }
    }

    fn begin(&mut self, local: Local, out: &mut Vec<Output>) {
        let Some(map) = &self.map else { return };
        let purge = self.purge.pop();
        let audit = if purge.is_none() { self.audit.pop() } else { None };
        let pools: Vec<i64> = map.pools.keys().copied().collect();
        let Some((pool, object)) = purge
            .or(audit)
            .or_else(|| Some((self.rng.pick(&pools).copied()?, self.rng.below(u64::from(self.pace.objects)) as u32)))
        else {
            return;
        };
        let omap = map.pool(pool).is_some_and(|p| !p.is_erasure());
        let stripe = extras::appends_only(map, pool);
        self.tid += 1;
        let free = audit.is_none() && purge.is_none();
        if free && self.pace.copies > 0 && self.rng.below(100) < self.pace.copies {
            return self.begin_copy(local, pool, stripe, out);
        }
        let token = (local.id as u64) << 32 | self.tid;
        let changes = free && self.rng.below(100) < self.pace.changes;
        let (mut object, mut part) = (object, None);
        let plain = |kind| Change { token, kind, omap: false, guard: Guard::None, result: 0, version: 0 };
        let change = if purge.is_some() {
            Some(plain(Kind::Delete))
        } else if free && self.rng.one_in(CLONES) {
            let from = object;
            object += CLONED;
            changes.then(|| plain(if self.rng.one_in(4) { Kind::Delete } else { Kind::Copy(from) }))
        } else if changes {
            let change = self.change(local.id, (pool, object), omap);
            Some(if omap { change } else { self.coded(change, stripe) })
        } else {
            None
        };
        if change.is_none() && free && self.rng.one_in(3) {
            part = Some((self.rng.below(400) as u32, self.rng.between(1, 200) as u32));
        }
        let target = self.target(pool, object);
        let begun = local.true_us;
        let p = Pending { pool, object, change, part, omap, begun, attempt: 0, target, moved: false, held: false };
        self.pending.insert(self.tid, p);
        self.send(self.tid, out);
    }

    /// Makes an object a copy of another one, or writes it anew. Few, so that they wait for each other.
    fn begin_copy(&mut self, local: Local, pool: i64, stripe: u64, out: &mut Vec<Output>) {
        let (to, by) = (self.rng.below(COPIES) as u32, self.rng.between(1, COPIES - 1) as u32);
        let from = (to + by) % COPIES as u32;
        let kind = if self.rng.one_in(4) { Kind::Full(20) } else { Kind::Copy(COPIED + from) };
        let token = (local.id as u64) << 32 | self.tid;
        let change = Change { token, kind, omap: false, guard: Guard::None, result: 0, version: 0 };
        let change = if stripe == 0 { change } else { self.coded(change, stripe) };
        let object = COPIED + to;
        let target = self.target(pool, object);
        let (change, begun) = (Some(change), local.true_us);
        let (part, omap) = (None, false);
        let p = Pending { pool, object, change, part, omap, begun, attempt: 0, target, moved: false, held: false };
        self.pending.insert(self.tid, p);
        self.send(self.tid, out);
    }

    fn change(&mut self, id: ActorId, at: (i64, u32), omap: bool) -> Change {
        let guard = if self.rng.one_in(6) { self.guard(at) } else { Guard::None };
        let r = &mut self.rng;
        let n = if r.one_in(self.pace.large) { self.pace.cells } else { r.between(1, 40) as u32 };
        let kind = match r.below(16) {
            0..5 => Kind::Append(n.min(400)),
            5..7 => Kind::Full(n),
            7..10 => Kind::Write(r.below(300) as u32, n),
            10 => Kind::Truncate(r.below(400) as u32),
            11 | 12 => Kind::Zero(r.below(300) as u32, n),
            13 if omap => Kind::Unset(r.below(content::KEYS)),
            14 if omap => Kind::Clear,
            _ => Kind::Delete,
        };
        let removes = matches!(kind, Kind::Unset(_) | Kind::Clear);
        let guard = match guard {
            Guard::Fresh if kind.needs_one() => Guard::None,
            guard => guard,
        };
        let omap = omap && !removes && r.one_in(3);
        Change { token: (id as u64) << 32 | self.tid, kind, omap, guard, result: 0, version: 0 }
    }

    /// What must be so for a change to happen: mostly what it knows of the object, which may have changed.
    fn guard(&mut self, at: (i64, u32)) -> Guard {
        let (last, version) = self.known.get(&at).copied().unwrap_or((1, 1));
        let off = u64::from(self.rng.one_in(4));
        match self.rng.below(3) {
            0 => Guard::Same(last + off),
            1 => Guard::Version(version + off),
            _ => Guard::Fresh,
        }
    }

    /// A change for an erasure-coded pool: its stripes are long, and it may take only whole ones, `stripe` bytes,
    /// at an object's end.
    fn coded(&mut self, change: Change, stripe: u64) -> Change {
        let r = &mut self.rng;
        let far = r.below(3000) as u32;
        let long = |n: u32, r: &mut Rng| if r.one_in(3) { n + r.below(1200) as u32 } else { n };
        let kind = match change.kind {
            Kind::Append(n) => Kind::Append(long(n, r)),
            Kind::Full(n) => Kind::Full(long(n, r)),
            Kind::Write(_, n) => Kind::Write(far, long(n, r)),
            Kind::Zero(_, n) => Kind::Zero(far, long(n, r)),
            Kind::Truncate(_) => Kind::Truncate(far),
            kind @ (Kind::Delete | Kind::Copy(_) | Kind::Unset(_) | Kind::Clear) => kind,
        };
        let whole = |n: u32| n.next_multiple_of((stripe / content::CELL) as u32);
        let kind = match kind {
            kind if stripe == 0 => kind,
            Kind::Append(n) => Kind::Append(whole(n)),
            Kind::Full(n) | Kind::Write(_, n) | Kind::Truncate(n) | Kind::Zero(_, n) => Kind::Full(whole(n)),
            kind @ (Kind::Delete | Kind::Copy(_) | Kind::Unset(_) | Kind::Clear) => kind,
        };
        Change { kind, ..change }
    }

    /// An OSD says what to hold back, or to send again.
    fn on_backoff(&mut self, conn: u64, m: &Message, out: &mut Vec<Output>) -> Result<(), String> {
        let m = MOsdBackoff::from_message(m).map_err(|e| format!("a backoff: {e}"))?;
        if !self.backs_off {
            return Err(format!("knows nothing of {m:?}"));
        }
        let Some((osd, way)) = self.ways.iter_mut().find(|(_, w)| w.conn == conn) else { return Ok(()) };
        let osd = *osd;
        if m.op == backoff_op::BLOCK {
            if way.held.iter().any(|b| (b.spg, &b.begin) == (m.spg, &m.begin)) {
                return Err(format!("told twice to hold {m:?}"));
            }
            way.held.push(m.clone());
            self.backoffs += 1;
            out.push(Output::Send(conn, MOsdBackoff { op: backoff_op::ACK_BLOCK, ..m }.into_message(0)));
            return Ok(());
        }
        let before = way.held.len();
        way.held.retain(|b| b.id != m.id);
        if way.held.len() == before {
            return Err(format!("told to go on with what it does not hold: {m:?}"));
        }
        let there = |p: &Pending| p.target.as_ref().is_some_and(|t| t.primary == osd && t.pg == m.spg.pg);
        let of = |p: &Pending| HObject::head(p.pool, "".into(), "".into(), name(p.object));
        let again = self.pending.iter().filter(|(_, p)| there(p) && within(&m, &of(p)));
        for tid in again.map(|(tid, _)| *tid).collect::<Vec<_>>() {
            if let Some(p) = self.pending.get_mut(&tid) {
                p.attempt += 1;
            }
            self.send(tid, out);
        }
        Ok(())
    }

    fn on_reply(&mut self, local: Local, m: &Message) -> Result<(), String> {
        let reply = MOsdOpReply::from_message(m).map_err(|e| format!("a reply: {e}"))?;
        let tid = m.tid;
        let Some(p) = self.pending.get(&tid).filter(|p| p.attempt == reply.retry_attempt) else { return Ok(()) };
        if p.object >= COPIED {
            // There may be no source yet, and patience with it ends.
            if ![0, -errno::ENOENT, -errno::ETIMEDOUT].contains(&reply.result) {
                return Err(format!("{:?} of object {} is answered {}", p.change, p.object, reply.result));
            }
            self.copied += u64::from(reply.result == 0);
            self.pending.remove(&tid);
            return Ok(());
        }
        let at = (p.pool, p.object);
        let what = match (&p.change, reply.result) {
            // Patience with a source ends; it was not copied.
            (Some(Change { kind: Kind::Copy(_), .. }), result) if result == -errno::ETIMEDOUT => {
                self.pending.remove(&tid);
                return Ok(());
            }
            (Some(c), result) => {
                if reply.replay_version == EVersion::default() && result == -errno::ENOENT {
                    // So is answered whoever knows the pool no more; if it is there in the end, that was wrong.
                    self.without.insert(p.pool);
                    self.pending.remove(&tid);
                    return Ok(());
                }
                if reply.replay_version == EVersion::default() {
                    return Err(format!("the answer {result} to {c:?} of object {} lacks its version", p.object));
                }
                if !matches!(c.guard, Guard::None) {
                    self.guarded[usize::from(result != 0)] += 1;
                }
                if result == 0 && !matches!(c.kind, Kind::Delete | Kind::Copy(_)) {
                    self.known.insert(at, (c.token, reply.user_version));
                }
                What::Change(Change { result, version: reply.user_version, ..c.clone() }, reply.replay_version)
            }
            (None, 0) => {
                let view = content::seen(&reply.ops, p.object, p.part, reply.user_version)
                    .map_err(|e| format!("a read of object {} of pool {} gives {e}", p.object, p.pool))?;
                self.known.insert(at, view.known());
                What::Read(Some(view))
            }
            (None, -2) => What::Read(None),
            (None, result) => return Err(format!("a read of object {} is answered {result}", p.object)),
        };
        // The answer to a resend may be from before its PG was split.
        if let (What::Change(_, version), Some(t), 0) = (&what, &p.target, p.attempt) {
            self.acked.push((t.pg, t.shape.0, *version));
        }
        let op = Op { begun: p.begun, ended: local.true_us, what };
        self.longest = self.longest.max(op.ended - op.begun);
        self.history.entry((p.pool, p.object)).or_default().push(op);
        self.pending.remove(&tid);
        Ok(())
    }

    fn tick(&mut self, local: Local, out: &mut Vec<Output>) {
        self.ticks += 1;
        if self.mon.is_none() {
            if let Some(to) = self.rng.pick(&self.mons).copied() {
                self.mon = Some(self.connect(to, addr_of(to).msgr2(), out));
                self.heard = self.ticks;
            }
        } else if self.ticks > self.heard + PATIENCE && (!self.mon_open || self.ticks.is_multiple_of(PATIENCE)) {
            // As Ceph's clients, it hunts for a monitor that answers.
            if let Some(conn) = self.mon.take() {
                out.push(Output::Close(conn));
            }
            self.mon_open = false;
        }
        if self.breaks > 0 {
            self.breaks -= 1;
            self.break_ways(out);
        }
        if self.ticks.is_multiple_of(RETRY) {
            // Ways that broke are tried again for what still waits.
            let stuck: Vec<u64> = self.pending.iter().filter(|(_, p)| self.is_stuck(p)).map(|(tid, _)| *tid).collect();
            for tid in stuck {
                if let Some(t) = self.pending.get(&tid).and_then(|p| p.target.clone()) {
                    self.way(&t, out);
                }
            }
        }
        // What waits for room must not keep it from making some.
        let room = (self.pending.len() < self.pace.under_way || !self.purge.is_empty()) && self.mon_open;
        if room && (!self.audit.is_empty() || !self.purge.is_empty() || !self.quiet && self.rng.one_in(self.pace.idle))
        {
            self.begin(local, out);
        }
    }

    /// Some ways to OSDs end. What waits is sent again over new ones, but for some reads that nobody wants any more.
    fn break_ways(&mut self, out: &mut Vec<Output>) {
        for osd in self.ways.keys().copied().collect::<Vec<_>>() {
            if self.rng.one_in(2) {
                out.extend(self.ways.remove(&osd).map(|w| Output::Close(w.conn)));
                self.again.remove(&osd);
            }
        }
        let (rng, before) = (&mut self.rng, self.pending.len());
        self.pending.retain(|_, p| p.change.is_some() || !rng.one_in(2));
        self.given_up += (before - self.pending.len()) as u64;
    }

    fn is_stuck(&self, p: &Pending) -> bool {
        p.target.as_ref().is_some_and(|t| self.ways.get(&t.primary).is_none_or(|w| w.addr != t.addr))
    }
}

impl Actor for Client {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        self.id = local.id;
        match input {
            Input::Tick => self.tick(local, out),
            Input::Opened { conn, peer, .. } => {
                if self.mon == Some(conn) {
                    (self.mon_open, self.global_id, self.heard) = (true, peer.global_id, self.ticks);
                    self.subscribe(out);
                } else if let Some((osd, w)) = self.ways.iter_mut().find(|(_, w)| w.conn == conn) {
                    w.open = true;
                    let (osd, addr) = (*osd, w.addr);
                    let to = |p: &Pending| p.target.as_ref().is_some_and(|t| t.primary == osd && t.addr == addr);
                    let mine: Vec<u64> = self.pending.iter().filter(|(_, p)| to(p)).map(|(tid, _)| *tid).collect();
                    for tid in mine {
                        if let Some(p) = self.pending.get_mut(&tid) {
                            p.attempt += 1;
                        }
                        self.send(tid, out);
                    }
                }
            }
            Input::Closed { conn, .. } => {
                if self.mon == Some(conn) {
                    (self.mon, self.mon_open) = (None, false);
                }
                self.ways.retain(|_, w| w.conn != conn);
            }
            Input::Message { conn, message } => {
                if self.mon == Some(conn) {
                    self.heard = self.ticks;
                }
                let known = self.mon == Some(conn) || self.ways.values().any(|w| w.conn == conn);
                let result = match message.kind {
                    _ if !known => Ok(()),
                    MOsdMap::KIND => self.on_maps(&message, out),
                    MOsdOpReply::KIND => self.on_reply(local, &message),
                    MOsdBackoff::KIND => self.on_backoff(conn, &message, out),
                    _ => Ok(()),
                };
                if let Err(why) = result {
                    let sign = if message.kind == MOsdMap::KIND { Sign::Monitors } else { Sign::Reply };
                    self.wrong.get_or_insert(sign.of(format!("client {}: {why}", self.id)));
                }
            }
            _ => {}
        }
    }

    fn crash(&mut self, _: &mut Rng) {}

    fn admits(&mut self, _: &mut Peer, _: &EntityAddr) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
