//! The OSD's loop: events in, effects performed.
//!
//! An event goes to the PG it concerns; what the PG wants done is done at once, in order:
//! transactions to the store, messages to links, reads to helper threads. Messages for one
//! peer are gathered and sent together at the end of a batch.

use crate::access::{Rights, between_osds};
use crate::classes::ClassLists;
use crate::clog::ClusterLog;
use crate::commands::Bench;
use crate::copies::Copies;
use crate::follow::MAP_KEY;
use crate::history::{History, Shown};
use crate::intake::Early;
use crate::life::Markdowns;
use crate::maps::Maps;
use crate::passed::Passed;
use crate::patience::Ran;
use crate::peers::{LEASE_MS, Peers};
use crate::perf::Perf;
use crate::reader::{BadPlaces, StoreReader, rotten};
use crate::reads::Fetches;
use crate::report::Reporter;
use crate::sched::{Knobs, Scheduler};
use crate::scrub::Scrubs;
use crate::tell::Answer;
use crate::unread::{Owed, Unread};
use crate::waits::{Waits, is_refusal};
use bytes::Bytes;
use spirula_maps::PgPool;
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{MConfig, MLogAck, MMgrMap, MOsdBackoff, MOsdMap, MOsdOpReply, kind};
use spirula_messages::cluster::control::{
    MergeWord, OsdAlive, OsdForce, OsdMarkMeDownAck, OsdPgTemp, OsdReportAck, OsdScrub, OsdStop, PgCreateAsk,
    PgCreateGrant, PgMerges, PgsCreated, PgsCreatedAck,
};
use spirula_messages::cluster::pg::{OsdPing, OsdPong, OsdRenewed, PgAcks, PgCtl, PgCtls, PgTxn, RepAck};
use spirula_messages::cluster::write::PgWrite;
use spirula_messages::{Body, Message};
use spirula_pg::exec::Prefetch;
use spirula_pg::shard::store_pg;
use spirula_pg::{
    Backoffs, CreateAnswer, Leases, Now, OpId, PeerMsg, Pg, PgConfig, PgEffect, PgEvent, ReadKey, Stored, Token,
    head_key, missing_prefix, parse_info_key,
};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{
    Daemon, Hub, Link, LinkId, Listener, Mailbox, MonLink, MonWay, Mons, NetEvent, Peer, Service, clock,
};
use spirula_store::{Packed, Store, StoreError};
use spirula_types::transaction::Transaction;
use spirula_types::{AddrVec, EntityType, Epoch, HObject, OsdId, Peer as Member, PgId, SpgId, Uuid, errno};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Between two looks at PGs that wait for time to pass.
const PG_TICK: Duration = Duration::from_millis(500);
/// Between two attempts to reach monitor or manager, and two boot messages.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
/// Between two looks at links and peers.
pub(crate) const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Monotonic milliseconds start here, so that "one lease ago" is a time.
const MONO_BASE_MS: u64 = 1_000_000;

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
    /// Address to listen on for clients.
    pub public: IpAddr,
    /// Address to listen on for other OSDs; may be the same.
    pub cluster: IpAddr,
    /// First and last port to listen on; 0 and 0 for any free one.
    pub ports: (u16, u16),
    /// Tells this incarnation from earlier ones.
    pub nonce: u32,
    /// Name of this machine.
    pub host: String,
    /// Place in the CRUSH tree, by type of bucket.
    pub location: BTreeMap<String, String>,
    /// Class of its device, or empty.
    pub device_class: String,
    /// The OSDs that begin with this one, in one process, of which no earlier incarnation can be alive: if the map knows no others,
    /// nobody holds an old read lease, and none has to be waited for. Empty if others may be alive.
    pub started_together: BTreeSet<OsdId>,
    /// Facts for `osd metadata`.
    pub metadata: BTreeMap<String, String>,
    /// Its options.
    pub settings: spirula_settings::Settings,
    /// Bounds of its PGs.
    pub pg: PgConfig,
    /// Who it is to others, and whom it lets in.
    pub auth: DaemonAuth,
}

/// What arrives in an OSD's mailbox.
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
    /// An order from the process.
    Control(Control),
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

