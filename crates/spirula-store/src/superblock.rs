//! Labels and the superblock: what a device is, whose it is, and what the store's journal
//! and metadata must at least hold.
//!
//! Every device of a store begins with a label of 4 KiB, twice: at 0 and at
//! [`COPY_STRIDE`]. The label of the main device is the superblock and has more behind the
//! common part. Both copies are the same but for a crash between their writes; the valid
//! one of the higher generation counts. Layout in `docs/formats/store.md`.

use crate::device::{Aligned, BlockDevice};
use crate::error::{Result, StoreError};
use crate::journal::Position;
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder, crc::crc32c};
use spirula_types::Uuid;

/// First bytes of every label.
pub(crate) const MAGIC: &[u8; 8] = b"SPIRSTOR";
/// Format written. Readers refuse any other: 1 was never released.
pub(crate) const VERSION: u16 = 2;
/// Feature bit: several frames of the journal may have been under way at a crash. A reader
/// that expects one would take those behind a missing one for frames that follow.
const FRAMES_OVERLAP: u64 = 1;
/// Feature bit: changes may be beside the journal, ranges of omap keys may go at once, and
/// values may have up to 128 MiB.
const LARGE_CHANGES: u64 = 2;
/// Feature bit: metadata has single blocks anywhere. A reader that expects whole chunks
/// would take data beside them for metadata's.
const META_PIECES: u64 = 4;
/// Feature bit: maps may lie over layers that other objects share. A reader that does not
/// know them would take what is below for holes.
const LAYERS: u64 = 8;
/// Feature bit: an omap may be a copy that is still to be made. A reader that does not know such
/// a change would refuse the journal as damaged.
const OMAP_COPIES: u64 = 16;
/// Feature bit: a layer may say itself whose names it knows, and an object what is below it. A
/// reader that does not know that would look for a record that is not there.
const COUPLES: u64 = 32;
/// Feature bits that a reader must know to open the store at all; all of them are set when
/// a label is written.
const KNOWN_FEATURES: u64 =
    FRAMES_OVERLAP | LARGE_CHANGES | META_PIECES | LAYERS | OMAP_COPIES | COUPLES;
/// Size of one copy.
pub(crate) const COPY: usize = 4096;
/// Distance between the two copies: one damaged spot does not reach both.
pub(crate) const COPY_STRIDE: u64 = 64 << 10;
/// Bytes at the beginning of every device that belong to labels.
pub(crate) const HEADER: u64 = 128 << 10;
/// Longest path kept as a hint, bytes.
const HINT_MAX: usize = 512;
/// Longest root of the metadata tree, bytes.
const ROOT_MAX: usize = 1024;

/// Whose store this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub fsid: Uuid,
    /// This OSD's own id.
    pub osd_uuid: Uuid,
    /// This OSD's number.
    pub osd_id: i32,
}

/// What a device is to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Superblock and data, and whatever has no device of its own.
    Main,
    /// The journal.
    Journal,
    /// The metadata.
    Meta,
}

impl Role {
    /// As messages call the device.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main device",
            Self::Journal => "journal device",
            Self::Meta => "metadata device",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Main => 1,
            Self::Journal => 2,
            Self::Meta => 3,
        }
    }

    fn of(code: u8) -> Result<Self, DecodeError> {
        match code {
            1 => Ok(Self::Main),
            2 => Ok(Self::Journal),
            3 => Ok(Self::Meta),
            c => Err(DecodeError::Value { what: "role of a device", value: i64::from(c) }),
        }
    }
}

/// The part common to all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub role: Role,
    pub identity: Identity,
    /// Names the store; new with each creation.
    pub store_uuid: Uuid,
    /// Names this device.
    pub device_uuid: Uuid,
    /// Bytes of the device in use. It may be larger, never smaller.
    pub size: u64,
    /// How often the store has been opened: an old copy of a device knows of fewer times.
    pub mounts: u64,
    /// Rises with each write of this label.
    pub generation: u64,
    /// Of another device than the main one: that knows of the last opening, too.
    pub confirmed: bool,
    /// Which copy is the good one, not kept on the device: it is written last.
    pub good: usize,
    /// The other copy was found damaged, not kept on the device either.
    pub damaged: bool,
}

