//! Execution of op vectors. Input: `[flags u8][flags u32]`, then for each op `[op u16][op flags u8]
//! [union 28][input length u16][input]`. Flag 1: the object does not exist; 2: erasure-coded;
//! 4: appends only; 8: full; 16: on the PG; 32: under a context of snapshots.
#![no_main]

use bytes::Bytes;
use spirula_encoding::{Decoder, UTime};
use spirula_maps::SnapIntervals;
use spirula_messages::ceph::op::OsdOp;
use spirula_pg::SnapContext;
use spirula_pg::exec::{
    Asker, Effect, Fullness, Limits, ObjectInfo, ObjectReader, ObjectState, OmapPage, OmapRange, OpContext, Origin, Outcome,
    PoolRules, ReadError, Stamp, Timeouts, execute, execute_pg,
};
use spirula_types::transaction::ObjectOp;
use spirula_types::{EVersion, EntityAddr, EntityName, HObject, PgId, ReqId, SNAP_HEAD};

const SIZE: u64 = 300;

/// One object that is always the same.
struct Fixed;

impl ObjectReader for Fixed {
    fn attr(&self, o: &HObject, name: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.attrs(o)?.into_iter().find(|(n, _)| n == name).map(|(_, v)| v))
    }
    fn attrs(&self, _: &HObject) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        Ok(vec![(Bytes::from_static(b"_a"), Bytes::from_static(b"1")), (Bytes::from_static(b"_bb"), Bytes::new())])
    }
    fn read(&self, _: &HObject, offset: u64, length: u64) -> Result<Bytes, ReadError> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE), "reads \
            {offset}+{length} of {SIZE}");
        Ok(vec![7; length as usize].into())
    }
    fn size(&self, _: &HObject) -> Result<u64, ReadError> {
        Ok(SIZE)
    }
    fn extents(&self, _: &HObject, offset: u64, length: u64) -> Result<Vec<(u64, u64)>, ReadError> {
        Ok(if length == 0 { Vec::new() } else { vec![(offset, length)] })
    }
    fn omap_header(&self, _: &HObject) -> Result<Bytes, ReadError> {
        Ok(Bytes::from_static(b"header"))
    }
    fn omap_get(&self, _: &HObject, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok((key < b"m".as_slice()).then(|| Bytes::from_static(b"value")))
    }
    fn omap_range(&self, _: &HObject, r: OmapRange<'_>) -> Result<OmapPage, ReadError> {
        assert!(r.max_entries > 0 && r.max_bytes > 0);
        let keys = (b'a'..b'm').map(|k| Bytes::copy_from_slice(&[k]));
        let inside = keys.filter(|k| k >= r.from && r.until.is_none_or(|u| *k < u));
        let mut entries: Vec<_> = inside.map(|k| (k, Bytes::from_static(b"value"))).collect();
        let all = entries.len();
        entries.truncate(r.max_entries.min(r.max_bytes.div_ceil(6)));
        Ok(OmapPage { more: entries.len() < all, entries })
    }
    fn list(&self, from: &HObject, until: &HObject, max: usize) -> Result<Vec<HObject>, ReadError> {
        let all = (0..20u8).map(|n| HObject::head(1, Bytes::new(), Bytes::new(), vec![b'o', n].into()));
        let mut inside: Vec<_> = all.filter(|o| o >= from && o < until).collect();
        inside.sort();
        inside.truncate(max);
        Ok(inside)
    }

    fn has_room_for(&self, _: u64, _: u64) -> bool {
        true
    }

    fn takes_data(&self, _: u64) -> bool {
        true
    }

    fn is_full(&self) -> bool {
        false
    }

    fn beside_data(&self, _: &HObject) -> u64 {
        0
    }

    fn bad_offset(&self, _: &HObject) -> Option<u64> {
        None
    }
}

