//! Journal records: what one transaction changed, in physical terms.
//!
//! A record is applied without reading any data: it holds resulting onodes, block-map
//! patches, omap, meta and log changes, and which blocks were taken and freed. The images
//! of small data blocks follow the record in the journal frame.

use crate::alloc::PhysRun;
use crate::layer::Layer;
use crate::onode::{Onode, SEGMENT_BLOCKS};
use crate::overlay::Counters;
use crate::refs::CHUNK;
use crate::segment::{self, Segment};
use crate::store::PoolSpace;
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::{EVersion, PgId};

const HEAD: u8 = 1;
const HEAD_GONE: u8 = 2;
const PATCH: u8 = 3;
const SEGMENT_GONE: u8 = 4;
const OMAP: u8 = 5;
const OMAP_GONE: u8 = 6;
const OMAP_HEADER: u8 = 7;
const OMAP_DEAD: u8 = 8;
const META: u8 = 9;
const META_GONE: u8 = 10;
const LOG_APPEND: u8 = 11;
const LOG_TRIM: u8 = 12;
const LOG_REWIND: u8 = 13;
const LOG_REMOVE: u8 = 14;
const TAKEN: u8 = 15;
const FREED: u8 = 16;
const COUNTERS: u8 = 17;
const SEGMENT: u8 = 18;
const REFERENCED: u8 = 19;
const UNREFERENCED: u8 = 20;
const POOL: u8 = 21;
const OMAP_RANGE_GONE: u8 = 22;
const BESIDE: u8 = 23;
const PATCH_OVER: u8 = 24;
const LAYER: u8 = 25;
const LAYER_GONE: u8 = 26;
const NAMED: u8 = 27;
const NAMED_GONE: u8 = 28;
const OMAP_OWNERS: u8 = 29;
const OMAP_COPIED: u8 = 30;

/// One change, as read back from the journal.
#[derive(Debug, PartialEq)]
pub(crate) enum Redo {
    Head {
        key: Bytes,
        onode: Option<Onode>,
    },
    Patch {
        /// The map lies over another one.
        over: bool,
        id: u64,
        seg: u32,
        first: u64,
        len: u64,
        runs: Vec<PhysRun>,
        kind: Checksum,
        sums: Vec<u32>,
    },
    /// A segment as a whole.
    Segment {
        id: u64,
        seg: u32,
        value: Segment,
    },
    SegmentGone {
        id: u64,
        seg: u32,
    },
    Omap {
        id: u64,
        key: Bytes,
        value: Option<Bytes>,
    },
    OmapHeader {
        id: u64,
        value: Bytes,
    },
    OmapDead {
        id: u64,
    },
    /// Keys from `first` up to but not including `last`.
    OmapRangeGone {
        id: u64,
        first: Bytes,
        last: Bytes,
    },
    Meta {
        key: Bytes,
        value: Option<Bytes>,
    },
    LogAppend {
        pg: PgId,
        version: EVersion,
        entry: Bytes,
    },
    LogTrim {
        pg: PgId,
        to: EVersion,
    },
    LogRewind {
        pg: PgId,
        to: EVersion,
    },
    LogRemove {
        pg: PgId,
    },
    /// `image`: the blocks' contents follow the record.
    Taken {
        run: PhysRun,
        image: bool,
    },
    Freed {
        run: PhysRun,
    },
    Counters(Counters),
    /// Blocks in use have one more owner.
    Referenced {
        run: PhysRun,
    },
    /// Blocks in use have lost one of several owners.
    Unreferenced {
        run: PhysRun,
    },
    Pool {
        pool: i64,
        space: PoolSpace,
    },
    Layer {
        name: u64,
        value: Option<Layer>,
    },
    /// Owners of an omap beyond the first.
    OmapOwners {
        id: u64,
        more: u64,
    },
    /// An omap that nobody knew is a copy of another one.
    OmapCopied {
        id: u64,
        from: u64,
    },
    /// The key of the object that layers know by this name.
    Named {
        name: u64,
        key: Option<Bytes>,
    },
}

