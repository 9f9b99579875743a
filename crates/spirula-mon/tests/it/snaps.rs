//! Snapshots at the monitors: numbers, names, the queue of those that are removed, and how many
//! epochs a client can make.

use crate::harness::{Cluster, FSID, beacon};
use spirula_encoding::{UTime, to_vec};
use spirula_maps::osdmap::Incremental;
use spirula_maps::{PgDigest, PgStat, SnapIntervals};
use spirula_messages::ceph::{MPing, MPoolOp, MPoolOpReply, MRemoveSnaps};
use spirula_messages::cluster::control::MgrDigest;
use spirula_messages::{Body, Message};
use spirula_mon::{MonEffect, MonEvent};
use spirula_types::{EntityType, Epoch, PgId};
use std::collections::BTreeMap;

const CREATE_SNAP: u32 = 0x11;
const DELETE_SNAP: u32 = 0x12;
const CREATE_OWN: u32 = 0x21;
const DELETE_OWN: u32 = 0x22;

fn request(op: u32, pool: u32, name: &str, snap: u64) -> MPoolOp {
    MPoolOp { version: 0, fsid: FSID, pool, op, snap, name: name.into(), crush_rule: -1 }
}

/// The answer, for which the next turn may be waited for: result and number.
fn op(c: &mut Cluster, conn: u64, m: MPoolOp) -> (i32, Option<u64>) {
    let mut sent = c.ask(conn, m);
    if sent.is_empty() {
        sent = c.tick(1).into_iter().filter(|(to, _)| *to == conn).map(|(_, m)| m).collect();
    }
    let r = MPoolOpReply::from_message(sent.last().unwrap()).unwrap();
    assert_eq!(r.epoch, c.mon.state().osdmap.epoch, "a client waits for the map of its snapshot");
    (r.result, r.data.map(|d| u64::from_le_bytes(d[..].try_into().unwrap())))
}

fn ids(s: Option<&SnapIntervals>) -> Vec<(u64, u64)> {
    s.map(|s| s.intervals().collect()).unwrap_or_default()
}

/// Removed snapshots of pool 1 that wait for its PGs: first and number of each interval.
fn queue(c: &Cluster) -> Vec<(u64, u64)> {
    ids(c.mon.state().osdmap.removed_snaps_queue.get(&1))
}

fn is_queued(c: &Cluster, snap: u64) -> bool {
    c.mon.state().osdmap.removed_snaps_queue.get(&1).is_some_and(|s| s.contains(snap))
}

/// The manager's connection.
fn manager(c: &mut Cluster) -> u64 {
    let mgr = c.open(EntityType::Mgr, "x");
    c.ask(mgr, beacon(5, "x"));
    mgr
}

/// A cluster with a manager, and the connections of a client and of that.
fn managed() -> (Cluster, u64, u64) {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    let mgr = manager(&mut c);
    (c, conn, mgr)
}

/// What the manager says of pool 1 when it has the map of that epoch, of one PG or of two that have
/// purged different ones.
fn purged(epoch: Epoch, of: &[&[u64]]) -> MgrDigest {
    let pgs: Vec<PgStat> = of
        .iter()
        .map(|snaps| {
            let mut s = PgStat::default();
            snaps.iter().for_each(|id| s.purged_snaps.insert(*id, 1));
            s
        })
        .collect();
    let pgs = pgs.iter().enumerate().map(|(i, s)| (PgId::new(1, i as u32), s));
    let d = PgDigest::from_reports(epoch, UTime::ZERO, pgs, BTreeMap::new());
    MgrDigest {
        gid: 5,
        stamp: UTime { sec: 9, nsec: 0 },
        digest: to_vec(&d).into(),
        health: vec![],
        service_map: Default::default(),
        progress: Default::default(),
    }
}

