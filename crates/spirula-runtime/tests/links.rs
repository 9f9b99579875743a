//! Links between daemons over real sockets and through memory: who is let in, as whom, how
//! protected; addresses of both families; what happens to those who do not prove themselves.

#![allow(clippy::disallowed_methods, reason = "a test waits")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use spirula_buffer::PayloadPool;
use spirula_messages::Message;
use spirula_messages::ceph::kind;
use spirula_messenger::auth::ModePolicy;
use spirula_messenger::auth::{
    AuthStart, BadMethod, Credentials, Granted, METHOD_CEPHX, METHOD_NONE, Mode, Secret, Secrets,
};
use spirula_runtime::auth::{
    Authenticator, Caller, Exchange, Grants, Login, METHOD_IN_PROCESS, NoneLogin, Responder, Step,
    Trusting, Verdict,
};
use spirula_runtime::{
    Answers, Hub, Link, LinkMode, Listener, NetEvent, NetSink, Peer, Reactors, Room, Service, clock,
};
use spirula_types::{AddrVec, EntityAddr, EntityType};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// What a daemon is told.
struct Inbox {
    sink: NetSink,
    rx: mpsc::Receiver<NetEvent>,
}

impl Inbox {
    fn new() -> Self {
        let (tx, rx) = mpsc::channel();
        let deliver = Arc::new(move |e| drop(tx.send(e)));
        Self { sink: NetSink::new(deliver, Arc::default()), rx }
    }

    fn next(&self) -> NetEvent {
        self.rx.recv_timeout(PATIENCE).expect("an event")
    }

    fn opened(&self) -> (Link, Peer) {
        match self.next() {
            NetEvent::Opened { link, peer, .. } => (link, peer),
            e => panic!("{e:?}"),
        }
    }

    fn closed(&self) -> String {
        match self.next() {
            NetEvent::Closed(_, ended) => ended.why,
            e => panic!("{e:?}"),
        }
    }

    fn message(&self) -> Message {
        match self.next() {
            NetEvent::Message(_, m) => m,
            e => panic!("{e:?}"),
        }
    }
}

fn runtime() -> Reactors {
    Reactors::start(1).unwrap()
}

fn hub(mode: LinkMode, modes: &str) -> Hub {
    let hub = Hub::new(mode, PayloadPool::new(64 << 20));
    hub.set_modes(ModePolicy::all(&modes.parse().unwrap()));
    hub
}

const LOCAL: &str = "127.0.0.1:0";

fn listen(
    hub: &Hub,
    on: &[&str],
    auth: Arc<dyn Authenticator>,
    inbox: &Inbox,
    rt: &Reactors,
) -> Listener {
    let service = Service { me: Peer::new(EntityType::Mgr, "x"), sink: inbox.sink.clone(), auth };
    let on: Vec<SocketAddr> = on.iter().map(|a| a.parse().unwrap()).collect();
    hub.listen(&on, 7, service, &rt.next()).unwrap()
}

fn call(hub: &Hub, login: Arc<dyn Login>, to: &AddrVec, inbox: &Inbox, rt: &Reactors) -> Link {
    hub.connect(
        &Peer::new(EntityType::Client, "admin"),
        &login,
        &inbox.sink,
        to,
        EntityType::Mgr,
        &rt.next(),
    )
}

