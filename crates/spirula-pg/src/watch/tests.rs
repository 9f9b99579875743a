use super::*;
use crate::exec::tests::object;
use bytes::Bytes;
use notify::NOTIFIES_EACH;
use spirula_types::EntityAddr;
use spirula_types::errno;

const NAME: EntityName = EntityName { kind: 8, num: 4 };

fn watcher(cookie: u64, timeout: u32) -> Watcher {
    Watcher { cookie, name: NAME, timeout, addr: EntityAddr::NONE }
}

fn begun(id: u64, conn: ConnId, timeout: u32) -> notify::Begun {
    notify::Begun {
        id,
        conn,
        client: 9,
        cookie: 77,
        version: 3,
        payload: Bytes::from_static(b"p"),
        timeout,
    }
}

/// What was told, shortly: connection, opcode, cookie, result and data's length.
fn told(out: &mut Vec<PgEffect>) -> Vec<(ConnId, u8, u64, i32, usize)> {
    let short = |e| match e {
        PgEffect::Tell(conn, m) => Some((conn, m.opcode, m.cookie, m.return_code, m.data.len())),
        _ => None,
    };
    std::mem::take(out).into_iter().filter_map(short).collect()
}

#[test]
fn a_notification_ends_when_all_have_answered_or_are_gone() {
    let (mut w, o, mut out) = (Watches::default(), object("o"), Vec::new());
    w.notify(&o, begun(1, 50, 10), 0, &mut out);
    assert_eq!(told(&mut out), [(50, 2, 77, 0, 8)], "nobody watches");
    for (cookie, conn) in [(1, 10), (2, 20), (3, 0)] {
        w.connect(&o, &watcher(cookie, 30), true, conn, 0, &mut out);
    }
    w.notify(&o, begun(2, 50, 10), 0, &mut out);
    assert_eq!(told(&mut out), [(10, 1, 1, 0, 0), (20, 1, 2, 0, 0)], "the third has no connection");
    w.acked(&o, NAME, 2, Some(1), &Bytes::from_static(b"one"), &mut out);
    w.acked(&o, NAME, 2, Some(1), &Bytes::from_static(b"again"), &mut out);
    w.acked(&o, EntityName { num: 5, ..NAME }, 2, None, &Bytes::new(), &mut out);
    assert!(told(&mut out).is_empty(), "not all");
    // Who comes again is told what is under way.
    w.connect(&o, &watcher(3, 30), true, 30, 0, &mut out);
    w.connect(&o, &watcher(3, 30), true, 30, 0, &mut out);
    w.connect(&o, &watcher(1, 30), true, 11, 0, &mut out);
    assert_eq!(told(&mut out), [(30, 1, 3, 0, 0)], "once; and who has answered, no more");
    w.forget(&o, (2, NAME), &mut out);
    w.acked(&o, NAME, 2, None, &Bytes::from_static(b"three"), &mut out);
    let PgEffect::Tell(50, m) = &out[0] else { panic!("{out:?}") };
    let (replies, missed) = MWatchNotify::read_completion(&m.data).unwrap();
    let replies: Vec<_> = replies.iter().map(|r| (r.client, r.cookie, &r.reply[..])).collect();
    assert_eq!((replies, missed), (vec![(4, 1, &b"one"[..]), (4, 3, &b"three"[..])], vec![]));
    assert!(w.notifies.is_empty() && w.notifies.room(50) == (NOTIFIES_EACH, notify::NOTIFY_BYTES));
}

#[test]
fn a_notification_whose_time_is_over_names_who_did_not_answer() {
    let (mut w, o, mut out) = (Watches::default(), object("o"), Vec::new());
    for cookie in [1, 2] {
        w.connect(&o, &watcher(cookie, 30), true, 10, 0, &mut out);
    }
    w.notify(&o, begun(1, 50, 5), 0, &mut out);
    w.acked(&o, NAME, 1, Some(2), &Bytes::new(), &mut out);
    w.end_notifies(4999, &mut out);
    told(&mut out);
    w.end_notifies(5000, &mut out);
    let PgEffect::Tell(50, m) = &out[0] else { panic!("{out:?}") };
    assert_eq!(m.return_code, -errno::ETIMEDOUT);
    assert_eq!(MWatchNotify::read_completion(&m.data).unwrap().1, [(4, 1)]);
    out.clear();
    w.acked(&o, NAME, 1, Some(1), &Bytes::new(), &mut out);
    w.connect(&o, &watcher(1, 30), true, 11, 0, &mut out);
    assert!(told(&mut out).is_empty(), "too late");
}

