//! The PG itself: its state, and which part of it an event belongs to.

use crate::active::Active;
use crate::api::{ConnId, MapView, Now, PeerMsg, PgConfig, PgEffect, PgEvent, Reservation, Token, TurnKind};
use crate::backoff::Held;
use crate::exec::{ObjectReader, Prefetch};
use crate::intervals::{Interval, forget_before};
use crate::lease::Leases;
use crate::log::{LogEntry, PgLog};
use crate::missing::Missing;
use crate::ops::Ops;
use crate::peering::Peering;
use crate::repeat::Repeat;
use crate::shard::{ShardReader, localize};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime, from_slice, to_vec};
use spirula_maps::SnapIntervals;
use spirula_messages::cluster::pg::{CtlBody, Ends, OldReader, PastInterval, PgCtl, PgHead, PgInfo};
use spirula_types::transaction::{MetaOp, Transaction};
use spirula_types::{EVersion, Epoch, HObject, OsdId, Peer, PgId, SpgId, hash};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Messages kept until the map they need arrives. Their senders wait for an answer, so there
/// are few; more are dropped.
const EARLY_MAX: usize = 4096;

/// A time that was forgotten with a restart.
pub(crate) const UNKNOWN_MS: u64 = u64::MAX;

/// What this OSD does for the PG.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing, or waiting for its primary.
    Idle,
    /// Takes writes from the primary of the present interval.
    Replica {
        /// That primary.
        primary: Peer,
        /// Number of its activation.
        run: u64,
        /// The newest entry that was here when the primary was told that a later one came.
        gap: Option<EVersion>,
    },
    /// Primary, not active yet.
    Peering(Box<Peering>),
    /// Primary: activating, then serving, or only recovering where too few members are up.
    Active(Box<Active>),
    /// Deletes its copy.
    Removing,
}

/// What to do when a transaction is durable.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a box per replicated write would cost more than it saves")]
pub(crate) enum After {
    /// A write of the interval is durable here.
    Write { since: Epoch, version: EVersion },
    /// Send this.
    Send(Peer, PeerMsg),
    /// A piece that the primary pushed is durable here.
    Pushed { since: Epoch, to: Peer, seq: u64 },
    /// A step of the primary's own is durable here.
    Step { since: Epoch, step: Step },
    /// Nothing more.
    Nothing,
    /// Go on deleting.
    Remove,
    /// The last trace is gone.
    Gone,
}

/// Own steps that wait for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// All that was submitted before peering began.
    Flushed,
    /// A piece of an object pulled from another copy.
    Pulled(u64),
    /// The activation.
    Activated,
    /// A piece of our shard that was rebuilt.
    Rebuilt(u64),
}

/// What every handler needs.
pub(crate) struct Cx<'a> {
    pub now: Now,
    pub reader: &'a dyn ObjectReader,
    pub leases: &'a Leases,
    pub out: &'a mut Vec<PgEffect>,
}

/// One placement group on one OSD. See the crate's header.
#[derive(Debug)]
pub struct Pg {
    pub(crate) id: PgId,
    /// Who we are among its members.
    pub(crate) me: Peer,
    pub(crate) cfg: Arc<PgConfig>,
    /// What is stored of the PG here; `None`: nothing.
    pub(crate) info: Option<PgInfo>,
    pub(crate) log: PgLog,
    pub(crate) missing: Missing,
    /// Snapshots that the map has called removed, and calls so no more.
    pub(crate) purged: SnapIntervals,
    /// Closed intervals since the PG was last known to be clean, those that may have taken writes.
    pub(crate) past: Vec<PastInterval>,
    pub(crate) interval: Interval,
    /// When it was learned of.
    pub(crate) interval_stamp: UTime,
    /// It may have begun before: not all of its maps were seen here.
    guessed: bool,
    /// Members that call the interval by a later epoch of it.
    called: BTreeMap<Peer, Epoch>,
    pub(crate) view: Option<Arc<MapView>>,
    /// Epoch of the map for which this copy was split or folded last: it is shown none before.
    pub(crate) shaped: Epoch,
    /// Requests sent with an older map were meant for another primary's time.
    pub(crate) primary_since: Epoch,
    pub(crate) role: Role,
    next_token: Token,
    pub(crate) after: VecDeque<(Token, After)>,
    early: Vec<(Peer, PeerMsg)>,
    /// Those whose map has come, to be taken one for each event: what one submits the next must
    /// be able to read.
    ripe: VecDeque<(Peer, PeerMsg)>,
    /// Recovery goes on at the next event, for the same reason.
    pub(crate) pump_later: bool,
    pub(crate) ops: Ops,
    /// Clients that hold requests themselves.
    pub(crate) held: Held,
    /// OSDs outside the acting set that said they hold a copy, with what, and which older intervals
    /// they know of: peering may begin anew in the same interval, and has to hear those then, too.
    pub(crate) strays: BTreeMap<Peer, (PgInfo, Vec<PastInterval>)>,
    next_seq: u64,
    /// Primaries of older intervals that may still serve reads, the last epoch of their intervals, and until when; a time
    /// that is not known any more, after a restart, is [`UNKNOWN_MS`].
    pub(crate) readers: Vec<(OsdId, Epoch, u64)>,
    /// The highest number of an entry that was given out here.
    pub(crate) issued: u64,
    /// What other primaries reserved here: the number, what, and whether it was granted.
    pub(crate) reserved_for: Option<(u64, Reservation, bool)>,
    /// A reservation here that was taken back, by its number, until its primary has given it back.
    pub(crate) refused: Option<(Peer, u64)>,
    pub(crate) refused_repeat: Repeat,
    /// Pushes that are on their way to the disk.
    pub(crate) pushes: BTreeSet<u64>,
    /// Copies found bad that the primary has not noted yet: the version, and the first bad byte if it is known.
    pub(crate) rotten: BTreeMap<HObject, (EVersion, Option<u64>)>,
    pub(crate) rotten_repeat: Repeat,
    /// What cannot happen has happened, see `invariant!`.
    broken: bool,
    /// When it was said last, and when it had its consequence.
    broken_ms: u64,
    /// Peers' questions that wait for something to be read.
    pub(crate) parked: BTreeMap<u64, (Peer, PeerMsg)>,
    /// A deletion that could not go on does so then, monotonic milliseconds; 0: none waits.
    pub(crate) remove_again_ms: u64,
    /// Our own recovery waits for this read.
    pub(crate) pump_read: Option<u64>,
    /// Older versions that lost objects are to go back to are read.
    pub(crate) revert_read: Option<u64>,
    notified_ms: u64,
    /// Asked for, or held.
    pub(crate) reservations: BTreeSet<Reservation>,
    pub(crate) stat: crate::stat::StatState,
    pub(crate) repairs: crate::repair::Repairs,
    pub(crate) scrub: crate::scrub::Scrub,
    pub(crate) watches: crate::watch::Watches,
    /// Recovery, backfill: to go before others' until the PG is clean.
    pub(crate) forced: [bool; 2],
    record_key: Bytes,
    head_key: Bytes,
}