/// A method with a password; the caller's name comes from the listener's records.
#[derive(Debug, Clone)]
struct Password(&'static str);

fn secrets(mode: Mode) -> Secrets {
    // Of one use: each test has one connection of its own.
    let connection_secret = if mode == Mode::Secure {
        Secret::new((0..64).collect::<Vec<u8>>())
    } else {
        Secret::default()
    };
    Secrets { session_key: Secret::new(b"session key".to_vec()), connection_secret }
}

impl Credentials for Password {
    fn request(&mut self) -> Result<AuthStart, String> {
        Ok(AuthStart { method: METHOD_CEPHX, payload: Bytes::new() })
    }

    fn bad_method(&mut self, _: &BadMethod) -> Option<AuthStart> {
        None
    }

    fn more(&mut self, _: &[u8]) -> Result<Bytes, String> {
        Ok(Bytes::from_static(self.0.as_bytes()))
    }

    fn done(&mut self, _: u64, mode: Mode, _: &[u8]) -> Result<Secrets, String> {
        Ok(secrets(mode))
    }
}

impl Login for Password {
    fn credentials(&self, _: EntityType) -> Result<Box<dyn Credentials>, String> {
        Ok(Box::new(self.clone()))
    }
}

/// Answers from another thread, as a monitor's state machine does.
struct Gate(mpsc::Sender<(Option<Bytes>, Mode, Responder)>);

struct Visitor {
    mode: Mode,
    asked: bool,
    gate: mpsc::Sender<(Option<Bytes>, Mode, Responder)>,
}

impl Authenticator for Gate {
    fn methods(&self) -> Vec<u32> {
        vec![METHOD_CEPHX]
    }

    fn begin(&self, caller: &Caller) -> Box<dyn Exchange> {
        assert_eq!((caller.hello, caller.method), (EntityType::Client, METHOD_CEPHX));
        Box::new(Visitor { mode: caller.mode, asked: false, gate: self.0.clone() })
    }
}

impl Exchange for Visitor {
    fn step(&mut self, payload: Bytes) -> Step {
        let (responder, step) = Step::later();
        let payload = std::mem::replace(&mut self.asked, true).then_some(payload);
        self.gate.send((payload, self.mode, responder)).unwrap();
        step
    }
}

/// A gate, and the thread behind it.
fn gate() -> Arc<dyn Authenticator> {
    let (tx, rx) = mpsc::channel::<(Option<Bytes>, Mode, Responder)>();
    std::thread::spawn(move || {
        for (payload, mode, responder) in rx {
            match payload.as_deref() {
                None => responder.answer(Verdict::More(Bytes::from_static(b"password?"))),
                Some(b"open sesame") => {
                    let granted = Granted {
                        kind: EntityType::Client,
                        id: "ali".into(),
                        global_id: 40,
                        payload: Bytes::new(),
                        secrets: secrets(mode),
                    };
                    responder.answer(Verdict::In(granted, Grants::new("treasure".to_owned())));
                }
                Some(b"ignore me") => drop(responder),
                Some(_) => responder.answer(Verdict::Refused(-13, "wrong password".into())),
            }
        }
    });
    Arc::new(Gate(tx))
}

#[test]
fn peer_that_proves_itself_is_let_in_with_its_grants_and_payloads_arrive_aligned() {
    let rt = runtime();
    for (modes, want) in [("crc", Mode::Crc), ("secure", Mode::Secure)] {
        let hub = hub(LinkMode::Tcp, modes);
        let (server, client) = (Inbox::new(), Inbox::new());
        let listener = listen(&hub, &[LOCAL], gate(), &server, &rt);
        let link = call(&hub, Arc::new(Password("open sesame")), &listener.addrs, &client, &rt);
        let (_, peer) = server.opened();
        assert_eq!(
            (peer.auth_name().as_str(), peer.global_id, peer.method),
            ("client.ali", 40, METHOD_CEPHX)
        );
        assert_eq!((peer.mode, peer.grants.get::<String>()), (want, Some(&"treasure".to_owned())));
        let (_, peer) = client.opened();
        assert_eq!((peer.kind, peer.mode, peer.global_id), (EntityType::Mgr, want, 40));
        for size in [0, 5000, 64 << 10, (3 << 20) + 3] {
            let data: Bytes = (0..size).map(|i| (i / 7) as u8).collect();
            let message = Message {
                kind: 42,
                front: Bytes::from_static(b"a front"),
                data,
                ..Message::default()
            };
            link.send(message.clone());
            let got = server.message();
            assert_eq!(got, message);
            if size >= 64 << 10 {
                assert_eq!(
                    got.data.as_ptr() as usize % spirula_buffer::ALIGN,
                    0,
                    "{modes}, {size} bytes"
                );
            }
        }
        link.close();
        assert!(server.closed().contains("closed by the peer"));
    }
}

#[test]
fn peers_that_do_not_prove_themselves_stay_out_and_are_told() {
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc secure");
    let (server, client) = (Inbox::new(), Inbox::new());
    let listener = listen(&hub, &[LOCAL], gate(), &server, &rt);
    call(&hub, Arc::new(Password("open barley")), &listener.addrs, &client, &rt);
    assert!(client.closed().contains("error -13"), "wrong password");
    call(&hub, Arc::new(Password("ignore me")), &listener.addrs, &client, &rt);
    assert!(client.closed().contains("closed by the peer"), "no verdict");
    let none = NoneLogin { kind: EntityType::Client, id: "ali".into(), global_id: 40 };
    call(&hub, Arc::new(none), &listener.addrs, &client, &rt);
    let why = client.closed();
    assert!(why.contains("method 1: error -95") && why.contains("[2]"), "no method: {why}");
    /// Has nothing to show.
    struct Nobody;
    impl Login for Nobody {
        fn credentials(&self, _: EntityType) -> Result<Box<dyn Credentials>, String> {
            Err("no ticket".into())
        }
    }
    call(&hub, Arc::new(Nobody), &listener.addrs, &client, &rt);
    assert!(client.closed().contains("no ticket"));
    // The listener is well, and heard of none of them.
    call(&hub, Arc::new(Password("open sesame")), &listener.addrs, &client, &rt);
    server.opened();
}

#[test]
fn changed_modes_count_for_new_connections() {
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc");
    let (server, client) = (Inbox::new(), Inbox::new());
    let listener = listen(&hub, &[LOCAL], gate(), &server, &rt);
    call(&hub, Arc::new(Password("open sesame")), &listener.addrs, &client, &rt);
    assert_eq!(server.opened().1.mode, Mode::Crc);
    hub.set_modes(ModePolicy::all(&"secure".parse().unwrap()));
    call(&hub, Arc::new(Password("open sesame")), &listener.addrs, &client, &rt);
    assert_eq!(server.opened().1.mode, Mode::Secure);
}

#[test]
fn links_through_memory_carry_the_daemons_identity_without_a_handshake() {
    let rt = runtime();
    let hub = hub(LinkMode::Memory, "secure");
    let (server, client) = (Inbox::new(), Inbox::new());
    let listener = listen(&hub, &[LOCAL], gate(), &server, &rt);
    let me = Peer { grants: Grants::new(5u8), ..Peer::new(EntityType::Osd, "3") };
    let login = NoneLogin::of(&me);
    let link = hub.connect(&me, &login, &client.sink, &listener.addrs, EntityType::Mgr, &rt.next());
    let (_, peer) = server.opened();
    assert_eq!(
        (peer.auth_name().as_str(), peer.method, peer.grants.get()),
        ("osd.3", METHOD_IN_PROCESS, Some(&5u8))
    );
    link.send(Message { kind: 9, ..Message::default() });
    assert_eq!(server.message().kind, 9);
}

#[test]
fn a_daemon_listens_at_several_addresses_and_callers_try_them_in_turn() {
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc");
    let (server, client) = (Inbox::new(), Inbox::new());
    let auth: Arc<dyn Authenticator> = Arc::new(Trusting::default());
    // Without IPv6 on the machine, two of IPv4 must do.
    let v6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let on = if v6 { [LOCAL, "[::1]:0"] } else { [LOCAL, "127.0.0.2:0"] };
    let listener = listen(&hub, &on, auth, &server, &rt);
    assert_eq!(listener.addrs.0.len(), 2);
    let me = NoneLogin { kind: EntityType::Client, id: "admin".into(), global_id: 4 };
    let second = AddrVec(listener.addrs.0[1..].to_vec());
    call(&hub, Arc::new(me.clone()), &second, &client, &rt);
    let (_, peer) = server.opened();
    assert_eq!((peer.auth_name().as_str(), peer.method), ("client.admin", METHOD_NONE));
    assert_eq!(
        peer.addr().addr.unwrap().ip(),
        on[1].parse::<SocketAddr>().unwrap().ip(),
        "as the server sees it"
    );
    assert_eq!(client.opened().1.addrs, listener.addrs);
    // Nobody is at the first address.
    let gone = std::net::TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
    let mut both = second;
    both.0.insert(0, spirula_types::EntityAddr::v2(gone, 7));
    call(&hub, Arc::new(me.clone()), &both, &client, &rt);
    server.opened();
    client.opened();
    both.0.truncate(1);
    call(&hub, Arc::new(me), &both, &client, &rt);
    assert!(client.closed().contains("refused"));
}

#[test]
fn taken_port_is_an_error_and_leaves_nothing_behind() {
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc");
    let server = Inbox::new();
    let taken = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &server, &rt);
    let service = Service {
        me: Peer::new(EntityType::Mgr, "y"),
        sink: server.sink.clone(),
        auth: Arc::new(Trusting::default()),
    };
    let addr = taken.addrs.msgr2().addr.unwrap();
    let e = hub.listen(&[addr], 1, service, &rt.next()).err().unwrap();
    assert!(e.to_string().contains(&addr.to_string()), "{e}");
}

