//! `spirula bench block`: block images as fio's rbd engine sees them, with librbd. Image and pool
//! are made for it and removed.
//!
//! Each run has an image of its own, which is called as its note in the pool says
//! ([`crate::litter`]): so runs beside each other do not meet, and an image whose note is gone, or
//! is that of a dead run, is nobody's any more.

use crate::args::{BlockArgs, BlockPreset, Lab};
use crate::bail;
use crate::disk::{Log, of_fio};
use crate::expect::{Baseline, Geometry, bottleneck};
use crate::litter::{Note, left_alone};
use crate::load::Mode;
use crate::objects::{cluster_of, find_pool, remove_pool};
use crate::prelude::*;
use crate::progress::{bytes_rate, ms, size};
use crate::session::{Session, Way};
use crate::shown::Shown;
use crate::used::{Watch, hostname};
use spirula_types::errno;
use std::process::{Command, Stdio};

/// The pool that is made where none was named.
const POOL: &str = "spirula-bench";
/// What images are called behind the prefix of their run.
const IMAGE: &str = "block";
/// The object in which librbd writes down which images a pool has.
const DIRECTORY: &str = "rbd_directory";

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
            format!("railway: 70/30 {} mixed, 30 in flight", size(16 << 10)),
            // The report's 30 jobs were processes of one virtual machine, whose disk is one client
            // with 30 in flight. As many clients of librbd would hand the image's lock to each
            // other, and that would be all that is measured.
            w(&["--rw=randrw", "--rwmixread=70", "--bs=16k", "--iodepth=30"]),
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
    let engines = Command::new("fio")
        .arg("--enghelp")
        .output()
        .context("start fio (Debian: apt-get install fio)")?;
    if !String::from_utf8_lossy(&engines.stdout).lines().any(|l| l.trim() == "rbd") {
        bail!("this fio has no rbd engine");
    }
    // Before there is a pool to clear away.
    Command::new("rbd")
        .arg("--version")
        .output()
        .context("start rbd (Debian: apt-get install ceph-common)")?;
    let baseline =
        a.baseline.as_deref().map(crate::results::read).transpose()?.map(|v| Baseline::of(&v));
    let session = Session::open(way, 16 << 20)?;
    let g = find_pool(&session, a.pool.as_deref().unwrap_or(POOL), a.pool.is_none())?;
    shown.results.set("cluster", cluster_of(&session));
    shown.results.set("pool", g.json());
    // It has no objects but the image.
    let note = Note::take(&session, g.pool, 0, 0)?;
    let image = image_of(&note.prefix);
    let (seconds, repeats) = lasts(a);
    let made =
        must(way, &g.name, &["create", "--size", &format!("{}M", a.image_size >> 20), &image]);
    let outcome = made.and_then(|_| {
        (0..repeats).try_for_each(|repeat| {
            if lab.stopped() {
                bail!("interrupted");
            }
            one(a, way, (&g, &image), baseline.as_ref(), (repeat, repeats), seconds, shown)
        })
    });
    // Also what failed is cleaned up; what failed first is what is said. Without its image the run
    // has left nothing.
    let removed = remove(way, &g.name, &image).and_then(|()| note.clean(&session, &[]));
    // What other runs left is not this one's fault.
    if let Err(e) = clear(&session, way, &g, &hostname(), false) {
        shown.say(&left_over(&g.name, &e));
    }
    let gone = remove_pool(&session, &g);
    if let Ok(Some(word)) = &gone {
        shown.say(word);
    }
    outcome.and(removed).and(gone.map(drop))
}

