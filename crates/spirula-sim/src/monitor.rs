//! A monitor in the world: its state machine, its disk, its ways to the others.

use crate::disk::Disk;
use crate::rng::Rng;
use crate::scenario::Bug;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use bytes::Bytes;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck, kind};
use spirula_messages::{Body, Message};
use spirula_mon::{Mon, MonEffect, MonEvent, Now, Opening, Peer};
use spirula_quorum::{Persist, Role};
use spirula_runtime::limits::REQUEST_BYTES;
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

/// Both times as a real monitor has them: its silences are counted by the clock that nobody sets.
fn times(local: Local) -> Now {
    Now { mono: local.mono, wall: local.wall }
}

/// Where the monitor that is actor `id` listens.
pub fn addr_of(id: ActorId) -> AddrVec {
    AddrVec::one(EntityAddr::v2(([10, 0, 0, 1], 1000 + id as u16).into(), 0))
}

/// The monitor that listens there.
pub fn id_of(addrs: &AddrVec) -> Option<ActorId> {
    usize::from(addrs.msgr2().addr?.port()).checked_sub(1000)
}

/// The monitor.
pub struct MonActor {
    /// Its name.
    pub name: String,
    /// What survives.
    pub disk: Disk,
    /// What does not.
    pub mon: Option<Mon>,
    seeds: Vec<AddrVec>,
    rng: Rng,
    bug: Option<Bug>,
    /// Own connections to other monitors, by the other.
    ways: BTreeMap<ActorId, u64>,
    /// Connections others opened.
    conns: BTreeSet<u64>,
    /// Those of them that are clients'.
    clients: BTreeSet<u64>,
    next_conn: u64,
    /// Writes that wait for the disk, and those under way with the last number of them.
    waiting: Vec<Persist>,
    writing: Option<u64>,
    /// Slowest write, microseconds.
    pub disk_us: u64,
    /// Who led in which term, as this monitor had it; taken by the checks.
    pub led: Vec<(u64, u64)>,
    /// State as applied, after some of the entries; taken by the checks.
    pub states: Vec<(u64, Bytes)>,
    last_applied: u64,
    /// Why the store could not be opened.
    pub refused: Option<String>,
}

impl MonActor {
    /// A monitor on a disk.
    pub fn new(name: &str, disk: Disk, seeds: Vec<AddrVec>, rng: Rng, bug: Option<Bug>) -> Self {
        Self {
            name: name.to_owned(),
            disk,
            mon: None,
            seeds,
            rng,
            bug,
            ways: BTreeMap::new(),
            conns: BTreeSet::new(),
            clients: BTreeSet::new(),
            next_conn: 0,
            waiting: Vec::new(),
            writing: None,
            disk_us: 2000,
            led: Vec::new(),
            states: Vec::new(),
            last_applied: 0,
            refused: None,
        }
    }

    fn open(&mut self, local: Local, out: &mut Vec<MonEffect>) {
        let stored = match self.disk.open() {
            Ok(s) => s,
            Err(e) => {
                self.refused = Some(e.to_string());
                return;
            }
        };
        let mut draw = self.rng.fork();
        let opening = Opening {
            stored,
            name: self.name.clone(),
            addrs: addr_of(local.id),
            seeds: self.seeds.clone(),
            now: local.wall,
            boot: self.rng.bits(),
            entropy: Box::new(move |b| b.iter_mut().for_each(|b| *b = draw.bits() as u8)),
        };
        match Mon::open(opening) {
            Ok(mut mon) => {
                if let Some(Bug::Poison(poison)) = self.bug {
                    mon.poison(poison);
                }
                mon.start(times(local), out);
                self.mon = Some(mon);
            }
            Err(e) => self.refused = Some(e.to_string()),
        }
    }

    fn feed(&mut self, local: Local, event: MonEvent, out: &mut Vec<Output>) {
        let mut fx = Vec::new();
        if let Some(mon) = &mut self.mon {
            mon.handle(times(local), event, &mut fx);
            while mon.has_more() {
                mon.handle(times(local), MonEvent::More, &mut fx);
            }
        }
        self.perform(local, fx, out);
    }

    /// Sends those OSD maps for which there was no room at once.
    fn send_osdmaps(&mut self, local: Local, out: &mut Vec<Output>) {
        let mut fx = Vec::new();
        if let Some(mon) = &mut self.mon {
            mon.owed_osdmaps().into_iter().for_each(|conn| mon.send_next_osdmaps(conn, &mut fx));
        }
        self.perform(local, fx, out);
    }

    fn perform(&mut self, local: Local, fx: Vec<MonEffect>, out: &mut Vec<Output>) {
        for e in fx {
            match e {
                MonEffect::Send(conn, m) => out.push(Output::Send(conn, m)),
                MonEffect::Close(conn) => out.push(Output::Close(conn)),
                MonEffect::Persist(p) => self.waiting.push(p),
                MonEffect::Member(id) => self.disk.identity.member = id,
                MonEffect::SendPeer(_, addrs, m) => {
                    let Some(to) = id_of(&addrs) else { continue };
                    let conn = *self.ways.entry(to).or_insert_with(|| {
                        self.next_conn += 1;
                        let conn = World::conn_numbers(local.id) + self.next_conn;
                        let peer = Peer {
                            kind: EntityType::Mon,
                            id: self.name.clone(),
                            global_id: 0,
                            addrs: addr_of(local.id),
                            features: spirula_types::features::PACIFIC,
                        };
                        out.push(Output::Connect { conn, to, addr: addrs.msgr2(), peer });
                        conn
                    });
                    out.push(Output::Send(conn, m));
                }
                MonEffect::Stop(why) => out.push(Output::Exit(why)),
            }
        }
        self.start_write(out);
        self.note();
    }

