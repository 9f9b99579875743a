//! A client of a cluster in one thread: the machines of `spirula-client` with their connections, as images need them.
//!
//! Whoever calls puts operations into the machines and waits for a channel; one task ([`Client::run`]) hands them what the network
//! and the clock say. Nothing is borrowed across a wait.
//!
//! Bounds: operations under way are those that callers wait for; what OSDs answer is bounded by that, and payloads by the hub's
//! pool.

use crate::cluster::host;
use crate::keys;
use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::json;
use spirula_block::{News, Rados, Watch};
use spirula_buffer::PayloadPool;
use spirula_client::{Objecter, ObjecterOut, Reply, Request, WatchOut, Watches};
use spirula_encoding::UTime;
use spirula_messages::ceph::osd::NotifyReply;
use spirula_messages::ceph::{MOsdBackoff, MOsdMap, MOsdOpReply, MWatchNotify};
use spirula_messages::{Body, Message};
use spirula_messenger::auth::{AuthStart, BadMethod, Credentials, Mode, NoneRequest, Secrets};
use spirula_runtime::auth::Login;
use spirula_runtime::cephx::{DaemonAuth, Identity};
use spirula_runtime::{
    Answer, Hub, Link, LinkId, LinkMode, MonLink, MonNews, MonWay, Mons, NetEvent, NetSink, Peer, clock,
};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityAddr, EntityType, Epoch, ObjectLocator, OsdId, PoolId, errno};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};

/// Memory for what is on its way: no bound of its own. All that comes was asked for, and what may be asked for at a time is bounded
/// (by each image's share of memory, and that of its copy-ups). If answers waited for room here, reads that hold most of their
/// parts would wait for each other for ever.
const PAYLOADS: usize = usize::MAX >> 1;
/// How long the first map may take: an election may come between.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a monitor that refuses us may just not know us yet.
const LAG: Duration = Duration::from_secs(3);
/// Messages that are handled before others get a turn.
const BATCH: usize = 64;

/// Who we are without authentication: the number that the first monitor gives is ours from then on.
#[derive(Debug)]
struct Nobody {
    id: String,
    global_id: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Unproved {
    request: NoneRequest,
    global_id: Arc<AtomicU64>,
}

impl Login for Nobody {
    fn credentials(&self, to: EntityType) -> Result<Box<dyn Credentials>, String> {
        let (global_id, to_monitor) = (self.global_id.load(Ordering::Relaxed), to == EntityType::Mon);
        if global_id == 0 && !to_monitor {
            return Err("the monitors have given no number yet".into());
        }
        let request = NoneRequest { to_monitor, kind: EntityType::Client, id: self.id.clone(), global_id };
        Ok(Box::new(Unproved { request, global_id: self.global_id.clone() }))
    }
}

impl Credentials for Unproved {
    fn request(&mut self) -> Result<AuthStart, String> {
        self.request.request()
    }

    fn bad_method(&mut self, bad: &BadMethod) -> Option<AuthStart> {
        self.request.bad_method(bad)
    }

    fn more(&mut self, payload: &[u8]) -> Result<Bytes, String> {
        self.request.more(payload)
    }

