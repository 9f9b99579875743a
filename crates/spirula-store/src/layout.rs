//! Which devices a store has, which part of them is for what, and whether they belong
//! together.
//!
//! The main device holds labels, the journal unless it has a device of its own, and data up
//! to its end. Other devices hold labels and what they are for. [`Layout::read`] only
//! reads; [`Layout::mount`] notes the opening on every device.

use crate::alloc::BLOCK;
use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use crate::journal::Position;
use crate::superblock::{HEADER, Identity, Label, Role, Superblock};
use crate::view::Region;
use bytes::Bytes;
use spirula_types::Uuid;
use std::sync::Arc;

/// Smallest journal, bytes.
pub(crate) const JOURNAL_MIN: u64 = 256 << 10;
/// Smallest device for metadata, bytes beside the label: a third of it is kept for commits.
pub(crate) const META_MIN: u64 = 2 << 20;
/// Smallest data space, bytes.
pub(crate) const SIZE_MIN: u64 = 256 << 10;

/// The devices of one store.
#[derive(Clone)]
pub struct Devices {
    /// Superblock and data, and what has no device of its own.
    pub main: Arc<dyn BlockDevice>,
    /// `None`: part of the main device.
    pub journal: Option<Arc<dyn BlockDevice>>,
    /// `None`: part of the main device.
    pub meta: Option<Arc<dyn BlockDevice>>,
}

/// What a new store shall be.
pub(crate) struct Plan {
    pub identity: Identity,
    pub store_uuid: Uuid,
    /// Names for the main, journal and metadata device.
    pub device_uuids: [Uuid; 3],
    /// Bytes of the journal ring.
    pub journal_size: u64,
    pub journal_hint: String,
    pub meta_hint: String,
}

/// A store's devices, found to belong together.
pub(crate) struct Layout {
    pub superblock: Superblock,
    pub main: Arc<dyn BlockDevice>,
    /// The ring.
    pub journal: Arc<dyn BlockDevice>,
    /// The data space.
    pub block: Arc<dyn BlockDevice>,
    /// The metadata device's space, if it has one.
    pub meta: Option<Arc<dyn BlockDevice>>,
    /// Bytes by which the data space has grown since the last opening.
    pub grown: u64,
    /// Damage that does no harm, in words.
    pub notes: Vec<String>,
    others: Vec<(Label, Arc<dyn BlockDevice>)>,
}

pub(crate) fn refused<T>(
    file: impl Into<String>,
    why: impl Into<String>,
    advice: impl Into<String>,
) -> Result<T> {
    Err(StoreError::Refused { file: file.into(), why: why.into(), advice: advice.into() })
}

const REPLACE: &str = "do not trust this device; replace the OSD and let the cluster recover it";
const WHICH: &str = "check which device belongs to which OSD";

fn size_of(dev: &dyn BlockDevice) -> Result<u64> {
    dev.size().map_err(|e| StoreError::io("size", dev.name(), e))
}

/// Bytes of data space on a main device of `size` bytes where data begins at `offset`.
fn data_space(size: u64, offset: u64) -> u64 {
    size.saturating_sub(offset) / BLOCK * BLOCK
}

