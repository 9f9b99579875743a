//! The boundary to bytes on a device: everything the store reads and writes outside its
//! metadata KV passes through [`BlockDevice`], so that tests can record, lose and tear it.
//!
//! A write is durable after the next successful [`BlockDevice::flush`], or at once after
//! [`BlockDevice::write_durable`]; before that any subset of it may persist, torn at 512
//! bytes.

use crate::io::{self as ring, Io};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Alignment of memory, offsets and lengths that lets a write bypass the page cache.
pub const DIRECT_ALIGN: usize = 4096;

/// Bytes of memory at an address that lets them bypass the page cache.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Zeros.
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + DIRECT_ALIGN];
        let start = memory.as_ptr().align_offset(DIRECT_ALIGN).min(DIRECT_ALIGN);
        Self { memory, start, len }
    }

    /// A copy.
    pub fn of(data: &[u8]) -> Self {
        let mut a = Self::new(data.len());
        a.as_mut().copy_from_slice(data);
        a
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A file or device of fixed size.
pub trait BlockDevice: Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// Of the device; reading past the end is an error.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `buf` from `offset` if that needs no waiting for the device; else returns
    /// `false`, with `buf` in any state.
    ///
    /// # Errors
    /// Of the device.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Fills `buf` from `offset`, from the device itself where it has a cache before it.
    ///
    /// # Errors
    /// As [`BlockDevice::read_at`].
    fn read_uncached(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buf, offset)
    }

    /// Lets go of what a cache before the device holds and has written through.
    ///
    /// # Errors
    /// Of the file system.
    fn drop_cache(&self) -> io::Result<()> {
        Ok(())
    }

    /// Writes the buffers one after the other from `offset`.
    ///
    /// # Errors
    /// Of the device. How much was written is then unknown.
    fn write_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()>;

    /// Fills each buffer from its offset, in any order.
    ///
    /// # Errors
    /// As [`BlockDevice::read_at`].
    fn read_many(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        parts.iter_mut().try_for_each(|(offset, buf)| self.read_at(buf, *offset))
    }

    /// Parts (offset and bytes of each) that are read soon: a cache before the device may fetch
    /// them meanwhile. Only a hint, and nobody waits for it.
    fn soon(&self, parts: &[(u64, usize)]) {
        _ = parts;
    }

    /// Writes runs of `bufs`, each from its offset, in any order.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn write_many(&self, bufs: &[&[u8]], runs: &[(u64, Range<usize>)]) -> io::Result<()> {
        runs.iter()
            .try_for_each(|(at, run)| self.write_at(bufs.get(run.clone()).unwrap_or_default(), *at))
    }

    /// Writes `buf` at `offset` and makes it durable.
    ///
    /// # Errors
    /// Of the device.
    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(&[buf], offset)?;
        self.flush()
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    /// Of the device. Final: what was written since the last flush may be lost.
    fn flush(&self) -> io::Result<()>;

    /// Size in bytes.
    ///
    /// # Errors
    /// Of the device.
    fn size(&self) -> io::Result<u64>;

    /// Bytes that whatever holds the device can still find for parts never written; `None`
    /// if the device has all its space.
    ///
    /// # Errors
    /// Of the file system.
    fn host_room(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// The range holds nothing any more: its space may be given back. It reads as zeros or
    /// as before.
    ///
    /// # Errors
    /// Of the device.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// From which byte on, at `offset` or behind it, the device takes space of whatever holds it;
    /// `None`: nothing is there up to its end.
    ///
    /// # Errors
    /// Of the file system, which may be unable to tell.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }

    /// Name for error messages.
    fn name(&self) -> &str;
}

/// Most bytes that Linux takes in one request.
const REQUEST_MAX: usize = 0x7fff_f000;

