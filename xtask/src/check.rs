//! Format, lints, supply chain.

use crate::run::{TESTED, command, have, root, status};
use anyhow::Context;

/// Runs all checks; false if one found something.
///
/// # Errors
/// When cargo cannot be started, or a manifest cannot be read.
pub fn check() -> anyhow::Result<bool> {
    let mut good = status(command("cargo").args(["fmt", "--all", "--check"]))?;
    // In the tests' profile: build scripts and procedural macros are built once for both.
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--profile", TESTED, "--", "-D", "warnings"];
    good &= status(command("cargo").args(clippy))?;
    good &= fuzz_lock_is_current()?;
    if have("cargo-deny") {
        good &= status(command("cargo").args(["deny", "--all-features", "check", "bans", "licenses", "sources"]))?;
    } else {
        eprintln!("xtask: SKIPPED cargo-deny: not installed (cargo install cargo-deny)");
    }
    Ok(good)
}

/// The fuzz targets are a workspace of their own, which nothing else builds: does its lock
/// file know every dependency of the crates that it names? Else `cargo xtask fuzz` fails.
fn fuzz_lock_is_current() -> anyhow::Result<bool> {
    let path = root().join("fuzz/Cargo.lock");
    let lock = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut good = true;
    for package in lock.split("[[package]]") {
        let Some(name) = package.lines().find_map(|l| l.strip_prefix("name = \"")?.strip_suffix('"')) else { continue };
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let Ok(manifest) = std::fs::read_to_string(manifest) else { continue };
        let table = manifest.lines().skip_while(|l| *l != "[dependencies]").skip(1).take_while(|l| !l.starts_with('['));
        let wanted =
            table.filter_map(|l| l.split(['.', ' ', '=']).next().filter(|d| !d.is_empty() && !d.starts_with('#')));
        for dependency in wanted {
            let listed = |l: &str| l.trim_start().strip_prefix('"')?.split(['"', ' ']).next().map(|d| d == dependency);
            if !package.lines().any(|l| listed(l) == Some(true)) {
                eprintln!(
                    "fuzz/Cargo.lock does not know that {name} needs {dependency}: cargo update --workspace --manifest-path fuzz/Cargo.toml"
                );
                good = false;
            }
        }
    }
    Ok(good)
}
