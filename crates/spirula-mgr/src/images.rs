//! What is asked of each block image, for `rbd perf image iotop` and `iostat`.
//!
//! Somebody asks; for [`ASKED_FOR`] from then on OSDs are told, with each acknowledgement of a
//! report, to count ([`Images::wanted_ms`]). Their reports say what they counted and over which
//! time, so that rates do not depend on when a report comes. What was told in the last [`WINDOW`]
//! makes the rates; all of it, since somebody asked, the totals.
//!
//! OSDs know images by their ids. Names are read from the directory of their pool and namespace
//! ([`Images::look`]): the shell reads, as a client of its own. An image without a name is not
//! shown: it is gone, or in the trash. Names are read anew every [`NAME_FOR`], since images are
//! renamed.
//!
//! When nobody has asked for so long, all of it is forgotten. Bounds: [`IMAGES_MAX`] images, and as
//! many loads as [`LOADS_MAX`] in what makes the rates; one read at a time of [`NAMES_AT_ONCE`]
//! names.

use crate::event::ObjectRead;
use bytes::Bytes;
use spirula_encoding::from_slice;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::OpResult;
use spirula_messages::cluster::images::{ImageKey, ImageLoad, ImageLoads};
use spirula_types::{ObjectLocator, OsdId, errno};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long it is counted after somebody asked; as in Ceph.
const ASKED_FOR: Duration = Duration::from_secs(60);
/// How long OSDs count after each acknowledgement, at most: a manager that is gone asks no more.
const COUNT_FOR: Duration = Duration::from_secs(10);
/// Over which time rates are; the period of Ceph's statistics.
const WINDOW: Duration = Duration::from_secs(5);
/// How long a name is good.
const NAME_FOR: Duration = Duration::from_secs(30);
/// After how long an answer is not waited for any more.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// Before names that could not be read are tried again.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// Names that are read at once.
const NAMES_AT_ONCE: usize = 64;
/// Images that are known.
const IMAGES_MAX: usize = 4096;
/// Loads that are kept for the rates: of all images, OSDs and reports.
const LOADS_MAX: usize = 65_536;
/// The object that names the images of a pool and namespace.
const DIRECTORY: &[u8] = b"rbd_directory";
/// In it: the key of an image's name is this and its id.
const BY_ID: &str = "id_";

/// What one report told.
#[derive(Debug)]
struct Told {
    at: Duration,
    osd: OsdId,
    over: Duration,
    loads: Vec<(ImageKey, ImageLoad)>,
}

/// An image that was used since somebody asked.
#[derive(Debug, Default)]
struct Image {
    /// In all that time.
    total: ImageLoad,
    /// When it was used last.
    used: Duration,
    /// `None` if it has none.
    name: Option<String>,
    /// When its name is read again.
    read_at: Duration,
}

/// Names that are being read.
#[derive(Debug)]
struct Reading {
    call: u64,
    asked: Duration,
    of: Vec<ImageKey>,
}

/// What is said of an image: by its pool and namespace, and its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    /// Which image.
    pub key: ImageKey,
    /// Its name.
    pub name: String,
    /// Each second, and nanoseconds for a request on average: as [`COUNTERS`] orders them.
    pub rates: [f64; 6],
    /// Since somebody asked, latencies as sums.
    pub totals: [u64; 6],
}

/// The order of all figures, by Ceph's names.
pub(crate) const COUNTERS: [&str; 6] =
    ["write_ops", "read_ops", "write_bytes", "read_bytes", "write_latency", "read_latency"];

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Images {
    asked_until: Duration,
    told: VecDeque<Told>,
    images: BTreeMap<ImageKey, Image>,
    reading: Option<Reading>,
    calls: u64,
}

fn totals(l: &ImageLoad) -> [u64; 6] {
    [l.writes, l.reads, l.write_bytes, l.read_bytes, l.write_ns, l.read_ns]
}

/// Rates of what was asked in this time; latencies as sums each second.
fn add_rates(to: &mut [f64; 6], l: &ImageLoad, over: Duration) {
    if !over.is_zero() {
        to.iter_mut().zip(totals(l)).for_each(|(sum, n)| *sum += n as f64 / over.as_secs_f64());
    }
}

