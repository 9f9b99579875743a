//! Starting an OSD: its store, its identity, its place.

use super::osd_shell::{OsdDaemon, OsdMail, Place};
use super::store_facts::Made;
use super::{host, store_facts};
use crate::memory::Budget;
use anyhow::{Context, anyhow, bail};
use spirula_osd::{OsdConfig, OsdEvent};
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{Hub, Mailbox, Mons, clock, mailbox};
use spirula_settings::Settings;
use spirula_store::{Identity, Io, Known, Store, StoreOptions, StorePaths};
use spirula_types::{AddrVec, OsdId, Uuid};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use tokio::runtime::Handle;

/// Journal of each OSD.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Sizes and memory of a store; `size` counts at its creation only.
pub fn store_options(size: u64, budget: u64, pool: spirula_buffer::PayloadPool) -> StoreOptions {
    StoreOptions {
        size,
        journal_size: JOURNAL_BYTES.min(size / 8),
        cache_bytes: usize::try_from(budget).unwrap_or(usize::MAX),
        kept_bytes: 0,
        pool,
        io: Io::Threads,
    }
}

/// What an OSD is started with.
pub struct OsdSetup {
    /// Directory of its store.
    pub data: PathBuf,
    /// Monitors.
    pub mons: Mons,
    /// Address for clients.
    pub public: IpAddr,
    /// Address for other OSDs.
    pub cluster: IpAddr,
    /// First and last port to listen on; 0 and 0 for any.
    pub ports: (u16, u16),
    /// Name of this machine.
    pub host: String,
    /// Class of its device; empty for none.
    pub device_class: String,
    /// OSDs that begin with this one; see `spirula_osd::OsdConfig::started_together`.
    pub started_together: BTreeSet<OsdId>,
    /// Its options.
    pub settings: Settings,
    /// Who it is to others, and whom it lets in.
    pub auth: DaemonAuth,
}

/// A store that is open, with the mailbox its threads write to.
pub struct OpenStore {
    store: Store,
    io: Io,
    made: Option<Made>,
    mailbox: Mailbox<OsdMail>,
    rx: tokio::sync::mpsc::UnboundedReceiver<OsdMail>,
}

impl OpenStore {
    /// Whose store it is.
    pub fn identity(&self) -> Identity {
        self.store.identity()
    }
}

/// Whose store is expected.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// OSD's number.
    pub id: i32,
    /// Its cluster, if known.
    pub fsid: Option<Uuid>,
    /// Its own identity, if known.
    pub uuid: Option<Uuid>,
}

/// The file beside the store in `data` that says which store was last opened there, and how often
/// it had been: an older copy of its main device, put in its place, is known by it. If it was
/// opened here the first time, it says when that was, and by which version.
fn opened_file(data: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from("opened-");
    name.push(data.file_name().unwrap_or_default());
    data.with_file_name(name)
}

/// When the store in `data` was made, and by which version: what the file says, or now, if nobody
/// has opened it.
fn made(data: &Path, known: &Known) -> Option<Made> {
    let text = std::fs::read_to_string(opened_file(data)).unwrap_or_default();
    let mut words = text.trim_end().splitn(4, ' ');
    if words.next().and_then(Uuid::parse) == Some(known.store) {
        let (at, by) = (words.nth(1)?, words.next()?);
        return Some(Made { at: at.to_owned(), by: by.to_owned() });
    }
    let now = || Made { at: clock::wall().to_iso(), by: spirula_types::version::TEXT.to_owned() };
    (known.openings == 0).then(now)
}

/// Refuses a main device of before the last opening. Its journal may be as old as itself, so that
/// the store alone cannot know.
fn refuse_old(data: &Path, known: &Known) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(opened_file(data)).unwrap_or_default();
    let mut words = text.split_whitespace();
    let (store, openings) =
        (words.next().and_then(Uuid::parse), words.next().and_then(|n| n.parse::<u64>().ok()));
    // Not there, or about another store: nothing is known of this one.
    if let (Some(store), Some(openings)) = (store, openings)
        && store == known.store
        && openings > known.openings
    {
        bail!(
            "{} was last opened for the {}. time, but this store had been for the {openings}. \
                time: it is an old copy, \
             and what was acknowledged since is not in it",
            data.display(),
            known.openings
        );
    }
    Ok(())
}