/// Changes that are not in the journal but in these blocks, one run after the other.
#[derive(Debug, PartialEq)]
pub(crate) struct Beside {
    /// Bytes.
    pub len: usize,
    pub crc: u32,
    pub runs: Vec<PhysRun>,
}

/// What stands in a record for changes beside it.
pub(crate) fn encode_beside(b: &Beside) -> Vec<u8> {
    let mut o = Encoder::with_capacity(16 + 16 * b.runs.len());
    o.u8(BESIDE);
    o.u64(b.len as u64);
    o.u32(b.crc);
    o.list(&b.runs, |o, r| {
        o.u64(r.start);
        o.u64(r.len);
    });
    o.into_vec()
}

/// Where a record's changes are, if they are not in it.
///
/// # Errors
/// [`DecodeError`] if it says that they are, in a form that is none.
pub(crate) fn beside(record: &[u8]) -> Result<Option<Beside>, DecodeError> {
    let mut d = Decoder::new(record);
    if d.is_empty() || d.u8()? != BESIDE {
        return Ok(None);
    }
    let (len, crc) = (d.u64()?, d.u32()?);
    let runs = d.list(16, |d| Ok(PhysRun { start: d.u64()?, len: d.u64()? }))?;
    d.finish()?;
    Ok(Some(Beside { len: usize::try_from(len).unwrap_or(usize::MAX), crc, runs }))
}

/// Writes a record.
#[derive(Default)]
pub(crate) struct RedoWriter(Encoder);

impl RedoWriter {
    pub fn new() -> Self {
        Self(Encoder::with_capacity(1024))
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }

    pub fn head(&mut self, key: &[u8], onode: Option<&Onode>) {
        match onode {
            Some(n) => {
                self.0.u8(HEAD);
                self.0.blob(key);
                n.encode(&mut self.0);
            }
            None => {
                self.0.u8(HEAD_GONE);
                self.0.blob(key);
            }
        }
    }

    /// `runs` empty: the range becomes unmapped.
    #[allow(clippy::too_many_arguments, reason = "the fields of one change")]
    pub fn patch(
        &mut self,
        over: bool,
        id: u64,
        seg: u32,
        first: u64,
        len: u64,
        runs: &[PhysRun],
        kind: Checksum,
        sums: &[u32],
    ) {
        let o = &mut self.0;
        o.u8(if over { PATCH_OVER } else { PATCH });
        o.u64(id);
        o.u32(seg);
        o.u8(first as u8);
        o.u8(len as u8);
        o.u8(runs.len() as u8);
        for r in runs {
            o.u64(r.start);
            o.u8(r.len as u8);
        }
        o.u8(kind.byte());
        for w in sums {
            o.u32(*w);
        }
    }

    pub fn segment(&mut self, id: u64, seg: u32, value: &Segment) {
        self.0.u8(SEGMENT);
        self.0.u64(id);
        self.0.u32(seg);
        value.encode(&mut self.0);
    }

    pub fn segment_gone(&mut self, id: u64, seg: u32) {
        self.0.u8(SEGMENT_GONE);
        self.0.u64(id);
        self.0.u32(seg);
    }

    pub fn omap(&mut self, id: u64, key: &[u8], value: Option<&[u8]>) {
        self.0.u8(if value.is_some() { OMAP } else { OMAP_GONE });
        self.0.u64(id);
        self.0.blob(key);
        if let Some(v) = value {
            self.0.blob(v);
        }
    }

    pub fn omap_header(&mut self, id: u64, value: &[u8]) {
        self.0.u8(OMAP_HEADER);
        self.0.u64(id);
        self.0.blob(value);
    }

    pub fn omap_dead(&mut self, id: u64) {
        self.0.u8(OMAP_DEAD);
        self.0.u64(id);
    }

    pub fn omap_copied(&mut self, id: u64, from: u64) {
        self.0.u8(OMAP_COPIED);
        self.0.u64(id);
        self.0.u64(from);
    }

