//! The manager's shell: its mailbox and its links.

use super::mon_addrs;
use crate::dir::Manifest;
use anyhow::Context;
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now};
use spirula_runtime::auth::{Login, NoneLogin, Trusting};
use spirula_runtime::{Daemon, Hub, Link, LinkId, Listener, Mailbox, NetEvent, Peer, Service, clock, mailbox};
use spirula_types::{AddrVec, EntityType};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Before the monitor is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// What arrives in the manager's mailbox.
pub enum MgrMail {
    /// Network.
    Net(NetEvent),
    /// Stop.
    Stop,
}

impl From<NetEvent> for MgrMail {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

/// The manager on an event loop.
pub struct MgrDaemon {
    mgr: Mgr,
    me: Peer,
    login: Arc<dyn Login>,
    hub: Hub,
    on: Handle,
    mailbox: Mailbox<MgrMail>,
    mon_addrs: AddrVec,
    mon: Option<Link>,
    mon_retry: Duration,
    links: HashMap<LinkId, Link>,
    out: Vec<MgrEffect>,
    wake: Duration,
    stopped: bool,
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
    pub fn start(
        m: &Manifest,
        name: &str,
        nonce: u32,
        hub: &Hub,
        on: &Handle,
        host: &str,
    ) -> anyhow::Result<Mailbox<MgrMail>> {
        let (mailbox, rx) = mailbox::<MgrMail>();
        // Told apart from an earlier incarnation by its number; daemons have no sessions of
        // clients to be mixed up with.
        let gid = u64::from(nonce);
        let mut me = Peer { global_id: gid, ..Peer::new(EntityType::Mgr, name) };
        let service = Service { me: me.clone(), sink: mailbox.sink(), auth: Arc::new(Trusting::default()) };
        let listener = hub.listen(&[(m.bind, 0).into()], nonce, service, on).context("start the manager")?;
        me.addrs = listener.addrs.clone();
        let config = MgrConfig {
            fsid: m.fsid,
            gid,
            name: name.to_owned(),
            addrs: me.addrs.clone(),
            hostname: host.to_owned(),
            metadata: super::machine_facts(),
        };
        let daemon = Self {
            mgr: Mgr::new(config, now()),
            login: NoneLogin::of(&me),
            me,
            hub: hub.clone(),
            on: on.clone(),
            mailbox: mailbox.clone(),
            mon_addrs: mon_addrs(m),
            mon: None,
            mon_retry: Duration::ZERO,
            links: HashMap::new(),
            out: Vec::new(),
            wake: Duration::ZERO,
            stopped: false,
            _listener: listener,
        };
        let own = mailbox.clone();
        on.spawn(async move {
            spirula_runtime::run(daemon, own, rx).await;
        });
        Ok(mailbox)
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
            MgrMail::Stop => self.stopped = true,
            MgrMail::Net(NetEvent::Message(conn, message)) => {
                let event =
                    if self.is_mon(conn) { MgrEvent::Mon(message) } else { MgrEvent::Message { conn, message } };
                self.feed(event);
            }
            MgrMail::Net(NetEvent::Opened { link, .. }) if self.is_mon(link.id()) => self.feed(MgrEvent::MonOpened),
            MgrMail::Net(NetEvent::Opened { link, peer, .. }) => {
                let conn = link.id();
                self.links.insert(conn, link);
                let peer = spirula_mgr::Peer { name: peer.name(), auth_id: peer.id, addrs: peer.addrs };
                self.feed(MgrEvent::SessionOpened { conn, peer });
            }
            MgrMail::Net(NetEvent::Closed(conn, _)) if self.is_mon(conn) => {
                self.mon = None;
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
                &self.mon_addrs,
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
        self.stopped
    }
}
