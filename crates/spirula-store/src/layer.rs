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
//! need not tell those above. The object that has a name is found by a record of its own.
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
use spirula_encoding::crc::crc32c;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::HObject;

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
}

impl Layer {
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
        out.versioned(1, 1, |o| {
            o.u64(self.map);
            o.u64(self.base);
            o.u64(self.children);
            o.u64(self.names);
            o.u32(self.depth);
            o.u64(self.own);
            o.bool(self.shared);
        });
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("layer", 1, |d, _| {
            Ok(Self {
                map: d.u64()?,
                base: d.u64()?,
                children: d.u64()?,
                names: d.u64()?,
                depth: d.u32()?,
                own: d.u64()?,
                shared: d.bool()?,
            })
        })
    }
}

/// The bit of a segment among those that a map over a layer may have.
pub(crate) fn own_bit(seg: u32) -> u64 {
    1 << (seg % 64)
}
