//! The process's network: who listens where, and how to reach it.

use crate::link::{Link, NetEvent, NetSink, Peer};
use crate::tcp;
use spirula_buffer::PayloadPool;
use spirula_types::{AddrVec, EntityType};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Gives out global ids to clients that authenticate with a monitor; `None` when there is none
/// to give at the moment.
pub type AssignId = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// What a daemon shows to whoever connects.
#[derive(Clone)]
pub struct Service {
    /// Itself; its addresses are filled in by [`Hub::listen`].
    pub me: Peer,
    /// Where its events go.
    pub sink: NetSink,
    /// For monitors: where new global ids come from. Others accept the id the client has.
    pub assign_id: Option<AssignId>,
}

#[derive(Clone)]
struct Local {
    me: Peer,
    sink: NetSink,
}

struct Inner {
    mode: LinkMode,
    pool: PayloadPool,
    local: Mutex<HashMap<SocketAddr, Local>>,
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
    socket: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        self.hub.locals().remove(&self.socket);
    }
}

impl Hub {
    /// A network whose payloads in flight are bounded by `pool`.
    pub fn new(mode: LinkMode, pool: PayloadPool) -> Self {
        Self(Arc::new(Inner { mode, pool, local: Mutex::default() }))
    }

    /// The payload pool.
    pub fn pool(&self) -> &PayloadPool {
        &self.0.pool
    }

    fn locals(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Local>> {
        self.0.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens on `addr` (port 0: any free one) on the event loop `on`. `nonce` tells this
    /// incarnation of the daemon from earlier ones at the same address.
    ///
    /// # Errors
    /// [`NetError::Listen`], for example when the port is in use.
    pub fn listen(
        &self,
        addr: SocketAddr,
        nonce: u32,
        mut service: Service,
        on: &Handle,
    ) -> Result<Listener, NetError> {
        let fail = |source| NetError::Listen { addr, source };
        let std_listener = std::net::TcpListener::bind(addr).map_err(fail)?;
        std_listener.set_nonblocking(true).map_err(fail)?;
        let socket = std_listener.local_addr().map_err(fail)?;
        let addrs = AddrVec::one(spirula_types::EntityAddr::v2(socket, nonce));
        service.me.addrs = addrs.clone();
        self.locals().insert(socket, Local { me: service.me.clone(), sink: service.sink.clone() });
        let pool = self.0.pool.clone();
        let task = {
            let _in_runtime = on.enter();
            let listener = tokio::net::TcpListener::from_std(std_listener).map_err(fail)?;
            on.spawn(tcp::accept_loop(listener, service, pool))
        };
        Ok(Listener { addrs, hub: self.clone(), socket, task })
    }

    /// Opens a link to the daemon at `to`. It can be written to at once; [`NetEvent::Opened`]
    /// follows, or [`NetEvent::Closed`] if nobody is there.
    pub fn connect(&self, me: &Peer, sink: &NetSink, to: &AddrVec, kind: EntityType, on: &Handle) -> Link {
        let target = to.msgr2();
        let local = match (self.0.mode, target.addr) {
            (LinkMode::Memory, Some(socket)) => self.locals().get(&socket).cloned(),
            _ => None,
        };
        match local {
            Some(there) if there.me.addrs.msgr2() == target => {
                let (mine, theirs) = Link::pair(sink, &there.sink);
                there.sink.push(NetEvent::Opened { link: theirs, peer: me.clone(), outgoing: false });
                sink.push(NetEvent::Opened { link: mine.clone(), peer: there.me, outgoing: true });
                mine
            }
            _ => tcp::connect(me.clone(), sink.clone(), to.clone(), kind, self.0.pool.clone(), on),
        }
    }
}
