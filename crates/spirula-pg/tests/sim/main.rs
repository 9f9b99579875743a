//! PGs of several OSDs with everything around them simulated: random order of everything
//! that is unordered, crashes that lose what was not committed, map changes, slow maps,
//! pauses; then the faults stop and everything must come back.
//!
//! `SIM_SEED=n cargo test -p spirula-pg --test sim one_seed -- --nocapture` replays a seed,
//! `SIM_TRACE=1` shows every effect, `SIM_SEEDS=a..b` runs a range.

#![allow(clippy::unwrap_used, reason = "a test")]

mod absences;
mod apart;
mod background;
mod broken;
mod client;
mod connections;
mod fences;
mod gaps;
mod hand;
mod histories;
mod hollow;
mod losses;
mod past;
mod planted;
mod refused;
mod removals;
mod scenarios;
mod shards;
mod sharing;
mod store;
mod transcripts;
mod watches;
mod world;

use bytes::Bytes;
use client::{check, object, tokens};
use past::Past;
use planted::{
    ACKED, DATA, DONE_TWICE, END, LOST, OTHER_ANSWER, PAST, SHARED, STALE, TAKEN_BACK, UNFILLED,
    UNFOUND, all_caught,
};
use spirula_maps::PgState;
use spirula_messages::cluster::entry::key_of;
use spirula_pg::erasure::stripe::{join, rebuild};
use spirula_pg::exec::{INFO_ATTR, ObjectClone, ObjectInfo, SNAPSET_ATTR, SnapSet};
use spirula_pg::shard::{object_of_store, store_object};
use spirula_pg::{Bug, LogEntry, PgEvent};
use spirula_types::{EVersion, HObject, OsdId, Peer, PgId, SpgId};
use std::collections::{BTreeMap, BTreeSet};
use world::{End, POOL, World};

/// Seeds within which each planted bug must be caught.
const BUG_SEEDS: u64 = 100;
/// The same for those of erasure coding.
const ERASURE_BUG_SEEDS: u64 = 200;

/// What a run may do to the cluster.
#[derive(Clone, Copy, Debug)]
struct Faults {
    crash: bool,
    out: bool,
    split: bool,
    /// Fewer PGs wanted.
    merge: bool,
    /// Old maps go while every PG is clean.
    trim: bool,
    resize: bool,
    pause: bool,
    false_down: bool,
    slow: bool,
    /// Damaged objects, in pools of three copies.
    rot: bool,
    /// Disks swapped for empty ones, while everything is whole.
    swap: bool,
    /// Clients whose connections break.
    reconnect: bool,
    /// Messages between live OSDs, and whole sessions.
    lost: bool,
}

