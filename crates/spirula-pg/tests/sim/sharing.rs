//! Clones share with their neighbours, and with the head, what did not change between them: where
//! they were made, and also at members that got them by recovery or by a backfill.

use crate::client::object;
use crate::hand::Hand;
use crate::planted::fails_with;
use crate::scenarios::{PG, run, stop};
use crate::store::BLOCK;
use crate::world::World;
use crate::{clean, settle, verify};
use bytes::Bytes;
use spirula_messages::ceph::op::OsdOp;
use spirula_pg::Bug;
use spirula_pg::exec::{SNAPSET_ATTR, SnapSet};
use spirula_pg::shard::store_object;
use spirula_types::{DIRTY_BLOCK, HObject, OSD_NONE, OsdId, Peer};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of the object, which no client knows of.
const SIZE: u64 = 8 * DIRTY_BLOCK;
const OBJECT: usize = 70;
/// More blocks differ than changed.
const TWICE: &str = "blocks of its own";

/// A calm cluster with one PG; `k` and `m` of an erasure-coded pool.
fn cluster(seed: u64, code: Option<(usize, usize)>, bug: Option<Bug>) -> World {
    let size = code.map_or(3, |(k, m)| k + m);
    let mut w = World::new(seed, size + 2, size, 1, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    if let Some((k, m)) = code {
        let map = w.maps.last_mut().unwrap();
        (map.ec, map.min_size) = (Some((k, m)), k);
    }
    // A piece of a few bytes for each step would take all day.
    let cfg = Arc::make_mut(&mut w.cfg);
    cfg.push_bytes = cfg.push_bytes.max(2 * DIRTY_BLOCK);
    w.pace = w.pace.calm();
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (2, 2, 50, 0);
    (0..size as OsdId + 2).for_each(|id| w.start(id));
    run(&mut w, 3000);
    w
}

/// Lets the members come together, and whoever recovers finish.
fn rest(w: &mut World) -> Result<(), String> {
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    for _ in 0..60_000 {
        w.step();
        if w.step_is_round() && w.clients.iter().all(|c| c.idle()) && clean(w).is_ok() {
            break;
        }
    }
    clean(w)
}

/// Writes under so many snapshots more; `made` are there. Each changes one block of those of which
/// is noted whether they changed.
fn write(w: World, made: &mut u64, more: u64) -> Result<World, String> {
    let first = w.map().members(PG)[0];
    let mut hand = Hand::new(w, first);
    hand.object = OBJECT;
    if *made == 0 {
        let data: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8 + 1).collect();
        let op = hand.send(1, OsdOp::write_full(Bytes::from(data)));
        hand.answer(op)?;
    }
    for seq in *made + 1..=*made + more {
        hand.snaps = (1..=seq).rev().collect();
        let data = vec![seq as u8 | 128; DIRTY_BLOCK as usize];
        let op = hand.send(1, OsdOp::write(DIRTY_BLOCK * (seq - 1), Bytes::from(data)));
        hand.answer(op)?;
    }
    *made += more;
    Ok(hand.w)
}

/// No member has more blocks than a head and what has changed since each snapshot.
fn shared(w: &World, clones: u64, when: &str) -> Result<(), String> {
    let map = w.map();
    let mut due = (SIZE + clones * DIRTY_BLOCK) / map.ec.map_or(1, |(k, _)| k as u64) / BLOCK;
    if w.stats.contains_key("messages lost") {
        // What was refused and came all the same is made twice, and parts from what has taken of
        // the first one since.
        due += due / 3;
    }
    for Peer { osd, shard } in map.members(PG).into_iter().filter(|p| p.osd != OSD_NONE) {
        let head = store_object(&object(OBJECT), shard);
        let state = &w.nodes[osd as usize].store.applied;
        let there = state.objects.range(head.family_start()..head.family_end()).count() as u64;
        if there != clones + 1 {
            return Err(format!("osd.{osd} has {there} of {clones} clones and a head {when}"));
        }
        let family = state.blocks.range(head.family_start()..head.family_end());
        let own: BTreeSet<u64> = family.flat_map(|(_, b)| b).copied().filter(|b| *b != 0).collect();
        if own.len() as u64 > due {
            let first = |b: &Vec<u64>| {
                b.iter().step_by(DIRTY_BLOCK as usize / BLOCK as usize).copied().collect::<Vec<_>>()
            };
            let all = state.blocks.range(head.family_start()..head.family_end());
            let all: Vec<String> =
                all.map(|(o, b)| format!("{:x}: {:?}", o.snap, first(b))).collect();
            let all = all.join("\n");
            return Err(format!(
                "osd.{osd} has {} blocks of its own instead of {due} {when}:\n{all}",
                own.len()
            ));
        }
    }
    Ok(())
}

