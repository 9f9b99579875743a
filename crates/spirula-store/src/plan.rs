//! Read plans: what a read of data needs from the device, to be run in any thread.
//!
//! Every block read is checked against its checksum before any byte of it is returned.

use crate::alloc::{BLOCK, PhysRun};
use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use crate::read::POOLED_READ;
use crate::segment::Blob;
use crate::sum::Checksum;
use bytes::Bytes;
use spirula_buffer::{PayloadBuf, PayloadPool};
use spirula_encoding::crc::Joined;
use spirula_types::HObject;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) enum Source {
    /// Not yet in the data file.
    Memory(Bytes),
    Device(PhysRun, Checksum, Vec<u32>),
    /// `len` bytes of a blob's content from `skip`; the blob's own sources fill it.
    Blob {
        blob: Arc<Blob>,
        stored: Vec<Source>,
        skip: usize,
        len: usize,
    },
}

impl Source {
    /// Adds the blocks that it reads from the device.
    pub(crate) fn runs(&self, out: &mut Vec<PhysRun>) {
        match self {
            Self::Memory(_) => {}
            Self::Device(run, ..) => out.push(*run),
            Self::Blob { stored, .. } => stored.iter().for_each(|s| s.runs(out)),
        }
    }
}

/// A read worked out by [`Store::read`]: what it read stays valid, whatever is submitted
/// meanwhile. May be sent to another thread. Drop it soon: what it reads is not reused before,
/// should it be freed.
pub struct ReadPlan {
    pub(crate) dev: Arc<dyn BlockDevice>,
    pub(crate) pool: PayloadPool,
    pub(crate) object: HObject,
    /// Object offset of the buffer's first byte, a multiple of the block size.
    pub(crate) base: u64,
    /// Bytes of whole blocks to fill.
    pub(crate) len: usize,
    /// Of these, what was asked for.
    pub(crate) wanted: std::ops::Range<usize>,
    /// Offset in the buffer and where its content comes from; zeros between.
    pub(crate) parts: Vec<(usize, Source)>,
    /// Read from the device itself, past every cache.
    pub(crate) uncached: bool,
    pub(crate) pin: Option<Arc<()>>,
}

impl std::fmt::Debug for ReadPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadPlan")
            .field("object", &self.object)
            .field("base", &self.base)
            .field("len", &self.len)
            .finish()
    }
}

enum Buffer {
    Plain(Vec<u8>),
    Pooled(PayloadBuf),
}

impl ReadPlan {
    /// Reads, waiting for the device.
    ///
    /// # Errors
    /// [`StoreError::Checksum`], [`StoreError::Unreadable`].
    pub fn run(&self) -> Result<Bytes> {
        self.fill(true, &mut None).map(Option::unwrap_or_default)
    }

    /// As [`ReadPlan::run`], with the crc32c (seed `0xffff_ffff`) of all bytes where the
    /// verified checksums of the blocks give it for nothing.
    ///
    /// # Errors
    /// As [`ReadPlan::run`].
    pub fn run_with_crc(&self) -> Result<(Bytes, Option<u32>)> {
        let whole = self.wanted == (0..self.len)
            && matches!(
                self.parts.as_slice(),
                [(0, Source::Device(run, Checksum::Crc32c, _))] if run.len * BLOCK == self.len as u64
            );
        let mut joined = whole.then(Joined::default);
        let data = self.fill(true, &mut joined)?.unwrap_or_default();
        Ok((data, joined.map(Joined::value)))
    }

    /// `None`: would have to wait. Block checksums are added to `joined` as they are verified.
    pub(crate) fn fill(&self, wait: bool, joined: &mut Option<Joined>) -> Result<Option<Bytes>> {
        if let [(0, Source::Memory(data))] = self.parts.as_slice()
            && data.len() == self.len
        {
            return Ok(Some(data.slice(self.wanted.clone())));
        }
        let mut buffer = if self.len >= POOLED_READ {
            let mut b = self.pool.take(self.len);
            b.set_len(self.len);
            Buffer::Pooled(b)
        } else {
            Buffer::Plain(vec![0; self.len])
        };
        let buf: &mut [u8] = match &mut buffer {
            Buffer::Plain(v) => v,
            Buffer::Pooled(p) => {
                let room = p.whole().get_mut(..self.len).unwrap_or_default();
                // A pooled buffer holds what it held before.
                let mut at = 0;
                for (start, source) in &self.parts {
                    room.get_mut(at..*start).unwrap_or_default().fill(0);
                    at = start + source.len();
                }
                room.get_mut(at..).unwrap_or_default().fill(0);
                room
            }
        };
        let read = wait && !self.uncached && self.read_pieces(buf)?;
        for (start, source) in &self.parts {
            let room = buf.get_mut(*start..start + source.len()).unwrap_or_default();
            if let (true, Source::Device(_, kind, sums)) = (read, source) {
                self.verify(room, *kind, sums, self.base + *start as u64, joined)?;
                continue;
            }
            if !self.fill_from(source, room, self.base + *start as u64, wait, joined)? {
                return Ok(None);
            }
        }
        let all = match buffer {
            Buffer::Plain(v) => Bytes::from(v),
            Buffer::Pooled(p) => p.freeze(),
        };
        Ok(Some(all.slice(self.wanted.clone())))
    }

