//! Single rules.

use super::*;
use spirula_types::ObjectLocator;

fn errno_of(o: &Outcome) -> i32 {
    -o.result
}

#[test]
fn user_versions_follow_the_log_and_never_fall() {
    let mut x = Bench::new();
    let (a, c) = (object("a"), object("c"));
    assert_eq!(x.run(&a, &[OsdOp::write_full(b("1"))]).user_version, 1);
    // A failed write takes a log entry, so the next version jumps.
    assert_eq!(errno_of(&x.run(&a, &[OsdOp::create(true)])), errno::EEXIST);
    assert_eq!(x.run(&c, &[OsdOp::write_full(b("1"))]).user_version, 3);
    assert_eq!(x.run(&a, &[OsdOp::write_full(b("2"))]).user_version, 4);
    assert_eq!(x.run(&a, &[OsdOp::read(0, 0)]).user_version, 4);
    // A write without net effect is logged, but leaves the version.
    let noop = x.run(&a, &[OsdOp::zero(100, 10)]);
    assert!(matches!(noop.effect, Effect::LogOnly));
    assert_eq!((noop.result, noop.user_version), (0, 4));
    let gone = x.run(&a, &[OsdOp::delete()]);
    assert_eq!(gone.user_version, 6);
    assert_eq!(x.run(&a, &[OsdOp::create(true)]).user_version, 7);
    // On ENOENT the reply tells the floor of later versions.
    assert_eq!(x.run(&object("none"), &[OsdOp::delete()]).user_version, 7);
}

#[test]
fn mtime_is_the_clients_and_zero_keeps_the_old_one() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::create(false)]);
    let before = load_object(&x.store, &o).unwrap();
    let Effect::Apply(m) = x.dry(&o, &[OsdOp::append(b("x"))]).unwrap().effect else {
        panic!("a change")
    };
    let stamp = Stamp {
        version: EVersion::new(2, 9),
        last_user_version: 1,
        reqid: ReqId { tid: 5, ..ReqId::default() },
        mtime: UTime::ZERO,
        now: UTime { sec: 5, nsec: 0 },
        result: 0,
        returns: Vec::new(),
    };
    let done = m.stamp(stamp, &o, 0).remove(0);
    assert_eq!(
        (done.state.info.mtime, done.state.info.local_mtime),
        (before.info.mtime, before.info.local_mtime)
    );
    assert_eq!(
        (done.state.info.version, done.state.info.prior_version),
        (EVersion::new(2, 9), before.info.version)
    );
    assert_eq!((done.entry.prior, done.entry.reqid.tid), (before.info.version, 5));
    assert_eq!(done.state.info.last_reqid.tid, 5);
}

#[test]
fn sizes_and_names_beyond_the_limits_fail_as_in_ceph() {
    let mut x = Bench::new();
    let o = object("a");
    let max = x.limits.max_object_size;
    for (ops, e) in [
        (OsdOp::write(max - 1, b("ab")), errno::EFBIG),
        (OsdOp::write(max, Bytes::new()), errno::EFBIG),
        (OsdOp::write(u64::MAX, b("ab")), errno::EFBIG),
        (OsdOp::writesame(0, max + 2, b("ab")), errno::EFBIG),
        (OsdOp::writesame(0, 3, b("ab")), errno::EINVAL),
        (OsdOp { indata: b("x"), ..OsdOp::write(0, b("ab")) }, errno::EINVAL),
        (xattr_op(op::SETXATTR, &[b'n'; 101], b""), errno::ENAMETOOLONG),
        (xattr_op(op::SETXATTR, b"", b"x"), errno::EINVAL),
        (OsdOp::new(0x2fff), errno::EOPNOTSUPP),
        (OsdOp::new(op::PGNLS), errno::EINVAL),
    ] {
        assert_eq!(errno_of(&x.run(&o, std::slice::from_ref(&ops))), e, "{ops}");
    }
    assert!(x.store.objects.is_empty());
    assert_eq!(x.run(&o, &[xattr_op(op::SETXATTR, &[b'n'; 100], b"")]).result, 0);
    assert_eq!(x.run(&o, &[OsdOp::write(max - 1, b("a"))]).result, 0);
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::append(b("a"))])), errno::EFBIG);
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::truncate(max)])), errno::EFBIG);
    let big = Bytes::from(vec![0; 90 << 20]);
    let e = x.run(&o, &[OsdOp::write(0, big), OsdOp::append(b("a"))]);
    assert_eq!(errno_of(&e), errno::EMSGSIZE);
    for (name, e) in [("n".repeat(2049), errno::ENAMETOOLONG), (String::new(), errno::EINVAL)] {
        assert_eq!(errno_of(&x.run(&object(&name), &[OsdOp::create(false)])), e);
    }
    let far = HObject::head(1, Bytes::from(vec![b'n'; 257]), Bytes::new(), b("x"));
    assert_eq!(errno_of(&x.run(&far, &[OsdOp::create(false)])), errno::ENAMETOOLONG);
    assert_eq!(errno_of(&x.run(&o, &[])), errno::EINVAL);
}

