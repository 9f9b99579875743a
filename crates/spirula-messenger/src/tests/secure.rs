//! Authentication of any method, and secure mode, between two machines.

use super::wire::*;
use crate::auth::*;
use crate::*;
use bytes::{Buf, Bytes, BytesMut};
use proptest::prelude::*;
use spirula_types::EntityType;
use std::sync::Arc;

fn no_sessions() -> Sessions {
    Sessions::new(server_addr())
}

fn pair(client_modes: &str, server_modes: &str) -> Wire {
    Wire::new(
        keyed(client(), client_modes),
        keyed_target(Policy::Lossy),
        keyed(server(), server_modes),
    )
}

fn open(modes: &str) -> Wire {
    let mut w = pair(modes, modes);
    w.run(1000, &mut no_sessions()).unwrap();
    w
}

#[test]
fn keyed_connection_opens_in_the_mode_the_client_prefers_among_the_allowed() {
    for (client, server, want) in [
        ("crc", "crc secure", Mode::Crc),
        ("secure", "crc secure", Mode::Secure),
        ("secure crc", "crc secure", Mode::Secure),
        ("crc secure", "secure crc", Mode::Crc),
        ("crc secure", "secure", Mode::Secure),
    ] {
        let mut w = pair(client, server);
        w.run(100, &mut no_sessions()).unwrap();
        for events in [&w.at_client, &w.at_server] {
            let p = Wire::established(events).unwrap();
            assert_eq!(
                (p.method, p.mode, p.global_id),
                (METHOD_KEY, want, 1),
                "{client} / {server}"
            );
        }
    }
}

#[test]
fn downgrade_is_refused_where_secure_is_required() {
    let refused = |w: &mut Wire| match w.run(1000, &mut no_sessions()) {
        Err(ProtocolError::AuthRefused { result, allowed, .. }) => (result, allowed),
        r => panic!("{r:?}"),
    };
    assert_eq!(refused(&mut pair("crc", "secure")), (-95, vec![METHOD_KEY]));
    assert_eq!(refused(&mut pair("secure", "crc")), (-95, vec![METHOD_KEY]));
    // Method "none" has nothing to encrypt with.
    let open_to_none = Endpoint { methods: vec![METHOD_NONE], ..keyed(server(), "secure") };
    let mut w = Wire::new(client(), target(Policy::Lossy), open_to_none);
    assert_eq!(refused(&mut w), (-95, vec![METHOD_NONE]));
    let mut w = Wire::new(keyed(client(), "secure"), target(Policy::Lossy), server());
    assert_eq!(w.run(1000, &mut no_sessions()), Err(ProtocolError::NoMode(METHOD_NONE)));
    // Neither have 2.0 frames.
    for (c, s) in [(false, true), (true, false)] {
        let (mut client, mut server) = (keyed(client(), "secure crc"), keyed(server(), "secure"));
        (client.frames_2_1, server.frames_2_1) = (c, s);
        assert_eq!(
            refused(&mut Wire::new(client, keyed_target(Policy::Lossy), server)),
            (-95, vec![METHOD_KEY])
        );
    }
    // Nobody gets a weaker mode by saying hello as somebody else: clients may use crc here,
    // OSDs may not.
    let mut strict = keyed(server(), "crc secure");
    strict.modes.cluster = "secure".parse().unwrap();
    let liar = Endpoint { entity: EntityType::Client, ..keyed(client(), "crc") };
    assert_eq!(
        refused(&mut Wire::new(liar, keyed_target(Policy::Lossy), strict)),
        (-13, vec![METHOD_KEY])
    );
}

#[test]
fn mode_that_was_not_asked_for_is_refused_by_the_client() {
    let done = crate::control::AuthDone { global_id: 1, mode: 1, payload: Bytes::new() };
    let mut w = pair("secure", "secure");
    for _ in 0..2 {
        w.step(10_000, false, &mut no_sessions()).unwrap();
    }
    let mut b = BytesMut::new();
    let s =
        frame::Segments { head: [&done.write(), &[], &[]], data: &Bytes::new(), data_crc: None };
    frame::Codec::Crc1.encode(frame::Tag::AuthDone, &s, &mut b);
    assert_eq!(w.client.receive(NOW, &mut b, &mut Vec::new()), Err(ProtocolError::Mode(1)));
}

#[test]
fn another_session_key_is_found_out_by_the_signatures() {
    for modes in ["crc", "secure"] {
        let t = Target {
            credentials: Box::new(Key { session_key: b"not that key" }),
            ..target(Policy::Lossy)
        };
        let mut w = Wire::new(keyed(client(), modes), t, keyed(server(), modes));
        assert_eq!(w.run(1000, &mut no_sessions()), Err(ProtocolError::Signature), "{modes}");
    }
}

