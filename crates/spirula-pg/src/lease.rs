//! Read leases: why a primary that was replaced without knowing it serves no stale read.
//!
//! Every OSD pings every peer; each answer grants the asker a lease: "for this long I will tell any
//! other primary that you may still be serving reads". A primary reads only while it holds a lease
//! from every other acting member. A new primary asks the members of older intervals who are up
//! (`intervals`, `peering`). So it hears an acting member of each interval whose primary may still
//! read: either a member whose lease that primary needs, or the old primary itself, which then
//! stops. It learns how long the old lease runs, and waits.
//!
//! A grant carries the granter's map epoch and counts only once the asker has that map: after
//! the granter answered a new primary of epoch e it grants with epochs ≥ e, and an old
//! primary whose map is that new knows that it was replaced.
//!
//! The wait outlives the interval in which it began. The next primary need not ask anybody who
//! granted those leases, since the activation of the interval between makes older intervals
//! uninteresting. So what is waited for (the old primary, and how long at most it may read) is a
//! part of the PG's history, like `history_les`: the activation tells it to all members, durably,
//! before they count as activated, and whoever answers a primary tells what it knows of it. It is
//! dropped only when the time is over, or when the map says that the old primary is dead or began
//! anew. Times travel as durations that are counted from the message's arrival, so they become too
//! long rather than too short. An OSD that restarts knows who the old primary was, but not for how
//! long it may read, and assumes the longest: a lease that was given before the OSD stopped ends
//! within one lease length after it starts.
//!
//! The map that says that the old primary is dead may be a later one than that which shows it down:
//! an OSD that lives and hears that it is down gives up its leases before it says so, and is on
//! record as dead an epoch later. Therefore each map of an interval is asked again who may still
//! read (`Lead::forget_dead_readers`). That is as safe as asking once, at the activation. An OSD
//! that is dead, or began anew, in one map of this interval reads no more under a lease of before,
//! whichever map said so first; nobody is added to those who are waited for; and what the members
//! were told stays with them, which is longer, until they hear that it is over.
//!
//! Leases are of different lengths: the granter says how long each is, up to one longest length
//! that is the same in the whole cluster. It remembers the latest end of all that it gave to an
//! OSD, so that a short lease never hides the rest of a longer one; the holder takes each for as
//! long as it was granted. A restarted OSD has forgotten its grants, so until the longest length
//! after its start it says that everyone may hold one.
//!
//! Clocks need not agree. Their rates may differ by [`DRIFT`], or a holder that is paused together
//! with its clocks for up to [`PAUSE_MS`] notices nothing and reads nothing that it must not: it
//! uses so much less of each lease, counted from when it asked.

use spirula_types::{Epoch, OsdId};
use std::collections::BTreeMap;

/// The asker counts on this share of a lease: 1 − the tolerated difference of clock rates.
pub const DRIFT: (u64, u64) = (8, 10);

/// The asker counts on so much less of a lease, milliseconds, whatever its length: so long a
/// virtual machine may stand still together with its clocks, as while it is moved to another host.
pub const PAUSE_MS: u64 = 600;

/// Leases of one OSD, given and held. Times are monotonic milliseconds.
#[derive(Clone, Debug)]
pub struct Leases {
    longest_ms: u64,
    started_ms: u64,
    /// The latest end of all that were given to an OSD.
    granted: BTreeMap<OsdId, u64>,
    held: BTreeMap<OsdId, Held>,
    surrendered: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Until when, by a grant whose epoch we know.
    until: u64,
    /// A grant with an epoch that was newer than our map when it came.
    later: Option<(Epoch, u64)>,
}

impl Leases {
    /// No leases yet. `longest_ms` must be the same in the whole cluster and for all time, or
    /// at least never shorter than what an earlier incarnation gave.
    pub fn new(longest_ms: u64, now_ms: u64) -> Self {
        Self {
            longest_ms,
            started_ms: now_ms,
            granted: BTreeMap::new(),
            held: BTreeMap::new(),
            surrendered: false,
        }
    }

    /// Nobody can hold a lease that an earlier incarnation granted.
    pub fn nobody_holds_older(&mut self) {
        self.started_ms = self.started_ms.saturating_sub(self.longest_ms);
    }

    /// Grants `to` a lease of `length_ms`, or of the longest length if that is less, and returns
    /// its length, for the answer to its ping.
    pub fn grant(&mut self, to: OsdId, length_ms: u64, now_ms: u64) -> u64 {
        let length = length_ms.min(self.longest_ms);
        let until = self.granted.entry(to).or_default();
        *until = (*until).max(now_ms + length);
        length
    }

    /// Gives up all leases held, and takes no more: from now on nothing is read here.
    pub fn surrender(&mut self) {
        self.held.clear();
        self.surrendered = true;
    }

