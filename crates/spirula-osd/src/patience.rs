//! How much silence of a peer is unusual.
//!
//! A fixed grace is either long, and every OSD that hangs costs clients that long; or it is short,
//! and a machine under load takes sound OSDs for dead. So each path to a peer remembers the worst
//! gap between two answers lately ([`Gaps`]), and a silence is unusual when it is [`TIMES`] as
//! long, and not below `osd_heartbeat_min_grace`. It is never longer than `osd_heartbeat_grace`:
//! that much is unusual whatever was before. A peer of which little is known yet (its process has
//! only begun, say) is given the whole grace.
//!
//! **Silence is counted in our own running time.** An OSD whose event loop was held up has not read
//! what its peers answered, so it accuses nobody of that time. [`Ran`] says by how much the loop
//! came late; the caller counts that for nobody's silence. So a process that was stopped (SIGSTOP)
//! or suspended wakes up with peers that have been silent for as long as before.
//!
//! **Where load makes gaps longer** it makes them longer before it makes them too long: scheduling,
//! paging and slow disks delay a loop by some hundred milliseconds many times before they delay it
//! by a second once. The gaps of the last one to two minutes count, so patience grows with the
//! first delays of a load, and stays for a while when the load is over.
//!
//! **A wrong mark teaches patience** ([`Lesson`]). A process that was marked down for a silence
//! shorter than the grace, and then spoke again, has shown a gap that no answer showed. It counts
//! as one, for as long as the like comes again within ten minutes. What is known of a process lasts
//! for as long as the process does, not only for as long as the map shows it up.
//!
//! **Whoever is cut off itself accuses nobody** ([`Apart`]). Where most of the others are silent at
//! once, the fault is here. They are heard again one after the other: links are made anew about
//! every second, and what TCP has to repeat comes after as long as the cut lasted, at most. So for
//! twice that long after the cut, two seconds at most, silence counts only as far as it went before
//! the cut.
//!
//! What an unusual silence comes to is the monitor's decision (`spirula-mon`, `failure`), and it
//! wants other words besides ours.

use std::time::Duration;

/// A silence is unusual when it is so many times as long as the worst gap lately.
pub const TIMES: u32 = 3;
/// So many answers make a peer known.
const KNOWN: u32 = 10;
/// For so long it is remembered that the loop stood still.
const LATELY: Duration = Duration::from_secs(60);
/// The worst gap is that of this period and of the one before it.
const PERIOD: Duration = Duration::from_secs(60);

/// A lesson is forgotten so long after the last gap that was like it.
const LESSON: Duration = Duration::from_secs(600);
/// For so long at most, after we were cut off ourselves, silence of others is taken for that.
const SETTLES: Duration = Duration::from_secs(2);

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

    /// The same of the same process, which is asked over another link from now on: as somebody new
    /// it is given the grace at first.
    pub fn anew(&self) -> Self {
        Self { answers: 0, ..self.clone() }
    }
}

/// What wrong marks taught of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lesson {
    gap: Duration,
    until: Duration,
}

impl Lesson {
    /// It was marked down, and spoke again at `now`, after a silence of `gap`, which is shorter
    /// than the grace.
    pub fn learn(&mut self, now: Duration, gap: Duration) {
        *self = Self { gap: self.gap.max(gap), until: now + LESSON };
    }

    /// An answer came, at `now`, so long after the one before it.
    pub fn heard(&mut self, now: Duration, gap: Duration) {
        if now > self.until {
            *self = Self::default();
        } else if gap >= self.gap / 2 {
            self.until = now + LESSON;
        }
    }

    /// Silence that is not unusual by this: nothing, or at most `grace`.
    pub fn patience(&self, grace: Duration) -> Duration {
        self.gap.saturating_mul(TIMES).min(grace)
    }
}

/// Whether we are cut off from most of the others, or were just now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Apart {
    /// Since when we are.
    since: Option<Duration>,
    /// When the last time began, and until when it excuses those who are still silent.
    began: Duration,
    until: Duration,
}

