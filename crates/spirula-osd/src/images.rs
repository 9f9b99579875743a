//! What clients ask of each block image, for `rbd perf image iotop`: counted while the manager
//! wants it, and only then.
//!
//! An image's data is in objects whose names say which image (and, where they are in another pool
//! than its header, which pool); so does its journal. Each acknowledgement of a report says for how
//! long to go on: a manager that is gone, or whom nobody asks any more, is counted for no longer.
//! What was counted leaves with a report, about every second, and is forgotten here. A report that
//! is lost takes its figures along: they are for looking at.
//!
//! Bounds: [`IMAGES_MAX`] images with names of [`NAME_MAX`] bytes at most between two reports;
//! further ones are not counted.

use bytes::Bytes;
use spirula_messages::cluster::images::{ImageKey, ImageLoad, ImageLoads};
use spirula_types::PoolId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Images between two reports.
const IMAGES_MAX: usize = 1024;
/// Bytes of an image's id, and of its namespace.
const NAME_MAX: usize = 256;
/// Least time between two reports of what was counted: others are sent within milliseconds.
const REPORT_AFTER: Duration = Duration::from_millis(900);
/// The manager cannot have it counted for longer at once.
const COUNT_MOST: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// Until when it is counted.
    until: Duration,
    /// Since when, what is here.
    since: Duration,
    counted: BTreeMap<ImageKey, ImageLoad>,
}

/// The image that an object of this pool is of, with the pool that its header is in.
fn image_of(pool: PoolId, oid: &str) -> Option<(PoolId, &str)> {
    let rest = oid.strip_prefix("rbd_data.").or_else(|| oid.strip_prefix("journal_data."))?;
    let (first, rest) = rest.split_once('.')?;
    // A number in front of an id and a dot is a pool. An id may be a number, too: then no second
    // dot follows.
    match (first.parse(), rest.split_once('.')) {
        (Ok(header), Some((id, _))) => Some((header, id)),
        _ => Some((pool, first)),
    }
}

impl Images {
    /// The manager wants it counted for so long from now on, milliseconds; 0: no more.
    pub fn count_for(&mut self, now: Duration, ms: u32) {
        if now >= self.until {
            self.counted.clear();
            self.since = now;
        }
        self.until = now + Duration::from_millis(ms.into()).min(COUNT_MOST);
        if ms == 0 {
            self.counted.clear();
        }
    }

    /// The image that a request for this object is to be counted for.
    pub fn of(
        &self,
        now: Duration,
        pool: PoolId,
        namespace: &[u8],
        oid: &Bytes,
    ) -> Option<Box<ImageKey>> {
        if now >= self.until {
            return None;
        }
        let (pool, id) = image_of(pool, std::str::from_utf8(oid).ok()?)?;
        let namespace = std::str::from_utf8(namespace).ok()?;
        let fits = !id.is_empty() && id.len() <= NAME_MAX && namespace.len() <= NAME_MAX;
        fits.then(|| {
            Box::new(ImageKey { pool, namespace: namespace.to_owned(), id: id.to_owned() })
        })
    }

    /// A request of this image was answered, `took` after it came; with the payload that a write
    /// brought or a read was given.
    pub fn count(
        &mut self,
        now: Duration,
        image: ImageKey,
        write: bool,
        bytes: u64,
        took: Duration,
    ) {
        if now >= self.until
            || (self.counted.len() >= IMAGES_MAX && !self.counted.contains_key(&image))
        {
            return;
        }
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let one = if write {
            ImageLoad { writes: 1, write_bytes: bytes, write_ns: ns, ..ImageLoad::default() }
        } else {
            ImageLoad { reads: 1, read_bytes: bytes, read_ns: ns, ..ImageLoad::default() }
        };
        *self.counted.entry(image).or_default() += one;
    }

