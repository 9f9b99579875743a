//! The metadata KV: an ordered map that changes only in checkpoints, each one atomic and
//! durable when [`MetaStore::commit`] returns. Everything newer lives in the journal and
//! the overlay. It is a copy-on-write tree (crate `spirula-tree`) whose root is kept in the
//! superblock.
//!
//! Keys begin with a byte that says what they hold (module [`crate::keys`]).

use crate::alloc::{Allocator, BLOCK};
use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use spirula_tree::{Options, PAGE, PageSpace, Root, Tree, TreeError};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A key-value pair or the error met instead of it.
pub(crate) type Pair = Result<(Bytes, Bytes)>;
/// Ranges of keys deleted before the changes of a commit: the first, and the first kept.
pub(crate) type Ranges = Vec<(Vec<u8>, Vec<u8>)>;
/// Changes of one commit: `None` deletes. Keys are distinct.
pub(crate) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;
/// The blocks of a device, shared by data (the store's owner) and metadata (checkpoints).
pub(crate) type SharedAllocator = Arc<Mutex<Allocator>>;

/// Bytes of space from which chunks are large.
const LARGE_SPACE: u64 = 4 << 30;
const LARGE_CHUNK: u32 = 1 << 20;
const SMALL_CHUNK: u32 = 256 << 10;
/// Bytes of pages that a commit may write for each byte of an overlay in memory: a small
/// change may need a page of its own.
const PAGES_PER_BYTE: u64 = 160;

pub(crate) fn lock(alloc: &Mutex<Allocator>) -> MutexGuard<'_, Allocator> {
    alloc.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Chunks for the tree.
struct ChunkSpace {
    dev: Arc<dyn BlockDevice>,
    alloc: SharedAllocator,
    /// Blocks per chunk.
    chunk: u64,
    /// Chunks kept for commits that find no other, since data has taken all there was.
    /// Locked before the allocator, where both are.
    spare: Mutex<Vec<u64>>,
}

impl ChunkSpace {
    fn spare(&self) -> MutexGuard<'_, Vec<u64>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps about `bytes` in spare, or as much as there is; returns how much.
    fn keep_spare(&self, bytes: u64) -> u64 {
        let wanted = bytes.div_ceil(self.chunk * BLOCK) as usize;
        let mut spare = self.spare();
        while spare.len() > wanted
            && let Some(chunk) = spare.pop()
        {
            lock(&self.alloc).drop_chunk(chunk);
        }
        while spare.len() < wanted
            && let Some(chunk) = lock(&self.alloc).take_chunk(self.chunk)
        {
            spare.push(chunk);
        }
        spare.len() as u64 * self.chunk * BLOCK
    }
}

impl PageSpace for ChunkSpace {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read_at(buf, at)
    }

    fn write(&self, at: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.dev.write_at(bufs, at)
    }

    fn flush(&self) -> io::Result<()> {
        if planted!(RootBeforePages) {
            return Ok(());
        }
        self.dev.flush()
    }

    fn grow(&self) -> Option<u64> {
        let found = lock(&self.alloc).take_chunk(self.chunk);
        found.or_else(|| self.spare().pop()).map(|block| block * BLOCK)
    }

    fn release(&self, chunk: u64) {
        lock(&self.alloc).drop_chunk(chunk / BLOCK);
    }
}

/// See the module.
pub(crate) struct MetaStore {
    tree: Tree,
    space: Arc<ChunkSpace>,
    name: String,
}

impl MetaStore {
    /// Opens the metadata whose root is `root` (empty: there is none yet) on `dev`, whose
    /// blocks are those of `alloc`. Nothing is written, and no chunk marked as used.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Corrupt`].
    pub fn open(
        dev: Arc<dyn BlockDevice>,
        alloc: SharedAllocator,
        root: &[u8],
        uuid: [u8; 16],
        cache: usize,
    ) -> Result<Self> {
        let name = dev.name().to_owned();
        let fail = |e| failure(&name, "open", e);
        let root = if root.is_empty() { None } else { Some(Root::decode(root).map_err(fail)?) };
        let large = lock(&alloc).blocks() * BLOCK >= LARGE_SPACE;
        let chunk = root.as_ref().map_or(if large { LARGE_CHUNK } else { SMALL_CHUNK }, |r| r.chunk);
        let space = Arc::new(ChunkSpace { dev, alloc, chunk: u64::from(chunk) / BLOCK, spare: Mutex::default() });
        let options = Options { uuid, chunk, cache };
        let tree = match root {
            Some(r) if r.uuid != uuid => {
                return Err(StoreError::corrupt("the superblock's metadata is of another store"));
            }
            Some(r) => Tree::open(space.clone(), r, &options),
            None => Tree::create(space.clone(), &options),
        };
        Ok(Self { tree: tree.map_err(fail)?, space, name })
    }

