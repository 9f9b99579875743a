//! Numbers of block images (RBD format 2) that the class `rbd` keeps and clients read.
//!
//! Source: `docs/protocol/classes.md`.

/// Feature bits of an image.
pub mod feature {
    /// Images may have a parent.
    pub const LAYERING: u64 = 1;
    /// Data is striped in units that are smaller than an object.
    pub const STRIPING: u64 = 1 << 1;
    /// Writers hold a lock.
    pub const EXCLUSIVE_LOCK: u64 = 1 << 2;
    /// Which objects exist is noted.
    pub const OBJECT_MAP: u64 = 1 << 3;
    /// Which objects changed since a snapshot is noted.
    pub const FAST_DIFF: u64 = 1 << 4;
    /// Snapshots are cut from the parent, too.
    pub const DEEP_FLATTEN: u64 = 1 << 5;
    /// Changes are written to a journal first.
    pub const JOURNALING: u64 = 1 << 6;
    /// Data is in another pool.
    pub const DATA_POOL: u64 = 1 << 7;
    /// Some operation feature is set.
    pub const OPERATIONS: u64 = 1 << 8;
    /// The image is on its way elsewhere.
    pub const MIGRATING: u64 = 1 << 9;
    /// The image is a mirror that is not written to.
    pub const NON_PRIMARY: u64 = 1 << 10;
    /// A client's persistent cache holds what the image lacks.
    pub const DIRTY_CACHE: u64 = 1 << 11;
}
