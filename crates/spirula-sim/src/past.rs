//! Snapshots in the simulator: those that clients make, use and remove, and what an object was at
//! them.
//!
//! A client names in each write the newest snapshot that it knows of. A snapshot shows of an object
//! what it was before the first change, in the order of versions, that knew of that snapshot or of
//! a newer one; nothing else about it is known to this model: no clones, no overlaps, no trimming.
//! That holds as long as a context names all snapshots that are older than its newest one, so they
//! are made one at a time, and as long as nobody looks at one that is removed, so one that somebody
//! uses is not.

use crate::content::{self, Change, Content, Guard, Kind, Seen};
use crate::rng::Rng;
use spirula_messages::ceph::MPoolOp;
use spirula_messages::ceph::mon::pool_op;
use spirula_types::{SNAP_HEAD, Uuid, errno};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Snapshots of a pool at a time, at most.
const LIVE_MAX: usize = 6;

/// What a read saw, and of what: [`SNAP_HEAD`] or a snapshot.
#[derive(Clone, Debug)]
pub struct Look {
    pub snap: u64,
    pub seen: Seen,
}

/// An object, and what it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    pub head: Content,
    /// The newest snapshot that a change knew of.
    seq: u64,
    /// What there was when a change first knew of a snapshot so new.
    was: BTreeMap<u64, Content>,
    /// Snapshots after the first, to the second, show nobody knows what: of an object that was
    /// deleted nothing may be left that remembers them, if what there was is removed, and then
    /// somebody made it anew who did not know of them yet.
    unsure: Option<(u64, u64)>,
    /// The user version of its deletion, which it has while it is there for its clones only.
    deleted: u64,
    /// Nobody knows what it is: it was rolled back to one of those.
    pub lost: bool,
}

impl Past {
    /// What a snapshot shows.
    fn at(&self, snap: u64) -> Content {
        if snap > self.seq {
            self.head.clone()
        } else {
            self.was.range(snap..).next().and_then(|(_, c)| c.clone())
        }
    }

    fn is_unsure(&self, snap: u64) -> bool {
        self.lost || self.unsure.is_some_and(|(after, to)| snap > after && snap <= to)
    }

    /// After a change; `source` is what a copy with its user version copied.
    ///
    /// # Errors
    /// When it cannot have been answered as it was.
    pub fn after(
        &self,
        c: &Change,
        source: impl FnOnce() -> Result<Self, String>,
    ) -> Result<Self, String> {
        let mut next = self.clone();
        if self.lost {
            return Ok(next);
        }
        let c = match c.guard {
            // What is deleted has the version of its deletion as long as it is there for its
            // clones, as in Ceph, and none when the last of them is trimmed; nobody knows here when
            // that is.
            Guard::Version(v) if self.head.is_none() && self.deleted > 0 => match c.result {
                r if r == -errno::EOVERFLOW && v > 0 => return Ok(next),
                r if r == -errno::ERANGE && v < self.deleted => return Ok(next),
                _ if v == self.deleted => &Change { guard: Guard::None, ..c.clone() },
                _ => c,
            },
            _ => c,
        };
        let head = match c.kind {
            Kind::Back(snap) if self.is_unsure(snap) => {
                next.lost = true;
                return Ok(next);
            }
            Kind::Back(snap) => {
                let shown = self.at(snap);
                if shown.is_none() && self.head.is_none() {
                    // It is not there, as the snapshot shows: nothing is changed.
                    return match c.result {
                        0 => Ok(next),
                        r => Err(format!(
                            "a rollback to nothing of what is not there is answered {r}"
                        )),
                    };
                }
                c.back(&self.head, shown)?
            }
            Kind::Copy(_) => {
                let source = source()?;
                if source.lost {
                    next.lost = true;
                    return Ok(next);
                }
                c.apply(&self.head, || Ok(source.head))?
            }
            _ => c.apply(&self.head, || Ok(None))?,
        };
        if c.result != 0 {
            return Ok(next);
        }
        next.head = head;
        next.deleted = if next.head.is_none() { c.version } else { 0 };
        if c.context > self.seq {
            next.was.insert(c.context, self.head.clone());
            next.seq = c.context;
        } else if self.head.is_none() && c.context < self.seq {
            let (after, to) = self.unsure.unwrap_or((c.context, self.seq));
            next.unsure = Some((after.min(c.context), to.max(self.seq)));
        }
        if next.head.is_none() && next.unsure.is_none() && next.was.values().all(Option::is_none) {
            // Nothing is left of it.
            return Ok(Self::default());
        }
        Ok(next)
    }

    /// Can a read have seen this of that?
    pub fn fits(&self, look: &Look) -> bool {
        match look.snap {
            SNAP_HEAD => self.lost || content::fits(&self.head, &look.seen),
            snap => self.is_unsure(snap) || content::fits(&self.at(snap), &look.seen),
        }
    }
}

