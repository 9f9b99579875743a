//! The agreed log in the form in which the `raft` library reads it ([`raft::Storage`]): in memory,
//! as of what was handed out to be stored, and not only as of what is durable. Entries are kept
//! here in the library's types; those that are stored and sent have types of our own
//! ([`crate::types`]).

use crate::types::{ConfigChange, Entry, EntryKind, HardState, Members, Snapshot};
use raft::eraftpb::{self, ConfChange, ConfChangeType, ConfState, EntryType};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use spirula_encoding::DecodeError;
use std::cell::Cell;
use std::collections::VecDeque;

/// Entries kept in memory behind a snapshot, so that a member that was away for a moment does
/// not need the whole state.
const KEEP_BEHIND: u64 = 500;
/// Bytes of those entries, at most; all but the newest go first.
const KEEP_BYTES: u64 = 8 << 20;

/// The library's form of an entry. Its own form of a membership change is never read back: ours
/// is carried in the entry's context.
pub(crate) fn to_raft(e: &Entry) -> eraftpb::Entry {
    let mut out = eraftpb::Entry { index: e.index, term: e.term, ..Default::default() };
    match e.kind {
        EntryKind::Normal => out.data = e.data.clone(),
        EntryKind::Config => {
            out.entry_type = EntryType::EntryConfChange;
            out.context = e.data.clone();
        }
    }
    out
}

/// Our form of an entry.
pub(crate) fn from_raft(e: &eraftpb::Entry) -> Entry {
    let (kind, data) = match e.entry_type {
        EntryType::EntryNormal => (EntryKind::Normal, e.data.clone()),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
            (EntryKind::Config, e.context.clone())
        }
    };
    Entry { index: e.index, term: e.term, kind, data }
}

/// The library's form of a change.
pub(crate) fn change_to_raft(c: ConfigChange) -> ConfChange {
    let (change_type, node_id) = match c {
        ConfigChange::AddLearner(id) => (ConfChangeType::AddLearnerNode, id),
        ConfigChange::AddVoter(id) => (ConfChangeType::AddNode, id),
        ConfigChange::Remove(id) => (ConfChangeType::RemoveNode, id),
    };
    ConfChange { change_type, node_id, ..Default::default() }
}

/// The change an entry holds.
///
/// # Errors
/// When its bytes are none.
pub(crate) fn change_of(e: &Entry) -> Result<ConfigChange, DecodeError> {
    spirula_encoding::from_slice(&e.data)
}

pub(crate) fn conf_state(m: &Members) -> ConfState {
    ConfState {
        voters: m.voters.iter().copied().collect(),
        learners: m.learners.iter().copied().collect(),
        ..Default::default()
    }
}

pub(crate) fn members_of(c: &ConfState) -> Members {
    Members {
        voters: c.voters.iter().copied().collect(),
        learners: c.learners.iter().copied().collect(),
    }
}

/// Snapshot, entries behind it, hard state.
#[derive(Debug)]
pub(crate) struct Log {
    snapshot: Snapshot,
    hard: HardState,
    /// Index of the first entry in `entries`; the one before it is known by its term only.
    first: u64,
    before: u64,
    entries: VecDeque<eraftpb::Entry>,
    /// Bytes of entries ever appended, and as of the snapshot.
    bytes: u64,
    bytes_in_snapshot: u64,
    /// Somebody needs a snapshot that knows him.
    wanted: Cell<bool>,
}

impl Log {
    /// What a store held.
    pub fn new(hard: HardState, snapshot: Snapshot, entries: &[Entry]) -> Self {
        let (first, before) = (snapshot.index + 1, snapshot.term);
        let bytes = entries.iter().map(|e| e.data.len() as u64).sum();
        Self {
            snapshot,
            hard,
            first,
            before,
            entries: entries.iter().map(to_raft).collect(),
            bytes,
            bytes_in_snapshot: 0,
            wanted: Cell::new(false),
        }
    }

    /// True if a member waits for a newer snapshot than there is.
    pub fn snapshot_wanted(&self) -> bool {
        self.wanted.get()
    }

