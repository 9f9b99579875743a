//! A block device of an OSD. What was written and not flushed may be lost, kept or torn when the
//! power goes; a write that was under way may have got anywhere.
//!
//! A crash falls between any two operations that were not said to be done. Contents are pages
//! shared between copies: large empty devices cost nothing.

use crate::rng::Rng;
use spirula_store::device::BlockDevice;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

type Page = Arc<[u8; PAGE]>;

#[derive(Clone)]
struct Pages(Vec<Page>);

impl Pages {
    fn new(size: u64) -> Self {
        let zeros: Page = Arc::new([0; PAGE]);
        Self(vec![zeros; (size as usize).div_ceil(PAGE)])
    }

    fn each(offset: usize, len: usize, mut f: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let (page, skip) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let n = (PAGE - skip).min(len - done);
            f(page, skip..skip + n, done..done + n);
            done += n;
        }
    }

    fn read(&self, buf: &mut [u8], offset: usize) {
        Self::each(offset, buf.len(), |page, there, here| {
            if let (Some(p), Some(b)) =
                (self.0.get(page).and_then(|p| p.get(there)), buf.get_mut(here))
            {
                b.copy_from_slice(p);
            }
        });
    }

    fn write(&mut self, data: &[u8], offset: usize) {
        let pages = &mut self.0;
        Self::each(offset, data.len(), |page, there, here| {
            let place = pages.get_mut(page).and_then(|p| Arc::make_mut(p).get_mut(there));
            if let (Some(p), Some(d)) = (place, data.get(here)) {
                p.copy_from_slice(d);
            }
        });
    }
}

/// What a disk makes of flushes that it says it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// What came last is lost, nothing else.
    Ordered,
    /// Anything since is lost, kept or torn.
    Any,
}

enum What {
    Write { offset: usize, data: Vec<u8>, durable: bool },
    Flush,
}

/// An operation, and its place among those of all devices of its store.
struct Op {
    place: u64,
    what: What,
}

/// The order of operations on devices that belong together: what one has not done, none that
/// came after it has.
#[derive(Clone, Default)]
pub struct Order(Arc<AtomicU64>);

impl Order {
    /// The place of the next operation.
    pub fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Inner {
    size: u64,
    /// What reads find.
    now: Pages,
    /// What is there whatever happens.
    stable: Pages,
    /// What came after, in order.
    log: Vec<Op>,
    /// For reads that may not wait.
    rng: Rng,
    /// One in so many of those finds nothing at once; 0: none.
    cold: u64,
    /// So many more writes and flushes go well; then none.
    dies_after: Option<u64>,
    /// It has died: an operation has failed.
    died: bool,
    /// It says that it has flushed, and has not; with that it may keep the order of what it writes.
    lies: Option<Lie>,
    /// Pages that cannot be read until they are written.
    unreadable: BTreeSet<usize>,
    /// Bytes that the file system it lies on has left; `None`: all that it may need.
    room: Option<u64>,
}

/// The device.
pub struct Device {
    name: &'static str,
    order: Order,
    inner: Mutex<Inner>,
}

impl Device {
    /// Zeros.
    pub fn new(name: &'static str, size: u64, order: Order, cold: u64, rng: Rng) -> Arc<Self> {
        let pages = Pages::new(size);
        let (now, stable) = (pages.clone(), pages);
        let inner = Inner {
            size,
            now,
            stable,
            log: Vec::new(),
            rng,
            cold,
            dies_after: None,
            died: false,
            lies: None,
            unreadable: BTreeSet::new(),
            room: None,
        };
        Arc::new(Self { name, order, inner: Mutex::new(inner) })
    }

