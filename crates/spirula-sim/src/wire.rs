//! An OSD's links to other OSDs: the messenger's own connections and sessions over the world's
//! streams.
//!
//! Driven here are the same state machines that `spirula-runtime`'s tasks drive over sockets:
//! [`Connection`], and both ends' rules for what outlives one, [`Calls`] and [`Parked`].
//! Authentication is method "none" and frames have checksums only.

use crate::osd::PUBLIC;
use crate::rng::Rng;
use crate::stream::Broken;
use crate::world::{ActorId, Net, Output, World};
use bytes::{Buf, BytesMut};
use spirula_messages::cluster::pg::{OsdPing, OsdPong};
use spirula_messages::{Body, Message};
use spirula_messenger::auth::{AuthAnswer, NoneRequest};
use spirula_messenger::{
    Asked, Calls, Connection, Endpoint, Event, Opening, Parked, Policy, Session, SessionAsk,
    SessionKey, Target,
};
use spirula_runtime::{Ended, Link, LinkId, NetEvent, NetSink, Peer, Service, limits};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How often timeouts are looked at.
const TICK: Duration = Duration::from_secs(1);
/// The answer to a peer that is displaced is asked for again so often at most: the connection it
/// displaces ends at once.
const ASKS: usize = 4;

/// What the daemon wants of its links.
pub enum Wish {
    /// To listen.
    Listen(AddrVec, Box<Service>),
    /// A lossless link to that actor.
    Connect {
        link: LinkId,
        me: Box<Peer>,
        sink: NetSink,
        to: EntityAddr,
        actor: ActorId,
        unacknowledged: Duration,
    },
    /// A message goes out.
    Carry(LinkId, Message),
    /// A link ends.
    Close(LinkId),
    /// A link goes on over a new connection.
    Renew(LinkId),
    /// Whether an accepted link's peer is waited for.
    Keep(LinkId, bool),
}

/// A listener: an address, who it is for, and the sessions that peers began with it.
struct Listening {
    service: Box<Service>,
    endpoint: Arc<Endpoint>,
    parked: Parked<LinkId>,
}

/// A link that we opened.
struct Call {
    me: Box<Peer>,
    sink: NetSink,
    to: EntityAddr,
    actor: ActorId,
    patience: Duration,
    endpoint: Arc<Endpoint>,
    calls: Calls,
    /// The connection there is, called or open.
    conn: Option<u64>,
    /// When to call next.
    again: Option<Duration>,
    waiting: VecDeque<Message>,
    bytes: usize,
}

/// A lossless link that a peer opened.
struct Accepted {
    sink: NetSink,
    conn: Option<u64>,
    waiting: VecDeque<Message>,
    bytes: usize,
    given_up: bool,
}

/// A connection.
struct Conn {
    connection: Option<Connection>,
    buffer: BytesMut,
    link: LinkId,
    /// Of an accepted one: at which listener, and whose session it is.
    at: Option<EntityAddr>,
    key: Option<SessionKey>,
    opening: Opening,
    established: bool,
    overfull: bool,
}

/// All links of one OSD to others.
pub struct Wire {
    rng: Rng,
    network: Arc<dyn spirula_runtime::Network>,
    listening: BTreeMap<EntityAddr, Listening>,
    calls: BTreeMap<LinkId, Call>,
    accepted: BTreeMap<LinkId, Accepted>,
    conns: BTreeMap<u64, Conn>,
    /// Connections that may have something to write.
    dirty: BTreeSet<u64>,
    numbers: u64,
    global_seq: u64,
    tick: Duration,
    /// Sessions that may wait for their peers; fewer where losses are wanted.
    pub most_parked: usize,
    /// Bytes that may wait in a session, by connections made from now on; fewer where losses are
    /// wanted.
    pub session_bytes: usize,
    /// Sessions lost, on either end, resumed, and lost because more waited than may; taken by
    /// whoever counts.
    pub sessions: [u64; 3],
    /// Heartbeats that were carried, by their type: how many, and the bytes of the smallest.
    pub beats: BTreeMap<u16, (u64, usize)>,
}

