//! What goes into a PG and what comes out of it.

use crate::erasure::Shape;
use crate::exec::{Fetched, Fullness, PoolRules, Prefetch, Source, Timeouts};
use crate::snap::PoolSnaps;
use crate::stored::Stored;
use spirula_encoding::UTime;
use spirula_maps::osdmap::{RANGES, is_shut_out};
use spirula_messages::ceph::osd::{MOsdOp, MOsdOpReply, MWatchNotify};
use spirula_messages::cluster::control::MergeWord;
use spirula_messages::cluster::pg::{Ends, PgCtl, PgTxn, RepAck};
use spirula_messages::cluster::scrub::ScrubMap;
use spirula_messages::cluster::write::PgWrite;
use spirula_types::transaction::Transaction;
use spirula_types::{
    AddrVec, EVersion, EntityAddr, Epoch, HObject, OsdId, Peer, PgId, ReqId, SpgId, hash,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names one client request within an OSD; given by the shell, never used twice.
pub type OpId = u64;
/// Names one client connection within an OSD; given by the shell.
pub type ConnId = u64;
/// Names one submitted transaction within a PG; rises by one with each.
pub type Token = u64;

/// The time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic clock, milliseconds.
    pub mono_ms: u64,
    /// Wall clock, for stamps only.
    pub wall: UTime,
}

/// What a PG needs to know of its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Copies wanted.
    pub size: usize,
    /// Least number of acting members that may serve.
    pub min_size: usize,
    /// PGs in the pool.
    pub pg_num: u32,
    /// PGs after the merge that is pending; `pg_num` if none is.
    pub pg_num_pending: u32,
    /// PGs wanted.
    pub pg_num_target: u32,
    /// The merge that this very map made.
    pub merged: Option<Merged>,
    /// Epoch from which clients resend everything (`last_force_op_resend`), 0 for never.
    pub force_resend: Epoch,
    /// How objects are cut into shards, in an erasure-coded pool.
    pub shape: Option<Shape>,
    /// Kind of pool, and whether it may take more data ([`Fullness`] of pool or cluster).
    pub rules: PoolRules,
    /// Its snapshots.
    pub snaps: PoolSnaps,
}

impl PoolView {
    /// Is PG `seed` part of a merge that is pending?
    pub fn is_premerge(&self, seed: u32) -> bool {
        self.pg_num_pending < self.pg_num && Self::folds(seed, self.pg_num, self.pg_num_pending)
    }

    /// Will PG `seed` be part of a merge until the pool is as small as wanted?
    pub fn shrinks(&self, seed: u32) -> bool {
        self.pg_num_target < self.pg_num && Self::folds(seed, self.pg_num, self.pg_num_target)
    }

    /// Is PG `seed` a source or target of the merges from `from` to `to` PGs?
    fn folds(seed: u32, from: u32, to: u32) -> bool {
        seed >= to || hash::range_bits(seed, from) != hash::range_bits(seed, to)
    }

    /// Does what `other` says of the pool leave PG `seed` in the same interval?
    pub fn is_same_for(&self, other: &Self, seed: u32) -> bool {
        (self.size, self.min_size) == (other.size, other.min_size)
            && hash::range_bits(seed, self.pg_num) == hash::range_bits(seed, other.pg_num)
            && self.is_premerge(seed) == other.is_premerge(seed)
    }

    /// Is the pool, or the cluster, full?
    pub fn is_full(&self) -> bool {
        self.rules.fullness != Fullness::No
    }
}

/// What the map says of a merge: both PGs were whole on all members, and ended at these versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The PG that went.
    pub source: PgId,
    /// Its newest entry.
    pub source_version: EVersion,
    /// The newest entry of the PG it went into.
    pub target_version: EVersion,
}

/// What a map says about one OSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdView {
    /// It is up.
    pub up: bool,
    /// Since which epoch, or was last.
    pub up_from: Epoch,
    /// Newest epoch in which it is on record as alive.
    pub up_thru: Epoch,
    /// Epoch in which it was declared lost; 0 for never.
    pub lost_at: Epoch,
    /// Down, and its process is known to be gone.
    pub dead: bool,
}

