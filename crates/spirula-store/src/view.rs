//! Devices made of devices: [`Region`] is a part of one, [`Shield`] takes writes without
//! letting them through.

use crate::device::BlockDevice;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A contiguous part of a device. Nothing outside it can be reached; a flush is one of the
/// whole device.
pub(crate) struct Region {
    dev: Arc<dyn BlockDevice>,
    offset: u64,
    len: u64,
    name: String,
}

impl Region {
    /// `[offset, offset + len)` of `dev`, called `what` in messages.
    pub fn new(dev: Arc<dyn BlockDevice>, offset: u64, len: u64, what: &str) -> Self {
        let name = format!("{} ({what})", dev.name());
        Self { dev, offset, len, name }
    }

    fn place(&self, len: usize, offset: u64) -> io::Result<u64> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "outside its part of the device"))
            }
        }
    }
}

impl BlockDevice for Region {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.dev.read_at(buf, self.place(buf.len(), offset)?)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.dev.try_read_at(buf, self.place(buf.len(), offset)?)
    }

    fn read_uncached(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.dev.read_uncached(buf, self.place(buf.len(), offset)?)
    }

    /// Of the whole device: there is one cache before it.
    fn drop_cache(&self) -> io::Result<()> {
        self.dev.drop_cache()
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.dev.write_at(bufs, self.place(bufs.iter().map(|b| b.len()).sum(), offset)?)
    }

    fn read_many(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        for (offset, buf) in parts.iter_mut() {
            *offset = self.place(buf.len(), *offset)?;
        }
        self.dev.read_many(parts)
    }

    fn soon(&self, parts: &[(u64, usize)]) {
        let moved: Vec<_> = parts
            .iter()
            .filter_map(|(at, len)| Some((self.place(*len, *at).ok()?, *len)))
            .collect();
        self.dev.soon(&moved);
    }

    fn write_many(&self, bufs: &[&[u8]], runs: &[(u64, Range<usize>)]) -> io::Result<()> {
        let mut moved = Vec::with_capacity(runs.len());
        for (offset, run) in runs {
            let len = bufs.get(run.clone()).unwrap_or_default().iter().map(|b| b.len()).sum();
            moved.push((self.place(len, *offset)?, run.clone()));
        }
        self.dev.write_many(bufs, &moved)
    }

    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.dev.write_durable(buf, self.place(buf.len(), offset)?)
    }

    fn flush(&self) -> io::Result<()> {
        let done = self.dev.flush();
        if planted!(FlushErrorSwallowed) { Ok(()) } else { done }
    }

    fn host_room(&self) -> io::Result<Option<u64>> {
        self.dev.host_room()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dev.discard(self.place(len as usize, offset)?, len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let found = self.dev.next_data(self.place(0, offset)?)?;
        Ok(found.map(|at| at.saturating_sub(self.offset)).filter(|at| *at < self.len))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Bytes per piece that a [`Shield`] keeps.
const PIECE: u64 = 4096;

/// A device whose writes stay in memory: what opening a store would write (the images of
/// its journal, a superblock) is seen by its reader, but reaches no disk.
pub(crate) struct Shield {
    dev: Arc<dyn BlockDevice>,
    /// By number of the piece.
    written: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl Shield {
    /// Shields `dev`.
    pub fn new(dev: Arc<dyn BlockDevice>) -> Self {
        Self { dev, written: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Box<[u8]>>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for Shield {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.dev.read_at(buf, offset)?;
        let end = offset + buf.len() as u64;
        for (piece, data) in self.lock().range(offset / PIECE..end.div_ceil(PIECE)) {
            let start = piece * PIECE;
            let (a, b) = (start.max(offset), (start + PIECE).min(end));
            buf[(a - offset) as usize..(b - offset) as usize]
                .copy_from_slice(&data[(a - start) as usize..(b - start) as usize]);
        }
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.read_at(buf, offset).map(|()| true)
    }

    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            let mut rest = *buf;
            while !rest.is_empty() {
                let (piece, skip) = (at / PIECE, (at % PIECE) as usize);
                let n = rest.len().min(PIECE as usize - skip);
                let mut written = self.lock();
                let data = match written.entry(piece) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => {
                        let mut old = vec![0; PIECE as usize].into_boxed_slice();
                        let there =
                            self.dev.size()?.saturating_sub(piece * PIECE).min(PIECE) as usize;
                        self.dev.read_at(&mut old[..there], piece * PIECE)?;
                        place.insert(old)
                    }
                };
                data[skip..skip + n].copy_from_slice(&rest[..n]);
                at += n as u64;
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.dev.size()
    }

    fn name(&self) -> &str {
        self.dev.name()
    }
}
