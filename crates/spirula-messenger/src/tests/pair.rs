//! Client and server machine talking.

use super::wire::*;
use crate::auth::{AuthAnswer, METHOD_NONE, Mode, NoneRequest};
use crate::frame::{Codec, Segments, Tag};
use crate::*;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use spirula_encoding::UTime;
use spirula_encoding::crc::crc32c;
use spirula_types::{AddrVec, EntityAddr, EntityType, errno, features};
use std::sync::Arc;
use std::time::Duration;

fn no_sessions() -> Sessions {
    Sessions::new(server_addr())
}

fn open(client: Endpoint, server: Endpoint) -> Result<Wire, ProtocolError> {
    let mut w = Wire::new(client, target(Policy::Lossy), server);
    w.run(1000, &mut no_sessions())?;
    Ok(w)
}

#[test]
fn lossy_connection_opens_and_both_know_each_other() {
    let w = open(client(), server()).unwrap();
    let p = Wire::established(&w.at_server).unwrap();
    assert_eq!((p.kind, p.id.as_str(), p.global_id, p.lossy), (EntityType::Osd, "1", 1, true));
    assert_eq!((p.name.to_string(), &p.addrs), ("osd.1".into(), &AddrVec::one(client_addr())));
    assert_eq!(p.features, features::PACIFIC);
    let p = Wire::established(&w.at_client).unwrap();
    assert_eq!((p.name.to_string(), &p.addrs), ("osd.2".into(), &AddrVec::one(server_addr())));
}

#[test]
fn client_without_an_address_learns_its_ip_from_the_server() {
    let c = Endpoint { nonce: 5, ..Endpoint::new(EntityType::Client, 99, AddrVec::default()) };
    let w = open(c, server()).unwrap();
    let p = Wire::established(&w.at_server).unwrap();
    let a = p.addrs.msgr2();
    assert_eq!(
        (a.kind, a.nonce, a.addr),
        (EntityAddr::KIND_ANY, 5, Some("10.0.0.1:0".parse().unwrap()))
    );
}

/// One server sees it come from one network, the next from another: both know it by the address
/// that it can be fenced by.
#[test]
fn a_client_in_two_networks_has_one_address() {
    let c = Endpoint { nonce: 5, ..Endpoint::new(EntityType::Client, 99, AddrVec::default()) };
    let seen = |from: &str| {
        let mut w = Wire::new(c.clone(), target(Policy::Lossy), server());
        w.server = Connection::accept(Arc::new(server()), from.parse().unwrap(), NOW);
        w.run(1000, &mut no_sessions()).unwrap();
        let a = Wire::established(&w.at_server).unwrap().addrs.msgr2();
        (a.nonce, a.addr.unwrap().to_string())
    };
    let first = (5, "10.0.0.1:0".to_owned());
    assert_eq!(
        [seen("10.0.0.1:54321"), seen("192.168.7.1:777"), seen("[fd00::1]:888")],
        [first.clone(), first.clone(), first]
    );
}

/// Whoever cannot prove itself says nothing that is believed.
#[test]
fn no_address_is_learned_from_who_is_not_the_server() {
    let c = keyed(
        Endpoint { nonce: 5, ..Endpoint::new(EntityType::Osd, 1, AddrVec::default()) },
        "crc",
    );
    let meets = |key: &'static [u8]| {
        let target =
            Target { credentials: Box::new(Key { session_key: key }), ..target(Policy::Lossy) };
        let mut w = Wire::new(c.clone(), target, keyed(server(), "crc"));
        w.run(1000, &mut no_sessions()).map_err(|e| e.to_string())
    };
    assert!(meets(&b"another key, too"[..]).is_err());
    assert_eq!(c.learned.get(), None);
    assert_eq!(meets(KEY), Ok(()));
    assert_eq!(c.learned.get(), Some(&[10, 0, 0, 1].into()));
}

#[test]
fn either_side_without_2_1_frames_makes_both_speak_2_0() {
    for (c, s) in [(true, false), (false, true), (false, false)] {
        let mut w =
            open(Endpoint { frames_2_1: c, ..client() }, Endpoint { frames_2_1: s, ..server() })
                .unwrap();
        w.client.send(message(1, 100_000), None).unwrap();
        w.server.send(message(2, 10), None).unwrap();
        w.run(1000, &mut no_sessions()).unwrap();
        assert_eq!((tids(&w.at_server), tids(&w.at_client)), (vec![1], vec![2]));
    }
}