/// An endpoint in whose sessions no more waits than this.
fn bounded(endpoint: &Arc<Endpoint>, bytes: usize) -> Arc<Endpoint> {
    if endpoint.limits.queue <= bytes {
        return endpoint.clone();
    }
    let mut endpoint = Endpoint::clone(endpoint);
    endpoint.limits.queue = bytes;
    Arc::new(endpoint)
}

fn size(m: &Message) -> usize {
    m.front.len() + m.data.len()
}

impl Wire {
    /// Without links; numbers of links and connections begin at `numbers`.
    pub fn new(network: Arc<dyn spirula_runtime::Network>, numbers: u64, rng: Rng) -> Self {
        Self {
            rng,
            network,
            listening: BTreeMap::new(),
            calls: BTreeMap::new(),
            accepted: BTreeMap::new(),
            conns: BTreeMap::new(),
            dirty: BTreeSet::new(),
            numbers,
            global_seq: 1,
            tick: Duration::ZERO,
            most_parked: limits::PARKED,
            session_bytes: limits::SESSION_BYTES,
            sessions: [0; 3],
            beats: BTreeMap::new(),
        }
    }

    /// Is it a link to another OSD?
    pub fn has(&self, link: LinkId) -> bool {
        self.calls.contains_key(&link) || self.accepted.contains_key(&link)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Does what the daemon wants.
    pub fn perform(&mut self, now: Duration, wish: Wish, out: &mut Vec<Output>) {
        match wish {
            Wish::Listen(addrs, mut service) => {
                service.me.addrs = addrs;
                let addr = service.me.addr();
                let mut endpoint =
                    Endpoint::new(EntityType::Osd, service.me.name().num, service.me.addrs.clone());
                endpoint.timeouts = limits::timeouts();
                endpoint.limits.queue = limits::SESSION_BYTES;
                endpoint.lossless = vec![EntityType::Osd];
                let (endpoint, parked) = (Arc::new(endpoint), Parked::new(addr));
                self.listening.insert(addr, Listening { service, endpoint, parked });
            }
            Wish::Connect { link, me, sink, to, actor, unacknowledged } => {
                let mut endpoint = Endpoint::new(EntityType::Osd, me.name().num, me.addrs.clone());
                endpoint.timeouts = limits::timeouts();
                let watched = unacknowledged == limits::TCP_UNACKNOWLEDGED_WATCHED;
                endpoint.limits.queue =
                    if watched { limits::SESSION_BYTES_WATCHED } else { limits::SESSION_BYTES };
                let (endpoint, calls, patience) =
                    (Arc::new(endpoint), Calls::default(), unacknowledged);
                let (conn, again, waiting, bytes) = (None, None, VecDeque::new(), 0);
                let call = Call {
                    me,
                    sink,
                    to,
                    actor,
                    patience,
                    endpoint,
                    calls,
                    conn,
                    again,
                    waiting,
                    bytes,
                };
                self.calls.insert(link, call);
                self.call(link, out);
            }
            Wish::Carry(link, message) => self.carry(link, message),
            Wish::Close(link) => self.close(now, link, out),
            Wish::Renew(link) => {
                if let Some(conn) = self.calls.get(&link).and_then(|c| c.conn) {
                    self.end(now, conn, "to be made anew", Broken::Reset, out);
                    if let Some(c) = self.calls.get_mut(&link) {
                        c.again = Some(now);
                    }
                } else if let Some(c) = self.calls.get_mut(&link) {
                    c.again = Some(now);
                }
            }
            Wish::Keep(link, keep) => {
                if let Some(a) = self.accepted.get_mut(&link) {
                    a.given_up = !keep;
                }
            }
        }
    }

    fn call(&mut self, link: LinkId, out: &mut Vec<Output>) {
        let conn = self.number();
        let Some(c) = self.calls.get_mut(&link) else { return };
        (c.conn, c.again) = (Some(conn), None);
        let (to, net, patience_us) = (c.actor, Net::of(&c.to), c.patience.as_micros() as u64);
        out.push(Output::Dial { conn, to, net, patience_us });
        let opening = c.calls.opening;
        self.conns.insert(conn, Conn::new(None, link, None, opening));
    }

    fn carry(&mut self, link: LinkId, message: Message) {
        if [OsdPing::KIND, OsdPong::KIND].contains(&message.kind) {
            let (n, least) = self.beats.entry(message.kind).or_insert((0, usize::MAX));
            (*n, *least) = (*n + 1, size(&message).min(*least));
        }
        let (conn, waiting, bytes) = match (self.calls.get_mut(&link), self.accepted.get_mut(&link))
        {
            (Some(c), _) => (c.conn, &mut c.waiting, &mut c.bytes),
            (_, Some(a)) => (a.conn, &mut a.waiting, &mut a.bytes),
            _ => return,
        };
        let open = conn.and_then(|n| Some((n, self.conns.get_mut(&n)?))).filter(|(_, c)| c.takes());
        match open {
            Some((n, c)) => {
                c.send(message);
                self.dirty.insert(n);
            }
            None => {
                *bytes += size(&message);
                waiting.push_back(message);
            }
        }
    }

    fn close(&mut self, now: Duration, link: LinkId, out: &mut Vec<Output>) {
        let call = self.calls.get(&link).map(|c| (c.conn, c.sink.clone()));
        let accepted = self.accepted.get(&link).map(|a| (a.conn, a.sink.clone()));
        let Some((conn, sink)) = call.or(accepted) else { return };
        // Nobody waits for it any more: its session is not kept.
        self.calls.remove(&link);
        self.accepted.remove(&link);
        if let Some(conn) = conn {
            self.flush(conn, out);
            self.end(now, conn, "closed from this side", Broken::Ended, out);
        }
        sink.push(NetEvent::Closed(link, "closed from this side".into()));
    }

    /// A stream is there, asked for by us or by a peer.
    pub fn called(&mut self, now: Duration, conn: u64, net: Net, out: &mut Vec<Output>) {
        if let Some(link) = self.conns.get(&conn).map(|c| c.link) {
            let cookie = self.rng.bits() | 1;
            let global_seq = self.global_seq;
            self.global_seq += 1;
            let Some(call) = self.calls.get_mut(&link) else {
                self.conns.remove(&conn);
                return out.push(Output::Hang(conn, Broken::Ended));
            };
            let policy = Policy::Lossless(call.calls.session(cookie));
            let me = &call.me;
            let who = NoneRequest {
                to_monitor: false,
                kind: me.kind,
                id: me.id.clone(),
                global_id: me.global_id,
            };
            let target = Target {
                addr: call.to,
                entity: EntityType::Osd,
                credentials: Box::new(who),
                global_seq,
                policy,
            };
            let connection =
                Connection::connect(bounded(&call.endpoint, self.session_bytes), target, now);
            let waiting = std::mem::take(&mut call.waiting);
            call.bytes = 0;
            if let Some(c) = self.conns.get_mut(&conn) {
                c.connection = Some(connection);
                waiting.into_iter().for_each(|m| c.send(m));
            }
        } else {
            let listening = self.listening.iter().find(|(addr, _)| Net::of(addr) == net);
            let Some((addr, listening)) = listening.map(|(a, l)| (*a, l.endpoint.clone())) else {
                return out.push(Output::Hang(conn, Broken::Reset));
            };
            let from = ([10, 0, PUBLIC, 0], 1).into();
            let connection = Connection::accept(bounded(&listening, self.session_bytes), from, now);
            let link = self.number();
            self.conns
                .insert(conn, Conn::new(Some(connection), link, Some(addr), Opening::default()));
        }
        self.dirty.insert(conn);
        self.flush_all(out);
    }

    /// Bytes came.
    pub fn bytes(&mut self, now: Duration, conn: u64, bytes: &[u8], out: &mut Vec<Output>) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.buffer.extend_from_slice(bytes);
        if let Err(why) = self.receive(now, conn, out) {
            self.end(now, conn, &why, Broken::Reset, out);
        }
        self.flush_all(out);
    }

