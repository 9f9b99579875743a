//! The attack table: every way in that is none, each refused for its own reason.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use spirula_auth::caps::{Args, MonAccess, MonCaps, OsdAccess, OsdCaps};
use spirula_auth::client::{Authorizer, Client};
use spirula_auth::db::{AuthDb, CapsByService, User};
use spirula_auth::monitor::{Admitted, Authority, Exchange, Policy, Session};
use spirula_auth::rotating::ServiceKeys;
use spirula_auth::service::{Authorized, ServiceExchange, ServiceStep};
use spirula_auth::ticket::TicketKey;
use spirula_auth::{
    AuthError, CryptoKey, EntityId, Entropy, KeyType, KeyTypes, MAX_PAYLOAD, MAX_TICKET,
    METHOD_NONE, Service, Services, check_method,
};
use spirula_encoding::UTime;

fn seeded(mut seed: u64) -> impl FnMut(&mut [u8]) {
    move |out: &mut [u8]| {
        for byte in out {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *byte = (z ^ (z >> 31)) as u8;
        }
    }
}

fn at(sec: u32) -> UTime {
    UTime { sec, nsec: 0 }
}

const START: u32 = 1_000_000;

/// Random bytes, repeatable.
type Random = Box<dyn FnMut(&mut [u8])>;

/// A cluster: users, service keys, a clock.
struct Cluster {
    db: AuthDb,
    keys: ServiceKeys,
    policy: Policy,
    now: u32,
    next_id: u64,
    entropy: Random,
}