    fn start_write(&mut self, out: &mut Vec<Output>) {
        if self.writing.is_some() || self.waiting.is_empty() {
            return;
        }
        let writes = std::mem::take(&mut self.waiting);
        self.disk.write(&writes);
        let number = writes.last().map_or(0, |p| p.number);
        self.writing = Some(number);
        let after = self.rng.between(100, self.disk_us);
        // The planted bug says that it is done before it is.
        out.push(Output::Timer(
            number,
            if self.bug == Some(Bug::AckBeforeSync) { 1 } else { after },
        ));
    }

    /// Notes what the checks want to know.
    fn note(&mut self) {
        let Some(mon) = &self.mon else { return };
        let Some(node) = mon.node() else { return };
        let status = node.status();
        if status.role == Role::Leader && self.led.last() != Some(&(status.term, node.id())) {
            self.led.push((status.term, node.id()));
        }
        let applied = node.applied();
        if applied != self.last_applied {
            self.last_applied = applied;
            if applied.is_multiple_of(4) {
                self.states.push((applied, mon.state().to_bytes()));
            }
        }
    }

    /// The planted bug: who leads, or believes so, answers reads without asking anyone.
    fn stale_answer(&self, m: &Message) -> Option<Message> {
        if self.bug != Some(Bug::StaleLeaderReads) || m.kind != kind::MON_COMMAND {
            return None;
        }
        let mon = self.mon.as_ref().filter(|m| m.leads())?;
        let c = MMonCommand::from_message(m).ok()?;
        let v: serde_json::Value = serde_json::from_str(&c.cmd.concat()).ok()?;
        if v["prefix"] != "config-key get" {
            return None;
        }
        let output = mon.state().kv.get(v["key"].as_str()?)?.clone();
        Some(
            MMonCommandAck { version: 0, result: 0, status: String::new(), cmd: c.cmd, output }
                .into_message(m.tid),
        )
    }
}

impl Actor for MonActor {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Start => {
                let mut fx = Vec::new();
                self.open(local, &mut fx);
                self.perform(local, fx, out);
            }
            Input::Tick => {
                self.feed(local, MonEvent::Tick, out);
                self.send_osdmaps(local, out);
            }
            Input::Timer(number) => {
                if self.bug != Some(Bug::AckBeforeSync) || self.rng.one_in(3) {
                    self.disk.sync();
                }
                self.writing = None;
                self.feed(local, MonEvent::Persisted(number), out);
            }
            Input::Opened { conn, peer, .. } => {
                if self.ways.values().all(|c| *c != conn) {
                    self.conns.insert(conn);
                    if peer.kind == EntityType::Client {
                        self.clients.insert(conn);
                    }
                    self.feed(local, MonEvent::SessionOpened { conn, peer }, out);
                }
            }
            Input::Message { conn, message } => {
                let bytes = message.front.len() + message.middle.len() + message.data.len();
                if let Some(answer) = self.stale_answer(&message) {
                    out.push(Output::Send(conn, answer));
                } else if self.clients.contains(&conn) && bytes > REQUEST_BYTES {
                    // Its messenger keeps nothing of it but the header.
                    let header =
                        Message { kind: message.kind, tid: message.tid, ..Message::default() };
                    out.extend(
                        spirula_mon::too_large(&header).map(|answer| Output::Send(conn, answer)),
                    );
                } else if self.conns.contains(&conn) {
                    self.feed(local, MonEvent::Message { conn, message }, out);
                }
            }
            Input::Closed { conn, .. } => {
                self.ways.retain(|_, c| *c != conn);
                self.clients.remove(&conn);
                if self.conns.remove(&conn) {
                    self.feed(local, MonEvent::SessionClosed { conn }, out);
                }
            }
            Input::Called { .. } | Input::Bytes { .. } | Input::Broken { .. } => {}
        }
    }

    fn crash(&mut self, rng: &mut Rng) {
        self.mon = None;
        self.disk.crash(rng);
        self.ways.clear();
        self.conns.clear();
        self.clients.clear();
        self.waiting.clear();
        self.writing = None;
        self.last_applied = 0;
    }

    fn admits(&mut self, peer: &mut Peer, _: &EntityAddr) -> bool {
        let Some(mon) = &self.mon else { return false };
        if peer.kind == EntityType::Mon || peer.global_id != 0 {
            return true;
        }
        match mon.new_global_id() {
            Some(id) => {
                peer.global_id = id;
                true
            }
            None => false,
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl MonActor {
    /// What it thinks of itself, for a failure's message.
    pub fn describe(&self) -> String {
        let Some(node) = self.mon.as_ref().and_then(Mon::node) else {
            return "does not run".into();
        };
        let ways: Vec<_> = self.ways.keys().collect();
        let lags: Vec<_> = node
            .members()
            .voters
            .iter()
            .map(|v| (*v, node.lag_of(*v), node.silent_for(*v)))
            .collect();
        format!("{node:?} members {:?} ways {ways:?} lag and silence {lags:?}", node.members())
    }

    /// It starts next on an empty disk, as a monitor that lost its own.
    pub fn join_anew(&mut self, disk: Disk, seeds: Vec<AddrVec>) {
        (self.disk, self.seeds) = (disk, seeds);
    }
}
