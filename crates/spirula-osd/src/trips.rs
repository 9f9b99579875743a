//! How long heartbeats take there and back: what `dump_osd_network` tells.
//!
//! For each path to a peer the round trips of the last quarter of an hour are kept, summed by the
//! minute, so that their memory has a bound whatever the number of pings.

use spirula_encoding::UTime;
use spirula_maps::PathTimes;
use spirula_types::OsdId;
use std::collections::VecDeque;
use std::time::Duration;

/// Minutes that are kept.
const KEPT: u64 = 15;

/// The round trips of one minute, milliseconds.
#[derive(Clone, Copy, Debug)]
struct Minute {
    /// Which one, since this process's clock began.
    number: u64,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

/// The round trips of one path.
#[derive(Clone, Debug, Default)]
pub struct Trips {
    minutes: VecDeque<Minute>,
    last: u64,
    at: Duration,
}

impl Trips {
    /// One took `ms` milliseconds and ended at `now`.
    pub fn add(&mut self, now: Duration, ms: u64) {
        let number = now.as_secs() / 60;
        (self.last, self.at) = (ms, now);
        match self.minutes.back_mut() {
            Some(m) if m.number == number => {
                (m.count, m.sum) = (m.count + 1, m.sum.saturating_add(ms));
                (m.min, m.max) = (m.min.min(ms), m.max.max(ms));
            }
            _ => self.minutes.push_back(Minute { number, count: 1, sum: ms, min: ms, max: ms }),
        }
        while self.minutes.front().is_some_and(|m| m.number + KEPT <= number) {
            self.minutes.pop_front();
        }
    }

    /// How long ago the last one ended; `None` if there was none yet.
    pub fn ago(&self, now: Duration) -> Option<Duration> {
        (!self.minutes.is_empty()).then(|| now.saturating_sub(self.at))
    }

    /// Mean, least and most of the last so many minutes, milliseconds.
    fn over(&self, now: Duration, minutes: u64) -> (f64, u64, u64) {
        let first = (now.as_secs() / 60 + 1).saturating_sub(minutes);
        let mut of = self.minutes.iter().filter(|m| m.number >= first).peekable();
        if of.peek().is_none() {
            return (0.0, 0, 0);
        }
        let (count, sum, min, max) =
            of.fold((0, 0, u64::MAX, 0), |(count, sum, min, max): (u64, u64, u64, u64), m| {
                (count + m.count, sum.saturating_add(m.sum), min.min(m.min), max.max(m.max))
            });
        (sum as f64 / count.max(1) as f64, min, max)
    }

    /// What they took, over the path to `to`, of which the last ended at `at`.
    pub fn times(&self, now: Duration, to: OsdId, front: bool, at: UTime) -> PathTimes {
        let of = [1, 5, 15].map(|m| self.over(now, m));
        PathTimes {
            to,
            front,
            at,
            mean_us: of.map(|(mean, ..)| (mean * 1000.0) as u64),
            min_ms: of.map(|(_, min, _)| min),
            max_ms: of.map(|(.., max)| max),
            last_ms: self.last,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_their_minutes_and_old_ones_go() {
        let at = |minute: u64| Duration::from_secs(minute * 60 + 1);
        let mut t = Trips::default();
        let times = |t: &Trips, minute: u64| t.times(at(minute), 3, true, UTime::ZERO);
        assert!(t.ago(at(0)).is_none() && times(&t, 0).worst_ms() == 0.0);
        for (minute, ms) in [(0, 100), (3, 10), (4, 2), (4, 4)] {
            t.add(at(minute), ms);
        }
        let d = times(&t, 4);
        assert_eq!((d.mean_us[0], d.min_ms[0], d.max_ms[0], d.last_ms), (3000, 2, 4, 4));
        assert_eq!((d.min_ms[1], d.max_ms[1], d.interface()), (2, 100, "front"));
        assert_eq!(d.worst_ms(), 29.0);
        // Nothing came for a while: the last minute is empty, the others are not.
        assert_eq!(times(&t, 9).mean_us[0], 0);
        for minute in 5..60 {
            t.add(at(minute), 1);
            assert!(t.minutes.len() as u64 <= KEPT);
        }
        assert_eq!(times(&t, 59).max_ms[2], 1);
    }
}