fn fault(w: &mut World, f: Faults) {
    let id = w.rng.below(w.nodes.len()) as OsdId;
    let n = id as usize;
    let soon = |w: &mut World| w.now + w.rng.below(6000) as u64;
    if f.rot && clean(w).is_err() {
        // One failure beside damage is within the limits, more is not: a scrub was in time.
        w.nodes.iter_mut().for_each(|n| n.store.rotten.clear());
    }
    match w.rng.below(22) {
        0..3 if f.crash && w.rng.chance(8) => {
            // All of it, as when one process holds the whole cluster.
            for o in 0..w.nodes.len() {
                if w.nodes[o].alive {
                    w.crash(o as OsdId);
                }
            }
            for o in 0..w.nodes.len() {
                w.start(o as OsdId);
            }
        }
        0..3 if f.crash && w.nodes[n].alive => {
            w.crash(id);
            if w.rng.chance(60) {
                w.mark_down(id);
            }
        }
        3..7 if !w.nodes[n].alive => w.start(id),
        7 if !w.nodes[n].alive => w.mark_down(id),
        8..10 if f.false_down => {
            // Replaced without knowing it, with a client that does not know it either.
            if w.rng.chance(70) {
                w.nodes[n].blind_until = soon(w);
                let c = w.rng.below(w.clients.len());
                w.clients[c].blind_until = soon(w);
            }
            w.mark_down(id);
        }
        10..13 if f.out => {
            if w.rng.chance(30) {
                w.nodes[n].blind_until = soon(w);
            }
            let n = w.nodes.len();
            let move_to: Vec<OsdId> =
                (0..1 + w.rng.below(3)).map(|_| w.rng.below(n) as OsdId).collect();
            w.change_map(|m| {
                for id in move_to {
                    if !m.out.remove(&id) {
                        m.out.insert(id);
                    }
                }
            });
        }
        13 if f.pause && w.nodes[n].alive => w.nodes[n].paused_until = soon(w),
        14 if f.split && w.can_split() && w.map().pg_num < 8 => {
            let more = 1 + w.rng.below(3) as u32;
            w.change_map(|m| m.grow(more));
        }
        21 if f.trim => {
            let map = w.map().clone();
            // Monitors keep 500 maps at least: an OSD that is up does not lag by so many.
            let near = |n: &world::Node| !map.up.contains_key(&n.id) || n.epoch + 1 >= map.epoch;
            if w.nodes.iter().all(near)
                && (0..map.pg_num).all(|s| pg_is_clean(w, PgId::new(POOL, s)).is_ok())
            {
                w.trimmed = map.epoch;
            }
        }
        20 if f.merge && w.can_split() && w.map().pg_num > 1 => {
            let fewer = 1 + w.rng.below(w.map().pg_num as usize) as u32;
            w.change_map(|m| m.shrink_to(fewer));
        }
        15 if f.resize => {
            let size = 1 + w.rng.below(w.nodes.len());
            w.change_map(|m| (m.size, m.min_size) = (size, size - size / 2));
        }
        16..18 if f.slow => {
            let other = w.rng.below(w.nodes.len()) as OsdId;
            let until = soon(w);
            w.slow.insert((End::Osd(id), End::Osd(other)), until);
            if w.rng.chance(50) {
                w.slow.insert((End::Osd(other), End::Osd(id)), until);
            }
        }
        18 if f.slow => w.nodes[n].blind_until = soon(w),
        19 if f.slow => {
            let c = w.rng.below(w.clients.len());
            w.clients[c].blind_until = soon(w);
        }
        _ => {}
    }
    if f.lost {
        w.peer_loses = match w.rng.below(4) {
            0 => None,
            1 => Some(("", 1)),
            _ => Some((world::KINDS[w.rng.below(world::KINDS.len())], 30)),
        };
        let other = w.rng.below(w.nodes.len()) as OsdId;
        if other != id && w.rng.chance(40) {
            let told = w.rng.chance(90);
            w.lose_session(id, other, told);
        }
    }
    match w.rng.below(6) {
        0 if f.rot => rot(w),
        1 if f.swap && w.map().size > 1 => swap(w),
        2..4 if f.reconnect => {
            let c = w.rng.below(w.clients.len());
            w.reconnect(c);
        }
        _ => {}
    }
}

/// Damages one copy of an object of a clean PG, if no copy of it is damaged already.
fn rot(w: &mut World) {
    let o = object(w.rng.below(w.pace.objects));
    let map = w.map().clone();
    let acting = map.members(o.pg(map.pg_num));
    let damaged =
        w.nodes.iter().any(|n| n.store.rotten.iter().any(|r| object_of_store(r.clone()) == o));
    let whole = pg_is_clean(w, o.pg(map.pg_num)).is_ok();
    if acting.len() < 3 || damaged || !whole {
        return w.note("nothing to rot");
    }
    let victim = acting[w.rng.below(acting.len())];
    let (o, victim) = (store_object(&o, victim.shard), victim.osd as usize);
    if w.nodes[victim].store.applied.objects.contains_key(&o) {
        w.say(|| format!("ROT {o} on osd.{victim}"));
        w.nodes[victim].store.rotten.insert(o);
        w.note("rotten");
    } else {
        w.note("nothing to rot");
    }
}

/// Gives an OSD an empty disk, and waits until it is filled again.
fn swap(w: &mut World) {
    if clean(w).is_err() || w.nodes.iter().any(|n| !n.alive || n.paused_until > w.now) {
        return w.note("no disk to swap");
    }
    let id = w.rng.below(w.nodes.len()) as OsdId;
    w.crash(id);
    w.nodes[id as usize].store = store::Store::default();
    w.mark_down(id);
    w.start(id);
    w.note("disks swapped");
    for _ in 0..3000 {
        w.step();
        if w.step_is_round() && clean(w).is_ok() {
            return;
        }
    }
}

fn settle(w: &mut World) -> Result<(), String> {
    let osds = w.nodes.len();
    for n in 0..osds {
        w.nodes[n].paused_until = 0;
        w.nodes[n].blind_until = 0;
        if !w.nodes[n].alive {
            w.start(n as OsdId);
        }
    }
    w.slow.clear();
    w.mon_loses = false;
    w.peer_loses = None;
    w.scrubs = false;
    w.pace = w.pace.calm();
    w.change_map(|m| m.out.clear());
    if w.map().size < 2 {
        w.change_map(|m| (m.size, m.min_size) = (2, 1));
    }
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    for round in 0..4000 {
        for _ in 0..50 {
            w.step();
        }
        heal_found(w);
        if w.pace.removes {
            w.step_removals();
        }
        let newest = w.map().epoch;
        for c in 0..w.clients.len() {
            w.client_map(c, newest);
        }
        let purged = w.map().removed.is_empty() && w.map().retiring.is_empty();
        if w.clients.iter().all(|c| c.idle()) && clean(w).is_ok() && purged && round > 5 {
            return Ok(());
        }
    }
    let pending: Vec<String> = w
        .clients
        .iter()
        .map(|c| {
            format!("{:?}", c.history.values().filter(|d| d.done.is_none()).collect::<Vec<_>>())
        })
        .collect();
    Err(format!("not settled: {:?}; removed {}; pending {pending:?}", clean(w), w.map().removed))
}

