//! The monitor among monitors: who leads, what is forwarded, when an answer may be given.
//!
//! Every monitor serves clients. What changes something, and every command, is done by the
//! leader: the others forward it, with who asked, until they hear that it is done, and pass the
//! answers back. What only reads is answered where it was asked, once a majority has confirmed,
//! after the question came, that nothing newer is committed. A monitor that cannot get such a
//! confirmation for [`PROOF_TICKS`] closes its clients' connections and takes no new ones, so
//! that they go to a monitor that can.
//!
//! The members of the quorum follow the table of members in the agreed state: the leader proposes
//! one change of membership at a time until the members that the library knows are those of the
//! table. A new monitor learns first, and votes when it has caught up.

use crate::beacons;
use crate::commands::{self, Command};
use crate::event::{ConnId, MonEffect, Peer};
use crate::image::{Identity, Stored};
use crate::merges::MergeTracker;
use crate::mon::{Mon, Request};
use crate::state::{Member, State};
use crate::txn::MonTxn;
use crate::work::{InFlight, Work};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_messages::ceph::MMdsBeacon;
use spirula_messages::cluster::control::{MgrDigest, MgrRan, OsdFailureReport, Since};
use spirula_messages::cluster::quorum::{
    Carried, CarriedPeer, MonForgotten, MonForward, MonForwardDone, MonGidsAsk, MonGidsGrant,
    MonJoin, MonRelay, MonRemoved, MonRouted, MonScrub, MonScrubbed, MonSession, MonTime,
    MonTimeReply, MonWelcome, QuorumFrame,
};
use spirula_messages::{Body, Message, MessageError};
use spirula_quorum::{
    Config, ConfigChange, Effect, Entry, EntryKind, MemberId, Node, Refusal, Role, Status,
};
use spirula_types::{AddrVec, EntityType, Epoch, OsdId, Uuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Ticks without a majority's word after which clients are sent away.
pub(crate) const PROOF_TICKS: u64 = 15;
/// Ticks after which an unconfirmed read is asked for again.
const READ_AGAIN: u64 = 3;
/// Ticks after which an unanswered forward is sent again.
const FORWARD_AGAIN: u64 = 20;
/// Ticks of silence after which a monitor no longer counts as in quorum.
const SILENT_TICKS: u64 = 12;
/// Ticks without a sign that the leader has a majority, after which a monitor that it contradicts
/// leaves it; and for how long.
const UNLED_TICKS: u64 = 50;
const SHUN_TICKS: u64 = 100;
/// Ticks for which a contradiction counts. A leader repeats what is not acknowledged with each
/// heartbeat.
const CONTRADICTED_TICKS: u64 = 30;
/// Ticks of silence after which the sessions it forwarded for are given up.
const GONE_TICKS: u64 = 50;
/// Ticks after which the leader is told again of the daemons connected here: a word of one may have
/// been lost.
const ANNOUNCE_TICKS: u64 = 100;
/// Ticks between two measurements of the other clocks.
const TIME_TICKS: u64 = 20;
/// Bytes of answers made in one go, about.
const SAID_AT_ONCE: usize = 1 << 20;
/// Entries a learner may lack when it becomes a voter.
const CAUGHT_UP: u64 = 20;
/// Requests that wait for a leader or a confirmation, the half of them clients'
/// ([`Mon::has_room_for`]).
const WAIT_MAX: usize = 8192;
/// Log entries, and their bytes, after which the log is folded into a snapshot.
const COMPACT_ENTRIES: u64 = 5000;
const COMPACT_BYTES: u64 = 4 << 20;
/// Bytes of one entry, as it is proposed: half of what one frame between monitors takes.
const ENTRY_MAX: usize = spirula_quorum::FRAME_MAX / 2;
/// Ticks after which a change that is not agreed on is called stuck.
const STALLED_TICKS: u64 = 40;
/// Ticks for which a monitor that is no member any more stays, unless it is told before that it is
/// not needed: who is left may not have heard that this is agreed on, and could elect nobody
/// without it.
const LEAVE_TICKS: u64 = 50;
/// Connections of other monitors' clients have ids from here on.
pub(crate) const REMOTE: ConnId = 1 << 63;
/// Members remembered that the state does not have (yet).
const KNOWN_MAX: usize = 64;
/// Global ids taken at once.
pub(crate) const GID_STEP: u64 = 10_000;

/// Gives out global ids from a durable range; may be called from any thread.
#[derive(Debug, Default)]
pub struct GlobalIds {
    next: AtomicU64,
    limit: AtomicU64,
    closed: AtomicBool,
}

impl GlobalIds {
    /// The next id, never given out before by any monitor, also not before a restart. `None`
    /// while this monitor takes no clients, or if its range is used up for the moment; the
    /// caller refuses the connection, the client comes again.
    pub fn next(&self) -> Option<u64> {
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        let limit = self.limit.load(Ordering::Acquire);
        let take = |n: u64| (n < limit).then_some(n + 1);
        self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()
    }

    pub(crate) fn left(&self) -> u64 {
        self.limit.load(Ordering::Acquire).saturating_sub(self.next.load(Ordering::Acquire))
    }

    fn set(&self, from: u64, to: u64) {
        // Nobody may take one while the two ends belong to different ranges.
        self.limit.store(0, Ordering::Release);
        self.next.store(from, Ordering::Release);
        self.limit.store(to, Ordering::Release);
    }
}

/// A request, with the forward it came by, if it did.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub conn: ConnId,
    pub message: Message,
    pub via: Option<(MemberId, u64)>,
}

/// What is to be done once a batch is committed, besides answers.
#[derive(Clone, Debug)]
pub(crate) enum After {
    /// Own global ids.
    OwnIds(u64, u64),
    /// Another monitor's.
    Ids(MemberId, u64, u64),
    /// A message could not be read.
    Malformed(ConnId, MessageError),
    /// The monitors' states are to be compared.
    Scrub,
    /// A new member has its number.
    Welcome { name: String, addrs: AddrVec, uuid: Uuid },
}

/// What is proposed.
#[derive(Clone, Debug, PartialEq)]
struct Proposal {
    member: MemberId,
    boot: u64,
    id: u64,
    txn: MonTxn,
}

impl Encode for Proposal {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.member);
            o.u64(self.boot);
            o.u64(self.id);
            o.put(&self.txn);
        });
    }
}

impl Decode for Proposal {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("Proposal", 1, |d, _| {
            Ok(Self { member: d.u64()?, boot: d.u64()?, id: d.u64()?, txn: d.get()? })
        })
    }
}

/// The state that follows when the entry of these bytes is applied.
fn rehearsed(state: &State, data: &[u8]) -> Result<State, String> {
    if data.len() > ENTRY_MAX {
        return Err(format!(
            "a change of {} bytes is larger than monitors take ({ENTRY_MAX})",
            data.len()
        ));
    }
    let p: Proposal = spirula_encoding::from_slice(data).map_err(|e| e.to_string())?;
    let mut state = state.clone();
    state.apply(&p.txn).map_err(|e| e.to_string())?;
    Ok(state)
}

/// A planted bug: what the leader makes of some batches holds a row that no monitor can apply, as a
/// command might that checks a name otherwise than its table does.
#[cfg(feature = "plant-bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Such a batch is found before it is proposed: nothing else is to be seen of it.
    Rehearsed,
    /// It is proposed: whoever applies it stops.
    Proposed,
}

#[cfg(feature = "plant-bugs")]
impl Poison {
    /// One batch of so many.
    const EVERY: u64 = 40;
}

struct Forward {
    ask: Ask,
    sent_at: u64,
}

