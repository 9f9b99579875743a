//! `cargo xtask test --quick`: which crates a change reaches.

use crate::run::command;
use anyhow::{Context, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// A crate of the workspace.
struct Member {
    name: String,
    /// Its folder, from the workspace's root.
    folder: String,
    /// Crates of the workspace that it is built of, and those that its tests alone use.
    uses: Vec<String>,
    tests_use: Vec<String>,
}

/// The crates in which something differs, and those that use them: their tests may say something
/// else now.
///
/// # Errors
/// When cargo does not tell what the workspace is.
pub fn reached(changed: &[String]) -> anyhow::Result<Vec<String>> {
    Ok(reached_of(&members()?, changed))
}

fn members() -> anyhow::Result<Vec<Member>> {
    let out = command("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .output()
        .context("start cargo")?;
    if !out.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let told: Value = serde_json::from_slice(&out.stdout)?;
    let root = told["workspace_root"].as_str().unwrap_or_default();
    let member = |p: &Value| {
        let folder = Path::new(p["manifest_path"].as_str()?)
            .parent()?
            .strip_prefix(root)
            .ok()?
            .to_str()?
            .to_owned();
        let of = |tests: bool| {
            let all = p["dependencies"].as_array().into_iter().flatten();
            let own = all.filter(|d| !d["path"].is_null() && (d["kind"] == "dev") == tests);
            own.filter_map(|d| Some(d["name"].as_str()?.to_owned())).collect()
        };
        Some(Member {
            name: p["name"].as_str()?.to_owned(),
            folder,
            uses: of(false),
            tests_use: of(true),
        })
    };
    Ok(told["packages"].as_array().into_iter().flatten().filter_map(member).collect())
}

fn reached_of(members: &[Member], changed: &[String]) -> Vec<String> {
    // What all crates are built with.
    let of_all = |path: &String| {
        matches!(
            path.as_str(),
            "Cargo.toml" | "Cargo.lock" | ".cargo/config.toml" | "rust-toolchain.toml"
        )
    };
    let own = |m: &Member| changed.iter().any(|path| Path::new(path).starts_with(&m.folder));
    if changed.iter().any(of_all) {
        return members.iter().map(|m| m.name.clone()).collect();
    }
    let mut built: BTreeSet<&str> =
        members.iter().filter(|m| own(m)).map(|m| m.name.as_str()).collect();
    loop {
        let further = members
            .iter()
            .filter(|m| m.uses.iter().any(|u| built.contains(u.as_str())))
            .map(|m| m.name.as_str());
        let before = built.len();
        built.extend(further.collect::<Vec<_>>());
        if built.len() == before {
            break;
        }
    }
    let tests = members
        .iter()
        .filter(|m| m.tests_use.iter().any(|u| built.contains(u.as_str())))
        .map(|m| m.name.as_str());
    let all: BTreeSet<&str> = built.iter().copied().chain(tests).collect();
    all.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{Member, reached_of};

    fn member(name: &str, uses: &[&str], tests_use: &[&str]) -> Member {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Member {
            name: name.to_owned(),
            folder: format!("crates/{name}"),
            uses: owned(uses),
            tests_use: owned(tests_use),
        }
    }

    fn of(changed: &[&str]) -> Vec<String> {
        let members = [
            member("buffer", &[], &[]),
            member("store", &["buffer"], &[]),
            member("osd", &["store"], &[]),
            member("mon", &["buffer"], &["store"]),
            member("storehouse", &[], &[]),
        ];
        reached_of(&members, &changed.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_change_reaches_all_that_use_it() {
        assert_eq!(of(&["docs/README.md", "tests/e2e/run.py"]), Vec::<String>::new());
        assert_eq!(of(&["crates/osd/src/lib.rs"]), ["osd"]);
        // The monitor's tests use the store; who uses the monitor would not be reached by that.
        assert_eq!(of(&["crates/store/tests/x.rs"]), ["mon", "osd", "store"]);
        assert_eq!(of(&["crates/buffer/src/lib.rs"]), ["buffer", "mon", "osd", "store"]);
        assert_eq!(of(&["Cargo.lock"]).len(), 5);
    }
}
