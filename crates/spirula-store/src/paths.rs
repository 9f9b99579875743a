//! Where the devices of a store are: an OSD's directory with `block`, `journal` and `meta`
//! (files, or links to devices), or the main device itself, which then knows where the
//! others were.
//!
//! A device in use by somebody else (an open store, a mount, a volume manager) is refused.

use crate::device::{BlockDevice, FileDevice};
use crate::error::{Result, StoreError};
use crate::io::Io;
use crate::layout::{Devices, check_identity, refused};
use crate::superblock::{Identity, Role, Superblock};
use crate::view::Shield;
use rustix::fs::{FileType, FlockOperation, OFlags};
use spirula_types::Uuid;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Aligned reads and writes of at least this many bytes bypass the page cache.
const DIRECT_MIN: usize = 64 << 10;
/// How long to wait for a device that somebody else has.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Marks a directory whose creation has not finished.
pub(crate) const CREATING: &str = "creating";

/// Paths of a store's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePaths {
    /// The main device.
    pub main: PathBuf,
    /// The journal's device, if the store's owner or directory names one.
    pub journal: Option<PathBuf>,
    /// The metadata's device, likewise.
    pub meta: Option<PathBuf>,
}

/// What a store's main device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whose it is.
    pub identity: Identity,
    /// Names the store; new with each creation.
    pub store: Uuid,
    /// How often it has been opened: an old copy says fewer times.
    pub openings: u64,
}

/// Locks on devices; released when dropped.
pub(crate) type Claims = Vec<File>;

/// How to open devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// For good.
    Write,
    /// Every write stays in memory; the files are not even opened for writing.
    Shielded,
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.display().to_string();
    move |e| StoreError::io(action, path, e)
}

/// Kind of what is at `path`, links followed; `None` if there is nothing.
pub(crate) fn kind(path: &Path) -> Result<Option<FileType>> {
    match fs::metadata(path) {
        Ok(m) => Ok(Some(FileType::from_raw_mode(std::os::unix::fs::MetadataExt::mode(&m)))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io("look at", path)(e)),
    }
}

/// True for a link, also one to nothing.
pub(crate) fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink())
}