#[test]
fn what_a_members_store_would_refuse_is_answered_before_it_is_logged_as_a_change() {
    let mut x = Bench::new();
    let o = object("a");
    (x.limits.max_attrs, x.limits.max_omap_key, x.limits.max_change) = (276, 10, 1000);
    let refused = |x: &mut Bench, ops: &[OsdOp], e: i32| {
        let done = x.run(&o, ops);
        assert_eq!(errno_of(&done), e);
        assert!(matches!(done.effect, Effect::LogOnly));
    };
    // Names as stored begin with a byte of their own; each attribute counts 96 bytes more.
    assert_eq!(x.run(&o, &[xattr_op(op::SETXATTR, b"a", &[1; 40])]).result, 0);
    let before = x.store.objects.clone();
    refused(&mut x, &[xattr_op(op::SETXATTR, b"b", &[1; 60])], errno::E2BIG);
    refused(
        &mut x,
        &[xattr_op(op::SETXATTR, b"b", b"x"), xattr_op(op::SETXATTR, b"c", &[1; 50])],
        errno::E2BIG,
    );
    refused(&mut x, &[OsdOp::writesame(0, 1000, b("ab"))], errno::E2BIG);
    let pairs = Bytes::from(to_vec(&vec![(Bytes::from(vec![b'k'; 11]), b("v"))]));
    refused(
        &mut x,
        &[OsdOp { indata: pairs, ..OsdOp::new(op::OMAP_SET_VALS) }],
        errno::ENAMETOOLONG,
    );
    // Empty ones count as well, before they are looked at: there need not be as many as the list
    // says.
    for op in [op::OMAP_SET_VALS, op::OMAP_RM_KEYS] {
        refused(
            &mut x,
            &[OsdOp { indata: Bytes::from(to_vec(&11u32)), ..OsdOp::new(op) }],
            errno::E2BIG,
        );
    }
    assert!(x.store.objects == before, "a refused request has an effect");
    // One that takes its place is taken.
    assert_eq!(x.run(&o, &[xattr_op(op::SETXATTR, b"a", b"")]).result, 0);
    assert_eq!(x.run(&o, &[xattr_op(op::SETXATTR, b"b", &[1; 20])]).result, 0);
}

#[test]
fn full_pool_parks_growing_writes_or_refuses_them_and_lets_deletes_pass() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(b("12"))]);
    let (grow, keep) = ([OsdOp::append(b("3"))], [OsdOp::write(0, b("xy"))]);
    for (fullness, e) in [(Fullness::Full, errno::ENOSPC), (Fullness::Quota, errno::EDQUOT)] {
        x.pool.fullness = fullness;
        x.flags = 0;
        assert_eq!(x.dry(&o, &grow).unwrap_err(), Pause::Full);
        assert_eq!(x.run(&o, &keep).result, 0);
        x.flags = flag::FULL_TRY;
        let refused = x.run(&o, &grow);
        assert_eq!(errno_of(&refused), e);
        assert!(matches!(refused.effect, Effect::None));
    }
    x.flags = flag::FULL_FORCE;
    assert_eq!(x.run(&o, &grow).result, 0);
    x.flags = 0;
    assert_eq!(x.run(&o, &[OsdOp::delete()]).result, 0);
}

