//! One TCP connection as a state machine: what both sides share, and the open session.

mod accept;
mod connect;

use crate::auth::{AuthRequest, Credentials, METHOD_NONE, Mode, Secret, Secrets};
use crate::banner;
use crate::config::{Endpoint, Policy, Target, Timeouts};
use crate::control::{Hello, MessageHeader, parse};
use crate::error::{ProtocolError, SendError};
use crate::frame::{Codec, Frame, FrameReader, Segments, Tag, Wanted};
use crate::output::{OutBuffer, Output};
use crate::secure;
use crate::session::{Outgoing, PeerIdentity, Session, SessionAsk};
use bytes::{Bytes, BytesMut};
use ring::hmac;
use spirula_encoding::{DecodeError, Encoder, UTime};
use spirula_messages::Message;
use spirula_types::{AddrVec, EntityAddr, EntityName, EntityType, features};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Kind of entity.
    pub kind: EntityType,
    /// Kind and the number it identified with (OSD id, global id; −1 for a client that had
    /// none yet).
    pub name: EntityName,
    /// Its name without the kind (`admin`, `3`), as authenticated; on the connecting side
    /// the number as text.
    pub id: String,
    /// Authentication method used.
    pub method: u32,
    /// How the connection is protected.
    pub mode: Mode,
    /// Global id from authentication: the peer's on the accepting side, **ours** on the
    /// connecting one.
    pub global_id: u64,
    /// Its addresses.
    pub addrs: AddrVec,
    /// Features both sides have.
    pub features: u64,
    /// Whether messages are lost with the connection.
    pub lossy: bool,
    /// Whether this continues an earlier session.
    pub resumed: bool,
}

/// A message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// Its number within the session.
    pub seq: u64,
    /// crc32c of its data segment (seed `0xffff_ffff`), verified; none in secure mode, which
    /// has no crcs.
    pub data_crc: Option<u32>,
}

/// What came out of received bytes.
#[derive(Debug)]
pub enum Event {
    /// A peer begins to authenticate. Answer with [`Connection::answer_auth`]; nothing more is
    /// read before.
    Auth(AuthRequest),
    /// A peer answers [`crate::auth::AuthAnswer::More`] with this payload. Answer likewise.
    AuthMore(Bytes),
    /// Answer with [`Connection::answer_session`]; nothing more is read before. Only for
    /// kinds of peers in [`Endpoint::lossless`].
    Session(SessionAsk),
    /// The session is open.
    Established(Peer),
    /// A message came.
    Message(Received),
    /// A message came that has more bytes than the peer may send ([`crate::Limits::request`]);
    /// nothing but this was kept.
    TooLarge {
        /// Its type.
        kind: u16,
        /// Its transaction, for the answer.
        tid: u64,
        /// Its bytes.
        bytes: usize,
    },
    /// The peer has forgotten our session; messages queued for it were dropped.
    SessionReset {
        /// How many.
        dropped: usize,
    },
    /// The peer answered [`Connection::keepalive`] with this stamp.
    KeepaliveAck(UTime),
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for the peer's banner.
    Banner,
    /// Waiting for HELLO.
    Hello,
    /// Accepting: waiting for AUTH_REQUEST.
    AuthRequest,
    /// Accepting: the application decides.
    AuthAnswer,
    /// Accepting: waiting for AUTH_REQUEST_MORE.
    AuthRequestMore,
    /// Connecting: waiting for AUTH_DONE, AUTH_REPLY_MORE or AUTH_BAD_METHOD.
    AuthReply,
    /// Waiting for AUTH_SIGNATURE.
    Signature,
    /// Accepting: waiting for CLIENT_IDENT or SESSION_RECONNECT.
    Ident,
    /// Accepting: the application looks the session up.
    SessionAnswer(SessionAsk),
    /// Connecting: waiting for SERVER_IDENT.
    IdentReply,
    /// Connecting: waiting for SESSION_RECONNECT_OK.
    ReconnectReply,
    /// Messages flow.
    Ready,
    /// Over.
    Closed,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Banner => "waiting for a banner",
            Self::Hello => "waiting for HELLO",
            Self::AuthRequest => "waiting for AUTH_REQUEST",
            Self::AuthAnswer => "authenticating",
            Self::AuthRequestMore => "waiting for AUTH_REQUEST_MORE",
            Self::AuthReply => "waiting for AUTH_DONE",
            Self::Signature => "waiting for AUTH_SIGNATURE",
            Self::Ident => "waiting for CLIENT_IDENT",
            Self::SessionAnswer(_) => "looking a session up",
            Self::IdentReply => "waiting for SERVER_IDENT",
            Self::ReconnectReply => "waiting for SESSION_RECONNECT_OK",
            Self::Ready => "the session is open",
            Self::Closed => "closed",
        }
    }
}