/// Writes the labels and the superblock of a new store. Returns the bytes of data space.
///
/// # Errors
/// [`StoreError::Refused`] if a device is too small, [`StoreError::Io`].
pub(crate) fn format(devs: &Devices, plan: &Plan) -> Result<u64> {
    let [main_uuid, journal_uuid, meta_uuid] = plan.device_uuids;
    let label = |role, device_uuid, size| Label {
        role,
        identity: plan.identity,
        store_uuid: plan.store_uuid,
        device_uuid,
        size,
        mounts: 0,
        generation: 0,
        confirmed: false,
        good: 0,
        damaged: false,
    };
    let journal_size = plan.journal_size / BLOCK * BLOCK;
    if journal_size < JOURNAL_MIN {
        return refused(
            devs.journal.as_ref().unwrap_or(&devs.main).name(),
            format!("has room for a journal of {journal_size} bytes, which is too small"),
            format!("give the journal at least {JOURNAL_MIN} bytes"),
        );
    }
    let main_size = size_of(&*devs.main)?;
    let (journal_device, data_offset) = match &devs.journal {
        Some(_) => (journal_uuid, HEADER),
        None => (main_uuid, HEADER + journal_size),
    };
    let data_size = data_space(main_size, data_offset);
    if data_size < SIZE_MIN {
        return refused(
            devs.main.name(),
            format!("has {main_size} bytes, of which {data_size} would be left for data"),
            format!("give it at least {} bytes", data_offset + SIZE_MIN),
        );
    }
    // Everything is looked at before anything is written.
    let meta_size = devs.meta.as_ref().map_or(Ok(HEADER + META_MIN), |dev| size_of(&**dev))?;
    if let Some(dev) = &devs.meta
        && meta_size < HEADER + META_MIN
    {
        return refused(
            dev.name(),
            format!("has {meta_size} bytes, which is too small for metadata"),
            format!("give it at least {} bytes", HEADER + META_MIN),
        );
    }
    if let Some(dev) = &devs.journal {
        let size = size_of(&**dev)?;
        if size < HEADER + journal_size {
            return refused(
                dev.name(),
                format!("has {size} bytes, the journal needs {}", HEADER + journal_size),
                "give it a larger device",
            );
        }
        label(Role::Journal, journal_uuid, HEADER + journal_size).write(&**dev)?;
    }
    if let Some(dev) = &devs.meta {
        label(Role::Meta, meta_uuid, meta_size / BLOCK * BLOCK).write(&**dev)?;
    }
    let mut sb = Superblock {
        label: label(Role::Main, main_uuid, data_offset + data_size),
        journal_device,
        journal_offset: HEADER,
        journal_size,
        meta_device: if devs.meta.is_some() { meta_uuid } else { main_uuid },
        data_offset,
        data_size,
        checkpoint: 0,
        journaled: Position::default(),
        clean: true,
        journal_hint: plan.journal_hint.clone(),
        meta_hint: plan.meta_hint.clone(),
        root: Bytes::new(),
    };
    sb.write(&*devs.main)?;
    Ok(data_size)
}

/// Refuses a store that is not the expected one.
pub(crate) fn check_identity(i: &Identity, file: &str, expected: Option<Identity>) -> Result<()> {
    let Some(e) = expected else { return Ok(()) };
    let advice = "check which directory or device belongs to which OSD";
    if i.fsid != e.fsid {
        return refused(file, format!("belongs to cluster {}, not {}", i.fsid, e.fsid), advice);
    }
    if i.osd_id != e.osd_id {
        return refused(file, format!("belongs to osd.{}, not osd.{}", i.osd_id, e.osd_id), advice);
    }
    if i.osd_uuid != e.osd_uuid {
        return refused(
            file,
            format!("belongs to an osd.{} of uuid {}, not {}", i.osd_id, i.osd_uuid, e.osd_uuid),
            advice,
        );
    }
    Ok(())
}

fn check_size(dev: &dyn BlockDevice, needed: u64, says: &str) -> Result<u64> {
    let size = size_of(dev)?;
    if size < needed {
        return refused(
            dev.name(),
            format!("has {size} bytes, {says} says {needed}"),
            "something cut it: make it as large as it was if nothing but its size was changed; \
             else replace the OSD and let the cluster recover it",
        );
    }
    Ok(size)
}

/// The label of the journal or metadata device, if it is the one the superblock names.
fn other(sb: &Superblock, role: Role, wanted: Uuid, dev: &Arc<dyn BlockDevice>) -> Result<Label> {
    let label = Label::read(&**dev)?;
    let main = &sb.label;
    if label.role != role || label.store_uuid != main.store_uuid || label.device_uuid != wanted {
        return refused(
            dev.name(),
            format!(
                "is {}, not {} {wanted}",
                label.describe(),
                Label { role, ..main.clone() }.describe()
            ),
            WHICH,
        );
    }
    // Other devices are told of an opening before the main device is.
    if label.mounts < main.mounts {
        return refused(
            dev.name(),
            format!(
                "was last used when the store was opened for the {}. time, the main device for the \
                    {}. time: \
                 this is an old copy of the {}",
                label.mounts,
                main.mounts,
                role.name()
            ),
            "give the current device; if it is lost, replace the OSD and let the cluster recover \
                it",
        );
    }
    // It was told again when the main device knew: one that does not was put back.
    let ahead = u64::from(!label.confirmed || planted!(OldMainBelieved));
    if label.mounts > main.mounts + ahead {
        return refused(
            dev.name(),
            format!(
                "was last used when the store was opened for the {}. time, the main device for the \
                    {}. time: \
                 the main device is an old copy, or lost writes it had acknowledged",
                label.mounts, main.mounts
            ),
            REPLACE,
        );
    }
    check_size(&**dev, label.size, "its label")?;
    Ok(label)
}

