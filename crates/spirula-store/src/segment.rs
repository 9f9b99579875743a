//! Segments: the map of 128 logical blocks to the device, with checksums.
//!
//! A run of logical blocks is stored either plainly, block by block, or as a part of a
//! compressed [`Blob`]. A blob belongs to the segment as long as any of its content is
//! mapped, and is released as a whole.

use crate::alloc::PhysRun;
use crate::compress::Algorithm;
use crate::onode::SEGMENT_BLOCKS;
use crate::sum::Checksum;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use std::sync::Arc;

/// Device block numbers are below this: no device has half an exbibyte.
pub(crate) const PHYS_MAX: u64 = 1 << 47;
/// Marks a place within a blob: the slot from bit 16, the first block of content below.
const IN_BLOB: u64 = 1 << 47;

/// Set in the number of runs: each is written in eight bytes, so that two maps whose blocks
/// are all in places of their own fit into a page of metadata. Others are read only.
const NARROW: u16 = 1 << 15;
/// [`IN_BLOB`] of a run that is written in twelve bytes.
const WIDE_IN_BLOB: u64 = 1 << 56;
/// Set in the number of runs: the record lies over another map, and ends with the blocks that
/// it hides there.
const OVER: u16 = 1 << 14;

/// A bit for each of the blocks `[first, first + len)` of a segment.
pub(crate) fn mask(first: u64, len: u64) -> u128 {
    match len.min(SEGMENT_BLOCKS) {
        0 => 0,
        len => (u128::MAX >> (SEGMENT_BLOCKS - len)) << first.min(SEGMENT_BLOCKS - 1),
    }
}

/// The runs of set bits: first, and how many.
pub(crate) fn runs_of(mut bits: u128) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        let first = u64::from(bits.trailing_zeros());
        if bits == 0 {
            return None;
        }
        let len = u64::from((bits >> first).trailing_ones());
        bits &= !mask(first, len);
        Some((first, len))
    })
}

/// Consecutive logical blocks in consecutive places. A map in pieces has one for each block, and
/// caches and overlays hold many maps: eight bytes, as they are written down, too.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run(u64);

impl Run {
    /// `len` (1 to 128) logical blocks of a segment from `first` on, in `place`: the first block on
    /// the device, or [`IN_BLOB`].
    fn new(first: u64, len: u64, place: u64) -> Self {
        debug_assert!(
            (1..=SEGMENT_BLOCKS).contains(&len)
                && first + len <= SEGMENT_BLOCKS
                && place >> 48 == 0
        );
        Self(first | len << 8 | place << 16)
    }

    /// First logical block, within the segment.
    fn first(self) -> u64 {
        self.0 & 0xff
    }

    /// Number of blocks, not 0.
    fn len(self) -> u64 {
        self.0 >> 8 & 0xff
    }

    /// Behind the last one.
    fn end(self) -> u64 {
        self.first() + self.len()
    }

    /// First block on the device, or [`IN_BLOB`].
    fn place(self) -> u64 {
        self.0 >> 16
    }

    fn slot(self) -> Option<u8> {
        (self.place() & IN_BLOB != 0).then_some((self.place() >> 16) as u8)
    }

    fn is_plain(self) -> bool {
        self.place() & IN_BLOB == 0
    }

    /// The blocks `[from, until)` of it.
    fn part(self, from: u64, until: u64) -> Self {
        Self::new(from, until - from, self.place() + (from - self.first()))
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{} at {:#x}", self.first(), self.len(), self.place())
    }
}

/// Compressed content of some blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blob {
    pub algorithm: Algorithm,
    /// Blocks it decompresses to, 1 to 128.
    pub content: u8,
    /// Bytes of compressed data; zeros follow to the end of the last block.
    pub stored: u32,
    pub kind: Checksum,
    pub runs: Vec<PhysRun>,
    /// One per stored block.
    pub sums: Vec<u32>,
}

impl Blob {
    /// Device blocks it takes.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|r| r.len).sum()
    }

    fn cost(&self) -> usize {
        96 + self.runs.len() * size_of::<PhysRun>() + self.sums.len() * 4
    }
}