#[test]
fn outputs_of_a_write_come_back_only_if_asked_for_and_short() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(Bytes::from(vec![7; 65]))]);
    let ops = |n| [OsdOp::read(0, n), xattr_op(op::SETXATTR, b"a", b"1")];
    assert!(x.run(&o, &ops(4)).ops[0].op.indata.is_empty());
    x.flags = flag::RETURNVEC;
    assert_eq!(x.run(&o, &ops(64)).ops[0].op.indata.len(), 64);
    let long = x.run(&o, &ops(65));
    assert_eq!((errno_of(&long), long.ops[0].rval), (errno::EOVERFLOW, -errno::EOVERFLOW));
    assert!(long.ops[0].op.indata.is_empty());
    // All of it is remembered for resends, so all of it has a bound.
    x.limits.max_returns = 8 * 3 + 10;
    let many = |n| [OsdOp::read(0, n), xattr_op(op::SETXATTR, b"a", b"1"), OsdOp::read(0, 5)];
    let told = x.run(&o, &many(5));
    let returns = told.returns(x.flags, &x.limits);
    let gave: Vec<_> = told.ops.iter().map(|r| (r.rval, r.op.indata.clone())).collect();
    assert_eq!(returns.into_iter().map(|r| (r.rval, r.data)).collect::<Vec<_>>(), gave);
    assert_eq!(gave[0], (0, b("\x07\x07\x07\x07\x07")));
    assert!(told.returns(0, &x.limits).is_empty(), "remembered only for who asks");
    assert_eq!(errno_of(&x.run(&o, &many(6))), errno::EOVERFLOW);
}

#[test]
fn truncations_of_the_file_system_apply_in_their_order_whatever_order_they_come_in() {
    let mut x = Bench::new();
    let o = object("a");
    let with = |mut op: OsdOp, size: u64, seq: u32| {
        op.union[16..24].copy_from_slice(&size.to_le_bytes());
        op.union[24..28].copy_from_slice(&seq.to_le_bytes());
        op
    };
    x.run(&o, &[OsdOp::write_full(b("0123456789"))]);
    // A read that knows of a truncation to come sees its effect.
    let got = x.run(&o, &[with(OsdOp::read(0, 100), 4, 2)]);
    assert_eq!((&got.ops[0].op.indata[..], got.ops[0].op.extent().length), (&b"0123"[..], 4));
    // So does a write that comes before it.
    x.run(&o, &[with(OsdOp::write(1, b("x")), 4, 2)]);
    assert_eq!(x.store.objects[&o].data, b"0x23");
    // The truncation itself is then old news.
    assert!(matches!(x.run(&o, &[with(OsdOp::new(op::TRIMTRUNC), 4, 2)]).effect, Effect::LogOnly));
    x.run(&o, &[with(OsdOp::new(op::TRIMTRUNC), 3, 3)]);
    assert_eq!(x.store.objects[&o].data, b"0x2");
    // A write from before the truncation does not bring back what was cut off.
    x.run(&o, &[with(OsdOp::write(2, b("abc")), 4, 2)]);
    assert_eq!(x.store.objects[&o].data, b"0xa");
    assert_eq!(errno_of(&x.run(&o, &[with(OsdOp::truncate(1), 2, 9)])), errno::EINVAL);
    assert_eq!(errno_of(&x.run(&o, &[with(OsdOp::write(0, b("x")), 1 << 60, 9)])), errno::EFBIG);
    let huge = with(OsdOp::read(0, 0), u64::MAX, 1);
    assert_eq!(x.run(&o, &[huge]).ops[0].op.indata, "0xa");
}

