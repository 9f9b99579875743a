//! `spirula mon|mgr|osd`: one daemon as a process of its own, in the foreground.
//!
//! For systemd units and containers, and for hosts that hold a part of a cluster. It starts
//! the daemon that `spirula up` starts, with its options from file, environment and command
//! line ([`crate::options`]). SIGTERM and SIGINT stop it cleanly; it may be killed at any time.
//! Its lock `DIR/run/osd.0.pid` holds its process id and keeps a second one away.

use crate::asok::AdminSocket;
use crate::cli::DaemonArgs;
use crate::cluster::host;
use crate::cluster::mgr::{MgrDaemon, MgrMail, MgrSetup};
use crate::cluster::mon::{MonDaemon, MonMail, MonSetup};
use crate::cluster::osd::{self, Expected, OsdSetup};
use crate::cluster::osd_shell::OsdMail;
use crate::cluster::{self, CLUSTER, wait};
use crate::dir::{ClusterDir, PidLock};
use crate::memory::{Budget, SMALLEST};
use crate::options::{Names, Sources};
use crate::size::Size;
use crate::{keys, logs, net, signals, srv};
use anyhow::{Context, anyhow, bail};
use spirula_buffer::PayloadPool;
use spirula_runtime::{Hub, LinkMode, Mailbox, Mons, Reactors};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityAddr, Uuid};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a clean stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Which daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A monitor.
    Mon,
    /// A manager.
    Mgr,
    /// An OSD.
    Osd,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Mon => "mon",
            Self::Mgr => "mgr",
            Self::Osd => "osd",
        }
    }

    /// The id that is meant when none is given.
    fn usual(self) -> Option<&'static str> {
        match self {
            Self::Mon => Some("a"),
            Self::Mgr => Some("x"),
            Self::Osd => None,
        }
    }
}

/// Everything about this process that does not depend on the kind of its daemon.
struct Process {
    kind: Kind,
    id: String,
    host: String,
    dir: ClusterDir,
    settings: Settings,
    hub: Hub,
    reactors: Reactors,
    budget: Budget,
    failed: Arc<Mutex<Option<String>>>,
    /// Set when the daemon has ended.
    ended: Arc<AtomicBool>,
}

/// How the running daemon is stopped.
enum Running {
    Mon(Mailbox<MonMail>),
    Mgr(Mailbox<MgrMail>),
    Osd(Mailbox<OsdMail>),
}

impl Running {
    /// Stops it; false if that takes too long.
    fn stop(&self) -> bool {
        let (tx, done) = oneshot::channel();
        match self {
            Self::Mon(m) => m.push(MonMail::Stop(tx)),
            Self::Mgr(m) => m.push(MgrMail::Stop(tx)),
            Self::Osd(m) => m.push(OsdMail::Stop(tx)),
        }
        wait(done, STOP_PATIENCE).is_some()
    }
}

/// Runs the daemon until it is told to stop or cannot go on.
///
/// # Errors
/// When it cannot start, with what to change, or could not go on.
pub fn run(kind: Kind, args: &DaemonArgs) -> anyhow::Result<()> {
    crate::logs::init();
    // Before anything that a stop would have to undo.
    let stop = signals::channel()?;
    let (process, lock) = Process::begin(kind, args)?;
    // Held until the process has ended: threads close their stores after us.
    std::mem::forget(lock);
    let name = format!("{}.{}", kind.name(), process.id);
    let (running, addrs) = match kind {
        Kind::Mon => process.mon(args)?,
        Kind::Mgr => process.mgr()?,
        Kind::Osd => process.osd(args)?,
    };
    let socket =
        cluster::admin_socket(&process.settings, kind.name(), &process.id, &process.hub, &addrs);
    logs::say(&format!("spirula {}: {name} runs, listening on {addrs}", env!("CARGO_PKG_VERSION")));
    signals::ready();
    process.wait(&name, &running, &stop, socket)
}

