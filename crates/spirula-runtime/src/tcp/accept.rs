//! The accepting side: listeners, the door, and lossless sessions that peers began.
//!
//! **A lossless session outlives its connection for as long as its owner counts the peer as up.**
//! It is parked then, and goes on when the peer comes back, after a second or a week: what both
//! ends sent arrives, in order and once. It ends without that
//!
//! * when its owner closes the link, or does not expect the peer any more
//!   ([`Link::keep`](crate::Link::keep)): the map shows its incarnation down;
//! * when the peer begins another session, having lost its half, or being somebody new at its
//!   address;
//! * when too much is parked ([`limits::PARKED`], [`limits::PARKED_BYTES`]; the longest parked
//!   first), or waits for one peer ([`limits::SESSION_BYTES`]). Strangers cannot make that many:
//!   only peers that proved to be OSDs have such sessions.
//!
//! In all of these the owner hears [`NetEvent::Closed`], and the peer, if it lives, that its
//! session is lost: when it comes back to go on it is told RESET, which its owner hears as
//! [`NetEvent::Renewed`].

use super::places::LargePlaces;
use super::{Ends, HELD_BACK, Task};
use crate::auth::Authenticator;
use crate::door::{Door, Guest};
use crate::hub::{Hub, Service};
use crate::link::{NetEvent, NetSink};
use crate::{clock, entropy, limits};
use spirula_messenger::{Asked, Connection, Endpoint, Parked, SessionAsk};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Between two looks at sessions that wait for their peers.
const LOOK: Duration = Duration::from_secs(1);
/// Connections that the kernel keeps for us to accept.
const BACKLOG: i32 = 1024;

/// Opens a listening socket. One of IPv6 takes IPv6 only, so that the same port is free for
/// IPv4, and no IPv4 peer looks like one of IPv6.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections for one daemon.
#[derive(Clone)]
pub(crate) struct Acceptor {
    hub: Hub,
    service: Service,
    endpoint: Endpoint,
    pub(super) lossless: Arc<Mutex<Lossless>>,
    door: Door,
    large: Option<Arc<LargePlaces>>,
}

impl Acceptor {
    /// For a daemon whose addresses are known.
    pub fn new(hub: Hub, service: Service) -> Self {
        let gid = service.me.name().num;
        let mut endpoint = Endpoint::new(service.me.kind, gid, service.me.addrs.clone());
        endpoint.limits.direct_payload = limits::DIRECT_PAYLOAD;
        endpoint.timeouts = limits::timeouts();
        endpoint.limits.queue = limits::SESSION_BYTES;
        let mut large = None;
        if matches!(service.me.kind, EntityType::Mon | EntityType::Mgr) {
            endpoint.limits.request = limits::REQUEST_BYTES;
            let (least, most) = limits::LARGE_REQUESTS;
            let places = (hub.pool().budget() / 8 / limits::REQUEST_BYTES).clamp(least, most);
            large = Some(LargePlaces::new(places));
        }
        // Our own daemons keep their sessions over a broken connection; clients resend.
        endpoint.lossless =
            if service.me.kind == EntityType::Osd { vec![EntityType::Osd] } else { Vec::new() };
        let lossless =
            Lossless { parked: Parked::new(service.me.addr()), sink: service.sink.clone() };
        Self {
            hub,
            service,
            endpoint,
            lossless: Arc::new(Mutex::new(lossless)),
            door: Door::default(),
            large,
        }
    }

