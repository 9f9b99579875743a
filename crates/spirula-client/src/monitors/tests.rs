use super::*;
use spirula_types::EntityAddr;

fn addr(port: u16) -> AddrVec {
    AddrVec::one(EntityAddr::v2(([127, 0, 0, 1], port).into(), 0))
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client of two monitors.
struct Case {
    m: Monitors,
    now: Duration,
}

impl Case {
    fn new() -> Self {
        Self { m: Monitors::new(Mons::new(vec![addr(1), addr(2)], 0), "h"), now: Duration::ZERO }
    }

    /// Lets time pass as a shell does, until something is to be done.
    fn until(&mut self, end: Duration) -> Vec<MonitorOut> {
        let mut out = Vec::new();
        while self.now < end && out.is_empty() {
            self.now = self.m.deadline().clamp(self.now, end);
            self.m.tick(self.now, &mut out);
        }
        out
    }

    fn open(&mut self) -> Vec<MonitorOut> {
        let mut out = Vec::new();
        self.m.tick(self.now, &mut out);
        assert!(matches!(&out[..], [MonitorOut::Connect(_)]), "{out:?}");
        out.clear();
        self.m.opened(self.now, &mut out);
        out
    }
}

fn sent<B: Body>(out: &[MonitorOut]) -> Vec<(u64, B)> {
    let one = |o: &MonitorOut| match o {
        MonitorOut::Send(m) if m.kind == B::KIND => B::from_message(m).ok().map(|b| (m.tid, b)),
        _ => None,
    };
    out.iter().filter_map(one).collect()
}

fn ack(tid: u64, result: i32) -> Message {
    let (status, output) = ("said".to_owned(), Bytes::from_static(b"out"));
    MMonCommandAck { version: 0, result, status, cmd: Vec::new(), output }.into_message(tid)
}

/// The monitor map of the cluster of these tests.
fn map() -> Message {
    let map = MonMap { fsid: Uuid([7; 16]), ..MonMap::default() };
    MMonMap { monmap: spirula_encoding::to_vec(&map).into() }.into_message(0)
}

/// The commands sent, and the clusters that they name.
fn named(out: &[MonitorOut]) -> Vec<(u64, Uuid)> {
    sent::<MMonCommand>(out).into_iter().map(|(tid, m)| (tid, m.fsid)).collect()
}

/// Ceph's monitors answer a command that names no cluster with "wrong fsid".
#[test]
fn a_command_waits_until_the_cluster_is_known_and_names_it() {
    for subscribed in [false, true] {
        let mut c = Case::new();
        let mut out = Vec::new();
        if subscribed {
            c.m.subscribe("monmap", 3, &mut out);
        }
        let first = c.m.command("one".into(), Bytes::new(), &mut out);
        out = c.open();
        let asked: Vec<Subscription> =
            sent::<MMonSubscribe>(&out).into_iter().flat_map(|(_, s)| s.what).collect();
        let want = if subscribed {
            subscription("monmap", 3)
        } else {
            Subscription { once: true, ..subscription("monmap", 0) }
        };
        assert_eq!(asked, [want], "the map is asked for, once");
        let second = c.m.command("two".into(), Bytes::new(), &mut out);
        // What names no cluster does not wait.
        c.m.newest("osdmap", &mut out);
        assert_eq!((sent::<MMonGetVersion>(&out).len(), named(&out)), (1, Vec::new()), "{out:?}");
        out.clear();
        assert!(c.m.message(c.now, &map(), &mut out));
        let third = c.m.command("three".into(), Bytes::new(), &mut out);
        assert_eq!(named(&out), [first, second, third].map(|tid| (tid, Uuid([7; 16]))));
        // It stays known.
        c.m.closed(c.now, "broken", &mut Vec::new());
        c.until(ms(10_000));
        out.clear();
        c.m.opened(c.now, &mut out);
        assert_eq!(named(&out), [first, second, third].map(|tid| (tid, Uuid([7; 16]))));
    }
}

/// A monitor that lives and gives no map does not hold commands up for longer than that, and one
/// that is lost is no reason to give up waiting in the next session.
#[test]
fn the_wait_for_the_clusters_name_has_an_end() {
    let mut c = Case::new();
    let call = c.m.command("one".into(), Bytes::new(), &mut Vec::new());
    for session in 0..2 {
        let begun = c.now;
        assert!(named(&c.open()).is_empty());
        let mut out = Vec::new();
        while c.now < begun + UNNAMED {
            assert!(named(&out).is_empty() && c.m.is_open(), "{session}: {:?} {out:?}", c.now);
            out = c.until(begun + UNNAMED);
            let reply = MMonGetVersionReply { handle: 0, newest: 1, oldest: 1 };
            c.m.message(c.now, &reply.into_message(0), &mut out);
        }
        assert_eq!(named(&out), [(call, Uuid::default())], "{session}");
        c.m.closed(c.now, "broken", &mut Vec::new());
        c.now = c.m.deadline();
    }
}

/// One that speaks only the protocol before this one has no address here.
#[test]
fn a_monitor_without_an_address_is_passed_over() {
    for mons in [vec![AddrVec::default(), addr(2)], vec![addr(2), AddrVec::default()]] {
        for seed in 0..2 {
            let mut c = Case::new();
            c.m = Monitors::new(Mons::new(mons.clone(), seed), "h");
            let mut out = Vec::new();
            for _ in 0..5 {
                out.extend(c.until(ms(3000)));
                if let Some(to) = out
                    .iter()
                    .find_map(|o| if let MonitorOut::Connect(to) = o { Some(to) } else { None })
                {
                    assert_eq!(*to, addr(2));
                    break;
                }
            }
            assert!(out.iter().any(|o| matches!(o, MonitorOut::Connect(_))), "{out:?}");
        }
    }
    // Where there is no other it waits, and asks for nothing at once.
    let mut c = Case::new();
    c.m = Monitors::new(Mons::new(vec![AddrVec::default()], 0), "h");
    c.m.tick(ms(1), &mut Vec::new());
    assert!(c.m.deadline() > ms(1));
}

#[test]
fn a_silent_monitor_is_left_for_the_next_one() {
    let mut c = Case::new();
    c.open();
    // It is asked whether it is there, and says nothing.
    let out = c.until(ms(10_000));
    assert_eq!(sent::<MMonGetVersion>(&out).len(), 1);
    assert_eq!(sent::<MMonGetVersion>(&c.until(ms(10_000))).len(), 1);
    let out = c.until(ms(10_000));
    assert!(matches!(&out[..], [MonitorOut::Close, MonitorOut::Lost(_)]), "{out:?}");
    assert!(c.now >= SILENCE && c.now < SILENCE + GAP, "{:?}", c.now);
    let out = c.until(ms(10_000));
    assert!(matches!(&out[..], [MonitorOut::Connect(to)] if *to == addr(2)), "{out:?}");
}

#[test]
fn a_monitor_that_answers_is_kept() {
    let mut c = Case::new();
    c.open();
    while c.now < ms(60_000) {
        let out = c.until(ms(60_000));
        assert!(out.iter().all(|o| matches!(o, MonitorOut::Send(_))), "{out:?}");
        let reply = MMonGetVersionReply { handle: 0, newest: 1, oldest: 1 };
        assert!(c.m.message(c.now, &reply.into_message(0), &mut Vec::new()));
    }
    assert!(c.m.is_open());
}

#[test]
fn time_in_which_we_did_not_run_is_no_silence() {
    let mut c = Case::new();
    c.open();
    let mut out = Vec::new();
    c.m.tick(ms(100), &mut out);
    // Stopped for an hour.
    c.m.tick(ms(3_600_000), &mut out);
    assert_eq!(sent::<MMonGetVersion>(&out).len(), 1);
    assert!(c.m.is_open());
}

#[test]
fn subscriptions_and_commands_go_on_in_the_next_session() {
    let mut c = Case::new();
    let mut out = Vec::new();
    c.m.subscribe("osdmap", 0, &mut out);
    let first = c.m.command("one".into(), Bytes::new(), &mut out);
    assert!(out.is_empty());
    let mut out = c.open();
    assert!(matches!(out[0], MonitorOut::Opened));
    assert_eq!(sent::<MMonSubscribe>(&out)[0].1.what, [subscription("osdmap", 0)]);
    assert!(c.m.message(c.now, &map(), &mut out));
    assert_eq!(sent::<MMonCommand>(&out)[0].0, first);
    let mut out = Vec::new();
    let second = c.m.command("two".into(), Bytes::new(), &mut out);
    c.m.set_start("osdmap", 8);
    assert!(c.m.message(c.now, &ack(first, 0), &mut out));
    let told =
        Answer::Command { result: 0, status: "said".into(), output: Bytes::from_static(b"out") };
    assert!(
        matches!(&out[..], [MonitorOut::Send(_), MonitorOut::Answer(f, a)] if *f == first && *a == told),
        "{out:?}"
    );
    // The connection breaks before the second is answered, and the answer to the first comes again.
    out.clear();
    c.m.closed(c.now, "broken", &mut out);
    assert!(matches!(&out[..], [MonitorOut::Lost(why)] if why == "broken"), "{out:?}");
    let retry = c.until(ms(10_000));
    assert!(matches!(&retry[..], [MonitorOut::Connect(_)]));
    out.clear();
    c.m.opened(c.now, &mut out);
    assert_eq!(sent::<MMonSubscribe>(&out)[0].1.what, [subscription("osdmap", 8)]);
    let again: Vec<u64> = sent::<MMonCommand>(&out).into_iter().map(|(tid, _)| tid).collect();
    assert_eq!(again, [second]);
    out.clear();
    assert!(c.m.message(c.now, &ack(first, 0), &mut out));
    assert!(out.is_empty());
    // Whoever has lost patience gets nothing.
    c.m.give_up(second);
    assert!(c.m.message(c.now, &ack(second, 0), &mut out));
    assert!(out.is_empty());
}

#[test]
fn what_is_asked_about_snapshots_goes_on_in_the_next_session_under_its_number() {
    let mut c = Case::new();
    c.open();
    let mut out = Vec::new();
    let name = String::new();
    let op = MPoolOp {
        version: 0,
        fsid: Uuid([3; 16]),
        pool: 1,
        op: 0x21,
        snap: 0,
        name,
        crush_rule: -1,
    };
    let call = c.m.pool_op(op.clone(), &mut out);
    assert_eq!(sent::<MPoolOp>(&out), [(call, op.clone())]);
    c.m.closed(c.now, "broken", &mut Vec::new());
    c.until(ms(10_000));
    out.clear();
    c.m.opened(c.now, &mut out);
    assert_eq!(sent::<MPoolOp>(&out), [(call, op)], "the same request, so that it is done once");
    out.clear();
    let reply = |data| MPoolOpReply { version: 9, fsid: Uuid([3; 16]), result: 0, epoch: 9, data };
    let number = Bytes::copy_from_slice(&7u64.to_le_bytes());
    // To another one that nobody waits for; then to this one, twice.
    for tid in [call + 1, call, call] {
        assert!(c.m.message(c.now, &reply(Some(number.clone())).into_message(tid), &mut out));
    }
    let told = Answer::PoolOp { result: 0, epoch: 9, snap: Some(7) };
    assert!(
        matches!(&out[..], [MonitorOut::Answer(to, a)] if *to == call && *a == told),
        "{out:?}"
    );
}

#[test]
fn the_same_reason_is_told_once_and_no_monitor_is_hammered() {
    let mut c = Case::new();
    let (mut told, mut tried) = (0, 0);
    while c.now < ms(10_000) {
        for o in c.until(ms(10_000)) {
            match o {
                MonitorOut::Connect(_) => {
                    tried += 1;
                    let mut out = Vec::new();
                    c.m.closed(c.now, "refused", &mut out);
                    told += out.len();
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(told, 1);
    assert!((20..=40).contains(&tried), "{tried}");
}

#[test]
fn versions_are_told_to_who_asked_and_what_is_stopped_stays_so() {
    let mut c = Case::new();
    c.open();
    let mut out = Vec::new();
    let call = c.m.newest("osdmap", &mut out);
    assert_eq!(sent::<MMonGetVersion>(&out)[0].1.handle, call);
    out.clear();
    let reply = MMonGetVersionReply { handle: call, newest: 7, oldest: 2 };
    c.m.message(c.now, &reply.into_message(0), &mut out);
    assert!(
        matches!(&out[..], [MonitorOut::Answer(_, Answer::Version { newest: 7, oldest: 2 })]),
        "{out:?}"
    );
    out.clear();
    c.m.stop(&mut out);
    assert!(matches!(&out[..], [MonitorOut::Close]));
    assert!(c.until(ms(10_000)).is_empty());
}
