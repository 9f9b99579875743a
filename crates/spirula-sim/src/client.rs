//! A client of the OSDs, on the machines that Spirula's own processes use ([`spirula_client`]): it
//! makes operations, keeps the history of what it was told, and checks what it is told.

use crate::content::{self, CLONED, COPIED, Change, Guard, Kind, locator, name};
use crate::extras;
use crate::fuzzer;
use crate::monitor::{addr_of, id_of};
use crate::past::{self, Held, Look, Snaps};
use crate::rng::Rng;
use crate::scenario::FSID;
use crate::watching::Watching;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use crate::wrong::{Sign, Wrong};
use spirula_client::{Answer, MonitorOut, Monitors, Mons, Objecter, ObjecterOut, Reply, Request};
use spirula_encoding::UTime;
use spirula_history::versions::{Op, What};
use spirula_maps::OsdMap;
use spirula_maps::osdmap::{flag as pool_flag, flags as map_flags};
use spirula_messages::ceph::osd::{backoff_op, flag};
use spirula_messages::ceph::{MOsdBackoff, MOsdMap, MOsdOpReply, MWatchNotify};
use spirula_messages::{Body, Message};
use spirula_mon::Peer;
use spirula_types::{
    AddrVec, EVersion, EntityAddr, EntityType, OsdId, PgId, SNAP_HEAD, errno, features,
};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Objects of each pool that are made copies of each other.
const COPIES: u64 = 4;
/// One in so many operations is on an object that is only made copies of another.
const CLONES: u64 = 12;
/// Operations that nobody would ask for, at a time.
const ODD_MAX: usize = 8;
/// Of so many ticks in which a client begins something it begins many things in one, if it does so
/// at all.
const BURSTS: u64 = 20;
/// Requests about snapshots under way at most, in the end.
const SNAP_CALLS: usize = 8;
/// How much a client does, and of what.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Objects of each pool.
    pub objects: u32,
    /// Operations under way at most.
    pub under_way: usize,
    /// It begins one in so many ticks.
    pub idle: u64,
    /// It begins so many instead, in one of [`BURSTS`] ticks.
    pub burst: usize,
    /// Of 100 operations so many change something.
    pub changes: u64,
    /// Largest write in cells; of so many writes one is that large.
    pub cells: u32,
    pub large: u64,
    /// Of 100 operations so many are on objects that are made copies of each other.
    pub copies: u64,
    /// It makes, uses and removes snapshots.
    pub snaps: bool,
}

struct Pending {
    pool: i64,
    object: u32,
    change: Option<Change>,
    /// Of a read: so many cells from this one on, or all.
    part: Option<(u32, u32)>,
    omap: bool,
    begun: u64,
    /// The snapshot that it reads at, or rolls back to.
    held: Option<Held>,
}

/// Finished operations on one object.
pub type History = Vec<Op<Change, Look, EVersion>>;

/// What it reads.
fn snap_of(p: &Pending) -> u64 {
    p.held.as_ref().map_or(SNAP_HEAD, |h| h.snap)
}

/// A connection to an OSD.
struct Way {
    conn: u64,
    /// What it was told to hold back.
    held: Vec<MOsdBackoff>,
}

/// The client.
pub struct Client {
    osds: Arc<Mutex<BTreeMap<OsdId, ActorId>>>,
    rng: Rng,
    pace: Pace,
    id: ActorId,
    global_id: u64,
    monitors: Monitors,
    objecter: Objecter,
    /// The connection to a monitor.
    mon: Option<u64>,
    ways: BTreeMap<OsdId, Way>,
    next_conn: u64,
    /// Tells its changes apart.
    token: u64,
    pending: BTreeMap<u64, Pending>,
    /// The snapshots that clients share; what it asked the monitors for, by pool, and if a new one;
    /// how often it made, removed, read at and rolled back to one.
    pub snaps: Snaps,
    snap_calls: BTreeMap<u64, (i64, bool)>,
    pub of_snaps: [u64; 4],
    /// Snapshots to remove in the end.
    pub forget: Vec<(i64, u64)>,
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
    /// Writes acknowledged: their PG, of how many in its pool, and their version; taken by the
    /// checks.
    pub acked: Vec<(PgId, u32, EVersion)>,
    /// PG, and PGs of its pool, of the operation that is being answered, if it was sent once only.
    answered: Option<(PgId, u32)>,
    /// What it found wrong.
    pub wrong: Option<Wrong>,
    /// Begins no new ones.
    pub quiet: bool,
    /// Objects to read at the end, and at which snapshot, and before that objects to delete.
    pub audit: Vec<(i64, u32, u64)>,
    pub purge: Vec<(i64, u32)>,
    /// It has seen a pool without room.
    pub was_full: bool,
    /// It knows backoffs.
    pub backs_off: bool,
    /// Backoffs that it was told.
    pub backoffs: u64,
    /// Changes of objects that are copied onto each other.
    pub copied: u64,
    /// Beside all that it sends operations with arguments that nobody would give, on objects of
    /// their own; those that are not answered yet, and how many were, with an error and without.
    pub odd: bool,
    odd_pending: BTreeMap<u64, i64>,
    pub odd_answered: [u64; 2],
    /// Its watches and notifications, in seeds with such.
    pub watching: Option<Watching>,
    /// Longest time from begin to answer, true microseconds.
    pub longest: u64,
    /// Requests that were under way at a time, at most.
    pub most: usize,
}

