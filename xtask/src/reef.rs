//! Ceph 18.2 (Reef): a minimal Debian 13 beside this one. The tests run some of its programs beside
//! this machine's, and `--reef` all of its clients.

use crate::packages::can_install;
use crate::run::{have, status, target};
use anyhow::{Context, bail};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What of Ceph's is in it, and what the tests use beside that.
const PACKAGES: &[&str] = &[
    "ceph-common",
    "ceph-fuse",
    "ceph-mds",
    "libsqlite3-mod-ceph",
    "python3-cephfs",
    "python3-rados",
    "python3-rbd",
    "radosgw",
    "sqlite3",
];

/// Written when all of [`PACKAGES`] is there; another name than that of a folder from before the
/// list grew.
const MARK: &str = "packages-2";

/// The folder that [`clients`] made earlier, if it did.
pub fn made() -> Option<PathBuf> {
    let dir = target().join("reef");
    dir.join(MARK).exists().then_some(dir)
}

/// A folder holding Debian 13 with [`PACKAGES`], made on first use, in one to three minutes; `None`
/// where that is not possible (not root, no debootstrap). What is said meanwhile is in a file
/// beside it.
///
/// # Errors
/// When debootstrap fails.
pub fn clients() -> anyhow::Result<Option<PathBuf>> {
    if let Some(dir) = made() {
        return Ok(Some(dir));
    }
    let dir = target().join("reef");
    if !can_install() {
        return Ok(None);
    }
    if !have("debootstrap") {
        let mut c = Command::new("apt-get");
        c.env("DEBIAN_FRONTEND", "noninteractive").args(["-y", "-qq", "install", "debootstrap"]);
        status(&mut c)?;
    }
    if !have("debootstrap") {
        return Ok(None);
    }
    let partial = target().join("reef.partial");
    for old in [&partial, &dir] {
        if old.exists() {
            std::fs::remove_dir_all(old)?;
        }
    }
    let said = target().join("reef.log");
    std::fs::create_dir_all(target())?;
    let log = File::create(&said).with_context(|| format!("create {}", said.display()))?;
    let mut c = Command::new("nice");
    c.args([
        "debootstrap",
        "--variant=minbase",
        &format!("--include={}", PACKAGES.join(",")),
        "trixie",
    ])
    .arg(&partial);
    // Whoever cannot wait for a disk may lose this with its power.
    c.env("DPKG_FORCE", "unsafe-io").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if !status(&mut c)? {
        bail!("debootstrap fails; see {}", said.display());
    }
    // What was downloaded is unpacked now.
    let _ = std::fs::remove_dir_all(partial.join("var/cache/apt/archives"));
    std::fs::write(partial.join(MARK), "")?;
    std::fs::rename(&partial, &dir)?;
    Ok(Some(dir))
}
