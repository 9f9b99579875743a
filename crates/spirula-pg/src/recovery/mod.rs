//! Recovery: making every member's objects what the log says, while the PG serves.
//!
//! By the log: objects in somebody's missing set are pulled to the primary, then pushed to
//! whoever lacks them. By backfill (`backfill`): members whose log could not be brought up to
//! date are compared object by object. An object that a client wants is recovered at once; all
//! others are served meanwhile. Both kinds wait for reservations here and at the members, so
//! that an OSD takes part in few at a time, and for the shell's turns, so that clients come first.
//!
//! A copy that has an older version whole gets only what differs (`spirula_types::Dirty`, from the
//! log): an overwrite of 4 KiB costs 4 KiB. Once the first of several pieces is in place it has
//! neither version, and gets all of it if this is interrupted. A write does not wait for the one
//! member that lacks its object, if enough others have everything ([`Lead::enough_have`]): it gets
//! the log entry alone, and lacks what that changed, too.
//!
//! A source gives an object only in the version wanted and only if its checksums hold. If it
//! cannot, it counts as lacking the object, and another is asked; if there is none the object
//! is *unfound* until a holder returns.

mod backfill;
mod beside;
pub(crate) mod copy;
mod filling;
mod lost;
mod reserve;
pub(crate) mod share;
mod target;

use crate::again::{Again, Repeat};
use crate::api::{PeerMsg, PgEffect, ReadKey};
use crate::commits::{After, Step};
use crate::core::Cx;
use crate::erasure::rebuild::Rebuild;
use crate::exec::{Prefetch, ReadError};
use crate::lead::Lead;
use crate::log::{LogEntry, PgLog};
use crate::missing::Missing;
use crate::peering::{Member, choose_whole, choose_whole_erasure};
use crate::pg::Pg;
use crate::primary::{PeerState, Primary};
use backfill::Backfill;
use copy::{Chunk, chunk};
use reserve::{Forced, Reservations, Stage};
use share::Way;
use spirula_maps::PgState;
use spirula_messages::cluster::pg::{
    CopyCursor, CtlBody, Ends, MissingItem, PgInfo, PgTxn, TxnKind,
};
use spirula_types::transaction::{ObjectOp, ObjectUpdate, Transaction};
use spirula_types::{Dirty, EVersion, Epoch, HObject, Peer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
pub(crate) use target::{Pushes, Target};

/// A primary's recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Some member is not whole.
    pub backfilling: bool,
    /// Objects under way.
    ops: BTreeMap<HObject, RecOp>,
    /// Numbers of messages under way.
    flights: BTreeMap<u64, HObject>,
    /// Objects that clients wait for, to be begun.
    demanded: VecDeque<HObject>,
    /// Objects that readers wait for, to be begun when our disk has room.
    short: BTreeSet<HObject>,
    /// Heads and clones to be begun when no relative is under way.
    behind: BTreeSet<HObject>,
    /// Objects whose next piece must be read, or asked for.
    resume: VecDeque<HObject>,
    /// Objects to be rebuilt once no write of them is under way.
    held: BTreeSet<HObject>,
    /// The rest, in order.
    todo: VecDeque<HObject>,
    /// Objects that nobody we know of has.
    pub unfound: BTreeSet<HObject>,
    reservations: Reservations,
    /// Which kinds go before others'.
    pub forced: Forced,
    /// It waits for this read.
    reading: Option<u64>,
    /// Older versions that lost objects are to go back to are read.
    reverting: Option<u64>,
    /// Work that the shell allows to begin.
    turns: usize,
    asked_turn: bool,
    /// Bytes of an object to send at a time, if the shell said.
    piece: Option<u64>,
    backfills: BTreeMap<Peer, Backfill>,
    /// Copies outside the members that may have what is unfound.
    sources: BTreeMap<Peer, Member>,
    /// Since when these are up: a restart of one loses what it was asked, and ends no interval.
    sources_up: BTreeMap<Peer, Option<Epoch>>,
    /// Members of older intervals that said in this one that they hold nothing, and when those that
    /// said nothing were asked last.
    pub nothing: BTreeSet<Peer>,
    unheard_ms: u64,
}

/// What is read before recovery can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFor {
    /// What is sent next.
    Recovery,
    /// The older versions that lost objects are to go back to.
    Revert,
}

/// So many of the objects that nobody waits for are looked at for one that may begin.
const TODO_LOOKS: usize = 256;
/// Refusals by targets after which an object is sent whole.
const REFUSED_MAX: u32 = 3;
/// Objects of a kind that `pg query` shows.
const SHOWN_MAX: usize = 64;
/// Recovered PGs ask for their own acting sets at multiples of this, milliseconds.
const HAND_BACK_MS: u64 = 200;

/// One object's recovery.
#[derive(Debug, Default)]
struct RecOp {
    /// In an erasure-coded PG.
    rebuild: Option<Rebuild>,
    pull: Option<Pull>,
    push: Option<Push>,
    /// Sources that failed.
    tried: BTreeSet<Peer>,
    /// So often what it was to share was not at the target any more.
    refused: u32,
    /// Of whatever is asked or sent now.
    repeat: Repeat,
}

#[derive(Debug)]
struct Pull {
    from: Peer,
    seq: u64,
    need: EVersion,
    /// What we lack of it; we have the rest.
    dirty: Dirty,
    /// Where to go on when the present piece is durable; `None` after the last.
    next: Option<CopyCursor>,
    /// What was asked for, until the answer comes.
    asked: Option<CtlBody>,
}

#[derive(Debug, Default)]
struct Push {
    targets: Vec<Peer>,
    /// How it is made, from the first piece on; before, what the targets lack of it.
    way: Way,
    /// The piece to send next.
    cursor: CopyCursor,
    /// Who has not made the present piece durable.
    waiting: BTreeSet<Peer>,
    seq: u64,
    more: bool,
    /// It goes at the targets.
    remove: bool,
    /// The present piece.
    sent: Option<PgTxn>,
}

impl RecOp {
    /// Is all of it on its way to those who lack it?
    fn is_sent(&self) -> bool {
        self.push.as_ref().is_some_and(|p| p.sent.is_some() && !p.more)
            || self.rebuild.as_ref().is_some_and(Rebuild::is_sent)
    }

