//! The monitor's shell: its mailbox, its links, and the thread that makes its log durable.

use super::{MON_NAME, host, mon_addrs};
use crate::dir::Manifest;
use anyhow::{Context, anyhow, bail};
use spirula_mon::{InitialPool, MkfsParams, Mon, MonEffect, MonEvent, MonStore, MonTxn, NewOsd, mkfs};
use spirula_runtime::auth::Trusting;
use spirula_runtime::{Daemon, Hub, Link, LinkId, Listener, Mailbox, NetEvent, Peer, Service, clock, entropy, mailbox};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityType, Uuid};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Between two ticks.
const TICK: Duration = Duration::from_millis(250);

/// What arrives in the monitor's mailbox.
pub enum MonMail {
    /// Network.
    Net(NetEvent),
    /// A commit is durable.
    Committed(u64),
    /// Stop; answers when done.
    Stop(oneshot::Sender<()>),
}

impl From<NetEvent> for MonMail {
    fn from(e: NetEvent) -> Self {
        Self::Net(e)
    }
}

/// Makes the monitor's store of a new cluster.
///
/// # Errors
/// When it cannot be written.
pub fn create(dir: &Path, m: &Manifest, pool: &str, pgs: u32, host: &str) -> anyhow::Result<()> {
    let osds = m.osd_uuids.iter().enumerate().map(|(id, uuid)| NewOsd {
        id: id as i32,
        uuid: *uuid,
        size_bytes: m.osd_size,
        host: host.to_owned(),
        device_class: String::new(),
    });
    let mut admin_secret = [0; 16];
    entropy::fill(&mut admin_secret).context("draw a key")?;
    let params = MkfsParams {
        fsid: m.fsid,
        mon_name: MON_NAME.to_owned(),
        mon_addrs: mon_addrs(m),
        osds: osds.collect(),
        // One machine: copies spread over its OSDs.
        failure_domain: "osd".to_owned(),
        defaults: [
            ("osd_pool_default_size", m.pool_size.to_string()),
            ("osd_pool_default_pg_autoscale_mode", "off".to_owned()),
            ("mon_allow_pool_delete", "true".to_owned()),
            ("mon_allow_pool_size_one", "true".to_owned()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into(),
        pools: vec![InitialPool { name: pool.to_owned(), pg_num: pgs, size: 0, application: "rados".to_owned() }],
        admin_secret,
    };
    let txn = mkfs(&params, clock::wall()).map_err(|e| anyhow!("make the first maps: {e}"))?;
    let mut store = MonStore::create(dir, m.fsid).map_err(|e| anyhow!("create the monitor: {e}"))?;
    store.commit(&txn).map_err(|e| anyhow!("create the monitor: {e}"))
}

/// What a monitor is started with.
pub struct MonSetup {
    /// Directory of its store.
    pub data: PathBuf,
    /// Its name.
    pub name: String,
    /// Its cluster, if known.
    pub fsid: Option<Uuid>,
    /// Where to listen, if not at its address in the monitor map.
    pub bind: Option<SocketAddr>,
    /// Name of this machine.
    pub host: String,
    /// Its options.
    pub settings: Settings,
}

/// A running monitor.
pub struct MonHandle {
    /// Where its orders go.
    pub mailbox: Mailbox<MonMail>,
    /// Where it listens.
    pub addrs: AddrVec,
}

/// The monitor on an event loop.
pub struct MonDaemon {
    mon: Mon,
    links: HashMap<LinkId, Link>,
    disk: mpsc::Sender<(u64, MonTxn)>,
    out: Vec<MonEffect>,
    next_tick: Duration,
    stopped: Option<Option<oneshot::Sender<()>>>,
    _listener: Listener,
}

impl MonDaemon {
    /// Opens the store and starts the monitor on `on`.
    ///
    /// # Errors
    /// When the store cannot be opened or the port is taken.
    pub fn start(
        setup: MonSetup,
        hub: &Hub,
        on: &Handle,
        failed: Arc<Mutex<Option<String>>>,
    ) -> anyhow::Result<MonHandle> {
        let MonSetup { data, name, fsid, bind, host, settings } = setup;
        let store = MonStore::open(&data).map_err(|e| anyhow!("mon.{name} cannot start: {e}"))?;
        if let Some(fsid) = fsid.filter(|f| *f != store.fsid()) {
            bail!("mon.{name} cannot start: {} belongs to cluster {}, not {fsid}", data.display(), store.fsid());
        }
        let draw = Box::new(|bytes: &mut [u8]| {
            if let Err(e) = entropy::fill(bytes) {
                tracing::error!("draw random bytes: {e}");
            }
        });
        let mut mon = Mon::open(store.keys(), &name, clock::wall(), draw)
            .map_err(|e| anyhow!("mon.{name} cannot start: {}: {e}", data.display()))?;
        mon.set_metadata(host::machine_facts(&host));
        mon.set_settings(settings);
        let known = mon.state().monmap.mons.get(&name).and_then(|m| m.addrs.msgr2().addr);
        let addr = bind.or(known).with_context(|| format!("mon.{name} has no v2 address in the monitor map"))?;
        let (mailbox, rx) = mailbox::<MonMail>();
        let ids = mon.global_ids();
        let me = Peer::new(EntityType::Mon, &name);
        let auth = Arc::new(Trusting { assign_id: Some(Arc::new(move || ids.next())) });
        let service = Service { me, sink: mailbox.sink(), auth };
        let listener = hub.listen(&[addr], 0, service, on).with_context(|| {
            format!("mon.{name} cannot listen on {addr}; if another program has the port, a new cluster can take one with --port")
        })?;
        let disk = disk_thread(store, mailbox.clone(), failed)?;
        let mut out = Vec::new();
        mon.start(clock::wall(), &mut out);
        let addrs = listener.addrs.clone();
        let mut daemon = Self {
            mon,
            links: HashMap::new(),
            disk,
            out,
            next_tick: Duration::ZERO,
            stopped: None,
            _listener: listener,
        };
        daemon.perform();
        let own = mailbox.clone();
        on.spawn(async move {
            let daemon = spirula_runtime::run(daemon, own, rx).await;
            if let Some(Some(done)) = daemon.stopped {
                let _ = done.send(());
            }
        });
        Ok(MonHandle { mailbox, addrs })
    }

    fn feed(&mut self, event: MonEvent) {
        self.mon.handle(clock::wall(), event, &mut self.out);
        self.perform();
    }

    fn perform(&mut self) {
        for effect in self.out.drain(..) {
            match effect {
                MonEffect::Send(conn, message) => {
                    if let Some(link) = self.links.get(&conn) {
                        link.send(message);
                    }
                }
                MonEffect::Close(conn) => {
                    if let Some(link) = self.links.get(&conn) {
                        link.close();
                    }
                }
                MonEffect::Commit(id, txn) => {
                    // The thread ends only after a failure, which stops the cluster.
                    let _ = self.disk.send((id, txn));
                }
            }
        }
    }
}

/// The thread that writes commits, in order, and says when they are durable.
fn disk_thread(
    mut store: MonStore,
    mailbox: Mailbox<MonMail>,
    failed: Arc<Mutex<Option<String>>>,
) -> anyhow::Result<mpsc::Sender<(u64, MonTxn)>> {
    let (tx, rx) = mpsc::channel::<(u64, MonTxn)>();
    std::thread::Builder::new()
        .name("mon-disk".into())
        .spawn(move || {
            for (id, txn) in rx {
                if let Err(e) = store.commit(&txn) {
                    // Nothing is acknowledged any more; the process ends with the reason.
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(format!("the monitor's store failed: {e}"));
                    return;
                }
                mailbox.push(MonMail::Committed(id));
            }
        })
        .context("start the monitor's disk thread")?;
    Ok(tx)
}

impl Daemon for MonDaemon {
    type Event = MonMail;

    fn handle(&mut self, event: MonMail) {
        match event {
            MonMail::Net(NetEvent::Message(conn, message)) => self.feed(MonEvent::Message { conn, message }),
            MonMail::Net(NetEvent::Opened { link, peer, .. }) => {
                let conn = link.id();
                self.links.insert(conn, link);
                let Peer { kind, id, global_id, addrs, features, .. } = peer;
                let peer = spirula_mon::Peer { kind, id, global_id, addrs, features };
                self.feed(MonEvent::SessionOpened { conn, peer });
            }
            MonMail::Net(NetEvent::Closed(conn, _)) => {
                if self.links.remove(&conn).is_some() {
                    self.feed(MonEvent::SessionClosed { conn });
                }
            }
            MonMail::Committed(id) => self.feed(MonEvent::Committed(id)),
            MonMail::Stop(done) => self.stopped = Some(Some(done)),
        }
    }

    fn tick(&mut self) {
        self.next_tick = clock::monotonic() + TICK;
        self.feed(MonEvent::Tick);
    }

    fn deadline(&self) -> Duration {
        self.next_tick
    }

    fn finished(&self) -> bool {
        self.stopped.is_some()
    }
}