/// The monitor's part in the quorum.
pub(crate) struct Quorum {
    pub node: Option<Node>,
    pub identity: Identity,
    /// Numbers this run.
    boot: u64,
    ticks: u64,
    /// Effects of the node not yet looked at.
    fx: VecDeque<Effect>,
    draining: bool,
    /// Requests that wait until a majority has confirmed the read of that number.
    reads: VecDeque<(u64, Ask)>,
    next_read: u64,
    /// The last of these numbers that is confirmed.
    ready: u64,
    /// The confirmation asked for, and when.
    asked: Option<(u64, u64)>,
    /// When the last confirmation that came was asked for.
    proof: u64,
    /// Answers of batches that changed nothing: true only if this monitor still leads, so they
    /// wait for a confirmation, too.
    late: VecDeque<(u64, InFlight)>,
    /// Requests for a leader nobody knows yet.
    parked: VecDeque<Ask>,
    forwards: BTreeMap<u64, Forward>,
    next_forward: u64,
    /// Connections of other monitors' clients, at the leader.
    remote: BTreeMap<(MemberId, ConnId), ConnId>,
    routes: BTreeMap<ConnId, (MemberId, ConnId)>,
    next_remote: ConnId,
    /// When the others were asked last which connections they have (with [`MonTime`]), and the
    /// first that was not known then.
    listing: (UTime, ConnId),
    /// The run in which each other monitor forwards.
    boots: BTreeMap<MemberId, u64>,
    /// Members as told by those who know, until the state says it.
    known: BTreeMap<MemberId, (String, AddrVec)>,
    /// Whom to ask to be let in.
    seeds: Vec<AddrVec>,
    /// What the store held when this monitor was not yet let in.
    pub stored: Option<Stored>,
    /// Was a member, as the state had it.
    belonged: bool,
    /// Since when it is in no table of members, by [`Self::ticks`].
    outside: Option<u64>,
    leading: bool,
    /// What came for the leader between this monitor's election and its first entry's commit.
    early: VecDeque<(String, AddrVec, Message)>,
    frozen: bool,
    #[cfg(feature = "plant-bugs")]
    poison: Option<Poison>,
    /// Monitors whose refusal was said.
    refused: BTreeSet<Uuid>,
    /// The entry after which the state is.
    applied: u64,
    /// Members whose frames contradict what is committed here: when the last one came, and in what.
    contradictions: BTreeMap<MemberId, (u64, String)>,
    /// At the leader: what others said of its own frames in the same way.
    told_contradictions: BTreeMap<MemberId, String>,
    /// When this monitor began to follow its leader, or when that last showed that it has a
    /// majority.
    led: u64,
}

impl Quorum {
    pub fn new(identity: Identity, boot: u64, seeds: Vec<AddrVec>) -> Self {
        Self {
            node: None,
            identity,
            boot,
            ticks: 0,
            fx: VecDeque::new(),
            draining: false,
            reads: VecDeque::new(),
            ready: 0,
            next_read: 1,
            asked: None,
            proof: 0,
            late: VecDeque::new(),
            parked: VecDeque::new(),
            forwards: BTreeMap::new(),
            next_forward: 1,
            remote: BTreeMap::new(),
            routes: BTreeMap::new(),
            next_remote: REMOTE,
            listing: (UTime::ZERO, REMOTE),
            boots: BTreeMap::new(),
            known: BTreeMap::new(),
            seeds,
            stored: None,
            belonged: false,
            outside: None,
            leading: false,
            early: VecDeque::new(),
            frozen: false,
            #[cfg(feature = "plant-bugs")]
            poison: None,
            refused: BTreeSet::new(),
            applied: 0,
            contradictions: BTreeMap::new(),
            told_contradictions: BTreeMap::new(),
            led: 0,
        }
    }

    /// In what a member contradicts what is committed here, if it did of late.
    fn contradiction(&self, member: MemberId) -> Option<&String> {
        let (at, why) = self.contradictions.get(&member)?;
        (self.ticks - at <= CONTRADICTED_TICKS).then_some(why)
    }

    /// True if this monitor may propose: it leads, and its state is all that is committed. (The
    /// node is ahead of the state while its effects are being performed.)
    pub fn leads(&self) -> bool {
        self.node.as_ref().is_some_and(|n| n.may_propose() && n.applied() == self.applied)
    }

    /// Requests that wait, and for what.
    fn open_asks(&self) -> impl Iterator<Item = (&Ask, &'static str)> {
        let reads = self.reads.iter().map(|(_, a)| (a, "waiting for a majority's word"));
        let late = self
            .late
            .iter()
            .flat_map(|(_, f)| &f.asks)
            .map(|a| (a, "waiting for a majority's word"));
        let parked = self.parked.iter().map(|a| (a, "waiting for a leader"));
        let forwards = self.forwards.values().map(|f| (&f.ask, "forwarded to the leader"));
        reads.chain(late).chain(parked).chain(forwards)
    }

    /// Bytes of requests that wait for a leader, its word or a majority's.
    pub fn waiting_bytes(&self) -> usize {
        self.open_asks().map(|(a, _)| crate::mon::bytes_of(&a.message)).sum()
    }

    /// May another client's request wait for a confirmation?
    pub fn has_room_to_read(&self) -> bool {
        self.reads.len() < WAIT_MAX / 2
    }

    /// The same for a leader, known or not: all of them go to the next one together.
    pub fn has_room_to_forward(&self) -> bool {
        self.parked.len() + self.forwards.len() < WAIT_MAX / 2
    }

    fn status(&self) -> Status {
        self.node.as_ref().map(Node::status).unwrap_or_default()
    }

    /// The leader, if it is somebody else.
    fn other_leader(&self) -> Option<MemberId> {
        self.status().leader.filter(|l| *l != self.identity.member)
    }

    /// True while a majority's word is recent.
    pub fn proven(&self) -> bool {
        self.proof > 0 && self.ticks - self.proof <= PROOF_TICKS
    }
}

pub(crate) fn carried_peer(p: &Peer) -> CarriedPeer {
    let (id, addrs) = (p.id.clone(), p.addrs.clone());
    CarriedPeer { kind: p.kind as u8, id, global_id: p.global_id, addrs, features: p.features }
}

pub(crate) fn peer_of(c: CarriedPeer) -> Option<Peer> {
    let kind = EntityType::from_wire(c.kind)?;
    Some(Peer { kind, id: c.id, global_id: c.global_id, addrs: c.addrs, features: c.features })
}

impl Mon {
    /// Starts taking part, on what the store holds.
    pub(crate) fn open_node(&mut self, stored: &Stored) -> Result<(), spirula_quorum::OpenError> {
        let config = Config::new(self.q.identity.member, self.q.boot);
        self.q.applied = stored.snapshot.index;
        let mut fx = Vec::new();
        self.q.node = Some(Node::open(
            &config,
            stored.hard,
            stored.snapshot.clone(),
            &stored.entries,
            &mut fx,
        )?);
        self.q.fx.extend(fx);
        Ok(())
    }

    fn with_node(&mut self, out: &mut Vec<MonEffect>, f: impl FnOnce(&mut Node, &mut Vec<Effect>)) {
        let mut fx = Vec::new();
        if let Some(node) = &mut self.q.node {
            f(node, &mut fx);
        }
        self.q.fx.extend(fx);
        self.drain(out);
    }

    /// Performs the node's effects in order; those that come meanwhile, behind them.
    pub(crate) fn drain(&mut self, out: &mut Vec<MonEffect>) {
        if self.q.draining {
            return;
        }
        self.q.draining = true;
        while let Some(e) = self.q.fx.pop_front() {
            match e {
                Effect::Persist(p) => out.push(MonEffect::Persist(p)),
                Effect::Send(to, frame) => {
                    let from = self.q.identity.member;
                    self.send_member(to, QuorumFrame { from, frame }.into_message(0), out);
                }
                Effect::Apply(entry) => self.on_entry(&entry, out),
                Effect::Install(s) => match crate::state::State::from_bytes(&s.data) {
                    Ok(state) => {
                        tracing::info!(index = s.index, "took the leader's state over");
                        self.state = state;
                        self.q.applied = s.index;
                        self.state_changed(out);
                    }
                    Err(e) => self.fail(format!("the leader's state cannot be read: {e}"), out),
                },
                Effect::Status(s) => self.on_status(s, out),
                Effect::Members(m) => {
                    tracing::info!(voters = ?m.voters, learners = ?m.learners, "quorum members");
                    let state = &self.state;
                    self.q.known.retain(|id, _| {
                        *id >= state.next_member
                            || state.members.contains_key(id)
                            || m.contains(*id)
                    });
                }
                Effect::ReadReady(n) => self.on_read_ready(n, out),
            }
        }
        self.q.draining = false;
    }

    fn fail(&mut self, why: String, out: &mut Vec<MonEffect>) {
        self.q.frozen = true;
        out.push(MonEffect::Stop(why));
    }

    fn name_of(&self, member: MemberId) -> Option<(String, AddrVec)> {
        let here = self.state.members.get(&member).and_then(|m| {
            let info = self.state.monmap.mons.get(&m.name)?;
            Some((m.name.clone(), info.addrs.clone()))
        });
        here.or_else(|| self.q.known.get(&member).cloned())
    }