#[test]
fn handshake_changed_on_the_way_is_found_out_by_the_signatures() {
    // The server's HELLO tells the client another address; its crc is right.
    let mut w = pair("crc", "crc");
    let mut changed = false;
    let r = loop {
        w.up.write(w.client.take_output());
        let mut o = w.server.take_output();
        let mut bytes = o.copy_to_bytes(o.len()).to_vec();
        if !changed && bytes.first() == Some(&(frame::Tag::Hello as u8)) {
            let hello = &mut bytes[frame::PREAMBLE_LEN..];
            let n = hello.len() - 4;
            hello[n - 10] ^= 1;
            let crc = spirula_encoding::crc::crc32c(u32::MAX, &hello[..n]);
            hello[n..].copy_from_slice(&crc.to_le_bytes());
            changed = true;
        }
        w.down.bytes.extend_from_slice(&bytes);
        match w.step(100_000, false, &mut no_sessions()) {
            Ok(true) => {}
            r => break r,
        }
    };
    assert!(changed);
    assert_eq!(r, Err(ProtocolError::Signature));
}

#[test]
fn secure_mode_without_a_secret_is_no_mode() {
    let mut w = pair("secure", "secure");
    w.auth.without_secret = true;
    assert_eq!(w.run(1000, &mut no_sessions()), Err(ProtocolError::ShortSecret(0)));
    assert!(w.server.is_closed());
}

#[test]
fn nothing_legible_leaves_in_secure_mode() {
    let mut w = open("secure");
    for size in [0, 30, 5000, 100_000] {
        w.client.send(message(7, size), None).unwrap();
        let mut o = w.client.take_output();
        let bytes = o.copy_to_bytes(o.len());
        assert!(!bytes.windows(8).any(|x| x == b"front of" || x == [7; 8]), "{size}");
        w.up.bytes.extend_from_slice(&bytes);
        w.run(1000, &mut no_sessions()).unwrap();
    }
    assert_eq!(tids(&w.at_server), [7; 4]);
}

#[test]
fn each_connection_has_secrets_of_its_own() {
    let cipher = |_: u8| {
        let mut w = open("secure");
        w.client.send(message(7, 64), None).unwrap();
        let mut o = w.client.take_output();
        o.copy_to_bytes(o.len())
    };
    let (a, b) = (cipher(0), cipher(1));
    assert_eq!(a.len(), b.len());
    assert!(a.chunks_exact(16).zip(b.chunks_exact(16)).all(|(a, b)| a != b));
}

#[test]
fn payloads_are_decrypted_where_the_shell_put_them() {
    let mut w = open("secure");
    let mut m = message(1, 100_000);
    m.data = (0..100_000u32).map(|i| i as u8).collect();
    w.client.send(m.clone(), None).unwrap();
    let mut o = w.client.take_output();
    let mut bytes = BytesMut::from(&o.copy_to_bytes(o.len())[..]);
    let mut events = Vec::new();
    let mut first = bytes.split_to(1000);
    w.server.receive(NOW, &mut first, &mut events).unwrap();
    let Wanted::Payload { len, data_at } = w.server.wanted() else {
        panic!("{:?}", w.server.wanted())
    };
    assert_eq!(data_at, m.front.len().next_multiple_of(16));
    let mut payload = first;
    payload.extend_from_slice(&bytes.split_to(len - payload.len()));
    let range = payload.as_ptr_range();
    assert_eq!(
        w.server.receive_payload(Bytes::copy_from_slice(&payload)).map(|b| b.len()),
        Some(len),
        "not opened"
    );
    w.server.open_payload(&mut payload).unwrap();
    assert_eq!(w.server.receive_payload(payload.freeze()), None);
    w.server.receive(NOW, &mut bytes, &mut events).unwrap();
    let [Event::Message(r)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&r.message, r.data_crc), (&m, None));
    assert!(range.contains(&r.message.data.as_ptr()), "not copied");
    assert!(bytes.is_empty());
}

#[test]
fn long_control_frames_pass_in_secure_mode() {
    // CLIENT_IDENT with many addresses is longer than what goes with the preamble.
    let mut c = keyed(client(), "secure");
    c.addrs.0 = vec![client_addr(); 40];
    let mut w = Wire::new(c, keyed_target(Policy::Lossy), keyed(server(), "secure"));
    w.run(7, &mut no_sessions()).unwrap();
    assert_eq!(Wire::established(&w.at_server).unwrap().addrs.0.len(), 40);
}