#[test]
fn checksums_are_seeded_and_chunked() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(b("123456789abc"))]);
    let sum = |offset: u64, length: u64, chunk: u32, kind: u8, seed: &[u8]| {
        let mut op = OsdOp { indata: Bytes::copy_from_slice(seed), ..OsdOp::new(op::CHECKSUM) };
        op.union[0..8].copy_from_slice(&offset.to_le_bytes());
        op.union[8..16].copy_from_slice(&length.to_le_bytes());
        op.union[16..20].copy_from_slice(&chunk.to_le_bytes());
        op.union[20] = kind;
        op
    };
    let crc = |d: &[u8]| spirula_encoding::crc::crc32c(u32::MAX, d);
    let got = x.run(&o, &[sum(0, 12, 4, 2, &[0xff; 4])]);
    assert_eq!(got.ops[0].op.indata, to_vec(&vec![crc(b"1234"), crc(b"5678"), crc(b"9abc")]));
    let got = x.run(&o, &[sum(0, 0, 0, 2, &[0xff; 4])]);
    assert_eq!(got.ops[0].op.indata, to_vec(&vec![crc(b"123456789abc")]));
    assert_eq!(x.run(&o, &[sum(0, 0, 0, 1, &[0; 8])]).ops[0].op.indata.len(), 12);
    assert_eq!(x.run(&o, &[sum(50, 4, 0, 0, &[0; 4])]).ops[0].op.indata.len(), 0);
    for bad in [
        sum(0, 12, 5, 2, &[0; 4]),
        sum(0, 0, 4, 2, &[0; 4]),
        sum(0, 0, 0, 1, &[0; 4]),
        sum(0, 0, 0, 9, &[0; 8]),
    ] {
        assert_eq!(errno_of(&x.run(&o, &[bad])), errno::EINVAL);
    }
}

#[test]
fn versions_can_be_asserted() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::create(false)]);
    let v = x.run(&o, &[OsdOp::append(b("x"))]).user_version;
    for (ask, e) in [(v, 0), (v - 1, errno::ERANGE), (v + 1, errno::EOVERFLOW), (0, errno::EINVAL)]
    {
        assert_eq!(errno_of(&x.run(&o, &[OsdOp::assert_ver(ask), OsdOp::read(0, 0)])), e);
    }
}

#[test]
fn erasure_coded_pools_have_no_omap_and_append_in_stripes() {
    let mut x = Bench::new();
    x.pool = PoolRules { erasure: true, append_alignment: Some(4), fullness: Fullness::No };
    let o = object("a");
    let pair = vec![(b("k"), b("v"))];
    for bad in [
        encoded(op::OMAP_SET_VALS, &pair),
        OsdOp::new(op::OMAP_CLEAR),
        OsdOp::write(4, b("abcd")),
        OsdOp::new(op::SYNC_READ),
        OsdOp::truncate(0),
    ] {
        assert_eq!(errno_of(&x.run(&o, &[OsdOp::create(false), bad])), errno::EOPNOTSUPP);
    }
    for d in ["abcd", "ef"] {
        assert_eq!(x.run(&o, &[OsdOp::append(b(d))]).result, 0);
    }
    // The last stripe was short: no more can be appended.
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::append(b("g"))])), errno::EOPNOTSUPP);
    assert_eq!(x.run(&o, &[OsdOp::write_full(b("new"))]).result, 0);
    assert_eq!(x.store.objects[&o].data, b"new");
}

#[test]
fn what_is_not_in_memory_pauses_without_effect_and_the_second_run_succeeds() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(b("abc"))]);
    let state = load_object(&x.store, &o).unwrap();
    x.store.not_ready.set(1);
    let ops = [OsdOp::append(b("d")), OsdOp::read(0, 0)];
    let first = execute(&x.context(&o), &state, &x.store, &ops);
    assert_eq!(first.unwrap_err(), Pause::Prefetch(Prefetch(vec![Want::Attrs(o.clone())])));
    let second = execute(&x.context(&o), &state, &x.store, &ops).unwrap();
    assert!(matches!(second.effect, Effect::Apply(_)));
}

