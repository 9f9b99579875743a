//! Goal: cephx handshakes and secure mode as a real Ceph's.
//! Method: complete TCP streams of Ceph 16.2.15 with cephx, whose session keys and connection
//! secrets are known, are decrypted and encrypted again to the same bytes; then each half is
//! fed to our machine in the other role, with the method's payloads as they were, and its
//! whole handshake is compared, signatures and all.

use super::golden::{hex, messages};
use super::wire::NOW;
use crate::auth::*;
use crate::control::*;
use crate::frame::*;
use crate::output::OutBuffer;
use crate::secure;
use crate::*;
use bytes::{Buf, Bytes, BytesMut};
use spirula_encoding::Decoder;
use spirula_types::{AddrVec, EntityType};
use std::path::PathBuf;
use std::sync::Arc;

const STREAMS: [&str; 8] = [
    "mon-secure-bootstrap",
    "mon-secure-main",
    "mon-secure-main-2",
    "mgr-secure",
    "osd-secure",
    "osd-crc",
    "osd-crc-2",
    "mon-crc-main",
];

struct Capture {
    name: &'static str,
    c2s: Vec<u8>,
    s2c: Vec<u8>,
    secrets: Secrets,
}

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn captures() -> Vec<Capture> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/cephx"));
    let values = std::fs::read(dir.join("values.json")).unwrap();
    let values: serde_json::Value = serde_json::from_slice(&values).unwrap();
    let load =
        |name: &str, way: &str| std::fs::read(dir.join(format!("{name}.{way}.bin"))).unwrap();
    let secret = |name: &str, what: &str| {
        Secret::new(unhex(values["connections"][name][what].as_str().unwrap()))
    };
    let capture = |name| Capture {
        name,
        c2s: load(name, "c2s"),
        s2c: load(name, "s2c"),
        secrets: Secrets {
            session_key: secret(name, "session_key"),
            connection_secret: secret(name, "connection_secret"),
        },
    };
    STREAMS.into_iter().map(capture).collect()
}

impl Capture {
    fn secure(&self) -> bool {
        !self.secrets.connection_secret.is_empty()
    }

    /// Cuts one direction into frames; `last` is the last frame before encryption. Also says
    /// where in the stream each frame ends.
    fn frames(&self, stream: &[u8], to_server: bool) -> Vec<(Frame, usize)> {
        let last = if to_server { Tag::AuthRequestMore } else { Tag::AuthDone };
        let mut buf = BytesMut::from(&stream[26..]);
        let mut r = FrameReader::new(Codec::Crc1, Limits::default());
        r.allow_messages();
        let mut all = Vec::new();
        while let Some(f) = r.next(&mut buf).unwrap_or_else(|e| panic!("{}: {e}", self.name)) {
            if f.tag == last && self.secure() {
                r.secure(
                    secure::keys(self.secrets.connection_secret.expose(), !to_server).unwrap().0,
                );
            }
            all.push((f, stream.len() - buf.len()));
        }
        // One stream was cut off on purpose.
        assert!(
            buf.is_empty() || self.name == "mon-crc-main",
            "{}: {} bytes left over",
            self.name,
            buf.len()
        );
        all
    }

    fn find(&self, frames: &[(Frame, usize)], tag: Tag) -> (Bytes, usize) {
        let (f, end) = frames
            .iter()
            .find(|(f, _)| f.tag == tag)
            .unwrap_or_else(|| panic!("{}: {tag:?}", self.name));
        (f.segments[0].clone(), *end)
    }
}

#[test]
fn captured_sessions_decrypt_and_encrypt_to_the_same_bytes() {
    for c in captures() {
        for (stream, to_server) in [(&c.c2s, true), (&c.s2c, false)] {
            let mut out = OutBuffer::default();
            out.raw(&stream[..26]);
            let mut end = 0;
            let last = if to_server { Tag::AuthRequestMore } else { Tag::AuthDone };
            for (f, at) in c.frames(stream, to_server) {
                let [a, b, m, data] = &f.segments;
                let s = Segments { head: [a, b, m], data, data_crc: f.data_crc };
                out.frame(Codec::Crc1, f.tag, &s, 8192).unwrap();
                if f.tag == last && c.secure() {
                    out.secure(
                        secure::keys(c.secrets.connection_secret.expose(), to_server).unwrap().1,
                    );
                }
                end = at;
            }
            let mut out = out.take();
            assert_eq!(hex(&out.copy_to_bytes(out.len())), hex(&stream[..end]), "{}", c.name);
        }
    }
}

/// The method's payloads as they were in a capture.
#[derive(Debug)]
struct Replay {
    start: AuthStart,
    more: Bytes,
    asked: Bytes,
    done: Bytes,
    mode: Mode,
    secrets: Secrets,
}

impl Credentials for Replay {
    fn request(&mut self) -> Result<AuthStart, String> {
        Ok(self.start.clone())
    }

    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart> {
        panic!("{bad:?}")
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        assert_eq!(payload, self.asked);
        Ok(self.more.clone())
    }

    fn done(&mut self, _: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        assert_eq!((mode, payload), (self.mode, &self.done[..]));
        Ok(self.secrets.clone())
    }
}

fn blob_of(payload: &Bytes) -> Bytes {
    Decoder::new(payload).get().unwrap()
}