impl Client {
    /// A client that knows these monitors.
    pub fn new(
        mons: Vec<ActorId>,
        osds: Arc<Mutex<BTreeMap<OsdId, ActorId>>>,
        pace: Pace,
        mut rng: Rng,
    ) -> Self {
        let mons = Mons::new(mons.into_iter().map(addr_of).collect(), rng.bits());
        let mut monitors = Monitors::new(mons, "");
        monitors.set_start("osdmap", 0);
        Self {
            osds,
            rng,
            pace,
            id: 0,
            global_id: 0,
            monitors,
            objecter: Objecter::new(),
            mon: None,
            ways: BTreeMap::new(),
            next_conn: 0,
            token: 0,
            pending: BTreeMap::new(),
            snaps: Snaps::default(),
            snap_calls: BTreeMap::new(),
            of_snaps: [0; 4],
            forget: Vec::new(),
            history: BTreeMap::new(),
            known: BTreeMap::new(),
            guarded: [0; 2],
            breaks: 0,
            given_up: 0,
            without: BTreeSet::new(),
            epochs: BTreeMap::new(),
            acked: Vec::new(),
            answered: None,
            wrong: None,
            quiet: false,
            audit: Vec::new(),
            purge: Vec::new(),
            was_full: false,
            backs_off: false,
            backoffs: 0,
            copied: 0,
            odd: false,
            odd_pending: BTreeMap::new(),
            odd_answered: [0; 2],
            watching: None,
            longest: 0,
            most: 0,
        }
    }

    /// True if it waits for nothing.
    pub fn done(&self) -> bool {
        let asks = !self.snap_calls.is_empty() || !self.forget.is_empty();
        !asks
            && self.watching.as_ref().is_none_or(Watching::done)
            && self.pending.is_empty()
            && self.odd_pending.is_empty()
            && self.audit.is_empty()
            && self.purge.is_empty()
    }

    /// Operations it waits for, for a failure's message.
    pub fn waits(&self) -> String {
        let one = |(tid, p): (&u64, &Pending)| {
            format!("tid {tid} object {} {:?}", p.object, self.objecter.place(*tid))
        };
        let odd = |(tid, pool): (&u64, &i64)| {
            format!("odd tid {tid} of pool {pool} {:?}", self.objecter.place(*tid))
        };
        let snap =
            |(call, about): (&u64, &(i64, bool))| format!("call {call} about a snapshot {about:?}");
        let (odd, snaps) = (self.odd_pending.iter().map(odd), self.snap_calls.iter().map(snap));
        let watching = self.watching.iter().filter(|w| !w.done()).map(Watching::waits);
        self.pending
            .iter()
            .map(one)
            .chain(odd)
            .chain(snaps)
            .chain(watching)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// A request that was not answered in so many microseconds, none of them before `since`; of
    /// those on pools that could go on. One that waits for the source of a copy, or behind a copy
    /// that does, may do so for longer: nobody but copies are kept from it.
    pub fn stands_still(
        &self,
        now: u64,
        since: u64,
        longest: u64,
        goes_on: impl Fn(i64) -> bool,
    ) -> Option<String> {
        let copies = |p: &Pending| {
            p.object >= CLONED || p.change.as_ref().is_some_and(|c| matches!(c.kind, Kind::Copy(_)))
        };
        let (tid, p) = self
            .pending
            .iter()
            .find(|(_, p)| now > p.begun.max(since) + longest && goes_on(p.pool) && !copies(p))?;
        Some(format!(
            "tid {tid} object {} begun {} {:?}",
            p.object,
            p.begun,
            self.objecter.place(*tid)
        ))
    }

    /// The newest map.
    pub fn map(&self) -> Option<&OsdMap> {
        self.objecter.map()
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

    /// Lets `f` have its session with a monitor, and does what comes of it.
    fn with_monitors<T>(
        &mut self,
        local: Local,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut Monitors, &mut Vec<MonitorOut>) -> T,
    ) -> T {
        let mut asks = Vec::new();
        let result = f(&mut self.monitors, &mut asks);
        self.ask(local, asks, out);
        result
    }

    /// The same with its way to OSDs.
    fn with_objecter<T>(
        &mut self,
        local: Local,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut Objecter, &mut Vec<ObjecterOut>) -> T,
    ) -> T {
        let mut todo = Vec::new();
        let result = f(&mut self.objecter, &mut todo);
        self.perform(local, todo, out);
        result
    }

