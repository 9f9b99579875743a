//! What members send each other ([`Frame`]): messages of the `raft` library and pieces of
//! snapshots, in our own encoding.

use crate::types::{Entry, Members};
use bytes::Bytes;
use raft::eraftpb::{self, MessageType};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};

use crate::log::{from_raft, to_raft};

/// Largest frame, in bytes: a batch of entries, or one chunk of a snapshot.
pub const FRAME_MAX: usize = 16 << 20;

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    /// A message of the library, except snapshots.
    Raft(eraftpb::Message),
    /// A piece of a snapshot.
    Chunk(Chunk),
    /// The receiver has everything before `offset` of the snapshot at `index`.
    ChunkAck { index: u64, offset: u64 },
}

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The leader's term.
    pub leader_term: u64,
    /// The snapshot's last entry.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Who belonged then.
    pub members: Members,
    /// Bytes in all.
    pub total: u64,
    /// Where this piece starts.
    pub offset: u64,
    /// The piece.
    pub data: Bytes,
}

/// Types that travel, with their numbers in our encoding. Proposals, transfers and local ones
/// do not.
const TYPES: &[(u8, MessageType)] = &[
    (1, MessageType::MsgAppend),
    (2, MessageType::MsgAppendResponse),
    (3, MessageType::MsgRequestVote),
    (4, MessageType::MsgRequestVoteResponse),
    (5, MessageType::MsgHeartbeat),
    (6, MessageType::MsgHeartbeatResponse),
    (7, MessageType::MsgReadIndex),
    (8, MessageType::MsgReadIndexResp),
    (9, MessageType::MsgRequestPreVote),
    (10, MessageType::MsgRequestPreVoteResponse),
];

/// True if messages of this type are sent to other members.
pub(crate) fn travels(t: MessageType) -> bool {
    TYPES.iter().any(|(_, known)| *known == t)
}

impl Encode for Frame {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| match self {
            Self::Raft(m) => {
                o.u8(0);
                o.u8(TYPES.iter().find(|(_, t)| *t == m.msg_type).map_or(0, |(n, _)| *n));
                for v in [
                    m.to,
                    m.from,
                    m.term,
                    m.log_term,
                    m.index,
                    m.commit,
                    m.commit_term,
                    m.reject_hint,
                ] {
                    o.u64(v);
                }
                o.bool(m.reject);
                o.blob(&m.context);
                let entries: Vec<Entry> = m.entries.iter().map(from_raft).collect();
                o.list(&entries, |o, e| o.put(e));
            }
            Self::Chunk(c) => {
                o.u8(1);
                for v in [c.leader_term, c.index, c.term, c.total, c.offset] {
                    o.u64(v);
                }
                o.put(&c.members);
                o.blob(&c.data);
            }
            Self::ChunkAck { index, offset } => {
                o.u8(2);
                o.u64(*index);
                o.u64(*offset);
            }
        });
    }
}

impl Decode for Frame {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("quorum frame", 1, |d, _| match d.u8()? {
            0 => {
                let kind = d.u8()?;
                let known = TYPES.iter().find(|(n, _)| *n == kind);
                let msg_type = known
                    .ok_or(DecodeError::Value {
                        what: "type of quorum message",
                        value: i64::from(kind),
                    })?
                    .1;
                let mut m = eraftpb::Message { msg_type, ..Default::default() };
                for slot in [
                    &mut m.to,
                    &mut m.from,
                    &mut m.term,
                    &mut m.log_term,
                    &mut m.index,
                    &mut m.commit,
                    &mut m.commit_term,
                    &mut m.reject_hint,
                ] {
                    *slot = d.u64()?;
                }
                m.reject = d.bool()?;
                m.context = d.bytes()?;
                let read_index =
                    matches!(msg_type, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp);
                let entries: Vec<Entry> = d.list(21, Decoder::get)?;
                if read_index != (entries.len() == 1) && msg_type != MessageType::MsgAppend {
                    return Err(DecodeError::Value {
                        what: "entries of quorum message",
                        value: entries.len() as i64,
                    });
                }
                m.entries = entries.iter().map(to_raft).collect();
                Ok(Self::Raft(m))
            }
            1 => {
                let (leader_term, index, term, total, offset) =
                    (d.u64()?, d.u64()?, d.u64()?, d.u64()?, d.u64()?);
                Ok(Self::Chunk(Chunk {
                    leader_term,
                    index,
                    term,
                    members: d.get()?,
                    total,
                    offset,
                    data: d.bytes()?,
                }))
            }
            2 => Ok(Self::ChunkAck { index: d.u64()?, offset: d.u64()? }),
            v => Err(DecodeError::Value { what: "kind of quorum frame", value: i64::from(v) }),
        })
    }
}
