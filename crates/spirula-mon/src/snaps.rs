//! Snapshots, as far as the monitors have to do with them: their numbers, their names, and the list
//! of those that are gone.
//!
//! A pool's snapshots are the pool's own (`ceph osd pool mksnap`, by name) or its clients' (RBD,
//! CephFS: numbers without names, which the clients keep), never both. Either way the pool's
//! `snap_seq` counts up, and no number is used twice. A removed one stands in the OSD map's queue
//! of removed snapshots until every PG of the pool has said that it holds nothing of it any more
//! ([`spirula_maps::PgDigest::purged_snaps`]); then it leaves the queue. Nothing else remembers it:
//! who removes it once more has the PGs look again, and find nothing.
//!
//! Whoever may write to a pool may make snapshots of its own there, and each makes an epoch of the
//! OSD map. So the requests of one [`TURN`] share an epoch: a client that asks for one after the
//! other gets 20 a second at first, and when it has used up [`TURNS`], one a second until it is
//! quiet. Else one client made 20 maps a second for ever, which all others must read.
//!
//! What a removal means to a PG: `spirula_pg`. Which commands lead here: [`crate::commands`], and
//! `MPoolOp`.

use crate::commands::Command;
use crate::event::ConnId;
use crate::mon::Mon;
use crate::pools::Refusal;
use crate::quorum::Ask;
use crate::state::State;
use crate::work::Work;
use bytes::Bytes;
use spirula_encoding::UTime;
use spirula_maps::osdmap::pool::flag;
use spirula_maps::osdmap::{Incremental, PoolSnap};
use spirula_maps::{PgPool, SnapIntervals};
use spirula_messages::ceph::mon::pool_op as op;
use spirula_messages::ceph::{MPoolOp, MRemoveSnaps, kind};
use spirula_messages::{Body, Message};
use spirula_types::errno::{EEXIST, EINVAL, ENOENT, ENOSPC};
use spirula_types::{Epoch, PoolId};
use std::collections::{BTreeMap, VecDeque};

/// Requests that make or remove snapshots share an epoch within so many nanoseconds.
const TURN: u64 = 50_000_000;
/// So many turns may follow each other like that. Each of these comes again after so many
/// nanoseconds.
const TURNS: u64 = 60;
const TURN_AGAIN: u64 = 1_000_000_000;
/// So many requests wait for their turn, each in its share of that ([`Mon::share`]).
pub(crate) const TURNS_MAX: usize = 8192;
/// Intervals in a pool's queue of removed snapshots, at most: more are there only when many were
/// removed, none next to another, while PGs could not work them off. Each client has the map with
/// all of them.
const QUEUE_INTERVALS_MAX: usize = 16_384;
/// Snapshots of a pool's own, at most: each is in every OSD map.
const POOL_SNAPS_MAX: usize = 4096;
/// The highest number that somebody else than the monitors may have given to a snapshot. Beyond it
/// there are as many again, which nobody comes to the end of by asking for one after the other.
const NUMBER_MAX: u64 = 1 << 62;
/// Snapshots that leave the queue in one epoch: so many (Ceph's `mon_max_snap_prune_per_epoch`), or
/// this part of the queue, if that is more: what came fast must not take long to go.
const PRUNED_PER_EPOCH: u64 = 100;
const PRUNED_SHARE: u64 = 8;
/// Epochs of removals that are remembered until a digest is as new, at most. If there are more,
/// none counts before the next digest.
const RECENT_MAX: Epoch = 1024;

/// Requests that wait for their turn. Not part of the agreed state: whoever lost its monitor asks
/// again.
#[derive(Default)]
pub(crate) struct SnapTurns {
    waiting: VecDeque<Ask>,
    last: UTime,
    /// When all of the [`TURNS`] are there again, in nanoseconds.
    rested: u64,
    recent: Recent,
}

/// What was removed lately. A digest made with a map from before says nothing of it: if a snapshot
/// is removed once more, after it left the queue, what PGs say there is of the first time. Made of
/// the agreed state, by whoever leads.
#[derive(Default)]
struct Recent {
    /// The epoch up to which this is known; 0 for never.
    seen: Epoch,
    /// Of removals up to this epoch nothing is known.
    floor: Epoch,
    removed: BTreeMap<Epoch, BTreeMap<PoolId, SnapIntervals>>,
}

