//! Taking entries back, and forgetting how. See the module's header.

use crate::copy::removals;
use crate::core::PgCore;
use crate::exec::{INFO_ATTR, ObjectReader, ReadError, pg_end, pg_start};
use crate::log::{EntryKind, LogEntry, PgLog};
use crate::shard::undo_object;
use spirula_types::transaction::{ObjectOp, ObjectUpdate};
use spirula_types::{EVersion, HObject, PgId};

/// Can this entry be taken back only with an undo copy?
fn keeps_copy(e: &LogEntry) -> bool {
    e.kind != EntryKind::Nothing && e.prior != EVersion::default()
}

/// The change that keeps what an object is before the entry `version`.
pub(crate) fn keep(object: &HObject, version: EVersion) -> ObjectUpdate {
    ObjectUpdate {
        object: undo_object(object, version),
        ops: vec![ObjectOp::CloneFrom(object.clone())],
    }
}

/// Objects of the range of undo copies that belong to a PG.
fn listed_copies(
    pg: PgId,
    pg_num: u32,
    reader: &dyn ObjectReader,
    max: usize,
) -> Result<Vec<HObject>, ReadError> {
    let place = |o: HObject| undo_object(&o, EVersion::default());
    let from = place(pg_start(pg)).family_start();
    let end = pg_end(pg, pg_num);
    let until = if end.max {
        HObject::pool_start(from.pool.saturating_add(1), 0)
    } else {
        place(end).family_start()
    };
    reader.list(&from, &until, max)
}

/// At most `max` undo copies of this PG, one of `pg_num`, that are stored here. (A copy that only
/// comes to be does not know the number by itself, and its neighbours' undo copies are not its
/// own.)
pub(crate) fn undo_copies(
    core: &PgCore,
    reader: &dyn ObjectReader,
    pg_num: u32,
    max: usize,
) -> Result<Vec<HObject>, ReadError> {
    if !core.is_erasure() || pg_num == 0 {
        return Ok(Vec::new());
    }
    listed_copies(core.id, pg_num, reader, max)
}

/// What goes where all up to `to` can no more be taken back, and all up to `from` could not before:
/// the undo copies of the entries between. Before the log is trimmed.
pub(crate) fn forgotten(
    log: &PgLog,
    from: EVersion,
    to: EVersion,
) -> impl Iterator<Item = ObjectUpdate> {
    let entries = log.after(from).take_while(move |e| e.version <= to).filter(|e| keeps_copy(e));
    entries.map(|e| ObjectUpdate {
        object: undo_object(&e.object, e.version),
        ops: vec![ObjectOp::Remove],
    })
}

/// Entries after `common` of objects that a backfill has not reached as far as is recorded here are
/// not taken back, since the backfill will compare them; but it may have reached them, and what
/// they were before goes.
pub(crate) fn beyond(log: &PgLog, common: EVersion, last_backfill: &HObject) -> Vec<ObjectUpdate> {
    let beyond = log.after(common).filter(|e| e.object > *last_backfill && keeps_copy(e));
    removals(beyond.map(|e| undo_object(&e.object, e.version)))
}

/// Takes entries back, the newest first: adds to `objects` what that does. Gives those that have no
/// undo copy here, with the versions that should be.
pub(crate) fn undo(
    pg: PgId,
    entries: Vec<LogEntry>,
    reader: &dyn ObjectReader,
    objects: &mut Vec<ObjectUpdate>,
) -> Vec<(HObject, EVersion)> {
    let mut spoilt = Vec::new();
    for e in entries {
        if !keeps_copy(&e) {
            objects.push(ObjectUpdate { object: e.object, ops: vec![ObjectOp::Remove] });
            continue;
        }
        let copy = undo_object(&e.object, e.version);
        if matches!(reader.attr(&copy, INFO_ATTR), Ok(None)) {
            tracing::warn!(%pg, object = %e.object, version = %e.version, "no undo copy");
            // It was filled while too few members were up to serve. The primary does not know that.
            spoilt.push((e.object, e.prior));
            continue;
        }
        objects
            .push(ObjectUpdate { object: e.object, ops: vec![ObjectOp::CloneFrom(copy.clone())] });
        objects.push(ObjectUpdate { object: copy, ops: vec![ObjectOp::Remove] });
    }
    spoilt
}
