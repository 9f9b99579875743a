//! A client of a cluster, Spirula's or Ceph's, with its connections: the machines of
//! `spirula-client` over the links of `spirula-runtime`.
//!
//! [`Client`] owns the links to a monitor, to the OSDs and to the active manager, and who the
//! client is to them. Its owner has an event loop: it hands in what the network says
//! ([`Client::net`]) and the time ([`Client::tick`] by [`Client::deadline`]), asks for operations,
//! commands and watches, and takes what came of them ([`Client::news`]) after each call. Nothing
//! here waits, so the loop may be a daemon's (the lab's load generator) as well as one of
//! asynchronous functions (block images).
//!
//! Bounds: what is under way is what the owner asked for and has not been told of; payloads on
//! their way in are bounded by [`Way::memory`].

mod login;
mod manager;

use bytes::Bytes;
use login::Number;
use manager::Manager;
use spirula_buffer::PayloadPool;
use spirula_client::{Objecter, ObjecterOut, Reply, Request, WatchOut, Watches};
use spirula_encoding::crc::crc32c;
use spirula_maps::OsdMap;
use spirula_messages::ceph::{MMgrMap, MOsdBackoff, MOsdMap, MOsdOpReply, MWatchNotify};
use spirula_messages::{Body, Message};
use spirula_messenger::auth::ModePolicy;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{
    Answer, Hub, Link, LinkId, LinkMode, MonLink, MonNews, MonWay, Mons, NetEvent, NetSink, Peer,
    clock,
};
use spirula_types::{AddrVec, EntityAddr, EntityType, Epoch, ObjectLocator, OsdId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::runtime::Handle;

/// What the map of OSDs is called in subscriptions.
const OSD_MAP: &str = "osdmap";

/// How a client goes out.
pub struct Way {
    /// The cluster's monitors.
    pub mons: Vec<AddrVec>,
    /// What it is: a client, or a daemon that is one besides.
    pub kind: EntityType,
    /// Who it is, without the kind: `admin`.
    pub id: String,
    /// What proves it. No two clients share an identity, nor a number: they would be one to an OSD,
    /// which takes the second's requests for the first's, sent again.
    pub auth: DaemonAuth,
    /// Connection modes.
    pub modes: ModePolicy,
    /// Bytes of payloads on their way in above which no connection begins to read another one.
    pub memory: usize,
    /// In the address of all its connections: by it the cluster tells it from others, and fences
    /// it.
    pub nonce: u32,
}

/// A command's outcome.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// 0 or −errno.
    pub result: i32,
    /// For the reader.
    pub status: String,
    /// Output.
    pub output: Bytes,
}

/// What came of something.
#[derive(Debug)]
pub enum News {
    /// The operation of this number has ended.
    Done(u64, Reply),
    /// Of a watch, or a notification of ours.
    Watch(WatchOut),
    /// The command of this number has its outcome.
    Told(u64, Told),
    /// The answer to [`Client::ask_newest`].
    Newest(u64, Epoch),
    /// The OSD map is another one.
    Map,
}

/// A client with its connections.
pub struct Client {
    way: MonWay,
    number: Number,
    mon: MonLink,
    mgr: Manager,
    objecter: Objecter,
    watches: Watches,
    osds: BTreeMap<OsdId, Link>,
    by_link: BTreeMap<LinkId, OsdId>,
    /// Questions for the newest OSD map that the objecter asked.
    probes: BTreeSet<u64>,
    /// See [`Client::know`].
    known: Option<(Bytes, u32)>,
    /// The map that was told of last.
    epoch: Epoch,
    todo: Vec<ObjecterOut>,
    told: Vec<WatchOut>,
    news: VecDeque<News>,
    lost: String,
}

