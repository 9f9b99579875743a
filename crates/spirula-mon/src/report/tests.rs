//! Reports compared with what a real Ceph 16.2.15 printed: the sampled cluster of
//! `tests/data/vectors/cli-output`, and situations reproduced on a real cluster whose
//! texts are quoted here.

use super::health::{Health, parse_ttl};
use super::{Agreed, df, health, report, status};
use crate::clog::ClusterLog;
use crate::config::ConfigDb;
use crate::state::HealthMute;
use crate::view::{ClusterView, MgrKnowledge, QuorumInfo};
use serde_json::{Value, json};
use spirula_encoding::UTime;
use spirula_format::Format;
use spirula_maps::osdmap::{flags, pool, state};
use spirula_maps::{
    EncodedOsdMap, FsMap, MgrMap, MonMap, ObjectStatSum, OsdMap, OsdStatReport, PgDigest, PgPool,
    PgState, PoolSum, ServiceEntry, StoreStatfs,
};
use spirula_messages::cluster::control::HealthInput;
use spirula_types::{AddrVec, Uuid};
use std::collections::BTreeMap;

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
        allocated: n("allocated"),
        data_stored: n("data_stored"),
        omap_allocated: n("omap_allocated"),
        internal_metadata: n("internal_metadata"),
        ..StoreStatfs::default()
    }
}

/// Everything a view borrows from.
struct World {
    now: UTime,
    fsid: Uuid,
    monmap: MonMap,
    quorum: QuorumInfo,
    osdmap: OsdMap,
    /// The epochs up to which no OSD map is needed, and from which on they are kept.
    maps: (u32, u32),
    mgrmap: MgrMap,
    fsmap: FsMap,
    mgr: MgrKnowledge,
    mutes: BTreeMap<String, HealthMute>,
    config: ConfigDb,
    log: ClusterLog,
    none: BTreeMap<i32, BTreeMap<String, String>>,
    none_mgr: BTreeMap<String, BTreeMap<String, String>>,
    none_mds: BTreeMap<u64, spirula_messages::ceph::MdsHealth>,
    none_defaults: BTreeMap<String, String>,
    none_kv: crate::kv::Kv,
    undone: BTreeMap<&'static str, String>,
    auth: spirula_auth::db::AuthDb,
}

impl World {
    fn view(&self) -> ClusterView<'_> {
        ClusterView {
            now: self.now,
            fsid: self.fsid,
            monmap: &self.monmap,
            quorum: &self.quorum,
            osdmap: &self.osdmap,
            oldest_osdmap: self.maps.1,
            settled_osdmap: self.maps.0,
            mgrmap: &self.mgrmap,
            fsmap: &self.fsmap,
            mgr: &self.mgr,
            mutes: &self.mutes,
            osd_metadata: &self.none,
            room_bounds: (5, 30),
            mgr_metadata: &self.none_mgr,
            mds_health: &self.none_mds,
            config: &self.config,
            defaults: &self.none_defaults,
            kv: &self.none_kv,
            auth_safe: true,
            auth: &self.auth,
            log: &self.log,
            creating_pgs: 0,
            pairs: &[],
            undone: &self.undone,
        }
    }

    /// Three OSDs on three hosts, healthy, without pools.
    fn new(osdmap: OsdMap) -> Self {
        let now = UTime { sec: 1_795_208_137, nsec: 0 };
        let ago = |s| UTime { sec: now.sec - s, nsec: 0 };
        let mgrmap = MgrMap {
            active_gid: 4098,
            available: true,
            active_name: "x".into(),
            active_change: ago(5000),
            modules: ["iostat", "nfs", "restful"].map(str::to_owned).into(),
            ..MgrMap::initial(5)
        };
        Self {
            now,
            fsid: osdmap.fsid,
            monmap: MonMap::initial(osdmap.fsid, ago(9000), [("a".to_owned(), AddrVec::default())]),
            quorum: QuorumInfo {
                election_epoch: 3,
                quorum: vec![0],
                names: vec!["a".into()],
                leader: "a".into(),
                since: ago(5003),
                ..QuorumInfo::default()
            },
            osdmap,
            maps: (1, 1),
            mgrmap,
            fsmap: FsMap::initial(1),
            mgr: MgrKnowledge::default(),
            mutes: BTreeMap::new(),
            config: ConfigDb::default(),
            log: ClusterLog::default(),
            none: BTreeMap::new(),
            none_mgr: BTreeMap::new(),
            none_mds: BTreeMap::new(),
            none_defaults: BTreeMap::new(),
            none_kv: crate::kv::Kv::default(),
            undone: BTreeMap::new(),
            auth: Default::default(),
        }
    }
}

