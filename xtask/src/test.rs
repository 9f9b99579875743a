//! `cargo xtask test` and `cargo xtask soak`.

use crate::run::{TESTED, command, noted, release_binary, root, status, target, tested_binaries};
use crate::{check, fuzz, kernel, packages, reef};
use anyhow::bail;
use clap::Args;
use std::process::Command;
use std::time::Instant;

/// Property tests draw the same cases whenever a change is tested, so that the verdict is on the
/// change; `soak` draws new ones. Any number will do.
const PROPTEST_SEED: &str = "1054237592";

/// What to test.
#[derive(Args)]
pub struct Options {
    /// Run the end-to-end tests with Reef 18.2 clients, too
    #[arg(long)]
    reef: bool,
    /// Run the end-to-end tests on a release build instead of the one with assertions
    #[arg(long)]
    release: bool,
    /// Only the Rust tests
    #[arg(long, conflicts_with = "e2e")]
    unit: bool,
    /// Only the end-to-end tests; optionally those whose name contains a word
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    e2e: Option<String>,
}

/// A campaign of its own.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Campaign {
    /// The store: crash states of all short workloads and of long ones, every byte of an image flipped, more random transactions
    Store,
    /// The store: millions of pairs in 1,000 objects, killed, opened and listed; prints figures
    Omaps,
    /// A cluster under load, killed with signal 9 again and again
    Kill9,
    /// Six OSDs on three hosts under a verifying load, with all that can go wrong; writes a report
    Thrash,
    /// 5,000 seeds of the simulator, other ones than every change runs, and the planted bugs
    Sim,
}

/// How long to soak.
#[derive(Args)]
pub struct SoakOptions {
    /// Only this campaign
    campaign: Option<Campaign>,
    /// How long `thrash` goes on
    #[arg(default_value_t = 30)]
    minutes: u32,
    /// Seed of `thrash` [default: drawn, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// How often `kill9` kills
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// How many crash states `store` tries at least; 0: every workload in every setting
    #[arg(long, default_value_t = 200_000)]
    states: u64,
    /// How many pairs `omaps` writes, 150 bytes each
    #[arg(long, default_value_t = 5_000_000)]
    pairs: u64,
    /// Has `omaps` go on with the store that it filled in part
    #[arg(long)]
    resume: bool,
    /// Seconds that `omaps` fills its store in one run; 0: until all pairs are there
    #[arg(long, default_value_t = 0)]
    fill_seconds: u32,
    /// Seconds for each fuzz target
    #[arg(long, default_value_t = 60)]
    fuzz_seconds: u32,
    /// Factor for the number of random cases of each property test
    #[arg(long, default_value_t = 20)]
    factor: u32,
}

/// Runs the tests; false if one failed.
///
/// # Errors
/// When something cannot be started at all.
pub fn test(o: &Options) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let missing = packages::install()?;
    let mut failed = Vec::new();
    // It downloads while others compute.
    let reef = (!o.unit).then(|| std::thread::spawn(reef::clients));
    if o.e2e.is_none() {
        failed.append(&mut check::check()?);
        let mut rust = command("cargo");
        rust.args(["test", "--workspace", "--locked", "--no-fail-fast", "--profile", TESTED])
            .env("PROPTEST_RNG_SEED", PROPTEST_SEED);
        noted(&mut rust, &mut failed)?;
        noted(&mut crate::sim::command_of(&crate::sim::Options::range(0, 300))?, &mut failed)?;
    }
    if let Some(reef) = reef {
        let reef = reef.join().unwrap_or_else(|_| bail!("the thread that makes a Debian 13 panicked"));
        if let Err(e) = &reef {
            // Tests that want it are skipped, by name.
            eprintln!("xtask: no Debian 13 with Ceph 18.2: {e:#}");
        }
        let debian = reef.as_ref().ok().and_then(Option::as_deref);
        let word = o.e2e.clone().unwrap_or_default();
        let run = |clients: &str, chroot: Option<&std::path::Path>, failed: &mut Vec<String>| {
            let mut c = e2e(&word, o.release)?;
            if let Some(debian) = debian {
                c.env("REEF", debian);
            }
            c.arg(format!("--junit-xml={}", target().join(format!("e2e-{clients}.xml")).display()));
            c.arg(format!("--junit-prefix={clients}"));
            if let Some(chroot) = chroot {
                c.arg("--clients").arg(chroot);
            }
            noted(&mut c, failed)
        };
        let wanted = ["ceph-common", "python3-rados", "python3-pytest"];
        match missing.iter().find(|(p, _)| wanted.contains(p)) {
            Some((package, _)) if packages::can_install() => {
                failed.push(format!("end-to-end tests: Debian package {package} could not be installed"));
            }
            Some((package, _)) => println!("SKIPPED end-to-end tests: Debian package {package} is not installed"),
            None => run("pacific", None, &mut failed)?,
        }
        if o.reef {
            match &reef {
                Ok(Some(chroot)) => run("reef", Some(chroot), &mut failed)?,
                Err(_) => failed.push("end-to-end tests with Reef clients: debootstrap fails".to_owned()),
                Ok(None) => println!("SKIPPED end-to-end tests with Reef clients: debootstrap is not possible here"),
            }
        }
    }
    for (package, why) in &missing {
        println!("SKIPPED {why}: Debian package {package} is not installed");
    }
    for what in &failed {
        println!("xtask test: failed: {what}");
    }
    let good = failed.is_empty();
    println!("xtask test: {} in {:.0} s", if good { "all good" } else { "FAILED" }, begun.elapsed().as_secs_f64());
    Ok(good)
}