/// What scrubs have found is looked at again, and repaired.
fn heal_found(w: &mut World) {
    let found = |p: &spirula_pg::Pg| {
        p.state().0.has(PgState::INCONSISTENT) && !p.state().0.has(PgState::SCRUBBING)
    };
    let all: Vec<(OsdId, SpgId)> = w
        .nodes
        .iter()
        .flat_map(|n| n.pgs.iter().filter(|(_, p)| found(p)).map(|(pg, _)| (n.id, *pg)))
        .collect();
    for (id, pg) in all {
        w.event(id, pg, PgEvent::Scrub { deep: true, repair: true, large: Default::default() });
    }
}

/// Every PG active+clean, nothing of it elsewhere.
fn clean(w: &World) -> Result<(), String> {
    let map = w.map();
    if map.target < map.pg_num || map.pending < map.pg_num {
        return Err(format!("{} pgs, {} wanted", map.pg_num, map.target));
    }
    if let Some(n) = w.nodes.iter().find(|n| n.epoch < map.epoch) {
        return Err(format!("osd.{} has map {}", n.id, n.epoch));
    }
    for seed in 0..map.pg_num {
        let pg = PgId::new(POOL, seed);
        pg_is_clean(w, pg)?;
        let members = map.members(pg);
        for n in &w.nodes {
            for (id, p) in n.pgs.iter().filter(|(id, p)| id.pg == pg && p.exists()) {
                if !members.contains(&Peer::new(n.id, id.shard)) {
                    return Err(format!("osd.{} still has {id}: {}", n.id, p.query()));
                }
            }
        }
        let kept = |n: &&world::Node| {
            n.store.applied.objects.keys().any(|o| object_of_store(o.clone()).pool != POOL)
        };
        if let Some(n) = w.nodes.iter().find(kept) {
            let what =
                n.store.applied.objects.keys().find(|o| object_of_store((*o).clone()).pool != POOL);
            return Err(format!("osd.{} keeps something to be taken back: {what:?}", n.id));
        }
        if members.iter().any(|o| !w.nodes[o.osd as usize].store.pending.is_empty()) {
            return Err("commits pending".into());
        }
    }
    Ok(())
}

fn pg_is_clean(w: &World, pg: PgId) -> Result<(), String> {
    let members = w.map().members(pg);
    let Some(first) = members.first() else { return Err(format!("{pg} is nowhere")) };
    let node = &w.nodes[first.osd as usize];
    let Some(p) = node.pgs.get(&SpgId::new(pg, first.shard)) else {
        return Err(format!("{pg} has no primary"));
    };
    let (state, _) = p.state();
    if state == PgState::ACTIVE | PgState::CLEAN && node.epoch == w.map().epoch {
        Ok(())
    } else {
        Err(format!("{pg} is {state}: {}", p.query()))
    }
}

fn verify(w: &World) -> Result<(), String> {
    let map = w.map();
    w.nodes.iter().filter(|n| n.alive).try_for_each(logs_are_stored)?;
    for seed in 0..map.pg_num {
        let pg = PgId::new(POOL, seed);
        if map.ec.is_some() {
            verify_shards(w, pg)?;
            continue;
        }
        let acting = map.acting(pg);
        let content = |o: OsdId| -> BTreeMap<_, _> {
            let objects = &w.nodes[o as usize].store.applied.objects;
            objects
                .iter()
                .filter(|(h, _)| h.pg(map.pg_num) == pg)
                .map(|(h, o)| (h.clone(), o.clone()))
                .collect()
        };
        let first = content(acting[0]);
        for o in &acting[1..] {
            let other = content(*o);
            if other != first {
                return Err(format!(
                    "{pg}: osd.{o} differs from osd.{}\n{other:?}\n{first:?}",
                    acting[0]
                ));
            }
        }
    }
    for i in 0..w.pace.objects {
        let o = object(i);
        let fin = stored_past(w, &o)?;
        let history: Vec<_> =
            w.clients.iter().flat_map(|c| c.history.values()).filter(|d| d.object == i).collect();
        check(&history, &fin, &map.snaps).map_err(|e| format!("object{i}: {e}"))?;
    }
    sharing::at_rest(w)?;
    (0..map.pg_num).try_for_each(|seed| counts_are_right(w, PgId::new(POOL, seed)))?;
    w.clients.iter().try_for_each(client::Client::in_order)
}

