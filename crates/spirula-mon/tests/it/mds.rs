//! Metadata servers and file systems: who serves which rank, and that nobody acts on what was not
//! agreed on.

use crate::harness::{Cluster, FSID, addr};
use proptest::prelude::*;
use serde_json::{Value, json};
use spirula_encoding::from_slice;
use spirula_maps::{FsMap, MdsMap, mds_state as state};
use spirula_messages::ceph::{MMdsBeacon, MMdsMap, MdsHealth, MdsMetric};
use spirula_messages::{Body, Message};
use spirula_mon::{MonEffect, MonEvent, Peer};
use spirula_types::{EntityAddr, EntityType};

/// Metadata servers as a test plays them.
pub struct Servers {
    pub c: Cluster,
    pub all: Vec<Server>,
    next: u64,
}

#[derive(Clone)]
pub struct Server {
    name: String,
    pub gid: u64,
    pub conn: u64,
    pub state: i32,
    epoch: u32,
    pub seq: u64,
    pub alive: bool,
    /// It said of a rank that it was to stop that it has: what it held is written, and it needs no
    /// fence.
    left: bool,
}

impl Server {
    pub fn name(&self) -> String {
        self.name.clone()
    }

    pub fn beacon(&mut self, state: i32) -> MMdsBeacon {
        self.seq += 1;
        MMdsBeacon {
            epoch: self.epoch.into(),
            fsid: FSID,
            gid: self.gid,
            state,
            seq: self.seq,
            name: self.name.clone(),
            facts: [("hostname".to_owned(), "h".to_owned())].into(),
            features: 1,
            compat: spirula_encoding::to_vec(&spirula_maps::CompatSet::mds_default()).into(),
            ..MMdsBeacon::default()
        }
    }

    /// The state it goes on to by itself.
    fn next_state(&self) -> i32 {
        match self.state {
            state::CREATING | state::STARTING | state::REJOIN | state::CLIENTREPLAY => {
                state::ACTIVE
            }
            state::REPLAY | state::RESOLVE => state::RECONNECT,
            state::RECONNECT => state::REJOIN,
            state::STOPPING => state::STOPPED,
            other => other,
        }
    }

    /// Does what the maps and echoes among `sent` say; true if there was an echo of its last
    /// beacon.
    fn read(&mut self, sent: &[(u64, Message)]) -> bool {
        let mut echoed = false;
        for m in sent.iter().filter(|(c, _)| *c == self.conn).map(|(_, m)| m) {
            if let Ok(b) = MMdsBeacon::from_message(m) {
                echoed |= b.seq == self.seq;
            }
            let Ok(m) = MMdsMap::from_message(m) else { continue };
            let map: MdsMap = from_slice(&m.mdsmap).unwrap();
            self.epoch = map.epoch;
            match map.mds_info.get(&self.gid) {
                Some(info) => self.state = info.state,
                None if self.state != state::BOOT => self.alive = false,
                None => {}
            }
        }
        echoed
    }
}

impl Servers {
    pub fn new() -> Self {
        let mut c = Cluster::up(3);
        for pool in ["meta", "more"] {
            c.ok(&json!({"prefix": "osd pool create", "pool": pool, "pg_num": 8}).to_string());
        }
        Self { c, all: Vec::new(), next: 0 }
    }

    pub fn fs(&self) -> &FsMap {
        &self.c.mon.state().fsmap
    }

    pub fn fs_new(&mut self) {
        self.c
            .ok(&json!({"prefix": "fs new", "fs_name": "fs", "metadata": "meta", "data": "more"})
                .to_string());
        self.sync();
    }

    /// Those who live read what was sent to them while a command was run.
    pub fn sync(&mut self) {
        let map = self.c.mon.state().fsmap.clone();
        for s in self.all.iter_mut().filter(|s| s.alive) {
            match (map.info(s.gid), map.fs_of(s.gid)) {
                (Some(info), Some(fs)) => (s.state, s.epoch) = (info.state, fs.mds_map.epoch),
                (Some(info), None) => (s.state, s.epoch) = (info.state, map.standby_epochs[&s.gid]),
                (None, _) => s.alive = false,
            }
        }
    }

