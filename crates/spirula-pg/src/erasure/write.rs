//! A write in an erasure-coded pool: what must be read before it, and what each shard is given of
//! it.

use super::Shape;
use super::stripe::{self, Piece, Stripes, from_pieces};
use super::undo;
use crate::exec::{Effect, Outcome, Pause, Stamped, Want};
use crate::log::EntryKind;
use crate::write::backend::{Parts, share_of};
use spirula_erasure::ErasureError;
use spirula_messages::cluster::write::Given;
use spirula_types::transaction::ObjectUpdate;
use spirula_types::{Dirty, EVersion};

/// Stripes that an execution still wants: what it reads, or what a change changes in part.
pub(crate) fn lacks(
    shape: &Shape,
    outcome: &Result<Outcome, Pause>,
    pieces: &[Piece],
) -> Option<Stripes> {
    let w = shape.width();
    match outcome {
        Err(Pause::Prefetch(what)) => what.0.iter().find_map(|want| match want {
            Want::Data { offset, length, .. } => Some((offset / w, (offset + length).div_ceil(w))),
            _ => None,
        }),
        Ok(Outcome { effect: Effect::Apply(plan), .. }) => plan.changes.iter().find_map(|c| {
            let needs = stripe::plan(shape, &c.ops, c.size_before).needs;
            needs.into_iter().find(|(a, b)| from_pieces(pieces, a * w, (b - a) * w).is_none())
        }),
        _ => None,
    }
}

/// Cuts a write into shards. Each member also keeps what its shard was, under a name of its own,
/// while the entry can still be taken back. Shards are rebuilt whole, so the entries do not say
/// which parts differ.
pub(crate) fn cut(
    shape: &Shape,
    writes: &mut [Stamped],
    pieces: &[Piece],
) -> Result<Parts, ErasureError> {
    let mut given = Vec::with_capacity(writes.len());
    let mut updates: Vec<Vec<ObjectUpdate>> = vec![Vec::new(); shape.k + shape.m];
    for w in writes {
        w.entry.dirty = Dirty::All;
        let share = share_of(w);
        if w.entry.kind == EntryKind::Nothing {
            given.push(Given { share, updates: 0 });
            continue;
        }
        let plan = stripe::plan(shape, &w.ops, w.size_before);
        let shards = stripe::split(shape, &w.ops, &plan, pieces)?;
        let keeps = w.entry.prior != EVersion::default();
        for (all, ops) in updates.iter_mut().zip(shards) {
            all.extend(keeps.then(|| undo::keep(&w.entry.object, w.entry.version)));
            all.push(ObjectUpdate { object: w.entry.object.clone(), ops });
        }
        given.push(Given { share, updates: 1 + u32::from(keeps) });
    }
    Ok(Parts::by_shard(given, updates))
}
