//! Snapshots: what each shows, against an obvious model; what is stored and counted; what contexts
//! may be.

use super::*;
use crate::snap::SnapContext;
use crate::snap::trim::doomed;
use proptest::prelude::*;
use spirula_encoding::from_slice;
use spirula_types::limits;

fn context(seq: u64, snaps: &[u64]) -> SnapContext {
    SnapContext { seq, snaps: snaps.to_vec() }
}

impl Bench {
    /// Executes under this context.
    fn under(&mut self, context: SnapContext, o: &HObject, ops: &[OsdOp]) -> Outcome {
        self.snaps = context;
        self.run(o, ops)
    }

    /// Reads at a snapshot.
    fn at(&mut self, snap: u64, o: &HObject, ops: &[OsdOp]) -> Outcome {
        self.snapid = snap;
        let got = self.run(o, ops);
        self.snapid = SNAP_HEAD;
        got
    }

    fn data_at(&mut self, snap: u64, o: &HObject) -> Result<Bytes, i32> {
        let got = self.at(snap, o, &[OsdOp::read(0, 0)]);
        if got.result < 0 { Err(got.result) } else { Ok(got.ops[0].op.indata.clone()) }
    }

    /// Trims an object; what that adds to objects, clones, whiteouts and bytes.
    fn trim(&mut self, o: &HObject) -> Vec<[i64; 4]> {
        let mut counted = Vec::new();
        loop {
            let state = load_object(&self.store, o).unwrap();
            let (going, changes) = doomed(&state, &self.removed);
            if !changes {
                return counted;
            }
            let clone = |snap: u64| {
                let clone = HObject { snap, ..o.clone() };
                (clone.clone(), load_object(&self.store, &clone).unwrap())
            };
            let plan = WritePlan::of_trim(
                o,
                &state,
                &self.removed,
                &[],
                going.into_iter().map(clone).collect(),
            );
            // Stores short of room for metadata take what takes something away, and nothing else.
            let takes = |op: &ObjectOp| matches!(op, ObjectOp::Remove | ObjectOp::RmAttr(_));
            assert!(plan.changes.iter().all(|c| c.ops.iter().any(takes)), "{plan:?}");
            counted.extend(plan.changes.iter().map(|c| {
                let s = &c.stats;
                [s.objects, s.clones, s.whiteouts, s.bytes]
            }));
            self.snaps.seq = self.snaps.seq.max(1);
            self.apply(o, plan, 0);
        }
    }

    fn list_snaps(&mut self, o: &HObject) -> Result<(Vec<ObjectClone>, u64), i32> {
        let got = self.at(SNAP_DIR, o, &[OsdOp::new(op::LIST_SNAPS)]);
        if got.result < 0 {
            return Err(got.result);
        }
        // The same fields as are stored, in another order.
        let mut d = spirula_encoding::Decoder::new(&got.ops[0].op.indata);
        let said = d.versioned("obj_list_snap_response_t", 2, |d, _| {
            let clones = d.list(30, |d| {
                d.versioned("clone_info", 1, |d, _| {
                    Ok(ObjectClone {
                        id: d.u64()?,
                        snaps: d.get()?,
                        overlap: d.get()?,
                        size: d.u64()?,
                    })
                })
            })?;
            Ok((clones, d.u64()?))
        });
        Ok(said.unwrap())
    }
}