/// What the cluster's flags and the administrator allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permits {
    /// `norecover`.
    pub no_recover: bool,
    /// `nobackfill`.
    pub no_backfill: bool,
    /// `norebalance`: backfill only what is degraded.
    pub no_rebalance: bool,
    /// `pauserd`: clients' reads wait.
    pub pause_reads: bool,
    /// `pausewr`: clients' writes wait.
    pub pause_writes: bool,
    /// `nosnaptrim`: what removed snapshots kept stays.
    pub no_trim: bool,
}

/// What one epoch of the OSD map says about one PG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapView {
    /// The epoch.
    pub epoch: Epoch,
    /// First epoch of the present interval as far as the shell has followed the maps. Counts
    /// only for a PG of which nothing is stored.
    pub since: Epoch,
    /// The maps between the last view and this one are lost.
    pub gap: bool,
    /// This is the oldest map that the monitors keep, after a gap: they let go only of maps from
    /// before the last epoch in which every PG is known to have been clean.
    pub trimmed: bool,
    /// The pool; `None` when it is deleted.
    pub pool: Option<Arc<PoolView>>,
    /// The members CRUSH wants, those that are up.
    pub up: Vec<Peer>,
    /// The members that serve, primary included, no holes.
    pub acting: Vec<Peer>,
    /// First of `up`.
    pub up_primary: Peer,
    /// Primary of `acting`.
    pub primary: Peer,
    /// The map shows this incarnation of this OSD up. Until then the PG follows the maps, but
    /// answers no peer and leads nothing: an earlier incarnation may have promised otherwise.
    pub live: bool,
    /// Every OSD that exists. Shared by all PGs.
    pub osds: Arc<BTreeMap<OsdId, OsdView>>,
    /// What recovery may do.
    pub permits: Permits,
    /// Clients that are shut out. Shared by all PGs.
    pub blocklist: Arc<BTreeSet<EntityAddr>>,
}

impl Default for MapView {
    /// No map.
    fn default() -> Self {
        Self {
            epoch: 0,
            since: 0,
            gap: false,
            trimmed: false,
            pool: None,
            up: Vec::new(),
            acting: Vec::new(),
            up_primary: Peer::NONE,
            primary: Peer::NONE,
            live: false,
            osds: Arc::default(),
            permits: Permits::default(),
            blocklist: Arc::default(),
        }
    }
}

impl MapView {
    /// Is it up?
    pub fn is_up(&self, osd: OsdId) -> bool {
        self.osds.get(&osd).is_some_and(|o| o.up)
    }

    /// Is a client that has these addresses shut out? One of them is enough.
    pub fn shuts_out_any(&self, addrs: &AddrVec) -> bool {
        addrs.0.iter().any(|a| self.shuts_out(a))
    }

    /// Is the client at this address shut out?
    pub fn shuts_out(&self, addr: &EntityAddr) -> bool {
        let list = &self.blocklist;
        !list.is_empty() && is_shut_out(addr, |key| list.contains(key), list.range(RANGES..))
    }

    /// Since when this OSD is up; `None` if it is down.
    pub fn up_from(&self, osd: OsdId) -> Option<Epoch> {
        self.osds.get(&osd).filter(|o| o.up).map(|o| o.up_from)
    }

    /// A set of members as the map would hold it.
    pub fn places(&self, members: &[Peer]) -> Vec<OsdId> {
        Peer::places(members, self.pool.as_ref().map_or(0, |p| p.size))
    }
}

/// May a request be dropped, and its client told to send it again later?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// No: its client knows no backoffs.
    Endless,
    /// Where it would wait for long.
    Long,
    /// Wherever it would wait: its connection has much open.
    Short,
}

/// Where a request stands in its PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has come, and nothing is in its way so far.
    Arrived,
    /// It was sent with a newer map than the PG has.
    Map,
    /// The PG peers.
    Peered,
    /// The PG has peered, and has too few members, or its primary may not serve yet.
    Active,
    /// The cluster's flags have clients wait (`pause`).
    Paused,
    /// Others on its object go first: requests before it, or writes that are not durable
    /// everywhere.
    Turn,
    /// Its object is missing here, and is recovered, or nobody has it.
    Missing,
    /// A member lacks the object that it changes.
    Degraded,
    /// It reads a clone that is missing here. Others on the object go before it until that may have
    /// changed.
    Clone,
    /// The object is compared with its copies.
    Scrub,
    /// The PG is about to be merged.
    Merge,
    /// Another member's leave to read has to be renewed.
    Lease,
    /// Something is read for it: from a disk, or from other members' shards.
    Read,
    /// The object that it copies is read from another PG.
    Copy,
    /// It is executed.
    Execute,
    /// It is executed, and not durable on all members.
    Commit,
}

