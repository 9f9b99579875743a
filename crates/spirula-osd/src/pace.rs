//! How fast background work goes: at full speed while no client is there, and else as fast as the
//! clients' latency allows.
//!
//! The OSD measures its clients' requests. Their 99th percentile while nothing goes on in the
//! background is the base: what it usually was in the last seconds of that, so that a moment in
//! which all stood still (an OSD died, or came back) does not pass for what clients are used to.
//! While something goes on, the rate of background work (bytes per second) rises as long as the
//! percentile stays below [`TARGET`] times the base, and falls when it does not; requests that came
//! before it began say nothing of it. It begins slowly. A base is measured anew, by a short pause
//! of the work, when none is known or when the rate has been at its floor for long: the clients may
//! simply ask for more than before.
//!
//! Pure: time is given. What is paced is the shell's affair ([`crate::sched`]).

use std::collections::VecDeque;
use std::time::Duration;

/// Percentile wanted at most, in multiples of the base. The promise is 2; the rest is for noise.
const TARGET: f64 = 1.4;
/// Growth of the rate in a slot: what more work does to clients shows half a second later only.
const GROWTH: f64 = 1.05;
/// The rate is cut to this share at most, once in [`RECENT`] slots: a slow moment of the disk looks the same as too much work.
const DEEPEST_CUT: f64 = 0.7;
/// Latencies below this differ by noise only, microseconds.
const NOISE_US: f64 = 1000.0;
/// Length of a slot of the window.
const SLOT: Duration = Duration::from_millis(125);
/// Slots in the window: one second.
const SLOTS: usize = 8;
/// Slots by which the rate is decided.
const RECENT: usize = 4;
/// Fewer requests in the recent slots say nothing.
const LEAST_SAMPLES: u32 = 10;
/// Four buckets for each power of two, from one microsecond on: up to 17 minutes.
const BUCKETS: usize = 120;
/// Slowest background work beside clients, bytes per second.
const FLOOR: f64 = (4 << 20) as f64;
/// With what it begins beside clients.
const BEGIN: f64 = (28 << 20) as f64;
/// The part of the way back to that which it goes in each slot without work.
const FORGET: f64 = 0.1;
/// Percentiles of slots without work of which the base is the one that two thirds do not exceed: 8 s.
const CALM_KEPT: usize = 64;
/// No device is faster.
const CEILING: f64 = 8.0 * (1u64 << 30) as f64;
/// Slots at the floor after which the base is measured again.
const FLOOR_SLOTS: u32 = 80;
/// Seconds of work that may be saved up.
const BURST: f64 = 0.05;

/// Latencies of the last second, in buckets.
#[derive(Debug)]
struct Window {
    slots: [[u32; BUCKETS]; SLOTS],
    at: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { slots: [[0; BUCKETS]; SLOTS], at: 0 }
    }
}

fn bucket(took: Duration) -> usize {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    let power = us.ilog2() as usize;
    // The two bits after the first one.
    let quarter = if power >= 2 { (us >> (power - 2)) & 3 } else { (us << (2 - power)) & 3 } as usize;
    (power * 4 + quarter).min(BUCKETS - 1)
}

/// Upper end of a bucket, microseconds.
fn bound(bucket: usize) -> f64 {
    let (power, quarter) = (bucket / 4, bucket % 4);
    (1u64 << power) as f64 * (1.0 + (quarter + 1) as f64 / 4.0)
}

impl Window {
    fn add(&mut self, took: Duration) {
        if let Some(n) = self.slots.get_mut(self.at).and_then(|s| s.get_mut(bucket(took))) {
            *n += 1;
        }
    }

    fn next_slot(&mut self) {
        self.at = (self.at + 1) % SLOTS;
        if let Some(s) = self.slots.get_mut(self.at) {
            *s = [0; BUCKETS];
        }
    }