#[test]
fn a_pool_has_snapshots_of_its_own_or_its_clients_do() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    c.ok(r#"{"prefix": "osd pool create", "pool": "own"}"#);
    let own = c.mon.state().osdmap.pool_by_name("own").unwrap() as u32;
    // By name, in both ways.
    let (ret, text, _) = c.command(r#"{"prefix": "osd pool mksnap", "pool": "data", "snap": "a"}"#);
    assert_eq!((ret, text.as_str()), (0, "created pool data snap a"));
    let (ret, text, _) = c.command(r#"{"prefix": "osd pool mksnap", "pool": "data", "snap": "a"}"#);
    assert_eq!((ret, text.as_str()), (0, "pool data snap a already exists"));
    assert_eq!(op(&mut c, conn, request(CREATE_SNAP, 1, "b", 0)), (0, None));
    assert_eq!(op(&mut c, conn, request(CREATE_SNAP, 1, "b", 0)), (0, None));
    let pool = c.mon.state().osdmap.pool(1).unwrap();
    assert_eq!(
        (pool.snap_context(), pool.snap_epoch),
        ((2, vec![2, 1]), c.mon.state().osdmap.epoch)
    );
    // A name may be empty, as with Ceph, in both ways.
    assert_eq!(op(&mut c, conn, request(CREATE_SNAP, 1, "", 0)), (0, None));
    assert_eq!(c.mon.state().osdmap.pool(1).unwrap().snap_by_name(""), Some(3));
    let (ret, text, _) = c.command(r#"{"prefix": "osd pool rmsnap", "pool": "data", "snap": ""}"#);
    assert_eq!((ret, text.as_str()), (0, "removed pool data snap "));
    let (ret, text, _) = c.command(r#"{"prefix": "osd pool mksnap", "pool": "data", "snap": ""}"#);
    assert_eq!((ret, text.as_str()), (0, "created pool data snap "));
    assert_eq!(op(&mut c, conn, request(DELETE_SNAP, 1, "", 0)), (0, None));
    for bad in ["a\nb", &"x".repeat(257)] {
        assert_eq!(op(&mut c, conn, request(CREATE_SNAP, 1, bad, 0)), (-22, None), "{bad:?}");
    }
    // Its clients' own are refused there, and the other way round.
    assert_eq!(op(&mut c, conn, request(CREATE_OWN, 1, "", 0)), (-22, None));
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 1)), (-22, None));
    assert_eq!(
        op(&mut c, conn, request(CREATE_OWN, own, "", 0)),
        (0, Some(2)),
        "the first, as with Ceph"
    );
    assert_eq!(op(&mut c, conn, request(CREATE_OWN, own, "", 0)), (0, Some(3)));
    assert_eq!(op(&mut c, conn, request(CREATE_SNAP, own, "a", 0)), (-22, None));
    let (ret, text, _) = c.command(r#"{"prefix": "osd pool mksnap", "pool": "own", "snap": "a"}"#);
    assert_eq!((ret, text.as_str()), (-22, "pool own is in unmanaged snaps mode"));
    assert_eq!(
        op(&mut c, conn, request(DELETE_OWN, own, "", 4)),
        (-2, None),
        "there is none of that number yet"
    );
    for what in [CREATE_SNAP, DELETE_SNAP, CREATE_OWN, DELETE_OWN] {
        assert_eq!(op(&mut c, conn, request(what, 77, "x", 2)), (-2, None), "no such pool");
    }
}

#[test]
fn a_removed_one_waits_until_every_pg_has_forgotten_it() {
    let (mut c, conn, mgr) = managed();
    for expected in 2..=4 {
        assert_eq!(op(&mut c, conn, request(CREATE_OWN, 1, "", 0)), (0, Some(expected)));
    }
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 3)), (0, None));
    let epoch = c.mon.state().osdmap.epoch;
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 3)), (0, None), "again: it is gone");
    assert_eq!(c.mon.state().osdmap.epoch, epoch);
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 2)), (0, None));
    assert_eq!(queue(&c), [(2, 2), (5, 2)], "removals have numbers, too, which no snapshot has");
    assert_eq!(op(&mut c, conn, request(CREATE_OWN, 1, "", 0)), (0, Some(7)));
    // The incremental that OSDs get says which came and which went.
    let inc: Incremental =
        spirula_encoding::from_slice(&c.mon.state().incrementals[&(epoch)]).unwrap();
    assert_eq!(ids(inc.new_removed_snaps.get(&1)), [(3, 1), (5, 1)]);
    // One PG has forgotten both, the other only one.
    let now = c.mon.state().osdmap.epoch;
    c.ask(mgr, purged(now, &[&[2, 3, 5, 6], &[2, 5, 6]]));
    c.tick(1);
    assert_eq!(queue(&c), [(3, 1)]);
    c.ask(mgr, purged(now, &[&[2, 3], &[2, 3, 4]]));
    c.tick(1);
    assert_eq!(queue(&c), [], "and 4, which nobody removed, is nothing to the monitors");
    let epoch = c.mon.state().osdmap.epoch;
    c.tick(1);
    assert_eq!(c.mon.state().osdmap.epoch, epoch, "nothing is left to be said");
    assert_eq!(c.restarted().mon.state().osdmap.bytes(), c.mon.state().osdmap.bytes());
}

