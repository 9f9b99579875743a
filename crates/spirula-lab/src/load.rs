//! The load: what is asked next, and how long each answer took. A state machine without clock or
//! I/O.
//!
//! **Latency.** Without a rate, an operation is counted from when it is sent: as many are in flight
//! as were asked for, and a cluster that stands still is asked less ("coordinated omission"). With
//! a rate ([`Plan::rate`]) operation `i` is due at `i ÷ rate` and is counted from there, whether it
//! could be sent then or not. So what a real client would have waited is counted.
//!
//! What was due within the time is begun also after its end, for as long again; what is due then
//! and was not begun is missed ([`Load::missed`]), and a latency that does not know of it would be
//! a lie.
//!
//! **What counts.** An operation that ends during the warm-up is not recorded. After the time is
//! over nothing more is sent, and what is under way is awaited and counted, as `rados bench` does:
//! rates are over the time until the last answer.
//!
//! **Order of writes.** New objects are written in the order of their numbers, at most
//! [`Plan::in_flight`] at a time; so whatever a run that was killed leaves is a range without holes
//! but for its last numbers ([`crate::litter`]).

use crate::prelude::*;
use crate::record::Record;
use crate::session::{Driver, Order};
use spirula_client::{Reply, Request};
use spirula_encoding::UTime;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::flag;
use spirula_types::{ObjectLocator, PoolId, errno};

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// New objects, one after the other.
    Write,
    /// Reads in the order in which it was written.
    Seq,
    /// Reads at random.
    Rand,
    /// Writes into what is there, at random.
    RandWrite,
    /// Reads (so many in a hundred) and writes into what is there, at random.
    Mixed(u8),
    /// Removes objects, the last first; for cleaning up.
    Remove,
}

impl Mode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Seq => "seq",
            Self::Rand => "rand",
            Self::RandWrite => "randwrite",
            Self::Mixed(_) => "mixed",
            Self::Remove => "remove",
        }
    }

    /// True if it needs objects that are there.
    pub fn needs_objects(self) -> bool {
        !matches!(self, Self::Write | Self::Remove)
    }
}

/// One load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is done.
    pub mode: Mode,
    /// Bytes per operation.
    pub size: u64,
    /// Bytes per object; a multiple of `size`.
    pub object_size: u64,
    /// Operations in flight; with a rate at most so many.
    pub in_flight: usize,
    /// How long it is measured.
    pub time: Duration,
    /// How long before it is not.
    pub warm_up: Duration,
    /// Operations a second that are begun.
    pub rate: Option<f64>,
    /// It ends after so many operations.
    pub most: Option<u64>,
    /// Objects that are there: numbers from 0; of [`Mode::Write`] the first number to write.
    pub objects: u64,
    /// The pool.
    pub pool: PoolId,
    /// Names are this and a number.
    pub prefix: String,
    /// What is drawn follows from it.
    pub seed: u64,
}

/// The name of an object.
pub fn name(prefix: &str, number: u64) -> Bytes {
    if number >= 10_000_000_000 {
        return format!("{prefix}{number}").into();
    }
    // By hand, and in memory of just its size: a name is made for each operation.
    let mut out = Vec::with_capacity(prefix.len() + 10);
    out.extend_from_slice(prefix.as_bytes());
    let (mut digits, mut left) = ([b'0'; 10], number);
    for d in digits.iter_mut().rev() {
        *d += (left % 10) as u8;
        left /= 10;
    }
    out.extend_from_slice(&digits);
    out.into()
}

/// A small generator of numbers (xorshift64*), enough for choosing objects.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next one.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// One below `n`, or 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half: the low bits of such a generator are weak.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
}

/// Bytes that no compressor makes smaller.
pub fn noise(seed: u64, len: usize) -> Bytes {
    let mut draw = Draw::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&draw.bits().to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

/// A slot of an operation in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// From when it counts.
    from: Duration,
    is_read: bool,
}

