//! What a transaction may hold: one table, the same for every member of a PG whatever its
//! devices are like.
//!
//! The primary looks before a write gets its place in the log ([`Transaction::check`]), and
//! every store again when it takes one: so nothing is logged that a member must refuse, and
//! nothing acknowledged that a checkpoint cannot hold. How much a client may ask for in one
//! request is less (`osd_max_write_size`, 90 MiB): what it may ask for always fits.
//!
//! [`Transaction::check`]: crate::transaction::Transaction::check

use crate::transaction::{MetaOp, ObjectOp, Transaction};

/// Longest key of an omap or of a record, bytes.
pub const KEY_MAX: usize = 60_000;
/// Longest value of an omap, omap header, attribute, record or log entry, bytes.
pub const VALUE_MAX: usize = 96 << 20;
/// Most bytes that an object's attributes, names and values, may come to when a request
/// adds to them.
pub const ATTRS_MAX: usize = 64 << 20;
/// Most bytes that a store takes: what the OSD itself keeps in attributes may come on top.
pub const ATTRS_STORED_MAX: usize = ATTRS_MAX + (8 << 20);
/// Most bytes of a transaction, payload and all else together: it goes in one message. The
/// last piece of an object's copy may bring its omap header, one value and its attributes.
pub const TRANSACTION_MAX: usize = 288 << 20;
/// Bytes a part of a transaction may take beside keys, values and data.
const PART: usize = 64;
/// Bytes a pair, or a key to be removed, is charged beside key and value: about what it takes
/// in memory and in a store's maps, so that millions of empty ones are not taken for nothing.
const PAIR: usize = 96;

/// A limit that something is beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// What is too large.
    pub what: &'static str,
    /// Its size, bytes.
    pub size: u64,
    /// The most there may be, bytes.
    pub limit: u64,
}

/// Fails if `size` is above `limit`.
///
/// # Errors
/// [`Excess`].
pub fn check(what: &'static str, size: usize, limit: usize) -> Result<(), Excess> {
    if size <= limit {
        Ok(())
    } else {
        Err(Excess { what, size: size as u64, limit: limit as u64 })
    }
}

impl Transaction {
    /// Is every part of it, and all of it together, within the limits of this module?
    ///
    /// # Errors
    /// The first limit that it exceeds.
    pub fn check(&self) -> Result<(), Excess> {
        let mut sum = 0usize;
        for u in &self.objects {
            sum += PART + u.object.name.len() + u.object.key.len() + u.object.namespace.len();
            sum += size_of(&u.ops)?;
        }
        for m in &self.meta {
            sum += PART
                + match m {
                    MetaOp::Set { key, value } => pair("record key", key, "record", value)?,
                    MetaOp::LogAppend { entry, .. } => {
                        check("log entry", entry.len(), VALUE_MAX)?;
                        entry.len()
                    }
                    MetaOp::Remove { key } => key.len(),
                    MetaOp::LogTrim { .. }
                    | MetaOp::LogRewind { .. }
                    | MetaOp::LogRemove { .. } => 0,
                };
        }
        check("transaction", sum, TRANSACTION_MAX)
    }
}

/// Bytes that changes to one object add to a transaction.
///
/// # Errors
/// The first limit that a part of one exceeds.
pub fn size_of(ops: &[ObjectOp]) -> Result<usize, Excess> {
    ops.iter().map(|op| Ok(PART + check_op(op)?)).sum()
}

/// Bytes that a pair of a name or key and a value counts for, in a transaction and among an
/// object's attributes.
pub fn pair_size(key: &[u8], value: &[u8]) -> usize {
    PAIR + key.len() + value.len()
}

/// Size of a key and its value, if each is within its limit.
fn pair(key: &'static str, k: &[u8], value: &'static str, v: &[u8]) -> Result<usize, Excess> {
    check(key, k.len(), KEY_MAX)?;
    check(value, v.len(), VALUE_MAX)?;
    Ok(pair_size(k, v))
}

