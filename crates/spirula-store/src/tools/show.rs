//! Statistics and readable forms.

use super::for_each_object;
use crate::alloc::BLOCK;
use crate::error::Result;
use crate::paths::{Access, StorePaths};
use crate::segment::Piece as Mapped;
use crate::store::{PoolSpace, Statfs, Store};
use crate::superblock::{Identity, Label, Role, Superblock, VERSION};
use bytes::Bytes;
use spirula_types::{HObject, Uuid};
use std::collections::BTreeMap;

/// Free runs of about one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRuns {
    /// Bytes of the shortest of them; the longest is below twice that.
    pub from: u64,
    /// How many.
    pub runs: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// How a store is used.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Space.
    pub space: Statfs,
    /// Space by pool.
    pub pools: BTreeMap<i64, PoolSpace>,
    /// Objects by size: bytes of the smallest (a power of two, or 0), and how many.
    pub sizes: BTreeMap<u64, u64>,
    /// Objects with data.
    pub with_data: u64,
    /// Pieces their data is in on the device.
    pub fragments: u64,
    /// Free space.
    pub free: Vec<FreeRuns>,
    /// Newest transaction.
    pub last_seq: u64,
    /// Bytes written to the journal since the store was made.
    pub journaled: u64,
    /// Pairs of metadata.
    pub metadata_keys: u64,
    /// Commits of metadata since the store was made.
    pub metadata_commits: u64,
    /// Bytes of metadata in use.
    pub metadata_live: u64,
}

/// Counts.
///
/// # Errors
/// Those of reading metadata.
pub fn stats(store: &Store) -> Result<Stats> {
    let (mut sizes, mut with_data, mut fragments) = (BTreeMap::new(), 0, 0);
    for_each_object(store, |o| {
        let size = store.stat(o)?.map_or(0, |s| s.size);
        *sizes.entry(if size == 0 { 0 } else { 1 << size.ilog2() }).or_default() += 1;
        let pieces = store.fragments(o)?.unwrap_or(0);
        with_data += u64::from(pieces > 0);
        fragments += pieces;
        Ok(())
    })?;
    let runs = store.alloc().free_runs();
    let tree = store.meta.tree().stats();
    Ok(Stats {
        space: store.statfs(),
        pools: store.pool_space().collect(),
        sizes,
        with_data,
        fragments,
        free: runs
            .into_iter()
            .map(|(from, (runs, blocks))| FreeRuns {
                from: from * BLOCK,
                runs,
                bytes: blocks * BLOCK,
            })
            .collect(),
        last_seq: store.last_seq(),
        journaled: store.shared.ring_head.load(std::sync::atomic::Ordering::Acquire),
        metadata_keys: tree.keys,
        metadata_commits: tree.generation,
        metadata_live: tree.live_pages * spirula_tree::PAGE as u64,
    })
}

/// What a device's label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Where it is.
    pub path: std::path::PathBuf,
    /// What it is.
    pub role: Role,
    /// Whose.
    pub identity: Identity,
    /// The store.
    pub store_uuid: Uuid,
    /// The device.
    pub device_uuid: Uuid,
    /// Format version.
    pub format: u16,
    /// Bytes in use.
    pub size: u64,
    /// How often the store was opened.
    pub mounts: u64,
    /// Closed properly; of the main device.
    pub clean: Option<bool>,
    /// Newest transaction of the last checkpoint; of the main device.
    pub checkpoint: Option<u64>,
}

/// Reads the labels of a store's devices. Nothing is locked or written.
///
/// # Errors
/// [`crate::StoreError::Refused`] if one is no device of a store.
pub fn devices(paths: &StorePaths) -> Result<Vec<DeviceInfo>> {
    let mut all = Vec::new();
    for path in
        [Some(&paths.main), paths.journal.as_ref(), paths.meta.as_ref()].into_iter().flatten()
    {
        let dev = crate::paths::open_device(path, Access::Shielded, crate::Io::Threads)?;
        let label = Label::read(&*dev)?;
        let sb = if label.role == Role::Main { Some(Superblock::read(&*dev)?) } else { None };
        all.push(DeviceInfo {
            path: path.clone(),
            role: label.role,
            identity: label.identity,
            store_uuid: label.store_uuid,
            device_uuid: label.device_uuid,
            format: VERSION,
            size: label.size,
            mounts: label.mounts,
            clean: sb.as_ref().map(|s| s.clean),
            checkpoint: sb.as_ref().map(|s| s.checkpoint),
        });
    }
    Ok(all)
}

/// Where some of an object's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the object, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub length: u64,
    /// First block on the device (of the first run, if compressed).
    pub block: u64,
    /// Compressed data it is in, bytes; 0: not compressed.
    pub compressed: u64,
}

/// Everything about an object but its data.
#[derive(Clone, Debug)]
pub struct ObjectDump {
    /// Number of the onode.
    pub id: u64,
    /// Size, bytes.
    pub size: u64,
    /// Device space, bytes; shared space included.
    pub allocated: u64,
    /// Some of its blocks may have other owners.
    pub shared: bool,
    /// Number of the omap; 0: none.
    pub omap: u64,
    /// Omap pairs.
    pub omap_pairs: u64,
    /// Attributes.
    pub attrs: Vec<(Bytes, Bytes)>,
    /// Where its data is.
    pub pieces: Vec<Piece>,
}

/// Shows an object; `None` if it does not exist.
///
/// # Errors
/// Those of reading metadata.
pub fn dump_object(store: &Store, name: &HObject) -> Result<Option<ObjectDump>> {
    let Some(o) = store.onode(name)? else { return Ok(None) };
    let mut pieces = Vec::new();
    store.for_mapped(&o, 0, o.size.div_ceil(BLOCK), |logical, piece| {
        let (block, compressed) = match &piece {
            Mapped::Plain { run, .. } => (run.start, 0),
            Mapped::Part { blob, .. } => {
                (blob.runs.first().map_or(0, |r| r.start), u64::from(blob.stored))
            }
        };
        pieces.push(Piece {
            offset: logical * BLOCK,
            length: piece.len() * BLOCK,
            block,
            compressed,
        });
    })?;
    let mut omap_pairs = 0;
    for pair in store.omap_keys(None, o.omap, &[], None) {
        pair?;
        omap_pairs += 1;
    }
    Ok(Some(ObjectDump {
        id: o.id,
        size: o.size,
        allocated: o.allocated * BLOCK,
        shared: o.shared || o.base != 0,
        omap: o.omap,
        omap_pairs,
        attrs: o.attrs.clone(),
        pieces,
    }))
}
