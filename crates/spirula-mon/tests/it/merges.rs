//! Merges of PGs: when the monitor begins one, ends it, and gives it up.

use crate::harness::Cluster;
use spirula_messages::cluster::control::{
    MergeWord, OsdMarkMeDown, PgCreateAsk, PgMerges, PgsCreated,
};
use spirula_types::{EntityType, OsdId, PgId, Uuid};
use std::collections::BTreeMap;

/// A pool of eight PGs on three OSDs, placed as seven are and to become seven.
struct Shrinking {
    c: Cluster,
    /// The primary of both PGs, and its connection.
    primary: OsdId,
    conn: u64,
    acting: Vec<OsdId>,
    source: PgId,
    target: PgId,
}

impl Shrinking {
    fn new() -> Self {
        let mut c = Cluster::up(3);
        let osd = c.open(EntityType::Osd, "0");
        let all: BTreeMap<PgId, u32> = (0..8).map(|s| (PgId::new(1, s), 7)).collect();
        c.ask(osd, PgCreateAsk { osd: 0, pgids: all.clone() });
        c.ask(osd, PgsCreated { osd: 0, pgids: all });
        c.ok(r#"{"prefix": "osd pool set", "pool": "data", "var": "pg_num", "val": "7"}"#);
        c.ok(r#"{"prefix": "osd pool set", "pool": "data", "var": "pgp_num_actual", "val": "7"}"#);
        let (source, target) = (PgId::new(1, 7), PgId::new(1, 3));
        let map = &c.mon.state().osdmap;
        let acting = map.pg_to_up_acting(source).acting;
        assert_eq!(acting, map.pg_to_up_acting(target).acting);
        let primary = acting[0];
        let conn = c.open(EntityType::Osd, &primary.to_string());
        Self { c, primary, conn, acting, source, target }
    }

    fn say(&mut self, pgs: &[PgId], word: &MergeWord) {
        let pgs = pgs.iter().map(|pg| (*pg, word.clone())).collect();
        self.c.ask(self.conn, PgMerges { osd: self.primary, pgs });
    }

    fn clean(&self) -> MergeWord {
        MergeWord {
            epoch: self.epoch(),
            clean: true,
            acting: self.acting.clone(),
            ..MergeWord::default()
        }
    }

    /// Both PGs are clean, as of the present map.
    fn both_clean(&mut self) {
        self.say(&[self.source, self.target], &self.clean());
    }

    fn epoch(&self) -> u32 {
        self.c.mon.state().osdmap.epoch
    }

    fn pg_nums(&self) -> (u32, u32) {
        let map = &self.c.mon.state().osdmap;
        map.pool(1).map(|p| (p.pg_num, p.pg_num_pending)).unwrap()
    }

    /// Are writes held up?
    fn pending(&self) -> bool {
        self.pg_nums() == (8, 7)
    }

    /// Seconds of these in which writes are held up; `each` happens in every one.
    fn held(&mut self, seconds: usize, each: impl Fn(&mut Self)) -> usize {
        let one = |s: &mut Self| {
            each(s);
            s.c.tick(1);
            s.pending()
        };
        (0..seconds).filter(|_| one(self)).count()
    }
}

#[test]
fn a_merge_begins_when_both_are_clean_and_ends_when_both_are_ready() {
    let mut s = Shrinking::new();
    s.say(&[s.source], &s.clean());
    assert_eq!(s.pg_nums(), (8, 8), "one of two says nothing");
    s.both_clean();
    assert!(s.pending());
    let ready = MergeWord { ready: true, ..s.clean() };
    s.say(&[s.source, s.target], &MergeWord { epoch: ready.epoch - 1, ..ready.clone() });
    assert!(s.pending(), "ready only in an older map");
    s.say(&[s.source, s.target], &ready);
    assert_eq!(s.pg_nums(), (7, 7));
}

/// Both PGs of a merge were clean once; then an OSD restarts, and they are being recovered, with
/// the same acting set. What their primaries said before is no word for now.
#[test]
fn what_was_clean_before_an_osd_restarted_is_no_reason_to_begin_a_merge() {
    let mut s = Shrinking::new();
    s.both_clean();
    assert!(s.pending());
    let third = s.acting[2];
    let conn = s.c.open(EntityType::Osd, &third.to_string());
    let boot = s.c.boot_message(third, 7000);
    s.c.ask(conn, boot);
    assert_eq!(s.c.mon.state().osdmap.pg_to_up_acting(s.source).acting, s.acting);
    s.held(8, |_| {});
    assert!(!s.pending(), "not ready in time");
    let before = s.epoch();
    // Nobody says anything for five minutes: the PGs are not clean.
    assert_eq!(
        (s.held(300, |_| {}), s.epoch() - before),
        (0, 0),
        "seconds without writes of 300; maps"
    );
    // Nor does a word of the time before the restart that comes late count.
    let late = MergeWord { epoch: before - 2, ..s.clean() };
    s.say(&[s.source, s.target], &late);
    assert!(!s.pending());
    s.both_clean();
    assert!(s.pending(), "clean again");
}

#[test]
fn a_word_that_is_taken_back_or_not_repeated_begins_no_merge() {
    let mut s = Shrinking::new();
    s.say(&[s.source], &s.clean());
    s.say(&[s.source], &MergeWord::default());
    s.say(&[s.target], &s.clean());
    assert!(!s.pending(), "the other is not clean any more");
    s.c.tick(60);
    s.say(&[s.source], &s.clean());
    assert!(!s.pending(), "a minute ago the target was clean");
    // Only who said it may take it back.
    let other = s.acting[1];
    let conn = s.c.open(EntityType::Osd, &other.to_string());
    s.c.ask(conn, PgMerges { osd: other, pgs: [(s.source, MergeWord::default())].into() });
    s.say(&[s.target], &s.clean());
    assert!(s.pending());
}

#[test]
fn each_try_that_fails_doubles_the_pause_before_the_next() {
    let mut s = Shrinking::new();
    s.both_clean();
    // They are clean whenever they are asked, and never ready.
    let held = s.held(300, |s| {
        if !s.pending() {
            s.both_clean();
        }
    });
    // Begun at 0, 15, 40, 85 and 170 s, for five each.
    assert!((20..=30).contains(&held), "{held} of 300 s without writes");
    // One that succeeds ends that.
    while !s.pending() {
        s.both_clean();
        s.c.tick(1);
    }
    let ready = MergeWord { ready: true, ..s.clean() };
    s.say(&[s.source, s.target], &ready);
    assert_eq!(s.pg_nums(), (7, 7));
}

#[test]
fn a_merge_that_cannot_become_ready_is_given_up_at_once() {
    let mut s = Shrinking::new();
    s.both_clean();
    assert!(s.pending());
    let third = s.acting[2];
    let conn = s.c.open(EntityType::Osd, &third.to_string());
    s.c.ask(
        conn,
        OsdMarkMeDown { osd: third, uuid: Uuid([third as u8 + 1; 16]), epoch: s.epoch() },
    );
    s.c.tick(1);
    assert!(!s.pending(), "a member is down: clients have waited long enough");
}