/// Orders from the process that hosts the OSD.
#[derive(Debug)]
pub enum Control {
    /// Stop cleanly; answers when done.
    Stop(oneshot::Sender<()>),
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
    pub(crate) write: bool,
    pub(crate) bytes: u64,
    /// Bytes that its answer may take.
    pub(crate) answer: u64,
    /// Is something read for it? It waits in its PG else.
    pub(crate) reading: bool,
    /// Its object, its first op, and how many ops it has.
    pub(crate) what: (Bytes, Option<OsdOp>, usize),
}

/// A request as operators see it.
pub(crate) fn shown(peer: &Peer, tid: u64, description: String) -> Shown {
    Shown { description, client: peer.name().to_string(), addr: peer.addr().to_string(), tid }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// Asks to be marked up.
    Booting,
    /// The map shows us up.
    Active,
    /// Told the monitor; waits for its word.
    Stopping(Duration),
    Stopped,
}

/// One OSD.
pub struct Osd {
    pub(crate) cfg: OsdConfig,
    /// Ourselves, as clients, monitor and manager see us.
    pub(crate) me: Peer,
    /// Ourselves, as other OSDs see us.
    pub(crate) me_cluster: Peer,
    pub(crate) hub: Hub,
    /// With what it goes out.
    pub(crate) login: Arc<dyn Login>,
    pub(crate) on: Handle,
    pub(crate) mailbox: Mailbox<OsdEvent>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) store: Option<Store>,
    pub(crate) fetches: Fetches,
    pub(crate) bad: RefCell<BadPlaces>,
    pub(crate) pgs: BTreeMap<SpgId, Pg>,
    pub(crate) pg_cfg: Arc<PgConfig>,
    pub(crate) maps: Maps,
    pub(crate) leases: Leases,
    /// Peers whose stores have no room, as they say.
    pub(crate) full_peers: BTreeSet<OsdId>,
    pub(crate) life: Life,
    /// Why it stopped by itself.
    pub(crate) failure: Option<String>,
    /// The newest map shows this incarnation up.
    pub(crate) live: bool,
    /// Newest epoch that showed it up; 0 for none.
    pub(crate) was_up: Epoch,
    /// Newest epoch that showed it not up and that all PGs have seen; 0 for none.
    pub(crate) quiet: Epoch,
    pub(crate) stop_waiters: Vec<oneshot::Sender<()>>,
    pub(crate) mon: MonLink,
    /// When a whole map may be asked for again after one that did not fit, and the wait that led there.
    pub(crate) map_retry: (Duration, Duration),
    pub(crate) boot_sent: Duration,
    pub(crate) mgr: Option<Link>,
    pub(crate) mgr_addr: AddrVec,
    pub(crate) mgr_open: bool,
    pub(crate) mgr_retry: Duration,
    pub(crate) peers: Peers,
    pub(crate) sessions: BTreeMap<LinkId, Session>,
    pub(crate) ops: BTreeMap<OpId, Pending>,
    pub(crate) next_op: OpId,
    pub(crate) early: Early,
    pub(crate) unread: Unread,
    /// Submitted and not durable: store sequence, PG, token, when.
    pub(crate) committing: VecDeque<(u64, SpgId, Token, Duration)>,
    pub(crate) effects: VecDeque<(SpgId, PgEffect)>,
    /// Events that PGs are told when the effects are performed.
    pub(crate) answers: VecDeque<(SpgId, PgEvent)>,
    /// Messages from one shard here to another.
    pub(crate) own_mail: VecDeque<(Member, PeerMsg)>,
    /// Bytes that helper threads are reading.
    pub(crate) reading: u64,
    /// Reads that wait for payload memory.
    pub(crate) held_reads: VecDeque<(SpgId, ReadKey, Prefetch)>,
    /// The same of shards for other members.
    pub(crate) held_shards: VecDeque<(SpgId, ReadKey, Prefetch)>,
    pub(crate) scratch: Vec<PgEffect>,
    pub(crate) acks: BTreeMap<OsdId, Vec<RepAck>>,
    pub(crate) ctls: BTreeMap<OsdId, Vec<PgCtl>>,
    pub(crate) asking: BTreeMap<PgId, Epoch>,
    /// Who has asked for the monitor's word about a PG since this process began.
    pub(crate) askers: BTreeMap<PgId, BTreeSet<SpgId>>,
    pub(crate) created: Vec<(PgId, Epoch)>,
    pub(crate) merges: BTreeMap<PgId, MergeWord>,
    /// Newest epoch that the map's `up_thru` of us must reach.
    pub(crate) alive: Epoch,
    /// Acting sets to ask the monitor for.
    pub(crate) acting: BTreeMap<PgId, Vec<OsdId>>,
    pub(crate) sched: Scheduler,
    /// Which object classes clients may call.
    pub(crate) classes: ClassLists,
    pub(crate) wakes: BTreeMap<u64, Vec<SpgId>>,
    pub(crate) next_pg_tick: Duration,
    pub(crate) next_housekeeping: Duration,
    /// When the event loop ran.
    pub(crate) ran: Ran,
    pub(crate) markdowns: Markdowns,
    pub(crate) reporter: Reporter,
    pub(crate) perf: Perf,
    pub(crate) bench: Option<Bench>,
    pub(crate) history: History,
    pub(crate) passed: Passed,
    pub(crate) clog: ClusterLog,
    pub(crate) scrubs: Scrubs,
    pub(crate) copies: Copies,
    pub(crate) waits: Waits,
}

