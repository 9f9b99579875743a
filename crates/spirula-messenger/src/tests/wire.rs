//! Two machines and the bytes between them.

use crate::*;
use bytes::{Buf, Bytes, BytesMut};
use spirula_messages::Message;
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::sync::Arc;
use std::time::Duration;

pub const NOW: Duration = Duration::from_secs(100);

pub fn server_addr() -> EntityAddr {
    EntityAddr::v2("10.0.0.2:6800".parse().unwrap(), 77)
}

pub fn client_addr() -> EntityAddr {
    EntityAddr::v2("10.0.0.1:6800".parse().unwrap(), 66)
}

pub fn server() -> Endpoint {
    Endpoint::new(EntityType::Osd, 2, AddrVec::one(server_addr()))
}

/// An OSD calling: the kind of peer with lossless sessions.
pub fn client() -> Endpoint {
    Endpoint::new(EntityType::Osd, 1, AddrVec::one(client_addr()))
}

pub fn target(policy: Policy) -> Target {
    Target { policy, auth_id: "1".into(), global_id: 1, ..Target::lossy(server_addr(), EntityType::Osd) }
}

pub fn message(tid: u64, data: usize) -> Message {
    Message {
        kind: 42,
        tid,
        priority: 63,
        version: 8,
        compat: 3,
        front: Bytes::from(format!("front of {tid}")),
        middle: Bytes::new(),
        data: Bytes::from(vec![tid as u8; data]),
    }
}

/// One direction: bytes written and not yet delivered, and a limit after which the
/// direction goes silent.
#[derive(Default)]
pub struct Pipe {
    pub bytes: BytesMut,
    pub budget: Option<usize>,
    /// Bytes received and not consumed by the machine.
    pub buf: BytesMut,
}

impl Pipe {
    pub fn write(&mut self, mut out: Output) {
        let n = self.budget.map_or(out.len(), |b| b.min(out.len()));
        self.bytes.extend_from_slice(&out.copy_to_bytes(n));
        if let Some(b) = &mut self.budget {
            *b -= n;
        }
    }

    /// Moves up to `chunk` bytes to the receiving machine, directly into a payload buffer if
    /// it wants one and `direct` is set.
    pub fn deliver(
        &mut self,
        c: &mut Connection,
        chunk: usize,
        direct: bool,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if direct
            && let Wanted::Payload(n) = c.wanted()
            && self.buf.len() < n
            && self.buf.len() + self.bytes.len() >= n
        {
            let mut payload = BytesMut::from(&self.buf[..]);
            self.buf.clear();
            payload.extend_from_slice(&self.bytes.split_to(n - payload.len()));
            assert_eq!(c.receive_payload(payload.freeze()), None);
        }
        let n = chunk.min(self.bytes.len());
        self.buf.extend_from_slice(&self.bytes.split_to(n));
        c.receive(NOW, &mut self.buf, events)
    }
}

/// A connection between a client and a server machine.
pub struct Wire {
    pub client: Connection,
    pub server: Connection,
    pub up: Pipe,
    pub down: Pipe,
    /// What each side got.
    pub at_client: Vec<Event>,
    pub at_server: Vec<Event>,
}

pub const CONN: ConnectionId = 7;

impl Wire {
    pub fn new(client: Endpoint, target: Target, server: Endpoint) -> Self {
        Self {
            client: Connection::connect(Arc::new(client), target, NOW),
            server: Connection::accept(Arc::new(server), "10.0.0.1:54321".parse().unwrap(), NOW),
            up: Pipe::default(),
            down: Pipe::default(),
            at_client: Vec::new(),
            at_server: Vec::new(),
        }
    }

    /// One exchange in both directions; false if nothing moved. The server's questions are
    /// answered from `sessions`.
    pub fn step(&mut self, chunk: usize, direct: bool, sessions: &mut Sessions) -> Result<bool, ProtocolError> {
        self.up.write(self.client.take_output());
        self.down.write(self.server.take_output());
        let moved = !self.up.bytes.is_empty() || !self.down.bytes.is_empty();
        let mut events = Vec::new();
        self.up.deliver(&mut self.server, chunk, direct, &mut events)?;
        loop {
            let mut asked = false;
            for e in std::mem::take(&mut events) {
                match e {
                    Event::Auth(a) => {
                        asked = true;
                        self.server.accept_auth(a.global_id);
                    }
                    Event::Session(ask) => {
                        asked = true;
                        let answer = match sessions.ask(&ask, 0x5eed) {
                            Verdict::Answer(a) => a,
                            Verdict::PeerReset(a) => {
                                self.at_server.push(Event::SessionReset { dropped: 0 });
                                a
                            }
                            Verdict::Take(id) => panic!("connection {id} should have been parked"),
                        };
                        if matches!(answer, SessionAnswer::Attach(_)) {
                            sessions.live(ask.key(), CONN, false, true);
                        }
                        self.server.answer_session(answer, &mut events)?;
                    }
                    e => self.at_server.push(e),
                }
            }
            if !asked {
                break;
            }
            self.server.receive(NOW, &mut self.up.buf, &mut events)?;
        }
        self.down.deliver(&mut self.client, chunk, direct, &mut self.at_client)?;
        Ok(moved)
    }

    /// Steps until nothing moves.
    pub fn run(&mut self, chunk: usize, sessions: &mut Sessions) -> Result<(), ProtocolError> {
        while self.step(chunk, false, sessions)? {}
        Ok(())
    }

    pub fn established(events: &[Event]) -> Option<&Peer> {
        events.iter().find_map(|e| match e {
            Event::Established(p) => Some(p),
            _ => None,
        })
    }
}

/// The messages among `events`, by transaction id.
pub fn tids(events: &[Event]) -> Vec<u64> {
    events
        .iter()
        .filter_map(|e| match e {
            Event::Message(m) => Some(m.message.tid),
            _ => None,
        })
        .collect()
}
