//! Clients that do exactly what a test tells them, in a whole cluster where nothing else happens.

use crate::client::Client;
use crate::commander::Commander;
use crate::content::{locator, name};
use crate::extras::Extras;
use crate::rng::Rng;
use crate::scenario::{Options, Scene};
use crate::world::{Actor, ActorId, Input, Local, Output, World};
use spirula_messages::Body;
use spirula_messages::ceph::op::OsdOp;
use spirula_messages::ceph::osd::flag;
use spirula_messages::ceph::{MOsdOp, MOsdOpReply};
use spirula_types::{AddrVec, EntityAddr, EntityType, Epoch, OsdId, PgId, SpgId, features};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// The object that all is about.
const OBJECT: u32 = 7;

/// A client that does what it is told, and notes what it is answered.
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

/// Where the object is, as the newest map says.
struct Placed {
    pg: PgId,
    primary: OsdId,
    acting: Vec<OsdId>,
    addr: EntityAddr,
    epoch: Epoch,
}

struct Case {
    s: Scene,
    hand: ActorId,
    pool: i64,
    tid: u64,
}

impl Case {
    /// A cluster at rest.
    fn new(seed: u64) -> Self {
        let o = Options { extras: Some(Extras::these(&[])), storm_s: 0, ..Options::new(seed) };
        let mut s = Scene::new(&o);
        for c in s.commanders.clone() {
            s.world.with(c, |c: &mut Commander| c.quiet = true);
        }
        for c in s.clients.clone() {
            s.world.with(c, |c: &mut Client| c.quiet = true);
        }
        let hand = s.world.add(Box::new(Hand::default()), 10_000);
        let mut c = Self { s, hand, pool: 0, tid: 0 };
        c.run(30_000);
        c.pool = *c.map().pools.keys().next().unwrap();
        c
    }

    /// Lets time pass, milliseconds.
    fn run(&mut self, ms: u64) {
        let until = self.s.world.now + ms * 1000;
        while self.s.world.step(until) {}
    }

    fn map(&mut self) -> spirula_maps::OsdMap {
        let c = self.s.clients[0];
        self.s.world.with(c, |c: &mut Client| c.map().cloned()).flatten().expect("a map")
    }

    fn place(&mut self) -> Placed {
        let map = self.map();
        let pg = map.object_to_pg(&locator(self.pool), &name(OBJECT)).unwrap();
        let place = map.pg_to_up_acting(pg);
        let (primary, acting) = (place.acting_primary, place.acting);
        Placed {
            pg,
            primary,
            acting,
            addr: map.addrs(primary).unwrap().client.msgr2(),
            epoch: map.epoch,
        }
    }

    fn actor(&self, osd: OsdId) -> ActorId {
        *self.s.at.lock().unwrap_or_else(PoisonError::into_inner).get(&osd).unwrap()
    }

    fn todo(&mut self, o: Output) {
        self.s.world.with(self.hand, |h: &mut Hand| h.todo.push(o));
    }

    /// Connects to the primary as client `n`.
    fn connect(&mut self, n: u64) -> u64 {
        let conn = World::conn_numbers(self.hand) + n;
        let Placed { primary, addr, .. } = self.place();
        let mine = EntityAddr::v2(([10, 0, 2, self.hand as u8], 0).into(), n as u32);
        let peer = spirula_mon::Peer {
            kind: EntityType::Client,
            id: "admin".into(),
            global_id: 7000 + n,
            addrs: AddrVec::one(mine),
            // It waits as a client that knows no backoffs.
            features: features::PACIFIC & !features::RADOS_BACKOFF,
        };
        let to = self.actor(primary);
        self.todo(Output::Connect { conn, to, addr, peer });
        self.run(200);
        conn
    }

    /// Sends a request as of the map of `epoch` to where the newest map says.
    fn send_as_of(&mut self, conn: u64, epoch: Epoch, op: OsdOp) -> u64 {
        self.tid += 1;
        let Placed { pg, .. } = self.place();
        let hash = spirula_types::hash::object_hash(b"", b"", &name(OBJECT));
        let write = op.is_write();
        let mut m =
            MOsdOp::new(SpgId { pg, shard: -1 }, hash, locator(self.pool), name(OBJECT), vec![op]);
        m.epoch = epoch;
        m.flags = flag::ACK | if write { flag::WRITE | flag::ONDISK } else { flag::READ };
        self.todo(Output::Send(conn, m.into_message(self.tid)));
        self.tid
    }

    /// The answers to requests of these numbers.
    fn answers(&mut self, of: std::ops::RangeInclusive<u64>) -> Vec<MOsdOpReply> {
        self.s
            .world
            .with(self.hand, |h: &mut Hand| h.got.range(of).map(|(_, r)| r.clone()).collect())
            .unwrap()
    }
}

/// A client whose map is newer than the OSD's sends more requests than any bound; `None` where the
/// seed's cluster is of no use for it. Then the map comes, and the primary stays.
fn early(seed: u64, n: u64) -> Option<(usize, usize)> {
    let mut c = Case::new(seed);
    let conn = c.connect(2);
    let now = c.place();
    if now.acting.len() < 3 {
        return None;
    }
    let first = c.tid + 1;
    for _ in 0..n {
        c.send_as_of(conn, now.epoch + 1, OsdOp::read(0, 100));
    }
    c.run(1000);
    let before = c.answers(first..=first + n).len();
    let gone = *now.acting.iter().find(|o| **o != now.primary)?;
    let gone = c.actor(gone);
    c.s.world.crash(gone);
    c.run(60_000);
    (c.place().primary == now.primary).then(|| (before, c.answers(first..=first + n).len()))
}

#[test]
fn requests_of_a_map_that_is_to_come_are_all_answered() {
    let found = (0..20).find_map(|seed| early(seed, 5000));
    assert_eq!(found, Some((0, 5000)), "answered before the map came, and after");
}
