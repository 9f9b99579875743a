//! Stories of who is asked and goes, or calls before he is asked: nothing waits for him for ever,
//! and what only his answer says is not taken as said.

use crate::client::object;
use crate::planted::{UNFOUND, fails_with};
use crate::scenarios::{PG, goes_well, race, run, stop, until_active};
use crate::world::{End, World};
use crate::{settle, verify};
use spirula_maps::PgState;
use spirula_pg::shard::store_object;
use spirula_pg::{Bug, PgEvent};
use spirula_types::{OsdId, SpgId};
use std::sync::Arc;

/// A calm cluster with one PG, of which nothing runs yet, and the order in which its OSDs are
/// chosen.
fn world(seed: u64, osds: usize, size: usize) -> (World, Vec<OsdId>) {
    let mut w = World::new(seed, osds, size, 1, 3);
    w.scrubs = false;
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (1, 2, 50, 0);
    let mut all = w.map().clone();
    all.size = osds;
    all.up.extend((0..osds as OsdId).map(|o| (o, (1, 1))));
    let order = all.up_set(PG);
    (w, order)
}

fn start_all(w: &mut World, out: &[OsdId]) {
    w.maps.last_mut().unwrap().out = out.iter().copied().collect();
    (0..w.nodes.len() as OsdId).for_each(|o| w.start(o));
}

fn state(w: &World) -> PgState {
    let Some(first) = w.map().members(PG).first().copied() else { return PgState::UNKNOWN };
    let pg = w.nodes[first.osd as usize].pgs.get(&SpgId::new(PG, first.shard));
    pg.map(|p| p.state().0).unwrap_or_default()
}

/// Runs until the PG's state is so; false if it never is. No map helps.
fn comes_to(w: &mut World, is: impl Fn(PgState) -> bool) -> bool {
    (0..400).any(|_| {
        run(w, 100);
        is(state(w))
    })
}

/// Lets pass what is longer than any lease.
fn pass_leases(w: &mut World) {
    let until = w.now + 4000;
    while w.now < until {
        w.step();
    }
}

/// Who leads by now is cut off from the monitor, from clients' news, and from who leads next; not
/// from the other members, which go on giving it leases until they hear of the next map.
fn cut_off(w: &mut World, old: OsdId) {
    w.nodes[old as usize].blind_until = u64::MAX;
    w.clients[0].blind_until = u64::MAX;
    w.clients[0].only = Some(false);
    w.clients[1].only = Some(true);
    w.clients[2].only = Some(true);
}

/// It is marked down, and other OSDs are out.
fn replace(w: &mut World, old: OsdId, out: Vec<OsdId>) {
    w.change_map(|m| {
        m.up.remove(&old);
        let o = m.osds.entry(old).or_default();
        (o.up, o.dead) = (false, false);
        m.out = out.into_iter().collect();
    });
}

/// Only a member that calls the new primary before it is asked knows of the old one's lease. The
/// new primary has nothing, or (`returned`) a copy from before, and the member is not its own any
/// more.
fn caller_knows_of_a_lease(seed: u64, returned: bool) -> Result<World, String> {
    let (mut w, order) = world(seed, 4, 2);
    let cfg = Arc::make_mut(&mut w.cfg);
    // The log tells everything: whoever is first in the order leads.
    (cfg.log_keep, cfg.primary_lag) = (100_000, 100_000);
    let [next, old, other, last] = order[..] else { unreachable!() };
    if returned {
        start_all(&mut w, &[last]);
        until_active(&mut w);
        run(&mut w, 600);
        stop(&mut w, next..next + 1);
        w.change_map(|m| m.out = [next, last].into());
    } else {
        start_all(&mut w, &[next]);
    }
    until_active(&mut w);
    run(&mut w, 1500);
    assert_eq!(w.map().acting(PG), [old, other]);
    w.slow.insert((End::Osd(old), End::Osd(next)), u64::MAX);
    w.slow.insert((End::Osd(old), End::Osd(last)), u64::MAX);
    w.nodes[next as usize].blind_until = u64::MAX;
    if returned {
        w.start(next);
    }
    // What the next ones have granted, or forgotten, is over.
    pass_leases(&mut w);
    cut_off(&mut w, old);
    replace(&mut w, old, if returned { vec![old, other] } else { vec![old] });
    assert_eq!(w.map().acting(PG), [next, if returned { last } else { other }]);
    // It is the last to get the map: who has called by then did so before it could ask.
    run(&mut w, 200);
    w.nodes[next as usize].blind_until = 0;
    let since = w.now;
    run(&mut w, 10_000);
    race(&mut w, since);
    w.clients[0].blind_until = 0;
    settle(&mut w).and_then(|()| verify(&w)).map(|()| w)
}