/// A client's request.
#[derive(Clone, Debug)]
pub struct ClientOp {
    /// The shell's name for it.
    pub id: OpId,
    /// Its connection; 0 for none.
    pub conn: ConnId,
    /// (session entity, header tid, client_inc): the same in every resend.
    pub reqid: ReqId,
    /// Where the client is: all of its addresses.
    pub addrs: Arc<AddrVec>,
    /// The request.
    pub msg: Box<MOsdOp>,
    /// What may be done if it has to wait.
    pub patience: Patience,
    /// What counts where it names no timeout.
    pub timeouts: Timeouts,
}

impl ClientOp {
    /// The address that identifies the client's instance.
    pub fn addr(&self) -> EntityAddr {
        self.addrs.msgr2()
    }
}

/// A message between two OSDs about one PG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMsg {
    /// A write, for a member (own wire message). Kept and sent again by its primary, so shared.
    Write(Arc<PgWrite>),
    /// A transaction of recovery (own wire message).
    Txn(PgTxn),
    /// A commit (batched into `PgAcks`).
    Ack(RepAck),
    /// Control (batched into `PgCtls`).
    Ctl(Box<PgCtl>),
}

impl PeerMsg {
    /// First epoch of the interval it belongs to, or a later one of it (see `crate::intervals`).
    pub fn since(&self) -> Epoch {
        match self {
            Self::Write(w) => w.epoch,
            Self::Txn(t) => t.epoch,
            Self::Ack(a) => a.epoch,
            Self::Ctl(c) => c.epoch,
        }
    }

    /// Calls its interval by a later epoch of it.
    pub(crate) fn raise_since(&mut self, to: Epoch) {
        let since = match self {
            Self::Write(w) => &mut Arc::make_mut(w).epoch,
            Self::Txn(t) => &mut t.epoch,
            Self::Ack(a) => &mut a.epoch,
            Self::Ctl(c) => &mut c.epoch,
        };
        *since = to.max(*since);
    }

    fn place(&self) -> (PgId, Ends) {
        match self {
            Self::Write(w) => (w.pg, w.ends),
            Self::Txn(t) => (t.pg, t.ends),
            Self::Ack(a) => (a.pg, a.ends),
            Self::Ctl(c) => (c.pg, c.ends),
        }
    }

    /// The PG it is for, and the shard.
    pub fn to(&self) -> SpgId {
        let (pg, ends) = self.place();
        SpgId::new(pg, ends.to)
    }

    /// Who sent it, given from which OSD it came.
    pub fn from(&self, osd: OsdId) -> Peer {
        Peer::new(osd, self.place().1.from)
    }
}

/// The monitor's answer to [`PgEffect::AskCreate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateAnswer {
    /// The PG is still in the monitor's creating set: it may be created empty.
    Granted {
        /// Epoch its history starts in.
        since: Epoch,
        /// For which creation, as in [`PgEffect::AskCreate`].
        creation: Epoch,
    },
    /// It left the set: its data is somewhere.
    Exists {
        /// Epoch of the creation that was accepted ([`PgEffect::Created`]), if the monitor knows.
        winner: Option<Epoch>,
    },
}

/// What few PGs may do at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reservation {
    /// Recover as primary.
    Local {
        /// By backfill.
        backfill: bool,
    },
    /// Take what another primary recovers.
    Remote {
        /// That primary.
        primary: Peer,
        /// By backfill.
        backfill: bool,
    },
}

/// For what a PG wants a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnKind {
    /// To begin with objects that somebody lacks.
    Recovery,
    /// To delete objects of a copy that is not needed any more.
    Removal,
    /// To look at some objects that may hold something for removed snapshots.
    Trim,
    /// To compare some objects' copies.
    Scrub,
}

/// What is being read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadKey {
    /// For a client's request.
    Op(OpId),
    /// For recovery.
    Recovery(u64),
    /// Of a shard, for a client's request to its primary.
    Shard(u64),
}

