//! A daemon's session with the monitors: [`Monitors`] with its connection and its tickets.
//!
//! The owner hands on what the network says of this link, calls [`MonLink::tick`] by
//! [`MonLink::deadline`], and acts on the [`MonNews`] that it is given.

use crate::auth::Login;
use crate::cephx::DaemonAuth;
use crate::{Hub, Link, LinkId, NetSink, Peer, clock};
use bytes::Bytes;
use spirula_client::{Answer, MonitorOut, Monitors, Mons};
use spirula_messages::ceph::kind;
use spirula_messages::{Body, Message};
use spirula_types::{AddrVec, EntityType};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Between two looks at tickets that end.
const RENEW: Duration = Duration::from_secs(5);

/// What the owner is to know.
#[derive(Debug)]
pub enum MonNews {
    /// A session is open. Tickets and subscriptions were asked for.
    Opened,
    /// There is no session any more, or none could be had, and why; the same reason comes once.
    Lost(String),
    /// The answer to [`MonLink::command`].
    Answer(u64, Answer),
    /// The monitor sent this.
    Message(Message),
}

/// How the link goes out.
#[derive(Clone)]
pub struct MonWay {
    /// The process.
    pub hub: Hub,
    /// Who we are.
    pub me: Peer,
    /// What proves it at the door.
    pub login: Arc<dyn Login>,
    /// Whose tickets and keys are renewed over the link.
    pub auth: DaemonAuth,
    /// Where its events go.
    pub sink: NetSink,
    /// The loop that carries it.
    pub on: Handle,
}

/// Opens a link to a monitor at an address.
pub type ToMonitor = Box<dyn Fn(&AddrVec) -> Link + Send>;

/// The link to one of the monitors.
///
/// What happens may be told with the monotonic time at which it is told (`…_at`), or as of now.
pub struct MonLink {
    monitors: Monitors,
    link: Option<Link>,
    connect: ToMonitor,
    auth: DaemonAuth,
    renew: Duration,
}

impl MonLink {
    /// One that goes to these monitors; nothing is sent before [`MonLink::tick`]. `hostname` is
    /// told with subscriptions.
    pub fn new(mons: Mons, hostname: &str, way: MonWay) -> Self {
        let MonWay { hub, me, login, auth, sink, on } = way;
        let connect = move |to: &AddrVec| hub.connect(&me, &login, &sink, to, EntityType::Mon, &on);
        Self::over(mons, hostname, Box::new(connect), auth)
    }

    /// The same with links that `connect` opens; `auth`: whose tickets are renewed over them.
    pub fn over(mons: Mons, hostname: &str, connect: ToMonitor, auth: DaemonAuth) -> Self {
        Self {
            monitors: Monitors::new(mons, hostname),
            link: None,
            connect,
            auth,
            renew: Duration::ZERO,
        }
    }

    /// Is this the link to the monitor?
    pub fn is(&self, id: LinkId) -> bool {
        self.link.as_ref().is_some_and(|l| l.id() == id)
    }

    /// True while there is a session.
    pub fn is_open(&self) -> bool {
        self.monitors.is_open()
    }

    /// The monitors that are known.
    pub fn mons(&self) -> &Mons {
        self.monitors.mons()
    }

    /// The link is open.
    pub fn opened(&mut self) -> Vec<MonNews> {
        self.opened_at(clock::monotonic())
    }

    /// The same at `now`.
    pub fn opened_at(&mut self, now: Duration) -> Vec<MonNews> {
        let mut out = Vec::new();
        self.monitors.opened(now, &mut out);
        self.perform(now, out)
    }

    /// The link ended, or could not be opened.
    pub fn closed(&mut self, why: &str) -> Vec<MonNews> {
        self.closed_at(clock::monotonic(), why)
    }

    /// The same at `now`.
    pub fn closed_at(&mut self, now: Duration, why: &str) -> Vec<MonNews> {
        self.link = None;
        let mut out = Vec::new();
        self.monitors.closed(now, why, &mut out);
        self.perform(now, out)
    }

    /// A message came over the link.
    pub fn message(&mut self, m: Message) -> Vec<MonNews> {
        self.message_at(clock::monotonic(), m)
    }

