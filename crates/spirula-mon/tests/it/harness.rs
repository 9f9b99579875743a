//! A monitor with an instant store and a clock under the test's control.

use bytes::Bytes;
use serde_json::Value;
use spirula_encoding::UTime;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck, MMonSubscribe, MOsdMap, Subscription};
use spirula_messages::cluster::control::{MgrBeacon, OsdBoot, PgsCreated};
use spirula_messages::{Body, Message};
use spirula_mon::image::{Identity, Stored};
use spirula_mon::{
    InitialPool, MkfsParams, Mon, MonEffect, MonEvent, NewMon, NewOsd, Opening, Peer,
};
use spirula_quorum::{HardState, Persist};
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::collections::BTreeMap;

pub const FSID: Uuid = Uuid([9; 16]);

pub struct Cluster {
    pub mon: Mon,
    pub now: UTime,
    /// Seconds by which the wall clock was set.
    set_by: i64,
    pub stored: Stored,
    next_conn: u64,
    tid: u64,
    /// Open connections of OSDs.
    pub osds: Vec<(i32, u64)>,
}

pub fn addr(port: u16) -> AddrVec {
    AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], port).into(), 7))
}

pub fn params(osds: i32) -> MkfsParams {
    let osd = |id: i32| NewOsd {
        id,
        uuid: Uuid([id as u8 + 1; 16]),
        size_bytes: 10 << 30,
        host: format!("host{id}"),
        device_class: "ssd".into(),
    };
    MkfsParams {
        fsid: FSID,
        mons: vec![NewMon { name: "a".into(), addrs: addr(3300), uuid: Uuid([5; 16]) }],
        osds: (0..osds).map(osd).collect(),
        failure_domain: "host".into(),
        defaults: [("osd_pool_default_size".to_owned(), osds.min(3).to_string())].into(),
        pools: vec![InitialPool {
            name: "data".into(),
            pg_num: 8,
            size: 0,
            application: "rados".into(),
        }],
        users: Default::default(),
        service_keys: Default::default(),
    }
}

fn seeded() -> spirula_mon::Entropy {
    let mut n = 0u8;
    Box::new(move |out| {
        out.iter_mut().for_each(|b| {
            n = n.wrapping_mul(31).wrapping_add(7);
            *b = n;
        });
    })
}

impl Cluster {
    /// A new cluster of `osds` OSDs, none up.
    pub fn new(osds: i32) -> Self {
        let now = UTime { sec: 1_795_000_000, nsec: 0 };
        let identity = Identity { fsid: FSID, uuid: Uuid([5; 16]), member: 1 };
        let snapshot = spirula_mon::mkfs(&params(osds), now).unwrap();
        let hard = HardState { term: 1, vote: 0, commit: 1 };
        let stored = Stored {
            identity,
            hard,
            snapshot,
            entries: vec![],
            seq: 0,
            log_stale: false,
            log_end: 0,
            marked: false,
        };
        Self::on(stored, now)
    }

    /// A monitor started on a store.
    fn on(stored: Stored, now: UTime) -> Self {
        let opening = Opening {
            stored: stored.clone(),
            name: "a".into(),
            addrs: addr(3300),
            seeds: vec![],
            now,
            boot: 1,
            entropy: seeded(),
        };
        let mut c = Self {
            mon: Mon::open(opening).unwrap(),
            now,
            set_by: 0,
            stored,
            next_conn: 1,
            tid: 0,
            osds: Vec::new(),
        };
        let mut out = Vec::new();
        c.mon.start(c.time(), &mut out);
        c.settle(out);
        c
    }

    /// The monitor started again on what it stored.
    pub fn restarted(&self) -> Self {
        Self::on(self.stored.clone(), self.now)
    }

    /// Makes a write durable.
    pub fn write(&mut self, p: &Persist) {
        self.stored.hard = p.hard;
        if let Some(s) = &p.snapshot {
            self.stored.snapshot = s.clone();
            self.stored.entries.clear();
        }
        self.stored.entries.extend(p.entries.iter().cloned());
    }

    /// A cluster whose OSDs are all up.
    pub fn up(osds: i32) -> Self {
        let mut c = Self::new(osds);
        for o in 0..osds {
            c.boot(o);
        }
        c
    }

    /// Performs commits at once and returns what is sent.
    fn settle(&mut self, mut out: Vec<MonEffect>) -> Vec<(u64, Message)> {
        let mut sent = Vec::new();
        while !out.is_empty() {
            let mut next = Vec::new();
            for e in out {
                match e {
                    MonEffect::Send(conn, m) => sent.push((conn, m)),
                    MonEffect::Close(_) => {}
                    MonEffect::Persist(p) => {
                        self.write(&p);
                        self.mon.handle(self.time(), MonEvent::Persisted(p.number), &mut next);
                    }
                    other => panic!("{other:?}"),
                }
            }
            out = next;
        }
        sent
    }