    /// Requests, and the latency that 99 of 100 do not exceed (µs), in the last `slots` slots.
    fn p99(&self, slots: usize) -> (u32, f64) {
        let mut sum = [0u32; BUCKETS];
        for back in 0..slots.min(SLOTS) {
            let slot = self.slots.get((self.at + SLOTS - back) % SLOTS);
            sum.iter_mut().zip(slot.into_iter().flatten()).for_each(|(s, n)| *s += n);
        }
        let all: u32 = sum.iter().sum();
        let mut above = all / 100;
        for (b, n) in sum.iter().enumerate().rev() {
            if *n > above {
                return (all, bound(b));
            }
            above -= n;
        }
        (all, 0.0)
    }
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

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Pacer {
    window: Window,
    slot_ends: Duration,
    refilled: Duration,
    limit: Limit,
    /// p99 without background work, µs.
    base: Option<f64>,
    /// That of the latest slots without any, oldest first.
    calm: VecDeque<f64>,
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
    rest_slots: u32,
    /// Slots since the rate was cut.
    since_cut: u32,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            window: Window::default(),
            slot_ends: Duration::ZERO,
            refilled: Duration::ZERO,
            limit: Limit::None,
            base: None,
            calm: VecDeque::new(),
            client_at: Duration::ZERO,
            work_since: Duration::ZERO,
            rate: BEGIN,
            tokens: 0.0,
            worked: 0.0,
            idle_slots: SLOTS as u32,
            floor_slots: 0,
            rest_slots: 0,
            since_cut: 0,
        }
    }
}

impl Pacer {
    /// A client's request was answered.
    pub fn answered(&mut self, now: Duration, took: Duration) {
        self.client_at = now;
        self.felt(now, took);
    }

    /// A request took this long, or waits for so long.
    fn felt(&mut self, now: Duration, took: Duration) {
        if now >= self.work_since + took {
            self.window.add(took);
        }
    }

    /// Background work was done: bytes moved or read.
    pub fn worked(&mut self, bytes: u64) {
        if self.is_calm() && self.worked == 0.0 {
            self.work_since = self.refilled;
            self.window = Window::default();
        }
        self.worked += bytes as f64;
        self.tokens -= bytes as f64;
    }

    /// Was there no background work for as long as the window shows?
    fn is_calm(&self) -> bool {
        self.idle_slots >= SLOTS as u32
    }

    /// Time passed. `oldest`: age of the client's request that has waited longest, if any waits.
    pub fn tick(&mut self, now: Duration, oldest: Option<Duration>) {
        if let Limit::Rate(rate) = self.limit {
            let passed = now.saturating_sub(self.refilled).as_secs_f64();
            self.tokens = (self.tokens + rate * passed).min((rate * BURST).max(1.0));
        }
        self.refilled = now;
        if self.slot_ends.is_zero() || now > self.slot_ends + SLOT * SLOTS as u32 {
            // The first time, or the process stood still.
            self.slot_ends = now + SLOT;
        }
        while now >= self.slot_ends {
            self.slot_ends += SLOT;
            self.end_slot(now, oldest);
        }
    }

