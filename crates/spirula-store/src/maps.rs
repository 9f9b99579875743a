//! Block maps as their objects see them: what the records of several [layers](crate::layer)
//! say together.

use crate::error::{Result, StoreError};
use crate::layer::{Layer, own_bit};
use crate::onode::Onode;
use crate::segment::{Piece, Released, Segment, Usage, mask, runs_of};
use crate::sum::Checksum;
use std::collections::BTreeSet;
use std::sync::Arc;

/// All blocks of a segment.
pub(crate) const WHOLE: u128 = u128::MAX;

/// Where records are found: in a store, or in a transaction that is being worked out.
pub(crate) trait Maps {
    /// A segment's record of the map with that number.
    fn record(&self, map: u64, seg: u32) -> Result<Option<Arc<Segment>>>;

    /// The layer of that name.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`](crate::StoreError::Corrupt) if there is none.
    fn layer(&self, name: u64) -> Result<Arc<Layer>>;

    /// Adds the numbers in `[first, last]` of records that the map may have.
    fn numbers(&self, map: u64, first: u32, last: u32, found: &mut BTreeSet<u32>) -> Result<()>;
}

/// No chain is as long: one that is leads back into itself.
const CHAIN_MAX: usize = 1024;

/// The layers from that of the name `base` (0: none) down, with their names. Ends with the first
/// error.
pub(crate) fn chain<M: Maps>(
    maps: &M,
    base: u64,
) -> impl Iterator<Item = Result<(u64, Arc<Layer>)>> {
    let (mut at, mut met) = (base, 0);
    std::iter::from_fn(move || {
        let name = std::mem::take(&mut at);
        if name == 0 {
            return None;
        }
        met += 1;
        if met > CHAIN_MAX {
            return Some(Err(StoreError::corrupt(format!(
                "the layers below layer {name} have no end"
            ))));
        }
        let layer = maps.layer(name).inspect(|l| at = l.base);
        Some(layer.map(|l| (name, l)))
    })
}

/// A place in a chain of maps.
struct Link {
    map: u64,
    own: u64,
    base: u64,
}

impl Link {
    /// What an object's map lies over, itself first, down to what lies over the layer `until` (0:
    /// all).
    fn above<M: Maps>(maps: &M, o: &Onode, until: u64) -> impl Iterator<Item = Result<Self>> {
        let below = chain(maps, o.base)
            .take_while(move |l| !matches!(l, Ok((name, _)) if *name == until))
            .map(|l| l.map(|(_, l)| Self { map: l.map, own: l.own, base: l.base }));
        std::iter::once(Ok(Self { map: o.id, own: o.own, base: o.base })).chain(below)
    }

    fn may_have(&self, seg: u32) -> bool {
        self.base == 0 || self.own & own_bit(seg) != 0
    }
}

/// Numbers in `[first, last]` of segments that an object may have, in order: a large object
/// may be one hole but for a few.
pub(crate) fn numbers(maps: &impl Maps, o: &Onode, first: u32, last: u32) -> Result<Vec<u32>> {
    if last - first < 16 {
        return Ok((first..=last).collect());
    }
    let mut found = BTreeSet::new();
    for link in Link::above(maps, o, 0) {
        maps.numbers(link?.map, first, last, &mut found)?;
    }
    Ok(found.into_iter().collect())
}

/// The records that say where some blocks of a segment are, from the top, each with those of
/// the blocks that nothing above it hides.
pub(crate) struct View(Vec<(Arc<Segment>, u128)>);

impl View {
    /// What an object sees of the blocks `wanted` of a segment.
    pub fn of(maps: &impl Maps, o: &Onode, seg: u32, wanted: u128) -> Result<Self> {
        Self::above(maps, o, 0, seg, wanted)
    }

    /// The same of what lies over the layer `until` (0: all).
    pub fn above(maps: &impl Maps, o: &Onode, until: u64, seg: u32, wanted: u128) -> Result<Self> {
        let mut records = Vec::with_capacity(2);
        let mut open = wanted;
        let mut links = Link::above(maps, o, until);
        while open != 0
            && let Some(link) = links.next().transpose()?
        {
            if link.may_have(seg)
                && let Some(record) = maps.record(link.map, seg)?
            {
                let hides = record.hides();
                records.push((record, open));
                open &= !hides;
            }
        }
        Ok(Self(records))
    }

