//! What administrators and their tools see of the monitor, beside what a real 16.2.15 answered to
//! the same.

use crate::harness::Cluster;
use serde_json::{Value, json};

/// Each order with the code and a word of the answer.
#[test]
fn orders_are_refused_and_granted_as_ceph_does() {
    let mut c = Cluster::up(3);
    c.ok(r#"{"prefix": "osd down", "ids": ["2"]}"#);
    let table: &[(&str, i32, &str)] = &[
        // Who says that he is sure is asked nothing more, but an OSD that is up stays.
        (r#"{"prefix": "osd destroy", "id": 1}"#, -16, "pgs currently mapped"),
        (
            r#"{"prefix": "osd destroy", "id": 1, "yes_i_really_mean_it": true}"#,
            -16,
            "is not `down`",
        ),
        (
            r#"{"prefix": "osd destroy", "id": 2, "yes_i_really_mean_it": true}"#,
            0,
            "destroyed osd.2",
        ),
        (r#"{"prefix": "osd purge", "id": 1, "yes_i_really_mean_it": true}"#, -16, "is not `down`"),
        (r#"{"prefix": "osd purge", "id": 2, "yes_i_really_mean_it": true}"#, 0, "purged osd.2"),
        (
            r#"{"prefix": "osd purge", "id": 2, "yes_i_really_mean_it": true}"#,
            0,
            "osd.2 does not exist",
        ),
        (r#"{"prefix": "osd reweightn", "weights": "{\"1\": 0.95}"}"#, -22, "weights"),
        (r#"{"prefix": "osd reweightn", "weights": "{\"1\": \"99999999\"}"}"#, -22, "weights"),
        (r#"{"prefix": "osd reweightn", "weights": "{\"1\": \"65000\"}"}"#, 0, "reweighted"),
        (
            r#"{"prefix": "osd pool create", "pool": "data", "pool_type": "erasure"}"#,
            -22,
            "cannot change to erasure",
        ),
        (
            r#"{"prefix": "osd pool create", "pool": "data", "pool_type": "replicated"}"#,
            0,
            "already exists",
        ),
        (
            r#"{"prefix": "osd pool set", "pool": "data", "var": "recovery_priority", "val": "11"}"#,
            -22,
            "-10 and 10",
        ),
        (
            r#"{"prefix": "osd pool set", "pool": "data", "var": "recovery_priority", "val": "-10"}"#,
            0,
            "",
        ),
        (
            r#"{"prefix": "config set", "who": "mon", "name": "mon_host", "value": "1.2.3.4"}"#,
            -22,
            "mon_host",
        ),
        (
            r#"{"prefix": "config set", "who": "global", "name": "log_to_file", "value": "true"}"#,
            0,
            "no effect",
        ),
        (
            r#"{"prefix": "config set", "who": "mgr", "name": "mgr/none/ssl", "value": "true"}"#,
            -22,
            "mgr/none/ssl",
        ),
        (
            r#"{"prefix": "config set", "who": "mgr", "name": "mgr/balancer/active", "value": "true"}"#,
            0,
            "no effect",
        ),
        (
            r#"{"prefix": "config set", "who": "osd", "name": "bluestore_cache_siz", "value": "1"}"#,
            -22,
            "'bluestore_cache_size'",
        ),
        (
            r#"{"prefix": "config set", "who": "osd", "name": "osd_scrub_begin_hour", "value": "24"}"#,
            -22,
            "0 to 23",
        ),
        (r#"{"prefix": "mon remove", "name": "zz"}"#, 0, "mon.zz"),
        // Not Ceph's: what monitors keep of tokens and clocks.
        (
            r#"{"prefix": "config-key set", "key": "spirula/fences-clock", "val": "-9"}"#,
            -1,
            "the monitors' own",
        ),
        (
            r#"{"prefix": "config-key put", "key": "spirula/mon-name/z", "val": ""}"#,
            -1,
            "the monitors' own",
        ),
        (r#"{"prefix": "config-key rm", "key": "spirula/join-token/a"}"#, -1, "the monitors' own"),
        (r#"{"prefix": "config-key get", "key": "spirula/join-token/a"}"#, -1, "the monitors' own"),
    ];
    for (cmd, code, word) in table {
        let (r, rs, _) = c.command(cmd);
        assert!(r == *code && rs.contains(word), "{cmd}: {r} {rs}");
    }
}

/// Every command of Ceph's manager modules is listed once a manager serves, so that the tool sends
/// it and is told what is missing; what a daemon says of itself is asked for by `tell` alone.
#[test]
fn commands_that_are_missing_are_listed() {
    let mut c = Cluster::up(3);
    let listed = |c: &mut Cluster| {
        let all = c.json(r#"{"prefix": "get_command_descriptions"}"#);
        let words = |d: &Value| {
            let sig = d["sig"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(" ");
            (sig, d["flags"].as_u64().unwrap() & 8 != 0)
        };
        all.as_object().unwrap().values().map(words).collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = listed(&mut c);
    assert!(
        !before.contains_key("telemetry on")
            && before.contains_key("device ls")
            && before.contains_key("version")
    );
    for own in ["mon_status", "sessions", "ops", "dump_historic_ops"] {
        assert!(!before.contains_key(own), "{own}");
    }
    let conn = c.open(spirula_types::EntityType::Mgr, "x");
    let beacon = spirula_messages::cluster::control::MgrBeacon {
        fsid: crate::harness::FSID,
        gid: 4200,
        name: "x".into(),
        addr: crate::harness::addr(6900),
        available: true,
        metadata: [
            ("hostname".to_owned(), "h9".to_owned()),
            ("device_ids".to_owned(), "sda=ACME_DISK_1,sdb=".to_owned()),
            ("device_paths".to_owned(), "sda=/dev/disk/by-path/p1".to_owned()),
        ]
        .into(),
        commands: vec![
            r#"{"sig": ["pg", "stat"], "help": "", "module": "pg", "perm": "r", "flags": 8}"#
                .into(),
        ],
        modules: vec![],
        services: [].into(),
    };
    c.ask(conn, beacon);
    let after = listed(&mut c);
    assert_eq!((after.get("telemetry on"), after.get("orch host ls")), (Some(&true), Some(&true)));
    // What a monitor serves is not missing.
    let own: std::collections::BTreeSet<String> =
        spirula_mon::commands::specs().map(|s| s.prefix()).collect();
    for missing in spirula_settings::absent::commands() {
        assert!(!own.contains(&spirula_settings::common::words(missing.sig)), "{missing:?}");
    }
    // A disk without a serial number has no id, and is not listed.
    let row = json!({"devid": "ACME_DISK_1", "location": [{"host": "h9", "dev": "sda", "path": "/dev/disk/by-path/p1"}], "daemons": ["mgr.x"]});
    assert_eq!(c.json(r#"{"prefix": "device ls"}"#), json!([row]));
    assert_eq!(c.json(r#"{"prefix": "device info", "devid": "ACME_DISK_1"}"#), row);
    assert_eq!(c.json(r#"{"prefix": "device ls-by-host", "host": "h9"}"#), json!([row]));
    assert_eq!(c.json(r#"{"prefix": "device ls-by-daemon", "who": "osd.0"}"#), json!([]));
    assert_eq!(c.command(r#"{"prefix": "device info", "devid": "no"}"#).0, -2);
}

/// Text where Ceph prints text, the value where it prints JSON.
#[test]
fn plain_answers_are_text() {
    let mut c = Cluster::up(3);
    assert!(c.ok(r#"{"prefix": "version"}"#).starts_with("ceph version 16.2.15 ("));
    assert_eq!(c.json(r#"{"prefix": "version"}"#)["release"], "pacific");
    assert_eq!(c.ok(r#"{"prefix": "osd crush get-device-class", "ids": ["0"]}"#), "ssd\n");
    assert_eq!(
        c.ok(r#"{"prefix": "osd crush get-device-class", "ids": ["0", "osd.1"]}"#),
        "osd.0 ssd\nosd.1 ssd\n"
    );
    let json = c.json(r#"{"prefix": "osd crush get-device-class", "ids": ["0"]}"#);
    assert_eq!(json, json!([{"osd": 0, "device_class": "ssd"}]));
}

/// Every form that the `ceph` tool offers is answered; XML has Ceph's outermost name, YAML falls
/// back to text.
#[test]
fn every_form_of_output_is_served() {
    let mut c = Cluster::up(3);
    let mut of =
        |prefix: &str, form: &str| c.ok(&json!({"prefix": prefix, "format": form}).to_string());
    for (prefix, root) in
        [("status", "status"), ("health", "health"), ("osd dump", "osdmap"), ("mon dump", "monmap")]
    {
        let xml = of(prefix, "xml");
        assert!(
            xml.starts_with(&format!("<{root}>")) && xml.ends_with(&format!("</{root}>\n")),
            "{prefix}: {xml}"
        );
        let pretty = of(prefix, "xml-pretty");
        assert!(pretty.starts_with(&format!("<{root}>\n <")), "{prefix}: {pretty}");
    }
    assert!(of("status", "xml").contains("<quorum_names><id>a</id></quorum_names>"));
    assert_eq!(of("osd stat", "yaml"), of("osd stat", "plain"));
}

/// Numbers are numbers and switches are switches; a mask is told in parts.
#[test]
fn options_have_cephs_keys_and_types() {
    let mut c = Cluster::up(3);
    let help = c.json(r#"{"prefix": "config help", "key": "osd_max_backfills"}"#);
    assert!(
        help["default"].is_number()
            && help["flags"] == json!(["runtime"])
            && help.get("enum_values").is_none()
    );
    assert_eq!(
        c.json(r#"{"prefix": "config help", "key": "osd_op_queue"}"#)["enum_values"][0],
        "wpq"
    );
    assert!(c.json(r#"{"prefix": "config ls"}"#).as_array().unwrap().len() > 2_200);
    for who in ["osd/class:ssd", "osd/host:host1"] {
        let set =
            json!({"prefix": "config set", "who": who, "name": "osd_max_backfills", "value": "2"});
        c.ok(&set.to_string());
    }
    let rows = c.json(r#"{"prefix": "config dump"}"#);
    let row = |key: &str| -> Value {
        rows.as_array().unwrap().iter().find(|r| r.get(key).is_some()).unwrap().clone()
    };
    assert_eq!(row("device_class")["device_class"], "ssd");
    let place = row("location_type");
    assert_eq!(
        (&place["location_type"], &place["location_value"]),
        (&json!("host"), &json!("host1"))
    );
}

/// The older form of group flags sets and takes back the same bits.
#[test]
fn one_flag_of_single_osds_is_set_and_unset() {
    let mut c = Cluster::up(3);
    let state = |c: &mut Cluster| c.json(r#"{"prefix": "osd dump"}"#)["osds"][1]["state"].clone();
    for flag in ["noup", "nodown", "noin", "noout"] {
        c.ok(&json!({"prefix": format!("osd add-{flag}"), "ids": ["1"]}).to_string());
        assert!(state(&mut c).as_array().unwrap().contains(&json!(flag)), "{flag}");
        c.ok(&json!({"prefix": format!("osd rm-{flag}"), "ids": ["osd.1"]}).to_string());
        assert!(!state(&mut c).as_array().unwrap().contains(&json!(flag)), "{flag}");
        let (r, ..) =
            c.command(&json!({"prefix": format!("osd add-{flag}"), "ids": ["77"]}).to_string());
        assert_eq!(r, -2, "{flag}");
    }
}

/// An OSD that goes and comes back leaves its traces in the log: who marked it, and what became of
/// the health.
#[test]
fn the_log_tells_what_became_of_the_health() {
    let mut c = Cluster::up(3);
    c.tick(2);
    c.ok(r#"{"prefix": "osd down", "ids": ["2"]}"#);
    c.tick(2);
    c.tick(2);
    c.ok(r#"{"prefix": "osd out", "ids": ["2"]}"#);
    let log = c.ok(r#"{"prefix": "log last", "num": 50}"#);
    for line in
        ["marked osd.2 down", "Health check failed: 1 osds down (OSD_DOWN)", "marked osd.2 out"]
    {
        assert!(log.contains(line), "{line}: {log}");
    }
    c.boot(2);
    c.tick(2);
    c.tick(2);
    let log = c.ok(r#"{"prefix": "log last", "num": 50}"#);
    assert!(log.contains("Health check cleared: OSD_DOWN (was: 1 osds down)"), "{log}");
}
