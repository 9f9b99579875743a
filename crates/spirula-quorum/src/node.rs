//! One member of the quorum, [`Node`]: events in (ticks, frames, proposals, "what you asked to
//! store is stored"), [`Effect`]s out, in order. It wraps the `raft` library: it hands the library
//! only frames that the library cannot panic on, and holds back each message that promises
//! something until the write that it promises is durable.

use crate::frame::{Chunk, FRAME_MAX, Frame, travels};
use crate::log::{Log, change_of, change_to_raft, from_raft, members_of};
use crate::snapshot::{Incoming, Next, Outgoing, SNAPSHOT_MAX, take};
use crate::types::{
    ConfigChange, Entry, EntryKind, HardState, MemberId, Members, Role, Snapshot, Status,
};
use bytes::Bytes;
use raft::eraftpb::{self, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of an entry that a frame carries, with what else is in it.
const ENTRY_MAX: usize = FRAME_MAX - (64 << 10);

/// How a member behaves. Times are in ticks.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who it is; not 0.
    pub id: MemberId,
    /// A member that heard its leader less than this ago helps nobody else to power; a leader
    /// that heard no majority for this long gives up.
    pub election_ticks: usize,
    /// A member that hears no leader asks for votes after `election_ticks` and up to this many
    /// more, drawn anew each time.
    pub election_spread: usize,
    /// Between two heartbeats.
    pub heartbeat_ticks: usize,
    /// Makes the draws; different for each member and each start.
    pub seed: u64,
    /// Bytes of entries in one frame; at least one entry is sent.
    pub frame_bytes: u64,
    /// Bytes of a snapshot above which no member takes it in: the same at all of them.
    pub snapshot_bytes: u64,
}

impl Config {
    /// What fits ticks of 100 ms: a new leader about 1.2 s after the old one died.
    pub fn new(id: MemberId, seed: u64) -> Self {
        Self {
            id,
            election_ticks: 8,
            election_spread: 6,
            heartbeat_ticks: 2,
            seed,
            frame_bytes: 1 << 20,
            snapshot_bytes: SNAPSHOT_MAX,
        }
    }
}

/// Something to be made durable at once: everything in it, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persist {
    /// Counts up by one; answered with [`Node::persisted`], in order.
    pub number: u64,
    /// Replaces the one before.
    pub hard: HardState,
    /// Replaces everything stored before, entries included.
    pub snapshot: Option<Snapshot>,
    /// Appended; stored ones from the first one's index on are replaced.
    pub entries: Vec<Entry>,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Make this durable.
    Persist(Persist),
    /// Send a frame; it may be lost, and then is repaired.
    Send(MemberId, Bytes),
    /// An entry is committed: apply it. Each index once, in order, for as long as the member
    /// runs; after a restart from the snapshot on. Empty data means nothing to do.
    Apply(Entry),
    /// Replace the state by this snapshot's.
    Install(Snapshot),
    /// Role, leader or term changed.
    Status(Status),
    /// Members changed.
    Members(Members),
    /// What was asked for by [`Node::read`] with this number, or an earlier one, may be
    /// answered from the state as it is now.
    ReadReady(u64),
}

/// The stored parts do not belong together.
#[derive(Debug, thiserror::Error)]
#[error("the stored log cannot be used: {0}")]
pub struct OpenError(String);

/// The proposal was not taken: this member does not lead, or cannot yet.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this member cannot propose now")]
pub struct NotLeader;

/// Why a frame was not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its bytes are no frame.
    #[error("malformed frame: {0}")]
    Malformed(#[from] spirula_encoding::DecodeError),
    /// Larger than any of ours.
    #[error("frame of {0} bytes")]
    TooLarge(usize),
    /// Addressed to, or signed by, someone else.
    #[error("frame from {from} to {to}")]
    Address {
        /// Who signed.
        from: MemberId,
        /// For whom.
        to: MemberId,
    },
    /// It contradicts what is committed here: one of the two forgot something.
    #[error("frame contradicts what is committed here: {0}")]
    Contradiction(String),
}

