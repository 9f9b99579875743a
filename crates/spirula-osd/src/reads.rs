//! Reads that need the disk: in helper threads, within the memory for payloads.

use crate::daemon::{Osd, OsdEvent, Piece};
use crate::reader::{StoreReader, read_error};
use spirula_pg::exec::Prefetch;
use spirula_pg::{PgEvent, ReadKey};
use spirula_types::SpgId;

/// Bytes that may be read ahead however small the budget.
const LEAST_READING: usize = 8 << 20;

impl Osd {
    /// Reads ahead in a helper thread.
    pub(crate) fn prefetch(&mut self, id: SpgId, key: ReadKey, what: &Prefetch) {
        let Some(store) = &self.store else { return };
        let plans = StoreReader { store, shelf: &self.shelf }.plans(what);
        if plans.is_empty() {
            self.answer_pg(id, PgEvent::Ready(key));
            return;
        }
        self.perf.parked_reads += 1;
        self.reading += plans.iter().map(|(_, _, length, _)| length).sum::<u64>();
        let mailbox = self.mailbox.clone();
        self.hub.work(&self.on, move || {
            let read = |(object, offset, length, plan): (_, _, _, spirula_store::ReadPlan)| {
                let data = plan.run_with_crc().map_err(|e| read_error(&e));
                Piece { object, offset, length, data }
            };
            mailbox.push(OsdEvent::Fetched(id, key, plans.into_iter().map(read).collect()));
        });
    }

    /// Would another read ahead take memory that is not there? A quarter of the budget is for
    /// what helper threads are reading, the rest is what is in hand already.
    pub(crate) fn reads_must_wait(&self) -> bool {
        let pool = self.hub.pool();
        pool.over_budget() || self.reading as usize >= (pool.budget() / 4).max(LEAST_READING)
    }

    /// Starts reads that were held back, as far as the budget goes.
    pub(crate) fn release_reads(&mut self) {
        while !self.held_reads.is_empty() && !self.reads_must_wait() {
            let Some((id, key, what)) = self.held_reads.pop_front() else { return };
            self.prefetch(id, key, &what);
            self.perform();
        }
    }
}
