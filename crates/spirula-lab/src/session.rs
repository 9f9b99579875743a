//! A client of a cluster, Spirula's or Ceph's: [`Objecter`] and the monitors' session with their connections and a clock.
//!
//! One event loop carries all of it, and the load runs in that loop, too ([`Driver`]): between an answer and the next request
//! nothing crosses a thread. Whoever asks from outside ([`Session::op`], [`Session::command`]) waits for the answer.

use crate::bail;
use crate::prelude::*;
use spirula_client::{Objecter, ObjecterOut, Reply, Request};
use spirula_encoding::crc::crc32c;
use spirula_maps::OsdMap;
use spirula_messages::ceph::{MMgrCommand, MMgrCommandReply, MMgrMap, MOsdBackoff, MOsdMap, MOsdOpReply, kind};
use spirula_messages::{Body, Message};
use spirula_messenger::auth::{AuthStart, BadMethod, Credentials, Mode, ModePolicy, NoneRequest, Secrets};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::{DaemonAuth, Identity};
use spirula_runtime::{
    Answer, Daemon, Hub, Link, LinkId, LinkMode, Mailbox, MonLink, MonNews, MonWay, Mons, NetEvent, Peer, Reactors,
    clock, mailbox, run,
};
use spirula_types::{AddrVec, EntityAddr, EntityType, OsdId, Uuid};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use tokio::runtime::Handle;

/// How long the first maps may take.
const CONNECT: Duration = Duration::from_secs(15);
/// How long a command may take: an election may come between.
const PATIENCE: Duration = Duration::from_secs(60);

/// Before a link to the manager is tried again.
const MGR_RETRY: Duration = Duration::from_millis(500);

/// How to reach a cluster.
#[derive(Clone)]
pub struct Way {
    /// Its monitors.
    pub mons: Vec<AddrVec>,
    /// Who we are, without the kind: `admin`.
    pub user: String,
    /// With what a session goes out; without an identity where the cluster asks for none. Each session has an identity of its own:
    /// two with one number would be one client to an OSD, which takes the second's requests for the first's, sent again.
    pub auth: Arc<dyn Fn() -> DaemonAuth + Send + Sync>,
    /// Connection modes.
    pub modes: ModePolicy,
    /// The directory of `spirula up` or `spirula host`, where one was given.
    pub dir: Option<PathBuf>,
    /// The configuration file, for tools that read it.
    pub conf: Option<PathBuf>,
}

/// A load: what is asked next, and what became of it. It lives in the event loop and must not block.
pub trait Driver: std::any::Any + Send {
    /// An operation that it ordered has ended.
    fn done(&mut self, now: Duration, tag: u64, reply: Reply, out: &mut Vec<Order>);
    /// Time has come to [`Driver::deadline`].
    fn tick(&mut self, now: Duration, out: &mut Vec<Order>);
    /// When it wants to be called.
    fn deadline(&self) -> Duration;
    /// Nothing is under way, and nothing will be.
    fn finished(&self) -> bool;
    /// A payload that it sends often: its checksum is computed once.
    fn payload(&self) -> Option<Bytes> {
        None
    }
}

/// One operation that a load asks for.
pub struct Order {
    /// Comes back in [`Driver::done`].
    pub tag: u64,
    /// What.
    pub request: Request,
}

type Look = Box<dyn FnOnce(&OsdMap) + Send>;
type DriverBox = Box<dyn Driver>;
/// A command's outcome: 0 or −errno, words, output.
pub type Told = (i32, String, Bytes);

enum Event {
    Net(NetEvent),
    Op(Box<Request>, mpsc::Sender<Reply>),
    Command(String, mpsc::Sender<Told>),
    MgrCommand(String, mpsc::Sender<Told>),
    Drive(DriverBox, mpsc::Sender<DriverBox>),
    Look(Look),
    Nudge,
    Stop,
}

