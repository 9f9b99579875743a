//! The monitor's state machine: who is connected, what is asked, what is agreed on.
//!
//! Changes are gathered in a batch ([`Work`]) at the leader: a request that changes something
//! starts one and proposes it; requests that come while it is being agreed on wait and form the
//! next batch together, so a burst costs two commits and two map epochs. What a change has to
//! say is said when it is committed, maps first. Who leads, and what happens on the other
//! monitors, is in [`crate::quorum`].

pub(crate) mod bounds;

use crate::access::{self, Access, Ruling};
use crate::commands::{self, Command, CommandResult};
use crate::done::Done;
use crate::event::{ConnId, MonEffect, MonEvent, Peer};
use crate::failure::OsdTracker;
use crate::image::Stored;
use crate::mds::MdsTracker;
use crate::merges::MergeTracker;
use crate::mgr::MgrTracker;
use crate::placement::PlacementTracker;
use crate::quorum::{After, Ask, GID_STEP, GlobalIds, Quorum};
use crate::session::Session;
use crate::snaps::{Kept, TURNS_MAX};
use crate::state::{LoadError, State};
use crate::time::{self, Clock, Now};
use crate::view::{ClusterView, QuorumInfo};
use crate::work::{Form, InFlight, Reply, Speaker, Work};
use bounds::{COMMAND_MAX, POOL_OP_MAX, QUEUE_MAX, READ_MAX, REQUEST_MAX, WAITING_MAX};
use bytes::Bytes;
use spirula_auth::monitor::Policy;
use spirula_crush::CrushMap;
use spirula_encoding::UTime;
use spirula_format::Format;
use spirula_maps::{Crush, MonMap, OsdMap};
use spirula_messages::ceph::{
    LogEntry, MCommand, MCommandReply, MGetPoolStats, MGetPoolStatsReply, MLog, MLogAck,
    MMdsBeacon, MMdsLoadTargets, MMonCommand, MMonCommandAck, MMonGetVersion, MMonGetVersionReply,
    MMonMap, MMonSubscribe, MPing, MPoolOp, MPoolOpReply, MRemoveSnaps, MStatfs, MStatfsReply,
    kind,
};
use spirula_messages::cluster::control::{
    MgrBeacon, MgrDigest, MgrRan, MonRan, MonRun, OsdAlive, OsdBeacon, OsdBoot, OsdFailureReport,
    OsdMarkMeDown, OsdMarkMeDownAck, OsdPgTemp, OsdStop, PgCreateAsk, PgMerges, PgsCreated,
    PgsCreatedAck,
};
use spirula_messages::cluster::quorum::MonJoin;
use spirula_messages::{Body, Message, MessageError};
use spirula_quorum::MemberId;
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, Epoch, OsdId, Uuid};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Bytes of requests that go into one batch; at least one request does.
const BATCH_BYTES: usize = 1 << 20;
/// Nanoseconds between two looks at what only time brings.
const TICK_NANOS: u64 = 250_000_000;
/// The first global id of a new cluster.
pub(crate) const FIRST_GID: u64 = 4100;

/// Draws random bytes; given by the shell so that the state machine stays deterministic.
pub type Entropy = Box<dyn FnMut(&mut [u8]) + Send>;

/// What a monitor starts from.
pub struct Opening {
    /// What its store holds ([`MonStore::open`](crate::MonStore::open)).
    pub stored: Stored,
    /// Its name.
    pub name: String,
    /// Where it listens; used while it is not yet in the cluster's map.
    pub addrs: AddrVec,
    /// Monitors to ask to be let in, if it is new.
    pub seeds: Vec<AddrVec>,
    /// The time.
    pub now: UTime,
    /// Random; numbers this run.
    pub boot: u64,
    /// Source of random bytes.
    pub entropy: Entropy,
}

/// Why a monitor cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its state cannot be read.
    #[error(transparent)]
    State(#[from] LoadError),
    /// Its part of the log cannot be used.
    #[error(transparent)]
    Log(#[from] spirula_quorum::OpenError),
}

/// Something that may change the state, waiting for its turn.
#[derive(Clone)]
pub(crate) enum Request {
    Ask(Ask),
    Join(MonJoin),
    Ids(MemberId),
    Tick(Part),
}

/// A part of what is done from time to time. They go into one batch; if one cannot be done, the
/// others are, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Osds,
    Managers,
    MetadataServers,
    Rest,
}

impl Part {
    const ALL: [Self; 4] = [Self::Osds, Self::Managers, Self::MetadataServers, Self::Rest];

    /// What it is, for people.
    fn name(self) -> &'static str {
        match self {
            Self::Osds => {
                "which OSDs are down and out, fences that end, merges and placement of PGs, \
                    removed snapshots"
            }
            Self::Managers => "which manager is active",
            Self::MetadataServers => "which metadata server has which rank",
            Self::Rest => "mutes that end, keys of services, health in the cluster log",
        }
    }
}

impl Request {
    /// Bytes of what was asked.
    fn bytes(&self) -> usize {
        match self {
            Self::Ask(a) => bytes_of(&a.message),
            Self::Join(_) | Self::Ids(_) | Self::Tick(_) => 0,
        }
    }
}

/// Bytes of a message.
pub(crate) fn bytes_of(m: &Message) -> usize {
    m.front.len() + m.middle.len() + m.data.len()
}

/// A monitor that did not run for so many seconds has no clients any more: they look for another
/// after less.
const STOOD_STILL: f64 = 5.0;

/// True for a request that only the leader can deal with.
pub(crate) fn for_leader(m: &Message) -> bool {
    matches!(m.kind, kind::MON_COMMAND | kind::COMMAND | MonRun::KIND)
}

/// True for a request that changes nothing; `command` is what [`Command::in_message`] reads in it.
/// One that cannot be read is told so.
pub(crate) fn only_reads(m: &Message, command: Option<&Command>) -> bool {
    for_leader(m) && !command.is_some_and(Command::is_write)
}