    fn receive(&mut self, now: Duration, conn: u64, out: &mut Vec<Output>) -> Result<(), String> {
        loop {
            let mut events = Vec::new();
            let Some(c) = self.conns.get_mut(&conn) else { return Ok(()) };
            let Some(connection) = &mut c.connection else { return Ok(()) };
            let result = connection.receive(now, &mut c.buffer, &mut events);
            self.dirty.insert(conn);
            let mut answered = false;
            for event in events {
                answered |= self.event(now, conn, event, out)?;
            }
            result.map_err(|e| e.to_string())?;
            if !answered {
                return Ok(());
            }
        }
    }

    fn sink(&self, conn: u64) -> Option<(LinkId, NetSink)> {
        let c = self.conns.get(&conn)?;
        let call = || self.calls.get(&c.link).map(|call| call.sink.clone());
        let sink = match c.at {
            Some(at) => self.listening.get(&at).map(|l| l.service.sink.clone()),
            None => call(),
        };
        Some((c.link, sink?))
    }

    /// One event; true if it was a question that was answered.
    fn event(
        &mut self,
        now: Duration,
        conn: u64,
        event: Event,
        out: &mut Vec<Output>,
    ) -> Result<bool, String> {
        match event {
            Event::Message(m) => {
                if let Some((link, sink)) = self.sink(conn) {
                    sink.push(NetEvent::Message(link, m.message));
                }
                Ok(false)
            }
            Event::Auth(request) => {
                let who = NoneRequest::read(&request.payload).map_err(|e| e.to_string())?;
                let global_id = who.global_id;
                self.connection(conn)?
                    .answer_auth(AuthAnswer::Done(who.granted(global_id)))
                    .map_err(|e| e.to_string())?;
                Ok(true)
            }
            Event::AuthMore(_) => Err("more of an exchange that never began".into()),
            Event::Session(ask) => {
                self.session(now, conn, ask, out)?;
                Ok(true)
            }
            Event::Established(who) => {
                let Some((link, sink)) = self.sink(conn) else { return Ok(false) };
                let Some(c) = self.conns.get_mut(&conn) else { return Ok(false) };
                c.established = true;
                let outgoing = c.at.is_none();
                let news = c.opening.established(who.resumed, outgoing);
                let mut peer = Peer::new(who.kind, &who.id);
                (peer.global_id, peer.addrs, peer.features) =
                    (who.global_id, who.addrs, who.features);
                if news.opened {
                    let link = Link::carried(link, self.network.clone());
                    sink.push(NetEvent::Opened { link, peer, outgoing });
                } else if news.resumed {
                    self.sessions[1] += 1;
                    sink.push(NetEvent::Resumed(link));
                }
                if news.renewed {
                    sink.push(NetEvent::Renewed(link));
                }
                self.drain(link, conn);
                Ok(false)
            }
            Event::SessionReset { .. } => {
                self.sessions[0] += 1;
                if let Some(c) = self.conns.get_mut(&conn) {
                    c.opening.reset();
                }
                Ok(false)
            }
            Event::KeepaliveAck(_) => Ok(false),
            // No limit for requests is set between OSDs.
            Event::TooLarge { .. } => Err("a message was passed over".into()),
        }
    }

