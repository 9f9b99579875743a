//! An object's metadata: the head record (size, attributes, a small object's block map)
//! and the segments that map larger objects, 512 KiB each.
//!
//! A block map says for each logical block of 4 KiB where it is stored and the crc32c
//! (seed −1) of its whole content. Unmapped blocks read as zeros. Bytes of the last block
//! behind the object's end are zeros: whoever shrinks an object rewrites that block.

use crate::alloc::PhysRun;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};

/// Logical blocks per segment (512 KiB).
pub(crate) const SEGMENT_BLOCKS: u64 = 128;
/// Objects that map no block beyond this keep their map in the head record.
pub(crate) const INLINE_BLOCKS: u64 = 16;
/// Block numbers above this are not valid; the bits above are kept for flags.
const PHYS_MAX: u64 = 1 << 56;

/// Consecutive logical blocks stored in consecutive blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First logical block, within the segment.
    pub first: u16,
    /// Number of blocks, not 0.
    pub len: u16,
    /// First block on the device.
    pub phys: u64,
}

/// The map of up to [`SEGMENT_BLOCKS`] logical blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// In logical order, disjoint.
    runs: Vec<Run>,
    /// One per mapped block, in logical order.
    crcs: Vec<u32>,
}

impl Segment {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of mapped blocks.
    pub fn blocks(&self) -> u64 {
        self.crcs.len() as u64
    }

    /// Memory it takes, bytes, roughly.
    pub fn cost(&self) -> usize {
        96 + self.runs.len() * size_of::<Run>() + self.crcs.len() * 4
    }

    /// Mapped parts of `[first, end)`: logical start, device run, checksums.
    pub fn mapped(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, PhysRun, &[u32])> {
        let mut at = 0usize;
        self.runs.iter().filter_map(move |r| {
            let (start, len) = (u64::from(r.first), u64::from(r.len));
            let crc_at = at;
            at += len as usize;
            let (a, b) = (start.max(first), (start + len).min(end));
            if a >= b {
                return None;
            }
            let skip = (a - start) as usize;
            let crcs = self.crcs.get(crc_at + skip..crc_at + skip + (b - a) as usize)?;
            Some((a, PhysRun { start: r.phys + (a - start), len: b - a }, crcs))
        })
    }

    /// Maps `[first, first + len)` to `new` (together `len` blocks, with their checksums),
    /// or to nothing if `new` is empty. What was mapped there is appended to `freed`.
    pub fn replace(&mut self, first: u64, len: u64, new: &[PhysRun], crcs: &[u32], freed: &mut Vec<PhysRun>) {
        let end = first + len;
        let mut runs = Vec::with_capacity(self.runs.len() + new.len() + 1);
        let (mut before, mut gone) = (0usize, 0usize);
        let mut inserted = false;
        let insert = |runs: &mut Vec<Run>| {
            let mut at = first;
            for p in new {
                push(runs, Run { first: at as u16, len: p.len as u16, phys: p.start });
                at += p.len;
            }
        };
        for r in &self.runs {
            let (start, stop) = (u64::from(r.first), u64::from(r.first) + u64::from(r.len));
            if stop > first && !inserted {
                if start < first {
                    push(&mut runs, Run { len: (first - start) as u16, ..*r });
                    before += (first - start) as usize;
                }
                insert(&mut runs);
                inserted = true;
            } else if stop <= first {
                push(&mut runs, *r);
                before += usize::from(r.len);
                continue;
            }
            let (a, b) = (start.max(first), stop.min(end));
            if a < b {
                freed.push(PhysRun { start: r.phys + (a - start), len: b - a });
                gone += (b - a) as usize;
            }
            if stop > end {
                let from = start.max(end);
                push(&mut runs, Run { first: from as u16, len: (stop - from) as u16, phys: r.phys + (from - start) });
            }
        }
        if !inserted {
            insert(&mut runs);
        }
        self.runs = runs;
        self.crcs.splice(before..before + gone, crcs.iter().copied());
    }

