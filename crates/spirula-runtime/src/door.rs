//! Bounds on connections: how many a listener has, and how many of them, in all and from one
//! place, may be strangers that have not authenticated yet.
//!
//! A stranger costs a task, a receive buffer that grows with what it sends, and at most
//! [`spirula_messenger::Limits::handshake`] bytes of what was said; so many strangers together
//! cost little, they are sent away after the time of a handshake, and one place cannot take all
//! the room.

use crate::limits;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
struct Counts {
    open: usize,
    strangers: usize,
    by_place: HashMap<IpAddr, usize>,
}

/// Counts the connections of one listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door(Arc<Mutex<Counts>>);

/// A connection that was let through the door; counted until dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    door: Door,
    stranger: Option<IpAddr>,
}

/// Where an address belongs: one host, or with IPv6, where a host has as many addresses as it
/// likes, one network.
fn place(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(a) => IpAddr::V6((a.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Door {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a new connection through.
    ///
    /// # Errors
    /// When there are too many, and of what.
    pub fn enter(&self, from: IpAddr) -> Result<Guest, &'static str> {
        let place = place(from);
        let mut c = self.counts();
        if c.open >= limits::CONNECTIONS {
            return Err("too many connections are open");
        }
        if c.strangers >= limits::STRANGERS {
            return Err("too many connections have not authenticated yet");
        }
        let here = c.by_place.entry(place).or_default();
        if *here >= limits::STRANGERS_PER_PLACE {
            return Err("too many connections from there have not authenticated yet");
        }
        *here += 1;
        c.open += 1;
        c.strangers += 1;
        drop(c);
        Ok(Guest { door: self.clone(), stranger: Some(place) })
    }
}

impl Guest {
    /// It is no stranger any more.
    pub fn known(&mut self) {
        if let Some(place) = self.stranger.take() {
            let mut c = self.door.counts();
            c.strangers -= 1;
            if let Some(n) = c.by_place.get_mut(&place) {
                *n -= 1;
                if *n == 0 {
                    c.by_place.remove(&place);
                }
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.known();
        self.door.counts().open -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    #[test]
    fn strangers_of_one_place_do_not_take_the_room_of_others() {
        let door = Door::default();
        let mut here: Vec<_> = (0..limits::STRANGERS_PER_PLACE).map(|_| door.enter(ip("10.0.0.1")).unwrap()).collect();
        assert!(door.enter(ip("10.0.0.1")).unwrap_err().contains("from there"));
        assert!(door.enter(ip("::ffff:10.0.0.1")).is_err(), "the same host");
        let _other = door.enter(ip("10.0.0.2")).unwrap();
        here[0].known();
        let _one_more = door.enter(ip("10.0.0.1")).unwrap();
        assert!(door.enter(ip("10.0.0.1")).is_err());
        drop(here);
        let c = door.counts();
        assert_eq!((c.open, c.strangers, c.by_place.len()), (2, 2, 2));
    }

    #[test]
    fn a_network_is_one_place_with_ipv6_and_all_strangers_have_a_bound() {
        assert_eq!(place(ip("fd00:1:2:3:4::1")), place(ip("fd00:1:2:3:ffff::2")));
        assert_ne!(place(ip("fd00:1:2:3::1")), place(ip("fd00:1:2:4::1")));
        let door = Door::default();
        let all: Vec<_> = (0..20_000u32).map_while(|i| door.enter(IpAddr::V4(i.into())).ok()).collect();
        assert_eq!(all.len(), limits::STRANGERS);
        drop(all);
        assert_eq!(door.counts().open, 0);
        // Who is known does not count as a stranger; the listener's own bound remains.
        let mut known = Vec::new();
        while let Ok(mut g) = door.enter(ip("10.0.0.1")) {
            g.known();
            known.push(g);
        }
        assert_eq!(known.len(), limits::CONNECTIONS);
    }
}
