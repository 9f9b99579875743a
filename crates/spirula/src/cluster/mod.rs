//! A whole cluster in one process: monitor, manager and OSDs on shared event loops.
//!
//! Each daemon is the same that would run alone; only its links are shorter. Stores are
//! opened and created in parallel, since each syncs its own disk.

mod admin;
mod mgr;
mod mon;

use crate::cli::Links;
use crate::dir::{ClusterDir, Manifest};
use crate::memory::{self, Budget};
use admin::Admin;
use anyhow::{Context, anyhow, bail};
use mgr::MgrDaemon;
use mon::MonDaemon;
use serde_json::{Value, json};
use spirula_buffer::PayloadPool;
use spirula_osd::{Control, Osd, OsdConfig, OsdEvent};
use spirula_runtime::{Hub, LinkMode, Mailbox, Reactors, clock, entropy, mailbox};
use spirula_store::{Identity, Store, StoreOptions};
use spirula_types::{AddrVec, EntityAddr};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Fills `bytes` with random ones.
///
/// # Errors
/// When the kernel has none.
pub fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    entropy::fill(bytes)
}

/// Name of the one monitor.
const MON_NAME: &str = "a";
/// Name of the one manager.
const MGR_NAME: &str = "x";
/// Journal of each OSD.
const JOURNAL_BYTES: u64 = 64 << 20;
/// How long a daemon's clean stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// How to run, this time.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory.
    pub budget: Budget,
    /// Event-loop threads.
    pub reactors: usize,
    /// How daemons reach each other.
    pub links: Links,
}

/// An OSD's slot.
enum OsdSlot {
    Running(Mailbox<OsdEvent>),
    Stopped(String),
}

struct Inner {
    dir: ClusterDir,
    manifest: Manifest,
    options: Options,
    begun: Instant,
    hub: Hub,
    /// Taken when the cluster stops.
    reactors: Mutex<Option<Reactors>>,
    mon: Mailbox<mon::MonMail>,
    mgr: Mailbox<mgr::MgrMail>,
    admin: Admin,
    osds: Mutex<BTreeMap<i32, OsdSlot>>,
    nonce: u32,
    /// First reason why the cluster cannot go on.
    failed: Arc<Mutex<Option<String>>>,
}

/// A running cluster. Clones are the same one.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn osd_dir(dir: &ClusterDir, id: usize) -> PathBuf {
    dir.join(format!("osd.{id}"))
}

fn mon_dir(dir: &ClusterDir) -> PathBuf {
    dir.join(format!("mon.{MON_NAME}"))
}

fn mon_addrs(m: &Manifest) -> AddrVec {
    AddrVec::one(EntityAddr::v2(SocketAddr::new(m.bind, m.port), 0))
}

fn store_options(size: u64, budget: u64, pool: PayloadPool) -> StoreOptions {
    StoreOptions {
        size,
        journal_size: JOURNAL_BYTES.min(size / 8),
        cache_bytes: usize::try_from(budget).unwrap_or(usize::MAX),
        pool,
    }
}

/// This machine's name, as the CRUSH map and reports show it.
fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = name.split('.').next().unwrap_or_default();
    if short.is_empty() { "localhost".to_owned() } else { short.to_owned() }
}