    /// Does what its machines want.
    fn perform(&mut self, local: Local, todo: Vec<ObjecterOut>, out: &mut Vec<Output>) {
        for o in todo {
            match o {
                ObjecterOut::Connect(osd, addrs) => {
                    let to =
                        self.osds.lock().unwrap_or_else(PoisonError::into_inner).get(&osd).copied();
                    match to {
                        Some(to) => {
                            let conn = self.connect(to, addrs.msgr2(), out);
                            self.ways.insert(osd, Way { conn, held: Vec::new() });
                        }
                        None => self.objecter.closed(local.mono, osd),
                    }
                }
                ObjecterOut::Close(osd) => {
                    out.extend(self.ways.remove(&osd).map(|w| Output::Close(w.conn)))
                }
                ObjecterOut::Send(osd, m) => {
                    out.extend(self.ways.get(&osd).map(|w| Output::Send(w.conn, m)))
                }
                ObjecterOut::WantMaps(start) => {
                    self.with_monitors(local, out, |m, asks| {
                        m.subscribe("osdmap", u64::from(start), asks)
                    });
                }
                ObjecterOut::AskNewest => {
                    self.with_monitors(local, out, |m, asks| m.newest("osdmap", asks));
                }
                ObjecterOut::Done(tid, reply) => {
                    if self.watch_reply(local, tid, &reply, out) {
                        continue;
                    }
                    if let Err(why) = self.on_reply(local, tid, &reply) {
                        self.wrong
                            .get_or_insert(Sign::Reply.of(format!("client {}: {why}", self.id)));
                    }
                }
            }
        }
    }

    /// The same for its session with a monitor.
    fn ask(&mut self, local: Local, todo: Vec<MonitorOut>, out: &mut Vec<Output>) {
        for o in todo {
            match o {
                MonitorOut::Connect(to) => match id_of(&to) {
                    Some(id) => self.mon = Some(self.connect(id, to.msgr2(), out)),
                    None => {
                        self.monitors.closed(local.mono, "nobody listens there", &mut Vec::new())
                    }
                },
                MonitorOut::Close => out.extend(self.mon.take().map(Output::Close)),
                MonitorOut::Send(m) => out.extend(self.mon.map(|conn| Output::Send(conn, m))),
                MonitorOut::Answer(call, Answer::PoolOp { result, snap, .. }) => {
                    let Some((pool, new)) = self.snap_calls.remove(&call) else { continue };
                    let made = snap.filter(|_| new && result == 0);
                    self.of_snaps[usize::from(!new)] += u64::from(result == 0);
                    let verdict = if new { self.snaps.made(pool, made) } else { Ok(()) };
                    // A pool may have been deleted; a snapshot that was removed before is granted.
                    let odd = ![0, -errno::ENOENT].contains(&result);
                    let why = verdict
                        .err()
                        .or(odd.then(|| format!("a snapshot of pool {pool} is answered {result}")));
                    if let Some(why) = why {
                        self.wrong
                            .get_or_insert(Sign::Reply.of(format!("client {}: {why}", self.id)));
                    }
                }
                MonitorOut::Answer(_, Answer::Version { newest, .. }) => {
                    self.with_objecter(local, out, |o, todo| o.newest(newest as u32, todo));
                }
                MonitorOut::Opened | MonitorOut::Lost(_) | MonitorOut::Answer(..) => {}
            }
        }
    }