#[test]
fn lossy_connections_send_no_acks() {
    let mut w = open(client(), server()).unwrap();
    w.client.send(message(1, 10), None).unwrap();
    w.up.write(w.client.take_output());
    let mut events = Vec::new();
    w.up.deliver(&mut w.server, 100_000, false, &mut events).unwrap();
    assert_eq!(tids(&events), [1]);
    assert!(w.server.take_output().is_empty());
}

#[test]
fn payload_crc_given_by_the_sender_is_used_and_the_received_one_is_reported() {
    let mut w = open(client(), server()).unwrap();
    let m = message(1, 5000);
    let crc = crc32c(u32::MAX, &m.data);
    w.client.send(m.clone(), Some(crc)).unwrap();
    w.run(1000, &mut no_sessions()).unwrap();
    assert!(
        w.at_server
            .iter()
            .any(|e| matches!(e, Event::Message(r) if r.data_crc == Some(crc) && r.seq == 1))
    );
    w.client.send(m, Some(crc ^ 1)).unwrap();
    assert!(matches!(
        w.run(1000, &mut no_sessions()),
        Err(ProtocolError::SegmentCrc { index: 3, .. })
    ));
}

#[test]
fn payload_in_one_piece_is_a_slice_of_the_receive_buffer() {
    let mut w = open(client(), server()).unwrap();
    w.client.send(message(1, 5000), None).unwrap();
    w.up.write(w.client.take_output());
    let mut buf = w.up.bytes.split();
    let range = buf.as_ptr_range();
    let mut events = Vec::new();
    w.server.receive(NOW, &mut buf, &mut events).unwrap();
    let Some(Event::Message(r)) = events.first() else { panic!("{events:?}") };
    assert!(range.contains(&r.message.data.as_ptr()) && range.contains(&r.message.front.as_ptr()));
}

#[test]
fn keepalive_is_answered_with_its_stamp() {
    let mut w = open(client(), server()).unwrap();
    let stamp = UTime { sec: 3, nsec: 4 };
    w.client.keepalive(stamp);
    w.run(1000, &mut no_sessions()).unwrap();
    assert!(w.at_client.iter().any(|e| matches!(e, Event::KeepaliveAck(s) if *s == stamp)));
}

fn acks(w: &Wire) -> Vec<UTime> {
    let all = w.at_client.iter();
    all.filter_map(|e| if let Event::KeepaliveAck(s) = e { Some(*s) } else { None }).collect()
}

/// Whoever is not read from for a while is answered as if he were.
#[test]
fn a_keepalive_that_lies_unread_is_answered_by_the_last_one() {
    let mut w = open(client(), server()).unwrap();
    w.client.keepalive(UTime { sec: 3, nsec: 999_999_999 });
    w.run(1000, &mut no_sessions()).unwrap();
    w.server.answer_unread(NOW + Duration::from_millis(20_001), UTime::ZERO);
    w.run(1000, &mut no_sessions()).unwrap();
    assert_eq!(acks(&w).last(), Some(&UTime { sec: 23, nsec: 900_999_999 }));
}

/// A client that asks for much at once is held before it has asked whether this side lives.
#[test]
fn who_is_held_before_his_first_keepalive_is_answered_by_the_wall_clock() {
    let mut w = open(client(), server()).unwrap();
    let wall = UTime { sec: 1_000_000, nsec: 5 };
    w.server.answer_unread(NOW, wall);
    w.run(1000, &mut no_sessions()).unwrap();
    // A stamp that his clock has not come to would be one of 136 years ago.
    assert_eq!(acks(&w), [UTime { sec: 999_999, nsec: 900_000_005 }]);
    // His question says what his clock is, and counts whatever was guessed.
    let his = UTime { sec: 999_998, nsec: 0 };
    w.client.keepalive(his);
    w.run(1000, &mut no_sessions()).unwrap();
    w.server.answer_unread(NOW, wall);
    w.run(1000, &mut no_sessions()).unwrap();
    assert_eq!(acks(&w)[1..], [his, his]);
}

