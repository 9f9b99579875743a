//! The monitor's state machine: who is connected, what is asked, what becomes durable.
//!
//! Reads are answered from the committed state at once. Changes are gathered in a batch
//! ([`Work`]): a request that changes something starts one and proposes it; requests that
//! come while it is being made durable wait and form the next batch together, so a burst
//! costs two commits and two map epochs. What a change has to say is said after its
//! [`MonEvent::Committed`], maps first.

use crate::commands::{self, CommandResult};
use crate::event::{CommitId, ConnId, MonEffect, MonEvent, Peer};
use crate::mgr::MgrTracker;
use crate::osd::OsdTracker;
use crate::session::Session;
use crate::state::{LoadError, State};
use crate::view::{ClusterView, QuorumInfo};
use crate::work::{InFlight, Reply, Speaker, Work};
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_format::Format;
use spirula_messages::ceph::{
    MAuth, MAuthReply, MCommand, MCommandReply, MGetPoolStats, MGetPoolStatsReply, MLog, MLogAck, MMonCommand,
    MMonCommandAck, MMonGetVersion, MMonGetVersionReply, MMonMap, MMonSubscribe, MPing, MPoolOp, MPoolOpReply,
    MRemoveSnaps, MStatfs, MStatfsReply, kind,
};
use spirula_messages::cluster::control::{
    MgrBeacon, MgrDigest, OsdAlive, OsdBoot, OsdFailureReport, OsdMarkMeDown, OsdMarkMeDownAck, OsdPgTemp, OsdStop,
    PgCreateAsk, PgCreateGrant, PgsCreated, PgsCreatedAck,
};
use spirula_messages::{Body, Message, MessageError};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, OsdId, Uuid};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests waiting for the commit before theirs; more are dropped with their connection.
const QUEUE_MAX: usize = 8192;
/// Global ids taken from the durable counter at once.
const GID_STEP: u64 = 10_000;
/// The first global id of a new cluster.
pub(crate) const FIRST_GID: u64 = 4100;

/// Draws random bytes; given by the shell so that the state machine stays deterministic.
pub type Entropy = Box<dyn FnMut(&mut [u8]) + Send>;

/// Gives out global ids from a durable range; may be called from any thread.
#[derive(Debug, Default)]
pub struct GlobalIds {
    next: AtomicU64,
    limit: AtomicU64,
}

impl GlobalIds {
    /// The next id, never given out before, also not before a restart. `None` if the range is
    /// used up for the moment; the caller refuses the connection, the client comes again.
    pub fn next(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Acquire);
        let take = |n: u64| (n < limit).then_some(n + 1);
        self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()
    }

    fn left(&self) -> u64 {
        self.limit.load(Ordering::Acquire).saturating_sub(self.next.load(Ordering::Acquire))
    }
}

/// Something that may change the state, waiting for its turn.
enum Request {
    Message(ConnId, Message),
    Tick,
}

