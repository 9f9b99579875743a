//! A whole cluster in one process: monitor, manager and OSDs on shared event loops.
//!
//! Each daemon is the same that would run alone; only its links are shorter. Stores are
//! opened and created in parallel, since each syncs its own disk. An OSD that cannot use its
//! store is one OSD less: the others run, and the cluster's health says why.

pub mod admin;
mod away;
pub mod host;
pub mod mgr;
mod mgr_client;
pub mod mon;
pub mod osd;
pub mod osd_shell;
mod recreate;
pub mod store_facts;
mod turns;
mod watch;

use crate::Unmet;
use crate::asok::{self, AdminSocket};
use crate::cli::Links;
use crate::dir::{ClusterDir, Manifest};
use crate::keys;
use crate::memory::{self, Budget};
use crate::options::{Names, Sources};
use admin::Admin;
use anyhow::{Context, anyhow, bail};
use away::Away;
use mgr::{MgrDaemon, MgrSetup};
use mon::{MonDaemon, MonSetup};
use osd::{Expected, OpenStore, OsdSetup};
use osd_shell::OsdMail;
use serde_json::{Value, json};
use spirula_buffer::PayloadPool;
use spirula_osd::OsdEvent;
use spirula_runtime::cephx::Realm;
use spirula_runtime::{Hub, LinkMode, Mailbox, Mons, Reactors};
use spirula_settings::Settings;
use spirula_store::{Io, Store};
use spirula_types::{AddrVec, EntityAddr, OsdId, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use turns::{Turn, Turns};

/// Name of the cluster, as it appears in file names.
pub const CLUSTER: &str = "ceph";
/// Names of the monitors.
const MON_NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Name of the one manager.
const MGR_NAME: &str = "x";
/// How long a daemon's clean stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// How to run, this time.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the daemons' options come from.
    pub sources: Arc<Sources>,
    /// Defaults of paths in this directory.
    pub fallback: Vec<(&'static str, String)>,
    /// Memory.
    pub budget: Budget,
    /// Event-loop threads.
    pub reactors: usize,
    /// How daemons reach each other.
    pub links: Links,
    /// How stores read and write.
    pub io: Io,
}

impl Options {
    fn settings(&self, kind: &str, id: &str, host: &str) -> anyhow::Result<Settings> {
        self.sources.settings(Names { cluster: CLUSTER, kind, id, host }, &self.fallback)
    }
}

/// Opens a daemon's admin socket, if its options want one. A cluster without it works, so that
/// a failure is only told.
pub fn admin_socket(
    settings: &Settings,
    kind: &str,
    id: &str,
    hub: &Hub,
    addrs: &AddrVec,
) -> Option<AdminSocket> {
    let path = settings.get("admin_socket").filter(|p| !p.is_empty())?;
    match asok::open(std::path::Path::new(path), hub, addrs) {
        Ok(socket) => Some(socket),
        Err(e) => {
            tracing::warn!("{kind}.{id} has no admin socket: {e:#}");
            None
        }
    }
}

fn mons(m: &Manifest) -> Mons {
    Mons::new(
        mon_addrs(m).into_iter().map(|(_, a)| AddrVec::one(EntityAddr::v2(a, 0))).collect(),
        0,
    )
}

fn expected(m: &Manifest, id: usize) -> Expected {
    Expected { id: id as i32, fsid: Some(m.fsid), uuid: m.osd_uuids.get(id).copied() }
}

/// An OSD's slot.
enum OsdSlot {
    Running(Mailbox<OsdMail>),
    Stopped(Stopped),
}

/// Why an OSD does not run.
#[derive(Clone)]
enum Stopped {
    /// Somebody wanted it so.
    Asked,
    /// Its store cannot be used.
    Store(String),
    /// The file system of its store is full; it comes back by itself.
    NoRoom(String),
}

impl Stopped {
    /// For the reason that an OSD, or its opening, gave; `None`: it was asked to stop.
    fn of(why: Option<String>) -> Self {
        match why {
            None => Self::Asked,
            Some(why) if watch::is_no_room(&why) => Self::NoRoom(why),
            Some(why) => Self::Store(why),
        }
    }
}

struct Inner {
    dir: ClusterDir,
    manifest: Manifest,
    /// Identity of each OSD's store: those of the manifest, or made since.
    uuids: Mutex<Vec<Uuid>>,
    options: Options,
    begun: Instant,
    hub: Hub,
    /// Taken when the cluster stops.
    reactors: Mutex<Option<Reactors>>,
    mons: Vec<Mailbox<mon::MonMail>>,
    /// What the first monitor knows of users and keys.
    realm: Option<Arc<RwLock<Realm>>>,
    mgr: Mailbox<mgr::MgrMail>,
    admin: Admin,
    osds: Mutex<BTreeMap<i32, OsdSlot>>,
    /// What must stay where it is while the cluster runs.
    watch: Mutex<watch::Watch>,
    sockets: Mutex<BTreeMap<String, AdminSocket>>,
    /// What is done with the OSDs' stores.
    turns: Turns,
    /// OSDs that were stopped for a while.
    away: Away,
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

fn mon_dir(dir: &ClusterDir, name: &str) -> PathBuf {
    dir.join(format!("mon.{name}"))
}

/// Name and address of each monitor.
pub fn mon_addrs(m: &Manifest) -> Vec<(&'static str, SocketAddr)> {
    let ports = (0..u16::from(m.mons)).map(|i| m.port.saturating_add(i));
    MON_NAMES.into_iter().zip(ports.map(|port| SocketAddr::new(m.bind, port))).collect()
}

impl Cluster {
    /// Makes the stores of a new cluster. What an interrupted earlier attempt left is removed.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn create(dir: &ClusterDir, m: &Manifest, pool: &str, pgs: u32) -> anyhow::Result<()> {
        let mut stale: Vec<PathBuf> =
            MON_NAMES.into_iter().map(|name| mon_dir(dir, name)).collect();
        stale.extend((0..m.osd_uuids.len()).map(|id| osd_dir(dir, id)));
        for path in stale.iter().filter(|p| p.exists()) {
            std::fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))?;
        }
        std::thread::scope(|s| {
            let osds: Vec<_> = (0..m.osd_uuids.len())
                .map(|id| {
                    s.spawn(move || {
                        let opts =
                            osd::store_options(m.osd_size, 16 << 20, PayloadPool::new(1 << 20));
                        let path = osd_dir(dir, id);
                        Store::create(&path, m.fsid, m.osd_uuids[id], id as i32, &opts)
                            .map_err(|e| anyhow!("create osd.{id}: {e}"))
                    })
                })
                .collect();
            let mons: Vec<_> = mon_addrs(m)
                .into_iter()
                .map(|(name, a)| {
                    (name.to_owned(), AddrVec::one(EntityAddr::v2(a, 0)), mon_dir(dir, name))
                })
                .collect();
            let mut daemons: Vec<String> =
                mons.iter().map(|(name, ..)| format!("mon.{name}")).collect();
            daemons.push(format!("mgr.{MGR_NAME}"));
            daemons.extend((0..m.osd_uuids.len()).map(|id| format!("osd.{id}")));
            let users = keys::first_users(dir, &daemons)?;
            mon::create(&mons, m, pool, pgs, &host::hostname(), users)?;
            for osd in osds {
                osd.join().map_err(|_| anyhow!("a store's creation panicked"))??;
            }
            Ok(())
        })
    }

    /// Starts every daemon. An OSD whose store cannot be opened stays stopped.
    ///
    /// # Errors
    /// When no OSD's store can be opened, with which and why, or a port is taken.
    pub fn start(dir: &ClusterDir, m: &Manifest, options: &Options) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let payloads =
            PayloadPool::new(usize::try_from(options.budget.payloads).unwrap_or(usize::MAX));
        let mode = match options.links {
            Links::Memory => LinkMode::Memory,
            Links::Tcp => LinkMode::Tcp,
        };
        let hub = Hub::new(mode, payloads);
        let reactors = Reactors::start(options.reactors).context("start the event loops")?;
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        // The stores take longest to open: begin with them.
        let opened = std::thread::scope(|s| {
            let threads: Vec<_> = (0..m.osd_uuids.len())
                .map(|id| {
                    let hub = &hub;
                    s.spawn(move || {
                        osd::open_store(
                            &osd_dir(dir, id),
                            expected(m, id),
                            &options.budget,
                            options.io,
                            hub,
                        )
                    })
                })
                .collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, anyhow::Result<OpenStore>>| {
                t.join().unwrap_or_else(|_| bail!("opening a store panicked"))
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        let opened = some_of(opened)?;
        let mon_on = reactors.next();
        let host = host::hostname();
        let mut sockets = BTreeMap::new();
        let mut socket = |kind: &str, id: &str, settings: &Settings, addrs: &AddrVec| {
            if let Some(open) = admin_socket(settings, kind, id, &hub, addrs) {
                sockets.insert(format!("{kind}.{id}"), open);
            }
        };
        let mut mon_mail = Vec::new();
        let mut realm = None;
        for (name, _) in mon_addrs(m) {
            let settings = options.settings("mon", name, &host)?;
            let auth = keys::monitor(name, &settings)?;
            if realm.is_none() {
                hub.set_modes(keys::modes(&settings, false)?);
                realm = Some(auth.realm.clone());
            }
            let setup = MonSetup {
                data: mon_dir(dir, name),
                name: name.to_owned(),
                fsid: Some(m.fsid),
                bind: None,
                place: None,
                hint: None,
                seeds: Vec::new(),
                host: host.clone(),
                settings: settings.clone(),
                auth,
                company: mon_addrs(m).into_iter().map(|(name, _)| name.to_owned()).collect(),
            };
            let mon = MonDaemon::start(setup, &hub, &reactors.next(), failed.clone())?;
            socket("mon", name, &settings, &mon.addrs);
            mon_mail.push(mon.mailbox);
        }
        let settings = options.settings("mgr", MGR_NAME, &host)?;
        let setup = MgrSetup {
            fsid: m.fsid,
            name: MGR_NAME.to_owned(),
            mons: mons(m),
            public: m.bind,
            ports: (0, 0),
            settings: settings.clone(),
            auth: keys::daemon(&format!("mgr.{MGR_NAME}"), &settings, realm.clone())?,
            host,
        };
        let mgr = MgrDaemon::start(setup, &hub, &reactors.next())?;
        socket("mgr", MGR_NAME, &settings, &mgr.addrs);
        let settings = options.settings("client", "admin", "")?;
        let admin =
            Admin::start(&hub, mons(m), keys::daemon("client.admin", &settings, None)?, &mon_on);
        let inner = Inner {
            dir: dir.clone(),
            manifest: m.clone(),
            uuids: Mutex::new(m.osd_uuids.clone()),
            options: options.clone(),
            begun,
            hub,
            reactors: Mutex::new(Some(reactors)),
            mons: mon_mail,
            realm,
            mgr: mgr.mailbox,
            admin,
            osds: Mutex::default(),
            watch: Mutex::new(watch::Watch::new(dir)),
            sockets: Mutex::new(sockets),
            turns: Turns::default(),
            away: Away::default(),
            failed,
        };
        let cluster = Self(Arc::new(inner));
        let all: BTreeSet<OsdId> = (0..).take(opened.len()).collect();
        // What a store holds may be as bad as the store.
        let run = |(id, store): (usize, anyhow::Result<OpenStore>)| {
            cluster.run_osd(id, store?, all.clone())
        };
        let started = some_of(opened.into_iter().enumerate().map(run).collect())?;
        for (id, e) in
            started.into_iter().enumerate().filter_map(|(id, started)| Some((id, started.err()?)))
        {
            tracing::error!("{e:#}");
            let slot = OsdSlot::Stopped(Stopped::of(Some(format!("{e:#}"))));
            locked(&cluster.0.osds).insert(id as i32, slot);
        }
        cluster.0.tell_stopped();
        Ok(cluster)
    }

    fn run_osd(
        &self,
        id: usize,
        open: OpenStore,
        started_together: BTreeSet<OsdId>,
    ) -> anyhow::Result<()> {
        let inner = &self.0;
        let m = &inner.manifest;
        let guard = locked(&inner.reactors);
        let Some(reactors) = guard.as_ref() else { bail!("the cluster is stopping") };
        let on = reactors.next();
        drop(guard);
        let host = host::hostname();
        let settings = inner.options.settings("osd", &id.to_string(), &host)?;
        let setup = OsdSetup {
            data: osd_dir(&inner.dir, id),
            mons: mons(m),
            public: m.bind,
            cluster: m.bind,
            ports: (0, 0),
            host,
            device_class: settings
                .given("osd_class")
                .filter(|c| !c.is_empty())
                .map_or_else(|| host::device_class(&osd_dir(&inner.dir, id)), str::to_owned),
            started_together,
            auth: keys::daemon(&format!("osd.{id}"), &settings, inner.realm.clone())?,
            settings: settings.clone(),
        };
        let weak = Arc::downgrade(inner);
        // The slot is taken before the OSD can end.
        let mut osds = locked(&inner.osds);
        let handle = osd::start(setup, open, &inner.hub, &on, move |why| {
            if let Some(inner) = weak.upgrade() {
                locked(&inner.watch).end(id);
                locked(&inner.osds).insert(id as i32, OsdSlot::Stopped(Stopped::of(why)));
                locked(&inner.sockets).remove(&format!("osd.{id}"));
                inner.tell_stopped();
            }
        })?;
        osds.insert(id as i32, OsdSlot::Running(handle.mailbox));
        drop(osds);
        locked(&inner.watch).begin(id, &osd_dir(&inner.dir, id));
        inner.tell_stopped();
        if let Some(open) =
            admin_socket(&settings, "osd", &id.to_string(), &inner.hub, &handle.addrs)
        {
            locked(&inner.sockets).insert(format!("osd.{id}"), open);
        }
        Ok(())
    }

    /// Is every PG active+clean and every OSD up? Of OSDs that cannot run nothing is expected; then
    /// every PG that is served is enough.
    pub fn ready(&self) -> bool {
        let all = self.stopped().is_empty();
        self.pg_states()
            .is_some_and(|s| s.total > 0 && s.total == if all { s.clean } else { s.active })
    }

    /// Number of PGs.
    pub fn pg_count(&self) -> u64 {
        self.pg_states().map_or(0, |s| s.total)
    }

    /// How the PGs are, once the manager has reported for all OSDs that run.
    fn pg_states(&self) -> Option<PgStates> {
        self.pg_states_without(0)
    }

    /// The same, where so many OSDs more than those that failed are not expected to be up.
    fn pg_states_without(&self, away: usize) -> Option<PgStates> {
        let v = self.status_json()?;
        let map = &v["pgmap"];
        let up = v["osdmap"]["num_up_osds"].as_u64()?;
        let wanted = self.0.manifest.osd_uuids.len().saturating_sub(self.stopped().len() + away);
        if up != wanted as u64 || v["mgrmap"]["available"] != true {
            return None;
        }
        let mut out = PgStates { total: map["num_pgs"].as_u64()?, ..PgStates::default() };
        for s in map["pgs_by_state"].as_array()? {
            let (name, count) =
                (s["state_name"].as_str().unwrap_or_default(), s["count"].as_u64().unwrap_or(0));
            out.clean += if name == "active+clean" { count } else { 0 };
            // A stale one is what an OSD said that is down now.
            let served =
                name.split('+').any(|w| w == "active") && !name.split('+').any(|w| w == "stale");
            out.active += if served { count } else { 0 };
            out.unfound += if name.contains("unfound") { count } else { 0 };
        }
        Some(out)
    }

    /// OSDs that do not run though nobody stopped them, and why, with what to do.
    pub fn stopped(&self) -> BTreeMap<OsdId, String> {
        self.0.stopped()
    }

    /// What is to be looked at now and then: files that were taken away, and OSDs that may come
    /// back.
    pub fn look_after(&self) {
        let found = locked(&self.0.watch).look();
        if let Some(why) = found.cluster {
            locked(&self.0.failed).get_or_insert(why);
            return;
        }
        for (id, why) in found.osds {
            if let Some(OsdSlot::Running(mailbox)) = locked(&self.0.osds).get(&(id as i32)) {
                mailbox.push(OsdMail::Event(OsdEvent::StoreFailed(why)));
            }
        }
        let short = |(id, slot): (&i32, &OsdSlot)| {
            matches!(slot, OsdSlot::Stopped(Stopped::NoRoom(_))).then_some(*id)
        };
        let short: Vec<i32> = locked(&self.0.osds).iter().filter_map(short).collect();
        for id in short {
            // A turn is taken only to start it: an order for an OSD whose disk stays full is not
            // refused for the sake of a look.
            if !watch::has_room(&osd_dir(&self.0.dir, id as usize)) {
                continue;
            }
            // It is looked at again when whatever is done with it is done.
            let Ok(_turn) =
                self.0.turns.of(id, &format!("the return of osd.{id} to a disk that has room"))
            else {
                continue;
            };
            // Somebody may have started it, or made it anew, meanwhile.
            if !matches!(locked(&self.0.osds).get(&id), Some(OsdSlot::Stopped(Stopped::NoRoom(_))))
            {
                continue;
            }
            match self.start_osd_in_turn(id) {
                Ok(_) => tracing::warn!("osd.{id} runs again: its file system has room"),
                Err(e) => {
                    tracing::warn!("osd.{id} does not come back: {e:#}");
                    let slot = OsdSlot::Stopped(Stopped::of(Some(format!("{e:#}"))));
                    locked(&self.0.osds).insert(id, slot);
                    self.0.tell_stopped();
                }
            }
        }
        self.bring_back_late();
    }

    fn status_json(&self) -> Option<Value> {
        let (r, _, out) = self.0.admin.command(r#"{"prefix": "status", "format": "json"}"#)?;
        if r == 0 { serde_json::from_slice(&out).ok() } else { None }
    }

    /// What keeps the cluster from being ready, in a sentence.
    pub fn explain(&self) -> String {
        let health = self.0.admin.command(r#"{"prefix": "health", "detail": "detail"}"#);
        match health {
            Some((_, _, out)) => {
                String::from_utf8_lossy(&out).lines().take(3).collect::<Vec<_>>().join("; ")
            }
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
        let (_, _, text) = inner
            .admin
            .command(r#"{"prefix": "status"}"#)
            .context("the monitor does not answer")?;
        let space = inner.osd_space();
        let osds: Vec<Value> = locked(&inner.osds)
            .iter()
            .map(|(id, slot)| match slot {
                OsdSlot::Running(_) => {
                    let (used, total) =
                        space.get(id).copied().unwrap_or((0, inner.manifest.osd_size));
                    json!({"id": id, "running": true, "used": used, "total": total})
                }
                OsdSlot::Stopped(why) => {
                    let why = inner.advice(*id, why).unwrap_or_else(|| {
                        format!(
                            "stopped; start it with 'spirula osd start {id} --dir {}'",
                            inner.dir.path().display()
                        )
                    });
                    json!({"id": id, "running": false, "why": why})
                }
            })
            .collect();
        Ok(json!({
            "running": true,
            "pid": std::process::id(),
            "uptime": inner.begun.elapsed().as_secs(),
            "dir": inner.dir.path(),
            "conf": inner.dir.conf(),
            "fsid": inner.manifest.fsid.to_string(),
            "mons": mon_addrs(&inner.manifest).iter().map(|(name, a)| json!({"name": name, "addr": format!("v2:{a}")})).collect::<Vec<_>>(),
            "resident": memory::resident(),
            "memory_limit": inner.options.budget.total,
            "io": inner.options.io.to_string(),
            "payloads_in_flight": inner.hub.pool().outstanding(),
            "osds": osds,
            "ready": self.ready(),
            "status": String::from_utf8_lossy(&text),
        }))
    }

    /// OSDs that run.
    pub fn running_osds(&self) -> Vec<OsdId> {
        let osds = locked(&self.0.osds);
        osds.iter()
            .filter(|(_, slot)| matches!(slot, OsdSlot::Running(_)))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Stops one OSD cleanly.
    ///
    /// # Errors
    /// When there is no such OSD, it is stopped already, or something else is done with it.
    pub fn stop_osd(&self, id: i32) -> anyhow::Result<String> {
        let _turn = self.0.turns.of(id, &format!("an order for osd.{id}"))?;
        self.0.away.forget(id);
        self.stop_osd_in_turn(id)
    }

    /// Takes the turn for all OSDs, for a backup.
    ///
    /// # Errors
    /// When anything is done with one of them.
    pub fn turn_of_all(&self, what: &str) -> anyhow::Result<Turn<'_>> {
        self.0.turns.of_all(what)
    }

    /// [`Self::stop_osd`] by whoever has the turn.
    ///
    /// # Errors
    /// As there.
    pub fn stop_osd_in_turn(&self, id: i32) -> anyhow::Result<String> {
        let done = {
            let osds = locked(&self.0.osds);
            match osds.get(&id) {
                None => {
                    bail!(
                        "there is no osd.{id}; this cluster has osd.0 to osd.{}",
                        self.0.manifest.osd_uuids.len() - 1
                    )
                }
                Some(OsdSlot::Stopped(_)) => bail!("osd.{id} is not running"),
                Some(OsdSlot::Running(mailbox)) => {
                    let (tx, rx) = oneshot::channel();
                    mailbox.push(OsdMail::Stop(tx));
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
    /// When there is no such OSD, it runs already, its store cannot be opened, or something else is
    /// done with it.
    pub fn start_osd(&self, id: i32) -> anyhow::Result<String> {
        let _turn = self.0.turns.of(id, &format!("an order for osd.{id}"))?;
        // A stop that nobody waits for any more may be under way.
        if matches!(locked(&self.0.osds).get(&id), Some(OsdSlot::Running(_))) {
            self.0.away.remember(id);
        }
        self.start_osd_in_turn(id)
    }

    /// [`Self::start_osd`] by whoever has the turn.
    ///
    /// # Errors
    /// As there.
    pub fn start_osd_in_turn(&self, id: i32) -> anyhow::Result<String> {
        match locked(&self.0.osds).get(&id) {
            None => {
                bail!(
                    "there is no osd.{id}; this cluster has osd.0 to osd.{}",
                    self.0.manifest.osd_uuids.len() - 1
                )
            }
            Some(OsdSlot::Running(_)) => {
                return Err(Unmet(format!("osd.{id} is running already")).into());
            }
            Some(OsdSlot::Stopped(_)) => {}
        }
        let inner = &self.0;
        let n = id as usize;
        let uuid = locked(&inner.uuids).get(n).copied();
        let (data, expected) =
            (osd_dir(&inner.dir, n), Expected { uuid, ..expected(&inner.manifest, n) });
        let open =
            osd::open_store(&data, expected, &inner.options.budget, inner.options.io, &inner.hub)?;
        self.run_osd(n, open, BTreeSet::new())?;
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
                    mailbox.push(OsdMail::Stop(tx));
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
        locked(&self.0.sockets).clear();
        let (tx, mgr_rx) = oneshot::channel();
        self.0.mgr.push(mgr::MgrMail::Stop(tx));
        if wait(mgr_rx, STOP_PATIENCE).is_none() {
            result = Err(anyhow!("the manager did not stop in time"));
        }
        for mon in &self.0.mons {
            let (tx, rx) = oneshot::channel();
            mon.push(mon::MonMail::Stop(tx));
            if wait(rx, STOP_PATIENCE).is_none() {
                result = Err(anyhow!("a monitor did not stop in time"));
            }
        }
        if let Some(reactors) = locked(&self.0.reactors).take() {
            reactors.stop();
        }
        // Its socket would outlive us.
        let _ = std::fs::remove_file(self.0.dir.socket());
        result
    }
}

/// How the PGs are.
#[derive(Debug, Clone, Copy, Default)]
struct PgStates {
    total: u64,
    /// active+clean, and nothing else.
    clean: u64,
    active: u64,
    /// Want objects of which no copy is found.
    unfound: u64,
}

/// The results, if one of them is a success.
///
/// # Errors
/// The first one, if all are errors.
fn some_of<T>(all: Vec<anyhow::Result<T>>) -> anyhow::Result<Vec<anyhow::Result<T>>> {
    if all.iter().any(Result::is_ok) {
        return Ok(all);
    }
    all.into_iter().next().transpose().map(|_| Vec::new())
}

impl Inner {
    fn stopped(&self) -> BTreeMap<OsdId, String> {
        let osds = locked(&self.osds);
        let each = osds.iter().filter_map(|(id, slot)| match slot {
            OsdSlot::Stopped(why) => Some((*id, self.advice(*id, why)?)),
            OsdSlot::Running(_) => None,
        });
        each.collect()
    }

    /// Why an OSD does not run and what helps; `None` if somebody stopped it.
    fn advice(&self, id: i32, why: &Stopped) -> Option<String> {
        let dir = self.dir.path().display();
        match why {
            Stopped::Asked => None,
            Stopped::Store(why) => Some(format!(
                "{why}; 'spirula osd recreate {id} --dir {dir}' makes it anew, and the others fill \
                    it"
            )),
            Stopped::NoRoom(why) => Some(format!(
                "OSD_FULL: its store, or the file system of that, has no room ({why}); it comes \
                    back by itself when there is"
            )),
        }
    }

    /// Tells the manager, whose health checks are everybody's, which OSDs cannot run.
    fn tell_stopped(&self) {
        self.mgr.push(mgr::MgrMail::Stopped(self.stopped()));
    }

    /// Used and total bytes by OSD, from the manager's `osd df`.
    fn osd_space(&self) -> BTreeMap<i32, (u64, u64)> {
        let Some((0, _, out)) = self.admin.mgr_command(r#"{"prefix": "osd df", "format": "json"}"#)
        else {
            return BTreeMap::new();
        };
        let v: Value = serde_json::from_slice(&out).unwrap_or_default();
        let kib = |n: &Value, key: &str| n[key].as_u64().unwrap_or(0) << 10;
        let row = |n: &Value| {
            Some((i32::try_from(n["id"].as_i64()?).ok()?, (kib(n, "kb_used"), kib(n, "kb"))))
        };
        v["nodes"].as_array().into_iter().flatten().filter_map(row).collect()
    }
}

/// Waits for a daemon's word from a thread that is no event loop's.
pub fn wait<T>(mut rx: oneshot::Receiver<T>, patience: Duration) -> Option<T> {
    let begun = Instant::now();
    loop {
        match rx.try_recv() {
            Ok(v) => return Some(v),
            Err(oneshot::error::TryRecvError::Closed) => return None,
            Err(oneshot::error::TryRecvError::Empty) if begun.elapsed() > patience => return None,
            Err(oneshot::error::TryRecvError::Empty) => {
                std::thread::sleep(Duration::from_millis(1))
            }
        }
    }
}
