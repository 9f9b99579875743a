//! Shards that are spoilt without a checksum that shows it: too short, or with other attributes
//! than the rest. Reads make nothing up of them, and a scrub finds and replaces them, from `k`
//! sound ones or not at all.

use crate::client::object;
use crate::world::World;
use crate::{clean, heal_found, settle, verify};
use bytes::Bytes;
use spirula_maps::PgState;
use spirula_pg::shard::store_object;
use spirula_pg::{Bug, PgEvent};
use spirula_types::{OsdId, Peer, PgId, SpgId};

const PG: PgId = PgId { pool: 1, seed: 0 };

/// A calm cluster of one PG, which holds objects and is clean.
fn calm(seed: u64, (k, m): (usize, usize), bug: Option<Bug>) -> World {
    let mut w = World::new(seed, k + m, k + m, 1, 3);
    bug.into_iter().for_each(|b| w.plant(b));
    let map = w.maps.last_mut().unwrap();
    (map.ec, map.min_size) = (Some((k, m)), k);
    w.pace = w.pace.calm();
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (2, 3, 50, 0);
    (0..(k + m) as OsdId).for_each(|id| w.start(id));
    for _ in 0..6000 {
        w.step();
    }
    rest(&mut w);
    w
}

/// Lets what is under way end, until the PG is clean.
fn rest(w: &mut World) {
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    for _ in 0..40_000 {
        w.step();
        if w.step_is_round() && w.clients.iter().all(|c| c.idle()) && clean(w).is_ok() {
            break;
        }
    }
    assert_eq!(clean(w), Ok(()));
    w.clients.iter_mut().for_each(|c| c.quiet = false);
}

/// What is done to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Short,
    OtherAttribute,
    NoAttribute,
}

/// Spoils a member's shard of an object that is there; true if there was something to spoil.
fn spoil(w: &mut World, n: usize, member: Peer, harm: Harm) -> bool {
    let name = store_object(&object(n), member.shard);
    let store = &mut w.nodes[member.osd as usize].store;
    let last = |a: &Bytes| a.ends_with(b"last");
    let Some(o) = store.applied.objects.get(&name) else { return false };
    let there = match harm {
        Harm::Short => !o.data.is_empty(),
        Harm::OtherAttribute | Harm::NoAttribute => o.attrs.keys().any(last),
    };
    store.spoil(&name, |o| match harm {
        Harm::Short => o.data.truncate(o.data.len() / 2),
        Harm::OtherAttribute => {
            o.attrs.iter_mut().filter(|(k, _)| last(k)).for_each(|(_, v)| *v = "?".into())
        }
        Harm::NoAttribute => o.attrs.retain(|k, _| !last(k)),
    });
    there
}

fn primary(w: &World) -> (OsdId, SpgId) {
    let first = w.map().members(PG)[0];
    (first.osd, SpgId::new(PG, first.shard))
}

fn state(w: &World) -> PgState {
    let (osd, id) = primary(w);
    w.nodes[osd as usize].pgs[&id].state().0
}

/// Scrubs the PG and waits for the end of it, and of the repair.
fn scrub(w: &mut World, repair: bool) {
    let (osd, id) = primary(w);
    let before = w.stats.get("scrubs").copied().unwrap_or(0);
    w.event(osd, id, PgEvent::Scrub { deep: false, repair, large: Default::default() });
    for _ in 0..40_000 {
        w.step();
        if w.stats.get("scrubs").copied().unwrap_or(0) > before {
            return;
        }
    }
    panic!("the scrub never ends: {}", state(w));
}

/// One shard of an object is spoilt, clients read, write and append, then the PG is repaired. True
/// if there was a shard to spoil.
fn spoilt(seed: u64, shape: (usize, usize), harm: Harm, bug: Option<Bug>) -> Result<bool, String> {
    let mut w = calm(seed, shape, bug);
    let members = w.map().members(PG);
    let (n, member) = (w.rng.below(2), members[w.rng.below(members.len())]);
    if !spoil(&mut w, n, member, harm) {
        return Ok(false);
    }
    for _ in 0..w.rng.below(3000) {
        w.step();
    }
    rest(&mut w);
    scrub(&mut w, true);
    settle(&mut w)?;
    heal_found(&mut w);
    verify(&w).map(|()| true)
}