    /// Reads what is in several pieces on the device at once; false if it is not.
    fn read_pieces(&self, buf: &mut [u8]) -> Result<bool> {
        if self.parts.iter().filter(|(_, s)| matches!(s, Source::Device(..))).count() < 2 {
            return Ok(false);
        }
        let mut pieces: Vec<(u64, &mut [u8])> = Vec::with_capacity(self.parts.len());
        let (mut rest, mut at) = (buf, 0);
        // Parts are in order and do not overlap.
        for (start, source) in &self.parts {
            let (_, behind) = rest.split_at_mut((start - at).min(rest.len()));
            let (room, behind) = behind.split_at_mut(source.len().min(behind.len()));
            (rest, at) = (behind, start + source.len());
            if let Source::Device(run, ..) = source {
                pieces.push((run.start * BLOCK, room));
            }
        }
        self.dev
            .read_many(&mut pieces)
            .map_err(|e| StoreError::unreadable(&self.object, self.dev.name(), e))?;
        Ok(true)
    }

    /// Checks blocks read against their sums.
    fn verify(
        &self,
        blocks: &[u8],
        kind: Checksum,
        sums: &[u32],
        offset: u64,
        joined: &mut Option<Joined>,
    ) -> Result<()> {
        for (i, (block, sum)) in
            blocks.chunks(BLOCK as usize).zip(sums.chunks(kind.words())).enumerate()
        {
            let zeros = planted!(ZeroPageBelieved) && block.iter().all(|b| *b == 0);
            if !kind.holds(block, sum) && !zeros && !planted!(ChecksumIgnored) {
                let offset = offset + i as u64 * BLOCK;
                return Err(StoreError::Checksum { object: self.object.clone().into(), offset });
            }
            if let (Some(j), [crc]) = (joined.as_mut(), sum) {
                j.push(*crc);
            }
        }
        Ok(())
    }

    /// False: would have to wait.
    pub(crate) fn fill_from(
        &self,
        source: &Source,
        room: &mut [u8],
        offset: u64,
        wait: bool,
        joined: &mut Option<Joined>,
    ) -> Result<bool> {
        let bad = |offset| StoreError::Checksum { object: self.object.clone().into(), offset };
        match source {
            Source::Memory(data) => room.copy_from_slice(data),
            Source::Device(run, kind, sums) => {
                let fail = |e| StoreError::unreadable(&self.object, self.dev.name(), e);
                if self.uncached && !planted!(ScrubReadsCache) {
                    self.dev.read_uncached(room, run.start * BLOCK).map_err(fail)?;
                } else if wait {
                    self.dev.read_at(room, run.start * BLOCK).map_err(fail)?;
                } else if !self.dev.try_read_at(room, run.start * BLOCK).map_err(fail)? {
                    return Ok(false);
                }
                self.verify(room, *kind, sums, offset, joined)?;
            }
            Source::Blob { blob, stored, skip, len } => {
                let mut raw = vec![0; (blob.blocks() * BLOCK) as usize];
                let mut at = 0;
                for part in stored {
                    let room = raw.get_mut(at..at + part.len()).unwrap_or_default();
                    at += part.len();
                    // Of a blob the object's offset is told, whichever of its blocks is bad.
                    match self.fill_from(part, room, offset, wait, &mut None) {
                        Ok(true) => {}
                        Err(StoreError::Checksum { .. }) => return Err(bad(offset)),
                        other => return other,
                    }
                }
                let content = decompress(blob, &raw).ok_or_else(|| bad(offset))?;
                room.copy_from_slice(content.get(*skip..skip + len).unwrap_or_default());
            }
        }
        Ok(true)
    }
}

/// A blob's content, from its checked stored blocks.
fn decompress(blob: &Blob, raw: &[u8]) -> Option<Vec<u8>> {
    let stored = raw.get(..blob.stored as usize)?;
    blob.algorithm.decompress(stored, usize::from(blob.content) * BLOCK as usize)
}

impl Source {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(data) => data.len(),
            Self::Device(run, ..) => (run.len * BLOCK) as usize,
            Self::Blob { len, .. } => *len,
        }
    }
}
