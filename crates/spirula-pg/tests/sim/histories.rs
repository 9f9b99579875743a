//! What a PG must remember from one interval to the next: whose reads it waits for, who was there,
//! whose data it never had.

use crate::planted::{STALE, fails_with};
use crate::scenarios::{PG, active, place, planted_cluster, run, stop, until_active};
use crate::world::World;
use crate::{settle, verify};
use spirula_maps::PgState;
use spirula_pg::Bug;
use spirula_types::{OsdId, SpgId};
use std::sync::Arc;

fn state(w: &World) -> PgState {
    let primary = w.map().acting(PG)[0] as usize;
    w.nodes[primary].pgs.get(&SpgId::whole(PG)).map(|p| p.state().0).unwrap_or_default()
}

/// A primary is replaced without knowing it, with a client that does not know it either.
fn replaced(w: &mut World) -> OsdId {
    w.scrubs = false;
    let old = w.map().acting(PG)[0];
    w.nodes[old as usize].blind_until = u64::MAX;
    w.clients[0].blind_until = u64::MAX;
    w.clients[0].only = Some(false);
    w.clients[1].only = Some(true);
    w.clients[2].only = Some(true);
    w.mark_down(old);
    old
}

fn reads_on(mut w: World) -> Result<(), String> {
    for _ in 0..12_000 {
        w.step();
    }
    w.clients[0].blind_until = 0;
    settle(&mut w).and_then(|()| verify(&w))
}

/// Another interval begins while the new primary waits for the leases of the old one. True if it
/// waited.
fn replaced_twice(seed: u64, how: usize, bug: Option<Bug>) -> Result<bool, String> {
    let mut w = planted_cluster(seed, 4, bug);
    let acting = w.map().acting(PG);
    replaced(&mut w);
    until_active(&mut w);
    if !state(&w).has(PgState::WAIT) {
        return Ok(false);
    }
    match how {
        // The other member leads.
        0 => w.change_map(|m| drop(m.temp.insert(PG, vec![acting[2], acting[1]]))),
        // The administrator changes the pool.
        1 => w.change_map(|m| m.min_size = 1),
        // Another OSD joins.
        _ => w.change_map(|m| m.out.clear()),
    }
    until_active(&mut w);
    reads_on(w).map(|()| true)
}

#[test]
fn the_lease_of_an_old_primary_is_awaited_by_all_later_ones() {
    let mut waited = 0;
    for (seed, how) in (0..20).flat_map(|s| (0..3).map(move |h| (s, h))) {
        waited += u32::from(
            replaced_twice(seed, how, None)
                .unwrap_or_else(|e| panic!("how {how} seed {seed}: {e}")),
        );
    }
    assert!(waited > 30, "{waited}");
}

/// The PG becomes clean while it waits, and then another interval begins. True if it came to that.
fn clean_while_waiting(seed: u64) -> Result<bool, String> {
    let mut w = planted_cluster(seed, 4, None);
    let old = replaced(&mut w);
    w.change_map(|m| m.out = [old].into());
    for _ in 0..20_000 {
        w.step();
        if active(&w) && state(&w).has(PgState::CLEAN) {
            break;
        }
    }
    if !state(&w).has(PgState::CLEAN) || !state(&w).has(PgState::WAIT) {
        return Ok(false);
    }
    w.change_map(|m| m.min_size = 1);
    until_active(&mut w);
    reads_on(w).map(|()| true)
}

#[test]
fn the_lease_of_an_old_primary_is_awaited_though_the_pg_was_clean() {
    let waited = (0..60)
        .filter(|seed| clean_while_waiting(*seed).unwrap_or_else(|e| panic!("seed {seed}: {e}")))
        .count();
    assert!(waited > 5, "{waited}");
}

