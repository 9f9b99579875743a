//! Object identity: name, key, namespace, snapshot, hash, pool; and the order in which
//! a PG lists its objects.

use crate::{PgId, PoolId, hash};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::cmp::Ordering;
use std::fmt;

/// Snapshot id of the head (the live object), −2 on the wire.
pub const SNAP_HEAD: u64 = u64::MAX - 1;
/// Snapshot id of the snapshot directory (`list_snaps`), −1 on the wire.
pub const SNAP_DIR: u64 = u64::MAX;
/// Namespace that means "all of them" in listings.
pub const NS_ALL: &[u8] = &[1];

/// An object with its place in the global order (`hobject_t`).
///
/// Order (`docs/protocol/osd.md` §8): max last; then pool, bit-reversed hash,
/// namespace, key-or-name, name, snapshot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HObject {
    /// Locator key, empty if the object has none.
    pub key: Bytes,
    /// Name.
    pub name: Bytes,
    /// [`SNAP_HEAD`] for the live object, else the clone's id.
    pub snap: u64,
    /// Hash of namespace and key or name.
    pub hash: u32,
    /// True only for the value after every object.
    pub max: bool,
    /// Namespace, empty for the default one.
    pub namespace: Bytes,
    /// Pool; `i64::MIN` in the minimum and maximum values.
    pub pool: PoolId,
}

impl Default for HObject {
    /// The minimum.
    fn default() -> Self {
        Self::min()
    }
}

impl HObject {
    /// The head of a named object, hashing its name.
    pub fn head(pool: PoolId, namespace: Bytes, key: Bytes, name: Bytes) -> Self {
        let hash = hash::object_hash(&namespace, &key, &name);
        // A key equal to the name places the object no differently and is not kept.
        let key = if key == name { Bytes::new() } else { key };
        Self { key, name, snap: SNAP_HEAD, hash, max: false, namespace, pool }
    }

    /// Before every object.
    pub fn min() -> Self {
        Self {
            key: Bytes::new(),
            name: Bytes::new(),
            snap: 0,
            hash: 0,
            max: false,
            namespace: Bytes::new(),
            pool: i64::MIN,
        }
    }

    /// After every object.
    pub fn max() -> Self {
        Self { max: true, ..Self::min() }
    }

    /// True for [`HObject::min`].
    pub fn is_min(&self) -> bool {
        self.pool == i64::MIN && !self.max && self.hash == 0 && self.name.is_empty()
    }

    /// The first possible object of a pool at `hash` (nothing sorts between it and the
    /// objects with that hash).
    pub fn pool_start(pool: PoolId, hash: u32) -> Self {
        Self { pool, hash, ..Self::min() }
    }

    /// The head of the object that this is the head or a clone of.
    #[must_use]
    pub fn to_head(&self) -> Self {
        Self { snap: SNAP_HEAD, ..self.clone() }
    }

    /// Where, in the order, the names of this object begin: its clones, then its head.
    #[must_use]
    pub fn family_start(&self) -> Self {
        Self { snap: 0, ..self.clone() }
    }

    /// Where the names of this object end: nothing of it stands behind.
    #[must_use]
    pub fn family_end(&self) -> Self {
        Self { snap: SNAP_DIR, ..self.clone() }
    }

    /// Are these the head or clones of one object?
    pub fn is_of_same_object(&self, o: &Self) -> bool {
        self.hash == o.hash
            && self.name == o.name
            && self.key == o.key
            && self.namespace == o.namespace
            && (self.pool, self.max) == (o.pool, o.max)
    }

    /// The PG of a pool with `pg_num` groups.
    pub fn pg(&self, pg_num: u32) -> PgId {
        PgId::new(self.pool, hash::stable_mod(self.hash, pg_num, hash::mask_for(pg_num)))
    }

    /// What stands in the order between namespace and name: the key, or the name.
    pub fn effective_key(&self) -> &Bytes {
        if self.key.is_empty() { &self.name } else { &self.key }
    }
}

impl Ord for HObject {
    fn cmp(&self, o: &Self) -> Ordering {
        self.max
            .cmp(&o.max)
            .then_with(|| self.pool.cmp(&o.pool))
            .then_with(|| self.hash.reverse_bits().cmp(&o.hash.reverse_bits()))
            .then_with(|| self.namespace.cmp(&o.namespace))
            .then_with(|| self.effective_key().cmp(o.effective_key()))
            .then_with(|| self.name.cmp(&o.name))
            .then_with(|| self.snap.cmp(&o.snap))
    }
}

