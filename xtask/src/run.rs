//! Running other programs.

use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A command in the workspace's root.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut c = Command::new(program);
    c.current_dir(root());
    c
}

/// Runs a command to its end, output to ours; true if it succeeded.
///
/// # Errors
/// When it cannot be started.
pub fn status(c: &mut Command) -> anyhow::Result<bool> {
    let shown = format!("{c:?}").replace('"', "");
    eprintln!("xtask: {shown}");
    Ok(c.status().with_context(|| format!("start {shown}"))?.success())
}

/// Runs a command that must succeed.
///
/// # Errors
/// When it cannot be started or fails.
pub fn must(c: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{c:?}").replace('"', "");
    if status(c)? { Ok(()) } else { bail!("failed: {shown}") }
}

/// Is this program on the PATH?
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|d| d.join(program).is_file())
}

/// What tests run: optimised a little, with every assertion.
pub const TESTED: &str = "sim";

/// The binaries `spirula` and `spirula-sim` that tests run, built if needed; the folder that holds them.
///
/// # Errors
/// When the build fails.
pub fn tested_binaries() -> anyhow::Result<PathBuf> {
    let both = ["--package", "spirula", "--package", "spirula-sim"];
    must(command("cargo").args(["build", "--locked", "--profile", TESTED]).args(both))?;
    Ok(target().join(TESTED))
}

/// The release binary, built if needed.
///
/// # Errors
/// When the build fails.
pub fn release_binary() -> anyhow::Result<PathBuf> {
    must(command("cargo").args(["build", "--release", "--locked", "--package", "spirula"]))?;
    Ok(target().join("release/spirula"))
}