/// A manager behind a split has heard the parents, which have forgotten a snapshot, and not the
/// children, which have it still.
#[test]
fn a_manager_that_does_not_know_of_a_split_yet_says_nothing_of_snapshots() {
    let (mut c, conn, mgr) = managed();
    assert_eq!(op(&mut c, conn, request(CREATE_OWN, 1, "", 0)), (0, Some(2)));
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 2)), (0, None));
    let before = c.mon.state().osdmap.epoch;
    c.pgs_created("data");
    let pgs = c.mon.state().osdmap.pool(1).unwrap().pg_num * 2;
    c.ok(&format!(
        r#"{{"prefix": "osd pool set", "pool": "data", "var": "pg_num", "val": "{pgs}"}}"#
    ));
    let split = c.mon.state().osdmap.epoch;
    assert_eq!(c.mon.state().osdmap.pool(1).unwrap().pg_num, pgs);
    assert!(split > before);
    c.ask(mgr, purged(split - 1, &[&[2]]));
    c.tick(1);
    assert!(is_queued(&c, 2));
    c.ask(mgr, purged(split, &[&[2]]));
    c.tick(1);
    assert!(!is_queued(&c, 2));
}

/// Whoever makes and removes snapshots in turn does not fill the queue, and what came fast does not
/// take long to go.
#[test]
fn snapshots_made_and_removed_in_turn_are_one_interval() {
    let (mut c, conn, mgr) = managed();
    for round in 0..1000 {
        c.ask(conn, request(CREATE_OWN, 1, "", 0));
        c.ask(conn, request(DELETE_OWN, 1, "", 2 + 2 * round));
        if round % 100 == 99 {
            c.tick(1);
        }
    }
    assert_eq!(queue(&c), [(2, 2000)]);
    let all: Vec<u64> = (2..2002).collect();
    c.ask(mgr, purged(c.mon.state().osdmap.epoch, &[&all]));
    c.tick(1);
    // Once when the digest came, and at each look of the tick; an eighth at a time, while that is
    // more than a hundred.
    let left = queue(&c);
    assert!(
        [(252, 1750), (470, 1532), (661, 1341), (828, 1174)].map(|l| vec![l]).contains(&left),
        "{left:?}"
    );
    for _ in 0..20 {
        c.tick(1);
    }
    assert_eq!(queue(&c), []);
    // A file system's numbers are its own: it may give that of the removal to a snapshot.
    let m = MRemoveSnaps { version: 0, snaps: [(1, vec![5000])].into() };
    c.ask(conn, m);
    c.tick(1);
    assert_eq!(queue(&c), [(5000, 1)]);
}

/// What PGs said of a snapshot before it was removed once more is of the first time.
#[test]
fn what_is_removed_again_is_looked_for_again() {
    let (mut c, conn, mgr) = managed();
    assert_eq!(op(&mut c, conn, request(CREATE_OWN, 1, "", 0)), (0, Some(2)));
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 2)), (0, None));
    let first = c.mon.state().osdmap.epoch;
    c.ask(mgr, purged(first, &[&[2, 3]]));
    c.tick(1);
    assert!(!is_queued(&c, 2));
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 2)), (0, None));
    let again = c.mon.state().osdmap.epoch;
    for _ in 0..3 {
        c.tick(1);
        assert!(is_queued(&c, 2), "the digest is from before");
    }
    c.ask(mgr, purged(again - 1, &[&[2, 3]]));
    c.tick(1);
    assert!(is_queued(&c, 2));
    // Who leads from now on does not know when it was removed.
    let mut other = c.restarted();
    let mgr_of_other = manager(&mut other);
    other.ask(mgr_of_other, purged(again - 1, &[&[2, 3]]));
    other.tick(1);
    assert!(is_queued(&other, 2));
    c.ask(mgr, purged(again, &[&[2, 3, 4]]));
    c.tick(1);
    assert!(!is_queued(&c, 2));
    let now = other.mon.state().osdmap.epoch;
    other.ask(mgr_of_other, purged(now, &[&[2, 3, 4]]));
    other.tick(1);
    assert!(!is_queued(&other, 2));
}

