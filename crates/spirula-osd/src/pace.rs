//! How fast background work goes: at full speed while no client is there, and otherwise as fast as
//! the clients' latency allows.
//!
//! The OSD measures its clients' requests. Their 99th percentile while nothing goes on in the
//! background is the *base*: what the percentile usually was in the last seconds of that, so that a
//! moment in which everything stood still (an OSD died, or came back) does not pass for what
//! clients are used to. While something goes on, the rate of background work (bytes per second)
//! rises as long as the percentile stays below [`TARGET`] times the base, and falls when it does
//! not. Requests that came before the work began say nothing of it. The rate begins low.
//!
//! *Clients that ask seldom* are judged by what they asked in some seconds, and each of their
//! requests counts once for each change of the rate. When they ask nothing, nothing speaks against
//! going faster.
//!
//! *A request that is not answered* counts only where hardly any other is answered, and only for
//! [`HANGS`]: after that time the work has long been at its slowest, so the request waits for
//! something else (an object that is unfound, a PG that is down). It is never part of a base.
//!
//! *The base is measured* in a short rest of the work: when clients are met beside work and no base
//! is known; when the rate has been near its floor for long, since the clients may simply ask for
//! more than before; and once in each minute of work, since they may ask for less. The last of
//! these only makes the base lower, never higher. For other OSDs' work slows these clients, too; an
//! OSD that took that for what clients are used to would go faster for it, and so would the next
//! one after it, and so on. All OSDs begin this rest with the minute on the wall clock, so that
//! they do not disturb each other. If a rest is disturbed (by objects that clients wait for, which
//! need no turn), its better moments count for a base, and a better rest is tried for soon. Without
//! any base the rate rises, and falls only when clients wait for a second.
//!
//! Pure: time is given. What is paced is the shell's business ([`crate::sched`]).

use std::collections::VecDeque;
use std::time::Duration;

/// Percentile wanted at most, in multiples of the base. The promise is 2; the rest is for noise.
const TARGET: f64 = 1.4;
/// The same while no base is known, microseconds.
const TARGET_UNKNOWN: f64 = 1e6;
/// Growth of the rate in a slot: what more work does to clients shows half a second later only.
const GROWTH: f64 = 1.05;
/// The rate is cut to this share at most, once in [`RECENT`] slots: a slow moment of the disk looks
/// the same as too much work.
const DEEPEST_CUT: f64 = 0.7;
/// Latencies below this differ by noise only, microseconds.
const NOISE_US: f64 = 1000.0;
/// A request that waits for longer than this does not wait for a disk: it is no measure of
/// anything.
pub(crate) const HANGS: Duration = Duration::from_secs(10);
/// Length of a slot of the window.
const SLOT: Duration = Duration::from_millis(125);
/// Slots in the window: eight seconds.
const SLOTS: usize = 64;
/// Slots without work after which what it left behind has passed: one second.
const CALM: u32 = 8;
/// Slots by which the rate is decided, if there are enough requests in them.
const RECENT: usize = 4;
/// Fewer requests in the recent slots say nothing: more slots are looked at.
const LEAST_SAMPLES: u32 = 10;
/// Fewer in the whole window are no base.
const FEWEST_SAMPLES: u32 = 3;
/// Four buckets for each power of two, from one microsecond on: up to 17 minutes.
const BUCKETS: usize = 120;
/// Slowest background work beside clients, bytes per second.
const FLOOR: f64 = (4 << 20) as f64;
/// With what it begins beside clients.
const BEGIN: f64 = (28 << 20) as f64;
/// The part of the way back to that which it goes in each slot without work.
const FORGET: f64 = 0.1;
/// Percentiles of slots without work of which the base is the one that two thirds do not exceed: 8
/// s.
const CALM_KEPT: usize = 64;
/// No device is faster.
const CEILING: f64 = 8.0 * (1u64 << 30) as f64;
/// A rate that is hardly more.
const STARVED: f64 = FLOOR * 1.5;
/// Slots at such a rate after which the base is measured again.
const FLOOR_SLOTS: u32 = 80;
/// Percentiles that end a rest: half a second of them.
const READINGS: usize = 4;
/// Slots that a rest may take.
const REST_SLOTS: u32 = 24;
/// The base is measured anew with each such moment of the wall clock,
const EVERY: Duration = Duration::from_secs(60);
/// or this one, while it is doubtful,
const EVERY_DOUBTFUL: Duration = Duration::from_secs(10);
/// if there were as many slots of work since the last time: half as long.
const fn worth(every: Duration) -> u32 {
    (every.as_millis() / SLOT.as_millis() / 2) as u32
}
/// A base that is measured anew counts if it is less than this part of the one before.
const NOTABLE: f64 = 0.7;
/// Seconds of work that may be saved up.
const BURST: f64 = 0.05;

