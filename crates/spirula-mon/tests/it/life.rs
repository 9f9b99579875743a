//! OSDs, PGs, managers and restarts.

use crate::harness::{Cluster, FSID, addr, beacon, map_epochs};
use spirula_encoding::from_slice;
use spirula_maps::{Incremental, MonMap, OsdMap};
use spirula_messages::ceph::{
    MConfig, MMonGetMap, MMonGetVersion, MMonGetVersionReply, MMonMap, MOsdMap, MPoolOp,
    MPoolOpReply,
};
use spirula_messages::cluster::control::{
    MgrBeacon, OsdAlive, OsdBeacon, OsdBoot, OsdFailureReport, OsdMarkMeDown, OsdMarkMeDownAck,
    OsdPgTemp, PgCreateAsk, PgCreateGrant, PgsCreated, PgsCreatedAck, Since, WHOLE_OSDMAP,
};
use spirula_messages::{Body, Message};
use spirula_mon::MonEvent;
use spirula_types::{EntityType, PgId, Uuid};
use std::collections::BTreeMap;

#[test]
fn bootstrap_of_a_client_is_answered_at_once() {
    let mut c = Cluster::new(3);
    let conn = c.open(EntityType::Client, "admin");
    let got = c.ask(conn, MMonGetMap);
    let monmap: MonMap = from_slice(&MMonMap::from_message(&got[0]).unwrap().monmap).unwrap();
    assert_eq!((monmap.epoch, monmap.fsid, monmap.ranks), (1, FSID, vec!["a".to_owned()]));
    let config = MConfig::from_message(&c.subscribe(conn, "config", 0, false)[0]).unwrap().config;
    let names: Vec<&str> = config.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["mon_client_hunt_interval", "mon_client_ping_interval", "mon_client_ping_timeout"]
    );
    assert_eq!(c.subscribe(conn, "monmap", 0, false).len(), 1);
    assert_eq!(c.subscribe(conn, "mgrmap", 0, false).len(), 1);
    let (fulls, incs) = map_epochs(&c.subscribe(conn, "osdmap", 0, true));
    assert_eq!((fulls, incs), (vec![2], vec![]));
    // Nothing newer yet: nothing is said.
    assert!(c.subscribe(conn, "osdmap", 3, true).is_empty());
}

#[test]
fn osds_boot_and_every_subscriber_gets_the_incrementals() {
    let mut c = Cluster::new(3);
    let watcher = c.open(EntityType::Client, "x");
    let first = c.subscribe(watcher, "osdmap", 0, false);
    let mut map: OsdMap =
        from_slice(&MOsdMap::from_message(&first[0]).unwrap().fulls[0].1).unwrap();
    for o in 0..3 {
        let conn = c.open(EntityType::Osd, &o.to_string());
        let sent =
            c.send(conn, Cluster::first_boot_message(o, 6800 + 10 * o as u16).into_message(0));
        for (_, m) in sent.iter().filter(|(to, _)| *to == watcher) {
            for (_, bytes) in MOsdMap::from_message(m).unwrap().incrementals {
                let inc: Incremental = from_slice(&bytes).unwrap();
                map.apply_checked(&inc).unwrap();
            }
        }
    }
    assert_eq!(map.osd_counts(), (3, 3, 3));
    assert_eq!(&map, &**c.mon.state().osdmap);
}