impl From<NetEvent> for Event {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

/// Authentication "none" by a client: the monitor numbers us, and the OSDs are told that number. Without it every client of the
/// cluster would be the same one to an OSD, which knows requests by it.
#[derive(Debug)]
struct Nobody {
    user: String,
    global_id: Arc<AtomicU64>,
}

#[derive(Debug)]
struct NobodyRequest {
    inner: NoneRequest,
    learn: Option<Arc<AtomicU64>>,
}

impl Login for Nobody {
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String> {
        let to_monitor = to == EntityType::Mon;
        let global_id = self.global_id.load(Ordering::Relaxed);
        if !to_monitor && global_id == 0 {
            return Err("no monitor has given us a number yet".into());
        }
        let inner = NoneRequest { to_monitor, kind: EntityType::Client, id: self.user.clone(), global_id };
        Ok(Box::new(NobodyRequest { inner, learn: to_monitor.then(|| self.global_id.clone()) }))
    }
}

impl Credentials for NobodyRequest {
    fn request(&mut self) -> Result<AuthStart, String> {
        self.inner.request()
    }
    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart> {
        self.inner.bad_method(bad)
    }
    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        self.inner.more(payload)
    }
    fn done(&mut self, global_id: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        if let Some(learn) = &self.learn {
            learn.store(global_id, Ordering::Relaxed);
        }
        self.inner.done(global_id, mode, payload)
    }
}

/// How our number is known. An OSD knows requests by it: two clients that say none are one to a Ceph, which takes the requests of
/// the second for those of the first, sent again, and answers them without doing anything.
enum Number {
    Proved(Identity),
    Given(Arc<AtomicU64>),
}

impl Number {
    fn get(&self) -> u64 {
        match self {
            Self::Proved(identity) => identity.global_id(),
            Self::Given(number) => number.load(Ordering::Relaxed),
        }
    }
}

/// What asked for an operation.
enum Asker {
    Load(u64),
    Caller(mpsc::Sender<Reply>),
}

struct Client {
    hub: Hub,
    me: Peer,
    number: Number,
    login: Arc<dyn Login>,
    on: Handle,
    mailbox: Mailbox<Event>,
    mon: MonLink,
    objecter: Objecter,
    ways: BTreeMap<OsdId, Link>,
    osds: BTreeMap<LinkId, OsdId>,
    askers: BTreeMap<u64, Asker>,
    calls: BTreeMap<u64, mpsc::Sender<Told>>,
    /// Where the active manager listens, the link to it and whether it is open, and when it may be tried again.
    mgr_addrs: AddrVec,
    mgr: Option<(Link, bool)>,
    mgr_retry: Duration,
    /// Commands that the manager has not answered; sent again over each new link.
    mgr_calls: BTreeMap<u64, (String, mpsc::Sender<Told>)>,
    next_mgr_call: u64,
    /// The question for the newest map.
    newest: Option<u64>,
    load: Option<(DriverBox, mpsc::Sender<DriverBox>)>,
    known: Option<(Bytes, u32)>,
    looks: Vec<Look>,
    out: Vec<ObjecterOut>,
    orders: Vec<Order>,
    /// Why there is no session with a monitor.
    lost: Arc<std::sync::Mutex<String>>,
    stopped: bool,
}

impl Client {
    fn perform(&mut self) {
        // Performing may bring more, which is performed in turn.
        while !self.out.is_empty() {
            for o in std::mem::take(&mut self.out) {
                self.perform_one(o);
            }
        }
    }

    fn perform_one(&mut self, o: ObjecterOut) {
        match o {
            ObjecterOut::Connect(osd, to) => {
                self.me.global_id = self.number.get();
                let link =
                    self.hub.connect(&self.me, &self.login, &self.mailbox.sink(), &to, EntityType::Osd, &self.on);
                self.osds.insert(link.id(), osd);
                self.ways.insert(osd, link);
            }
            ObjecterOut::Close(osd) => {
                if let Some(link) = self.ways.remove(&osd) {
                    self.osds.remove(&link.id());
                    link.close();
                }
            }
            ObjecterOut::Send(osd, m) => {
                if let Some(link) = self.ways.get(&osd) {
                    let same = |k: &&(Bytes, u32)| k.0.as_ptr() == m.data.as_ptr() && k.0.len() == m.data.len();
                    let crc = self.known.as_ref().filter(same).map(|k| k.1);
                    link.send_with_crc(m, crc);
                }
            }
            ObjecterOut::Done(tid, reply) => match self.askers.remove(&tid) {
                Some(Asker::Caller(tx)) => drop(tx.send(reply)),
                Some(Asker::Load(tag)) => {
                    if let Some((load, _)) = &mut self.load {
                        load.done(clock::monotonic(), tag, reply, &mut self.orders);
                    }
                    self.submit_orders();
                }
                None => {}
            },
            ObjecterOut::WantMaps(from) => self.mon.subscribe("osdmap", u64::from(from)),
            ObjecterOut::AskNewest => self.newest = Some(self.mon.newest("osdmap")),
        }
    }

