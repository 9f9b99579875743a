//! `spirula backup`: a copy of a cluster's directory, whole and of one moment.
//!
//! The copy is a cluster's directory itself: `spirula up --dir COPY` runs it. Of a running cluster
//! the OSDs are stopped cleanly while it is made, so that no store is copied half written and no
//! two of different moments; clients wait, and monitors and managers go on. The monitors' stores
//! are copied as all of them were at one moment, however much is written meanwhile
//! ([`spirula_mon::copy_stores`]), and are verified before the copy is said to be made. On file
//! systems that share blocks between files (XFS, btrfs) that takes moments. What makes a directory
//! a cluster's (`cluster.json`) is written last: a copy that was cut short is none.

use crate::cluster::Cluster;
use crate::control;
use crate::dir::{ClusterDir, write_durably};
use anyhow::{Context, bail};
use rustix::fs::SeekFrom;
use serde_json::{Value, json};
use spirula_mon::{MonStore, STORE_FILES, copy_stores};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a copy may take.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Bytes read at a time where files are copied.
const STEP: usize = 4 << 20;

/// `spirula backup`.
///
/// # Errors
/// When there is no cluster, something is where the copy should be, or a file cannot be copied.
pub fn backup(dir: &Path, to: &Path, as_json: bool) -> anyhow::Result<()> {
    let dir = ClusterDir::new(dir)?;
    dir.require()?;
    let to = std::path::absolute(to).with_context(|| format!("find {}", to.display()))?;
    let begun = Instant::now();
    let request = json!({"do": "backup", "to": to});
    let answer = match control::ask_within(&dir, &request, PATIENCE)? {
        Some(answer) => answer,
        None => {
            // Nobody may start it meanwhile.
            let _lock = dir.lock()?;
            json!({"bytes": Copy::begin(&dir, &to)?.whole(&dir)?})
        }
    };
    let bytes = answer["bytes"].as_u64().unwrap_or_default();
    if as_json {
        println!("{}", json!({"to": to, "bytes": bytes, "seconds": begun.elapsed().as_secs_f64()}));
    } else {
        println!(
            "copied {} to {}; 'spirula up --dir {}' runs the copy",
            dir.path().display(),
            to.display(),
            to.display()
        );
    }
    Ok(())
}

/// Makes the copy of a running cluster. Its OSDs run again afterwards, whatever happens.
///
/// # Errors
/// As [`backup`]; when an OSD does not stop or start.
pub fn of_running(cluster: &Cluster, dir: &ClusterDir, to: &Path) -> anyhow::Result<Value> {
    let _turn = cluster.turn_of_all(&format!("a backup to {}", to.display()))?;
    let copy = Copy::begin(dir, to)?;
    let bytes = cluster.without_osds(|| copy.whole(dir))?;
    Ok(json!({ "bytes": bytes }))
}

/// A copy that is being made; removed again if it is not finished.
struct Copy {
    to: PathBuf,
    done: bool,
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.done
            && let Err(e) = fs::remove_dir_all(&self.to)
        {
            tracing::warn!("what was copied to {} is left there: {e}", self.to.display());
        }
    }
}

impl Copy {
    fn begin(dir: &ClusterDir, to: &Path) -> anyhow::Result<Self> {
        if to.starts_with(dir.path()) {
            bail!("{} is within the cluster's own directory", to.display());
        }
        fs::create_dir(to)
            .with_context(|| format!("make {}, which must not be there", to.display()))?;
        Ok(Self { to: to.to_owned(), done: false })
    }

