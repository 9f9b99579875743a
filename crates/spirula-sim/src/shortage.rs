//! Stories of a member whose disk has no room left when a write comes: others take the file system
//! on which it lies. The write waits; what others need of that member does not.

use crate::content::{locator, name};
use crate::osd::OsdActor;
use crate::overtaken::{SIZE, Story};
use spirula_messages::ceph::op::OsdOp;
use spirula_pg::Bug;
use spirula_types::OsdId;

impl Story {
    fn room(&mut self, of: OsdId, left: Option<u64>) {
        let at = self.actor(of);
        self.s.leave_room(at, left);
    }

    fn waits(&mut self, osd: OsdId) -> bool {
        let at = self.actor(osd);
        self.s
            .world
            .with(at, |o: &mut OsdActor| o.osd().is_some_and(|o| o.waits_for_room()))
            .unwrap()
    }

    /// Another object of the same PG.
    fn neighbour(&mut self) -> Option<u32> {
        let (map, pool) = (self.map(), self.pool);
        let pg = |n| map.object_to_pg(&locator(pool), &name(n));
        (100..400).find(|n| pg(*n) == pg(self.object))
    }

    fn fell_back(&mut self, osd: OsdId) -> u64 {
        let at = self.actor(osd);
        self.s.world.with(at, |o: &mut OsdActor| o.fallen_back).unwrap()
    }

    /// Writes where this member has no room, until it waits; the write.
    fn write_without_room(&mut self, conn: u64, member: OsdId, b: u8) -> u64 {
        // The primary knows nothing of it when it takes the request, which waits behind a read
        // meanwhile.
        self.begin_read(conn);
        let w = self.send(conn, OsdOp::write_full(vec![b; SIZE].into()));
        self.run(500);
        self.room(member, Some(0));
        self.hold(false);
        for _ in 0..100 {
            self.run(20);
            if self.waits(member) {
                break;
            }
        }
        assert!(self.waits(member), "osd.{member} does not wait for room");
        assert!(self.answer(w).is_none(), "answered though osd.{member} does not have it");
        w
    }

    /// Nothing that must not be was seen since.
    fn look(&mut self) -> Result<(), String> {
        self.s.look().map_err(|wrong| wrong.why)
    }
}

/// A cluster of three whole copies, the object written.
fn three(seed: u64, bug: Option<Bug>) -> Option<(Story, Vec<OsdId>, u64)> {
    let mut c = Story::new(seed, bug);
    let acting = c.acting();
    if acting.len() != 3 {
        return None;
    }
    let a = c.connect();
    c.write(a, b'a');
    c.run(5_000);
    Some((c, acting, a))
}

/// A member waits for room when another one goes. The PG serves without waiting for that, has what
/// it has had, and is whole again once there is room.
fn another_goes(seed: u64, bug: Option<Bug>) -> Option<Result<(), String>> {
    let (mut c, acting, a) = three(seed, bug)?;
    let (short, gone) = (acting[1], c.actor(acting[2]));
    let w = c.write_without_room(a, short, b'b');
    c.s.world.crash(gone);
    for _ in 0..600 {
        c.run(100);
        if c.fell_back(short) > 0 {
            break;
        }
    }
    let read = c.send(a, OsdOp::read(0, SIZE as u64));
    for _ in 0..300 {
        c.run(100);
        if c.answer(read).is_some() {
            break;
        }
    }
    if c.answer(read).is_none() {
        return Some(Err("nothing is read while a member waits for room".into()));
    }
    c.room(short, None);
    c.s.world.start(gone);
    c.done(w);
    c.run(60_000);
    // Whoever waited has all of it now.
    for other in [c.primary, acting[2]] {
        let at = c.actor(other);
        c.s.world.crash(at);
        c.run(40_000);
        let b = c.connect();
        if let Err(e) = c.reads(b, b'b') {
            return Some(Err(format!("without osd.{other}: {e}")));
        }
        c.s.world.start(at);
        c.run(60_000);
    }
    Some(Ok(()))
}

#[test]
fn a_member_without_room_holds_up_no_other_interval() {
    let all: Vec<_> = (0..12).filter_map(|s| Some((s, another_goes(s, None)?))).take(4).collect();
    assert!(!all.is_empty() && all.iter().all(|(_, r)| r.is_ok()), "{all:?}");
}