/// The sampled cluster at its end.
fn sampled() -> World {
    let bytes = std::fs::read(format!("{VECTORS}/osdmap/real-e180.bin")).unwrap();
    let mut map = EncodedOsdMap::from_bytes(bytes.into()).unwrap().into_map();
    map.epoch = 189;
    map.pools.insert(24, PgPool::replicated(3, 1, 0, map.modified));
    map.pool_names.insert(24, "one".into());
    let mut w = World::new(map);

    let mut digest = PgDigest::default();
    digest.pg_states.insert(PgState::ACTIVE | PgState::CLEAN, 114);
    let reports = sample_json("pg-dump-osds.json");
    for o in reports["osd_stats"].as_array().unwrap() {
        let report = OsdStatReport { statfs: statfs(&o["statfs"]), ..OsdStatReport::default() };
        digest.osds.insert(o["osd"].as_i64().unwrap() as i32, report);
    }
    for p in sample_json("pg-dump-pools.json")["pool_stats"].as_array().unwrap() {
        let mut sum =
            PoolSum { num_pgs: p["num_pg"].as_u64().unwrap() as u32, ..PoolSum::default() };
        let n = |k: &str| p["stat_sum"][k].as_i64().unwrap();
        sum.stat.stats.sum = ObjectStatSum {
            num_objects: n("num_objects"),
            num_bytes: n("num_bytes"),
            num_object_copies: n("num_object_copies"),
            num_rd: n("num_read"),
            num_rd_kb: n("num_read_kb"),
            num_wr: n("num_write"),
            num_wr_kb: n("num_write_kb"),
            ..ObjectStatSum::default()
        };
        sum.stat.store_stats = statfs(&p["store_stats"]);
        sum.stat.num_store_stats = p["num_store_stats"].as_u64().unwrap() as u32;
        digest.pools.insert(p["poolid"].as_i64().unwrap(), sum);
    }
    w.mgr = MgrKnowledge { digest, stamp: w.now, ..MgrKnowledge::default() };
    w
}

/// Three hosts with one OSD each.
fn small() -> World {
    let mut crush = spirula_crush::CrushMap::new_default("osd").unwrap();
    for osd in 0..3 {
        let location =
            spirula_crush::parse_location(["root=default", &format!("host=host{osd}")]).unwrap();
        crush.insert(osd, 0x10000, &format!("osd.{osd}"), &location).unwrap();
    }
    let now = UTime { sec: 1_795_200_000, nsec: 0 };
    let mut map = OsdMap::fresh(Uuid([7; 16]), 5, now, spirula_maps::Crush::new(crush));
    map.set_max_osd(3);
    for i in 0..3 {
        map.osd_state[i] = state::EXISTS | state::UP;
        map.osd_weight[i] = 0x10000;
    }
    let mut w = World::new(map);
    w.mgr.stamp = w.now;
    w
}

fn detail(w: &World) -> String {
    health(&w.view(), true, Format::Plain)
}

