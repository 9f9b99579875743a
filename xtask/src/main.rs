//! Every developer task: `cargo xtask <task>`.
//!
//! `test` is what the README and CI run: it installs what the tests need (Debian packages,
//! by apt, when root), runs every Rust test and then the end-to-end tests with Ceph's own
//! clients. What cannot run here is reported as skipped, by name.

#![allow(clippy::disallowed_methods, reason = "it says how long it took")]

mod bench;
mod ceph;
mod check;
mod e2e;
mod fuzz;
mod kernel;
mod nightly;
mod packages;
mod quick;
mod reef;
mod run;
mod sim;
mod test;
mod tested;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Spirula's developer tasks")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints and supply chain: what must be clean before a commit
    Check,
    /// Install what the tests need, then run every test
    Test(test::Options),
    /// Say whether all tests passed on the commit that is checked out
    Tested,
    /// Run the simulator on seeds; a seed gives the same run each time
    Sim(sim::Options),
    /// Fuzz every decoder for a while (libFuzzer, on the stable toolchain)
    Fuzz(fuzz::Options),
    /// A real Ceph beside ours: start one, stop it, or measure both; results are kept in
    /// bench/results
    #[command(subcommand)]
    Ceph(ceph::Ceph),
    /// The longer campaigns: thousands of random maps, long store and PG runs, fuzzing
    Soak(test::SoakOptions),
    /// All campaigns, one after the other, with Reef's clients and a real Ceph beside ours; a page
    /// says what came of each
    Nightly(nightly::Options),
    /// Write the manual pages of `spirula` into a directory
    Man {
        /// The directory; created if missing
        dir: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    match run_task(Args::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does the task that a command line names, as if it had been typed behind `cargo xtask`.
fn run_line(line: &str) -> anyhow::Result<bool> {
    run_task(Args::try_parse_from(std::iter::once("cargo xtask").chain(line.split(' ')))?.task)
}

fn run_task(task: Task) -> anyhow::Result<bool> {
    match task {
        Task::Check => {
            let failed = check::check()?;
            failed.iter().for_each(|what| eprintln!("xtask check: failed: {what}"));
            Ok(failed.is_empty())
        }
        Task::Test(o) => test::test(&o),
        Task::Tested => tested::tested(),
        Task::Sim(o) => sim::sim(&o),
        Task::Fuzz(o) => fuzz::fuzz(&o),
        Task::Ceph(what) => ceph::ceph(&what),
        Task::Soak(o) => test::soak(&o),
        Task::Nightly(o) => nightly::nightly(&o),
        Task::Man { dir } => man(&dir),
    }
}

/// The pages are made by the program itself, of its command line.
fn man(dir: &std::path::Path) -> anyhow::Result<bool> {
    let dir = std::path::absolute(dir)?;
    run::status(
        run::command("cargo")
            .args(["run", "--quiet", "--locked", "--package", "spirula", "--", "man"])
            .arg(dir),
    )
}
