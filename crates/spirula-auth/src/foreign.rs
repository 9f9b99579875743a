//! Tickets and service keys in Ceph's own form, for services whose daemons are Ceph's: metadata
//! servers.
//!
//! Such a daemon opens the tickets of its clients itself, with keys that it fetches from the
//! monitors. So both have Ceph's form: the ticket is encrypted with `aes` (AES-128-CBC) and has no
//! integrity of its own (CVE-2025-30156), which daemons of 16.2 and 18.2 know no better. That
//! weakness ends at this service: its key is derived from the service's own 32 bytes, of which
//! nothing follows about any other, and no daemon of ours opens such a ticket.

use crate::entity::Service;
use crate::entropy::Entropy;
use crate::error::AuthError;
use crate::key::{CryptoKey, KeyType, Usage};
use crate::rotating::RotatingKeys;
use crate::ticket::{Ticket, TicketKey};
use crate::wire::{self, MAX_TICKET, TicketBlob};
use spirula_encoding::{Encoder, UTime};

/// Is the service one of Ceph's own daemons?
pub(crate) fn is_foreign(service: Service) -> bool {
    service == Service::Mds
}

/// The key under which Ceph's daemons open tickets.
fn aes_key(key: &TicketKey) -> Result<CryptoKey, AuthError> {
    CryptoKey::new(
        KeyType::Aes,
        UTime::ZERO,
        key.derived(b"spirula: tickets for ceph-mds").get(..16).unwrap_or_default(),
    )
}

/// Seals a ticket as Ceph's monitors do (CephXServiceTicketInfo).
///
/// # Errors
/// [`AuthError::Oversize`] if its capabilities make it longer than [`MAX_TICKET`].
pub(crate) fn seal(
    ticket: &Ticket,
    secret_id: u64,
    key: &TicketKey,
    entropy: &mut dyn Entropy,
) -> Result<TicketBlob, AuthError> {
    let blob = wire::seal(&aes_key(key)?, Usage::TicketBlob, entropy, |o| {
        o.u8(1);
        // AuthTicket.
        o.u8(2);
        o.put(&ticket.entity);
        o.u64(ticket.global_id);
        o.u64(u64::MAX); // user id of old, none
        o.put(&ticket.created);
        o.put(&ticket.expires);
        // AuthCapsInfo: all is allowed by no flag, only by words.
        o.u8(1);
        o.u8(0);
        o.sized(|o| o.str(&ticket.caps));
        o.u32(0); // flags
        o.put(&ticket.session_key);
    });
    match blob.len() {
        len if len > MAX_TICKET => {
            Err(AuthError::Oversize { what: "ticket", len, max: MAX_TICKET })
        }
        _ => Ok(TicketBlob { secret_id, blob }),
    }
}

/// Writes a service's keys as Ceph's monitors do (RotatingSecrets).
///
/// # Errors
/// None in practice: every key has its length.
pub(crate) fn write_keys(keys: &RotatingKeys, out: &mut Encoder) -> Result<(), AuthError> {
    let all = [&keys.previous, &keys.current, &keys.next];
    out.u8(1);
    out.u32(all.len() as u32);
    for key in all {
        out.u64(key.id);
        out.u8(1);
        out.put(&aes_key(&key.key)?);
        out.put(&key.expires);
    }
    out.u64(keys.next.id);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use spirula_encoding::Decoder;

    fn seeded(mut n: u8) -> impl FnMut(&mut [u8]) {
        move |out: &mut [u8]| {
            out.iter_mut().for_each(|b| {
                n = n.wrapping_mul(31).wrapping_add(7);
                *b = n;
            });
        }
    }

    /// The form that `ceph-mds` 16.2 reads: {1, ticket v2 {name, global id, −1, times, caps {1, 0,
    /// blob of a text}, flags}, key}.
    #[test]
    fn a_ticket_for_a_metadata_server_has_cephs_form() {
        let draw = &mut seeded(1);
        let key = TicketKey::generate(draw);
        let session_key = CryptoKey::generate(KeyType::Aes, UTime::ZERO, draw);
        let (created, expires) = (UTime { sec: 5, nsec: 6 }, UTime { sec: 7, nsec: 8 });
        let entity = "client.x".parse().unwrap();
        let t = Ticket {
            entity,
            global_id: 4711,
            created,
            expires,
            session_key,
            caps: "allow *".into(),
        };
        let sealed = seal(&t, 9, &key, draw).unwrap();
        let plain =
            wire::open(&aes_key(&key).unwrap(), Usage::TicketBlob, "ticket", &sealed.blob).unwrap();
        let d = &mut Decoder::new(&plain);
        assert_eq!((d.u8().unwrap(), d.u8().unwrap()), (1, 2));
        assert_eq!((d.u32().unwrap(), d.blob().unwrap()), (8, &b"x"[..]));
        assert_eq!((d.u64().unwrap(), d.u64().unwrap()), (4711, u64::MAX));
        assert_eq!((d.get::<UTime>().unwrap(), d.get::<UTime>().unwrap()), (created, expires));
        assert_eq!((d.u8().unwrap(), d.u8().unwrap()), (1, 0));
        assert_eq!(d.blob().unwrap(), b"\x07\0\0\0allow *");
        assert_eq!(d.u32().unwrap(), 0);
        assert_eq!(d.get::<CryptoKey>().unwrap(), t.session_key);
        d.finish().unwrap();
        // No key of a service tells that of its tickets.
        let other = TicketKey::generate(&mut seeded(9));
        assert_ne!(aes_key(&key).unwrap().secret(), aes_key(&other).unwrap().secret());
    }

    #[test]
    fn keys_for_a_metadata_server_have_cephs_form() {
        let keys = RotatingKeys::first(UTime { sec: 100, nsec: 0 }, 60, &mut seeded(3));
        let mut out = Encoder::new();
        write_keys(&keys, &mut out).unwrap();
        let bytes = out.into_vec();
        let d = &mut Decoder::new(&bytes);
        assert_eq!((d.u8().unwrap(), d.u32().unwrap()), (1, 3));
        for (id, sec) in [(1, 100), (2, 160), (3, 220)] {
            assert_eq!((d.u64().unwrap(), d.u8().unwrap()), (id, 1));
            assert_eq!(d.get::<CryptoKey>().unwrap().key_type(), KeyType::Aes);
            assert_eq!(d.get::<UTime>().unwrap().sec, sec);
        }
        assert_eq!(d.u64().unwrap(), 3);
        d.finish().unwrap();
    }
}