impl Images {
    /// Somebody asks what images do.
    pub fn ask(&mut self, now: Duration) {
        self.expire(now);
        self.asked_until = now + ASKED_FOR;
    }

    /// For how long an OSD is to count from now on, milliseconds; 0 while nobody asks.
    pub fn wanted_ms(&self, now: Duration) -> u32 {
        self.asked_until.saturating_sub(now).min(COUNT_FOR).as_millis() as u32
    }

    fn expire(&mut self, now: Duration) {
        if now >= self.asked_until {
            self.told.clear();
            self.images.clear();
            self.reading = None;
            return;
        }
        while self.told.front().is_some_and(|t| t.at + WINDOW < now) {
            self.told.pop_front();
        }
    }

    /// What an OSD counted.
    pub fn report(&mut self, now: Duration, osd: OsdId, report: ImageLoads) {
        self.expire(now);
        if now >= self.asked_until || report.over_ms == 0 {
            return;
        }
        for (key, load) in &report.loads {
            let image = self.images.entry(key.clone()).or_default();
            image.total += *load;
            image.used = now;
        }
        self.forget_some();
        let over = Duration::from_millis(report.over_ms);
        self.told.push_back(Told { at: now, osd, over, loads: report.loads });
        let mut loads: usize = self.told.iter().map(|t| t.loads.len()).sum();
        while loads > LOADS_MAX
            && let Some(oldest) = self.told.pop_front()
        {
            loads -= oldest.loads.len();
        }
    }

    /// Those that were not used for longest, where there are too many; an eighth of all, so that it
    /// is seldom done.
    fn forget_some(&mut self) {
        if self.images.len() > IMAGES_MAX {
            let mut used: Vec<Duration> = self.images.values().map(|i| i.used).collect();
            used.sort_unstable();
            let since = used[used.len() - (IMAGES_MAX - IMAGES_MAX / 8)];
            self.images.retain(|_, i| i.used >= since);
            // Used in the same moment, too many all the same.
            while self.images.len() > IMAGES_MAX {
                self.images.pop_last();
            }
        }
    }

    /// Names that are to be read now, if any are and none are being read; what came of it is told
    /// by [`Images::names`].
    pub fn look(&mut self, now: Duration) -> Option<ObjectRead> {
        if now >= self.asked_until
            || self.reading.as_ref().is_some_and(|r| r.asked + READ_PATIENCE > now)
        {
            return None;
        }
        self.reading = None;
        let due = |i: &Image| i.read_at <= now && i.used + ASKED_FOR > now;
        // The busiest pool is not known better than any: the first that lacks a name, before those
        // whose name is old.
        let (first, _) =
            self.images.iter().filter(|(_, i)| due(i)).min_by_key(|(_, i)| i.read_at)?;
        let (pool, namespace) = (first.pool, first.namespace.clone());
        let same = |k: &ImageKey| k.pool == pool && k.namespace == namespace;
        let of: Vec<ImageKey> = (self.images.iter())
            .filter(|(k, i)| same(k) && due(i))
            .map(|(k, _)| k.clone())
            .take(NAMES_AT_ONCE)
            .collect();
        let keys: Vec<Bytes> = of.iter().map(|k| format!("{BY_ID}{}", k.id).into()).collect();
        self.calls += 1;
        self.reading = Some(Reading { call: self.calls, asked: now, of });
        Some(ObjectRead {
            call: self.calls,
            at: ObjectLocator { pool, namespace: namespace.into(), ..ObjectLocator::default() },
            oid: Bytes::from_static(DIRECTORY),
            ops: vec![OsdOp::omap_get_vals_by_keys(&keys)],
        })
    }

    /// What came of a read: 0 or −errno, and what was read.
    pub fn names(&mut self, now: Duration, call: u64, result: i32, ops: &[OpResult]) {
        let Some(reading) = self.reading.take_if(|r| r.call == call) else { return };
        let pairs = match result {
            0 => ops.first().and_then(|o| from_slice::<BTreeMap<Bytes, Bytes>>(&o.op.indata).ok()),
            // There is no directory, or no pool any more: no image has a name.
            r if r == -errno::ENOENT => Some(BTreeMap::new()),
            _ => None,
        };
        for key in reading.of {
            let Some(image) = self.images.get_mut(&key) else { continue };
            match &pairs {
                Some(pairs) => {
                    let name = pairs.get(format!("{BY_ID}{}", key.id).as_bytes());
                    image.name = name.and_then(|bytes| from_slice::<String>(bytes).ok());
                    image.read_at = now + NAME_FOR;
                }
                None => image.read_at = now + READ_AGAIN,
            }
        }
    }