/// Which end opened the TCP connection.
#[derive(Debug)]
enum Side {
    Accepting { peer: SocketAddr },
    Connecting { target: EntityAddr, entity: EntityType, credentials: Box<dyn Credentials> },
}

/// Replies of one connection to attempts that fail but may be repeated (other method, stale
/// numbers); a peer that needs more is not making progress.
const ATTEMPTS: u32 = 16;
/// For so long, and at most twice as long, the peer's clock is taken to be where its questions
/// showed it.
const OF_QUESTIONS: Duration = Duration::from_secs(60);
/// So much earlier than the peer's clock is thought to be this side says to live: librados takes a
/// stamp that its clock has not come to for one of 136 years ago, and this side for dead.
const BEHIND: Duration = Duration::from_millis(100);

/// How far a peer's clock is ahead, in nanoseconds: the most that its questions showed in the
/// stretch of [`OF_QUESTIONS`] that began at `since`, and in the one before.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    since: Duration,
    most: i128,
    before: i128,
}

/// One TCP connection. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Connection {
    endpoint: Arc<Endpoint>,
    side: Side,
    phase: Phase,
    codec: Codec,
    reader: FrameReader,
    out: OutBuffer,
    /// What was sent until authentication is over, for the peer's signature.
    sent: Option<Vec<u8>>,
    /// The signature that the peer must send.
    signature: [u8; 32],
    /// What the peer says it is in HELLO, before it proves anything.
    hello: EntityType,
    /// Connecting: modes asked for.
    modes: Vec<Mode>,
    /// A frame could not be sealed and was not sent: nothing may follow.
    used_up: bool,
    /// The lossless session, or the counters and early messages of a lossy connection.
    session: Session,
    lossy: bool,
    global_seq: u64,
    /// Highest message number acknowledged to the peer.
    acked: u64,
    peer: Peer,
    attempts: u32,
    started: Duration,
    heard: Duration,
    /// When a silent peer was asked last.
    asked: Duration,
    /// By how many nanoseconds the peer's clock is ahead of this side's monotonic one, as far as
    /// its questions whether this side lives show it: the most that any did of late, since one that
    /// lay unread says too little, and clocks drift and are set.
    ahead: Option<Ahead>,
    /// The latest stamp of the peer's that was said to live at. A peer goes by the last one that it
    /// hears, so none is smaller.
    lived: UTime,
}

impl Connection {
    /// For a TCP connection just accepted from `peer`; writes the banner.
    pub fn accept(endpoint: Arc<Endpoint>, peer: SocketAddr, now: Duration) -> Self {
        Self::new(endpoint, Side::Accepting { peer }, Session::default(), true, 1, now)
    }

    /// For a TCP connection just opened to `target`; writes the banner.
    pub fn connect(endpoint: Arc<Endpoint>, target: Target, now: Duration) -> Self {
        let (lossy, session) = match target.policy {
            Policy::Lossy => (true, Session::default()),
            Policy::Lossless(mut s) => {
                if s.is_established() {
                    s.connect_seq += 1;
                }
                (false, s)
            }
        };
        let Target { addr, entity, credentials, global_seq, .. } = target;
        let side = Side::Connecting { target: addr, entity, credentials };
        let mut c = Self::new(endpoint, side, session, lossy, global_seq, now);
        c.peer.kind = entity;
        c
    }

