//! Bounds on connections: how many a listener has, and how many of them, in all and from one
//! place, may be strangers that have not authenticated yet.
//!
//! A stranger costs a task, a receive buffer that grows with what it sends, and at most
//! [`spirula_messenger::Limits::handshake`] bytes of what was said; so many strangers together
//! cost little, they are sent away after the time of a handshake, and one place cannot take all
//! the room.
//!
//! All listeners of a process share its file descriptors, which its stores need, too. So there is a
//! bound for all together ([`set_connections`]), and its last part is not for clients: however many
//! of these come, the cluster's own daemons find a place. Strangers have a share of their own of
//! it, in which nobody else's place is.

use crate::limits;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The part of a process's connections that clients may not have.
const OF_DAEMONS: usize = 8;

/// The part of a process's connections that strangers may have, all listeners' together. Where few
/// files may be open, a listener's own bound for them ([`limits::STRANGERS`]) is more than all
/// there are.
const OF_STRANGERS: usize = 4;

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Total {
    open: AtomicUsize,
    strangers: AtomicUsize,
    most: AtomicUsize,
}

/// Those of this one.
static ALL: Total = Total::new(usize::MAX);

/// Sets how many connections all listeners of this process may have together.
pub fn set_connections(most: usize) {
    ALL.most.store(most, Ordering::Relaxed);
}

impl Total {
    const fn new(most: usize) -> Self {
        Self {
            open: AtomicUsize::new(0),
            strangers: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
        }
    }

    /// Counts one more, a stranger yet.
    ///
    /// # Errors
    /// When there is no place for it, and why.
    fn enter(&self) -> Result<(), &'static str> {
        let most = self.most.load(Ordering::Relaxed);
        let below = |most| move |n| (n < most).then_some(n + 1);
        let strangers = below((most / OF_STRANGERS).max(1));
        if self.strangers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, strangers).is_err() {
            return Err(
                "too many connections have not authenticated yet, for as few files as this process \
                    may have open ('ulimit -n')",
            );
        }
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below(most)).is_err() {
            self.known();
            return Err("this process may have no more files open ('ulimit -n')");
        }
        Ok(())
    }

    /// One of the strangers is none any more.
    fn known(&self) {
        self.strangers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Are there so many that what is left is not for clients?
    fn is_full_of_clients(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        self.open.load(Ordering::Relaxed) > most - most / OF_DAEMONS
    }
}

#[derive(Debug, Default)]
struct Counts {
    open: usize,
    strangers: usize,
    by_place: HashMap<IpAddr, usize>,
}

/// Counts the connections of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Door(Arc<Mutex<Counts>>, &'static Total);

impl Default for Door {
    fn default() -> Self {
        Self(Arc::default(), &ALL)
    }
}

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
        if c.by_place.get(&place).is_some_and(|here| *here >= limits::STRANGERS_PER_PLACE) {
            return Err("too many connections from there have not authenticated yet");
        }
        self.1.enter()?;
        *c.by_place.entry(place).or_default() += 1;
        c.open += 1;
        c.strangers += 1;
        drop(c);
        Ok(Guest { door: self.clone(), stranger: Some(place) })
    }
}

impl Guest {
    /// Is there a place for it, which is a client?
    pub fn has_place_as_client(&self) -> bool {
        !self.door.1.is_full_of_clients()
    }

    /// It is no stranger any more.
    pub fn known(&mut self) {
        if let Some(place) = self.stranger.take() {
            self.door.1.known();
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
        self.door.1.open.fetch_sub(1, Ordering::Relaxed);
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
        let mut here: Vec<_> =
            (0..limits::STRANGERS_PER_PLACE).map(|_| door.enter(ip("10.0.0.1")).unwrap()).collect();
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
    fn all_listeners_together_have_a_bound_and_its_last_part_is_for_daemons() {
        static FEW: Total = Total::new(16);
        let doors = [Door(Arc::default(), &FEW), Door(Arc::default(), &FEW)];
        let mut guests = Vec::new();
        for n in 0..16 {
            let mut guest = doors[n % 2].enter(ip("10.0.0.1")).unwrap();
            assert_eq!(guest.has_place_as_client(), n < 14, "{n}");
            guest.known();
            guests.push(guest);
        }
        assert!(doors[0].enter(ip("10.0.0.1")).unwrap_err().contains("files"));
        guests.truncate(3);
        assert!(doors[1].enter(ip("10.0.0.1")).unwrap().has_place_as_client());
        drop(guests);
        assert_eq!(
            FEW.open.load(Ordering::Relaxed),
            0,
            "none is counted twice, and none that was refused"
        );
    }

    /// 512 of two places each would else be all that a process with 1,024 files may have.
    #[test]
    fn strangers_leave_most_places_to_others() {
        static FEW: Total = Total::new(64);
        let doors = [Door(Arc::default(), &FEW), Door(Arc::default(), &FEW)];
        let mut strangers: Vec<_> = (0..100u32)
            .map_while(|n| doors[n as usize % 2].enter(IpAddr::V4(n.into())).ok())
            .collect();
        assert_eq!(strangers.len(), 16);
        // Whoever proves who he is makes room for the next.
        let mut known = Vec::new();
        for _ in 0..40 {
            let mut guest = strangers.pop().unwrap();
            guest.known();
            known.push(guest);
            strangers.push(doors[0].enter(ip("10.0.0.1")).unwrap());
        }
        assert!(known.iter().all(Guest::has_place_as_client));
        drop((strangers, known));
        assert_eq!(
            (FEW.open.load(Ordering::Relaxed), FEW.strangers.load(Ordering::Relaxed)),
            (0, 0)
        );
    }

    #[test]
    fn a_network_is_one_place_with_ipv6_and_all_strangers_have_a_bound() {
        assert_eq!(place(ip("fd00:1:2:3:4::1")), place(ip("fd00:1:2:3:ffff::2")));
        assert_ne!(place(ip("fd00:1:2:3::1")), place(ip("fd00:1:2:4::1")));
        let door = Door::default();
        let all: Vec<_> =
            (0..20_000u32).map_while(|i| door.enter(IpAddr::V4(i.into())).ok()).collect();
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
