//! A copy-on-write B+tree over pages of a device: the metadata of an object store.
//!
//! An ordered map of byte strings that changes only in commits: big batches, each atomic
//! and durable. A commit writes new pages into free space only, flushes, and hands the new
//! [`Root`] to its caller, who makes it durable in a superblock; until then the old root
//! and everything it refers to is untouched. So a crash at any point shows exactly one
//! commit's state, and there is no journal and no recovery.
//!
//! Owns: node, overflow and free-map pages (format: `docs/formats/tree.md`), a page cache
//! with a budget in bytes. Refuses: threads, clocks, randomness, files; its caller brings
//! a [`PageSpace`] and a place for the root.
//!
//! Every page says which tree it belongs to, where it lives and when it was written, and
//! its parent knows its checksum. A page that is torn, rotten, of another tree, misplaced
//! or older than its parent is told as such ([`Damage`]) by the read that meets it, and by
//! no other. After a failed write or flush a tree refuses commits for good.

mod alloc;
mod cache;
mod check;
mod commit;
mod error;
mod merge;
mod node;
mod output;
mod read;
mod root;
mod sketch;
mod space;

pub use check::{Check, Problem};
pub use error::{Damage, Result, TreeError};
pub use node::{PageRef, Uuid, examine_page};
pub use read::{Options, Range, Snapshot, Stats, Tree};
pub use root::{ROOT_BYTES, Root};
pub use space::{CHUNK_MAX, CHUNK_MIN, KEY_MAX, PAGE, PageSpace, VALUE_MAX};
