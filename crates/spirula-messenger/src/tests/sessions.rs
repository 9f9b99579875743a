//! Lossless sessions across lost connections.

use super::wire::*;
use crate::*;
use proptest::prelude::*;
use spirula_types::{EntityAddr, EntityName, EntityType};
use std::sync::Arc;
use std::time::Duration;

fn key() -> SessionKey {
    SessionKey { name: EntityName::osd(1), addr: client_addr() }
}

/// A pair of OSDs whose links break, with everything each side was told.
struct Peers {
    session: Option<Session>,
    sessions: Sessions,
    global_seq: u64,
    at_client: Vec<u64>,
    at_server: Vec<u64>,
    resets: usize,
    secure: bool,
}

impl Peers {
    fn new() -> Self {
        Self {
            session: Some(Session::new(0xc11e)),
            sessions: Sessions::new(server_addr()),
            global_seq: 0,
            at_client: Vec::new(),
            at_server: Vec::new(),
            resets: 0,
            secure: false,
        }
    }

    fn connect(&mut self) -> Wire {
        self.global_seq += 1;
        let session = self.session.take().unwrap();
        let policy = Policy::Lossless(session);
        let s = Endpoint { lossless: vec![EntityType::Osd], ..server() };
        if self.secure {
            let t = Target { global_seq: self.global_seq, ..keyed_target(policy) };
            return Wire::new(keyed(client(), "secure"), t, keyed(s, "secure"));
        }
        Wire::new(client(), Target { global_seq: self.global_seq, ..target(policy) }, s)
    }

    /// Both sides notice that the link is gone.
    fn part(&mut self, mut w: Wire) {
        self.at_client.extend(tids(&w.at_client));
        self.at_server.extend(tids(&w.at_server));
        for e in w.at_client.iter().chain(&w.at_server) {
            self.resets += usize::from(matches!(e, Event::SessionReset { .. }));
        }
        self.global_seq = self.global_seq.max(w.client.global_seq());
        self.session = w.client.close();
        let had_one = Wire::established(&w.at_server).is_some();
        if let Some(s) = w.server.close()
            && had_one
        {
            self.sessions.park(key(), CONN, s, NOW);
        }
    }
}

/// Sends 1..=n both ways over a link that goes silent after `up` and `down` bytes, then
/// over good ones; returns the peers and whether the limits cut anything.
fn break_once(n: u64, up: usize, down: usize) -> Peers {
    let mut p = Peers::new();
    let mut w = p.connect();
    (w.up.budget, w.down.budget) = (Some(up), Some(down));
    for tid in 1..=n {
        w.client.send(message(tid, 20), None).unwrap();
    }
    let mut replied = false;
    while w.step(100_000, false, &mut p.sessions).unwrap() {
        if !replied && w.server.is_open() {
            replied = true;
            for tid in 1..=n {
                w.server.send(message(tid, 20), None).unwrap();
            }
        }
    }
    p.part(w);
    let mut w = p.connect();
    while w.step(100_000, false, &mut p.sessions).unwrap() {
        if !replied && w.server.is_open() {
            replied = true;
            for tid in 1..=n {
                w.server.send(message(tid, 20), None).unwrap();
            }
        }
    }
    assert!(w.client.is_open() && w.server.is_open());
    p.part(w);
    p
}

#[test]
fn link_that_breaks_at_any_byte_loses_and_repeats_nothing() {
    let want: Vec<u64> = (1..=3).collect();
    // 1200 bytes hold the handshake and all messages of either direction.
    for up in (0..1200).step_by(3) {
        for down in [0, 150, 300, 340, 400, 450, 520, 560, 600, 640, 700, 800, 1200] {
            let p = break_once(3, up, down);
            assert_eq!((&p.at_server, &p.at_client), (&want, &want), "cut at {up} up, {down} down");
            assert_eq!(p.resets, 0);
            assert_eq!(p.session.as_ref().unwrap().queued(), 0, "cut at {up} up, {down} down");
        }
    }
}

#[test]
fn link_that_breaks_again_and_again_loses_and_repeats_nothing() {
    let mut p = Peers::new();
    let mut sent = 0;
    for round in 0..60usize {
        let mut w = p.connect();
        w.up.budget = Some(430 + round * 37 % 500);
        w.down.budget = Some(430 + round * 53 % 500);
        for _ in 0..2 {
            sent += 1;
            w.client.send(message(sent, 0), None).unwrap();
        }
        w.run(50, &mut p.sessions).unwrap();
        p.part(w);
    }
    let mut w = p.connect();
    w.run(1000, &mut p.sessions).unwrap();
    p.part(w);
    assert_eq!(p.at_server, (1..=sent).collect::<Vec<_>>());
    assert_eq!(p.resets, 0);
}