    pub fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        if index + 1 == self.first {
            return Some(self.before);
        }
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.entries.get(at).map(|e| e.term)
    }

    /// Adds entries; those from the first one's index on are replaced.
    pub fn append(&mut self, entries: &[eraftpb::Entry]) {
        let Some(from) = entries.first().map(|e| e.index) else { return };
        assert!(from >= self.first && from <= self.last() + 1, "entries leave a gap in the log");
        self.entries.truncate((from - self.first) as usize);
        self.bytes += entries.iter().map(|e| e.data.len() as u64).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Takes a leader's snapshot in place of everything.
    pub fn install(&mut self, snapshot: Snapshot) {
        (self.first, self.before) = (snapshot.index + 1, snapshot.term);
        self.entries.clear();
        self.snapshot = snapshot;
        self.bytes_in_snapshot = self.bytes;
    }

    /// Puts an own snapshot in place of the entries up to its index.
    pub fn compact(&mut self, snapshot: Snapshot) {
        let keep_from = (snapshot.index + 1).saturating_sub(KEEP_BEHIND).max(self.first);
        let of = |e: &eraftpb::Entry| e.data.len() as u64;
        let mut behind: u64 =
            self.entries.iter().filter(|e| e.index <= snapshot.index).map(of).sum();
        while self.first < keep_from || behind > KEEP_BYTES && self.first <= snapshot.index {
            let Some(gone) = self.entries.pop_front() else { break };
            behind = behind.saturating_sub(of(&gone));
            (self.first, self.before) = (gone.index + 1, gone.term);
        }
        self.snapshot = snapshot;
        self.bytes_in_snapshot = self.bytes;
        self.wanted.set(false);
    }

    /// Entries behind the snapshot.
    pub fn behind_snapshot(&self) -> Vec<Entry> {
        self.entries.iter().filter(|e| e.index > self.snapshot.index).map(from_raft).collect()
    }

    /// Number of entries behind the snapshot, and their bytes.
    pub fn weight(&self) -> (u64, u64) {
        (
            self.last().saturating_sub(self.snapshot.index),
            self.bytes.saturating_sub(self.bytes_in_snapshot),
        )
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard = eraftpb::HardState {
            term: self.hard.term,
            vote: self.hard.vote,
            commit: self.hard.commit.max(self.snapshot.index),
            ..Default::default()
        };
        // A member that has nothing yet must look like one to the library.
        let hard = if self.hard == HardState::default() && self.snapshot.index == 0 {
            Default::default()
        } else {
            hard
        };
        Ok(RaftState::new(hard, conf_state(&self.snapshot.members)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < self.first {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let range = (low - self.first) as usize..(high.max(low) - self.first) as usize;
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0u64;
        let fits = |e: &&eraftpb::Entry| {
            let first = size == 0;
            size += e.data.len() as u64 + 32;
            first || size <= limit
        };
        Ok(self.entries.range(range).take_while(fits).cloned().collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let why =
            if index < self.first { StorageError::Compacted } else { StorageError::Unavailable };
        self.term_of(index).ok_or(raft::Error::Store(why))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        // One that was made before its receiver belonged would be refused by it.
        if self.snapshot.index < request_index || !self.snapshot.members.contains(to) {
            self.wanted.set(true);
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        // The data travels beside the library, in chunks.
        let mut out = eraftpb::Snapshot::default();
        let meta = out.mut_metadata();
        (meta.index, meta.term) = (self.snapshot.index, self.snapshot.term);
        meta.set_conf_state(conf_state(&self.snapshot.members));
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept for members that were away for a moment has a bound in bytes, too.
    #[test]
    fn large_entries_are_not_kept_behind_a_snapshot() {
        let entry = |index| Entry {
            index,
            term: 2,
            kind: EntryKind::Normal,
            data: vec![7; 1 << 20].into(),
        };
        let all: Vec<Entry> = (2..=100).map(entry).collect();
        let first =
            Snapshot { index: 1, term: 1, members: Members::default(), data: Default::default() };
        let mut log = Log::new(HardState::default(), first, &all);
        log.compact(Snapshot {
            index: 90,
            term: 2,
            members: Members::default(),
            data: Default::default(),
        });
        // Eight behind the snapshot, and all after it.
        assert_eq!((log.term_of(82), log.term_of(81)), (Some(2), None));
        assert_eq!((log.last(), log.behind_snapshot().len()), (100, 10));
    }
}
