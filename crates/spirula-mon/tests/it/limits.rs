//! What somebody with little or no right could do to the monitors: too much, too long, in another's
//! name.

use crate::harness::{Cluster, FSID, addr, beacon};
use bytes::Bytes;
use serde_json::json;
use spirula_messages::Body;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck};
use spirula_messages::cluster::quorum::MonJoin;
use spirula_mon::{MonEffect, MonEvent};
use spirula_quorum::FRAME_MAX;
use spirula_types::EntityType;

fn key_set(n: usize, value: Bytes) -> MMonCommand {
    let cmd = vec![json!({"prefix": "config-key set", "key": format!("burst/{n}")}).to_string()];
    MMonCommand { version: 0, fsid: FSID, cmd, input: value }
}

/// 700 values of 64 KiB at once: each alone is allowed, together they are 44 MiB. No entry is
/// larger than a follower takes, and all are answered.
#[test]
fn a_burst_never_makes_an_entry_that_followers_refuse() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "admin");
    let value = Bytes::from(vec![b'v'; 65536]);
    let mut out = Vec::new();
    for n in 0..700 {
        let message = key_set(n, value.clone()).into_message(n as u64 + 1);
        out.extend(c.held(MonEvent::Message { conn, message }));
    }
    let mut largest = 0;
    let sent = c.release(out, &mut |p| {
        largest = p.entries.iter().map(|e| e.data.len()).chain([largest]).max().unwrap();
    });
    assert!(largest > 65536 && largest <= FRAME_MAX / 2, "{largest}");
    let acks: Vec<_> =
        sent.iter().filter_map(|(_, m)| MMonCommandAck::from_message(m).ok()).collect();
    assert_eq!(acks.len(), 700);
    assert!(acks.iter().all(|a| a.result == 0));
    assert_eq!(c.mon.state().kv.len(), 700);
}

/// Monitors have all keys in memory. Some profiles may set keys without end, and a host's crash
/// reports come with a profile, too: both end at a share of what a small cluster has, leave
/// administrators room, and what is there can still be changed and removed.
#[test]
fn keys_and_crash_reports_of_small_users_have_an_end() {
    let mut c = Cluster::up(1);
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "client.peer", "caps": ["mon", "profile rbd-mirror-peer"]}"#);
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "client.crash", "caps": ["mon", "profile crash", "mgr", "profile crash"]}"#);
    let size = |c: &Cluster| c.mon.state().kv.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    let mut tid = 1000;
    let mut run = |c: &mut Cluster, who: &str, cmd: serde_json::Value, input: Bytes| {
        let conn = c.open(EntityType::Client, who);
        tid += 1;
        let ask = MMonCommand { version: 0, fsid: FSID, cmd: vec![cmd.to_string()], input };
        let sent = c.send(conn, ask.into_message(tid));
        c.event(MonEvent::SessionClosed { conn });
        let (_, ack) =
            sent.iter().find(|(at, m)| *at == conn && m.kind == MMonCommandAck::KIND).unwrap();
        MMonCommandAck::from_message(ack).unwrap()
    };
    let set =
        |n: usize| json!({"prefix": "config-key set", "key": format!("rbd/mirror/peer/1/{n}")});
    let value = Bytes::from(vec![b'v'; 65536]);
    let full = (0..1000).find(|n| match run(&mut c, "peer", set(*n), value.clone()) {
        ack if ack.result == 0 => false,
        ack => {
            assert!(
                ack.result == -28 && ack.status.contains("4 MiB"),
                "{} {}",
                ack.result,
                ack.status
            );
            true
        }
    });
    assert!(size(&c) <= 4 << 20, "{} bytes", size(&c));
    // Others have room for theirs, until all of them together have more.
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "client.many", "caps": ["mon", "allow command \"config-key set\""]}"#);
    let many = |n: usize| json!({"prefix": "config-key set", "key": format!("a{}/{n}", n / 50)});
    let refused = (0..1000).find_map(|n| {
        Some(run(&mut c, "many", many(n), value.clone())).filter(|ack| ack.result != 0)
    });
    let refused = refused.unwrap();
    assert!(refused.result == -28 && refused.status.contains("16 MiB"), "{}", refused.status);
    assert!((15 << 20..=16 << 20).contains(&size(&c)), "{} bytes", size(&c));
    for n in 0..250 {
        run(
            &mut c,
            "admin",
            json!({"prefix": "config-key rm", "key": format!("a{}/{n}", n / 50)}),
            Bytes::new(),
        );
    }
    // Small ones, too: each costs more than it holds.
    let (mut n, before) = (full.unwrap(), c.mon.state().kv.len());
    while run(&mut c, "peer", set(n), Bytes::new()).result == 0 {
        n += 1;
    }
    assert!(c.mon.state().kv.len() - before < 1000);
    assert_eq!(run(&mut c, "peer", set(0), Bytes::from_static(b"less")).result, 0);
    assert_eq!(run(&mut c, "admin", set(100_000), value.clone()).result, 0);
    for n in 0..200 {
        let id = format!("2026-11-26T00:00:{:02}.{n:06}Z_x", n % 60);
        let report = json!({"crash_id": id, "timestamp": "2026-11-26T00:00:00.000000Z", "entity_name": "osd.0", "x": "y".repeat(200 << 10)});
        assert_eq!(
            run(&mut c, "crash", json!({"prefix": "crash post"}), report.to_string().into()).result,
            0
        );
    }
    assert!(size(&c) < 26 << 20, "{} bytes", size(&c));
    assert_eq!(c.mon.state().kv.keys().filter(|k| k.starts_with("mgr/crash/crash/")).count(), 30);
    let last =
        (0..2000).find(|n| run(&mut c, "admin", set(200_000 + n), value.clone()).result != 0);
    assert!(last.is_some() && size(&c) > 60 << 20 && size(&c) <= 64 << 20, "{} bytes", size(&c));
}

