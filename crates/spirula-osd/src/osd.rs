//! The OSD's core: events in, effects performed.
//!
//! An event goes to the PG it concerns; what the PG wants done is done at once, in order:
//! transactions to the store, messages to links, reads to helper threads. Messages for one
//! peer are gathered and sent together at the end of a batch.
//!
//! The core reads no clock, opens no socket, and starts no thread: each event comes with the time
//! at which it is handled ([`Now`]), and what the core needs of its surroundings it asks of
//! [`Outside`]. The shell around it is in the binary (`spirula`, `cluster/osd_shell.rs`); the
//! simulator is another.
//!
//! **Time stands still while an event is handled.** The shell reads the clocks after it has taken
//! the event, so a read that is served under a lease is as of a moment at which its request had
//! come and the lease was held, however long the event takes. A lease that is given counts from
//! then, which is after its holder asked; a lease that is asked for counts from then, which is
//! before the question leaves. Waits for leases that others hold end later for it, never earlier.

use crate::access::{Rights, between_osds};
use crate::agenda::Agenda;
use crate::classes::ClassLists;
use crate::clog::ClusterLog;
use crate::commands::Bench;
use crate::copies::{Bounds, Copies};
use crate::follow::{MAP_KEY, MapRetry};
use crate::history::{History, Shown, Trail};
use crate::images::Images;
use crate::intake::Early;
use crate::life::Life;
use crate::links::ManagerLink;
use crate::maps::Maps;
use crate::outbox::Outbox;
use crate::outside::{Outside, Watch};
use crate::passed::Passed;
use crate::patience::Ran;
use crate::peers::{LEASE_MS, Peers};
use crate::perf::Perf;
use crate::reader::{BadPlaces, StoreReader};
use crate::reads::Reads;
use crate::report::Reporter;
use crate::requests::Requests;
use crate::sched::{RecoveryOptions, Scheduler};
use crate::scrub::Scrubs;
use crate::submit::Committing;
use crate::tell::Answer;
use crate::timers::Timers;
use crate::unread::{Owed, Unread};
use crate::waits::Waits;
use crate::words::Words;
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_maps::PgPool;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{MConfig, MLogAck, MMgrMap, MOsdBackoff, MOsdMap, MOsdOpReply, kind};
use spirula_messages::cluster::control::{
    OsdForce, OsdMarkMeDownAck, OsdReportAck, OsdScrub, OsdStop, PgCreateGrant, PgsCreatedAck,
};
use spirula_messages::cluster::images::ImageKey;
use spirula_messages::cluster::pg::{OsdPing, OsdPong, OsdRenewed, PgAcks, PgCtls, PgTxn};
use spirula_messages::cluster::write::PgWrite;
use spirula_messages::{Body, Message};
use spirula_pg::shard::store_pg;
use spirula_pg::{
    Backoffs, CreateAnswer, Leases, Now as PgNow, OpId, PeerMsg, Pg, PgConfig, PgEffect, PgEvent,
    ReadKey, Stored, Token, head_key, missing_prefix, parse_info_key,
};
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{Link, LinkId, MonLink, Mons, NetEvent, Peer};
use spirula_store::{Packed, Store, StoreError};
use spirula_types::{
    AddrVec, EntityType, Epoch, HObject, OsdId, Peer as Member, PgId, SpgId, Uuid, errno,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Between two attempts to reach monitor or manager, and two boot messages.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
/// Monotonic milliseconds start here, so that "one lease ago" is a time.
pub(crate) const MONO_BASE_MS: u64 = 1_000_000;

/// What an OSD is told at its start.
#[derive(Clone)]
pub struct OsdConfig {
    /// Its number.
    pub id: OsdId,
    /// Its cluster.
    pub fsid: Uuid,
    /// Its store's identity.
    pub uuid: Uuid,
    /// Monitors.
    pub mons: Mons,
    /// Where clients, monitors and the manager reach it.
    pub public: AddrVec,
    /// Where other OSDs reach it; may be the same.
    pub cluster: AddrVec,
    /// Name of this machine.
    pub host: String,
    /// Place in the CRUSH tree, by type of bucket.
    pub location: BTreeMap<String, String>,
    /// Class of its device, or empty.
    pub device_class: String,
    /// The OSDs that begin with this one, in one process, of which no earlier incarnation can be
    /// alive: if the map knows no others, nobody holds an old read lease, and none has to be waited
    /// for. Empty if others may be alive.
    pub started_together: BTreeSet<OsdId>,
    /// Facts for `osd metadata`.
    pub metadata: BTreeMap<String, String>,
    /// Its options.
    pub settings: spirula_settings::Settings,
    /// Bounds of its PGs.
    pub pg: PgConfig,
    /// Whose tickets are renewed over the link to the monitor.
    pub auth: DaemonAuth,
}

/// What happens to an OSD.
#[derive(Debug)]
pub enum OsdEvent {
    /// Network.
    Net(NetEvent),
    /// Transactions up to this one are durable.
    Durable(u64),
    /// The store failed for good.
    StoreFailed(String),
    /// A helper thread has read what was wanted.
    Fetched(SpgId, ReadKey, Vec<Piece>),
    /// A helper thread has compressed what a PG's transaction of this token brings.
    Packed(SpgId, Token, Packed),
    /// A scrub's map goes on: number of the map, and the piece of data that was read.
    ScrubStep(u64, Option<Result<Bytes, spirula_store::StoreError>>),
    /// The store has written what `tell compact` asked for; over which link that came, with which
    /// number, and when.
    Compacted {
        /// The link.
        link: LinkId,
        /// The command's number.
        tid: u64,
        /// When it began.
        begun: Duration,
    },
    /// It is to stop cleanly.
    Stop,
}

/// A piece of data read by a helper thread.
#[derive(Debug)]
pub struct Piece {
    /// The object.
    pub object: HObject,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub length: u64,
    /// The bytes, with their crc32c if it is known.
    pub data: Result<(Bytes, Option<u32>), spirula_pg::exec::ReadError>,
    /// How often the object had been changed when the read was planned (`reads`).
    pub(crate) of: u64,
}

impl From<NetEvent> for OsdEvent {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

/// The present, on both clocks: stamps show wall time, waits and leases use the monotonic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Time since an arbitrary start; never goes back.
    pub mono: Duration,
    /// Time of day.
    pub wall: UTime,
}

impl Now {
    /// Monotonic milliseconds as the PGs and leases count them.
    pub(crate) fn ms(&self) -> u64 {
        OsdCore::pg_time(self.mono)
    }

    /// The same for the PGs.
    pub(crate) fn of_pg(&self) -> PgNow {
        PgNow { mono_ms: self.ms(), wall: self.wall }
    }
}

pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) peer: Peer,
    /// Its addresses, for its requests.
    pub(crate) addrs: Arc<AddrVec>,
    pub(crate) rights: Rights,
    /// What it was told to hold back.
    pub(crate) backoffs: Backoffs,
    /// What its open requests ask for.
    pub(crate) owed: Owed,
}

