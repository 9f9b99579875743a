//! Which OSDs say to their monitors that they run.
//!
//! An OSD says so a few times a second (`OsdBeacon`) over its connection to the one monitor that it
//! has a session with. Where its peers miss it, this tells a process that stands still, or is cut
//! off from everybody, from one whose heartbeats alone are lost: only the first is taken down
//! before the whole grace is over ([`crate::failure`]).
//!
//! The monitor with the connection keeps the time of the last word, and tells the leader when it is
//! overdue ([`OVERDUE`] times as long ago as it should be) and when words come again. So nothing
//! passes between monitors while all is well. What is not known is never taken for silence: neither
//! of an OSD of an earlier release, which sends no beacons, nor of a connection of which another
//! monitor has not told yet.
//!
//! Time in which this monitor itself did not run is nobody's silence ([`Beacons::ran`]), as with
//! OSDs and their peers.
//!
//! An OSD whose own words come again after they stayed out was cut off itself, or stood still, or
//! runs late. It is no witness of anybody's silence for as long again, two seconds at most
//! ([`Beacons::is_settled`]).

use crate::event::ConnId;
use crate::osd::seconds_between;
use spirula_encoding::UTime;
use spirula_types::OsdId;
use std::collections::BTreeMap;

/// A word is overdue when the last one is so many times as long ago as two of them are apart.
const OVERDUE: f64 = 3.0;
/// Longest that an OSD may say its words are apart, seconds.
const EVERY_MOST: f64 = 1.0;
/// The shell ticks the monitor that often, seconds; what is more than twice that long was time in
/// which it did not run.
const TICKS: f64 = 0.1;
/// For so many seconds at most an OSD that speaks again is no witness of silence.
const SETTLES: f64 = 2.0;

/// What is known of an OSD over one connection.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// It is ours: the last word, how far apart words are (seconds), whether the leader was told
    /// that it is overdue, and until when its OSD settles.
    Own { heard: UTime, every: f64, told: bool, settles: UTime },
    /// Another monitor's, which says whether a word is overdue: since when that is so, and until
    /// when its OSD settles.
    Told { silent: bool, since: UTime, settles: UTime },
}

/// Until when an OSD settles that was silent since then and speaks now.
fn settled_at(since: UTime, now: UTime) -> UTime {
    let nanos = (seconds_between(since, now).min(SETTLES) * 1e9) as u64;
    UTime::from_nanos(now.as_nanos().saturating_add(nanos))
}

/// What a monitor tells the leader of an OSD's words over a connection; as in `MonSession`.
pub(crate) mod told {
    /// It never said anything.
    pub const NOTHING: u8 = 0;
    /// A word is overdue.
    pub const SILENT: u8 = 1;
    /// It speaks.
    pub const SPEAKS: u8 = 2;
}

/// The words of OSDs, by connection. Lost at restart.
#[derive(Debug, Default)]
pub(crate) struct Beacons {
    words: BTreeMap<OsdId, BTreeMap<ConnId, Word>>,
    ran: Option<UTime>,
}

impl Beacons {
    /// An OSD says over a connection of ours that it runs, and will say so again in `every_ms`.
    pub fn heard(&mut self, osd: OsdId, conn: ConnId, every_ms: u32, now: UTime) {
        let every = (f64::from(every_ms) / 1000.0).min(EVERY_MOST);
        let words = self.words.entry(osd).or_default();
        let (told, settles) = match words.get(&conn) {
            Some(w @ Word::Own { heard, told, .. }) if w.is_overdue(now) => {
                (*told, settled_at(*heard, now))
            }
            Some(Word::Own { told, settles, .. }) => (*told, *settles),
            _ => (false, UTime::ZERO),
        };
        words.insert(conn, Word::Own { heard: now, every, told, settles });
    }