#[test]
fn strangers_of_one_place_are_bounded_and_make_room_when_they_go() {
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc");
    let (server, client) = (Inbox::new(), Inbox::new());
    let listener = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &server, &rt);
    let addr = listener.addrs.msgr2().addr.unwrap();
    let strangers: Mutex<Vec<TcpStream>> = Mutex::default();
    for _ in 0..spirula_runtime::limits::STRANGERS_PER_PLACE {
        strangers.lock().unwrap().push(TcpStream::connect(addr).unwrap());
    }
    let me: Arc<dyn Login> =
        Arc::new(NoneLogin { kind: EntityType::Client, id: "admin".into(), global_id: 4 });
    call(&hub, me.clone(), &listener.addrs, &client, &rt);
    client.closed();
    strangers.lock().unwrap().clear();
    // The listener notices in its own time.
    loop {
        call(&hub, me.clone(), &listener.addrs, &client, &rt);
        if let NetEvent::Opened { .. } = client.next() {
            break;
        }
    }
    server.opened();
}

#[test]
fn a_lossless_link_that_is_made_anew_says_so_and_loses_nothing() {
    let (rt, there, here) = (runtime(), Inbox::new(), Inbox::new());
    let hub = hub(LinkMode::Tcp, "crc");
    let service = Service {
        me: Peer::new(EntityType::Osd, "1"),
        sink: there.sink.clone(),
        auth: Arc::new(Trusting::default()),
    };
    let listener = hub.listen(&[LOCAL.parse().unwrap()], 7, service, &rt.next()).unwrap();
    let mut me = Peer::new(EntityType::Osd, "0");
    me.addrs = AddrVec(vec![EntityAddr::v2("127.0.0.1:1".parse().unwrap(), 5)]);
    let login = NoneLogin::of(&me);
    let link = hub.connect(&me, &login, &here.sink, &listener.addrs, EntityType::Osd, &rt.next());
    let (_answers, _) = there.opened();
    here.opened();
    let (mut sent, mut resumed) = (0u64, 0);
    let send = |n: &mut u64| {
        link.send(Message {
            kind: 9,
            tid: *n,
            data: vec![7; 100_000].into(),
            ..Message::default()
        });
        *n += 1;
    };
    // Longer each time: on a busy machine a connection may take more than 20 ms, and would be
    // broken before it is one.
    for round in 0..1000 {
        (0..3).for_each(|_| send(&mut sent));
        link.renew();
        match here.rx.recv_timeout(Duration::from_millis(20 + round)) {
            Ok(NetEvent::Resumed(id)) => {
                assert_eq!(id, link.id());
                resumed += 1;
            }
            Ok(e) => panic!("{e:?}"),
            Err(_) => {}
        }
        if resumed == 3 {
            break;
        }
    }
    assert_eq!(resumed, 3);
    for n in 0..sent {
        assert_eq!(there.message().tid, n);
    }
}

