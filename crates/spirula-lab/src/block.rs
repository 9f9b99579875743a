//! `spirula bench block`: block images as fio's rbd engine sees them, with librbd. Image and pool are made for it and removed.

use crate::args::{BlockArgs, BlockPreset, Lab};
use crate::bail;
use crate::disk::of_fio;
use crate::objects::{cluster_of, find_pool, remove_pool};
use crate::prelude::*;
use crate::progress::{bytes_rate, ms, size};
use crate::session::{Session, Way};
use crate::shown::Shown;
use crate::used::Watch;
use std::process::{Command, Stdio};

/// The pool that is made where none was named.
const POOL: &str = "spirula-bench";
/// The image. One that a killed run left is replaced.
const IMAGE: &str = "spirula-bench-block";

fn rbd(way: &Way, pool: &str, words: &[&str]) -> Result<std::process::Output> {
    let conf = way.conf.as_ref().context("the rbd tool needs a ceph.conf; give --conf")?;
    let out = Command::new("rbd")
        .arg("-c")
        .arg(conf)
        .args(["--id", &way.user, "-p", pool])
        .args(words)
        .stdin(Stdio::null())
        .output();
    out.context("start rbd (Debian: apt-get install ceph-common)")
}

/// Seconds, and how often: as asked, or as the report had it.
fn lasts(a: &BlockArgs) -> (u64, u64) {
    let (seconds, repeats) = if a.preset == BlockPreset::Railway { (100, 6) } else { (30, 1) };
    (a.seconds.unwrap_or(seconds), a.repeats.unwrap_or(repeats))
}

/// One job of fio: what it is called, its words, its bytes per operation.
fn job(a: &BlockArgs) -> (String, Vec<String>, u64) {
    let w = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    match a.preset {
        BlockPreset::Railway => (
            format!("railway: 70/30 {} mixed, 30 jobs", size(16 << 10)),
            w(&["--rw=randrw", "--rwmixread=70", "--bs=16k", "--iodepth=1", "--numjobs=30", "--group_reporting"]),
            16 << 10,
        ),
        BlockPreset::Randwrite => (
            format!("random writes of 4 KiB, {} in flight", a.threads),
            [w(&["--rw=randwrite", "--bs=4k"]), vec![format!("--iodepth={}", a.threads)]].concat(),
            4 << 10,
        ),
    }
}

/// Measures; the runs go where `shown` leads.
///
/// # Errors
/// When fio has no rbd engine, or the cluster refuses.
pub fn measure(lab: &Lab, a: &BlockArgs, way: &Way, shown: &mut Shown<'_>) -> Result<()> {
    let engines = Command::new("fio").arg("--enghelp").output().context("start fio (Debian: apt-get install fio)")?;
    if !String::from_utf8_lossy(&engines.stdout).lines().any(|l| l.trim() == "rbd") {
        bail!("this fio has no rbd engine");
    }
    let session = Session::open(way, 16 << 20)?;
    let g = find_pool(&session, a.pool.as_deref().unwrap_or(POOL), a.pool.is_none())?;
    shown.results.set("cluster", cluster_of(&session));
    shown.results.set("pool", g.json());
    // Not there is what it should be.
    let _ = rbd(way, &g.name, &["rm", "--no-progress", IMAGE])?;
    let out = rbd(way, &g.name, &["create", "--size", &format!("{}M", a.image_size >> 20), IMAGE])?;
    if !out.status.success() {
        bail!("rbd create: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let (seconds, repeats) = lasts(a);
    let outcome = (0..repeats).try_for_each(|repeat| {
        if lab.stopped() {
            bail!("interrupted");
        }
        one(a, way, &g.name, (repeat, repeats), seconds, shown)
    });
    let removed = rbd(way, &g.name, &["rm", "--no-progress", IMAGE])?;
    // A pool that stays is empty.
    let _ = remove_pool(&session, &g);
    outcome?;
    if !removed.status.success() {
        bail!("rbd rm: {}", String::from_utf8_lossy(&removed.stderr).trim());
    }
    Ok(())
}

fn one(
    a: &BlockArgs,
    way: &Way,
    pool: &str,
    (repeat, repeats): (u64, u64),
    seconds: u64,
    shown: &mut Shown<'_>,
) -> Result<()> {
    let (name, words, block) = job(a);
    shown.progress.at(repeat as f64 / repeats as f64, &format!("{name}, {} of {repeats}", repeat + 1));
    let watch = Watch::begin_of(way.conf.as_deref().and_then(Path::parent));
    let out = Command::new("fio")
        .args(["--name=spirula", "--output-format=json", "--ioengine=rbd", "--time_based", "--randrepeat=0"])
        .args([format!("--clientname={}", way.user), format!("--pool={pool}"), format!("--rbdname={IMAGE}")])
        .arg(format!("--runtime={seconds}"))
        .args(&words)
        .env("CEPH_CONF", way.conf.as_deref().unwrap_or(Path::new("")))
        .stdin(Stdio::null())
        .output()
        .context("start fio")?;
    if !out.status.success() {
        bail!("fio: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let from = out.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    // Words of librbd may follow the object.
    let mut objects = serde_json::Deserializer::from_slice(&out.stdout[from..]).into_iter::<Value>();
    let v = objects.next().context("fio said nothing")?.context("fio's output is not JSON")?;
    let used = watch.end(0);
    for (writes, side) in [(true, "writes"), (false, "reads")] {
        let Some(found) = of_fio(&v, writes).filter(|f| f["ops"].as_u64().is_some_and(|n| n > 0)) else { continue };
        let n = |v: &Value| v.as_f64().unwrap_or(0.0);
        let text = format!(
            "{name:<44} {side:<6} {:>9.0} op/s {:>11}  mean {:>8}  p99 {:>8}",
            n(&found["iops"]),
            bytes_rate(n(&found["bytes_per_s"])),
            ms(n(&found["latency_ms"]["mean"])),
            ms(n(&found["latency_ms"]["p99"]))
        );
        let run = json!({
            "name": format!("block: {name}, {side}"), "repeat": repeat, "mode": side, "size": block, "seconds": seconds, "found": found,
            "used": used.json,
        });
        shown.add(&text, run)?;
    }
    Ok(())
}

/// `spirula bench block`.
///
/// # Errors
/// As [`measure`].
pub fn block(lab: &Lab, a: &BlockArgs) -> Result<()> {
    let way = (lab.connect)(&a.target)?;
    let mut shown = Shown::new(lab, "block", &a.output)?;
    measure(lab, a, &way, &mut shown)?;
    shown.finish()
}
