//! Simulated devices: remember every write and flush in one global order, so that the state
//! after a crash at any point can be made; inject failures.
//!
//! Contents are pages shared between all copies of a state: thousands of states cost little.

use crate::StoreError;
use crate::device::BlockDevice;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: usize = 4096;

type Page = Arc<[u8; PAGE]>;

/// A device's content.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pages: Vec<Page>,
    len: usize,
    /// Follows from the content: see [`Disk::mark`].
    mark: u64,
}

/// What a page adds to a disk's mark; nothing if it is all zeros.
fn page_mark(number: usize, page: &[u8; PAGE]) -> u64 {
    if page.iter().all(|b| *b == 0) { 0 } else { xxhash_rust::xxh64::xxh64(page, number as u64) }
}

impl Disk {
    pub fn new(len: usize) -> Self {
        let zeros: Page = Arc::new([0; PAGE]);
        Self { pages: vec![zeros; len.div_ceil(PAGE)], len, mark: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A hash of the content: equal for equal disks.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// `None` if it reaches over the end.
    pub fn read(&self, buf: &mut [u8], offset: usize) -> Option<()> {
        if offset + buf.len() > self.len {
            return None;
        }
        let mut done = 0;
        while done < buf.len() {
            let (page, skip) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let n = (PAGE - skip).min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&self.pages[page][skip..skip + n]);
            done += n;
        }
        Some(())
    }

    /// `None` (and no change) if it reaches over the end.
    pub fn write(&mut self, data: &[u8], offset: usize) -> Option<()> {
        if offset + data.len() > self.len {
            return None;
        }
        let mut done = 0;
        while done < data.len() {
            let (page, skip) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let n = (PAGE - skip).min(data.len() - done);
            let bytes = Arc::make_mut(&mut self.pages[page]);
            self.mark ^= page_mark(page, bytes);
            bytes[skip..skip + n].copy_from_slice(&data[done..done + n]);
            self.mark ^= page_mark(page, bytes);
            done += n;
        }
        Some(())
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; self.len];
        self.read(&mut all, 0).unwrap();
        all
    }

    pub fn of(bytes: &[u8]) -> Self {
        let mut d = Self::new(bytes.len());
        d.write(bytes, 0).unwrap();
        d
    }

    /// Changes one bit; again, and it is as before.
    pub fn flip(&mut self, bit: u64) {
        let mut byte = [0];
        self.read(&mut byte, (bit / 8) as usize).unwrap();
        self.write(&[byte[0] ^ 1 << (bit % 8)], (bit / 8) as usize).unwrap();
    }
}

/// What happened, in order.
#[derive(Clone)]
pub(crate) enum Event {
    /// A durable one is only surely there when it is [`Event::Done`]: several may be under
    /// way at once.
    Write {
        dev: usize,
        offset: usize,
        data: Arc<Vec<u8>>,
        durable: bool,
    },
    /// The durable write with this number among the events has returned.
    Done(usize),
    /// What was written to a device before the event with number `since` is durable. What
    /// came while the flush was under way is not.
    Flush {
        dev: usize,
        since: usize,
    },
    Ack(u64),
}

/// Which operations of a device fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Writes and flushes from now on, all from the n-th on.
    Dead(u64),
    /// The n-th read.
    Read(u64),
    /// The n-th write; nothing of it arrives.
    Write(u64),
    /// The n-th write; some of it arrives.
    Short(u64),
    /// The n-th flush (a durable write has one); the device forgets it and works on.
    Flush(u64),
    /// The n-th read gives zeros, and no error.
    Zeros(u64),
    /// The n-th write is acknowledged, and nothing of it arrives.
    Lost(u64),
    /// The n-th write is acknowledged, and arrives three blocks behind its place.
    Misdirected(u64),
}

#[derive(Default)]
struct Inner {
    devices: Vec<Disk>,
    events: Vec<Event>,
    recording: bool,
    errors: Vec<String>,
    fault: Option<Fault>,
    /// Whether the fault has come.
    struck: bool,
    /// Reads that may not wait find nothing.
    cold: bool,
    /// Writes to this device take long.
    slow: Option<usize>,
    /// Writes and flushes wait: of all devices, of one.
    held: bool,
    held_device: Option<usize>,
    /// Operations that wait because they are held.
    waiting: usize,
    /// The next durable write to this device waits, until this is `None` again; others do not.
    held_next: Option<(usize, Next)>,
    /// Which sectors were read, by device, if somebody wants to know.
    reads: Option<BTreeSet<(usize, u64)>>,
    /// What a device's host can still find for it, bytes.
    room: Option<u64>,
    /// Reads that touch these bytes of a device fail, until all of them are written at once.
    bad: Option<(usize, Range<u64>)>,
    /// What the devices themselves hold, below caches that hold what `devices` says.
    under: Option<Vec<Disk>>,
}

/// Whether the write to be held has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Awaited,
    Held,
}

/// All devices of one store.
#[derive(Clone, Default)]
pub(crate) struct World(Arc<Mutex<Inner>>);

struct Device(World, usize, &'static str);

/// A state to start from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub devices: Vec<Disk>,
}

