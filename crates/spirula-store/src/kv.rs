//! The metadata KV: an ordered map that changes only in checkpoints, each one atomic and
//! durable when [`MetaStore::commit`] returns. Everything newer lives in the journal and
//! the overlay. It is a copy-on-write tree (crate `spirula-tree`) whose root is kept in the
//! superblock.
//!
//! Keys begin with a byte that says what they hold (module [`crate::keys`]).

use crate::alloc::{Allocator, BLOCK, PhysRun};
use crate::device::BlockDevice;
use crate::error::{Result, StoreError};
use crate::keys;
use bytes::Bytes;
use spirula_tree::{Options, PAGE, PageSpace, Root, Tree, TreeError};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A key-value pair or the error met instead of it.
pub(crate) type Pair = Result<(Bytes, Bytes)>;
/// Ranges of keys deleted before the changes of a commit: the first, and the first kept.
pub(crate) type Ranges = Vec<(Vec<u8>, Vec<u8>)>;
/// Changes of one commit: `None` deletes. Keys are distinct.
pub(crate) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;
/// The blocks of a device, shared by data (the store's owner) and metadata (checkpoints).
pub(crate) type SharedAllocator = Arc<Mutex<Allocator>>;

/// Bytes of space from which windows of metadata are large.
const LARGE_SPACE: u64 = 4 << 30;
const LARGE_WINDOW: u32 = 1 << 20;
const SMALL_WINDOW: u32 = 256 << 10;
/// Bytes of pages that a commit may write for each entry of a large record: a leaf of its own,
/// and its share of the nodes above.
const PAGES_PER_ENTRY: u64 = 5 << 10;
/// Bytes of pages that a commit may write for each byte of an overlay in memory: a small
/// change may need a page of its own.
const PAGES_PER_BYTE: u64 = 160;

pub(crate) fn lock(alloc: &Mutex<Allocator>) -> MutexGuard<'_, Allocator> {
    alloc.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks kept for commits that find no others, since data has taken all there was: windows
/// first, where there were any, then pieces.
#[derive(Default)]
struct Spare(Vec<PhysRun>);

impl Spare {
    fn blocks(&self) -> u64 {
        self.0.iter().map(|r| r.len).sum()
    }
}

/// Blocks for the tree.
struct MetaSpace {
    dev: Arc<dyn BlockDevice>,
    alloc: SharedAllocator,
    /// Blocks of a window.
    window: u64,
    /// Blocks that are left to transactions which only remove, until nothing else is left.
    reserve: u64,
    /// Locked before the allocator, where both are.
    spare: Mutex<Spare>,
}

impl MetaSpace {
    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps about `bytes` in spare, or as much as there is; returns how much.
    fn keep_spare(&self, bytes: u64) -> u64 {
        let wanted = bytes.div_ceil(BLOCK);
        let mut spare = self.spare();
        let mut have = spare.blocks();
        // One lock for each step: the owner shall not wait for all of them.
        while have < wanted {
            let more = self.take(self.window.min(wanted - have));
            if more.is_empty() {
                break;
            }
            have += more.iter().map(|r| r.len).sum::<u64>();
            spare.0.extend(more);
        }
        while have > wanted
            && let Some(run) = spare.0.pop()
        {
            let gone = run.len.min(have - wanted);
            if gone < run.len {
                spare.0.push(PhysRun { start: run.start, len: run.len - gone });
            }
            lock(&self.alloc).release(PhysRun { start: run.start + run.len - gone, len: gone });
            have -= gone;
        }
        have * BLOCK
    }

    /// Takes a window, or up to `n` blocks in pieces, but none of the reserve.
    fn take(&self, n: u64) -> Vec<PhysRun> {
        let mut alloc = lock(&self.alloc);
        let most = if planted!(MetadataTakesReserve) {
            alloc.free()
        } else {
            alloc.free().saturating_sub(self.reserve)
        };
        if most >= self.window
            && let Some(run) = alloc.take_window(self.window)
        {
            return vec![run];
        }
        alloc.take_pieces(n.min(most))
    }
}

impl PageSpace for MetaSpace {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read_at(buf, at)
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.dev.read_many(reads)
    }

    fn soon(&self, pages: &[(u64, usize)]) {
        self.dev.soon(pages);
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

    fn grow(&self, adjoining: usize) -> Vec<(u64, u64)> {
        let n = adjoining as u64;
        let found = if n > 1 {
            // A node that finds nothing lies apart: what is kept for the end of all space is not
            // for it.
            let mut alloc = lock(&self.alloc);
            let most = alloc.free().saturating_sub(self.reserve);
            let whole = if most >= self.window { alloc.take_window(self.window) } else { None };
            let part = || if most >= n { alloc.take_adjoining(n) } else { None };
            whole.or_else(part).into_iter().collect()
        } else {
            self.take(self.window)
        };
        let found = if found.is_empty() && n == 1 {
            // The spare blocks first; the reserve rather than a checkpoint that fails.
            let spare = self.spare().0.pop();
            spare.map_or_else(|| lock(&self.alloc).take_pieces(self.window), |run| vec![run])
        } else {
            found
        };
        found.into_iter().map(|r| (r.start * BLOCK, r.len * BLOCK)).collect()
    }

    fn release(&self, at: u64, bytes: u64) {
        lock(&self.alloc).release(PhysRun { start: at / BLOCK, len: bytes / BLOCK });
    }
}

/// See the module.
pub(crate) struct MetaStore {
    tree: Tree,
    space: Arc<MetaSpace>,
    name: String,
    /// Bytes of pages in use as of the last checkpoint: who asks shall not wait for the next.
    live: AtomicU64,
    /// Pages that stay in use though nothing refers to them, as of the last commit.
    leaked: AtomicU64,
}