/// A write under way.
struct Write {
    number: u64,
    /// The library's number for it.
    ready: u64,
    /// To be installed when it is done.
    snapshot: Option<Snapshot>,
    /// Of its entries.
    bytes: usize,
}

/// Writes that may wait for the disk, and bytes of entries in them, above which a member hears
/// nothing more.
const WRITES_MAX: usize = 1024;
const WRITE_BYTES_MAX: usize = 64 << 20;

/// A member.
pub struct Node {
    raw: RawNode<Log>,
    id: MemberId,
    seed: u64,
    draws: u64,
    drawn_for: (u64, StateRole),
    spread: (usize, usize),
    now: u64,
    status: Status,
    members: Members,
    applied: (u64, u64),
    /// Number of the last write asked for, and of the last one done.
    asked: u64,
    done: u64,
    /// Writes under way, in order.
    writes: VecDeque<Write>,
    /// Bytes of entries in them.
    write_bytes: usize,
    newest_ready: u64,
    /// An entry of the log as it was found, not known to be committed, that no frame can carry: as
    /// a leader this member could neither send it nor anything behind it, and its heartbeats would
    /// keep everybody else from leading.
    too_large: Option<(u64, u64)>,
    /// Messages that may go once the write of that number is done.
    held: VecDeque<(u64, Vec<eraftpb::Message>)>,
    outgoing: BTreeMap<MemberId, Outgoing>,
    incoming: Option<Incoming>,
    /// Bytes of a snapshot above which nobody takes it in.
    snapshot_max: u64,
    /// Bytes of this member's snapshot, if they are more.
    unsendable: Option<u64>,
    /// That another's is so large was said.
    too_large_said: bool,
    /// A complete snapshot in the library's hands, until it says what it makes of it.
    offered: Option<Snapshot>,
    /// Confirmed reads that wait for their index.
    reads: Vec<(u64, u64)>,
    heard: BTreeMap<MemberId, u64>,
    /// Who is not heard, and until when.
    shunned: BTreeMap<MemberId, u64>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({}, {:?}, applied {})", self.id, self.status, self.applied.0)
    }
}

