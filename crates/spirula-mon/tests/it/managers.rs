//! Managers: who takes over, when, and what clients hear meanwhile.

use crate::harness::{Cluster, FSID, addr, beacon};
use serde_json::json;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck};
use spirula_messages::cluster::control::{MgrBeacon, MgrRan, MgrRun, MonRan, MonRun};
use spirula_messages::cluster::quorum::CarriedPeer;
use spirula_messages::{Body, Message};
use spirula_mon::MonEvent;
use spirula_types::EntityType;

const COMMAND: &str =
    r#"{"sig": ["pg", "stat"], "help": "", "module": "pg", "perm": "r", "flags": 8}"#;

/// One that has a command.
fn able(gid: u64, name: &str) -> MgrBeacon {
    MgrBeacon { commands: vec![COMMAND.to_owned()], ..beacon(gid, name) }
}

/// While no manager is active, and after the monitor started again, clients are told of the
/// managers' commands: they wait for one. They were told that there is no such command.
#[test]
fn commands_of_managers_are_known_while_there_is_none() {
    let mut c = Cluster::up(1);
    let known = |c: &mut Cluster| {
        c.ok(r#"{"prefix": "get_command_descriptions"}"#).contains(r#"["pg","stat"]"#)
    };
    assert!(!known(&mut c));
    let conn = c.open(EntityType::Mgr, "x");
    c.ask(conn, able(4200, "x"));
    assert!(known(&mut c));
    let mut again = c.restarted();
    assert!(known(&mut again));
    again.ok(&json!({"prefix": "mgr fail", "who": "x"}).to_string());
    assert_eq!(again.mon.state().mgrmap.active_gid, 0);
    assert!(known(&mut again));
}

/// A standby takes over within 5 s, whether the active one's connection is gone or it only fell
/// silent; a manager that nobody can replace is given more time.
#[test]
fn a_standby_takes_over_within_five_seconds() {
    for closed in [true, false] {
        let mut c = Cluster::up(1);
        let (x, y) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Mgr, "y"));
        c.ask(x, able(4200, "x"));
        c.ask(y, able(4201, "y"));
        assert_eq!(c.mon.state().mgrmap.active_name, "x");
        if closed {
            c.event(MonEvent::SessionClosed { conn: x });
        }
        for second in 1..=5 {
            assert!(second < if closed { 4 } else { 6 });
            c.ask(y, able(4201, "y"));
            c.tick(1);
            if c.mon.state().mgrmap.active_name == "y" {
                break;
            }
        }
        assert_eq!(c.mon.state().mgrmap.active_name, "y", "closed: {closed}");
        // Alone, it may be silent for longer.
        let mut left = 20;
        while left > 0 {
            c.tick(1);
            left -= 1;
        }
        assert_eq!(c.mon.state().mgrmap.active_name, "y", "closed: {closed}");
    }
}

/// A connection that is made anew is no failure.
#[test]
fn a_manager_that_comes_back_stays_active() {
    let mut c = Cluster::up(1);
    let (x, y) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Mgr, "y"));
    c.ask(x, able(4200, "x"));
    c.ask(y, able(4201, "y"));
    c.event(MonEvent::SessionClosed { conn: x });
    let x = c.open(EntityType::Mgr, "x");
    for _ in 0..10 {
        c.ask(x, able(4200, "x"));
        c.ask(y, able(4201, "y"));
        c.tick(1);
        assert_eq!(c.mon.state().mgrmap.active_name, "x");
    }
}

/// A client's command over a connection that stays, as the monitor gets it.
fn asked(tid: u64, cmd: &serde_json::Value) -> Message {
    let input = bytes::Bytes::new();
    MMonCommand { version: 0, fsid: FSID, cmd: vec![cmd.to_string()], input }.into_message(tid)
}

/// What the manager was asked.
fn runs(sent: &[(u64, Message)], mgr: u64) -> Vec<MgrRun> {
    sent.iter()
        .filter(|(to, _)| *to == mgr)
        .filter_map(|(_, m)| MgrRun::from_message(m).ok())
        .collect()
}

