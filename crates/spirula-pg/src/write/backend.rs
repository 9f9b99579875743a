//! From what a write does to objects to what each member is given of it.
//!
//! In a replicated pool all members get the same. In an erasure-coded one each gets its shard, and
//! beside it what keeps the shard as it was ([`crate::erasure`]): what must be read first, how
//! stripes are cut, what is kept to take a write back and when that goes is known there alone.

use crate::erasure::stripe::{Piece, Stripes};
use crate::erasure::{Shape, write as erasure};
use crate::exec::{Outcome, Pause, Stamped};
use crate::log::EntryKind;
use spirula_erasure::ErasureError;
use spirula_messages::cluster::write::{Given, Share};
use spirula_types::EVersion;
use spirula_types::transaction::{ObjectOp, ObjectUpdate};

/// How a pool keeps its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Every member has all of every object.
    Replicated,
    /// Every member has one shard of every object.
    Erasure(Shape),
}

/// What the members are given of a write.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// For each entry, what a member is given that gets its change.
    pub given: Vec<Given>,
    /// The updates of objects, in the order of the entries: for every member the same, or for each
    /// shard its own.
    updates: Vec<Vec<ObjectUpdate>>,
}

impl Parts {
    /// The same for all members.
    pub fn same(given: Vec<Given>, updates: Vec<ObjectUpdate>) -> Self {
        Self { given, updates: vec![updates] }
    }

    /// For each shard its own.
    pub fn by_shard(given: Vec<Given>, updates: Vec<Vec<ObjectUpdate>>) -> Self {
        Self { given, updates }
    }

    /// Do all members get the same?
    pub fn are_same(&self) -> bool {
        self.updates.len() <= 1
    }

    fn index(&self, shard: i8) -> usize {
        if self.are_same() { 0 } else { shard.max(0) as usize }
    }

    /// The updates for a member with this shard (-1 in a replicated pool).
    pub fn of(&self, shard: i8) -> &[ObjectUpdate] {
        self.updates.get(self.index(shard)).map_or(&[], Vec::as_slice)
    }

    /// Takes out the updates for a member with this shard.
    pub fn take(&mut self, shard: i8) -> Vec<ObjectUpdate> {
        let i = self.index(shard);
        self.updates.get_mut(i).map(std::mem::take).unwrap_or_default()
    }
}

/// How much of a change a member gets that gets it.
pub(crate) fn share_of(write: &Stamped) -> Share {
    match write.entry.kind {
        EntryKind::Nothing => Share::Entry,
        EntryKind::Delete => Share::Whole,
        EntryKind::Modify if write.entry.prior == EVersion::default() => Share::Whole,
        EntryKind::Modify if write.source.is_some() || write.ops.contains(&ObjectOp::Remove) => {
            Share::Whole
        }
        EntryKind::Modify => Share::Merged,
    }
}

impl Backend {
    /// What must still be read for a request, other than what the store's reader says: stripes of
    /// the object that it reads.
    pub fn lacks(self, outcome: &Result<Outcome, Pause>, pieces: &[Piece]) -> Option<Stripes> {
        match self {
            Self::Replicated => None,
            Self::Erasure(shape) => erasure::lacks(&shape, outcome, pieces),
        }
    }

    /// Cuts a write into what the members are given. `pieces`: what was read for it.
    ///
    /// # Errors
    /// [`ErasureError`] when the code cannot be computed: nothing is to be written.
    pub fn cut(self, writes: &mut [Stamped], pieces: &[Piece]) -> Result<Parts, ErasureError> {
        match self {
            Self::Replicated => Ok(whole(writes)),
            Self::Erasure(shape) => erasure::cut(&shape, writes, pieces),
        }
    }
}

/// Everything for everybody.
pub(crate) fn whole(writes: &mut [Stamped]) -> Parts {
    let given = writes.iter().map(|w| Given {
        share: share_of(w),
        updates: u32::from(w.entry.kind != EntryKind::Nothing),
    });
    let given = given.collect();
    let changed = writes.iter_mut().filter(|w| w.entry.kind != EntryKind::Nothing);
    let updates = changed
        .map(|w| ObjectUpdate { object: w.entry.object.clone(), ops: std::mem::take(&mut w.ops) })
        .collect();
    Parts::same(given, updates)
}