#[test]
fn what_a_deleted_pool_left_in_the_queue_goes_with_it() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    assert_eq!(op(&mut c, conn, request(CREATE_OWN, 1, "", 0)), (0, Some(2)));
    assert_eq!(op(&mut c, conn, request(DELETE_OWN, 1, "", 2)), (0, None));
    c.ok(r#"{"prefix": "config set", "who": "mon", "name": "mon_allow_pool_delete", "value": "true"}"#);
    c.ok(r#"{"prefix": "osd pool delete", "pool": "data", "pool2": "data", "yes_i_really_really_mean_it": true}"#);
    assert!(c.mon.state().osdmap.removed_snaps_queue.is_empty());
}

#[test]
fn a_metadata_server_removes_numbers_of_its_own() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    let m = MRemoveSnaps { version: 0, snaps: [(1, vec![5, 0]), (77, vec![1])].into() };
    let answer = c.ask(conn, m);
    assert_eq!(
        MRemoveSnaps::from_message(answer.last().unwrap()).unwrap().snaps,
        [(1, vec![5])].into()
    );
    assert_eq!(queue(&c), [(5, 1)]);
    assert!(c.mon.state().osdmap.pool(1).unwrap().snap_seq > 5);
    // Said once more, of one that is removed; and of the highest numbers, after which no others
    // would come.
    let before = c.mon.state().osdmap.epoch;
    let m = MRemoveSnaps { version: 0, snaps: [(1, vec![5, u64::MAX, u64::MAX - 1])].into() };
    assert!(c.ask(conn, m).is_empty(), "it waits for its turn");
    let answer: Vec<_> =
        c.tick(1).into_iter().filter(|(to, _)| *to == conn).map(|(_, m)| m).collect();
    assert_eq!(
        MRemoveSnaps::from_message(answer.last().unwrap()).unwrap().snaps,
        [(1, vec![5])].into()
    );
    assert_eq!(c.mon.state().osdmap.epoch, before);
}

/// Whoever may write to a pool makes an epoch with each snapshot, of which every client and OSD
/// hears.
#[test]
fn requests_of_one_moment_share_an_epoch() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    let before = c.mon.state().osdmap.epoch;
    let mut answers = 0;
    for _ in 0..250 {
        answers += c.ask(conn, request(CREATE_OWN, 1, "", 0)).len();
    }
    answers += c.tick(1).len();
    assert_eq!(answers, 250);
    let numbers = c.mon.state().osdmap.pool(1).unwrap().snap_seq;
    assert_eq!((numbers, c.mon.state().osdmap.epoch - before), (251, 2));
}

/// One client alone does not go on with as many epochs as it likes.
#[test]
fn whoever_goes_on_for_long_gets_an_epoch_a_second() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    let made = |c: &mut Cluster, seconds: u32| {
        let before = c.mon.state().osdmap.epoch;
        let (begun, mut waits) = (c.now, false);
        while c.now.sec - begun.sec < seconds {
            let answered = |sent: Vec<(u64, Message)>| sent.iter().any(|(to, _)| *to == conn);
            if !waits {
                waits = !answered(c.send(conn, request(CREATE_OWN, 1, "", 0).into_message(0)));
            }
            c.now = UTime::from_nanos(c.now.as_nanos() + 50_000_000);
            waits = waits && !answered(c.event(MonEvent::Tick));
        }
        c.mon.state().osdmap.epoch - before
    };
    let first = made(&mut c, 2);
    assert!((30..=42).contains(&first), "{first} at first");
    made(&mut c, 30);
    let later = made(&mut c, 20);
    assert!((19..=21).contains(&later), "{later} in 20 s");
    // After a minute of quiet it is as at first.
    for _ in 0..61 {
        c.tick(1);
    }
    let again = made(&mut c, 2);
    assert!((30..=42).contains(&again), "{again} after a minute");
}

