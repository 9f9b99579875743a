//! Trimming: what removed snapshots kept goes.
//!
//! The map names a pool's removed snapshots until every PG has said that nothing of them is left
//! ([`Pg::stat`]). A clean primary walks through its objects, some names for each turn that the
//! shell gives it. Objects without clones cost it a name; for every other one it queues a request
//! of its own, behind those of clients, which takes the removed snapshots out of the object's
//! history and deletes the clones that serve no other, both in one write ([`WritePlan::of_trim`]).
//! When it has come to the end and all these writes are durable on all members, the snapshots are
//! *purged*.
//!
//! # Why nothing that a snapshot shows is trimmed
//! Only snapshots that the map calls removed are taken out of a history, and only a clone whose
//! history is empty then goes. A removed snapshot's number is never given again. A clone's bytes
//! are its own to the store, which counts the references to what clones share; what the history
//! says of shared ranges is made true for the neighbour ([`SnapSet::trim`]).
//!
//! # Why nothing of a purged snapshot is left
//! A trim is a write like any other: it is in the log, who lacks it lacks its objects, and peering
//! keeps it. So once it is durable on all members of a clean PG no later primary finds the clone.
//! None comes to be behind the walk: a primary that knows that a snapshot is removed takes it out
//! of every context ([`super::PoolSnaps::context_of`]), also when the map has forgotten it, if it
//! has seen that ([`note_purged`]). The walk itself is remembered by nobody. A primary that
//! follows has purged nothing before it has walked for itself; it finds what is done to be done. So
//! neither a failover nor a split or a merge needs to carry anything on, and a report counts for
//! the PG only as it was when it was made: the monitors must not take one from before a merge for
//! the merged PG.
//!
//! # Clones that no head names
//! When an administrator gives up a head that is lost (`recovery::lost`), its history goes with it,
//! or becomes an older one; so then clones may be there that no history names, and a history may
//! name clones that are not there. Nobody can see such a clone, nor say what it serves. So a trim
//! then makes the two agree: clones that are not named go, and names of what is not there. One is
//! put before all other requests on what was given up, so that no later write makes a clone of a
//! name that is taken, and a walk follows when the PG is clean, for what was out of reach. Only
//! then: at any other time a clone without a head is a copy's damage, and for a scrub to tell, not
//! a reason to delete what other members have. A primary that fails between leaves such clones,
//! too.
//!
//! # What it costs
//! Each walk lists all names of the PG, and looks at the record of each object that has clones,
//! also where these are of other snapshots. Whatever is removed before it begins goes in one walk.
//! An index of the objects by snapshot would make it as long as what there is to do.

use crate::api::PgEffect;
use crate::core::{Cx, PgCore};
use crate::exec::{
    self, Change, Effect, ObjectInfo, ObjectState, Outcome, ReadError, SNAPSET_ATTR, StatDelta,
    WritePlan,
};
use crate::lead::Lead;
use crate::requests::{Own, Sound};
use spirula_maps::{PgState, SnapIntervals};
use spirula_types::transaction::ObjectOp;
use spirula_types::{EVersion, HObject, ReqId, SNAP_HEAD};
use std::collections::BTreeSet;
use std::sync::Arc;

#[cfg(doc)]
use crate::exec::SnapSet;

/// Names that are listed in one turn.
const LISTED: usize = 512;
/// Objects that are trimmed at a time.
const AT_ONCE: usize = 8;
/// Clones of an object that go in one write.
const CLONES: usize = 16;
/// Ranges of purged snapshots that are remembered: the newest ones.
const PURGED_MAX: usize = 1024;
/// The number of requests that belong to no walk.
pub(crate) const NO_WALK: u64 = u64::MAX;
/// A walk that had to leave something out is followed by another after so many milliseconds.
const AGAIN_MS: u64 = 60_000;

/// What a primary has trimmed, and the walk under way.
#[derive(Debug, Default)]
pub(crate) struct Trim {
    /// Removed snapshots of which nothing is left.
    purged: SnapIntervals,
    /// Those of which something may be left, by the map's set that was looked at last: there may be
    /// tens of thousands, and this is asked with each map and each turn.
    due: SnapIntervals,
    looked: Option<Arc<SnapIntervals>>,
    walk: Option<Walk>,
    /// Heads of which something was given up: there may be clones that they do not name, so a walk
    /// is due though nothing is to be purged. Of other heads a disagreement is a copy's damage.
    strays: BTreeSet<HObject>,
    /// The last walk had to leave something out, and when the next may begin.
    failed: bool,
    again_ms: u64,
}

