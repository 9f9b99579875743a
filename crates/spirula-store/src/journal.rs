//! The journal: a ring of frames, each the work of one group commit.
//!
//! A frame starts at a multiple of 4 KiB and identifies itself: journal device, number,
//! place, length, checksums, the frame before it, and what was durable when it was written.
//! Positions count bytes since the store's creation; the place in the ring is the position
//! modulo its size, and a frame may run over the end. Several frames may be under way at a
//! time: after a crash any of them may be missing or torn, and the journal ends before the
//! first that is. Later ones that did arrive hold nothing that was acknowledged; they are
//! erased before the store works on, lest they seem to follow what takes that place.
//! A frame that is not there although a later frame, a mark (written behind the last frame
//! when nothing follows for a while) or the superblock says that it was durable means that
//! the device lost something it had acknowledged: the store is refused.

use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use spirula_encoding::{DecodeError, Decoder, Encoder, crc::crc32c};
use spirula_types::Uuid;

/// Frames start at multiples of this.
pub(crate) const FRAME_ALIGN: u64 = 4096;
/// Bytes before a frame's body.
pub(crate) const HEADER: usize = 96;
/// Bytes before each record in a body.
pub(crate) const RECORD_HEADER: usize = 16;
const FRAME: u32 = u32::from_le_bytes(*b"SPJF");
const MARK: u32 = u32::from_le_bytes(*b"SPJM");
/// Bytes of a header that its checksum covers.
const SUMMED: usize = HEADER - 4;

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

/// Where and behind what the next frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Tail {
    pub at: Position,
    /// Checksum in the header of the frame before; 0 if that one is not known.
    pub previous: u32,
}

/// What a frame says beside its records.
pub(crate) struct Seal {
    /// The journal's device.
    pub device: Uuid,
    /// Frames before this number are known to be durable.
    pub durable: u64,
    /// Newest generation of the superblock known to be durable.
    pub superblock: u64,
    pub first_seq: u64,
    pub count: u32,
    /// Bytes of records.
    pub body: usize,
}

fn header(kind: u32, tail: Tail, s: &Seal, body_crc: u32) -> [u8; HEADER] {
    let mut o = Encoder::with_capacity(HEADER);
    o.u32(kind);
    o.u32(2);
    o.put(&s.device);
    o.u64(tail.at.frame);
    o.u64(tail.at.offset);
    o.u64(if planted!(DurableTooSoon) { tail.at.frame } else { s.durable });
    o.u64(s.superblock);
    o.u64(s.first_seq);
    o.u32(s.count);
    o.u32(s.body as u32);
    o.u32(body_crc);
    o.u32(tail.previous);
    o.zeros(SUMMED - o.len());
    let crc = crc32c(u32::MAX, o.as_slice());
    o.u32(crc);
    let mut out = [0; HEADER];
    out.copy_from_slice(o.as_slice());
    out
}

/// Fills in the header of a frame whose body stands behind [`HEADER`] bytes of room.
/// Returns what comes behind it.
pub(crate) fn seal(frame: &mut [u8], tail: Tail, s: &Seal) -> Tail {
    let (room, rest) = frame.split_at_mut(HEADER);
    let h = header(FRAME, tail, s, crc32c(u32::MAX, rest.get(..s.body).unwrap_or_default()));
    room.copy_from_slice(&h);
    let at = Position { frame: tail.at.frame + 1, offset: tail.at.offset + frame_size(s.body) };
    Tail { at, previous: header_crc(&h) }
}

/// A mark for the place behind the last frame: every frame before it is durable. The next
/// frame overwrites it.
pub(crate) fn mark(tail: Tail, device: Uuid, superblock: u64) -> [u8; HEADER] {
    header(
        MARK,
        tail,
        &Seal { device, durable: tail.at.frame, superblock, first_seq: 0, count: 0, body: 0 },
        crc32c(u32::MAX, &[]),
    )
}

fn header_crc(h: &[u8; HEADER]) -> u32 {
    let [.., a, b, c, d] = *h;
    u32::from_le_bytes([a, b, c, d])
}

struct Header {
    mark: bool,
    at: Position,
    /// Frames before this number were durable.
    durable: u64,
    superblock: u64,
    first_seq: u64,
    count: u32,
    body_len: u32,
    body_crc: u32,
    previous: u32,
    crc: u32,
}

