//! The connecting side: finding an address that answers, and coming back for lossless peers.

use super::{CLOSED_BY_PEER, Ends, Task};
use crate::auth::Login;
use crate::hub::Hub;
use crate::link::{Ended, Link, NetEvent, NetSink, Peer};
use crate::{clock, entropy, limits};
use spirula_messenger::{Calls, Connection, Endpoint, Policy, Target};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Numbers connection attempts of the process, as the messenger's races need it.
static GLOBAL_SEQ: AtomicU64 = AtomicU64::new(1);

/// How long one address may take to answer. Its kernel does that; one try is repeated after a
/// second.
const CONNECT: Duration = Duration::from_millis(1500);

/// Opens a TCP link; the result comes as an event. `unacknowledged`: see
/// [`limits::TCP_UNACKNOWLEDGED`].
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
        sink.push(NetEvent::Closed(
            ends.id,
            Ended { why: format!("{}: {}", caller.to, ended.why), ..ended },
        ));
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

/// **A link between OSDs is a session that does not end while its owner wants it.** Connections
/// break, are refused, or cannot prove themselves for want of a ticket: it tries again, with a
/// pause that grows, and what was sent waits. Only where the far end has forgotten the session, or
/// more waits than there is room for ([`limits::SESSION_BYTES`]), another begins, under the same
/// link, and once it is open the owner hears [`NetEvent::Renewed`]. The owner closes the link when
/// the peer is not up any more.
impl Calling {
    /// Who we are. A client without an address has a nonce all the same: its own, or a new one.
    fn endpoint(&self) -> std::io::Result<Endpoint> {
        let me = &self.me;
        // Ceph's OSDs know a client by this number, and so which of its requests they have done
        // already.
        let unknown = me.kind == EntityType::Client && me.global_id == 0;
        let number = if unknown { -1 } else { me.name().num };
        let mut endpoint = Endpoint::new(me.kind, number, me.addrs.clone());
        endpoint.limits.direct_payload = limits::DIRECT_PAYLOAD;
        endpoint.timeouts = limits::timeouts();
        if self.is_lossless() {
            let watched = self.unacknowledged == limits::TCP_UNACKNOWLEDGED_WATCHED;
            endpoint.limits.queue =
                if watched { limits::SESSION_BYTES_WATCHED } else { limits::SESSION_BYTES };
        }
        if me.addrs.is_blank() {
            let own = me.addrs.0.first().map_or(0, |a| a.nonce);
            endpoint.nonce = if own == 0 { entropy::cookie()? as u32 } else { own };
            endpoint.learned = self.hub.learned();
        }
        Ok(endpoint)
    }

    /// Connects, and for lossless peers again and again; returns why it ended.
    async fn call(&self, ends: &Ends) -> Ended {
        let mut endpoint = match self.endpoint() {
            Ok(e) => e,
            Err(e) => return format!("draw a nonce: {e}").into(),
        };
        let lossless = self.is_lossless();
        let mut calls = Calls::default();
        loop {
            let cookie = match entropy::cookie() {
                Ok(cookie) => cookie,
                Err(e) => return format!("draw a cookie: {e}").into(),
            };
            let why = match self.connection(&mut endpoint, ends).await {
                Ok((stream, mut target)) => {
                    if lossless {
                        target.policy = Policy::Lossless(calls.session(cookie));
                    }
                    let connection =
                        Connection::connect(Arc::new(endpoint.clone()), target, clock::monotonic());
                    let mut task = Task::new(
                        connection,
                        self.sink.clone(),
                        self.hub.pool().clone(),
                        ends.clone(),
                    );
                    (task.unacknowledged, task.lossless) = (self.unacknowledged, lossless);
                    task.opening = calls.opening;
                    let why = task.run(stream).await;
                    GLOBAL_SEQ.fetch_max(task.connection.global_seq() + 1, Ordering::Relaxed);
                    let hung_up = why == CLOSED_BY_PEER;
                    calls.ended(
                        &mut task.connection,
                        task.opening,
                        task.established,
                        hung_up,
                        task.overfull,
                    );
                    Ended { why, refused: false, hung_up: calls.hung_up }
                }
                // Nobody listens there, or seems to: the owner wants to know (an OSD reports the
                // failure).
                Err(e) if e.refused => Ended { hung_up: calls.hung_up, ..e },
                Err(e) => e,
            };
            if !lossless || ends.link.is_closed() {
                return why;
            }
            if why.refused {
                self.sink.push(NetEvent::Refused(
                    ends.id,
                    Ended { why: format!("{}: {why}", self.to), ..why.clone() },
                ));
            }
            let waiting = ends.queue.bytes.load(Ordering::Relaxed) + calls.queued_bytes();
            if waiting > endpoint.limits.queue {
                tracing::debug!("{}: {waiting} bytes wait; they are given up", self.to);
                ends.forget();
                calls.lose();
            }
            tracing::debug!("{}: {why}; trying again", self.to);
            tokio::select! {
                () = tokio::time::sleep(calls.pause()) => {}
                () = ends.queue.anew.notified() => {}
            }
        }
    }

    /// A link between OSDs, as the far end sees it, too.
    fn is_lossless(&self) -> bool {
        self.me.kind == EntityType::Osd && self.kind == EntityType::Osd
    }

    /// A new TCP connection, and what it is for.
    async fn connection(
        &self,
        endpoint: &mut Endpoint,
        ends: &Ends,
    ) -> Result<(TcpStream, Target), Ended> {
        let (stream, addr) = loop {
            tokio::select! {
                opened = open(&self.to) => break opened?,
                // What was asked on the way may have been lost there: it is asked again.
                () = ends.queue.anew.notified() => {}
            }
        };
        let credentials = self.login.credentials(self.kind);
        let credentials =
            credentials.map_err(|why| format!("nothing to authenticate with: {why}"))?;
        let global_seq = GLOBAL_SEQ.fetch_add(1, Ordering::Relaxed);
        endpoint.modes = self.hub.modes();
        Ok((
            stream,
            Target { addr, entity: self.kind, credentials, global_seq, policy: Policy::Lossy },
        ))
    }
}

/// Opens a connection to the first of the msgr2 addresses that answers.
async fn open(to: &AddrVec) -> Result<(TcpStream, EntityAddr), Ended> {
    let mut why = String::new();
    let mut refused = true;
    for addr in
        to.0.iter().filter(|a| matches!(a.kind, EntityAddr::KIND_MSGR2 | EntityAddr::KIND_ANY))
    {
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
