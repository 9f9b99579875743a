//! Service keys that rotate.
//!
//! Each service has three keys: the previous one still opens tickets, the current one seals new
//! ones, the next one is already with the daemons so that they know it before the first ticket
//! arrives. A key is current for one lifetime (the validity of a ticket), so the previous key
//! outlives its last ticket. The step is a pure function of time and randomness; the monitors agree
//! on its result before use.

use crate::entity::Service;
use crate::entropy::Entropy;
use crate::ticket::{TicketKey, TicketKeys};
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use std::collections::BTreeMap;

/// One of the three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotatingKey {
    /// Its number, rising.
    pub id: u64,
    /// The key.
    pub key: TicketKey,
    /// Until when it may be current.
    pub expires: UTime,
}

/// A service's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotatingKeys {
    /// Opens tickets that were sealed before the last rotation.
    pub previous: RotatingKey,
    /// Seals tickets.
    pub current: RotatingKey,
    /// The one after it.
    pub next: RotatingKey,
}

fn plus(t: UTime, seconds: u32) -> UTime {
    UTime { sec: t.sec.saturating_add(seconds), nsec: t.nsec }
}

impl RotatingKeys {
    /// The first three keys, of which one is current until `now + lifetime`.
    pub fn first(now: UTime, lifetime: u32, entropy: &mut dyn Entropy) -> Self {
        let mut key =
            |id: u64, expires| RotatingKey { id, key: TicketKey::generate(entropy), expires };
        Self {
            previous: key(1, now),
            current: key(2, plus(now, lifetime)),
            next: key(3, plus(now, lifetime.saturating_mul(2))),
        }
    }

    /// The keys after a rotation if one is due at `now`, else `None`. After a long silence (all
    /// keys past their time) one step leads to a current key that is valid again.
    pub fn rotated(&self, now: UTime, lifetime: u32, entropy: &mut dyn Entropy) -> Option<Self> {
        if now < self.current.expires {
            return None;
        }
        let mut current = self.next.clone();
        if current.expires <= now {
            current.expires = plus(now, lifetime);
        }
        let next = RotatingKey {
            id: self.next.id.saturating_add(1),
            key: TicketKey::generate(entropy),
            expires: plus(current.expires, lifetime),
        };
        Some(Self { previous: self.current.clone(), current, next })
    }

    /// The same keys with the times that they would have got at `now`, if theirs are of a future
    /// that a clock showed once: they would not rotate before it comes.
    fn redated(&self, now: UTime, lifetime: u32) -> Option<Self> {
        if self.current.expires <= plus(now, lifetime.saturating_mul(2)) {
            return None;
        }
        let mut out = self.clone();
        (out.current.expires, out.next.expires) =
            (plus(now, lifetime), plus(now, lifetime.saturating_mul(2)));
        Some(out)
    }

    /// Moves all times by so many nanoseconds, since the clock was set.
    fn shift(&mut self, by: i64) {
        for key in [&mut self.previous, &mut self.current, &mut self.next] {
            key.expires = UTime::from_nanos(key.expires.as_nanos().saturating_add_signed(by));
        }
    }

    /// All keys anew (`ceph auth wipe-rotating-service-keys`): every ticket of the service becomes
    /// worthless.
    pub fn wiped(&self, now: UTime, lifetime: u32, entropy: &mut dyn Entropy) -> Self {
        let mut out = Self::first(now, lifetime, entropy);
        let base = self.next.id;
        for key in [&mut out.previous, &mut out.current, &mut out.next] {
            key.id = key.id.saturating_add(base);
        }
        out
    }
}

impl TicketKeys for RotatingKeys {
    fn ticket_key(&self, secret_id: u64) -> Option<&TicketKey> {
        [&self.current, &self.previous, &self.next]
            .into_iter()
            .find(|k| k.id == secret_id)
            .map(|k| &k.key)
    }
}

impl Encode for RotatingKey {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.id);
        out.put(&self.key);
        out.put(&self.expires);
    }
}

impl Decode for RotatingKey {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { id: d.u64()?, key: d.get()?, expires: d.get()? })
    }
}

impl Encode for RotatingKeys {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.previous);
            o.put(&self.current);
            o.put(&self.next);
        });
    }
}

impl Decode for RotatingKeys {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("RotatingKeys", 1, |d, _| {
            Ok(Self { previous: d.get()?, current: d.get()?, next: d.get()? })
        })
    }
}

/// The keys of all services, as the monitors keep them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceKeys {
    keys: BTreeMap<Service, RotatingKeys>,
}

/// How long tickets are valid, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Tickets for the authentication service itself (`auth_mon_ticket_ttl`).
    pub auth: u32,
    /// All others (`auth_service_ticket_ttl`).
    pub service: u32,
}

impl Default for Lifetimes {
    /// Ceph's: 72 hours and 1 hour.
    fn default() -> Self {
        Self { auth: 72 * 3600, service: 3600 }
    }
}

impl Lifetimes {
    /// The service's.
    pub fn of(self, service: Service) -> u32 {
        if service == Service::Auth { self.auth } else { self.service }
    }
}

impl ServiceKeys {
    /// A service's keys.
    pub fn get(&self, service: Service) -> Option<&RotatingKeys> {
        self.keys.get(&service)
    }

