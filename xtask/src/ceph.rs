//! `cargo xtask ceph`: a real Ceph beside ours, to compare with.

use crate::bench;
use crate::run::{command, have, must, root};
use anyhow::bail;
use clap::Subcommand;
use std::path::{Path, PathBuf};

/// What to do with it.
#[derive(Subcommand)]
pub enum Ceph {
    /// Start a throw-away cluster of this machine's Ceph on loopback: a monitor, a manager, OSDs on
    /// files, no authentication
    Up {
        /// Where its files go; its ceph.conf is there, too
        dir: PathBuf,
        /// How many OSDs
        #[arg(long, default_value_t = 3)]
        osds: u32,
        /// Size of each, 1G or more
        #[arg(long, default_value = "8G")]
        osd_size: String,
        /// Lines for the `[global]` section of its ceph.conf
        #[arg(long, default_value = "")]
        conf: String,
    },
    /// Stop it; its files stay
    Down {
        /// Where its files are
        dir: PathBuf,
    },
    /// Start one beside a Spirula, measure both in turn, stop both
    Bench(bench::Options),
}

/// Does it.
///
/// # Errors
/// When a cluster cannot be started, or not be measured.
pub fn ceph(what: &Ceph) -> anyhow::Result<bool> {
    match what {
        Ceph::Up { dir, osds, osd_size, conf } => up(dir, *osds, osd_size, conf).map(|()| true),
        Ceph::Down { dir } => down(dir).map(|()| true),
        Ceph::Bench(o) => bench::bench(o),
    }
}

/// Starts a cluster.
///
/// # Errors
/// When Ceph is not installed, or the cluster does not come up.
pub fn up(dir: &Path, osds: u32, osd_size: &str, conf: &str) -> anyhow::Result<()> {
    for (program, package) in [
        ("ceph-mon", "ceph-mon"),
        ("ceph-osd", "ceph-osd"),
        ("ceph-mgr", "ceph-mgr"),
        ("ceph", "ceph-common"),
        ("jq", "jq"),
        ("bc", "bc"),
    ] {
        if !have(program) {
            bail!("a real Ceph needs {program}: apt-get install {package}");
        }
    }
    must(command(root().join("bench/ceph-up")).arg(absolute(dir)?).args([
        &osds.to_string(),
        osd_size,
        conf,
    ]))
}

/// Stops it.
///
/// # Errors
/// When the script cannot be started.
pub fn down(dir: &Path) -> anyhow::Result<()> {
    must(command(root().join("bench/ceph-down")).arg(absolute(dir)?))
}

/// Scripts run in the workspace's root, wherever we were called.
fn absolute(dir: &Path) -> anyhow::Result<PathBuf> {
    Ok(std::path::absolute(dir)?)
}
