//! Stories that chance tells too seldom: one rule of peering each. Every one runs under many
//! seeds, and fails under most of them if its rule is taken out.

use crate::client::object;
use crate::planted::{STALE, fails_with};
use crate::world::{End, World};
use crate::{settle, verify, verify_logs};
use spirula_maps::PgState;
use spirula_pg::shard::{store_object, undo_object};
use spirula_pg::{Bug, PgEvent};
use spirula_types::{EVersion, HObject, OsdId, PgId, SpgId};
use std::sync::Arc;

pub const PG: PgId = PgId { pool: 1, seed: 0 };

/// A calm cluster of `osds` with one PG of three copies on the first three, written to.
pub fn cluster(seed: u64, osds: usize) -> World {
    planted_cluster(seed, osds, None)
}

pub fn planted_cluster(seed: u64, osds: usize, bug: Option<Bug>) -> World {
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
pub fn place(w: &mut World, on: std::ops::Range<OsdId>) {
    let all = w.nodes.len() as OsdId;
    w.change_map(|m| m.out = (0..all).filter(|o| !on.contains(o)).collect());
}

pub fn run(w: &mut World, steps: usize) {
    for _ in 0..steps {
        w.step();
    }
}

pub fn active(w: &World) -> bool {
    let map = w.map();
    let Some(primary) = map.acting(PG).first().copied() else { return false };
    let node = &w.nodes[primary as usize];
    node.epoch == map.epoch
        && node.pgs.get(&SpgId::whole(PG)).is_some_and(|p| p.state().0.has(PgState::ACTIVE))
}

/// Does the PG's primary serve, whole or as a shard?
pub fn active_at(w: &World, pg: PgId) -> bool {
    let map = w.map();
    let Some(first) = map.members(pg).first().copied().filter(|p| p.is_some()) else {
        return false;
    };
    let node = &w.nodes[first.osd as usize];
    let pg = node.pgs.get(&SpgId::new(pg, first.shard));
    node.epoch == map.epoch && pg.is_some_and(|p| p.state().0.has(PgState::ACTIVE))
}

pub fn until_active(w: &mut World) {
    for _ in 0..60_000 {
        if active(w) {
            return;
        }
        w.step();
    }
    panic!("never active");
}

pub fn stop(w: &mut World, on: std::ops::Range<OsdId>) {
    for o in on {
        w.crash(o);
        w.mark_down(o);
    }
}

fn finish(w: World, seed: u64) {
    ends_well(w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
}

/// Everything comes right, and has been right.
fn ends_well(mut w: World) -> Result<World, String> {
    settle(&mut w).and_then(|()| verify(&w)).map(|()| w)
}

/// A story goes well in each of these seeds, and what it is about comes about in most of them.
pub fn goes_well(seeds: u64, about: &str, story: impl Fn(u64) -> Result<World, String>) {
    let told = |seed| story(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let came = (0..seeds).filter(|seed| told(*seed).stats.contains_key(about)).count() as u64;
    println!("{about}: in {came} of {seeds} seeds");
    assert!(2 * came > seeds, "{about:?} came about in {came} of {seeds} seeds only");
}

/// The story that shows a bug best, with the bug planted or without: what goes wrong?
pub fn with_bug(bug: Bug, planted: Option<Bug>, seed: u64) -> Option<String> {
    match bug {
        Bug::ReadsWithoutLease | Bug::LeaseNotAwaited => {
            replaced_primary(seed, false, planted).err()
        }
        Bug::DivergentDeleteKept | Bug::DeletedComesBack => divergent(seed, planted).err(),
        Bug::MissingStaleOnResume | Bug::DirtyForgotten => restarts(seed, planted).err(),
        Bug::WithheldForgotten | Bug::HollowHistory => withheld(seed, planted).err(),
        Bug::CorruptSourceCopied | Bug::FailedReadForgotten => damaged(seed, planted).err(),
        Bug::ScrubBesideWrites | Bug::ScrubShallow | Bug::RepairTrustsPrimary => {
            scrubbed(seed, planted).err()
        }
        Bug::CleanBeforeDurable => moved(seed, planted).err(),
        Bug::FoldUnchecked | Bug::FoldForgetsRequests | Bug::WritesWhilePending => {
            merges(seed, planted).err()
        }
        _ => None,
    }
}

/// The only copy moves to another OSD and back. Who has the old one deletes it when it is told
/// to; the new one is then on the disk, whatever maps came meanwhile.
fn moved(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = World::new(seed, 2, 1, 1, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    // The log tells everything: the new one serves at once and fetches what it lacks.
    Arc::make_mut(&mut w.cfg).log_keep = 10_000;
    w.pace = w.pace.calm().slow_disks();
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (4, 1, 50);
    (0..2).for_each(|id| w.start(id));
    place(&mut w, 0..1);
    until_active(&mut w);
    run(&mut w, 1500);
    for round in 1..6 {
        let (from, to) = ((round + 1) % 2, round % 2);
        place(&mut w, to..to + 1);
        let gone = |w: &World| w.nodes[from as usize].store.applied.objects.is_empty();
        for step in 0..8000 {
            w.step();
            if gone(&w) {
                w.note("old copies gone");
                break;
            }
            if step % 150 == 0 {
                w.change_map(|_| {});
            }
        }
        w.crash(to);
        w.mark_down(to);
        run(&mut w, 200);
        w.start(to);
        until_active(&mut w);
        run(&mut w, 4000);
    }
    ends_well(w)
}

#[test]
fn the_last_old_copy_goes_when_the_new_one_is_on_its_disk() {
    goes_well(20, "old copies gone", |seed| moved(seed, None));
}

/// PGs merged and split again while OSDs are away and requests are on their way.
fn merges(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = World::new(seed, 5, 3, 4, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (20, 6, 90, 10);
    for id in 0..5 {
        w.start(id);
    }
    run(&mut w, 1500);
    for round in 0..6 {
        let away = w.rng.below(5) as OsdId;
        if round % 2 == 0 {
            // Others take its place, so that the PGs are clean without it.
            stop(&mut w, away..away + 1);
            w.change_map(|m| m.out.extend([away]));
        }
        let pause = 200 + w.rng.below(400);
        run(&mut w, pause);
        let fewer = 1 + w.rng.below(3) as u32;
        w.change_map(|m| m.shrink_to(fewer.min(m.pg_num)));
        for _ in 0..60 {
            if w.map().pg_num == fewer {
                break;
            }
            let (client, osd, until) =
                (w.rng.below(3), w.rng.below(5) as OsdId, w.now + w.rng.below(200) as u64);
            w.slow.insert((End::Client(client), End::Osd(osd)), until);
            run(&mut w, 100);
        }
        run(&mut w, pause);
        if round % 2 == 0 {
            w.start(away);
            w.change_map(|m| m.out.retain(|o| *o != away));
        }
        run(&mut w, 600);
        let more = 4 - w.map().pg_num.min(4);
        if more > 0 && w.can_split() {
            w.change_map(|m| m.grow(more));
        }
        run(&mut w, 300);
    }
    ends_well(w)
}

#[test]
fn merges_and_splits_with_osds_away_and_requests_on_their_way_lose_nothing() {
    goes_well(20, "merges", |seed| merges(seed, None));
}

/// All clients rest, and what they asked for is done.
fn rest(w: &mut World) {
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    for _ in 0..100 {
        if w.clients.iter().all(|c| c.idle()) {
            break;
        }
        run(w, 100);
    }
    run(w, 300);
}

/// PGs are merged and split again, and nobody writes before their members have agreed on what there
/// is.
fn merged_and_split_at_rest(seed: u64) -> Result<World, String> {
    let mut w = World::new(seed, 4, 3, 4, 3);
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (20, 6, 90);
    for id in 0..4 {
        w.start(id);
    }
    run(&mut w, 1500);
    rest(&mut w);
    w.change_map(|m| m.shrink_to(1));
    for _ in 0..100 {
        if w.map().pg_num == 1 {
            break;
        }
        run(&mut w, 100);
    }
    run(&mut w, 500);
    if w.map().pg_num == 1 && w.can_split() {
        w.change_map(|m| m.grow(7));
        *w.stats.entry("split at rest").or_default() += 1;
    }
    run(&mut w, 1500);
    // Whoever starts again is asked from its store.
    stop(&mut w, 0..4);
    for id in 0..4 {
        w.start(id);
    }
    until_active(&mut w);
    verify_logs(&w)?;
    w.clients.iter_mut().for_each(|c| c.quiet = false);
    run(&mut w, 600);
    ends_well(w)
}

#[test]
fn pgs_that_are_merged_and_split_at_rest_remember_all() {
    goes_well(20, "split at rest", merged_and_split_at_rest);
}

/// An erasure-coded pool that has forgotten most of its requests is split twice while nobody
/// writes, and then an OSD's place is another's: it is filled.
fn split_twice_having_forgotten(seed: u64) -> Result<World, String> {
    let mut w = World::new(seed, 5, 3, 1, 3);
    let map = w.maps.last_mut().unwrap();
    (map.ec, map.min_size) = (Some((2, 1)), 2);
    w.pace = w.pace.calm();
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (100, 6, 90);
    let cfg = Arc::make_mut(&mut w.cfg);
    (cfg.log_keep, cfg.log_max, cfg.dups_tracked) = (1, 1, 125);
    for id in 0..5 {
        w.start(id);
    }
    run(&mut w, 12_000);
    rest(&mut w);
    for more in [15, 48] {
        if w.can_split() {
            w.change_map(|m| m.grow(more));
            *w.stats.entry(if more == 48 { "split twice" } else { "split once" }).or_default() += 1;
        }
        run(&mut w, 3000);
    }
    let away = w.rng.below(5) as OsdId;
    w.change_map(|m| m.out.extend([away]));
    run(&mut w, 6000);
    ends_well(w)
}

#[test]
fn shards_of_pgs_that_were_split_twice_are_filled() {
    goes_well(8, "split twice", split_twice_having_forgotten);
}

/// Writes that reach one member only, before the others go on without it.
fn divergent(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (3, 6, 90, 40);
    for _ in 0..4 {
        let acting = w.map().acting(PG);
        let Some(first) = acting.first().copied() else { break };
        // The primary writes, and nobody hears it any more.
        for other in (0..3).filter(|o| *o != first) {
            w.slow.insert((End::Osd(first), End::Osd(other)), u64::MAX);
            w.slow.insert((End::Osd(other), End::Osd(first)), u64::MAX);
        }
        run(&mut w, 300);
        stop(&mut w, first..first + 1);
        w.slow.clear();
        until_active(&mut w);
        run(&mut w, 600);
        w.start(first);
        until_active(&mut w);
        run(&mut w, 600);
    }
    ends_well(w)
}

/// Members that are down while much is written, and restart again while they are filled.
fn restarts(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    (w.pace.objects, w.pace.under_way, w.pace.appends) = (20, 6, 90);
    for round in 0..6 {
        let id = w.rng.below(3) as OsdId;
        // For a moment: the log tells what it lacks. Or for long: it must be filled anew.
        let away = [40, 100, 600][w.rng.below(3)];
        stop(&mut w, id..id + 1);
        run(&mut w, away);
        w.start(id);
        // Again, in the middle.
        let (pause, twice) = (w.rng.below(400), round % 2 == 0);
        run(&mut w, pause);
        if twice {
            stop(&mut w, id..id + 1);
            run(&mut w, 900);
            w.start(id);
        }
        run(&mut w, 800);
    }
    ends_well(w)
}

/// Writes that a member does not get because it lacks their objects: it is back, recovery waits for
/// its turns, and then all OSDs restart at once, or those that have the data die.
fn withheld(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (20, 6, 90, 5);
    w.pace.local = 0;
    for round in 0..6 {
        let id = w.rng.below(3) as OsdId;
        stop(&mut w, id..id + 1);
        run(&mut w, 300);
        w.start(id);
        until_active(&mut w);
        let pause = 100 + w.rng.below(400);
        run(&mut w, pause);
        if round % 2 == 0 {
            (0..3).for_each(|o| w.crash(o));
            (0..3).for_each(|o| w.start(o));
        }
        w.pace.local = 10;
        until_active(&mut w);
        run(&mut w, 600);
        w.pace.local = 0;
    }
    w.pace.local = 10;
    ends_well(w)
}

#[test]
fn writes_that_lagging_members_do_not_get_are_not_lost() {
    goes_well(10, "changes withheld", |seed| withheld(seed, None));
}

/// Damage on one copy, while another copy must be filled.
fn damaged(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 4, bug);
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (8, 4, 80, 0);
    run(&mut w, 2000);
    // Or they would meet the damage first.
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    run(&mut w, 500);
    let acting = w.map().acting(PG);
    let victim = acting[w.rng.below(acting.len())] as usize;
    let there: Vec<_> = w.nodes[victim].store.applied.objects.keys().cloned().collect();
    w.nodes[victim].store.rotten.extend(there.clone());
    place(&mut w, 1..4);
    run(&mut w, 3000);
    let mut w = ends_well(w)?;
    // Who was to be copied from has good ones itself by now, or none any more.
    if !there.is_empty() && w.nodes[victim].store.rotten.is_empty() {
        w.note("damage met");
    }
    Ok(w)
}

#[test]
fn divergent_writes_are_undone_everywhere() {
    goes_well(10, "entries taken back", |seed| divergent(seed, None));
}

#[test]
fn restarts_in_the_middle_of_recovery_lose_nothing() {
    goes_well(10, "objects recovered", |seed| restarts(seed, None));
}

#[test]
fn damaged_copies_are_no_source() {
    goes_well(10, "damage met", |seed| damaged(seed, None));
}

/// The one copy that is up is bad: whoever reads it waits for a good one that is away, and is told
/// no error meanwhile.
#[test]
fn a_bad_copy_alone_makes_readers_wait_for_a_good_one() {
    for seed in 0..20 {
        let mut w = cluster(seed, 3);
        w.scrubs = false;
        w.change_map(|m| m.min_size = 1);
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (4, 4, 90, 0);
        run(&mut w, 1500);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let acting = w.map().acting(PG);
        for o in &acting[1..] {
            stop(&mut w, *o..*o + 1);
        }
        until_active(&mut w);
        let there =
            w.nodes[acting[0] as usize].store.applied.objects.keys().cloned().collect::<Vec<_>>();
        w.nodes[acting[0] as usize].store.rotten.extend(there);
        w.pace.appends = 0;
        w.clients.iter_mut().for_each(|c| c.quiet = false);
        run(&mut w, 3000);
        let state = w.nodes[acting[0] as usize].pgs[&SpgId::whole(PG)].state().0;
        assert!(state.has(PgState::RECOVERY_UNFOUND), "seed {seed}: {state}");
        assert!(w.clients.iter().any(|c| !c.idle()), "seed {seed}: nobody waits");
        acting[1..].iter().for_each(|o| w.start(*o));
        finish(w, seed);
    }
}

/// A primary that was replaced and does not know it, with a client that does not either.
#[test]
fn replaced_primary_serves_no_stale_read() {
    goes_well(20, "a lease was raced", |seed| replaced_primary(seed, false, None));
    goes_well(20, "a lease was raced", |seed| replaced_primary(seed, true, None));
    fails_with(STALE, 40, |seed| {
        replaced_primary(seed, true, Some(Bug::GrantEpochIgnored)).map(drop)
    });
}

/// Notes it if others wrote since then, while the first client asked whoever led before.
pub fn race(w: &mut World, since: u64) {
    let wrote = |c: &crate::client::Client| {
        c.history.values().any(|d| d.write.is_some() && d.done > Some(since))
    };
    let asked = w.clients[0].history.values().any(|d| d.done.is_none_or(|at| at > since));
    if asked && w.clients[1..].iter().any(wrote) {
        w.note("a lease was raced");
    }
}

/// Who has the map that shows it down grants it nothing more. `late`: its boot comes to the monitor
/// a second time, late, when it has been down for long and is out; whoever has that map grants it
/// leases again, and their epoch alone says that they are none for a primary of before.
fn replaced_primary(seed: u64, late: bool, bug: Option<Bug>) -> Result<World, String> {
    {
        let mut w = planted_cluster(seed, 3, bug);
        let old = w.map().acting(PG)[0];
        w.nodes[old as usize].blind_until = u64::MAX;
        w.clients[0].blind_until = u64::MAX;
        w.clients[0].only = Some(false);
        w.clients[1].only = Some(true);
        w.clients[2].only = Some(true);
        let was = w.map().up.get(&old).copied();
        w.mark_down(old);
        let since = w.now;
        for step in 0..12_000 {
            if late && step == 4000 {
                w.change_map(|m| m.out = [old].into());
                w.change_map(|m| {
                    m.up.extend(was.map(|was| (old, was)));
                    m.osds.entry(old).or_default().up = true;
                });
            }
            // It must not find out by a client's map, either.
            w.step();
        }
        if late && (!active(&w) || w.map().acting(PG).contains(&old)) {
            return Err("nobody serves in its place".into());
        }
        race(&mut w, since);
        w.clients[0].blind_until = 0;
        ends_well(w)
    }
}

/// A primary that stops is taken for dead from the moment at which it has said so, and a client
/// that does not hear of it goes on asking it until it is gone.
fn stopping_primary(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    let old = w.map().acting(PG)[0];
    w.clients[0].blind_until = u64::MAX;
    w.clients[0].only = Some(false);
    w.clients[1].only = Some(true);
    w.clients[2].only = Some(true);
    w.stops_unanswered(old);
    let (since, until) = (w.now, w.now + 2000);
    while w.now < until {
        w.step();
    }
    race(&mut w, since);
    w.crash(old);
    w.clients[0].blind_until = 0;
    ends_well(w)
}

#[test]
fn a_primary_that_stops_serves_no_stale_read() {
    goes_well(20, "a lease was raced", |seed| stopping_primary(seed, None));
    fails_with(STALE, 40, |seed| stopping_primary(seed, Some(Bug::SurrenderSkipped)).map(drop));
}

/// Rot on one copy, at the primary or another: scrubs beside writes find nothing before, a deep one
/// finds it, a repair heals it, and what is then scrubbed is clean.
#[test]
fn deep_scrub_finds_rot_and_repair_heals_it() {
    goes_well(20, "copies repaired", |seed| scrubbed(seed, None));
}

fn scrubbed(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (4, 6, 90, 10);
    let id = SpgId::whole(PG);
    let primary = w.map().acting(PG)[0];
    let inconsistent =
        |w: &World| w.nodes[primary as usize].pgs[&id].state().0.has(PgState::INCONSISTENT);
    for _ in 0..6 {
        w.event(
            primary,
            id,
            PgEvent::Scrub { deep: true, repair: false, large: Default::default() },
        );
        run(&mut w, 1500);
        if inconsistent(&w) {
            return Err("a scrub beside writes finds what is not there".into());
        }
    }
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    settle(&mut w)?;
    let acting = w.map().acting(PG);
    let victim = acting[seed as usize % 3] as usize;
    let Some(o) = w.nodes[victim].store.applied.objects.keys().next().cloned() else {
        return Err("nothing to damage".into());
    };
    w.nodes[victim].store.rotten.insert(o.clone());
    let scrub = |w: &mut World, deep: bool, repair: bool| {
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        w.event(primary, id, PgEvent::Scrub { deep, repair, large: Default::default() });
        run(w, 4000);
    };
    scrub(&mut w, false, false);
    let missed = |what: &str| Err::<World, _>(what.to_owned());
    if inconsistent(&w) {
        return missed("a shallow scrub does not read");
    }
    scrub(&mut w, true, false);
    if !inconsistent(&w) {
        return missed("not found");
    }
    scrub(&mut w, true, true);
    if inconsistent(&w) || !w.nodes[victim].store.rotten.is_empty() {
        return missed("not repaired");
    }
    scrub(&mut w, true, false);
    if inconsistent(&w) || w.stats["scrubs"] < 4 {
        return missed("still there");
    }
    ends_well(w)
}

/// A repair and the recovery that it causes want turns at the same time: both go on.
#[test]
fn a_repair_goes_on_beside_the_recovery_it_causes() {
    for seed in 0..20 {
        let mut w = cluster(seed, 3);
        w.scrubs = false;
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (12, 6, 90, 0);
        run(&mut w, 3000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let acting = w.map().acting(PG);
        let victim = acting[seed as usize % 3] as usize;
        let all = w.nodes[victim].store.applied.objects.keys().cloned().collect::<Vec<_>>();
        assert!(!all.is_empty(), "seed {seed}: nothing to rot");
        w.nodes[victim].store.rotten.extend(all);
        w.event(
            acting[0],
            SpgId::whole(PG),
            PgEvent::Scrub { deep: true, repair: true, large: Default::default() },
        );
        let scrubs = |w: &World| {
            w.nodes[acting[0] as usize].pgs[&SpgId::whole(PG)].state().0.has(PgState::SCRUBBING)
        };
        assert!(scrubs(&w), "seed {seed}: it does not begin");
        for _ in 0..100 {
            run(&mut w, 200);
        }
        assert!(!scrubs(&w), "seed {seed}: it waits for ever");
        assert!(w.stats.contains_key("copies repaired"), "seed {seed}: nothing was recovered");
        finish(w, seed);
    }
}

/// A member whose map never comes: the scrub is given up, and writes that waited for it go on.
#[test]
fn a_scrub_without_an_answer_is_given_up() {
    for seed in 0..5 {
        let mut w = cluster(seed, 3);
        w.scrubs = false;
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (4, 6, 90, 10);
        run(&mut w, 3000);
        let acting = w.map().acting(PG);
        w.no_scans = Some(acting[1]);
        let id = SpgId::whole(PG);
        w.event(
            acting[0],
            id,
            PgEvent::Scrub { deep: false, repair: false, large: Default::default() },
        );
        let pass = |w: &mut World, ms: u64| {
            let until = w.now + ms;
            while w.now < until {
                w.step();
            }
        };
        let scrubs =
            |w: &World| w.nodes[acting[0] as usize].pgs[&id].state().0.has(PgState::SCRUBBING);
        pass(&mut w, 5_000);
        assert!(scrubs(&w), "seed {seed}: it waits for a while");
        pass(&mut w, 60_000);
        assert!(!scrubs(&w), "seed {seed}: it waits for ever");
        assert!(w.stats.contains_key("scrubs given up"), "seed {seed}");
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// All copies of an object are damaged while the PG moves: the rest is filled all the same, and
/// the object's loss is taken at the administrator's word.
#[test]
fn an_unfound_object_holds_nobody_up_and_can_be_given_up() {
    for seed in 0..20 {
        let mut w = cluster(seed, 5);
        w.scrubs = false;
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (8, 4, 90, 0);
        run(&mut w, 3000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        run(&mut w, 2000);
        let acting = w.map().acting(PG);
        let all: Vec<_> =
            w.nodes[acting[0] as usize].store.applied.objects.keys().cloned().collect();
        let lost = all[seed as usize % all.len()].clone();
        for o in &acting {
            w.nodes[*o as usize].store.rotten.insert(lost.clone());
        }
        place(&mut w, 2..5);
        let id = SpgId::whole(PG);
        let state = |w: &World| {
            let primary = w.map().acting(PG)[0];
            (
                primary,
                w.nodes[primary as usize].pgs.get(&id).map(|p| p.state().0).unwrap_or_default(),
            )
        };
        let unfound = PgState::BACKFILL_UNFOUND | PgState::RECOVERY_UNFOUND;
        let moving = PgState::BACKFILLING
            | PgState::BACKFILL_WAIT
            | PgState::RECOVERING
            | PgState::RECOVERY_WAIT;
        let filled = |w: &World| {
            let has = |n: usize, o: &HObject| w.nodes[n].store.applied.objects.contains_key(o);
            (3..5).all(|n| all.iter().all(|o| *o == lost || has(n, o)))
        };
        for _ in 0..1000 {
            run(&mut w, 100);
            let (_, s) = state(&w);
            if s.any(unfound) && !s.any(moving) && filled(&w) {
                break;
            }
        }
        let (primary, s) = state(&w);
        let filled = filled(&w);
        assert!(s.any(unfound) && !s.any(moving) && filled, "seed {seed}: {s}, filled: {filled}");
        let pg = &w.nodes[primary as usize].pgs[&id];
        let listed = pg.list_unfound(None);
        assert_eq!(
            (listed["num_unfound"].as_u64(), listed["objects"][0]["oid"]["oid"].as_str()),
            (Some(1), std::str::from_utf8(&lost.name).ok()),
            "seed {seed}: {listed}"
        );
        assert_eq!(pg.may_mark_lost(false), Ok(1), "seed {seed}");
        w.event(primary, id, PgEvent::MarkLost { revert: seed % 2 == 0 });
        // Whoever reads it learns that it is gone; acknowledged writes are lost by order.
        settle(&mut w).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let left = w.nodes.iter().filter(|n| n.store.applied.objects.contains_key(&lost)).count();
        assert_eq!(left, 0, "seed {seed}: it is still somewhere");
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

/// A primary that has nothing waits for the newest copy, knowing of it only by an old one that
/// called. When the newest comes back, peering begins anew: it must still know whom it waited for.
#[test]
fn who_has_nothing_remembers_whom_it_waits_for() {
    for seed in 0..40 {
        let mut w = World::new(seed, 6, 3, 1, 3);
        // All that was ever written is in the log: nobody needs a backfill, for which the acting
        // set would change.
        Arc::make_mut(&mut w.cfg).log_keep = 10_000;
        w.pace = w.pace.calm();
        (w.pace.objects, w.pace.under_way, w.pace.appends) = (1, 2, 50);
        for id in 0..6 {
            w.start(id);
        }
        place(&mut w, 0..3);
        until_active(&mut w);
        run(&mut w, 500);
        stop(&mut w, 2..3);
        until_active(&mut w);
        run(&mut w, 1500);
        stop(&mut w, 0..2);
        place(&mut w, 3..6);
        w.start(2);
        let down = |w: &World| {
            let primary = w.map().acting(PG)[0] as usize;
            let pg = w.nodes[primary].pgs.get(&SpgId::whole(PG));
            pg.is_some_and(|p| p.state().0.has(PgState::DOWN))
        };
        for _ in 0..6000 {
            if down(&w) {
                break;
            }
            w.step();
        }
        assert!(down(&w), "seed {seed}: waits for nobody");
        // It must ask: what the other would tell by itself comes late.
        let (until, primary) = (w.now + 400, w.map().acting(PG)[0]);
        w.slow.insert((End::Osd(0), End::Osd(primary)), until);
        w.start(0);
        until_active(&mut w);
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

/// A PG changes hands while it is created: what one primary began the next begins anew in the same
/// places, and the monitor hears of the first creation meanwhile.
#[test]
fn creations_that_overtake_each_other_leave_one_that_serves() {
    let mut overtaken = 0;
    for seed in 0..40 {
        let mut w = World::new(seed, 3, 2, 1, 3);
        w.pace = w.pace.calm();
        for id in 0..3 {
            w.start(id);
        }
        for round in 0..3 {
            let creates = |w: &World| {
                let primary = *w.map().acting(PG).first()?;
                let state = w.nodes[primary as usize].pgs.get(&SpgId::whole(PG))?.state().0;
                state.has(PgState::ACTIVATING).then_some(primary)
            };
            for _ in 0..3000 {
                if active(&w) || creates(&w).is_some() {
                    break;
                }
                w.step();
            }
            // Its word for the monitor is on its way for long.
            let Some(old) = creates(&w) else { break };
            overtaken += usize::from(round > 0);
            let until = w.now + 20 + w.rng.below(300) as u64;
            w.slow.insert((End::Osd(old), End::Mon), until);
            let wait = w.rng.below(30);
            run(&mut w, wait);
            w.change_map(|m| {
                let mut acting = m.acting(PG);
                acting.rotate_left(1 + round % 2);
                m.temp.insert(PG, acting);
            });
        }
        finish(w, seed);
    }
    println!("creations begun while another was: {overtaken}");
    assert!(overtaken > 20, "{overtaken}");
}

/// A pool of 4+2 and every pattern of one and of two lost OSDs: what is left serves reads and
/// writes of every object, and what was lost is rebuilt on empty disks.
#[test]
fn every_loss_of_up_to_two_shards_is_served_and_rebuilt() {
    for lost in (1u64..64).filter(|l| l.count_ones() <= 2) {
        let mut w = World::new(lost, 6, 6, 1, 3);
        let map = w.maps.last_mut().unwrap();
        (map.ec, map.min_size) = (Some((4, 2)), 4);
        w.pace = w.pace.calm();
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (6, 6, 80, 2);
        for id in 0..6 {
            w.start(id);
        }
        run(&mut w, 4000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        run(&mut w, 2000);
        let gone: Vec<OsdId> = (0..6).filter(|o| lost & (1 << o) != 0).collect();
        gone.iter().for_each(|o| stop(&mut w, *o..*o + 1));
        // First reads alone, so that all of them show what was written before.
        for writes in [false, true] {
            let since = w.now;
            w.clients.iter_mut().for_each(|c| (c.quiet, c.only) = (false, Some(writes)));
            let answered = |w: &World, o: usize| {
                let all = w.clients.iter().flat_map(|c| c.history.values());
                all.filter(|d| d.object == o && d.invoked > since && d.write.is_some() == writes)
                    .any(|d| d.done.is_some())
            };
            for _ in 0..200 {
                run(&mut w, 100);
                if (0..6).all(|o| answered(&w, o)) {
                    break;
                }
            }
            assert!(
                (0..6).all(|o| answered(&w, o)),
                "lost {lost:06b}: not served, writes: {writes}"
            );
        }
        for o in gone {
            w.nodes[o as usize].store = crate::store::Store::default();
        }
        finish(w, lost);
    }
}

/// A member that begins anew removes what its own PG could have taken back there, and nothing of
/// its neighbours.
#[test]
fn a_member_that_begins_anew_leaves_the_undo_copies_of_other_pgs() {
    let mut kept = 0;
    for seed in 0..10 {
        let mut w = World::new(seed, 4, 3, 4, 2);
        let map = w.maps.last_mut().unwrap();
        (map.ec, map.min_size) = (Some((2, 1)), 2);
        w.pace = w.pace.calm();
        (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (12, 4, 80, 0);
        for id in 0..4 {
            w.start(id);
        }
        place(&mut w, 0..3);
        run(&mut w, 4000);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        run(&mut w, 2000);
        let all = (0..12).flat_map(|i| (0..3).map(move |shard| (object(i), shard)));
        let copies: Vec<(SpgId, HObject)> = all
            .map(|(o, shard)| {
                let name = store_object(&undo_object(&o, EVersion::new(1, 1)), shard);
                (SpgId::new(o.pg(4), shard), name)
            })
            .collect();
        w.nodes[3]
            .store
            .applied
            .objects
            .extend(copies.iter().map(|(_, name)| (name.clone(), Default::default())));
        place(&mut w, 1..4);
        run(&mut w, 6000);
        for (pg, name) in &copies {
            let has = w.nodes[3].store.applied.objects.remove(name).is_some();
            if !w.nodes[3].pgs.get(pg).is_some_and(spirula_pg::Pg::exists) {
                assert!(has, "seed {seed}: {name} of {pg}");
                kept += 1;
            }
        }
        finish(w, seed);
    }
    assert!(kept > 0);
}