/// The monitor.
pub struct Mon {
    pub(crate) fsid: Uuid,
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) quorum: QuorumInfo,
    /// Since when this monitor leads, and judges who is silent.
    pub(crate) judging_since: UTime,
    /// The wall clock: for stamps.
    pub(crate) now: UTime,
    /// The time by which silence is judged ([`crate::time`]).
    pub(crate) steady: UTime,
    pub(crate) clock: Clock,
    pub(crate) sessions: BTreeMap<ConnId, Session>,
    pub(crate) mgr: MgrTracker,
    pub(crate) mds: MdsTracker,
    pub(crate) osds: OsdTracker,
    pub(crate) merges: MergeTracker,
    pub(crate) scrubs: crate::scrub::Scrubs,
    pub(crate) snaps: crate::snaps::SnapTurns,
    pub(crate) proxy: crate::proxy::Proxy,
    pub(crate) placement: PlacementTracker,
    pub(crate) transitions: crate::transitions::Transitions,
    /// The OSDs that the last OSD map showed up, and its epoch.
    pub(crate) up_before: (Epoch, BTreeSet<OsdId>),
    /// Facts about ourselves.
    pub(crate) metadata: crate::state::Metadata,
    /// Our own options; `ceph tell mon.N config set` changes them while commands read the rest.
    pub(crate) settings: RefCell<Settings>,
    pub(crate) q: Quorum,
    pub(crate) gids: Arc<GlobalIds>,
    pub(crate) queue: VecDeque<Request>,
    pub(crate) inflight: Option<InFlight>,
    /// So many of those in the queue are done each by itself: together they were not possible.
    one_by_one: usize,
    /// What is done from time to time and cannot be done now, with why.
    undone: BTreeMap<&'static str, String>,
    last_commit: u64,
    last_look: UTime,
    pub(crate) entropy: Entropy,
    /// Nobody comes in without a key.
    pub(crate) auth_safe: bool,
    /// Monitors whose end would end others with them: they share a process.
    pub(crate) company: Vec<String>,
}

/// Among a monitor's facts (`mon metadata`): it shares its process with other daemons, which would
/// end with it.
pub const SHARES_PROCESS: &str = "spirula_shares_process";

/// What a command handler works with.
pub struct CommandCtx<'a> {
    /// The monitor as it is; its `state` is the committed one.
    pub(crate) mon: &'a Mon,
    /// The batch: read and edit the state here.
    pub work: &'a mut Work,
    /// Who asked.
    pub peer: &'a Peer,
    /// Input file.
    pub input: &'a Bytes,
    /// Output format.
    pub format: Format,
    /// Random bytes drawn for this command.
    pub random: [u8; 32],
}

impl CommandCtx<'_> {
    /// What reports see.
    pub fn view(&self) -> ClusterView<'_> {
        self.mon.view_of(&self.work.state)
    }
}

impl Mon {
    /// A monitor on what its store holds. Call [`Self::start`] before anything else.
    ///
    /// # Errors
    /// [`OpenError`] for a store whose parts cannot be used.
    pub fn open(o: Opening) -> Result<Self, OpenError> {
        let Opening { stored, name, addrs, seeds, now, boot, entropy } = o;
        let identity = stored.identity;
        let new = stored.snapshot.index == 0;
        let state = if new {
            // Stands in until the leader's state comes; nothing is answered from it.
            let monmap = MonMap::initial(identity.fsid, now, [(name.clone(), addrs)]);
            let osdmap = OsdMap::fresh(identity.fsid, 0, now, Crush::new(CrushMap::default()));
            State::new(monmap, osdmap, 0)
        } else {
            State::from_bytes(&stored.snapshot.data)?
        };
        let mut mon = Self {
            fsid: identity.fsid,
            name,
            state,
            metadata: BTreeMap::new(),
            quorum: QuorumInfo { since: now, ..QuorumInfo::default() },
            judging_since: UTime::ZERO,
            now,
            steady: UTime::ZERO,
            clock: Clock::new(now.into()),
            sessions: BTreeMap::new(),
            mgr: MgrTracker::default(),
            mds: MdsTracker::default(),
            osds: OsdTracker::default(),
            merges: MergeTracker::default(),
            scrubs: crate::scrub::Scrubs::default(),
            snaps: crate::snaps::SnapTurns::default(),
            proxy: crate::proxy::Proxy::default(),
            placement: PlacementTracker::default(),
            transitions: crate::transitions::Transitions::default(),
            up_before: (0, BTreeSet::new()),
            settings: RefCell::default(),
            q: Quorum::new(identity, boot, seeds),
            gids: Arc::default(),
            queue: VecDeque::new(),
            inflight: None,
            one_by_one: 0,
            undone: BTreeMap::new(),
            last_commit: 0,
            last_look: UTime::ZERO,
            entropy,
            auth_safe: false,
            company: Vec::new(),
        };
        if new {
            mon.q.stored = Some(stored);
        } else {
            mon.open_node(&stored)?;
        }
        Ok(mon)
    }

    /// Begins. Clients are taken once the quorum has given this monitor global ids.
    pub fn start(&mut self, now: impl Into<Now>, out: &mut Vec<MonEffect>) {
        let now = now.into();
        (self.now, self.steady, self.clock) = (now.wall, time::steady(now), Clock::new(now));
        self.judging_since = self.steady;
        self.drain(out);
        self.route(out);
    }

    /// Sets the facts that `mon metadata` shows (hostname, kernel, …).
    pub fn set_metadata(&mut self, metadata: crate::state::Metadata) {
        self.quorum.facts.insert(self.name.clone(), metadata.clone());
        self.metadata = metadata;
    }