impl Image {
    /// A hash of all devices' content.
    pub fn mark(&self) -> u64 {
        self.devices.iter().enumerate().fold(0, |m, (i, d)| m ^ d.mark().rotate_left(21 * i as u32))
    }
}

fn injected() -> io::Error {
    io::Error::other("injected")
}

impl World {
    pub fn new(sizes: &[u64]) -> Self {
        Self::from_image(Image { devices: sizes.iter().map(|n| Disk::new(*n as usize)).collect() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        self.lock().devices.len()
    }

    pub fn from_image(image: Image) -> Self {
        Self(Arc::new(Mutex::new(Inner { devices: image.devices, ..Inner::default() })))
    }

    pub fn image(&self) -> Image {
        Image { devices: self.lock().devices.clone() }
    }

    pub fn record(&self) {
        self.lock().recording = true;
    }

    /// Number of events recorded so far.
    pub fn recorded(&self) -> usize {
        self.lock().events.len()
    }

    /// What was recorded so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Stops recording and gives what was recorded.
    pub fn take_events(&self) -> Vec<Event> {
        let mut w = self.lock();
        w.recording = false;
        std::mem::take(&mut w.events)
    }

    pub fn device(&self, n: usize) -> Arc<dyn BlockDevice> {
        Arc::new(Device(self.clone(), n, ["main", "journal", "meta"][n]))
    }

    pub fn ack(&self, seq: u64) {
        self.event(|| Event::Ack(seq));
    }

    pub fn failed(&self, e: StoreError) {
        self.lock().errors.push(e.to_string());
    }

    pub fn errors(&self) -> Vec<String> {
        self.lock().errors.clone()
    }

    /// Lets an operation fail, counted from 0 from now on.
    pub fn inject(&self, fault: Option<Fault>) {
        let mut w = self.lock();
        w.fault = fault;
        w.struck = false;
    }

    /// If the fault has not come, it will not.
    pub fn disarm(&self) {
        self.lock().fault = None;
    }

    /// Whether the fault injected last has come.
    pub fn struck(&self) -> bool {
        self.lock().struck
    }

    pub fn set_cold(&self, cold: bool) {
        self.lock().cold = cold;
    }

    pub fn set_slow(&self, dev: Option<usize>) {
        self.lock().slow = dev;
    }

    pub fn set_room(&self, room: Option<u64>) {
        self.lock().room = room;
    }

    pub fn room(&self) -> Option<u64> {
        self.lock().room
    }

    pub fn fail_reads(&self, bad: Option<(usize, Range<u64>)>) {
        self.lock().bad = bad;
    }

    /// Whether there are still bytes that cannot be read.
    pub fn fails_reads(&self) -> bool {
        self.lock().bad.is_some()
    }

    pub fn hold(&self, held: bool) {
        self.lock().held = held;
    }

    /// Writes and flushes of this device wait until told otherwise.
    pub fn hold_device(&self, dev: Option<usize>) {
        self.lock().held_device = dev;
    }

    /// Whether an operation waits because it is held.
    pub fn waits(&self) -> bool {
        self.lock().waiting > 0
    }

    /// The next durable write to this device waits until told otherwise; those after it do not.
    pub fn hold_next(&self, dev: Option<usize>) {
        self.lock().held_next = dev.map(|d| (d, Next::Awaited));
    }

    /// Whether the write to be held is.
    pub fn holds_next(&self) -> bool {
        matches!(self.lock().held_next, Some((_, Next::Held)))
    }

    /// Begins to note which sectors (of 512 bytes) are read.
    pub fn note_reads(&self) {
        self.lock().reads = Some(BTreeSet::new());
    }

    /// Device and number of the sectors read since.
    pub fn take_reads(&self) -> BTreeSet<(usize, u64)> {
        self.lock().reads.take().unwrap_or_default()
    }

    /// From now on, reads find what the devices hold in a cache, and the devices may rot
    /// below it.
    pub fn cache(&self) {
        let mut w = self.lock();
        w.under = Some(w.devices.clone());
    }

    /// Changes a device below its cache, if it has one.
    pub fn rot(&self, dev: usize, bit: u64) {
        let mut w = self.lock();
        match &mut w.under {
            Some(under) => under[dev].flip(bit),
            None => w.devices[dev].flip(bit),
        }
    }

    pub fn edit(&self, dev: usize, f: impl FnOnce(&mut Vec<u8>)) {
        let mut w = self.lock();
        let mut bytes = w.devices[dev].bytes();
        f(&mut bytes);
        w.devices[dev] = Disk::of(&bytes);
    }

    /// Operations that make durable take a while: long enough for others to come between.
    fn linger(&self) {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }

    fn event(&self, e: impl FnOnce() -> Event) {
        let mut w = self.lock();
        if w.recording {
            w.events.push(e());
        }
    }

    /// Counts an operation down to the fault; true if it is this one.
    fn strikes(&self, kind: fn(u64) -> Fault) -> bool {
        let mut w = self.lock();
        let Some(
            Fault::Dead(n)
            | Fault::Read(n)
            | Fault::Write(n)
            | Fault::Short(n)
            | Fault::Flush(n)
            | Fault::Zeros(n)
            | Fault::Lost(n)
            | Fault::Misdirected(n),
        ) = w.fault
        else {
            return false;
        };
        if w.fault != Some(kind(n)) {
            return false;
        }
        if n > 0 {
            w.fault = Some(kind(n - 1));
            return false;
        }
        w.struck = true;
        if kind(0) != Fault::Dead(0) {
            w.fault = None;
        }
        true
    }

    /// Waits while operations are held; an error if it is time for one.
    fn may(&self, dev: usize) -> io::Result<()> {
        let held = |w: &Inner| w.held || w.held_device == Some(dev);
        let mut w = self.lock();
        if held(&w) {
            w.waiting += 1;
            while held(&w) {
                drop(w);
                std::thread::sleep(std::time::Duration::from_millis(1));
                w = self.lock();
            }
            w.waiting -= 1;
        }
        drop(w);
        if self.strikes(Fault::Dead) { Err(injected()) } else { Ok(()) }
    }

    /// Waits if this durable write is the one to be held.
    fn wait_if_next(&self, dev: usize) {
        let mut w = self.lock();
        if w.held_next != Some((dev, Next::Awaited)) {
            return;
        }
        w.held_next = Some((dev, Next::Held));
        while w.held_next.is_some() {
            drop(w);
            std::thread::sleep(std::time::Duration::from_millis(1));
            w = self.lock();
        }
    }

    fn write(&self, dev: usize, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        if self.lock().slow == Some(dev) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.may(dev)?;
        if durable {
            self.wait_if_next(dev);
        }
        if self.strikes(Fault::Write) {
            return Err(injected());
        }
        if self.strikes(Fault::Lost) {
            return Ok(());
        }
        let data = bufs.concat();
        let offset = if self.strikes(Fault::Misdirected) {
            let end = self.lock().devices[dev].len() as u64;
            (offset + 3 * 4096).min(end.saturating_sub(data.len() as u64))
        } else {
            offset
        };
        let short = self.strikes(Fault::Short);
        let unflushed = durable && self.strikes(Fault::Flush);
        let mut w = self.lock();
        let wanted = if short { &data[..data.len() / 1024 * 512] } else { &data };
        w.devices[dev].write(wanted, offset as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        w.bad.take_if(|(d, r)| {
            *d == dev && offset <= r.start && r.end <= offset + wanted.len() as u64
        });
        if let Some(under) = &mut w.under {
            under[dev].write(wanted, offset as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        if short || unflushed {
            return Err(injected());
        }
        if w.recording {
            let number = w.events.len();
            w.events.push(Event::Write {
                dev,
                offset: offset as usize,
                data: Arc::new(data),
                durable,
            });
            if durable {
                // Others may come between.
                drop(w);
                self.linger();
                self.event(|| Event::Done(number));
            }
        }
        Ok(())
    }

    fn read(&self, dev: usize, buf: &mut [u8], offset: u64, cached: bool) -> io::Result<()> {
        if self.strikes(Fault::Read) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let zeros = self.strikes(Fault::Zeros);
        let mut w = self.lock();
        let end = offset + buf.len() as u64;
        if let Some(reads) = &mut w.reads {
            reads.extend((offset / 512..end.div_ceil(512)).map(|s| (dev, s)));
        }
        if w.bad.as_ref().is_some_and(|(d, r)| *d == dev && r.start < end && offset < r.end) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let disk = match &w.under {
            Some(under) if !cached => &under[dev],
            _ => &w.devices[dev],
        };
        disk.read(buf, offset as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        if zeros {
            buf.fill(0);
        }
        Ok(())
    }
}

impl BlockDevice for Device {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(self.1, buf, offset, true)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.0.lock().cold {
            return Ok(false);
        }
        self.read_at(buf, offset).map(|()| true)
    }

    fn read_uncached(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(self.1, buf, offset, false)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.write(self.1, bufs, offset, false)
    }

    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write(self.1, &[buf], offset, true)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.may(self.1)?;
        if self.0.strikes(Fault::Flush) {
            return Err(injected());
        }
        let (recording, since) = {
            let w = self.0.lock();
            (w.recording, w.events.len())
        };
        if recording {
            self.0.linger();
            self.0.event(|| Event::Flush { dev: self.1, since });
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().devices[self.1].len() as u64)
    }

    fn host_room(&self) -> io::Result<Option<u64>> {
        Ok(self.0.room())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if let Some(room) = &mut self.0.lock().room {
            *room += len;
        }
        let zeros = vec![0; len as usize];
        let mut w = self.0.lock();
        w.devices[self.1].write(&zeros, offset as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(under) = &mut w.under {
            under[self.1].write(&zeros, offset as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        if w.recording {
            let (dev, offset) = (self.1, offset as usize);
            w.events.push(Event::Write { dev, offset, data: Arc::new(zeros), durable: false });
        }
        Ok(())
    }

    fn name(&self) -> &str {
        self.2
    }
}

/// A small generator of pseudo-random numbers (splitmix64).
pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
