//! Managers: who takes over, when, and what clients hear meanwhile.

use crate::harness::{Cluster, beacon};
use serde_json::json;
use spirula_messages::cluster::control::MgrBeacon;
use spirula_mon::MonEvent;
use spirula_types::EntityType;

const COMMAND: &str = r#"{"sig": ["pg", "stat"], "help": "", "module": "pg", "perm": "r", "flags": 8}"#;

/// One that has a command.
fn able(gid: u64, name: &str) -> MgrBeacon {
    MgrBeacon { commands: vec![COMMAND.to_owned()], ..beacon(gid, name) }
}

/// While no manager is active, and after the monitor started again, clients are told of the managers' commands: they
/// wait for one. They were told that there is no such command.
#[test]
fn commands_of_managers_are_known_while_there_is_none() {
    let mut c = Cluster::up(1);
    let known = |c: &mut Cluster| c.ok(r#"{"prefix": "get_command_descriptions"}"#).contains(r#"["pg","stat"]"#);
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

/// A standby takes over within 5 s, whether the active one's connection is gone or it only fell silent; a manager that
/// nobody can replace is given more time.
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
