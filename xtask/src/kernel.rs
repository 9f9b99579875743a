//! Debian's stock kernel for the tests that start a virtual machine: unpacked beside what is built,
//! not installed, so that nothing of this machine's own changes.

use crate::packages::can_install;
use crate::run::{have, must, status, target};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that depends on the newest kernel's.
const NEWEST: &str = "linux-image-amd64";

/// What of a kernel is unpacked: its image and the modules that a guest of `tests/e2e/guest.py` may
/// want, a tenth of it all.
const PARTS: &[&str] = &[
    "*/boot/vmlinuz-*",
    "*/kernel/arch/*",
    "*/kernel/crypto/*",
    "*/kernel/drivers/block/*",
    "*/kernel/drivers/net/net_failover.ko*",
    "*/kernel/drivers/net/virtio_net.ko*",
    "*/kernel/drivers/virtio/*",
    "*/kernel/fs/ceph/*",
    "*/kernel/fs/ext4/*",
    "*/kernel/fs/fscache/*",
    "*/kernel/fs/jbd2/*",
    "*/kernel/fs/lockd/*",
    "*/kernel/fs/mbcache.ko*",
    "*/kernel/fs/netfs/*",
    "*/kernel/fs/nfs/*",
    "*/kernel/fs/nfs_common/*",
    "*/kernel/lib/*",
    "*/kernel/net/ceph/*",
    "*/kernel/net/core/*",
    "*/kernel/net/dns_resolver/*",
    "*/kernel/net/sunrpc/*",
];

/// Written when all of [`PARTS`] is there; another name than that of a folder from before the list
/// grew.
const MARK: &str = "parts-3";

/// The folder of a kernel and its modules, made on first use; `None` where that is not possible
/// (not root, no Debian, another machine than the guest is).
///
/// # Errors
/// When the package cannot be had or unpacked.
pub fn guest() -> anyhow::Result<Option<PathBuf>> {
    let dir = target().join("guest-kernel");
    if dir.join(MARK).exists() {
        return Ok(Some(dir));
    }
    if !cfg!(target_arch = "x86_64") || !can_install() || !have("apt-cache") || !have("dpkg") {
        return Ok(Some(dir).filter(|d| d.exists()));
    }
    let partial = target().join("guest-kernel.partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    std::fs::create_dir_all(&partial)?;
    let package = match newest()? {
        Some(package) => package,
        None => {
            status(Command::new("apt-get").args(["-qq", "update"]))?;
            newest()?.with_context(|| format!("apt knows no {NEWEST}"))?
        }
    };
    must(Command::new("apt-get").args(["-qq", "download", &package]).current_dir(&partial))?;
    let file = downloaded(&partial)?;
    let unpack = r#"set -o pipefail; dpkg --fsys-tarfile "$0" | tar -x --wildcards "$@""#;
    must(Command::new("bash").args(["-c", unpack]).arg(&file).args(PARTS).current_dir(&partial))?;
    std::fs::remove_file(&file)?;
    std::fs::write(partial.join(MARK), "")?;
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::rename(&partial, &dir)?;
    Ok(Some(dir))
}

/// The package of the newest kernel.
fn newest() -> anyhow::Result<Option<String>> {
    let said =
        Command::new("apt-cache").args(["depends", NEWEST]).output().context("start apt-cache")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let depends = said.lines().filter_map(|l| l.trim().strip_prefix("Depends: "));
    Ok(depends.map(str::trim).find(|p| p.starts_with("linux-image-")).map(str::to_owned))
}

fn downloaded(folder: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "deb") {
            return Ok(path);
        }
    }
    bail!("apt-get has downloaded nothing")
}