/// They could not replicate to each other: it stays down, and who looks is told why. Alone it may
/// come.
#[test]
fn an_osd_that_the_others_do_not_understand_stays_down() {
    let mut c = Cluster::new(3);
    let boot = |c: &mut Cluster, osd: i32, words: Option<&str>, version: &str| {
        let mut m = c.boot_message(osd, 6800 + 10 * osd as u16);
        m.metadata.insert("ceph_version".into(), version.into());
        m.metadata.extend(
            words.map(|w| (spirula_messages::cluster::BETWEEN_OSDS.to_owned(), w.to_owned())),
        );
        let conn = c.open(EntityType::Osd, &osd.to_string());
        c.ask(conn, m);
    };
    let up = |c: &Cluster| [0, 1, 2].map(|o| c.mon.state().osdmap.is_up(o));
    boot(&mut c, 0, Some("5340.5"), "16 (spirula 1)");
    assert_eq!(up(&c), [true, false, false]);
    for _ in 0..3 {
        boot(&mut c, 1, Some("5340.6"), "16 (spirula 2)");
        // One from before OSDs said this.
        boot(&mut c, 2, None, "16 (spirula 0)");
    }
    assert_eq!(up(&c), [true, false, false]);
    let log = c.ok(r#"{"prefix": "log last", "num": 50}"#);
    let why = "may not come up: it and osd.0 (16 (spirula 1)) do not read each other's messages";
    assert_eq!(log.matches(&format!("osd.1 (16 (spirula 2)) {why}")).count(), 1, "once: {log}");
    assert_eq!(log.matches(&format!("osd.2 (16 (spirula 0)) {why}")).count(), 1, "once: {log}");
    // The same version now; the other one only when nobody else is up.
    boot(&mut c, 2, Some("5340.5"), "16 (spirula 1)");
    assert_eq!(up(&c), [true, false, true]);
    c.ok(r#"{"prefix": "osd down", "ids": ["0", "2"]}"#);
    boot(&mut c, 1, Some("5340.6"), "16 (spirula 2)");
    assert_eq!(up(&c), [false, true, false]);
    assert_ne!(spirula_messages::cluster::between_osds(), "");
}

/// Others would give the intervals that begin meanwhile other names than it.
#[test]
fn an_osd_gets_the_one_map_as_a_whole_that_it_cannot_make() {
    let mut c = Cluster::up(3);
    let newest = c.mon.state().osdmap.epoch;
    let osd = c.open(EntityType::Osd, "0");
    for epoch in [newest - 1, newest] {
        let got = c.subscribe(osd, WHOLE_OSDMAP, u64::from(epoch), true);
        assert_eq!(map_epochs(&got), (vec![epoch], vec![]));
        let full = &MOsdMap::from_message(&got[0]).unwrap().fulls[0].1;
        assert_eq!(*full, c.mon.state().osdmap_at(epoch).unwrap().bytes());
    }
    assert!(c.subscribe(osd, WHOLE_OSDMAP, u64::from(newest) + 1, true).is_empty());
    // Once made it is told, and no more after it.
    assert_eq!(c.ok(r#"{"prefix": "osd set", "key": "noout"}"#), "");
    let client = c.open(EntityType::Client, "x");
    assert!(c.subscribe(client, WHOLE_OSDMAP, u64::from(newest), true).is_empty());
}

#[test]
fn pgs_are_granted_once_and_refused_after_creation() {
    let mut c = Cluster::up(3);
    let osd = c.open(EntityType::Osd, "0");
    let (a, b, gone) = (PgId::new(1, 0), PgId::new(1, 1), PgId::new(99, 0));
    let ask = |c: &mut Cluster| {
        let r = c.ask(osd, PgCreateAsk { osd: 0, pgids: [a, b, gone].map(|pg| (pg, 7)).into() });
        PgCreateGrant::from_message(&r[0]).unwrap()
    };
    let grant = ask(&mut c);
    assert_eq!(grant.granted.keys().copied().collect::<Vec<_>>(), [a, b]);
    assert!(grant.refused.is_empty());
    let acked = |r: &[Message]| {
        let ack = r.iter().find(|m| m.kind == PgsCreatedAck::KIND).unwrap();
        PgsCreatedAck::from_message(ack).unwrap().pgids
    };
    let r = c.ask(osd, PgsCreated { osd: 0, pgids: [(a, 7)].into() });
    assert_eq!(acked(&r), [(a, 7)].into());
    // A second creation of the same PG does not count.
    let r = c.ask(osd, PgsCreated { osd: 0, pgids: [(a, 9)].into() });
    assert_eq!(acked(&r), [(a, 7)].into());
    let again = ask(&mut c);
    assert_eq!((again.refused, again.granted.len()), ([(a, 7)].into(), 1));
    // It is durable.
    let mut c = c.restarted();
    let osd2 = c.open(EntityType::Osd, "0");
    let r = c.ask(osd2, PgCreateAsk { osd: 0, pgids: [(a, 8)].into() });
    assert_eq!(PgCreateGrant::from_message(&r[0]).unwrap().refused, [(a, 7)].into());
    // The pool stops being in creation with its last PG.
    let all = (0..8).map(|s| (PgId::new(1, s), 9)).collect();
    c.ask(osd2, PgsCreated { osd: 0, pgids: all });
    let flags =
        c.json(r#"{"prefix": "osd pool ls", "detail": "detail"}"#)[0]["flags_names"].clone();
    assert_eq!(flags, "hashpspool");
}

#[test]
fn once_a_newer_creation_is_granted_no_older_one_is_accepted() {
    let mut c = Cluster::up(3);
    let (pg, asked) =
        (PgId::new(1, 0), |epoch| PgCreateAsk { osd: 0, pgids: [(PgId::new(1, 0), epoch)].into() });
    let osd = c.open(EntityType::Osd, "0");
    let grant = |r: &[Message]| PgCreateGrant::from_message(&r[0]).unwrap();
    assert_eq!(grant(&c.ask(osd, asked(5))).creations, [(pg, 5)].into());
    assert_eq!(grant(&c.ask(osd, asked(7))).creations, [(pg, 7)].into());
    // Nor granted again, and that is on record.
    let mut c = c.restarted();
    let osd = c.open(EntityType::Osd, "0");
    let late = grant(&c.ask(osd, asked(5)));
    assert!(late.granted.is_empty() && late.refused.is_empty());
    // Its copies may be gone by now: nothing is said.
    let created = |epoch| PgsCreated { osd: 0, pgids: [(pg, epoch)].into() };
    let acked = |r: &[Message]| PgsCreatedAck::from_message(&r[0]).unwrap().pgids;
    assert!(acked(&c.ask(osd, created(5))).is_empty());
    assert_eq!(acked(&c.ask(osd, created(7))), [(pg, 7)].into());
    assert_eq!(acked(&c.ask(osd, created(5))), [(pg, 7)].into());
    assert_eq!(grant(&c.ask(osd, asked(9))).refused, [(pg, 7)].into());
    // Who asks for the one that its PG stems from takes nothing away.
    let none = c.ask(osd, PgCreateAsk { osd: 0, pgids: [(PgId::new(1, 1), 0)].into() });
    assert_eq!(grant(&none).creations, [(PgId::new(1, 1), 0)].into());
    assert_eq!(
        acked(&c.ask(osd, PgsCreated { osd: 0, pgids: [(PgId::new(1, 1), 3)].into() })),
        [(PgId::new(1, 1), 3)].into()
    );
}

#[test]
fn a_clean_stop_is_acknowledged_after_the_map_shows_it() {
    let mut c = Cluster::new(1);
    let conn = c.boot(0);
    let down = OsdMarkMeDown { osd: 0, uuid: Uuid([1; 16]), epoch: 3 };
    let got = c.ask(conn, down);
    let ack = OsdMarkMeDownAck::from_message(&got[0]).unwrap();
    assert_eq!(ack.epoch, c.mon.state().osdmap.epoch);
    assert!(!c.mon.state().osdmap.is_up(0));
}

#[test]
fn a_clean_stop_under_nodown_is_acknowledged_and_the_map_keeps_the_osd_up() {
    let mut c = Cluster::new(1);
    let conn = c.boot(0);
    c.ok(r#"{"prefix": "osd set", "key": "nodown"}"#);
    let got = c.ask(conn, OsdMarkMeDown { osd: 0, uuid: Uuid([1; 16]), epoch: 3 });
    assert!(OsdMarkMeDownAck::from_message(&got[0]).is_ok());
    assert!(c.mon.state().osdmap.is_up(0));
    c.ok(r#"{"prefix": "osd unset", "key": "nodown"}"#);
    c.ask(conn, OsdMarkMeDown { osd: 0, uuid: Uuid([1; 16]), epoch: 4 });
    assert!(!c.mon.state().osdmap.is_up(0));
}

fn report(reporter: i32, target: i32, ms: u64, refused: bool) -> OsdFailureReport {
    OsdFailureReport {
        reporter,
        target,
        target_public: addr(6800 + 10 * target as u16),
        epoch: 100,
        failed_for_ms: ms,
        refused,
        gone: false,
        alive: false,
        waiting: 0,
        outside: Default::default(),
        patience_ms: Default::default(),
        unheard_ms: Default::default(),
    }
}

#[test]
fn silent_osd_goes_down_by_enough_reports_over_the_grace() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    c.ask(conns[0], report(0, 2, 25_000, false));
    assert!(c.mon.state().osdmap.is_up(2), "one of two possible reporters is not enough");
    c.ask(conns[1], report(1, 2, 2_000, false));
    assert!(c.mon.state().osdmap.is_up(2), "the younger report is too young");
    c.tick(2);
    assert!(c.mon.state().osdmap.is_up(2), "nobody has said so");
    c.ask(conns[1], report(1, 2, 4_000, false));
    assert!(!c.mon.state().osdmap.is_up(2));
    assert_eq!(c.mon.state().osdmap.xinfo(2).unwrap().dead_epoch, 0, "silent is not dead");
}

/// A tenth of a second, and what the OSDs that run say in it.
fn beat(c: &mut Cluster, conns: &[u64], running: &[usize], tenths: u32) {
    for _ in 0..tenths {
        let nsec = c.now.nsec + 100_000_000;
        (c.now.sec, c.now.nsec) = (c.now.sec + nsec / 1_000_000_000, nsec % 1_000_000_000);
        c.event(MonEvent::Tick);
        for o in running {
            assert!(c.ask(conns[*o], OsdBeacon { every_ms: 250 }).is_empty());
        }
    }
}

/// Silent on every path for so long, where this many milliseconds are usual.
fn unusual(reporter: i32, target: i32, ms: u64, usual: u32) -> OsdFailureReport {
    OsdFailureReport {
        patience_ms: Since(usual),
        unheard_ms: Since(ms as u32),
        ..report(reporter, target, ms, false)
    }
}

#[test]
fn an_osd_goes_down_early_if_its_silence_is_unusual_to_its_peers_and_to_its_monitor() {
    let (all, two) = ([0, 1, 2], [0, 1]);
    let up = |c: &Cluster| c.mon.state().osdmap.is_up(2);
    let begin = || {
        let mut c = Cluster::up(3);
        let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
        beat(&mut c, &conns, &all, 5);
        (c, conns)
    };
    // It stands still.
    let (mut c, conns) = begin();
    beat(&mut c, &conns, &two, 10);
    c.ask(conns[0], unusual(0, 2, 1_000, 1_000));
    assert!(up(&c), "one of two possible reporters is not enough");
    c.ask(conns[1], unusual(1, 2, 1_000, 1_500));
    assert!(up(&c), "to the other it is usual yet");
    beat(&mut c, &conns, &two, 5);
    assert!(up(&c));
    c.ask(conns[1], unusual(1, 2, 1_500, 1_500));
    assert!(!up(&c));
    // Its monitor hears it: heartbeats alone are lost. Then the grace decides.
    let (mut c, conns) = begin();
    beat(&mut c, &conns, &all, 10);
    c.ask(conns[0], unusual(0, 2, 1_000, 1_000));
    c.ask(conns[1], unusual(1, 2, 1_000, 1_000));
    beat(&mut c, &conns, &all, 29);
    assert!(up(&c));
    c.ask(conns[0], unusual(0, 2, 4_000, 1_000));
    c.ask(conns[1], unusual(1, 2, 4_000, 1_000));
    assert!(!up(&c));
    // One path alone is silent, and the monitor misses it, too.
    let (mut c, conns) = begin();
    beat(&mut c, &conns, &two, 10);
    c.ask(conns[0], unusual(0, 2, 1_000, 0));
    c.ask(conns[1], unusual(1, 2, 1_000, 0));
    beat(&mut c, &conns, &two, 29);
    assert!(up(&c));
    // One that never said that it runs, as in an earlier release.
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
    beat(&mut c, &conns, &two, 10);
    c.ask(conns[0], unusual(0, 2, 1_000, 1_000));
    c.ask(conns[1], unusual(1, 2, 1_000, 1_000));
    beat(&mut c, &conns, &two, 28);
    assert!(up(&c));
    // The monitor itself stood still: it knows nothing of who spoke meanwhile.
    let (mut c, conns) = begin();
    c.now.sec += 30;
    c.ask(conns[0], unusual(0, 2, 1_000, 1_000));
    c.ask(conns[1], unusual(1, 2, 1_000, 1_000));
    assert!(up(&c));
    beat(&mut c, &conns, &two, 9);
    assert!(!up(&c));
    // Its connection is gone, too.
    let (mut c, conns) = begin();
    c.hang_up(2);
    beat(&mut c, &conns, &two, 10);
    c.ask(conns[0], unusual(0, 2, 1_000, 1_000));
    c.ask(conns[1], unusual(1, 2, 1_000, 1_000));
    assert!(!up(&c));
}

#[test]
fn who_was_wrongly_down_is_given_a_share_of_the_grace_unless_it_stood_still_for_all_of_it() {
    let wait = |stood_ms| {
        let mut c = Cluster::up(3);
        let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
        let taken = |c: &mut Cluster| {
            beat(c, &conns, &[0, 1, 2], 5);
            beat(c, &conns, &[0, 1], 9);
            (10..50).find(|tenths| {
                beat(c, &conns, &[0, 1], 1);
                c.ask(conns[0], unusual(0, 2, 100 * tenths, 1_000));
                c.ask(conns[1], unusual(1, 2, 100 * tenths, 1_000));
                !c.mon.state().osdmap.is_up(2)
            })
        };
        assert_eq!(taken(&mut c), Some(10));
        c.tick(2);
        let boot = OsdBoot { was_up: 5, stood_ms: Since(stood_ms), ..c.boot_message(2, 6820) };
        c.ask(conns[2], boot);
        assert!(c.mon.state().osdmap.is_up(2));
        taken(&mut c)
    };
    // 0.3 of the three seconds between the patience and the grace.
    assert_eq!(wait(1_200), Some(19));
    assert_eq!(wait(4_000), Some(10), "the grace would have taken it, too");
}

/// An OSD that was marked down wrongly once; with the connections of the three.
fn once_wrong() -> (Cluster, Vec<u64>) {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
    beat(&mut c, &conns, &[0, 1, 2], 5);
    beat(&mut c, &conns, &[0, 1], 9);
    for reporter in [0, 1] {
        c.ask(conns[reporter as usize], unusual(reporter, 2, 1_000, 1_000));
    }
    assert!(!c.mon.state().osdmap.is_up(2));
    c.tick(2);
    let boot = OsdBoot { was_up: 5, ..c.boot_message(2, 6820) };
    c.ask(conns[2], boot);
    assert!(c.mon.state().osdmap.is_up(2));
    (c, conns)
}

#[test]
fn what_one_network_was_silent_for_alone_is_not_held_against_an_osd() {
    let (mut c, conns) = once_wrong();
    beat(&mut c, &conns, &[0, 1, 2], 25);
    beat(&mut c, &conns, &[0, 1], 9);
    let mut say = |ms| {
        for reporter in [0, 1] {
            // One of the two networks has been silent for 3.9 s, both for less.
            let said = OsdFailureReport { failed_for_ms: 3_900, ..unusual(reporter, 2, ms, 1_000) };
            c.ask(conns[reporter as usize], said);
        }
        c.mon.state().osdmap.is_up(2)
    };
    assert!(say(1_000) && say(1_800), "0.9 s more is its due");
    assert!(!say(1_900));
}

/// What was unread may take it back.
#[test]
fn nobody_is_silent_for_the_time_since_it_was_said() {
    // A retraction lies unread at another monitor.
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
    beat(&mut c, &conns, &[0, 1, 2], 5);
    for reporter in [0, 1] {
        c.ask(conns[reporter as usize], unusual(reporter, 2, 3_000, 1_000));
    }
    beat(&mut c, &conns, &[0, 1, 2], 40);
    assert!(c.mon.state().osdmap.is_up(2));
    // The monitor stands still, and reads the words one after the other.
    for quick in [1_000, 0] {
        let mut c = Cluster::up(3);
        let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
        beat(&mut c, &conns, &[0, 1, 2], 5);
        beat(&mut c, &conns, &[0, 1], 9);
        c.now.sec += 5;
        for reporter in [0, 1] {
            c.ask(conns[reporter as usize], unusual(reporter, 2, 4_500, quick));
        }
        c.event(MonEvent::Tick);
        assert!(c.mon.state().osdmap.is_up(2), "{quick}");
        for reporter in [0, 1] {
            c.ask(
                conns[reporter as usize],
                OsdFailureReport { alive: true, ..report(reporter, 2, 0, false) },
            );
        }
        beat(&mut c, &conns, &[0, 1], 20);
        assert!(c.mon.state().osdmap.is_up(2), "{quick}");
    }
}

/// As one would that lies, or has only just begun to miss it.
#[test]
fn a_word_that_is_too_young_holds_up_nobody_elses() {
    let mut c = Cluster::up(4);
    let conns: Vec<u64> = (0..4).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    c.ask(conns[3], report(3, 2, 1, false));
    c.ask(conns[0], report(0, 2, 4_000, false));
    c.ask(conns[1], report(1, 2, 4_000, false));
    assert!(!c.mon.state().osdmap.is_up(2));
}

/// What a laggy reporter earned is asked of its own word, and not of the others'.
#[test]
fn a_reporter_that_was_wrongly_down_does_not_hold_up_the_others() {
    let mut c = Cluster::up(4);
    let conns: Vec<u64> = (0..4).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    for reporter in [0, 1] {
        c.ask(conns[reporter as usize], report(reporter, 3, 4_000, false));
    }
    c.tick(100);
    let boot = OsdBoot { was_up: 5, ..c.boot_message(3, 6830) };
    c.ask(conns[3], boot);
    assert!(c.mon.state().osdmap.is_up(3));
    c.ask(conns[3], report(3, 2, 9_000, false));
    c.ask(conns[0], report(0, 2, 9_000, false));
    assert!(c.mon.state().osdmap.is_up(2), "its word has to be of a longer silence");
    c.ask(conns[1], report(1, 2, 4_000, false));
    assert!(!c.mon.state().osdmap.is_up(2), "two others say so");
}

#[test]
fn who_stayed_out_itself_is_no_witness_until_it_has_spoken_for_a_while() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = c.osds.iter().map(|(_, conn)| *conn).collect();
    beat(&mut c, &conns, &[0, 1, 2], 5);
    // All are cut off; two come back first.
    beat(&mut c, &conns, &[], 30);
    beat(&mut c, &conns, &[0, 1], 1);
    for reporter in [0, 1] {
        c.ask(conns[reporter as usize], unusual(reporter, 2, 4_100, 1_000));
    }
    beat(&mut c, &conns, &[0, 1], 10);
    assert!(c.mon.state().osdmap.is_up(2));
    // It does not come.
    beat(&mut c, &conns, &[0, 1], 10);
    for reporter in [0, 1] {
        assert!(c.mon.state().osdmap.is_up(2));
        c.ask(conns[reporter as usize], unusual(reporter, 2, 6_100, 1_000));
    }
    assert!(!c.mon.state().osdmap.is_up(2));
}

/// Who hears it again says so once, and may have no connection to a monitor just then.
#[test]
fn a_complaint_that_is_not_repeated_counts_no_more() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    c.ask(conns[0], report(0, 2, 5_000, false));
    for _ in 0..10 {
        c.tick(1);
    }
    c.ask(conns[1], report(1, 2, 5_000, false));
    assert!(c.mon.state().osdmap.is_up(2), "only one misses it now");
    c.tick(1);
    c.ask(conns[0], report(0, 2, 5_000, false));
    assert!(!c.mon.state().osdmap.is_up(2), "both do");
}

#[test]
fn who_was_wrongly_down_gets_more_patience_and_loses_it_by_restarting() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    let silent = |c: &mut Cluster, ms| {
        c.ask(conns[0], report(0, 2, ms, false));
        c.ask(conns[1], report(1, 2, ms, false));
        !c.mon.state().osdmap.is_up(2)
    };
    let boot = |c: &mut Cluster, was_up| {
        let boot = OsdBoot { was_up, ..c.boot_message(2, 6820) };
        c.ask(conns[2], boot);
        assert!(c.mon.state().osdmap.is_up(2));
        *c.mon.state().osdmap.xinfo(2).unwrap()
    };
    assert!(silent(&mut c, 4_000));
    c.tick(100);
    let x = boot(&mut c, 5);
    // Weight 0.3 of certainty and of 100 s.
    assert!(
        x.laggy_interval == 30 && (x.laggy_probability as f64 / u32::MAX as f64 - 0.3).abs() < 1e-6,
        "{x:?}"
    );
    assert!(!silent(&mut c, 12_000), "4 s and nearly 9 s are its due");
    assert!(silent(&mut c, 13_000));
    let x = boot(&mut c, 0);
    assert!(x.laggy_interval == 21 && x.laggy_probability < u32::MAX / 4, "{x:?}");
    c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_osd_adjust_heartbeat_grace", "value": "false"}"#);
    assert!(silent(&mut c, 4_000));
}

#[test]
fn reporters_of_one_host_count_once_and_what_concerns_an_older_incarnation_not_at_all() {
    let mut c = Cluster::up(5);
    for (osd, host) in [(0, "a"), (1, "b"), (2, "b"), (3, "c"), (4, "c")] {
        c.ok(&format!(
            r#"{{"prefix": "osd crush set", "id": {osd}, "weight": 1.0, "args": ["root=default", "host={host}"]}}"#
        ));
    }
    let conns: Vec<u64> = (0..5).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    c.ask(conns[1], report(1, 0, 9_000, false));
    c.ask(conns[2], report(2, 0, 9_000, false));
    c.tick(1);
    assert!(c.mon.state().osdmap.is_up(0), "both are on host b");
    let up_from = c.mon.state().osdmap.info(0).unwrap().up_from;
    c.ask(conns[3], OsdFailureReport { epoch: up_from - 1, ..report(3, 0, 9_000, false) });
    assert!(c.mon.state().osdmap.is_up(0), "the reporter has not seen this incarnation");
    c.ask(conns[3], report(3, 0, 9_000, false));
    assert!(!c.mon.state().osdmap.is_up(0));
}

#[test]
fn dead_is_who_said_good_bye_or_whose_process_is_gone() {
    let mut c = Cluster::up(4);
    let conns: Vec<u64> = (0..4).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    let dead = |c: &Cluster, osd| {
        let map = &c.mon.state().osdmap;
        !map.is_up(osd) && map.xinfo(osd).unwrap().dead_epoch > map.info(osd).unwrap().up_from
    };
    c.hang_up(1);
    c.hang_up(2);
    c.ask(conns[0], report(0, 1, 0, true));
    assert!(!c.mon.state().osdmap.is_up(1) && !dead(&c, 1), "a refusal may be a firewall's");
    let down_at = c.mon.state().osdmap.xinfo(1).unwrap().down_stamp;
    c.ask(conns[0], OsdFailureReport { gone: true, ..report(0, 2, 0, true) });
    assert!(dead(&c, 2) && c.mon.state().osdmap.xinfo(2).unwrap().down_stamp == down_at);
    c.ask(conns[3], OsdMarkMeDown { osd: 3, uuid: Uuid([4; 16]), epoch: 9 });
    assert!(dead(&c, 3));
    c.boot(3);
    let map = &c.mon.state().osdmap;
    assert!(map.is_up(3) && map.xinfo(3).unwrap().dead_epoch < map.info(3).unwrap().up_from);
}

#[test]
fn clients_are_told_at_once_when_an_osd_goes_down() {
    let mut c = Cluster::up(3);
    let client = c.open(EntityType::Client, "x");
    let idle = c.open(EntityType::Client, "y");
    let have = map_epochs(&c.subscribe(client, "osdmap", 0, true)).0[0];
    // As a client does that looks for the monitors and its options: whatever comes besides is
    // nothing that it knows.
    let anew = c.open(EntityType::Client, "z");
    for (what, start) in [("config", 0), ("monmap", 1), ("mgrmap", 1)] {
        c.subscribe(anew, what, start, false);
    }
    let conn = c.open(EntityType::Osd, "0");
    let told = |sent: &[(u64, Message)], who| {
        let of = |m: &Message| {
            MOsdMap::from_message(m).map(|m| m.incrementals.into_iter().map(|(e, _)| e)).unwrap()
        };
        sent.iter()
            .filter(|(to, m)| *to == who && m.kind == MOsdMap::KIND)
            .flat_map(|(_, m)| of(m))
            .collect::<Vec<_>>()
    };
    c.hang_up(1);
    // An epoch in which nobody goes is not worth a word.
    let sent = c.send(conn, OsdAlive { osd: 0, want: have }.into_message(0));
    assert!(told(&sent, client).is_empty());
    let sent = c.send(conn, report(0, 1, 0, true).into_message(0));
    assert_eq!(told(&sent, client), [have + 1, have + 2]);
    // Nor is anything else that was not asked for sent to anybody.
    assert!(sent.iter().all(|(to, _)| *to != anew && *to != idle), "{sent:?}");
    let late = c.open(EntityType::Client, "w");
    let got = c.subscribe(late, "monmap", 2, false);
    assert!(got.is_empty(), "{got:?}");
    // Who asks anew is told of what comes after.
    let once = map_epochs(&c.subscribe(late, "osdmap", u64::from(have) + 1, true)).1;
    assert_eq!(once, [have + 1, have + 2]);
}

#[test]
fn refused_connection_downs_at_once_unless_nodown() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Osd, "0");
    c.hang_up(1);
    c.ok(r#"{"prefix": "osd set", "key": "nodown"}"#);
    c.ask(conn, report(0, 1, 0, true));
    assert!(c.mon.state().osdmap.is_up(1));
    c.ok(r#"{"prefix": "osd unset", "key": "nodown"}"#);
    // A report about an address it no longer has is old news.
    let stale = OsdFailureReport { target_public: addr(1), ..report(0, 1, 0, true) };
    c.ask(conn, stale);
    assert!(c.mon.state().osdmap.is_up(1));
    c.ask(conn, report(0, 1, 0, true));
    c.tick(1);
    assert!(!c.mon.state().osdmap.is_up(1));
    // Another OSD cannot speak for it.
    let mallory = c.open(EntityType::Osd, "2");
    c.ask(mallory, report(0, 2, 0, true));
    assert!(c.mon.state().osdmap.is_up(2));
}

#[test]
fn one_that_says_that_ports_refuse_takes_nobody_who_is_connected() {
    let mut c = Cluster::up(4);
    let conns: Vec<u64> = (0..4).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    for s in 0..5 {
        for of in 1..4 {
            c.ask(
                conns[0],
                OsdFailureReport { gone: true, waiting: 3, ..report(0, of, 1_000 * s, true) },
            );
        }
        c.tick(1);
    }
    assert_eq!(c.mon.state().osdmap.osd_counts().1, 4, "only its word");
    // Two hosts say so.
    c.ask(conns[2], report(2, 1, 0, true));
    assert!(c.mon.state().osdmap.is_down(1));
    // Its connection goes with it.
    c.hang_up(3);
    c.now.sec += 1;
    c.event(MonEvent::Tick);
    assert!(c.mon.state().osdmap.is_down(3) && c.mon.state().osdmap.is_up(2));
}

#[test]
fn lone_osd_is_missed_by_its_connection() {
    let mut c = Cluster::new(1);
    let conn = c.boot(0);
    c.event(MonEvent::SessionClosed { conn });
    c.tick(3);
    assert!(c.mon.state().osdmap.is_up(0));
    c.tick(2);
    assert!(!c.mon.state().osdmap.is_up(0));
}

/// Whose data was given up stays away, whatever identity it claims, until its number is given anew.
#[test]
fn destroyed_osd_comes_up_only_as_a_new_one() {
    let mut c = Cluster::up(3);
    c.command(r#"{"prefix": "osd down", "ids": ["2"], "definitely_dead": true}"#);
    assert!(!c.mon.state().osdmap.is_up(2));
    let (result, status, _) = c.command(
        r#"{"prefix": "osd destroy", "id": 2, "force": true, "yes_i_really_mean_it": true}"#,
    );
    assert_eq!(result, 0, "{status}");
    c.boot(2);
    assert!(!c.mon.state().osdmap.is_up(2));
    let said = c
        .command(r#"{"prefix": "log last", "num": 20}"#)
        .2
        .contains("osd.2 may not come up: it was destroyed");
    assert!(said, "it is said in the cluster's log");
    let uuid = Cluster::first_boot_message(2, 6820).uuid;
    let (result, status, _) =
        c.command(&format!(r#"{{"prefix": "osd new", "uuid": "{uuid}", "id": 2}}"#));
    assert_eq!(result, 0, "{status}");
    c.boot(2);
    assert!(c.mon.state().osdmap.is_up(2));
}

#[test]
fn osd_that_boots_anew_is_seen_down_in_between() {
    let mut c = Cluster::up(3);
    let before = c.mon.state().osdmap.epoch;
    let conn = c.open(EntityType::Osd, "1");
    let boot = c.boot_message(1, 7000);
    c.ask(conn, boot);
    let now = &c.mon.state().osdmap;
    assert_eq!(now.epoch, before + 2);
    assert!(
        now.is_up(1)
            && now.info(1).unwrap().up_from == before + 2
            && now.info(1).unwrap().down_at == before + 1
    );
}

/// A monitor that forwards may have kept what an OSD said before it was started anew. Nobody is at
/// the addresses of then any more, and that its process has gone is said of the one before: what is
/// up holds its read leases.
#[test]
fn what_an_osd_said_before_it_was_up_last_comes_too_late() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    let late = c.boot_message(1, 6900);
    let good_bye = OsdMarkMeDown { osd: 1, uuid: Uuid([2; 16]), epoch: late.newest_map };
    let boot = c.boot_message(1, 7000);
    c.ask(conns[1], boot);
    let of = |c: &Cluster| {
        let map = &c.mon.state().osdmap;
        (
            map.epoch,
            map.is_up(1),
            map.addrs(1).unwrap().client.clone(),
            *map.info(1).unwrap(),
            *map.xinfo(1).unwrap(),
        )
    };
    let now = of(&c);
    assert!(now.1 && now.2 == addr(7000), "{now:?}");
    // While it is up, of its own process (marked down since) and of another.
    for was_up in [0, 3] {
        c.ask(conns[1], OsdBoot { was_up, ..late.clone() });
        assert_eq!(of(&c), now);
    }
    assert!(!c.ask(conns[1], good_bye).is_empty(), "who said it is told");
    assert_eq!(of(&c), now, "it is not the one that goes");
    // And while it is down.
    c.ok(r#"{"prefix": "osd down", "ids": ["1"]}"#);
    let now = of(&c);
    assert!(!now.1);
    c.ask(conns[1], OsdBoot { quiet: now.3.down_at, ..late.clone() });
    c.ask(conns[1], late);
    assert_eq!(of(&c), now, "nothing is at its addresses");
    // What it says by a map of its last life counts.
    let boot =
        OsdBoot { newest_map: now.3.up_from, was_up: now.3.up_from, ..c.boot_message(1, 7000) };
    c.ask(conns[1], boot);
    assert!(c.mon.state().osdmap.is_up(1));
}

/// The boots of two processes come at once: which of them is the later one shows when it is known
/// since when the other is up.
#[test]
fn of_two_boots_of_one_moment_the_later_stays() {
    for late_first in [false, true] {
        let mut c = Cluster::up(3);
        let [first, conn] = ["0", "1"].map(|osd| c.open(EntityType::Osd, osd));
        let late = c.boot_message(1, 6900);
        c.ok(r#"{"prefix": "osd down", "ids": ["1"]}"#);
        let boot = c.boot_message(1, 7000);
        let mut both = [late, boot.clone()];
        if !late_first {
            both.reverse();
        }
        // Both wait for a change that is under way, and are one batch then.
        let alive = OsdAlive { osd: 0, want: c.mon.state().osdmap.epoch };
        let mut out = c.held(MonEvent::Message { conn: first, message: alive.into_message(0) });
        for boot in both {
            out.extend(c.held(MonEvent::Message { conn, message: boot.into_message(0) }));
        }
        c.release(out, &mut |_| {});
        let at = |c: &Cluster, port| {
            c.mon.state().osdmap.addrs(1).is_some_and(|a| a.client == addr(port))
        };
        assert!(
            c.mon.state().osdmap.is_up(1) && at(&c, if late_first { 6900 } else { 7000 }),
            "{late_first}"
        );
        // It says so again, each half second, with the maps that it gets.
        let again = OsdBoot { newest_map: c.mon.state().osdmap.epoch, ..boot };
        c.ask(conn, again);
        assert!(c.mon.state().osdmap.is_up(1) && at(&c, 7000), "{late_first}");
    }
}

#[test]
fn down_osd_is_marked_out_after_the_interval_and_in_again_when_it_boots() {
    let mut c = Cluster::up(4);
    let conn = c.open(EntityType::Osd, "0");
    c.hang_up(3);
    c.ask(conn, report(0, 3, 0, true));
    c.tick(500);
    assert!(c.mon.state().osdmap.is_in(3));
    // A restart of the monitor starts the clock anew.
    let mut c = c.restarted();
    c.tick(500);
    assert!(c.mon.state().osdmap.is_in(3));
    c.tick(101);
    assert!(c.mon.state().osdmap.is_out(3));
    c.boot(3);
    assert!(c.mon.state().osdmap.is_in(3));
}

#[test]
fn up_thru_is_recorded_up_to_the_present() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Osd, "1");
    let now = c.mon.state().osdmap.epoch;
    c.ask(conn, OsdAlive { osd: 1, want: now });
    assert_eq!(c.mon.state().osdmap.info(1).unwrap().up_thru, now);
    let after = c.mon.state().osdmap.epoch;
    c.ask(conn, OsdAlive { osd: 1, want: now });
    assert_eq!(c.mon.state().osdmap.epoch, after, "nothing changed, no new map");
}

#[test]
fn a_temporary_acting_set_and_its_end_have_the_primary_on_record_at_once() {
    let mut c = Cluster::up(3);
    c.ok(r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 1}"#);
    let pg = PgId::new(1, 0);
    let home = c.mon.state().osdmap.pg_to_up_acting(pg).acting;
    let away: Vec<i32> = home.iter().rev().copied().collect();
    for (leads, want, primary) in [(home[0], away.clone(), away[0]), (away[0], Vec::new(), home[0])]
    {
        let conn = c.open(EntityType::Osd, &leads.to_string());
        let before = c.mon.state().osdmap.clone();
        let ask = OsdPgTemp { osd: leads, epoch: before.epoch, pgs: BTreeMap::from([(pg, want)]) };
        c.ask(conn, ask.clone());
        let map = &c.mon.state().osdmap;
        assert_eq!(
            (map.epoch, map.pg_to_up_acting(pg).acting_primary),
            (before.epoch + 1, primary)
        );
        for o in map.osds() {
            let was = before.info(o).unwrap().up_thru;
            assert_eq!(
                map.info(o).unwrap().up_thru,
                if o == primary { map.epoch } else { was },
                "osd.{o}"
            );
        }
        let epoch = map.epoch;
        c.ask(conn, ask);
        assert_eq!(c.mon.state().osdmap.epoch, epoch, "nothing changed, no new map");
    }
}

#[test]
fn only_who_leads_a_pg_says_who_is_to_serve_it_and_nothing_absurd() {
    let mut c = Cluster::up(4);
    c.ok(r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 1}"#);
    let pg = PgId::new(1, 0);
    let home = c.mon.state().osdmap.pg_to_up_acting(pg).acting;
    let other = (0..4).find(|o| !home.contains(o)).unwrap();
    let mut changes = |osd: i32, want: &[i32]| {
        let conn = c.open(EntityType::Osd, &osd.to_string());
        let epoch = c.mon.state().osdmap.epoch;
        c.ask(conn, OsdPgTemp { osd, epoch, pgs: BTreeMap::from([(pg, want.to_vec())]) });
        c.mon.state().osdmap.epoch > epoch
    };
    let away = [other, home[0]];
    assert!(!changes(other, &away) && !changes(home[1], &away));
    let none = i32::MAX;
    for absurd in [&[other, other][..], &[none, none], &[0, 1, 2, 3], &[77]] {
        assert!(!changes(home[0], absurd), "{absurd:?}");
    }
    assert!(changes(home[0], &away));
    // What it wished for before it was replaced comes late.
    assert!(!changes(home[0], &[]));
    assert!(changes(other, &[]));
}

#[test]
fn manager_becomes_active_and_its_commands_are_listed() {
    let mut c = Cluster::new(1);
    let conn = c.open(EntityType::Mgr, "x");
    let beacon = MgrBeacon {
        modules: vec!["status".into()],
        commands: vec![
            r#"{"sig":["pg","stat"],"help":"h","module":"pg","perm":"r","flags":8}"#.into(),
        ],
        ..beacon(4200, "x")
    };
    c.ask(conn, beacon.clone());
    let map = &c.mon.state().mgrmap;
    assert_eq!((map.active_gid, map.available, map.active_name.as_str()), (4200, true, "x"));
    let list: serde_json::Value =
        serde_json::from_str(&c.ok(r#"{"prefix": "get_command_descriptions"}"#)).unwrap();
    assert_eq!(list["cmd000"]["sig"], serde_json::json!(["pg", "stat"]));
    // Without beacons it is given up.
    c.tick(31);
    assert_eq!(c.mon.state().mgrmap.active_gid, 0);
    // Another incarnation of the same name takes over at once.
    c.ask(conn, beacon.clone());
    c.ask(conn, MgrBeacon { gid: 4300, ..beacon });
    assert_eq!(c.mon.state().mgrmap.active_gid, 4300);
}

fn pool_op(op: u32, pool: u32, name: &str, snap: u64) -> MPoolOp {
    MPoolOp { version: 0, fsid: FSID, pool, op, snap, name: name.into(), crush_rule: -1 }
}

#[test]
fn pool_operations_of_clients() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    let mut op = |m: MPoolOp| {
        let sent = c.ask(conn, m);
        let r = MPoolOpReply::from_message(sent.last().unwrap()).unwrap();
        assert_eq!(r.epoch, c.mon.state().osdmap.epoch);
        (r.result, r.data.map(|d| u64::from_le_bytes(d[..].try_into().unwrap())))
    };
    assert_eq!(op(pool_op(1, 0, "p", 0)), (0, None));
    assert_eq!(op(pool_op(1, 0, "p", 0)), (-17, None));
    assert_eq!(op(pool_op(0x12, 1, "s", 0)), (0, None));
    assert_eq!(op(pool_op(2, 2, "", 0)), (-1, None), "deletion is not allowed by default");
    assert_eq!(op(pool_op(2, 50, "", 0)), (-2, None));
}

#[test]
fn get_version_pairs_by_handle() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "admin");
    let r = c.ask(conn, MMonGetVersion { handle: 77, what: "osdmap".into() });
    let r = MMonGetVersionReply::from_message(&r[0]).unwrap();
    assert_eq!((r.handle, r.newest), (77, u64::from(c.mon.state().osdmap.epoch)));
}

#[test]
fn restart_from_the_store_at_any_commit_gives_the_same_maps() {
    let mut c = Cluster::up(3);
    for i in 0..120 {
        let (key, on) = (["noout", "noin", "noscrub"][i % 3], i % 2 == 0);
        let verb = if on { "set" } else { "unset" };
        c.ok(&format!(r#"{{"prefix": "osd {verb}", "key": "{key}"}}"#));
        let twin = c.restarted();
        assert_eq!(twin.mon.state().osdmap.bytes(), c.mon.state().osdmap.bytes());
        assert_eq!(twin.mon.state().log, c.mon.state().log);
    }
    // Old epochs are rebuilt from the kept full maps.
    let newest = c.mon.state().osdmap.epoch;
    for e in [c.mon.state().oldest_osdmap(), 30, 50, 51, 77, newest] {
        assert_eq!(c.mon.state().osdmap_at(e).unwrap().epoch, e);
    }
    // And an OSD that was away gets the whole chain.
    let osd = c.open(EntityType::Osd, "0");
    let (fulls, incs) = map_epochs(&c.subscribe(osd, "osdmap", 1, false));
    assert_eq!(fulls, [c.mon.state().oldest_osdmap()]);
    assert_eq!(incs, (fulls[0] + 1..=newest).collect::<Vec<_>>());
}

#[test]
fn global_ids_never_repeat_across_restarts() {
    let mut c = Cluster::new(1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4 {
        for _ in 0..100 {
            assert!(seen.insert(c.mon.new_global_id().unwrap()));
        }
        c = c.restarted();
    }
}

/// A host that was cut off lives, and was not marked down for nothing: the next cut is as short for
/// its clients as the first.
#[test]
fn who_was_cut_off_gets_no_more_patience() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    for _ in 0..3 {
        for by in [0, 1] {
            c.ask(conns[by as usize], report(by, 2, 4_100, false));
        }
        assert!(c.mon.state().osdmap.is_down(2), "4 s are enough each time");
        let back = |c: &Cluster, unheard| OsdBoot { was_up: 5, unheard, ..c.boot_message(2, 6820) };
        for _ in 0..130 {
            let m = back(&c, vec![0, 1]);
            c.ask(conns[2], m);
            c.tick(1);
            assert!(c.mon.state().osdmap.is_down(2));
        }
        let m = back(&c, vec![]);
        c.ask(conns[2], m);
        assert!(c.mon.state().osdmap.is_up(2));
        let x = c.mon.state().osdmap.xinfo(2).unwrap();
        assert_eq!((x.laggy_probability, x.laggy_interval), (0, 0));
    }
}

#[test]
fn garbage_messages_are_ignored() {
    let mut c = Cluster::new(1);
    let conn = c.open(EntityType::Osd, "0");
    for kind in (0..120).chain(0x5300..0x5330).chain(0x700..0x70b) {
        for len in [0usize, 1, 7, 30] {
            let m = spirula_messages::Message {
                kind,
                version: 1,
                front: vec![0xff; len].into(),
                ..Default::default()
            };
            c.send(conn, m);
        }
    }
    assert_eq!(c.mon.state().osdmap.epoch, 2);
}

/// Three hosts with an OSD each, and a pool of three copies of which two must be there. 0 and 1 say
/// of each other that they are silent, and 2 says nothing.
fn a_pair() -> (Cluster, Vec<u64>) {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    let waiting = |by, of, ms| OsdFailureReport { waiting: 3, ..report(by, of, ms, false) };
    c.ask(conns[0], waiting(0, 1, 4_000));
    c.ask(conns[1], waiting(1, 0, 3_800));
    (c, conns)
}

#[test]
fn two_osds_that_miss_only_each_other_lose_one_and_health_says_who() {
    let (mut c, conns) = a_pair();
    c.tick(0);
    assert_eq!(c.mon.state().osdmap.osd_counts().1, 3, "others may still speak");
    c.tick(1);
    let map = &c.mon.state().osdmap;
    // The one that leads fewer PGs.
    assert!(map.is_down(0) && map.is_up(1) && map.is_up(2));
    assert_eq!(map.xinfo(0).unwrap().dead_epoch, 0, "it lives");
    // It asks to come back, and hears what it heard before.
    let newest_map = map.epoch;
    let back = |unheard| OsdBoot {
        was_up: 5,
        unheard,
        newest_map,
        ..Cluster::first_boot_message(0, 6800)
    };
    // Its PGs have seen that it is down: nobody need wait for the read leases that it held.
    let (down_at, stamp) = (map.info(0).unwrap().down_at, map.xinfo(0).unwrap().down_stamp);
    let dead = |c: &Cluster| c.mon.state().osdmap.xinfo(0).unwrap().dead_epoch;
    c.ask(conns[0], OsdBoot { quiet: down_at - 1, ..back(vec![1]) });
    assert_eq!(dead(&c), 0);
    c.ask(conns[0], OsdBoot { quiet: down_at, public: addr(6801), ..back(vec![1]) });
    assert_eq!(dead(&c), 0, "another process");
    c.ask(conns[0], OsdBoot { quiet: down_at, ..back(vec![1]) });
    assert_eq!((dead(&c), c.mon.state().osdmap.xinfo(0).unwrap().down_stamp), (down_at + 1, stamp));
    for _ in 0..60 {
        c.ask(conns[0], back(vec![1]));
        c.tick(1);
        assert!(c.mon.state().osdmap.is_down(0));
    }
    let detail = c.ok(r#"{"prefix": "health", "detail": "detail"}"#);
    assert!(
        detail.contains("OSD_PAIR_UNREACHABLE: osd.0 and osd.1 do not hear each other"),
        "{detail}"
    );
    assert!(detail.contains("osd.0 is kept out until it hears all that are up"), "{detail}");
    let log = c.ok(r#"{"prefix": "log last"}"#);
    assert!(log.contains("osd.0 marked down: it and osd.1 have not heard each other for"), "{log}");
    // The link is whole again.
    for _ in 0..3 {
        c.ask(conns[0], back(vec![]));
        c.tick(1);
    }
    assert!(c.mon.state().osdmap.is_up(0));
    assert_eq!(
        c.mon.state().osdmap.xinfo(0).unwrap().laggy_probability,
        0,
        "it was not marked down for nothing"
    );
    let health = c.ok(r#"{"prefix": "health"}"#);
    assert!(!health.contains("hear"), "{health}");
}

/// A third that says of both that it has only just begun to miss them, again and again, leaves the
/// decision to nobody.
#[test]
fn a_word_that_is_too_young_does_not_keep_a_pair_whole() {
    let (mut c, conns) = a_pair();
    for of in [0, 1] {
        c.ask(conns[2], report(2, of, 1, false));
    }
    c.tick(1);
    let map = &c.mon.state().osdmap;
    assert!(map.is_down(0) && map.is_up(1) && map.is_up(2));
}

#[test]
fn a_pair_under_nodown_stays_up_and_health_says_that_it_waits() {
    let (mut c, _) = a_pair();
    c.ok(r#"{"prefix": "osd set", "key": "nodown"}"#);
    c.tick(2);
    assert_eq!(c.mon.state().osdmap.osd_counts().1, 3);
    let detail = c.ok(r#"{"prefix": "health", "detail": "detail"}"#);
    assert!(detail.contains("osd.0 and osd.1 have not heard each other since"), "{detail}");
    assert!(detail.contains("6 requests wait for that"), "{detail}");
    c.ok(r#"{"prefix": "osd unset", "key": "nodown"}"#);
    c.tick(1);
    assert_eq!(c.mon.state().osdmap.osd_counts().1, 2);
}

#[test]
fn who_misses_everybody_alone_goes_itself() {
    let mut c = Cluster::up(4);
    let conn = c.open(EntityType::Osd, "3");
    for s in 0..10 {
        for of in 0..3 {
            c.ask(conn, OsdFailureReport { waiting: 9, ..report(3, of, 1_000 * s, false) });
        }
        c.tick(1);
    }
    let map = &c.mon.state().osdmap;
    assert!(map.is_down(3) && (0..3).all(|o| map.is_up(o)));
}

#[test]
fn who_was_up_and_hears_not_all_waits_unless_it_is_needed() {
    let mut c = Cluster::up(3);
    let conns: Vec<u64> = (0..3).map(|o| c.open(EntityType::Osd, &o.to_string())).collect();
    c.ok(r#"{"prefix": "osd down", "ids": ["1"]}"#);
    let newest_map = c.mon.state().osdmap.epoch;
    let back = |unheard| OsdBoot {
        was_up: 5,
        unheard,
        newest_map,
        ..Cluster::first_boot_message(1, 6810)
    };
    c.ask(conns[1], back(vec![0]));
    assert!(c.mon.state().osdmap.is_down(1), "PGs go on without it, and would not with it");
    c.hang_up(2);
    c.ask(conns[0], report(0, 2, 0, true));
    c.ask(conns[1], back(vec![0]));
    assert!(c.mon.state().osdmap.is_down(1), "with it nothing would serve, either");
    c.boot(2);
    c.hang_up(0);
    let third = c.open(EntityType::Osd, "2");
    c.ask(third, report(2, 0, 0, true));
    assert!(c.mon.state().osdmap.is_down(0));
    c.ask(conns[1], back(vec![0]));
    assert!(c.mon.state().osdmap.is_up(1), "the one it does not hear is down");
}

/// Its clients asked others for the same long ago, and nobody may remember what came of it.
#[test]
fn what_lay_unread_while_a_monitor_stood_still_is_not_done() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "admin");
    assert!(!c.ask(conn, pool_op(1, 0, "before", 0)).is_empty());
    c.now.sec += 30;
    assert!(c.ask(conn, pool_op(1, 0, "late", 0)).is_empty());
    assert!(c.mon.state().osdmap.pool_by_name("late").is_none());
    // Whoever comes anew is served, and the OSD has not been away.
    let conn = c.open(EntityType::Client, "admin");
    assert!(!c.ask(conn, pool_op(1, 0, "new", 0)).is_empty());
    assert!(c.mon.state().osdmap.pool_by_name("new").is_some() && c.mon.state().osdmap.is_up(0));
}
