//! What metadata servers say: when it counts, for whom, and how much of it is kept.

use crate::harness::{FSID, addr};
use crate::mds::Servers;
use serde_json::json;
use spirula_encoding::{UTime, to_vec};
use spirula_maps::{CompatSet, mds_state as state};
use spirula_messages::Body;
use spirula_messages::ceph::{MConfig, MMdsBeacon, MMdsLoadTargets, MdsHealth, MdsMetric};
use spirula_mon::{MonEvent, Peer};
use spirula_types::EntityType;

fn served() -> (Servers, usize, usize) {
    let mut s = Servers::new();
    let (a, b) = (s.start("a"), s.start("b"));
    s.fs_new();
    s.run(3);
    assert_eq!(s.state_of(0), Some(("a".into(), state::ACTIVE)));
    (s, a, b)
}

/// A commit that takes longer than the grace is no silence of servers that speak all the while,
/// whatever the order in which their words have their turn then.
#[test]
fn a_commit_that_stalls_fails_nobody_over() {
    let (mut s, a, b) = served();
    let mut held = s.c.held(MonEvent::Tick);
    let begin = json!({"prefix": "config-key set", "key": "k", "val": "v"}).to_string();
    let admin = s.c.open(EntityType::Client, "admin");
    let cmd = spirula_messages::ceph::MMonCommand {
        version: 0,
        fsid: FSID,
        cmd: vec![begin],
        input: bytes::Bytes::new(),
    };
    held.extend(s.c.held(MonEvent::Message { conn: admin, message: cmd.into_message(1) }));
    for _ in 0..40 {
        for i in [b, a] {
            let (is, conn) = (s.all[i].state, s.all[i].conn);
            let m = s.all[i].beacon(is);
            held.extend(s.c.held(MonEvent::Message { conn, message: m.into_message(0) }));
            s.c.now = UTime::from_nanos(s.c.now.as_nanos() + 500_000_000);
            held.extend(s.c.held(MonEvent::Tick));
        }
    }
    let before = s.fs().clone();
    s.c.release(held, &mut |_| {});
    s.run(3);
    assert_eq!((s.fs().servers().count(), s.state_of(0)), (2, Some(("a".into(), state::ACTIVE))));
    assert_eq!(s.fs().by_name("fs").unwrap().mds_map.up, before.by_name("fs").unwrap().mds_map.up);
    assert!(s.c.mon.state().osdmap.blocklist.is_empty(), "nobody is fenced");
}

/// Another monitor sends the same word again until it is dealt with: whoever is silent is replaced
/// all the same.
#[test]
fn the_same_word_again_is_no_news() {
    let (mut s, a, b) = served();
    s.all[a].alive = false;
    let (m, conn) = (s.all[a].beacon(state::ACTIVE), s.all[a].conn);
    for _ in 0..20 {
        s.c.send(conn, m.clone().into_message(0));
        s.run(1);
    }
    assert_eq!(s.state_of(0).unwrap().0, s.all[b].name());
}

/// Time in which a monitor stood still is not the silence of a server either that it had not heard
/// yet.
#[test]
fn a_monitor_that_stood_still_blames_nobody_it_has_not_heard() {
    let (mut s, a, b) = served();
    s.c = s.c.restarted();
    let peer = |s: &Servers, i: usize| Peer {
        kind: EntityType::Mds,
        id: s.all[i].name(),
        global_id: s.all[i].gid,
        addrs: addr(7000 + s.all[i].gid as u16),
        features: spirula_types::features::PACIFIC,
    };
    for i in [a, b] {
        let (conn, peer) = (s.all[i].conn, peer(&s, i));
        s.c.event(MonEvent::SessionOpened { conn, peer });
    }
    s.c.tick(5);
    s.c.now.sec += 60;
    // The standby's words are the first that are read.
    for _ in 0..3 {
        s.say(b, state::STANDBY);
        s.c.tick(1);
    }
    assert_eq!(s.state_of(0).unwrap().0, "a");
}

/// A server goes by the number that its session was let in with, and speaks for no other.
#[test]
fn a_number_is_its_sessions_alone() {
    let (mut s, a, _) = served();
    // One takes the number that another will have.
    let c = s.start("c");
    let gid = s.all[c].gid + 1000;
    s.all[c].alive = false;
    let mut boot = s.all[c].beacon(state::BOOT);
    boot.gid = gid;
    assert!(s.c.send(s.all[c].conn, boot.into_message(0)).is_empty());
    assert!(s.fs().info(gid).is_none());
    // Its former self, or whoever else has the same key, does not speak for the one that runs.
    for name in ["b", "c"] {
        s.c.ok(&json!({"prefix": "mds fail", "role_or_gid": name}).to_string());
    }
    s.sync();
    let former = s.all[a].clone();
    let second = s.start("a");
    s.run(5);
    assert_eq!(s.state_of(0), Some(("a".into(), state::ACTIVE)));
    let targets = MMdsLoadTargets { version: 0, gid: s.all[second].gid, targets: [1].into() };
    s.c.send(former.conn, targets.clone().into_message(0));
    assert!(s.fs().servers().all(|i| i.export_targets.is_empty()));
    let mut gone = s.all[second].beacon(0);
    gone.seq += 10;
    s.c.send(former.conn, gone.into_message(0));
    assert!(s.fs().info(s.all[second].gid).is_some(), "it is still there");
    s.c.send(s.all[second].conn, targets.into_message(0));
    assert!(s.fs().servers().all(|i| !i.export_targets.is_empty()), "its own word counts");
}