/// How a member's records are called in its store, after the prefix.
pub(crate) fn record_name(id: SpgId) -> String {
    let shard = if id.shard >= 0 { format!("s{}", id.shard) } else { String::new() };
    format!("{}.{:08x}{shard}", id.pg.pool, id.pg.seed)
}

/// Key of a PG's record in the store's meta space.
pub fn info_key(id: SpgId) -> Bytes {
    Bytes::from(format!("pg.{}", record_name(id)))
}

/// Key of the small record that every write changes.
pub fn head_key(id: SpgId) -> Bytes {
    Bytes::from(format!("pgh.{}", record_name(id)))
}

/// The PG whose record has this key, and the shard; `None` for other records.
pub fn parse_info_key(key: &[u8]) -> Option<SpgId> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix("pg.")?;
    let (pool, seed) = rest.split_once('.')?;
    let (seed, shard) = match seed.split_once('s') {
        Some((seed, shard)) => (seed, shard.parse().ok().filter(|s| *s >= 0)?),
        None => (seed, -1),
    };
    Some(SpgId::new(PgId::new(pool.parse().ok()?, u32::from_str_radix(seed, 16).ok()?), shard))
}

/// What is stored of a PG besides its objects, its log and its missing set.
pub(crate) struct Record {
    pub info: PgInfo,
    pub interval: Interval,
    pub past: Vec<PastInterval>,
    pub shaped: Epoch,
}

impl Encode for Record {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(3, 2, |o| {
            o.put(&self.info);
            o.put(&self.interval);
            o.put(&self.past);
            o.u32(self.shaped);
        });
    }
}

impl Decode for Record {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("PG record", 3, |d, v| {
            if v < 2 {
                return Err(DecodeError::Value { what: "PG record version", value: i64::from(v) });
            }
            let (info, interval, past) = (d.get()?, d.get()?, d.get()?);
            Ok(Self { info, interval, past, shaped: if v >= 3 { d.u32()? } else { 0 } })
        })
    }
}

/// A PG's records as a store holds them.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// Under [`info_key`].
    pub record: Bytes,
    /// Under [`head_key`].
    pub head: Bytes,
    /// Its log, oldest first.
    pub log: Vec<Bytes>,
    /// All records under [`crate::missing_prefix`].
    pub missing: Vec<(Bytes, Bytes)>,
}

impl Stored {
    /// What the records say of the PG, for showing.
    ///
    /// # Errors
    /// When they make no sense.
    pub fn info(&self) -> Result<PgInfo, DecodeError> {
        let mut info = from_slice::<Record>(&self.record)?.info;
        if !self.head.is_empty() {
            info.head = from_slice(&self.head)?;
        }
        Ok(info)
    }
}

/// Are the hashes of a PG the same in a pool of `a` and of `b` PGs?
pub(crate) fn has_range(pg: PgId, a: u32, b: u32) -> bool {
    hash::range_bits(pg.seed, a) == hash::range_bits(pg.seed, b)
}