#[test]
fn stored_data_shorter_than_the_size_is_an_error_not_zeros() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(b("abc"))]);
    x.store.objects.get_mut(&o).unwrap().data.pop();
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::read(0, 0)])), errno::EIO);
}

#[test]
fn copy_asks_for_its_source_and_takes_all_of_it() {
    let mut x = Bench::new();
    let (from, to) = (object("from"), object("to"));
    let pair = vec![(b("k"), b("v"))];
    x.run(
        &from,
        &[
            OsdOp::write_full(b("abc")),
            xattr_op(op::SETXATTR, b"a", b"1"),
            encoded(op::OMAP_SET_VALS, &pair),
        ],
    );
    x.run(&to, &[OsdOp::write_full(b("something longer")), xattr_op(op::SETXATTR, b"old", b"1")]);
    let locator = ObjectLocator { pool: 1, key: Bytes::new(), namespace: Bytes::new(), hash: -1 };
    let mut copy = encoded(op::COPY_FROM, &(b("from"), locator));
    copy.union[..8].copy_from_slice(&SNAP_HEAD.to_le_bytes());
    let Err(Pause::Fetch(source)) = x.dry(&to, &[copy.clone()]) else { panic!("a fetch") };
    assert_eq!(source, Source { object: from.clone(), version: 0 });
    x.fetched = Some(Fetched::read(&x.store, &source).unwrap());
    let done = x.run(&to, &[copy.clone()]);
    assert_eq!((done.result, done.user_version), (0, 1));
    let strip =
        |s: &Stored| Stored { attrs: s.attrs.clone().into_iter().skip(1).collect(), ..s.clone() };
    assert_eq!(strip(&x.store.objects[&to]), strip(&x.store.objects[&from]));
    let wrong = Source { object: from.clone(), version: 9 };
    assert_eq!(Fetched::read(&x.store, &wrong).unwrap(), Fetched::Failed(errno::EOVERFLOW));
    x.fetched = Some(Fetched::Failed(errno::ENOENT));
    assert_eq!(errno_of(&x.run(&to, &[copy.clone()])), errno::ENOENT);
    assert_eq!(errno_of(&x.run(&from, &[copy])), errno::EINVAL);
}

#[test]
fn listings_filter_by_namespace_but_count_what_they_look_at() {
    let mut x = Bench::new();
    let name = |ns: &str, n: u32| HObject::head(1, b(ns), Bytes::new(), b(&n.to_string()));
    for n in 0..40 {
        x.store.objects.insert(name(if n % 4 == 0 { "ns" } else { "" }, n), Stored::default());
    }
    let any = HObject { pool: 1, namespace: b("ns"), ..HObject::min() };
    let (mut at, mut found, mut calls) = (HObject::min(), 0, 0);
    loop {
        let mut list = encoded(op::PGNLS, &at);
        list.union[0] = 10;
        let got = execute_pg(&x.context(&any), &x.store, &[list]).unwrap();
        let page = &got.ops[0].op.indata;
        let (next, n) = spirula_encoding::Decoder::new(page)
            .versioned("page", 1, |d, _| Ok((d.get::<HObject>()?, d.u32()?)))
            .unwrap();
        assert!(n <= 10);
        (at, found, calls) = (next, found + n, calls + 1);
        if got.result == 1 {
            break;
        }
    }
    assert_eq!((found, calls), (10, 4));
    // Cursors of another PG are refused.
    let pg = PgId::new(1, 1);
    let ctx = OpContext { pg, pg_num: 4, ..x.context(&any) };
    for bad in [HObject::pool_start(1, 0), pg_end(pg, 4), HObject::pool_start(2, 0)] {
        let got = execute_pg(&ctx, &x.store, &[encoded(op::PGNLS, &bad)]).unwrap();
        assert_eq!(errno_of(&got), errno::EINVAL, "{bad}");
    }
    let filter = execute_pg(&ctx, &x.store, &[OsdOp::new(op::PGNLS_FILTER)]).unwrap();
    assert_eq!(errno_of(&filter), errno::EOPNOTSUPP);
}

