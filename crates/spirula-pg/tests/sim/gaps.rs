//! Stories of OSDs that got a whole map where others got each one: they cannot tell when the
//! interval began that they find, and understand the others all the same.

use crate::background::{cluster, is_clean, quiet, until};
use crate::scenarios::{PG, run};
use crate::world::World;
use crate::{clean, settle, verify};
use spirula_types::{OsdId, SpgId};
use std::sync::Arc;

/// Epochs in which nothing changes for the PG.
fn empty_maps(w: &mut World, n: usize) {
    (0..n).for_each(|_| w.change_map(|_| {}));
}

fn holds(w: &World, id: OsdId) -> bool {
    w.nodes[id as usize].pgs.get(&SpgId::whole(PG)).is_some_and(spirula_pg::Pg::exists)
}

/// The PG moved away from an OSD that is down, and it comes back after the maps of that time are
/// gone.
#[test]
fn a_copy_that_was_away_until_its_maps_were_gone_is_deleted() {
    for seed in 0..20 {
        let mut w = cluster(seed, 4, 1);
        (w.pace.objects, w.pace.appends, w.pace.deletes) = (6, 90, 0);
        w.change_map(|m| m.out = [3].into());
        until(&mut w, "clean", |w| is_clean(w, PG));
        run(&mut w, 1500);
        let away = w.map().acting(PG)[seed as usize % 3];
        w.crash(away);
        w.mark_down(away);
        w.change_map(|m| m.out = [away].into());
        quiet(&mut w);
        until(&mut w, "clean", |w| is_clean(w, PG) && w.map().temp.is_empty());
        empty_maps(&mut w, 5);
        let all_have = |w: &World| w.nodes.iter().all(|n| !n.alive || n.epoch == w.map().epoch);
        until(&mut w, "at the newest map", all_have);
        w.trimmed = w.map().epoch;
        assert!(
            !w.nodes[away as usize].store.applied.objects.is_empty(),
            "seed {seed}: nothing to delete"
        );
        w.start(away);
        until(&mut w, "at the newest map", all_have);
        until(&mut w, "without the old copy", |w| !holds(w, away));
        assert!(is_clean(&w, PG), "seed {seed}: {}", clean(&w).unwrap_err());
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Members take the newest map as a whole, since the next one did not fit theirs, while the PG
/// serves.
fn skipped(seed: u64, whose: &[usize], moved: bool) -> Result<(), String> {
    let mut w = cluster(seed, 4, 1);
    w.change_map(|m| m.out = [3].into());
    until(&mut w, "clean", |w| is_clean(w, PG));
    run(&mut w, 1500);
    let acting = w.map().acting(PG);
    let these: Vec<OsdId> = whose.iter().map(|i| acting[*i]).collect();
    these.iter().for_each(|o| w.nodes[*o as usize].blind_until = u64::MAX);
    run(&mut w, 300);
    if moved {
        // Another interval, of which they hear nothing, and back.
        let leaves = acting[2];
        w.change_map(|m| m.out = [3, leaves].into());
        run(&mut w, 1500);
        w.change_map(|m| m.out = [3].into());
    }
    empty_maps(&mut w, 3);
    run(&mut w, 600);
    let lags = |w: &World| these.iter().all(|o| w.nodes[*o as usize].epoch + 3 <= w.map().epoch);
    assert!(lags(&w), "seed {seed}: somebody has the maps that are to be left out");
    for o in &these {
        w.give_whole_map(*o);
        w.nodes[*o as usize].blind_until = 0;
    }
    // No other map helps.
    for _ in 0..600 {
        run(&mut w, 100);
        if clean(&w).is_ok() {
            break;
        }
    }
    clean(&w)?;
    run(&mut w, 1500);
    settle(&mut w).and_then(|()| verify(&w))
}

#[test]
fn members_that_skipped_maps_and_those_that_did_not_understand_each_other() {
    let mut bad = Vec::new();
    let mut tried = 0;
    for seed in 0..12 {
        for whose in [&[0][..], &[1], &[1, 2], &[0, 2]] {
            for moved in [false, true] {
                tried += 1;
                if let Err(e) = skipped(seed, whose, moved) {
                    bad.push((seed, whose, moved, e));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{} of {tried}: {:#?}", bad.len(), bad.first());
}

/// One that has nothing is to be filled, and cannot tell since when.
#[test]
fn a_member_without_a_copy_that_skipped_maps_is_filled() {
    for seed in 0..10 {
        let mut w = cluster(seed, 4, 1);
        Arc::make_mut(&mut w.cfg).log_keep = 1;
        w.change_map(|m| m.out = [3].into());
        until(&mut w, "clean", |w| is_clean(w, PG));
        run(&mut w, 1500);
        let leaves = w.map().acting(PG)[2];
        w.nodes[3].blind_until = u64::MAX;
        w.change_map(|m| m.out = [leaves].into());
        empty_maps(&mut w, 3);
        run(&mut w, 600);
        w.give_whole_map(3);
        w.nodes[3].blind_until = 0;
        until(&mut w, "filled", |w| is_clean(w, PG) && w.map().acting(PG).contains(&3));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
