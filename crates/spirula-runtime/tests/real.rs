//! Spirula's own client (the monitors' session and the Objecter, over real sockets) with a real
//! Ceph beside it: `bench/ceph-up` starts one, on files, as `cargo xtask ceph up` does. Not among
//! the usual tests: `cargo xtask nightly --only client`, where Debian's ceph-mon, ceph-osd and
//! ceph-mgr are installed.

#![allow(clippy::disallowed_methods, reason = "a test waits")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_client::{Objecter, ObjecterOut, Reply, Request};
use spirula_encoding::UTime;
use spirula_messages::Body;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::{MOsdBackoff, MOsdMap, MOsdOpReply, kind};
use spirula_runtime::auth::{Login, NoneLogin};
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{
    Answer, Hub, Link, LinkMode, MonLink, MonNews, MonWay, Mons, NetEvent, NetSink, Peer, Reactors,
    clock,
};
use spirula_types::{AddrVec, EntityAddr, EntityType, ObjectLocator, OsdId, PoolId, errno};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);
const PORT: u16 = 16_893;

/// A real cluster, stopped in the end.
struct Ceph {
    dir: PathBuf,
    down: PathBuf,
}

impl Ceph {
    /// `None` where none is installed, which is said.
    fn up() -> Option<Self> {
        for program in ["ceph-mon", "ceph-osd", "ceph-mgr", "ceph", "jq", "bc"] {
            let there = |dir: PathBuf| dir.join(program).is_file();
            if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(there) {
                eprintln!("skipped: {program} is not installed");
                return None;
            }
        }
        let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench");
        let dir = std::env::temp_dir().join(format!("spirula-real-{}", std::process::id()));
        let ceph = Self { dir, down: bench.join("ceph-down") };
        let mut up = Command::new(bench.join("ceph-up"));
        up.arg(&ceph.dir).args(["3", "2G"]).env("CEPH_PORT", PORT.to_string());
        assert!(up.status().unwrap().success(), "ceph-up");
        Some(ceph)
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let _ = Command::new(&self.down).arg(&self.dir).status();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The client: what [`MonLink`] and [`Objecter`] want done.
struct Client {
    rt: Reactors,
    hub: Hub,
    me: Peer,
    login: Arc<dyn Login>,
    sink: NetSink,
    events: mpsc::Receiver<NetEvent>,
    mon: MonLink,
    objecter: Objecter,
    osds: BTreeMap<OsdId, Link>,
    done: BTreeMap<u64, Reply>,
    answers: BTreeMap<u64, (i32, Bytes)>,
    /// Asks how new the map is.
    newest: Option<u64>,
}

impl Client {
    fn new() -> Self {
        let rt = Reactors::start(1).unwrap();
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(64 << 20));
        let me = Peer {
            global_id: 7_000_000 + u64::from(std::process::id()),
            ..Peer::new(EntityType::Client, "admin")
        };
        let login = NoneLogin::of(&me);
        let (tx, events) = mpsc::channel();
        let sink = NetSink::new(Arc::new(move |e| drop(tx.send(e))), Arc::default());
        let mons = AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], PORT).into(), 0));
        let way = MonWay {
            hub: hub.clone(),
            me: me.clone(),
            login: login.clone(),
            auth: DaemonAuth::none(),
            sink: sink.clone(),
            on: rt.next(),
        };
        let mut mon = MonLink::new(Mons::new(vec![mons], 1), "", way);
        mon.set_start("monmap", 0);
        mon.set_start("osdmap", 0);
        let (osds, done, answers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            rt,
            hub,
            me,
            login,
            sink,
            events,
            mon,
            objecter: Objecter::new(),
            osds,
            done,
            answers,
            newest: None,
        }
    }

    fn perform(&mut self, out: Vec<ObjecterOut>) {
        for o in out {
            match o {
                ObjecterOut::Connect(osd, addrs) => {
                    let on = self.rt.next();
                    let link = self.hub.connect(
                        &self.me,
                        &self.login,
                        &self.sink,
                        &addrs,
                        EntityType::Osd,
                        &on,
                    );
                    self.osds.insert(osd, link);
                }
                ObjecterOut::Close(osd) => {
                    if let Some(link) = self.osds.remove(&osd) {
                        link.close();
                    }
                }
                ObjecterOut::Send(osd, m) => {
                    self.osds.get(&osd).expect("an open connection").send(m)
                }
                ObjecterOut::Done(tid, reply) => {
                    assert!(self.done.insert(tid, reply).is_none(), "answered twice")
                }
                ObjecterOut::WantMaps(start) => self.mon.subscribe("osdmap", start.into()),
                ObjecterOut::AskNewest => {
                    self.newest = Some(self.mon.newest("osdmap"));
                }
            }
        }
    }

    /// Handles what comes next, if anything does soon.
    fn step(&mut self) {
        let now = clock::monotonic();
        let mut out = Vec::new();
        self.objecter.tick(now, &mut out);
        self.perform(out);
        let mut news = if now >= self.mon.deadline() { self.mon.tick() } else { Vec::new() };
        let event = self.events.recv_timeout(Duration::from_millis(10));
        let osd = |osds: &BTreeMap<OsdId, Link>, id| {
            osds.iter().find(|(_, l)| l.id() == id).map(|(o, _)| *o)
        };
        let mut out = Vec::new();
        match event {
            Ok(NetEvent::Opened { link, .. }) if self.mon.is(link.id()) => {
                news.extend(self.mon.opened())
            }
            Ok(NetEvent::Closed(id, ended)) if self.mon.is(id) => {
                news.extend(self.mon.closed(&ended.why))
            }
            Ok(NetEvent::Message(id, m)) if self.mon.is(id) => news.extend(self.mon.message(m)),
            Ok(NetEvent::Opened { link, .. }) => {
                if let Some(osd) = osd(&self.osds, link.id()) {
                    self.objecter.opened(osd, &mut out);
                }
            }
            Ok(NetEvent::Closed(id, _)) => {
                if let Some(osd) = osd(&self.osds, id) {
                    self.osds.remove(&osd);
                    self.objecter.closed(now, osd);
                }
            }
            Ok(NetEvent::Message(id, m)) => match (osd(&self.osds, id), m.kind) {
                (Some(osd), kind::OSD_OP_REPLY) => {
                    self.objecter.reply(
                        osd,
                        m.tid,
                        MOsdOpReply::from_message(&m).unwrap(),
                        &mut out,
                    );
                }
                (Some(osd), kind::OSD_BACKOFF) => {
                    self.objecter.backoff(osd, MOsdBackoff::from_message(&m).unwrap(), &mut out);
                }
                (Some(_), kind::OSD_MAP) => {
                    self.objecter.maps(now, &MOsdMap::from_message(&m).unwrap(), &mut out).unwrap();
                }
                _ => {}
            },
            Ok(_) | Err(_) => {}
        }
        for n in news {
            match n {
                MonNews::Message(m) if m.kind == kind::OSD_MAP => {
                    self.objecter.maps(now, &MOsdMap::from_message(&m).unwrap(), &mut out).unwrap();
                    self.mon.set_start("osdmap", u64::from(self.objecter.epoch()) + 1);
                }
                MonNews::Answer(call, Answer::Version { newest, .. })
                    if self.newest == Some(call) =>
                {
                    self.objecter.newest(newest as u32, &mut out);
                }
                MonNews::Answer(call, Answer::Command { result, output, status }) => {
                    println!("{result} {status}");
                    self.answers.insert(call, (result, output));
                }
                _ => {}
            }
        }
        self.perform(out);
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(
                Instant::now() < end,
                "not in time: {what}; {} under way",
                self.objecter.under_way()
            );
            self.step();
        }
    }

    fn command(&mut self, json: &str) -> Bytes {
        let call = self.mon.command(json.to_owned(), Bytes::new());
        self.until(json, |c| c.answers.contains_key(&call));
        let (result, output) = self.answers.remove(&call).unwrap();
        assert_eq!(result, 0, "{json}");
        output
    }

    fn submit(&mut self, pool: PoolId, oid: &str, ops: Vec<OsdOp>) -> u64 {
        let locator = ObjectLocator { pool, ..ObjectLocator::default() };
        let mtime = UTime { sec: 1_795_000_000, nsec: 0 };
        let mut out = Vec::new();
        let request = Request::new(locator, Bytes::copy_from_slice(oid.as_bytes()), ops, mtime);
        let tid = self.objecter.submit(request, &mut out);
        self.perform(out);
        tid
    }

    fn done(&mut self, what: &str, tids: &[u64]) -> Vec<Reply> {
        self.until(what, |c| tids.iter().all(|t| c.done.contains_key(t)));
        tids.iter().map(|t| self.done.remove(t).unwrap()).collect()
    }

    fn ask(&mut self, pool: PoolId, oid: &str, ops: Vec<OsdOp>) -> Reply {
        let tid = self.submit(pool, oid, ops);
        self.done(oid, &[tid]).remove(0)
    }
}