/// Latencies of the last seconds, in buckets.
#[derive(Debug)]
struct Window {
    slots: Box<[[u16; BUCKETS]; SLOTS]>,
    /// Slots that hold anything: an idle OSD looks at no buckets.
    used: [bool; SLOTS],
    at: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { slots: Box::new([[0; BUCKETS]; SLOTS]), used: [false; SLOTS], at: 0 }
    }
}

fn bucket(took: Duration) -> usize {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let power = us.ilog2() as usize;
    // The two bits after the first one.
    let quarter =
        if power >= 2 { (us >> (power - 2)) & 3 } else { (us << (2 - power)) & 3 } as usize;
    (power * 4 + quarter).min(BUCKETS - 1)
}

/// Upper end of a bucket, microseconds.
fn bound(bucket: usize) -> f64 {
    let (power, quarter) = (bucket / 4, bucket % 4);
    (1u64 << power) as f64 * (1.0 + (quarter + 1) as f64 / 4.0)
}

impl Window {
    fn add(&mut self, took: Duration) {
        let slot = self.slots.get_mut(self.at).zip(self.used.get_mut(self.at));
        if let Some((n, used)) = slot.and_then(|(s, used)| Some((s.get_mut(bucket(took))?, used))) {
            (*n, *used) = (n.saturating_add(1), true);
        }
    }

    fn next_slot(&mut self) {
        self.at = (self.at + 1) % SLOTS;
        let slot = self.slots.get_mut(self.at).zip(self.used.get_mut(self.at));
        if let Some((s, used)) = slot.filter(|(_, used)| **used) {
            (*s, *used) = ([0; BUCKETS], false);
        }
    }

    /// Requests, and the latency that 99 of 100 do not exceed (µs), in the last [`RECENT`] slots,
    /// or in as many more, up to `reach`, as hold [`LEAST_SAMPLES`].
    fn p99(&self, reach: usize) -> Seen {
        let mut sum = [0u32; BUCKETS];
        let (mut n, mut slots) = (0, 0);
        for back in 0..reach.min(SLOTS) {
            if back >= RECENT && n >= LEAST_SAMPLES {
                break;
            }
            slots += 1;
            let at = (self.at + SLOTS - back) % SLOTS;
            let slot = self.slots.get(at).filter(|_| self.used.get(at) == Some(&true));
            for (s, of) in sum.iter_mut().zip(slot.into_iter().flatten()) {
                *s += u32::from(*of);
                n += u32::from(*of);
            }
        }
        let mut above = n / 100;
        for (b, of) in sum.iter().enumerate().rev() {
            if *of > above {
                return Seen { n, p99: bound(b), slots };
            }
            above -= of;
        }
        Seen { n, p99: 0.0, slots }
    }
}

/// What some slots show.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Requests.
    n: u32,
    /// µs.
    p99: f64,
    slots: usize,
}

impl Seen {
    /// Do clients ask so often that few slots tell?
    fn is_busy(&self) -> bool {
        self.n >= LEAST_SAMPLES && self.slots <= RECENT
    }
}

/// The value that the `share`th part of these does not exceed.
fn quantile<'a>(of: impl IntoIterator<Item = &'a f64>, share: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = of.into_iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * share) as usize).copied()
}

/// What limits background work now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// Nothing: no client is there.
    None,
    /// Bytes per second.
    Rate(f64),
    /// It rests while the clients' latency without it is measured.
    Rest,
}

