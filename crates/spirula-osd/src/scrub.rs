//! Scrubs of one OSD: when they are due, one PG at a time, and the maps of what is stored.
//!
//! A map is made in small steps between other events: names, attributes and omap pages here,
//! data by a helper thread, one piece after the other, past every cache.

use crate::daemon::{Osd, OsdEvent};
use crate::reader::StoreReader;
use bytes::Bytes;
use spirula_encoding::crc::crc32c;
use spirula_maps::osdmap::{flags, opts::opt, pool};
use spirula_messages::cluster::control::OsdScrub;
use spirula_messages::cluster::scrub::{ScrubMap, ScrubObject};
use spirula_pg::PgEvent;
use spirula_pg::exec::{ObjectReader, OmapRange};
use spirula_runtime::clock;
use spirula_store::{Read, StoreError};
use spirula_types::{HObject, PgId, SpgId};
use std::collections::VecDeque;
use std::time::Duration;

/// Seconds between shallow scrubs of a PG, unless its pool says otherwise (Ceph's default).
const SHALLOW_EVERY: f64 = 86_400.0;
/// Seconds between deep scrubs (Ceph's default).
const DEEP_EVERY: f64 = 604_800.0;
/// Between two looks at what is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes of data read at a time.
const PIECE: u64 = 2 << 20;
/// Keys, and bytes of keys and values, looked at in one step.
const OMAP_PAGE: (usize, usize) = (1024, 256 << 10);
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

/// Scrubs of this OSD.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    orders: VecDeque<Order>,
    /// The PG that is scrubbed, and whether somebody ordered it.
    running: Option<(Order, bool)>,
    next_look: Duration,
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

impl Osd {
    /// The manager passes on an order.
    pub(crate) fn scrub_ordered(&mut self, o: OsdScrub) {
        let led = self.pgs.iter().filter(|(_, p)| p.is_primary()).map(|(id, _)| *id);
        let pgs: Vec<SpgId> =
            if o.pgs.is_empty() { led.collect() } else { o.pgs.iter().filter_map(|pg| self.led(*pg)).collect() };
        for pg in pgs {
            let order = Order { pg, deep: o.deep || o.repair, repair: o.repair };
            if !self.scrubs.orders.contains(&order) && self.scrubs.orders.len() < ORDERS_MAX {
                self.scrubs.orders.push_back(order);
            }
        }
        self.scrubs.next_look = Duration::ZERO;
        self.start_scrub(clock::monotonic());
    }

    /// Starts the next scrub, if none runs and one is wanted or due.
    pub(crate) fn start_scrub(&mut self, now: Duration) {
        if self.scrubs.running.is_some() || now < self.scrubs.next_look {
            return;
        }
        self.scrubs.next_look = now + LOOK_EVERY;
        let ready = |pgs: &std::collections::BTreeMap<SpgId, spirula_pg::Pg>, pg: SpgId| {
            pgs.get(&pg).is_some_and(|p| p.is_primary() && p.scrub_stamps().is_some())
        };
        // An order waits until its PG is clean; one for a PG that is elsewhere by now goes.
        self.scrubs.orders.retain(|o| self.pgs.get(&o.pg).is_some_and(spirula_pg::Pg::is_primary));
        let ordered = self.scrubs.orders.iter().position(|o| ready(&self.pgs, o.pg));
        let next = match ordered.and_then(|i| self.scrubs.orders.remove(i)) {
            Some(order) => Some((order, true)),
            None => self.due().map(|order| (order, false)),
        };
        if let Some((order, asked)) = next {
            self.scrubs.running = Some((order, asked));
            self.feed_pg(order.pg, PgEvent::Scrub { deep: order.deep, repair: order.repair });
        }
    }

    /// The PG whose scrub is due longest.
    fn due(&self) -> Option<Order> {
        let map = self.maps.map()?;
        let held = |flag| map.flags & flag != 0;
        let wall = clock::wall().as_secs_f64();
        let mut best: Option<(f64, Order)> = None;
        for (id, pg) in &self.pgs {
            let (Some((last, last_deep)), Some(p)) = (pg.scrub_stamps(), map.pools.get(&id.pg.pool)) else { continue };
            let every = |key, default: f64| p.opts.double(key).filter(|s| *s > 0.0).unwrap_or(default);
            let late = |last: spirula_encoding::UTime, every: f64| wall - last.as_secs_f64() - every;
            let no_deep = held(flags::NODEEP_SCRUB) || p.flags & pool::flag::NODEEP_SCRUB != 0;
            let no_shallow = held(flags::NOSCRUB) || p.flags & pool::flag::NOSCRUB != 0;
            // Half of the interval more for some, as Ceph spreads them.
            let shallow = late(last, every(opt::SCRUB_MIN_INTERVAL, SHALLOW_EVERY) * (1.0 + 0.5 * spread(id.pg, 1)));
            let deep = late(last_deep, every(opt::DEEP_SCRUB_INTERVAL, DEEP_EVERY) * (1.0 + 0.15 * spread(id.pg, 2)));
            let order = |deep| Order { pg: *id, deep, repair: false };
            let mut consider = |late: f64, o: Order| {
                if late > 0.0 && best.as_ref().is_none_or(|(b, _)| late > *b) {
                    best = Some((late, o));
                }
            };
            if !no_deep {
                consider(deep, order(true));
            }
            if !no_shallow {
                consider(shallow, order(false));
            }
        }
        best.map(|(_, o)| o)
    }

