//! The manager as a state machine: when it talks to the monitor, what it asks of OSDs, and
//! that no message can bring it down.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;
use spirula_encoding::{UTime, from_slice, to_vec};
use spirula_maps::{
    Crush, Filesystem, FsMap, Incremental, MdsMap, OsdMap, OsdStatReport, PgDigest, PgPool, PgStat,
    PgState, ServiceMap,
};
use spirula_messages::ceph::{
    MCommand, MCommandReply, MFsMap, MMgrClose, MMgrCommand, MMgrCommandReply, MMgrConfigure,
    MMgrOpen, MMgrReport, MOsdMap, ServiceDaemon,
};
use spirula_messages::cluster::control::{
    MgrBeacon, MgrDigest, MgrRan, MgrRun, MonRan, MonRun, OsdReport, OsdReportAck, Since,
};
use spirula_messages::cluster::images::{ImageKey, ImageLoad, ImageLoads};
use spirula_messages::{Body, Message};
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now, Peer};
use spirula_types::{AddrVec, EntityName, EntityType, OsdId, PgId, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

fn at(ms: u64) -> Now {
    let wall = UTime::from_nanos(1_795_200_000_000_000_000 + ms * 1_000_000);
    Now { mono: Duration::from_millis(ms), wall }
}

fn new() -> Mgr {
    let config = MgrConfig {
        fsid: Uuid([1; 16]),
        gid: 77,
        name: "x".into(),
        addrs: AddrVec::default(),
        hostname: "h".into(),
        metadata: BTreeMap::new(),
        settings: Default::default(),
    };
    let mut mgr = Mgr::new(config, at(0));
    // Somebody who may do everything.
    let peer = Peer {
        name: EntityName::new(EntityType::Client, 4100),
        global_id: 4100,
        auth_id: "admin".into(),
        addrs: AddrVec::default(),
        place: None,
        caps: None,
    };
    give(&mut mgr, 0, MgrEvent::SessionOpened { conn: 1, peer });
    mgr
}

fn give(mgr: &mut Mgr, ms: u64, event: MgrEvent) -> Vec<MgrEffect> {
    let mut out = Vec::new();
    mgr.handle(at(ms), event, &mut out);
    out
}

fn to_mon<B: Body>(effects: &[MgrEffect]) -> Vec<B> {
    let read = |e: &MgrEffect| match e {
        MgrEffect::SendMon(m) => B::from_message(m).ok(),
        _ => None,
    };
    effects.iter().filter_map(read).collect()
}

fn to_conn<B: Body>(effects: &[MgrEffect], conn: u64) -> Vec<B> {
    let read = |e: &MgrEffect| match e {
        MgrEffect::Send(c, m) if *c == conn => B::from_message(m).ok(),
        _ => None,
    };
    effects.iter().filter_map(read).collect()
}

fn map(epoch: u32) -> OsdMap {
    let mut m = OsdMap::fresh(Uuid([1; 16]), epoch, at(0).wall, Crush::default());
    m.set_max_osd(2);
    for i in 0..2 {
        m.osd_state[i] = 3;
        m.osd_weight[i] = 0x10000;
    }
    m.pools.insert(1, PgPool::replicated(2, 2, 0, at(0).wall));
    m.pool_names.insert(1, "p".into());
    m
}

fn send_map(mgr: &mut Mgr, ms: u64, m: &OsdMap) -> Vec<MgrEffect> {
    let body = MOsdMap { fsid: m.fsid, fulls: vec![(m.epoch, m.to_bytes())], ..MOsdMap::default() };
    give(mgr, ms, MgrEvent::Mon(body.into_message(0)))
}

fn report(osd: OsdId, seq: u64, full: bool, pgs: &[(PgId, PgStat)]) -> OsdReport {
    OsdReport {
        osd,
        uuid: Uuid([9; 16]),
        seq,
        epoch: 1,
        stamp: UTime::ZERO,
        stat: to_vec(&OsdStatReport::default()).into(),
        pgs: pgs.iter().map(|(id, s)| (*id, to_vec(s).into())).collect(),
        full,
        slow_ops: 0,
        slow_oldest_ms: 0,
        small_paths: BTreeMap::new(),
        perf: BTreeMap::new(),
        hostname: "h0".into(),
        config: BTreeMap::from([(
            "osd_max_backfills".to_owned(),
            vec![("override".to_owned(), "3".to_owned()), ("mon".to_owned(), "2".to_owned())],
        )]),
        images: Default::default(),
    }
}

fn pg(seed: u32, seq: u64, state: PgState) -> (PgId, PgStat) {
    let mut s = PgStat {
        reported_epoch: 1,
        reported_seq: seq,
        acting: vec![0, 1],
        acting_primary: 0,
        ..PgStat::default()
    };
    s.touch(at(0).wall, state);
    (PgId::new(1, seed), s)
}

fn open(mgr: &mut Mgr, conn: u64) {
    let peer = Peer {
        name: EntityName::osd(0),
        global_id: 4900,
        auth_id: String::new(),
        addrs: AddrVec::default(),
        place: None,
        caps: None,
    };
    give(mgr, 0, MgrEvent::SessionOpened { conn, peer });
}

const CLEAN: PgState = PgState(PgState::ACTIVE.0 | PgState::CLEAN.0);

/// What is written before the monitors know of it goes beyond a quota: they are told soon.
#[test]
fn writes_to_a_pool_with_a_quota_are_told_soon() {
    for (quota, longest) in [(0, 1000), (20 << 20, 100)] {
        let mut mgr = new();
        give(&mut mgr, 0, MgrEvent::MonOpened);
        let mut m = map(1);
        if let Some(p) = m.pools.get_mut(&1) {
            p.quota_max_bytes = quota;
        }
        send_map(&mut mgr, 0, &m);
        open(&mut mgr, 5);
        give(
            &mut mgr,
            1,
            MgrEvent::Message {
                conn: 5,
                message: report(0, 1, true, &[pg(0, 1, CLEAN), pg(1, 1, CLEAN)]).into_message(0),
            },
        );
        // What the states' change made due is sent.
        give(&mut mgr, 100, MgrEvent::Tick);
        let wait = mgr.wake_after(at(100));
        assert!(wait > Duration::from_millis(800), "{wait:?}");
        let (id, mut stat) = pg(0, 2, CLEAN);
        stat.stats.num_bytes = 1 << 20;
        give(
            &mut mgr,
            110,
            MgrEvent::Message {
                conn: 5,
                message: report(0, 2, false, &[(id, stat)]).into_message(0),
            },
        );
        let wait = mgr.wake_after(at(110));
        assert!(
            wait <= Duration::from_millis(longest)
                && (quota > 0 || wait > Duration::from_millis(800)),
            "{quota}: {wait:?}"
        );
    }
}

fn subscriptions(effects: &[MgrEffect]) -> Vec<(&'static str, u64)> {
    let of = |e: &MgrEffect| match e {
        MgrEffect::Subscribe(what, start) => Some((*what, *start)),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

#[test]
fn a_session_with_the_monitor_starts_with_subscriptions_and_a_beacon() {
    let mut mgr = new();
    let effects = give(&mut mgr, 0, MgrEvent::MonOpened);
    assert_eq!(
        subscriptions(&effects),
        [("config", 0), ("mgrmap", 0), ("osdmap", 0), ("fsmap", 0)]
    );
    let beacon = &to_mon::<MgrBeacon>(&effects)[0];
    assert_eq!((beacon.gid, beacon.name.as_str(), beacon.available), (77, "x", true));
    assert!(beacon.commands.len() > 40);
    for c in &beacon.commands {
        let v: Value = serde_json::from_str(c).unwrap();
        assert_eq!(v["flags"].as_u64().unwrap() & 8, 8);
        assert!(
            v["sig"].as_array().unwrap().iter().all(|w| w.is_string() || w["name"].is_string())
        );
    }
    // Nothing to report without a map, and no reason to wake up for it all the time.
    assert!(to_mon::<MgrDigest>(&effects).is_empty());
    assert!(mgr.wake_after(at(0)) >= Duration::from_millis(500));
    let later = give(&mut mgr, 2001, MgrEvent::Tick);
    assert!(!to_mon::<MgrBeacon>(&later)[0].commands.is_empty(), "for monitors that are new");
    // Another monitor has not been told.
    give(&mut mgr, 2100, MgrEvent::MonClosed);
    assert!(give(&mut mgr, 9000, MgrEvent::Tick).is_empty());
    assert!(
        !to_mon::<MgrBeacon>(&give(&mut mgr, 9001, MgrEvent::MonOpened))[0].commands.is_empty()
    );
}

#[test]
fn command_signatures_are_those_of_ceph() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/vectors/mon-command-signatures.json.gz"
    );
    let text =
        std::process::Command::new("gzip").args(["-dc", path]).output().expect("gzip").stdout;
    let theirs = serde_json::from_slice::<Vec<Value>>(&text).unwrap();
    let words = |v: &Value| -> Vec<String> {
        v["sig"].as_array().unwrap().iter().filter_map(|w| w.as_str().map(str::to_owned)).collect()
    };
    let mut mgr = new();
    for c in &to_mon::<MgrBeacon>(&give(&mut mgr, 0, MgrEvent::MonOpened))[0].commands {
        let ours: Value = serde_json::from_str(c).unwrap();
        let found = theirs
            .iter()
            .find(|t| words(t) == words(&ours) && t["flags"].as_u64().unwrap() & 8 != 0);
        let theirs =
            found.unwrap_or_else(|| panic!("Ceph's manager has no command {:?}", words(&ours)));
        let args = |v: &Value| -> BTreeMap<String, String> {
            let list = v["sig"].as_array().unwrap().iter().filter(|w| w.is_object());
            list.map(|w| {
                (w["name"].to_string(), format!("{} {} {}", w["type"], w["n"], w["strings"]))
            })
            .collect()
        };
        for (name, kind) in args(&ours) {
            assert_eq!(args(theirs).get(&name), Some(&kind), "{:?} {name}", words(&ours));
        }
        for key in ["flags", "perm", "module"] {
            assert_eq!(ours[key], theirs[key], "{:?} {key}", words(&ours));
        }
    }
}

#[test]
fn a_change_of_state_reaches_the_monitor_within_twenty_milliseconds() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    open(&mut mgr, 5);
    let first = send_map(&mut mgr, 1, &map(1));
    let digest: PgDigest = from_slice(&to_mon::<MgrDigest>(&first)[0].digest).unwrap();
    assert_eq!(digest.pg_states, BTreeMap::from([(PgState::UNKNOWN, 2)]));

    let body = report(0, 1, true, &[pg(0, 1, CLEAN), pg(1, 1, PgState::PEERING)]).into_message(0);
    let effects = give(&mut mgr, 5, MgrEvent::Message { conn: 5, message: body });
    assert!(to_mon::<MgrDigest>(&effects).is_empty(), "too soon after the last");
    assert_eq!(mgr.wake_after(at(5)), Duration::from_millis(16));
    let effects = give(&mut mgr, 21, MgrEvent::Tick);
    let digest: PgDigest = from_slice(&to_mon::<MgrDigest>(&effects)[0].digest).unwrap();
    assert_eq!(digest.num_pgs_with(PgState::ACTIVE), 1);
    // Quiet from now on: once a second will do.
    assert!(mgr.wake_after(at(21)) > Duration::from_millis(900));
    assert_eq!(to_mon::<MgrDigest>(&give(&mut mgr, 1021, MgrEvent::Tick)).len(), 1);
}