/// A primary that waits for room is taken out and marked down, and comes back as no member at all.
/// Others serve the PG; it has room again.
fn replaced(seed: u64) -> Option<Result<(), String>> {
    let (mut c, acting, a) = three(seed, None)?;
    let first = acting[0];
    let other = c.neighbour()?;
    let one = std::mem::replace(&mut c.object, other);
    c.write(a, b'a');
    c.run(2_000);
    c.object = one;
    c.write_without_room(a, first, b'b');
    // Of an object that nobody writes meanwhile.
    c.object = other;
    let read = c.send(a, OsdOp::read(0, SIZE as u64));
    c.run(100);
    c.s.order_of_all(&format!(r#"{{"prefix": "osd out", "ids": ["{first}"]}}"#));
    c.s.order_of_all(&format!(r#"{{"prefix": "osd down", "ids": ["{first}"]}}"#));
    c.run(60_000);
    if c.acting().contains(&first) || !c.map().is_up(first) {
        return None;
    }
    let b = c.connect();
    c.write(b, b'c');
    c.room(first, None);
    c.run(10_000);
    Some(match c.answer(read) {
        Some(r) => Err(format!(
            "answered by osd.{first}, which is no member any more: {:?}",
            r.ops[0].op.indata.first()
        )),
        None => c.reads(b, b'c'),
    })
}

#[test]
fn a_replaced_primary_without_room_answers_nothing_old() {
    let all: Vec<_> = (0..30).filter_map(|s| Some((s, replaced(s)?))).take(2).collect();
    assert!(!all.is_empty() && all.iter().all(|(_, r)| r.is_ok()), "{all:?}");
}

/// The pool gets more PGs, then fewer, while one waits for room.
fn reshaped(seed: u64) -> Option<Result<(), String>> {
    let (mut c, acting, a) = three(seed, None)?;
    let short = acting[seed as usize % 2];
    c.write_without_room(a, short, b'b');
    let pools = c.map().pools;
    let (name, pg_num) = pools.values().next().map(|p| ("pool0", p.pg_num))?;
    let set = |n: u32| {
        format!(r#"{{"prefix": "osd pool set", "pool": "{name}", "var": "pg_num", "val": "{n}"}}"#)
    };
    c.s.order_of_all(&set(pg_num * 2));
    c.run(20_000);
    let seen = c.look();
    if seen.is_err() {
        return Some(seen);
    }
    c.room(short, None);
    c.run(20_000);
    let b = c.connect();
    c.write(b, b'c');
    Some(c.reads(b, b'c'))
}

#[test]
fn a_pool_gets_more_pgs_though_one_waits_for_room() {
    let all: Vec<_> = (0..12).filter_map(|s| Some((s, reshaped(s)?))).take(4).collect();
    assert!(!all.is_empty() && all.iter().all(|(_, r)| r.is_ok()), "{all:?}");
}

/// All that a member without room has is in the PG that waits. Somebody deletes another object of
/// it.
fn only_deleted(seed: u64, leads: bool) -> Option<Result<(), String>> {
    let (mut c, acting, a) = three(seed, None)?;
    let short = acting[usize::from(!leads)];
    let other = c.neighbour()?;
    let one = std::mem::replace(&mut c.object, other);
    c.write(a, b'a');
    c.run(2_000);
    c.object = one;
    let w = c.write_without_room(a, short, b'b');
    c.object = other;
    let gone = c.send(a, OsdOp::delete());
    for _ in 0..1200 {
        c.run(100);
        if c.answer(gone).is_some() {
            break;
        }
    }
    if c.answer(gone).is_none_or(|r| r.result != 0) {
        return Some(Err(format!(
            "nothing is deleted while osd.{short} waits for room: {:?}",
            c.look()
        )));
    }
    assert!(c.fell_back(short) > 0);
    c.room(short, None);
    c.run(60_000);
    c.object = one;
    let b = c.connect();
    // A client whose request was dropped because the cluster was full sends it again then.
    match c.answer(w) {
        Some(r) => assert_eq!(r.result, 0),
        None => c.write(b, b'b'),
    }
    c.run(60_000);
    // It is whole again: it serves all with the one that was killed after it, and with nobody else.
    for at in acting.iter().filter(|o| **o != short).map(|o| c.actor(*o)).collect::<Vec<_>>() {
        c.s.world.crash(at);
    }
    let at = c.actor(acting[2]);
    c.s.world.start(at);
    c.run(90_000);
    let b = c.connect();
    Some(c.reads(b, b'b').map_err(|e| format!("by osd.{short}: {e}")))
}

#[test]
fn what_only_frees_goes_on_where_all_waits_for_room() {
    for leads in [false, true] {
        let all: Vec<_> =
            (0..12).filter_map(|s| Some((s, only_deleted(s, leads)?))).take(3).collect();
        assert!(!all.is_empty() && all.iter().all(|(_, r)| r.is_ok()), "primary {leads}: {all:?}");
    }
}

/// One of two members lacks an object and has no room for it when somebody deletes it, and another
/// one.
fn demanded(seed: u64) -> Option<Result<(), String>> {
    let mut c = Story::new(seed, None);
    let acting = c.acting();
    let &[_, short] = acting.as_slice() else { return None };
    c.s.order_of_all(
        r#"{"prefix": "osd pool set", "pool": "pool0", "var": "min_size", "val": "1"}"#,
    );
    let other = c.neighbour()?;
    let a = c.connect();
    c.write(a, b'a');
    let one = std::mem::replace(&mut c.object, other);
    c.write(a, b'a');
    c.object = one;
    let away = c.actor(short);
    c.s.world.crash(away);
    c.run(60_000);
    if c.acting() != acting[..1] {
        return None;
    }
    let b = c.connect();
    c.write(b, b'b');
    c.room(short, Some(0));
    c.s.world.start(away);
    c.run(30_000);
    let b = c.connect();
    let w = c.send(b, OsdOp::delete());
    c.run(2_000);
    if c.answer(w).is_some() {
        // It was recovered before.
        return None;
    }
    c.object = other;
    let gone = c.send(b, OsdOp::delete());
    c.run(10_000);
    if c.answer(gone).is_none() {
        return Some(Err(format!(
            "nothing is deleted while osd.{short} has no room for an object"
        )));
    }
    c.room(short, None);
    c.done(w);
    Some(c.look())
}

#[test]
fn an_object_for_which_a_member_has_no_room_holds_up_no_other() {
    let all: Vec<_> = (0..60).filter_map(|s| Some((s, demanded(s)?))).take(2).collect();
    assert!(!all.is_empty() && all.iter().all(|(_, r)| r.is_ok()), "{all:?}");
}

/// Found for what it is: what the store refused stays in the log, and is missed by nobody.
#[test]
fn what_is_refused_and_kept_is_noticed() {
    let bug = Some(Bug::RefusedKept);
    let found = |s| another_goes(s, bug).is_some_and(|r| r.is_err_and(|e| e.contains("old")));
    assert!((0..12).any(found));
}