    /// What was counted since this was last asked; nothing where it is not wanted, or was told just
    /// now.
    pub fn take(&mut self, now: Duration) -> ImageLoads {
        let over = now.saturating_sub(self.since);
        if now >= self.until {
            self.counted.clear();
            return ImageLoads::default();
        }
        if over < REPORT_AFTER {
            return ImageLoads::default();
        }
        self.since = now;
        ImageLoads {
            over_ms: over.as_millis() as u64,
            loads: std::mem::take(&mut self.counted).into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn of(images: &Images, now: u64, oid: &'static str) -> Option<(PoolId, String)> {
        images.of(at(now), 7, b"ns", &Bytes::from_static(oid.as_bytes())).map(|k| (k.pool, k.id))
    }

    #[test]
    fn names_of_objects_tell_the_image_and_its_pool() {
        let mut images = Images::default();
        images.count_for(at(0), 1000);
        let some = |pool, id: &str| Some((pool, id.to_owned()));
        for (oid, image) in [
            ("rbd_data.10ab.0000000000000001", some(7, "10ab")),
            ("rbd_data.3.10ab.0000000000000001", some(3, "10ab")),
            ("rbd_data.1234.0000000000000001", some(7, "1234")),
            ("journal_data.3.10ab.5", some(3, "10ab")),
            ("rbd_header.10ab", None),
            ("rbd_data.10ab", None),
            ("rbd_data..1", None),
            ("rbd_directory", None),
            ("something", None),
        ] {
            assert_eq!(of(&images, 1, oid), image, "{oid}");
        }
        assert_eq!(images.of(at(1), 7, b"", &Bytes::from_static(b"rbd_data.\xff.1")), None);
        let long = Bytes::from(format!("rbd_data.{}.1", "x".repeat(NAME_MAX + 1)));
        assert_eq!(images.of(at(1), 7, b"", &long), None);
    }

    #[test]
    fn what_was_counted_is_told_once_and_only_while_it_is_wanted() {
        let oid = "rbd_data.a.1";
        let mut images = Images::default();
        assert_eq!(of(&images, 5, oid), None, "nobody asks");
        assert_eq!(images.take(at(5)), ImageLoads::default());
        images.count_for(at(10_000), 10_000);
        let key = *images.of(at(10_000), 7, b"", &Bytes::from_static(oid.as_bytes())).unwrap();
        images.count(at(10_001), key.clone(), true, 4096, at(2));
        images.count(at(10_002), key.clone(), true, 4096, at(4));
        images.count(at(10_003), key.clone(), false, 512, at(1));
        assert_eq!(
            images.take(at(10_500)),
            ImageLoads::default(),
            "too soon: it goes with the next one"
        );
        let load = ImageLoad {
            writes: 2,
            reads: 1,
            write_bytes: 8192,
            read_bytes: 512,
            write_ns: 6_000_000,
            read_ns: 1_000_000,
        };
        assert_eq!(
            images.take(at(11_000)),
            ImageLoads { over_ms: 1000, loads: vec![(key.clone(), load)] }
        );
        assert_eq!(
            images.take(at(12_000)),
            ImageLoads { over_ms: 1000, loads: vec![] },
            "nothing was asked meanwhile"
        );
        // It was asked for 10 s once.
        images.count(at(13_000), key.clone(), true, 1, at(1));
        assert_eq!(of(&images, 20_000, oid), None);
        assert_eq!(images.take(at(20_000)), ImageLoads::default());
        // What was counted in an earlier time is no part of a later one.
        images.count_for(at(30_000), 10_000);
        assert_eq!(images.take(at(31_000)), ImageLoads { over_ms: 1000, loads: vec![] });
        images.count_for(at(32_000), 0);
        assert_eq!(of(&images, 32_000, oid), None, "no more");
    }

    #[test]
    fn images_are_bounded() {
        let mut images = Images::default();
        images.count_for(at(0), 10_000);
        for id in 0..IMAGES_MAX + 100 {
            let key = ImageKey { pool: 1, namespace: String::new(), id: format!("{id}") };
            images.count(at(1), key, true, 1, at(1));
        }
        assert_eq!(images.take(at(1000)).loads.len(), IMAGES_MAX);
    }
}