impl Recent {
    /// Follows the state's maps; `told`: the epoch of the digest's, of whose removals nothing more
    /// need be known.
    fn follow(&mut self, state: &State, told: Epoch) {
        let now = state.osdmap.epoch;
        if self.seen == 0 || now.saturating_sub(self.seen) > RECENT_MAX {
            self.forget(now);
        }
        for epoch in self.seen + 1..=now {
            match state
                .incrementals
                .get(&epoch)
                .map(|b| spirula_encoding::from_slice::<Incremental>(b))
            {
                Some(Ok(inc)) if inc.new_removed_snaps.is_empty() => {}
                Some(Ok(inc)) => drop(self.removed.insert(epoch, inc.new_removed_snaps)),
                Some(Err(_)) | None => self.forget(epoch),
            }
        }
        self.seen = now;
        // Another manager may come with an older map: its digest has to wait, for what is forgotten
        // here.
        self.floor = self.floor.max(told.min(now));
        self.removed.retain(|epoch, _| *epoch > told);
        if self.removed.len() > RECENT_MAX as usize {
            self.forget(now);
        }
    }

    /// Nothing up to `epoch` is known.
    fn forget(&mut self, epoch: Epoch) {
        self.removed.clear();
        (self.seen, self.floor) = (epoch, epoch);
    }

    /// Takes out of a pool's snapshots those that were removed after the digest.
    fn subtract_from(&self, pool: PoolId, snaps: &mut SnapIntervals) {
        self.removed.values().filter_map(|of| of.get(&pool)).for_each(|s| snaps.subtract(s));
    }
}

/// Does this make or remove a snapshot, or a fence? A small client may do either, and each would be
/// an epoch of the map that everybody has.
pub(crate) fn is_of_turns(m: &Message, command: Option<&Command>) -> bool {
    m.kind == kind::REMOVE_SNAPS
        || command.is_some_and(Command::is_about_fences)
        || m.kind == kind::POOL_OP
            && MPoolOp::from_message(m).is_ok_and(|m| {
                [
                    op::CREATE_SNAP,
                    op::DELETE_SNAP,
                    op::CREATE_UNMANAGED_SNAP,
                    op::DELETE_UNMANAGED_SNAP,
                ]
                .contains(&m.op)
            })
}

/// What comes of a request of these.
pub(crate) enum Kept {
    /// It is its turn now.
    Now(Ask),
    /// It waits for the next one.
    Waits,
    /// It does not.
    NoRoom(Ask),
}

impl SnapTurns {
    /// Keeps a request of these for the next turn, if so many may wait for this one to.
    pub fn keep(&mut self, ask: Ask, most: usize, now: UTime) -> Kept {
        if self.waiting.is_empty() && self.is_due(now) {
            self.turn(now);
            return Kept::Now(ask);
        }
        // Another monitor sends it again until it is done.
        if ask.via.is_some() && self.waiting.iter().any(|a| a.via == ask.via) {
            return Kept::Waits;
        }
        if self.waiting.len() >= most {
            return Kept::NoRoom(ask);
        }
        self.waiting.push_back(ask);
        Kept::Waits
    }

    /// May another request of a client of this monitor wait?
    pub fn has_room(&self) -> bool {
        self.waiting.len() < TURNS_MAX / 2
    }

    fn is_due(&self, now: UTime) -> bool {
        let used = self.rested.saturating_sub(now.as_nanos());
        now.as_nanos().abs_diff(self.last.as_nanos()) >= TURN && used <= (TURNS - 1) * TURN_AGAIN
    }

    /// It is a turn.
    fn turn(&mut self, now: UTime) {
        self.last = now;
        self.rested = self.rested.max(now.as_nanos()).saturating_add(TURN_AGAIN);
    }

    /// Those whose turn it is.
    pub fn due(&mut self, now: UTime) -> VecDeque<Ask> {
        if self.waiting.is_empty() || !self.is_due(now) {
            return VecDeque::new();
        }
        self.turn(now);
        self.take()
    }

    /// All that wait: this monitor leads no more.
    pub fn take(&mut self) -> VecDeque<Ask> {
        std::mem::take(&mut self.waiting)
    }

    /// Nobody waits behind this connection any more.
    pub fn forget(&mut self, conn: ConnId) {
        self.waiting.retain(|a| a.conn != conn);
    }

    /// Bytes of those that wait.
    pub fn bytes(&self) -> usize {
        self.waiting.iter().map(|a| crate::mon::bytes_of(&a.message)).sum()
    }
}

fn pool_mut(work: &mut Work, id: PoolId) -> Result<&mut PgPool, Refusal> {
    work.osd_mut().pools.get_mut(&id).ok_or_else(|| (ENOENT, format!("pool {id} does not exist")))
}

