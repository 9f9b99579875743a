//! Entries of a PG's log: what was done to one object, and for whom. The same in a store, in the
//! messages of peering, and with a write on its way to the members of its PG.
//!
//! Stored entries outlive releases: a new field comes last, with a version of its own, and has a
//! meaning where it is absent.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::{Dirty, EVersion, HObject, ReqId};

/// What an entry did to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Changed it.
    Modify,
    /// Removed it.
    Delete,
    /// Nothing: a writing request that failed or changed nothing.
    Nothing,
}

/// What one op of a request gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpReturn {
    /// Its return code: −errno, 0 or a count.
    pub rval: i32,
    /// Its output.
    pub data: Bytes,
}

impl OpReturn {
    /// About how many bytes these have in a store.
    pub fn weight(all: &[Self]) -> usize {
        all.iter().map(|r| 8 + r.data.len()).sum()
    }
}

impl Encode for OpReturn {
    fn encode(&self, out: &mut Encoder) {
        out.i32(self.rval);
        out.put(&self.data);
    }
}

impl Decode for OpReturn {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { rval: d.get()?, data: d.get()? })
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its position, unique in the PG's history.
    pub version: EVersion,
    /// The object's version before.
    pub prior: EVersion,
    /// User version given to the object.
    pub user_version: u64,
    /// The request.
    pub reqid: ReqId,
    /// Its result.
    pub result: i32,
    /// What it did.
    pub kind: EntryKind,
    /// The object.
    pub object: HObject,
    /// Client's time.
    pub mtime: UTime,
    /// 0 for an entry of this PG's own history; else 1 + the seed of the PG, since merged into this
    /// one, whose history `version` belongs to.
    pub home: u32,
    /// What of the object differs from `prior`.
    pub dirty: Dirty,
    /// What each op of the request gave, in order, where the request asked for that (the RETURNVEC
    /// flag): a resend is answered with it. Empty for all other requests.
    pub returns: Vec<OpReturn>,
}

/// Where an entry is kept in the log: by version. Two PGs that are merged may have used the same
/// versions, so those of the one that went come behind those of the other of the same epoch. (A PG
/// never makes 2^44 entries.)
pub fn key_of(version: EVersion, home: u32) -> EVersion {
    EVersion::new(version.epoch, version.version | (u64::from(home) << 44))
}

impl Encode for LogEntry {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(4, 1, |o| {
            o.put(&self.version);
            o.put(&self.prior);
            o.u64(self.user_version);
            o.put(&self.reqid);
            o.i32(self.result);
            o.u8(match self.kind {
                EntryKind::Modify => 1,
                EntryKind::Delete => 2,
                EntryKind::Nothing => 3,
            });
            o.put(&self.object);
            o.put(&self.mtime);
            o.u32(self.home);
            o.put(&self.dirty);
            o.put(&self.returns);
        });
    }
}

impl Decode for LogEntry {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("log entry", 4, |d, v| {
            Ok(Self {
                version: d.get()?,
                prior: d.get()?,
                user_version: d.get()?,
                reqid: d.get()?,
                result: d.get()?,
                kind: match d.u8()? {
                    1 => EntryKind::Modify,
                    2 => EntryKind::Delete,
                    3 => EntryKind::Nothing,
                    v => {
                        return Err(DecodeError::Value {
                            what: "log entry kind",
                            value: i64::from(v),
                        });
                    }
                },
                object: d.get()?,
                mtime: d.get()?,
                home: if v >= 2 { d.u32()? } else { 0 },
                dirty: if v >= 3 { d.get()? } else { Dirty::All },
                returns: if v >= 4 { d.get()? } else { Vec::new() },
            })
        })
    }
}

impl LogEntry {
    /// Its place in the stored log.
    pub fn key(&self) -> EVersion {
        key_of(self.version, self.home)
    }

    /// About how many bytes its stored form has.
    pub fn weight(&self) -> usize {
        let ranges = match &self.dirty {
            Dirty::All => 0,
            Dirty::Parts { data, .. } => data.len(),
        };
        let object = self.object.name.len() + self.object.key.len() + self.object.namespace.len();
        160 + object + 16 * ranges + OpReturn::weight(&self.returns)
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Bytes {
        let mut o = Encoder::with_capacity(192 + self.object.name.len());
        o.put(self);
        o.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::{from_slice, to_vec};
    use spirula_types::EntityName;

    fn entry() -> LogEntry {
        LogEntry {
            version: EVersion::new(3, 9),
            prior: EVersion::new(2, 4),
            user_version: 9,
            reqid: ReqId { name: EntityName::client(4), tid: 3009, inc: 0 },
            result: 1,
            kind: EntryKind::Modify,
            object: HObject::head(1, Bytes::new(), Bytes::new(), "x".into()),
            mtime: UTime::ZERO,
            home: 2,
            dirty: Dirty::nothing(),
            returns: vec![
                OpReturn { rval: -2, data: Bytes::new() },
                OpReturn { rval: 1, data: "out".into() },
            ],
        }
    }

    #[test]
    fn entries_round_trip() {
        assert_eq!(from_slice::<LogEntry>(&to_vec(&entry())).unwrap(), entry());
        assert_eq!(from_slice::<LogEntry>(&entry().to_bytes()).unwrap(), entry());
    }

    /// Stores hold entries of earlier releases: each lacks what came later.
    #[test]
    fn entries_of_every_earlier_version_are_read() {
        let e = entry();
        for version in 1..=3u8 {
            let mut out = Encoder::new();
            out.versioned(version, 1, |o| {
                o.put(&e.version);
                o.put(&e.prior);
                o.u64(e.user_version);
                o.put(&e.reqid);
                o.i32(e.result);
                o.u8(1);
                o.put(&e.object);
                o.put(&e.mtime);
                if version >= 2 {
                    o.u32(e.home);
                }
                if version >= 3 {
                    o.put(&e.dirty);
                }
            });
            let home = if version >= 2 { e.home } else { 0 };
            let dirty = if version >= 3 { e.dirty.clone() } else { Dirty::All };
            let expected = LogEntry { home, dirty, returns: Vec::new(), ..e.clone() };
            assert_eq!(
                from_slice::<LogEntry>(&out.into_vec()).unwrap(),
                expected,
                "version {version}"
            );
        }
    }
}