/// Something happened.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "events are handled at once, never stored in numbers")]
pub enum PgEvent {
    /// The next map. Every epoch must be given, in order, unless the view says that there is a
    /// gap ([`MapView::gap`]).
    Map(Arc<MapView>),
    /// A client's request for this PG.
    Client(ClientOp),
    /// The client's connection is gone: its queued requests need no answer any more.
    ConnClosed(ConnId),
    /// A message from another member. Those of one OSD arrive in the order they were sent, none
    /// twice; some may be lost.
    Peer(Peer, PeerMsg),
    /// What this OSD and we sent each other may be lost, though both live and no map says so: their
    /// session was lost, and a new one is open. Every exchange with it that is still open is asked
    /// or sent again; everything is repeatable.
    Renewed(OsdId),
    /// Every transaction up to and including this one is durable.
    Committed(Token),
    /// The store has refused this transaction, for which it has no room, and changed nothing; nor
    /// will it get any that was submitted later. What it holds is this (see
    /// [`Pg::must_hear`](crate::Pg::must_hear)).
    Unstored(Token, Box<Stored>),
    /// What was asked for with [`PgEffect::Prefetch`] is in memory (or failed: the reader says).
    Ready(ReadKey),
    /// The answer to [`PgEffect::Fetch`].
    Fetched(OpId, Fetched),
    /// The monitor's answer to [`PgEffect::AskCreate`].
    CreateAnswer(CreateAnswer),
    /// The monitor has durably taken the PG out of the creating set.
    CreatedAck {
        /// Epoch of the creation it accepted, if it says.
        winner: Option<Epoch>,
    },
    /// The answer to [`PgEffect::Reserve`].
    Reserved(Reservation),
    /// The other answer, or what may follow [`PgEvent::Reserved`] later: this OSD is too full to be
    /// a target.
    Refused(Reservation),
    /// Recovery (or backfill) of this PG goes before that of others, or no longer.
    Force {
        /// Backfill; else recovery by the log.
        backfill: bool,
        /// Or no longer.
        on: bool,
    },
    /// The answer to [`PgEffect::WantTurn`]: so much recovery work may begin.
    Turn {
        /// Objects, or pieces of comparing.
        work: usize,
        /// Bytes of an object to send at a time, at most.
        piece: u64,
    },
    /// Give up what is unfound (see `Pg::may_mark_lost`).
    MarkLost {
        /// To an older version, where there is one here; else it is deleted.
        revert: bool,
    },
    /// Scrub the PG; ends with [`PgEffect::ScrubEnded`].
    Scrub {
        /// Read all data.
        deep: bool,
        /// Replace bad copies.
        repair: bool,
        /// What a deep one reports.
        large: LargeOmap,
    },
    /// The answer to [`PgEffect::ScrubScan`].
    ScrubMapped {
        /// Its number.
        seq: u64,
        /// What is here; `None` when it could not be listed.
        map: Option<ScrubMap>,
    },
    /// Goes on after [`PgEffect::Continue`].
    Continue,
    /// Time passed (about once a second, at [`PgEffect::WakeAt`], and when a lease was renewed
    /// while `Pg::waits_for_lease`).
    Tick,
}

/// How grave a line of the cluster log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// It is said.
    Info,
    /// Somebody should look.
    Warning,
    /// Something is wrong.
    Error,
}

/// An object is reported that has more than this in its omap
/// (`osd_deep_scrub_large_omap_object_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeOmap {
    /// Keys.
    pub keys: u64,
    /// Bytes of values.
    pub bytes: u64,
}

impl Default for LargeOmap {
    fn default() -> Self {
        Self { keys: 200_000, bytes: 1 << 30 }
    }
}

