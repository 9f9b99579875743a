//! A client that means harm: bytes that are no messages, messages that are nearly whole, and every
//! command that monitors know, with arguments that nobody would give. It has every right, and no
//! luck: nothing that it says may end a monitor, stop the quorum, or change what others see.
//!
//! Its commands are drawn from the monitors' own table by the signatures, so that a new command is
//! among them without a word here. They name nothing that the rest of the story lives on: OSDs that
//! are not there, pools, users and keys that are its own. Commands that name nothing and mean the
//! whole cluster are left out ([`WHOLE`]).

use crate::monitor::addr_of;
use crate::rng::Rng;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use bytes::Bytes;
use serde_json::{Value, json};
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::{
    MCommand, MMonCommand, MMonCommandAck, MMonGetVersion, MMonSubscribe, Subscription,
};
use spirula_messages::{Body, Message};
use spirula_mon::Peer;
use spirula_mon::commands::CommandSpec;
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::any::Any;
use std::sync::LazyLock;

/// Beginnings of commands that the rest of the story lives on, whatever their arguments are.
const WHOLE: &[&str] = &[
    "mgr fail",
    "mgr module",
    // Takes the number of an OSD that is about to join.
    "osd create",
    "osd pause",
    "osd set ",
    "osd set-",
    "osd unset ",
    "osd setmaxosd",
    "osd reweight-by",
    "osd crush reweight-all",
    "osd crush tunables",
    "osd crush weight-set",
];
/// How names of pools begin that the rest of the story lives on.
const STORY: [&str; 3] = ["pool", "coded", "made"];
/// Names that its own things have.
const NAMES: &[&str] = &["fuzz", "client.fuzz", "buzz"];
/// What some arguments may well be.
const PLAIN: &[&str] = &[
    "add",
    "rm",
    // As a range it would be none: the clients of the story are not to be shut out.
    "10.250.0.1:0/4711",
    "10.250.0.0/24",
    "v2:10.250.0.1:3300/0",
    "k=2",
    "m=1",
    "crush-failure-domain=osd",
    "root=fuzz",
    "host=fuzz",
    "host",
    "rack",
    "replicated",
    "erasure",
    "json",
    "xml",
    "mon",
    "allow r",
    "allow *",
    "99.0",
    "99.ff",
    "1h",
    "pg_num",
    "pgp_num",
    "size",
    "min_size",
    "quota_max_bytes",
    "max_objects",
    "compression_mode",
    "pg_autoscale_mode",
    "mon_max_pg_per_osd",
    "client.fuzz",
    "--yes-i-really-really-mean-it",
];
/// What no argument should be.
const ODD: &[&str] = &[
    "",
    "/",
    "a/b",
    "..",
    ".",
    "\0",
    "\n",
    "-1",
    "%s",
    "*",
    "\u{1f980}",
    "1e308",
    "NaN",
    "inf",
    "client.",
    "kv/x",
    "{}",
    "[]",
    "10.250.0.0/99",
    "[::]:0/0",
    "k=0",
    "k=4294967295",
    "m=-1",
    "k=2 m=2",
    "root=",
    "=",
    "allow",
    "allow profile",
    "allow command \"",
    "9999999999999999999h",
    "osd.",
    "osd.-1",
    "2147483648.0",
    "1.ffffffffff",
];

/// Is a pool of that name one of the story, not one that was made here?
pub fn is_of_the_story(pool: &str) -> bool {
    STORY.iter().any(|s| pool.starts_with(s))
}

/// A vector of operations with arguments that nobody would give. What it may write is little, or
/// more than any object may have.
pub fn odd_ops(rng: &mut Rng) -> Vec<OsdOp> {
    let all: Vec<u16> = (0x1000..0x3000).filter(|n| op::name(*n) != "???").collect();
    (0..rng.between(1, 4)).map(|_| odd_op(&all, rng)).collect()
}

