//! Scrubs of one OSD: when they are due (`osd_scrub_…`), few at a time (`osd_max_scrubs`), and the
//! maps of what is stored.
//!
//! A map is made in small steps between other events: names, attributes and omap pages here,
//! data by a helper thread, one piece after the other, past every cache.

use crate::osd::{OsdCore, OsdEvent};
use crate::reader::StoreReader;
use bytes::Bytes;
use serde_json::{Value, json};
use spirula_encoding::UTime;
use spirula_encoding::crc::crc32c;
use spirula_maps::osdmap::opts::{PoolOpts, opt};
use spirula_maps::osdmap::{flags, pool};
use spirula_messages::cluster::control::OsdScrub;
use spirula_messages::cluster::scrub::{ScrubMap, ScrubObject};
use spirula_pg::exec::{ObjectReader, OmapRange};
use spirula_pg::{LargeOmap, Pg, PgEvent};
use spirula_settings::Settings;
use spirula_store::{Read, StoreError};
use spirula_types::{HObject, PgId, SpgId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Between two looks at what is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes of data read at a time.
const PIECE: u64 = 2 << 20;
/// Keys, and bytes of keys and values, looked at in one step.
const OMAP_PAGE: (usize, usize) = (1024, 256 << 10);
/// Bytes that looking at an object counts for besides its data.
const OBJECT_COST: u64 = 8 << 10;
/// After a deep scrub that did not read all in time the next one of that PG is due no sooner.
const UNREAD_AGAIN: Duration = Duration::from_secs(3600);
/// Orders kept; more than PGs an OSD leads make no sense.
const ORDERS_MAX: usize = 4096;

/// What a PG was told to do and has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    pg: SpgId,
    deep: bool,
    repair: bool,
}

/// A map that is wanted.
#[derive(Debug)]
pub(crate) struct Scan {
    pg: SpgId,
    seq: u64,
    from: HObject,
    to: HObject,
    deep: bool,
}

/// The map being made.
#[derive(Debug)]
struct Job {
    scan: Scan,
    /// Objects to go, the present one first.
    left: VecDeque<HObject>,
    map: ScrubMap,
    /// It could not be listed.
    failed: bool,
    /// Of the present object, once its attributes are read.
    now: Option<Present>,
}

#[derive(Debug, Default)]
struct Present {
    copy: ScrubObject,
    /// First omap key to come; `None` when all are read.
    omap_from: Option<Bytes>,
    omap_crc: u32,
    data_crc: u32,
    offset: u64,
}

/// The options that scrubs obey (Ceph's names).
#[derive(Clone, Copy, Debug, PartialEq)]
struct ScrubOptions {
    /// Scrubs at a time that this OSD leads.
    max: usize,
    /// Seconds between shallow and between deep scrubs, unless the pool says otherwise.
    every: f64,
    deep_every: f64,
    /// After this much a shallow scrub is late, whatever the hour.
    at_most: f64,
    /// Hours of the day in which scrubs may begin, from the first up to before the second; the same
    /// twice for any.
    hours: (u32, u32),
    /// Days of the week (0 and 7 are Sunday), in the same way.
    days: (u32, u32),
    /// What is due begins also while something here recovers.
    during_recovery: bool,
    auto_repair: bool,
}

/// Names of the options that are seconds, with what they are where a value makes no sense.
const EVERY: (&str, f64) = ("osd_scrub_min_interval", 86_400.0);
const AT_MOST: (&str, f64) = ("osd_scrub_max_interval", 604_800.0);
const DEEP_EVERY: (&str, f64) = ("osd_deep_scrub_interval", 604_800.0);

/// From where on an omap is reported.
fn large_omap(settings: &Settings) -> LargeOmap {
    let common = LargeOmap::default();
    LargeOmap {
        keys: settings
            .number("osd_deep_scrub_large_omap_object_key_threshold")
            .unwrap_or(common.keys),
        bytes: settings
            .number("osd_deep_scrub_large_omap_object_value_sum_threshold")
            .unwrap_or(common.bytes),
    }
}

