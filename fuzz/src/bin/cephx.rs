//! cephx, each end against a peer that the fuzzer plays. Input: a byte that chooses the end and the
//! key type, then what the peer sends, or (second form) edits of what an honest one would send.
//! Nobody may get in who changed anything.
#![no_main]

use spirula_auth::client::Client;
use spirula_auth::db::{AuthDb, User};
use spirula_auth::monitor::{Authority, Exchange, Policy};
use spirula_auth::rotating::{RotatingKeys, ServiceKeys};
use spirula_auth::service::{ServiceExchange, ServiceStep};
use spirula_auth::{CryptoKey, EntityId, KeyType, Service, Services, keyring};
use spirula_encoding::UTime;

fn entropy(mut seed: u8) -> impl FnMut(&mut [u8]) {
    move |out: &mut [u8]| {
        for byte in out {
            seed = seed.wrapping_mul(101).wrapping_add(17);
            *byte = seed;
        }
    }
}

/// The honest bytes with the fuzzer's edits: pairs of position and difference.
fn edited(honest: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut out = honest.to_vec();
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        if let Some(byte) = out.get_mut(at) {
            *byte ^= edit[2];
        }
    }
    out
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&how, rest)) = data.split_first() else { return };
    let strong = how & 1 != 0;
    let now = UTime { sec: 1_000_000, nsec: 0 };
    let key_type = if strong { KeyType::Aes256k } else { KeyType::Aes };
    let entity: EntityId = "client.a".parse().expect("a name");
    let key = CryptoKey::generate(key_type, now, &mut entropy(1));
    let caps = [("mon".to_owned(), "allow r".to_owned())].into();
    let mut db = AuthDb::default();
    db.put(entity.clone(), User { key: key.clone(), pending_key: None, caps });
    let mut keys = ServiceKeys::default();
    for (service, k) in keys.due(now, Policy::default().lifetimes, &mut entropy(2)) {
        keys.set(service, k);
    }
    let authority = Authority { db: &db, keys: &keys, policy: Policy::default(), now };
    let mut client = Client::new(entity, key.clone(), Services::USUAL);
    let hello = client.hello();
    let (exchange, more) = Exchange::start(&hello, &mut entropy(3)).expect("honest");
    let proof = client.answer(&more, &mut entropy(4)).expect("honest");
    match how >> 1 {
        0 => {
            let _ = Exchange::start(rest, &mut entropy(5));
        }
        1 => {
            let same = rest.get(3..19) == proof.get(3..19);
            assert!(exchange.finish(rest, true, &mut || Some(1), &authority, &mut entropy(5)).is_err() || same);
        }
        2 => {
            let changed = edited(&proof, rest);
            // What the proof does not cover is only which tickets are wanted.
            let same = changed.get(3..19) == proof.get(3..19);
            assert!(exchange.finish(&changed, true, &mut || Some(1), &authority, &mut entropy(5)).is_err() || same);
        }
        form => {
            let admitted = exchange.finish(&proof, true, &mut || Some(1), &authority, &mut entropy(5)).expect("honest");
            let mut session = admitted.session;
            match form {
                3 => {
                    let _ = session.handle(rest, &authority, &mut entropy(6));
                    return;
                }
                4 => {
                    let _ = client.finish(1, rest, true, now);
                    return;
                }
                5 => {
                    let _ = client.finish(1, &edited(&admitted.payload, rest), true, now);
                    return;
                }
                _ => client.finish(1, &admitted.payload, true, now).expect("honest"),
            };
            let mut authorizer = client.authorizer(Service::Osd, now, &mut entropy(7)).expect("honest");
            let osd: &RotatingKeys = keys.get(Service::Osd).expect("made above");
            let mut x = ServiceExchange::new(Service::Osd);
            match form {
                6 => {
                    let _ = x.step(rest, true, osd, now, &mut entropy(8));
                }
                7 => {
                    let honest = authorizer.hello();
                    let changed = edited(&honest, rest);
                    if let Ok(step) = x.step(&changed, true, osd, now, &mut entropy(8)) {
                        assert!(matches!(step, ServiceStep::More(_)), "no challenge");
                        // With aes keys damage may pass here; the clear part and the ticket never.
                        let ticket_end =
                            26 + u32::from_le_bytes([honest[22], honest[23], honest[24], honest[25]]) as usize;
                        assert!(changed == honest || !strong && changed[..ticket_end] == honest[..ticket_end]);
                    }
                }
                8 => {
                    let _ = authorizer.answer(rest, &mut entropy(9));
                    let _ = authorizer.finish(rest, true);
                }
                9 => {
                    let _ = client.renewed(rest, now);
                    let _ = client.service_keys(rest);
                }
                10 => {
                    let _ = keyring::parse(rest);
                    let _ = db.clone().import(rest);
                }
                _ => {
                    let _ = spirula_encoding::from_slice::<AuthDb>(rest);
                    let _ = spirula_encoding::from_slice::<ServiceKeys>(rest);
                    let _ = std::str::from_utf8(rest).map(CryptoKey::from_base64);
                }
            }
        }
    }
});