    fn submit_orders(&mut self) {
        for order in std::mem::take(&mut self.orders) {
            let tid = self.objecter.submit(order.request, &mut self.out);
            self.askers.insert(tid, Asker::Load(order.tag));
        }
    }

    fn news(&mut self, news: Vec<MonNews>) {
        for n in news {
            match n {
                MonNews::Message(m) if m.kind == kind::OSD_MAP => self.maps(&m),
                MonNews::Message(m) if m.kind == kind::MGR_MAP => self.mgr_map(&m),
                MonNews::Answer(call, Answer::Command { result, status, output }) => {
                    if let Some(tx) = self.calls.remove(&call) {
                        // The asker may have lost patience.
                        let _ = tx.send((result, status, output));
                    }
                }
                MonNews::Answer(call, Answer::Version { newest, .. }) if self.newest == Some(call) => {
                    self.newest = None;
                    self.objecter.newest(u32::try_from(newest).unwrap_or(u32::MAX), &mut self.out);
                }
                MonNews::Lost(why) => *crate::locked(&self.lost) = why,
                MonNews::Opened | MonNews::Answer(..) | MonNews::Message(_) => {}
            }
        }
    }

    fn maps(&mut self, m: &Message) {
        let Ok(maps) = MOsdMap::from_message(m) else { return };
        // A map that cannot be read is asked for again, whole.
        let _ = self.objecter.maps(clock::monotonic(), &maps, &mut self.out);
        self.mon.set_start("osdmap", u64::from(self.objecter.epoch()) + 1);
        if let Some(map) = self.objecter.map() {
            self.looks.drain(..).for_each(|look| look(map));
        }
    }

    /// The active manager is another one, or elsewhere.
    fn mgr_map(&mut self, m: &Message) {
        let Ok(body) = MMgrMap::from_message(m) else { return };
        let Ok(map) = spirula_encoding::from_slice::<spirula_maps::MgrMap>(&body.mgrmap) else { return };
        if map.active_addrs != self.mgr_addrs {
            self.mgr_addrs = map.active_addrs;
            if let Some((link, _)) = self.mgr.take() {
                link.close();
            }
        }
    }

    /// A link to the manager is only made when something is asked of it.
    fn call_mgr(&mut self, now: Duration) {
        if self.mgr.is_none() && !self.mgr_calls.is_empty() && !self.mgr_addrs.is_blank() && now >= self.mgr_retry {
            let (hub, sink) = (&self.hub, self.mailbox.sink());
            self.mgr_retry = now + MGR_RETRY;
            self.me.global_id = self.number.get();
            self.mgr =
                Some((hub.connect(&self.me, &self.login, &sink, &self.mgr_addrs, EntityType::Mgr, &self.on), false));
        }
    }

    fn send_mgr(&self, call: u64) {
        if let (Some((link, true)), Some((json, _))) = (&self.mgr, self.mgr_calls.get(&call)) {
            let body = MMgrCommand { fsid: Uuid::default(), cmd: vec![json.clone()], input: Bytes::new() };
            link.send(body.into_message(call));
        }
    }

