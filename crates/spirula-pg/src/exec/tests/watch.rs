//! Watches and notifications as ops.

use super::*;
use crate::exec::watch::from_attr;
use spirula_encoding::Decoder;
use spirula_messages::ceph::op::watch as sub;

fn watch(cookie: u64, sub: u8, timeout: u32) -> OsdOp {
    OsdOp::watch(cookie, sub, 1, timeout)
}

fn stored(x: &Bench, o: &HObject) -> Vec<(u64, i64, u32)> {
    let attr = x.store.objects.get(o).and_then(|s| s.attrs.get(WATCHERS_ATTR));
    let all = attr.map_or_else(Vec::new, |a| from_attr(a).unwrap());
    all.iter().map(|w| (w.cookie, w.name.num, w.timeout)).collect()
}

fn by(num: i64) -> Asker<'static> {
    Asker { name: EntityName { kind: 8, num }, ..ASKER }
}

#[test]
fn watchers_are_kept_with_the_object_in_order_and_change_no_user_version() {
    let (mut x, o) = (Bench::new(), object("o"));
    assert_eq!(x.run(&o, &[watch(5, sub::WATCH, 0)]).result, -errno::ENOENT, "nothing to watch");
    let version = x.run(&o, &[OsdOp::create(false)]).user_version;
    for (num, cookie, timeout) in [(7, 5, 0), (3, 5, 11), (7, 2, 12)] {
        x.asker = by(num);
        let got = x.run(&o, &[watch(cookie, sub::WATCH, timeout)]);
        assert_eq!((got.result, got.user_version), (0, version));
        let [WatchEffect::Connect { watcher, pings: true }] = &got.watch[..] else {
            panic!("{got:?}")
        };
        assert_eq!(watcher.key(), (cookie, x.asker.name));
    }
    assert_eq!(stored(&x, &o), [(2, 7, 12), (5, 3, 11), (5, 7, 30)]);
    // Again: it is there, and connected anew; nothing is stored.
    let again = x.run(&o, &[watch(2, sub::WATCH, 99)]);
    assert!(matches!(again.effect, Effect::LogOnly) && again.watch.len() == 1);
    // Listed as Ceph does: 1/1, a list of 2/1.
    let out = x.run(&o, &[OsdOp::new(op::LIST_WATCHERS)]).ops[0].op.indata.clone();
    let rows = Decoder::new(&out)
        .versioned("list", 1, |d, _| {
            d.list(1, |d| {
                d.versioned("item", 2, |d, _| {
                    let row = (d.get::<EntityName>()?.num, d.u64()?, d.u32()?);
                    d.get::<EntityAddr>().map(|_| row)
                })
            })
        })
        .unwrap();
    assert_eq!(rows, [(7, 2, 12), (3, 5, 11), (7, 5, 30)]);
    // They outlive what is done to the object, a copy over it included; and its attributes do not
    // show them.
    x.run(&o, &[OsdOp::write_full(b("data"))]);
    let shown = x.run(&o, &[OsdOp::getxattrs()]).ops[0].op.indata.clone();
    assert_eq!((stored(&x, &o).len(), &shown[..]), (3, &[0u8; 4][..]));
    let gone = x.run(&o, &[watch(2, sub::UNWATCH, 0)]);
    assert_eq!(gone.watch, [WatchEffect::Ended { key: (2, by(7).name), tell: false }]);
    assert!(
        matches!(x.run(&o, &[watch(2, sub::UNWATCH, 0)]).effect, Effect::LogOnly),
        "none there"
    );
    assert_eq!(stored(&x, &o).len(), 2);
    let removed = x.run(&o, &[OsdOp::delete(), OsdOp::create(false)]);
    let told = |w: &WatchEffect| matches!(w, WatchEffect::Ended { tell: true, .. });
    assert!(removed.watch.len() == 2 && removed.watch.iter().all(told), "{removed:?}");
    assert!(stored(&x, &o).is_empty());
    assert!(load_object(&x.store, &o).unwrap().watchers.is_empty());
}

