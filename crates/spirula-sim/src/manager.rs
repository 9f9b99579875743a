//! A manager in the world: its state machine and its ways to monitors and OSDs. It keeps nothing,
//! so that a crash makes a new one; the administrator's commands for it are given to it here.

use crate::monitor::{addr_of, id_of};
use crate::rng::Rng;
use crate::scenario::FSID;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use bytes::Bytes;
use spirula_client::{MonitorOut, Monitors, Mons};
use spirula_messages::Body;
use spirula_messages::ceph::{MMgrCommand, MMgrCommandReply};
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now, Peer};
use spirula_settings::Settings;
use spirula_types::{EntityAddr, EntityName, EntityType, Uuid};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The administrator's connection, which no link has.
const ADMIN: u64 = 0;

/// The manager.
pub struct Manager {
    mons: Vec<ActorId>,
    rng: Rng,
    mgr: Option<Mgr>,
    monitors: Monitors,
    /// The connection to a monitor.
    mon: Option<u64>,
    conns: BTreeSet<u64>,
    next_conn: u64,
    /// Commands to be given to it.
    pub orders: VecDeque<String>,
    /// What it answered to them.
    pub answers: Vec<(i32, String)>,
}

impl Manager {
    /// One that knows these monitors.
    pub fn new(mons: Vec<ActorId>, rng: Rng) -> Self {
        Self {
            monitors: Monitors::new(Mons::default(), ""),
            mons,
            rng,
            mgr: None,
            mon: None,
            conns: BTreeSet::new(),
            next_conn: 0,
            orders: VecDeque::new(),
            answers: Vec::new(),
        }
    }

    fn feed(&mut self, local: Local, event: MgrEvent, out: &mut Vec<Output>) {
        let mut fx = Vec::new();
        if let Some(mgr) = &mut self.mgr {
            mgr.handle(Now { mono: local.mono, wall: local.wall }, event, &mut fx);
        }
        for e in fx {
            match e {
                MgrEffect::Send(ADMIN, m) => {
                    if let Ok(r) = MMgrCommandReply::from_message(&m) {
                        self.answers.push((r.result, r.status));
                    }
                }
                MgrEffect::Send(conn, m) => out.push(Output::Send(conn, m)),
                MgrEffect::SendMon(m) => out.extend(self.mon.map(|conn| Output::Send(conn, m))),
                MgrEffect::Subscribe(what, start) => {
                    self.with_monitors(local, out, |m, asks| m.subscribe(what, start, asks));
                }
                MgrEffect::Close(conn) => out.push(Output::Close(conn)),
                // Nobody asks what images do here.
                MgrEffect::Read(_) => {}
            }
        }
    }

    fn fresh_monitors(&mut self) {
        let mons = self.mons.iter().map(|m| addr_of(*m)).collect();
        self.monitors = Monitors::new(Mons::new(mons, self.rng.bits()), "");
        (self.mgr, self.mon) = (None, None);
    }

