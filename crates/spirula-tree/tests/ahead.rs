//! Who reads a range is not waited for at each of its leaves: the space is told which ones come.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use spirula_tree::{PAGE, PageSpace, Tree};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use support::*;

/// What a space was told of and has not been asked for yet, and the reads it was not told of.
#[derive(Default)]
struct Seen {
    told: BTreeSet<u64>,
    untold: Vec<u64>,
    read: usize,
}

struct Told {
    memory: Arc<Memory>,
    seen: Mutex<Seen>,
}

impl PageSpace for Told {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut seen = self.seen.lock().unwrap();
        seen.read += 1;
        if !seen.told.remove(&at) {
            seen.untold.push(at);
        }
        self.memory.read(at, buf)
    }

    fn soon(&self, pages: &[(u64, usize)]) {
        let mut seen = self.seen.lock().unwrap();
        for (at, bytes) in pages {
            assert!(*bytes > 0 && bytes.is_multiple_of(PAGE) && at.is_multiple_of(PAGE as u64));
            assert!(seen.told.insert(*at), "told twice of the leaf at {at}");
        }
    }

    fn write(&self, at: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.memory.write(at, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn grow(&self, adjoining: usize) -> Vec<(u64, u64)> {
        self.memory.grow(adjoining)
    }

    fn release(&self, at: u64, bytes: u64) {
        self.memory.release(at, bytes);
    }
}

fn key(n: usize) -> Vec<u8> {
    format!("key {n:08}").into_bytes()
}

#[test]
fn the_space_is_told_of_the_leaves_of_a_range_before_they_are_read() {
    const KEYS: usize = 60_000;
    let space = Arc::new(Told { memory: Memory::new(60), seen: Mutex::default() });
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let pairs: Batch = (0..KEYS).map(|n| (key(n), Some(vec![7; 100]))).collect();
    tree.commit(&pairs, |_| Ok(())).unwrap();
    let stats = tree.stats();
    assert!(stats.levels == 3 && stats.leaf_pages > 1500, "{stats:?}");
    let scan = |from: usize, until: Option<usize>, most: usize| {
        tree.drop_cache();
        *space.seen.lock().unwrap() = Seen::default();
        let until = until.map(key);
        let found = tree.range(&key(from), until.as_deref()).take(most).map(Result::unwrap).count();
        (found, std::mem::take(&mut *space.seen.lock().unwrap()))
    };
    // All of it: but for the first leaf and the nodes above none is waited for alone.
    let (found, seen) = scan(0, None, KEYS);
    assert_eq!(found, KEYS);
    assert!(seen.told.is_empty(), "told of what nobody reads");
    assert!(
        seen.untold.len() <= 1 + stats.inner_pages as usize,
        "{} reads of {}",
        seen.untold.len(),
        seen.read
    );
    // A part: of what is behind its end nobody is told.
    let (found, seen) = scan(20_000, Some(21_000), KEYS);
    assert_eq!(found, 1000);
    assert!(
        seen.told.is_empty() && seen.read > 25,
        "{} pages read, {} told for nothing",
        seen.read,
        seen.told.len()
    );
    assert!(seen.untold.len() <= 5, "{} reads of {}", seen.untold.len(), seen.read);
    // A page of a listing, whose end is not known: at most as much again as it reads.
    let (found, seen) = scan(30_000, None, 1000);
    assert_eq!(found, 1000);
    assert!(
        seen.untold.len() <= 5 && seen.told.len() <= seen.read,
        "{} for nothing, {} read",
        seen.told.len(),
        seen.read
    );
    // Who wants little reads little.
    let (found, seen) = scan(40_000, None, 3);
    assert!(
        found == 3 && seen.told.len() <= 8 && seen.read <= 5,
        "{} told, {} read",
        seen.told.len(),
        seen.read
    );
}