#[test]
fn the_first_write_after_a_snapshot_clones_and_the_second_does_not() {
    let mut x = Bench::new();
    let o = object("o");
    x.run(&o, &[OsdOp::write_full(b("0123456789")), xattr_op(op::SETXATTR, b"a", b"old")]);
    let done = x.under(
        context(3, &[3, 2]),
        &o,
        &[OsdOp::write(2, b("xy")), xattr_op(op::SETXATTR, b"a", b"new")],
    );
    // Two entries of the log: the version jumps by two.
    assert_eq!((done.user_version, x.version), (3, 3));
    x.under(context(3, &[3, 2]), &o, &[OsdOp::write(3, b("zz"))]);
    assert_eq!(x.store.objects.len(), 2);
    assert_eq!(x.data_at(2, &o), Ok(b("0123456789")));
    assert_eq!(x.data_at(3, &o), Ok(b("0123456789")));
    assert_eq!(x.data_at(4, &o), Ok(b("01xzz56789")), "not changed since");
    assert_eq!(x.data_at(1, &o), Err(-errno::ENOENT), "removed, or not this object's");
    let old = x.at(3, &o, &[xattr_op(op::GETXATTR, b"a", b""), OsdOp::stat()]);
    assert_eq!(
        (old.user_version, &old.ops[0].op.indata[..]),
        (1, &b"old"[..]),
        "the clone's version"
    );
    assert_eq!(from_slice::<(u64, UTime)>(&old.ops[1].op.indata).unwrap().1.sec, 1, "and its time");
    let (clones, seq) = x.list_snaps(&o).unwrap();
    let clone = ObjectClone { id: 3, snaps: vec![2, 3], overlap: vec![(0, 2), (5, 5)], size: 10 };
    assert_eq!(
        (clones, seq),
        (vec![clone, ObjectClone { id: SNAP_HEAD, size: 10, ..ObjectClone::default() }], 3)
    );
    x.removed = SnapIntervals::one(2);
    assert_eq!(x.data_at(2, &o), Err(-errno::ENOENT), "removed, and not trimmed yet");
}

#[test]
fn an_object_that_came_later_has_no_clone_and_one_that_goes_leaves_a_whiteout() {
    let mut x = Bench::new();
    let o = object("o");
    x.under(context(2, &[2]), &o, &[OsdOp::write_full(b("late"))]);
    assert_eq!((x.data_at(2, &o), x.data_at(3, &o)), (Err(-errno::ENOENT), Ok(b("late"))));
    x.under(context(2, &[2]), &o, &[OsdOp::delete()]);
    assert!(x.store.objects.is_empty(), "nothing to be kept");
    x.under(context(2, &[2]), &o, &[OsdOp::write_full(b("again"))]);
    x.under(context(3, &[3, 2]), &o, &[OsdOp::delete()]);
    assert_eq!(x.store.objects.len(), 2, "a clone and a whiteout");
    assert_eq!((x.data_at(SNAP_HEAD, &o), x.data_at(3, &o)), (Err(-errno::ENOENT), Ok(b("again"))));
    assert_eq!(x.data_at(4, &o), Err(-errno::ENOENT));
    assert_eq!(x.run(&o, &[OsdOp::delete()]).result, -errno::ENOENT);
    assert_eq!(x.list_snaps(&o).unwrap().0.len(), 1, "without a head");
    x.under(context(3, &[3, 2]), &o, &[OsdOp::create(true), OsdOp::append(b("new"))]);
    assert_eq!((x.data_at(SNAP_HEAD, &o), x.data_at(3, &o)), (Ok(b("new")), Ok(b("again"))));
}

/// A watch is its head's: a clone has none, and a head that is rolled back keeps its own. Like any
/// change a new watch clones, as in Ceph.
#[test]
fn watches_stay_with_the_head() {
    let mut x = Bench::new();
    let o = object("o");
    let watch = OsdOp::watch(5, op::watch::WATCH, 0, 30);
    let watchers = |x: &Bench, o: &HObject| load_object(&x.store, o).unwrap().watchers.len();
    x.run(&o, &[OsdOp::write_full(b("old")), watch.clone()]);
    x.under(context(1, &[1]), &o, &[OsdOp::write_full(b("new"))]);
    let clone = HObject { snap: 1, ..o.clone() };
    assert_eq!((watchers(&x, &o), watchers(&x, &clone)), (1, 0));
    assert!(!x.store.objects[&clone].attrs.contains_key(WATCHERS_ATTR));
    x.under(context(1, &[1]), &o, &[OsdOp::rollback(1)]);
    assert_eq!((x.data_at(SNAP_HEAD, &o), watchers(&x, &o)), (Ok(b("old")), 1));
    x.under(context(2, &[2, 1]), &o, &[OsdOp::watch(6, op::watch::WATCH, 0, 30)]);
    assert_eq!((watchers(&x, &o), watchers(&x, &HObject { snap: 2, ..o.clone() })), (2, 0));
}