/// Opens the store in `data`.
///
/// # Errors
/// When it cannot be opened or belongs to another OSD or cluster.
pub fn open_store(
    data: &Path,
    expected: Expected,
    budget: &Budget,
    io: Io,
    hub: &Hub,
) -> anyhow::Result<OpenStore> {
    let Expected { id, fsid, uuid } = expected;
    crate::guard::tighten(data)
        .with_context(|| format!("close {} to other users", data.display()))?;
    let (mailbox, rx) = mailbox();
    let kept_bytes = usize::try_from(budget.kept_per_store).unwrap_or(usize::MAX);
    let opts =
        StoreOptions { io, kept_bytes, ..store_options(0, budget.per_store, hub.pool().clone()) };
    let (commit, error) = (mailbox.clone(), mailbox.clone());
    let cannot = |e: spirula_store::StoreError| anyhow!("osd.{id} cannot start: {e}");
    // What is not known of it is as the store says; what is, must be right before anything
    // is written.
    let paths = StorePaths::find(data).map_err(cannot)?;
    let known = paths.known().map_err(cannot)?;
    let files = paths.all().map_err(cannot)?;
    crate::guard::tighten_files(&files)
        .with_context(|| format!("close the store of osd.{id} to other users"))?;
    refuse_old(data, &known).map_err(|e| anyhow!("osd.{id} cannot start: {e}"))?;
    let made = made(data, &known);
    let is = known.identity;
    let whole = Identity {
        fsid: fsid.unwrap_or(is.fsid),
        osd_uuid: uuid.unwrap_or(is.osd_uuid),
        osd_id: id,
    };
    let store = Store::open(
        data,
        Some(whole),
        &opts,
        Box::new(move |seq| commit.push(OsdMail::Event(OsdEvent::Durable(seq)))),
        Box::new(move |e| error.push(OsdMail::Event(OsdEvent::StoreFailed(e.to_string())))),
    )
    .map_err(cannot)?;
    let begun = made.as_ref().map(|m| format!(" {} {}", m.at, m.by)).unwrap_or_default();
    let note = format!("{} {}{begun}\n", known.store, known.openings + 1);
    crate::dir::write_durably(&opened_file(data), note.as_bytes(), 0o600)?;
    Ok(OpenStore { store, io, made, mailbox, rx })
}

/// A running OSD.
pub struct OsdHandle {
    /// Where its orders go.
    pub mailbox: Mailbox<OsdMail>,
    /// Where it listens for clients.
    pub addrs: AddrVec,
}

/// Starts the OSD of an open store on `on`; `ended` is called when it has stopped, with the reason
/// if it did so by itself.
///
/// # Errors
/// When no port can be opened, or its records are damaged.
pub fn start(
    setup: OsdSetup,
    open: OpenStore,
    hub: &Hub,
    on: &Handle,
    ended: impl FnOnce(Option<String>) + Send + 'static,
) -> anyhow::Result<OsdHandle> {
    let Identity { fsid, osd_uuid, osd_id: id } = open.identity();
    let mut metadata = host::machine_facts(&setup.host);
    let disk = host::disk_facts(&setup.data);
    let rotates = u8::from(host::device_class(&setup.data) == "hdd").to_string();
    metadata.extend([
        ("default_device_class".to_owned(), host::device_class(&setup.data)),
        ("rotational".to_owned(), rotates.clone()),
        ("journal_rotational".to_owned(), rotates),
        (
            "objectstore_numa_unknown_devices".to_owned(),
            disk.get("devices").cloned().unwrap_or_default(),
        ),
        ("network_numa_unknown_ifaces".to_owned(), "back_iface,front_iface".to_owned()),
        ("osdspec_affinity".to_owned(), String::new()),
        ("id".to_owned(), id.to_string()),
        ("osd_data".to_owned(), setup.data.display().to_string()),
        ("osd_objectstore".to_owned(), "spirula".to_owned()),
        ("spirula_io".to_owned(), open.io.to_string()),
    ]);
    metadata.extend(disk);
    let size = open.store.statfs().total;
    metadata.extend(store_facts::facts(&setup.data, size, open.io, open.made.as_ref()));
    let location = setup.settings.given("crush_location").unwrap_or_default();
    let cfg = OsdConfig {
        id,
        fsid,
        uuid: osd_uuid,
        mons: setup.mons,
        public: AddrVec::default(),
        cluster: AddrVec::default(),
        location: host::crush_location(location, &setup.host)
            .map_err(|e| anyhow!("osd.{id} cannot start: {e}"))?,
        host: setup.host,
        device_class: setup.device_class,
        started_together: setup.started_together,
        metadata,
        settings: setup.settings.of(format!("osd.{id}")),
        pg: spirula_pg::PgConfig::default(),
        auth: setup.auth,
    };
    // Every incarnation has its own, also within one process.
    let nonce =
        host::nonce().context("draw a number")?.wrapping_add(clock::monotonic().as_micros() as u32);
    let (public, cluster, ports) = (setup.public, setup.cluster, setup.ports);
    let place = Place { public, cluster, ports, nonce: nonce & 0x7fff_ffff };
    let osd = OsdDaemon::start(cfg, &place, hub, on, open.mailbox.clone(), open.store)
        .map_err(|e| anyhow!("start osd.{id}: {e}"))?;
    let handle = OsdHandle { mailbox: open.mailbox.clone(), addrs: osd.addrs().clone() };
    let running = on.spawn(spirula_runtime::run(osd, open.mailbox, open.rx));
    on.spawn(async move {
        match running.await {
            Ok(osd) => ended(osd.failure().map(str::to_owned)),
            // A defect that its store, or a message, has brought out. Its links went with it.
            Err(e) => ended(Some(format!(
                "osd.{id} ended by a defect of this program ({e}); the log says where"
            ))),
        }
    });
    Ok(handle)
}
