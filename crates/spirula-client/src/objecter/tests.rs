use super::*;
use spirula_maps::{Crush, Incremental, PgPool};
use spirula_messages::ceph::op;
use spirula_types::{EntityAddr, Uuid};

const POOL: i64 = 1;

fn addr(osd: OsdId, nonce: u32) -> AddrVec {
    AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], 6800 + osd as u16).into(), nonce))
}

/// Two OSDs that are up and a pool of one PG, which osd.0 serves.
fn map() -> OsdMap {
    let mut m = OsdMap::fresh(Uuid([1; 16]), 5, UTime::ZERO, Crush::default());
    m.set_max_osd(2);
    m.pools.insert(POOL, PgPool::replicated(2, 1, 0, UTime::ZERO));
    m.pool_names.insert(POOL, "p".into());
    m.osd_weight.fill(0x10000);
    let mut inc = Incremental::next(&m, UTime::ZERO);
    for osd in 0..2 {
        let addrs = spirula_maps::osdmap::OsdAddrs { client: addr(osd, 1), ..Default::default() };
        inc.mark_up(osd, &addrs);
    }
    inc.new_pg_temp.insert(PgId::new(POOL, 0), vec![0, 1]);
    m.osd_state.fill(1);
    m.apply(&inc).unwrap();
    m
}

/// The shell, and the maps.
struct Case {
    o: Objecter,
    map: OsdMap,
    out: Vec<ObjecterOut>,
}

impl Case {
    fn new() -> Self {
        let mut c = Self { o: Objecter::new(), map: map(), out: Vec::new() };
        c.full();
        c
    }

    fn full(&mut self) {
        let maps = MOsdMap {
            fulls: vec![(self.map.epoch, self.map.to_bytes())],
            newest: self.map.epoch,
            ..MOsdMap::default()
        };
        self.o.maps(Duration::ZERO, &maps, &mut self.out).unwrap();
    }

    /// The map changes by one epoch.
    fn change(&mut self, f: impl FnOnce(&mut Incremental)) -> (Epoch, Bytes) {
        let mut inc = Incremental::next(&self.map, UTime::ZERO);
        f(&mut inc);
        let next = inc.seal(&self.map).unwrap();
        self.map = next.into_map();
        (self.map.epoch, spirula_encoding::to_vec(&inc).into())
    }

    fn tell(&mut self, incrementals: Vec<(Epoch, Bytes)>) {
        let maps = MOsdMap { incrementals, newest: self.map.epoch, ..MOsdMap::default() };
        self.o.maps(Duration::ZERO, &maps, &mut self.out).unwrap();
    }

    fn served_by(&mut self, acting: &[OsdId]) -> (Epoch, Bytes) {
        self.change(|inc| {
            inc.new_pg_temp.insert(PgId::new(POOL, 0), acting.to_vec());
        })
    }

    fn write(&mut self, name: &str) -> u64 {
        self.submit(name, vec![OsdOp::write_full(Bytes::from_static(b"x"))], 0)
    }

    fn submit(&mut self, name: &str, ops: Vec<OsdOp>, flags: u32) -> u64 {
        let locator = ObjectLocator { pool: POOL, ..ObjectLocator::default() };
        let mut r =
            Request::new(locator, Bytes::copy_from_slice(name.as_bytes()), ops, UTime::ZERO);
        r.flags = flags;
        self.o.submit(r, &mut self.out)
    }

    /// What was to be done since the last time, with every connection opened that was asked for:
    /// operations sent, with OSD, number and attempt.
    fn sent(&mut self) -> Vec<(OsdId, u64, i32)> {
        let mut sent = Vec::new();
        while !self.out.is_empty() {
            for o in std::mem::take(&mut self.out) {
                match o {
                    ObjecterOut::Connect(osd, _) => self.o.opened(osd, &mut self.out),
                    ObjecterOut::Send(osd, m) if m.kind == MOsdOp::KIND => {
                        let op = MOsdOp::from_message(&m).unwrap();
                        assert_eq!(op.flags & flag::RETRY != 0, op.retry_attempt > 0);
                        sent.push((osd, m.tid, op.retry_attempt));
                    }
                    _ => {}
                }
            }
        }
        sent
    }