/// What the shell must do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PgEffect {
    /// Apply now, make durable, then say [`PgEvent::Committed`]. Transactions of a PG become
    /// durable in the order they were submitted.
    Submit(Token, Transaction),
    /// Send to a member, which may be another shard on the same OSD. All arrives, in order and
    /// once, or the map shows that the member's OSD went down, or both ends are told
    /// [`PgEvent::Renewed`].
    Send(Peer, PeerMsg),
    /// Answer a request.
    Reply(OpId, Box<MOsdOpReply>),
    /// Forget a request without an answer; the client resends it.
    Drop(OpId),
    /// Forget a request without an answer, and have its client hold all that it asks of the objects
    /// from `begin` up to before `end` (the same for one object) until [`PgEffect::Unblock`]; see
    /// [`crate::Backoffs::block`].
    Backoff {
        /// The request.
        op: OpId,
        /// First object.
        begin: HObject,
        /// After the last one.
        end: HObject,
    },
    /// Every client that holds requests for the PG, or for this object of it, may send them
    /// ([`crate::Backoffs::unblock`]).
    Unblock(Option<HObject>),
    /// A request has come into this phase; whoever shows requests wants to know when.
    Phase(OpId, Phase),
    /// Load this, then say [`PgEvent::Ready`].
    Prefetch(ReadKey, Prefetch),
    /// Read an object of another PG (`copy_from`), then say [`PgEvent::Fetched`].
    Fetch(OpId, Source),
    /// The request came with an older map: send the client what it lacks, before any reply.
    ShareMap(ConnId, Epoch),
    /// A map at least this new is needed.
    NeedMap(Epoch),
    /// Ask the monitor whether the PG may be created empty. Repeated until answered.
    AskCreate {
        /// The PG (of a split one: the one it stems from).
        pg: PgId,
        /// Peering epoch, which names the creation; 0 for the one it stems from.
        epoch: Epoch,
    },
    /// Tell the monitor that the PG is created and durable. Repeated until acknowledged.
    Created {
        /// The PG.
        pg: PgId,
        /// Peering epoch, as in [`PgEffect::AskCreate`].
        epoch: Epoch,
    },
    /// May I recover? The shell grants it to few PGs at a time ([`PgEvent::Reserved`]).
    Reserve(Reservation),
    /// No more wanted, or done with it.
    Unreserve(Reservation),
    /// There is background work to begin ([`TurnKind`]); say [`PgEvent::Turn`] when it may. Once,
    /// however often this was said before.
    WantTurn,
    /// Recovery moved this much: objects, bytes (for the shell's scheduler).
    Recovered {
        /// Objects.
        objects: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Tell the monitor that this OSD is alive, so that the map's `up_thru` reaches this epoch.
    /// Repeated until it does.
    Alive(Epoch),
    /// Ask the monitor for this acting set, as a map holds it (empty: for the one CRUSH gives).
    /// Repeated until the map shows it.
    WantActing(Vec<OsdId>),
    /// Tell the monitor this, for a merge of the PG. Repeated until the map shows it.
    Mergeable(MergeWord),
    /// State or statistics changed: publish `Pg::stat`.
    StateChanged,
    /// A bad copy here has been replaced by a good one.
    Repaired,
    /// Make a map of the objects here from `from` up to before `to`, as all effects before this
    /// one left them; then say [`PgEvent::ScrubMapped`].
    ScrubScan {
        /// Comes back.
        seq: u64,
        /// First object.
        from: HObject,
        /// After the last one.
        to: HObject,
        /// Read data and omap from the device.
        deep: bool,
    },
    /// The scrub asked for has ended.
    ScrubEnded {
        /// All of it was done; else it was not possible now.
        done: bool,
        /// But some objects were not read, since that took too long.
        unread: bool,
    },
    /// Send a client this, over this connection, if it is still there.
    Tell(ConnId, Box<MWatchNotify>),
    /// A line for the cluster log.
    Log {
        /// How grave it is.
        level: LogLevel,
        /// The line.
        text: String,
    },
    /// Say [`PgEvent::Continue`] once the effects before this one are performed.
    Continue,
    /// Say [`PgEvent::Tick`] at this monotonic time (ms).
    WakeAt(u64),
    /// Nothing is left of the PG here; drop it, unless the map says we act for it.
    Removed,
}

/// Bounds of a PG. Tiny values must work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgConfig {
    /// Log entries kept while the PG is clean.
    pub log_keep: usize,
    /// Log entries kept while it is not, so that members that return need no backfill.
    pub log_max: usize,
    /// Bytes of log entries kept at most, about. Activation, a split and a merge write all of the
    /// log (and as much again of what is missing) in one transaction, which the store must take.
    pub log_bytes: usize,
    /// Entries above these bounds before they are trimmed together.
    pub log_slack: usize,
    /// Requests remembered, log entries included (Ceph's `osd_pg_log_dups_tracked`).
    pub dups_tracked: usize,
    /// Object contexts kept though nobody uses them.
    pub contexts: usize,
    /// Bytes of object data in one recovery message.
    pub push_bytes: u64,
    /// Objects under recovery at a time in one PG (those that clients wait for come on top).
    pub push_window: usize,
    /// An OSD that lacks more log entries and objects than this becomes primary only when they are
    /// recovered (Ceph's `osd_async_recovery_min_cost`).
    pub primary_lag: u64,
    /// Objects compared in one step of a backfill.
    pub scan_objects: usize,
    /// Objects share whole blocks of so many bytes: the store's.
    pub share_block: u64,
    /// Objects compared at a time by a scrub; a deep one takes a quarter of that.
    pub scrub_chunk: usize,
    /// Objects deleted in one transaction.
    pub remove_batch: usize,
    /// Between repeats of questions to the monitor, and the least between those to other members,
    /// milliseconds.
    pub retry_ms: u64,
    /// Bounds on requests.
    pub limits: crate::exec::Limits,
    /// Bugs to be caught by the simulator.
    #[cfg(feature = "plant-bugs")]
    pub bug: Option<Bug>,
}

