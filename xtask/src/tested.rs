//! Which commits passed all tests: `target/tested/COMMIT`, and `cargo xtask tested`.

use crate::run::{command, target};
use anyhow::{Context, bail};

/// What git answers, without the last line's end.
fn git(args: &[&str]) -> anyhow::Result<String> {
    let out = command("git").args(args).output().context("start git")?;
    if !out.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
}

/// The commit that is checked out.
///
/// # Errors
/// When this is no checkout.
pub fn head() -> anyhow::Result<String> {
    git(&["rev-parse", "HEAD"])
}

/// The commit that is checked out, if the tree is the commit's: nothing changed, nothing that git
/// does not know.
///
/// # Errors
/// When this is no checkout.
pub fn whole_head() -> anyhow::Result<Option<String>> {
    let differs = !git(&["status", "--porcelain"])?.is_empty();
    Ok(if differs { None } else { Some(head()?) })
}

/// Paths that differ from a commit, from the workspace's root, with those that git does not know
/// yet.
///
/// # Errors
/// When there is no such commit.
pub fn changed_since(commit: &str) -> anyhow::Result<Vec<String>> {
    let mut all = git(&["diff", "--name-only", "--relative", commit])?;
    all.push('\n');
    all += &git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(all.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect())
}

/// The last commit that this checkout shares with where its changes go.
///
/// # Errors
/// When it knows no `origin/main`.
pub fn base() -> anyhow::Result<String> {
    git(&["merge-base", "HEAD", "origin/main"])
        .context("this checkout has no origin/main: name a commit, as in --since HEAD~1")
}

/// Notes that all tests passed on a commit, where the tree is still that commit's.
///
/// # Errors
/// When it cannot be written.
pub fn note(commit: &str, text: &str) -> anyhow::Result<()> {
    if whole_head()?.as_deref() != Some(commit) {
        eprintln!("xtask: the tree was changed while it was tested, so nothing is noted");
        return Ok(());
    }
    let folder = target().join("tested");
    std::fs::create_dir_all(&folder)?;
    let at = folder.join(commit);
    std::fs::write(&at, format!("{} {text}\n", today()?))
        .with_context(|| format!("write {}", at.display()))?;
    println!("xtask test: noted in {}", at.display());
    Ok(())
}

/// `cargo xtask tested`: says whether the commit that is checked out passed all tests here.
///
/// # Errors
/// When this is no checkout.
pub fn tested() -> anyhow::Result<bool> {
    let head = head()?;
    let note = std::fs::read_to_string(target().join("tested").join(&head));
    match &note {
        Ok(text) => println!("{head} passed all tests: {}", text.trim()),
        Err(_) => println!("nothing says that {head} passed all tests: cargo xtask test"),
    }
    let whole = whole_head()?.is_some();
    if !whole {
        println!("the tree differs from that commit");
    }
    Ok(note.is_ok() && whole)
}

/// Day and minute, in UTC.
///
/// # Errors
/// When `date` cannot be started.
pub fn today() -> anyhow::Result<String> {
    let out = command("date").args(["-u", "+%Y-%m-%d %H:%M"]).output().context("start date")?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