    /// A PG's scrub has ended.
    pub(crate) fn scrub_ended(&mut self, pg: SpgId, done: bool) {
        if let Some((order, asked)) = self.scrubs.running.take_if(|(o, _)| o.pg == pg)
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

    pub(crate) fn scrub_scan(&mut self, pg: SpgId, seq: u64, from: HObject, to: HObject, deep: bool) {
        self.scrubs.scans.push_back(Scan { pg, seq, from, to, deep });
        self.next_scan();
    }

    fn next_scan(&mut self) {
        if self.scrubs.job.is_some() {
            return;
        }
        let Some(scan) = self.scrubs.scans.pop_front() else { return };
        let Some(store) = &self.store else { return };
        let listed = StoreReader { store, shelf: &self.shelf }.list(&scan.from, &scan.to, usize::MAX);
        let failed = listed.is_err();
        if let Err(e) = &listed {
            tracing::error!("pg {}: list objects for scrub: {e}", scan.pg);
        }
        let left = listed.unwrap_or_default().into();
        self.scrubs.jobs += 1;
        self.scrubs.job = Some(Job { scan, left, map: ScrubMap::default(), failed, now: None });
        // Not answered on the spot: the PG may be in the middle of something.
        self.mailbox.push(OsdEvent::ScrubStep(self.scrubs.jobs, None));
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
        let reader = StoreReader { store, shelf: &self.shelf };
        let Some(object) = j.left.front().cloned() else {
            let Some(j) = self.scrubs.job.take() else { return };
            let map = (!j.failed).then_some(j.map);
            self.feed_pg(j.scan.pg, PgEvent::ScrubMapped { seq: j.scan.seq, map });
            self.next_scan();
            return;
        };
        let Some(p) = &mut j.now else {
            j.now = Some(begin(&reader, &object, j.scan.deep));
            self.mailbox.push(OsdEvent::ScrubStep(job, None));
            return;
        };
        if j.scan.deep && !p.copy.read_error {
            if let Some(from) = p.omap_from.take() {
                let range = OmapRange { from: &from, until: None, max_entries: OMAP_PAGE.0, max_bytes: OMAP_PAGE.1 };
                match reader.omap_range(&object, range) {
                    Ok(page) => {
                        for (k, v) in &page.entries {
                            p.omap_crc = crc32c(crc32c(p.omap_crc, k), v);
                        }
                        let last = page.entries.last().filter(|_| page.more);
                        // The first key after the last one.
                        p.omap_from = last.map(|(k, _)| [k, &b"\0"[..]].concat().into());
                    }
                    Err(_) => p.copy.read_error = true,
                }
                self.mailbox.push(OsdEvent::ScrubStep(job, None));
                return;
            }
            if p.offset < p.copy.size {
                match store.read_uncached(&object, p.offset, PIECE.min(p.copy.size - p.offset)) {
                    Ok(Read::NotReady(plan)) => {
                        let mailbox = self.mailbox.clone();
                        self.on.spawn_blocking(move || mailbox.push(OsdEvent::ScrubStep(job, Some(plan.run()))));
                    }
                    Ok(Read::Ready(data)) => self.mailbox.push(OsdEvent::ScrubStep(job, Some(Ok(data)))),
                    Ok(Read::Missing) => self.mailbox.push(OsdEvent::ScrubStep(job, Some(Ok(Bytes::new())))),
                    Err(e) => self.mailbox.push(OsdEvent::ScrubStep(job, Some(Err(e)))),
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
        self.mailbox.push(OsdEvent::ScrubStep(job, None));
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

    #[test]
    fn scrubs_are_spread_and_always_alike() {
        let all: Vec<f64> = (0..1000).map(|s| spread(PgId::new(3, s), 1)).collect();
        assert!(all.iter().all(|v| (0.0..1.0).contains(v)));
        let early = all.iter().filter(|v| **v < 0.5).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the first half");
        assert_eq!(spread(PgId::new(3, 7), 1).to_bits(), all[7].to_bits());
    }
}
