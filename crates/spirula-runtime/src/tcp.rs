//! TCP connections: a task each, between a socket and the messenger's state machine.
//!
//! A task reads all there is, hands every complete message to the daemon in one go, and
//! writes all that is queued with one system call. Large payloads are read straight into
//! pooled, aligned buffers. A connection stops reading (so the peer waits) while its daemon
//! is behind, while too many of its requests are open, or while the payload pool is over
//! its budget; see [`crate::limits`].
//!
//! Outgoing lossless links reconnect by themselves and replay; all others end with
//! [`NetEvent::Closed`] and are reopened by whoever needs them.

use crate::hub::Service;
use crate::link::{Link, LinkId, NetEvent, NetSink, OutQueue, Peer, next_link_id};
use crate::{clock, entropy, limits};
use bytes::{Buf, BytesMut};
use spirula_buffer::{PayloadBuf, PayloadPool};
use spirula_messenger::{
    Connection, Endpoint, Event, Output, Policy, Session, SessionAsk, SessionKey, Sessions, Target, Verdict, Wanted,
};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::WriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

/// Numbers connection attempts of the process, as the messenger's races need it.
static GLOBAL_SEQ: AtomicU64 = AtomicU64::new(1);
/// Nonces of clients without a listening address.
static CLIENT_NONCE: AtomicU32 = AtomicU32::new(1);

/// First pause before a lossless link tries again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How long to pause while a limit holds reading back.
const HELD_BACK: Duration = Duration::from_millis(1);
/// How long an accepted lossless session waits for its peer to come back.
const PARKED: Duration = Duration::from_secs(60);
/// How often timeouts are looked at.
const TICK: Duration = Duration::from_secs(1);

