//! Who asks for a key that is not there reads its leaf once, not each time.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use spirula_tree::Tree;
use support::*;

fn key(n: usize) -> Vec<u8> {
    format!("key {n:08}").into_bytes()
}

#[test]
fn absent_keys_are_told_from_leaves_that_are_not_in_memory() {
    const KEYS: usize = 20_000;
    let memory = Memory::new(60);
    let tree = Tree::create(memory.clone(), &OPTIONS).unwrap();
    let pairs: Batch = (0..KEYS).map(|n| (key(2 * n), Some(vec![7; 100]))).collect();
    tree.commit(&pairs, |r| memory.published(r)).unwrap();
    // Half of the leaves fit.
    tree.set_cache_budget(1500 << 10);
    let absent = |step: usize| {
        let before = memory.ios();
        for n in (0..KEYS).step_by(step) {
            assert_eq!(tree.get(&key(2 * n + 1)).unwrap(), None);
        }
        memory.ios() - before
    };
    let (first, second) = (absent(11), absent(11));
    assert!(first > 300 && second * 10 < first, "{first} reads, then {second}");
    // Keys that come later are found, whether their leaves are in memory or not; those that go are
    // not.
    for round in 0..4 {
        let n = |i: usize| (i * 37 + round) % KEYS;
        let changes: Batch = (0..300)
            .flat_map(|i| [(key(2 * n(i) + 1), Some(vec![8; 50])), (key(2 * n(i)), None)])
            .collect();
        tree.commit(&changes, |r| memory.published(r)).unwrap();
        for i in 0..300 {
            assert!(
                tree.get(&key(2 * n(i) + 1)).unwrap().is_some()
                    && tree.get(&key(2 * n(i))).unwrap().is_none()
            );
        }
    }
    assert_clean(&tree);
}