/// The monitor.
pub struct Mon {
    pub(crate) fsid: Uuid,
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) quorum: QuorumInfo,
    pub(crate) started: UTime,
    pub(crate) now: UTime,
    pub(crate) sessions: BTreeMap<ConnId, Session>,
    pub(crate) mgr: MgrTracker,
    pub(crate) osds: OsdTracker,
    /// Facts about ourselves, for `mon metadata`.
    pub(crate) metadata: crate::state::Metadata,
    /// Our own options; `ceph tell mon.N config set` changes them while commands read the rest.
    pub(crate) settings: RefCell<Settings>,
    gids: Arc<GlobalIds>,
    queue: VecDeque<Request>,
    inflight: Option<InFlight>,
    last_commit: CommitId,
    entropy: Entropy,
}

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
    /// Monitor `name` on a stored state ([`MonStore::keys`](crate::MonStore::keys)). Call
    /// [`Self::start`] before anything else.
    ///
    /// # Errors
    /// [`LoadError`] for a state that cannot be read, or that has no monitor of that name.
    pub fn open(keys: &BTreeMap<String, Bytes>, name: &str, now: UTime, entropy: Entropy) -> Result<Self, LoadError> {
        let state = State::load(keys)?;
        let rank = state.monmap.rank_of(name).ok_or_else(|| LoadError::Bad {
            key: "monmap".into(),
            why: format!("it has no monitor called '{name}'"),
        })?;
        let quorum = QuorumInfo {
            election_epoch: 3,
            quorum: vec![rank as u32],
            names: vec![name.to_owned()],
            leader: name.to_owned(),
            since: now,
        };
        let gids = Arc::new(GlobalIds::default());
        gids.next.store(state.gid_limit, Ordering::Release);
        gids.limit.store(state.gid_limit, Ordering::Release);
        Ok(Self {
            fsid: state.monmap.fsid,
            name: name.to_owned(),
            state,
            quorum,
            started: now,
            now,
            sessions: BTreeMap::new(),
            mgr: MgrTracker::default(),
            osds: OsdTracker::default(),
            metadata: BTreeMap::new(),
            settings: RefCell::default(),
            gids,
            queue: VecDeque::new(),
            inflight: None,
            last_commit: 0,
            entropy,
        })
    }

    /// Takes a range of global ids; connections may be accepted once the commit it asks for
    /// is done.
    pub fn start(&mut self, now: UTime, out: &mut Vec<MonEffect>) {
        self.handle(now, MonEvent::Tick, out);
    }

    /// Sets the facts that `mon metadata` shows (hostname, kernel, …).
    pub fn set_metadata(&mut self, metadata: crate::state::Metadata) {
        self.metadata = metadata;
    }

    /// Sets the options that file, environment and command line give.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = RefCell::new(settings);
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
            mgrmap: &state.mgrmap,
            fsmap: &state.fsmap,
            mgr: &self.mgr.knowledge,
            mutes: &state.mutes,
            osd_metadata: &state.osd_metadata,
            mgr_metadata: &state.mgr_metadata,
            config: &state.config,
            defaults: &state.defaults,
            kv: &state.kv,
            log: &state.log,
            creating_pgs: state.creating.len(),
        }
    }

    pub(crate) fn speaker(&self) -> Speaker {
        let rank = self.state.monmap.rank_of(&self.name).unwrap_or(0);
        let addrs = self.state.monmap.by_rank(rank).map_or_else(AddrVec::default, |m| m.addrs.clone());
        Speaker { name: self.name.clone(), rank: rank as i64, addrs }
    }

    /// Advances by one event. Never blocks.
    pub fn handle(&mut self, now: UTime, event: MonEvent, out: &mut Vec<MonEffect>) {
        self.now = now;
        match event {
            MonEvent::SessionOpened { conn, peer } => {
                if peer.kind == EntityType::Osd {
                    self.osds.session_opened(&peer);
                }
                self.sessions.insert(conn, Session::new(peer));
            }
            MonEvent::SessionClosed { conn } => {
                if let Some(s) = self.sessions.remove(&conn) {
                    self.osds.session_closed(&s.peer, now);
                    self.mgr.session_closed(&s.peer);
                }
            }
            MonEvent::Message { conn, message } => {
                if let Err(e) = self.on_message(conn, message, out) {
                    tracing::warn!(conn, error = %e, "malformed message ignored");
                }
            }
            MonEvent::Committed(id) => self.on_committed(id, out),
            MonEvent::Tick => self.submit(Request::Tick, out),
        }
    }

    fn on_message(&mut self, conn: ConnId, m: Message, out: &mut Vec<MonEffect>) -> Result<(), MessageError> {
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        let tid = m.tid;
        let mut reply = |m: Message| out.push(MonEffect::Send(conn, m));
        match m.kind {
            kind::MON_GET_MAP => {
                reply(MMonMap { monmap: spirula_encoding::to_vec(&*self.state.monmap).into() }.into_message(tid));
            }
            kind::MON_SUBSCRIBE => {
                let s = MMonSubscribe::from_message(&m)?;
                session.subscribe(s.what, s.hostname);
                session.push(conn, self.fsid, &self.state, out);
            }
            kind::MON_GET_VERSION => {
                let q = MMonGetVersion::from_message(&m)?;
                let (newest, oldest) = self.version_of(&q.what);
                reply(MMonGetVersionReply { handle: q.handle, newest, oldest }.into_message(tid));
            }
            kind::AUTH => {
                let a = MAuth::from_message(&m)?;
                // No tickets to hand out: whoever got in is authenticated.
                let global_id = session.peer.global_id;
                let answer = MAuthReply { protocol: a.protocol.max(1), global_id, ..MAuthReply::default() };
                reply(answer.into_message(tid));
            }
            kind::PING => {
                let text = commands::ping_text(self);
                reply(MPing { text: Some(text) }.into_message(tid));
            }
            kind::STATFS => {
                let q = MStatfs::from_message(&m)?;
                reply(self.statfs(&q).into_message(tid));
            }
            kind::GET_POOL_STATS => {
                let q = MGetPoolStats::from_message(&m)?;
                reply(self.pool_stats(&q).into_message(tid));
            }
            PgCreateAsk::KIND => {
                let q = PgCreateAsk::from_message(&m)?;
                reply(self.grant(&q).into_message(tid));
            }
            kind::MON_COMMAND => {
                let c = MMonCommand::from_message(&m)?;
                if commands::is_write(&c.cmd) {
                    self.submit(Request::Message(conn, m), out);
                } else {
                    self.read_command(conn, tid, c.cmd, &c.input, false, out);
                }
            }
            kind::COMMAND => {
                let c = MCommand::from_message(&m)?;
                if !commands::is_own(&c.cmd) && commands::is_write(&c.cmd) {
                    self.submit(Request::Message(conn, m), out);
                } else {
                    self.read_command(conn, tid, c.cmd, &c.input, true, out);
                }
            }
            MgrDigest::KIND => {
                let d = MgrDigest::from_message(&m)?;
                if self.mgr.take_digest(&self.state.mgrmap, d) {
                    self.submit(Request::Tick, out);
                }
            }
            kind::POOL_OP
            | kind::LOG
            | kind::REMOVE_SNAPS
            | OsdBoot::KIND
            | OsdMarkMeDown::KIND
            | OsdFailureReport::KIND
            | OsdAlive::KIND
            | OsdPgTemp::KIND
            | PgsCreated::KIND
            | MgrBeacon::KIND => self.submit(Request::Message(conn, m), out),
            other => tracing::debug!(conn, kind = other, "message of unknown type ignored"),
        }
        Ok(())
    }

    /// Runs a request now, or when the commit under way is done.
    fn submit(&mut self, request: Request, out: &mut Vec<MonEffect>) {
        if self.inflight.is_some() {
            if self.queue.len() < QUEUE_MAX {
                self.queue.push_back(request);
            } else if let Request::Message(conn, _) = request {
                tracing::warn!(conn, "too many requests wait for a commit, closing");
                out.push(MonEffect::Close(conn));
            }
            return;
        }
        let mut work = Work::new(self.state.clone(), self.now, self.speaker());
        self.run(request, &mut work);
        self.propose(work, out);
    }

    fn propose(&mut self, mut work: Work, out: &mut Vec<MonEffect>) {
        self.keep_gids(&mut work);
        if let Err(why) = work.fold_osdmap() {
            // The edits contradict the map: nothing of the batch is done, and it is said.
            tracing::error!(why, "a batch of changes to the OSD map does not apply; dropped");
            work.state = self.state.clone();
            for (_, reply) in &mut work.replies {
                match reply {
                    Reply::Command { result, .. } => {
                        *result = CommandResult::err(spirula_types::errno::EIO, format!("internal error: {why}"));
                    }
                    Reply::PoolOp { result, .. } => *result = -spirula_types::errno::EIO,
                    Reply::MarkedDown(_) | Reply::Ready(_) => {}
                }
            }
        }
        let txn = work.state.diff(&self.state);
        if txn.is_empty() {
            for (conn, reply) in work.replies {
                out.push(MonEffect::Send(conn, self.reply_message(reply)));
            }
            return;
        }
        self.last_commit += 1;
        self.inflight =
            Some(InFlight { id: self.last_commit, state: work.state, replies: work.replies, stops: work.stops });
        out.push(MonEffect::Commit(self.last_commit, txn));
    }

    /// Extends the range of global ids in good time.
    fn keep_gids(&self, work: &mut Work) {
        if self.gids.left() < GID_STEP / 2 {
            work.state.gid_limit += GID_STEP;
        }
    }

    fn on_committed(&mut self, id: CommitId, out: &mut Vec<MonEffect>) {
        let Some(done) = self.inflight.take_if(|f| f.id == id) else {
            tracing::error!(id, "commit nobody asked for");
            return;
        };
        self.state = done.state;
        self.gids.limit.store(self.state.gid_limit, Ordering::Release);
        for (conn, session) in &mut self.sessions {
            session.push(*conn, self.fsid, &self.state, out);
        }
        for (conn, reply) in done.replies {
            out.push(MonEffect::Send(conn, self.reply_message(reply)));
        }
        self.tell_stopped(&done.stops, out);
        if self.queue.is_empty() {
            return;
        }
        let mut work = Work::new(self.state.clone(), self.now, self.speaker());
        for request in std::mem::take(&mut self.queue) {
            self.run(request, &mut work);
        }
        self.propose(work, out);
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

    /// Puts a boot back into the queue, for after the commit that marks its OSD down.
    pub(crate) fn requeue(&mut self, conn: ConnId, b: OsdBoot) {
        self.queue.push_back(Request::Message(conn, b.into_message(0)));
    }

    fn conns_of_osd(&self, osd: OsdId) -> Vec<ConnId> {
        let is = |s: &Session| s.peer.kind == EntityType::Osd && s.peer.id.parse() == Ok(osd);
        self.sessions.iter().filter(|(_, s)| is(s)).map(|(c, _)| *c).collect()
    }

    fn reply_message(&self, reply: Reply) -> Message {
        let epoch = self.state.osdmap.epoch;
        match reply {
            Reply::Command { tid, cmd, result, tell: false } => MMonCommandAck {
                version: u64::from(epoch),
                result: result.ret,
                status: result.rs,
                cmd,
                output: result.data,
            }
            .into_message(tid),
            Reply::Command { tid, result, tell: true, .. } => {
                MCommandReply { result: result.ret, status: result.rs, output: result.data }.into_message(tid)
            }
            Reply::PoolOp { tid, result, data } => {
                MPoolOpReply { version: u64::from(epoch), fsid: self.fsid, result, epoch, data }.into_message(tid)
            }
            Reply::MarkedDown(osd) => OsdMarkMeDownAck { osd, epoch }.into_message(0),
            Reply::Ready(m) => m,
        }
    }

    /// Runs a request against the batch. Malformed ones were found before or are dropped.
    fn run(&mut self, request: Request, work: &mut Work) {
        let (conn, m) = match request {
            Request::Tick => {
                self.tick_osds(work);
                self.tick_mgr(work);
                self.tick_mutes(work);
                return;
            }
            Request::Message(conn, m) => (conn, m),
        };
        if let Err(e) = self.run_message(conn, m, work) {
            tracing::warn!(conn, error = %e, "malformed message ignored");
        }
    }

    fn run_message(&mut self, conn: ConnId, m: Message, work: &mut Work) -> Result<(), MessageError> {
        let Some(session) = self.sessions.get(&conn) else { return Ok(()) };
        let peer = session.peer.clone();
        // Daemons' messages count only from that daemon.
        let own_osd = |osd: OsdId| peer.kind == EntityType::Osd && peer.id.parse() == Ok(osd);
        match m.kind {
            kind::MON_COMMAND => {
                let c = MMonCommand::from_message(&m)?;
                let result = self.write_command(&peer, work, &c.cmd, &c.input, false);
                work.replies.push((conn, Reply::Command { tid: m.tid, cmd: c.cmd, result, tell: false }));
            }
            kind::COMMAND => {
                let c = MCommand::from_message(&m)?;
                let result = self.write_command(&peer, work, &c.cmd, &c.input, true);
                work.replies.push((conn, Reply::Command { tid: m.tid, cmd: c.cmd, result, tell: true }));
            }
            kind::POOL_OP => {
                let op = MPoolOp::from_message(&m)?;
                let (result, data) = crate::pools::pool_op(work, self.fsid, &op);
                work.replies.push((conn, Reply::PoolOp { tid: m.tid, result, data }));
            }
            kind::REMOVE_SNAPS => {
                let r = MRemoveSnaps::from_message(&m)?;
                crate::pools::remove_snaps(work, &r);
                work.replies.push((conn, Reply::Ready(m)));
            }
            kind::LOG => {
                let log = MLog::from_message(&m)?;
                if let Some(last) = log.entries.last().map(|e| e.seq) {
                    log.entries.into_iter().for_each(|e| work.log_entry(e));
                    let ack = MLogAck { fsid: self.fsid, last, channel: String::new() };
                    work.replies.push((conn, Reply::Ready(ack.into_message(m.tid))));
                }
            }
            OsdBoot::KIND => {
                let b = OsdBoot::from_message(&m)?;
                if own_osd(b.osd) {
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
                    self.mgr_beacon(b, work);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_command(
        &mut self,
        conn: ConnId,
        tid: u64,
        cmd: Vec<String>,
        input: &Bytes,
        tell: bool,
        out: &mut Vec<MonEffect>,
    ) {
        let mut work = Work::new(self.state.clone(), self.now, self.speaker());
        let result = match self.sessions.get(&conn) {
            Some(s) => {
                let request = commands::Request { peer: &s.peer, cmd: &cmd, input, random: [0; 32], tell };
                commands::run(self, &mut work, &request)
            }
            None => return,
        };
        // Whatever a read-only handler did to the copy is forgotten with it.
        out.push(MonEffect::Send(conn, self.reply_message(Reply::Command { tid, cmd, result, tell })));
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

    fn grant(&self, ask: &PgCreateAsk) -> PgCreateGrant {
        let mut answer = PgCreateGrant { granted: BTreeMap::new(), refused: BTreeMap::new() };
        for pg in ask.pgids.keys() {
            let exists = self.state.osdmap.pool(pg.pool).is_some_and(|p| pg.seed < p.pg_num);
            match self.state.creating.get(pg) {
                Some(epoch) if exists => {
                    answer.granted.insert(*pg, *epoch);
                }
                _ if exists => {
                    answer.refused.insert(*pg, self.state.created.get(pg).copied().unwrap_or(0));
                }
                _ => {}
            }
        }
        answer
    }

    fn statfs(&self, q: &MStatfs) -> MStatfsReply {
        let digest = &self.mgr.knowledge.digest;
        let mut reply = MStatfsReply { fsid: self.fsid, version: self.state.osdmap.epoch.into(), ..Default::default() };
        let pools = digest.pools.iter().filter(|(id, _)| q.pool.is_none_or(|p| p == **id));
        reply.num_objects = pools.map(|(_, p)| p.stat.stats.sum.num_objects.max(0) as u64).sum();
        let sum = digest.osd_sum(|_| true).statfs;
        let kib = |v: i64| v.max(0) as u64 / 1024;
        (reply.kb, reply.kb_used, reply.kb_avail) = (kib(sum.total), kib(sum.used_raw()), kib(sum.available));
        if let Some((pool, stored)) = q.pool.and_then(|p| Some((p, digest.pools.get(&p)?.stat.stats.sum.num_bytes))) {
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
        MGetPoolStatsReply { version: self.state.osdmap.epoch.into(), fsid: self.fsid, pools, per_pool: true }
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