/// Writes all of `bufs` at `offset`, in as many requests as it takes: a short write is legal,
/// and a long one is always short. Returns how many bytes that were.
fn write_fully(
    mut bufs: &mut [IoSlice<'_>],
    offset: u64,
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> io::Result<usize>,
) -> io::Result<u64> {
    let total: u64 = bufs.iter().map(|b| b.len() as u64).sum();
    let mut done = 0;
    while done < total {
        match write(bufs, offset + done) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                done += n as u64;
                if planted!(ShortWriteTaken) || (planted!(HugeRequestCut) && n == REQUEST_MAX) {
                    break;
                }
                IoSlice::advance_slices(&mut bufs, n);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

/// A real file. Single requests are system calls; batches go through a ring where
/// [`Io::Uring`] is chosen. Aligned reads and writes of [`FileDevice::direct_min`] bytes or more,
/// and all durable writes, bypass the page cache where the file system allows it.
pub struct FileDevice {
    name: String,
    file: File,
    /// Same file opened with O_DIRECT.
    direct: Option<File>,
    direct_min: usize,
    io: Io,
}

impl FileDevice {
    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// Of the file system.
    pub fn open(path: &Path, direct_min: usize, io: Io) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let flags = rustix::fs::OFlags::DIRECT;
        // Some file systems (tmpfs) refuse O_DIRECT; the page cache and fdatasync serve there.
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .ok();
        Ok(Self { name: path.display().to_string(), file, direct, direct_min, io })
    }

    /// Opens an existing file for reading only: the kernel refuses every write.
    ///
    /// # Errors
    /// Of the file system.
    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self {
            name: path.display().to_string(),
            file,
            direct: None,
            direct_min: usize::MAX,
            io: Io::Threads,
        })
    }

    /// The file to use for a read or write of `buf`: what was written past the page cache is
    /// read past it: no copy, and pages of small objects stay.
    fn way(&self, buf: &[u8], offset: u64) -> &File {
        match &self.direct {
            Some(direct) if buf.len() >= self.direct_min && Self::aligned(buf, offset) => direct,
            _ => &self.file,
        }
    }

    fn aligned(buf: &[u8], offset: u64) -> bool {
        (buf.as_ptr() as usize).is_multiple_of(DIRECT_ALIGN)
            && buf.len().is_multiple_of(DIRECT_ALIGN)
            && offset.is_multiple_of(DIRECT_ALIGN as u64)
    }
}

