//! The leader's wall clock is set, forward or back: what was decided to last so long lasts so long.

use crate::harness::*;
use serde_json::json;
use spirula_messages::Body;
use spirula_types::EntityType;

const YEAR: i64 = 365 * 86_400;

fn fences(c: &Cluster) -> usize {
    c.mon.state().osdmap.blocklist.len()
}

/// Ticks as a monitor has them, for that many seconds.
fn pass(c: &mut Cluster, seconds: u32) {
    for _ in 0..seconds {
        c.tick(1);
    }
}

#[test]
fn a_fence_lasts_as_long_as_was_asked_whatever_the_clock_says() {
    for by in [YEAR, -YEAR, 3600, -3600] {
        let mut c = Cluster::up(1);
        c.ok(&json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1", "expire": 600.0})
            .to_string());
        pass(&mut c, 5);
        c.set_clock(by);
        pass(&mut c, 580);
        assert_eq!(fences(&c), 1, "{by}: ended early");
        pass(&mut c, 30);
        assert_eq!(fences(&c), 0, "{by}: does not end");
        // One that is asked for after that, and beside one that stands.
        for addr in ["10.0.7.8:0/1", "10.0.7.9:0/1"] {
            c.ok(&json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": addr, "expire": 100.0}).to_string());
            c.set_clock(-by);
            pass(&mut c, 45);
        }
        assert_eq!(fences(&c), 2, "{by}");
        pass(&mut c, 15);
        assert_eq!(fences(&c), 1, "{by}");
        pass(&mut c, 50);
        assert_eq!(fences(&c), 0, "{by}");
    }
}

/// Between two ticks: what is decided goes by the clock as it is set, not as it was.
#[test]
fn a_fence_made_at_once_after_the_clock_was_set_lasts_its_time() {
    for by in [YEAR, -YEAR, 3600, -3600] {
        let mut c = Cluster::up(1);
        pass(&mut c, 5);
        c.set_clock(by);
        c.ok(&json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1", "expire": 100.0})
            .to_string());
        pass(&mut c, 95);
        assert_eq!(fences(&c), 1, "{by}: ended early");
        pass(&mut c, 10);
        assert_eq!(fences(&c), 0, "{by}: does not end");
    }
}

#[test]
fn an_osd_is_marked_out_after_its_time_whatever_the_clock_says() {
    for by in [YEAR, -YEAR] {
        let mut c = Cluster::up(3);
        c.ok(r#"{"prefix": "config set", "who": "global", "name": "mon_osd_down_out_subtree_limit", "value": ""}"#);
        c.ok(r#"{"prefix": "osd down", "ids": ["2"]}"#);
        pass(&mut c, 5);
        c.set_clock(by);
        pass(&mut c, 585);
        assert!(c.mon.state().osdmap.is_in(2), "{by}: out early");
        pass(&mut c, 30);
        assert!(!c.mon.state().osdmap.is_in(2), "{by}: never out");
    }
}

#[test]
fn a_manager_is_replaced_when_it_is_silent_whatever_the_clock_says() {
    for by in [YEAR, -YEAR] {
        let mut c = Cluster::up(1);
        let (x, y) = (c.open(EntityType::Mgr, "x"), c.open(EntityType::Mgr, "y"));
        let both = |c: &mut Cluster| {
            c.send(x, beacon(4300, "x").into_message(0));
            c.send(y, beacon(4301, "y").into_message(0));
        };
        both(&mut c);
        pass(&mut c, 1);
        c.set_clock(by);
        pass(&mut c, 1);
        assert_eq!(c.mon.state().mgrmap.active_name, "x", "{by}: it was heard two seconds ago");
        both(&mut c);
        for _ in 0..60 {
            pass(&mut c, 1);
            c.send(y, beacon(4301, "y").into_message(0));
        }
        assert_eq!(c.mon.state().mgrmap.active_name, "y", "{by}: the silent one stays");
    }
}

#[test]
fn keys_go_on_rotating_whatever_the_clock_says() {
    use spirula_auth::Service;
    let of = |c: &Cluster| c.mon.state().service_keys.get(Service::Osd).unwrap().current.id;
    let mut c = Cluster::up(1);
    pass(&mut c, 1);
    for by in [YEAR, -YEAR, -YEAR, YEAR] {
        let before = of(&c);
        c.set_clock(by);
        pass(&mut c, 60);
        assert_eq!(of(&c), before, "{by}: no rotation for it, tickets stay good");
        c.tick(3600);
        assert_eq!(of(&c), before + 1, "{by}");
    }
}

/// A monitor that was started with a clock behind what the state says.
#[test]
fn a_clock_behind_the_newest_map_is_noticed_at_the_start() {
    let mut c = Cluster::up(1);
    c.ok(&json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1", "expire": 600.0}).to_string());
    c.set_clock(-YEAR);
    let mut c = c.restarted();
    pass(&mut c, 580);
    assert_eq!(fences(&c), 1);
    pass(&mut c, 40);
    assert_eq!(fences(&c), 0);
}

/// A fence that stands is asked for again, for longer: it lasts for longer, and so it is shown.
#[test]
fn a_fence_that_is_asked_for_again_lasts_for_longer() {
    let mut c = Cluster::up(1);
    let add = |c: &mut Cluster, seconds: f64| {
        let cmd = json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1", "expire": seconds});
        c.ok(&cmd.to_string());
        c.ok(r#"{"prefix": "osd blocklist ls"}"#)
    };
    let first = add(&mut c, 100.0);
    let second = add(&mut c, 600.0);
    assert_ne!(first, second, "shown as it is");
    assert_eq!(add(&mut c, 50.0), second, "not for shorter");
    pass(&mut c, 590);
    assert_eq!(fences(&c), 1);
    pass(&mut c, 20);
    assert_eq!(fences(&c), 0);
    assert!(
        !c.mon.state().kv.keys().any(|k| k.starts_with("spirula/fence")),
        "nothing is left of it"
    );
    // What is taken away is gone with all that was known of it.
    add(&mut c, 100.0);
    add(&mut c, 600.0);
    c.ok(r#"{"prefix": "osd blocklist", "blocklistop": "rm", "addr": "10.0.7.7:0/1"}"#);
    add(&mut c, 100.0);
    pass(&mut c, 110);
    assert_eq!(fences(&c), 0);
}