impl Pg {
    /// A PG of which nothing is stored here.
    pub fn new(id: SpgId, osd: OsdId, cfg: Arc<PgConfig>) -> Self {
        Self {
            id: id.pg,
            me: Peer::new(osd, id.shard),
            cfg,
            info: None,
            log: PgLog::default(),
            missing: Missing::default(),
            purged: SnapIntervals::new(),
            past: Vec::new(),
            interval: Interval::default(),
            interval_stamp: UTime::ZERO,
            guessed: false,
            called: BTreeMap::new(),
            view: None,
            shaped: 0,
            primary_since: 0,
            role: Role::Idle,
            next_token: 1,
            after: VecDeque::new(),
            early: Vec::new(),
            ripe: VecDeque::new(),
            pump_later: false,
            ops: Ops::default(),
            held: Held::default(),
            strays: BTreeMap::new(),
            next_seq: 1,
            readers: Vec::new(),
            issued: 0,
            reserved_for: None,
            refused: None,
            refused_repeat: Repeat::default(),
            pushes: BTreeSet::new(),
            rotten: BTreeMap::new(),
            rotten_repeat: Repeat::default(),
            broken: false,
            broken_ms: 0,
            parked: BTreeMap::new(),
            remove_again_ms: 0,
            pump_read: None,
            revert_read: None,
            notified_ms: 0,
            reservations: BTreeSet::new(),
            stat: crate::stat::StatState::default(),
            repairs: crate::repair::Repairs::default(),
            scrub: crate::scrub::Scrub::default(),
            watches: crate::watch::Watches::default(),
            forced: [false; 2],
            record_key: info_key(id),
            head_key: head_key(id),
        }
    }

    /// A PG as it was stored. The first map it is given must be the newest one the OSD had
    /// processed when it stopped (or one after a gap).
    ///
    /// # Errors
    /// [`DecodeError`] when a record or the log is damaged.
    pub fn load(id: SpgId, osd: OsdId, cfg: Arc<PgConfig>, stored: &Stored) -> Result<Self, DecodeError> {
        let Record { mut info, interval, past, shaped } = from_slice(&stored.record)?;
        if info.pg != id.pg {
            return Err(DecodeError::Value { what: "PG record of another PG", value: i64::from(info.pg.seed) });
        }
        let head: PgHead = from_slice(&stored.head)?;
        // A member's log may begin later than its primary's.
        let tail = head.log_tail.max(info.head.log_tail);
        info.head = PgHead { log_tail: tail, ..head };
        let entries: Vec<LogEntry> = stored.log.iter().map(|b| from_slice(b)).collect::<Result<_, _>>()?;
        let mut pg = Self::new(id, osd, cfg);
        pg.log = PgLog::new(tail, entries);
        pg.missing = Missing::load(id, stored.missing.iter().cloned())?;
        pg.readers = info.readers.iter().map(|r| (r.osd, r.last, UNKNOWN_MS)).collect();
        (pg.interval, pg.past, pg.info, pg.shaped) = (interval, past, Some(info), shaped);
        Ok(pg)
    }

    /// Its id.
    pub fn id(&self) -> SpgId {
        SpgId::new(self.id, self.me.shard)
    }