#[test]
fn a_link_through_memory_that_the_far_end_closes_is_told_and_opens_anew() {
    let p = Pair::new(LinkMode::Memory);
    let (first, _) = p.there.opened();
    p.here.opened();
    p.link.send(Message { kind: 9, ..Message::default() });
    assert_eq!(p.there.message().kind, 9);
    first.close();
    assert!(p.here.closed().contains("closed by the peer"));
    let mut me = Peer::new(EntityType::Osd, "0");
    me.addrs = AddrVec(vec![EntityAddr::v2("127.0.0.1:1".parse().unwrap(), 5)]);
    let to = &p.listener.as_ref().unwrap().addrs;
    let again =
        p.hub.connect(&me, &NoneLogin::of(&me), &p.here.sink, to, EntityType::Osd, &p.rt.next());
    assert_eq!(p.here.opened().0.id(), again.id());
    p.there.opened();
}

/// Two OSDs of which one calls the other.
struct Pair {
    rt: Reactors,
    hub: Hub,
    there: Inbox,
    here: Inbox,
    listener: Option<Listener>,
    link: Link,
    sent: u64,
}

impl Pair {
    fn new(mode: LinkMode) -> Self {
        let (rt, there, here) = (runtime(), Inbox::new(), Inbox::new());
        let hub = hub(mode, "crc");
        let listener = Self::listen(&hub, LOCAL.parse().unwrap(), &there, &rt).unwrap();
        let mut me = Peer::new(EntityType::Osd, "0");
        me.addrs = AddrVec(vec![EntityAddr::v2("127.0.0.1:1".parse().unwrap(), 5)]);
        let link = hub.connect(
            &me,
            &NoneLogin::of(&me),
            &here.sink,
            &listener.addrs,
            EntityType::Osd,
            &rt.next(),
        );
        Self { rt, hub, there, here, listener: Some(listener), link, sent: 0 }
    }

    fn listen(
        hub: &Hub,
        at: SocketAddr,
        there: &Inbox,
        rt: &Reactors,
    ) -> Result<Listener, spirula_runtime::NetError> {
        let (me, sink, auth) =
            (Peer::new(EntityType::Osd, "1"), there.sink.clone(), Arc::new(Trusting::default()));
        hub.listen(&[at], 7, Service { me, sink, auth }, &rt.next())
    }

    fn send(&mut self) {
        self.link.send(Message { kind: 9, tid: self.sent, ..Message::default() });
        self.sent += 1;
    }