    fn end_slot(&mut self, now: Duration, oldest: Option<Duration>) {
        // What hangs is no less slow for not being answered yet.
        if let Some(age) = oldest.filter(|a| *a > SLOT) {
            self.felt(now, age);
        }
        let (recent, p99) = self.window.p99(RECENT);
        self.window.next_slot();
        self.idle_slots = if self.worked > 0.0 { 0 } else { self.idle_slots.saturating_add(1) };
        self.worked = 0.0;
        self.since_cut = self.since_cut.saturating_add(1);
        if now > self.client_at + SLOT * SLOTS as u32 && oldest.is_none() {
            if self.limit != Limit::None {
                (self.limit, self.tokens) = (Limit::None, 0.0);
            }
            return;
        }
        let calm = self.is_calm();
        if calm && recent >= LEAST_SAMPLES {
            // What work left behind it has passed the recent slots by now.
            if self.calm.len() >= CALM_KEPT {
                self.calm.pop_front();
            }
            self.calm.push_back(p99);
            let mut sorted: Vec<f64> = self.calm.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            self.base = sorted.get(sorted.len() * 2 / 3).copied();
        }
        let Some(base) = self.base else {
            // Clients beside work from the start, or hardly any: see how they fare without it.
            self.rest_slots += 1;
            self.set(if self.rest_slots > 4 * SLOTS as u32 { Limit::Rate(FLOOR) } else { Limit::Rest });
            return;
        };
        self.rest_slots = 0;
        if calm {
            self.rate += (BEGIN - self.rate) * FORGET;
        } else if recent >= LEAST_SAMPLES || oldest.is_some() {
            let target = (base * TARGET).max(base + NOISE_US);
            if p99 > target {
                if self.since_cut >= RECENT as u32 {
                    self.rate *= (target / p99).clamp(DEEPEST_CUT, 0.9);
                    self.since_cut = 0;
                }
            } else {
                self.rate = self.rate * GROWTH + FLOOR / 16.0;
            }
        }
        self.rate = self.rate.clamp(FLOOR, CEILING);
        self.floor_slots = if self.rate <= FLOOR { self.floor_slots + 1 } else { 0 };
        if self.floor_slots > FLOOR_SLOTS {
            (self.floor_slots, self.base) = (0, None);
            self.calm.clear();
            self.set(Limit::Rest);
        } else {
            self.set(Limit::Rate(self.rate));
        }
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
            Limit::Rate(rate) => ((rate / 10.0 / bytes.max(1) as f64) as usize).clamp(1, most.max(1)),
            Limit::Rest => 0,
        }
    }

    /// p99 of the last second and the base, µs, for showing.
    pub fn latencies(&self) -> (u32, f64, Option<f64>) {
        let (n, p99) = self.window.p99(SLOTS);
        (n, p99, self.base)
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
    }

    impl Device {
        fn new(base_ms: f64, cost_ms: f64) -> Self {
            let pacer = Pacer::default();
            let (now, clients) = (Duration::from_secs(100), 100);
            Self { pacer, now, work: false, base_ms, cost_ms, clients, done: 0.0, worst_ms: 0.0, rate: 0.0 }
        }

        fn run(&mut self, seconds: f64) {
            (self.done, self.worst_ms) = (0.0, 0.0);
            let step = Duration::from_millis(5);
            for i in 0..(seconds * 200.0) as u32 {
                self.now += step;
                self.pacer.tick(self.now, None);
                let mut bytes = 0.0;
                while self.work && self.pacer.may_begin() && bytes < 400e6 * 0.005 {
                    bytes += 100e3;
                    self.pacer.worked(100_000);
                }
                self.done += bytes;
                // What the device feels follows slowly.
                self.rate = self.rate * 0.95 + bytes / 0.005 * 0.05;
                let ms = self.base_ms + self.rate / 100e6 * self.cost_ms;
                if i % (200 / self.clients.clamp(1, 200)).max(1) == 0 && self.clients > 0 {
                    self.pacer.answered(self.now, Duration::from_secs_f64(ms / 1e3));
                    self.worst_ms = self.worst_ms.max(ms);
                }
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
        assert!(w.p99(8).1 < 2000.0, "{:?}", w.p99(8));
        w.add(Duration::from_millis(50));
        w.add(Duration::from_millis(50));
        assert!(w.p99(8).1 >= 50_000.0, "{:?}", w.p99(8));
        (0..8).for_each(|_| w.next_slot());
        assert_eq!(w.p99(8).0, 0);
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
            assert!(d.worst_ms <= 2.0 * base + 0.5, "base {base} cost {cost}: worst {}", d.worst_ms);
            // At least half of what the target leaves room for, or of what the device can do.
            let room = (base * (TARGET - 1.0)).max(1.0) / cost * 100e6;
            assert!(d.done / 20.0 >= room.min(400e6) * 0.4, "base {base} cost {cost}: {} of {room}", d.done / 20.0);
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
            d.pacer.tick(d.now, Some(Duration::from_millis(5 * i)));
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
            p.tick(now, (i >= 1000).then(|| Duration::from_millis(u64::from(i - 1000) * 5)));
        }
        assert_ne!(p.limit(), Limit::None);
        assert!(matches!(p.limit(), Limit::Rate(r) if r <= 2.0 * FLOOR), "{:?}", p.limit());
    }
}
