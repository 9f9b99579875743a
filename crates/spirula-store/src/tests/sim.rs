//! Simulated devices: remember every write and flush in one global order, so that
//! the state after a crash at any point can be made; inject failures.

use crate::StoreError;
use crate::device::BlockDevice;
use std::io;
use std::sync::{Arc, Mutex};

/// What happened, in order.
#[derive(Clone)]
pub(crate) enum Event {
    Write { dev: usize, offset: usize, data: Vec<u8>, durable: bool },
    Flush { dev: usize },
    Ack(u64),
}

#[derive(Default)]
struct Inner {
    devices: Vec<Vec<u8>>,
    events: Vec<Event>,
    recording: bool,
    errors: Vec<String>,
    /// Fails the n-th write or flush from now on, and all later ones.
    fail_after: Option<u64>,
    /// Reads that may not wait find nothing.
    cold: bool,
    /// Writes and flushes wait.
    held: bool,
    /// What a device's host can still find for it, bytes.
    room: Option<u64>,
    /// Reads that touch these bytes of a device fail.
    bad: Option<(usize, std::ops::Range<u64>)>,
}

/// All devices of one store.
#[derive(Clone, Default)]
pub(crate) struct World(Arc<Mutex<Inner>>);

struct Device(World, usize, &'static str);

/// A state to start from.
#[derive(Clone)]
pub(crate) struct Image {
    pub devices: Vec<Vec<u8>>,
}

impl World {
    pub fn new(sizes: &[u64]) -> Self {
        Self::from_image(Image { devices: sizes.iter().map(|n| vec![0; *n as usize]).collect() })
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().devices.len()
    }

    pub fn from_image(image: Image) -> Self {
        Self(Arc::new(Mutex::new(Inner { devices: image.devices, ..Inner::default() })))
    }

    pub fn image(&self) -> Image {
        let w = self.0.lock().unwrap();
        Image { devices: w.devices.clone() }
    }

    pub fn record(&self) {
        self.0.lock().unwrap().recording = true;
    }

    /// Stops recording and gives what was recorded.
    pub fn take_events(&self) -> Vec<Event> {
        let mut w = self.0.lock().unwrap();
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
        self.0.lock().unwrap().errors.push(e.to_string());
    }

    pub fn errors(&self) -> Vec<String> {
        self.0.lock().unwrap().errors.clone()
    }

    pub fn fail_after(&self, n: Option<u64>) {
        self.0.lock().unwrap().fail_after = n;
    }

    pub fn set_cold(&self, cold: bool) {
        self.0.lock().unwrap().cold = cold;
    }

    pub fn set_room(&self, room: Option<u64>) {
        self.0.lock().unwrap().room = room;
    }

    pub fn room(&self) -> Option<u64> {
        self.0.lock().unwrap().room
    }

    pub fn fail_reads(&self, bad: Option<(usize, std::ops::Range<u64>)>) {
        self.0.lock().unwrap().bad = bad;
    }

    pub fn hold(&self, held: bool) {
        self.0.lock().unwrap().held = held;
    }

    pub fn edit(&self, dev: usize, f: impl FnOnce(&mut Vec<u8>)) {
        f(&mut self.0.lock().unwrap().devices[dev]);
    }

    fn event(&self, e: impl FnOnce() -> Event) {
        let mut w = self.0.lock().unwrap();
        if w.recording {
            w.events.push(e());
        }
    }

    /// Counts a write or flush; an error if it is one to fail.
    fn may(&self) -> io::Result<()> {
        while self.0.lock().unwrap().held {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        match &mut self.0.lock().unwrap().fail_after {
            Some(0) => Err(io::Error::other("injected")),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(&self, dev: usize, bufs: &[&[u8]], offset: u64, durable: bool) -> io::Result<()> {
        self.may()?;
        let data = bufs.concat();
        let offset = offset as usize;
        let mut w = self.0.lock().unwrap();
        let room = w.devices[dev].get_mut(offset..offset + data.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        room.copy_from_slice(&data);
        if w.recording {
            w.events.push(Event::Write { dev, offset, data, durable });
        }
        Ok(())
    }
}

impl BlockDevice for Device {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let w = self.0.0.lock().unwrap();
        let end = offset + buf.len() as u64;
        if w.bad.as_ref().is_some_and(|(dev, r)| *dev == self.1 && r.start < end && offset < r.end) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let offset = offset as usize;
        buf.copy_from_slice(w.devices[self.1].get(offset..offset + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.0.0.lock().unwrap().cold {
            return Ok(false);
        }
        self.read_at(buf, offset).map(|()| true)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.0.write(self.1, bufs, offset, false)
    }

    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write(self.1, &[buf], offset, true)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.may()?;
        self.0.event(|| Event::Flush { dev: self.1 });
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.0.lock().unwrap().devices[self.1].len() as u64)
    }

    fn host_room(&self) -> io::Result<Option<u64>> {
        Ok(self.0.room())
    }

    fn discard(&self, _offset: u64, len: u64) -> io::Result<()> {
        if let Some(room) = &mut self.0.0.lock().unwrap().room {
            *room += len;
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
