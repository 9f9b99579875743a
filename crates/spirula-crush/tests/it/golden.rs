//! Golden vectors: bytes, dumps and mappings made by Ceph 16.2.15.

use spirula_crush::{CrushMap, Scratch};
use spirula_encoding::{from_slice, to_vec};
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/crush"))
}

/// Names and bytes of all golden maps.
pub fn maps() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(dir())
        .unwrap()
        .filter_map(|e| {
            let path = e.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".bin")?.to_owned();
            Some((name, std::fs::read(&path).unwrap()))
        })
        .collect();
    all.sort();
    all
}

fn gunzip(path: &Path) -> Option<String> {
    let out = Command::new("gzip").arg("-dc").arg(path).output().ok()?;
    out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
}

#[test]
fn golden_maps_round_trip_to_the_same_bytes() {
    for (name, bytes) in maps() {
        let map: CrushMap = from_slice(&bytes).unwrap();
        assert_eq!(to_vec(&map), bytes, "{name}");
    }
}

/// Device weights from a header such as `weights: osd.1=0 osd.3=0.5 others=1`.
fn header_weights(map: &CrushMap, text: &str) -> Vec<u32> {
    let present = |id: i32| map.buckets.iter().flatten().any(|b| b.items.contains(&id));
    let mut w: Vec<u32> =
        (0..map.max_devices).map(|id| if present(id) { 0x10000 } else { 0 }).collect();
    for word in text.split_whitespace() {
        let Some((id, value)) = word.strip_prefix("osd.").and_then(|s| s.split_once('=')) else {
            continue;
        };
        w[id.parse::<usize>().unwrap()] = (value.parse::<f64>().unwrap() * 65536.0) as u32;
    }
    w
}

#[test]
fn golden_mappings_are_reproduced() {
    let mut scratch = Scratch::new();
    let mut out = Vec::new();
    let (mut lines, mut files) = (0, 0);
    let all = maps();
    for (name, bytes) in &all {
        let map: CrushMap = from_slice(bytes).unwrap();
        let Some(text) = gunzip(&dir().join(format!("{name}.map.gz"))) else { continue };
        files += 1;
        let (mut rule, mut num_rep, mut weights) = (0, 0, Vec::new());
        for line in text.lines() {
            if let Some(h) = line.strip_prefix("# rule ") {
                let f: Vec<&str> = h.split_whitespace().collect();
                (rule, num_rep) = (f[0].parse().unwrap(), f[2].parse().unwrap());
                weights = header_weights(&map, h);
                continue;
            }
            let (x, want) = line.split_once(' ').unwrap();
            map.do_rule_into(
                &mut scratch,
                rule,
                x.parse().unwrap(),
                num_rep,
                &weights,
                None,
                &mut out,
            );
            let got = format!("{out:?}").replace(' ', "");
            assert_eq!(got, want, "{name} rule {rule} num-rep {num_rep} x {x}");
            lines += 1;
        }
    }
    assert!(
        all.is_empty() || (files >= 10 && lines > 80_000),
        "only {lines} lines in {files} files"
    );
}

#[test]
fn golden_dumps_are_reproduced() {
    for (name, bytes) in maps() {
        let map: CrushMap = from_slice(&bytes).unwrap();
        let Some(text) = gunzip(&dir().join(format!("{name}.json.gz"))) else { continue };
        let want: serde_json::Value = serde_json::from_str(&text).unwrap();
        let got = map.dump();
        assert_eq!(got, want, "{name}");
        // Field order too, as programs print it.
        assert_eq!(got.to_string(), want.to_string(), "{name}");
        map.check().unwrap();
    }
}

#[test]
fn golden_maps_cut_after_any_older_release_decode_with_defaults() {
    for (name, bytes) in maps() {
        let map: CrushMap = from_slice(&bytes).unwrap();
        let good = (0..bytes.len()).filter_map(|n| from_slice::<CrushMap>(&bytes[..n]).ok());
        let mut count = 0;
        for old in good {
            count += 1;
            assert_eq!(
                (&old.buckets, &old.rules, &old.names),
                (&map.buckets, &map.rules, &map.names),
                "{name}"
            );
            assert!(old.choose_args.is_empty());
        }
        assert!(count >= 6, "{name}: {count} prefixes decode");
    }
}

#[test]
fn new_cluster_gets_the_map_a_new_ceph_cluster_has() {
    let chain = dir().join("../osdmap/chain.tar.gz");
    let out = Command::new("tar").arg("-xzOf").arg(&chain).arg("full/001").output().expect("tar");
    assert!(out.status.success(), "{out:?}");
    let full = out.stdout;
    let found = ["osd", "host"].into_iter().any(|domain| {
        let ours = to_vec(&CrushMap::new_default(domain).unwrap());
        full.windows(ours.len()).any(|w| w == ours)
    });
    assert!(found, "epoch 1 holds another CRUSH map");
}
