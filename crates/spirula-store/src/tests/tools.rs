//! The offline tools: what they find, and that they carry everything.

use super::model::{Model, object, pattern, random_txn};
use super::sim::{Rng, World};
use super::{create, create_single, open, tiny};
use crate::tools::{Bad, Filter, check, export, import, stats};
use crate::{BLOCK, StoreError, StoreOptions};
use spirula_types::transaction::{MetaOp, ObjectOp, Transaction};
use spirula_types::{HObject, PgId};
use std::sync::Arc;

/// A store with some of everything, closed or not.
fn worked(seed: u64, close: bool, single: bool) -> (World, StoreOptions, Model) {
    let opts = tiny();
    let world = if single { create_single(&opts) } else { create(&opts) };
    let mut store = open(&world, &opts).unwrap();
    let (mut rng, mut model) = (Rng(seed), Model::default());
    for step in 0..250 {
        let txn = random_txn(&mut rng, &model, step + 1, false);
        if store.submit(txn.clone()).is_ok() {
            model.apply(&txn);
        }
    }
    store.flush().unwrap();
    if close {
        store.close().unwrap();
    }
    (world, opts, model)
}

fn problems(world: &World, opts: &StoreOptions) -> Vec<String> {
    match open(world, opts) {
        Ok(store) => check(&store, true).map_or_else(|e| vec![e.to_string()], |c| c.problems),
        Err(e) => vec![e.to_string()],
    }
}

#[test]
fn sound_stores_are_found_sound_closed_or_not() {
    for seed in 0..8 {
        let (world, opts, model) = worked(seed, seed % 2 == 0, seed % 4 < 2);
        let store = open(&world, &opts).unwrap();
        let found = check(&store, true).unwrap();
        assert_eq!(found.problems, Vec::<String>::new(), "seed {seed}");
        assert_eq!(found.objects, model.len() as u64);
        assert!(found.data > 0 && found.metadata_pages > 0 && found.logs > 0, "{found:?}");
        let s = stats(&store).unwrap();
        assert_eq!(s.sizes.values().sum::<u64>(), found.objects);
        assert_eq!(s.free.iter().map(|f| f.bytes).sum::<u64>(), store.alloc().free() * BLOCK);
    }
}

#[test]
fn every_flipped_bit_in_live_data_or_metadata_is_found() {
    let (world, opts, _) = worked(3, true, false);
    let sound = world.image();
    let store = open(&World::from_image(sound.clone()), &opts).unwrap();
    // What is live: blocks of objects, and the pages of the tree.
    let mut live: Vec<(usize, u64)> = Vec::new();
    let blocks = store.alloc().blocks();
    for b in 0..blocks {
        if store.alloc().holds_data(b) {
            live.push((0, crate::superblock::HEADER + b * BLOCK));
        }
    }
    let data = live.len();
    assert!(data > 10, "{data} blocks of data");
    drop(store);
    let mut rng = Rng(17);
    for _ in 0..300 {
        let (dev, at) = live[rng.below(live.len() as u64) as usize];
        let bit = rng.below(BLOCK * 8);
        let world = World::from_image(sound.clone());
        world.edit(dev, |d| d[(at + bit / 8) as usize] ^= 1 << (bit % 8));
        let found = problems(&world, &opts);
        assert!(
            found.iter().any(|p| p.contains("checksum")),
            "block at {at}, bit {bit}: {found:?}"
        );
    }
    // Pages in use by the tree: found by damaging everything a page at a time.
    let meta = sound.devices[2].len() / 4096;
    let bytes = sound.devices[2].bytes();
    let used = (32..meta).filter(|p| bytes[p * 4096..(p + 1) * 4096].iter().any(|b| *b != 0));
    let (mut told, mut pages) = (0, 0);
    for page in used {
        let world = World::from_image(sound.clone());
        world.edit(2, |d| d[page * 4096 + rng.below(4096) as usize] ^= 0x20);
        pages += 1;
        told += u64::from(!problems(&world, &opts).is_empty());
    }
    let store = open(&World::from_image(sound), &opts).unwrap();
    let live = stats(&store).unwrap().metadata_live / 4096;
    assert!(
        told >= live.saturating_sub(1) && pages >= told,
        "{told} of {pages} damaged pages told, {live} are live"
    );
}

