//! The cluster log. Source: golden MLog frames (`tests/data/vectors`).

use super::{get_paxos, kind, put_paxos};
use crate::Body;
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{AddrVec, EntityName, Uuid};

/// Severities of [`LogEntry`].
pub mod severity {
    /// Debug.
    pub const DEBUG: u16 = 0;
    /// Informational.
    pub const INFO: u16 = 1;
    /// Security.
    pub const SECURITY: u16 = 2;
    /// Warning.
    pub const WARN: u16 = 3;
    /// Error.
    pub const ERROR: u16 = 4;
}

/// One line of the cluster log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Kind of the speaker as in [`spirula_types::EntityType`].
    pub name_kind: u32,
    /// Id of the speaker (`a`, `x`, `0`).
    pub name_id: String,
    /// The speaker's number.
    pub rank: EntityName,
    /// The speaker's addresses.
    pub addrs: AddrVec,
    /// When.
    pub stamp: UTime,
    /// Number within the speaker.
    pub seq: u64,
    /// One of [`severity`].
    pub severity: u16,
    /// Text.
    pub message: String,
    /// `cluster` or `audit`.
    pub channel: String,
}

impl Encode for LogEntry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(5, 5, |o| {
            o.u32(self.name_kind);
            o.str(&self.name_id);
            o.put(&self.rank);
            o.put(&self.addrs);
            o.put(&self.stamp);
            o.u64(self.seq);
            o.u16(self.severity);
            o.str(&self.message);
            o.str(&self.channel);
        });
    }
}

impl Decode for LogEntry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("LogEntry", 5, |d, v| {
            if v < 5 {
                return Err(DecodeError::TooOld { what: "LogEntry", version: v, oldest: 5 });
            }
            Ok(Self {
                name_kind: d.u32()?,
                name_id: d.get()?,
                rank: d.get()?,
                addrs: d.get()?,
                stamp: d.get()?,
                seq: d.u64()?,
                severity: d.u16()?,
                message: d.get()?,
                channel: d.get()?,
            })
        })
    }
}

/// Log entries (52): from daemons to a monitor, and from it to subscribers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MLog {
    /// Version of the log, from a monitor.
    pub version: u64,
    /// The cluster.
    pub fsid: Uuid,
    /// The lines.
    pub entries: Vec<LogEntry>,
}

impl Body for MLog {
    const KIND: u16 = kind::LOG;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::new();
        put_paxos(&mut o, self.version);
        o.put(&self.fsid);
        o.put(&self.entries);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self { version: get_paxos(d)?, fsid: d.get()?, entries: d.list(54, LogEntry::decode)? })
    }
}

/// The monitor has the entries up to `last` (53).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MLogAck {
    /// The cluster.
    pub fsid: Uuid,
    /// Sequence of the last entry taken.
    pub last: u64,
    /// Channel, empty in practice.
    pub channel: String,
}

impl Body for MLogAck {
    const KIND: u16 = kind::LOG_ACK;
    const VERSION: u16 = 1;
    const COMPAT: u16 = 1;
    const PRIORITY: u16 = kind::PRIORITY_MON;

    fn segments(&self) -> (Vec<u8>, Bytes) {
        let mut o = Encoder::with_capacity(32);
        o.put(&self.fsid);
        o.u64(self.last);
        o.str(&self.channel);
        (o.into_vec(), Bytes::new())
    }

    fn read(_: u16, front: &Bytes, _: &Bytes) -> Result<Self, DecodeError> {
        let d = &mut Decoder::new(front);
        Ok(Self {
            fsid: d.get()?,
            last: d.u64()?,
            channel: if d.is_empty() { String::new() } else { d.get()? },
        })
    }
}
