//! Two times: the wall clock's, for stamps that people and other daemons read, and one that nobody
//! can set, for what is decided.
//!
//! How long an OSD, a manager or a report has been silent is counted in the steady time, which goes
//! on alone ([`Now::mono`]), whatever the wall clock does. What must survive a monitor stands in
//! the state as a time of the wall clock: when a fence ends, when a key is followed by the next.
//! When the leader's wall clock jumps, or another monitor leads whose clock is another one, these
//! move along ([`shift`]): what is left of each stays what it was. So nobody who sets a clock ends
//! a fence, or keeps keys from rotating.
//!
//! A clock that jumped forward while no monitor ran cannot be told from time that passed. One that
//! went back behind the newest map has jumped.

use crate::mon::Mon;
use crate::state::State;
use crate::work::Work;
use spirula_encoding::UTime;
use spirula_maps::OsdMap;
use spirula_messages::ceph::log::severity;
use spirula_types::EntityAddr;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Nanoseconds by which clocks may differ before that is a jump. Less is drift, and set right as it
/// comes.
const JUMP: i64 = 2_000_000_000;
/// The steady time when its clock shows nothing: what is said to have been so for a while has a
/// beginning then, too.
const FIRST: Duration = Duration::from_secs(86_400);

/// The time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// A clock that only goes forward, also while the machine sleeps; from any beginning.
    pub mono: Duration,
    /// The wall clock.
    pub wall: UTime,
}

impl From<UTime> for Now {
    /// A wall clock that is never set.
    fn from(wall: UTime) -> Self {
        Self { mono: Duration::from_nanos(wall.as_nanos()), wall }
    }
}

/// What a monitor knows of clocks.
///
/// All of it goes by one *common* clock that no monitor has: the one that shows what the leader's
/// would if nobody had ever set any. The times in the state are those of the common clock, moved by
/// what [`set_so_far`] says, which stands in the state itself. So whoever leads knows by how much
/// they have to move for its own clock, whatever became of a move that an earlier leader had
/// proposed.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Nanoseconds that the wall clock is ahead of the steady one.
    ahead: i64,
    /// Nanoseconds that the common clock is ahead of the wall clock; `None` before this monitor led
    /// or heard a leader.
    common: Option<i64>,
    /// What the leader of that number said of late.
    heard: (u64, Window),
}

/// Words of a leader that count: one that came late, through a full mailbox or a slow network,
/// shows less than the truth, and the most is nearest to it. Only the last are looked at, for
/// clocks drift.
const WORDS: u8 = 8;

/// The most of the last [`WORDS`] to twice as many numbers.
#[derive(Clone, Copy, Debug)]
struct Window {
    now: i64,
    before: i64,
    words: u8,
}

impl Window {
    const EMPTY: Self = Self { now: i64::MIN, before: i64::MIN, words: 0 };

    fn take(&mut self, word: i64) -> i64 {
        if self.words == WORDS {
            *self = Self { now: i64::MIN, before: self.now, words: 0 };
        }
        (self.now, self.words) = (self.now.max(word), self.words + 1);
        self.now.max(self.before)
    }
}

fn nanos(t: UTime) -> i64 {
    i64::try_from(t.as_nanos()).unwrap_or(i64::MAX)
}

impl Clock {
    pub fn new(now: Now) -> Self {
        Self { ahead: ahead(now), common: None, heard: (0, Window::EMPTY) }
    }

    /// Takes the time of an event.
    pub fn see(&mut self, now: Now) {
        let is = ahead(now);
        let jump = is.saturating_sub(std::mem::replace(&mut self.ahead, is));
        if jump.abs() < JUMP {
            return;
        }
        tracing::warn!(seconds = jump / 1_000_000_000, "the wall clock was set");
        self.common = self.common.map(|c| c.saturating_sub(jump));
        self.heard.1 = Window::EMPTY;
    }

    /// The leader, of this number, says that the common clock shows `theirs`; ours shows `here`.
    pub fn leader_says(&mut self, leader: u64, theirs: UTime, here: UTime) {
        if self.heard.0 != leader {
            self.heard = (leader, Window::EMPTY);
        }
        self.common = Some(self.heard.1.take(nanos(theirs).saturating_sub(nanos(here))));
    }

    /// This monitor leads from now on. `newest` is the newest time in the state, `set` what times
    /// in it were moved by.
    pub fn lead(&mut self, now: UTime, newest: UTime, set: i64) {
        let behind = nanos(newest).saturating_sub(nanos(now));
        let pending = match self.common {
            Some(_) => self.pending(set),
            // Without a word of a leader before us: times cannot be of the future.
            None => behind.max(0).saturating_neg(),
        };
        let pending = if pending.abs() < JUMP { 0 } else { pending };
        self.common = Some(pending.saturating_add(set).saturating_neg());
    }

    /// Nanoseconds by which times in a state are still to be moved that were moved by `set`; of the
    /// leader.
    pub fn pending(&self, set: i64) -> i64 {
        self.common.map_or(0, |c| c.saturating_add(set).saturating_neg())
    }