#[test]
fn connection_whose_nonces_are_used_up_ends_and_its_session_goes_on() {
    let mut sessions = no_sessions();
    let srv = || Endpoint { lossless: vec![EntityType::Osd], ..keyed(server(), "secure") };
    let mut w = Wire::new(
        keyed(client(), "secure"),
        keyed_target(Policy::Lossless(Session::new(5))),
        srv(),
    );
    w.run(1000, &mut sessions).unwrap();
    w.client.use_up_nonces(5);
    for tid in 0..4 {
        w.client.send(message(tid, 10), None).unwrap();
    }
    assert_eq!(w.client.tick(NOW), Err(ProtocolError::NoncesUsedUp));
    w.run(1000, &mut sessions).unwrap_err();
    assert_eq!(tids(&w.at_server), [0, 1]);
    let key = SessionKey { name: spirula_types::EntityName::osd(1), addr: client_addr() };
    sessions.park(key, CONN, w.server.close().unwrap(), NOW);
    let t = Target { global_seq: 2, ..keyed_target(Policy::Lossless(w.client.close().unwrap())) };
    let mut w = Wire::new(keyed(client(), "secure"), t, srv());
    w.run(1000, &mut sessions).unwrap();
    assert_eq!(tids(&w.at_server), [2, 3]);
}

#[test]
fn peers_that_talk_for_ever_before_they_authenticate_are_sent_away() {
    let mut c =
        Connection::accept(Arc::new(keyed(server(), "crc")), "10.0.0.1:1".parse().unwrap(), NOW);
    let mut b = BytesMut::from(&crate::banner::write(true)[..]);
    let hello = crate::control::Hello { entity: 8, peer_addr: server_addr() };
    let frame = |b: &mut BytesMut, tag, payload: &[u8]| {
        let s = frame::Segments { head: [payload, &[], &[]], data: &Bytes::new(), data_crc: None };
        frame::Codec::Crc1.encode(tag, &s, b);
    };
    frame(&mut b, frame::Tag::Hello, &hello.write());
    c.receive(NOW, &mut b, &mut Vec::new()).unwrap();
    let request = crate::control::AuthRequestFrame {
        method: METHOD_KEY,
        modes: vec![1],
        payload: Bytes::from(vec![0; 60_000]),
    };
    let mut result = Ok(());
    for _ in 0..3 {
        frame(&mut b, frame::Tag::AuthRequest, &request.write());
        result = c.receive(NOW, &mut b, &mut Vec::new());
        if result.is_err() {
            break;
        }
        c.answer_auth(AuthAnswer::Bad(-13)).unwrap();
    }
    assert_eq!(result, Err(ProtocolError::LongHandshake(128 << 10)));
    // And one payload alone is bounded before it is read.
    let mut c =
        Connection::accept(Arc::new(keyed(server(), "crc")), "10.0.0.1:1".parse().unwrap(), NOW);
    let mut b = BytesMut::from(&crate::banner::write(true)[..]);
    frame(&mut b, frame::Tag::Hello, &hello.write());
    frame(&mut b, frame::Tag::AuthRequest, &vec![0; (64 << 10) + 1]);
    assert!(matches!(c.receive(NOW, &mut b, &mut Vec::new()), Err(ProtocolError::TooLong { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn prop_messages_arrive_once_in_order_and_unchanged_in_secure_mode_too(
        up in prop::collection::vec(prop_oneof![0usize..200, 7000usize..9000, 60_000usize..200_000], 0..8),
        down in prop::collection::vec(0usize..300, 0..8),
        chunks in prop::collection::vec(1usize..70_000, 1..20),
        direct: bool, lossless: bool,
    ) {
        let policy = if lossless { Policy::Lossless(Session::new(9)) } else { Policy::Lossy };
        let mut srv = keyed(server(), "secure");
        if lossless { srv.lossless = vec![EntityType::Osd]; }
        let mut w = Wire::new(keyed(client(), "secure"), keyed_target(policy), srv);
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
    }

    #[test]
    fn prop_one_changed_bit_in_a_secure_stream_ends_it(at: prop::sample::Index, bit in 0u8..8, size in 0usize..3000) {
        let mut w = open("secure");
        w.client.send(message(1, size), None).unwrap();
        let mut o = w.client.take_output();
        let mut bytes = BytesMut::from(&o.copy_to_bytes(o.len())[..]);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut events = Vec::new();
        prop_assert_eq!(w.server.receive(NOW, &mut bytes, &mut events), Err(ProtocolError::Sealed));
        prop_assert!(events.is_empty() && w.server.is_closed());
    }

    #[test]
    fn prop_garbage_in_a_secure_stream_is_an_error_and_never_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 96..600), at_client: bool,
    ) {
        let w = open("secure");
        let mut c = if at_client { w.client } else { w.server };
        prop_assert_eq!(c.receive(NOW, &mut BytesMut::from(&bytes[..]), &mut Vec::new()), Err(ProtocolError::Sealed));
    }
}