impl Client {
    /// One that goes to the cluster from its first [`Client::tick`] on. Its network events go to
    /// `sink`, whose owner hands them in; its links live on the loop `on`. `draw`, drawn at random,
    /// chooses the monitor that is asked first.
    pub fn new(way: Way, draw: u64, sink: NetSink, on: Handle) -> Self {
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(way.memory));
        hub.set_modes(way.modes);
        let mut me = Peer::new(way.kind, &way.id);
        me.addrs =
            AddrVec::one(EntityAddr { kind: EntityAddr::KIND_ANY, nonce: way.nonce, addr: None });
        let (number, login) = Number::of(way.kind, &way.id, &way.auth);
        let out = MonWay { hub, me, login, auth: way.auth, sink, on };
        let mut mon = MonLink::new(Mons::new(way.mons, draw), "", out.clone());
        ["monmap", OSD_MAP].into_iter().for_each(|what| mon.set_start(what, 0));
        Self {
            way: out,
            number,
            mon,
            mgr: Manager::default(),
            objecter: Objecter::new(),
            watches: Watches::new(u64::from(way.nonce) << 16),
            osds: BTreeMap::new(),
            by_link: BTreeMap::new(),
            probes: BTreeSet::new(),
            known: None,
            epoch: 0,
            todo: Vec::new(),
            told: Vec::new(),
            news: VecDeque::new(),
            lost: "no word".into(),
        }
    }

    /// What came of something, the oldest first; `None` if all is known.
    pub fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// The OSD map, once there is one.
    pub fn map(&self) -> Option<&OsdMap> {
        self.objecter.map()
    }

    /// Its epoch; 0 without one.
    pub fn epoch(&self) -> Epoch {
        self.objecter.epoch()
    }

    /// The number that the monitors gave; 0 before.
    pub fn global_id(&self) -> u64 {
        self.number.get()
    }

    /// The monitors that are known.
    pub fn mons(&self) -> &Mons {
        self.mon.mons()
    }

    /// Is there a session with a monitor?
    pub fn is_in(&self) -> bool {
        self.mon.is_open()
    }

    /// Why there is no session with a monitor; empty once there was one.
    pub fn lost(&self) -> &str {
        &self.lost
    }

    /// When [`Client::tick`] wants to be called, on [`clock::monotonic`].
    pub fn deadline(&self) -> Duration {
        self.mon
            .deadline()
            .min(self.objecter.deadline())
            .min(self.watches.deadline())
            .min(self.mgr.deadline())
    }

    /// Time has come to [`Client::deadline`], or not yet.
    pub fn tick(&mut self) {
        let now = clock::monotonic();
        if now >= self.mon.deadline() {
            let news = self.mon.tick();
            self.monitor_says(news);
        }
        self.call_manager(now);
        if now >= self.objecter.deadline() {
            self.objecter.tick(now, &mut self.todo);
        }
        if now >= self.watches.deadline() {
            self.watches.tick(now, &mut self.objecter, &mut self.todo);
        }
        self.settle();
    }

    /// An operation; its number, under which its end is told.
    pub fn submit(&mut self, request: Request) -> u64 {
        let tid = self.objecter.submit(request, &mut self.todo);
        self.settle();
        tid
    }

    /// A payload that will be sent often: its checksum is computed once. `None` forgets it.
    pub fn know(&mut self, payload: Option<Bytes>) {
        self.known = payload.map(|p| (p.clone(), crc32c(0xffff_ffff, &p)));
    }

    /// Asks the monitors (a command as JSON); the number under which the outcome is told.
    pub fn command(&mut self, json: String) -> u64 {
        self.mon.command(json, Bytes::new())
    }

    /// Asks the active manager, to whom a link is made when it is first asked something. No command
    /// of the monitors has the same number.
    pub fn manager_command(&mut self, json: String) -> u64 {
        if self.mgr.is_unknown() {
            self.mon.subscribe("mgrmap", 0);
        }
        let call = self.mgr.command(json);
        self.call_manager(clock::monotonic());
        call
    }

    /// Asks which OSD map is the newest that the monitors have; the number under which it is told.
    pub fn ask_newest(&mut self) -> u64 {
        self.mon.newest(OSD_MAP)
    }

    /// Asks for OSD maps up to this one, where it has not come yet.
    pub fn want(&mut self, epoch: Epoch) {
        if self.epoch() < epoch {
            self.mon.subscribe(OSD_MAP, u64::from(self.epoch()) + 1);
        }
    }

    /// See [`Watches::watch`].
    pub fn watch(&mut self, at: &ObjectLocator, oid: &Bytes) -> u64 {
        let cookie = self.watches.watch(at, oid, 0, &mut self.objecter, &mut self.todo);
        self.settle();
        cookie
    }

    /// See [`Watches::unwatch`].
    pub fn unwatch(&mut self, cookie: u64) {
        self.watches.unwatch(cookie, &mut self.objecter, &mut self.todo, &mut self.told);
        self.settle();
    }

    /// See [`Watches::acknowledge`].
    pub fn acknowledge(&mut self, cookie: u64, id: u64, reply: &[u8]) {
        self.watches.acknowledge(cookie, id, reply, &mut self.objecter, &mut self.todo);
        self.settle();
    }

    /// See [`Watches::notify`].
    pub fn notify(&mut self, at: &ObjectLocator, oid: &Bytes, payload: Bytes, seconds: u32) -> u64 {
        let cookie =
            self.watches.notify(at, oid, payload, seconds, &mut self.objecter, &mut self.todo);
        self.settle();
        cookie
    }

    /// Ends all connections, for good.
    pub fn stop(&mut self) {
        self.mon.stop();
        self.mgr.stop();
        self.osds.values().for_each(Link::close);
    }

    /// What the network says of one of its links.
    pub fn net(&mut self, e: NetEvent) {
        let id = match &e {
            NetEvent::Opened { link, .. } => link.id(),
            NetEvent::Message(id, _) | NetEvent::Closed(id, _) => *id,
            _ => return,
        };
        if let Some(osd) = self.by_link.get(&id).copied() {
            self.osd_net(osd, e);
        } else if self.mon.is(id) {
            let news = match e {
                NetEvent::Opened { .. } => self.mon.opened(),
                NetEvent::Message(_, m) => self.mon.message(m),
                NetEvent::Closed(_, ended) => self.mon.closed(&ended.why),
                _ => return,
            };
            self.monitor_says(news);
        } else if self.mgr.is(id)
            && let Some((call, told)) = self.mgr.net(e)
        {
            self.news.push_back(News::Told(call, told));
        }
        self.settle();
    }

    fn osd_net(&mut self, osd: OsdId, e: NetEvent) {
        match e {
            NetEvent::Opened { .. } => self.objecter.opened(osd, &mut self.todo),
            NetEvent::Message(_, m) => self.osd_says(osd, &m),
            NetEvent::Closed(id, ended) => {
                tracing::debug!("osd.{osd}: {ended}");
                self.by_link.remove(&id);
                self.osds.remove(&osd);
                self.objecter.closed(clock::monotonic(), osd);
            }
            _ => {}
        }
    }

    fn osd_says(&mut self, osd: OsdId, m: &Message) {
        let bad =
            |e: &dyn std::fmt::Display| tracing::warn!("osd.{osd} says what cannot be read: {e}");
        match m.kind {
            MOsdOpReply::KIND => match MOsdOpReply::from_message(m) {
                Ok(reply) => self.objecter.reply(osd, m.tid, reply, &mut self.todo),
                Err(e) => bad(&e),
            },
            MOsdMap::KIND => self.maps(m),
            MOsdBackoff::KIND => match MOsdBackoff::from_message(m) {
                Ok(b) => self.objecter.backoff(osd, b, &mut self.todo),
                Err(e) => bad(&e),
            },
            MWatchNotify::KIND => match MWatchNotify::from_message(m) {
                Ok(n) => self.watches.message(n, &mut self.objecter, &mut self.told),
                Err(e) => bad(&e),
            },
            _ => {}
        }
    }

    fn monitor_says(&mut self, news: Vec<MonNews>) {
        for n in news {
            match n {
                MonNews::Opened => self.lost.clear(),
                MonNews::Lost(why) => {
                    tracing::info!("no session with the monitors: {why}");
                    self.lost = why;
                }
                MonNews::Answer(call, Answer::Command { result, status, output }) => {
                    self.news.push_back(News::Told(call, Told { result, status, output }));
                }
                MonNews::Answer(call, Answer::Version { newest, .. }) => {
                    let newest = Epoch::try_from(newest).unwrap_or(Epoch::MAX);
                    if self.probes.remove(&call) {
                        self.objecter.newest(newest, &mut self.todo);
                    } else {
                        self.news.push_back(News::Newest(call, newest));
                    }
                }
                MonNews::Answer(..) => {}
                MonNews::Message(m) if m.kind == MOsdMap::KIND => self.maps(&m),
                MonNews::Message(m) if m.kind == MMgrMap::KIND => {
                    self.mgr.map(&m);
                    self.call_manager(clock::monotonic());
                }
                MonNews::Message(_) => {}
            }
        }
    }

    fn maps(&mut self, m: &Message) {
        let maps = match MOsdMap::from_message(m) {
            Ok(maps) => maps,
            Err(e) => return tracing::warn!("maps that cannot be read: {e}"),
        };
        // One that cannot be read is asked for again, whole.
        if let Err(e) = self.objecter.maps(clock::monotonic(), &maps, &mut self.todo) {
            tracing::warn!("{e}");
        }
        let epoch = self.objecter.epoch();
        if epoch > 0 {
            self.mon.set_start(OSD_MAP, u64::from(epoch) + 1);
        }
    }

    fn call_manager(&mut self, now: Duration) {
        if self.mgr.wants_link(now) {
            self.way.me.global_id = self.number.get();
            let w = &self.way;
            let link =
                w.hub.connect(&w.me, &w.login, &w.sink, self.mgr.addrs(), EntityType::Mgr, &w.on);
            self.mgr.connecting(link, now);
        }
    }

    /// Does what the machines wish, until they wish nothing more.
    fn settle(&mut self) {
        loop {
            self.watches.look(&mut self.objecter, &mut self.todo);
            if self.todo.is_empty() && self.told.is_empty() {
                break;
            }
            let mut todo = std::mem::take(&mut self.todo);
            todo.drain(..).for_each(|o| self.perform(o));
            if self.todo.is_empty() {
                self.todo = todo;
            }
            self.news.extend(self.told.drain(..).map(News::Watch));
        }
        let epoch = self.objecter.epoch();
        if epoch != self.epoch {
            self.epoch = epoch;
            if epoch > 0 {
                self.news.push_back(News::Map);
            }
        }
    }

    fn perform(&mut self, o: ObjecterOut) {
        match o {
            ObjecterOut::Connect(osd, to) => {
                self.way.me.global_id = self.number.get();
                let w = &self.way;
                let link = w.hub.connect(&w.me, &w.login, &w.sink, &to, EntityType::Osd, &w.on);
                self.by_link.insert(link.id(), osd);
                if let Some(old) = self.osds.insert(osd, link) {
                    self.by_link.remove(&old.id());
                    old.close();
                }
            }
            ObjecterOut::Close(osd) => {
                if let Some(link) = self.osds.remove(&osd) {
                    self.by_link.remove(&link.id());
                    link.close();
                }
            }
            ObjecterOut::Send(osd, m) => {
                if let Some(link) = self.osds.get(&osd) {
                    let same = |k: &&(Bytes, u32)| {
                        k.0.as_ptr() == m.data.as_ptr() && k.0.len() == m.data.len()
                    };
                    let crc = self.known.as_ref().filter(same).map(|k| k.1);
                    link.send_with_crc(m, crc);
                }
            }
            ObjecterOut::Done(tid, reply) => {
                let now = clock::monotonic();
                if !self.watches.done(now, tid, &reply, &mut self.objecter, &mut self.told) {
                    self.news.push_back(News::Done(tid, reply));
                }
            }
            ObjecterOut::WantMaps(start) => self.mon.subscribe(OSD_MAP, u64::from(start)),
            ObjecterOut::AskNewest => {
                let call = self.mon.newest(OSD_MAP);
                self.probes.insert(call);
            }
        }
    }
}