    /// The far end forgets all sessions, though it is still the same.
    fn forget(&mut self) {
        let at = self.listener.take().unwrap().addrs.msgr2().addr.unwrap();
        self.listener = Some(loop {
            // The tasks that accepted end in their own time.
            match Self::listen(&self.hub, at, &self.there, &self.rt) {
                Ok(l) => break l,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        });
    }

    /// Breaks the connection until `told` is what the near end hears next.
    fn renew_until(&self, told: impl Fn(&NetEvent) -> bool) {
        // Longer each time, so that a busy machine comes to an end with one before the next is
        // broken.
        for round in 0.. {
            self.link.renew();
            match self.here.rx.recv_timeout(Duration::from_millis(20 + round)) {
                Ok(e) if told(&e) => return,
                Ok(e) => panic!("{e:?}"),
                Err(_) => {}
            }
        }
    }
}

#[test]
fn a_session_that_the_far_end_has_lost_is_told_once_the_next_one_is_open() {
    let mut p = Pair::new(LinkMode::Tcp);
    let (first, _) = p.there.opened();
    assert_eq!(p.here.opened().0.id(), p.link.id());
    p.send();
    assert_eq!(p.there.message().tid, 0);
    p.forget();
    let id = p.link.id();
    p.renew_until(|e| matches!(e, NetEvent::Renewed(l) if *l == id));
    // What is sent from now on arrives.
    p.send();
    let (second, _) = p.there.opened();
    assert_ne!(first.id(), second.id());
    assert_eq!(p.there.message().tid, 1);
    // The new session is as good as the first.
    p.renew_until(|e| matches!(e, NetEvent::Resumed(l) if *l == id));
    p.send();
    assert_eq!(p.there.message().tid, 2);
}

/// A daemon that must not be given more holds the link; it goes on where it stopped, and a peer
/// that leaves meanwhile is noticed.
#[test]
fn a_link_that_is_held_reads_nothing_until_it_goes_on() {
    let (rt, theirs, there, here) = (runtime(), runtime(), Inbox::new(), Inbox::new());
    let hub = hub(LinkMode::Tcp, "crc");
    let listener = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &there, &rt);
    let me = Peer::new(EntityType::Client, "admin");
    let link = call(&hub, NoneLogin::of(&me), &listener.addrs, &here, &theirs);
    let (held, _) = there.opened();
    here.opened();
    let send = |tid| {
        link.send(Message { kind: 9, tid, data: vec![7; 32 << 10].into(), ..Message::default() })
    };
    held.hold();
    // More than the sockets' buffers hold.
    (0..2000).for_each(send);
    let mut got = Vec::new();
    while let Ok(e) = there.rx.recv_timeout(Duration::from_millis(500)) {
        match e {
            NetEvent::Message(_, m) => got.push(m.tid),
            e => panic!("{e:?}"),
        }
    }
    assert!(got.len() <= 3, "{} messages came over a link that is held", got.len());
    held.go_on();
    while got.len() < 2000 {
        got.push(there.message().tid);
    }
    assert!(got.into_iter().eq(0..2000), "all, in order");

    held.hold();
    send(2000);
    // What was sent goes out, then the peer's process ends.
    std::thread::sleep(Duration::from_millis(200));
    theirs.stop();
    loop {
        match there.next() {
            // Read just before it was held.
            NetEvent::Message(..) => {}
            NetEvent::Closed(id, ended) => {
                assert!(
                    id == held.id() && ended.why.ends_with("closed by the peer"),
                    "{}",
                    ended.why
                );
                break;
            }
            e => panic!("{e:?}"),
        }
    }
}

/// Capabilities by `network` are for the place a peer comes from, not for one that it names. Fences
/// of clients are for either: for what it says, as locks and watches do, and for where it comes
/// from. What tells its instances apart stays as it says.
#[test]
fn a_client_is_where_its_connection_comes_from() {
    let (rt, there, here) = (runtime(), Inbox::new(), Inbox::new());
    let hub = hub(LinkMode::Tcp, "crc");
    let listener = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &there, &rt);
    let claimed = AddrVec::one(EntityAddr::v2("10.9.9.1:1".parse().unwrap(), 77));
    for kind in [EntityType::Client, EntityType::Osd] {
        let me = Peer { addrs: claimed.clone(), ..Peer::new(kind, "3") };
        let login: Arc<dyn Login> = NoneLogin::of(&me);
        let _link =
            hub.connect(&me, &login, &here.sink, &listener.addrs, EntityType::Mgr, &rt.next());
        let (_, peer) = there.opened();
        assert_eq!(peer.addrs.msgr2(), claimed.msgr2(), "{kind:?}");
        let places: Vec<String> =
            peer.addrs.0.iter().map(|a| a.addr.unwrap().ip().to_string()).collect();
        // What a daemon says, the maps say, too.
        let want: &[&str] =
            if kind == EntityType::Client { &["10.9.9.1", "127.0.0.1"] } else { &["10.9.9.1"] };
        assert_eq!(places, want, "{kind:?}");
        assert!(peer.addrs.0.iter().all(|a| a.nonce == 77), "{kind:?}");
        assert_eq!(peer.place(), Some("127.0.0.1".parse().unwrap()), "{kind:?}");
        let (_, listener) = here.opened();
        assert_eq!((listener.from, listener.place()), (None, peer.place()), "we called it there");
    }
}

