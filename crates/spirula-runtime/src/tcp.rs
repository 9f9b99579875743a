//! TCP connections: a task each, between a socket and the messenger's state machine.
//!
//! A task reads all there is, hands every complete message to the daemon in one go, and
//! writes all that is queued with one system call. Large payloads are read straight into
//! pooled, aligned buffers. A connection stops reading (so the peer waits) while its daemon
//! is behind, while too many of its requests are open or the daemon holds it, or (not between OSDs)
//! while the payload pool is over its budget; see [`crate::limits`].
//!
//! Outgoing lossless links reconnect by themselves and replay; all others end with
//! [`NetEvent::Closed`] and are reopened by whoever needs them.

mod accept;
mod connect;
mod places;
#[cfg(test)]
mod tests;

pub(crate) use accept::{Acceptor, bind};
pub(crate) use connect::connect;

use crate::auth::{self, Caller, Exchange, Grants, Step, Verdict};
use crate::link::{Intake, Link, LinkId, NetEvent, NetSink, OutQueue, Peer, next_link_id};
use crate::{clock, limits};
use accept::Accepting;
use bytes::{Buf, BytesMut};
use places::{LargePlace, LargePlaces};
use spirula_buffer::{PayloadBuf, PayloadPool};
use spirula_messenger::auth::AuthRequest;
use spirula_messenger::{Connection, Event, Opening, Output, SessionKey, Wanted};
use spirula_types::EntityType;
use std::io::{self, IoSlice};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::sync::oneshot;

/// Why a connection ended that the far end closed in due form.
const CLOSED_BY_PEER: &str = "closed by the peer";
/// Why one ended that the daemon closed.
const CLOSED_HERE: &str = "closed from this side";
/// Why one ended that the daemon closed and whose peer did not read.
const THROWN_AWAY: &str = "closed from this side, and the peer did not take what was sent to it";
/// How long to pause while a limit holds reading back.
const HELD_BACK: Duration = Duration::from_millis(1);
/// How often timeouts are looked at.
const TICK: Duration = Duration::from_secs(1);
/// A peer that takes nothing for so long is not told that the daemon lives.
const STOPPED: Duration = Duration::from_secs(5);

/// The daemon's side of a connection: what stays when a lossless session changes from one
/// connection to the next.
#[derive(Clone)]
struct Ends {
    id: LinkId,
    queue: Arc<OutQueue>,
    intake: Arc<Intake>,
    link: Link,
}

impl Ends {
    fn new() -> Self {
        let (id, queue, intake) =
            (next_link_id(), Arc::<OutQueue>::default(), Arc::<Intake>::default());
        let link = Link::tcp(id, queue.clone(), intake.clone());
        Self { id, queue, intake, link }
    }

    /// Of an accepted lossless session: nobody waits for the peer once its connection is over, or
    /// more waits for it than there is room for.
    fn is_unwanted(&self) -> bool {
        self.link.is_closed()
            || self.queue.given_up.load(Ordering::Relaxed)
            || self.queue.bytes.load(Ordering::Relaxed) > limits::SESSION_BYTES
    }

    /// Forgets what waits to be sent.
    fn forget(&self) {
        let items =
            std::mem::take(&mut *self.queue.items.lock().unwrap_or_else(PoisonError::into_inner));
        for out in items {
            self.queue.bytes.fetch_sub(out.size(), Ordering::Relaxed);
        }
    }
}

/// A payload being read directly.
struct Direct {
    buffer: PayloadBuf,
    /// Where in the buffer it begins, so that its data is aligned.
    start: usize,
    /// Where it ends.
    end: usize,
}

struct Task {
    connection: Connection,
    /// See [`limits::TCP_UNACKNOWLEDGED`].
    unacknowledged: Duration,
    /// It can be made anew: nothing is lost with the connection.
    lossless: bool,
    /// What the daemon knows of the link.
    opening: Opening,
    /// More was sent than the session may hold.
    overfull: bool,
    /// Bytes towards the peer above which nothing more is read from it.
    out_bytes: usize,
    sink: NetSink,
    pool: PayloadPool,
    ends: Ends,
    accepting: Option<Accepting>,
    /// Of an accepted peer that authenticates.
    exchange: Option<Box<dyn Exchange>>,
    /// The exchange's answer that is to come.
    verdict: Option<oneshot::Receiver<Verdict>>,
    /// What the peer may do.
    grants: Grants,
    /// The daemon knows the link.
    known: bool,
    established: bool,
    /// Of an accepted lossless session.
    key: Option<SessionKey>,
    events: Vec<Event>,
    buffer: BytesMut,
    direct: Option<Direct>,
    /// Length of a payload for which there was no memory yet, and where its data begins.
    waiting: Option<(usize, usize)>,
    /// When the payload that is being read was begun.
    payload_since: Duration,
    /// Of a client of a monitor or manager: the places for large requests.
    large: Option<Arc<LargePlaces>>,
    /// Its place, and since when.
    place: Option<(LargePlace, Duration)>,
    /// There is none for it.
    waits_for_place: bool,
    /// Whose connection it is, for these.
    user: String,
    output: Output,
    /// When it was found closed by the daemon, and how much was still to be written.
    closing: Option<(Duration, usize)>,
}