    fn connection(&mut self, conn: u64) -> Result<&mut Connection, String> {
        self.conns
            .get_mut(&conn)
            .and_then(|c| c.connection.as_mut())
            .ok_or_else(|| "no connection".to_owned())
    }

    /// What waited for an accepted link's connection goes out.
    fn drain(&mut self, link: LinkId, conn: u64) {
        let Some(a) = self.accepted.get_mut(&link) else { return };
        a.conn = Some(conn);
        a.bytes = 0;
        let waiting = std::mem::take(&mut a.waiting);
        if let Some(c) = self.conns.get_mut(&conn) {
            waiting.into_iter().for_each(|m| c.send(m));
        }
        self.dirty.insert(conn);
    }

    /// Finds the session that an accepted peer asks for.
    fn session(
        &mut self,
        now: Duration,
        conn: u64,
        ask: SessionAsk,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let cookie = self.rng.bits() | 1;
        for _ in 0..ASKS {
            let Some((at, link)) = self.conns.get(&conn).and_then(|c| Some((c.at?, c.link))) else {
                return Ok(());
            };
            let Some(l) = self.listening.get_mut(&at) else { return Ok(()) };
            let sink = l.service.sink.clone();
            match l.parked.ask(&ask, cookie, &link, |link| *link) {
                Asked::Displace(old) => {
                    let old = old.and_then(|link| self.accepted.get(&link)).and_then(|a| a.conn);
                    if let Some(old) = old {
                        self.end(
                            now,
                            old,
                            "the peer opened another connection",
                            Broken::Reset,
                            out,
                        );
                    }
                }
                Asked::Answer { answer, link, gone } => {
                    if let Some(gone) = gone {
                        self.gone(gone, "the peer began a new session");
                    }
                    if let Some(link) = link {
                        let (waiting, bytes, given_up) = (VecDeque::new(), 0, false);
                        let a = || Accepted { sink, conn: None, waiting, bytes, given_up };
                        self.accepted.entry(link).or_insert_with(a).conn = Some(conn);
                        if let Some(c) = self.conns.get_mut(&conn) {
                            (c.link, c.key) = (link, Some(ask.key()));
                        }
                    }
                    let mut events = Vec::new();
                    let result = self.connection(conn)?.answer_session(answer, &mut events);
                    for event in events {
                        self.event(now, conn, event, out)?;
                    }
                    return result.map_err(|e| e.to_string());
                }
            }
        }
        Err("the session's old connection does not end".into())
    }