    fn done(&mut self, global_id: u64, mode: Mode, payload: &[u8]) -> Result<Secrets, String> {
        if self.request.to_monitor {
            self.global_id.store(global_id, Ordering::Relaxed);
        }
        self.request.done(global_id, mode, payload)
    }
}

/// How our number is known.
enum Number {
    Proved(Identity),
    Given(Arc<AtomicU64>),
}

struct Inner {
    hub: Hub,
    me: Peer,
    login: Arc<dyn Login>,
    sink: NetSink,
    on: Handle,
    number: Number,
    mon: MonLink,
    objecter: Objecter,
    watches: Watches,
    osds: BTreeMap<OsdId, Link>,
    by_link: BTreeMap<LinkId, OsdId>,
    waiting: BTreeMap<u64, oneshot::Sender<Reply>>,
    watching: BTreeMap<u64, oneshot::Sender<Result<(), i32>>>,
    news: BTreeMap<u64, mpsc::UnboundedSender<News>>,
    unwatching: BTreeMap<u64, oneshot::Sender<()>>,
    notifying: BTreeMap<u64, oneshot::Sender<Result<Vec<NotifyReply>, i32>>>,
    commands: BTreeMap<u64, oneshot::Sender<(i32, String)>>,
    /// Questions for the newest map; `None` for the objecter's.
    newest: BTreeMap<u64, Option<oneshot::Sender<Epoch>>>,
    /// Who waits for a map of at least this epoch.
    for_map: Vec<(Epoch, oneshot::Sender<()>)>,
    /// Why there is no session with the monitors.
    lost: String,
}

/// A client of a cluster.
pub struct Client {
    inner: RefCell<Inner>,
    /// In the address of all our connections.
    nonce: u32,
    /// A deadline may have changed.
    kick: Notify,
}

impl Client {
    /// Goes to the cluster and waits until it is in and has a map. To be called in a `LocalSet`.
    ///
    /// # Errors
    /// When the monitors do not answer or do not let us in.
    pub async fn connect(
        mons: Vec<AddrVec>,
        id: &str,
        auth: DaemonAuth,
        settings: &Settings,
    ) -> anyhow::Result<Rc<Self>> {
        let hub = Hub::new(LinkMode::Tcp, PayloadPool::new(PAYLOADS));
        hub.set_modes(keys::modes(settings, true)?);
        let nonce = host::nonce().context("draw a nonce")?;
        let mut me = Peer::new(EntityType::Client, id);
        // All our connections have one nonce: by it the cluster tells us from others, and fences us.
        me.addrs = AddrVec::one(EntityAddr { kind: EntityAddr::KIND_ANY, nonce, addr: None });
        let (number, login): (_, Arc<dyn Login>) = match &auth.identity {
            Some(identity) => (Number::Proved(identity.clone()), identity.login()),
            None => {
                let global_id = Arc::new(AtomicU64::new(0));
                (Number::Given(global_id.clone()), Arc::new(Nobody { id: id.to_owned(), global_id }))
            }
        };
        let (tx, rx) = mpsc::unbounded_channel();
        let depth = Arc::new(AtomicUsize::new(0));
        let sink = NetSink::new(
            Arc::new(move |e| {
                // The client has ended.
                let _ = tx.send(e);
            }),
            depth.clone(),
        );
        let on = Handle::current();
        let way =
            MonWay { hub: hub.clone(), me: me.clone(), login: login.clone(), auth, sink: sink.clone(), on: on.clone() };
        let mut mon = MonLink::new(Mons::new(mons, u64::from(nonce)), "", way);
        mon.set_start("monmap", 0);
        mon.set_start("osdmap", 0);
        let inner = Inner {
            hub,
            me,
            login,
            sink,
            on,
            number,
            mon,
            objecter: Objecter::new(),
            watches: Watches::new(u64::from(nonce) << 16),
            osds: BTreeMap::new(),
            by_link: BTreeMap::new(),
            waiting: BTreeMap::new(),
            watching: BTreeMap::new(),
            news: BTreeMap::new(),
            unwatching: BTreeMap::new(),
            notifying: BTreeMap::new(),
            commands: BTreeMap::new(),
            newest: BTreeMap::new(),
            for_map: Vec::new(),
            lost: "no word".into(),
        };
        let client = Rc::new(Self { inner: RefCell::new(inner), nonce, kick: Notify::new() });
        tokio::task::spawn_local(client.clone().run(rx, depth));
        client.first_map().await?;
        Ok(client)
    }

    async fn first_map(&self) -> anyhow::Result<()> {
        let begun = clock::monotonic();
        let (tx, mut rx) = oneshot::channel();
        self.inner.borrow_mut().for_map.push((1, tx));
        loop {
            if tokio::time::timeout(Duration::from_millis(100), &mut rx).await.is_ok() {
                return Ok(());
            }
            let waited = clock::monotonic().saturating_sub(begun);
            let inner = self.inner.borrow();
            if waited > PATIENCE {
                let all: Vec<String> = inner.mon.mons().all().iter().map(ToString::to_string).collect();
                bail!("no monitor answers; asked were {} ({})", all.join(", "), inner.lost);
            }
            if inner.lost.contains("refused authentication") && waited > LAG && !inner.mon.is_open() {
                bail!("the monitors do not let us in: {}", inner.lost);
            }
        }
    }