impl BlockDevice for FileDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.way(buf, offset).read_exact_at(buf, offset)
    }

    fn read_many(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        if self.io == Io::Uring && parts.len() > 1 {
            return ring::read_many(parts, |at, buf| self.way(buf, at));
        }
        parts.iter_mut().try_for_each(|(offset, buf)| self.read_at(buf, *offset))
    }

    fn soon(&self, parts: &[(u64, usize)]) {
        let mut parts = parts.to_vec();
        parts.sort_unstable();
        let mut parts = parts.into_iter().peekable();
        while let Some((at, mut len)) = parts.next() {
            while let Some((_, more)) = parts.next_if(|(next, _)| *next == at + len as u64) {
                len += more;
            }
            // Where the file system cannot, each read waits for itself.
            let _ = rustix::fs::fadvise(
                &self.file,
                at,
                std::num::NonZeroU64::new(len as u64),
                rustix::fs::Advice::WillNeed,
            );
        }
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let want = buf.len();
        match rustix::io::preadv2(
            &self.file,
            &mut [IoSliceMut::new(buf)],
            offset,
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(n) => Ok(n == want),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            // No such mode on this file system: it is one that lives in memory.
            Err(Errno::OPNOTSUPP) => self.file.read_exact_at(buf, offset).map(|()| true),
            Err(e) => Err(e.into()),
        }
    }

    fn read_uncached(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let whole =
            buf.len().is_multiple_of(DIRECT_ALIGN) && offset.is_multiple_of(DIRECT_ALIGN as u64);
        match &self.direct {
            Some(direct) if Self::aligned(buf, offset) => direct.read_exact_at(buf, offset),
            Some(direct) if whole => {
                let mut own = vec![0u8; buf.len() + DIRECT_ALIGN];
                let skip = own.as_ptr().align_offset(DIRECT_ALIGN).min(DIRECT_ALIGN);
                let room = own.get_mut(skip..skip + buf.len()).unwrap_or_default();
                direct.read_exact_at(room, offset)?;
                buf.copy_from_slice(room);
                Ok(())
            }
            _ => {
                // Dirty pages stay; they are what the device will hold.
                let len = std::num::NonZeroU64::new(buf.len() as u64);
                rustix::fs::fadvise(&self.file, offset, len, rustix::fs::Advice::DontNeed)?;
                self.file.read_exact_at(buf, offset)
            }
        }
    }

    fn drop_cache(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    fn write_many(&self, bufs: &[&[u8]], runs: &[(u64, Range<usize>)]) -> io::Result<()> {
        if self.io == Io::Uring && runs.len() > 1 {
            return ring::write_many(bufs, runs, |at, bufs| match bufs {
                [one] => self.way(one, at),
                _ => &self.file,
            });
        }
        runs.iter()
            .try_for_each(|(at, run)| self.write_at(bufs.get(run.clone()).unwrap_or_default(), *at))
    }

    fn write_at(&self, bufs: &[&[u8]], mut offset: u64) -> io::Result<()> {
        if let [one] = bufs {
            return self.way(one, offset).write_all_at(one, offset);
        }
        for group in bufs.chunks(64) {
            let mut slices: Vec<IoSlice<'_>> = group.iter().map(|b| IoSlice::new(b)).collect();
            offset += write_fully(&mut slices, offset, |part, at| {
                Ok(rustix::io::pwritev(&self.file, part, at)?)
            })?;
        }
        Ok(())
    }

    fn write_durable(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        if let Some(direct) = &self.direct
            && Self::aligned(buf, offset)
        {
            // One system call to write and sync just this range.
            while let rest = buf.get(done..).unwrap_or_default()
                && !rest.is_empty()
            {
                let at = offset + done as u64;
                match rustix::io::pwritev2(direct, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC)
                {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    // The rest of a short write need not be aligned any more.
                    Ok(n) if n.is_multiple_of(DIRECT_ALIGN) => done += n,
                    Ok(_) | Err(Errno::OPNOTSUPP) => break,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            if done == buf.len() {
                return Ok(());
            }
        }
        self.file.write_all_at(buf.get(done..).unwrap_or_default(), offset + done as u64)?;
        self.flush()
    }

    fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn size(&self) -> io::Result<u64> {
        // The length in the metadata of a block device is 0; its end is found by seeking.
        (&self.file).seek(SeekFrom::End(0))
    }

    fn host_room(&self) -> io::Result<Option<u64>> {
        use std::os::unix::fs::MetadataExt;
        let m = self.file.metadata()?;
        if !m.is_file() || m.blocks().saturating_mul(512) >= m.len() {
            return Ok(None);
        }
        let host = rustix::fs::fstatvfs(&self.file)?;
        Ok(Some(host.f_bavail.saturating_mul(host.f_frsize)))
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        // Moves the file's own place, which nothing else here goes by.
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes `bufs` with requests that take at most `most` bytes each; returns what arrived
    /// where.
    fn requests(bufs: &[&[u8]], most: usize) -> Vec<(u64, usize)> {
        let mut slices: Vec<IoSlice<'_>> = bufs.iter().map(|b| IoSlice::new(b)).collect();
        let mut seen = Vec::new();
        let done = write_fully(&mut slices, 1000, |part, at| {
            let n = part.iter().map(|b| b.len()).sum::<usize>().min(most);
            seen.push((at, n));
            Ok(n)
        });
        assert_eq!(done.unwrap(), bufs.iter().map(|b| b.len() as u64).sum::<u64>());
        seen
    }

    #[test]
    pub(crate) fn requests_are_finished_however_little_each_takes() {
        let (a, b) = ([1u8; 100], [2u8; 30]);
        assert_eq!(requests(&[&a, &b, &a], 70), [(1000, 70), (1070, 70), (1140, 70), (1210, 20)]);
        assert_eq!(requests(&[&a, &b], 1000), [(1000, 130)]);
        // Linux takes no more than this at once. The memory is never touched.
        let large = vec![0; 64 << 20];
        let all = requests(&[&large[..]; 40], REQUEST_MAX);
        assert_eq!(
            all,
            [(1000, REQUEST_MAX), (1000 + REQUEST_MAX as u64, (40 * (64 << 20)) - REQUEST_MAX)]
        );
        let mut full = [IoSlice::new(&a)];
        assert!(write_fully(&mut full, 0, |_, _| Ok(0)).is_err());
    }
}