fn ops(mut d: Decoder<'_>) -> Vec<OsdOp> {
    let mut next = || {
        let (op, flags, union) = (d.u16().ok()?, u32::from(d.u8().ok()?), d.array().ok()?);
        let n = usize::from(d.u16().ok()?).min(d.remaining());
        Some(OsdOp { op, flags, union, indata: Bytes::copy_from_slice(d.take(n).ok()?) })
    };
    std::iter::from_fn(&mut next).take(64).collect()
}

fn limits() -> Limits {
    Limits {
        max_object_size: 4096,
        max_write_size: 4096,
        max_reply_size: 65536,
        max_omap_bytes: 4096,
        max_ops: 32,
        ..Limits::default()
    }
}

fn check(limits: &Limits, object: &HObject, ops: &[OsdOp], o: Outcome) {
    let replied: usize = o.ops.iter().map(|r| r.op.indata.len()).sum();
    assert!(replied as u64 <= limits.max_reply_size, "{replied} bytes of output");
    assert!(o.ops.len() == ops.len(), "{} results for {} ops", o.ops.len(), ops.len());
    let Effect::Apply(plan) = o.effect else { return };
    let stamp = Stamp {
        version: EVersion::new(3, 9),
        last_user_version: 8,
        reqid: ReqId::default(),
        mtime: UTime::ZERO,
        now: UTime { sec: 9, nsec: 0 },
        result: o.result,
        returns: Vec::new(),
    };
    let mut done = plan.stamp(stamp, object, 0);
    let Some(done) = done.pop() else { return };
    assert!(done.state.info.size <= limits.max_object_size, "an object of {} bytes", done.state.info.size);
    for op in &done.ops {
        match op {
            ObjectOp::Write { offset, data } => assert!(offset + data.len() as u64 <= limits.max_object_size),
            ObjectOp::Zero { offset, length } => assert!(offset + length <= limits.max_object_size),
            ObjectOp::Truncate { size } => assert!(*size <= limits.max_object_size),
            ObjectOp::OmapSet(kv) => assert!(kv.is_sorted_by(|a, b| a.0 < b.0)),
            _ => {}
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    let mut d = Decoder::new(data);
    let (Ok(how), Ok(flags)) = (d.u8(), d.u32()) else { return };
    let ops = ops(d);
    let object = HObject::head(1, Bytes::new(), Bytes::new(), Bytes::from_static(b"object"));
    let limits = limits();
    let context = if how & 32 == 0 { SnapContext::default() } else { SnapContext { seq: 5, snaps: vec![5, 3, 2] } };
    let mut removed = SnapIntervals::new();
    removed.insert(3, 1);
    let ctx = OpContext {
        object: &object,
        pg: PgId::new(1, 0),
        pg_num: 1,
        pool: PoolRules {
            erasure: how & 2 != 0,
            append_alignment: (how & 6 == 6).then_some(64),
            fullness: if how & 8 != 0 { Fullness::Full } else { Fullness::No },
        },
        limits: &limits,
        flags,
        snapid: SNAP_HEAD,
        context: &context,
        removed: &removed,
        last_user_version: 8,
        origin: Origin::default(),
        fetched: None,
        asker: Asker {
            name: EntityName::client(4100),
            addr: EntityAddr::NONE,
            conn: 1,
            timeouts: Timeouts::default(),
            watched: None,
            next_notify: 1,
            may_notify: 8,
            room: 1 << 20,
        },
    };
    let mut info = ObjectInfo { size: SIZE, user_version: 5, version: EVersion::new(2, 4), ..ObjectInfo::default() };
    info.set(ObjectInfo::OMAP, true);
    let exists = how & 1 == 0;
    let state = if exists { ObjectState { exists, info, ..ObjectState::default() } } else { ObjectState::default() };
    let run = if how & 16 != 0 { execute_pg(&ctx, &Fixed, &ops) } else { execute(&ctx, &state, &Fixed, &ops) };
    if let Ok(outcome) = run {
        check(&limits, &object, &ops, outcome);
    }
}));