    fn reply(&mut self, osd: OsdId, tid: u64, attempt: i32, result: i32) {
        let request = MOsdOp::new(
            SpgId { pg: PgId::new(POOL, 0), shard: -1 },
            0,
            ObjectLocator::default(),
            Bytes::new(),
            Vec::new(),
        );
        let mut reply = MOsdOpReply::to(&request, self.map.epoch, result);
        reply.retry_attempt = attempt;
        self.o.reply(osd, tid, reply, &mut self.out);
    }

    fn done(&mut self) -> Vec<(u64, i32)> {
        let one = |o: ObjecterOut| match o {
            ObjecterOut::Done(tid, r) => Some((tid, r.result)),
            _ => None,
        };
        std::mem::take(&mut self.out).into_iter().filter_map(one).collect()
    }
}

#[test]
fn operations_go_to_the_primary_in_their_order_and_end_once() {
    let mut c = Case::new();
    let (a, b) = (c.write("a"), c.write("b"));
    assert_eq!(c.sent(), [(0, a, 0), (0, b, 0)]);
    c.reply(0, a, 0, 0);
    c.reply(0, a, 0, 0);
    // Nobody but the primary answers for it.
    c.reply(1, b, 0, 0);
    assert_eq!(c.done(), [(a, 0)]);
    c.reply(0, b, 0, -2);
    assert_eq!(c.done(), [(b, -2)]);
    assert_eq!(c.o.under_way(), 0);
}

#[test]
fn without_a_map_it_asks_for_one() {
    let mut c = Case { o: Objecter::new(), map: map(), out: Vec::new() };
    let a = c.write("a");
    assert!(matches!(c.out[..], [ObjecterOut::WantMaps(0)]));
    c.full();
    assert_eq!(c.sent(), [(0, a, 0)]);
}

#[test]
fn a_broken_connection_makes_all_of_it_new_attempts() {
    let mut c = Case::new();
    let (a, b) = (c.write("a"), c.write("b"));
    c.sent();
    c.o.closed(Duration::ZERO, 0);
    assert_eq!(c.o.deadline(), RETRY);
    let d = c.write("d");
    assert!(c.sent().is_empty());
    c.o.tick(RETRY, &mut c.out);
    assert_eq!(c.sent(), [(0, a, 1), (0, b, 1), (0, d, 0)]);
    // An answer to the first attempt that was still on its way.
    c.reply(0, a, 0, 0);
    assert!(c.done().is_empty());
    c.reply(0, a, 1, 0);
    assert_eq!(c.done(), [(a, 0)]);
}

#[test]
fn an_interval_in_between_makes_it_a_new_attempt_though_the_primary_is_the_same() {
    let mut c = Case::new();
    let a = c.write("a");
    assert_eq!(c.sent(), [(0, a, 0)]);
    let maps = vec![c.served_by(&[1, 0]), c.served_by(&[0, 1])];
    c.tell(maps);
    assert_eq!(c.sent(), [(0, a, 1)]);
    // A map that changes nothing of it.
    let other = c.change(|_| {});
    c.tell(vec![other]);
    assert!(c.sent().is_empty());
    // Maps that were not seen.
    c.change(|_| {});
    c.change(|_| {});
    c.full();
    assert_eq!(c.sent(), [(0, a, 2)]);
    let moved = c.served_by(&[1]);
    c.tell(vec![moved]);
    assert_eq!(c.sent(), [(1, a, 3)]);
}

