//! Nothing says yes and does nothing: every command of the manager that may change something, and
//! every one that it is told itself, orders an OSD to do something or changes the manager, is
//! refused with a reason, or has its reason here.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use serde_json::{Value, json};
use spirula_encoding::{UTime, to_vec};
use spirula_maps::{Crush, OsdMap, OsdStatReport, PgPool, PgStat, PgState};
use spirula_messages::Body;
use spirula_messages::ceph::{MCommand, MCommandReply, MMgrCommand, MMgrCommandReply, MOsdMap};
use spirula_messages::cluster::control::{
    MgrRan, MgrRun, MonRun, OsdForce, OsdReport, OsdScrub, Since,
};
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now, Peer};
use spirula_settings::{absent, managers};
use spirula_types::{AddrVec, EntityName, EntityType, OsdId, PgId, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const US: Uuid = Uuid([1; 16]);
const EOPNOTSUPP: i32 = -95;
/// The session of client.admin; those of OSDs are 10 and up.
const ADMIN: u64 = 1;

/// What a command does.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// An OSD gets an order.
    Orders,
    /// The manager itself is another afterwards.
    Changes,
    /// It tells something, and nothing changes.
    Tells,
    /// Nothing would act on it, and it says so.
    Refused,
    /// It says yes and changes nothing. Why that is right.
    Nothing(&'static str),
}
use Does::{Changes, Nothing, Orders, Refused, Tells};

/// Every command of the cluster's manager that may write.
const WRITING: &[(&str, Does)] = &[
    (r#"{"prefix": "pg scrub", "pgid": "1.0"}"#, Orders),
    (r#"{"prefix": "pg deep-scrub", "pgid": "1.0"}"#, Orders),
    (r#"{"prefix": "pg repair", "pgid": "1.0"}"#, Orders),
    (r#"{"prefix": "pg force-recovery", "pgid": ["1.1"]}"#, Orders),
    (r#"{"prefix": "pg force-backfill", "pgid": ["1.1"]}"#, Orders),
    (
        r#"{"prefix": "pg force-recovery", "pgid": ["1.0"]}"#,
        Nothing("it says that the PG needs none"),
    ),
    (r#"{"prefix": "pg cancel-force-recovery", "pgid": ["1.2"]}"#, Orders),
    (r#"{"prefix": "pg cancel-force-backfill", "pgid": ["1.2"]}"#, Orders),
    (r#"{"prefix": "osd scrub", "who": "0"}"#, Orders),
    (r#"{"prefix": "osd deep-scrub", "who": "all"}"#, Orders),
    (r#"{"prefix": "osd repair", "who": "osd.0"}"#, Orders),
    (r#"{"prefix": "osd pool scrub", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "osd pool deep-scrub", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "osd pool repair", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "osd pool force-recovery", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "osd pool force-backfill", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "osd pool cancel-force-recovery", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "osd pool cancel-force-backfill", "who": ["p"]}"#, Orders),
    (r#"{"prefix": "orch set backend", "module_name": ""}"#, Nothing("none is chosen already")),
];

/// Every command that a manager is told by `ceph tell mgr.x` or at its admin socket.
const TOLD: &[(&str, Does)] = &[
    (r#"{"prefix": "0"}"#, Tells),
    (r#"{"prefix": "version"}"#, Tells),
    (r#"{"prefix": "git_version"}"#, Tells),
    (r#"{"prefix": "help"}"#, Tells),
    (r#"{"prefix": "get_command_descriptions"}"#, Tells),
    (r#"{"prefix": "config set", "var": "debug_mgr", "val": ["3/3"]}"#, Changes),
    (r#"{"prefix": "config get", "var": "debug_mgr"}"#, Tells),
    (r#"{"prefix": "config diff"}"#, Tells),
    (r#"{"prefix": "config diff get", "var": "debug_mgr"}"#, Tells),
    (r#"{"prefix": "config help", "var": "debug_mgr"}"#, Tells),
    (r#"{"prefix": "config show"}"#, Tells),
    (r#"{"prefix": "config unset", "var": "debug_mgr"}"#, Changes),
    (r#"{"prefix": "injectargs", "injected_args": ["--debug_mgr=4/4"]}"#, Changes),
    (r#"{"prefix": "log flush"}"#, Nothing("daemons write their log unbuffered")),
    (r#"{"prefix": "log dump"}"#, Refused),
    (r#"{"prefix": "log reopen"}"#, Refused),
    (r#"{"prefix": "heap", "heapcmd": "stats"}"#, Refused),
    (r#"{"prefix": "perf dump"}"#, Tells),
    (r#"{"prefix": "perf schema"}"#, Tells),
    (r#"{"prefix": "perf histogram dump"}"#, Tells),
    (r#"{"prefix": "perf histogram schema"}"#, Tells),
    (r#"{"prefix": "status"}"#, Tells),
    (r#"{"prefix": "dump_osd_network"}"#, Tells),
    (r#"{"prefix": "sessions"}"#, Tells),
    (r#"{"prefix": "mgr_status"}"#, Tells),
];

/// Orders to stop what does not run here.
const SO_ALREADY: &[&str] =
    &["telemetry off", "device monitoring off", "balancer off", "progress off"];

fn at(ms: u64) -> Now {
    Now {
        mono: Duration::from_millis(ms),
        wall: UTime::from_nanos(1_795_200_000_000_000_000 + ms * 1_000_000),
    }
}

fn give(mgr: &mut Mgr, event: MgrEvent) -> Vec<MgrEffect> {
    let mut out = Vec::new();
    mgr.handle(at(10), event, &mut out);
    out
}

fn open(mgr: &mut Mgr, conn: u64, name: EntityName) {
    let peer = Peer {
        name,
        global_id: 4711,
        auth_id: "admin".into(),
        addrs: AddrVec::default(),
        place: None,
        caps: None,
    };
    give(mgr, MgrEvent::SessionOpened { conn, peer });
}

fn report(osd: OsdId, pgs: &[(u32, PgState)]) -> OsdReport {
    let one = |(seed, state): &(u32, PgState)| {
        let mut s = PgStat {
            reported_epoch: 1,
            reported_seq: 1,
            acting: vec![osd],
            acting_primary: osd,
            ..PgStat::default()
        };
        s.touch(at(0).wall, *state);
        (PgId::new(1, *seed), to_vec(&s).into())
    };
    OsdReport {
        osd,
        uuid: Uuid([9; 16]),
        seq: 1,
        epoch: 1,
        stamp: UTime::ZERO,
        stat: to_vec(&OsdStatReport::default()).into(),
        pgs: pgs.iter().map(one).collect(),
        full: true,
        slow_ops: 0,
        slow_oldest_ms: 0,
        small_paths: BTreeMap::new(),
        perf: BTreeMap::new(),
        hostname: "h0".into(),
        config: BTreeMap::new(),
        images: Default::default(),
    }
}

/// A manager with a pool `p` of four PGs: one clean, one degraded, one that is forced (all of
/// osd.0's), one of osd.1's. Of the two OSDs only the first is connected at the end.
fn cluster() -> Mgr {
    let config = MgrConfig {
        fsid: US,
        gid: 77,
        name: "x".into(),
        addrs: AddrVec::default(),
        hostname: "h".into(),
        metadata: BTreeMap::new(),
        settings: Default::default(),
    };
    let mut mgr = Mgr::new(config, at(0));
    open(&mut mgr, ADMIN, EntityName::new(EntityType::Client, 4100));
    let mut map = OsdMap::fresh(US, 1, at(0).wall, Crush::default());
    map.set_max_osd(2);
    for i in 0..2 {
        map.osd_state[i] = 3;
        map.osd_weight[i] = 0x10000;
    }
    map.pools.insert(1, PgPool::replicated(1, 4, 0, at(0).wall));
    map.pool_names.insert(1, "p".into());
    let maps = MOsdMap { fsid: US, fulls: vec![(1, map.to_bytes())], ..MOsdMap::default() };
    give(&mut mgr, MgrEvent::Mon(maps.into_message(0)));
    let clean = PgState::ACTIVE | PgState::CLEAN;
    let degraded = PgState::ACTIVE | PgState::DEGRADED;
    let forced = degraded | PgState::FORCED_RECOVERY | PgState::FORCED_BACKFILL;
    for (osd, pgs) in [(0, vec![(0, clean), (1, degraded), (2, forced)]), (1, vec![(3, clean)])] {
        let conn = 10 + osd as u64;
        open(&mut mgr, conn, EntityName::osd(osd));
        give(&mut mgr, MgrEvent::Message { conn, message: report(osd, &pgs).into_message(0) });
    }
    mgr
}

/// Result, words, output, and how many OSDs got an order.
fn ask(mgr: &mut Mgr, command: &str, told: bool) -> (i32, String, String, usize) {
    let (cmd, input) = (vec![command.to_owned()], Bytes::new());
    let message = match told {
        true => MCommand { fsid: US, cmd, input }.into_message(3),
        false => MMgrCommand { fsid: Uuid::default(), cmd, input }.into_message(3),
    };
    let (mut answer, mut orders) = (None, 0);
    for effect in give(mgr, MgrEvent::Message { conn: ADMIN, message }) {
        let MgrEffect::Send(conn, m) = effect else { continue };
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        if conn != ADMIN {
            let worth = OsdScrub::from_message(&m).is_ok()
                || OsdForce::from_message(&m).is_ok_and(|f| !f.pgs.is_empty());
            orders += usize::from(worth);
        } else if told {
            let r = MCommandReply::from_message(&m).unwrap();
            answer = Some((r.result, r.status, text(r.output)));
        } else {
            let r = MMgrCommandReply::from_message(&m).unwrap();
            answer = Some((r.result, r.status, text(r.output)));
        }
    }
    let (ret, rs, data) = answer.expect("an answer");
    (ret, rs, data, orders)
}

fn check(mgr: &mut Mgr, command: &str, does: Does, told: bool) {
    let settings = |mgr: &mut Mgr| ask(mgr, r#"{"prefix": "config diff"}"#, true).2;
    let before = settings(mgr);
    let (ret, rs, data, orders) = ask(mgr, command, told);
    let changed = before != settings(mgr);
    let what = format!("{command}: {ret} {rs}; changed: {changed}, orders: {orders}");
    match does {
        Orders => assert!(ret == 0 && orders > 0 && !changed, "{what}"),
        Changes => assert!(ret == 0 && orders == 0 && changed, "{what}"),
        Tells => assert!(ret == 0 && orders == 0 && !changed && !data.is_empty(), "{what}"),
        Refused => assert!(
            ret == EOPNOTSUPP && rs.starts_with("this version") && orders == 0 && !changed,
            "{what}"
        ),
        Nothing(why) => assert!(ret == 0 && orders == 0 && !changed && !why.is_empty(), "{what}"),
    }
}

fn prefixes(table: &[(&str, Does)]) -> BTreeSet<String> {
    let prefix = |text: &str| {
        serde_json::from_str::<Value>(text).unwrap()["prefix"].as_str().unwrap().to_owned()
    };
    table.iter().map(|(command, _)| prefix(command)).collect()
}

/// Is it passed on to the monitors, who do it?
fn is_passed_on(prefix: &str) -> bool {
    managers::find(prefix).is_some()
}

/// What the manager lists and does itself, with the right that each needs.
fn listed(told: bool) -> BTreeMap<String, String> {
    let (ret, _, list, _) = ask(&mut cluster(), r#"{"prefix": "get_command_descriptions"}"#, told);
    assert_eq!(ret, 0);
    let list: Value = serde_json::from_str(&list).unwrap();
    let words = |c: &Value| {
        c["sig"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
    };
    let all = list
        .as_object()
        .unwrap()
        .values()
        .map(|c| (words(c), c["perm"].as_str().unwrap().to_owned()));
    all.filter(|(words, _)| !is_passed_on(words)).collect()
}

/// What the monitors serve is passed on to them, and listed; nothing is done here.
#[test]
fn what_monitors_serve_is_passed_on() {
    let mut mgr = cluster();
    give(&mut mgr, MgrEvent::MonOpened);
    let descriptions = ask(&mut mgr, r#"{"prefix": "get_command_descriptions"}"#, false).2;
    for c in managers::commands() {
        let prefix = spirula_settings::common::words(c.sig);
        let first = prefix.split(' ').map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(",");
        assert!(descriptions.contains(&format!("[{first}")), "{prefix}");
        let cmd = vec![json!({ "prefix": prefix }).to_string()];
        let message =
            MMgrCommand { fsid: Uuid::default(), cmd, input: Bytes::new() }.into_message(3);
        let effects = give(&mut mgr, MgrEvent::Message { conn: ADMIN, message });
        assert!(
            matches!(&effects[..], [MgrEffect::SendMon(m)] if m.kind == MonRun::KIND),
            "{prefix}: {effects:?}"
        );
    }
}

#[test]
fn every_command_that_may_write_orders_something_or_has_a_reason() {
    let mut mgr = cluster();
    for (command, does) in WRITING {
        check(&mut mgr, command, *does, false);
    }
    let writing =
        listed(false).into_iter().filter(|(_, perm)| perm.contains('w')).map(|(words, _)| words);
    assert_eq!(prefixes(WRITING), writing.collect());
}

/// A command that only reads gives no orders, whatever it is asked with.
#[test]
fn what_may_only_read_orders_nothing() {
    let mut mgr = cluster();
    for (prefix, _) in listed(false).into_iter().filter(|(_, perm)| !perm.contains('w')) {
        let ask_for = json!({"prefix": prefix, "who": "osd.0", "ids": ["0"], "pool": 1, "osd": "0", "poolstr": "p"});
        let (_, rs, _, orders) = ask(&mut mgr, &ask_for.to_string(), false);
        assert_eq!(orders, 0, "{prefix}: {rs}");
    }
}

#[test]
fn every_command_that_a_manager_is_told_does_what_its_row_says() {
    let mut mgr = cluster();
    for (command, does) in TOLD {
        check(&mut mgr, command, *does, true);
    }
    assert_eq!(prefixes(TOLD), listed(true).into_keys().collect());
}

#[test]
fn every_command_of_modules_that_there_are_not_is_refused() {
    let mut mgr = cluster();
    for c in absent::commands() {
        let prefix = spirula_settings::common::words(c.sig);
        let (ret, rs, data, orders) =
            ask(&mut mgr, &json!({ "prefix": prefix }).to_string(), false);
        assert_eq!(orders, 0, "{prefix}");
        match SO_ALREADY.contains(&prefix.as_str()) {
            true => assert!(ret == 0 && data.is_empty(), "{prefix}: {ret} {rs}"),
            false => assert!(ret < 0 && !rs.is_empty(), "{prefix}: {ret} {rs}"),
        }
    }
}

/// An OSD that is not connected gets no order, and nobody is told that it got one.
#[test]
fn who_cannot_be_ordered_is_named() {
    let mut mgr = cluster();
    give(&mut mgr, MgrEvent::SessionClosed { conn: 11 });
    for command in [
        r#"{"prefix": "pg scrub", "pgid": "1.3"}"#,
        r#"{"prefix": "osd scrub", "who": "1"}"#,
        r#"{"prefix": "osd pool scrub", "who": ["p"]}"#,
    ] {
        let (ret, rs, ..) = ask(&mut mgr, command, false);
        assert!(
            ret == -11 && rs.contains("osd.1 is not currently connected"),
            "{command}: {ret} {rs}"
        );
    }
}

/// The argument of each command that is a list.
fn lists() -> BTreeMap<String, String> {
    let list = ask(&mut cluster(), r#"{"prefix": "get_command_descriptions"}"#, false).2;
    let list: Value = serde_json::from_str(&list).unwrap();
    let one = |c: &Value| {
        let sig = c["sig"].as_array().unwrap();
        let words = sig.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        Some((words, sig.iter().find(|a| a["n"] == "N")?["name"].as_str().unwrap().to_owned()))
    };
    list.as_object()
        .unwrap()
        .values()
        .filter_map(one)
        .filter(|(words, _)| !is_passed_on(words))
        .collect()
}

/// What stands in a list and is no text is not skipped: it is named, and nothing is done.
#[test]
fn a_word_of_a_list_that_is_no_text_is_refused_by_name() {
    let mut mgr = cluster();
    let lists = lists();
    let mut asked = 0;
    for (prefix, _) in listed(false) {
        let Some(name) = lists.get(&prefix).cloned() else { continue };
        asked += 1;
        let good = if name == "pgid" { "1.1" } else { "p" };
        for (bad, shown) in [
            (json!(null), "'null'"),
            (json!(true), "'true'"),
            (json!(["1.2"]), r#"'["1.2"]'"#),
            (json!({"a": 1}), r#"'{"a":1}'"#),
        ] {
            for list in [json!([bad]), json!([good, bad]), json!([bad, good])] {
                let (ret, rs, data, orders) = ask(
                    &mut mgr,
                    &json!({"prefix": prefix, name.as_str(): list}).to_string(),
                    false,
                );
                assert!(
                    ret == -22 && rs.contains(shown) && rs.contains(&name),
                    "{prefix} {list}: {ret} {rs}"
                );
                assert!(orders == 0 && data.is_empty(), "{prefix} {list}");
            }
        }
        let (ret, rs, _, orders) =
            ask(&mut mgr, &json!({"prefix": prefix, name.as_str(): true}).to_string(), false);
        assert!(ret == -22 && rs.contains("'true'") && orders == 0, "{prefix}: {ret} {rs}");
    }
    assert!(asked >= 18, "{asked}");
}

/// The leader asks again where it hears nothing, be the manager slow or the answer lost: what was
/// done is not done again.
#[test]
fn what_a_monitor_asks_for_again_is_done_once() {
    let mut mgr = cluster();
    give(&mut mgr, MgrEvent::MonOpened);
    let mut run_of = |request: (u64, u64), boot: u64, id: u64| {
        let cmd = vec![r#"{"prefix": "osd scrub", "who": "0"}"#.to_owned()];
        let ask = MgrRun { boot, id, cmd, only_fs: Default::default(), request: Since(request) };
        let effects = give(&mut mgr, MgrEvent::Mon(ask.into_message(0)));
        let ordered = effects
            .iter()
            .filter(|e| matches!(e, MgrEffect::Send(_, m) if m.kind == OsdScrub::KIND))
            .count();
        let ran = effects.iter().find_map(|e| match e {
            MgrEffect::SendMon(m) => MgrRan::from_message(m).ok(),
            _ => None,
        });
        (ordered, ran.unwrap())
    };
    let mut run = |boot, id| run_of((0, 0), boot, id);
    let first = run(3, 5);
    assert_eq!((first.0, first.1.result, first.1.id), (1, 0, 5));
    assert_eq!(run(3, 5), (0, first.1));
    assert_eq!(run(3, 6).0, 1);
    assert_eq!(run(4, 5).0, 1, "of another leader");
    // Where it is told who asked, and his number for it: also by way of another monitor, or of
    // another leader.
    assert_eq!(run_of((4711, 9), 4, 6).0, 1);
    let (ordered, again) = run_of((4711, 9), 5, 1);
    assert_eq!((ordered, again.boot, again.id, again.result), (0, 5, 1, 0));
    assert_eq!((run_of((4711, 10), 5, 2).0, run_of((4712, 9), 5, 3).0), (1, 1));
}