    /// Marks the tree's chunks as used, when it is known what data uses.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if that is the same.
    pub fn claim_chunks(&self) -> Result<()> {
        let mut alloc = lock(&self.space.alloc);
        for at in self.tree.chunks() {
            if !alloc.adopt_chunk(at / BLOCK, self.space.chunk) {
                return Err(StoreError::corrupt(format!("metadata and data both claim the space at {at}")));
            }
        }
        Ok(())
    }

    /// Keeps space back for the commits of two more overlays of up to so many bytes: one
    /// may be on its way when the first turns out to have used more than was hoped. Returns
    /// how many bytes there are beyond that; less than 0: so many are missing.
    pub fn keep_spare(&self, overlay: usize) -> i64 {
        let overlay = overlay as u64;
        let s = self.tree.stats();
        let live = s.live_pages * PAGE as u64;
        // Free, or free as soon as nobody reads an older state.
        let own = s.space_bytes.saturating_sub(live);
        // A commit copies what it touches; leaves are at least half full. Adjoining pages may
        // be wanted where there are none: a chunk for each of the two.
        let copies = live.min(overlay * PAGES_PER_BYTE);
        let needed = copies + 4 * overlay + 2 * self.space.chunk * BLOCK;
        let spare = self.space.keep_spare(needed.saturating_sub(own));
        (own + spare) as i64 - needed as i64
    }

    /// Bytes of the device that metadata may be on.
    pub fn size(&self) -> u64 {
        lock(&self.space.alloc).blocks() * BLOCK
    }

    /// Bytes that metadata might still get, spare space included.
    pub fn room(&self) -> u64 {
        let spare = self.space.spare().len() as u64 * self.space.chunk;
        (lock(&self.space.alloc).free() + spare) * BLOCK
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the metadata cannot be read, [`StoreError::Corrupt`] when it
    /// fails its own checksums.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.tree.get(key).map_err(|e| failure(&self.name, "read", e))
    }

    /// All pairs with `from <= key < until`, in order, as of now.
    pub fn range(&self, from: &[u8], until: &[u8]) -> impl Iterator<Item = Pair> + use<> {
        let name = self.name.clone();
        let pairs = (from < until).then(|| self.tree.range(from, Some(until)));
        pairs.into_iter().flatten().map(move |p| p.map_err(|e| failure(&name, "read", e)))
    }

    /// Deletes all keys in `ranges`, then applies `changes`: all of it or nothing. `publish` gets the new root and makes it durable.
    ///
    /// # Errors
    /// Of `publish`, [`StoreError::Io`]: what is durable is then unknown.
    /// [`StoreError::NoSpace`], [`StoreError::Corrupt`].
    pub fn commit(&self, changes: &Changes, ranges: &Ranges, publish: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let mut published = Ok(());
        let done = self.tree.commit_without(changes, ranges, |root| {
            published = publish(&root.encode());
            published.clone().map_err(io::Error::other)
        });
        published?;
        done.map_err(|e| failure(&self.name, "commit to", e))
    }

    /// The tree, for checks and statistics.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Bytes taken on the device.
    pub fn disk_space(&self) -> u64 {
        let spare = self.space.spare().len() as u64 * self.space.chunk;
        lock(&self.space.alloc).in_chunks().saturating_sub(spare) * BLOCK
    }
}

fn failure(name: &str, action: &'static str, e: TreeError) -> StoreError {
    match e {
        TreeError::Io { .. } | TreeError::Poisoned => StoreError::io(action, name, e),
        TreeError::NoSpace => StoreError::Io {
            action,
            file: name.to_owned(),
            why: "no space left for the metadata: make the device larger".to_owned(),
        },
        e => StoreError::Corrupt(format!("{name}: {e}")),
    }
}