/// What a PG's record counts differs from what is there.
const MISCOUNTED: &str = "counted, and there are";

/// A PG's record counts what is there: objects, clones, those that are deleted and stay for their
/// clones, and bytes.
fn counts_are_right(w: &World, pg: PgId) -> Result<(), String> {
    let map = w.map();
    let Some(first) = map.members(pg).first().copied() else { return Ok(()) };
    let node = &w.nodes[first.osd as usize];
    let Some(look) = node.pgs.get(&SpgId::new(pg, first.shard)).and_then(spirula_pg::Pg::look)
    else {
        return Ok(());
    };
    let counts = &look.info.head.counts;
    if counts.estimated {
        return Ok(());
    }
    let (mut objects, mut clones, mut whiteouts, mut bytes) = (0, 0, 0, 0);
    for (stored, obj) in &node.store.applied.objects {
        let o = object_of_store(stored.clone());
        if o.pool != POOL || o.pg(map.pg_num) != pg || store_object(&o, first.shard) != *stored {
            continue;
        }
        let info: ObjectInfo = spirula_encoding::from_slice(&obj.attrs[INFO_ATTR]).unwrap();
        objects += 1;
        whiteouts += i64::from(info.has(ObjectInfo::WHITEOUT));
        if o.snap == spirula_types::SNAP_HEAD {
            let set = obj
                .attrs
                .get(SNAPSET_ATTR)
                .map(|v| spirula_encoding::from_slice::<SnapSet>(v).unwrap());
            bytes += info.size as i64 + set.map_or(0, |s| s.own_bytes());
        } else {
            clones += 1;
        }
    }
    let (counted, there) = (
        (counts.objects, counts.clones, counts.whiteouts, counts.bytes),
        (objects, clones, whiteouts, bytes),
    );
    if counted == there { Ok(()) } else { Err(format!("{pg}: {counted:?} {MISCOUNTED} {there:?}")) }
}

/// Each OSD that starts again remembers what it remembers now, and in each PG that is active the
/// members remember the same.
fn verify_logs(w: &World) -> Result<(), String> {
    w.nodes.iter().filter(|n| n.alive).try_for_each(logs_are_stored)?;
    let map = w.map();
    for seed in 0..map.pg_num {
        let all = map.members(PgId::new(POOL, seed)).into_iter().filter_map(|p| {
            let id = SpgId::new(PgId::new(POOL, seed), p.shard);
            let look = w.nodes[p.osd as usize].pgs.get(&id)?.look()?;
            let requests: BTreeSet<_> =
                look.log.dups().map(|d| d.reqid).chain(look.log.iter().map(|e| e.reqid)).collect();
            Some((p, requests))
        });
        let all: Vec<_> = all.collect();
        if let Some((p, other)) = all.iter().find(|(_, r)| *r != all[0].1) {
            return Err(format!(
                "{POOL}.{seed}: osd.{} remembers {other:?}, osd.{} {:?}",
                p.osd, all[0].0.osd, all[0].1
            ));
        }
    }
    Ok(())
}

/// What one OSD remembers is stored.
fn logs_are_stored(node: &world::Node) -> Result<(), String> {
    for (id, pg) in &node.pgs {
        let Some(look) = pg.look() else { continue };
        let known: BTreeSet<EVersion> = look
            .log
            .dups()
            .map(|d| key_of(d.version, d.home))
            .chain(look.log.iter().map(LogEntry::key))
            .collect();
        let stored: BTreeSet<EVersion> = node
            .store
            .applied
            .log(*id)
            .into_iter()
            .flat_map(|(log, _)| log.keys().copied())
            .collect();
        if known != stored {
            return Err(format!("{id}: remembers {known:?}, and stored is {stored:?}"));
        }
    }
    Ok(())
}

