//! The superblock: who this store is and what its journal and KV must at least hold.
//!
//! Two copies of 4 KiB, written in turn; the valid one of the higher generation counts.
//! Layout in `docs/formats/store.md`.

use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use spirula_encoding::{Decoder, Encoder, crc::crc32c};
use spirula_types::Uuid;

/// First bytes of every superblock copy.
const MAGIC: &[u8; 8] = b"SPIRSTOR";
/// Format written. Readers refuse any other: 1 was never released.
pub(crate) const VERSION: u16 = 2;
/// Feature bits that a reader must know to open the store at all.
const KNOWN_FEATURES: u64 = 0;
/// Size of one copy.
pub(crate) const COPY: usize = 4096;

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

/// Contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub identity: Identity,
    /// Names this store in its journal; new with each creation.
    pub store_uuid: Uuid,
    /// Bytes of the data file.
    pub block_size: u64,
    /// Bytes of the journal ring.
    pub journal_size: u64,
    /// Rises with each write.
    pub generation: u64,
    /// The KV holds at least the checkpoint of this transaction.
    pub checkpoint: u64,
    /// Closed properly: everything is in the KV.
    pub clean: bool,
}

impl Superblock {
    fn encode(&self) -> Vec<u8> {
        let mut o = Encoder::with_capacity(COPY);
        o.raw(MAGIC);
        o.u16(VERSION);
        o.u16(0);
        o.u64(KNOWN_FEATURES);
        o.put(&self.identity.fsid);
        o.put(&self.identity.osd_uuid);
        o.i32(self.identity.osd_id);
        o.put(&self.store_uuid);
        o.u64(self.block_size);
        o.u64(self.journal_size);
        o.u64(self.generation);
        o.u64(self.checkpoint);
        o.bool(self.clean);
        o.zeros(COPY - 4 - o.len());
        let crc = crc32c(u32::MAX, o.as_slice());
        o.u32(crc);
        o.into_vec()
    }

    /// `Ok(None)`: not a (whole) superblock. `Err`: one that we must not touch.
    fn decode(copy: &[u8], file: &str) -> Result<Option<Self>> {
        let (Some(body), Some(crc)) = (copy.get(..COPY - 4), copy.last_chunk::<4>()) else { return Ok(None) };
        if !body.starts_with(MAGIC) || crc32c(u32::MAX, body) != u32::from_le_bytes(*crc) {
            return Ok(None);
        }
        let mut d = Decoder::new(body.get(8..).unwrap_or_default());
        let parse = |d: &mut Decoder<'_>| -> Result<(u16, u64), spirula_encoding::DecodeError> {
            let version = d.u16()?;
            d.u16()?;
            Ok((version, d.u64()?))
        };
        let (version, features) = parse(&mut d).map_err(StoreError::corrupt)?;
        if version != VERSION || features & !KNOWN_FEATURES != 0 {
            return Err(StoreError::Refused {
                file: file.to_owned(),
                why: format!(
                    "is a store of format {version}, features {features:#x}; this program knows format {VERSION}, features {KNOWN_FEATURES:#x}"
                ),
                advice: if version < VERSION {
                    "that was an unreleased format; create the OSD anew and let the cluster recover it".into()
                } else {
                    "use the newer program that wrote it".into()
                },
            });
        }
        let body = |d: &mut Decoder<'_>| -> Result<Self, spirula_encoding::DecodeError> {
            Ok(Self {
                identity: Identity { fsid: d.get()?, osd_uuid: d.get()?, osd_id: d.i32()? },
                store_uuid: d.get()?,
                block_size: d.u64()?,
                journal_size: d.u64()?,
                generation: d.u64()?,
                checkpoint: d.u64()?,
                clean: d.bool()?,
            })
        };
        body(&mut d).map(Some).map_err(StoreError::corrupt)
    }

    /// Reads the newest valid copy.
    pub fn read(dev: &dyn BlockDevice) -> Result<Self> {
        let fail = |e| StoreError::io("read", dev.name(), e);
        let size = dev.size().map_err(fail)?;
        let mut newest: Option<Self> = None;
        for slot in 0..2u64 {
            if size < (slot + 1) * COPY as u64 {
                continue;
            }
            let mut copy = vec![0; COPY];
            dev.read_at(&mut copy, slot * COPY as u64).map_err(fail)?;
            if let Some(sb) = Self::decode(&copy, dev.name())?
                && newest.as_ref().is_none_or(|n| n.generation < sb.generation)
            {
                newest = Some(sb);
            }
        }
        newest.ok_or_else(|| StoreError::Refused {
            file: dev.name().to_owned(),
            why: "holds no valid superblock: this is no store, or it is damaged".into(),
            advice: "check the path; if this was a store, restore the file from a copy or recreate the OSD".into(),
        })
    }

    /// Writes this over the older copy, as the next generation, durably.
    pub fn write(&mut self, dev: &dyn BlockDevice) -> Result<()> {
        self.generation += 1;
        let slot = (self.generation % 2) * COPY as u64;
        dev.write_at(&[&self.encode()], slot).map_err(|e| StoreError::io("write", dev.name(), e))?;
        dev.flush().map_err(|e| StoreError::io("flush", dev.name(), e))
    }
}
