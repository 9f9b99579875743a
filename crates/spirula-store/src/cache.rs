//! A cache bounded in bytes that a scan does not empty (S3-FIFO): what is new waits in a
//! small queue and moves to the main one only if it was used there; what left the small
//! queue unused is remembered by its hash for a while, and goes to the main queue at once
//! if it comes again.

use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};

/// Uses remembered of an entry.
const MOST_USES: u8 = 3;

struct Entry<V> {
    value: V,
    cost: usize,
    uses: u8,
    main: bool,
}

/// See the module.
pub(crate) struct Cache<K, V> {
    map: HashMap<K, Entry<V>>,
    /// Keys of new entries, oldest first. Each key of `map` is in one of the queues once.
    small: VecDeque<K>,
    main: VecDeque<K>,
    /// Hashes of what left `small`, oldest first, and the same as a set.
    gone: VecDeque<u64>,
    gone_set: HashSet<u64>,
    hasher: RandomState,
    cost: usize,
    small_cost: usize,
    limit: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// Memory of an entry beside what its value refers to: key in map and queue, the map's
    /// slack, a share of the memory of what is gone.
    const OVERHEAD: usize = 3 * size_of::<K>() + 2 * size_of::<Entry<V>>() + 32;

    pub fn new(limit: usize) -> Self {
        Self {
            map: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            gone: VecDeque::new(),
            gone_set: HashSet::new(),
            hasher: RandomState::new(),
            cost: 0,
            small_cost: 0,
            limit,
        }
    }

    /// Bytes held, given what callers of [`Cache::insert`] say.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Number of values held.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Lets go of everything, and keeps the limit.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Changes the limit; the next insertion evicts what is then too much.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let e = self.map.get_mut(key)?;
        e.uses = (e.uses + 1).min(MOST_USES);
        Some(e.value.clone())
    }

    /// Puts a value in place of another one of that key, as [`Cache::insert`] does; does nothing
    /// and says so if there is none. For what nobody has asked for yet: it comes in when somebody
    /// does.
    pub fn refresh(&mut self, key: &K, value: &V, cost: usize) -> bool {
        let Some(e) = self.map.get_mut(key) else { return false };
        let cost = cost + Self::OVERHEAD;
        self.cost = self.cost + cost - e.cost;
        if !e.main {
            self.small_cost = self.small_cost + cost - e.cost;
        }
        *e = Entry { value: value.clone(), cost, uses: (e.uses + 1).min(MOST_USES), main: e.main };
        self.evict();
        true
    }

    /// Puts a value in, or in place of another, and evicts what is too much. `cost`: bytes
    /// that key and value refer to.
    pub fn insert(&mut self, key: &K, value: V, cost: usize) {
        if self.refresh(key, &value, cost) {
            return;
        }
        let cost = cost + Self::OVERHEAD;
        self.cost += cost;
        let main = !self.gone_set.is_empty() && self.gone_set.remove(&self.hasher.hash_one(key));
        self.map.insert(key.clone(), Entry { value, cost, uses: 0, main });
        if main {
            self.main.push_back(key.clone());
        } else {
            self.small.push_back(key.clone());
            self.small_cost += cost;
        }
        self.evict();
    }

    fn evict(&mut self) {
        while self.cost > self.limit {
            let from_small = self.small_cost * 10 > self.limit || self.main.is_empty();
            if !(if from_small { self.evict_small() } else { self.evict_main() }) {
                break;
            }
        }
    }

    fn evict_small(&mut self) -> bool {
        let Some(key) = self.small.pop_front() else { return false };
        let Some(e) = self.map.get_mut(&key) else { return true };
        self.small_cost -= e.cost;
        if e.uses > 0 {
            e.uses = 0;
            e.main = true;
            self.main.push_back(key);
            return true;
        }
        self.cost -= e.cost;
        self.map.remove(&key);
        let hash = self.hasher.hash_one(&key);
        if self.gone_set.insert(hash) {
            self.gone.push_back(hash);
        }
        while self.gone.len() > self.map.len() {
            if let Some(old) = self.gone.pop_front() {
                self.gone_set.remove(&old);
            }
        }
        true
    }

    fn evict_main(&mut self) -> bool {
        let Some(key) = self.main.pop_front() else { return false };
        let Some(e) = self.map.get_mut(&key) else { return true };
        if e.uses > 0 {
            e.uses -= 1;
            self.main.push_back(key);
        } else {
            self.cost -= e.cost;
            self.map.remove(&key);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: usize) -> Cache<u32, u32> {
        Cache::new(entries * (Cache::<u32, u32>::OVERHEAD + 10))
    }

    #[test]
    fn cache_stays_within_its_limit_and_keeps_what_is_used() {
        let mut c = cache(10);
        for i in 0..1000u32 {
            c.insert(&i, i, 10);
            assert!(c.cost() <= c.limit);
            assert_eq!(c.get(&0), Some(0));
            assert_eq!(c.small.len() + c.main.len(), c.map.len());
            assert!(c.gone.len() <= c.map.len() + 1 && c.gone_set.len() <= c.gone.len());
        }
        assert_eq!(c.get(&5), None);
        c.insert(&0, 7, c.limit);
        assert!(c.cost() <= c.limit);
    }

    #[test]
    fn what_is_refreshed_is_changed_where_it_is_known_and_takes_no_place_where_not() {
        let mut c = cache(10);
        assert!(!c.refresh(&1, &7, 10) && c.get(&1).is_none() && c.cost() == 0);
        c.insert(&1, 7, 10);
        assert!(c.refresh(&1, &8, 30) && c.get(&1) == Some(8));
        assert_eq!((c.cost(), c.small_cost), (Cache::<u32, u32>::OVERHEAD + 30, c.cost()));
        assert!(c.refresh(&1, &9, c.limit) && c.cost() <= c.limit);
    }

    #[test]
    fn a_scan_leaves_what_is_used_alone() {
        let mut c = cache(1000);
        for round in 0..3 {
            for i in 0..500u32 {
                if c.get(&i).is_none() {
                    c.insert(&i, i, 10);
                }
            }
            if round == 1 {
                // Ten times the cache, each once.
                for i in 10_000..20_000 {
                    c.insert(&i, i, 10);
                }
            }
        }
        assert_eq!((0..500u32).filter(|i| c.get(i).is_some()).count(), 500);
    }

    #[test]
    fn what_comes_again_soon_after_it_went_stays() {
        let mut c = cache(100);
        for i in 0..150u32 {
            c.insert(&i, i, 10);
        }
        assert_eq!(c.get(&20), None);
        c.insert(&20, 20, 10);
        for i in 1000..1095u32 {
            c.insert(&i, i, 10);
        }
        assert_eq!(c.get(&20), Some(20));
    }
}
