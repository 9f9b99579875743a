//! What clients of an image tell each other, by notifications on its header: librbd's messages.
//!
//! A message is a versioned struct of a number and what belongs to it. Of the requests for work
//! that the holder of the lock does on behalf of others (resize, snapshots, flatten, …) none is
//! done here: the holder says that it does not know them, whereupon librbd asks for the lock and
//! does the work itself.

use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder};
use spirula_types::errno;

/// A client of an image: its global id, and the cookie of its watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Global id.
    pub gid: u64,
    /// Cookie of its watch.
    pub handle: u64,
}

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This client has the lock now.
    Acquired(ClientId),
    /// This client has the lock no more.
    Released(ClientId),
    /// This client wants the lock.
    Requested(ClientId),
    /// The header has changed.
    HeaderUpdate,
    /// Somebody wants the holder of the lock to do something.
    Work,
    /// Wait before a snapshot, if there is something to wait for.
    Quiesce,
    /// Anything else: nobody waits for an answer.
    Other,
}

const ACQUIRED: u32 = 0;
const RELEASED: u32 = 1;
const REQUESTED: u32 = 2;
const HEADER_UPDATE: u32 = 3;
const PROGRESS: u32 = 4;
const COMPLETE: u32 = 5;
const QUIESCE: u32 = 18;
const UNQUIESCE: u32 = 19;

impl Notice {
    /// Its form on the wire.
    pub fn encode(&self) -> Bytes {
        let mut e = Encoder::new();
        let mut put = |op: u32, client: Option<ClientId>, force: bool| {
            e.versioned(7, 1, |e| {
                e.u32(op);
                if let Some(c) = client {
                    e.u64(c.gid);
                    e.u64(c.handle);
                }
                if force {
                    e.bool(false);
                }
            });
        };
        match *self {
            Self::Acquired(c) => put(ACQUIRED, Some(c), false),
            Self::Released(c) => put(RELEASED, Some(c), false),
            Self::Requested(c) => put(REQUESTED, Some(c), true),
            Self::HeaderUpdate => put(HEADER_UPDATE, None, false),
            Self::Work | Self::Quiesce | Self::Other => {}
        }
        e.into_bytes()
    }

    /// Reads one. Old clients say that the header has changed by an empty one.
    ///
    /// # Errors
    /// [`DecodeError`] for what is none.
    pub fn read(payload: &[u8]) -> Result<Self, DecodeError> {
        if payload.is_empty() {
            return Ok(Self::HeaderUpdate);
        }
        Decoder::new(payload).versioned("notification", 1, |d, version| {
            let op = d.u32()?;
            let mut client = || match version {
                // The first version did not say who.
                0..2 => Ok(ClientId { gid: 0, handle: 0 }),
                _ => Ok::<_, DecodeError>(ClientId { gid: d.u64()?, handle: d.u64()? }),
            };
            Ok(match op {
                ACQUIRED => Self::Acquired(client()?),
                RELEASED => Self::Released(client()?),
                REQUESTED => Self::Requested(client()?),
                HEADER_UPDATE => Self::HeaderUpdate,
                PROGRESS | COMPLETE | UNQUIESCE => Self::Other,
                QUIESCE => Self::Quiesce,
                _ => Self::Work,
            })
        })
    }
}

/// An answer to a notification: 0 or −errno.
pub fn response(result: i32) -> Bytes {
    let mut e = Encoder::new();
    e.versioned(1, 1, |e| e.i32(result));
    e.into_bytes()
}

/// The answer of the holder of the lock to work that others want from it.
pub fn not_here() -> Bytes {
    response(-errno::EOPNOTSUPP)
}

/// What the holder of the lock answered among all who were notified; `None` if nobody who holds it
/// did.
pub fn owner_says<'a>(replies: impl IntoIterator<Item = &'a Bytes>) -> Option<i32> {
    let read = |r: &Bytes| Decoder::new(r).versioned("response", 1, |d, _| d.i32()).ok();
    replies.into_iter().filter(|r| !r.is_empty()).find_map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_librbds() {
        let c = ClientId { gid: 4242, handle: 7 };
        for n in
            [Notice::Acquired(c), Notice::Released(c), Notice::Requested(c), Notice::HeaderUpdate]
        {
            assert_eq!(Notice::read(&n.encode()).unwrap(), n);
        }
        // A newer form, whose tail says whether by force.
        let seen = [
            6, 1, 21, 0, 0, 0, 2, 0, 0, 0, 0x92, 0x10, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(
            Notice::read(&seen).unwrap(),
            Notice::Requested(ClientId { gid: 0x1092, handle: 7 })
        );
        let work = [6, 1, 4, 0, 0, 0, 7, 0, 0, 0];
        assert_eq!(Notice::read(&work).unwrap(), Notice::Work);
        assert_eq!(Notice::read(&[]).unwrap(), Notice::HeaderUpdate);
        assert!(Notice::read(&work[..6]).is_err() && Notice::read(&[1]).is_err());
    }

    #[test]
    fn only_the_holder_of_the_lock_answers_with_something() {
        assert_eq!(owner_says(&[Bytes::new(), response(-5), Bytes::new()]), Some(-5));
        assert_eq!(owner_says(&[Bytes::new()]), None);
    }
}
