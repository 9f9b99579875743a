//! What is on disk is for the user that runs the cluster alone.
//!
//! A monitor's store holds every key, an OSD's everybody's data. So all that this program makes is
//! closed to other users, by the umask of every process; what an earlier version, or somebody's
//! `cp`, left wider is tightened when a daemon takes its directory, and said; and `spirula status`
//! looks again.

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

/// `path` itself, and the files and directories in it; no links, and nothing of other users.
fn within(path: &Path) -> Vec<(PathBuf, u32)> {
    let own = rustix::process::geteuid().as_raw();
    let look = |path: PathBuf| -> Option<(PathBuf, u32)> {
        let meta = fs::symlink_metadata(&path).ok()?;
        let kind = meta.file_type();
        ((kind.is_dir() || kind.is_file()) && meta.uid() == own).then(|| (path, meta.permissions().mode() & 0o7777))
    };
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let inside = fs::read_dir(&path).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    std::iter::once(path).chain(inside).filter_map(look).collect()
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
    for (path, mode) in within(dir).into_iter().filter(|(_, mode)| mode & OTHERS != 0) {
        fs::set_permissions(&path, Permissions::from_mode(mode & !OTHERS))?;
        tracing::warn!("{} was open to other users (mode {mode:04o}); it is closed now", path.display());
    }
    Ok(())
}

/// What other users may read or write of the data and keys of a cluster's directory.
pub fn wider_in_cluster(cluster: &Path) -> Vec<PathBuf> {
    let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let all = fs::read_dir(cluster).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut out: Vec<PathBuf> = all
        .filter(|p| name(p).ends_with(".keyring") || ["mon.", "osd.", "mgr."].iter().any(|k| name(p).starts_with(k)))
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

/// Raises the number of files that this process may open as far as the system lets: each connection is one.
pub fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })
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
    fn what_is_open_is_found_and_closed_and_links_are_left_alone() {
        let dir = std::env::temp_dir().join(format!("spirula-guard-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (data, outside) = (dir.join("osd.0"), dir.join("elsewhere"));
        fs::create_dir_all(&data).unwrap();
        for path in [data.join("block"), data.join("journal"), outside.clone(), dir.join("ceph.client.admin.keyring")] {
            fs::write(&path, b"x").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&outside, data.join("link")).unwrap();
        let open = wider_in_cluster(&dir);
        assert_eq!(
            open,
            [dir.join("ceph.client.admin.keyring"), data.clone(), data.join("block"), data.join("journal")]
        );
        tighten(&data).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&data), mode(&data.join("block")), mode(&data.join("journal"))), (0o700, 0o600, 0o600));
        assert_eq!(mode(&outside), 0o644, "what a link names is not ours to close");
        assert_eq!(wider_in_cluster(&dir), [dir.join("ceph.client.admin.keyring")]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
