//! What recovery may do beside clients: reservations and turns.
//!
//! A PG takes part in recovery only under a reservation, of which an OSD gives few at a time
//! (`osd_max_backfills`), and begins each piece of work in a turn.

use crate::daemon::Osd;
use spirula_pg::{PgEvent, Reservation};
use spirula_types::SpgId;
use std::collections::VecDeque;

/// PGs that recover at a time, as primary and as target each.
const MAX_BACKFILLS: usize = 4;
/// Objects begun in one turn.
const WORK: usize = 8;

/// Reservations and turns of one OSD.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    granted: Vec<(SpgId, Reservation)>,
    waiting: VecDeque<(SpgId, Reservation)>,
    objects: u64,
    bytes: u64,
}

fn is_local(r: &Reservation) -> bool {
    matches!(r, Reservation::Local { .. })
}

impl Scheduler {
    pub(crate) fn max_backfills(&self) -> usize {
        MAX_BACKFILLS
    }

    pub(crate) fn recovered(&mut self, objects: u64, bytes: u64) {
        self.objects += objects;
        self.bytes += bytes;
    }

    /// The next that may be granted. Recovery by the log goes before backfill.
    fn next(&mut self) -> Option<(SpgId, Reservation)> {
        for local in [true, false] {
            if self.granted.iter().filter(|(_, r)| is_local(r) == local).count() >= self.max_backfills() {
                continue;
            }
            let is_backfill = |r: &Reservation| match r {
                Reservation::Local { backfill } | Reservation::Remote { backfill, .. } => *backfill,
            };
            let mut of_side = self.waiting.iter().enumerate().filter(|(_, (_, r))| is_local(r) == local);
            let at = of_side.clone().find(|(_, (_, r))| !is_backfill(r)).or_else(|| of_side.next());
            if let Some(at) = at.map(|(i, _)| i) {
                return self.waiting.remove(at);
            }
        }
        None
    }
}

impl Osd {
    pub(crate) fn reserve(&mut self, id: SpgId, what: Reservation) {
        self.sched.waiting.push_back((id, what));
        self.grant();
    }

    pub(crate) fn unreserve(&mut self, id: SpgId, what: Reservation) {
        self.sched.granted.retain(|g| *g != (id, what));
        self.sched.waiting.retain(|g| *g != (id, what));
        self.grant();
    }

    fn grant(&mut self) {
        while let Some((id, what)) = self.sched.next() {
            self.sched.granted.push((id, what));
            self.answer_pg(id, PgEvent::Reserved(what));
        }
    }

    pub(crate) fn want_turn(&mut self, id: SpgId) {
        self.answer_pg(id, PgEvent::Turn { work: WORK });
    }
}
