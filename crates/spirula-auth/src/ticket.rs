//! Tickets: who somebody is and what they may do, sealed for a service.
//!
//! Clients hold tickets without opening them, so their form is ours, not Ceph's (save where the
//! daemon is Ceph's: [`crate::foreign`]): a version, a
//! random nonce, and the contents under AES-256-GCM. The service key's number, the service and the
//! version are bound as additional data. A ticket that was forged, damaged, or sealed for another
//! service is [`AuthError::ForgedTicket`]; Ceph's own form had no integrity (CVE-2025-30156).

use crate::entity::{EntityId, Service};
use crate::entropy::{self, Entropy};
use crate::error::AuthError;
use crate::key::CryptoKey;
use crate::wire::{MAX_TICKET, TicketBlob};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use std::fmt;
use zeroize::Zeroizing;

const VERSION: u8 = 1;
const NONCE_LEN: usize = 12;

/// How far the clock of the monitor that issued a ticket may be ahead of ours, in seconds.
pub const CLOCK_SKEW: u32 = 300;

/// A service's key for sealing tickets.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey(Zeroizing<[u8; 32]>);

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(hidden)")
    }
}

impl TicketKey {
    /// A new random one.
    pub fn generate(entropy: &mut dyn Entropy) -> Self {
        Self(Zeroizing::new(entropy::array(entropy)))
    }

    /// The key for tickets that monitors write themselves for one another: derived from the key
    /// that all of them share.
    pub fn of_monitors(shared: &CryptoKey) -> Self {
        Self(Zeroizing::new(shared.hmac_sha256(b"spirula: tickets among monitors")))
    }

    /// A key that follows from this one, for another use.
    pub(crate) fn derived(&self, label: &[u8]) -> [u8; 32] {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.0.as_ref());
        let mut out = [0; 32];
        out.iter_mut().zip(ring::hmac::sign(&key, label).as_ref()).for_each(|(o, b)| *o = *b);
        out
    }

    fn aead(&self) -> Option<LessSafeKey> {
        UnboundKey::new(&AES_256_GCM, self.0.as_ref()).ok().map(LessSafeKey::new)
    }
}

impl Encode for TicketKey {
    fn encode(&self, out: &mut Encoder) {
        out.raw(self.0.as_ref());
    }
}

impl Decode for TicketKey {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(Zeroizing::new(d.array()?)))
    }
}

/// What a ticket says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Who.
    pub entity: EntityId,
    /// Its session in the whole cluster.
    pub global_id: u64,
    /// When it was issued.
    pub created: UTime,
    /// From when on it is worthless.
    pub expires: UTime,
    /// Shared by the holder and the service.
    pub session_key: CryptoKey,
    /// Capabilities for this service, as text. Empty: none.
    pub caps: String,
}

impl Encode for Ticket {
    fn encode(&self, out: &mut Encoder) {
        out.put(&self.entity);
        out.u64(self.global_id);
        out.put(&self.created);
        out.put(&self.expires);
        out.put(&self.session_key);
        out.str(&self.caps);
    }
}

impl Decode for Ticket {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            entity: d.get()?,
            global_id: d.u64()?,
            created: d.get()?,
            expires: d.get()?,
            session_key: d.get()?,
            caps: d.get()?,
        })
    }
}

fn additional_data(service: Service, secret_id: u64) -> Vec<u8> {
    let mut out = Encoder::new();
    out.raw(b"spirula ticket");
    out.u8(VERSION);
    out.u32(service.wire());
    out.u64(secret_id);
    out.into_vec()
}

