//! What survives a lost connection: numbered messages that are not yet acknowledged.
//!
//! A [`Session`] lives in a [`crate::Connection`] while that is open and with the
//! application (or in [`Sessions`]) in between. Invariants: a message keeps its number as
//! long as the session lives; a number is delivered at most once and in order; nothing is
//! forgotten before the peer said that it has it. Either side may reconnect.
//!
//! Time alone ends no session: a peer that was cut off for hours goes on where it was. A session
//! that is parked ends when its owner says so ([`Sessions::forget`]), when the peer begins another
//! one, or when too much is parked ([`Sessions::surplus`]). The peer learns of it in any case,
//! since it is told [`SessionAnswer::Reset`] when it comes back.
//!
//! Source of the rules for stale and racing attempts: Ceph 16.2's ProtocolV2.

use spirula_messages::Message;
use spirula_types::{AddrVec, EntityAddr, EntityName};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A message on its way, with its number and the crc of its payload if known.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// 0 while it has not been sent in this session.
    pub seq: u64,
    pub message: Message,
    pub data_crc: Option<u32>,
}

/// One ordered, lossless exchange of messages between two parties.
#[derive(Debug, Default)]
pub struct Session {
    /// Chosen by who began the session.
    pub(crate) client_cookie: u64,
    /// Chosen by the other side; 0 until established.
    pub(crate) server_cookie: u64,
    /// Counts reconnects.
    pub(crate) connect_seq: u64,
    /// Highest number of a connection attempt the peer made.
    pub(crate) peer_global_seq: u64,
    /// Last message received and delivered.
    pub(crate) in_seq: u64,
    /// Last number given to a message.
    pub(crate) out_seq: u64,
    /// Who the peer said it is when the session began; a reconnect does not repeat it.
    pub(crate) with: PeerIdentity,
    /// Sent and not acknowledged, then not sent, in order.
    queue: VecDeque<Outgoing>,
    bytes: usize,
}

/// What a peer tells once, at the begin of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerIdentity {
    pub name: EntityName,
    pub addrs: AddrVec,
    /// Features both sides have.
    pub features: u64,
}

fn size(m: &Message) -> usize {
    m.front.len() + m.middle.len() + m.data.len() + 128
}

impl Session {
    /// A session to begin. `cookie` is random, not 0, and of one use.
    pub fn new(cookie: u64) -> Self {
        Self { client_cookie: cookie, ..Self::default() }
    }

    /// True if the peer has answered once.
    pub fn is_established(&self) -> bool {
        self.server_cookie != 0
    }

    /// Queues a message while there is no connection.
    pub fn push(&mut self, message: Message, data_crc: Option<u32>) {
        self.bytes += size(&message);
        self.queue.push_back(Outgoing { seq: 0, message, data_crc });
    }

    /// Bytes of messages not acknowledged.
    pub fn queued_bytes(&self) -> usize {
        self.bytes
    }

    /// Messages not acknowledged.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Messages not acknowledged, oldest first, for an application that gives up.
    pub fn into_messages(self) -> impl Iterator<Item = Message> {
        self.queue.into_iter().map(|o| o.message)
    }

    /// Takes all queued messages that never got a number (lossy connections keep no others).
    pub(crate) fn take_unsent(&mut self) -> VecDeque<Outgoing> {
        self.bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Everything not acknowledged; the unnumbered get numbers.
    pub(crate) fn replay(&mut self) -> impl Iterator<Item = &Outgoing> {
        let mut next = self.out_seq;
        for o in &mut self.queue {
            if o.seq == 0 {
                next += 1;
                o.seq = next;
            }
        }
        self.out_seq = next;
        self.queue.iter()
    }

    /// Gives the next number and remembers the message.
    pub(crate) fn number(&mut self, message: Message, data_crc: Option<u32>) -> u64 {
        self.out_seq += 1;
        self.bytes += size(&message);
        self.queue.push_back(Outgoing { seq: self.out_seq, message, data_crc });
        self.out_seq
    }

    /// The peer has everything up to `seq`.
    pub(crate) fn acknowledged(&mut self, seq: u64) {
        while self.queue.front().is_some_and(|o| o.seq != 0 && o.seq <= seq) {
            if let Some(o) = self.queue.pop_front() {
                self.bytes -= size(&o.message);
            }
        }
    }

    /// Begins numbering anew, keeping the messages: the peer never knew this session.
    pub(crate) fn renumber(&mut self) {
        self.server_cookie = 0;
        self.connect_seq = 0;
        self.in_seq = 0;
        self.out_seq = 0;
        for o in &mut self.queue {
            o.seq = 0;
        }
    }

    /// Forgets everything but the cookie: the peer lost the session, with what it had.
    /// Returns the number of messages dropped.
    pub(crate) fn reset(&mut self) -> usize {
        let dropped = self.queue.len();
        *self = Self {
            client_cookie: self.client_cookie,
            peer_global_seq: self.peer_global_seq,
            ..Self::default()
        };
        dropped
    }
}

/// Who a session is with: an instance of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey {
    /// Kind and number.
    pub name: EntityName,
    /// Its msgr2 address; the nonce tells instances apart.
    pub addr: EntityAddr,
}