#[test]
fn a_primary_waits_for_a_lease_of_which_only_a_caller_knows() {
    for returned in [false, true] {
        goes_well(10, "a lease was raced", |seed| caller_knows_of_a_lease(seed, returned));
    }
}

/// A copy outside the members is to serve again, and its OSD goes while the monitor is asked for
/// that.
#[test]
fn a_copy_that_is_to_serve_and_goes_is_not_waited_for() {
    for seed in 0..20 {
        let (mut w, order) = world(seed, 4, 3);
        let cfg = Arc::make_mut(&mut w.cfg);
        // While it is clean the log is short, so that a newcomer must be filled.
        (cfg.log_keep, cfg.log_max, cfg.log_slack) = (3, 100_000, 0);
        let [first, _, returns, new] = order[..] else { unreachable!() };
        start_all(&mut w, &[new]);
        until_active(&mut w);
        run(&mut w, 3000);
        // The next activation is without it, so it is not among those whom later ones must hear.
        stop(&mut w, returns..returns + 1);
        w.change_map(|m| m.out = [returns, new].into());
        until_active(&mut w);
        run(&mut w, 300);
        w.start(returns);
        run(&mut w, 600);
        w.slow.insert((End::Osd(new), End::Osd(first)), u64::MAX);
        w.change_map(|m| m.out = [returns].into());
        run(&mut w, 1500);
        w.slow.clear();
        w.slow.insert((End::Osd(first), End::Mon), u64::MAX);
        run(&mut w, 1500);
        assert!(state(&w).has(PgState::PEERING), "seed {seed}: {}", state(&w));
        stop(&mut w, returns..returns + 1);
        w.slow.clear();
        w.mon_loses = false;
        assert!(comes_to(&mut w, |s| s.has(PgState::ACTIVE)), "seed {seed}: {}", state(&w));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// The only good copy of an object is outside the members; its OSD goes when all of it has come and
/// is not yet on the disk.
#[test]
fn the_last_piece_of_an_object_has_come_though_its_source_goes() {
    let mut tried = 0;
    for seed in 0..20 {
        let (mut w, order) = world(seed, 3, 2);
        let cfg = Arc::make_mut(&mut w.cfg);
        (cfg.log_keep, cfg.primary_lag, cfg.push_bytes) = (100_000, 100_000, 1 << 20);
        let [first, leaves, new] = order[..] else { unreachable!() };
        start_all(&mut w, &[new]);
        until_active(&mut w);
        run(&mut w, 3000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        assert!(
            comes_to(&mut w, |s| s == PgState::ACTIVE | PgState::CLEAN),
            "seed {seed}: {}",
            state(&w)
        );
        // Nothing is recovered before the primary's copy has rotted.
        w.pace.local = 0;
        w.change_map(|m| m.out = [leaves].into());
        until_active(&mut w);
        run(&mut w, 1000);
        w.nodes[first as usize].store.rotten.insert(object(0));
        w.pace.local = 10;
        let healed = |w: &World| !w.nodes[first as usize].store.rotten.contains(&object(0));
        if !(0..20_000).any(|_| {
            w.step();
            healed(&w)
        }) {
            continue;
        }
        assert!(!w.nodes[first as usize].store.pending.is_empty());
        stop(&mut w, leaves..leaves + 1);
        let newest = w.map().epoch;
        w.give_map(first, newest);
        tried += 1;
        assert!(
            comes_to(&mut w, |s| s == PgState::ACTIVE | PgState::CLEAN),
            "seed {seed}: {}",
            state(&w)
        );
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(tried > 10, "{tried}");
}

/// A shard outside the members is being read, and its OSD goes: what cannot be read is unfound,
/// which is told to administrators and can be given up.
#[test]
fn a_shard_outside_the_members_that_goes_is_not_waited_for() {
    for seed in 0..12 {
        let (mut w, _) = world(seed, 4, 3);
        let map = w.maps.last_mut().unwrap();
        (map.ec, map.min_size) = (Some((2, 1)), 2);
        Arc::make_mut(&mut w.cfg).log_keep = 100_000;
        let mut all = w.map().clone();
        all.up.extend((0..4).map(|o| (o, (1, 1))));
        let members = all.up_members(PG);
        let (second, leaves) = (members[1], members[2].osd);
        let returns = (0..4).find(|o| members.iter().all(|m| m.osd != *o)).unwrap();
        // One has the newest version of the object, and then another serves in its place, which has
        // an older one.
        start_all(&mut w, &[leaves]);
        assert!(comes_to(&mut w, |s| s.has(PgState::ACTIVE)), "seed {seed}: {}", state(&w));
        run(&mut w, 1500);
        stop(&mut w, returns..returns + 1);
        w.change_map(|m| m.out = [returns].into());
        run(&mut w, 3000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        assert!(
            comes_to(&mut w, |s| s == PgState::ACTIVE | PgState::CLEAN),
            "seed {seed}: {}",
            state(&w)
        );
        w.pace.local = 0;
        w.nodes[returns as usize].blind_until = u64::MAX;
        w.start(returns);
        w.change_map(|m| m.out = [leaves].into());
        w.nodes[returns as usize].blind_until = 0;
        run(&mut w, 3000);
        assert!(
            w.map().temp.is_empty() && state(&w).has(PgState::ACTIVE),
            "seed {seed}: {}",
            state(&w)
        );
        let bad = store_object(&object(0), second.shard);
        assert!(
            w.nodes[second.osd as usize].store.applied.objects.contains_key(&bad),
            "seed {seed}"
        );
        w.nodes[second.osd as usize].store.rotten.insert(bad);
        w.peer_loses = Some(("Shard", 100));
        w.pace.local = 10;
        run(&mut w, 6000);
        assert!(
            w.stats.get("messages lost").is_some_and(|n| *n > 0),
            "seed {seed}: nothing was read there"
        );
        assert!(!state(&w).has(PgState::RECOVERY_UNFOUND), "seed {seed}: it is being read");
        stop(&mut w, leaves..leaves + 1);
        w.peer_loses = None;
        assert!(
            comes_to(&mut w, |s| s.has(PgState::RECOVERY_UNFOUND)),
            "seed {seed}: {}",
            state(&w)
        );
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A primary asks a member of an older interval that it does not hear, and that hears everybody
/// else. By the map the two share nothing: only it can say that it waits.
#[test]
fn a_primary_says_that_it_waits_for_a_member_of_an_older_interval() {
    for seed in 0..10 {
        let (mut w, order) = world(seed, 4, 2);
        let [first, second, third, last] = order[..] else { unreachable!() };
        start_all(&mut w, &[first, last]);
        until_active(&mut w);
        run(&mut w, 1500);
        let silent = if seed % 2 == 0 { second } else { third };
        w.slow.insert((End::Osd(silent), End::Osd(first)), u64::MAX);
        w.change_map(|m| m.out = [second, third].into());
        assert_eq!(w.map().up_set(PG), [first, last]);
        run(&mut w, 3000);
        let waits = |w: &World| {
            w.nodes[first as usize].pgs.get(&SpgId::whole(PG)).map(spirula_pg::Pg::waits_outside)
        };
        assert!(!state(&w).has(PgState::ACTIVE), "seed {seed}: {}", state(&w));
        // The other one has all that it has.
        assert_eq!(waits(&w), Some(vec![(silent, true)]), "seed {seed}: {}", state(&w));
        // It may be the last that has it.
        let other = second + third - silent;
        stop(&mut w, other..other + 1);
        run(&mut w, 1500);
        assert_eq!(waits(&w), Some(vec![(silent, false)]), "seed {seed}: {}", state(&w));
        w.start(other);
        run(&mut w, 1500);
        stop(&mut w, silent..silent + 1);
        w.slow.clear();
        assert!(comes_to(&mut w, |s| s.has(PgState::ACTIVE)), "seed {seed}: {}", state(&w));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// The only good copies of an object are outside the members. The one that is asked is not heard
/// any more, though it is up, and the other is.
#[test]
fn a_copy_outside_the_members_that_is_not_heard_is_no_source() {
    let mut tried = 0;
    for seed in 0..20 {
        let (mut w, order) = world(seed, 5, 3);
        let cfg = Arc::make_mut(&mut w.cfg);
        (cfg.log_keep, cfg.primary_lag, cfg.push_bytes) = (100_000, 100_000, 1 << 20);
        let [first, leaves, too, new, newer] = order[..] else { unreachable!() };
        start_all(&mut w, &[new, newer]);
        until_active(&mut w);
        run(&mut w, 3000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        assert!(
            comes_to(&mut w, |s| s == PgState::ACTIVE | PgState::CLEAN),
            "seed {seed}: {}",
            state(&w)
        );
        w.pace.local = 0;
        w.change_map(|m| m.out = [leaves, too].into());
        until_active(&mut w);
        run(&mut w, 1000);
        w.nodes[first as usize].store.rotten.insert(object(0));
        w.peer_loses = Some(("Pull", 100));
        w.pace.local = 10;
        let lost = |w: &World| w.stats.contains_key("messages lost");
        if !(0..20_000).any(|_| {
            w.step();
            lost(&w)
        }) {
            continue;
        }
        // Whoever it was: the first of those that it knows.
        let silent = leaves.min(too);
        for (a, b) in [(silent, first), (first, silent)] {
            w.slow.insert((End::Osd(a), End::Osd(b)), u64::MAX);
        }
        w.peer_loses = None;
        tried += 1;
        let healed = |w: &World| !w.nodes[first as usize].store.rotten.contains(&object(0));
        assert!(
            (0..400).any(|_| {
                run(&mut w, 100);
                healed(&w)
            }),
            "seed {seed}: it waits for osd.{silent}, {}",
            state(&w)
        );
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(tried > 10, "{tried}");
}

/// The newest entries of an erasure-coded PG are with its primary alone; the disk of one of the
/// others is replaced, and the third is away. The log tells the blank one everything, but of the
/// newest entries there is one shard, and whoever is away can show that they are to be taken back.
fn blank_beside_one_shard(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let (mut w, _) = world(seed, 3, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    let map = w.maps.last_mut().unwrap();
    (map.ec, map.min_size) = (Some((2, 1)), 2);
    Arc::make_mut(&mut w.cfg).log_keep = 100_000;
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (2, 4, 80);
    start_all(&mut w, &[]);
    assert!(comes_to(&mut w, |s| s.has(PgState::ACTIVE)), "seed {seed}: {}", state(&w));
    run(&mut w, 1500);
    let members = w.map().members(PG);
    let [first, blank, away] = [0, 1, 2].map(|i| members[i].osd);
    for other in [blank, away] {
        w.slow.insert((End::Osd(first), End::Osd(other)), u64::MAX);
    }
    run(&mut w, 400);
    stop(&mut w, away..away + 1);
    stop(&mut w, blank..blank + 1);
    w.nodes[blank as usize].store = crate::store::Store::default();
    w.slow.clear();
    w.start(blank);
    // With every map that there is by then.
    let serves = (0..400).any(|_| {
        run(&mut w, 100);
        w.nodes[first as usize].epoch == w.map().epoch && state(&w).has(PgState::ACTIVE)
    });
    if bug.is_none() && (serves || !state(&w).has(PgState::INCOMPLETE)) {
        return Err(format!("with one shard of what was written it is {}", state(&w)));
    }
    run(&mut w, 2000);
    w.start(away);
    run(&mut w, 3000);
    settle(&mut w).and_then(|()| verify(&w)).map(|()| w)
}

#[test]
fn a_member_that_has_nothing_is_no_shard_of_what_was_written() {
    goes_well(12, "entries taken back", |seed| blank_beside_one_shard(seed, None));
    fails_with(UNFOUND, 20, |seed| blank_beside_one_shard(seed, Some(Bug::BlankCounts)).map(drop));
}

/// The only good copy of an object is outside the members, and is not heard, though it is up:
/// nobody may give the object up. Does that copy call before it is silent?
fn silent_holder(seed: u64, calls: bool, bug: Option<Bug>) -> Result<(), String> {
    let (mut w, order) = world(seed, 3, 2);
    bug.into_iter().for_each(|b| w.plant(b));
    let cfg = Arc::make_mut(&mut w.cfg);
    (cfg.log_keep, cfg.primary_lag, cfg.push_bytes) = (100_000, 100_000, 1 << 20);
    let [first, leaves, new] = order[..] else { unreachable!() };
    start_all(&mut w, &[new]);
    until_active(&mut w);
    run(&mut w, 3000);
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    assert!(
        comes_to(&mut w, |s| s == PgState::ACTIVE | PgState::CLEAN),
        "seed {seed}: {}",
        state(&w)
    );
    if !w.nodes[first as usize].store.applied.objects.contains_key(&object(0)) {
        return Ok(());
    }
    w.pace.local = 0;
    // What a holder says after it has answered the primary that peers.
    w.peer_loses = Some(("Notify", if calls { 0 } else { 100 }));
    w.change_map(|m| m.out = [leaves].into());
    until_active(&mut w);
    run(&mut w, if calls { 1000 } else { 0 });
    for (a, b) in [(leaves, first), (first, leaves)] {
        w.slow.insert((End::Osd(a), End::Osd(b)), u64::MAX);
    }
    w.nodes[first as usize].store.rotten.insert(object(0));
    w.pace.local = 10;
    w.event(
        first,
        SpgId::whole(PG),
        PgEvent::Scrub { deep: true, repair: true, large: Default::default() },
    );
    assert!(comes_to(&mut w, |s| s.has(PgState::RECOVERY_UNFOUND)), "seed {seed}: {}", state(&w));
    for _ in 0..30 {
        run(&mut w, 200);
        w.event(first, SpgId::whole(PG), PgEvent::MarkLost { revert: false });
    }
    if !state(&w).has(PgState::RECOVERY_UNFOUND) {
        return Err(format!("GIVEN UP: {}", state(&w)));
    }
    w.slow.clear();
    w.peer_loses = None;
    settle(&mut w).and_then(|()| verify(&w))
}

#[test]
fn nothing_is_given_up_while_a_copy_that_is_up_is_not_heard() {
    for (seed, calls) in (0..10).flat_map(|s| [(s, false), (s, true)]) {
        silent_holder(seed, calls, None)
            .unwrap_or_else(|e| panic!("seed {seed}, calls {calls}: {e}"));
    }
    fails_with("GIVEN UP", 10, |seed| silent_holder(seed, false, Some(Bug::UnheardIgnored)));
}
