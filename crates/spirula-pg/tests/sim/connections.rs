//! Clients that go away and come again. A request that ends with its connection leaves nothing
//! behind: no shards that are on their way for it, nothing that was read for it, and no object that
//! waits for either.

use crate::hand::Hand;
use crate::world::World;
use crate::{settle, verify, verify_shards};
use bytes::Bytes;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::flag;
use spirula_pg::{Bug, PgEvent};
use spirula_types::{OsdId, PgId, SpgId};
use std::collections::BTreeMap;

const PG: PgId = PgId { pool: 1, seed: 0 };

fn run(w: &mut World, steps: usize) {
    for _ in 0..steps {
        w.step();
    }
}

/// A calm cluster of one PG, of as many OSDs as it has members.
fn calm(seed: u64, ec: Option<(usize, usize)>, clients: usize, bug: Option<Bug>) -> World {
    let (k, m) = ec.unwrap_or((2, 1));
    let mut w = World::new(seed, k + m, k + m, 1, clients);
    bug.into_iter().for_each(|b| w.plant(b));
    let map = w.maps.last_mut().unwrap();
    (map.ec, map.min_size) = (ec, k);
    w.pace = w.pace.calm();
    w.scrubs = false;
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (2, 4, 60, 20);
    (0..(k + m) as OsdId).for_each(|id| w.start(id));
    w
}

/// Clients of a pool whose connections break now and then, nothing else.
fn reconnecting(seed: u64, ec: Option<(usize, usize)>, bug: Option<Bug>) -> Result<(), String> {
    let mut w = calm(seed, ec, 3, bug);
    run(&mut w, 3000);
    for _ in 0..60 {
        let pause = 5 + w.rng.below(60);
        run(&mut w, pause);
        let c = w.rng.below(3);
        w.reconnect(c);
    }
    assert!(
        w.stats.get("reconnects").is_some_and(|n| *n > 10),
        "seed {seed}: {:?}",
        w.stats.get("reconnects")
    );
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    settle(&mut w).and_then(|()| verify(&w))
}

/// The story that shows a bug, with the bug planted or without: what goes wrong?
pub fn with_bug(bug: Bug, planted: Option<Bug>, seed: u64) -> Option<String> {
    (bug == Bug::PiecesKept).then(|| reconnecting(seed, Some((2, 1)), planted).err())?
}

#[test]
fn connections_that_break_change_nothing() {
    for (ec, seeds) in [(None, 20), (Some((2, 1)), 60), (Some((4, 2)), 40)] {
        let said = |seed| match std::panic::catch_unwind(|| reconnecting(seed, ec, None)) {
            Ok(r) => r.err(),
            Err(p) => Some(format!("panic: {:?}", p.downcast_ref::<String>())),
        };
        let bad: BTreeMap<u64, String> = (0..seeds).filter_map(|s| Some((s, said(s)?))).collect();
        assert!(bad.is_empty(), "{ec:?}: {} of {seeds} seeds: {bad:#?}", bad.len());
    }
}

/// A reader goes away while shards are read for it, and the object is replaced meanwhile: what was
/// read is of no use to whoever comes next. The next one changes the object in part, if it
/// `merges`, and reads it.
fn reader_goes_away(seed: u64, merges: bool) -> Result<(), String> {
    let mut w = calm(seed, Some((2, 1)), 1, None);
    w.clients[0].quiet = true;
    run(&mut w, 3000);
    let first = w.map().members(PG)[0];
    let mut h = Hand::new(w, first);
    let of = |b: u8| OsdOp::write_full(vec![b; 64].into());
    let written = h.send(1, of(b'A'));
    h.wait(written)?;
    run(&mut h.w, 500);
    let read = h.send(2, OsdOp::read(0, 0));
    assert!(!h.w.told.contains_key(&read), "shards are read for it");
    h.w.event(h.at, h.id, PgEvent::ConnClosed(2));
    let written = h.send(1, of(b'B'));
    h.wait(written)?;
    let mut want = vec![b'B'; 64];
    if merges {
        let merged = h.send(1, OsdOp::write(0, Bytes::from_static(b"C")));
        h.wait(merged)?;
        want[0] = b'C';
    }
    let read = h.send(1, OsdOp::read(0, 0));
    let got = h.wait(read)?;
    if got != want {
        return Err(format!("read {:?}", String::from_utf8_lossy(&got)));
    }
    settle(&mut h.w)?;
    verify_shards(&h.w, PG)
}