/// Takes a snapshot of a pool, by name.
///
/// # Errors
/// EINVAL for a name that is none, or if the pool's snapshots are its clients'; EEXIST; ENOSPC
/// beyond 4,096 of them.
pub fn create_snap(work: &mut Work, id: PoolId, name: &str) -> Result<(), Refusal> {
    let (epoch, now) = (work.next_epoch(), work.now);
    let pool_name = work.osd().pool_name(id).to_owned();
    // It may be empty, as with Ceph (go-ceph's tests make such a one).
    if name.len() > 256 || name.chars().any(char::is_control) {
        return Err((
            EINVAL,
            "a snapshot's name has at most 256 bytes and no control characters".into(),
        ));
    }
    let Some(p) = work.osd().pool(id) else {
        return Err((ENOENT, format!("pool {id} does not exist")));
    };
    if p.is_selfmanaged_snaps_mode() {
        return Err((EINVAL, format!("pool {pool_name} is in unmanaged snaps mode")));
    }
    if p.snap_by_name(name).is_some() {
        return Err((EEXIST, format!("pool {pool_name} snap {name} already exists")));
    }
    if p.snaps.len() >= POOL_SNAPS_MAX {
        return Err((
            ENOSPC,
            format!("pool {pool_name} has {POOL_SNAPS_MAX} snapshots, as many as a pool may have"),
        ));
    }
    let p = pool_mut(work, id)?;
    p.flags |= flag::POOL_SNAPS;
    p.snap_seq += 1;
    p.snap_epoch = epoch;
    p.snaps.insert(p.snap_seq, PoolSnap { id: p.snap_seq, stamp: now, name: name.to_owned() });
    Ok(())
}

/// Removes a pool's snapshot.
///
/// # Errors
/// EINVAL if the pool's snapshots are its clients'; ENOENT if there is none of that name.
pub fn remove_snap(work: &mut Work, id: PoolId, name: &str) -> Result<(), Refusal> {
    let epoch = work.next_epoch();
    let pool_name = work.osd().pool_name(id).to_owned();
    let Some(p) = work.osd().pool(id) else {
        return Err((ENOENT, format!("pool {id} does not exist")));
    };
    if p.is_selfmanaged_snaps_mode() {
        return Err((EINVAL, format!("pool {pool_name} is in unmanaged snaps mode")));
    }
    let Some(snap) = p.snap_by_name(name) else {
        return Err((ENOENT, format!("pool {pool_name} snap {name} does not exist")));
    };
    removed(work, id, snap)?;
    let p = pool_mut(work, id)?;
    p.snaps.remove(&snap);
    p.snap_epoch = epoch;
    Ok(())
}

/// Puts a snapshot into the queue of those that PGs must forget.
fn removed(work: &mut Work, id: PoolId, snap: u64) -> Result<(), Refusal> {
    let full = |s: &SnapIntervals| s.count() >= QUEUE_INTERVALS_MAX;
    let map = work.osd();
    if map.removed_snaps_queue.get(&id).is_some_and(full)
        || map.new_removed_snaps.get(&id).is_some_and(full)
    {
        return Err((
            ENOSPC,
            format!("too many removed snapshots of pool {id} wait for its PGs to forget them"),
        ));
    }
    work.osd_mut().new_removed_snaps.entry(id).or_default().insert(snap, 1);
    Ok(())
}

/// Is it removed, or about to be?
fn is_removed(work: &Work, id: PoolId, snap: u64) -> bool {
    let map = work.osd();
    let in_ = |m: &BTreeMap<PoolId, SnapIntervals>| m.get(&id).is_some_and(|s| s.contains(snap));
    // Of an edited map only: an unedited one's list is of its own epoch, and in the queue.
    in_(&map.removed_snaps_queue) || in_(&map.new_removed_snaps)
}

/// The number of a client's new snapshot.
fn create_own(work: &mut Work, id: PoolId) -> Result<u64, Refusal> {
    let epoch = work.next_epoch();
    let p = pool_mut(work, id)?;
    if p.is_pool_snaps_mode() {
        return Err((EINVAL, "the pool has snapshots of its own".into()));
    }
    p.flags |= flag::SELFMANAGED_SNAPS;
    // The first is 2, as with Ceph.
    p.snap_seq = p.snap_seq.max(1) + 1;
    p.snap_epoch = epoch;
    Ok(p.snap_seq)
}

