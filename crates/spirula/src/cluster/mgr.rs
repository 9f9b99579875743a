//! The manager's shell: its mailbox and its links.

use super::host;
use super::mgr_client::MgrClient;
use anyhow::Context;
use spirula_auth::caps::MgrCaps;
use spirula_messages::Body;
use spirula_messages::ceph::{MCommandReply, MMgrCommandReply, kind};
use spirula_messenger::auth::METHOD_CEPHX;
use spirula_mgr::{Mgr, MgrConfig, MgrEffect, MgrEvent, Now};
use spirula_runtime::auth::Grants;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::limits::REQUEST_BYTES;
use spirula_runtime::{
    Answers, Daemon, Hub, Listener, Mailbox, MonLink, MonNews, MonWay, Mons, NetEvent, Peer, Room,
    Service, clock, mailbox,
};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, OsdId, Uuid, errno};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Between two looks at who does not read.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What arrives in the manager's mailbox.
pub enum MgrMail {
    /// Network.
    Net(NetEvent),
    /// Network, of the links that the manager has as a client.
    Client(NetEvent),
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
    mon: MonLink,
    client: MgrClient,
    answers: Answers,
    next_look: Duration,
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
        let service =
            Service { me: me.clone(), sink: mailbox.sink(), auth: setup.auth.door(grants) };
        let listener = hub
            .listen_within(setup.public, setup.ports, nonce, service, on)
            .with_context(|| format!("mgr.{name} cannot start"))?;
        me.addrs = listener.addrs.clone();
        let mut metadata = host::machine_facts(&setup.host);
        let ip =
            me.addrs.0.first().and_then(|a| a.addr).map(|a| a.ip().to_string()).unwrap_or_default();
        metadata.extend([("addr".to_owned(), ip), ("addrs".to_owned(), me.addrs.to_string())]);
        let config = MgrConfig {
            fsid: setup.fsid,
            gid,
            name: name.clone(),
            addrs: me.addrs.clone(),
            metadata,
            hostname: setup.host.clone(),
            settings: setup.settings.clone().of(format!("mgr.{name}")),
        };
        let addrs = me.addrs.clone();
        let login = setup.auth.login(&me);
        let client = MgrClient::new(
            setup.mons.all().to_vec(),
            name,
            &setup.settings,
            mailbox.sink_of(MgrMail::Client),
            on,
        );
        let way = MonWay {
            hub: hub.clone(),
            me,
            login,
            auth: setup.auth,
            sink: mailbox.sink(),
            on: on.clone(),
        };
        let mut mon = MonLink::new(setup.mons, &setup.host, way);
        mon.set_start("monmap", 0);
        let daemon = Self {
            mgr: Mgr::new(config, now()),
            mon,
            client,
            answers: Answers::new(hub),
            next_look: Duration::ZERO,
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
        let (mut closed, mut read) = (Vec::new(), Vec::new());
        self.mgr.handle(at, event, &mut self.out);
        for effect in self.out.drain(..) {
            match effect {
                MgrEffect::Send(conn, message) => {
                    self.answers.send(conn, message);
                }
                MgrEffect::SendMon(message) => self.mon.forward(message),
                MgrEffect::Subscribe(what, start) => self.mon.subscribe(what, start),
                MgrEffect::Close(conn) => {
                    self.answers.close(conn);
                    closed.push(conn);
                }
                MgrEffect::Read(what) => read.extend(self.client.read(what)),
            }
        }
        self.wake = at.mono + self.mgr.wake_after(at);
        // Nobody says so of a connection that is forgotten here.
        for conn in closed {
            self.feed(MgrEvent::SessionClosed { conn });
        }
        read.into_iter().for_each(|e| self.feed(e));
    }

    fn mon_news(&mut self, news: Vec<MonNews>) {
        for n in news {
            match n {
                MonNews::Opened => self.feed(MgrEvent::MonOpened),
                MonNews::Lost(why) => {
                    tracing::warn!("mgr.{}: monitor: {why}", self.mgr.config().name)
                }
                MonNews::Message(m) => self.feed(MgrEvent::Mon(m)),
                // A manager runs no commands at the monitors.
                MonNews::Answer(..) => {}
            }
        }
    }
}

