//! Goal: to a real Ceph's bytes we answer with a real Ceph's bytes.
//! Method: complete TCP streams of Ceph 16.2.15 (auth none, crc mode) are cut into frames
//! and encoded again; then each half is fed to our machine in the other role, which is told
//! the numbers the real one had, and its whole output is compared.

use super::wire::NOW;
use crate::auth::{AuthAnswer, NoneRequest};
use crate::control::*;
use crate::frame::*;
use crate::session::Session;
use crate::*;
use bytes::{Buf, Bytes, BytesMut};
use proptest::prelude::*;
use spirula_encoding::Decoder;
use spirula_messages::Message;
use spirula_types::{AddrVec, EntityType};
use std::sync::Arc;

const STREAMS: [&str; 7] = [
    "mon-bootstrap",
    "osd-get",
    "osd-listomapvals",
    "osd-put",
    "osd-setomapval",
    "osd-stat-enoent",
    "osd-stat",
];

fn load(name: &str) -> Vec<u8> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/auth-none");
    std::fs::read(format!("{dir}/{name}.bin")).expect(name)
}

fn frames(stream: &[u8]) -> Vec<Frame> {
    let mut buf = BytesMut::from(&stream[26..]);
    let mut r = FrameReader::new(Codec::Crc1, Limits::default());
    r.allow_messages();
    let mut all = Vec::new();
    while let Some(f) = r.next(&mut buf).unwrap() {
        all.push(f);
    }
    assert!(buf.is_empty(), "{} bytes left over", buf.len());
    all
}

fn segment(frames: &[Frame], tag: Tag) -> Bytes {
    frames.iter().find(|f| f.tag == tag).unwrap().segments[0].clone()
}

pub fn messages(frames: &[Frame]) -> Vec<Message> {
    frames
        .iter()
        .filter(|f| f.tag == Tag::Message)
        .map(|f| {
            let h = MessageHeader::read(&mut Decoder::new(&f.segments[0])).unwrap();
            let [_, front, middle, data] = f.segments.clone();
            Message {
                kind: h.kind,
                tid: h.tid,
                priority: h.priority,
                version: h.version,
                compat: h.compat,
                front,
                middle,
                data,
            }
        })
        .collect()
}

#[test]
fn golden_streams_cut_into_frames_and_encode_to_the_same_bytes() {
    for name in STREAMS {
        for dir in ["c2s", "s2c"] {
            let stream = load(&format!("{name}.{dir}"));
            let mut again = BytesMut::from(&stream[..26]);
            for f in frames(&stream) {
                let [a, b, c, data] = &f.segments;
                let s = Segments { head: [a, b, c], data, data_crc: f.data_crc };
                let end = Codec::Crc1.encode(f.tag, &s, &mut again);
                again.extend_from_slice(data);
                again.extend_from_slice(end.as_slice());
                if f.tag == Tag::Message {
                    let h = MessageHeader::read(&mut Decoder::new(a)).unwrap();
                    assert_eq!(h.write()[..], a[..], "{name}.{dir}: message header");
                }
            }
            assert_eq!(again[..], stream[..], "{name}.{dir}");
        }
    }
}

/// The numbers of a captured session.
struct Facts {
    hello_s: Hello,
    client: Ident,
    server: Ident,
    kind: EntityType,
    asked_gid: u64,
    global_id: u64,
    to_server: Vec<Message>,
    to_client: Vec<Message>,
}

fn facts(c2s: &[u8], s2c: &[u8]) -> Facts {
    let (c, s) = (frames(c2s), frames(s2c));
    let hello_s = Hello::read(&mut Decoder::new(&segment(&s, Tag::Hello))).unwrap();
    let request =
        AuthRequestFrame::read(&mut Decoder::new(&segment(&c, Tag::AuthRequest))).unwrap();
    let who = NoneRequest::read(&request.payload).unwrap();
    Facts {
        kind: EntityType::from_wire(hello_s.entity).unwrap(),
        hello_s,
        client: Ident::read_client(&mut Decoder::new(&segment(&c, Tag::ClientIdent))).unwrap(),
        server: Ident::read_server(&mut Decoder::new(&segment(&s, Tag::ServerIdent))).unwrap(),
        asked_gid: who.global_id,
        global_id: AuthDone::read(&mut Decoder::new(&segment(&s, Tag::AuthDone)))
            .unwrap()
            .global_id,
        to_server: messages(&c),
        to_client: messages(&s),
    }
}

impl Facts {
    fn server(&self) -> Connection {
        let e = Endpoint {
            required: self.server.required,
            ..Endpoint::new(self.kind, self.server.gid, self.server.addrs.clone())
        };
        let peer = self.hello_s.peer_addr.addr.unwrap();
        Connection::accept(Arc::new(e), peer, NOW).with_global_seq(self.server.global_seq)
    }

    fn client(&self) -> Connection {
        let e = Endpoint {
            required: self.client.required,
            nonce: self.client.addrs.msgr2().nonce,
            ..Endpoint::new(EntityType::Client, self.client.gid, AddrVec::default())
        };
        let policy = match self.client.flags {
            FLAG_LOSSY => Policy::Lossy,
            _ => Policy::Lossless(Session::new(self.client.cookie)),
        };
        let (to, gid) = (self.client.target.unwrap(), self.asked_gid);
        let target = Target {
            global_seq: self.client.global_seq,
            policy,
            ..Target::none(to, self.kind, EntityType::Client, "admin", gid)
        };
        Connection::connect(Arc::new(e), target, NOW)
    }
}