/// Removes a client's snapshot: the removal's own number, if it was not removed before.
fn remove_own(work: &mut Work, id: PoolId, snap: u64) -> Result<Option<u64>, Refusal> {
    let epoch = work.next_epoch();
    let Some(p) = work.osd().pool(id) else {
        return Err((ENOENT, format!("pool {id} does not exist")));
    };
    if p.is_pool_snaps_mode() {
        return Err((EINVAL, "the pool has snapshots of its own".into()));
    }
    if snap == 0 || snap > p.snap_seq {
        return Err((ENOENT, format!("there is no snapshot {snap}")));
    }
    if is_removed(work, id, snap) {
        return Ok(None);
    }
    removed(work, id, snap)?;
    let p = pool_mut(work, id)?;
    // A removal has a number, too: who has seen it has seen all snapshots before it.
    p.snap_seq += 1;
    p.snap_epoch = epoch;
    Ok(Some(p.snap_seq))
}

/// A client's operation on snapshots: result (0 or −errno) and, for a new one of its own, its
/// number.
pub fn pool_op(work: &mut Work, m: &MPoolOp) -> (i32, Option<Bytes>) {
    let id = PoolId::from(m.pool);
    let plain = |r: Result<(), Refusal>| (r.map_or_else(|(e, _)| -e, |()| 0), None);
    if work.osd().pool(id).is_none() {
        return (-ENOENT, None);
    }
    match m.op {
        // That it is there, or gone, already is what was asked for.
        op::CREATE_SNAP => match create_snap(work, id, &m.name) {
            Err((EEXIST, _)) => (0, None),
            r => plain(r),
        },
        op::DELETE_SNAP => match remove_snap(work, id, &m.name) {
            Err((ENOENT, _)) => (0, None),
            r => plain(r),
        },
        op::CREATE_UNMANAGED_SNAP => match create_own(work, id) {
            Ok(snap) => (0, Some(spirula_encoding::to_vec(&snap).into())),
            Err((e, _)) => (-e, None),
        },
        op::DELETE_UNMANAGED_SNAP => plain(remove_own(work, id, m.snap).map(|number| {
            // The removal's number, which no snapshot of this pool ever has, goes with it: else
            // whoever makes and removes snapshots in turn would fill the queue with as many
            // intervals, none next to another.
            if let Some(number) = number {
                work.osd_mut().new_removed_snaps.entry(id).or_default().insert(number, 1);
            }
        })),
        _ => (-EINVAL, None),
    }
}

/// What a metadata server wants removed; what is left in the message is removed.
pub fn remove_snaps(work: &mut Work, m: &mut MRemoveSnaps) {
    for (pool, snaps) in &mut m.snaps {
        let id = PoolId::from(*pool);
        snaps.retain(|snap| {
            let usable = |p: &PgPool| !p.is_pool_snaps_mode() && (1..=NUMBER_MAX).contains(snap);
            if !work.osd().pool(id).is_some_and(usable) {
                return false;
            }
            if is_removed(work, id, *snap) {
                return true;
            }
            let Ok(p) = pool_mut(work, id) else { return false };
            // Its numbers are of all the file system's pools: this one may not have come so far.
            if p.snap_seq < *snap {
                p.flags |= flag::SELFMANAGED_SNAPS;
                p.snap_seq = *snap;
            }
            // The removal's number is not queued: the file system may yet give it to a snapshot.
            remove_own(work, id, *snap).is_ok()
        });
    }
    m.snaps.retain(|_, s| !s.is_empty());
}

impl Mon {
    /// Takes out of the queue what no PG has anything of any more.
    pub(crate) fn prune_snaps(&mut self, work: &mut Work) {
        let digest = &self.mgr.knowledge.digest;
        let recent = &mut self.snaps.recent;
        recent.follow(&self.state, digest.osdmap_epoch);
        if recent.floor > digest.osdmap_epoch {
            return;
        }
        for (pool, purged) in &digest.purged_snaps {
            let (Some(queue), Some(p)) =
                (work.osd().removed_snaps_queue.get(pool), work.osd().pool(*pool))
            else {
                continue;
            };
            // PGs that came of a split later than the manager's map are not among those that it
            // heard; nor does it know of a merge.
            if p.last_force_op_resend_preluminous > digest.osdmap_epoch {
                continue;
            }
            let mut gone = purged.intersection(queue);
            recent.subtract_from(*pool, &mut gone);
            let gone = gone.first(PRUNED_PER_EPOCH.max(queue.size() / PRUNED_SHARE));
            if !gone.is_empty() {
                work.osd_mut().new_purged_snaps.entry(*pool).or_default().union(&gone);
            }
        }
    }
}