fn content(n: usize, round: usize) -> Bytes {
    (0..4096 + 100 * n).map(|i| (i * 7 + n + round * 31) as u8).collect()
}

/// Reads and writes of all kinds; then the same writes while OSDs are marked down and out and PGs
/// are split, each done once and in order; and what there is none of.
#[test]
#[ignore = "starts a real Ceph: cargo xtask nightly --only client"]
fn the_objecter_speaks_with_a_real_ceph() {
    let Some(_ceph) = Ceph::up() else { return };
    let mut c = Client::new();
    c.command(r#"{"prefix": "osd pool create", "pool": "p", "pg_num": 8, "pgp_num": 8}"#);
    c.until("the pool", |c| c.objecter.map().is_some_and(|m| m.pool_by_name("p").is_some()));
    let pool = c.objecter.map().unwrap().pool_by_name("p").unwrap();
    let (key, value) = (Bytes::from_static(b"key"), Bytes::from_static(b"value"));
    for n in 0..20 {
        let oid = format!("o{n}");
        let made = vec![
            OsdOp::write_full(content(n, 0)),
            OsdOp::setxattr(b"_a", b"attribute"),
            OsdOp::omap_set_vals(&[(key.clone(), value.clone())]),
        ];
        let reply = c.ask(pool, &oid, made);
        assert_eq!(reply.result, 0, "{reply:?}");
        let asks = vec![
            OsdOp::read(0, 0),
            OsdOp::getxattr(b"_a"),
            OsdOp::omap_get_vals_by_keys(std::slice::from_ref(&key)),
        ];
        let reply = c.ask(pool, &oid, asks);
        assert_eq!((reply.result, &reply.ops[0].op.indata), (0, &content(n, 0)));
        assert_eq!(&reply.ops[1].op.indata[..], b"attribute");
        assert!(reply.ops[2].op.indata.ends_with(&value));
    }
    assert_eq!(c.ask(pool, "o0", vec![OsdOp::create(true)]).result, -errno::EEXIST);
    assert_eq!(c.ask(pool, "none", vec![OsdOp::stat()]).result, -errno::ENOENT);
    assert_eq!(c.ask(pool, "o0", vec![OsdOp::delete()]).result, 0);
    assert_eq!(c.ask(pool, "o0", vec![OsdOp::read(0, 0)]).result, -errno::ENOENT);
    assert_eq!(
        c.ask(99, "o0", vec![OsdOp::stat()]).result,
        -errno::ENOENT,
        "a pool that there is not"
    );

    // One append after the other to each of some objects, while what serves them changes.
    let mut tids = Vec::new();
    for round in 0..30 {
        for n in 1..20 {
            tids.push(c.submit(pool, &format!("a{n}"), vec![OsdOp::append(content(n, round))]));
        }
        match round {
            3 => drop(c.command(r#"{"prefix": "osd down", "ids": ["0"]}"#)),
            8 => drop(c.command(r#"{"prefix": "osd out", "ids": ["1"]}"#)),
            13 => drop(c.command(
                r#"{"prefix": "osd pool set", "pool": "p", "var": "pg_num", "val": "16"}"#,
            )),
            18 => drop(c.command(r#"{"prefix": "osd down", "ids": ["1", "2"]}"#)),
            23 => drop(c.command(r#"{"prefix": "osd in", "ids": ["1"]}"#)),
            _ => c.step(),
        }
    }
    let resent = tids
        .iter()
        .filter(|t| c.objecter.place(**t).is_some_and(|(_, attempt)| attempt > 0))
        .count();
    for reply in c.done("appends", &tids) {
        assert_eq!(reply.result, 0, "{reply:?}");
    }
    println!("{} appends, {resent} of them under way in another attempt at the end", tids.len());
    for n in 1..20 {
        let all: Vec<u8> = (0..30).flat_map(|round| content(n, round)).collect();
        let reply = c.ask(pool, &format!("a{n}"), vec![OsdOp::read(0, 0)]);
        assert!(reply.result == 0 && reply.ops[0].op.indata == all, "a{n}");
    }
}
