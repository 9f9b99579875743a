//! Transactions on their way to the disk: submitted, and told to their PGs when they are durable.

use crate::osd::OsdCore;
use crate::reader::rotten;
use crate::waits::is_refusal;
use spirula_pg::{PgEvent, Token};
use spirula_store::{Packed, StoreError};
use spirula_types::SpgId;
use spirula_types::transaction::Transaction;
use std::collections::VecDeque;
use std::time::Duration;

/// What was submitted and is not durable, in the order of the store's numbers.
#[derive(Debug, Default)]
pub(crate) struct Committing(VecDeque<(u64, SpgId, Token, Duration)>);

impl Committing {
    /// A PG's transaction was submitted at `at`, and is the store's number `seq`.
    fn submitted(&mut self, seq: u64, id: SpgId, token: Token, at: Duration) {
        self.0.push_back((seq, id, token, at));
    }

    /// Takes the next that is durable if all up to `seq` are: whose it is, its token, and when it
    /// was submitted.
    fn next_of(&mut self, seq: u64) -> Option<(SpgId, Token, Duration)> {
        self.0.pop_front_if(|(s, ..)| *s <= seq).map(|(_, id, token, at)| (id, token, at))
    }

    /// A PG of that name counts its transactions anew: it is told nothing of the earlier ones.
    pub fn forget(&mut self, id: SpgId) {
        self.0.retain(|(_, pg, ..)| *pg != id);
    }
}

impl OsdCore {
    /// Submits what a PG decided on, packed or when there is room.
    pub(crate) fn submit(&mut self, id: SpgId, token: Token, txn: Transaction) {
        let Some(txn) = self.pack_first(id, token, txn) else { return };
        if let Some((refused, e)) = self.submit_if_room(id, token, txn, &Packed::default()) {
            self.wait_for_room(id, token, refused, &e);
        }
    }

    /// Submits a transaction. What is given back was refused, and has no effect.
    pub(crate) fn submit_if_room(
        &mut self,
        id: SpgId,
        token: Token,
        txn: Transaction,
        packed: &Packed,
    ) -> Option<(Transaction, StoreError)> {
        let store = self.store.as_mut()?;
        {
            let mut bad = self.bad.borrow_mut();
            for u in &txn.objects {
                bad.forget(&u.object);
                self.reads.changed(&u.object);
            }
        }
        self.perf.transactions += 1;
        let mut submitted = store.submit_packed(&txn, packed);
        let mut txn = Some(txn);
        if let Err(e) = &submitted
            && let Some((object, offset)) = txn.as_ref().and_then(|txn| rotten(e, txn))
            && let Some(pg) = self.pgs.get_mut(&id)
        {
            tracing::error!("pg {id}: {e}");
            let mut more = Vec::new();
            txn = txn.and_then(|txn| pg.without_rotten(token, txn, &object, offset, &mut more));
            if let Some(txn) = &txn {
                submitted = store.submit_packed(txn, packed);
            }
            self.agenda.wish(id, more);
        }
        match (submitted, txn) {
            (Ok(seq), _) => self.committing.submitted(seq, id, token, self.now.mono),
            (Err(e), Some(txn)) if is_refusal(&e) => return Some((txn, e)),
            (Err(e), _) => {
                // The PG counts on it. Going on would make this copy differ from the others.
                self.fail(&format!("pg {id}: {e}"));
            }
        }
        None
    }

    /// The store says that what was submitted up to this number is durable.
    pub(crate) fn durable(&mut self, seq: u64) {
        let now = self.now.mono;
        if let Some(store) = &mut self.store {
            // Lets go of payloads that are written: an idle store must not hold memory that
            // others wait for.
            store.congested();
        }
        // One event a PG: its newest token covers the older ones.
        let mut done: Vec<(SpgId, Token)> = Vec::new();
        while let Some((id, token, at)) = self.committing.next_of(seq) {
            self.perf.commit_latency.add(now.saturating_sub(at));
            match done.iter_mut().find(|(p, _)| *p == id) {
                Some((_, t)) => *t = token,
                None => done.push((id, token)),
            }
        }
        for (id, token) in done {
            self.feed_pg(id, PgEvent::Committed(token));
        }
        self.bench_durable(seq);
    }
}