    /// The event with nothing made durable yet: what it makes the monitor do.
    pub fn held(&mut self, e: MonEvent) -> Vec<MonEffect> {
        let mut out = Vec::new();
        self.mon.handle(self.time(), e, &mut out);
        out
    }

    /// Performs what [`Self::held`] gave; every entry that it proposes is looked at.
    pub fn release(
        &mut self,
        out: Vec<MonEffect>,
        look: &mut dyn FnMut(&Persist),
    ) -> Vec<(u64, Message)> {
        let (mut sent, mut todo) = (Vec::new(), std::collections::VecDeque::from(out));
        while let Some(e) = todo.pop_front() {
            match e {
                MonEffect::Send(conn, m) => sent.push((conn, m)),
                MonEffect::Persist(p) => {
                    look(&p);
                    self.write(&p);
                    todo.extend(self.held(MonEvent::Persisted(p.number)));
                }
                MonEffect::Close(_) => {}
                other => panic!("{other:?}"),
            }
        }
        sent
    }

    /// A user came in with his pending key.
    pub fn pending_used(&mut self, conn: u64, who: &str) {
        let mut out = Vec::new();
        self.mon.pending_key_used(conn, &who.parse().unwrap(), &mut out);
        self.settle(out);
    }

    pub fn event(&mut self, e: MonEvent) -> Vec<(u64, Message)> {
        let mut out = Vec::new();
        self.mon.handle(self.time(), e, &mut out);
        self.settle(out)
    }

    /// The monitor's clocks.
    pub fn time(&self) -> spirula_mon::Now {
        let mono = self.now.as_nanos().saturating_add_signed(-self.set_by * 1_000_000_000);
        spirula_mon::Now { mono: std::time::Duration::from_nanos(mono), wall: self.now }
    }

    /// Somebody sets the wall clock, so many seconds forward or back.
    pub fn set_clock(&mut self, by: i64) {
        self.set_by += by;
        self.now.sec = self.now.sec.saturating_add_signed(by as i32);
    }

    /// Lets time pass: nothing happens in it, and what then lies unread is read in half a second.
    pub fn tick(&mut self, seconds: u32) -> Vec<(u64, Message)> {
        let to = self.now.as_nanos() + u64::from(seconds) * 1_000_000_000;
        let mut out = Vec::new();
        for left in [1_000_000_000, 500_000_000, 0] {
            self.now = UTime::from_nanos((to - left).max(self.now.as_nanos()));
            out.extend(self.event(MonEvent::Tick));
        }
        out
    }

    pub fn open(&mut self, kind: EntityType, id: &str) -> u64 {
        let conn = self.next_conn;
        self.next_conn += 1;
        let global_id = self.mon.new_global_id().unwrap();
        let peer = Peer {
            kind,
            id: id.into(),
            global_id,
            addrs: addr(0),
            features: spirula_types::features::PACIFIC,
        };
        self.event(MonEvent::SessionOpened { conn, peer });
        if kind == EntityType::Osd {
            self.osds.push((id.parse().unwrap(), conn));
        }
        conn
    }

    /// An OSD's process is gone: its connections are closed.
    pub fn hang_up(&mut self, osd: i32) {
        let conns: Vec<u64> =
            self.osds.extract_if(.., |(o, _)| *o == osd).map(|(_, conn)| conn).collect();
        for conn in conns {
            self.event(MonEvent::SessionClosed { conn });
        }
    }

    pub fn send(&mut self, conn: u64, m: Message) -> Vec<(u64, Message)> {
        self.event(MonEvent::Message { conn, message: m })
    }

    /// A body sent over a connection; the messages that come back over it.
    pub fn ask<B: Body>(&mut self, conn: u64, body: B) -> Vec<Message> {
        self.send(conn, body.into_message(0))
            .into_iter()
            .filter(|(c, _)| *c == conn)
            .map(|(_, m)| m)
            .collect()
    }

    /// The OSDs report all PGs of a pool as created.
    pub fn pgs_created(&mut self, pool: &str) {
        let id = self.mon.state().osdmap.pool_by_name(pool).unwrap();
        let pgids = self
            .mon
            .state()
            .creating
            .iter()
            .filter(|(pg, _)| pg.pool == id)
            .map(|(pg, _)| (*pg, 1))
            .collect();
        let conn = self.open(EntityType::Osd, "0");
        self.ask(conn, PgsCreated { osd: 0, pgids });
    }

