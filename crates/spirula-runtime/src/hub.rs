//! The process's network: who listens where, and how to reach it.

use crate::auth::{Authenticator, Login};
use crate::link::{Link, NetEvent, NetSink, Peer};
use crate::{limits, tcp};
use spirula_buffer::PayloadPool;
use spirula_messenger::auth::ModePolicy;
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::runtime::Handle;

/// Why the network could not do something.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A listener could not be opened.
    #[error("listen on {addr}: {source}")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// How daemons of one process reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMode {
    /// Through memory.
    Memory,
    /// Over TCP, as separate hosts would.
    Tcp,
}

/// What a daemon shows to whoever connects.
#[derive(Clone)]
pub struct Service {
    /// Itself; its addresses are filled in by [`Hub::listen`].
    pub me: Peer,
    /// Where its events go.
    pub sink: NetSink,
    /// Who may come in.
    pub auth: Arc<dyn Authenticator>,
}

#[derive(Clone)]
struct Local {
    me: Peer,
    sink: NetSink,
}

struct Inner {
    mode: LinkMode,
    pool: PayloadPool,
    modes: RwLock<ModePolicy>,
    local: Mutex<HashMap<SocketAddr, Local>>,
    /// The IP that clients of this process have everywhere, see
    /// [`spirula_messenger::Endpoint::learned`].
    learned: Arc<OnceLock<IpAddr>>,
}

/// The process's network. Cheap to clone.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub({:?})", self.0.mode)
    }
}

/// An open listener; closed when dropped, together with the daemon's in-process address.
/// Connections made already stay until their links are closed.
pub struct Listener {
    /// What to publish in the maps.
    pub addrs: AddrVec,
    hub: Hub,
    sockets: Vec<SocketAddr>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        let mut locals = self.hub.locals();
        for socket in &self.sockets {
            locals.remove(socket);
        }
    }
}

impl Hub {
    /// A network whose payloads in flight are bounded by `pool`.
    pub fn new(mode: LinkMode, pool: PayloadPool) -> Self {
        let (modes, local, learned) = Default::default();
        Self(Arc::new(Inner { mode, pool, modes, local, learned }))
    }

    /// The payload pool.
    pub fn pool(&self) -> &PayloadPool {
        &self.0.pool
    }

    /// Sets the connection modes that daemons and clients of this process allow and want, for
    /// connections from now on. Links through memory need none.
    pub fn set_modes(&self, modes: ModePolicy) {
        *self.0.modes.write().unwrap_or_else(PoisonError::into_inner) = modes;
    }