    pub(crate) fn send_member(&self, to: MemberId, message: Message, out: &mut Vec<MonEffect>) {
        match self.name_of(to) {
            Some((name, addrs)) => out.push(MonEffect::SendPeer(name, addrs, message)),
            None => tracing::debug!(to, "nobody knows where that member is"),
        }
    }

    /// The other members, by number.
    pub(crate) fn others(&self) -> Vec<MemberId> {
        self.state.members.keys().copied().filter(|m| *m != self.q.identity.member).collect()
    }

    /// Requests that are not answered yet, and for what each waits.
    pub(crate) fn open_asks(&self) -> impl Iterator<Item = (&Ask, &'static str)> {
        let inflight = self.inflight.iter().flat_map(|f| &f.asks).map(|a| (a, "being agreed on"));
        let queue = self.queue.iter().filter_map(|r| match r {
            Request::Ask(a) => Some((a, "waiting for the change before it")),
            _ => None,
        });
        let managers = self.proxy.asks().map(|a| (a, "waiting for the manager"));
        inflight.chain(queue).chain(managers).chain(self.q.open_asks())
    }

    // ---- requests ----

    /// A request for the leader: done here, forwarded, or kept until there is one.
    pub(crate) fn lead(&mut self, ask: Ask, out: &mut Vec<MonEffect>) {
        if self.q.leads() {
            if ask.message.kind == MMdsBeacon::KIND {
                self.mds_heard(&ask);
            }
            let command = Command::in_message(&ask.message);
            if crate::mon::only_reads(&ask.message, command.as_ref()) {
                self.await_read(ask, out);
            } else if crate::snaps::is_of_turns(&ask.message, command.as_ref()) {
                self.submit_in_turn(ask, out);
            } else {
                self.submit(Request::Ask(ask), out);
            }
            return;
        }
        if ask.via.is_some() {
            // Whoever forwarded it will do so again.
            return;
        }
        self.supersede(&ask);
        if self.q.other_leader().is_some() && self.q.forwards.len() < WAIT_MAX {
            let id = self.q.next_forward;
            self.q.next_forward += 1;
            self.send_forward(id, &ask, out);
            self.q.forwards.insert(id, Forward { ask, sent_at: self.q.ticks });
        } else if self.q.parked.len() < WAIT_MAX {
            self.q.parked.push_back(ask);
        } else {
            self.no_room(&ask, out);
        }
    }

    /// An OSD's newest word about another takes the place of those before it that no leader has
    /// taken yet: the next one must not hear first of a silence that is over, and from another OSD
    /// of the same, and mark a sound one down.
    fn supersede(&mut self, ask: &Ask) {
        let about = |a: &Ask| {
            let report = (a.conn == ask.conn && a.message.kind == OsdFailureReport::KIND)
                .then_some(&a.message)?;
            OsdFailureReport::from_message(report).ok().map(|r| (r.reporter, r.target))
        };
        let Some(this) = about(ask) else { return };
        self.q.parked.retain(|a| about(a) != Some(this));
        self.q.forwards.retain(|_, f| about(&f.ask) != Some(this));
    }

    fn send_forward(&self, id: u64, ask: &Ask, out: &mut Vec<MonEffect>) {
        let (Some(leader), Some(session)) = (self.q.other_leader(), self.sessions.get(&ask.conn))
        else {
            return;
        };
        let f = MonForward {
            boot: self.q.boot,
            id,
            conn: ask.conn,
            peer: carried_peer(&session.peer),
            message: Carried(ask.message.clone()),
        };
        self.send_member(leader, f.into_message(0), out);
    }

    /// A request that may be answered here once a majority confirms that nothing newer exists.
    pub(crate) fn await_read(&mut self, ask: Ask, out: &mut Vec<MonEffect>) {
        if self.q.reads.len() >= self.share(&ask, WAIT_MAX) {
            return self.no_room(&ask, out);
        }
        let number = self.q.next_read;
        self.q.next_read += 1;
        self.q.reads.push_back((number, ask));
        self.confirm(out);
    }

    /// Answers that hold if this monitor still leads.
    pub(crate) fn await_confirmation(&mut self, answers: InFlight, out: &mut Vec<MonEffect>) {
        let number = self.q.next_read;
        self.q.next_read += 1;
        self.q.late.push_back((number, answers));
        self.confirm(out);
    }

    /// Asks for a confirmation if none is under way: it then covers all that waits.
    fn confirm(&mut self, out: &mut Vec<MonEffect>) {
        if self.q.asked.is_none() {
            let number = self.q.next_read;
            self.q.next_read += 1;
            self.q.asked = Some((number, self.q.ticks));
            self.with_node(out, |n, fx| n.read(number, fx));
        }
    }

    fn on_read_ready(&mut self, number: u64, out: &mut Vec<MonEffect>) {
        if let Some((_, at)) = self.q.asked.take_if(|(n, _)| *n <= number) {
            self.q.proof = self.q.proof.max(at.max(1));
        }
        self.q.ready = self.q.ready.max(number);
        self.answer_ready(out);
        while self.q.late.front().is_some_and(|(n, _)| *n <= number) {
            if let Some((_, done)) = self.q.late.pop_front() {
                self.say(done, out);
            }
        }
        if self.q.reads.back().is_some_and(|(n, _)| *n > self.q.ready) || !self.q.late.is_empty() {
            self.confirm(out);
        }
    }

    /// Answers what a majority's word covers; the rest of it later, if that is much
    /// ([`Mon::has_more`]): so the shell sees who does not read before all answers are made, each
    /// of which may be long.
    pub(crate) fn answer_ready(&mut self, out: &mut Vec<MonEffect>) {
        let (mut from, mut said) = (out.len(), 0);
        while said < SAID_AT_ONCE && self.has_more() {
            if let Some((_, ask)) = self.q.reads.pop_front() {
                self.answer(ask, out);
            }
            let bytes = |e: &MonEffect| {
                if let MonEffect::Send(_, m) = e { m.front.len() + m.data.len() } else { 0 }
            };
            said += out.get(from..).unwrap_or_default().iter().map(bytes).sum::<usize>();
            from = out.len();
        }
    }

    /// May more be answered now? The shell feeds [`MonEvent::More`] until not.
    pub fn has_more(&self) -> bool {
        self.q.reads.front().is_some_and(|(n, _)| *n <= self.q.ready)
    }

    fn answer(&mut self, ask: Ask, out: &mut Vec<MonEffect>) {
        // Who left before the majority's word came needs none: it would be the manager's work for
        // nothing, too, and whoever comes and goes would have all of its places. Another monitor
        // forwards it again if it knows better.
        if !self.sessions.contains_key(&ask.conn) {
            return;
        }
        if crate::mon::for_leader(&ask.message) && !self.q.leads() {
            self.lead(ask, out);
            return;
        }
        if commands::is_for_manager(&self.state, &ask.message) {
            self.ask_manager(ask, out);
            return;
        }
        let via = ask.via;
        if let Err(e) = self.on_read(ask.conn, &ask.message, out) {
            self.malformed(ask.conn, &e, out);
        }
        self.forward_done(via, out);
    }

    /// Whoever forwarded a request need not do so again.
    pub(crate) fn forward_done(&self, via: Option<(MemberId, u64)>, out: &mut Vec<MonEffect>) {
        if let Some((member, id)) = via
            && let Some(boot) = self.q.boots.get(&member)
        {
            self.send_member(member, MonForwardDone { boot: *boot, id }.into_message(0), out);
        }
    }

    /// Turns what is addressed to other monitors' clients into messages to those monitors.
    pub(crate) fn route(&self, out: &mut [MonEffect]) {
        for e in out {
            let (conn, message) = match e {
                MonEffect::Send(conn, m) if *conn >= REMOTE => (*conn, std::mem::take(m)),
                MonEffect::Close(conn) if *conn >= REMOTE => (*conn, Message::default()),
                _ => continue,
            };
            let target = self.q.routes.get(&conn).and_then(|(member, far)| {
                let (name, addrs) = self.name_of(*member)?;
                Some((name, addrs, *self.q.boots.get(member)?, *far))
            });
            *e = match target {
                Some((name, addrs, boot, conn)) => {
                    let routed = MonRouted { boot, conn, message: Carried(message) };
                    MonEffect::SendPeer(name, addrs, routed.into_message(0))
                }
                // Gone meanwhile: nothing to do.
                None => MonEffect::Close(conn),
            };
        }
    }

