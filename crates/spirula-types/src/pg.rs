//! Placement-group ids, log versions and request ids.

use crate::{EntityName, Epoch, OSD_NONE, OsdId, PoolId};
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

impl SpgId {
    /// A PG of a replicated pool.
    pub fn whole(pg: PgId) -> Self {
        Self { pg, shard: -1 }
    }

    /// Parses `2.1f` and `2.1fs0`.
    pub fn parse(s: &str) -> Option<Self> {
        match s.split_once('s') {
            Some((pg, shard)) => {
                Some(Self { pg: PgId::parse(pg)?, shard: shard.parse().ok().filter(|s| *s >= 0)? })
            }
            None => PgId::parse(s).map(Self::whole),
        }
    }

    /// The shard `shard` of a PG.
    pub fn new(pg: PgId, shard: i8) -> Self {
        Self { pg, shard }
    }
}

impl fmt::Display for SpgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pg)?;
        if self.shard >= 0 { write!(f, "s{}", self.shard) } else { Ok(()) }
    }
}

/// A member of a PG: an OSD, and in erasure-coded pools which shard it holds (Ceph's
/// `pg_shard_t`). One OSD may hold several shards of a PG at a time.
///
/// Written as one number, an OSD's own for a replicated pool, so that formats made before there
/// were shards stay as they are; hence OSD numbers end at [`Peer::OSD_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The OSD; −1 for none.
    pub osd: OsdId,
    /// The shard; −1 in replicated pools.
    pub shard: i8,
}

impl Peer {
    /// Nobody.
    pub const NONE: Self = Self { osd: -1, shard: -1 };
    /// The largest OSD number that can be a member with a shard.
    pub const OSD_MAX: OsdId = (1 << 24) - 1;

    /// A member with a shard; −1 for none.
    pub fn new(osd: OsdId, shard: i8) -> Self {
        Self { osd, shard }
    }

    /// A member of a PG in a replicated pool.
    pub fn whole(osd: OsdId) -> Self {
        Self { osd, shard: -1 }
    }

    /// Is it somebody?
    pub fn is_some(self) -> bool {
        self.osd >= 0
    }

    /// The members of a set as a map gives it: by position where positions count
    /// ([`OSD_NONE`] for a hole), else in order.
    pub fn members(set: &[OsdId], erasure: bool) -> Vec<Self> {
        let all = set.iter().enumerate().filter(|(_, o)| **o != OSD_NONE);
        all.map(|(i, o)| if erasure { Self::new(*o, i as i8) } else { Self::whole(*o) }).collect()
    }

    /// A set as a map holds it; `size` places in an erasure-coded pool, with holes.
    pub fn places(members: &[Self], size: usize) -> Vec<OsdId> {
        if members.iter().all(|m| m.shard < 0) {
            return members.iter().map(|m| m.osd).collect();
        }
        let mut places = vec![OSD_NONE; size];
        for m in members {
            if let Some(p) = usize::try_from(m.shard).ok().and_then(|i| places.get_mut(i)) {
                *p = m.osd;
            }
        }
        places
    }
}

impl Default for Peer {
    /// Nobody.
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.osd)?;
        if self.shard >= 0 { write!(f, "({})", self.shard) } else { Ok(()) }
    }
}

impl Encode for Peer {
    fn encode(&self, out: &mut Encoder) {
        let shard = if self.osd < 0 { 0 } else { i32::from(self.shard) + 1 };
        out.i32(self.osd | (shard << 24));
    }
}

impl Decode for Peer {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let v = d.i32()?;
        Ok(if v < 0 { Self::NONE } else { Self::new(v & Self::OSD_MAX, (v >> 24) as i8 - 1) })
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
        d.versioned("osd_reqid_t", 2, |d, _| {
            Ok(Self { name: d.get()?, tid: d.u64()?, inc: d.i32()? })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::{from_slice, to_vec};

    #[test]
    fn a_member_of_a_replicated_pool_is_written_as_its_number() {
        assert_eq!(to_vec(&Peer::whole(7)), to_vec(&7i32));
        assert_eq!(to_vec(&Peer::NONE), to_vec(&-1i32));
        for p in [
            Peer::whole(0),
            Peer::NONE,
            Peer::new(0, 0),
            Peer::new(Peer::OSD_MAX, 126),
            Peer::new(5, 3),
        ] {
            assert_eq!(from_slice::<Peer>(&to_vec(&p)).unwrap(), p);
        }
    }

    #[test]
    fn sets_with_holes_become_members_and_back() {
        let set = [4, OSD_NONE, 4, 2];
        let members = Peer::members(&set, true);
        assert_eq!(members, [Peer::new(4, 0), Peer::new(4, 2), Peer::new(2, 3)]);
        assert_eq!(Peer::places(&members, 4), set);
        assert_eq!(Peer::places(&Peer::members(&[3, 1], false), 3), [3, 1]);
    }
}
