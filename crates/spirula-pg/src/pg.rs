//! The PG itself: its state, and which part of it an event belongs to.

use crate::api::{ConnId, MapView, Now, PeerMsg, PgConfig, PgEffect, PgEvent, Token};
use crate::exec::{ObjectReader, Prefetch};
use crate::lease::Leases;
use crate::log::{LogEntry, PgLog};
use crate::ops::{Active, Ops};
use crate::peering::Peering;
use bytes::Bytes;
use spirula_encoding::{DecodeError, from_slice, to_vec};
use spirula_messages::cluster::pg::{CtlBody, PgCtl, PgInfo};
use spirula_types::transaction::{MetaOp, Transaction};
use spirula_types::{EVersion, Epoch, HObject, OsdId, PgId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Messages kept until the map they need arrives. Their senders wait for an answer, so there
/// are few; more are dropped.
const EARLY_MAX: usize = 256;

/// What this OSD does for the PG.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing, or waiting for its primary.
    Idle,
    /// Takes writes from the primary of an activation.
    Replica {
        /// That primary.
        primary: OsdId,
        /// The activation.
        les: Epoch,
    },
    /// Primary, not serving yet.
    Peering(Box<Peering>),
    /// Primary, serving.
    Active(Box<Active>),
    /// Deletes its copy.
    Removing,
}

/// What to do when a transaction is durable.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a box per replicated write would cost more than it saves")]
pub(crate) enum After {
    /// A write of the activation is durable here.
    Write { les: Epoch, version: EVersion },
    /// Send this.
    Send(OsdId, PeerMsg),
    /// A step of peering is durable here.
    Step { epoch: Epoch, step: Step },
    /// Nothing more.
    Nothing,
    /// Go on deleting.
    Remove,
    /// The last trace is gone.
    Gone,
}

/// Own steps of peering that wait for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Pulled(u64),
    Finished,
    Sealed,
    Activated,
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
    pub(crate) osd: OsdId,
    pub(crate) cfg: Arc<PgConfig>,
    /// What is stored of the PG here; `None`: nothing.
    pub(crate) info: Option<PgInfo>,
    pub(crate) log: PgLog,
    pub(crate) view: Option<Arc<MapView>>,
    /// Map that began the present interval for us; what primaries of older maps want is refused,
    /// because our copy may have been split since.
    pub(crate) interval: Epoch,
    /// Requests sent with an older map were meant for another primary's time.
    pub(crate) primary_since: Epoch,
    /// Older peering epochs are refused.
    pub(crate) promised: Epoch,
    pub(crate) promised_to: OsdId,
    pub(crate) role: Role,
    next_token: Token,
    after: VecDeque<(Token, After)>,
    early: Vec<(OsdId, PeerMsg)>,
    pub(crate) ops: Ops,
    /// OSDs outside the acting set that said they hold a copy.
    pub(crate) strays: BTreeSet<OsdId>,
    next_seq: u64,
    /// Peers' questions that wait for something to be read.
    parked: BTreeMap<u64, (OsdId, PgCtl)>,
    /// Our own recovery waits for this read.
    pub(crate) pump_read: Option<u64>,
    notified_ms: u64,
    pub(crate) reserved: bool,
    pub(crate) stat: crate::stat::StatState,
    pub(crate) info_key: Bytes,
}

/// Key of a PG's record in the store's meta space.
pub fn info_key(pg: PgId) -> Bytes {
    Bytes::from(format!("pg.{}.{:08x}", pg.pool, pg.seed))
}

/// The PG whose record has this key; `None` for other records.
pub fn parse_info_key(key: &[u8]) -> Option<PgId> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix("pg.")?;
    let (pool, seed) = rest.split_once('.')?;
    Some(PgId::new(pool.parse().ok()?, u32::from_str_radix(seed, 16).ok()?))
}