/// The end-to-end tests whose names contain a word: on the binary that the simulator and the unit tests are built with, where a
/// wrong assumption ends them and a release would go on, or on a release.
fn e2e(word: &str, release: bool) -> anyhow::Result<Command> {
    let mut c = command(root().join("tests/e2e/run.py"));
    match kernel::guest() {
        Ok(Some(dir)) => drop(c.env("GUEST_KERNEL", dir)),
        Ok(None) => {}
        // Its tests are skipped, by name.
        Err(e) => eprintln!("xtask: no kernel for guests: {e:#}"),
    }
    c.arg("--binary").arg(if release { release_binary()? } else { tested_binaries()?.join("spirula") });
    if !word.is_empty() {
        c.arg("--only").arg(word);
    }
    Ok(c)
}

/// The longer campaigns.
///
/// # Errors
/// When something cannot be started at all.
pub fn soak(o: &SoakOptions) -> anyhow::Result<bool> {
    match o.campaign {
        Some(Campaign::Store) => return soak_store(o),
        Some(Campaign::Omaps) => return soak_omaps(o),
        Some(Campaign::Kill9) => return soak_kill9(o),
        Some(Campaign::Thrash) => return soak_thrash(o),
        Some(Campaign::Sim) => return soak_sim(),
        None => {}
    }
    packages::install()?;
    let many = (256 * o.factor).to_string();
    let maps = (200 * o.factor).to_string();
    let mut c = command("cargo");
    c.args(["test", "--workspace", "--locked", "--no-fail-fast", "--release"])
        .env("PROPTEST_CASES", &many)
        .env("SPIRULA_CRUSH_MAPS", &maps)
        .env("SPIRULA_MAPS", &maps);
    let mut good = status(&mut c)?;
    good &= soak_sim()?;
    Ok(fuzz::fuzz(&fuzz::Options { seconds: o.fuzz_seconds, target: None, replay: false })? && good)
}

fn soak_store(o: &SoakOptions) -> anyhow::Result<bool> {
    let test = |packages: &[&str], args: &[&str]| {
        let mut c = command("cargo");
        c.args(["test", "--locked", "--release", "--no-fail-fast", "--lib"]);
        packages.iter().for_each(|p| {
            c.args(["--package", p]);
        });
        c.args(["--", "--nocapture"]).args(args).env("PROPTEST_CASES", (256 * o.factor).to_string());
        if o.states > 0 {
            c.env("SPIRULA_CRASH_STATES", o.states.to_string());
        }
        status(&mut c)
    };
    // Alone, each with all cores: they say how far they are.
    let mut good = test(&["spirula-store"], &["--ignored", "soak_of_crash_states"])?;
    good &= test(&["spirula-store"], &["--ignored", "soak_of_bit_flips"])?;
    good &= test(&["spirula-store"], &["--ignored", "soak_of_random_overwrites"])?;
    good &= test(&["spirula-store"], &["--ignored", "soak_of_requests_on_16_tib_in_pieces"])?;
    good &= test(&["spirula-store", "spirula-tree"], &[])?;
    Ok(good)
}

fn soak_omaps(o: &SoakOptions) -> anyhow::Result<bool> {
    let mut c = command("cargo");
    c.args(["bench", "--locked", "--package", "spirula-store", "--"]).arg(target().join("omaps"));
    c.args([&o.fill_seconds.to_string(), "omaps", &o.pairs.to_string()]);
    if o.resume {
        c.arg("--resume");
    }
    status(&mut c)
}

/// `tests/e2e/test_thrash.py`, for longer; the report goes to the target directory.
fn soak_thrash(o: &SoakOptions) -> anyhow::Result<bool> {
    packages::install()?;
    let report = target().join("thrash.md");
    let mut c = e2e("Thrash", false)?;
    c.arg("--capture=no");
    c.env("THRASH_MINUTES", o.minutes.to_string()).env("THRASH_REPORT", &report);
    c.env("SPIRULA_E2E_LOGS", target().join("thrash.log"));
    if let Some(seed) = o.seed {
        c.env("THRASH_SEED", seed.to_string());
    }
    let good = status(&mut c)?;
    println!("report: {}", report.display());
    Ok(good)
}

fn soak_sim() -> anyhow::Result<bool> {
    let good = crate::sim::sim(&crate::sim::Options::range(1000, 5000))?;
    let bugs = crate::sim::Options { bugs: true, ..crate::sim::Options::range(0, 200) };
    Ok(crate::sim::sim(&bugs)? && good)
}

fn soak_kill9(o: &SoakOptions) -> anyhow::Result<bool> {
    packages::install()?;
    status(e2e("Durability", false)?.arg("--capture=no").env("SPIRULA_KILLS", o.kills.to_string()))
}