    fn new(
        endpoint: Arc<Endpoint>,
        side: Side,
        session: Session,
        lossy: bool,
        global_seq: u64,
        now: Duration,
    ) -> Self {
        let mut out = OutBuffer::default();
        let banner = banner::write(endpoint.frames_2_1);
        out.raw(&banner);
        let peer = Peer {
            kind: EntityType::Client,
            name: EntityName::default(),
            id: String::new(),
            method: METHOD_NONE,
            mode: Mode::Crc,
            global_id: 0,
            addrs: AddrVec::default(),
            features: 0,
            lossy,
            resumed: false,
        };
        Self {
            reader: FrameReader::new(Codec::Crc1, endpoint.limits),
            endpoint,
            side,
            phase: Phase::Banner,
            codec: Codec::Crc1,
            out,
            sent: Some(banner.to_vec()),
            signature: [0; 32],
            hello: EntityType::Client,
            modes: Vec::new(),
            used_up: false,
            session,
            lossy,
            global_seq,
            acked: 0,
            peer,
            attempts: 0,
            started: now,
            heard: now,
            asked: now,
            ahead: None,
            lived: UTime::ZERO,
        }
    }

    /// Accepting side: the number of this connection within the process, told in
    /// SERVER_IDENT (1 if never set).
    pub fn with_global_seq(mut self, global_seq: u64) -> Self {
        self.global_seq = global_seq;
        self
    }

    /// Number of this attempt; the peer may have demanded a higher one than was given, and
    /// the next attempt's must be higher again.
    pub fn global_seq(&self) -> u64 {
        self.global_seq
    }

    /// Takes received bytes: consumes whole frames from the front of `buf` and leaves the
    /// rest there. Stops early when a question is open ([`Event::Auth`],
    /// [`Event::Session`]): answer it and call again.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection is closed then.
    pub fn receive(
        &mut self,
        now: Duration,
        buf: &mut BytesMut,
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        self.heard = now;
        let r = self.receive_all(buf, out).and_then(|()| self.check_nonces());
        if r.is_err() {
            self.phase = Phase::Closed;
        }
        r
    }

    fn check_nonces(&self) -> Result<(), ProtocolError> {
        if self.used_up { Err(ProtocolError::NoncesUsedUp) } else { Ok(()) }
    }

    fn receive_all(
        &mut self,
        buf: &mut BytesMut,
        out: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        if self.phase == Phase::Banner {
            let mut raw = buf.get(..buf.len().min(banner::MAX_LEN)).unwrap_or_default().to_vec();
            let before = buf.len();
            let Some(theirs) = banner::read(buf, features::MSGR2_REVISION_1)? else {
                return Ok(());
            };
            raw.truncate(before - buf.len());
            let both = self.endpoint.frames_2_1 && theirs & features::MSGR2_REVISION_1 != 0;
            self.codec = if both { Codec::Crc1 } else { Codec::Crc0 };
            self.reader = FrameReader::new(self.codec, self.endpoint.limits);
            self.reader.record(raw);
            self.send_hello();
            self.phase = Phase::Hello;
        }
        while !matches!(self.phase, Phase::AuthAnswer | Phase::SessionAnswer(_)) {
            if self.phase == Phase::Closed {
                return Err(ProtocolError::Closed);
            }
            let Some(frame) = self.reader.next(buf)? else { break };
            self.handle(frame, out)?;
        }
        Ok(())
    }