    /// Copies everything. Nothing but monitors may be at work. Returns the bytes of the files.
    fn whole(mut self, dir: &ClusterDir) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let entries = fs::read_dir(dir.path())
            .with_context(|| format!("look into {}", dir.path().display()))?;
        let mut names = entries.map(|e| Ok(e?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
        names.sort();
        // Stores before the monitors, which may know more than they do, never less.
        let mut monitors = Vec::new();
        for name in names {
            let text = name.to_string_lossy();
            let (from, to) = (dir.join(&name), self.to.join(&name));
            let store =
                ["mon.", "osd.", "mgr."].iter().any(|k| text.starts_with(k)) && from.is_dir();
            if store {
                bytes += copy_dir(&from, &to)?;
                if MonStore::exists(&from) {
                    monitors.push((from, to));
                }
            } else if text.ends_with(".keyring") || text.starts_with("opened-") {
                bytes += copy_file(&from, &to)?;
            }
        }
        bytes += copy_stores(&monitors).context("copy the monitors' stores")?;
        let manifest = dir.join("cluster.json");
        let text = fs::read(&manifest).with_context(|| format!("read {}", manifest.display()))?;
        write_durably(&self.to.join("cluster.json"), &text, 0o644)?;
        // Options that somebody has put there; 'up' writes the rest of it anew.
        if dir.conf().is_file() {
            bytes += copy_file(&dir.conf(), &self.to.join("ceph.conf"))?;
        }
        if let Some(parent) = self.to.parent() {
            File::open(parent)
                .and_then(|d| d.sync_all())
                .with_context(|| format!("sync {}", parent.display()))?;
        }
        self.done = true;
        Ok(bytes)
    }
}

/// Copies the files of a store, but for those of monitors ([`STORE_FILES`]), which are in use: they
/// are copied as of one moment.
fn copy_dir(from: &Path, to: &Path) -> anyhow::Result<u64> {
    fs::create_dir(to).with_context(|| format!("make {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("look into {}", from.display()))?;
    let names = entries.map(|e| Ok(e?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    let mut bytes = 0;
    for name in names {
        let path = from.join(&name);
        if path.is_symlink() {
            bail!(
                "{} is a link to a device; carry that store with 'spirula store export'",
                path.display()
            );
        }
        let text = name.to_string_lossy();
        let elsewhere = text.ends_with(".lock")
            || text.ends_with(".tmp")
            || STORE_FILES.contains(&text.as_ref());
        if path.is_file() && !elsewhere {
            bytes += copy_file(&path, &to.join(&name))?;
        }
    }
    File::open(to).and_then(|d| d.sync_all()).with_context(|| format!("sync {}", to.display()))?;
    Ok(bytes)
}

/// Copies a file, holes as holes, durably. Returns its length.
fn copy_file(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let source = File::open(from).with_context(|| format!("open {}", from.display()))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let copy = options.open(to).with_context(|| format!("make {}", to.display()))?;
    let what = || format!("copy {} to {}", from.display(), to.display());
    let len = source.metadata().with_context(what)?.len();
    if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
        copy.set_len(len).with_context(what)?;
        copy_data(&source, &copy, len).with_context(what)?;
    }
    copy.sync_all().with_context(what)?;
    Ok(len)
}

fn copy_data(source: &File, copy: &File, len: u64) -> std::io::Result<()> {
    let mut buf = vec![0; STEP];
    let mut at = 0;
    while at < len {
        // Where the file system cannot tell, all of it is data.
        at = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => at,
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(at)).unwrap_or(len).min(len);
        while at < end {
            let n = (end - at).min(STEP as u64) as usize;
            let Some(part) = buf.get_mut(..n) else { break };
            // Another process may have cut it; a log that grows is read up to where it was.
            source.read_exact_at(part, at)?;
            copy.write_all_at(part, at)?;
            at += n as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn copies_are_equal_and_holes_stay_holes() {
        let at = std::env::temp_dir().join(format!("spirula-backup-{}", std::process::id()));
        let _ = fs::remove_dir_all(&at);
        fs::create_dir(&at).unwrap();
        let (from, to) = (at.join("from"), at.join("to"));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        for (place, len) in [(0u64, 5000usize), (9 << 20, 5 << 20), (40 << 20, 1)] {
            file.write_all_at(&vec![place as u8 | 1; len], place).unwrap();
        }
        assert_eq!(copy_file(&from, &to).unwrap(), 64 << 20);
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 16 << 20);
        assert!(copy_file(&from, &to).is_err(), "nothing is overwritten");
        fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn a_copy_that_fails_leaves_nothing_and_never_touches_what_is_there() {
        let at = std::env::temp_dir().join(format!("spirula-backup-fails-{}", std::process::id()));
        let _ = fs::remove_dir_all(&at);
        fs::create_dir_all(at.join("c/osd.0")).unwrap();
        let dir = ClusterDir::new(&at.join("c")).unwrap();
        std::os::unix::fs::symlink("/dev/null", at.join("c/osd.0/block")).unwrap();
        let e = Copy::begin(&dir, &at.join("to")).unwrap().whole(&dir).unwrap_err().to_string();
        assert!(e.contains("link to a device") && !at.join("to").exists(), "{e}");
        assert!(Copy::begin(&dir, &at.join("c/inside")).is_err());
        fs::create_dir(at.join("there")).unwrap();
        fs::write(at.join("there/file"), b"x").unwrap();
        assert!(Copy::begin(&dir, &at.join("there")).is_err() && at.join("there/file").exists());
        fs::remove_dir_all(&at).unwrap();
    }
}
