//! What ARCHITECTURE.md says of the crates, checked: arrows point down, runtimes and system
//! calls stay where they belong, pure crates are pure, and the files it names exist.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "layers/ratchet.rs"]
mod ratchet;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every crate and its layer, as in ARCHITECTURE.md. A crate depends on its own layer and
/// those below it.
const LAYERS: &[(&str, u8)] = &[
    ("spirula-encoding", 0),
    ("spirula-types", 0),
    ("spirula-buffer", 0),
    ("spirula-messages", 0),
    ("spirula-format", 0),
    ("spirula-settings", 0),
    ("spirula-history", 0),
    ("spirula-crush", 1),
    ("spirula-maps", 1),
    ("spirula-client", 1),
    ("spirula-block", 1),
    ("spirula-messenger", 1),
    ("spirula-erasure", 0),
    ("spirula-classes", 0),
    ("spirula-pg", 1),
    ("spirula-quorum", 1),
    ("spirula-auth", 1),
    ("spirula-tree", 2),
    ("spirula-store", 2),
    ("spirula-runtime", 2),
    ("spirula-rados", 2),
    ("spirula-mon", 3),
    ("spirula-mgr", 3),
    ("spirula-osd", 3),
    ("spirula-sim", 4),
    ("spirula-lab", 4),
    ("spirula", 4),
];

/// The layer of the daemons, which know each other by messages only.
const DAEMONS: u8 = 3;

/// Libraries that do I/O, keep time or start threads, and the crates that may use them.
const CONFINED: &[(&str, &[&str])] = &[
    // spirula-block takes channels and locks of it, which need no runtime.
    // spirula-rados names the loop that its links live on.
    ("tokio", &["spirula-runtime", "spirula-rados", "spirula-block", "spirula-lab", "spirula"]),
    ("socket2", &["spirula-runtime"]),
    ("rustix", &["spirula-store", "spirula-runtime", "spirula-mon", "spirula-lab", "spirula"]),
    ("anyhow", &["spirula-lab", "spirula"]),
    ("clap", &["spirula-lab", "spirula"]),
    ("tracing-subscriber", &["spirula", "spirula-sim"]),
];

/// State machines and values: no clock, no threads, no randomness, no I/O.
const PURE: &[&str] = &[
    "spirula-encoding",
    "spirula-types",
    "spirula-messages",
    "spirula-format",
    "spirula-settings",
    "spirula-history",
    "spirula-crush",
    "spirula-maps",
    "spirula-client",
    "spirula-block",
    "spirula-messenger",
    "spirula-pg",
    "spirula-auth",
    "spirula-mon",
    "spirula-mgr",
    "spirula-buffer",
    "spirula-erasure",
    "spirula-classes",
    "spirula-quorum",
    "spirula-tree",
    // It holds links of `spirula-runtime` and a store; what opens them and reads the clock is its
    // shell in `spirula`.
    "spirula-osd",
];

/// The others, and what of the world each owns.
const WORLD: &[(&str, &str)] = &[
    ("spirula-store", "devices and the threads that write to them"),
    ("spirula-runtime", "the clock, sockets, threads, random numbers"),
    ("spirula-rados", "the time at which its loop tells it something"),
    ("spirula-sim", "its command line and its threads; the world it simulates is pure"),
    ("spirula-lab", "what it measures with: the clock, /proc, devices, processes that it starts"),
    ("spirula", "processes, files, the terminal"),
];

/// The files of pure crates that do I/O: the monitor's store, and its copies.
const IMPURE: &[&str] = &["spirula-mon/src/store.rs", "spirula-mon/src/store/copy.rs"];

/// What pure sources do not contain.
const WORLDLY: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "clock::monotonic",
    "clock::wall",
    "thread_rng",
    "getrandom",
    "std::thread",
    "thread::spawn",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::env::var",
    "RandomState",
    "HashMap::new",
    "HashSet::new",
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

/// Our crates and what each needs outside its tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--no-deps"])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let all: Value = serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let ours = list(&all["packages"]).into_iter().filter(|p| p["name"] != "xtask");
    ours.map(|p| {
        let needed = list(&p["dependencies"]).into_iter().filter(|d| d["kind"] != "dev");
        (text(&p["name"]), needed.map(|d| text(&d["name"])).collect())
    })
    .collect()
}