    /// The connection modes in force.
    pub fn modes(&self) -> ModePolicy {
        self.0.modes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the IP is noted that clients of this process have on all their connections.
    pub(crate) fn learned(&self) -> Arc<OnceLock<IpAddr>> {
        self.0.learned.clone()
    }

    fn locals(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Local>> {
        self.0.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens on `on`, a daemon's addresses in one network (of IPv4, IPv6 or both; port 0: any
    /// free one), on the event loop `reactor`. `nonce` tells this incarnation of the daemon from
    /// earlier ones at the same address. A daemon in two networks listens twice.
    ///
    /// # Errors
    /// [`NetError::Listen`], for example when the port is in use.
    pub fn listen(
        &self,
        on: &[SocketAddr],
        nonce: u32,
        mut service: Service,
        reactor: &Handle,
    ) -> Result<Listener, NetError> {
        let mut listeners = Vec::new();
        for &addr in on {
            let listener = tcp::bind(addr).map_err(|source| NetError::Listen { addr, source })?;
            let socket =
                listener.local_addr().map_err(|source| NetError::Listen { addr, source })?;
            listeners.push((socket, listener));
        }
        let sockets: Vec<SocketAddr> = listeners.iter().map(|(socket, _)| *socket).collect();
        let addrs = AddrVec(sockets.iter().map(|s| EntityAddr::v2(*s, nonce)).collect());
        service.me.addrs = addrs.clone();
        let mut open =
            Listener { addrs, hub: self.clone(), sockets: Vec::new(), tasks: Vec::new() };
        let accepting = tcp::Acceptor::new(self.clone(), service.clone());
        let _in_runtime = reactor.enter();
        for (addr, listener) in listeners {
            let listener = tokio::net::TcpListener::from_std(listener);
            let listener = listener.map_err(|source| NetError::Listen { addr, source })?;
            open.tasks.push(reactor.spawn(accepting.clone().run(listener)));
            self.locals()
                .insert(addr, Local { me: service.me.clone(), sink: service.sink.clone() });
            open.sockets.push(addr);
        }
        Ok(open)
    }

    /// Listens on the first free port from `ports.0` to `ports.1`; with 0 and 0 on any.
    ///
    /// # Errors
    /// [`NetError::Listen`] if none is free, or the address is not ours.
    pub fn listen_within(
        &self,
        ip: std::net::IpAddr,
        ports: (u16, u16),
        nonce: u32,
        service: Service,
        on: &Handle,
    ) -> Result<Listener, NetError> {
        let (mut port, last) = ports;
        loop {
            match self.listen(&[(ip, port).into()], nonce, service.clone(), on) {
                Err(NetError::Listen { source, .. })
                    if source.kind() == std::io::ErrorKind::AddrInUse && port < last =>
                {
                    port += 1;
                }
                result => return result,
            }
        }
    }

    /// Opens a link through memory to a daemon of this process, whatever the mode is; `None` if
    /// none listens at `to`. For the process's own admin sockets.
    pub fn connect_local(&self, me: &Peer, sink: &NetSink, to: &AddrVec) -> Option<Link> {
        let there = self.locals().get(&to.msgr2().addr?).cloned()?;
        Some(Self::join(me, sink, there))
    }

    /// Both ends of a link through memory. It keeps the contract of those over TCP: what is sent is
    /// in the far end's mailbox at once, so nothing is lost while both ends live; where the far end
    /// closes it all the same, its owner hears that, and makes it anew.
    fn join(me: &Peer, sink: &NetSink, there: Local) -> Link {
        let (mine, theirs) = Link::pair(sink, &there.sink);
        there.sink.push(NetEvent::Opened { link: theirs, peer: me.clone(), outgoing: false });
        sink.push(NetEvent::Opened { link: mine.clone(), peer: there.me, outgoing: true });
        mine
    }

    /// Opens a link to the daemon at `to`, trying its addresses in turn, with credentials from
    /// `login`. It can be written to at once; [`NetEvent::Opened`] follows, or
    /// [`NetEvent::Closed`] if nobody is there or lets us in.
    pub fn connect(
        &self,
        me: &Peer,
        login: &Arc<dyn Login>,
        sink: &NetSink,
        to: &AddrVec,
        kind: EntityType,
        on: &Handle,
    ) -> Link {
        self.connect_within(me, login, sink, to, kind, limits::TCP_UNACKNOWLEDGED, on)
    }

    /// As [`Hub::connect`], for a link over which little is said, and often: it notices within
    /// [`limits::TCP_UNACKNOWLEDGED_WATCHED`] that nothing arrives, and then tries every second or
    /// so.
    pub fn connect_watched(
        &self,
        me: &Peer,
        login: &Arc<dyn Login>,
        sink: &NetSink,
        to: &AddrVec,
        kind: EntityType,
        on: &Handle,
    ) -> Link {
        self.connect_within(me, login, sink, to, kind, limits::TCP_UNACKNOWLEDGED_WATCHED, on)
    }

    #[allow(clippy::too_many_arguments, reason = "all of them go on to one task")]
    fn connect_within(
        &self,
        me: &Peer,
        login: &Arc<dyn Login>,
        sink: &NetSink,
        to: &AddrVec,
        kind: EntityType,
        unacknowledged: Duration,
        on: &Handle,
    ) -> Link {
        match self.local(to) {
            Some(there) => Self::join(me, sink, there),
            None => {
                let (me, login, sink, to) = (me.clone(), login.clone(), sink.clone(), to.clone());
                tcp::connect(self.clone(), me, login, sink, to, kind, unacknowledged, on)
            }
        }
    }

    /// The daemon of this process with one of these addresses, nonce included, if it is to be
    /// reached through memory.
    fn local(&self, to: &AddrVec) -> Option<Local> {
        if self.0.mode != LinkMode::Memory {
            return None;
        }
        let locals = self.locals();
        to.0.iter().find_map(|a| locals.get(&a.addr?).filter(|l| l.me.addrs.0.contains(a)).cloned())
    }
}
