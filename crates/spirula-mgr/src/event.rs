//! What goes into the manager and what comes out.

use bytes::Bytes;
use spirula_auth::caps::MgrCaps;
use spirula_messages::Message;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::OpResult;
use spirula_types::{AddrVec, EntityName, ObjectLocator, OsdId, Uuid};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// A connection to a client or an OSD, numbered by the shell; never reused within a run.
pub type ConnId = u64;

/// The present, on both clocks: stamps show wall time, rates and waits use the monotonic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Time since an arbitrary start; never goes back.
    pub mono: Duration,
    /// Time of day.
    pub wall: spirula_encoding::UTime,
}

/// Who is at the other end of a connection, as the handshake found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Kind and number; a client's number is its global id.
    pub name: EntityName,
    /// Its global id, which is of one run of it.
    pub global_id: u64,
    /// Name it authenticated as (`admin`); may be empty for our own daemons.
    pub auth_id: String,
    /// Its addresses, with its nonce.
    pub addrs: AddrVec,
    /// Where its connection comes from, for capabilities by `network`.
    pub place: Option<IpAddr>,
    /// What it may do; `None` for everything (this process's own, clusters without authentication).
    pub caps: Option<MgrCaps>,
}

/// What a manager is told at its start and keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MgrConfig {
    /// Cluster it belongs to.
    pub fsid: Uuid,
    /// Its global id: the identity of this incarnation.
    pub gid: u64,
    /// Its name (`mgr.x` is `x`).
    pub name: String,
    /// Where it listens.
    pub addrs: AddrVec,
    /// Host name, for `mgr metadata`, `osd status` and its like.
    pub hostname: String,
    /// Facts for `mgr metadata`.
    pub metadata: BTreeMap<String, String>,
    /// Its options.
    pub settings: spirula_settings::Settings,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum MgrEvent {
    /// A client or OSD finished its handshake.
    SessionOpened {
        /// Number of the connection.
        conn: ConnId,
        /// Who it is.
        peer: Peer,
    },
    /// It sent a message.
    Message {
        /// Which connection it came over.
        conn: ConnId,
        /// The message.
        message: Message,
    },
    /// The connection is gone; nothing can be sent on it any more.
    SessionClosed {
        /// Number of the connection.
        conn: ConnId,
    },
    /// A session with a monitor is up (again): subscriptions and the beacon go out anew.
    MonOpened,
    /// The monitor sent a message.
    Mon(Message),
    /// The session with the monitor is gone; nothing is sent to it until the next one.
    MonClosed,
    /// OSDs of this process that do not run though nobody stopped them, and why; replaces what was
    /// told before.
    Stopped(BTreeMap<OsdId, String>),
    /// What came of a [`MgrEffect::Read`].
    Read {
        /// Its number.
        call: u64,
        /// 0 or −errno.
        result: i32,
        /// What was read.
        ops: Vec<OpResult>,
    },
    /// Time has passed; wanted at the latest after [`crate::Mgr::wake_after`].
    Tick,
}

/// Something to be done by the shell, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum MgrEffect {
    /// Send a message; if the connection is gone, forget it.
    Send(ConnId, Message),
    /// Send to the monitor; only emitted while its session is up.
    SendMon(Message),
    /// Subscribe at the monitor to a map or to options, from this version on (0 for the newest);
    /// the shell does so again in each new session, from where this said last.
    Subscribe(&'static str, u64),
    /// Close the connection.
    Close(ConnId),
    /// Read of an object, as a client of the cluster, and tell what came of it
    /// ([`MgrEvent::Read`]). The manager does not depend on it.
    Read(ObjectRead),
}

/// An object to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectRead {
    /// Number of the read.
    pub call: u64,
    /// Where the object is.
    pub at: ObjectLocator,
    /// Its name.
    pub oid: Bytes,
    /// What to read of it.
    pub ops: Vec<OsdOp>,
}
