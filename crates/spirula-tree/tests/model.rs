//! Random commits against a `BTreeMap`, with tiny caches, few chunks and huge values.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use spirula_tree::{KEY_MAX, Options, Tree, TreeError, VALUE_MAX};
use std::ops::Bound;
use support::*;

fn probe(tree: &Tree, model: &Model, dice: &mut Dice, keys: usize) {
    for _ in 0..30 {
        let key = dice.key(keys * 4);
        assert_eq!(tree.get(&key).unwrap().as_deref(), model.get(&key).map(Vec::as_slice));
        let before =
            model.range::<Vec<u8>, _>((Bound::Unbounded, Bound::Excluded(&key))).next_back();
        let found = tree.snapshot().last_before(Some(&key)).unwrap();
        assert_eq!(
            found.as_ref().map(|(k, v)| (&k[..], &v[..])),
            before.map(|(k, v)| (&k[..], &v[..]))
        );
        let until = dice.key(keys * 4);
        let got: Vec<_> = tree.range(&key, Some(&until)).map(Result::unwrap).collect();
        let expected: Vec<_> =
            if key < until { model.range(key..until).collect() } else { Vec::new() };
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|((k, v), (mk, mv))| k == mk && v == mv));
    }
    let last = tree.snapshot().last_before(None).unwrap();
    assert_eq!(last.map(|(k, _)| k.to_vec()), model.keys().next_back().cloned());
}

/// Every second seed has a space in pieces, every fourth one without two pages that adjoin.
fn run(seed: u64, chunks: usize, cache: usize, keys: usize, huge: usize, commits: usize) {
    println!("seed {seed}: {chunks} chunks, {cache} bytes of cache, {keys} keys");
    let mut dice = Dice::new(seed);
    let space = match seed % 4 {
        1 => Memory::in_pieces(chunks),
        3 => Memory::in_dust(chunks),
        _ => Memory::new(chunks),
    };
    let mut tree = Tree::create(space.clone(), &Options { cache, ..OPTIONS }).unwrap();
    let mut model = Model::new();
    let mut held = Vec::new();
    let mut full = 0;
    for _ in 0..commits {
        let batch = dice.batch(&model, keys, huge);
        let key = |dice: &mut Dice| dice.key(keys * 4);
        let ranges: Vec<_> = (0..dice.below(12).saturating_sub(8))
            .map(|_| (key(&mut dice), key(&mut dice)))
            .collect();
        match tree.commit_without(&batch, &ranges, |root| space.published(root)) {
            Ok(()) => {
                model.retain(|k, _| !ranges.iter().any(|(from, until)| from <= k && k < until));
                apply(&mut model, &batch);
            }
            Err(TreeError::NoSpace) => full += 1,
            Err(e) => panic!("{e}"),
        }
        assert_clean(&tree);
        assert_eq!(space.extents(), tree.extents());
        assert!(tree.stats().cache_bytes <= cache as u64);
        assert_same(&tree.snapshot(), &model);
        probe(&tree, &model, &mut dice, keys);
        if dice.one_in(4) {
            held.push((tree.snapshot(), model.clone()));
        }
        if dice.one_in(3) && !held.is_empty() {
            let (s, model) = held.swap_remove(dice.below(held.len()));
            assert_same(&s, &model);
        }
        if dice.one_in(5) {
            held.clear();
            let root = spirula_tree::Root::decode(&tree.root().encode()).unwrap();
            assert_eq!(root, tree.root());
            tree = space.open(&root, cache).unwrap();
        }
    }
    held.clear();
    // Emptying needs little space, and leaves next to none taken.
    let keys: Vec<_> = model.keys().cloned().collect();
    for some in keys.chunks(20) {
        let batch: Batch = some.iter().map(|k| (k.clone(), None)).collect();
        if let Err(e) = tree.commit(&batch, |root| space.published(root)) {
            assert!(matches!(e, TreeError::NoSpace) && full > 0, "{e}");
            return;
        }
    }
    assert_eq!(tree.stats().keys, 0);
    assert_eq!(tree.stats().levels, 0);
    for _ in 0..3 {
        tree.commit::<&[u8], &[u8], _>(&[], |root| space.published(root)).unwrap();
    }
    assert_clean(&tree);
    assert!(tree.stats().space_bytes <= 4 * CHUNK as u64, "{:?}", tree.stats());
}

