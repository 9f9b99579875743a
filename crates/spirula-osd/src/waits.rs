//! PGs that wait for room.
//!
//! A PG decides on a transaction, tells the others of it, and counts on it from then on. Where the
//! store has no room for it (a disk smaller than the primary's, space that others took meanwhile) it
//! cannot be taken back, and must not be left out: that would be one copy less of something the
//! client is told is safe. So the PG waits, as Ceph's requests wait in a full cluster: what it wishes
//! for from that transaction on, and what it would be told, are kept in order, and the transaction is
//! tried again until there is room. Nothing of it is acknowledged meanwhile. The OSD calls itself
//! full as long: neither it nor a primary that has it for a member takes what grows, and deletions in other PGs make
//! room ([`Osd::space`]).
//!
//! What is kept is bounded: clients' requests by their connections' bounds, answers by what was asked
//! for; messages of other members by a number, beyond which they are dropped. They may be: every
//! exchange between members is repeated until it is answered.

use crate::daemon::Osd;
use spirula_pg::{PgEffect, PgEvent};
use spirula_store::StoreError;
use spirula_types::SpgId;
use std::collections::{BTreeMap, VecDeque};

/// Messages of other members kept for a PG, at most.
const MESSAGES_MAX: usize = 64;

/// What waits with a PG.
#[derive(Default)]
struct Wait {
    /// Its wishes; the first is the transaction for which there is no room.
    effects: VecDeque<PgEffect>,
    /// What it is to be told then.
    events: VecDeque<PgEvent>,
    /// Messages of other members among these.
    messages: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Waits(BTreeMap<SpgId, Wait>);

impl Waits {
    /// Does any PG wait?
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Does this one?
    pub fn has(&self, id: SpgId) -> bool {
        self.0.contains_key(&id)
    }

    /// Keeps a wish of a PG that waits; `None`: it was kept.
    pub fn wish(&mut self, id: SpgId, effect: PgEffect) -> Option<PgEffect> {
        match self.0.get_mut(&id) {
            Some(w) => {
                w.effects.push_back(effect);
                None
            }
            None => Some(effect),
        }
    }

    /// Keeps what a PG that waits is to be told; `None`: it was kept, or may be lost.
    pub fn event(&mut self, id: SpgId, event: PgEvent) -> Option<PgEvent> {
        let Some(w) = self.0.get_mut(&id) else { return Some(event) };
        match event {
            PgEvent::Tick => {}
            PgEvent::Peer(..) if w.messages >= MESSAGES_MAX => {}
            event => {
                w.messages += usize::from(matches!(event, PgEvent::Peer(..)));
                w.events.push_back(event);
            }
        }
        None
    }
}

impl Osd {
    /// Does a PG wait for room?
    pub fn waits_for_room(&self) -> bool {
        self.waits.any()
    }

    /// The store has no room for what the PG submits with `effect`: it waits.
    pub(crate) fn wait_for_room(&mut self, id: SpgId, effect: PgEffect, e: &StoreError) {
        self.clog.say(true, format!("pg {id} waits for room: {e}"));
        self.waits.0.insert(id, Wait { effects: VecDeque::from([effect]), ..Wait::default() });
        self.reporter.changed();
    }

    /// Lets the PGs that wait for room try again.
    pub(crate) fn try_again(&mut self) {
        for id in self.waits.0.keys().copied().collect::<Vec<_>>() {
            let Some(mut wait) = self.waits.0.remove(&id) else { continue };
            if let Some(PgEffect::Submit(token, txn)) = wait.effects.pop_front()
                && let Some((refused, _)) = self.submit_if_room(id, token, txn)
            {
                wait.effects.push_front(refused);
                self.waits.0.insert(id, wait);
                continue;
            }
            tracing::info!("osd.{}: pg {id} has room again", self.cfg.id);
            self.effects.extend(wait.effects.into_iter().map(|e| (id, e)));
            self.perform();
            // Not before: it counts on seeing what it submitted. It may wait again by now.
            wait.events.into_iter().for_each(|event| self.answer_pg(id, event));
            self.perform();
            self.reporter.changed();
        }
    }
}
