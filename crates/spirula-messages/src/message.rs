//! The envelope: header fields and segments of one message.

use bytes::Bytes;
use spirula_encoding::DecodeError;

/// One message as the messenger carries it. Sequence numbers and acknowledgements belong to
/// the connection, so they are not here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Message type number (42 = MOSDOp …).
    pub kind: u16,
    /// Transaction id: pairs a reply with its request.
    pub tid: u64,
    /// Priority as on the wire (63 client ops, 127 default, 196 monitor).
    pub priority: u16,
    /// Version of the body's encoding.
    pub version: u16,
    /// Oldest version a reader must know.
    pub compat: u16,
    /// Main body.
    pub front: Bytes,
    /// Middle segment; empty in everything seen outside the file system.
    pub middle: Bytes,
    /// Payload.
    pub data: Bytes,
}

/// Why a message's body could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The body's bytes are wrong.
    #[error("message type {kind} v{version}: {source}")]
    Decode {
        /// Message type number.
        kind: u16,
        /// Version in the header.
        version: u16,
        /// What is wrong.
        source: DecodeError,
    },
    /// Another type than the reader expected.
    #[error("message type {found} where {expected} was expected")]
    Kind {
        /// Type found.
        found: u16,
        /// Type wanted.
        expected: u16,
    },
}

/// A typed message body.
pub trait Body: Sized {
    /// Message type number.
    const KIND: u16;
    /// Encoding version we write.
    const VERSION: u16;
    /// Oldest reader version we require.
    const COMPAT: u16;
    /// Priority we send it with.
    const PRIORITY: u16 = 127;

    /// Front and data segments.
    fn segments(&self) -> (Vec<u8>, Bytes);

    /// Reads the body; `version` is the header's.
    ///
    /// # Errors
    /// [`DecodeError`] when the segments are not such a body.
    fn read(version: u16, front: &Bytes, data: &Bytes) -> Result<Self, DecodeError>;

    /// The message that carries this body.
    fn into_message(self, tid: u64) -> Message {
        self.to_message(tid)
    }

    /// A message with this body, for one that others share.
    fn to_message(&self, tid: u64) -> Message {
        let (front, data) = self.segments();
        Message {
            kind: Self::KIND,
            tid,
            priority: Self::PRIORITY,
            version: Self::VERSION,
            compat: Self::COMPAT,
            front: front.into(),
            middle: Bytes::new(),
            data,
        }
    }

    /// Reads the body of `m`.
    ///
    /// # Errors
    /// [`MessageError`] for another type or a malformed body.
    fn from_message(m: &Message) -> Result<Self, MessageError> {
        if m.kind != Self::KIND {
            return Err(MessageError::Kind { found: m.kind, expected: Self::KIND });
        }
        Self::read(m.version, &m.front, &m.data).map_err(|source| MessageError::Decode {
            kind: m.kind,
            version: m.version,
            source,
        })
    }
}
