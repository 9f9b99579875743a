//! Format, lints, supply chain.

use crate::run::{TESTED, command, have, noted, target};

/// Runs all checks; which of them found something.
///
/// # Errors
/// When cargo cannot be started.
pub fn check() -> anyhow::Result<Vec<String>> {
    let mut failed = Vec::new();
    noted(command("cargo").args(["fmt", "--all", "--check"]), &mut failed)?;
    // In the tests' profile: build scripts and procedural macros are built once for both.
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--profile",
        TESTED,
        "--",
        "-D",
        "warnings",
    ];
    noted(command("cargo").args(clippy), &mut failed)?;
    // The fuzz targets are a workspace of their own, which nothing else builds.
    let fuzz = ["check", "--manifest-path", "fuzz/Cargo.toml", "--locked", "--bins"];
    noted(
        command("cargo").args(fuzz).env("CARGO_TARGET_DIR", target().join("fuzz-check")),
        &mut failed,
    )?;
    if have("cargo-deny") {
        let deny = ["deny", "--all-features", "check", "bans", "licenses", "sources"];
        noted(command("cargo").args(deny), &mut failed)?;
    } else {
        eprintln!("xtask: SKIPPED cargo-deny: not installed (cargo install cargo-deny)");
    }
    Ok(failed)
}