/// Old tunables, an old way to make straws, and OSDs that are never marked out, with Ceph's words;
/// and not when that is not wanted.
#[test]
fn old_crush_maps_and_osds_that_stay_in_for_ever_are_told_of() {
    let mut w = small();
    let told =
        |w: &World, code: &str| detail(w).lines().find(|l| l.contains(code)).map(str::to_owned);
    let codes = ["OLD_CRUSH_TUNABLES", "OLD_CRUSH_STRAW_CALC_VERSION", "OSD_NO_DOWN_OUT_INTERVAL"];
    assert!(codes.iter().all(|c| told(&w, c).is_none()), "{}", detail(&w));
    let set = |w: &mut World, option: &str, value: &str| {
        w.config.change(
            w.now,
            "",
            vec![("mon".to_owned(), option.to_owned(), Some(value.to_owned()))],
        );
    };
    let mut crush = spirula_crush::CrushMap::clone(&w.osdmap.crush);
    crush.tunables.straw_calc_version = 0;
    w.osdmap.crush = spirula_maps::Crush::new(crush);
    assert_eq!(
        told(&w, codes[1]).as_deref(),
        Some("[WRN] OLD_CRUSH_STRAW_CALC_VERSION: crush map has straw_calc_version=0")
    );
    set(&mut w, "mon_warn_on_crush_straw_calc_version_zero", "false");
    assert!(told(&w, codes[1]).is_none() && told(&w, codes[0]).is_none());
    set(&mut w, "mon_crush_min_required_version", "luminous");
    assert_eq!(
        told(&w, codes[0]).as_deref(),
        Some(
            "[WRN] OLD_CRUSH_TUNABLES: crush map has legacy tunables (require jewel, min is \
                luminous)"
        )
    );
    set(&mut w, "mon_warn_on_legacy_crush_tunables", "false");
    set(&mut w, "mon_osd_down_out_interval", "0");
    assert!(told(&w, codes[0]).is_none());
    assert_eq!(
        told(&w, codes[2]).as_deref(),
        Some("[WRN] OSD_NO_DOWN_OUT_INTERVAL: mon a has mon_osd_down_out_interval set to 0")
    );
    set(&mut w, "mon_warn_on_osd_down_out_interval_zero", "false");
    assert!(told(&w, codes[2]).is_none());
}

/// A monitor's full disk is told of by its name, and a very full one is an error; one that is not
/// in the quorum says nothing.
#[test]
fn monitors_with_little_room_are_named() {
    let mut w = World::new(OsdMap::default());
    let of = |w: &World| {
        let health = Health::of(&w.view());
        ["MON_DISK_LOW", "MON_DISK_CRIT"]
            .map(|code| health.checks().get(code).map(|c| (c.summary.clone(), c.detail.clone())))
    };
    let name = w.quorum.names[0].clone();
    w.quorum.room = [(name.clone(), 31), ("gone".to_owned(), 1)].into();
    assert_eq!(of(&w), [None, None]);
    w.quorum.room.insert(name.clone(), 30);
    let want = (
        format!("mon {name} is low on available space"),
        vec![format!("mon.{name} has 30% avail")],
    );
    assert_eq!(of(&w), [Some(want), None]);
    w.quorum.room.insert(name.clone(), 5);
    let want = (
        format!("mon {name} is very low on available space"),
        vec![format!("mon.{name} has 5% avail")],
    );
    assert_eq!(of(&w), [None, Some(want)]);
}

#[test]
fn df_is_the_same_to_the_byte() {
    let w = sampled();
    assert_eq!(df(&w.view(), false, Format::Plain), sample("df.txt"));
    assert_eq!(format!("\n{}", df(&w.view(), false, Format::Json)), sample("df.json"));
    assert_eq!(df(&w.view(), true, Format::Plain), sample("df-detail.txt"));
    assert_eq!(format!("\n{}", df(&w.view(), true, Format::Json)), sample("df-detail.json"));
}

#[test]
fn health_is_the_same_to_the_byte() {
    let w = sampled();
    assert_eq!(health(&w.view(), false, Format::Plain), sample("health.txt"));
    assert_eq!(detail(&w), sample("health-detail.txt"));
    assert_eq!(format!("\n{}", health(&w.view(), false, Format::Json)), sample("health.json"));
    assert_eq!(
        format!("\n{}", health(&w.view(), true, Format::Json)),
        sample("health-detail.json")
    );
}

