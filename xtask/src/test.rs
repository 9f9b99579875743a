//! `cargo xtask test` and `cargo xtask soak`.

use crate::run::{TESTED, command, noted, status, target};
use crate::{check, e2e, fuzz, packages, quick, reef, tested};
use anyhow::bail;
use clap::Args;
use std::process::Command;
use std::time::Instant;

/// Property tests draw the same cases whenever a change is tested, so that the verdict is on the
/// change; `soak` draws new ones. Any number will do.
const PROPTEST_SEED: &str = "1054237592";

/// Seeds of the simulator that every change runs, and those of `--quick`.
const SEEDS: u64 = 300;
const QUICK_SEEDS: u64 = 30;

/// What to test.
#[derive(Args)]
pub struct Options {
    /// Run the end-to-end tests with Reef 18.2 clients, too
    #[arg(long)]
    reef: bool,
    /// Run the end-to-end tests on a release build instead of the one with assertions
    #[arg(long)]
    release: bool,
    /// Run the tests, too, that take too long for every change
    #[arg(long)]
    nightly: bool,
    /// Only the Rust tests
    #[arg(long, conflicts_with = "e2e")]
    unit: bool,
    /// Only the end-to-end tests; optionally those whose name contains a word
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    e2e: Option<String>,
    /// In minutes: lints, the Rust tests of the crates that a change reaches, 30 seeds, and a dozen
    /// classes of end-to-end tests
    #[arg(long, conflicts_with_all = ["unit", "e2e", "reef"])]
    quick: bool,
    /// The commit that the change of `--quick` is measured from [default: what is shared with
    /// origin/main]
    #[arg(long, requires = "quick", value_name = "COMMIT")]
    since: Option<String>,
}

impl Options {
    /// All that a change must pass?
    fn is_whole(&self) -> bool {
        !self.unit && self.e2e.is_none() && !self.quick
    }
}

/// A test run: what failed so far, and how long each of its parts took.
struct Run {
    begun: Instant,
    phases: Vec<(&'static str, f64)>,
    failed: Vec<String>,
}

impl Run {
    /// A part of it, timed; it notes what failed.
    fn phase<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Vec<String>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        let done = work(&mut self.failed);
        self.phases.push((name, begun.elapsed().as_secs_f64()));
        done
    }
}

/// A campaign of its own.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Campaign {
    /// The store: crash states of all short workloads and of long ones, every byte of an image
    /// flipped, more random transactions
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
    let mut run = Run { begun: Instant::now(), phases: Vec::new(), failed: Vec::new() };
    // Sources from an archive are no checkout, and can be tested all the same.
    let commit = if o.is_whole() { tested::whole_head().unwrap_or_default() } else { None };
    let since = match (&o.since, o.quick) {
        (Some(commit), _) => Some(commit.clone()),
        (None, true) => Some(tested::base()?),
        (None, false) => None,
    };
    let missing = run.phase("packages and sources", |_| {
        // Both only wait for what they download. An error shows where the sources are built.
        let fetched = command("cargo").args(["fetch", "--locked"]).spawn();
        let missing = packages::install();
        if let Ok(mut child) = fetched {
            child.wait()?;
        }
        missing
    })?;
    // It downloads while others compute.
    let reef = (!o.unit && !o.quick).then(|| std::thread::spawn(reef::clients));
    if o.e2e.is_none() {
        let mut found = run.phase("format and lints", |_| check::check())?;
        run.failed.append(&mut found);
        rust_tests(since.as_deref(), &mut run)?;
        let seeds = if o.quick { QUICK_SEEDS } else { SEEDS };
        run.phase("seeds", |failed| {
            noted(&mut crate::sim::command_of(&crate::sim::Options::range(0, seeds))?, failed)
        })?;
    }
    let mut outcomes = Vec::new();
    if !o.unit {
        let reef = match reef {
            Some(thread) => thread
                .join()
                .unwrap_or_else(|_| bail!("the thread that makes a Debian 13 panicked")),
            None => Ok(reef::made()),
        };
        if let Err(e) = &reef {
            // Tests that want it are skipped, by name.
            eprintln!("xtask: no Debian 13 with Ceph 18.2: {e:#}");
        }
        let choice = e2e::Choice {
            word: o.e2e.as_deref().unwrap_or_default(),
            quick: o.quick,
            nightly: o.nightly,
            release: o.release,
            reef: reef.as_ref().ok().and_then(Option::as_deref),
            reef_clients: false,
        };
        let wanted = ["ceph-common", "python3-rados", "python3-pytest"];
        match missing.iter().find(|(p, _)| wanted.contains(p)) {
            Some((package, _)) if packages::can_install() => {
                run.failed.push(format!(
                    "end-to-end tests: Debian package {package} could not be installed"
                ));
            }
            Some((package, _)) => {
                println!("SKIPPED end-to-end tests: Debian package {package} is not installed")
            }
            None => outcomes.push(run.phase("end to end", |failed| e2e::run(&choice, failed))?),
        }
        if o.reef {
            match &reef {
                Ok(Some(_)) => {
                    let choice = e2e::Choice { reef_clients: true, ..choice };
                    outcomes.push(
                        run.phase("end to end, Reef's clients", |failed| {
                            e2e::run(&choice, failed)
                        })?,
                    );
                }
                Err(_) => run
                    .failed
                    .push("end-to-end tests with Reef clients: debootstrap fails".to_owned()),
                Ok(None) => println!(
                    "SKIPPED end-to-end tests with Reef clients: debootstrap is not possible here"
                ),
            }
        }
    }
    summary(run, &outcomes, &missing, commit.as_deref())
}

