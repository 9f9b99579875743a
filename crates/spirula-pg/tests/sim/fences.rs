//! Clients that are shut out while their requests wait. Whoever has the map that says so counts on
//! it that they change nothing any more: what is executed under such a map, and be it a request
//! that came long before, is a change behind his back.

use crate::hand::Hand;
use crate::planted::fails_with;
use crate::scenarios::{PG, planted_cluster, run, stop, until_active};
use crate::world::{End, World};
use crate::{settle, verify};
use spirula_messages::ceph::op::{CopyFromArgs, OsdOp};
use spirula_pg::Bug;
use spirula_types::{EVersion, Epoch, HObject, ObjectLocator, OsdId, Peer, ReqId, SpgId, errno};
use std::collections::BTreeMap;

/// The object that is written by hand.
const OBJECT: usize = 1000;
const FENCED: &str = "FENCED";

/// What any OSD remembers of requests, and when they took place.
fn remembered(w: &World) -> Vec<(ReqId, EVersion)> {
    let looks = w.nodes.iter().flat_map(|n| n.pgs.values()).filter_map(|p| p.look());
    let of = |l: spirula_pg::Look<'_>| {
        let log = l.log.iter().map(|e| (e.reqid, e.version));
        log.chain(l.log.dups().map(|d| (d.reqid, d.version))).collect::<Vec<_>>()
    };
    looks.flat_map(of).collect()
}

/// A PG that peers takes a write, a read and a listing; their client is shut out, and the PG
/// becomes active: each is refused, and nothing is changed.
fn shut_out_meanwhile(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    run(&mut w, 1500);
    let acting = w.map().acting(PG);
    let sees = |w: &mut World| {
        while w.nodes[acting[0] as usize].epoch < w.map().epoch {
            w.step();
        }
    };
    let head =
        |w: &World| w.nodes[acting[0] as usize].pgs[&SpgId::whole(PG)].look().map(|l| l.log.head());
    w.slow.insert((End::Osd(acting[1]), End::Osd(acting[0])), u64::MAX);
    stop(&mut w, acting[2]..acting[2] + 1);
    sees(&mut w);
    let before = head(&w);
    let mut h = Hand::new(w, Peer::new(acting[0], -1));
    h.object = OBJECT;
    let asks = |h: &mut Hand, conn| {
        let list = OsdOp::pgnls(10, 0, &HObject::pool_start(1, 0));
        [OsdOp::write_full("late".into()), OsdOp::read(0, 0), list].map(|o| h.send(conn, o))
    };
    let asked = asks(&mut h, 1);
    run(&mut h.w, 50);
    assert!(h.w.told.is_empty(), "seed {seed}: it peers, and answers {:?}", h.w.told);
    h.w.change_map(|m| m.blocklist.extend([Hand::fence(1)]));
    sees(&mut h.w);
    h.w.slow.clear();
    until_active(&mut h.w);
    for op in asked {
        let r = h.answer(op)?;
        if r.result != -errno::ESHUTDOWN {
            return Err(format!("{FENCED}: it is told {} {:?}", r.result, r.ops));
        }
    }
    if head(&h.w) != before {
        return Err(format!("{FENCED}: the log went from {before:?} to {:?}", head(&h.w)));
    }
    // Others go on as ever.
    for op in asks(&mut h, 2) {
        let r = h.answer(op)?;
        if r.result < 0 {
            return Err(format!("another client is told {} {:?}", r.result, r.ops));
        }
    }
    Ok(())
}

