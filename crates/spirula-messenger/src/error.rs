//! Why a connection must be dropped.

use spirula_encoding::DecodeError;
use spirula_types::EntityAddr;

/// What a peer did wrong, or that it is gone. The connection cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The first bytes are not a msgr2 banner.
    #[error("not msgr2: {0}")]
    NotMsgr2(&'static str),
    /// The peer requires protocol features we do not have.
    #[error("peer requires msgr2 features {0:#x} that we lack")]
    BannerFeatures(u64),
    /// The banner's second part is malformed.
    #[error("bad banner: {0}")]
    Banner(&'static str),
    /// The checksum over a preamble is wrong.
    #[error("preamble crc is {found:#010x}, expected {expected:#010x}")]
    PreambleCrc {
        /// Computed.
        found: u32,
        /// Received.
        expected: u32,
    },
    /// A preamble announces something impossible.
    #[error("bad preamble: {0}")]
    Preamble(&'static str),
    /// A frame type that does not exist.
    #[error("unknown frame tag {0}")]
    UnknownTag(u8),
    /// A segment longer than we accept.
    #[error("segment {index} of a {tag} frame has {len} bytes, at most {max} are accepted")]
    TooLong {
        /// Frame type.
        tag: &'static str,
        /// Segment number.
        index: usize,
        /// Announced length.
        len: usize,
        /// Our limit.
        max: usize,
    },
    /// The checksum over a segment is wrong.
    #[error("crc of segment {index} is {found:#010x}, expected {expected:#010x}")]
    SegmentCrc {
        /// Segment number.
        index: usize,
        /// Computed.
        found: u32,
        /// Received.
        expected: u32,
    },
    /// The frame's end says neither "complete" nor "aborted".
    #[error("bad late status {0:#04x}")]
    LateStatus(u8),
    /// A frame that may not come now.
    #[error("{tag} frame while {state}")]
    Unexpected {
        /// Frame type.
        tag: &'static str,
        /// What we were doing.
        state: &'static str,
    },
    /// A frame's payload is malformed.
    #[error("{tag} frame: {source}")]
    Decode {
        /// Frame type.
        tag: &'static str,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// The signature of the handshake is wrong: the peer has another session key, or somebody
    /// changed what was said on the way.
    #[error("the peer's signature of the handshake is wrong")]
    Signature,
    /// A frame of secure mode is not what the peer sealed as its next one.
    #[error("a frame does not decrypt: changed, repeated or left out on the way")]
    Sealed,
    /// A direction has sent all that it may under its key.
    #[error("the connection's nonces are used up; the next one has new keys")]
    NoncesUsedUp,
    /// More was said before authentication was over than we listen to.
    #[error("more than {0} bytes before authentication is over")]
    LongHandshake(usize),
    /// We have nothing to authenticate with, or the server's part of the exchange is wrong.
    #[error("authenticate: {0}")]
    Credentials(String),
    /// No connection mode is allowed with this method.
    #[error("no allowed connection mode goes with authentication method {0}")]
    NoMode(u32),
    /// Secure mode was agreed on and the secret for it is missing or too short.
    #[error("the connection secret has {0} bytes, secure mode needs 40")]
    ShortSecret(usize),
    /// The peer refused our authentication.
    #[error("peer refused authentication method {method}: error {result}, it allows {allowed:?}")]
    AuthRefused {
        /// Method we asked for.
        method: u32,
        /// −errno.
        result: i32,
        /// Methods it allows.
        allowed: Vec<u32>,
    },
    /// The peer chose a connection mode that we did not ask for.
    #[error("peer chose connection mode {0} (1 is crc, 2 is secure), which we did not ask for")]
    Mode(u32),
    /// The peer lacks features that we require.
    #[error("peer lacks required features {0:#x}")]
    PeerLacks(u64),
    /// We lack features that the peer requires.
    #[error("peer requires features {0:#x} that we lack")]
    WeLack(u64),
    /// The peer wanted somebody else.
    #[error("peer is looking for {target}, which is not us")]
    WrongTarget {
        /// Whom it wanted.
        target: EntityAddr,
    },
    /// Somebody else answered.
    #[error("reached {found} instead of {target}")]
    WrongPeer {
        /// Whom we wanted.
        target: EntityAddr,
        /// Addresses of who answered.
        found: String,
    },
    /// The peer is of another kind than expected.
    #[error("peer is of kind {found}, expected {expected}")]
    WrongKind {
        /// Kind it says it is.
        found: u8,
        /// Kind wanted.
        expected: u8,
    },
    /// The peer must say where it is and did not.
    #[error("peer gave no address")]
    NoAddress,
    /// A message is missing in a lossless session.
    #[error("message {found} follows {last} in a lossless session")]
    SequenceGap {
        /// Last number received.
        last: u64,
        /// Number of this message.
        found: u64,
    },
    /// Both sides connect at once and the peer's attempt wins; keep the session, wait for
    /// the peer or try again a little later.
    #[error("connection race: the peer's attempt wins")]
    Race,
    /// A newer connection of the same peer exists.
    #[error("stale connection attempt")]
    Stale,
    /// The handshake took too long.
    #[error("handshake not finished in time")]
    HandshakeTimeout,
    /// Nothing was received for too long.
    #[error("idle for too long")]
    IdleTimeout,
    /// The connection was closed before by an error or by [`crate::Connection::close`].
    #[error("connection is closed")]
    Closed,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The connection is closed.
    #[error("connection is closed")]
    Closed,
    /// Too much waits for acknowledgement, or for the handshake.
    #[error("send queue is full")]
    Full,
}
