//! Running other programs.

use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Runs a command of a test run to its end, output to ours. What failed is noted: the tests by
/// their names and the seeds, where the command's output names them, and the command itself. Long
/// outputs are cut by who keeps them; what stands last is kept.
///
/// # Errors
/// When it cannot be started, or its output cannot be read.
pub fn noted(c: &mut Command, failed: &mut Vec<String>) -> anyhow::Result<()> {
    let shown = format!("{c:?}").replace('"', "");
    let good = each_line(c, |text| {
        if text.ends_with("... FAILED")
            || text.starts_with("FAILED ")
            || text.starts_with("ERROR ")
            || text.starts_with("replay: ")
        {
            failed.push(text.to_owned());
        }
    })?;
    if !good {
        failed.push(shown);
    }
    Ok(())
}

/// Runs a command to its end, output to ours; whether it succeeded, and what it said.
///
/// # Errors
/// When it cannot be started, or its output cannot be read.
pub fn said(c: &mut Command) -> anyhow::Result<(bool, String)> {
    let mut all = String::new();
    let good = each_line(c, |text| {
        all.push_str(text);
        all.push('\n');
    })?;
    Ok((good, all))
}

/// Runs a command to its end, output to ours and line by line to somebody who looks at it; true if
/// it succeeded.
fn each_line(c: &mut Command, mut look: impl FnMut(&str)) -> anyhow::Result<bool> {
    let shown = format!("{c:?}").replace('"', "");
    eprintln!("xtask: {shown}");
    let mut child = c.stdout(Stdio::piped()).spawn().with_context(|| format!("start {shown}"))?;
    let mut out = std::io::stdout();
    for line in child.stdout.take().into_iter().flat_map(|o| BufReader::new(o).split(b'\n')) {
        let line = line.with_context(|| format!("output of {shown}"))?;
        out.write_all(&line)?;
        out.write_all(b"\n")?;
        look(&String::from_utf8_lossy(&line));
    }
    Ok(child.wait()?.success())
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

/// The binaries `spirula` and `spirula-sim` that tests run, built if needed; the folder that holds
/// them.
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