    fn op(&self, what: What) -> Op {
        Op { place: self.order.0.fetch_add(1, Ordering::Relaxed), what }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked for until now is done.
    pub fn settle(&self) {
        let mut d = self.lock();
        let d = &mut *d;
        let flushed = d.log.iter().rposition(|o| matches!(o.what, What::Flush)).unwrap_or(0);
        for (i, op) in std::mem::take(&mut d.log).into_iter().enumerate() {
            match &op.what {
                What::Write { offset, data, durable } if *durable || i < flushed => {
                    d.stable.write(data, *offset)
                }
                What::Write { .. } => d.log.push(op),
                What::Flush => {}
            }
        }
    }

    /// The power goes: what has a place before `cut` was done, the operation there is under way,
    /// nothing after it was begun.
    pub fn crash(&self, cut: u64, rng: &mut Rng) {
        let mut d = self.lock();
        let d = &mut *d;
        let log = std::mem::take(&mut d.log);
        let done = |o: &Op| o.place < cut;
        let flushed =
            log.iter().rposition(|o| done(o) && matches!(o.what, What::Flush)).unwrap_or(0);
        for (i, op) in log.into_iter().enumerate().filter(|(_, o)| o.place <= cut) {
            let done = done(&op);
            let What::Write { offset, data, durable } = op.what else { continue };
            if d.lies == Some(Lie::Ordered) {
                if done {
                    d.stable.write(&data, offset);
                }
            } else if done && (durable || i < flushed) || rng.one_in(3) {
                d.stable.write(&data, offset);
            } else if rng.one_in(2) {
                // Torn: any of its sectors.
                for (n, sector) in data.chunks(SECTOR).enumerate() {
                    if rng.one_in(2) {
                        d.stable.write(sector, offset + n * SECTOR);
                    }
                }
            }
        }
        d.now = d.stable.clone();
        (d.dies_after, d.died) = (None, false);
    }

    /// After so many more writes and flushes all of them fail, until a restart.
    pub fn die_after(&self, n: u64) {
        self.lock().dies_after = Some(n);
    }

    /// From now on what it says that it has flushed may be lost all the same; or (`None`) no more,
    /// and it writes what it has.
    pub fn lie(&self, lies: Option<Lie>) {
        let mut d = self.lock();
        d.lies = lies;
        if lies.is_none() {
            d.log.push(self.op(What::Flush));
            drop(d);
            self.settle();
        }
    }

    /// One in so many reads that may not wait finds nothing at once; 0: none.
    pub fn chill(&self, cold: u64) {
        self.lock().cold = cold;
    }

    /// Others have taken all room of the file system that it lies on but so many bytes; `None`: it
    /// has all that it may need.
    pub fn leave(&self, room: Option<u64>) {
        self.lock().room = room;
    }

    /// It will not die after all, if it has not yet.
    pub fn live(&self) {
        self.lock().dies_after = None;
    }

    /// Has it failed, as it was told to, since the last start?
    pub fn has_died(&self) -> bool {
        self.lock().died
    }

    /// Damages a page that holds something, from `from` on: it cannot be read any more, or reads as
    /// something else. False if there is none.
    pub fn rot(&self, from: u64, rng: &mut Rng) -> bool {
        let mut d = self.lock();
        let d = &mut *d;
        let first = from as usize / PAGE;
        let empty: Page = Arc::new([0; PAGE]);
        let holds = |(_, p): &(usize, &Page)| ***p != *empty;
        let used: Vec<usize> =
            d.stable.0.iter().enumerate().skip(first).filter(holds).map(|(i, _)| i).collect();
        let Some(page) = rng.pick(&used).copied() else { return false };
        let (kind, other) = (rng.below(4), rng.pick(&used).copied().unwrap_or(page));
        let (sector, bit) = (
            rng.below((PAGE / SECTOR) as u64) as usize * SECTOR,
            rng.below(SECTOR as u64 * 8) as usize,
        );
        match kind {
            0 => drop(d.unreadable.insert(page)),
            // What belongs elsewhere, or nothing, is read there.
            1 | 2 => {
                let there = if kind == 1 { Some(empty) } else { d.stable.0.get(other).cloned() };
                for pages in [&mut d.now, &mut d.stable] {
                    if let (Some(p), Some(there)) = (pages.0.get_mut(page), &there) {
                        *p = there.clone();
                    }
                }
            }
            _ => {
                for pages in [&mut d.now, &mut d.stable] {
                    let byte = pages
                        .0
                        .get_mut(page)
                        .and_then(|p| Arc::make_mut(p).get_mut(sector + bit / 8));
                    byte.into_iter().for_each(|b| *b ^= 1 << (bit % 8));
                }
            }
        }
        true
    }

    fn write(&self, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        let mut d = self.lock();
        d.may_write()?;
        let data = bufs.concat();
        if offset + data.len() as u64 > d.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !d.unreadable.is_empty() {
            let (first, end) =
                ((offset as usize).div_ceil(PAGE), (offset as usize + data.len()) / PAGE);
            d.unreadable.retain(|p| !(first..end).contains(p));
        }
        d.now.write(&data, offset as usize);
        let durable = durable && d.lies.is_none();
        d.log.push(self.op(What::Write { offset: offset as usize, data, durable }));
        Ok(())
    }
}

impl Inner {
    fn may_write(&mut self) -> io::Result<()> {
        match &mut self.dies_after {
            Some(0) => {
                self.died = true;
                Err(io::Error::from_raw_os_error(5))
            }
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl BlockDevice for Device {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let d = self.lock();
        let end = offset + buf.len() as u64;
        if end > d.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (first, last) = (offset as usize / PAGE, (end.max(1) - 1) as usize / PAGE);
        if !buf.is_empty() && d.unreadable.range(first..=last).next().is_some() {
            return Err(io::Error::from_raw_os_error(5));
        }
        d.now.read(buf, offset as usize);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        {
            let mut d = self.lock();
            let cold = d.cold;
            if cold > 0 && d.rng.one_in(cold) {
                return Ok(false);
            }
        }
        self.read_at(buf, offset).map(|()| true)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, false)
    }

    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write(&[buf], offset, true)
    }