#[test]
fn a_notification_goes_with_its_notifier_and_is_bounded() {
    let (mut w, o, mut out) = (Watches::default(), object("o"), Vec::new());
    w.connect(&o, &watcher(1, 30), true, 10, 0, &mut out);
    for id in 0..NOTIFIES_EACH as u64 {
        w.notify(&o, begun(w.next_notify(0), 50, 500), 0, &mut out);
        assert_eq!(w.notifies.room(50).0, NOTIFIES_EACH - 1 - id as usize);
    }
    assert_eq!((w.may_notify(50).0, w.may_notify(51).0), (0, NOTIFIES_EACH));
    assert!(w.minds(50) && w.minds(10) && !w.minds(51));
    w.closed(50, 0);
    told(&mut out);
    w.connect(&o, &watcher(1, 30), true, 11, 0, &mut out);
    assert_eq!((told(&mut out), w.notifies.is_empty()), (vec![], true));
    assert!(w.next_notify(0) > NOTIFIES_EACH as u64 && w.next_notify(9) == 9 << 32);
}

#[test]
fn a_watch_ends_when_its_client_is_silent_for_its_time() {
    let (mut w, o, mut out) = (Watches::default(), object("o"), Vec::new());
    let (view, none) = (MapView::default(), Vec::<(HObject, WatchKey)>::new());
    w.connect(&o, &watcher(1, 30), true, 10, 1000, &mut out);
    w.connect(&o, &watcher(2, 30), false, 10, 1000, &mut out);
    assert_eq!(w.due(30_999, &view), none);
    assert_eq!(w.due(31_000, &view), [(o.clone(), (1, NAME))], "connected, but it pings no more");
    w.closed(10, 40_000);
    assert_eq!(
        w.due(69_999, &view).len(),
        1,
        "the other has time from the end of its connection on"
    );
    assert_eq!(w.due(70_000, &view).len(), 2);
    // A new primary knows them from what is stored, and gives them all their time.
    let mut next = Watches::default();
    next.know(&o, &[watcher(1, 30), watcher(2, 5)], 70_000, &mut out);
    assert_eq!((next.due(74_999, &view), next.due(75_000, &view).len()), (none, 1));
    assert!(!next.of(&o).unwrap().is_connected((1, NAME), 10));
}

#[test]
fn clients_that_are_shut_out_watch_no_longer() {
    let (mut w, o, mut out) = (Watches::default(), object("o"), Vec::new());
    let addr = EntityAddr { kind: EntityAddr::KIND_ANY, nonce: 7, addr: "10.0.0.1:0".parse().ok() };
    w.connect(&o, &Watcher { addr, ..watcher(1, 30) }, true, 10, 0, &mut out);
    let of = |nonce| MapView {
        blocklist: std::sync::Arc::new([EntityAddr { nonce, ..addr }].into()),
        ..MapView::default()
    };
    let due: Vec<usize> = [7, 8, 0].map(|nonce| w.due(0, &of(nonce)).len()).to_vec();
    assert_eq!(due, [1, 0, 1], "it, another, and all of its host");
}

/// After an interval what is stored is followed: it may have changed meanwhile.
#[test]
fn what_is_stored_is_followed() {
    let (mut w, o, mut out) = (Watches::default(), object("o"), Vec::new());
    for cookie in [1, 2] {
        w.connect(&o, &watcher(cookie, 30), true, 10, 0, &mut out);
    }
    w.notify(&o, begun(1, 50, 500), 0, &mut out);
    w.acked(&o, NAME, 1, Some(1), &Bytes::new(), &mut out);
    told(&mut out);
    w.know(&o, &[], 0, &mut out);
    assert!(told(&mut out).is_empty(), "sure");
    w.leave_role();
    w.know(&o, &[watcher(1, 30), watcher(3, 30)], 0, &mut out);
    assert_eq!(
        told(&mut out),
        [(50, 2, 77, 0, 28), (10, 3, 2, 0, 0)],
        "the notification has nobody to wait for"
    );
    let there = |c| w.of(&o).unwrap().watches.contains_key(&(c, NAME));
    assert_eq!([1, 2, 3].map(there), [true, false, true]);
    assert!(
        w.of(&o).unwrap().is_connected((1, NAME), 10),
        "the primary has stayed, and so has the connection"
    );
    w.leave_role();
    w.know(&o, &[], 0, &mut out);
    assert!(w.of(&o).is_none());
}
