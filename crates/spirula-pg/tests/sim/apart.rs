//! Requests that use a clone which is missing: who waits, who goes on, and who is told to hold them
//! back.

use crate::client::object;
use crate::scenarios::run;
use crate::world::World;
use bytes::Bytes;
use spirula_maps::PgState;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::MOsdOp;
use spirula_pg::exec::{INFO_ATTR, Timeouts};
use spirula_pg::shard::store_object;
use spirula_pg::{ClientOp, Patience, PgConfig, PgEvent};
use spirula_types::{
    EntityName, HObject, ObjectLocator, OsdId, PgId, ReqId, SNAP_HEAD, SpgId, errno,
};
use std::sync::Arc;

const PG: PgId = PgId { pool: 1, seed: 0 };
const KINDS: [Option<(usize, usize)>; 2] = [None, Some((2, 1))];

/// The first of their numbers: no client of the world's has such.
const FIRST: u64 = 900_000;

/// Requests made by hand, each over a connection of its own number, for the first object.
struct Hand {
    w: World,
    /// The PG's primary, and what that calls it.
    at: OsdId,
    id: SpgId,
    /// The snapshot that they ask for, and those that their client knows, newest first.
    snapid: u64,
    snaps: Vec<u64>,
    patience: Patience,
    next: u64,
}

impl Hand {
    /// Requests for the first object, to whoever leads the PG now.
    fn new(w: World) -> Self {
        let first = w.map().members(PG)[0];
        let (at, id) = (first.osd, SpgId::new(PG, first.shard));
        let (snapid, snaps, patience) = (SNAP_HEAD, Vec::new(), Patience::Endless);
        Self { w, at, id, snapid, snaps, patience, next: 0 }
    }

    /// Reads at a snapshot.
    fn read_at(&mut self, conn: u64, snap: u64) -> u64 {
        self.snapid = snap;
        let op = self.send(conn, OsdOp::read(0, 0));
        self.snapid = SNAP_HEAD;
        op
    }

    /// Sends a request; its number.
    fn send(&mut self, conn: u64, what: OsdOp) -> u64 {
        self.send_to(conn, object(0), what)
    }