impl Ticket {
    /// Seals it for `service` under its key number `secret_id`.
    ///
    /// # Errors
    /// [`AuthError::Oversize`] if caps make it longer than [`MAX_TICKET`].
    pub(crate) fn seal(
        &self,
        service: Service,
        secret_id: u64,
        key: &TicketKey,
        entropy: &mut dyn Entropy,
    ) -> Result<TicketBlob, AuthError> {
        let nonce: [u8; NONCE_LEN] = entropy::array(entropy);
        let mut body = Zeroizing::new(spirula_encoding::to_vec(self));
        let len = 1 + NONCE_LEN + body.len() + AES_256_GCM.tag_len();
        if len > MAX_TICKET {
            return Err(AuthError::Oversize { what: "ticket", len, max: MAX_TICKET });
        }
        let aad = Aad::from(additional_data(service, secret_id));
        let aead = key.aead().ok_or(AuthError::BadKey("the ticket key is unusable"))?;
        let tag = aead
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body)
            .map_err(|_| AuthError::BadKey("the ticket does not encrypt"))?;
        let mut out = Encoder::with_capacity(len);
        out.u8(VERSION);
        out.raw(&nonce);
        out.raw(&body);
        out.raw(tag.as_ref());
        Ok(TicketBlob { secret_id, blob: out.into_vec() })
    }

    /// Opens a ticket for `service` and checks that it is valid at `now`.
    ///
    /// # Errors
    /// [`AuthError::EmptyTicket`], [`AuthError::UnknownSecret`], [`AuthError::ForgedTicket`],
    /// [`AuthError::Expired`], [`AuthError::NotYetValid`], [`AuthError::Version`].
    pub(crate) fn open(
        service: Service,
        blob: &TicketBlob,
        keys: &dyn TicketKeys,
        now: UTime,
    ) -> Result<Self, AuthError> {
        if blob.blob.is_empty() {
            return Err(AuthError::EmptyTicket);
        }
        let key =
            keys.ticket_key(blob.secret_id).ok_or(AuthError::UnknownSecret(blob.secret_id))?;
        let mut d = Decoder::new(&blob.blob);
        match d.u8() {
            Ok(VERSION) => {}
            Ok(version) => return Err(AuthError::Version { what: "ticket", version }),
            Err(_) => return Err(AuthError::ForgedTicket),
        }
        let nonce = d.array::<NONCE_LEN>().map_err(|_| AuthError::ForgedTicket)?;
        let mut body = Zeroizing::new(d.rest().to_vec());
        let aad = Aad::from(additional_data(service, blob.secret_id));
        let aead = key.aead().ok_or(AuthError::ForgedTicket)?;
        let plain = aead
            .open_in_place(Nonce::assume_unique_for_key(nonce), aad, &mut body)
            .map_err(|_| AuthError::ForgedTicket)?;
        let ticket: Self =
            spirula_encoding::from_slice(plain).map_err(AuthError::malformed("ticket"))?;
        if now >= ticket.expires {
            return Err(AuthError::Expired { expired: ticket.expires.sec, now: now.sec });
        }
        if ticket.created.sec > now.sec.saturating_add(CLOCK_SKEW) {
            return Err(AuthError::NotYetValid { created: ticket.created.sec, now: now.sec });
        }
        Ok(ticket)
    }
}

/// Keys to open tickets with, by number.
pub trait TicketKeys {
    /// The key of that number, if it is (still) good.
    fn ticket_key(&self, secret_id: u64) -> Option<&TicketKey>;
}

/// Number of the key in tickets among monitors.
pub const MONITORS_SECRET_ID: u64 = u64::MAX;

impl TicketKeys for TicketKey {
    fn ticket_key(&self, secret_id: u64) -> Option<&TicketKey> {
        (secret_id == MONITORS_SECRET_ID).then_some(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::entropy::seeded;
    use crate::key::KeyType;

    fn ticket() -> Ticket {
        Ticket {
            entity: "client.a".parse().unwrap(),
            global_id: 7,
            created: UTime { sec: 1000, nsec: 0 },
            expires: UTime { sec: 2000, nsec: 0 },
            session_key: CryptoKey::generate(KeyType::Aes, UTime::ZERO, &mut seeded(3)),
            caps: "allow rw".into(),
        }
    }

    #[test]
    fn a_ticket_opens_only_unharmed_for_its_service_and_in_its_time() {
        let key = TicketKey::generate(&mut seeded(1));
        let blob = ticket().seal(Service::Osd, MONITORS_SECRET_ID, &key, &mut seeded(2)).unwrap();
        let at = |sec| UTime { sec, nsec: 0 };
        let open = |service, blob: &TicketBlob, sec| Ticket::open(service, blob, &key, at(sec));
        assert_eq!(open(Service::Osd, &blob, 1500).unwrap(), ticket());
        assert_eq!(open(Service::Mgr, &blob, 1500), Err(AuthError::ForgedTicket));
        assert_eq!(
            open(Service::Osd, &blob, 2000),
            Err(AuthError::Expired { expired: 2000, now: 2000 })
        );
        assert_eq!(
            open(Service::Osd, &blob, 699),
            Err(AuthError::NotYetValid { created: 1000, now: 699 })
        );
        for i in 0..blob.blob.len() {
            let mut bad = blob.clone();
            bad.blob[i] ^= 1 << (i % 8);
            assert!(open(Service::Osd, &bad, 1500).is_err(), "byte {i}");
            bad.blob.truncate(i);
            assert!(open(Service::Osd, &bad, 1500).is_err(), "cut at {i}");
        }
        let mut other = blob.clone();
        other.secret_id = 4;
        assert_eq!(open(Service::Osd, &other, 1500), Err(AuthError::UnknownSecret(4)));
    }

    #[test]
    fn the_same_ticket_never_seals_to_the_same_bytes() {
        let key = TicketKey::generate(&mut seeded(1));
        let mut entropy = seeded(2);
        let a = ticket().seal(Service::Osd, 1, &key, &mut entropy).unwrap();
        let b = ticket().seal(Service::Osd, 1, &key, &mut entropy).unwrap();
        assert_ne!(a, b);
        assert!(!format!("{key:?}").contains(|c: char| c.is_ascii_digit()));
    }
}
