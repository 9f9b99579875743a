//! Stories that chance tells too seldom: one rule of peering each. Every one runs under many
//! seeds, and fails under most of them if its rule is taken out.

use crate::world::World;
use crate::{settle, verify};
use spirula_maps::PgState;
use spirula_pg::Bug;
use spirula_types::{OsdId, PgId};

const PG: PgId = PgId { pool: 1, seed: 0 };

/// A calm cluster of `osds` with one PG of three copies on the first three, written to.
fn cluster(seed: u64, osds: usize) -> World {
    planted_cluster(seed, osds, None)
}

fn planted_cluster(seed: u64, osds: usize, bug: Option<Bug>) -> World {
    let mut w = World::new(seed, osds, 3, 1, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (1, 2, 50);
    for id in 0..osds as OsdId {
        w.start(id);
    }
    place(&mut w, 0..3);
    until_active(&mut w);
    run(&mut w, 1500);
    w
}

/// Moves the PG to these OSDs.
fn place(w: &mut World, on: std::ops::Range<OsdId>) {
    let all = w.nodes.len() as OsdId;
    w.change_map(|m| m.out = (0..all).filter(|o| !on.contains(o)).collect());
}

fn run(w: &mut World, steps: usize) {
    for _ in 0..steps {
        w.step();
    }
}

fn active(w: &World) -> bool {
    let map = w.map();
    let Some(primary) = map.acting(PG).first().copied() else { return false };
    let node = &w.nodes[primary as usize];
    node.epoch == map.epoch && node.pgs.get(&PG).is_some_and(|p| p.state().0.has(PgState::ACTIVE))
}

fn until_active(w: &mut World) {
    for _ in 0..60_000 {
        if active(w) {
            return;
        }
        w.step();
    }
    panic!("never active");
}

fn stop(w: &mut World, on: std::ops::Range<OsdId>) {
    for o in on {
        w.crash(o);
        w.mark_down(o);
    }
}

fn finish(mut w: World, seed: u64) {
    settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
}

/// The story that shows a bug best, with the bug planted: is it caught?
pub fn with_bug(bug: Bug, seed: u64) -> bool {
    match bug {
        Bug::ReadsWithoutLease | Bug::LeaseNotAwaited => replaced_primary(seed, Some(bug)).is_err(),
        _ => false,
    }
}

/// A primary that was replaced and does not know it, with a client that does not either.
#[test]
fn replaced_primary_serves_no_stale_read() {
    for seed in 0..20 {
        replaced_primary(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

fn replaced_primary(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    {
        let mut w = planted_cluster(seed, 3, bug);
        let old = w.map().acting(PG)[0];
        w.nodes[old as usize].blind_until = u64::MAX;
        w.clients[0].blind_until = u64::MAX;
        w.clients[0].only = Some(false);
        w.clients[1].only = Some(true);
        w.clients[2].only = Some(true);
        w.mark_down(old);
        for _ in 0..12_000 {
            // It must not find out by a client's map, either.
            w.step();
        }
        w.clients[0].blind_until = 0;
        settle(&mut w).and_then(|()| verify(&w))
    }
}

/// One old copy comes back alone, beside OSDs that have none.
#[test]
fn single_old_copy_does_not_serve() {
    for seed in 0..20 {
        let mut w = cluster(seed, 5);
        stop(&mut w, 2..3);
        until_active(&mut w);
        run(&mut w, 1500);
        stop(&mut w, 0..2);
        w.start(2);
        place(&mut w, 2..5);
        run(&mut w, 6000);
        assert!(!active(&w), "seed {seed}: serves what it cannot know to be the newest");
        finish(w, seed);
    }
}

/// The whole old home set comes back after the PG has moved on and its new one is gone.
#[test]
fn old_home_set_knows_that_the_pg_moved_on() {
    for seed in 0..20 {
        let mut w = cluster(seed, 6);
        place(&mut w, 3..6);
        while !active(&w) || w.map().acting(PG).iter().any(|o| *o < 3) {
            w.step();
        }
        // Before they are told to delete their copies.
        stop(&mut w, 0..3);
        run(&mut w, 1500);
        stop(&mut w, 3..6);
        for id in 0..3 {
            w.start(id);
        }
        place(&mut w, 0..3);
        run(&mut w, 6000);
        assert!(!active(&w), "seed {seed}: serves an abandoned history");
        finish(w, seed);
    }
}