#[test]
fn an_osd_that_listens_elsewhere_is_connected_to_anew() {
    let mut c = Case::new();
    let alone = c.served_by(&[0]);
    c.tell(vec![alone]);
    let a = c.write("a");
    c.sent();
    let down = c.change(|inc| inc.new_state.extend([(0, 2)]));
    c.tell(vec![down]);
    assert!(matches!(c.out[..], [ObjecterOut::Close(0)]), "{:?}", c.out);
    assert!(c.sent().is_empty());
    let addrs = spirula_maps::osdmap::OsdAddrs { client: addr(0, 2), ..Default::default() };
    let up = c.change(|inc| inc.mark_up(0, &addrs));
    c.tell(vec![up]);
    assert!(
        matches!(&c.out[..], [ObjecterOut::Connect(0, to)] if *to == addr(0, 2)),
        "{:?}",
        c.out
    );
    assert_eq!(c.sent(), [(0, a, 1)]);
}

#[test]
fn a_full_pool_holds_writes_back_and_a_pause_reads() {
    let mut c = Case::new();
    let a = c.write("a");
    c.sent();
    let full = c.change(|inc| inc.new_flags = map_flags::FULL as i32);
    c.tell(vec![full]);
    let b = c.write("b");
    let tries = c.submit("c", vec![OsdOp::delete()], flag::FULL_FORCE);
    let read = c.submit("a", vec![OsdOp::read(0, 0)], 0);
    assert_eq!(c.sent(), [(0, tries, 0), (0, read, 0)]);
    let room = c.change(|inc| inc.new_flags = map_flags::PAUSERD as i32);
    c.tell(vec![room]);
    // The first was dropped where it was. An answer that came before is taken.
    assert_eq!(c.sent(), [(0, a, 1), (0, b, 0)]);
    let late = c.submit("a", vec![OsdOp::read(0, 0)], 0);
    assert!(c.sent().is_empty());
    let goes_on = c.change(|inc| inc.new_flags = 0);
    c.tell(vec![goes_on]);
    assert_eq!(c.sent(), [(0, read, 1), (0, late, 0)]);
}

#[test]
fn a_missing_pool_fails_only_by_the_newest_map() {
    let mut c = Case::new();
    let locator = ObjectLocator { pool: 9, ..ObjectLocator::default() };
    let r = Request::new(locator, Bytes::from_static(b"a"), vec![OsdOp::stat()], UTime::ZERO);
    let a = c.o.submit(r, &mut c.out);
    assert!(matches!(c.out[..], [ObjecterOut::AskNewest]), "{:?}", c.out);
    c.out.clear();
    let newest = c.map.epoch + 1;
    c.o.newest(newest, &mut c.out);
    assert!(matches!(c.out[..], [ObjecterOut::WantMaps(e)] if e == newest), "{:?}", c.out);
    c.out.clear();
    let next = c.change(|_| {});
    c.tell(vec![next]);
    assert_eq!(c.done(), [(a, -errno::ENOENT)]);
}

/// The monitors may have answered before the pool was made for which the second operation is.
#[test]
fn what_begins_while_the_newest_map_is_asked_for_has_a_question_of_its_own() {
    let mut c = Case::new();
    let locator = |pool| ObjectLocator { pool, ..ObjectLocator::default() };
    let stat = |pool| {
        Request::new(locator(pool), Bytes::from_static(b"a"), vec![OsdOp::stat()], UTime::ZERO)
    };
    let a = c.o.submit(stat(9), &mut c.out);
    let made = c.change(|inc| {
        inc.new_pools.insert(10, PgPool::replicated(2, 1, 0, UTime::ZERO));
        inc.new_pg_temp.insert(PgId::new(10, 0), vec![0, 1]);
    });
    c.o.submit(stat(10), &mut c.out);
    c.out.clear();
    c.o.newest(made.0 - 1, &mut c.out);
    assert!(c.out.iter().any(|o| matches!(o, ObjecterOut::AskNewest)), "{:?}", c.out);
    assert_eq!(c.done(), [(a, -errno::ENOENT)], "its pool may be there");
    c.o.newest(made.0, &mut c.out);
    assert!(matches!(c.out[..], [ObjecterOut::WantMaps(_)]), "{:?}", c.out);
    c.out.clear();
    c.tell(vec![made]);
    assert!(c.done().is_empty(), "it goes to its OSD");
}