    /// Is it on its way to this target, whole?
    fn is_sent_to(&self, osd: Peer) -> bool {
        let push = self.push.as_ref().filter(|p| !p.remove).map(|p| &p.targets);
        let targets = push.or(self.rebuild.as_ref().map(|r| &r.targets));
        self.is_sent() && targets.is_some_and(|t| t.contains(&osd))
    }
}

impl Push {
    /// Is the first piece of a whole copy to be sent?
    fn first(&self) -> bool {
        !self.remove
            && self.sent.is_none()
            && self.cursor == CopyCursor::default()
            && self.way.lacks == Dirty::All
    }
}

/// What a copy lacks of an object that it misses.
fn lacks_of(item: &MissingItem) -> Dirty {
    if item.have == EVersion::default() { Dirty::All } else { item.dirty.clone() }
}

/// See [`Recovery::family_busy`].
fn family_busy(ops: &BTreeMap<HObject, RecOp>, object: &HObject) -> bool {
    let mut family = ops.range(object.family_start()..object.family_end());
    family.any(|(o, op)| o != object && !op.is_sent())
}

impl Recovery {
    pub fn state(&self) -> PgState {
        let toofull = match self.reservations.too_full() {
            None => PgState::UNKNOWN,
            Some(false) => PgState::RECOVERY_TOOFULL,
            Some(true) => PgState::BACKFILL_TOOFULL,
        };
        let unfound = match (self.unfound.is_empty(), self.backfilling) {
            (true, _) => PgState::UNKNOWN,
            (false, false) => PgState::RECOVERY_UNFOUND,
            (false, true) => PgState::BACKFILL_UNFOUND,
        };
        self.reservations.stage().state() | toofull | unfound
    }

    pub fn wants_tick(&self) -> bool {
        !self.unfound.is_empty()
            || self.reservations.too_full().is_some()
            || !self.short.is_empty()
            || !matches!(self.reservations.stage(), Stage::Idle)
            || !self.ops.is_empty()
            || self.reservations.is_releasing()
    }

    /// Ceph's name of the state in which recovery rests because what is left cannot be had.
    pub fn rest_name(&self) -> Option<&'static str> {
        let rests = matches!(self.reservations.stage(), Stage::Idle)
            && (!self.unfound.is_empty() || self.reservations.too_full().is_some());
        rests.then_some(if self.backfilling { "NotBackfilling" } else { "NotRecovering" })
    }

    /// Nothing to do, and nothing in the way of it.
    pub fn rests(&self) -> bool {
        matches!(self.reservations.stage(), Stage::Idle)
            && self.ops.is_empty()
            && self.unfound.is_empty()
            && self.reservations.too_full().is_none()
    }

    /// Is there work that waits for the shell's turn?
    pub fn wants_turn(&self) -> bool {
        self.asked_turn
    }

    /// Objects being recovered now, for `pg query`.
    pub fn under_way(&self) -> Vec<String> {
        self.ops.keys().take(SHOWN_MAX).map(ToString::to_string).collect()
    }

    /// Objects on their way to members that are backfilled, for `pg query`.
    pub fn backfills_under_way(&self) -> Vec<String> {
        let all: BTreeSet<&HObject> =
            self.backfills.values().flat_map(Backfill::under_way).collect();
        all.into_iter().take(SHOWN_MAX).map(ToString::to_string).collect()
    }

    /// Up to where the member has come that is furthest behind.
    pub fn first_backfill(&self) -> HObject {
        self.backfills.values().map(Backfill::started).min().cloned().unwrap_or_default()
    }

    /// Is everything filled except what is unfound?
    fn waits_for_unfound(&self) -> bool {
        let done = |b: &Backfill| b.is_filled_but(|o| self.unfound.contains(o));
        self.ops.is_empty()
            && !self.unfound.is_empty()
            && !self.backfills.is_empty()
            && self.backfills.values().all(done)
    }

    /// Reservations are given back: nothing begins by them any more.
    fn forget_work(&mut self) {
        self.todo.clear();
        self.asked_turn = false;
        self.turns = 0;
    }

    /// Waits for this read before it does what it is for.
    pub fn waits_for(&mut self, read: u64, purpose: ReadFor) {
        match purpose {
            ReadFor::Recovery => self.reading = Some(read),
            ReadFor::Revert => self.reverting = Some(read),
        }
    }

    /// Is it reading what it goes on with?
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// For what this read was waited for, if it was.
    pub fn has_read(&mut self, n: u64) -> Option<ReadFor> {
        let was = |waits: &mut Option<u64>| waits.take_if(|r| *r == n).is_some();
        if was(&mut self.reading) {
            Some(ReadFor::Recovery)
        } else {
            was(&mut self.reverting).then_some(ReadFor::Revert)
        }
    }

    /// The role ends.
    pub fn end(&mut self, cx: &mut Cx<'_>) {
        self.reservations.end(cx);
    }

    /// Somebody waits for this object, or it must not wait.
    pub fn demand(&mut self, object: &HObject) {
        if !self.works_on(object) {
            self.demanded.push_back(object.clone());
        }
    }

    /// Copies outside the members that have an object in this version.
    pub fn holders(&self, object: &HObject, version: EVersion) -> impl Iterator<Item = Peer> {
        let has = move |m: &Member| {
            let reaches = m.info.as_ref().is_some_and(|i| *object <= i.last_backfill);
            reaches && m.common.is_some_and(|c| c >= version) && !m.missing.contains(object)
        };
        self.sources.iter().filter(move |(_, m)| has(m)).map(|(o, _)| *o)
    }

    /// The rebuilding of an object.
    pub fn rebuild(&mut self, object: &HObject) -> Option<&mut Rebuild> {
        self.ops.get_mut(object)?.rebuild.as_mut()
    }

    /// What a rebuilding was to share was not to be had: whose shards are to be made, in which
    /// version.
    pub fn refuse_rebuild(&mut self, object: &HObject) -> Option<(Vec<Peer>, EVersion)> {
        let op = self.ops.get_mut(object)?;
        op.refused += 1;
        let r = op.rebuild.take()?;
        Some((r.targets, r.need))
    }

    /// Begins the rebuilding of an object.
    pub fn begin_rebuild(&mut self, object: &HObject, r: Rebuild) {
        self.ops.entry(object.clone()).or_default().rebuild = Some(r);
        self.resume.push_back(object.clone());
    }

    /// The rebuilding of an object waits for a write of it.
    pub fn hold(&mut self, object: &HObject) {
        self.held.insert(object.clone());
    }

    /// No write of an object is under way any more; true if something waited for that.
    pub fn release_held(&mut self, object: &HObject) -> bool {
        let held = self.held.remove(object);
        if held {
            self.resume.push_back(object.clone());
        }
        held
    }

    /// The next piece of an object.
    pub fn resume(&mut self, object: &HObject) {
        self.resume.push_back(object.clone());
    }

    /// A message about an object is under way.
    pub fn fly(&mut self, seq: u64, object: &HObject) {
        self.flights.insert(seq, object.clone());
    }

    /// It was answered by all.
    pub fn landed(&mut self, seq: u64) {
        self.flights.remove(&seq);
    }

    /// A member that is being backfilled has an object.
    pub fn filled(&mut self, osd: Peer, object: &HObject) {
        if let Some(b) = self.backfills.get_mut(&osd) {
            b.landed(object);
        }
    }

    /// An object cannot be made now.
    pub fn give_up(&mut self, object: &HObject) {
        self.ops.remove(object);
        self.held.remove(object);
        self.unfound.insert(object.clone());
        self.release_relatives(object);
    }

    /// A write changed an object (or removed it): what was listed of it is stale.
    pub fn note_written(&mut self, object: &HObject, version: Option<EVersion>) {
        if self.backfilling {
            self.backfills.values_mut().for_each(|b| b.note_written(object, version));
        }
    }

    /// Is an object unfound, or being recovered?
    pub fn works_on(&self, object: &HObject) -> bool {
        self.unfound.contains(object)
            || self.ops.contains_key(object)
            || self.behind.contains(object)
            || self.demanded.contains(object)
    }

    /// Is a relative of this object under way, so that what they share could not be taken of it
    /// yet? What was sent whole comes to its targets before anything that is sent now.
    pub fn family_busy(&self, object: &HObject) -> bool {
        family_busy(&self.ops, object)
    }

    /// Are relatives of this object under way that do not wait themselves?
    fn is_behind_others(&self, object: &HObject) -> bool {
        let mut family = self.ops.range(object.family_start()..object.family_end());
        family.any(|(o, _)| o != object && !self.behind.contains(o))
    }

    /// An object is not in the way of its relatives any more: the next of them begins, or goes on
    /// if it had begun.
    pub fn release_relatives(&mut self, object: &HObject) {
        let waiting = || self.behind.range(object.family_start()..object.family_end());
        let begun = waiting().find(|o| self.ops.contains_key(*o)).cloned();
        if let Some(next) = begun {
            self.behind.remove(&next);
            self.resume.push_back(next);
        } else if let Some(next) = waiting().next().cloned() {
            self.behind.remove(&next);
            self.demanded.push_front(next);
        }
    }

    /// The next object of those that nobody waits for. Not one whose relative is under way, if
    /// there is another.
    fn next_todo(&mut self) -> Option<HObject> {
        let at = self.todo.iter().take(TODO_LOOKS).position(|o| !self.family_busy(o))?;
        self.todo.remove(at)
    }

    /// Up to where the backfill of a member has come.
    pub fn started(&self, osd: Peer) -> Option<&HObject> {
        self.backfills.get(&osd).map(Backfill::started)
    }
}