/// An object as its PG's members hold it, with its snapshots. Its history names the clones that are
/// there, and no others.
fn stored_past(w: &World, o: &HObject) -> Result<Past, String> {
    let map = w.map();
    let first = map.members(o.pg(map.pg_num))[0];
    let of = |o: &HObject| match map.ec {
        Some(_) => shards_of(w, o).map(|(all, data)| (all[0].1.attrs.clone(), data)),
        None => {
            let stored = w.nodes[first.osd as usize].store.applied.objects.get(o);
            stored.map(|x| (x.attrs.clone(), x.data.clone()))
        }
    };
    let family = HObject { snap: 0, ..store_object(o, first.shard) }..store_object(o, first.shard);
    let clones: Vec<u64> = w.nodes[first.osd as usize]
        .store
        .applied
        .objects
        .range(family)
        .map(|(c, _)| c.snap)
        .collect();
    let Some((attrs, data)) = of(o) else {
        return if clones.is_empty() {
            Ok(Past::default())
        } else {
            Err(format!("{o} left clones {clones:?}"))
        };
    };
    let info: ObjectInfo = spirula_encoding::from_slice(&attrs[INFO_ATTR]).unwrap();
    let set: SnapSet = attrs
        .get(SNAPSET_ATTR)
        .map(|v| spirula_encoding::from_slice(v).unwrap())
        .unwrap_or_default();
    let named: Vec<u64> = set.clones.iter().map(|c| c.id).collect();
    if named != clones {
        return Err(format!("{o} has a history with clones {named:?}, and there are {clones:?}"));
    }
    // Nothing is left of what was removed.
    let kept =
        |c: &ObjectClone| c.snaps.is_empty() || c.snaps.iter().any(|s| !map.snaps.contains(s));
    if set.clones.iter().any(kept) || (info.has(ObjectInfo::WHITEOUT) && set.clones.is_empty()) {
        return Err(format!("{o} keeps {set:?}, and the snapshots are {:?}", map.snaps));
    }
    for c in &set.clones {
        let (_, old) = of(&HObject { snap: c.id, ..o.clone() })
            .ok_or_else(|| format!("{o}: clone {}", c.id))?;
        let newer = set.clones.iter().map(|n| n.id).find(|n| *n > c.id).unwrap_or(o.snap);
        let (_, new) = of(&HObject { snap: newer, ..o.clone() })
            .ok_or_else(|| format!("{o}: clone {newer}"))?;
        let alike = |(at, n): &(u64, u64)| {
            let range = *at as usize..(at + n) as usize;
            old.get(range.clone()).is_some_and(|old| new.get(range) == Some(old))
        };
        if old.len() as u64 != c.size || !c.overlap.iter().all(alike) {
            return Err(format!("{o}: what the history says of clone {c:?} is not so"));
        }
    }
    let head = (!info.has(ObjectInfo::WHITEOUT)).then(|| tokens(&data));
    let clone = |id: u64| of(&HObject { snap: id, ..o.clone() }).map(|(_, data)| tokens(&data));
    Ok(Past::stored(head, &set, &map.snaps, clone))
}

/// An object's shards as the members hold them, and its bytes as the data shards give them.
#[allow(clippy::type_complexity, reason = "used twice")]
fn shards_of(w: &World, o: &HObject) -> Option<(Vec<(usize, store::Obj)>, Vec<u8>)> {
    let map = w.map();
    let shape = map.shape().unwrap();
    let members = map.members(o.pg(map.pg_num));
    let found = members.iter().filter_map(|p| {
        let objects = &w.nodes[p.osd as usize].store.applied.objects;
        objects.get(&store_object(o, p.shard)).map(|x| (p.shard as usize, x.clone()))
    });
    let found: Vec<(usize, store::Obj)> = found.collect();
    let info: ObjectInfo =
        spirula_encoding::from_slice(&found.first()?.1.attrs[INFO_ATTR]).unwrap();
    let have: Vec<(usize, Bytes)> =
        found.iter().take(shape.k).map(|(s, x)| (*s, Bytes::from(x.data.clone()))).collect();
    let mut data = join(&shape, &have).ok()?.to_vec();
    data.truncate(info.size as usize);
    Some((found, data))
}

/// Every object of an erasure-coded PG has all its shards, equal attributes, and a parity that
/// fits.
fn verify_shards(w: &World, pg: PgId) -> Result<(), String> {
    let map = w.map();
    let shape = map.shape().unwrap();
    let members = map.members(pg);
    let mut names = BTreeSet::new();
    for p in &members {
        let objects = w.nodes[p.osd as usize].store.applied.objects.keys();
        for o in objects.filter(|o| {
            o.pg(map.pg_num).seed == pg.seed
                && store_object(&object_of_store((*o).clone()), p.shard) == **o
        }) {
            names.insert(object_of_store(o.clone()));
        }
    }
    for o in names {
        let (found, _) = shards_of(w, &o).ok_or_else(|| format!("{o} cannot be put together"))?;
        if found.len() != shape.k + shape.m {
            return Err(format!("{o} has {} shards", found.len()));
        }
        let have: Vec<(usize, Bytes)> =
            found.iter().take(shape.k).map(|(s, x)| (*s, Bytes::from(x.data.clone()))).collect();
        for (s, x) in &found {
            let made = &rebuild(&shape, &have, &[*s]).map_err(|e| format!("{o}: {e}"))?[0];
            if x.attrs != found[0].1.attrs || made[..] != x.data[..] {
                return Err(format!("{o}: shard {s} differs"));
            }
        }
    }
    Ok(())
}