impl Task {
    fn new(connection: Connection, sink: NetSink, pool: PayloadPool, ends: Ends) -> Self {
        Self {
            unacknowledged: limits::TCP_UNACKNOWLEDGED,
            lossless: false,
            opening: Opening::default(),
            overfull: false,
            out_bytes: limits::OUT_BYTES,
            connection,
            sink,
            pool,
            ends,
            accepting: None,
            exchange: None,
            verdict: None,
            grants: Grants::default(),
            known: false,
            established: false,
            key: None,
            events: Vec::new(),
            buffer: BytesMut::new(),
            direct: None,
            waiting: None,
            payload_since: Duration::ZERO,
            large: None,
            place: None,
            waits_for_place: false,
            user: String::new(),
            output: Output::default(),
            closing: None,
        }
    }

    /// Drives the connection until it ends; says why it did.
    async fn run(&mut self, mut stream: TcpStream) -> String {
        let why = self.drive(&mut stream).await;
        if self.key.is_some() && why != CLOSED_HERE || why == THROWN_AWAY {
            // The session goes on elsewhere, or is lost; we live. An end in due form (FIN) is for
            // those who do not: other OSDs take it, and a port that refuses, for proof of death.
            // Nor does the kernel keep for long what a peer does not read.
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
        why
    }

    async fn drive(&mut self, stream: &mut TcpStream) -> String {
        if let Err(e) = socket_options(stream, self.unacknowledged) {
            return format!("set socket options: {e}");
        }
        let (mut reader, mut writer) = stream.split();
        // One timer for all turns of the loop, which are several for each message.
        let tick = tokio::time::sleep(TICK);
        tokio::pin!(tick);
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
            if queue.closing.load(Ordering::Relaxed) {
                if !self.output.has_remaining() {
                    return CLOSED_HERE.into();
                }
                self.closing.get_or_insert((clock::monotonic(), self.output.len()));
                if self.is_flushed_too_slowly(clock::monotonic()) {
                    return THROWN_AWAY.into();
                }
            }
            if self.direct.is_none()
                && self.waiting.is_none()
                && self.buffer.len() <= 2 * limits::RECEIVE_BUFFER
            {
                self.place = None;
            }
            self.begin_payload();
            let held_back = self.held_back();
            // While the peer waits for an answer it has nothing to say; it may hang up.
            let listening = !held_back
                && (self.verdict.is_none() || self.buffer.len() < limits::STRANGER_BUFFER);
            let room =
                if self.established { limits::RECEIVE_BUFFER } else { limits::STRANGER_BUFFER };
            let result = tokio::select! {
                r = read_some(&mut reader, &mut self.buffer, &mut self.direct, room), if listening => Some(r),
                v = later(&mut self.verdict), if self.verdict.is_some() => {
                    self.verdict = None;
                    if let Err(why) = self.judge(v) {
                        return why;
                    }
                    if let Err(why) = self.received().await {
                        return why;
                    }
                    None
                }
                r = writer.writable(), if self.output.has_remaining() => match r {
                    Ok(()) => None,
                    Err(e) => return format!("write: {e}"),
                },
                () = queue.wake.notified() => None,
                () = queue.anew.notified(), if self.lossless => return "to be made anew".into(),
                () = queue.replaced.notified() => return "the peer opened another connection".into(),
                () = tokio::time::sleep(HELD_BACK), if held_back => None,
                () = &mut tick => {
                    let next = tick.deadline() + TICK;
                    tick.as_mut().reset(next);
                    if held_back {
                        // Nobody reads, so nobody else would notice; what waits in the socket needs
                        // no answer then.
                        if hung_up(&reader).await {
                            return CLOSED_BY_PEER.into();
                        }
                        self.connection.forgive_silence(clock::monotonic());
                        if self.waits_for_daemon(clock::monotonic()) {
                            // The daemon lives: else it would take it for dead, and ask all again
                            // elsewhere.
                            self.connection.answer_unread(clock::monotonic(), clock::wall());
                        }
                    }
                    if self.dawdles(clock::monotonic()) {
                        return "it does not go on with a large message, and others wait for the \
                            memory".into();
                    }
                    if let Err(e) = self.connection.tick(clock::monotonic()) {
                        return e.to_string();
                    }
                    None
                }
            };
            match result {
                None => {}
                Some(Ok(0)) => return CLOSED_BY_PEER.into(),
                Some(Ok(_)) => {
                    if let Err(why) = self.received().await {
                        // What was wrong goes to the peer's log as a broken connection; ours says
                        // why.
                        return why;
                    }
                }
                Some(Err(e)) => return format!("read: {e}"),
            }
        }
    }