fn id(name: &str) -> EntityId {
    name.parse().unwrap()
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut entropy: Random = Box::new(seeded(seed));
        let mut db = AuthDb::default();
        for (name, t, mon) in [
            ("client.a", KeyType::Aes, "allow r"),
            ("client.b", KeyType::Aes256k, "allow r"),
            ("client.nomon", KeyType::Aes, ""),
            ("osd.0", KeyType::Aes256k, "allow profile osd"),
            ("osd.9", KeyType::Aes, "allow profile osd"),
            ("mgr.x", KeyType::Aes256k, "allow profile mgr"),
        ] {
            let mut caps = CapsByService::from([("osd".to_owned(), "allow r pool=p".to_owned())]);
            if !mon.is_empty() {
                caps.insert("mon".into(), mon.into());
            }
            let key = CryptoKey::generate(t, at(1), &mut entropy);
            db.put(id(name), User { key, pending_key: None, caps });
        }
        let mut keys = ServiceKeys::default();
        for (service, k) in keys.due(at(START), Policy::default().lifetimes, &mut entropy) {
            keys.set(service, k);
        }
        Self { db, keys, policy: Policy::default(), now: START, next_id: 4000, entropy }
    }

    fn client(&self, name: &str) -> Client {
        Client::new(id(name), self.db.get(&id(name)).unwrap().key.clone(), Services::USUAL)
    }

    fn authority(&self) -> Authority<'_> {
        Authority { db: &self.db, keys: &self.keys, policy: self.policy, now: at(self.now) }
    }

    /// Hello and proof at the monitor.
    fn prove(
        &mut self,
        hello: &[u8],
        proof: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<Admitted, AuthError> {
        let (exchange, more) = Exchange::start(hello, &mut self.entropy)?;
        let authority =
            Authority { db: &self.db, keys: &self.keys, policy: self.policy, now: at(self.now) };
        let next = &mut self.next_id;
        let mut draw = || {
            *next += 1;
            Some(*next)
        };
        exchange.finish(&proof(&more), true, &mut draw, &authority, &mut self.entropy)
    }

    /// A whole honest handshake, with the proof changed by `change`.
    fn connect_with(
        &mut self,
        client: &mut Client,
        change: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<Session, AuthError> {
        let hello = client.hello();
        let mut entropy = seeded(self.next_id ^ 0x55);
        let admitted =
            self.prove(&hello, |more| change(client.answer(more, &mut entropy).unwrap()))?;
        client.finish(admitted.session.global_id, &admitted.payload, true, at(self.now))?;
        Ok(admitted.session)
    }

    fn connect(&mut self, client: &mut Client) -> Result<Session, AuthError> {
        self.connect_with(client, |p| p)
    }

    fn connected(&mut self, name: &str) -> (Client, Session) {
        let mut client = self.client(name);
        let session = self.connect(&mut client).unwrap();
        (client, session)
    }

    fn handle(&mut self, session: &mut Session, payload: &[u8]) -> Result<Vec<u8>, AuthError> {
        let authority =
            Authority { db: &self.db, keys: &self.keys, policy: self.policy, now: at(self.now) };
        session.handle(payload, &authority, &mut self.entropy)
    }

    fn step(
        &mut self,
        service: Service,
        x: &mut ServiceExchange,
        payload: &[u8],
    ) -> Result<ServiceStep, AuthError> {
        x.step(payload, true, self.keys.get(service).unwrap(), at(self.now), &mut self.entropy)
    }

    /// A whole exchange with a service, both payloads changed.
    fn authorize(
        &mut self,
        client: &Client,
        service: Service,
        first: impl FnOnce(Vec<u8>) -> Vec<u8>,
        second: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<Box<Authorized>, AuthError> {
        let mut entropy = seeded(77);
        let mut mine = client.authorizer(service, at(START), &mut entropy).unwrap();
        let mut x = ServiceExchange::new(service);
        let hello = first(mine.hello());
        let ServiceStep::More(challenge) = self.step(service, &mut x, &hello)? else {
            panic!("no challenge")
        };
        let answer = second(mine.answer(&challenge, &mut entropy).unwrap());
        let ServiceStep::Done(done) = self.step(service, &mut x, &answer)? else {
            panic!("challenged twice")
        };
        mine.finish(&done.payload, true)?;
        Ok(done)
    }

    fn pass_time(&mut self, seconds: u32) {
        self.now += seconds;
        for (service, k) in self.keys.due(at(self.now), self.policy.lifetimes, &mut self.entropy) {
            self.keys.set(service, k);
        }
    }
}

#[derive(Default)]
struct Table {
    attempts: usize,
}

impl Table {
    /// The attempt must have failed, and for the reason that `reason` recognises.
    fn refused<T>(
        &mut self,
        name: &str,
        result: Result<T, AuthError>,
        reason: impl FnOnce(&AuthError) -> bool,
    ) {
        self.attempts += 1;
        let Err(e) = result else { panic!("LET IN: {name}") };
        println!("{:3} {name}: {e} (errno {})", self.attempts, e.errno());
        assert!(reason(&e), "{name}: refused for another reason: {e:?}");
    }

    fn denied(&mut self, name: &str, allowed: bool) {
        self.attempts += 1;
        println!(
            "{:3} {name}: {}",
            self.attempts,
            if allowed { "ALLOWED" } else { "no capability" }
        );
        assert!(!allowed, "ALLOWED: {name}");
    }
}

macro_rules! is {
    ($pattern:pat) => {
        |e: &AuthError| matches!(e, $pattern)
    };
}

fn put(mut bytes: Vec<u8>, from: usize, with: &[u8]) -> Vec<u8> {
    bytes[from..from + with.len()].copy_from_slice(with);
    bytes
}

/// The ticket's bytes within an authorizer.
fn ticket_range(authorizer: &[u8]) -> std::ops::Range<usize> {
    26..26 + u32::from_le_bytes(authorizer[22..26].try_into().unwrap()) as usize
}

#[test]
fn every_attempt_is_refused_and_named() {
    let mut t = Table::default();
    honest_ways_work();
    hellos(&mut t);
    proofs(&mut t);
    reclaims(&mut t);
    sessions(&mut t);
    services(&mut t);
    fakes(&mut t);
    capabilities(&mut t);
    println!("{} attempts, all refused", t.attempts);
    assert!(t.attempts >= 65);
}

/// The canary: what is refused below fails for its own reason, not because nothing works.
fn honest_ways_work() {
    let mut c = Cluster::new(1);
    for name in ["client.a", "client.b", "osd.0"] {
        let (mut client, _) = c.connected(name);
        let done = c.authorize(&client, Service::Osd, |p| p, |p| p).unwrap();
        assert_eq!((done.entity.to_string().as_str(), done.global_id), (name, client.global_id()));
        assert_eq!(done.caps, "allow r pool=p");
        // Again, with the ticket: the same number.
        let gid = client.global_id();
        let mut session = c.connect(&mut client).unwrap();
        assert_eq!(session.global_id, gid);
        // Service tickets, then the AUTH ticket are renewed on the open session.
        for wait in [2800, 60 * 3600] {
            c.pass_time(wait);
            let ask = client.renewal(at(c.now), &mut seeded(u64::from(wait))).unwrap().unwrap();
            let answer = c.handle(&mut session, &ask).unwrap();
            client.renewed(&answer, at(c.now)).unwrap();
            assert_eq!(client.renewal(at(c.now), &mut seeded(3)).unwrap(), None);
        }
        if name == "osd.0" {
            let answer = c.handle(&mut session, &Client::service_keys_request()).unwrap();
            assert_eq!(&client.service_keys(&answer).unwrap(), c.keys.get(Service::Osd).unwrap());
        }
        c = Cluster::new(2);
    }
    // Monitors among themselves.
    let shared = CryptoKey::generate(KeyType::Aes256k, at(1), &mut seeded(4));
    let mut mine =
        Authorizer::among_monitors(&id("mon.b"), 0, &shared, at(START), &mut seeded(5)).unwrap();
    let keys = TicketKey::of_monitors(&shared);
    let mut x = ServiceExchange::new(Service::Mon);
    let ServiceStep::More(challenge) =
        x.step(&mine.hello(), true, &keys, at(START), &mut seeded(6)).unwrap()
    else {
        panic!()
    };
    let answer = mine.answer(&challenge, &mut seeded(7)).unwrap();
    let ServiceStep::Done(done) = x.step(&answer, true, &keys, at(START), &mut seeded(8)).unwrap()
    else {
        panic!()
    };
    let connected = mine.finish(&done.payload, true).unwrap();
    assert_eq!(connected.connection_secret, done.connection_secret);
    assert_eq!(done.entity, id("mon.b"));
    // A pending key is good, and is noticed.
    let old = c.db.get(&id("client.a")).unwrap().key.clone();
    c.db.get_or_create_pending(
        &id("client.a"),
        CryptoKey::generate(KeyType::Aes256k, at(2), &mut seeded(9)),
    )
    .unwrap();
    let pending = c.db.get(&id("client.a")).unwrap().pending_key.clone().unwrap();
    for (key, used_pending) in [(old, false), (pending, true)] {
        let mut client = Client::new(id("client.a"), key, Services::USUAL);
        let hello = client.hello();
        let admitted = c.prove(&hello, |m| client.answer(m, &mut seeded(10)).unwrap()).unwrap();
        assert_eq!(admitted.used_pending_key, used_pending);
    }
}

fn hellos(t: &mut Table) {
    let c = Cluster::new(1);
    let good = c.client("client.a").hello();
    let start = |bytes: &[u8]| Exchange::start(bytes, &mut seeded(1));
    assert!(start(&good).is_ok());
    t.refused(
        "method none where cephx is required",
        check_method(METHOD_NONE, false),
        is!(AuthError::Method { .. }),
    );
    t.refused("method 0", check_method(0, false), is!(AuthError::Method { .. }));
    t.refused("method gss", check_method(4, false), is!(AuthError::Method { .. }));
    t.refused("empty hello", start(&[]), is!(AuthError::Malformed { .. }));
    for cut in 1..good.len() {
        assert!(start(&good[..cut]).is_err());
    }
    t.refused("hello cut short", start(&good[..good.len() - 1]), is!(AuthError::Malformed { .. }));
    t.refused(
        "bytes after the hello",
        start(&[&good[..], b"x"].concat()),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "an authorizer instead of a hello",
        start(&put(good.clone(), 0, &[1])),
        is!(AuthError::Mode { found: 1, .. }),
    );
    t.refused(
        "hello of an unknown mode",
        start(&put(good.clone(), 0, &[99])),
        is!(AuthError::Mode { .. }),
    );
    t.refused(
        "hello of an unknown entity type",
        start(&put(good.clone(), 1, &[3])),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "entity type 264, which is client in its low byte",
        start(&put(good.clone(), 1, &[8, 1])),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "entity id that breaks a keyring's lines",
        start(&put(good.clone(), 9, b"\n")),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "entity id that is no text",
        start(&put(good.clone(), 9, &[0xff])),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "entity id of 4 GiB",
        start(&put(good.clone(), 5, &[0xff; 4])),
        is!(AuthError::Malformed { .. }),
    );
    t.refused("hello of a mebibyte", start(&vec![10; 1 << 20]), is!(AuthError::Oversize { .. }));
}

fn proofs(t: &mut Table) {
    let mut c = Cluster::new(1);
    let mut with_key = |name: &str, key: CryptoKey| {
        let mut client = Client::new(id(name), key, Services::USUAL);
        c.connect(&mut client)
    };
    let (a, b) = {
        let c = Cluster::new(1);
        (
            c.db.get(&id("client.a")).unwrap().key.clone(),
            c.db.get(&id("client.b")).unwrap().key.clone(),
        )
    };
    let random = |t, seed| CryptoKey::generate(t, at(1), &mut seeded(seed));
    t.refused(
        "wrong key",
        with_key("client.a", random(KeyType::Aes, 5)),
        is!(AuthError::WrongProof(_)),
    );
    t.refused(
        "wrong aes256k key",
        with_key("client.b", random(KeyType::Aes256k, 5)),
        is!(AuthError::WrongProof(_)),
    );
    t.refused(
        "unknown entity",
        with_key("client.nobody", a.clone()),
        is!(AuthError::UnknownEntity(_)),
    );
    t.refused(
        "another entity's key",
        with_key("client.b", a.clone()),
        is!(AuthError::WrongProof(_)),
    );
    t.refused(
        "a client's key for a daemon",
        with_key("osd.0", b.clone()),
        is!(AuthError::WrongProof(_)),
    );
    let lowered = CryptoKey::new(KeyType::Aes, at(1), &b.secret()[..16]).unwrap();
    t.refused(
        "downgrade: an aes256k key cut to an aes key",
        with_key("client.b", lowered),
        is!(AuthError::WrongProof(_)),
    );
    t.refused(
        "a user without mon caps",
        with_key("client.nomon", Cluster::new(1).db.get(&id("client.nomon")).unwrap().key.clone()),
        is!(AuthError::NoMonCaps(_)),
    );
    t.refused(
        "downgrade: a daemon with an aes key",
        with_key("osd.9", Cluster::new(1).db.get(&id("osd.9")).unwrap().key.clone()),
        is!(AuthError::KeyTypeRefused { .. }),
    );

    c.policy.client_keys = KeyTypes::STRONG;
    let mut client = c.client("client.a");
    t.refused(
        "downgrade: a client's aes key where only aes256k is allowed",
        c.connect(&mut client),
        is!(AuthError::KeyTypeRefused { .. }),
    );
    c.policy.client_keys = KeyTypes::ALL;

    // A proof that was overheard.
    let mut client = c.client("client.a");
    let mut heard = Vec::new();
    c.connect_with(&mut client, |p| {
        heard.clone_from(&p);
        p
    })
    .unwrap();
    let hello = c.client("client.a").hello();
    t.refused("replayed proof", c.prove(&hello, |_| heard.clone()), is!(AuthError::WrongProof(_)));
    let mut changed =
        |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, reason: &dyn Fn(&AuthError) -> bool| {
            let mut client = c.client("client.a");
            let result = c.connect_with(&mut client, change);
            t.refused(name, result, reason);
        };
    changed("proof of zero", &|p| put(p, 11, &[0; 8]), &is!(AuthError::WrongProof(_)));
    changed(
        "proof with a flipped bit",
        &|p| {
            let b = p[11] ^ 1;
            put(p, 11, &[b])
        },
        &is!(AuthError::WrongProof(_)),
    );
    changed(
        "client challenge changed under the proof",
        &|p| put(p, 3, &[7; 8]),
        &is!(AuthError::WrongProof(_)),
    );
    changed("no proof at all", &|_| Vec::new(), &is!(AuthError::Malformed { .. }));
    changed("proof cut short", &|p| p[..p.len() - 1].to_vec(), &is!(AuthError::Malformed { .. }));
    changed(
        "bytes after the proof",
        &|p| [&p[..], b"x"].concat(),
        &is!(AuthError::Malformed { .. }),
    );
    changed(
        "proof of version 0",
        &|p| put(p, 2, &[0]),
        &is!(AuthError::Version { version: 0, .. }),
    );
    changed(
        "proof of version 9",
        &|p| put(p, 2, &[9]),
        &is!(AuthError::Version { version: 9, .. }),
    );
    changed(
        "tickets asked for before the proof",
        &|p| put(p, 0, &[0, 2]),
        &is!(AuthError::Request(0x200)),
    );
    changed(
        "service keys asked for before the proof",
        &|p| put(p, 0, &[0, 4]),
        &is!(AuthError::Request(0x400)),
    );
    changed("unknown request", &|p| put(p, 0, &[0, 3]), &is!(AuthError::Request(0x300)));
    changed(
        "proof of a mebibyte",
        &|p| [&p[..], &[0; 1 << 20]].concat(),
        &is!(AuthError::Oversize { .. }),
    );
    changed("old ticket of 4 GiB", &|p| put(p, 28, &[0xff; 4]), &is!(AuthError::Malformed { .. }));
    changed(
        "old ticket too long for any ticket",
        &|p| {
            [&p[..28], &(MAX_TICKET as u32 + 1).to_le_bytes(), &vec![0; MAX_TICKET + 1], &[0; 4]]
                .concat()
        },
        &is!(AuthError::Oversize { .. }),
    );
    changed(
        "ticket blob of an unknown version",
        &|p| put(p, 19, &[2]),
        &is!(AuthError::Version { .. }),
    );

    let mut old = c.client("client.a");
    c.db.rotate(&id("client.a"), random(KeyType::Aes, 8)).unwrap();
    t.refused("a key that was rotated away", c.connect(&mut old), is!(AuthError::WrongProof(_)));
    let mut gone = c.client("client.b");
    c.db.remove(&id("client.b"));
    t.refused("a user who was removed", c.connect(&mut gone), is!(AuthError::UnknownEntity(_)));
}

fn reclaims(t: &mut Table) {
    let mut c = Cluster::new(1);
    let (mut a, _) = c.connected("client.a");
    let (mut b, _) = c.connected("client.b");
    let hello_as = |name: &str, gid: u64| {
        let mut h = Cluster::new(1).client(name).hello();
        let n = h.len();
        h[n - 8..].copy_from_slice(&gid.to_le_bytes());
        h
    };
    let victim = a.global_id();
    // client.b's own key, the global id of client.a.
    let mut fresh = c.client("client.b");
    let r = c.prove(&hello_as("client.b", victim), |m| fresh.answer(m, &mut seeded(1)).unwrap());
    t.refused("stolen global id without a ticket", r, is!(AuthError::ReclaimWithoutTicket(_)));
    let mut old = c.client("client.b");
    let r = c.prove(&hello_as("client.b", victim), |m| {
        let p = old.answer(m, &mut seeded(1)).unwrap();
        put(p, 2, &[1])[..32].to_vec()
    });
    t.refused(
        "stolen global id in the form of clients before CVE-2021-20288",
        r,
        is!(AuthError::ReclaimWithoutTicket(_)),
    );
    let r = c.prove(&hello_as("client.b", victim), |m| {
        b.hello();
        b.answer(m, &mut seeded(1)).unwrap()
    });
    t.refused("stolen global id with one's own ticket", r, is!(AuthError::ReclaimOther { .. }));
    let ticket_of = |client: &mut Client, m: &[u8]| {
        client.hello();
        client.answer(m, &mut seeded(1)).unwrap()[19..].to_vec()
    };
    let mut fresh = c.client("client.b");
    let r = c.prove(&hello_as("client.b", victim), |m| {
        let stolen = ticket_of(&mut a, m);
        [&fresh.answer(m, &mut seeded(1)).unwrap()[..19], &stolen].concat()
    });
    t.refused("stolen global id with its stolen ticket", r, is!(AuthError::ReclaimStranger { .. }));
    let mut fresh = c.client("client.a");
    let r = c.prove(&hello_as("client.a", 0), |m| {
        let old = ticket_of(&mut a, m);
        [&fresh.answer(m, &mut seeded(1)).unwrap()[..19], &old].concat()
    });
    t.refused("a ticket with a new session", r, is!(AuthError::SuperfluousTicket));

    let mut changed = |c: &mut Cluster,
                       name: &str,
                       change: &dyn Fn(Vec<u8>) -> Vec<u8>,
                       reason: &dyn Fn(&AuthError) -> bool| {
        let hello = a.hello();
        let r = c.prove(&hello, |m| change(a.answer(m, &mut seeded(1)).unwrap()));
        t.refused(name, r, reason);
    };
    let len = |p: &[u8]| u32::from_le_bytes(p[28..32].try_into().unwrap()) as usize;
    changed(
        &mut c,
        "old ticket forged from nothing",
        &|p| {
            let n = len(&p);
            put(p, 33, &vec![7; n - 1])
        },
        &is!(AuthError::ForgedTicket),
    );
    changed(
        &mut c,
        "old ticket of an unknown form",
        &|p| put(p, 32, &[7]),
        &is!(AuthError::Version { .. }),
    );
    changed(
        &mut c,
        "old ticket with another key's number",
        &|p| put(p, 20, &3u64.to_le_bytes()),
        &is!(AuthError::ForgedTicket),
    );
    changed(
        &mut c,
        "old ticket with an unknown key's number",
        &|p| put(p, 20, &99u64.to_le_bytes()),
        &is!(AuthError::UnknownSecret(99)),
    );
    changed(
        &mut c,
        "old ticket with the monitors' own key's number",
        &|p| put(p, 20, &u64::MAX.to_le_bytes()),
        &is!(AuthError::UnknownSecret(_)),
    );
    let mut flips = 0;
    let ticket_len = {
        let hello = a.hello();
        let mut n = 0;
        c.prove(&hello, |m| {
            let p = a.answer(m, &mut seeded(1)).unwrap();
            n = len(&p);
            p
        })
        .unwrap();
        n
    };
    for i in 32..32 + ticket_len {
        let hello = a.hello();
        let r = c.prove(&hello, |m| {
            let mut p = a.answer(m, &mut seeded(1)).unwrap();
            p[i] ^= 1 << (i % 8);
            p
        });
        assert!(r.is_err(), "byte {i}");
        flips += 1;
    }
    println!("    (old ticket: {flips} single bits flipped, none let in)");
    let hello = a.hello();
    let r = c.prove(&hello, |m| {
        let mut p = a.answer(m, &mut seeded(1)).unwrap();
        p[32 + ticket_len - 1] ^= 1;
        p
    });
    t.refused("old ticket with a flipped bit", r, is!(AuthError::ForgedTicket));
    // An OSD ticket where the AUTH ticket belongs.
    let osd = a.authorizer(Service::Osd, at(START), &mut seeded(1)).unwrap().hello();
    let hello = a.hello();
    let r = c.prove(&hello, |m| {
        let p = a.answer(m, &mut seeded(1)).unwrap();
        [&p[..19], &osd[13..ticket_range(&osd).end], &[0; 4]].concat()
    });
    t.refused("a service's ticket as old ticket", r, is!(AuthError::ForgedTicket));
    let mut other = Cluster::new(99);
    other.db = c.db.clone();
    let hello = a.hello();
    let r = other.prove(&hello, |m| a.answer(m, &mut seeded(1)).unwrap());
    t.refused("a ticket of another cluster", r, is!(AuthError::ForgedTicket));
    c.now = START - 1000;
    t.refused("a ticket from the future", c.connect(&mut a), is!(AuthError::NotYetValid { .. }));
    c.now = START + 72 * 3600;
    t.refused("an expired ticket", c.connect(&mut a), is!(AuthError::Expired { .. }));
    c.now = START;
    c.pass_time(72 * 3600);
    c.pass_time(72 * 3600);
    t.refused(
        "a ticket whose key was rotated away",
        c.connect(&mut a),
        is!(AuthError::UnknownSecret(_)),
    );
}

fn sessions(t: &mut Table) {
    let mut c = Cluster::new(1);
    let (mut a, mut sa) = c.connected("client.a");
    let (b, mut sb) = c.connected("client.b");
    c.pass_time(2800);
    let now = at(c.now);
    let ask_a = a.renewal(now, &mut seeded(1)).unwrap().unwrap();
    let ask_b = b.renewal(now, &mut seeded(1)).unwrap().unwrap();
    t.refused(
        "tickets asked for with another session's ticket",
        c.handle(&mut sb, &ask_a),
        is!(AuthError::ReclaimOther { .. }),
    );
    let osd = a.authorizer(Service::Osd, at(START), &mut seeded(1)).unwrap().hello();
    t.refused(
        "tickets asked for with a service's authorizer",
        c.handle(&mut sa, &[&[0, 2], &osd[..], &[1, 63, 0, 0, 0]].concat()),
        is!(AuthError::WrongService { .. }),
    );
    t.refused(
        "a service's ticket relabelled as the AUTH ticket",
        c.handle(&mut sa, &[&[0, 2], &put(osd, 9, &[32])[..], &[1, 63, 0, 0, 0]].concat()),
        is!(AuthError::ForgedTicket),
    );
    t.refused(
        "global id changed outside the ticket",
        c.handle(&mut sa, &put(ask_a.clone(), 3, &[9; 8])),
        is!(AuthError::GlobalIdMismatch { .. }),
    );
    let n = ask_b.len();
    let sealed = put(ask_b.clone(), n - 10, &[ask_b[n - 10] ^ 1]);
    t.refused("authorizer damaged", c.handle(&mut sb, &sealed), is!(AuthError::Decrypt(_)));
    t.refused(
        "ticket request cut short",
        c.handle(&mut sb, &ask_b[..n - 1]),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "bytes after the ticket request",
        c.handle(&mut sb, &[&ask_b[..], b"x"].concat()),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "ticket request of a mebibyte",
        c.handle(&mut sb, &vec![0; 1 << 20]),
        is!(AuthError::Oversize { .. }),
    );
    t.refused(
        "unknown request on a session",
        c.handle(&mut sb, &[0, 8]),
        is!(AuthError::Request(0x800)),
    );
    t.refused(
        "empty request on a session",
        c.handle(&mut sb, &[]),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "a client asks for service keys",
        c.handle(&mut sb, &Client::service_keys_request()),
        is!(AuthError::NoRotatingKeys(_)),
    );
    let (osd0, mut so) = c.connected("osd.0");
    t.refused(
        "bytes after the request for service keys",
        c.handle(&mut so, &[0, 4, 0]),
        is!(AuthError::Malformed { .. }),
    );
    let answer = c.handle(&mut so, &Client::service_keys_request()).unwrap();
    let n = answer.len();
    t.refused(
        "service keys damaged on their way",
        osd0.service_keys(&put(answer.clone(), n - 1, &[answer[n - 1] ^ 1])),
        is!(AuthError::Decrypt(_)),
    );
    let (mgr, _) = c.connected("mgr.x");
    t.refused(
        "service keys read by another daemon",
        mgr.service_keys(&answer),
        is!(AuthError::Decrypt(_)),
    );
    c.pass_time(60 * 3600);
    let renew = a.renewal(at(c.now), &mut seeded(2)).unwrap().unwrap();
    let renewed = c.handle(&mut sa, &renew).unwrap();
    t.refused(
        "renewal replayed on its session",
        c.handle(&mut sa, &renew),
        is!(AuthError::NoChallenge),
    );
    a.renewed(&renewed, at(c.now)).unwrap();
    t.refused(
        "renewal of another session",
        c.handle(&mut sb, &renew),
        is!(AuthError::WrongProof(_)),
    );
    c.pass_time(2800);
    let ask = a.renewal(at(c.now), &mut seeded(3)).unwrap().unwrap();
    c.policy.client_keys = KeyTypes::STRONG;
    t.refused(
        "tickets for an aes key after it was forbidden",
        c.handle(&mut sa, &ask),
        is!(AuthError::KeyTypeRefused { .. }),
    );
    c.policy.client_keys = KeyTypes::ALL;
    c.db.remove(&id("client.a"));
    t.refused(
        "tickets for a user removed meanwhile",
        c.handle(&mut sa, &ask),
        is!(AuthError::UnknownEntity(_)),
    );
    assert!(c.authority().db.get(&id("client.a")).is_none());
}

fn services(t: &mut Table) {
    let same = |p: Vec<u8>| p;
    let mut c = Cluster::new(1);
    for name in ["client.a", "client.b"] {
        let (client, _) = c.connected(name);
        let mut first = |what: &str,
                         change: &dyn Fn(Vec<u8>) -> Vec<u8>,
                         reason: &dyn Fn(&AuthError) -> bool| {
            let r = c.authorize(&client, Service::Osd, change, same);
            t.refused(&format!("{what} ({name})"), r, reason);
        };
        first("empty authorizer", &|_| Vec::new(), &is!(AuthError::Malformed { .. }));
        first(
            "authorizer cut short",
            &|p| p[..p.len() - 1].to_vec(),
            &is!(AuthError::Malformed { .. }),
        );
        first(
            "bytes after the authorizer",
            &|p| [&p[..], b"x"].concat(),
            &is!(AuthError::Malformed { .. }),
        );
        first("a monitor's hello at an osd", &|p| put(p, 0, &[10]), &is!(AuthError::Mode { .. }));
        first("authorizer of a mebibyte", &|_| vec![1; 1 << 20], &is!(AuthError::Oversize { .. }));
        first(
            "authorizer for an unknown service",
            &|p| put(p, 9, &[64]),
            &is!(AuthError::WrongService { .. }),
        );
        first(
            "authorizer for another service",
            &|p| put(p, 9, &[16]),
            &is!(AuthError::WrongService { .. }),
        );
        first(
            "global id of somebody else",
            &|p| put(p, 1, &[1; 8]),
            &is!(AuthError::GlobalIdMismatch { .. }),
        );
        first(
            "ticket with the next key's number",
            &|p| put(p, 14, &3u64.to_le_bytes()),
            &is!(AuthError::ForgedTicket),
        );
        first(
            "ticket with an unknown key's number",
            &|p| put(p, 14, &77u64.to_le_bytes()),
            &is!(AuthError::UnknownSecret(77)),
        );
        first(
            "ticket with the monitors' own key's number",
            &|p| put(p, 14, &u64::MAX.to_le_bytes()),
            &is!(AuthError::UnknownSecret(_)),
        );
        first(
            "ticket forged from nothing",
            &|p| {
                let r = ticket_range(&p);
                put(p, r.start + 1, &vec![9; r.len() - 1])
            },
            &is!(AuthError::ForgedTicket),
        );
        first(
            "no ticket",
            &|p| {
                let r = ticket_range(&p);
                [&p[..22], &[0; 4], &p[r.end..]].concat()
            },
            &is!(AuthError::EmptyTicket),
        );
        first("ticket of 4 GiB", &|p| put(p, 22, &[0xff; 4]), &is!(AuthError::Malformed { .. }));
        first(
            "no proof of the session key",
            &|p| {
                let r = ticket_range(&p);
                [&p[..r.end], &[0; 4]].concat()
            },
            &is!(AuthError::Decrypt(_)),
        );

        let mgr = client.authorizer(Service::Mgr, at(START), &mut seeded(1)).unwrap().hello();
        let mut x = ServiceExchange::new(Service::Osd);
        t.refused(
            &format!("another service's ticket, relabelled ({name})"),
            c.step(Service::Osd, &mut x, &put(mgr, 9, &[4])),
            is!(AuthError::ForgedTicket),
        );

        // Every bit position class of every byte, in either message.
        let length =
            client.authorizer(Service::Osd, at(START), &mut seeded(1)).unwrap().hello().len();
        for i in 0..length {
            for bit in [0, 3, 7] {
                let flip = |mut p: Vec<u8>| {
                    p[i] ^= 1 << bit;
                    p
                };
                assert!(
                    c.authorize(&client, Service::Osd, flip, same).is_err(),
                    "{name}: first, byte {i}"
                );
                assert!(
                    c.authorize(&client, Service::Osd, same, flip).is_err(),
                    "{name}: second, byte {i}"
                );
            }
        }
        println!("    ({name}: {} flipped bits in authorizers, none let in)", length * 6);
        t.refused(
            &format!("ticket with a flipped bit ({name})"),
            c.authorize(
                &client,
                Service::Osd,
                |p| {
                    let r = ticket_range(&p);
                    let b = p[r.end - 1] ^ 1;
                    put(p, r.end - 1, &[b])
                },
                same,
            ),
            is!(AuthError::ForgedTicket),
        );

        // Both messages of a good exchange, recorded and played again.
        let mut recorded = (Vec::new(), Vec::new());
        c.authorize(
            &client,
            Service::Osd,
            |p| {
                recorded.0.clone_from(&p);
                p
            },
            |p| {
                recorded.1.clone_from(&p);
                p
            },
        )
        .unwrap();
        let mut x = ServiceExchange::new(Service::Osd);
        assert!(matches!(c.step(Service::Osd, &mut x, &recorded.0), Ok(ServiceStep::More(_))));
        t.refused(
            &format!("replayed authorizer ({name})"),
            c.step(Service::Osd, &mut x, &recorded.1),
            is!(AuthError::WrongChallenge),
        );
        t.refused(
            &format!("a message after a failed exchange ({name})"),
            c.step(Service::Osd, &mut x, &recorded.1),
            is!(AuthError::NoChallenge),
        );
        let mut x = ServiceExchange::new(Service::Osd);
        assert!(
            matches!(c.step(Service::Osd, &mut x, &recorded.1), Ok(ServiceStep::More(_))),
            "always a challenge first"
        );
        t.refused(
            &format!("authorizer without an answer, twice ({name})"),
            c.step(Service::Osd, &mut x, &recorded.0),
            is!(AuthError::WrongChallenge),
        );
        // Another authorizer with the right answer: another nonce.
        let mut one = client.authorizer(Service::Osd, at(START), &mut seeded(5)).unwrap();
        let mut two = client.authorizer(Service::Osd, at(START), &mut seeded(6)).unwrap();
        let mut x = ServiceExchange::new(Service::Osd);
        let Ok(ServiceStep::More(challenge)) = c.step(Service::Osd, &mut x, &one.hello()) else {
            panic!()
        };
        let answer = two.answer(&challenge, &mut seeded(7)).unwrap();
        t.refused(
            &format!("answer of another authorizer ({name})"),
            c.step(Service::Osd, &mut x, &answer),
            is!(AuthError::AuthorizerChanged),
        );
        let mut x = ServiceExchange::new(Service::Osd);
        let Ok(ServiceStep::More(challenge)) = c.step(Service::Osd, &mut x, &one.hello()) else {
            panic!()
        };
        let answer = one.answer(&challenge, &mut seeded(8)).unwrap();
        let Ok(ServiceStep::Done(_)) = c.step(Service::Osd, &mut x, &answer) else { panic!() };
        t.refused(
            &format!("a third message ({name})"),
            c.step(Service::Osd, &mut x, &answer),
            is!(AuthError::NoChallenge),
        );
    }
    let (client, _) = c.connected("client.a");
    let hello = client.authorizer(Service::Osd, at(START), &mut seeded(1)).unwrap().hello();
    c.now = START + 3600;
    t.refused(
        "expired ticket at a service",
        c.step(Service::Osd, &mut ServiceExchange::new(Service::Osd), &hello),
        is!(AuthError::Expired { .. }),
    );
    c.now = START - 1000;
    t.refused(
        "ticket from the future at a service",
        c.step(Service::Osd, &mut ServiceExchange::new(Service::Osd), &hello),
        is!(AuthError::NotYetValid { .. }),
    );
    c.now = START;
    c.pass_time(3600);
    c.pass_time(3600);
    t.refused(
        "ticket whose service key was rotated away",
        c.step(Service::Osd, &mut ServiceExchange::new(Service::Osd), &hello),
        is!(AuthError::UnknownSecret(_)),
    );
    let shared = CryptoKey::generate(KeyType::Aes256k, at(1), &mut seeded(4));
    let other = CryptoKey::generate(KeyType::Aes256k, at(1), &mut seeded(5));
    let fake = Authorizer::among_monitors(&id("mon.b"), 0, &other, at(START), &mut seeded(5))
        .unwrap()
        .hello();
    let step = |hello: &[u8], service| {
        ServiceExchange::new(service).step(
            hello,
            true,
            &TicketKey::of_monitors(&shared),
            at(START),
            &mut seeded(6),
        )
    };
    t.refused(
        "a monitor of another cluster",
        step(&fake, Service::Mon),
        is!(AuthError::ForgedTicket),
    );
    t.refused(
        "a client at the port for monitors",
        step(&put(hello, 9, &[1]), Service::Mon),
        is!(AuthError::UnknownSecret(_)),
    );
}

/// Servers that are none, towards our client.
fn fakes(t: &mut Table) {
    let mut c = Cluster::new(1);
    let mut client = c.client("client.a");
    client.hello();
    t.refused(
        "a monitor's challenge of zero",
        client.answer(&[1, 0, 0, 0, 0, 0, 0, 0, 0], &mut seeded(1)),
        is!(AuthError::ZeroChallenge),
    );
    t.refused(
        "a monitor's challenge cut short",
        client.answer(&[1, 2], &mut seeded(1)),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "AUTH_DONE without a challenge",
        c.client("client.a").finish(1, &[0; 40], true, at(START)),
        is!(AuthError::NoChallenge),
    );
    // A monitor that does not know the key: it has the same users with other keys.
    let fake = Cluster::new(7);
    let mut entropy = seeded(3);
    let honest = c.client("client.a").hello();
    let mut done = |user: &Cluster, secure: bool, client: &mut Client| {
        client.hello();
        let (x, more) = Exchange::start(&honest, &mut entropy).unwrap();
        // The fake monitor cannot check the proof; it makes one that suits it.
        let mut theirs = user.client("client.a");
        theirs.hello();
        let proof = theirs.answer(&more, &mut seeded(8)).unwrap();
        client.answer(&more, &mut seeded(8)).unwrap();
        x.finish(&proof, secure, &mut || Some(1), &user.authority(), &mut seeded(9))
            .unwrap()
            .payload
    };
    let payload = done(&fake, true, &mut client);
    t.refused(
        "a monitor that does not know our key",
        client.finish(1, &payload, true, at(START)),
        is!(AuthError::Decrypt(_)),
    );
    let payload = done(&c, false, &mut client);
    t.refused(
        "downgrade: secure mode without a secret",
        client.finish(1, &payload, true, at(START)),
        is!(AuthError::ConnectionSecret { len: 0, .. }),
    );
    let payload = done(&c, true, &mut client);
    t.refused(
        "an answer to another request",
        client.finish(1, &put(payload.clone(), 0, &[0, 2]), true, at(START)),
        is!(AuthError::Request(0x200)),
    );
    t.refused(
        "an error as answer",
        client.finish(1, &put(payload.clone(), 2, &(-13i32).to_le_bytes()), true, at(START)),
        is!(AuthError::Refused(13)),
    );
    t.refused(
        "4 billion tickets",
        client.finish(1, &put(payload.clone(), 7, &[0xff; 4]), true, at(START)),
        is!(AuthError::Malformed { .. }),
    );
    t.refused(
        "an answer cut short",
        client.finish(1, &payload[..payload.len() - 1], true, at(START)),
        is!(AuthError::Malformed { .. }),
    );
    let (client, _) = c.connected("client.b");
    let mut mine = client.authorizer(Service::Osd, at(START), &mut seeded(1)).unwrap();
    t.refused(
        "an osd that cannot open the ticket: its challenge",
        mine.answer(&[7; 58], &mut seeded(1)),
        is!(AuthError::Decrypt(_)),
    );
    let mut x = ServiceExchange::new(Service::Osd);
    let Ok(ServiceStep::More(challenge)) = c.step(Service::Osd, &mut x, &mine.hello()) else {
        panic!()
    };
    t.refused(
        "an osd that cannot open the ticket: its reply",
        mine.finish(&[&68u32.to_le_bytes()[..], &[7; 68]].concat(), false),
        is!(AuthError::Decrypt(_)),
    );
    // A reply recorded from an earlier exchange on the same ticket.
    let mut earlier = client.authorizer(Service::Osd, at(START), &mut seeded(2)).unwrap();
    let mut x = ServiceExchange::new(Service::Osd);
    let Ok(ServiceStep::More(second)) = c.step(Service::Osd, &mut x, &earlier.hello()) else {
        panic!()
    };
    let answer = earlier.answer(&second, &mut seeded(3)).unwrap();
    let Ok(ServiceStep::Done(done)) = c.step(Service::Osd, &mut x, &answer) else { panic!() };
    let mut later = client.authorizer(Service::Osd, at(START), &mut seeded(4)).unwrap();
    later.answer(&challenge, &mut seeded(5)).unwrap();
    t.refused(
        "an osd's reply replayed",
        later.finish(&done.payload, true),
        is!(AuthError::WrongNonce),
    );
    t.refused(
        "downgrade: an osd's secure reply in crc mode",
        earlier.finish(&done.payload, false),
        is!(AuthError::ConnectionSecret { .. }),
    );
    t.refused(
        "a service without a ticket",
        client.authorizer(Service::Mds, at(START), &mut seeded(1)),
        is!(AuthError::NoTicket(_)),
    );
    t.refused(
        "our own expired ticket",
        client.authorizer(Service::Osd, at(START + 3600), &mut seeded(1)),
        is!(AuthError::Expired { .. }),
    );
    const { assert!(MAX_PAYLOAD < 1 << 20) };
}

fn capabilities(t: &mut Table) {
    let apps = Default::default();
    let osd = |caps: &str, pool: &str, write: bool| {
        caps.parse::<OsdCaps>().unwrap_or_default().allows(&OsdAccess {
            pool,
            apps: &apps,
            namespace: "",
            object: "o",
            read: !write,
            write,
            classes: &[],
            addr: None,
        })
    };
    assert!(osd("allow r pool=p", "p", false));
    t.denied("osd: write with read caps", osd("allow r pool=p", "p", true));
    t.denied("osd: another pool", osd("allow rw pool=p", "q", true));
    t.denied("osd: no caps", osd("", "p", false));
    t.denied("osd: caps that do not parse", osd("allow everything", "p", false));
    t.denied("osd: from outside the network", osd("allow rw network 10.0.0.0/8", "p", false));
    let args = Args::new();
    let mon = |caps: &str, service: &str, write: bool, exec: bool| {
        caps.parse::<MonCaps>().unwrap_or_default().allows(&MonAccess {
            entity: "client.a",
            service,
            command: "",
            args: &args,
            read: true,
            write,
            exec,
            addr: None,
        })
    };
    assert!(mon("allow r", "osd", false, false));
    t.denied("mon: change with read caps", mon("allow r", "osd", true, false));
    t.denied("mon: keys with read caps", mon("allow r", "auth", false, true));
    t.denied("mon: secrets with rwx caps", mon("allow rwx", "config-key", false, false));
    t.denied("mon: anything without caps", mon("", "osd", false, false));
    t.denied("mon: another service", mon("allow service osd rwx", "auth", false, true));
    let _: &dyn Entropy = &seeded(1);
}

/// Whoever has no key uses no number up: they are drawn ten thousand at a time from a durable
/// range.
#[test]
fn a_proof_that_fails_takes_no_global_id() {
    let mut c = Cluster::new(1);
    let before = c.next_id;
    // The client's challenge and its proof follow two numbers in front.
    for at in 3..19 {
        let mut client = c.client("client.a");
        let spoilt = c.connect_with(&mut client, |mut p| {
            p[at] ^= 1;
            p
        });
        assert!(spoilt.is_err(), "byte {at}");
    }
    assert_eq!(c.next_id, before);
    c.connected("client.a");
    assert_eq!(c.next_id, before + 1);
}