fn run(seed: u64) -> Result<World, String> {
    run_with(seed, |_| {})
}

/// A run of an erasure-coded pool.
fn run_erasure(seed: u64, prepare: impl FnOnce(&mut World)) -> Result<World, String> {
    let mut pick = world::Rng::new(seed ^ 0xec);
    let (k, m) = [(2, 1), (2, 2), (3, 2), (4, 2)][pick.below(4)];
    let osds = k + m + pick.below(3);
    let faults = Faults {
        crash: pick.chance(80),
        out: pick.chance(40),
        split: pick.chance(30),
        resize: false,
        merge: false,
        trim: false,
        pause: pick.chance(40),
        false_down: pick.chance(50),
        slow: pick.chance(50),
        rot: pick.chance(30),
        swap: pick.chance(30),
        reconnect: world::Rng::new(seed ^ 0xc105ed).chance(40),
        lost: pick.chance(50),
    };
    let merge = pick.chance(30);
    // Damage beside one failure is two of the shards: more than one parity shard makes good.
    let rot = faults.rot && m > 1;
    let faults =
        Faults { merge, split: faults.split || merge, rot, swap: faults.swap && !rot, ..faults };
    let mut w = World::new(seed, osds, k + m, 1 + pick.below(2) as u32, 3);
    let map = w.maps.last_mut().unwrap();
    (map.ec, map.min_size) = (Some((k, m)), k + usize::from(m > 1));
    play(w, seed, faults, &mut pick, prepare)
}

fn run_with(seed: u64, prepare: impl FnOnce(&mut World)) -> Result<World, String> {
    let mut pick = world::Rng::new(seed ^ 0x5eed);
    let osds = 3 + pick.below(5);
    let size = 2 + pick.below(2);
    let faults = Faults {
        crash: pick.chance(80),
        out: pick.chance(50),
        split: pick.chance(30),
        merge: false,
        trim: pick.chance(40),
        resize: pick.chance(20),
        pause: pick.chance(40),
        false_down: pick.chance(50),
        slow: pick.chance(50),
        rot: false,
        swap: pick.chance(30),
        reconnect: world::Rng::new(seed ^ 0xc105ed).chance(40),
        lost: pick.chance(50),
    };
    let merge = pick.chance(40);
    let faults = Faults { merge, split: faults.split || merge, ..faults };
    let rot = size == 3 && !faults.resize && pick.chance(60);
    let faults = Faults { rot, swap: faults.swap && !rot, ..faults };
    let w = World::new(seed, osds, size, 1 + pick.below(3) as u32, 3);
    play(w, seed, faults, &mut pick, prepare)
}

fn play(
    mut w: World,
    seed: u64,
    faults: Faults,
    pick: &mut world::Rng,
    prepare: impl FnOnce(&mut World),
) -> Result<World, String> {
    let osds = w.nodes.len();
    prepare(&mut w);
    for id in 0..osds {
        w.start(id as OsdId);
    }
    let every = 50 + pick.below(600);
    for step in 0..12000 {
        w.step();
        if step > 500 && step % every == 0 {
            fault(&mut w, faults);
        }
        if w.pace.snaps > 0 && step % 200 == 0 {
            w.step_snaps();
        }
    }
    let fail = |w: &World, e: String| format!("seed {seed} ({faults:?}): {e} {:?}", w.stats);
    settle(&mut w).map_err(|e| fail(&w, e))?;
    verify(&w).map_err(|e| fail(&w, e))?;
    Ok(w)
}

fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("SIM_SEEDS").unwrap_or_default();
    match text.split_once("..") {
        Some((a, b)) => a.parse().unwrap()..b.parse().unwrap(),
        None => 0..300,
    }
}

/// What must come about in a hundred seeds, or they prove nothing.
const ABOUT: [&str; 11] = [
    "backoffs of objects",
    "backoffs of pgs",
    "crashes",
    "entries taken back",
    "lost with sessions",
    "merges",
    "messages lost",
    "objects recovered",
    "reconnects",
    "rotten",
    "splits",
];

