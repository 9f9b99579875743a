//! A client of our own within the process: how `up` and `status` ask monitor and manager.
//!
//! It speaks to them as any administrator would, by commands.

use bytes::Bytes;
use spirula_messages::ceph::{
    MCommand, MCommandReply, MMgrCommand, MMgrCommandReply, MMgrMap, kind,
};
use spirula_messages::{Body, Message};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{
    self as runtime, Daemon, Hub, Link, LinkId, Mailbox, MonLink, MonNews, MonWay, Mons, NetEvent,
    NetSink, Peer, clock, mailbox,
};
use spirula_types::{AddrVec, EntityType, Uuid};
use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);

/// Result, text for stderr, output.
pub type Answer = (i32, String, Bytes);

/// What arrives in its mailbox.
pub enum AdminMail {
    /// Network.
    Net(NetEvent),
    /// A command for the monitor, or (true) the manager.
    Command(bool, String, oneshot::Sender<Answer>),
}

impl From<NetEvent> for AdminMail {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

/// The asking side.
pub struct Admin {
    mailbox: Mailbox<AdminMail>,
}

impl Admin {
    /// Starts the client on `on`.
    pub fn start(hub: &Hub, mons: Mons, auth: DaemonAuth, on: &Handle) -> Self {
        let (mailbox, rx) = mailbox::<AdminMail>();
        let me = admin_peer();
        let login = auth.login(&me);
        let way = MonWay {
            hub: hub.clone(),
            me: me.clone(),
            login: login.clone(),
            auth,
            sink: mailbox.sink(),
            on: on.clone(),
        };
        let mut mon = MonLink::new(mons, "", way);
        ["monmap", "mgrmap"].into_iter().for_each(|what| mon.set_start(what, 0));
        let daemon = AdminDaemon {
            login,
            me: me.clone(),
            hub: hub.clone(),
            on: on.clone(),
            mailbox: mailbox.clone(),
            mon,
            mgr_addrs: AddrVec::default(),
            mgr: Line::default(),
            next_tid: 1,
            waiting: HashMap::new(),
            calls: HashMap::new(),
        };
        let own = mailbox.clone();
        on.spawn(async move {
            spirula_runtime::run(daemon, own, rx).await;
        });
        Self { mailbox }
    }

    /// Asks the monitor. `None` if it does not answer. Not for event-loop threads.
    pub fn command(&self, json: &str) -> Option<Answer> {
        self.ask(false, json)
    }

    /// Asks the manager. `None` if it does not answer.
    pub fn mgr_command(&self, json: &str) -> Option<Answer> {
        self.ask(true, json)
    }

    fn ask(&self, mgr: bool, json: &str) -> Option<Answer> {
        let (tx, rx) = oneshot::channel();
        self.mailbox.push(AdminMail::Command(mgr, json.to_owned(), tx));
        super::wait(rx, PATIENCE)
    }
}

fn admin_peer() -> Peer {
    Peer::new(EntityType::Client, "admin")
}

/// Asks the daemon that listens at `to` in this process, as `ceph tell` would, over a link
/// through memory. `None` if it does not answer in time. Not for event-loop threads.
pub fn tell_local(hub: &Hub, to: &AddrVec, json: String, patience: Duration) -> Option<Answer> {
    let (tx, rx) = mpsc::channel();
    let sink = NetSink::new(
        Arc::new(move |e| {
            // The asker has lost patience.
            let _ = tx.send(e);
        }),
        Arc::default(),
    );
    let link = hub.connect_local(&admin_peer(), &sink, to)?;
    // Any cluster's but none: without one a manager takes it for a command of old clients.
    let fsid = Uuid([0xff; 16]);
    link.send(MCommand { fsid, cmd: vec![json], input: Bytes::new() }.into_message(1));
    let deadline = clock::monotonic() + patience;
    let answer = loop {
        match rx.recv_timeout(deadline.saturating_sub(clock::monotonic())) {
            Ok(NetEvent::Message(_, m)) if m.kind == kind::COMMAND_REPLY => {
                break MCommandReply::from_message(&m).ok().map(|a| (a.result, a.status, a.output));
            }
            Ok(NetEvent::Closed(..)) | Err(_) => break None,
            Ok(_) => {}
        }
    };
    link.close();
    answer
}

/// A link and what waits for it to open.
#[derive(Default)]
struct Line {
    link: Option<Link>,
    open: bool,
    retry: Duration,
    queued: Vec<Message>,
}

impl Line {
    fn send(&mut self, m: Message) {
        match &self.link {
            Some(link) if self.open => link.send(m),
            _ => self.queued.push(m),
        }
    }

