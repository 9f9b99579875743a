//! What the OSD's core needs of its surroundings: links, helper threads, memory for payloads.
//!
//! The binary's shell stands on sockets, an event loop and its threads; the simulator on a world in
//! virtual time. What comes of any of it is told to the core as an event
//! ([`crate::OsdCore::handle`]).

use crate::osd::OsdEvent;
use spirula_buffer::PayloadPool;
use spirula_runtime::{Link, Peer};
use spirula_types::{AddrVec, EntityType};

/// How soon a link notices that nothing arrives any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Within [`spirula_runtime::limits::TCP_UNACKNOWLEDGED`].
    Usual,
    /// Within [`spirula_runtime::limits::TCP_UNACKNOWLEDGED_WATCHED`], and then it is tried every
    /// second or so: for links over which little is said, and often.
    Closely,
}

/// The surroundings of one OSD.
pub trait Outside: Send + Sync {
    /// Opens a link, as `me`, to the daemon at `to`. It can be written to at once; that it is open,
    /// or that nobody is there or lets us in, is told by an event ([`OsdEvent::Net`]).
    fn connect(&self, me: &Peer, to: &AddrVec, kind: EntityType, watch: Watch) -> Link;

    /// Does work that blocks in a helper thread. What comes of it is an event.
    fn work(&self, work: Box<dyn FnOnce() -> OsdEvent + Send>);

    /// Tells the core this, behind what it is to be told already.
    fn later(&self, event: OsdEvent);

    /// Nobody is let in any more.
    fn stop_listening(&self);

    /// The memory for payloads.
    fn pool(&self) -> &PayloadPool;
}
