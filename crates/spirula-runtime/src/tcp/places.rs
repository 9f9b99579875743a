//! Places for the large requests of a monitor's or manager's clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many of them may be on their way in at a time, whoever sends them; and of one user at most
/// half as many, so that one who lets his requests trickle in over many connections holds up
/// himself alone.
#[derive(Debug)]
pub(crate) struct LargePlaces {
    most: usize,
    taken: Mutex<BTreeMap<String, usize>>,
}

/// One of them; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct LargePlace {
    all: Arc<LargePlaces>,
    user: String,
}

impl LargePlaces {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for this user, if there is one for him.
    pub fn take(self: &Arc<Self>, user: &str) -> Option<LargePlace> {
        let mut taken = self.taken();
        let of_user = taken.get(user).copied().unwrap_or(0);
        if of_user >= (self.most / 2).max(1) || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(user.to_owned(), of_user + 1);
        Some(LargePlace { all: self.clone(), user: user.to_owned() })
    }
}

impl Drop for LargePlace {
    fn drop(&mut self) {
        let mut taken = self.all.taken();
        match taken.get_mut(&self.user) {
            Some(n) if *n > 1 => *n -= 1,
            _ => drop(taken.remove(&self.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_has_half_of_the_places() {
        let all = LargePlaces::new(4);
        let greedy: Vec<_> = (0..9).filter_map(|_| all.take("greedy")).collect();
        assert_eq!(greedy.len(), 2);
        let others = [all.take("a"), all.take("b")];
        assert!(others.iter().all(Option::is_some) && all.take("c").is_none(), "all are taken");
        drop(greedy);
        assert!(all.take("c").is_some() && all.take("greedy").is_some());
        drop(others);
        assert!(all.taken().is_empty(), "{all:?}");
        let one = LargePlaces::new(1);
        assert!(one.take("a").is_some_and(|_place| one.take("b").is_none()));
    }
}
