//! Clients that watch an object and cannot ping it, because they were told to hold what they have
//! for it.

use crate::client::object;
use crate::hand::Hand;
use crate::scenarios::{PG, cluster, run, stop, until_active};
use crate::world::World;
use spirula_maps::PgState;
use spirula_messages::ceph::op::{OsdOp, watch};
use spirula_pg::{Patience, PgEvent};
use spirula_types::{OsdId, Peer, SpgId, errno};

const COOKIE: u64 = 7;

fn ping() -> OsdOp {
    OsdOp::watch(COOKIE, watch::PING, 1, 0)
}

fn state(w: &World) -> PgState {
    let primary = w.map().acting(PG)[0] as usize;
    w.nodes[primary].pgs.get(&SpgId::whole(PG)).map(|p| p.state().0).unwrap_or_default()
}

fn noted(w: &World, what: &str) -> u64 {
    w.stats.get(what).copied().unwrap_or(0)
}

/// Until something holds.
fn until(w: &mut World, what: &str, holds: impl Fn(&World) -> bool) {
    for _ in 0..60_000 {
        if holds(w) {
            return;
        }
        w.step();
    }
    panic!("never {what}: {}", state(w));
}

fn clean(w: &World) -> bool {
    let there = w
        .nodes
        .iter()
        .filter(|n| n.alive)
        .all(|n| n.epoch == w.map().epoch && n.store.pending.is_empty());
    there && w.clients.iter().all(|c| c.idle()) && state(w) == PgState::ACTIVE | PgState::CLEAN
}

/// A PG of three copies of one object, on three of four OSDs.
fn written(seed: u64, min_size: usize) -> World {
    let mut w = cluster(seed, 4);
    w.scrubs = false;
    w.change_map(|m| m.min_size = min_size);
    (w.pace.objects, w.pace.appends, w.pace.deletes) = (1, 90, 0);
    run(&mut w, 1500);
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    until(&mut w, "clean", clean);
    let primary = w.map().acting(PG)[0];
    assert!(
        w.nodes[primary as usize].store.applied.objects.contains_key(&object(0)),
        "seed {seed}: no object"
    );
    w
}

/// A client watches the object, for thirty seconds after each ping.
fn watched(w: World, seed: u64) -> (Hand, Vec<OsdId>) {
    let acting = w.map().acting(PG);
    let mut h = Hand::new(w, Peer::new(acting[0], -1));
    h.patience = Patience::Long;
    for o in [OsdOp::watch(COOKIE, watch::WATCH, 1, 30), ping()] {
        let op = h.send(1, o);
        assert_eq!(h.answer(op).unwrap().result, 0, "seed {seed}");
    }
    (h, acting)
}

/// Its client is told to hold the next ping, and more time passes than the watch has.
fn held(h: &mut Hand, seed: u64) {
    let before = noted(&h.w, "dropped by hand");
    let held = h.send(1, ping());
    run(&mut h.w, 100);
    assert!(noted(&h.w, "dropped by hand") > before, "seed {seed}: its client is told nothing");
    assert!(!h.w.told.contains_key(&held), "seed {seed}: it is answered");
    for _ in 0..31 {
        h.w.now += 1000;
        h.w.event(h.at, h.id, PgEvent::Tick);
    }
    run(&mut h.w, 100);
}

/// The next ping, after whatever the PG does by itself; then there are no more, and the watch ends.
fn pings_again(mut h: Hand, seed: u64) {
    let next_ping = |h: &mut Hand| {
        h.w.event(h.at, h.id, PgEvent::Tick);
        run(&mut h.w, 20);
        let op = h.send(1, ping());
        h.answer(op).unwrap().result
    };
    assert_eq!(next_ping(&mut h), 0, "seed {seed}: the watch has ended");
    for _ in 0..40 {
        h.w.now += 1000;
        h.w.event(h.at, h.id, PgEvent::Tick);
        run(&mut h.w, 60);
    }
    assert_eq!(next_ping(&mut h), -errno::ENOTCONN, "seed {seed}: the watch stays");
}

#[test]
fn a_watch_outlives_the_time_for_which_its_object_is_unfound() {
    for seed in 0..10 {
        let w = written(seed, 1);
        let (mut h, before) = watched(w, seed);
        until(&mut h.w, "clean", clean);
        // One that has all goes, and is not to be a member any more.
        let stray = before[2];
        stop(&mut h.w, stray..stray + 1);
        h.w.change_map(|m| m.out.extend([stray]));
        until_active(&mut h.w);
        let acting = h.w.map().acting(PG);
        assert_eq!(acting, before[..2], "seed {seed}");
        acting.iter().for_each(|o| h.w.nodes[*o as usize].store.rotten.extend([object(0)]));
        h.send(2, OsdOp::read(0, 0));
        until(&mut h.w, "unfound", |w| state(w).has(PgState::RECOVERY_UNFOUND));
        held(&mut h, seed);
        let before = noted(&h.w, "objects unblocked");
        h.w.start(stray);
        until(&mut h.w, "found", |w| noted(w, "objects unblocked") > before);
        assert_eq!(h.w.map().acting(PG), acting, "seed {seed}: the interval is the same");
        pings_again(h, seed);
    }
}

#[test]
fn a_watch_outlives_the_time_for_which_its_pg_does_not_serve() {
    for seed in 0..10 {
        let w = written(seed, 2);
        let (mut h, acting) = watched(w, seed);
        acting[1..].iter().for_each(|o| stop(&mut h.w, *o..*o + 1));
        until(&mut h.w, "peered", |w| state(w).has(PgState::PEERED));
        held(&mut h, seed);
        acting[1..].iter().for_each(|o| h.w.start(*o));
        until_active(&mut h.w);
        assert_eq!(h.w.map().acting(PG)[0], acting[0], "seed {seed}: the primary is the same");
        pings_again(h, seed);
    }
}