/// An object that is rolled back to a time when it was not there is deleted: its watches end, and
/// it can be loaded.
#[test]
fn a_watched_object_that_is_rolled_back_to_nothing_is_still_an_object() {
    let mut x = Bench::new();
    let o = object("o");
    x.under(
        context(1, &[]),
        &o,
        &[OsdOp::write_full(b("old")), OsdOp::watch(5, op::watch::WATCH, 0, 30)],
    );
    let now = context(3, &[3, 1]);
    let done = x.under(now.clone(), &o, &[OsdOp::rollback(1)]);
    assert_eq!(done.result, 0);
    assert_eq!(done.watch, [WatchEffect::Ended { key: (5, ASKER.name), tell: true }]);
    let whiteout = load_object(&x.store, &o).unwrap();
    assert!(
        whiteout.exists && !whiteout.live() && !whiteout.info.has(ObjectInfo::WATCHED),
        "{whiteout:?}"
    );
    assert_eq!((x.data_at(SNAP_HEAD, &o), x.data_at(3, &o)), (Err(-errno::ENOENT), Ok(b("old"))));
    // It was watched again in the same vector.
    x.under(now.clone(), &o, &[OsdOp::create(false), OsdOp::watch(6, op::watch::WATCH, 0, 30)]);
    let again =
        [OsdOp::rollback(1), OsdOp::create(false), OsdOp::watch(7, op::watch::WATCH, 0, 30)];
    assert_eq!(x.under(now, &o, &again).result, 0);
    assert_eq!(
        load_object(&x.store, &o).unwrap().watchers.iter().map(|w| w.cookie).collect::<Vec<_>>(),
        [7]
    );
    // One that was stored with the flag and without the list has no watchers, and is there.
    x.store.objects.get_mut(&o).unwrap().attrs.remove(WATCHERS_ATTR);
    let state = load_object(&x.store, &o).unwrap();
    assert!(state.live() && state.watchers.is_empty() && !state.info.has(ObjectInfo::WATCHED));
}

/// Many snapshots go at once: some clones in each write, and nothing is left in the end, not even a
/// whiteout.
#[test]
fn an_object_of_removed_snapshots_only_goes_entirely() {
    let mut x = Bench::new();
    let o = object("o");
    for snap in 1..=40 {
        let all: Vec<u64> = (1..=snap).rev().collect();
        x.under(context(snap, &all), &o, &[OsdOp::write_full(Bytes::from(vec![snap as u8; 9]))]);
    }
    let all: Vec<u64> = (1..=41).rev().collect();
    x.under(context(41, &all), &o, &[OsdOp::delete()]);
    x.removed.insert(1, 40);
    let writes = x.trim(&o);
    assert_eq!(
        (x.store.objects.len(), writes.iter().map(|w| w[1]).sum::<i64>()),
        (2, -39),
        "the newest clone, and a whiteout"
    );
    assert_eq!(x.data_at(41, &o), Ok(Bytes::from(vec![40; 9])));
    x.removed.insert(41, 1);
    x.trim(&o);
    assert!(x.store.objects.is_empty());
    assert!(x.trim(&o).is_empty(), "nothing is left to be done");
}

#[test]
fn contexts_that_mean_nothing_or_go_back_are_refused_where_that_is_asked() {
    let mut x = Bench::new();
    let o = object("o");
    x.under(context(3, &[3]), &o, &[OsdOp::write_full(b("a"))]);
    assert_eq!(
        x.under(context(3, &[2, 3]), &o, &[OsdOp::write_full(b("b"))]).result,
        -errno::EINVAL
    );
    assert_eq!(
        x.under(context(2, &[2]), &o, &[OsdOp::write_full(b("b"))]).result,
        0,
        "it is just older"
    );
    x.flags = flag::ORDERSNAP;
    assert_eq!(
        x.under(context(2, &[2]), &o, &[OsdOp::write_full(b("c"))]).result,
        -errno::EOLDSNAPC
    );
    assert_eq!(x.under(context(3, &[3]), &o, &[OsdOp::write_full(b("c"))]).result, 0);
    x.flags = 0;
    x.snapid = 3;
    assert_eq!(
        x.run(&o, &[OsdOp::write_full(b("d"))]).result,
        -errno::EINVAL,
        "a clone does not change"
    );
}

