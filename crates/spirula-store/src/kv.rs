//! The metadata KV: an ordered map that changes only in checkpoints, each one atomic and
//! durable when [`MetaStore::commit`] returns. Everything newer lives in the journal and
//! the overlay.
//!
//! Keys begin with a byte that says what they hold (module [`crate::keys`]).

use crate::error::{Result, StoreError};
use bytes::Bytes;
use std::path::Path;

/// A key-value pair or the error met instead of it.
pub type Pair = Result<(Bytes, Bytes)>;
/// Changes of one commit: `None` deletes. Keys are distinct.
pub type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Where checkpoints go.
pub trait MetaStore: Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the KV cannot be read or fails its own checksums.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// All pairs with `from <= key < until`, in order, as of now.
    fn range<'a>(&'a self, from: &[u8], until: &[u8]) -> Box<dyn Iterator<Item = Pair> + 'a>;

    /// Applies all of `changes` or none, durably.
    ///
    /// # Errors
    /// [`StoreError::Io`]; what is durable is then unknown.
    fn commit(&self, changes: Changes) -> Result<()>;

    /// Bytes taken on the device.
    fn disk_space(&self) -> u64;
}

/// [`MetaStore`] over the fjall LSM engine, with one keyspace and small buffers.
pub struct FjallMeta {
    db: fjall::Database,
    keyspace: fjall::Keyspace,
    name: String,
}

impl FjallMeta {
    /// Opens or creates the KV in `dir`. `memory` bounds its block cache and each of its
    /// write buffers (of which there are at most three).
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(dir: &Path, memory: u64) -> Result<Self> {
        let name = dir.display().to_string();
        let fail = |e: fjall::Error| StoreError::io("open", name.clone(), e);
        let db = fjall::Database::builder(dir)
            .cache_size(memory)
            .worker_threads(1)
            .max_cached_files(Some(64))
            .max_journaling_size(64 << 20)
            // Checkpoints sync explicitly; nothing else needs to reach the disk.
            .manual_journal_persist(true)
            .open()
            .map_err(fail)?;
        let keyspace = db
            .keyspace("store", || {
                fjall::KeyspaceCreateOptions::default().max_memtable_size(memory).manual_journal_persist(true)
            })
            .map_err(fail)?;
        Ok(Self { db, keyspace, name })
    }
}

impl MetaStore for FjallMeta {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let v = self.keyspace.get(key).map_err(|e| StoreError::io("read", self.name.clone(), e))?;
        Ok(v.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn range<'a>(&'a self, from: &[u8], until: &[u8]) -> Box<dyn Iterator<Item = Pair> + 'a> {
        if from >= until {
            return Box::new(std::iter::empty());
        }
        Box::new(self.keyspace.range(from.to_vec()..until.to_vec()).map(move |guard| {
            let (k, v) = guard.into_inner().map_err(|e| StoreError::io("read", self.name.clone(), e))?;
            Ok((Bytes::copy_from_slice(&k), Bytes::copy_from_slice(&v)))
        }))
    }

    fn commit(&self, changes: Changes) -> Result<()> {
        let fail = |e: fjall::Error| StoreError::io("commit to", self.name.clone(), e);
        let mut batch = self.db.batch().durability(Some(fjall::PersistMode::SyncAll));
        for (k, v) in changes {
            match v {
                Some(v) => batch.insert(&self.keyspace, k, v),
                None => batch.remove(&self.keyspace, k),
            }
        }
        batch.commit().map_err(fail)
    }

    fn disk_space(&self) -> u64 {
        // The journal's size costs a directory walk; its bound is small and constant.
        self.keyspace.disk_space()
    }
}