    /// Accepts until it is aborted.
    pub async fn run(self, listener: TcpListener) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = look.tick() => {
                    lock(&self.lossless).look();
                    continue;
                }
            };
            match accepted {
                Ok((stream, from)) => self.accepted(stream, from),
                Err(e) => {
                    // Out of descriptors, mostly: wait for some to be closed.
                    tracing::warn!("accept on {}: {e}", self.service.me.addrs);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn accepted(&self, stream: TcpStream, from: SocketAddr) {
        let guest = match self.door.enter(from.ip()) {
            Ok(guest) => guest,
            Err(why) => {
                // Not told in so many words each time: the log has an allowance for each place.
                tracing::warn!("{from}: closed at once: {why}");
                return;
            }
        };
        let mut endpoint = self.endpoint.clone();
        endpoint.modes = self.hub.modes();
        endpoint.methods = self.service.auth.methods();
        let (sink, pool, lossless) =
            (self.service.sink.clone(), self.hub.pool().clone(), self.lossless.clone());
        let (auth, large) = (self.service.auth.clone(), self.large.clone());
        tokio::spawn(async move {
            let connection = Connection::accept(Arc::new(endpoint), from, clock::monotonic());
            let mut task = Task::new(connection, sink, pool, Ends::new());
            task.accepting = Some(Accepting { from, auth, lossless, guest, large });
            let why = task.run(stream).await;
            task.end(&format!("{from}: {why}"));
        });
    }
}

/// A client's addresses: what it says, which locks and watches go by and is one and the same for
/// everybody it is connected to, also if it reaches them over several networks; and behind it the
/// same with the place that this connection comes from. A fence of either shuts it out: nobody
/// chooses his own. Its port and nonce, which tell its instances apart, stay.
pub(super) fn seen_at(mut addrs: AddrVec, ip: IpAddr) -> AddrVec {
    let is_somewhere = |a: &EntityAddr| a.addr.is_some_and(|at| !at.ip().is_unspecified());
    let seen = addrs
        .0
        .iter()
        .map(|a| EntityAddr { addr: a.addr.map(|said| SocketAddr::new(ip, said.port())), ..*a });
    let seen: Vec<EntityAddr> = seen.collect();
    addrs.0.retain(is_somewhere);
    for a in seen {
        if !addrs.0.contains(&a) {
            addrs.0.push(a);
        }
    }
    addrs
}

/// What an accepting task needs besides.
pub(super) struct Accepting {
    pub from: SocketAddr,
    pub auth: Arc<dyn Authenticator>,
    pub lossless: Arc<Mutex<Lossless>>,
    pub guest: Guest,
    /// Places for large requests of clients, where they are limited.
    pub large: Option<Arc<LargePlaces>>,
}

/// The lossless sessions that peers began with one listener.
pub(super) struct Lossless {
    pub(super) parked: Parked<Ends>,
    sink: NetSink,
}

pub(super) fn lock(l: &Mutex<Lossless>) -> std::sync::MutexGuard<'_, Lossless> {
    l.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lossless {
    /// Gives up parked sessions that nobody waits for, or for which there is no room.
    fn look(&mut self) {
        for (key, ends, why) in
            self.parked.look(Ends::is_unwanted, limits::PARKED, limits::PARKED_BYTES)
        {
            tracing::warn!("{} is away, and its session is lost: {why}", key.name);
            self.gone(&ends, why);
        }
    }

    fn gone(&self, ends: &Ends, why: &str) {
        ends.link.close();
        self.sink.push(NetEvent::Closed(ends.id, why.into()));
    }
}

impl Task {
    /// An accepted connection ended: a lossless session waits for its peer, any other is
    /// reported.
    pub(super) fn end(&mut self, why: &str) {
        if let (Some(key), Some(accepting)) = (self.key, &self.accepting)
            && !self.overfull
            && !self.ends.is_unwanted()
            && let Some(session) = self.connection.close()
        {
            tracing::debug!("{why}; its session waits");
            let mut l = lock(&accepting.lossless);
            l.parked.park(key, self.ends.id, session, clock::monotonic());
            l.look();
            return;
        }
        if let (Some(key), Some(accepting)) = (self.key, &self.accepting) {
            lock(&accepting.lossless).parked.forget(&key);
        }
        if self.known {
            self.ends.link.close();
            self.sink.push(NetEvent::Closed(self.ends.id, why.into()));
        } else {
            tracing::debug!("{why}");
        }
    }

    /// Finds the session that an accepted peer asks for.
    pub(super) async fn session(&mut self, ask: SessionAsk) -> Result<(), String> {
        let Some(accepting) = &self.accepting else {
            return Err("the server asked for a session of ours".into());
        };
        let cookie = entropy::cookie().map_err(|e| format!("draw a cookie: {e}"))?;
        let key = ask.key();
        let answer = loop {
            let asked = {
                let mut l = lock(&accepting.lossless);
                let asked = l.parked.ask(&ask, cookie, &self.ends, |ends| ends.id);
                if let Asked::Answer { gone: Some(gone), .. } = &asked {
                    l.gone(gone, "the peer began a new session");
                }
                asked
            };
            match asked {
                Asked::Answer { answer, link, .. } => {
                    if let Some(ends) = link {
                        (self.ends, self.key) = (ends, Some(key));
                    }
                    break answer;
                }
                Asked::Displace(old) => {
                    // The session's old connection has not noticed its end yet.
                    if let Some(ends) = old {
                        ends.queue.replaced.notify_one();
                    }
                    tokio::time::sleep(HELD_BACK).await;
                }
            }
        };
        // The old connection may have ended by itself before it was told to: the word must not end
        // this one.
        tokio::select! {
            biased;
            () = self.ends.queue.replaced.notified() => {}
            () = std::future::ready(()) => {}
        }
        self.connection.answer_session(answer, &mut self.events).map_err(|e| e.to_string())
    }
}
