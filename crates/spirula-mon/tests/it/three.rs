//! Three monitors on instant stores and instant links.

use crate::harness::{Cluster, FSID, addr, params};
use spirula_encoding::UTime;
use spirula_messages::ceph::{
    MCommand, MCommandReply, MMonCommand, MMonCommandAck, MMonSubscribe, MPoolOp, MPoolOpReply,
    Subscription,
};
use spirula_messages::cluster::control::{
    MgrBeacon, MgrRan, MgrRun, OsdBeacon, OsdFailureReport, Since,
};
use spirula_messages::cluster::quorum::{MonScrub, MonScrubbed, MonTime, QuorumFrame};
use spirula_messages::{Body, Message};
use spirula_mon::image::{Identity, Stored};
use spirula_mon::{MkfsParams, Mon, MonEffect, MonEvent, NewMon, Now, Opening, Peer};
use spirula_quorum::HardState;
use spirula_types::{AddrVec, EntityType, Uuid};
use std::collections::VecDeque;
use std::time::Duration;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn addr_of(mon: usize) -> AddrVec {
    addr(3300 + mon as u16)
}

struct Three {
    mons: Vec<Option<Mon>>,
    now: UTime,
    /// Seconds by which each one's wall clock was set.
    set_by: [u32; 3],
    /// What it would take to agree is lost on its way.
    cut: bool,
    /// Times of the leader's that others were told.
    times: usize,
    /// Frames of this many bytes and more are lost on their way, as if others refused them.
    long: Option<usize>,
    /// This monitor is cut off in the moment in which it is a member no more.
    cut_when_out: Option<usize>,
    /// What others say of scrubs is lost on its way.
    mute: bool,
    /// Nothing reaches this monitor from the others, nor them from it.
    apart: Option<usize>,
    /// Connections that monitors closed.
    closed: Vec<(usize, u64)>,
    /// A monitor that stops.
    stopped: Vec<(usize, String)>,
    /// The entry that the last scrub named.
    scrubbed: u64,
    /// What clients were sent: by which monitor, over which connection.
    sent: Vec<(usize, u64, Message)>,
    /// What each one's disk has.
    stored: Vec<Stored>,
    /// Bytes of the largest entry that any was given.
    largest: usize,
    /// Disks take no writes, which wait.
    stuck: bool,
    /// The writes.
    waiting: VecDeque<(usize, MonEffect)>,
}

fn uuid_of(mon: usize) -> Uuid {
    Uuid([5 + mon as u8; 16])
}

/// A monitor started on what its disk has, for the `boot`th time of all.
fn open(stored: &Stored, mon: usize, now: UTime, boot: u64) -> Mon {
    let mut n = mon as u8;
    let entropy = Box::new(move |out: &mut [u8]| {
        out.iter_mut().for_each(|b| {
            n = n.wrapping_mul(31).wrapping_add(7);
            *b = n;
        });
    });
    let (stored, name, addrs) = (stored.clone(), NAMES[mon].into(), addr_of(mon));
    Mon::open(Opening { stored, name, addrs, seeds: vec![], now, boot, entropy }).unwrap()
}

impl Three {
    fn new() -> Self {
        let now = UTime { sec: 1_795_000_000, nsec: 0 };
        let mons = (0..3)
            .map(|i| NewMon { name: NAMES[i].into(), addrs: addr_of(i), uuid: uuid_of(i) })
            .collect();
        let snapshot = spirula_mon::mkfs(&MkfsParams { mons, ..params(3) }, now).unwrap();
        let stored: Vec<Stored> = (0..3)
            .map(|i| Stored {
                identity: Identity { fsid: FSID, uuid: uuid_of(i), member: i as u64 + 1 },
                hard: HardState { term: 1, vote: 0, commit: 1 },
                snapshot: snapshot.clone(),
                entries: vec![],
                seq: 0,
                log_stale: false,
                log_end: 0,
                marked: false,
            })
            .collect();
        let mons =
            stored.iter().enumerate().map(|(i, s)| Some(open(s, i, now, i as u64 + 1))).collect();
        let mut me = Self {
            mons,
            now,
            set_by: [0; 3],
            cut: false,
            long: None,
            times: 0,
            cut_when_out: None,
            mute: false,
            apart: None,
            closed: Vec::new(),
            stopped: Vec::new(),
            scrubbed: 0,
            sent: Vec::new(),
            stored,
            largest: 0,
            stuck: false,
            waiting: VecDeque::new(),
        };
        let mut todo = VecDeque::new();
        for (i, mon) in me.mons.iter_mut().enumerate() {
            let mut out = Vec::new();
            mon.as_mut().unwrap().start(now, &mut out);
            todo.extend(out.into_iter().map(|e| (i, e)));
        }
        me.settle(todo);
        for i in 0..3 {
            (0..3).filter(|o| *o != i).for_each(|other| me.met(i, other));
        }
        me
    }