impl PartialOrd for HObject {
    fn partial_cmp(&self, o: &Self) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}

impl fmt::Display for HObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.max {
            return f.write_str("MAX");
        }
        if self.is_min() {
            return f.write_str("MIN");
        }
        write!(
            f,
            "{}:{:08x}:{}:{}:{}:",
            self.pool,
            self.hash.reverse_bits(),
            self.namespace.escape_ascii(),
            self.key.escape_ascii(),
            self.name.escape_ascii()
        )?;
        if self.snap == SNAP_HEAD { f.write_str("head") } else { write!(f, "{:x}", self.snap) }
    }
}

impl fmt::Debug for HObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Encode for HObject {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(4, 3, |o| {
            o.put(&self.key);
            o.put(&self.name);
            o.u64(self.snap);
            o.u32(self.hash);
            o.bool(self.max);
            o.put(&self.namespace);
            o.i64(self.pool);
        });
    }
}

impl Decode for HObject {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("hobject_t", 4, |d, v| {
            if v < 4 {
                return Err(DecodeError::TooOld { what: "hobject_t", version: v, oldest: 4 });
            }
            let mut h = Self {
                key: d.get()?,
                name: d.get()?,
                snap: d.u64()?,
                hash: d.u32()?,
                max: d.bool()?,
                namespace: d.get()?,
                pool: d.i64()?,
            };
            // Old encoders wrote the minimum with pool −1.
            if h.pool == -1 && h.snap == 0 && h.hash == 0 && !h.max && h.name.is_empty() {
                h.pool = i64::MIN;
            }
            Ok(h)
        })
    }
}

/// Where to find an object: pool, optional key, namespace, or an explicit hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocator {
    /// The pool.
    pub pool: PoolId,
    /// Key hashed in place of the name, if not empty.
    pub key: Bytes,
    /// Namespace.
    pub namespace: Bytes,
    /// −1, or the position of a PG operation.
    pub hash: i64,
}

impl Default for ObjectLocator {
    /// No pool, default namespace, hash from the name.
    fn default() -> Self {
        Self { pool: -1, key: Bytes::new(), namespace: Bytes::new(), hash: -1 }
    }
}

impl Encode for ObjectLocator {
    fn encode(&self, out: &mut Encoder) {
        // Ceph raises compat to 6 when the hash carries information old peers would lose.
        let compat = if self.hash == -1 { 3 } else { 6 };
        out.versioned(6, compat, |o| {
            o.i64(self.pool);
            o.i32(-1);
            o.put(&self.key);
            o.put(&self.namespace);
            o.i64(self.hash);
        });
    }
}

impl Decode for ObjectLocator {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("object_locator_t", 6, |d, v| {
            if v < 3 {
                return Err(DecodeError::TooOld {
                    what: "object_locator_t",
                    version: v,
                    oldest: 3,
                });
            }
            let pool = d.i64()?;
            d.i32()?;
            let key = d.get()?;
            let namespace = if v >= 5 { d.get()? } else { Bytes::new() };
            let hash = if v >= 6 { d.i64()? } else { -1 };
            Ok(Self { pool, key, namespace, hash })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::{from_slice, to_vec};

    #[test]
    fn order_is_by_reversed_hash_then_namespace_then_name() {
        let o = |h: u32, n: &'static str| HObject {
            hash: h,
            name: Bytes::from_static(n.as_bytes()),
            snap: SNAP_HEAD,
            pool: 1,
            ..HObject::min()
        };
        assert!(o(0, "b") < o(1, "a"));
        assert!(o(2, "b") < o(1, "a"));
        assert!(o(1, "a") < o(1, "b"));
        assert!(HObject::min() < o(0, "") && o(u32::MAX, "z") < HObject::max());
        assert!(HObject::pool_start(1, 7) < o(7, ""));
    }

    #[test]
    fn hobject_and_locator_round_trip() {
        let h = HObject::head(3, "ns".into(), "key".into(), "name".into());
        assert_eq!(from_slice::<HObject>(&to_vec(&h)).unwrap(), h);
        let l = ObjectLocator { pool: 3, key: "k".into(), namespace: "n".into(), hash: -1 };
        assert_eq!(from_slice::<ObjectLocator>(&to_vec(&l)).unwrap(), l);
    }
}