/// The story that shows a bug, with the bug planted or without: what goes wrong?
pub fn with_bug(bug: Bug, planted: Option<Bug>, seed: u64) -> Option<String> {
    (bug == Bug::ShortShardPadded).then(|| spoilt(seed, (2, 1), Harm::Short, planted).err())?
}

#[test]
fn a_spoilt_shard_is_not_made_into_data_and_is_replaced() {
    for harm in [Harm::Short, Harm::OtherAttribute, Harm::NoAttribute] {
        for shape in [(2, 1), (4, 2)] {
            let all: Vec<_> = (0..12).map(|seed| (seed, spoilt(seed, shape, harm, None))).collect();
            let bad: Vec<_> = all.iter().filter(|(_, r)| r.is_err()).collect();
            assert!(bad.is_empty(), "{harm:?} {shape:?}: {bad:#?}");
            let tried = all.iter().filter(|(_, r)| *r == Ok(true)).count();
            assert!(
                tried >= 6,
                "{harm:?} {shape:?}: only {tried} of 12 seeds had anything to spoil"
            );
        }
    }
}

/// With fewer than `k` sound shards a repair leaves alone what is there: nothing counts as missing.
#[test]
fn a_repair_without_k_sound_shards_begins_nothing() {
    for seed in 0..8 {
        let mut w = calm(seed, (2, 1), None);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        let members = w.map().members(PG);
        let shards: Vec<_> =
            members.iter().map(|m| (*m, store_object(&object(0), m.shard))).collect();
        let kept: Vec<_> = shards
            .iter()
            .map(|(m, o)| w.nodes[m.osd as usize].store.applied.objects.get(o).cloned())
            .collect();
        assert!(kept.iter().all(Option::is_some), "seed {seed}: no object");
        assert!(members[..2].iter().all(|m| spoil(&mut w, 0, *m, Harm::Short)), "seed {seed}");
        scrub(&mut w, true);
        assert!(
            state(&w).has(PgState::INCONSISTENT) && state(&w).has(PgState::CLEAN),
            "seed {seed}: {}",
            state(&w)
        );
        // Somebody puts the bytes back.
        for ((m, o), data) in shards.iter().zip(kept) {
            let data = data.unwrap();
            w.nodes[m.osd as usize].store.spoil(o, |o| *o = data.clone());
        }
        scrub(&mut w, false);
        assert!(!state(&w).has(PgState::INCONSISTENT), "seed {seed}: {}", state(&w));
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A shard is an older version's, with a length that is right for that: no clone is made of it.
#[test]
fn no_clone_is_made_of_an_older_shard() {
    let mut tried = 0;
    for seed in 0..12 {
        let mut w = calm(seed, (2, 1), None);
        w.pace.appends = 100;
        // The one that nobody reads before a write.
        let member = w.map().members(PG)[2];
        let name = store_object(&object(0), member.shard);
        let shard =
            |w: &World| w.nodes[member.osd as usize].store.applied.objects.get(&name).cloned();
        let Some(old) = shard(&w) else { continue };
        (0..1000).for_each(|_| w.step());
        rest(&mut w);
        w.clients.iter_mut().for_each(|c| c.quiet = true);
        if shard(&w).as_ref() == Some(&old) {
            continue;
        }
        w.nodes[member.osd as usize].store.spoil(&name, |o| *o = old.clone());
        w.change_map(|m| (m.snap_seq, m.snaps) = (1, vec![1]));
        let newest = w.map().epoch;
        (0..w.clients.len()).for_each(|c| w.client_map(c, newest));
        (0..300).for_each(|_| w.step());
        w.clients.iter_mut().for_each(|c| c.quiet = false);
        (0..2000).for_each(|_| w.step());
        rest(&mut w);
        settle(&mut w).and_then(|()| verify(&w)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        tried += 1;
    }
    assert!(tried >= 6, "only {tried} of 12 seeds had an older shard");
}
