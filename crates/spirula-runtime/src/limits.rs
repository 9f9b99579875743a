//! Bounds of the network shell, with what happens at each.
//!
//! What is sent over a link between OSDs waits until the peer's process has it, however long it
//! takes; only where more waits than [`SESSION_BYTES`] ([`PARKED_BYTES`] for all accepted ones
//! together) the session is lost, and both ends are told.
//!
//! Worst case of memory: payloads in flight ≤ the [`spirula_buffer::PayloadPool`]'s budget
//! plus one payload per connection, plus what other OSDs send; small messages ≤ [`MAILBOX_EVENTS`]
//! per daemon plus [`OUT_BYTES`] per connection.
//!
//! What another OSD sends waits for no memory, as in Ceph. It is a part of what that OSD's clients
//! write (which that OSD took in within its own budget), or of a recovery (which goes on in few
//! objects at a time), and the memory for it over there becomes free only when it is taken here. If
//! it waited here until the writes of this OSD's clients are done, which wait for the other OSD to
//! take their parts, two processes full of writes would stand still for ever.
//!
//! What a socket's buffer in the kernel holds (at most `net.ipv4.tcp_wmem`, 4 MiB, each) counts as
//! taken: it is the kernel's memory, which bounds it for all sockets together (`tcp_mem`, and a
//! control group's limit, below which it takes less), and asks nobody here. Nothing here needs to
//! know how full it is (`TIOCOUTQ`). Whether a peer reads shows in what the socket takes no more, a
//! buffer later; a peer that never reads at all is ended by the kernel ([`TCP_UNACKNOWLEDGED`]),
//! also after this side has closed, and what it leaves is thrown away at once where more than a
//! buffer waits (a reset in place of an end in due form).

use spirula_messenger::Timeouts;
use std::time::Duration;

/// Events waiting in a daemon's mailbox above which its connections stop reading.
pub const MAILBOX_EVENTS: usize = 8192;
/// Requests of one connection that its daemon has not answered, above which the connection
/// stops reading (the peer waits).
pub const REQUESTS_PER_LINK: usize = 2048;
/// Bytes of a client's request to a monitor or manager; of a larger one nothing is kept. More than
/// any CRUSH map or keyring needs, and what a monitor forwards with it fits a frame between
/// monitors.
pub const REQUEST_BYTES: usize = 4 << 20;
/// The least and the most clients of one monitor or manager of which a request of more than two
/// [`RECEIVE_BUFFER`]s may be on its way in at a time; others wait, and of one user half as many.
/// In between, as many as make an eighth of the payloads' budget.
pub const LARGE_REQUESTS: (usize, usize) = (2, 16);
/// Bytes queued towards one peer above which nothing more is read from it.
pub const OUT_BYTES: usize = 256 << 20;
/// The same towards a client.
pub const CLIENT_OUT_BYTES: usize = 8 << 20;
/// The most that peers of one monitor or manager together are meant to leave unread; less where
/// less memory is allowed ([`crate::Answers`], which says what happens then).
pub const ANSWERS_UNREAD: usize = 64 << 20;
/// Time for which the peer of a connection that was closed here may take nothing of what waits for
/// it; then the rest is thrown away. Who takes a little now and then has [`payload_time`] for all
/// of it, and not more than [`FLUSH_MOST`].
pub const FLUSH: Duration = Duration::from_secs(5);
/// The longest that a connection stays once it was closed here.
pub const FLUSH_MOST: Duration = Duration::from_secs(30);
/// Bytes, about, that wait for one peer in a lossless session, above which that session is lost:
/// the peer takes nothing, or is out of reach, and is up all the same.
pub const SESSION_BYTES: usize = 512 << 20;
/// The same for links that say little and often ([`crate::Hub::connect_watched`]): nobody wants to
/// hear it all later.
pub const SESSION_BYTES_WATCHED: usize = 64 << 10;
/// Accepted lossless sessions of one listener that wait for their peers; above it the one that has
/// waited longest is lost.
pub const PARKED: usize = 4096;
/// Bytes queued in them together; the same.
pub const PARKED_BYTES: usize = 256 << 20;
/// Bytes read from a socket before other tasks get a turn.
pub const READ_TURN: usize = 1 << 20;
/// Size of a connection's receive buffer, bytes.
pub const RECEIVE_BUFFER: usize = 64 << 10;
/// Payloads from this size are read straight into a pooled, aligned buffer.
pub const DIRECT_PAYLOAD: usize = 64 << 10;
/// Connections of one listener; further ones are closed at once.
pub const CONNECTIONS: usize = 10_000;
/// Connections of one listener that have not authenticated yet; further ones are closed at once.
pub const STRANGERS: usize = 2048;
/// The same from one host (with IPv6, one network of 64 bits).
pub const STRANGERS_PER_PLACE: usize = 512;
/// Bytes read at a time from a connection that has not authenticated yet.
pub const STRANGER_BUFFER: usize = 4 << 10;
/// Time within which a new connection must have finished its handshake, milliseconds.
pub const HANDSHAKE_MS: u64 = 15_000;
/// Events a daemon handles before it flushes and other tasks get a turn.
pub const BATCH: usize = 256;
/// Time without a sign of life from an idle peer's host, after which the kernel asks it, three
/// times within the same time again.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Time that sent bytes may stay unacknowledged by the peer's host, or that the peer may leave
/// its receive buffer full; then the connection is over.
pub const TCP_UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// The same for links that say little and often ([`crate::Hub::connect_watched`]). Between hosts
/// that are cut off from each other TCP asks ever more rarely, and would find out late that they
/// are no longer; such a link is made anew instead.
pub const TCP_UNACKNOWLEDGED_WATCHED: Duration = Duration::from_millis(1500);

/// Time without a byte from a peer that keeps its session, or that we called, after which it is
/// asked whether it is there: a host may answer for a process that does not run any more.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
/// The same, after which the connection is over; a lossless one is made again and goes on.
pub const IDLE: Duration = Duration::from_secs(30);

/// Time within which a message of that many bytes must have come, where others wait for its memory:
/// 64 KiB a second and ten seconds.
pub(crate) fn payload_time(bytes: usize) -> Duration {
    Duration::from_secs(10 + (bytes as u64 >> 16))
}

/// Timeouts of every connection.
pub fn timeouts() -> Timeouts {
    Timeouts { handshake: Duration::from_millis(HANDSHAKE_MS), keepalive: KEEPALIVE, idle: IDLE }
}