    /// Is the daemon the one that is awaited? Not while the peer takes nothing of what was sent to
    /// it: it may be stopped, and more would pile up for as long as it is. One that is slow has
    /// something unsent at each look.
    fn waits_for_daemon(&self, now: Duration) -> bool {
        let sent = !self.output.has_remaining() && self.connection.output_len() == 0;
        let queue = &self.ends.queue;
        let takes = || queue.unsent.load(Ordering::Relaxed) > 0 && queue.stuck_for(now) < STOPPED;
        (self.ends.intake.is_full() || self.waits_for_place) && (sent || takes())
    }

    /// Has it a place for a large request, or needs none?
    fn has_place(&mut self) -> bool {
        let Some(places) = &self.large else { return true };
        if self.place.is_none() {
            self.place = places.take(&self.user).map(|p| (p, clock::monotonic()));
        }
        self.place.is_some()
    }

    /// It was closed here: does the peer not take what was sent before that?
    fn is_flushed_too_slowly(&self, now: Duration) -> bool {
        self.closing.is_some_and(|(since, bytes)| {
            self.ends.queue.abandoned.load(Ordering::Relaxed)
                || self.ends.queue.stuck_for(now) >= limits::FLUSH
                || now.saturating_sub(since) >= limits::payload_time(bytes).min(limits::FLUSH_MOST)
        })
    }

    /// Does the peer hold memory that others wait for, while it takes its time?
    fn dawdles(&self, now: Duration) -> bool {
        let late =
            |since: Duration, bytes: usize| now.saturating_sub(since) > limits::payload_time(bytes);
        let payload = self.direct.as_ref().is_some_and(|d| late(self.payload_since, d.end));
        payload && self.pool.over_budget() && !self.is_between_osds()
            || self.place.as_ref().is_some_and(|(_, since)| late(*since, limits::REQUEST_BYTES))
    }

    fn held_back(&mut self) -> bool {
        let large = self.waiting.is_some() || self.buffer.len() > 2 * limits::RECEIVE_BUFFER;
        self.waits_for_place = large && !self.has_place();
        if self.waits_for_place {
            return true;
        }
        self.sink.depth() > limits::MAILBOX_EVENTS
            || self.ends.intake.is_full()
            || self.ends.queue.bytes.load(Ordering::Relaxed) + self.output.len() > self.out_bytes
            // Only a payload waits for memory: small messages go on, and one begun is finished.
            || (self.waiting.is_some() && self.lacks_memory())
    }

    /// Is there no memory for one more payload? For what another OSD sends there is, always: see
    /// [`limits`].
    fn lacks_memory(&self) -> bool {
        !self.is_between_osds() && self.pool.over_budget()
    }

    /// Is it of a link between two OSDs, whichever of them opened it?
    fn is_between_osds(&self) -> bool {
        self.lossless || self.key.is_some()
    }

    /// Moves what the daemon queued into the connection, and from there into the output.
    fn collect_output(&mut self) -> Result<(), String> {
        if self.established || self.accepting.is_none() {
            let mut items = self.ends.queue.items.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = std::mem::take(&mut *items);
            drop(items);
            let mut waiting = waiting.into_iter();
            while let Some(out) = waiting.next() {
                // Counted at one of the two places at least; `write` counts anew.
                self.ends.queue.unsent.fetch_add(out.size(), Ordering::Relaxed);
                self.ends.queue.bytes.fetch_sub(out.size(), Ordering::Relaxed);
                if let Err(e) = self.connection.send(out.message, out.data_crc) {
                    // This message is gone, and with it the session, whose next one must not close
                    // the gap. What stood behind it goes, too, and must not count for as long as
                    // the link lasts: above the bound nothing is read any more.
                    self.overfull = true;
                    let gone = waiting.map(|out| out.size()).sum();
                    self.ends.queue.bytes.fetch_sub(gone, Ordering::Relaxed);
                    return Err(e.to_string());
                }
            }
        }
        self.output.append(self.connection.take_output());
        Ok(())
    }

