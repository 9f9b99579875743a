//! An object's metadata: the head record (size, attributes, a small object's block map)
//! and the numbers of the [segments](crate::segment) that map larger objects, 512 KiB each.
//!
//! A block map says for each logical block of 4 KiB where it is stored and what its
//! checksum is. Unmapped blocks read as zeros. Bytes of the last block behind the object's
//! end are zeros: whoever shrinks an object rewrites that block.

use crate::segment::{Segment, Usage};
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};

/// Logical blocks per segment (512 KiB).
pub(crate) const SEGMENT_BLOCKS: u64 = 128;
/// Objects that map no block beyond this keep their map in the head record.
pub(crate) const INLINE_BLOCKS: u64 = 16;

/// Stands for a number that nobody knows.
const NOT_COUNTED: u64 = u64::MAX;
/// Stands for a kind of checksum that nobody knows.
const NOT_KNOWN: u8 = u8::MAX;

/// The head record of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Onode {
    /// Number of its own map, never used again; names its segments.
    pub id: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number under which its omap is kept; 0 if it has none.
    pub omap: u64,
    /// Number of mapped logical blocks.
    pub blocks: u64,
    /// Number of device blocks it refers to, shared ones included.
    pub allocated: u64,
    /// Some of its blocks may have other owners: look before letting go of one.
    pub shared: bool,
    /// Clients' allocation hints (flags of Ceph's set-alloc-hint).
    pub hints: u32,
    /// Attributes, sorted by name.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// The block map, while the object is small.
    pub inline: Option<Segment>,
    /// The layer below its map (module [`layer`](crate::layer)); 0: there is none.
    pub base: u64,
    /// The number by which that layer knows it; 0 without one.
    pub name: u64,
    /// A record of its own says whose that name is. Else the layer below was made for this object,
    /// and says so itself.
    pub told: bool,
    /// Layers below it, at most: some may have gone since. 0: not known.
    pub depth: u32,
    /// Over a layer: the kind of checksum of all that it sees mapped plainly. `None`: not known to
    /// be one for all.
    pub sums: Option<Checksum>,
    /// Over a layer: which segments its own map may have, number n at bit n modulo 64.
    pub own: u64,
    /// Number of mapped logical blocks that are compressed, where somebody has counted.
    pub compressed: Option<u64>,
    /// Its omap may have other owners: look before changing it.
    pub omap_shared: bool,
}