    /// What an OSD says that has the newest map.
    pub fn boot_message(&self, osd: i32, port: u16) -> OsdBoot {
        OsdBoot { newest_map: self.mon.state().osdmap.epoch, ..Self::first_boot_message(osd, port) }
    }

    /// What an OSD says that was never up.
    pub fn first_boot_message(osd: i32, port: u16) -> OsdBoot {
        OsdBoot {
            fsid: FSID,
            osd,
            uuid: Uuid([osd as u8 + 1; 16]),
            public: addr(port),
            cluster: addr(port + 1),
            hb_back: addr(port + 2),
            hb_front: addr(port + 3),
            features: spirula_types::features::PACIFIC,
            newest_map: 0,
            was_up: 0,
            unheard: Vec::new(),
            healthy: true,
            quiet: 0,
            size_bytes: 10 << 30,
            device_class: String::new(),
            location: BTreeMap::new(),
            metadata: [("hostname".to_owned(), "node0".to_owned())].into(),
            stood_ms: Default::default(),
        }
    }

    /// Opens an OSD's session and boots it.
    pub fn boot(&mut self, osd: i32) -> u64 {
        let conn = self.open(EntityType::Osd, &osd.to_string());
        let boot = self.boot_message(osd, 6800 + 10 * osd as u16);
        self.ask(conn, boot);
        conn
    }

    /// Runs a command as client.admin: result, status, output.
    pub fn command_with(&mut self, text: &str, input: Bytes) -> (i32, String, String) {
        let (ret, rs, data) = self.command_raw(text, input);
        (ret, rs, String::from_utf8_lossy(&data).into_owned())
    }

    pub fn command_raw(&mut self, text: &str, input: Bytes) -> (i32, String, Bytes) {
        let conn = self.open(EntityType::Client, "admin");
        self.tid += 1;
        let c = MMonCommand { version: 0, fsid: FSID, cmd: vec![text.into()], input };
        let mut sent = self.send(conn, c.into_message(self.tid));
        let mut turns = 0..100;
        let ack = loop {
            let ack = sent
                .iter()
                .find(|(c, m)| *c == conn && m.tid == self.tid && m.kind == MMonCommandAck::KIND);
            if let Some((_, m)) = ack {
                break MMonCommandAck::from_message(m).unwrap();
            }
            // What shares epochs waits for its turn.
            turns.next().expect("an answer");
            self.now = UTime::from_nanos(self.now.as_nanos() + 50_000_000);
            sent = self.event(MonEvent::Tick);
        };
        self.event(MonEvent::SessionClosed { conn });
        (ack.result, ack.status, ack.output)
    }

    pub fn command(&mut self, text: &str) -> (i32, String, String) {
        self.command_with(text, Bytes::new())
    }

    /// A command that must succeed; its output.
    pub fn ok(&mut self, text: &str) -> String {
        let (ret, rs, data) = self.command(text);
        assert_eq!(ret, 0, "{text}: {rs}");
        data
    }

    /// A command's JSON output.
    pub fn json(&mut self, text: &str) -> Value {
        let with = text.replacen('{', r#"{"format": "json", "#, 1);
        let out = self.ok(&with);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{text}: {e}: {out}"))
    }

    /// Subscribes and returns what comes at once.
    pub fn subscribe(&mut self, conn: u64, what: &str, start: u64, once: bool) -> Vec<Message> {
        let s = Subscription { what: what.into(), start, once };
        self.ask(conn, MMonSubscribe { what: vec![s], hostname: "h".into() })
    }
}

/// Epochs in the OSD map messages among `sent` to `conn`: (fulls, incrementals).
pub fn map_epochs(sent: &[Message]) -> (Vec<u32>, Vec<u32>) {
    let mut fulls = Vec::new();
    let mut incs = Vec::new();
    for m in sent.iter().filter_map(|m| MOsdMap::from_message(m).ok()) {
        fulls.extend(m.fulls.iter().map(|(e, _)| *e));
        incs.extend(m.incrementals.iter().map(|(e, _)| *e));
    }
    (fulls, incs)
}

/// What a manager of that name says when it is ready to be active.
pub fn beacon(gid: u64, name: &str) -> MgrBeacon {
    MgrBeacon {
        fsid: FSID,
        gid,
        name: name.into(),
        addr: addr(6900),
        available: true,
        metadata: [("hostname".to_owned(), "h".to_owned())].into(),
        commands: vec![],
        modules: vec![],
        services: [].into(),
    }
}
