//! The comparison with a real Ceph in the same run.

use crate::ceph;
use crate::run::{command, must, release_binary, root, target};
use anyhow::Context;
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
    /// Block images by fio's rbd engine instead of objects by `rados bench`
    #[arg(long)]
    rbd: bool,
    /// Only Spirula, no Ceph beside it
    #[arg(long)]
    alone: bool,
}

/// Starts both clusters, measures them in turn, stops them.
///
/// # Errors
/// When one cannot be started or measured.
pub fn bench(o: &Options) -> anyhow::Result<bool> {
    let measure = root().join(if o.rbd { "bench/measure-rbd" } else { "bench/measure-rados" });
    let binary = release_binary()?;
    let dir = target().join("bench");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("clear the last run")?;
    }
    std::fs::create_dir_all(&dir)?;
    let ours = dir.join("spirula");
    let theirs = dir.join("ceph");
    must(
        Command::new(&binary)
            .arg("up")
            .arg("--dir")
            .arg(&ours)
            .args(["--port", "13300", "--detach"]),
    )?;
    let mut systems = Vec::new();
    if !o.alone {
        ceph::up(&theirs, 3, "6G", "").context("the rival; --alone measures without it")?;
        systems.push(format!("ceph={}", theirs.join("ceph.conf").display()));
    }
    let pid = std::fs::read_to_string(ours.join("lock")).context("read our process's number")?;
    systems.push(format!("ours={}@{}", ours.join("ceph.conf").display(), pid.trim()));
    let mut c = command(&measure);
    c.args(["-n", &o.runs.to_string(), "-s", &o.seconds.to_string()]);
    if !o.rbd {
        c.args(["--threads", &o.threads]);
    }
    let result = must(c.args(&systems));
    must(Command::new(&binary).arg("down").arg("--dir").arg(&ours))?;
    if !o.alone {
        ceph::down(&theirs)?;
    }
    result.map(|()| true)
}