/// Where the copies are.
const COPIES: [u64; 2] = [0, COPY_STRIDE];

/// The label of the main device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub label: Label,
    /// Uuid of the device that holds the journal; the main device's own if it does.
    pub journal_device: Uuid,
    /// Where the ring begins on its device, bytes.
    pub journal_offset: u64,
    /// Bytes of the ring.
    pub journal_size: u64,
    /// Uuid of the device that holds the metadata; the main device's own if it does.
    pub meta_device: Uuid,
    /// Where the data begins on the main device, bytes. It goes on to the end.
    pub data_offset: u64,
    /// Bytes of data space, whole blocks.
    pub data_size: u64,
    /// The metadata holds at least the checkpoint of this transaction.
    pub checkpoint: u64,
    /// Frames before this one were durable when this was written.
    pub journaled: Position,
    /// Closed properly: everything is in the metadata.
    pub clean: bool,
    /// Where the journal device was when last seen, if the main device has no directory.
    pub journal_hint: String,
    /// The same of the metadata device.
    pub meta_hint: String,
    /// Root of the metadata tree.
    pub root: Bytes,
}

fn refused<T>(file: &str, why: String, advice: &str) -> Result<T> {
    Err(StoreError::Refused { file: file.to_owned(), why, advice: advice.to_owned() })
}

impl Label {
    fn encode(&self, o: &mut Encoder) {
        o.raw(MAGIC);
        o.u16(VERSION);
        o.u8(self.role.code());
        o.bool(self.confirmed);
        o.u64(KNOWN_FEATURES);
        o.put(&self.identity.fsid);
        o.put(&self.identity.osd_uuid);
        o.i32(self.identity.osd_id);
        o.put(&self.store_uuid);
        o.put(&self.device_uuid);
        o.u64(self.size);
        o.u64(self.mounts);
        o.u64(self.generation);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let role = Role::of(d.u8()?)?;
        let confirmed = d.u8()? == 1;
        d.u64()?;
        Ok(Self {
            role,
            confirmed,
            identity: Identity { fsid: d.get()?, osd_uuid: d.get()?, osd_id: d.i32()? },
            store_uuid: d.get()?,
            device_uuid: d.get()?,
            size: d.u64()?,
            mounts: d.u64()?,
            generation: d.u64()?,
            good: 0,
            damaged: false,
        })
    }

    /// Reads the label of a device of any role.
    pub fn read(dev: &dyn BlockDevice) -> Result<Self> {
        newest(dev, Self::decode, |label| label)
    }

    /// Writes this over both copies, as the next generation, durably.
    pub fn write(&mut self, dev: &dyn BlockDevice) -> Result<()> {
        self.generation += 1;
        let mut o = Encoder::with_capacity(COPY);
        self.encode(&mut o);
        write_copies(dev, o, self.good)
    }

    /// "journal device of osd.3 of cluster …".
    pub fn describe(&self) -> String {
        let i = &self.identity;
        format!(
            "the {} of osd.{} of cluster {} (store {})",
            self.role.name(),
            i.osd_id,
            i.fsid,
            self.store_uuid
        )
    }
}

