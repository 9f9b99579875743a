//! Every crash point of commits, with subsets of unflushed writes, torn at 512 bytes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use spirula_tree::{Root, Tree};
use support::*;

const SECTOR: usize = 512;

/// The image after some of the unflushed writes, some of them torn.
fn persist(durable: &[u8], writes: &[(usize, &[u8])], dice: &mut Dice, how: usize) -> Vec<u8> {
    let mut image = durable.to_vec();
    for (i, (at, bytes)) in writes.iter().enumerate() {
        let sectors = bytes.len() / SECTOR;
        let keep = |s: usize, dice: &mut Dice| match how {
            0 => true,
            1 => false,
            2 => i + 1 < writes.len(),
            3 => i + 1 == writes.len(),
            4 => i + 1 < writes.len() || s < sectors / 2,
            5 => !dice.one_in(3),
            6 => (i + s).is_multiple_of(2),
            _ => dice.one_in(3),
        };
        for s in 0..sectors {
            if keep(s, dice) {
                image[at + s * SECTOR..at + (s + 1) * SECTOR]
                    .copy_from_slice(&bytes[s * SECTOR..(s + 1) * SECTOR]);
            }
        }
    }
    image
}

fn verify(image: Vec<u8>, root: &Root, model: &Model, again: Option<&Batch>) {
    let space = Memory::of(image);
    let tree = space.open(root, 100_000).unwrap();
    assert_clean(&tree);
    assert_same(&tree.snapshot(), model);
    if let Some(batch) = again {
        tree.commit(batch, |r| space.published(r)).unwrap();
        assert_clean(&tree);
        let mut model = model.clone();
        apply(&mut model, batch);
        assert_same(&tree.snapshot(), &model);
    }
}

/// States enumerated.
fn enumerate(seed: u64, keys: usize, commits: usize) -> u64 {
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let space = match seed % 4 {
        2 => Memory::in_pieces(40),
        3 => Memory::in_dust(40),
        _ => Memory::new(40),
    };
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let mut model = Model::new();
    for _ in 0..3 {
        let batch = dice.batch(&model, keys, 70_000);
        tree.commit(&batch, |r| space.published(r)).unwrap();
        apply(&mut model, &batch);
    }
    let mut states = 0;
    let mut root = tree.root();
    for _ in 0..commits {
        let mut durable = space.image();
        let batch = dice.batch(&model, keys, 70_000);
        space.record();
        tree.commit(&batch, |r| space.published(r)).unwrap();
        let mut next = model.clone();
        apply(&mut next, &batch);
        let log = space.recorded();
        let mut unflushed: Vec<(usize, &[u8])> = Vec::new();
        for at in 0..=log.len() {
            for how in 0..9 {
                if unflushed.is_empty() && how > 0 {
                    break;
                }
                let image = persist(&durable, &unflushed, &mut dice, how);
                let again = dice.one_in(4).then_some(&batch);
                verify(image, &root, &model, again);
                states += 1;
            }
            match log.get(at) {
                Some(Op::Write { at, bytes }) => unflushed.push((*at, bytes)),
                Some(Op::Flush) => {
                    durable = persist(&durable, &unflushed, &mut dice, 0);
                    unflushed.clear();
                }
                Some(Op::Publish(r)) => {
                    assert!(unflushed.is_empty(), "published before the flush");
                    (root, model) = (r.clone(), next.clone());
                }
                None => {}
            }
        }
    }
    states
}

#[test]
fn after_every_crash_the_published_state_is_whole() {
    // A soak: TREE_SEEDS=200 cargo test -p spirula-tree --release --test crash
    let seeds = std::env::var("TREE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let states: u64 =
        (0..seeds).map(|seed| enumerate(seed, if seed % 2 == 0 { 5 } else { 60 }, 8)).sum();
    println!("{states} states");
    assert!(states >= 150 * seeds, "{states}");
}

#[test]
fn the_enumeration_notices_a_commit_that_is_published_too_early() {
    let space = Memory::new(40);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let image = space.image();
    tree.commit(&[(b"a", Some(b"b"))], |r| space.published(r)).unwrap();
    let lost = Memory::of(image);
    assert!(lost.open(&tree.root(), 0).is_err(), "none of its writes arrived");
}