impl MetaStore {
    /// Opens the metadata whose root is `root` (empty: there is none yet) on `dev`, whose
    /// blocks are those of `alloc`; `reserve` of them are left alone as long as possible. Nothing
    /// is written, and no block marked as used.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Corrupt`].
    pub fn open(
        dev: Arc<dyn BlockDevice>,
        alloc: SharedAllocator,
        reserve: u64,
        root: &[u8],
        uuid: [u8; 16],
        cache: usize,
    ) -> Result<Self> {
        let name = dev.name().to_owned();
        let fail = |e| failure(&name, "open", e);
        let root = if root.is_empty() { None } else { Some(Root::decode(root).map_err(fail)?) };
        let large = lock(&alloc).blocks() * BLOCK >= LARGE_SPACE;
        let chunk =
            root.as_ref().map_or(if large { LARGE_WINDOW } else { SMALL_WINDOW }, |r| r.chunk);
        let space = Arc::new(MetaSpace {
            dev,
            alloc,
            window: u64::from(chunk) / BLOCK,
            reserve,
            spare: Mutex::default(),
        });
        let options = Options { uuid, chunk, cache };
        let tree = match root {
            Some(r) if r.uuid != uuid => {
                return Err(StoreError::corrupt("the superblock's metadata is of another store"));
            }
            Some(r) => Tree::open(space.clone(), r, &options),
            None => Tree::create(space.clone(), &options),
        };
        Ok(Self {
            tree: tree.map_err(fail)?,
            space,
            name,
            live: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
        })
    }

    /// Marks the tree's blocks as used, when it is known what data uses.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if that is the same.
    pub fn claim_space(&self) -> Result<()> {
        let mut alloc = lock(&self.space.alloc);
        for (at, bytes) in self.tree.extents() {
            if !alloc.adopt(PhysRun { start: at / BLOCK, len: bytes / BLOCK }) {
                return Err(StoreError::corrupt(format!(
                    "metadata and data both claim the space at {at}"
                )));
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
        self.live.store(live, Ordering::Release);
        // Free, or free as soon as nobody reads an older state.
        let own = s.space_bytes.saturating_sub(live);
        // A commit copies what it touches; leaves are at least half full.
        let copies = live.min(overlay * PAGES_PER_BYTE);
        // What a node lacks to its page's end, and windows that are not used to their end.
        let waste = 2 * self.space.window * BLOCK;
        let needed = copies + 4 * overlay + waste;
        let spare = self.space.keep_spare(needed.saturating_sub(own));
        (own + spare) as i64 - needed as i64
    }

    /// Bytes of space that a commit may need for a record of `changes` bytes in so many
    /// `entries`, beyond what is kept for an `overlay` (as [`MetaStore::keep_spare`] has it).
    pub fn need(&self, changes: u64, entries: u64, overlay: usize) -> u64 {
        let live = self.live.load(Ordering::Acquire);
        // All pages are copied once at most.
        let more = live.saturating_sub(overlay as u64 * PAGES_PER_BYTE);
        more.min(entries * PAGES_PER_ENTRY) + 4 * changes
    }

    /// Bytes of pages in use, as of the last commit.
    pub fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// Bytes of pages that the values of all keys with this prefix may take, at most; no leaf is
    /// read for it.
    ///
    /// # Errors
    /// As [`MetaStore::get`].
    pub fn taken_by(&self, prefix: &[u8]) -> Result<u64> {
        let pages = self.tree.pages_at_most(prefix, &keys::prefix_end(prefix));
        Ok(pages.map_err(|e| failure(&self.name, "read", e))? * PAGE as u64)
    }

    /// Are its blocks those of `alloc`, too?
    pub fn shares(&self, alloc: &SharedAllocator) -> bool {
        Arc::ptr_eq(&self.space.alloc, alloc)
    }

    /// Bytes of the device that metadata may be on.
    pub fn size(&self) -> u64 {
        lock(&self.space.alloc).blocks() * BLOCK
    }

    /// Bytes that metadata might still get, beyond what is kept in spare.
    pub fn room(&self) -> u64 {
        lock(&self.space.alloc).free().saturating_sub(self.space.reserve) * BLOCK
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

    /// Deletes all keys in `ranges`, then applies `changes`: all of it or nothing. `publish` gets
    /// the new root and makes it durable.
    ///
    /// # Errors
    /// Of `publish`, [`StoreError::Io`]: what is durable is then unknown.
    /// [`StoreError::NoSpace`], [`StoreError::Corrupt`].
    pub fn commit(
        &self,
        changes: &Changes,
        ranges: &Ranges,
        publish: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut published = Ok(());
        let done = self.tree.commit_without(changes, ranges, |root| {
            published = publish(&root.encode());
            published.clone().map_err(io::Error::other)
        });
        published?;
        done.map_err(|e| failure(&self.name, "commit to", e))?;
        let leaked = self.tree.stats().leaked_pages;
        if self.leaked.swap(leaked, Ordering::AcqRel) != leaked {
            tracing::error!(
                "{}: what a removed value took cannot be read: {leaked} pages of metadata stay in \
                    use until this OSD is made anew",
                self.name
            );
        }
        Ok(())
    }

    /// The tree, for checks and statistics.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Bytes taken on the device.
    pub fn disk_space(&self) -> u64 {
        let spare = self.space.spare().blocks();
        lock(&self.space.alloc).in_meta().saturating_sub(spare) * BLOCK
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