/// A client and a manager's listener: the client's link, and the manager's.
fn client_and_manager(
    hub: &Hub,
    client: &Inbox,
    server: &Inbox,
    rt: &Reactors,
) -> (Listener, Link, Link) {
    let listener = listen(hub, &[LOCAL], Arc::new(Trusting::default()), server, rt);
    let me = Peer::new(EntityType::Client, "admin");
    let link = call(hub, NoneLogin::of(&me), &listener.addrs, client, rt);
    client.opened();
    let (there, _) = server.opened();
    (listener, link, there)
}

/// Of a client's request that is larger than a manager or monitor takes nothing is kept, however it
/// is made up; it is told so, and the connection goes on.
#[test]
fn a_request_that_is_too_large_is_told_without_its_contents() {
    let rt = runtime();
    let (server, client) = (Inbox::new(), Inbox::new());
    let hub = hub(LinkMode::Tcp, "crc");
    let (_listener, link, _there) = client_and_manager(&hub, &client, &server, &rt);
    let most = spirula_runtime::limits::REQUEST_BYTES;
    let of = |tid, front: usize, data: usize| Message {
        kind: 50,
        tid,
        front: vec![1; front].into(),
        data: vec![2; data].into(),
        ..Message::default()
    };
    for (tid, front, data) in
        [(1, most + 1, 0), (2, 100, most), (3, 60 << 20, 0), (4, 0, 100 << 20)]
    {
        link.send(of(tid, front, data));
        match server.next() {
            NetEvent::TooLarge(_, m) => {
                assert_eq!((m.kind, m.tid, m.front.len(), m.data.len()), (50, tid, 0, 0));
            }
            e => panic!("{e:?}"),
        }
    }
    link.send(of(5, 100, most - 100));
    let m = server.message();
    assert_eq!((m.tid, m.data.len()), (5, most - 100));
}

/// What a peer does not read is counted, and above a bound its connection ends.
#[test]
fn a_peer_that_does_not_read_has_a_bound() {
    const PART: usize = 1 << 20;
    let rt = runtime();
    let (server, client) = (Inbox::new(), Inbox::new());
    let hub = hub(LinkMode::Tcp, "crc");
    let (_listener, link, there) = client_and_manager(&hub, &client, &server, &rt);
    assert_eq!((there.unsent(), there.stuck_for(Duration::MAX)), (0, Duration::ZERO));
    link.hold();
    let part = || Message { kind: 9, data: vec![7; PART].into(), ..Message::default() };
    // More than any socket's buffers hold.
    let taken = (0..200).take_while(|_| there.send_within(64 * PART, part())).count();
    assert!((64..199).contains(&taken), "{taken}");
    assert!(there.is_closed());
    assert!(there.unsent() <= 66 * PART, "{}", there.unsent());
    assert!(
        there.send_within(64 * PART, part()),
        "what goes to a closed link is dropped, and nothing is said again"
    );
}

/// Bytes that wait for peers of a daemon that answers each command with a mebibyte, at most; how
/// many there are for `tid` and above.
struct Answering {
    inbox: Inbox,
    answers: Answers,
    links: Vec<Link>,
    most: usize,
}

impl Answering {
    const ANSWER: usize = 1 << 20;

    fn say(&mut self, id: u64, tid: u64) {
        let data = vec![7; Self::ANSWER].into();
        self.answers
            .send(id, Message { kind: kind::COMMAND_REPLY, tid, data, ..Message::default() });
        let waits = self.links.iter().filter(|l| !l.is_closed()).map(Link::unsent).sum();
        self.most = self.most.max(waits);
    }