/// Bytes of keys, values and data.
fn check_op(op: &ObjectOp) -> Result<usize, Excess> {
    Ok(match op {
        ObjectOp::Write { data, .. } => data.len(),
        ObjectOp::SetAttrs(kv) => {
            let each = kv.iter().map(|(k, v)| pair("attribute name", k, "attribute", v));
            let sum = each.sum::<Result<usize, _>>()?;
            check("attributes", sum, ATTRS_STORED_MAX)?;
            sum
        }
        ObjectOp::OmapSet(kv) => kv
            .iter()
            .map(|(k, v)| pair("omap key", k, "omap value", v))
            .sum::<Result<usize, _>>()?,
        ObjectOp::OmapRm(keys) => keys.iter().map(|k| PAIR + k.len()).sum(),
        ObjectOp::OmapRmRange { first, last } => first.len() + last.len(),
        ObjectOp::OmapSetHeader(h) => {
            check("omap header", h.len(), VALUE_MAX)?;
            h.len()
        }
        ObjectOp::RmAttr(name) => name.len(),
        ObjectOp::CloneFrom(from) | ObjectOp::CloneRange { from, .. } => {
            from.name.len() + from.key.len()
        }
        ObjectOp::Touch
        | ObjectOp::Zero { .. }
        | ObjectOp::Truncate { .. }
        | ObjectOp::Remove
        | ObjectOp::ClearAttrs
        | ObjectOp::OmapClear
        | ObjectOp::AllocHint(_) => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EVersion, HObject, PgId};
    use bytes::Bytes;

    fn of(op: ObjectOp) -> Result<(), &'static str> {
        let mut t = Transaction::default();
        t.object(&HObject::head(1, Bytes::new(), Bytes::new(), "o".into()), op);
        t.check().map_err(|e| e.what)
    }

    fn meta(op: MetaOp) -> Result<(), &'static str> {
        Transaction { meta: vec![op], ..Transaction::default() }.check().map_err(|e| e.what)
    }

    /// Zeros without memory of their own, but for those of the longest.
    fn zeros(n: usize) -> Bytes {
        static ALL: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
        ALL.get_or_init(|| Bytes::from(vec![0; TRANSACTION_MAX + 1])).slice(..n)
    }

    #[test]
    fn each_limit_is_met_and_one_past_it_refused() {
        let (pg, version) = (PgId::new(1, 1), EVersion::new(1, 1));
        type Try = (&'static str, usize, fn(Bytes) -> ObjectOp);
        let tries: [Try; 6] = [
            ("omap key", KEY_MAX, |b| ObjectOp::OmapSet(vec![(b, Bytes::new())])),
            ("omap value", VALUE_MAX, |b| ObjectOp::OmapSet(vec![("k".into(), b)])),
            ("omap header", VALUE_MAX, ObjectOp::OmapSetHeader),
            ("attribute name", KEY_MAX, |b| ObjectOp::SetAttrs(vec![(b, Bytes::new())])),
            ("attributes", ATTRS_STORED_MAX - PAIR - 1, |b| {
                ObjectOp::SetAttrs(vec![("k".into(), b)])
            }),
            ("transaction", TRANSACTION_MAX - 2 * PART - 1, |data| ObjectOp::Write {
                offset: 0,
                data,
            }),
        ];
        for (what, limit, op) in tries {
            assert_eq!(of(op(zeros(limit))), Ok(()), "{what}");
            assert_eq!(of(op(zeros(limit + 1))), Err(what));
        }
        // What is empty counts, too: with an object, and its own part, so many are all there may
        // be.
        let most = (TRANSACTION_MAX - 2 * PART - 1) / PAIR;
        let pairs = |n: usize| of(ObjectOp::OmapSet(vec![Default::default(); n]));
        assert_eq!([pairs(most), pairs(most + 1)], [Ok(()), Err("transaction")]);
        let keys = |n: usize| of(ObjectOp::OmapRm(vec![Bytes::new(); n]));
        assert_eq!([keys(most), keys(most + 1)], [Ok(()), Err("transaction")]);
        let most = ATTRS_STORED_MAX / PAIR;
        let attrs = |n: usize| of(ObjectOp::SetAttrs(vec![Default::default(); n]));
        assert_eq!([attrs(most), attrs(most + 1)], [Ok(()), Err("attributes")]);
        let set = |n| MetaOp::Set { key: "k".into(), value: zeros(n) };
        let key = |n| MetaOp::Set { key: zeros(n), value: Bytes::new() };
        let log = |n| MetaOp::LogAppend { pg, version, entry: zeros(n) };
        assert_eq!([meta(set(VALUE_MAX)), meta(set(VALUE_MAX + 1))], [Ok(()), Err("record")]);
        assert_eq!([meta(key(KEY_MAX)), meta(key(KEY_MAX + 1))], [Ok(()), Err("record key")]);
        assert_eq!([meta(log(VALUE_MAX)), meta(log(VALUE_MAX + 1))], [Ok(()), Err("log entry")]);
    }
}
