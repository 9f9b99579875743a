//! A cache bounded in bytes, with second-chance eviction: an entry that was used since the
//! last round survives one more, so that a single scan does not empty it.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

struct Entry<V> {
    value: V,
    cost: usize,
    used: bool,
}

/// See the module.
pub(crate) struct Cache<K, V> {
    map: HashMap<K, Entry<V>>,
    /// Every key of `map` once (and keys removed since), oldest first.
    order: VecDeque<K>,
    cost: usize,
    limit: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub fn new(limit: usize) -> Self {
        Self { map: HashMap::new(), order: VecDeque::new(), cost: 0, limit }
    }

    /// Bytes held, as told by the callers of [`Cache::insert`].
    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let e = self.map.get_mut(key)?;
        e.used = true;
        Some(e.value.clone())
    }

    /// Puts a value in, or in place of another, and evicts what is too much.
    pub fn insert(&mut self, key: &K, value: V, cost: usize) {
        self.cost += cost;
        match self.map.get_mut(key) {
            Some(e) => {
                self.cost -= e.cost;
                *e = Entry { value, cost, used: true };
            }
            None => {
                self.map.insert(key.clone(), Entry { value, cost, used: false });
                self.order.push_back(key.clone());
            }
        }
        while self.cost > self.limit {
            let Some(oldest) = self.order.pop_front() else { break };
            match self.map.get_mut(&oldest) {
                Some(e) if e.used => {
                    e.used = false;
                    self.order.push_back(oldest);
                }
                Some(e) => {
                    self.cost -= e.cost;
                    self.map.remove(&oldest);
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_stays_within_its_limit_and_keeps_what_is_used() {
        let mut c = Cache::new(100);
        for i in 0..1000u32 {
            c.insert(&i, i, 10);
            assert!(c.cost() <= 100);
            assert_eq!(c.get(&0), Some(0));
        }
        assert_eq!(c.get(&999), Some(999));
        assert_eq!(c.get(&5), None);
        c.insert(&0, 7, 101);
        assert!(c.cost() <= 100);
        assert_eq!(c.order.len(), c.map.len());
    }
}