#[test]
fn vectors_are_classified_by_their_ops() {
    assert!(is_write(&[OsdOp::stat(), OsdOp::delete()]));
    assert!(!is_write(&[OsdOp::stat(), OsdOp::read(0, 1)]));
    let mut ping = OsdOp::new(op::WATCH);
    ping.union[16] = op::watch::PING;
    assert_eq!(classify(&[ping]), OpClass { ordered: true, watch: true, ..OpClass::default() });
    assert!(classify(&[OsdOp::new(op::PGNLS)]).pg);
}

#[test]
fn snapshots_older_than_the_head_have_no_clone() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::create(false)]);
    x.snapid = 5;
    assert_eq!(x.run(&o, &[OsdOp::stat()]).result, 0);
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::delete()])), errno::EINVAL);
    x.snapid = SNAP_DIR;
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::stat()])), errno::EINVAL);
    assert_eq!(x.run(&o, &[OsdOp::new(op::LIST_SNAPS)]).result, 0);
}

/// As a 16.2.15 answers in a pool that is no cache tier, for an object without a manifest.
#[test]
fn nothing_is_flushed_from_a_pool_that_is_no_cache_and_what_is_here_need_not_be_promoted() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::create(false)]);
    let before = x.run(&o, &[OsdOp::stat()]).user_version;
    for cache in
        [op::CACHE_FLUSH, op::CACHE_TRY_FLUSH, op::CACHE_EVICT, op::CACHE_PIN, op::CACHE_UNPIN]
    {
        assert_eq!(
            errno_of(&x.run(&o, &[OsdOp::new(cache)])),
            errno::EINVAL,
            "{}",
            op::name(cache)
        );
        // One that may not make the object finds none before it is looked at.
        let none = if OsdOp::new(cache).is_write() { errno::EINVAL } else { errno::ENOENT };
        assert_eq!(
            errno_of(&x.run(&object("none"), &[OsdOp::new(cache)])),
            none,
            "{}",
            op::name(cache)
        );
    }
    assert_eq!(x.run(&o, &[OsdOp::new(op::TIER_PROMOTE)]).result, 0);
    assert_eq!(x.run(&o, &[OsdOp::stat()]).user_version, before, "nothing was changed");
    assert_eq!(errno_of(&x.run(&object("none"), &[OsdOp::new(op::TIER_PROMOTE)])), errno::ENOENT);
}

#[test]
fn calls_name_a_class_and_a_method_that_there_is() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::create(false)]);
    let hello = || OsdOp::call("hello", "say_hello", b"");
    assert_eq!(&x.run(&o, &[hello()]).ops[0].op.indata[..], b"Hello, world!");
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::call("nosuch", "say_hello", b"")])), errno::EOPNOTSUPP);
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::call("hello", "nosuch", b"")])), errno::EOPNOTSUPP);
    // Ceph looks at all ops before the first one runs.
    assert_eq!(
        errno_of(&x.run(&o, &[OsdOp::delete(), OsdOp::call("nosuch", "x", b"")])),
        errno::EOPNOTSUPP
    );
    let mut long = hello();
    long.union[1] += 1;
    assert_eq!(errno_of(&x.run(&o, &[long])), errno::EINVAL);
    assert_eq!(errno_of(&x.run(&object("none"), &[hello()])), errno::ENOENT);
}

#[test]
fn a_call_is_classified_by_its_registration() {
    let (reads, writes) = (OsdOp::call("lock", "get_info", b""), OsdOp::call("lock", "lock", b""));
    assert!(!is_write(&[reads.clone(), OsdOp::call("nosuch", "lock", b"")]));
    assert!(is_write(&[reads, writes]));
}

#[test]
fn a_call_that_fails_takes_the_vectors_changes_back_and_keeps_what_it_says() {
    let mut x = Bench::new();
    let o = object("a");
    let failed =
        x.run(&o, &[OsdOp::create(false), OsdOp::call("hello", "write_return_data", b"too much")]);
    assert_eq!(errno_of(&failed), errno::EINVAL);
    assert!(matches!(failed.effect, Effect::LogOnly));
    assert_eq!(&failed.ops[1].op.indata[..], b"too much input data!");
    assert!(x.store.objects.is_empty());
}