/// Runs seeds; all must go well, and in many of them all must come about.
fn campaign(
    seeds: std::ops::Range<u64>,
    run: impl Fn(u64) -> Result<World, String> + std::panic::RefUnwindSafe,
) -> BTreeMap<&'static str, u64> {
    let many = seeds.end - seeds.start >= 100;
    let mut failed = Vec::new();
    let (mut done, mut stats) = (0, BTreeMap::<&str, u64>::new());
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(Ok(w)) => {
                done += w
                    .clients
                    .iter()
                    .flat_map(|c| c.history.values())
                    .filter(|d| d.done.is_some())
                    .count();
                w.stats.iter().for_each(|(k, v)| *stats.entry(k).or_default() += v);
            }
            Ok(Err(e)) => {
                println!("{e}");
                failed.push(seed);
            }
            Err(_) => {
                println!("seed {seed}: panic");
                failed.push(seed);
            }
        }
    }
    println!("{done} requests, {stats:?}");
    assert!(failed.is_empty(), "failing seeds {failed:?}; replay one with SIM_SEED");
    assert!(done > 1000, "only {done} requests were answered");
    let idle: Vec<&str> =
        ABOUT.into_iter().filter(|what| many && !stats.contains_key(what)).collect();
    assert!(idle.is_empty(), "these never came about: {idle:?}");
    stats
}

#[test]
fn sim_erasure_coded_pools_lose_nothing_and_come_back() {
    let all = seeds();
    campaign(if all.end == 300 { 0..150 } else { all }, |seed| run_erasure(seed, |_| {}));
}

#[test]
fn one_erasure_seed() {
    let seed = std::env::var("SIM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    if let Err(e) = run_erasure(seed, |_| {}) {
        panic!("{e}");
    }
}

#[test]
fn sim_random_faults_lose_nothing_and_everything_comes_back() {
    let all = seeds();
    let whole = all == (0..300);
    let stats = campaign(all, run);
    // Rarer, and not in every pool.
    for what in ["bad merges", "changes withheld", "disks swapped"] {
        assert!(!whole || stats.contains_key(what), "never came about: {what}");
    }
}

/// Every bug of RELIABILITY.md §5, planted, must be caught by some of these seeds.
#[test]
fn sim_planted_bugs_are_caught() {
    let bugs: [(Bug, &[&str]); _] = [
        (Bug::ReadsWithoutLease, &[STALE]),
        (Bug::LeaseNotAwaited, &[STALE]),
        (Bug::DupsForgotten, DONE_TWICE),
        (Bug::DupWithoutVersion, &["lacks its version", OTHER_ANSWER]),
        (Bug::DivergentDeleteKept, ACKED),
        (Bug::DeletedComesBack, ACKED),
        (Bug::MissingStaleOnResume, LOST),
        (Bug::DirtyForgotten, DATA),
        (Bug::WithheldForgotten, DATA),
        (Bug::HollowHistory, LOST),
        (Bug::CorruptSourceCopied, DATA),
        (Bug::FailedReadForgotten, &["backfilling: {"]),
        (Bug::CleanBeforeDurable, LOST),
        (Bug::NoRetry, &["peering: {", "activating: {", " wanted\")"]),
        (Bug::PastIgnored, LOST),
        (Bug::NoUpThru, LOST),
        (Bug::ScrubBesideWrites, &["finds what is not there"]),
        (Bug::ScrubShallow, &["not found"]),
        (Bug::RepairTrustsPrimary, &["not repaired"]),
        (Bug::FoldUnchecked, DATA),
        (Bug::FoldForgetsRequests, DONE_TWICE),
        (Bug::WritesWhilePending, &[" wanted\")", " is down: {"]),
        (Bug::UnblockForgotten, &["not settled: Ok(())"]),
    ];
    let chance = |bug: Bug, planted: Option<Bug>, seed: u64| {
        let prepare = |w: &mut World| {
            planted.into_iter().for_each(|b| w.plant(b));
            // What shows with some clients only shows with them in each seed.
            w.backs_off |= bug == Bug::UnblockForgotten;
        };
        run_with(seed, prepare).err()
    };
    all_caught(&bugs, BUG_SEEDS, &[&chance, &scenarios::with_bug]);
}

/// The same for the bugs of erasure coding.
#[test]
fn sim_planted_erasure_bugs_are_caught() {
    let bugs: [(Bug, &[&str]); _] = [
        (Bug::LongestLog, LOST),
        (Bug::UndoForgotten, TAKEN_BACK),
        (Bug::RolledEarly, LOST),
        // A history that too few have told names objects that nobody can put together.
        (Bug::OneHeard, &[UNFOUND, UNFILLED]),
        (Bug::StripeNotRead, DATA),
        (Bug::PiecesKept, LOST),
        (Bug::ShortShardPadded, DATA),
    ];
    let chance = |_: Bug, planted: Option<Bug>, seed: u64| {
        let prepare = |w: &mut World| {
            planted.into_iter().for_each(|b| w.plant(b));
            w.backs_off = seed % 3 == 2;
        };
        run_erasure(seed, prepare).err()
    };
    all_caught(&bugs, ERASURE_BUG_SEEDS, &[&chance, &connections::with_bug, &shards::with_bug]);
}

#[test]
fn sim_deleted_erasure_pool_leaves_nothing_behind() {
    for seed in 0..4 {
        gone(run_erasure(seed, |_| {}).unwrap(), seed);
    }
}