#[test]
fn every_crate_has_a_layer_and_depends_downwards_only() {
    let layers: BTreeMap<&str, u8> = LAYERS.iter().copied().collect();
    let crates = dependencies();
    let mut bad = Vec::new();
    for (name, needed) in &crates {
        let Some(own) = layers.get(name.as_str()) else {
            bad.push(format!(
                "{name} is not in this test's table; ARCHITECTURE.md wants a line for it, too"
            ));
            continue;
        };
        for other in needed {
            match layers.get(other.as_str()) {
                Some(layer) if layer > own => {
                    bad.push(format!("{name} (layer {own}) needs {other} (layer {layer})"))
                }
                Some(&DAEMONS) if *own == DAEMONS => {
                    bad.push(format!("{name} needs {other}: one daemon another"))
                }
                _ => {}
            }
        }
    }
    bad.extend(
        layers.keys().filter(|n| !crates.contains_key(**n)).map(|n| format!("{n} is no crate")),
    );
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn runtimes_and_system_calls_stay_where_they_belong() {
    let crates = dependencies();
    let mut bad = Vec::new();
    for (library, allowed) in CONFINED {
        for (name, _) in crates
            .iter()
            .filter(|(name, needed)| needed.contains(*library) && !allowed.contains(&&***name))
        {
            bad.push(format!("{name} uses {library}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn every_crate_is_pure_or_says_what_of_the_world_it_owns() {
    let mut listed: Vec<&str> =
        PURE.iter().copied().chain(WORLD.iter().map(|(name, _)| *name)).collect();
    listed.sort_unstable();
    let mut all: Vec<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
    all.sort_unstable();
    assert_eq!(listed, all);
}

/// The parts of ARCHITECTURE.md between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn architecture_lists_the_crates_in_their_layers() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let table = text
        .lines()
        .skip_while(|l| *l != "## Layers")
        .skip(1)
        .take_while(|l| !l.starts_with("## "));
    let mut layer = 0;
    let mut found = Vec::new();
    for row in table {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let (Some(first), Some(second)) = (cells.next(), cells.next()) else { continue };
        if let Some(n) = first.chars().next().and_then(|c| c.to_digit(10)) {
            layer = n as u8;
        }
        if let Some(name) = second.strip_prefix('`').and_then(|s| s.strip_suffix('`')) {
            found.push((name.to_owned(), layer));
        }
    }
    let mut expected: Vec<_> = LAYERS.iter().map(|(n, l)| ((*n).to_owned(), *l)).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn files_named_in_the_documents_exist() {
    let root = root();
    let mut bad = Vec::new();
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        // Code blocks hold three backticks, which would turn the pairs round.
        let text: Vec<String> =
            read(&root.join(document)).split("```").step_by(2).map(str::to_owned).collect();
        for name in text.iter().flat_map(|t| quoted(t)) {
            let a_path = name.contains('/') || name.ends_with(".rs");
            // What is below `target` is made by tools.
            if !a_path || name.contains([' ', ':', '*']) || name.starts_with("target/") {
                continue;
            }
            if ![root.join(name), root.join("crates").join(name)].iter().any(|p| p.exists()) {
                bad.push(format!("{document} names {name}, which does not exist"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Everything below `dir` but what is built and what version control keeps.
fn everything(dir: &Path, out: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).flatten() {
        let path = e.path();
        let name = e.file_name();
        if path.is_symlink() || ["target", ".git", "spirula-data"].iter().any(|n| name == *n) {
            continue;
        }
        if path.is_dir() {
            everything(&path, out);
        } else {
            out.push(path);
        }
    }
}

#[test]
fn nothing_here_points_outside_of_the_repository() {
    // In two parts, so that this file does not name them itself. The second is where this project's
    // machines have it.
    let outside = [concat!("..", "/shared"), concat!("/work", "/shared"), concat!("`shared", "/")];
    let (mut files, mut bad) = (Vec::new(), Vec::new());
    everything(&root(), &mut files);
    assert!(files.len() > 500, "only {} files", files.len());
    for file in files {
        let bytes = std::fs::read(&file).unwrap_or_default();
        // What is no text is a test's data.
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        for (n, line) in text.lines().enumerate() {
            if let Some(word) = outside.iter().find(|w| line.contains(**w)) {
                bad.push(format!("{}:{} names {word}", file.display(), n + 1));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The Rust sources below `dir`, but not tests.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).flatten() {
        let path = e.path();
        let name = e.file_name();
        if path.is_dir() && name != "tests" {
            sources(&path, out);
        } else if path.extension().is_some_and(|x| x == "rs") && name != "tests.rs" {
            out.push(path);
        }
    }
}

#[test]
fn pure_crates_read_no_clock_draw_no_number_and_do_no_io() {
    let crates = root().join("crates");
    let mut bad = Vec::new();
    for name in PURE {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        assert!(!files.is_empty(), "{name} has no sources");
        for file in files {
            let shown = file.strip_prefix(&crates).unwrap_or(&file).display().to_string();
            if IMPURE.contains(&shown.as_str()) {
                continue;
            }
            let text = read(&file);
            // Tests come last in a file.
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (n, line) in
                code.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//"))
            {
                if let Some(word) = WORLDLY.iter().find(|w| line.contains(**w)) {
                    bad.push(format!("{shown}:{} uses {word}", n + 1));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