    fn is_full(&self, pool: i64) -> bool {
        self.map().is_some_and(|map| {
            map.flags & map_flags::FULL != 0
                || map.pool(pool).is_some_and(|p| p.has_flag(pool_flag::FULL))
        })
    }

    /// Begins an operation.
    fn submit(&mut self, local: Local, mut p: Pending, out: &mut Vec<Output>) {
        self.was_full |= self.is_full(p.pool);
        let (seq, snaps) = self.snaps.context(p.pool);
        let (ops, flags) = match &p.change {
            // What gives room is done in a full pool, too.
            Some(c) => (c.ops(p.pool, p.object), if c.kind.grows() { 0 } else { flag::FULL_FORCE }),
            None => (content::read_ops(p.part, p.omap), 0),
        };
        let mut request = Request::new(locator(p.pool), name(p.object), ops, UTime::ZERO);
        request.flags = flags;
        match (&mut p.change, &p.held) {
            (Some(c), _) => (c.context, request.snap_seq, request.snaps) = (seq, seq, snaps),
            (None, Some(held)) => request.snapid = held.snap,
            (None, None) => {}
        }
        let mut todo = Vec::new();
        let tid = self.objecter.submit(request, &mut todo);
        self.pending.insert(tid, p);
        self.perform(local, todo, out);
    }

    fn on_maps(&mut self, local: Local, m: &Message, out: &mut Vec<Output>) -> Result<(), String> {
        let maps = MOsdMap::from_message(m).map_err(|e| e.to_string())?;
        for (epoch, bytes) in &maps.incrementals {
            let hash = u64::from(spirula_encoding::crc::crc32c(1, bytes));
            if *self.epochs.entry(*epoch).or_insert(hash) != hash {
                return Err(format!("epoch {epoch} has two contents"));
            }
        }
        let result = self.with_objecter(local, out, |o, todo| o.maps(local.mono, &maps, todo));
        if let Some(map) = self.objecter.map() {
            self.monitors.set_start("osdmap", u64::from(map.epoch) + 1);
            // What was done to a pool that is gone is of no interest.
            let gone: Vec<u64> = self
                .pending
                .iter()
                .filter(|(_, p)| !map.pools.contains_key(&p.pool))
                .map(|(tid, _)| *tid)
                .collect();
            self.audit.retain(|(pool, ..)| map.pools.contains_key(pool));
            self.purge.retain(|(pool, _)| map.pools.contains_key(pool));
            let odd = self
                .odd_pending
                .extract_if(.., |_, pool| !map.pools.contains_key(pool))
                .map(|(tid, _)| tid);
            for tid in gone.into_iter().chain(odd.collect::<Vec<_>>()) {
                self.pending.remove(&tid);
                self.objecter.cancel(tid);
            }
        }
        result
    }

    fn begin(&mut self, local: Local, out: &mut Vec<Output>) {
        let Some(map) = self.objecter.map() else { return };
        let purge = self.purge.pop();
        let audit = if purge.is_none() { self.audit.pop() } else { None };
        let of_the_story = |pool: &i64| fuzzer::is_of_the_story(map.pool_name(*pool));
        let pools: Vec<i64> = map.pools.keys().copied().filter(of_the_story).collect();
        let Some((pool, object)) =
            purge.or(audit.map(|(pool, object, _)| (pool, object))).or_else(|| {
                Some((
                    self.rng.pick(&pools).copied()?,
                    self.rng.below(u64::from(self.pace.objects)) as u32,
                ))
            })
        else {
            return;
        };
        let omap = map.pool(pool).is_some_and(|p| !p.is_erasure());
        let stripe = extras::appends_only(map, pool);
        self.token += 1;
        let free = audit.is_none() && purge.is_none();
        if free && self.pace.snaps && self.begin_snap(local, (pool, object), stripe == 0, out) {
            return;
        }
        if free && self.pace.copies > 0 && self.rng.below(100) < self.pace.copies {
            return self.begin_copy(local, pool, stripe, out);
        }
        let token = (local.id as u64) << 32 | self.token;
        let changes = free && self.rng.below(100) < self.pace.changes;
        let (mut object, mut part) = (object, None);
        let plain = |kind| Change {
            token,
            kind,
            omap: false,
            guard: Guard::None,
            result: 0,
            version: 0,
            context: 0,
        };
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
        let held = match audit {
            Some((_, _, SNAP_HEAD)) => None,
            Some((_, _, snap)) => self.snaps.hold_this(pool, snap),
            None if change.is_none() && self.pace.snaps && self.rng.one_in(2) => {
                self.snaps.hold(pool, &mut self.rng)
            }
            None => None,
        };
        let begun = local.true_us;
        self.submit(local, Pending { pool, object, change, part, omap, begun, held }, out);
    }