/// A client's request on its way.
pub(crate) struct Pending {
    pub(crate) pg: PgId,
    pub(crate) link: LinkId,
    pub(crate) tid: u64,
    pub(crate) begun: Duration,
    /// In which phases it was since.
    pub(crate) trail: Trail,
    pub(crate) write: bool,
    pub(crate) bytes: u64,
    /// Bytes that its answer may take.
    pub(crate) answer: u64,
    /// Is something read for it? It waits in its PG else.
    pub(crate) reading: bool,
    /// Its object, its first op, and how many ops it has.
    pub(crate) what: (Bytes, Option<OsdOp>, usize),
    /// The block image that it is of, if such are counted.
    pub(crate) image: Option<Box<ImageKey>>,
}

/// A request as operators see it.
pub(crate) fn shown(peer: &Peer, tid: u64, description: String) -> Shown {
    Shown { description, client: peer.name().to_string(), addr: peer.addr().to_string(), tid }
}

/// One OSD.
pub struct OsdCore {
    pub(crate) cfg: OsdConfig,
    /// When the event that is being handled came.
    pub(crate) now: Now,
    pub(crate) outside: Arc<dyn Outside>,
    /// Ourselves, as clients, monitor and manager see us.
    pub(crate) me: Peer,
    /// Ourselves, as other OSDs see us.
    pub(crate) me_cluster: Peer,
    pub(crate) store: Option<Store>,
    pub(crate) reads: Reads,
    pub(crate) bad: RefCell<BadPlaces>,
    pub(crate) pgs: BTreeMap<SpgId, Pg>,
    pub(crate) pg_cfg: Arc<PgConfig>,
    pub(crate) maps: Maps,
    pub(crate) leases: Leases,
    /// Peers whose stores have no room, as they say.
    pub(crate) full_peers: BTreeSet<OsdId>,
    pub(crate) life: Life,
    pub(crate) mon: MonLink,
    pub(crate) map_retry: MapRetry,
    pub(crate) mgr: ManagerLink,
    pub(crate) peers: Peers,
    pub(crate) sessions: BTreeMap<LinkId, Session>,
    pub(crate) requests: Requests,
    pub(crate) early: Early,
    pub(crate) unread: Unread,
    pub(crate) committing: Committing,
    pub(crate) agenda: Agenda,
    pub(crate) outbox: Outbox,
    pub(crate) words: Words,
    pub(crate) sched: Scheduler,
    /// Which object classes clients may call.
    pub(crate) classes: ClassLists,
    pub(crate) timers: Timers,
    /// When the event loop ran.
    pub(crate) ran: Ran,
    pub(crate) reporter: Reporter,
    pub(crate) perf: Perf,
    pub(crate) images: Images,
    pub(crate) bench: Option<Bench>,
    pub(crate) history: History,
    pub(crate) passed: Passed,
    pub(crate) clog: ClusterLog,
    pub(crate) scrubs: Scrubs,
    pub(crate) copies: Copies,
    pub(crate) waits: Waits,
}