impl Layout {
    /// Reads labels and superblock and checks that the devices are whole and belong
    /// together. Writes nothing.
    pub fn read(devs: &Devices, expected: Option<Identity>) -> Result<Self> {
        let mut sb = Superblock::read(&*devs.main)?;
        check_identity(&sb.label.identity, devs.main.name(), expected)?;
        let size = check_size(&*devs.main, sb.label.size, "the superblock")?;
        let journal_inside = sb.journal_device == sb.label.device_uuid;
        let journal_end = sb.journal_offset.checked_add(sb.journal_size);
        let sound = sb.journal_size >= JOURNAL_MIN
            && sb.journal_size.is_multiple_of(BLOCK)
            && sb.journal_offset >= HEADER
            && journal_end.is_some_and(|end| !journal_inside || end <= sb.data_offset)
            && sb.data_offset >= HEADER
            && sb.data_size >= BLOCK
            && sb.data_size.is_multiple_of(BLOCK)
            && sb.data_offset.checked_add(sb.data_size) == Some(sb.label.size);
        if !sound {
            return Err(StoreError::corrupt("superblock gives the store an impossible layout"));
        }
        let mut others = Vec::new();
        let journal: Arc<dyn BlockDevice> = if journal_inside {
            Arc::new(Region::new(devs.main.clone(), sb.journal_offset, sb.journal_size, "journal"))
        } else {
            let Some(dev) = &devs.journal else {
                return missing(&sb, Role::Journal, devs.main.name());
            };
            let label = other(&sb, Role::Journal, sb.journal_device, dev)?;
            if journal_end.is_none_or(|end| end > label.size) {
                return Err(StoreError::corrupt(
                    "superblock has the journal end behind its device",
                ));
            }
            others.push((label, dev.clone()));
            Arc::new(Region::new(dev.clone(), sb.journal_offset, sb.journal_size, "journal"))
        };
        let meta = if sb.meta_device == sb.label.device_uuid {
            None
        } else {
            let Some(dev) = &devs.meta else { return missing(&sb, Role::Meta, devs.main.name()) };
            let mut label = other(&sb, Role::Meta, sb.meta_device, dev)?;
            label.size = size_of(&**dev)? / BLOCK * BLOCK;
            let region: Arc<dyn BlockDevice> = Arc::new(Region::new(
                dev.clone(),
                HEADER,
                label.size.saturating_sub(HEADER),
                "metadata",
            ));
            others.push((label, dev.clone()));
            Some(region)
        };
        let data_size = data_space(size, sb.data_offset);
        let grown = data_size - sb.data_size;
        sb.data_size = data_size;
        sb.label.size = sb.data_offset + data_size;
        let block = Arc::new(Region::new(devs.main.clone(), sb.data_offset, data_size, "data"));
        let labels = others.iter().map(|(l, d)| (l, d)).chain([(&sb.label, &devs.main)]);
        let notes = labels.filter(|(l, _)| l.damaged).map(|(l, dev)| {
            format!(
                "{}: one of two copies of the label of the {} is damaged, by rot or by a crash \
                    while it was \
                 written; opening the store for work writes it anew",
                dev.name(),
                l.role.name()
            )
        });
        let notes = notes.collect();
        Ok(Self {
            notes,
            superblock: sb,
            main: devs.main.clone(),
            journal,
            block,
            meta,
            grown,
            others,
        })
    }

    /// Notes on all devices that the store is opened for writing. Its journal ends at
    /// `journaled`.
    pub fn mount(&mut self, journaled: Position) -> Result<()> {
        let sb = &mut self.superblock;
        if self.grown > 0 {
            tracing::info!(
                device = self.main.name(),
                grown = self.grown,
                data = sb.data_size,
                "device has grown"
            );
        }
        self.notes.iter().for_each(|n| tracing::warn!("{n}"));
        sb.label.mounts += 1;
        for (label, dev) in &mut self.others {
            (label.mounts, label.confirmed) = (sb.label.mounts, false);
            label.write(&**dev)?;
        }
        sb.clean = false;
        sb.journaled = journaled;
        sb.write(&*self.main)?;
        // Nothing is written in this opening before the other devices know that the main one
        // knows of it: should it forget, it is found out however little has happened since.
        for (label, dev) in &mut self.others {
            label.confirmed = true;
            label.write(&**dev)?;
        }
        Ok(())
    }
}

fn missing<T>(sb: &Superblock, role: Role, main: &str) -> Result<T> {
    let (uuid, hint) = match role {
        Role::Journal => (sb.journal_device, &sb.journal_hint),
        _ => (sb.meta_device, &sb.meta_hint),
    };
    let last = if hint.is_empty() { String::new() } else { format!(", last seen at {hint}") };
    refused(
        main,
        format!(
            "the {} of osd.{} ({uuid}{last}) is missing",
            role.name(),
            sb.label.identity.osd_id
        ),
        "connect it and give its path (in an OSD's directory: link it there); if it is lost, \
         so is part of this store: replace the OSD and let the cluster recover it",
    )
}