    /// The same at `now`.
    pub fn message_at(&mut self, now: Duration, m: Message) -> Vec<MonNews> {
        let mut out = Vec::new();
        if self.monitors.message(now, &m, &mut out) {
            return self.perform(now, out);
        }
        if m.kind == kind::AUTH_REPLY {
            self.auth.reply(&m);
            return Vec::new();
        }
        vec![MonNews::Message(m)]
    }

    /// Looks after the session, and after tickets that end.
    pub fn tick(&mut self) -> Vec<MonNews> {
        self.tick_at(clock::monotonic())
    }

    /// The same at `now`.
    pub fn tick_at(&mut self, now: Duration) -> Vec<MonNews> {
        if now >= self.renew {
            self.renew_tickets(now);
        }
        let mut out = Vec::new();
        self.monitors.tick(now, &mut out);
        self.perform(now, out)
    }

    /// When [`MonLink::tick`] wants to be called, on [`clock::monotonic`].
    pub fn deadline(&self) -> Duration {
        self.monitors.deadline()
    }

    fn renew_tickets(&mut self, now: Duration) {
        self.renew = now + RENEW;
        if let Some(link) = self.link.as_ref().filter(|_| self.monitors.is_open()) {
            self.auth.requests().into_iter().for_each(|m| link.send(m));
        }
    }

    /// See [`Monitors::subscribe`].
    pub fn subscribe(&mut self, what: &str, start: u64) {
        self.call(|m, out| m.subscribe(what, start, out));
    }

    /// See [`Monitors::ask_once`].
    pub fn ask_once(&mut self, what: &str, start: u64) {
        self.call(|m, out| m.ask_once(what, start, out));
    }

    /// See [`Monitors::set_start`].
    pub fn set_start(&mut self, what: &str, start: u64) {
        self.monitors.set_start(what, start);
    }

    /// Sends a message if there is a session; otherwise it is dropped.
    pub fn send(&self, body: impl Body) {
        self.forward(body.into_message(0));
    }

    /// See [`Monitors::command`].
    pub fn command(&mut self, json: String, input: Bytes) -> u64 {
        self.call(|m, out| m.command(json, input, out))
    }

    /// See [`Monitors::newest`].
    pub fn newest(&mut self, what: &str) -> u64 {
        self.call(|m, out| m.newest(what, out))
    }

    /// See [`Monitors::give_up`].
    pub fn give_up(&mut self, call: u64) {
        self.monitors.give_up(call);
    }

    /// The same with a message as it is.
    pub fn forward(&self, m: Message) {
        if let Some(link) = self.link.as_ref().filter(|_| self.monitors.is_open()) {
            link.send(m);
        }
    }

    /// Ends the session for good.
    pub fn stop(&mut self) {
        self.call(Monitors::stop);
    }

    /// Something that only sends.
    fn call<T>(&mut self, f: impl FnOnce(&mut Monitors, &mut Vec<MonitorOut>) -> T) -> T {
        let mut out = Vec::new();
        let result = f(&mut self.monitors, &mut out);
        // No session opens by it, which alone needs the time.
        self.perform(self.renew, out);
        result
    }

    fn connect(&mut self, to: &AddrVec) {
        self.link = Some((self.connect)(to));
    }

    fn perform(&mut self, now: Duration, out: Vec<MonitorOut>) -> Vec<MonNews> {
        let mut news = Vec::new();
        for o in out {
            match o {
                MonitorOut::Connect(to) => self.connect(&to),
                MonitorOut::Close => {
                    if let Some(link) = self.link.take() {
                        link.close();
                    }
                }
                MonitorOut::Send(m) => {
                    if let Some(link) = &self.link {
                        link.send(m);
                    }
                }
                MonitorOut::Opened => {
                    self.renew_tickets(now);
                    news.push(MonNews::Opened);
                }
                MonitorOut::Lost(why) => news.push(MonNews::Lost(why)),
                MonitorOut::Answer(call, answer) => news.push(MonNews::Answer(call, answer)),
            }
        }
        news
    }
}