/// Does a member get an object's changes, or only the log entry?
pub(crate) fn gets_object(a: &Primary, osd: Peer, object: &HObject) -> bool {
    if !a.recovery.backfilling {
        return true;
    }
    match a.recovery.started(osd) {
        Some(started) => object <= started,
        None => a.peers.get(&osd).is_some_and(|p| object <= &p.last_backfill),
    }
}

impl Pg {
    /// Objects being recovered.
    pub fn recovering(&self) -> usize {
        self.primary().map_or(0, |a| a.recovery.ops.len())
    }
}

impl Lead<'_> {
    /// Must the object be recovered before a request may use it? Begins that, if so.
    pub(crate) fn must_recover_first(
        &mut self,
        object: &HObject,
        write: bool,
        cx: &mut Cx<'_>,
    ) -> bool {
        let a = &mut *self.primary;
        let r = &mut a.recovery;
        if self.core.me.shard >= 0 && r.unfound.contains(object) {
            return true;
        }
        if !r.backfilling
            && self.core.missing().is_empty()
            && r.ops.is_empty()
            && a.peers.values().all(|p| p.missing.is_empty())
        {
            return false;
        }
        // The write may make a clone of a name that is being removed at a member.
        let family = || r.ops.range(object.family_start()..object.family_end());
        if write && family().any(|(_, o)| o.push.as_ref().is_some_and(|p| p.remove)) {
            if self.core.missing().contains(object) && !r.works_on(object) {
                r.demanded.push_back(object.clone());
            }
            return true;
        }
        let here = self.core.missing().contains(object);
        let there = write && a.peers.values().any(|p| p.missing.contains(object));
        if !here && !there {
            return write && r.ops.contains_key(object);
        }
        if !here && !r.ops.contains_key(object) && self.enough_have() {
            return false;
        }
        let a = &mut *self.primary;
        let r = &mut a.recovery;
        if !write && !r.works_on(object) && cx.reader.is_full() {
            // It would fill our disk further. A write comes here only if it makes room, and is let
            // in for that.
            r.short.insert(object.clone());
            return true;
        }
        if !r.works_on(object) {
            r.demanded.push_back(object.clone());
            self.pump(cx);
            // It may have been done at once (nobody to send to).
            return self.must_recover_first_again(object, write);
        }
        true
    }

    /// Do so many serving members have everything that a write need not wait for the one that lacks
    /// its object? It gets the log entry alone, and lacks what that changed, too. As many as the
    /// pool asks for, and never one alone. Only one may lag so: of two that lack different objects
    /// each has entries without data, and if the newest entries were then to be taken back (nobody
    /// else is heard), what they overwrote on the one might be what the other lacks.
    fn enough_have(&self) -> bool {
        let a = &*self.primary;
        let Some(pool) = self.core.view.as_ref().and_then(|v| v.pool.as_ref()) else {
            return false;
        };
        let whole = |p: &&PeerState| p.missing.is_empty() && p.last_backfill.max;
        let (all, have) = (
            a.peers.values().filter(|p| p.acting).count(),
            a.peers.values().filter(|p| p.acting).filter(whole).count(),
        );
        let lagging = all - have;
        let few = lagging <= 1 || planted!(self.core.cfg, ManyLag);
        let least =
            if planted!(self.core.cfg, OneWhole) { pool.min_size } else { pool.min_size.max(2) };
        self.core.me.shard < 0 && self.core.missing().is_empty() && few && 1 + have >= least
    }

    fn must_recover_first_again(&self, object: &HObject, write: bool) -> bool {
        let a = &*self.primary;
        self.core.missing().contains(object)
            || (write
                && (a.recovery.ops.contains_key(object)
                    || a.peers.values().any(|p| p.missing.contains(object))))
    }

    /// Looks at what is to be recovered and goes on with it.
    pub(crate) fn begin_recovery(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let a = &mut *self.primary;
        if !a.activated || a.clean {
            return;
        }
        a.recovery.backfilling = a.peers.values().any(|p| !p.last_backfill.max);
        let lacks = |m: &Missing| m.iter().any(|(o, _)| !a.recovery.unfound.contains(o));
        let missing = lacks(self.core.missing()) || a.peers.values().any(|p| lacks(&p.missing));
        let unfound = !a.recovery.unfound.is_empty();
        if missing {
            self.want_stage(Some(false), view.permits.no_recover, cx);
            return;
        }
        let stuck = a.recovery.waits_for_unfound();
        if unfound {
            let strays: Vec<Peer> = self.strays.keys().copied().collect();
            strays.into_iter().for_each(|s| self.ask_for_unfound(s, cx));
            self.ask_unheard(cx);
        }
        let a = &mut *self.primary;
        if unfound && (stuck || !a.recovery.backfilling) {
            // Reservations are for others, until it is found.
            self.want_stage(None, false, cx);
        } else if a.recovery.backfilling {
            let only_moves = self.primary.lacks(self.core).degraded == 0;
            let held = view.permits.no_backfill || (view.permits.no_rebalance && only_moves);
            self.want_stage(Some(true), held, cx);
        } else if a.recovery.ops.is_empty() || planted!(self.core.cfg, CleanBeforeDurable) {
            self.want_stage(None, false, cx);
            self.recovered(cx);
        }
        // Else what was missing is on its way to our disk: it counts when it is there
        // ([`Lead::object_done`] comes back here), since copies that nobody needs are deleted then.
    }

    /// Every member is whole.
    fn recovered(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let size = view.pool_size();
        let want = if self.core.is_erasure() {
            choose_whole_erasure(&view.up, &view.acting)
        } else {
            choose_whole(&view.up, &view.acting, size)
        };
        let a = &mut *self.primary;
        // What had no room was deleted meanwhile, or came by a request.
        a.recovery.reservations.has_room();
        if want != view.acting {
            let want = if want == view.up { Vec::new() } else { view.places(&want) };
            if a.want.as_ref() != Some(&want) {
                a.want = Some(want);
                // Each such wish costs an epoch, which every OSD and client takes: those of a host
                // come together.
                let at = (cx.now.mono_ms / HAND_BACK_MS + 1) * HAND_BACK_MS;
                (a.asked_ms, a.hand_back_ms) = (at, at);
                cx.out.push(PgEffect::WakeAt(at));
            }
        } else if view.acting.len() >= size && view.up == view.acting && a.serving && !a.clean {
            a.clean = true;
            a.want = None;
            a.recovery.forced = Forced::default();
            let change = self.core.copy.is_clean(view.epoch);
            self.core.submit(change, After::Nothing, cx);
            self.tell_history(cx);
            self.purge_strays(cx);
            self.begin_trims(cx);
            self.tell_merge(false, cx);
        }
        cx.out.push(PgEffect::StateChanged);
    }

    // ---- the pump ----

    /// The shell allows work to begin.
    pub(crate) fn recover_more(&mut self, work: usize, piece: u64, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        a.recovery.asked_turn = false;
        (a.recovery.turns, a.recovery.piece) = (work, Some(piece));
        self.pump(cx);
    }

    /// Recovery waits until this is read.
    pub(crate) fn read_for_pump(&mut self, what: Prefetch, cx: &mut Cx<'_>) {
        let n = self.core.seq();
        self.primary.recovery.waits_for(n, ReadFor::Recovery);
        cx.out.push(PgEffect::Prefetch(ReadKey::Recovery(n), what));
    }

    /// Goes on with whatever recovery can do now.
    pub(crate) fn pump(&mut self, cx: &mut Cx<'_>) {
        if self.primary.recovery.is_reading() || !self.primary.activated {
            return;
        }
        if let Err(what) = self.pump_objects(cx) {
            self.read_for_pump(what, cx);
        }
    }

    fn pump_objects(&mut self, cx: &mut Cx<'_>) -> Result<(), Prefetch> {
        loop {
            if self.requests.has_changed() {
                // What was written in this event cannot be read before the next.
                self.primary.pump_later = true;
                return Ok(());
            }
            let window = self.core.cfg.push_window.max(1);
            let a = &mut *self.primary;
            let r = &mut a.recovery;
            if let Some(o) = r.resume.pop_front() {
                if let Err(what) = self.resume_object(&o, cx) {
                    self.primary.recovery.resume.push_front(o);
                    return Err(what);
                }
                continue;
            }
            if let Some(o) = r.demanded.pop_front() {
                self.start_object(&o, cx);
                continue;
            }
            let Stage::Running { backfill } = *r.reservations.stage() else { return Ok(()) };
            if r.ops.len() >= window {
                return Ok(());
            }
            if r.turns == 0 {
                if !std::mem::replace(&mut r.asked_turn, true) {
                    cx.out.push(PgEffect::WantTurn);
                }
                return Ok(());
            }
            if backfill {
                if !self.backfill_step(cx)? {
                    return Ok(());
                }
            } else if let Some(o) = r.next_todo() {
                r.turns -= 1;
                self.start_object(&o, cx);
            } else {
                return Ok(());
            }
        }
    }

    /// Goes on with an object under way: reads, asks for or sends the next piece.
    fn resume_object(&mut self, object: &HObject, cx: &mut Cx<'_>) -> Result<(), Prefetch> {
        let Some(op) = self.primary.recovery.ops.get(object) else {
            return Ok(());
        };
        match op {
            RecOp { rebuild: Some(_), .. } => self.rebuild_piece(object, cx),
            RecOp { push: Some(_), .. } => self.push_piece(object, cx),
            _ => self.pull_object(object, cx),
        }
    }

    /// Who is to get an object: those who lack it by the log, and those whose backfill has come to
    /// it.
    fn targets_of(&self, object: &HObject) -> Vec<Peer> {
        let a = &*self.primary;
        let lack = a.peers.iter().filter(|(_, p)| p.missing.contains(object)).map(|(o, _)| *o);
        let filled =
            a.recovery.backfills.iter().filter(|(_, b)| b.is_under_way(object)).map(|(o, _)| *o);
        lack.chain(filled).collect::<BTreeSet<Peer>>().into_iter().collect()
    }

    /// Begins the recovery of an object that somebody lacks.
    fn start_object(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let head = self.head_first(object);
        let a = &mut *self.primary;
        if a.recovery.ops.contains_key(object) {
            return;
        }
        if a.recovery.family_busy(object) {
            a.recovery.behind.insert(object.clone());
            return;
        }
        if let Some(head) = head
            && !a.recovery.ops.contains_key(&head)
        {
            a.recovery.behind.insert(object.clone());
            return self.start_object(&head, cx);
        }
        if self.core.me.shard >= 0 {
            return self.start_rebuild(object, cx);
        }
        if self.core.missing().contains(object) {
            a.recovery.ops.insert(object.clone(), RecOp::default());
            a.recovery.resume.push_back(object.clone());
        } else {
            let targets = self.targets_of(object);
            if !targets.is_empty() {
                self.push_object(object, targets, false);
            } else {
                self.object_done(object, cx);
            }
        }
    }

    /// Begins to rebuild an object's shards for all who lack them.
    fn start_rebuild(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let own = self.core.missing().get(object).map(|i| i.need);
        let theirs = a.peers.iter().filter_map(|(o, p)| Some((*o, p.missing.get(object)?.need)));
        let mut lacking: BTreeMap<Peer, EVersion> =
            theirs.chain(own.map(|need| (self.core.me, need))).collect();
        let filled =
            a.recovery.backfills.iter().filter(|(_, b)| b.is_under_way(object)).map(|(o, _)| *o);
        let filled: Vec<Peer> = filled.collect();
        let need = lacking.values().copied().max();
        for o in filled {
            lacking.entry(o).or_default();
        }
        let stored = || match need {
            Some(need) => need,
            None => self.core.stored_version(object, cx.reader).unwrap_or_default(),
        };
        if lacking.is_empty() {
            self.object_done(object, cx);
        } else {
            let need = stored();
            self.rebuild_object(object, lacking.into_keys().collect(), need);
        }
    }

    // ---- pulling ----

    /// Asks the next source for an object that we lack.
    fn pull_object(&mut self, object: &HObject, cx: &mut Cx<'_>) -> Result<(), Prefetch> {
        let beside = self.own_relatives(object, cx)?;
        let seq = self.core.seq();
        let a = &mut *self.primary;
        let piece = a.recovery.piece.unwrap_or(u64::MAX);
        let Some(item) = self.core.missing().get(object) else { return Ok(()) };
        let (need, dirty) = (item.need, lacks_of(item));
        let Some(op) = a.recovery.ops.get_mut(object).filter(|op| op.pull.is_none()) else {
            return Ok(());
        };
        let member = a
            .peers
            .iter()
            .filter(|(_, p)| *object <= p.last_backfill && !p.missing.contains(object));
        let stray = a.recovery.sources.iter().filter(|(_, m)| {
            let reaches = m.info.as_ref().is_some_and(|i| *object <= i.last_backfill);
            reaches && m.common.is_some_and(|c| c >= need) && !m.missing.contains(object)
        });
        let from =
            member.map(|(o, _)| *o).chain(stray.map(|(o, _)| *o)).find(|o| !op.tried.contains(o));
        let Some(from) = from else {
            tracing::warn!(pg = %self.core.id, %object, %need, "object is unfound");
            a.recovery.give_up(object);
            self.repairs.report_lost(self.core, object, cx);
            cx.out.push(PgEffect::StateChanged);
            self.settled(cx);
            return Ok(());
        };
        let cursor = CopyCursor::default();
        let body = CtlBody::Pull {
            seq,
            object: object.clone(),
            need,
            cursor,
            dirty: dirty.clone(),
            piece,
            beside,
        };
        op.pull = Some(Pull { from, seq, need, dirty, next: None, asked: Some(body.clone()) });
        a.recovery.flights.insert(seq, object.clone());
        self.core.send(from, body, cx);
        Ok(())
    }

    pub(crate) fn on_pulled(&mut self, from: Peer, t: PgTxn, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let Some(object) = a.recovery.flights.get(&t.seq).cloned() else { return };
        let Some(pull) = a.recovery.ops.get_mut(&object).and_then(|o| o.pull.as_mut()) else {
            return;
        };
        if pull.from != from || pull.seq != t.seq || pull.asked.is_none() {
            return;
        }
        match self.core.has_beside(&t.beside, cx) {
            Ok(true) => {}
            Ok(false) => {
                // They changed meanwhile: it is asked for anew.
                let a = &mut *self.primary;
                a.recovery.flights.remove(&t.seq);
                if let Some(op) = a.recovery.ops.get_mut(&object) {
                    (op.pull, op.refused) = (None, op.refused + 1);
                    a.recovery.resume.push_back(object);
                }
                return self.pump(cx);
            }
            Err(what) => return self.mail.park(self.core, from, PeerMsg::Txn(t), what, cx),
        }
        let a = &mut *self.primary;
        let Some(pull) = a.recovery.ops.get_mut(&object).and_then(|o| o.pull.as_mut()) else {
            return;
        };
        let txn = match Transaction::join(&t.header, &t.payload) {
            Ok(txn) if txn.objects.iter().all(|u| u.object == object) && t.version == pull.need => {
                txn
            }
            other => {
                tracing::error!(pg = %self.core.id, %from, %object, error = ?other.err(), "bad \
                    copy of an object");
                return self.on_pull_failed(from, t.seq, &object, EVersion::default(), cx);
            }
        };
        let last = t.next.is_none();
        (pull.next, pull.asked) = (t.next, None);
        if !t.beside.is_empty() {
            pull.dirty = t.lacks;
        }
        let bytes = (t.header.len() + t.payload.len()) as u64;
        self.stat.recovered_bytes += bytes as i64;
        cx.out.push(PgEffect::Recovered { objects: 0, bytes });
        self.requests.forget_object(&object);
        let after = After::Step { since: self.core.interval().since, step: Step::Pulled(t.seq) };
        self.repairs.apply_piece(self.core, true, txn, last, after, cx);
    }

    pub(crate) fn on_pull_durable(&mut self, seq: u64, cx: &mut Cx<'_>) {
        let next_seq = self.core.seq();
        let a = &mut *self.primary;
        let Some(object) = a.recovery.flights.remove(&seq) else { return };
        let Some(op) = a.recovery.ops.get_mut(&object) else { return };
        let Some(pull) = op.pull.as_mut().filter(|p| p.seq == seq) else { return };
        if let Some(cursor) = pull.next.take() {
            pull.seq = next_seq;
            let (from, need, dirty, beside) =
                (pull.from, pull.need, pull.dirty.clone(), Vec::new());
            let piece = a.recovery.piece.unwrap_or(u64::MAX);
            a.recovery.flights.insert(next_seq, object.clone());
            let body = CtlBody::Pull { seq: next_seq, object, need, cursor, dirty, piece, beside };
            pull.asked = Some(body.clone());
            self.core.send(from, body, cx);
            return;
        }
        let from = pull.from;
        op.pull = None;
        self.copy_repaired(&object, self.core.me, from, cx);
        let targets = self.targets_of(&object);
        if targets.is_empty() {
            self.object_done(&object, cx);
        } else {
            self.push_object(&object, targets, false);
        }
        self.pump(cx);
    }

    /// Is a piece of an object here that was asked for twice? Then what else is said of it comes
    /// too late.
    pub(crate) fn is_pulled(&self, seq: u64) -> bool {
        let r = &self.primary.recovery;
        let op = r.flights.get(&seq).and_then(|object| r.ops.get(object));
        op.and_then(|op| op.pull.as_ref()).is_some_and(|p| p.seq == seq && p.asked.is_none())
    }

    /// A source does not give an object; `has` is the version that it has instead, zero for none.
    pub(crate) fn on_pull_failed(
        &mut self,
        from: Peer,
        seq: u64,
        object: &HObject,
        has: EVersion,
        cx: &mut Cx<'_>,
    ) {
        if self.on_shard_failed(from, seq, has, cx) {
            return;
        }
        let a = &mut *self.primary;
        if a.recovery.flights.get(&seq) != Some(object) {
            return;
        }
        let Some(op) = a.recovery.ops.get_mut(object) else { return };
        a.recovery.flights.remove(&seq);
        op.tried.insert(from);
        op.pull = None;
        if planted!(self.core.cfg, FailedReadForgotten) {
            self.core.copy.wants_no_more(object).with_next_write();
            self.object_done(object, cx);
            return;
        }
        let Some(need) = self.core.missing().get(object).map(|i| i.need) else { return };
        if let Some(p) = a.peers.get_mut(&from) {
            if has > need {
                tracing::error!(pg = %self.core.id, %from, %object, %need, %has, "a copy is newer \
                    than is known here");
            } else {
                p.missing.set(object.clone(), need, EVersion::default());
            }
        } else if let Some(m) = a.recovery.sources.get_mut(&from) {
            m.missing.set(object.clone(), need, EVersion::default());
        }
        a.recovery.resume.push_back(object.clone());
        self.pump(cx);
    }

    // ---- pushing ----

    /// Sends an object (or its removal) to these members.
    fn push_object(&mut self, object: &HObject, targets: Vec<Peer>, remove: bool) {
        let a = &mut *self.primary;
        let mut dirty = Dirty::nothing();
        for t in &targets {
            // One that is being backfilled may have anything.
            let item = a.peers.get(t).and_then(|p| p.missing.get(object));
            dirty.merge(&item.map_or(Dirty::All, lacks_of));
        }
        let op = a.recovery.ops.entry(object.clone()).or_default();
        op.push = Some(Push { targets, way: Way::plain(dirty), remove, ..Push::default() });
        a.recovery.resume.push_back(object.clone());
    }

    /// Sends the next piece of an object to all who get it.
    fn push_piece(&mut self, object: &HObject, cx: &mut Cx<'_>) -> Result<(), Prefetch> {
        let push = |a: &Primary| {
            a.recovery
                .ops
                .get(object)
                .and_then(|o| o.push.as_ref().map(|p| (p.first(), p.targets.clone())))
        };
        let Some((first, targets)) = push(self.primary) else { return Ok(()) };
        let way = if first { Some(self.way_to(object, &targets, cx)?) } else { None };
        let seq = self.core.seq();
        let follows = self.core.info().map(|i| i.last_update()).unwrap_or_default();
        let a = &mut *self.primary;
        let max = self.core.cfg.push_bytes.min(a.recovery.piece.unwrap_or(u64::MAX));
        let Some(push) = a.recovery.ops.get_mut(object).and_then(|o| o.push.as_mut()) else {
            return Ok(());
        };
        if push.sent.is_some() {
            return Ok(());
        }
        push.way = way.unwrap_or_else(|| std::mem::take(&mut push.way));
        let beside =
            if push.cursor == CopyCursor::default() { push.way.beside() } else { Vec::new() };
        let read = if push.remove {
            let update = ObjectUpdate { object: object.clone(), ops: vec![ObjectOp::Remove] };
            Ok(Chunk { txn: Transaction { objects: vec![update], meta: Vec::new() }, next: None })
        } else {
            chunk(cx.reader, object, &push.cursor, &push.way, max)
        };
        match read {
            Ok(Chunk { txn, next }) => {
                let (header, payload) = txn.split();
                let t = PgTxn {
                    pg: self.core.id,
                    ends: Ends::default(),
                    epoch: self.core.interval().since,
                    kind: TxnKind::Push,
                    seq,
                    version: EVersion::default(),
                    follows,
                    next: next.clone(),
                    beside,
                    lacks: Dirty::All,
                    header: header.into(),
                    payload,
                };
                let bytes = (t.header.len() + t.payload.len()) as u64 * push.targets.len() as u64;
                push.waiting = push.targets.iter().copied().collect();
                push.seq = seq;
                push.more = next.is_some();
                push.cursor = next.unwrap_or_default();
                if push.more && !push.remove {
                    // What they had before is gone with the first piece.
                    for p in
                        a.peers.iter_mut().filter(|(o, _)| push.targets.contains(o)).map(|(_, p)| p)
                    {
                        if let Some(need) = p.missing.get(object).map(|i| i.need) {
                            p.missing.set(object.clone(), need, EVersion::default());
                        }
                    }
                }
                a.recovery.flights.insert(seq, object.clone());
                for osd in &push.targets {
                    let ends = Ends { from: self.core.me.shard, to: osd.shard };
                    cx.out.push(PgEffect::Send(*osd, PeerMsg::Txn(PgTxn { ends, ..t.clone() })));
                }
                push.sent = Some(t);
                if !push.more {
                    a.recovery.release_relatives(object);
                }
                self.stat.recovered_bytes += bytes as i64;
                cx.out.push(PgEffect::Recovered { objects: 0, bytes });
                Ok(())
            }
            Err(ReadError::NotReady(what)) => Err(what),
            Err(e) => {
                tracing::error!(pg = %self.core.id, %object, error = %e, "read object for \
                    recovery");
                self.own_copy_failed(object, cx);
                Ok(())
            }
        }
    }

    /// Our own copy of an object cannot be read: get another's first.
    fn own_copy_failed(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let stored = self.core.stored_version(object, cx.reader).unwrap_or_default();
        let a = &mut *self.primary;
        if planted!(self.core.cfg, FailedReadForgotten) {
            for p in a.peers.values_mut() {
                p.missing.remove(object);
            }
            self.object_done(object, cx);
            return;
        }
        let wanted = a.peers.values().filter_map(|p| p.missing.get(object)).map(|i| i.need).max();
        let logged = self.core.log().last_made(object);
        // A member may have told an older version when it found its copy bad.
        let version = wanted.max(logged).unwrap_or(stored);
        if let Some(op) = a.recovery.ops.get_mut(object) {
            op.push = None;
        }
        self.requests.forget_object(object);
        self.repairs.mark_unreadable(self.core, object.clone(), version, cx);
        self.primary.recovery.resume.push_back(object.clone());
    }

    /// A target has not all that an object was to share there any more: it is made anew, with what
    /// is there now.
    pub(crate) fn on_push_refused(&mut self, from: Peer, seq: u64, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let Some(object) = a.recovery.flights.get(&seq).cloned() else { return };
        let Some(op) = a.recovery.ops.get_mut(&object) else { return };
        let push = op.push.as_ref().is_some_and(|p| p.seq == seq && p.waiting.contains(&from));
        let rebuild =
            op.rebuild.as_ref().is_some_and(|r| r.seq == seq && r.waiting.contains(&from));
        if !push && !rebuild {
            return;
        }
        tracing::debug!(pg = %self.core.id, %from, %object, "what a copy was to share is not there \
            any more");
        a.recovery.flights.remove(&seq);
        let behind = a.recovery.is_behind_others(&object);
        let Some(op) = a.recovery.ops.get_mut(&object) else { return };
        // It stays an object under way: writes wait for it.
        if !behind {
            op.refused += 1;
        }
        if let Some(p) = op.push.take() {
            self.push_object(&object, p.targets, p.remove);
        } else if let Some(r) = op.rebuild.take() {
            self.rebuild_object(&object, r.targets, r.need);
        }
        if behind {
            let a = &mut *self.primary;
            // What did not come may be on its way again: first it.
            a.recovery.resume.retain(|o| *o != object);
            a.recovery.behind.insert(object);
        }
        self.pump(cx);
    }

    pub(crate) fn on_push_ack(&mut self, from: Peer, seq: u64, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let Some(object) = a.recovery.flights.get(&seq).cloned() else { return };
        if self.on_rebuilt(from, seq, &object, cx) {
            return;
        }
        let a = &mut *self.primary;
        let Some(push) = a.recovery.ops.get_mut(&object).and_then(|o| o.push.as_mut()) else {
            return;
        };
        if push.seq != seq || !push.waiting.remove(&from) || !push.waiting.is_empty() {
            return;
        }
        a.recovery.flights.remove(&seq);
        push.sent = None;
        if push.more {
            a.recovery.resume.push_back(object);
        } else {
            let targets = std::mem::take(&mut push.targets);
            for osd in &targets {
                if let Some(p) = a.peers.get_mut(osd) {
                    p.missing.remove(&object);
                }
                if let Some(b) = a.recovery.backfills.get_mut(osd) {
                    b.landed(&object);
                }
            }
            for osd in targets {
                self.copy_repaired(&object, osd, self.core.me, cx);
            }
            self.object_done(&object, cx);
        }
        self.pump(cx);
    }

    /// Nothing more to do for this object now.
    pub(crate) fn object_done(&mut self, object: &HObject, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if a.recovery.ops.remove(object).is_some() {
            self.stat.recovered_objects += 1;
            cx.out.push(PgEffect::Recovered { objects: 1, bytes: 0 });
        }
        a.recovery.release_relatives(object);
        self.run_recovered(object, cx);
        self.settled(cx);
    }

    /// Goes on to the next stage when nothing of this one is left.
    pub(crate) fn settled(&mut self, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        let r = &a.recovery;
        let idle =
            r.ops.is_empty() && r.behind.is_empty() && r.demanded.is_empty() && r.todo.is_empty();
        match *r.reservations.stage() {
            Stage::Running { backfill: false } if idle => self.begin_recovery(cx),
            Stage::Running { backfill: true } => {
                let stuck = r.waits_for_unfound();
                self.backfill_progress(cx);
                if stuck {
                    self.begin_recovery(cx);
                }
            }
            _ if idle => self.begin_recovery(cx),
            _ => {}
        }
    }

    // ---- unfound objects ----

    /// Asks a copy outside the members what it has.
    pub(crate) fn ask_for_unfound(&mut self, osd: Peer, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        if !a.recovery.unfound.is_empty()
            && !a.recovery.sources.contains_key(&osd)
            && !a.peers.contains_key(&osd)
        {
            self.core.send(osd, CtlBody::GetLog { after: self.core.log().tail() }, cx);
        }
    }

    /// A copy outside the members has told what it has.
    pub(crate) fn on_source(
        &mut self,
        from: Peer,
        info: PgInfo,
        entries: Vec<LogEntry>,
        missing: Vec<(HObject, MissingItem)>,
        cx: &mut Cx<'_>,
    ) {
        let theirs = PgLog::new(self.core.log().tail().max(info.log_tail()), entries);
        let common = self.core.log().common(&theirs);
        let undo = self.core.is_erasure();
        let a = &mut *self.primary;
        let missing = Missing::from_items(missing);
        let up = self.core.view.as_ref().and_then(|v| v.up_from(from.osd));
        a.recovery.sources_up.insert(from, up);
        a.recovery.sources.insert(from, Member::source(info, theirs, missing, common, undo));
        self.retry_unfound(cx);
    }

    /// Copies outside the members whose OSD went down: what was asked of them will not come.
    pub(crate) fn forget_lost_sources(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let a = &mut *self.primary;
        let lost = |(p, up): (&Peer, &Option<Epoch>)| (view.up_from(p.osd) != *up).then_some(*p);
        let lost: Vec<Peer> = a.recovery.sources_up.iter().filter_map(lost).collect();
        lost.into_iter().for_each(|osd| self.forget_source(osd, cx));
    }

    /// A copy outside the members is of no use, until it calls again.
    fn forget_source(&mut self, osd: Peer, cx: &mut Cx<'_>) {
        self.strays.remove(&osd);
        let a = &mut *self.primary;
        a.recovery.sources_up.remove(&osd);
        a.recovery.sources.remove(&osd);
        // What has come whole is on its way to our disk: nothing more is asked of it.
        let asks = |p: &&Pull| p.from == osd && (p.asked.is_some() || p.next.is_some());
        let from = |o: &RecOp| o.pull.as_ref().filter(asks).map(|p| p.seq);
        let pulls: Vec<(HObject, u64)> = a
            .recovery
            .ops
            .iter()
            .filter_map(|(object, op)| Some((object.clone(), from(op)?)))
            .collect();
        for (object, seq) in pulls {
            self.on_pull_failed(osd, seq, &object, EVersion::default(), cx);
        }
        self.shards_lost(osd, cx);
    }

    /// Copies outside the members that were asked often and have not answered, though they are up:
    /// the map does not say that the two of us hear each other. One that does calls within
    /// `retry_ms`, and is asked what it has before anything is read there again.
    fn forget_silent_sources(&mut self, base_ms: u64, cx: &mut Cx<'_>) {
        let a = &*self.primary;
        let pulls = a.recovery.ops.values().filter(|op| op.repeat.is_late(base_ms));
        let asked =
            pulls.filter_map(|op| op.pull.as_ref().filter(|p| p.asked.is_some()).map(|p| p.from));
        let silent: BTreeSet<Peer> = asked.chain(a.silent_holders(base_ms)).collect();
        for osd in silent
            .into_iter()
            .filter(|p| *p != self.core.me && !a.peers.contains_key(p))
            .collect::<Vec<_>>()
        {
            tracing::warn!(pg = %self.core.id, %osd, "a copy outside the members does not answer: \
                others are asked");
            self.forget_source(osd, cx);
        }
    }

    /// Looks again for what is unfound.
    fn retry_unfound(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let again = std::mem::take(&mut a.recovery.unfound);
        match cx.reader.is_full() {
            true => a.recovery.short.extend(again),
            false => a.recovery.demanded.extend(again),
        }
        self.pump(cx);
        self.begin_recovery(cx);
    }

    /// Asks and sends again what was not answered.
    pub(crate) fn repeat_recovery(&mut self, again: Again, cx: &mut Cx<'_>) {
        self.primary.recovery.reservations.repeat(self.core, again, cx);
        self.repeat_backfills(again, cx);
        let shard = self.core.me.shard;
        let a = &mut *self.primary;
        let (mut asked, mut sent) = (Vec::new(), Vec::new());
        for op in a.recovery.ops.values_mut() {
            if let Some(Pull { from, seq, asked: Some(body), .. }) = &op.pull {
                asked.extend(
                    again
                        .whom(&mut op.repeat, *seq, [*from])
                        .into_iter()
                        .map(|p| (p, body.clone())),
                );
            } else if let Some(Push { waiting, seq, sent: Some(t), .. }) = &op.push {
                let to = again.whom(&mut op.repeat, *seq, waiting.iter().copied());
                let ends = |p: &Peer| Ends { from: shard, to: p.shard };
                sent.extend(to.into_iter().map(|p| (p, PgTxn { ends: ends(&p), ..t.clone() })));
            } else if let Some(r) = &op.rebuild {
                let waits =
                    |p: &Peer| r.waiting.contains(p) && r.sent.iter().any(|(to, _)| to == p);
                let to = again.whom(&mut op.repeat, r.seq, r.waiting.iter().copied().filter(waits));
                sent.extend(r.sent.iter().filter(|(p, _)| to.contains(p)).cloned());
            }
        }
        asked.into_iter().for_each(|(to, body)| self.core.send(to, body, cx));
        cx.out.extend(sent.into_iter().map(|(to, t)| PgEffect::Send(to, PeerMsg::Txn(t))));
        self.forget_silent_sources(self.core.cfg.retry_ms.max(1), cx);
    }

    /// Time passed.
    pub(crate) fn retry_recovery(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        if !a.recovery.short.is_empty() && !cx.reader.is_full() {
            for object in std::mem::take(&mut a.recovery.short) {
                a.recovery.demand(&object);
            }
        }
        self.begin_recovery(cx);
        self.pump(cx);
    }
}
