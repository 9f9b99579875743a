//! A client of the monitors: one command after the other on a few registers, to whichever monitor
//! answers; with its request sent again, under the same number, whenever it does not know what
//! became of it.

use crate::monitor::addr_of;
use crate::rng::Rng;
use crate::scenario::Bug;
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use bytes::Bytes;
use spirula_history::registers::{Action, Op};
use spirula_messages::Body;
use spirula_messages::ceph::{MMonCommand, MMonCommandAck};
use spirula_mon::Peer;
use spirula_types::{AddrVec, EntityAddr, EntityType, Uuid};
use std::any::Any;
use std::collections::VecDeque;

/// Ticks without an answer after which it tries another monitor.
const PATIENCE: u64 = 30;

/// The client.
pub struct Commander {
    mons: Vec<ActorId>,
    fsid: Uuid,
    rng: Rng,
    bug: Option<Bug>,
    global_id: u64,
    conn: Option<u64>,
    ready: bool,
    next_conn: u64,
    tid: u64,
    waited: u64,
    idle: u64,
    writes: u64,
    current: Option<Op>,
    /// The order under way.
    ordered: Option<String>,
    /// Commands to give, one after the other, before anything else.
    pub orders: VecDeque<String>,
    /// What became of the last: its command, result and what was said.
    pub told: Option<(String, i32, String)>,
    /// Every operation, finished or not.
    pub history: Vec<Op>,
    /// How many registers it reads and writes.
    pub registers: u64,
    /// Begins no new ones.
    pub quiet: bool,
    /// Ticks from losing a connection to having one again, the longest.
    pub longest_gap: u64,
    gap: u64,
}

impl Commander {
    /// A client that knows these monitors.
    pub fn new(mons: Vec<ActorId>, fsid: Uuid, rng: Rng, bug: Option<Bug>) -> Self {
        Self {
            mons,
            fsid,
            rng,
            bug,
            global_id: 0,
            conn: None,
            ready: false,
            next_conn: 0,
            tid: 0,
            waited: 0,
            idle: 0,
            writes: 0,
            current: None,
            orders: VecDeque::new(),
            told: None,
            ordered: None,
            history: Vec::new(),
            registers: 3,
            quiet: false,
            longest_gap: 0,
            gap: 0,
        }
    }

    /// True if it waits for nothing.
    pub fn done(&self) -> bool {
        self.current.is_none() && self.ordered.is_none() && self.orders.is_empty()
    }

    /// True if every order has been answered.
    pub fn has_no_orders(&self) -> bool {
        self.ordered.is_none() && self.orders.is_empty()
    }

    fn busy(&self) -> bool {
        self.current.is_some() || self.ordered.is_some()
    }

    fn connect(&mut self, local: Local, out: &mut Vec<Output>) {
        let Some(to) = self.rng.pick(&self.mons).copied() else { return };
        self.next_conn += 1;
        let conn = World::conn_numbers(local.id) + self.next_conn;
        let peer = Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id: self.global_id,
            addrs: AddrVec::default(),
            features: spirula_types::features::PACIFIC,
        };
        (self.conn, self.ready, self.waited) = (Some(conn), false, 0);
        out.push(Output::Connect { conn, to, addr: addr_of(to).msgr2(), peer });
    }

    fn begin(&mut self, local: Local) {
        let register = self.rng.below(self.registers);
        let action = if self.rng.one_in(2) {
            self.writes += 1;
            Action::Write(((local.id as u64) << 32) | self.writes)
        } else {
            Action::Read(None)
        };
        self.tid += 1;
        self.current =
            Some(Op { client: local.id, register, action, begun: local.true_us, ended: None });
    }

    fn send(&mut self, out: &mut Vec<Output>) {
        let Some(conn) = self.conn.filter(|_| self.ready) else { return };
        let text = match (&self.ordered, self.current.as_ref().map(|op| (op, op.action))) {
            (Some(order), _) => order.clone(),
            (None, None) => return,
            (None, Some((op, Action::Write(v)))) => {
                format!(
                    r#"{{"prefix": "config-key set", "key": "r{}", "val": "{v}"}}"#,
                    op.register
                )
            }
            (None, Some((op, Action::Read(_)))) => {
                format!(r#"{{"prefix": "config-key get", "key": "r{}"}}"#, op.register)
            }
        };
        let c = MMonCommand { version: 0, fsid: self.fsid, cmd: vec![text], input: Bytes::new() };
        out.push(Output::Send(conn, c.into_message(self.tid)));
    }
}

impl Actor for Commander {
    fn handle(&mut self, local: Local, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Tick => {
                if self.conn.is_none() {
                    self.connect(local, out);
                }
                if !self.ready {
                    self.gap += 1;
                    self.longest_gap = self.longest_gap.max(self.gap);
                }
                self.waited += 1;
                if self.waited > PATIENCE && (self.busy() || !self.ready) {
                    if let Some(conn) = self.conn.take() {
                        out.push(Output::Close(conn));
                    }
                    self.ready = false;
                } else if !self.busy() && self.ready && (!self.quiet || !self.orders.is_empty()) {
                    if let Some(order) = self.orders.pop_front() {
                        self.ordered = Some(order);
                        (self.tid, self.waited) = (self.tid + 1, 0);
                        self.send(out);
                    } else if self.idle > 0 {
                        self.idle -= 1;
                    } else {
                        self.begin(local);
                        self.waited = 0;
                        self.send(out);
                    }
                }
            }
            Input::Opened { conn, peer, .. } if self.conn == Some(conn) => {
                (self.ready, self.global_id, self.gap, self.waited) = (true, peer.global_id, 0, 0);
                if self.bug == Some(Bug::ResendAsNew) {
                    self.tid += 1;
                }
                self.send(out);
            }
            Input::Closed { conn, .. } if self.conn == Some(conn) => {
                (self.conn, self.ready) = (None, false)
            }
            Input::Message { conn, message } if self.conn == Some(conn) => {
                let Ok(ack) = MMonCommandAck::from_message(&message) else { return };
                if message.tid != self.tid {
                    return;
                }
                if let Some(order) = self.ordered.take() {
                    self.told = Some((order, ack.result, ack.status));
                    return;
                }
                let Some(mut op) = self.current.take() else { return };
                // What cannot be done has not happened, and what was seen beside it says nothing.
                if ack.result == -spirula_types::errno::EIO {
                    self.idle = self.rng.below(4);
                    return;
                }
                if let Action::Read(value) = &mut op.action {
                    *value = std::str::from_utf8(&ack.output).ok().and_then(|t| t.parse().ok());
                }
                op.ended = Some(local.true_us);
                self.history.push(op);
                self.idle = self.rng.below(4);
            }
            _ => {}
        }
    }

    fn crash(&mut self, _: &mut Rng) {
        // What it asked for may yet happen.
        self.history.extend(self.current.take());
        (self.conn, self.ready, self.global_id) = (None, false, 0);
    }

    fn admits(&mut self, _: &mut Peer, _: &EntityAddr) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