/// A walk through the PG's objects.
#[derive(Debug)]
struct Walk {
    /// Names it in its requests.
    number: u64,
    /// The snapshots that will be purged when it has come to the end.
    targets: SnapIntervals,
    /// What comes from here on was not looked at.
    from: HObject,
    /// Objects with a request of its own that is not done.
    open: BTreeSet<HObject>,
    /// It has had a turn.
    begun: bool,
    /// Some object could not be trimmed.
    failed: bool,
}

impl Trim {
    /// Does the walk wait for the shell's turn?
    pub fn wants_turn(&self) -> bool {
        self.walk.as_ref().is_some_and(|w| w.open.is_empty())
    }

    /// State bits.
    pub fn state(&self) -> PgState {
        let error = if self.failed { PgState::SNAPTRIM_ERROR } else { PgState::UNKNOWN };
        let walk = match &self.walk {
            Some(w) if w.begun => PgState::SNAPTRIM,
            Some(_) => PgState::SNAPTRIM_WAIT,
            None => PgState::UNKNOWN,
        };
        walk | error
    }

    /// Removed snapshots of which nothing is left.
    pub fn purged(&self) -> &SnapIntervals {
        &self.purged
    }

    /// Must time pass for the next walk?
    pub fn wants_tick(&self) -> bool {
        self.again_ms > 0
    }

    /// An object is no longer as the log said: nothing is known of what is left.
    pub fn forget(&mut self, head: HObject) {
        let mut strays = std::mem::take(&mut self.strays);
        strays.insert(head);
        *self = Self { strays, ..Self::default() };
    }
}

/// An object's removed snapshots: the clones that go, and whether its history changes.
pub(crate) fn doomed(state: &ObjectState, removed: &SnapIntervals) -> (Vec<u64>, bool) {
    let gone = |s: &u64| removed.contains(*s);
    let clones = &state.snapset.clones;
    let all = clones.iter().filter(|c| c.snaps.iter().all(gone)).map(|c| c.id);
    (all.take(CLONES).collect(), clones.iter().any(|c| c.snaps.iter().any(gone)))
}

impl WritePlan {
    /// Takes removed snapshots, and clones that are `absent`, out of the history of a head that is
    /// `base`; if there is a head. `clones`: those that go, since they serve no other snapshot or
    /// are not named at all, as they are stored.
    pub(crate) fn of_trim(
        head: &HObject,
        base: &ObjectState,
        removed: &SnapIntervals,
        absent: &[u64],
        clones: Vec<(HObject, ObjectState)>,
    ) -> Self {
        let mut set = base.snapset.clone();
        let before = set.own_bytes();
        let going: BTreeSet<u64> = clones.iter().map(|(o, _)| o.snap).collect();
        let absent: BTreeSet<u64> = absent.iter().copied().collect();
        set.trim(|c| {
            if absent.contains(&c.id) {
                return Some(Vec::new());
            }
            let kept: Vec<u64> =
                c.snaps.iter().copied().filter(|s| !removed.contains(*s)).collect();
            // More may have to go than are deleted now: those keep their snapshots until it is
            // their turn.
            (!kept.is_empty() || going.contains(&c.id)).then_some(kept)
        });
        let omap = |s: &ObjectState| i64::from(s.info.has(ObjectInfo::OMAP));
        let deleted = |(object, state): (HObject, ObjectState)| Change {
            object,
            ops: vec![ObjectOp::Remove],
            size_before: state.info.size,
            stats: StatDelta {
                objects: -1,
                clones: -1,
                omap_objects: -omap(&state),
                ..StatDelta::default()
            },
            state,
            source: None,
            frozen: true,
            delete: true,
            user_modify: false,
            user_version: None,
        };
        // What the history names and nobody has needs no entry.
        let mut changes: Vec<Change> =
            clones.into_iter().filter(|(_, s)| s.exists).map(deleted).collect();
        if !base.exists {
            return Self { changes };
        }
        let whiteout = base.info.has(ObjectInfo::WHITEOUT);
        let delete = whiteout && set.clones.is_empty();
        let last = i64::from(delete);
        let stats = StatDelta {
            objects: -last,
            whiteouts: -last,
            omap_objects: -last * omap(base),
            bytes: set.own_bytes() - before,
            ..StatDelta::default()
        };
        let mut ops = Vec::new();
        if delete {
            ops.push(ObjectOp::Remove);
        } else {
            // A store that is short of room for metadata takes nothing that only sets an attribute,
            // and a trim makes room.
            ops.push(ObjectOp::RmAttr(SNAPSET_ATTR.into()));
            super::plan::set_history(&mut ops, &set);
        }
        let state = ObjectState { snapset: set, ..base.clone() };
        changes.push(Change {
            object: head.clone(),
            ops,
            state,
            size_before: base.info.size,
            source: None,
            frozen: true,
            delete,
            user_modify: false,
            user_version: None,
            stats,
        });
        Self { changes }
    }
}