    /// Three that have agreed on some entries; the leader, and one that does not lead.
    fn with_an_odd_one() -> (Self, usize, usize) {
        let mut c = Self::new();
        let leader = c.until_led();
        (0..30).for_each(|_| c.tick());
        for n in 0..5 {
            c.command(
                leader,
                &format!(r#"{{"prefix": "config-key set", "key": "{n}", "val": "x"}}"#),
            );
            c.tick();
        }
        (0..30).for_each(|_| c.tick());
        (c, leader, (leader == 0).into())
    }

    /// The entries on a monitor's disk are of another history: all committed, in this term.
    fn rewrite(&mut self, mon: usize, term: u64) {
        let disk = &mut self.stored[mon];
        disk.hard.commit = disk.entries.last().unwrap().index;
        disk.entries.iter_mut().for_each(|e| e.term = term);
    }

    /// A monitor has a connection of another.
    fn met(&mut self, mon: usize, other: usize) {
        let (id, features) = (NAMES[other].into(), spirula_types::features::PACIFIC);
        let peer =
            Peer { kind: EntityType::Mon, id, global_id: 0, addrs: addr_of(other), features };
        self.event(mon, MonEvent::SessionOpened { conn: 100 + other as u64, peer });
    }

    /// A monitor's process dies, and is started again on what its disk has.
    fn restart(&mut self, mon: usize) {
        let mut again = open(&self.stored[mon], mon, self.now, 10 + mon as u64);
        let mut out = Vec::new();
        again.start(Self::time(self.now, self.set_by[mon]), &mut out);
        self.mons[mon] = Some(again);
        self.settle(out.into_iter().map(|e| (mon, e)).collect());
        for other in (0..3).filter(|o| *o != mon) {
            self.event(other, MonEvent::SessionClosed { conn: 100 + mon as u64 });
            self.met(other, mon);
            self.met(mon, other);
        }
    }

    /// What a disk is given.
    fn write(&mut self, mon: usize, p: &spirula_quorum::Persist) {
        self.largest = p.entries.iter().map(|e| e.data.len()).chain([self.largest]).max().unwrap();
        let disk = &mut self.stored[mon];
        disk.hard = p.hard;
        if let Some(s) = &p.snapshot {
            disk.snapshot = s.clone();
            disk.entries.clear();
        }
        if let Some(first) = p.entries.first() {
            disk.entries.retain(|e| e.index < first.index);
        }
        disk.entries.extend(p.entries.iter().cloned());
    }

    /// Disks take what waited, and all that comes.
    fn unstick(&mut self) {
        self.stuck = false;
        let todo = std::mem::take(&mut self.waiting);
        self.settle(todo);
    }

    fn event(&mut self, mon: usize, e: MonEvent) {
        let mut out = Vec::new();
        if let Some(m) = &mut self.mons[mon] {
            m.handle(Self::time(self.now, self.set_by[mon]), e, &mut out);
        }
        self.settle(out.into_iter().map(|e| (mon, e)).collect());
    }

    fn settle(&mut self, mut todo: VecDeque<(usize, MonEffect)>) {
        while let Some((at, e)) = todo.pop_front() {
            let (to, event) = match e {
                MonEffect::Persist(p) if self.stuck => {
                    self.waiting.push_back((at, MonEffect::Persist(p)));
                    continue;
                }
                MonEffect::Persist(p) => {
                    self.write(at, &p);
                    (at, MonEvent::Persisted(p.number))
                }
                MonEffect::SendPeer(_, addrs, message) => {
                    if self.cut && message.kind == QuorumFrame::KIND {
                        continue;
                    }
                    if self.long.is_some_and(|n| {
                        message.kind == QuorumFrame::KIND && message.front.len() >= n
                    }) {
                        continue;
                    }
                    if self.mute && message.kind == MonScrubbed::KIND {
                        continue;
                    }
                    if message.kind == MonScrub::KIND {
                        self.scrubbed = MonScrub::from_message(&message).unwrap().index;
                    }
                    self.times += usize::from(message.kind == MonTime::KIND);
                    let to = (0..3).find(|i| addr_of(*i) == addrs).unwrap();
                    if self.apart.is_some_and(|a| a == at || a == to) {
                        continue;
                    }
                    (to, MonEvent::Message { conn: 100 + at as u64, message })
                }
                MonEffect::Send(conn, m) => {
                    self.sent.push((at, conn, m));
                    continue;
                }
                MonEffect::Close(conn) => {
                    self.closed.push((at, conn));
                    continue;
                }
                MonEffect::Stop(why) => {
                    self.stopped.push((at, why));
                    continue;
                }
                _ => continue,
            };
            let mut out = Vec::new();
            if let Some(m) = &mut self.mons[to] {
                m.handle(Self::time(self.now, self.set_by[to]), event, &mut out);
            }
            todo.extend(out.into_iter().map(|e| (to, e)));
            if self.cut_when_out == Some(to) && !self.has(to, to) {
                (self.cut_when_out, self.apart) = (None, Some(to));
            }
        }
    }

    /// Is that one a member, as this monitor knows the library's members?
    fn has(&self, mon: usize, member: usize) -> bool {
        let mon = self.mons[mon].as_ref();
        mon.and_then(Mon::node).is_some_and(|n| n.members().contains(member as u64 + 1))
    }

    /// The clocks of a monitor whose wall clock was set.
    fn time(now: UTime, set_by: u32) -> Now {
        Now {
            mono: Duration::from_nanos(now.as_nanos()),
            wall: UTime { sec: now.sec + set_by, ..now },
        }
    }

    fn until_led(&mut self) -> usize {
        loop {
            self.tick();
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
    }

    /// Somebody has a connection of a monitor's.
    fn open(&mut self, mon: usize, conn: u64, kind: EntityType, id: &str) {
        let features = spirula_types::features::PACIFIC;
        let peer = Peer { kind, id: id.into(), global_id: 9000 + conn, addrs: addr(0), features };
        self.event(mon, MonEvent::SessionOpened { conn, peer });
    }

    /// A client's command to a monitor.
    fn command(&mut self, mon: usize, cmd: &str) {
        let global_id = self.mons[mon].as_ref().unwrap().new_global_id().unwrap();
        let features = spirula_types::features::PACIFIC;
        let peer = Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id,
            addrs: addr(0),
            features,
        };
        self.event(mon, MonEvent::SessionOpened { conn: 7, peer });
        let ask = MMonCommand {
            version: 0,
            fsid: FSID,
            cmd: vec![cmd.to_owned()],
            input: bytes::Bytes::new(),
        };
        self.event(mon, MonEvent::Message { conn: 7, message: ask.into_message(1) });
    }

    /// A tenth of a second passes.
    fn tick(&mut self) {
        self.now = UTime::from_nanos(self.now.as_nanos() + 100_000_000);
        for i in 0..3 {
            self.event(i, MonEvent::Tick);
        }
    }

    fn leader(&self) -> Option<usize> {
        let by = |m: &Mon| NAMES.iter().position(|n| **n == m.view().quorum.leader);
        let told: Vec<_> = self.mons.iter().flatten().map(by).collect();
        told.iter().all(|l| *l == told[0]).then_some(told[0]).flatten()
    }
}

#[test]
fn what_a_monitor_forwards_to_a_new_leader_is_done_when_that_may_lead_and_not_seconds_later() {
    let mut c = Three::new();
    c.until_led();
    for _ in 0..30 {
        c.tick();
    }
    let old = c.leader().unwrap();
    // A client at each of the others asks while nobody leads.
    c.mons[old] = None;
    let others: Vec<usize> = (0..3).filter(|i| *i != old).collect();
    for &i in &others {
        c.command(i, &format!(r#"{{"prefix": "config-key set", "key": "{i}", "val": "x"}}"#));
    }
    c.sent.clear();
    let answered =
        |c: &Three, mon| c.sent.iter().any(|(m, _, s)| *m == mon && s.kind == MMonCommandAck::KIND);
    let mut led = None;
    for tick in 0..60 {
        c.tick();
        if c.leader().is_some_and(|l| l != old) {
            led.get_or_insert(tick);
        }
        if led.is_some_and(|at| tick > at) {
            break;
        }
    }
    assert!(led.is_some(), "nobody was elected");
    for i in others {
        assert!(answered(&c, i), "mon.{} was not answered when there was a leader", NAMES[i]);
    }
}

/// A monitor's store is one of another history: the entries that all have agreed on have other
/// terms in it. It is heard, and refuses them. It is in no quorum that is shown, whoever is asked,
/// and health says what to do.
#[test]
fn a_monitor_that_contradicts_the_others_is_not_in_the_quorum() {
    let (mut c, leader, odd) = Three::with_an_odd_one();
    let quorum = |c: &Three, mon: usize| c.mons[mon].as_ref().unwrap().view().quorum.names.clone();
    assert_eq!(quorum(&c, leader).len(), 3);
    // An older term, with which it is not elected.
    c.rewrite(odd, 1);
    c.restart(odd);
    (0..100).for_each(|_| c.tick());
    let now = c.leader().unwrap();
    assert_ne!(now, odd);
    let health = |c: &Three, mon: usize| {
        spirula_mon::report::health(
            &c.mons[mon].as_ref().unwrap().view(),
            true,
            spirula_format::Format::Plain,
        )
    };
    for mon in (0..3).filter(|i| *i != odd) {
        assert!(!quorum(&c, mon).contains(&NAMES[odd].to_owned()), "{:?}", quorum(&c, mon));
        let text = health(&c, mon);
        let way = format!("spirula mon rejoin --id {}", NAMES[odd]);
        assert!(text.contains("MON_CONTRADICTS") && text.contains(&way), "{text}");
        assert!(text.contains("1/3 mons down"), "{text}");
    }
    // The others agree on changes without it.
    c.sent.clear();
    c.command(now, r#"{"prefix": "config-key set", "key": "y", "val": "x"}"#);
    (0..10).for_each(|_| c.tick());
    assert!(c.sent.iter().any(|(mon, _, m)| *mon == now && m.kind == MMonCommandAck::KIND));
    assert!(health(&c, now).contains("1 monitor takes no part"));
    // Who hears no leader says nothing of it, nor does anybody once it is stopped.
    let third = (0..3).find(|i| ![odd, now].contains(i)).unwrap();
    c.apart = Some(third);
    (0..100).for_each(|_| c.tick());
    assert!(c.mons[third].as_ref().unwrap().view().quorum.contradicting.is_empty());
    c.apart = None;
    (0..100).for_each(|_| c.tick());
    assert!(health(&c, third).contains("MON_CONTRADICTS"));
    c.mons[odd] = None;
    (0..40).for_each(|_| c.tick());
    for mon in [now, third] {
        let text = health(&c, mon);
        assert!(!text.contains("MON_CONTRADICTS") && text.contains("1/3 mons down"), "{text}");
    }
}

/// As above, but with a newer term: the others elect the odd one, and refuse all that it wants
/// agreed on. They leave it, and then elect it no more.
#[test]
fn a_monitor_that_contradicts_the_others_does_not_stay_their_leader() {
    let (mut c, _, odd) = Three::with_an_odd_one();
    c.rewrite(odd, 50);
    c.stored[odd].hard.term = 50;
    (0..3).for_each(|mon| c.restart(mon));
    let follows = |c: &Three| {
        let view = |mon: usize| c.mons[mon].as_ref().unwrap().view().quorum.leader.clone();
        (0..3).filter(|mon| *mon != odd).map(view).collect::<Vec<_>>()
    };
    let mut of_odd = 0;
    for _ in 0..300 {
        c.tick();
        of_odd += u32::from(follows(&c) == [NAMES[odd], NAMES[odd]]);
    }
    assert!(of_odd > 0, "it was elected");
    let now = c.leader().expect("the others have a leader");
    assert_ne!(now, odd);
    for _ in 0..300 {
        c.tick();
        assert_eq!(follows(&c), [NAMES[now], NAMES[now]]);
    }
    c.sent.clear();
    c.command(now, r#"{"prefix": "config-key set", "key": "y", "val": "x"}"#);
    (0..10).for_each(|_| c.tick());
    assert!(c.sent.iter().any(|(mon, _, m)| *mon == now && m.kind == MMonCommandAck::KIND));
    assert!(c.mons[now].as_ref().unwrap().view().quorum.contradicting.contains_key(NAMES[odd]));
}

/// All of them run on older copies; each OSD tells one of them alone.
#[test]
fn every_monitor_knows_what_daemons_told_any_of_them_of_forgotten_maps() {
    let mut c = Three::new();
    let leader = c.until_led();
    let health = |c: &Three, mon: usize| {
        spirula_mon::report::health(
            &c.mons[mon].as_ref().unwrap().view(),
            true,
            spirula_format::Format::Plain,
        )
    };
    let told: Vec<usize> = (0..3).filter(|i| *i != leader).collect();
    for (osd, &mon) in told.iter().enumerate() {
        let (kind, features) = (EntityType::Osd, spirula_types::features::PACIFIC);
        let peer = Peer {
            kind,
            id: osd.to_string(),
            global_id: 0,
            addrs: addr(6800 + osd as u16),
            features,
        };
        c.event(mon, MonEvent::SessionOpened { conn: 7, peer });
        let what = vec![Subscription { what: "osdmap".into(), start: 1000, once: false }];
        let message = MMonSubscribe { what, hostname: String::new() }.into_message(1);
        c.event(mon, MonEvent::Message { conn: 7, message });
    }
    (0..70).for_each(|_| c.tick());
    for (mon, name) in NAMES.iter().enumerate() {
        let text = health(&c, mon);
        assert!(text.contains("MON_ROLLED_BACK"), "mon.{name}: {text}");
        assert!(
            (0..2).all(|osd| text.contains(&format!("osd.{osd} has OSD map 999"))),
            "mon.{name}: {text}"
        );
    }
}

/// The leader's clock is set, the others hear its time, and it dies before they agreed on what
/// follows from that, or after.
#[test]
fn a_fence_lasts_its_time_though_the_leader_dies_just_after_its_clock_was_set() {
    for cut in [false, true] {
        let mut c = Three::new();
        let old = c.until_led();
        (0..30).for_each(|_| c.tick());
        c.command(old, r#"{"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1", "expire": 600.0}"#);
        let told = c.times;
        while c.times == told {
            c.tick();
        }
        // The next time is told in the tick in which the clock is seen to be set.
        (0..19).for_each(|_| c.tick());
        let told = c.times;
        (c.set_by[old], c.cut) = (3600, cut);
        c.tick();
        assert!(c.times > told, "the others were not told");
        (c.mons[old], c.cut) = (None, false);
        while c.leader().is_none_or(|l| l == old) {
            c.tick();
        }
        let new = c.leader().unwrap();
        let fences = |c: &Three| c.mons[new].as_ref().unwrap().state().osdmap.blocklist.len();
        (0..5500).for_each(|_| c.tick());
        assert_eq!(fences(&c), 1, "cut {cut}: ended early");
        (0..1000).for_each(|_| c.tick());
        assert_eq!(fences(&c), 0, "cut {cut}: does not end");
    }
}

/// The monitor with its connection tells the leader, also one that leads only since then.
#[test]
fn the_leader_hears_from_another_monitor_of_an_osd_that_says_no_more_that_it_runs() {
    for dies in [false, true] {
        let mut c = Three::new();
        let old = c.until_led();
        // The target is connected to a monitor that will not lead, the others to the one that leads
        // then.
        let [next, peon] = [1, 2].map(|n| (old + n) % 3);
        let port = |osd: i32| 6800 + 10 * osd as u16;
        let conn = |osd: i32| 10 + osd as u64;
        let message = |c: &mut Three, mon, osd, message| {
            c.event(mon, MonEvent::Message { conn: conn(osd), message })
        };
        let mut led = if dies { next } else { old };
        let at = |osd, led| if osd == 2 { peon } else { led };
        for osd in 0..3 {
            let features = spirula_types::features::PACIFIC;
            let (id, global_id) = (osd.to_string(), 5000 + osd as u64);
            let peer = Peer { kind: EntityType::Osd, id, global_id, addrs: addr(0), features };
            // The others at whoever may lead.
            for mon in std::collections::BTreeSet::from([at(osd, led), at(osd, peon)]) {
                c.event(mon, MonEvent::SessionOpened { conn: conn(osd), peer: peer.clone() });
            }
            message(
                &mut c,
                at(osd, led),
                osd,
                Cluster::first_boot_message(osd, port(osd)).into_message(0),
            );
        }
        let up = |c: &Three, mon: usize| c.mons[mon].as_ref().unwrap().state().osdmap.is_up(2);
        let beat = |c: &mut Three, led, running: &[i32]| {
            c.tick();
            for osd in running {
                message(c, at(*osd, led), *osd, OsdBeacon { every_ms: 250 }.into_message(0));
            }
        };
        (0..10).for_each(|_| beat(&mut c, led, &[0, 1, 2]));
        assert!(up(&c, peon));
        (0..12).for_each(|_| beat(&mut c, led, &[0, 1]));
        if dies {
            c.mons[old] = None;
            while c.leader().is_none_or(|l| l == old) {
                beat(&mut c, led, &[0, 1]);
            }
            led = c.leader().unwrap();
        }
        let report = |reporter| OsdFailureReport {
            reporter,
            target: 2,
            target_public: addr(port(2)),
            epoch: 100,
            failed_for_ms: 1200,
            refused: false,
            gone: false,
            alive: false,
            waiting: 0,
            outside: Default::default(),
            patience_ms: Since(1000),
            unheard_ms: Since(1200),
        };
        message(&mut c, led, 0, report(0).into_message(0));
        assert!(up(&c, led));
        message(&mut c, led, 1, report(1).into_message(0));
        assert!(!up(&c, led), "dies {dies}");
    }
}

/// The client at one monitor, the manager at another, the leader a third; also where the leader
/// dies before the manager answered.
#[test]
fn a_command_of_the_managers_finds_it_at_whichever_monitor_it_is() {
    for dies in [false, true] {
        let mut c = Three::new();
        let old = c.until_led();
        (0..30).for_each(|_| c.tick());
        let [near, far] = [1, 2].map(|n| (old + n) % 3);
        let features = spirula_types::features::PACIFIC;
        let mgr = Peer {
            kind: EntityType::Mgr,
            id: "x".into(),
            global_id: 9000,
            addrs: addr(0),
            features,
        };
        c.event(far, MonEvent::SessionOpened { conn: 9, peer: mgr });
        let command =
            r#"{"sig": ["pg", "stat"], "help": "", "module": "pg", "perm": "r", "flags": 8}"#;
        let beacon =
            MgrBeacon { commands: vec![command.to_owned()], ..crate::harness::beacon(9000, "x") };
        c.event(far, MonEvent::Message { conn: 9, message: beacon.clone().into_message(0) });
        c.sent.clear();
        c.command(near, r#"{"prefix": "pg stat"}"#);
        let asked = |c: &Three| -> Vec<MgrRun> {
            let to_it = c.sent.iter().filter(|(mon, conn, _)| (*mon, *conn) == (far, 9));
            to_it.filter_map(|(_, _, m)| MgrRun::from_message(m).ok()).collect()
        };
        let mut runs = asked(&c);
        assert_eq!(runs.len(), 1);
        if dies {
            c.mons[old] = None;
            for _ in 0..100 {
                c.tick();
                c.event(
                    far,
                    MonEvent::Message { conn: 9, message: beacon.clone().into_message(0) },
                );
            }
            runs = asked(&c);
            assert!(runs.len() > 1, "whoever leads now asks, too");
        }
        let run = runs.pop().unwrap();
        let ran = MgrRan {
            boot: run.boot,
            id: run.id,
            result: 0,
            status: String::new(),
            output: "out".into(),
        };
        c.event(far, MonEvent::Message { conn: 9, message: ran.into_message(0) });
        let acks = c
            .sent
            .iter()
            .filter(|(mon, conn, m)| (*mon, *conn) == (near, 7) && m.kind == MMonCommandAck::KIND);
        let outputs: Vec<_> =
            acks.map(|(_, _, m)| MMonCommandAck::from_message(m).unwrap().output).collect();
        assert_eq!(outputs, ["out"], "the leader died: {dies}");
    }
}

/// The numbers of snapshots that a client asks for, one after the other and several at once, at a
/// monitor that does not lead, while leaders die before, at and after every step of it.
#[test]
fn no_number_of_a_snapshot_is_given_twice_though_leaders_die() {
    for (dies_after, at_once) in (0..6).flat_map(|n| [1, 4].map(|m| (n, m))) {
        let mut c = Three::new();
        let old = c.until_led();
        (0..30).for_each(|_| c.tick());
        let mon = (0..3).find(|i| *i != old).unwrap();
        let features = spirula_types::features::PACIFIC;
        let peer = Peer {
            kind: EntityType::Client,
            id: "u".into(),
            global_id: 4242,
            addrs: addr(0),
            features,
        };
        c.event(mon, MonEvent::SessionOpened { conn: 7, peer });
        let ask = |tid: u64| {
            let name = String::new();
            MPoolOp { version: 0, fsid: FSID, pool: 1, op: 0x21, snap: 0, name, crush_rule: -1 }
                .into_message(tid)
        };
        let mut given = std::collections::BTreeMap::new();
        let mut next = 1;
        for step in 0..12 {
            if step == dies_after {
                c.mons[old] = None;
            }
            // What is not answered yet is asked once more, as a client does that has waited.
            for tid in (1..next + at_once).filter(|t| !given.contains_key(t)).collect::<Vec<_>>() {
                c.event(mon, MonEvent::Message { conn: 7, message: ask(tid) });
                next = next.max(tid + 1);
            }
            (0..if step > dies_after { 20 } else { 1 }).for_each(|_| c.tick());
            for (_, _, m) in c.sent.extract_if(.., |(at, conn, m)| {
                (*at, *conn, m.kind) == (mon, 7, MPoolOpReply::KIND)
            }) {
                let r = MPoolOpReply::from_message(&m).unwrap();
                let number = u64::from_le_bytes(r.data.as_deref().unwrap().try_into().unwrap());
                assert_eq!(
                    *given.entry(m.tid).or_insert(number),
                    number,
                    "one request, two numbers"
                );
            }
        }
        let numbers: std::collections::BTreeSet<u64> = given.values().copied().collect();
        assert_eq!(numbers.len(), given.len(), "a number was given twice: {given:?}");
        assert!(given.len() as u64 >= 10 * at_once, "{given:?}");
        assert_eq!(
            numbers.len() as u64 + 1,
            *numbers.last().unwrap(),
            "each number is somebody's: {given:?}"
        );
    }
}

/// Clients of the leader that always have more to ask for, of what has its turn, leave room for
/// what others forward to it: that is done with the next turn.
#[test]
fn clients_of_the_leader_do_not_take_the_turns_of_those_of_others() {
    let mut c = Three::new();
    let leader = c.until_led();
    (0..30).for_each(|_| c.tick());
    let peon = (leader + 1) % 3;
    for mon in [leader, peon] {
        c.open(mon, 7, EntityType::Client, "admin");
    }
    let ask = |tid: u64| {
        MPoolOp {
            version: 0,
            fsid: FSID,
            pool: 1,
            op: 0x21,
            snap: 0,
            name: String::new(),
            crush_rule: -1,
        }
        .into_message(tid)
    };
    let mut tid = 0;
    let mut fill = |c: &mut Three| {
        let before = tid;
        while c.mons[leader].as_ref().unwrap().has_room_for(7, &ask(1)) {
            tid += 1;
            c.event(leader, MonEvent::Message { conn: 7, message: ask(tid) });
        }
        tid - before
    };
    assert!(fill(&mut c) > 4000);
    c.event(peon, MonEvent::Message { conn: 7, message: ask(1) });
    let answered =
        |c: &Three| c.sent.iter().any(|(mon, _, m)| *mon == peon && m.kind == MPoolOpReply::KIND);
    for _ in 0..3 {
        c.tick();
        fill(&mut c);
    }
    assert!(answered(&c), "he waits until the others have no more to ask for");
}

/// Two OSDs missed a third while nobody led, and hear it again by the time somebody does: their
/// monitor tells their last words only.
#[test]
fn a_new_leader_is_told_of_no_silence_that_is_over() {
    for usual in [1000, 0] {
        let mut c = Three::new();
        let old = c.until_led();
        let peon = (old + 1) % 3;
        let port = |osd: i32| 6800 + 10 * osd as u16;
        let conn = |osd: i32| 10 + osd as u64;
        let message = |c: &mut Three, osd, message| {
            c.event(peon, MonEvent::Message { conn: conn(osd), message })
        };
        for osd in 0..3 {
            let features = spirula_types::features::PACIFIC;
            let (id, global_id) = (osd.to_string(), 5000 + osd as u64);
            let peer = Peer { kind: EntityType::Osd, id, global_id, addrs: addr(0), features };
            c.event(peon, MonEvent::SessionOpened { conn: conn(osd), peer });
            message(&mut c, osd, Cluster::first_boot_message(osd, port(osd)).into_message(0));
        }
        let beat = |c: &mut Three, running: &[i32]| {
            c.tick();
            for osd in running {
                message(c, *osd, OsdBeacon { every_ms: 250 }.into_message(0));
            }
        };
        (0..10).for_each(|_| beat(&mut c, &[0, 1, 2]));
        (0..9).for_each(|_| beat(&mut c, &[0, 1]));
        c.mons[old] = None;
        for alive in [false, true] {
            for reporter in [0, 1] {
                let report = OsdFailureReport {
                    reporter,
                    target: 2,
                    target_public: addr(port(2)),
                    epoch: 100,
                    failed_for_ms: 5000,
                    refused: false,
                    gone: false,
                    alive,
                    waiting: 0,
                    outside: Default::default(),
                    patience_ms: Since(usual),
                    unheard_ms: Since(5000),
                };
                message(&mut c, reporter, report.into_message(0));
            }
        }
        while c.leader().is_none_or(|l| l == old) {
            beat(&mut c, &[0, 1]);
        }
        (0..3).for_each(|_| beat(&mut c, &[0, 1]));
        assert!(c.mons[peon].as_ref().unwrap().state().osdmap.is_up(2), "usual {usual}");
    }
}

/// Each tells what it runs on, and what it is; also of one that died since, and by one that leads
/// only since then.
#[test]
fn any_monitor_shows_the_facts_of_every_other() {
    let mut c = Three::new();
    for (mon, name) in c.mons.iter_mut().flatten().zip(NAMES) {
        let version = if name == "c" {
            "ceph version 16.2.15 (spirula 9.9.9) pacific (stable)"
        } else {
            "16"
        };
        let facts = [("hostname", format!("host-{name}")), ("ceph_version", version.to_owned())];
        mon.set_metadata(facts.map(|(k, v)| (k.to_owned(), v)).into());
    }
    let old = c.until_led();
    (0..70).for_each(|_| c.tick());
    let ask = |c: &mut Three, mon: usize, cmd: &str| {
        c.sent.clear();
        c.command(mon, cmd);
        for _ in 0..100 {
            let answer =
                c.sent.iter().find(|(m, _, s)| *m == mon && s.kind == MMonCommandAck::KIND);
            if let Some((.., answer)) = answer {
                return serde_json::from_slice::<serde_json::Value>(&answer.data).unwrap();
            }
            c.tick();
        }
        panic!("mon.{}: no answer to {cmd}", NAMES[mon]);
    };
    let check = |c: &mut Three, mon: usize| {
        let all = ask(c, mon, r#"{"prefix": "mon metadata", "format": "json"}"#);
        let hosts: Vec<_> = all
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["hostname"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(hosts, ["host-a", "host-b", "host-c"], "by mon.{}", NAMES[mon]);
        let one = ask(c, mon, r#"{"prefix": "mon metadata", "id": "b", "format": "json"}"#);
        assert_eq!(one["hostname"], "host-b");
        let nodes = ask(c, mon, r#"{"prefix": "node ls", "format": "json"}"#);
        assert_eq!(nodes["mon"]["host-c"], serde_json::json!(["c"]), "{nodes}");
        for prefix in ["versions", "mon versions"] {
            let all = ask(c, mon, &format!(r#"{{"prefix": "{prefix}", "format": "json"}}"#));
            let mons = all.get("mon").unwrap_or(&all);
            assert_eq!(mons["16"], 2, "{prefix}: {all}");
            assert_eq!(
                mons["ceph version 16.2.15 (spirula 9.9.9) pacific (stable)"], 1,
                "{prefix}: {all}"
            );
        }
    };
    (0..3).for_each(|mon| check(&mut c, mon));
    c.mons[old] = None;
    while c.leader().is_none_or(|l| l == old) {
        c.tick();
    }
    (0..70).for_each(|_| c.tick());
    (0..3).filter(|i| *i != old).for_each(|mon| check(&mut c, mon));
}

/// Metadata servers at a monitor that does not lead are heard, and when the leader is gone, for
/// however long: nobody loses a rank, no state is lost, and a server that is silent under the new
/// leader is replaced.
#[test]
fn another_leader_takes_no_rank_away() {
    use spirula_maps::mds_state as state;
    let mut c = Three::new();
    c.until_led();
    for _ in 0..30 {
        c.tick();
    }
    let old = c.leader().unwrap();
    let at = (0..3).find(|i| *i != old).unwrap();
    let conns = [("a", 501), ("b", 502)];
    let mut gids = Vec::new();
    for (name, conn) in conns {
        let global_id = c.mons[at].as_ref().unwrap().new_global_id().unwrap();
        gids.push(global_id);
        let features = spirula_types::features::PACIFIC;
        let peer = Peer {
            kind: EntityType::Mds,
            id: name.into(),
            global_id,
            addrs: addr(conn as u16),
            features,
        };
        c.event(at, MonEvent::SessionOpened { conn, peer });
    }
    let compat =
        bytes::Bytes::from(spirula_encoding::to_vec(&spirula_maps::CompatSet::mds_default()));
    let mut seq = 0;
    // Says what it is, by the newest map; true if that comes back.
    let mut say = |c: &mut Three, who: usize, wish: Option<i32>| {
        seq += 1;
        let (name, conn) = conns[who];
        let map = c.mons[at].as_ref().unwrap().state().fsmap.clone();
        let epoch = map.fs_of(gids[who]).map_or_else(
            || map.standby_epochs.get(&gids[who]).copied().unwrap_or(0),
            |f| f.mds_map.epoch,
        );
        let is = map.info(gids[who]).map_or(state::BOOT, |i| i.state);
        let b = spirula_messages::ceph::MMdsBeacon {
            epoch: epoch.into(),
            fsid: FSID,
            gid: gids[who],
            state: wish.unwrap_or(is),
            seq,
            name: name.into(),
            compat: compat.clone(),
            ..Default::default()
        };
        c.sent.clear();
        c.event(at, MonEvent::Message { conn, message: b.into_message(0) });
        let echoed = |m: &Message| {
            spirula_messages::ceph::MMdsBeacon::from_message(m).is_ok_and(|b| b.seq == seq)
        };
        c.sent.iter().any(|(m, to, s)| (*m, *to) == (at, conn) && echoed(s))
    };
    assert!(say(&mut c, 0, None) && say(&mut c, 1, None));
    for pool in ["m", "d"] {
        c.command(
            old,
            &format!(r#"{{"prefix": "osd pool create", "pool": "{pool}", "pg_num": 8}}"#),
        );
    }
    c.command(old, r#"{"prefix": "fs new", "fs_name": "fs", "metadata": "m", "data": "d"}"#);
    assert!(say(&mut c, 0, Some(state::ACTIVE)));
    let before = c.mons[at].as_ref().unwrap().state().fsmap.clone();
    assert_eq!(
        before.by_name("fs").unwrap().mds_map.of_rank(0).map(|i| (i.gid, i.state)),
        Some((gids[0], state::ACTIVE))
    );
    // The leader is gone, and the rest agrees on nothing for longer than the grace.
    c.mons[old] = None;
    c.cut = true;
    for _ in 0..400 {
        c.tick();
    }
    c.cut = false;
    c.until_led();
    for _ in 0..100 {
        c.tick();
    }
    let now = c.mons[at].as_ref().unwrap().state().fsmap.clone();
    assert_eq!(
        (&now.filesystems[0].mds_map.up, now.servers().count()),
        (&before.filesystems[0].mds_map.up, 2)
    );
    assert!(c.mons[at].as_ref().unwrap().state().osdmap.blocklist.is_empty());
    // Without a majority clients were sent away. From now on one of them is silent.
    let (features, addrs) = (spirula_types::features::PACIFIC, addr(conns[1].1 as u16));
    let peer = Peer { kind: EntityType::Mds, id: "b".into(), global_id: gids[1], addrs, features };
    c.event(at, MonEvent::SessionOpened { conn: conns[1].1, peer });
    for _ in 0..20 {
        assert!(say(&mut c, 1, None));
        for _ in 0..10 {
            c.tick();
        }
    }
    let now = c.mons[at].as_ref().unwrap().state().fsmap.clone();
    assert_eq!(now.by_name("fs").unwrap().mds_map.of_rank(0).map(|i| i.gid), Some(gids[1]));
}

/// Monitors that hold the same say so, whoever is asked; one that differs is named, and so is one
/// that says nothing.
#[test]
fn a_scrub_of_the_monitors_compares_what_they_hold() {
    let mut c = Three::new();
    let leader = c.until_led();
    (0..30).for_each(|_| c.tick());
    let (other, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let said = |c: &mut Three, text: &str| {
        for _ in 0..100 {
            c.tick();
            c.sent.clear();
            c.command(
                leader,
                r#"{"prefix": "log last", "num": 50, "level": "info", "channel": "cluster"}"#,
            );
            (0..3).for_each(|_| c.tick());
            let lines: Vec<_> = c
                .sent
                .iter()
                .map(|(.., m)| String::from_utf8_lossy(&m.data).into_owned())
                .collect();
            if lines.iter().any(|l| l.contains(text)) {
                return;
            }
        }
        panic!("nobody says '{text}'");
    };
    c.command(other, r#"{"prefix": "mon scrub"}"#);
    said(&mut c, "scrub ok on a,b,c: ScrubResult(keys {");
    c.mute = true;
    c.command(leader, r#"{"prefix": "mon scrub"}"#);
    let m = MonScrubbed { index: c.scrubbed, past: false, differ: vec!["kv".to_owned()] };
    c.event(leader, MonEvent::Message { conn: 100 + other as u64, message: m.into_message(0) });
    said(&mut c, &format!("mon.{} differs in kv", NAMES[other]));
    said(&mut c, &format!("scrub: no answer from mon.{}", NAMES[third]));
}

/// A monitor that was cut off for seconds sent its OSDs away, and could not say so: nor does it
/// count as their connection when it is heard again. One refused report of an OSD that is connected
/// nowhere is enough, whoever had it before.
#[test]
fn an_osd_that_a_monitor_sent_away_while_it_was_cut_off_is_connected_there_no_more() {
    let mut c = Three::new();
    let led = c.until_led();
    (0..30).for_each(|_| c.tick());
    let peon = (led + 1) % 3;
    let features = spirula_types::features::PACIFIC;
    let open = |c: &mut Three, mon: usize, conn: u64, osd: i32| {
        let global_id = 5000 + osd as u64;
        let peer = Peer {
            kind: EntityType::Osd,
            id: osd.to_string(),
            global_id,
            addrs: addr(0),
            features,
        };
        c.event(mon, MonEvent::SessionOpened { conn, peer });
    };
    let port = |osd: i32| 6800 + 10 * osd as u16;
    for (osd, mon) in [(0, led), (1, led), (2, peon)] {
        let conn = 10 + osd as u64;
        open(&mut c, mon, conn, osd);
        let message = Cluster::first_boot_message(osd, port(osd)).into_message(0);
        c.event(mon, MonEvent::Message { conn, message });
    }
    let up = |c: &Three| c.mons[led].as_ref().unwrap().state().osdmap.is_up(2);
    assert!(up(&c));
    c.apart = Some(peon);
    (0..30).for_each(|_| c.tick());
    assert!(c.closed.contains(&(peon, 12)), "it was sent away: {:?}", c.closed);
    assert_eq!(c.leader(), None, "the others lead on, it knows of no leader");
    c.event(peon, MonEvent::SessionClosed { conn: 12 });
    open(&mut c, led, 22, 2);
    c.apart = None;
    (0..30).for_each(|_| c.tick());
    assert_eq!(c.leader(), Some(led));
    // Its host dies.
    c.event(led, MonEvent::SessionClosed { conn: 22 });
    let report = OsdFailureReport {
        reporter: 0,
        target: 2,
        target_public: addr(port(2)),
        epoch: 100,
        failed_for_ms: 100,
        refused: true,
        gone: false,
        alive: false,
        waiting: 0,
        outside: Default::default(),
        patience_ms: Since(0),
        unheard_ms: Since(0),
    };
    c.event(led, MonEvent::Message { conn: 10, message: report.into_message(0) });
    assert!(!up(&c));
}

/// The word of one connection may be lost where nobody notices: it is said again, of those that are
/// and of those that are not.
#[test]
fn what_the_leader_did_not_hear_of_a_connection_it_hears_later() {
    let mut c = Three::new();
    let led = c.until_led();
    (0..30).for_each(|_| c.tick());
    let peon = (led + 1) % 3;
    let sessions = |c: &mut Three| {
        c.sent.clear();
        let ask = MCommand {
            fsid: FSID,
            cmd: vec![r#"{"prefix": "sessions"}"#.into()],
            input: bytes::Bytes::new(),
        };
        let peer = Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id: 7000,
            addrs: addr(0),
            features: spirula_types::features::PACIFIC,
        };
        c.event(led, MonEvent::SessionOpened { conn: 70, peer });
        c.event(led, MonEvent::Message { conn: 70, message: ask.into_message(9) });
        let found =
            c.sent.iter().find(|(_, _, m)| m.kind == MCommandReply::KIND).expect("an answer");
        let text =
            String::from_utf8(MCommandReply::from_message(&found.2).unwrap().output.to_vec())
                .unwrap();
        text.contains("osd.2")
    };
    let peer = Peer {
        kind: EntityType::Osd,
        id: "2".into(),
        global_id: 5002,
        addrs: addr(0),
        features: spirula_types::features::PACIFIC,
    };
    c.apart = Some(peon);
    c.event(peon, MonEvent::SessionOpened { conn: 12, peer });
    c.apart = None;
    assert!(!sessions(&mut c));
    (0..110).for_each(|_| c.tick());
    assert!(sessions(&mut c));
    c.apart = Some(peon);
    c.event(peon, MonEvent::SessionClosed { conn: 12 });
    c.apart = None;
    assert!(sessions(&mut c));
    (0..30).for_each(|_| c.tick());
    assert!(!sessions(&mut c));
}

/// Lines that are logged as errors in this thread while it has it.
#[derive(Clone, Default)]
struct Errors(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Errors {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        *about.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// 700 values of 64 KiB at once through three monitors, half of them at one that does not lead,
/// while disks are slow: all are answered, in frames and entries that the others take, one that is
/// started again comes back to the same, and the next change is agreed on.
#[test]
fn a_burst_of_large_values_is_agreed_on_by_all_three_and_survives_a_restart() {
    let mut c = Three::new();
    let leader = c.until_led();
    (0..30).for_each(|_| c.tick());
    let [follower, third] = [1, 2].map(|n| (leader + n) % 3);
    let (value, conn) = (bytes::Bytes::from(vec![b'v'; 64 << 10]), 50);
    for (mon, global_id) in [(leader, 6001), (follower, 6002)] {
        let features = spirula_types::features::PACIFIC;
        let peer = Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id,
            addrs: addr(0),
            features,
        };
        c.event(mon, MonEvent::SessionOpened { conn, peer });
    }
    // What comes while the first is being written waits for its turn, and is one batch then.
    c.stuck = true;
    c.sent.clear();
    for n in 0..700 {
        let cmd = vec![format!(r#"{{"prefix": "config-key set", "key": "burst/{n}"}}"#)];
        let ask = MMonCommand { version: 0, fsid: FSID, cmd, input: value.clone() };
        let mon = if n % 2 == 0 { leader } else { follower };
        c.event(mon, MonEvent::Message { conn, message: ask.into_message(n + 1) });
    }
    c.unstick();
    (0..20).for_each(|_| c.tick());
    let answers = |c: &Three, mon| {
        let acks = c
            .sent
            .iter()
            .filter(|(at, to, m)| (*at, *to) == (mon, conn) && m.kind == MMonCommandAck::KIND);
        acks.filter(|(.., m)| MMonCommandAck::from_message(m).unwrap().result == 0).count()
    };
    assert_eq!((answers(&c, leader), answers(&c, follower)), (350, 350), "{:?}", c.stopped);
    assert!(c.largest > 1 << 20, "no batch was made: {}", c.largest);
    let states = |c: &Three| {
        (0..3).map(|i| c.mons[i].as_ref().unwrap().state().to_bytes()).collect::<Vec<_>>()
    };
    let alike = |c: &Three, least: usize| {
        let all = states(c);
        assert!(all.iter().all(|s| *s == all[0]), "monitors hold different states");
        assert!(c.mons.iter().flatten().all(|m| m.state().kv.len() == least), "{least} keys");
    };
    alike(&c, 700);
    for mon in [third, leader] {
        c.restart(mon);
        c.until_led();
        (0..30).for_each(|_| c.tick());
        alike(&c, 700);
    }
    // And the one that did not lead is asked for one more.
    c.sent.clear();
    c.command(third, r#"{"prefix": "config-key set", "key": "more", "val": "x"}"#);
    (0..30).for_each(|_| c.tick());
    alike(&c, 701);
    assert!(c.stopped.is_empty(), "{:?}", c.stopped);
}

/// The leader hears the others, and they do not take what it proposes: health says so within 5 s,
/// and the log does, not with every tick.
#[test]
fn what_a_majority_does_not_take_is_said_in_health_and_in_the_log() {
    let mut c = Three::new();
    let leader = c.until_led();
    (0..30).for_each(|_| c.tick());
    let says = |c: &Three| {
        let view = c.mons[leader].as_ref().unwrap().view();
        spirula_mon::report::health(&view, true, spirula_format::Format::Plain)
            .contains("MON_STALLED")
    };
    let errors = Errors::default();
    let lines = errors.clone();
    let told = move || {
        let all = lines.0.lock().unwrap();
        all.iter().filter(|l| l.contains("do not agree on a change")).cloned().collect::<Vec<_>>()
    };
    tracing::subscriber::with_default(errors, || {
        c.long = Some(32 << 10);
        let value = "v".repeat(60 << 10);
        c.command(
            leader,
            &format!(r#"{{"prefix": "config-key set", "key": "k", "val": "{value}"}}"#),
        );
        assert!(!says(&c) && told().is_empty());
        (0..50).for_each(|_| c.tick());
        assert_eq!(c.leader(), Some(leader), "it leads, and the others hear it");
        assert!(says(&c), "nobody says so after 5 s");
        let first = told();
        assert!(first.len() == 1 && first[0].contains("nothing can be changed"), "{first:?}");
        (0..300).for_each(|_| c.tick());
        assert!((2..=12).contains(&told().len()), "{} lines in 35 s", told().len());
        assert!(c.mons.iter().flatten().all(|m| m.state().kv.is_empty()));
        let before = told().len();
        c.long = None;
        (0..100).for_each(|_| c.tick());
        assert!(!says(&c));
        assert_eq!(told().len(), before);
    });
    assert!(c.mons.iter().flatten().all(|m| m.state().kv.contains_key("k")));
}

/// The leader is taken out of a cluster of three, then that of the two that are left. It answers
/// who asked for it, stops, and those who are left go on; what it is asked for before it stops does
/// no harm.
#[test]
fn a_leader_that_is_removed_stops_and_the_others_go_on() {
    let mut c = Three::new();
    let mut left: Vec<usize> = (0..3).collect();
    for round in 0..2 {
        for _ in 0..100 {
            c.tick();
        }
        let led = c.leader().unwrap_or_else(|| panic!("round {round}: nobody leads"));
        c.sent.clear();
        c.command(led, &format!(r#"{{"prefix": "mon remove", "name": "{}"}}"#, NAMES[led]));
        for _ in 0..50 {
            if !c.has(led, led) {
                break;
            }
            c.tick();
        }
        let acks = || c.sent.iter().filter(|(m, _, s)| *m == led && s.kind == MMonCommandAck::KIND);
        let acks: Vec<_> = acks().map(|(.., m)| MMonCommandAck::from_message(m).unwrap()).collect();
        assert!(acks.len() == 1 && acks[0].result == 0, "round {round}: {acks:?}");
        assert!(c.stopped.is_empty(), "round {round}: it has not noticed yet: {:?}", c.stopped);
        // It is a member no more, and does not know it.
        let cmds = [
            r#"{"prefix": "config-key set", "key": "late", "val": "x"}"#,
            r#"{"prefix": "config-key exists", "key": "none"}"#,
            r#"{"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.0.7.7:0/1"}"#,
        ];
        c.sent.clear();
        cmds.iter().for_each(|cmd| c.command(led, cmd));
        let answered: Vec<_> = c.sent.iter().filter(|(m, ..)| *m == led).collect();
        assert!(answered.is_empty(), "round {round}: {answered:?}");
        // It hears of it from the next one that leads.
        let gone =
            |c: &Three| c.stopped.iter().any(|(mon, why)| *mon == led && why.contains("removed"));
        for _ in 0..45 {
            if !gone(&c) {
                c.tick();
            }
        }
        assert!(gone(&c), "{:?}", c.stopped);
        assert!(c.stopped.iter().all(|(mon, _)| *mon == led), "{:?}", c.stopped);
        c.stopped.clear();
        c.mons[led] = None;
        left.retain(|i| *i != led);
        (0..100).for_each(|_| c.tick());
        assert!(c.leader().is_some(), "round {round}: nobody leads those who are left");
        let asked = *left.last().unwrap();
        c.sent.clear();
        c.command(asked, r#"{"prefix": "config-key set", "key": "k", "val": "x"}"#);
        (0..5).for_each(|_| c.tick());
        assert!(
            c.sent.iter().any(|(m, _, s)| *m == asked && s.kind == MMonCommandAck::KIND),
            "round {round}"
        );
        for &mon in &left {
            let mon = c.mons[mon].as_ref().unwrap();
            assert_eq!(mon.state().monmap.len(), left.len());
            assert_eq!(mon.state().kv.get("late"), None);
            assert_eq!(mon.node().unwrap().members().voters.len(), left.len());
        }
    }
}

/// Monitors that share a process are not removed: one that is removed ends, and the process with
/// it.
#[test]
fn a_monitor_that_shares_its_process_is_not_removed() {
    let mut c = Three::new();
    for mon in c.mons.iter_mut().flatten() {
        mon.set_metadata([(spirula_mon::SHARES_PROCESS.to_owned(), "1".to_owned())].into());
    }
    // Before it is known what it is, it is not removed either.
    let led = c.until_led();
    while c.mons[led].as_ref().unwrap().new_global_id().is_none() {
        c.tick();
    }
    c.sent.clear();
    c.command(led, &format!(r#"{{"prefix": "mon rm", "name": "{}"}}"#, NAMES[(led + 1) % 3]));
    (0..20).for_each(|_| c.tick());
    let acks = c.sent.iter().filter(|(m, _, s)| *m == led && s.kind == MMonCommandAck::KIND);
    let acks: Vec<_> = acks.map(|(.., m)| MMonCommandAck::from_message(m).unwrap()).collect();
    assert!(matches!(&acks[..], [a] if [-16, -95].contains(&a.result)), "{acks:?}");
    (0..30).for_each(|_| c.tick());
    for mon in c.mons.iter_mut().flatten() {
        mon.set_company(NAMES.map(str::to_owned).to_vec());
    }
    for word in ["rm", "remove"] {
        c.sent.clear();
        c.command(
            led,
            &format!(r#"{{"prefix": "mon {word}", "name": "{}"}}"#, NAMES[(led + 1) % 3]),
        );
        (0..20).for_each(|_| c.tick());
        let acks = c.sent.iter().filter(|(m, _, s)| *m == led && s.kind == MMonCommandAck::KIND);
        let acks: Vec<_> = acks.map(|(.., m)| MMonCommandAck::from_message(m).unwrap()).collect();
        assert!(
            matches!(&acks[..], [a] if a.result == -95 && a.status.contains("spirula up")),
            "{acks:?}"
        );
    }
    assert!(c.stopped.is_empty() && c.mons.iter().flatten().all(|m| m.state().monmap.len() == 3));
}

/// One of two that are left is taken out, the one that leads or the other: its vote is needed for
/// that, and the last one goes on alone. So it does where the one that led is cut off before it
/// could say that it is agreed on, for a second.
#[test]
fn the_last_of_two_goes_on_alone_whichever_is_removed() {
    for (leads, cut) in [(false, false), (true, false), (true, true)] {
        let what = format!(
            "the {} is removed{}",
            if leads { "leader" } else { "other" },
            if cut { ", and cut off" } else { "" }
        );
        let mut c = Three::new();
        let mut all: Vec<usize> = (0..3).collect();
        c.until_led();
        (0..30).for_each(|_| c.tick());
        while all.len() > 1 {
            let led = c.leader().unwrap_or_else(|| panic!("{what}: nobody leads {all:?}"));
            let out = if leads { led } else { *all.iter().find(|i| **i != led).unwrap() };
            c.cut_when_out = (cut && all.len() == 2).then_some(out);
            c.sent.clear();
            c.command(led, &format!(r#"{{"prefix": "mon remove", "name": "{}"}}"#, NAMES[out]));
            for _ in 0..100 {
                c.tick();
                if c.apart.is_some() {
                    (0..10).for_each(|_| c.tick());
                    c.apart = None;
                }
                if c.stopped.iter().any(|(mon, _)| *mon == out) {
                    c.mons[out] = None;
                }
            }
            assert!(
                c.sent.iter().any(|(_, _, m)| m.kind == MMonCommandAck::KIND),
                "{what}: not answered"
            );
            assert!(!c.stopped.is_empty(), "{what}: mon.{} goes on", NAMES[out]);
            assert!(
                c.stopped.iter().all(|(mon, why)| *mon == out && why.contains("removed")),
                "{what}: {:?}",
                c.stopped
            );
            c.stopped.clear();
            all.retain(|i| *i != out);
            let asked = all[0];
            c.sent.clear();
            c.command(asked, r#"{"prefix": "config-key set", "key": "k", "val": "x"}"#);
            (0..5).for_each(|_| c.tick());
            let answered =
                c.sent.iter().any(|(m, _, s)| *m == asked && s.kind == MMonCommandAck::KIND);
            assert!(answered, "{what}: {all:?} do not agree on anything");
            for &mon in &all {
                let mon = c.mons[mon].as_ref().unwrap();
                assert_eq!(
                    (mon.state().monmap.len(), mon.node().unwrap().members().voters.len()),
                    (all.len(), all.len()),
                    "{what}"
                );
            }
        }
    }
}

/// What clients ask for: a change, a request that only reads, and one about the monitor itself.
fn asks() -> [Message; 3] {
    let command = |prefix: &str| vec![format!(r#"{{"prefix": "{prefix}"}}"#)];
    let set = vec![r#"{"prefix": "config-key set", "key": "k", "val": "x"}"#.to_owned()];
    let set = MMonCommand { version: 0, fsid: FSID, cmd: set, input: bytes::Bytes::new() };
    let own = MCommand { fsid: FSID, cmd: command("perf dump"), input: bytes::Bytes::new() };
    let what = MMonSubscribe { what: vec![], hostname: "h".into() };
    [set.into_message(1), what.into_message(0), own.into_message(2)]
}

/// Clients that fill one of a monitor's bounds, which a user with few rights may, stop nobody who
/// asks for something else.
#[test]
fn a_full_bound_stops_only_what_would_come_under_it() {
    let mut c = Three::new();
    let leader = c.until_led();
    (0..30).for_each(|_| c.tick());
    let other = (leader + 1) % 3;
    for mon in [leader, other] {
        c.open(mon, 7, EntityType::Client, "admin");
    }
    let [set, read, own] = asks();
    let room = |c: &Three, mon: usize| {
        [&set, &read, &own].map(|m| c.mons[mon].as_ref().unwrap().has_room_for(7, m))
    };
    let fill = |c: &mut Three, mon: usize, m: &Message| {
        let mut turns = 0..8000;
        while c.mons[mon].as_ref().unwrap().has_room_for(7, m) {
            turns.next().expect("there is a bound");
            c.event(mon, MonEvent::Message { conn: 7, message: m.clone() });
        }
    };
    // No majority's word comes.
    c.cut = true;
    fill(&mut c, other, &read);
    assert_eq!((room(&c, other), room(&c, leader)), ([true, false, true], [true; 3]));
    fill(&mut c, other, &set);
    fill(&mut c, leader, &set);
    assert_eq!((room(&c, other), room(&c, leader)), ([false, false, true], [false, true, true]));
    fill(&mut c, leader, &read);
    assert_eq!(room(&c, leader), [false, false, true]);
    assert_eq!(c.closed, []);
}

/// What other monitors forward for their clients takes three quarters of the leader's room, so that
/// a daemon is heard there.
#[test]
fn what_clients_of_other_monitors_ask_for_leaves_daemons_their_room_at_the_leader() {
    for reads in [false, true] {
        let mut c = Three::new();
        let leader = c.until_led();
        (0..30).for_each(|_| c.tick());
        c.cut = true;
        let [set, read, _] = asks();
        let status = vec![r#"{"prefix": "status"}"#.to_owned()];
        let status =
            MMonCommand { version: 0, fsid: FSID, cmd: status, input: bytes::Bytes::new() }
                .into_message(1);
        for mon in [1, 2].map(|n| (leader + n) % 3) {
            c.open(mon, 7, EntityType::Client, "admin");
            for _ in 0..4200 {
                let message = if reads { status.clone() } else { set.clone() };
                c.event(mon, MonEvent::Message { conn: 7, message });
            }
        }
        c.open(leader, 8, EntityType::Osd, "0");
        let boot = Cluster::first_boot_message(0, 6800).into_message(0);
        for message in if reads { [read.clone(), read] } else { [boot.clone(), boot] } {
            c.event(leader, MonEvent::Message { conn: 8, message });
        }
        assert_eq!(c.closed, [], "reads: {reads}");
    }
}

/// Who leaves before a majority's word comes has nothing done: else whoever comes and goes had the
/// manager work without end.
#[test]
fn the_manager_is_not_asked_for_who_has_left() {
    let mut c = Three::new();
    let leader = c.until_led();
    (0..30).for_each(|_| c.tick());
    c.open(leader, 9, EntityType::Mgr, "x");
    let command = r#"{"sig": ["pg", "stat"], "help": "", "module": "pg", "perm": "r", "flags": 8}"#;
    let beacon =
        MgrBeacon { commands: vec![command.to_owned()], ..crate::harness::beacon(9009, "x") };
    c.event(leader, MonEvent::Message { conn: 9, message: beacon.into_message(0) });
    let runs = |c: &Three| {
        c.sent.iter().filter(|(_, conn, m)| *conn == 9 && m.kind == MgrRun::KIND).count()
    };
    for leaves in [true, false] {
        c.sent.clear();
        c.cut = true;
        for _ in 0..3 {
            c.command(leader, r#"{"prefix": "pg stat"}"#);
            if leaves {
                c.event(leader, MonEvent::SessionClosed { conn: 7 });
            }
        }
        assert_eq!(runs(&c), 0);
        c.cut = false;
        (0..5).for_each(|_| c.tick());
        assert_eq!(runs(&c), if leaves { 0 } else { 3 });
    }
}