/// However many a client asks for at once, all of them are answered, each with a number of its own,
/// in few epochs; no connection is closed. There is room for so many together; a client's next one
/// has to wait where it is, which whoever feeds the monitor is told.
#[test]
fn a_flood_of_requests_waits_and_is_answered() {
    let mut c = Cluster::up(3);
    let [greedy, modest] = [(); 2].map(|()| c.open(EntityType::Client, "admin"));
    assert_eq!(op(&mut c, modest, request(CREATE_OWN, 1, "", 0)), (0, Some(2)));
    let (mut given, mut asked, epoch) = (Vec::new(), 0, c.mon.state().osdmap.epoch);
    let mut numbers = |sent: Vec<(u64, Message)>| {
        let of = sent
            .iter()
            .filter(|(to, _)| *to == greedy)
            .filter_map(|(_, m)| MPoolOpReply::from_message(m).ok());
        let new = of.map(|r| spirula_encoding::from_slice::<u64>(&r.data.unwrap()).unwrap());
        given.extend(new.collect::<Vec<_>>());
        given.len()
    };
    let message = |tid| request(CREATE_OWN, 1, "", 0).into_message(tid);
    while c.mon.has_room_for(greedy, &message(1)) {
        asked += 1;
        assert!(asked < 100_000, "there is a bound");
        let out = c.held(MonEvent::Message { conn: greedy, message: message(asked) });
        assert!(!out.iter().any(|e| matches!(e, MonEffect::Close(_))));
        c.release(out, &mut |_| {});
    }
    assert!(asked > 300, "{asked}");
    assert!(
        !c.mon.has_room_for(modest, &message(2))
            && c.mon.has_room_for(modest, &MPing { text: None }.into_message(0))
    );
    let mut turns = 0..10;
    while numbers(c.tick(1)) < asked as usize {
        turns.next().expect("all are answered");
    }
    given.sort_unstable();
    assert_eq!(given, (3..3 + asked).collect::<Vec<_>>());
    assert!(
        c.mon.state().osdmap.epoch <= epoch + 3,
        "{epoch}, then {}",
        c.mon.state().osdmap.epoch
    );
    assert!(c.mon.has_room_for(modest, &message(2)));
}

/// A client counts what is not answered, and would wait for ever.
#[test]
fn an_operation_on_a_pool_that_is_too_large_is_answered() {
    let mut c = Cluster::up(3);
    let conn = c.open(EntityType::Client, "admin");
    let m = request(CREATE_SNAP, 1, &"x".repeat(5 << 20), 0).into_message(77);
    let sent = c.send(conn, m);
    let [(to, m)] = &sent[..] else { panic!("{} answers", sent.len()) };
    assert_eq!((*to, m.tid, MPoolOpReply::from_message(m).unwrap().result), (conn, 77, -7));
}

/// A daemon's requests wait unasked, and are bounded all the same: whoever has its key may ask for
/// any number.
#[test]
fn what_a_daemon_asks_for_snapshots_has_an_end() {
    let mut c = Cluster::up(3);
    let [mds, client] = [EntityType::Mds, EntityType::Client].map(|kind| c.open(kind, "a"));
    assert_eq!(op(&mut c, client, request(CREATE_OWN, 1, "", 0)), (0, Some(2)));
    let ask = |c: &mut Cluster, tid: u64| {
        let m = MRemoveSnaps { version: 0, snaps: [(1, vec![2])].into() };
        let out = c.held(MonEvent::Message { conn: mds, message: m.into_message(tid) });
        out.iter().any(|e| matches!(e, MonEffect::Close(conn) if *conn == mds))
    };
    let taken = (1..10_000).find(|tid| ask(&mut c, *tid)).expect("there is a bound");
    assert!(taken > 8000, "{taken}");
}