    /// Lets `f` have its session with a monitor, and does what comes of it.
    fn with_monitors<T>(
        &mut self,
        local: Local,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut Monitors, &mut Vec<MonitorOut>) -> T,
    ) -> T {
        let mut asks = Vec::new();
        let result = f(&mut self.monitors, &mut asks);
        self.ask(local, asks, out);
        result
    }

    /// Does what its session with a monitor wants.
    fn ask(&mut self, local: Local, todo: Vec<MonitorOut>, out: &mut Vec<Output>) {
        for o in todo {
            match o {
                MonitorOut::Connect(to) => {
                    if let Some(to) = id_of(&to) {
                        self.connect(local, to, out);
                    }
                }
                MonitorOut::Close => out.extend(self.mon.take().map(Output::Close)),
                MonitorOut::Send(m) => out.extend(self.mon.map(|conn| Output::Send(conn, m))),
                MonitorOut::Opened => self.feed(local, MgrEvent::MonOpened, out),
                MonitorOut::Lost(_) | MonitorOut::Answer(..) => {}
            }
        }
    }

    fn connect(&mut self, local: Local, to: ActorId, out: &mut Vec<Output>) {
        self.next_conn += 1;
        let conn = World::conn_numbers(local.id) + self.next_conn;
        let peer = spirula_mon::Peer {
            kind: EntityType::Mgr,
            id: "x".into(),
            global_id: 0,
            addrs: addr_of(local.id),
            features: spirula_types::features::PACIFIC,
        };
        self.mon = Some(conn);
        out.push(Output::Connect { conn, to, addr: addr_of(to).msgr2(), peer });
    }

    fn begin(&mut self, local: Local, gid: u64) {
        let config = MgrConfig {
            fsid: FSID,
            gid,
            name: "x".into(),
            addrs: addr_of(local.id),
            hostname: "host".into(),
            metadata: BTreeMap::new(),
            settings: Settings::default(),
        };
        self.mgr = Some(Mgr::new(config, Now { mono: local.mono, wall: local.wall }));
    }

    fn tick(&mut self, local: Local, out: &mut Vec<Output>) {
        let (was_open, mut asks) = (self.monitors.is_open(), Vec::new());
        self.monitors.tick(local.mono, &mut asks);
        if was_open && !self.monitors.is_open() {
            self.feed(local, MgrEvent::MonClosed, out);
        }
        self.ask(local, asks, out);
        self.feed(local, MgrEvent::Tick, out);
        if self.mgr.is_some()
            && let Some(order) = self.orders.pop_front()
        {
            let m = MMgrCommand { fsid: Uuid::default(), cmd: vec![order], input: Bytes::new() };
            let peer = Peer {
                name: EntityName::client(1),
                global_id: 1,
                auth_id: "admin".into(),
                addrs: addr_of(local.id),
                place: None,
                caps: None,
            };
            self.feed(local, MgrEvent::SessionOpened { conn: ADMIN, peer }, out);
            self.feed(local, MgrEvent::Message { conn: ADMIN, message: m.into_message(1) }, out);
            self.feed(local, MgrEvent::SessionClosed { conn: ADMIN }, out);
        }
    }
}

impl Actor for Manager {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Tick => self.tick(local, out),
            Input::Opened { conn, peer, .. } if self.mon == Some(conn) => {
                if self.mgr.is_none() {
                    self.begin(local, peer.global_id);
                }
                self.with_monitors(local, out, |m, asks| m.opened(local.mono, asks));
            }
            Input::Opened { conn, peer, .. } => {
                self.conns.insert(conn);
                let number = if peer.kind == EntityType::Osd {
                    peer.id.parse().unwrap_or(0)
                } else {
                    peer.global_id
                };
                let name = EntityName { kind: peer.kind as u8, num: number as i64 };
                let global_id = peer.global_id;
                let peer = Peer {
                    name,
                    global_id,
                    auth_id: String::new(),
                    addrs: peer.addrs,
                    place: None,
                    caps: None,
                };
                self.feed(local, MgrEvent::SessionOpened { conn, peer }, out);
            }
            Input::Closed { conn, .. } if self.mon == Some(conn) => {
                self.mon = None;
                let mut asks = Vec::new();
                self.monitors.closed(local.mono, "closed", &mut asks);
                self.feed(local, MgrEvent::MonClosed, out);
                self.ask(local, asks, out);
            }
            Input::Closed { conn, .. } => {
                if self.conns.remove(&conn) {
                    self.feed(local, MgrEvent::SessionClosed { conn }, out);
                }
            }
            Input::Message { conn, message } if self.mon == Some(conn) => {
                if !self.with_monitors(local, out, |m, asks| m.message(local.mono, &message, asks))
                {
                    self.feed(local, MgrEvent::Mon(message), out);
                }
            }
            Input::Message { conn, message } => {
                if self.conns.contains(&conn) {
                    self.feed(local, MgrEvent::Message { conn, message }, out);
                }
            }
            Input::Start => self.fresh_monitors(),
            Input::Timer(_) | Input::Called { .. } | Input::Bytes { .. } | Input::Broken { .. } => {
            }
        }
    }

    fn crash(&mut self, _: &mut Rng) {
        self.fresh_monitors();
        self.conns.clear();
    }

    fn admits(&mut self, _: &mut spirula_mon::Peer, _: &EntityAddr) -> bool {
        self.mgr.is_some()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
