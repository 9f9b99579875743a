//! Placement-group ids, log versions and request ids.

use crate::{EntityName, Epoch, PoolId};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::fmt;

/// A placement group: pool and seed (`2.1f`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgId {
    /// The pool.
    pub pool: PoolId,
    /// Number within the pool, below `pg_num`.
    pub seed: u32,
}

impl PgId {
    /// A PG of `pool`.
    pub fn new(pool: PoolId, seed: u32) -> Self {
        Self { pool, seed }
    }

    /// Parses `2.1f` (pool decimal, seed hexadecimal).
    pub fn parse(s: &str) -> Option<Self> {
        let (pool, seed) = s.split_once('.')?;
        Some(Self { pool: pool.parse().ok()?, seed: u32::from_str_radix(seed, 16).ok()? })
    }
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool, self.seed)
    }
}

impl Encode for PgId {
    fn encode(&self, out: &mut Encoder) {
        out.u8(1);
        out.i64(self.pool);
        out.u32(self.seed);
        out.i32(-1);
    }
}

impl Decode for PgId {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let v = d.u8()?;
        if v != 1 {
            return Err(DecodeError::Value { what: "pg_t version", value: i64::from(v) });
        }
        let pg = Self { pool: d.i64()?, seed: d.u32()? };
        d.i32()?;
        Ok(pg)
    }
}

/// A PG and, in erasure-coded pools, the shard (−1 in replicated ones).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpgId {
    /// The PG.
    pub pg: PgId,
    /// Position in the acting set, −1 for none.
    pub shard: i8,
}

impl Encode for SpgId {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.pg);
            o.u8(self.shard as u8);
        });
    }
}

impl Decode for SpgId {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("spg_t", 1, |d, _| Ok(Self { pg: d.get()?, shard: d.u8()? as i8 }))
    }
}

/// A position in a PG's log: the epoch it was written in, then the PG's counter.
/// Prints as `epoch'version`, as Ceph does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EVersion {
    /// Map epoch of the interval's primary when it was written.
    pub epoch: Epoch,
    /// The PG's counter, one per log entry.
    pub version: u64,
}

impl EVersion {
    /// `epoch'version`.
    pub fn new(epoch: Epoch, version: u64) -> Self {
        Self { epoch, version }
    }
}

impl fmt::Display for EVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'{}", self.epoch, self.version)
    }
}

impl Encode for EVersion {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.version);
        out.u32(self.epoch);
    }
}

impl Decode for EVersion {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let version = d.u64()?;
        Ok(Self { epoch: d.u32()?, version })
    }
}

/// Who asked for what: the key under which a resent request is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReqId {
    /// The session's entity (`client.4470`).
    pub name: EntityName,
    /// Transaction number within the client.
    pub tid: u64,
    /// The client's incarnation.
    pub inc: i32,
}

impl fmt::Display for ReqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}:{}", self.name, self.inc, self.tid)
    }
}

impl Encode for ReqId {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(2, 2, |o| {
            o.put(&self.name);
            o.u64(self.tid);
            o.i32(self.inc);
        });
    }
}

impl Decode for ReqId {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("osd_reqid_t", 2, |d, _| Ok(Self { name: d.get()?, tid: d.u64()?, inc: d.i32()? }))
    }
}
