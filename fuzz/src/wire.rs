//! The msgr2 state machines under a peer that says anything.
//!
//! Input: `[flags][honest steps][bytes per read][what the peer then says]`. The peer begins as an
//! honest one, so that every state is reached; what follows is raw bytes, or frames
//! `[tag u8][length u16][payload]` that are framed properly, checksums included, so that
//! the fuzzer gets at what is inside. A message's payload is `[header 41][front length u8]
//! [front][data]`.

use bytes::{Buf, Bytes, BytesMut};
use spirula_encoding::{Decoder, UTime};
use spirula_messages::Message;
use spirula_messenger::auth::{AuthAnswer, NoneRequest};
use spirula_messenger::frame::{Codec, Segments, Tag};
use spirula_messenger::{
    Connection, Endpoint, Event, Policy, ProtocolError, Session, SessionAnswer, Sessions, Target, Verdict, Wanted,
};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::sync::Arc;
use std::time::Duration;

/// Frames, not raw bytes.
const FRAMES: u8 = 1;
/// Both sides speak 2.1 frames only if this is not set.
const OLD_FRAMES: u8 = 2;
/// Sessions survive lost connections.
const LOSSLESS: u8 = 4;
/// Hand over big payloads in buffers of their own.
const DIRECT: u8 = 8;
/// Refuse whoever asks to be let in.
const REFUSE: u8 = 16;
/// Continue a session that exists.
const RESUME: u8 = 32;
/// Whoever has a long name must say more.
const MORE: u8 = 64;

const NOW: Duration = Duration::from_secs(100);

/// Which side is tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that was called.
    Accepting,
    /// The one that calls.
    Connecting,
}

struct Pair {
    flags: u8,
    client: Connection,
    server: Connection,
    sessions: Sessions,
}

fn addr(last: u8, nonce: u32) -> EntityAddr {
    EntityAddr::v2(([10, 0, 0, last], 6800).into(), nonce)
}

fn endpoint(flags: u8, number: u8) -> Arc<Endpoint> {
    let mut e = Endpoint::new(EntityType::Osd, i64::from(number), AddrVec::one(addr(number, u32::from(number))));
    e.frames_2_1 = flags & OLD_FRAMES == 0;
    if flags & LOSSLESS != 0 {
        e.lossless = vec![EntityType::Osd];
    }
    e.limits.direct_payload = 64;
    Arc::new(e)
}

/// Moves what one machine wrote to the other, `chunk` bytes at a time.
fn feed(
    to: &mut Connection,
    buf: &mut BytesMut,
    mut bytes: &[u8],
    chunk: usize,
    direct: bool,
    answer: &mut dyn FnMut(&mut Connection, Vec<Event>) -> Result<bool, ProtocolError>,
) -> Result<(), ProtocolError> {
    while !bytes.is_empty() {
        if direct
            && let Wanted::Payload { len: n, .. } = to.wanted()
            && buf.len() < n
            && buf.len() + bytes.len() >= n
        {
            let (now, later) = bytes.split_at(n - buf.len());
            buf.extend_from_slice(now);
            bytes = later;
            assert_eq!(to.receive_payload(buf.split().freeze()), None, "a payload that was wanted \
                is taken");
        } else {
            let (now, later) = bytes.split_at(chunk.min(bytes.len()));
            buf.extend_from_slice(now);
            bytes = later;
        }
        loop {
            let mut events = Vec::new();
            let result = to.receive(NOW, buf, &mut events);
            let asked = answer(to, events)?;
            result?;
            if !asked {
                break;
            }
        }
    }
    Ok(())
}

/// Answers a machine's questions; true if there was one.
fn answer(flags: u8, sessions: &mut Sessions, c: &mut Connection, events: Vec<Event>) -> Result<bool, ProtocolError> {
    let mut asked = false;
    for e in events {
        match e {
            Event::Auth(a) => {
                asked = true;
                let reply = match NoneRequest::read(&a.payload) {
                    _ if flags & REFUSE != 0 => AuthAnswer::Bad(-13),
                    // One more round than the method has: the accepting side's path for it.
                    Ok(who) if flags & MORE != 0 && who.id.len() > 1 => AuthAnswer::More(a.payload),
                    Ok(who) => {
                        let gid = who.global_id;
                        AuthAnswer::Done(who.granted(gid))
                    }
                    Err(_) => AuthAnswer::Bad(-22),
                };
                c.answer_auth(reply)?;
            }
            Event::AuthMore(payload) => {
                asked = true;
                c.answer_auth(if payload.len() % 2 == 0 { AuthAnswer::Bad(-13) } else { AuthAnswer::More(payload) })?;
            }
            Event::Session(ask) => {
                asked = true;
                let mut more = Vec::new();
                let reply = match sessions.ask(&ask, 0x5eed) {
                    Verdict::Answer(a) | Verdict::PeerReset(a) => a,
                    Verdict::Take(_) => SessionAnswer::Refuse,
                };
                c.answer_session(reply, &mut more)?;
                answer(flags, sessions, c, more)?;
            }
            Event::Established(_)
            | Event::Message(_)
            | Event::TooLarge { .. }
            | Event::SessionReset { .. }
            | Event::KeepaliveAck(_) => {}
        }
    }
    Ok(asked)
}

