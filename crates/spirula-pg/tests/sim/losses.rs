//! Stories of what is lost on the way between OSDs that live: nothing else goes wrong, and no map
//! says anything.

use crate::client::{check, object, tokens};
use crate::past::Past;
use crate::planted::fails_with;
use crate::scenarios::{PG, active, place, planted_cluster, run, stop, until_active};
use crate::world::{KINDS, SCRUB_LOST_MS, SELDOM, World};
use crate::{settle, verify};
use spirula_maps::PgState;
use spirula_pg::{Bug, PgEvent};
use spirula_types::{EVersion, OsdId, SpgId};
use std::sync::Arc;

/// Is the PG clean, and every client answered, without the help of any new map?
fn comes_back(w: &mut World) -> bool {
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    w.mon_loses = false;
    for _ in 0..600 {
        run(w, 100);
        let newest = w.map().epoch;
        for c in 0..w.clients.len() {
            w.client_map(c, newest);
        }
        let primary = w.map().acting(PG)[0] as usize;
        let state = w.nodes[primary].pgs.get(&SpgId::whole(PG)).map(|p| p.state().0);
        if w.clients.iter().all(|c| c.idle()) && state == Some(PgState::ACTIVE | PgState::CLEAN) {
            return true;
        }
    }
    false
}

fn state_of(w: &World) -> String {
    let primary = w.map().acting(PG)[0] as usize;
    let waiting =
        w.clients.iter().flat_map(|c| c.history.values()).filter(|d| d.done.is_none()).count();
    let state = w.nodes[primary].pgs.get(&SpgId::whole(PG)).map(|p| p.state().0.to_string());
    format!("{state:?}, {waiting} requests wait")
}

/// What clients were told, against what the primary has that leads now.
fn told(w: &World) -> Result<(), String> {
    let primary = w.map().acting(PG)[0] as usize;
    (0..w.pace.objects).try_for_each(|i| {
        let fin = w.nodes[primary].store.applied.objects.get(&object(i)).map(|o| tokens(&o.data));
        let history: Vec<_> =
            w.clients.iter().flat_map(|c| c.history.values()).filter(|d| d.object == i).collect();
        let fin = Past { head: fin, ..Past::default() };
        check(&history, &fin, &w.map().snaps).map_err(|e| format!("CLIENTS SEE object{i}: {e}"))
    })
}

/// One write from the primary to a member is lost, later ones arrive; then the primary dies, or
/// nobody does. `None`: there was no write on its way.
pub fn lost_write(seed: u64, kill: bool, bug: Option<Bug>) -> Option<Result<(), String>> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (3, 6, 80, 0);
    run(&mut w, 300);
    let acting = w.map().acting(PG);
    let epoch = w.map().epoch;
    let mut lost = None;
    for _ in 0..3000 {
        w.step();
        lost = w.lose_write(acting[0], acting[1]);
        if lost.is_some() {
            break;
        }
    }
    let lost: EVersion = lost?;
    run(&mut w, 1500);
    assert_eq!(
        (w.map().epoch, w.map().acting(PG)),
        (epoch, acting.clone()),
        "seed {seed}: no new map, no new interval"
    );
    if kill {
        stop(&mut w, acting[0]..acting[0] + 1);
        until_active(&mut w);
        run(&mut w, 1500);
    } else if !comes_back(&mut w) {
        return Some(Err(format!("STUCK after {lost} was lost: {}", state_of(&w))));
    }
    Some(settle(&mut w).and_then(|()| told(&w)).and_then(|()| verify(&w)))
}