impl Daemon for MgrDaemon {
    type Event = MgrMail;

    fn handle(&mut self, event: MgrMail) {
        match event {
            MgrMail::Stop(done) => self.stopped = Some(done),
            MgrMail::Client(e) => self.client.net(e).into_iter().for_each(|e| self.feed(e)),
            MgrMail::Stopped(osds) => self.feed(MgrEvent::Stopped(osds)),
            MgrMail::Net(NetEvent::Message(conn, message)) => {
                if self.mon.is(conn) {
                    let news = self.mon.message(message);
                    return self.mon_news(news);
                }
                if let Some(message) =
                    self.answers.take(conn, message, |_| (), |(), _| Room::Always)
                {
                    self.feed(MgrEvent::Message { conn, message });
                }
            }
            MgrMail::Net(NetEvent::Taken(conn)) => self.answers.taken(conn),
            MgrMail::Net(NetEvent::Opened { link, .. }) if self.mon.is(link.id()) => {
                let news = self.mon.opened();
                self.mon_news(news);
            }
            MgrMail::Net(NetEvent::Opened { link, peer, .. }) => {
                let conn = link.id();
                self.answers.insert(link, &peer);
                // Nobody gets in by another method than those the door allows.
                let caps = (peer.method == METHOD_CEPHX)
                    .then(|| peer.grants.get::<MgrCaps>().cloned().unwrap_or_default());
                let (name, place) = (peer.name(), peer.place());
                let global_id = peer.global_id;
                let peer = spirula_mgr::Peer {
                    name,
                    global_id,
                    auth_id: peer.id,
                    addrs: peer.addrs,
                    place,
                    caps,
                };
                self.feed(MgrEvent::SessionOpened { conn, peer });
            }
            MgrMail::Net(NetEvent::TooLarge(conn, m)) => {
                let (result, status) =
                    (-errno::E2BIG, format!("a request has at most {REQUEST_BYTES} bytes"));
                let answer = match m.kind {
                    kind::COMMAND => MCommandReply { result, status, output: bytes::Bytes::new() }
                        .into_message(m.tid),
                    kind::MGR_COMMAND => {
                        MMgrCommandReply { result, status, output: bytes::Bytes::new() }
                            .into_message(m.tid)
                    }
                    _ => return,
                };
                self.answers.send(conn, answer);
            }
            // Only lossless links are.
            MgrMail::Net(NetEvent::Resumed(_) | NetEvent::Renewed(_) | NetEvent::Refused(..)) => {}
            MgrMail::Net(NetEvent::Closed(conn, ended)) if self.mon.is(conn) => {
                let news = self.mon.closed(&ended.why);
                self.feed(MgrEvent::MonClosed);
                self.mon_news(news);
            }
            MgrMail::Net(NetEvent::Closed(conn, _)) => {
                if self.answers.remove(conn) {
                    self.feed(MgrEvent::SessionClosed { conn });
                }
            }
        }
    }

    fn end_of_batch(&mut self) {
        while let Some((conn, message)) = self.answers.due(|_, _| Room::Always) {
            self.feed(MgrEvent::Message { conn, message });
        }
    }

    fn tick(&mut self) {
        if clock::monotonic() >= self.next_look {
            self.next_look = clock::monotonic() + LOOK_EVERY;
            self.answers.look();
        }
        let was_open = self.mon.is_open();
        let news = self.mon.tick();
        if was_open && !self.mon.is_open() {
            self.feed(MgrEvent::MonClosed);
        }
        self.mon_news(news);
        self.client.tick().into_iter().for_each(|e| self.feed(e));
        self.feed(MgrEvent::Tick);
    }

    fn deadline(&self) -> Duration {
        self.wake.min(self.mon.deadline()).min(self.next_look).min(self.client.deadline())
    }

    fn finished(&self) -> bool {
        self.stopped.is_some()
    }
}