#[derive(Debug, Default)]
struct OfPool {
    /// The newest that was made, ever, and all that were.
    seq: u64,
    made: Vec<u64>,
    /// Those that are there, and how many operations use each.
    live: BTreeMap<u64, u32>,
    /// One is being made.
    making: bool,
}

/// The snapshots that there are; all clients share it, as applications do that tell each other.
#[derive(Clone, Debug, Default)]
pub struct Snaps(Arc<Mutex<BTreeMap<i64, OfPool>>>);

/// An operation uses a snapshot.
#[derive(Debug)]
pub struct Held {
    all: Snaps,
    pool: i64,
    pub snap: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(users) =
            self.all.lock().get_mut(&self.pool).and_then(|p| p.live.get_mut(&self.snap))
        {
            *users = users.saturating_sub(1);
        }
    }
}

/// Makes or removes a snapshot of a client's own.
pub fn order(fsid: Uuid, pool: i64, remove: Option<u64>) -> MPoolOp {
    let op = if remove.is_some() {
        pool_op::DELETE_UNMANAGED_SNAP
    } else {
        pool_op::CREATE_UNMANAGED_SNAP
    };
    let pool = u32::try_from(pool).unwrap_or_default();
    MPoolOp {
        version: 0,
        fsid,
        pool,
        op,
        snap: remove.unwrap_or_default(),
        name: String::new(),
        crush_rule: -1,
    }
}

impl Snaps {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, OfPool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context of a write to this pool now.
    pub fn context(&self, pool: i64) -> (u64, Vec<u64>) {
        self.lock()
            .get(&pool)
            .map_or((0, Vec::new()), |p| (p.seq, p.live.keys().rev().copied().collect()))
    }

    /// One that is there, to be used.
    pub fn hold(&self, pool: i64, rng: &mut Rng) -> Option<Held> {
        let mut all = self.lock();
        let live = &mut all.get_mut(&pool)?.live;
        let snap = rng.pick(&live.keys().copied().collect::<Vec<_>>()).copied()?;
        *live.get_mut(&snap)? += 1;
        Some(Held { all: self.clone(), pool, snap })
    }

    /// This one, to be used, if it is there.
    pub fn hold_this(&self, pool: i64, snap: u64) -> Option<Held> {
        *self.lock().get_mut(&pool)?.live.get_mut(&snap)? += 1;
        Some(Held { all: self.clone(), pool, snap })
    }

    /// Whoever asks may make one now, and says then what came of it.
    pub fn may_make(&self, pool: i64) -> bool {
        let mut all = self.lock();
        let p = all.entry(pool).or_default();
        let may = !p.making && p.live.len() < LIVE_MAX;
        p.making |= may;
        may
    }

    /// One was made, or not.
    ///
    /// # Errors
    /// If its number was given before.
    pub fn made(&self, pool: i64, snap: Option<u64>) -> Result<(), String> {
        let mut all = self.lock();
        let p = all.entry(pool).or_default();
        p.making = false;
        if let Some(snap) = snap {
            if snap <= p.seq {
                return Err(format!("pool {pool} was given snapshot {snap} after {}", p.seq));
            }
            p.seq = snap;
            p.made.push(snap);
            p.live.insert(snap, 0);
        }
        Ok(())
    }

    /// One that nobody uses, to be removed: it is not there any more from now on.
    pub fn remove_one(&self, pool: i64, rng: &mut Rng) -> Option<u64> {
        let mut all = self.lock();
        let live = &mut all.get_mut(&pool)?.live;
        let unused: Vec<u64> =
            live.iter().filter(|(_, users)| **users == 0).map(|(s, _)| *s).collect();
        let snap = rng.pick(&unused).copied()?;
        live.remove(&snap);
        Some(snap)
    }

    /// None is there any more. All that there ever were, by pool: a write that was long under way
    /// may have kept something for one that had been removed and forgotten meanwhile, which goes
    /// when that is removed once more.
    pub fn forget(&self) -> Vec<(i64, u64)> {
        let mut all = self.lock();
        all.values_mut().for_each(|p| p.live.clear());
        all.iter().flat_map(|(pool, p)| p.made.iter().map(|s| (*pool, *s))).collect()
    }