/// A question that lay unread says too little of the peer's clock, and no later answer falls behind
/// for it.
#[test]
fn a_keepalive_that_is_read_late_makes_no_answer_late() {
    let mut w = open(client(), server()).unwrap();
    w.client.keepalive(UTime { sec: 100, nsec: 0 });
    w.run(1000, &mut no_sessions()).unwrap();
    // Asked at 101 of the peer's clock, read when that is at 104.
    w.client.keepalive(UTime { sec: 101, nsec: 0 });
    w.up.write(w.client.take_output());
    let mut buf = w.up.bytes.split();
    w.server.receive(NOW + Duration::from_secs(4), &mut buf, &mut Vec::new()).unwrap();
    w.server.answer_unread(NOW + Duration::from_secs(5), UTime::ZERO);
    w.run(1000, &mut no_sessions()).unwrap();
    let said: Vec<u32> = acks(&w).iter().map(|s| s.sec).collect();
    assert_eq!(said, [100, 101, 104]);
    // A minute later a question that was read late again counts less than those before it.
    let mut ask = |at: u64, sec: u32| {
        w.client.keepalive(UTime { sec, nsec: 0 });
        w.up.write(w.client.take_output());
        let mut buf = w.up.bytes.split();
        w.server.receive(NOW + Duration::from_secs(at), &mut buf, &mut Vec::new()).unwrap();
        w.server.answer_unread(NOW + Duration::from_secs(at + 2), UTime::ZERO);
        w.run(1000, &mut no_sessions()).unwrap();
        acks(&w).last().unwrap().sec
    };
    assert_eq!(ask(70, 150), 171);
    // A clock that was set back counts as it is in the end, and what was said before stands until
    // it has come there.
    assert_eq!(ask(200, 160), 171);
    assert_eq!(ask(220, 180), 181);
}

#[test]
fn wrong_target_wrong_peer_and_wrong_kind_are_told_apart() {
    let other = EntityAddr { nonce: 78, ..server_addr() };
    let mut w = Wire::new(client(), Target { addr: other, ..target(Policy::Lossy) }, server());
    assert_eq!(w.run(1000, &mut no_sessions()), Err(ProtocolError::WrongTarget { target: other }));
    let lax = Endpoint { check_target: false, ..server() };
    let mut w = Wire::new(client(), Target { addr: other, ..target(Policy::Lossy) }, lax);
    assert!(matches!(w.run(1000, &mut no_sessions()), Err(ProtocolError::WrongPeer { .. })));
    let mut w =
        Wire::new(client(), Target { entity: EntityType::Mon, ..target(Policy::Lossy) }, server());
    assert_eq!(
        w.run(1000, &mut no_sessions()),
        Err(ProtocolError::WrongKind { found: 4, expected: 1 })
    );
}

#[test]
fn missing_features_are_named_on_both_sides() {
    let weak = Endpoint { features: features::MSG_ADDR2, ..client() };
    let strict = Endpoint { required: features::MSG_ADDR2 | 4, ..server() };
    assert_eq!(open(weak, strict).err(), Some(ProtocolError::WeLack(4)));
    let demanding = Endpoint { required: 1 << 62, features: u64::MAX, ..client() };
    assert_eq!(open(demanding, server()).err(), Some(ProtocolError::WeLack(1 << 62)));
}

#[test]
fn refused_authentication_reaches_the_client_with_its_error() {
    let mut w = Wire::new(client(), target(Policy::Lossy), server());
    let mut events = Vec::new();
    for _ in 0..3 {
        w.up.write(w.client.take_output());
        w.up.deliver(&mut w.server, 1000, false, &mut events).unwrap();
        w.down.write(w.server.take_output());
        w.down.deliver(&mut w.client, 1000, false, &mut w.at_client).unwrap();
    }
    let [Event::Auth(a)] = &events[..] else { panic!("{events:?}") };
    let who = NoneRequest::read(&a.payload).unwrap();
    assert_eq!((a.hello, a.method, a.mode), (EntityType::Osd, METHOD_NONE, Mode::Crc));
    assert_eq!((who.kind, who.id.as_str(), who.to_monitor), (EntityType::Osd, "1", false));
    w.server.answer_auth(AuthAnswer::Bad(-errno::EACCES)).unwrap();
    w.down.write(w.server.take_output());
    let r = w.down.deliver(&mut w.client, 1000, false, &mut w.at_client);
    assert_eq!(r, Err(ProtocolError::AuthRefused { method: 1, result: -13, allowed: vec![1] }));
}