impl Osd {
    /// Puts an OSD together on an open store and listens. `mailbox` is its own.
    ///
    /// # Errors
    /// When the port cannot be opened, or a PG's record in the store is damaged.
    pub fn start(
        cfg: OsdConfig,
        hub: Hub,
        on: Handle,
        mailbox: Mailbox<OsdEvent>,
        store: Store,
    ) -> Result<Self, String> {
        let mut me = Peer::new(EntityType::Osd, &cfg.id.to_string());
        let auth = cfg.auth.door(crate::access::grants);
        let service = Service { me: me.clone(), sink: mailbox.sink(), auth };
        let listen = |ip| hub.listen_within(ip, cfg.ports, cfg.nonce, service.clone(), &on).map_err(|e| e.to_string());
        let mut listeners = vec![listen(cfg.public)?];
        me.addrs = listeners[0].addrs.clone();
        let mut me_cluster = me.clone();
        if cfg.cluster != cfg.public {
            let second = listen(cfg.cluster)?;
            me_cluster.addrs = second.addrs.clone();
            listeners.push(second);
        }
        let pg_cfg = Arc::new(cfg.pg.clone());
        let mut pgs = BTreeMap::new();
        let records = store.meta_range(b"pg.").map_err(|e| e.to_string())?;
        for (key, value) in records {
            let Some(id) = parse_info_key(&key) else { continue };
            let stored = stored(&store, id, value).map_err(|e| e.to_string())?;
            let pg = Pg::load(id, cfg.id, pg_cfg.clone(), &stored).map_err(|e| format!("record of pg {id}: {e}"))?;
            pgs.insert(id, pg);
        }
        let maps = match store.meta(MAP_KEY).map_err(|e| e.to_string())? {
            Some(bytes) => Maps::restore(bytes).map_err(|e| e.to_string())?,
            None if pgs.is_empty() => Maps::default(),
            None => return Err("the store holds PGs but no OSD map".to_owned()),
        };
        let login = cfg.auth.login(&me);
        let way = MonWay {
            hub: hub.clone(),
            me: me.clone(),
            login: login.clone(),
            auth: cfg.auth.clone(),
            sink: mailbox.sink(),
            on: on.clone(),
        };
        let mut mon = MonLink::new(cfg.mons.clone(), &cfg.host, way);
        ["osdmap", "mgrmap", "monmap", "config"].into_iter().for_each(|what| mon.set_start(what, 0));
        let mut osd = Self {
            login,
            me,
            me_cluster,
            hub,
            on,
            mailbox,
            listeners,
            store: Some(store),
            fetches: Fetches::default(),
            bad: RefCell::default(),
            pgs,
            pg_cfg,
            maps,
            leases: Leases::new(LEASE_MS, mono_ms()),
            full_peers: BTreeSet::new(),
            life: Life::Booting,
            failure: None,
            live: false,
            was_up: 0,
            quiet: 0,
            stop_waiters: Vec::new(),
            mon,
            map_retry: (Duration::ZERO, Duration::ZERO),
            boot_sent: Duration::ZERO,
            mgr: None,
            mgr_addr: AddrVec::default(),
            mgr_open: false,
            mgr_retry: Duration::ZERO,
            peers: Peers::default(),
            sessions: BTreeMap::new(),
            ops: BTreeMap::new(),
            next_op: 1,
            early: Early::default(),
            unread: Unread::default(),
            committing: VecDeque::new(),
            effects: VecDeque::new(),
            answers: VecDeque::new(),
            own_mail: VecDeque::new(),
            reading: 0,
            held_reads: VecDeque::new(),
            held_shards: VecDeque::new(),
            scratch: Vec::new(),
            acks: BTreeMap::new(),
            ctls: BTreeMap::new(),
            asking: BTreeMap::new(),
            askers: BTreeMap::new(),
            created: Vec::new(),
            merges: BTreeMap::new(),
            alive: 0,
            acting: BTreeMap::new(),
            sched: Scheduler::new(Knobs::of(&cfg.settings, &cfg.device_class)),
            classes: ClassLists::of(&cfg.settings),
            wakes: BTreeMap::new(),
            next_pg_tick: Duration::ZERO,
            next_housekeeping: Duration::ZERO,
            ran: Ran::default(),
            markdowns: Markdowns::default(),
            reporter: Reporter::default(),
            perf: Perf::default(),
            bench: None,
            history: History::default(),
            passed: Passed::default(),
            clog: ClusterLog::default(),
            copies: Copies::default(),
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
        self.failure.as_deref()
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
        let of_mgr = || self.mgr.as_ref().is_some_and(|l| l.id() == id);
        match kind {
            PgCreateGrant::KIND | PgsCreatedAck::KIND | OsdMarkMeDownAck::KIND | OsdStop::KIND => self.mon.is(id),
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
            let news = self.mon.message(m);
            return self.mon_news(id, news);
        }
        self.take(id, m);
    }

    /// Acts on a message that is no matter of the link alone.
    pub(crate) fn take(&mut self, id: LinkId, m: Message) {
        if m.kind == kind::OSD_MAP && self.peers.by_link(id).is_some() {
            // What an OSD that we ask like a client adds to its answers; the monitor sends us all of them.
            return;
        }
        if !self.may_send(id, m.kind) {
            if m.kind == kind::COMMAND {
                self.answer_command(id, m.tid, Answer::fail(errno::EACCES, "access denied: 'osd' caps must allow *"));
                return;
            }
            tracing::warn!("osd.{}: message type {} from somebody who may not send it, ignored", self.cfg.id, m.kind);
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
            kind::CONFIG => MConfig::from_message(&m).map(|c| self.cfg.settings.set_central(&c.config)),
            // It says that what came before it was sent before its sender knew.
            kind::OSD_BACKOFF if self.unread.keep_behind(id, || 0, &m) || self.early.keep_behind(id, &m) => Ok(()),
            kind::OSD_BACKOFF => MOsdBackoff::from_message(&m).map(|b| self.backoff_acked(id, &b)),
            kind::OSD_OP_REPLY => MOsdOpReply::from_message(&m).map(|r| self.source_reply(id, m.tid, &r)),
            kind::LOG_ACK => MLogAck::from_message(&m).map(|a| self.clog.acked(a.last)),
            PgCreateGrant::KIND => PgCreateGrant::from_message(&m).map(|g| self.granted(g)),
            PgsCreatedAck::KIND => PgsCreatedAck::from_message(&m).map(|a| self.created_ack(&a)),
            OsdMarkMeDownAck::KIND => OsdMarkMeDownAck::from_message(&m).map(|_| self.marked_down()),
            OsdStop::KIND => OsdStop::from_message(&m).map(|s| {
                if s.osd == self.cfg.id {
                    self.stop(None);
                }
            }),
            OsdReportAck::KIND => OsdReportAck::from_message(&m).map(|a| self.reporter.acked(&a)),
            OsdScrub::KIND => OsdScrub::from_message(&m).map(|o| self.scrub_ordered(o)),
            OsdForce::KIND => OsdForce::from_message(&m).map(|o| self.forced(&o)),
            other => {
                tracing::debug!("osd.{}: message type {other} is not for an OSD, ignored", self.cfg.id);
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

    pub(crate) fn peer_message(&mut self, id: LinkId, m: &Message) -> Result<(), spirula_messages::MessageError> {
        // Peers talk to us over links they opened; answers to pings come over ours.
        let from = match (self.peers.by_link(id), self.sessions.get(&id)) {
            (Some(osd), _) => osd,
            (None, Some(s)) if s.peer.kind == EntityType::Osd => s.peer.name().num as OsdId,
            _ => {
                tracing::warn!("osd.{}: a message between OSDs from somebody who is none", self.cfg.id);
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
                feed(&mut new, PgEvent::Map(view), store, &[], bad, &self.leases, &mut self.scratch);
                self.effects.extend(self.scratch.drain(..).map(|e| (id, e)));
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
        // They stay noted: this may answer an older question, and the answer to the newest is still to come.
        for asker in self.askers.get(&pg).cloned().unwrap_or_default() {
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
            while let Some((pg, effect)) = self.effects.pop_front() {
                self.effect(pg, effect);
            }
            if let Some((id, event)) = self.answers.pop_front() {
                self.tell_pg(id, event);
            } else if let Some((from, msg)) = self.own_mail.pop_front() {
                self.answer_pg(msg.to(), PgEvent::Peer(from, msg));
            } else if let Some((pg, event)) = self.next_work() {
                self.answer_pg(pg, event);
            } else {
                return;
            }
        }
    }

    /// An event for a PG, which may be the answer to one of its effects. It is told when all effects there are have been
    /// performed: a PG counts on seeing what it submitted, and on its messages leaving in the order of its wishes.
    pub(crate) fn answer_pg(&mut self, id: SpgId, event: PgEvent) {
        if self.pg_cfg.answers_overtake() {
            let behind = std::mem::take(&mut self.effects);
            self.tell_pg(id, event);
            self.effects.extend(behind);
        } else {
            self.answers.push_back((id, event));
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
        feed(pg, event, &self.store, &fetched, bad, &self.leases, &mut self.scratch);
        if !fetched.is_empty() {
            let wishes = std::mem::take(&mut self.scratch);
            self.fetched_seen(id, fetched, &wishes);
            self.scratch = wishes;
        }
        self.effects.extend(self.scratch.drain(..).map(|e| (id, e)));
    }

    pub(crate) fn effect(&mut self, id: SpgId, effect: PgEffect) {
        let Some(effect) = self.waits.wish(id, effect) else { return };
        if let PgEffect::Prefetch(ReadKey::Op(op), _) = effect {
            self.reads_for(op, true);
        }
        match effect {
            PgEffect::Submit(token, txn) => self.submit(id, token, txn),
            PgEffect::Send(to, msg) if to.osd == self.cfg.id => {
                self.own_mail.push_back((Member::new(self.cfg.id, id.shard), msg));
            }
            PgEffect::Send(to, msg) => self.send_peer(to.osd, msg),
            PgEffect::Reply(op, reply) => self.reply(op, *reply),
            PgEffect::Drop(op) if self.own_source_reply(op, None) => {}
            PgEffect::Drop(op) => self.drop_op(id, op),
            PgEffect::Backoff { op, begin, end } => self.back_off(id, op, &begin, &end),
            PgEffect::Unblock(object) => self.unblock(id, object.as_ref()),
            PgEffect::Prefetch(key, what) if self.read_must_wait(key) => {
                let held = if let ReadKey::Op(_) = key { &mut self.held_reads } else { &mut self.held_shards };
                held.push_back((id, key, what));
            }
            PgEffect::Prefetch(key, what) => self.prefetch(id, key, &what),
            PgEffect::Fetch(op, source) => self.fetch(id, op, source),
            PgEffect::ShareMap(conn, epoch) => {
                if let (Some(map), Some(s)) = (self.maps.since(epoch), self.sessions.get(&conn)) {
                    s.link.send(map.into_message(0));
                }
            }
            PgEffect::Phase(..) | PgEffect::NeedMap(_) => {}
            PgEffect::AskCreate { pg, epoch } => {
                self.askers.entry(pg).or_default().insert(id);
                // What the PG itself asks is asked for those that stem from it, too.
                let asked = self.asking.entry(pg).or_insert(0);
                *asked = epoch.max(*asked);
            }
            PgEffect::Created { pg, epoch } => self.created.push((pg, epoch)),
            PgEffect::Reserve(what) => self.reserve(id, what),
            PgEffect::Unreserve(what) => self.unreserve(id, what),
            PgEffect::WantTurn => self.want_turn(id),
            PgEffect::Recovered { objects, bytes } => self.sched.recovered(objects, bytes),
            PgEffect::ScrubScan { seq, from, to, deep } => self.scrub_scan(id, seq, from, to, deep),
            PgEffect::ScrubEnded { done, unread } => self.scrub_ended(id, done, unread),
            PgEffect::Repaired => self.perf.repaired += 1,
            PgEffect::Log { error, text } => self.clog.say(error, text),
            PgEffect::Tell(conn, m) => self.tell_client(conn, *m),
            PgEffect::Alive(epoch) => self.alive = self.alive.max(epoch),
            PgEffect::Mergeable(word) => drop(self.merges.insert(id.pg, word)),
            PgEffect::WantActing(want) => drop(self.acting.insert(id.pg, want)),
            PgEffect::StateChanged => {
                let state = self.pgs.get(&id).map(|p| p.state().0);
                if let Some(pg) = self.pgs.get(&id) {
                    let stand = state.filter(|_| pg.is_primary());
                    self.passed.note(id, stand, self.maps.epoch(), clock::wall());
                }
                self.reporter.pg_changed(id, state.unwrap_or_default());
            }
            PgEffect::Continue => self.answer_pg(id, PgEvent::Continue),
            PgEffect::WakeAt(at) => self.wakes.entry(at).or_default().push(id),
            PgEffect::Removed => {
                let wanted = self.maps.ours(self.cfg.id).any(|p| p == id);
                if !wanted && self.pgs.get(&id).is_some_and(Pg::is_gone) {
                    self.pgs.remove(&id);
                    self.passed.forget(id);
                }
                self.reporter.changed();
            }
        }
    }

    /// A request is forgotten without an answer.
    pub(crate) fn drop_op(&mut self, id: SpgId, op: OpId) {
        self.reads_gone(id, op);
        self.want_no_copy(op);
        if let Some(p) = self.ops.remove(&op) {
            self.owed_no_more(&p);
            if let Some(s) = self.sessions.get(&p.link) {
                s.link.request_done();
            }
        }
    }

    fn send_peer(&mut self, osd: OsdId, msg: PeerMsg) {
        match msg {
            PeerMsg::Write(w) => {
                self.flush_peer(osd);
                self.peers.send(osd, w.to_message(0));
            }
            PeerMsg::Txn(t) => {
                // What was gathered before it must not be overtaken.
                self.flush_peer(osd);
                self.peers.send(osd, t.into_message(0));
            }
            PeerMsg::Ack(a) => self.acks.entry(osd).or_default().push(a),
            PeerMsg::Ctl(c) => {
                if self.acks.contains_key(&osd) {
                    self.flush_acks(osd);
                }
                self.ctls.entry(osd).or_default().push(*c);
            }
        }
    }

    fn submit(&mut self, id: SpgId, token: Token, txn: Transaction) {
        let Some(txn) = self.pack_first(id, token, txn) else { return };
        if let Some((refused, e)) = self.submit_if_room(id, token, txn, &Packed::default()) {
            self.wait_for_room(id, token, refused, &e);
        }
    }

    /// Submits a transaction. What is given back was refused, and has no effect.
    pub(crate) fn submit_if_room(
        &mut self,
        id: SpgId,
        token: Token,
        txn: Transaction,
        packed: &Packed,
    ) -> Option<(Transaction, StoreError)> {
        let store = self.store.as_mut()?;
        {
            let mut bad = self.bad.borrow_mut();
            for u in &txn.objects {
                bad.forget(&u.object);
                self.fetches.changed(&u.object);
            }
        }
        self.perf.transactions += 1;
        let mut submitted = store.submit_packed(&txn, packed);
        let mut txn = Some(txn);
        if let Err(e) = &submitted
            && let Some((object, offset)) = txn.as_ref().and_then(|txn| rotten(e, txn))
            && let Some(pg) = self.pgs.get_mut(&id)
        {
            tracing::error!("pg {id}: {e}");
            let mut more = Vec::new();
            txn = txn.and_then(|txn| pg.without_rotten(token, txn, &object, offset, &mut more));
            if let Some(txn) = &txn {
                submitted = store.submit_packed(txn, packed);
            }
            self.effects.extend(more.into_iter().map(|e| (id, e)));
        }
        match (submitted, txn) {
            (Ok(seq), _) => self.committing.push_back((seq, id, token, clock::monotonic())),
            (Err(e), Some(txn)) if is_refusal(&e) => return Some((txn, e)),
            (Err(e), _) => {
                // The PG counts on it. Going on would make this copy differ from the others.
                self.fail(&format!("pg {id}: {e}"));
            }
        }
        None
    }

    pub(crate) fn reply(&mut self, op: OpId, reply: MOsdOpReply) {
        if self.own_source_reply(op, Some(&reply)) {
            return;
        }
        // It may be answered before the object that it wanted is there: its client was shut out.
        self.want_no_copy(op);
        let Some(p) = self.ops.remove(&op) else { return };
        self.owed_no_more(&p);
        let took = clock::monotonic().saturating_sub(p.begun);
        let Some(s) = self.sessions.get(&p.link) else { return };
        // What was read from the disk for one op alone is a payload of the pool already.
        let mut filled = reply.ops.iter().filter(|r| !r.op.indata.is_empty()).map(|r| r.op.op);
        let answers_from_heap =
            !matches!((filled.next(), filled.next()), (Some(op::READ | op::SYNC_READ), None) | (None, _));
        let crc = reply.data_crc();
        let mut m = reply.into_message(p.tid);
        if answers_from_heap {
            m.data = self.hub.pool().count(m.data);
        }
        self.history.note(clock::monotonic(), took, || {
            let what = if p.write { "write" } else { "read" };
            let bytes = p.bytes.max(m.data.len() as u64);
            shown(&s.peer, p.tid, format!("osd_op({}:{} {} {what} {bytes} bytes)", s.peer.name(), p.tid, p.pg))
        });
        self.perf.ops += 1;
        self.perf.latency.add(took);
        self.sched.pacer.answered(clock::monotonic(), took);
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

    // ---- the store ----

    pub(crate) fn durable(&mut self, seq: u64) {
        let now = clock::monotonic();
        if let Some(store) = &mut self.store {
            // Lets go of payloads that are written: an idle store must not hold memory that
            // others wait for.
            store.congested();
        }
        // One event a PG: its newest token covers the older ones.
        let mut done: Vec<(SpgId, Token)> = Vec::new();
        while let Some((_, id, token, at)) = self.committing.pop_front_if(|(s, ..)| *s <= seq) {
            self.perf.commit_latency.add(now.saturating_sub(at));
            match done.iter_mut().find(|(p, _)| *p == id) {
                Some((_, t)) => *t = token,
                None => done.push((id, token)),
            }
        }
        for (id, token) in done {
            self.feed_pg(id, PgEvent::Committed(token));
        }
        self.bench_durable(seq);
    }

    // ---- gathering ----

    pub(crate) fn flush_acks(&mut self, osd: OsdId) {
        if let Some(acks) = self.acks.remove(&osd) {
            self.peers.send(osd, PgAcks(acks).into_message(0));
        }
    }

    pub(crate) fn flush_peer(&mut self, osd: OsdId) {
        // Control before acknowledgements: the order in which they were gathered, see `effect`.
        if let Some(ctls) = self.ctls.remove(&osd) {
            self.peers.send(osd, PgCtls(ctls).into_message(0));
        }
        self.flush_acks(osd);
    }

    pub(crate) fn flush_all(&mut self) {
        let mut osds: Vec<OsdId> = self.ctls.keys().copied().collect();
        osds.extend(self.acks.keys().copied());
        for osd in osds {
            self.flush_peer(osd);
        }
        self.flush_log();
        if !self.asking.is_empty() {
            let pgids = std::mem::take(&mut self.asking);
            self.mon.send(PgCreateAsk { osd: self.cfg.id, pgids });
        }
        if self.alive > 0 {
            let want = std::mem::take(&mut self.alive);
            self.mon.send(OsdAlive { osd: self.cfg.id, want });
        }
        if !self.acting.is_empty() {
            let pgs = std::mem::take(&mut self.acting);
            self.mon.send(OsdPgTemp { osd: self.cfg.id, epoch: self.maps.epoch(), pgs });
        }
        if !self.merges.is_empty() {
            let pgs = std::mem::take(&mut self.merges);
            self.mon.send(PgMerges { osd: self.cfg.id, pgs });
        }
        if !self.created.is_empty() {
            let pgids = std::mem::take(&mut self.created).into_iter().collect();
            self.mon.send(PgsCreated { osd: self.cfg.id, pgids });
        }
    }

    // ---- reports ----

    pub(crate) fn report(&mut self, now: Duration) {
        let (Some(link), Some(statfs)) = (self.mgr.clone(), self.space()) else { return };
        if !self.mgr_open || !self.reporter.due(now) {
            return;
        }
        let slow = self.ops.values().map(|p| now.saturating_sub(p.begun)).filter(|age| age.as_secs() >= 30);
        let slow: Vec<Duration> = slow.collect();
        let small_paths = self.peers.small_paths(now, self.grace());
        let slow_paths = self.slow_paths(now);
        let facts = crate::report::Facts {
            id: self.cfg.id,
            uuid: self.cfg.uuid,
            maps: &self.maps,
            pgs: &mut self.pgs,
            statfs,
            pools: self.store.as_ref().map(|s| s.pool_space().collect()).unwrap_or_default(),
            perf: &self.perf,
            hb_peers: self.peers.osds(),
            slow_ops: slow.len() as u32,
            slow_oldest: slow.into_iter().max().unwrap_or_default(),
            small_paths,
            slow_paths,
            hostname: self.cfg.host.clone(),
            config: self.cfg.settings.told(),
        };
        link.send(self.reporter.make(now, clock::wall(), facts).into_message(0));
    }
}

impl Daemon for Osd {
    type Event = OsdEvent;

    fn handle(&mut self, event: OsdEvent) {
        if self.life == Life::Stopped {
            if let OsdEvent::Control(Control::Stop(done)) = event {
                let _ = done.send(());
            }
            return;
        }
        match event {
            OsdEvent::Net(NetEvent::Message(id, m)) => self.message(id, m),
            // Monitors and managers have such a limit.
            OsdEvent::Net(NetEvent::TooLarge(..)) => {}
            OsdEvent::Net(NetEvent::Opened { link, peer, outgoing }) => self.opened(link, peer, outgoing),
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
            OsdEvent::Control(Control::Stop(done)) => self.stop(Some(done)),
        }
    }

    fn end_of_batch(&mut self) {
        if self.life != Life::Stopped {
            self.release_reads();
            self.release_unread();
            self.flush_all();
            self.report(clock::monotonic());
        }
    }

    fn tick(&mut self) {
        let now = clock::monotonic();
        if self.life == Life::Stopped {
            return;
        }
        if let Life::Stopping(patience) = self.life
            && now >= patience
        {
            tracing::warn!("osd.{}: the monitor does not answer; stopping all the same", self.cfg.id);
            self.end();
            return;
        }
        self.note_run(now);
        if now >= self.peers.next_ping() {
            self.ping(now);
        }
        self.schedule(now);
        let now_ms = mono_ms();
        while let Some(due) = self.wakes.first_entry().filter(|e| *e.key() <= now_ms) {
            for pg in due.remove() {
                self.feed_pg(pg, PgEvent::Tick);
            }
        }
        if now >= self.next_pg_tick {
            self.next_pg_tick = now + PG_TICK;
            let waiting: Vec<SpgId> = self.pgs.iter().filter(|(_, p)| p.wants_tick()).map(|(id, _)| *id).collect();
            for pg in waiting {
                self.feed_pg(pg, PgEvent::Tick);
            }
        }
        if now >= self.next_housekeeping {
            self.next_housekeeping = now + HOUSEKEEPING;
            self.keep_links(now);
            self.keep_copies(now);
            self.keep_maps(now);
            self.follow_knobs();
            self.try_again(now);
            self.refuse_when_full();
            self.close_stuck(now);
            self.start_scrub(now);
            self.report_silent(now);
        }
    }

    fn deadline(&self) -> Duration {
        let mut at = self.next_housekeeping.min(self.next_pg_tick).min(self.peers.next_ping());
        if let Some((ms, _)) = self.wakes.first_key_value() {
            at = at.min(Duration::from_millis(ms.saturating_sub(MONO_BASE_MS)));
        }
        if let Some(turn) = self.sched.next() {
            at = at.min(turn);
        }
        if !(self.held_reads.is_empty() && self.held_shards.is_empty()) {
            at = at.min(clock::monotonic() + Duration::from_millis(1));
        }
        if self.mgr_open
            && let Some(due) = self.reporter.next()
        {
            at = at.min(due);
        }
        at
    }

    fn finished(&self) -> bool {
        self.life == Life::Stopped
    }
}

/// Monotonic milliseconds as the PGs and leases count them.
pub(crate) fn mono_ms() -> u64 {
    Osd::pg_time(clock::monotonic())
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
    leases: &Leases,
    out: &mut Vec<PgEffect>,
) {
    let Some(store) = store else { return };
    let reader = StoreReader { store, fetched, bad, waits };
    let now = Now { mono_ms: mono_ms(), wall: clock::wall() };
    pg.handle(now, event, &reader, leases, out);
}