    /// What the common clock shows; of the leader.
    pub fn common(&self, here: UTime) -> UTime {
        moved(here, self.common.unwrap_or(0))
    }
}

fn ahead(now: Now) -> i64 {
    let mono = i64::try_from(now.mono.as_nanos()).unwrap_or(i64::MAX);
    nanos(now.wall).saturating_sub(mono)
}

/// The steady time in the form of stamps, for comparisons with its like alone.
pub(crate) fn steady(now: Now) -> UTime {
    UTime::from_nanos(u64::try_from((FIRST + now.mono).as_nanos()).unwrap_or(u64::MAX))
}

/// A time moved by so many nanoseconds, as far as there are times.
fn moved(t: UTime, by: i64) -> UTime {
    UTime::from_nanos(t.as_nanos().saturating_add_signed(by))
}

/// Where it is written how many nanoseconds the wall clock was set since fences have been standing:
/// they end by a clock without these. An end that is in the map once cannot be moved in it: an
/// incremental map only adds and removes.
const FENCES: &str = "spirula/fences-clock";

/// Where it is written how many nanoseconds the times in the state are ahead of the common clock
/// ([`Clock`]).
const CLOCK: &str = "spirula/clock";

/// Where the ends of fences are that were asked to last longer than at first, by address.
const LONGER: &str = "spirula/fence/";

fn longer_key(addr: &EntityAddr) -> String {
    format!("{LONGER}{}", OsdMap::blocklist_text(addr))
}

/// Fences an address off for so many seconds from now, at least: true if the next OSD map says so,
/// false if an older one did.
pub(crate) fn fence(work: &mut Work, addr: EntityAddr, seconds: f64) -> bool {
    let until = fence_until(work, seconds);
    match work.osd().blocklist.get(&addr).copied() {
        // Maps of clients keep the end that an entry had at first: what is asked for beyond that is
        // ours to remember.
        Some(first) if first < until => extend_fence(work, &addr, until),
        Some(_) => {}
        None => {
            forget_fence(work, &addr);
            work.osd_mut().blocklist.insert(addr, until);
        }
    }
    !work.state.osdmap.blocklist.contains_key(&addr)
}

/// When a fence ends that is made now for so many seconds.
pub(crate) fn fence_until(work: &Work, seconds: f64) -> UTime {
    let now = fence_time(&work.state, work.now);
    UTime::from_nanos(now.as_nanos().saturating_add((seconds * 1e9) as u64))
}

/// A fence that stands is to last until then.
fn extend_fence(work: &mut Work, addr: &EntityAddr, until: UTime) {
    let key = longer_key(addr);
    let kept = work.state.kv.get(&key).and_then(|v| nanos_in(v)).unwrap_or(0);
    if until.as_nanos() > kept {
        Arc::make_mut(&mut work.state.kv).insert(key, until.as_nanos().to_string().into());
    }
}

/// What is known of an earlier fence of that address does not hold for the next one.
fn forget_fence(work: &mut Work, addr: &EntityAddr) {
    let key = longer_key(addr);
    if work.state.kv.contains_key(&key) {
        Arc::make_mut(&mut work.state.kv).remove(&key);
    }
}

/// Until when a fence stands that the map says ends at `first`.
pub(crate) fn fence_end(state: &State, addr: &EntityAddr, first: UTime) -> UTime {
    let longer = state.kv.get(&longer_key(addr)).and_then(|v| nanos_in(v));
    longer.map_or(first, |n| UTime::from_nanos(n).max(first))
}

fn nanos_in<T: std::str::FromStr>(v: &[u8]) -> Option<T> {
    std::str::from_utf8(v).ok()?.parse().ok()
}

/// Ends the fences whose time is over, and forgets what is known of those that are gone.
pub(crate) fn end_fences(work: &mut Work, wall: UTime) {
    let now = fence_time(&work.state, wall);
    let over: Vec<EntityAddr> = work
        .osd()
        .blocklist
        .iter()
        .filter(|(a, t)| fence_end(&work.state, a, **t) <= now)
        .map(|(a, _)| *a)
        .collect();
    if !over.is_empty() {
        work.osd_mut().blocklist.retain(|a, _| !over.contains(a));
    }
    let longer =
        work.state.kv.range(LONGER.to_owned()..).map_while(|(k, _)| k.strip_prefix(LONGER));
    let stands: BTreeSet<String> =
        work.osd().blocklist.keys().map(OsdMap::blocklist_text).collect();
    let gone: Vec<String> =
        longer.filter(|a| !stands.contains(*a)).map(|a| format!("{LONGER}{a}")).collect();
    if !gone.is_empty() {
        let kv = Arc::make_mut(&mut work.state.kv);
        gone.iter().for_each(|key| drop(kv.remove(key)));
    }
}

/// The time by which fences end.
pub(crate) fn fence_time(state: &State, wall: UTime) -> UTime {
    moved(wall, fences_set(state).saturating_neg())
}

/// Nanoseconds that the times in the state are ahead of the common clock.
pub(crate) fn set_so_far(state: &State) -> i64 {
    state.kv.get(CLOCK).and_then(|v| nanos_in(v)).unwrap_or(0)
}