    /// In secure mode, decrypts in place what [`Wanted::Payload`] asked for; else does nothing.
    /// Comes before [`Connection::receive_payload`] for the same bytes.
    ///
    /// # Errors
    /// [`ProtocolError::Sealed`]; the connection is closed then.
    pub fn open_payload(&mut self, payload: &mut [u8]) -> Result<(), ProtocolError> {
        let r = self.reader.open_payload(payload);
        if r.is_err() {
            self.phase = Phase::Closed;
        }
        r
    }

    /// Takes a payload that was received into a buffer of the caller's, see
    /// [`Wanted::Payload`], after [`Connection::open_payload`]. Returns it if none of that
    /// length is wanted. Call [`Connection::receive`] next, with the bytes behind it.
    pub fn receive_payload(&mut self, payload: Bytes) -> Option<Bytes> {
        self.reader.payload(payload)
    }

    /// What the next step needs, as of the last [`Connection::receive`] or
    /// [`Connection::receive_payload`].
    pub fn wanted(&self) -> Wanted {
        match self.phase {
            Phase::Banner => Wanted::Bytes(26),
            _ => self.reader.wanted(),
        }
    }

    fn handle(&mut self, f: Frame, out: &mut Vec<Event>) -> Result<(), ProtocolError> {
        if self.phase == Phase::Ready {
            return self.on_open(f, out);
        }
        if self.phase == Phase::Hello && f.tag == Tag::Hello {
            return self.on_hello(&f);
        }
        match self.side {
            Side::Accepting { .. } => self.on_accepting(&f, out),
            Side::Connecting { .. } => self.on_connecting(&f, out),
        }
    }

    fn unexpected(&self, tag: Tag) -> ProtocolError {
        ProtocolError::Unexpected { tag: tag.name(), state: self.phase.name() }
    }

    /// Counts replies that let the peer try again.
    fn another_attempt(&mut self, tag: Tag) -> Result<(), ProtocolError> {
        self.attempts += 1;
        if self.attempts > ATTEMPTS { Err(self.unexpected(tag)) } else { Ok(()) }
    }

    fn control(&mut self, tag: Tag, payload: &[u8]) {
        let s = Segments { head: [payload, &[], &[]], data: &Bytes::new(), data_crc: None };
        let before = self.out.len();
        let r = self.out.frame(self.codec, tag, &s, 0);
        self.used_up |= r.is_err();
        if let Some(sent) = &mut self.sent {
            sent.extend_from_slice(self.out.last(self.out.len() - before));
        }
    }

    fn send_hello(&mut self) {
        let peer_addr = match &self.side {
            Side::Accepting { peer } => EntityAddr::v2(*peer, 0),
            Side::Connecting { target, .. } => *target,
        };
        let hello = Hello { entity: self.endpoint.entity as u8, peer_addr }.write();
        self.control(Tag::Hello, &hello);
    }

    fn on_hello(&mut self, f: &Frame) -> Result<(), ProtocolError> {
        let hello = parse(f.tag, &f.segments[0], Hello::read)?;
        match &self.side {
            Side::Accepting { .. } => {
                // Who it is comes, authenticated, with AUTH_REQUEST.
                self.hello = EntityType::from_wire(hello.entity).ok_or(ProtocolError::Decode {
                    tag: f.tag.name(),
                    source: DecodeError::Value {
                        what: "entity type",
                        value: i64::from(hello.entity),
                    },
                })?;
                self.phase = Phase::AuthRequest;
            }
            Side::Connecting { entity, .. } => {
                if hello.entity != *entity as u8 {
                    return Err(ProtocolError::WrongKind {
                        found: hello.entity,
                        expected: *entity as u8,
                    });
                }
                self.peer.addrs = self.own_addrs(hello.peer_addr);
                self.request_auth()?;
            }
        }
        Ok(())
    }

    fn on_signature(&self, f: &Frame) -> Result<(), ProtocolError> {
        // Without a session key both sides send 32 zero bytes. Compared in constant time, since
        // the expected value is a secret until it is matched.
        let theirs = &f.segments[0];
        let differs = theirs.iter().zip(&self.signature).fold(0, |acc, (a, b)| acc | (a ^ b));
        if theirs.len() == self.signature.len() && differs == 0 {
            Ok(())
        } else {
            Err(ProtocolError::Signature)
        }
    }

