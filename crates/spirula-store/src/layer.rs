//! Layers: maps that clones share.
//!
//! A clone of an object whose map is in segments copies none of them. The source's map
//! becomes a *layer*: it never changes again, and source and clone each go on with an empty
//! map of their own over it. A segment's record in such a map has what was written since, and
//! says which blocks of the layer below it hides; a block that no record hides is read from
//! the layer ([`crate::maps`]). So a clone costs some hundred bytes however large the object
//! is, and a write after it one small record.
//!
//! Layers lie over layers: clones of an object that is written to between them form a chain,
//! newest on top. *Owners* are records, not objects: a block belongs to the one record that
//! maps it, whichever layer or object that record is of, and is let go of when the record
//! unmaps it or goes. What a record above hides is not let go of; somebody else may see it.
//! ([`crate::refs`] count further records that map a block: those of range clones, of small
//! objects, and of maps that were made whole.)
//!
//! A layer counts its *children*, the objects and layers that lie directly over it, and has
//! two at least. When one of two goes, nobody else sees what the other hides: layer and
//! child become one map again, what was hidden is let go of, and an object over no layer any
//! more is as if it never had been cloned ([`Stage::merge`](crate::stage::Stage)). So that
//! the last child is found, a layer keeps the sum (exclusive or) of its children's *names*:
//! of one child it is its name. A name stays while the map's number may change, so a merge
//! need not tell those above. A layer names the two objects that it was made for, which nearly all
//! layers have no others than: the one whose map it was, and the clone ([`Layer::couple`]). Whoever
//! comes to a layer otherwise, or is given another key since, has a record of its own that says
//! whose its name is, and knows that ([`Onode::told`](crate::onode::Onode)). What a couple says of
//! a name is believed only where that object says the same: the name may have passed to a layer, or
//! gone.
//!
//! Chains are at most [`DEPTH_MAX`] long: of an object that lies over as many, all that lies
//! over the lowest layer, which has nearly all blocks, is made one map first, whose blocks have
//! one more owner each ([`Stage::shorten`](crate::stage::Stage)). Once that hides a good part of
//! the object, the object gets a whole map, over nothing. So it is paid for by many clones. How
//! long a chain may be depends on the object's name ([`depth_max`]): the objects of an image,
//! cloned together by each of its snapshots, pay one after the other.
//!
//! All of it changes within transactions, by records that hold results, as everything here:
//! a replay may apply them twice. What several children of a layer hide each for itself is
//! kept until they are one: a block is counted as used as long as a record maps it.

use crate::keys;
use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::HObject;
use std::sync::Arc;

/// Most layers below an object.
pub(crate) const DEPTH_MAX: u32 = if cfg!(test) { 4 } else { 48 };

/// Most layers below this object: [`DEPTH_MAX`], or fewer down to half as many.
pub(crate) fn depth_max(object: &HObject) -> u32 {
    DEPTH_MAX - crc32c(u32::MAX, &keys::object(object)) % (DEPTH_MAX / 2 + 1)
}

/// A map that several others lie over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Number of its map, which names its segments.
    pub map: u64,
    /// Name of the layer below; 0: none.
    pub base: u64,
    /// How many objects and layers lie directly over it.
    pub children: u64,
    /// Exclusive or of their names.
    pub names: u64,
    /// Layers in the chain from here down, at most: some may have gone since.
    pub depth: u32,
    /// Over another layer: which segments the map may have, number n at bit n modulo 64.
    pub own: u64,
    /// Some of its blocks may have other owners.
    pub shared: bool,
    /// Whom it was made for, if it was.
    pub couple: Option<Couple>,
}

/// Names and keys that they had then of the object whose map a layer was and of the clone for which
/// it became one; as it is written down, since hardly anybody looks. Keys nearly always differ in
/// their snapshots only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Couple(Arc<[u8]>);

impl Couple {
    pub fn of((name, key): (u64, &[u8]), (clone, its_key): (u64, &[u8])) -> Self {
        let alike = key.iter().zip(its_key).take_while(|(a, b)| a == b).count();
        let mut o = Encoder::with_capacity(40 + key.len() + its_key.len());
        o.u64(name);
        o.blob(key);
        o.u64(clone);
        o.u32(alike as u32);
        o.blob(its_key.get(alike..).unwrap_or_default());
        Self(o.into_vec().into())
    }

