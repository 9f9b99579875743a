//! Starting an OSD: its store, its identity, its place.

use super::host;
use anyhow::{Context, anyhow};
use spirula_osd::{Osd, OsdConfig, OsdEvent};
use spirula_runtime::cephx::DaemonAuth;
use spirula_runtime::{Hub, Mailbox, Mons, clock, mailbox};
use spirula_settings::Settings;
use spirula_store::{Identity, Io, Store, StoreOptions, StorePaths};
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
    mailbox: Mailbox<OsdEvent>,
    rx: tokio::sync::mpsc::UnboundedReceiver<OsdEvent>,
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

/// Opens the store in `data`.
///
/// # Errors
/// When it cannot be opened or belongs to another OSD or cluster.
pub fn open_store(data: &Path, expected: Expected, cache: u64, io: Io, hub: &Hub) -> anyhow::Result<OpenStore> {
    let Expected { id, fsid, uuid } = expected;
    crate::guard::tighten(data).with_context(|| format!("close {} to other users", data.display()))?;
    let (mailbox, rx) = mailbox();
    let opts = StoreOptions { io, ..store_options(0, cache, hub.pool().clone()) };
    let (commit, error) = (mailbox.clone(), mailbox.clone());
    let cannot = |e: spirula_store::StoreError| anyhow!("osd.{id} cannot start: {e}");
    // What is not known of it is as the store says; what is, must be right before anything
    // is written.
    let is = StorePaths::find(data).and_then(|p| p.identity()).map_err(cannot)?;
    let whole = Identity { fsid: fsid.unwrap_or(is.fsid), osd_uuid: uuid.unwrap_or(is.osd_uuid), osd_id: id };
    let store = Store::open(
        data,
        Some(whole),
        &opts,
        Box::new(move |seq| commit.push(OsdEvent::Durable(seq))),
        Box::new(move |e| error.push(OsdEvent::StoreFailed(e.to_string()))),
    )
    .map_err(cannot)?;
    Ok(OpenStore { store, io, mailbox, rx })
}

/// A running OSD.
pub struct OsdHandle {
    /// Where its orders go.
    pub mailbox: Mailbox<OsdEvent>,
    /// Where it listens for clients.
    pub addrs: AddrVec,
}

/// Starts the OSD of an open store on `on`; `ended` is called when it has stopped.
///
/// # Errors
/// When no port can be opened, or its records are damaged.
pub fn start(
    setup: OsdSetup,
    open: OpenStore,
    hub: &Hub,
    on: &Handle,
    ended: impl FnOnce() + Send + 'static,
) -> anyhow::Result<OsdHandle> {
    let Identity { fsid, osd_uuid, osd_id: id } = open.identity();
    let mut metadata = host::machine_facts(&setup.host);
    metadata.extend([
        ("id".to_owned(), id.to_string()),
        ("osd_data".to_owned(), setup.data.display().to_string()),
        ("osd_objectstore".to_owned(), "spirula".to_owned()),
        ("spirula_io".to_owned(), open.io.to_string()),
    ]);
    let location = setup.settings.given("crush_location").unwrap_or_default();
    let cfg = OsdConfig {
        id,
        fsid,
        uuid: osd_uuid,
        mons: setup.mons,
        public: setup.public,
        cluster: setup.cluster,
        ports: setup.ports,
        // Every incarnation has its own, also within one process.
        nonce: host::nonce().context("draw a number")?.wrapping_add(clock::monotonic().as_micros() as u32)
            & 0x7fff_ffff,
        location: host::crush_location(location, &setup.host).map_err(|e| anyhow!("osd.{id} cannot start: {e}"))?,
        host: setup.host,
        device_class: setup.device_class,
        started_together: setup.started_together,
        metadata,
        settings: setup.settings,
        pg: spirula_pg::PgConfig::default(),
        auth: setup.auth,
    };
    let osd = Osd::start(cfg, hub.clone(), on.clone(), open.mailbox.clone(), open.store)
        .map_err(|e| anyhow!("start osd.{id}: {e}"))?;
    let handle = OsdHandle { mailbox: open.mailbox.clone(), addrs: osd.addrs().clone() };
    on.spawn(async move {
        spirula_runtime::run(osd, open.mailbox, open.rx).await;
        ended();
    });
    Ok(handle)
}