fn acks(sent: &[(u64, Message)], conn: u64) -> Vec<MMonCommandAck> {
    sent.iter()
        .filter(|(to, _)| *to == conn)
        .filter_map(|(_, m)| MMonCommandAck::from_message(m).ok())
        .collect()
}

fn ran(run: &MgrRun, result: i32, output: &str) -> MgrRan {
    let (boot, id) = (run.boot, run.id);
    MgrRan { boot, id, result, status: "said".into(), output: output.to_owned().into() }
}

/// As librados' `mon_command` is used by exporters: the manager runs it, the monitor hands its
/// answer back.
#[test]
fn a_command_of_the_managers_is_run_by_it_and_answered_by_the_monitor() {
    let mut c = Cluster::up(1);
    let (mgr, client) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Client, "admin"));
    c.ask(mgr, able(4200, "x"));
    let cmd = json!({"prefix": "pg stat", "format": "json"});
    let sent = c.send(client, asked(3, &cmd));
    let [run] = &runs(&sent, mgr)[..] else { panic!("{sent:?}") };
    assert_eq!((&run.cmd[..], run.request.0.1), (&[cmd.to_string()][..], 3));
    assert_ne!(run.request.0.0, 0, "he is known by his global id");
    assert!(acks(&sent, client).is_empty());
    // Nobody else answers for it, nor a run before.
    let other = c.open(EntityType::Mgr, "y");
    assert!(acks(&c.send(other, ran(run, 0, "false").into_message(0)), client).is_empty());
    let old = MgrRan { boot: run.boot + 1, ..ran(run, 0, "false") };
    assert!(acks(&c.send(mgr, old.into_message(0)), client).is_empty());
    let sent = c.send(mgr, ran(run, -22, "out").into_message(0));
    let [ack] = &acks(&sent, client)[..] else { panic!("{sent:?}") };
    assert_eq!(
        (ack.result, &ack.status[..], &ack.output[..], &ack.cmd),
        (-22, "said", &b"out"[..], &run.cmd)
    );
    assert!(sent.iter().any(|(to, m)| *to == client && m.tid == 3));
    assert!(acks(&c.send(mgr, ran(run, 0, "again").into_message(0)), client).is_empty());
    // What no manager serves is refused by the monitor, and what is so already granted.
    for (prefix, errno) in [("telemetry on", 95), ("balancer off", 0), ("no such", 22)] {
        assert_eq!(c.command(&json!({"prefix": prefix}).to_string()).0, -errno, "{prefix}");
    }
}

/// Another connection with the manager's key, be it newer, is not the manager: it would not answer.
#[test]
fn commands_go_to_the_connection_over_which_the_manager_says_that_it_runs() {
    let mut c = Cluster::up(1);
    let (mgr, client) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Client, "admin"));
    c.ask(mgr, able(4200, "x"));
    let watcher = c.open(EntityType::Mgr, "x");
    let sent = c.send(client, asked(3, &json!({"prefix": "pg stat"})));
    assert_eq!((runs(&sent, mgr).len(), runs(&sent, watcher).len()), (1, 0));
    // That one goes away, and nothing happens.
    c.event(MonEvent::SessionClosed { conn: watcher });
    assert_eq!(
        acks(&c.send(mgr, ran(&runs(&sent, mgr)[0], 0, "out").into_message(0)), client).len(),
        1
    );
    // A new session is its own once it says so over that.
    let anew = c.open(EntityType::Mgr, "x");
    c.ask(anew, able(4200, "x"));
    let sent = c.send(client, asked(4, &json!({"prefix": "pg stat"})));
    assert_eq!((runs(&sent, mgr).len(), runs(&sent, anew).len()), (0, 1));
}

/// Nor is the manager gone when such a connection closes.
#[test]
fn a_manager_is_replaced_early_only_where_its_own_connection_closed() {
    for own in [false, true] {
        let mut c = Cluster::up(1);
        let (x, y) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Mgr, "y"));
        c.ask(x, able(4200, "x"));
        c.ask(y, able(4201, "y"));
        let watcher = c.open(EntityType::Mgr, "x");
        c.event(MonEvent::SessionClosed { conn: if own { x } else { watcher } });
        c.tick(3);
        assert_eq!(c.mon.state().mgrmap.active_name, if own { "y" } else { "x" });
    }
}

