//! What a write makes of log, head and undo copies: the same at the primary and at every other member.

use crate::pg::Pg;
use spirula_messages::cluster::pg::PgHead;
use spirula_messages::cluster::write::WriteRecord;
use spirula_types::transaction::{MetaOp, ObjectUpdate, Transaction};

impl Pg {
    /// Takes a write into the log and the head; the transaction that makes it durable, with the `objects` that change here.
    /// What was missing, or is from now on, is recorded in it, too.
    ///
    /// Our own log may begin later than the primary's, never earlier; and what of an erasure-coded PG can still be taken back
    /// is our own matter. All else of the head is the primary's word.
    pub(crate) fn record_write(&mut self, record: &WriteRecord, objects: Vec<ObjectUpdate>) -> Transaction {
        let mut txn = Transaction { objects, meta: Vec::with_capacity(2 + record.entries.len()) };
        for e in &record.entries {
            self.log.push(e.entry.clone());
        }
        let told = &record.head;
        let erasure = self.is_erasure();
        if let Some(info) = &mut self.info {
            // Means nothing in a replicated pool.
            let rolled = if erasure { info.head.rolled } else { told.rolled };
            info.head = PgHead { rolled, forgot: info.head.forgot || told.forgot, ..*told };
        }
        // Before the log is trimmed: the entries say which copies go.
        self.roll_forward(told.rolled, &mut txn);
        let mut forgotten = None;
        if told.log_tail > self.log.tail() {
            let tracked = if planted!(self.cfg, DupsForgotten) { 0 } else { self.cfg.dups_tracked };
            forgotten = self.log.trim(told.log_tail, tracked);
        }
        if let Some(info) = &mut self.info {
            info.head.log_tail = self.log.tail();
            info.head.forgot |= forgotten.is_some();
        }
        // Nearly always what we store is what the primary made of it.
        let as_told = self.info.as_ref().is_some_and(|i| i.head == *told);
        txn.meta.push(if as_told { self.head_as(record.stored.clone()) } else { self.head_op() });
        let entries = record.entries.iter().map(|e| MetaOp::LogAppend {
            pg: self.id,
            version: e.entry.version,
            entry: e.stored.clone(),
        });
        txn.meta.extend(entries);
        txn.meta.extend(forgotten.map(|to| MetaOp::LogTrim { pg: self.id, to }));
        self.missing_ops(&mut txn.meta);
        txn
    }
}
