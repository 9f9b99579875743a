//! How much silence of a peer is unusual.
//!
//! A fixed grace is either long, and every OSD that hangs costs clients that long; or it is short, and a machine under load takes
//! sound OSDs for dead. So each path to a peer remembers the worst gap between two answers lately ([`Gaps`]), and a silence is
//! unusual when it is [`TIMES`] as long, and not below `osd_heartbeat_min_grace`. It is never longer than `osd_heartbeat_grace`:
//! that much is unusual whatever was before. A peer of which little is known yet (its process has only begun, say) is given
//! the whole grace.
//!
//! **Silence is counted in our own running time.** An OSD whose event loop was held up has not read what its peers answered, so it
//! accuses nobody of that time. [`Ran`] says by how much the loop came late; the caller counts that for nobody's silence. So a
//! process that was stopped (SIGSTOP) or suspended wakes up with peers that have been silent for as long as before.
//!
//! **Where load makes gaps longer** it makes them longer before it makes them too long: scheduling, paging and slow disks delay a loop
//! by some hundred milliseconds many times before they delay it by a second once. The gaps of the last one to two minutes count, so
//! patience grows with the first delays of a load, and stays for a while when the load is over.
//!
//! What an unusual silence comes to is the monitor's decision (`spirula-mon`, `failure`), and it wants other words besides ours.

use std::time::Duration;

/// A silence is unusual when it is so many times as long as the worst gap lately.
pub const TIMES: u32 = 3;
/// So many answers make a peer known.
const KNOWN: u32 = 10;
/// For so long it is remembered that the loop stood still.
const LATELY: Duration = Duration::from_secs(60);
/// The worst gap is that of this period and of the one before it.
const PERIOD: Duration = Duration::from_secs(60);

/// The gaps between the answers on one path.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    /// The worst in the period, and in the one before.
    worst: [Duration; 2],
    /// Number of the period.
    period: u64,
    answers: u32,
}

impl Gaps {
    /// An answer came, at `now`, so long after the one before it.
    pub fn add(&mut self, now: Duration, gap: Duration) {
        self.turn(now);
        self.worst[0] = self.worst[0].max(gap);
        self.answers = self.answers.saturating_add(1);
    }

    fn turn(&mut self, now: Duration) {
        let period = now.as_secs() / PERIOD.as_secs();
        match period.saturating_sub(self.period) {
            0 => return,
            1 => self.worst = [Duration::ZERO, self.worst[0]],
            _ => self.worst = [Duration::ZERO; 2],
        }
        self.period = period;
    }

    /// Silence that is not unusual: at least `least`, at most `grace`.
    pub fn patience(&self, least: Duration, grace: Duration) -> Duration {
        if self.answers < KNOWN {
            return grace;
        }
        // Periods turn with answers: where none comes, nothing is forgotten.
        let worst = self.worst[0].max(self.worst[1]);
        worst.saturating_mul(TIMES).max(least).min(grace)
    }
}

/// When our own event loop ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    last: Option<Duration>,
    /// The longest that it stood still lately, and until when.
    longest: (Duration, Duration),
}

impl Ran {
    /// It runs at `now`, and was to run `every` so often. Returns by how much it is late; what is within the usual (`every` once
    /// more) is not.
    pub fn at(&mut self, now: Duration, every: Duration) -> Duration {
        let since = self.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
        if since >= self.longest.0 || now.saturating_sub(self.longest.1) > LATELY {
            self.longest = (since, now);
        }
        if since > 2 * every { since - every } else { Duration::ZERO }
    }

    /// The longest that it stood still, if it has gone on since within a minute; else about that long, or nothing.
    pub fn stood(&self, now: Duration) -> Duration {
        if now.saturating_sub(self.longest.1) > LATELY { Duration::ZERO } else { self.longest.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_secs(1);
    const GRACE: Duration = Duration::from_secs(4);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Answers so far apart, one after the other; the last one's time.
    fn heard(gaps: &mut Gaps, from: Duration, every: u64, n: u32) -> Duration {
        (1..=n).fold(from, |_, i| {
            let now = from + ms(every) * i;
            gaps.add(now, ms(every));
            now
        })
    }

    #[test]
    fn whoever_is_regular_is_given_little_and_whoever_is_not_more() {
        let of = |every| {
            let mut gaps = Gaps::default();
            heard(&mut gaps, ms(500), every, 20);
            gaps.patience(LEAST, GRACE)
        };
        assert_eq!(of(250), LEAST);
        assert_eq!(of(500), ms(1500));
        assert_eq!(of(1200), ms(3600));
        assert_eq!(of(2000), GRACE, "never more than the grace");
    }

    #[test]
    fn one_bad_gap_is_remembered_for_one_to_two_minutes() {
        let mut gaps = Gaps::default();
        let now = heard(&mut gaps, ms(0), 250, 20);
        gaps.add(now + ms(900), ms(900));
        assert_eq!(gaps.patience(LEAST, GRACE), ms(2700));
        let now = heard(&mut gaps, now + ms(900), 250, 4 * 60);
        assert_eq!(gaps.patience(LEAST, GRACE), ms(2700), "in the next minute, too");
        heard(&mut gaps, now, 250, 4 * 60);
        assert_eq!(gaps.patience(LEAST, GRACE), LEAST);
    }

    #[test]
    fn whoever_is_not_known_is_given_the_grace_and_nobody_more_than_it() {
        let mut gaps = Gaps::default();
        heard(&mut gaps, ms(0), 250, KNOWN - 1);
        assert_eq!(gaps.patience(LEAST, GRACE), GRACE);
        heard(&mut gaps, ms(5000), 250, 1);
        assert_eq!(gaps.patience(LEAST, GRACE), LEAST);
        // Whoever sets a grace below the least, or a least above the grace, has that grace.
        assert_eq!(gaps.patience(LEAST, ms(700)), ms(700));
        assert_eq!(gaps.patience(ms(60_000), GRACE), GRACE);
    }

    #[test]
    fn time_in_which_we_did_not_run_is_told_once() {
        let mut ran = Ran::default();
        let every = ms(100);
        assert_eq!(ran.at(ms(60_000), every), ms(0), "the first time");
        assert_eq!(ran.at(ms(60_180), every), ms(0), "within the usual");
        assert_eq!(ran.at(ms(60_480), every), ms(200));
        assert_eq!(ran.at(ms(60_480), every), ms(0));
        assert_eq!(ran.at(ms(90_480), every), ms(29_900));
        assert_eq!(ran.stood(ms(90_480)), ms(30_000));
        assert_eq!(ran.at(ms(90_580), every), ms(0));
        assert_eq!(ran.stood(ms(150_480)), ms(30_000), "for a minute");
        assert_eq!(ran.stood(ms(150_481)), ms(0));
        ran.at(ms(150_580), every);
        ran.at(ms(150_680), every);
        assert_eq!(ran.stood(ms(150_680)), ms(60_000), "it did not run at all meanwhile");
    }
}