#[test]
fn resumed_session_says_so_and_keeps_its_numbers() {
    let mut p = break_once(3, 1200, 1200);
    let mut w = p.connect();
    w.client.send(message(9, 0), None).unwrap();
    w.run(1000, &mut p.sessions).unwrap();
    let (at_client, at_server) =
        (Wire::established(&w.at_client).unwrap(), Wire::established(&w.at_server).unwrap());
    assert!(at_client.resumed && at_server.resumed);
    assert_eq!((at_client.name, at_client.id.as_str()), (EntityName::osd(2), "2"));
    assert_eq!(
        (at_server.name, &at_server.addrs.0[..]),
        (EntityName::osd(1), &[client_addr()][..])
    );
    assert_eq!(at_server.features, spirula_types::features::PACIFIC);
    assert!(w.at_server.iter().any(|e| matches!(e, Event::Message(m) if m.seq == 4)));
}

#[test]
fn server_that_forgot_the_session_resets_the_client() {
    let mut p = break_once(3, 1200, 1200);
    p.sessions = Sessions::new(server_addr());
    p.session.as_mut().unwrap().push(message(8, 0), None);
    let mut w = p.connect();
    w.run(1000, &mut p.sessions).unwrap();
    assert!(w.at_client.iter().any(|e| matches!(e, Event::SessionReset { dropped: 1 })));
    w.client.send(message(9, 0), None).unwrap();
    w.run(1000, &mut p.sessions).unwrap();
    assert_eq!(tids(&w.at_server), [9]);
}

#[test]
fn client_that_restarted_begins_anew_and_the_server_is_told() {
    let mut p = break_once(3, 1200, 1200);
    p.session = Some(Session::new(0xc11f));
    let mut w = p.connect();
    w.client.send(message(1, 0), None).unwrap();
    w.run(1000, &mut p.sessions).unwrap();
    assert_eq!(tids(&w.at_server), [1]);
    p.part(w);
    assert_eq!(p.resets, 1);
}

#[test]
fn stale_numbers_are_corrected_within_the_handshake() {
    let mut p = break_once(3, 1200, 1200);
    // The client has forgotten how often it connected.
    p.global_seq = 0;
    p.session.as_mut().unwrap().peer_global_seq = 0;
    let mut parked = p.sessions.take(&key()).unwrap();
    let known = 5;
    parked.peer_global_seq = known;
    parked.connect_seq = 9;
    p.sessions.park(key(), CONN, parked, NOW);
    let mut w = p.connect();
    w.client.send(message(9, 0), None).unwrap();
    w.run(1000, &mut p.sessions).unwrap();
    assert_eq!(tids(&w.at_server), [9]);
    assert!(w.client.global_seq() > known);
}

#[test]
fn lossy_server_ends_a_session_the_client_wanted() {
    let mut w = Wire::new(client(), target(Policy::Lossless(Session::new(3))), server());
    w.client.send(message(1, 0), None).unwrap();
    w.run(1000, &mut Sessions::new(server_addr())).unwrap();
    assert!(Wire::established(&w.at_client).unwrap().lossy);
    assert_eq!(tids(&w.at_server), [1]);
    assert!(w.client.close().is_none());
}

#[test]
fn reconnect_to_a_server_without_sessions_is_reset_and_goes_on_lossy() {
    let mut p = break_once(1, 1200, 1200);
    p.global_seq += 1;
    let t =
        Target { global_seq: p.global_seq, ..target(Policy::Lossless(p.session.take().unwrap())) };
    let mut w = Wire::new(client(), t, server());
    w.run(1000, &mut p.sessions).unwrap();
    assert!(w.client.is_open() && Wire::established(&w.at_client).unwrap().lossy);
}