#[test]
fn what_an_osd_holds_back_is_sent_when_it_says_so() {
    let mut c = Case::new();
    let a = c.write("a");
    c.sent();
    let spg = SpgId { pg: PgId::new(POOL, 0), shard: -1 };
    let whole = MOsdBackoff {
        spg,
        epoch: c.map.epoch,
        op: backoff_op::BLOCK,
        id: 3,
        begin: HObject::min(),
        end: HObject { max: true, ..HObject::min() },
    };
    c.o.backoff(0, whole.clone(), &mut c.out);
    let acks = |o: &ObjecterOut| matches!(o, ObjecterOut::Send(0, m) if m.kind == MOsdBackoff::KIND && MOsdBackoff::from_message(m).unwrap().op == backoff_op::ACK_BLOCK);
    assert!(matches!(&c.out[..], [o] if acks(o)), "{:?}", c.out);
    c.out.clear();
    let b = c.write("b");
    assert!(c.sent().is_empty());
    c.o.backoff(0, MOsdBackoff { op: backoff_op::UNBLOCK, ..whole.clone() }, &mut c.out);
    assert_eq!(c.sent(), [(0, a, 1), (0, b, 0)]);
    // A new connection knows of no backoff.
    c.o.backoff(0, whole, &mut c.out);
    c.sent();
    c.o.closed(Duration::ZERO, 0);
    c.o.tick(RETRY, &mut c.out);
    assert_eq!(c.sent(), [(0, a, 2), (0, b, 1)]);
}

#[test]
fn a_bad_map_is_replaced_by_a_whole_one() {
    let mut c = Case::new();
    let a = c.write("a");
    c.sent();
    let maps = MOsdMap {
        incrementals: vec![(c.map.epoch + 1, Bytes::from_static(b"no map"))],
        ..MOsdMap::default()
    };
    assert!(c.o.maps(Duration::ZERO, &maps, &mut c.out).is_err());
    assert!(c.out.is_empty(), "at once would be a storm: {:?}", c.out);
    c.o.tick(c.o.deadline(), &mut c.out);
    assert!(matches!(c.out[..], [ObjecterOut::WantMaps(0)]), "{:?}", c.out);
    c.out.clear();
    c.change(|_| {});
    c.full();
    assert_eq!(c.sent(), [(0, a, 1)]);
}

#[test]
fn a_replica_that_cannot_serve_a_read_leaves_it_to_the_primary() {
    let mut c = Case::new();
    let a = c.submit("a", vec![OsdOp::new(op::READ)], flag::BALANCE_READS);
    assert_eq!(c.sent(), [(0, a, 0)]);
    c.reply(0, a, 0, -errno::EAGAIN);
    assert_eq!(c.sent(), [(0, a, 1)]);
    c.reply(0, a, 1, -errno::EAGAIN);
    assert_eq!(c.done(), [(a, -errno::EAGAIN)]);
}

#[test]
fn a_place_is_remembered_for_as_long_as_its_map_is_the_newest() {
    let mut c = Case::new();
    let a = c.write("a");
    let b = c.write("b");
    let both = |c: &Case| [a, b].map(|tid| std::ptr::from_ref(c.o.place(tid).unwrap().0));
    let [first, second] = both(&c);
    assert_eq!(first, second, "one PG is mapped once");
    // Every map after that decides anew, also one that brings an earlier place back.
    let primaries: Vec<OsdId> = [vec![1, 0], vec![0, 1], vec![1, 0]]
        .iter()
        .map(|acting| {
            let next = c.served_by(acting);
            c.tell(vec![next]);
            c.o.place(a).unwrap().0.primary
        })
        .collect();
    assert_eq!(primaries, [1, 0, 1]);
    let expected = Target::of(&c.map, PgId::new(POOL, 0)).unwrap();
    assert_eq!(c.o.place(b).unwrap().0, &expected);
}