/// The old primary is on record as dead only after the new one has begun to wait for its leases.
/// True if it came to that.
fn dead_later(seed: u64) -> Result<bool, String> {
    let mut w = planted_cluster(seed, 4, None);
    let old = replaced(&mut w);
    until_active(&mut w);
    w.crash(old);
    if !state(&w).has(PgState::WAIT) {
        return Ok(false);
    }
    w.change_map(|m| m.osds.get_mut(&old).unwrap().dead = true);
    let primary = w.map().acting(PG)[0] as usize;
    while w.nodes[primary].epoch < w.map().epoch {
        w.step();
    }
    if state(&w).has(PgState::WAIT) {
        return Err(format!("WAITS FOR THE DEAD: {}", state(&w)));
    }
    reads_on(w).map(|()| true)
}

#[test]
fn nobody_waits_for_the_lease_of_an_old_primary_that_is_dead_by_a_later_map() {
    let waited = (0..20)
        .filter(|seed| dead_later(*seed).unwrap_or_else(|e| panic!("seed {seed}: {e}")))
        .count();
    assert!(waited > 5, "{waited}");
}

/// The same while members restart: they remember for whom they waited, and take the longest time.
#[test]
fn the_lease_of_an_old_primary_is_awaited_after_restarts() {
    let mut waited = 0;
    for seed in 0..20 {
        let mut w = planted_cluster(seed, 4, None);
        let old = replaced(&mut w);
        until_active(&mut w);
        let waits = state(&w).has(PgState::WAIT);
        for o in w.map().acting(PG).into_iter().filter(|o| *o != old) {
            w.crash(o);
            w.mark_down(o);
            w.start(o);
        }
        until_active(&mut w);
        waited += usize::from(waits && state(&w).has(PgState::WAIT));
        reads_on(w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("awaited before restarts and after them: {waited}");
    assert!(waited > 5, "{waited}");
}

/// An OSD was declared lost, came back, took writes in the same set, and went down; then the other
/// one is lost.
fn lost_once(seed: u64, declared: bool, bug: Option<Bug>) -> Result<(), String> {
    let mut w = planted_cluster(seed, 4, bug);
    w.scrubs = false;
    run(&mut w, 3000);
    stop(&mut w, 2..3);
    until_active(&mut w);
    run(&mut w, 800);
    stop(&mut w, 0..1);
    run(&mut w, 200);
    if declared {
        // As of when it went down.
        w.change_map(|m| {
            let at = m.epoch - 1;
            m.osds.get_mut(&0).unwrap().lost_at = at;
        });
    }
    run(&mut w, 300);
    w.start(0);
    until_active(&mut w);
    run(&mut w, 1500);
    stop(&mut w, 0..1);
    stop(&mut w, 1..2);
    w.change_map(|m| {
        let at = m.epoch - 1;
        m.osds.get_mut(&1).unwrap().lost_at = at;
    });
    w.start(2);
    place(&mut w, 2..4);
    run(&mut w, 8000);
    if active(&w) {
        return Err("SERVES OLD DATA".into());
    }
    settle(&mut w).and_then(|()| verify(&w))
}

#[test]
fn who_came_back_after_it_was_declared_lost_is_waited_for() {
    for (seed, declared) in (0..10).flat_map(|s| [(s, false), (s, true)]) {
        lost_once(seed, declared, None)
            .unwrap_or_else(|e| panic!("declared {declared} seed {seed}: {e}"));
    }
}

/// The primary goes, and the next one goes with the last member before it knows that it leads: it
/// served nobody, and the one that returns first waits for neither of them.
fn never_served(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    w.change_map(|m| m.min_size = 1);
    until_active(&mut w);
    run(&mut w, 500);
    let acting = w.map().acting(PG);
    acting[1..].iter().for_each(|o| w.nodes[*o as usize].blind_until = u64::MAX);
    stop(&mut w, acting[0]..acting[0] + 1);
    assert_eq!(w.map().acting(PG).len(), 2, "seed {seed}: an interval of two");
    run(&mut w, 100);
    acting[1..].iter().for_each(|o| w.crash(*o));
    // Both with one map, or the last one would lead alone.
    w.change_map(|m| {
        for o in &acting[1..] {
            m.up.remove(o);
            m.osds.get_mut(o).unwrap().up = false;
        }
    });
    run(&mut w, 100);
    w.start(acting[0]);
    for _ in 0..20_000 {
        w.step();
        if active(&w) {
            break;
        }
    }
    if !active(&w) {
        return Err(format!("WAITS IN VAIN: {}", state(&w)));
    }
    run(&mut w, 500);
    acting[1..].iter().for_each(|o| {
        w.nodes[*o as usize].blind_until = 0;
        w.start(*o);
    });
    settle(&mut w).and_then(|()| verify(&w))
}

#[test]
fn who_never_served_is_not_waited_for() {
    for seed in 0..20 {
        never_served(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Two of three members write; one object of the one rots; the other goes, and the third comes
/// back: the PG serves, but for that object. True if the damage was found.
fn rotten_alone(seed: u64, bug: Option<Bug>) -> Result<bool, String> {
    let mut w = World::new(seed, 3, 3, 1, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    // All that was ever written is in the log: nobody needs a backfill, which would wait for that
    // object.
    Arc::make_mut(&mut w.cfg).log_keep = 10_000;
    w.scrubs = false;
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (6, 4, 90, 0);
    (0..3).for_each(|id| w.start(id));
    until_active(&mut w);
    run(&mut w, 1500);
    let acting = w.map().acting(PG);
    stop(&mut w, acting[2]..acting[2] + 1);
    until_active(&mut w);
    run(&mut w, 1500);
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    run(&mut w, 1000);
    let victim = acting[0] as usize;
    let objects: Vec<_> = w.nodes[victim].store.applied.objects.keys().cloned().collect();
    let o = objects[seed as usize % objects.len()].clone();
    w.nodes[victim].store.rotten.insert(o);
    // Found by reads; the object is to be fetched, and that has no turn before the other goes.
    w.pace.local = 0;
    w.pace.appends = 0;
    w.clients.iter_mut().for_each(|c| c.quiet = false);
    let missing =
        |w: &World| !w.nodes[victim].store.applied.meta.keys().all(|k| !k.starts_with(b"pgm."));
    w.slow.insert((crate::world::End::Osd(acting[1]), crate::world::End::Osd(acting[0])), u64::MAX);
    for _ in 0..4000 {
        w.step();
        if missing(&w) {
            break;
        }
    }
    if !missing(&w) {
        return Ok(false);
    }
    run(&mut w, 200);
    stop(&mut w, acting[1]..acting[1] + 1);
    w.slow.clear();
    w.pace.local = 10;
    w.start(acting[2]);
    for _ in 0..20_000 {
        w.step();
        if active(&w) {
            break;
        }
    }
    if !active(&w) {
        return Err(format!("DOWN: {}", state(&w)));
    }
    w.start(acting[1]);
    settle(&mut w).and_then(|()| verify(&w)).map(|()| true)
}

#[test]
fn a_rotten_object_and_an_absent_member_leave_the_rest_served() {
    let found =
        |seed: &u64| rotten_alone(*seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let found = (0..20).filter(found).count();
    assert!(found > 10, "the damage was found in {found} of 20 seeds only");
}

/// Every planted bug shows by the failure that it must cause.
#[test]
fn sim_planted_bugs_of_histories_fail_as_they_must() {
    fails_with(STALE, 30, |seed| {
        replaced_twice(seed, seed as usize % 3, Some(Bug::LeaseForgotten)).map(|_| ())
    });
    fails_with("SERVES OLD DATA", 10, |seed| lost_once(seed, true, Some(Bug::LostForever)));
    fails_with("WAITS IN VAIN", 20, |seed| never_served(seed, Some(Bug::Foretold)));
    fails_with("DOWN", 20, |seed| rotten_alone(seed, Some(Bug::MissingIsHollow)).map(drop));
}