/// Where some logical blocks are.
#[derive(Clone, Debug)]
pub(crate) enum Piece<'a> {
    Plain {
        run: PhysRun,
        kind: Checksum,
        /// `kind.words()` per block.
        sums: &'a [u32],
    },
    /// `len` blocks of a blob's content, from block `skip`.
    Part { blob: &'a Arc<Blob>, skip: u64, len: u64 },
}

impl Piece<'_> {
    /// Logical blocks.
    pub fn len(&self) -> u64 {
        match self {
            Self::Plain { run, .. } => run.len,
            Self::Part { len, .. } => *len,
        }
    }

    /// `len` of its blocks, from `skip`.
    #[must_use]
    pub fn part(&self, skip: u64, len: u64) -> Self {
        match self {
            Self::Plain { run, kind, sums } => {
                let (from, words) = (skip as usize, kind.words());
                let sums =
                    sums.get(from * words..(from + len as usize) * words).unwrap_or_default();
                Self::Plain { run: PhysRun { start: run.start + skip, len }, kind: *kind, sums }
            }
            Self::Part { blob, skip: before, .. } => Self::Part { blob, skip: before + skip, len },
        }
    }
}

/// What a segment refers to no more.
#[derive(Debug, Default)]
pub(crate) struct Released {
    pub runs: Vec<PhysRun>,
    pub blobs: Vec<Arc<Blob>>,
}

/// What a map takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Mapped logical blocks.
    pub blocks: u64,
    /// Device blocks referred to.
    pub allocated: u64,
    /// Logical blocks that are in blobs.
    pub compressed: u64,
}

/// The map of up to [`SEGMENT_BLOCKS`] logical blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// In logical order, disjoint.
    runs: Vec<Run>,
    kind: Checksum,
    /// For the plain blocks, in logical order.
    sums: Vec<u32>,
    /// By slot.
    blobs: Vec<(u8, Arc<Blob>)>,
    /// If it lies over another map (module [`layer`](crate::layer)): the blocks of that one
    /// which do not show; all that are mapped here are among them. `None`: nothing is below.
    hides: Option<u128>,
}

impl Segment {
    /// One that hides nothing of what is below it.
    pub fn over() -> Self {
        Self { hides: Some(0), ..Self::default() }
    }