/// What daemons tell of the machine they run on (`osd metadata`, `mon metadata` …).
fn machine_facts() -> BTreeMap<String, String> {
    let memory = rustix::system::sysinfo();
    [
        ("hostname", hostname()),
        ("ceph_version", spirula_types::version::TEXT.to_owned()),
        ("ceph_version_short", spirula_types::version::CEPH.to_owned()),
        ("ceph_release", spirula_types::version::RELEASE.to_owned()),
        ("spirula_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("arch", std::env::consts::ARCH.to_owned()),
        ("cpus", std::thread::available_parallelism().map_or(1, usize::from).to_string()),
        ("kernel_version", rustix::system::uname().release().to_string_lossy().into_owned()),
        ("mem_total_kb", ((u64::from(memory.mem_unit) * memory.totalram) >> 10).to_string()),
        ("os", "Linux".to_owned()),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into()
}

impl Cluster {
    /// Makes the stores of a new cluster. What an interrupted earlier attempt left is removed.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn create(dir: &ClusterDir, m: &Manifest, pool: &str, pgs: u32) -> anyhow::Result<()> {
        let mut stale = vec![mon_dir(dir)];
        stale.extend((0..m.osd_uuids.len()).map(|id| osd_dir(dir, id)));
        for path in stale.iter().filter(|p| p.exists()) {
            std::fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))?;
        }
        std::thread::scope(|s| {
            let osds: Vec<_> = (0..m.osd_uuids.len())
                .map(|id| {
                    s.spawn(move || {
                        let opts = store_options(m.osd_size, 16 << 20, PayloadPool::new(1 << 20));
                        let path = osd_dir(dir, id);
                        Store::create(&path, m.fsid, m.osd_uuids[id], id as i32, &opts)
                            .map_err(|e| anyhow!("create osd.{id}: {e}"))
                    })
                })
                .collect();
            mon::create(&mon_dir(dir), m, pool, pgs, &hostname())?;
            for osd in osds {
                osd.join().map_err(|_| anyhow!("a store's creation panicked"))??;
            }
            Ok(())
        })
    }

    /// Starts every daemon.
    ///
    /// # Errors
    /// When a store cannot be opened, with which and why, or a port is taken.
    pub fn start(dir: &ClusterDir, m: &Manifest, options: &Options) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let payloads = PayloadPool::new(usize::try_from(options.budget.payloads).unwrap_or(usize::MAX));
        let mode = match options.links {
            Links::Memory => LinkMode::Memory,
            Links::Tcp => LinkMode::Tcp,
        };
        let hub = Hub::new(mode, payloads);
        let reactors = Reactors::start(options.reactors).context("start the event loops")?;
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        let mut nonce = [0; 4];
        random(&mut nonce).context("draw a number")?;
        // Below 2^31: printed as signed by some tools.
        let nonce = u32::from_le_bytes(nonce) >> 1;
        // The stores take longest to open: begin with them.
        let opened = std::thread::scope(|s| {
            let threads: Vec<_> = (0..m.osd_uuids.len())
                .map(|id| {
                    let hub = &hub;
                    s.spawn(move || open_store(dir, m, options, hub, id))
                })
                .collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, anyhow::Result<OpenStore>>| {
                t.join().unwrap_or_else(|_| bail!("opening a store panicked"))
            };
            threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mon_on = reactors.next();
        let mon = MonDaemon::start(&mon_dir(dir), m, &hub, &mon_on, failed.clone())?;
        let mgr = MgrDaemon::start(m, MGR_NAME, nonce, &hub, &reactors.next(), &hostname())?;
        let admin = Admin::start(&hub, mon_addrs(m), &mon_on);
        let inner = Inner {
            dir: dir.clone(),
            manifest: m.clone(),
            options: options.clone(),
            begun,
            hub,
            reactors: Mutex::new(Some(reactors)),
            mon,
            mgr,
            admin,
            osds: Mutex::default(),
            nonce,
            failed,
        };
        let cluster = Self(Arc::new(inner));
        for (id, store) in opened.into_iter().enumerate() {
            cluster.run_osd(id, store, true)?;
        }
        Ok(cluster)
    }

    fn run_osd(&self, id: usize, open: OpenStore, fresh_leases: bool) -> anyhow::Result<()> {
        let inner = &self.0;
        let m = &inner.manifest;
        let guard = locked(&inner.reactors);
        let Some(reactors) = guard.as_ref() else { bail!("the cluster is stopping") };
        let on = reactors.next();
        drop(guard);
        let host = hostname();
        let mut metadata = machine_facts();
        metadata.extend([
            ("id".to_owned(), id.to_string()),
            ("osd_data".to_owned(), osd_dir(&inner.dir, id).display().to_string()),
            ("osd_objectstore".to_owned(), "spirula".to_owned()),
        ]);
        let cfg = OsdConfig {
            id: id as i32,
            fsid: m.fsid,
            uuid: m.osd_uuids[id],
            mon: mon_addrs(m),
            bind: m.bind,
            // Every incarnation has its own, also within one process.
            nonce: inner.nonce.wrapping_add(clock::monotonic().as_micros() as u32) & 0x7fff_ffff,
            host,
            fresh_leases,
            metadata,
        };
        let osd = Osd::start(cfg, inner.hub.clone(), on.clone(), open.mailbox.clone(), open.store)
            .map_err(|e| anyhow!("start osd.{id}: {e}"))?;
        let slot = open.mailbox.clone();
        let weak = Arc::downgrade(inner);
        on.spawn(async move {
            spirula_runtime::run(osd, open.mailbox, open.rx).await;
            if let Some(inner) = weak.upgrade() {
                let why = "stopped".to_owned();
                locked(&inner.osds).insert(id as i32, OsdSlot::Stopped(why));
            }
        });
        locked(&inner.osds).insert(id as i32, OsdSlot::Running(slot));
        Ok(())
    }

    /// Is every PG active+clean and every OSD up?
    pub fn ready(&self) -> bool {
        self.pg_states().is_some_and(|(total, clean)| total > 0 && clean == total)
    }

    /// Number of PGs.
    pub fn pg_count(&self) -> u64 {
        self.pg_states().map_or(0, |(total, _)| total)
    }

    /// PGs in all and active+clean, once the manager has reported for all OSDs.
    fn pg_states(&self) -> Option<(u64, u64)> {
        let v = self.status_json()?;
        let map = &v["pgmap"];
        let up = v["osdmap"]["num_up_osds"].as_u64()?;
        if up != self.0.manifest.osd_uuids.len() as u64 || v["mgrmap"]["available"] != true {
            return None;
        }
        let total = map["num_pgs"].as_u64()?;
        let states = map["pgs_by_state"].as_array()?;
        let clean = states.iter().find(|s| s["state_name"] == "active+clean").and_then(|s| s["count"].as_u64());
        Some((total, clean.unwrap_or(0)))
    }

    fn status_json(&self) -> Option<Value> {
        let (r, _, out) = self.0.admin.command(r#"{"prefix": "status", "format": "json"}"#)?;
        if r == 0 { serde_json::from_slice(&out).ok() } else { None }
    }

    /// What keeps the cluster from being ready, in a sentence.
    pub fn explain(&self) -> String {
        let health = self.0.admin.command(r#"{"prefix": "health", "detail": "detail"}"#);
        match health {
            Some((_, _, out)) => String::from_utf8_lossy(&out).lines().take(3).collect::<Vec<_>>().join("; "),
            None => "the monitor does not answer".to_owned(),
        }
    }

    /// Fails if the cluster cannot go on.
    ///
    /// # Errors
    /// With the first reason.
    pub fn check_alive(&self) -> anyhow::Result<()> {
        match &*locked(&self.0.failed) {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// The state of process, daemons and cluster.
    ///
    /// # Errors
    /// When the monitor does not answer.
    pub fn status(&self) -> anyhow::Result<Value> {
        let inner = &self.0;
        let (_, _, text) = inner.admin.command(r#"{"prefix": "status"}"#).context("the monitor does not answer")?;
        let space = inner.osd_space();
        let osds: Vec<Value> = locked(&inner.osds)
            .iter()
            .map(|(id, slot)| match slot {
                OsdSlot::Running(_) => {
                    let (used, total) = space.get(id).copied().unwrap_or((0, inner.manifest.osd_size));
                    json!({"id": id, "running": true, "used": used, "total": total})
                }
                OsdSlot::Stopped(why) => json!({"id": id, "running": false, "why": why}),
            })
            .collect();
        Ok(json!({
            "running": true,
            "pid": std::process::id(),
            "uptime": inner.begun.elapsed().as_secs(),
            "dir": inner.dir.path(),
            "conf": inner.dir.conf(),
            "fsid": inner.manifest.fsid.to_string(),
            "mon": mon_addrs(&inner.manifest).to_string(),
            "resident": memory::resident(),
            "memory_limit": inner.options.budget.total,
            "payloads_in_flight": inner.hub.pool().outstanding(),
            "osds": osds,
            "ready": self.ready(),
            "status": String::from_utf8_lossy(&text),
        }))
    }

    /// Stops one OSD cleanly.
    ///
    /// # Errors
    /// When there is no such OSD, or it is stopped already.
    pub fn stop_osd(&self, id: i32) -> anyhow::Result<String> {
        let done = {
            let osds = locked(&self.0.osds);
            match osds.get(&id) {
                None => {
                    bail!("there is no osd.{id}; this cluster has osd.0 to osd.{}", self.0.manifest.osd_uuids.len() - 1)
                }
                Some(OsdSlot::Stopped(_)) => bail!("osd.{id} is not running"),
                Some(OsdSlot::Running(mailbox)) => {
                    let (tx, rx) = oneshot::channel();
                    mailbox.push(OsdEvent::Control(Control::Stop(tx)));
                    rx
                }
            }
        };
        wait(done, STOP_PATIENCE).with_context(|| format!("osd.{id} did not stop in time"))?;
        // Its task has still to end: it holds the store's lock until then.
        let begun = Instant::now();
        while matches!(locked(&self.0.osds).get(&id), Some(OsdSlot::Running(_))) {
            if begun.elapsed() > STOP_PATIENCE {
                bail!("osd.{id} did not stop in time");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(format!("stopped osd.{id}; its PGs are degraded until 'spirula osd start {id}'"))
    }

    /// Starts a stopped OSD.
    ///
    /// # Errors
    /// When there is no such OSD, it runs already, or its store cannot be opened.
    pub fn start_osd(&self, id: i32) -> anyhow::Result<String> {
        match locked(&self.0.osds).get(&id) {
            None => {
                bail!("there is no osd.{id}; this cluster has osd.0 to osd.{}", self.0.manifest.osd_uuids.len() - 1)
            }
            Some(OsdSlot::Running(_)) => bail!("osd.{id} is running already"),
            Some(OsdSlot::Stopped(_)) => {}
        }
        let inner = &self.0;
        let n = id as usize;
        let open = open_store(&inner.dir, &inner.manifest, &inner.options, &inner.hub, n)?;
        self.run_osd(n, open, false)?;
        Ok(format!("started osd.{id}; it catches up with the others by itself"))
    }

    /// Stops every daemon: OSDs first, then manager and monitor.
    ///
    /// # Errors
    /// When one does not stop in time.
    pub fn stop(&self) -> anyhow::Result<()> {
        let waits: Vec<_> = locked(&self.0.osds)
            .iter()
            .filter_map(|(id, slot)| match slot {
                OsdSlot::Running(mailbox) => {
                    let (tx, rx) = oneshot::channel();
                    mailbox.push(OsdEvent::Control(Control::Stop(tx)));
                    Some((*id, rx))
                }
                OsdSlot::Stopped(_) => None,
            })
            .collect();
        let mut result = Ok(());
        for (id, done) in waits {
            if wait(done, STOP_PATIENCE).is_none() {
                result = Err(anyhow!("osd.{id} did not stop in time"));
            }
        }
        let (tx, rx) = oneshot::channel();
        self.0.mgr.push(mgr::MgrMail::Stop);
        self.0.mon.push(mon::MonMail::Stop(tx));
        if wait(rx, STOP_PATIENCE).is_none() {
            result = Err(anyhow!("the monitor did not stop in time"));
        }
        if let Some(reactors) = locked(&self.0.reactors).take() {
            reactors.stop();
        }
        // Its socket would outlive us.
        let _ = std::fs::remove_file(self.0.dir.socket());
        result
    }
}

impl Inner {
    /// Used and total bytes by OSD, from the manager's `osd df`.
    fn osd_space(&self) -> BTreeMap<i32, (u64, u64)> {
        let Some((0, _, out)) = self.admin.mgr_command(r#"{"prefix": "osd df", "format": "json"}"#) else {
            return BTreeMap::new();
        };
        let v: Value = serde_json::from_slice(&out).unwrap_or_default();
        let kib = |n: &Value, key: &str| n[key].as_u64().unwrap_or(0) << 10;
        let row = |n: &Value| Some((i32::try_from(n["id"].as_i64()?).ok()?, (kib(n, "kb_used"), kib(n, "kb"))));
        v["nodes"].as_array().into_iter().flatten().filter_map(row).collect()
    }
}

/// Waits for a daemon's word from a thread that is no event loop's.
fn wait<T>(mut rx: oneshot::Receiver<T>, patience: Duration) -> Option<T> {
    let begun = Instant::now();
    loop {
        match rx.try_recv() {
            Ok(v) => return Some(v),
            Err(oneshot::error::TryRecvError::Closed) => return None,
            Err(oneshot::error::TryRecvError::Empty) if begun.elapsed() > patience => return None,
            Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A store that is open, with the mailbox its threads write to.
struct OpenStore {
    store: Store,
    mailbox: Mailbox<OsdEvent>,
    rx: tokio::sync::mpsc::UnboundedReceiver<OsdEvent>,
}

fn open_store(dir: &ClusterDir, m: &Manifest, options: &Options, hub: &Hub, id: usize) -> anyhow::Result<OpenStore> {
    let (mailbox, rx) = mailbox();
    let opts = store_options(m.osd_size, options.budget.per_store, hub.pool().clone());
    let expected =
        Identity { fsid: m.fsid, osd_uuid: m.osd_uuids.get(id).copied().unwrap_or_default(), osd_id: id as i32 };
    let (commit, error) = (mailbox.clone(), mailbox.clone());
    let store = Store::open(
        &osd_dir(dir, id),
        Some(expected),
        &opts,
        Box::new(move |seq| commit.push(OsdEvent::Durable(seq))),
        Box::new(move |e| error.push(OsdEvent::StoreFailed(e.to_string()))),
    )
    .map_err(|e| anyhow!("osd.{id} cannot start: {e}"))?;
    Ok(OpenStore { store, mailbox, rx })
}
