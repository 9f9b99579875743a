//! The network of a simulator: what carries a daemon's links in place of sockets.

use crate::link::LinkId;
use spirula_messages::Message;

/// Carries links ([`Link::carried`](crate::Link::carried)).
pub trait Network: Send + Sync {
    /// Takes a message that is sent over a link.
    fn carry(&self, link: LinkId, message: Message);

    /// A link is closed from this side.
    fn close(&self, link: LinkId);

    /// A lossless link goes on over a new connection ([`Link::renew`](crate::Link::renew)).
    fn renew(&self, link: LinkId);

    /// Whether the peer of an accepted lossless link is waited for
    /// ([`Link::keep`](crate::Link::keep)).
    fn keep(&self, link: LinkId, keep: bool);
}