impl Apart {
    /// Most of the others are silent at `now`, for at least `recent` by then, or they are not.
    pub fn at(&mut self, now: Duration, most: bool, recent: Duration) {
        if most {
            self.since.get_or_insert(now.saturating_sub(recent));
        } else if let Some(since) = self.since.take() {
            // Two cuts with a short time between them are one.
            self.began = if now < self.until { self.began.min(since) } else { since };
            self.until = self.until.max(now + (2 * now.saturating_sub(since)).min(SETTLES));
        }
    }

    /// A monitor was found at `now`. We may have been cut off from everybody until then, for we do
    /// not know how long.
    pub fn found_monitor(&mut self, now: Duration) {
        (self.began, self.until) = (Duration::ZERO, self.until.max(now + SETTLES));
    }

    /// The time as of which others are silent: now, or when we were not cut off yet.
    pub fn as_of(&self, now: Duration) -> Duration {
        if now < self.until { self.began } else { now }
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
    /// It runs at `now`, and was to run `every` so often. Returns by how much it is late; what is
    /// within the usual (`every` once more) is not.
    pub fn at(&mut self, now: Duration, every: Duration) -> Duration {
        let since = self.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
        if since >= self.longest.0 || now.saturating_sub(self.longest.1) > LATELY {
            self.longest = (since, now);
        }
        if since > 2 * every { since - every } else { Duration::ZERO }
    }

    /// The longest that it stood still, if it has gone on since within a minute; else about that
    /// long, or nothing.
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
    fn a_lesson_lasts_for_as_long_as_the_like_comes_again_within_ten_minutes() {
        let at = Duration::from_secs;
        let mut lesson = Lesson::default();
        lesson.heard(at(1), ms(250));
        assert_eq!(lesson.patience(GRACE), ms(0));
        lesson.learn(at(100), ms(1200));
        assert_eq!(lesson.patience(GRACE), ms(3600));
        lesson.learn(at(200), ms(1000));
        assert_eq!(lesson.patience(GRACE), ms(3600), "the worst counts");
        lesson.heard(at(799), ms(600));
        lesson.heard(at(1399), ms(250));
        assert_eq!(lesson.patience(GRACE), ms(3600));
        lesson.heard(at(1400), ms(250));
        assert_eq!(lesson.patience(GRACE), ms(0));
        lesson.learn(at(2000), ms(3700));
        assert_eq!(lesson.patience(GRACE), GRACE);
    }

    #[test]
    fn whoever_was_cut_off_counts_the_silence_before_it_for_twice_as_long_and_two_seconds_at_most()
    {
        let (recent, s) = (ms(500), |tenths: u64| ms(100 * tenths));
        let mut apart = Apart::default();
        apart.at(s(100), false, recent);
        assert_eq!(apart.as_of(s(100)), s(100));
        apart.at(s(110), true, recent);
        assert_eq!(apart.as_of(s(110)), s(110), "the whole grace counts meanwhile");
        apart.at(s(112), true, recent);
        apart.at(s(113), false, recent);
        assert_eq!(
            (apart.as_of(s(113)), apart.as_of(s(128)), apart.as_of(s(129))),
            (s(105), s(105), s(129))
        );
        // A minute, and another time just after it.
        apart.at(s(200), true, recent);
        apart.at(s(800), false, recent);
        assert_eq!((apart.as_of(s(819)), apart.as_of(s(820))), (s(195), s(820)));
        apart.at(s(810), true, recent);
        apart.at(s(812), false, recent);
        assert_eq!((apart.as_of(s(825)), apart.as_of(s(826))), (s(195), s(826)));
        // Without a monitor nobody knows.
        apart.found_monitor(s(900));
        assert_eq!((apart.as_of(s(919)), apart.as_of(s(920))), (s(0), s(920)));
        apart.at(s(930), false, recent);
        assert_eq!(apart.as_of(s(930)), s(930));
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
