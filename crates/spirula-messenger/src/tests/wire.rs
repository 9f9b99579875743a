//! Two machines and the bytes between them.

use crate::auth::*;
use crate::*;
use bytes::{Buf, Bytes, BytesMut};
use spirula_messages::Message;
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    Target { policy, ..Target::none(server_addr(), EntityType::Osd, EntityType::Osd, "1", 1) }
}

/// A method of these tests: the client shows its key, and both have a session key and a new
/// connection secret from then on.
pub const METHOD_KEY: u32 = 2;
pub const KEY: &[u8] = b"sixteen byte key";
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The client's side of it.
#[derive(Debug)]
pub struct Key {
    /// What the client takes for the session key.
    pub session_key: &'static [u8],
}

impl Credentials for Key {
    fn request(&mut self) -> Result<AuthStart, String> {
        Ok(AuthStart { method: METHOD_KEY, payload: Bytes::from_static(b"osd.1") })
    }

    fn bad_method(&mut self, _: &BadMethod) -> Option<AuthStart> {
        None
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        if payload == b"key?" {
            Ok(Bytes::from_static(KEY))
        } else {
            Err("not what I expected".into())
        }
    }

    fn done(&mut self, _: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        assert_eq!(payload.is_empty(), mode == Mode::Crc);
        let connection_secret = Secret::new(payload.to_vec());
        Ok(Secrets { session_key: Secret::new(self.session_key), connection_secret })
    }
}

/// The server's side of it, and of method "none".
#[derive(Default)]
pub struct Door {
    mode: Option<Mode>,
    /// The secret is forgotten.
    pub without_secret: bool,
}

impl Door {
    pub fn begin(&mut self, request: &AuthRequest) -> AuthAnswer {
        self.mode = Some(request.mode);
        if request.method == METHOD_NONE {
            let Ok(who) = NoneRequest::read(&request.payload) else { return AuthAnswer::Bad(-22) };
            let gid = who.global_id;
            return AuthAnswer::Done(who.granted(gid));
        }
        AuthAnswer::More(Bytes::from_static(b"key?"))
    }

    pub fn more(&mut self, payload: &[u8]) -> AuthAnswer {
        if payload != KEY {
            return AuthAnswer::Bad(-13);
        }
        let secret = if self.mode == Some(Mode::Secure) && !self.without_secret {
            let n = CONNECTIONS.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            (0..64u8).map(|i| i ^ n[usize::from(i) % 8]).collect()
        } else {
            Vec::new()
        };
        let secrets = Secrets {
            session_key: Secret::new(KEY),
            connection_secret: Secret::new(secret.clone()),
        };
        let (kind, payload) = (EntityType::Osd, Bytes::from(secret));
        AuthAnswer::Done(Granted { kind, id: "1".into(), global_id: 1, payload, secrets })
    }
}

/// An endpoint that lets in who has the key, in this mode.
pub fn keyed(e: Endpoint, modes: &str) -> Endpoint {
    Endpoint { methods: vec![METHOD_KEY], modes: ModePolicy::all(&modes.parse().unwrap()), ..e }
}

/// A target that is shown the key.
pub fn keyed_target(policy: Policy) -> Target {
    Target { credentials: Box::new(Key { session_key: KEY }), ..target(policy) }
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
    /// What the receiving machine's clock says.
    pub now: Duration,
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
            && let Wanted::Payload { len: n, .. } = c.wanted()
            && self.buf.len() < n
            && self.buf.len() + self.bytes.len() >= n
        {
            let mut payload = BytesMut::from(&self.buf[..]);
            self.buf.clear();
            payload.extend_from_slice(&self.bytes.split_to(n - payload.len()));
            c.open_payload(&mut payload)?;
            assert_eq!(c.receive_payload(payload.freeze()), None);
        }
        let n = chunk.min(self.bytes.len());
        self.buf.extend_from_slice(&self.bytes.split_to(n));
        // A machine hears something only when something came.
        if n == 0 && self.now > NOW {
            return Ok(());
        }
        c.receive(self.now, &mut self.buf, events)
    }
}

/// A connection between a client and a server machine.
pub struct Wire {
    pub client: Connection,
    pub server: Connection,
    pub auth: Door,
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
            auth: Door::default(),
            up: Pipe { now: NOW, ..Pipe::default() },
            down: Pipe { now: NOW, ..Pipe::default() },
            at_client: Vec::new(),
            at_server: Vec::new(),
        }
    }

    /// One exchange in both directions; false if nothing moved. The server's questions are
    /// answered from `sessions`.
    pub fn step(
        &mut self,
        chunk: usize,
        direct: bool,
        sessions: &mut Sessions,
    ) -> Result<bool, ProtocolError> {
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
                        let answer = self.auth.begin(&a);
                        self.server.answer_auth(answer)?;
                    }
                    Event::AuthMore(payload) => {
                        asked = true;
                        let answer = self.auth.more(&payload);
                        self.server.answer_auth(answer)?;
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