#[test]
fn status_is_the_same_apart_from_ages_and_file_systems() {
    let mut w = sampled();
    // The samples were taken 31 minutes after the last OSD came up.
    w.now = UTime { sec: w.osdmap.last_up_change.sec + 31 * 60 + 50, nsec: 0 };
    w.quorum.since = UTime { sec: w.now.sec - 5003, nsec: 0 };
    w.mgrmap.active_change = UTime { sec: w.now.sec - 5000, nsec: 0 };
    w.monmap.epoch = 1;
    let theirs: Vec<String> = sample("status.txt")
        .lines()
        .filter(|l| !l.contains("mds:") && !l.contains("volumes:"))
        .map(str::to_owned)
        .collect();
    assert_eq!(status(&w.view(), Format::Plain).lines().collect::<Vec<_>>(), theirs);

    let ours: Value = serde_json::from_str(&status(&w.view(), Format::Json)).unwrap();
    let theirs = sample_json("status.json");
    let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&ours), keys(&theirs));
    for key in [
        "fsid",
        "health",
        "election_epoch",
        "quorum",
        "quorum_names",
        "quorum_age",
        "monmap",
        "osdmap",
        "pgmap",
        "mgrmap",
    ] {
        assert_eq!(ours[key].to_string(), theirs[key].to_string(), "{key}");
    }
}

/// Lines and their column as a real Ceph printed them with one mirror daemon.
#[test]
fn services_stand_in_one_column_below_the_cluster_s_own() {
    let mut w = small();
    let block = |w: &World| {
        let text = status(&w.view(), Format::Plain);
        let lines =
            text.lines().skip_while(|l| *l != "  services:").skip(1).take_while(|l| *l != " ");
        lines
            .map(|l| l.split(['(', ',']).next().unwrap_or_default().trim_end().to_owned())
            .collect::<Vec<_>>()
    };
    let before = block(&w);
    assert!(
        before[0].starts_with("    mon: ") && before.iter().all(|l| !l.starts_with("    mon:  ")),
        "{before:?}"
    );
    let daemon = ServiceEntry {
        metadata: [("hostname".to_owned(), "vm".to_owned())].into(),
        ..Default::default()
    };
    w.mgr.services.services.insert("rbd-mirror".into(), [("4124".to_owned(), daemon)].into());
    let after = block(&w);
    assert_eq!(after.last().map(String::as_str), Some("    rbd-mirror: 1 daemon active"));
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(format!("{}       {}", &old[..9], &old[9..]).trim_end(), new);
    }
    assert_eq!(after.len(), before.len() + 1);
    let text = status(&w.view(), Format::Plain);
    assert!(text.contains("    rbd-mirror: 1 daemon active (1 hosts)\n"), "{text}");
    w.mgr.services.services =
        [("rgw".to_owned(), [("a".to_owned(), ServiceEntry::default())].into())].into();
    assert_eq!(block(&w).last().map(String::as_str), Some("    rgw: 1 daemon active"));
    // Any client may call itself a service of any name.
    w.mgr.services.services =
        [("k".repeat(65_535), [("a".to_owned(), ServiceEntry::default())].into())].into();
    assert!(status(&w.view(), Format::Plain).len() < 5000);
    // As a real Ceph shows a scrub of files that is paused.
    let scrub = ServiceEntry {
        task_status: [("scrub status".into(), "paused".into())].into(),
        ..Default::default()
    };
    w.mgr.services.services = [("mds".to_owned(), [("a".to_owned(), scrub)].into())].into();
    let text = status(&w.view(), Format::Plain);
    assert!(
        text.contains(
            " in\n \n  task status:\n    scrub status:\n        mds.a: paused\n \n  data:\n"
        ),
        "{text}"
    );
}