fn away(w: &World, osds: &[OsdId]) -> Vec<HObject> {
    let here = |o: &OsdId| w.nodes[*o as usize].store.applied.objects.keys().cloned();
    osds.iter().flat_map(here).collect()
}

/// An object with snapshots; a member is away while there come more, and comes back; then the PG
/// moves to others.
fn story(seed: u64, code: Option<(usize, usize)>, bug: Option<Bug>) -> Result<(), String> {
    let mut w = cluster(seed, code, bug);
    rest(&mut w)?;
    let mut made = 0;
    w = write(w, &mut made, 4)?;
    rest(&mut w)?;
    shared(&w, made, "where they were made")?;
    w.peer_loses = [None, Some(("PushAck", 20)), Some(("PushRefused", 30)), Some(("Push", 20))]
        [seed as usize % 4];
    for gone in [0, 1] {
        let members = w.map().members(PG);
        let gone = members[if gone == 0 { 0 } else { members.len() - 1 }].osd;
        stop(&mut w, gone..gone + 1);
        for _ in 0..200 {
            run(&mut w, 100);
            if crate::scenarios::active_at(&w, PG) {
                break;
            }
        }
        w = write(w, &mut made, 2)?;
        run(&mut w, (seed % 5) as usize * 200);
        w.start(gone);
        rest(&mut w)?;
        shared(&w, made, "after an absence")?;
    }
    let old = w.map().acting(PG);
    let leave: Vec<OsdId> = old.iter().copied().take(1 + seed as usize % 2).collect();
    w.change_map(|m| m.out = leave.iter().copied().collect());
    rest(&mut w)?;
    shared(&w, made, "after a backfill")?;
    assert!(away(&w, &leave).is_empty() || old == w.map().acting(PG), "nobody moved");
    settle(&mut w)?;
    shared(&w, made, "after it came back")?;
    verify(&w)
}

/// Writes under new snapshots come while members are filled, and pushes are lost on their way: a
/// copy that was refused is under way all the same, and nothing is written to it before it is
/// there.
fn written_meanwhile(seed: u64, code: Option<(usize, usize)>) -> Result<(), String> {
    let mut w = cluster(seed, code, None);
    rest(&mut w)?;
    let mut made = 0;
    w = write(w, &mut made, 2)?;
    rest(&mut w)?;
    w.peer_loses = Some(("Push", 40));
    let old = w.map().acting(PG);
    let leave: Vec<OsdId> = old.iter().copied().take(1 + seed as usize % 2).collect();
    w.change_map(|m| m.out = leave.iter().copied().collect());
    for _ in 0..6 {
        run(&mut w, 60 + seed as usize % 7 * 40);
        // A request that meets a change of primaries is for another: its client would send it
        // again.
        let first = w.map().members(PG)[0];
        let mut hand = Hand::new(w, first);
        hand.object = OBJECT;
        made += 1;
        hand.snaps = (1..=made).rev().collect();
        let data = vec![made as u8 | 128; DIRTY_BLOCK as usize];
        let op = hand.send(1, OsdOp::write(DIRTY_BLOCK * (made % 8), Bytes::from(data)));
        w = if seed.is_multiple_of(3) { hand.w } else { hand.waited(op) };
    }
    rest(&mut w)?;
    w.peer_loses = None;
    settle(&mut w)?;
    verify(&w)
}