/// Its output, if it succeeds.
fn must(way: &Way, pool: &str, words: &[&str]) -> Result<String> {
    let out = rbd(way, pool, words)?;
    if !out.status.success() {
        bail!(
            "rbd {}: {}",
            words.first().copied().unwrap_or_default(),
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn image_of(prefix: &str) -> String {
    format!("{prefix}{IMAGE}")
}

/// Removes an image, if it is there.
fn remove(way: &Way, pool: &str, image: &str) -> Result<()> {
    let out = rbd(way, pool, &["rm", "--no-progress", image])?;
    // The tool ends with ENOENT.
    if !out.status.success() && out.status.code() != Some(errno::ENOENT) {
        bail!("rbd rm {image}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// What is said where images of other runs could not be removed.
pub fn left_over(pool: &str, why: &anyhow::Error) -> String {
    format!("block images of runs that have ended may be left in {pool}: {why:#}")
}

/// The names in a list of the trash, of which each line is an id and a name.
fn in_trash(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|l| Some(l.trim().split_once(char::is_whitespace)?.1.trim()))
}

/// Those images that a dead run of this host left, by their names; `alone` are the prefixes of runs
/// that are to be left alone.
fn dead<'a>(images: impl Iterator<Item = &'a str>, host: &str, alone: &[String]) -> Vec<&'a str> {
    let of_host = format!("spirula-bench.{host}.");
    let is_dead = |image: &&str| {
        image.starts_with(&of_host)
            && image.ends_with(IMAGE)
            && alone.iter().all(|prefix| image_of(prefix) != **image)
    };
    images.filter(is_dead).collect()
}

/// The images of dead runs of this host go, and in a pool of a run, where nobody has another image,
/// what librbd keeps of them: the pool would count as used. Those of runs that live, or are
/// elsewhere, stay; with `gone` nobody of that name runs elsewhere.
///
/// # Errors
/// When an image cannot be removed: a fio of a run that was killed may have it open still.
pub fn clear(session: &Session, way: &Way, g: &Geometry, host: &str, gone: bool) -> Result<()> {
    if !crate::litter::is_there(session, g.pool, DIRECTORY)? {
        return Ok(());
    }
    // A run has its note before it has an image, and after: whose note is not found now has ended
    // since, or long ago. One whose removal was interrupted is in the trash; the tool goes on with
    // it when it is to remove an image of that name.
    let trash = || must(way, &g.name, &["trash", "ls", "--all"]);
    let (images, removing) = (must(way, &g.name, &["ls"])?, trash()?);
    let alone = left_alone(session, g.pool, host, gone)?;
    let dead = dead(images.lines().map(str::trim).chain(in_trash(&removing)), host, &alone);
    // One that cannot be removed, as a fio may have it open still, keeps none of the others.
    let failed: Vec<_> =
        dead.iter().filter_map(|image| remove(way, &g.name, image).err()).collect();
    failed.into_iter().next().map_or(Ok(()), Err)?;
    let others = images.lines().map(str::trim).any(|l| !l.is_empty() && !dead.contains(&l));
    if !g.made || others || !alone.is_empty() || !trash()?.trim().is_empty() {
        return Ok(());
    }
    [DIRECTORY, "rbd_info", "rbd_trash"]
        .iter()
        .try_for_each(|object| crate::litter::delete(session, g.pool, object))
}

fn one(
    a: &BlockArgs,
    way: &Way,
    (g, image): (&Geometry, &str),
    baseline: Option<&Baseline>,
    (repeat, repeats): (u64, u64),
    seconds: u64,
    shown: &mut Shown<'_>,
) -> Result<()> {
    let (name, words, block) = job(a);
    shown
        .progress
        .at(repeat as f64 / repeats as f64, &format!("{name}, {} of {repeats}", repeat + 1));
    let mut watch = Watch::begin_of(way.conf.as_deref().and_then(Path::parent));
    let log = Log::new()?;
    let mut fio = Command::new("fio");
    fio.args([
        "--name=spirula",
        "--output-format=json+",
        "--ioengine=rbd",
        "--time_based",
        "--randrepeat=0",
    ])
    .args([
        format!("--clientname={}", way.user),
        format!("--pool={}", g.name),
        format!("--rbdname={image}"),
    ])
    .arg(format!("--runtime={seconds}"))
    .args(&words)
    .args(log.args())
    .env("CEPH_CONF", way.conf.as_deref().unwrap_or(Path::new("")))
    .stdin(Stdio::null());
    let children = crate::used::children_cpu();
    let out = watch.during(|| fio.output()).context("start fio")?;
    let children = crate::used::children_cpu() - children;
    if !out.status.success() {
        bail!("fio: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let from = out.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    // Words of librbd may follow the object.
    let mut objects =
        serde_json::Deserializer::from_slice(&out.stdout[from..]).into_iter::<Value>();
    let v = objects.next().context("fio said nothing")?.context("fio's output is not JSON")?;
    let sides = [(true, "writes"), (false, "reads")]
        .map(|(writes, side)| (writes, side, of_fio(&v, writes)));
    let n = |v: &Value| v.as_f64().unwrap_or(0.0);
    let sum =
        |of: &dyn Fn(&Value) -> f64| sides.iter().filter_map(|s| s.2.as_ref().map(of)).sum::<f64>();
    let (ops, iops) = (sum(&|f| n(&f["ops"])), sum(&|f| n(&f["iops"])));
    let mut used = watch.end(ops as u64);
    used.add_clients(children, ops as u64);
    // Reads and writes are in flight together.
    let in_flight = if a.preset == BlockPreset::Railway { 30 } else { a.threads };
    let mean = sum(&|f| n(&f["latency_ms"]["mean"]) * n(&f["ops"])) / ops.max(1.0);
    let held = bottleneck(&used, in_flight, iops, mean);
    let expected = match a.preset {
        BlockPreset::Randwrite => baseline.and_then(|b| b.expected(g, Mode::RandWrite, block)),
        // The baseline is of 4 KiB, and each side has a part of the time.
        BlockPreset::Railway => None,
    };
    for (writes, side, found) in sides {
        let Some(mut found) = found.filter(|f| n(&f["ops"]) > 0.0) else { continue };
        found["series"] = log.series(writes, block).into();
        let text = format!(
            "{name:<44} {side:<6} {:>9.0} op/s {:>11}  mean {:>8}  p99 {:>8}",
            n(&found["iops"]),
            bytes_rate(n(&found["bytes_per_s"])),
            ms(n(&found["latency_ms"]["mean"])),
            ms(n(&found["latency_ms"]["p99"]))
        );
        let run = json!({
            "name": format!("block: {name}, {side}"), "repeat": repeat, "mode": side, "size": block, "seconds": seconds, "found": found,
            "threads": in_flight, "used": used.json, "bottleneck": held, "expected": expected,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        args: BlockArgs,
    }

    fn asked(words: &str) -> (String, Vec<String>, u64) {
        job(&Words::try_parse_from(words.split(' ')).expect("arguments").args)
    }

    /// What belongs to a run that lives, to another host, or to somebody else is left alone.
    #[test]
    fn only_images_of_dead_runs_of_this_host_are_removed() {
        let images = "spirula-bench.a.7.00ff.block\nspirula-bench.a.8.00fe.block\nspirula-bench.b.7.00ff.block\nblock\nmine\n\
                      spirula-bench.a.7.00ff.copy\n";
        let alone = ["spirula-bench.a.8.00fe.".to_owned()];
        let dead = |host, alone: &[String]| dead(images.lines(), host, alone);
        assert_eq!(dead("a", &alone), ["spirula-bench.a.7.00ff.block"]);
        assert_eq!(dead("a", &[]).len(), 2);
        assert!(dead("c", &[]).is_empty());
    }

    /// As `rbd trash ls --all` lists them: an image whose removal was interrupted is nowhere else.
    #[test]
    fn an_image_whose_removal_was_interrupted_is_found_in_the_trash() {
        let listed = "10d8b7a1c0de spirula-bench.a.7.00ff.block\n10d9aa my image\n\n";
        assert_eq!(
            in_trash(listed).collect::<Vec<_>>(),
            ["spirula-bench.a.7.00ff.block", "my image"]
        );
        assert_eq!(dead(in_trash(listed), "a", &[]), ["spirula-bench.a.7.00ff.block"]);
    }

    /// Several clients of one image would hand its lock to each other, and nothing else would be
    /// measured.
    #[test]
    fn each_load_is_one_client_with_all_in_flight() {
        let (name, words, bytes) = asked("block railway");
        assert!(
            words.contains(&"--iodepth=30".into())
                && !words.iter().any(|w| w.starts_with("--numjobs")),
            "{words:?}"
        );
        assert!(
            words.contains(&"--rwmixread=70".into()) && name.contains("30 in flight"),
            "{name} {words:?}"
        );
        assert_eq!(bytes, 16 << 10);
        let (_, words, bytes) = asked("block randwrite -t 7");
        assert!(words.contains(&"--iodepth=7".into()), "{words:?}");
        assert_eq!(bytes, 4 << 10);
    }
}