#[test]
fn random_commits_do_what_a_map_does() {
    for seed in 0..6 {
        run(seed, 200, [0, 20_000, 400_000][seed as usize % 3], 60, 300_000, 25);
    }
}

#[test]
fn random_commits_with_many_keys_do_what_a_map_does() {
    for seed in 100..102 {
        run(seed, 400, 1 << 20, 1500, 10_000, 12);
    }
}

#[test]
fn a_commit_without_space_changes_nothing_and_works_after_growing() {
    for seed in 200..204 {
        run(seed, 3 + seed as usize % 4, 50_000, 60, 100_000, 40);
    }
    let space = Memory::new(1);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let small: Batch = vec![(b"a".to_vec(), Some(b"1".to_vec()))];
    tree.commit(&small, |r| space.published(r)).unwrap();
    let before = tree.root();
    let big: Batch = vec![(b"b".to_vec(), Some(vec![7; 1 << 20]))];
    assert!(matches!(tree.commit(&big, |r| space.published(r)), Err(TreeError::NoSpace)));
    assert_eq!(tree.root(), before);
    space.add_chunks(8);
    tree.commit(&big, |r| space.published(r)).unwrap();
    assert_eq!(tree.get(b"b").unwrap().unwrap(), vec![7; 1 << 20]);
    assert_clean(&tree);
}

/// What grows by single pages needs nothing that adjoins, but for keys that are long.
#[test]
fn a_tree_grows_in_single_pages_and_gives_them_back() {
    let space = Memory::in_pieces(120);
    let free = space.free_pages();
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let mut model = Model::new();
    for round in 0..40u32 {
        let lengths = [30, 250, 2050, 3000, 3584, 4096, 5000, 20_000];
        let batch: Batch = (0..60u32)
            .map(|i| {
                (
                    format!("key {:05}", (i * 97 + round * 31) % 800).into_bytes(),
                    lengths[i as usize % 8],
                )
            })
            .map(|(key, n)| (key, Some(vec![round as u8; n])))
            .collect();
        let batch: Batch =
            batch.into_iter().collect::<std::collections::BTreeMap<_, _>>().into_iter().collect();
        tree.commit(&batch, |r| space.published(r))
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        apply(&mut model, &batch);
    }
    assert_same(&tree.snapshot(), &model);
    assert_clean(&tree);
    let s = tree.stats();
    assert!(s.live_pages > 700 && s.space_bytes / 4096 <= 2 * s.live_pages + 600, "{s:?}");
    let all: Batch = model.keys().map(|k| (k.clone(), None)).collect();
    tree.commit(&all, |r| space.published(r)).unwrap();
    for _ in 0..3 {
        tree.commit::<&[u8], &[u8], _>(&[], |r| space.published(r)).unwrap();
    }
    assert!(free - space.free_pages() <= 260, "{} pages not given back", free - space.free_pages());
}

/// Long keys and values of every length are stored where no two free pages adjoin, found
/// again after an opening, and go without a trace.
/// Keys of every length up to the limit, some of which differ in their last byte only.
fn insert_long_keys(model: &mut Model) {
    for n in [1, 4000, 20_000, KEY_MAX - 1, KEY_MAX] {
        for last in 0..5 {
            model.insert([&vec![b'k'; n - 1][..], &[last]].concat(), vec![last; 6144]);
        }
        model.insert([&vec![n as u8; n - 1][..], b"x"].concat(), vec![1; 6144]);
    }
}

#[test]
fn no_node_needs_pages_that_adjoin() {
    let space = Memory::in_dust(2600);
    let free = space.free_pages();
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let mut model = Model::new();
    for n in [
        3000,
        4037,
        8132,
        262_084,
        1 << 20,
        3 << 19,
        (3 << 19) + 9000,
        5 << 20,
        40 << 20,
        VALUE_MAX,
    ] {
        model.insert(format!("{n:09}").into_bytes(), (0..n).map(|i| (i / 4001) as u8).collect());
    }
    insert_long_keys(&mut model);
    let batch: Batch = model.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    tree.commit(&batch, |r| space.published(r)).unwrap();
    assert_same(&tree.snapshot(), &model);
    assert_clean(&tree);
    let root = spirula_tree::Root::decode(&tree.root().encode()).unwrap();
    drop(tree);
    let tree = space.open(&root, 1 << 20).unwrap();
    // Some change, some go.
    let batch: Batch = model
        .keys()
        .step_by(2)
        .map(|k| (k.clone(), (k.len() > 10).then(|| vec![9; 100_000])))
        .collect();
    tree.commit(&batch, |r| space.published(r)).unwrap();
    apply(&mut model, &batch);
    assert_same(&tree.snapshot(), &model);
    assert_clean(&tree);
    let all: Batch = model.keys().map(|k| (k.clone(), None)).collect();
    tree.commit(&all, |r| space.published(r)).unwrap();
    for _ in 0..3 {
        tree.commit::<&[u8], &[u8], _>(&[], |r| space.published(r)).unwrap();
    }
    assert_clean(&tree);
    assert!(free - space.free_pages() <= 260, "{} pages not given back", free - space.free_pages());
}