impl Pg {
    /// A PG of which nothing is stored here.
    pub fn new(id: PgId, osd: OsdId, cfg: Arc<PgConfig>) -> Self {
        Self {
            id,
            osd,
            cfg,
            info: None,
            log: PgLog::default(),
            view: None,
            interval: 0,
            primary_since: 0,
            promised: 0,
            promised_to: -1,
            role: Role::Idle,
            next_token: 1,
            after: VecDeque::new(),
            early: Vec::new(),
            ops: Ops::default(),
            strays: BTreeSet::new(),
            next_seq: 1,
            parked: BTreeMap::new(),
            pump_read: None,
            notified_ms: 0,
            reserved: false,
            stat: crate::stat::StatState::default(),
            info_key: info_key(id),
        }
    }

    /// A PG as it was stored: its record (under [`info_key`]) and its log, oldest first.
    ///
    /// # Errors
    /// [`DecodeError`] when record or log are damaged.
    pub fn load(
        id: PgId,
        osd: OsdId,
        cfg: Arc<PgConfig>,
        info: &[u8],
        log: impl IntoIterator<Item = Bytes>,
    ) -> Result<Self, DecodeError> {
        let info: PgInfo = from_slice(info)?;
        if info.pg != id {
            return Err(DecodeError::Value { what: "PG record of another PG", value: i64::from(info.pg.seed) });
        }
        let entries: Vec<LogEntry> = log.into_iter().map(|b| from_slice::<LogEntry>(&b)).collect::<Result<_, _>>()?;
        let mut pg = Self::new(id, osd, cfg);
        pg.log = PgLog::new(info.log_tail, entries);
        pg.promised = info.les;
        pg.info = Some(info);
        Ok(pg)
    }

    /// Its id.
    pub fn id(&self) -> PgId {
        self.id
    }