    fn read<'a>(d: &mut Decoder<'a>) -> Result<Parts<'a>, DecodeError> {
        let (name, key, clone, alike) = (d.u64()?, d.blob()?, d.u64()?, d.u32()?);
        let bad =
            DecodeError::Value { what: "bytes that two keys have in common", value: alike.into() };
        let alike = key.get(..alike as usize).ok_or(bad)?;
        Ok(Parts { name, key, clone, alike, rest: d.blob()? })
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let p = Self::read(d)?;
        Ok(Self::of((p.name, p.key), (p.clone, &[p.alike, p.rest].concat())))
    }

    fn key_of(&self, wanted: u64) -> Option<Bytes> {
        let p = Self::read(&mut Decoder::new(&self.0)).ok()?;
        if p.name == wanted {
            return Some(Bytes::copy_from_slice(p.key));
        }
        (p.clone == wanted).then(|| [p.alike, p.rest].concat().into())
    }
}

/// What a [`Couple`] says: of the clone's key, with how much of the other one it begins, and the
/// rest.
struct Parts<'a> {
    name: u64,
    key: &'a [u8],
    clone: u64,
    alike: &'a [u8],
    rest: &'a [u8],
}

impl Layer {
    /// The key that the object of this name had when the layer was made for it, if it was.
    pub fn key_of(&self, name: u64) -> Option<Bytes> {
        self.couple.as_ref().and_then(|c| c.key_of(name))
    }

    /// Memory it takes, bytes, roughly.
    pub fn cost(&self) -> usize {
        size_of::<Self>() + self.couple.as_ref().map_or(0, |c| 24 + c.0.len())
    }

    /// One more child.
    pub fn join(&mut self, name: u64) {
        self.children += 1;
        self.names ^= name;
    }

    /// One child fewer.
    pub fn leave(&mut self, name: u64) {
        self.children = self.children.saturating_sub(1);
        self.names ^= name;
    }

    /// The only child's name, if there is but one.
    pub fn only(&self) -> Option<u64> {
        let most = if planted!(LayerMergedEarly) { 2 } else { 1 };
        (self.children <= most).then_some(self.names)
    }

    pub fn encode(&self, out: &mut Encoder) {
        // As ever, if it was not made for two.
        let version = if self.couple.is_some() { 2 } else { 1 };
        out.versioned(version, version, |o| {
            o.u64(self.map);
            o.u64(self.base);
            o.u64(self.children);
            o.u64(self.names);
            o.u32(self.depth);
            o.u64(self.own);
            o.bool(self.shared);
            if let Some(Couple(both)) = &self.couple {
                o.raw(both);
            }
        });
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("layer", 2, |d, version| {
            let mut l = Self {
                map: d.u64()?,
                base: d.u64()?,
                children: d.u64()?,
                names: d.u64()?,
                depth: d.u32()?,
                own: d.u64()?,
                shared: d.bool()?,
                couple: None,
            };
            if version >= 2 {
                l.couple = Some(Couple::decode(d)?);
            }
            Ok(l)
        })
    }
}

/// The bit of a segment among those that a map over a layer may have.
pub(crate) fn own_bit(seg: u32) -> u64 {
    1 << (seg % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_both_versions_are_read_back_and_wrong_ones_refused() {
        let plain = Layer {
            map: 1,
            base: 2,
            children: 3,
            names: 4,
            depth: 5,
            own: 6,
            shared: true,
            couple: None,
        };
        let couple = |a: &[u8], b: &[u8]| Some(Couple::of((7, a), (8, b)));
        for keys in
            [None, Some(("name-head", "name-3")), Some(("", "another")), Some(("same", "same"))]
        {
            let l = Layer {
                couple: keys.and_then(|(a, b)| couple(a.as_bytes(), b.as_bytes())),
                ..plain.clone()
            };
            let mut e = Encoder::new();
            l.encode(&mut e);
            let bytes = e.into_vec();
            assert_eq!(bytes[0], if l.couple.is_some() { 2 } else { 1 });
            assert_eq!(Layer::decode(&mut Decoder::new(&bytes)).unwrap(), l);
            assert_eq!(
                (l.key_of(7), l.key_of(8)),
                (keys.map(|k| k.0.into()), keys.map(|k| k.1.into()))
            );
            assert_eq!(l.key_of(9), None);
        }
        let mut e = Encoder::new();
        Layer { couple: couple(b"name-head", b"name-3"), ..plain }.encode(&mut e);
        let mut bytes = e.into_vec();
        // More in common than the first one has.
        let at = bytes.len() - 1 - 4 - 4;
        bytes[at] = 10;
        assert!(Layer::decode(&mut Decoder::new(&bytes)).is_err());
    }
}