    /// Takes a grant from an answer to a ping sent at `sent_ms`, which is not later than now; `map`
    /// is our own map's epoch. Nobody gives more than leases last here.
    pub fn take(&mut self, from: OsdId, sent_ms: u64, length_ms: u64, epoch: Epoch, map: Epoch) {
        if self.surrendered {
            return;
        }
        let length = length_ms.min(self.longest_ms);
        let until = sent_ms
            .saturating_add((length * DRIFT.0 / DRIFT.1).min(length.saturating_sub(PAUSE_MS)));
        let h = self.held.entry(from).or_default();
        if epoch <= map {
            h.until = h.until.max(until);
        } else {
            h.later = Some((epoch, until));
        }
    }

    /// Our map is now of epoch `map`.
    pub fn map_advanced(&mut self, map: Epoch) {
        for h in self.held.values_mut() {
            if let Some((_, until)) = h.later.take_if(|(epoch, _)| *epoch <= map) {
                h.until = h.until.max(until);
            }
        }
    }

    /// Until when somebody may serve reads by leave of an earlier incarnation of ours.
    pub fn forgotten_until(&self) -> u64 {
        self.started_ms + self.longest_ms
    }

    /// Until when `from` lets us serve reads.
    pub fn held_until(&self, from: OsdId) -> u64 {
        self.held.get(&from).map_or(0, |h| h.until)
    }

    /// For how long `osd` may serve reads by our leave, milliseconds.
    pub fn granted_left(&self, osd: OsdId, now_ms: u64) -> u64 {
        self.granted
            .get(&osd)
            .copied()
            .unwrap_or(0)
            .max(self.forgotten_until())
            .saturating_sub(now_ms)
    }

    /// For how long anybody may serve reads by our leave, milliseconds.
    pub fn granted_longest(&self, now_ms: u64) -> u64 {
        self.granted
            .values()
            .copied()
            .max()
            .unwrap_or(0)
            .max(self.forgotten_until())
            .saturating_sub(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_counts_on_less_than_the_granter_gave() {
        let (mut a, mut b) = (Leases::new(10_000, 0), Leases::new(10_000, 0));
        let length = a.grant(1, 10_000, 50_000);
        b.take(0, 49_990, length, 3, 3);
        assert_eq!(a.granted_left(1, 50_000), 10_000);
        assert_eq!(b.held_until(0), 57_990, "the drift counts");
        let length = a.grant(1, 1400, 60_000);
        b.take(0, 59_990, length, 3, 3);
        assert_eq!(a.granted_left(1, 60_000), 1400);
        assert_eq!(b.held_until(0), 60_790, "the pause counts");
        // Too short for anything.
        b.take(2, 59_990, 500, 3, 3);
        assert_eq!(b.held_until(2), 59_990);
    }

    #[test]
    fn a_short_lease_does_not_hide_what_is_left_of_a_longer_one() {
        let mut a = Leases::new(3000, 0);
        assert_eq!(a.grant(1, u64::MAX, 5000), 3000);
        assert_eq!(a.grant(1, 1400, 5100), 1400);
        assert_eq!((a.granted_left(1, 5100), a.granted_longest(5100)), (2900, 2900));
        a.grant(1, 1400, 7000);
        assert_eq!(a.granted_left(1, 7000), 1400);
    }

    #[test]
    fn grant_from_a_newer_map_counts_only_with_that_map() {
        let mut b = Leases::new(3000, 0);
        b.take(0, 100, 3000, 9, 8);
        assert_eq!(b.held_until(0), 0);
        b.map_advanced(8);
        assert_eq!(b.held_until(0), 0);
        b.map_advanced(9);
        assert_eq!(b.held_until(0), 2500);
    }

    #[test]
    fn nobody_gives_more_than_leases_last() {
        let mut b = Leases::new(3000, 0);
        b.take(0, 100, u64::MAX, 3, 3);
        assert_eq!(b.held_until(0), 2500);
        b.take(0, u64::MAX, 1000, 3, 3);
        b.take(0, u64::MAX - 1, u64::MAX, 4, 3);
    }

    #[test]
    fn who_gave_up_its_leases_gets_none_again() {
        let mut b = Leases::new(3000, 0);
        b.take(0, 100, 1000, 3, 3);
        b.surrender();
        b.take(0, 200, 1000, 3, 3);
        assert_eq!(b.held_until(0), 0);
    }

    #[test]
    fn restarted_granter_assumes_that_everyone_holds_a_lease() {
        let a = Leases::new(1000, 50_000);
        assert_eq!(a.granted_left(7, 50_300), 700);
        assert_eq!(a.granted_left(7, 51_000), 0);
        let mut a = Leases::new(1000, 50_000);
        a.grant(8, 1000, 50_100);
        a.nobody_holds_older();
        assert_eq!((a.granted_left(7, 50_300), a.granted_left(8, 50_300)), (0, 800));
    }
}