    async fn run(self: Rc<Self>, mut events: mpsc::UnboundedReceiver<NetEvent>, depth: Arc<AtomicUsize>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let deadline = self.inner.borrow().deadline();
            let wait = deadline.saturating_sub(clock::monotonic());
            tokio::select! {
                n = events.recv_many(&mut batch, BATCH) => {
                    if n == 0 {
                        return;
                    }
                    depth.fetch_sub(n, Ordering::Relaxed);
                    let mut inner = self.inner.borrow_mut();
                    batch.drain(..).for_each(|e| inner.event(e));
                }
                () = self.kick.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            if clock::monotonic() >= deadline {
                self.inner.borrow_mut().tick();
            }
        }
    }

    /// Lets `f` have the machines.
    fn with<T>(&self, f: impl FnOnce(&mut Inner, &mut Vec<ObjecterOut>, &mut Vec<WatchOut>) -> T) -> T {
        let result = self.inner.borrow_mut().with(f);
        self.kick.notify_one();
        result
    }

    async fn command(&self, command: serde_json::Value) -> Result<(), String> {
        let (tx, rx) = oneshot::channel();
        self.with(|i, _, _| {
            let call = i.mon.command(command.to_string(), Bytes::new());
            i.commands.insert(call, tx);
        });
        match rx.await {
            Ok((0, _)) => Ok(()),
            Ok((r, status)) if status.is_empty() => Err(errno::name(-r).to_owned()),
            Ok((_, status)) => Err(status),
            Err(_) => Err("the client has ended".into()),
        }
    }

    /// Waits for the newest map that the monitors have.
    async fn newest_map(&self) {
        let (tx, rx) = oneshot::channel();
        self.with(|i, _, _| {
            let call = i.mon.newest("osdmap");
            i.newest.insert(call, Some(tx));
        });
        let Ok(epoch) = rx.await else { return };
        let (tx, rx) = oneshot::channel();
        self.with(|i, todo, _| {
            i.for_map.push((epoch, tx));
            if i.objecter.epoch() < epoch {
                todo.push(ObjecterOut::WantMaps(i.objecter.epoch() + 1));
            }
        });
        // It ends with the client only.
        let _ = rx.await;
    }
}

impl Inner {
    fn global_id(&self) -> u64 {
        match &self.number {
            Number::Proved(identity) => identity.global_id(),
            Number::Given(number) => number.load(Ordering::Relaxed),
        }
    }

    fn deadline(&self) -> Duration {
        self.mon.deadline().min(self.objecter.deadline()).min(self.watches.deadline())
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut Self, &mut Vec<ObjecterOut>, &mut Vec<WatchOut>) -> T) -> T {
        let (mut todo, mut told) = (Vec::new(), Vec::new());
        let result = f(self, &mut todo, &mut told);
        loop {
            self.watches.look(&mut self.objecter, &mut todo);
            if todo.is_empty() && told.is_empty() {
                break;
            }
            for o in std::mem::take(&mut todo) {
                self.perform(o, &mut told);
            }
            told.drain(..).for_each(|t| self.tell(t));
        }
        let epoch = self.objecter.epoch();
        for (_, waits) in self.for_map.extract_if(.., |(e, _)| *e <= epoch) {
            // Whoever waited has gone.
            let _ = waits.send(());
        }
        result
    }

