//! What is on disk is for the user that runs the cluster alone.
//!
//! A monitor's store holds every key, an OSD's everybody's data. So all that this program makes is
//! closed to other users, by the umask of every process; what an earlier version, or somebody's
//! `cp`, left wider is tightened when a daemon takes its directory, and said; and `spirula status`
//! looks again. That goes for the files of an OSD's store, wherever they are; block devices are the
//! system's.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bits that let others in.
const OTHERS: u32 = 0o077;

/// Makes the process create files and directories for its own user alone. To be called before
/// anything else.
pub fn private_by_default() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(OTHERS));
}

/// By which names an OSD's directory has its store, or links to where that is.
const STORE: [&str; 3] = ["block", "journal", "meta"];

/// A file or directory of our own, and its mode; no link.
fn own(path: PathBuf) -> Option<(PathBuf, u32)> {
    let meta = fs::symlink_metadata(&path).ok()?;
    let kind = meta.file_type();
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    ((kind.is_dir() || kind.is_file()) && ours).then(|| (path, meta.permissions().mode() & 0o7777))
}

/// The file of our own that is at `path`, or to which it links.
fn own_file(path: &Path) -> Option<(PathBuf, u32)> {
    own(fs::canonicalize(path).ok()?).filter(|(path, _)| path.is_file())
}

/// `path` itself, the files and directories in it, and the files of a store elsewhere that it links
/// to; nothing of other users.
fn within(path: &Path) -> Vec<(PathBuf, u32)> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let inside = fs::read_dir(&path).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let elsewhere = STORE.iter().map(|name| path.join(name)).filter(|p| p.is_symlink());
    let elsewhere: Vec<(PathBuf, u32)> = elsewhere.filter_map(|p| own_file(&p)).collect();
    std::iter::once(path).chain(inside).filter_map(own).chain(elsewhere).collect()
}

/// What in `dir`, the directory included, other users may read or write.
pub fn wider(dir: &Path) -> Vec<PathBuf> {
    within(dir).into_iter().filter(|(_, mode)| mode & OTHERS != 0).map(|(path, _)| path).collect()
}

/// Closes `dir` and what is in it to other users, and logs what was open to them.
///
/// # Errors
/// When a mode cannot be changed.
pub fn tighten(dir: &Path) -> io::Result<()> {
    close(within(dir))
}

/// The same for files that no directory names: those that a store's main device says that it
/// consists of.
///
/// # Errors
/// When a mode cannot be changed.
pub fn tighten_files(files: &[PathBuf]) -> io::Result<()> {
    close(files.iter().filter_map(|p| own_file(p)).collect())
}

fn close(found: Vec<(PathBuf, u32)>) -> io::Result<()> {
    for (path, mode) in found.into_iter().filter(|(_, mode)| mode & OTHERS != 0) {
        fs::set_permissions(&path, Permissions::from_mode(mode & !OTHERS))?;
        tracing::warn!(
            "{} was open to other users (mode {mode:04o}); it is closed now",
            path.display()
        );
    }
    Ok(())
}

/// What other users may read or write of the data and keys of a cluster's directory.
pub fn wider_in_cluster(cluster: &Path) -> Vec<PathBuf> {
    let name =
        |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let all = fs::read_dir(cluster).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut out: Vec<PathBuf> = all
        .filter(|p| {
            name(p).ends_with(".keyring")
                || ["mon.", "osd.", "mgr."].iter().any(|k| name(p).starts_with(k))
        })
        .filter(|p| p.is_dir() || name(p).ends_with(".keyring"))
        .flat_map(|p| if p.is_dir() { wider(&p) } else { wider_file(&p) })
        .collect();
    out.sort();
    out
}

fn wider_file(path: &Path) -> Vec<PathBuf> {
    let open = fs::metadata(path).is_ok_and(|m| m.permissions().mode() & OTHERS != 0);
    open.then(|| path.to_owned()).into_iter().collect()
}

/// Raises the number of files that this process may open as far as the system lets: each connection
/// is one.
pub fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum
        && let Err(error) =
            setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    // Stores, logs and what daemons open to each other need some, too.
    let have = usize::try_from(descriptors()).unwrap_or(usize::MAX);
    spirula_runtime::door::set_connections(have.saturating_sub(FILES).max(have / 2));
}

/// Descriptors that are not for connections from outside, where there are many.
const FILES: usize = 1024;

/// How many files this process may open.
pub fn descriptors() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_found_and_closed_and_foreign_links_are_left_alone() {
        let dir = std::env::temp_dir().join(format!("spirula-guard-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (data, outside, meta) = (dir.join("osd.0"), dir.join("elsewhere"), dir.join("fast"));
        fs::create_dir_all(&data).unwrap();
        let files =
            [data.join("block"), data.join("journal"), dir.join("ceph.client.admin.keyring")];
        for path in files.iter().chain([&outside, &meta]) {
            fs::write(path, b"x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&outside, data.join("link")).unwrap();
        std::os::unix::fs::symlink(&meta, data.join("meta")).unwrap();
        // A device is the system's, and a link that leads nowhere is for others to complain of.
        fs::create_dir_all(dir.join("osd.1")).unwrap();
        fs::set_permissions(dir.join("osd.1"), Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.join("osd.1/journal")).unwrap();
        std::os::unix::fs::symlink(dir.join("nothing"), dir.join("osd.1/meta")).unwrap();
        let open = wider_in_cluster(&dir);
        let dir = fs::canonicalize(&dir).unwrap();
        let (data, meta) = (dir.join("osd.0"), dir.join("fast"));
        let mut want = vec![dir.join("ceph.client.admin.keyring"), meta.clone(), data.clone()];
        want.extend([data.join("block"), data.join("journal")]);
        assert_eq!(open, want);
        tighten(&data).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&data), mode(&data.join("block")), mode(&data.join("journal"))),
            (0o700, 0o600, 0o600)
        );
        assert_eq!(mode(&meta), 0o600, "what the store consists of is, wherever it is");
        assert_eq!(mode(&outside), 0o644, "what a link names is not ours to close");
        assert_eq!(wider_in_cluster(&dir), [dir.join("ceph.client.admin.keyring")]);
        tighten_files(&[outside.clone(), "/dev/zero".into(), dir.join("nothing")]).unwrap();
        assert_eq!(mode(&outside), 0o600, "what a device's label names is the store's");
        fs::remove_dir_all(&dir).unwrap();
    }
}