/// What an accepted peer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAsk {
    /// To begin a session.
    New {
        /// Who.
        key: SessionKey,
        /// Its cookie.
        client_cookie: u64,
        /// Number of this attempt within the peer.
        global_seq: u64,
    },
    /// To continue one.
    Resume {
        /// Who; SESSION_RECONNECT does not repeat the number, so this is the number the
        /// peer authenticated with.
        key: SessionKey,
        /// Cookies of the session.
        client_cookie: u64,
        /// The accepting side's one.
        server_cookie: u64,
        /// Number of this attempt within the peer.
        global_seq: u64,
        /// Number of this attempt within the session.
        connect_seq: u64,
        /// Last message of ours that the peer has.
        msg_seq: u64,
    },
}

impl SessionAsk {
    /// Who asks.
    pub fn key(&self) -> SessionKey {
        match self {
            Self::New { key, .. } | Self::Resume { key, .. } => *key,
        }
    }
}

/// The application's answer to a [`SessionAsk`].
#[derive(Debug)]
pub enum SessionAnswer {
    /// Go on with this session; for [`SessionAsk::New`] its server cookie is set.
    Attach(Session),
    /// No such session; `full` if the peer must forget its queue as well.
    Reset {
        /// Drop queued messages.
        full: bool,
    },
    /// The attempt's number within the session is too low.
    Retry {
        /// The number we know.
        connect_seq: u64,
    },
    /// The attempt's number within the peer is too low.
    RetryGlobal {
        /// The number we know.
        global_seq: u64,
    },
    /// We are connecting to the peer ourselves and that attempt wins.
    Wait,
    /// A newer attempt exists: close this connection.
    Refuse,
}

/// Connections are numbered by the application.
pub type ConnectionId = u64;

/// What to do about a [`SessionAsk`].
#[derive(Debug)]
pub enum Verdict {
    /// Hand this to [`crate::Connection::answer_session`].
    Answer(SessionAnswer),
    /// Close that connection, [`Sessions::park`] its session, and ask again.
    Take(ConnectionId),
    /// As [`Verdict::Answer`], and the peer has lost its previous session: whatever was
    /// queued for it is dropped and the application must start over with it.
    PeerReset(SessionAnswer),
}

#[derive(Debug)]
enum Slot {
    Parked { session: Session, since: Duration },
    Live { conn: ConnectionId, outgoing: bool, established: bool },
}

/// All lossless sessions of one endpoint, whoever began them.
#[derive(Debug)]
pub struct Sessions {
    own: EntityAddr,
    slots: BTreeMap<SessionKey, Slot>,
}

impl Sessions {
    /// For the endpoint with this msgr2 address (it decides connection races).
    pub fn new(own: EntityAddr) -> Self {
        Self { own, slots: BTreeMap::new() }
    }

    /// Sessions known.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if none is known.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Notes that connection `conn` now carries the session with `key`: at the begin of an
    /// outgoing attempt, and when either kind of connection is established.
    pub fn live(&mut self, key: SessionKey, conn: ConnectionId, outgoing: bool, established: bool) {
        self.slots.insert(key, Slot::Live { conn, outgoing, established });
    }

    /// Keeps the session of a connection that ended, unless another connection has taken
    /// the peer over meanwhile.
    pub fn park(&mut self, key: SessionKey, conn: ConnectionId, session: Session, now: Duration) {
        match self.slots.get(&key) {
            Some(Slot::Live { conn: other, .. }) if *other != conn => {}
            _ => {
                self.slots.insert(key, Slot::Parked { session, since: now });
            }
        }
    }

    /// The parked session with `key`, to reconnect it.
    pub fn take(&mut self, key: &SessionKey) -> Option<Session> {
        match self.slots.remove(key) {
            Some(Slot::Parked { session, .. }) => Some(session),
            Some(live) => {
                self.slots.insert(*key, live);
                None
            }
            None => None,
        }
    }

