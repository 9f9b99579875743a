//! `cargo xtask sim`: the simulator on seeds, built with optimisation and every assertion.

use crate::run::{command, status};
use clap::Args;

/// Which seeds.
#[derive(Args)]
pub struct Options {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How many; one is told in detail
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
}

/// Runs them; false if one shows something wrong.
///
/// # Errors
/// When cargo cannot be started.
pub fn sim(o: &Options) -> anyhow::Result<bool> {
    let mut c = command("cargo");
    c.args(["run", "-q", "--locked", "--profile", "sim", "-p", "spirula-sim", "--"]);
    c.args(["--seed", &o.seed.to_string(), "--seeds", &o.seeds.to_string()]);
    status(&mut c)
}