#[test]
fn a_healthy_cluster_says_ok_and_nothing_else() {
    let w = small();
    assert_eq!(detail(&w), "HEALTH_OK\n");
    assert_eq!(
        health(&w.view(), false, Format::Json),
        r#"{"status":"HEALTH_OK","checks":{},"mutes":[]}"#
    );
}

#[test]
fn osds_and_hosts_that_are_down() {
    let mut w = small();
    w.osdmap.osd_state[2] = state::EXISTS;
    assert_eq!(
        detail(&w),
        "HEALTH_WARN 1 osds down; 1 host (1 osds) down\n\
         [WRN] OSD_DOWN: 1 osds down\n    osd.2 (root=default,host=host2) is down\n\
         [WRN] OSD_HOST_DOWN: 1 host (1 osds) down\n    host host2 (root=default) (1 osds) is \
         down\n"
    );
    w.osdmap.osd_state[1] = state::EXISTS;
    assert_eq!(
        detail(&w),
        "HEALTH_WARN 2 osds down; 2 hosts (2 osds) down\n\
         [WRN] OSD_DOWN: 2 osds down\n    osd.1 (root=default,host=host1) is down\n    \
         osd.2 (root=default,host=host2) is down\n\
         [WRN] OSD_HOST_DOWN: 2 hosts (2 osds) down\n    host host1 (root=default) (1 osds) is \
         down\n    \
         host host2 (root=default) (1 osds) is down\n"
    );
    // An OSD that is out is not missed.
    w.osdmap.osd_weight[1] = 0;
    w.osdmap.osd_weight[2] = 0;
    assert_eq!(detail(&w), "HEALTH_OK\n");
}

#[test]
fn flags_and_full_osds_and_pools() {
    let mut w = small();
    w.osdmap.flags |= flags::NOOUT;
    let json: Value = serde_json::from_str(&health(&w.view(), true, Format::Json)).unwrap();
    assert_eq!(
        json["checks"]["OSDMAP_FLAGS"].to_string(),
        r#"{"severity":"HEALTH_WARN","summary":{"message":"noout flag(s) set","count":5},"detail":[],"muted":false}"#
    );
    w.osdmap.flags &= !flags::NOOUT;
    w.osdmap.osd_state[0] |= state::FULL;
    w.osdmap.osd_state[1] |= state::BACKFILLFULL;
    w.osdmap.osd_state[2] |= state::NEARFULL;
    let mut full = PgPool::replicated(3, 8, 0, w.now);
    full.flags |= pool::flag::FULL;
    let mut quota = PgPool::replicated(1, 6, 0, w.now);
    quota.flags |= pool::flag::FULL | pool::flag::FULL_QUOTA;
    w.osdmap.pools.extend([(1, full), (2, quota)]);
    w.osdmap.pool_names.extend([(1, "q1".to_owned()), (2, "rp".to_owned())]);
    assert_eq!(
        detail(&w),
        "HEALTH_ERR 1 backfillfull osd(s); 1 full osd(s); 1 nearfull osd(s); 2 pool(s) full; \
         1 pool(s) have no replicas configured; 1 pool(s) have non-power-of-two pg_num\n\
         [WRN] OSD_BACKFILLFULL: 1 backfillfull osd(s)\n    osd.1 is backfill full\n\
         [ERR] OSD_FULL: 1 full osd(s)\n    osd.0 is full\n\
         [WRN] OSD_NEARFULL: 1 nearfull osd(s)\n    osd.2 is near full\n\
         [WRN] POOL_FULL: 2 pool(s) full\n    pool 'q1' is full (no space)\n    \
         pool 'rp' is full (running out of quota)\n\
         [WRN] POOL_NO_REDUNDANCY: 1 pool(s) have no replicas configured\n    \
         pool 'rp' has no replicas configured\n\
         [WRN] POOL_PG_NUM_NOT_POWER_OF_TWO: 1 pool(s) have non-power-of-two pg_num\n    \
         pool 'rp' pg_num 6 is not a power of two\n"
    );
}