/// Bugs that the simulator plants (RELIABILITY.md §5), to prove that it catches them.
#[cfg(feature = "plant-bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A primary reads without leases.
    ReadsWithoutLease,
    /// A new primary does not wait for the leases of older ones.
    LeaseNotAwaited,
    /// Trimming forgets requests at once.
    DupsForgotten,
    /// A resend's answer lacks the version.
    DupWithoutVersion,
    /// A divergent delete stays deleted.
    DivergentDeleteKept,
    /// A divergent write brings a deleted object back.
    DeletedComesBack,
    /// A backfill that is resumed forgets what the log says of the part that was filled.
    MissingStaleOnResume,
    /// Whoever is up and has not called is taken for one that holds nothing.
    UnheardIgnored,
    /// A log entry does not say which data a write changed.
    DirtyForgotten,
    /// A change that is kept from a member that lacks the object is not noted as missing there.
    WithheldForgotten,
    /// The first write after a snapshot clones what the snapshot before showed.
    CloneOfOlder,
    /// A write leaves what its object shares with the newest clone as it was.
    OverlapKept,
    /// A context that is older than the object's takes its place.
    ContextGoesBack,
    /// A clone is made, and the history does not name it.
    HistoryForgotten,
    /// A rollback brings only a part back.
    RollbackHalf,
    /// A member is given a clone though it lacks the head that it is made from.
    MadeWithoutSource,
    /// A new primary does not look who watches an object.
    WatchesForgotten,
    /// A notification does not wait for watches whose clients are not connected.
    UnconnectedPassed,
    /// Whoever asks for a watch that has ended is told that it is there.
    EndedWatchAnswered,
    /// A clone is read before it is recovered.
    CloneNotRecovered,
    /// A trim takes clones that older snapshots need.
    TrimTakesMore,
    /// What a clone shared by way of one that is trimmed is not noted.
    TrimOverlapKept,
    /// Snapshots count as purged while what is trimmed of them is on its way.
    TrimNotAwaited,
    /// Entries count as history though only copies without their data have them.
    HollowHistory,
    /// Nobody else is waited for where only copies without the newest data are heard.
    HollowNotAwaited,
    /// Writes go on without members that lack their objects, however many those are.
    ManyLag,
    /// Writes go on though the primary's is the only copy with their data.
    OneWhole,
    /// The shell takes leases whatever epoch they were granted in.
    GrantEpochIgnored,
    /// The shell takes leases for as long as the longest, however long they were granted for.
    LeaseStretched,
    /// An OSD that stops keeps the leases that it holds.
    SurrenderSkipped,
    /// An OSD whose port refuses is said to be gone, without proof.
    DeadWithoutProof,
    /// What an object's source sends is not verified.
    CorruptSourceCopied,
    /// A failed read for recovery drops the object from the missing set.
    FailedReadForgotten,
    /// A PG counts as clean when its last object is written, not when it is durable.
    CleanBeforeDurable,
    /// A lost answer of the monitor is not asked for again.
    NoRetry,
    /// A primary activates without hearing older intervals.
    PastIgnored,
    /// A primary activates before the map knows that it is alive.
    NoUpThru,
    /// Primaries count as known to be alive from the first, as if the map that marks one down
    /// foretold it of the next.
    Foretold,
    /// A scrub does not wait for writes under way.
    ScrubBesideWrites,
    /// A scrub that is within an object still counts on a clone that was trimmed since it looked at
    /// it.
    ScrubKeepsTrimmed,
    /// A deep scrub reads nothing.
    ScrubShallow,
    /// A repair takes the primary's copy for the good one.
    RepairTrustsPrimary,
    /// Copies are folded whatever they hold.
    FoldUnchecked,
    /// The source's requests are forgotten.
    FoldForgetsRequests,
    /// Writes go on while a merge is pending.
    WritesWhilePending,
    /// Erasure coding: peering takes the longest log.
    LongestLog,
    /// Erasure coding: what is taken back stays as it is.
    UndoForgotten,
    /// Erasure coding: undo copies go before all members have the entry.
    RolledEarly,
    /// Erasure coding: one member heard of an interval is taken for enough.
    OneHeard,
    /// Erasure coding: members that have nothing count as shards of what was written.
    BlankCounts,
    /// Erasure coding: a stripe that is changed in part is not read first.
    StripeNotRead,
    /// Erasure coding: what was read for a request whose client went away serves the next one.
    PiecesKept,
    /// A wait for the leases of older primaries is forgotten with the interval in which it began.
    LeaseForgotten,
    /// Who was declared lost once is not waited for, though it came back and took part since.
    LostForever,
    /// Whatever is missing makes a copy hollow, also an object that was there and has rotted.
    MissingIsHollow,
    /// A replica takes a write that is not the next of its log.
    GapAccepted,
    /// What was lost on the way between two OSDs is not sent again.
    LossUntold,
    /// Erasure coding: a shard that is too short is filled up with zeros.
    ShortShardPadded,
    /// The shell tells a PG the answer to a wish before it has performed the others.
    AnswersOvertake,
    /// Clients that hold requests are told nothing when the interval ends.
    UnblockForgotten,
    /// The shell forgets requests that carry a map which is to come.
    EarlyDropped,
    /// The shell keeps what was read ahead for whoever reads next, whatever was written meanwhile.
    StaleShelf,
    /// The shell leaves out what its store has no room for, and goes on.
    RoomNotAwaited,
    /// What the store has refused for good stays in the log.
    RefusedKept,
    /// Requests of clients that were shut out while these waited are executed.
    FenceAtArrival,
    /// What recovery copies shares nothing with its relatives.
    SharesNothing,
    /// A member takes ranges of whatever is there, also of another version.
    SharesWithAny,
    /// A clone that is trimmed counts still.
    TrimmedCounts,
}

