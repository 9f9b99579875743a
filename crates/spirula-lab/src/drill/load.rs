//! A load that knows what it must read: every acknowledged write is remembered, every read is
//! compared.
//!
//! Each object has at most one operation under way, so there is one right answer to each read: what
//! was acknowledged last. Data says what it is. Every [`RECORD`] bytes name the object, the version
//! and the place, so that other bytes than the right ones are told apart: an **older version** that
//! was acknowledged (or none) where a newer one was acknowledged is a lost write; anything else is
//! a wrong byte.
//!
//! Operations are due at a rate, and counted from when they were ([`crate::load`]). They have no
//! time limit: a cluster that cannot serve one is waited for, and that is its stall.

use crate::load::{Draw, name};
use crate::prelude::*;
use crate::session::{Driver, Order};
use spirula_client::{Reply, Request};
use spirula_encoding::UTime;
use spirula_messages::ceph::op::OsdOp;
use spirula_types::{ObjectLocator, PoolId, errno};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes that say what they are.
pub const RECORD: usize = 32;
/// They begin with this; `spirula drill bit-flip` looks for it in a store.
pub const MAGIC: &[u8; 8] = b"SPIdrill";
/// One of so many objects is written once and then only read: what rots in it is not written over.
pub const STILL: u64 = 4;
/// Sizes of writes, bytes.
const SIZES: [usize; 4] = [4096, 4096, 16 << 10, 64 << 10];
/// Operations whose times are kept; more than hours of what is usual.
const KEPT: usize = 4_000_000;
/// Errors that are told in words.
const TOLD: usize = 8;

/// The bytes of a version of an object.
pub fn content(object: u64, version: u64, len: usize) -> Bytes {
    let mut out = Vec::with_capacity(len + RECORD);
    let mut place = 0u64;
    while out.len() < len {
        out.extend_from_slice(MAGIC);
        for word in [object, version, place ^ version.rotate_left(32)] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        place += 1;
    }
    out.truncate(len);
    out.into()
}