    /// Sets the options that file, environment and command line give.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = RefCell::new(settings);
    }

    /// How much of the disk that holds this monitor's store is free, in per cent; `None` if nobody
    /// knows.
    pub fn set_room(&mut self, percent: Option<u32>) {
        match percent {
            Some(p) => self.quorum.room.insert(self.name.clone(), p.min(100)),
            None => self.quorum.room.remove(&self.name),
        };
    }

    /// An option of the monitors as the cluster's configuration has it, else as this monitor was
    /// started.
    fn own_option(&self, state: &State, name: &str) -> Option<u32> {
        let text = state
            .config
            .get_for("mon", name)
            .or_else(|| self.settings.borrow().get(name).map(str::to_owned));
        text.and_then(|t| t.parse().ok())
    }

    /// Says whether nobody comes in without a key. Without that, whoever is in may do everything,
    /// and health says so.
    pub fn set_auth_safe(&mut self, safe: bool) {
        self.auth_safe = safe;
    }

    /// Names the monitors that share this one's process, itself included, if there are others: none
    /// of them can be removed.
    pub fn set_company(&mut self, names: Vec<String>) {
        self.company = names;
    }

    /// The cluster.
    pub fn fsid(&self) -> Uuid {
        self.fsid
    }

    /// The source of global ids, to be shared with the shell.
    pub fn global_ids(&self) -> Arc<GlobalIds> {
        self.gids.clone()
    }

    /// Commits asked for since the start.
    pub(crate) fn commits(&self) -> u64 {
        self.last_commit
    }

    /// Requests that wait for the commit under way.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// A new global id; see [`GlobalIds::next`].
    pub fn new_global_id(&self) -> Option<u64> {
        self.gids.next()
    }

    /// Its number in the quorum; 0 before it was let in.
    pub fn member(&self) -> MemberId {
        self.q.identity.member
    }

    /// True if this monitor leads.
    pub fn leads(&self) -> bool {
        self.q.leads()
    }

    /// Its part in the quorum, for checks from outside.
    pub fn node(&self) -> Option<&spirula_quorum::Node> {
        self.q.node.as_ref()
    }

    /// The committed state, for reports of the process that hosts this monitor.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What reports see now.
    pub fn view(&self) -> ClusterView<'_> {
        self.view_of(&self.state)
    }

    pub(crate) fn view_of<'a>(&'a self, state: &'a State) -> ClusterView<'a> {
        ClusterView {
            now: self.now,
            fsid: self.fsid,
            monmap: &state.monmap,
            quorum: &self.quorum,
            osdmap: &state.osdmap,
            settled_osdmap: state.settled_osdmap(),
            oldest_osdmap: state.oldest_osdmap(),
            mgrmap: &state.mgrmap,
            fsmap: &state.fsmap,
            mgr: &self.mgr.knowledge,
            mutes: &state.mutes,
            osd_metadata: &state.osd_metadata,
            mgr_metadata: &state.mgr_metadata,
            mds_health: &state.mds_health,
            room_bounds: (
                self.own_option(state, "mon_data_avail_crit").unwrap_or(5),
                self.own_option(state, "mon_data_avail_warn").unwrap_or(30),
            ),
            config: &state.config,
            defaults: &state.defaults,
            kv: &state.kv,
            auth_safe: self.auth_safe,
            auth: &state.auth,
            log: &state.log,
            creating_pgs: state.creating.len(),
            pairs: &self.osds.pairs.shown,
            undone: &self.undone,
        }
    }

    pub(crate) fn speaker(&self) -> Speaker {
        let rank = self.state.monmap.rank_of(&self.name).unwrap_or(0);
        let addrs =
            self.state.monmap.by_rank(rank).map_or_else(AddrVec::default, |m| m.addrs.clone());
        Speaker { name: self.name.clone(), rank: rank as i64, addrs }
    }

    /// Advances by one event. Never blocks.
    pub fn handle(&mut self, now: impl Into<Now>, event: MonEvent, out: &mut Vec<MonEffect>) {
        let now = now.into();
        (self.now, self.steady) = (now.wall, time::steady(now));
        self.clock.see(now);
        let stood_still = self.osds.ran(self.steady);
        let first = out.len();
        self.mds.stood_still(stood_still, self.steady);
        if stood_still >= STOOD_STILL {
            self.leave_clients(out);
        }
        match event {
            MonEvent::SessionOpened { conn, peer } => {
                self.announce(conn, &peer, true, out);
                self.open_session(conn, peer);
            }
            MonEvent::SessionClosed { conn } => self.end_session(conn, out),
            MonEvent::Message { conn, message } => {
                if let Err(e) = self.on_message(conn, message, out) {
                    self.malformed(conn, &e, out);
                }
            }
            MonEvent::Persisted(number) => self.on_persisted(number, out),
            MonEvent::More => self.answer_ready(out),
            MonEvent::Tick => {
                self.quorum_tick(out);
                self.answer_ready(out);
                self.tell_silence(out);
                self.turn_of_snaps(out);
                self.tick_proxy(out);
                let since = self.steady.as_nanos().abs_diff(self.last_look.as_nanos());
                if self.q.leads() && since >= TICK_NANOS {
                    self.last_look = self.steady;
                    self.tick_parts(out);
                }
            }
        }
        self.route(out.get_mut(first..).unwrap_or_default());
    }

    /// This monitor did not run for so long that its clients have gone to others, and asked those
    /// again for what lies unread in its sockets. It may be done by now, so long ago that nobody
    /// remembers it ([`crate::done`]), and is not to be done once more.
    fn leave_clients(&mut self, out: &mut Vec<MonEffect>) {
        let left = |(conn, s): (&ConnId, &Session)| {
            (*conn < crate::quorum::REMOTE && s.peer.kind == EntityType::Client).then_some(*conn)
        };
        for conn in self.sessions.iter().filter_map(left).collect::<Vec<_>>() {
            self.end_session(conn, out);
            out.push(MonEffect::Close(conn));
        }
    }

    pub(crate) fn open_session(&mut self, conn: ConnId, peer: Peer) {
        if peer.kind == EntityType::Osd {
            self.osds.session_opened(&peer);
        }
        let mut session = Session::new(peer);
        if !self.auth_safe {
            session.access = Access::Everything;
        }
        self.sessions.insert(conn, session);
    }

    /// A session with this monitor is over: the leader is told.
    fn end_session(&mut self, conn: ConnId, out: &mut Vec<MonEffect>) {
        if let Some(s) = self.sessions.get(&conn) {
            self.announce(conn, &s.peer, false, out);
        }
        self.close_session(conn);
    }

    pub(crate) fn close_session(&mut self, conn: ConnId) {
        if let Some(s) = self.sessions.remove(&conn) {
            self.osds.session_closed(conn, &s.peer, self.steady);
            self.mgr.session_closed(conn, &s.peer, self.steady);
            self.forget_asks(conn);
        }
    }

    /// Whoever sends what cannot be read gets no answer, and must not wait for one: its connection
    /// ends, as at Ceph's monitors. Another monitor's goes on: what it says, it repeats.
    pub(crate) fn malformed(&self, conn: ConnId, e: &MessageError, out: &mut Vec<MonEffect>) {
        let Some(s) = self.sessions.get(&conn) else { return };
        tracing::warn!(conn, peer = s.peer.auth_name(), error = %e, "malformed message");
        if s.peer.kind != EntityType::Mon {
            out.push(MonEffect::Close(conn));
        }
    }

    fn on_message(
        &mut self,
        conn: ConnId,
        m: Message,
        out: &mut Vec<MonEffect>,
    ) -> Result<(), MessageError> {
        let Some(session) = self.sessions.get(&conn) else { return Ok(()) };
        if session.peer.kind == EntityType::Mon && matches!(session.access, Access::Everything) {
            let (name, addrs) = (session.peer.id.clone(), session.peer.addrs.clone());
            if self.on_peer_message(&name, &addrs, &m, out)? {
                return Ok(());
            }
        }
        let Some(session) = self.sessions.get(&conn) else { return Ok(()) };
        let command = matches!(m.kind, kind::MON_COMMAND | kind::COMMAND);
        let limited = command || matches!(session.peer.kind, EntityType::Client | EntityType::Mds);
        let bytes = bytes_of(&m);
        let too_large = bytes > REQUEST_MAX
            || bytes > POOL_OP_MAX && m.kind == kind::POOL_OP
            || m.front.len() > COMMAND_MAX
            || bytes > READ_MAX && only_reads(&m, Command::in_message(&m).as_ref());
        if limited && too_large {
            tracing::warn!(
                peer = session.peer.auth_name(),
                kind = m.kind,
                "a request that is too large, refused"
            );
            out.extend(access::too_large(&m).map(|m| MonEffect::Send(conn, m)));
            return Ok(());
        }
        if limited && bytes > READ_MAX && self.waiting_bytes() + bytes > WAITING_MAX {
            tracing::warn!(
                peer = session.peer.auth_name(),
                "too many large requests wait, closing"
            );
            out.push(MonEffect::Close(conn));
            return Ok(());
        }
        let m = match access::rule(&session.access, &session.peer, &self.state, m)? {
            Ruling::Go(m) => m,
            Ruling::Refused(answer) => {
                out.extend(answer.map(|m| MonEffect::Send(conn, m)));
                return Ok(());
            }
        };
        match m.kind {
            kind::MON_GET_MAP => {
                let monmap = spirula_encoding::to_vec(&*self.state.monmap).into();
                out.push(MonEffect::Send(conn, MMonMap { monmap }.into_message(m.tid)));
            }
            kind::AUTH => return self.on_auth(conn, &m, out),
            kind::PING => {
                let text = commands::ping_text(self);
                out.push(MonEffect::Send(conn, MPing { text: Some(text) }.into_message(m.tid)));
            }
            kind::COMMAND if let Some(c) = Command::in_message(&m).filter(Command::is_own) => {
                // About this monitor itself: needs no quorum.
                if c.asks_to_compact() {
                    self.compact(out);
                }
                self.on_read(conn, &m, out)?;
            }
            kind::MON_SUBSCRIBE | kind::MON_GET_VERSION | kind::STATFS | kind::GET_POOL_STATS => {
                self.await_read(Ask { conn, message: m, via: None }, out)
            }
            OsdBeacon::KIND => {
                let b = OsdBeacon::from_message(&m)?;
                if let Ok(osd) = session.peer.id.parse() {
                    self.osds.beacons.heard(osd, conn, b.every_ms, self.steady);
                }
            }
            MgrDigest::KIND => {
                let peer = session.peer.clone();
                self.relay(&peer, &m, out);
                self.on_manager(&peer.id, &m, out)?;
            }
            MgrRan::KIND if session.peer.kind == EntityType::Mgr => {
                let peer = session.peer.clone();
                self.relay_to_leader(&peer, &m, out);
                self.on_manager(&peer.id, &m, out)?;
            }
            kind::MON_COMMAND
            | kind::COMMAND
            | kind::POOL_OP
            | kind::LOG
            | kind::REMOVE_SNAPS
            | kind::MDS_BEACON
            | kind::MDS_OFFLOAD_TARGETS
            | OsdBoot::KIND
            | OsdMarkMeDown::KIND
            | OsdFailureReport::KIND
            | OsdAlive::KIND
            | OsdPgTemp::KIND
            | PgMerges::KIND
            | PgCreateAsk::KIND
            | PgsCreated::KIND
            | MonRun::KIND
            | MgrBeacon::KIND => self.lead(Ask { conn, message: m, via: None }, out),
            other => tracing::debug!(conn, kind = other, "message of unknown type ignored"),
        }
        Ok(())
    }

    /// Those who lack OSD maps, of which they were sent some. Whoever feeds messages looks now and
    /// then, and has the next ones sent to who has taken those ([`Self::send_next_osdmaps`]).
    pub fn owed_osdmaps(&self) -> Vec<ConnId> {
        self.sessions.iter().filter(|(_, s)| s.is_owed_osdmaps()).map(|(conn, _)| *conn).collect()
    }

    /// Sends the next OSD maps to one of [`Self::owed_osdmaps`].
    pub fn send_next_osdmaps(&mut self, conn: ConnId, out: &mut Vec<MonEffect>) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.go_on(conn, self.fsid, &self.state, out);
        }
    }

    /// Answers what only reads, from the state as it is.
    pub(crate) fn on_read(
        &mut self,
        conn: ConnId,
        m: &Message,
        out: &mut Vec<MonEffect>,
    ) -> Result<(), MessageError> {
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        let tid = m.tid;
        let mut reply = |m: Message| out.push(MonEffect::Send(conn, m));
        match m.kind {
            kind::MON_SUBSCRIBE => {
                let s = MMonSubscribe::from_message(m)?;
                // What is asked for is what comes next.
                let wanted = s
                    .what
                    .iter()
                    .filter(|w| w.what == "osdmap")
                    .map(|w| w.start.saturating_sub(1))
                    .max();
                let peer = session.peer.clone();
                self.note_newest(&peer, wanted.unwrap_or_default());
                let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
                session.subscribe(s.what, s.hostname);
                session.push(conn, self.fsid, &self.state, out);
            }
            kind::MON_GET_VERSION => {
                let q = MMonGetVersion::from_message(m)?;
                let (newest, oldest) = self.version_of(&q.what);
                reply(MMonGetVersionReply { handle: q.handle, newest, oldest }.into_message(tid));
            }
            kind::STATFS => {
                let q = MStatfs::from_message(m)?;
                reply(self.statfs(&q).into_message(tid));
            }
            kind::GET_POOL_STATS => {
                let q = MGetPoolStats::from_message(m)?;
                reply(self.pool_stats(&q).into_message(tid));
            }
            kind::MON_COMMAND => {
                let c = MMonCommand::from_message(m)?;
                self.read_command(conn, tid, Form::Asked, c.cmd, &c.input, out);
            }
            kind::COMMAND => {
                let c = MCommand::from_message(m)?;
                self.read_command(conn, tid, Form::Told, c.cmd, &c.input, out);
            }
            MonRun::KIND => {
                let r = MonRun::from_message(m)?;
                if let Some(asker) = crate::quorum::peer_of(r.asker) {
                    let form = Form::ByManager { id: r.id, asker, limited: r.limited };
                    self.read_command(conn, tid, form, r.cmd, &r.input, out);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs a request about a snapshot or a fence when it is its turn.
    pub(crate) fn submit_in_turn(&mut self, ask: Ask, out: &mut Vec<MonEffect>) {
        let most = self.share(&ask, TURNS_MAX);
        match self.snaps.keep(ask, most, self.steady) {
            Kept::Now(ask) => self.submit(Request::Ask(ask), out),
            Kept::Waits => {}
            Kept::NoRoom(ask) => {
                if ask.via.is_none() {
                    tracing::warn!(
                        ask.conn,
                        "too many requests about snapshots wait for their turn"
                    );
                }
                self.no_room(&ask, out);
            }
        }
    }

    /// Does what is done from time to time, if this monitor leads.
    pub(crate) fn tick_parts(&mut self, out: &mut Vec<MonEffect>) {
        if !self.q.leads() {
            self.undone.clear();
            return;
        }
        for part in Part::ALL {
            // One that waits for a commit still is not asked for twice.
            if !self.queue.iter().any(|r| matches!(r, Request::Tick(p) if *p == part)) {
                self.queue.push_back(Request::Tick(part));
            }
        }
        if self.inflight.is_none() {
            self.batch(out);
        }
    }

    /// Runs together what waited for its turn. Nothing waits at a monitor that does not lead.
    fn turn_of_snaps(&mut self, out: &mut Vec<MonEffect>) {
        let due = self.snaps.due(self.steady);
        if due.is_empty() {
            return;
        }
        self.queue.extend(due.into_iter().map(Request::Ask));
        if self.inflight.is_none() {
            self.batch(out);
        }
    }

    /// Runs a request now, or when the commit under way is done.
    pub(crate) fn submit(&mut self, request: Request, out: &mut Vec<MonEffect>) {
        if self.inflight.is_some() {
            let most = if let Request::Ask(ask) = &request {
                self.share(ask, QUEUE_MAX)
            } else {
                QUEUE_MAX
            };
            if self.queue.len() < most {
                self.queue.push_back(request);
            } else if let Request::Ask(ask) = request {
                tracing::warn!(ask.conn, "too many requests wait for a commit");
                self.no_room(&ask, out);
            }
            return;
        }
        if self.q.leads() {
            self.queue.push_back(request);
            self.batch(out);
        } else if let Request::Ask(ask) = request {
            self.lead(ask, out);
        }
    }

    /// Runs what waits, as much of it as goes into one batch, and proposes what it came to.
    fn batch(&mut self, out: &mut Vec<MonEffect>) {
        // What puts itself back into the queue meanwhile is for a later time.
        let mut left = self.queue.len();
        while left > 0 && self.inflight.is_none() && self.q.leads() {
            let needed = self.mgr.knowledge.digest.oldest_needed;
            let mut work =
                Work::new(self.state.clone(), self.now, self.speaker()).needing_maps_from(needed);
            self.follow_clock(&mut work);
            let (mut requests, mut asks, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut said = None;
            while left > 0
                && bytes < BATCH_BYTES
                && let Some(request) = self.queue.pop_front()
            {
                // What was not possible last time is tried by itself: others in its batch would
                // have to be done twice.
                let alone = self.is_undone(&request);
                if alone && !requests.is_empty() {
                    self.queue.push_front(request);
                    break;
                }
                left -= 1;
                bytes += request.bytes();
                if let Request::Ask(ask) = &request {
                    asks.push(ask.clone());
                }
                if matches!(request, Request::Tick(Part::Rest)) {
                    said = Some((self.transitions.clone(), self.scrub_lines().clone()));
                }
                requests.push(request.clone());
                self.run(request, &mut work);
                if self.one_by_one > 0 {
                    self.one_by_one -= 1;
                    break;
                }
                if alone {
                    break;
                }
            }
            self.keep_gids(&mut work);
            self.last_commit += 1;
            let id = self.last_commit;
            let made = work.fold().and_then(|()| self.rehearse(id, &work.state.diff(&self.state)));
            if made.is_err()
                && let Some((transitions, lines)) = said
            {
                // The lines of the cluster log that were in it are not written: they are said
                // again.
                self.transitions = transitions;
                *self.scrub_lines() = lines;
            }
            let (state, data) = match made {
                Ok(made) => {
                    self.note_done(&requests);
                    made.unwrap_or_else(|| (self.state.clone(), Vec::new()))
                }
                Err(why) if requests.len() > 1 => {
                    // Which of them it is shows when each is done by itself.
                    tracing::warn!(
                        why,
                        requests = requests.len(),
                        "a batch of changes is not possible; one by one"
                    );
                    self.one_by_one = requests.len();
                    left += requests.len();
                    requests.into_iter().rev().for_each(|r| self.queue.push_front(r));
                    continue;
                }
                Err(why) => {
                    self.note_undone(&requests, &why);
                    work.refuse(&why);
                    (self.state.clone(), Vec::new())
                }
            };
            let Work { replies, stops, after, .. } = work;
            let batch = InFlight { id, state, replies, stops, asks, after, since: self.ticks() };
            if data.is_empty() {
                if !batch.replies.is_empty() || !batch.asks.is_empty() || !batch.after.is_empty() {
                    self.await_confirmation(batch, out);
                }
                continue;
            }
            self.inflight = Some(batch);
            if !self.propose_entry(data, out) {
                let asks = self.inflight.take().map(|f| f.asks).unwrap_or_default();
                // Not again at once, whatever the quorum says of who leads: that might have no end.
                self.park(asks);
            }
        }
    }

    /// A request that is alone in its batch is not possible. What is done from time to time is
    /// tried again: that it fails is in health, and in the log once.
    fn note_undone(&mut self, requests: &[Request], why: &str) {
        let part = requests
            .iter()
            .find_map(|r| if let Request::Tick(part) = r { Some(part.name()) } else { None });
        let news = part
            .is_none_or(|part| self.undone.insert(part, why.to_owned()).as_deref() != Some(why));
        if news {
            tracing::error!(why, task = part, "a change is not possible; dropped");
        }
    }

    /// Is this done from time to time, and was not possible last time?
    fn is_undone(&self, request: &Request) -> bool {
        matches!(request, Request::Tick(part) if self.undone.contains_key(part.name()))
    }

    fn note_done(&mut self, requests: &[Request]) {
        for request in requests {
            if let Request::Tick(part) = request {
                self.undone.remove(part.name());
            }
        }
    }

    /// Extends the range of global ids in good time.
    fn keep_gids(&self, work: &mut Work) {
        if self.gids.left() < GID_STEP / 2 {
            let from = work.state.gid_limit;
            work.state.gid_limit += GID_STEP;
            work.after.push(After::OwnIds(from, work.state.gid_limit));
        }
    }

    /// The batch under way is agreed on.
    pub(crate) fn on_committed(&mut self, out: &mut Vec<MonEffect>) {
        let Some(done) = self.inflight.take() else { return };
        self.state = done.state.clone();
        self.state_changed(out);
        self.say(done, out);
        self.batch(out);
    }

    /// Says what a finished batch has to say.
    pub(crate) fn say(&mut self, done: InFlight, out: &mut Vec<MonEffect>) {
        for (conn, reply) in done.replies {
            out.push(MonEffect::Send(conn, self.reply_message(reply)));
        }
        self.tell_stopped(&done.stops, out);
        self.perform_after(done.after, out);
        for ask in done.asks {
            self.forward_done(ask.via, out);
        }
    }

    /// Tells OSDs that were asked to stop and are now marked down.
    fn tell_stopped(&self, osds: &[OsdId], out: &mut Vec<MonEffect>) {
        for &osd in osds {
            let epoch = self.state.osdmap.epoch;
            for conn in self.conns_of_osd(osd) {
                out.push(MonEffect::Send(conn, OsdStop { osd, epoch }.into_message(0)));
            }
        }
    }

    /// A daemon has an OSD map of this epoch, which monitors agreed on before anybody had it. If
    /// there is no such epoch here, after a majority's word, an older copy of a monitor's store was
    /// put in the place of a newer one.
    fn note_newest(&mut self, peer: &Peer, epoch: u64) {
        let here = self.state.osdmap.epoch;
        let daemon = matches!(peer.kind, EntityType::Osd | EntityType::Mgr);
        let name = peer.auth_name();
        if !daemon || epoch <= here.into() {
            self.quorum.forgotten.remove(&name);
            return;
        }
        let epoch = Epoch::try_from(epoch).unwrap_or(Epoch::MAX);
        if self.quorum.forgotten.insert(name.clone(), epoch).is_none() {
            tracing::error!(
                here,
                "{name} has OSD map {epoch}: this monitor's store is an older copy than the \
                    cluster has seen; stop it and put the \
                 newest one back, or fill it again from the other monitors ('spirula mon rejoin')"
            );
        }
    }

    /// Puts a boot back into the queue, for after the commit that marks its OSD down.
    pub(crate) fn requeue(&mut self, conn: ConnId, b: OsdBoot) {
        self.queue.push_back(Request::Ask(Ask { conn, message: b.into_message(0), via: None }));
    }

    fn conns_of_osd(&self, osd: OsdId) -> Vec<ConnId> {
        let is = |s: &Session| s.peer.kind == EntityType::Osd && s.peer.id.parse() == Ok(osd);
        self.sessions.iter().filter(|(_, s)| is(s)).map(|(c, _)| *c).collect()
    }

    fn reply_message(&self, reply: Reply) -> Message {
        let epoch = self.state.osdmap.epoch;
        match reply {
            Reply::Command { tid, cmd, result, form: Form::Asked } => MMonCommandAck {
                version: u64::from(epoch),
                result: result.ret,
                status: result.rs,
                cmd,
                output: result.data,
            }
            .into_message(tid),
            Reply::Command { tid, result, form: Form::Told, .. } => {
                MCommandReply { result: result.ret, status: result.rs, output: result.data }
                    .into_message(tid)
            }
            Reply::Command { tid, result, form: Form::ByManager { id, .. }, .. } => {
                MonRan { id, result: result.ret, status: result.rs, output: result.data }
                    .into_message(tid)
            }
            Reply::PoolOp { tid, result, data } => {
                MPoolOpReply { version: u64::from(epoch), fsid: self.fsid, result, epoch, data }
                    .into_message(tid)
            }
            Reply::RemovedSnaps { tid, removed } => removed.into_message(tid),
            Reply::MarkedDown(osd) => OsdMarkMeDownAck { osd, epoch }.into_message(0),
            Reply::Ready(m) => m,
        }
    }

    /// Runs a request against the batch. Malformed ones were found before or are dropped.
    fn run(&mut self, request: Request, work: &mut Work) {
        let (conn, m) = match request {
            Request::Tick(Part::Osds) => {
                self.tick_osds(work);
                self.step_merges(work);
                self.step_placement(work);
                self.prune_snaps(work);
                return;
            }
            Request::Tick(Part::Managers) => return self.tick_mgr(work),
            Request::Tick(Part::MetadataServers) => return self.tick_mds(work),
            Request::Tick(Part::Rest) => {
                self.tick_mutes(work);
                self.tick_health(work);
                self.tick_auth(work);
                commands::join::forget_ended(work);
                for (severity, line) in self.take_scrub_lines() {
                    work.log(severity, line);
                }
                return;
            }
            Request::Join(j) => return self.run_join(j, work),
            Request::Ids(member) => {
                let from = work.state.gid_limit;
                work.state.gid_limit += GID_STEP;
                work.after.push(After::Ids(member, from, work.state.gid_limit));
                return;
            }
            Request::Ask(ask) => (ask.conn, ask.message),
        };
        if let Err(e) = self.run_message(conn, m, work) {
            work.after.push(After::Malformed(conn, e));
        }
    }

    fn run_message(
        &mut self,
        conn: ConnId,
        m: Message,
        work: &mut Work,
    ) -> Result<(), MessageError> {
        let Some(session) = self.sessions.get(&conn) else { return Ok(()) };
        let peer = session.peer.clone();
        // Daemons' messages count only from that daemon.
        let own_osd = |osd: OsdId| peer.kind == EntityType::Osd && peer.id.parse() == Ok(osd);
        match m.kind {
            kind::MON_COMMAND => {
                let c = MMonCommand::from_message(&m)?;
                let result = self.once(&peer, &m, work, |mon, work| {
                    mon.write_command(&peer, work, &c.cmd, &c.input, false)
                });
                work.replies.push((
                    conn,
                    Reply::Command { tid: m.tid, cmd: c.cmd, result, form: Form::Asked },
                ));
            }
            kind::COMMAND => {
                let c = MCommand::from_message(&m)?;
                let result = self.once(&peer, &m, work, |mon, work| {
                    mon.write_command(&peer, work, &c.cmd, &c.input, true)
                });
                work.replies.push((
                    conn,
                    Reply::Command { tid: m.tid, cmd: c.cmd, result, form: Form::Told },
                ));
            }
            MonRun::KIND => {
                let r = MonRun::from_message(&m)?;
                if let Some(asker) = crate::quorum::peer_of(r.asker) {
                    let result = self.once(&asker, &m, work, |mon, work| {
                        mon.write_command(&asker, work, &r.cmd, &r.input, false)
                    });
                    let form = Form::ByManager { id: r.id, asker, limited: r.limited };
                    work.replies
                        .push((conn, Reply::Command { tid: m.tid, cmd: r.cmd, result, form }));
                }
            }
            kind::POOL_OP => {
                let op = MPoolOp::from_message(&m)?;
                let done = self.once(&peer, &m, work, |mon, work| {
                    let (ret, data) = crate::pools::pool_op(work, mon.fsid, &op);
                    CommandResult { ret, rs: String::new(), data: data.unwrap_or_default() }
                });
                let data = Some(done.data).filter(|d| !d.is_empty());
                work.replies.push((conn, Reply::PoolOp { tid: m.tid, result: done.ret, data }));
            }
            kind::REMOVE_SNAPS => {
                let mut r = MRemoveSnaps::from_message(&m)?;
                crate::snaps::remove_snaps(work, &mut r);
                work.replies.push((conn, Reply::RemovedSnaps { tid: m.tid, removed: r }));
            }
            kind::LOG => {
                let log = MLog::from_message(&m)?;
                if let Some(last) = log.entries.last().map(|e| e.seq) {
                    // Whatever it says of itself, it speaks in its own name.
                    let own =
                        |e| LogEntry { name_kind: peer.kind as u32, name_id: peer.id.clone(), ..e };
                    log.entries.into_iter().for_each(|e| work.log_entry(own(e)));
                    let ack = MLogAck { fsid: self.fsid, last, channel: String::new() };
                    work.replies.push((conn, Reply::Ready(ack.into_message(m.tid))));
                }
            }
            OsdBoot::KIND => {
                let b = OsdBoot::from_message(&m)?;
                if own_osd(b.osd) {
                    self.note_newest(&peer, b.newest_map.into());
                    self.osd_boot(conn, b, work);
                }
            }
            OsdMarkMeDown::KIND => {
                let d = OsdMarkMeDown::from_message(&m)?;
                if own_osd(d.osd) {
                    self.osd_mark_me_down(conn, &d, work);
                }
            }
            OsdFailureReport::KIND => {
                let r = OsdFailureReport::from_message(&m)?;
                if own_osd(r.reporter) {
                    self.osd_failure(&r, work);
                }
            }
            OsdAlive::KIND => {
                let a = OsdAlive::from_message(&m)?;
                if own_osd(a.osd) {
                    Self::osd_alive(&a, work);
                }
            }
            OsdPgTemp::KIND => {
                let t = OsdPgTemp::from_message(&m)?;
                if own_osd(t.osd) {
                    Self::osd_pg_temp(&t, work);
                }
            }
            PgMerges::KIND => {
                let m = PgMerges::from_message(&m)?;
                if own_osd(m.osd) {
                    self.pg_merges(m, work);
                }
            }
            PgCreateAsk::KIND => {
                let ask = PgCreateAsk::from_message(&m)?;
                if own_osd(ask.osd) {
                    let grant = crate::pools::grant(work, &ask);
                    work.replies.push((conn, Reply::Ready(grant.into_message(m.tid))));
                }
            }
            PgsCreated::KIND => {
                let c = PgsCreated::from_message(&m)?;
                if own_osd(c.osd) {
                    let ack = PgsCreatedAck { pgids: crate::pools::pgs_created(work, &c.pgids) };
                    work.replies.push((conn, Reply::Ready(ack.into_message(m.tid))));
                }
            }
            MgrBeacon::KIND => {
                let b = MgrBeacon::from_message(&m)?;
                if peer.kind == EntityType::Mgr {
                    self.mgr_beacon(conn, &peer, b, work);
                }
            }
            kind::MDS_BEACON if peer.kind == EntityType::Mds => {
                self.mds_beacon(conn, &peer, MMdsBeacon::from_message(&m)?, work);
            }
            kind::MDS_OFFLOAD_TARGETS if peer.kind == EntityType::Mds => {
                self.mds_targets(&peer, &MMdsLoadTargets::from_message(&m)?, work);
            }
            _ => {}
        }
        Ok(())
    }

    fn read_command(
        &mut self,
        conn: ConnId,
        tid: u64,
        form: Form,
        cmd: Vec<String>,
        input: &Bytes,
        out: &mut Vec<MonEffect>,
    ) {
        let Some(session) = self.sessions.get(&conn) else { return };
        let mut work = Work::new(self.state.clone(), self.now, self.speaker());
        let peer = match &form {
            Form::ByManager { asker, limited, .. } => {
                if *limited {
                    access::hide_from_user(asker, &mut work);
                }
                asker
            }
            Form::Asked | Form::Told => {
                self.hide_from(conn, &mut work);
                &session.peer
            }
        };
        let request =
            commands::Request { peer, cmd: &cmd, input, random: [0; 32], tell: form == Form::Told };
        let result = commands::run(self, &mut work, &request);
        // Whatever a read-only handler did to the copy is forgotten with it.
        out.push(MonEffect::Send(
            conn,
            self.reply_message(Reply::Command { tid, cmd, result, form }),
        ));
    }

    /// Does something unless the same request was done before: then its answer is the first one.
    fn once(
        &mut self,
        peer: &Peer,
        m: &Message,
        work: &mut Work,
        act: impl FnOnce(&mut Self, &mut Work) -> CommandResult,
    ) -> CommandResult {
        let known = peer.global_id != 0 && m.tid != 0;
        if known && let Some(d) = work.done_before(peer.global_id, m.kind, m.tid) {
            return CommandResult { ret: d.ret, rs: d.rs.clone(), data: d.data.clone() };
        }
        let result = act(self, work);
        if known && result.ret == 0 {
            let (rs, data) = (result.rs.clone(), result.data.clone());
            let done = Done {
                global_id: peer.global_id,
                kind: m.kind,
                tid: m.tid,
                ret: result.ret,
                rs,
                data,
            };
            work.keep_done(done);
        }
        result
    }

    fn write_command(
        &mut self,
        peer: &Peer,
        work: &mut Work,
        cmd: &[String],
        input: &Bytes,
        tell: bool,
    ) -> CommandResult {
        let mut random = [0; 32];
        (self.entropy)(&mut random);
        let mut trial = work.clone();
        let request = commands::Request { peer, cmd, input, random, tell };
        let result = commands::run(self, &mut trial, &request);
        if result.ret == 0 {
            *work = trial;
        }
        commands::audit(work, peer, cmd, &result);
        result
    }

    fn version_of(&self, what: &str) -> (u64, u64) {
        let s = &self.state;
        match what {
            "osdmap" => (s.osdmap.epoch.into(), s.oldest_osdmap().into()),
            "monmap" => (s.monmap.epoch.into(), 1),
            "mgrmap" => (s.mgrmap.epoch.into(), 1),
            "fsmap" | "mdsmap" => (s.fsmap.epoch.into(), 1),
            "config" => (s.config.version, 1),
            "log" | "logm" => (s.log.last(), 1),
            _ => (0, 0),
        }
    }

    fn statfs(&self, q: &MStatfs) -> MStatfsReply {
        let digest = &self.mgr.knowledge.digest;
        let mut reply = MStatfsReply {
            fsid: self.fsid,
            version: self.state.osdmap.epoch.into(),
            ..Default::default()
        };
        let pools = digest.pools.iter().filter(|(id, _)| q.pool.is_none_or(|p| p == **id));
        reply.num_objects = pools.map(|(_, p)| p.stat.stats.sum.num_objects.max(0) as u64).sum();
        let sum = digest.osd_sum(|_| true).statfs;
        let kib = |v: i64| v.max(0) as u64 / 1024;
        (reply.kb, reply.kb_used, reply.kb_avail) =
            (kib(sum.total), kib(sum.used_raw()), kib(sum.available));
        if let Some((pool, stored)) =
            q.pool.and_then(|p| Some((p, digest.pools.get(&p)?.stat.stats.sum.num_bytes)))
        {
            // One pool's view: what it holds, and what it could still take.
            let avail = crate::pools::max_avail(&self.view(), pool);
            (reply.kb_used, reply.kb_avail) = (kib(stored), avail / 1024);
            reply.kb = reply.kb_used + reply.kb_avail;
        }
        reply
    }

    fn pool_stats(&self, q: &MGetPoolStats) -> MGetPoolStatsReply {
        let mut pools = BTreeMap::new();
        for name in &q.pools {
            let Some(id) = self.state.osdmap.pool_by_name(name) else { continue };
            let stat = self.mgr.knowledge.digest.pools.get(&id).map(|p| p.stat).unwrap_or_default();
            // The same struct on the wire: `spirula-messages` carries its own copy of the type.
            let bytes = spirula_encoding::to_vec(&stat);
            if let Ok(stats) = spirula_encoding::from_slice(&bytes) {
                pools.insert(name.clone(), stats);
            }
        }
        MGetPoolStatsReply {
            version: self.state.osdmap.epoch.into(),
            fsid: self.fsid,
            pools,
            per_pool: true,
        }
    }

    /// Keys of services that are due.
    fn tick_auth(&mut self, work: &mut Work) {
        let draw = &mut |out: &mut [u8]| (self.entropy)(out);
        let due = work.state.service_keys.due(self.now, Policy::default().lifetimes, draw);
        for (service, keys) in due {
            Arc::make_mut(&mut work.state.service_keys).set(service, keys);
        }
    }

    /// What became of the cluster's health goes into its log.
    fn tick_health(&mut self, work: &mut Work) {
        let (since, now) = (self.judging_since, self.now);
        if !self.transitions.due(since, now) {
            return;
        }
        let health = crate::report::health::Health::of(&self.view());
        for (severity, line) in self.transitions.step(since, now, health.checks()) {
            work.log(severity, line);
        }
    }

    fn tick_mutes(&self, work: &mut Work) {
        if work.state.mutes.is_empty() {
            return;
        }
        let ended = crate::report::health::Health::of(&self.view()).ended_mutes();
        if !ended.is_empty() {
            Arc::make_mut(&mut work.state.mutes).retain(|code, _| !ended.contains(code));
        }
    }
}
