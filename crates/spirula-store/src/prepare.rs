//! Making a new store on files or devices.
//!
//! Nothing that holds anything is overwritten unless its path is named to be; a device that
//! is in use is not overwritten at all. The superblock comes last: until it is there, there
//! is no store.

use crate::Store;
use crate::alloc::BLOCK;
use crate::device::{Aligned, BlockDevice};
use crate::error::{Result, StoreError};
use crate::io::Io;
use crate::layout::{self, Devices, JOURNAL_MIN, Plan, SIZE_MIN, refused};
use crate::paths::{Access, CREATING, Claims, StorePaths, claim, is_link, kind, open_device};
use crate::signature;
use crate::store::StoreOptions;
use crate::superblock::{HEADER, Identity, Superblock};
use rustix::fs::FileType;
use spirula_types::Uuid;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a journal if nobody says.
const JOURNAL_DEFAULT: u64 = 64 << 20;
/// Bytes of the largest journal that a device of its own is used for: more is not needed,
/// since memory for what it holds ends a checkpoint's delay first.
const JOURNAL_MAX: u64 = 1 << 30;

/// What to make a store of.
#[derive(Clone, Debug)]
pub struct Prepare {
    /// An OSD's directory (missing, empty, or holding links `block`, `journal`, `meta`), or
    /// an existing file or block device.
    pub path: PathBuf,
    /// A device for the journal; a missing one is made as a file.
    pub journal: Option<PathBuf>,
    /// A device for the metadata, likewise.
    pub meta: Option<PathBuf>,
    /// Bytes of data space, where a file is to be made.
    pub size: Option<u64>,
    /// Bytes of the journal ring.
    pub journal_size: Option<u64>,
    /// Bytes of the metadata device, where a file is to be made.
    pub meta_size: Option<u64>,
    /// Whose store it will be.
    pub identity: Identity,
    /// Paths of devices that may be overwritten though they hold something.
    pub force: Vec<PathBuf>,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The main device.
    pub main: PathBuf,
    /// The journal's device, if it has one.
    pub journal: Option<PathBuf>,
    /// The metadata's device, if it has one.
    pub meta: Option<PathBuf>,
    /// Bytes of data space.
    pub data_size: u64,
    /// Bytes of the journal ring.
    pub journal_size: u64,
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.display().to_string();
    move |e| StoreError::io(action, path, e)
}

fn random_uuid() -> Result<Uuid> {
    use std::io::Read;
    let mut b = [0; 16];
    let mut f =
        File::open("/dev/urandom").map_err(|e| StoreError::io("open", "/dev/urandom", e))?;
    f.read_exact(&mut b).map_err(|e| StoreError::io("read", "/dev/urandom", e))?;
    Ok(Uuid::from_random(b))
}

/// Makes a file of `size` bytes. `reserve`: with its space taken at once.
fn make_file(path: &Path, size: u64, reserve: bool) -> Result<()> {
    let f = File::create_new(path).map_err(io("create", path))?;
    f.set_len(size).map_err(io("size", path))?;
    if reserve {
        // Some file systems cannot; the file then takes its space as it goes.
        let _ = rustix::fs::fallocate(&f, rustix::fs::FallocateFlags::empty(), 0, size);
    }
    f.sync_all().map_err(io("flush", path))
}

