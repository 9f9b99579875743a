//! What a PG asks its store to change, all or nothing.
//!
//! Deterministic and self-contained: the primary builds one, the replicas apply the same
//! bytes. Two wire parts keep payloads out of the small part: [`Transaction::split`] gives a
//! header and the payload bytes, concatenated in order; a transaction with a single payload
//! carries it without a copy.

use crate::{EVersion, HObject, PgId};
use bytes::{Bytes, BytesMut};
use spirula_encoding::{DecodeError, Decoder, Encoder};

/// One change to one object. Offsets and lengths in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOp {
    /// Makes the object exist.
    Touch,
    /// Writes `data` at `offset`, extending the object if needed; creates it.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Makes a range read as zeros (freeing space); extends the object to its end if needed;
    /// creates it.
    Zero {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Sets the size, cutting or extending with zeros; creates the object.
    Truncate {
        /// New size.
        size: u64,
    },
    /// Removes the object with its attributes and omap. Missing: no effect.
    Remove,
    /// Sets attributes (raw names); creates the object.
    SetAttrs(Vec<(Bytes, Bytes)>),
    /// Removes one attribute, if present.
    RmAttr(Bytes),
    /// Removes every attribute.
    ClearAttrs,
    /// Sets omap pairs; creates the object.
    OmapSet(Vec<(Bytes, Bytes)>),
    /// Removes omap keys, those present.
    OmapRm(Vec<Bytes>),
    /// Removes omap keys in `[first, last)`.
    OmapRmRange {
        /// First key.
        first: Bytes,
        /// First key kept.
        last: Bytes,
    },
    /// Removes all omap pairs and the header.
    OmapClear,
    /// Sets the omap header; creates the object.
    OmapSetHeader(Bytes),
    /// Makes this object a copy (data, attributes, omap) of `from`, sharing space. Replaces what
    /// was here.
    CloneFrom(HObject),
    /// Makes a range read as a range of `from` does (as zeros behind its end), sharing whole blocks
    /// where both ranges lie alike in theirs; extends the object to its end if needed; creates it.
    CloneRange {
        /// The object copied from; may be this one.
        from: HObject,
        /// First byte there.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// First byte here.
        to: u64,
    },
    /// Sets the flags of the client's allocation hint (`CEPH_OSD_ALLOC_HINT_FLAG_…`); creates the
    /// object.
    AllocHint(u32),
}

/// The changes to one object, applied in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUpdate {
    /// The object.
    pub object: HObject,
    /// What happens to it.
    pub ops: Vec<ObjectOp>,
}

/// A change outside objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaOp {
    /// Sets a record (PG info, superblock …). Keys are the PG layer's own.
    Set {
        /// Record key.
        key: Bytes,
        /// Record value.
        value: Bytes,
    },
    /// Removes a record, if present.
    Remove {
        /// Record key.
        key: Bytes,
    },
    /// Appends to a PG's log; versions rise.
    LogAppend {
        /// The log's PG.
        pg: PgId,
        /// Position of the entry.
        version: EVersion,
        /// The encoded entry.
        entry: Bytes,
    },
    /// Forgets entries up to and including `to`.
    LogTrim {
        /// The log's PG.
        pg: PgId,
        /// Newest version forgotten.
        to: EVersion,
    },
    /// Forgets entries after `to` (divergent ones).
    LogRewind {
        /// The log's PG.
        pg: PgId,
        /// Newest version kept.
        to: EVersion,
    },
    /// Forgets the whole log.
    LogRemove {
        /// The log's PG.
        pg: PgId,
    },
}

/// Changes that become durable together. Objects first, in order, then `meta`, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Object changes.
    pub objects: Vec<ObjectUpdate>,
    /// Other changes.
    pub meta: Vec<MetaOp>,
}