    /// Authentication is over: signs what the peer said, notes what it must sign, and protects
    /// all that follows as agreed.
    fn secured(&mut self, secrets: &Secrets) -> Result<(), ProtocolError> {
        let sent = self.sent.take().unwrap_or_default();
        let received = self.reader.recorded();
        self.signature = sign(&secrets.session_key, &sent);
        let ours = sign(&secrets.session_key, &received);
        if self.peer.mode == Mode::Secure {
            let secret = secrets.connection_secret.expose();
            let short = ProtocolError::ShortSecret(secret.len());
            let connecting = matches!(self.side, Side::Connecting { .. });
            let (rx, tx) = secure::keys(secret, connecting).ok_or(short)?;
            self.reader.secure(rx);
            self.out.secure(tx);
        }
        self.control(Tag::AuthSignature, &ours);
        self.phase = Phase::Signature;
        Ok(())
    }

    /// The session is open: tells the application and sends what waited.
    fn open(&mut self, out: &mut Vec<Event>) {
        self.phase = Phase::Ready;
        if self.peer.resumed {
            let PeerIdentity { name, addrs, features } = self.session.with.clone();
            self.peer.name = name;
            self.peer.addrs = addrs;
            self.peer.features = features;
            if self.peer.id.is_empty() {
                self.peer.id = name.num.to_string();
            }
        } else {
            self.session.with = PeerIdentity {
                name: self.peer.name,
                addrs: self.peer.addrs.clone(),
                features: self.peer.features,
            };
        }
        self.reader.allow_messages();
        if self.peer.kind == EntityType::Client && matches!(self.side, Side::Accepting { .. }) {
            self.reader.limit_messages(self.endpoint.limits.request);
        }
        self.peer.lossy = self.lossy;
        self.acked = self.session.in_seq;
        out.push(Event::Established(self.peer.clone()));
        if self.lossy {
            for o in self.session.take_unsent() {
                self.session.out_seq += 1;
                let seq = self.session.out_seq;
                self.write_message(seq, &o.message, o.data_crc);
            }
        } else {
            let waiting: Vec<Outgoing> = self.session.replay().cloned().collect();
            for o in waiting {
                self.write_message(o.seq, &o.message, o.data_crc);
            }
        }
    }

    fn on_open(&mut self, f: Frame, out: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let payload = &f.segments[0];
        match f.tag {
            Tag::Message => return self.on_message(f, out),
            Tag::Ack => {
                let seq = parse(f.tag, payload, |d| d.u64())?;
                self.session.acknowledged(seq);
            }
            Tag::Keepalive2 => {
                // The stamp goes back as it came, unless it lay unread for so long that the peer
                // was told of a later one.
                let stamp = parse(f.tag, payload, |d| d.get::<UTime>())?;
                let ahead = i128::from(stamp.as_nanos()) - self.heard.as_nanos() as i128;
                let stretch = |a: Ahead| {
                    self.heard.saturating_sub(a.since).as_nanos() / OF_QUESTIONS.as_nanos()
                };
                self.ahead = Some(match self.ahead.map(|a| (stretch(a), a)) {
                    Some((0, a)) => Ahead { most: a.most.max(ahead), ..a },
                    Some((1, a)) => Ahead { since: self.heard, most: ahead, before: a.most },
                    _ => Ahead { since: self.heard, most: ahead, before: ahead },
                });
                self.say_alive(stamp);
            }
            Tag::Keepalive2Ack => {
                out.push(Event::KeepaliveAck(parse(f.tag, payload, |d| d.get())?))
            }
            tag => return Err(self.unexpected(tag)),
        }
        Ok(())
    }

