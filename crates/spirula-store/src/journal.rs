//! The journal: a ring of frames, each the work of one group commit.
//!
//! A frame starts at a multiple of 4 KiB and identifies itself: journal device, number,
//! place, length, checksums, the frame before it, and what was durable when it was written.
//! Positions count bytes since the store's creation; the place in the ring is the position
//! modulo its size, and a frame may run over the end. Several frames may be under way at a
//! time: after a crash any of them may be missing or torn, and the journal ends before the
//! first that is. Later ones that did arrive hold nothing that was acknowledged; they are
//! erased before the store works on, lest they seem to follow what takes that place.
//! A frame is missing only if a second read, of the device itself, does not find it either: one
//! wrong answer of a device becomes nothing lasting. One whose sectors cannot be read was under
//! way when the power went, as far as is known, unless a later one is whole.
//! A frame that is not there although a later frame, a mark (written behind the last frame
//! when nothing follows for a while) or the superblock says that it was durable means that
//! the device lost something it had acknowledged: the store is refused.

use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use spirula_encoding::{DecodeError, Decoder, Encoder, crc::crc32c};
use spirula_types::Uuid;
use std::collections::BTreeSet;

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

/// What stands where a frame is looked for.
enum Place {
    Frame(Header, Vec<u8>),
    /// Something that is not this frame, or not all of it.
    Other,
    /// The device's words.
    Unreadable(StoreError),
}

/// What replaying a ring found beside its records.
pub(crate) struct Replayed {
    /// Where the next frame goes.
    pub tail: Tail,
    /// Where on the device blocks are that are to be erased: beginnings of later frames, and
    /// what cannot be read outside the frames that count.
    pub stale: Vec<u64>,
    /// Damage that did no harm, in words.
    pub notes: Vec<String>,
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
    /// Fills `buf` from ring position `offset`, over the end if need be. `anew`: from the
    /// device itself, past every cache.
    pub fn read(&self, buf: &mut [u8], offset: u64, anew: bool) -> Result<()> {
        let at = offset % self.size;
        let first = ((self.size - at).min(buf.len() as u64)) as usize;
        let (a, b) = buf.split_at_mut(first);
        self.read_part(a, at, anew)?;
        if b.is_empty() { Ok(()) } else { self.read_part(b, 0, anew) }
    }

    fn read_part(&self, buf: &mut [u8], at: u64, anew: bool) -> Result<()> {
        let done = if anew { self.dev.read_uncached(buf, at) } else { self.dev.read_at(buf, at) };
        done.map_err(|e| StoreError::io("read", self.dev.name(), e))
    }

    /// What stands at `at`, as one attempt to read it says.
    fn look(&self, at: Position, anew: bool) -> Place {
        let mut block = vec![0u8; FRAME_ALIGN as usize];
        if let Err(e) = self.read(&mut block, at.offset, anew) {
            return Place::Unreadable(e);
        }
        let Some(h) = parse_header(&block, self.device) else { return Place::Other };
        let size = frame_size(h.body_len as usize);
        if h.at != at || h.mark || size > self.size {
            return Place::Other;
        }
        // Whole blocks: what goes past caches must be.
        let mut frame = vec![0u8; size as usize];
        if let Err(e) = self.read(&mut frame, at.offset, anew) {
            return Place::Unreadable(e);
        }
        let mut body = frame.split_off(HEADER);
        body.truncate(h.body_len as usize);
        if crc32c(u32::MAX, &body) != h.body_crc && !planted!(TornFrameApplied) {
            return Place::Other;
        }
        Place::Frame(h, body)
    }

    /// What stands at `at`. That it is not a frame is believed only the second time.
    fn find(&self, at: Position, notes: &mut Vec<String>) -> Place {
        let first = self.look(at, false);
        if matches!(first, Place::Frame(..)) || planted!(OneReadEndsJournal) {
            return first;
        }
        let second = self.look(at, true);
        if matches!(second, Place::Frame(..)) {
            notes.push(format!(
                "{}: frame {} of the journal was read wrongly once, and then as it was written",
                self.dev.name(),
                at.frame
            ));
        }
        second
    }