/// Lets in who asks by method "none"; false if nobody did.
fn let_in(c: &mut Connection, events: &[Event], global_id: u64) -> bool {
    let asked = events.iter().find_map(|e| if let Event::Auth(a) = e { Some(a) } else { None });
    let Some(a) = asked else { return false };
    let answer = match NoneRequest::read(&a.payload) {
        Ok(who) => AuthAnswer::Done(who.granted(global_id)),
        Err(_) => AuthAnswer::Bad(-22),
    };
    let _ = c.answer_auth(answer);
    true
}

fn output(c: &mut Connection) -> Vec<u8> {
    let mut o = c.take_output();
    o.copy_to_bytes(o.len()).to_vec()
}

#[test]
fn our_server_answers_a_real_client_as_a_real_server_did() {
    for name in STREAMS {
        let c2s = load(&format!("{name}.c2s"));
        let s2c = load(&format!("{name}.s2c"));
        let f = facts(&c2s, &s2c);
        for chunk in [1, 7, 64, 100_000] {
            let mut server = f.server();
            let (mut sent, mut buf, mut got) = (output(&mut server), BytesMut::new(), Vec::new());
            for part in c2s.chunks(chunk) {
                buf.extend_from_slice(part);
                loop {
                    let mut events = Vec::new();
                    server.receive(NOW, &mut buf, &mut events).unwrap();
                    let asked = let_in(&mut server, &events, f.global_id);
                    got.append(&mut events);
                    if !asked {
                        break;
                    }
                }
            }
            for m in &f.to_client {
                server.send(m.clone(), None).unwrap();
            }
            sent.extend_from_slice(&output(&mut server));
            assert_eq!(hex(&sent), hex(&s2c), "{name} in chunks of {chunk}");
            let received: Vec<_> = got
                .iter()
                .filter_map(
                    |e| if let Event::Message(m) = e { Some(m.message.clone()) } else { None },
                )
                .collect();
            assert_eq!(received, f.to_server, "{name}");
            let peer = super::wire::Wire::established(&got).unwrap();
            assert_eq!(
                (peer.kind, peer.id.as_str(), peer.lossy),
                (EntityType::Client, "admin", true)
            );
            assert_eq!(peer.addrs, f.client.addrs);
        }
    }
}

#[test]
fn our_client_calls_a_real_server_as_a_real_client_did() {
    for name in STREAMS {
        let c2s = load(&format!("{name}.c2s"));
        let s2c = load(&format!("{name}.s2c"));
        let f = facts(&c2s, &s2c);
        for chunk in [1, 7, 64, 100_000] {
            let mut client = f.client();
            for m in &f.to_server {
                client.send(m.clone(), None).unwrap();
            }
            let (mut sent, mut buf, mut got) = (output(&mut client), BytesMut::new(), Vec::new());
            for part in s2c.chunks(chunk) {
                buf.extend_from_slice(part);
                client.receive(NOW, &mut buf, &mut got).unwrap();
                sent.extend_from_slice(&output(&mut client));
            }
            assert_eq!(hex(&sent), hex(&c2s), "{name} in chunks of {chunk}");
            let received: Vec<_> = got
                .iter()
                .filter_map(
                    |e| if let Event::Message(m) = e { Some(m.message.clone()) } else { None },
                )
                .collect();
            assert_eq!(received, f.to_client, "{name}");
            let peer = super::wire::Wire::established(&got).unwrap();
            assert_eq!((peer.lossy, peer.global_id), (true, f.global_id));
            assert!(client.close().is_none(), "a server that says lossy ends the session");
        }
    }
}

pub fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn prop_mutated_streams_never_panic_either_machine(
        which in 0usize..STREAMS.len(), to_server: bool,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        fix_crc: bool, chunk in 1usize..300,
    ) {
        let name = STREAMS[which];
        let c2s = load(&format!("{name}.c2s"));
        let s2c = load(&format!("{name}.s2c"));
        let f = facts(&c2s, &s2c);
        let mut stream = if to_server { c2s } else { s2c };
        if fix_crc {
            // Mutate payloads behind valid checksums, to reach the decoders.
            let mut out = BytesMut::from(&stream[..26]);
            for (i, fr) in frames(&stream).into_iter().enumerate() {
                let mut seg: Vec<Vec<u8>> = fr.segments.iter().map(|s| s.to_vec()).collect();
                for (at, v) in &edits {
                    if at.index(8) == i && !seg[0].is_empty() {
                        let n = seg[0].len();
                        seg[0][usize::from(*v) % n] ^= v | 1;
                    }
                }
                let data = Bytes::from(seg[3].clone());
                let s = Segments { head: [&seg[0], &seg[1], &seg[2]], data: &data, data_crc: None };
                let end = Codec::Crc1.encode(fr.tag, &s, &mut out);
                out.extend_from_slice(&data);
                out.extend_from_slice(end.as_slice());
            }
            stream = out.to_vec();
        } else {
            for (at, v) in &edits {
                let n = stream.len();
                stream[at.index(n)] = *v;
            }
        }
        let mut c = if to_server { f.server() } else { f.client() };
        let mut buf = BytesMut::new();
        'stream: for part in stream.chunks(chunk) {
            buf.extend_from_slice(part);
            loop {
                let mut events = Vec::new();
                if c.receive(NOW, &mut buf, &mut events).is_err() {
                    prop_assert!(c.is_closed());
                    break 'stream;
                }
                if !let_in(&mut c, &events, 1) { break; }
            }
        }
        let _ = c.take_output();
    }
}
