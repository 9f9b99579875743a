//! Golden vectors: bytes, dumps and mappings made by Ceph 16.2.15.

use spirula_crush::{CrushMap, Scratch};
use spirula_encoding::{from_slice, to_vec};
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/protocol/vectors/crush"))
}

/// Names and bytes of all golden maps; empty (and says so) if they are not here.
pub fn maps(test: &str) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(dir()) else {
        eprintln!("SKIPPED {test}: {} is not here", dir().display());
        return Vec::new();
    };
    let mut all: Vec<_> = entries
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
    for (name, bytes) in maps("golden_maps_round_trip_to_the_same_bytes") {
        let map: CrushMap = from_slice(&bytes).unwrap();
        assert_eq!(to_vec(&map), bytes, "{name}");
    }
}

/// Device weights from a header such as `weights: osd.1=0 osd.3=0.5 others=1`.
fn header_weights(map: &CrushMap, text: &str) -> Vec<u32> {
    let present = |id: i32| map.buckets.iter().flatten().any(|b| b.items.contains(&id));
    let mut w: Vec<u32> = (0..map.max_devices).map(|id| if present(id) { 0x10000 } else { 0 }).collect();
    for word in text.split_whitespace() {
        let Some((id, value)) = word.strip_prefix("osd.").and_then(|s| s.split_once('=')) else { continue };
        w[id.parse::<usize>().unwrap()] = (value.parse::<f64>().unwrap() * 65536.0) as u32;
    }
    w
}

#[test]
fn golden_mappings_are_reproduced() {
    let mut scratch = Scratch::new();
    let mut out = Vec::new();
    let (mut lines, mut files) = (0, 0);
    let all = maps("golden_mappings_are_reproduced");
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
            map.do_rule_into(&mut scratch, rule, x.parse().unwrap(), num_rep, &weights, None, &mut out);
            let got = format!("{out:?}").replace(' ', "");
            assert_eq!(got, want, "{name} rule {rule} num-rep {num_rep} x {x}");
            lines += 1;
        }
    }
    assert!(all.is_empty() || (files >= 10 && lines > 80_000), "only {lines} lines in {files} files");
}