    fn gone(&mut self, link: LinkId, why: &str) {
        self.sessions[0] += 1;
        if let Some(a) = self.accepted.remove(&link) {
            a.sink.push(NetEvent::Closed(link, why.into()));
        }
    }

    /// A stream has ended.
    pub fn broken(&mut self, now: Duration, conn: u64, how: Broken, out: &mut Vec<Output>) {
        let Some(c) = self.conns.get(&conn) else { return };
        let (link, called) = (c.link, c.connection.is_some());
        if called {
            let why = match how {
                Broken::Ended => "closed by the peer",
                Broken::Reset => "reset",
                Broken::Silent => "timed out",
                Broken::Refused => "refused",
            };
            self.ended(now, conn, why, how == Broken::Ended);
        } else {
            self.conns.remove(&conn);
            let refused = how == Broken::Refused;
            let Some(call) = self.calls.get_mut(&link) else { return };
            call.conn = None;
            if refused {
                let ended = Ended {
                    why: format!("{}: {how:?}", call.to),
                    refused,
                    hung_up: call.calls.hung_up,
                };
                call.sink.push(NetEvent::Refused(link, ended));
            }
            self.calls_again(now, link);
        }
        self.flush_all(out);
    }

    /// We end a connection.
    fn end(&mut self, now: Duration, conn: u64, why: &str, how: Broken, out: &mut Vec<Output>) {
        out.push(Output::Hang(conn, how));
        self.ended(now, conn, why, false);
    }

    /// A connection is over: what becomes of its session.
    fn ended(&mut self, now: Duration, conn: u64, why: &str, hung_up: bool) {
        let Some(mut c) = self.conns.remove(&conn) else { return };
        self.dirty.remove(&conn);
        match (c.at, c.key) {
            (None, _) => {
                let Some(call) = self.calls.get_mut(&c.link) else { return };
                call.conn = None;
                if let Some(connection) = &mut c.connection {
                    self.global_seq = self.global_seq.max(connection.global_seq() + 1);
                    call.calls.ended(connection, c.opening, c.established, hung_up, c.overfull);
                }
                self.calls_again(now, c.link);
            }
            (Some(at), Some(key)) => {
                let Some(l) = self.listening.get_mut(&at) else { return };
                let wanted = self
                    .accepted
                    .get(&c.link)
                    .is_some_and(|a| !a.given_up && a.bytes <= self.session_bytes);
                let session: Option<Session> = c.connection.as_mut().and_then(Connection::close);
                if let Some(session) = session.filter(|_| wanted && !c.overfull) {
                    l.parked.park(key, c.link, session, now);
                    if let Some(a) = self.accepted.get_mut(&c.link) {
                        a.conn = None;
                    }
                    self.look(at);
                } else {
                    l.parked.forget(&key);
                    self.gone(c.link, why);
                }
            }
            (Some(_), None) => {}
        }
    }

