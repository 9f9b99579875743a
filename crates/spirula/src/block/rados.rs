//! A client of a cluster in one thread, as images need it: [`spirula_rados::Client`] for
//! asynchronous functions.
//!
//! Whoever calls puts operations into the client and waits for a channel; one task
//! ([`Client::run`]) hands it what the network and the clock say. Nothing is borrowed across a
//! wait.
//!
//! Bounds: operations under way are those that callers wait for; what OSDs answer is bounded by
//! that, and payloads by the hub's pool.

use crate::cluster::host;
use crate::keys;
use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::json;
use spirula_block::{News, Rados, Watch};
use spirula_client::{Reply, Request, WatchOut};
use spirula_encoding::UTime;
use spirula_messages::ceph::osd::NotifyReply;
use spirula_rados::Told;
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{NetEvent, NetSink, clock};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityAddr, EntityType, Epoch, ObjectLocator, PoolId, errno};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};

/// Memory for what is on its way: no bound of its own. All that comes was asked for, and what may
/// be asked for at a time is bounded (by each image's share of memory, and that of its copy-ups).
/// If answers waited for room here, reads that hold most of their parts would wait for each other
/// for ever.
const PAYLOADS: usize = usize::MAX >> 1;
/// How long the first map may take: an election may come between.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a monitor that refuses us may just not know us yet.
const LAG: Duration = Duration::from_secs(3);
/// Messages that are handled before others get a turn.
const BATCH: usize = 64;

struct Inner {
    client: spirula_rados::Client,
    waiting: BTreeMap<u64, oneshot::Sender<Reply>>,
    watching: BTreeMap<u64, oneshot::Sender<Result<(), i32>>>,
    news: BTreeMap<u64, mpsc::UnboundedSender<News>>,
    unwatching: BTreeMap<u64, oneshot::Sender<()>>,
    notifying: BTreeMap<u64, oneshot::Sender<Result<Vec<NotifyReply>, i32>>>,
    commands: BTreeMap<u64, oneshot::Sender<Told>>,
    /// Questions for the newest map.
    newest: BTreeMap<u64, oneshot::Sender<Epoch>>,
    /// Who waits for a map of at least this epoch.
    for_map: Vec<(Epoch, oneshot::Sender<()>)>,
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
        let nonce = host::nonce().context("draw a nonce")?;
        let modes = keys::modes(settings, true)?;
        let way = spirula_rados::Way {
            mons,
            kind: EntityType::Client,
            id: id.to_owned(),
            auth,
            modes,
            memory: PAYLOADS,
            nonce,
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
        let inner = Inner {
            client: spirula_rados::Client::new(way, u64::from(nonce), sink, Handle::current()),
            waiting: BTreeMap::new(),
            watching: BTreeMap::new(),
            news: BTreeMap::new(),
            unwatching: BTreeMap::new(),
            notifying: BTreeMap::new(),
            commands: BTreeMap::new(),
            newest: BTreeMap::new(),
            for_map: Vec::new(),
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
                let all: Vec<String> =
                    inner.client.mons().all().iter().map(ToString::to_string).collect();
                bail!(
                    "no monitor answers; asked were {} ({})",
                    all.join(", "),
                    inner.client.lost()
                );
            }
            let lost = inner.client.lost();
            if lost.contains("refused authentication") && waited > LAG && !inner.client.is_in() {
                bail!("the monitors do not let us in: {lost}");
            }
        }
    }

    async fn run(
        self: Rc<Self>,
        mut events: mpsc::UnboundedReceiver<NetEvent>,
        depth: Arc<AtomicUsize>,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let deadline = self.inner.borrow().client.deadline();
            let wait = deadline.saturating_sub(clock::monotonic());
            tokio::select! {
                n = events.recv_many(&mut batch, BATCH) => {
                    if n == 0 {
                        return;
                    }
                    depth.fetch_sub(n, Ordering::Relaxed);
                    let mut inner = self.inner.borrow_mut();
                    batch.drain(..).for_each(|e| inner.with(|i| i.client.net(e)));
                }
                () = self.kick.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            if clock::monotonic() >= deadline {
                self.inner.borrow_mut().with(|i| i.client.tick());
            }
        }
    }

    /// Lets `f` have the client.
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        let result = self.inner.borrow_mut().with(f);
        self.kick.notify_one();
        result
    }

    async fn command(&self, command: serde_json::Value) -> Result<(), String> {
        let (tx, rx) = oneshot::channel();
        self.with(|i| {
            let call = i.client.command(command.to_string());
            i.commands.insert(call, tx);
        });
        match rx.await {
            Ok(told) if told.result == 0 => Ok(()),
            Ok(told) if told.status.is_empty() => Err(errno::name(-told.result).to_owned()),
            Ok(told) => Err(told.status),
            Err(_) => Err("the client has ended".into()),
        }
    }

    /// Waits for the newest map that the monitors have.
    async fn newest_map(&self) {
        let (tx, rx) = oneshot::channel();
        self.with(|i| {
            let call = i.client.ask_newest();
            i.newest.insert(call, tx);
        });
        let Ok(epoch) = rx.await else { return };
        let (tx, rx) = oneshot::channel();
        self.with(|i| {
            i.for_map.push((epoch, tx));
            i.client.want(epoch);
        });
        // It ends with the client only.
        let _ = rx.await;
    }
}