    /// What each record shows, from the top one down but for the first `skip`.
    pub fn pieces(&self, skip: usize) -> impl Iterator<Item = (u64, Piece<'_>)> {
        self.0.iter().skip(skip).flat_map(|(record, open)| {
            let (first, end) = (open.trailing_zeros(), 128 - open.leading_zeros());
            record.mapped(first.into(), end.into()).flat_map(move |(at, piece)| {
                runs_of(open & mask(at, piece.len()))
                    .map(move |(first, len)| (first, piece.part(first - at, len)))
            })
        })
    }

    /// Calls `each` with the mapped parts in logical order: first block and where.
    pub fn each<'a>(&'a self, mut each: impl FnMut(u64, Piece<'a>)) {
        let mut all: Vec<_> = self.pieces(0).collect();
        if self.0.len() > 1 {
            all.sort_unstable_by_key(|(at, _)| *at);
        }
        all.into_iter().for_each(|(at, piece)| each(at, piece));
    }

    /// Is none of the blocks mapped?
    pub fn is_empty(&self) -> bool {
        self.pieces(0).next().is_none()
    }

    /// How many blocks are mapped plainly; `None` if some are compressed.
    pub fn plain(&self) -> Option<u64> {
        self.pieces(0).try_fold(0, |n, (_, piece)| match piece {
            Piece::Plain { run, .. } => Some(n + run.len),
            Piece::Part { .. } => None,
        })
    }

    /// Is a block mapped plainly with another kind of checksum?
    pub fn has_other_sums(&self, than: Checksum) -> bool {
        self.pieces(0).any(|(_, piece)| matches!(piece, Piece::Plain { kind, .. } if kind != than))
    }

    /// What it takes; compressed contents of which a part shows as a whole.
    pub fn usage(&self) -> Usage {
        let (mut usage, mut blobs) = (Usage::default(), BTreeSet::new());
        for (_, piece) in self.pieces(0) {
            usage.blocks += piece.len();
            match piece {
                Piece::Plain { run, .. } => usage.allocated += run.len,
                Piece::Part { blob, len, .. } => {
                    usage.compressed += len;
                    if blobs.insert(blob.runs.first().map(|r| r.start)) {
                        usage.allocated += blob.blocks();
                    }
                }
            }
        }
        usage
    }

    /// One record that says the same: over nothing, or over a map of which it hides all that one of
    /// these does.
    pub fn flat(&self, over: bool) -> Segment {
        let mut flat = Segment::default();
        if over {
            flat = Segment::over();
            let hidden = self.0.iter().fold(0, |all, (record, _)| all | record.hides());
            for (first, len) in runs_of(hidden).filter(|_| !planted!(FoldedMapShowsHoles)) {
                flat.replace(first, len, &[], Checksum::default(), &[], &mut Released::default());
            }
        }
        self.each(|at, piece| put_piece(&mut flat, at, &piece));
        flat.shrink();
        flat
    }
}

/// The kind of checksum of what an object sees mapped plainly in a segment, if there is anything:
/// one at a time.
///
/// Whatever was written to a map got the kind of what showed below it then, and what is below never
/// changes. So all that still shows is of the kind of the first record from the top that has any.
pub(crate) fn kind(maps: &impl Maps, o: &Onode, seg: u32) -> Result<Option<Checksum>> {
    for link in Link::above(maps, o, 0) {
        let link = link?;
        if link.may_have(seg)
            && let Some(kind) = maps.record(link.map, seg)?.and_then(|r| r.sums_kind())
        {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}

/// Maps what is not mapped in a record.
pub(crate) fn put_piece(seg: &mut Segment, at: u64, piece: &Piece<'_>) {
    let mut nothing = Released::default();
    match piece {
        Piece::Plain { run, kind, sums } => {
            seg.replace(at, run.len, &[*run], *kind, sums, &mut nothing)
        }
        Piece::Part { blob, skip, len } => drop(seg.put_blob(at, *len, blob, *skip, &mut nothing)),
    }
}