fn fences_set(state: &State) -> i64 {
    state.kv.get(FENCES).and_then(|v| nanos_in(v)).unwrap_or(0)
}

/// Moves what ends at some time of the wall clock along with that clock.
fn shift(work: &mut Work, by: i64) {
    let seconds = by / 1_000_000_000;
    let text = format!(
        "the leader's clock differs by {seconds} s from what it was; ends of fences, keys and \
            tokens move along"
    );
    work.log(severity::WARN, text);
    let fences = if work.osd().blocklist.is_empty() {
        0
    } else {
        fences_set(&work.state).saturating_add(by)
    };
    let set = set_so_far(&work.state).saturating_add(by);
    let kv = Arc::make_mut(&mut work.state.kv);
    for (key, value) in [(FENCES, fences), (CLOCK, set)] {
        match value {
            0 => drop(kv.remove(key)),
            n => drop(kv.insert(key.to_owned(), n.to_string().into())),
        }
    }
    Arc::make_mut(&mut work.state.service_keys).shift(by);
    crate::commands::join::shift(work, |t| moved(t, by));
}

impl Mon {
    /// At the beginning of a batch, before anything that looks at such times or makes one.
    pub(crate) fn follow_clock(&self, work: &mut Work) {
        let by = self.clock.pending(set_so_far(&work.state));
        if by != 0 {
            shift(work, by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall: u32, mono: u64) -> Now {
        Now { mono: Duration::from_secs(mono), wall: UTime { sec: wall, nsec: 0 } }
    }

    const SECOND: i64 = 1_000_000_000;

    fn sec(sec: u32) -> UTime {
        UTime { sec, nsec: 0 }
    }

    #[test]
    fn jumps_are_told_from_drift_and_undone_by_their_opposites() {
        let mut c = Clock::new(at(1000, 10));
        c.lead(sec(1000), UTime::ZERO, 0);
        c.see(at(1001, 10));
        c.see(at(1060, 70));
        assert_eq!(c.pending(0), 0, "a second is drift, a minute passed");
        c.see(at(9060, 70));
        assert_eq!((c.pending(0), c.pending(8000 * SECOND)), (8000 * SECOND, 0));
        c.see(at(1061, 71));
        assert_eq!(c.pending(0), 0);
    }

    #[test]
    fn a_new_leader_goes_by_what_the_old_one_said() {
        let mut c = Clock::new(at(1000, 10));
        c.leader_says(1, sec(5000), sec(1000));
        c.see(at(2000, 10));
        c.lead(sec(2000), UTime::ZERO, 0);
        assert_eq!(c.pending(0), -3000 * SECOND);
        assert_eq!(c.pending(-3000 * SECOND), 0, "that was done");
        // Alone, with a clock behind the state.
        for (newest, pending) in [(2500, -500), (500, 0)] {
            let mut c = Clock::new(at(2000, 10));
            c.lead(sec(2000), sec(newest), 0);
            assert_eq!(c.pending(0), pending * SECOND, "time that passed is no jump");
        }
    }

    /// A word that waited half a minute in a mailbox is no jump of the leader's clock; another
    /// leader's may be.
    #[test]
    fn words_that_come_late_move_no_times() {
        let mut c = Clock::new(at(1000, 10));
        for n in 0..40 {
            let late = if n % 3 == 2 { 30 } else { 0 };
            c.leader_says(1, sec(1000 + n), sec(1000 + n + late));
        }
        assert_eq!(c.common, Some(0));
        // Its clock drifts away from ours.
        (0..16).for_each(|n| c.leader_says(1, sec(1999 + n), sec(2000 + n)));
        assert_eq!(c.common, Some(-SECOND));
        c.leader_says(2, sec(1000), sec(1030));
        assert_eq!(c.common, Some(-30 * SECOND));
    }

    /// The old leader's clock jumped, and what it proposed for that came about, or did not.
    #[test]
    fn a_move_that_was_under_way_when_the_leader_changed_is_made_once_or_undone() {
        let (mut old, mut new) = (Clock::new(at(1000, 10)), Clock::new(at(1000, 10)));
        old.lead(sec(1000), UTime::ZERO, 0);
        old.see(at(9000, 10));
        assert_eq!(old.pending(0), 8000 * SECOND);
        new.leader_says(1, old.common(sec(9000)), sec(1000));
        for (set, pending) in [(0, 0), (8000, -8000)] {
            let mut new = Clock { ..new };
            new.lead(sec(1000), UTime::ZERO, set * SECOND);
            assert_eq!(new.pending(set * SECOND), pending * SECOND);
        }
        // It leads again itself, and nobody has in between.
        old.lead(sec(9000), sec(1000), 0);
        assert_eq!(old.pending(0), 8000 * SECOND, "not forgotten");
    }

    #[test]
    fn times_have_ends() {
        let far = UTime { sec: u32::MAX, nsec: 0 };
        assert_eq!(moved(UTime { sec: 5, nsec: 0 }, -10_000_000_000), UTime::ZERO);
        assert!(moved(far, i64::MAX) >= far);
    }
}
