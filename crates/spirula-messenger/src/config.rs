//! Who we are, whom we call, and bounds.

use crate::auth::{Credentials, METHOD_NONE, ModePolicy, NoneRequest};
use crate::session::Session;
use spirula_types::limits::TRANSACTION_MAX;
use spirula_types::{AddrVec, EntityAddr, EntityType, features};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bounds on what a peer may send and what we queue, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Segment of a control frame. While a peer is not established it can send nothing else.
    pub control: usize,
    /// All frames of one direction until authentication is over.
    pub handshake: usize,
    /// Front of a message.
    pub front: usize,
    /// Middle of a message.
    pub middle: usize,
    /// Data of a message: the largest transaction between OSDs and some slack.
    pub data: usize,
    /// All of a message of a client that came to us; of a larger one nothing is kept, and it is
    /// reported ([`crate::Event::TooLarge`]).
    pub request: usize,
    /// Payloads of at least so many bytes are offered for direct reading
    /// ([`crate::Wanted::Payload`]).
    pub direct_payload: usize,
    /// Payloads up to this size are copied into the output batch, larger ones passed by
    /// reference.
    pub copy_payload: usize,
    /// Messages waiting for the handshake or, in a lossless session, for acknowledgement.
    /// Above it [`crate::Connection::send`] refuses.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            control: 64 << 10,
            handshake: 128 << 10,
            front: 64 << 20,
            middle: 16 << 20,
            data: TRANSACTION_MAX + (1 << 20),
            request: usize::MAX,
            direct_payload: 64 << 10,
            copy_payload: 8 << 10,
            queue: 512 << 20,
        }
    }
}

/// When to give a peer up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the start to established.
    pub handshake: Duration,
    /// Without a byte received on an established connection that is lossless, or that we made:
    /// the peer is asked whether it is there, and again after the same time; zero means never.
    pub keepalive: Duration,
    /// The same, and the connection is over; zero means never.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(15), keepalive: Duration::ZERO, idle: Duration::ZERO }
    }
}

/// One local party of connections. Shared by all its connections.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Kind of entity.
    pub entity: EntityType,
    /// The number it identifies with: OSD id, monitor rank, manager's or client's gid.
    /// A client that has none yet says −1.
    pub gid: i64,
    /// Its addresses as published in the maps, nonce included. A client without a
    /// listening address leaves them blank; it then learns its IP from a server.
    pub addrs: AddrVec,
    /// The IP of a client with blank `addrs`, as the first server saw it that proved itself. It
    /// says so on all its connections, also where another network leads to the server: by one
    /// address it is fenced, and a server that knew it by another would go on serving it. To be
    /// shared by all endpoints of the client.
    pub learned: Arc<OnceLock<IpAddr>>,
    /// Nonce of a client with blank `addrs`.
    pub nonce: u32,
    /// Features offered.
    pub features: u64,
    /// Features without which a peer is refused.
    pub required: u64,
    /// Accepting side: authentication methods allowed.
    pub methods: Vec<u32>,
    /// Connection modes allowed.
    pub modes: ModePolicy,
    /// Accepting side: kinds of peers with which a session survives a lost connection,
    /// unless they ask for a lossy one. All others are lossy.
    pub lossless: Vec<EntityType>,
    /// Whether 2.1 frames are offered; always, except in tests.
    pub frames_2_1: bool,
    /// Whether a connecting client must name our exact address and nonce, as Ceph demands.
    pub check_target: bool,
    /// Bounds.
    pub limits: Limits,
    /// Timeouts.
    pub timeouts: Timeouts,
}

impl Endpoint {
    /// An endpoint with the features of a Pacific peer and default bounds.
    pub fn new(entity: EntityType, gid: i64, addrs: AddrVec) -> Self {
        Self {
            entity,
            gid,
            addrs,
            learned: Arc::default(),
            nonce: 0,
            features: features::PACIFIC,
            required: features::REQUIRED,
            methods: vec![METHOD_NONE],
            modes: ModePolicy::default(),
            lossless: Vec::new(),
            frames_2_1: true,
            check_target: true,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// Whom to connect to, and as whom.
#[derive(Debug)]
pub struct Target {
    /// Address and nonce as published; nonce 0 for a monitor.
    pub addr: EntityAddr,
    /// What it must be.
    pub entity: EntityType,
    /// What to authenticate with.
    pub credentials: Box<dyn Credentials>,
    /// Number of this connection attempt within the process, from 1, increasing.
    pub global_seq: u64,
    /// Lossy, or lossless with this session.
    pub policy: Policy,
}

/// What happens to messages when the connection breaks.
#[derive(Debug)]
pub enum Policy {
    /// They are lost; the application resends.
    Lossy,
    /// They are replayed on the next connection of this session, unless the server insists
    /// on a lossy one.
    Lossless(Session),
}

impl Target {
    /// A lossy connection of who says, by method "none", that it is `kind`.`id` with `global_id`
    /// (0 asks a monitor for a new one).
    pub fn none(
        addr: EntityAddr,
        entity: EntityType,
        kind: EntityType,
        id: &str,
        global_id: u64,
    ) -> Self {
        let none = NoneRequest {
            to_monitor: entity == EntityType::Mon,
            kind,
            id: id.to_owned(),
            global_id,
        };
        Self { addr, entity, credentials: Box::new(none), global_seq: 1, policy: Policy::Lossy }
    }
}
