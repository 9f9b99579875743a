//! How long heartbeats take there and back: what `dump_osd_network` tells.
//!
//! For each path to a peer the round trips of the last quarter of an hour are kept, summed by the minute, so that their memory has a
//! bound whatever the number of pings.

use serde_json::{Value, json};
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

    /// When the last one ended; `None` if there was none yet.
    pub fn last_at(&self) -> Option<Duration> {
        (!self.minutes.is_empty()).then_some(self.at)
    }

    /// Mean, least and most of the last so many minutes, milliseconds.
    fn over(&self, now: Duration, minutes: u64) -> (f64, u64, u64) {
        let first = (now.as_secs() / 60 + 1).saturating_sub(minutes);
        let mut of = self.minutes.iter().filter(|m| m.number >= first).peekable();
        if of.peek().is_none() {
            return (0.0, 0, 0);
        }
        let (count, sum, min, max) = of.fold((0, 0, u64::MAX, 0), |(count, sum, min, max): (u64, u64, u64, u64), m| {
            (count + m.count, sum.saturating_add(m.sum), min.min(m.min), max.max(m.max))
        });
        (sum as f64 / count.max(1) as f64, min, max)
    }

    /// The longest of the three means, milliseconds: what is compared with the threshold.
    pub fn worst(&self, now: Duration) -> f64 {
        [1, 5, 15].map(|m| self.over(now, m).0).into_iter().fold(0.0, f64::max)
    }

    /// The row's numbers, with Ceph's keys.
    pub fn dump(&self, now: Duration) -> Value {
        let [one, five, quarter] = [1, 5, 15].map(|m| self.over(now, m));
        json!({
            "average": {"1min": one.0, "5min": five.0, "15min": quarter.0},
            "min": {"1min": one.1, "5min": five.1, "15min": quarter.1},
            "max": {"1min": one.2, "5min": five.2, "15min": quarter.2},
            "last": self.last,
        })
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
        assert!(t.last_at().is_none() && t.worst(at(0)) == 0.0);
        for (minute, ms) in [(0, 100), (3, 10), (4, 2), (4, 4)] {
            t.add(at(minute), ms);
        }
        let d = t.dump(at(4));
        assert_eq!((&d["average"]["1min"], &d["min"]["1min"], &d["max"]["1min"]), (&json!(3.0), &json!(2), &json!(4)));
        assert_eq!((&d["min"]["5min"], &d["max"]["5min"], &d["last"]), (&json!(2), &json!(100), &json!(4)));
        assert_eq!(t.worst(at(4)), 29.0);
        // Nothing came for a while: the last minute is empty, the others are not.
        assert_eq!(t.dump(at(9))["average"]["1min"], 0.0);
        for minute in 5..60 {
            t.add(at(minute), 1);
            assert!(t.minutes.len() as u64 <= KEPT);
        }
        assert_eq!(t.dump(at(59))["max"]["15min"], 1);
    }
}
