//! The network of a simulator: what it puts in place of sockets and helper threads to get a
//! daemon's shell to itself.
//!
//! A [`Hub`](crate::Hub) made with [`Hub::over`](crate::Hub::over) opens no sockets, starts no
//! tasks and no threads: whatever would cause them goes to its [`Network`].

use crate::hub::Service;
use crate::link::{Link, LinkId, NetSink, Peer};
use spirula_messages::Message;
use spirula_types::{AddrVec, EntityType};
use std::net::IpAddr;
use std::time::Duration;

/// What a daemon's shell needs from its surroundings.
pub trait Network: Send + Sync {
    /// A daemon wants to be reached at `ip`; returns what it is to publish in the maps.
    fn listen(&self, ip: IpAddr, nonce: u32, service: &Service) -> AddrVec;

    /// Opens a link ([`Link::carried`]) to the daemon at `to`. Events go to `sink`: `Opened`,
    /// or `Closed` if nobody is there. What is sent may stay `unacknowledged` for so long.
    fn connect(&self, me: &Peer, sink: &NetSink, to: &AddrVec, kind: EntityType, unacknowledged: Duration) -> Link;

    /// Takes a message that is sent over a link.
    fn carry(&self, link: LinkId, message: Message);

    /// A link is closed from this side.
    fn close(&self, link: LinkId);

    /// A lossless link goes on over a new connection ([`Link::renew`]).
    fn renew(&self, link: LinkId);

    /// Whether the peer of an accepted lossless link is waited for ([`Link::keep`]).
    fn keep(&self, link: LinkId, keep: bool);

    /// Takes work that blocks, to be done when it likes.
    fn work(&self, work: Box<dyn FnOnce() + Send>);
}