#[test]
fn our_machines_do_a_real_cephx_handshake_as_the_real_ones_did() {
    for c in captures() {
        let (up, down) = (c.frames(&c.c2s, true), c.frames(&c.s2c, false));
        let hello = Hello::read(&mut Decoder::new(&c.find(&down, Tag::Hello).0)).unwrap();
        let kind = EntityType::from_wire(hello.entity).unwrap();
        let request =
            AuthRequestFrame::read(&mut Decoder::new(&c.find(&up, Tag::AuthRequest).0)).unwrap();
        let asked = blob_of(&c.find(&down, Tag::AuthReplyMore).0);
        let more = blob_of(&c.find(&up, Tag::AuthRequestMore).0);
        let done = AuthDone::read(&mut Decoder::new(&c.find(&down, Tag::AuthDone).0)).unwrap();
        let (client_ident, client_end) = c.find(&up, Tag::ClientIdent);
        let (server_ident, server_end) = c.find(&down, Tag::ServerIdent);
        let client = Ident::read_client(&mut Decoder::new(&client_ident)).unwrap();
        let server = Ident::read_server(&mut Decoder::new(&server_ident)).unwrap();
        let wanted: Vec<Mode> = request.modes.iter().filter_map(|m| Mode::from_wire(*m)).collect();
        let list: Vec<&str> = wanted.iter().map(|m| m.name()).collect();
        let modes = ModePolicy::all(&list.join(" ").parse().unwrap());
        for chunk in [1, 13, 100_000] {
            // Our server.
            let e = Endpoint {
                required: server.required,
                methods: vec![METHOD_CEPHX],
                ..Endpoint::new(kind, server.gid, server.addrs.clone())
            };
            let mut m = Connection::accept(Arc::new(e), hello.peer_addr.addr.unwrap(), NOW)
                .with_global_seq(server.global_seq);
            let (mut buf, mut got) = (BytesMut::new(), Vec::new());
            for part in c.c2s.chunks(chunk) {
                buf.extend_from_slice(part);
                loop {
                    let mut events = Vec::new();
                    m.receive(NOW, &mut buf, &mut events)
                        .unwrap_or_else(|e| panic!("{}: {e}", c.name));
                    let mut answered = false;
                    for e in events {
                        let answer = match e {
                            Event::Auth(a) => {
                                assert_eq!(
                                    (a.method, a.mode as u32, &a.payload),
                                    (2, done.mode, &request.payload)
                                );
                                AuthAnswer::More(asked.clone())
                            }
                            Event::AuthMore(p) => {
                                assert_eq!(p, more);
                                AuthAnswer::Done(Granted {
                                    kind: EntityType::Client,
                                    id: "admin".into(),
                                    global_id: done.global_id,
                                    payload: done.payload.clone(),
                                    secrets: c.secrets.clone(),
                                })
                            }
                            e => {
                                got.push(e);
                                continue;
                            }
                        };
                        m.answer_auth(answer).unwrap();
                        answered = true;
                    }
                    if !answered {
                        break;
                    }
                }
            }
            let mut o = m.take_output();
            let o = o.copy_to_bytes(o.len().min(server_end));
            assert_eq!(hex(&o), hex(&c.s2c[..server_end]), "{} in chunks of {chunk}", c.name);
            let received: Vec<_> = got
                .iter()
                .filter_map(
                    |e| if let Event::Message(m) = e { Some(m.message.clone()) } else { None },
                )
                .collect();
            let sent: Vec<Frame> = up.iter().map(|(f, _)| f.clone()).collect();
            assert_eq!(received, messages(&sent), "{}", c.name);
            let peer = super::wire::Wire::established(&got).unwrap();
            assert_eq!(
                (peer.method, peer.mode as u32, peer.global_id),
                (METHOD_CEPHX, done.mode, done.global_id)
            );

            // Our client.
            let e = Endpoint {
                required: client.required,
                nonce: client.addrs.msgr2().nonce,
                modes: modes.clone(),
                ..Endpoint::new(EntityType::Client, client.gid, AddrVec::default())
            };
            let policy = match client.flags {
                FLAG_LOSSY => Policy::Lossy,
                _ => Policy::Lossless(Session::new(client.cookie)),
            };
            let credentials = Box::new(Replay {
                start: AuthStart { method: METHOD_CEPHX, payload: request.payload.clone() },
                more: more.clone(),
                asked: asked.clone(),
                done: done.payload.clone(),
                mode: Mode::from_wire(done.mode).unwrap(),
                secrets: c.secrets.clone(),
            });
            let target = Target {
                addr: client.target.unwrap(),
                entity: kind,
                credentials,
                global_seq: client.global_seq,
                policy,
            };
            let mut m = Connection::connect(Arc::new(e), target, NOW);
            let (mut buf, mut got) = (BytesMut::new(), Vec::new());
            for part in c.s2c.chunks(chunk) {
                buf.extend_from_slice(part);
                m.receive(NOW, &mut buf, &mut got).unwrap_or_else(|e| panic!("{}: {e}", c.name));
            }
            let mut o = m.take_output();
            let o = o.copy_to_bytes(o.len().min(client_end));
            assert_eq!(hex(&o), hex(&c.c2s[..client_end]), "{} in chunks of {chunk}", c.name);
            let received: Vec<_> = got
                .iter()
                .filter_map(
                    |e| if let Event::Message(m) = e { Some(m.message.clone()) } else { None },
                )
                .collect();
            let sent: Vec<Frame> = down.iter().map(|(f, _)| f.clone()).collect();
            assert_eq!(received, messages(&sent), "{}", c.name);
        }
    }
}