#[test]
fn a_writing_call_gives_its_output_and_result_only_with_returnvec_and_they_are_remembered() {
    let mut x = Bench::new();
    let o = object("a");
    let call = || [OsdOp::call("hello", "write_return_data", b"")];
    let plain = x.run(&o, &call());
    assert_eq!((plain.result, plain.ops[0].op.indata.len()), (0, 0));
    x.flags = flag::RETURNVEC;
    let full = x.run(&o, &call());
    assert_eq!(
        (full.result, full.ops[0].rval, &full.ops[0].op.indata[..]),
        (42, 42, &b"you might see this"[..])
    );
    let returns = full.returns(x.flags, &x.limits);
    assert_eq!((returns[0].rval, &returns[0].data[..]), (42, &b"you might see this"[..]));
    let much = x.run(&o, &[OsdOp::call("hello", "write_too_much_return_data", b"")]);
    assert_eq!(errno_of(&much), errno::EOVERFLOW);
}

#[test]
fn a_call_sees_what_the_vector_did_and_is_seen_by_what_follows() {
    let mut x = Bench::new();
    let o = object("a");
    let shout = OsdOp::call("hello", "turn_it_to_11", b"");
    let said = x.run(&o, &[OsdOp::write_full(b("quiet")), shout, OsdOp::truncate(3)]);
    assert_eq!((said.result, &x.store.objects[&o].data[..]), (0, &b"QUI"[..]));
}

#[test]
fn a_method_that_does_what_it_is_not_registered_for_fails() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(b("kept"))]);
    for method in ["bad_reader", "bad_writer"] {
        assert_eq!(
            errno_of(&x.run(&o, &[OsdOp::call("hello", method, b"lost")])),
            errno::EIO,
            "{method}"
        );
        // Whoever lets the op fail gets no more of it.
        let forgiven =
            x.run(&o, &[OsdOp::call("hello", method, b"lost").with_flags(op::FLAG_FAILOK)]);
        assert!(forgiven.ops[0].op.indata.is_empty(), "{method}: {forgiven:?}");
    }
    assert_eq!(&x.store.objects[&o].data[..], b"kept");
}

/// Such an object would be fetched from another copy, over and over.
#[test]
fn an_object_is_not_unreadable_because_a_method_says_eio() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::setxattr(b"lock.l", b"spoilt")]);
    let spoilt =
        x.run(&o, &[OsdOp::call("lock", "get_info", &[1, 1, 5, 0, 0, 0, 1, 0, 0, 0, b'l'])]);
    assert_eq!((errno_of(&spoilt), spoilt.unreadable), (errno::EIO, false));
    assert!(!x.run(&o, &[OsdOp::call("hello", "bad_writer", b"")]).unreadable);
    let state = load_object(&x.store, &o).unwrap();
    x.store.bad.set(true);
    let bad =
        execute(&x.context(&o), &state, &x.store, &[OsdOp::call("hello", "replay", b"")]).unwrap();
    assert_eq!(bad.result, 0, "an object without data has nothing that could be bad");
    for ops in [[OsdOp::getxattr(b"x")], [OsdOp::call("lock", "list_locks", b"")]] {
        let bad = execute(&x.context(&o), &state, &x.store, &ops).unwrap();
        assert_eq!((errno_of(&bad), bad.unreadable), (errno::EIO, true));
    }
}

#[test]
fn erasure_coded_pools_have_no_omap_for_classes_and_no_reads() {
    let mut x = Bench::new();
    x.pool.erasure = true;
    let o = object("a");
    let number = [&[1, 0, 0, 0, b'k'][..], &[1, 0, 0, 0, b'2']].concat();
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::call("numops", "add", &number)])), errno::EOPNOTSUPP);
    assert_eq!(x.run(&o, &[OsdOp::call("hello", "record_hello", b"")]).result, 0);
    assert_eq!(errno_of(&x.run(&o, &[OsdOp::call("hello", "replay", b"")])), errno::EOPNOTSUPP);
}

