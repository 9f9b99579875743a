//! Block images of a Ceph cluster, without Ceph's client: what librbd is for images of format 2,
//! and the protocol NBD.
//!
//! * [`Image`]: an open image or snapshot: reads, writes, zeroes, flushes; a clone with its parents
//! * [`Rados`]: what it needs from a client of the cluster; the shell is that
//!   (`spirula/src/block/rados.rs`)
//! * [`Spec`]: what an image is called
//! * [`nbd`]: the protocol NBD as a state machine
//!
//! | module | what |
//! |---|---|
//! | `layout` | which bytes are in which object |
//! | `header` | what the header says, and calls of the class `rbd` |
//! | `lock`, `owner` | the exclusive lock: its calls; who has it when |
//! | `notices` | what clients of an image tell each other |
//! | `object_map` | which objects exist |
//! | `image`, `io` | an open image; what is done with it |
//! | `presence` | whether an open snapshot is still there |
//!
//! An image is written as asynchronous functions over a [`Rados`] and does no I/O, reads no clock,
//! draws no number and starts no thread itself: with a [`Rados`] in memory it is as deterministic
//! as a state machine. All of one image lives in one thread.
//!
//! Facts about images come from what librbd 16.2 does on the wire (`docs/protocol/classes.md`,
//! `docs/protocol/osd.md` §6).

pub mod header;
mod image;
mod io;
mod join;
pub mod layout;
pub mod lock;
pub mod nbd;
pub mod notices;
pub mod object_map;
mod owner;
mod presence;
mod rados;
#[cfg(test)]
mod tests;

pub use image::{Image, OpenError, Spec};
pub use io::LARGEST;
pub use rados::{News, Rados, Watch};
