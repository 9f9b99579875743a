//! Both ends of a lossless link, from one connection to the next: the rules that the shells share,
//! be it that of sockets (`spirula-runtime`) or that of the simulator (`spirula-sim`).
//!
//! * [`Calls`]: the end that calls, and calls again after a connection has ended.
//! * [`Parked`]: the end that is called: it knows which link a peer's session belongs to, and which
//!   sessions wait for their peers.
//! * [`Opening`]: what the owner of a link is told when a connection is established.
//!
//! A session is lost only where one of these says so. Then the owner of each end that lives is
//! told: at the end that calls by [`News::renewed`], at the other end by the links that [`Parked`]
//! gives up.

use crate::connection::Connection;
use crate::session::{
    ConnectionId, Session, SessionAnswer, SessionAsk, SessionKey, Sessions, Verdict,
};
use spirula_types::EntityAddr;
use std::collections::BTreeMap;
use std::time::Duration;

/// First pause before the next call; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Why parked sessions are given up.
const UNWANTED: &str = "the peer is not expected back";
const SURPLUS: &str = "too many sessions wait for their peers";

/// What the owner of a link knows of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// That it is open, on this connection or an earlier one.
    pub opened: bool,
    /// Not yet: the session before this one was lost.
    pub renewed: bool,
}

/// What the owner of a link is told when a connection of it is established, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// It is open, for the first time.
    pub opened: bool,
    /// It goes on over a new connection; nothing was lost.
    pub resumed: bool,
    /// It goes on in a new session, in place of one that was lost.
    pub renewed: bool,
}

impl Opening {
    /// The peer has forgotten the session.
    pub fn reset(&mut self) {
        self.renewed = true;
    }

    /// A connection is established; `resumed`: with the session there was, `outgoing`: we called.
    pub fn established(&mut self, resumed: bool, outgoing: bool) -> News {
        let renewed = std::mem::take(&mut self.renewed);
        // A link that only changed its connection is no new link.
        let opened = !self.opened && !resumed;
        self.opened |= opened;
        News { opened, resumed: !opened && outgoing && !renewed, renewed }
    }
}

/// The calling end of a lossless link.
#[derive(Debug, Default)]
pub struct Calls {
    session: Option<Session>,
    /// What the owner knows, between two connections.
    pub opening: Opening,
    /// The last established connection was ended by the far end in due form.
    pub hung_up: bool,
    pause: Duration,
}

impl Calls {
    /// The session for the next connection: the one there is, or another. `cookie` is random, not
    /// 0, and of one use.
    pub fn session(&mut self, cookie: u64) -> Session {
        self.session.take().unwrap_or_else(|| Session::new(cookie))
    }

    /// The connection that had the session has ended. `overfull`: it could not take a message that
    /// was sent, which is gone, and with it the session, whose next one must not close the gap.
    pub fn ended(
        &mut self,
        connection: &mut Connection,
        opening: Opening,
        established: bool,
        hung_up: bool,
        overfull: bool,
    ) {
        if established {
            self.pause = Duration::ZERO;
            self.hung_up = hung_up;
        }
        self.opening = opening;
        self.session = connection.close();
        if overfull {
            self.lose();
        }
    }

    /// Bytes that wait in the session.
    pub fn queued_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, Session::queued_bytes)
    }

    /// Gives the session up: more waits than may.
    pub fn lose(&mut self) {
        self.session = None;
        self.opening.reset();
    }

    /// How long to wait before the next call.
    pub fn pause(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause
    }
}

/// What becomes of a peer that asks for a session; `L` is a link.
#[derive(Debug)]
pub enum Asked<L> {
    /// The session's old connection has not noticed its end yet: this one's, which is to end,
    /// before it is asked again. `None`: ask again at once.
    Displace(Option<L>),
    /// Hand this to [`Connection::answer_session`].
    Answer {
        /// The answer.
        answer: SessionAnswer,
        /// The link that the connection belongs to from now on.
        link: Option<L>,
        /// A link that ends: the peer began a new session.
        gone: Option<L>,
    },
}

/// The lossless sessions that peers began, and their links.
#[derive(Debug)]
pub struct Parked<L> {
    sessions: Sessions,
    links: BTreeMap<SessionKey, L>,
}

impl<L: Clone> Parked<L> {
    /// For the endpoint with this msgr2 address.
    pub fn new(own: EntityAddr) -> Self {
        Self { sessions: Sessions::new(own), links: BTreeMap::new() }
    }

