//! A link: one peer, as a daemon sees it.

use crate::auth::{Grants, METHOD_IN_PROCESS};
use crate::network::Network;
use spirula_messages::Message;
use spirula_messenger::auth::Mode;
use spirula_types::{AddrVec, EntityAddr, EntityName, EntityType, features};
use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Tells links apart within the process; never reused.
pub type LinkId = u64;

static NEXT_LINK: AtomicU64 = AtomicU64::new(1);

/// Takes a fresh link id.
pub(crate) fn next_link_id() -> LinkId {
    NEXT_LINK.fetch_add(1, Ordering::Relaxed)
}

/// Who is at the other end, as authentication and the handshake found it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Kind of entity.
    pub kind: EntityType,
    /// Its name without the kind (`admin` in `client.admin`, `3` in `osd.3`).
    pub id: String,
    /// Global id given in authentication; the number in `client.4221`.
    pub global_id: u64,
    /// Its addresses; a client's nonce tells its instances apart.
    pub addrs: AddrVec,
    /// Its feature bits.
    pub features: u64,
    /// Authentication method by which all this is known; [`METHOD_IN_PROCESS`] for a daemon of
    /// this process.
    pub method: u32,
    /// How the connection is protected; memory counts as secure.
    pub mode: Mode,
    /// What the listener's authenticator found that it may do; nothing on links that we opened.
    pub grants: Grants,
    /// Where its connection comes from, as this machine sees it; `None` on links that we opened,
    /// and through memory.
    pub from: Option<IpAddr>,
}

impl Peer {
    /// A daemon or client of this process, before it has addresses and a global id.
    pub fn new(kind: EntityType, id: &str) -> Self {
        Self {
            kind,
            id: id.to_owned(),
            global_id: 0,
            addrs: AddrVec::default(),
            features: features::PACIFIC,
            method: METHOD_IN_PROCESS,
            mode: Mode::Secure,
            grants: Grants::default(),
            from: None,
        }
    }

    /// The place that capabilities by `network` are for: where its connection comes from, whatever
    /// it says of itself, be it a client or a daemon whose address is in the maps.
    pub fn place(&self) -> Option<IpAddr> {
        self.from.or_else(|| self.addr().addr.map(|a| a.ip()))
    }

    /// The name that keys and caps go by: `client.admin`.
    pub fn auth_name(&self) -> String {
        format!("{}.{}", self.kind.as_str(), self.id)
    }

    /// The address that identifies the instance (blocklist, watch).
    pub fn addr(&self) -> EntityAddr {
        self.addrs.msgr2()
    }

    /// Kind and number: the OSD's number for OSDs, the global id for everyone else.
    pub fn name(&self) -> EntityName {
        match self.kind {
            EntityType::Osd => EntityName::new(self.kind, self.id.parse().unwrap_or(-1)),
            kind => EntityName::new(kind, self.global_id as i64),
        }
    }
}

/// What happened on the network.
#[derive(Debug)]
pub enum NetEvent {
    /// A link is ready, opened by us or by the peer.
    Opened {
        /// The link.
        link: Link,
        /// Who is there.
        peer: Peer,
        /// True if we asked for it ([`crate::Hub::connect`]).
        outgoing: bool,
    },
    /// A message came.
    Message(LinkId, Message),
    /// A client sent a request to a monitor or manager that is too large
    /// ([`crate::limits::REQUEST_BYTES`]). This is its type and transaction, without contents,
    /// which took no memory.
    TooLarge(LinkId, Message),
    /// A link that we opened goes on over another connection; nothing was lost.
    Resumed(LinkId),
    /// A lossless link that we opened goes on in a new session, which is open: of what was sent
    /// before this event, some may be lost, and some may have arrived.
    Renewed(LinkId),
    /// The peer has taken some of what waits for it ([`Link::tell_when_taken`]).
    Taken(LinkId),
    /// Nobody listens at the far end of a lossless link that we opened ([`Ended::refused`]). It
    /// goes on trying, and says this each time, until its owner closes it: a firewall may have
    /// refused in the peer's name.
    Refused(LinkId, Ended),
    /// The link is gone; nothing comes after this. Comes also when an outgoing link could
    /// not be opened.
    Closed(LinkId, Ended),
}

/// How a link ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// In words, for logs.
    pub why: String,
    /// Each of the far end's addresses refused a connection (ECONNREFUSED): nobody listens there.
    /// A peer that is merely slow, stopped or cut off does not refuse; a firewall may, in its name.
    pub refused: bool,
    /// Before that, the last connection was closed by the far end in due form (FIN), which no
    /// firewall does in anybody's name.
    pub hung_up: bool,
}

impl From<String> for Ended {
    fn from(why: String) -> Self {
        Self { why, ..Self::default() }
    }
}

impl From<&str> for Ended {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Where a daemon's network events go.
#[derive(Clone)]
pub struct NetSink {
    deliver: Arc<dyn Fn(NetEvent) + Send + Sync>,
    depth: Arc<AtomicUsize>,
}

impl NetSink {
    /// A sink that hands events to `deliver`; `depth` counts events not yet handled.
    pub fn new(deliver: Arc<dyn Fn(NetEvent) + Send + Sync>, depth: Arc<AtomicUsize>) -> Self {
        Self { deliver, depth }
    }