    /// The images of those pools and namespaces that `wanted` says, as of now, by pool, namespace
    /// and id.
    pub fn show(&self, now: Duration, wanted: impl Fn(&ImageKey) -> bool) -> Vec<Shown> {
        if now >= self.asked_until {
            return Vec::new();
        }
        let recent = || self.told.iter().filter(|t| t.at + WINDOW >= now);
        // Each OSD's loads count over the time that it told of.
        let mut over: BTreeMap<OsdId, Duration> = BTreeMap::new();
        recent().for_each(|t| *over.entry(t.osd).or_default() += t.over);
        let mut rates: BTreeMap<&ImageKey, [f64; 6]> = BTreeMap::new();
        for t in recent() {
            let over = over.get(&t.osd).copied().unwrap_or_default();
            for (key, load) in &t.loads {
                add_rates(rates.entry(key).or_default(), load, over);
            }
        }
        let shown = |(key, image): (&ImageKey, &Image)| {
            let mut rates = rates.get(key).copied().unwrap_or_default();
            // From the sums to what one request took.
            let mean = |sum: f64, n: f64| if n > 0.0 { sum / n } else { 0.0 };
            (rates[4], rates[5]) = (mean(rates[4], rates[0]), mean(rates[5], rates[1]));
            Some(Shown {
                key: key.clone(),
                name: image.name.clone()?,
                rates,
                totals: totals(&image.total),
            })
        };
        self.images.iter().filter(|(k, _)| wanted(k)).filter_map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::to_vec;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn key(pool: i64, namespace: &str, id: &str) -> ImageKey {
        ImageKey { pool, namespace: namespace.into(), id: id.into() }
    }

    fn writes(n: u64) -> ImageLoad {
        ImageLoad {
            writes: n,
            write_bytes: n * 4096,
            write_ns: n * 2_000_000,
            ..ImageLoad::default()
        }
    }

    fn answer(images: &mut Images, now: u64, call: u64, names: &[(&str, &str)]) {
        let pairs: BTreeMap<Bytes, Bytes> = names
            .iter()
            .map(|(id, name)| (format!("id_{id}").into(), to_vec(&(*name).to_owned()).into()))
            .collect();
        let mut op = OsdOp::omap_get_vals_by_keys(&[]);
        op.indata = to_vec(&pairs).into();
        images.names(at(now), call, 0, &[OpResult { op, rval: 0, output_crc: None }]);
    }

    #[test]
    fn osds_count_for_a_minute_after_somebody_asked() {
        let mut images = Images::default();
        let loads = || ImageLoads { over_ms: 1000, loads: vec![(key(1, "", "a"), writes(5))] };
        images.report(at(900), 0, loads());
        assert!(images.wanted_ms(at(900)) == 0 && images.images.is_empty(), "nobody asks");
        images.ask(at(1000));
        assert_eq!(images.wanted_ms(at(1000)), 10_000);
        assert_eq!(images.wanted_ms(at(55_000)), 6_000);
        assert_eq!(images.wanted_ms(at(61_000)), 0);
        images.report(at(60_000), 0, loads());
        assert!(images.look(at(60_000)).is_some());
        images.report(at(61_000), 0, loads());
        assert!(
            images.images.is_empty() && images.told.is_empty() && images.look(at(61_000)).is_none()
        );
        // Who asks again begins anew.
        images.ask(at(70_000));
        images.ask(at(100_000));
        assert_eq!(images.wanted_ms(at(155_000)), 5_000, "it counts from the last question");
    }

    /// Reports of two OSDs, one of which comes twice as often.
    #[test]
    fn rates_are_of_the_time_that_was_counted() {
        let mut images = Images::default();
        images.ask(at(0));
        for ms in (1000..=10_000).step_by(1000) {
            images.report(
                at(ms),
                0,
                ImageLoads { over_ms: 1000, loads: vec![(key(1, "", "a"), writes(100))] },
            );
            if ms % 2000 == 0 {
                images.report(
                    at(ms),
                    1,
                    ImageLoads { over_ms: 2000, loads: vec![(key(1, "", "a"), writes(20))] },
                );
            }
        }
        let call = images.look(at(10_000)).unwrap().call;
        assert!(images.look(at(10_000)).is_none(), "one at a time");
        assert!(images.show(at(10_000), |_| true).is_empty(), "it has no name yet");
        answer(&mut images, 10_000, call, &[("a", "vm")]);
        let shown = images.show(at(10_000), |_| true);
        assert_eq!((shown.len(), shown[0].name.as_str()), (1, "vm"));
        assert_eq!(shown[0].rates.map(f64::round), [110.0, 0.0, 450_560.0, 0.0, 2_000_000.0, 0.0]);
        assert_eq!(shown[0].totals[0], 1100);
        // Nothing more is asked of it: its totals stay.
        for ms in (11_000..=20_000).step_by(1000) {
            images.report(at(ms), 0, ImageLoads { over_ms: 1000, loads: vec![] });
        }
        let shown = images.show(at(20_000), |_| true);
        assert_eq!((shown[0].rates, shown[0].totals[0]), ([0.0; 6], 1100));
    }

    #[test]
    fn names_are_read_place_by_place_and_again() {
        let mut images = Images::default();
        images.ask(at(0));
        let of = |k: &[ImageKey]| ImageLoads {
            over_ms: 1000,
            loads: k.iter().map(|k| (k.clone(), writes(1))).collect(),
        };
        images.report(at(1000), 0, of(&[key(1, "", "a"), key(1, "", "gone"), key(2, "ns", "b")]));
        let first = images.look(at(1000)).unwrap();
        assert_eq!(
            (first.at.pool, &first.at.namespace[..], &first.oid[..]),
            (1, &b""[..], DIRECTORY)
        );
        answer(&mut images, 1000, first.call, &[("a", "x")]);
        let second = images.look(at(1000)).unwrap();
        assert_eq!((second.at.pool, &second.at.namespace[..]), (2, &b"ns"[..]));
        // An answer to another question is none; an error makes it ask again later.
        answer(&mut images, 1000, first.call, &[("b", "wrong")]);
        images.names(at(1000), second.call, -errno::ESHUTDOWN, &[]);
        assert!(images.look(at(1000)).is_none());
        let names = |images: &Images, now| -> Vec<String> {
            images.show(at(now), |_| true).into_iter().map(|s| s.name).collect()
        };
        assert_eq!(names(&images, 1000), ["x"]);
        let third = images.look(at(3000)).unwrap();
        answer(&mut images, 3000, third.call, &[("b", "y")]);
        assert_eq!(names(&images, 3000), ["x", "y"]);
        // Renamed, and the other one removed.
        let again = images.look(at(31_000)).unwrap();
        assert_eq!(again.at.pool, 1);
        answer(&mut images, 31_000, again.call, &[("a", "z")]);
        let again = images.look(at(33_000)).unwrap();
        images.names(at(33_000), again.call, -errno::ENOENT, &[]);
        assert_eq!(names(&images, 33_000), ["z"]);
        // One who never answers is not waited for.
        images.report(at(34_000), 0, of(&[key(3, "", "c")]));
        let lost = images.look(at(34_000)).unwrap();
        assert!(images.look(at(43_000)).is_none());
        assert_ne!(images.look(at(44_000)).unwrap().call, lost.call);
    }

    #[test]
    fn images_and_loads_are_bounded() {
        let mut images = Images::default();
        images.ask(at(0));
        for report in 0..100 {
            let loads =
                (0..1024).map(|i| (key(1, "", &format!("{report}.{i}")), writes(1))).collect();
            images.report(at(1000 + report * 10), 0, ImageLoads { over_ms: 10, loads });
        }
        assert!(
            images.images.len() <= IMAGES_MAX && images.images.len() > IMAGES_MAX / 2,
            "{}",
            images.images.len()
        );
        assert!(images.images.contains_key(&key(1, "", "99.5")));
        assert!(images.told.iter().map(|t| t.loads.len()).sum::<usize>() <= LOADS_MAX);
        assert_eq!(
            images.look(at(3000)).map(|_| images.reading.as_ref().unwrap().of.len()),
            Some(NAMES_AT_ONCE)
        );
    }
}