/// The load.
pub struct Load {
    plan: Plan,
    payload: Bytes,
    draw: Draw,
    slots: Vec<Slot>,
    free: Vec<u64>,
    begun: Option<Duration>,
    /// Nothing more is begun.
    over: bool,
    /// Operations begun.
    next: u64,
    /// What was found.
    pub record: Record,
    /// Why it ended early.
    pub failed: Option<String>,
    /// Shown while it runs, and set to end it.
    pub live: std::sync::Arc<Live>,
}

/// What others see of a load while it runs.
#[derive(Debug, Default)]
pub struct Live {
    /// Operations that ended.
    pub ops: std::sync::atomic::AtomicU64,
    /// Somebody wants it to end.
    pub stop: std::sync::atomic::AtomicBool,
}

impl Load {
    /// A load that begins at its first tick.
    pub fn new(plan: Plan) -> Self {
        let payload = match plan.mode {
            Mode::Write | Mode::RandWrite | Mode::Mixed(_) => noise(plan.seed, plan.size as usize),
            Mode::Seq | Mode::Rand | Mode::Remove => Bytes::new(),
        };
        Self {
            draw: Draw::new(plan.seed ^ 0x51),
            slots: vec![Slot::default(); plan.in_flight],
            free: (0..plan.in_flight as u64).rev().collect(),
            begun: None,
            over: false,
            next: 0,
            record: Record::default(),
            failed: None,
            live: std::sync::Arc::default(),
            payload,
            plan,
        }
    }

    /// How many objects it has written from number [`Plan::objects`] on, or asked for.
    pub fn objects_begun(&self) -> u64 {
        let per = self.per_object();
        self.next.div_ceil(per)
    }

    /// Operations that were begun.
    pub fn operations(&self) -> u64 {
        self.next
    }

