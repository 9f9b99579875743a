//! Format, lints, supply chain.

use crate::run::{command, have, status};

/// Runs all checks; false if one found something.
///
/// # Errors
/// When cargo cannot be started.
pub fn check() -> anyhow::Result<bool> {
    let mut good = status(command("cargo").args(["fmt", "--all", "--check"]))?;
    good &=
        status(command("cargo").args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    if have("cargo-deny") {
        good &= status(command("cargo").args(["deny", "--all-features", "check", "bans", "licenses", "sources"]))?;
    } else {
        eprintln!("xtask: SKIPPED cargo-deny: not installed (cargo install cargo-deny)");
    }
    Ok(good)
}