    /// What is to be changed at `now`: services without keys get their first ones, those whose
    /// current key is past its time the next ones. Empty most of the time.
    pub fn due(
        &self,
        now: UTime,
        lifetimes: Lifetimes,
        entropy: &mut dyn Entropy,
    ) -> Vec<(Service, RotatingKeys)> {
        let step = |service: Service| {
            let lifetime = lifetimes.of(service);
            let keys = match self.keys.get(&service) {
                None => Some(RotatingKeys::first(now, lifetime, entropy)),
                Some(keys) => {
                    keys.redated(now, lifetime).or_else(|| keys.rotated(now, lifetime, entropy))
                }
            };
            keys.map(|k| (service, k))
        };
        Service::ALL.into_iter().filter_map(step).collect()
    }

    /// When [`ServiceKeys::due`] will have something; the epoch if at once.
    pub fn next_due(&self) -> UTime {
        let of = |s: Service| self.keys.get(&s).map_or(UTime::ZERO, |k| k.current.expires);
        Service::ALL.into_iter().map(of).min().unwrap_or(UTime::ZERO)
    }

    /// Moves all times by so many nanoseconds, since the clock was set.
    pub fn shift(&mut self, by: i64) {
        self.keys.values_mut().for_each(|k| k.shift(by));
    }

    /// Takes new keys of a service.
    pub fn set(&mut self, service: Service, keys: RotatingKeys) {
        self.keys.insert(service, keys);
    }
}

impl Encode for ServiceKeys {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.list(&self.keys, |o, (service, keys)| {
                o.u32(service.wire());
                o.put(keys);
            });
        });
    }
}

impl Decode for ServiceKeys {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("ServiceKeys", 1, |d, _| {
            let list = d.list(10, |d| {
                let number = d.u32()?;
                let bad = DecodeError::Value { what: "service", value: i64::from(number) };
                Ok((Service::from_wire(number).ok_or(bad)?, d.get()?))
            })?;
            Ok(Self { keys: list.into_iter().collect() })
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::entropy::seeded;

    fn at(sec: u32) -> UTime {
        UTime { sec, nsec: 0 }
    }

    #[test]
    fn keys_rotate_when_due_and_a_ticket_outlives_one_rotation() {
        let mut entropy = seeded(1);
        let k = RotatingKeys::first(at(1000), 60, &mut entropy);
        assert_eq!(k.rotated(at(1059), 60, &mut entropy), None);
        let k2 = k.rotated(at(1060), 60, &mut entropy).unwrap();
        assert_eq!(k2.previous, k.current);
        assert_eq!(k2.current, k.next);
        assert_eq!(k2.next.id, 4);
        // Sealed at 1059 under key 2, valid until 1119; key 2 is known until 1120.
        assert!(k2.ticket_key(2).is_some());
        assert_eq!(k2.rotated(at(1119), 60, &mut entropy), None);
        let k3 = k2.rotated(at(1120), 60, &mut entropy).unwrap();
        assert!(k3.ticket_key(2).is_none());
    }

    #[test]
    fn after_a_long_silence_one_step_is_enough() {
        let mut entropy = seeded(1);
        let k = RotatingKeys::first(at(1000), 60, &mut entropy);
        let k2 = k.rotated(at(900_000), 60, &mut entropy).unwrap();
        assert_eq!(k2.current.expires, at(900_060));
        assert_eq!(k2.rotated(at(900_000), 60, &mut entropy), None);
    }

    /// A clock that showed the future for a while does not end rotation, and costs nobody his
    /// tickets.
    #[test]
    fn a_clock_that_goes_forward_and_back_does_not_end_rotation() {
        let mut entropy = seeded(1);
        let mut keys = ServiceKeys::default();
        let mut step = |keys: &mut ServiceKeys, sec: u32| {
            let due = keys.due(at(sec), Lifetimes::default(), &mut entropy);
            due.into_iter().for_each(|(s, k)| keys.set(s, k));
            keys.get(Service::Osd).unwrap().clone()
        };
        step(&mut keys, 1000);
        let far = step(&mut keys, 1000 + 365 * 86_400);
        let back = step(&mut keys, 1010);
        assert_eq!(
            (back.current.id, back.next.id),
            (far.current.id, far.next.id),
            "no key is lost by it"
        );
        assert_eq!(back.current.expires, at(1010 + 3600));
        assert_eq!(step(&mut keys, 1010 + 3599).current.id, far.current.id);
        assert_eq!(step(&mut keys, 1010 + 3600).current.id, far.next.id, "it goes on");
        keys.shift(-500 * 1_000_000_000);
        assert_eq!(keys.get(Service::Osd).unwrap().current.expires, at(1010 + 7200 - 500));
    }

    #[test]
    fn all_services_get_keys_and_they_survive_encoding() {
        let mut entropy = seeded(1);
        let mut keys = ServiceKeys::default();
        assert_eq!(keys.next_due(), UTime::ZERO);
        for (service, k) in keys.due(at(1), Lifetimes::default(), &mut entropy) {
            keys.set(service, k);
        }
        assert!(keys.due(at(2), Lifetimes::default(), &mut entropy).is_empty());
        assert_eq!(keys.next_due(), at(3601));
        let again: ServiceKeys =
            spirula_encoding::from_slice(&spirula_encoding::to_vec(&keys)).unwrap();
        assert_eq!(again, keys);
        let wiped = keys.get(Service::Osd).unwrap().wiped(at(3), 60, &mut entropy);
        assert!([1, 2, 3].iter().all(|id| wiped.ticket_key(*id).is_none()));
        assert!(!format!("{keys:?}").contains("[1"));
    }
}