    pub fn omap_range_gone(&mut self, id: u64, first: &[u8], last: &[u8]) {
        self.0.u8(OMAP_RANGE_GONE);
        self.0.u64(id);
        self.0.blob(first);
        self.0.blob(last);
    }

    pub fn meta(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.0.u8(if value.is_some() { META } else { META_GONE });
        self.0.blob(key);
        if let Some(v) = value {
            self.0.blob(v);
        }
    }

    pub fn log_append(&mut self, pg: PgId, version: EVersion, entry: &[u8]) {
        self.0.u8(LOG_APPEND);
        self.0.put(&pg);
        self.0.put(&version);
        self.0.blob(entry);
    }

    pub fn log_trim(&mut self, pg: PgId, to: EVersion) {
        self.0.u8(LOG_TRIM);
        self.0.put(&pg);
        self.0.put(&to);
    }

    pub fn log_rewind(&mut self, pg: PgId, to: EVersion) {
        self.0.u8(LOG_REWIND);
        self.0.put(&pg);
        self.0.put(&to);
    }

    pub fn log_remove(&mut self, pg: PgId) {
        self.0.u8(LOG_REMOVE);
        self.0.put(&pg);
    }

    pub fn taken(&mut self, run: PhysRun, image: bool) {
        self.0.u8(TAKEN);
        self.0.u64(run.start);
        self.0.u64(run.len);
        self.0.bool(image);
    }

    pub fn freed(&mut self, run: PhysRun) {
        self.0.u8(FREED);
        self.0.u64(run.start);
        self.0.u64(run.len);
    }

    pub fn referenced(&mut self, run: PhysRun) {
        self.0.u8(REFERENCED);
        self.0.u64(run.start);
        self.0.u64(run.len);
    }

    pub fn unreferenced(&mut self, run: PhysRun) {
        self.0.u8(UNREFERENCED);
        self.0.u64(run.start);
        self.0.u64(run.len);
    }

    pub fn layer(&mut self, name: u64, value: Option<&Layer>) {
        self.0.u8(if value.is_some() { LAYER } else { LAYER_GONE });
        self.0.u64(name);
        if let Some(l) = value {
            l.encode(&mut self.0);
        }
    }

    pub fn named(&mut self, name: u64, key: Option<&[u8]>) {
        self.0.u8(if key.is_some() { NAMED } else { NAMED_GONE });
        self.0.u64(name);
        if let Some(k) = key {
            self.0.blob(k);
        }
    }

    pub fn omap_owners(&mut self, id: u64, more: u64) {
        self.0.u8(OMAP_OWNERS);
        self.0.u64(id);
        self.0.u64(more);
    }

    pub fn pool(&mut self, pool: i64, space: &PoolSpace) {
        self.0.u8(POOL);
        self.0.u64(pool as u64);
        space.encode(&mut self.0);
    }

    pub fn counters(&mut self, c: &Counters) {
        self.0.u8(COUNTERS);
        self.0.u64(c.next_id);
        self.0.u64(c.objects);
        self.0.u64(c.stored);
    }
}