    fn on_message(&mut self, f: Frame, out: &mut Vec<Event>) -> Result<(), ProtocolError> {
        let [header, front, middle, data] = f.segments;
        let h = parse(f.tag, &header, MessageHeader::read)?;
        let last = self.session.in_seq;
        if !self.lossy {
            self.session.acknowledged(h.ack_seq);
            if h.seq > last + 1 {
                return Err(ProtocolError::SequenceGap { last, found: h.seq });
            }
        }
        if h.seq <= last {
            return Ok(()); // a replay of what came before the connection broke
        }
        self.session.in_seq = h.seq;
        if f.passed_over > 0 {
            out.push(Event::TooLarge { kind: h.kind, tid: h.tid, bytes: f.passed_over });
            return Ok(());
        }
        let message = Message {
            kind: h.kind,
            tid: h.tid,
            priority: h.priority,
            version: h.version,
            compat: h.compat,
            front,
            middle,
            data,
        };
        out.push(Event::Message(Received { message, seq: h.seq, data_crc: f.data_crc }));
        Ok(())
    }

    /// Queues a message. `data_crc` is the crc32c of its data segment from seed
    /// `0xffff_ffff`, if known; a wrong one makes the peer drop the connection. Before the
    /// session is open messages wait.
    ///
    /// # Errors
    /// [`SendError::Full`] if more than [`crate::Limits::queue`] bytes wait for the
    /// handshake or for acknowledgement; [`SendError::Closed`] after the end.
    pub fn send(&mut self, message: Message, data_crc: Option<u32>) -> Result<(), SendError> {
        if self.phase == Phase::Closed {
            return Err(SendError::Closed);
        }
        if self.session.queued_bytes() > self.endpoint.limits.queue {
            return Err(SendError::Full);
        }
        if self.phase != Phase::Ready {
            self.session.push(message, data_crc);
        } else if self.lossy {
            self.session.out_seq += 1;
            self.write_message(self.session.out_seq, &message, data_crc);
        } else {
            let seq = self.session.number(message.clone(), data_crc);
            self.write_message(seq, &message, data_crc);
        }
        Ok(())
    }

    fn write_message(&mut self, seq: u64, m: &Message, data_crc: Option<u32>) {
        let header = MessageHeader {
            seq,
            tid: m.tid,
            kind: m.kind,
            priority: m.priority,
            version: m.version,
            ack_seq: self.session.in_seq,
            compat: m.compat,
        };
        self.acked = self.session.in_seq;
        let s = Segments { head: [&header.write(), &m.front, &m.middle], data: &m.data, data_crc };
        let r = self.out.frame(self.codec, Tag::Message, &s, self.endpoint.limits.copy_payload);
        self.used_up |= r.is_err();
    }

    /// Asks the peer whether it is alive; it sends `stamp` back. Ignored unless open.
    pub fn keepalive(&mut self, stamp: UTime) {
        if self.phase == Phase::Ready {
            let mut o = Encoder::with_capacity(8);
            o.put(&stamp);
            self.control(Tag::Keepalive2, o.as_slice());
        }
    }

    /// Answers the peer's question whether this side lives, though it lies unread: with the stamp
    /// that the peer's clock has now, going by its questions that were read. For while the daemon
    /// wants nothing more of a peer that waits for its answers. Where no question was read yet the
    /// peer's clock is taken to be right, as this side's `wall` is: after it connected anew
    /// librados asks for all that it waits for at once, and only then, later, whether this side
    /// lives.
    pub fn answer_unread(&mut self, now: Duration, wall: UTime) {
        if self.phase != Phase::Ready {
            return;
        }
        let earlier = |at: i128| {
            UTime::from_nanos(u64::try_from(at - BEHIND.as_nanos() as i128).unwrap_or(0))
        };
        match self.ahead {
            Some(Ahead { most, before, .. }) => {
                self.say_alive(earlier(most.max(before) + now.as_nanos() as i128))
            }
            // A guess holds back none of the true stamps that follow.
            None => self.acknowledge(earlier(i128::from(wall.as_nanos()))),
        }
    }