    /// Another monitor says it of a connection of its own.
    pub fn told(&mut self, osd: OsdId, conn: ConnId, what: u8, now: UTime) {
        if what == told::NOTHING {
            return;
        }
        let silent = what == told::SILENT;
        let words = self.words.entry(osd).or_default();
        let (since, settles) = match words.get(&conn) {
            Some(Word::Told { silent: before, since, settles }) if *before == silent => {
                (*since, *settles)
            }
            Some(Word::Told { silent: true, since, .. }) => (now, settled_at(*since, now)),
            _ => (now, UTime::ZERO),
        };
        words.insert(conn, Word::Told { silent, since, settles });
    }

    /// The connection is gone.
    pub fn closed(&mut self, osd: OsdId, conn: ConnId) {
        if let Some(words) = self.words.get_mut(&osd) {
            words.remove(&conn);
            if words.is_empty() {
                self.words.remove(&osd);
            }
        }
    }

    /// This monitor runs; for how long it had not, in seconds. What it did not hear meanwhile is
    /// nobody's silence.
    pub fn ran(&mut self, now: UTime) -> f64 {
        let since = self.ran.replace(now).map_or(0.0, |last| seconds_between(last, now));
        if since <= 2.0 * TICKS {
            return since;
        }
        let late = ((since - TICKS) * 1e9) as u64;
        for word in self.words.values_mut().flat_map(BTreeMap::values_mut) {
            if let Word::Own { heard, .. } = word {
                *heard =
                    UTime::from_nanos(heard.as_nanos().saturating_add(late).min(now.as_nanos()));
            }
        }
        since
    }

    /// What is to be told of a connection.
    pub fn state(&self, osd: OsdId, conn: ConnId, now: UTime) -> u8 {
        match self.words.get(&osd).and_then(|w| w.get(&conn)) {
            None => told::NOTHING,
            Some(word) if word.is_overdue(now) => told::SILENT,
            Some(_) => told::SPEAKS,
        }
    }

    /// Connections of ours of which there is news for the leader.
    pub fn news(&mut self, now: UTime) -> Vec<ConnId> {
        let mut out = Vec::new();
        for (conn, word) in self.words.values_mut().flatten() {
            let overdue = word.is_overdue(now);
            if let Word::Own { told, .. } = word
                && *told != overdue
            {
                *told = overdue;
                out.push(*conn);
            }
        }
        out
    }

    /// What it says of others' silence counts: it speaks, and did not stay out just before. True
    /// where nothing is known.
    pub fn is_settled(&self, osd: OsdId, now: UTime) -> bool {
        let settled = |w: &Word| !w.is_overdue(now) && w.settles() <= now;
        self.words.get(&osd).is_none_or(|w| w.values().any(settled))
    }

    /// It said before that it runs, and now does not, over any connection.
    pub fn is_silent(&self, osd: OsdId, now: UTime) -> bool {
        self.words.get(&osd).is_some_and(|w| w.values().all(|word| word.is_overdue(now)))
    }
}

impl Word {
    fn is_overdue(&self, now: UTime) -> bool {
        match self {
            Self::Own { heard, every, .. } => seconds_between(*heard, now) >= OVERDUE * every,
            Self::Told { silent, .. } => *silent,
        }
    }