/// All Rust tests, or those of the crates that differ from a commit and of those that use them.
fn rust_tests(since: Option<&str>, run: &mut Run) -> anyhow::Result<()> {
    let mut tests = command("cargo");
    tests.arg("test");
    match since {
        None => drop(tests.arg("--workspace")),
        Some(commit) => {
            let crates = quick::reached(&tested::changed_since(commit)?)?;
            println!(
                "xtask test: since {commit} a change reaches {}",
                if crates.is_empty() { "no crate".to_owned() } else { crates.join(", ") }
            );
            if crates.is_empty() {
                return Ok(());
            }
            tests.args(crates.iter().flat_map(|c| ["--package", c]));
        }
    }
    tests
        .args(["--locked", "--no-fail-fast", "--profile", TESTED])
        .env("PROPTEST_RNG_SEED", PROPTEST_SEED);
    run.phase("Rust tests, with their build", |failed| noted(&mut tests, failed))
}

/// What stands last: whoever cuts long outputs keeps it.
fn summary(
    mut run: Run,
    outcomes: &[e2e::Outcome],
    missing: &packages::Missing,
    commit: Option<&str>,
) -> anyhow::Result<bool> {
    let unstable: Vec<_> = outcomes.iter().flat_map(|o| o.unstable.iter().cloned()).collect();
    e2e::tell_unstable(&unstable, &mut run.failed)?;
    for (package, why) in missing {
        println!("SKIPPED {why}: Debian package {package} is not installed");
    }
    for outcome in outcomes {
        println!("xtask test: the slowest classes:");
        outcome.slowest.iter().for_each(|line| println!("  {line}"));
    }
    println!("xtask test: wall time:");
    run.phases.iter().for_each(|(name, seconds)| println!("  {seconds:>7.0} s {name}"));
    for what in &run.failed {
        println!("xtask test: failed: {what}");
    }
    let good = run.failed.is_empty();
    let seconds = run.begun.elapsed().as_secs_f64();
    if let (true, Some(commit)) = (good && missing.is_empty(), commit) {
        let names: Vec<&str> = unstable.iter().map(|(class, _)| class.as_str()).collect();
        let but = if names.is_empty() {
            String::new()
        } else {
            format!(", unstable: {}", names.join(", "))
        };
        tested::note(commit, &format!("all good in {seconds:.0} s{but}"))?;
    }
    println!("xtask test: {} in {seconds:.0} s", if good { "all good" } else { "FAILED" });
    Ok(good)
}

/// The end-to-end tests whose names contain a word, for a campaign.
fn e2e_command(word: &str) -> anyhow::Result<Command> {
    e2e::Choice { word, nightly: true, ..e2e::Choice::default() }.command()
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
        c.args(["--", "--nocapture"])
            .args(args)
            .env("PROPTEST_CASES", (256 * o.factor).to_string());
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
    let mut c = e2e_command("Thrash")?;
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
    status(e2e_command("Durability")?.arg("--capture=no").env("SPIRULA_KILLS", o.kills.to_string()))
}