#[test]
fn full_ratios_out_of_order_are_an_error() {
    let mut w = small();
    w.osdmap.nearfull_ratio = 0.96;
    assert_eq!(
        detail(&w),
        "HEALTH_ERR full ratio(s) out of order\n[ERR] OSD_OUT_OF_ORDER_FULL: full ratio(s) out of \
            order\n    \
         backfillfull_ratio (0.9) < nearfull_ratio (0.96), increased\n    \
         full_ratio (0.95) < backfillfull_ratio (0.96), increased\n"
    );
}

#[test]
fn a_missing_manager_is_reported_once_it_is_missed() {
    let mut w = small();
    w.mgrmap.available = false;
    w.mgrmap.active_gid = 0;
    assert_eq!(detail(&w), "HEALTH_WARN no active mgr\n[WRN] MGR_DOWN: no active mgr\n");
    // A cluster that has just started has not had one yet.
    w.mgr.stamp = UTime::ZERO;
    w.quorum.since = w.now;
    assert_eq!(detail(&w), "HEALTH_OK\n");
    let text = status(&w.view(), Format::Plain);
    assert!(text.contains("\n    mgr: no daemons active (since 83m)\n"), "{text}");
}

#[test]
fn too_few_osds_for_the_default_pool_size() {
    let mut w = small();
    w.osdmap.osd_state[2] = 0;
    // osd.2 stays in the CRUSH map, which is worth a word of its own.
    assert!(
        detail(&w).contains("[WRN] TOO_FEW_OSDS: OSD count 2 < osd_pool_default_size 3\n"),
        "{}",
        detail(&w)
    );
    w.config.change(
        w.now,
        "",
        vec![("global".into(), "osd_pool_default_size".into(), Some("2".into()))],
    );
    assert!(!detail(&w).contains("TOO_FEW_OSDS"));
    assert!(detail(&w).contains("osd.2 exists in crush map but not in osdmap"));
}

#[test]
fn a_monitor_out_of_quorum() {
    let mut w = small();
    w.monmap.add("b".into(), AddrVec::default());
    w.monmap.add("c".into(), AddrVec::default());
    w.quorum.quorum = vec![0, 1];
    w.quorum.names = vec!["a".into(), "b".into()];
    assert!(detail(&w).starts_with(
        "HEALTH_WARN 1/3 mons down, quorum a,b\n[WRN] MON_DOWN: 1/3 mons down, quorum a,b\n    \
            mon.c (rank 2) addr "
    ));
    let text = status(&w.view(), Format::Plain);
    assert!(
        text.contains("    mon: 3 daemons, quorum a,b (age 83m), out of quorum: c\n"),
        "{text}"
    );
}

