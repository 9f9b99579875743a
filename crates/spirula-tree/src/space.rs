//! What a tree stands on, and its limits.

use std::io;

/// Bytes of the smallest page; every address and length is a multiple.
pub const PAGE: usize = 4096;
/// Longest key, bytes.
pub const KEY_MAX: usize = 61_440;
/// Longest value, bytes.
pub const VALUE_MAX: usize = 128 << 20;
/// Smallest chunk (the length of a window of pages), bytes: most long nodes fit.
pub const CHUNK_MIN: usize = 64 * PAGE;
/// Largest chunk, bytes.
pub const CHUNK_MAX: usize = 1024 * PAGE;

/// Where pages live. Addresses are in bytes; what they address is up to the space, for
/// example a whole device of which the tree gets pages.
///
/// A write is taken as durable after the next successful [`flush`](Self::flush); until
/// then any subset of it may persist.
pub trait PageSpace: Send + Sync {
    /// Fills `buf` from address `at`.
    ///
    /// # Errors
    /// Those of the device, and `UnexpectedEof` beyond its end.
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;

    /// As [`read`](Self::read) for many pages at once; a commit reads leaves so. Worth an
    /// implementation of its own where the device does reads in parallel.
    ///
    /// # Errors
    /// If one of them fails; the tree then reads each alone.
    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        reads.iter_mut().try_for_each(|(at, buf)| self.read(*at, buf))
    }

    /// Pages (address and bytes of each) that a reader of a range comes to soon: they may be
    /// brought closer meanwhile. Only a hint, and nobody waits for it.
    fn soon(&self, pages: &[(u64, usize)]) {
        _ = pages;
    }

    /// Writes `bufs`, one behind the other, from address `at`. Each is a multiple of
    /// [`PAGE`] bytes.
    ///
    /// # Errors
    /// Those of the device. The tree takes no commit afterwards.
    fn write(&self, at: u64, bufs: &[&[u8]]) -> io::Result<()>;

    /// Makes all finished writes durable.
    ///
    /// # Errors
    /// Those of the device. The tree takes no commit afterwards.
    fn flush(&self) -> io::Result<()>;

    /// More pages for the tree alone: addresses and lengths, in bytes, multiples of
    /// [`PAGE`]. At least `adjoining` of them, up to 127, adjoin, between two multiples of
    /// [`Options::chunk`](crate::Options::chunk); the rest may lie anywhere. About a
    /// chunk's worth is welcome, what is not used comes back; none: there is no such
    /// space. Only `adjoining` 1 must find what there is: else a node lies apart. A page belongs to
    /// the tree durably once a root is published whose [`extents`](crate::Tree::extents) list it
    /// after an opening.
    fn grow(&self, adjoining: usize) -> Vec<(u64, u64)>;

    /// Takes `bytes` from address `at` on back. No durable root refers to them.
    fn release(&self, at: u64, bytes: u64);
}
