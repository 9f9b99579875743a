//! The connecting side: finding an address that answers, and coming back for lossless peers.

use super::{CLOSED_BY_PEER, Ends, Task};
use crate::auth::Login;
use crate::hub::Hub;
use crate::link::{Ended, Link, NetEvent, NetSink, Peer};
use crate::{clock, entropy, limits};
use spirula_messenger::{Connection, Endpoint, Policy, Session, Target};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Numbers connection attempts of the process, as the messenger's races need it.
static GLOBAL_SEQ: AtomicU64 = AtomicU64::new(1);

/// First pause before a lossless link tries again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// How long one address may take to answer. Its kernel does that; one try is repeated after a second.
const CONNECT: Duration = Duration::from_millis(1500);

/// Opens a TCP link; the result comes as an event. `unacknowledged`: see [`limits::TCP_UNACKNOWLEDGED`].
#[allow(clippy::too_many_arguments, reason = "all of them go on to one task")]
pub(crate) fn connect(
    hub: Hub,
    me: Peer,
    login: Arc<dyn Login>,
    sink: NetSink,
    to: AddrVec,
    kind: EntityType,
    unacknowledged: Duration,
    on: &Handle,
) -> Link {
    let ends = Ends::new();
    let link = ends.link.clone();
    on.spawn(async move {
        let caller = Calling { hub, me, login, sink: sink.clone(), to, kind, unacknowledged };
        let ended = caller.call(&ends).await;
        ends.link.close();
        sink.push(NetEvent::Closed(ends.id, Ended { why: format!("{}: {}", caller.to, ended.why), ..ended }));
    });
    link
}

struct Calling {
    hub: Hub,
    me: Peer,
    login: Arc<dyn Login>,
    sink: NetSink,
    to: AddrVec,
    kind: EntityType,
    unacknowledged: Duration,
}

impl Calling {
    /// Who we are. A client without an address has a nonce all the same: its own, or a new one.
    fn endpoint(&self) -> std::io::Result<Endpoint> {
        let me = &self.me;
        let number = if me.kind == EntityType::Client { -1 } else { me.name().num };
        let mut endpoint = Endpoint::new(me.kind, number, me.addrs.clone());
        endpoint.limits.direct_payload = limits::DIRECT_PAYLOAD;
        endpoint.timeouts = limits::timeouts();
        if me.addrs.is_blank() {
            let own = me.addrs.0.first().map_or(0, |a| a.nonce);
            endpoint.nonce = if own == 0 { entropy::cookie()? as u32 } else { own };
        }
        Ok(endpoint)
    }

    /// Connects, and for lossless peers again and again; returns why it ended.
    async fn call(&self, ends: &Ends) -> Ended {
        let mut endpoint = match self.endpoint() {
            Ok(e) => e,
            Err(e) => return format!("draw a nonce: {e}").into(),
        };
        let lossless = self.me.kind == EntityType::Osd && self.kind == EntityType::Osd;
        let mut session = match lossless.then(entropy::cookie).transpose() {
            Ok(cookie) => cookie.map(Session::new),
            Err(e) => return format!("draw a cookie: {e}").into(),
        };
        let mut pause = RETRY_MIN;
        let mut hung_up = false;
        // A session was lost, and the next one is not open yet.
        let mut renewed = false;
        loop {
            let (stream, addr) = match open(&self.to).await {
                Ok(opened) => opened,
                // Cut off, perhaps for a moment: what waits in a lossless session must not be lost
                // while the peer lives. Its owner closes the link when it does not.
                Err(e) if lossless && !e.refused && !ends.link.is_closed() => {
                    tracing::debug!("{}; trying again", e.why);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                    continue;
                }
                // Nobody listens there: the owner decides (an OSD reports the failure).
                Err(e) => return Ended { hung_up, ..e },
            };
            let credentials = match self.login.credentials(self.kind) {
                Ok(c) => c,
                Err(why) => return format!("nothing to authenticate with: {why}").into(),
            };
            let policy = session.take().map_or(Policy::Lossy, Policy::Lossless);
            let global_seq = GLOBAL_SEQ.fetch_add(1, Ordering::Relaxed);
            let target = Target { addr, entity: self.kind, credentials, global_seq, policy };
            endpoint.modes = self.hub.modes();
            let connection = Connection::connect(Arc::new(endpoint.clone()), target, clock::monotonic());
            let mut task = Task::new(connection, self.sink.clone(), self.hub.pool().clone(), ends.clone());
            (task.unacknowledged, task.lossless, task.renewed) = (self.unacknowledged, lossless, renewed);
            let why = task.run(stream).await;
            renewed = task.renewed;
            GLOBAL_SEQ.fetch_max(task.connection.global_seq() + 1, Ordering::Relaxed);
            if task.established {
                pause = RETRY_MIN;
                hung_up = why == CLOSED_BY_PEER;
            }
            session = if lossless && !ends.link.is_closed() { task.connection.close() } else { None };
            if session.is_none() {
                return Ended { why, refused: false, hung_up };
            }
            tracing::debug!("{addr}: {why}; reconnecting");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }
}

/// Opens a connection to the first of the msgr2 addresses that answers.
async fn open(to: &AddrVec) -> Result<(TcpStream, EntityAddr), Ended> {
    let mut why = String::new();
    let mut refused = true;
    for addr in to.0.iter().filter(|a| matches!(a.kind, EntityAddr::KIND_MSGR2 | EntityAddr::KIND_ANY)) {
        let Some(socket) = addr.addr else { continue };
        let failed = match tokio::time::timeout(CONNECT, TcpStream::connect(socket)).await {
            Ok(Ok(s)) => return Ok((s, *addr)),
            Ok(Err(e)) => {
                refused &= e.kind() == std::io::ErrorKind::ConnectionRefused;
                format!("connect to {addr}: {e}")
            }
            Err(_) => {
                refused = false;
                format!("connect to {addr}: no answer within {CONNECT:?}")
            }
        };
        if !why.is_empty() {
            why.push_str("; ");
        }
        why.push_str(&failed);
    }
    if why.is_empty() {
        return Err(format!("{to} has no msgr2 address to connect to").into());
    }
    Err(Ended { why, refused, hung_up: false })
}