fn drain(c: &mut Connection) -> Vec<u8> {
    let mut out = c.take_output();
    out.copy_to_bytes(out.len()).to_vec()
}

/// Frames the records of `script`.
fn framed(script: &[u8], codec: Codec) -> Vec<u8> {
    let mut d = Decoder::new(script);
    let mut out = BytesMut::new();
    while let (Ok(tag), Ok(n)) = (d.u8(), d.u16()) {
        let payload = d.take(usize::from(n).min(d.remaining())).unwrap_or_default();
        let tag = Tag::from_wire(tag).or(Tag::from_wire(1 + tag % 22)).unwrap_or(Tag::Message);
        if tag == Tag::Message {
            let mut header = [0; 41];
            let n = payload.len().min(41);
            header[..n].copy_from_slice(&payload[..n]);
            let rest = payload.get(41..).unwrap_or_default();
            let (len, rest) = rest.split_first().unwrap_or((&0, &[]));
            let (front, data) = rest.split_at(usize::from(*len).min(rest.len()));
            frame(codec, tag, [&header, front, &[]], data, &mut out);
        } else {
            frame(codec, tag, [payload, &[], &[]], &[], &mut out);
        }
    }
    out.to_vec()
}

/// Appends one frame to `out`.
pub fn frame(codec: Codec, tag: Tag, head: [&[u8]; 3], data: &[u8], out: &mut BytesMut) {
    let end = codec.encode(tag, &Segments { head, data: &Bytes::copy_from_slice(data), data_crc: None }, out);
    out.extend_from_slice(data);
    out.extend_from_slice(end.as_slice());
}

/// Runs one input against one side.
pub fn run(side: Side, input: &[u8]) {
    let [flags, honest, chunk, script @ ..] = input else { return };
    let flags = *flags;
    let session = Session::new(0xc00c);
    let policy = if flags & LOSSLESS != 0 { Policy::Lossless(session) } else { Policy::Lossy };
    let target = Target { policy, ..Target::none(addr(2, 2), EntityType::Osd, EntityType::Osd, "1", 1) };
    let mut pair = Pair {
        flags,
        client: Connection::connect(endpoint(flags, 1), target, NOW),
        server: Connection::accept(endpoint(flags, 2), ([10, 0, 0, 1], 50000).into(), NOW),
        sessions: Sessions::new(addr(2, 2)),
    };
    if flags & (RESUME | LOSSLESS) == RESUME | LOSSLESS {
        pair = resumed(pair);
    }
    let mut up = BytesMut::new();
    let mut down = BytesMut::new();
    pair.honest(usize::from(honest % 16), &mut up, &mut down);
    let chunk = usize::from(*chunk) + 1;
    let bytes = if flags & FRAMES != 0 {
        framed(script, if flags & OLD_FRAMES == 0 { Codec::Crc1 } else { Codec::Crc0 })
    } else {
        script.to_vec()
    };
    let Pair { mut client, mut server, mut sessions, .. } = pair;
    let (tested, buf) = match side {
        Side::Accepting => (&mut server, &mut up),
        Side::Connecting => (&mut client, &mut down),
    };
    let _ = tested.send(Message { kind: 41, front: Bytes::from_static(b"front"), ..Message::default() }, None);
    tested.keepalive(UTime { sec: 1, nsec: 2 });
    let result = feed(tested, buf, &bytes, chunk, flags & DIRECT != 0, &mut |c, e| answer(flags, &mut sessions, c, e));
    drain(tested);
    if result.is_err() {
        assert!(tested.is_closed(), "an error closes the connection");
        assert!(tested.receive(NOW, buf, &mut Vec::new()).is_err(), "and for good");
    } else {
        let _ = tested.tick(NOW + Duration::from_secs(3600));
    }
    tested.close();
}

impl Pair {
    /// Both sides behave, for so many deliveries.
    fn honest(&mut self, steps: usize, up: &mut BytesMut, down: &mut BytesMut) {
        let Self { flags, client, server, sessions } = self;
        for step in 0..steps {
            let (from, to, buf) = if step % 2 == 0 {
                (&mut *client, &mut *server, &mut *up)
            } else {
                (&mut *server, &mut *client, &mut *down)
            };
            let bytes = drain(from);
            if feed(to, buf, &bytes, 1 << 20, false, &mut |c, e| answer(*flags, sessions, c, e)).is_err() {
                return;
            }
        }
    }
}

/// A pair whose session began on an earlier connection.
fn resumed(mut first: Pair) -> Pair {
    first.honest(12, &mut BytesMut::new(), &mut BytesMut::new());
    let flags = first.flags;
    let (client, server) = (first.client.close(), first.server.close());
    if let Some(session) = server {
        let key = spirula_messenger::SessionKey { name: spirula_types::EntityName::osd(1), addr: addr(1, 1) };
        first.sessions.live(key.clone(), 1, false, true);
        first.sessions.park(key, 1, session, NOW);
    }
    let policy = client.map_or(Policy::Lossy, Policy::Lossless);
    let target = Target { policy, global_seq: 2, ..Target::none(addr(2, 2), EntityType::Osd, EntityType::Osd, "1", 1) };
    Pair {
        flags,
        client: Connection::connect(endpoint(flags, 1), target, NOW),
        server: Connection::accept(endpoint(flags, 2), ([10, 0, 0, 1], 50001).into(), NOW),
        sessions: first.sessions,
    }
}
