//! A client of a cluster, Spirula's or Ceph's, on an event loop of its own:
//! [`spirula_rados::Client`] behind a mailbox.
//!
//! One event loop carries all of it, and the load runs in that loop, too ([`Driver`]): between an
//! answer and the next request nothing crosses a thread. Whoever asks from outside
//! ([`Session::op`], [`Session::command`]) waits for the answer.

use crate::bail;
use crate::prelude::*;
use spirula_client::{Reply, Request};
use spirula_maps::OsdMap;
use spirula_messenger::auth::ModePolicy;
use spirula_rados::{Client, News, Told};
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{Daemon, Mailbox, NetEvent, Reactors, clock, mailbox, run};
use spirula_types::{AddrVec, EntityType};
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

/// How long the first maps may take.
const CONNECT: Duration = Duration::from_secs(15);
/// How long a command may take: an election may come between.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to reach a cluster.
#[derive(Clone)]
pub struct Way {
    /// Its monitors.
    pub mons: Vec<AddrVec>,
    /// Who we are, without the kind: `admin`.
    pub user: String,
    /// With what a session goes out; without an identity where the cluster asks for none. Each
    /// session has an identity of its own: two with one number would be one client to an OSD, which
    /// takes the second's requests for the first's, sent again.
    pub auth: Arc<dyn Fn() -> DaemonAuth + Send + Sync>,
    /// Connection modes.
    pub modes: ModePolicy,
    /// The directory of `spirula up` or `spirula host`, where one was given.
    pub dir: Option<PathBuf>,
    /// The configuration file, for tools that read it.
    pub conf: Option<PathBuf>,
}

/// A load: what is asked next, and what became of it. It lives in the event loop and must not
/// block.
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

/// What asked for an operation.
enum Asker {
    Load(u64),
    Caller(mpsc::Sender<Reply>),
}

/// The client in its loop.
struct Shell {
    client: Client,
    askers: BTreeMap<u64, Asker>,
    calls: BTreeMap<u64, mpsc::Sender<Told>>,
    load: Option<(DriverBox, mpsc::Sender<DriverBox>)>,
    looks: Vec<Look>,
    orders: Vec<Order>,
    /// Why there is no session with a monitor.
    lost: Arc<std::sync::Mutex<String>>,
    stopped: bool,
}

impl Shell {
    /// Hands out what came of something. A load asks for more meanwhile, which may bring more.
    fn settle(&mut self) {
        while let Some(news) = self.client.news() {
            match news {
                News::Done(tid, reply) => self.done(tid, reply),
                News::Told(call, told) => {
                    if let Some(tx) = self.calls.remove(&call) {
                        // The asker may have lost patience.
                        let _ = tx.send(told);
                    }
                }
                News::Map => {
                    if let Some(map) = self.client.map() {
                        self.looks.drain(..).for_each(|look| look(map));
                    }
                }
                News::Newest(..) | News::Watch(_) => {}
            }
        }
        // Gives a load back that has ended.
        if self.load.as_ref().is_some_and(|(load, _)| load.finished())
            && let Some((load, tx)) = self.load.take()
        {
            self.client.know(None);
            let _ = tx.send(load);
        }
    }

    fn done(&mut self, tid: u64, reply: Reply) {
        match self.askers.remove(&tid) {
            Some(Asker::Caller(tx)) => drop(tx.send(reply)),
            Some(Asker::Load(tag)) => {
                if let Some((load, _)) = &mut self.load {
                    load.done(clock::monotonic(), tag, reply, &mut self.orders);
                }
                self.submit_orders();
            }
            None => {}
        }
    }

    fn submit_orders(&mut self) {
        for order in self.orders.drain(..) {
            let tid = self.client.submit(order.request);
            self.askers.insert(tid, Asker::Load(order.tag));
        }
    }

    fn note_loss(&self) {
        if !self.client.is_in() {
            let mut lost = crate::locked(&self.lost);
            if *lost != self.client.lost() {
                self.client.lost().clone_into(&mut lost);
            }
        }
    }
}

impl Daemon for Shell {
    type Event = Event;

    fn handle(&mut self, event: Event) {
        match event {
            Event::Net(e) => self.client.net(e),
            Event::Op(request, tx) => {
                let tid = self.client.submit(*request);
                self.askers.insert(tid, Asker::Caller(tx));
            }
            Event::Command(json, tx) => {
                let call = self.client.command(json);
                self.calls.insert(call, tx);
            }
            Event::MgrCommand(json, tx) => {
                let call = self.client.manager_command(json);
                self.calls.insert(call, tx);
            }
            Event::Drive(load, tx) => {
                self.client.know(load.payload());
                self.load = Some((load, tx));
                self.tick();
            }
            Event::Look(look) => match self.client.map() {
                Some(map) => look(map),
                None => self.looks.push(look),
            },
            Event::Nudge => self.tick(),
            Event::Stop => {
                self.client.stop();
                self.stopped = true;
            }
        }
        self.settle();
    }

    fn tick(&mut self) {
        self.client.tick();
        let now = clock::monotonic();
        if let Some((load, _)) = &mut self.load
            && load.deadline() <= now
        {
            load.tick(now, &mut self.orders);
            self.submit_orders();
        }
        self.settle();
        self.note_loss();
    }

    fn deadline(&self) -> Duration {
        let load = self.load.as_ref().map_or(Duration::MAX, |(l, _)| l.deadline());
        self.client.deadline().min(load)
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
    /// Connects, and waits for the first map. `memory`: bytes of payloads on their way in that it
    /// may hold.
    ///
    /// # Errors
    /// When no monitor answers or lets us in, naming those that were asked.
    pub fn open(way: &Way, memory: usize) -> Result<Self> {
        let reactors = Reactors::start(1).context("start an event loop")?;
        let (mailbox, rx) = mailbox();
        let lost = Arc::new(std::sync::Mutex::new("no word".to_owned()));
        let on = reactors.next();
        let to = spirula_rados::Way {
            mons: way.mons.clone(),
            kind: EntityType::Client,
            id: way.user.clone(),
            auth: (way.auth)(),
            modes: way.modes.clone(),
            memory,
            nonce: spirula_runtime::entropy::cookie().context("draw a nonce")? as u32,
        };
        let draw = spirula_runtime::entropy::cookie().context("draw a number")?;
        let client = Shell {
            client: Client::new(to, draw, mailbox.sink(), on.clone()),
            askers: BTreeMap::new(),
            calls: BTreeMap::new(),
            load: None,
            looks: Vec::new(),
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
    pub fn look<T: Send + 'static>(
        &self,
        f: impl FnOnce(&OsdMap) -> T + Send + 'static,
    ) -> Result<T> {
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
        let Told { result, status, output } = self.tell(command, PATIENCE)?;
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
        let Told { result, status, output } =
            rx.recv_timeout(PATIENCE).context("the manager does not answer")?;
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