/// A server machine after HELLO, and a way to hand it frames.
#[allow(clippy::type_complexity, reason = "a closure cannot be named")]
fn greeted()
-> (Connection, impl Fn(&mut Connection, Tag, &[u8]) -> Result<Vec<Event>, ProtocolError>) {
    let mut c = Connection::accept(Arc::new(server()), "10.0.0.1:1".parse().unwrap(), NOW);
    let feed = |c: &mut Connection, tag: Tag, payload: &[u8]| {
        let mut b = BytesMut::new();
        Codec::Crc1.encode(
            tag,
            &Segments { head: [payload, &[], &[]], data: &Bytes::new(), data_crc: None },
            &mut b,
        );
        let mut events = Vec::new();
        c.receive(NOW, &mut b, &mut events).map(|()| events)
    };
    let mut b = BytesMut::from(&crate::banner::write(true)[..]);
    c.receive(NOW, &mut b, &mut Vec::new()).unwrap();
    let hello = crate::control::Hello { entity: 8, peer_addr: server_addr() };
    feed(&mut c, Tag::Hello, &hello.write()).unwrap();
    let _ = c.take_output();
    (c, feed)
}

fn admin() -> NoneRequest {
    NoneRequest { to_monitor: false, kind: EntityType::Client, id: "admin".into(), global_id: 5 }
}

#[test]
fn other_methods_and_modes_are_answered_with_what_is_allowed() {
    let (mut c, feed) = greeted();
    for (method, modes) in [(2u32, vec![2u32, 1]), (1, vec![2])] {
        let f = crate::control::AuthRequestFrame { method, modes, payload: Bytes::new() };
        assert!(feed(&mut c, Tag::AuthRequest, &f.write()).unwrap().is_empty());
        let mut o = c.take_output();
        let bytes = bytes::Buf::copy_to_bytes(&mut o, 32 + 28);
        let mut want = method.to_le_bytes().to_vec();
        want.extend_from_slice(&(-95i32).to_le_bytes());
        want.extend_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!((bytes[0], &bytes[32..60]), (3, &want[..]));
    }
    // For ever is too long.
    let f = crate::control::AuthRequestFrame { method: 2, modes: vec![1], payload: Bytes::new() }
        .write();
    assert!((0..100).any(|_| feed(&mut c, Tag::AuthRequest, &f).is_err()));
    assert!(c.is_closed());
}

#[test]
fn compression_request_is_declined() {
    let (mut c, feed) = greeted();
    let who = admin();
    let f = crate::control::AuthRequestFrame { method: 1, modes: vec![1], payload: who.write() };
    assert!(matches!(&feed(&mut c, Tag::AuthRequest, &f.write()).unwrap()[..], [Event::Auth(_)]));
    c.answer_auth(AuthAnswer::Done(who.granted(5))).unwrap();
    feed(&mut c, Tag::AuthSignature, &[0; 32]).unwrap();
    let _ = c.take_output();
    feed(&mut c, Tag::CompressionRequest, &[1, 1, 0, 0, 0, 1, 0, 0, 0]).unwrap();
    assert_eq!(c.take_output().chunks().next().unwrap()[0], Tag::CompressionDone as u8);
}

#[test]
fn frames_out_of_order_are_refused() {
    let (mut c, feed) = greeted();
    let r = feed(&mut c, Tag::ClientIdent, &[0; 100]);
    assert!(matches!(r, Err(ProtocolError::Unexpected { tag: "CLIENT_IDENT", .. })));
    let (mut c, feed) = greeted();
    assert!(matches!(
        feed(&mut c, Tag::Keepalive2, &[0; 8]),
        Err(ProtocolError::Unexpected { .. })
    ));
    let (mut c, feed) = greeted();
    let who = admin();
    let f = crate::control::AuthRequestFrame { method: 1, modes: vec![1], payload: who.write() };
    feed(&mut c, Tag::AuthRequest, &f.write()).unwrap();
    c.answer_auth(AuthAnswer::Done(who.granted(5))).unwrap();
    assert_eq!(feed(&mut c, Tag::AuthSignature, &[1; 32]).err(), Some(ProtocolError::Signature));
}

#[test]
fn http_request_closes_the_connection_with_a_telling_error() {
    let mut c = Connection::accept(Arc::new(server()), "10.0.0.1:1".parse().unwrap(), NOW);
    let mut b = BytesMut::from(&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..]);
    let e = c.receive(NOW, &mut b, &mut Vec::new()).unwrap_err();
    assert_eq!(e.to_string(), "not msgr2: an HTTP request");
    assert!(c.is_closed() && c.send(message(1, 0), None) == Err(SendError::Closed));
}

