//! The journal: a ring of frames, each the work of one group commit.
//!
//! A frame starts at a multiple of 4 KiB and identifies itself: store, number, place,
//! length, checksums. Positions count bytes since the store's creation; the place in the
//! ring is the position modulo its size, and a frame may run over the end. Frames are
//! written one at a time, each durable before the next begins, so that after a crash at
//! most the last can be torn. A later frame behind a bad one therefore means that the
//! device lost something it had called durable.

use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use spirula_encoding::{DecodeError, Decoder, crc::crc32c};
use spirula_types::Uuid;

/// Frames start at multiples of this.
pub(crate) const FRAME_ALIGN: u64 = 4096;
/// Bytes before a frame's body.
pub(crate) const HEADER: usize = 64;
/// Bytes before each record in a body.
pub(crate) const RECORD_HEADER: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"SPJ1");

/// Where the next frame goes, or a checkpoint ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Position {
    /// Number of the next frame.
    pub frame: u64,
    /// Its position in bytes.
    pub offset: u64,
}

/// Room a frame of `body` bytes takes.
pub(crate) fn frame_size(body: usize) -> u64 {
    ((HEADER + body) as u64).next_multiple_of(FRAME_ALIGN)
}

/// Fills in the header of a frame whose body stands behind [`HEADER`] bytes of room.
pub(crate) fn seal(frame: &mut [u8], body: usize, store: Uuid, at: Position, first_seq: u64, count: u32) {
    let (header, rest) = frame.split_at_mut(HEADER);
    let crc = crc32c(u32::MAX, rest.get(..body).unwrap_or_default());
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&1u32.to_le_bytes());
    header[8..24].copy_from_slice(&store.0);
    header[24..32].copy_from_slice(&at.frame.to_le_bytes());
    header[32..40].copy_from_slice(&at.offset.to_le_bytes());
    header[40..48].copy_from_slice(&first_seq.to_le_bytes());
    header[48..52].copy_from_slice(&count.to_le_bytes());
    header[52..56].copy_from_slice(&(body as u32).to_le_bytes());
    header[56..60].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c(u32::MAX, &header[..60]);
    header[60..64].copy_from_slice(&crc.to_le_bytes());
}

struct Header {
    at: Position,
    first_seq: u64,
    count: u32,
    body_len: u32,
    body_crc: u32,
}

/// `None` unless these are the bytes of a header of this store.
fn parse_header(b: &[u8], store: Uuid) -> Option<Header> {
    let b = b.get(..HEADER)?;
    let parse = || -> Result<(Uuid, Header, u32, u32), DecodeError> {
        let mut d = Decoder::new(b);
        let magic = d.u32()?;
        let version = d.u32()?;
        let uuid = d.get()?;
        let h = Header {
            at: Position { frame: d.u64()?, offset: d.u64()? },
            first_seq: d.u64()?,
            count: d.u32()?,
            body_len: d.u32()?,
            body_crc: d.u32()?,
        };
        let ok = u32::from(magic == MAGIC && version == 1);
        Ok((uuid, h, ok, d.u32()?))
    };
    let (uuid, header, ok, crc) = parse().ok()?;
    (ok == 1 && uuid == store && crc == crc32c(u32::MAX, &b[..60])).then_some(header)
}

/// A transaction's part of a frame.
pub(crate) struct Record<'a> {
    pub seq: u64,
    pub redo: &'a [u8],
    /// Ring position (not wrapped) of the first image byte.
    pub images_at: u64,
    pub images: &'a [u8],
}

/// The ring, for reading.
pub(crate) struct Ring<'a> {
    pub dev: &'a dyn BlockDevice,
    pub size: u64,
    pub store: Uuid,
}

impl Ring<'_> {
    /// Fills `buf` from ring position `offset`, over the end if need be.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let at = offset % self.size;
        let first = ((self.size - at).min(buf.len() as u64)) as usize;
        let (a, b) = buf.split_at_mut(first);
        let fail = |e| StoreError::io("read", self.dev.name(), e);
        self.dev.read_at(a, at).map_err(fail)?;
        if !b.is_empty() {
            self.dev.read_at(b, 0).map_err(fail)?;
        }
        Ok(())
    }

    /// Gives every record from `from` on to `each`, in order, and returns where the next
    /// frame goes. `deep`: also make sure that no later frame lies behind the end.
    pub fn replay(
        &self,
        from: Position,
        deep: bool,
        mut each: impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<Position> {
        let mut at = from;
        let mut block = vec![0u8; FRAME_ALIGN as usize];
        loop {
            self.read(&mut block, at.offset)?;
            let Some(h) = parse_header(&block, self.store) else { break };
            let size = frame_size(h.body_len as usize);
            if h.at != at || size > self.size {
                break;
            }
            let mut body = vec![0u8; h.body_len as usize];
            self.read(&mut body, at.offset + HEADER as u64)?;
            if crc32c(u32::MAX, &body) != h.body_crc {
                break;
            }
            self.records(&h, &body, &mut each)?;
            at = Position { frame: at.frame + 1, offset: at.offset + size };
        }
        if deep {
            self.refuse_gap(at)?;
        }
        Ok(at)
    }

    fn records(&self, h: &Header, body: &[u8], each: &mut impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        let mut d = Decoder::new(body);
        for i in 0..u64::from(h.count) {
            let mut record = || -> Result<Record<'_>, DecodeError> {
                let seq = d.u64()?;
                let (redo, images) = (d.u32()? as usize, d.u32()? as usize);
                let redo = d.take(redo)?;
                let images_at = h.at.offset + (HEADER + d.position()) as u64;
                Ok(Record { seq, redo, images_at, images: d.take(images)? })
            };
            let record = record().map_err(|e| StoreError::corrupt(format!("journal frame {}: {e}", h.at.frame)))?;
            if record.seq != h.first_seq + i {
                return Err(StoreError::corrupt(format!("journal frame {}: record out of order", h.at.frame)));
            }
            each(record)?;
        }
        Ok(())
    }

    fn refuse_gap(&self, end: Position) -> Result<()> {
        const STEP: u64 = 1 << 20;
        let mut buf = vec![0u8; STEP.min(self.size) as usize];
        let mut at = 0;
        while at < self.size {
            let n = (self.size - at).min(STEP) as usize;
            let part = &mut buf[..n];
            self.dev.read_at(part, at).map_err(|e| StoreError::io("read", self.dev.name(), e))?;
            for (i, b) in part.chunks(FRAME_ALIGN as usize).enumerate() {
                // A later frame in its own place: it was begun after frame `end` was durable.
                if let Some(h) = parse_header(b, self.store)
                    && h.at.frame > end.frame
                    && h.at.offset % self.size == at + i as u64 * FRAME_ALIGN
                {
                    return Err(StoreError::Refused {
                        file: self.dev.name().to_owned(),
                        why: format!(
                            "frame {} is missing or damaged but frame {} is there: the device lost or changed a flushed write",
                            end.frame, h.at.frame
                        ),
                        advice: "do not trust this device; replace the OSD and let the cluster recover it".into(),
                    });
                }
            }
            at += n as u64;
        }
        Ok(())
    }
}