/// Reads the next change of a record.
pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Redo, DecodeError> {
    let run = |d: &mut Decoder<'_>| Ok(PhysRun { start: d.u64()?, len: d.u64()? });
    Ok(match d.u8()? {
        LAYER => Redo::Layer { name: d.u64()?, value: Some(Layer::decode(d)?) },
        LAYER_GONE => Redo::Layer { name: d.u64()?, value: None },
        OMAP_COPIED => Redo::OmapCopied { id: d.u64()?, from: d.u64()? },
        OMAP_OWNERS => Redo::OmapOwners { id: d.u64()?, more: d.u64()? },
        NAMED => Redo::Named { name: d.u64()?, key: Some(d.get()?) },
        NAMED_GONE => Redo::Named { name: d.u64()?, key: None },
        HEAD => Redo::Head { key: d.get()?, onode: Some(Onode::decode(d)?) },
        HEAD_GONE => Redo::Head { key: d.get()?, onode: None },
        tag @ (PATCH | PATCH_OVER) => {
            let over = tag == PATCH_OVER;
            let (id, seg) = (d.u64()?, d.u32()?);
            let (first, len, pieces) = (u64::from(d.u8()?), u64::from(d.u8()?), d.u8()?);
            let runs = (0..pieces)
                .map(|_| Ok(PhysRun { start: d.u64()?, len: u64::from(d.u8()?) }))
                .collect::<Result<Vec<_>, DecodeError>>()?;
            let mapped: u64 = runs.iter().map(|r| r.len).sum();
            let is_none = |r: &PhysRun| r.len == 0 || r.start >= segment::PHYS_MAX;
            if len == 0
                || first + len > SEGMENT_BLOCKS
                || (mapped != len && mapped != 0)
                || runs.iter().any(is_none)
            {
                return Err(DecodeError::Value { what: "block map patch", value: first as i64 });
            }
            let kind = segment::decode_kind(d)?;
            let sums = segment::words(d, mapped as usize * kind.words())?;
            Redo::Patch { over, id, seg, first, len, runs, kind, sums }
        }
        SEGMENT_GONE => Redo::SegmentGone { id: d.u64()?, seg: d.u32()? },
        OMAP => Redo::Omap { id: d.u64()?, key: d.get()?, value: Some(d.get()?) },
        OMAP_GONE => Redo::Omap { id: d.u64()?, key: d.get()?, value: None },
        OMAP_HEADER => Redo::OmapHeader { id: d.u64()?, value: d.get()? },
        OMAP_DEAD => Redo::OmapDead { id: d.u64()? },
        OMAP_RANGE_GONE => Redo::OmapRangeGone { id: d.u64()?, first: d.get()?, last: d.get()? },
        META => Redo::Meta { key: d.get()?, value: Some(d.get()?) },
        META_GONE => Redo::Meta { key: d.get()?, value: None },
        LOG_APPEND => Redo::LogAppend { pg: d.get()?, version: d.get()?, entry: d.get()? },
        LOG_TRIM => Redo::LogTrim { pg: d.get()?, to: d.get()? },
        LOG_REWIND => Redo::LogRewind { pg: d.get()?, to: d.get()? },
        LOG_REMOVE => Redo::LogRemove { pg: d.get()? },
        TAKEN => Redo::Taken { run: run(d)?, image: d.bool()? },
        FREED => Redo::Freed { run: run(d)? },
        COUNTERS => {
            Redo::Counters(Counters { next_id: d.u64()?, objects: d.u64()?, stored: d.u64()? })
        }
        SEGMENT => Redo::Segment { id: d.u64()?, seg: d.u32()?, value: Segment::decode(d)? },
        REFERENCED => Redo::Referenced { run: run(d)? },
        UNREFERENCED => Redo::Unreferenced { run: run(d)? },
        POOL => Redo::Pool { pool: d.u64()? as i64, space: PoolSpace::decode(d)? },
        v => return Err(DecodeError::Value { what: "journal change", value: i64::from(v) }),
    })
}

/// Splits a run of device blocks into parts within chunks of reference counts: chunk
/// number, first block in it, number of blocks.
pub(crate) fn by_chunk(run: PhysRun) -> impl Iterator<Item = (u64, u64, u64)> {
    let (mut at, end) = (run.start, run.start.saturating_add(run.len));
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let n = (end - at).min(CHUNK - at % CHUNK);
        let part = (at / CHUNK, at % CHUNK, n);
        at += n;
        Some(part)
    })
}

/// Splits `[first, first + len)` of a whole object's logical blocks into parts within
/// segments: segment number, first block in it, number of blocks.
pub(crate) fn by_segment(first: u64, len: u64) -> impl Iterator<Item = (u32, u64, u64)> {
    let end = first + len;
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let seg = at / SEGMENT_BLOCKS;
        let n = (end - at).min((seg + 1) * SEGMENT_BLOCKS - at);
        let part = (seg as u32, at % SEGMENT_BLOCKS, n);
        at += n;
        Some(part)
    })
}