    /// Does the newest map make this OSD its primary?
    pub fn is_primary(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.primary == self.me)
    }

    /// Is it stored here, in whatever state?
    pub fn exists(&self) -> bool {
        self.info.is_some()
    }

    /// Does the PG, as its primary tells it, hold no data? Then a backfill takes no room here: it only removes.
    pub fn holds_nothing(&self) -> bool {
        self.info.as_ref().is_some_and(|i| i.head.counts.objects == 0 && i.head.counts.bytes == 0)
    }

    /// Bytes of data that this copy holds once it is whole, at most: what it has beyond them is old, and goes when it is filled. The
    /// shards of an erasure-coded PG end with a whole stripe each.
    pub fn bytes_due(&self) -> u64 {
        let Some(info) = &self.info else { return 0 };
        let of = |n: i64| u64::try_from(n).unwrap_or(0);
        let (bytes, objects) = (of(info.head.counts.bytes), of(info.head.counts.objects));
        match self.shape() {
            Some(s) => bytes.div_ceil(s.k.max(1) as u64).saturating_add(objects.saturating_mul(s.unit)),
            None => bytes,
        }
    }

    /// Does what is reserved put objects on our own disk?
    pub fn takes_space(&self, what: &Reservation) -> bool {
        match what {
            Reservation::Remote { .. } => !self.holds_nothing(),
            // What others lack takes nothing here.
            Reservation::Local { .. } => !self.missing.is_empty(),
        }
    }

    /// PG number of the pool this copy was last split or folded for; 0 when nothing is stored. A map
    /// that splits it further may only be given after [`Pg::split`].
    pub fn pg_num(&self) -> u32 {
        self.info.as_ref().map_or(0, |i| i.pg_num)
    }

    /// Epoch of the map for which it was split or folded last. Maps before it are not for this copy: the
    /// OSD goes on from an older one after a crash.
    pub fn shaped(&self) -> Epoch {
        self.shaped
    }

    /// Takes over what waits in `old`, a PG of the same name of which nothing is stored: it came too
    /// early for the split that makes this one.
    pub fn inherit(&mut self, old: Pg) {
        self.early.extend(old.early);
        self.ops.inherit(old.ops);
    }

    /// Do reads wait for a lease? The shell then ticks the PG when a lease was renewed.
    pub fn waits_for_lease(&self) -> bool {
        self.ops.waits_for_lease()
    }

    /// For what it wants a turn; `None` if for nothing (any more).
    pub fn turn_kind(&self) -> Option<TurnKind> {
        match &self.role {
            Role::Removing => Some(TurnKind::Removal),
            Role::Active(a) if a.recovery.wants_turn() => Some(TurnKind::Recovery),
            Role::Active(a) if a.trim.wants_turn() => Some(TurnKind::Trim),
            Role::Active(_) if self.scrub.wants_turn() => Some(TurnKind::Scrub),
            _ => None,
        }
    }

    /// The shell gives a turn.
    fn on_turn(&mut self, work: usize, piece: u64, cx: &mut Cx<'_>) {
        match self.turn_kind() {
            Some(TurnKind::Removal) => self.remove_more(cx),
            Some(TurnKind::Recovery) => {
                self.recover_more(work, piece, cx);
                // What wants one, too, was counted in: nobody else asks for it again.
                if self.scrub.wants_turn() || self.active().is_some_and(|a| a.trim.wants_turn()) {
                    cx.out.push(PgEffect::WantTurn);
                }
            }
            Some(TurnKind::Trim) => {
                self.trim_more(work, cx);
                if self.scrub.wants_turn() {
                    cx.out.push(PgEffect::WantTurn);
                }
            }
            Some(TurnKind::Scrub) => self.begin_chunk(cx),
            None => {}
        }
    }

    /// Does it matter to the PG that time passes?
    pub fn wants_tick(&self) -> bool {
        match &self.role {
            _ if self.broken => true,
            Role::Peering(_) | Role::Idle => true,
            Role::Active(a) => {
                let held = self.held.has_objects();
                held || self.ops.waits_for_lease()
                    || a.wants_tick()
                    || self.must_roll_forward()
                    || !self.watches.is_empty()
            }
            Role::Replica { .. } => !self.rotten.is_empty() || self.refused.is_some(),
            Role::Removing => self.remove_again_ms > 0,
        }
    }

    /// Takes an event, appends what must be done.
    pub fn handle(
        &mut self,
        now: Now,
        event: PgEvent,
        reader: &dyn ObjectReader,
        leases: &Leases,
        out: &mut Vec<PgEffect>,
    ) {
        let first = out.len();
        let shard = ShardReader { inner: reader, shard: self.me.shard };
        let reader = if self.me.shard >= 0 { &shard } else { reader };
        let cx = &mut Cx { now, reader, leases, out };
        self.ops.begin();
        match event {
            PgEvent::Map(view) => self.on_map(view, cx),
            PgEvent::Client(op) => self.on_client(op, cx),
            PgEvent::ConnClosed(conn) => self.on_conn_closed(conn, cx),
            PgEvent::Peer(from, msg) => self.on_peer(from, msg, cx),
            PgEvent::Renewed(osd) => self.on_renewed(osd, cx),
            PgEvent::Committed(token) => self.on_committed(token, cx),
            PgEvent::Unstored(token, stored) => self.on_unstored(token, &stored, cx),
            PgEvent::Ready(crate::ReadKey::Op(op)) => self.on_op_ready(op, None, cx),
            PgEvent::Ready(crate::ReadKey::Recovery(n) | crate::ReadKey::Shard(n)) => self.on_recovery_ready(n, cx),
            PgEvent::Fetched(op, fetched) => self.on_op_ready(op, Some(fetched), cx),
            PgEvent::CreateAnswer(answer) => self.on_create_answer(answer, cx),
            PgEvent::CreatedAck { winner } => self.on_created_ack(winner, cx),
            PgEvent::Reserved(what) => self.on_reserved(what, cx),
            PgEvent::Refused(what) => self.on_refused(what, cx),
            PgEvent::Force { backfill, on } => self.on_force(backfill, on, cx),
            PgEvent::Turn { work, piece } => self.on_turn(work, piece, cx),
            PgEvent::MarkLost { revert } => self.on_mark_lost(revert, cx),
            PgEvent::Scrub { deep, repair } => self.on_scrub(deep, repair, cx),
            PgEvent::ScrubMapped { seq, map } => self.on_scrub_mapped(seq, map, cx),
            PgEvent::Continue => self.go_on(cx),
            PgEvent::Tick => self.on_tick(cx),
        }
        if self.broken {
            self.mend(cx);
        }
        self.call_as_called(out.get_mut(first..).unwrap_or_default());
        // Questions that the shell may answer on the spot come last, so that the answer's
        // transactions follow those of this event.
        let question = |e: &PgEffect| {
            matches!(e, PgEffect::Prefetch(..) | PgEffect::Fetch(..) | PgEffect::Reserve(_) | PgEffect::WantTurn)
        };
        if out.get(first..).is_some_and(|new| new.iter().any(question)) {
            let (last, now): (Vec<_>, Vec<_>) = out.drain(first..).partition(question);
            out.extend(now);
            out.extend(last);
        }
        if self.ops.must_continue() || self.pump_later || !self.ripe.is_empty() {
            out.push(PgEffect::Continue);
        }
    }

    /// See `invariant!`.
    pub(crate) fn is_broken(&mut self, what: std::fmt::Arguments<'_>) {
        if cfg!(any(debug_assertions, feature = "plant-bugs")) {
            panic!("pg {}: {what}", self.id());
        }
        self.breaks(what);
    }

    /// What a release does then.
    fn breaks(&mut self, what: std::fmt::Arguments<'_>) {
        // Said once until it has its consequence, which comes at intervals.
        if !std::mem::replace(&mut self.broken, true) {
            tracing::error!(pg = %self.id, osd = %self.me, "cannot happen: {what}");
        }
    }

    /// For stories: as a release finds that what cannot happen has happened.
    #[cfg(feature = "plant-bugs")]
    pub fn break_as_in_a_release(&mut self) {
        self.breaks(format_args!("a story says so"));
    }

    /// What cannot happen has happened: what is in memory is given up for what peering finds, not too often.
    fn mend(&mut self, cx: &mut Cx<'_>) {
        if self.broken_ms > 0 && cx.now.mono_ms < self.broken_ms + self.cfg.retry_ms {
            return;
        }
        (self.broken, self.broken_ms) = (false, cx.now.mono_ms.max(1));
        match &self.role {
            Role::Peering(_) | Role::Active(_) => self.restart_peering(cx),
            // The primary hears that this member has no part any more, and peers anew.
            Role::Replica { .. } => {
                self.leave_role(cx);
                self.notify(cx);
            }
            Role::Idle | Role::Removing => {}
        }
    }

    pub(crate) fn seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }

    /// Epoch of the newest map, 0 before the first.
    pub(crate) fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(0, |v| v.epoch)
    }

    pub(crate) fn is_acting(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.acting.contains(&self.me))
    }

    /// Does the map want a copy here?
    pub(crate) fn is_member(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.acting.contains(&self.me) || v.up.contains(&self.me))
    }

    pub(crate) fn is_live(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.live)
    }

    /// Submits a transaction; `after` happens when it is durable.
    pub(crate) fn submit(&mut self, mut txn: Transaction, after: After, cx: &mut Cx<'_>) {
        localize(&mut txn, self.me.shard);
        let token = self.next_token;
        self.next_token += 1;
        self.after.push_back((token, after));
        cx.out.push(PgEffect::Submit(token, txn));
    }

    /// Does `after` when this token is durable, before what was to be done then.
    pub(crate) fn before(&mut self, token: Token, after: After) {
        let at = self.after.partition_point(|(t, _)| *t < token);
        self.after.insert(at, (token, after));
    }

    /// Does `after` when the next that is submitted is durable, before what is to be done then.
    pub(crate) fn before_next(&mut self, after: After) {
        self.after.push_back((self.next_token, after));
    }

    /// Does `after` when all that was submitted before is durable; at once if it is.
    pub(crate) fn when_durable(&mut self, after: After, cx: &mut Cx<'_>) {
        // The newest that was taken: a number may have gone with a transaction that the store refused.
        match self.after.back().map(|(token, _)| *token) {
            None => self.perform_after(after, cx),
            Some(token) => self.after.push_back((token, after)),
        }
    }

    /// Will this be done when something is durable that is not yet?
    pub(crate) fn will(&self, what: &After) -> bool {
        match what {
            After::Send(to, msg) => {
                self.after.iter().rev().any(|(_, a)| matches!(a, After::Send(t, m) if t == to && m == msg))
            }
            _ => false,
        }
    }

    /// The change that stores what every write changes, as it is in memory.
    pub(crate) fn head_op(&self) -> MetaOp {
        match &self.info {
            Some(info) => MetaOp::Set { key: self.head_key.clone(), value: to_vec(&info.head).into() },
            None => MetaOp::Remove { key: self.head_key.clone() },
        }
    }

    /// The same, where this is what it is encoded as.
    pub(crate) fn head_as(&self, value: Bytes) -> MetaOp {
        MetaOp::Set { key: self.head_key.clone(), value }
    }

    /// The changes that store everything but objects and log as it is in memory.
    pub(crate) fn record_ops(&mut self, out: &mut Vec<MetaOp>) {
        let key = self.record_key.clone();
        let readers = self.readers.iter().map(|(osd, last, _)| OldReader { osd: *osd, last: *last, left_ms: 0 });
        if let Some(info) = &mut self.info {
            info.readers = readers.collect();
        }
        out.push(match &self.info {
            Some(info) => {
                let record = Record {
                    info: info.clone(),
                    interval: self.interval.clone(),
                    past: self.past.clone(),
                    shaped: self.shaped,
                };
                MetaOp::Set { key, value: to_vec(&record).into() }
            }
            None => MetaOp::Remove { key },
        });
        out.push(self.head_op());
        self.missing_ops(out);
    }

    /// The changes that store the missing set as it is in memory.
    pub(crate) fn missing_ops(&mut self, out: &mut Vec<MetaOp>) {
        if planted!(self.cfg, MissingNotStored) {
            return;
        }
        self.missing.take_changes(self.id(), out);
    }

    /// Stores what is in memory.
    pub(crate) fn save(&mut self, after: After, cx: &mut Cx<'_>) {
        let mut txn = Transaction::default();
        self.record_ops(&mut txn.meta);
        self.submit(txn, after, cx);
    }

    /// Is there a copy that counts? One that is being deleted does not.
    pub(crate) fn has_copy(&self) -> bool {
        self.info.as_ref().is_some_and(|i| i.les > 0)
    }

    /// The info as others may see it.
    pub(crate) fn told_info(&self, cx: &Cx<'_>) -> Option<PgInfo> {
        let info = self.info.clone().filter(|_| self.has_copy())?;
        let all = planted!(self.cfg, MissingIsHollow);
        let hollow = self.missing.iter().any(|(_, i)| (i.withheld || all) && i.need.epoch >= info.les);
        Some(PgInfo { missing: self.missing.len() as u32, hollow, readers: self.told_readers(cx), ..info })
    }

    /// Until when an old primary may read: the worst, where that was forgotten.
    pub(crate) fn reads_until(&self, until: u64, cx: &Cx<'_>) -> u64 {
        if until == UNKNOWN_MS { cx.leases.forgotten_until() } else { until }
    }

    /// Who may still serve reads as the primary of an older interval, for others.
    pub(crate) fn told_readers(&self, cx: &Cx<'_>) -> Vec<OldReader> {
        let left =
            |until: u64| self.reads_until(until, cx).saturating_sub(cx.now.mono_ms).min(u64::from(u32::MAX)) as u32;
        let all =
            self.readers.iter().map(|(osd, last, until)| OldReader { osd: *osd, last: *last, left_ms: left(*until) });
        all.filter(|r| r.left_ms > 0).collect()
    }

    pub(crate) fn send(&self, to: Peer, body: CtlBody, cx: &mut Cx<'_>) {
        cx.out.push(PgEffect::Send(to, self.ctl(to, body)));
    }

    pub(crate) fn ctl(&self, to: Peer, body: CtlBody) -> PeerMsg {
        PeerMsg::Ctl(Box::new(PgCtl { pg: self.id, ends: self.ends(to), epoch: self.interval.since, body }))
    }

    /// The shards at the ends of a message to `to`.
    pub(crate) fn ends(&self, to: Peer) -> Ends {
        Ends { from: self.me.shard, to: to.shard }
    }

    // ---- maps ----

    fn on_map(&mut self, view: Arc<MapView>, cx: &mut Cx<'_>) {
        if view.epoch <= self.epoch() || view.epoch < self.shaped {
            return;
        }
        if let Some(pool) = &view.pool
            && self.info.as_ref().is_some_and(|i| !has_range(self.id, i.pg_num, pool.pg_num))
        {
            // Serving it would mix its objects with others'.
            tracing::error!(pg = %self.id, "map {} splits or merges the pg, which was not done first", view.epoch);
            return;
        }
        let old = self.view.replace(view.clone());
        if let (Some(before), Some(after)) = (old.as_ref().and_then(|o| o.pool.as_ref()), &view.pool) {
            self.note_purged(&before.snaps.removed, &after.snaps.removed);
        }
        let was_primary = self.interval.primary == self.me && old.is_some();
        let mut new = false;
        if self.interval.since == 0 {
            let since = if view.since > 0 { view.since } else { view.epoch };
            self.interval = Interval::of(self.id.seed, &view, since);
            self.guessed = true;
            new = true;
        } else if view.gap || !self.interval.continues(self.id.seed, &view) {
            self.close_interval(&view, old.as_deref());
            self.interval = Interval::of(self.id.seed, &view, view.epoch);
            self.guessed = view.gap;
            new = true;
            if self.info.is_some() {
                self.save(After::Nothing, cx);
            }
        }
        if view.primary == self.me && !was_primary {
            self.primary_since = self.interval.since;
        }
        let same_shape =
            old.as_ref().is_some_and(|o| o.pool.as_ref().map(|p| p.pg_num) == view.pool.as_ref().map(|p| p.pg_num));
        if new && (view.primary != self.me || !was_primary || view.gap || !same_shape) {
            // Clients see that, and connect again.
            self.watches.clear();
        }
        if new || (view.live && old.is_none_or(|o| !o.live)) {
            self.start_interval(cx);
        } else if view.live {
            self.map_advanced(cx);
        }
        if view.live {
            let (ripe, early): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.early).into_iter().partition(|(_, m)| m.since() <= view.epoch);
            (self.early, self.ripe) = (early, std::mem::take(&mut self.ripe).into_iter().chain(ripe).collect());
        }
        self.run_waiting(cx);
        // The map may shut out clients.
        self.give_up_copies(cx);
        self.watch_tick(cx);
    }

    /// Goes on after [`PgEffect::Continue`].
    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if let Some((from, msg)) = self.ripe.pop_front() {
            self.on_peer(from, msg, cx);
        } else if std::mem::take(&mut self.pump_later) {
            self.pump(cx);
        }
        self.run_pending(cx);
    }

    /// Writes down the interval that ends before `view`.
    fn close_interval(&mut self, view: &MapView, old: Option<&MapView>) {
        let Some(info) = &mut self.info else {
            self.past.clear();
            return;
        };
        if view.gap && view.trimmed {
            // The PG was clean in this epoch or later: what was before matters no more.
            info.lec = info.lec.max(view.epoch);
            self.past.clear();
            return;
        }
        let last = match old {
            Some(o) if view.gap => o.epoch,
            _ => view.epoch - 1,
        };
        let seen = old.filter(|_| !view.gap && !planted!(self.cfg, Foretold));
        let closed = self.interval.close(last, seen, info.lec);
        if closed.rw {
            match self.past.last_mut() {
                Some(p)
                    if planted!(self.cfg, LostForever) && p.acting == closed.acting && p.primary == closed.primary =>
                {
                    p.last = closed.last;
                }
                // Whoever must be heard for the later one is heard for the earlier one, too; so an
                // OSD that comes and goes adds no more than the sets it makes. The one that stays begins where the later one
                // begins: who was declared lost before, and came back to take part in it, is waited for.
                _ => {
                    self.past.retain(|p| p.acting != closed.acting || p.primary != closed.primary);
                    self.past.push(closed);
                }
            }
        }
        if view.gap && view.epoch > last + 1 {
            let (first, last) = (last + 1, view.epoch - 1);
            self.past.push(PastInterval { first, last, primary: Peer::NONE, rw: true, ..PastInterval::default() });
        }
        forget_before(&mut self.past, info.lec);
    }

    fn start_interval(&mut self, cx: &mut Cx<'_>) {
        self.interval_stamp = cx.now.wall;
        let Some(view) = self.view.clone() else { return };
        self.leave_role(cx);
        self.strays.clear();
        self.parked.clear();
        self.called.clear();
        if view.pool.is_none() {
            self.refuse_all_ops(cx);
            self.remove_pool_gone(cx);
        } else if !view.live {
            // Only follows.
        } else if view.primary == self.me {
            self.start_peering(cx);
        } else {
            self.notify(cx);
            self.resume_removal(cx);
            self.check_removed(cx);
        }
        cx.out.push(PgEffect::StateChanged);
    }

    /// A newer map of the same interval.
    fn map_advanced(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Peering(_) => self.peering_map_advanced(cx),
            Role::Active(_) => self.active_map_advanced(cx),
            _ => {}
        }
    }

    /// Stops whatever the role was doing; requests go back to waiting.
    pub(crate) fn leave_role(&mut self, cx: &mut Cx<'_>) {
        let role = std::mem::replace(&mut self.role, Role::Idle);
        if matches!(&role, Role::Active(a) if a.merge_told.is_some()) {
            self.take_back_merge(cx);
        }
        (self.pump_read, self.revert_read) = (None, None);
        self.repairs.clear();
        self.rotten.clear();
        self.pushes.clear();
        (self.reserved_for, self.refused) = (None, None);
        self.abort_scrub(cx);
        self.watches.leave_role();
        self.scrub.found = None;
        self.forced = [false; 2];
        for r in std::mem::take(&mut self.reservations) {
            cx.out.push(PgEffect::Unreserve(r));
        }
        if !planted!(self.cfg, UnblockForgotten) {
            self.unblock_all(cx);
        }
        self.requeue(role);
    }

    // ---- peers ----

    fn on_peer(&mut self, from: Peer, msg: PeerMsg, cx: &mut Cx<'_>) {
        let since = msg.since();
        // A map that does not show us up says nothing of this incarnation of ours: the one before
        // may have promised what we have forgotten.
        if since > self.epoch() || !self.is_live() {
            if self.early.len() < EARLY_MAX {
                self.early.push((from, msg));
            }
            cx.out.push(PgEffect::NeedMap(since.max(self.epoch() + 1)));
            return;
        }
        if self.view.as_ref().is_none_or(|v| v.pool.is_none()) {
            return;
        }
        if since < self.interval.since {
            if let PeerMsg::Ctl(c) = &msg
                && let CtlBody::Query { holders } = &c.body
            {
                self.on_early_query(from, since, holders, cx);
            }
            return;
        }
        if since > self.interval.since {
            self.called.insert(from, since);
        }
        match msg {
            PeerMsg::Write(w) => self.on_write(from, w, cx),
            PeerMsg::Txn(t) => self.on_txn(from, t, cx),
            PeerMsg::Ack(a) => self.on_ack(from, &a, cx),
            PeerMsg::Ctl(c) => self.on_ctl(from, *c, cx),
        }
    }

    /// A question by an earlier name than ours, of an interval that is over, or of ours by a name that we do not know (see `intervals`).
    fn on_early_query(&mut self, from: Peer, since: Epoch, holders: &[OsdId], cx: &mut Cx<'_>) {
        if self.info.is_none() && !self.is_member() {
            // Who has nothing, and no part in it, says so whichever it is.
            let left = holders.iter().map(|h| cx.leases.granted_left(*h, cx.now.mono_ms)).max().unwrap_or(0);
            let body = CtlBody::Info { info: None, past: Vec::new(), lease_left_ms: left as u32 };
            let answer = Box::new(PgCtl { pg: self.id, ends: self.ends(from), epoch: since, body });
            cx.out.push(PgEffect::Send(from, PeerMsg::Ctl(answer)));
            self.check_removed(cx);
        } else if self.guessed && self.view.as_ref().is_some_and(|v| v.primary == from) {
            // It may ask, when it hears this by our name, for other primaries: whoever reads by our leave.
            let left = cx.leases.granted_longest(cx.now.mono_ms);
            self.tell_info(from, left, cx);
        }
    }

    /// Calls the interval as each member does.
    fn call_as_called(&self, out: &mut [PgEffect]) {
        if self.called.is_empty() {
            return;
        }
        for e in out {
            if let PgEffect::Send(to, msg) = e
                && let Some(name) = self.called.get(to)
            {
                msg.raise_since(*name);
            }
        }
    }

    /// Keeps a peer's question until something is read.
    pub(crate) fn park(&mut self, from: Peer, ctl: PgCtl, what: Prefetch, cx: &mut Cx<'_>) {
        self.park_msg(from, PeerMsg::Ctl(Box::new(ctl)), what, cx);
    }

    /// Keeps what a peer sent until something is read.
    pub(crate) fn park_msg(&mut self, from: Peer, msg: PeerMsg, what: Prefetch, cx: &mut Cx<'_>) {
        if self.parked.values().any(|(f, m)| *f == from && *m == msg) {
            return; // Repeated: it has one answer.
        }
        let n = self.seq();
        // Only a rebuild asks for attributes.
        let of_client = matches!(&msg, PeerMsg::Ctl(c) if matches!(c.body, CtlBody::ReadShard { attrs: false, .. }));
        let key = if of_client { crate::ReadKey::Shard(n) } else { crate::ReadKey::Recovery(n) };
        self.parked.insert(n, (from, msg));
        cx.out.push(PgEffect::Prefetch(key, what));
    }

    fn on_recovery_ready(&mut self, n: u64, cx: &mut Cx<'_>) {
        if let Some((from, msg)) = self.parked.remove(&n) {
            self.on_peer(from, msg, cx);
        } else if self.pump_read == Some(n) {
            self.pump_read = None;
            if matches!(self.role, Role::Removing) {
                self.remove_more(cx);
            } else {
                self.pump(cx);
            }
        } else if self.revert_read == Some(n) {
            self.revert_read = None;
            self.on_mark_lost(true, cx);
        }
    }

    /// Own recovery waits until this is read.
    pub(crate) fn read_for_pump(&mut self, what: Prefetch, cx: &mut Cx<'_>) {
        let n = self.seq();
        self.pump_read = Some(n);
        cx.out.push(PgEffect::Prefetch(crate::ReadKey::Recovery(n), what));
    }

    /// Tells the primary that a copy is here.
    pub(crate) fn notify(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = &self.view else { return };
        let primary = view.primary;
        self.notified_ms = cx.now.mono_ms;
        if !primary.is_some() || primary == self.me {
            return;
        }
        if let Some(info) = self.told_info(cx) {
            // Like an answer, it tells only what is durable.
            let msg = self.ctl(primary, CtlBody::Notify { info, past: self.past.clone() });
            self.when_durable(After::Send(primary, msg), cx);
        }
    }

    // ---- the rest ----

    fn on_committed(&mut self, token: Token, cx: &mut Cx<'_>) {
        while let Some((_, after)) = self.after.pop_front_if(|(t, _)| *t <= token) {
            self.perform_after(after, cx);
        }
        self.advance(cx);
    }

    fn perform_after(&mut self, after: After, cx: &mut Cx<'_>) {
        match after {
            After::Write { since, version } => self.on_local_commit(since, version),
            After::Send(to, msg) => cx.out.push(PgEffect::Send(to, msg)),
            After::Pushed { since, to, seq } if since == self.interval.since => {
                self.pushes.remove(&seq);
                self.send(to, CtlBody::PushAck { seq }, cx);
            }
            After::Pushed { .. } => {}
            After::Step { since, step } if since == self.interval.since => self.on_step(step, cx),
            After::Step { .. } | After::Nothing => {}
            After::Remove => cx.out.push(PgEffect::WantTurn),
            After::Gone => self.check_removed(cx),
        }
    }

    fn on_conn_closed(&mut self, conn: ConnId, cx: &mut Cx<'_>) {
        self.held.closed(conn);
        self.watches.closed(conn, cx.now.mono_ms);
        if let Role::Active(a) = &mut self.role {
            a.inflight.iter_mut().for_each(|f| f.closed(conn));
        }
        for op in self.ops.drop_connection(conn) {
            self.op_gone(op);
            cx.out.push(PgEffect::Drop(op));
        }
        self.run_pending(cx);
    }

    fn on_tick(&mut self, cx: &mut Cx<'_>) {
        self.repeat_open(None, cx);
        match &self.role {
            Role::Peering(_) => self.peering_tick(cx),
            Role::Active(_) => {
                self.scrub_tick(cx);
                self.active_tick(cx);
            }
            Role::Idle if self.is_live() && cx.now.mono_ms >= self.notified_ms + self.cfg.retry_ms => {
                self.notify(cx);
                self.check_removed(cx);
            }
            Role::Removing if (1..=cx.now.mono_ms).contains(&self.remove_again_ms) => {
                self.remove_again_ms = 0;
                cx.out.push(PgEffect::WantTurn);
            }
            _ => {}
        }
        self.backoff_tick(cx);
        self.watch_tick(cx);
        self.run_pending(cx);
    }

    /// Says that nothing is left here: no copy, no duty, nobody waiting for a newer map.
    pub(crate) fn check_removed(&mut self, cx: &mut Cx<'_>) {
        if self.is_gone() {
            cx.out.push(PgEffect::Removed);
        }
    }

    /// True if nothing is left here: no copy, no duty, no message that waits for a newer map. What
    /// was so when [`PgEffect::Removed`] was said need not be so any more.
    pub fn is_gone(&self) -> bool {
        let idle = matches!(self.role, Role::Idle) && self.info.is_none() && !self.is_member();
        // Nor an answer that waits for something to be durable.
        idle && self.after.is_empty() && self.early.is_empty() && self.ripe.is_empty() && self.ops.is_empty()
    }

    /// First and after-last position of the PG's objects.
    pub(crate) fn range(&self) -> (HObject, HObject) {
        let in_map = self.view.as_ref().and_then(|v| v.pool.as_ref()).map(|p| p.pg_num);
        let pg_num = in_map.or(self.info.as_ref().map(|i| i.pg_num)).unwrap_or(1);
        (crate::exec::pg_start(self.id), crate::exec::pg_end(self.id, pg_num))
    }
}
