//! Links between OSDs over real sockets, one test for each way in which a connection or a session
//! ends with both ends alive. All of it is in one thread, whose time is given: no timeout passes
//! unless a test says so.

use super::accept::{Acceptor, bind, lock};
use super::{Direct, Ends, Task};
use crate::auth::{Login, NoneLogin, Trusting};
use crate::hub::{Hub, LinkMode, Service};
use crate::link::{Link, NetEvent, NetSink, Peer};
use crate::{clock, limits};
use spirula_buffer::PayloadPool;
use spirula_encoding::UTime;
use spirula_messages::Message;
use spirula_messenger::auth::Credentials;
use spirula_messenger::{Connection, Endpoint, SessionKey};
use spirula_types::{AddrVec, EntityAddr, EntityName, EntityType};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// Milliseconds of waiting for an event, after which it does not come.
const PATIENCE: u32 = 100_000;

/// Shows something, or has nothing to show.
struct Ticket {
    login: Arc<NoneLogin>,
    here: AtomicBool,
    asked: AtomicU32,
}

impl Login for Ticket {
    fn credentials(&self, kind: EntityType) -> Result<Box<dyn Credentials>, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.here.load(Ordering::Relaxed) {
            self.login.credentials(kind)
        } else {
            Err("no ticket".into())
        }
    }
}

/// OSD 0, which calls OSD 1.
struct Pair {
    rt: tokio::runtime::Runtime,
    hub: Hub,
    at: SocketAddr,
    there: mpsc::Receiver<NetEvent>,
    here: mpsc::Receiver<NetEvent>,
    acceptor: Acceptor,
    accepting: Option<tokio::task::JoinHandle<()>>,
    me: Peer,
    ticket: Arc<Ticket>,
    to_here: NetSink,
    link: Link,
    /// The other end's link of that name.
    accepted: Link,
    sent: u64,
}

fn inbox() -> (NetSink, mpsc::Receiver<NetEvent>) {
    inbox_of(&Arc::default())
}

/// One whose owner, while `depth` is large, reads nothing from its peers.
fn inbox_of(depth: &Arc<AtomicUsize>) -> (NetSink, mpsc::Receiver<NetEvent>) {
    let (tx, rx) = mpsc::channel();
    (NetSink::new(Arc::new(move |e| drop(tx.send(e))), depth.clone()), rx)
}

