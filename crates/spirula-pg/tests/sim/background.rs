//! Stories of what a PG does in the background: merges, backfill, scrubs.

use crate::scenarios::{goes_well, planted_cluster};
use crate::world::{POOL, World};
use crate::{settle, verify};
use spirula_encoding::{from_slice, to_vec};
use spirula_maps::PgState;
use spirula_messages::cluster::pg::PgHead;
use spirula_pg::{Bug, PgEvent, head_key};
use spirula_types::{OsdId, PgId, SpgId};
use std::sync::Arc;

const PG: PgId = PgId { pool: POOL, seed: 0 };

/// A calm cluster whose OSDs are all up.
pub fn cluster(seed: u64, osds: usize, pgs: u32) -> World {
    let mut w = World::new(seed, osds, 3, pgs, 3);
    w.pace = w.pace.calm();
    w.scrubs = false;
    (0..osds as OsdId).for_each(|id| w.start(id));
    w
}

fn run(w: &mut World, steps: usize) {
    (0..steps).for_each(|_| w.step());
}

/// Steps until that is so.
pub fn until(w: &mut World, what: &str, is: impl Fn(&World) -> bool) {
    for _ in 0..100_000 {
        if is(w) {
            return;
        }
        w.step();
    }
    panic!("never {what}; the PG is {}", state(w, PG));
}

fn state(w: &World, pg: PgId) -> PgState {
    let id = SpgId::whole(pg);
    let alive = w.nodes.iter().filter(|n| n.alive);
    alive
        .filter_map(|n| n.pgs.get(&id).filter(|p| p.is_primary()))
        .map(|p| p.state().0)
        .next()
        .unwrap_or_default()
}

pub fn is_clean(w: &World, pg: PgId) -> bool {
    state(w, pg).has(PgState::CLEAN)
}

pub fn quiet(w: &mut World) {
    w.clients.iter_mut().for_each(|c| c.quiet = true);
}