    /// Forgets the peer: its session ended for good.
    pub fn forget(&mut self, key: &SessionKey) {
        self.slots.remove(key);
    }

    /// Is the session with `key` parked?
    pub fn is_parked(&self, key: &SessionKey) -> bool {
        matches!(self.slots.get(key), Some(Slot::Parked { .. }))
    }

    /// Forgets parked sessions, those parked longest ago first, until there are no more than `most`
    /// and what is queued in them is no more than `bytes`; returns their keys.
    pub fn surplus(&mut self, most: usize, bytes: usize) -> Vec<SessionKey> {
        let parked = |(k, s): (&SessionKey, &Slot)| match s {
            Slot::Parked { session, since } => Some((*since, *k, session.queued_bytes())),
            Slot::Live { .. } => None,
        };
        let mut all: Vec<_> = self.slots.iter().filter_map(parked).collect();
        all.sort_unstable();
        let (mut count, mut held) =
            (all.len(), all.iter().map(|(_, _, bytes)| bytes).sum::<usize>());
        let mut gone = Vec::new();
        for (_, key, queued) in all {
            if count <= most && held <= bytes {
                break;
            }
            (count, held) = (count - 1, held - queued);
            self.slots.remove(&key);
            gone.push(key);
        }
        gone
    }

    /// Decides what to answer. `cookie` is random and not 0; it names a session that begins.
    pub fn ask(&mut self, ask: &SessionAsk, cookie: u64) -> Verdict {
        let key = ask.key();
        if let Some(Slot::Live { conn, outgoing, established }) = self.slots.get(&key) {
            // Both connect at once: the attempt begun by the lower address wins.
            let race = *outgoing && !*established;
            let order = |a: &EntityAddr| (a.addr, a.nonce);
            return if race && order(&self.own) < order(&key.addr) {
                Verdict::Answer(SessionAnswer::Wait)
            } else {
                Verdict::Take(*conn)
            };
        }
        match *ask {
            SessionAsk::New { client_cookie, global_seq, .. } => {
                self.begin(key, client_cookie, global_seq, cookie)
            }
            SessionAsk::Resume {
                client_cookie, server_cookie, global_seq, connect_seq, ..
            } => Verdict::Answer(self.resume(
                key,
                client_cookie,
                server_cookie,
                global_seq,
                connect_seq,
            )),
        }
    }

    fn begin(
        &mut self,
        key: SessionKey,
        client_cookie: u64,
        global_seq: u64,
        cookie: u64,
    ) -> Verdict {
        if let Some(Slot::Parked { session, .. }) = self.slots.get(&key)
            && session.peer_global_seq > global_seq
        {
            return Verdict::Answer(SessionAnswer::Refuse);
        }
        let parked = self.take(&key);
        let mut peer_reset = false;
        let mut session = match parked {
            None => Session::new(client_cookie),
            // Established before, and the peer begins another: it has restarted.
            Some(mut old) if old.is_established() && old.client_cookie != client_cookie => {
                old.reset();
                peer_reset = true;
                old
            }
            // Never established, or broken between the two idents: what is queued stays.
            Some(mut old) => {
                old.renumber();
                old
            }
        };
        session.client_cookie = client_cookie;
        session.server_cookie = cookie;
        session.peer_global_seq = global_seq;
        let answer = SessionAnswer::Attach(session);
        if peer_reset { Verdict::PeerReset(answer) } else { Verdict::Answer(answer) }
    }

    fn resume(
        &mut self,
        key: SessionKey,
        client: u64,
        server: u64,
        global_seq: u64,
        connect_seq: u64,
    ) -> SessionAnswer {
        let Some(Slot::Parked { session: s, .. }) = self.slots.get(&key) else {
            return SessionAnswer::Reset { full: true };
        };
        if s.client_cookie != client || (s.is_established() && s.server_cookie != server) {
            return SessionAnswer::Reset { full: true };
        }
        if !s.is_established() {
            // We began it and never saw the answer: the peer shall begin again, and keeps
            // what it has queued.
            return SessionAnswer::Reset { full: false };
        }
        if s.peer_global_seq > global_seq {
            return SessionAnswer::RetryGlobal { global_seq: s.peer_global_seq };
        }
        if s.connect_seq > connect_seq {
            return SessionAnswer::Retry { connect_seq: s.connect_seq };
        }
        match self.take(&key) {
            Some(mut s) => {
                s.peer_global_seq = global_seq;
                SessionAnswer::Attach(s)
            }
            None => SessionAnswer::Reset { full: true },
        }
    }
}