/// An erasure-coded pool's shards share blocks with what undoes their changes, whichever goes
/// first.
#[test]
fn what_shards_share_counts_once_for_their_pool() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    let shard = HObject { pool: 3 | 2 << 48, ..object(1) };
    let undo = HObject { pool: shard.pool | 1 << 47, ..object(1) };
    let submit = |store: &mut crate::Store, o: &HObject, op: ObjectOp| {
        let mut t = Transaction::default();
        t.object(o, op);
        store.submit(t).unwrap();
    };
    let data = pattern(1, 40_000);
    submit(&mut store, &shard, ObjectOp::Write { offset: 0, data: data.clone() });
    let before: Vec<_> = store.pool_space().collect();
    assert_eq!(before.iter().map(|(p, s)| (*p, s.stored)).collect::<Vec<_>>(), [(3, 40_000)]);
    submit(&mut store, &undo, ObjectOp::CloneFrom(shard.clone()));
    submit(&mut store, &shard, ObjectOp::Write { offset: 0, data });
    submit(&mut store, &undo, ObjectOp::Remove);
    assert_eq!(store.pool_space().collect::<Vec<_>>(), before);
    assert_eq!(check(&store, true).unwrap().problems, Vec::<String>::new());
}

#[test]
fn leaks_and_false_counts_and_owners_are_found() {
    let (world, opts, _) = worked(5, true, true);
    let says = |f: &dyn Fn(&mut crate::Store), word: &str| {
        let mut store = open(&world, &opts).unwrap();
        f(&mut store);
        let found = check(&store, false).unwrap().problems;
        assert!(found.iter().any(|p| p.contains(word)), "{word}: {found:?}");
    };
    says(&|s| assert!(s.alloc().allocate(1, &mut Vec::new())), "leaked");
    says(&|s| s.counters.objects += 1, "counters say");
    says(
        &|s| {
            let mut alloc = s.alloc();
            let b = (0..alloc.blocks()).find(|b| alloc.holds_data(*b)).unwrap();
            assert!(alloc.mark_free(crate::alloc::PhysRun { start: b, len: 1 }));
        },
        "not allocated",
    );
    says(
        &|s| {
            // Two objects that claim the same block without counting it.
            let mut names = Vec::new();
            crate::tools::for_each_object(s, |o| {
                names.push(o.clone());
                Ok(())
            })
            .unwrap();
            let with = names.iter().find(|n| s.onode(n).unwrap().unwrap().allocated > 0).unwrap();
            let mut twin = (*s.onode(with).unwrap().unwrap()).clone();
            twin.id = 1 << 40;
            twin.omap = 0;
            if twin.inline.is_none() {
                twin.id = s.onode(with).unwrap().unwrap().id;
            }
            s.active.put_head(crate::keys::object(&object(4711)).into(), Some(Arc::new(twin)));
        },
        "further owners",
    );
}

