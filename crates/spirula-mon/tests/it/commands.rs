//! Commands: signatures, texts and effects, against what a real cluster said.

use crate::harness::Cluster;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors");

fn vector(name: &str) -> Vec<u8> {
    std::fs::read(format!("{VECTORS}/{name}")).expect(name)
}

/// Which answers in JSON end in a newline is looked up in what a real monitor's were.
#[test]
fn json_answers_end_as_those_of_the_real_monitor() {
    let mut c = Cluster::up(3);
    for (command, sample) in [
        ("config-key ls", "config-key-ls"),
        ("features", "features"),
        ("fs dump", "fs-dump"),
        ("fs ls", "fs-ls"),
        ("mds stat", "mds-stat"),
        ("mon dump", "mon-dump"),
        ("mon stat", "mon-stat"),
        ("osd crush rule dump", "osd-crush-rule-dump"),
        ("osd crush tree", "osd-crush-tree"),
        ("osd dump", "osd-dump"),
        ("osd ls", "osd-ls"),
        ("osd lspools", "osd-lspools"),
        ("osd stat", "osd-stat"),
        ("osd tree", "osd-tree"),
        ("quorum_status", "quorum_status"),
        ("versions", "versions"),
    ] {
        let ours = c.ok(&format!(r#"{{"prefix": "{command}", "format": "json"}}"#));
        let theirs = vector(&format!("cli-output/{sample}.json"));
        assert_eq!(ours.ends_with('\n'), theirs.ends_with(b"\n"), "{command}");
        assert!(!ours.ends_with("\n\n"), "{command}");
    }
}

/// The rs and r columns of `docs/protocol/mon.md`'s table, for state-changing commands.
#[test]
fn commands_answer_with_the_words_of_the_real_monitor() {
    let mut c = Cluster::up(3);
    let table: &[(&str, i32, &str)] = &[
        (r#"{"prefix": "osd pool create", "pool": "p1", "pg_num": 32}"#, 0, "pool 'p1' created"),
        (
            r#"{"prefix": "osd pool create", "pool": "p2", "pg_num": 8, "pgp_num": 8, "pool_type": "replicated"}"#,
            0,
            "pool 'p2' created",
        ),
        (r#"{"prefix": "osd pool create", "pool": "p2"}"#, 0, "pool 'p2' already exists"),
        (
            r#"{"prefix": "osd pool set", "pool": "p1", "var": "size", "val": "2"}"#,
            0,
            "set pool 2 size to 2",
        ),
        (
            r#"{"prefix": "osd pool application enable", "pool": "p1", "app": "rados"}"#,
            0,
            "enabled application 'rados' on pool 'p1'",
        ),
        (
            r#"{"prefix": "osd pool rename", "srcpool": "p2", "destpool": "p3"}"#,
            0,
            "pool 'p2' renamed to 'p3'",
        ),
        (
            r#"{"prefix": "osd pool set-quota", "pool": "p1", "field": "max_objects", "val": "100000"}"#,
            0,
            "set-quota max_objects = 100000 for pool p1",
        ),
        (
            r#"{"prefix": "osd pool set-quota", "pool": "p1", "field": "max_bytes", "val": "10Ki"}"#,
            0,
            "set-quota max_bytes = 10240 for pool p1",
        ),
        (
            r#"{"prefix": "osd pool rmsnap", "pool": "p3", "snap": "ps1"}"#,
            0,
            "pool p3 snap ps1 does not exist",
        ),
        (
            r#"{"prefix": "config set", "who": "mon", "name": "mon_allow_pool_delete", "value": "true"}"#,
            0,
            "",
        ),
        (
            r#"{"prefix": "osd pool delete", "pool": "p3", "pool2": "p3", "yes_i_really_really_mean_it": true}"#,
            0,
            "pool 'p3' removed",
        ),
        (
            r#"{"prefix": "osd pool get", "pool": "nosuch", "var": "size"}"#,
            -2,
            "unrecognized pool 'nosuch'",
        ),
        (r#"{"prefix": "osd out", "ids": ["2"]}"#, 0, "marked out osd.2. "),
        (r#"{"prefix": "osd in", "ids": ["2"]}"#, 0, "marked in osd.2. "),
        (
            r#"{"prefix": "osd reweight", "id": 1, "weight": 0.8}"#,
            0,
            "reweighted osd.1 to 0.8 (cccc)",
        ),
        (
            r#"{"prefix": "osd reweight", "id": 1, "weight": 1.0}"#,
            0,
            "reweighted osd.1 to 1 (10000)",
        ),
        (
            r#"{"prefix": "osd crush reweight", "name": "osd.1", "weight": 1.5}"#,
            0,
            "reweighted item id 1 name 'osd.1' to 1.5 in crush map",
        ),
        (r#"{"prefix": "osd blocklist ls"}"#, 0, "listed 0 entries"),
        (
            r#"{"prefix": "osd blocklist", "blocklistop": "rm", "addr": "127.0.0.1:0/12345"}"#,
            0,
            "127.0.0.1:0/12345 isn't blocklisted",
        ),
        (r#"{"prefix": "osd set", "key": "noout"}"#, 0, "noout is set"),
        (r#"{"prefix": "osd unset", "key": "noout"}"#, 0, "noout is unset"),
        (
            r#"{"prefix": "osd crush rule create-replicated", "name": "byosd", "root": "default", "type": "osd"}"#,
            0,
            "",
        ),
        (
            r#"{"prefix": "osd erasure-code-profile set", "name": "ec21", "profile": ["k=2", "m=1", "crush-failure-domain=osd"]}"#,
            0,
            "",
        ),
        (
            r#"{"prefix": "osd crush rule create-erasure", "name": "ecr", "profile": "ec21"}"#,
            0,
            "created rule ecr at 2",
        ),
        (
            r#"{"prefix": "osd crush add-bucket", "name": "rackX", "type": "rack"}"#,
            0,
            "added bucket rackX type rack to crush map",
        ),
        (
            r#"{"prefix": "osd crush move", "name": "rackX", "args": ["root=default"]}"#,
            0,
            "moved item id -9 name 'rackX' to location {root=default} in crush map",
        ),
        (
            r#"{"prefix": "osd crush rm", "name": "rackX"}"#,
            0,
            "removed item id -9 name 'rackX' from crush map",
        ),
        (r#"{"prefix": "config-key set", "key": "foo", "val": "bar"}"#, 0, "set foo"),
        (r#"{"prefix": "config-key exists", "key": "foo"}"#, 0, "key 'foo' exists"),
        (r#"{"prefix": "config-key rm", "key": "foo"}"#, 0, "key deleted"),
        (
            r#"{"prefix": "osd set-require-min-compat-client", "version": "luminous"}"#,
            0,
            "set require_min_compat_client to luminous",
        ),
        (
            r#"{"prefix": "osd pg-upmap-items", "pgid": "2.0", "id": [0, 0]}"#,
            -22,
            "from osd.0 == to osd.0, no valid upmap items(pairs) is specified",
        ),
        (r#"{"prefix": "mon dump"}"#, 0, "dumped monmap epoch 1"),
        (r#"{"prefix": "mon getmap"}"#, 0, "got monmap epoch 1"),
        (r#"{"prefix": "fs dump"}"#, 0, "dumped fsmap epoch 1"),
        (
            r#"{"prefix": "auth get-or-create", "entity": "client.u1", "caps": ["mon", "allow r"]}"#,
            0,
            "",
        ),
        (r#"{"prefix": "auth get", "entity": "client.u1"}"#, 0, "exported keyring for client.u1"),
        (
            r#"{"prefix": "auth caps", "entity": "client.u1", "caps": ["mon", "allow *"]}"#,
            0,
            "updated caps for client.u1",
        ),
        (r#"{"prefix": "auth rm", "entity": "client.u1"}"#, 0, "updated"),
        (r#"{"prefix": "osd down", "ids": ["2"]}"#, 0, "marked down osd.2. "),
        (r#"{"prefix": "no such command"}"#, -22, "command not known: 'no such command'"),
        (r#"{"prefix": "#, -22, "unparseable JSON: EOF while parsing a value at line 1 column 11"),
        (r#"[1]"#, -22, "command is not a JSON object"),
        (r#"{"prefix": "osd out"}"#, -22, "missing required argument 'ids'"),
        (
            r#"{"prefix": "osd pool create", "pool": "e", "pool_type": "erasure"}"#,
            0,
            "pool 'e' created",
        ),
        (
            r#"{"prefix": "osd pool set", "pool": "p1", "var": "size", "val": "1"}"#,
            -1,
            "WARNING: setting pool size 1 could lead to data loss without recovery. If you are \
                *ABSOLUTELY CERTAIN* that is what you want, pass the flag --yes-i-really-mean-it. \
                (pool 'p1')",
        ),
        (
            r#"{"prefix": "config set", "who": "osd", "name": "no_such_thing", "value": "1"}"#,
            -22,
            "unrecognized config option 'no_such_thing'",
        ),
        (
            r#"{"prefix": "config set", "who": "osd", "name": "osd_max_backfills", "value": "x"}"#,
            -22,
            "error parsing value: 'x' is not a valid uint",
        ),
    ];
    for (cmd, r, rs) in table {
        let (got_r, got_rs, _) = c.command(cmd);
        assert_eq!((got_r, got_rs.as_str()), (*r, *rs), "{cmd}");
    }
}

#[test]
fn outputs_have_the_form_of_the_real_ones() {
    let mut c = Cluster::up(3);
    assert_eq!(c.ok(r#"{"prefix": "osd ls"}"#), "0\n1\n2\n");
    assert_eq!(c.ok(r#"{"prefix": "osd pool ls"}"#), "data\n");
    assert_eq!(c.ok(r#"{"prefix": "osd lspools"}"#), "1 data\n");
    assert_eq!(c.ok(r#"{"prefix": "fsid"}"#), "09090909-0909-0909-0909-090909090909\n");
    assert_eq!(c.ok(r#"{"prefix": "mgr services"}"#), "{}\n");
    assert_eq!(c.ok(r#"{"prefix": "fs ls"}"#), "No filesystems enabled\n");
    assert_eq!(c.ok(r#"{"prefix": "osd getmaxosd"}"#), "max_osd = 3 in epoch 5\n");
    assert_eq!(
        c.ok(r#"{"prefix": "osd stat"}"#),
        "3 osds: 3 up (since 0s), 3 in (since 0s); epoch: e5\n"
    );
    let tree = c.ok(r#"{"prefix": "osd tree"}"#);
    let want = "\
ID  CLASS  WEIGHT   TYPE NAME       STATUS  REWEIGHT  PRI-AFF
-1         0.02939  root default                             
-2         0.00980      host host0                           
 0    ssd  0.00980          osd.0       up   1.00000  1.00000
-5         0.00980      host host1                           
 1    ssd  0.00980          osd.1       up   1.00000  1.00000
-7         0.00980      host host2                           
 2    ssd  0.00980          osd.2       up   1.00000  1.00000
";
    // Ids depend on the order in which shadow buckets are made; the shape does not.
    let shape = |t: &str| t.lines().map(|l| l.get(5..).unwrap_or(l).to_owned()).collect::<Vec<_>>();
    assert_eq!(shape(&tree), shape(want));
    assert!(c.ok(r#"{"prefix": "osd tree", "states": ["down"]}"#).lines().count() == 1);
    let pg = c.ok(r#"{"prefix": "pg map", "pgid": "1.0"}"#);
    assert!(pg.starts_with("osdmap e5 pg 1.0 (1.0) -> up ["), "{pg}");
    let obj = c.ok(r#"{"prefix": "osd map", "pool": "data", "object": "foo"}"#);
    assert!(
        obj.starts_with("osdmap e5 pool 'data' (1) object 'foo' -> pg 1.7fc1f406 (1.6) -> up (["),
        "{obj}"
    );
    c.ok(r#"{"prefix": "config set", "who": "osd", "name": "osd_max_backfills", "value": "2"}"#);
    let dump = "WHO    MASK  LEVEL     OPTION             VALUE  RO\n  osd        advanced  \
        osd_max_backfills  2        \n";
    assert_eq!(c.ok(r#"{"prefix": "config dump"}"#), dump);
    for form in ["plain", "json", "xml"] {
        let ask = format!(
            r#"{{"prefix": "config get", "who": "osd.0", "key": "osd_max_backfills", "format": "{form}"}}"#
        );
        assert_eq!(c.ok(&ask), "2\n", "{form}");
    }
    assert_eq!(
        c.ok(r#"{"prefix": "config get", "who": "osd.0"}"#),
        "WHO  MASK  LEVEL     OPTION             VALUE  RO\nosd        advanced  \
            osd_max_backfills  2        \n"
    );
    assert!(c.ok(r#"{"prefix": "config log"}"#).starts_with("--- 2 --- 2026-11-1"));
    assert!(
        c.ok(r#"{"prefix": "config log"}"#)
            .ends_with("+ osd/osd_max_backfills = 2\n--- 1 --- 0.000000 ---\n")
    );
    c.ok(r#"{"prefix": "osd pool set-quota", "pool": "data", "field": "max_objects", "val": "100000"}"#);
    assert_eq!(
        c.ok(r#"{"prefix": "osd pool get-quota", "pool": "data"}"#),
        "quotas for pool 'data':\n  max objects: 100k objects  (current num objects: 0 objects)\n  \
            max bytes  : N/A\n"
    );
    assert_eq!(
        c.ok(r#"{"prefix": "osd pool get", "pool": "data", "var": "size", "format": "json"}"#),
        r#"{"pool":"data","pool_id":1,"size":3}"#
    );
    c.ok(r#"{"prefix": "log", "logtext": ["hello", "world"]}"#);
    let last = c.ok(r#"{"prefix": "log last", "num": 1}"#);
    assert!(
        last.contains("client.admin") && last.ends_with(" : cluster [INF] hello world\n"),
        "{last}"
    );
    for cmd in [
        "status",
        "health",
        "df",
        "report",
        "quorum_status",
        "mon_status",
        "mon stat",
        "mgr dump",
        "mgr module ls",
        "features",
        "versions",
        "node ls",
        "time-sync-status",
        "osd crush rule dump",
        "osd crush dump",
        "osd crush tree",
        "osd crush show-tunables",
        "osd utilization",
        "osd metadata",
        "mon metadata",
        "osd dump",
        "config ls",
        "auth ls",
        "osd crush class ls",
        "config-key ls",
        "osd blocklist ls",
        "sessions",
        "osd versions",
    ] {
        c.json(&format!(r#"{{"prefix": "{cmd}"}}"#));
        c.ok(&format!(r#"{{"prefix": "{cmd}"}}"#));
    }
}

/// A JSON answer's keys, nested, without values: what scripts rely on.
fn keys(v: &Value) -> Value {
    match v {
        Value::Object(m) => m.iter().map(|(k, v)| (k.clone(), keys(v))).collect(),
        Value::Array(a) => a.first().map_or(json!([]), |v| json!([keys(v)])),
        _ => Value::Null,
    }
}

#[test]
fn golden_json_outputs_have_the_keys_of_the_real_ones() {
    let mut c = Cluster::up(3);
    c.ok(r#"{"prefix": "config set", "who": "global", "name": "osd_max_backfills", "value": "2"}"#);
    let cases = [
        ("osd-tree", "osd tree", ""),
        ("osd-crush-tree", "osd crush tree", ""),
        ("osd-stat", "osd stat", ""),
        ("mon-dump", "mon dump", ""),
        ("mon-stat", "mon stat", ""),
        ("mgr-stat", "mgr stat", ""),
        ("quorum_status", "quorum_status", ""),
        ("config-dump", "config dump", ""),
        ("config-log", "config log", ""),
        ("time-sync-status", "time-sync-status", ""),
        ("osd-map-p1-foo", "osd map", r#", "pool": "data", "object": "foo""#),
        ("pg-map-2-0", "pg map", r#", "pgid": "1.0""#),
        ("osd-lspools", "osd lspools", ""),
        ("osd-pool-ls", "osd pool ls", ""),
        ("osd-pool-get-p1-all", "osd pool get", r#", "pool": "data", "var": "all""#),
        ("osd-utilization", "osd utilization", ""),
        ("features", "features", ""),
    ];
    for (file, prefix, rest) in cases {
        let want: Value =
            serde_json::from_slice(&vector(&format!("cli-output/{file}.json"))).unwrap();
        let got = c.json(&format!(r#"{{"prefix": "{prefix}"{rest}}}"#));
        if file == "features" {
            assert_eq!(keys(&got["osd"]), keys(&want["osd"]));
            continue;
        }
        assert_eq!(keys(&got), keys(&want), "{file}");
    }
}

#[test]
fn golden_signatures_are_those_of_the_real_monitor() {
    // No gzip reader is among the dependencies.
    let packed = format!("{VECTORS}/mon-command-signatures.json.gz");
    let out = std::process::Command::new("gzip").arg("-dc").arg(packed).output().unwrap();
    let real: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let normal = |v: &Value| -> String {
        let words = v["sig"].as_array().unwrap().iter().map(|w| match w {
            // Key order inside an argument is free.
            Value::Object(m) => {
                let mut parts: Vec<String> =
                    m.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap())).collect();
                parts.sort();
                parts.join(",")
            }
            w => w.as_str().unwrap().to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let known: BTreeSet<String> = real.iter().map(normal).collect();
    let meta = |v: &Value| (v["module"].clone(), v["perm"].clone());
    let mut c = Cluster::new(1);
    let ours: Value =
        serde_json::from_str(&c.ok(r#"{"prefix": "get_command_descriptions"}"#)).unwrap();
    // Where we offer less than Ceph, the signature is shorter on purpose; and one of Ceph's has
    // a typing error ("fasle").
    let differ = ["mon add", "fs new", "osd pool application get"];
    // Ceph 20's: keys of two types, and keys that are changed. 16.2 has no such argument or
    // command. The last are our own.
    let newer = [
        "auth add",
        "auth get-or-create",
        "auth get-or-create-key",
        "auth rotate",
        "auth get-or-create-pending",
        "auth clear-pending",
        "auth commit-pending",
        "auth wipe-rotating-service-keys",
        "join-token create",
        "join-token ls",
        "join-token rm",
        "join-token redeem",
    ];
    for d in ours.as_object().unwrap().values() {
        let sig = normal(d);
        let words: Vec<&str> = sig.split(' ').filter(|w| !w.contains('=')).collect();
        let name = words.join(" ");
        if differ.contains(&name.as_str()) || newer.contains(&name.as_str()) {
            continue;
        }
        assert!(known.contains(&sig), "not a signature of the real monitor: {sig}");
        let same = real.iter().find(|r| normal(r) == sig).unwrap();
        assert_eq!(meta(d), meta(same), "{sig}");
    }
}

#[test]
fn crush_map_goes_out_and_comes_in_again() {
    let mut c = Cluster::up(3);
    let (_, version, map) = c.command_raw(r#"{"prefix": "osd getcrushmap"}"#, Bytes::new());
    let version: u32 = version.parse().unwrap();
    c.ok(r#"{"prefix": "osd crush reweight", "name": "osd.0", "weight": 3}"#);
    let (ret, rs, _) = c.command_raw(
        &format!(r#"{{"prefix": "osd setcrushmap", "prior_version": {version}}}"#),
        map.clone(),
    );
    assert_eq!(
        (ret, rs.as_str()),
        (-1, format!("prior_version {version} != crush version {}", version + 1).as_str())
    );
    let (ret, rs, _) = c.command_raw(r#"{"prefix": "osd setcrushmap"}"#, map.clone());
    assert_eq!((ret, rs), (0, (version + 2).to_string()));
    assert_eq!(c.command_raw(r#"{"prefix": "osd getcrushmap"}"#, Bytes::new()).2, map);
    let (ret, rs, _) =
        c.command_raw(r#"{"prefix": "osd setcrushmap"}"#, Bytes::from_static(b"garbage"));
    assert!(ret == -22 && rs.starts_with("Failed to parse crushmap"), "{rs}");
}

#[test]
fn golden_osdmaptool_reads_our_map() {
    let mut c = Cluster::up(3);
    let (_, _, map) = c.command_raw(r#"{"prefix": "osd getmap"}"#, Bytes::new());
    let path = std::env::temp_dir().join(format!("spirula-map-{}", std::process::id()));
    std::fs::write(&path, &map).unwrap();
    let out = std::process::Command::new("osdmaptool").arg(&path).arg("--print").output();
    let pgs =
        std::process::Command::new("osdmaptool").arg(&path).arg("--test-map-pgs-dump").output();
    std::fs::remove_file(&path).unwrap();
    let (Ok(out), Ok(pgs)) = (out, pgs) else {
        println!("SKIPPED golden_osdmaptool_reads_our_map: no osdmaptool");
        return;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let ours = c.ok(r#"{"prefix": "osd dump"}"#);
    for line in ours.lines() {
        assert!(text.contains(line.trim_end()), "osdmaptool lacks '{line}' in\n{text}");
    }
    let pgs = String::from_utf8_lossy(&pgs.stdout).into_owned();
    for seed in 0..8 {
        let ours =
            c.json(&format!(r#"{{"prefix": "pg map", "pgid": "1.{seed:x}"}}"#))["up"].to_string();
        let line = pgs.lines().find(|l| l.starts_with(&format!("1.{seed:x}\t"))).unwrap();
        assert!(line.contains(&ours), "{line} is not {ours}");
    }
}

/// `rbd mirror pool status` asks monitors for what are the manager's commands.
#[test]
fn services_are_told_as_the_manager_tells_them() {
    use spirula_maps::{ServiceEntry, ServiceMap};
    use spirula_messages::cluster::control::MgrDigest;
    let mut c = Cluster::up(3);
    let conn = c.open(spirula_types::EntityType::Mgr, "x");
    c.ask(conn, crate::harness::beacon(5, "x"));
    let digest = |service_map: bytes::Bytes| MgrDigest {
        gid: 5,
        stamp: spirula_encoding::UTime { sec: 9, nsec: 0 },
        digest: spirula_encoding::to_vec(&spirula_maps::PgDigest::default()).into(),
        health: vec![],
        service_map,
        progress: Default::default(),
    };
    let daemon = ServiceEntry {
        gid: 4124,
        metadata: [("ceph_version".to_owned(), "v".to_owned())].into(),
        status: [("json".to_owned(), "{}".to_owned())].into(),
        ..ServiceEntry::default()
    };
    let services = [("rbd-mirror".to_owned(), [("4124".to_owned(), daemon)].into())].into();
    let map = ServiceMap { epoch: 3, services, ..ServiceMap::default() };
    c.ask(conn, digest(spirula_encoding::to_vec(&map).into()));
    for _ in 0..2 {
        let dump = c.json(r#"{"prefix": "service dump"}"#);
        assert_eq!(
            (&dump["epoch"], &dump["services"]["rbd-mirror"]["daemons"]["4124"]["gid"]),
            (&3.into(), &4124.into())
        );
        assert_eq!(c.json(r#"{"prefix": "status"}"#)["servicemap"], dump);
        assert_eq!(
            c.json(r#"{"prefix": "service status"}"#)["rbd-mirror"]["4124"]["status"]["json"],
            "{}"
        );
        assert_eq!(c.json(r#"{"prefix": "versions"}"#)["rbd-mirror"]["v"], 1);
        // What cannot be read is not taken.
        c.ask(conn, digest(vec![9; 9].into()));
    }
    // They are listed once, by the manager, if it serves.
    let all = c.json(r#"{"prefix": "get_command_descriptions"}"#);
    let listed = all.as_object().unwrap().values().filter(|d| d["sig"][0] == "service").count();
    assert_eq!(listed, 0);
    c.ask(conn, digest(bytes::Bytes::new()));
    assert_eq!(c.json(r#"{"prefix": "service dump"}"#)["services"], serde_json::json!({}));
}

#[test]
fn quota_and_full_ratio_flags_follow_the_digest() {
    use spirula_maps::{ObjectStatSum, OsdStatReport, PgDigest, PgStat};
    use spirula_messages::cluster::control::MgrDigest;
    let mut c = Cluster::up(3);
    let conn = c.open(spirula_types::EntityType::Mgr, "x");
    c.ask(conn, crate::harness::beacon(5, "x"));
    let digest = |objects: i64, used: i64| {
        let pg = PgStat {
            stats: ObjectStatSum { num_objects: objects, num_bytes: 10, ..Default::default() },
            ..Default::default()
        };
        let mut osd = OsdStatReport::default();
        (osd.statfs.total, osd.statfs.available) = (1000, 1000 - used);
        let d = PgDigest::from_reports(
            5,
            Default::default(),
            [(spirula_types::PgId::new(1, 0), &pg)],
            [(0, osd)].into(),
        );
        MgrDigest {
            gid: 5,
            stamp: spirula_encoding::UTime { sec: 9, nsec: 0 },
            digest: spirula_encoding::to_vec(&d).into(),
            health: vec![],
            service_map: Default::default(),
            progress: Default::default(),
        }
    };
    c.ok(
        r#"{"prefix": "osd pool set-quota", "pool": "data", "field": "max_objects", "val": "10"}"#,
    );
    let flags = |c: &mut Cluster| {
        c.json(r#"{"prefix": "osd pool ls", "detail": "detail"}"#)[0]["flags_names"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    c.ask(conn, digest(9, 10));
    assert_eq!(flags(&mut c), "hashpspool,creating");
    c.ask(conn, digest(10, 10));
    assert_eq!(flags(&mut c), "hashpspool,full,full_quota,creating");
    c.ask(conn, digest(3, 10));
    assert_eq!(flags(&mut c), "hashpspool,creating");
    c.ask(conn, digest(3, 870));
    assert_eq!(flags(&mut c), "hashpspool,nearfull,creating");
    c.ask(conn, digest(3, 960));
    assert_eq!(flags(&mut c), "hashpspool,full,creating");
    assert!(c.ok(r#"{"prefix": "osd dump"}"#).contains("exists,full,up"));
    c.ask(conn, digest(3, 10));
    assert_eq!(flags(&mut c), "hashpspool,creating");
}

#[test]
fn config_reaches_its_subscribers_and_only_them() {
    use spirula_messages::Body;
    use spirula_messages::ceph::{MConfig, MMonCommand};
    let mut c = Cluster::up(1);
    let client = c.open(spirula_types::EntityType::Client, "admin");
    let osd = c.open(spirula_types::EntityType::Osd, "0");
    c.subscribe(client, "config", 0, false);
    c.subscribe(osd, "config", 0, false);
    let admin = c.open(spirula_types::EntityType::Client, "boss");
    let cmd = r#"{"prefix": "config set", "who": "osd/class:ssd", "name": "osd_max_backfills", "value": "3"}"#;
    let m = MMonCommand {
        version: 0,
        fsid: crate::harness::FSID,
        cmd: vec![cmd.into()],
        input: Bytes::new(),
    };
    let sent = c.send(admin, m.into_message(1));
    let configs: Vec<(u64, MConfig)> =
        sent.iter().filter_map(|(to, m)| Some((*to, MConfig::from_message(m).ok()?))).collect();
    assert_eq!(configs.len(), 1);
    assert_eq!(configs[0].0, osd);
    assert_eq!(configs[0].1.config["osd_max_backfills"], "3");
    // What was wrong is undone by going back.
    c.ok(r#"{"prefix": "config reset", "num": 1}"#);
    assert_eq!(
        c.ok(r#"{"prefix": "config get", "who": "osd.0", "key": "osd_max_backfills"}"#),
        "4\n"
    );
}

#[test]
fn requests_during_a_commit_form_one_batch() {
    use spirula_messages::Body;
    use spirula_messages::ceph::{MMonCommand, MMonCommandAck};
    use spirula_mon::{MonEffect, MonEvent};
    let mut c = Cluster::up(3);
    let conn = c.open(spirula_types::EntityType::Client, "admin");
    let before = c.mon.state().osdmap.epoch;
    let mut out = Vec::new();
    for i in 0..5 {
        let cmd = format!(r#"{{"prefix": "osd pool create", "pool": "b{i}", "pg_num": 1}}"#);
        let m = MMonCommand {
            version: 0,
            fsid: crate::harness::FSID,
            cmd: vec![cmd],
            input: Bytes::new(),
        }
        .into_message(i);
        c.mon.handle(c.now, MonEvent::Message { conn, message: m }, &mut out);
    }
    let commits = |out: &[MonEffect]| {
        out.iter()
            .filter_map(|e| if let MonEffect::Persist(p) = e { Some(p.clone()) } else { None })
            .collect::<Vec<_>>()
    };
    let first = commits(&out);
    assert_eq!((first.len(), out.len()), (1, 1), "nothing is said before the commit");
    out.clear();
    c.write(&first[0]);
    c.mon.handle(c.now, MonEvent::Persisted(first[0].number), &mut out);
    let second = commits(&out);
    assert_eq!(second.len(), 1);
    let acks = |out: &[MonEffect]| {
        out.iter()
            .filter(|e| matches!(e, MonEffect::Send(_, m) if m.kind == MMonCommandAck::KIND))
            .count()
    };
    assert_eq!(acks(&out), 1);
    out.clear();
    c.mon.handle(c.now, MonEvent::Persisted(second[0].number), &mut out);
    assert_eq!((acks(&out), c.mon.state().osdmap.epoch), (4, before + 2));
}

#[test]
fn crash_reports_are_kept_warned_of_and_archived() {
    let mut c = Cluster::up(1);
    let report = |id: &str, stamp: &str| {
        let json = json!({"crash_id": id, "timestamp": stamp, "entity_name": "osd.0", "utsname_hostname": "h1"});
        Bytes::from(json.to_string())
    };
    let stamp = c.now.to_iso().replace("+0000", "Z");
    assert_eq!(c.command_with(r#"{"prefix": "crash post"}"#, report("c1", &stamp)).0, 0);
    assert_eq!(
        c.command_with(r#"{"prefix": "crash post"}"#, report("c2", "2020-01-01T00:00:00Z")).0,
        0
    );
    for (bad, why) in [
        (Bytes::new(), "no report given"),
        ("[]".into(), "not a JSON object"),
        (report("../x/", &stamp), "crash_id"),
        (report("c3", "yesterday"), "should be like"),
        (r#"{"crash_id": "c4"}"#.into(), "\"timestamp\" is missing"),
    ] {
        let (ret, rs, _) = c.command_with(r#"{"prefix": "crash post"}"#, bad);
        assert!(ret == -22 && rs.contains(why), "{ret} {rs}");
    }
    assert_eq!(
        c.command(r#"{"prefix": "crash stat"}"#).2,
        "2 crashes recorded\n1 older than 1 days old:\nc2\n1 older than 3 days old:\nc2\n1 older \
            than 7 days old:\nc2\n"
    );
    let health = c.command(r#"{"prefix": "health", "detail": "detail"}"#).2;
    assert!(health.contains("RECENT_CRASH: 1 daemons have recently crashed"), "{health}");
    assert!(health.contains("osd.0 crashed on host h1 at "), "{health}");
    assert_eq!(c.command(r#"{"prefix": "crash archive", "id": "c1"}"#).0, 0);
    assert!(!c.command(r#"{"prefix": "health"}"#).2.contains("crashed"));
    assert!(c.command(r#"{"prefix": "crash ls-new"}"#).2.contains("c2"));
    assert!(!c.command(r#"{"prefix": "crash ls-new"}"#).2.contains("c1"));
    assert_eq!(c.command(r#"{"prefix": "crash prune", "keep": "30"}"#).0, 0);
    let listed: Value =
        serde_json::from_str(&c.command(r#"{"prefix": "crash ls", "format": "json"}"#).2).unwrap();
    assert_eq!(listed[0]["crash_id"], "c1");
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(c.command(r#"{"prefix": "crash info", "id": "c2"}"#).1, "crash info: c2 not found");
    // Who crashed, and where, need not be said; go-ceph's tests post such a one.
    let bare = json!({"crash_id": "foobar", "timestamp": stamp.replace('T', " ")}).to_string();
    assert_eq!(
        c.command_with(r#"{"prefix": "crash post"}"#, bare.into()),
        (0, String::new(), String::new())
    );
    let listed = c.command(r#"{"prefix": "crash ls"}"#).2;
    let row = listed
        .lines()
        .find(|l| l.starts_with("foobar"))
        .map(|l| l.split_whitespace().collect::<Vec<_>>());
    assert_eq!(row.as_deref(), Some(&["foobar", "unknown", "*"][..]), "{listed}");
    let health = c.command(r#"{"prefix": "health", "detail": "detail"}"#).2;
    assert!(health.contains("unidentified daemon crashed on host (unknown) at "), "{health}");
    assert_eq!(
        c.command(r#"{"prefix": "crash rm", "id": "foobar"}"#),
        (0, String::new(), String::new())
    );
    assert_eq!(c.command(r#"{"prefix": "crash rm", "id": "c1"}"#).0, 0);
    assert_eq!(c.command(r#"{"prefix": "crash stat"}"#).2, "0 crashes recorded\n");
}

#[test]
fn an_unknown_option_is_refused_with_the_nearest_name() {
    let mut c = Cluster::up(1);
    let set = |name: &str| {
        format!(r#"{{"prefix": "config set", "who": "osd", "name": "{name}", "value": "1"}}"#)
    };
    let said = "unrecognized config option 'osd_max_backfillz'; did you mean 'osd_max_backfills'?";
    assert_eq!(c.command(&set("osd_max_backfillz")).1, said);
    assert_eq!(c.command(&set("frobnicate")).1, "unrecognized config option 'frobnicate'");
}

#[test]
fn users_are_kept_as_ceph_keeps_them() {
    let mut c = Cluster::new(1);
    for (cmd, errno, text) in [
        (
            r#""auth get-or-create", "entity": "client.u", "caps": ["mon", "allow q"]"#,
            -22,
            "mon capability parse failed, stopped at 'allow q' of 'allow q'",
        ),
        (
            r#""auth get-or-create", "entity": "client.u", "caps": ["mon"]"#,
            -22,
            "bad capabilities request; odd number of arguments",
        ),
        (
            r#""auth get-or-create", "entity": "client.u", "caps": ["foo", "allow r"]"#,
            -22,
            "unknown cap type 'foo'",
        ),
        (r#""auth get-or-create", "entity": "client.u", "caps": ["mon", "allow r"]"#, 0, ""),
        (
            r#""auth get-or-create", "entity": "client.u", "caps": ["mon", "allow rw"]"#,
            -22,
            "key for client.u exists but cap mon does not match",
        ),
        (r#""auth get-or-create", "entity": "client.u", "caps": ["mon", "allow r"]"#, 0, ""),
        (
            r#""auth add", "entity": "client.u", "caps": ["mon", "allow *"]"#,
            -22,
            "entity client.u exists but cap mon does not match",
        ),
        (
            r#""auth caps", "entity": "client.no", "caps": ["mon", "allow *"]"#,
            -2,
            "couldn't find entry client.no",
        ),
        (r#""auth rotate", "entity": "client.no""#, -2, "entity client.no does not exist"),
        (
            r#""auth rotate", "entity": "client.u", "key_type": "aes256k""#,
            0,
            "rotated key for client.u",
        ),
        (
            r#""auth commit-pending", "entity": "client.u""#,
            -2,
            "entity client.u has no pending key",
        ),
        (r#""auth get-or-create-pending", "entity": "client.u""#, 0, ""),
        (r#""auth commit-pending", "entity": "client.u""#, 0, "committed pending key for client.u"),
        (r#""auth get-or-create", "entity": "bad""#, -22, "bad entity name"),
    ] {
        let (r, rs, _) = c.command(&format!("{{\"prefix\": {cmd}}}"));
        assert_eq!((r, rs.as_str()), (errno, text), "{cmd}");
    }
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "osd.7", "caps": ["mon", "allow profile osd"]}"#);
    assert!(
        c.ok(r#"{"prefix": "auth get-key", "entity": "osd.7"}"#).starts_with("Ag"),
        "daemons get aes256k"
    );
    assert!(c.ok(r#"{"prefix": "auth get-key", "entity": "client.u"}"#).starts_with("AQ"));
}
