//! What a write makes of log, head and undo copies: the same at the primary and at every other
//! member.

use crate::core::PgCore;
use crate::erasure::undo;
use spirula_messages::cluster::pg::PgHead;
use spirula_messages::cluster::write::WriteRecord;
use spirula_types::transaction::{MetaOp, ObjectUpdate, Transaction};

/// Takes a write into the log and the head; the transaction that makes it durable, with the
/// `objects` that change here. What was missing, or is from now on, is recorded in it, too.
///
/// Our own log may begin later than the primary's, never earlier; and what of an erasure-coded PG
/// can still be taken back is our own matter. All else of the head is the primary's word.
pub(crate) fn record_write(
    core: &mut PgCore,
    record: &WriteRecord,
    objects: Vec<ObjectUpdate>,
) -> Transaction {
    let mut txn = Transaction { objects, meta: Vec::with_capacity(2 + record.entries.len()) };
    for e in &record.entries {
        core.log.push(e.entry.clone());
    }
    let told = &record.head;
    let erasure = core.is_erasure();
    if let Some(info) = &mut core.info {
        // Means nothing in a replicated pool.
        let rolled = if erasure { info.head.rolled } else { told.rolled };
        info.head = PgHead { rolled, forgot: info.head.forgot || told.forgot, ..*told };
    }
    // Before the log is trimmed: the entries say which copies go.
    undo::roll_forward(core, told.rolled, &mut txn);
    let mut forgotten = None;
    if told.log_tail > core.log.tail() {
        let tracked = if planted!(core.cfg, DupsForgotten) { 0 } else { core.cfg.dups_tracked };
        forgotten = core.log.trim(told.log_tail, tracked);
    }
    if let Some(info) = &mut core.info {
        info.head.log_tail = core.log.tail();
        info.head.forgot |= forgotten.is_some();
    }
    // Nearly always what we store is what the primary made of it.
    let as_told = core.info.as_ref().is_some_and(|i| i.head == *told);
    txn.meta.push(if as_told { core.head_as(record.stored.clone()) } else { core.head_op() });
    let entries = record.entries.iter().map(|e| MetaOp::LogAppend {
        pg: core.id,
        version: e.entry.version,
        entry: e.stored.clone(),
    });
    txn.meta.extend(entries);
    txn.meta.extend(forgotten.map(|to| MetaOp::LogTrim { pg: core.id, to }));
    core.missing_ops(&mut txn.meta);
    txn
}