    /// Gives up the connections that a member forwarded for.
    fn drop_remote(&mut self, member: MemberId) {
        let of_it = self.q.remote.range((member, 0)..=(member, ConnId::MAX));
        let conns: Vec<ConnId> = of_it.map(|((_, conn), _)| *conn).collect();
        conns.into_iter().for_each(|conn| self.forget_remote(member, conn));
    }

    /// A member, asked at that time, has these connections in its run `boot`: others that it had
    /// forwarded for by then are gone. That it sent their clients away was not said where it knew
    /// of no leader, or the word was lost.
    fn keep_remote(&mut self, member: MemberId, asked: UTime, (boot, open): &(u64, Vec<ConnId>)) {
        let (last, unknown) = self.q.listing;
        if asked != last || self.q.boots.get(&member) != Some(boot) {
            return;
        }
        let open: BTreeSet<ConnId> = open.iter().copied().collect();
        let of_it = self.q.remote.range((member, 0)..=(member, ConnId::MAX));
        let gone = of_it.filter(|((_, conn), own)| **own < unknown && !open.contains(conn));
        let gone: Vec<ConnId> = gone.map(|((_, conn), _)| *conn).collect();
        gone.into_iter().for_each(|conn| self.forget_remote(member, conn));
    }

    /// A connection that a member forwarded for is gone.
    fn forget_remote(&mut self, member: MemberId, conn: ConnId) {
        if let Some(own) = self.q.remote.remove(&(member, conn)) {
            self.q.routes.remove(&own);
            self.close_session(own);
        }
    }

    /// The connection of another monitor's client, made known if it is new.
    fn remote_conn(
        &mut self,
        member: MemberId,
        boot: u64,
        conn: ConnId,
        peer: CarriedPeer,
    ) -> Option<ConnId> {
        if self.q.boots.insert(member, boot).is_some_and(|b| b != boot) {
            self.drop_remote(member);
        }
        if let Some(known) = self.q.remote.get(&(member, conn)) {
            return Some(*known);
        }
        let peer = peer_of(peer)?;
        let own = self.q.next_remote;
        self.q.next_remote += 1;
        self.q.remote.insert((member, conn), own);
        self.q.routes.insert(own, (member, conn));
        self.open_session(own, peer);
        Some(own)
    }

    // ---- agreement ----

    /// Does what every other monitor will do with a batch's changes, from the bytes that it will
    /// see: the state that comes of it, and those bytes; `None` if nothing changes.
    ///
    /// # Errors
    /// Why no monitor could take them. They must not be proposed then: an entry that is agreed on
    /// and cannot be applied stops every monitor for good.
    pub(crate) fn rehearse(
        &self,
        id: u64,
        txn: &MonTxn,
    ) -> Result<Option<(State, Vec<u8>)>, String> {
        if txn.is_empty() {
            return Ok(None);
        }
        let p =
            Proposal { member: self.q.identity.member, boot: self.q.boot, id, txn: txn.clone() };
        let data = spirula_encoding::to_vec(&p);
        #[cfg(feature = "plant-bugs")]
        if let Some(poison) = self.q.poison.filter(|_| id.is_multiple_of(Poison::EVERY)) {
            return self.poisoned(poison, p);
        }
        rehearsed(&self.state, &data).map(|state| Some((state, data)))
    }

    /// Plants a bug: see [`Poison`].
    #[cfg(feature = "plant-bugs")]
    pub fn poison(&mut self, poison: Poison) {
        self.q.poison = Some(poison);
    }

    #[cfg(feature = "plant-bugs")]
    fn poisoned(
        &self,
        poison: Poison,
        mut p: Proposal,
    ) -> Result<Option<(State, Vec<u8>)>, String> {
        let good = spirula_encoding::to_vec(&p);
        // A name that its table cannot have: as when a manager was called `a/b`.
        p.txn.put("osd-metadata/a/b", spirula_encoding::to_vec(&1u32));
        let data = spirula_encoding::to_vec(&p);
        match poison {
            Poison::Rehearsed => rehearsed(&self.state, &data).map(|state| Some((state, data))),
            Poison::Proposed => rehearsed(&self.state, &good).map(|state| Some((state, data))),
        }
    }

    /// Proposes an entry; false if this monitor does not lead any more.
    pub(crate) fn propose_entry(&mut self, data: Vec<u8>, out: &mut Vec<MonEffect>) -> bool {
        let mut taken = false;
        let mut fx = Vec::new();
        if let Some(node) = &mut self.q.node {
            taken = node.propose(data, &mut fx).is_ok();
        }
        self.q.fx.extend(fx);
        self.drain(out);
        taken
    }

    /// Ticks since the start.
    pub(crate) fn ticks(&self) -> u64 {
        self.q.ticks
    }

    /// Notices a change that is not agreed on, and says so: in health, and every few seconds in the
    /// log.
    fn watch_commits(&mut self) {
        let waits = self.inflight.as_ref().map(|f| self.q.ticks.saturating_sub(f.since));
        self.quorum.stalled = waits.filter(|t| *t >= STALLED_TICKS);
        if let Some(ticks) = self.quorum.stalled.filter(|t| t.is_multiple_of(STALLED_TICKS)) {
            tracing::error!(
                seconds = ticks / 10,
                waiting = self.queue.len(),
                "the monitors do not agree on a change though a majority is heard: nothing can be \
                    changed"
            );
        }
    }

    fn on_entry(&mut self, entry: &Entry, out: &mut Vec<MonEffect>) {
        self.q.applied = entry.index;
        if self.q.frozen || entry.kind == EntryKind::Config || entry.data.is_empty() {
            self.answer_scrub(out);
            self.check_leading(out);
            return;
        }
        let p: Proposal = match spirula_encoding::from_slice(&entry.data) {
            Ok(p) => p,
            Err(e) => return self.fail(format!("entry {} cannot be read: {e}", entry.index), out),
        };
        let own = (p.member, p.boot) == (self.q.identity.member, self.q.boot);
        if own && self.inflight.as_ref().is_some_and(|f| f.id == p.id) {
            self.on_committed(out);
        } else {
            if let Err(e) = self.state.apply(&p.txn) {
                return self.fail(format!("entry {} does not apply: {e}", entry.index), out);
            }
            self.state_changed(out);
        }
        self.answer_scrub(out);
        self.check_leading(out);
    }

    /// The entry after which the state is.
    pub(crate) fn applied(&self) -> u64 {
        self.q.applied
    }

    /// The state is a newer one: tell subscribers, and see whether we still belong.
    pub(crate) fn state_changed(&mut self, out: &mut Vec<MonEffect>) {
        let map = &self.state.osdmap;
        let mut fewer = false;
        if map.epoch != self.up_before.0 {
            let up: BTreeSet<OsdId> = map.osds().filter(|o| map.is_up(*o)).collect();
            fewer = !self.up_before.1.is_subset(&up);
            self.osds.went_down(self.up_before.1.difference(&up).copied(), &up, self.steady);
            self.up_before = (map.epoch, up);
        }
        for (conn, session) in &mut self.sessions {
            session.push(*conn, self.fsid, &self.state, out);
            if fewer {
                session.warn(*conn, self.fsid, &self.state, out);
            }
        }
        // One that was taken out of the table stays until the library's members follow, which takes
        // its vote.
        self.q.belonged |= self.state.members.contains_key(&self.q.identity.member);
    }

    fn on_status(&mut self, s: Status, out: &mut Vec<MonEffect>) {
        tracing::info!(role = ?s.role, leader = ?s.leader, term = s.term, "quorum");
        if s.role != Role::Leader && self.q.leading {
            self.q.leading = false;
            let members: Vec<_> = self.q.boots.keys().copied().collect();
            members.into_iter().for_each(|m| self.drop_remote(m));
        }
        if s.role != Role::Leader {
            self.q.early.clear();
            let late = std::mem::take(&mut self.q.late).into_iter().map(|(_, f)| f);
            let lost: Vec<Ask> =
                self.inflight.take().into_iter().chain(late).flat_map(|f| f.asks).collect();
            let queued = std::mem::take(&mut self.queue);
            let queued = queued
                .into_iter()
                .filter_map(|r| if let Request::Ask(a) = r { Some(a) } else { None });
            let queued: Vec<Ask> =
                queued.chain(self.snaps.take()).chain(self.proxy.take()).collect();
            self.park(lost.into_iter().chain(queued));
        }
        self.q.asked = None;
        self.q.led = self.q.ticks;
        if self.q.other_leader().is_some() {
            for (id, f) in &self.q.forwards {
                self.send_forward(*id, &f.ask, out);
            }
            // What is announced now is no news later.
            let _ = self.osds.beacons.news(self.steady);
            self.announce_all(out);
        }
        self.refresh_quorum();
        self.unpark(out);
        self.confirm(out);
    }