impl ScrubOptions {
    fn of(s: &Settings) -> Self {
        let seconds = |(name, default): (&str, f64)| {
            s.get(name).and_then(|v| v.parse().ok()).filter(|v: &f64| *v > 0.0).unwrap_or(default)
        };
        let number = |name: &str, bound: u64| s.number(name).map_or(0, |n| n.min(bound) as u32);
        Self {
            max: s.number("osd_max_scrubs").map_or(1, |n| n.min(64) as usize),
            every: seconds(EVERY),
            deep_every: seconds(DEEP_EVERY),
            at_most: seconds(AT_MOST),
            hours: (number("osd_scrub_begin_hour", 24) % 24, number("osd_scrub_end_hour", 24) % 24),
            days: (
                number("osd_scrub_begin_week_day", 7) % 7,
                number("osd_scrub_end_week_day", 7) % 7,
            ),
            during_recovery: s.is_on("osd_scrub_during_recovery"),
            auto_repair: s.is_on("osd_scrub_auto_repair"),
        }
    }

    /// May a scrub that is merely due begin at this local hour of this day of the week?
    fn allows(&self, hour: u32, day: u32) -> bool {
        let within = |(first, end): (u32, u32), now: u32| match first.cmp(&end) {
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Less => (first..end).contains(&now),
            std::cmp::Ordering::Greater => now >= first || now < end,
        };
        within(self.hours, hour) && within(self.days, day)
    }
}

/// When a PG is to be scrubbed, seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Due {
    shallow: f64,
    deep: f64,
    /// From then on also outside of the hours that are set.
    late: f64,
}

impl Due {
    /// From the last scrubs; half of the interval more for some PGs, as Ceph spreads them.
    fn new(pg: PgId, (last, last_deep): (UTime, UTime), opts: &PoolOpts, k: &ScrubOptions) -> Self {
        let every = |key, default: f64| opts.double(key).filter(|s| *s > 0.0).unwrap_or(default);
        let (last, last_deep) = (last.as_secs_f64(), last_deep.as_secs_f64());
        Self {
            shallow: last + every(opt::SCRUB_MIN_INTERVAL, k.every) * (1.0 + 0.5 * spread(pg, 1)),
            deep: last_deep
                + every(opt::DEEP_SCRUB_INTERVAL, k.deep_every) * (1.0 + 0.15 * spread(pg, 2)),
            late: last + every(opt::SCRUB_MAX_INTERVAL, k.at_most),
        }
    }
}

/// Scrubs of this OSD.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    orders: VecDeque<Order>,
    /// The PGs that are scrubbed, and whether somebody ordered it.
    running: BTreeMap<SpgId, (Order, bool)>,
    next_look: Duration,
    /// When PGs of which not all was read may be scrubbed deeply again: they are due all the time.
    unread: BTreeMap<SpgId, Duration>,
    scans: VecDeque<Scan>,
    job: Option<Job>,
    /// Counts jobs, so that late pieces are told from present ones.
    jobs: u64,
}

