//! Stories of writes whose data a helper thread compresses, and takes long for it: others are
//! served meanwhile, the order of the PG stays, and no interval waits.

use crate::content::{locator, name};
use crate::overtaken::{SIZE, Story};
use spirula_messages::ceph::op::OsdOp;

/// A cluster whose pool compresses everything, the object written; with its connection.
fn packing(seed: u64) -> (Story, u64) {
    let mut c = Story::new(seed, None);
    c.s.order_of_all(
        r#"{"prefix": "osd pool set", "pool": "pool0", "var": "compression_mode", "val": "force"}"#,
    );
    c.run(5_000);
    let a = c.connect();
    c.write(a, b'a');
    c.run(2_000);
    (c, a)
}

impl Story {
    /// Sends a write that the primary's helper threads hold up.
    fn write_held(&mut self, conn: u64, b: u8) -> u64 {
        self.hold(true);
        let w = self.send(conn, OsdOp::write_full(vec![b; SIZE].into()));
        self.run(500);
        assert!(self.held() > 0, "it is compressed on the event loop");
        assert!(self.answer(w).is_none(), "it is answered before it is stored");
        w
    }

    /// An object of another PG with the same primary.
    fn elsewhere(&mut self) -> Option<u32> {
        let (map, pool, primary) = (self.map(), self.pool, self.acting()[0]);
        let pg = |n| map.object_to_pg(&locator(pool), &name(n));
        let mine = pg(self.object);
        (100..400).find(|n| {
            pg(*n) != mine
                && pg(*n).is_some_and(|p| map.pg_to_up_acting(p).acting_primary == primary)
        })
    }
}

#[test]
fn while_data_is_compressed_other_pgs_are_served() {
    let mut served = 0;
    for seed in 0..4 {
        let (mut c, a) = packing(seed);
        let w = c.write_held(a, b'b');
        // Behind it, in its order.
        let read = c.send(a, OsdOp::read(0, SIZE as u64));
        if let Some(other) = c.elsewhere() {
            let one = std::mem::replace(&mut c.object, other);
            let small = c.send(a, OsdOp::write_full(vec![b'x'; 4096].into()));
            c.run(2_000);
            assert_eq!(c.answer(small).map(|r| r.result), Some(0), "another PG is held up");
            c.object = one;
            served += 1;
        }
        assert!(c.answer(w).is_none() && c.answer(read).is_none());
        c.hold(false);
        c.done(w);
        let data = c.done(read).ops[0].op.indata.clone();
        assert!(data.len() == SIZE && data.iter().all(|x| *x == b'b'));
    }
    assert!(served > 0);
}

#[test]
fn writes_that_are_compressed_keep_their_order() {
    for seed in 0..3 {
        let (mut c, a) = packing(seed);
        let mut all = vec![c.write_held(a, b'b')];
        all.extend((b'c'..=b'f').map(|b| c.send(a, OsdOp::write_full(vec![b; SIZE].into()))));
        c.run(500);
        c.hold(false);
        all.into_iter().for_each(|w| drop(c.done(w)));
        assert_eq!(c.reads(a, b'f'), Ok(()));
    }
}

/// A member goes while the primary's helper threads do nothing at all, then the primary.
#[test]
fn no_interval_waits_for_what_is_compressed() {
    let mut told = 0;
    for seed in 0..8 {
        let (mut c, a) = packing(seed);
        let acting = c.acting();
        if acting.len() < 3 {
            continue;
        }
        let w = c.write_held(a, b'b');
        let gone = c.actor(acting[2]);
        c.s.world.crash(gone);
        c.done(w);
        c.hold(false);
        c.run(5_000);
        assert_eq!(c.reads(a, b'b'), Ok(()));
        c.s.world.start(gone);
        c.run(60_000);
        let first = c.actor(c.primary);
        c.s.world.crash(first);
        c.run(60_000);
        let b = c.connect();
        assert_eq!(c.reads(b, b'b'), Ok(()));
        told += 1;
    }
    assert!(told > 0);
}