    /// Does the newest map make this OSD its primary?
    pub fn is_primary(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.primary == self.osd)
    }

    /// Is it stored here, in whatever state?
    pub fn exists(&self) -> bool {
        self.info.is_some()
    }

    /// PG number of the pool this copy was last split for; 0 when nothing is stored. A map
    /// with more PGs may only be given after [`Pg::split`].
    pub fn pg_num(&self) -> u32 {
        self.info.as_ref().map_or(0, |i| i.pg_num)
    }

    /// Do reads wait for a lease? The shell then ticks the PG when a lease was renewed.
    pub fn waits_for_lease(&self) -> bool {
        self.ops.waits_for_lease()
    }

    /// Does it matter to the PG that time passes?
    pub fn wants_tick(&self) -> bool {
        match self.role {
            Role::Peering(_) => true,
            Role::Idle => true,
            _ => self.ops.waits_for_lease(),
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
        let cx = &mut Cx { now, reader, leases, out };
        self.ops.begin();
        match event {
            PgEvent::Map(view) => self.on_map(view, cx),
            PgEvent::Client(op) => self.on_client(op, cx),
            PgEvent::ConnClosed(conn) => self.on_conn_closed(conn, cx),
            PgEvent::Peer(from, msg) => self.on_peer(from, msg, cx),
            PgEvent::Committed(token) => self.on_committed(token, cx),
            PgEvent::Ready(crate::ReadKey::Op(op)) => self.on_op_ready(op, None, cx),
            PgEvent::Ready(crate::ReadKey::Recovery(n)) => self.on_recovery_ready(n, cx),
            PgEvent::Fetched(op, fetched) => self.on_op_ready(op, Some(fetched), cx),
            PgEvent::CreateAnswer(answer) => self.on_create_answer(answer, cx),
            PgEvent::CreatedAck { winner } => self.on_created_ack(winner, cx),
            PgEvent::RecoveryGranted => self.on_recovery_granted(cx),
            PgEvent::Continue => self.run_pending(cx),
            PgEvent::Tick => self.on_tick(cx),
        }
        // Questions that the shell may answer on the spot come last, so that the answer's
        // transactions follow those of this event.
        let question =
            |e: &PgEffect| matches!(e, PgEffect::Prefetch(..) | PgEffect::Fetch(..) | PgEffect::RecoveryWanted);
        if out.get(first..).is_some_and(|new| new.iter().any(question)) {
            let (last, now): (Vec<_>, Vec<_>) = out.drain(first..).partition(question);
            out.extend(now);
            out.extend(last);
        }
        if self.ops.must_continue() {
            out.push(PgEffect::Continue);
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
        self.view.as_ref().is_some_and(|v| v.acting.contains(&self.osd))
    }

    /// Submits a transaction; `after` happens when it is durable.
    pub(crate) fn submit(&mut self, txn: Transaction, after: After, cx: &mut Cx<'_>) {
        let token = self.next_token;
        self.next_token += 1;
        self.after.push_back((token, after));
        cx.out.push(PgEffect::Submit(token, txn));
    }

    /// The change that stores the info as it is in memory.
    pub(crate) fn info_op(&self) -> MetaOp {
        match &self.info {
            Some(info) => MetaOp::Set { key: self.info_key.clone(), value: to_vec(info).into() },
            None => MetaOp::Remove { key: self.info_key.clone() },
        }
    }

    pub(crate) fn send(&self, to: OsdId, epoch: Epoch, body: CtlBody, cx: &mut Cx<'_>) {
        cx.out.push(PgEffect::Send(to, PeerMsg::Ctl(PgCtl { pg: self.id, epoch, body })));
    }

    pub(crate) fn ctl(&self, epoch: Epoch, body: CtlBody) -> PeerMsg {
        PeerMsg::Ctl(PgCtl { pg: self.id, epoch, body })
    }

    // ---- maps ----

    fn on_map(&mut self, view: Arc<MapView>, cx: &mut Cx<'_>) {
        if view.epoch <= self.epoch() {
            return;
        }
        if let Some(pool) = &view.pool
            && self.info.as_ref().is_some_and(|i| i.pg_num < pool.pg_num)
        {
            // Serving it would mix its objects with its children's.
            tracing::error!(pg = %self.id, "map {} splits the pg, which was not split first", view.epoch);
            return;
        }
        let old = self.view.replace(view.clone());
        let up_from = view.up_from(self.osd).unwrap_or(0);
        // A restarted OSD has forgotten its promises; whoever it gave one to has a map from
        // before it came up.
        if up_from > self.promised {
            (self.promised, self.promised_to) = (up_from, -1);
        }
        let since = old.as_ref().map_or(up_from, |o| o.epoch + 1);
        if old.as_ref().is_none_or(|o| o.primary != self.osd) && view.primary == self.osd {
            self.primary_since = since;
        }
        if old.as_ref().is_none_or(|o| is_new_interval(o, &view)) {
            self.interval = view.epoch;
            self.start_interval(cx);
        } else {
            self.peering_map_advanced(cx);
        }
        let early = std::mem::take(&mut self.early);
        for (from, msg) in early {
            self.on_peer(from, msg, cx);
        }
        self.run_waiting(cx);
    }

    fn start_interval(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.view.clone() else { return };
        self.leave_role(cx);
        self.strays.clear();
        if view.pool.is_none() {
            self.refuse_all_ops(cx);
            self.remove_pool_gone(cx);
        } else if view.primary == self.osd && view.acting.contains(&self.osd) {
            self.start_peering(cx);
        } else {
            self.notify(cx);
            self.check_removed(cx);
        }
        cx.out.push(PgEffect::StateChanged);
    }

    /// Stops whatever the role was doing; requests go back to waiting.
    pub(crate) fn leave_role(&mut self, cx: &mut Cx<'_>) {
        let role = std::mem::replace(&mut self.role, Role::Idle);
        self.pump_read = None;
        if std::mem::take(&mut self.reserved) {
            cx.out.push(PgEffect::RecoveryDone);
        }
        self.requeue(role);
    }

    // ---- peers ----

    fn on_peer(&mut self, from: OsdId, msg: PeerMsg, cx: &mut Cx<'_>) {
        let epoch = match &msg {
            PeerMsg::Txn(t) => t.epoch,
            PeerMsg::Ack(a) => a.epoch,
            PeerMsg::Ctl(c) => c.epoch,
        };
        // A map that does not show us up says nothing of this incarnation of ours: the one before
        // may have promised what we have forgotten.
        let up = self.view.as_ref().is_some_and(|v| v.up_from(self.osd).is_some());
        if epoch > self.epoch() || !up {
            if self.early.len() < EARLY_MAX {
                self.early.push((from, msg));
            }
            cx.out.push(PgEffect::NeedMap(epoch.max(self.epoch() + u32::from(!up))));
            return;
        }
        if self.view.as_ref().is_none_or(|v| v.pool.is_none()) {
            return;
        }
        match msg {
            PeerMsg::Txn(t) => self.on_txn(from, t, cx),
            PeerMsg::Ack(a) => self.on_ack(from, &a, cx),
            PeerMsg::Ctl(c) => self.on_ctl(from, c, cx),
        }
    }

    /// Keeps a peer's question until something is read.
    pub(crate) fn park(&mut self, from: OsdId, ctl: PgCtl, what: Prefetch, cx: &mut Cx<'_>) {
        let n = self.seq();
        self.parked.insert(n, (from, ctl));
        cx.out.push(PgEffect::Prefetch(crate::ReadKey::Recovery(n), what));
    }

    fn on_recovery_ready(&mut self, n: u64, cx: &mut Cx<'_>) {
        if let Some((from, ctl)) = self.parked.remove(&n) {
            self.on_peer(from, PeerMsg::Ctl(ctl), cx);
        } else if self.pump_read == Some(n) {
            self.pump_read = None;
            if matches!(self.role, Role::Removing) {
                self.remove_more(cx);
            } else {
                self.pump(cx);
            }
        }
    }

    /// Tells the primary that a copy is here.
    fn notify(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = &self.view else { return };
        let (primary, epoch) = (view.primary, view.epoch);
        self.notified_ms = cx.now.mono_ms;
        if primary < 0 || primary == self.osd {
            return;
        }
        if let Some(info) = self.info.clone() {
            self.send(primary, epoch, CtlBody::Notify { info }, cx);
        }
    }

    // ---- the rest ----

    fn on_committed(&mut self, token: Token, cx: &mut Cx<'_>) {
        while let Some((_, after)) = self.after.pop_front_if(|(t, _)| *t <= token) {
            match after {
                After::Write { les, version } => self.on_local_commit(les, version),
                After::Send(to, msg) => cx.out.push(PgEffect::Send(to, msg)),
                After::Step { epoch, step } => self.on_step(epoch, step, cx),
                After::Nothing => {}
                After::Remove => self.remove_more(cx),
                After::Gone => self.check_removed(cx),
            }
        }
        self.advance(cx);
    }

    fn on_conn_closed(&mut self, conn: ConnId, cx: &mut Cx<'_>) {
        for op in self.ops.drop_connection(conn) {
            cx.out.push(PgEffect::Drop(op));
        }
        self.run_pending(cx);
    }

    fn on_tick(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Peering(_) => self.peering_tick(cx),
            Role::Idle if cx.now.mono_ms >= self.notified_ms + self.cfg.retry_ms && !self.is_acting() => {
                self.notify(cx);
                self.check_removed(cx);
            }
            _ => {}
        }
        self.run_pending(cx);
    }

    /// Says that nothing is left here: no copy, no duty, nobody waiting for a newer map.
    pub(crate) fn check_removed(&mut self, cx: &mut Cx<'_>) {
        let idle = matches!(self.role, Role::Idle) && self.info.is_none() && !self.is_acting();
        if idle && self.early.is_empty() && self.ops.is_empty() {
            cx.out.push(PgEffect::Removed);
        }
    }

    /// First and after-last position of the PG's objects.
    pub(crate) fn range(&self) -> (HObject, HObject) {
        let in_map = self.view.as_ref().and_then(|v| v.pool.as_ref()).map(|p| p.pg_num);
        let pg_num = in_map.or(self.info.as_ref().map(|i| i.pg_num)).unwrap_or(1);
        (crate::exec::pg_start(self.id), crate::exec::pg_end(self.id, pg_num))
    }
}

/// Must the PG peer again? Members that restarted count: their promises are gone.
fn is_new_interval(old: &MapView, new: &MapView) -> bool {
    let shape = |v: &MapView| v.pool.as_ref().map(|p| (p.size, p.min_size, p.pg_num));
    old.acting != new.acting
        || old.primary != new.primary
        || old.up != new.up
        || shape(old) != shape(new)
        || new.acting.iter().any(|o| old.up_from(*o) != new.up_from(*o))
}