/// A number below 1 that is the same for a PG at all times: spreads what is due.
fn spread(pg: PgId, salt: u64) -> f64 {
    let mut z = (pg.pool as u64) << 32 ^ u64::from(pg.seed) ^ salt << 56;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Hour of the day and day of the week (0: Sunday), UTC.
fn calendar(wall: UTime) -> (u32, u32) {
    let hours = u64::from(wall.sec) / 3600;
    // The first of January 1970 was a Thursday.
    ((hours % 24) as u32, ((hours / 24 + 4) % 7) as u32)
}

impl OsdCore {
    /// The manager passes on an order.
    pub(crate) fn scrub_ordered(&mut self, o: OsdScrub) {
        let led = self.pgs.iter().filter(|(_, p)| p.is_primary()).map(|(id, _)| *id);
        let pgs: Vec<SpgId> = if o.pgs.is_empty() {
            led.collect()
        } else {
            o.pgs.iter().filter_map(|pg| self.led(*pg)).collect()
        };
        for pg in pgs {
            let order = Order { pg, deep: o.deep || o.repair, repair: o.repair };
            if !self.scrubs.orders.contains(&order) && self.scrubs.orders.len() < ORDERS_MAX {
                self.scrubs.orders.push_back(order);
            }
        }
        self.scrubs.next_look = Duration::ZERO;
        self.start_scrub(self.now.mono);
    }

    /// Starts the next scrub, if few enough run and one is wanted or due.
    pub(crate) fn start_scrub(&mut self, now: Duration) {
        if now < self.scrubs.next_look {
            return;
        }
        self.scrubs.next_look = now + LOOK_EVERY;
        let k = ScrubOptions::of(&self.cfg.settings);
        if self.scrubs.running.len() >= k.max {
            return;
        }
        let running = &self.scrubs.running;
        let ready = |pgs: &BTreeMap<SpgId, Pg>, pg: SpgId| {
            !running.contains_key(&pg)
                && pgs.get(&pg).is_some_and(|p| p.is_primary() && p.scrub_stamps().is_some())
        };
        // An order waits until its PG is clean; one for a PG that is elsewhere by now goes.
        self.scrubs.orders.retain(|o| self.pgs.get(&o.pg).is_some_and(Pg::is_primary));
        let ordered = self.scrubs.orders.iter().position(|o| ready(&self.pgs, o.pg));
        let next = match ordered.and_then(|i| self.scrubs.orders.remove(i)) {
            Some(order) => Some((order, true)),
            None => self.due(&k).map(|order| (order, false)),
        };
        if let Some((order, asked)) = next {
            self.scrubs.running.insert(order.pg, (order, asked));
            let large = large_omap(&self.cfg.settings);
            self.feed_pg(
                order.pg,
                PgEvent::Scrub { deep: order.deep, repair: order.repair, large },
            );
        }
    }

    /// The PG whose scrub is due longest.
    fn due(&self, k: &ScrubOptions) -> Option<Order> {
        let map = self.maps.map()?;
        if self.sched.is_recovering() && !k.during_recovery {
            return None;
        }
        let held = |flag| map.flags & flag != 0;
        let now = self.now.wall;
        let (hour, day) = calendar(now);
        let (now, allowed) = (now.as_secs_f64(), k.allows(hour, day));
        let mut best: Option<(f64, Order)> = None;
        for (id, pg) in &self.pgs {
            let (Some(stamps), Some(p)) = (pg.scrub_stamps(), map.pools.get(&id.pg.pool)) else {
                continue;
            };
            if self.scrubs.running.contains_key(id) {
                continue;
            }
            let due = Due::new(id.pg, stamps, &p.opts, k);
            if !allowed && now < due.late {
                continue;
            }
            let no_deep = held(flags::NODEEP_SCRUB) || p.flags & pool::flag::NODEEP_SCRUB != 0;
            let no_shallow = held(flags::NOSCRUB) || p.flags & pool::flag::NOSCRUB != 0;
            let order = |deep| Order { pg: *id, deep, repair: deep && k.auto_repair };
            let no_deep =
                no_deep || self.scrubs.unread.get(id).is_some_and(|until| self.now.mono < *until);
            for (at, deep, barred) in [(due.deep, true, no_deep), (due.shallow, false, no_shallow)]
            {
                if !barred && now > at && best.as_ref().is_none_or(|(b, _)| at < *b) {
                    best = Some((at, order(deep)));
                }
            }
        }
        best.map(|(_, o)| o)
    }

    /// How many scrubs are under way, for `tell osd.N dump_scrub_reservations`.
    pub(crate) fn dump_scrub_reservations(&self) -> Value {
        let most = self.cfg.settings.number("osd_max_scrubs").unwrap_or(1);
        json!({"scrubs_local": self.scrubs.running.len(), "scrubs_remote": 0, "osd_max_scrubs": most})
    }

    /// When each PG that this OSD leads is to be scrubbed, for `tell osd.N dump_scrubs`.
    pub(crate) fn dump_scrubs(&self) -> Value {
        let (k, Some(map)) = (ScrubOptions::of(&self.cfg.settings), self.maps.map()) else {
            return json!([]);
        };
        let at = |seconds: f64| {
            UTime { sec: seconds.clamp(0.0, f64::from(u32::MAX)) as u32, nsec: 0 }.to_iso()
        };
        let rows = self.pgs.iter().filter_map(|(id, pg)| {
            let due = Due::new(id.pg, pg.scrub_stamps()?, &map.pools.get(&id.pg.pool)?.opts, &k);
            let ordered = self.scrubs.orders.iter().any(|o| o.pg == *id);
            let running = self.scrubs.running.get(id).map(|(o, _)| if o.deep { "deep" } else { "shallow" });
            Some(json!({"pgid": id.pg.to_string(), "sched_time": at(due.shallow), "deep_sched_time": at(due.deep),
                "deadline": at(due.late), "forced": ordered, "running": running.unwrap_or("no")}))
        });
        rows.collect()
    }

    /// A PG's scrub has ended.
    pub(crate) fn scrub_ended(&mut self, pg: SpgId, done: bool, unread: bool) {
        let now = self.now.mono;
        self.scrubs.unread.retain(|_, until| now < *until);
        if unread {
            self.scrubs.unread.insert(pg, now + UNREAD_AGAIN);
        }
        if let Some((order, asked)) = self.scrubs.running.remove(&pg)
            && asked
            && !done
        {
            self.scrubs.orders.push_back(order);
        }
        if done {
            self.scrubs.next_look = Duration::ZERO;
        }
    }

    // ---- maps ----

    pub(crate) fn scrub_scan(
        &mut self,
        pg: SpgId,
        seq: u64,
        from: HObject,
        to: HObject,
        deep: bool,
    ) {
        // Its primary asks anew: it does not wait for an older one any more.
        self.scrubs.scans.retain(|s| s.pg != pg);
        if self.scrubs.job.as_ref().is_some_and(|j| j.scan.pg == pg) {
            self.scrubs.job = None;
        }
        self.scrubs.scans.push_back(Scan { pg, seq, from, to, deep });
        self.next_scan();
    }

    fn next_scan(&mut self) {
        if self.scrubs.job.is_some() {
            return;
        }
        let Some(scan) = self.scrubs.scans.pop_front() else { return };
        let Some(store) = &self.store else { return };
        let listed =
            StoreReader { store, fetched: &[], bad: &self.bad, waits: self.waits.any_for_room() }
                .list(&scan.from, &scan.to, usize::MAX);
        let failed = listed.is_err();
        if let Err(e) = &listed {
            tracing::error!("pg {}: list objects for scrub: {e}", scan.pg);
        }
        let left = listed.unwrap_or_default().into();
        self.scrubs.jobs += 1;
        self.scrubs.job = Some(Job { scan, left, map: ScrubMap::default(), failed, now: None });
        // Not answered on the spot: the PG may be in the middle of something.
        self.outside.later(OsdEvent::ScrubStep(self.scrubs.jobs, None));
    }

    /// The next step of the map; `data`: the piece that was read.
    pub(crate) fn scrub_step(&mut self, job: u64, data: Option<Result<Bytes, StoreError>>) {
        if job != self.scrubs.jobs {
            return;
        }
        let Some(store) = &self.store else { return };
        let Some(j) = &mut self.scrubs.job else { return };
        if let (Some(p), Some(data)) = (&mut j.now, data) {
            match data {
                Ok(bytes) => {
                    self.sched.scrubbed(bytes.len() as u64);
                    p.data_crc = crc32c(p.data_crc, &bytes);
                    p.offset += bytes.len() as u64;
                    if bytes.is_empty() {
                        p.offset = p.copy.size;
                    }
                }
                Err(e) => {
                    tracing::error!("pg {}: scrub: {e}", j.scan.pg);
                    p.copy.read_error = true;
                    p.offset = p.copy.size;
                }
            }
        }
        let reader =
            StoreReader { store, fetched: &[], bad: &self.bad, waits: self.waits.any_for_room() };
        let Some(object) = j.left.front().cloned() else {
            let Some(j) = self.scrubs.job.take() else { return };
            let map = (!j.failed).then_some(j.map);
            self.feed_pg(j.scan.pg, PgEvent::ScrubMapped { seq: j.scan.seq, map });
            self.next_scan();
            return;
        };
        let Some(p) = &mut j.now else {
            j.now = Some(begin(&reader, &object, j.scan.deep));
            self.sched.scrubbed(OBJECT_COST);
            self.outside.later(OsdEvent::ScrubStep(job, None));
            return;
        };
        if j.scan.deep && !p.copy.read_error {
            if let Some(from) = p.omap_from.take() {
                let range = OmapRange {
                    from: &from,
                    until: None,
                    max_entries: OMAP_PAGE.0,
                    max_bytes: OMAP_PAGE.1,
                };
                match reader.omap_range(&object, range) {
                    Ok(page) => {
                        for (k, v) in &page.entries {
                            p.copy.omap_keys += 1;
                            p.copy.omap_bytes += v.len() as u64;
                            p.omap_crc = crc32c(crc32c(p.omap_crc, k), v);
                        }
                        let last = page.entries.last().filter(|_| page.more);
                        // The first key after the last one.
                        p.omap_from = last.map(|(k, _)| [k, &b"\0"[..]].concat().into());
                    }
                    Err(_) => p.copy.read_error = true,
                }
                self.outside.later(OsdEvent::ScrubStep(job, None));
                return;
            }
            if p.offset < p.copy.size {
                match store.read_uncached(&object, p.offset, PIECE.min(p.copy.size - p.offset)) {
                    Ok(Read::NotReady(plan)) => {
                        self.outside
                            .work(Box::new(move || OsdEvent::ScrubStep(job, Some(plan.run()))));
                    }
                    Ok(Read::Ready(data)) => {
                        self.outside.later(OsdEvent::ScrubStep(job, Some(Ok(data))))
                    }
                    Ok(Read::Missing) => {
                        self.outside.later(OsdEvent::ScrubStep(job, Some(Ok(Bytes::new()))))
                    }
                    Err(e) => self.outside.later(OsdEvent::ScrubStep(job, Some(Err(e)))),
                }
                return;
            }
        }
        if let Some(mut p) = j.now.take() {
            if j.scan.deep && !p.copy.read_error {
                (p.copy.omap_digest, p.copy.data_digest) = (Some(p.omap_crc), Some(p.data_crc));
            }
            j.map.0.push((object, p.copy));
        }
        j.left.pop_front();
        self.outside.later(OsdEvent::ScrubStep(job, None));
    }
}

/// What is known of an object without reading its data.
fn begin(reader: &StoreReader<'_>, object: &HObject, deep: bool) -> Present {
    let mut p = Present { omap_crc: u32::MAX, data_crc: u32::MAX, ..Present::default() };
    match (reader.store.stat(object), reader.attrs(object)) {
        (Ok(stat), Ok(attrs)) => {
            p.copy.size = stat.map_or(0, |s| s.size);
            p.copy.attrs = attrs;
            p.copy.attrs.sort();
        }
        _ => p.copy.read_error = true,
    }
    if deep {
        match reader.omap_header(object) {
            Ok(header) => p.omap_crc = crc32c(p.omap_crc, &header),
            Err(_) => p.copy.read_error = true,
        }
        p.omap_from = Some(Bytes::new());
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_maps::osdmap::opts::PoolOptValue;

    #[test]
    fn hours_and_days_may_pass_midnight_and_the_weeks_end() {
        let mut s = Settings::default();
        let any = ScrubOptions::of(&s);
        assert!(any.allows(0, 0) && any.allows(23, 6) && any.max == 1);
        for (name, value) in [("osd_scrub_begin_hour", "22"), ("osd_scrub_end_hour", "6")] {
            s.set(spirula_settings::Source::Mon, name, value).unwrap();
        }
        let night = ScrubOptions::of(&s);
        assert!(
            night.allows(22, 3)
                && night.allows(5, 3)
                && !night.allows(6, 3)
                && !night.allows(12, 3)
        );
        let weekend = ScrubOptions { hours: (0, 0), days: (6, 1), ..night };
        assert!(weekend.allows(1, 6) && weekend.allows(1, 0) && !weekend.allows(1, 1));
        // Saturday, 21 November 2026, 18:41 UTC.
        assert_eq!(calendar(UTime { sec: 1_795_286_460, nsec: 0 }), (18, 6));
    }

    #[test]
    fn what_is_due_follows_the_pool_then_the_options() {
        let k = ScrubOptions::of(&Settings::default());
        let pg = PgId::new(3, 7);
        let stamp = |sec| UTime { sec, nsec: 0 };
        let due = Due::new(pg, (stamp(1_000_000), stamp(900_000)), &PoolOpts::default(), &k);
        assert!((1_086_400.0..1_129_600.0).contains(&due.shallow), "{due:?}");
        assert!(
            (1_504_800.0..1_595_520.0).contains(&due.deep) && due.late == 1_604_800.0,
            "{due:?}"
        );
        let mut opts = PoolOpts::default();
        opts.0.insert(opt::SCRUB_MIN_INTERVAL, PoolOptValue::Double(10.0));
        let soon = Due::new(pg, (stamp(1_000_000), stamp(900_000)), &opts, &k);
        assert!((1_000_010.0..=1_000_015.0).contains(&soon.shallow) && soon.deep == due.deep);
    }

    #[test]
    fn scrubs_are_spread_and_always_alike() {
        let all: Vec<f64> = (0..1000).map(|s| spread(PgId::new(3, s), 1)).collect();
        assert!(all.iter().all(|v| (0.0..1.0).contains(v)));
        let early = all.iter().filter(|v| **v < 0.5).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the first half");
        assert_eq!(spread(PgId::new(3, 7), 1).to_bits(), all[7].to_bits());
    }
}
