//! Secure mode: AES-128-GCM with keys and nonces from the connection secret.
//!
//! Each direction has a nonce of its own, counted up by one with every GCM message, and a
//! connection secret is of one use, so that no nonce comes twice under one key. A direction
//! that has used up [`MESSAGES`] of them is over: its connection ends and the next one has a
//! new secret.
//!
//! Source: `docs/protocol/README.md` §1; checked on `tests/data/vectors/cephx/*secure*`.

pub use crate::auth::CONNECTION_SECRET_LEN;
use crate::error::ProtocolError;
use bytes::BytesMut;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

/// Bytes of the tag behind every GCM message.
pub const TAG_LEN: usize = 16;
/// Segments are filled up with zeros to a multiple of this.
pub const BLOCK: usize = 16;
/// GCM messages of one direction under one key. Far from where nonces would repeat (2^64),
/// and with Ceph's largest frames within what GCM is good for.
pub const MESSAGES: u64 = 1 << 40;

/// `n` filled up to whole blocks.
pub fn padded(n: usize) -> usize {
    n.next_multiple_of(BLOCK)
}

/// One direction.
struct Direction {
    key: LessSafeKey,
    fixed: [u8; 4],
    counter: u64,
    left: u64,
}

impl std::fmt::Debug for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Direction({} messages left)", self.left)
    }
}

impl Direction {
    fn new(key: &[u8], nonce: &[u8; 12]) -> Option<Self> {
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).ok()?);
        let (fixed, counter) = (nonce.first_chunk()?, nonce.last_chunk()?);
        Some(Self { key, fixed: *fixed, counter: u64::from_le_bytes(*counter), left: MESSAGES })
    }

    /// The nonce of the next message.
    fn nonce(&mut self) -> Result<Nonce, ProtocolError> {
        self.left = self.left.checked_sub(1).ok_or(ProtocolError::NoncesUsedUp)?;
        let mut n = [0; 12];
        n[..4].copy_from_slice(&self.fixed);
        n[4..].copy_from_slice(&self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        Ok(Nonce::assume_unique_for_key(n))
    }
}

/// Opens what the peer sealed.
#[derive(Debug)]
pub struct Opener(Direction);

impl Opener {
    /// Decrypts one GCM message in place; its tag is at the end. Returns the length of the
    /// plain text before it.
    ///
    /// # Errors
    /// [`ProtocolError::Sealed`] if it was not sealed by the peer as its next message.
    pub fn open(&mut self, message: &mut [u8]) -> Result<usize, ProtocolError> {
        let nonce = self.0.nonce()?;
        let plain = self
            .0
            .key
            .open_in_place(nonce, Aad::empty(), message)
            .map_err(|_| ProtocolError::Sealed)?;
        Ok(plain.len())
    }

    /// Leaves the peer's next message unopened.
    ///
    /// # Errors
    /// [`ProtocolError::NoncesUsedUp`].
    pub fn pass_over(&mut self) -> Result<(), ProtocolError> {
        self.0.nonce().map(|_| ())
    }
}

/// Seals what the peer will open.
#[derive(Debug)]
pub struct Sealer(Direction);

impl Sealer {
    /// Encrypts `out` from `from` on and appends the tag.
    ///
    /// # Errors
    /// [`ProtocolError::NoncesUsedUp`].
    pub fn seal(&mut self, out: &mut BytesMut, from: usize) -> Result<(), ProtocolError> {
        let nonce = self.0.nonce()?;
        let plain = out.get_mut(from..).unwrap_or_default();
        // Fails only for a plain text of 64 GiB.
        let tag: Tag = self
            .0
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), plain)
            .map_err(|_| ProtocolError::NoncesUsedUp)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Whether there is a nonce left for a whole frame.
    pub fn is_used_up(&self) -> bool {
        self.0.left < 2
    }

    #[cfg(test)]
    pub(crate) fn use_up_to(&mut self, left: u64) {
        self.0.left = left;
    }
}

/// Both directions of one end; `None` if the secret is too short.
pub fn keys(secret: &[u8], connecting: bool) -> Option<(Opener, Sealer)> {
    let secret = secret.get(..CONNECTION_SECRET_LEN)?;
    let (key, nonces) = secret.split_at_checked(16)?;
    let (to_connecting, to_accepting): (&[u8; 12], &[u8; 12]) =
        (nonces.first_chunk()?, nonces.last_chunk()?);
    let (rx, tx) =
        if connecting { (to_connecting, to_accepting) } else { (to_accepting, to_connecting) };
    Some((Opener(Direction::new(key, rx)?), Sealer(Direction::new(key, tx)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 64] = [7; 64];

    #[test]
    fn what_one_end_seals_the_other_opens_once_and_in_order() {
        let mut secret = SECRET;
        secret[28] = 9; // else both directions would have the same nonces
        let (mut client_rx, mut client_tx) = keys(&secret, true).unwrap();
        let (mut server_rx, mut server_tx) = keys(&secret, false).unwrap();
        let sealed = |tx: &mut Sealer, text: &[u8]| {
            let mut b = BytesMut::from(text);
            tx.seal(&mut b, 0).unwrap();
            b
        };
        let (one, two) = (sealed(&mut client_tx, b"one"), sealed(&mut client_tx, b"two"));
        assert_eq!(server_rx.open(&mut one.clone()), Ok(3));
        assert_eq!(server_rx.open(&mut one.clone()), Err(ProtocolError::Sealed), "replayed");
        let (_, mut again) = keys(&secret, true).unwrap();
        assert_eq!(sealed(&mut again, b"one"), one, "keys and nonces follow from the secret alone");
        assert_ne!(sealed(&mut again, b"one"), one);
        let (mut fresh, _) = keys(&secret, false).unwrap();
        assert_eq!(fresh.open(&mut two.clone()), Err(ProtocolError::Sealed), "out of order");
        assert_eq!(client_rx.open(&mut sealed(&mut server_tx, b"three")), Ok(5));
        assert_eq!(
            client_rx.open(&mut sealed(&mut client_tx, b"reflected")),
            Err(ProtocolError::Sealed)
        );
    }

    #[test]
    fn nonces_are_used_up_before_they_repeat_and_short_secrets_are_refused() {
        let (_, mut tx) = keys(&SECRET, true).unwrap();
        tx.use_up_to(1);
        assert!(tx.is_used_up());
        assert_eq!(tx.seal(&mut BytesMut::from(&b"last"[..]), 0), Ok(()));
        assert_eq!(
            tx.seal(&mut BytesMut::from(&b"one more"[..]), 0),
            Err(ProtocolError::NoncesUsedUp)
        );
        assert!(keys(&SECRET[..39], true).is_none() && keys(&[], false).is_none());
    }

    #[test]
    fn counters_wrap_within_their_eight_bytes() {
        let mut secret = SECRET;
        secret[20..28].fill(0xff);
        let (mut rx, _) = keys(&secret, true).unwrap();
        let (_, mut tx) = keys(&secret, false).unwrap();
        for text in ["before", "after"] {
            let mut b = BytesMut::from(text.as_bytes());
            tx.seal(&mut b, 0).unwrap();
            assert_eq!(rx.open(&mut b), Ok(text.len()));
        }
    }
}
