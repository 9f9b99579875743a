//! Recorded exchanges of real clients with a real Ceph 16.2.15 (`tests/data/vectors/cephx`), both
//! sides replayed.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::client::Client;
use crate::db::{self, AuthDb, DbError, User};
use crate::entity::{Service, Services};
use crate::key::{CryptoKey, KeyType, Usage};
use crate::keyring;
use crate::monitor::{Authority, Exchange, Policy};
use crate::rotating::ServiceKeys;
use crate::wire::{self, Authorize, AuthorizeReply, AuthorizerParts, ServiceTicket};
use serde_json::Value;
use spirula_encoding::{Decoder, Encoder, UTime};
use std::path::PathBuf;

const NOW: UTime = UTime { sec: 1_795_200_000, nsec: 0 };

fn dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/cephx"))
}

/// The authentication frames of a stream: (tag, segment).
fn frames(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut d = Decoder::new(bytes);
    assert_eq!(d.take(8).unwrap(), b"ceph v2\n");
    let n = d.u16().unwrap();
    d.skip(n.into()).unwrap();
    let mut out = Vec::new();
    loop {
        let tag = d.u8().unwrap();
        assert_eq!(d.u8().unwrap(), 1, "one segment");
        let len = d.u32().unwrap() as usize;
        d.skip(26).unwrap();
        out.push((tag, d.take(len).unwrap().to_vec()));
        d.skip(4).unwrap();
        // AUTH_DONE ends the server's part, AUTH_REQUEST_MORE the client's.
        if matches!(tag, 5 | 6) {
            return out;
        }
    }
}

/// Payloads: hello and proof of the client, challenge and AUTH_DONE {global id, mode, payload} of
/// the server.
struct Recorded {
    hello: Vec<u8>,
    proof: Vec<u8>,
    challenge: Vec<u8>,
    global_id: u64,
    secure: bool,
    done: Vec<u8>,
    values: Value,
}

