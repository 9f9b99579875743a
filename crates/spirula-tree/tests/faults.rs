//! Failing devices, damaged pages, and readers beside commits.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use spirula_tree::{Damage, PAGE, Tree, TreeError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::*;

fn pairs(n: u32, len: usize) -> Batch {
    (0..n).map(|i| (format!("key {i:08}").into_bytes(), Some(vec![i as u8; len]))).collect()
}

#[test]
fn every_failing_io_fails_the_commit_and_leaves_the_published_state() {
    let (mut dice, mut poisoned, mut survived) = (Dice::new(7), 0, 0);
    for nth in 0.. {
        let space = Memory::new(60);
        let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
        let mut model = Model::new();
        let first = pairs(900, 300);
        tree.commit(&first, |r| space.published(r)).unwrap();
        apply(&mut model, &first);
        let root = tree.root();
        let tree = space.open(&root, 30_000).unwrap();
        let mut batch: Batch =
            (0..40).map(|i| (first[i * 22].0.clone(), Some(dice.value(300_000)))).collect();
        batch.push((b"huge".to_vec(), Some(vec![9; 2 << 20])));
        space.fail_in(Some(nth));
        let result = tree.commit(&batch, |r| space.published(r));
        space.fail_in(None);
        let Err(e) = result else {
            assert!(nth > 40, "only {nth} I/Os");
            break;
        };
        let TreeError::Io { op, .. } = e else { panic!("{e}") };
        assert_same(&tree.snapshot(), &model);
        if op == "read" {
            survived += 1;
            assert_eq!(space.extents(), tree.extents());
            assert_clean(&tree);
            tree.commit(&batch, |r| space.published(r)).unwrap();
            apply(&mut model, &batch);
        } else {
            poisoned += 1;
            let again = tree.commit(&batch, |r| space.published(r));
            assert!(matches!(again, Err(TreeError::Poisoned)));
        }
        assert_same(&tree.snapshot(), &model);
        let reopened = space.open(&tree.root(), 0).unwrap();
        assert_clean(&reopened);
        assert_same(&reopened.snapshot(), &model);
    }
    assert!(poisoned >= 5 && survived >= 20, "{poisoned} {survived}");
}

/// A tree with pages of all kinds, and addresses of all its pages.
fn specimen() -> (std::sync::Arc<Memory>, Tree, Vec<usize>) {
    let space = Memory::new(10);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    space.record();
    let mut batch = pairs(150, 100);
    batch.push((b"overflow".to_vec(), Some(vec![1; 20_000])));
    batch.push((b"wide".to_vec(), Some(vec![1; 5000])));
    tree.commit(&batch, |r| space.published(r)).unwrap();
    let mut pages = Vec::new();
    for op in space.recorded() {
        if let Op::Write { at, bytes } = op {
            pages.extend((at..at + bytes.len()).step_by(PAGE));
        }
    }
    assert_eq!(pages.len() as u64, tree.stats().live_pages);
    (space, tree, pages)
}

#[test]
fn every_flipped_bit_in_a_live_page_is_found() {
    let (space, tree, pages) = specimen();
    let root = tree.root();
    let mut flips = 0;
    let mut dice = Dice::new(1);
    for page in pages {
        // All of the header's first and the page's last bytes, and some of the others.
        for byte in (0..64).chain((64..PAGE - 8).filter(|_| dice.one_in(100))).chain(PAGE - 8..PAGE)
        {
            let flip = |d: &mut [u8]| d[page + byte] ^= 1 << (byte % 8);
            space.edit(flip);
            let found = space.open(&root, 0).map(|t| t.check().problems.len()).unwrap_or(1);
            assert!(found > 0, "byte {byte} of page {page}");
            space.edit(flip);
            flips += 1;
        }
    }
    assert_clean(&space.open(&root, 0).unwrap());
    println!("{flips} flips");
}