impl PgConfig {
    /// Is the shell to be wrong on purpose, and to take leases of any epoch?
    pub fn ignores_grant_epochs(&self) -> bool {
        planted!(self, GrantEpochIgnored)
    }

    /// Is the shell to be wrong on purpose, and to believe leases for longer than they were
    /// granted?
    pub fn stretches_leases(&self) -> bool {
        planted!(self, LeaseStretched)
    }

    /// Is the shell to be wrong on purpose, and to keep its leases when it stops?
    pub fn skips_surrender(&self) -> bool {
        planted!(self, SurrenderSkipped)
    }

    /// Is the shell to be wrong on purpose, and to say of who refuses that it is gone?
    pub fn asks_no_proof(&self) -> bool {
        planted!(self, DeadWithoutProof)
    }

    /// Is the shell to be wrong on purpose, and to feed answers before it has performed all
    /// effects?
    pub fn answers_overtake(&self) -> bool {
        planted!(self, AnswersOvertake)
    }

    /// Is the shell to forget requests that carry a map which is to come?
    pub fn early_dropped(&self) -> bool {
        planted!(self, EarlyDropped)
    }

    /// Is the shell to be wrong on purpose, and to leave out what its store has no room for?
    pub fn leaves_out_refused(&self) -> bool {
        planted!(self, RoomNotAwaited)
    }

    /// Is the shell to be wrong on purpose, and to show what it read ahead to all, however old?
    pub fn keeps_fetched(&self) -> bool {
        planted!(self, StaleShelf)
    }
}

impl Default for PgConfig {
    fn default() -> Self {
        Self {
            log_keep: 500,
            log_max: 10_000,
            log_bytes: 4 << 20,
            log_slack: 100,
            dups_tracked: 3000,
            contexts: 64,
            push_bytes: 4 << 20,
            push_window: 8,
            primary_lag: 100,
            scan_objects: 256,
            share_block: spirula_types::DIRTY_BLOCK,
            scrub_chunk: 16,
            remove_batch: 64,
            retry_ms: 3000,
            limits: crate::exec::Limits::default(),
            #[cfg(feature = "plant-bugs")]
            bug: None,
        }
    }
}