#[test]
fn export_and_import_carry_everything_and_damage_is_refused_before_anything_is_written() {
    let (world, opts, model) = worked(9, false, false);
    let store = open(&world, &opts).unwrap();
    let mut stream = Vec::new();
    let out = export(&store, None, Bad::Refuse, &mut stream).unwrap();
    assert_eq!(out.objects, model.len() as u64);
    let mut rng = Rng(4);
    let target = create(&opts);
    let before = {
        drop(open(&target, &opts).unwrap());
        target.image().devices[2].bytes().split_off(crate::superblock::HEADER as usize)
    };
    for i in 0..60 {
        let mut bad = stream.clone();
        let at = rng.below(bad.len() as u64) as usize;
        if i % 2 == 0 {
            bad[at] ^= 1 << rng.below(8);
        } else {
            bad.truncate(at);
        }
        let mut store = open(&target, &opts).unwrap();
        let e = import(&mut store, || Ok(bad.as_slice())).unwrap_err();
        assert!(matches!(e, StoreError::Refused { .. }), "{e}");
        assert_eq!(store.last_seq(), 0);
    }
    assert!(
        target.image().devices[2].bytes().split_off(crate::superblock::HEADER as usize) == before
    );
    let mut copy = open(&target, &opts).unwrap();
    let done = import(&mut copy, || Ok(stream.as_slice())).unwrap();
    assert_eq!((done.objects, done.data, done.pg), (out.objects, out.data, None));
    model.check(&mut copy, "imported");
    assert_eq!(check(&copy, true).unwrap().problems, Vec::<String>::new());
    let e = import(&mut copy, || Ok(stream.as_slice())).unwrap_err().to_string();
    assert!(e.contains("already"), "{e}");
    copy.close().unwrap();
    model.check(&mut open(&target, &opts).unwrap(), "imported and reopened");
}

#[test]
fn export_of_one_pg_holds_its_objects_record_and_log_and_skips_what_is_bad_if_told() {
    let opts = tiny();
    let world = create(&opts);
    let mut store = open(&world, &opts).unwrap();
    for n in 0..60 {
        let mut t = Transaction::default();
        t.object(&object(n), ObjectOp::Write { offset: 0, data: pattern(n, 9000) });
        let pg = object(n).pg(8);
        t.meta.push(MetaOp::Set { key: format!("pg.{pg}").into(), value: "info".into() });
        t.meta.push(MetaOp::LogAppend {
            pg,
            version: spirula_types::EVersion::new(1, n + 1),
            entry: pattern(n, 50),
        });
        store.submit(t).unwrap();
    }
    store.flush().unwrap();
    let pg = PgId::new(1, 3);
    let filter = Filter { pg, pg_num: 8, meta: vec![format!("pg.{pg}").into()] };
    let mine: Vec<_> = (0..60).map(object).filter(|o| o.pool == 1 && o.pg(8) == pg).collect();
    assert!(mine.len() > 1);
    let mut stream = Vec::new();
    assert_eq!(
        export(&store, Some(&filter), Bad::Refuse, &mut stream).unwrap().objects,
        mine.len() as u64
    );
    let target = create(&opts);
    let mut copy = open(&target, &opts).unwrap();
    assert_eq!(import(&mut copy, || Ok(stream.as_slice())).unwrap().pg, Some(pg));
    assert_eq!(
        copy.list(&spirula_types::HObject::min(), &spirula_types::HObject::max(), 100)
            .unwrap()
            .len(),
        mine.len()
    );
    assert_eq!(copy.log_entries(pg).unwrap(), store.log_entries(pg).unwrap());
    assert_eq!(copy.meta_range(b"").unwrap().len(), 1);
    // One object of it rots.
    store.close().unwrap();
    let mut store = open(&world, &opts).unwrap();
    let head = store.onode(&mine[0]).unwrap().unwrap();
    let block = head.inline.as_ref().unwrap().device_runs().next().unwrap().start;
    world.edit_data(|d| d[(block * BLOCK) as usize + 9] ^= 1);
    assert!(matches!(
        export(&store, Some(&filter), Bad::Refuse, &mut Vec::new()),
        Err(StoreError::Checksum { .. })
    ));
    let out = export(&store, Some(&filter), Bad::Skip, &mut Vec::new()).unwrap();
    assert_eq!((out.objects, out.left_out.len()), (mine.len() as u64 - 1, 1));
    assert_eq!(out.left_out[0].0, mine[0]);
    store.poll();
}