    /// Gives every record from `from` on to `each`, in order, and finds where the next frame
    /// goes. `deep`: also make sure that no later frame says that more was durable, and find
    /// what is to be erased.
    pub fn replay(
        &self,
        from: Position,
        deep: bool,
        mut each: impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<Replayed> {
        let mut tail = Tail { at: from, previous: 0 };
        let mut notes = Vec::new();
        let unreadable = loop {
            let at = tail.at;
            let (h, body) = match self.find(at, &mut notes) {
                Place::Frame(h, body) => (h, body),
                Place::Other => break None,
                Place::Unreadable(e) => break Some(e),
            };
            if h.previous != tail.previous && tail.previous != 0 && h.previous != 0 {
                return self.lost(format!(
                    "frame {} is not the one that frame {} was written behind",
                    at.frame.saturating_sub(1),
                    at.frame
                ));
            }
            self.check_superblock(&h)?;
            self.records(&h, &body, &mut each)?;
            let offset = at.offset + frame_size(h.body_len as usize);
            tail = Tail { at: Position { frame: at.frame + 1, offset }, previous: h.crc };
        };
        if planted!(LostWritesUnnoticed) {
            return Ok(Replayed { tail, stale: Vec::new(), notes });
        }
        if tail.at.frame < self.journaled.frame {
            let why = unreadable.map_or_else(String::new, |e| format!(" ({e})"));
            return self.lost(format!(
                "frame {} is missing or damaged{why} but the superblock knows that {} were durable",
                tail.at.frame, self.journaled.frame
            ));
        }
        if let Some(e) = &unreadable {
            if planted!(BadSectorRefused) {
                return Err(e.clone());
            }
            notes.push(format!(
                "{e}: taken for frame {} of the journal, which was being written when the machine \
                    stopped",
                tail.at.frame
            ));
        }
        let stale = if deep {
            self.behind(from, tail.at, unreadable.as_ref(), &mut notes)?
        } else {
            Vec::new()
        };
        Ok(Replayed { tail, stale, notes })
    }

    fn lost<T>(&self, what: String) -> Result<T> {
        Err(StoreError::Refused {
            file: self.dev.name().to_owned(),
            why: format!("{what}: the device acknowledged writes and lost or changed them"),
            advice: "do not trust this device; replace the OSD and let the cluster recover it"
                .into(),
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
            advice: "do not trust the main device; replace the OSD and let the cluster recover it"
                .into(),
        })
    }

    fn records(
        &self,
        h: &Header,
        body: &[u8],
        each: &mut impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut d = Decoder::new(body);
        for i in 0..u64::from(h.count) {
            let mut record = || -> Result<Record<'_>, DecodeError> {
                let seq = d.u64()?;
                let (redo, images) = (d.u32()? as usize, d.u32()? as usize);
                let redo = d.take(redo)?;
                let images_at = h.at.offset + (HEADER + d.position()) as u64;
                Ok(Record { seq, redo, images_at, images: d.take(images)? })
            };
            let record = record()
                .map_err(|e| StoreError::corrupt(format!("journal frame {}: {e}", h.at.frame)))?;
            if record.seq != h.first_seq + i {
                return Err(StoreError::corrupt(format!(
                    "journal frame {}: record out of order",
                    h.at.frame
                )));
            }
            each(record)?;
        }
        Ok(())
    }

    /// What is to be erased from `end` on, where the frames from `from` on end: the one there,
    /// which is torn, later ones, none of which says that it was durable, and blocks that cannot be
    /// read. `unreadable`: there is something at the end that cannot be.
    fn behind(
        &self,
        from: Position,
        end: Position,
        unreadable: Option<&StoreError>,
        notes: &mut Vec<String>,
    ) -> Result<Vec<u64>> {
        const STEP: u64 = 1 << 20;
        let mut buf = vec![0u8; STEP.min(self.size) as usize];
        let (mut later, mut bad) = (BTreeSet::new(), BTreeSet::new());
        // A later frame that one read does not show would be left to seem to follow another.
        for anew in [false, true] {
            for at in (0..self.size).step_by(STEP as usize) {
                let n = (self.size - at).min(STEP) as usize;
                let part = &mut buf[..n];
                if self.read_part(part, at, anew).is_ok() {
                    self.later_frames(part, at, end, &mut later)?;
                    continue;
                }
                for (i, block) in part.chunks_mut(FRAME_ALIGN as usize).enumerate() {
                    let at = at + i as u64 * FRAME_ALIGN;
                    match self.read_part(block, at, true) {
                        Ok(()) => self.later_frames(block, at, end, &mut later)?,
                        Err(e) if planted!(BadSectorRefused) => return Err(e),
                        // What counts was read before, and may be again.
                        Err(_)
                            if (at + self.size - from.offset % self.size) % self.size
                                < end.offset - from.offset => {}
                        Err(_) => drop(bad.insert(at)),
                    }
                }
            }
        }
        // The frame at the end itself, if something of it is there: it was found to be torn, and
        // must not seem whole when it is read next. A third look that finds it whole says that
        // nothing read here can be believed.
        if later.contains(&(end.offset % self.size))
            && !planted!(OneReadEndsJournal)
            && let Place::Frame(..) = self.look(end, true)
        {
            return Err(StoreError::io(
                "read",
                self.dev.name(),
                format!("frame {} reads now so, now so", end.frame),
            ));
        }
        let behind = later.iter().find(|at| **at != end.offset % self.size);
        if let (Some(e), Some(frame)) = (unreadable, behind) {
            return self.lost(format!(
                "frame {} cannot be read ({e}), but a later one, at {frame}, is whole",
                end.frame
            ));
        }
        if !bad.is_empty() {
            let (name, n) = (self.dev.name(), bad.len());
            notes.push(format!(
                "{name}: {n} blocks of the journal that hold nothing cannot be read; they are \
                    written anew"
            ));
        }
        later.append(&mut bad);
        Ok(later.into_iter().collect())
    }

    /// Notes where in `part`, which stands at `at`, frames behind `end` begin.
    fn later_frames(
        &self,
        part: &[u8],
        at: u64,
        end: Position,
        later: &mut BTreeSet<u64>,
    ) -> Result<()> {
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
                if h.at.frame > end.frame || h.at == end && !h.mark && !planted!(TornFrameKept) {
                    later.insert(h.at.offset % self.size);
                }
            }
        }
        Ok(())
    }
}
