//! Keys of the metadata KV. Byte order of the keys is the order of what they name.
//!
//! | first byte | rest | holds |
//! |---|---|---|
//! | `A` | group u32 | allocation bitmap of a group of blocks |
//! | `C` | | the checkpoint record |
//! | `D` | omap id u64 | an omap id whose pairs await deletion |
//! | `G` | omap id u64 | how many objects share an omap, beyond the first |
//! | `H` | omap id u64 | an omap header |
//! | `L` | PG, first version, last version | a chunk of PG log |
//! | `M` | caller's key | a meta record |
//! | `N` | name u64 | the key of the object that a layer knows by this name |
//! | `O` | object in order-preserving form | an onode |
//! | `P` | omap id u64, key | an omap pair |
//! | `R` | chunk u64 | reference counts of 128 device blocks |
//! | `S` | onode id u64, segment u32 | a segment of a block map |
//! | `T` | PG | newest trimmed log version |
//! | `U` | pool | space used by a pool |
//! | `Y` | name u64 | a layer of block maps |
//!
//! Numbers are big-endian, so that they sort.

use crate::error::{Result, StoreError};
use bytes::Bytes;
use spirula_types::{EVersion, HObject, PgId};
use std::cmp::Ordering;

/// Longest key the KV takes, with room for the prefixes put before a caller's key.
pub(crate) use spirula_types::limits::KEY_MAX;

pub(crate) const CHECKPOINT: &[u8] = b"C";
pub(crate) const META: u8 = b'M';
pub(crate) const OBJECT: u8 = b'O';

/// The first key after all keys that begin with `prefix`.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![u8::MAX; 8]
}

fn with_u64(tag: u8, n: u64) -> Vec<u8> {
    let mut k = Vec::with_capacity(9);
    k.push(tag);
    k.extend_from_slice(&n.to_be_bytes());
    k
}

pub(crate) fn group(group: u32) -> Vec<u8> {
    let mut k = vec![b'A'];
    k.extend_from_slice(&group.to_be_bytes());
    k
}

pub(crate) fn dead(id: u64) -> Vec<u8> {
    with_u64(b'D', id)
}

pub(crate) fn omap_owners(id: u64) -> Vec<u8> {
    with_u64(b'G', id)
}

pub(crate) fn omap_header(id: u64) -> Vec<u8> {
    with_u64(b'H', id)
}

pub(crate) fn omap(id: u64, key: &[u8]) -> Vec<u8> {
    let mut k = with_u64(b'P', id);
    k.extend_from_slice(key);
    k
}

pub(crate) fn segment(id: u64, seg: u32) -> Vec<u8> {
    let mut k = with_u64(b'S', id);
    k.extend_from_slice(&seg.to_be_bytes());
    k
}

pub(crate) fn layer(name: u64) -> Vec<u8> {
    with_u64(b'Y', name)
}

pub(crate) fn named(name: u64) -> Vec<u8> {
    with_u64(b'N', name)
}

pub(crate) fn refs(chunk: u64) -> Vec<u8> {
    with_u64(b'R', chunk)
}

pub(crate) fn pool(pool: i64) -> Vec<u8> {
    with_u64(b'U', pool as u64 ^ (1 << 63))
}

pub(crate) fn meta(key: &[u8]) -> Vec<u8> {
    let mut k = Vec::with_capacity(key.len() + 1);
    k.push(META);
    k.extend_from_slice(key);
    k
}

fn with_pg(tag: u8, pg: PgId) -> Vec<u8> {
    let mut k = Vec::with_capacity(40);
    k.push(tag);
    k.extend_from_slice(&((pg.pool as u64) ^ (1 << 63)).to_be_bytes());
    k.extend_from_slice(&pg.seed.to_be_bytes());
    k
}

pub(crate) fn log_trim(pg: PgId) -> Vec<u8> {
    with_pg(b'T', pg)
}

pub(crate) fn log_prefix(pg: PgId) -> Vec<u8> {
    with_pg(b'L', pg)
}

pub(crate) fn log_chunk(pg: PgId, first: EVersion, last: EVersion) -> Vec<u8> {
    let mut k = log_prefix(pg);
    for v in [first, last] {
        k.extend_from_slice(&v.epoch.to_be_bytes());
        k.extend_from_slice(&v.version.to_be_bytes());
    }
    k
}

/// The PG of a log chunk, from its key.
pub(crate) fn log_pg(key: &[u8]) -> Result<PgId> {
    let bad = || StoreError::corrupt("log chunk key of a wrong length");
    let pool = key.get(1..9).and_then(|b| b.first_chunk::<8>()).ok_or_else(bad)?;
    let seed = key.get(9..13).and_then(|b| b.first_chunk::<4>()).ok_or_else(bad)?;
    Ok(PgId::new((u64::from_be_bytes(*pool) ^ (1 << 63)) as i64, u32::from_be_bytes(*seed)))
}

/// What the keys of an onode's segments begin with.
pub(crate) fn segment_prefix(id: u64) -> Vec<u8> {
    with_u64(b'S', id)
}