impl OsdCore {
    /// Puts an OSD together on an open store. From `now` on it is to be told what happens.
    ///
    /// # Errors
    /// When a PG's record in the store is damaged.
    pub fn new(
        cfg: OsdConfig,
        store: Store,
        outside: Arc<dyn Outside>,
        now: Now,
    ) -> Result<Self, String> {
        let me =
            Peer { addrs: cfg.public.clone(), ..Peer::new(EntityType::Osd, &cfg.id.to_string()) };
        let me_cluster = Peer { addrs: cfg.cluster.clone(), ..me.clone() };
        let pg_cfg = Arc::new(cfg.pg.clone());
        let mut pgs = BTreeMap::new();
        let records = store.meta_range(b"pg.").map_err(|e| e.to_string())?;
        for (key, value) in records {
            let Some(id) = parse_info_key(&key) else { continue };
            let stored = stored(&store, id, value).map_err(|e| e.to_string())?;
            let pg = Pg::load(id, cfg.id, pg_cfg.clone(), &stored)
                .map_err(|e| format!("record of pg {id}: {e}"))?;
            pgs.insert(id, pg);
        }
        let maps = match store.meta(MAP_KEY).map_err(|e| e.to_string())? {
            Some(bytes) => Maps::restore(bytes).map_err(|e| e.to_string())?,
            None if pgs.is_empty() => Maps::default(),
            None => return Err("the store holds PGs but no OSD map".to_owned()),
        };
        let copied = Bounds::new(&pg_cfg.limits, outside.pool().budget());
        let (to_monitor, as_me) = (outside.clone(), me.clone());
        let connect =
            move |to: &AddrVec| to_monitor.connect(&as_me, to, EntityType::Mon, Watch::Usual);
        let mut mon =
            MonLink::over(cfg.mons.clone(), &cfg.host, Box::new(connect), cfg.auth.clone());
        ["osdmap", "mgrmap", "monmap", "config"]
            .into_iter()
            .for_each(|what| mon.set_start(what, 0));
        let mut osd = Self {
            now,
            outside,
            me,
            me_cluster,
            store: Some(store),
            reads: Reads::default(),
            bad: RefCell::default(),
            pgs,
            pg_cfg,
            maps,
            leases: Leases::new(LEASE_MS, now.ms()),
            full_peers: BTreeSet::new(),
            life: Life::default(),
            mon,
            map_retry: MapRetry::default(),
            mgr: ManagerLink::default(),
            peers: Peers::default(),
            sessions: BTreeMap::new(),
            requests: Requests::default(),
            early: Early::default(),
            unread: Unread::default(),
            committing: Committing::default(),
            agenda: Agenda::default(),
            outbox: Outbox::default(),
            words: Words::default(),
            sched: Scheduler::new(RecoveryOptions::of(&cfg.settings, &cfg.device_class)),
            classes: ClassLists::of(&cfg.settings),
            timers: Timers::default(),
            ran: Ran::default(),
            reporter: Reporter::default(),
            perf: Perf::default(),
            images: Images::default(),
            bench: None,
            history: History::default(),
            passed: Passed::default(),
            clog: ClusterLog::default(),
            copies: Copies::new(copied),
            waits: Waits::default(),
            scrubs: Scrubs::default(),
            cfg,
        };
        // The PGs go on from the map they stopped at, as spectators until a map shows us up.
        osd.show_map();
        Ok(osd)
    }

    /// Where clients reach it.
    pub fn addrs(&self) -> &AddrVec {
        &self.me.addrs
    }

    /// Its PGs.
    pub fn pgs(&self) -> impl Iterator<Item = &Pg> {
        self.pgs.values()
    }

    /// A monotonic time in milliseconds as its PGs and leases count them.
    pub fn pg_time(monotonic: Duration) -> u64 {
        MONO_BASE_MS + monotonic.as_millis() as u64
    }