/// Which version these bytes are of, if they are what a version of the object begins with.
fn version_of(object: u64, got: &[u8]) -> Option<u64> {
    let word = |i: usize| Some(u64::from_le_bytes(got.get(i * 8..i * 8 + 8)?.try_into().ok()?));
    let version = word(2)?;
    (got.starts_with(MAGIC) && word(1)? == object && content(object, version, got.len()) == *got)
        .then_some(version)
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct VerifyPlan {
    /// The pool.
    pub pool: PoolId,
    /// Names are this and a number.
    pub prefix: String,
    /// Objects.
    pub objects: u64,
    /// Operations a second.
    pub rate: f64,
    /// What is drawn follows from it.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// Newest version that was acknowledged, and its length; 0 if none was.
    version: u64,
    len: usize,
    /// The version that is being written.
    writing: Option<(u64, usize)>,
    /// From when the operation under way counts, and when it was sent.
    from: Option<Duration>,
}

/// What was found so far; the runner looks at it while the load runs.
#[derive(Debug, Default)]
pub struct Seen {
    /// Operations that ended: when, how long they took, whether they read.
    pub done: Vec<(Duration, Duration, bool)>,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Reads that were compared.
    pub reads: u64,
    /// Reads that showed an older state than was acknowledged.
    pub lost: u64,
    /// Reads that showed something else.
    pub wrong: u64,
    /// Operations that failed.
    pub errors: u64,
    /// In words, the first few of them.
    pub told: Vec<String>,
    /// Since when the oldest operation waits that is under way, if one is.
    pub oldest: Option<Duration>,
}

impl Seen {
    fn tell(&mut self, text: String) {
        if self.told.len() < TOLD {
            self.told.push(text);
        }
    }
}

/// The load.
pub struct Verify {
    plan: VerifyPlan,
    draw: Draw,
    objects: Vec<Object>,
    idle: Vec<u64>,
    begun: Option<Duration>,
    next: u64,
    /// In the end everything is read once: the next object, and the last.
    last: Option<(u64, u64)>,
    under_way: u64,
    next_version: u64,
    /// What was found.
    pub seen: Arc<Mutex<Seen>>,
    /// Nothing new is begun; all objects are read a last time.
    pub stop: Arc<AtomicBool>,
    /// Objects that were compared after that.
    pub checked: Arc<AtomicU64>,
}

impl Verify {
    /// A load that begins at its first tick.
    pub fn new(plan: VerifyPlan) -> Self {
        Self {
            draw: Draw::new(plan.seed),
            objects: vec![Object::default(); plan.objects as usize],
            idle: Vec::new(),
            begun: None,
            next: 0,
            last: None,
            under_way: 0,
            next_version: 0,
            seen: Arc::default(),
            stop: Arc::default(),
            checked: Arc::default(),
            plan,
        }
    }

    fn has_idle(&self) -> bool {
        self.next < self.plan.objects || !self.idle.is_empty()
    }

    fn due(&self) -> Duration {
        self.begun.unwrap_or_default() + Duration::from_secs_f64(self.next as f64 / self.plan.rate)
    }

    fn send(
        &mut self,
        object: u64,
        from: Duration,
        now: Duration,
        write: Option<(u64, usize)>,
        out: &mut Vec<Order>,
    ) {
        let Some(o) = self.objects.get_mut(object as usize) else { return };
        (o.from, o.writing) = (Some(from), write);
        let op = match write {
            Some((version, len)) => OsdOp::write_full(content(object, version, len)),
            None => OsdOp::read(0, 0),
        };
        let locator = ObjectLocator { pool: self.plan.pool, ..ObjectLocator::default() };
        let mtime = UTime { sec: now.as_secs() as u32, nsec: now.subsec_nanos() };
        self.under_way += 1;
        out.push(Order {
            tag: object,
            request: Request::new(locator, name(&self.plan.prefix, object), vec![op], mtime),
        });
    }

    fn fill(&mut self, now: Duration, out: &mut Vec<Order>) {
        if self.stop.load(Ordering::Relaxed) {
            return self.read_all(now, out);
        }
        while self.due() <= now && self.has_idle() {
            // Each is written once first, in order: whatever a drill that was killed leaves is a
            // range ([`crate::litter`]).
            let object = if self.next < self.plan.objects {
                self.next
            } else {
                let at = self.draw.below(self.idle.len() as u64) as usize;
                self.idle.swap_remove(at)
            };
            let from = self.due();
            self.next += 1;
            let has = self.objects.get(object as usize).is_some_and(|o| o.version > 0);
            let write = if has && (object.is_multiple_of(STILL) || self.draw.below(2) == 0) {
                None
            } else {
                self.next_version += 1;
                let size = SIZES[self.draw.below(SIZES.len() as u64) as usize];
                Some((self.next_version, size))
            };
            self.send(object, from, now, write, out);
        }
    }

    /// Nothing new is begun; when nothing is under way any more, each object is read.
    fn read_all(&mut self, now: Duration, out: &mut Vec<Order>) {
        if self.last.is_none() {
            if self.under_way > 0 {
                return;
            }
            self.last = Some((0, self.plan.objects));
        }
        while let Some((next, end)) = self.last
            && next < end
            && self.under_way < 16
        {
            self.last = Some((next + 1, end));
            self.send(next, now, now, None, out);
        }
    }

    fn compare(&self, object: u64, o: Object, reply: &Reply, seen: &mut Seen) {
        let got = reply.ops.first().map(|r| r.op.indata.clone()).unwrap_or_default();
        seen.reads += 1;
        let who = name(&self.plan.prefix, object);
        let who = who.escape_ascii();
        match -reply.result {
            errno::ENOENT if o.version == 0 => {}
            errno::ENOENT => {
                seen.lost += 1;
                seen.tell(format!("{who} is gone; version {} of it was acknowledged", o.version));
            }
            0 if got == content(object, o.version, o.len) => {}
            0 => match version_of(object, &got) {
                Some(older) if older < o.version => {
                    seen.lost += 1;
                    seen.tell(format!(
                        "{who} is of version {older}; version {} was acknowledged",
                        o.version
                    ));
                }
                _ => {
                    seen.wrong += 1;
                    let right = content(object, o.version, o.len);
                    let at = right
                        .iter()
                        .zip(&got)
                        .position(|(a, b)| a != b)
                        .unwrap_or(right.len().min(got.len()));
                    seen.tell(format!(
                        "{who} differs from byte {at} on ({} bytes, {} are right)",
                        got.len(),
                        o.len
                    ));
                }
            },
            e => {
                seen.errors += 1;
                seen.tell(format!("a read of {who} failed: error {e}"));
            }
        }
    }
}

impl Driver for Verify {
    fn done(&mut self, now: Duration, tag: u64, reply: Reply, out: &mut Vec<Order>) {
        let Some(o) = self.objects.get(tag as usize).copied() else { return };
        self.under_way -= 1;
        let seen = self.seen.clone();
        let mut seen = crate::locked(&seen);
        if let Some(from) = o.from
            && seen.done.len() < KEPT
            && self.last.is_none()
        {
            seen.done.push((now, now.saturating_sub(from), o.writing.is_none()));
        }
        let mut after = Object { from: None, writing: None, ..o };
        match o.writing {
            Some((version, len)) if reply.result == 0 => {
                seen.writes += 1;
                (after.version, after.len) = (version, len);
            }
            Some((version, _)) => {
                seen.errors += 1;
                seen.tell(format!("write of version {version} failed: error {}", -reply.result));
            }
            None => self.compare(tag, o, &reply, &mut seen),
        }
        if let Some(slot) = self.objects.get_mut(tag as usize) {
            *slot = after;
        }
        seen.oldest = self.objects.iter().filter_map(|o| o.from).min();
        drop(seen);
        if self.last.is_some() {
            self.checked.fetch_add(1, Ordering::Relaxed);
        } else {
            self.idle.push(tag);
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
            // Answers drive it.
            Some(_) if !self.has_idle() || self.last.is_some() => Duration::MAX,
            Some(_) => self.due(),
        }
    }

    fn finished(&self) -> bool {
        self.under_way == 0 && self.last.is_some_and(|(next, end)| next >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_messages::ceph::osd::OpResult;
    use spirula_types::EVersion;
    use std::collections::BTreeMap;

    fn answer(result: i32, data: Bytes) -> Reply {
        let op = OsdOp { indata: data, ..OsdOp::stat() };
        Reply {
            result,
            ops: vec![OpResult { op, rval: 0, output_crc: None }],
            version: EVersion::default(),
            user_version: 0,
        }
    }

    /// Runs it against a store in memory whose reads `spoil` changes; gives what was seen.
    fn run(spoil: impl Fn(&[Bytes]) -> Option<Bytes>) -> Arc<Mutex<Seen>> {
        let mut l = Verify::new(VerifyPlan {
            pool: 1,
            prefix: "d.".into(),
            objects: 4,
            rate: 1000.0,
            seed: 3,
        });
        let seen = l.seen.clone();
        let mut store: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
        let mut out = Vec::new();
        l.tick(Duration::ZERO, &mut out);
        for ms in 1..400u64 {
            let now = Duration::from_millis(ms);
            if ms == 300 {
                l.stop.store(true, Ordering::Relaxed);
            }
            for o in std::mem::take(&mut out) {
                let versions = store.entry(o.tag).or_default();
                let op = &o.request.ops[0];
                let reply = if op.is_write() {
                    versions.push(op.indata.clone());
                    answer(0, Bytes::new())
                } else {
                    spoil(versions)
                        .map_or_else(|| answer(-errno::ENOENT, Bytes::new()), |d| answer(0, d))
                };
                l.done(now, o.tag, reply, &mut out);
            }
            l.tick(now, &mut out);
            if l.finished() {
                assert_eq!(l.checked.load(Ordering::Relaxed), 4);
                return seen;
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_sound_store_is_found_sound() {
        let seen = run(|v| v.last().cloned());
        let s = crate::locked(&seen);
        assert_eq!((s.lost, s.wrong, s.errors), (0, 0, 0), "{:?}", s.told);
        assert!(s.writes > 50 && s.reads > 50, "{} {}", s.writes, s.reads);
    }

    #[test]
    fn lost_writes_and_wrong_bytes_are_told_apart() {
        let seen = run(|v| {
            v.len().checked_sub(2).map_or_else(|| v.last().cloned(), |i| Some(v[i].clone()))
        });
        let s = crate::locked(&seen);
        assert!(s.lost > 0 && s.wrong == 0, "an older version: {:?}", s.told);
        drop(s);
        let flipped = run(|v| {
            let mut b = v.last()?.to_vec();
            let at = b.len() - 9;
            b[at] ^= 4;
            Some(b.into())
        });
        let s = crate::locked(&flipped);
        assert!(s.wrong > 0 && s.lost == 0, "{:?}", s.told);
        drop(s);
        let gone = run(|_| None);
        let s = crate::locked(&gone);
        assert!(s.lost > 0, "{:?}", s.told);
    }
}