    fn flush(&self) -> io::Result<()> {
        let mut d = self.lock();
        d.may_write()?;
        if d.lies.is_none() {
            d.log.push(self.op(What::Flush));
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.lock().size)
    }

    fn host_room(&self) -> io::Result<Option<u64>> {
        Ok(self.lock().room)
    }

    fn name(&self) -> &str {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_flushed_and_anything_of_what_was_not() {
        let mut fates = [0; 3];
        for seed in 0..60 {
            let d = Device::new("d", 64 << 10, Order::default(), 0, Rng::new(seed));
            d.write_at(&[&[1; 2048]], 0).unwrap();
            d.flush().unwrap();
            d.write_durable(&[2; 512], 8192).unwrap();
            d.settle();
            d.write_at(&[&[3; 2048]], 4096).unwrap();
            d.settle();
            d.crash(d.order.next(), &mut Rng::new(seed));
            let mut b = [0; 12288];
            d.read_at(&mut b, 0).unwrap();
            assert!(b[..2048].iter().all(|x| *x == 1) && b[8192..8704].iter().all(|x| *x == 2));
            let kept = b[4096..6144].chunks(512).filter(|s| s[0] == 3).count();
            fates[if kept == 0 { 0 } else { 1 + usize::from(kept == 4) }] += 1;
        }
        assert!(fates.iter().all(|n| *n > 3), "lost, torn, kept: {fates:?}");
        // What is under way may have got anywhere, but not past a flush that had not been.
        for seed in 0..200 {
            let d = Device::new("d", 64 << 10, Order::default(), 0, Rng::new(seed));
            d.write_at(&[&[1; 512]], 0).unwrap();
            d.flush().unwrap();
            d.write_durable(&[2; 512], 4096).unwrap();
            let mut rng = Rng::new(seed);
            d.crash(rng.between(0, 3), &mut rng);
            let (mut first, mut second) = ([0; 1], [0; 1]);
            d.read_at(&mut first, 0).unwrap();
            d.read_at(&mut second, 4096).unwrap();
            assert!(second[0] == 0 || first[0] == 1, "seed {seed}");
        }
    }

    #[test]
    fn a_disk_that_lies_loses_what_it_said_was_flushed_until_it_lies_no_more() {
        let mut kept = [0; 2];
        for seed in 0..40 {
            let d = Device::new("d", 64 << 10, Order::default(), 0, Rng::new(seed));
            d.lie(Some(Lie::Ordered));
            for page in 0..4 {
                d.write_at(&[&[1; 512]], page * 4096).unwrap();
                d.flush().unwrap();
                d.settle();
            }
            let mut rng = Rng::new(seed);
            d.crash(rng.between(0, d.order.next()), &mut rng);
            let there: Vec<bool> = (0..4).map(|page| d.byte(page * 4096) == 1).collect();
            assert!(there.is_sorted_by(|a, b| a >= b), "what came last is lost: {there:?}");
            kept[usize::from(there[3])] += 1;
            d.write_at(&[&[2; 512]], 0).unwrap();
            d.lie(None);
            d.crash(d.order.next(), &mut rng);
            assert_eq!(d.byte(0), 2, "it has written what it had");
        }
        assert!(kept.iter().all(|n| *n > 3), "lost and kept: {kept:?}");
    }

    impl Device {
        fn byte(&self, at: u64) -> u8 {
            let mut b = [0; 1];
            self.read_at(&mut b, at).unwrap();
            b[0]
        }
    }
}