#[test]
fn what_waits_is_refused_when_its_client_is_shut_out_meanwhile() {
    (0..8).for_each(|seed| {
        shut_out_meanwhile(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    });
}

/// A copy waits for its source, which is silent, and other clients' requests wait behind it: it
/// ends as soon as its client is shut out.
fn copies_end(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut w = planted_cluster(seed, 3, bug);
    w.scrubs = false;
    w.clients.iter_mut().for_each(|c| c.quiet = true);
    run(&mut w, 3000);
    let first = w.map().members(PG)[0];
    let mut h = Hand::new(w, first);
    h.object = OBJECT;
    let locator = ObjectLocator { pool: 1, hash: -1, ..ObjectLocator::default() };
    let copy = OsdOp::copy_from(CopyFromArgs::default(), b"silent", &locator);
    let copy = h.send(1, copy);
    let behind = h.send(2, OsdOp::write_full("behind".into()));
    run(&mut h.w, 500);
    if !h.w.wanted.contains(&copy) || h.w.told.contains_key(&copy) || h.w.told.contains_key(&behind)
    {
        return Err(format!("the copy does not wait: {:?}", h.w.told));
    }
    // Somebody else is shut out.
    h.w.change_map(|m| m.blocklist.extend([Hand::fence(3)]));
    run(&mut h.w, 500);
    if h.w.told.contains_key(&copy) {
        return Err(format!("the copy has ended: {:?}", h.w.told));
    }
    h.w.change_map(|m| m.blocklist.extend([Hand::fence(1)]));
    let told = h.answer(copy).map_err(|e| format!("{FENCED}: {e}"))?.result;
    if told != -errno::ESHUTDOWN {
        return Err(format!("{FENCED}: the copy is told {told}"));
    }
    match h.answer(behind)?.result {
        0 => Ok(()),
        r => Err(format!("what was behind it is told {r}")),
    }
}

#[test]
fn a_copy_ends_when_its_client_is_shut_out() {
    (0..8).for_each(|seed| copies_end(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}")));
}

/// Members go and come, so that requests wait for peering, for objects that are recovered, for
/// commits of others; and one client after the other is shut out meanwhile.
fn fenced(seed: u64, bug: Option<Bug>) -> Result<World, String> {
    let mut w = planted_cluster(seed, 3, bug);
    (w.pace.objects, w.pace.under_way, w.pace.appends, w.pace.deletes) = (3, 4, 80, 0);
    let first = w.map().members(PG)[0];
    let mut h = Hand::new(w, first);
    h.object = OBJECT;
    let mut fences: BTreeMap<u64, Epoch> = BTreeMap::new();
    let mut sent = Vec::new();
    for conn in 1..9 {
        let away = h.w.rng.below(3) as OsdId;
        stop(&mut h.w, away..away + 1);
        let pause = h.w.rng.below(400);
        run(&mut h.w, pause);
        if conn % 2 == 0 {
            h.w.start(away);
            let pause = h.w.rng.below(100);
            run(&mut h.w, pause);
        }
        for _ in 0..6 {
            let Some(leads) = h.w.map().members(PG).first().copied() else { break };
            (h.at, h.id) = (leads.osd, SpgId::new(PG, leads.shard));
            sent.push((conn, h.send(conn, OsdOp::write_full("mine".into()))));
            let pause = h.w.rng.below(20);
            run(&mut h.w, pause);
        }
        h.w.change_map(|m| m.blocklist.extend([Hand::fence(conn)]));
        fences.insert(conn, h.w.map().epoch);
        if !h.w.nodes[away as usize].alive {
            h.w.start(away);
        }
        run(&mut h.w, 500);
        late(&h.w, &fences, &sent)?;
    }
    settle(&mut h.w)?;
    late(&h.w, &fences, &sent)?;
    verify(&h.w)?;
    Ok(h.w)
}

/// Did a change of a client take place under a map that shuts it out?
fn late(w: &World, fences: &BTreeMap<u64, Epoch>, sent: &[(u64, u64)]) -> Result<(), String> {
    let fence = |name| fences.iter().find(|(conn, _)| Hand::name(**conn) == name).map(|(_, e)| *e);
    let wrong = |reqid: ReqId, v: EVersion| Err(format!("{FENCED}: {reqid:?} took place at {v}"));
    if let Some((reqid, v)) =
        remembered(w).into_iter().find(|(r, v)| fence(r.name).is_some_and(|e| v.epoch >= e))
    {
        return wrong(reqid, v);
    }
    for (conn, op) in sent {
        if let Some(r) =
            w.told.get(op).filter(|r| r.result == 0 && r.replay_version.epoch >= fences[conn])
        {
            return wrong(ReqId { name: Hand::name(*conn), tid: *op, inc: 0 }, r.replay_version);
        }
    }
    Ok(())
}

#[test]
fn nothing_of_a_fenced_client_takes_place_under_the_map_that_shuts_it_out() {
    let (mut refused, mut done) = (0, 0);
    for seed in 0..20 {
        let w = fenced(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        refused += w.told.values().filter(|r| r.result == -errno::ESHUTDOWN).count();
        done += w.told.values().filter(|r| r.result == 0).count();
    }
    println!("{refused} refused, {done} done before");
    assert!(refused > 50 && done > 50, "{refused} refused, {done} done");
}

/// With the look at a request's arrival alone, which the shell has, what waits is executed after
/// the fence.
#[test]
fn sim_a_fence_at_arrival_only_is_caught() {
    fails_with(FENCED, 8, |seed| shut_out_meanwhile(seed, Some(Bug::FenceAtArrival)));
    fails_with(FENCED, 2, |seed| copies_end(seed, Some(Bug::FenceAtArrival)));
    fails_with(FENCED, 20, |seed| fenced(seed, Some(Bug::FenceAtArrival)).map(drop));
}