/// What clients name in contexts is kept with the object, so it is bounded: else no member's store
/// would take it.
#[test]
fn a_history_is_refused_before_it_is_more_than_a_store_takes() {
    let mut x = Bench::new();
    let o = object("o");
    let many =
        |newest: u64, n: u64| context(newest, &(0..n).map(|i| newest - i).collect::<Vec<_>>());
    let all = x.limits.max_snaps as u64;
    x.run(&o, &[OsdOp::write_full(b("first"))]);
    assert_eq!(
        x.under(many(1 << 20, all + 1), &o, &[OsdOp::write_full(b("no"))]).result,
        -errno::EINVAL
    );
    assert_eq!(x.data_at(SNAP_HEAD, &o), Ok(b("first")));
    let mut results = Vec::new();
    for i in 1..=20 {
        results.push(x.under(many(i << 20, all), &o, &[OsdOp::write_full(b("second"))]).result);
    }
    let taken = results.iter().filter(|r| **r == 0).count();
    assert!(
        (4..10).contains(&taken) && results[taken..].iter().all(|r| *r == -errno::E2BIG),
        "{results:?}"
    );
    let stored = |x: &Bench| x.store.objects[&o].attrs[SNAPSET_ATTR].len();
    assert!(stored(&x) <= x.limits.max_history);
    assert_eq!(x.store.objects.len(), 1 + taken, "a refused write makes no clone");
    // What makes no clone is not refused, a deletion above all.
    let known = context((taken as u64) << 20, &[]);
    assert_eq!(x.under(known.clone(), &o, &[OsdOp::write(1, b("x"))]).result, 0);
    assert_eq!(x.under(known, &o, &[OsdOp::delete()]).result, 0);
    // With all else that an OSD keeps with an object it is well below what stores take.
    let watchers = x.limits.max_watchers * 128;
    assert!(
        x.limits.max_history + watchers + (1 << 20) < limits::ATTRS_STORED_MAX - limits::ATTRS_MAX
    );
}

#[test]
fn a_vector_that_rolls_back_goes_on_with_what_was() {
    let mut x = Bench::new();
    let o = object("o");
    let pair = |v: &str| vec![(b("k"), b(v))];
    x.run(&o, &[OsdOp::write_full(b("0123456789")), encoded(op::OMAP_SET_VALS, &pair("old"))]);
    let now = context(1, &[1]);
    x.under(
        now.clone(),
        &o,
        &[OsdOp::write_full(b("abc")), encoded(op::OMAP_SET_VALS, &pair("new"))],
    );
    x.flags = flag::RETURNVEC;
    let keys = encoded(op::OMAP_GET_VALS_BY_KEYS, &vec![b("k")]);
    let ops = [
        OsdOp::rollback(1),
        OsdOp::write(1, b("--")),
        OsdOp::read(0, 0),
        keys.clone(),
        OsdOp::append(b("!")),
    ];
    let done = x.under(now.clone(), &o, &ops);
    assert_eq!((done.result, &done.ops[2].op.indata[..]), (0, &b"0--3456789"[..]));
    assert!(done.ops[3].op.indata.ends_with(b"old"));
    assert_eq!(
        (x.data_at(SNAP_HEAD, &o), x.data_at(1, &o)),
        (Ok(b("0--3456789!")), Ok(b("0123456789")))
    );
    // What the head is at a newer snapshot is what it is, under a new version; at an older one it
    // was not there.
    let before = load_object(&x.store, &o).unwrap().info.user_version;
    assert!(matches!(x.under(now.clone(), &o, &[OsdOp::rollback(2)]).effect, Effect::Apply(_)));
    assert_eq!(x.data_at(SNAP_HEAD, &o), Ok(b("0--3456789!")));
    assert!(load_object(&x.store, &o).unwrap().info.user_version > before);
    x.under(context(5, &[5, 1]), &o, &[OsdOp::write_full(b("now"))]);
    assert_eq!(x.under(context(5, &[5, 1]), &o, &[OsdOp::rollback(3)]).result, 0);
    assert_eq!(
        (x.data_at(SNAP_HEAD, &o), x.data_at(5, &o)),
        (Err(-errno::ENOENT), Ok(b("0--3456789!")))
    );
    // From a whiteout, too.
    x.under(context(5, &[5, 1]), &o, &[OsdOp::rollback(1)]);
    assert_eq!(x.data_at(SNAP_HEAD, &o), Ok(b("0123456789")));
    x.pool.erasure = true;
    assert_eq!(
        x.under(now.clone(), &o, &[OsdOp::stat(), OsdOp::rollback(1)]).result,
        -errno::EOPNOTSUPP
    );
}