    /// Those that are there, by pool.
    pub fn live(&self) -> Vec<(i64, u64)> {
        self.lock().iter().flat_map(|(pool, p)| p.live.keys().map(|s| (*pool, *s))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: Kind, version: u64, context: u64) -> Change {
        Change {
            token: 100 + version,
            kind,
            omap: false,
            guard: Guard::None,
            result: 0,
            version,
            context,
        }
    }

    fn after(before: &Past, kind: Kind, version: u64, context: u64) -> Past {
        before.after(&change(kind, version, context), || Err("no source".into())).unwrap()
    }

    #[test]
    fn a_snapshot_shows_what_was_before_the_first_change_that_knew_of_it() {
        let one = after(&Past::default(), Kind::Append(1), 5, 0);
        let two = after(&one, Kind::Append(1), 6, 3);
        let three = after(&two, Kind::Delete, 7, 8);
        for (snap, is) in [(2, &one), (3, &one), (4, &two), (8, &two)] {
            assert_eq!(three.at(snap), is.head, "{snap}");
        }
        assert_eq!(three.at(9), None);
        // Somebody who knows less changes nothing of it, but may make it anew where nothing
        // remembers it.
        let late = after(&two, Kind::Full(2), 7, 2);
        assert_eq!((late.at(3), late.is_unsure(3)), (two.at(3), false));
        let anew = after(&three, Kind::Full(2), 8, 3);
        assert!(anew.is_unsure(4) && anew.is_unsure(8) && !anew.is_unsure(3) && !anew.is_unsure(9));
        assert!(after(&anew, Kind::Back(4), 9, 8).lost && !after(&anew, Kind::Back(3), 9, 8).lost);
        // Of what was made and deleted between two snapshots nothing is left.
        let short = after(&after(&Past::default(), Kind::Append(1), 5, 4), Kind::Delete, 6, 4);
        assert_eq!(short, Past::default());
    }

    #[test]
    fn what_is_deleted_may_have_the_version_of_its_deletion() {
        let one = after(&Past::default(), Kind::Append(1), 5, 0);
        let gone = after(&one, Kind::Delete, 7, 3);
        let guarded = |past: &Past, v, result| {
            let c = Change { guard: Guard::Version(v), result, ..change(Kind::Append(1), 9, 3) };
            past.after(&c, || Err(String::new()))
        };
        assert!(guarded(&gone, 7, 0).unwrap().head.is_some(), "it is there for its clone");
        for (v, result) in [
            (7, -errno::EOVERFLOW),
            (6, -errno::EOVERFLOW),
            (6, -errno::ERANGE),
            (8, -errno::EOVERFLOW),
        ] {
            assert_eq!(guarded(&gone, v, result).as_ref(), Ok(&gone), "{v} {result}");
        }
        for (v, result) in
            [(6, 0), (8, 0), (7, -errno::ERANGE), (8, -errno::ERANGE), (7, -errno::ECANCELED)]
        {
            assert!(guarded(&gone, v, result).is_err(), "{v} {result}");
        }
        // Of what left no clone there is nothing, and no version.
        let short = after(&after(&Past::default(), Kind::Append(1), 5, 4), Kind::Delete, 6, 4);
        assert!(guarded(&short, 6, 0).is_err() && guarded(&short, 6, -errno::EOVERFLOW).is_ok());
    }

    #[test]
    fn a_rollback_brings_it_back_under_a_new_version() {
        let one = after(&Past::default(), Kind::Append(1), 5, 0);
        let two = after(&one, Kind::Append(4), 6, 3);
        let back = after(&two, Kind::Back(3), 7, 3);
        let of = |c: &Content| c.as_ref().map(|o| o.known().0);
        assert_eq!((of(&back.head), back.head.as_ref().unwrap().version()), (of(&one.head), 7));
        assert_eq!(back.at(3), one.head);
        assert!(
            two.after(&change(Kind::Back(3), 6, 3), || Err(String::new())).is_err(),
            "versions grow"
        );
        // To what it is, under a new version all the same, and with what the context names.
        let same = after(&two, Kind::Back(4), 7, 9);
        assert_eq!(
            (of(&same.head), same.head.as_ref().unwrap().version(), same.seq),
            (of(&two.head), 7, 9)
        );
        assert!(two.after(&change(Kind::Back(4), 6, 9), || Err(String::new())).is_err());
        let gone = after(&after(&Past::default(), Kind::Append(1), 5, 3), Kind::Back(3), 6, 3);
        assert_eq!(gone.head, None);
    }

    #[test]
    fn snapshots_are_made_one_at_a_time_and_removed_when_nobody_uses_them() {
        let (all, mut rng) = (Snaps::default(), Rng::new(1));
        assert!(all.may_make(1) && !all.may_make(1) && all.may_make(2));
        all.made(1, Some(2)).unwrap();
        let held = all.hold(1, &mut rng).unwrap();
        assert_eq!(
            (held.snap, all.remove_one(1, &mut rng), all.context(1)),
            (2, None, (2, vec![2]))
        );
        drop(held);
        assert_eq!(
            (all.remove_one(1, &mut rng), all.context(1), all.live()),
            (Some(2), (2, vec![]), vec![])
        );
        assert!(all.may_make(1) && all.made(1, Some(2)).is_err(), "a number comes once");
    }
}