impl Transaction {
    /// Nothing to do?
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.meta.is_empty()
    }

    /// Adds a change to `object`, joining the last update if it is for the same object.
    pub fn object(&mut self, object: &HObject, op: ObjectOp) {
        match self.objects.last_mut() {
            Some(last) if last.object == *object => last.ops.push(op),
            _ => self.objects.push(ObjectUpdate { object: object.clone(), ops: vec![op] }),
        }
    }

    /// Number of payload bytes ([`ObjectOp::Write`]).
    pub fn payload_len(&self) -> usize {
        payload_len(&self.objects)
    }

    /// Header and payload. The payload is the single write's own buffer when there is just one.
    pub fn split(&self) -> (Vec<u8>, Bytes) {
        split(&self.objects, &self.meta)
    }

    /// The same of a transaction of which only these updates are known, which others hold.
    pub fn split_updates(objects: &[ObjectUpdate]) -> (Vec<u8>, Bytes) {
        split(objects, &[])
    }

    /// Puts header and payload together again; writes share `payload`'s memory.
    ///
    /// # Errors
    /// [`DecodeError`] when the header is malformed or the payload too short or too long.
    pub fn join(header: &[u8], payload: &Bytes) -> Result<Self, DecodeError> {
        let mut d = Decoder::new(header);
        let mut at = 0usize;
        let txn = d.versioned("transaction", 1, |d, _| {
            let objects = d.list(8, |d| {
                let object = d.get()?;
                let ops = d.list(1, |d| decode_op(d, payload, &mut at))?;
                Ok(ObjectUpdate { object, ops })
            })?;
            let meta = d.list(1, decode_meta)?;
            Ok(Self { objects, meta })
        })?;
        d.finish()?;
        match payload.len() - at {
            0 => Ok(txn),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

fn payload_len(objects: &[ObjectUpdate]) -> usize {
    let ops = objects.iter().flat_map(|u| &u.ops);
    ops.map(|op| if let ObjectOp::Write { data, .. } = op { data.len() } else { 0 }).sum()
}

fn split(objects: &[ObjectUpdate], meta: &[MetaOp]) -> (Vec<u8>, Bytes) {
    let mut out = Encoder::with_capacity(256);
    out.versioned(1, 1, |o| {
        o.list(objects, |o, u| {
            o.put(&u.object);
            o.list(&u.ops, encode_op);
        });
        o.list(meta, encode_meta);
    });
    let mut writes = objects.iter().flat_map(|u| &u.ops).filter_map(|op| match op {
        ObjectOp::Write { data, .. } => Some(data),
        _ => None,
    });
    let payload = match (writes.next(), writes.next()) {
        (None, _) => Bytes::new(),
        (Some(one), None) => one.clone(),
        (Some(a), Some(b)) => {
            let mut all = BytesMut::with_capacity(payload_len(objects));
            all.extend_from_slice(a);
            all.extend_from_slice(b);
            writes.for_each(|w| all.extend_from_slice(w));
            all.freeze()
        }
    };
    (out.into_vec(), payload)
}

fn pairs(o: &mut Encoder, kv: &[(Bytes, Bytes)]) {
    o.list(kv, |o, (k, v)| {
        o.put(k);
        o.put(v);
    });
}

fn encode_op(o: &mut Encoder, op: &ObjectOp) {
    match op {
        ObjectOp::Touch => o.u8(1),
        ObjectOp::Write { offset, data } => {
            o.u8(2);
            o.u64(*offset);
            o.u64(data.len() as u64);
        }
        ObjectOp::Zero { offset, length } => {
            o.u8(3);
            o.u64(*offset);
            o.u64(*length);
        }
        ObjectOp::Truncate { size } => {
            o.u8(4);
            o.u64(*size);
        }
        ObjectOp::Remove => o.u8(5),
        ObjectOp::SetAttrs(kv) => {
            o.u8(6);
            pairs(o, kv);
        }
        ObjectOp::RmAttr(k) => {
            o.u8(7);
            o.put(k);
        }
        ObjectOp::ClearAttrs => o.u8(8),
        ObjectOp::OmapSet(kv) => {
            o.u8(9);
            pairs(o, kv);
        }
        ObjectOp::OmapRm(keys) => {
            o.u8(10);
            o.put(keys);
        }
        ObjectOp::OmapRmRange { first, last } => {
            o.u8(11);
            o.put(first);
            o.put(last);
        }
        ObjectOp::OmapClear => o.u8(12),
        ObjectOp::OmapSetHeader(h) => {
            o.u8(13);
            o.put(h);
        }
        ObjectOp::CloneFrom(h) => {
            o.u8(14);
            o.put(h);
        }
        ObjectOp::CloneRange { from, offset, length, to } => {
            o.u8(15);
            o.put(from);
            o.u64(*offset);
            o.u64(*length);
            o.u64(*to);
        }
        ObjectOp::AllocHint(flags) => {
            o.u8(16);
            o.u32(*flags);
        }
    }
}

fn decode_op(
    d: &mut Decoder<'_>,
    payload: &Bytes,
    at: &mut usize,
) -> Result<ObjectOp, DecodeError> {
    Ok(match d.u8()? {
        1 => ObjectOp::Touch,
        2 => {
            let offset = d.u64()?;
            let need = d.u64()?;
            let have = payload.len() - *at;
            let need = usize::try_from(need).unwrap_or(usize::MAX);
            if need > have {
                return Err(DecodeError::Truncated { need, have });
            }
            let data = payload.slice(*at..*at + need);
            *at += need;
            ObjectOp::Write { offset, data }
        }
        3 => ObjectOp::Zero { offset: d.u64()?, length: d.u64()? },
        4 => ObjectOp::Truncate { size: d.u64()? },
        5 => ObjectOp::Remove,
        6 => ObjectOp::SetAttrs(d.get()?),
        7 => ObjectOp::RmAttr(d.get()?),
        8 => ObjectOp::ClearAttrs,
        9 => ObjectOp::OmapSet(d.get()?),
        10 => ObjectOp::OmapRm(d.get()?),
        11 => ObjectOp::OmapRmRange { first: d.get()?, last: d.get()? },
        12 => ObjectOp::OmapClear,
        13 => ObjectOp::OmapSetHeader(d.get()?),
        14 => ObjectOp::CloneFrom(d.get()?),
        15 => ObjectOp::CloneRange {
            from: d.get()?,
            offset: d.u64()?,
            length: d.u64()?,
            to: d.u64()?,
        },
        16 => ObjectOp::AllocHint(d.u32()?),
        v => return Err(DecodeError::Value { what: "object op", value: i64::from(v) }),
    })
}

fn encode_meta(o: &mut Encoder, m: &MetaOp) {
    match m {
        MetaOp::Set { key, value } => {
            o.u8(1);
            o.put(key);
            o.put(value);
        }
        MetaOp::Remove { key } => {
            o.u8(2);
            o.put(key);
        }
        MetaOp::LogAppend { pg, version, entry } => {
            o.u8(3);
            o.put(pg);
            o.put(version);
            o.put(entry);
        }
        MetaOp::LogTrim { pg, to } => {
            o.u8(4);
            o.put(pg);
            o.put(to);
        }
        MetaOp::LogRewind { pg, to } => {
            o.u8(5);
            o.put(pg);
            o.put(to);
        }
        MetaOp::LogRemove { pg } => {
            o.u8(6);
            o.put(pg);
        }
    }
}

fn decode_meta(d: &mut Decoder<'_>) -> Result<MetaOp, DecodeError> {
    Ok(match d.u8()? {
        1 => MetaOp::Set { key: d.get()?, value: d.get()? },
        2 => MetaOp::Remove { key: d.get()? },
        3 => MetaOp::LogAppend { pg: d.get()?, version: d.get()?, entry: d.get()? },
        4 => MetaOp::LogTrim { pg: d.get()?, to: d.get()? },
        5 => MetaOp::LogRewind { pg: d.get()?, to: d.get()? },
        6 => MetaOp::LogRemove { pg: d.get()? },
        v => return Err(DecodeError::Value { what: "meta op", value: i64::from(v) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_survives_split_and_join_and_shares_a_single_payload() {
        let o = HObject::head(1, Bytes::new(), Bytes::new(), "a".into());
        let data = Bytes::from(vec![7u8; 100]);
        let mut t = Transaction::default();
        t.object(&o, ObjectOp::Write { offset: 5, data: data.clone() });
        t.object(&o, ObjectOp::SetAttrs(vec![("_".into(), "x".into())]));
        t.object(&o, ObjectOp::AllocHint(256));
        t.object(&o, ObjectOp::CloneRange { from: o.clone(), offset: 1, length: 2, to: 3 });
        t.meta.push(MetaOp::LogAppend {
            pg: PgId::new(1, 2),
            version: EVersion::new(3, 4),
            entry: "e".into(),
        });
        let (h, p) = t.split();
        assert_eq!(p.as_ptr(), data.as_ptr());
        assert_eq!(Transaction::join(&h, &p).unwrap(), t);
        t.object(&o, ObjectOp::Write { offset: 0, data: "zz".into() });
        let (h, p) = t.split();
        assert_eq!(Transaction::join(&h, &p).unwrap(), t);
        assert!(Transaction::join(&h, &p.slice(1..)).is_err());
    }
}