    /// Gives up parked sessions that nobody waits for, or for which there is no room.
    fn look(&mut self, at: EntityAddr) {
        let Some(l) = self.listening.get_mut(&at) else { return };
        let (accepted, most) = (&self.accepted, self.session_bytes);
        let unwanted =
            |link: &LinkId| accepted.get(link).is_none_or(|a| a.given_up || a.bytes > most);
        for (_, link, why) in l.parked.look(unwanted, self.most_parked, limits::PARKED_BYTES) {
            self.gone(link, why);
        }
    }

    fn calls_again(&mut self, now: Duration, link: LinkId) {
        let Some(c) = self.calls.get_mut(&link) else { return };
        if c.bytes + c.calls.queued_bytes() > c.endpoint.limits.queue.min(self.session_bytes) {
            c.waiting.clear();
            c.bytes = 0;
            c.calls.lose();
            self.sessions[0] += 1;
            self.sessions[2] += 1;
        }
        c.again = Some(now + c.calls.pause());
    }

    fn flush_all(&mut self, out: &mut Vec<Output>) {
        while let Some(conn) = self.dirty.pop_first() {
            self.flush(conn, out);
        }
    }

    fn flush(&mut self, conn: u64, out: &mut Vec<Output>) {
        let Some(connection) = self.conns.get_mut(&conn).and_then(|c| c.connection.as_mut()) else {
            return;
        };
        let mut output = connection.take_output();
        if output.has_remaining() {
            out.push(Output::Write(conn, output.copy_to_bytes(output.remaining()).into()));
        }
    }

    /// Writes what is to be written.
    pub fn settle(&mut self, now: Duration, out: &mut Vec<Output>) {
        let overfull: Vec<u64> =
            self.conns.iter().filter(|(_, c)| c.overfull).map(|(n, _)| *n).collect();
        for conn in overfull {
            self.sessions[2] += 1;
            self.end(now, conn, "more waits than may", Broken::Reset, out);
        }
        self.flush_all(out);
    }

    /// What is due by now.
    pub fn due(&mut self, now: Duration, out: &mut Vec<Output>) {
        let again = |(link, c): (&LinkId, &Call)| c.again.filter(|at| *at <= now).map(|_| *link);
        for link in self.calls.iter().filter_map(again).collect::<Vec<_>>() {
            self.call(link, out);
        }
        if now >= self.tick {
            self.tick = now + TICK;
            for conn in self.conns.keys().copied().collect::<Vec<_>>() {
                let Some(connection) =
                    self.conns.get_mut(&conn).and_then(|c| c.connection.as_mut())
                else {
                    continue;
                };
                match connection.tick(now) {
                    Ok(()) => drop(self.dirty.insert(conn)),
                    Err(e) => self.end(now, conn, &e.to_string(), Broken::Reset, out),
                }
            }
            for at in self.listening.keys().copied().collect::<Vec<_>>() {
                self.look(at);
            }
        }
        self.flush_all(out);
    }

    /// When something is due next.
    pub fn deadline(&self) -> Duration {
        self.calls.values().filter_map(|c| c.again).fold(self.tick, Duration::min)
    }
}

impl Conn {
    fn new(
        connection: Option<Connection>,
        link: LinkId,
        at: Option<EntityAddr>,
        opening: Opening,
    ) -> Self {
        let (buffer, key, established, overfull) = (BytesMut::new(), None, false, false);
        Self { connection, buffer, link, at, key, opening, established, overfull }
    }

    /// Messages are taken: on an accepted connection only once its session is known.
    fn takes(&self) -> bool {
        self.connection.is_some() && (self.established || self.at.is_none())
    }

    fn send(&mut self, message: Message) {
        if let Some(connection) = &mut self.connection {
            self.overfull |= connection.send(message, None).is_err();
        }
    }
}

/// Numbers of an OSD's links and connections in this incarnation begin here; below are those of its
/// connections to others.
pub fn numbers(actor: ActorId, incarnation: u32) -> u64 {
    World::conn_numbers(actor) + (u64::from(incarnation) << 20) + (1 << 19)
}