#[test]
fn sim_deleted_pool_leaves_nothing_behind() {
    for seed in 0..4 {
        gone(run(seed).unwrap(), seed);
    }
}

/// Deletes the pool and looks for what is left.
fn gone(mut w: World, seed: u64) {
    w.change_map(|m| m.deleted = true);
    for _ in 0..20_000 {
        w.step();
    }
    for n in &w.nodes {
        let s = &n.store.applied;
        let records: Vec<_> = s.meta.keys().filter(|k| &k[..] != b"osd.map").collect();
        assert!(
            s.objects.is_empty() && records.is_empty(),
            "seed {seed}: osd.{} keeps {records:?}",
            n.id
        );
        assert!(s.logs.values().all(BTreeMap::is_empty), "seed {seed}: osd.{} keeps a log", n.id);
        assert!(n.pgs.is_empty(), "seed {seed}: osd.{} keeps {:?}", n.id, n.pgs.keys());
    }
}

/// Clients that take snapshots, read at them, and roll back to them.
fn snapshots(w: &mut World) {
    w.pace.snaps = [10, 30, 60][w.pace.under_way % 3];
}

/// And remove some.
fn removals(w: &mut World) {
    snapshots(w);
    w.pace.removes = true;
}

#[test]
fn sim_removed_snapshots_leave_nothing_and_take_nothing_else() {
    campaign(seeds(), |seed| run_with(seed, removals));
}

#[test]
fn sim_removed_snapshots_of_erasure_coded_pools_leave_nothing() {
    let all = seeds();
    campaign(if all.end == 300 { 0..150 } else { all }, |seed| run_erasure(seed, removals));
}

/// What can go wrong with trimming, planted, must be caught.
#[test]
fn sim_planted_trim_bugs_are_caught() {
    let bugs: [(Bug, &[&str]); _] = [
        (Bug::TrimTakesMore, ACKED),
        (Bug::TrimOverlapKept, &[SHARED]),
        (Bug::TrimmedCounts, &[MISCOUNTED]),
        (Bug::TrimNotAwaited, &[" keeps SnapSet {"]),
        (Bug::CloneNotRecovered, &["an append fails", "a read fails", STALE, END]),
    ];
    let chance = |_: Bug, planted: Option<Bug>, seed: u64| {
        let prepare = |w: &mut World| {
            removals(w);
            planted.into_iter().for_each(|b| w.plant(b));
        };
        run_with(seed, prepare).err()
    };
    all_caught(&bugs, BUG_SEEDS, &[&chance]);
}

#[test]
fn sim_snapshots_show_what_was_whatever_happens() {
    campaign(seeds(), |seed| run_with(seed, snapshots));
}

#[test]
fn sim_snapshots_of_erasure_coded_pools_show_what_was() {
    let all = seeds();
    campaign(if all.end == 300 { 0..150 } else { all }, |seed| run_erasure(seed, snapshots));
}

/// What can go wrong with snapshots, planted, must be caught, and by what it breaks. Whole clusters
/// show others (`spirula_sim::Bug::ALL`).
#[test]
fn sim_planted_snapshot_bugs_are_caught() {
    let bugs: [(Bug, &[&str]); _] = [
        (Bug::CloneOfOlder, PAST),
        (Bug::OverlapKept, PAST),
        (Bug::ContextGoesBack, PAST),
        (Bug::HistoryForgotten, &[" has a history with clones ", " left clones "]),
        (Bug::RollbackHalf, ACKED),
        (Bug::MadeWithoutSource, PAST),
    ];
    let chance = |_: Bug, planted: Option<Bug>, seed: u64| {
        let prepare = |w: &mut World| {
            snapshots(w);
            planted.into_iter().for_each(|b| w.plant(b));
        };
        run_with(seed, prepare).err()
    };
    all_caught(&bugs, BUG_SEEDS, &[&chance]);
    // What is taken is mostly what is there, by luck.
    all_caught(
        &[(Bug::SharesWithAny, &["takes a range of", " differs", SHARED])],
        5 * BUG_SEEDS,
        &[&chance],
    );
}

#[test]
fn one_snapshot_seed() {
    let of = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let seed = of("SIM_SEED").unwrap_or(1);
    let prepare = if of("SIM_REMOVE") == Some(1) { removals } else { snapshots };
    let run =
        if of("SIM_EC") == Some(1) { run_erasure(seed, prepare) } else { run_with(seed, prepare) };
    if let Err(e) = run {
        panic!("{e}");
    }
}

#[test]
fn one_seed() {
    let seed = std::env::var("SIM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    if let Err(e) = run(seed) {
        panic!("{e}");
    }
}