/// A rest under way.
#[derive(Debug, Default)]
struct Rest {
    slots: u32,
    /// Percentiles of all its slots, also where something disturbed it.
    seen: Vec<f64>,
    busy: bool,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Pacer {
    window: Window,
    slot_ends: Duration,
    refilled: Duration,
    /// The wall clock, at the end of the last slot.
    wall: Duration,
    limit: Limit,
    /// p99 without background work, µs.
    base: Option<f64>,
    /// It was measured beside some work.
    doubtful: bool,

    /// That of the latest slots without any, oldest first.
    calm: VecDeque<f64>,
    rest: Option<Rest>,
    /// Slots with work since the base was measured.
    unmeasured: u32,
    /// When a client was answered last.
    client_at: Duration,
    /// When the present work began.
    work_since: Duration,
    /// Last rate beside clients.
    rate: f64,
    /// Bytes that may begin; what was begun is taken off when it is known how much it was.
    tokens: f64,
    /// Bytes of background work in the present slot, and slots since there was any.
    worked: f64,
    idle_slots: u32,
    floor_slots: u32,
    /// Slots since the rate was cut, or the work began.
    since_cut: u32,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            window: Window::default(),
            slot_ends: Duration::ZERO,
            refilled: Duration::ZERO,
            wall: Duration::ZERO,
            limit: Limit::None,
            base: None,
            doubtful: false,
            calm: VecDeque::new(),
            rest: None,
            unmeasured: 0,
            client_at: Duration::ZERO,
            work_since: Duration::ZERO,
            rate: BEGIN,
            tokens: 0.0,
            worked: 0.0,
            idle_slots: CALM,
            floor_slots: 0,
            since_cut: 0,
        }
    }
}

impl Pacer {
    /// A client's request was answered.
    pub fn answered(&mut self, now: Duration, took: Duration) {
        self.client_at = now;
        if took < HANGS && now >= self.work_since + took {
            self.window.add(took);
        }
    }

    /// Background work was done: bytes moved or read.
    pub fn worked(&mut self, bytes: u64) {
        if self.is_calm() && self.worked == 0.0 {
            self.work_since = self.refilled;
            self.since_cut = 0;
            self.window = Window::default();
        }
        self.worked += bytes as f64;
        self.tokens -= bytes as f64;
    }

    /// Has there been no background work for so long that nothing of it is left?
    fn is_calm(&self) -> bool {
        self.idle_slots >= CALM
    }

    /// Time passed. `wall`: the time of day that OSDs share, since any common beginning. `oldest`:
    /// age of the client's request that has waited longest, of those that wait for less than
    /// [`HANGS`], if there are any.
    pub fn tick(&mut self, now: Duration, wall: Duration, oldest: Option<Duration>) {
        if let Limit::Rate(rate) = self.limit {
            let passed = now.saturating_sub(self.refilled).as_secs_f64();
            self.tokens = (self.tokens + rate * passed).min((rate * BURST).max(1.0));
        }
        self.refilled = now;
        if self.slot_ends.is_zero() || now > self.slot_ends + SLOT * CALM {
            // The first time, or the process stood still.
            self.slot_ends = now + SLOT;
        }
        while now >= self.slot_ends {
            self.slot_ends += SLOT;
            self.end_slot(now, wall, oldest);
        }
    }

    fn end_slot(&mut self, now: Duration, wall: Duration, oldest: Option<Duration>) {
        self.idle_slots = if self.worked > 0.0 { 0 } else { self.idle_slots.saturating_add(1) };
        self.worked = 0.0;
        self.since_cut = self.since_cut.saturating_add(1);
        let calm = self.is_calm();
        // What work left behind it has passed these slots by now; or else: those of the present
        // rate.
        let reach = if calm {
            self.idle_slots - CALM + RECENT as u32
        } else {
            self.since_cut.max(RECENT as u32)
        };
        let seen = self.window.p99(reach as usize);
        self.window.next_slot();
        self.unmeasured = if calm { 0 } else { self.unmeasured.saturating_add(1) };
        let was = std::mem::replace(&mut self.wall, wall);
        if now > self.client_at + SLOT * CALM && oldest.is_none() {
            self.rest = None;
            if self.limit != Limit::None {
                (self.limit, self.tokens) = (Limit::None, 0.0);
            }
            return;
        }
        let met = self.limit == Limit::None;
        if self.rest.is_none() && self.is_due(met, was) {
            self.calm.clear();
            self.rest = Some(Rest::default());
        }
        // Of few requests the most that there will be.
        let most =
            reach >= SLOTS as u32 || self.rest.as_ref().is_some_and(|r| r.slots + 1 >= REST_SLOTS);
        if calm && (seen.n >= LEAST_SAMPLES || seen.n >= FEWEST_SAMPLES && most) {
            if self.calm.len() >= CALM_KEPT {
                self.calm.pop_front();
            }
            self.calm.push_back(seen.p99);
            if self.rest.is_none() {
                (self.base, self.doubtful) = (quantile(&self.calm, 0.67), false);
            }
        }
        if let Some(rest) = &mut self.rest {
            rest.slots += 1;
            rest.busy |= seen.is_busy();
            if seen.n > 0 {
                rest.seen.push(seen.p99);
            }
            if self.calm.len() < READINGS && rest.slots < REST_SLOTS {
                return self.set(Limit::Rest);
            }
            self.end_rest();
        }
        self.judge(calm, seen, oldest.filter(|age| *age > SLOT && now >= self.work_since + *age));
        self.set(Limit::Rate(self.rate));
    }

