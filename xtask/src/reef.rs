//! Reef 18.2 clients: a minimal Debian 13 beside this one.

use crate::run::{have, must, status, target};
use std::path::PathBuf;
use std::process::Command;

/// A folder holding Debian 13 with `ceph-common`, `python3-rados` and `python3-rbd`, made on first use;
/// `None` where that is not possible (not root, no debootstrap).
///
/// # Errors
/// When debootstrap fails.
pub fn clients() -> anyhow::Result<Option<PathBuf>> {
    let dir = target().join("reef");
    if dir.join("usr/bin/rados").exists() {
        return Ok(Some(dir));
    }
    if !have("debootstrap") && have("apt-get") {
        let mut c = Command::new("apt-get");
        c.env("DEBIAN_FRONTEND", "noninteractive").args(["-y", "-qq", "install", "debootstrap"]);
        status(&mut c)?;
    }
    if !have("debootstrap") {
        return Ok(None);
    }
    let partial = target().join("reef.partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    must(
        Command::new("debootstrap")
            .args(["--variant=minbase", "--include=ceph-common,python3-rados,python3-rbd", "trixie"])
            .arg(&partial),
    )?;
    std::fs::rename(&partial, &dir)?;
    Ok(Some(dir))
}
