//! When the OSD looks at what time alone brings: PGs that want to be woken, PGs that wait, links
//! and peers.

use crate::osd::MONO_BASE_MS;
use spirula_types::SpgId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two looks at PGs that wait for time to pass.
const PG_TICK: Duration = Duration::from_millis(500);
/// Between two looks at links and peers.
pub(crate) const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// By the time in milliseconds as PGs count it.
    wakes: BTreeMap<u64, Vec<SpgId>>,
    next_pg_tick: Duration,
    next_housekeeping: Duration,
}

impl Timers {
    /// A PG wants to be told that it is this time, in milliseconds as PGs count it.
    pub fn wake_at(&mut self, ms: u64, pg: SpgId) {
        self.wakes.entry(ms).or_default().push(pg);
    }

    /// PGs that wanted to be woken by now, those of one time; `None` if there are no more.
    pub fn woken(&mut self, now_ms: u64) -> Option<Vec<SpgId>> {
        self.wakes.first_entry().filter(|e| *e.key() <= now_ms).map(|e| e.remove())
    }

    /// Are PGs that wait to be told that time has passed? They are told then.
    pub fn pgs_are_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next_pg_tick;
        if due {
            self.next_pg_tick = now + PG_TICK;
        }
        due
    }

    /// Are links and peers to be looked at? They are then.
    pub fn housekeeping_is_due(&mut self, now: Duration) -> bool {
        let due = now >= self.next_housekeeping;
        if due {
            self.next_housekeeping = now + HOUSEKEEPING;
        }
        due
    }

    /// When the first of these is due, monotonic.
    pub fn next(&self) -> Duration {
        let at = self.next_housekeeping.min(self.next_pg_tick);
        match self.wakes.first_key_value() {
            Some((ms, _)) => at.min(Duration::from_millis(ms.saturating_sub(MONO_BASE_MS))),
            None => at,
        }
    }
}