fn recorded(dir: &std::path::Path, name: &str) -> Recorded {
    let read = |side: &str| frames(&std::fs::read(dir.join(format!("{name}.{side}.bin"))).unwrap());
    let (client, server) = (read("c2s"), read("s2c"));
    let of = |list: &[(u8, Vec<u8>)], tag: u8| list.iter().find(|f| f.0 == tag).unwrap().1.clone();
    let blob = |seg: &[u8]| Decoder::new(seg).blob().unwrap().to_vec();
    let request = of(&client, 2);
    let mut d = Decoder::new(&request);
    assert_eq!(d.u32().unwrap(), 2, "method cephx");
    d.list(4, |d| d.u32()).unwrap();
    let hello = d.blob().unwrap().to_vec();
    let done = of(&server, 6);
    let mut d = Decoder::new(&done);
    let (global_id, mode) = (d.u64().unwrap(), d.u32().unwrap());
    let values: Value =
        serde_json::from_slice(&std::fs::read(dir.join("values.json")).unwrap()).unwrap();
    Recorded {
        hello,
        proof: blob(&of(&client, 5)),
        challenge: blob(&of(&server, 4)),
        global_id,
        secure: mode == 2,
        done: d.blob().unwrap().to_vec(),
        values: values["connections"][name].clone(),
    }
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn number(text: &str, key: &str) -> u64 {
    let at = text.find(key).unwrap() + key.len() + 2;
    let digits: String = text[at..].chars().take_while(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&digits, 16).unwrap()
}

fn ring(dir: &std::path::Path) -> Vec<u8> {
    std::fs::read(dir.join("keyring.txt")).unwrap()
}

/// Gives recorded numbers, then something.
fn scripted(first: u64) -> impl FnMut(&mut [u8]) {
    let mut first = Some(first);
    let mut rest = crate::entropy::seeded(first.unwrap_or(0));
    move |out: &mut [u8]| match (first.take(), out.len()) {
        (Some(n), 8) => out.copy_from_slice(&n.to_le_bytes()),
        (_, _) => rest(out),
    }
}

const MON: [&str; 4] =
    ["mon-secure-bootstrap", "mon-secure-main", "mon-secure-main-2", "mon-crc-main"];

#[test]
fn our_client_does_what_the_recorded_one_did_and_understands_the_real_monitor() {
    let dir = dir();
    let admin = "client.admin".parse().unwrap();
    let key = keyring::parse(&ring(&dir)).unwrap()[&admin].key.clone().unwrap();
    for name in MON {
        let r = recorded(&dir, name);
        let want = if name.ends_with("bootstrap") { Services(32) } else { Services::USUAL };
        let mut client = Client::new(admin.clone(), key.clone(), want);
        assert_eq!(client.hello(), r.hello, "{name}");
        let challenge = number(r.values["log"][1].as_str().unwrap(), "client_challenge=");
        let proof = client.answer(&r.challenge, &mut scripted(challenge)).unwrap();
        assert_eq!(proof, r.proof, "{name}");
        let connected = client.finish(r.global_id, &r.done, r.secure, NOW).unwrap();
        assert_eq!(
            connected.session_key.secret(),
            unhex(r.values["session_key"].as_str().unwrap()),
            "{name}"
        );
        assert_eq!(
            *connected.connection_secret,
            unhex(r.values["connection_secret"].as_str().unwrap()),
            "{name}"
        );
        for service in [Service::Mon, Service::Osd, Service::Mgr] {
            assert_eq!(client.has_ticket(service, NOW), want.has(service), "{name} {service}");
        }
        assert_eq!(client.renewal(NOW, &mut scripted(0)).unwrap(), None);
        let mut bad = r.done.clone();
        bad[20] ^= 1;
        assert!(client.finish(r.global_id, &bad, r.secure, NOW).is_err(), "{name}: damaged answer");
    }
}

#[test]
fn our_monitor_admits_the_recorded_client_and_answers_in_the_same_form() {
    let dir = dir();
    let mut db = AuthDb::default();
    db.import(&ring(&dir)).unwrap();
    let mut keys = ServiceKeys::default();
    for (service, k) in keys.due(NOW, Policy::default().lifetimes, &mut scripted(1)) {
        keys.set(service, k);
    }
    let authority = Authority { db: &db, keys: &keys, policy: Policy::default(), now: NOW };
    for name in MON {
        let r = recorded(&dir, name);
        let server_challenge = wire::read_challenge(&r.challenge).unwrap();
        let (exchange, more) = Exchange::start(&r.hello, &mut scripted(server_challenge)).unwrap();
        assert_eq!(more, r.challenge, "{name}");
        let admitted = exchange
            .finish(&r.proof, r.secure, &mut || Some(r.global_id), &authority, &mut scripted(7))
            .unwrap();
        assert_eq!(admitted.session.caps, "allow *");
        assert_eq!(admitted.session.global_id, r.global_id);
        assert!(!admitted.used_pending_key);
        // Same outline as the real answer: everything but the lengths of our tickets.
        let outline = |payload: &[u8]| {
            let mut d = Decoder::new(payload);
            let head = (d.u16().unwrap(), d.i32().unwrap(), d.u8().unwrap(), d.u32().unwrap());
            let ticket =
                (d.u32().unwrap(), d.u8().unwrap(), d.blob().unwrap().len(), d.u8().unwrap());
            d.blob().unwrap();
            let secret = d.blob().unwrap().len();
            let extra = Decoder::new(d.blob().unwrap()).rest().get(..5).map(<[u8]>::to_vec);
            d.finish().unwrap();
            (head, ticket, secret, extra)
        };
        assert_eq!(outline(&admitted.payload), outline(&r.done), "{name}");
    }
}

#[test]
fn the_real_monitors_answer_reencodes_to_the_same_bytes() {
    let dir = dir();
    let admin = "client.admin".parse().unwrap();
    let key = keyring::parse(&ring(&dir)).unwrap()[&admin].key.clone().unwrap();
    for name in MON {
        let r = recorded(&dir, name);
        let none = &mut |_: &mut [u8]| unreachable!("aes needs no randomness");
        let mut d = Decoder::new(&r.done);
        wire::read_response(&mut d, wire::GET_AUTH_SESSION_KEY).unwrap();
        d.skip(10).unwrap();
        let sealed = d.blob().unwrap();
        let mine = wire::open(&key, Usage::TicketSessionKey, "ticket", sealed).unwrap();
        let ticket = ServiceTicket::read(&mine).unwrap();
        assert_eq!(ticket.validity, UTime { sec: 259_200, nsec: 0 });
        assert_eq!(wire::seal(&key, Usage::TicketSessionKey, none, |o| ticket.write(o)), sealed);
        assert_eq!(d.u8().unwrap(), 0);
        d.blob().unwrap();
        let secret = d.sized(|d| d.blob()).unwrap();
        let plain =
            wire::open(&ticket.session_key, Usage::ConnectionSecret, "secret", secret).unwrap();
        let inner = Decoder::new(&plain).blob().unwrap();
        assert_eq!(
            wire::seal(&ticket.session_key, Usage::ConnectionSecret, none, |o| o.blob(inner)),
            secret
        );
    }
}

#[test]
fn recorded_authorizers_and_replies_read_and_reencode() {
    let dir = dir();
    for name in ["osd-crc", "osd-crc-2", "osd-secure", "mgr-secure"] {
        let r = recorded(&dir, name);
        let key = CryptoKey::new(
            KeyType::Aes,
            UTime::ZERO,
            &unhex(r.values["session_key"].as_str().unwrap()),
        )
        .unwrap();
        let none = &mut |_: &mut [u8]| unreachable!("aes needs no randomness");
        let read = |bytes: &[u8]| {
            let mut d = Decoder::new(bytes);
            let parts = AuthorizerParts::read(&mut d).unwrap();
            d.finish().unwrap();
            assert_eq!(spirula_encoding::to_vec(&parts), bytes);
            let plain = wire::open(&key, Usage::Authorize, "authorizer", &parts.sealed).unwrap();
            let authorize = Authorize::read(&plain).unwrap();
            assert_eq!(
                wire::seal(&key, Usage::Authorize, &mut |_: &mut [u8]| (), |o| authorize.write(o)),
                parts.sealed
            );
            (parts, authorize)
        };
        let ((first, a), (second, b)) = (read(&r.hello), read(&r.proof));
        assert_eq!(first.ticket, second.ticket);
        assert_eq!((a.nonce, a.answer), (b.nonce, None));
        let plain = wire::open(&key, Usage::AuthorizeChallenge, "challenge", &r.challenge).unwrap();
        let challenge = wire::read_challenge(&plain).unwrap();
        assert_eq!(b.answer, Some(challenge.wrapping_add(1)), "{name}");
        let sealed = wire::seal(&key, Usage::AuthorizeChallenge, none, |o| {
            wire::write_challenge(o, challenge)
        });
        assert_eq!(sealed, r.challenge);
        let sealed = Decoder::new(&r.done).blob().unwrap();
        let reply = AuthorizeReply::read(
            &wire::open(&key, Usage::AuthorizeReply, "reply", sealed).unwrap(),
        )
        .unwrap();
        assert_eq!(reply.nonce_plus_one, a.nonce.wrapping_add(1));
        assert_eq!(
            *reply.connection_secret,
            unhex(r.values["connection_secret"].as_str().unwrap())
        );
        let mut out = Encoder::new();
        out.blob(&wire::seal(&key, Usage::AuthorizeReply, none, |o| reply.write(o)));
        assert_eq!(out.as_slice(), r.done, "{name}");
    }
}

/// Who may make users of some names, as with the gateways' bootstrap key, leaves administrators
/// room to make theirs.
#[test]
fn the_table_of_users_is_never_full_for_administrators() {
    let key = || CryptoKey::new(KeyType::Aes, NOW, &[7; 16]).unwrap();
    let caps =
        db::caps_of_words(&["mon", "allow rw", "osd", "allow rwx"].map(str::to_owned)).unwrap();
    let name = |n: usize| format!("client.rgw.{n}").parse().unwrap();
    let mut table = AuthDb::default();
    for n in 0..20_000 {
        table.put(name(n), User { key: key(), pending_key: None, caps: caps.clone() });
    }
    let mut n = 20_000;
    let refused = loop {
        match table.get_or_create(&name(n), caps.clone(), key()) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
        assert!(n < 40_000);
    };
    assert_eq!((refused.errno(), refused), (28, DbError::Full { users: n, most: db::MADE_MAX }));
    assert_eq!(n, 21_904);
    assert!(spirula_encoding::to_vec(&table).len() <= db::MADE_MAX + 1000);
    assert!(table.get_or_create(&name(3), caps.clone(), key()).is_ok(), "one that is there");
    assert_eq!(table.add(&"client.x".parse().unwrap(), caps.clone(), b"", key()), Ok(true));
    assert_eq!(
        table.set_caps(
            &name(3),
            db::caps_of_words(&["mon".into(), "allow r, allow rw".into()]).unwrap()
        ),
        Ok(())
    );
    let ring =
        b"[client.y]\n\tkey = AQAAAAAAAAAAABAAAQIDBAUGBwgJCgsMDQ4PEA==\n\tcaps mon = \"allow r\"\n";
    assert_eq!(table.import(ring), Ok(()));
    // Nor do those make it larger than monitors can agree on.
    let long = db::caps_of_words(&["mon".into(), "allow r, ".repeat(400) + "allow r"]).unwrap();
    let big = loop {
        match table.add(&name(n), long.clone(), b"", key()) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
        assert!(n < 40_000);
    };
    assert_eq!(big.errno(), 28);
    let before = table.clone();
    assert_eq!(table.set_caps(&name(5), long.clone()).unwrap_err().errno(), 28);
    assert_eq!(table.import(ring).unwrap_err().errno(), 28);
    assert!(table == before && spirula_encoding::to_vec(&table).len() < 7 << 20);
    assert!(table.set_caps(&name(n - 1), caps).is_ok(), "less than it has");
    assert!((0..1000).all(|i| table.remove(&name(n - 1 - i))));
    assert_eq!(table.import(ring), Ok(()));
}