#[test]
fn a_listing_at_a_snapshot_names_what_it_shows() {
    let mut x = Bench::new();
    x.run(&object("old"), &[OsdOp::create(false)]);
    x.run(&object("gone"), &[OsdOp::create(false)]);
    x.under(context(1, &[1]), &object("gone"), &[OsdOp::delete()]);
    x.under(context(1, &[1]), &object("new"), &[OsdOp::create(false)]);
    let names = |x: &mut Bench, snap: u64| {
        x.snapid = snap;
        let mut ls = OsdOp { indata: to_vec(&HObject::min()).into(), ..OsdOp::new(op::PGNLS) };
        ls.union[..8].copy_from_slice(&100u64.to_le_bytes());
        let o = object("");
        let got = execute_pg(&x.context(&o), &x.store, &[ls]).unwrap();
        let mut d = spirula_encoding::Decoder::new(&got.ops[0].op.indata);
        let (_, mut all) = d
            .versioned("pg_nls_response_t", 1, |d, _| {
                let next: HObject = d.get()?;
                Ok((
                    next,
                    d.list(
                        12,
                        |d| Ok((d.get::<Bytes>()?, d.get::<Bytes>()?, d.get::<Bytes>()?).1),
                    )?,
                ))
            })
            .unwrap();
        all.sort();
        all.into_iter()
            .map(|n| String::from_utf8(n.to_vec()).unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(names(&mut x, SNAP_HEAD), "gone new old", "a whiteout's name, too");
    assert_eq!(names(&mut x, 1), "gone old");
    assert_eq!(names(&mut x, 2), "new old");
}

/// What a user sees of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    data: Vec<u8>,
    attr: Option<Bytes>,
    omap: Option<Bytes>,
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Bytes),
    WriteFull(Bytes),
    Truncate(u64),
    Zero(u64, u64),
    Attr(Bytes),
    Omap(Bytes),
    Delete,
    Rollback(usize),
    /// The cluster takes a snapshot.
    Snap,
    /// It removes one, and trims the object.
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Vec<(Step, usize)>>> {
    let at = || 0..40u64;
    let data = || proptest::collection::vec(1..9u8, 0..20).prop_map(Bytes::from);
    let step = prop_oneof![
        5 => (at(), data()).prop_map(|(a, d)| Step::Write(a, d)),
        1 => data().prop_map(Step::WriteFull),
        2 => at().prop_map(Step::Truncate),
        2 => (at(), at()).prop_map(|(a, n)| Step::Zero(a, n)),
        1 => data().prop_map(Step::Attr),
        1 => data().prop_map(Step::Omap),
        2 => Just(Step::Delete),
        3 => (0..6usize).prop_map(Step::Rollback),
        4 => Just(Step::Snap),
        2 => (0..6usize).prop_map(Step::Remove),
    ];
    // How many of the newest snapshots the client has not heard of: mostly none.
    let behind = prop_oneof![6 => Just(0usize), 1 => 1..3usize];
    proptest::collection::vec(proptest::collection::vec((step, behind), 1..3), 1..24)
}

/// An object with its past.
#[derive(Clone, Debug, Default)]
struct Past {
    head: Option<Seen>,
    seq: u64,
    was: BTreeMap<u64, Option<Seen>>,
}

impl Past {
    fn at(&self, snap: u64) -> Option<&Seen> {
        if snap > self.seq {
            self.head.as_ref()
        } else {
            self.was.get(&snap).and_then(Option::as_ref)
        }
    }

    fn apply(&mut self, step: &Step, snaps: &[u64]) -> Option<OsdOp> {
        let base = self.clone();
        let head = &mut self.head;
        Some(match step {
            Step::Write(at, d) => {
                let data = &mut head.get_or_insert_default().data;
                let end = *at as usize + d.len();
                data.resize(data.len().max(end), 0);
                data[*at as usize..end].copy_from_slice(d);
                OsdOp::write(*at, d.clone())
            }
            Step::WriteFull(d) => {
                head.get_or_insert_default().data = d.to_vec();
                OsdOp::write_full(d.clone())
            }
            Step::Truncate(n) => {
                head.as_mut()?.data.resize(*n as usize, 0);
                OsdOp::truncate(*n)
            }
            Step::Zero(at, n) => {
                let data = &mut head.as_mut()?.data;
                let (from, end) = (*at as usize, (at + n) as usize);
                if *n > 0 && from < data.len() {
                    if end >= data.len() {
                        data.truncate(from);
                    } else {
                        data[from..end].fill(0);
                    }
                }
                OsdOp::zero(*at, *n)
            }
            Step::Attr(v) => {
                head.get_or_insert_default().attr = Some(v.clone());
                xattr_op(op::SETXATTR, b"a", v)
            }
            Step::Omap(v) => {
                head.get_or_insert_default().omap = Some(v.clone());
                encoded(op::OMAP_SET_VALS, &vec![(b("k"), v.clone())])
            }
            Step::Delete => {
                head.take()?;
                OsdOp::delete()
            }
            Step::Rollback(i) => {
                let snap = *snaps.get(*i)?;
                if snap <= base.seq {
                    *head = base.at(snap).cloned();
                }
                OsdOp::rollback(snap)
            }
            Step::Snap | Step::Remove(_) => return None,
        })
    }
}

/// What is stored agrees with itself; objects, clones, whiteouts and bytes that are to be counted.
fn audit(x: &Bench, o: &HObject) -> [i64; 4] {
    let state = load_object(&x.store, o).unwrap();
    let clones: Vec<HObject> =
        x.store.objects.keys().filter(|c| c.snap != SNAP_HEAD).cloned().collect();
    assert_eq!(
        clones.iter().map(|c| c.snap).collect::<Vec<_>>(),
        state.snapset.clones.iter().map(|c| c.id).collect::<Vec<_>>()
    );
    let newer = clones.iter().skip(1).chain([o]);
    let mut bytes = state.info.size as i64;
    for ((c, next), told) in clones.iter().zip(newer).zip(&state.snapset.clones) {
        let (a, b) = (&x.store.objects[c], &x.store.objects[next]);
        assert_eq!(a.data.len() as u64, told.size);
        for (at, n) in &told.overlap {
            let range = *at as usize..(at + n) as usize;
            assert_eq!(a.data[range.clone()], b.data[range], "what is said to be shared is alike");
        }
        bytes += told.size as i64 - told.overlap.iter().map(|(_, n)| *n as i64).sum::<i64>();
        assert!(!a.attrs.contains_key(SNAPSET_ATTR), "a history is its head's");
    }
    let whiteout = i64::from(state.exists && !state.live());
    [x.store.objects.len() as i64, clones.len() as i64, whiteout, bytes]
}

/// Each snapshot shows what the object was.
fn all_show(x: &mut Bench, o: &HObject, snaps: &[u64], past: &Past) -> Result<(), TestCaseError> {
    for snap in snaps.iter().copied().chain([SNAP_HEAD]) {
        let expected = if snap == SNAP_HEAD { past.head.as_ref() } else { past.at(snap) };
        let attr = xattr_op(op::GETXATTR, b"a", b"").with_flags(op::FLAG_FAILOK);
        let keys = encoded(op::OMAP_GET_VALS_BY_KEYS, &vec![b("k")]);
        let got = x.at(snap, o, &[OsdOp::read(0, 0), attr, keys]);
        let Some(expected) = expected else {
            prop_assert_eq!(got.result, -errno::ENOENT, "at {}", snap);
            continue;
        };
        prop_assert_eq!(&got.ops[0].op.indata[..], &expected.data[..], "at {}", snap);
        prop_assert_eq!(&got.ops[1].op.indata[..], expected.attr.as_deref().unwrap_or_default());
        let all: BTreeMap<Bytes, Bytes> =
            expected.omap.iter().map(|v| (b("k"), v.clone())).collect();
        prop_assert_eq!(&got.ops[2].op.indata[..], &to_vec(&all)[..]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn prop_every_snapshot_shows_what_the_object_was(requests in steps()) {
        let mut x = Bench::new();
        let o = object("it");
        let (mut past, mut snaps, mut newest) = (Past::default(), Vec::<u64>::new(), 0);
        let mut counted = [0; 4];
        for request in requests {
            if matches!(request[0].0, Step::Snap) {
                newest += 2;
                snaps.insert(0, newest);
                continue;
            }
            if let Step::Remove(i) = request[0].0 {
                if i < snaps.len() {
                    x.removed.insert(snaps.remove(i), 1);
                }
                for s in x.trim(&o) {
                    counted = std::array::from_fn(|i| counted[i] + s[i]);
                }
                if !x.store.objects.contains_key(&o) {
                    (past.seq, past.was) = (0, BTreeMap::new());
                }
                prop_assert_eq!(audit(&x, &o), counted);
                all_show(&mut x, &o, &snaps, &past)?;
                continue;
            }
            let known: Vec<u64> = snaps.iter().copied().skip(request[0].1).collect();
            let told = context(known.first().copied().unwrap_or(0), &known);
            let before = past.clone();
            let ops: Vec<OsdOp> = request.iter().filter_map(|(s, _)| past.apply(s, &snaps)).collect();
            if ops.is_empty() {
                continue;
            }
            let done = x.under(told.clone(), &o, &ops);
            prop_assert_eq!(done.result, 0, "{:?}", ops);
            match &done.effect {
                Effect::Apply(plan) => {
                    for s in plan.changes.iter().map(|c| &c.stats) {
                        let add = [s.objects, s.clones, s.whiteouts, s.bytes];
                        counted = std::array::from_fn(|i| counted[i] + add[i]);
                    }
                    for s in told.snaps.iter().filter(|s| **s > before.seq) {
                        past.was.insert(*s, before.head.clone());
                    }
                    past.seq = before.seq.max(told.seq);
                }
                _ => prop_assert_eq!(&past.head, &before.head, "no change"),
            }
            if !x.store.objects.contains_key(&o) {
                (past.seq, past.was) = (0, BTreeMap::new());
            }
            prop_assert_eq!(audit(&x, &o), counted);
            all_show(&mut x, &o, &snaps, &past)?;
        }
    }
}

/// librbd's deep copy (`rbd migration`) asks so whether an object, also a deleted one with clones,
/// was written since. As a real Ceph 16.2.15 answers.
#[test]
fn a_deleted_object_with_clones_has_its_newest_snapshot() {
    let mut x = Bench::new();
    let o = object("o");
    x.run(&o, &[OsdOp::write_full(b("0123456789"))]);
    x.under(context(3, &[3]), &o, &[OsdOp::delete()]);
    assert_eq!(x.store.objects.len(), 2, "a clone and a whiteout");
    let mut asks = |seq: u64, how: u8| {
        let input = [&seq.to_le_bytes()[..], &[how]].concat();
        x.under(context(3, &[3]), &o, &[OsdOp::call("rbd", "assert_snapc_seq", &input)]).result
    };
    let answers = [asks(3, 0), asks(3, 1), asks(4, 0), asks(4, 1), asks(2, 0), asks(2, 1)];
    assert_eq!(answers, [-errno::ERANGE, 0, 0, -errno::ERANGE, -errno::ERANGE, 0]);
}

/// Ceph leaves it; and so do we as soon as the snapshot is purged.
#[test]
fn a_head_that_was_not_changed_since_is_not_deleted_by_a_rollback_to_a_removed_snapshot() {
    let mut x = Bench::new();
    let o = object("o");
    x.run(&o, &[OsdOp::write_full(b("precious"))]);
    x.removed = SnapIntervals::one(3);
    assert_eq!(x.run(&o, &[OsdOp::rollback(3)]).result, 0);
    assert_eq!(x.data_at(SNAP_HEAD, &o), Ok(b("precious")));
}