    fn settles(&self) -> UTime {
        match self {
            Self::Own { settles, .. } | Self::Told { settles, .. } => *settles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> UTime {
        UTime::from_nanos((1_000_000 + ms) * 1_000_000)
    }

    /// This monitor runs until `to`.
    fn run(b: &mut Beacons, from: u64, to: u64) {
        (from..=to).step_by(100).for_each(|ms| {
            b.ran(at(ms));
        });
    }

    #[test]
    fn who_never_spoke_is_not_silent_and_who_stopped_is() {
        let mut b = Beacons::default();
        assert!(!b.is_silent(1, at(0)));
        b.heard(1, 7, 250, at(0));
        run(&mut b, 0, 700);
        assert!(!b.is_silent(1, at(740)) && b.is_silent(1, at(760)));
        b.heard(1, 8, 250, at(760));
        assert!(!b.is_silent(1, at(770)), "it speaks over another connection");
        b.closed(1, 8);
        assert!(b.is_silent(1, at(770)));
        b.closed(1, 7);
        assert!(!b.is_silent(1, at(9000)), "nothing is known");
        // Whoever says that it speaks once an hour is taken for one that speaks once a second.
        b.heard(2, 9, u32::MAX, at(0));
        assert!(!b.is_silent(2, at(2900)) && b.is_silent(2, at(3000)));
    }

    #[test]
    fn what_was_not_heard_because_we_did_not_run_is_nobodys_silence() {
        let mut b = Beacons::default();
        run(&mut b, 0, 500);
        b.heard(1, 7, 250, at(500));
        b.ran(at(30_500));
        assert!(!b.is_silent(1, at(30_500)));
        run(&mut b, 30_600, 31_200);
        assert!(b.is_silent(1, at(31_200)), "from then on it counts");
    }

    #[test]
    fn the_leader_is_told_of_each_change_once() {
        let mut b = Beacons::default();
        b.heard(1, 7, 250, at(0));
        assert_eq!((b.news(at(100)), b.state(1, 7, at(100))), (vec![], told::SPEAKS));
        assert_eq!((b.news(at(800)), b.state(1, 7, at(800))), (vec![7], told::SILENT));
        assert!(b.news(at(900)).is_empty());
        b.heard(1, 7, 250, at(1000));
        assert_eq!((b.news(at(1000)), b.state(1, 7, at(1000))), (vec![7], told::SPEAKS));
        assert_eq!(b.state(2, 8, at(0)), told::NOTHING);
        // What another monitor says is not told on.
        let mut leader = Beacons::default();
        leader.told(1, 70, told::NOTHING, at(0));
        assert!(!leader.is_silent(1, at(0)));
        leader.told(1, 70, told::SILENT, at(0));
        assert!(leader.is_silent(1, at(0)) && leader.news(at(0)).is_empty());
        leader.told(1, 70, told::SPEAKS, at(0));
        assert!(!leader.is_silent(1, at(0)));
    }

    #[test]
    fn who_speaks_again_is_no_witness_for_as_long_as_it_stayed_out() {
        let mut b = Beacons::default();
        assert!(b.is_settled(1, at(0)), "nothing is known");
        b.heard(1, 7, 250, at(0));
        b.heard(1, 7, 250, at(600));
        assert!(b.is_settled(1, at(700)) && !b.is_settled(1, at(1350)), "it stays out");
        b.heard(1, 7, 250, at(1600));
        b.heard(1, 7, 250, at(2100));
        b.heard(1, 7, 250, at(2550));
        assert!(!b.is_settled(1, at(2599)) && b.is_settled(1, at(2600)));
        b.heard(1, 7, 250, at(60_000));
        b.heard(1, 7, 250, at(60_600));
        b.heard(1, 7, 250, at(61_200));
        b.heard(1, 7, 250, at(61_800));
        assert!(!b.is_settled(1, at(61_999)) && b.is_settled(1, at(62_000)));
        // One over another connection has not stayed out.
        b.heard(1, 7, 250, at(64_000));
        b.heard(1, 8, 250, at(64_000));
        assert!(b.is_settled(1, at(64_100)));
        // By the word of another monitor.
        b.told(2, 70, told::SPEAKS, at(0));
        assert!(b.is_settled(2, at(0)), "the first that is heard of it");
        b.told(2, 70, told::SILENT, at(1000));
        b.told(2, 70, told::SILENT, at(1500));
        assert!(!b.is_settled(2, at(1500)));
        b.told(2, 70, told::SPEAKS, at(2000));
        assert!(!b.is_settled(2, at(2900)));
        b.told(2, 70, told::SPEAKS, at(2950));
        assert!(b.is_settled(2, at(3000)));
    }
}
