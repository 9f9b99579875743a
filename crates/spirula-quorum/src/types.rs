//! What is agreed on and what is kept, in our own words and encoding.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::collections::BTreeSet;

/// A member for as long as it keeps its disk; never 0, never used again.
pub type MemberId = u64;

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Bytes of the user's; empty ones are the library's own.
    Normal,
    /// An encoded [`ConfigChange`].
    Config,
}

/// One entry of the agreed log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place, from 1.
    pub index: u64,
    /// The term it was proposed in.
    pub term: u64,
    /// What `data` is.
    pub kind: EntryKind,
    /// What was proposed.
    pub data: Bytes,
}

/// What a member must not forget besides the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Newest term seen.
    pub term: u64,
    /// Whom it voted for in it; 0 for nobody.
    pub vote: MemberId,
    /// An index known to be committed; the truth may be further.
    pub commit: u64,
}

/// Who belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Members whose majority decides.
    pub voters: BTreeSet<MemberId>,
    /// Members that only listen, until they have caught up.
    pub learners: BTreeSet<MemberId>,
}

impl Members {
    /// True for a voter or learner.
    pub fn contains(&self, id: MemberId) -> bool {
        self.voters.contains(&id) || self.learners.contains(&id)
    }
}

/// The state after an index, in place of the entries up to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry it holds.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Who belonged then.
    pub members: Members,
    /// The user's state.
    pub data: Bytes,
}

/// A change of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// A new member listens.
    AddLearner(MemberId),
    /// A member votes from now on.
    AddVoter(MemberId),
    /// A member is gone for good.
    Remove(MemberId),
}

/// What a member is at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Listens to a leader, or waits for one.
    #[default]
    Follower,
    /// Asks for votes.
    Candidate,
    /// Decides the order.
    Leader,
}

/// Role, leader and term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Of this member.
    pub role: Role,
    /// Whom it takes for the leader.
    pub leader: Option<MemberId>,
    /// Newest term it knows.
    pub term: u64,
}

impl Encode for Entry {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.index);
        out.u64(self.term);
        out.u8(match self.kind {
            EntryKind::Normal => 0,
            EntryKind::Config => 1,
        });
        out.blob(&self.data);
    }
}

impl Decode for Entry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (index, term) = (d.u64()?, d.u64()?);
        let kind = match d.u8()? {
            0 => EntryKind::Normal,
            1 => EntryKind::Config,
            v => return Err(DecodeError::Value { what: "kind of log entry", value: i64::from(v) }),
        };
        Ok(Self { index, term, kind, data: d.bytes()? })
    }
}

impl Encode for HardState {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.term);
        out.u64(self.vote);
        out.u64(self.commit);
    }
}

impl Decode for HardState {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { term: d.u64()?, vote: d.u64()?, commit: d.u64()? })
    }
}

impl Encode for Members {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.voters);
        out.put(&self.learners);
    }
}

impl Decode for Members {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { voters: d.get()?, learners: d.get()? })
    }
}

impl Encode for Snapshot {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.index);
        out.u64(self.term);
        out.put(&self.members);
        out.blob(&self.data);
    }
}

impl Decode for Snapshot {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { index: d.u64()?, term: d.u64()?, members: d.get()?, data: d.bytes()? })
    }
}

impl Encode for ConfigChange {
    fn encode(&self, out: &mut Encoder) {
        let (kind, id) = match *self {
            Self::AddLearner(id) => (0, id),
            Self::AddVoter(id) => (1, id),
            Self::Remove(id) => (2, id),
        };
        out.u8(kind);
        out.u64(id);
    }
}

impl Decode for ConfigChange {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (kind, id) = (d.u8()?, d.u64()?);
        match (kind, id) {
            (_, 0) => Err(DecodeError::Value { what: "member id", value: 0 }),
            (0, _) => Ok(Self::AddLearner(id)),
            (1, _) => Ok(Self::AddVoter(id)),
            (2, _) => Ok(Self::Remove(id)),
            (v, _) => {
                Err(DecodeError::Value { what: "kind of membership change", value: i64::from(v) })
            }
        }
    }
}
