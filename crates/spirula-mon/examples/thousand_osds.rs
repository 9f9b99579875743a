//! What the death of one OSD costs the leader of a cluster of 1,000 OSDs and 30,000 PGs, all of
//! them connected to it: CPU time, and the bytes of the maps it sends.
//!
//! `cargo run --release -p spirula-mon --example thousand_osds`

#![allow(clippy::unwrap_used, reason = "a measurement may stop at the first surprise")]

use rustix::time::{ClockId, clock_gettime};
use spirula_encoding::UTime;
use spirula_messages::Body;
use spirula_messages::ceph::{MMonSubscribe, MOsdMap, Subscription};
use spirula_messages::cluster::control::{OsdBoot, OsdFailureReport};
use spirula_mon::image::{Identity, Stored};
use spirula_mon::{
    InitialPool, MkfsParams, Mon, MonEffect, MonEvent, NewMon, NewOsd, Opening, Peer, mkfs,
};
use spirula_quorum::HardState;
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::collections::BTreeMap;

const OSDS: i32 = 1000;
const FSID: Uuid = Uuid([9; 16]);

fn cpu_ms() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

fn uuid(osd: i32) -> Uuid {
    let mut u = [1; 16];
    u[..4].copy_from_slice(&osd.to_le_bytes());
    Uuid(u)
}

fn addr(osd: i32, port: u16) -> AddrVec {
    let ip = [10, 1, (osd / 250) as u8, (osd % 250) as u8];
    AddrVec::one(EntityAddr::v2((ip, port).into(), 1))
}

struct Lab {
    mon: Mon,
    now: UTime,
}

impl Lab {
    /// Feeds an event; writes are durable at once. Returns what is sent, and the CPU time.
    fn feed(&mut self, event: MonEvent) -> (Vec<(u64, spirula_messages::Message)>, f64) {
        let begun = cpu_ms();
        let (mut out, mut sent) = (Vec::new(), Vec::new());
        self.mon.handle(self.now, event, &mut out);
        while !out.is_empty() {
            let mut next = Vec::new();
            for e in out {
                match e {
                    MonEffect::Send(conn, m) => sent.push((conn, m)),
                    MonEffect::Persist(p) => {
                        self.mon.handle(self.now, MonEvent::Persisted(p.number), &mut next)
                    }
                    _ => {}
                }
            }
            out = next;
        }
        (sent, cpu_ms() - begun)
    }
}

fn main() {
    let now = UTime { sec: 1_795_000_000, nsec: 0 };
    let osd = |id: i32| NewOsd {
        id,
        uuid: uuid(id),
        size_bytes: 4 << 40,
        host: format!("host{}", id / 20),
        device_class: "hdd".into(),
    };
    let pool = |i: u32, pg_num| InitialPool {
        name: format!("pool{i}"),
        pg_num,
        size: 3,
        application: "rados".into(),
    };
    let params = MkfsParams {
        fsid: FSID,
        mons: vec![NewMon { name: "a".into(), addrs: addr(0, 3300), uuid: Uuid([5; 16]) }],
        osds: (0..OSDS).map(osd).collect(),
        failure_domain: "host".into(),
        defaults: BTreeMap::new(),
        pools: vec![pool(1, 16384), pool(2, 8192), pool(3, 4096), pool(4, 1024), pool(5, 304)],
        users: Default::default(),
        service_keys: Default::default(),
    };
    let identity = Identity { fsid: FSID, uuid: Uuid([5; 16]), member: 1 };
    let hard = HardState { term: 1, vote: 0, commit: 1 };
    let snapshot = mkfs(&params, now).unwrap();
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
    let opening = Opening {
        stored,
        name: "a".into(),
        addrs: addr(0, 3300),
        seeds: vec![],
        now,
        boot: 1,
        entropy: Box::new(|b| b.fill(7)),
    };
    let mut mon = Mon::open(opening).unwrap();
    let mut out = Vec::new();
    mon.start(now, &mut out);
    let mut lab = Lab { mon, now };
    for e in out {
        if let MonEffect::Persist(p) = e {
            lab.feed(MonEvent::Persisted(p.number));
        }
    }
    for id in 0..OSDS {
        let conn = id as u64 + 1;
        let features = spirula_types::features::PACIFIC;
        let peer = Peer {
            kind: EntityType::Osd,
            id: id.to_string(),
            global_id: conn,
            addrs: addr(id, 6800),
            features,
        };
        lab.feed(MonEvent::SessionOpened { conn, peer });
        let boot = OsdBoot {
            fsid: FSID,
            osd: id,
            uuid: uuid(id),
            public: addr(id, 6800),
            cluster: addr(id, 6801),
            hb_back: addr(id, 6802),
            hb_front: addr(id, 6803),
            features,
            newest_map: 0,
            was_up: 0,
            unheard: Vec::new(),
            healthy: true,
            quiet: 0,
            size_bytes: 4 << 40,
            device_class: String::new(),
            location: BTreeMap::new(),
            metadata: BTreeMap::new(),
            stood_ms: Default::default(),
        };
        lab.feed(MonEvent::Message { conn, message: boot.into_message(0) });
    }
    let epoch = lab.mon.state().osdmap.epoch;
    for conn in 1..=OSDS as u64 {
        let what =
            vec![Subscription { what: "osdmap".into(), start: u64::from(epoch) + 1, once: false }];
        let message = MMonSubscribe { what, hostname: String::new() }.into_message(0);
        lab.feed(MonEvent::Message { conn, message });
    }
    let map = &lab.mon.state().osdmap;
    let pgs: u32 = map.pools.values().map(|p| p.pg_num).sum();
    println!("{OSDS} OSDs up, {pgs} PGs, OSD map of {} bytes, epoch {epoch}", map.bytes().len());
    for round in 0..5 {
        lab.now.sec += 60;
        let target = 500 + round;
        // Its process is gone, and its connection with it.
        lab.feed(MonEvent::SessionClosed { conn: target as u64 + 1 });
        let report = OsdFailureReport {
            reporter: 1,
            target,
            target_public: addr(target, 6800),
            epoch: lab.mon.state().osdmap.epoch,
            failed_for_ms: 1000,
            refused: true,
            gone: false,
            alive: false,
            waiting: 0,
            outside: Default::default(),
            patience_ms: Default::default(),
            unheard_ms: Default::default(),
        };
        let (sent, ms) = lab.feed(MonEvent::Message { conn: 2, message: report.into_message(0) });
        let maps: Vec<MOsdMap> =
            sent.iter().filter_map(|(_, m)| MOsdMap::from_message(m).ok()).collect();
        let fulls: usize = maps.iter().map(|m| m.fulls.len()).sum();
        let bytes: usize = maps.iter().flat_map(|m| &m.incrementals).map(|(_, b)| b.len()).sum();
        println!(
            "osd.{target} dies: {ms:.1} ms CPU of the leader, {} maps sent ({bytes} bytes of \
                incrementals, {fulls} full maps)",
            maps.len()
        );
        assert_eq!(
            (fulls, maps.len()),
            (0, (OSDS - round - 1) as usize),
            "each of them one incremental"
        );
    }
}