    /// Is the base to be measured? `met`: the clients were not there before; `was`: the wall clock
    /// a slot ago.
    fn is_due(&self, met: bool, was: Duration) -> bool {
        let every = if self.doubtful { EVERY_DOUBTFUL } else { EVERY };
        let turn = |t: Duration| t.as_millis() / every.as_millis();
        let begins = turn(self.wall) != turn(was) && self.unmeasured >= worth(every);
        begins || (met && self.base.is_none()) || self.is_starved()
    }

    /// Was there hardly any work for long?
    fn is_starved(&self) -> bool {
        self.floor_slots > FLOOR_SLOTS
    }

    fn end_rest(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        let before = self.base.filter(|_| !self.is_starved());
        let measured = quantile(&self.calm, 0.5);
        // Lower, unless only by chance; or the first there is.
        let anew = measured.filter(|m| before.is_none_or(|b| *m < b * NOTABLE));
        self.base = anew.or(before).or(quantile(&rest.seen, 0.33)).or(self.base);
        self.doubtful = rest.busy && measured.is_none();
        (self.unmeasured, self.floor_slots) = (0, 0);
    }

    /// Adapts the rate to what clients saw. `hangs`: what one waits for longer than usual.
    fn judge(&mut self, calm: bool, seen: Seen, hangs: Option<Duration>) {
        if calm {
            if self.limit != Limit::Rest {
                self.rate += (BEGIN - self.rate) * FORGET;
            }
            return;
        }
        // What hangs is no less slow for not being answered yet, where little else is.
        let hangs = hangs.filter(|_| seen.n < LEAST_SAMPLES).map_or(0.0, |h| h.as_micros() as f64);
        let felt = seen.p99.max(hangs);
        let target = self.base.map_or(TARGET_UNKNOWN, |b| (b * TARGET).max(b + NOISE_US));
        if felt <= target {
            self.rate = self.rate * GROWTH + FLOOR / 16.0;
        } else if self.since_cut >= RECENT as u32 {
            self.rate *= (target / felt).clamp(DEEPEST_CUT, 0.9);
            self.since_cut = 0;
        }
        self.rate = self.rate.clamp(FLOOR, CEILING);
        self.floor_slots = if self.rate <= STARVED { self.floor_slots + 1 } else { 0 };
    }

    fn set(&mut self, limit: Limit) {
        if self.limit == Limit::None {
            self.tokens = 0.0;
        }
        self.limit = limit;
    }

    /// What limits it.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// May more work begin now?
    pub fn may_begin(&self) -> bool {
        match self.limit {
            Limit::None => true,
            Limit::Rate(_) => self.tokens >= 0.0,
            Limit::Rest => false,
        }
    }

    /// When to look again, if work that is wanted may not begin.
    pub fn next(&self) -> Duration {
        match self.limit {
            Limit::Rate(rate) if self.tokens < 0.0 => {
                let wait = Duration::from_secs_f64((-self.tokens / rate).clamp(0.001, 1.0));
                (self.refilled + wait).min(self.slot_ends)
            }
            _ => self.slot_ends,
        }
    }

