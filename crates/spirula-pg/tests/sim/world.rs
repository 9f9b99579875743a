//! Monitor, OSDs, network and clients in one thread, driven by one seed.

use crate::client::{Client, Target};
use crate::store::{BLOCK, Store};
use crate::transcripts::Script;
use spirula_encoding::{UTime, from_slice};
use spirula_maps::{PgState, SnapIntervals};
use spirula_messages::Body;
use spirula_messages::ceph::osd::{MOsdBackoff, MOsdOp, MOsdOpReply};
use spirula_messages::cluster::control::MergeWord;
use spirula_messages::cluster::pg::{PgAcks, PgCtls, PgTxn};
use spirula_messages::cluster::write::{PgWrite, Share};
use spirula_pg::erasure::Shape;
use spirula_pg::exec::{Fullness, PoolRules, Timeouts};
use spirula_pg::shard::store_pg;
use spirula_pg::{
    Backoffs, Bug, ClientOp, CreateAnswer, Leases, LogEntry, MapView, Merged, Now, OsdView,
    Patience, PeerMsg, Permits, Pg, PgConfig, PgEffect, PgEvent, PoolSnaps, PoolView, ReadKey,
    Reservation, Stored, head_key, info_key, missing_prefix, parse_info_key, target_of,
};
use spirula_types::{
    EVersion, EntityAddr, EntityName, Epoch, HObject, OSD_NONE, OsdId, Peer, PgId, ReqId, SpgId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub const POOL: i64 = 1;

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// How often things happen, drawn from the seed: weights of steps, and the clients' habits.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    deliver: usize,
    commit: usize,
    /// Turns, reservations, and data that was read.
    pub local: usize,
    map: usize,
    client_map: usize,
    tick: usize,
    ping: usize,
    /// How much falls out of memory, so that it must be read.
    pub cold: usize,
    op: usize,
    /// Messages per delivery, commits per commit, milliseconds per step, at most.
    messages: usize,
    commits: usize,
    ms: usize,
    /// Percent of requests that write, and how many a client has under way.
    pub appends: u64,
    pub deletes: u64,
    /// Percent of writes whose guard cannot hold: they change nothing, and have a place in the log.
    pub refused: u64,
    /// Percent of reads that are at snapshots, and of writes that roll back to one; 0: nobody takes
    /// any.
    pub snaps: u64,
    /// Snapshots are removed again.
    pub removes: bool,
    pub under_way: usize,
    pub objects: usize,
    /// Bytes of an append: a token, then zeros.
    pub token: usize,
}

impl Pace {
    fn new(rng: &mut Rng) -> Self {
        let mut of = |from: &[usize]| from[rng.below(from.len())];
        let mut pace = Self {
            deliver: of(&[10, 40, 80]),
            commit: of(&[5, 20, 60]),
            local: 10,
            map: of(&[3, 10, 30]),
            client_map: of(&[1, 3, 10]),
            tick: 5,
            ping: of(&[1, 3]),
            cold: of(&[0, 2]),
            op: of(&[3, 10, 30]),
            messages: of(&[1, 4]),
            commits: of(&[1, 4, 10]),
            ms: of(&[1, 2, 8]),
            appends: of(&[20, 60, 90]) as u64,
            deletes: of(&[0, 10, 40]) as u64,
            refused: 0,
            snaps: 0,
            removes: false,
            under_way: of(&[1, 4, 12]),
            objects: of(&[1, 6, 20]),
            token: 16,
        };
        pace.token = match pace.under_way {
            1 => 16,
            4 => 6000,
            _ => 1616,
        };
        pace
    }

    /// Transactions become durable late.
    pub fn slow_disks(self) -> Self {
        Self { commit: 6, commits: 1, ..self }
    }

    /// A healthy network and disk.
    pub fn calm(self) -> Self {
        Self {
            deliver: 60,
            commit: 30,
            map: 20,
            client_map: 10,
            ping: 1,
            messages: 8,
            commits: 10,
            ms: 1,
            ..self
        }
    }
}

/// One epoch of the map. An OSD that is up has (up_from, number of its boot).
#[derive(Clone, Default)]
pub struct Map {
    pub epoch: Epoch,
    pub up: BTreeMap<OsdId, (Epoch, u64)>,
    /// Of every OSD that was ever up.
    pub osds: BTreeMap<OsdId, OsdView>,
    pub out: BTreeSet<OsdId>,
    pub temp: BTreeMap<PgId, Vec<OsdId>>,
    pub size: usize,
    pub min_size: usize,
    pub pg_num: u32,
    /// After the merge that is pending, wanted, and for placement.
    pub pending: u32,
    pub target: u32,
    pub pgp_num: u32,
    /// The merge that this map made.
    pub merged: Option<Merged>,
    pub deleted: bool,
    pub blocklist: BTreeSet<EntityAddr>,
    /// Erasure-coded: data and parity shards.
    pub ec: Option<(usize, usize)>,
    /// Snapshots, newest first, and how many there ever were.
    pub snaps: Vec<u64>,
    pub snap_seq: u64,
    /// Those of them that will be removed: nobody rolls back to them any more.
    pub retiring: BTreeSet<u64>,
    /// Those that are removed, until no PG has anything of them.
    pub removed: Arc<SnapIntervals>,
    count: usize,
    since: BTreeMap<PgId, Epoch>,
}

impl Map {
    pub fn up_set(&self, pg: PgId) -> Vec<OsdId> {
        if pg.seed >= self.pg_num || self.deleted {
            return Vec::new();
        }
        let mut all: Vec<OsdId> =
            (0..self.count as OsdId).filter(|o| !self.out.contains(o)).collect();
        let place = u64::from(target_of(pg, self.pgp_num).seed);
        all.sort_by_key(|o| Rng::new(place * 1000 + *o as u64).next());
        if self.ec.is_some() {
            // As CRUSH's indep rules: each place chooses by itself among those that are left.
            let mut places = Vec::new();
            for i in 0..self.size {
                let rank =
                    |o: &OsdId| Rng::new(place * 1000 + *o as u64 * 77 + i as u64 * 31).next();
                let best = all.iter().copied().filter(|o| !places.contains(o)).min_by_key(rank);
                places.push(best.unwrap_or(OSD_NONE));
            }
            return places
                .into_iter()
                .map(|o| if self.up.contains_key(&o) { o } else { OSD_NONE })
                .collect();
        }
        all.truncate(self.size);
        all.retain(|o| self.up.contains_key(o));
        all
    }

    pub fn acting(&self, pg: PgId) -> Vec<OsdId> {
        let temp: Vec<OsdId> = match self.temp.get(&pg) {
            Some(t) if !self.deleted && pg.seed < self.pg_num => {
                let up = |o: OsdId| if self.up.contains_key(&o) { o } else { OSD_NONE };
                t.iter().copied().map(up).filter(|o| self.ec.is_some() || *o != OSD_NONE).collect()
            }
            _ => Vec::new(),
        };
        if temp.is_empty() { self.up_set(pg) } else { temp }
    }

    pub fn members(&self, pg: PgId) -> Vec<Peer> {
        Peer::members(&self.acting(pg), self.ec.is_some())
    }

    pub fn up_members(&self, pg: PgId) -> Vec<Peer> {
        Peer::members(&self.up_set(pg), self.ec.is_some())
    }

    pub fn shape(&self) -> Option<Shape> {
        self.ec.map(|(k, m)| Shape { k, m, unit: 8 })
    }

    /// The PGs, with shards, that an OSD is to serve.
    fn acts(&self, id: OsdId) -> Vec<SpgId> {
        let mut all = Vec::new();
        for pg in (0..self.pg_num).map(|s| PgId::new(POOL, s)) {
            for p in self.members(pg).into_iter().chain(self.up_members(pg)).filter(|p| p.osd == id)
            {
                let spg = SpgId::new(pg, p.shard);
                if !all.contains(&spg) {
                    all.push(spg);
                }
            }
        }
        all
    }

    fn same(&self, old: &Map, pg: PgId) -> bool {
        self.acting(pg) == old.acting(pg)
            && self.up_set(pg) == old.up_set(pg)
            && self.deleted == old.deleted
            && self.pool().is_same_for(&old.pool(), pg.seed)
    }

    pub fn pool(&self) -> PoolView {
        PoolView {
            size: self.size,
            min_size: self.min_size,
            pg_num: self.pg_num,
            pg_num_pending: self.pending,
            pg_num_target: self.target,
            merged: self.merged,
            force_resend: 0,
            shape: self.shape(),
            rules: PoolRules {
                erasure: self.ec.is_some(),
                append_alignment: None,
                fullness: Fullness::No,
            },
            snaps: PoolSnaps { context: None, removed: self.removed.clone() },
        }
    }

