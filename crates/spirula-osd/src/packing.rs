//! Transactions whose data is to be compressed.
//!
//! Compressing 4 MiB takes some milliseconds, in which an event loop could do nothing else, for no
//! PG of this OSD and none of another one's. So a helper thread does it. Meanwhile the PG waits as
//! one waits for room (`waits`): what it wishes for from that transaction on, and what it would be
//! told, are kept in order. To the PG and the store it is as if the transaction had come later, so
//! nothing hangs on when it is done. What the PG wished for before (the other members' parts of a
//! write) is on its way: all members compress at the same time.
//!
//! It never waits for long: before it must be told something that cannot wait (a new interval, a
//! map that splits it), or has too much to be told, the transaction is submitted as it is, and the
//! store compresses. What a helper thread brings then is for nobody.
//!
//! The memory is that of the payload, and of what it compresses to, which is less.

use crate::osd::{OsdCore, OsdEvent};
use crate::waits::What;
use spirula_pg::{PgEvent, Token};
use spirula_store::Packed;
use spirula_types::SpgId;
use spirula_types::transaction::Transaction;

impl OsdCore {
    /// Has a helper thread compress what a transaction brings, if that is much. `None`: its PG
    /// waits for that.
    pub(crate) fn pack_first(
        &mut self,
        id: SpgId,
        token: Token,
        txn: Transaction,
    ) -> Option<Transaction> {
        let store = self.store.as_ref().filter(|_| !self.waits.hurried);
        let Some(packing) = store.and_then(|s| s.packing(&txn)) else { return Some(txn) };
        self.waits.begin(id, (token, txn), What::Packing, self.now.mono);
        self.outside.work(Box::new(move || OsdEvent::Packed(id, token, packing.run())));
        None
    }

    /// A helper thread is done.
    pub(crate) fn packed(&mut self, id: SpgId, token: Token, packed: &Packed) {
        if self.waits.packs(id) == Some(token) {
            let kept = self.end_packing(id, packed);
            kept.into_iter().for_each(|e| self.answer_pg(id, e));
            self.perform();
        }
    }

    /// Submits what is being packed, with what has come of that. What the PG is to be told now,
    /// when its wishes have been performed.
    pub(crate) fn end_packing(&mut self, id: SpgId, packed: &Packed) -> Vec<PgEvent> {
        let Some(mut wait) = self.waits.take(id) else { return Vec::new() };
        let (token, txn) = (wait.held.0, std::mem::take(&mut wait.held.1));
        if let Some((txn, e)) = self.submit_if_room(id, token, txn, packed) {
            // Now it waits for the store, with all that it has.
            wait.held = (token, txn);
            self.refused_while_packing(id, wait, &e);
            return Vec::new();
        }
        self.agenda.wish(id, std::mem::take(&mut wait.wishes));
        wait.told().collect()
    }

    /// While the OSD follows the map (`on`) nobody waits for a helper thread: PGs are split and
    /// folded, all are to see the map, and it is stored when what they submitted because of it is.
    pub(crate) fn hurry(&mut self, on: bool) {
        self.waits.hurried = on;
        for id in self.waits.packing() {
            let kept = self.end_packing(id, &Packed::default());
            kept.into_iter().for_each(|e| self.answer_pg(id, e));
        }
        self.perform();
    }
}