#[test]
fn who_is_unknown_or_out_of_reach_hears_that() {
    let (mut x, o) = (Bench::new(), object("o"));
    x.run(&o, &[OsdOp::create(false)]);
    for what in [sub::PING, sub::RECONNECT] {
        assert_eq!(x.run(&o, &[watch(5, what, 0)]).result, -errno::ENOTCONN);
    }
    x.run(&o, &[watch(5, sub::WATCH, 0)]);
    assert_eq!(
        x.run(&o, &[watch(5, sub::PING, 0)]).result,
        -errno::ETIMEDOUT,
        "nothing is known of its connection"
    );
    assert_eq!(x.run(&o, &[watch(5, sub::RECONNECT, 0)]).watch.len(), 1);
    assert_eq!(x.run(&o, &[watch(5, 99, 0)]).result, 0);
    x.asker = by(9);
    assert_eq!(x.run(&o, &[watch(5, sub::RECONNECT, 0)]).result, -errno::ENOTCONN, "another's");
    x.limits.max_watchers = 1;
    assert_eq!(x.run(&o, &[watch(6, sub::WATCH, 0)]).result, -errno::E2BIG);
    // What fails has no effect on watches.
    let failed = x.run(&o, &[OsdOp::delete(), OsdOp::assert_ver(u64::MAX)]);
    assert!(failed.result < 0 && failed.watch.is_empty() && stored(&x, &o).len() == 1);
}

#[test]
fn notifications_are_numbered_and_bounded() {
    let (mut x, o) = (Bench::new(), object("o"));
    assert_eq!(x.run(&o, &[OsdOp::notify(1, 5, b"a")]).result, -errno::ENOENT);
    x.run(&o, &[OsdOp::create(false)]);
    let got = x.run(&o, &[OsdOp::notify(1, 5, b"a"), OsdOp::notify(2, 0, b"b")]);
    let numbers: Vec<u64> =
        got.ops.iter().map(|r| Decoder::new(&r.op.indata).u64().unwrap()).collect();
    assert_eq!(numbers, [7, 8]);
    let wanted =
        |id, cookie, timeout, p: &str| WatchEffect::Notify { id, cookie, timeout, payload: b(p) };
    assert_eq!(got.watch, [wanted(7, 1, 5, "a"), wanted(8, 2, 30, "b")]);
    // What cannot be read is, as in Ceph, nothing.
    let torn = OsdOp { indata: b("abc"), ..OsdOp::notify(3, 5, b"") };
    assert_eq!(x.run(&o, &[torn]).watch, [wanted(7, 3, 30, "")]);
    let ack = |id, cookie, p: &str| WatchEffect::Ack { id, cookie, reply: b(p) };
    assert_eq!(x.run(&o, &[OsdOp::notify_ack(4, 5, b"r")]).watch, [ack(4, Some(5), "r")]);
    let mut old = OsdOp::new(op::NOTIFY_ACK);
    old.union[0] = 9;
    assert_eq!(x.run(&o, &[old]).watch, [ack(9, None, "")]);
    x.asker.may_notify = 1;
    assert_eq!(
        x.run(&o, &[OsdOp::notify(1, 5, b"a"), OsdOp::notify(2, 0, b"b")]).result,
        -errno::EBUSY
    );
    x.asker.room = 3;
    assert_eq!(x.run(&o, &[OsdOp::notify(1, 5, b"four")]).result, -errno::EBUSY);
    assert_eq!(x.run(&o, &[OsdOp::notify_ack(4, 5, b"four")]).result, -errno::EBUSY);
    x.limits.max_notify = 2;
    assert_eq!(x.run(&o, &[OsdOp::notify(1, 5, b"big")]).result, -errno::E2BIG);
    assert_eq!(x.run(&o, &[OsdOp::notify_ack(4, 5, b"big")]).result, -errno::E2BIG);
}