    fn write(&mut self, writer: &mut WriteHalf<'_>) -> io::Result<()> {
        let before = self.output.len();
        let result = self.write_all(writer);
        let queue = &self.ends.queue;
        let taken = self.output.len() < before;
        if taken || queue.unsent.load(Ordering::Relaxed) == 0 {
            queue.taken_at.store(clock::monotonic().as_nanos() as u64, Ordering::Relaxed);
        }
        queue.unsent.store(self.output.len(), Ordering::Relaxed);
        if taken {
            // Whoever looks at both, in the other order: `Link::tell_when_taken`.
            fence(Ordering::SeqCst);
            if queue.tell_taken.swap(false, Ordering::Relaxed) {
                self.sink.push(NetEvent::Taken(self.ends.id));
            }
        }
        result
    }

    fn write_all(&mut self, writer: &mut WriteHalf<'_>) -> io::Result<()> {
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
            if d.buffer.len() < d.end {
                self.connection.forgive_silence(now);
                return Ok(());
            }
            if let Some(mut d) = self.direct.take() {
                let bytes = &mut d.buffer.whole()[d.start..d.end];
                self.connection.open_payload(bytes).map_err(|e| e.to_string())?;
                // Handed back only if none was wanted, which `wanted` has ruled out.
                let _ = self.connection.receive_payload(d.buffer.freeze().slice(d.start..));
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
        if let Wanted::Payload { len, data_at } = self.connection.wanted() {
            self.waiting = Some((len, data_at));
            self.begin_payload();
        }
        Ok(())
    }

    /// Takes a buffer for the payload that is to come, if there is memory for it.
    fn begin_payload(&mut self) {
        if let Some((len, data_at)) = self.waiting
            && !self.lacks_memory()
            && self.has_place()
        {
            self.waiting = None;
            self.payload_since = clock::monotonic();
            let start = data_at.next_multiple_of(spirula_buffer::ALIGN) - data_at;
            let end = start + len;
            let mut buffer = self.pool.take(end);
            buffer.set_len(start);
            let have = self.buffer.len().min(len);
            buffer.extend(&self.buffer[..have]);
            self.buffer.advance(have);
            self.direct = Some(Direct { buffer, start, end });
        }
    }

    /// A peer begins to authenticate; true if it has its answer.
    fn asked(&mut self, request: AuthRequest) -> Result<bool, String> {
        let Some(accepting) = &self.accepting else {
            return Err("the server wants to be let in".into());
        };
        let AuthRequest { hello, method, mode, payload } = request;
        let mut exchange =
            accepting.auth.begin(&Caller { from: accepting.from, hello, method, mode });
        let step = exchange.step(payload);
        self.exchange = Some(exchange);
        self.stepped(step)
    }

    fn stepped(&mut self, step: Step) -> Result<bool, String> {
        match step {
            Step::Now(verdict) => self.judge(Some(verdict)).map(|()| true),
            Step::Later(verdict) => {
                self.verdict = Some(verdict);
                Ok(false)
            }
        }
    }

    /// Tells the peer what became of it; an error ends the connection.
    fn judge(&mut self, verdict: Option<Verdict>) -> Result<(), String> {
        let verdict = verdict.unwrap_or_else(|| Verdict::NotNow("nobody decided about it".into()));
        let (answer, grants, refused) = auth::answer(verdict)?;
        if let (Some(why), Some(accepting)) = (refused, &self.accepting) {
            tracing::info!("{}: refused: {why}", accepting.from);
        }
        self.grants = grants;
        self.connection.answer_auth(answer).map_err(|e| e.to_string())
    }

    /// One event; true if it was a question that was answered, after which the connection
    /// can go on with what it has.
    async fn event(&mut self, event: Event) -> Result<bool, String> {
        match event {
            Event::Message(m) => {
                self.sink.push(NetEvent::Message(self.ends.id, m.message));
                Ok(false)
            }
            Event::TooLarge { kind, tid, bytes } => {
                tracing::warn!(kind, bytes, "a client's request is too large, and is refused");
                let message = spirula_messages::Message { kind, tid, ..Default::default() };
                self.sink.push(NetEvent::TooLarge(self.ends.id, message));
                Ok(false)
            }
            Event::Auth(request) => self.asked(request),
            Event::AuthMore(payload) => match &mut self.exchange {
                Some(exchange) => {
                    let step = exchange.step(payload);
                    self.stepped(step)
                }
                None => Err("more of an exchange that never began".into()),
            },
            Event::Session(ask) => {
                self.session(ask).await?;
                Ok(true)
            }
            Event::Established(who) => {
                self.established = true;
                self.exchange = None;
                if let Some(accepting) = &mut self.accepting {
                    if who.kind == EntityType::Client && !accepting.guest.has_place_as_client() {
                        tracing::warn!(
                            "{}: closed: this process may have no more files open ('ulimit -n')",
                            accepting.from
                        );
                        return Err("no place for another client".into());
                    }
                    accepting.guest.known();
                }
                let outgoing = self.accepting.is_none();
                if !outgoing && who.kind == EntityType::Client {
                    self.out_bytes = limits::CLIENT_OUT_BYTES;
                    self.large = self.accepting.as_ref().and_then(|a| a.large.clone());
                    self.user.clone_from(&who.id);
                }
                if !self.known {
                    self.known = true;
                    // A client is fenced by what it says it is, which is the same on all its
                    // connections, and by where this one comes from. What a daemon says is in the
                    // maps, too.
                    let from = self.accepting.as_ref().map(|a| a.from.ip());
                    let addrs = match from.filter(|_| who.kind == EntityType::Client) {
                        Some(from) => accept::seen_at(who.addrs, from),
                        None => who.addrs,
                    };
                    let peer = Peer {
                        kind: who.kind,
                        id: who.id,
                        global_id: who.global_id,
                        addrs,
                        features: who.features,
                        method: who.method,
                        mode: who.mode,
                        grants: self.grants.clone(),
                        from,
                    };
                    let news = self.opening.established(who.resumed, outgoing);
                    if news.opened {
                        self.sink.push(NetEvent::Opened {
                            link: self.ends.link.clone(),
                            peer,
                            outgoing,
                        });
                    } else if news.resumed {
                        self.sink.push(NetEvent::Resumed(self.ends.id));
                    }
                    if news.renewed {
                        self.sink.push(NetEvent::Renewed(self.ends.id));
                    }
                }
                Ok(false)
            }
            Event::SessionReset { dropped } => {
                tracing::debug!(
                    "a peer has lost our session: {dropped} messages may not have arrived; it \
                        begins anew"
                );
                self.opening.reset();
                Ok(false)
            }
            Event::KeepaliveAck(_) => Ok(false),
        }
    }
}

/// Reads at least a byte into whichever buffer is being filled.
async fn read_some(
    reader: &mut tokio::net::tcp::ReadHalf<'_>,
    buffer: &mut BytesMut,
    direct: &mut Option<Direct>,
    room: usize,
) -> io::Result<usize> {
    match direct {
        Some(d) => {
            let start = d.buffer.len();
            let n = reader.read(&mut d.buffer.whole()[start..d.end]).await?;
            d.buffer.set_len(start + n);
            Ok(n)
        }
        None => {
            if buffer.capacity() - buffer.len() < room / 4 {
                buffer.reserve(room);
            }
            reader.read_buf(buffer).await
        }
    }
}

/// Has the far end closed the connection, whatever it sent before? Does not wait.
async fn hung_up(reader: &tokio::net::tcp::ReadHalf<'_>) -> bool {
    tokio::select! {
        biased;
        ready = reader.ready(Interest::READABLE) => ready.is_ok_and(|r| r.is_read_closed()),
        () = std::future::ready(()) => false,
    }
}

/// The answer that is to come; `None` if its responder was dropped.
async fn later(verdict: &mut Option<oneshot::Receiver<Verdict>>) -> Option<Verdict> {
    match verdict {
        Some(rx) => rx.await.ok(),
        None => std::future::pending().await,
    }
}

/// No delay for small writes, and an end for a peer that is gone without a word.
fn socket_options(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(limits::TCP_KEEPALIVE)
        .with_interval(limits::TCP_KEEPALIVE / 3)
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(unacknowledged))
}