/// `None` unless these are the bytes of a header of this journal.
fn parse_header(b: &[u8], device: Uuid) -> Option<Header> {
    let b = b.first_chunk::<HEADER>()?;
    let crc = header_crc(b);
    let parse = || -> Result<(u32, u32, Uuid, Header), DecodeError> {
        let mut d = Decoder::new(b);
        let kind = d.u32()?;
        let version = d.u32()?;
        let uuid = d.get()?;
        let h = Header {
            mark: kind == MARK,
            at: Position { frame: d.u64()?, offset: d.u64()? },
            durable: d.u64()?,
            superblock: d.u64()?,
            first_seq: d.u64()?,
            count: d.u32()?,
            body_len: d.u32()?,
            body_crc: d.u32()?,
            previous: d.u32()?,
            crc,
        };
        Ok((kind, version, uuid, h))
    };
    let (kind, version, uuid, header) = parse().ok()?;
    let known = (kind == FRAME || kind == MARK) && version == 2 && uuid == device;
    (known && crc == crc32c(u32::MAX, b.get(..SUMMED)?)).then_some(header)
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
    /// The journal's device, as its frames name it.
    pub device: Uuid,
    /// Generation of the superblock found.
    pub superblock: u64,
    /// Frames before this were durable, as the superblock says.
    pub journaled: Position,
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
    /// frame goes. `deep`: also make sure that no later frame says that more was durable, and
    /// return where such frames as do not begin on the device: they are to be erased.
    pub fn replay(
        &self,
        from: Position,
        deep: bool,
        mut each: impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<(Tail, Vec<u64>)> {
        let mut tail = Tail { at: from, previous: 0 };
        let mut block = vec![0u8; FRAME_ALIGN as usize];
        loop {
            let at = tail.at;
            self.read(&mut block, at.offset)?;
            let Some(h) = parse_header(&block, self.device) else { break };
            let size = frame_size(h.body_len as usize);
            if h.at != at || h.mark || size > self.size {
                break;
            }
            let mut body = vec![0u8; h.body_len as usize];
            self.read(&mut body, at.offset + HEADER as u64)?;
            if crc32c(u32::MAX, &body) != h.body_crc && !planted!(TornFrameApplied) {
                break;
            }
            if h.previous != tail.previous && tail.previous != 0 && h.previous != 0 {
                return self.lost(format!(
                    "frame {} is not the one that frame {} was written behind",
                    at.frame.saturating_sub(1),
                    at.frame
                ));
            }
            self.check_superblock(&h)?;
            self.records(&h, &body, &mut each)?;
            tail = Tail { at: Position { frame: at.frame + 1, offset: at.offset + size }, previous: h.crc };
        }
        if planted!(LostWritesUnnoticed) {
            return Ok((tail, Vec::new()));
        }
        if tail.at.frame < self.journaled.frame {
            return self.lost(format!(
                "frame {} is missing or damaged but the superblock knows that {} were durable",
                tail.at.frame, self.journaled.frame
            ));
        }
        let stale = if deep { self.refuse_gap(tail.at)? } else { Vec::new() };
        Ok((tail, stale))
    }

    fn lost<T>(&self, what: String) -> Result<T> {
        Err(StoreError::Refused {
            file: self.dev.name().to_owned(),
            why: format!("{what}: the device acknowledged writes and lost or changed them"),
            advice: "do not trust this device; replace the OSD and let the cluster recover it".into(),
        })
    }

    /// The superblock is written on the main device before frames speak of it.
    fn check_superblock(&self, h: &Header) -> Result<()> {
        if h.superblock <= self.superblock {
            return Ok(());
        }
        Err(StoreError::Refused {
            file: self.dev.name().to_owned(),
            why: format!(
                "frame {} was written after superblock {}, but the main device has superblock {}: \
                 the main device acknowledged writes and lost them, or is an old copy",
                h.at.frame, h.superblock, self.superblock
            ),
            advice: "do not trust the main device; replace the OSD and let the cluster recover it".into(),
        })
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

    /// Places of later frames, none of which says that the one at the end was durable.
    fn refuse_gap(&self, end: Position) -> Result<Vec<u64>> {
        const STEP: u64 = 1 << 20;
        let mut buf = vec![0u8; STEP.min(self.size) as usize];
        let mut later = Vec::new();
        let mut at = 0;
        while at < self.size {
            let n = (self.size - at).min(STEP) as usize;
            let part = &mut buf[..n];
            self.dev.read_at(part, at).map_err(|e| StoreError::io("read", self.dev.name(), e))?;
            for (i, b) in part.chunks(FRAME_ALIGN as usize).enumerate() {
                // In its own place, and written when frame `end` was durable.
                if let Some(h) = parse_header(b, self.device)
                    && h.at.offset % self.size == at + i as u64 * FRAME_ALIGN
                {
                    if h.at.frame > end.frame && h.durable > end.frame {
                        let what = if h.mark { "the mark of frame" } else { "frame" };
                        return self.lost(format!(
                            "frame {} is missing or damaged but {what} {} is there",
                            end.frame, h.at.frame
                        ));
                    }
                    self.check_superblock(&h)?;
                    if h.at.frame > end.frame {
                        later.push(h.at.offset % self.size);
                    }
                }
            }
            at += n as u64;
        }
        Ok(later)
    }
}
