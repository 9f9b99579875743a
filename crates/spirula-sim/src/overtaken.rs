//! Stories of reads for which the helper threads take long: the client goes away meanwhile, or a
//! new interval begins, or the object is written. What the thread brings at last must be shown to
//! nobody, and copied to nobody, as the newest.

use crate::client::Client;
use crate::commander::Commander;
use crate::content::{locator, name};
use crate::extras::Extras;
use crate::osd::OsdActor;
use crate::rng::Rng;
use crate::scenario::{Bug, Options, Scene};
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use bytes::Bytes;
use spirula_messages::Body;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::flag;
use spirula_messages::ceph::{MOsdOp, MOsdOpReply};
use spirula_types::{AddrVec, EntityAddr, EntityType, OsdId, SpgId};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// Bytes of the object: more than are read on the spot.
pub const SIZE: usize = 256 << 10;
/// The object.
const OBJECT: u32 = 7;

/// A client that does what it is told.
#[derive(Default)]
struct Hand {
    todo: Vec<Output>,
    got: BTreeMap<u64, MOsdOpReply>,
}

impl Actor for Hand {
    fn handle(&mut self, _: Local, input: Input, out: &mut Vec<Output>) {
        if let Input::Message { message, .. } = &input
            && message.kind == MOsdOpReply::KIND
        {
            self.got.insert(message.tid, MOsdOpReply::from_message(message).unwrap());
        }
        out.append(&mut self.todo);
    }

    fn crash(&mut self, _: &mut Rng) {}