/// Whoever takes over is asked what the manager before it was, and who finds none is told so in the
/// end.
#[test]
fn a_command_waits_for_a_manager_and_not_for_ever() {
    let mut c = Cluster::up(1);
    let (x, y) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Mgr, "y"));
    let client = c.open(EntityType::Client, "admin");
    c.ask(x, able(4200, "x"));
    c.ask(y, able(4201, "y"));
    let sent = c.send(client, asked(3, &json!({"prefix": "pg stat"})));
    assert_eq!(runs(&sent, x).len(), 1);
    c.event(MonEvent::SessionClosed { conn: x });
    let mut again = Vec::new();
    for _ in 0..6 {
        let mut sent = c.send(y, able(4201, "y").into_message(0));
        sent.extend(c.tick(1));
        again.extend(runs(&sent, y));
    }
    let [run] = &again[..] else { panic!("{again:?}") };
    assert_eq!(acks(&c.send(y, ran(run, 0, "out").into_message(0)), client).len(), 1);
    // One that never answers, and then none at all.
    c.send(client, asked(4, &json!({"prefix": "pg stat"})));
    c.event(MonEvent::SessionClosed { conn: y });
    let mut told = Vec::new();
    for _ in 0..400 {
        told.extend(acks(&c.event(MonEvent::Tick), client));
    }
    assert_eq!(told.iter().map(|a| a.result).collect::<Vec<_>>(), [-110], "{told:?}");
}

/// Of what waits there is a bound, and few are with the manager at a time.
#[test]
fn commands_that_wait_for_the_manager_are_bounded() {
    let mut c = Cluster::up(1);
    let (mgr, client) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Client, "admin"));
    c.ask(mgr, able(4200, "x"));
    let (mut at_once, mut refused) = (Vec::new(), 0);
    let long = "x".repeat(60_000);
    for tid in 1..=300 {
        let sent = c.send(client, asked(tid, &json!({"prefix": "pg stat", "long": long})));
        at_once.extend(runs(&sent, mgr));
        refused += acks(&sent, client).iter().filter(|a| a.result == -11).count();
    }
    assert!(
        at_once.len() <= 4 && refused > 200,
        "{} with the manager, {refused} refused",
        at_once.len()
    );
    // All that were taken are answered, one after the other.
    let mut answered = 0;
    while let Some(run) = at_once.pop() {
        let sent = c.send(mgr, ran(&run, 0, "out").into_message(0));
        at_once.extend(runs(&sent, mgr));
        answered += acks(&sent, client).len();
    }
    assert_eq!(answered + refused, 300);
    // Whose connection is gone waits for nothing.
    let sent = c.send(client, asked(301, &json!({"prefix": "pg stat"})));
    let run = runs(&sent, mgr).remove(0);
    c.event(MonEvent::SessionClosed { conn: client });
    assert!(c.send(mgr, ran(&run, 0, "out").into_message(0)).iter().all(|(to, _)| *to != client));
}