impl Onode {
    /// An empty object.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            size: 0,
            omap: 0,
            blocks: 0,
            allocated: 0,
            shared: false,
            hints: 0,
            attrs: Vec::new(),
            inline: Some(Segment::default()),
            base: 0,
            name: 0,
            told: false,
            depth: 0,
            sums: None,
            own: 0,
            compressed: None,
            omap_shared: false,
        }
    }

    /// Lies over nothing from now on.
    pub fn unlayer(&mut self) {
        (self.base, self.name, self.told, self.own) = (0, 0, false, 0);
        (self.depth, self.sums) = (0, None);
    }

    /// Memory it takes, bytes, roughly.
    pub fn cost(&self) -> usize {
        let attrs: usize = self.attrs.iter().map(|(k, v)| k.len() + v.len() + 96).sum();
        160 + attrs + self.inline.as_ref().map_or(0, Segment::cost)
    }

    /// Bytes of data it holds, for statistics.
    pub fn stored(&self) -> u64 {
        (self.blocks * crate::BLOCK).min(self.size)
    }

    /// Takes note that a part of its map has changed.
    pub fn account(&mut self, before: Usage, after: Usage) {
        self.blocks = (self.blocks + after.blocks).saturating_sub(before.blocks);
        self.allocated = (self.allocated + after.allocated).saturating_sub(before.allocated);
        if let Some(n) = &mut self.compressed {
            *n = (*n + after.compressed).saturating_sub(before.compressed);
        }
    }

    pub fn set_attr(&mut self, name: &Bytes, value: &Bytes) {
        // Copied, lest a short value pins the message it came in.
        let value = Bytes::copy_from_slice(value);
        match self.attrs.binary_search_by(|(k, _)| k.cmp(name)) {
            Ok(i) => self.attrs[i].1 = value,
            Err(i) => self.attrs.insert(i, (Bytes::copy_from_slice(name), value)),
        }
    }

    pub fn encode(&self, out: &mut Encoder) {
        // As ever, unless it has been cloned.
        let cloned = self.base != 0 || self.compressed.is_some() || self.omap_shared;
        let version = match cloned {
            true if self.base != 0 && (!self.told || self.depth != 0 || self.sums.is_some()) => 3,
            true => 2,
            false => 1,
        };
        out.versioned(version, version, |o| {
            o.u64(self.id);
            o.u64(self.size);
            o.u64(self.omap);
            o.u64(self.blocks);
            o.u64(self.allocated);
            o.bool(self.shared);
            o.u32(self.hints);
            o.list(&self.attrs, |o, (k, v)| {
                o.put(k);
                o.put(v);
            });
            o.bool(self.inline.is_some());
            if let Some(s) = &self.inline {
                s.encode(o);
            }
            if cloned {
                o.u64(self.base);
                o.u64(self.name);
                o.u64(self.own);
                o.u64(self.compressed.unwrap_or(NOT_COUNTED));
                o.bool(self.omap_shared);
            }
            if version == 3 {
                o.bool(self.told);
                o.u32(self.depth);
                o.u8(self.sums.map_or(NOT_KNOWN, Checksum::byte));
            }
        });
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("onode", 3, |d, version| {
            let mut o = Self {
                id: d.u64()?,
                size: d.u64()?,
                omap: d.u64()?,
                blocks: d.u64()?,
                allocated: d.u64()?,
                shared: d.bool()?,
                hints: d.u32()?,
                attrs: d.get()?,
                inline: if d.bool()? { Some(Segment::decode(d)?) } else { None },
                base: 0,
                name: 0,
                told: false,
                depth: 0,
                sums: None,
                own: 0,
                compressed: None,
                omap_shared: false,
            };
            if version >= 2 {
                (o.base, o.name, o.own) = (d.u64()?, d.u64()?, d.u64()?);
                o.compressed = Some(d.u64()?).filter(|n| *n != NOT_COUNTED);
                o.omap_shared = d.bool()?;
                o.told = o.base != 0;
            }
            if version >= 3 {
                (o.told, o.depth) = (d.bool()?, d.u32()?);
                o.sums = match d.u8()? {
                    NOT_KNOWN => None,
                    b => Some(
                        Checksum::from_byte(b)
                            .ok_or(DecodeError::Value { what: "checksum kind", value: b.into() })?,
                    ),
                };
            }
            Ok(o)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what an older program would misread is written in a form that it refuses.
    #[test]
    fn onodes_of_all_versions_are_read_back() {
        let new = Onode { size: 5, blocks: 1, allocated: 1, ..Onode::new(1) };
        let cloned = Onode {
            base: 2,
            name: 3,
            told: true,
            own: 4,
            compressed: Some(0),
            inline: None,
            ..new.clone()
        };
        let forms = [
            (1, new.clone()),
            (2, Onode { omap: 9, omap_shared: true, ..new }),
            (2, cloned.clone()),
            (3, Onode { told: false, ..cloned.clone() }),
            (3, Onode { depth: 7, ..cloned.clone() }),
            (3, Onode { sums: Some(Checksum::Xxhash64), compressed: None, ..cloned }),
        ];
        for (version, o) in forms {
            let mut e = Encoder::new();
            o.encode(&mut e);
            let mut bytes = e.into_vec();
            assert_eq!((bytes[0], bytes[1]), (version, version));
            assert_eq!(Onode::decode(&mut Decoder::new(&bytes)).unwrap(), o);
            if version == 3 {
                *bytes.last_mut().unwrap() = 99;
                assert!(Onode::decode(&mut Decoder::new(&bytes)).is_err());
            }
        }
    }
}