/// First and last version of a log chunk, from its key.
pub(crate) fn log_chunk_versions(key: &[u8]) -> Result<(EVersion, EVersion)> {
    let bad = || StoreError::corrupt("log chunk key of a wrong length");
    let rest: &[u8; 24] = key.get(13..).and_then(|r| r.try_into().ok()).ok_or_else(bad)?;
    let version = |b: &[u8]| -> Option<EVersion> {
        let epoch = u32::from_be_bytes(b.get(..4)?.try_into().ok()?);
        Some(EVersion::new(epoch, u64::from_be_bytes(b.get(4..12)?.try_into().ok()?)))
    };
    Ok((
        version(rest).ok_or_else(bad)?,
        version(rest.get(12..).unwrap_or_default()).ok_or_else(bad)?,
    ))
}

/// Appends `s` so that byte order is kept and the end can be found: 0 becomes `00 ff`, the
/// end is `00 00`.
fn escape(k: &mut Vec<u8>, s: &[u8]) {
    if !s.contains(&0) {
        k.extend_from_slice(s);
    } else {
        for &b in s {
            k.push(b);
            if b == 0 {
                k.push(0xff);
            }
        }
    }
    k.extend_from_slice(&[0, 0]);
}

fn unescape(k: &mut &[u8]) -> Option<Bytes> {
    let mut out = Vec::new();
    loop {
        let (&b, rest) = k.split_first()?;
        *k = rest;
        if b != 0 {
            out.push(b);
            continue;
        }
        let (&mark, rest) = k.split_first()?;
        *k = rest;
        match mark {
            0 => return Some(Bytes::from(out)),
            0xff => out.push(0),
            _ => return None,
        }
    }
}

/// How the name compares with the key that places the object.
const NAME_BELOW_KEY: u8 = 1;
const NAME_IS_KEY: u8 = 2;
const NAME_ABOVE_KEY: u8 = 3;

/// The key of an onode. Keys sort as objects do; equal objects have equal keys.
pub(crate) fn object(o: &HObject) -> Vec<u8> {
    if o.max {
        return vec![OBJECT + 1];
    }
    let key = o.effective_key();
    let mut k = Vec::with_capacity(28 + o.namespace.len() + key.len() + o.name.len());
    k.push(OBJECT);
    k.extend_from_slice(&((o.pool as u64) ^ (1 << 63)).to_be_bytes());
    k.extend_from_slice(&o.hash.reverse_bits().to_be_bytes());
    escape(&mut k, &o.namespace);
    escape(&mut k, key);
    match o.name.cmp(key) {
        Ordering::Equal => k.push(NAME_IS_KEY),
        order => {
            k.push(if order == Ordering::Less { NAME_BELOW_KEY } else { NAME_ABOVE_KEY });
            escape(&mut k, &o.name);
        }
    }
    k.extend_from_slice(&o.snap.to_be_bytes());
    k
}

/// The object that [`object`] made `key` of.
pub(crate) fn parse_object(key: &[u8]) -> Result<HObject> {
    let parse = || -> Option<HObject> {
        let mut k = key.strip_prefix(&[OBJECT])?;
        let (pool, rest) = k.split_first_chunk::<8>()?;
        let (hash, rest) = rest.split_first_chunk::<4>()?;
        k = rest;
        let namespace = unescape(&mut k)?;
        let key = unescape(&mut k)?;
        let (&mark, rest) = k.split_first()?;
        k = rest;
        let (key, name) = match mark {
            NAME_IS_KEY => (Bytes::new(), key),
            NAME_BELOW_KEY | NAME_ABOVE_KEY => (key, unescape(&mut k)?),
            _ => return None,
        };
        Some(HObject {
            key,
            name,
            snap: u64::from_be_bytes(k.try_into().ok()?),
            hash: u32::from_be_bytes(*hash).reverse_bits(),
            max: false,
            namespace,
            pool: (u64::from_be_bytes(*pool) ^ (1 << 63)) as i64,
        })
    };
    parse().ok_or_else(|| StoreError::corrupt("malformed object key"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(
            prop_oneof![Just(0u8), Just(1), Just(0xff), Just(b'a'), any::<u8>()],
            0..4,
        )
        .prop_map(Bytes::from)
    }

    fn any_object() -> impl Strategy<Value = HObject> {
        (name(), name(), name(), 0u64..3, 0u32..4, -2i64..3).prop_map(
            |(key, name, namespace, snap, hash, pool)| {
                let key = if key == name { Bytes::new() } else { key };
                HObject { key, name, namespace, snap: snap.wrapping_sub(2), hash, max: false, pool }
            },
        )
    }

    proptest! {
        #[test]
        fn prop_object_keys_sort_as_objects_and_parse_back(a in any_object(), b in any_object()) {
            prop_assert_eq!(object(&a).cmp(&object(&b)), a.cmp(&b));
            prop_assert_eq!(parse_object(&object(&a)).unwrap(), a.clone());
            prop_assert!(object(&a) < object(&HObject::max()) && object(&HObject::min()) <= object(&a));
        }
    }

    #[test]
    fn prefix_end_is_after_every_key_of_the_prefix() {
        assert_eq!(prefix_end(b"ab"), b"ac");
        assert_eq!(prefix_end(&[1, 255]), [2]);
        assert!(prefix_end(&[255, 255]) > vec![255, 255, 1]);
    }

    #[test]
    fn log_chunk_key_gives_its_versions_back() {
        let (a, b) = (EVersion::new(3, 9), EVersion::new(4, 70));
        assert_eq!(log_chunk_versions(&log_chunk(PgId::new(-1, 5), a, b)).unwrap(), (a, b));
        assert!(log_chunk_versions(b"L").is_err());
    }
}