/// Finishes a label and writes it to both places, each durable before the next and the good
/// one last, so that a crash leaves one whole.
fn write_copies(dev: &dyn BlockDevice, mut o: Encoder, good: usize) -> Result<()> {
    o.zeros((COPY - 4).saturating_sub(o.len()));
    let crc = crc32c(u32::MAX, o.as_slice());
    o.u32(crc);
    let copy = Aligned::of(o.as_slice());
    for at in COPIES.into_iter().cycle().skip(good + 1).take(2) {
        if planted!(SuperblockCopiesTogether) {
            dev.write_at(&[copy.as_ref()], at)
                .map_err(|e| StoreError::io("write", dev.name(), e))?;
            continue;
        }
        dev.write_durable(copy.as_ref(), at).map_err(|e| StoreError::io("write", dev.name(), e))?;
    }
    Ok(())
}

/// True if this is a label of some version, whole or not.
pub(crate) fn looks_like_label(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

/// Decodes a copy up to the version. `Ok(None)`: not a (whole) label. `Err`: one that we
/// must not touch.
fn open_copy<'a>(copy: &'a [u8], file: &str) -> Result<Option<Decoder<'a>>> {
    let (Some(body), Some(crc)) = (copy.get(..COPY - 4), copy.last_chunk::<4>()) else {
        return Ok(None);
    };
    if !body.starts_with(MAGIC) || crc32c(u32::MAX, body) != u32::from_le_bytes(*crc) {
        return Ok(None);
    }
    let parse = || -> Result<(u16, u64), DecodeError> {
        let mut d = Decoder::new(body.get(8..).unwrap_or_default());
        let version = d.u16()?;
        d.u16()?;
        Ok((version, d.u64()?))
    };
    let (version, features) = parse().map_err(StoreError::corrupt)?;
    if version < VERSION {
        return refused(
            file,
            format!(
                "is a store of format {version}, of a development version; this program knows \
                    format {VERSION}"
            ),
            "that was an unreleased format; create the OSD anew and let the cluster recover it",
        );
    }
    if version > VERSION || features & !KNOWN_FEATURES != 0 {
        return refused(
            file,
            format!(
                "is a store of format {version}, features {features:#x}; this program knows format \
                    {VERSION}, features {KNOWN_FEATURES:#x}"
            ),
            "use the newer program that wrote it",
        );
    }
    Ok(Some(Decoder::new(body.get(10..).unwrap_or_default())))
}

/// The newest valid copy. `label` gives the common part of what was decoded.
fn newest<T>(
    dev: &dyn BlockDevice,
    decode: impl Fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
    label: impl Fn(&mut T) -> &mut Label,
) -> Result<T> {
    let fail = |e| StoreError::io("read", dev.name(), e);
    let size = dev.size().map_err(fail)?;
    let mut found: Option<(T, u64)> = None;
    let (mut magic, mut valid) = (false, 0);
    let mut unreadable = None;
    for (i, at) in COPIES.into_iter().enumerate() {
        if size < at + COPY as u64 {
            continue;
        }
        let mut copy = vec![0; COPY];
        // One that cannot be read is like one that is damaged: the other counts. What gives an
        // error, or no label, may give one at a second try.
        let mut read = dev.read_at(&mut copy, at);
        if read.is_err() || !looks_like_label(&copy) {
            read = dev.read_uncached(&mut copy, at);
        }
        if let Err(e) = read {
            if planted!(BadSectorRefused) {
                return Err(fail(e));
            }
            unreadable = Some(e);
            continue;
        }
        magic |= looks_like_label(&copy);
        if let Some(mut d) = open_copy(&copy, dev.name())? {
            valid += 1;
            let mut decoded = decode(&mut d).map_err(StoreError::corrupt)?;
            let own = label(&mut decoded);
            own.good = i;
            let generation = own.generation;
            if found.as_ref().is_none_or(|(_, g)| *g < generation) {
                found = Some((decoded, generation));
            }
        }
    }
    if let (None, Some(e)) = (&found, unreadable) {
        return Err(fail(e));
    }
    match found {
        Some((mut found, _)) => {
            label(&mut found).damaged = valid < COPIES.len();
            Ok(found)
        }
        None if magic => refused(
            dev.name(),
            "holds no valid superblock: both copies are damaged".to_owned(),
            "do not trust this device; replace the OSD and let the cluster recover it",
        ),
        None => refused(
            dev.name(),
            "holds no superblock: this is no spirula store".to_owned(),
            "check the path; 'spirula osd prepare' makes a new store",
        ),
    }
}