    /// The leases that it gave and holds.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Why it stopped by itself, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.life.failure()
    }

    /// Epoch of its OSD map.
    pub fn epoch(&self) -> Epoch {
        self.maps.epoch()
    }

    /// Lets a store without threads do a piece of its work; false if there is none.
    pub fn step_store(&mut self) -> bool {
        self.store.as_mut().is_some_and(Store::step)
    }

    // ---- messages ----

    /// May this link say that? What only monitor or manager decide is taken only over the links
    /// that we opened to them.
    fn may_send(&self, id: LinkId, kind: u16) -> bool {
        let of_mgr = || self.mgr.is(id);
        match kind {
            PgCreateGrant::KIND | PgsCreatedAck::KIND | OsdMarkMeDownAck::KIND | OsdStop::KIND => {
                self.mon.is(id)
            }
            kind::OSD_MAP | kind::MGR_MAP | kind::CONFIG | kind::LOG_ACK => self.mon.is(id),
            // Our link to the monitor has taken its own.
            kind::MON_MAP | kind::MON_GET_VERSION_REPLY | kind::AUTH_REPLY => false,
            OsdReportAck::KIND | OsdScrub::KIND | OsdForce::KIND => of_mgr(),
            // Over links we opened to other OSDs come their answers.
            _ => self.sessions.get(&id).is_none_or(|s| s.rights.may_send(&s.peer, kind)),
        }
    }

    pub(crate) fn message(&mut self, id: LinkId, m: Message) {
        if self.mon.is(id) {
            let news = self.mon.message_at(self.now.mono, m);
            return self.mon_news(id, news);
        }
        self.take(id, m);
    }

    /// Acts on a message that is no matter of the link alone.
    pub(crate) fn take(&mut self, id: LinkId, m: Message) {
        if m.kind == kind::OSD_MAP && self.peers.by_link(id).is_some() {
            // What an OSD that we ask like a client adds to its answers; the monitor sends us all
            // of them.
            return;
        }
        if !self.may_send(id, m.kind) {
            if m.kind == kind::COMMAND {
                self.answer_command(
                    id,
                    m.tid,
                    Answer::fail(errno::EACCES, "access denied: 'osd' caps must allow *"),
                );
                return;
            }
            tracing::warn!(
                "osd.{}: message type {} from somebody who may not send it, ignored",
                self.cfg.id,
                m.kind
            );
            return;
        }
        let result = match m.kind {
            kind::OSD_OP if self.unread.keep_behind(id, || Self::answer_asked(&m), &m) => return,
            kind::OSD_OP => return self.client_op(id, m),
            own if between_osds(own) => self.peer_message(id, &m),
            kind::PING => Ok(()),
            kind::COMMAND => self.command(id, &m),
            kind::OSD_MAP => MOsdMap::from_message(&m).map(|m| self.osd_map(m)),
            kind::MGR_MAP => MMgrMap::from_message(&m).map(|m| self.mgr_map(&m)),
            kind::CONFIG => {
                MConfig::from_message(&m).map(|c| self.cfg.settings.set_central(&c.config))
            }
            // It says that what came before it was sent before its sender knew.
            kind::OSD_BACKOFF
                if self.unread.keep_behind(id, || 0, &m) || self.early.keep_behind(id, &m) =>
            {
                Ok(())
            }
            kind::OSD_BACKOFF => MOsdBackoff::from_message(&m).map(|b| self.backoff_acked(id, &b)),
            kind::OSD_OP_REPLY => {
                MOsdOpReply::from_message(&m).map(|r| self.source_reply(id, m.tid, &r))
            }
            kind::LOG_ACK => MLogAck::from_message(&m).map(|a| self.clog.acked(a.last)),
            PgCreateGrant::KIND => PgCreateGrant::from_message(&m).map(|g| self.granted(g)),
            PgsCreatedAck::KIND => PgsCreatedAck::from_message(&m).map(|a| self.created_ack(&a)),
            OsdMarkMeDownAck::KIND => {
                OsdMarkMeDownAck::from_message(&m).map(|_| self.marked_down())
            }
            OsdStop::KIND => OsdStop::from_message(&m).map(|s| {
                if s.osd == self.cfg.id {
                    self.stop();
                }
            }),
            OsdReportAck::KIND => OsdReportAck::from_message(&m).map(|a| {
                self.images.count_for(self.now.mono, a.count_images_ms.0);
                self.reporter.acked(&a);
            }),
            OsdScrub::KIND => OsdScrub::from_message(&m).map(|o| self.scrub_ordered(o)),
            OsdForce::KIND => OsdForce::from_message(&m).map(|o| self.forced(&o)),
            other => {
                tracing::debug!(
                    "osd.{}: message type {other} is not for an OSD, ignored",
                    self.cfg.id
                );
                Ok(())
            }
        };
        if let Err(e) = result {
            // A malformed body: whoever sends such things is not served further.
            tracing::warn!("osd.{}: {e}; closing the connection", self.cfg.id);
            if let Some(s) = self.sessions.get(&id) {
                s.link.close();
            }
        }
    }

    pub(crate) fn peer_message(
        &mut self,
        id: LinkId,
        m: &Message,
    ) -> Result<(), spirula_messages::MessageError> {
        // Peers talk to us over links they opened; answers to pings come over ours.
        let from = match (self.peers.by_link(id), self.sessions.get(&id)) {
            (Some(osd), _) => osd,
            (None, Some(s)) if s.peer.kind == EntityType::Osd => s.peer.name().num as OsdId,
            _ => {
                tracing::warn!(
                    "osd.{}: a message between OSDs from somebody who is none",
                    self.cfg.id
                );
                return Ok(());
            }
        };
        match m.kind {
            PgWrite::KIND => {
                let w = PgWrite::from_message(m)?;
                self.perf.subop_writes += 1;
                self.peer_event(from, PeerMsg::Write(Arc::new(w)));
            }
            PgTxn::KIND => {
                let t = PgTxn::from_message(m)?;
                self.perf.subop_writes += 1;
                self.peer_event(from, PeerMsg::Txn(t));
            }
            PgAcks::KIND => {
                for a in PgAcks::from_message(m)?.0 {
                    self.peer_event(from, PeerMsg::Ack(a));
                }
            }
            PgCtls::KIND => {
                for c in PgCtls::from_message(m)?.0 {
                    self.peer_event(from, PeerMsg::Ctl(Box::new(c)));
                }
            }
            OsdPing::KIND => {
                let p = OsdPing::from_message(m)?;
                self.pinged(id, from, &p);
            }
            OsdRenewed::KIND => {
                OsdRenewed::from_message(m)?;
                self.tell_renewed(from);
            }
            _ => {
                let p = OsdPong::from_message(m)?;
                self.ponged(id, from, &p);
            }
        }
        Ok(())
    }

    pub(crate) fn peer_event(&mut self, from: OsdId, msg: PeerMsg) {
        self.feed_pg(msg.to(), PgEvent::Peer(msg.from(from), msg));
    }

    /// A PG we hold nothing of: it answers the event that follows so, and goes again.
    fn ensure_pg(&mut self, id: SpgId) {
        if !self.pgs.contains_key(&id) {
            let mut new = Pg::new(id, self.cfg.id, self.pg_cfg.clone());
            if self.maps.epoch() > 0 {
                let view = Arc::new(self.view(id.pg));
                let (store, bad) = (&self.store, (&self.bad, self.waits.any_for_room()));
                feed(
                    &mut new,
                    PgEvent::Map(view),
                    store,
                    &[],
                    bad,
                    (&self.leases, self.now.of_pg()),
                    self.agenda.fresh(),
                );
                self.agenda.note(id);
            }
            self.pgs.insert(id, new);
        }
    }

    // ---- PG creation ----

    pub(crate) fn granted(&mut self, g: PgCreateGrant) {
        for (pg, since) in g.granted {
            let creation = g.creations.get(&pg).copied().unwrap_or(0);
            self.create_answer(pg, CreateAnswer::Granted { since, creation });
        }
        for (pg, winner) in g.refused {
            let winner = (winner > 0).then_some(winner);
            self.create_answer(pg, CreateAnswer::Exists { winner });
        }
    }

    /// Tells it those that asked about this PG: their own, or the one they stem from.
    fn create_answer(&mut self, pg: PgId, answer: CreateAnswer) {
        for asker in self.words.askers(pg) {
            self.feed_pg(asker, PgEvent::CreateAnswer(answer));
        }
    }

    pub(crate) fn created_ack(&mut self, a: &PgsCreatedAck) {
        for (pg, winner) in &a.pgids {
            let winner = (*winner > 0).then_some(*winner);
            self.feed_led(*pg, PgEvent::CreatedAck { winner });
        }
    }

    // ---- PGs ----

    /// The PG here that leads `pg`.
    pub(crate) fn led(&self, pg: PgId) -> Option<SpgId> {
        let shards = SpgId::new(pg, i8::MIN)..=SpgId::new(pg, i8::MAX);
        let mut here = self.pgs.range(shards);
        here.clone().find(|(_, p)| p.is_primary()).or_else(|| here.next()).map(|(id, _)| *id)
    }

    /// Feeds the PG here that leads `pg`.
    fn feed_led(&mut self, pg: PgId, event: PgEvent) {
        if let Some(id) = self.led(pg) {
            self.feed_pg(id, event);
        }
    }

    pub(crate) fn feed_pg(&mut self, id: SpgId, event: PgEvent) {
        self.answer_pg(id, event);
        self.perform();
    }

    /// Performs what the PGs want, until nothing is left.
    pub(crate) fn perform(&mut self) {
        loop {
            while let Some((pg, effect)) = self.agenda.next_wish() {
                self.effect(pg, effect);
            }
            if let Some((id, event)) = self.agenda.next_event() {
                self.tell_pg(id, event);
            } else if let Some((from, msg)) = self.agenda.next_mail() {
                self.answer_pg(msg.to(), PgEvent::Peer(from, msg));
            } else if let Some((pg, event)) = self.next_work() {
                self.answer_pg(pg, event);
            } else {
                return;
            }
        }
    }

    /// An event for a PG, which may be the answer to one of its effects. It is told when all
    /// effects there are have been performed: a PG counts on seeing what it submitted, and on its
    /// messages leaving in the order of its wishes.
    pub(crate) fn answer_pg(&mut self, id: SpgId, event: PgEvent) {
        if self.pg_cfg.answers_overtake() {
            let behind = self.agenda.take_wishes();
            self.tell_pg(id, event);
            self.agenda.put_behind(behind);
        } else {
            self.agenda.tell(id, [event]);
        }
    }

    fn tell_pg(&mut self, id: SpgId, event: PgEvent) {
        let Some(event) = self.keep_for_later(id, event) else { return };
        self.tell_now(id, event);
    }

    /// The same of a PG that does not wait for room.
    pub(crate) fn tell_now(&mut self, id: SpgId, event: PgEvent) {
        if let PgEvent::Peer(..) = event {
            self.ensure_pg(id);
        }
        let fetched = self.fetched_for(id, &event);
        let Some(pg) = self.pgs.get_mut(&id) else { return self.fetched_seen(id, fetched, &[]) };
        let bad = (&self.bad, self.waits.any_for_room());
        feed(
            pg,
            event,
            &self.store,
            &fetched,
            bad,
            (&self.leases, self.now.of_pg()),
            self.agenda.fresh(),
        );
        if !fetched.is_empty() {
            let wishes = std::mem::take(self.agenda.fresh());
            self.fetched_seen(id, fetched, &wishes);
            *self.agenda.fresh() = wishes;
        }
        self.agenda.note(id);
    }

    pub(crate) fn effect(&mut self, id: SpgId, effect: PgEffect) {
        let Some(effect) = self.waits.wish(id, effect) else { return };
        if let PgEffect::Prefetch(ReadKey::Op(op), _) = effect {
            self.reads_for(op, true);
        }
        match effect {
            PgEffect::Submit(token, txn) => self.submit(id, token, txn),
            PgEffect::Send(to, msg) if to.osd == self.cfg.id => {
                self.agenda.mail(Member::new(self.cfg.id, id.shard), msg);
            }
            PgEffect::Send(to, msg) => self.outbox.send(to.osd, msg, &self.peers),
            PgEffect::Reply(op, reply) => self.reply(op, *reply),
            PgEffect::Phase(op, phase) => {
                if let Some(p) = self.requests.get_mut(op) {
                    p.trail.note(phase, self.now.mono);
                }
            }
            PgEffect::Drop(op) if self.own_source_reply(op, None) => self.reads_gone(id, op),
            PgEffect::Drop(op) => self.drop_op(id, op),
            PgEffect::Backoff { op, begin, end } => self.back_off(id, op, &begin, &end),
            PgEffect::Unblock(object) => self.unblock(id, object.as_ref()),
            PgEffect::Prefetch(key, what) if self.read_must_wait(key) => {
                self.reads.hold(id, key, what)
            }
            PgEffect::Prefetch(key, what) => self.prefetch(id, key, &what),
            PgEffect::Fetch(op, source) => self.fetch(id, op, source),
            PgEffect::ShareMap(conn, epoch) => {
                if let (Some(map), Some(s)) = (self.maps.since(epoch), self.sessions.get(&conn)) {
                    s.link.send(map.into_message(0));
                }
            }
            PgEffect::NeedMap(_) => {}
            PgEffect::AskCreate { pg, epoch } => self.words.ask(id, pg, epoch),
            PgEffect::Created { pg, epoch } => self.words.created(pg, epoch),
            PgEffect::Reserve(what) => self.reserve(id, what),
            PgEffect::Unreserve(what) => self.unreserve(id, what),
            PgEffect::WantTurn => self.want_turn(id),
            PgEffect::Recovered { objects, bytes } => self.sched.recovered(objects, bytes),
            PgEffect::ScrubScan { seq, from, to, deep } => self.scrub_scan(id, seq, from, to, deep),
            PgEffect::ScrubEnded { done, unread } => self.scrub_ended(id, done, unread),
            PgEffect::Repaired => self.perf.repaired += 1,
            PgEffect::Log { level, text } => self.say(level, text),
            PgEffect::Tell(conn, m) => self.tell_client(conn, *m),
            PgEffect::Alive(epoch) => self.words.alive(epoch),
            PgEffect::Mergeable(word) => self.words.merge(id.pg, word),
            PgEffect::WantActing(want) => self.words.want_acting(id.pg, want),
            PgEffect::StateChanged => {
                let state = self.pgs.get(&id).map(|p| p.state().0);
                if let Some(pg) = self.pgs.get(&id) {
                    let stand = state.filter(|_| pg.is_primary());
                    self.passed.note(id, stand, self.maps.epoch(), self.now.wall);
                }
                self.reporter.pg_changed(id, state.unwrap_or_default());
            }
            PgEffect::Continue => self.answer_pg(id, PgEvent::Continue),
            PgEffect::WakeAt(at) => self.timers.wake_at(at, id),
            PgEffect::Removed => {
                let wanted = self.maps.ours(self.cfg.id).any(|p| p == id);
                if !wanted && self.pgs.get(&id).is_some_and(Pg::is_gone) {
                    self.pgs.remove(&id);
                    self.passed.forget(id);
                    self.words.forget(id);
                }
                self.reporter.changed();
            }
        }
    }

    /// A request is forgotten without an answer.
    pub(crate) fn drop_op(&mut self, id: SpgId, op: OpId) {
        self.reads_gone(id, op);
        self.want_no_copy(op);
        if let Some(p) = self.requests.end(op) {
            self.owed_no_more(&p);
            if let Some(s) = self.sessions.get(&p.link) {
                s.link.request_done();
            }
        }
    }

    pub(crate) fn reply(&mut self, op: OpId, reply: MOsdOpReply) {
        if self.own_source_reply(op, Some(&reply)) {
            return;
        }
        // It may be answered before the object that it wanted is there: its client was shut out.
        self.want_no_copy(op);
        let Some(mut p) = self.requests.end(op) else { return };
        self.owed_no_more(&p);
        let took = self.now.mono.saturating_sub(p.begun);
        let Some(s) = self.sessions.get(&p.link) else { return };
        // What was read from the disk for one op alone is a payload of the pool already.
        let mut filled = reply.ops.iter().filter(|r| !r.op.indata.is_empty()).map(|r| r.op.op);
        let answers_from_heap = !matches!(
            (filled.next(), filled.next()),
            (Some(op::READ | op::SYNC_READ), None) | (None, _)
        );
        let crc = reply.data_crc();
        let mut m = reply.into_message(p.tid);
        if answers_from_heap {
            m.data = self.outside.pool().count(m.data);
        }
        self.history.note(self.now.mono, took, std::mem::take(&mut p.trail), || {
            let what = if p.write { "write" } else { "read" };
            let bytes = p.bytes.max(m.data.len() as u64);
            shown(
                &s.peer,
                p.tid,
                format!("osd_op({}:{} {} {what} {bytes} bytes)", s.peer.name(), p.tid, p.pg),
            )
        });
        self.perf.ops += 1;
        self.perf.latency.add(took);
        if let Some(image) = p.image.take() {
            self.perf.image_ops += 1;
            self.images.count(
                self.now.mono,
                *image,
                p.write,
                if p.write { p.bytes } else { m.data.len() as u64 },
                took,
            );
        }
        self.sched.pacer.answered(self.now.mono, took);
        if p.write {
            self.perf.writes += 1;
            self.perf.in_bytes += p.bytes;
            self.perf.write_latency.add(took);
            let quota = |p: &PgPool| p.quota_max_bytes > 0 || p.quota_max_objects > 0;
            if self.maps.map().and_then(|m| m.pool(p.pg.pool)).is_some_and(quota) {
                self.reporter.towards_quota();
            }
        } else {
            self.perf.reads += 1;
            self.perf.out_bytes += m.data.len() as u64;
            self.perf.read_latency.add(took);
        }
        s.link.send_with_crc(m, crc);
        s.link.request_done();
    }

    // ---- gathering ----

    /// Sends what was gathered.
    fn flush_all(&mut self) {
        self.outbox.flush(&self.peers);
        self.flush_log();
        let words = self.words.take(self.cfg.id, self.maps.epoch());
        words.into_iter().for_each(|m| self.mon.forward(m));
    }
}

