//! The manager answers as a real Ceph 16.2.15 did: its PG map is filled, through the messages
//! OSDs and monitors send, with what that cluster reported; then commands are compared with
//! the output kept in `tests/data/vectors/cli-output`.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use spirula_encoding::{UTime, to_vec};
use spirula_maps::{
    EncodedOsdMap, ObjectStatSum, OsdStatReport, PgPool, PgStat, PgState, StoreStatfs,
};
use spirula_messages::Body;
use spirula_messages::ceph::{MMgrCommand, MMgrCommandReply, MOsdMap};
use spirula_messages::cluster::control::{OsdReport, OsdReportAck};
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now, Peer};
use spirula_types::{AddrVec, EVersion, EntityName, EntityType, OsdId, PgId, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors");

fn sample(name: &str) -> String {
    std::fs::read_to_string(format!("{VECTORS}/cli-output/{name}")).unwrap()
}

fn sample_json(name: &str) -> Value {
    serde_json::from_str(&sample(name)).unwrap()
}

fn statfs(v: &Value) -> StoreStatfs {
    let n = |k: &str| v[k].as_i64().unwrap();
    StoreStatfs {
        total: n("total"),
        available: n("available"),
        internally_reserved: n("internally_reserved"),
        allocated: n("allocated"),
        data_stored: n("data_stored"),
        data_compressed: n("data_compressed"),
        data_compressed_allocated: n("data_compressed_allocated"),
        data_compressed_original: n("data_compressed_original"),
        omap_allocated: n("omap_allocated"),
        internal_metadata: n("internal_metadata"),
    }
}

fn stat_sum(v: &Value) -> ObjectStatSum {
    let n = |k: &str| v[k].as_i64().unwrap();
    ObjectStatSum {
        num_bytes: n("num_bytes"),
        num_objects: n("num_objects"),
        num_object_clones: n("num_object_clones"),
        num_object_copies: n("num_object_copies"),
        num_objects_dirty: n("num_objects_dirty"),
        num_rd: n("num_read"),
        num_rd_kb: n("num_read_kb"),
        num_wr: n("num_write"),
        num_wr_kb: n("num_write_kb"),
        num_objects_omap: n("num_objects_omap"),
        num_omap_bytes: n("num_omap_bytes"),
        num_omap_keys: n("num_omap_keys"),
        num_scrub_errors: n("num_scrub_errors"),
        ..ObjectStatSum::default()
    }
}

fn osds(v: &Value) -> Vec<OsdId> {
    v.as_array().unwrap().iter().map(|o| o.as_i64().unwrap() as OsdId).collect()
}

fn time(s: &str) -> UTime {
    // 2026-11-20T20:43:07.359576+0000, all samples are of one day.
    let part = |a: usize, b: usize| s.get(a..b).unwrap().parse::<u32>().unwrap();
    let midnight = 1_795_203_676 - 19 * 3600 - 41 * 60 - 16;
    assert!(s.starts_with("2026-11-20T"));
    UTime {
        sec: midnight + part(11, 13) * 3600 + part(14, 16) * 60 + part(17, 19),
        nsec: part(20, 26) * 1000,
    }
}

fn version(s: &str) -> EVersion {
    let (e, v) = s.split_once('\'').unwrap();
    EVersion::new(e.parse().unwrap(), v.parse().unwrap())
}

/// When the samples of single PGs were taken: 12 minutes after the last change in 24.0.
fn now(seconds: u64) -> Now {
    Now { mono: Duration::from_secs(seconds), wall: time("2026-11-20T20:55:30.000000+0000") }
}

fn tell(mgr: &mut Mgr, at: Now, event: MgrEvent) -> Vec<MgrEffect> {
    let mut out = Vec::new();
    mgr.handle(at, event, &mut out);
    out
}

/// The sampled cluster.
fn cluster() -> Mgr {
    let bytes = std::fs::read(format!("{VECTORS}/osdmap/real-e180.bin")).unwrap();
    let mut map = EncodedOsdMap::from_bytes(bytes.into()).unwrap().into_map();
    // The commands ran at epoch 189; since 180 one pool had been added.
    map.epoch = 189;
    map.pools.insert(24, PgPool::replicated(3, 1, 0, map.modified));
    map.pool_names.insert(24, "one".into());

    let config = MgrConfig {
        fsid: map.fsid,
        gid: 4098,
        name: "x".into(),
        addrs: AddrVec::default(),
        hostname: "host".into(),
        metadata: BTreeMap::new(),
        settings: Default::default(),
    };
    let mut mgr = Mgr::new(config, now(0));
    let name = EntityName::new(EntityType::Client, 4100);
    let peer = Peer {
        name,
        global_id: 4711,
        auth_id: "admin".into(),
        addrs: AddrVec::default(),
        place: None,
        caps: None,
    };
    tell(&mut mgr, now(0), MgrEvent::SessionOpened { conn: 1, peer });
    tell(&mut mgr, now(0), MgrEvent::MonOpened);
    let full = MOsdMap { fsid: map.fsid, fulls: vec![(189, map.to_bytes())], ..MOsdMap::default() };
    tell(&mut mgr, now(0), MgrEvent::Mon(full.into_message(0)));
    assert_eq!(mgr.osdmap_epoch(), 189);

    let mut pgs: BTreeMap<PgId, PgStat> = BTreeMap::new();
    for p in sample_json("pg-dump-pgs_brief.json")["pg_stats"].as_array().unwrap() {
        let stat = PgStat {
            state: PgState::parse(p["state"].as_str().unwrap()).unwrap(),
            up: osds(&p["up"]),
            acting: osds(&p["acting"]),
            up_primary: p["up_primary"].as_i64().unwrap() as OsdId,
            acting_primary: p["acting_primary"].as_i64().unwrap() as OsdId,
            reported_epoch: 188,
            reported_seq: 1,
            ..PgStat::default()
        };
        pgs.insert(PgId::parse(p["pgid"].as_str().unwrap()).unwrap(), stat);
    }
    // The samples give sums by pool; the first PG of each pool stands for all of it.
    for p in sample_json("pg-dump-pools.json")["pool_stats"].as_array().unwrap() {
        let first = pgs.get_mut(&PgId::new(p["poolid"].as_i64().unwrap(), 0)).unwrap();
        first.stats = stat_sum(&p["stat_sum"]);
        first.log_size = p["log_size"].as_i64().unwrap();
    }
    let one = &sample_json("pg-ls-by-pool-one.json")["pg_stats"][0];
    let stamp = |k: &str| time(one[k].as_str().unwrap());
    let epoch = |k: &str| one[k].as_u64().unwrap() as u32;
    let pg = pgs.get_mut(&PgId::new(24, 0)).unwrap();
    pg.version = version(one["version"].as_str().unwrap());
    pg.reported_epoch = epoch("reported_epoch");
    pg.reported_seq = one["reported_seq"].as_u64().unwrap();
    pg.last_fresh = stamp("last_fresh");
    pg.last_change = stamp("last_change");
    pg.last_active = stamp("last_active");
    pg.last_peered = stamp("last_peered");
    pg.last_clean = stamp("last_clean");
    pg.last_became_active = stamp("last_became_active");
    pg.last_became_peered = stamp("last_became_peered");
    pg.last_unstale = stamp("last_unstale");
    pg.last_undegraded = stamp("last_undegraded");
    pg.last_fullsized = stamp("last_fullsized");
    pg.mapping_epoch = epoch("mapping_epoch");
    pg.created = epoch("created");
    pg.last_epoch_clean = epoch("last_epoch_clean");
    pg.last_scrub_stamp = stamp("last_scrub_stamp");
    pg.last_deep_scrub_stamp = stamp("last_deep_scrub_stamp");
    pg.last_clean_scrub_stamp = stamp("last_clean_scrub_stamp");

    let reports = sample_json("pg-dump-osds.json");
    for o in reports["osd_stats"].as_array().unwrap() {
        let osd = o["osd"].as_i64().unwrap() as OsdId;
        let stat = OsdStatReport {
            up_from: o["up_from"].as_u64().unwrap() as u32,
            seq: o["seq"].as_u64().unwrap(),
            statfs: statfs(&o["statfs"]),
            pool_statfs: reports["pool_statfs"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|s| s["osd"] == o["osd"])
                .map(|s| (s["poolid"].as_i64().unwrap(), statfs(s)))
                .collect(),
            num_pgs: o["num_pgs"].as_u64().unwrap() as u32,
            hb_peers: osds(&o["hb_peers"]),
            ..OsdStatReport::default()
        };
        let mine = pgs.iter().filter(|(_, s)| s.acting_primary == osd);
        let report = OsdReport {
            osd,
            uuid: Uuid([osd as u8 + 1; 16]),
            seq: 1,
            epoch: 189,
            stamp: UTime::ZERO,
            stat: to_vec(&stat).into(),
            pgs: mine.map(|(id, s)| (*id, to_vec(s).into())).collect(),
            full: true,
            slow_ops: 0,
            slow_oldest_ms: 0,
            small_paths: BTreeMap::new(),
            perf: BTreeMap::new(),
            hostname: "h0".into(),
            config: BTreeMap::new(),
            images: Default::default(),
        };
        let conn = 100 + osd as u64;
        let peer = Peer {
            name: EntityName::osd(osd),
            global_id: 4900,
            auth_id: String::new(),
            addrs: AddrVec::default(),
            place: None,
            caps: None,
        };
        tell(&mut mgr, now(1), MgrEvent::SessionOpened { conn, peer });
        let effects =
            tell(&mut mgr, now(1), MgrEvent::Message { conn, message: report.into_message(0) });
        let ack = effects.iter().find_map(|e| match e {
            MgrEffect::Send(c, m) if *c == conn => OsdReportAck::from_message(m).ok(),
            _ => None,
        });
        assert!(ack.is_some_and(|a| a.seq == 1 && !a.want_full));
    }
    mgr
}

/// Runs a command as the CLI sends it; result, status text, output.
fn run(mgr: &mut Mgr, json: &str) -> (i32, String, String) {
    let command = MMgrCommand {
        fsid: Uuid::default(),
        cmd: vec![json.to_owned()],
        input: bytes::Bytes::new(),
    };
    let effects =
        tell(mgr, now(2), MgrEvent::Message { conn: 1, message: command.into_message(7) });
    let reply = effects
        .iter()
        .find_map(|e| match e {
            MgrEffect::Send(1, m) => Some((m.tid, MMgrCommandReply::from_message(m).unwrap())),
            _ => None,
        })
        .unwrap();
    assert_eq!(reply.0, 7);
    (reply.1.result, reply.1.status, String::from_utf8(reply.1.output.to_vec()).unwrap())
}

/// `prefix` and arguments, plain and as JSON, against `NAME.txt`, `NAME.json`, `NAME.err`.
/// The CLI prints an empty line before JSON.
fn same(mgr: &mut Mgr, name: &str, args: &str) {
    let (ret, rs, text) = run(mgr, &format!("{{{args}, \"target\": [\"mon-mgr\", \"\"]}}"));
    assert_eq!(ret, 0, "{name}: {rs}");
    assert_eq!(text, sample(&format!("{name}.txt")), "{name}.txt");
    if let Ok(err) = std::fs::read_to_string(format!("{VECTORS}/cli-output/{name}.err")) {
        assert_eq!(rs, err.trim_end(), "{name}.err");
    }
    let (_, _, json) = run(mgr, &format!("{{{args}, \"format\": \"json\"}}"));
    assert_eq!(format!("\n{json}"), sample(&format!("{name}.json")), "{name}.json");
}

/// The same, where Ceph's order of lines is that of a hash table.
fn same_in_any_order(mgr: &mut Mgr, name: &str, args: &str) {
    let sorted = |s: &str| {
        let mut v: Vec<String> = s.lines().map(str::to_owned).collect();
        v.sort();
        v
    };
    let (ret, rs, text) = run(mgr, &format!("{{{args}}}"));
    assert_eq!(ret, 0, "{name}: {rs}");
    assert_eq!(sorted(&text), sorted(&sample(&format!("{name}.txt"))), "{name}.txt");
    // Keys of the entries, in order, and the entries' values.
    let (_, _, json) = run(mgr, &format!("{{{args}, \"format\": \"json\"}}"));
    let ours: Value = serde_json::from_str(&json).unwrap();
    let theirs = sample_json(&format!("{name}.json"));
    for (key, list) in theirs.as_object().unwrap() {
        let Some(list) = list.as_array() else {
            assert_eq!(ours[key], *list, "{name}.json {key}");
            continue;
        };
        let mut a: Vec<String> =
            ours[key].as_array().unwrap().iter().map(Value::to_string).collect();
        let mut b: Vec<String> = list.iter().map(Value::to_string).collect();
        a.sort();
        b.sort();
        assert_eq!(a, b, "{name}.json {key}");
    }
}

#[test]
fn pg_stat_is_the_same() {
    let mut mgr = cluster();
    same(&mut mgr, "pg-stat", r#""prefix": "pg stat""#);
}

#[test]
fn osd_df_flat_and_as_a_tree_is_the_same() {
    let mut mgr = cluster();
    same(&mut mgr, "osd-df", r#""prefix": "osd df""#);
    same(&mut mgr, "osd-df-tree", r#""prefix": "osd df", "output_method": "tree""#);
    let (ret, _, text) = run(
        &mut mgr,
        r#"{"prefix": "osd df", "output_method": "tree", "filter_by": "name", "filter": "host1"}"#,
    );
    assert_eq!(ret, 0);
    assert_eq!(text.lines().count(), 5, "{text}");
    let (ret, rs, _) =
        run(&mut mgr, r#"{"prefix": "osd df", "filter_by": "name", "filter": "nosuch"}"#);
    assert_eq!((ret, rs.as_str()), (-22, "'nosuch' not a pool, crush node or device class name"));
}

#[test]
fn pg_dumps_are_the_same() {
    let mut mgr = cluster();
    same_in_any_order(
        &mut mgr,
        "pg-dump-pgs_brief",
        r#""prefix": "pg dump", "dumpcontents": ["pgs_brief"]"#,
    );
    same_in_any_order(
        &mut mgr,
        "pg-dump-pools",
        r#""prefix": "pg dump", "dumpcontents": ["pools"]"#,
    );
    same(&mut mgr, "pg-ls-by-pool-one", r#""prefix": "pg ls-by-pool", "poolstr": "one""#);

    // Version, time and ping times differ, and OSDs come in the order of a hash table.
    let (_, rs, text) = run(&mut mgr, r#"{"prefix": "pg dump", "dumpcontents": ["sum"]}"#);
    let tail = |s: &str| s.lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((rs.as_str(), tail(&text)), ("dumped sum", tail(&sample("pg-dump-sum.txt"))));
    let (_, _, text) = run(&mut mgr, r#"{"prefix": "pg dump", "dumpcontents": ["osds"]}"#);
    let theirs = sample("pg-dump-osds.txt");
    let mut lines: Vec<&str> = theirs.lines().collect();
    lines.swap(1, 3);
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    let (_, _, json) =
        run(&mut mgr, r#"{"prefix": "pg dump", "dumpcontents": ["osds"], "format": "json"}"#);
    let mut theirs = sample_json("pg-dump-osds.json");
    let list = theirs["osd_stats"].as_array_mut().unwrap();
    list.reverse();
    for o in list {
        o["network_ping_times"] = Value::Array(Vec::new());
    }
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap().to_string(), theirs.to_string());
}

#[test]
fn summaries_have_ceph_s_keys_in_ceph_s_order() {
    let mut mgr = cluster();
    let (_, _, json) =
        run(&mut mgr, r#"{"prefix": "pg dump", "dumpcontents": ["sum"], "format": "json"}"#);
    fn keys(v: &Value, path: &str, out: &mut Vec<String>) {
        if let Value::Object(map) = v {
            for (k, v) in map {
                out.push(format!("{path}.{k}"));
                keys(v, &format!("{path}.{k}"), out);
            }
        }
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    keys(&serde_json::from_str(&json).unwrap(), "", &mut ours);
    keys(&sample_json("pg-dump-sum.json"), "", &mut theirs);
    assert_eq!(ours, theirs);
}

#[test]
fn pools_and_services_say_the_same() {
    let mut mgr = cluster();
    same(&mut mgr, "osd-pool-stats", r#""prefix": "osd pool stats""#);
    let (_, _, text) = run(&mut mgr, r#"{"prefix": "osd perf"}"#);
    let mut theirs: Vec<String> = sample("osd-perf.txt").lines().map(str::to_owned).collect();
    theirs.swap(1, 3);
    assert_eq!(text.lines().collect::<Vec<_>>(), theirs);
    // What is not there does not say that there is nothing.
    for prefix in ["progress", "progress json"] {
        let (ret, rs, _) = run(&mut mgr, &format!(r#"{{"prefix": "{prefix}", "host": "h"}}"#));
        assert!(ret == -95 && rs.starts_with("this version has no "), "{prefix}: {ret} {rs}");
    }
    for (prefix, module) in [
        ("telemetry on", "telemetry"),
        ("fs subvolume ls", "volumes"),
        ("osd pool set noautoscale", "pg_autoscaler"),
    ] {
        let (ret, rs, _) = run(&mut mgr, &format!(r#"{{"prefix": "{prefix}"}}"#));
        assert!(
            ret == -95 && rs.starts_with(&format!("Module '{module}' is not enabled")),
            "{prefix}: {ret} {rs}"
        );
    }
    assert_eq!(run(&mut mgr, r#"{"prefix": "telemetry off"}"#).0, 0, "it is off");
    let (ret, rs, _) = run(&mut mgr, r#"{"prefix": "orch host ls"}"#);
    assert_eq!(
        (ret, rs.as_str()),
        (-2, "No orchestrator configured (try `ceph orch set backend`)")
    );
    let (ret, rs, _) = run(&mut mgr, r#"{"prefix": "orch status"}"#);
    assert_eq!(
        (ret, rs.as_str()),
        (-2, "No orchestrator configured (try `ceph orch set backend`)")
    );
    let (ret, _, json) = run(&mut mgr, r#"{"prefix": "osd ok-to-stop", "ids": ["0"]}"#);
    // Pool p4 has min_size 3, so its 16 PGs would stop.
    assert_eq!(ret, -16, "{json}");
    assert!(json.starts_with(
        r#"{"ok_to_stop":false,"osds":[0],"num_ok_pgs":86,"num_not_ok_pgs":16,"bad_become_inactive":["5.0","#
    ));
    let (ret, rs, _) = run(&mut mgr, r#"{"prefix": "osd safe-to-destroy", "ids": ["0"]}"#);
    assert_eq!((ret, rs.as_str()), (-16, "OSD(s) 0 have 102 pgs currently mapped to them. "));
}
