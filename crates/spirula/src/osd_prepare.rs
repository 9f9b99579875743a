//! `spirula osd prepare` and `spirula osd grow`: making an OSD's store on files or devices,
//! and using what a device has grown by.

use crate::size::Size;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::json;
use spirula_buffer::PayloadPool;
use spirula_store::{Identity, Prepare, Store, StoreOptions};
use spirula_types::Uuid;
use std::path::PathBuf;

/// Arguments of `spirula osd prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// A directory (new, empty, or with links 'block', 'journal', 'meta'), a block device or
    /// an existing file
    path: PathBuf,
    /// Device for the journal, faster than the main one; a missing one is made as a file
    #[arg(long)]
    journal_device: Option<PathBuf>,
    /// Device for the metadata, likewise
    #[arg(long)]
    meta_device: Option<PathBuf>,
    /// Space for data, where PATH is a directory without a link 'block'
    #[arg(long)]
    size: Option<Size>,
    /// Size of the journal [default: 64M, or all of its device up to 1G]
    #[arg(long)]
    journal_size: Option<Size>,
    /// Size of the metadata device, where it is to be made as a file
    #[arg(long)]
    meta_size: Option<Size>,
    /// Number of the OSD
    #[arg(long, value_parser = clap::value_parser!(i32).range(0..))]
    osd_id: i32,
    /// Id of the cluster
    #[arg(long, value_parser = uuid)]
    fsid: Uuid,
    /// Identity of the OSD [default: a random one]
    #[arg(long, value_parser = uuid)]
    osd_uuid: Option<Uuid>,
    /// A device that may be overwritten though it holds something; may be given several times
    #[arg(long, value_name = "PATH")]
    force: Vec<PathBuf>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `spirula osd grow`.
#[derive(Debug, Args)]
pub struct GrowArgs {
    /// The OSD's directory or its main device; the OSD must be stopped
    path: PathBuf,
    /// New space for data, where the main device is a file; block devices are used as they are
    #[arg(long)]
    size: Option<Size>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

fn uuid(s: &str) -> Result<Uuid, String> {
    Uuid::parse(s)
        .ok_or_else(|| format!("'{s}' is not a uuid like 01234567-89ab-cdef-0123-456789abcdef"))
}

/// `spirula osd prepare`.
///
/// # Errors
/// When something is in the way, with what to do about it.
pub fn prepare(a: &PrepareArgs) -> anyhow::Result<()> {
    let osd_uuid = match a.osd_uuid {
        Some(u) => u,
        None => {
            let mut bytes = [0; 16];
            crate::cluster::host::random(&mut bytes).context("draw an id")?;
            Uuid::from_random(bytes)
        }
    };
    let identity = Identity { fsid: a.fsid, osd_uuid, osd_id: a.osd_id };
    let prepare = Prepare {
        path: a.path.clone(),
        journal: a.journal_device.clone(),
        meta: a.meta_device.clone(),
        size: a.size.map(|s| s.0),
        journal_size: a.journal_size.map(|s| s.0),
        meta_size: a.meta_size.map(|s| s.0),
        identity,
        force: a.force.clone(),
    };
    let made = prepare.run().map_err(|e| anyhow!("{e}"))?;
    if a.json {
        crate::out!(
            "{:#}",
            json!({
                "osd": a.osd_id,
                "osd_uuid": osd_uuid.to_string(),
                "fsid": a.fsid.to_string(),
                "main": made.main,
                "journal": made.journal,
                "metadata": made.meta,
                "data_bytes": made.data_size,
                "journal_bytes": made.journal_size,
            })
        );
    } else {
        crate::out!("made the store of osd.{} in {}", a.osd_id, a.path.display());
        crate::out!("  data     {} on {}", Size(made.data_size), made.main.display());
        let journal = made.journal.as_ref().unwrap_or(&made.main);
        crate::out!("  journal  {} on {}", Size(made.journal_size), journal.display());
        crate::out!("  metadata on {}", made.meta.as_ref().unwrap_or(&made.main).display());
        crate::out!("  osd uuid {osd_uuid}");
    }
    Ok(())
}

/// `spirula osd grow`.
///
/// # Errors
/// When the store is in use or cannot be opened.
pub fn grow(a: &GrowArgs) -> anyhow::Result<()> {
    if let Some(size) = a.size {
        spirula_store::extend(&a.path, size.0).map_err(|e| anyhow!("{e}"))?;
    }
    let opts = StoreOptions {
        size: 0,
        journal_size: 0,
        cache_bytes: 64 << 20,
        pool: PayloadPool::new(16 << 20),
        ..StoreOptions::default()
    };
    let failed = Box::new(|e: spirula_store::StoreError| tracing::error!("{e}"));
    let store =
        Store::open(&a.path, None, &opts, Box::new(|_| ()), failed).map_err(|e| anyhow!("{e}"))?;
    let (total, id) = (store.statfs().total, store.identity().osd_id);
    store.close().map_err(|e| anyhow!("{e}"))?;
    if total == 0 {
        bail!("{} has no space", a.path.display());
    }
    if a.json {
        crate::out!("{}", json!({"osd": id, "data_bytes": total}));
    } else {
        crate::out!("osd.{id} has {} for data", Size(total));
    }
    Ok(())
}
