//! `cargo xtask sim`: the simulator on seeds, built with optimisation and every assertion.

use crate::run::{command, status, tested_binaries};
use clap::Args;
use std::process::Command;

/// Which seeds.
#[derive(Args)]
pub struct Options {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How many; one is told in detail
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Plant bugs instead, each to be found by one of the seeds
    #[arg(long)]
    pub bugs: bool,
    /// Only those whose names contain this
    #[arg(long, requires = "bugs")]
    pub bug: Option<String>,
    /// Rarer faults for all seeds instead of some of them for every third: names apart from each
    /// other by commas
    #[arg(long)]
    pub faults: Option<String>,
    /// Print every message and fault of the first seed
    #[arg(long)]
    pub tell: bool,
}

impl Options {
    /// So many seeds from one on.
    pub fn range(seed: u64, seeds: u64) -> Self {
        Self { seed, seeds, bugs: false, bug: None, faults: None, tell: false }
    }
}

/// Runs them; false if one shows something wrong.
///
/// # Errors
/// When it cannot be built.
pub fn sim(o: &Options) -> anyhow::Result<bool> {
    status(&mut command_of(o)?)
}

/// What runs them, built.
///
/// # Errors
/// When it cannot be built.
pub fn command_of(o: &Options) -> anyhow::Result<Command> {
    let mut c = command(tested_binaries()?.join("spirula-sim"));
    c.args(["--seed", &o.seed.to_string(), "--seeds", &o.seeds.to_string()]);
    c.args(o.bugs.then_some("--bugs")).args(o.tell.then_some("--tell"));
    c.args(o.bug.iter().flat_map(|b| ["--bug", b]));
    c.args(o.faults.iter().flat_map(|f| ["--faults", f]));
    Ok(c)
}