    fn perform(&mut self, o: ObjecterOut, told: &mut Vec<WatchOut>) {
        match o {
            ObjecterOut::Connect(osd, to) => {
                self.me.global_id = self.global_id();
                let link = self.hub.connect(&self.me, &self.login, &self.sink, &to, EntityType::Osd, &self.on);
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
                    link.send(m);
                }
            }
            ObjecterOut::Done(tid, reply) => {
                if self.watches.done(clock::monotonic(), tid, &reply, &mut self.objecter, told) {
                    return;
                }
                if let Some(waits) = self.waiting.remove(&tid) {
                    let _ = waits.send(reply);
                }
            }
            ObjecterOut::WantMaps(start) => self.mon.subscribe("osdmap", u64::from(start)),
            ObjecterOut::AskNewest => {
                let call = self.mon.newest("osdmap");
                self.newest.insert(call, None);
            }
        }
    }

    /// Tells whoever waits; one who has gone does not want to know.
    fn tell(&mut self, t: WatchOut) {
        match t {
            WatchOut::Watching(cookie) => {
                if let Some(waits) = self.watching.remove(&cookie) {
                    let _ = waits.send(Ok(()));
                }
            }
            WatchOut::Notified { cookie, id, payload, .. } => {
                if let Some(news) = self.news.get(&cookie) {
                    let _ = news.send(News::Notified { id, payload });
                }
            }
            WatchOut::Lost(cookie, result) => {
                if let Some(waits) = self.watching.remove(&cookie) {
                    let _ = waits.send(Err(result));
                }
                if let Some(news) = self.news.remove(&cookie) {
                    let _ = news.send(News::Lost(result));
                }
            }
            WatchOut::Unwatched(cookie) => {
                if let Some(waits) = self.unwatching.remove(&cookie) {
                    let _ = waits.send(());
                }
            }
            WatchOut::Notification { cookie, result, replies, .. } => {
                if let Some(waits) = self.notifying.remove(&cookie) {
                    let heard = result == 0 || result == -errno::ETIMEDOUT;
                    let _ = waits.send(if heard { Ok(replies) } else { Err(result) });
                }
            }
        }
    }

    fn tick(&mut self) {
        let now = clock::monotonic();
        if now >= self.mon.deadline() {
            let news = self.mon.tick();
            self.monitor_says(news);
        }
        self.with(|i, todo, _| {
            i.objecter.tick(now, todo);
            i.watches.tick(now, &mut i.objecter, todo);
        });
    }

    fn event(&mut self, e: NetEvent) {
        match e {
            NetEvent::Opened { link, .. } if self.mon.is(link.id()) => {
                let news = self.mon.opened();
                self.monitor_says(news);
            }
            NetEvent::Opened { link, .. } => {
                if let Some(osd) = self.by_link.get(&link.id()).copied() {
                    self.with(|i, todo, _| i.objecter.opened(osd, todo));
                }
            }
            NetEvent::Message(id, m) if self.mon.is(id) => {
                let news = self.mon.message(m);
                self.monitor_says(news);
            }
            NetEvent::Message(id, m) => {
                if let Some(osd) = self.by_link.get(&id).copied() {
                    self.osd_says(osd, &m);
                }
            }
            NetEvent::Closed(id, ended) if self.mon.is(id) => {
                let news = self.mon.closed(&ended.why);
                self.monitor_says(news);
            }
            NetEvent::Closed(id, ended) => {
                if let Some(osd) = self.by_link.remove(&id) {
                    tracing::debug!("osd.{osd}: {ended}");
                    self.osds.remove(&osd);
                    self.with(|i, _, _| i.objecter.closed(clock::monotonic(), osd));
                }
            }
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
                MonNews::Answer(call, Answer::Command { result, status, .. }) => {
                    if let Some(waits) = self.commands.remove(&call) {
                        let _ = waits.send((result, status));
                    }
                }
                MonNews::Answer(call, Answer::Version { newest, .. }) => match self.newest.remove(&call) {
                    Some(Some(waits)) => {
                        let _ = waits.send(newest as Epoch);
                    }
                    Some(None) => self.with(|i, todo, _| i.objecter.newest(newest as Epoch, todo)),
                    None => {}
                },
                MonNews::Answer(..) => {}
                MonNews::Message(m) if m.kind == MOsdMap::KIND => self.maps(&m),
                MonNews::Message(_) => {}
            }
        }
    }

    fn maps(&mut self, m: &Message) {
        let maps = match MOsdMap::from_message(m) {
            Ok(maps) => maps,
            Err(e) => return tracing::warn!("maps that cannot be read: {e}"),
        };
        self.with(|i, todo, _| {
            if let Err(e) = i.objecter.maps(clock::monotonic(), &maps, todo) {
                tracing::warn!("{e}");
            }
        });
        let epoch = self.objecter.epoch();
        if epoch > 0 {
            self.mon.set_start("osdmap", u64::from(epoch) + 1);
        }
    }

    fn osd_says(&mut self, osd: OsdId, m: &Message) {
        let bad = |e: &dyn std::fmt::Display| tracing::warn!("osd.{osd} says what cannot be read: {e}");
        match m.kind {
            MOsdOpReply::KIND => match MOsdOpReply::from_message(m) {
                Ok(reply) => self.with(|i, todo, _| i.objecter.reply(osd, m.tid, reply, todo)),
                Err(e) => bad(&e),
            },
            MOsdMap::KIND => self.maps(m),
            MOsdBackoff::KIND => match MOsdBackoff::from_message(m) {
                Ok(b) => self.with(|i, todo, _| i.objecter.backoff(osd, b, todo)),
                Err(e) => bad(&e),
            },
            MWatchNotify::KIND => match MWatchNotify::from_message(m) {
                Ok(n) => self.with(|i, _, told| i.watches.message(n, &mut i.objecter, told)),
                Err(e) => bad(&e),
            },
            _ => {}
        }
    }
}