#[test]
fn of_two_simultaneous_attempts_the_lower_address_wins() {
    let ask = |addr: EntityAddr| SessionAsk::New {
        key: SessionKey { name: EntityName::osd(1), addr },
        client_cookie: 1,
        global_seq: 1,
    };
    let low = EntityAddr::v2("10.0.0.1:1".parse().unwrap(), 0);
    let high = EntityAddr::v2("10.0.0.3:1".parse().unwrap(), 0);
    let mut s = Sessions::new(server_addr());
    for addr in [low, high] {
        s.live(ask(addr).key(), 5, true, false);
    }
    assert!(matches!(s.ask(&ask(low), 2), Verdict::Take(5)));
    assert!(matches!(s.ask(&ask(high), 2), Verdict::Answer(SessionAnswer::Wait)));
    // An open connection is never a race: the peer has noticed that it broke.
    s.live(ask(high).key(), 6, true, true);
    assert!(matches!(s.ask(&ask(high), 2), Verdict::Take(6)));
    // What the losing attempt had queued goes over the winning one.
    let mut session = Session::new(4);
    session.push(message(1, 0), None);
    s.park(ask(low).key(), 5, session, NOW);
    match s.ask(&ask(low), 2) {
        Verdict::Answer(SessionAnswer::Attach(s)) => {
            assert_eq!((s.queued(), s.server_cookie), (1, 2))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn waiting_client_keeps_its_session() {
    let mut p = Peers::new();
    let mut w = p.connect();
    w.client.send(message(1, 0), None).unwrap();
    // The server (10.0.0.2) is itself calling the client; here it has the lower address.
    p.sessions = Sessions::new(EntityAddr::v2("10.0.0.0:1".parse().unwrap(), 0));
    p.sessions.live(key(), 3, true, false);
    assert_eq!(w.run(1000, &mut p.sessions), Err(ProtocolError::Race));
    assert_eq!(w.client.close().unwrap().queued(), 1);
}

#[test]
fn older_attempt_of_the_same_peer_is_refused() {
    let mut p = break_once(1, 1200, 1200);
    p.session = Some(Session::new(0xabc));
    p.global_seq = 0;
    let mut w = p.connect();
    assert_eq!(w.run(1000, &mut p.sessions), Err(ProtocolError::Stale));
}

#[test]
fn gap_in_a_lossless_session_is_an_error() {
    let mut p = Peers::new();
    let mut w = p.connect();
    w.run(1000, &mut p.sessions).unwrap();
    w.client.send(message(1, 0), None).unwrap();
    let _ = w.client.take_output();
    w.client.send(message(2, 0), None).unwrap();
    let r = w.run(1000, &mut p.sessions);
    assert_eq!(r, Err(ProtocolError::SequenceGap { last: 0, found: 2 }));
}

#[test]
fn unacknowledged_queue_is_bounded() {
    let mut p = Peers::new();
    let session = p.session.take().unwrap();
    let mut e = client();
    e.limits.queue = 5000;
    let s = Endpoint { lossless: vec![EntityType::Osd], ..server() };
    let mut w = Wire::new(e, target(Policy::Lossless(session)), s);
    w.run(1000, &mut p.sessions).unwrap();
    let mut tid = 0;
    while w.client.send(message(tid, 1000), None).is_ok() {
        tid += 1;
        assert!(tid < 100);
    }
    w.run(1000, &mut p.sessions).unwrap();
    assert_eq!(w.client.send(message(tid, 1000), None), Ok(()), "acknowledged messages make room");
}

#[test]
fn sessions_parked_longest_make_room_when_too_much_is_parked() {
    let mut s = Sessions::new(server_addr());
    let of = |n| SessionKey { name: EntityName::osd(n), ..key() };
    for (n, at) in [(1, 3), (2, 1), (3, 2)] {
        let mut session = Session::new(1);
        session.push(message(1, 1000), None);
        s.park(of(n), 1, session, NOW * at);
    }
    s.live(of(4), 4, false, true);
    assert!(s.surplus(3, 10_000).is_empty() && s.is_parked(&of(2)) && !s.is_parked(&of(4)));
    assert_eq!(s.surplus(2, 10_000), [of(2)]);
    assert_eq!(s.surplus(2, 1500), [of(3)], "bytes count as well");
    assert_eq!(s.surplus(0, 0), [of(1)]);
    assert_eq!(s.len(), 1, "one that is in use stays");
    s.forget(&of(4));
    // A connection that was replaced does not bring its session back.
    s.live(key(), 2, false, true);
    s.park(key(), 1, Session::new(1), NOW);
    assert!(s.take(&key()).is_none() && s.len() == 1);
    s.forget(&key());
    assert!(s.is_empty());
}

#[test]
fn session_given_up_yields_its_messages() {
    let mut s = Session::new(1);
    s.push(message(4, 0), None);
    s.push(message(5, 0), None);
    let tids: Vec<u64> = s.into_messages().map(|m| m.tid).collect();
    assert_eq!(tids, [4, 5]);
    let c = Connection::connect(Arc::new(client()), target(Policy::Lossy), NOW);
    assert!(!c.is_open() && !c.is_closed() && c.output_len() == 26);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn prop_random_breaks_in_both_directions_lose_and_repeat_nothing(
        rounds in prop::collection::vec((0usize..2500, 0usize..2500, 0u64..4, 0u64..4, 1usize..2000), 1..12),
        secure: bool,
    ) {
        let mut p = Peers { secure, ..Peers::new() };
        let (mut up, mut down) = (0u64, 0u64);
        for (cut_up, cut_down, n_up, n_down, chunk) in rounds {
            let mut w = p.connect();
            (w.up.budget, w.down.budget) = (Some(cut_up), Some(cut_down));
            for _ in 0..n_up { up += 1; w.client.send(message(up, 30), None).unwrap(); }
            let mut replied = false;
            while w.step(chunk, false, &mut p.sessions).unwrap() {
                if !replied && w.server.is_open() {
                    replied = true;
                    for _ in 0..n_down { down += 1; w.server.send(message(down, 30), None).unwrap(); }
                }
            }
            p.part(w);
        }
        let mut w = p.connect();
        w.run(1000, &mut p.sessions).unwrap();
        p.part(w);
        prop_assert_eq!(p.at_server, (1..=up).collect::<Vec<_>>());
        prop_assert_eq!(p.at_client, (1..=down).collect::<Vec<_>>());
    }
}

/// Lets `seconds` pass, a second at a time, in both machines and on what is left of the wire;
/// returns what became of each, and when.
fn pass(w: &mut Wire, seconds: u64, sessions: &mut Sessions) -> [Option<(u64, ProtocolError)>; 2] {
    let mut ends = [None, None];
    for s in 1..=seconds {
        let now = NOW + Duration::from_secs(s);
        (w.up.now, w.down.now) = (now, now);
        for (c, end) in [&mut w.client, &mut w.server].into_iter().zip(&mut ends) {
            if end.is_none()
                && let Err(e) = c.tick(now)
            {
                *end = Some((s, e));
            }
        }
        if ends.iter().all(Option::is_none) {
            w.run(1000, sessions).unwrap();
        }
    }
    ends
}

fn watched() -> (Peers, Wire) {
    let mut p = Peers::new();
    let timeouts = Timeouts {
        keepalive: Duration::from_secs(5),
        idle: Duration::from_secs(20),
        ..Timeouts::default()
    };
    let t = target(Policy::Lossless(p.session.take().unwrap()));
    let s = Endpoint { lossless: vec![EntityType::Osd], timeouts, ..server() };
    let mut w = Wire::new(Endpoint { timeouts, ..client() }, t, s);
    w.run(1000, &mut p.sessions).unwrap();
    (p, w)
}

#[test]
fn silent_link_that_is_whole_stays_open() {
    let (mut p, mut w) = watched();
    assert_eq!(pass(&mut w, 1000, &mut p.sessions), [None, None]);
    assert!(w.client.is_open() && w.server.is_open());
    w.client.send(message(1, 0), None).unwrap();
    w.run(1000, &mut p.sessions).unwrap();
    assert_eq!(tids(&w.at_server), [1]);
}

#[test]
fn link_that_is_cut_one_way_is_given_up_in_bounded_time_and_nothing_is_lost() {
    for (up, down) in [(true, false), (false, true), (true, true)] {
        let (mut p, mut w) = watched();
        // What is sent that way from now on goes nowhere.
        if up {
            w.up.budget = Some(0);
        }
        if down {
            w.down.budget = Some(0);
        }
        w.client.send(message(1, 10), None).unwrap();
        w.server.send(message(2, 10), None).unwrap();
        let ends = pass(&mut w, 60, &mut p.sessions);
        let first = ends.iter().flatten().map(|(s, _)| *s).min();
        assert!(first.is_some_and(|s| s <= 26), "cut up {up}, down {down}: {ends:?}");
        assert!(ends.iter().flatten().all(|(_, e)| *e == ProtocolError::IdleTimeout));
        p.part(w);
        let mut w = p.connect();
        w.run(1000, &mut p.sessions).unwrap();
        p.part(w);
        assert_eq!(
            (&p.at_server[..], &p.at_client[..]),
            (&[1][..], &[2][..]),
            "cut up {up}, down {down}"
        );
    }
}

#[test]
fn time_in_which_we_did_not_listen_is_no_silence_of_the_peer() {
    let (_, mut w) = watched();
    w.client.forgive_silence(NOW + Duration::from_secs(100));
    assert_eq!(w.client.tick(NOW + Duration::from_secs(110)), Ok(()));
    assert_eq!(w.server.tick(NOW + Duration::from_secs(110)), Err(ProtocolError::IdleTimeout));
}