    /// Makes or removes a snapshot, or rolls an object back to one, now and then. False if it does
    /// not.
    fn begin_snap(
        &mut self,
        local: Local,
        (pool, object): (i64, u32),
        rolls: bool,
        out: &mut Vec<Output>,
    ) -> bool {
        match self.rng.below(50) {
            0 | 1 if self.snaps.may_make(pool) => self.ask_snap(local, pool, None, out),
            2 => match self.snaps.remove_one(pool, &mut self.rng) {
                Some(snap) => self.ask_snap(local, pool, Some(snap), out),
                None => return false,
            },
            3..6 if rolls => {
                let Some(held) = self.snaps.hold(pool, &mut self.rng) else { return false };
                let token = (local.id as u64) << 32 | self.token;
                let (kind, guard) = (Kind::Back(held.snap), Guard::None);
                let change =
                    Change { token, kind, omap: false, guard, result: 0, version: 0, context: 0 };
                let (change, held, begun) = (Some(change), Some(held), local.true_us);
                self.submit(
                    local,
                    Pending { pool, object, change, part: None, omap: false, begun, held },
                    out,
                );
            }
            _ => return false,
        }
        true
    }

    fn ask_snap(&mut self, local: Local, pool: i64, remove: Option<u64>, out: &mut Vec<Output>) {
        let order = past::order(FSID, pool, remove);
        let call = self.with_monitors(local, out, |m, asks| m.pool_op(order, asks));
        self.snap_calls.insert(call, (pool, remove.is_none()));
    }

    /// Makes an object a copy of another one, or writes it anew. Few, so that they wait for each
    /// other.
    fn begin_copy(&mut self, local: Local, pool: i64, stripe: u64, out: &mut Vec<Output>) {
        let (to, by) = (self.rng.below(COPIES) as u32, self.rng.between(1, COPIES - 1) as u32);
        let from = (to + by) % COPIES as u32;
        let kind = if self.rng.one_in(4) { Kind::Full(20) } else { Kind::Copy(COPIED + from) };
        let token = (local.id as u64) << 32 | self.token;
        let change = Change {
            token,
            kind,
            omap: false,
            guard: Guard::None,
            result: 0,
            version: 0,
            context: 0,
        };
        let change = if stripe == 0 { change } else { self.coded(change, stripe) };
        let object = COPIED + to;
        let (change, begun) = (Some(change), local.true_us);
        self.submit(
            local,
            Pending { pool, object, change, part: None, omap: false, begun, held: None },
            out,
        );
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
        Change {
            token: (id as u64) << 32 | self.token,
            kind,
            omap,
            guard,
            result: 0,
            version: 0,
            context: 0,
        }
    }

    /// What must be so for a change to happen: mostly what it knows of the object, which may have
    /// changed.
    fn guard(&mut self, at: (i64, u32)) -> Guard {
        let (last, version) = self.known.get(&at).copied().unwrap_or((1, 1));
        let off = u64::from(self.rng.one_in(4));
        match self.rng.below(3) {
            0 => Guard::Same(last + off),
            1 => Guard::Version(version + off),
            _ => Guard::Fresh,
        }
    }