    /// Sends a request for this object.
    fn send_to(&mut self, conn: u64, o: HObject, what: OsdOp) -> u64 {
        self.next += 1;
        let op = FIRST + self.next;
        let locator =
            ObjectLocator { pool: 1, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
        let mut msg = Box::new(MOsdOp::new(self.id, o.hash, locator, o.name, vec![what]));
        (msg.epoch, msg.snapid) = (self.w.map().epoch, self.snapid);
        (msg.snap_seq, msg.snaps) = (self.snaps.first().copied().unwrap_or(0), self.snaps.clone());
        let reqid = ReqId { name: EntityName::client(7000 + conn), tid: op, inc: 0 };
        let (addrs, patience, timeouts) = (Arc::default(), self.patience, Timeouts::default());
        let request = ClientOp { id: op, conn, reqid, addrs, msg, patience, timeouts };
        self.w.event(self.at, self.id, PgEvent::Client(request));
        op
    }

    /// The answer's data.
    fn wait(&mut self, op: u64) -> Result<Bytes, String> {
        for _ in 0..20_000 {
            if let Some(r) = self.w.told.get(&op) {
                return Ok(r.ops.first().map(|o| o.op.indata.clone()).unwrap_or_default());
            }
            self.w.step();
        }
        let state = self.w.nodes[self.at as usize].pgs[&self.id].state().0;
        Err(format!("request {} is not answered, the pg is {state}", op - FIRST))
    }

    /// Steps until the primary has the newest map: what is sent then does not wait for one.
    fn hears(&mut self) -> Result<(), String> {
        let at = self.at as usize;
        self.until("the newest map is there", |w| w.nodes[at].epoch == w.map().epoch)
    }

    /// Steps until this is so.
    fn until(&mut self, what: &str, is: impl Fn(&World) -> bool) -> Result<(), String> {
        for _ in 0..20_000 {
            if is(&self.w) {
                return Ok(());
            }
            self.w.step();
        }
        Err(format!("never: {what}"))
    }
}

fn of(b: u8) -> OsdOp {
    OsdOp::write_full(Bytes::from(vec![b; 64]))
}

/// A calm cluster of three OSDs, all of which have the one PG, that serves.
fn calm(seed: u64, ec: Option<(usize, usize)>) -> Result<Hand, String> {
    serving(World::new(seed, 3, 3, 1, 1), ec)
}

fn serving(mut w: World, ec: Option<(usize, usize)>) -> Result<Hand, String> {
    let map = w.maps.last_mut().unwrap();
    (map.ec, map.min_size) = (ec, 2);
    w.pace = w.pace.calm();
    w.scrubs = false;
    w.clients[0].quiet = true;
    (0..3).for_each(|id: OsdId| w.start(id));
    run(&mut w, 3000);
    let mut h = Hand::new(w);
    let written = h.send(1, of(b'A'));
    h.wait(written).map(|_| h)
}

/// The object has a snapshot, and nobody has its clone any more, which nobody knows yet.
fn lost_clone(seed: u64, ec: Option<(usize, usize)>) -> Result<Hand, String> {
    let mut h = calm(seed, ec)?;
    h.snaps = vec![1];
    let written = h.send(1, of(b'B'));
    h.wait(written)?;
    run(&mut h.w, 500);
    let clone = HObject { snap: 1, ..object(0) };
    for n in &mut h.w.nodes {
        n.store.rotten.extend((-1..3).map(|shard| store_object(&clone, shard)));
    }
    h.hears().map(|()| h)
}

fn unfound(h: &Hand) -> bool {
    h.w.nodes[h.at as usize].pgs[&h.id].state().0.any(PgState::RECOVERY_UNFOUND)
}

fn give_up(h: &mut Hand) {
    h.w.event(h.at, h.id, PgEvent::MarkLost { revert: false });
}

/// All that stands behind the read comes before it is known that there is nothing to be read, and
/// nothing comes later.
fn goes_on(seed: u64, ec: Option<(usize, usize)>) -> Result<(), String> {
    let mut h = lost_clone(seed, ec)?;
    let first = h.send(1, of(b'C'));
    let read = h.read_at(2, 1);
    let behind = h.send(3, of(b'D'));
    let last = h.send(4, OsdOp::read(0, 0));
    assert!(!h.w.told.contains_key(&first), "the read waits for that write");
    h.wait(behind)?;
    let got = h.wait(last)?;
    if got != vec![b'D'; 64] {
        return Err(format!("read {got:?}"));
    }
    run(&mut h.w, 1000);
    if h.w.told.contains_key(&read) || !unfound(&h) {
        return Err("there is nothing to be read".into());
    }
    give_up(&mut h);
    h.wait(read).map(drop)
}

#[test]
fn requests_behind_a_read_of_a_clone_that_is_found_bad_go_on() {
    for ec in KINDS {
        (0..6).for_each(|seed| {
            goes_on(seed, ec).unwrap_or_else(|e| panic!("{ec:?} seed {seed}: {e}"))
        });
    }
}

/// Whoever has much open does not fill its connection with such reads: it holds what it has for the
/// object, until the clone is there or given up. Nobody else does.
fn is_held(seed: u64, ec: Option<(usize, usize)>) -> Result<(), String> {
    let mut h = lost_clone(seed, ec)?;
    h.patience = Patience::Long;
    let patient = h.read_at(2, 1);
    let before = h.read_at(3, 1);
    h.until("unfound", |w| {
        w.nodes[h_at(w)].pgs.values().any(|p| p.state().0.any(PgState::RECOVERY_UNFOUND))
    })?;
    h.hears()?;
    h.patience = Patience::Short;
    let crowded: Vec<u64> = (0..20).map(|_| h.read_at(3, 1)).collect();
    let of_the_head = h.send(3, of(b'E'));
    h.patience = Patience::Long;
    run(&mut h.w, 2000);
    let held = |h: &Hand, op: &u64| h.w.held_back.get(op) == Some(&object(0));
    if let Some(op) = crowded.iter().chain([&before]).find(|op| !held(&h, op)) {
        return Err(format!("request {op} waits on, of {crowded:?}"));
    }
    // Nobody keeps the write from coming here: it is done, unless it came while a read of the
    // connection was looked at.
    if !h.w.told.contains_key(&of_the_head) && !held(&h, &of_the_head) {
        return Err("a write of the head waits".into());
    }
    if held(&h, &patient) || h.w.told.contains_key(&patient) {
        return Err("the other one waits".into());
    }
    let other = h.send(4, of(b'F'));
    h.wait(other)?;
    give_up(&mut h);
    h.wait(patient)?;
    h.until("they are told to go on", |w| w.held_back.is_empty())
}

fn h_at(w: &World) -> usize {
    w.map().members(PG)[0].osd as usize
}

#[test]
fn a_crowded_connection_holds_its_reads_of_a_missing_clone() {
    for ec in KINDS {
        (0..4).for_each(|seed| {
            is_held(seed, ec).unwrap_or_else(|e| panic!("{ec:?} seed {seed}: {e}"))
        });
    }
}

/// A rollback to such a clone has to wait, and all that comes after it on the object: their clients
/// hold them, as they do where it is the object itself that nobody has.
fn rollback_is_held(seed: u64, ec: Option<(usize, usize)>) -> Result<(), String> {
    let mut h = lost_clone(seed, ec)?;
    h.patience = Patience::Long;
    let read = h.read_at(2, 1);
    let back = h.send(3, OsdOp::rollback(1));
    let behind = h.send(4, of(b'G'));
    h.patience = Patience::Endless;
    let endless = h.send(5, of(b'H'));
    h.until("held back", |w| w.held_back.contains_key(&back))?;
    run(&mut h.w, 2000);
    // That one does not wait for the clone, and goes on when the rollback is gone.
    if !h.w.told.contains_key(&behind) && !h.w.held_back.contains_key(&behind) {
        return Err("the write behind it neither waits at its client nor is done".into());
    }
    h.wait(endless)?;
    if h.w.told.contains_key(&read) {
        return Err("there is nothing to be read".into());
    }
    give_up(&mut h);
    h.until("they are told to go on", |w| w.held_back.is_empty())
}

#[test]
fn a_rollback_to_a_clone_that_nobody_has_is_held_by_its_client() {
    for ec in KINDS {
        (0..4).for_each(|seed| {
            rollback_is_held(seed, ec).unwrap_or_else(|e| panic!("{ec:?} seed {seed}: {e}"))
        });
    }
}

/// The log does not reach back to the clone, and the primary's copy does not say any more which
/// version of it it is: nobody can be asked for it, and a rollback to it ends with EIO, beside
/// which all goes on. A repair finds it, and then it can be done.
fn rollback_is_refused(seed: u64, ec: Option<(usize, usize)>) -> Result<(), String> {
    let mut w = World::new(seed, 3, 3, 1, 1);
    w.cfg = Arc::new(PgConfig { log_keep: 1, log_max: 1, log_slack: 0, ..(*w.cfg).clone() });
    let mut h = serving(w, ec)?;
    h.snaps = vec![1];
    for b in b"BCDE" {
        let written = h.send(1, of(*b));
        h.wait(written)?;
    }
    run(&mut h.w, 500);
    let clone = store_object(&HObject { snap: 1, ..object(0) }, h.id.shard);
    h.w.nodes[h.at as usize].store.spoil(&clone, |o| drop(o.attrs.remove(INFO_ATTR)));
    h.hears()?;
    let back = h.send(3, OsdOp::rollback(1));
    let behind = h.send(4, of(b'F'));
    h.wait(back)?;
    let told = h.w.told[&back].result;
    if told != -errno::EIO {
        return Err(format!("the rollback is told {told}"));
    }
    h.wait(behind)?;
    let read = h.send(4, OsdOp::read(0, 0));
    let got = h.wait(read)?;
    if got != vec![b'F'; 64] {
        return Err(format!("read {got:?}"));
    }
    h.w.event(h.at, h.id, PgEvent::Scrub { deep: false, repair: true, large: Default::default() });
    h.until("it is repaired", |w| w.stats.contains_key("copies repaired"))?;
    run(&mut h.w, 1000);
    h.hears()?;
    let back = h.send(3, OsdOp::rollback(1));
    h.wait(back)?;
    let read = h.send(4, OsdOp::read(0, 0));
    let got = h.wait(read)?;
    if got != vec![b'A'; 64] {
        return Err(format!(
            "read {got:?} after the rollback, which was told {}",
            h.w.told[&back].result
        ));
    }
    Ok(())
}

#[test]
fn a_rollback_to_a_clone_whose_version_nobody_knows_is_refused() {
    (0..6).for_each(|seed| {
        rollback_is_refused(seed, KINDS[1]).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    });
}

/// A member comes back, so long ago that it must be filled, with a clone that only it has ever had.
/// While that goes there, a write makes a clone of the same name: it is made of what the others
/// have, not of the member's old head, and the removal does not take it.
fn same_name(seed: u64, steps: usize, lost: bool) -> Result<(), String> {
    let mut w = World::new(seed, 3, 3, 1, 1);
    w.cfg = Arc::new(PgConfig { log_keep: 1, log_max: 1, log_slack: 0, ..(*w.cfg).clone() });
    let mut h = serving(w, None)?;
    let victim = h.w.map().members(PG)[2].osd;
    h.w.crash(victim);
    h.w.mark_down(victim);
    for b in b"BCDE" {
        let written = h.send(1, of(*b));
        h.wait(written)?;
    }
    let clone = HObject { snap: 1, ..object(0) };
    let store = &mut h.w.nodes[victim as usize].store;
    for state in [&mut store.applied, &mut store.durable] {
        let (old, blocks) =
            (state.objects[&object(0)].clone(), state.blocks.get(&object(0)).cloned());
        state.objects.insert(clone.clone(), old);
        blocks.into_iter().for_each(|b| drop(state.blocks.insert(clone.clone(), b)));
    }
    h.w.peer_loses = lost.then_some(("Push", 60));
    h.w.start(victim);
    run(&mut h.w, steps);
    h.snaps = vec![1];
    let written = h.send(1, of(b'F'));
    h.wait(written)?;
    h.w.peer_loses = None;
    run(&mut h.w, 6000);
    for n in &h.w.nodes {
        let found = n.store.applied.objects.get(&clone).map(|o| o.data.clone());
        if found.as_deref() != Some(&[b'E'; 64][..]) {
            return Err(format!("after {steps} steps, osd.{}: {found:?}", n.id));
        }
    }
    Ok(())
}

#[test]
fn a_clone_of_the_name_of_a_stale_one_is_made_of_the_present_head() {
    for lost in [false, true] {
        let all = (0..12).flat_map(|seed| (280..480).step_by(5).map(move |steps| (seed, steps)));
        let wrong: Vec<String> =
            all.filter_map(|(seed, steps)| same_name(seed, steps, lost).err()).collect();
        assert!(wrong.is_empty(), "{} times, {lost}: {}", wrong.len(), wrong[0]);
    }
}

/// A copy is found bad, and its OSD stops before it is replaced; when it comes back it must be
/// filled, and what it has says that it is the newest version. It is replaced all the same.
fn bad_before_a_backfill(seed: u64, ec: Option<(usize, usize)>) -> Result<(), String> {
    let mut w = World::new(seed, 3, 3, 1, 1);
    w.cfg = Arc::new(PgConfig { log_keep: 1, log_max: 1, log_slack: 0, ..(*w.cfg).clone() });
    let mut h = serving(w, ec)?;
    let victim = h.w.map().members(PG)[2];
    let name = store_object(&object(0), victim.shard);
    h.w.nodes[victim.osd as usize].store.rotten.insert(name.clone());
    h.w.peer_loses = Some(("Push", 100));
    h.w.event(h.at, h.id, PgEvent::Scrub { deep: true, repair: true, large: Default::default() });
    h.until("found", |w| {
        w.nodes[h_at(w)].pgs.values().any(|p| p.state().0.any(PgState::RECOVERING))
    })?;
    run(&mut h.w, 500);
    h.w.crash(victim.osd);
    h.w.mark_down(victim.osd);
    h.hears()?;
    // Of another object: this one stays as it is.
    for b in b"BCDE" {
        let written = h.send_to(1, object(1), of(*b));
        h.wait(written)?;
    }
    h.w.peer_loses = None;
    h.w.start(victim.osd);
    h.until("clean", |w| w.nodes[h_at(w)].pgs.values().any(|p| p.state().0.has(PgState::CLEAN)))?;
    match h.w.nodes[victim.osd as usize].store.rotten.contains(&name) {
        true => Err("the bad copy counts as whole".into()),
        false => Ok(()),
    }
}

#[test]
fn what_was_found_bad_is_replaced_by_a_backfill() {
    for ec in KINDS {
        (0..6).for_each(|seed| {
            bad_before_a_backfill(seed, ec).unwrap_or_else(|e| panic!("{ec:?} seed {seed}: {e}"))
        });
    }
}