#[test]
fn writes_beside_a_lost_push_go_to_whole_copies_alone() {
    for (seed, code) in (0..60).flat_map(|s| [(s, None), (s, Some((2, 1)))]) {
        written_meanwhile(seed, code)
            .unwrap_or_else(|e| panic!("seed {seed}, {code:?}: {e:.2000}"));
    }
}

#[test]
fn what_is_copied_shares_with_its_relatives() {
    for (seed, code) in (0..30).flat_map(|s| [(s, None), (s, Some((2, 1))), (s, Some((2, 2)))]) {
        story(seed, code, None).unwrap_or_else(|e| panic!("seed {seed}, {code:?}: {e}"));
    }
}

#[test]
fn copies_that_share_nothing_are_seen() {
    for code in [None, Some((2, 1))] {
        fails_with(TWICE, 5, |seed| story(seed, code, Some(Bug::SharesNothing)));
    }
}

/// More blocks are in use at rest than the contents, or what the histories say of them, explain.
pub const UNSHARED: &str = "blocks in use where";
/// Blocks in use for each that is needed by contents, at most, in all PGs together: of whole
/// copies, and of shards. Of 900 seeds 2.5 and 1.2 were seen: after a rollback, histories say less
/// than is so, as Ceph's do, and what a copy that is made anew shares is taken from them.
const RATIO: u64 = 5;
const RATIO_OF_SHARDS: u64 = 2;
/// The same, in tenths, where it is the histories that say what is needed, of whole objects: 1.1
/// was seen.
const TENTHS: u64 = 15;
/// Few blocks say nothing.
const SLACK: u64 = 64;

/// Blocks of heads and clones at the members of their PGs. Of blocks of zeros nobody can say who
/// wrote them; they do not count.
#[derive(Debug, Default)]
struct Space {
    used: u64,
    /// One for each run of neighbours, the head among them, in which a block is the same.
    by_content: u64,
    /// Those of heads, and of clones what their histories do not say to be the next one's.
    by_history: u64,
}

fn space(w: &World) -> Space {
    let map = w.map();
    let mut space = Space::default();
    for o in (0..w.pace.objects).map(object) {
        for Peer { osd, shard } in
            map.members(o.pg(map.pg_num)).into_iter().filter(|p| p.osd != OSD_NONE)
        {
            let state = &w.nodes[osd as usize].store.applied;
            let head = store_object(&o, shard);
            let set = state.objects.get(&head).and_then(|o| o.attrs.get(SNAPSET_ATTR));
            let set: SnapSet =
                set.map(|v| spirula_encoding::from_slice(v).unwrap()).unwrap_or_default();
            let mut own: BTreeSet<u64> = BTreeSet::new();
            let mut before: Vec<&[u8]> = Vec::new();
            for (o, obj) in state.objects.range(head.family_start()..head.family_end()) {
                let ids = state.blocks.get(o).map_or(&[][..], |b| b);
                let clone = set.clones.iter().find(|c| c.id == o.snap);
                let is_next = |n: usize| {
                    let (from, end) = (n as u64 * BLOCK, (n as u64 + 1) * BLOCK);
                    clone.is_some_and(|c| {
                        c.overlap.iter().any(|(at, n)| *at <= from && end.min(c.size) <= at + n)
                    })
                };
                let blocks: Vec<&[u8]> = obj.data.chunks(BLOCK as usize).collect();
                for (n, block) in
                    blocks.iter().enumerate().filter(|(_, b)| b.iter().any(|x| *x != 0))
                {
                    own.extend(ids.get(n));
                    space.by_content += u64::from(before.get(n) != Some(block));
                    space.by_history += u64::from(!is_next(n));
                }
                before = blocks;
            }
            let brought = state.brought.get(&head).copied().unwrap_or(0);
            space.used += own.len() as u64;
            space.by_content += brought;
            space.by_history += brought;
        }
    }
    space
}