#[test]
fn a_lost_write_is_never_acknowledged_and_comes_again() {
    let mut tried = 0;
    for (seed, kill) in (0..20).flat_map(|s| [(s, true), (s, false)]) {
        if let Some(r) = lost_write(seed, kill, None) {
            r.unwrap_or_else(|e| panic!("kill {kill} seed {seed}: {e}"));
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}

/// A PG whose members go, come back, and move, while messages of one kind are lost. Then nothing is
/// lost any more, and no map changes: everything must come back by itself. How many were lost.
fn loses(seed: u64, kind: &'static str, erasure: bool, bug: Option<Bug>) -> Result<u64, String> {
    let mut w = if erasure {
        let mut w = World::new(seed, 4, 3, 1, 3);
        bug.into_iter().for_each(|b| w.plant(b));
        let map = w.maps.last_mut().unwrap();
        (map.ec, map.min_size) = (Some((2, 1)), 2);
        w.pace = w.pace.calm();
        (0..4).for_each(|id| w.start(id));
        run(&mut w, 3000);
        w
    } else {
        planted_cluster(seed, 4, bug)
    };
    w.scrubs = false;
    // Some by the log, some by backfill.
    let cfg = Arc::make_mut(&mut w.cfg);
    (cfg.log_keep, cfg.log_max) = if seed.is_multiple_of(2) { (3, 3) } else { (1000, 1000) };
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (6, 4, 80, 10);
    w.peer_loses = Some((kind, 20));
    for _ in 0..20 {
        run(&mut w, 25);
        if kind == "Gap" {
            // That one is missing is said where another one is lost.
            let members = w.map().members(PG);
            w.lose_write(members[0].osd, members[1].osd);
        }
        if kind.starts_with("Rotten") && !erasure {
            // A member finds under a write that its copy is bad. Another one than the primary's:
            // each object has good copies.
            let (member, o) = (w.map().acting(PG)[1] as usize, object(w.rng.below(6)));
            if w.nodes[member].store.applied.objects.contains_key(&o) {
                w.nodes[member].store.rotten.insert(o);
            }
        }
    }
    // A primary that returns asks others for what it lacks, some of which is bad there.
    let leads = seed.is_multiple_of(3);
    let id = if leads { w.map().acting(PG)[0] } else { w.rng.below(3) as OsdId };
    stop(&mut w, id..id + 1);
    run(&mut w, 600);
    let rots = |w: &mut World, victim: OsdId| {
        let o = object(w.rng.below(6));
        let there =
            w.nodes.get(victim as usize).is_some_and(|n| n.store.applied.objects.contains_key(&o));
        if there && !erasure {
            w.nodes[victim as usize].store.rotten.insert(o);
        }
        there && !erasure
    };
    if leads {
        for victim in w.map().acting(PG).into_iter().take(1) {
            (0..6).for_each(|_| {
                rots(&mut w, victim);
            });
        }
    }
    if kind == "ScanFailed" {
        // Who comes back cannot list its objects, some times.
        w.nodes[id as usize].store.unlisted.set(3);
    }
    w.start(id);
    run(&mut w, 1500);
    let acting = w.map().acting(PG);
    if !leads && acting.get(1).is_some_and(|victim| rots(&mut w, *victim)) {
        w.event(
            acting[0],
            SpgId::whole(PG),
            PgEvent::Scrub { deep: true, repair: true, large: Default::default() },
        );
    }
    if kind == "TooFull" {
        w.full = (0..4).collect();
    }
    place(&mut w, 1..4);
    run(&mut w, 1500);
    w.full.clear();
    let back = w.rng.below(4) as OsdId;
    w.change_map(|m| m.out = [back].into());
    run(&mut w, 1000);
    w.peer_loses = None;
    if kind.starts_with("Scrub") {
        w.now += SCRUB_LOST_MS;
    }
    let lost = w.stats.get("messages lost").copied().unwrap_or(0);
    if erasure {
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        let all_clean = (0..600).any(|_| {
            run(&mut w, 100);
            let newest = w.map().epoch;
            (0..w.clients.len()).for_each(|c| w.client_map(c, newest));
            w.clients.iter().all(|c| c.idle()) && active_and_clean(&w)
        });
        if !all_clean {
            return Err(format!("STUCK: {kind}"));
        }
    } else if !comes_back(&mut w) {
        return Err(format!("STUCK: {kind}: {}", state_of(&w)));
    }
    settle(&mut w).and_then(|()| verify(&w)).map(|()| lost)
}

fn active_and_clean(w: &World) -> bool {
    let Some(first) = w.map().members(PG).first().copied() else { return false };
    let pg = w.nodes[first.osd as usize].pgs.get(&SpgId::new(PG, first.shard));
    pg.is_some_and(|p| p.state().0 == PgState::ACTIVE | PgState::CLEAN)
}

#[test]
fn one_loss() {
    if let Ok(kind) = std::env::var("SIM_LOSS") {
        let seed = std::env::var("SIM_SEED").unwrap().parse().unwrap();
        let kind = KINDS.into_iter().chain(SELDOM).find(|k| *k == kind).unwrap();
        loses(seed, kind, std::env::var("SIM_EC").is_ok(), None).unwrap();
    }
}

/// What is not sent in this story: it needs a bad copy that is met by recovery, or clones. Runs by
/// chance lose it.
const NEVER_SENT: [&str; 2] = ["PullFailed", "PushRefused"];

#[test]
fn whatever_kind_of_message_is_lost_comes_again() {
    let mut none = Vec::new();
    for kind in KINDS.into_iter().chain(SELDOM) {
        let mut lost = 0;
        for seed in 0..12 {
            for erasure in [false, true] {
                lost += loses(seed, kind, erasure, None).unwrap_or_else(|e| {
                    panic!("{kind} seed {seed}, erasure coding {erasure}: {e}")
                });
            }
        }
        println!("{kind:>12}: {lost} lost");
        if lost == 0 {
            none.push(kind);
        }
    }
    none.retain(|kind| !NEVER_SENT.contains(kind));
    assert!(none.is_empty(), "never lost, so not tried: {none:?}");
}

/// Whole sessions are lost, one after the other, and both ends are told.
pub fn lost_sessions(seed: u64, bug: Option<Bug>) -> Result<u64, String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (6, 6, 80, 10);
    run(&mut w, 3000);
    for _ in 0..60 {
        run(&mut w, 20);
        let (a, b) = (w.rng.below(3) as OsdId, w.rng.below(3) as OsdId);
        if a != b {
            w.lose_session(a, b, true);
        }
    }
    if !comes_back(&mut w) || !active(&w) {
        return Err(format!("STUCK: {}", state_of(&w)));
    }
    let lost = w.stats.get("lost with sessions").copied().unwrap_or(0);
    settle(&mut w).and_then(|()| verify(&w)).map(|()| lost)
}

#[test]
fn lost_sessions_hold_nothing_up() {
    let lost: u64 = (0..30)
        .map(|seed| lost_sessions(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}")))
        .sum();
    assert!(lost > 100, "{lost}");
}

/// Every planted bug shows by the failure that it must cause, whatever else goes wrong.
#[test]
fn sim_planted_bugs_of_losses_fail_as_they_must() {
    let gap = |seed: u64| lost_write(seed, true, Some(Bug::GapAccepted)).unwrap_or(Ok(()));
    fails_with("NO PREFIX", 20, gap);
    fails_with("STUCK", 20, |seed| {
        lost_write(seed, false, Some(Bug::LossUntold)).unwrap_or(Ok(()))
    });
    fails_with("STUCK", 20, |seed| lost_sessions(seed, Some(Bug::LossUntold)).map(|_| ()));
}