/// Nobody tells of an OSD but that OSD.
#[test]
fn a_report_counts_only_from_the_osd_it_is_of() {
    let mut mgr = new();
    open(&mut mgr, 5);
    send_map(&mut mgr, 0, &map(3));
    let other = give(
        &mut mgr,
        1,
        MgrEvent::Message { conn: 5, message: report(1, 1, true, &[]).into_message(0) },
    );
    assert!(other.iter().any(|e| matches!(e, MgrEffect::Close(5))), "{other:?}");
    assert_eq!(
        command(&mut mgr, r#"{"prefix": "config show", "who": "osd.1"}"#).0,
        -2,
        "nothing is known of it"
    );
    open(&mut mgr, 6);
    give(
        &mut mgr,
        2,
        MgrEvent::Message { conn: 6, message: report(0, 1, true, &[]).into_message(0) },
    );
    assert_ne!(command(&mut mgr, r#"{"prefix": "config show", "who": "osd.0"}"#).0, -2);
}

#[test]
fn a_full_report_is_asked_for_when_the_osd_is_new_to_us() {
    let mut mgr = new();
    open(&mut mgr, 5);
    let mut ack = |report: OsdReport| {
        let effects =
            give(&mut mgr, 1, MgrEvent::Message { conn: 5, message: report.into_message(0) });
        let acks = to_conn::<OsdReportAck>(&effects, 5);
        (acks[0].seq, acks[0].want_full)
    };
    assert_eq!(ack(report(0, 7, false, &[])), (7, true));
    assert_eq!(ack(report(0, 8, true, &[])), (8, false));
    assert_eq!(ack(report(0, 9, false, &[])), (9, false));
    // It started anew: numbers go back.
    assert_eq!(ack(report(0, 1, false, &[])), (1, true));
    let mut other = report(0, 2, false, &[]);
    other.uuid = Uuid([8; 16]);
    assert_eq!(ack(other), (2, true));
}

#[test]
fn incremental_maps_are_followed_and_a_gap_is_filled_by_a_full_one() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    let base = map(1);
    send_map(&mut mgr, 1, &base);
    let mut inc = Incremental::next(&base, at(5).wall);
    inc.old_pools.insert(1);
    let next = inc.seal(&base).unwrap();
    let body = |incs: Vec<(u32, Bytes)>| {
        MOsdMap { fsid: base.fsid, incrementals: incs, ..MOsdMap::default() }.into_message(0)
    };
    give(&mut mgr, 2, MgrEvent::Mon(body(vec![(2, to_vec(&inc).into())])));
    assert_eq!((mgr.osdmap_epoch(), mgr.pgmap().pgs().len()), (2, 0));
    let mut far = Incremental::next(&next.into_map(), at(6).wall);
    far.epoch = 9;
    let effects = give(&mut mgr, 3, MgrEvent::Mon(body(vec![(9, to_vec(&far).into())])));
    assert_eq!(subscriptions(&effects), [("osdmap", 0)]);
    assert_eq!(mgr.osdmap_epoch(), 2);
}

fn command(mgr: &mut Mgr, json: &str) -> (i32, String, String) {
    let m = MMgrCommand { fsid: Uuid::default(), cmd: vec![json.to_owned()], input: Bytes::new() }
        .into_message(3);
    let effects = give(mgr, 3000, MgrEvent::Message { conn: 1, message: m });
    let r = to_conn::<MMgrCommandReply>(&effects, 1).remove(0);
    (r.result, r.status, String::from_utf8(r.output.to_vec()).unwrap())
}

#[test]
fn commands_that_do_not_exist_or_make_no_sense_are_refused() {
    let mut mgr = new();
    assert_eq!(command(&mut mgr, r#"{"prefix": "osd fly"}"#).0, -22);
    assert_eq!(command(&mut mgr, "[]").0, -22);
    assert_eq!(command(&mut mgr, "{").0, -22);
    assert_eq!(command(&mut mgr, r#"{"prefix": "pg ls-by-osd", "osd": "host7"}"#).0, -22);
    assert_eq!(command(&mut mgr, r#"{"prefix": "osd ok-to-stop", "ids": ["x"]}"#).0, -22);
    send_map(&mut mgr, 1, &map(1));
    assert_eq!(command(&mut mgr, r#"{"prefix": "pg scrub", "pgid": "5.0"}"#).0, -2);
    assert_eq!(command(&mut mgr, r#"{"prefix": "pg scrub", "pgid": "one"}"#).0, -22);
    let (ret, rs, _) = command(&mut mgr, r#"{"prefix": "pg repair", "pgid": "1.0"}"#);
    assert_eq!((ret, rs.as_str()), (-11, "pg 1.0 has no primary osd"));
    assert_eq!(command(&mut mgr, r#"{"prefix": "osd scrub", "who": "host7"}"#).0, -22);
    assert_eq!(command(&mut mgr, r#"{"prefix": "osd pool repair", "who": ["nopool"]}"#).0, -2);
    let (ret, rs, _) = command(&mut mgr, r#"{"prefix": "pg ls", "states": ["foo"]}"#);
    assert_eq!(ret, -22);
    assert!(
        rs.starts_with("'foo' is not a valid pg state, available choices: stale+creating+active+"),
        "{rs}"
    );
    let (ret, rs, _) = command(&mut mgr, r#"{"prefix": "osd safe-to-destroy", "ids": ["0"]}"#);
    assert_eq!((ret, rs.as_str()), (-11, "2 pgs have unknown state; cannot draw any conclusions"));
}

#[test]
fn running_options_and_stuck_pgs_are_shown() {
    let mut mgr = new();
    open(&mut mgr, 5);
    send_map(&mut mgr, 1, &map(1));
    let pgs = [pg(0, 1, CLEAN), pg(1, 1, PgState::ACTIVE | PgState::UNDERSIZED)];
    give(
        &mut mgr,
        2,
        MgrEvent::Message { conn: 5, message: report(0, 1, true, &pgs).into_message(0) },
    );
    let (_, _, text) = command(&mut mgr, r#"{"prefix": "config show", "who": "osd.0"}"#);
    assert_eq!(
        text,
        "NAME               VALUE  SOURCE    OVERRIDES  IGNORES\nosd_max_backfills  3      \
            override  mon[2]            \n"
    );
    assert_eq!(
        command(
            &mut mgr,
            r#"{"prefix": "config show", "who": "osd.0", "key": "osd_max_backfills"}"#
        )
        .2,
        "3\n"
    );
    assert_eq!(command(&mut mgr, r#"{"prefix": "config show", "who": "osd.9"}"#).0, -2);
    let stuck = r#"{"prefix": "pg dump_stuck", "stuckops": ["undersized"], "threshold": 1}"#;
    assert_eq!(
        command(&mut mgr, stuck),
        (
            0,
            "ok".to_owned(),
            "PG_STAT  STATE              UP  UP_PRIMARY  ACTING  ACTING_PRIMARY\n\
             1.1      active+undersized  []           0   [0,1]               0\n"
                .to_owned()
        )
    );
    let (_, _, json) = command(
        &mut mgr,
        r#"{"prefix": "pg dump_stuck", "stuckops": ["stale"], "format": "json"}"#,
    );
    assert_eq!(json, "{\"pg_ready\":true,\"stuck_pg_stats\":[]\n}");
    let (_, _, json) =
        command(&mut mgr, r#"{"prefix": "osd blocked-by", "format": "json-pretty"}"#);
    assert_eq!(
        json,
        "{\n    \"pg_ready\": true,\n    \"osd_blocked_by\": {\n        \"osd_blocked_by_infos\": \
            []\n    }\n\n}\n"
    );
}

#[test]
fn tell_has_its_own_commands_and_old_clients_get_the_others() {
    let mut mgr = new();
    let mut tell = |fsid: Uuid, json: &str| {
        let m = MCommand { fsid, cmd: vec![json.to_owned()], input: Bytes::new() }.into_message(4);
        let effects = give(&mut mgr, 1, MgrEvent::Message { conn: 1, message: m });
        let r = to_conn::<MCommandReply>(&effects, 1).remove(0);
        (r.result, String::from_utf8(r.output.to_vec()).unwrap())
    };
    let us = Uuid([1; 16]);
    let (ret, list) = tell(us, r#"{"prefix": "get_command_descriptions"}"#);
    assert_eq!(ret, 0);
    let list: Value = serde_json::from_str(&list).unwrap();
    let has = |word: &str| list.as_object().unwrap().values().any(|c| c["sig"][0] == word);
    assert!(has("version") && has("config") && has("perf") && !has("pg"));
    assert!(tell(us, r#"{"prefix": "version"}"#).1.contains("\"release\": \"pacific\""));
    assert_eq!(tell(us, r#"{"prefix": "pg stat"}"#).0, -22);
    assert_eq!(tell(Uuid::default(), r#"{"prefix": "pg stat"}"#).0, 0);
}

#[test]
fn foreign_daemons_are_told_how_often_to_report_and_may_say_goodbye() {
    let mut mgr = new();
    let open = MMgrOpen { daemon_name: "a".into(), ..MMgrOpen::default() }.into_message(0);
    let effects = give(&mut mgr, 1, MgrEvent::Message { conn: 1, message: open });
    assert_eq!(to_conn::<MMgrConfigure>(&effects, 1)[0].period, 5);
    let bye = MMgrClose { daemon_name: "a".into(), service_name: "rgw".into() };
    let effects =
        give(&mut mgr, 1, MgrEvent::Message { conn: 1, message: bye.clone().into_message(0) });
    assert_eq!(to_conn::<MMgrClose>(&effects, 1), [bye]);
}

/// A service is told to the monitors soon, and whoever asks for services is told of it, as Ceph's
/// `rbd mirror pool status` needs it.
#[test]
fn a_service_is_told_of_until_it_leaves() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    send_map(&mut mgr, 0, &map(1));
    give(&mut mgr, 100, MgrEvent::Tick);
    let told = |effects: &[MgrEffect]| -> ServiceMap {
        let digests = to_mon::<MgrDigest>(effects);
        from_slice(&digests.first().expect("a digest, at once").service_map).unwrap()
    };
    let dump = |mgr: &mut Mgr, ms: u64, what: &str| -> Value {
        let cmd = vec![format!(r#"{{"prefix": "service {what}", "format": "json"}}"#)];
        let m = MMgrCommand { cmd, ..MMgrCommand::default() }.into_message(3);
        let effects = give(mgr, ms, MgrEvent::Message { conn: 1, message: m });
        serde_json::from_slice(&to_conn::<MMgrCommandReply>(&effects, 1)[0].output).unwrap()
    };
    assert_eq!(dump(&mut mgr, 101, "dump")["services"], serde_json::json!({}));
    let metadata = BTreeMap::from([("hostname".to_owned(), "h".to_owned())]);
    let open = MMgrOpen {
        daemon_name: "4100".into(),
        service_name: "rbd-mirror".into(),
        service: Some(ServiceDaemon { metadata, status: BTreeMap::new() }),
        ..MMgrOpen::default()
    };
    let effects = give(&mut mgr, 110, MgrEvent::Message { conn: 1, message: open.into_message(0) });
    assert_eq!(told(&effects).services["rbd-mirror"]["4100"].gid, 4100);
    assert!(mgr.wake_after(at(130)) > Duration::from_millis(800), "only once");
    assert_eq!(
        dump(&mut mgr, 131, "dump")["services"]["rbd-mirror"]["daemons"]["4100"]["metadata"]["hostname"],
        "h"
    );

    let mut rest = spirula_encoding::Encoder::new();
    rest.u32(0); // No counters.
    rest.u32(0);
    rest.u32(0);
    rest.str("rbd-mirror");
    rest.bool(true);
    rest.put(&BTreeMap::from([("json".to_owned(), "{}".to_owned())]));
    let report = MMgrReport { daemon_name: "4100".into(), rest: rest.into_vec().into() };
    give(&mut mgr, 140, MgrEvent::Message { conn: 1, message: report.into_message(0) });
    assert_eq!(dump(&mut mgr, 141, "status")["rbd-mirror"]["4100"]["status"]["json"], "{}");

    let bye = MMgrClose { daemon_name: "4100".into(), service_name: "rbd-mirror".into() };
    let effects = give(&mut mgr, 200, MgrEvent::Message { conn: 1, message: bye.into_message(0) });
    assert!(told(&effects).services.is_empty());
}

proptest! {
    #[test]
    fn prop_no_message_brings_the_manager_down(
        kinds in proptest::collection::vec(0usize..9, 1..12),
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut mgr = new();
        give(&mut mgr, 0, MgrEvent::MonOpened);
        open(&mut mgr, 5);
        let good = report(0, 1, true, &[pg(0, 1, CLEAN), pg(7, 1, CLEAN)]);
        for (i, kind) in kinds.into_iter().enumerate() {
            let mut m: Message = match kind {
                0 => good.clone().into_message(0),
                1 => MOsdMap { fulls: vec![(1, map(1).to_bytes())], ..MOsdMap::default() }.into_message(0),
                2 => MMgrCommand { cmd: vec![r#"{"prefix":"pg dump"}"#.into()], ..MMgrCommand::default() }.into_message(0),
                3 => MMgrCommand { cmd: vec![r#"{"prefix":"osd df","output_method":"tree"}"#.into()], ..MMgrCommand::default() }.into_message(0),
                n => Message { kind: [0x5310, 41, 0x709, 97, 0x704][n - 4], version: 1, front: bytes.clone().into(), ..Message::default() },
            };
            let mut front = m.front.to_vec();
            for (index, v) in &flips {
                if !front.is_empty() && i % 2 == 1 {
                    let at = index.index(front.len());
                    front[at] = *v;
                }
            }
            m.front = front.into();
            let from_mon = m.kind == 41 || m.kind == 0x704;
            let event = if from_mon { MgrEvent::Mon(m) } else { MgrEvent::Message { conn: 5, message: m } };
            give(&mut mgr, 10 * i as u64, event);
        }
        give(&mut mgr, 5000, MgrEvent::Tick);
        for prefix in ["pg dump", "pg stat", "osd df", "osd perf", "osd pool stats", "osd status", "pg ls", "pg dump_stuck"] {
            prop_assert_eq!(command(&mut mgr, &format!("{{\"prefix\":\"{prefix}\"}}")).0, 0);
            prop_assert_eq!(command(&mut mgr, &format!("{{\"prefix\":\"{prefix}\",\"format\":\"json\"}}")).0, 0);
        }
    }
}

/// Image `a` of pool `p` is used while somebody asks: OSDs are told to count, names are read, and a
/// minute later it is over.
#[test]
fn what_images_do_is_counted_while_somebody_asks() {
    let mut mgr = new();
    let mut m = map(1);
    m.pools.get_mut(&1).unwrap().application_metadata.insert("rbd".into(), BTreeMap::new());
    send_map(&mut mgr, 0, &m);
    open(&mut mgr, 5);
    let key = ImageKey { pool: 1, namespace: String::new(), id: "10ab".into() };
    let load = ImageLoad {
        writes: 50,
        write_bytes: 50 << 12,
        write_ns: 50_000_000,
        ..ImageLoad::default()
    };
    let tell = |mgr: &mut Mgr, ms, seq| {
        let images = Since(ImageLoads { over_ms: 1000, loads: vec![(key.clone(), load)] });
        let body = OsdReport { images, ..report(0, seq, true, &[]) };
        let effects = give(mgr, ms, MgrEvent::Message { conn: 5, message: body.into_message(0) });
        let acks = to_conn::<OsdReportAck>(&effects, 5);
        let read = effects.iter().find_map(|e| match e {
            MgrEffect::Read(r) => Some((r.call, r.at.pool, r.oid.clone())),
            _ => None,
        });
        (acks[0].count_images_ms.0, read)
    };
    let ask = |mgr: &mut Mgr, ms, more: &[(&str, &str)]| -> (i32, String, Value) {
        let mut cmd = serde_json::json!({"prefix": "rbd perf image stats", "format": "json"});
        more.iter().for_each(|(k, v)| cmd[*k] = (*v).into());
        let body =
            MMgrCommand { fsid: Uuid([1; 16]), cmd: vec![cmd.to_string()], input: Bytes::new() };
        let effects = give(mgr, ms, MgrEvent::Message { conn: 1, message: body.into_message(1) });
        let r = to_conn::<MMgrCommandReply>(&effects, 1).remove(0);
        (r.result, r.status, serde_json::from_slice(&r.output).unwrap_or_default())
    };
    assert_eq!(tell(&mut mgr, 1000, 1), (0, None), "nobody asks");
    let first = ask(&mut mgr, 2000, &[]).2;
    assert_eq!(
        (&first["stats"], &first["pool_descriptors"]),
        (&serde_json::json!([]), &serde_json::json!({}))
    );
    assert_eq!(first["timestamp"], 1_795_200_002.0);
    let (count, read) = tell(&mut mgr, 3000, 2);
    let (call, pool, oid) = read.unwrap();
    assert_eq!((count, pool, &oid[..]), (10_000, 1, &b"rbd_directory"[..]));
    let pairs =
        BTreeMap::from([(Bytes::from_static(b"id_10ab"), Bytes::from(to_vec(&"vm".to_owned())))]);
    let mut op = spirula_messages::ceph::op::OsdOp::omap_get_vals_by_keys(&[]);
    op.indata = to_vec(&pairs).into();
    let ops = vec![spirula_messages::ceph::osd::OpResult { op, rval: 0, output_crc: None }];
    give(&mut mgr, 3010, MgrEvent::Read { call, result: 0, ops });
    for more in [&[][..], &[("pool_spec", "")], &[("pool_spec", "p"), ("sort_by", "read_latency")]]
    {
        let (result, _, got) = ask(&mut mgr, 3100, more);
        assert_eq!(result, 0);
        assert_eq!(got["pool_descriptors"], serde_json::json!({"0": "p"}));
        assert_eq!(
            got["stats"],
            serde_json::json!([{"0/vm": [50.0, 0.0, 204_800.0, 0.0, 1_000_000.0, 0.0]}])
        );
    }
    assert_eq!(ask(&mut mgr, 3100, &[("pool_spec", "p/ns")]).2["stats"], serde_json::json!([]));
    // In Ceph's words.
    for (more, result, why) in [
        (("pool_spec", "q"), -2, "[errno 2] RADOS object not found (Pool 'q' not found)"),
        (("pool_spec", "p/n/s"), -22, "Invalid pool spec: p/n/s"),
        (("sort_by", "name"), -22, "'name' is not one of"),
    ] {
        let (got, status, _) = ask(&mut mgr, 3100, &[more]);
        assert!(got == result && status.starts_with(why), "{got} {status}");
    }
    assert_eq!(tell(&mut mgr, 62_000, 3).0, 1100, "it was asked last at 3.1 s");
    assert_eq!(tell(&mut mgr, 63_100, 4), (0, None));
    assert_eq!(ask(&mut mgr, 63_200, &[]).2["stats"], serde_json::json!([]), "all is forgotten");
}

/// What Ceph's manager serves and the monitors do here is passed on in the name of who asked, in
/// both forms, and answered once.
#[test]
fn commands_of_the_monitors_are_passed_on_and_answered() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    let cmd = vec![r#"{"prefix": "fs volume ls"}"#.to_owned()];
    let asked = |tid| {
        MMgrCommand { fsid: Uuid::default(), cmd: cmd.clone(), input: Bytes::new() }
            .into_message(tid)
    };
    let effects = give(&mut mgr, 1, MgrEvent::Message { conn: 1, message: asked(31) });
    let [run] = &to_mon::<MonRun>(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(
        (&run.cmd, &run.asker.id[..], run.asker.global_id, run.limited),
        (&cmd, "admin", 4100, false)
    );
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, MgrEffect::SendMon(m) if m.kind == MonRun::KIND && m.tid == 31))
    );
    // It is asked again in a new session, and only while it waits.
    give(&mut mgr, 2, MgrEvent::MonClosed);
    let old = MCommand { fsid: Uuid::default(), cmd: cmd.clone(), input: Bytes::new() };
    let effects = give(&mut mgr, 3, MgrEvent::Message { conn: 1, message: old.into_message(32) });
    assert!(to_mon::<MonRun>(&effects).is_empty());
    let again = to_mon::<MonRun>(&give(&mut mgr, 4, MgrEvent::MonOpened));
    assert_eq!(again.iter().map(|r| r.id).collect::<Vec<_>>(), [run.id, run.id + 1]);
    let ran = |id| {
        MgrEvent::Mon(
            MonRan { id, result: -2, status: "s".into(), output: "o".into() }.into_message(0),
        )
    };
    let effects = give(&mut mgr, 5, ran(run.id));
    let reply = to_conn::<MMgrCommandReply>(&effects, 1);
    assert_eq!((reply[0].result, &reply[0].status[..], &reply[0].output[..]), (-2, "s", &b"o"[..]));
    assert_eq!(to_conn::<MCommandReply>(&give(&mut mgr, 6, ran(run.id + 1)), 1).len(), 1);
    assert!(to_conn::<MMgrCommandReply>(&give(&mut mgr, 7, ran(run.id)), 1).is_empty());
    // Who waits too long is told so.
    give(&mut mgr, 8, MgrEvent::Message { conn: 1, message: asked(33) });
    assert!(to_conn::<MMgrCommandReply>(&give(&mut mgr, 59_000, MgrEvent::Tick), 1).is_empty());
    assert_eq!(
        to_conn::<MMgrCommandReply>(&give(&mut mgr, 61_000, MgrEvent::Tick), 1)[0].result,
        -110
    );
}

/// Monitors know a request by its asker's global id, which is of one run of a daemon, and not by
/// its number.
#[test]
fn a_daemon_is_named_to_monitors_by_its_global_id() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    let peer = Peer {
        name: EntityName::osd(0),
        global_id: 4900,
        auth_id: "0".into(),
        addrs: AddrVec::default(),
        place: None,
        caps: None,
    };
    give(&mut mgr, 0, MgrEvent::SessionOpened { conn: 7, peer });
    let cmd = vec![r#"{"prefix": "crash ls"}"#.to_owned()];
    let message = MMgrCommand { fsid: Uuid::default(), cmd, input: Bytes::new() }.into_message(31);
    let run =
        to_mon::<MonRun>(&give(&mut mgr, 1, MgrEvent::Message { conn: 7, message })).remove(0);
    assert_eq!((run.asker.kind, run.asker.global_id), (EntityType::Osd as u8, 4900));
}

/// What waits for the monitors has a bound, and so has one of it.
#[test]
fn commands_that_wait_for_the_monitors_are_bounded() {
    let mut mgr = new();
    let asked = |prefix: &str, input: usize| {
        let cmd = vec![format!(r#"{{"prefix": "{prefix}"}}"#)];
        MMgrCommand { fsid: Uuid::default(), cmd, input: vec![b'x'; input].into() }.into_message(1)
    };
    let result = |mgr: &mut Mgr, prefix: &str, input: usize| {
        let effects = give(mgr, 1, MgrEvent::Message { conn: 1, message: asked(prefix, input) });
        to_conn::<MMgrCommandReply>(&effects, 1).first().map(|r| r.result)
    };
    assert_eq!(result(&mut mgr, "crash ls", 100_000), Some(-7));
    assert_eq!(result(&mut mgr, "crash post", 5 << 20), Some(-7));
    let large = (0..6).filter(|_| result(&mut mgr, "crash post", 3 << 20).is_none()).count();
    assert_eq!(large, 5);
    let small = (0..300).filter(|_| result(&mut mgr, "crash ls", 0).is_none()).count();
    assert_eq!(small + large, 256);
    assert_eq!(result(&mut mgr, "crash ls", 0), Some(-11));
    // Whose connection is gone waits no more.
    give(&mut mgr, 2, MgrEvent::SessionClosed { conn: 1 });
    assert!(to_mon::<MonRun>(&give(&mut mgr, 3, MgrEvent::MonOpened)).is_empty());
}

/// Who may not know of a file system is told nothing of it, whoever asks for him.
#[test]
fn a_monitors_client_is_shown_the_file_systems_that_he_may_know_of() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    let mut map = FsMap::default();
    for (fscid, name) in [(1, "a"), (2, "b")] {
        let m = MdsMap { fs_name: name.into(), epoch: 1, ..MdsMap::default() };
        map.filesystems.push(Filesystem::new(fscid, m));
    }
    let known = MFsMap { epoch: 1, map: to_vec(&map).into() };
    give(&mut mgr, 0, MgrEvent::Mon(known.into_message(0)));
    let mut status = |only_fs: (bool, Vec<String>), more: &str| {
        let cmd = vec![format!(r#"{{"prefix": "fs status"{more}}}"#)];
        let run =
            MgrRun { boot: 3, id: 5, cmd, only_fs: Since(only_fs), request: Since::default() };
        let ran =
            to_mon::<MgrRan>(&give(&mut mgr, 1, MgrEvent::Mon(run.into_message(0)))).remove(0);
        (ran.result, String::from_utf8(ran.output.to_vec()).unwrap())
    };
    let all = status((false, vec![]), "").1;
    assert!(all.contains("a - 0 clients") && all.contains("b - 0 clients"), "{all}");
    let one = status((true, vec!["a".into()]), "").1;
    assert!(one.contains("a - 0 clients") && !one.contains("b - 0 clients"), "{one}");
    assert_eq!(status((true, vec!["a".into()]), r#", "fs": "b""#).0, -22);
    assert!(!status((true, vec![]), "").1.contains("clients"));
}

/// What a monitor's client asks for is run as if he had asked here.
#[test]
fn a_monitor_has_commands_run() {
    let mut mgr = new();
    give(&mut mgr, 0, MgrEvent::MonOpened);
    let run = |id, prefix: &str| {
        let cmd = vec![format!(r#"{{"prefix": "{prefix}", "format": "json"}}"#)];
        MgrEvent::Mon(
            MgrRun { boot: 3, id, cmd, only_fs: Since::default(), request: Since::default() }
                .into_message(0),
        )
    };
    let ran = to_mon::<MgrRan>(&give(&mut mgr, 1, run(5, "pg dump"))).remove(0);
    assert_eq!((ran.boot, ran.id, ran.result), (3, 5, 0));
    assert!(serde_json::from_slice::<Value>(&ran.output).unwrap().get("pg_map").is_some());
    // A monitor's own do not come back to it.
    let effects = give(&mut mgr, 1, run(6, "fs volume ls"));
    assert_eq!(to_mon::<MgrRan>(&effects)[0].result, -22);
    assert!(to_mon::<MonRun>(&effects).is_empty());
}
