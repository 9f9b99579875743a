//! The answer to a client that lists what a scrub found (op `SCRUBLS`): the encodings of
//! `scrub_types.cc`, and the object info in Ceph's own form, which `rados` decodes.

use super::compare::{Finding, Shard, shard};
use super::snaps::SnapFinding;
use crate::exec::{Effect, INFO_ATTR, ObjectInfo, Outcome, StatDelta, without_data};
use bytes::Bytes;
use spirula_encoding::{DecodeError, Decoder, Encoder, from_slice};
use spirula_messages::ceph::op::{self, OsdOp};
use spirula_messages::ceph::osd::OpResult;
use spirula_types::{EVersion, Epoch, HObject, ObjectLocator, Peer, ReqId, SNAP_HEAD, errno};
use std::collections::BTreeMap;

/// Most objects in one answer, whatever is asked for.
const MAX: u64 = 256;

/// What is asked for.
struct Ask {
    /// The interval that earlier answers were of; 0 in the first request.
    interval: Epoch,
    snapsets: bool,
    name: Bytes,
    namespace: Bytes,
    snap: u64,
    max: u64,
}

impl Ask {
    /// How many were told by earlier answers.
    fn skipped<'a>(&self, all: impl Iterator<Item = &'a HObject>) -> usize {
        let last = |o: &HObject| {
            o.name == self.name && o.namespace == self.namespace && o.snap == self.snap
        };
        if self.name.is_empty() { 0 } else { all.take_while(|o| !last(o)).count() + 1 }
    }
}

fn ask(bytes: &[u8]) -> Result<Ask, DecodeError> {
    Decoder::new(bytes).versioned("scrub_ls_arg_t", 1, |d, _| {
        let (interval, snapsets) = (d.get()?, d.u32()? != 0);
        Ok(Ask {
            interval,
            snapsets,
            name: d.get()?,
            namespace: d.get()?,
            snap: d.get()?,
            max: d.get()?,
        })
    })
}

/// The answer to a vector that lists inconsistencies; `None` to any other. `since` is the interval,
/// `me` its primary, `found` the objects in which the newest scrub found something.
pub(super) fn answer(
    ops: &[OsdOp],
    since: Epoch,
    me: Peer,
    found: Option<&BTreeMap<HObject, Finding>>,
    snaps: &BTreeMap<HObject, SnapFinding>,
) -> Option<Outcome> {
    let [o] = ops else { return None };
    if o.op != op::SCRUBLS {
        return None;
    }
    let mut out = OpResult { op: without_data(o), rval: 0, output_crc: None };
    let result = match (ask(&o.indata), found) {
        (Err(_), _) => -errno::EINVAL,
        (Ok(ask), _) if ask.interval != 0 && ask.interval != since => -errno::EAGAIN,
        (Ok(_), None) => -errno::ENOENT,
        (Ok(ask), Some(found)) => {
            let max = ask.max.min(MAX) as usize;
            let vals: Vec<Bytes> = if ask.snapsets {
                let all = snaps.iter().skip(ask.skipped(snaps.keys()));
                all.take(max).map(|(o, f)| f.listed(o)).collect()
            } else {
                let all = found.iter().skip(ask.skipped(found.keys()));
                all.take(max).map(|(o, f)| inconsistent(o, f, me)).collect()
            };
            let mut e = Encoder::new();
            e.versioned(1, 1, |e| {
                e.u32(since);
                e.put(&vals);
            });
            out.op.indata = e.into_bytes();
            0
        }
    };
    out.rval = result;
    Some(Outcome {
        result,
        ops: vec![out],
        user_version: 0,
        effect: Effect::None,
        stats: StatDelta::default(),
        unreadable: false,
        watch: Vec::new(),
    })
}

/// Librados' `object_id_t`.
pub(super) fn put_object_id(e: &mut Encoder, object: &HObject) {
    e.versioned(1, 1, |e| {
        e.put(&object.name);
        e.put(&object.namespace);
        e.put(&object.key);
        e.u64(object.snap);
    });
}

/// Ceph's `inconsistent_obj_t`.
fn inconsistent(object: &HObject, f: &Finding, primary: Peer) -> Bytes {
    let mut e = Encoder::new();
    e.versioned(2, 2, |e| {
        e.u64(f.errors);
        put_object_id(e, object);
        e.u64(f.info.user_version);
        e.list(&f.shards, |e, (osd, s)| {
            e.versioned(1, 1, |e| {
                e.i32(osd.osd);
                // 0xff in a replicated pool.
                e.u8(osd.shard as u8);
            });
            put_shard(e, object, s, *osd == primary, f.good == Some(*osd));
        });
        e.u64(f.shards.values().fold(0, |all, s| all | s.errors));
    });
    e.into_bytes()
}

/// Ceph's `shard_info_t`.
fn put_shard(e: &mut Encoder, object: &HObject, s: &Shard, primary: bool, selected: bool) {
    e.versioned(3, 3, |e| {
        let Some(copy) = &s.copy else {
            e.u64(s.errors | shard::MISSING);
            e.bool(primary);
            return;
        };
        e.u64(s.errors);
        e.bool(primary);
        e.list(&copy.attrs, |e, (name, value)| {
            e.put(name);
            match from_slice::<ObjectInfo>(value) {
                Ok(info) if name == INFO_ATTR => e.put(&ceph_info(object, &info)),
                _ => e.put(value),
            }
        });
        e.u64(copy.size);
        e.bool(copy.omap_digest.is_some());
        e.u32(copy.omap_digest.unwrap_or(0));
        e.bool(copy.data_digest.is_some());
        e.u32(copy.data_digest.unwrap_or(0));
        e.bool(selected);
    });
}

/// Ceph's `object_info_t` (version 17), as `rados` prints it.
fn ceph_info(object: &HObject, i: &ObjectInfo) -> Bytes {
    const FLAG_WHITEOUT: u32 = 1 << 1;
    const FLAG_OMAP: u32 = 1 << 3;
    let (key, namespace) = (object.key.clone(), object.namespace.clone());
    let locator = ObjectLocator { pool: object.pool, key, namespace, hash: -1 };
    let mut e = Encoder::with_capacity(320);
    e.versioned(17, 8, |e| {
        e.put(object);
        e.put(&locator);
        e.u32(0);
        e.put(&i.version);
        e.put(&i.prior_version);
        e.put(&i.last_reqid);
        e.u64(i.size);
        e.put(&i.mtime);
        if object.snap == SNAP_HEAD {
            e.put(&ReqId::default());
        } else {
            e.u32(0);
        }
        e.u64(u64::from(i.truncate_seq));
        e.u64(i.truncate_size);
        e.bool(false);
        e.u32(0); // Watchers, old form.
        e.put(&EVersion::new(0, i.user_version));
        e.bool(false);
        e.u32(0); // Watchers.
        let omap = if i.has(ObjectInfo::OMAP) { FLAG_OMAP } else { 0 };
        e.u32(omap | if i.has(ObjectInfo::WHITEOUT) { FLAG_WHITEOUT } else { 0 });
        e.put(&i.local_mtime);
        // Digests that nobody keeps.
        e.u32(u32::MAX);
        e.u32(u32::MAX);
        e.u64(i.expected_object_size);
        e.u64(i.expected_write_size);
        e.u32(i.alloc_hint_flags);
    });
    e.into_bytes()
}
