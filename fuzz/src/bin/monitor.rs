//! The monitor under clients and daemons that say anything. Input: `[peer]`, then steps:
//! `[0..=0xf8][command u8]` and for each argument of that command a byte that picks a value;
//! `[0xf9..=0xfc][length u8][JSON text]`; `[0xfd..=0xff]` and the rest a message as in
//! `spirula_fuzz::message`. After it all the durable state must be loadable and complete.
#![no_main]

use bytes::Bytes;
use serde_json::{Map, Value, json};
use spirula_encoding::{Decoder, UTime};
use spirula_fuzz::{check, memory::bounded_by, message};
use spirula_messages::ceph::{MCommand, MMonCommand, kind};
use spirula_messages::cluster::control::*;
use spirula_messages::{Body, Message};
use spirula_mon::image::{Identity, Stored};
use spirula_mon::{
    Entropy, InitialPool, MkfsParams, Mon, MonEffect, MonEvent, NewMon, NewOsd, Opening, Peer, commands, mkfs,
};
use spirula_quorum::{HardState, Persist};
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid, features};
use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};

const FSID: Uuid = Uuid([7; 16]);

const KINDS: &[u16] = &[
    kind::MON_SUBSCRIBE,
    kind::MON_GET_VERSION,
    kind::AUTH,
    kind::PING,
    kind::STATFS,
    kind::GET_POOL_STATS,
    kind::MON_COMMAND,
    kind::COMMAND,
    kind::POOL_OP,
    kind::LOG,
    kind::REMOVE_SNAPS,
    OsdBoot::KIND,
    OsdMarkMeDown::KIND,
    OsdFailureReport::KIND,
    OsdAlive::KIND,
    OsdPgTemp::KIND,
    PgCreateAsk::KIND,
    PgsCreated::KIND,
    MgrBeacon::KIND,
    MgrDigest::KIND,
    MgrRan::KIND,
    MonRun::KIND,
];

/// Values that commands may find interesting.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "-1",
    "0.5",
    "1.0",
    "8",
    "99",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "1e300",
    "nan",
    "a",
    "b",
    "rbd",
    "new",
    "osd.0",
    "osd.1",
    "osd.7",
    "osd.1000000",
    "osd.2147483647",
    "host",
    "root",
    "rack",
    "default",
    "host0",
    "root=default",
    "host=host0",
    "replicated_rule",
    "replicated",
    "erasure",
    "hdd",
    "ssd",
    "all",
    "any",
    "up",
    "down",
    "true",
    "false",
    "json",
    "size",
    "min_size",
    "pg_num",
    "pgp_num",
    "nan",
    "crush_rule",
    "target_size_ratio",
    "noout",
    "full",
    "client.admin",
    "client.x",
    "mon",
    "osd",
    "mgr",
    "x",
    "1.0",
    "1.3",
    "2.ffffffff",
    "127.0.0.1:0/0",
    "127.0.0.1:1/2",
    "10.0.0.0/8",
    "v2:127.0.0.1:3300/0",
    "OSD_DOWN",
    "1h",
    "2w",
    "osd_max_backfills",
    "osd_pool_default_size",
    "host:host0",
    "osd/class:ssd",
    "",
    "00000000-0000-0000-0000-000000000001",
    "\u{e9}\u{1f600}",
    "--yes-i-really-mean-it",
    "allow *",
    "key/with/slash",
];

fn address() -> AddrVec {
    AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], 3300).into(), 0))
}

/// What the only monitor of a new cluster of three OSDs and a pool has stored.
fn fresh() -> Stored {
    let now = UTime { sec: 1_700_000_000, nsec: 0 };
    let osd = |id: i32| NewOsd {
        id,
        uuid: Uuid([id as u8 + 1; 16]),
        size_bytes: 1 << 40,
        host: format!("host{id}"),
        device_class: "ssd".into(),
    };
    let params = MkfsParams {
        fsid: FSID,
        mons: vec![NewMon { name: "a".into(), addrs: address(), uuid: Uuid([5; 16]) }],
        osds: (0..3).map(osd).collect(),
        failure_domain: "host".into(),
        defaults: BTreeMap::new(),
        pools: vec![InitialPool { name: "a".into(), pg_num: 8, ..InitialPool::default() }],
        users: Default::default(),
        service_keys: Default::default(),
    };
    Stored {
        identity: Identity { fsid: FSID, uuid: Uuid([5; 16]), member: 1 },
        hard: HardState { term: 1, vote: 0, commit: 1 },
        snapshot: mkfs(&params, now).expect("a cluster can be made"),
        entries: vec![],
        seq: 0,
        log_stale: false,
        log_end: 0,
        marked: false,
    }
}

/// A monitor started on what is stored.
fn open(stored: &Stored, now: UTime, boot: u64) -> Mon {
    let entropy: Entropy = Box::new(|b: &mut [u8]| b.fill(5));
    let (stored, name, addrs, seeds) = (stored.clone(), "a".into(), address(), vec![]);
    Mon::open(Opening { stored, name, addrs, seeds, now, boot, entropy }).expect("the stored state \
        loads")
}