    /// Hands over one event. Never blocks.
    pub fn push(&self, event: NetEvent) {
        self.depth.fetch_add(1, Ordering::Relaxed);
        (self.deliver)(event);
    }

    /// Events the daemon has not handled yet.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for NetSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetSink(depth {})", self.depth())
    }
}

/// A message on its way out, with the crc32c of its payload if it is already known.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub message: Message,
    pub data_crc: Option<u32>,
}

impl Outgoing {
    /// Bytes that count.
    pub fn size(&self) -> usize {
        self.message.front.len() + self.message.data.len()
    }
}

/// The queue between a daemon and a TCP connection's task.
#[derive(Debug, Default)]
pub(crate) struct OutQueue {
    pub items: Mutex<VecDeque<Outgoing>>,
    pub bytes: AtomicUsize,
    /// Bytes that left the queue and that the peer has not taken: what its socket has no room for.
    pub unsent: AtomicUsize,
    /// When the peer last took any of them, or had taken all: nanoseconds of the monotonic clock.
    pub taken_at: AtomicU64,
    /// The owner wants to know when the peer takes any ([`Link::tell_when_taken`]).
    pub tell_taken: AtomicBool,
    pub wake: Notify,
    /// Another connection takes the session over.
    pub replaced: Notify,
    /// The owner does not expect the peer to come back ([`Link::keep`]).
    pub given_up: AtomicBool,
    /// The connection is to be made anew.
    pub anew: Notify,
    pub closing: AtomicBool,
    /// What waits is not wanted any more ([`Link::abandon`]).
    pub abandoned: AtomicBool,
}

impl OutQueue {
    /// For how long, at the monotonic time `now`, the peer has taken nothing though something waits
    /// for it.
    pub fn stuck_for(&self, now: Duration) -> Duration {
        if self.unsent.load(Ordering::Relaxed) == 0 {
            return Duration::ZERO;
        }
        now.saturating_sub(Duration::from_nanos(self.taken_at.load(Ordering::Relaxed)))
    }
}

/// What a daemon says about reading on from a peer.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    /// Requests taken and not answered ([`Link::request_taken`]).
    open: AtomicUsize,
    /// [`Link::hold`].
    held: AtomicBool,
}

impl Intake {
    /// May nothing more be read?
    pub fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed)
            || self.open.load(Ordering::Relaxed) >= crate::limits::REQUESTS_PER_LINK
    }
}

enum Far {
    /// Another daemon of this process: its mailbox and its name for the link.
    Local { sink: NetSink, link: LinkId },
    /// A connection task.
    Tcp(Arc<OutQueue>),
    /// Whatever is there in place of sockets.
    Carried(Arc<dyn Network>),
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local { .. } => "local",
            Self::Tcp(_) => "tcp",
            Self::Carried(_) => "carried",
        })
    }
}

#[derive(Debug)]
struct Inner {
    id: LinkId,
    far: Far,
    closed: AtomicBool,
    intake: Arc<Intake>,
}

/// One peer. Cheap to clone; all clones are the same link.
#[derive(Clone, Debug)]
pub struct Link(Arc<Inner>);

impl Link {
    /// A pair of ends within the process: (end held by the owner of `a`, end held by `b`).
    pub(crate) fn pair(a: &NetSink, b: &NetSink) -> (Self, Self) {
        let (ia, ib) = (next_link_id(), next_link_id());
        let make = |id, sink: &NetSink, link| {
            Self(Arc::new(Inner {
                id,
                far: Far::Local { sink: sink.clone(), link },
                closed: AtomicBool::new(false),
                intake: Arc::default(),
            }))
        };
        (make(ia, b, ib), make(ib, a, ia))
    }

    pub(crate) fn tcp(id: LinkId, queue: Arc<OutQueue>, intake: Arc<Intake>) -> Self {
        Self(Arc::new(Inner { id, far: Far::Tcp(queue), closed: AtomicBool::new(false), intake }))
    }

    /// A link of a [`Network`]; `id` is the network's own choice.
    pub fn carried(id: LinkId, by: Arc<dyn Network>) -> Self {
        let (closed, intake) = (AtomicBool::new(false), Arc::default());
        Self(Arc::new(Inner { id, far: Far::Carried(by), closed, intake }))
    }

    /// Its number.
    pub fn id(&self) -> LinkId {
        self.0.id
    }

    /// Queues a message. Order is kept; a closed link drops it silently, as a network does.
    pub fn send(&self, message: Message) {
        self.send_with_crc(message, None);
    }