#[test]
fn a_range_of_keys_goes_in_one_commit_and_is_not_written() {
    let space = Memory::new(400);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let mut model = Model::new();
    for n in 0..20_000u32 {
        model.insert(
            format!("{n:09}").into_bytes(),
            vec![n as u8; if n % 1000 == 0 { 20_000 } else { 50 }],
        );
    }
    let batch: Batch = model.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    tree.commit(&batch, |r| space.published(r)).unwrap();
    let before = tree.stats().written_bytes;
    // Overlapping and adjoining ranges, one upside down, and what is set anew within them.
    let ranges = [
        ("000005000", "000012000"),
        ("000000100", "000005000"),
        ("000011000", "000019900"),
        ("2", "1"),
    ];
    let again: Batch = vec![
        (b"000007000".to_vec(), Some(b"new".to_vec())),
        (b"000008001".to_vec(), model.get(&b"000008001"[..]).cloned()),
        (b"000000099".to_vec(), None),
    ];
    tree.commit_without(&again, &ranges, |r| space.published(r)).unwrap();
    model.retain(|k, _| !(b"000000100"[..] <= **k && **k < b"000019900"[..]));
    apply(&mut model, &again);
    assert_same(&tree.snapshot(), &model);
    assert_clean(&tree);
    assert_eq!(tree.stats().keys, model.len() as u64);
    assert!(
        tree.stats().written_bytes - before < 60 << 10,
        "{}",
        tree.stats().written_bytes - before
    );
    tree.commit_without(&[] as &[(&[u8], Option<&[u8]>)], &[("", "9")], |r| space.published(r))
        .unwrap();
    assert_eq!((tree.stats().keys, tree.stats().levels), (0, 0));
    assert_clean(&tree);
}

#[test]
fn values_and_keys_of_every_length_up_to_the_limits_come_back() {
    let space = Memory::new(1000);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let mut model = Model::new();
    for n in [
        0,
        1,
        3000,
        4031,
        4032,
        4036,
        4037,
        6143,
        6144,
        6145,
        8132,
        262_084,
        262_085,
        1 << 20,
        VALUE_MAX,
    ] {
        model.insert(format!("{n:09}").into_bytes(), vec![n as u8; n]);
    }
    insert_long_keys(&mut model);
    let batch: Batch = model.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    tree.commit(&batch, |r| space.published(r)).unwrap();
    assert_same(&tree.snapshot(), &model);
    assert_clean(&tree);
    let refused = |k: usize, v: usize| tree.commit(&[(vec![1; k], Some(vec![1; v]))], |_| Ok(()));
    assert!(matches!(refused(KEY_MAX + 1, 0), Err(TreeError::TooLarge { what: "key", .. })));
    assert!(matches!(refused(1, VALUE_MAX + 1), Err(TreeError::TooLarge { what: "value", .. })));
    let twice = [(b"a", Some(b"1")), (b"b", None), (b"a", None)];
    assert!(matches!(tree.commit(&twice, |_| Ok(())), Err(TreeError::Duplicate)));
    assert_same(&tree.snapshot(), &model);
}

#[test]
fn unchanged_values_and_absent_keys_cost_no_leaf() {
    let space = Memory::new(50);
    let tree = Tree::create(space.clone(), &OPTIONS).unwrap();
    let all: Batch = (0..500u32).map(|i| (i.to_be_bytes().to_vec(), Some(vec![1; 200]))).collect();
    tree.commit(&all, |r| space.published(r)).unwrap();
    let before = tree.stats().written_bytes;
    let mut none = all.clone();
    none.push((b"absent".to_vec(), None));
    tree.commit(&none, |r| space.published(r)).unwrap();
    assert_eq!(tree.stats().written_bytes - before, 2 * 4096, "only the map and its index");
}