/// Takes a device for this process alone.
pub(crate) fn claim(path: &Path, access: Access) -> Result<File> {
    let found = kind(path)?;
    if !matches!(found, None | Some(FileType::RegularFile | FileType::BlockDevice)) {
        // A pipe would keep us waiting for somebody at its other end.
        return refused(
            path.display().to_string(),
            "is neither a file nor a block device",
            "give a file or a block device",
        );
    }
    let block = found == Some(FileType::BlockDevice);
    let mut options = OpenOptions::new();
    options.read(true).write(access == Access::Write);
    if block {
        // The kernel grants it to one holder, of which a mount is one.
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
    let at = path.display().to_string();
    let file = match options.open(path) {
        Ok(f) => f,
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            return refused(
                at,
                "is mounted, part of a volume, or in use by another process",
                "stop what uses it first, or choose another device",
            );
        }
        Err(e) => return Err(io("open", path)(e)),
    };
    // One that was killed lets go when the kernel has finished its writes.
    let begun = Instant::now();
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > PATIENCE {
            return refused(at, "is in use by another process", "stop that one first");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

pub(crate) fn open_device(path: &Path, access: Access, way: Io) -> Result<Arc<dyn BlockDevice>> {
    Ok(match access {
        Access::Write => {
            Arc::new(FileDevice::open(path, DIRECT_MIN, way).map_err(io("open", path))?)
        }
        Access::Shielded => Arc::new(Shield::new(Arc::new(
            FileDevice::open_read_only(path).map_err(io("open", path))?,
        ))),
    })
}

impl StorePaths {
    /// Finds the devices of the store at `path`, an OSD's directory or a main device.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if there is nothing that could be a store.
    pub fn find(path: &Path) -> Result<Self> {
        let at = path.display().to_string();
        match kind(path)? {
            None => {
                refused(at, "is missing", "check the path; 'spirula osd prepare' makes a new store")
            }
            Some(FileType::Directory) => Self::in_directory(path),
            Some(FileType::RegularFile | FileType::BlockDevice) => {
                Ok(Self { main: path.to_owned(), journal: None, meta: None })
            }
            Some(_) => refused(
                at,
                "is neither a directory nor a file nor a block device",
                "give an OSD's directory or its main device",
            ),
        }
    }

    /// What the main device says of itself. Nothing is written, and nobody kept out.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if that is no store of this format, [`StoreError::Io`].
    pub fn known(&self) -> Result<Known> {
        drop(claim(&self.main, Access::Shielded)?);
        let label =
            Superblock::read(&*open_device(&self.main, Access::Shielded, Io::Threads)?)?.label;
        Ok(Known { identity: label.identity, store: label.store_uuid, openings: label.mounts })
    }

    /// Where the main device, the journal and the metadata are, those too that the main device
    /// alone knows of. Nothing is written, and nobody kept out.
    ///
    /// # Errors
    /// As of [`StorePaths::known`].
    pub fn all(&self) -> Result<Vec<PathBuf>> {
        let sb = Superblock::read(&*open_device(&self.main, Access::Shielded, Io::Threads)?)?;
        let hint = |hint: &String| (!hint.is_empty()).then(|| PathBuf::from(hint));
        let journal = self.journal.clone().or_else(|| hint(&sb.journal_hint));
        let meta = self.meta.clone().or_else(|| hint(&sb.meta_hint));
        Ok(std::iter::once(self.main.clone()).chain(journal).chain(meta).collect())
    }

    fn in_directory(dir: &Path) -> Result<Self> {
        let main = dir.join("block");
        if kind(&main)?.is_none() {
            let at = main.display().to_string();
            if dir.join(CREATING).exists() {
                return refused(at, "is missing", "its creation was interrupted: create it again");
            }
            if is_link(&main) {
                let to = fs::read_link(&main).map_err(io("read", &main))?;
                return refused(
                    at,
                    format!("links to {}, which is missing", to.display()),
                    "connect the device, or correct the link",
                );
            }
            return refused(
                at,
                "is missing: this directory holds no store",
                "check the path; if this was a store, recreate the OSD and let the cluster recover \
                    it",
            );
        }
        if dir.join("superblock").exists() {
            return refused(
                dir.display().to_string(),
                "is a store of format 1, of a development version; this program knows format 2",
                "use the program that wrote it, or recreate the OSD and let the cluster recover it",
            );
        }
        let beside = |name: &str| -> Option<PathBuf> {
            let p = dir.join(name);
            (is_link(&p) || p.exists()).then_some(p)
        };
        Ok(Self { main, journal: beside("journal"), meta: beside("meta") })
    }

    /// Locks and opens the devices, after a look at whose they are.
    pub(crate) fn open(
        &self,
        expected: Option<Identity>,
        access: Access,
        way: Io,
    ) -> Result<(Devices, Claims)> {
        let mut claims = vec![claim(&self.main, access)?];
        let main = open_device(&self.main, access, way)?;
        let sb = Superblock::read(&*main)?;
        check_identity(&sb.label.identity, main.name(), expected)?;
        let mut device = |role: Role, uuid, given: &Option<PathBuf>, hint: &str| -> Result<_> {
            if uuid == sb.label.device_uuid {
                return Ok(None);
            }
            let hint = (!hint.is_empty()).then(|| PathBuf::from(hint));
            let Some(path) = given.clone().or(hint) else { return Ok(None) };
            if kind(&path)?.is_none() {
                return refused(
                    path.display().to_string(),
                    format!(
                        "is missing: it is the {} of osd.{} ({uuid})",
                        role.name(),
                        sb.label.identity.osd_id
                    ),
                    "connect it, or correct the path; if it is lost, so is part of this store: \
                     replace the OSD and let the cluster recover it",
                );
            }
            claims.push(claim(&path, access)?);
            open_device(&path, access, way).map(Some)
        };
        let journal = device(Role::Journal, sb.journal_device, &self.journal, &sb.journal_hint)?;
        let meta = device(Role::Meta, sb.meta_device, &self.meta, &sb.meta_hint)?;
        Ok((Devices { main, journal, meta }, claims))
    }
}