impl Superblock {
    fn encode(&self) -> Encoder {
        let mut o = Encoder::with_capacity(COPY);
        self.label.encode(&mut o);
        o.put(&self.journal_device);
        o.u64(self.journal_offset);
        o.u64(self.journal_size);
        o.put(&self.meta_device);
        o.u64(self.data_offset);
        o.u64(self.data_size);
        o.u64(self.checkpoint);
        o.u64(self.journaled.frame);
        o.u64(self.journaled.offset);
        o.bool(self.clean);
        o.blob(self.journal_hint.as_bytes());
        o.blob(self.meta_hint.as_bytes());
        o.blob(&self.root);
        o
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        fn hint(d: &mut Decoder<'_>) -> Result<String, DecodeError> {
            let b: Bytes = d.get()?;
            Ok(String::from_utf8_lossy(&b).into_owned())
        }
        Ok(Self {
            label: Label::decode(d)?,
            journal_device: d.get()?,
            journal_offset: d.u64()?,
            journal_size: d.u64()?,
            meta_device: d.get()?,
            data_offset: d.u64()?,
            data_size: d.u64()?,
            checkpoint: d.u64()?,
            journaled: Position { frame: d.u64()?, offset: d.u64()? },
            clean: d.bool()?,
            journal_hint: hint(d)?,
            meta_hint: hint(d)?,
            root: d.get()?,
        })
    }

    /// Reads the superblock of a main device.
    pub fn read(dev: &dyn BlockDevice) -> Result<Self> {
        let label = Label::read(dev)?;
        if label.role != Role::Main {
            return refused(
                dev.name(),
                format!("is {}", label.describe()),
                "give the main device or the OSD's directory here",
            );
        }
        newest(dev, Self::decode, |sb| &mut sb.label)
    }

    /// Writes this over both copies, as the next generation, durably.
    pub fn write(&mut self, dev: &dyn BlockDevice) -> Result<()> {
        for (what, size, limit) in [
            ("path of a device", self.journal_hint.len().max(self.meta_hint.len()), HINT_MAX),
            ("root of the metadata", self.root.len(), ROOT_MAX),
        ] {
            if size > limit {
                return Err(StoreError::TooLarge { what, size: size as u64, limit: limit as u64 });
            }
        }
        self.label.generation += 1;
        write_copies(dev, self.encode(), self.label.good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_reads_back_and_fits_with_everything_at_its_longest() {
        let label = Label {
            role: Role::Main,
            identity: Identity { fsid: Uuid([1; 16]), osd_uuid: Uuid([2; 16]), osd_id: 3 },
            store_uuid: Uuid([4; 16]),
            device_uuid: Uuid([5; 16]),
            size: 1 << 40,
            mounts: 9,
            generation: 77,
            confirmed: false,
            good: 0,
            damaged: false,
        };
        let sb = Superblock {
            label,
            journal_device: Uuid([6; 16]),
            journal_offset: HEADER,
            journal_size: 1 << 26,
            meta_device: Uuid([7; 16]),
            data_offset: HEADER,
            data_size: 1 << 39,
            checkpoint: 1234,
            journaled: Position { frame: 8, offset: 9 << 12 },
            clean: true,
            journal_hint: "j".repeat(HINT_MAX),
            meta_hint: "m".repeat(HINT_MAX),
            root: Bytes::from(vec![9; ROOT_MAX]),
        };
        let bytes = sb.encode().into_vec();
        assert!(bytes.len() < COPY - 4, "{}", bytes.len());
        assert_eq!(Superblock::decode(&mut Decoder::new(&bytes[10..])).unwrap(), sb);
    }
}