#[test]
fn silent_peers_are_given_up_in_time() {
    let mut e = server();
    e.timeouts = Timeouts {
        handshake: Duration::from_secs(10),
        keepalive: Duration::from_secs(20),
        idle: Duration::from_secs(60),
    };
    let mut c = Connection::accept(Arc::new(e.clone()), "10.0.0.1:1".parse().unwrap(), NOW);
    assert_eq!(c.tick(NOW + Duration::from_secs(10)), Ok(()));
    assert_eq!(c.tick(NOW + Duration::from_secs(11)), Err(ProtocolError::HandshakeTimeout));
    // Clients may be silent; whoever called looks after the connection.
    let mut w = open(Endpoint { timeouts: e.timeouts, ..client() }, e).unwrap();
    assert_eq!(w.server.tick(NOW + Duration::from_secs(1000)), Ok(()));
    assert_eq!(w.client.tick(NOW + Duration::from_secs(60)), Ok(()));
    assert_eq!(w.client.tick(NOW + Duration::from_secs(61)), Err(ProtocolError::IdleTimeout));
}

#[test]
fn early_messages_are_bounded() {
    let mut e = client();
    e.limits.queue = 10_000;
    let mut c = Connection::connect(Arc::new(e), target(Policy::Lossy), NOW);
    let sent = (0..100).take_while(|i| c.send(message(*i, 1000), None).is_ok()).count();
    assert!((8..12).contains(&sent), "{sent}");
    assert_eq!(c.send(message(0, 0), None), Err(SendError::Full));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn prop_messages_arrive_once_in_order_and_unchanged_in_any_chunking(
        up in prop::collection::vec(prop_oneof![0usize..200, 7000usize..9000, 60_000usize..200_000], 0..8),
        down in prop::collection::vec(0usize..300, 0..8),
        chunks in prop::collection::vec(1usize..70_000, 1..20),
        direct: bool, lossless: bool, rev1: bool,
    ) {
        let (policy, mut srv) = (if lossless { Policy::Lossless(Session::new(9)) } else { Policy::Lossy }, server());
        if lossless { srv.lossless = vec![EntityType::Osd]; }
        srv.frames_2_1 = rev1;
        let mut w = Wire::new(client(), target(policy), srv);
        let mut sessions = no_sessions();
        for (i, n) in up.iter().enumerate() { w.client.send(message(i as u64, *n), None).unwrap(); }
        for (i, n) in down.iter().enumerate() { w.server.send(message(i as u64, *n), None).unwrap(); }
        let mut sizes = chunks.iter().cycle();
        while w.step(*sizes.next().unwrap(), direct, &mut sessions).unwrap() {}
        for (events, sizes) in [(&w.at_server, &up), (&w.at_client, &down)] {
            let got: Vec<_> = events.iter().filter_map(|e| match e { Event::Message(m) => Some(&m.message), _ => None }).collect();
            prop_assert_eq!(got.len(), sizes.len());
            for (i, (m, n)) in got.iter().zip(sizes).enumerate() { prop_assert_eq!(*m, &message(i as u64, *n)); }
        }
        if lossless {
            // Everything was acknowledged.
            prop_assert_eq!(w.client.close().unwrap().queued(), 0);
            prop_assert_eq!(w.server.close().unwrap().queued(), 0);
        }
    }

    #[test]
    fn prop_garbage_after_the_banner_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), connecting: bool) {
        let mut c = if connecting { Connection::connect(Arc::new(client()), target(Policy::Lossy), NOW) }
            else { Connection::accept(Arc::new(server()), "10.0.0.1:1".parse().unwrap(), NOW) };
        let mut b = BytesMut::from(&crate::banner::write(true)[..]);
        b.extend_from_slice(&bytes);
        let _ = c.receive(NOW, &mut b, &mut Vec::new());
    }

    #[test]
    fn prop_any_control_payload_in_any_phase_never_panics(steps in prop::collection::vec((1u8..23, prop::collection::vec(any::<u8>(), 0..150)), 1..5), open_first: bool) {
        let w = if open_first { open(client(), server()).unwrap() } else { Wire::new(client(), target(Policy::Lossy), server()) };
        for mut c in [w.client, w.server] {
            if !open_first {
                let mut b = BytesMut::from(&crate::banner::write(true)[..]);
                c.receive(NOW, &mut b, &mut Vec::new()).unwrap();
            }
            for (tag, payload) in &steps {
                let Some(tag) = Tag::from_wire(*tag) else { continue };
                let mut b = BytesMut::new();
                Codec::Crc1.encode(tag, &Segments { head: [payload, &[], &[]], data: &Bytes::new(), data_crc: None }, &mut b);
                if c.receive(NOW, &mut b, &mut Vec::new()).is_err() { break; }
                let _ = c.answer_auth(AuthAnswer::Done(admin().granted(3)));
            }
        }
    }
}