    /// Queues a message whose payload's crc32c (seed `0xffff_ffff`) is known.
    pub fn send_with_crc(&self, message: Message, data_crc: Option<u32>) {
        if self.is_closed() {
            return;
        }
        match &self.0.far {
            Far::Local { sink, link } => sink.push(NetEvent::Message(*link, message)),
            Far::Tcp(q) => {
                let out = Outgoing { message, data_crc };
                q.bytes.fetch_add(out.size(), Ordering::Relaxed);
                let mut items = q.items.lock().unwrap_or_else(PoisonError::into_inner);
                let idle = items.is_empty();
                items.push_back(out);
                drop(items);
                if idle {
                    q.wake.notify_one();
                }
            }
            Far::Carried(by) => by.carry(self.0.id, message),
        }
    }

    /// Queues a message for a peer that may not take its messages: if more than `most` bytes wait
    /// for it already, the link is closed instead. False then.
    pub fn send_within(&self, most: usize, message: Message) -> bool {
        if !self.is_closed() && self.unsent() > most {
            self.close();
            return false;
        }
        self.send(message);
        true
    }

    /// Bytes, about, that were sent and that the peer has not taken. What a socket's buffer holds
    /// counts as taken; within the process everything is.
    pub fn unsent(&self) -> usize {
        match &self.0.far {
            Far::Tcp(q) => q.bytes.load(Ordering::Relaxed) + q.unsent.load(Ordering::Relaxed),
            Far::Local { .. } | Far::Carried(_) => 0,
        }
    }

    /// Asks for one [`NetEvent::Taken`], when the peer next takes some of what waits for it. It may
    /// have taken the last of it just before: the owner looks at [`Link::unsent`] after asking.
    pub fn tell_when_taken(&self) {
        if let Far::Tcp(q) = &self.0.far {
            q.tell_taken.store(true, Ordering::Relaxed);
            // Whoever looks at both, in the other order: `Task::write`.
            fence(Ordering::SeqCst);
        }
    }

    /// For how long, at the monotonic time `now`, the peer has taken nothing though something waits
    /// for it; zero if nothing does.
    pub fn stuck_for(&self, now: Duration) -> Duration {
        match &self.0.far {
            Far::Tcp(q) => q.stuck_for(now),
            _ => Duration::ZERO,
        }
    }

    /// Closes the link. The peer sees it end; so does the owner, by a `Closed` event, when
    /// the link is a TCP connection: once the peer has taken what was sent before, or takes it too
    /// slowly ([`crate::limits::FLUSH`]). A local link just ends.
    pub fn close(&self) {
        if self.0.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        match &self.0.far {
            Far::Local { sink, link } => {
                sink.push(NetEvent::Closed(*link, "closed by the peer".into()))
            }
            Far::Tcp(q) => {
                q.closing.store(true, Ordering::Relaxed);
                q.wake.notify_one();
            }
            Far::Carried(by) => by.close(self.0.id),
        }
    }

    /// As [`Link::close`], at once: what waits for the peer of a TCP connection is thrown away.
    pub fn abandon(&self) {
        if let Far::Tcp(q) = &self.0.far {
            q.abandoned.store(true, Ordering::Relaxed);
        }
        self.close();
    }

    /// Goes on over a new connection, if it is a lossless TCP link that we opened and that is
    /// connected: the one there is may be waiting long for a host that answers again. Nothing is
    /// lost.
    pub fn renew(&self) {
        match &self.0.far {
            // Only who waits now: a connection that is made later is new anyway.
            Far::Tcp(q) => q.anew.notify_waiters(),
            Far::Carried(by) => by.renew(self.0.id),
            Far::Local { .. } => {}
        }
    }

    /// Says whether the peer of an accepted lossless link is to be waited for when its connection
    /// ends: yes, unless said otherwise. A session that waits already ends soon after `false`, by
    /// [`NetEvent::Closed`]; one that is connected goes on.
    pub fn keep(&self, keep: bool) {
        match &self.0.far {
            Far::Tcp(q) => q.given_up.store(!keep, Ordering::Relaxed),
            Far::Carried(by) => by.keep(self.0.id, keep),
            Far::Local { .. } => {}
        }
    }

    /// True once closed from this side.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Relaxed)
    }

    /// Notes that a request of this link is being worked on. While too many are, nothing
    /// more is read from the peer.
    pub fn request_taken(&self) {
        self.0.intake.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a request taken was answered or dropped.
    pub fn request_done(&self) {
        let before = self.0.intake.open.fetch_sub(1, Ordering::Relaxed);
        if before == crate::limits::REQUESTS_PER_LINK {
            self.read_on();
        }
    }

    /// Requests taken and not answered.
    pub fn open_requests(&self) -> usize {
        self.0.intake.open.load(Ordering::Relaxed)
    }

    /// Reads nothing more from the peer until [`Link::go_on`]. What has been read still comes: what
    /// is in the daemon's mailbox, and at most one receive buffer. Only a TCP link can be held;
    /// what comes over another is bounded by its sender.
    pub fn hold(&self) {
        self.0.intake.held.store(true, Ordering::Relaxed);
    }

    /// Ends [`Link::hold`].
    pub fn go_on(&self) {
        if self.0.intake.held.swap(false, Ordering::Relaxed) {
            self.read_on();
        }
    }

    fn read_on(&self) {
        if let Far::Tcp(q) = &self.0.far {
            q.wake.notify_one();
        }
    }
}