#[test]
fn mutes_hide_checks_and_end_by_themselves() {
    let mut w = small();
    w.osdmap.flags |= flags::NOOUT;
    w.osdmap.osd_state[2] = state::EXISTS;
    let h = Health::of(&w.view());
    let hour = UTime { sec: w.now.sec + 3599, nsec: 0 };
    let mute = h.mute("OSD_DOWN", hour, false).unwrap();
    assert_eq!((mute.summary.as_str(), mute.count), ("1 osds down", 1));
    w.mutes.insert("OSD_DOWN".into(), mute);
    w.mutes.insert("OSDMAP_FLAGS".into(), h.mute("OSDMAP_FLAGS", UTime::ZERO, true).unwrap());
    assert_eq!(
        h.mute("NOSUCH", UTime::ZERO, false).unwrap_err(),
        "health alert NOSUCH is not currently raised"
    );

    assert_eq!(
        detail(&w),
        "HEALTH_WARN 1 host (1 osds) down; (muted: OSDMAP_FLAGS OSD_DOWN(59m))\n\
         (MUTED, STICKY) [WRN] OSDMAP_FLAGS: noout flag(s) set\n\
         (MUTED ttl 59m) [WRN] OSD_DOWN: 1 osds down\n    osd.2 (root=default,host=host2) is down\n\
         [WRN] OSD_HOST_DOWN: 1 host (1 osds) down\n    host host2 (root=default) (1 osds) is \
         down\n"
    );
    let text = status(&w.view(), Format::Plain);
    assert!(text.contains("            (muted: OSDMAP_FLAGS OSD_DOWN(59m))\n"), "{text}");
    let json = Health::of(&w.view()).json(false);
    assert_eq!(
        json["mutes"].to_string(),
        format!(
            r#"[{{"code":"OSDMAP_FLAGS","sticky":true,"summary":"","count":0}},{{"code":"OSD_DOWN","ttl":"{}","sticky":false,"summary":"1 osds down","count":1}}]"#,
            hour.to_iso()
        )
    );
    assert_eq!(json["checks"]["OSD_DOWN"]["muted"], true);

    // A second OSD goes down: the mute was for one.
    w.osdmap.osd_state[1] = state::EXISTS;
    assert!(
        detail(&w)
            .starts_with("HEALTH_WARN 2 osds down; 2 hosts (2 osds) down; (muted: OSDMAP_FLAGS)\n")
    );
    // It clears: only the sticky mute stays.
    w.osdmap.osd_state[1] |= state::UP;
    w.osdmap.osd_state[2] |= state::UP;
    assert!(detail(&w).starts_with("HEALTH_OK (muted: OSDMAP_FLAGS)\n"));
    assert_eq!(Health::of(&w.view()).ended_mutes(), ["OSD_DOWN"]);
    // Time passes: a mute with an end ends.
    w.osdmap.osd_state[2] = state::EXISTS;
    assert!(Health::of(&w.view()).ended_mutes().is_empty());
    w.now = hour;
    assert_eq!(Health::of(&w.view()).ended_mutes(), ["OSD_DOWN"]);
}

#[test]
fn what_the_manager_found_is_told_too() {
    let mut w = small();
    w.mgr.health.push(HealthInput {
        code: "PG_DEGRADED".into(),
        severity: 1,
        summary: "Degraded data redundancy: 1 pg degraded".into(),
        count: 1,
        detail: vec!["pg 1.0 is active+undersized+degraded, acting [1,0]".into()],
    });
    assert_eq!(
        detail(&w),
        "HEALTH_WARN Degraded data redundancy: 1 pg degraded\n\
         [WRN] PG_DEGRADED: Degraded data redundancy: 1 pg degraded\n    \
         pg 1.0 is active+undersized+degraded, acting [1,0]\n"
    );
}

#[test]
fn status_of_degraded_and_unknown_pgs_and_io() {
    let mut w = small();
    let active = PgState::ACTIVE;
    w.mgr.digest.pg_states = [
        (active | PgState::CLEAN, 2),
        (active | PgState::UNDERSIZED, 12),
        (PgState::UNKNOWN, 4),
        (PgState::PEERING | PgState::CREATING, 2),
    ]
    .into();
    let mut sum = PoolSum {
        write_bytes_sec: 22_613_475,
        write_ops_sec: 345,
        recover_bytes_sec: 2 << 20,
        ..PoolSum::default()
    };
    sum.recover_objects_sec = 7;
    sum.stat.stats.sum.num_objects = 4837;
    sum.stat.stats.sum.num_bytes = 316_932_120;
    sum.stat.stats.sum.num_object_copies = 14_511;
    sum.stat.stats.sum.num_objects_degraded = 4837;
    w.mgr.digest.pools.insert(1, sum);
    let text = status(&w.view(), Format::Plain);
    let data = &text[text.find("  data:").unwrap()..];
    assert_eq!(
        data,
        "  data:\n    pools:   1 pools, 20 pgs\n    objects: 4.84k objects, 302 MiB\n    \
         usage:   0 B used, 0 B / 0 B avail\n    pgs:     20.000% pgs unknown\n             \
         10.000% pgs not active\n             4837/14511 objects degraded (33.333%)\n             \
         12 active+undersized\n             4  unknown\n             2  active+clean\n             \
         2  creating+peering\n \n  io:\n    client:   22 MiB/s wr, 0 op/s rd, 345 op/s wr\n    \
         recovery: 2 MiB/s, 7 objects/s\n \n"
    );
    let json: Value = serde_json::from_str(&status(&w.view(), Format::Json)).unwrap();
    let keys: Vec<&String> = json["pgmap"].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "pgs_by_state",
            "num_pgs",
            "num_pools",
            "num_objects",
            "data_bytes",
            "bytes_used",
            "bytes_avail",
            "bytes_total",
            "unknown_pgs_ratio",
            "inactive_pgs_ratio",
            "degraded_objects",
            "degraded_total",
            "degraded_ratio",
            "recovering_objects_per_sec",
            "recovering_bytes_per_sec",
            "recovering_keys_per_sec",
            "num_objects_recovered",
            "num_bytes_recovered",
            "num_keys_recovered",
            "write_bytes_sec",
            "read_op_per_sec",
            "write_op_per_sec"
        ]
    );
}