    /// What the network says of the link to the manager.
    fn mgr_net(&mut self, e: &NetEvent) {
        match e {
            NetEvent::Opened { .. } => {
                if let Some((_, open)) = &mut self.mgr {
                    *open = true;
                }
                self.mgr_calls.keys().for_each(|call| self.send_mgr(*call));
            }
            NetEvent::Message(_, m) if m.kind == kind::MGR_COMMAND_REPLY => {
                if let (Ok(a), Some((_, tx))) = (MMgrCommandReply::from_message(m), self.mgr_calls.remove(&m.tid)) {
                    // The asker may have lost patience.
                    let _ = tx.send((a.result, a.status, a.output));
                }
            }
            NetEvent::Closed(..) => self.mgr = None,
            _ => {}
        }
    }

    fn net(&mut self, e: NetEvent) {
        let id = match &e {
            NetEvent::Opened { link, .. } => link.id(),
            NetEvent::Message(id, _) | NetEvent::Closed(id, _) => *id,
            _ => return,
        };
        if self.mgr.as_ref().is_some_and(|(link, _)| link.id() == id) {
            return self.mgr_net(&e);
        }
        match e {
            NetEvent::Opened { link, .. } if self.mon.is(link.id()) => {
                let news = self.mon.opened();
                self.news(news);
            }
            NetEvent::Message(id, m) if self.mon.is(id) => {
                let news = self.mon.message(m);
                self.news(news);
            }
            NetEvent::Closed(id, ended) if self.mon.is(id) => {
                let news = self.mon.closed(&ended.why);
                self.news(news);
            }
            NetEvent::Opened { link, .. } => {
                if let Some(osd) = self.osds.get(&link.id()) {
                    self.objecter.opened(*osd, &mut self.out);
                }
            }
            NetEvent::Closed(id, _) => {
                if let Some(osd) = self.osds.remove(&id) {
                    self.ways.remove(&osd);
                    self.objecter.closed(clock::monotonic(), osd);
                }
            }
            NetEvent::Message(id, m) => {
                let Some(osd) = self.osds.get(&id).copied() else { return };
                match m.kind {
                    kind::OSD_OP_REPLY => {
                        if let Ok(reply) = MOsdOpReply::from_message(&m) {
                            self.objecter.reply(osd, m.tid, reply, &mut self.out);
                        }
                    }
                    kind::OSD_MAP => self.maps(&m),
                    kind::OSD_BACKOFF => {
                        if let Ok(b) = MOsdBackoff::from_message(&m) {
                            self.objecter.backoff(osd, b, &mut self.out);
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// Gives a load back that has ended.
    fn settle(&mut self) {
        if self.load.as_ref().is_some_and(|(load, _)| load.finished())
            && let Some((load, tx)) = self.load.take()
        {
            self.known = None;
            let _ = tx.send(load);
        }
    }
}

impl Daemon for Client {
    type Event = Event;

    fn handle(&mut self, event: Event) {
        match event {
            Event::Net(e) => self.net(e),
            Event::Op(request, tx) => {
                let tid = self.objecter.submit(*request, &mut self.out);
                self.askers.insert(tid, Asker::Caller(tx));
            }
            Event::Command(json, tx) => {
                let call = self.mon.command(json, Bytes::new());
                self.calls.insert(call, tx);
            }
            Event::MgrCommand(json, tx) => {
                let call = self.next_mgr_call;
                self.next_mgr_call += 1;
                self.mgr_calls.insert(call, (json, tx));
                self.call_mgr(clock::monotonic());
                self.send_mgr(call);
            }
            Event::Drive(load, tx) => {
                self.known = load.payload().map(|p| (p.clone(), crc32c(0xffff_ffff, &p)));
                self.load = Some((load, tx));
                self.tick();
            }
            Event::Look(look) => match self.objecter.map() {
                Some(map) => look(map),
                None => self.looks.push(look),
            },
            Event::Nudge => self.tick(),
            Event::Stop => {
                self.mon.stop();
                self.ways.values().for_each(Link::close);
                self.stopped = true;
            }
        }
        self.perform();
        self.settle();
    }

    fn tick(&mut self) {
        let now = clock::monotonic();
        if self.mon.deadline() <= now {
            let news = self.mon.tick();
            self.news(news);
        }
        self.call_mgr(now);
        if self.objecter.deadline() <= now {
            self.objecter.tick(now, &mut self.out);
        }
        if let Some((load, _)) = &mut self.load
            && load.deadline() <= now
        {
            load.tick(now, &mut self.orders);
            self.submit_orders();
        }
        self.perform();
        self.settle();
    }

    fn deadline(&self) -> Duration {
        let load = self.load.as_ref().map_or(Duration::MAX, |(l, _)| l.deadline());
        let mgr = self.mgr.is_none() && !self.mgr_calls.is_empty() && !self.mgr_addrs.is_blank();
        let mgr = if mgr { self.mgr_retry } else { Duration::MAX };
        self.mon.deadline().min(self.objecter.deadline()).min(load).min(mgr)
    }

    fn finished(&self) -> bool {
        self.stopped
    }
}

/// A load that runs.
pub struct Driven<L> {
    rx: mpsc::Receiver<DriverBox>,
    of: std::marker::PhantomData<L>,
}

impl<L: Driver> Driven<L> {
    /// The load, if it ends within the time.
    pub fn ended(&self, within: Duration) -> Option<L> {
        let load: Box<dyn std::any::Any> = self.rx.recv_timeout(within).ok()?;
        load.downcast().ok().map(|l| *l)
    }
}

/// A client on an event loop of its own. It ends when it is dropped.
pub struct Session {
    mailbox: Mailbox<Event>,
    reactors: Option<Reactors>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.mailbox.push(Event::Stop);
        if let Some(reactors) = self.reactors.take() {
            // The links' ends have a moment to leave.
            std::thread::sleep(Duration::from_millis(5));
            reactors.stop();
        }
    }
}

impl Session {
    /// Connects, and waits for the first map. `memory`: bytes of payloads on their way in that it may hold.
    ///
    /// # Errors
    /// When no monitor answers or lets us in, naming those that were asked.
    pub fn open(way: &Way, memory: usize) -> Result<Self> {
        let hub = Hub::new(LinkMode::Tcp, spirula_buffer::PayloadPool::new(memory));
        hub.set_modes(way.modes.clone());
        let mut me = Peer::new(EntityType::Client, &way.user);
        let nonce = spirula_runtime::entropy::cookie().context("draw a nonce")? as u32;
        // All our connections have one nonce: by it the cluster tells us from others.
        me.addrs = AddrVec::one(EntityAddr { kind: EntityAddr::KIND_ANY, nonce, addr: None });
        let auth = (way.auth)();
        let (number, login): (_, Arc<dyn Login>) = match &auth.identity {
            Some(identity) => (Number::Proved(identity.clone()), identity.login()),
            None => {
                let global_id = Arc::new(AtomicU64::new(0));
                let nobody = Nobody { user: way.user.clone(), global_id: global_id.clone() };
                (Number::Given(global_id), Arc::new(nobody))
            }
        };
        let reactors = Reactors::start(1).context("start an event loop")?;
        let (mailbox, rx) = mailbox();
        let lost = Arc::new(std::sync::Mutex::new("no word".to_owned()));
        let on = reactors.next();
        let link = MonWay {
            hub: hub.clone(),
            me: me.clone(),
            login: login.clone(),
            auth,
            sink: mailbox.sink(),
            on: on.clone(),
        };
        let draw = spirula_runtime::entropy::cookie().context("draw a number")?;
        let mut mon = MonLink::new(Mons::new(way.mons.clone(), draw), "", link);
        mon.set_start("monmap", 0);
        mon.set_start("osdmap", 0);
        mon.set_start("mgrmap", 0);
        let client = Client {
            hub,
            me,
            number,
            login,
            on: on.clone(),
            mailbox: mailbox.clone(),
            mon,
            objecter: Objecter::new(),
            ways: BTreeMap::new(),
            osds: BTreeMap::new(),
            askers: BTreeMap::new(),
            calls: BTreeMap::new(),
            mgr_addrs: AddrVec::default(),
            mgr: None,
            mgr_retry: Duration::ZERO,
            mgr_calls: BTreeMap::new(),
            next_mgr_call: 1,
            newest: None,
            load: None,
            known: None,
            looks: Vec::new(),
            out: Vec::new(),
            orders: Vec::new(),
            lost: lost.clone(),
            stopped: false,
        };
        let own = mailbox.clone();
        on.spawn(async move {
            run(client, own, rx).await;
        });
        let session = Self { mailbox, reactors: Some(reactors) };
        if session.look_within(CONNECT, |_| ()).is_none() {
            let all: Vec<String> = way.mons.iter().map(ToString::to_string).collect();
            bail!("no monitor answers; asked were {} ({})", all.join(", "), crate::locked(&lost));
        }
        Ok(session)
    }

    fn look_within<T: Send + 'static>(
        &self,
        patience: Duration,
        f: impl FnOnce(&OsdMap) -> T + Send + 'static,
    ) -> Option<T> {
        let (tx, rx) = mpsc::channel();
        self.mailbox.push(Event::Look(Box::new(move |map| drop(tx.send(f(map))))));
        rx.recv_timeout(patience).ok()
    }

    /// What `f` sees in the newest map.
    ///
    /// # Errors
    /// When there is none for long.
    pub fn look<T: Send + 'static>(&self, f: impl FnOnce(&OsdMap) -> T + Send + 'static) -> Result<T> {
        self.look_within(PATIENCE, f).context("the cluster's map does not come")
    }

    /// Asks the monitors.
    ///
    /// # Errors
    /// When none answers.
    pub fn tell(&self, command: &Value, patience: Duration) -> Result<Told> {
        let (tx, rx) = mpsc::channel();
        self.mailbox.push(Event::Command(command.to_string(), tx));
        rx.recv_timeout(patience).context("the monitors do not answer")
    }

    /// A command that must succeed; its output.
    ///
    /// # Errors
    /// With the monitors' refusal, or when none answers.
    pub fn command(&self, command: &Value) -> Result<Bytes> {
        let (result, status, output) = self.tell(command, PATIENCE)?;
        if result != 0 {
            let why = if status.is_empty() { format!("error {result}") } else { status };
            bail!("{}: the monitors refuse: {why}", command["prefix"].as_str().unwrap_or_default());
        }
        Ok(output)
    }

    /// A command whose output is JSON.
    ///
    /// # Errors
    /// As [`Session::command`]; also when it is not.
    pub fn ask(&self, prefix: &str) -> Result<Value> {
        let out = self.command(&json!({"prefix": prefix, "format": "json"}))?;
        serde_json::from_slice(&out).with_context(|| format!("'{prefix}': the answer is not JSON"))
    }

    /// A command of the manager that must succeed; its output.
    ///
    /// # Errors
    /// With its refusal, or when none answers.
    pub fn mgr_command(&self, command: &Value) -> Result<Bytes> {
        let (tx, rx) = mpsc::channel();
        self.mailbox.push(Event::MgrCommand(command.to_string(), tx));
        let (result, status, output) = rx.recv_timeout(PATIENCE).context("the manager does not answer")?;
        if result != 0 {
            let why = if status.is_empty() { format!("error {result}") } else { status };
            bail!("{}: the manager refuses: {why}", command["prefix"].as_str().unwrap_or_default());
        }
        Ok(output)
    }

    /// One operation; its outcome.
    ///
    /// # Errors
    /// When there is none within the patience.
    pub fn op(&self, request: Request, patience: Duration) -> Result<Reply> {
        let (tx, rx) = mpsc::channel();
        self.mailbox.push(Event::Op(Box::new(request), tx));
        rx.recv_timeout(patience).context("the OSDs do not answer")
    }

    /// Begins a load; one at a time.
    pub fn drive<L: Driver>(&self, load: L) -> Driven<L> {
        let (tx, rx) = mpsc::channel();
        self.mailbox.push(Event::Drive(Box::new(load), tx));
        Driven { rx, of: std::marker::PhantomData }
    }

    /// Calls the load's [`Driver::tick`], if its deadline has come.
    pub fn nudger(&self) -> impl Fn() + Send + 'static {
        let mailbox = self.mailbox.clone();
        move || mailbox.push(Event::Nudge)
    }
}