    /// A change for an erasure-coded pool: its stripes are long, and it may take only whole ones,
    /// `stripe` bytes, at an object's end.
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
            kind
            @ (Kind::Delete | Kind::Copy(_) | Kind::Back(_) | Kind::Unset(_) | Kind::Clear) => kind,
        };
        let whole = |n: u32| n.next_multiple_of((stripe / content::CELL) as u32);
        let kind = match kind {
            kind if stripe == 0 => kind,
            Kind::Append(n) => Kind::Append(whole(n)),
            Kind::Full(n) | Kind::Write(_, n) | Kind::Truncate(n) | Kind::Zero(_, n) => {
                Kind::Full(whole(n))
            }
            kind
            @ (Kind::Delete | Kind::Copy(_) | Kind::Back(_) | Kind::Unset(_) | Kind::Clear) => kind,
        };
        Change { kind, ..change }
    }

    /// An OSD says what to hold back, or to send again.
    fn on_backoff(
        &mut self,
        local: Local,
        osd: OsdId,
        m: &Message,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let m = MOsdBackoff::from_message(m).map_err(|e| format!("a backoff: {e}"))?;
        if !self.backs_off {
            return Err(format!("knows nothing of {m:?}"));
        }
        let Some(way) = self.ways.get_mut(&osd) else { return Ok(()) };
        if m.op == backoff_op::BLOCK {
            if way.held.iter().any(|b| (b.spg, &b.begin) == (m.spg, &m.begin)) {
                return Err(format!("told twice to hold {m:?}"));
            }
            way.held.push(m.clone());
            self.backoffs += 1;
        } else {
            let before = way.held.len();
            way.held.retain(|b| b.id != m.id);
            if way.held.len() == before {
                return Err(format!("told to go on with what it does not hold: {m:?}"));
            }
        }
        self.with_objecter(local, out, |o, todo| o.backoff(osd, m, todo));
        Ok(())
    }

    fn on_reply(&mut self, local: Local, tid: u64, reply: &Reply) -> Result<(), String> {
        // Where it was when it was answered, if it was sent once only.
        let place = self.answered.take();
        if self.odd_pending.remove(&tid).is_some() {
            self.odd_answered[usize::from(reply.result >= 0)] += 1;
            return Ok(());
        }
        let Some(p) = self.pending.get(&tid) else { return Ok(()) };
        if p.object >= COPIED {
            // There may be no source yet, and patience with it ends.
            if ![0, -errno::ENOENT, -errno::ETIMEDOUT].contains(&reply.result) {
                return Err(format!(
                    "{:?} of object {} is answered {}",
                    p.change, p.object, reply.result
                ));
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
                if reply.version == EVersion::default() && result == -errno::ENOENT {
                    // So is answered whoever knows the pool no more; if it is there in the end,
                    // that was wrong.
                    self.without.insert(p.pool);
                    self.pending.remove(&tid);
                    return Ok(());
                }
                if reply.version == EVersion::default() {
                    return Err(format!(
                        "the answer {result} to {c:?} of object {} lacks its version",
                        p.object
                    ));
                }
                if !matches!(c.guard, Guard::None) {
                    self.guarded[usize::from(result != 0)] += 1;
                }
                self.of_snaps[3] += u64::from(matches!(c.kind, Kind::Back(_)));
                if result == 0 && !matches!(c.kind, Kind::Delete | Kind::Copy(_) | Kind::Back(_)) {
                    self.known.insert(at, (c.token, reply.user_version));
                }
                What::Change(
                    Change { result, version: reply.user_version, ..c.clone() },
                    reply.version,
                )
            }
            (None, 0) => {
                let view = content::seen(&reply.ops, p.object, p.part, reply.user_version)
                    .map_err(|e| {
                        format!("a read of object {} of pool {} gives {e}", p.object, p.pool)
                    })?;
                if p.held.is_none() {
                    self.known.insert(at, view.known());
                }
                What::Read(Look { snap: snap_of(p), seen: Some(view) })
            }
            (None, -2) if reply.ops.is_empty() => {
                // No pool.
                self.pending.remove(&tid);
                return Ok(());
            }
            (None, -2) => What::Read(Look { snap: snap_of(p), seen: None }),
            (None, result) => {
                return Err(format!("a read of object {} is answered {result}", p.object));
            }
        };
        // The answer to a resend may be from before its PG was split.
        if let (What::Change(_, version), Some((pg, pg_num))) = (&what, place) {
            self.acked.push((pg, pg_num, *version));
        }
        self.of_snaps[2] += u64::from(p.change.is_none() && p.held.is_some());
        let op = Op { begun: p.begun, ended: local.true_us, what };
        self.longest = self.longest.max(op.ended - op.begun);
        self.history.entry((p.pool, p.object)).or_default().push(op);
        self.pending.remove(&tid);
        Ok(())
    }

    fn tick(&mut self, local: Local, out: &mut Vec<Output>) {
        self.with_monitors(local, out, |m, asks| m.tick(local.mono, asks));
        self.with_objecter(local, out, |o, todo| o.tick(local.mono, todo));
        if self.breaks > 0 {
            self.breaks -= 1;
            self.break_ways(local, out);
        }
        self.watch_tick(local, out);
        let more = self.odd && !self.quiet && self.odd_pending.len() < ODD_MAX;
        if more && self.monitors.is_open() && self.rng.one_in(4) {
            self.submit_odd(local, out);
        }
        while self.snap_calls.len() < SNAP_CALLS
            && self.monitors.is_open()
            && let Some((pool, snap)) = self.forget.pop()
        {
            self.ask_snap(local, pool, Some(snap), out);
        }
        // What waits for room must not keep it from making some.
        let room = (self.pending.len() < self.pace.under_way || !self.purge.is_empty())
            && self.monitors.is_open();
        if room
            && (!self.audit.is_empty()
                || !self.purge.is_empty()
                || !self.quiet && self.rng.one_in(self.pace.idle))
        {
            self.begin(local, out);
            // No draw where it is not asked for: other seeds stay what they are.
            if self.pace.burst > 0 && !self.quiet && self.rng.one_in(BURSTS) {
                let most = (self.pending.len() + self.pace.burst).min(self.pace.under_way);
                for _ in 0..self.pace.burst {
                    if self.pending.len() < most {
                        self.begin(local, out);
                    }
                }
            }
        }
        self.most = self.most.max(self.pending.len());
    }

    /// An operation that nobody would ask for, on an object that nobody looks at.
    fn submit_odd(&mut self, local: Local, out: &mut Vec<Output>) {
        let Some(map) = self.objecter.map() else { return };
        let pools: Vec<i64> = map.pools.keys().copied().collect();
        let Some(pool) = self.rng.pick(&pools).copied() else { return };
        let object = format!("odd{}", self.rng.below(3)).into();
        let ops = fuzzer::odd_ops(&mut self.rng);
        let mut request = Request::new(locator(pool), object, ops, UTime::ZERO);
        request.flags = if self.rng.one_in(8) { 1 << self.rng.below(32) } else { 0 };
        let mut todo = Vec::new();
        let tid = self.objecter.submit(request, &mut todo);
        self.odd_pending.insert(tid, pool);
        self.perform(local, todo, out);
    }

    /// Some ways to OSDs end. What waits is sent again over new ones, but for some reads that
    /// nobody wants any more.
    fn break_ways(&mut self, local: Local, out: &mut Vec<Output>) {
        for osd in self.ways.keys().copied().collect::<Vec<_>>() {
            if self.rng.one_in(2) {
                out.extend(self.ways.remove(&osd).map(|w| Output::Close(w.conn)));
                self.objecter.closed(local.mono, osd);
            }
        }
        let reads: Vec<u64> =
            self.pending.iter().filter(|(_, p)| p.change.is_none()).map(|(tid, _)| *tid).collect();
        for tid in reads {
            if self.rng.one_in(2) {
                self.pending.remove(&tid);
                self.objecter.cancel(tid);
                self.given_up += 1;
            }
        }
    }
}