#[test]
fn a_word_of_clean_is_taken_back_when_a_member_goes_though_the_primary_stays() {
    for seed in 0..10 {
        let mut w = cluster(seed, 4, 2);
        // The real monitor forgets a word that is not repeated; this one does not.
        w.mon_loses = false;
        let pgs = [PG, PgId::new(POOL, 1)];
        // Wanted, and not possible: the two are placed differently.
        w.change_map(|m| m.target = 1);
        assert_ne!(w.map().acting(pgs[0]), w.map().acting(pgs[1]), "the test needs that");
        until(&mut w, "told clean", |w| pgs.iter().all(|pg| w.words.contains_key(pg)));
        let acting = w.map().acting(PG);
        w.crash(acting[2]);
        w.mark_down(acting[2]);
        until(&mut w, "without it", |w| !is_clean(w, PG));
        until(&mut w, "taken back", |w| !w.words.contains_key(&PG));
        assert!(!is_clean(&w, PG), "seed {seed}: {}", state(&w, PG));
        w.start(acting[2]);
        until(&mut w, "told again", |w| w.words.contains_key(&PG));
        assert!(is_clean(&w, PG));
        w.change_map(|m| m.target = 2);
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Listings of a backfill fail (a page of a tree does not read, for a while): `at` the target, or
/// at the primary.
fn unlisted(seed: u64, at_target: bool) {
    let mut w = cluster(seed, 4, 1);
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (8, 4, 80, 0);
    // Or the log would tell everything.
    Arc::make_mut(&mut w.cfg).log_keep = 1;
    let place = |w: &mut World, out: OsdId| w.change_map(|m| m.out = [out].into());
    place(&mut w, 3);
    run(&mut w, 3000);
    quiet(&mut w);
    until(&mut w, "clean", |w| is_clean(w, PG));
    let before = w.map().acting(PG);
    // The primary stays.
    let leaves = before[2];
    let victim = if at_target { 3 } else { before[0] as usize };
    w.nodes[victim].store.unlisted.set(3);
    place(&mut w, leaves);
    until(&mut w, "failed", |w| w.nodes[victim].store.unlisted.get() < 3);
    // Nobody is kept from his work meanwhile.
    until(&mut w, "waiting", |w| state(w, PG).has(PgState::BACKFILL_WAIT));
    until(&mut w, "clean", |w| is_clean(w, PG) && w.map().acting(PG).contains(&3));
    assert_eq!(w.nodes[victim].store.unlisted.get(), 0, "seed {seed}");
    settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
}

#[test]
fn a_listing_that_fails_at_the_target_lets_others_go_on_and_is_tried_again() {
    (0..10).for_each(|seed| unlisted(seed, true));
}

#[test]
fn a_listing_that_fails_at_the_primary_lets_others_go_on_and_is_tried_again() {
    (0..10).for_each(|seed| unlisted(seed, false));
}

/// A deep scrub beside clients, of which the third member reads no more than `most` objects in
/// time.
fn slowly_read(seed: u64, most: usize) {
    let mut w = cluster(seed, 3, 1);
    Arc::make_mut(&mut w.cfg).scrub_chunk = 25;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (6, 6, 90, 0);
    until(&mut w, "clean", |w| is_clean(w, PG));
    run(&mut w, 5000);
    let acting = w.map().acting(PG);
    w.slow_scans = Some((acting[2], most));
    let stamps = |w: &World| {
        w.nodes[acting[0] as usize].pgs[&SpgId::whole(PG)].scrub_stamps().map(|(_, deep)| deep)
    };
    let last = stamps(&w);
    w.event(
        acting[0],
        SpgId::whole(PG),
        PgEvent::Scrub { deep: true, repair: false, large: Default::default() },
    );
    let before = w.stats.get("scrubs").copied().unwrap_or(0);
    let end = w.now + 900_000;
    while w.now < end && w.stats.get("scrubs").copied().unwrap_or(0) == before {
        w.step();
    }
    let of = |what: &str| w.stats.get(what).copied().unwrap_or(0);
    assert!(of("scrubs") > before && of("scrubs given up") == 0, "seed {seed}: {:?}", w.stats);
    assert!(of("slow scans") > 0, "seed {seed}: nothing was slow");
    assert_eq!(of("wrong counts"), 0);
    until(&mut w, "clean", |w| is_clean(w, PG));
    assert_eq!(
        stamps(&w) == last,
        most == 0,
        "seed {seed}: what was not read was not deeply scrubbed"
    );
    settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
}

#[test]
fn a_deep_scrub_that_reads_slowly_goes_on_in_smaller_pieces() {
    (0..5).for_each(|seed| slowly_read(seed, 2));
}

#[test]
fn what_cannot_be_read_in_time_at_all_does_not_stop_a_deep_scrub() {
    (0..5).for_each(|seed| slowly_read(seed, 0));
}

/// Objects with more clones than a chunk may have are scrubbed all the time, beside writes that
/// make clones and trims that take some away. Nothing is wrong with them, and no chunk has more
/// than it may.
fn clones_in_pieces(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    Arc::make_mut(&mut w.cfg).scrub_chunk = 2;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (3, 6, 80, 10);
    (w.pace.snaps, w.pace.removes) = (20, true);
    let (id, primary) = (SpgId::whole(PG), w.map().acting(PG)[0]);
    for round in 0..50 {
        w.event(
            primary,
            id,
            PgEvent::Scrub { deep: round % 2 == 0, repair: false, large: Default::default() },
        );
        (0..3).for_each(|_| {
            run(&mut w, 60);
            w.step_snaps();
        });
        let state = w.nodes[primary as usize].pgs[&id].state().0;
        if state.has(PgState::INCONSISTENT) || w.stats.contains_key("wrong counts") {
            return Err(format!(
                "a scrub of objects in pieces finds what is not there: {:?}",
                w.stats
            ));
        }
    }
    settle(&mut w)?;
    verify(&w).map(|()| w)
}

#[test]
fn objects_with_many_clones_are_scrubbed_in_pieces() {
    goes_well(8, "objects scrubbed in pieces", |seed| {
        let w = clones_in_pieces(seed, None)?;
        w.stats.get("snapshots purged").map(|_| ()).ok_or("nothing was trimmed")?;
        Ok(w)
    });
    let caught =
        (0..8).filter_map(|seed| clones_in_pieces(seed, Some(Bug::ScrubKeepsTrimmed)).err());
    let caught: Vec<String> = caught.collect();
    assert!(caught.iter().any(|e| e.contains("finds what is not there")), "{caught:?}");
}

#[test]
fn counts_that_are_wrong_are_an_error_until_they_are_repaired() {
    for seed in 0..10 {
        let mut w = cluster(seed, 3, 1);
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (8, 6, 60, 20);
        until(&mut w, "clean", |w| is_clean(w, PG));
        run(&mut w, 3000);
        let id = SpgId::whole(PG);
        // Clients go on writing while it scrubs.
        let scrub = |w: &mut World, repair: bool| {
            let done = |w: &World| w.stats.get("scrubs").copied().unwrap_or(0);
            let before = done(w);
            let primary = w.map().acting(PG)[0];
            w.event(
                primary,
                id,
                PgEvent::Scrub { deep: repair, repair, large: Default::default() },
            );
            until(w, "scrubbed", |w| done(w) > before);
        };
        let wrong = |w: &World| w.stats.get("wrong counts").copied().unwrap_or(0);
        scrub(&mut w, false);
        assert_eq!(wrong(&w), 0, "seed {seed}: counts were right");
        // Every copy's record of the counts is wrong.
        for n in 0..3 {
            w.crash(n);
            w.mark_down(n);
            let store = &mut w.nodes[n as usize].store;
            for meta in [&mut store.applied.meta, &mut store.durable.meta] {
                let record = meta.get_mut(&head_key(id)[..]).unwrap();
                let mut head: PgHead = from_slice(record).unwrap();
                (head.counts.objects, head.counts.bytes) =
                    (head.counts.objects + 3, head.counts.bytes + 1000);
                *record = to_vec(&head).into();
            }
        }
        (0..3).for_each(|n| w.start(n));
        until(&mut w, "clean", |w| is_clean(w, PG));
        scrub(&mut w, false);
        assert_eq!(wrong(&w), 1, "seed {seed}");
        assert!(state(&w, PG).has(PgState::INCONSISTENT), "seed {seed}: {}", state(&w, PG));
        scrub(&mut w, true);
        scrub(&mut w, false);
        assert_eq!(wrong(&w), 2, "seed {seed}: the repair found it once more, and mended it");
        assert!(!state(&w, PG).has(PgState::INCONSISTENT), "seed {seed}");
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// The target of a backfill has no room any more, and its word of that is lost.
#[test]
fn a_target_that_fills_up_stops_its_backfill_though_its_word_is_lost() {
    for seed in 0..10 {
        let mut w = cluster(seed, 4, 1);
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (20, 6, 90, 0);
        (Arc::make_mut(&mut w.cfg).log_keep, Arc::make_mut(&mut w.cfg).push_window) = (1, 1);
        w.change_map(|m| m.out = [3].into());
        until(&mut w, "clean", |w| is_clean(w, PG));
        run(&mut w, 5000);
        quiet(&mut w);
        until(&mut w, "clean", |w| is_clean(w, PG));
        let leaves = w.map().acting(PG)[2];
        w.change_map(|m| m.out = [leaves].into());
        until(&mut w, "backfilling", |w| state(w, PG).has(PgState::BACKFILLING));
        w.peer_loses = Some(("TooFull", 100));
        assert!(w.fills_up(3), "seed {seed}: nothing was granted");
        assert!(w.stats.contains_key("messages lost"), "seed {seed}");
        w.peer_loses = None;
        until(&mut w, "told", |w| state(w, PG).has(PgState::BACKFILL_TOOFULL) || is_clean(w, PG));
        assert!(!is_clean(&w, PG), "seed {seed}: it was filled all the same");
        until(&mut w, "clean", |w| is_clean(w, PG));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A copy is deleted, and listing it fails for a while.
#[test]
fn a_deletion_whose_listing_fails_goes_on() {
    for seed in 0..10 {
        let mut w = cluster(seed, 4, 1);
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (8, 4, 80, 0);
        w.change_map(|m| m.out = [3].into());
        until(&mut w, "clean", |w| is_clean(w, PG));
        run(&mut w, 3000);
        quiet(&mut w);
        let leaves = w.map().acting(PG)[2];
        w.change_map(|m| m.out = [leaves].into());
        until(&mut w, "deleting", |w| {
            !w.nodes[leaves as usize].store.applied.logs.contains_key(&PG)
        });
        w.nodes[leaves as usize].store.unlisted.set(2);
        let gone = |w: &World| !w.nodes[leaves as usize].pgs.contains_key(&SpgId::whole(PG));
        until(&mut w, "deleted", gone);
        assert_eq!(
            w.nodes[leaves as usize].store.unlisted.get(),
            0,
            "seed {seed}: no listing failed"
        );
        assert!(w.nodes[leaves as usize].store.applied.objects.is_empty(), "seed {seed}");
    }
}

/// A world at rest whose first primary, stopped, lacks what was written since.
fn primary_that_lags(seed: u64) -> (World, OsdId) {
    let mut w = cluster(seed, 3, 1);
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (20, 6, 90, 0);
    let cfg = Arc::make_mut(&mut w.cfg);
    (cfg.log_keep, cfg.log_max, cfg.primary_lag) = (100_000, 200_000, 100_000);
    until(&mut w, "clean", |w| is_clean(w, PG));
    run(&mut w, 1500);
    let first = w.map().acting(PG)[0];
    w.crash(first);
    w.mark_down(first);
    run(&mut w, 3000);
    quiet(&mut w);
    until(&mut w, "without it", |w| {
        state(w, PG).has(PgState::ACTIVE) && w.clients.iter().all(|c| c.idle())
    });
    (w, first)
}

/// A primary lacks what was written while it was away, and its disk is full: it gets none of it by
/// recovery, clients may delete, and once there is room all is as it was.
#[test]
fn a_full_primary_does_not_recover_into_itself_and_objects_can_be_deleted() {
    for seed in 0..10 {
        let (mut w, first) = primary_that_lags(seed);
        w.full.insert(first);
        w.start(first);
        until(&mut w, "full", |w| state(w, PG).has(PgState::RECOVERY_TOOFULL) || is_clean(w, PG));
        assert!(!is_clean(&w, PG), "seed {seed}: it recovered into itself");
        assert_eq!(w.map().acting(PG)[0], first, "seed {seed}");
        let recovered = |w: &World| w.stats.get("objects recovered").copied().unwrap_or(0);
        let before = recovered(&w);
        run(&mut w, 3000);
        assert_eq!(recovered(&w), before, "seed {seed}");
        (w.pace.appends, w.pace.deletes) = (100, 100);
        w.clients.iter_mut().for_each(|c| c.quiet = false);
        run(&mut w, 1000);
        quiet(&mut w);
        until(&mut w, "answered", |w| w.clients.iter().all(|c| c.idle()));
        w.full.clear();
        until(&mut w, "clean", |w| is_clean(w, PG));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A primary lacks what was written while it was away, and its disk has no room at all: those who
/// read of that wait, and fill it no further. Once there is room all is as it was.
#[test]
fn what_readers_want_is_not_fetched_into_a_disk_without_room() {
    for seed in 0..10 {
        let (mut w, first) = primary_that_lags(seed);
        w.full.insert(first);
        w.nodes[first as usize].store.full = true;
        w.start(first);
        until(&mut w, "full", |w| state(w, PG).has(PgState::RECOVERY_TOOFULL) || is_clean(w, PG));
        let recovered = |w: &World| w.stats.get("objects recovered").copied().unwrap_or(0);
        let before = recovered(&w);
        (w.pace.appends, w.pace.deletes) = (0, 0);
        w.clients.iter_mut().for_each(|c| c.quiet = false);
        run(&mut w, 1000);
        quiet(&mut w);
        run(&mut w, 1000);
        assert_eq!(recovered(&w), before, "seed {seed}: it fills itself for those who read");
        assert!(w.clients.iter().any(|c| !c.idle()), "seed {seed}: nobody reads what it lacks");
        w.full.clear();
        w.nodes[first as usize].store.full = false;
        until(&mut w, "answered", |w| w.clients.iter().all(|c| c.idle()));
        until(&mut w, "clean", |w| is_clean(w, PG));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A PG begins anew where a deletion that was interrupted has left objects, and listing those fails
/// for a while.
#[test]
fn a_creation_whose_listing_fails_is_tried_again_and_takes_nothing_over() {
    for seed in 0..10 {
        let mut old = cluster(seed, 3, 1);
        (old.pace.objects, old.pace.under_way, old.pace.appends, old.pace.deletes) = (8, 4, 80, 0);
        until(&mut old, "clean", |w| is_clean(w, PG));
        run(&mut old, 2000);
        let left = old.nodes[0].store.applied.objects.clone();
        assert!(left.len() > 2, "seed {seed}: nothing is left");
        let mut w = World::new(seed, 3, 3, 1, 3);
        w.pace = w.pace.calm();
        w.scrubs = false;
        (w.pace.objects, w.pace.appends, w.pace.deletes) = (8, 20, 0);
        for n in &mut w.nodes {
            (n.store.applied.objects, n.store.durable.objects) = (left.clone(), left.clone());
            n.store.unlisted.set(1);
        }
        (0..3).for_each(|id| w.start(id));
        until(&mut w, "clean", |w| is_clean(w, PG));
        let failed = w.nodes.iter().all(|n| n.store.unlisted.get() == 0);
        assert!(failed, "seed {seed}: no listing failed");
        run(&mut w, 1000);
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
