//! msgr2 without I/O: banner, frames, handshake, sessions, replay.
//!
//! A [`Connection`] is one TCP connection as a state machine. It owns no socket, reads no
//! clock and draws no random number: received bytes, the monotonic time and answers to its
//! questions go in; bytes to write and [`Event`]s come out. After an error it is dead: drop
//! the socket, and keep its [`Session`] if there is one.
//!
//! The life of a connection in a shell:
//!
//! ```text
//! let endpoint = Arc::new(Endpoint::new(EntityType::Osd, 3, addrs));
//! let mut c = Connection::accept(endpoint, peer_socket_addr, now);      // or
//! let mut c = Connection::connect(endpoint, Target::lossy(addr, kind), now);
//! loop {
//!     write(c.take_output());                       // `Output` is a `bytes::Buf`: one writev per batch
//!     read(&mut buf);                               // at least one byte; c.wanted() says how many are useful
//!     c.receive(now, &mut buf, &mut events)?;       // consumes whole frames, leaves the rest in `buf`
//!     for e in events.drain(..) { match e {
//!         Event::Auth(a)        => c.answer_auth(answer)?,          // now or later
//!         Event::AuthMore(p)    => c.answer_auth(answer)?,
//!         Event::Session(ask)   => c.answer_session(answer, &mut more)?,  // lossless peers only
//!         Event::Established(p) => ..,              // send() is allowed before; it queues
//!         Event::Message(m)     => m.message, m.data_crc, ..
//!         ..
//!     } }
//!     // after an answer: call receive() again, `buf` may hold more
//!     c.send(message, data_crc)?; c.keepalive(stamp); c.tick(now)?;
//! }
//! ```
//!
//! Big payloads: when [`Connection::wanted`] is [`Wanted::Payload`]`(n)`, the next `n` bytes
//! of the stream (the first of them may already be in `buf`) are a payload of at least
//! [`Limits::direct_payload`] bytes. The shell may move them into a buffer of its own
//! (pooled, aligned) and hand that to [`Connection::receive_payload`]; or it ignores this
//! and goes on filling `buf`. Payloads that are complete in `buf` are slices of it.
//!
//! * [`Endpoint`], [`Target`], [`Limits`], [`Timeouts`] — who we are, whom we call, bounds
//! * [`Session`], [`Sessions`] — what survives a lost connection between lossless peers
//! * [`Calls`], [`Parked`], [`Opening`] — the rules of both ends of a lossless link, for every
//!   shell
//! * [`auth`] — methods, modes, credentials, secrets
//! * [`frame`], [`secure`] — the frame codecs by themselves, for tests, tools and fuzzing
//!
//! Facts: `docs/protocol/README.md` §1–§3, and for 2.0 frames and session races Ceph 16.2's
//! msgr2 (frames_v2, ProtocolV2).

pub mod auth;
mod banner;
mod config;
mod connection;
mod control;
mod error;
pub mod frame;
mod lossless;
mod output;
pub mod secure;
mod session;

pub use config::{Endpoint, Limits, Policy, Target, Timeouts};
pub use connection::{Connection, Event, Peer, Received};
pub use error::{ProtocolError, SendError};
pub use frame::Wanted;
pub use lossless::{Asked, Calls, News, Opening, Parked};
pub use output::Output;
pub use session::{
    ConnectionId, Session, SessionAnswer, SessionAsk, SessionKey, Sessions, Verdict,
};

#[cfg(test)]
mod tests;