/// What a server says of itself is bounded: what is too much for the map is refused in words, of
/// what people read a part is kept.
#[test]
fn words_are_bounded() {
    let (mut s, a, _) = served();
    let mut compat = CompatSet::mds_default();
    compat.compat.names = (1..60).map(|i| (i, "x".repeat(120))).collect();
    let mut big = s.all[a].beacon(state::ACTIVE);
    big.compat = to_vec(&compat).into();
    assert!(s.c.send(s.all[a].conn, big.into_message(0)).is_empty());
    let log = s.c.ok(r#"{"prefix": "log last", "num": 20, "level": "warn", "channel": "cluster"}"#);
    assert!(log.contains("beacons of mds.a are refused: its features take"), "{log}");
    for bit in [64, u64::MAX] {
        compat.compat.names = [(bit, "odd".to_owned())].into();
        let mut odd = s.all[a].beacon(state::ACTIVE);
        odd.compat = to_vec(&compat).into();
        assert!(s.c.send(s.all[a].conn, odd.into_message(0)).is_empty());
    }
    let metric = |i: usize| MdsMetric {
        kind: 10,
        severity: 1,
        message: format!("{i} slow"),
        metadata: [("client".to_owned(), "c".repeat(1000))].into(),
    };
    let mut ill = s.all[a].beacon(state::ACTIVE);
    ill.health = MdsHealth { metrics: (0..200).map(metric).collect() };
    s.c.send(s.all[a].conn, ill.into_message(0));
    let kept = &s.c.mon.state().mds_health[&s.all[a].gid];
    assert!((10..40).contains(&kept.metrics.len()), "{}", kept.metrics.len());
    // Ranks that cannot be.
    let targets = MMdsLoadTargets { version: 0, gid: s.all[a].gid, targets: [1, 256].into() };
    s.c.send(s.all[a].conn, targets.into_message(0));
    assert!(s.fs().servers().all(|i| i.export_targets.is_empty()));
    // Facts of one that boots.
    let c = s.start("c");
    let mut boot = MMdsBeacon { seq: 1, ..s.all[c].beacon(state::BOOT) };
    boot.facts = (0..1000).map(|i| (format!("{i:04}"), "f".repeat(100))).collect();
    s.c.ok(&json!({"prefix": "mds fail", "role_or_gid": "c"}).to_string());
    s.c.send(s.all[c].conn, boot.into_message(0));
    let facts = &s.c.mon.state().mds_metadata[&s.all[c].gid];
    assert!((50..=128).contains(&facts.len()), "{}", facts.len());
}

/// Numbers of file systems are not given twice, and there is an end to them.
#[test]
fn numbers_of_file_systems_have_an_end() {
    let mut s = Servers::new();
    for pool in ["m1", "d1", "m2", "d2"] {
        s.c.ok(&json!({"prefix": "osd pool create", "pool": pool, "pg_num": 8}).to_string());
    }
    let new = |name: &str, m: &str, d: &str| json!({"prefix": "fs new", "fs_name": name, "metadata": m, "data": d});
    let mut last = new("last", "meta", "more");
    (last["fscid"], last["force"]) = (i32::MAX.into(), true.into());
    s.c.ok(&last.to_string());
    let (ret, said, _) = s.c.command(&new("further", "m1", "d1").to_string());
    assert_eq!(ret, -22, "{said}");
    assert!(said.contains("no number left"), "{said}");
    assert_eq!(s.fs().filesystems.len(), 1);
    let mut own = new("own", "m1", "d1");
    (own["fscid"], own["force"]) = (7.into(), true.into());
    s.c.ok(&own.to_string());
    own["fs_name"] = "again".into();
    assert_eq!(s.c.command(&own.to_string()).0, -17, "that one is taken");
    let odd = json!({"prefix": "fs compat", "fs_name": "own", "subop": "add_compat", "feature": 9, "feature_str": "x".repeat(200)});
    assert_eq!(s.c.command(&odd.to_string()).0, -22);
}

/// A volume is a file system with its pools: made and removed as a whole, or not at all.
#[test]
fn volumes_are_made_and_removed_as_a_whole() {
    let mut s = Servers::new();
    assert_eq!(s.c.json(r#"{"prefix": "fs volume ls"}"#), json!([]));
    let (ret, said, _) = s.c.command(r#"{"prefix": "fs volume create", "name": "v"}"#);
    assert!(ret == 0 && said.contains("start ceph-mds"), "{ret} {said}");
    assert_eq!(s.c.json(r#"{"prefix": "fs volume ls"}"#), json!([{"name": "v"}]));
    let ls = s.c.json(r#"{"prefix": "fs ls"}"#);
    assert_eq!(
        (&ls[0]["metadata_pool"], &ls[0]["data_pools"][0]),
        (&json!("cephfs.v.meta"), &json!("cephfs.v.data"))
    );
    assert_eq!(s.c.command(r#"{"prefix": "fs volume create", "name": "v"}"#).0, 0, "it is there");
    let a = s.start("a");
    s.run(3);
    let info = s.c.json(r#"{"prefix": "fs volume info", "vol_name": "v"}"#);
    assert_eq!(info["mon_addrs"], json!(["127.0.0.1:3300"]));
    assert_eq!(
        (&info["pools"]["metadata"][0]["name"], &info["pools"]["data"][0]["used"]),
        (&json!("cephfs.v.meta"), &json!(0))
    );
    assert_eq!(s.c.command(r#"{"prefix": "fs volume info", "vol_name": "w"}"#).0, -2);
    // What cannot be done as a whole is not done at all.
    s.c.ok(&json!({"prefix": "osd pool create", "pool": "cephfs.w.data", "pg_num": 8}).to_string());
    s.c.ok(
        &json!({"prefix": "osd pool application enable", "pool": "cephfs.w.data", "app": "rbd"})
            .to_string(),
    );
    assert_eq!(s.c.command(r#"{"prefix": "fs volume create", "name": "w"}"#).0, -22);
    assert!(s.c.mon.state().osdmap.pool_by_name("cephfs.w.meta").is_none());
    let rm = |meant: &str| {
        json!({"prefix": "fs volume rm", "vol_name": "v", "yes-i-really-mean-it": meant})
            .to_string()
    };
    assert_eq!(s.c.command(&rm("")).0, -1);
    let (ret, said, _) = s.c.command(&rm("--yes-i-really-mean-it"));
    assert!(ret == -1 && said.contains("mon_allow_pool_delete"), "{said}");
    s.c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_allow_pool_delete", "value": "true"}"#);
    let (ret, said, _) = s.c.command(&rm("--yes-i-really-mean-it"));
    assert_eq!(
        (ret, &*said),
        (0, "metadata pool: cephfs.v.meta data pool: ['cephfs.v.data'] removed")
    );
    assert!(
        s.fs().filesystems.is_empty()
            && s.c.mon.state().osdmap.pool_by_name("cephfs.v.data").is_none()
    );
    assert!(
        s.c.mon.state().osdmap.blocklist.keys().any(|x| x.addr == addr(7001).0[0].addr),
        "its server is fenced"
    );
    assert_eq!(s.c.command(&rm("--yes-i-really-mean-it")).0, -2);
    s.sync();
    assert!(!s.all[a].alive);
}

/// A server whose monitor's host is gone must have found another before its grace is over: it is
/// told to look sooner than it would.
#[test]
fn servers_are_told_to_notice_soon_that_their_monitor_is_gone() {
    let (mut s, a, _) = served();
    let conn = s.all[a].conn;
    let config = MConfig::from_message(&s.c.subscribe(conn, "config", 0, false)[0]).unwrap().config;
    let timeout: f64 = config["mon_client_ping_timeout"].parse().unwrap();
    assert!(timeout <= 5.0, "{timeout}");
}

/// A server may stop if somebody is left for its rank.
#[test]
fn servers_may_stop_whom_others_replace() {
    let (mut s, _, b) = served();
    let may = |s: &mut Servers, ids: &[&str]| {
        s.c.command(&json!({"prefix": "mds ok-to-stop", "ids": ids}).to_string()).0
    };
    assert_eq!((may(&mut s, &["a"]), may(&mut s, &["b"]), may(&mut s, &["nobody"])), (0, 0, 0));
    assert_eq!(may(&mut s, &["a", "b"]), -16);
    s.c.ok(
        r#"{"prefix": "fs set", "fs_name": "fs", "var": "allow_standby_replay", "val": "true"}"#,
    );
    s.run(2);
    assert_eq!(s.all[b].state, state::STANDBY_REPLAY);
    assert_eq!(
        (may(&mut s, &["a"]), may(&mut s, &["mds.a"]), may(&mut s, &["b"])),
        (0, 0, 0),
        "one that follows counts"
    );
    assert_eq!(may(&mut s, &["fs:0", "b"]), -16);
    s.c.ok(r#"{"prefix": "fs fail", "fs_name": "fs"}"#);
    assert_eq!(may(&mut s, &["nobody"]), -16, "a rank has nobody as it is");
}