/// Makes a write durable.
fn write(stored: &mut Stored, p: &Persist) {
    stored.hard = p.hard;
    if let Some(s) = &p.snapshot {
        stored.snapshot = s.clone();
        stored.entries.clear();
    }
    stored.entries.extend(p.entries.iter().cloned());
}

/// Performs what the monitor wants; what it sends goes nowhere.
fn run(mon: &mut Mon, stored: &mut Stored, now: UTime, out: Vec<MonEffect>) {
    let mut todo: VecDeque<_> = out.into();
    while let Some(effect) = todo.pop_front() {
        if let MonEffect::Persist(p) = effect {
            write(stored, &p);
            let mut more = Vec::new();
            mon.handle(now, MonEvent::Persisted(p.number), &mut more);
            todo.extend(more);
        }
    }
}

/// One command, its arguments picked by the input.
fn command(d: &mut Decoder<'_>) -> Option<String> {
    let all = commands::specs().count();
    let spec = commands::specs().nth(usize::from(d.u8().ok()?) % all)?;
    let mut args = Map::new();
    args.insert("prefix".into(), spec.prefix().into());
    for arg in spec.sig.split_whitespace().filter(|w| w.contains('=')) {
        let part = |key: &str| arg.split(',').find_map(|p| p.strip_prefix(key)?.strip_prefix('='));
        let Ok(pick) = d.u8() else { break };
        if pick == 0 && part("req").is_some() {
            continue;
        }
        let choices: Vec<&str> = part("strings").map(|s| s.split('|').collect()).unwrap_or_default();
        let text = match choices.get(usize::from(pick) % choices.len().max(1)) {
            Some(choice) if pick < 200 => *choice,
            _ => VALUES[usize::from(pick) % VALUES.len()],
        };
        let typed = match part("type").unwrap_or_default() {
            "CephInt" => text.parse().map_or(json!(text), |n: i64| json!(n)),
            "CephFloat" => text.parse().map_or(json!(text), |n: f64| json!(n)),
            "CephBool" => json!(text == "true"),
            _ => json!(text),
        };
        let value = if part("n").is_some() { json!([typed]) } else { typed };
        args.insert(part("name")?.to_owned(), value);
    }
    Some(Value::Object(args).to_string())
}

/// The next message of the input.
fn step(d: &mut Decoder<'_>) -> Option<Message> {
    let how = d.u8().ok()?;
    let text = match how {
        0..=0xf8 => command(d)?,
        0xf9..=0xfc => {
            let n = usize::from(d.u8().ok()?).min(d.remaining());
            String::from_utf8_lossy(d.take(n).ok()?).into_owned()
        }
        _ => {
            let m = message(d.rest(), KINDS);
            let _ = d.skip(d.remaining());
            return m;
        }
    };
    let (cmd, input) = (vec![text], Bytes::new());
    Some(if how % 8 == 7 {
        MCommand { fsid: FSID, cmd, input }.into_message(1)
    } else {
        MMonCommand { version: 0, fsid: FSID, cmd, input }.into_message(1)
    })
}

fn peer(how: u8) -> Peer {
    let kind = match how % 3 {
        0 => EntityType::Client,
        1 => EntityType::Osd,
        _ => EntityType::Mgr,
    };
    let id = if kind == EntityType::Client { "admin" } else { "1" };
    let addrs = AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], 7000).into(), 5));
    Peer { kind, id: id.into(), global_id: 5, addrs, features: features::PACIFIC }
}

thread_local!(static FRESH: OnceCell<Stored> = const { OnceCell::new() });

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut stored = FRESH.with(|k| k.get_or_init(fresh).clone());
    bounded_by(64 << 20, 4096, data, |data| {
        let mut d = Decoder::new(data);
        let Ok(how) = d.u8() else { return };
        let mut now = UTime { sec: 1_700_000_100, nsec: 0 };
        let mut mon = open(&stored, now, 1);
        let mut out = Vec::new();
        mon.start(now, &mut out);
        run(&mut mon, &mut stored, now, out);
        let mut events = vec![MonEvent::SessionOpened { conn: 1, peer: peer(how) }];
        events
            .extend(std::iter::from_fn(|| step(&mut d)).take(8).map(|message| MonEvent::Message { conn: 1, message }));
        events.extend([MonEvent::Tick, MonEvent::SessionClosed { conn: 1 }, MonEvent::Tick]);
        for event in events {
            now.sec += 40;
            let mut out = Vec::new();
            mon.handle(now, event, &mut out);
            run(&mut mon, &mut stored, now, out);
        }
        let mut again = open(&stored, now, 2);
        let mut out = Vec::new();
        again.start(now, &mut out);
        run(&mut again, &mut stored, now, out);
        let (was, is) = (mon.state(), again.state());
        assert!(was.osdmap.bytes() == is.osdmap.bytes(), "the OSD map is what was stored");
        assert!(was.monmap == is.monmap && was.mgrmap == is.mgrmap && was.fsmap == is.fsmap, "and \
            the other maps");
        check(&**was.osdmap);
    });
});