impl Rados for Client {
    async fn execute(&self, request: Request) -> Reply {
        let (tx, rx) = oneshot::channel();
        self.with(|i, todo, _| {
            let tid = i.objecter.submit(request, todo);
            i.waiting.insert(tid, tx);
        });
        // It ends with the client only.
        let ended = Reply { result: -errno::ESHUTDOWN, ops: Vec::new(), version: Default::default(), user_version: 0 };
        rx.await.unwrap_or(ended)
    }

    async fn pool(&self, name: &str) -> Option<PoolId> {
        self.newest_map().await;
        let inner = self.inner.borrow();
        let map = inner.objecter.map()?;
        map.pool_names.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    async fn watch(&self, at: &ObjectLocator, oid: &Bytes) -> Result<Watch, i32> {
        let (tx, rx) = oneshot::channel();
        let (news_tx, news) = mpsc::unbounded_channel();
        let cookie = self.with(|i, todo, _| {
            let cookie = i.watches.watch(at, oid, 0, &mut i.objecter, todo);
            i.watching.insert(cookie, tx);
            i.news.insert(cookie, news_tx);
            cookie
        });
        rx.await.unwrap_or(Err(-errno::ESHUTDOWN))?;
        Ok(Watch { cookie, news })
    }

    async fn unwatch(&self, cookie: u64) {
        let (tx, rx) = oneshot::channel();
        self.with(|i, todo, told| {
            i.news.remove(&cookie);
            i.unwatching.insert(cookie, tx);
            i.watches.unwatch(cookie, &mut i.objecter, todo, told);
        });
        // It ends with the client only.
        let _ = rx.await;
    }

    fn acknowledge(&self, cookie: u64, id: u64, reply: &[u8]) {
        self.with(|i, todo, _| i.watches.acknowledge(cookie, id, reply, &mut i.objecter, todo));
    }

    async fn notify(
        &self,
        at: &ObjectLocator,
        oid: &Bytes,
        payload: Bytes,
        seconds: u32,
    ) -> Result<Vec<NotifyReply>, i32> {
        let (tx, rx) = oneshot::channel();
        self.with(|i, todo, _| {
            let cookie = i.watches.notify(at, oid, payload, seconds, &mut i.objecter, todo);
            i.notifying.insert(cookie, tx);
        });
        rx.await.unwrap_or(Err(-errno::ESHUTDOWN))
    }

    async fn fence(&self, addr: EntityAddr) -> Result<(), String> {
        let add = json!({"prefix": "osd blocklist", "blocklistop": "add", "addr": addr.plain()});
        self.command(add).await?;
        self.newest_map().await;
        Ok(())
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()>>>) {
        tokio::task::spawn_local(work);
    }

    fn now(&self) -> UTime {
        clock::wall()
    }

    fn global_id(&self) -> u64 {
        self.inner.borrow().global_id()
    }

    fn nonce(&self) -> u32 {
        self.nonce
    }
}
