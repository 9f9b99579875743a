//! Snapshots: what a write under a snapshot context does, what a snapshot shows.
//!
//! # What is stored
//! An object is a *head*, which clients write, and *clones*, which never change: each is what the
//! head was when the first write after a snapshot came. A clone is an object of its own, in the
//! log, in missing sets and in listings, with the name of the head and a snapshot's id. The head's
//! [`SnapSet`] says which clones there are, which snapshots each serves, and which bytes it shares
//! with the next newer one (or with the head); so all that changes it is a write of the head, and a
//! clone never goes or comes without one. While there are clones the head stays: deleted, it is a
//! *whiteout*.
//!
//! | file | subject |
//! |---|---|
//! | `set` | the history of one object: which clone shows a snapshot, what is shared; pure |
//! | `plan` | what a vector of ops becomes when there are snapshots: clone, head, or a whiteout; pure |
//! | `trim` | what removed snapshots kept goes; **why nothing else does, and nothing stays** |
//! | `access` | what of an object a request uses beside its head; which of it must be recovered first |
//!
//! # Why a snapshot shows what it was taken of
//! A client that takes a snapshot has its id from the monitors before it names it in a context, and
//! what it wrote before it wrote under an older one. So the first write that names a snapshot newer
//! than the object's newest context finds the object as it was when the snapshot was taken; it
//! plans the clone and its own change as one write, all of it or nothing, the clone first. The
//! clone's id is the context's `seq`, and it serves every snapshot of the context that is newer
//! than what the object knew. A context that is older than the object's makes no clone: what it
//! would show is gone, or is a clone already.
//!
//! # Why no member makes a clone of something else
//! A clone is made by each member from its own head (by reference, no data is copied). One that
//! lacks the head, or whose head is bad, does not get the clone, either: it is noted as lacking
//! both (`Lead::commit`, and at the member `write::member`). The same holds for a head that is
//! rolled back to a clone.

mod access;
mod plan;
pub(crate) mod set;
pub(crate) mod trim;

pub(crate) use access::{clones_used, shown};
pub use set::At;

use spirula_maps::SnapIntervals;
use spirula_types::SNAP_HEAD;
use std::sync::Arc;

#[cfg(doc)]
use crate::exec::SnapSet;

/// The snapshots that a write must leave as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapContext {
    /// The newest snapshot there was when the write was made.
    pub seq: u64,
    /// Those that exist, newest first.
    pub snaps: Vec<u64>,
}

impl SnapContext {
    /// Does it mean anything: descending, none newer than `seq`, none zero, and `seq` a snapshot's
    /// number?
    pub fn is_valid(&self) -> bool {
        // A clone with the head's number would be the head itself; beyond is only the snapshot
        // directory.
        if self.seq >= SNAP_HEAD {
            return false;
        }
        let descending = self.snaps.windows(2).all(|w| w.first() > w.last());
        descending
            && self.snaps.first().is_none_or(|s| *s <= self.seq)
            && self.snaps.last() != Some(&0)
    }

    /// Without those that were removed since.
    pub fn without(mut self, removed: &SnapIntervals) -> Self {
        if !removed.is_empty() {
            self.snaps.retain(|s| !removed.contains(*s));
        }
        self
    }
}

/// What a PG must know of its pool's snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSnaps {
    /// The context of every write, where snapshots are the pool's and not its clients'.
    pub context: Option<SnapContext>,
    /// Removed, and not trimmed everywhere yet. One set as long as it stays the same, so that a PG
    /// sees by its address that nothing has changed.
    pub removed: Arc<SnapIntervals>,
}

impl PoolSnaps {
    /// The context of a write: the pool's, unless the client insists on its own.
    pub fn context_of(&self, told: SnapContext, insists: bool) -> SnapContext {
        match &self.context {
            Some(pools) if !insists => pools.clone(),
            _ => told.without(&self.removed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_types::SNAP_DIR;

    fn context(seq: u64, snaps: &[u64]) -> SnapContext {
        SnapContext { seq, snaps: snaps.to_vec() }
    }

    #[test]
    fn a_context_descends_and_names_nothing_newer_than_itself() {
        for good in [context(0, &[]), context(1, &[]), context(3, &[3, 2]), context(9, &[4])] {
            assert!(good.is_valid(), "{good:?}");
        }
        for bad in [
            context(0, &[0]),
            context(2, &[3]),
            context(3, &[2, 3]),
            context(3, &[3, 3]),
            context(3, &[1, 0]),
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
        // The largest number is the one below the head's, as in Ceph.
        assert!(context(SNAP_HEAD - 1, &[SNAP_HEAD - 1]).is_valid());
        for seq in [SNAP_HEAD, SNAP_DIR] {
            assert!(!context(seq, &[1]).is_valid() && !context(seq, &[seq]).is_valid(), "{seq:x}");
        }
    }

    #[test]
    fn a_pools_snapshots_count_unless_the_client_insists_and_removed_ones_never() {
        let removed = Arc::new(SnapIntervals::one(2));
        let own = PoolSnaps { context: None, removed: removed.clone() };
        assert_eq!(own.context_of(context(3, &[3, 2, 1]), false), context(3, &[3, 1]));
        let pools = PoolSnaps { context: Some(context(7, &[7, 5])), removed };
        assert_eq!(pools.context_of(context(0, &[]), false), context(7, &[7, 5]));
        assert_eq!(pools.context_of(context(3, &[3, 2]), true), context(3, &[3]));
    }
}