fn odd_op(all: &[u16], rng: &mut Rng) -> OsdOp {
    let number =
        if rng.one_in(16) { rng.bits() as u16 } else { rng.pick(all).copied().unwrap_or_default() };
    let mut o = OsdOp::new(number);
    let bytes = rng.below(200);
    o.indata = (0..bytes).map(|_| rng.bits() as u8).collect::<Vec<u8>>().into();
    let number = |rng: &mut Rng| match rng.below(8) {
        0 => u64::MAX,
        1 => 1 << rng.between(31, 63),
        2 => (1 << rng.between(32, 63)) - 1,
        3 => 0,
        4 | 5 => bytes,
        _ => rng.below(5000),
    };
    let words = [number(rng), number(rng), number(rng)];
    for (to, from) in o.union.chunks_mut(8).zip(words) {
        to.iter_mut().zip(from.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
    match rng.below(4) {
        // Lengths of a name and a value, which fit or do not; how to compare.
        0 | 1 => {
            let name = rng.below(bytes + 1) as u32;
            let value = if rng.one_in(4) { rng.bits() as u32 } else { bytes as u32 - name };
            let (name, value) = (name.to_le_bytes(), value.to_le_bytes());
            o.union.iter_mut().zip(name.into_iter().chain(value)).for_each(|(to, from)| *to = from);
            o.union[8..10].fill(rng.below(9) as u8);
        }
        2 if rng.one_in(8) => o.union.iter_mut().for_each(|b| *b = rng.bits() as u8),
        _ => {}
    }
    if matches!(o.op, op::WATCH | op::NOTIFY) {
        // What becomes of a watch or a notification is told by cookies, which a client gives out
        // itself: those of its own have small numbers.
        o.union[7] |= 0x80;
    }
    o.flags = if rng.one_in(8) { rng.bits() as u32 } else { rng.below(4) as u32 };
    o
}

/// The client.
pub struct Fuzzer {
    mons: Vec<ActorId>,
    fsid: Uuid,
    rng: Rng,
    conn: Option<u64>,
    ready: bool,
    next_conn: u64,
    tid: u64,
    /// Says nothing more.
    pub quiet: bool,
    /// Commands that were refused, and that were done.
    pub answered: [u64; 2],
    /// Connections that ended for what it said.
    pub thrown_out: u64,
}

/// The commands that it may give.
fn safe() -> &'static [&'static CommandSpec] {
    static SAFE: LazyLock<Vec<&CommandSpec>> = LazyLock::new(|| {
        let whole =
            |s: &CommandSpec| WHOLE.iter().any(|w| format!("{} ", s.prefix()).starts_with(w));
        spirula_mon::commands::specs().filter(|s| !whole(s)).collect()
    });
    &SAFE
}

impl Fuzzer {
    /// One that knows these monitors.
    pub fn new(mons: Vec<ActorId>, fsid: Uuid, rng: Rng) -> Self {
        Self {
            mons,
            fsid,
            rng,
            conn: None,
            ready: false,
            next_conn: 0,
            tid: 0,
            quiet: false,
            answered: [0; 2],
            thrown_out: 0,
        }
    }

    fn connect(&mut self, local: Local, out: &mut Vec<Output>) {
        let Some(to) = self.rng.pick(&self.mons).copied() else { return };
        self.next_conn += 1;
        let conn = World::conn_numbers(local.id) + self.next_conn;
        let (addrs, features) = (AddrVec::default(), spirula_types::features::PACIFIC);
        let peer =
            Peer { kind: EntityType::Client, id: "admin".into(), global_id: 0, addrs, features };
        (self.conn, self.ready) = (Some(conn), false);
        out.push(Output::Connect { conn, to, addr: addr_of(to).msgr2(), peer });
    }

    fn bytes(&mut self, most: u64) -> Bytes {
        let n = self.rng.below(most);
        (0..n).map(|_| self.rng.bits() as u8).collect::<Vec<u8>>().into()
    }

    fn of(&mut self, all: &[&str]) -> String {
        self.rng.pick(all).copied().unwrap_or_default().to_owned()
    }

    fn text(&mut self) -> String {
        match self.rng.below(16) {
            0 => "9".repeat(self.rng.between(1, 3000) as usize),
            1 => "x".repeat(2 << self.rng.below(17)),
            2 => match String::from_utf8_lossy(&self.bytes(40)).into_owned() {
                // The monitors of the story are called by one letter each, and are not to be
                // removed.
                monitor if monitor.len() == 1 => monitor + "_",
                text => text,
            },
            3..=7 => self.of(NAMES),
            8..=12 => self.of(PLAIN),
            _ => self.of(ODD),
        }
    }

    fn number(&mut self) -> Value {
        match self.rng.below(16) {
            0 => json!(i64::MIN),
            1 => json!(i64::MAX),
            2 => json!(u64::MAX),
            3 => json!(1e308),
            4 => json!(-1e-320),
            5 => json!(-1),
            6 => json!(null),
            7 => json!([]),
            8 => json!(self.text()),
            9 => json!(1u64 << self.rng.below(64)),
            10 => json!(self.rng.bits()),
            _ => json!(self.rng.below(10)),
        }
    }

    /// One that is not there, whatever a careless reader makes of the number.
    fn osd(&mut self) -> Value {
        let all = [
            json!(-1),
            json!(i32::MAX),
            json!(i64::MIN),
            json!(1e300),
            json!(100_000),
            json!("osd.99999"),
            json!(""),
        ];
        self.rng.pick(&all).cloned().unwrap_or_default()
    }

    /// An argument as its signature describes it, or another.
    fn argument(&mut self, name: &str, word: &str) -> Value {
        let field =
            |key: &str| word.split(',').find_map(|p| p.strip_prefix(key)?.strip_prefix('='));
        // An OSD may be drawn as any text or number.
        if field("type") == Some("CephOsdName") || ["id", "ids", "osds", "who_osd"].contains(&name)
        {
            return self.osd();
        }
        match field("type") {
            _ if self.rng.one_in(16) => self.number(),
            Some("CephInt" | "CephFloat") => match field("range").and_then(|r| r.split('|').next())
            {
                Some(low) if self.rng.one_in(4) => json!(low.parse::<f64>().unwrap_or_default()),
                _ => self.number(),
            },
            Some("CephBool") => json!(self.rng.one_in(2)),
            Some("CephChoices") if !self.rng.one_in(8) => {
                let all: Vec<&str> = field("strings").unwrap_or_default().split('|').collect();
                self.of(&all).into()
            }
            Some("CephPoolname") if !self.rng.one_in(8) => self.of(NAMES).into(),
            _ => self.text().into(),
        }
    }

    fn command(&mut self) -> String {
        let Some(spec) = self.rng.pick(safe()).copied() else { return String::new() };
        let mut cmd = serde_json::Map::from_iter([("prefix".to_owned(), spec.prefix().into())]);
        for word in spec.sig.split_whitespace() {
            let Some(name) = word.strip_prefix("name=").and_then(|w| w.split(',').next()) else {
                continue;
            };
            let optional = word.to_lowercase().contains("req=false");
            if self.rng.one_in(if optional { 2 } else { 20 }) {
                continue;
            }
            let value = match word.contains(",n=") && !self.rng.one_in(8) {
                true => (0..self.rng.below(5)).map(|_| self.argument(name, word)).collect(),
                false => self.argument(name, word),
            };
            cmd.insert(name.to_owned(), value);
        }
        if self.rng.one_in(4) {
            cmd.insert(
                "format".to_owned(),
                self.of(&["json", "json-pretty", "xml", "xml-pretty", "yaml", "plain", "x"]).into(),
            );
        }
        Value::Object(cmd).to_string()
    }

    /// What some commands read.
    fn input(&mut self) -> Bytes {
        match self.rng.below(6) {
            0 => self.bytes(300),
            1 => {
                format!("[client.{}]\n\tkey = {}\n\tcaps mon = \"{}\"\n", self.text(), self.text(), self.text()).into()
            }
            2 => format!("[{}]\n\t{} = {}\n", self.text(), self.text(), self.text()).into(),
            3 => json!({"crash_id": self.text(), "timestamp": self.text(), "entity_name": self.number()})
                .to_string()
                .into(),
            _ => Bytes::new(),
        }
    }

    fn message(&mut self) -> Message {
        self.tid += 1;
        let tid = self.tid;
        match self.rng.below(24) {
            0 => {
                // Any type, and any bytes.
                let kind = if self.rng.one_in(3) {
                    0x5300 + self.rng.below(128)
                } else {
                    self.rng.below(200)
                };
                let (front, data) = (self.bytes(300), self.bytes(100));
                Message { kind: kind as u16, tid, front, data, ..Message::default() }
            }
            1 => {
                // One that was whole.
                let what = vec![Subscription {
                    what: self.text(),
                    start: self.rng.bits(),
                    once: self.rng.one_in(2),
                }];
                let mut m = match self.rng.below(3) {
                    0 => MMonSubscribe { what, hostname: self.text() }.into_message(tid),
                    1 => MMonGetVersion { handle: self.rng.bits(), what: self.text() }
                        .into_message(tid),
                    _ => MMonCommand {
                        version: 0,
                        fsid: self.fsid,
                        cmd: vec![self.text()],
                        input: self.bytes(50),
                    }
                    .into_message(tid),
                };
                let mut front = m.front.to_vec();
                for _ in 0..self.rng.below(4) {
                    let (at, to) =
                        (self.rng.below(front.len() as u64) as usize, self.rng.bits() as u8);
                    if let Some(b) = front.get_mut(at) {
                        *b = to;
                    }
                }
                front.truncate(self.rng.between(0, 2 * front.len() as u64) as usize);
                m.front = front.into();
                m
            }
            2 if self.rng.one_in(4) => {
                // More than a request may have, or nearly.
                let input = vec![b'x'; 1 << self.rng.between(16, 23)].into();
                MMonCommand { version: 0, fsid: self.fsid, cmd: vec![self.command()], input }
                    .into_message(tid)
            }
            _ => {
                let (cmd, input) = (vec![self.command()], self.input());
                match self.rng.one_in(16) {
                    true => MCommand { fsid: self.fsid, cmd, input }.into_message(tid),
                    false => {
                        MMonCommand { version: 0, fsid: self.fsid, cmd, input }.into_message(tid)
                    }
                }
            }
        }
    }
}

impl Actor for Fuzzer {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Tick if self.quiet => {}
            Input::Tick => match self.conn.filter(|_| self.ready) {
                None if self.conn.is_none() || self.rng.one_in(20) => self.connect(local, out),
                None => {}
                Some(conn) => {
                    for _ in 0..self.rng.between(1, 4) {
                        let m = self.message();
                        out.push(Output::Send(conn, m));
                    }
                }
            },
            Input::Opened { conn, .. } if self.conn == Some(conn) => self.ready = true,
            Input::Closed { conn, .. } if self.conn == Some(conn) => {
                (self.conn, self.ready) = (None, false);
                self.thrown_out += 1;
            }
            Input::Message { message, .. } => {
                if let Ok(ack) = MMonCommandAck::from_message(&message) {
                    self.answered[usize::from(ack.result >= 0)] += 1;
                }
            }
            _ => {}
        }
    }

    fn crash(&mut self, _: &mut Rng) {
        (self.conn, self.ready) = (None, false);
    }

    fn admits(&mut self, _: &mut Peer, _: &EntityAddr) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
