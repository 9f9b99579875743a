//! The manager's shell: its mailbox and its links.

use super::host;
use anyhow::Context;
use spirula_auth::caps::MgrCaps;
use spirula_messages::Body;
use spirula_messages::ceph::{MCommandReply, MMgrCommandReply, MMonSubscribe, Subscription, kind};
use spirula_messenger::auth::METHOD_CEPHX;
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now};
use spirula_runtime::auth::{Grants, Login};
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::limits::{ANSWERS_UNREAD, REQUEST_BYTES};
use spirula_runtime::{Daemon, Hub, Link, LinkId, Listener, Mailbox, Mons, NetEvent, Peer, Service, clock, mailbox};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, OsdId, Uuid, errno};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Between two looks at tickets that end.
const RENEW: Duration = Duration::from_secs(5);
/// Before the monitor is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// What arrives in the manager's mailbox.
pub enum MgrMail {
    /// Network.
    Net(NetEvent),
    /// OSDs of this process that do not run though nobody stopped them, and why.
    Stopped(BTreeMap<OsdId, String>),
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
    /// Who it is to others, and whom it lets in.
    pub auth: DaemonAuth,
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
    auth: DaemonAuth,
    /// When tickets are looked at next.
    renew: Duration,
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

/// Reads a ticket's capabilities; for the door.
fn grants(text: &str) -> Result<Grants, String> {
    if text.is_empty() {
        return Ok(Grants::new(MgrCaps::default()));
    }
    text.parse::<MgrCaps>().map(Grants::new).map_err(|e| e.to_string())
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
        let service = Service { me: me.clone(), sink: mailbox.sink(), auth: setup.auth.door(grants) };
        let listener = hub
            .listen_within(setup.public, setup.ports, nonce, service, on)
            .with_context(|| format!("mgr.{name} cannot start"))?;
        me.addrs = listener.addrs.clone();
        let mut metadata = host::machine_facts(&setup.host);
        let ip = me.addrs.0.first().and_then(|a| a.addr).map(|a| a.ip().to_string()).unwrap_or_default();
        metadata.extend([("addr".to_owned(), ip), ("addrs".to_owned(), me.addrs.to_string())]);
        let config = MgrConfig {
            fsid: setup.fsid,
            gid,
            name: name.clone(),
            addrs: me.addrs.clone(),
            metadata,
            hostname: setup.host,
            settings: setup.settings.of(format!("mgr.{name}")),
        };
        let addrs = me.addrs.clone();
        let daemon = Self {
            mgr: Mgr::new(config, now()),
            login: setup.auth.login(&me),
            auth: setup.auth,
            renew: Duration::ZERO,
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
                    if let Some(link) = self.links.get(&conn)
                        && !link.send_within(ANSWERS_UNREAD, message)
                    {
                        tracing::warn!(conn, "a peer does not read what it asked for; its connection is closed");
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
            MgrMail::Stopped(osds) => self.feed(MgrEvent::Stopped(osds)),
            MgrMail::Net(NetEvent::Message(conn, message)) => {
                if message.kind == kind::MON_MAP && self.is_mon(conn) {
                    self.mons.replace(super::mons_of(&message));
                    return;
                }
                if message.kind == kind::AUTH_REPLY && self.is_mon(conn) {
                    self.auth.reply(&message);
                    return;
                }
                let event =
                    if self.is_mon(conn) { MgrEvent::Mon(message) } else { MgrEvent::Message { conn, message } };
                self.feed(event);
            }
            MgrMail::Net(NetEvent::Opened { link, .. }) if self.is_mon(link.id()) => {
                let what = vec![Subscription { what: "monmap".into(), start: 0, once: false }];
                link.send(MMonSubscribe { what, hostname: String::new() }.into_message(0));
                self.auth.requests().into_iter().for_each(|m| link.send(m));
                self.feed(MgrEvent::MonOpened);
            }
            MgrMail::Net(NetEvent::Opened { link, peer, .. }) => {
                let conn = link.id();
                self.links.insert(conn, link);
                // Nobody gets in by another method than those the door allows.
                let caps =
                    (peer.method == METHOD_CEPHX).then(|| peer.grants.get::<MgrCaps>().cloned().unwrap_or_default());
                let peer = spirula_mgr::Peer { name: peer.name(), auth_id: peer.id, addrs: peer.addrs, caps };
                self.feed(MgrEvent::SessionOpened { conn, peer });
            }
            MgrMail::Net(NetEvent::TooLarge(conn, m)) => {
                let (result, status) = (-errno::E2BIG, format!("a request has at most {REQUEST_BYTES} bytes"));
                let answer = match m.kind {
                    kind::COMMAND => MCommandReply { result, status, output: bytes::Bytes::new() }.into_message(m.tid),
                    kind::MGR_COMMAND => {
                        MMgrCommandReply { result, status, output: bytes::Bytes::new() }.into_message(m.tid)
                    }
                    _ => return,
                };
                if let Some(link) = self.links.get(&conn) {
                    link.send_within(ANSWERS_UNREAD, answer);
                }
            }
            // Only lossless links are.
            MgrMail::Net(NetEvent::Resumed(_) | NetEvent::Renewed(_) | NetEvent::Taken(_) | NetEvent::Refused(..)) => {}
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
        let now = clock::monotonic();
        if now >= self.renew {
            self.renew = now + RENEW;
            // The link may still be opening; what is asked too early is asked again.
            if let Some(link) = &self.mon {
                self.auth.requests().into_iter().for_each(|m| link.send(m));
            }
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
