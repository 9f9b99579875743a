//! Snapshots on their way: one chunk at a time, each acknowledged.

use crate::frame::Chunk;
use crate::types::{MemberId, Snapshot};
use bytes::Bytes;

/// Bytes in one chunk.
const CHUNK: usize = 256 << 10;
/// Largest snapshot that is taken in, in bytes.
pub const SNAPSHOT_MAX: u64 = 1 << 30;
/// Ticks after which an unanswered chunk is sent again.
const AGAIN: u64 = 5;
/// Ticks without progress after which the transfer is given up.
const GIVE_UP: u64 = 40;

/// A snapshot being sent to one member.
#[derive(Debug)]
pub(crate) struct Outgoing {
    snapshot: Snapshot,
    leader_term: u64,
    offset: u64,
    sent_at: u64,
    progress_at: u64,
}

/// What is to be done about a transfer.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// Send this.
    Chunk(Chunk),
    /// Everything arrived.
    Done,
    /// Nothing now.
    Wait,
    /// The other end does not answer.
    Failed,
}

impl Outgoing {
    pub fn new(snapshot: Snapshot, leader_term: u64, now: u64) -> Self {
        Self { snapshot, leader_term, offset: 0, sent_at: now, progress_at: now }
    }

    pub fn index(&self) -> u64 {
        self.snapshot.index
    }

    pub fn chunk(&self) -> Chunk {
        let from = (self.offset as usize).min(self.snapshot.data.len());
        let to = (from + CHUNK).min(self.snapshot.data.len());
        Chunk {
            leader_term: self.leader_term,
            index: self.snapshot.index,
            term: self.snapshot.term,
            members: self.snapshot.members.clone(),
            total: self.snapshot.data.len() as u64,
            offset: self.offset,
            data: self.snapshot.data.slice(from..to),
        }
    }

    pub fn acked(&mut self, offset: u64, now: u64) -> Next {
        let total = self.snapshot.data.len() as u64;
        if offset == total && (offset > self.offset || total == 0) {
            return Next::Done;
        }
        if offset == self.offset || offset > total {
            return Next::Wait;
        }
        // Behind what was sent: the receiver started over.
        (self.offset, self.sent_at, self.progress_at) = (offset, now, now);
        Next::Chunk(self.chunk())
    }

    pub fn tick(&mut self, now: u64) -> Next {
        if now >= self.progress_at + GIVE_UP {
            return Next::Failed;
        }
        if now >= self.sent_at + AGAIN {
            self.sent_at = now;
            return Next::Chunk(self.chunk());
        }
        Next::Wait
    }
}

/// A snapshot being received.
#[derive(Debug)]
pub(crate) struct Incoming {
    from: MemberId,
    index: u64,
    term: u64,
    total: u64,
    data: Vec<u8>,
}

/// Takes a chunk in of a snapshot of at most `most` bytes. Answers with what to acknowledge, if
/// anything, and the snapshot if it is complete.
pub(crate) fn take(
    slot: &mut Option<Incoming>,
    from: MemberId,
    c: &Chunk,
    most: u64,
) -> (Option<u64>, Option<Snapshot>) {
    if c.total > most || c.offset > c.total || c.data.len() as u64 > c.total - c.offset {
        return (None, None);
    }
    let same =
        |i: &Incoming| (i.from, i.index, i.term, i.total) == (from, c.index, c.term, c.total);
    if slot.as_ref().is_none_or(|i| !same(i)) {
        *slot =
            Some(Incoming { from, index: c.index, term: c.term, total: c.total, data: Vec::new() });
    }
    let Some(i) = slot.as_mut() else { return (None, None) };
    if i.data.len() as u64 == c.offset {
        i.data.extend_from_slice(&c.data);
    }
    let have = i.data.len() as u64;
    if have < c.total {
        return (Some(have), None);
    }
    let data: Bytes = std::mem::take(&mut i.data).into();
    *slot = None;
    (Some(have), Some(Snapshot { index: c.index, term: c.term, members: c.members.clone(), data }))
}
