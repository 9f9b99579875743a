//! Maps shown to people, against what Ceph's tools printed of the same bytes.

use super::support::{files, gunzip_json, read, vector};
use serde_json::Value;
use spirula_encoding::from_slice;
use spirula_maps::{FsMap, MdsMap, MgrMap, MonMap, OsdMap};

/// The blocklist in address order: Ceph prints it in hash order.
pub fn sort_blocklist(v: &mut Value) {
    if let Some(Value::Object(m)) = v.get_mut("blocklist") {
        let mut rows: Vec<(String, Value)> = std::mem::take(m).into_iter().collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        m.extend(rows);
    }
}

/// Fails at the first difference, also of key order, with the path to it.
pub fn same_json(path: &str, got: &Value, want: &Value) {
    match (got, want) {
        (Value::Object(g), Value::Object(w)) => {
            let (gk, wk): (Vec<&String>, Vec<&String>) = (g.keys().collect(), w.keys().collect());
            assert_eq!(gk, wk, "{path}");
            g.iter().for_each(|(k, v)| same_json(&format!("{path}.{k}"), v, &w[k]));
        }
        (Value::Array(g), Value::Array(w)) => {
            assert_eq!(g.len(), w.len(), "{path}");
            g.iter()
                .zip(w)
                .enumerate()
                .for_each(|(i, (g, w))| same_json(&format!("{path}[{i}]"), g, w));
        }
        _ => assert_eq!(got, want, "{path}"),
    }
}

#[test]
fn golden_osdmaps_dump_the_json_of_osdmaptool_key_by_key() {
    let dir = vector("osdmap");
    let mut n = 0;
    for p in files(&dir, |f| f.ends_with(".json.gz") && !f.contains("decoded")) {
        let map: OsdMap =
            from_slice(&read(p.to_string_lossy().replace(".json.gz", ".bin"))).unwrap();
        let (mut got, mut want) = (map.dump(), gunzip_json(&p));
        sort_blocklist(&mut got);
        sort_blocklist(&mut want);
        same_json(&p.file_name().unwrap().to_string_lossy(), &got, &want);
        n += 1;
    }
    assert_eq!(n, 8);
}

#[test]
fn pool_lines_are_those_of_osd_pool_ls_detail() {
    let (dir, cli) = (vector("osdmap"), vector("cli-output/osd-pool-ls-detail.txt"));
    // The last map taken is nine epochs older than the output; pools that did not change must
    // agree.
    let map: OsdMap = from_slice(&read(dir.join("real-e180.bin"))).unwrap();
    let ours = map.pools_text();
    let text = String::from_utf8(read(cli)).unwrap();
    let same = text.lines().filter(|l| ours.lines().any(|o| o == *l)).count();
    assert!(same >= 11, "only {same} lines agree:\n{ours}\n{text}");
}

#[test]
fn golden_monmaps_print_as_monmaptool_prints_them() {
    let dir = vector("monmap");
    let m: MonMap = from_slice(&read(dir.join("monmap-3.bin"))).unwrap();
    let want = String::from_utf8(read(dir.join("monmap-3.print.txt"))).unwrap();
    let lines: Vec<&str> = want.lines().filter(|l| !l.starts_with("monmaptool")).collect();
    assert_eq!(m.dump_text().lines().collect::<Vec<_>>(), lines);
}

#[test]
fn mon_dump_is_that_of_the_cluster_it_came_from() {
    let (bin, cli) = (vector("monmap/monmap-1.bin"), vector("cli-output"));
    let m: MonMap = from_slice(&read(bin)).unwrap();
    let mut got = m.dump();
    got["quorum"] = Value::from(vec![0]);
    let want: Value = serde_json::from_slice(&read(cli.join("mon-dump.json"))).unwrap();
    same_json("mon dump", &got, &want);
    assert_eq!(
        m.dump_text().trim_end(),
        String::from_utf8(read(cli.join("mon-dump.txt"))).unwrap().trim_end()
    );
}

#[test]
fn fs_get_has_the_keys_and_lines_of_ceph() {
    let (maps, cli) = (vector("maps"), vector("cli-output"));
    // The map is of epoch 28 and the output of epoch 33: what may differ is taken over.
    let mut map: FsMap = from_slice(&read(maps.join("fsmap.front.bin"))[4..]).unwrap();
    let want: Value = serde_json::from_slice(&read(cli.join("fs-dump.json"))).unwrap();
    let theirs = &want["filesystems"][0]["mdsmap"];
    map.epoch = 33;
    let mds: &mut MdsMap = &mut map.filesystems[0].mds_map;
    mds.epoch = 33;
    mds.last_failure_osd_epoch = 189;
    mds.last_failure = 0;
    let mut got = map.dump();
    let ours = &mut got["filesystems"][0]["mdsmap"];
    for k in ["modified", "info", "up", "in", "failed"] {
        ours[k] = theirs[k].clone();
    }
    same_json("fs dump", &got, &want);
    let text = String::from_utf8(read(cli.join("fs-dump.txt"))).unwrap();
    let keys = |t: &str| -> Vec<String> {
        t.lines()
            .filter(|l| !l.starts_with('['))
            .map(|l| l.split('\t').next().unwrap().to_string())
            .collect()
    };
    assert_eq!(keys(map.dump_text().trim_end()), keys(text.trim_end()));
}

#[test]
fn fs_dump_without_a_file_system_is_that_of_a_fresh_cluster() {
    let compat = "compat={},rocompat={},incompat={1=base v0.20,2=client writeable ranges,\
        3=default file layouts on dirs,4=dir inode in separate object,5=mds uses versioned \
        encoding,\
        6=dirfrag is stored in omap,8=no anchor table,9=file layout v2,10=snaprealm v2}";
    let want = format!(
        "e1\nenable_multiple, ever_enabled_multiple: 1,1\ndefault compat: {compat}\nlegacy client \
            fscid: -1\n \n\
         No filesystems configured\n"
    );
    assert_eq!(FsMap::initial(1).dump_text(), want);
}

#[test]
fn mgr_dump_has_the_keys_of_ceph_in_its_order() {
    let v = MgrMap::initial(1).dump();
    let keys: Vec<&str> = v.as_object().unwrap().keys().map(String::as_str).collect();
    let want = "epoch active_gid active_name active_addrs active_addr active_change \
        active_mgr_features available \
        standbys modules available_modules services always_on_modules last_failure_osd_epoch \
        active_clients";
    assert_eq!(keys, want.split_whitespace().collect::<Vec<_>>());
    assert_eq!(v["always_on_modules"]["pacific"][0], "balancer");
}