    pub fn start(&mut self, name: &str) -> usize {
        let conn = 1 << 40 | self.next;
        self.next += 1;
        let global_id = self.c.mon.new_global_id().unwrap();
        let features = spirula_types::features::PACIFIC;
        let addrs = addr(7000 + self.next as u16);
        let peer = Peer { kind: EntityType::Mds, id: name.into(), global_id, addrs, features };
        self.c.event(MonEvent::SessionOpened { conn, peer });
        let mut s = Server {
            name: name.into(),
            gid: global_id,
            conn,
            state: state::BOOT,
            epoch: 0,
            seq: 0,
            alive: true,
            left: false,
        };
        let sent = self.c.subscribe(conn, "mdsmap", 0, false);
        s.read(&sent.into_iter().map(|m| (conn, m)).collect::<Vec<_>>());
        self.all.push(s);
        let i = self.all.len() - 1;
        assert!(self.say(i, state::BOOT), "the boot of {name} is echoed");
        i
    }

    /// One says so; everybody reads what is sent. True if it came back.
    pub fn say(&mut self, i: usize, wish: i32) -> bool {
        self.all[i].left |= self.all[i].state == state::STOPPING && wish == state::STOPPED;
        let (b, conn) = (self.all[i].beacon(wish), self.all[i].conn);
        let sent = self.c.send(conn, b.into_message(0));
        let mut echoed = false;
        for (j, s) in self.all.iter_mut().enumerate().filter(|(_, s)| s.alive) {
            let e = s.read(&sent);
            echoed |= j == i && e;
        }
        echoed
    }

    /// For so many seconds those who live say so each second, and go on where they may.
    pub fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.sync();
            for i in 0..self.all.len() {
                if self.all[i].alive {
                    let wish = self.all[i].next_state();
                    self.say(i, wish);
                }
            }
            let sent = self.c.tick(1);
            for s in self.all.iter_mut().filter(|s| s.alive) {
                s.read(&sent);
            }
        }
    }

    pub fn state_of(&self, rank: i32) -> Option<(String, i32)> {
        let m = &self.fs().by_name("fs")?.mds_map;
        m.of_rank(rank).map(|i| (i.name.clone(), i.state))
    }

    fn set(&mut self, var: &str, val: &str) {
        self.c
            .ok(&json!({"prefix": "fs set", "fs_name": "fs", "var": var, "val": val}).to_string());
        self.sync();
    }

    fn health(&mut self) -> Vec<String> {
        let h = self.c.json(r#"{"prefix": "health", "detail": "detail"}"#);
        let codes = h["checks"].as_object().unwrap().keys().cloned();
        codes.filter(|c| c.starts_with("MDS_") || c.starts_with("FS_")).collect()
    }
}