    /// Tells the leader of every daemon connected here.
    fn announce_all(&self, out: &mut Vec<MonEffect>) {
        for (conn, s) in &self.sessions {
            self.announce(*conn, &s.peer, true, out);
        }
    }

    /// Tells the leader that a daemon's connection came or went.
    pub(crate) fn announce(&self, conn: ConnId, peer: &Peer, open: bool, out: &mut Vec<MonEffect>) {
        let daemon = matches!(peer.kind, EntityType::Osd | EntityType::Mgr);
        if conn < REMOTE
            && (daemon || !open)
            && let Some(leader) = self.q.other_leader()
        {
            let silent = match peer.id.parse() {
                Ok(osd) if open && peer.kind == EntityType::Osd => {
                    self.osds.beacons.state(osd, conn, self.steady)
                }
                _ => beacons::told::NOTHING,
            };
            let m = MonSession {
                boot: self.q.boot,
                conn,
                open,
                peer: carried_peer(peer),
                silent: Since(silent),
            };
            self.send_member(leader, m.into_message(0), out);
        }
    }

    /// Tells the leader of OSDs connected here that say no more that they run, or do again.
    pub(crate) fn tell_silence(&mut self, out: &mut Vec<MonEffect>) {
        for conn in self.osds.beacons.news(self.steady) {
            if let Some(s) = self.sessions.get(&conn) {
                self.announce(conn, &s.peer, true, out);
            }
        }
    }

    fn check_leading(&mut self, out: &mut Vec<MonEffect>) {
        if self.q.leads() && !self.q.leading {
            self.q.leading = true;
            self.judging_since = self.steady;
            self.osds.new_leader(&self.state.osdmap, self.steady);
            self.clock.lead(
                self.now,
                self.state.osdmap.modified,
                crate::time::set_so_far(&self.state),
            );
            self.merges = MergeTracker::default();
            self.mds.forget();
            self.quorum.since = self.now;
            self.quorum.skews.clear();
            self.quorum.forgotten_elsewhere.clear();
            self.q.told_contradictions.clear();
            self.refresh_quorum();
            // Requests that other leaders took along are made again by those who sent them;
            // what only a leader does begins at once.
            let forwards = std::mem::take(&mut self.q.forwards);
            self.q.parked.extend(forwards.into_values().map(|f| f.ask));
            self.tick_parts(out);
            self.unpark(out);
            self.q.asked = None;
            self.confirm(out);
            for (name, addrs, m) in std::mem::take(&mut self.q.early) {
                if let Err(e) = self.on_peer_message(&name, &addrs, &m, out) {
                    tracing::warn!(mon = name, error = %e, "malformed message ignored");
                }
            }
        }
    }

    fn unpark(&mut self, out: &mut Vec<MonEffect>) {
        if self.q.leads() || self.q.other_leader().is_some() {
            for ask in std::mem::take(&mut self.q.parked) {
                self.lead(ask, out);
            }
        }
    }

    /// Keeps requests that could not be done until it shows who leads, or a tick. Who forwarded one
    /// will do so again.
    pub(crate) fn park(&mut self, asks: impl IntoIterator<Item = Ask>) {
        self.q.parked.extend(asks.into_iter().filter(|a| a.conn < REMOTE && a.via.is_none()));
    }

    /// What was asked over a connection that is gone needs no answer.
    pub(crate) fn forget_asks(&mut self, conn: ConnId) {
        self.q.forwards.retain(|_, f| f.ask.conn != conn);
        self.q.parked.retain(|a| a.conn != conn);
        self.snaps.forget(conn);
        self.proxy.forget(conn);
    }

    pub(crate) fn on_persisted(&mut self, number: u64, out: &mut Vec<MonEffect>) {
        self.with_node(out, |n, fx| n.persisted(number, fx));
    }

    // ---- time ----

