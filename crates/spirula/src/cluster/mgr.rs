//! The manager's shell: its mailbox and its links.

use super::host;
use anyhow::Context;
use spirula_messages::Body;
use spirula_messages::ceph::{MMonSubscribe, Subscription, kind};
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now};
use spirula_runtime::auth::{Login, NoneLogin, Trusting};
use spirula_runtime::{Daemon, Hub, Link, LinkId, Listener, Mailbox, Mons, NetEvent, Peer, Service, clock, mailbox};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, Uuid};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Before the monitor is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// What arrives in the manager's mailbox.
pub enum MgrMail {
    /// Network.
    Net(NetEvent),
    /// Stop; answers when done.
    Stop(oneshot::Sender<()>),
}

impl From<NetEvent> for MgrMail {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

/// What a manager is started with.
pub struct MgrSetup {
    /// Its cluster.
    pub fsid: Uuid,
    /// Its name (`mgr.x` is `x`).
    pub name: String,
    /// Monitors.
    pub mons: Mons,
    /// Address to listen on.
    pub public: IpAddr,
    /// First and last port to listen on; 0 and 0 for any.
    pub ports: (u16, u16),
    /// Name of this machine.
    pub host: String,
    /// Its options.
    pub settings: Settings,
}

/// A running manager.
pub struct MgrHandle {
    /// Where its orders go.
    pub mailbox: Mailbox<MgrMail>,
    /// Where it listens.
    pub addrs: AddrVec,
}

/// The manager on an event loop.
pub struct MgrDaemon {
    mgr: Mgr,
    me: Peer,
    login: Arc<dyn Login>,
    hub: Hub,
    on: Handle,
    mailbox: Mailbox<MgrMail>,
    mons: Mons,
    mon: Option<Link>,
    mon_retry: Duration,
    links: HashMap<LinkId, Link>,
    out: Vec<MgrEffect>,
    wake: Duration,
    stopped: Option<oneshot::Sender<()>>,
    _listener: Listener,
}

fn now() -> Now {
    Now { mono: clock::monotonic(), wall: clock::wall() }
}

impl MgrDaemon {
    /// Starts the manager on `on`.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn start(setup: MgrSetup, hub: &Hub, on: &Handle) -> anyhow::Result<MgrHandle> {
        let (mailbox, rx) = mailbox::<MgrMail>();
        let nonce = host::nonce().context("draw a number")?;
        let name = &setup.name;
        // Told apart from an earlier incarnation by its number; daemons have no sessions of
        // clients to be mixed up with.
        let gid = u64::from(nonce);
        let mut me = Peer { global_id: gid, ..Peer::new(EntityType::Mgr, name) };
        let service = Service { me: me.clone(), sink: mailbox.sink(), auth: Arc::new(Trusting::default()) };
        let listener = hub
            .listen_within(setup.public, setup.ports, nonce, service, on)
            .with_context(|| format!("mgr.{name} cannot start"))?;
        me.addrs = listener.addrs.clone();
        let config = MgrConfig {
            fsid: setup.fsid,
            gid,
            name: name.clone(),
            addrs: me.addrs.clone(),
            metadata: host::machine_facts(&setup.host),
            hostname: setup.host,
            settings: setup.settings,
        };
        let addrs = me.addrs.clone();
        let daemon = Self {
            mgr: Mgr::new(config, now()),
            login: NoneLogin::of(&me),
            me,
            hub: hub.clone(),
            on: on.clone(),
            mailbox: mailbox.clone(),
            mons: setup.mons,
            mon: None,
            mon_retry: Duration::ZERO,
            links: HashMap::new(),
            out: Vec::new(),
            wake: Duration::ZERO,
            stopped: None,
            _listener: listener,
        };
        let own = mailbox.clone();
        on.spawn(async move {
            let daemon = spirula_runtime::run(daemon, own, rx).await;
            if let Some(done) = daemon.stopped {
                let _ = done.send(());
            }
        });
        Ok(MgrHandle { mailbox, addrs })
    }

    fn feed(&mut self, event: MgrEvent) {
        let at = now();
        self.mgr.handle(at, event, &mut self.out);
        for effect in self.out.drain(..) {
            match effect {
                MgrEffect::Send(conn, message) => {
                    if let Some(link) = self.links.get(&conn) {
                        link.send(message);
                    }
                }
                MgrEffect::SendMon(message) => {
                    if let Some(link) = &self.mon {
                        link.send(message);
                    }
                }
                MgrEffect::Close(conn) => {
                    if let Some(link) = self.links.get(&conn) {
                        link.close();
                    }
                }
            }
        }
        self.wake = at.mono + self.mgr.wake_after(at);
    }

    fn is_mon(&self, id: LinkId) -> bool {
        self.mon.as_ref().is_some_and(|l| l.id() == id)
    }
}

impl Daemon for MgrDaemon {
    type Event = MgrMail;

    fn handle(&mut self, event: MgrMail) {
        match event {
            MgrMail::Stop(done) => self.stopped = Some(done),
            MgrMail::Net(NetEvent::Message(conn, message)) => {
                if message.kind == kind::MON_MAP && self.is_mon(conn) {
                    self.mons.replace(super::mons_of(&message));
                    return;
                }
                let event =
                    if self.is_mon(conn) { MgrEvent::Mon(message) } else { MgrEvent::Message { conn, message } };
                self.feed(event);
            }
            MgrMail::Net(NetEvent::Opened { link, .. }) if self.is_mon(link.id()) => {
                let what = vec![Subscription { what: "monmap".into(), start: 0, once: false }];
                link.send(MMonSubscribe { what, hostname: String::new() }.into_message(0));
                self.feed(MgrEvent::MonOpened);
            }
            MgrMail::Net(NetEvent::Opened { link, peer, .. }) => {
                let conn = link.id();
                self.links.insert(conn, link);
                let peer = spirula_mgr::Peer { name: peer.name(), auth_id: peer.id, addrs: peer.addrs };
                self.feed(MgrEvent::SessionOpened { conn, peer });
            }
            MgrMail::Net(NetEvent::Closed(conn, _)) if self.is_mon(conn) => {
                self.mon = None;
                self.mons.next();
                self.mon_retry = clock::monotonic() + RETRY;
                self.feed(MgrEvent::MonClosed);
            }
            MgrMail::Net(NetEvent::Closed(conn, _)) => {
                if self.links.remove(&conn).is_some() {
                    self.feed(MgrEvent::SessionClosed { conn });
                }
            }
        }
    }

    fn tick(&mut self) {
        if self.mon.is_none() && clock::monotonic() >= self.mon_retry {
            let link = self.hub.connect(
                &self.me,
                &self.login,
                &self.mailbox.sink(),
                &self.mons.current(),
                EntityType::Mon,
                &self.on,
            );
            self.mon = Some(link);
        }
        self.feed(MgrEvent::Tick);
    }

    fn deadline(&self) -> Duration {
        if self.mon.is_none() { self.wake.min(self.mon_retry) } else { self.wake }
    }

    fn finished(&self) -> bool {
        self.stopped.is_some()
    }
}