impl OsdCore {
    /// Handles one event, at `now`. Does not wait for anything but the store's memory.
    pub fn handle(&mut self, now: Now, event: OsdEvent) {
        self.now = now;
        if self.life.is_over() {
            return;
        }
        match event {
            OsdEvent::Net(NetEvent::Message(id, m)) => self.message(id, m),
            // Monitors and managers have such a limit.
            OsdEvent::Net(NetEvent::TooLarge(..)) => {}
            OsdEvent::Net(NetEvent::Opened { link, peer, outgoing }) => {
                self.opened(link, peer, outgoing)
            }
            OsdEvent::Net(NetEvent::Resumed(id)) => self.peer_opened(id, false),
            OsdEvent::Net(NetEvent::Renewed(id)) => self.peer_opened(id, true),
            OsdEvent::Net(NetEvent::Refused(id, ended)) => self.peer_refused(id, &ended),
            OsdEvent::Net(NetEvent::Closed(id, ended)) => self.closed(id, &ended),
            OsdEvent::Net(NetEvent::Taken(id)) => self.unread.look_at(id),
            OsdEvent::Durable(seq) => self.durable(seq),
            OsdEvent::StoreFailed(why) => self.fail(&why),
            OsdEvent::Fetched(pg, key, pieces) => self.fetch_done(pg, key, pieces),
            OsdEvent::Packed(pg, token, packed) => self.packed(pg, token, &packed),
            OsdEvent::ScrubStep(job, data) => self.scrub_step(job, data),
            OsdEvent::Compacted { link, tid, begun } => self.compacted(link, tid, begun),
            OsdEvent::Stop => self.stop(),
        }
    }