    /// What it was asked to do.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn per_object(&self) -> u64 {
        (self.plan.object_size / self.plan.size).max(1)
    }

    /// When operation `i` is due by the rate.
    fn due(&self, i: u64) -> Option<Duration> {
        let rate = self.plan.rate?;
        Some(self.begun? + Duration::from_secs_f64(i as f64 / rate))
    }

    fn end(&self) -> Duration {
        self.begun.map_or(Duration::MAX, |b| b + self.plan.warm_up + self.plan.time)
    }

    fn is_over(&self, now: Duration) -> bool {
        let late = match self.due(self.next) {
            Some(due) => due >= self.end() || now >= self.end() + self.plan.time,
            None => now >= self.end(),
        };
        self.failed.is_some()
            || late
            || self.plan.most.is_some_and(|most| self.next >= most)
            || self.live.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Object and offset of the next operation, and whether it reads.
    fn pick(&mut self) -> (u64, u64, bool) {
        let per = self.per_object();
        let places = self.plan.objects.saturating_mul(per).max(1);
        let i = self.next;
        match self.plan.mode {
            Mode::Write => (self.plan.objects + i / per, i % per * self.plan.size, false),
            Mode::Remove => (self.plan.objects.saturating_sub(1 + i), 0, false),
            Mode::Seq => {
                let at = i % places;
                (at / per, at % per * self.plan.size, true)
            }
            Mode::Rand | Mode::RandWrite | Mode::Mixed(_) => {
                let at = self.draw.below(places);
                let reads = match self.plan.mode {
                    Mode::Rand => true,
                    Mode::Mixed(percent) => self.draw.below(100) < u64::from(percent),
                    _ => false,
                };
                (at / per, at % per * self.plan.size, reads)
            }
        }
    }

    fn begin(&mut self, now: Duration, slot: u64, out: &mut Vec<Order>) {
        let from = self.due(self.next).unwrap_or(now);
        let (number, offset, is_read) = self.pick();
        let whole = self.plan.size == self.plan.object_size;
        let ops = match self.plan.mode {
            Mode::Remove => vec![OsdOp::delete()],
            _ if is_read => vec![OsdOp::read(offset, self.plan.size)],
            _ if whole => vec![OsdOp::write_full(self.payload.clone())],
            _ => vec![OsdOp::write(offset, self.payload.clone())],
        };
        let locator = ObjectLocator { pool: self.plan.pool, ..ObjectLocator::default() };
        // The load looks at no clock of the wall: objects' times of change are the time since it
        // began.
        let mtime = UTime { sec: now.as_secs() as u32, nsec: now.subsec_nanos() };
        let mut request = Request::new(locator, name(&self.plan.prefix, number), ops, mtime);
        if !is_read {
            // An error when there is no room, not a wait without end.
            request.flags |=
                if self.plan.mode == Mode::Remove { flag::FULL_FORCE } else { flag::FULL_TRY };
        }
        self.slots[slot as usize] = Slot { from, is_read };
        self.next += 1;
        out.push(Order { tag: slot, request });
    }

    fn fill(&mut self, now: Duration, out: &mut Vec<Order>) {
        self.over |= self.is_over(now);
        while !self.over && self.due(self.next).is_none_or(|due| due <= now) {
            let Some(slot) = self.free.pop() else { return };
            self.begin(now, slot, out);
            self.over |= self.is_over(now);
        }
    }

    /// Operations that were due by the rate and were not begun.
    pub fn missed(&self) -> u64 {
        let time = (self.plan.warm_up + self.plan.time).as_secs_f64();
        let most = self.plan.most.unwrap_or(u64::MAX);
        self.plan
            .rate
            .map_or(0, |rate| ((rate * time).ceil() as u64).min(most).saturating_sub(self.next))
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn judge(&self, slot: Slot, reply: &Reply) -> Result<(), String> {
        let what = if slot.is_read { "a read" } else { "a write" };
        if self.plan.mode == Mode::Remove && reply.result == -errno::ENOENT {
            return Ok(());
        }
        match -reply.result {
            0 => {}
            errno::ENOSPC | errno::EDQUOT => {
                return Err(format!("{what}: no space left in the pool"));
            }
            errno::ENOENT => return Err(format!("{what}: the object, or its pool, is not there")),
            e => return Err(format!("{what} failed: error {e}")),
        }
        let got = reply.ops.first().map_or(0, |o| o.op.indata.len() as u64);
        if slot.is_read && got != self.plan.size {
            return Err(format!("{what} of {} bytes gave {got}", self.plan.size));
        }
        Ok(())
    }
}

impl Driver for Load {
    fn done(&mut self, now: Duration, tag: u64, reply: Reply, out: &mut Vec<Order>) {
        let Some(slot) = self.slots.get(tag as usize).copied() else { return };
        self.free.push(tag);
        self.live.ops.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match self.judge(slot, &reply) {
            Ok(()) => {
                let from = self.begun.unwrap_or_default() + self.plan.warm_up;
                if now >= from {
                    let took = now.saturating_sub(slot.from);
                    self.record.add(now.saturating_sub(from), took, self.plan.size, slot.is_read);
                }
            }
            Err(why) => {
                self.record.errors += 1;
                self.failed.get_or_insert(why);
            }
        }
        self.fill(now, out);
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Order>) {
        self.begun.get_or_insert(now);
        self.fill(now, out);
    }

    fn deadline(&self) -> Duration {
        match self.begun {
            None => Duration::ZERO,
            Some(_) if self.over => Duration::MAX,
            Some(_) => match self.due(self.next) {
                Some(due) if !self.free.is_empty() => due.min(self.end()),
                // Answers drive it.
                Some(_) => self.end() + self.plan.time,
                None => self.end(),
            },
        }
    }

    fn finished(&self) -> bool {
        self.over && self.under_way() == 0
    }

    fn payload(&self) -> Option<Bytes> {
        Some(self.payload.clone()).filter(|p| !p.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_types::EVersion;

    #[test]
    fn names_have_ten_digits_or_as_many_as_it_takes() {
        for n in [0, 7, 1_234_567_890, 9_999_999_999, 10_000_000_000, u64::MAX] {
            assert_eq!(name("p.", n), format!("p.{n:010}"));
        }
    }

    fn plan(mode: Mode) -> Plan {
        Plan {
            mode,
            size: 4096,
            object_size: 16384,
            in_flight: 2,
            time: Duration::from_secs(10),
            warm_up: Duration::ZERO,
            rate: None,
            most: None,
            objects: 0,
            pool: 1,
            prefix: "p.".into(),
            seed: 1,
        }
    }

    fn ok(order: &Order) -> Reply {
        let length = order.request.ops.first().map_or(0, |o| o.extent().length);
        let op = OsdOp { indata: vec![0; length as usize].into(), ..OsdOp::stat() };
        let ops = vec![spirula_messages::ceph::osd::OpResult { op, rval: 0, output_crc: None }];
        Reply { result: 0, ops, version: EVersion::default(), user_version: 0 }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_answer_that_is_late_delays_all_that_was_due_meanwhile() {
        // 100 a second, one in flight: the first answer comes after a second. A generator that
        // counts from when it sends would say: one took a second, the others nothing.
        let (mut out, mut now) = (Vec::new(), at(6000));
        let mut l = Load::new(Plan {
            rate: Some(100.0),
            in_flight: 1,
            time: at(3000),
            ..plan(Mode::Write)
        });
        l.tick(at(5000), &mut out);
        assert_eq!(out.len(), 1);
        let first = out.remove(0);
        l.done(now, first.tag, ok(&first), &mut out);
        let mut second = 0;
        while let Some(next) = out.pop() {
            now += at(1);
            l.done(now, next.tag, ok(&next), &mut out);
            second += 1;
            if second == 10 {
                break;
            }
        }
        // The tenth of them was due 100 ms after the beginning, and ended 1010 ms after it.
        let p50 = l.record.latency.value_at_quantile(0.5);
        assert!(p50 > 900_000_000, "{p50}");
    }

    /// A stall at the end is not hidden by the end of the time.
    #[test]
    fn what_was_due_within_the_time_is_asked_after_it_or_counted_as_missed() {
        for (late, missed) in [(1500, 0), (2500, 99)] {
            let mut l = Load::new(Plan {
                rate: Some(100.0),
                in_flight: 1,
                time: at(1000),
                ..plan(Mode::Write)
            });
            let mut out = Vec::new();
            l.tick(at(5000), &mut out);
            while let Some(o) = out.pop() {
                l.done(at(5000 + late), o.tag, ok(&o), &mut out);
            }
            assert!(l.finished());
            assert_eq!((l.missed(), l.record.ops), (missed, 100 - missed));
        }
    }

    #[test]
    fn new_objects_are_begun_in_order_and_each_is_written_to_its_end() {
        let mut l = Load::new(Plan { most: Some(8), ..plan(Mode::Write) });
        let (mut out, mut seen) = (Vec::new(), Vec::new());
        l.tick(at(1), &mut out);
        while let Some(o) = out.pop() {
            seen.push((o.request.oid.clone(), o.request.ops[0].extent().offset));
            l.done(at(2), o.tag, ok(&o), &mut out);
        }
        seen.sort();
        let want: Vec<_> = (0..8).map(|i| (name("p.", i / 4), i % 4 * 4096)).collect();
        assert_eq!(seen, want);
        assert!(l.finished());
        assert_eq!((l.record.ops, l.objects_begun()), (8, 2));
    }

    #[test]
    fn an_error_ends_it_with_its_reason() {
        let mut l = Load::new(plan(Mode::Write));
        let mut out = Vec::new();
        l.tick(at(1), &mut out);
        let full = Reply {
            result: -errno::ENOSPC,
            ops: Vec::new(),
            version: EVersion::default(),
            user_version: 0,
        };
        l.done(at(2), out[0].tag, full.clone(), &mut out);
        assert!(!l.finished(), "one is still under way");
        let tag = out[1].tag;
        l.done(at(2), tag, full, &mut out);
        assert_eq!(out.len(), 2, "nothing more is begun");
        assert!(l.finished() && l.failed.unwrap().contains("no space"));
    }
}
