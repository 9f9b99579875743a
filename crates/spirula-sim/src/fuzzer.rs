//! A client that means harm: bytes that are no messages, messages that are nearly whole, and commands that are valid but for arguments
//! that nobody would give. It has every right, and no luck: nothing that it says may end a monitor, stop the quorum, or change what
//! others see.
//!
//! So its commands name nothing that the rest of the story lives on: OSDs that are not there, pools, users and keys that are its own.

use crate::monitor::addr_of;
use crate::rng::Rng;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use bytes::Bytes;
use serde_json::{Value, json};
use spirula_messages::ceph::{MMonCommand, MMonCommandAck, MMonGetVersion, MMonSubscribe, Subscription};
use spirula_messages::{Body, Message};
use spirula_mon::Peer;
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::any::Any;

/// Commands, and their arguments: each drawn by what it is. `n` is a number, `o` an OSD, `s` a text, `l` a list of texts.
const COMMANDS: &[(&str, &[(&str, char)])] = &[
    ("config-key set", &[("key", 's'), ("val", 's')]),
    ("config-key get", &[("key", 's')]),
    ("config-key rm", &[("key", 's')]),
    ("config set", &[("who", 's'), ("name", 's'), ("value", 's')]),
    ("config rm", &[("who", 's'), ("name", 's')]),
    ("log", &[("level", 's'), ("logtext", 'l')]),
    ("osd blocklist", &[("blocklistop", 's'), ("addr", 's'), ("expire", 'n')]),
    ("auth get-or-create", &[("entity", 's'), ("caps", 'l')]),
    ("auth add", &[("entity", 's'), ("caps", 'l')]),
    ("auth caps", &[("entity", 's'), ("caps", 'l')]),
    ("auth rm", &[("entity", 's')]),
    ("osd erasure-code-profile set", &[("name", 's'), ("profile", 'l'), ("force", 'n')]),
    ("osd crush add-bucket", &[("name", 's'), ("type", 's'), ("args", 'l')]),
    ("osd crush add", &[("id", 'o'), ("weight", 'n'), ("args", 'l')]),
    ("osd crush rm", &[("name", 's')]),
    ("osd crush link", &[("name", 's'), ("args", 'l')]),
    ("osd crush rule create-replicated", &[("name", 's'), ("root", 's'), ("type", 's'), ("class", 's')]),
    ("osd pool set", &[("pool", 's'), ("var", 's'), ("val", 's')]),
    ("osd pool rename", &[("srcpool", 's'), ("destpool", 's')]),
    ("osd pool delete", &[("pool", 's'), ("pool2", 's'), ("yes_i_really_really_mean_it", 'n')]),
    ("osd pool application enable", &[("pool", 's'), ("app", 's')]),
    ("osd reweight", &[("id", 'o'), ("weight", 'n')]),
    ("osd primary-affinity", &[("id", 'o'), ("weight", 'n')]),
    ("osd lost", &[("id", 'o'), ("yes_i_really_mean_it", 'n')]),
    ("osd new", &[("uuid", 's'), ("id", 'o')]),
    ("osd pg-upmap", &[("pgid", 's'), ("id", 'l')]),
    ("osd pg-temp", &[("pgid", 's'), ("id", 'l')]),
    ("osd getmap", &[("epoch", 'n')]),
    ("osd dump", &[("epoch", 'n'), ("format", 's')]),
    ("osd map", &[("pool", 's'), ("object", 's'), ("nspace", 's')]),
    ("osd find", &[("id", 'o')]),
    ("health mute", &[("code", 's'), ("ttl", 's')]),
    ("crash rm", &[("id", 's')]),
    ("join-token create", &[("seconds", 'n')]),
    ("join-token redeem", &[("id", 's'), ("request", 's')]),
    ("status", &[("format", 's')]),
];

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
        let peer = Peer { kind: EntityType::Client, id: "admin".into(), global_id: 0, addrs, features };
        (self.conn, self.ready) = (Some(conn), false);
        out.push(Output::Connect { conn, to, addr: addr_of(to).msgr2(), peer });
    }

    fn bytes(&mut self, most: u64) -> Bytes {
        let n = self.rng.below(most);
        (0..n).map(|_| self.rng.bits() as u8).collect::<Vec<u8>>().into()
    }

    fn text(&mut self) -> String {
        let plain =
            ["fuzz", "client.fuzz", "add", "rm", "10.250.0.1:0/7", "k=2", "host", "json", "", "/", "a/b", "..", "\0"];
        let odd = [
            "\n",
            "-1",
            "%s",
            "*",
            "\u{1f980}",
            "99.ff",
            "1e308",
            "NaN",
            "client.",
            ".",
            "kv/x",
            "{}",
            "10.250.0.0/99",
        ];
        match self.rng.below(8) {
            0 => "9".repeat(self.rng.between(1, 3000) as usize),
            1 => "x".repeat(1 << self.rng.below(17)),
            2 => String::from_utf8_lossy(&self.bytes(40)).into_owned(),
            3..=5 => self.rng.pick(&plain).copied().unwrap_or_default().to_owned(),
            _ => self.rng.pick(&odd).copied().unwrap_or_default().to_owned(),
        }
    }

    fn number(&mut self) -> Value {
        match self.rng.below(10) {
            0 => json!(i64::MIN),
            1 => json!(i64::MAX),
            2 => json!(u64::MAX),
            3 => json!(1e308),
            4 => json!(-1e-320),
            5 => json!(-1),
            6 => json!(null),
            7 => json!([]),
            8 => json!(self.text()),
            _ => json!(self.rng.bits()),
        }
    }

    /// One that is not there, whatever a careless reader makes of the number.
    fn osd(&mut self) -> Value {
        let all =
            [json!(-1), json!(i32::MAX), json!(i64::MIN), json!(1e300), json!(100_000), json!("osd.99999"), json!("")];
        self.rng.pick(&all).cloned().unwrap_or_default()
    }

    fn command(&mut self) -> String {
        let (prefix, args) = self.rng.pick(COMMANDS).copied().unwrap_or_default();
        let mut cmd = serde_json::Map::from_iter([("prefix".to_owned(), prefix.into())]);
        for (name, kind) in args {
            // Left out, or of another kind, now and then.
            let kind = if self.rng.one_in(12) { 'n' } else { *kind };
            let value = match kind {
                _ if self.rng.one_in(12) => continue,
                'o' => self.osd(),
                'l' => (0..self.rng.below(4)).map(|_| self.text()).collect(),
                's' => self.text().into(),
                // An OSD's number may be drawn as any number.
                _ if *name == "id" || *name == "ids" => self.osd(),
                _ => self.number(),
            };
            cmd.insert((*name).to_owned(), value);
        }
        Value::Object(cmd).to_string()
    }

    fn message(&mut self) -> Message {
        self.tid += 1;
        let tid = self.tid;
        match self.rng.below(6) {
            0 => {
                // Any type, and any bytes.
                let kind = if self.rng.one_in(3) { 0x5300 + self.rng.below(128) } else { self.rng.below(200) };
                let (front, data) = (self.bytes(300), self.bytes(100));
                Message { kind: kind as u16, tid, front, data, ..Message::default() }
            }
            1 => {
                // One that was whole.
                let what = vec![Subscription { what: self.text(), start: self.rng.bits(), once: self.rng.one_in(2) }];
                let mut m = match self.rng.below(3) {
                    0 => MMonSubscribe { what, hostname: self.text() }.into_message(tid),
                    1 => MMonGetVersion { handle: self.rng.bits(), what: self.text() }.into_message(tid),
                    _ => MMonCommand { version: 0, fsid: self.fsid, cmd: vec![self.text()], input: self.bytes(50) }
                        .into_message(tid),
                };
                let mut front = m.front.to_vec();
                for _ in 0..self.rng.below(4) {
                    let (at, to) = (self.rng.below(front.len() as u64) as usize, self.rng.bits() as u8);
                    if let Some(b) = front.get_mut(at) {
                        *b = to;
                    }
                }
                front.truncate(self.rng.between(0, 2 * front.len() as u64) as usize);
                m.front = front.into();
                m
            }
            _ => {
                let (cmd, input) = (vec![self.command()], self.bytes(50));
                MMonCommand { version: 0, fsid: self.fsid, cmd, input }.into_message(tid)
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