/// Accepts connections for a daemon until its listener is dropped.
pub(crate) async fn accept_loop(listener: TcpListener, service: Service, pool: PayloadPool) {
    let gid = service.me.name().num;
    let mut endpoint = Endpoint::new(service.me.kind, gid, service.me.addrs.clone());
    endpoint.limits.direct_payload = limits::DIRECT_PAYLOAD;
    endpoint.timeouts.handshake = Duration::from_millis(limits::HANDSHAKE_MS);
    // Our own daemons keep their sessions over a broken connection; clients resend.
    endpoint.lossless = if service.me.kind == EntityType::Osd { vec![EntityType::Osd] } else { Vec::new() };
    let endpoint = Arc::new(endpoint);
    let lossless = Arc::new(Mutex::new(Lossless {
        sessions: Sessions::new(service.me.addr()),
        links: BTreeMap::new(),
        sink: service.sink.clone(),
    }));
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                // Out of descriptors, mostly: wait for some to be closed.
                tracing::warn!("accept on {}: {e}", service.me.addrs);
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= limits::CONNECTIONS {
            tracing::warn!("{from}: refused, {} connections are open", limits::CONNECTIONS);
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        let (endpoint, lossless, service) = (endpoint.clone(), lossless.clone(), service.clone());
        let (open, pool) = (open.clone(), pool.clone());
        tokio::spawn(async move {
            lock(&lossless).expire(clock::monotonic());
            let connection = Connection::accept(endpoint, from, clock::monotonic());
            let mut task = Task::new(connection, service.sink, pool, Ends::new());
            task.accepting = Some(Accepting { assign_id: service.assign_id, lossless });
            let why = task.run(stream).await;
            task.end(&format!("{from}: {why}"));
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// The daemon's side of a connection: what stays when a lossless session changes from one
/// connection to the next.
#[derive(Clone)]
struct Ends {
    id: LinkId,
    queue: Arc<OutQueue>,
    open_requests: Arc<AtomicUsize>,
    link: Link,
}

impl Ends {
    fn new() -> Self {
        let (id, queue, open_requests) = (next_link_id(), Arc::<OutQueue>::default(), Arc::<AtomicUsize>::default());
        let link = Link::tcp(id, queue.clone(), open_requests.clone());
        Self { id, queue, open_requests, link }
    }
}

/// The lossless sessions that peers began with one listener.
struct Lossless {
    sessions: Sessions,
    links: BTreeMap<SessionKey, Ends>,
    sink: NetSink,
}

fn lock(l: &Mutex<Lossless>) -> std::sync::MutexGuard<'_, Lossless> {
    l.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lossless {
    /// Gives up sessions whose peer does not come back.
    fn expire(&mut self, now: Duration) {
        for key in self.sessions.expire(now, PARKED) {
            self.gone(&key, "the peer did not come back");
        }
    }

    fn gone(&mut self, key: &SessionKey, why: &str) {
        if let Some(ends) = self.links.remove(key) {
            ends.link.close();
            self.sink.push(NetEvent::Closed(ends.id, why.to_owned()));
        }
    }
}

/// Opens a TCP link; the result comes as an event.
pub(crate) fn connect(me: Peer, sink: NetSink, to: AddrVec, kind: EntityType, pool: PayloadPool, on: &Handle) -> Link {
    let ends = Ends::new();
    let link = ends.link.clone();
    on.spawn(async move {
        let why = connecting(me, &sink, &to, kind, pool, &ends).await;
        ends.link.close();
        sink.push(NetEvent::Closed(ends.id, format!("{to}: {why}")));
    });
    link
}

/// Connects, and for lossless peers again and again; returns why it ended.
async fn connecting(
    me: Peer,
    sink: &NetSink,
    to: &AddrVec,
    kind: EntityType,
    pool: PayloadPool,
    ends: &Ends,
) -> String {
    let number = if me.kind == EntityType::Client { -1 } else { me.name().num };
    let mut endpoint = Endpoint::new(me.kind, number, me.addrs.clone());
    endpoint.limits.direct_payload = limits::DIRECT_PAYLOAD;
    if me.addrs.is_blank() {
        endpoint.nonce = CLIENT_NONCE.fetch_add(1, Ordering::Relaxed) ^ (std::process::id() << 12);
    }
    let endpoint = Arc::new(endpoint);
    let lossless = me.kind == EntityType::Osd && kind == EntityType::Osd;
    let mut session = match lossless.then(entropy::cookie).transpose() {
        Ok(cookie) => cookie.map(Session::new),
        Err(e) => return format!("draw a cookie: {e}"),
    };
    let addr = to.msgr2();
    let mut pause = RETRY_MIN;
    loop {
        let stream = match open(addr).await {
            Ok(stream) => stream,
            // Nobody listens there: the owner decides (an OSD reports the failure).
            Err(why) => return why,
        };
        let mut target = Target::lossy(addr, kind);
        target.auth_id.clone_from(&me.id);
        target.global_id = me.global_id;
        target.global_seq = GLOBAL_SEQ.fetch_add(1, Ordering::Relaxed);
        if let Some(s) = session.take() {
            target.policy = Policy::Lossless(s);
        }
        let connection = Connection::connect(endpoint.clone(), target, clock::monotonic());
        let mut task = Task::new(connection, sink.clone(), pool.clone(), ends.clone());
        let why = task.run(stream).await;
        GLOBAL_SEQ.fetch_max(task.connection.global_seq() + 1, Ordering::Relaxed);
        if task.established {
            pause = RETRY_MIN;
        }
        session = if lossless && !ends.link.is_closed() { task.connection.close() } else { None };
        if session.is_none() {
            return why;
        }
        tracing::debug!("{addr}: {why}; reconnecting");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn open(addr: EntityAddr) -> Result<TcpStream, String> {
    let Some(socket) = addr.addr else { return Err("no address to connect to".into()) };
    match tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(socket)).await {
        Ok(Ok(s)) => Ok(s),
        Ok(Err(e)) => Err(format!("connect to {addr}: {e}")),
        Err(_) => Err(format!("connect to {addr}: no answer within 5 s")),
    }
}

/// What an accepting task needs besides.
struct Accepting {
    assign_id: Option<crate::hub::AssignId>,
    lossless: Arc<Mutex<Lossless>>,
}

/// A payload being read directly.
struct Direct {
    buffer: PayloadBuf,
    length: usize,
}

struct Task {
    connection: Connection,
    sink: NetSink,
    pool: PayloadPool,
    ends: Ends,
    accepting: Option<Accepting>,
    /// The daemon knows the link.
    known: bool,
    established: bool,
    /// Of an accepted lossless session.
    key: Option<SessionKey>,
    events: Vec<Event>,
    buffer: BytesMut,
    direct: Option<Direct>,
    /// Length of a payload for which there was no memory yet.
    waiting: Option<usize>,
    output: Output,
}

impl Task {
    fn new(connection: Connection, sink: NetSink, pool: PayloadPool, ends: Ends) -> Self {
        Self {
            connection,
            sink,
            pool,
            ends,
            accepting: None,
            known: false,
            established: false,
            key: None,
            events: Vec::new(),
            buffer: BytesMut::new(),
            direct: None,
            waiting: None,
            output: Output::default(),
        }
    }

    /// An accepted connection ended: a lossless session waits for its peer, any other is
    /// reported.
    fn end(&mut self, why: &str) {
        if let (Some(key), Some(accepting)) = (self.key, &self.accepting)
            && !self.ends.link.is_closed()
            && let Some(session) = self.connection.close()
        {
            tracing::debug!("{why}; its session waits");
            lock(&accepting.lossless).sessions.park(key, self.ends.id, session, clock::monotonic());
            return;
        }
        if let (Some(key), Some(accepting)) = (self.key, &self.accepting) {
            let mut l = lock(&accepting.lossless);
            l.sessions.forget(&key);
            l.links.remove(&key);
        }
        if self.known {
            self.ends.link.close();
            self.sink.push(NetEvent::Closed(self.ends.id, why.to_owned()));
        } else {
            tracing::debug!("{why}");
        }
    }

    /// Drives the connection until it ends; says why it did.
    async fn run(&mut self, mut stream: TcpStream) -> String {
        if let Err(e) = stream.set_nodelay(true) {
            return format!("set TCP_NODELAY: {e}");
        }
        let (mut reader, mut writer) = stream.split();
        let mut next_tick = tokio::time::Instant::now() + TICK;
        loop {
            // A resumed session brings its queue along.
            let queue = self.ends.queue.clone();
            if let Err(why) = self.collect_output() {
                return why;
            }
            match self.write(&mut writer) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return format!("write: {e}"),
            }
            if queue.closing.load(Ordering::Relaxed) && !self.output.has_remaining() {
                return "closed from this side".into();
            }
            self.begin_payload();
            let held_back = self.held_back();
            let result = tokio::select! {
                r = read_some(&mut reader, &mut self.buffer, &mut self.direct), if !held_back => Some(r),
                r = writer.writable(), if self.output.has_remaining() => match r {
                    Ok(()) => None,
                    Err(e) => return format!("write: {e}"),
                },
                () = queue.wake.notified() => None,
                () = queue.replaced.notified() => return "the peer opened another connection".into(),
                () = tokio::time::sleep(HELD_BACK), if held_back => None,
                () = tokio::time::sleep_until(next_tick) => {
                    next_tick += TICK;
                    if let Err(e) = self.connection.tick(clock::monotonic()) {
                        return e.to_string();
                    }
                    None
                }
            };
            match result {
                None => {}
                Some(Ok(0)) => return "closed by the peer".into(),
                Some(Ok(_)) => {
                    if let Err(why) = self.received().await {
                        // What was wrong goes to the peer's log as a broken connection; ours says why.
                        return why;
                    }
                }
                Some(Err(e)) => return format!("read: {e}"),
            }
        }
    }

    fn held_back(&self) -> bool {
        self.sink.depth() > limits::MAILBOX_EVENTS
            || self.ends.open_requests.load(Ordering::Relaxed) >= limits::REQUESTS_PER_LINK
            || self.ends.queue.bytes.load(Ordering::Relaxed) + self.output.len() > limits::OUT_BYTES
            // Only a payload waits for memory: small messages go on, and one begun is finished.
            || (self.waiting.is_some() && self.pool.over_budget())
    }

    /// Moves what the daemon queued into the connection, and from there into the output.
    fn collect_output(&mut self) -> Result<(), String> {
        if self.established || self.accepting.is_none() {
            let mut items = self.ends.queue.items.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = std::mem::take(&mut *items);
            drop(items);
            for out in waiting {
                let size = out.message.front.len() + out.message.data.len();
                self.ends.queue.bytes.fetch_sub(size, Ordering::Relaxed);
                self.connection.send(out.message, out.data_crc).map_err(|e| e.to_string())?;
            }
        }
        self.output.append(self.connection.take_output());
        Ok(())
    }

    fn write(&mut self, writer: &mut WriteHalf<'_>) -> io::Result<()> {
        while self.output.has_remaining() {
            let mut slices = [IoSlice::new(&[]); 64];
            let n = self.output.chunks_vectored(&mut slices);
            let written = writer.try_write_vectored(&slices[..n])?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.output.advance(written);
        }
        Ok(())
    }

    /// Lets the connection work on what was read and passes on what comes of it.
    async fn received(&mut self) -> Result<(), String> {
        let now = clock::monotonic();
        if let Some(d) = &self.direct {
            if d.buffer.len() < d.length {
                return Ok(());
            }
            if let Some(d) = self.direct.take() {
                // Handed back only if none was wanted, which `wanted` has ruled out.
                let _ = self.connection.receive_payload(d.buffer.freeze());
            }
        }
        loop {
            let result = self.connection.receive(now, &mut self.buffer, &mut self.events);
            let mut answered = false;
            for event in std::mem::take(&mut self.events) {
                answered |= self.event(event).await?;
            }
            result.map_err(|e| e.to_string())?;
            if !answered {
                break;
            }
        }
        if let Wanted::Payload(length) = self.connection.wanted() {
            self.waiting = Some(length);
            self.begin_payload();
        }
        Ok(())
    }

    /// Takes a buffer for the payload that is to come, if there is memory for it.
    fn begin_payload(&mut self) {
        if let Some(length) = self.waiting
            && !self.pool.over_budget()
        {
            self.waiting = None;
            let mut buffer = self.pool.take(length);
            let have = self.buffer.len().min(length);
            buffer.extend(&self.buffer[..have]);
            self.buffer.advance(have);
            self.direct = Some(Direct { buffer, length });
        }
    }

    /// One event; true if it was a question that was answered, after which the connection
    /// can go on with what it has.
    async fn event(&mut self, event: Event) -> Result<bool, String> {
        match event {
            Event::Message(m) => {
                self.sink.push(NetEvent::Message(self.ends.id, m.message));
                Ok(false)
            }
            Event::Auth(request) => {
                let gid = match self.accepting.as_ref().and_then(|a| a.assign_id.as_ref()) {
                    Some(assign) if request.global_id == 0 => assign(),
                    _ => Some(request.global_id),
                };
                match gid {
                    Some(gid) => self.connection.accept_auth(gid),
                    // The monitor has not started yet; as one without quorum: come again.
                    None => return Err("no global id to give yet".into()),
                }
                Ok(true)
            }
            Event::Session(ask) => {
                self.session(ask).await?;
                Ok(true)
            }
            Event::Established(who) => {
                self.established = true;
                let outgoing = self.accepting.is_none();
                if !self.known {
                    self.known = true;
                    let peer = Peer {
                        kind: who.kind,
                        id: who.id,
                        global_id: who.global_id,
                        addrs: who.addrs,
                        features: who.features,
                    };
                    // A link that only changed its connection is no new link.
                    if !who.resumed {
                        self.sink.push(NetEvent::Opened { link: self.ends.link.clone(), peer, outgoing });
                    }
                }
                Ok(false)
            }
            Event::SessionReset { dropped } => {
                tracing::debug!("the peer forgot our session; {dropped} messages were dropped");
                Ok(false)
            }
            Event::KeepaliveAck(_) => Ok(false),
        }
    }

    /// Finds the session that an accepted peer asks for.
    async fn session(&mut self, ask: SessionAsk) -> Result<(), String> {
        let Some(accepting) = &self.accepting else { return Err("the server asked for a session of ours".into()) };
        let cookie = entropy::cookie().map_err(|e| format!("draw a cookie: {e}"))?;
        let key = ask.key();
        let mut reset = false;
        let answer = loop {
            let verdict = lock(&accepting.lossless).sessions.ask(&ask, cookie);
            match verdict {
                Verdict::Answer(a) => break a,
                Verdict::PeerReset(a) => {
                    reset = true;
                    break a;
                }
                Verdict::Take(_) => {
                    // The session's old connection has not noticed its end yet.
                    let old = lock(&accepting.lossless).links.get(&key).cloned();
                    match old {
                        Some(ends) => ends.queue.replaced.notify_one(),
                        None => lock(&accepting.lossless).sessions.forget(&key),
                    }
                    tokio::time::sleep(HELD_BACK).await;
                }
            }
        };
        {
            let mut l = lock(&accepting.lossless);
            if reset {
                l.gone(&key, "the peer restarted");
            }
            if let spirula_messenger::SessionAnswer::Attach(_) = &answer {
                self.ends = l.links.entry(key).or_insert_with(|| self.ends.clone()).clone();
                l.sessions.live(key, self.ends.id, false, true);
                self.key = Some(key);
            }
        }
        self.connection.answer_session(answer, &mut self.events).map_err(|e| e.to_string())
    }
}

/// Reads at least a byte into whichever buffer is being filled.
async fn read_some(
    reader: &mut tokio::net::tcp::ReadHalf<'_>,
    buffer: &mut BytesMut,
    direct: &mut Option<Direct>,
) -> io::Result<usize> {
    match direct {
        Some(d) => {
            let start = d.buffer.len();
            let n = reader.read(&mut d.buffer.whole()[start..d.length]).await?;
            d.buffer.set_len(start + n);
            Ok(n)
        }
        None => {
            if buffer.capacity() - buffer.len() < limits::RECEIVE_BUFFER / 4 {
                buffer.reserve(limits::RECEIVE_BUFFER);
            }
            reader.read_buf(buffer).await
        }
    }
}