/// At rest, clones share with their neighbours and the head what is the same, whatever happened.
pub fn at_rest(w: &World) -> Result<(), String> {
    // What replaces a damaged copy shares nothing: a block of the others may be the damaged one.
    if w.pace.snaps == 0 || w.stats.contains_key("rotten") {
        return Ok(());
    }
    let Space { used, by_content, by_history } = space(w);
    let coded = w.map().ec.is_some();
    if used > by_content * if coded { RATIO_OF_SHARDS } else { RATIO } + SLACK {
        return Err(format!("{used} {UNSHARED} {by_content} are needed"));
    }
    if !coded && used > by_history * TENTHS / 10 + SLACK {
        return Err(format!("{used} {UNSHARED} {by_history} are needed, as the histories say"));
    }
    Ok(())
}

/// What makes clones cost what they hold is seen at rest in runs of any kind: stores that copy
/// where they are to share, and recovery that shares nothing.
#[test]
fn clones_that_share_nothing_are_seen_at_rest() {
    let unshares = |w: &mut World| {
        crate::snapshots(w);
        for n in &mut w.nodes {
            (n.store.applied.unshares, n.store.durable.unshares) = (true, true);
        }
    };
    fails_with(UNSHARED, 40, |seed| crate::run_with(seed, unshares).map(drop));
    fails_with(UNSHARED, 20, |seed| crate::run_erasure(seed, unshares).map(drop));
    let recovers = |w: &mut World| {
        crate::snapshots(w);
        w.plant(Bug::SharesNothing);
    };
    fails_with(UNSHARED, 60, |seed| crate::run_with(seed, recovers).map(drop));
}

/// Thousands of snapshots of one object, half of them while a member is away, and the PG moves
/// then: all members have all of them, count them, and have of each what was written under it and
/// little more.
#[test]
fn thousands_of_snapshots_of_one_object() {
    const SNAPS: u64 = 2000;
    let mut w = cluster(1, None, None);
    rest(&mut w).unwrap();
    let mut made = 0;
    let gone = w.map().members(PG)[2].osd;
    for part in 0..2 {
        let first = w.map().members(PG)[0];
        let mut hand = Hand::new(w, first);
        hand.object = OBJECT;
        for _ in 0..SNAPS / 2 {
            hand.snaps = (1..=made).rev().collect();
            let op =
                hand.send(1, OsdOp::write(16 * (made % 64), Bytes::from(format!("{made:016}"))));
            hand.answer(op).unwrap();
            made += 1;
        }
        w = hand.w;
        if part == 0 {
            stop(&mut w, gone..gone + 1);
            for _ in 0..200 {
                run(&mut w, 100);
                if crate::scenarios::active_at(&w, PG) {
                    break;
                }
            }
        }
    }
    // So many are recovered and filled one by one.
    let long_rest = |w: &mut World| (0..20).find(|_| rest(w).is_ok()).expect("it becomes clean");
    w.start(gone);
    long_rest(&mut w);
    let leaves = w.map().acting(PG)[0];
    w.change_map(|m| m.out = [leaves].into());
    long_rest(&mut w);
    for Peer { osd, shard } in w.map().members(PG) {
        let head = store_object(&object(OBJECT), shard);
        let state = &w.nodes[osd as usize].store.applied;
        let family = head.family_start()..head.family_end();
        let there = state.objects.range(family.clone()).count();
        assert_eq!(there as u64, SNAPS, "osd.{osd}: the head, and a clone for each snapshot");
        // Two blocks were written under each, and just as many were seen.
        let own: BTreeSet<u64> = state.blocks.range(family).flat_map(|(_, b)| b).copied().collect();
        assert!(own.len() as u64 <= 3 * SNAPS, "osd.{osd} has {} blocks of its own", own.len());
    }
    verify(&w).unwrap();
}