/// A few at a time are with the manager, whoever asked and has left since; who has least there goes
/// first, and what is not answered waits behind the others before it is asked again.
#[test]
fn clients_take_turns_with_the_manager() {
    let mut c = Cluster::up(1);
    let mgr = c.open(EntityType::Mgr, "x");
    c.ask(mgr, able(4200, "x"));
    let [many, left, few] = [(); 3].map(|()| c.open(EntityType::Client, "admin"));
    let cmd = |who: &str, n: u64| json!({"prefix": "pg stat", "who": format!("{who} {n}")});
    let whose = |runs: &[MgrRun]| -> Vec<String> {
        let args =
            runs.iter().map(|r| serde_json::from_str::<serde_json::Value>(&r.cmd[0]).unwrap());
        args.map(|a| a["who"].as_str().unwrap().to_owned()).collect()
    };
    // Four are with the manager, and those who asked for them leave.
    let mut working = Vec::new();
    for n in 1..=4 {
        working.extend(runs(&c.send(left, asked(n, &cmd("left", n))), mgr));
    }
    assert_eq!(working.len(), 4);
    c.event(MonEvent::SessionClosed { conn: left });
    for n in 1..=6 {
        assert!(
            runs(&c.send(many, asked(n, &cmd("many", n))), mgr).is_empty(),
            "it works on what they wanted"
        );
    }
    assert!(runs(&c.send(few, asked(1, &cmd("few", 1))), mgr).is_empty());
    let mut next = Vec::new();
    for run in &working {
        let sent = c.send(mgr, ran(run, 0, "out").into_message(0));
        assert_eq!(sent.iter().filter(|(to, _)| *to != mgr).count(), 0);
        next.extend(runs(&sent, mgr));
    }
    assert_eq!(whose(&next), ["many 1", "few 1", "many 2", "many 3"]);
    // None of these is answered: those that wait are next, and then these again.
    let mut again = Vec::new();
    for _ in 0..150 {
        again.extend(runs(&c.event(MonEvent::Tick), mgr));
    }
    let order = whose(&again);
    let place = |who: &str| {
        order.iter().position(|w| w == who).unwrap_or_else(|| panic!("{who}: {order:?}"))
    };
    for waited in ["many 4", "many 5", "many 6"] {
        assert!(
            ["many 1", "many 2", "many 3"].iter().all(|sent| place(waited) < place(sent)),
            "{order:?}"
        );
    }
    // What those had done who left is not counted for ever, though it was never answered.
    let gone = c.open(EntityType::Client, "admin");
    c.event(MonEvent::SessionClosed { conn: many });
    c.event(MonEvent::SessionClosed { conn: few });
    (0..100).for_each(|_| drop(c.event(MonEvent::Tick)));
    assert_eq!(runs(&c.send(gone, asked(1, &cmd("gone", 1))), mgr).len(), 1);
}

/// The manager has monitors do what is its own with Ceph, in the name of who asked, once.
#[test]
fn what_monitors_do_for_a_managers_client_is_done_once_and_in_his_name() {
    let mut c = Cluster::up(1);
    let mgr = c.open(EntityType::Mgr, "x");
    c.ask(mgr, able(4200, "x"));
    let asker =
        CarriedPeer { kind: 8, id: "manila".into(), global_id: 4711, addrs: addr(0), features: 0 };
    let run = |id: u64, cmd: serde_json::Value| MonRun {
        id,
        asker: asker.clone(),
        limited: false,
        cmd: vec![cmd.to_string()],
        input: bytes::Bytes::new(),
    };
    let answer = |sent: Vec<(u64, Message)>| {
        let all: Vec<MonRan> = sent
            .iter()
            .filter(|(to, _)| *to == mgr)
            .filter_map(|(_, m)| MonRan::from_message(m).ok())
            .collect();
        let [one] = &all[..] else { panic!("{all:?}") };
        one.clone()
    };
    let create = run(7, json!({"prefix": "fs volume create", "name": "v"}));
    let first = answer(c.send(mgr, create.clone().into_message(5)));
    assert_eq!((first.id, first.result), (7, 0), "{}", first.status);
    // In a new session it asks again: it is the same request.
    let epoch = c.mon.state().fsmap.epoch;
    let again = answer(c.send(mgr, create.into_message(5)));
    assert_eq!((again.id, again.result, c.mon.state().fsmap.epoch), (7, 0, epoch));
    let listed = answer(
        c.send(mgr, run(8, json!({"prefix": "fs volume ls", "format": "json"})).into_message(6)),
    );
    assert_eq!(&listed.output[..], br#"[{"name":"v"}]"#);
    let audit = c.ok(r#"{"prefix": "log last", "num": 20, "channel": "audit", "level": "info"}"#);
    let said =
        r#"entity='client.manila' cmd='[{"prefix":"fs volume create","name":"v"}]': finished"#;
    assert!(audit.contains(said), "{audit}");
    let no =
        answer(c.send(mgr, run(9, json!({"prefix": "osd out", "ids": ["0"]})).into_message(7)));
    assert_eq!((no.id, no.result), (9, -13));
}
