//! CPU per message in crc and secure mode: one thread encodes, "sends" through memory, decodes.
//! `cargo run --release -p spirula-messenger --example modes`

#![allow(clippy::disallowed_methods, reason = "it measures")]

use bytes::{Buf, Bytes, BytesMut};
use spirula_messages::Message;
use spirula_messenger::auth::{
    AuthAnswer, AuthStart, BadMethod, Credentials, Granted, METHOD_CEPHX, Mode, ModePolicy, Secret,
    Secrets,
};
use spirula_messenger::{Connection, Endpoint, Event, Policy, Target, Wanted};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: Duration = Duration::from_secs(1);

fn secrets(mode: Mode) -> Secrets {
    let connection_secret: Vec<u8> =
        if mode == Mode::Secure { (0..64).collect() } else { Vec::new() };
    Secrets {
        session_key: Secret::new(vec![1; 16]),
        connection_secret: Secret::new(connection_secret),
    }
}

#[derive(Debug)]
struct Known;

impl Credentials for Known {
    fn request(&mut self) -> Result<AuthStart, String> {
        Ok(AuthStart { method: METHOD_CEPHX, payload: Bytes::new() })
    }
    fn bad_method(&mut self, _: &BadMethod) -> Option<AuthStart> {
        None
    }
    fn more(&mut self, _: &[u8]) -> Result<Bytes, String> {
        Err("one round only".into())
    }
    fn done(&mut self, _: u64, mode: Mode, _: &[u8]) -> Result<Secrets, String> {
        Ok(secrets(mode))
    }
}

fn open(mode: Mode) -> Result<(Connection, Connection), Box<dyn std::error::Error>> {
    let addr = EntityAddr::v2("10.0.0.1:1".parse()?, 1);
    let modes = ModePolicy::all(&mode.name().parse()?);
    let endpoint = Arc::new(Endpoint {
        methods: vec![METHOD_CEPHX],
        modes,
        ..Endpoint::new(EntityType::Osd, 1, AddrVec::one(addr))
    });
    let target = Target {
        addr,
        entity: EntityType::Osd,
        credentials: Box::new(Known),
        global_seq: 1,
        policy: Policy::Lossy,
    };
    let mut client = Connection::connect(endpoint.clone(), target, NOW);
    let mut server = Connection::accept(endpoint, "10.0.0.1:2".parse()?, NOW);
    let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
    while !client.is_open() || !server.is_open() {
        up.extend_from_slice(&drain(&mut client));
        let mut events = Vec::new();
        server.receive(NOW, &mut up, &mut events)?;
        if let Some(Event::Auth(a)) = events.pop() {
            let (kind, id, payload) = (EntityType::Osd, "1".to_owned(), Bytes::new());
            let granted = Granted { kind, id, global_id: 1, payload, secrets: secrets(a.mode) };
            server.answer_auth(AuthAnswer::Done(granted))?;
        }
        down.extend_from_slice(&drain(&mut server));
        client.receive(NOW, &mut down, &mut events)?;
    }
    Ok((client, server))
}

fn drain(c: &mut Connection) -> Bytes {
    let mut o = c.take_output();
    o.copy_to_bytes(o.len())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for size in [4 << 10, 4 << 20] {
        for mode in [Mode::Crc, Mode::Secure] {
            let (mut client, mut server) = open(mode)?;
            let message = Message {
                kind: 42,
                front: Bytes::from(vec![3; 210]),
                data: Bytes::from(vec![5; size]),
                ..Message::default()
            };
            let rounds = (2 << 30) / (size + (32 << 10));
            let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
            let mut pool = vec![0; size + (1 << 12)];
            for _ in 0..rounds {
                let t = Instant::now();
                client.send(message.clone(), None)?;
                let mut out = client.take_output();
                sending += t.elapsed();
                // What the socket does, twice: not counted.
                let mut wire = BytesMut::with_capacity(out.len());
                while out.has_remaining() {
                    let n = out.chunk().len();
                    wire.extend_from_slice(out.chunk());
                    out.advance(n);
                }
                let mut buf = wire.split_to(wire.len().min(1000));
                let mut events = Vec::new();
                let t = Instant::now();
                server.receive(NOW, &mut buf, &mut events)?;
                receiving += t.elapsed();
                if let Wanted::Payload { len, .. } = server.wanted() {
                    let have = buf.len();
                    pool.truncate(0);
                    pool.extend_from_slice(&buf.split());
                    pool.extend_from_slice(&wire.split_to(len - have));
                    let t = Instant::now();
                    server.open_payload(&mut pool)?;
                    receiving += t.elapsed();
                    let payload = Bytes::from(std::mem::take(&mut pool));
                    let t = Instant::now();
                    let _ = server.receive_payload(payload);
                    server.receive(NOW, &mut wire, &mut events)?;
                    receiving += t.elapsed();
                } else {
                    buf.unsplit(wire);
                    let t = Instant::now();
                    server.receive(NOW, &mut buf, &mut events)?;
                    receiving += t.elapsed();
                }
                assert_eq!(events.len(), 1);
            }
            let per = |d: Duration| d.as_nanos() as f64 / rounds as f64 / 1000.0;
            println!(
                "{mode:>6} {size:>8} bytes: send {:9.2} us, receive {:9.2} us",
                per(sending),
                per(receiving)
            );
        }
    }
    Ok(())
}
