//! No option is taken in silence by which nothing changes: each is read somewhere, belongs to
//! clients, or says `(ignored)`, and then `config set` and `config help` say so.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use spirula_settings::options::OPTIONS;
use std::path::Path;

/// Options that clients ask their monitor for, by how their names begin.
const OF_CLIENTS: &[&str] = &[
    "client_",
    "debug_client",
    "debug_mds",
    "debug_ms",
    "debug_objecter",
    "debug_rados",
    "debug_rbd",
    "debug_rgw",
    "mds_",
    "objecter_",
    "rados_",
    "rbd_",
    "rgw_",
];

/// Names that the OSD's scheduler puts together of a stem and the kind of its disk.
const COMPOSED: &[&str] = &["osd_recovery_max_active_", "osd_recovery_sleep_"];

/// What stands in the sources under `dir`, tests left out.
fn sources(dir: &Path, out: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, out);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "options.rs" {
            let text = std::fs::read_to_string(&path).unwrap();
            out.push_str(text.split("#[cfg(test)]").next().unwrap());
        }
    }
}

#[test]
fn every_option_has_a_reader_or_says_that_it_is_ignored() {
    let mut text = String::new();
    for krate in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
        let dir = krate.unwrap().path().join("src");
        if dir.is_dir() {
            sources(&dir, &mut text);
        }
    }
    for stem in COMPOSED {
        assert!(text.contains(&format!("\"{stem}{{kind}}\"")), "{stem} is put together no more");
    }
    let starts = |name: &str, list: &[&str]| list.iter().any(|p| name.starts_with(p));
    let silent: Vec<&str> = OPTIONS
        .iter()
        .filter(|o| !o.is_ignored() && !starts(o.name, OF_CLIENTS) && !starts(o.name, COMPOSED))
        .filter(|o| !text.contains(&format!("\"{}\"", o.name)))
        .map(|o| o.name)
        .collect();
    assert!(silent.is_empty(), "nothing reads these, and they do not say `(ignored)`: {silent:?}");
}