    /// Handles what comes until `done`.
    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !done(self) {
            assert!(std::time::Instant::now() < end, "it does not come to an end");
            match self.inbox.rx.recv_timeout(Duration::from_millis(1)) {
                Ok(NetEvent::Opened { link, peer, .. }) => {
                    self.answers.insert(link.clone(), &peer);
                    self.links.push(link);
                }
                Ok(NetEvent::Message(id, m)) => {
                    if let Some(m) = self.answers.take(id, m, |_| (), |(), _| Room::Always) {
                        self.say(id, m.tid);
                    }
                }
                Ok(NetEvent::Taken(id)) => self.answers.taken(id),
                Ok(NetEvent::Closed(id, _)) => assert!(self.answers.remove(id)),
                Ok(e) => panic!("{e:?}"),
                // A daemon looks now and then; without it, all that was ever said counts as held.
                Err(_) => self.answers.look(),
            }
            while let Some((id, m)) = self.answers.due(|(), _| Room::Always) {
                self.say(id, m.tid);
            }
        }
    }
}

fn asks(link: &Link, commands: u64) {
    for tid in 1..=commands {
        link.send(Message {
            kind: kind::COMMAND,
            tid,
            front: vec![1; 100].into(),
            ..Message::default()
        });
    }
}

/// However many clients do not read, and however much they ask, what waits for them has a bound,
/// and who reads gets all that it asks for at once, in order.
#[test]
fn clients_that_do_not_read_share_what_a_daemon_may_hold() {
    const ALL: usize = 24;
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc");
    let inbox = Inbox::new();
    let answers = Answers::new(&hub);
    assert_eq!(answers.share(), 8 << 20, "an eighth of 64 MiB");
    let listener = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &inbox, &rt);
    let mut a = Answering { inbox, answers, links: Vec::new(), most: 0 };
    let mut clients = Vec::new();
    let waits =
        |a: &Answering| a.links.iter().filter(|l| !l.is_closed()).map(Link::unsent).sum::<usize>();
    // How much of an answer the sockets take is the kernel's affair, so that 24 that are as full as
    // they may be can be just below the share for good: others come until it is used up. A new one
    // always gets as much as its sockets take and then some.
    while clients.len() < ALL || waits(&a) <= a.answers.share() {
        let n = clients.len();
        assert!(n < 10 * ALL, "{} wait for {n} clients", waits(&a));
        let inbox = Inbox::new();
        let login =
            NoneLogin { kind: EntityType::Client, id: format!("c{n}"), global_id: n as u64 + 1 };
        let link = call(&hub, Arc::new(login), &listener.addrs, &inbox, &rt);
        a.until(|a| a.links.len() > n);
        inbox.opened();
        link.hold();
        asks(&link, 64);
        a.until(|a| a.links[n].unsent() > 0 || a.links[n].is_closed());
        clients.push((inbox, link));
    }
    let reader = Inbox::new();
    let login = NoneLogin { kind: EntityType::Client, id: "r".into(), global_id: 999 };
    let link = call(&hub, Arc::new(login), &listener.addrs, &reader, &rt);
    a.until(|a| a.links.len() > clients.len());
    reader.opened();
    asks(&link, 200);
    let got = std::cell::Cell::new(0);
    a.until(|_| {
        while let Ok(NetEvent::Message(_, m)) = reader.rx.try_recv() {
            got.set(got.get() + 1);
            assert_eq!((m.tid, m.data.len()), (got.get(), Answering::ANSWER));
        }
        got.get() == 200
    });
    let most = a.most;
    assert!(most <= 2 * a.answers.share() + Answering::ANSWER, "{most}");
    // Those who took nothing for long make room for the others.
    let before = waits(&a);
    clock::give(Some((clock::monotonic() + Duration::from_secs(6), Default::default())));
    a.answers.look();
    clock::give(None);
    assert!(before <= a.answers.share() || waits(&a) == 0, "{before}, then {}", waits(&a));
    assert!(!link.is_closed());
}