    /// Is it as if it were not there?
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.hides.is_none_or(|h| h == 0)
    }

    /// The blocks below that do not show. All of them, if nothing is below.
    pub fn hides(&self) -> u128 {
        self.hides.unwrap_or(u128::MAX)
    }

    /// Does it lie over another map?
    pub fn lies_over(&self) -> bool {
        self.hides.is_some()
    }

    /// All it refers to.
    pub fn all(&self) -> Released {
        let plain = self.runs.iter().filter(|r| r.is_plain());
        Released {
            runs: plain.map(|r| PhysRun { start: r.place(), len: r.len() }).collect(),
            blobs: self.blobs.iter().map(|(_, b)| b.clone()).collect(),
        }
    }

    /// Gives back memory that it grew into.
    pub fn shrink(&mut self) {
        self.runs.shrink_to_fit();
        self.sums.shrink_to_fit();
    }

    /// Its compressed contents.
    pub fn blobs(&self) -> impl Iterator<Item = &Arc<Blob>> {
        self.blobs.iter().map(|(_, b)| b)
    }

    /// Does it refer to that blob?
    pub fn has_blob(&self, blob: &Blob) -> bool {
        self.blobs().any(|b| b.runs == blob.runs)
    }

    /// The kind of checksum of its plain blocks, if there are any.
    pub fn sums_kind(&self) -> Option<Checksum> {
        (!self.sums.is_empty()).then_some(self.kind)
    }

    pub fn usage(&self) -> Usage {
        let plain = (self.sums.len() / self.kind.words()) as u64;
        if self.blobs.is_empty() {
            return Usage { blocks: plain, allocated: plain, compressed: 0 };
        }
        let blocks: u64 = self.runs.iter().map(|r| r.len()).sum();
        let stored: u64 = self.blobs.iter().map(|(_, b)| b.blocks()).sum();
        Usage { blocks, allocated: plain + stored, compressed: blocks - plain }
    }

    /// The checksum to use for data to be mapped here, where `wanted` would be liked: a
    /// segment has one kind at a time.
    pub fn kind(&self, wanted: Checksum) -> Checksum {
        if self.sums.is_empty() { wanted } else { self.kind }
    }

    /// Memory it takes, bytes, roughly.
    pub fn cost(&self) -> usize {
        let blobs: usize = self.blobs.iter().map(|(_, b)| b.cost() + 16).sum();
        128 + self.runs.capacity() * size_of::<Run>() + self.sums.capacity() * 4 + blobs
    }

    fn blob(&self, slot: u8) -> Option<&Arc<Blob>> {
        self.blobs.iter().find(|(s, _)| *s == slot).map(|(_, b)| b)
    }

    /// All device blocks it refers to.
    pub fn device_runs(&self) -> impl Iterator<Item = PhysRun> {
        let plain = self.runs.iter().filter(|r| r.is_plain());
        let plain = plain.map(|r| PhysRun { start: r.place(), len: r.len() });
        plain.chain(self.blobs.iter().flat_map(|(_, b)| b.runs.iter().copied()))
    }

    /// Mapped parts of `[first, end)`: logical start and where they are.
    pub fn mapped(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, Piece<'_>)> {
        let words = self.kind.words();
        let mut at = 0usize;
        self.runs.iter().filter_map(move |r| {
            let (start, len) = (r.first(), r.len());
            let sums_at = at;
            let slot = r.slot();
            if slot.is_none() {
                at += len as usize;
            }
            let (a, b) = (start.max(first), (start + len).min(end));
            if a >= b {
                return None;
            }
            let (skip, len) = (a - start, b - a);
            let piece = match slot {
                None => {
                    let from = sums_at + skip as usize;
                    let sums = self.sums.get(from * words..(from + len as usize) * words)?;
                    Piece::Plain {
                        run: PhysRun { start: r.place() + skip, len },
                        kind: self.kind,
                        sums,
                    }
                }
                Some(slot) => {
                    Piece::Part { blob: self.blob(slot)?, skip: (r.place() & 0xffff) + skip, len }
                }
            };
            Some((a, piece))
        })
    }

    /// Maps `[first, first + len)` to `new` (together `len` blocks, with sums of `kind`,
    /// which must be what [`Segment::kind`] says), or to nothing if `new` is empty. What was
    /// mapped there is added to `out`.
    pub fn replace(
        &mut self,
        first: u64,
        len: u64,
        new: &[PhysRun],
        kind: Checksum,
        sums: &[u32],
        out: &mut Released,
    ) {
        if self.sums.is_empty() {
            self.kind = kind;
        }
        let mut at = first;
        let each = new.iter().map(|p| {
            let run = Run::new(at, p.len, p.start);
            at += p.len;
            run
        });
        self.splice(first, len, each, sums, out);
    }

    /// Maps `[first, first + len)` to the content of `blob` from block `skip`. True if the
    /// segment did not refer to that blob yet.
    pub fn put_blob(
        &mut self,
        first: u64,
        len: u64,
        blob: &Arc<Blob>,
        skip: u64,
        out: &mut Released,
    ) -> bool {
        let known = self.blobs.iter().find(|(_, b)| b.runs == blob.runs).map(|(s, _)| *s);
        let slot = known.unwrap_or_else(|| {
            // At most 128 runs, so at most as many blobs: there is a free number.
            let free = (0..=u8::MAX).find(|n| self.blob(*n).is_none()).unwrap_or_default();
            self.blobs.push((free, blob.clone()));
            free
        });
        let run = Run::new(first, len, IN_BLOB | u64::from(slot) << 16 | skip);
        self.splice(first, len, std::iter::once(run), &[], out);
        known.is_none()
    }

    fn splice(
        &mut self,
        first: u64,
        len: u64,
        new: impl Iterator<Item = Run>,
        sums: &[u32],
        out: &mut Released,
    ) {
        let end = first + len;
        if let Some(hides) = &mut self.hides {
            *hides |= mask(first, len);
        }
        if self.runs.last().is_none_or(|r| r.end() <= first) && !planted!(CompressedLength) {
            // Behind all that is mapped: maps are often put together in their order.
            new.for_each(|n| push(&mut self.runs, n));
            self.sums.extend_from_slice(sums);
            return;
        }
        let mut new = Some(new);
        let mut runs = Vec::with_capacity(self.runs.len() + 2);
        // Plain blocks before the range, and in it.
        let (mut before, mut gone) = (0usize, 0usize);
        for r in &self.runs {
            let (start, stop, plain) = (r.first(), r.end(), r.is_plain());
            if stop <= first {
                push(&mut runs, *r);
                before += if plain { r.len() as usize } else { 0 };
                continue;
            }
            if start < first {
                push(&mut runs, r.part(start, first));
                before += if plain { (first - start) as usize } else { 0 };
            }
            new.take().into_iter().flatten().for_each(|n| push(&mut runs, n));
            let (a, b) = (start.max(first), stop.min(end));
            if a < b && plain {
                out.runs.push(PhysRun { start: r.place() + (a - start), len: b - a });
                gone += (b - a) as usize;
            }
            if stop > end {
                push(&mut runs, r.part(start.max(end), stop));
            }
        }
        new.take().into_iter().flatten().for_each(|n| push(&mut runs, n));
        self.runs = runs;
        let words = self.kind.words();
        self.sums.splice(before * words..(before + gone) * words, sums.iter().copied());
        let runs = &self.runs;
        if planted!(CompressedLength) && gone == 0 {
            for (_, blob) in &mut self.blobs {
                let cut = Blob { stored: blob.stored - 1, ..(**blob).clone() };
                *blob = Arc::new(cut);
            }
        }
        self.blobs.retain(|(slot, blob)| {
            let used = runs.iter().any(|r| r.slot() == Some(*slot));
            if !used {
                out.blobs.push(blob.clone());
            }
            used
        });
    }

    pub fn encode(&self, out: &mut Encoder) {
        let over = if self.hides.is_some() { OVER } else { 0 };
        out.u16(self.runs.len() as u16 | over | NARROW);
        for r in &self.runs {
            out.u64(r.0);
        }
        out.u8(self.kind.byte());
        for w in &self.sums {
            out.u32(*w);
        }
        out.u8(self.blobs.len() as u8);
        for (slot, b) in &self.blobs {
            out.u8(*slot);
            out.u8(b.algorithm.byte());
            out.u8(b.content);
            out.u32(b.stored);
            out.u8(b.kind.byte());
            out.u8(b.runs.len() as u8);
            for r in &b.runs {
                out.u64(r.start);
                out.u8(r.len as u8);
            }
            for w in &b.sums {
                out.u32(*w);
            }
        }
        if let Some(hides) = self.hides {
            out.u64(hides as u64);
            out.u64((hides >> 64) as u64);
        }
    }

    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let bad = |what, value: u64| DecodeError::Value { what, value: value as i64 };
        let n = d.u16()?;
        let (n, narrow, over) = (n & !(NARROW | OVER), n & NARROW != 0, n & OVER != 0);
        let mut runs = Vec::with_capacity(usize::from(n.min(SEGMENT_BLOCKS as u16)));
        let mut at = 0u64;
        let mut plain = 0usize;
        for _ in 0..n {
            let (start, len, place) = if narrow {
                let r = Run(d.u64()?);
                (r.first(), r.len(), r.place())
            } else {
                let (first, len, place) = (d.u16()?, d.u16()?, d.u64()?);
                let blob = if place & WIDE_IN_BLOB == 0 { 0 } else { IN_BLOB };
                let place = place & !WIDE_IN_BLOB;
                // What does not fit is refused below.
                (first.into(), len.into(), if place < PHYS_MAX { place | blob } else { u64::MAX })
            };
            if len == 0 || start < at || start + len > SEGMENT_BLOCKS || place >= 2 * PHYS_MAX {
                return Err(bad("block map run", start));
            }
            let r = Run::new(start, len, place);
            at = r.end();
            plain += if r.is_plain() { len as usize } else { 0 };
            runs.push(r);
        }
        let kind = decode_kind(d)?;
        let sums = words(d, plain * kind.words())?;
        let count = d.u8()?;
        let mut blobs = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let slot = d.u8()?;
            let code = d.u8()?;
            let algorithm = Algorithm::from_byte(code)
                .ok_or_else(|| bad("compression algorithm", code.into()))?;
            let (content, stored) = (d.u8()?, d.u32()?);
            let kind = decode_kind(d)?;
            let n = d.u8()?;
            let runs = (0..n)
                .map(|_| match (PhysRun { start: d.u64()?, len: u64::from(d.u8()?) }) {
                    r if r.len == 0 || r.start >= PHYS_MAX => Err(bad("blob run", r.len)),
                    r => Ok(r),
                })
                .collect::<Result<Vec<_>, _>>()?;
            let blocks: u64 = runs.iter().map(|r| r.len).sum();
            if u64::from(stored).div_ceil(crate::BLOCK) != blocks
                || u64::from(content) > SEGMENT_BLOCKS
            {
                return Err(bad("blob length", stored.into()));
            }
            let sums = words(d, blocks as usize * kind.words())?;
            blobs.push((slot, Arc::new(Blob { algorithm, content, stored, kind, runs, sums })));
        }
        let hides =
            if over { Some(u128::from(d.u64()?) | u128::from(d.u64()?) << 64) } else { None };
        let s = Self { runs, kind, sums, blobs, hides };
        if let Some(r) = s.runs.iter().find(|r| mask(r.first(), r.len()) & !s.hides() != 0) {
            return Err(bad("block map run over another map", r.first()));
        }
        for r in &s.runs {
            if let Some(slot) = r.slot() {
                let content = s.blob(slot).map_or(0, |b| u64::from(b.content));
                if (r.place() & 0xffff) + r.len() > content {
                    return Err(bad("place in a blob", r.place()));
                }
            }
        }
        Ok(s)
    }
}