fn readers_that_go_away(merges: bool) {
    let mut kinds = BTreeMap::<String, usize>::new();
    for seed in 0..100 {
        let said = reader_goes_away(seed, merges).err().unwrap_or("ok".into());
        *kinds.entry(said.chars().take(60).collect()).or_default() += 1;
    }
    assert!(kinds.keys().all(|k| k == "ok"), "of 100 seeds: {kinds:#?}");
}

/// What a request that asks for it was told of each of its ops: a resend hears the same from the
/// log, and so it does when the entry is trimmed, from the next primary, and when all members have
/// restarted.
fn returns_are_remembered(seed: u64, ec: Option<(usize, usize)>) -> Result<(), String> {
    let mut w = calm(seed, ec, 2, None);
    // What is set by hand would make an object of which the clients' history knows nothing.
    w.pace.deletes = 0;
    let is_there = |w: &World| {
        let mut all = w.clients.iter().flat_map(|c| c.history.values());
        all.any(|d| d.object == 0 && d.write.is_some() && d.done.is_some())
    };
    if !(0..100).any(|_| {
        run(&mut w, 100);
        is_there(&w)
    }) {
        return Err("nothing was written".into());
    }
    let first = w.map().members(PG)[0];
    let mut h = Hand::new(w, first);
    let vectors = [
        vec![OsdOp::setxattr(b"a", b"1"), OsdOp::stat(), OsdOp::cmpxattr(b"a", 1, 1, b"1")],
        vec![OsdOp::setxattr(b"a", b"2"), OsdOp::stat(), OsdOp::cmpxattr(b"a", 1, 1, b"1")],
    ];
    let mut told = Vec::new();
    for what in vectors {
        let op = h.request(1, None, flag::RETURNVEC, what.clone());
        h.wait(op)?;
        told.push((op, what, h.w.told[&op].clone()));
    }
    if told[0].2.result < 0 || told[1].2.result >= 0 || told[0].2.ops[1].op.indata.is_empty() {
        return Err("the vectors do not do what they are for".into());
    }
    for round in 0..3 {
        for (op, what, first) in &told {
            let again = h.request(1, Some(*op), flag::RETURNVEC, what.clone());
            h.wait(again)?;
            let now = &h.w.told[&again];
            if (now.result, now.replay_version, &now.ops)
                != (first.result, first.replay_version, &first.ops)
            {
                return Err(format!(
                    "round {round}: told {:?} {:?}, then {:?} {:?}",
                    first.result, first.ops, now.result, now.ops
                ));
            }
        }
        // The clients' writes trim the log meanwhile, and the primary restarts.
        run(&mut h.w, 2000);
        let down = h.at;
        h.w.crash(down);
        h.w.mark_down(down);
        run(&mut h.w, 3000);
        if round == 1 {
            (0..3).filter(|o| *o != down).for_each(|o| {
                h.w.crash(o);
                h.w.start(o);
            });
        }
        h.w.start(down);
        run(&mut h.w, 6000);
        let next = h.w.map().members(PG)[0];
        (h.at, h.id) = (next.osd, SpgId::new(PG, next.shard));
    }
    h.w.clients.iter_mut().for_each(|c| c.quiet = true);
    settle(&mut h.w).and_then(|()| verify(&h.w))
}

#[test]
fn a_resend_is_told_what_each_op_gave_however_late_it_comes() {
    for ec in [None, Some((2, 1))] {
        let bad: BTreeMap<u64, String> = (0..12)
            .filter_map(|seed| Some((seed, returns_are_remembered(seed, ec).err()?)))
            .collect();
        assert!(bad.is_empty(), "{ec:?}: {} of 12 seeds: {bad:#?}", bad.len());
    }
}

#[test]
fn what_was_read_for_a_reader_that_went_away_is_not_shown_to_the_next() {
    readers_that_go_away(false);
}

#[test]
fn what_was_read_for_a_reader_that_went_away_is_not_merged_into_the_next_write() {
    readers_that_go_away(true);
}
