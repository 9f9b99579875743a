//! `cargo xtask nightly`: all that takes too long for every change, one after the other, and what came of it on one page.
//!
//! A step that fails does not end the night: the others say what they have to say, and the page (`target/nightly.md`) is written
//! anew after each, so that a machine that stops in between leaves what was found until then.

use crate::run::{command, must, release_binary, root, status, target};
use crate::{ceph, run_line};
use anyhow::Context;
use clap::{Args, ValueEnum};
use std::path::Path;
use std::time::Instant;

/// What a night consists of, in this order.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// What every change runs, and the end-to-end tests with Reef's clients, too
    Test,
    /// More cases of each property test, 5,000 seeds of the simulator, its planted bugs, fuzzing
    Soak,
    /// The store's campaigns
    Store,
    /// A cluster killed again and again
    Kill9,
    /// The thrash, for as long as `--minutes` says
    Thrash,
    /// Spirula's own client at a real Ceph, while its OSDs go down and PGs split
    Client,
    /// An administrator's commands on Spirula and on a real Ceph, answer beside answer
    Admin,
    /// Objects and block images measured beside a real Ceph
    Bench,
}

/// Which night.
#[derive(Args)]
pub struct Options {
    /// Only this step; may be given several times
    #[arg(long)]
    only: Vec<Step>,
    /// Minutes of the thrash
    #[arg(long, default_value_t = 120)]
    minutes: u32,
    /// Crash states that the store tries at least
    #[arg(long, default_value_t = 500_000)]
    states: u64,
}

/// Runs the steps; false if one of them failed.
///
/// # Errors
/// When the page cannot be written.
pub fn nightly(o: &Options) -> anyhow::Result<bool> {
    let page = target().join("nightly.md");
    let mut text = String::from("# The night's campaigns\n\n| step | outcome | minutes |\n|---|---|---|\n");
    let mut good = true;
    for step in Step::value_variants() {
        if !o.only.is_empty() && !o.only.contains(step) {
            continue;
        }
        let name = step.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
        eprintln!("xtask nightly: {name}");
        let begun = Instant::now();
        let outcome = match run(*step, o) {
            Ok(true) => "good".to_owned(),
            Ok(false) => "FAILED".to_owned(),
            Err(e) => format!("FAILED: {e:#}").replace(['|', '\n'], " "),
        };
        good &= outcome == "good";
        text += &format!("| {name} | {outcome} | {:.0} |\n", begun.elapsed().as_secs_f64() / 60.0);
        std::fs::create_dir_all(target())?;
        std::fs::write(&page, &text).with_context(|| format!("write {}", page.display()))?;
    }
    print!("{text}");
    println!("this page: {}; the thrash's report: {}", page.display(), target().join("thrash.md").display());
    Ok(good)
}

fn run(step: Step, o: &Options) -> anyhow::Result<bool> {
    match step {
        Step::Test => run_line("test --reef"),
        Step::Soak => run_line("soak"),
        Step::Store => run_line(&format!("soak store --states {}", o.states)),
        Step::Kill9 => run_line("soak kill9"),
        Step::Thrash => run_line(&format!("soak thrash {}", o.minutes)),
        Step::Client => client(),
        Step::Admin => admin(),
        Step::Bench => Ok(run_line("ceph bench")? && run_line("ceph bench --rbd")?),
    }
}

/// `spirula-runtime`'s test `real`, which says what it lacks where there is no Ceph.
fn client() -> anyhow::Result<bool> {
    let mut c = command("cargo");
    c.args(["test", "-p", "spirula-runtime", "--test", "real", "--", "--ignored", "--nocapture"]);
    status(&mut c)
}

/// `tests/admin` on both clusters. That something differs is no failure: what may is in `docs/differences.md`, and the file with
/// all that does lies beside the records.
fn admin() -> anyhow::Result<bool> {
    let dir = target().join("admin");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("clear the last run")?;
    }
    std::fs::create_dir_all(&dir)?;
    let (ours, theirs) = (dir.join("spirula"), dir.join("ceph"));
    let binary = release_binary()?;
    let record = |who: &str, cluster: &Path| {
        let out = dir.join(format!("{who}.jsonl.gz"));
        let mut path = binary.parent().unwrap_or(root().as_path()).as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut c = command(root().join("tests/admin/run.py"));
        c.args(["record", "--who", who, "--cluster"]).arg(cluster).arg("--out").arg(&out).env("PATH", path);
        status(&mut c).map(|good| (good, out))
    };
    ceph::up(&theirs, 3, "8G", "")?;
    let real = record("real", &theirs);
    ceph::down(&theirs)?;
    must(command(&binary).arg("up").arg("--dir").arg(&ours).args([
        "--osds",
        "3",
        "--osd-size",
        "8G",
        "--port",
        "13400",
        "--detach",
    ]))?;
    let own = record("ours", &ours);
    must(command(&binary).arg("down").arg("--dir").arg(&ours))?;
    let ((real_good, real), (own_good, own)) = (real?, own?);
    let mut c = command(root().join("tests/admin/run.py"));
    c.arg("compare").arg(real).arg(own).arg("--out").arg(dir.join("differs.txt"));
    Ok(status(&mut c)? && real_good && own_good)
}