    /// Gives up the parked sessions of links that nobody wants any more, and those for which there
    /// is no room: no more than `most`, and no more than `bytes` queued in them. Returns whose they
    /// were, their links, and why in words.
    pub fn look(
        &mut self,
        unwanted: impl Fn(&L) -> bool,
        most: usize,
        bytes: usize,
    ) -> Vec<(SessionKey, L, &'static str)> {
        let gone = |(key, link): &(&SessionKey, &L)| self.sessions.is_parked(key) && unwanted(link);
        let gone: Vec<SessionKey> = self.links.iter().filter(gone).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| self.sessions.forget(key));
        let gone = gone.into_iter().map(|key| (key, UNWANTED));
        let surplus = self.sessions.surplus(most, bytes).into_iter().map(|key| (key, SURPLUS));
        gone.chain(surplus)
            .filter_map(|(key, why)| Some((key, self.links.remove(&key)?, why)))
            .collect()
    }

    /// A peer asks for a session on a connection whose link would be `link`, of number `conn`.
    /// `cookie` is random and not 0.
    pub fn ask(
        &mut self,
        ask: &SessionAsk,
        cookie: u64,
        link: &L,
        number: impl Fn(&L) -> ConnectionId,
    ) -> Asked<L> {
        let key = ask.key();
        let (answer, reset) = match self.sessions.ask(ask, cookie) {
            Verdict::Answer(answer) => (answer, false),
            Verdict::PeerReset(answer) => (answer, true),
            Verdict::Take(_) => {
                let old = self.links.get(&key).cloned();
                if old.is_none() {
                    self.sessions.forget(&key);
                }
                return Asked::Displace(old);
            }
        };
        let gone = if reset { self.links.remove(&key) } else { None };
        let link = matches!(answer, SessionAnswer::Attach(_)).then(|| {
            let link = self.links.entry(key).or_insert_with(|| link.clone()).clone();
            self.sessions.live(key, number(&link), false, true);
            link
        });
        Asked::Answer { answer, link, gone }
    }

    /// Does this session wait for its peer?
    pub fn is_parked(&self, key: &SessionKey) -> bool {
        self.sessions.is_parked(key)
    }

    /// All links, with connections and without.
    pub fn links(&self) -> impl Iterator<Item = &L> {
        self.links.values()
    }

    /// Keeps the session of a connection that ended.
    pub fn park(&mut self, key: SessionKey, conn: ConnectionId, session: Session, now: Duration) {
        self.sessions.park(key, conn, session, now);
    }

    /// Forgets a peer: its session has ended for good.
    pub fn forget(&mut self, key: &SessionKey) {
        self.sessions.forget(key);
        self.links.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_messages::Message;
    use spirula_types::EntityName;

    fn key(n: i64) -> SessionKey {
        SessionKey { name: EntityName::osd(n as i32), addr: EntityAddr::default() }
    }

    fn new(n: i64, client_cookie: u64) -> SessionAsk {
        SessionAsk::New { key: key(n), client_cookie, global_seq: 1 }
    }

    /// A peer that begins a session; its link.
    fn begins(p: &mut Parked<u64>, n: i64, cookie: u64, link: u64) -> (u64, Option<u64>, Session) {
        match p.ask(&new(n, cookie), 99, &link, |l| *l) {
            Asked::Answer { answer: SessionAnswer::Attach(session), link: Some(link), gone } => {
                (link, gone, session)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_owner_hears_once_that_a_link_is_open_and_each_time_that_it_goes_on() {
        let mut o = Opening::default();
        let told = |opened, resumed, renewed| News { opened, resumed, renewed };
        assert_eq!(o.established(false, true), told(true, false, false));
        assert_eq!(o.established(true, true), told(false, true, false));
        o.reset();
        assert_eq!(
            o.established(false, true),
            told(false, false, true),
            "what was sent before may be lost"
        );
        assert_eq!(o.established(true, true), told(false, true, false));
        // The end that is called says nothing of a session that goes on.
        assert_eq!(
            Opening { opened: true, renewed: false }.established(true, false),
            News::default()
        );
        // Lost before it was ever open: both.
        let mut o = Opening { opened: false, renewed: true };
        assert_eq!(o.established(false, true), told(true, false, true));
    }

    #[test]
    fn a_caller_keeps_its_session_until_it_is_lost_and_waits_longer_each_time() {
        let mut c = Calls::default();
        let mut s = c.session(5);
        s.push(Message::default(), None);
        c.session = Some(s);
        assert_eq!(
            (c.session(6).queued(), c.queued_bytes()),
            (1, 0),
            "the one there is, not another"
        );
        let pauses: Vec<u128> = (0..7).map(|_| c.pause().as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500]);
        c.session = Some(Session::new(7));
        c.lose();
        assert!(c.session.is_none() && c.opening.renewed);
    }

    #[test]
    fn a_parked_session_belongs_to_its_link_until_it_is_given_up() {
        let mut p = Parked::new(EntityAddr::default());
        let (link, gone, session) = begins(&mut p, 1, 11, 7);
        assert_eq!((link, gone), (7, None));
        // Its connection has not noticed its end: it is displaced first.
        assert!(matches!(p.ask(&new(1, 11), 99, &8, |l| *l), Asked::Displace(Some(7))));
        p.park(key(1), 7, session, Duration::ZERO);
        assert!(p.is_parked(&key(1)) && p.look(|_| false, 1, 1000).is_empty());
        // Another session of the peer: it has lost the first, whose link ends.
        let (link, gone, session) = begins(&mut p, 1, 12, 9);
        assert_eq!((link, gone), (9, Some(7)));
        assert!(p.look(|_| true, 0, 0).is_empty(), "one that has a connection stays");
        p.park(key(1), 9, session, Duration::ZERO);
        let (_, _, other) = begins(&mut p, 2, 13, 10);
        p.park(key(2), 10, other, Duration::from_secs(1));
        assert_eq!(
            p.look(|_| false, 1, 1000),
            [(key(1), 9, SURPLUS)],
            "the longest parked goes first"
        );
        assert_eq!(p.look(|l| *l == 10, 1, 1000), [(key(2), 10, UNWANTED)]);
        assert_eq!(p.links().count(), 0);
        // Who comes back then is told that its session is lost.
        let (client_cookie, server_cookie) = (13, 99);
        let ask = SessionAsk::Resume {
            key: key(2),
            client_cookie,
            server_cookie,
            global_seq: 2,
            connect_seq: 1,
            msg_seq: 0,
        };
        let asked = p.ask(&ask, 99, &11, |l| *l);
        assert!(matches!(
            asked,
            Asked::Answer { answer: SessionAnswer::Reset { full: true }, link: None, gone: None }
        ));
    }
}