/// Who asks for more than its daemon takes of one at a time, or has room for, waits at its
/// connection, which stays: all is asked in the end, in order, and those who wait take turns.
#[test]
fn what_a_daemon_has_no_room_for_waits_at_its_connection() {
    const EACH: u64 = 600;
    let rt = runtime();
    let hub = hub(LinkMode::Tcp, "crc");
    let inbox = Inbox::new();
    let mut answers = Answers::new(&hub);
    let listener = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &inbox, &rt);
    let mut clients = Vec::new();
    let mut ids = Vec::new();
    for n in 0..3 {
        let own = Inbox::new();
        let login = NoneLogin { kind: EntityType::Client, id: format!("c{n}"), global_id: n + 1 };
        let link = call(&hub, Arc::new(login), &listener.addrs, &own, &rt);
        own.opened();
        let Ok(NetEvent::Opened { link: far, peer, .. }) = inbox.rx.recv_timeout(PATIENCE) else {
            panic!()
        };
        ids.push(far.id());
        answers.insert(far, &peer);
        clients.push((own, link));
    }
    for (_, link) in &clients {
        for tid in 1..=EACH {
            link.send(Message {
                kind: kind::POOL_OP,
                tid,
                front: vec![1; 100].into(),
                ..Message::default()
            });
        }
    }
    // What the daemon works on; it has room for four hundred.
    let room = |n: usize| if n < 400 { Room::In(0) } else { Room::Full(0) };
    let mut open: Vec<(u64, u64)> = Vec::new();
    let mut asked = vec![0; clients.len()];
    let end = std::time::Instant::now() + PATIENCE;
    let mut most_of_one = 0;
    while asked.iter().sum::<u64>() < EACH * clients.len() as u64 {
        assert!(std::time::Instant::now() < end, "{asked:?}");
        let mut come = Vec::new();
        while let Ok(e) = inbox.rx.recv_timeout(Duration::from_millis(2)) {
            match e {
                NetEvent::Message(id, m) => come.extend(
                    answers
                        .take(id, m, |_| (), |(), _| room(open.len() + come.len()))
                        .map(|m| (id, m)),
                ),
                NetEvent::Taken(id) => answers.taken(id),
                e => panic!("{e:?}"),
            }
        }
        answers.look_for_room();
        while let Some(one) = answers.due(|(), _| room(open.len() + come.len())) {
            come.push(one);
        }
        for (id, m) in come {
            let n = ids.iter().position(|i| *i == id).unwrap();
            asked[n] += 1;
            assert_eq!(m.tid, asked[n], "in order");
            open.push((id, m.tid));
        }
        assert!(open.len() <= 400);
        most_of_one = ids
            .iter()
            .map(|id| open.iter().filter(|(i, _)| i == id).count())
            .max()
            .unwrap()
            .max(most_of_one);
        // A turn: a hundred are answered.
        for (id, tid) in open.drain(..open.len().min(100)) {
            answers.send(id, Message { kind: kind::POOL_OP_REPLY, tid, ..Message::default() });
        }
    }
    assert_eq!(most_of_one, 256);
    assert!(clients.iter().all(|(_, link)| !link.is_closed()));
}

/// Those who wait for room are asked in the order in which they came, however many they are and
/// however often they were looked at in vain; who comes later does not pass them by, unless he
/// wants something else.
#[test]
fn who_waits_for_room_is_not_overtaken() {
    let rt = runtime();
    let hub = hub(LinkMode::Memory, "secure");
    let (server, client) = (Inbox::new(), Inbox::new());
    let listener = listen(&hub, &[LOCAL], Arc::new(Trusting::default()), &server, &rt);
    let mut answers = Answers::new(&hub);
    let mut links = Vec::new();
    let ids: Vec<_> = (0..90)
        .map(|n| {
            let me = Peer::new(EntityType::Client, &n.to_string());
            let login = NoneLogin::of(&me);
            links.push(hub.connect(
                &me,
                &login,
                &client.sink,
                &listener.addrs,
                EntityType::Mgr,
                &rt.next(),
            ));
            let (link, peer) = server.opened();
            let id = link.id();
            answers.insert(link, &peer);
            id
        })
        .collect();
    let ask = |tid| Message { kind: kind::POOL_OP, tid, ..Message::default() };
    let (late, waiting) = ids.split_last().unwrap();
    for id in waiting {
        assert!(answers.take(*id, ask(1), |_| (), |(), _| Room::Full(3)).is_none());
    }
    for _ in 0..5 {
        answers.look_for_room();
        assert!(answers.due(|(), _| Room::Full(3)).is_none());
    }
    assert!(
        answers.take(*late, ask(1), |_| (), |(), _| Room::In(4)).is_some()
            && answers.take(*late, ask(2), |_| (), |(), _| Room::Always).is_some()
    );
    assert!(
        answers.take(*late, ask(3), |_| (), |(), _| Room::In(3)).is_none(),
        "he waits behind the others"
    );
    let mut asked = Vec::new();
    for _ in 0..2 {
        answers.look_for_room();
        while let Some((id, _)) = answers.due(|(), _| Room::In(3)) {
            asked.push(id);
        }
        if asked.len() < ids.len() {
            assert!(
                asked.len() >= 32 && asked.iter().all(|id| waiting[..asked.len()].contains(id)),
                "the first first"
            );
        }
    }
    assert_eq!((asked.len(), asked.last()), (ids.len(), Some(late)));
    assert!(answers.take(*late, ask(4), |_| (), |(), _| Room::In(3)).is_some());
}