/// The next map names other removed snapshots: those that it names no more are purged. Whoever
/// writes under an old context may name them still, and is not to make clones that nobody would
/// look for. Who joins later, or is started anew, has not seen it: then such a clone stays until
/// its snapshot is removed once more.
pub(crate) fn note_purged(
    core: &mut PgCore,
    before: &Arc<SnapIntervals>,
    after: &Arc<SnapIntervals>,
) {
    if Arc::ptr_eq(before, after) {
        return;
    }
    let mut gone = SnapIntervals::clone(before);
    gone.subtract(after);
    core.copy.note_purged(&gone, PURGED_MAX);
}

impl Lead<'_> {
    /// The map may have changed, or what the PG is: begins a walk if there is something to be
    /// purged, ends one that may not go on.
    pub(crate) fn look_for_trims(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = self.core.view.clone() else { return };
        let Some(pool) = &view.pool else { return };
        let removed = &pool.snaps.removed;
        let may = !view.permits.no_trim && !self.core.interval().premerge;
        let ((from, _), number) = (self.core.span(), self.core.seq());
        let a = &mut *self.primary;
        let may = may && a.clean && a.serving;
        let t = &mut a.trim;
        if !t.looked.as_ref().is_some_and(|l| Arc::ptr_eq(l, removed)) {
            t.purged = t.purged.intersection(removed);
            t.due = SnapIntervals::clone(removed);
            t.due.subtract(&t.purged);
            if let Some(w) = &mut t.walk {
                w.targets = w.targets.intersection(removed);
            }
            t.looked = Some(removed.clone());
        }
        if let Some(w) = &t.walk {
            if may && (!w.targets.is_empty() || !t.strays.is_empty()) {
                return;
            }
            t.walk = None;
            cx.out.push(PgEffect::StateChanged);
        }
        if t.due.is_empty() && t.strays.is_empty() {
            (t.failed, t.again_ms) = (false, 0);
            return;
        }
        if may && cx.now.mono_ms >= t.again_ms {
            t.again_ms = 0;
            let targets = t.due.clone();
            t.walk = Some(Walk {
                number,
                targets,
                from,
                open: BTreeSet::new(),
                begun: false,
                failed: false,
            });
            cx.out.extend([PgEffect::StateChanged, PgEffect::WantTurn]);
        }
    }

    /// The PG has become clean: what was looked at before may have been another copy's.
    pub(crate) fn begin_trims(&mut self, cx: &mut Cx<'_>) {
        let trim = &mut self.primary.trim;
        (trim.walk, trim.again_ms) = (None, 0);
        self.look_for_trims(cx);
    }

    /// The shell gives the walk a turn, for so many objects at most.
    pub(crate) fn trim_more(&mut self, work: usize, cx: &mut Cx<'_>) {
        // It may have to end.
        self.look_for_trims(cx);
        let (_, end) = self.core.span();
        let a = &mut *self.primary;
        let Some(w) = a.trim.walk.as_mut().filter(|w| w.open.is_empty()) else { return };
        if !std::mem::replace(&mut w.begun, true) {
            cx.out.push(PgEffect::StateChanged);
        }
        let names = match cx.reader.list(&w.from, &end, LISTED) {
            Ok(names) => names,
            Err(error) => {
                tracing::error!(pg = %self.core.id, %error, "list objects to be trimmed");
                (w.failed, w.from) = (true, HObject::max());
                return self.walked(cx);
            }
        };
        let listed = names.len();
        let mut looked = 0;
        for o in names {
            if w.open.len() >= work.clamp(1, AT_ONCE) {
                break;
            }
            looked += 1;
            // An object without a clone needs no look; of one with clones the first name is enough.
            w.from = o.family_end();
            if o.snap < SNAP_HEAD {
                w.open.insert(o.to_head());
            }
        }
        if looked == listed && listed < LISTED {
            w.from = HObject::max();
        }
        let (number, open) = (w.number, w.open.clone());
        if open.is_empty() {
            return self.walked(cx);
        }
        for head in open {
            self.enqueue_own(&head, Vec::new(), ReqId::default(), Own::Trim(number));
        }
        if planted!(self.core.cfg, TrimNotAwaited) {
            self.primary.trim.walk.iter_mut().for_each(|w| w.open.clear());
            self.walked(cx);
        }
    }

    /// All that the walk has found so far is trimmed.
    fn walked(&mut self, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let Some(w) = &a.trim.walk else { return };
        if !w.from.max {
            return cx.out.push(PgEffect::WantTurn);
        }
        let Some(w) = a.trim.walk.take() else { return };
        a.trim.failed = w.failed;
        if w.failed {
            a.trim.again_ms = cx.now.mono_ms + AGAIN_MS;
        } else {
            tracing::debug!(pg = %self.core.id, snapshots = %w.targets, "purged");
            a.trim.purged.union(&w.targets);
            a.trim.due.subtract(&w.targets);
            a.trim.strays.clear();
        }
        cx.out.push(PgEffect::StateChanged);
        self.look_for_trims(cx);
    }

    /// A request of the walk `number` has ended: nothing is left to be trimmed in its object,
    /// durably and everywhere, or it could not be trimmed.
    pub(crate) fn trimmed(&mut self, object: &HObject, number: u64, done: bool, cx: &mut Cx<'_>) {
        let a = &mut *self.primary;
        let Some(w) = a.trim.walk.as_mut().filter(|w| w.number == number) else { return };
        w.failed |= !done;
        if w.open.remove(object) && w.open.is_empty() {
            self.walked(cx);
        }
    }

    /// Trims an object: it is the first request's turn, which is our own. False if it waits for
    /// something to be read.
    pub(crate) fn trim_first(&mut self, object: &HObject, number: u64, cx: &mut Cx<'_>) -> bool {
        let Some(pool) = self.core.view.as_ref().and_then(|v| v.pool.clone()) else { return false };
        let Some((id, state, inflight)) = self.requests.first_of(object) else { return false };
        let removed = &pool.snaps.removed;
        #[cfg(feature = "plant-bugs")]
        let up_to_newest = {
            let mut all = SnapIntervals::new();
            all.insert(0, removed.intervals().map(|(s, n)| s + n).max().unwrap_or(0));
            all
        };
        #[cfg(feature = "plant-bugs")]
        let removed = if planted!(self.core.cfg, TrimTakesMore) { &up_to_newest } else { removed };
        let (mut going, changes) = doomed(&state, removed);
        let mends = number == NO_WALK || self.primary.trim.strays.contains(object);
        let found =
            if mends { self.disagreement(object, &state, cx) } else { Ok(Default::default()) };
        let (strays, absent) = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(pg = %self.core.id, %object, %error, "list an object's clones");
                return self.trim_ends(object, number, false, cx);
            }
        };
        if !changes && strays.is_empty() && absent.is_empty() {
            // What an earlier request has trimmed counts when it is durable: the last commit comes
            // back here. Where there is no head it comes back to the clones that went.
            let done = state.exists || !self.requests.writes_of_family(object);
            return inflight == 0 && self.trim_ends(object, number, done, cx);
        }
        if !strays.is_empty() || !absent.is_empty() {
            tracing::warn!(pg = %self.core.id, %object, ?strays, ?absent, "its history and its \
                clones are made to agree");
            going.extend(strays);
            going.truncate(CLONES);
        }
        let mut used: Vec<_> =
            state.exists.then(|| (object.clone(), state.info.version)).into_iter().collect();
        let mut clones = Vec::with_capacity(going.len());
        for snap in going {
            let clone = HObject { snap, ..object.clone() };
            // No client waits for one that is not whole: it is tried again when the PG is. Of what
            // was given up they do wait: a write would make a clone of a name that is taken.
            // Recovery comes back here.
            if self.must_recover_first(&clone, true, cx) {
                if number == NO_WALK {
                    self.back_off_object(object, &clone, cx);
                    return false;
                }
                return self.trim_ends(object, number, false, cx);
            }
            match exec::load_object(cx.reader, &clone) {
                Ok(state) => {
                    used.extend(state.exists.then(|| (clone.clone(), state.info.version)));
                    clones.push((clone, state));
                }
                Err(ReadError::NotReady(what)) => return self.park_first(object, id, what, cx),
                Err(error) => {
                    tracing::error!(pg = %self.core.id, %clone, %error, "load a clone to be \
                        trimmed");
                    self.heal(&clone, EVersion::default(), cx);
                    return self.trim_ends(object, number, false, cx);
                }
            }
        }
        match self.has_sound_shards(object, id, &used, cx) {
            Sound::NotRead => return false,
            Sound::Replaced | Sound::No => return self.trim_ends(object, number, false, cx),
            Sound::Yes => {}
        }
        let Some(q) = self.requests.take_first(object) else {
            invariant!(self.core, "the request that trims {object} went while it was looked at");
            return false;
        };
        #[cfg(feature = "plant-bugs")]
        let state = if planted!(self.core.cfg, TrimOverlapKept) {
            all_shared(state, &clones)
        } else {
            state
        };
        let plan = WritePlan::of_trim(object, &state, removed, &absent, clones);
        let outcome = Outcome {
            result: 0,
            ops: Vec::new(),
            user_version: state.info.user_version,
            effect: Effect::Apply(Box::new(plan)),
            stats: StatDelta::default(),
            unreadable: false,
            watch: Vec::new(),
        };
        self.write(object, q, outcome, &[], cx);
        true
    }

    /// Clones that are there and that a head, which is `state`, does not name; and those that it
    /// names and that are not there.
    ///
    /// # Errors
    /// Those of [`crate::exec::ObjectReader::list`].
    fn disagreement(
        &self,
        head: &HObject,
        state: &ObjectState,
        cx: &Cx<'_>,
    ) -> Result<(Vec<u64>, Vec<u64>), ReadError> {
        let (from, clones) = (head.family_start(), &state.snapset.clones);
        let most = clones.len() + CLONES;
        let stored = cx.reader.list(&from, head, most)?;
        let listed_to = stored.last().filter(|_| stored.len() == most).map_or(u64::MAX, |o| o.snap);
        let mut there: BTreeSet<u64> = stored.into_iter().map(|o| o.snap).collect();
        there.extend(
            self.core
                .missing()
                .from(&from)
                .map(|(o, _)| o)
                .take_while(|o| *o < head)
                .map(|o| o.snap),
        );
        let named: BTreeSet<u64> = clones.iter().map(|c| c.id).collect();
        let absent = named.difference(&there).copied().filter(|id| *id <= listed_to);
        Ok((there.difference(&named).copied().collect(), absent.collect()))
    }

    /// The first request on an object, our own, ends without a write.
    fn trim_ends(&mut self, object: &HObject, number: u64, done: bool, cx: &mut Cx<'_>) -> bool {
        drop(self.requests.take_first(object));
        // No write and no answer follows that would do it: a walk with nothing to do would keep all
        // it has looked at.
        self.requests.evict(self.core.cfg.contexts);
        self.trimmed(object, number, done, cx);
        true
    }
}