    /// Sends what was gathered. To be called after some events, before their sender is waited for.
    pub fn end_of_batch(&mut self, now: Now) {
        self.now = now;
        if !self.life.is_over() {
            self.release_reads();
            self.release_unread();
            self.flush_all();
            self.report(now.mono);
        }
    }

    /// Time has passed: to be called at [`OsdCore::deadline`].
    pub fn tick(&mut self, now: Now) {
        self.now = now;
        let now = now.mono;
        if self.life.is_over() {
            return;
        }
        if self.life.has_waited_enough(now) {
            tracing::warn!(
                "osd.{}: the monitor does not answer; stopping all the same",
                self.cfg.id
            );
            self.end();
            return;
        }
        self.note_run(now);
        if now >= self.peers.next_ping() {
            self.ping(now);
        }
        self.schedule(now);
        let now_ms = self.now.ms();
        while let Some(due) = self.timers.woken(now_ms) {
            for pg in due {
                self.feed_pg(pg, PgEvent::Tick);
            }
        }
        if self.timers.pgs_are_due(now) {
            let waiting: Vec<SpgId> =
                self.pgs.iter().filter(|(_, p)| p.wants_tick()).map(|(id, _)| *id).collect();
            for pg in waiting {
                self.feed_pg(pg, PgEvent::Tick);
            }
        }
        if self.timers.housekeeping_is_due(now) {
            self.keep_links(now);
            self.keep_copies(now);
            self.keep_maps(now);
            self.follow_options();
            self.try_again(now);
            self.refuse_when_full();
            self.close_stuck(now);
            self.start_scrub(now);
            self.report_silent(now);
        }
    }

