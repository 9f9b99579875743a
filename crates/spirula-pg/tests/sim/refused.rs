//! Bad copies of objects whose newest entry in the log is a write that was refused, and changed
//! nothing: what is wanted of another copy is what the object's last change made, or nobody has it
//! and it stays unfound for good.

use crate::client::object;
use crate::scenarios::{PG, place, run, until_active};
use crate::world::World;
use crate::{heal_found, settle, verify};
use spirula_maps::PgState;
use spirula_pg::PgEvent;
use spirula_pg::shard::store_object;
use spirula_types::{OsdId, Peer, SpgId};

const OBJECTS: usize = 6;

/// A calm cluster of one PG on the first three of four OSDs. Each object was changed, and then a
/// write of each was refused.
fn refused(seed: u64, erasure: bool) -> World {
    let mut w = World::new(seed, 4, 3, 1, 3);
    if erasure {
        let map = w.maps.last_mut().unwrap();
        (map.ec, map.min_size) = (Some((2, 1)), 2);
    }
    w.pace = w.pace.calm();
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (OBJECTS, 4, 80, 0);
    (0..4).for_each(|id| w.start(id));
    place(&mut w, 0..3);
    if erasure {
        run(&mut w, 3000)
    } else {
        until_active(&mut w)
    }
    run(&mut w, 3000);
    (w.pace.appends, w.pace.refused) = (100, 100);
    let enough = |w: &World| w.clients.iter().map(|c| c.refused).sum::<u64>() > 40;
    for _ in 0..300 {
        run(&mut w, 100);
        if enough(&w) {
            break;
        }
    }
    assert!(enough(&w), "seed {seed}: too little was refused");
    w.pace.refused = 0;
    rest(&mut w);
    w
}

/// Lets what is under way end.
fn rest(w: &mut World) {
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    for _ in 0..100 {
        run(w, 100);
        if w.clients.iter().all(|c| c.idle()) {
            return;
        }
    }
    panic!("requests do not end");
}

/// All that a member has of the PG rots; how many objects.
fn rot(w: &mut World, member: Peer) -> usize {
    let store = &mut w.nodes[member.osd as usize].store;
    let names = (0..OBJECTS).map(|i| store_object(&object(i), member.shard));
    let there: Vec<_> = names.filter(|o| store.applied.objects.contains_key(o)).collect();
    let n = there.len();
    store.rotten.extend(there);
    n
}

fn unfound(w: &World) -> bool {
    let first = w.map().members(PG)[0];
    let pg = &w.nodes[first.osd as usize].pgs[&SpgId::new(PG, first.shard)];
    pg.state().0.any(PgState::RECOVERY_UNFOUND | PgState::BACKFILL_UNFOUND)
}

fn whole_again(mut w: World, what: &str) {
    settle(&mut w).unwrap_or_else(|e| panic!("{what}: {e}"));
    heal_found(&mut w);
    settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("{what}: {e}"));
}

/// A member must be filled, and what it is to be filled with turns out to be bad.
#[test]
fn a_bad_copy_that_recovery_finds_is_fetched_in_the_version_that_is_there() {
    for (seed, who) in (0..8).flat_map(|s| (0..3).map(move |w| (s, w))) {
        for erasure in [false, true] {
            let mut w = refused(seed, erasure);
            let member = w.map().members(PG)[who];
            assert!(rot(&mut w, member) > 2, "seed {seed}");
            place(&mut w, 1..4);
            run(&mut w, 3000);
            whole_again(w, &format!("seed {seed}, member {who}, erasure coding {erasure}"));
        }
    }
}

/// Clients read what is bad.
#[test]
fn a_bad_copy_that_a_reader_finds_is_fetched_in_the_version_that_is_there() {
    for (seed, who) in (0..8).flat_map(|s| (0..3).map(move |w| (s, w))) {
        for erasure in [false, true] {
            let mut w = refused(seed, erasure);
            let member = w.map().members(PG)[who];
            assert!(rot(&mut w, member) > 2, "seed {seed}");
            w.pace.appends = 30;
            w.clients.iter_mut().for_each(|c| c.quiet = false);
            run(&mut w, 2000);
            whole_again(w, &format!("seed {seed}, member {who}, erasure coding {erasure}"));
        }
    }
}

/// A scrub finds what is bad, and repairs it.
#[test]
fn a_bad_copy_that_a_scrub_finds_is_fetched_in_the_version_that_is_there() {
    for (seed, who) in (0..8).flat_map(|s| (0..3).map(move |w| (s, w))) {
        for erasure in [false, true] {
            let mut w = refused(seed, erasure);
            let first = w.map().members(PG)[0];
            let member = w.map().members(PG)[who];
            assert!(rot(&mut w, member) > 2, "seed {seed}");
            let bad = |w: &World| w.nodes[member.osd as usize].store.rotten.len();
            w.event(
                first.osd as OsdId,
                SpgId::new(PG, first.shard),
                PgEvent::Scrub { deep: true, repair: true, large: Default::default() },
            );
            for _ in 0..300 {
                run(&mut w, 100);
                if bad(&w) == 0 || unfound(&w) {
                    break;
                }
            }
            let what = format!("seed {seed}, member {who}, erasure coding {erasure}");
            assert!(
                bad(&w) == 0 && !unfound(&w),
                "{what}: {} bad, unfound: {}",
                bad(&w),
                unfound(&w)
            );
            whole_again(w, &what);
        }
    }
}