/// As if all of a clone that goes were shared.
#[cfg(feature = "plant-bugs")]
fn all_shared(mut state: ObjectState, going: &[(HObject, ObjectState)]) -> ObjectState {
    let goes = |id: u64| going.iter().any(|(o, _)| o.snap == id);
    state
        .snapset
        .clones
        .iter_mut()
        .filter(|c| goes(c.id))
        .for_each(|c| c.overlap = vec![(0, u64::MAX)]);
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Now, PgConfig};
    use crate::exec::tests::{MemStore, object};
    use crate::lease::Leases;
    use crate::primary::Primary;
    use crate::role::Role;
    use spirula_encoding::UTime;
    use spirula_types::{PgId, SpgId};
    use std::sync::Arc;

    /// A walk through a PG with nothing to be trimmed looks at many objects, and remembers few.
    #[test]
    fn objects_without_anything_to_be_trimmed_are_not_remembered() {
        let cfg = Arc::new(PgConfig { contexts: 10, ..PgConfig::default() });
        let mut pg = crate::Pg::new(SpgId::whole(PgId::new(1, 0)), 0, cfg);
        let me = pg.core.me;
        let primary = Primary::new(me, 1, EVersion::default(), UTime::ZERO, 0, false);
        pg.role = Role::Primary(Box::new(primary));
        let mut pg = pg.lead().unwrap();
        let (store, leases, mut out) = (MemStore::default(), Leases::new(1000, 0), Vec::new());
        let now = Now { mono_ms: 0, wall: spirula_encoding::UTime::ZERO };
        for i in 0..1000 {
            let o = object(&format!("{i}"));
            pg.enqueue_own(&o, Vec::new(), ReqId::default(), Own::Trim(1));
            let mut cx = Cx { now, reader: &store, leases: &leases, out: &mut out };
            assert!(pg.trim_ends(&o, 1, true, &mut cx));
        }
        assert!(pg.requests.objects() < 50, "{}", pg.requests.objects());
    }
}