    fn admits(&mut self, _: &mut spirula_mon::Peer, _: &EntityAddr) -> bool {
        false
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// A cluster that nothing happens to but what the story says.
pub struct Story {
    pub s: Scene,
    hand: ActorId,
    pub pool: i64,
    /// The object that requests are for.
    pub object: u32,
    /// The OSD that led the object's PG at first.
    pub primary: OsdId,
    conns: u64,
    tid: u64,
}

impl Story {
    pub fn new(seed: u64, bug: Option<spirula_pg::Bug>) -> Self {
        let bug = bug.map(Bug::Pg);
        let o = Options { extras: Some(Extras::these(&[])), storm_s: 0, bug, ..Options::new(seed) };
        let mut s = Scene::new(&o);
        for c in s.commanders.clone() {
            s.world.with(c, |c: &mut Commander| c.quiet = true);
        }
        for c in s.clients.clone() {
            s.world.with(c, |c: &mut Client| c.quiet = true);
        }
        let hand = s.world.add(Box::new(Hand::default()), 10_000);
        let mut story = Self { s, hand, pool: 0, object: OBJECT, primary: 0, conns: 0, tid: 0 };
        story.run(30_000);
        story.pool = *story.map().pools.keys().next().unwrap();
        story.primary = story.acting()[0];
        for o in story.s.osds.clone() {
            story.s.world.with(o, |o: &mut OsdActor| o.disk_us = 500);
        }
        story
    }

    pub fn run(&mut self, ms: u64) {
        let until = self.s.world.now + ms * 1000;
        while self.s.world.step(until) {}
    }

    pub fn map(&mut self) -> spirula_maps::OsdMap {
        let c = self.s.clients[0];
        self.s.world.with(c, |c: &mut Client| c.map().cloned()).flatten().expect("a map")
    }

    /// The acting set, primary first.
    pub fn acting(&mut self) -> Vec<OsdId> {
        let map = self.map();
        let place =
            map.pg_to_up_acting(map.object_to_pg(&locator(self.pool), &name(OBJECT)).unwrap());
        let others = place.acting.iter().copied().filter(|o| *o != place.acting_primary);
        [place.acting_primary].into_iter().chain(others).collect()
    }

    pub fn actor(&self, osd: OsdId) -> ActorId {
        self.s.at.lock().unwrap_or_else(PoisonError::into_inner)[&osd]
    }

    pub fn todo(&mut self, o: Output) {
        self.s.world.with(self.hand, |h: &mut Hand| h.todo.push(o));
    }

    /// A connection to the present primary.
    pub fn connect(&mut self) -> u64 {
        self.conns += 1;
        let n = self.conns;
        let primary = self.acting()[0];
        let addr = self.map().addrs(primary).unwrap().client.msgr2();
        let mine = EntityAddr::v2(([10, 0, 2, self.hand as u8], 0).into(), n as u32);
        let peer = spirula_mon::Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id: 7000 + n,
            addrs: AddrVec::one(mine),
            features: spirula_types::features::PACIFIC,
        };
        let (conn, to) = (World::conn_numbers(self.hand) + n, self.actor(primary));
        self.todo(Output::Connect { conn, to, addr, peer });
        self.run(200);
        conn
    }

    pub fn send(&mut self, conn: u64, op: OsdOp) -> u64 {
        self.tid += 1;
        let (map, n) = (self.map(), name(self.object));
        let pg = map.object_to_pg(&locator(self.pool), &n).unwrap();
        let hash = spirula_types::hash::object_hash(b"", b"", &n);
        let write = op.is_write();
        let mut m = MOsdOp::new(SpgId { pg, shard: -1 }, hash, locator(self.pool), n, vec![op]);
        m.epoch = map.epoch;
        m.flags = flag::ACK | if write { flag::WRITE | flag::ONDISK } else { flag::READ };
        self.todo(Output::Send(conn, m.into_message(self.tid)));
        self.tid
    }

    pub fn answer(&mut self, tid: u64) -> Option<MOsdOpReply> {
        self.s.world.with(self.hand, |h: &mut Hand| h.got.get(&tid).cloned()).flatten()
    }

    pub fn done(&mut self, tid: u64) -> MOsdOpReply {
        for _ in 0..600 {
            self.run(100);
            if let Some(r) = self.answer(tid) {
                assert_eq!(r.result, 0);
                return r;
            }
        }
        panic!("no answer to {tid}");
    }

    pub fn write(&mut self, conn: u64, b: u8) {
        let w = self.send(conn, OsdOp::write_full(vec![b; SIZE].into()));
        self.done(w);
    }

    /// Begins to read the object and lets the primary's helper threads hold it up.
    pub fn begin_read(&mut self, conn: u64) -> u64 {
        self.hold(true);
        let read = self.send(conn, OsdOp::read(0, SIZE as u64));
        self.run(200);
        assert!(
            self.answer(read).is_none() && self.held() > 0,
            "it is not read by a helper thread"
        );
        read
    }

    pub fn hold(&mut self, on: bool) {
        let at = self.actor(self.primary);
        self.s.world.with(at, |o: &mut OsdActor| o.hold_work(on));
    }

    pub fn held(&mut self) -> usize {
        let at = self.actor(self.primary);
        self.s.world.with(at, |o: &mut OsdActor| o.held_work()).unwrap()
    }

    /// Reads all of the object; an error names how much of it is not `b`.
    pub fn reads(&mut self, conn: u64, b: u8) -> Result<(), String> {
        let read = self.send(conn, OsdOp::read(0, SIZE as u64));
        let data: Bytes = self.done(read).ops[0].op.indata.clone();
        let other = data.iter().filter(|x| **x != b).count();
        if (data.len(), other) == (SIZE, 0) {
            Ok(())
        } else {
            Err(format!("{} bytes, {other} of them old", data.len()))
        }
    }

    /// One of the other members goes; the primary stays, and reads for the waiting request again.
    /// Which went; `None` if the primary changed.
    fn other_interval(&mut self) -> Option<OsdId> {
        let acting = self.acting();
        let gone = *acting.get(1).filter(|_| acting.len() > 2)?;
        let at = self.actor(gone);
        self.s.world.crash(at);
        for _ in 0..600 {
            self.run(100);
            if self.held() > 1 {
                return (self.acting()[0] == self.primary).then_some(gone);
            }
        }
        None
    }
}

/// The reader's connection ends, the object is written, then the read is done.
fn closed(seed: u64, bug: Option<spirula_pg::Bug>) -> Result<(), String> {
    let mut c = Story::new(seed, bug);
    let (a, b) = (c.connect(), c.connect());
    c.write(b, b'a');
    c.run(5_000);
    c.begin_read(a);
    c.todo(Output::Close(a));
    c.run(200);
    let w = c.send(b, OsdOp::write(0, vec![b'b'; SIZE].into()));
    c.done(w);
    c.hold(false);
    c.run(2_000);
    assert_eq!(c.held(), 0);
    c.reads(b, b'b')?;
    c.reads(b, b'b')
}

/// A new interval makes a request read twice, and a write waits behind it. The member that went is
/// filled again from the primary, and leads then if the primary goes. `None`: the cluster is too
/// small, or somebody else led.
fn twice(seed: u64, bug: Option<spirula_pg::Bug>) -> Option<Result<bool, String>> {
    let mut c = Story::new(seed, bug);
    let (a, b) = (c.connect(), c.connect());
    c.write(b, b'a');
    c.run(5_000);
    let read = c.begin_read(a);
    let gone = c.other_interval()?;
    let w = c.send(b, OsdOp::write(0, vec![b'b'; SIZE].into()));
    c.run(500);
    assert!(c.answer(w).is_none(), "the write waits behind the read");
    c.hold(false);
    let first = c.done(read).ops[0].op.indata.clone();
    assert_eq!(first, vec![b'a'; SIZE]);
    c.done(w);
    c.run(2_000);
    // Nobody reads here before it is copied: what lies about would be copied.
    let at = c.actor(gone);
    c.s.world.start(at);
    c.run(60_000);
    let (was, at) = (c.acting()[0], c.actor(c.primary));
    let b = c.connect();
    if was == c.primary
        && let Err(e) = c.reads(b, b'b')
    {
        return Some(Err(format!("the primary: {e}")));
    }
    c.s.world.crash(at);
    c.run(60_000);
    if c.acting()[0] != gone {
        return Some(Ok(false));
    }
    let b = c.connect();
    Some(c.reads(b, b'b').map(|()| true).map_err(|e| format!("the member that was filled: {e}")))
}

#[test]
fn a_read_whose_client_went_away_leaves_nothing_old() {
    for seed in 0..4 {
        assert_eq!(closed(seed, None), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_read_done_twice_leaves_nothing_old_to_be_read_or_copied() {
    let all: Vec<(u64, Result<bool, String>)> =
        (0..12).filter_map(|s| Some((s, twice(s, None)?))).collect();
    assert!(all.iter().all(|(_, r)| r.is_ok()), "{all:?}");
    assert!(all.iter().any(|(_, r)| *r == Ok(true)), "nobody read what was copied: {all:?}");
}

/// Found for what it is: the planted bug makes just these reads old.
#[test]
fn what_is_kept_for_whoever_comes_is_noticed() {
    let bug = Some(spirula_pg::Bug::StaleShelf);
    assert!(closed(0, bug).is_err_and(|e| e.contains("old")));
    let old = |s| twice(s, bug).is_some_and(|r| r.is_err_and(|e| e.contains("old")));
    assert!((0..4).any(old));
}