    fn is(&self, id: LinkId) -> bool {
        self.link.as_ref().is_some_and(|l| l.id() == id)
    }
}

struct AdminDaemon {
    me: Peer,
    login: Arc<dyn Login>,
    hub: Hub,
    on: Handle,
    mailbox: Mailbox<AdminMail>,
    mon: MonLink,
    mgr_addrs: AddrVec,
    mgr: Line,
    next_tid: u64,
    /// Who waits for the manager, by transaction.
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    /// Who waits for the monitor, by call.
    calls: HashMap<u64, oneshot::Sender<Answer>>,
}

impl AdminDaemon {
    fn mon_news(&mut self, news: Vec<MonNews>) {
        for n in news {
            match n {
                MonNews::Opened => {}
                // Who asks is told when patience ends.
                MonNews::Lost(why) => tracing::debug!("monitor: {why}"),
                MonNews::Message(m) => self.message(&m),
                MonNews::Answer(call, runtime::Answer::Command { result, status, output }) => {
                    if let Some(done) = self.calls.remove(&call) {
                        // Whoever asked may have lost patience.
                        let _ = done.send((result, status, output));
                    }
                }
                MonNews::Answer(..) => {}
            }
        }
    }

    fn message(&mut self, m: &Message) {
        let answer = match m.kind {
            kind::MGR_COMMAND_REPLY => {
                MMgrCommandReply::from_message(m).map(|a| (a.result, a.status, a.output))
            }
            kind::MGR_MAP => {
                if let Ok(map) = MMgrMap::from_message(m)
                    && let Ok(map) =
                        spirula_encoding::from_slice::<spirula_maps::MgrMap>(&map.mgrmap)
                    && map.active_addrs != self.mgr_addrs
                {
                    self.mgr_addrs = map.active_addrs;
                    if let Some(old) = self.mgr.link.take() {
                        old.close();
                    }
                    self.mgr.open = false;
                }
                return;
            }
            _ => return,
        };
        if let (Some(done), Ok(answer)) = (self.waiting.remove(&m.tid), answer) {
            // Whoever asked may have lost patience.
            let _ = done.send(answer);
        }
    }
}

impl Daemon for AdminDaemon {
    type Event = AdminMail;

    fn handle(&mut self, event: AdminMail) {
        match event {
            AdminMail::Command(to_mgr, json, done) => {
                self.waiting.retain(|_, w| !w.is_closed());
                if !to_mgr {
                    let call = self.mon.command(json, Bytes::new());
                    self.calls.insert(call, done);
                    return;
                }
                let tid = self.next_tid;
                self.next_tid += 1;
                self.waiting.insert(tid, done);
                let fsid = Uuid::default();
                self.mgr.send(
                    MMgrCommand { fsid, cmd: vec![json], input: Bytes::new() }.into_message(tid),
                );
            }
            AdminMail::Net(NetEvent::Opened { link, .. }) if self.mon.is(link.id()) => {
                let news = self.mon.opened();
                self.mon_news(news);
            }
            AdminMail::Net(NetEvent::Opened { link, .. }) if self.mgr.is(link.id()) => {
                self.mgr.open = true;
                for m in std::mem::take(&mut self.mgr.queued) {
                    link.send(m);
                }
            }
            AdminMail::Net(
                NetEvent::Opened { .. }
                | NetEvent::TooLarge(..)
                | NetEvent::Resumed(_)
                | NetEvent::Renewed(_)
                | NetEvent::Taken(_)
                | NetEvent::Refused(..),
            ) => {}
            AdminMail::Net(NetEvent::Message(id, m)) if self.mon.is(id) => {
                let news = self.mon.message(m);
                self.mon_news(news);
            }
            AdminMail::Net(NetEvent::Message(_, m)) => self.message(&m),
            AdminMail::Net(NetEvent::Closed(id, ended)) if self.mon.is(id) => {
                let news = self.mon.closed(&ended.why);
                self.mon_news(news);
            }
            AdminMail::Net(NetEvent::Closed(id, _)) => {
                if self.mgr.is(id) {
                    (self.mgr.link, self.mgr.open, self.mgr.retry) =
                        (None, false, clock::monotonic() + RETRY);
                }
            }
        }
    }

    fn end_of_batch(&mut self) {
        let now = clock::monotonic();
        // What nobody waits for any more must not be done by the next session.
        let gone: Vec<u64> =
            self.calls.iter().filter(|(_, w)| w.is_closed()).map(|(call, _)| *call).collect();
        for call in gone {
            self.calls.remove(&call);
            self.mon.give_up(call);
        }
        let news = self.mon.tick();
        self.mon_news(news);
        if self.mgr.link.is_none() && now >= self.mgr.retry && !self.mgr_addrs.is_blank() {
            let sink = self.mailbox.sink();
            self.mgr.link = Some(self.hub.connect(
                &self.me,
                &self.login,
                &sink,
                &self.mgr_addrs,
                EntityType::Mgr,
                &self.on,
            ));
        }
    }

    fn tick(&mut self) {}

    fn deadline(&self) -> Duration {
        // Links are looked after at the end of each batch, and a tick makes one: when a link is
        // to be opened again.
        let wanted = self.mgr.link.is_none() && !self.mgr_addrs.is_blank();
        self.mon.deadline().min(if wanted { self.mgr.retry } else { Duration::MAX })
    }

    fn finished(&self) -> bool {
        false
    }
}
