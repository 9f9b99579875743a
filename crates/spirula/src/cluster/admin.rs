//! A client of our own within the process: how `up` and `status` ask monitor and manager.
//!
//! It speaks to them as any administrator would, by commands.

use bytes::Bytes;
use spirula_messages::ceph::{
    MCommand, MCommandReply, MMgrCommand, MMgrCommandReply, MMgrMap, MMonCommand, MMonCommandAck, MMonSubscribe,
    Subscription, kind,
};
use spirula_messages::{Body, Message};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{Daemon, Hub, Link, LinkId, Mailbox, Mons, NetEvent, NetSink, Peer, clock, mailbox};
use spirula_types::{AddrVec, EntityType, Uuid};
use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at tickets that end.
const RENEW: Duration = Duration::from_secs(5);
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
        let daemon = AdminDaemon {
            login: auth.login(&me),
            auth,
            renew: Duration::ZERO,
            me,
            hub: hub.clone(),
            on: on.clone(),
            mailbox: mailbox.clone(),
            mons,
            mon: Line::default(),
            mgr_addrs: AddrVec::default(),
            mgr: Line::default(),
            next_tid: 1,
            waiting: HashMap::new(),
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
    auth: DaemonAuth,
    renew: Duration,
    hub: Hub,
    on: Handle,
    mailbox: Mailbox<AdminMail>,
    mons: Mons,
    mon: Line,
    mgr_addrs: AddrVec,
    mgr: Line,
    next_tid: u64,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
}

impl AdminDaemon {
    fn message(&mut self, m: &Message) {
        let answer = match m.kind {
            kind::MON_COMMAND_ACK => MMonCommandAck::from_message(m).map(|a| (a.result, a.status, a.output)),
            kind::MGR_COMMAND_REPLY => MMgrCommandReply::from_message(m).map(|a| (a.result, a.status, a.output)),
            kind::MGR_MAP => {
                if let Ok(map) = MMgrMap::from_message(m)
                    && let Ok(map) = spirula_encoding::from_slice::<spirula_maps::MgrMap>(&map.mgrmap)
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
            kind::AUTH_REPLY => return self.auth.reply(m),
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
                let tid = self.next_tid;
                self.next_tid += 1;
                self.waiting.retain(|_, w| !w.is_closed());
                self.waiting.insert(tid, done);
                let fsid = Uuid::default();
                let cmd = vec![json];
                if to_mgr {
                    self.mgr.send(MMgrCommand { fsid, cmd, input: Bytes::new() }.into_message(tid));
                } else {
                    self.mon.send(MMonCommand { version: 0, fsid, cmd, input: Bytes::new() }.into_message(tid));
                }
            }
            AdminMail::Net(NetEvent::Opened { link, .. }) => {
                let line = if self.mon.is(link.id()) { &mut self.mon } else { &mut self.mgr };
                line.open = true;
                for m in std::mem::take(&mut line.queued) {
                    link.send(m);
                }
                if self.mon.is(link.id()) {
                    let what = vec![Subscription { what: "mgrmap".into(), start: 0, once: false }];
                    link.send(MMonSubscribe { what, hostname: String::new() }.into_message(0));
                }
            }
            AdminMail::Net(
                NetEvent::TooLarge(..)
                | NetEvent::Resumed(_)
                | NetEvent::Renewed(_)
                | NetEvent::Taken(_)
                | NetEvent::Refused(..),
            ) => {}
            AdminMail::Net(NetEvent::Message(_, m)) => self.message(&m),
            AdminMail::Net(NetEvent::Closed(id, _)) => {
                let line = if self.mon.is(id) {
                    self.mons.next();
                    &mut self.mon
                } else if self.mgr.is(id) {
                    &mut self.mgr
                } else {
                    return;
                };
                (line.link, line.open, line.retry) = (None, false, clock::monotonic() + RETRY);
            }
        }
    }

    fn end_of_batch(&mut self) {
        let now = clock::monotonic();
        if now >= self.renew
            && let Some(link) = self.mon.link.as_ref().filter(|_| self.mon.open)
        {
            self.renew = now + RENEW;
            self.auth.requests().into_iter().for_each(|m| link.send(m));
        }
        if self.mon.link.is_none() && now >= self.mon.retry {
            let sink = self.mailbox.sink();
            self.mon.link =
                Some(self.hub.connect(&self.me, &self.login, &sink, &self.mons.current(), EntityType::Mon, &self.on));
        }
        if self.mgr.link.is_none() && now >= self.mgr.retry && !self.mgr_addrs.is_blank() {
            let sink = self.mailbox.sink();
            self.mgr.link =
                Some(self.hub.connect(&self.me, &self.login, &sink, &self.mgr_addrs, EntityType::Mgr, &self.on));
        }
    }

    fn tick(&mut self) {}

    fn deadline(&self) -> Duration {
        // Links are looked after at the end of each batch, and a tick makes one: when a link is
        // to be opened again.
        let retry = |line: &Line, wanted| if line.link.is_none() && wanted { line.retry } else { Duration::MAX };
        retry(&self.mon, true).min(retry(&self.mgr, !self.mgr_addrs.is_blank()))
    }

    fn finished(&self) -> bool {
        false
    }
}