    /// More PGs, or fewer wanted.
    pub fn grow(&mut self, more: u32) {
        self.pg_num += more;
        (self.pending, self.target, self.pgp_num) = (self.pg_num, self.pg_num, self.pg_num);
    }

    pub fn shrink_to(&mut self, target: u32) {
        (self.pending, self.target, self.pgp_num) = (self.pg_num, target, self.pgp_num.min(target));
    }

    /// `boot`: the incarnation of the OSD that looks. It got none of those before it, and nobody
    /// has them any more.
    pub fn view(
        &self,
        pg: PgId,
        me: OsdId,
        boot: u64,
        (gap, trimmed): (bool, bool),
    ) -> Arc<MapView> {
        let (up, acting) = (self.up_members(pg), self.members(pg));
        let first = |v: &[Peer]| v.first().copied().unwrap_or_default();
        let exists = !self.deleted && pg.seed < self.pg_num;
        Arc::new(MapView {
            epoch: self.epoch,
            // Who skipped maps cannot tell.
            since: if gap { self.epoch } else { self.since.get(&pg).copied().unwrap_or(0) },
            gap,
            trimmed,
            pool: exists.then(|| Arc::new(self.pool())),
            up_primary: first(&up),
            primary: first(&acting),
            up,
            acting,
            live: self.up.get(&me).is_some_and(|(_, b)| *b == boot),
            osds: Arc::new(self.osds.clone()),
            permits: Permits::default(),
            blocklist: Arc::new(self.blocklist.clone()),
        })
    }
}

/// What a message between two OSDs is.
fn kind_of(m: &PeerMsg) -> String {
    let is = match m {
        PeerMsg::Write(_) => "Write".to_owned(),
        PeerMsg::Txn(t) => format!("{:?}", t.kind),
        PeerMsg::Ack(_) => "Ack".to_owned(),
        PeerMsg::Ctl(c) => format!("{:?}", c.body),
    };
    is.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

/// Kinds of messages between two OSDs about a PG that may be lost in any run; an empty one is any.
/// With [`SELDOM`] these are all.
pub const KINDS: [&str; 32] = [
    "",
    "Write",
    "Ack",
    "Gap",
    "Push",
    "PushAck",
    "PushRefused",
    "Pull",
    "Pulled",
    "PullFailed",
    "ReadShard",
    "Shard",
    "Query",
    "Info",
    "Notify",
    "GetLog",
    "Log",
    "Activate",
    "Activated",
    "History",
    "HistoryAck",
    "Scan",
    "Scanned",
    "Progress",
    "ProgressAck",
    "Reserve",
    "Reserved",
    "TooFull",
    "Release",
    "Released",
    "Rotten",
    "Delete",
];

/// The other kinds. Those of scrubs nobody repeats: if nobody hears that a session was lost, a deep
/// scrub is given up [`SCRUB_LOST_MS`] later, which is more than a run by chance has.
pub const SELDOM: [&str; 4] = ["ScanFailed", "RottenAck", "ScrubScan", "Scrubbed"];
/// Milliseconds.
pub const SCRUB_LOST_MS: u64 = 600_000;

pub enum Wire {
    Peer(PeerMsg),
    /// The session was lost, and what waited in it.
    Renewed,
    Ping {
        sent: u64,
    },
    Pong {
        sent: u64,
        length: u64,
        epoch: Epoch,
    },
    Client {
        op: u64,
        client: usize,
        tid: u64,
        msg: Box<MOsdOp>,
    },
    Backoff(MOsdBackoff),
    ToMon(MonAsk),
    FromMon(SpgId, PgEvent),
}

#[derive(Clone)]
pub enum MonAsk {
    Ask { pg: PgId, whose: SpgId, creation: Epoch },
    Created { pg: PgId, whose: SpgId, epoch: Epoch },
    Alive { want: Epoch },
    Acting { pg: PgId, want: Vec<OsdId> },
    Merge { pg: PgId, word: MergeWord },
}

/// Ends of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    Osd(OsdId),
    Client(usize),
    Mon,
}

pub struct Node {
    pub id: OsdId,
    pub alive: bool,
    /// Number of the boot it asked the monitor for; messages for other boots are lost.
    pub boot: u64,
    /// It has seen itself up.
    started: bool,
    pub paused_until: u64,
    /// It gets no map before.
    pub blind_until: u64,
    pub store: Store,
    pub pgs: BTreeMap<SpgId, Pg>,
    leases: Leases,
    pub epoch: Epoch,
    held: Vec<(OsdId, PeerMsg)>,
    local: VecDeque<(SpgId, PgEvent)>,
    scans: VecDeque<(SpgId, u64, HObject, HObject, bool)>,
    /// What clients were told to hold back.
    backoffs: BTreeMap<usize, Backoffs>,
    /// Reservations held and wanted.
    granted: Vec<(SpgId, Reservation)>,
    queue: VecDeque<(SpgId, Reservation)>,
}

/// PGs that recover at a time on an OSD, in each role.
const RESERVATIONS: usize = 1;