    /// Says that this side lives at `stamp` of the peer's clock, or at the later one that was said
    /// before.
    fn say_alive(&mut self, stamp: UTime) {
        if stamp.as_nanos() >= self.lived.as_nanos() {
            self.lived = stamp;
        }
        self.acknowledge(self.lived);
    }

    fn acknowledge(&mut self, stamp: UTime) {
        let mut o = Encoder::with_capacity(8);
        o.put(&stamp);
        self.control(Tag::Keepalive2Ack, o.as_slice());
    }

    /// Checks the timeouts, and asks a silent peer whether it is there; call it about every
    /// second and write what comes out.
    ///
    /// # Errors
    /// [`ProtocolError::HandshakeTimeout`], [`ProtocolError::IdleTimeout`] or
    /// [`ProtocolError::NoncesUsedUp`]; the connection is closed then.
    pub fn tick(&mut self, now: Duration) -> Result<(), ProtocolError> {
        let t = self.endpoint.timeouts;
        let late = match self.phase {
            Phase::Closed => Some(ProtocolError::Closed),
            _ if self.used_up => Some(ProtocolError::NoncesUsedUp),
            Phase::Ready => self.look_after_peer(now, t).err(),
            _ => (now.saturating_sub(self.started) > t.handshake)
                .then_some(ProtocolError::HandshakeTimeout),
        };
        match late {
            Some(e) => {
                self.phase = Phase::Closed;
                Err(e)
            }
            None => Ok(()),
        }
    }

    /// Leaves so many nonces to send with.
    #[cfg(test)]
    pub(crate) fn use_up_nonces(&mut self, left: u64) {
        self.out.use_up_nonces(left);
    }

    /// Asks a silent peer, or gives it up. Other accepted connections may be silent for ever: a
    /// client looks after its own.
    fn look_after_peer(&mut self, now: Duration, t: Timeouts) -> Result<(), ProtocolError> {
        if self.lossy && matches!(self.side, Side::Accepting { .. }) {
            return Ok(());
        }
        let silent = now.saturating_sub(self.heard);
        if !t.idle.is_zero() && silent > t.idle {
            return Err(ProtocolError::IdleTimeout);
        }
        let asked = now.saturating_sub(self.asked);
        if !t.keepalive.is_zero() && silent >= t.keepalive && asked >= t.keepalive {
            self.asked = now;
            self.keepalive(UTime { sec: now.as_secs() as u32, nsec: now.subsec_nanos() });
        }
        Ok(())
    }

    /// Says that the peer's silence until `now` means nothing: the shell does not read at the
    /// moment, or reads into a payload buffer.
    pub fn forgive_silence(&mut self, now: Duration) {
        self.heard = now;
    }

    /// Takes the bytes to write, an acknowledgement included if one is due.
    pub fn take_output(&mut self) -> Output {
        if self.phase == Phase::Ready && !self.lossy && self.session.in_seq > self.acked {
            self.acked = self.session.in_seq;
            self.control(Tag::Ack, &self.acked.to_le_bytes());
        }
        self.out.take()
    }

    /// Bytes that [`Connection::take_output`] would give, acknowledgements apart.
    pub fn output_len(&self) -> usize {
        self.out.len()
    }

    /// True if messages flow.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// True after an error or [`Connection::close`].
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Ends the connection and gives its lossless session back, if it has one, to be
    /// continued on another.
    pub fn close(&mut self) -> Option<Session> {
        self.phase = Phase::Closed;
        (!self.lossy).then(|| std::mem::take(&mut self.session))
    }
}

/// The signature over `heard`: all bytes that one side received until authentication was over.
fn sign(session_key: &Secret, heard: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    if !session_key.is_empty() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, session_key.expose());
        out.copy_from_slice(hmac::sign(&key, heard).as_ref());
    }
    out
}