    /// A tick: the library's clock, repeats, proof, membership.
    pub(crate) fn quorum_tick(&mut self, out: &mut Vec<MonEffect>) {
        self.q.ticks += 1;
        let now = self.q.ticks;
        if self.q.node.is_none() {
            if now % 10 == 1 {
                self.ask_to_join(out);
            }
            return;
        }
        self.with_node(out, Node::tick);
        if self.q.asked.is_some_and(|(_, at)| now >= at + READ_AGAIN) {
            self.q.asked = None;
        }
        if !self.q.reads.is_empty() || !self.q.late.is_empty() || now.is_multiple_of(5) {
            self.confirm(out);
        }
        let late: Vec<u64> = self
            .q
            .forwards
            .iter()
            .filter(|(_, f)| now >= f.sent_at + FORWARD_AGAIN)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            if let Some(f) = self.q.forwards.get_mut(&id) {
                f.sent_at = now;
                let ask = f.ask.clone();
                self.send_forward(id, &ask, out);
            }
        }
        self.unpark(out);
        let proven = self.q.proven();
        // A new run gets the same time to find the others.
        let shut = !proven && now > PROOF_TICKS;
        self.gids.closed.store(!proven, Ordering::Release);
        if shut {
            self.send_clients_away(out);
        }
        if now.is_multiple_of(ANNOUNCE_TICKS) && self.q.other_leader().is_some() {
            self.announce_all(out);
        }
        if now.is_multiple_of(10)
            && self.gids.left() < GID_STEP / 2
            && let Some(leader) = self.q.other_leader()
        {
            self.send_member(leader, MonGidsAsk { boot: self.q.boot }.into_message(0), out);
        }
        if self.q.leads() {
            self.leader_tick(out);
        } else {
            self.leave_if_removed(out);
            self.leave_odd_leader();
        }
        self.tick_scrub();
        self.watch_commits();
        self.refresh_quorum();
        self.maybe_compact(out);
    }

    /// A leader of another history, which no majority follows, is left alone for as long as the
    /// others need to agree on one of themselves. One that has a majority says so with [`MonTime`]:
    /// then it is this monitor that is odd.
    fn leave_odd_leader(&mut self) {
        let Some(leader) = self.q.other_leader() else { return };
        if self.q.ticks <= self.q.led + UNLED_TICKS {
            return;
        }
        if let Some(why) = self.q.contradiction(leader).cloned()
            && let Some(node) = &mut self.q.node
        {
            let name = self.state.members.get(&leader).map_or("?", |m| &m.name);
            tracing::warn!(
                leader = name,
                why,
                "the leader contradicts what is agreed on, and has no majority; not heard for a \
                    while"
            );
            node.shun(leader, SHUN_TICKS);
            self.q.led = self.q.ticks;
        }
    }

    fn send_clients_away(&mut self, out: &mut Vec<MonEffect>) {
        let conns: Vec<ConnId> = self
            .sessions
            .iter()
            .filter(|(c, s)| **c < REMOTE && s.peer.kind != EntityType::Mon)
            .map(|(c, _)| *c)
            .collect();
        if !conns.is_empty() {
            tracing::warn!(connections = conns.len(), "no majority answers, sending clients away");
        }
        for conn in conns {
            self.close_session(conn);
            out.push(MonEffect::Close(conn));
        }
        self.q.reads.clear();
        self.q.parked.clear();
        self.q.forwards.clear();
    }

    fn leader_tick(&mut self, out: &mut Vec<MonEffect>) {
        let now = self.q.ticks;
        let others = self.others();
        for m in &others {
            let silent = self.q.node.as_ref().and_then(|n| n.silent_for(*m));
            if silent.is_some_and(|t| t >= GONE_TICKS) {
                self.drop_remote(*m);
            }
        }
        if now.is_multiple_of(TIME_TICKS) {
            let q = &self.quorum;
            let (quorum, pairs) = (q.names.clone(), self.osds.pairs.shown.clone());
            let (skews, room, facts) = (q.skews.clone(), q.room.clone(), Since(q.facts.clone()));
            let sent = self.clock.common(self.now);
            let contradicting = Since(q.contradicting.clone());
            let ask =
                MonTime { sent, quorum, since: q.since, skews, pairs, room, facts, contradicting };
            self.q.listing = (sent, self.q.next_remote);
            for m in others {
                self.send_member(m, ask.clone().into_message(0), out);
                let daemons = self.forgotten_but_by(self.state.members.get(&m).map(|m| &m.name));
                self.send_member(m, MonForgotten { daemons }.into_message(0), out);
            }
        }
        self.reconcile(out);
    }

    /// What was told to this monitor, and to others but that one, of OSD maps that the monitors do
    /// not have.
    fn forgotten_but_by(&self, monitor: Option<&String>) -> BTreeMap<String, Epoch> {
        let others =
            self.quorum.forgotten_elsewhere.iter().filter(|(name, _)| Some(*name) != monitor);
        others
            .map(|(_, told)| told)
            .chain([&self.quorum.forgotten])
            .flatten()
            .map(|(d, e)| (d.clone(), *e))
            .collect()
    }

    /// Brings the library's members one step nearer to the agreed table.
    fn reconcile(&mut self, out: &mut Vec<MonEffect>) {
        let Some(node) = &self.q.node else { return };
        let (is, want, me) = (node.members(), &self.state.members, self.q.identity.member);
        let all = || is.voters.iter().chain(&is.learners).copied();
        let gone = |id: &MemberId| !want.contains_key(id);
        let near = |id: &MemberId| {
            node.lag_of(*id).is_some_and(|l| l <= CAUGHT_UP)
                && node.silent_for(*id).is_some_and(|t| t < 10)
        };
        let change = None
            .or_else(|| is.learners.iter().copied().find(gone).map(ConfigChange::Remove))
            .or_else(|| is.learners.iter().copied().find(near).map(ConfigChange::AddVoter))
            .or_else(|| all().filter(|id| *id != me).find(gone).map(ConfigChange::Remove))
            .or_else(|| {
                want.keys().copied().find(|id| !is.contains(*id)).map(ConfigChange::AddLearner)
            })
            .or_else(|| (gone(&me) && is.voters.contains(&me)).then_some(ConfigChange::Remove(me)));
        if let Some(c) = change {
            self.with_node(out, |n, fx| {
                if n.propose_change(c, fx).is_ok() {
                    tracing::info!(change = ?c, "proposing a change of members");
                }
            });
        }
    }

    /// Stops a monitor that the others need no more: it is in no table of members, be that the
    /// state's or the library's. It goes on answering the others until one of those leads and says
    /// so ([`MonRemoved`]), or for [`LEAVE_TICKS`].
    fn leave_if_removed(&mut self, out: &mut Vec<MonEffect>) {
        let me = self.q.identity.member;
        let agreed = self.q.node.as_ref().is_some_and(|n| n.members().contains(me));
        if !self.q.belonged || self.q.frozen || agreed || self.state.members.contains_key(&me) {
            self.q.outside = None;
            return;
        }
        let since = *self.q.outside.get_or_insert(self.q.ticks);
        if self.q.ticks - since >= LEAVE_TICKS {
            self.fail(format!("mon.{} was removed from the cluster", self.name), out);
        }
    }

    /// What of the quorum's log is applied here.
    pub(crate) fn agreed(&self) -> crate::report::Agreed {
        let Some(node) = &self.q.node else { return crate::report::Agreed::default() };
        let last = node.applied();
        crate::report::Agreed {
            first: last.saturating_sub(node.log_weight().0),
            last,
            term: node.status().term,
        }
    }

    fn maybe_compact(&mut self, out: &mut Vec<MonEffect>) {
        let Some(node) = &self.q.node else { return };
        let (entries, bytes) = node.log_weight();
        if entries > COMPACT_ENTRIES || bytes > COMPACT_BYTES || node.snapshot_wanted() {
            self.compact(out);
        }
    }

    /// Writes a snapshot of what is applied in the place of the log, unless one of it is there
    /// already.
    pub(crate) fn compact(&mut self, out: &mut Vec<MonEffect>) {
        let data = self.state.to_bytes();
        self.with_node(out, |n, fx| n.compact(data, fx));
    }

    /// What reports say of the quorum.
    pub(crate) fn refresh_quorum(&mut self) {
        let Some(node) = &self.q.node else { return };
        let s = node.status();
        let voters = node.members().voters.len();
        let term = s.term.min(u64::from(u32::MAX) / 2) as u32;
        // As Ceph counts: two per election; a monitor alone stands for itself.
        self.quorum.election_epoch =
            if voters == 1 { (2 * term).saturating_sub(1) } else { 2 * term };
        let large = node.unsendable_snapshot();
        if self.quorum.unsendable.as_ref().map(|(bytes, _)| *bytes) != large {
            self.quorum.unsendable = large.map(|bytes| (bytes, self.state.largest_tables()));
        }
        let leader = s
            .leader
            .and_then(|l| self.state.members.get(&l))
            .map(|m| m.name.clone())
            .unwrap_or_default();
        if self.q.leads() {
            let name = |id: &MemberId| Some(self.state.members.get(id)?.name.clone());
            let heard = |id: &MemberId| node.silent_for(*id).is_some_and(|t| t <= SILENT_TICKS);
            // One that was stopped since contradicts nobody.
            let refuses = |id: &MemberId| {
                // One that answers no heartbeat either is heard when it wants to be elected, now
                // and then.
                if node.silent_for(*id).is_none_or(|t| t > CONTRADICTED_TICKS) {
                    return None;
                }
                let why =
                    self.q.contradiction(*id).or_else(|| self.q.told_contradictions.get(id))?;
                Some((name(id)?, why.clone()))
            };
            let others = self.state.members.keys().filter(|id| **id != self.q.identity.member);
            let contradicting: BTreeMap<String, String> = others.filter_map(refuses).collect();
            // Who is heard and takes nothing of what is agreed on is no part of it.
            let here =
                |id: &MemberId| *id == self.q.identity.member || heard(id) && refuses(id).is_none();
            let names: Vec<String> =
                node.members().voters.iter().filter(|id| here(id)).filter_map(name).collect();
            self.quorum.contradicting = contradicting;
            self.set_quorum_names(names);
        } else if s.leader.is_none() {
            self.quorum.contradicting.clear();
            self.set_quorum_names(Vec::new());
        } else if self.quorum.leader != leader {
            // Until the leader says who else.
            self.quorum.contradicting.clear();
            self.set_quorum_names(vec![leader.clone(), self.name.clone()]);
        }
        self.quorum.leader = leader;
    }

    fn set_quorum_names(&mut self, names: Vec<String>) {
        let map = &self.state.monmap;
        let mut ranks: Vec<(u32, String)> =
            names.into_iter().filter_map(|n| Some((map.rank_of(&n)? as u32, n))).collect();
        ranks.sort();
        ranks.dedup();
        let (quorum, names): (Vec<u32>, Vec<String>) = ranks.into_iter().unzip();
        if (&quorum, &names) != (&self.quorum.quorum, &self.quorum.names) {
            (self.quorum.quorum, self.quorum.names) = (quorum, names);
            if self.q.leads() {
                self.quorum.since = self.now;
            }
        }
    }

    // ---- other monitors ----

    fn ask_to_join(&self, out: &mut Vec<MonEffect>) {
        let Identity { fsid, uuid, .. } = self.q.identity;
        let own =
            self.state.monmap.mons.get(&self.name).map(|m| m.addrs.clone()).unwrap_or_default();
        let join = MonJoin { fsid, name: self.name.clone(), uuid, addrs: own };
        for addrs in self.q.seeds.iter().filter(|a| **a != join.addrs) {
            // Their names are not known yet.
            out.push(MonEffect::SendPeer(
                addrs.to_string(),
                addrs.clone(),
                join.clone().into_message(0),
            ));
        }
    }

    /// A message over the link of monitor `name`, who listens at `addrs`. True if it was one of
    /// these.
    pub(crate) fn on_peer_message(
        &mut self,
        name: &str,
        addrs: &AddrVec,
        m: &Message,
        out: &mut Vec<MonEffect>,
    ) -> Result<bool, MessageError> {
        let member = self.member_named(name);
        // The others know who leads before the leader's first entry is committed, which takes their
        // answers.
        if matches!(m.kind, MonForward::KIND | MonSession::KIND)
            && !self.q.leads()
            && self.q.status().role == Role::Leader
        {
            if self.q.early.len() < WAIT_MAX {
                self.q.early.push_back((name.to_owned(), addrs.clone(), m.clone()));
            }
            return Ok(true);
        }
        match m.kind {
            QuorumFrame::KIND => self.on_frame(name, addrs, QuorumFrame::from_message(m)?, out),
            MonJoin::KIND => self.on_join(MonJoin::from_message(m)?, m, out),
            MonWelcome::KIND => self.on_welcome(MonWelcome::from_message(m)?, out),
            MonForward::KIND => {
                let f = MonForward::from_message(m)?;
                if let Some(member) = member.filter(|_| self.q.leads())
                    && let Some(conn) = self.remote_conn(member, f.boot, f.conn, f.peer)
                {
                    self.lead(Ask { conn, message: f.message.0, via: Some((member, f.id)) }, out);
                }
            }
            MonForwardDone::KIND => {
                let d = MonForwardDone::from_message(m)?;
                if d.boot == self.q.boot {
                    self.q.forwards.remove(&d.id);
                }
            }
            MonRouted::KIND => {
                let r = MonRouted::from_message(m)?;
                if r.boot == self.q.boot && r.conn < REMOTE && self.sessions.contains_key(&r.conn) {
                    out.push(match r.message.0 {
                        m if m.kind == 0 => MonEffect::Close(r.conn),
                        m => MonEffect::Send(r.conn, m),
                    });
                }
            }
            MonSession::KIND => {
                let s = MonSession::from_message(m)?;
                if let Some(member) = member.filter(|_| self.q.leads()) {
                    if s.open {
                        let osd = peer_of(s.peer.clone()).filter(|p| p.kind == EntityType::Osd);
                        let conn = self.remote_conn(member, s.boot, s.conn, s.peer);
                        if let (Some(conn), Some(osd)) = (conn, osd.and_then(|p| p.id.parse().ok()))
                        {
                            self.osds.beacons.told(osd, conn, s.silent.0, self.steady);
                        }
                    } else {
                        self.forget_remote(member, s.conn);
                    }
                }
            }
            MonRelay::KIND => {
                let r = MonRelay::from_message(m)?;
                if r.peer.kind == EntityType::Mgr as u8 {
                    self.on_manager(&r.peer.id, &r.message.0, out)?;
                }
            }
            MonGidsAsk::KIND => {
                let a = MonGidsAsk::from_message(m)?;
                if let Some(member) = member.filter(|_| self.q.leads()) {
                    self.q.boots.insert(member, a.boot);
                    self.submit(Request::Ids(member), out);
                }
            }
            MonGidsGrant::KIND => {
                let g = MonGidsGrant::from_message(m)?;
                if g.boot == self.q.boot && self.gids.left() < GID_STEP / 2 {
                    self.gids.set(g.from, g.to);
                }
            }
            MonTime::KIND => {
                let t = MonTime::from_message(m)?;
                if !self.q.leads() && member.is_some() && member == self.q.other_leader() {
                    self.q.led = self.q.ticks;
                    self.set_quorum_names(t.quorum);
                    (self.quorum.since, self.quorum.skews) = (t.since, t.skews);
                    self.osds.pairs.shown = t.pairs;
                    self.clock.leader_says(member.unwrap_or_default(), t.sent, self.now);
                    let own = self.quorum.room.get(&self.name).copied();
                    self.quorum.room = t.room;
                    self.set_room(own);
                    let facts = self.metadata.clone();
                    self.quorum.facts = t.facts.0;
                    self.quorum.facts.insert(self.name.clone(), facts.clone());
                    self.quorum.contradicting = t.contradicting.0;
                    let (here, room) = (self.now, own.unwrap_or(u32::MAX));
                    let open = self.sessions.keys().copied().filter(|c| *c < REMOTE).collect();
                    let sessions = Since((self.q.boot, open));
                    let contradicts =
                        member.and_then(|m| self.q.contradiction(m)).cloned().unwrap_or_default();
                    let (facts, contradicts) = (Since(facts), Since(contradicts));
                    let answer =
                        MonTimeReply { sent: t.sent, here, room, facts, sessions, contradicts };
                    let told = MonForgotten { daemons: self.quorum.forgotten.clone() };
                    if let Some(member) = member {
                        self.send_member(member, answer.into_message(0), out);
                        self.send_member(member, told.into_message(0), out);
                    }
                }
            }
            MonTimeReply::KIND => {
                let t = MonTimeReply::from_message(m)?;
                if let Some(member) = member.filter(|_| self.q.leads()) {
                    self.keep_remote(member, t.sent, &t.sessions.0);
                    let nanos = |t: UTime| t.as_nanos() as i64;
                    let round =
                        nanos(self.clock.common(self.now)).saturating_sub(nanos(t.sent)).max(0);
                    let skew =
                        nanos(t.here).saturating_sub(nanos(self.now).saturating_sub(round / 2));
                    self.quorum.skews.insert(name.to_owned(), (skew, round / 2));
                    self.quorum.facts.insert(name.to_owned(), t.facts.0);
                    match t.contradicts.0 {
                        why if why.is_empty() => self.q.told_contradictions.remove(&member),
                        why => self.q.told_contradictions.insert(member, why),
                    };
                    if t.room <= 100 {
                        self.quorum.room.insert(name.to_owned(), t.room);
                    } else {
                        self.quorum.room.remove(name);
                    }
                }
            }
            MonForgotten::KIND => {
                let told = MonForgotten::from_message(m)?.daemons;
                if member.is_some() && (self.q.leads() || member == self.q.other_leader()) {
                    if !self.q.leads() {
                        // The leader tells of all others.
                        self.quorum.forgotten_elsewhere.clear();
                    }
                    self.quorum.forgotten_elsewhere.insert(name.to_owned(), told);
                }
            }
            MonScrub::KIND => {
                let ask = MonScrub::from_message(m)?;
                if let Some(member) = member.filter(|m| Some(*m) == self.q.other_leader()) {
                    self.on_scrub(member, ask, out);
                }
            }
            MonScrubbed::KIND => {
                let answer = MonScrubbed::from_message(m)?;
                if let Some(member) = member.filter(|_| self.q.leads()) {
                    self.on_scrubbed(member, name, answer, out);
                }
            }
            MonRemoved::KIND => {
                let r = MonRemoved::from_message(m)?;
                if r.member == self.q.identity.member && r.member != 0 {
                    self.fail(format!("mon.{} was removed from the cluster", self.name), out);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn member_named(&self, name: &str) -> Option<MemberId> {
        let here = self.state.members.iter().find(|(_, m)| m.name == name).map(|(id, _)| *id);
        here.or_else(|| self.q.known.iter().find(|(_, (n, _))| n == name).map(|(id, _)| *id))
    }

    fn on_frame(&mut self, name: &str, addrs: &AddrVec, f: QuorumFrame, out: &mut Vec<MonEffect>) {
        let known = self.name_of(f.from);
        if known.as_ref().is_none_or(|(n, _)| n != name) {
            let listed = self.state.members.contains_key(&f.from);
            // Who was taken out of the table takes part until the library's members follow: its
            // vote, and its log if it led, may be what those who are left need. Of two monitors
            // neither could lead without.
            let leaving =
                !listed && self.q.node.as_ref().is_some_and(|n| n.members().contains(f.from));
            // A leader knows every number there is: this one is no longer.
            if self.q.leads() && f.from < self.state.next_member && !listed && !leaving {
                let here = self.state.monmap.mons.get(name).map(|info| &info.addrs);
                let m = MonRemoved { member: f.from }.into_message(0);
                out.push(MonEffect::SendPeer(name.to_owned(), here.unwrap_or(addrs).clone(), m));
            }
            if listed || f.from < self.state.next_member && !leaving {
                return;
            }
            // Or a number given since this monitor's state. It may be the leader's, who can only
            // help if it hears from us: it is to be answered where it listens.
            if leaving || self.q.known.len() < KNOWN_MAX {
                self.q.known.insert(f.from, (name.to_owned(), addrs.clone()));
            }
        }
        let mut refused = None;
        self.with_node(out, |n, fx| refused = n.receive(f.from, &f.frame, fx).err());
        if let Some(e) = refused {
            if let Refusal::Contradiction(why) = &e {
                let first = self.q.contradiction(f.from).is_none();
                self.q.contradictions.insert(f.from, (self.q.ticks, why.clone()));
                if !first {
                    return;
                }
            }
            tracing::warn!(from = name, error = %e, "frame of another monitor refused");
        }
    }

    fn on_join(&mut self, j: MonJoin, m: &Message, out: &mut Vec<MonEffect>) {
        if j.fsid != self.fsid {
            tracing::warn!(name = j.name, fsid = %j.fsid, "a monitor of another cluster wants to \
                join; ignored");
        } else if self.q.leads() {
            self.submit(Request::Join(j), out);
        } else if let Some(leader) = self.q.other_leader() {
            self.send_member(leader, m.clone(), out);
        }
    }

    /// Has that member, or is it this monitor, been heard of late?
    fn hears(&self, member: MemberId) -> bool {
        let silent = || self.q.node.as_ref().and_then(|n| n.silent_for(member));
        member == self.q.identity.member || silent().is_some_and(|t| t <= SILENT_TICKS)
    }

    /// Gives a monitor a member number, in the batch.
    pub(crate) fn run_join(&mut self, j: MonJoin, work: &mut Work) {
        let member =
            work.state.members.iter().find(|(_, m)| m.name == j.name).map(|(id, m)| (*id, m.uuid));
        if let Some((old, uuid)) = member
            && uuid != j.uuid
            && self.hears(old)
        {
            // Another store under its name: of another host, or a copy. It may come when the old
            // one is gone.
            tracing::warn!(name = j.name, at = %j.addrs, "a second monitor of a living one's name \
                wants to join; refused");
            // It asks every second: it is said once.
            if self.q.refused.len() < KNOWN_MAX && self.q.refused.insert(j.uuid) {
                work.log(
                    spirula_messages::ceph::log::severity::WARN,
                    format!(
                        "mon.{} at {} wants to join, but a monitor of that name is in the quorum; \
                            refused",
                        j.name, j.addrs
                    ),
                );
            }
            return;
        }
        // A name that is no monitor's comes in by a token, or because an administrator put it into
        // the map.
        let named = work.state.monmap.mons.contains_key(&j.name);
        if member.is_none() && !(commands::join::take_name(work, &j.name) || named) {
            tracing::warn!(name = j.name, at = %j.addrs, "a monitor wants to join under a name \
                that no token was given for; refused");
            return;
        }
        let placed = work.state.monmap.mons.get(&j.name).is_some_and(|m| m.addrs == j.addrs);
        if !placed {
            let map = Arc::make_mut(&mut work.state.monmap);
            map.remove(&j.name);
            map.add(j.name.clone(), j.addrs.clone());
            map.epoch += 1;
            map.last_changed = work.now;
            work.info(format!("mon.{} joins at {}", j.name, j.addrs));
        }
        if member.is_none_or(|(_, uuid)| uuid != j.uuid) {
            let members = Arc::make_mut(&mut work.state.members);
            if let Some((old, _)) = member {
                members.remove(&old);
            }
            members.insert(work.state.next_member, Member { name: j.name.clone(), uuid: j.uuid });
            work.state.next_member += 1;
        }
        work.after.push(After::Welcome { name: j.name, addrs: j.addrs, uuid: j.uuid });
    }

    fn on_welcome(&mut self, w: MonWelcome, out: &mut Vec<MonEffect>) {
        if w.uuid != self.q.identity.uuid || self.q.node.is_some() || w.member == 0 {
            return;
        }
        let before = self.q.identity.member;
        if before != 0 && before != w.member {
            return self.fail(
                format!("this store was member {before}, the cluster calls it {}", w.member),
                out,
            );
        }
        self.q.known = w.members;
        self.q.identity.member = w.member;
        let opened = match self.q.stored.take() {
            Some(stored) => self.open_node(&stored),
            None => return,
        };
        if let Err(e) = opened {
            return self.fail(e.to_string(), out);
        }
        tracing::info!(member = w.member, "joining the quorum");
        out.push(MonEffect::Member(w.member));
        self.drain(out);
    }

    /// What a manager says, wherever it is connected.
    pub(crate) fn on_manager(
        &mut self,
        manager: &str,
        m: &Message,
        out: &mut Vec<MonEffect>,
    ) -> Result<(), MessageError> {
        if m.kind == MgrRan::KIND && self.q.leads() {
            self.manager_ran(manager, MgrRan::from_message(m)?, out);
        }
        if m.kind == MgrDigest::KIND {
            let taken = self.mgr.take_digest(&self.state.mgrmap, MgrDigest::from_message(m)?);
            if taken && self.q.leads() {
                self.tick_parts(out);
            }
        }
        Ok(())
    }

    /// Passes on to every other monitor what a manager connected here said.
    pub(crate) fn relay(&self, peer: &Peer, m: &Message, out: &mut Vec<MonEffect>) {
        let others = self.others();
        if !others.is_empty() {
            let relay =
                MonRelay { peer: carried_peer(peer), message: Carried(m.clone()) }.into_message(0);
            others.into_iter().for_each(|o| self.send_member(o, relay.clone(), out));
        }
    }

    /// Passes on to the leader what a manager connected here said to it alone.
    pub(crate) fn relay_to_leader(&self, peer: &Peer, m: &Message, out: &mut Vec<MonEffect>) {
        if let Some(leader) = self.q.other_leader() {
            let relay = MonRelay { peer: carried_peer(peer), message: Carried(m.clone()) };
            self.send_member(leader, relay.into_message(0), out);
        }
    }

    /// Numbers this run.
    pub(crate) fn boot(&self) -> u64 {
        self.q.boot
    }

    /// What a committed batch wants done besides answers.
    pub(crate) fn perform_after(&mut self, after: Vec<After>, out: &mut Vec<MonEffect>) {
        for a in after {
            match a {
                After::OwnIds(from, to) => self.gids.set(from, to),
                After::Malformed(conn, e) => self.malformed(conn, &e, out),
                After::Scrub => self.begin_scrub(out),
                After::Ids(member, from, to) => {
                    if let Some(boot) = self.q.boots.get(&member) {
                        let m = MonGidsGrant { boot: *boot, from, to }.into_message(0);
                        self.send_member(member, m, out);
                    }
                }
                After::Welcome { name, addrs, uuid } => {
                    let found =
                        self.state.members.iter().find(|(_, m)| (&m.name, m.uuid) == (&name, uuid));
                    if let Some((member, _)) = found {
                        let all = self
                            .state
                            .members
                            .keys()
                            .filter_map(|id| Some((*id, self.name_of(*id)?)))
                            .collect();
                        let m = MonWelcome { uuid, member: *member, members: all };
                        out.push(MonEffect::SendPeer(name, addrs, m.into_message(0)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::{Crush, MonMap, OsdMap};

    /// What cannot be applied is found before it is proposed, whatever it is.
    #[test]
    fn an_entry_that_nobody_could_apply_is_found_before_it_is_proposed() {
        let now = UTime { sec: 1_795_000_000, nsec: 0 };
        let map =
            OsdMap::fresh(Uuid([1; 16]), 3, now, Crush::new(spirula_crush::CrushMap::default()));
        let state = State::new(MonMap::initial(Uuid([1; 16]), now, []), map, 0);
        let bytes =
            |txn: MonTxn| spirula_encoding::to_vec(&Proposal { member: 1, boot: 2, id: 3, txn });
        let one = |key: &str, value: &[u8]| {
            let mut txn = MonTxn::default();
            txn.put(key, value.to_vec());
            bytes(txn)
        };
        let good = one("kv/a/b/c", b"v");
        assert_eq!(rehearsed(&state, &good).unwrap().kv.get("a/b/c").unwrap(), &b"v"[..]);
        for (what, entry) in [
            ("an unknown table", one("nonsense/x", b"v")),
            ("a key that is none", one("osd-metadata/x", b"v")),
            ("a value that is none", one("mgr-metadata/x", b"v")),
            ("an epoch that does not follow", one("osdmap/inc/0000000007", b"v")),
            ("too much", one("kv/a", &vec![0; ENTRY_MAX])),
            ("bytes cut off", good.get(..good.len() - 1).unwrap().to_vec()),
        ] {
            assert!(rehearsed(&state, &entry).is_err(), "{what}");
        }
    }

    /// Every name of a row survives, whatever is in it.
    #[test]
    fn names_of_rows_may_hold_anything() {
        let now = UTime { sec: 1_795_000_000, nsec: 0 };
        let map =
            OsdMap::fresh(Uuid([1; 16]), 3, now, Crush::new(spirula_crush::CrushMap::default()));
        let state = State::new(MonMap::initial(Uuid([1; 16]), now, []), map, 0);
        let mut edited = state.clone();
        for name in ["a/b", "/", "", "kv/x", "osdmap/inc/1"] {
            Arc::make_mut(&mut edited.mgr_metadata).insert(name.to_owned(), [].into());
            Arc::make_mut(&mut edited.kv).insert(name.to_owned(), b"v"[..].into());
        }
        let mut other = state.clone();
        other.apply(&edited.diff(&state)).unwrap();
        assert!(other.to_bytes() == edited.to_bytes());
        assert!(State::from_bytes(&edited.to_bytes()).unwrap().to_bytes() == edited.to_bytes());
    }
}