impl Client {
    fn osd_of(&self, conn: u64) -> Option<OsdId> {
        self.ways.iter().find(|(_, w)| w.conn == conn).map(|(osd, _)| *osd)
    }

    fn message(&mut self, local: Local, conn: u64, m: &Message, out: &mut Vec<Output>) {
        let osd = self.osd_of(conn);
        if self.mon == Some(conn) {
            if self
                .with_monitors(local, out, |monitors, asks| monitors.message(local.mono, m, asks))
            {
                return;
            }
        } else if osd.is_none() {
            return;
        }
        let result = match (m.kind, osd) {
            (MOsdMap::KIND, _) => self.on_maps(local, m, out),
            (MOsdOpReply::KIND, Some(osd)) => self.on_answer(local, osd, m, out),
            (MOsdBackoff::KIND, Some(osd)) => self.on_backoff(local, osd, m, out),
            (MWatchNotify::KIND, Some(_)) => self.on_watch(local, m, out),
            _ => Ok(()),
        };
        if let Err(why) = result {
            let sign = if m.kind == MOsdMap::KIND { Sign::Monitors } else { Sign::Reply };
            self.wrong.get_or_insert(sign.of(format!("client {}: {why}", self.id)));
        }
    }

    /// Lets its watches do something, and does what comes of it.
    fn with_watching<T>(
        &mut self,
        local: Local,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut Watching, &mut Objecter, &mut Vec<ObjecterOut>) -> Result<T, String>,
    ) -> Option<T> {
        let mut todo = Vec::new();
        let result = f(self.watching.as_mut()?, &mut self.objecter, &mut todo);
        self.perform(local, todo, out);
        match result {
            Ok(done) => Some(done),
            Err(why) => {
                self.wrong.get_or_insert(Sign::Watch.of(format!("client {}: {why}", self.id)));
                None
            }
        }
    }

    fn watch_tick(&mut self, local: Local, out: &mut Vec<Output>) {
        let name = |map: &OsdMap, pool: &i64| map.pool_name(*pool).starts_with("pool");
        let pools = self
            .objecter
            .map()
            .map(|m| m.pools.keys().copied().filter(|p| name(m, p)).collect::<Vec<_>>());
        let pools = pools.filter(|_| !self.quiet && self.monitors.is_open()).unwrap_or_default();
        let (at, me) = ((local.mono, local.true_us), self.global_id);
        self.with_watching(local, out, |w, o, todo| w.tick(at, me, &pools, o, todo));
    }

    fn watch_look(&mut self, local: Local, out: &mut Vec<Output>) {
        self.with_watching(local, out, |w, o, todo| {
            w.look(o, todo);
            Ok(())
        });
    }

    /// Was this operation one about watches?
    fn watch_reply(
        &mut self,
        local: Local,
        tid: u64,
        reply: &Reply,
        out: &mut Vec<Output>,
    ) -> bool {
        let (at, me) = ((local.mono, local.true_us), self.global_id);
        let its = |w: &mut Watching, o: &mut Objecter, todo: &mut Vec<ObjecterOut>| match w
            .reply(at, me, tid, reply, o, todo)
        {
            Some(Ok(())) => Ok(true),
            Some(Err(why)) => Err(why),
            None => Ok(false),
        };
        self.watching.is_some() && self.with_watching(local, out, its).unwrap_or(true)
    }

    fn on_watch(&mut self, local: Local, m: &Message, out: &mut Vec<Output>) -> Result<(), String> {
        let m = MWatchNotify::from_message(m).map_err(|e| format!("a word about watches: {e}"))?;
        let (at, me) = ((local.mono, local.true_us), self.global_id);
        self.with_watching(local, out, |w, o, todo| w.message(at, me, m, o, todo));
        Ok(())
    }

    fn on_answer(
        &mut self,
        local: Local,
        osd: OsdId,
        m: &Message,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let reply = MOsdOpReply::from_message(m).map_err(|e| format!("a reply: {e}"))?;
        let once = self.objecter.place(m.tid).filter(|(_, attempts)| *attempts == 1);
        self.answered = once.map(|(t, _)| (t.pg, t.shape.0));
        self.with_objecter(local, out, |o, todo| o.reply(osd, m.tid, reply, todo));
        Ok(())
    }
}

impl Actor for Client {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        self.id = local.id;
        match input {
            Input::Tick => self.tick(local, out),
            Input::Opened { conn, peer, .. } => {
                if self.mon == Some(conn) {
                    self.global_id = peer.global_id;
                    self.with_monitors(local, out, |m, asks| m.opened(local.mono, asks));
                } else if let Some(osd) = self.osd_of(conn) {
                    self.with_objecter(local, out, |o, todo| o.opened(osd, todo));
                }
            }
            Input::Closed { conn, .. } => {
                if self.mon == Some(conn) {
                    self.mon = None;
                    self.with_monitors(local, out, |m, asks| m.closed(local.mono, "closed", asks));
                } else if let Some(osd) = self.osd_of(conn) {
                    self.ways.remove(&osd);
                    self.objecter.closed(local.mono, osd);
                }
            }
            Input::Message { conn, message } => self.message(local, conn, &message, out),
            _ => {}
        }
        self.watch_look(local, out);
    }

    fn crash(&mut self, _: &mut Rng) {}

    fn admits(&mut self, _: &mut Peer, _: &EntityAddr) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