/// Reads the byte that names a checksum.
pub(crate) fn decode_kind(d: &mut Decoder<'_>) -> Result<Checksum, DecodeError> {
    let b = d.u8()?;
    Checksum::from_byte(b).ok_or(DecodeError::Value { what: "checksum kind", value: b.into() })
}

/// Reads `n` words of checksums.
pub(crate) fn words(d: &mut Decoder<'_>, n: usize) -> Result<Vec<u32>, DecodeError> {
    let raw = d.take(n * 4)?;
    Ok(raw.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect())
}

fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(l) if l.end() == run.first() && l.place() + l.len() == run.place() => {
            *l = Run::new(l.first(), l.len() + run.len(), l.place())
        }
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Slot {
        Plain(u64, u32),
        Part(u64, u64),
    }

    fn see(s: &Segment) -> Vec<Option<Slot>> {
        let mut seen = vec![None; 128];
        for (l, piece) in s.mapped(0, 128) {
            match piece {
                Piece::Plain { run, kind, sums } => {
                    for i in 0..run.len {
                        let w = &sums[i as usize * kind.words()..][..kind.words()];
                        seen[(l + i) as usize] = Some(Slot::Plain(run.start + i, w[0]));
                    }
                }
                Piece::Part { blob, skip, len } => {
                    for i in 0..len {
                        seen[(l + i) as usize] = Some(Slot::Part(blob.runs[0].start, skip + i));
                    }
                }
            }
        }
        seen
    }

    #[test]
    fn maps_are_small_in_memory_as_on_disk_and_older_ones_are_read() {
        let mut s = Segment::default();
        for i in (0..128).rev() {
            let place = PhysRun { start: PHYS_MAX - 1 - i * 3, len: 1 };
            s.replace(i, 1, &[place], Checksum::Crc32c, &[i as u32], &mut Released::default());
        }
        let mut e = Encoder::new();
        s.encode(&mut e);
        let all = e.into_vec();
        assert_eq!(all.len(), 2 + 128 * 8 + 1 + 512 + 1);
        assert_eq!(Segment::decode(&mut Decoder::new(&all)).unwrap(), s);
        assert!(s.clone().cost() < 1800, "{} bytes for 128 blocks in pieces", s.clone().cost());
        // As an older program wrote it: blocks 5 and 6 in 9 and 10.
        let old =
            [&[1, 0, 5, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0][..], &[1, 0, 0, 0, 2, 0, 0, 0], &[0]]
                .concat();
        let s = Segment::decode(&mut Decoder::new(&old)).unwrap();
        assert_eq!(see(&s)[5..7], [Some(Slot::Plain(9, 1)), Some(Slot::Plain(10, 2))]);
        // In a place that no device has.
        let far = [
            &[1, 0, 5, 0, 2, 0, 9, 0, 0, 0, 0, 128, 0, 0][..],
            &[0],
            &[1, 0, 0, 0, 2, 0, 0, 0],
            &[0],
        ]
        .concat();
        assert!(Segment::decode(&mut Decoder::new(&far)).is_err());
        let bad = |all: u64| {
            Segment::decode(&mut Decoder::new(
                &[&[1, 0x80][..], &all.to_le_bytes(), &[0; 9]].concat(),
            ))
        };
        assert!(
            bad(0x1_0000_0100).is_ok()
                && bad(0x1_0000_0000).is_err()
                && bad(0x1_0000_01ff).is_err()
        );
    }

    proptest! {
        /// Against a plain array of 128 slots.
        #[test]
        fn prop_segment_replaces_like_an_array(
            ops in proptest::collection::vec((0u64..128, 1u64..129, 0u8..3, 1u64..4), 1..30),
            wide: bool,
        ) {
            let kind = if wide { Checksum::Xxhash64 } else { Checksum::Crc32c };
            let mut s = Segment::default();
            let mut model: Vec<Option<Slot>> = vec![None; 128];
            let mut next = 1000u64;
            for (first, len, what, pieces) in ops {
                let len = len.min(128 - first);
                let mut out = Released::default();
                let before = model.clone();
                let range = first as usize..(first + len) as usize;
                if what == 2 {
                    let content = (len + pieces).min(128);
                    let runs = vec![PhysRun { start: next, len: 1 }];
                    let blob = Blob {
                        algorithm: Algorithm::Lz4, content: content as u8, stored: 5, kind, runs, sums: vec![1; kind.words()],
                    };
                    let skip = content - len;
                    prop_assert!(s.put_blob(first, len, &Arc::new(blob), skip, &mut out));
                    for (i, slot) in model[range].iter_mut().enumerate() {
                        *slot = Some(Slot::Part(next, skip + i as u64));
                    }
                    next += 2;
                } else {
                    let mut new = Vec::new();
                    let mut sums = Vec::new();
                    let mut left = if what == 1 { len } else { 0 };
                    model[range.clone()].fill(None);
                    let mut at = range.start;
                    while left > 0 {
                        let n = left.div_ceil(pieces);
                        new.push(PhysRun { start: next, len: n });
                        for i in 0..n {
                            model[at] = Some(Slot::Plain(next + i, at as u32));
                            sums.extend(std::iter::repeat_n(at as u32, kind.words()));
                            at += 1;
                        }
                        next += n + 1;
                        left -= n;
                    }
                    let kind = s.kind(kind);
                    s.replace(first, len, &new, kind, &sums, &mut out);
                }
                // Released: plain blocks that were there, and blobs of which nothing is left.
                let plain = |m: &[Option<Slot>]| -> std::collections::BTreeSet<u64> {
                    m.iter().flatten().filter_map(|s| if let Slot::Plain(p, _) = s { Some(*p) } else { None }).collect()
                };
                let blobs = |m: &[Option<Slot>]| -> std::collections::BTreeSet<u64> {
                    m.iter().flatten().filter_map(|s| if let Slot::Part(b, _) = s { Some(*b) } else { None }).collect()
                };
                let freed: std::collections::BTreeSet<u64> = out.runs.iter().flat_map(|r| r.start..r.start + r.len).collect();
                prop_assert_eq!(freed, &plain(&before) - &plain(&model));
                let freed: std::collections::BTreeSet<u64> = out.blobs.iter().map(|b| b.runs[0].start).collect();
                prop_assert_eq!(freed, &blobs(&before) - &blobs(&model));
                prop_assert_eq!(see(&s), model.clone());
                let usage = s.usage();
                prop_assert_eq!(usage.blocks, model.iter().flatten().count() as u64);
                prop_assert_eq!(usage.allocated, (plain(&model).len() + blobs(&model).len()) as u64);
                prop_assert_eq!(s.device_runs().map(|r| r.len).sum::<u64>(), usage.allocated);
                let mut e = Encoder::new();
                s.encode(&mut e);
                let bytes = e.into_vec();
                prop_assert_eq!(&Segment::decode(&mut Decoder::new(&bytes)).unwrap(), &s);
            }
        }
    }
}
