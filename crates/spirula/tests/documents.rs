//! What the documents say of the code, as far as a program can tell: files and links that they name
//! lead somewhere, and every health code is explained.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Sources that raise health codes.
const CHECKS: &[&str] = &[
    "crates/spirula-mon/src/report/checks.rs",
    "crates/spirula-mon/src/report/fs.rs",
    "crates/spirula-mgr/src/health.rs",
    "crates/spirula-auth/src/db.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace exists")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The Markdown files of the root and below `docs`.
fn documents() -> Vec<PathBuf> {
    fn below(dir: &Path, deep: bool, out: &mut Vec<PathBuf>) {
        for e in std::fs::read_dir(dir).unwrap().flatten() {
            let path = e.path();
            if path.is_dir() && deep {
                below(&path, true, out);
            } else if path.extension().is_some_and(|x| x == "md") {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    below(&root(), false, &mut out);
    below(&root().join("docs"), true, &mut out);
    assert!(out.len() > 20, "{} documents", out.len());
    out
}

/// A document without its code blocks.
fn prose(path: &Path) -> String {
    read(path).split("```").step_by(2).collect()
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept: String = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect();
    kept.trim().replace(' ', "-")
}

fn anchors(path: &Path) -> BTreeSet<String> {
    prose(path)
        .lines()
        .filter(|l| l.starts_with('#'))
        .map(|l| anchor(l.trim_start_matches('#').trim()))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut bad = Vec::new();
    for document in documents() {
        let text = prose(&document);
        for link in text.split("](").skip(1).filter_map(|s| s.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(file)
            };
            let there = target.exists() && (place.is_empty() || anchors(&target).contains(place));
            if !there {
                bad.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn sources_named_exist() {
    let root = root();
    let mut bad = Vec::new();
    // What was is in the changelog; pages on Ceph's protocol name pieces of archives.
    let past =
        |d: &PathBuf| d.ends_with("CHANGELOG.md") || d.starts_with(root.join("docs/protocol"));
    for document in documents().into_iter().filter(|d| !past(d)) {
        for name in prose(&document).split('`').skip(1).step_by(2) {
            let first = name.split('/').next().unwrap_or_default();
            let ours = first.starts_with("spirula")
                || ["crates", "docs", "tests", "xtask", "fuzz"].contains(&first);
            if !ours || !name.contains('/') || name.contains([' ', ':', '*', '<']) {
                continue;
            }
            if ![root.join(name), root.join("crates").join(name)].iter().any(|p| p.exists()) {
                bad.push(format!("{} names {name}", document.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Is this a health code: upper-case words with an underscore between them?
fn is_code(text: &str) -> bool {
    text.contains('_') && text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

#[test]
fn every_health_code_is_explained() {
    let explained = read(&root().join("docs/troubleshooting.md"));
    let mut codes = BTreeSet::new();
    for source in CHECKS {
        let text = read(&root().join(source));
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        codes.extend(code.split('"').filter(|s| is_code(s)).map(str::to_owned));
    }
    assert!(codes.len() > 35, "found only {codes:?}");
    let missing: Vec<_> = codes.iter().filter(|c| !explained.contains(&format!("`{c}`"))).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md does not explain {missing:?}");
}
