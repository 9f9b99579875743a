//! The comparison with a real Ceph in the same run.

use crate::run::{command, have, must, release_binary, root, target};
use anyhow::{Context, bail};
use clap::Args;
use std::process::Command;

/// How to measure.
#[derive(Args)]
pub struct Options {
    /// Runs of each row
    #[arg(short = 'n', long, default_value_t = 3)]
    runs: u32,
    /// Seconds of each write row
    #[arg(short = 's', long, default_value_t = 8)]
    seconds: u32,
    /// Threads to measure with
    #[arg(long, default_value = "1,16")]
    threads: String,
    /// Only Spirula, no Ceph beside it
    #[arg(long)]
    alone: bool,
}

/// Starts both clusters, measures them in turn, stops them.
///
/// # Errors
/// When one cannot be started or measured.
pub fn bench(o: &Options) -> anyhow::Result<bool> {
    let shared = root().join("../shared");
    let measure = shared.join("bench/measure-rados");
    if !measure.exists() {
        bail!("{} is not here; the comparison needs the project's shared folder", measure.display());
    }
    let binary = release_binary()?;
    let dir = target().join("bench");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("clear the last run")?;
    }
    std::fs::create_dir_all(&dir)?;
    let ours = dir.join("spirula");
    let ceph = dir.join("ceph");
    must(Command::new(&binary).arg("up").arg("--dir").arg(&ours).args(["--port", "13300", "--detach"]))?;
    let mut systems = Vec::new();
    if !o.alone {
        if !have("ceph-osd") {
            bail!(
                "a real Ceph is not installed: apt-get install ceph-mon ceph-osd ceph-mgr ceph-common, or use --alone"
            );
        }
        must(Command::new(shared.join("peers/ceph-up")).arg(&ceph).args(["3", "6G"]))?;
        systems.push(format!("ceph={}", ceph.join("ceph.conf").display()));
    }
    let pid = std::fs::read_to_string(ours.join("lock")).context("read our process's number")?;
    systems.push(format!("ours={}@{}", ours.join("ceph.conf").display(), pid.trim()));
    let result = must(
        command("/usr/bin/env")
            .args(["python3"])
            .arg(&measure)
            .args(["-n", &o.runs.to_string(), "-s", &o.seconds.to_string(), "--threads", &o.threads])
            .args(&systems),
    );
    must(Command::new(&binary).arg("down").arg("--dir").arg(&ours))?;
    if !o.alone {
        must(Command::new(shared.join("peers/ceph-down")).arg(&ceph))?;
    }
    result.map(|()| true)
}