pub struct World {
    pub rng: Rng,
    pub now: u64,
    pub maps: Vec<Map>,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    /// (from, to) → (boot of the receiver the sender meant, message).
    net: BTreeMap<(End, End), VecDeque<(u64, Wire)>>,
    /// Links that carry nothing before.
    pub slow: BTreeMap<(End, End), u64>,
    creating: BTreeSet<PgId>,
    winner: BTreeMap<PgId, Epoch>,
    pub words: BTreeMap<PgId, MergeWord>,
    pending_since: u64,
    pub cfg: Arc<PgConfig>,
    lease_ms: u64,
    /// Maps before this one are gone.
    pub trimmed: Epoch,
    pub pace: Pace,
    boots: u64,
    ops: u64,
    op_client: BTreeMap<u64, (usize, u64, i32)>,
    /// Answers to requests that no client sent.
    pub told: BTreeMap<u64, MOsdOpReply>,
    /// Those of them that whoever made them was told to hold back, and from which object on.
    pub held_back: BTreeMap<u64, HObject>,
    /// Those of them that wait for the source of a copy.
    pub wanted: BTreeSet<u64>,
    /// Where it came to.
    op_at: BTreeMap<u64, (OsdId, PgId)>,
    /// What a write was answered, whatever attempt.
    answers: BTreeMap<(usize, u64), (i32, EVersion, u64)>,
    /// PGs are scrubbed now and then.
    pub scrubs: bool,
    /// This one makes no scrub maps.
    pub no_scans: Option<OsdId>,
    /// This one does not get done with deep maps of more objects.
    pub slow_scans: Option<(OsdId, usize)>,
    /// Messages to the monitor are lost now and then.
    pub mon_loses: bool,
    /// Of this kind of message between OSDs (empty: any) so many of a hundred are lost.
    pub peer_loses: Option<(&'static str, u64)>,
    /// Clients know backoffs.
    pub backs_off: bool,
    /// Disks without room.
    pub full: BTreeSet<OsdId>,
    /// Removed snapshots of which PGs say that nothing is left, with the map that they had; and
    /// that of the last merge.
    purged: BTreeMap<PgId, (Epoch, SnapIntervals)>,
    merged_at: Epoch,
    steps: u64,
    pub trace: bool,
    /// What happens is written down.
    pub script: Option<Script>,
    /// Notifications that watchers were told.
    pub notified: Vec<u64>,
    pub stats: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(seed: u64, osds: usize, size: usize, pg_num: u32, clients: usize) -> Self {
        let mut rng = Rng::new(seed);
        let mut cfg = PgConfig { retry_ms: 300, contexts: 2, ..PgConfig::default() };
        cfg.log_keep = [1, 3, 40, 1000][rng.below(4)];
        cfg.log_max = cfg.log_keep + [0, 4, 1000][rng.below(3)];
        cfg.log_slack = rng.below(4);
        cfg.push_bytes = [16, 100, 1 << 20][rng.below(3)];
        cfg.push_window = 1 + rng.below(4);
        cfg.primary_lag = 2 * cfg.push_window as u64;
        cfg.scan_objects = 1 + rng.below(4);
        cfg.share_block = BLOCK;
        cfg.scrub_chunk = 1 + seed as usize % 6;
        cfg.remove_batch = 1 + rng.below(3);
        let pace = Pace::new(&mut rng);
        let since = (0..pg_num).map(|s| (PgId::new(POOL, s), 1)).collect();
        let min_size = size - size / 2;
        let first = Map {
            epoch: 1,
            size,
            min_size,
            pg_num,
            pending: pg_num,
            target: pg_num,
            pgp_num: pg_num,
            count: osds,
            since,
            ..Map::default()
        };
        let mut w = Self {
            rng,
            now: 10_000,
            maps: vec![Map::default(), first],
            nodes: Vec::new(),
            clients: (0..clients).map(Client::new).collect(),
            net: BTreeMap::new(),
            slow: BTreeMap::new(),
            creating: (0..pg_num).map(|s| PgId::new(POOL, s)).collect(),
            winner: BTreeMap::new(),
            words: BTreeMap::new(),
            pending_since: 0,
            cfg: Arc::new(cfg),
            trimmed: 1,
            pace,
            lease_ms: if seed.is_multiple_of(2) { 1400 } else { 3000 },
            boots: 0,
            ops: 0,
            op_client: BTreeMap::new(),
            told: BTreeMap::new(),
            held_back: BTreeMap::new(),
            wanted: BTreeSet::new(),
            op_at: BTreeMap::new(),
            answers: BTreeMap::new(),
            scrubs: seed.is_multiple_of(3),
            no_scans: None,
            slow_scans: None,
            mon_loses: true,
            peer_loses: None,
            // As all of Ceph's do that are not very old.
            backs_off: seed % 4 != 1,
            full: BTreeSet::new(),
            purged: BTreeMap::new(),
            merged_at: 0,
            steps: 0,
            trace: std::env::var("SIM_TRACE").is_ok(),
            script: None,
            notified: Vec::new(),
            stats: BTreeMap::new(),
        };
        for id in 0..osds as OsdId {
            w.nodes.push(Node {
                id,
                alive: false,
                boot: 0,
                started: false,
                paused_until: 0,
                blind_until: 0,
                store: Store::default(),
                pgs: BTreeMap::new(),
                leases: Leases::new(1, 0),
                epoch: 0,
                held: Vec::new(),
                local: VecDeque::new(),
                scans: VecDeque::new(),
                backoffs: BTreeMap::new(),
                granted: Vec::new(),
                queue: VecDeque::new(),
            });
        }
        w
    }

    pub fn map(&self) -> &Map {
        self.maps.last().unwrap()
    }

    pub fn note(&mut self, what: &'static str) {
        *self.stats.entry(what).or_default() += 1;
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>7} {}", self.now, what());
        }
    }

    // ---- monitor ----

    pub fn change_map(&mut self, f: impl FnOnce(&mut Map)) {
        let old = self.map().clone();
        let mut m = old.clone();
        m.epoch += 1;
        m.merged = None;
        f(&mut m);
        m.temp.retain(|pg, _| pg.seed < m.pg_num);
        let epoch = m.epoch;
        m.since = (0..m.pg_num)
            .map(|s| PgId::new(POOL, s))
            .map(|pg| {
                (
                    pg,
                    if m.same(&old, pg) {
                        old.since.get(&pg).copied().unwrap_or(epoch)
                    } else {
                        epoch
                    },
                )
            })
            .collect();
        self.say(|| {
            format!(
                "MAP {} up {:?} out {:?} size {} pgs {} pending {} temp {:?} {:?}",
                m.epoch, m.up, m.out, m.size, m.pg_num, m.pending, m.temp, m.merged
            )
        });
        self.maps.push(m);
    }

    pub fn plant(&mut self, bug: Bug) {
        let mut cfg = PgConfig::clone(&self.cfg);
        cfg.bug = Some(bug);
        // A scrub would repair what the bug broke.
        self.scrubs = false;
        self.cfg = Arc::new(cfg);
        for n in &mut self.nodes {
            n.store.credulous = bug == Bug::CorruptSourceCopied;
        }
    }

    /// Every hundredth step, for looks that cost.
    pub fn step_is_round(&self) -> bool {
        self.steps.is_multiple_of(100)
    }

    /// The process asks to be marked up; the monitor does it at once.
    pub fn boot(&mut self, id: OsdId) {
        self.boots += 1;
        let boot = self.boots;
        let node = &mut self.nodes[id as usize];
        node.boot = boot;
        node.started = false;
        // Clients close their connections to one that the map shows down.
        node.backoffs.clear();
        // Another incarnation is seen down for an epoch, as the monitor does it.
        self.mark_down(id);
        self.change_map(|m| {
            let epoch = m.epoch;
            m.up.insert(id, (epoch, boot));
            let o = m.osds.entry(id).or_default();
            (o.up, o.up_from, o.dead) = (true, epoch, false);
        });
    }

    pub fn mark_down(&mut self, id: OsdId) {
        if self.map().up.contains_key(&id) {
            // Sometimes the monitor knows that the process is gone.
            let dead = !self.nodes[id as usize].alive && self.rng.chance(50);
            self.change_map(|m| {
                m.up.remove(&id);
                let o = m.osds.entry(id).or_default();
                (o.up, o.dead) = (false, dead);
            });
        }
    }

    /// An OSD that stops says so to the monitor, whose answer does not reach it: it goes on as it
    /// is. That it reads nothing any more is the shell's doing.
    pub fn stops_unanswered(&mut self, id: OsdId) {
        let node = &mut self.nodes[id as usize];
        node.blind_until = u64::MAX;
        if !self.cfg.skips_surrender() {
            node.leases.surrender();
        }
        self.change_map(|m| {
            m.up.remove(&id);
            let o = m.osds.entry(id).or_default();
            (o.up, o.dead) = (false, true);
        });
    }

    /// A PG says to the monitor what it has purged.
    fn report(&mut self, id: OsdId, pg: SpgId) {
        let now = self.time().wall;
        let p = self.nodes[id as usize].pgs.get_mut(&pg);
        if let Some(p) =
            p.filter(|p| self.pace.removes && p.is_primary() && p.state().0.has(PgState::ACTIVE))
        {
            let stat = p.stat(now);
            // What a PG said before a merge is nothing that the merged one says.
            if stat.reported_epoch >= self.merged_at {
                self.purged.insert(pg.pg, (stat.reported_epoch, stat.purged_snaps));
            }
        }
    }

    /// Takes a snapshot, or removes one, or forgets one of which nothing is left.
    pub fn step_snaps(&mut self) {
        if self.rng.chance(30) {
            self.change_map(|m| {
                m.snap_seq += 1;
                m.snaps.insert(0, m.snap_seq);
            });
        }
        if !self.pace.removes {
            return;
        }
        let n = self.map().snaps.len();
        if self.rng.chance(30) && n > 1 {
            let i = self.rng.below(n);
            let snap = self.map().snaps[i];
            self.change_map(|m| m.retiring.extend([snap]));
        }
        self.step_removals();
    }

    pub fn step_removals(&mut self) {
        let (seq, retiring) = (self.map().snap_seq, self.map().retiring.clone());
        for snap in retiring {
            let knows = |c: &Client| {
                let m = &self.maps[c.epoch as usize];
                m.snap_seq == seq && m.retiring.contains(&snap) && !c.lags(seq, snap)
            };
            if self.clients.iter().all(knows) {
                self.note("snapshots removed");
                self.change_map(|m| {
                    m.retiring.remove(&snap);
                    m.snaps.retain(|s| *s != snap);
                    Arc::make_mut(&mut m.removed).insert(snap, 1);
                });
            }
        }
        let ids =
            |s: &SnapIntervals| s.intervals().flat_map(|(s, n)| s..s + n).collect::<Vec<u64>>();
        for snap in ids(&self.map().removed) {
            let of = |s: u32| self.purged.get(&PgId::new(POOL, s));
            let purged =
                |s: u32| of(s).is_some_and(|(e, p)| *e >= self.merged_at && p.contains(snap));
            let unnamed =
                |c: &Client| !self.maps[c.epoch as usize].snaps.contains(&snap) && !c.names(snap);
            if (0..self.map().pg_num).all(purged) && self.clients.iter().all(unnamed) {
                self.note("snapshots purged");
                self.change_map(|m| Arc::make_mut(&mut m.removed).remove(snap, 1));
            }
        }
    }

    pub fn can_split(&self) -> bool {
        self.creating.is_empty()
    }

    /// Begins a merge, or ends one, if the PGs' primaries said that it may be.
    fn step_merge(&mut self) {
        let m = self.map();
        let at = |n: u32| (PgId::new(POOL, n), target_of(PgId::new(POOL, n), n));
        // What both say, if both say it with this map.
        let both = |(s, t): (PgId, PgId), ready: bool| {
            let (a, b) = (self.words.get(&s)?, self.words.get(&t)?);
            let fresh = |w: &MergeWord| w.ready == ready && (!ready || w.epoch == m.epoch);
            let together =
                a.acting == b.acting && a.acting == m.acting(s) && a.acting == m.acting(t);
            (fresh(a) && fresh(b) && together).then_some((a.version, b.version))
        };
        if m.pending < m.pg_num {
            let pair = at(m.pending);
            if let Some((source_version, target_version)) = both(pair, true) {
                self.note("merges");
                self.winner.remove(&pair.0);
                self.words.clear();
                self.change_map(|m| {
                    m.pg_num = m.pending;
                    m.merged = Some(Merged { source: pair.0, source_version, target_version });
                });
                self.merged_at = self.map().epoch;
            } else if self.now > self.pending_since + 3000 {
                self.change_map(|m| m.pending = m.pg_num);
                self.note("merges given up");
            }
        } else if m.target < m.pg_num && !m.deleted && both(at(m.pg_num - 1), false).is_some() {
            self.pending_since = self.now;
            self.change_map(|m| m.pending = m.pg_num - 1);
        }
    }

    fn on_mon(&mut self, from: OsdId, boot: u64, ask: MonAsk) {
        let mut answer = |pg: SpgId, e: PgEvent| {
            self.net
                .entry((End::Mon, End::Osd(from)))
                .or_default()
                .push_back((boot, Wire::FromMon(pg, e)));
        };
        match ask {
            MonAsk::Ask { pg, whose, creation } => {
                let last = self.winner.get(&pg).copied().unwrap_or(0);
                if self.creating.contains(&pg) {
                    if creation > last {
                        self.winner.insert(pg, creation);
                    }
                    if creation == 0 || creation >= last {
                        answer(
                            whose,
                            PgEvent::CreateAnswer(CreateAnswer::Granted { since: 1, creation }),
                        );
                    }
                } else {
                    let winner = self.winner.get(&pg).copied();
                    answer(whose, PgEvent::CreateAnswer(CreateAnswer::Exists { winner }));
                }
            }
            MonAsk::Created { pg, whose, epoch } => {
                let last = self.winner.get(&pg).copied().unwrap_or(0);
                if epoch >= last && self.creating.remove(&pg) {
                    self.winner.insert(pg, epoch);
                }
                if let Some(winner) =
                    self.winner.get(&pg).copied().filter(|_| !self.creating.contains(&pg))
                {
                    answer(whose, PgEvent::CreatedAck { winner: Some(winner) });
                }
            }
            MonAsk::Alive { want } => {
                let want = want.min(self.map().epoch);
                let current = self.map().up.get(&from).is_some_and(|(_, b)| *b == boot);
                if current && self.map().osds.get(&from).is_none_or(|o| o.up_thru < want) {
                    self.change_map(|m| m.osds.entry(from).or_default().up_thru = want);
                }
            }
            MonAsk::Merge { pg, word } => {
                if self.map().up.get(&from).is_some_and(|(_, b)| *b == boot) {
                    match word.clean {
                        true => drop(self.words.insert(pg, word)),
                        false => drop(self.words.remove(&pg)),
                    }
                }
                self.step_merge();
            }
            MonAsk::Acting { pg, want } => {
                let current = self.map().up.get(&from).is_some_and(|(_, b)| *b == boot);
                let have = self.map().temp.get(&pg).cloned().unwrap_or_default();
                if current
                    && have != want
                    && want.iter().all(|o| *o == OSD_NONE || self.map().up.contains_key(o))
                {
                    self.note("acting sets");
                    self.change_map(|m| {
                        if want.is_empty() {
                            m.temp.remove(&pg);
                        } else {
                            m.temp.insert(pg, want);
                        }
                        // As the monitors do: the new primary need not ask.
                        if let Some(primary) = m.acting(pg).into_iter().find(|o| *o != OSD_NONE) {
                            m.osds.entry(primary).or_default().up_thru = m.epoch;
                        }
                    });
                }
            }
        }
    }

    // ---- processes ----

    pub fn crash(&mut self, id: OsdId) {
        self.say(|| format!("CRASH osd.{id}"));
        self.note("crashes");
        let keep = self.rng.chance(50);
        let node = &mut self.nodes[id as usize];
        node.alive = false;
        node.started = false;
        node.store.crash();
        node.pgs.clear();
        node.held.clear();
        node.local.clear();
        node.scans.clear();
        node.backoffs.clear();
        node.granted.clear();
        node.queue.clear();
        node.boot = 0;
        // What it sent may still arrive.
        self.net.retain(|(from, to), _| *to != End::Osd(id) && (keep || *from != End::Osd(id)));
    }

    pub fn start(&mut self, id: OsdId) {
        self.say(|| format!("START osd.{id}"));
        let (now, cfg) = (self.now, self.cfg.clone());
        let node = &mut self.nodes[id as usize];
        node.alive = true;
        node.leases = Leases::new(self.lease_ms, now);
        let meta = &node.store.applied.meta;
        let map =
            meta.get(&b"osd.map"[..]).map(|v| Epoch::from_le_bytes(v[..].try_into().unwrap()));
        for (key, record) in meta {
            let Some(pg) = parse_info_key(key) else { continue };
            assert_eq!(info_key(pg), key);
            let prefix = missing_prefix(pg);
            let stored = Stored {
                record: record.clone(),
                head: meta[&head_key(pg)].clone(),
                log: node
                    .store
                    .applied
                    .logs
                    .get(&store_pg(pg))
                    .into_iter()
                    .flat_map(|l| l.values().cloned())
                    .collect(),
                missing: meta
                    .range(bytes::Bytes::from(prefix.clone())..)
                    .take_while(|(k, _)| k.starts_with(&prefix))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
            };
            node.pgs.insert(pg, Pg::load(pg, id, cfg.clone(), &stored).unwrap());
        }
        // It goes on with the newest map it had processed; a new one begins with the present.
        let newest = self.maps.len() as Epoch - 1;
        let first = map.unwrap_or(newest);
        self.nodes[id as usize].epoch = first - 1;
        self.boot(id);
        self.give_map(id, first);
    }

    /// Gives an OSD the next map.
    pub fn give_map(&mut self, id: OsdId, epoch: Epoch) {
        let gap = epoch > self.nodes[id as usize].epoch + 1;
        if !gap || epoch == self.trimmed {
            self.take_map(id, epoch, gap, gap);
        }
    }

    /// Gives an OSD the newest map as a whole: the next one did not fit its own.
    pub fn give_whole_map(&mut self, id: OsdId) {
        let newest = self.map().epoch;
        assert!(newest > self.nodes[id as usize].epoch + 1, "nothing is left out");
        self.take_map(id, newest, true, false);
    }

    fn take_map(&mut self, id: OsdId, epoch: Epoch, gap: bool, trimmed: bool) {
        let map = self.maps[epoch as usize].clone();
        let node = &mut self.nodes[id as usize];
        if !node.alive || epoch <= node.epoch {
            return;
        }
        let boot = node.boot;
        node.epoch = epoch;
        // It may have been up in a map that it did not get.
        node.started |= gap || map.up.get(&id).is_some_and(|(_, b)| *b == boot);
        node.leases.map_advanced(epoch);
        let acts = map.acts(id);
        if gap {
            self.note("gaps");
        }
        self.fold_pgs(id, &map, gap);
        self.split_pgs(id, &map);
        for pg in acts {
            let cfg = self.cfg.clone();
            self.nodes[id as usize].pgs.entry(pg).or_insert_with(|| Pg::new(pg, id, cfg));
        }
        for pg in self.nodes[id as usize].pgs.keys().copied().collect::<Vec<_>>() {
            self.event(id, pg, PgEvent::Map(map.view(pg.pg, id, boot, (gap, trimmed))));
        }
        let mut t = spirula_types::transaction::Transaction::default();
        let value = bytes::Bytes::copy_from_slice(&epoch.to_le_bytes());
        t.meta.push(spirula_types::transaction::MetaOp::Set { key: "osd.map".into(), value });
        self.nodes[id as usize].store.submit(SpgId::whole(PgId::new(-1, 0)), 0, t);
        let held = std::mem::take(&mut self.nodes[id as usize].held);
        for (from, msg) in held {
            self.peer(id, from, msg);
        }
        // Marked down though alive: come back under a new number.
        let node = &self.nodes[id as usize];
        let newest = self.map();
        let known = (epoch..=newest.epoch)
            .any(|e| self.maps[e as usize].up.get(&id).is_some_and(|(_, b)| *b == node.boot));
        if node.started && !known {
            self.boot(id);
        }
    }

    fn fold_pgs(&mut self, id: OsdId, map: &Map, gap: bool) {
        let now = self.time();
        let pg_num = |_| (!map.deleted).then_some(map.pg_num);
        for (t, sources) in spirula_pg::folds(&self.nodes[id as usize].pgs, map.epoch, pg_num) {
            let node = &mut self.nodes[id as usize];
            node.store.cold.borrow_mut().clear();
            let (mut taken, mut retired) = (Vec::new(), Vec::new());
            for s in sources {
                let (mut p, mut out) = (node.pgs.remove(&s).unwrap(), Vec::new());
                p.retire(map.epoch, now, &node.store, &node.leases, &mut out);
                node.store.forget_tokens(s);
                taken.push(p);
                retired.push((s, out));
            }
            let mut target =
                node.pgs.remove(&t).unwrap_or_else(|| Pg::new(t, id, self.cfg.clone()));
            let mut out = Vec::new();
            let merged = map.merged.as_ref().filter(|_| !gap);
            target.fold(
                taken,
                merged,
                (map.epoch, map.pg_num),
                now,
                &node.store,
                &node.leases,
                &mut out,
            );
            node.pgs.insert(t, target);
            for (s, out) in retired {
                self.perform(id, s, out);
            }
            self.note("folds");
            if let Some(s) = &mut self.script {
                s.does(id, t, "its copy is merged with its other half's");
            }
            self.perform(id, t, out);
        }
    }

    fn split_pgs(&mut self, id: OsdId, map: &Map) {
        if map.deleted {
            return;
        }
        let now = self.time();
        let pgs: Vec<SpgId> = self.nodes[id as usize].pgs.keys().copied().collect();
        for pg in pgs {
            let node = &mut self.nodes[id as usize];
            let p = node.pgs.get_mut(&pg).unwrap();
            if !p.exists() || p.pg_num() >= map.pg_num {
                continue;
            }
            node.store.cold.borrow_mut().clear();
            let mut out = Vec::new();
            let children =
                p.split(now, (map.epoch, map.pg_num), &node.store, &node.leases, &mut out);
            if children.is_empty() {
                continue;
            }
            for mut c in children {
                if let Some(old) = node.pgs.remove(&c.id()) {
                    assert!(!old.exists());
                    c.inherit(old);
                }
                node.pgs.insert(c.id(), c);
            }
            self.note("splits");
            if let Some(s) = &mut self.script {
                s.does(id, pg, &format!("its copy is split for {} PGs", map.pg_num));
            }
            self.perform(id, pg, out);
        }
    }

    fn time(&self) -> Now {
        Now { mono_ms: self.now, wall: UTime { sec: self.now as u32, nsec: 0 } }
    }

    pub fn event(&mut self, id: OsdId, pg: SpgId, e: PgEvent) {
        let mut next = Some(e);
        let now = self.time();
        while let Some(e) = next.take() {
            let node = &mut self.nodes[id as usize];
            let Some(p) = node.pgs.get_mut(&pg) else { return };
            let mut out = Vec::new();
            let newest = p.look().map(|l| l.log.head()).unwrap_or_default();
            if let Some(s) = &mut self.script {
                s.begins(id, pg, &e);
            }
            p.handle(now, e, &node.store, &node.leases, &mut out);
            if p.look().is_some_and(|l| newest > l.log.tail() && l.log.at(newest).is_none()) {
                self.note("entries taken back");
            }
            let goes_on = self.perform(id, pg, out);
            if let Some(s) = &mut self.script {
                let pgs = &self.nodes[id as usize].pgs;
                s.ends(id, pg, &pgs.get(&pg).map(|p| p.state().0.to_string()).unwrap_or_default());
            }
            if goes_on {
                next = Some(PgEvent::Continue);
            }
        }
    }

    /// The state of each PG of each OSD.
    pub fn states(&self) -> BTreeMap<(OsdId, SpgId), String> {
        let of = |n: &Node| {
            let all = n.pgs.iter().map(|(pg, p)| ((n.id, *pg), p.state().0.to_string()));
            all.collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Performs effects; true if `Continue` was asked for.
    fn perform(&mut self, id: OsdId, pg: SpgId, out: Vec<PgEffect>) -> bool {
        let mut again = false;
        for e in out {
            if self.trace
                && !matches!(e, PgEffect::StateChanged | PgEffect::WakeAt(_) | PgEffect::Phase(..))
            {
                let text = format!("{e:?}");
                println!("{:>7} osd.{id} {pg} {}", self.now, &text[..text.len().min(2600)]);
            }
            if let Some(s) = &mut self.script {
                s.wants(pg, &e);
            }
            let node = &mut self.nodes[id as usize];
            let epoch = node.epoch;
            match e {
                PgEffect::Submit(token, mut t) => {
                    let mut more = Vec::new();
                    if let Some(bad) = node.store.refuses(&t) {
                        let p = node.pgs.get_mut(&pg).unwrap();
                        t = p
                            .without_rotten(token, t, &bad, Some(0), &mut more)
                            .expect("another copy");
                        *self.stats.entry("bad merges").or_default() += 1;
                    }
                    node.store.submit(pg, token, t);
                    again |= self.perform(id, pg, more);
                }
                PgEffect::Send(to, msg) => self.send_osd(id, to.osd, Wire::Peer(recode(msg))),
                PgEffect::Reply(op, reply) => self.reply(op, *reply),
                PgEffect::Backoff { op, begin, end } => self.back_off(id, pg, op, &begin, &end),
                PgEffect::Unblock(object) => self.unblock(id, pg, object.as_ref()),
                PgEffect::Drop(_)
                | PgEffect::Phase(..)
                | PgEffect::NeedMap(_)
                | PgEffect::WakeAt(_) => {}
                PgEffect::StateChanged => self.report(id, pg),
                PgEffect::Prefetch(key, what) => {
                    node.store.load(&what);
                    node.local.push_back((pg, PgEvent::Ready(key)));
                    if matches!(key, ReadKey::Recovery(_)) {
                        self.note("recovery reads");
                    }
                }
                PgEffect::Log { text, .. } => {
                    self.note("log lines");
                    if text.contains("stat mismatch") {
                        self.note("wrong counts");
                    }
                }
                PgEffect::ScrubScan { .. } if self.no_scans == Some(id) => {}
                PgEffect::ScrubScan { seq, from, to, deep } => {
                    let within = |o: &&HObject| from <= **o && **o < to;
                    let objects = node.store.applied.objects.keys().filter(within).count();
                    if deep
                        && self.slow_scans.is_some_and(|(osd, most)| osd == id && objects > most)
                    {
                        self.note("slow scans");
                        continue;
                    }
                    let within_one = |o: &HObject| o.snap > 0 && !o.max;
                    let pieces = within_one(&from) || within_one(&to);
                    // Made a while later, as the real one is made in steps.
                    node.scans.push_back((pg, seq, from, to, deep));
                    if pieces {
                        self.note("objects scrubbed in pieces");
                    }
                }
                PgEffect::ScrubEnded { done, .. } => {
                    self.note(if done { "scrubs" } else { "scrubs given up" })
                }
                PgEffect::Repaired => self.note("copies repaired"),
                // Sources of copies are silent here.
                PgEffect::Fetch(op, _) => drop(self.wanted.insert(op)),
                PgEffect::Tell(_, n) => {
                    self.notified.push(n.notify_id);
                    self.note("watchers told");
                }
                PgEffect::ShareMap(conn, _) => {
                    // Whoever asks by hand asks by the newest one.
                    let client = conn as usize;
                    if client < self.clients.len() {
                        self.client_map(client, epoch);
                    }
                }
                PgEffect::AskCreate { pg: origin, epoch: creation } => {
                    self.tell_mon(id, MonAsk::Ask { pg: origin, whose: pg, creation });
                }
                PgEffect::Created { pg: created, epoch } => {
                    self.tell_mon(id, MonAsk::Created { pg: created, whose: pg, epoch });
                }
                PgEffect::Reserve(r)
                    if self.full.contains(&id) && node.pgs[&pg].takes_space(&r) =>
                {
                    node.local.push_back((pg, PgEvent::Refused(r)));
                    self.note("refused as full");
                }
                PgEffect::Reserve(r) => {
                    node.queue.push_back((pg, r));
                    self.grant(id);
                    self.note("recoveries");
                }
                PgEffect::Unreserve(r) => {
                    node.granted.retain(|g| *g != (pg, r));
                    node.queue.retain(|g| *g != (pg, r));
                    self.grant(id);
                }
                PgEffect::WantTurn => {
                    let work = 1 + self.rng.below(4);
                    let local = &mut self.nodes[id as usize].local;
                    // As the shell counts: one turn for all that a PG wants.
                    if !local.iter().any(|(p, e)| *p == pg && matches!(e, PgEvent::Turn { .. })) {
                        local.push_back((pg, PgEvent::Turn { work, piece: 1 << 20 }));
                    }
                }
                PgEffect::Recovered { objects, .. } => {
                    *self.stats.entry("objects recovered").or_default() += objects
                }
                PgEffect::Alive(want) => self.tell_mon(id, MonAsk::Alive { want }),
                PgEffect::WantActing(want) => self.tell_mon(id, MonAsk::Acting { pg: pg.pg, want }),
                PgEffect::Mergeable(word) => self.tell_mon(id, MonAsk::Merge { pg: pg.pg, word }),
                PgEffect::Continue => again = true,
                PgEffect::Removed => {
                    let map = &self.maps[epoch as usize];
                    let acting = map.acts(id).contains(&pg);
                    let node = &mut self.nodes[id as usize];
                    if !acting && node.pgs.get(&pg).is_some_and(|p| !p.exists()) {
                        node.pgs.remove(&pg);
                    }
                }
            }
        }
        again
    }

    fn grant(&mut self, id: OsdId) {
        let node = &mut self.nodes[id as usize];
        let local = |r: &Reservation| matches!(r, Reservation::Local { .. });
        for side in [true, false] {
            while node.granted.iter().filter(|(_, r)| local(r) == side).count() < RESERVATIONS {
                let Some(i) = node.queue.iter().position(|(_, r)| local(r) == side) else { break };
                let (pg, r) = node.queue.remove(i).unwrap();
                node.granted.push((pg, r));
                node.local.push_back((pg, PgEvent::Reserved(r)));
            }
        }
    }

    /// An OSD has become too full for a recovery that it let begin; true if there was one.
    pub fn fills_up(&mut self, id: OsdId) -> bool {
        let node = &mut self.nodes[id as usize];
        let Some(at) =
            node.granted.iter().position(|(_, r)| matches!(r, Reservation::Remote { .. }))
        else {
            return false;
        };
        let (pg, r) = node.granted.remove(at);
        node.local.retain(|(p, e)| *p != pg || !matches!(e, PgEvent::Reserved(_)));
        self.event(id, pg, PgEvent::Refused(r));
        self.grant(id);
        self.note("filled up");
        true
    }

    // ---- network ----

    fn tell_mon(&mut self, id: OsdId, ask: MonAsk) {
        let boot = self.nodes[id as usize].boot;
        if self.mon_loses && self.rng.chance(10) {
            return;
        }
        self.net.entry((End::Osd(id), End::Mon)).or_default().push_back((boot, Wire::ToMon(ask)));
    }

    fn send_osd(&mut self, from: OsdId, to: OsdId, wire: Wire) {
        if let (Some((kind, percent)), Wire::Peer(m)) = (self.peer_loses, &wire)
            && from != to
            && (kind.is_empty() || kind_of(m) == kind)
            && self.rng.chance(percent)
        {
            self.say(|| format!("LOST osd.{from} -> osd.{to} {m:?}"));
            self.note("messages lost");
            // Mostly both hear that a session was lost; what was on its way before it arrives
            // first.
            if self.rng.chance(70) {
                self.renew(from, to);
            }
            return;
        }
        let epoch = self.nodes[from as usize].epoch;
        if let Some((_, boot)) = self.maps[epoch as usize].up.get(&to).copied() {
            self.net.entry((End::Osd(from), End::Osd(to))).or_default().push_back((boot, wire));
        }
    }

    /// Both are told that their session was lost.
    fn renew(&mut self, a: OsdId, b: OsdId) {
        for (from, to) in [(a, b), (b, a)] {
            let boot = self.nodes[to as usize].boot;
            self.net
                .entry((End::Osd(from), End::Osd(to)))
                .or_default()
                .push_back((boot, Wire::Renewed));
        }
    }

    /// The session of two OSDs is lost, with all that was on its way.
    pub fn lose_session(&mut self, a: OsdId, b: OsdId, told: bool) {
        for link in [(End::Osd(a), End::Osd(b)), (End::Osd(b), End::Osd(a))] {
            let gone = self.net.remove(&link).map_or(0, |q| q.len());
            *self.stats.entry("lost with sessions").or_default() += gone as u64;
        }
        self.note("sessions lost");
        if told {
            self.renew(a, b);
        }
    }

    /// One replicated write on its way between two OSDs vanishes; later ones arrive.
    pub fn lose_write(&mut self, from: OsdId, to: OsdId) -> Option<EVersion> {
        let q = self.net.get_mut(&(End::Osd(from), End::Osd(to)))?;
        let is = |w: &Wire| matches!(w, Wire::Peer(PeerMsg::Write(_)));
        let at = q.iter().position(|(_, w)| is(w))?;
        match q.remove(at)? {
            (_, Wire::Peer(PeerMsg::Write(w))) => Some(w.version()),
            _ => None,
        }
    }

    /// The newest entry of a member's log, whether durable or not.
    fn newest(&self, id: OsdId, pg: SpgId) -> Option<EVersion> {
        self.nodes[id as usize].store.applied.logs.get(&store_pg(pg))?.keys().next_back().copied()
    }

    /// A member that took a write has a prefix of its primary's log: no entry too many, none too
    /// few.
    fn check_prefix(&self, id: OsdId, pg: SpgId, primary: Peer) {
        let leader = &self.nodes[primary.osd as usize];
        let lead = SpgId::new(pg.pg, primary.shard);
        if !leader
            .pgs
            .get(&lead)
            .is_some_and(|p| p.is_primary() && p.state().0.has(PgState::ACTIVE))
        {
            return;
        }
        let since = |n: &Node| self.maps[n.epoch as usize].since.get(&pg.pg).copied();
        if since(leader) != since(&self.nodes[id as usize]) {
            return;
        }
        let (Some((own, a)), Some((theirs, b))) =
            (self.nodes[id as usize].store.applied.log(pg), leader.store.applied.log(lead))
        else {
            return;
        };
        let Some(newest) = own.keys().next_back().copied() else { return };
        // Older ones only remember requests.
        let tail = a.max(b);
        let of = |log: &BTreeMap<EVersion, bytes::Bytes>| {
            let in_force = |e: &bytes::Bytes| from_slice::<LogEntry>(e).unwrap().version > tail;
            let all = log.range(..=newest).filter(|(v, e)| **v > tail && in_force(e));
            all.map(|(v, e)| (*v, e.clone())).collect::<Vec<_>>()
        };
        let (a, b) = (of(own), of(theirs));
        let only = |x: &[(EVersion, bytes::Bytes)], y: &[(EVersion, bytes::Bytes)]| {
            x.iter().find(|e| !y.contains(e)).map(|e| e.0.to_string())
        };
        assert!(
            a == b,
            "NO PREFIX: {pg} of osd.{id} has {:?} up to {newest}, osd.{primary} has {:?}",
            only(&a, &b),
            only(&b, &a)
        );
    }

    /// What was acknowledged is durable in the log of each acting member.
    fn check_acknowledged(&self, op: u64, version: EVersion) {
        let Some((osd, pg)) = self.op_at.get(&op).copied() else { return };
        let leader = &self.nodes[osd as usize];
        let map = &self.maps[leader.epoch as usize];
        let since = |n: &Node| self.maps[n.epoch as usize].since.get(&pg).copied();
        for m in map.members(pg) {
            let n = &self.nodes[m.osd as usize];
            // One that has gone on may have lost its disk.
            if since(n) != since(leader) || !n.alive {
                continue;
            }
            let name = SpgId::new(pg, m.shard);
            let Some((log, tail)) = n.store.durable.log(name) else { continue };
            assert!(
                version <= tail || log.contains_key(&version),
                "NOT EVERYWHERE: {pg} {version} was acknowledged by osd.{osd}, and osd.{} does not \
                    have it",
                m.osd
            );
        }
    }

    /// A request is dropped, and its client told to hold all like it.
    fn back_off(&mut self, id: OsdId, pg: SpgId, op: u64, begin: &HObject, end: &HObject) {
        // What no client sent is sent again by whoever sent it.
        let Some((client, ..)) = self.op_client.get(&op).copied() else {
            self.held_back.insert(op, begin.clone());
            return self.note("dropped by hand");
        };
        let node = &mut self.nodes[id as usize];
        if let Some(m) = node.backoffs.entry(client).or_default().block(pg, begin, end, node.epoch)
        {
            let link = (End::Osd(id), End::Client(client));
            self.net.entry(link).or_default().push_back((node.boot, Wire::Backoff(m)));
            self.note(if begin == end { "backoffs of objects" } else { "backoffs of pgs" });
        }
    }

    fn unblock(&mut self, id: OsdId, pg: SpgId, object: Option<&HObject>) {
        self.note(if object.is_some() { "objects unblocked" } else { "pgs unblocked" });
        self.held_back.retain(|_, held| object.is_some_and(|o| o != held));
        let node = &mut self.nodes[id as usize];
        for (client, b) in &mut node.backoffs {
            for m in b.unblock(pg, object, node.epoch) {
                let link = (End::Osd(id), End::Client(*client));
                self.net.entry(link).or_default().push_back((node.boot, Wire::Backoff(m)));
            }
        }
    }

    /// A client hears what to hold back, or not to any more.
    fn deliver_client(&mut self, client: usize, from: OsdId, boot: u64, m: MOsdBackoff) {
        self.say(|| format!("client {client} <- osd.{from} {m:?}"));
        let map = self.maps[self.clients[client].epoch as usize].clone();
        let (ack, again) = self.clients[client].on_backoff((from, boot), m, &map);
        if let Some(ack) = ack {
            let link = (End::Client(client), End::Osd(from));
            self.net.entry(link).or_default().push_back((boot, Wire::Backoff(ack)));
        }
        for (tid, attempt, target, msg) in again {
            self.send_client_op(client, tid, attempt, &target, msg);
        }
    }

    pub fn send_client_op(
        &mut self,
        client: usize,
        tid: u64,
        attempt: i32,
        target: &Target,
        mut msg: Box<MOsdOp>,
    ) {
        if self.clients[client].holds(target, &msg) {
            return;
        }
        self.ops += 1;
        let op = self.ops;
        msg.retry_attempt = attempt;
        self.op_client.insert(op, (client, tid, attempt));
        let (pg, epoch) = (msg.spg.pg, msg.epoch);
        self.say(|| {
            format!(
                "client {client} sends {tid} attempt {attempt} as op {op} e{epoch} for {pg} to \
                {target:?}"
            )
        });
        let link = (End::Client(client), End::Osd(target.osd));
        self.net
            .entry(link)
            .or_default()
            .push_back((target.boot, Wire::Client { op, client, tid, msg }));
    }

    fn reply(&mut self, op: u64, reply: MOsdOpReply) {
        let Some((client, tid, attempt)) = self.op_client.get(&op).copied() else {
            self.told.insert(op, reply);
            return;
        };
        assert_eq!(reply.retry_attempt, attempt);
        let now = self.now;
        if self.clients[client].history.get(&tid).is_some_and(|d| d.write.is_some()) {
            let answer = (reply.result, reply.replay_version, reply.user_version);
            let first = *self.answers.entry((client, tid)).or_insert(answer);
            assert_eq!(
                first, answer,
                "client {client} got another answer to {tid} in attempt {attempt}"
            );
            self.check_acknowledged(op, reply.replay_version);
        }
        self.clients[client].on_reply(now, tid, attempt, reply);
    }

    fn peer(&mut self, id: OsdId, from: OsdId, msg: PeerMsg) {
        let node = &mut self.nodes[id as usize];
        let epoch = match &msg {
            PeerMsg::Write(w) => w.epoch,
            PeerMsg::Txn(t) => t.epoch,
            PeerMsg::Ack(a) => a.epoch,
            PeerMsg::Ctl(c) => c.epoch,
        };
        let boot = node.boot;
        if !node.started || epoch > node.epoch {
            node.held.push((from, msg));
            return;
        }
        let pg = msg.to();
        if !node.pgs.contains_key(&pg) {
            let map = self.maps[node.epoch as usize].clone();
            if map.deleted || pg.pg.seed >= map.pg_num {
                return;
            }
            node.pgs.insert(pg, Pg::new(pg, id, self.cfg.clone()));
            self.event(id, pg, PgEvent::Map(map.view(pg.pg, id, boot, (false, false))));
            // The map may have found nothing to do here and dropped it; the message brings it back.
            let cfg = self.cfg.clone();
            let node = &mut self.nodes[id as usize];
            if !node.pgs.contains_key(&pg) {
                let mut p = Pg::new(pg, id, cfg);
                let mut out = Vec::new();
                p.handle(
                    self.time(),
                    PgEvent::Map(map.view(pg.pg, id, boot, (false, false))),
                    &self.nodes[id as usize].store,
                    &self.nodes[id as usize].leases,
                    &mut out,
                );
                self.nodes[id as usize].pgs.insert(pg, p);
            }
        }
        let sender = msg.from(from);
        let write = matches!(&msg, PeerMsg::Write(_));
        if let (PeerMsg::Write(w), Some(look)) =
            (&msg, self.nodes[id as usize].pgs.get(&pg).and_then(Pg::look))
        {
            let of = w.record.entries.iter().zip(&w.given);
            if of
                .filter(|(_, g)| g.share == Share::Entry)
                .any(|(e, _)| look.missing.contains(&e.entry.object))
            {
                self.note("changes withheld");
            }
        }
        let before = self.newest(id, pg);
        self.event(id, pg, PgEvent::Peer(sender, msg));
        if write && self.newest(id, pg) != before {
            self.check_prefix(id, pg, sender);
        }
    }

    /// Delivers the first message of a random link.
    fn deliver(&mut self) -> bool {
        let now = self.now;
        let links: Vec<(End, End)> = self
            .net
            .iter()
            .filter(|((from, to), q)| {
                !q.is_empty()
                    && self.slow.get(&(*from, *to)).is_none_or(|t| *t <= now)
                    && match to {
                        End::Osd(o) => self.nodes[*o as usize].paused_until <= now,
                        _ => true,
                    }
            })
            .map(|(l, _)| *l)
            .collect();
        if links.is_empty() {
            return false;
        }
        let link = links[self.rng.below(links.len())];
        self.deliver_of(link)
    }

    /// Delivers the first message of a link.
    fn deliver_of(&mut self, link: (End, End)) -> bool {
        let Some((boot, wire)) = self.net.get_mut(&link).and_then(VecDeque::pop_front) else {
            return false;
        };
        let from = link.0;
        match (link.1, wire) {
            (End::Mon, Wire::ToMon(ask)) => {
                if let End::Osd(o) = from {
                    self.on_mon(o, boot, ask);
                }
            }
            (End::Osd(id), wire) => {
                let node = &self.nodes[id as usize];
                if !node.alive || node.boot != boot {
                    return true;
                }
                self.deliver_osd(id, from, wire);
            }
            (End::Client(c), Wire::Backoff(m)) => {
                if let End::Osd(o) = from {
                    self.deliver_client(c, o, boot, m);
                }
            }
            _ => unreachable!(),
        }
        true
    }

    fn deliver_osd(&mut self, id: OsdId, from: End, wire: Wire) {
        let now = self.now;
        let node = &mut self.nodes[id as usize];
        match (from, wire) {
            (End::Osd(from), Wire::Peer(msg)) => {
                if self.trace {
                    let text = format!("{msg:?}");
                    println!("{now:>7} osd.{id} <- osd.{from} {}", &text[..text.len().min(2600)]);
                }
                self.peer(id, from, msg);
            }
            (End::Osd(from), Wire::Renewed) => {
                let pgs: Vec<SpgId> = self.nodes[id as usize].pgs.keys().copied().collect();
                for pg in pgs {
                    self.event(id, pg, PgEvent::Renewed(from));
                }
            }
            (End::Osd(from), Wire::Ping { sent }) => {
                if node.started {
                    // Patience changes from time to time.
                    let length = if (now / 1000).is_multiple_of(2) { 1400 } else { self.lease_ms };
                    let length = node.leases.grant(from, length, now);
                    let epoch = node.epoch;
                    self.send_osd(id, from, Wire::Pong { sent, length, epoch });
                }
            }
            (End::Osd(from), Wire::Pong { sent, length, epoch }) => {
                let mine = node.epoch;
                let epoch = if self.cfg.ignores_grant_epochs() { 0 } else { epoch };
                node.leases.take(from, sent, length, epoch, mine);
                let waiting: Vec<SpgId> = node
                    .pgs
                    .iter()
                    .filter(|(_, p)| p.waits_for_lease())
                    .map(|(id, _)| *id)
                    .collect();
                for pg in waiting {
                    self.event(id, pg, PgEvent::Tick);
                }
            }
            (End::Client(_), Wire::Client { op, client, tid, msg }) => {
                // The shell keeps what needs a map that is to come, and what its sender said behind
                // it.
                if !node.started || msg.epoch > node.epoch {
                    let boot = node.boot;
                    let link = (End::Client(client), End::Osd(id));
                    self.net
                        .entry(link)
                        .or_default()
                        .push_front((boot, Wire::Client { op, client, tid, msg }));
                    return;
                }
                let pg = msg.spg;
                let epoch = node.epoch;
                if self.trace {
                    println!("{now:>7} osd.{id} e{epoch} <- op {op}");
                }
                if !node.pgs.contains_key(&pg) {
                    // Not ours: tell the client what it lacks; it sends again by itself.
                    self.client_map(client, epoch);
                    return;
                }
                if node.backoffs.get(&client).is_some_and(|b| b.covers(pg, &msg.hobject())) {
                    self.note("requests dropped as backed off");
                    return;
                }
                let patience = match self.backs_off {
                    true if self.rng.chance(50) => Patience::Short,
                    true => Patience::Long,
                    false => Patience::Endless,
                };
                let reqid = ReqId { name: EntityName::client(client as u64 + 100), tid, inc: 0 };
                self.op_at.insert(op, (id, pg.pg));
                let (conn, addrs, timeouts) = (client as u64, Arc::default(), Timeouts::default());
                let request = ClientOp { id: op, conn, reqid, addrs, msg, patience, timeouts };
                self.event(id, pg, PgEvent::Client(request));
            }
            (End::Client(c), Wire::Backoff(m)) => {
                if let Some(b) = node.backoffs.get_mut(&c) {
                    b.acked(&m);
                }
            }
            (End::Mon, Wire::FromMon(pg, e)) => self.event(id, pg, e),
            _ => unreachable!(),
        }
    }

    pub fn client_map(&mut self, client: usize, epoch: Epoch) {
        while self.clients[client].epoch < epoch {
            let e = self.clients[client].epoch + 1;
            let (old, new) = (self.maps[e as usize - 1].clone(), self.maps[e as usize].clone());
            for (tid, attempt, target, msg) in self.clients[client].on_map(&old, &new) {
                self.send_client_op(client, tid, attempt, &target, msg);
            }
        }
    }

    /// A client's connections break: what it sent and nobody has taken is lost, what was taken has
    /// nobody to answer. It comes again at once.
    pub fn reconnect(&mut self, client: usize) {
        for id in 0..self.nodes.len() as OsdId {
            self.net.remove(&(End::Client(client), End::Osd(id)));
            self.net.remove(&(End::Osd(id), End::Client(client)));
            self.nodes[id as usize].backoffs.remove(&client);
            if !self.nodes[id as usize].alive {
                continue;
            }
            let pgs: Vec<SpgId> = self.nodes[id as usize].pgs.keys().copied().collect();
            for pg in pgs {
                self.event(id, pg, PgEvent::ConnClosed(client as u64));
            }
        }
        let map = self.maps[self.clients[client].epoch as usize].clone();
        for (tid, attempt, target, msg) in self.clients[client].reconnect(&map) {
            self.send_client_op(client, tid, attempt, &target, msg);
        }
        self.note("reconnects");
    }

    // ---- in order ----

    /// Everything that is due happens once, in an order that is always the same; no time passes.
    /// False if nothing was due.
    pub fn round(&mut self) -> bool {
        let mut any = false;
        for id in 0..self.nodes.len() as OsdId {
            if !self.nodes[id as usize].alive {
                continue;
            }
            let (have, newest) = (self.nodes[id as usize].epoch, self.map().epoch);
            if have < newest && self.nodes[id as usize].blind_until <= self.now {
                self.give_map(id, have + 1);
                any = true;
            }
            while let Some((pg, e)) = self.nodes[id as usize].local.pop_front() {
                self.event(id, pg, e);
                any = true;
            }
            while let Some((pg, token)) = self.nodes[id as usize].store.commit_one() {
                if pg.pg.pool == POOL {
                    self.event(id, pg, PgEvent::Committed(token));
                }
                any = true;
            }
        }
        let now = self.now;
        let ready = |l: &(End, End)| self.slow.get(l).is_none_or(|t| *t <= now);
        let links: Vec<(End, End)> =
            self.net.iter().filter(|(l, q)| !q.is_empty() && ready(l)).map(|(l, _)| *l).collect();
        for link in links {
            any |= self.deliver_of(link);
        }
        any
    }

    /// All OSDs that are up ping each other.
    pub fn ping_all(&mut self) {
        let started = |n: &Node| n.alive && n.started;
        let ids: Vec<OsdId> = self.nodes.iter().filter(|n| started(n)).map(|n| n.id).collect();
        for from in ids {
            for to in (0..self.nodes.len() as OsdId).filter(|to| *to != from) {
                let sent = self.now;
                self.send_osd(from, to, Wire::Ping { sent });
            }
        }
    }

    /// All PGs hear that time passed.
    pub fn tick_all(&mut self) {
        for id in 0..self.nodes.len() as OsdId {
            if self.nodes[id as usize].alive {
                let pgs: Vec<SpgId> = self.nodes[id as usize].pgs.keys().copied().collect();
                pgs.into_iter().for_each(|pg| self.event(id, pg, PgEvent::Tick));
            }
        }
    }

    // ---- steps ----

    /// Does something that is due, faults aside.
    pub fn step(&mut self) {
        let p = self.pace;
        self.steps += 1;
        if self.steps.is_multiple_of(200) {
            self.step_merge();
        }
        self.now += self.rng.below(p.ms + 1) as u64;
        let now = self.now;
        let id = self.rng.below(self.nodes.len()) as OsdId;
        let running = self.nodes[id as usize].alive && self.nodes[id as usize].paused_until <= now;
        let weights =
            [p.deliver, p.commit, p.local, p.map, p.client_map, p.tick, p.ping, p.cold, p.op];
        let mut what = self.rng.below(weights.iter().sum());
        let mut kind = 0;
        while what >= weights[kind] {
            what -= weights[kind];
            kind += 1;
        }
        match kind {
            0 => {
                for _ in 0..=self.rng.below(p.messages) {
                    self.deliver();
                }
            }
            1 if running => {
                for _ in 0..=self.rng.below(p.commits) {
                    if let Some((pg, token)) = self.nodes[id as usize].store.commit_one()
                        && pg.pg.pool == POOL
                    {
                        self.event(id, pg, PgEvent::Committed(token));
                    }
                }
            }
            2 if running => {
                if !self.nodes[id as usize].scans.is_empty() && self.rng.chance(50) {
                    let node = &mut self.nodes[id as usize];
                    let (pg, seq, from, to, deep) = node.scans.pop_front().unwrap();
                    let map = node.store.scrub_map(&from, &to, deep);
                    self.event(id, pg, PgEvent::ScrubMapped { seq, map: Some(map) });
                } else if let Some((pg, e)) = self.nodes[id as usize].local.pop_front() {
                    self.event(id, pg, e);
                }
            }
            3 if running && self.nodes[id as usize].blind_until <= now => {
                // The next map, or several, one after the other.
                let (have, newest) = (self.nodes[id as usize].epoch, self.map().epoch);
                if have < newest {
                    let more = if self.rng.chance(30) {
                        self.rng.below((newest - have) as usize) as Epoch
                    } else {
                        0
                    };
                    for epoch in (have + 1).max(self.trimmed)..=(have + 1 + more).max(self.trimmed)
                    {
                        self.give_map(id, epoch);
                    }
                }
            }
            4 => {
                let c = self.rng.below(self.clients.len());
                let (have, newest) = (self.clients[c].epoch, self.map().epoch);
                if have < newest && self.clients[c].blind_until <= now {
                    self.client_map(c, have + 1);
                }
            }
            5 if running => {
                let pgs: Vec<SpgId> = self.nodes[id as usize].pgs.keys().copied().collect();
                for pg in pgs {
                    self.event(id, pg, PgEvent::Tick);
                    self.report(id, pg);
                    if self.scrubs && self.rng.chance(5) {
                        let (deep, repair) = (self.rng.chance(70), self.rng.chance(70));
                        self.event(
                            id,
                            pg,
                            PgEvent::Scrub { deep, repair, large: Default::default() },
                        );
                    }
                }
            }
            6 if running && self.nodes[id as usize].started => {
                for to in 0..self.nodes.len() as OsdId {
                    if to != id {
                        self.send_osd(id, to, Wire::Ping { sent: now });
                    }
                }
            }
            7 => {
                // Some objects fall out of memory.
                let objects: Vec<_> =
                    self.nodes[id as usize].store.applied.objects.keys().cloned().collect();
                if !objects.is_empty() {
                    let o = objects[self.rng.below(objects.len())].clone();
                    self.nodes[id as usize].store.cold.borrow_mut().insert(o);
                }
            }
            8 => {
                let c = self.rng.below(self.clients.len());
                let mut rng = std::mem::replace(&mut self.rng, Rng::new(0));
                let map = self.maps[self.clients[c].epoch as usize].clone();
                let op = self.clients[c].new_op(now, &map, &p, &mut rng);
                self.rng = rng;
                if let Some((tid, target, msg)) = op {
                    self.send_client_op(c, tid, 0, &target, msg);
                }
            }
            _ => {}
        }
    }
}

/// Through the wire form and back.
fn recode(msg: PeerMsg) -> PeerMsg {
    match msg {
        PeerMsg::Write(w) => {
            PeerMsg::Write(Arc::new(PgWrite::from_message(&w.to_message(0)).unwrap()))
        }
        PeerMsg::Txn(t) => PeerMsg::Txn(PgTxn::from_message(&t.into_message(0)).unwrap()),
        PeerMsg::Ack(a) => {
            PeerMsg::Ack(PgAcks::from_message(&PgAcks(vec![a]).into_message(0)).unwrap().0[0])
        }
        PeerMsg::Ctl(c) => PeerMsg::Ctl(Box::new(
            PgCtls::from_message(&PgCtls(vec![*c]).into_message(0)).unwrap().0.pop().unwrap(),
        )),
    }
}