impl Pair {
    fn new(watched: bool) -> Self {
        clock::give(Some((HOUR, UTime::default())));
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(1 << 20));
        let ((to_there, there), (to_here, here)) = (inbox(), inbox());
        let socket = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = socket.local_addr().unwrap();
        let mut service = Service {
            me: Peer::new(EntityType::Osd, "1"),
            sink: to_there,
            auth: Arc::new(Trusting::default()),
        };
        service.me.addrs = AddrVec(vec![EntityAddr::v2(at, 7)]);
        let (acceptor, to) = (Acceptor::new(hub.clone(), service.clone()), service.me.addrs);
        let mut me = Peer::new(EntityType::Osd, "0");
        me.addrs = AddrVec(vec![EntityAddr::v2("127.0.0.1:1".parse().unwrap(), 5)]);
        let login = Arc::new(NoneLogin { kind: EntityType::Osd, id: "0".into(), global_id: 0 });
        let ticket =
            Arc::new(Ticket { login, here: AtomicBool::new(true), asked: AtomicU32::new(0) });
        let as_login: Arc<dyn Login> = ticket.clone();
        let link = if watched {
            hub.connect_watched(&me, &as_login, &to_here, &to, EntityType::Osd, rt.handle())
        } else {
            hub.connect(&me, &as_login, &to_here, &to, EntityType::Osd, rt.handle())
        };
        let accepted = link.clone();
        let accepting = None;
        let mut p = Self {
            rt,
            hub,
            at,
            there,
            here,
            acceptor,
            accepting,
            me,
            ticket,
            to_here,
            link,
            accepted,
            sent: 0,
        };
        p.listen(socket);
        p.accepted = p.opened();
        p.expect("it is open", |e| matches!(e, NetEvent::Opened { .. }));
        p.send(10);
        p.arrives();
        p
    }

    fn listen(&mut self, socket: std::net::TcpListener) {
        let acceptor = self.acceptor.clone();
        self.accepting = Some(self.rt.spawn(async move {
            acceptor.run(tokio::net::TcpListener::from_std(socket).unwrap()).await;
        }));
    }

    /// From now on the port refuses; what is connected breaks.
    fn refuse(&mut self) {
        let accepting = self.accepting.take().unwrap();
        accepting.abort();
        self.rt.block_on(accepting).unwrap_err();
        self.link.renew();
        let id = self.link.id();
        self.expect(
            "refused",
            |e| matches!(e, NetEvent::Refused(l, why) if *l == id && why.refused),
        );
    }

    /// It listens again.
    fn listen_again(&mut self) {
        let socket = bind(self.at).unwrap();
        self.listen(socket);
    }

    fn send(&mut self, bytes: usize) {
        self.link.send(Message {
            kind: 9,
            tid: self.sent,
            data: vec![7; bytes].into(),
            ..Message::default()
        });
        self.sent += 1;
    }

    fn next(&self, of: &mpsc::Receiver<NetEvent>) -> Option<NetEvent> {
        self.rt.block_on(async {
            for _ in 0..PATIENCE {
                if let Ok(e) = of.try_recv() {
                    return Some(e);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            None
        })
    }

    /// What OSD 0 is told next, refusals apart.
    #[track_caller]
    fn expect(&self, what: &str, is: impl Fn(&NetEvent) -> bool) {
        for _ in 0..1000 {
            match self.next(&self.here) {
                Some(e) if is(&e) => return,
                Some(NetEvent::Refused(..)) => {}
                other => panic!("not {what}: {other:?}"),
            }
        }
        panic!("not {what}, only refused");
    }

    #[track_caller]
    fn resumed(&self) {
        self.expect("resumed", |e| matches!(e, NetEvent::Resumed(l) if *l == self.link.id()));
    }

    #[track_caller]
    fn renewed(&self) {
        self.expect("renewed", |e| matches!(e, NetEvent::Renewed(l) if *l == self.link.id()));
    }

    /// OSD 1 is told that OSD 0 is there, and of nothing else before.
    #[track_caller]
    fn opened(&self) -> Link {
        match self.next(&self.there) {
            Some(NetEvent::Opened { link, outgoing: false, .. }) => link,
            other => panic!("not opened: {other:?}"),
        }
    }

    #[track_caller]
    fn closed(&self, why: &str) {
        match self.next(&self.there) {
            Some(NetEvent::Closed(id, ended)) if id == self.accepted.id() => {
                assert!(ended.why.contains(why), "{ended}")
            }
            other => panic!("not closed: {other:?}"),
        }
    }

    /// What was sent last is what comes next.
    #[track_caller]
    fn arrives(&self) {
        match self.next(&self.there) {
            Some(NetEvent::Message(_, m)) => assert_eq!(m.tid, self.sent - 1),
            other => panic!("no message: {other:?}"),
        }
    }

    #[track_caller]
    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        self.rt.block_on(async {
            for _ in 0..PATIENCE {
                if is() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            panic!("never: {what}");
        });
    }

    #[track_caller]
    fn until_parked(&self) {
        let key = SessionKey { name: EntityName::osd(0), addr: self.me.addr() };
        self.until("parked", || lock(&self.acceptor.lossless).parked.is_parked(&key));
    }

    /// The connection breaks, and some attempts to make it anew come to nothing.
    fn fail(&self) {
        self.link.renew();
        self.until_parked();
        let before = self.ticket.asked.load(Ordering::Relaxed);
        self.until("tried again", || self.ticket.asked.load(Ordering::Relaxed) > before + 2);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        clock::give(None);
    }
}

#[test]
fn a_session_goes_on_after_days_of_refused_connections() {
    let mut p = Pair::new(false);
    for _ in 0..3 {
        p.refuse();
        p.until_parked();
        p.send(100_000);
        clock::give(Some((clock::monotonic() + 48 * HOUR, UTime::default())));
        p.listen_again();
        p.resumed();
        p.arrives();
    }
    p.send(1);
    p.arrives();
}

#[test]
fn a_link_that_cannot_prove_itself_waits_and_loses_nothing() {
    let mut p = Pair::new(false);
    p.ticket.here.store(false, Ordering::Relaxed);
    p.fail();
    p.send(10);
    p.ticket.here.store(true, Ordering::Relaxed);
    p.resumed();
    p.arrives();
    // Nor where the two want different protection, which ends each handshake.
    p.hub.set_modes(spirula_messenger::auth::ModePolicy::all(&"secure".parse().unwrap()));
    p.fail();
    p.send(10);
    p.hub.set_modes(spirula_messenger::auth::ModePolicy::default());
    p.resumed();
    p.arrives();
}

#[test]
fn a_session_that_its_owner_gives_up_is_told_to_both() {
    let mut p = Pair::new(false);
    // One that is connected goes on.
    p.accepted.keep(false);
    p.send(1);
    p.arrives();
    p.refuse();
    p.closed("closed by the peer");
    p.send(1);
    p.listen_again();
    p.renewed();
    p.accepted = p.opened();
    p.send(1);
    p.arrives();
    // One that waits ends.
    p.refuse();
    p.until_parked();
    p.accepted.keep(false);
    p.listen_again();
    p.renewed();
    p.closed("not expected");
    p.accepted = p.opened();
    p.send(1);
    p.arrives();
}

#[test]
fn a_session_in_which_too_much_waits_is_told_to_both() {
    let mut p = Pair::new(true);
    p.refuse();
    p.until_parked();
    for _ in 0..2 * limits::SESSION_BYTES_WATCHED / 1000 {
        p.send(1000);
    }
    // The next attempt finds them.
    p.link.renew();
    p.expect("refused", |e| matches!(e, NetEvent::Refused(..)));
    p.listen_again();
    p.renewed();
    p.closed("new session");
    p.accepted = p.opened();
    p.send(1);
    p.arrives();
}

/// What is thrown away with a session counts no more, or the link would be above its bound for good
/// and never read again.
#[test]
fn what_is_lost_with_an_overfull_session_counts_no_more() {
    let mut p = Pair::new(true);
    // In one go: the connection is open, and nothing is taken from it meanwhile.
    for _ in 0..4 * limits::SESSION_BYTES_WATCHED / 1000 {
        p.send(1000);
    }
    p.renewed();
    assert_eq!(p.link.unsent(), 0);
    p.closed("new session");
    p.accepted = p.opened();
    p.send(1);
    p.arrives();
}

#[test]
fn a_peer_that_begins_another_session_ends_its_first() {
    let mut p = Pair::new(false);
    p.link.close();
    p.expect("closed", |e| matches!(e, NetEvent::Closed(..)));
    p.until_parked();
    let login: Arc<dyn Login> = p.ticket.clone();
    let to = AddrVec(vec![EntityAddr::v2(p.at, 7)]);
    p.link = p.hub.connect(&p.me, &login, &p.to_here, &to, EntityType::Osd, p.rt.handle());
    p.closed("new session");
    p.accepted = p.opened();
    p.expect("opened", |e| matches!(e, NetEvent::Opened { .. }));
    p.send(1);
    p.arrives();
}

#[test]
fn only_an_owner_that_closes_its_links_hangs_up_in_due_form() {
    for stops in [false, true] {
        let mut p = Pair::new(false);
        let accepting = p.accepting.take().unwrap();
        accepting.abort();
        p.rt.block_on(accepting).unwrap_err();
        if stops {
            p.accepted.close();
        } else {
            // As when another connection of ours has come.
            lock(&p.acceptor.lossless)
                .parked
                .links()
                .for_each(|ends| ends.queue.replaced.notify_one());
        }
        match p.next(&p.here) {
            Some(NetEvent::Refused(_, why)) => assert_eq!(why.hung_up, stops, "{why}"),
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// What another OSD sends is judged alike at both ends of a link: its memory is what others wait
/// for, so ending it would help nobody.
#[test]
fn only_clients_lose_their_connections_when_they_are_slow_with_a_payload() {
    let (sink, _events) = inbox();
    let pool = PayloadPool::new(1 << 20);
    let endpoint = Arc::new(Endpoint::new(EntityType::Osd, 1, AddrVec::default()));
    let connection = Connection::accept(endpoint, "127.0.0.1:1".parse().unwrap(), Duration::ZERO);
    let mut task = Task::new(connection, sink, pool.clone(), Ends::new());
    task.direct = Some(Direct { buffer: pool.take(4 << 20), start: 0, end: 4 << 20 });
    assert!(pool.over_budget() && task.dawdles(HOUR), "a client's");
    task.lossless = true;
    assert!(!task.dawdles(HOUR), "an OSD's that we called");
    (task.lossless, task.key) =
        (false, Some(SessionKey { name: EntityName::osd(0), addr: EntityAddr::default() }));
    assert!(!task.dawdles(HOUR), "an OSD's that called us");
}

/// Who takes nothing of what is sent to him, as a process that was stopped, is sent nothing more
/// for his being held.
#[test]
fn only_who_takes_what_is_sent_is_told_that_his_daemon_lives() {
    let (sink, _events) = inbox();
    let endpoint = Arc::new(Endpoint::new(EntityType::Mon, 1, AddrVec::default()));
    let connection = Connection::accept(endpoint, "127.0.0.1:1".parse().unwrap(), Duration::ZERO);
    let mut task = Task::new(connection, sink, PayloadPool::new(1 << 20), Ends::new());
    let banner = task.connection.take_output();
    assert!(!task.waits_for_daemon(HOUR), "not held");
    task.ends.link.hold();
    assert!(task.waits_for_daemon(HOUR));
    task.output.append(banner);
    assert!(!task.waits_for_daemon(HOUR));
    // One that is slow has always something unsent.
    let queue = task.ends.queue.clone();
    queue.unsent.store(1, Ordering::Relaxed);
    assert!(!task.waits_for_daemon(HOUR));
    queue.taken_at.store(HOUR.as_nanos() as u64, Ordering::Relaxed);
    assert!(task.waits_for_daemon(HOUR + Duration::from_secs(4)));
    assert!(!task.waits_for_daemon(HOUR + Duration::from_secs(6)));
}

/// A client of OSD 1 that stopped reading, with more on its way to it than any socket holds: its
/// end and OSD 1's.
fn does_not_read(p: &Pair, depth: &Arc<AtomicUsize>) -> (Link, Link) {
    let login: Arc<dyn Login> =
        Arc::new(NoneLogin { kind: EntityType::Client, id: "a".into(), global_id: 4 });
    let ((to_client, _), to) = (inbox_of(depth), AddrVec(vec![EntityAddr::v2(p.at, 7)]));
    let client = p.hub.connect(
        &Peer::new(EntityType::Client, "a"),
        &login,
        &to_client,
        &to,
        EntityType::Osd,
        p.rt.handle(),
    );
    let accepted = p.opened();
    depth.store(1 << 20, Ordering::Relaxed);
    for tid in 0..64 {
        accepted.send(Message {
            kind: 9,
            tid,
            data: vec![7; 1 << 20].into(),
            ..Message::default()
        });
    }
    // What sockets hold counts as taken; then nothing is taken any more. On a machine that has much
    // to do, some looks see nothing of it though there is more to come.
    let (mut left, mut same) = (usize::MAX, 0);
    p.until("full", || {
        std::thread::sleep(Duration::from_millis(20));
        let before = std::mem::replace(&mut left, accepted.unsent());
        same = if before == left && left < 64 << 20 { same + 1 } else { 0 };
        same >= 15
    });
    assert!(left > 16 << 20, "{left}");
    (client, accepted)
}

/// Closing is for those, too, who do not do their part: what was sent to them takes memory.
#[test]
fn a_closed_connection_ends_though_its_peer_does_not_read() {
    for takes_some in [false, true] {
        let mut p = Pair::new(false);
        let depth = Arc::default();
        let (_client, accepted) = does_not_read(&p, &depth);
        p.accepted = accepted;
        p.accepted.close();
        let (pause, pauses) = if takes_some { (limits::FLUSH / 2, 12) } else { (limits::FLUSH, 1) };
        for _ in 0..pauses {
            if takes_some {
                let before = p.accepted.unsent();
                p.until("some is taken", || {
                    // A message or two at a time.
                    depth.store(limits::MAILBOX_EVENTS, Ordering::Relaxed);
                    p.accepted.unsent() < before
                });
            }
            clock::give(Some((clock::monotonic() + pause, UTime::default())));
        }
        p.closed("did not take");
        p.send(1);
        p.arrives();
    }
}

#[test]
fn an_owner_is_told_once_when_its_peer_takes_something() {
    let p = Pair::new(false);
    let depth = Arc::default();
    let (_client, accepted) = does_not_read(&p, &depth);
    accepted.tell_when_taken();
    std::thread::sleep(Duration::from_millis(50));
    assert!(p.there.try_recv().is_err(), "it takes nothing");
    depth.store(0, Ordering::Relaxed);
    match p.next(&p.there) {
        Some(NetEvent::Taken(id)) => assert_eq!(id, accepted.id()),
        other => panic!("not told: {other:?}"),
    }
    p.until("all is taken", || accepted.unsent() == 0);
    assert!(p.there.try_recv().is_err(), "told once");
}

/// Two processes full of what their clients write would else each wait for the other to take its
/// part of that.
#[test]
fn what_another_osd_sends_waits_for_no_memory_and_what_a_client_sends_does() {
    let mut p = Pair::new(false);
    let login: Arc<dyn Login> =
        Arc::new(NoneLogin { kind: EntityType::Client, id: "a".into(), global_id: 4 });
    let ((to_client, _client), to) = (inbox(), AddrVec(vec![EntityAddr::v2(p.at, 7)]));
    let me = Peer::new(EntityType::Client, "a");
    let client = p.hub.connect(&me, &login, &to_client, &to, EntityType::Osd, p.rt.handle());
    let accepted = p.opened();
    let taken = p.hub.pool().take(4 << 20);
    assert!(p.hub.pool().over_budget());
    let large = |tid| Message {
        kind: 9,
        tid,
        data: vec![7; 2 * limits::DIRECT_PAYLOAD].into(),
        ..Message::default()
    };
    client.send(large(1000));
    for _ in 0..2 {
        p.send(2 * limits::DIRECT_PAYLOAD);
        p.arrives();
    }
    // The other way, as answers go.
    p.accepted.send(large(77));
    p.expect("the answer", |e| matches!(e, NetEvent::Message(_, m) if m.tid == 77));
    drop(taken);
    match p.next(&p.there) {
        Some(NetEvent::Message(l, m)) => assert_eq!((l, m.tid), (accepted.id(), 1000)),
        other => panic!("no message: {other:?}"),
    }
}