/// A crash report of a few bytes may take much more in memory, and as it is shown: many values, or
/// deep in one another. Those are not taken, and one that was set as a key neither counts nor
/// pushes others out. All that are kept can be archived at once.
#[test]
fn crash_reports_are_small_in_memory_too() {
    let mut c = Cluster::up(1);
    let report = |n: usize, x: &str| {
        let id = format!("2026-11-26T00:00:{:02}.{n:06}Z_x", n % 60);
        let text = format!(
            r#"{{"crash_id":"{id}","timestamp":"2026-11-16T00:00:00.000000Z","entity_name":"osd.0","x":{x}}}"#
        );
        Bytes::from(text)
    };
    let post = r#"{"prefix": "crash post"}"#;
    let zeros = |n: usize| format!("[{}0]", "0,".repeat(n));
    for x in [zeros(100_000), format!("{}0{}", "[".repeat(100), "]".repeat(100))] {
        let (result, status, _) = c.command_with(post, report(0, &x));
        assert!(result == -7 && status.contains("values"), "{result} {status}");
    }
    // Brackets and commas within texts are none.
    let frames = format!(r#"["{}\""]"#, "f<a, {lambda}>[[{{,".repeat(5000));
    assert_eq!(c.command_with(post, report(1, &frames)).0, 0);
    for n in 0..2 {
        let whole = report(900 + n, &zeros(30_000));
        let set =
            json!({"prefix": "config-key set", "key": format!("mgr/crash/crash/by-hand-{n}")});
        assert_eq!(c.command_with(&set.to_string(), whole).0, 0);
    }
    assert_eq!(
        c.command(r#"{"prefix": "crash stat"}"#).2.lines().next(),
        Some("1 crashes recorded")
    );
    for n in 2..40 {
        let longest = format!("\"{}\"", "y".repeat((256 << 10) - 150));
        assert_eq!(c.command_with(post, report(n, &longest)).0, 0);
    }
    assert!(c.command(r#"{"prefix": "crash stat"}"#).2.starts_with("2"));
    assert_eq!(c.command(r#"{"prefix": "crash archive-all"}"#).0, 0);
    assert_eq!(c.command(r#"{"prefix": "crash ls-new"}"#).2, "");
    // One that has as many values as may be is there when it was archived, too: of 4,096 four are
    // not zeros, and one is the list.
    assert_eq!(c.command_with(post, report(50, &zeros(4096 - 5))).0, 0);
    assert_ne!(c.command_with(post, report(51, &zeros(4096 - 4))).0, 0);
    let has =
        |c: &mut Cluster| c.command(r#"{"prefix": "crash ls"}"#).2.contains("00:00:50.000050Z_x");
    assert!(has(&mut c));
    assert_eq!(c.command(r#"{"prefix": "crash archive-all"}"#).0, 0);
    assert!(has(&mut c), "an archived report is lost from sight");
    let before = c.mon.state().kv.len();
    // One of a time that is to come is pushed out before all others.
    let late = json!({"crash_id": "late", "timestamp": "2100-01-01T00:00:00.000000Z", "entity_name": "osd.0"});
    assert_eq!(c.command_with(post, late.to_string().into()).0, 0);
    let kept = |c: &mut Cluster| c.command(r#"{"prefix": "crash ls"}"#).2.matches("late").count();
    assert_eq!(kept(&mut c), 1);
    let longest = format!("\"{}\"", "y".repeat((256 << 10) - 150));
    for n in 41..44 {
        assert_eq!(c.command_with(post, report(n, &longest)).0, 0);
    }
    assert_eq!(kept(&mut c), 0, "older ones were pushed out in its place");
    for n in 0..1200 {
        let few = report(100_000 + n, &zeros(2000));
        assert_eq!(c.command_with(post, few).0, 0);
    }
    assert!(c.mon.state().kv.len() < before + 100, "{} keys", c.mon.state().kv.len());
}

/// The log that a monitor keeps is bounded by its bytes, not by the number of its entries alone.
#[test]
fn a_log_of_long_entries_is_folded_early() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "admin");
    let mut most = 0;
    for n in 0..300 {
        let message = key_set(n % 4, Bytes::from(vec![n as u8; 65536])).into_message(n as u64 + 1);
        c.event(MonEvent::Message { conn, message });
        // It is looked at from time to time.
        c.event(MonEvent::Tick);
        most = most.max(c.stored.entries.iter().map(|e| e.data.len()).sum::<usize>());
    }
    assert!(most > 1 << 20 && most < 6 << 20, "{most} bytes of 300 entries of 64 KiB");
}

/// Whatever is in every OSD map is small: a map of 100,000 OSDs that are not there is 11 MB, in
/// each of a burst of epochs.
#[test]
fn what_every_osd_map_has_is_bounded() {
    let mut c = Cluster::up(1);
    let long = "n".repeat(300);
    let before = c.mon.state().osdmap.bytes().len();
    let uuid = "00000000-0000-0000-0000-0000000000aa";
    for (cmd, errno) in [
        (json!({"prefix": "osd new", "uuid": uuid, "id": 99_999}), -34),
        (json!({"prefix": "osd create", "uuid": uuid, "id": 10_000}), -34),
        (json!({"prefix": "osd setmaxosd", "newmax": 100_000}), -34),
        (json!({"prefix": "osd setmaxosd", "newmax": 4_000_000_000u32}), -22),
        (json!({"prefix": "osd crush add-bucket", "name": long, "type": "host"}), -22),
        (json!({"prefix": "osd crush class create", "class": long}), -22),
        (
            json!({"prefix": "osd crush rule create-replicated", "name": long, "root": "default", "type": "osd"}),
            -22,
        ),
        (
            json!({"prefix": "osd crush rule rename", "srcname": "replicated_rule", "dstname": long}),
            -22,
        ),
        (json!({"prefix": "osd erasure-code-profile set", "name": long}), -22),
        (
            json!({"prefix": "osd erasure-code-profile set", "name": "p", "profile": [format!("x={}", "y".repeat(5000))]}),
            -22,
        ),
        (json!({"prefix": "osd setmaxosd", "newmax": 20}), 0),
    ] {
        let text = cmd.to_string();
        assert_eq!(c.command(&text).0, errno, "{text}");
    }
    let after = c.mon.state().osdmap.bytes().len();
    assert!(after < before + 5000, "{before} {after}");
}

/// Commands that are longer than any need be are refused before anything is done with them.
#[test]
fn arguments_and_requests_have_a_length() {
    let mut c = Cluster::up(1);
    let before = c.mon.state().kv.len();
    let cases = [
        (
            json!({"prefix": "config-key set", "key": "k".repeat(17 << 20), "val": "x"}),
            Bytes::new(),
            -7,
        ),
        (
            json!({"prefix": "config-key set", "key": "k".repeat(70_000), "val": "x"}),
            Bytes::new(),
            -7,
        ),
        (
            json!({"prefix": "config-key set", "key": "k".repeat(5000), "val": "x"}),
            Bytes::new(),
            -36,
        ),
        (json!({"prefix": "config-key set", "key": "k"}), Bytes::from(vec![0; 65537]), -27),
        (json!({"prefix": "log", "logtext": ["a", "b".repeat(70_000)]}), Bytes::new(), -7),
        // One that only reads, and what nobody knows, too.
        (json!({"prefix": "status"}), Bytes::from(vec![0; 5 << 20]), -7),
        (json!({"prefix": "status", "x": "x".repeat(60 << 20)}), Bytes::new(), -7),
        // What only reads needs little, and words never as much as an input.
        (json!({"prefix": "status"}), Bytes::from(vec![0; 70_000]), -7),
        (
            json!({"prefix": "config-key set", "key": "k", "x": "x".repeat(2 << 20)}),
            Bytes::new(),
            -7,
        ),
    ];
    for (cmd, input, errno) in cases {
        let text = cmd.to_string();
        let (ret, rs, _) = c.command_raw(&text, input);
        assert!(ret == errno && rs.len() < 300, "{:.60}: {ret} {rs:.200}", text);
    }
    assert_eq!(c.mon.state().kv.len(), before);
    for name in ["a\0b", "a\nb", "", &"p".repeat(100_000)] {
        let (ret, ..) = c.command(&json!({"prefix": "osd pool create", "pool": name}).to_string());
        assert!(ret < 0, "{name:.20}");
        let (ret, ..) = c.command(
            &json!({"prefix": "osd pool rename", "srcpool": "data", "destpool": name}).to_string(),
        );
        assert!(ret < 0, "{name:.20}");
    }
}

/// A manager is who it came in as, and is called as managers may be. With a name like `a/b` its
/// facts had a key that stopped every monitor for good.
#[test]
fn a_manager_speaks_in_its_own_name_and_the_name_is_one() {
    let mut c = Cluster::up(1);
    for (peer, name) in [("a/b", "a/b"), ("x", "y"), ("..", ".."), ("a b", "a b")] {
        let conn = c.open(EntityType::Mgr, peer);
        c.ask(conn, beacon(4300, name));
        assert_eq!(c.mon.state().mgrmap.active_gid, 0, "{peer} as {name}");
        assert!(c.mon.state().mgr_metadata.is_empty());
        assert_eq!(c.restarted().mon.state().mgr_metadata.len(), 0);
    }
    for name in ["mgr.a/b", "mgr.", "mon.a/b", "osd.x", "osd.-1", "osd.007", "mds.a/b"] {
        for prefix in ["auth add", "auth get-or-create"] {
            let (ret, rs, _) = c.command(
                &json!({"prefix": prefix, "entity": name, "caps": ["mon", "allow r"]}).to_string(),
            );
            assert_eq!(ret, -22, "{prefix} {name}: {rs}");
        }
    }
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "client.a/b", "caps": ["mon", "allow r"]}"#);
    let conn = c.open(EntityType::Mgr, "x");
    c.ask(conn, beacon(4300, "x"));
    assert_eq!(c.mon.state().mgrmap.active_name, "x");
}

/// What cannot be agreed on, though the leader leads, is said within 5 s.
#[test]
fn a_change_that_is_not_agreed_on_is_said() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "admin");
    let message = key_set(1, Bytes::from_static(b"x")).into_message(1);
    let mut held = c.held(MonEvent::Message { conn, message });
    let stalled = |c: &Cluster| {
        let text = spirula_mon::report::health(&c.mon.view(), true, spirula_format::Format::Plain);
        text.contains("MON_STALLED")
    };
    assert!(!stalled(&c));
    for _ in 0..45 {
        held.extend(c.held(MonEvent::Tick));
    }
    assert!(stalled(&c));
    assert!(held.iter().any(|e| matches!(e, MonEffect::Persist(_))), "it waits for the disk");
    c.release(held, &mut |_| ());
    c.tick(1);
    assert!(!stalled(&c));
}

/// "Good for one host, once": the same host may ask again for what it asked, nobody for anything
/// else.
#[test]
fn a_used_token_is_good_for_the_same_request_alone() {
    use spirula_auth::{CryptoKey, KeyType};
    use spirula_mon::join::{JoinOsd, Request, Token};
    let mut c = Cluster::up(1);
    let token: Token = c.ok(r#"{"prefix": "join-token create"}"#).trim().parse().unwrap();
    let key = |b: u8| {
        CryptoKey::new(KeyType::Aes256k, spirula_encoding::UTime::default(), &[b; 32]).unwrap()
    };
    let mut redeem = |host: u8, seed: u8| {
        let request = Request {
            nonce: [9; 16],
            host: format!("host{host}"),
            osds: vec![JoinOsd { uuid: spirula_types::Uuid([host; 16]), key: key(host) }],
            mgr: Some((format!("m{host}"), key(host))),
            mon: None,
        };
        let sealed = request.seal(&token.key, &mut |o: &mut [u8]| o.fill(seed));
        c.command_raw(
            &json!({"prefix": "join-token redeem", "id": token.id(), "request": sealed})
                .to_string(),
            Bytes::new(),
        )
    };
    let first = redeem(20, 1);
    assert_eq!(first.0, 0, "{first:?}");
    assert_eq!(redeem(20, 2).0, 0, "the answer was lost: the same host asks again");
    let second = redeem(21, 3);
    assert_eq!(second.0, -13, "another host, with the same nonce: {second:?}");
}

/// A token gives a monitor's name for as long as the token itself lasts.
#[test]
fn a_name_given_to_a_monitor_that_never_comes_goes_with_its_token() {
    use spirula_auth::{CryptoKey, KeyType};
    use spirula_mon::join::{Request, Token};
    for removed in [true, false] {
        let mut c = Cluster::up(1);
        let create = r#"{"prefix": "join-token create", "mon": true, "seconds": 600}"#;
        let token: Token = c.ok(create).trim().parse().unwrap();
        let request = Request {
            nonce: [9; 16],
            host: "h".into(),
            osds: vec![],
            mgr: None,
            mon: Some("z".into()),
        };
        let key: &CryptoKey = &token.key;
        assert_eq!(key.key_type(), KeyType::Aes256k);
        let sealed = request.seal(key, &mut |o: &mut [u8]| o.fill(1));
        c.ok(&json!({"prefix": "join-token redeem", "id": token.id(), "request": sealed})
            .to_string());
        let names = |c: &Cluster| {
            c.mon.state().kv.keys().filter(|k| k.starts_with("spirula/mon-name/")).count()
        };
        (0..58).for_each(|_| drop(c.tick(10)));
        assert_eq!(names(&c), 1, "it may still come");
        if removed {
            c.ok(&json!({"prefix": "join-token rm", "id": token.id()}).to_string());
        } else {
            (0..3).for_each(|_| drop(c.tick(10)));
        }
        assert_eq!(names(&c), 0, "removed {removed}");
    }
}

/// What is under the monitors' own keys nobody is shown, not even their names.
#[test]
fn the_monitors_own_keys_are_not_listed() {
    let mut c = Cluster::up(1);
    c.ok(r#"{"prefix": "join-token create"}"#);
    c.ok(r#"{"prefix": "config-key set", "key": "mine", "val": "x"}"#);
    assert!(c.mon.state().kv.len() > 1);
    assert_eq!(c.json(r#"{"prefix": "config-key ls"}"#), json!(["mine"]));
    assert_eq!(c.json(r#"{"prefix": "config-key dump"}"#), json!({"mine": "x"}));
}

/// Each pending key that somebody comes in with becomes his key, the second one of a session, too.
#[test]
fn every_pending_key_that_is_used_becomes_the_key() {
    let mut c = Cluster::up(1);
    c.ok(r#"{"prefix": "auth get-or-create", "entity": "client.p", "caps": ["mon", "allow r"]}"#);
    let conn = c.open(EntityType::Client, "p");
    for kind in ["aes256k", "aes"] {
        let old = c.ok(r#"{"prefix": "auth get-key", "entity": "client.p"}"#);
        // Of another type each time: here all random bytes are alike.
        c.ok(&json!({"prefix": "auth get-or-create-pending", "entity": "client.p", "key_type": kind}).to_string());
        c.pending_used(conn, "client.p");
        assert_ne!(old, c.ok(r#"{"prefix": "auth get-key", "entity": "client.p"}"#), "{kind}");
    }
}

/// One subscription under many names would be answered as often.
#[test]
fn a_map_is_sent_once_under_its_own_name_alone() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "admin");
    assert_eq!(c.subscribe(conn, "osdmap", 0, false).len(), 1);
    for n in 1..64 {
        for what in [
            format!("osdmap.{n}"),
            format!("monmap.{n}"),
            format!("config.{n}"),
            format!("fsmap.{n}"),
        ] {
            assert!(c.subscribe(conn, &what, 0, false).is_empty(), "{what}");
        }
    }
}

/// A second monitor of a living one's name does not take its place.
#[test]
fn a_living_monitor_is_not_evicted_by_another_of_its_name() {
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Mon, "a");
    let before =
        (c.mon.state().members.clone(), c.mon.state().monmap.mons.get("a").unwrap().addrs.clone());
    let uuid = spirula_types::Uuid([77; 16]);
    // Not `ask`: if it is let in, it is told over a link of its own.
    let message = MonJoin { fsid: FSID, name: "a".into(), uuid, addrs: addr(9999) }.into_message(0);
    let out = c.held(MonEvent::Message { conn, message });
    c.release(out, &mut |_| ());
    let after =
        (c.mon.state().members.clone(), c.mon.state().monmap.mons.get("a").unwrap().addrs.clone());
    assert_eq!(after, before);
}

/// Who has the monitors' key may not choose what he is called: a new name comes from a token, which
/// gives the one that its request names, once.
#[test]
fn a_monitor_comes_in_under_the_name_that_its_token_gave() {
    use spirula_mon::join::{Request, Token};
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Mon, "b");
    let join = |c: &mut Cluster, name: &str, n: u8| {
        let uuid = spirula_types::Uuid([n; 16]);
        let message =
            MonJoin { fsid: FSID, name: name.into(), uuid, addrs: addr(9990 + u16::from(n)) }
                .into_message(0);
        // What it is told goes over a link of its own.
        let mut todo =
            std::collections::VecDeque::from(c.held(MonEvent::Message { conn, message }));
        while let Some(e) = todo.pop_front() {
            if let MonEffect::Persist(p) = e {
                c.write(&p);
                todo.extend(c.held(MonEvent::Persisted(p.number)));
            }
        }
        c.mon.state().members.values().any(|m| m.name == name && m.uuid == uuid)
    };
    assert!(!join(&mut c, "b", 1), "nobody gave it that name");
    assert!(!c.mon.state().monmap.mons.contains_key("b"));
    let redeem = |c: &mut Cluster, name: &str, n: u8| {
        let token: Token =
            c.ok(r#"{"prefix": "join-token create", "mon": true}"#).trim().parse().unwrap();
        let request = Request {
            nonce: [n; 16],
            host: "h".into(),
            osds: vec![],
            mgr: None,
            mon: Some(name.into()),
        };
        let sealed = request.seal(&token.key, &mut |o: &mut [u8]| o.fill(n));
        c.command(
            &json!({"prefix": "join-token redeem", "id": token.id(), "request": sealed})
                .to_string(),
        )
        .0
    };
    assert_eq!(redeem(&mut c, "a", 1), -17, "a monitor's name is not given again");
    assert_eq!(redeem(&mut c, "a/b", 2), -22);
    assert_eq!(redeem(&mut c, "b", 3), 0);
    assert!(!join(&mut c, "c", 2), "another name");
    assert!(join(&mut c, "b", 1));
}

/// An older copy of the only monitor's store is put back: the daemons know better, and health says
/// so.
#[test]
fn a_monitor_that_was_rolled_back_is_named() {
    let health = |c: &Cluster| {
        spirula_mon::report::health(&c.mon.view(), true, spirula_format::Format::Plain)
    };
    let mut c = Cluster::up(2);
    let mut old = c.restarted();
    for name in ["x", "y"] {
        c.ok(&json!({"prefix": "osd pool create", "pool": name, "pg_num": 8}).to_string());
    }
    let newest = u64::from(c.mon.state().osdmap.epoch);
    let osd = c.open(EntityType::Osd, "0");
    c.subscribe(osd, "osdmap", newest + 1, false);
    assert!(!health(&c).contains("MON_ROLLED_BACK"), "it waits for the next one");
    // What anybody may claim counts for nothing.
    let client = old.open(EntityType::Client, "admin");
    old.subscribe(client, "osdmap", newest + 1, false);
    assert!(!health(&old).contains("MON_ROLLED_BACK"));
    let osd = old.open(EntityType::Osd, "0");
    old.subscribe(osd, "osdmap", newest + 1, false);
    let text = health(&old);
    assert!(
        text.contains("MON_ROLLED_BACK") && text.contains(&format!("osd.0 has OSD map {newest}")),
        "{text}"
    );
}

/// Whoever sends what cannot be read does not wait for an answer for ever.
#[test]
fn a_malformed_request_ends_its_connection() {
    use spirula_messages::ceph::kind;
    let mut c = Cluster::up(1);
    for kind in [
        kind::MON_COMMAND,
        kind::COMMAND,
        kind::POOL_OP,
        kind::MON_SUBSCRIBE,
        kind::MON_GET_VERSION,
        kind::STATFS,
        kind::AUTH,
    ] {
        let conn = c.open(EntityType::Client, "admin");
        let message = spirula_messages::Message {
            kind,
            tid: 7,
            front: Bytes::from_static(b"\xff"),
            ..Default::default()
        };
        let mut todo =
            std::collections::VecDeque::from(c.held(MonEvent::Message { conn, message }));
        let mut closed = false;
        while let Some(e) = todo.pop_front() {
            closed |= e == MonEffect::Close(conn);
            if let MonEffect::Persist(p) = e {
                c.write(&p);
                todo.extend(c.held(MonEvent::Persisted(p.number)));
            }
        }
        assert!(closed, "{kind}");
    }
}

/// What a small client puts into a command that is done does not stay: neither in the audit log nor
/// in a log entry of its own.
#[test]
fn the_clusters_log_is_bounded_in_bytes() {
    let mut c = Cluster::up(1);
    let text = "x".repeat(60_000);
    for n in 0..300 {
        let addr = "10.0.0.1:0/7";
        let cmd = serde_json::json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": addr, "expire": n, "x": [text, text]});
        c.ok(&cmd.to_string());
        c.ok(&serde_json::json!({"prefix": "log", "logtext": [text]}).to_string());
        c.tick(1);
    }
    let log = c.ok(r#"{"prefix": "log last", "num": 1000, "level": "debug", "channel": "*"}"#);
    assert!(log.len() < 5 << 20, "{} bytes", log.len());
}

fn log_entry(channel: &str, name: &str, addrs: usize) -> spirula_messages::ceph::LogEntry {
    let one = addr(0).0.first().copied().unwrap();
    spirula_messages::ceph::LogEntry {
        name_kind: EntityType::Mon as u32,
        name_id: name.to_owned(),
        rank: spirula_types::EntityName::mon(0),
        addrs: spirula_types::AddrVec(vec![one; addrs]),
        stamp: spirula_encoding::UTime::ZERO,
        seq: 1,
        severity: 1,
        message: "m".into(),
        channel: channel.to_owned(),
    }
}

/// Who may write to the cluster's log (every gateway may) fills nobody's memory with it, whatever
/// part of an entry is long.
#[test]
fn no_part_of_a_log_entry_is_long() {
    use spirula_messages::ceph::MLog;
    let mut c = Cluster::up(1);
    let conn = c.open(EntityType::Client, "rgw.x");
    let long = "c".repeat(900_000);
    for n in 0..20 {
        let entry = match n % 3 {
            0 => log_entry(&long, "x", 1),
            1 => log_entry("cluster", &long, 1),
            _ => log_entry("cluster", "x", 20_000),
        };
        c.ask(conn, MLog { version: 0, fsid: FSID, entries: vec![entry] });
    }
    let bytes = c.mon.state().to_bytes().len();
    assert!(bytes < 1 << 20, "{bytes}");
}

/// What was noted about somebody he does not get rid of by writing to the log, in whatever channel
/// and name.
#[test]
fn the_audit_is_not_pushed_out_of_the_log() {
    use spirula_messages::ceph::MLog;
    let mut c = Cluster::up(1);
    c.ok(r#"{"prefix": "config set", "who": "osd", "name": "osd_max_backfills", "value": "3"}"#);
    let conn = c.open(EntityType::Client, "rgw.x");
    for channel in ["cluster", "audit"] {
        for _ in 0..3 {
            let entries = vec![log_entry(channel, "a", 1); 1000];
            c.ask(conn, MLog { version: 0, fsid: FSID, entries });
        }
    }
    let audit = r#"{"prefix": "log last", "num": 10000, "level": "debug", "channel": "audit"}"#;
    let log = c.ok(audit);
    assert!(log.contains("osd_max_backfills"), "{log:.300}");
    assert!(
        log.contains("client.rgw.x") && !log.contains("mon.a (mon.0) 1 : audit"),
        "it speaks in its own name"
    );
    let all = c.mon.state().log.after(0).count();
    assert!((1001..=2000).contains(&all), "{all}");
    let mut again = c.restarted();
    assert_eq!(again.ok(audit), log);
    let conn = again.open(EntityType::Client, "rgw.x");
    again.ask(
        conn,
        MLog { version: 0, fsid: FSID, entries: vec![log_entry("cluster", "a", 1); 1000] },
    );
    assert!(again.ok(audit).contains("osd_max_backfills"));
}

/// Options can be changed, and removed, however much was set before: the table and its history are
/// one value of the log's entries.
#[test]
fn options_can_be_changed_whatever_was_set_before() {
    let mut c = Cluster::up(1);
    let set = |who: &str, name: &str, value: &str| {
        json!({"prefix": "config set", "who": who, "name": name, "value": value}).to_string()
    };
    for n in 0..190 {
        let value = format!("{n:08}{}", "v".repeat(65_528));
        c.ok(&set("client.u", "rgw_dns_name", &value));
    }
    c.ok(&set("osd", "osd_max_backfills", "3"));
    c.ok(r#"{"prefix": "config rm", "who": "client.u", "name": "rgw_dns_name"}"#);
}

/// An option of a manager's module has slashes in its name; what was changed of it is undone, too.
#[test]
fn a_reset_undoes_options_of_modules() {
    let mut c = Cluster::up(1);
    let before = c.json(r#"{"prefix": "config dump"}"#);
    let log = c.json(r#"{"prefix": "config log", "num": 1}"#);
    let version = log[0]["version"].as_u64().unwrap();
    c.ok(r#"{"prefix": "config set", "who": "mgr", "name": "mgr/balancer/active", "value": "false"}"#);
    assert_ne!(c.json(r#"{"prefix": "config dump"}"#), before);
    c.ok(&json!({"prefix": "config reset", "num": version}).to_string());
    assert_eq!(c.json(r#"{"prefix": "config dump"}"#), before);
}