    /// Of `most` pieces of work of about `bytes`, how many may be under way at a time.
    pub fn width(&self, most: usize, bytes: u64) -> usize {
        match self.limit {
            Limit::None => most,
            // A tenth of a second's work.
            Limit::Rate(rate) => {
                ((rate / 10.0 / bytes.max(1) as f64) as usize).clamp(1, most.max(1))
            }
            Limit::Rest => 0,
        }
    }

    /// Requests looked at, their p99 and the base, µs, for showing.
    pub fn latencies(&self) -> (u32, f64, Option<f64>) {
        let seen = self.window.p99(SLOTS);
        (seen.n, seen.p99, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device where a client's p99 is `base` ms plus what the background's rate adds.
    struct Device {
        pacer: Pacer,
        now: Duration,
        /// Background work that is wanted.
        work: bool,
        base_ms: f64,
        /// Milliseconds added by each 100 MB/s.
        cost_ms: f64,
        clients: u32,
        done: f64,
        worst_ms: f64,
        rate: f64,
        /// Milliseconds that the work of others adds.
        others_ms: f64,
        /// A request that came then waits.
        hangs: Option<Duration>,
        /// The wall clock is ahead by this.
        skew: Duration,
    }

    impl Device {
        fn new(base_ms: f64, cost_ms: f64) -> Self {
            let pacer = Pacer::default();
            let (now, clients) = (Duration::from_secs(100), 100);
            Self {
                pacer,
                now,
                work: false,
                base_ms,
                cost_ms,
                clients,
                done: 0.0,
                worst_ms: 0.0,
                rate: 0.0,
                others_ms: 0.0,
                hangs: None,
                skew: Duration::ZERO,
            }
        }

        fn run(&mut self, seconds: f64) {
            (self.done, self.worst_ms) = (0.0, 0.0);
            (0..(seconds * 200.0) as u32).for_each(|i| self.step(i));
        }

        /// Five milliseconds.
        fn step(&mut self, i: u32) {
            self.now += Duration::from_millis(5);
            let age = self.hangs.map(|began| self.now.saturating_sub(began));
            self.pacer.tick(self.now, self.now + self.skew, age.filter(|a| *a < HANGS));
            let mut bytes = 0.0;
            while self.work && self.pacer.may_begin() && bytes < 400e6 * 0.005 {
                bytes += 100e3;
                self.pacer.worked(100_000);
            }
            self.done += bytes;
            // What the device feels follows slowly.
            self.rate = self.rate * 0.95 + bytes / 0.005 * 0.05;
            let ms = self.base_ms + self.rate / 100e6 * self.cost_ms + self.others_ms;
            if self.clients > 0 && i.is_multiple_of((200 / self.clients.clamp(1, 200)).max(1)) {
                self.pacer.answered(self.now, Duration::from_secs_f64(ms / 1e3));
                self.worst_ms = self.worst_ms.max(ms);
            }
        }
    }

    #[test]
    fn buckets_hold_what_they_say() {
        for us in [1u64, 2, 3, 7, 100, 999, 1000, 5000, 123_456, 60_000_000] {
            let b = bound(bucket(Duration::from_micros(us)));
            assert!(b >= us as f64 && b <= us as f64 * 2.0, "{us} in a bucket up to {b}");
        }
        let mut w = Window::default();
        (0..990).for_each(|_| w.add(Duration::from_millis(1)));
        (0..9).for_each(|_| w.add(Duration::from_millis(50)));
        assert!(w.p99(8).p99 < 2000.0, "{:?}", w.p99(8));
        w.add(Duration::from_millis(50));
        w.add(Duration::from_millis(50));
        assert!(w.p99(8).p99 >= 50_000.0, "{:?}", w.p99(8));
        (0..8).for_each(|_| w.next_slot());
        assert_eq!(w.p99(8).n, 0);
    }

    #[test]
    fn without_clients_nothing_is_limited() {
        let mut d = Device::new(2.0, 5.0);
        (d.clients, d.work) = (0, true);
        d.run(2.0);
        assert!(d.done >= 790e6, "{}", d.done);
    }

    #[test]
    fn beside_clients_latency_stays_within_twice_the_base_and_work_goes_on() {
        for (base, cost) in [(2.0, 1.0), (2.0, 4.0), (10.0, 5.0), (5.0, 40.0)] {
            let mut d = Device::new(base, cost);
            d.run(5.0);
            d.work = true;
            d.run(5.0);
            d.run(20.0);
            assert!(
                d.worst_ms <= 2.0 * base + 0.5,
                "base {base} cost {cost}: worst {}",
                d.worst_ms
            );
            // At least half of what the target leaves room for, or of what the device can do.
            let room = (base * (TARGET - 1.0)).max(1.0) / cost * 100e6;
            assert!(
                d.done / 20.0 >= room.min(400e6) * 0.4,
                "base {base} cost {cost}: {} of {room}",
                d.done / 20.0
            );
        }
    }

    #[test]
    fn clients_that_come_are_noticed_and_full_speed_returns_when_they_go() {
        let mut d = Device::new(2.0, 5.0);
        (d.clients, d.work) = (0, true);
        d.run(2.0);
        d.clients = 100;
        d.run(6.0);
        d.run(5.0);
        assert!(d.worst_ms <= 4.5, "{}", d.worst_ms);
        d.clients = 0;
        d.run(2.0);
        d.run(2.0);
        assert!(d.done >= 790e6, "{}", d.done);
    }

    #[test]
    fn clients_that_ask_for_more_do_not_starve_the_work() {
        let mut d = Device::new(2.0, 5.0);
        d.run(5.0);
        d.work = true;
        d.run(5.0);
        // Their own load makes them slow from now on.
        d.base_ms = 20.0;
        d.run(30.0);
        d.run(10.0);
        assert!(d.done / 10.0 > 3.0 * FLOOR, "{}", d.done);
    }

    #[test]
    fn a_moment_in_which_all_stood_still_is_not_what_clients_are_used_to() {
        let mut d = Device::new(4.0, 4.0);
        d.run(10.0);
        let usual = d.pacer.latencies().2.unwrap();
        // A second in which nothing is answered, and then all at once.
        d.clients = 0;
        (0..200).for_each(|i| {
            d.now += Duration::from_millis(5);
            d.pacer.tick(d.now, d.now, Some(Duration::from_millis(5 * i)));
        });
        (0..16).for_each(|_| d.pacer.answered(d.now, Duration::from_secs(1)));
        d.clients = 100;
        d.run(0.3);
        assert_eq!(d.pacer.latencies().2, Some(usual));
        // Nor does it slow the work that comes then.
        d.work = true;
        d.run(1.0);
        d.run(1.0);
        assert!(d.done >= 10e6, "{}", d.done);
        assert!(d.worst_ms <= 8.5, "{}", d.worst_ms);
    }

    #[test]
    fn a_request_that_hangs_slows_the_work() {
        let mut p = Pacer::default();
        let mut now = Duration::from_secs(9);
        for i in 0..2000u32 {
            now += Duration::from_millis(5);
            if i < 1000 {
                p.answered(now, Duration::from_millis(2));
            } else {
                p.worked(1);
            }
            p.tick(now, now, (i >= 1000).then(|| Duration::from_millis(u64::from(i - 1000) * 5)));
        }
        assert_ne!(p.limit(), Limit::None);
        assert!(matches!(p.limit(), Limit::Rate(r) if r <= 2.0 * FLOOR), "{:?}", p.limit());
    }

    /// A few requests a second that feel nothing of it (a monitoring probe, an idle image) hold up
    /// nothing.
    #[test]
    fn clients_that_ask_seldom_leave_the_work_the_disks_speed() {
        for clients in [1, 5, 10, 15] {
            let mut d = Device::new(2.0, 0.0);
            d.clients = clients;
            // Work that is there from the start, and work that comes later.
            for calm in [0.0, 30.0] {
                d.work = false;
                d.run(calm);
                d.work = true;
                d.run(60.0);
                d.run(120.0);
                assert!(d.done / 120.0 > 300e6, "{clients} a second: {:.0} MB/s", d.done / 120e6);
            }
        }
    }

    #[test]
    fn clients_that_ask_seldom_are_protected_too() {
        for clients in [3, 5, 15] {
            let mut d = Device::new(5.0, 10.0);
            d.clients = clients;
            d.run(20.0);
            d.work = true;
            d.run(20.0);
            let (mut within, mut all) = (0, 0);
            for _ in 0..120 {
                d.run(1.0);
                all += 1;
                within += u32::from(d.worst_ms <= 2.0 * 5.0);
            }
            assert!(within * 100 >= all * 90, "{clients} a second: {within} of {all} seconds");
            d.run(60.0);
            assert!(d.done / 60.0 > 2.0 * FLOOR, "{clients} a second: {:.1} MB/s", d.done / 60e6);
        }
    }

    /// One request waits for ever (for an unfound object, a PG that is down), beside clients that
    /// are served.
    #[test]
    fn one_request_that_waits_for_ever_neither_stops_the_work_nor_opens_it() {
        let mut d = Device::new(2.0, 5.0);
        d.run(10.0);
        d.work = true;
        d.run(20.0);
        let usual = d.done / 20.0;
        d.hangs = Some(d.now + Duration::from_millis(500));
        let (mut slowest, mut worst) = (f64::MAX, 0.0f64);
        for _ in 0..60 {
            d.run(5.0);
            slowest = slowest.min(d.done / 5.0);
            worst = worst.max(d.worst_ms);
        }
        assert!(
            worst <= 2.0 * 2.0 + 0.5 && slowest > usual / 4.0,
            "worst {worst} ms, slowest {slowest}, usual {usual}"
        );
    }

    /// The only request there is waits for ever: for ten seconds the work makes way, then it need
    /// not any more.
    #[test]
    fn a_request_that_waits_for_ever_alone_is_no_client_in_the_end() {
        let mut d = Device::new(2.0, 5.0);
        d.run(10.0);
        (d.work, d.clients) = (true, 0);
        d.hangs = Some(d.now + Duration::from_millis(100));
        d.run(4.0);
        d.run(4.0);
        assert!(d.done / 4.0 < 20e6, "{}", d.done);
        d.run(8.0);
        d.run(10.0);
        assert!(d.done / 10.0 > 390e6, "{}", d.done);
    }

    /// An OSD comes back under load: clients wait for single objects, which need no turn, in the
    /// first seconds.
    #[test]
    fn objects_that_clients_waited_for_at_first_do_not_keep_the_work_at_the_floor() {
        let mut d = Device::new(2.0, 5.0);
        d.work = true;
        for _ in 0..60 {
            d.run(0.1);
            d.pacer.worked(40_000);
        }
        d.run(60.0);
        d.run(60.0);
        assert!(
            d.done / 60.0 > 2.0 * FLOOR && d.worst_ms <= 4.5,
            "{} worst {}",
            d.done / 60.0,
            d.worst_ms
        );
    }

    #[test]
    fn clients_that_ask_for_less_are_not_slowed_by_what_they_were_used_to() {
        let mut d = Device::new(10.0, 5.0);
        d.run(10.0);
        d.work = true;
        d.run(10.0);
        d.base_ms = 2.0;
        d.run(130.0);
        d.run(60.0);
        assert!(d.worst_ms <= 4.5, "{}", d.worst_ms);
        assert!(d.done / 60.0 > 2.0 * FLOOR, "{}", d.done);
    }

    /// Each of them slows the clients of all. What one measures while the others work is not what
    /// clients are used to, though their clocks differ.
    #[test]
    fn osds_that_measure_anew_do_not_drive_each_other() {
        for skew in [0, 7] {
            let mut all: Vec<Device> = (0..5).map(|_| Device::new(4.0, 2.0)).collect();
            (0..).zip(&mut all).for_each(|(n, d)| d.skew = Duration::from_secs(n * skew));
            let mut minutes = Vec::new();
            for minute in 0..15 {
                let mut worst = 0.0f64;
                for i in 0..12_000 {
                    let felt: f64 = all.iter().map(|d| d.rate / 100e6 * d.cost_ms).sum();
                    for d in &mut all {
                        d.work = minute > 0;
                        d.others_ms = felt - d.rate / 100e6 * d.cost_ms;
                        d.step(i);
                        worst = worst.max(d.worst_ms);
                        d.worst_ms = 0.0;
                    }
                }
                minutes.push(worst);
            }
            assert!(minutes.iter().all(|w| *w <= 8.5), "ms at worst in each minute: {minutes:.1?}");
            let done: f64 = all.iter().map(|d| d.rate).sum();
            assert!(done > 20e6, "{done} bytes a second of all");
        }
    }
}