/// What no monitor takes over is in health, with what makes it smaller.
#[test]
fn a_state_that_is_too_large_is_told() {
    let mut w = World::new(OsdMap::default());
    assert!(!health(&w.view(), true, Format::Plain).contains("MON_STATE_TOO_LARGE"));
    w.quorum.unsendable =
        Some((1100 << 20, vec![("osdmap/inc".into(), 900 << 20), ("kv".into(), 60 << 20)]));
    let text = health(&w.view(), true, Format::Plain);
    for says in [
        "MON_STATE_TOO_LARGE",
        "has 1100 MiB",
        "osdmap/inc: 900 MiB",
        "kv: 60 MiB",
        "config-key rm",
        "compact",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    let mut state = crate::state::State::new(w.monmap.clone(), w.osdmap.clone(), 0);
    std::sync::Arc::make_mut(&mut state.kv).insert("a/b".into(), vec![7; 1 << 20].into());
    assert_eq!(state.largest_tables()[0], ("kv".to_owned(), (1 << 20) + 3));
}

#[test]
fn maps_that_are_needed_and_gone_are_told() {
    let mut w = World::new(OsdMap::default());
    assert!(!health(&w.view(), true, Format::Plain).contains("MON_OSDMAPS_GONE"));
    w.maps = (50, 90);
    let text = health(&w.view(), true, Format::Plain);
    assert!(
        text.contains("MON_OSDMAPS_GONE") && text.contains("epochs 51 to 89 are gone"),
        "{text}"
    );
}

#[test]
fn a_cluster_without_anything_can_be_reported_on() {
    let w = World::new(OsdMap::default());
    assert!(status(&w.view(), Format::Plain).contains("    osd: 0 osds: 0 up, 0 in\n"));
    assert!(df(&w.view(), true, Format::Plain).starts_with("--- RAW STORAGE ---\nCLASS"));
    let (text, rs) =
        report(&w.view(), Agreed { first: 3, last: 9, term: 2 }, "0.1.0", Format::Plain);
    assert!(rs.starts_with("report "));
    let told = serde_json::from_str::<Value>(&text).unwrap();
    assert_eq!((&told["version"], &told["paxos"]["last_committed"]), (&json!("0.1.0"), &json!(9)));
    assert_eq!(
        (&told["auth"]["num_secrets"], &told["osd_sum"]["num_osds"]),
        (&json!(0), &json!(0))
    );
    assert_ne!(told["cluster_fingerprint"], json!(w.view().fsid.to_string()));
}

#[test]
fn times_to_live() {
    for (text, seconds) in [
        ("90", Some(90)),
        ("30s", Some(30)),
        ("10m", Some(600)),
        ("1h", Some(3600)),
        ("2d", Some(172_800)),
        ("1w", Some(604_800)),
        ("", None),
        ("h", None),
        ("1x", None),
        ("99999999999", None),
    ] {
        assert_eq!(parse_ttl(text), seconds, "{text}");
    }
}