/// A new file system gets its rank from a standby, its pools say whose they are, and clients hear
/// of it.
#[test]
fn a_new_file_system_is_served_by_a_standby() {
    let mut s = Servers::new();
    let (a, _) = (s.start("a"), s.start("b"));
    assert_eq!(s.all[a].state, state::STANDBY);
    let client = s.c.open(EntityType::Client, "x");
    assert_eq!(s.c.subscribe(client, "mdsmap", 0, false).len(), 1, "an empty one");
    s.fs_new();
    assert_eq!(s.state_of(0), Some(("a".into(), state::CREATING)));
    let map = &s.c.mon.state().osdmap;
    let pool = |n: &str| &map.pools[&map.pool_by_name(n).unwrap()].application_metadata["cephfs"];
    assert_eq!((&*pool("meta")["metadata"], &*pool("more")["data"]), ("fs", "fs"));
    s.run(3);
    assert_eq!(s.state_of(0), Some(("a".into(), state::ACTIVE)));
    assert!(s.health().is_empty());
    let status = s.c.ok(r#"{"prefix": "status"}"#);
    assert!(status.contains("    mds: 1/1 daemons up, 1 standby\n"), "{status}");
    assert!(status.contains("    volumes: 1/1 healthy\n"), "{status}");
    assert_eq!(s.c.ok(r#"{"prefix": "mds stat"}"#), "fs:1 {0=a=up:active} 1 up:standby\n");
    let m = &s.fs().by_name("fs").unwrap().mds_map;
    assert_eq!(m.standby_count_wanted, 1, "there was a standby, so one is missed");
}

/// Who is silent for the grace is replaced, and fenced in the commit that takes its rank away; the
/// map says from when on.
#[test]
fn a_silent_server_is_fenced_and_replaced() {
    let mut s = Servers::new();
    let (a, b) = (s.start("a"), s.start("b"));
    s.fs_new();
    s.run(3);
    s.all[a].alive = false;
    s.run(13);
    assert_eq!(s.state_of(0), Some(("a".into(), state::ACTIVE)), "not before the grace is over");
    let before = s.c.mon.state().osdmap.epoch;
    s.run(3);
    assert_eq!(s.state_of(0).unwrap().0, "b");
    let m = s.fs().by_name("fs").unwrap().mds_map.clone();
    let epoch = m.last_failure_osd_epoch;
    assert!(epoch > before && epoch <= s.c.mon.state().osdmap.epoch);
    let fenced = &s.c.mon.state().osdmap_at(epoch).unwrap().blocklist.clone();
    assert!(
        fenced.contains_key(&fenced_as(addr(7001).0[0])),
        "the former one cannot write in the epoch that the next one waits for"
    );
    assert!(
        !s.c.mon
            .state()
            .osdmap_at(epoch - 1)
            .unwrap()
            .blocklist
            .contains_key(&fenced_as(addr(7001).0[0]))
    );
    s.run(4);
    assert_eq!((s.state_of(0), s.all[b].state), (Some(("b".into(), state::ACTIVE)), state::ACTIVE));
    assert_eq!(s.health(), ["MDS_INSUFFICIENT_STANDBY"]);
    // The first speaks again: it is told to start anew.
    s.all[a].alive = true;
    s.say(a, state::ACTIVE);
    assert!(!s.all[a].alive, "it has seen a map without it");
    s.start("a");
    s.run(1);
    assert!(s.health().is_empty());
}

/// What is not agreed on is not said: neither a map nor an echo leaves before the write is durable.
#[test]
fn nobody_hears_of_a_map_before_it_is_agreed_on() {
    let mut s = Servers::new();
    let a = s.start("a");
    s.fs_new();
    let (b, conn) = (s.all[a].beacon(state::ACTIVE), s.all[a].conn);
    let held = s.c.held(MonEvent::Message { conn, message: b.into_message(0) });
    let said = |out: &[MonEffect]| out.iter().any(|e| matches!(e, MonEffect::Send(..)));
    assert!(!said(&held) && held.iter().any(|e| matches!(e, MonEffect::Persist(_))), "{held:?}");
    let sent = s.c.release(held, &mut |_| {});
    let kinds: Vec<u16> = sent.iter().filter(|(c, _)| *c == conn).map(|(_, m)| m.kind).collect();
    assert_eq!(kinds, [MMdsMap::KIND, MMdsBeacon::KIND], "the map first");
}

/// The grace begins anew with a monitor that starts or leads: healthy servers keep their ranks, and
/// states are not lost.
#[test]
fn another_leader_fails_nobody_over() {
    let mut s = Servers::new();
    s.start("a");
    s.start("b");
    s.fs_new();
    s.run(3);
    let before = s.fs().clone();
    s.c.now.sec += 3600;
    let mut again = s.c.restarted();
    for _ in 0..10 {
        again.tick(1);
    }
    assert_eq!(*again.mon.state().fsmap, before);
}

/// Time in which the monitor stood still is nobody's silence.
#[test]
fn a_monitor_that_stood_still_fails_nobody_over() {
    let mut s = Servers::new();
    s.start("a");
    s.start("b");
    s.fs_new();
    s.run(3);
    s.c.now.sec += 60;
    s.run(1);
    assert_eq!(s.state_of(0), Some(("a".into(), state::ACTIVE)));
    assert_eq!(s.fs().standby_daemons.len(), 1);
}

/// With nobody to take it over, a rank stays with its server, which is called laggy, until it
/// speaks again.
#[test]
fn a_server_that_nobody_can_replace_keeps_its_rank() {
    let mut s = Servers::new();
    let a = s.start("a");
    s.fs_new();
    s.run(2);
    s.all[a].alive = false;
    s.run(20);
    assert_eq!(s.c.ok(r#"{"prefix": "mds stat"}"#), "fs:1 {0=a=up:active(laggy or crashed)}\n");
    s.all[a].alive = true;
    s.run(2);
    assert_eq!(s.c.ok(r#"{"prefix": "mds stat"}"#), "fs:1 {0=a=up:active}\n");
    // A standby that comes meanwhile takes it over at once.
    s.all[a].alive = false;
    s.run(16);
    s.start("b");
    s.run(2);
    assert_eq!(s.state_of(0).unwrap().0, "b");
}

/// Ranks grow one by one with `max_mds`, and shrink by stopping, which the servers confirm.
#[test]
fn ranks_follow_max_mds() {
    let mut s = Servers::new();
    for name in ["a", "b", "c"] {
        s.start(name);
    }
    s.fs_new();
    s.run(3);
    s.set("max_mds", "3");
    s.run(6);
    let ranks = |s: &Servers| s.fs().by_name("fs").unwrap().mds_map.up.len();
    assert_eq!(ranks(&s), 3);
    s.set("max_mds", "1");
    s.run(6);
    assert_eq!(ranks(&s), 1);
    let m = s.fs().by_name("fs").unwrap().mds_map.clone();
    assert_eq!(
        (m.in_ranks.into_iter().collect::<Vec<_>>(), m.stopped.into_iter().collect::<Vec<_>>()),
        (vec![0], vec![1, 2])
    );
    // A stopped rank is started, not made.
    s.start("d");
    s.set("max_mds", "2");
    assert_eq!(s.state_of(1).unwrap().1, state::STARTING);
}

/// Standbys follow active servers where that is allowed, and take over from there.
#[test]
fn followers_take_over() {
    let mut s = Servers::new();
    let a = s.start("a");
    s.start("b");
    s.start("c");
    s.fs_new();
    s.run(3);
    s.set("allow_standby_replay", "true");
    s.run(1);
    let follower =
        s.all.iter().find(|x| x.state == state::STANDBY_REPLAY).map(|x| x.name.clone()).unwrap();
    assert!(s.c.ok(r#"{"prefix": "status"}"#).contains("1/1 daemons up, 1 standby, 1 hot standby"));
    s.all[a].alive = false;
    s.run(20);
    assert_eq!(s.state_of(0), Some((follower, state::ACTIVE)));
}

/// A damaged rank is given to nobody until somebody says that it is repaired.
#[test]
fn a_damaged_rank_waits_for_a_word() {
    let mut s = Servers::new();
    let a = s.start("a");
    s.start("b");
    s.fs_new();
    s.run(3);
    s.say(a, state::DAMAGED);
    s.run(3);
    assert_eq!(s.state_of(0), None);
    assert_eq!(s.health(), ["FS_DEGRADED", "MDS_ALL_DOWN", "MDS_DAMAGE"]);
    s.c.ok(r#"{"prefix": "mds repaired", "role": "fs:0"}"#);
    s.run(4);
    assert_eq!(s.state_of(0), Some(("b".into(), state::ACTIVE)));
}

/// A wish of one that has not seen the newest map, or that may not be, changes nothing; a name of
/// another is not heard.
#[test]
fn wishes_out_of_turn_change_nothing() {
    let mut s = Servers::new();
    let (a, b) = (s.start("a"), s.start("b"));
    s.fs_new();
    let epoch = s.all[a].epoch;
    s.all[a].epoch = epoch - 1;
    assert!(s.say(a, state::ACTIVE), "echoed all the same");
    assert_eq!(s.state_of(0).unwrap().1, state::CREATING);
    s.all[a].epoch = epoch;
    s.say(a, state::RESOLVE);
    assert_eq!(s.state_of(0).unwrap().1, state::CREATING);
    s.say(b, state::ACTIVE);
    assert_eq!(s.all[b].state, state::STANDBY);
    let gid = s.all[b].gid;
    s.all[b].gid = s.all[a].gid;
    assert!(!s.say(b, state::ACTIVE), "in another's name");
    s.all[b].gid = gid;
    s.all[b].name = "a".into();
    assert!(!s.say(b, state::ACTIVE));
    assert_eq!(s.state_of(0).unwrap().1, state::CREATING);
}

/// One that starts again under its name takes the place of its former self, whose address is
/// fenced.
#[test]
fn a_server_that_starts_again_replaces_itself() {
    let mut s = Servers::new();
    let a = s.start("a");
    s.fs_new();
    s.run(2);
    s.all[a].alive = false;
    s.start("a");
    assert_eq!(s.state_of(0), Some(("a".into(), state::REPLAY)));
    assert!(s.c.mon.state().osdmap.blocklist.contains_key(&fenced_as(addr(7001).0[0])));
    s.run(4);
    assert_eq!(s.state_of(0), Some(("a".into(), state::ACTIVE)));
    assert_eq!(s.fs().mds_roles.len(), 1);
    assert_eq!(s.c.mon.state().mds_metadata.len(), 1);
}

/// What a server finds wrong is health of the cluster, until it says no more.
#[test]
fn what_servers_find_wrong_is_health() {
    let mut s = Servers::new();
    let a = s.start("a");
    s.fs_new();
    s.run(2);
    let metric = MdsMetric {
        kind: 10,
        severity: 1,
        message: "3 slow requests are blocked > 30 secs".into(),
        metadata: [].into(),
    };
    let mut b = s.all[a].beacon(state::ACTIVE);
    b.health = MdsHealth { metrics: vec![metric] };
    s.c.send(s.all[a].conn, b.into_message(0));
    let text = s.c.ok(r#"{"prefix": "health", "detail": "detail"}"#);
    assert!(text.contains("MDS_SLOW_REQUEST: 1 MDSs report slow requests"), "{text}");
    assert!(text.contains("    mds.a(mds.0): 3 slow requests are blocked > 30 secs"), "{text}");
    let mut again = s.c.restarted();
    assert!(again.ok(r#"{"prefix": "health"}"#).contains("slow requests"));
    s.say(a, state::ACTIVE);
    assert!(s.health().is_empty());
}

/// `fs fail`, `fs rm`, pools in use.
#[test]
fn a_file_system_goes_only_when_it_is_failed() {
    let mut s = Servers::new();
    s.start("a");
    s.fs_new();
    s.run(2);
    let refused = |s: &mut Servers, cmd: &Value| s.c.command(&cmd.to_string()).0;
    s.c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_allow_pool_delete", "value": "true"}"#);
    let rm_pool = json!({"prefix": "osd pool rm", "pool": "meta", "pool2": "meta", "yes_i_really_really_mean_it": true});
    assert_eq!(refused(&mut s, &rm_pool), -16);
    let rm = json!({"prefix": "fs rm", "fs_name": "fs", "yes_i_really_mean_it": true});
    assert_eq!(refused(&mut s, &rm), -22);
    let (_, said, _) = s.c.command(r#"{"prefix": "fs fail", "fs_name": "fs"}"#);
    assert_eq!(
        said,
        "fs marked not joinable; MDS cannot join the cluster. All MDS ranks marked failed."
    );
    assert_eq!(s.health(), ["FS_DEGRADED", "FS_WITH_FAILED_MDS", "MDS_ALL_DOWN"]);
    s.start("b");
    s.run(2);
    assert_eq!(s.state_of(0), None, "nobody may join");
    assert!(
        s.c.ok(r#"{"prefix": "status"}"#).contains("mds: 0/1 daemons up (1 failed), 1 standby")
    );
    assert_eq!(refused(&mut s, &rm), 0);
    assert_eq!(refused(&mut s, &rm), 0, "what is not there is removed");
    assert!(s.fs().filesystems.is_empty());
    assert_eq!(refused(&mut s, &rm_pool), 0);
}

/// Capabilities that `fs authorize` gives, and that it changes none.
#[test]
fn clients_are_authorized_for_directories() {
    let mut s = Servers::new();
    s.fs_new();
    let cmd = |caps: &[&str]| {
        json!({"prefix": "fs authorize", "filesystem": "fs", "entity": "client.foo", "caps": caps})
            .to_string()
    };
    let first = s.c.ok(&cmd(&["/", "rw", "/dir", "rwps"]));
    assert!(first.starts_with("[client.foo]\n\tkey = "), "{first}");
    assert_eq!(s.c.ok(&cmd(&["/", "rw", "/dir", "rwps"])), first);
    assert_eq!(s.c.command(&cmd(&["/", "r"])).0, -22);
    let got = s.c.ok(r#"{"prefix": "auth get", "entity": "client.foo"}"#);
    assert!(
        got.contains("caps mds = \"allow rw fsname=fs, allow rwps fsname=fs path=/dir\""),
        "{got}"
    );
    assert!(
        got.contains("caps mon = \"allow r fsname=fs\"")
            && got.contains("caps osd = \"allow rw tag cephfs data=fs\"")
    );
}

/// A rank that has a server, or waits for nobody, is not given up by a word that is about failed
/// ones: the answer says so.
#[test]
fn only_a_failed_rank_is_removed_as_failed() {
    let mut s = Servers::new();
    s.start("a");
    s.fs_new();
    s.run(3);
    let rmfailed = r#"{"prefix": "mds rmfailed", "role": "fs:0", "yes_i_really_mean_it": true}"#;
    let before = s.fs().clone();
    let (ret, rs, _) = s.c.command(rmfailed);
    assert!(ret == -22 && rs.contains("is not failed"), "{ret} {rs}");
    assert_eq!(*s.fs(), before, "and nothing has changed");
    s.c.ok(r#"{"prefix": "fs fail", "fs_name": "fs"}"#);
    s.c.ok(rmfailed);
    let m = &s.fs().by_name("fs").unwrap().mds_map;
    assert!(m.failed.is_empty() && m.in_ranks.is_empty() && m.stopped.contains(&0), "{m:?}");
}

/// What is done from time to time and is not possible is in health with its reason, until it is.
/// Before, only the log had it.
#[test]
fn housekeeping_that_is_refused_is_in_health() {
    let mut s = Servers::new();
    s.start("a");
    s.fs_new();
    s.run(3);
    let health = |s: &Servers| {
        spirula_mon::report::health(&s.c.mon.view(), true, spirula_format::Format::Plain)
    };
    let set = |s: &mut Servers, edit: &dyn Fn(&mut MdsMap)| {
        let mut state = s.c.mon.state().clone();
        edit(&mut std::sync::Arc::make_mut(&mut state.fsmap).filesystems[0].mds_map);
        let stored = &mut s.c.stored;
        let last = stored.entries.last().expect("an entry");
        (stored.snapshot.index, stored.snapshot.term) = (last.index, last.term);
        stored.snapshot.data = state.to_bytes();
        stored.entries.clear();
        s.c = s.c.restarted();
    };
    // A map as a defect could leave it: a rank waits for a server, and is not in use.
    set(&mut s, &|m| assert!(m.failed.insert(7)));
    s.c.tick(3);
    assert!(!health(&s).contains("MON_TASK_REFUSED"), "nothing is to be done yet");
    (0..60).for_each(|_| drop(s.c.tick(1)));
    let text = health(&s);
    assert!(text.contains("MON_TASK_REFUSED"), "{text}");
    assert!(
        text.contains("which metadata server has which rank: a rank of fs is used that is not in"),
        "{text}"
    );
    // The rest is done all the same: it is in the cluster log, which is housekeeping, too.
    let log = s.c.ok(r#"{"prefix": "log last"}"#);
    assert!(log.contains("MON_TASK_REFUSED"), "{log}");
    s.c.ok(r#"{"prefix": "config-key set", "key": "k", "val": "v"}"#);
    set(&mut s, &|m| assert!(m.failed.remove(&7)));
    (0..60).for_each(|_| drop(s.c.tick(1)));
    assert!(!health(&s).contains("MON_TASK_REFUSED"), "{}", health(&s));
}

#[derive(Clone, Debug)]
enum Act {
    Start(u8),
    Die(u8),
    Revive(u8),
    Say(u8, i32),
    Run(u8),
    Max(u8),
    Replay(bool),
    Joinable(bool),
    Fail(u8),
    FsFail,
    Repaired,
    Rmfailed(u8),
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let states =
        prop::sample::select(vec![0, -1, -4, -5, -6, -7, -8, 8, 9, 10, 11, 12, 13, 14, 15]);
    prop_oneof![
        3 => (0..5u8).prop_map(Act::Start),
        2 => (0..8u8).prop_map(Act::Die),
        1 => (0..8u8).prop_map(Act::Revive),
        3 => (0..8u8, states).prop_map(|(s, w)| Act::Say(s, w)),
        4 => (1..20u8).prop_map(Act::Run),
        2 => (1..4u8).prop_map(Act::Max),
        1 => any::<bool>().prop_map(Act::Replay),
        1 => any::<bool>().prop_map(Act::Joinable),
        1 => (0..8u8).prop_map(Act::Fail),
        1 => Just(Act::FsFail),
        1 => Just(Act::Repaired),
        1 => (0..3u8).prop_map(Act::Rmfailed),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, a rank is with one server at most, epochs only grow, and who lost a rank
    /// is fenced; when all is well again, all ranks are served.
    #[test]
    fn prop_a_rank_is_with_one_server_at_most(acts in prop::collection::vec(act(), 1..40)) {
        let mut s = Servers::new();
        s.start("a");
        s.fs_new();
        let mut epoch = s.fs().epoch;
        let mut held: Vec<(u64, spirula_types::AddrVec)> = Vec::new();
        for act in acts {
            s.sync();
            let n = s.all.len();
            let pick = |i: u8| usize::from(i) % n;
            match act {
                Act::Start(i) => { let name = ["a", "b", "c", "d", "e"][usize::from(i)];
                    s.all.iter_mut().filter(|x| x.name == name).for_each(|x| x.alive = false);
                    s.start(name); }
                Act::Die(i) => { let i = pick(i); s.all[i].alive = false; }
                Act::Revive(i) => { let i = pick(i); if s.fs().info(s.all[i].gid).is_some() { s.all[i].alive = true; } }
                Act::Say(i, wish) => { let i = pick(i); if s.all[i].alive { s.say(i, wish); } }
                Act::Run(n) => s.run(n.into()),
                Act::Max(n) => s.set("max_mds", &n.to_string()),
                Act::Replay(on) => s.set("allow_standby_replay", &on.to_string()),
                Act::Joinable(on) => s.set("joinable", &on.to_string()),
                Act::Fail(i) => { let gid = s.all[pick(i)].gid;
                    s.c.ok(&json!({"prefix": "mds fail", "role_or_gid": gid.to_string()}).to_string()); }
                Act::FsFail => drop(s.c.ok(r#"{"prefix": "fs fail", "fs_name": "fs"}"#)),
                Act::Repaired => drop(s.c.command(r#"{"prefix": "mds repaired", "role": "fs:0"}"#)),
                Act::Rmfailed(r) => drop(s.c.command(&json!({"prefix": "mds rmfailed", "role": format!("fs:{r}"), "yes_i_really_mean_it": true}).to_string())),
                Act::Restart => { s.c = s.c.restarted(); s.all.iter_mut().for_each(|x| x.alive = false); }
            }
            let map = s.fs().clone();
            prop_assert_eq!(spirula_mon::check_fsmap(&map), Ok(()));
            prop_assert!(map.epoch >= epoch);
            epoch = map.epoch;
            let now: Vec<_> = map.servers().filter(|i| i.holds_rank()).map(|i| (i.gid, i.addrs.clone())).collect();
            for (gid, addrs) in &held {
                let stopped = !now.iter().any(|(g, _)| g == gid);
                let clean = s.all.iter().any(|x| x.gid == *gid && x.left);
                prop_assert!(!stopped || clean || s.c.mon.state().osdmap.blocklist.contains_key(&fenced_as(addrs.0[0])), "{gid} lost its rank and may write");
            }
            held = now;
        }
        // All is well: as many servers as are wanted, and nothing is damaged.
        s.c.command(r#"{"prefix": "mds repaired", "role": "fs:0"}"#);
        for r in 1..3 { s.c.command(&json!({"prefix": "mds repaired", "role": format!("fs:{r}")}).to_string()); }
        s.set("max_mds", "2");
        for name in ["v", "w", "x", "y"] { s.start(name); }
        s.run(60);
        let m = s.fs().by_name("fs").unwrap().mds_map.clone();
        prop_assert_eq!((m.is_degraded(), m.in_ranks.len(), m.in_state(state::ACTIVE).count()), (false, 2, 2), "{:?}", m);
    }
}

/// An address as Ceph's own code looks it up among the fenced ones.
fn fenced_as(addr: EntityAddr) -> EntityAddr {
    EntityAddr { kind: EntityAddr::KIND_ANY, ..addr }
}
