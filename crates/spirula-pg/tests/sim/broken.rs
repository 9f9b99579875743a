//! What cannot happen has happened (`invariant!`), as in a release, which does not panic: the PG
//! peers anew and goes on.

use crate::scenarios::{PG, active, cluster, run, until_active};
use crate::world::World;
use crate::{settle, verify};
use spirula_pg::PgEvent;
use spirula_types::{OsdId, SpgId};

/// A member's PG breaks, and hears of it with its next event.
fn breaks(w: &mut World, on: OsdId) {
    let pg = w.nodes[on as usize].pgs.get_mut(&SpgId::whole(PG)).unwrap();
    pg.break_as_in_a_release();
    w.event(on, SpgId::whole(PG), PgEvent::Tick);
}

/// Steps until the PG peers, if it does soon.
fn peers(w: &mut World) -> bool {
    (0..3000).any(|_| {
        w.step();
        !active(w)
    })
}

/// With requests under way, the PG of the primary or of another member breaks; twice. Was the
/// second time so soon after the first that it had to wait?
fn broken(seed: u64, member: usize) -> Result<bool, String> {
    let mut w = cluster(seed, 3);
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (3, 6, 80);
    run(&mut w, 400);
    until_active(&mut w);
    let (acting, epoch) = (w.map().acting(PG), w.map().epoch);
    let (on, first) = (acting[member], w.now);
    breaks(&mut w, on);
    // The primary at once; that of another member hears of it.
    if member == 0 && active(&w) || member > 0 && !peers(&mut w) {
        return Err(format!("osd.{on} goes on with what is in memory"));
    }
    until_active(&mut w);
    // Not at once again, or one that breaks each time would do nothing else.
    let soon = w.now < first + w.cfg.retry_ms;
    breaks(&mut w, on);
    if soon && !active(&w) {
        return Err(format!("osd.{on} peers twice within {} ms", w.now - first));
    }
    if active(&w) && !peers(&mut w) {
        return Err(format!("osd.{on} never peers again"));
    }
    until_active(&mut w);
    run(&mut w, 1500);
    assert_eq!(
        (w.map().acting(PG), w.map().epoch),
        (acting, epoch),
        "seed {seed}: no new map, no new interval"
    );
    settle(&mut w).and_then(|()| verify(&w)).map(|()| soon)
}

#[test]
fn a_pg_that_finds_itself_broken_peers_anew_and_goes_on() {
    let told = |(seed, member)| {
        broken(seed, member).unwrap_or_else(|e| panic!("seed {seed}, member {member}: {e}"))
    };
    let soon = (0..15).flat_map(|s| [(s, 0), (s, 1)]).filter(|case| told(*case)).count();
    println!("broken again soon: {soon} of 30");
    assert!(soon > 3, "{soon}");
}