#[test]
fn a_call_that_grows_waits_while_the_pool_is_full() {
    let mut x = Bench::new();
    x.pool.fullness = Fullness::Full;
    let o = object("a");
    assert_eq!(x.dry(&o, &[OsdOp::call("hello", "record_hello", b"")]).unwrap_err(), Pause::Full);
}

#[test]
fn a_call_pauses_for_what_is_not_in_memory_and_then_runs_anew() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(b("quiet"))]);
    let state = load_object(&x.store, &o).unwrap();
    x.store.not_ready.set(1);
    let ops = [OsdOp::call("hello", "turn_it_to_11", b"")];
    let paused = execute(&x.context(&o), &state, &x.store, &ops);
    assert!(matches!(paused, Err(Pause::Prefetch(_))), "{paused:?}");
    assert_eq!(execute(&x.context(&o), &state, &x.store, &ops).unwrap().result, 0);
}

#[test]
fn a_call_reads_no_more_than_a_request_may() {
    let mut x = Bench::new();
    let o = object("a");
    x.run(&o, &[OsdOp::write_full(Bytes::from(vec![b'a'; 900]))]);
    // What is read counts, and what is written.
    x.limits.max_reply_size = 2000;
    assert_eq!(x.run(&o, &[OsdOp::call("hello", "turn_it_to_11", b"")]).result, 0);
    let twice =
        [OsdOp::call("hello", "turn_it_to_11", b""), OsdOp::call("hello", "turn_it_to_11", b"")];
    assert_eq!(errno_of(&x.run(&o, &twice)), errno::E2BIG);
}

/// radosgw replaces an object so: what it removes must have the version that it has read.
#[test]
fn a_method_sees_attributes_as_they_were_before_its_request() {
    let mut x = Bench::new();
    let o = object("a");
    let version = b"\x01\x01\x0d\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0t";
    x.run(&o, &[OsdOp::setxattr(b"ceph.objclass.version", version)]);
    // A version, and one condition: that the stored one is the same.
    let condition = [&b"\x01\x01\x17\0\0\0"[..], version, b"\x01\0\0\0"].concat();
    let conditions = [&b"\x01\x01\x34\0\0\0"[..], version, b"\x01\0\0\0", &condition].concat();
    let check = || OsdOp::call("version", "check_conds", &conditions);
    let replaced = x.run(
        &o,
        &[OsdOp::delete(), OsdOp::create(false), check(), OsdOp::write_full("new".into())],
    );
    assert_eq!(replaced.result, 0);
    assert_eq!(errno_of(&x.run(&o, &[check()])), errno::ECANCELED, "it went with the object");
}

#[test]
fn single_writes_make_one_op_and_pass_the_payload_through() {
    let x = Bench::new();
    let o = object("a");
    let data = Bytes::from(vec![1; 4096]);
    let Effect::Apply(m) = x.dry(&o, &[OsdOp::write(0, data.clone())]).unwrap().effect else {
        panic!("a change")
    };
    let m = &m.changes[0];
    let [ObjectOp::Write { offset: 0, data: out }] = &m.ops[..] else { panic!("{:?}", m.ops) };
    assert_eq!(out.as_ptr(), data.as_ptr());
    assert_eq!(
        (m.stats.objects, m.stats.bytes, m.stats.writes, m.stats.write_kib),
        (1, 4096, 1, 4)
    );
}

#[test]
fn unbounded_outputs_are_refused() {
    let mut x = Bench::new();
    let o = object("a");
    x.limits.max_reply_size = 1000;
    x.run(&o, &[OsdOp::write_full(Bytes::from(vec![1; 400]))]);
    let read = || OsdOp::read(0, 0);
    assert_eq!(x.run(&o, &[read(), read()]).result, 0);
    assert_eq!(errno_of(&x.run(&o, &[read(), read(), read()])), errno::E2BIG);
    x.limits.max_ops = 2;
    assert_eq!(errno_of(&x.run(&o, &[read(), read(), read()])), errno::E2BIG);
}
