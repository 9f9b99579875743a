//! Stories of members that get log entries without their data: how many may, how many must have
//! all, and whose history is taken. Each rule is taken out, too, and what it forbids must then
//! happen.

use crate::client::object;
use crate::planted::{UNFOUND, fails_with};
use crate::scenarios::{PG, goes_well, run, until_active};
use crate::world::{End, World};
use crate::{settle, verify};
use spirula_maps::PgState;
use spirula_pg::{Bug, PgEvent};
use spirula_types::{OsdId, SpgId};
use std::sync::Arc;

/// A PG of `size` copies on as many OSDs of `osds`, whose log tells everything, and where nothing
/// is recovered but what a request waits for.
fn world(seed: u64, (osds, size, min_size): (usize, usize, usize), bug: Option<Bug>) -> World {
    let mut w = World::new(seed, osds, size, 1, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    w.scrubs = false;
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (4, 4, 90, 0);
    // What is to be read would wait for turns, too.
    w.pace.cold = 0;
    let cfg = Arc::make_mut(&mut w.cfg);
    (cfg.log_keep, cfg.log_max, cfg.primary_lag, cfg.push_bytes) =
        (100_000, 200_000, 100_000, 1 << 20);
    w.maps.last_mut().unwrap().min_size = min_size;
    let out = (size as OsdId..osds as OsdId).collect();
    w.maps.last_mut().unwrap().out = out;
    (0..osds as OsdId).for_each(|o| w.start(o));
    until_active(&mut w);
    run(&mut w, 1500);
    w
}

fn quiet(w: &mut World, quiet: bool) {
    w.clients.iter_mut().for_each(|c| c.quiet = quiet);
}

/// Until all that clients asked for is answered, and the PG is clean.
fn rest(w: &mut World) {
    quiet(w, true);
    for _ in 0..1000 {
        run(w, 50);
        let primary = w.map().acting(PG)[0] as usize;
        let state = w.nodes[primary].pgs.get(&SpgId::whole(PG)).map(|p| p.state().0);
        if w.clients.iter().all(|c| c.idle()) && state == Some(PgState::ACTIVE | PgState::CLEAN) {
            return;
        }
    }
    panic!("never at rest");
}

/// It is away while clients write, and comes back; what it lacks is not recovered by itself.
fn misses_writes(w: &mut World, id: OsdId, steps: usize) {
    w.crash(id);
    w.mark_down(id);
    until_active(w);
    quiet(w, false);
    run(w, steps);
    quiet(w, true);
    run(w, 300);
    w.pace.local = 0;
    w.start(id);
    until_active(w);
}

/// It dies, and its disk with it; what is in its place has nothing.
fn is_lost(w: &mut World, id: OsdId) {
    w.crash(id);
    w.nodes[id as usize].store = crate::store::Store::default();
    w.mark_down(id);
}

/// What is on its way to its disk gets there.
fn commits_all(w: &mut World, id: OsdId) {
    while let Some((pg, token)) = w.nodes[id as usize].store.commit_one() {
        if pg.pg == PG {
            w.event(id, pg, PgEvent::Committed(token));
        }
    }
}

fn ends_well(mut w: World) -> Result<World, String> {
    w.pace.local = 10;
    settle(&mut w).and_then(|()| verify(&w))?;
    Ok(w)
}

/// Two of four have a bad copy, each of another object. Writes go on; one of the two gets the last
/// ones, and then those two are left that lack something. Whatever was acknowledged was on three.
fn two_lag(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = world(seed, (4, 4, 2), bug);
    w.pace.objects = 2;
    rest(&mut w);
    let acting = w.map().acting(PG);
    w.pace.local = 0;
    for (i, id) in [acting[2], acting[3]].into_iter().enumerate() {
        w.nodes[id as usize].store.rotten.insert(object(i));
    }
    quiet(&mut w, false);
    // Both are noticed by a write.
    let noticed = |w: &World| w.stats.get("bad merges").copied().unwrap_or(0) > 1;
    assert!(
        (0..200).any(|_| {
            run(&mut w, 20);
            noticed(&w)
        }),
        "seed {seed}: nothing bad was noticed"
    );
    // By now either lacks something, or writes wait until only one does.
    run(&mut w, 400);
    w.slow.insert((End::Osd(acting[0]), End::Osd(acting[3])), u64::MAX);
    let steps = 50 + w.rng.below(200);
    run(&mut w, steps);
    for id in [acting[0], acting[1]] {
        is_lost(&mut w, id);
    }
    w.slow.clear();
    quiet(&mut w, true);
    ends_well(w)
}

/// A pool that serves with one copy: a write that two members acknowledged is on both, so it
/// outlives the one that was there all the time.
fn one_is_lost(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = world(seed, (3, 3, 1), bug);
    rest(&mut w);
    let acting = w.map().acting(PG);
    misses_writes(&mut w, acting[1], 150);
    // Who has what it missed goes, and comes back later.
    w.crash(acting[2]);
    w.mark_down(acting[2]);
    until_active(&mut w);
    quiet(&mut w, false);
    run(&mut w, 600);
    quiet(&mut w, true);
    is_lost(&mut w, acting[0]);
    w.start(acting[2]);
    ends_well(w)
}

/// The power of those fails that have the data of all entries, before the last ones are on their
/// disks; the one member that lacks data has these, and another OSD is there.
fn the_hollow_one_is_left(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = world(seed, (4, 3, 2), bug);
    rest(&mut w);
    let acting = w.map().acting(PG);
    misses_writes(&mut w, acting[2], 150);
    let pace = w.pace;
    w.pace = w.pace.slow_disks();
    quiet(&mut w, false);
    let steps = 100 + w.rng.below(300);
    run(&mut w, steps);
    for id in [acting[0], acting[1]] {
        w.crash(id);
        w.mark_down(id);
    }
    commits_all(&mut w, acting[2]);
    w.pace = pace;
    quiet(&mut w, true);
    w.change_map(|m| m.out.clear());
    run(&mut w, 3000);
    for id in [acting[0], acting[1]] {
        w.start(id);
    }
    ends_well(w)
}

#[test]
fn writes_wait_where_two_members_lack_objects() {
    goes_well(10, "changes withheld", |seed| two_lag(seed, None));
    fails_with(UNFOUND, 20, |seed| two_lag(seed, Some(Bug::ManyLag)).map(drop));
}

#[test]
fn no_write_is_on_one_whole_copy_alone_where_there_are_two() {
    (0..10).for_each(|seed| {
        drop(one_is_lost(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}")))
    });
    fails_with(UNFOUND, 20, |seed| one_is_lost(seed, Some(Bug::OneWhole)).map(drop));
}

#[test]
fn no_history_is_taken_from_a_hollow_copy_while_those_with_the_data_may_come_back() {
    goes_well(10, "changes withheld", |seed| the_hollow_one_is_left(seed, None));
    fails_with(UNFOUND, 20, |seed| {
        the_hollow_one_is_left(seed, Some(Bug::HollowNotAwaited)).map(drop)
    });
}