#[test]
fn a_rotten_page_of_a_value_that_goes_costs_no_more_than_its_space() {
    let space = Memory::in_dust(24);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    // Much of it, that nothing adjoins.
    tree.commit(&pairs(3000, 400), |r| space.published(r)).unwrap();
    space.record();
    tree.commit(&[(b"a huge one", Some(vec![7; 1200 << 10]))], |r| space.published(r)).unwrap();
    let written: BTreeSet<usize> = (space.recorded().into_iter())
        .flat_map(|op| {
            if let Op::Write { at, bytes } = op {
                (at..at + bytes.len()).step_by(PAGE)
            } else {
                (0..0).step_by(1)
            }
        })
        .collect();
    let (root, image, mut leaks) = (tree.root(), space.image(), 0);
    for page in written {
        space.edit(|d| d[page + 1000] ^= 1);
        // Neither its leaf nor what is above.
        if let Ok(tree) = space.open(&root, 0)
            && tree.get(b"a huge").is_ok()
        {
            tree.commit(&[(b"a huge one", None::<&[u8]>)], |r| space.published(r)).unwrap();
            assert_eq!(tree.get(b"a huge one").unwrap(), None);
            let (leaked, check) = (tree.stats().leaked_pages, tree.check());
            assert!(
                check.problems.iter().all(|p| p.what.contains("nothing refers to it")),
                "{:?}",
                check.problems
            );
            assert_eq!(check.problems.len() as u64, leaked);
            leaks += u64::from(leaked > 0);
            tree.commit(&[(b"another", Some(b"one"))], |r| space.published(r)).unwrap();
        }
        space.edit(|d| d.copy_from_slice(&image));
    }
    assert!(leaks >= 2, "{leaks} list pages");
}

#[test]
fn damage_fails_only_the_reads_that_meet_it_and_is_told_apart() {
    let space = Memory::new(20);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let all = pairs(600, 200);
    space.record();
    tree.commit(&all, |r| space.published(r)).unwrap();
    let writes = space.recorded();
    let Some(Op::Write { at: first, .. }) = writes.first() else { panic!("no write") };
    // The first page written is the first leaf.
    let leaf = *first;
    let sound = space.image()[leaf..leaf + PAGE].to_vec();
    let root = tree.root();
    let damaged = |with: &dyn Fn(&mut [u8])| {
        space.edit(|d| with(&mut d[leaf..leaf + PAGE]));
        let tree = space.open(&root, 0).unwrap();
        let Err(TreeError::Corrupt { at, what }) = tree.get(&all[0].0) else {
            panic!("damage not noticed")
        };
        assert_eq!(at, leaf as u64);
        assert!(tree.get(&all[599].0).unwrap().is_some());
        let problems = tree.check().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        // A commit elsewhere works; one that needs the page does not, and harms nothing.
        assert!(matches!(
            tree.commit(
                &all[..1].iter().map(|(k, _)| (k, None::<&[u8]>)).collect::<Vec<_>>(),
                |_| Ok(())
            ),
            Err(TreeError::Corrupt { .. })
        ));
        space.edit(|d| d[leaf..leaf + PAGE].copy_from_slice(&sound));
        assert_clean(&tree);
        what
    };
    assert_eq!(damaged(&|p| p.fill(0)), Damage::Blank);
    assert_eq!(damaged(&|p| p.fill(7)), Damage::Foreign);
    assert_eq!(damaged(&|p| p[2000] ^= 1), Damage::Rotten);
    assert_eq!(damaged(&|p| p[3584..].fill(0)), Damage::Torn);
    let second = space.image()[leaf + PAGE..leaf + 2 * PAGE].to_vec();
    assert_eq!(damaged(&|p| p.copy_from_slice(&second)), Damage::Misdirected((leaf + PAGE) as u64));
    // The same place in another life of the same tree, and in another tree.
    for (uuid, expected) in [(OPTIONS.uuid, Damage::Stale(1)), ([9; 16], Damage::OtherTree)] {
        let other = Memory::new(20);
        let options = spirula_tree::Options { uuid, ..OPTIONS };
        let twin = Tree::create(other.clone(), &options).unwrap();
        twin.commit(&pairs(600, 201), |_| Ok(())).unwrap();
        let page = other.image()[leaf..leaf + PAGE].to_vec();
        assert_eq!(damaged(&|p| p.copy_from_slice(&page)), expected);
    }
}

#[test]
fn readers_beside_commits_see_one_commit_each() {
    let space = Memory::new(400);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let (stop, scans) = (AtomicBool::new(false), AtomicU64::new(0));
    let round = |n: u32| -> Batch {
        (0..400u32)
            .map(|i| (i.to_be_bytes().to_vec(), Some([&n.to_be_bytes()[..], &[1; 300]].concat())))
            .collect()
    };
    tree.commit(&round(0), |_| Ok(())).unwrap();
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = tree.snapshot();
                    let values: Vec<_> = snapshot.range(b"", None).map(|p| p.unwrap().1).collect();
                    let rounds: BTreeSet<_> = values.iter().map(|v| v[..4].to_vec()).collect();
                    assert_eq!((values.len(), rounds.len()), (400, 1));
                    let one = snapshot.get(&77u32.to_be_bytes()).unwrap().unwrap();
                    assert_eq!(one, values[77]);
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut n = 1;
        while n < 100 || scans.load(Ordering::Relaxed) < 50 {
            tree.commit(&round(n), |_| Ok(())).unwrap();
            n += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_clean(&tree);
}