    pub fn encode(&self, out: &mut Encoder) {
        out.u16(self.runs.len() as u16);
        for r in &self.runs {
            out.u16(r.first);
            out.u16(r.len);
            out.u64(r.phys);
        }
        for c in &self.crcs {
            out.u32(*c);
        }
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let n = d.u16()?;
        let mut runs = Vec::with_capacity(usize::from(n.min(SEGMENT_BLOCKS as u16)));
        let mut at = 0u64;
        let mut blocks = 0usize;
        for _ in 0..n {
            let r = Run { first: d.u16()?, len: d.u16()?, phys: d.u64()? };
            let (start, end) = (u64::from(r.first), u64::from(r.first) + u64::from(r.len));
            if r.len == 0 || start < at || end > SEGMENT_BLOCKS || r.phys >= PHYS_MAX {
                return Err(DecodeError::Value { what: "block map run", value: i64::from(r.first) });
            }
            at = end;
            blocks += usize::from(r.len);
            runs.push(r);
        }
        let crcs = (0..blocks).map(|_| d.u32()).collect::<Result<_, _>>()?;
        Ok(Self { runs, crcs })
    }
}

fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(l) if l.first + l.len == run.first && l.phys + u64::from(l.len) == run.phys => l.len += run.len,
        _ => runs.push(run),
    }
}

/// The head record of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Onode {
    /// Number of this incarnation, never used again; names its segments.
    pub id: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number under which its omap is kept; 0 if it has none.
    pub omap: u64,
    /// Number of mapped blocks.
    pub blocks: u64,
    /// Attributes, sorted by name.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// The block map, while the object is small.
    pub inline: Option<Segment>,
}

impl Onode {
    /// An empty object.
    pub fn new(id: u64) -> Self {
        Self { id, size: 0, omap: 0, blocks: 0, attrs: Vec::new(), inline: Some(Segment::default()) }
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

    pub fn set_attr(&mut self, name: &Bytes, value: &Bytes) {
        // Copied, lest a short value pins the message it came in.
        let value = Bytes::copy_from_slice(value);
        match self.attrs.binary_search_by(|(k, _)| k.cmp(name)) {
            Ok(i) => self.attrs[i].1 = value,
            Err(i) => self.attrs.insert(i, (Bytes::copy_from_slice(name), value)),
        }
    }

    pub fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.id);
            o.u64(self.size);
            o.u64(self.omap);
            o.u64(self.blocks);
            o.list(&self.attrs, |o, (k, v)| {
                o.put(k);
                o.put(v);
            });
            o.bool(self.inline.is_some());
            if let Some(s) = &self.inline {
                s.encode(o);
            }
        });
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("onode", 1, |d, _| {
            Ok(Self {
                id: d.u64()?,
                size: d.u64()?,
                omap: d.u64()?,
                blocks: d.u64()?,
                attrs: d.get()?,
                inline: if d.bool()? { Some(Segment::decode(d)?) } else { None },
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain array of 128 slots.
        #[test]
        fn prop_segment_replaces_like_an_array(
            ops in proptest::collection::vec((0u64..128, 1u64..129, any::<bool>(), 1u64..4), 1..30),
        ) {
            let mut s = Segment::default();
            let mut model = vec![None; 128];
            let mut next = 1000u64;
            for (first, len, map, pieces) in ops {
                let len = len.min(128 - first);
                let mut new = Vec::new();
                let mut crcs = Vec::new();
                let mut freed = Vec::new();
                if map {
                    let mut left = len;
                    while left > 0 {
                        let n = left.div_ceil(pieces);
                        new.push(PhysRun { start: next, len: n });
                        next += n + 1;
                        left -= n;
                    }
                    crcs = (0..len).map(|i| (next + i) as u32).collect();
                }
                s.replace(first, len, &new, &crcs, &mut freed);
                let mut expected: Vec<u64> = Vec::new();
                let mut phys = new.iter().flat_map(|r| r.start..r.start + r.len);
                for (i, slot) in model.iter_mut().enumerate().skip(first as usize).take(len as usize) {
                    if let Some((p, _)) = slot.take() {
                        expected.push(p);
                    }
                    if map {
                        *slot = Some((phys.next().unwrap(), crcs[i - first as usize]));
                    }
                }
                let freed: Vec<u64> = freed.iter().flat_map(|r| r.start..r.start + r.len).collect();
                prop_assert_eq!(freed, expected);
                let mut seen = vec![None; 128];
                for (l, p, c) in s.mapped(0, 128) {
                    for i in 0..p.len {
                        seen[(l + i) as usize] = Some((p.start + i, c[i as usize]));
                    }
                }
                prop_assert_eq!(&seen, &model);
                let mut e = Encoder::new();
                s.encode(&mut e);
                let bytes = e.into_vec();
                prop_assert_eq!(&Segment::decode(&mut Decoder::new(&bytes)).unwrap(), &s);
            }
        }
    }
}