impl Inner {
    /// Lets `f` have the client, and tells whoever waits for what came of it.
    fn with<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let result = f(self);
        while let Some(news) = self.client.news() {
            self.hear(news);
        }
        let epoch = self.client.epoch();
        for (_, waits) in self.for_map.extract_if(.., |(e, _)| *e <= epoch) {
            // Whoever waited has gone.
            let _ = waits.send(());
        }
        result
    }

    /// One who has gone does not want to know.
    fn hear(&mut self, news: spirula_rados::News) {
        match news {
            spirula_rados::News::Done(tid, reply) => {
                if let Some(waits) = self.waiting.remove(&tid) {
                    let _ = waits.send(reply);
                }
            }
            spirula_rados::News::Watch(w) => self.tell(w),
            spirula_rados::News::Told(call, told) => {
                if let Some(waits) = self.commands.remove(&call) {
                    let _ = waits.send(told);
                }
            }
            spirula_rados::News::Newest(call, epoch) => {
                if let Some(waits) = self.newest.remove(&call) {
                    let _ = waits.send(epoch);
                }
            }
            // All who wait are looked at in any case.
            spirula_rados::News::Map => {}
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
}

impl Rados for Client {
    async fn execute(&self, request: Request) -> Reply {
        let (tx, rx) = oneshot::channel();
        self.with(|i| {
            let tid = i.client.submit(request);
            i.waiting.insert(tid, tx);
        });
        // It ends with the client only.
        let ended = Reply {
            result: -errno::ESHUTDOWN,
            ops: Vec::new(),
            version: Default::default(),
            user_version: 0,
        };
        rx.await.unwrap_or(ended)
    }

    async fn pool(&self, name: &str) -> Option<PoolId> {
        self.newest_map().await;
        let inner = self.inner.borrow();
        let map = inner.client.map()?;
        map.pool_names.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    async fn watch(&self, at: &ObjectLocator, oid: &Bytes) -> Result<Watch, i32> {
        let (tx, rx) = oneshot::channel();
        let (news_tx, news) = mpsc::unbounded_channel();
        let cookie = self.with(|i| {
            let cookie = i.client.watch(at, oid);
            i.watching.insert(cookie, tx);
            i.news.insert(cookie, news_tx);
            cookie
        });
        rx.await.unwrap_or(Err(-errno::ESHUTDOWN))?;
        Ok(Watch { cookie, news })
    }

    async fn unwatch(&self, cookie: u64) {
        let (tx, rx) = oneshot::channel();
        self.with(|i| {
            i.news.remove(&cookie);
            i.unwatching.insert(cookie, tx);
            i.client.unwatch(cookie);
        });
        // It ends with the client only.
        let _ = rx.await;
    }

    fn acknowledge(&self, cookie: u64, id: u64, reply: &[u8]) {
        self.with(|i| i.client.acknowledge(cookie, id, reply));
    }

    async fn notify(
        &self,
        at: &ObjectLocator,
        oid: &Bytes,
        payload: Bytes,
        seconds: u32,
    ) -> Result<Vec<NotifyReply>, i32> {
        let (tx, rx) = oneshot::channel();
        self.with(|i| {
            let cookie = i.client.notify(at, oid, payload, seconds);
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
        self.inner.borrow().client.global_id()
    }

    fn nonce(&self) -> u32 {
        self.nonce
    }
}