impl Process {
    fn begin(kind: Kind, args: &DaemonArgs) -> anyhow::Result<(Self, PidLock)> {
        let id = args.id_of(kind.name())?.or(kind.usual().map(str::to_owned));
        let Some(id) = id else { bail!("which one? give --id, for example 'spirula osd --id 0'") };
        if kind == Kind::Osd && !id.parse::<i32>().is_ok_and(|n| n >= 0) {
            bail!("--id {id}: an OSD has a number");
        }
        let dir = ClusterDir::new(&args.dir)?;
        let sources = Sources::read(dir.path(), args.conf.as_deref(), &args.set)?;
        for warning in &sources.warnings {
            tracing::warn!("{warning}");
        }
        let host = host::hostname();
        let names = Names { cluster: CLUSTER, kind: kind.name(), id: &id, host: &host };
        let settings = sources.settings(names, &dir.path_options())?;
        let run_dir = PathBuf::from(settings.get("run_dir").unwrap_or_default());
        let lock = dir.lock_daemon(&run_dir, &names.name())?;
        let host = settings
            .given("host")
            .filter(|h| !h.is_empty())
            .map_or_else(host::hostname, str::to_owned);
        let memory = settings.number("spirula_memory").unwrap_or(SMALLEST);
        if memory < SMALLEST {
            bail!("spirula_memory {}: give {} or more", Size(memory), Size(SMALLEST));
        }
        crate::memory::given_back_soon(memory);
        let budget = Budget::new(memory, 1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let reactors = match settings.number("spirula_reactors") {
            None | Some(0) => (cores / 2).max(1),
            Some(n) => usize::try_from(n).unwrap_or(cores).min(256),
        };
        let payloads = PayloadPool::new(usize::try_from(budget.payloads).unwrap_or(usize::MAX));
        let hub = Hub::new(LinkMode::Tcp, payloads);
        hub.set_modes(keys::modes(&settings, true)?);
        let process = Self {
            kind,
            id,
            host,
            dir,
            settings,
            hub,
            reactors: Reactors::start(reactors).context("start the event loops")?,
            budget,
            failed: Arc::default(),
            ended: Arc::default(),
        };
        Ok((process, lock))
    }

    /// Directory of the daemon's data.
    fn data(&self, args: &DaemonArgs) -> PathBuf {
        let option = format!("{}_data", self.kind.name());
        let set = self.settings.given(&option).filter(|d| !d.is_empty()).map(PathBuf::from);
        let usual = || self.dir.join(format!("{}.{}", self.kind.name(), self.id));
        args.data.clone().or(set).unwrap_or_else(usual)
    }

    fn fsid(&self) -> anyhow::Result<Option<Uuid>> {
        let text = self.settings.given("fsid").filter(|f| !f.is_empty());
        text.map(|f| Uuid::parse(f).with_context(|| format!("fsid = {f}: no cluster id")))
            .transpose()
    }

    /// The monitors of `mon_host`, else those of DNS.
    fn mons(&self) -> anyhow::Result<Mons> {
        let all = find_mons(&self.settings, &self.dir)?;
        Ok(Mons::new(all, u64::from(host::nonce().context("draw a number")?)))
    }

    /// Addresses for clients and for other OSDs.
    fn addresses(&self, mons: &Mons) -> anyhow::Result<(IpAddr, IpAddr)> {
        let own = net::own_addresses();
        let public = match net::chosen(&self.settings, "public", &own)? {
            Some(addr) => addr.ip(),
            // As the monitors see us.
            None => match mons.current().msgr2().addr {
                Some(mon) => net::towards(mon)?,
                None => bail!(
                    "give public_addr or public_network: there is no monitor to find the way to"
                ),
            },
        };
        let cluster = net::chosen(&self.settings, "cluster", &own)?.map_or(public, |a| a.ip());
        Ok((public, cluster))
    }

    fn ports(&self) -> (u16, u16) {
        let port = |name: &str| {
            self.settings.number(name).and_then(|n| u16::try_from(n).ok()).unwrap_or(0)
        };
        (port("ms_bind_port_min"), port("ms_bind_port_max"))
    }

    fn mon(&self, args: &DaemonArgs) -> anyhow::Result<(Running, AddrVec)> {
        let bind = self.settings.given("public_bind_addr").filter(|a| !a.is_empty() && *a != "-");
        let bind = bind.map(|a| {
            net::parse_addr(a, net::MON_PORT).map_err(|e| anyhow!("public_bind_addr: {e}"))
        });
        let own = net::own_addresses();
        let place = net::chosen(&self.settings, "public", &own)?;
        let place =
            place.map(|a| if a.port() == 0 { SocketAddr::new(a.ip(), net::MON_PORT) } else { a });
        let setup = MonSetup {
            place,
            hint: Some(self.dir.join(MONITORS)),
            data: self.data(args),
            name: self.id.clone(),
            fsid: self.fsid()?,
            bind: bind.transpose()?,
            // Only a new monitor needs them.
            seeds: self.mons().map(|m| m.all().to_vec()).unwrap_or_default(),
            host: self.host.clone(),
            auth: keys::monitor(&self.id, &self.settings)?,
            settings: self.settings.clone(),
            company: Vec::new(),
        };
        let mon = MonDaemon::start(setup, &self.hub, &self.reactors.next(), self.failed.clone())?;
        Ok((Running::Mon(mon.mailbox), mon.addrs))
    }

    fn mgr(&self) -> anyhow::Result<(Running, AddrVec)> {
        let mons = self.mons()?;
        let Some(fsid) = self.fsid()? else {
            bail!("mgr.{}: fsid is not set; take the cluster's ceph.conf, or give --fsid", self.id)
        };
        let setup = MgrSetup {
            fsid,
            name: self.id.clone(),
            public: self.addresses(&mons)?.0,
            mons,
            ports: self.ports(),
            host: self.host.clone(),
            auth: keys::daemon(&format!("mgr.{}", self.id), &self.settings, None)?,
            settings: self.settings.clone(),
        };
        let mgr = MgrDaemon::start(setup, &self.hub, &self.reactors.next())?;
        Ok((Running::Mgr(mgr.mailbox), mgr.addrs))
    }

    fn osd(&self, args: &DaemonArgs) -> anyhow::Result<(Running, AddrVec)> {
        let mons = self.mons()?;
        let (public, cluster) = self.addresses(&mons)?;
        let data = self.data(args);
        let id = self.id.parse().with_context(|| format!("--id {}", self.id))?;
        let expected = Expected { id, fsid: self.fsid()?, uuid: None };
        let io = args.io.settle().map_err(|e| anyhow!("--io: {e}"))?;
        let open = osd::open_store(&data, expected, &self.budget, io, &self.hub)?;
        let class = self.settings.given("osd_class").filter(|c| !c.is_empty());
        let setup = OsdSetup {
            device_class: class.map_or_else(|| host::device_class(&data), str::to_owned),
            data,
            mons,
            public,
            cluster,
            ports: self.ports(),
            host: self.host.clone(),
            started_together: BTreeSet::new(),
            auth: keys::daemon(&format!("osd.{id}"), &self.settings, None)?,
            settings: self.settings.clone(),
        };
        let (ended, failed) = (self.ended.clone(), self.failed.clone());
        let on = self.reactors.next();
        let osd = osd::start(setup, open, &self.hub, &on, move |why| {
            if let Some(why) = why {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
            }
            ended.store(true, Ordering::Release);
        })?;
        Ok((Running::Osd(osd.mailbox), osd.addrs))
    }

    /// Waits for a signal or the daemon's end.
    fn wait(
        self,
        name: &str,
        running: &Running,
        stop: &mpsc::Receiver<()>,
        socket: Option<AdminSocket>,
    ) -> anyhow::Result<()> {
        let result = loop {
            match stop.recv_timeout(Duration::from_millis(500)) {
                Ok(()) => {
                    logs::say(&format!("spirula: {name} stops"));
                    break if running.stop() {
                        Ok(())
                    } else {
                        Err(anyhow!("{name} did not stop in time"))
                    };
                }
                Err(_) if self.ended.load(Ordering::Acquire) => {
                    break Err(anyhow!("{name} has ended; its log above says why"));
                }
                Err(_) => {
                    let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(why) = failed.as_ref() {
                        break Err(anyhow!("{name}: {why}"));
                    }
                }
            }
        };
        drop(socket);
        self.reactors.stop();
        result
    }
}

/// A file in the directory that a monitor of this host keeps: where the monitors are now.
const MONITORS: &str = "monitors";

/// The monitors that the options name, by `mon_host` or DNS, and behind them those that a monitor
/// of this directory last knew.
///
/// # Errors
/// When nothing leads to one.
pub fn find_mons(settings: &Settings, dir: &ClusterDir) -> anyhow::Result<Vec<AddrVec>> {
    let text = settings.given("mon_host").unwrap_or_default();
    let mut all = net::mon_host(text)?;
    if all.is_empty() && !text.trim().is_empty() {
        bail!("mon_host = {text}: no v2 address in it");
    }
    let known = std::fs::read_to_string(dir.join(MONITORS)).unwrap_or_default();
    // Written by us, but the directory is the user's: what is no address is passed over.
    for mon in net::mon_host(known.trim()).unwrap_or_default() {
        if !all.iter().any(|m| m.msgr2().addr == mon.msgr2().addr) {
            all.push(mon);
        }
    }
    if !all.is_empty() {
        return Ok(all);
    }
    let service = settings.get("mon_dns_srv_name").unwrap_or_default();
    let found: Vec<SocketAddr> = srv::monitors(service).context(
        "mon_host is not set and DNS knows no monitors; take the cluster's ceph.conf, or \
            give --mon-host",
    )?;
    Ok(found.into_iter().map(|a| AddrVec::one(EntityAddr::v2(a, 0))).collect())
}
