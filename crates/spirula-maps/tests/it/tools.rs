//! Both directions against `osdmaptool` and `monmaptool` of a real Ceph.

use super::dumps::{same_json, sort_blocklist};
use super::golden::{mapping_lines, tool_lines};
use super::random::{Rng, osdmap};
use super::support::{have, read, run, scratch};
use spirula_encoding::{UTime, from_slice, to_vec};
use spirula_maps::{MonMap, OsdMap};
use spirula_types::{AddrVec, EntityAddr, Uuid};
use std::process::Command;

/// How many random maps: `SPIRULA_MAPS`, or few enough for every run.
fn maps() -> u64 {
    std::env::var("SPIRULA_MAPS").ok().and_then(|v| v.parse().ok()).unwrap_or(200)
}

fn sorted_blocklist(lines: Vec<&str>) -> Vec<String> {
    let (mut b, rest): (Vec<&str>, Vec<&str>) =
        lines.into_iter().partition(|l| l.starts_with("blocklist "));
    b.sort_unstable();
    rest.into_iter().chain(b).filter(|l| !l.is_empty()).map(str::to_string).collect()
}

#[test]
fn osdmaptool_reads_our_maps_and_puts_every_pg_where_we_do() {
    if !have("osdmaptool_reads_our_maps_and_puts_every_pg_where_we_do", "osdmaptool") {
        return;
    }
    let dir = scratch("osdmaptool");
    let bin = dir.join("map");
    let mut pgs = 0;
    for seed in 0..maps() {
        eprintln!("seed {seed}");
        let map = osdmap(seed);
        std::fs::write(&bin, to_vec(&map)).unwrap();
        let out = run(Command::new("osdmaptool").arg(&bin).args([
            "--test-map-pgs-dump-all",
            "--dump",
            "json",
        ]));
        let (want, got) = (tool_lines(&out), mapping_lines(&map));
        assert_eq!(got.len(), want.len(), "seed {seed}");
        for (g, w) in got.iter().zip(&want) {
            assert_eq!(g, w, "seed {seed}");
            pgs += 1;
        }
        let json = out.lines().find(|l| l.starts_with("{\"epoch\"")).unwrap();
        let mut want = serde_json::from_str(json).unwrap();
        let mut got = map.dump();
        sort_blocklist(&mut want);
        sort_blocklist(&mut got);
        same_json(&format!("seed {seed}"), &got, &want);
        if seed % 4 == 0 {
            let text = run(Command::new("osdmaptool").arg(&bin).arg("--print"));
            let ours = map.dump_text();
            assert_eq!(
                sorted_blocklist(ours.lines().collect()),
                sorted_blocklist(text.lines().filter(|l| !l.starts_with("osdmaptool")).collect()),
                "seed {seed}"
            );
        }
    }
    eprintln!("{pgs} PGs agree");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn maps_made_by_osdmaptool_reencode_to_the_same_bytes() {
    if !have("maps_made_by_osdmaptool_reencode_to_the_same_bytes", "osdmaptool") {
        return;
    }
    let dir = scratch("createsimple");
    for n in [1, 3, 17, 100] {
        let bin = dir.join(format!("map{n}"));
        let n = n.to_string();
        run(Command::new("osdmaptool")
            .args(["--createsimple", &n, "--with-default-pool"])
            .arg(&bin));
        let bytes = read(&bin);
        let map: OsdMap = from_slice(&bytes).unwrap();
        assert!(to_vec(&map) == bytes, "{n} OSDs");
        let out = run(Command::new("osdmaptool")
            .arg(&bin)
            .args(["--mark-up-in", "--test-map-pgs-dump-all"]));
        let mut up = map.clone();
        for o in 0..up.max_osd() as usize {
            up.osd_state[o] |= 3;
            up.osd_weight[o] = 0x10000;
        }
        assert_eq!(mapping_lines(&up), tool_lines(&out));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn monmaptool_prints_our_monmaps_as_we_do_and_we_reencode_its_own() {
    if !have("monmaptool_prints_our_monmaps_as_we_do_and_we_reencode_its_own", "monmaptool") {
        return;
    }
    let dir = scratch("monmaptool");
    let bin = dir.join("map");
    for seed in 0..20 {
        let mut r = Rng::new(seed);
        let mons = (0..1 + r.below(5)).map(|i| {
            let v2 =
                EntityAddr::v2(format!("10.0.0.{}:{}", r.below(256), 3300 + i).parse().unwrap(), 0);
            let v1 = EntityAddr { kind: EntityAddr::KIND_LEGACY, ..v2 };
            (
                format!("m{}", r.below(1000)),
                AddrVec(if i % 2 == 0 { vec![v2] } else { vec![v2, v1] }),
            )
        });
        let now = UTime { sec: 1_700_000_000 + seed as u32, nsec: 1000 };
        let mons: Vec<_> = mons.collect();
        let mut map = MonMap::initial(Uuid::from_random([seed as u8; 16]), now, mons);
        map.epoch = seed as u32;
        if seed % 3 == 0 {
            map.disallowed_leaders.insert("m1".into());
        }
        std::fs::write(&bin, to_vec(&map)).unwrap();
        let out = run(Command::new("monmaptool").arg("--print").arg(&bin));
        let want: Vec<&str> = out.lines().filter(|l| !l.starts_with("monmaptool")).collect();
        assert_eq!(map.dump_text().lines().collect::<Vec<_>>(), want, "seed {seed}");
    }
    let args = [
        "--create",
        "--clobber",
        "--addv",
        "a",
        "[v2:127.0.0.1:3300,v1:127.0.0.1:6789]",
        "--add",
        "b",
        "::1",
    ];
    run(Command::new("monmaptool").args(args).arg(&bin));
    let bytes = read(&bin);
    assert!(to_vec(&from_slice::<MonMap>(&bytes).unwrap()) == bytes);
    std::fs::remove_dir_all(dir).unwrap();
}