fn splitmix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Node {
    /// A member on what its store holds; a new one holds nothing. The state machine must be at
    /// `snapshot`; entries known to be committed come as effects at once.
    ///
    /// # Errors
    /// [`OpenError`] if the parts do not fit together.
    pub fn open(
        config: &Config,
        hard: HardState,
        snapshot: Snapshot,
        entries: &[Entry],
        out: &mut Vec<Effect>,
    ) -> Result<Self, OpenError> {
        let fail = |why: String| OpenError(why);
        let mut next = (snapshot.index + 1, snapshot.term);
        for e in entries {
            if e.index != next.0 || e.term < next.1 || e.term > hard.term {
                return Err(fail(format!(
                    "entry {} of term {} follows {} of {}",
                    e.index,
                    e.term,
                    next.0 - 1,
                    next.1
                )));
            }
            next = (e.index + 1, e.term);
        }
        if hard.commit >= next.0 && hard.commit > snapshot.index {
            return Err(fail(format!(
                "entry {} is committed, the log ends at {}",
                hard.commit,
                next.0 - 1
            )));
        }
        let id = config.id;
        let spread =
            (config.election_ticks + 1, config.election_ticks + 1 + config.election_spread.max(1));
        let raft_config = raft::Config {
            id,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: snapshot.index,
            max_size_per_msg: config.frame_bytes,
            max_inflight_msgs: 64,
            check_quorum: true,
            pre_vote: true,
            min_election_tick: spread.0,
            max_election_tick: spread.1,
            ..Default::default()
        };
        let unsendable = |e: &&Entry| e.index > hard.commit && e.data.len() > ENTRY_MAX;
        let too_large = entries.iter().find(unsendable).map(|e| (e.index, e.term));
        if let Some((index, _)) = too_large {
            tracing::error!(
                index,
                "an entry of this monitor's log, not agreed on, is larger than any other monitor \
                    takes: it does not lead until \
                 a majority of the others has put something else in its place"
            );
        }
        let (members, applied) = (snapshot.members.clone(), (snapshot.index, snapshot.term));
        let snapshot_size = snapshot.data.len();
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&raft_config, Log::new(hard, snapshot, entries), &logger)
            .map_err(|e| fail(e.to_string()))?;
        let mut node = Self {
            raw,
            id,
            seed: config.seed,
            draws: 0,
            drawn_for: (u64::MAX, StateRole::Follower),
            spread,
            now: 0,
            status: Status { term: hard.term, ..Status::default() },
            members,
            applied,
            asked: 0,
            done: 0,
            writes: VecDeque::new(),
            write_bytes: 0,
            newest_ready: 0,
            too_large,
            held: VecDeque::new(),
            outgoing: BTreeMap::new(),
            incoming: None,
            snapshot_max: config.snapshot_bytes,
            unsendable: None,
            too_large_said: false,
            offered: None,
            reads: Vec::new(),
            heard: BTreeMap::new(),
            shunned: BTreeMap::new(),
        };
        node.weigh(snapshot_size);
        node.work(out);
        if node.members.voters.len() == 1 && node.members.voters.contains(&id) {
            // Nobody else to ask.
            if let Err(e) = node.raw.campaign() {
                tracing::debug!(error = %e, "campaign");
            }
            node.work(out);
        }
        Ok(node)
    }

    /// Who this is.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// Role, leader and term.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Who belongs, as far as applied.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Index of the last entry applied.
    pub fn applied(&self) -> u64 {
        self.applied.0
    }

    /// True for a leader that has applied everything earlier leaders committed: what it
    /// proposes follows on what it knows. Not for one that removed itself: the library calls it the
    /// leader still, and takes nothing.
    pub fn may_propose(&self) -> bool {
        self.status.role == Role::Leader
            && self.applied.1 == self.status.term
            && self.members.voters.contains(&self.id)
    }

    /// Is this a leader that belongs no more? The library lets it lead on, but has no progress of
    /// its own for it any longer and stops the process where it looks for that: when answers to
    /// appended entries let something behind the removal be agreed on, and when such an entry is
    /// stored here. It is told of neither; the next leader agrees on those entries, or drops them.
    fn removed_itself(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader && raft.prs().get(self.id).is_none()
    }

    /// Tells the library that its write of that number, and all before it, are durable.
    fn on_stored(&mut self, ready: u64) {
        if !self.removed_itself() {
            self.raw.on_persist_ready(ready);
        }
    }

    /// Ticks since a frame came from `id`; `None` if none ever did.
    pub fn silent_for(&self, id: MemberId) -> Option<u64> {
        self.heard.get(&id).map(|at| self.now - at)
    }

    /// Hears nothing of `id` for so many ticks, as if it were cut off: it leads, and what it wants
    /// taken contradicts what is committed here. Its heartbeats would keep everybody else from
    /// leading, and a log of a newer term has it elected again before the others have agreed on
    /// anything under one of themselves; afterwards none of them votes for it.
    pub fn shun(&mut self, id: MemberId, ticks: u64) {
        self.shunned.retain(|_, until| *until > self.now);
        self.shunned.insert(id, self.now + ticks);
    }

    /// At a leader: what `id` still lacks, in entries. `None` for who does not belong, or
    /// elsewhere than at a leader.
    pub fn lag_of(&self, id: MemberId) -> Option<u64> {
        if self.status.role != Role::Leader {
            return None;
        }
        let progress = self.raw.raft.prs().get(id)?;
        Some(self.raw.raft.raft_log.last_index().saturating_sub(progress.matched))
    }

    /// True if a member can only be helped by a newer snapshot: call [`Self::compact`].
    pub fn snapshot_wanted(&self) -> bool {
        self.raw.store().snapshot_wanted()
    }

    /// Bytes of this member's snapshot, if they are more than any member takes in: one that was
    /// away for long, or is new, could only be helped by it, and will not come up to the others.
    pub fn unsendable_snapshot(&self) -> Option<u64> {
        self.unsendable
    }

    /// Notes what a snapshot weighs that is this member's from now on.
    fn weigh(&mut self, bytes: usize) {
        let (bytes, most) = (bytes as u64, self.snapshot_max);
        let was = std::mem::replace(&mut self.unsendable, (bytes > most).then_some(bytes));
        if was.is_none() && self.unsendable.is_some() {
            tracing::error!(
                bytes,
                most,
                "the agreed state is larger than any member takes over from another: a member that \
                    is new, or was away for long, \
                 stays behind until the state is smaller"
            );
        }
    }

    /// Entries and their bytes since the last snapshot.
    pub fn log_weight(&self) -> (u64, u64) {
        self.raw.store().weight()
    }

    /// Time has passed.
    pub fn tick(&mut self, out: &mut Vec<Effect>) {
        self.now += 1;
        self.draw_timeout();
        if self.must_not_lead() {
            self.raw.raft.election_elapsed = 0;
        }
        self.raw.tick();
        let steps: Vec<_> =
            self.outgoing.iter_mut().map(|(to, o)| (*to, o.tick(self.now))).collect();
        for (to, step) in steps {
            self.transfer_step(to, step, out);
        }
        self.work(out);
    }

    /// Is there an entry in the log that others could never be sent, and are there others?
    fn must_not_lead(&mut self) -> bool {
        let Some((index, term)) = self.too_large else { return false };
        if self.raw.raft.raft_log.committed >= index
            || self.raw.store().term_of(index) != Some(term)
        {
            self.too_large = None;
        }
        self.too_large.is_some() && self.members.voters.len() > 1
    }

    /// Proposes an entry. That it was taken does not mean that it will be committed.
    ///
    /// # Errors
    /// [`NotLeader`], also while [`Self::may_propose`] is false.
    pub fn propose(&mut self, data: Vec<u8>, out: &mut Vec<Effect>) -> Result<(), NotLeader> {
        if !self.may_propose() || data.is_empty() {
            return Err(NotLeader);
        }
        self.raw.propose(Vec::new(), data).map_err(|_| NotLeader)?;
        self.work(out);
        Ok(())
    }

    /// Proposes a membership change. One at a time: another one under way makes this one come
    /// to nothing, silently; look at [`Effect::Members`].
    ///
    /// # Errors
    /// As for [`Self::propose`].
    pub fn propose_change(
        &mut self,
        change: ConfigChange,
        out: &mut Vec<Effect>,
    ) -> Result<(), NotLeader> {
        if !self.may_propose() || self.raw.raft.has_pending_conf() {
            return Err(NotLeader);
        }
        let ours = spirula_encoding::to_vec(&change);
        self.raw.propose_conf_change(ours, change_to_raft(change)).map_err(|_| NotLeader)?;
        self.work(out);
        Ok(())
    }

    /// Asks for a moment at which this member's state is as new as any was when this was
    /// called. Answered by [`Effect::ReadReady`], or never (ask again, with a larger number).
    pub fn read(&mut self, number: u64, out: &mut Vec<Effect>) {
        if self.status.role == Role::Leader && !self.members.voters.contains(&self.id) {
            // It removed itself. If one voter is left, the library takes this member for that one
            // and asks nobody.
            return;
        }
        let mut ctx = Vec::with_capacity(24);
        for v in [self.id, self.seed, number] {
            ctx.extend_from_slice(&v.to_le_bytes());
        }
        self.raw.read_index(ctx);
        self.work(out);
    }

    /// The write of that number, and all before it, are durable.
    pub fn persisted(&mut self, number: u64, out: &mut Vec<Effect>) {
        self.done = self.done.max(number.min(self.asked));
        while let Some(Write { ready, snapshot, bytes, .. }) =
            self.writes.pop_front_if(|w| w.number <= self.done)
        {
            self.write_bytes -= bytes;
            self.on_stored(if self.writes.is_empty() { self.newest_ready } else { ready });
            if let Some(snapshot) = snapshot {
                self.applied = (snapshot.index, snapshot.term);
                self.raw.advance_apply_to(snapshot.index);
                out.push(Effect::Install(snapshot.clone()));
                self.set_members(snapshot.members, out);
            }
        }
        while self.held.front().is_some_and(|(n, _)| *n <= self.done) {
            if let Some((_, messages)) = self.held.pop_front() {
                self.send_all(messages, out);
            }
        }
        self.work(out);
    }

    /// Puts `data`, the state as applied, in place of the log up to there.
    pub fn compact(&mut self, data: Bytes, out: &mut Vec<Effect>) {
        let (index, term) = self.applied;
        if index <= self.raw.store().snapshot().index || self.raw.raft.snap().is_some() {
            return;
        }
        self.weigh(data.len());
        self.raw.mut_store().compact(Snapshot { index, term, members: self.members.clone(), data });
        let store = self.raw.store();
        let (snapshot, entries) = (store.snapshot().clone(), store.behind_snapshot());
        let number = self.write(self.newest_ready, None, &entries);
        out.push(Effect::Persist(Persist {
            number,
            hard: self.hard(),
            snapshot: Some(snapshot),
            entries,
        }));
    }

    /// Notes a write that is asked for now; its number.
    fn write(&mut self, ready: u64, snapshot: Option<Snapshot>, entries: &[Entry]) -> u64 {
        self.asked += 1;
        let bytes = entries.iter().map(|e| e.data.len()).sum();
        self.write_bytes += bytes;
        self.writes.push_back(Write { number: self.asked, ready, snapshot, bytes });
        self.asked
    }

    /// Does the disk stand still, with as much waiting for it as may? Then this member hears
    /// nothing: to the others it is one that is cut off, who go on without it and send again what
    /// it missed. So a full disk bounds what waits for it, and ends a leader's term.
    fn waits_for_disk(&self) -> bool {
        self.writes.len() >= WRITES_MAX || self.write_bytes >= WRITE_BYTES_MAX
    }

    /// A frame came from member `from`, as the link knows it.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was changed.
    pub fn receive(
        &mut self,
        from: MemberId,
        bytes: &[u8],
        out: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if bytes.len() > FRAME_MAX {
            return Err(Refusal::TooLarge(bytes.len()));
        }
        if self.waits_for_disk() || self.shunned.get(&from).is_some_and(|until| self.now < *until) {
            return Ok(());
        }
        let frame: Frame = spirula_encoding::from_slice(bytes)?;
        match frame {
            Frame::Raft(m) => {
                if m.from != from || m.to != self.id || from == self.id || from == 0 {
                    return Err(Refusal::Address { from: m.from, to: m.to });
                }
                self.check(&m)?;
                self.heard.insert(from, self.now);
                if m.msg_type == MessageType::MsgAppendResponse && self.removed_itself() {
                    return Ok(());
                }
                self.step(m);
            }
            Frame::Chunk(c) => {
                self.heard.insert(from, self.now);
                self.on_chunk(from, &c, out);
            }
            Frame::ChunkAck { index, offset } => {
                self.heard.insert(from, self.now);
                if let Some(o) = self.outgoing.get_mut(&from).filter(|o| o.index() == index) {
                    let step = o.acked(offset, self.now);
                    self.transfer_step(from, step, out);
                }
            }
        }
        self.work(out);
        Ok(())
    }

    /// Refuses what would make the library stop the process.
    fn check(&self, m: &eraftpb::Message) -> Result<(), Refusal> {
        let raft = &self.raw.raft;
        let no = |why: String| Err(Refusal::Contradiction(why));
        let last = raft.raft_log.last_index();
        match m.msg_type {
            MessageType::MsgHeartbeat if m.term >= raft.term && m.commit > last => no(format!(
                "the leader believes that entry {} is here, the log ends at {last}",
                m.commit
            )),
            MessageType::MsgAppend => {
                let mut next = (m.index + 1, m.log_term);
                for e in &m.entries {
                    if e.index != next.0 || e.term < next.1 || e.term > m.term {
                        return no(format!(
                            "entry {} of term {} after {}",
                            e.index,
                            e.term,
                            next.0 - 1
                        ));
                    }
                    let here = raft.raft_log.term(e.index).unwrap_or(0);
                    if m.term >= raft.term
                        && e.index <= raft.raft_log.committed
                        && here != 0
                        && here != e.term
                    {
                        return no(format!(
                            "entry {} has term {} there and {here} here",
                            e.index, e.term
                        ));
                    }
                    next = (e.index + 1, e.term);
                }
                Ok(())
            }
            MessageType::MsgAppendResponse
                if raft.state == StateRole::Leader
                    && m.index > last
                    && !m.reject
                    && m.term == raft.term =>
            {
                no(format!("it has entry {}, the leader's log ends at {last}", m.index))
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, m: eraftpb::Message) {
        let (kind, from) = (m.msg_type, m.from);
        if let Err(e) = self.raw.step(m) {
            tracing::debug!(?kind, from, error = %e, "quorum message not taken");
        }
    }

    fn on_chunk(&mut self, from: MemberId, c: &Chunk, out: &mut Vec<Effect>) {
        let raft = &self.raw.raft;
        if c.leader_term < raft.term || self.offered.is_some() {
            return;
        }
        // A leader is at work: do not unseat it while the pieces come.
        if raft.term == c.leader_term && raft.leader_id == from && raft.state == StateRole::Follower
        {
            self.raw.raft.election_elapsed = 0;
        }
        if c.total > self.snapshot_max && !std::mem::replace(&mut self.too_large_said, true) {
            tracing::error!(
                from,
                bytes = c.total,
                most = self.snapshot_max,
                "the leader's state is larger than is taken over: this member stays behind until \
                    it is smaller"
            );
        }
        let (ack, whole) = take(&mut self.incoming, from, c, self.snapshot_max);
        if let Some(offset) = ack {
            self.send_frame(from, &Frame::ChunkAck { index: c.index, offset }, out);
        }
        let Some(snapshot) = whole else { return };
        if !snapshot.members.contains(self.id) || snapshot.members.voters.is_empty() {
            tracing::warn!(from, "snapshot without this member ignored");
            return;
        }
        let mut m = eraftpb::Message {
            msg_type: MessageType::MsgSnapshot,
            from,
            to: self.id,
            term: c.leader_term,
            ..Default::default()
        };
        let meta = m.mut_snapshot().mut_metadata();
        (meta.index, meta.term) = (snapshot.index, snapshot.term);
        meta.set_conf_state(crate::log::conf_state(&snapshot.members));
        self.offered = Some(snapshot);
        self.step(m);
        self.work(out);
        self.offered = None;
    }

    fn transfer_step(&mut self, to: MemberId, step: Next, out: &mut Vec<Effect>) {
        match step {
            Next::Chunk(c) => self.send_frame(to, &Frame::Chunk(c), out),
            Next::Wait => {}
            Next::Done => {
                self.outgoing.remove(&to);
                self.raw.report_snapshot(to, SnapshotStatus::Finish);
            }
            Next::Failed => {
                self.outgoing.remove(&to);
                self.raw.report_snapshot(to, SnapshotStatus::Failure);
            }
        }
    }

    /// Draws an election timeout whenever the library has drawn its own.
    fn draw_timeout(&mut self) {
        let raft = &mut self.raw.raft;
        let now = (raft.term, raft.state);
        if self.drawn_for != now {
            self.drawn_for = now;
            self.draws += 1;
        }
        let range = (self.spread.1 - self.spread.0) as u64;
        let draw = splitmix(self.seed ^ splitmix(self.draws ^ self.id.rotate_left(32))) % range;
        raft.set_randomized_election_timeout(self.spread.0 + draw as usize);
    }

    fn hard(&self) -> HardState {
        let h = self.raw.raft.hard_state();
        HardState { term: h.term, vote: h.vote, commit: h.commit }
    }

    fn set_members(&mut self, members: Members, out: &mut Vec<Effect>) {
        if self.members != members {
            self.members = members;
            out.push(Effect::Members(self.members.clone()));
        }
    }

    /// Takes out of the library all it has to say.
    fn work(&mut self, out: &mut Vec<Effect>) {
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            self.newest_ready = ready.number();
            let messages = ready.take_messages();
            self.send_all(messages, out);
            let entries = ready.take_entries();
            let snapshot = (!ready.snapshot().is_empty()).then(|| {
                // The library keeps place and members; the data were put aside by us.
                self.offered.take().unwrap_or_default()
            });
            if let Some(s) = &snapshot {
                assert_eq!(
                    s.index,
                    ready.snapshot().get_metadata().index,
                    "a snapshot nobody received"
                );
                self.raw.mut_store().install(s.clone());
                self.weigh(s.data.len());
            }
            self.raw.mut_store().append(&entries);
            if ready.must_sync() {
                let entries: Vec<Entry> = entries.iter().map(from_raft).collect();
                let number = self.write(ready.number(), snapshot.clone(), &entries);
                out.push(Effect::Persist(Persist { number, hard: self.hard(), snapshot, entries }));
            }
            let promises = ready.take_persisted_messages();
            if self.asked == self.done {
                self.send_all(promises, out);
            } else if !promises.is_empty() {
                self.held.push_back((self.asked, promises));
            }
            for r in ready.take_read_states() {
                self.on_read_state(r.index, &r.request_ctx);
            }
            let committed = ready.take_committed_entries();
            self.raw.advance_append_async(ready);
            if self.asked == self.done {
                self.on_stored(self.newest_ready);
            }
            self.tell_status(out);
            self.apply(&committed, out);
        }
        self.tell_status(out);
        let applied = self.applied.0;
        let ready = self.reads.iter().filter(|(i, _)| *i <= applied).map(|(_, n)| *n).max();
        if let Some(number) = ready {
            self.reads.retain(|(i, n)| *i > applied && *n > number);
            out.push(Effect::ReadReady(number));
        }
    }

    fn apply(&mut self, committed: &[eraftpb::Entry], out: &mut Vec<Effect>) {
        for e in committed {
            let entry = from_raft(e);
            self.applied = (entry.index, entry.term);
            if entry.kind == EntryKind::Config {
                match change_of(&entry) {
                    Ok(change) => match self.raw.apply_conf_change(&change_to_raft(change)) {
                        Ok(conf) => self.set_members(members_of(&conf), out),
                        Err(e) => {
                            tracing::error!(?change, error = %e, "membership change does not apply")
                        }
                    },
                    Err(e) => {
                        tracing::error!(index = entry.index, error = %e, "membership change cannot \
                            be read")
                    }
                }
            }
            self.raw.advance_apply_to(entry.index);
            out.push(Effect::Apply(entry));
        }
    }

    fn on_read_state(&mut self, index: u64, ctx: &[u8]) {
        let word =
            |at: usize| ctx.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        if (word(0), word(8)) == (Some(self.id), Some(self.seed))
            && let Some(number) = word(16)
        {
            self.reads.push((index, number));
        }
    }

    fn tell_status(&mut self, out: &mut Vec<Effect>) {
        let raft = &self.raw.raft;
        let role = match raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        };
        let leader = Some(raft.leader_id).filter(|l| *l != raft::INVALID_ID);
        let status = Status { role, leader, term: raft.term };
        if status != self.status {
            if role != Role::Leader {
                self.outgoing.clear();
            }
            self.reads.clear();
            self.status = status;
            out.push(Effect::Status(status));
        }
    }

    fn send_all(&mut self, messages: Vec<eraftpb::Message>, out: &mut Vec<Effect>) {
        for m in messages {
            if m.msg_type == MessageType::MsgSnapshot {
                let snapshot = self.raw.store().snapshot().clone();
                let transfer = Outgoing::new(snapshot, m.term, self.now);
                self.send_frame(m.to, &Frame::Chunk(transfer.chunk()), out);
                self.outgoing.insert(m.to, transfer);
            } else if travels(m.msg_type) {
                self.send_frame(m.to, &Frame::Raft(m.clone()), out);
            }
        }
    }

    fn send_frame(&self, to: MemberId, frame: &Frame, out: &mut Vec<Effect>) {
        out.push(Effect::Send(to, spirula_encoding::to_vec(frame).into()));
    }
}
