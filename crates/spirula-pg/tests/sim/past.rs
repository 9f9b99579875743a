//! What an object is and was, as its users think of it: the model that histories with snapshots are
//! checked against.

use spirula_pg::exec::{SnapAt, SnapSet};
use std::collections::BTreeMap;

/// The tokens of an object; `None`: no object.
pub type Tokens = Option<Vec<u64>>;

/// An object with its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    pub head: Tokens,
    /// The newest snapshot that a change knew of.
    pub seq: u64,
    /// What it was at those.
    pub was: BTreeMap<u64, Tokens>,
}

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Append(Option<u64>),
    Delete,
    /// Rolled back to a snapshot.
    Back(u64),
}

/// What somebody saw.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Of the head, or at a snapshot.
    At(Option<u64>, Tokens),
    /// At a snapshot that was removed, in the end: it may show anything.
    Gone,
    /// What is stored in the end, and the snapshots that there are then.
    All(Past, Vec<u64>),
}

impl Past {
    /// What a snapshot shows.
    pub fn at(&self, snap: u64) -> Tokens {
        if snap > self.seq { self.head.clone() } else { self.was.get(&snap).cloned().flatten() }
    }

    /// After a change by somebody who knows of these snapshots, and of so many that ever were.
    pub fn after(&self, change: Change, seq: u64, context: &[u64]) -> Self {
        let head = match change {
            Change::Append(token) => {
                Some(self.head.iter().flatten().copied().chain(token).collect())
            }
            Change::Delete => None,
            Change::Back(snap) => self.at(snap),
        };
        // What is not there and stays so is not changed under a context, either.
        if head.is_none() && self.head.is_none() {
            return self.clone();
        }
        let mut next = Self { head, ..self.clone() };
        for snap in context.iter().filter(|s| **s > self.seq) {
            next.was.insert(*snap, self.head.clone());
        }
        next.seq = self.seq.max(seq);
        if next.head.is_none() && next.was.values().all(Option::is_none) {
            return Self::default(); // Nothing is left of it.
        }
        next
    }

    /// Can somebody have seen that of this?
    pub fn fits(&self, seen: &Seen) -> bool {
        match seen {
            Seen::At(None, tokens) => *tokens == self.head,
            Seen::At(Some(snap), tokens) => *tokens == self.at(*snap),
            Seen::Gone => true,
            Seen::All(all, snaps) => {
                all.head == self.head && snaps.iter().all(|s| all.at(*s) == self.at(*s))
            }
        }
    }

    /// As it is stored; `clone` gives the tokens of a clone.
    pub fn stored(
        head: Tokens,
        set: &SnapSet,
        snaps: &[u64],
        clone: impl Fn(u64) -> Tokens,
    ) -> Self {
        let of = |snap: u64| match set.at(snap) {
            SnapAt::Clone(id) => clone(id),
            SnapAt::Head | SnapAt::Nothing => None,
        };
        let was = snaps.iter().filter(|s| **s <= set.seq).map(|s| (*s, of(*s))).collect();
        Self { head, seq: set.seq, was }
    }
}