/// The same file, by whatever names.
fn same(a: &Path, b: &Path) -> bool {
    match (fs::canonicalize(a), fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

impl Prepare {
    /// Makes the store.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if a device holds something or is in use, sizes make no
    /// sense or paths are of the wrong kind: nothing was overwritten. [`StoreError::Io`].
    pub fn run(&self) -> Result<Prepared> {
        let at = self.path.display().to_string();
        if self.size.is_some_and(|s| s < SIZE_MIN)
            || self.journal_size.is_some_and(|s| s < JOURNAL_MIN)
        {
            return refused(
                at,
                format!(
                    "a store of {} bytes with a journal of {} is too small",
                    self.size.unwrap_or(SIZE_MIN),
                    self.journal_size.unwrap_or(JOURNAL_MIN)
                ),
                format!("give it at least {SIZE_MIN} and {JOURNAL_MIN} bytes"),
            );
        }
        let others = [&self.journal, &self.meta].into_iter().flatten();
        let all: Vec<&PathBuf> = others.chain([&self.path]).collect();
        if let Some(twice) = all
            .iter()
            .enumerate()
            .find_map(|(i, a)| all[..i].iter().any(|b| same(a, b)).then_some(a))
        {
            return refused(
                twice.display().to_string(),
                "is given twice, for different parts of the store",
                "give each a device of its own, or leave one out: it shares the main device then",
            );
        }
        match kind(&self.path)? {
            None | Some(FileType::Directory) => self.in_directory(),
            Some(FileType::RegularFile | FileType::BlockDevice) => self.on_device(),
            Some(_) => refused(
                at,
                "is neither a directory nor a file nor a block device",
                "give a directory (new or empty), a file or a block device",
            ),
        }
    }

    /// Main device given directly; others, if any, are remembered by path.
    fn on_device(&self) -> Result<Prepared> {
        let absolute = |p: &Option<PathBuf>| -> Result<Option<PathBuf>> {
            p.as_ref().map(|p| std::path::absolute(p).map_err(io("find", p))).transpose()
        };
        let (journal, meta) = (absolute(&self.journal)?, absolute(&self.meta)?);
        let main = self.path.clone();
        let mut created = Vec::new();
        let made = self.format(
            Prepared { main, journal, meta, data_size: 0, journal_size: 0 },
            true,
            &mut created,
        );
        made.inspect_err(|e| undo(e, &created))
    }

    fn in_directory(&self) -> Result<Prepared> {
        let dir = &self.path;
        let new = kind(dir)?.is_none();
        fs::create_dir_all(dir).map_err(io("create", dir))?;
        let marker = dir.join(CREATING);
        let path = |name: &str| dir.join(name);
        if marker.exists() {
            // What an interrupted creation has made, but no device it was to use.
            for name in ["block", "journal", "meta"] {
                let p = path(name);
                if !is_link(&p) && p.exists() {
                    fs::remove_file(&p).map_err(io("remove", &p))?;
                }
            }
        } else {
            for entry in fs::read_dir(dir).map_err(io("list", dir))? {
                let entry = entry.map_err(io("list", dir))?;
                let name = entry.file_name();
                let known = ["block", "journal", "meta"].iter().any(|n| name == *n);
                if !known || !is_link(&entry.path()) {
                    return refused(
                        dir.display().to_string(),
                        format!("is not empty: it holds '{}'", name.display()),
                        "choose another directory, or empty this one if nothing in it is needed",
                    );
                }
            }
        }
        File::create(&marker).map_err(io("create", &marker))?;
        let mut created = vec![marker.clone()];
        let made = self.fill_directory(&mut created).inspect_err(|e| {
            undo(e, &created);
            if new && matches!(e, StoreError::Refused { .. }) {
                let _ = fs::remove_dir(dir);
            }
        })?;
        let sync = || -> std::io::Result<()> {
            File::open(dir)?.sync_all()?;
            fs::remove_file(&marker)?;
            File::open(dir)?.sync_all()
        };
        sync().map_err(io("flush", dir))?;
        Ok(made)
    }

    fn fill_directory(&self, created: &mut Vec<PathBuf>) -> Result<Prepared> {
        let dir = &self.path;
        let path = |name: &str| dir.join(name);
        let mut journal_size = self.journal_size;
        let own_file = kind(&path("block"))? != Some(FileType::BlockDevice);
        // A given device is linked into the directory.
        for (given, name) in [(&self.journal, "journal"), (&self.meta, "meta")] {
            let Some(given) = given else { continue };
            let link = path(name);
            let target = std::path::absolute(given).map_err(io("find", given))?;
            if is_link(&link) {
                if same(&link, &target) {
                    continue;
                }
                return refused(
                    link.display().to_string(),
                    format!("links to another device than {}", target.display()),
                    "remove the link or leave the option out",
                );
            }
            symlink(&target, &link).map_err(io("link", &link))?;
            created.push(link);
        }
        if kind(&path("block"))?.is_none() {
            if is_link(&path("block")) {
                return refused(
                    path("block").display().to_string(),
                    "links to a device that is missing",
                    "connect the device, or correct the link",
                );
            }
            let Some(size) = self.size else {
                return refused(
                    path("block").display().to_string(),
                    "is to be made, but of which size?",
                    "give --size, or a block device as PATH",
                );
            };
            make_file(&path("block"), HEADER + size / BLOCK * BLOCK, false)?;
            created.push(path("block"));
        }
        let mut journal = is_link(&path("journal")).then(|| path("journal"));
        if journal.is_none() && own_file {
            // On a file system a sync of the journal waits for whatever else changed in its
            // file: it gets one of its own.
            let ring = journal_size.unwrap_or(JOURNAL_DEFAULT) / BLOCK * BLOCK;
            journal_size = Some(ring);
            make_file(&path("journal"), HEADER + ring, true)?;
            created.push(path("journal"));
            journal = Some(path("journal"));
        }
        let meta = is_link(&path("meta")).then(|| path("meta"));
        let plan = Prepared {
            main: path("block"),
            journal,
            meta,
            data_size: 0,
            journal_size: journal_size.unwrap_or(0),
        };
        let made = self.format(plan, false, created)?;
        Ok(made)
    }

    /// Makes missing files of extra devices, checks that nothing of value is overwritten, and
    /// writes labels.
    fn format(
        &self,
        mut made: Prepared,
        hints: bool,
        created: &mut Vec<PathBuf>,
    ) -> Result<Prepared> {
        let known_ring = self.journal_size.or((made.journal_size > 0).then_some(made.journal_size));
        for (p, size, what) in [
            (
                &made.journal,
                known_ring.unwrap_or(JOURNAL_DEFAULT) / BLOCK * BLOCK,
                "--journal-size",
            ),
            (&made.meta, self.meta_size.unwrap_or(0) / BLOCK * BLOCK, "--meta-size"),
        ] {
            let Some(p) = p else { continue };
            let target = fs::read_link(p).unwrap_or_else(|_| p.clone());
            if kind(&target)?.is_none() {
                if size == 0 {
                    return refused(
                        target.display().to_string(),
                        "is missing",
                        format!("make it, or give {what}"),
                    );
                }
                make_file(&target, HEADER + size, true)?;
                created.push(target);
            }
        }
        let mut claims: Claims = Vec::new();
        let mut open = |p: &Path| -> Result<Arc<dyn BlockDevice>> {
            let k = kind(p)?;
            if !matches!(k, Some(FileType::RegularFile | FileType::BlockDevice)) {
                return refused(
                    p.display().to_string(),
                    "is neither a file nor a block device",
                    "give one of these",
                );
            }
            claims.push(claim(p, Access::Write)?);
            let dev = open_device(p, Access::Write, Io::Threads)?;
            let forced = self.force.iter().any(|f| same(f, p));
            match signature::find(&*dev)? {
                Some(what) if !forced => refused(
                    p.display().to_string(),
                    format!("holds {what}"),
                    format!(
                        "choose another device, or, if nothing on it is needed, add --force {}",
                        fs::read_link(p).unwrap_or_else(|_| p.to_owned()).display()
                    ),
                ),
                _ => Ok(dev),
            }
        };
        let main = open(&made.main)?;
        let journal = made.journal.as_deref().map(&mut open).transpose()?;
        let meta = made.meta.as_deref().map(&mut open).transpose()?;
        // All have been looked at: from here on they are written.
        for (dev, path) in [
            (Some(&main), Some(&made.main)),
            (journal.as_ref(), made.journal.as_ref()),
            (meta.as_ref(), made.meta.as_ref()),
        ] {
            if let (Some(dev), Some(path)) = (dev, path)
                && self.force.iter().any(|f| same(f, path))
            {
                wipe_ends(&**dev)?;
            }
        }
        let size_of =
            |d: &Arc<dyn BlockDevice>| d.size().map_err(|e| StoreError::io("size", d.name(), e));
        let ring = match (known_ring, &journal) {
            (Some(ring), _) => ring,
            (None, Some(dev)) => size_of(dev)?.saturating_sub(HEADER).min(JOURNAL_MAX),
            (None, None) => JOURNAL_DEFAULT.min(size_of(&main)? / 8),
        } / BLOCK
            * BLOCK;
        let hint = |p: &Option<PathBuf>| -> String {
            p.as_ref().filter(|_| hints).map_or_else(String::new, |p| p.display().to_string())
        };
        let plan = Plan {
            identity: self.identity,
            store_uuid: random_uuid()?,
            device_uuids: [random_uuid()?, random_uuid()?, random_uuid()?],
            journal_size: ring,
            journal_hint: hint(&made.journal),
            meta_hint: hint(&made.meta),
        };
        let devs = Devices { main, journal, meta };
        made.data_size = layout::format(&devs, &plan)?;
        made.journal_size = ring;
        Ok(made)
    }
}

/// Removes what was made for a store that was then refused. After other errors it stays, to
/// be looked at: the directory says that its creation was interrupted.
fn undo(e: &StoreError, created: &[PathBuf]) {
    if matches!(e, StoreError::Refused { .. }) {
        for p in created.iter().rev() {
            let _ = fs::remove_file(p);
        }
    }
}

/// Overwrites what would make others take the device for what it was.
fn wipe_ends(dev: &dyn BlockDevice) -> Result<()> {
    let size = dev.size().map_err(|e| StoreError::io("size", dev.name(), e))?;
    let n = size.min(signature::ENDS);
    let zeros = Aligned::new(n as usize);
    for at in [0, size - n] {
        dev.write_at(&[zeros.as_ref()], at).map_err(|e| StoreError::io("write", dev.name(), e))?;
    }
    dev.flush().map_err(|e| StoreError::io("flush", dev.name(), e))
}

/// Makes the main file of a store that is not in use larger, so that there are `size` bytes
/// for data. The next opening uses them.
///
/// # Errors
/// [`StoreError::Refused`] if the main device is no file, or would become smaller.
pub fn extend(path: &Path, size: u64) -> Result<()> {
    let paths = StorePaths::find(path)?;
    let file = claim(&paths.main, Access::Write)?;
    let at = paths.main.display().to_string();
    if kind(&paths.main)? != Some(FileType::RegularFile) {
        return refused(at, "is a block device: its size is what it is", "leave --size out");
    }
    let sb = Superblock::read(&*open_device(&paths.main, Access::Shielded, Io::Threads)?)?;
    if size < sb.data_size {
        return refused(
            at,
            format!("has {} bytes for data already", sb.data_size),
            "a store cannot be made smaller; give a larger --size",
        );
    }
    let len = sb.data_offset + size / BLOCK * BLOCK;
    file.set_len(len).and_then(|()| file.sync_all()).map_err(io("size", &paths.main))
}

impl Store {
    /// Makes a new store in a directory of files, which must be missing or empty (or the
    /// rest of a creation that was interrupted). [`Prepare`] can do more.
    ///
    /// # Errors
    /// As [`Prepare::run`].
    pub fn create(
        dir: &Path,
        fsid: Uuid,
        osd_uuid: Uuid,
        osd_id: i32,
        opts: &StoreOptions,
    ) -> Result<()> {
        let prepare = Prepare {
            path: dir.to_owned(),
            journal: None,
            meta: None,
            size: Some(opts.size),
            journal_size: Some(opts.journal_size),
            meta_size: None,
            identity: Identity { fsid, osd_uuid, osd_id },
            force: Vec::new(),
        };
        prepare.run().map(|_| ())
    }
}