    /// When [`OsdCore::tick`] wants to be called, as of the monotonic time `now`.
    pub fn deadline(&self, now: Duration) -> Duration {
        let mut at = self.timers.next().min(self.peers.next_ping());
        if let Some(turn) = self.sched.next(now) {
            at = at.min(turn);
        }
        if self.reads.any_held() {
            at = at.min(now + Duration::from_millis(1));
        }
        if self.mgr.open().is_some()
            && let Some(due) = self.reporter.next()
        {
            at = at.min(due);
        }
        at
    }

    /// It has stopped, and does nothing any more.
    pub fn finished(&self) -> bool {
        self.life.is_over()
    }
}

/// What the store holds of a PG, with its `record`.
pub(crate) fn stored(store: &Store, id: SpgId, record: Bytes) -> Result<Stored, StoreError> {
    let log = store.log_entries(store_pg(id))?;
    Ok(Stored {
        record,
        head: store.meta(&head_key(id))?.unwrap_or_default(),
        log: log.into_iter().map(|(_, entry)| entry).collect(),
        missing: store.meta_range(&missing_prefix(id))?,
    })
}

fn feed(
    pg: &mut Pg,
    event: PgEvent,
    store: &Option<Store>,
    fetched: &[Piece],
    (bad, waits): (&RefCell<BadPlaces>, bool),
    (leases, now): (&Leases, PgNow),
    out: &mut Vec<PgEffect>,
) {
    let Some(store) = store else { return };
    let reader = StoreReader { store, fetched, bad, waits };
    pg.handle(now, event, &reader, leases, out);
}
